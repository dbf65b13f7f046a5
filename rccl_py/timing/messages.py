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
from ..schedule import I32, REDUCE, Phase

__all__ = ["Messages", "crossing", "messages", "spent"]

Ints = npt.NDArray[np.int64]


class Messages(NamedTuple):
    """Columns, one entry a message. src, dst: int32. slots: int64. fan: int64, 0 for a message
    of its own, f where the switch hands on to f ranks, -f where it adds up what f send.
    """

    src: I32
    dst: I32
    slots: I64
    fan: I64

    def part(self, which: slice | npt.NDArray[np.bool_]) -> Messages:
        """Return some of them."""
        return Messages(*(column[which] for column in self))


def messages(phase: Phase) -> Messages:
    """Return the phase's messages: neighbouring rows with the same two ends are one."""
    every = [m.rows for m in phase.moves]
    src, dst = (np.concatenate([getattr(r, end) for r in every]) for end in ("src", "dst"))
    count = np.concatenate([r.count for r in every]).astype(np.int64)
    fan = fans(phase, src, dst)
    if len(src) < 2:
        return Messages(src, dst, count, fan)
    apart = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]) | (fan[1:] != fan[:-1])
    starts = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return Messages(src[starts], dst[starts], np.add.reduceat(count, starts), fan[starts])


def fans(phase: Phase, src: I32, dst: I32) -> I64:
    """Return the fan of every row of the phase's moves, one after the other."""
    found = np.zeros(len(src), dtype=np.int64)
    if not any(m.rows.switched for m in phase.moves):
        return found
    switched = np.repeat(
        [m.rows.switched for m in phase.moves], [len(m.rows.src) for m in phase.moves]
    )
    adds = np.concatenate([m.rows.op for m in phase.moves]) == REDUCE
    for which, end, sign in ((switched & adds, dst, -1), (switched & ~adds, src, 1)):
        if which.any():
            found[which] = sign * np.bincount(end[which])[end[which]]
    return found


def crossing(fabric: Fabric, fan: I64, routes: Routes) -> F64:
    """Return by how much the switch changes the bytes of each entry of `routes`: float64.

    Raises FabricError where a switch is to do what none here does.
    """
    of = fan[routes.row]
    if not of.any():
        return np.ones(len(of))
    if not fabric.multicast:
        raise FabricError(
            f"{fabric.name}: no switch here adds up and hands on, which this schedule asks of it; "
            "take an algorithm whose row in rccl_py.algorithms is not `switched`"
        )
    several = np.maximum(np.abs(of), 1)
    up = fabric.leaving[routes.link]
    factor = np.where((of > 0) == up, 1.0 / several, (several + 1.0) / several)
    return np.where(of == 0, 1.0, factor / fabric.multicast)


def spent(fabric: Fabric, sent: Messages) -> F64:
    """Return the s the sender spends on each message: a switched one is posted once for all."""
    each = fabric.message(sent.src, sent.dst)
    return np.asarray(each / np.maximum(np.abs(sent.fan), 1))
