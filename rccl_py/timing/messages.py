"""The messages of a phase, and what a switch that adds up or multicasts changes of them.

Owns the merging of rows to messages and the rule for switched ones. Knows no size and no time.

A switched transfer among f + 1 ranks (NVLink SHARP). Adding up: every rank hands the switch all
its part and its own share, and gets one sum back. Handing on: it sends once and gets all, its own
included. So of the f messages that one rank gets (or sends) there cross

    adding up    its way to the switch (f + 1) / f of the bytes, the way back 1 / f
    handing on   its way to the switch 1 / f of the bytes, the way back (f + 1) / f
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import FabricError
from ..fabric import F64, I64, Fabric, Routes
from ..schedule import I32, REDUCE, AllPairs, Phase, Rows

__all__ = [
    "Messages",
    "crossing",
    "fans",
    "last_of",
    "messages",
    "serving_many",
    "spent",
    "switched_parts",
    "to_many",
]

Ints = npt.NDArray[np.int64]

_SORTED = 1 << 16  # messages of one move of which those with the same ends are looked for


class Messages(NamedTuple):
    """Columns, one entry a message. src, dst: int32. slots: int64. fan: int64, 0 for a message
    of its own, f where the switch hands on to f ranks, -f where it adds up what f send.
    """

    src: I32
    dst: I32
    slots: I64
    fan: I64

    def part(self, which: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Messages:
        """Return some of them."""
        return Messages(self.src[which], self.dst[which], self.slots[which], self.fan[which])


def messages(phase: Phase) -> Messages:
    """Return the phase's messages: neighbouring rows with the same two ends are one.

    In a single move of a moderate size so are all rows with the same two ends.
    """
    every = [m.rows for m in phase.moves]
    src, dst = (np.concatenate([getattr(r, end) for r in every]) for end in ("src", "dst"))
    count = np.concatenate([r.total for r in every])
    fan = fans(phase, src, dst)
    if len(src) < 2:
        return Messages(src, dst, count, fan)
    apart = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]) | (fan[1:] != fan[:-1])
    starts = np.concatenate([[0], np.flatnonzero(apart) + 1])
    found = Messages(src[starts], dst[starts], np.add.reduceat(count, starts), fan[starts])
    return _once(found) if len(starts) <= _SORTED and len(phase.moves) == 1 else found


def _once(sent: Messages) -> Messages:
    """Return what has the same two ends as one message, in the order of the first of each.

    Two rings that share a link post one message over it.
    """
    n = int(max(sent.src.max(), sent.dst.max())) + 1
    key = (sent.fan * n + sent.src) * n + sent.dst
    _, first, at = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key):
        return sent
    slots = np.bincount(at, weights=sent.slots).astype(np.int64)
    order = np.argsort(first)
    return sent.part(first[order])._replace(slots=slots[order])


def fans(phase: Phase, src: I32, dst: I32) -> I64:
    """Return the fan of every row of the phase's moves, one after the other."""
    found = np.zeros(len(src), dtype=np.int64)
    if not any(m.rows.switched for m in phase.moves):
        return found
    switched = np.repeat(
        [m.rows.switched for m in phase.moves], [len(m.rows.src) for m in phase.moves]
    )
    adds = np.concatenate([m.rows.op for m in phase.moves]) == REDUCE
    every = [np.broadcast_to(m.rows.times, m.rows.src.shape) for m in phase.moves]
    times = np.concatenate(every)
    for which, end, sign in ((switched & adds, dst, -1), (switched & ~adds, src, 1)):
        if which.any():
            found[which] = sign * np.bincount(end[which], times[which])[end[which]]
    return found


def to_many(phase: Phase, nranks: int) -> bool:
    """Return whether a channel of some rank sends to three others or more at once.

    A kernel that serves many peers cuts what it sends into smaller messages than one that hands
    on to a neighbour, or to two.
    """
    rows = [m.rows for m in phase.moves]
    if sum(len(r.src) for r in rows) < 3 or any(r.switched for r in rows):
        return False
    src, dst, channel = _columns(rows)
    apart = src != dst
    apart[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]) | (channel[1:] != channel[:-1])
    sender, dst = (channel * nranks + src)[apart], dst[apart]
    sends = np.bincount(sender)
    if sends.max(initial=0) < 3:  # rings, and trees of two children
        return False
    one = sender == sends.argmax()
    if len(np.unique(dst[one])) > 2:
        return True
    ends = np.unique(sender * nranks + dst) // nranks
    return bool(len(ends) > 2 and (ends[2:] == ends[:-2]).any())


def _columns(rows: list[Rows]) -> tuple[Ints, Ints, Ints]:
    """Return the senders, receivers and channels of all rows."""
    src, dst, channel = (
        np.concatenate([getattr(r, c) for r in rows]).astype(np.int64)
        for c in ("src", "dst", "channel")
    )
    return src, dst, channel


def last_of(phase: Phase, nranks: int) -> float:
    """Return the most slots a rank gets in one repetition where it gets one message a channel.

    Then what gets them is one kernel that sent before; several at once are got by kernels of
    their own while others send.
    """
    if isinstance(phase.moves, AllPairs) and phase.moves.pairs.group.shape[1] > 2:
        return 0.0
    rows = [m.rows for m in phase.moves]
    if any(r.switched for r in rows):
        return 0.0
    src, dst, channel = _columns(rows)
    far = src != dst
    into, src = (channel * nranks + dst)[far], src[far]
    sender = np.empty(int(into.max(initial=-1)) + 1, dtype=np.int64)
    sender[into] = src
    if (sender[into] != src).any():
        return 0.0
    count = np.concatenate([r.total for r in rows])[far]
    return float(np.bincount(dst[far], weights=count, minlength=1).max())


def serving_many(phase: Phase, fabric: Fabric) -> npt.NDArray[np.bool_]:
    """Return what `to_many` says of every row of the phase's moves, one after the other.

    Phases that run side by side are asked one by one, as the estimate loads them.
    """
    if len(phase.made_of) > 1 and not fabric.together:
        return np.concatenate([serving_many(part, fabric) for part in phase.made_of])
    count = sum(len(m.rows.src) for m in phase.moves)
    return np.full(count, to_many(phase, fabric.nranks))


def crossing(fabric: Fabric, fan: I64, routes: Routes, many: bool | npt.NDArray[np.bool_]) -> F64:
    """Return what the switch, and serving many peers, make of the bytes of each entry of `routes`.

    float64, a factor. many: what `to_many` says of the phase, or of each message.

    Raises FabricError where a switch is to do what none here does.
    """
    of = fan[routes.row]
    serves = np.broadcast_to(many, fan.shape)[routes.row]
    less = np.where(serves, 1.0 / fabric.spread[routes.link], 1.0)
    if not of.any():
        return less
    down, up = switched_parts(fabric, of)
    return np.where(of == 0, less, np.where(fabric.leaving[routes.link], up, down))


def switched_parts(fabric: Fabric, fan: I64) -> tuple[F64, F64]:
    """Return what the switch makes of each message's bytes on links from it, and on links to it.

    float64[len(fan)] each, a factor; 0 for messages of their own.

    Raises FabricError where a switch is to do what none here does.
    """
    if not fabric.multicast:
        raise FabricError(
            f"{fabric.name}: no switch here adds up and hands on, which this schedule asks of it; "
            "take an algorithm whose row in rccl_py.algorithms is not `switched`"
        )
    several = np.maximum(np.abs(fan), 1)
    once = np.where(fan == 0, 0.0, 1.0 / several / fabric.multicast)
    whole = once * (several + 1.0)
    return np.where(fan > 0, whole, once), np.where(fan > 0, once, whole)


def spent(fabric: Fabric, sent: Messages, many: bool | npt.NDArray[np.bool_]) -> F64:
    """Return the s the sender spends on each message: a switched one is posted once for all.

    many: to many peers, which takes more and smaller ones; of the phase, or of each message.
    """
    each = fabric.message(sent.src, sent.dst)
    if np.any(many):
        far = fabric.node[sent.src] != fabric.node[sent.dst]
        part = np.where(far, fabric.least_spread(far=True), fabric.least_spread(far=False))
        each = np.where(many, each / part, each)
    return np.asarray(each / np.maximum(np.abs(sent.fan), 1))
