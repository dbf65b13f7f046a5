"""Time of messages posted together: sends and receives of a group, and uneven collectives.

Owns the estimate of exchanges: a phase of a schedule (rccl_py.timing.estimate) with bytes instead
of slots, so that equal messages from all to all take what alltoall by `direct` takes.

    T = launch + latency + messages + max(busiest link, memory) + first window + own copy

A rank that sends to three others or more spends more on each message and reaches less of its links
(`spread`). A window has to be full before it is handed on. A message to oneself is a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import F64, I64, Fabric
from ..links import PROTOCOLS
from ..schedule import I32
from .memory import STAGED, staged
from .messages import Messages, spent
from .overlap import Busy, Cost

__all__ = ["Exchange", "exchange", "exchanges"]

Ints = npt.ArrayLike
Bools = npt.NDArray[np.bool_]


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

    group: int64, 0 to the number of groups - 1, of each message. A message to oneself is a copy
    by the kernel, within its memory.
    """
    src, dst = np.asarray(src, dtype=np.int32), np.asarray(dst, dtype=np.int32)
    size, group = np.asarray(size, dtype=np.float64), np.asarray(group, dtype=np.int64)
    if not len(group):
        return []
    count = int(group.max()) + 1
    if count > 1 and fabric.together:
        # Flows choose their way by what else is sent, which is only their own group here.
        return [exchange(fabric, *(c[group == g] for c in (src, dst, size))) for g in range(count)]
    far = src != dst
    sent = _Sent(count, src[far], dst[far], size[far], group[far])
    many = _to_many(sent)
    owner, link, busy = _busy(fabric, sent, many)
    wire = np.tile(_memory(fabric, sent), (3, 1))
    for p in range(3):
        np.maximum.at(wire[p], owner, busy[p])
    copied = _most(count, group[~far], src[~far], size[~far]) / fabric.copy
    before = fabric.launch + _spent(fabric, sent, many) + copied
    total = before + _latency(fabric, sent) + wire * (1.0 + _filling(fabric, sent))
    names = sorted(PROTOCOLS, key=lambda name: PROTOCOLS[name].index)
    best = total.argmin(axis=0)
    ends = np.searchsorted(owner, np.arange(count + 1))
    return [
        Exchange(
            float(total[p, g]),
            float(total[p, g] - wire[p, g]),
            Busy(link[a:b], busy[p, a:b]),
            names[p],
        )
        for g, (p, a, b) in enumerate(zip(best.tolist(), ends[:-1].tolist(), ends[1:].tolist()))
    ]


@dataclass(frozen=True, eq=False, slots=True)
class _Sent:
    """Messages from one rank to another, of `count` groups. src, dst: int32. size: float64, B.
    group: int64.
    """

    count: int
    src: I32
    dst: I32
    size: F64
    group: I64


def _memory(fabric: Fabric, sent: _Sent) -> F64:
    """Return the s that the busiest rank's memory takes, by group."""
    detour = staged(fabric, sent.src, sent.dst)
    written = sent.size if detour is None else sent.size * (1 + STAGED * detour)
    moved = _most(sent.count, sent.group, sent.src, sent.size, sent.dst, written)
    return np.asarray(moved / fabric.memory)


def _latency(fabric: Fabric, sent: _Sent) -> F64:
    """Return the s of the longest hop, by protocol and group: float64[3, count]."""
    latency = np.zeros((3, sent.count))
    if len(sent.src):
        hops = fabric.latency(sent.src, sent.dst)
        for p in range(3):
            np.maximum.at(latency[p], sent.group, hops[p])
    return latency


def _spent(fabric: Fabric, sent: _Sent, many: Bools) -> F64:
    """Return the s that the rank which posts longest spends on messages, by group."""
    if not len(sent.src):
        return np.zeros(sent.count)
    posted = Messages(sent.src, sent.dst, sent.group, np.zeros_like(sent.group))
    return _most(sent.count, sent.group, sent.src, spent(fabric, posted, many[sent.group]))


def _busy(fabric: Fabric, sent: _Sent, many: Bools) -> tuple[I64, I64, F64]:
    """Return what each group asks of links, sorted by group: groups, links, s by protocol."""
    routes = fabric.routes(sent.src, sent.dst, sent.size)
    owner = sent.group[routes.row]
    key, at = np.unique(owner * fabric.nlinks + routes.link, return_inverse=True)
    share = routes.share / np.where(many[owner], fabric.spread[routes.link], 1)
    load = np.bincount(at, weights=sent.size[routes.row] * share, minlength=len(key))
    owner, link = np.divmod(key, fabric.nlinks)
    return owner, link, load * fabric.pace[:, link]


def _filling(fabric: Fabric, sent: _Sent) -> F64:
    """Return the part of a group's time on the wire that its first window takes to fill."""
    moved = np.maximum(
        _most(sent.count, sent.group, sent.src, sent.size),
        _most(sent.count, sent.group, sent.dst, sent.size),
    )
    window = np.full(sent.count, fabric.window(far=False))
    window[sent.group[fabric.node[sent.src] != fabric.node[sent.dst]]] = fabric.window(far=True)
    part = np.divide(np.minimum(moved, window), moved, out=np.zeros(sent.count), where=moved > 0)
    return np.asarray(part)


def _to_many(sent: _Sent) -> Bools:
    """Return, by group, whether a rank sends to three others or more."""
    n = int(max(sent.src.max(initial=0), sent.dst.max(initial=0))) + 1
    ends = np.unique((sent.group * n + sent.src) * n + sent.dst) // n
    found = np.zeros(sent.count, dtype=bool)
    found[ends[2:][ends[2:] == ends[:-2]] // n] = True
    return found


def _most(count: int, group: I64, *parts: npt.NDArray[np.number]) -> F64:
    """Return per group the largest sum over a rank; parts: ranks, values, ranks, values, ..."""
    ranks = np.concatenate(parts[::2]).astype(np.int64)
    values = np.concatenate(parts[1::2])
    groups = np.tile(group, len(parts) // 2)
    n = int(ranks.max(initial=0)) + 1
    key, at = np.unique(groups * n + ranks, return_inverse=True)
    most = np.zeros(count)
    np.maximum.at(most, key // n, np.bincount(at, weights=values, minlength=len(key)))
    return most
