"""The interpreter: run a schedule's steps on anything that can be indexed by (rank, slot).

Owns the meaning of a step. Run on numbers it is the collective; on (part, set of ranks) it proves
that every contribution arrives once; on hashes, that all ranks reduce in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .schedule import COPY, I32, Step

__all__ = ["execute", "slots_of"]

Combine = Callable[[Any, Any], Any]


def slots_of(step: Step) -> tuple[I32, I32, I32, I32, I32]:
    """Return (src, src_slot, dst, dst_slot, op) with one entry a slot instead of one a range."""
    if step.count.size and step.count.max() == 1:
        return step.src, step.src_slot, step.dst, step.dst_slot, step.op
    row = np.repeat(np.arange(len(step.count)), step.count)
    ends = np.cumsum(step.count)
    within = np.arange(len(row)) - np.repeat(ends - step.count, step.count)
    within = within.astype(np.int32)
    return (
        step.src[row],
        step.src_slot[row] + within,
        step.dst[row],
        step.dst_slot[row] + within,
        step.op[row],
    )


def execute(
    steps: Iterable[Step],
    buf: npt.NDArray[Any],
    combine: Combine,
    travel: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
) -> None:
    """Run `steps` on buf[rank, slot, ...] in place; combine(destination, arriving) reduces.

    All reads of a step come before all its writes. travel: what becomes of values on the way to
    another rank.
    """
    for step in steps:
        src, src_slot, dst, dst_slot, op = slots_of(step)
        moved = buf[src, src_slot]  # fancy indexing copies: these are the reads
        if travel is not None:
            far = src != dst
            moved[far] = travel(moved[far])
        reduces = np.count_nonzero(op)
        if 0 < reduces == len(op):
            moved = combine(buf[dst, dst_slot], moved)
        elif reduces:
            some = op != COPY
            moved[some] = combine(buf[dst[some], dst_slot[some]], moved[some])
        buf[dst, dst_slot] = moved
