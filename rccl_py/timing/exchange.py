"""Time of messages posted together: sends and receives of a group, and uneven collectives.

Owns the estimate of exchanges. Like a phase of a schedule (rccl_py.timing.estimate), but with
bytes instead of slots: T = launch + latency + messages + max(busiest link, memory).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..links import PROTOCOLS
from .memory import STAGED, staged
from .overlap import Busy, Cost

__all__ = ["Exchange", "exchange", "exchanges"]

Ints = npt.ArrayLike


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """seconds: from the call to the last byte. lead: of these, before links are used. busy: links
    and the seconds each is used.
    """

    seconds: float
    lead: float
    busy: Busy
    protocol: str

    @property
    def cost(self) -> Cost:
        """What it takes alone, for a timetable."""
        return Cost(self.seconds, self.lead, lambda: self.busy)


def exchange(fabric: Fabric, src: Ints, dst: Ints, size: Ints) -> Exchange:
    """Return the time of messages src[i] -> dst[i] of size[i] bytes, all posted at once."""
    found = exchanges(fabric, src, dst, size, np.zeros(np.size(src), dtype=np.int64))
    return found[0] if found else Exchange(fabric.launch, fabric.launch, Busy.nothing(), "LL")


def exchanges(fabric: Fabric, src: Ints, dst: Ints, size: Ints, group: Ints) -> list[Exchange]:
    """Return the time of each group of messages as if it were alone, under its fastest protocol.

    group: int64, 0 to the number of groups - 1, of each message. A message to oneself is a copy in
    memory.
    """
    src, dst = np.asarray(src, dtype=np.int32), np.asarray(dst, dtype=np.int32)
    size, group = np.asarray(size, dtype=np.float64), np.asarray(group, dtype=np.int64)
    if not len(group):
        return []
    count = int(group.max()) + 1
    if count > 1 and fabric.together:
        # Flows choose their way by what else is sent, which is only their own group here.
        return [exchange(fabric, *(c[group == g] for c in (src, dst, size))) for g in range(count)]
    detour = staged(fabric, src, dst)
    written = size if detour is None else size * (1 + STAGED * detour)
    memory = _most(count, group, src, size, dst, written) / fabric.memory
    far = src != dst
    there, back, which = src[far], dst[far], group[far]
    latency, spent = np.zeros((3, count)), np.zeros(count)
    if len(which):
        hops = fabric.latency(there, back)
        for p in range(3):
            np.maximum.at(latency[p], which, hops[p])
        spent = _most(count, which, there, fabric.message(there, back))
    routes = fabric.routes(there, back, size[far])
    owner = which[routes.row]
    key, at = np.unique(owner * fabric.nlinks + routes.link, return_inverse=True)
    share = routes.share / np.where(
        _to_many(which, there, back)[owner], fabric.spread[routes.link], 1
    )
    load = np.bincount(at, weights=size[far][routes.row] * share, minlength=len(key))
    owner, link = np.divmod(key, fabric.nlinks)
    busy = load * fabric.pace[:, link]
    busiest = np.zeros((3, count))
    for p in range(3):
        np.maximum.at(busiest[p], owner, busy[p])
    wire = np.maximum(busiest, memory)
    # What a rank moves at most has filled a window before it is handed on.
    moved = np.maximum(_most(count, which, there, size[far]), _most(count, which, back, size[far]))
    window = np.full(count, fabric.window(far=False))
    window[which[fabric.node[there] != fabric.node[back]]] = fabric.window(far=True)
    part = np.divide(np.minimum(moved, window), moved, out=np.zeros(count), where=moved > 0)
    names = sorted(PROTOCOLS, key=lambda name: PROTOCOLS[name].index)
    total = latency + wire * (1.0 + part)
    best = total.argmin(axis=0)
    ends = np.searchsorted(owner, np.arange(count + 1))
    return [
        Exchange(
            float(fabric.launch + spent[g] + total[best[g], g]),
            float(fabric.launch + spent[g] + total[best[g], g] - wire[best[g], g]),
            Busy(link[a:b], busy[best[g], a:b]),
            names[best[g]],
        )
        for g, (a, b) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist()))
    ]


def _to_many(group: npt.NDArray[np.int64], src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
    """Return, by group, whether a rank sends to three others or more."""
    n = int(max(np.max(src, initial=0), np.max(dst, initial=0))) + 1
    ends = np.unique((group * n + src) * n + dst) // n
    found = np.zeros(int(group.max(initial=-1)) + 1, dtype=bool)
    found[ends[2:][ends[2:] == ends[:-2]] // n] = True
    return found


def _most(count: int, group: npt.NDArray[np.int64], *parts: npt.NDArray[np.number]) -> F64:
    """Return per group the largest sum over a rank; parts: ranks, values, ranks, values, ..."""
    ranks = np.concatenate(parts[::2]).astype(np.int64)
    values = np.concatenate(parts[1::2])
    groups = np.tile(group, len(parts) // 2)
    n = int(ranks.max(initial=0)) + 1
    key, at = np.unique(groups * n + ranks, return_inverse=True)
    most = np.zeros(count)
    np.maximum.at(most, key // n, np.bincount(at, weights=values, minlength=len(key)))
    return most
