"""One repetition of a stage at one size: how long every message is on the wire, and what holds it.

Owns the seconds that clock and lockstep engines share. Resources are used as if the whole
repetition ran at once: a message takes what its busiest resource takes for all of them together::

    link 7   |== a ==|=== b ===|         a and b: 5 ms both; alone a would take 2
    link 9           |=== b ===|

Where links pause what feeds them (rccl_py.fabric.pausing), a message that is held past such a link
stops all the others on it: they take as long as it does, and in turn hold the links before::

    cable of rank 0   |==== a ====|    a: rank 3 is sent more than it can take, so a takes 7 ms
                      |==== b ====|    b: to an idle rank, but behind a on the way
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import BEYOND, F64, Fabric
from ..links import Protocol
from .stages import I8, I64, Stage, Uses, uses

__all__ = ["Wires", "numbered", "wires"]

_SAME = 1e-12  # seconds that differ by less than this part are the same
_SPARSE = 16  # names that could be, a name that is: beyond, sorting is faster than a table


@dataclass(frozen=True, eq=False, slots=True)
class Wires:
    """A stage in seconds, one entry a message unless said otherwise.

    wire, alone : float64[m] s on the wire, together and by itself. latency : float64[m] s.
    held : int64[m], the resource that takes longest (a link, or nlinks + rank: its memory).
    lead : float64[m] s its sender spends before the first byte. idle : float64[nranks] s of a
    stage without messages. used, seconds : resources and the s each is busy in one repetition.
    """

    stage: Stage
    wire: F64
    alone: F64
    latency: F64
    held: I64
    lead: F64
    idle: F64
    used: I64
    seconds: F64


def _largest(values: F64, ptr: I64) -> tuple[F64, I64]:
    """Return the largest of values[ptr[i]:ptr[i + 1]] and where it is; (0, -1) of nothing."""
    m = len(ptr) - 1
    top, at = np.zeros(m), np.full(m, -1, dtype=np.int64)
    full = np.flatnonzero(np.diff(ptr) > 0)
    if not len(full):
        return top, at
    top[full] = np.maximum.reduceat(values, ptr[full])
    hits = np.flatnonzero(values == np.repeat(top, np.diff(ptr)))
    row = np.searchsorted(ptr, hits, side="right") - 1
    at[row[::-1]] = hits[::-1]  # of equals the first
    return top, at


def numbered(names: I64, count: int) -> tuple[I64, I64]:
    """Return the different names, ascending, and the place of each entry's name among them.

    names : int64[k], 0 to `count` - 1.
    """
    if count > _SPARSE * len(names):
        used, at = np.unique(names, return_inverse=True)
        return used, at
    there = np.zeros(count, dtype=bool)
    there[names] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[names]


def wires(
    stage: Stage, fabric: Fabric, protocol: Protocol, slot: float, channels: int = 0
) -> Wires:
    """Return what one repetition of `stage` takes with slots of `slot` bytes.

    channels: how many of a kernel's share the work, 0: they are no limit.
    """
    if not len(stage.src):
        none, nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
        idle = stage.memory * slot
        return Wires(stage, none, none, none, nowhere, none, idle, nowhere, none)
    found = uses(stage, fabric, protocol, channels)
    cost = found.seconds * slot
    used, at = numbered(found.resource, found.count)
    total = np.asarray(np.bincount(at, weights=cost, minlength=len(used)), dtype=np.float64)
    wire, entry = _largest(total[at], found.ptr)
    if found.depth is not None and found.pauses is not None and found.pauses.any():
        wire, entry = _paused(found, found.depth, found.pauses, total, at, (wire, entry))
    held = np.where(entry >= 0, found.resource[entry] if len(at) else -1, -1)
    return Wires(
        stage,
        wire,
        _largest(cost, found.ptr)[0],
        stage.latency[protocol.index],
        held,
        stage.lead[stage.src],
        np.zeros(fabric.nranks),
        used,
        total,
    )


def _paused(
    found: Uses, depth: I8, pauses: npt.NDArray[np.bool_], total: F64, at: I64,
    free: tuple[F64, I64],
) -> tuple[F64, I64]:  # fmt: skip
    """Return s on the wire, and the entry that takes them, where links pause what feeds them.

    From the far end of all routes back: a pausing link takes what the slowest message on it takes
    further on, unless that one is as slow before it comes there. total, at: s of every resource,
    and the resource of each entry. free: the same without pauses.
    """
    row = np.repeat(np.arange(len(found.ptr) - 1), np.diff(found.ptr))
    seconds = total[at]
    before = {0: np.zeros(len(free[0]))}
    for d in range(BEYOND):
        before[d + 1] = _raised(before[d], row, seconds, depth == d)
    later = _raised(before[0], row, seconds, depth == BEYOND)
    for d in range(BEYOND - 1, 0, -1):
        here = np.flatnonzero((depth == d) & pauses)
        if len(here):
            i = row[here]
            stops = later[i] > before[d][i] * (1 + _SAME)
            longest = np.zeros(len(total))
            np.maximum.at(longest, at[here], np.where(stops, later[i], 0.0))
            seconds[here] = np.maximum(seconds[here], longest[at[here]])
        later = _raised(later, row, seconds, depth == d)
    last = np.lexsort((depth, seconds, row))[found.ptr[1:] - 1]  # of equals the furthest
    slower = later > free[0]
    return np.where(slower, later, free[0]), np.where(slower, last, free[1])


def _raised(most: F64, row: I64, seconds: F64, which: npt.NDArray[np.bool_]) -> F64:
    """Return by message the larger of `most` and the seconds of these entries: float64[m]."""
    found: F64 = most.copy()
    np.maximum.at(found, row[which], seconds[which])
    return found
