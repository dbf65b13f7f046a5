"""One repetition of a stage at one size: how long every message is on the wire, and what holds it.

Owns the seconds that clock and lockstep engines share. Resources are used as if the whole
repetition ran at once: a message takes what its busiest resource takes for all of them together::

    link 7   |== a ==|=== b ===|         a and b: 5 ms both; alone a would take 2
    link 9           |=== b ===|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..fabric import F64, Fabric
from ..links import Protocol
from .stages import I64, Stage, uses

__all__ = ["Wires", "numbered", "wires"]

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


def wires(stage: Stage, fabric: Fabric, protocol: Protocol, slot: float) -> Wires:
    """Return what one repetition of `stage` takes with slots of `slot` bytes."""
    if not len(stage.src):
        none, nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
        idle = stage.memory * slot
        return Wires(stage, none, none, none, nowhere, none, idle, nowhere, none)
    found = uses(stage, fabric, protocol)
    cost = found.seconds * slot
    used, at = numbered(found.resource, found.count)
    total = np.asarray(np.bincount(at, weights=cost, minlength=len(used)), dtype=np.float64)
    wire, entry = _largest(total[at], found.ptr)
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
