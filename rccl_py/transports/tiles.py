"""Tiles of a call: how many, how large, and a rank's operations as ranges of elements.

Owns the map from slots to elements in the four memories. A transfer keeps positions (S3), so a
tile of some elements of every position runs the whole schedule by itself, and staging need not
grow with the call. Knows no process.

Staging of a rank in one tile holds its slots that others read, one after another, nothing between::

    tile 0 of 2     position  0      1      2          tile 1      0    1    2
                           |----| |----| |----|                  |---| |---| |----|
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..schedule import Layout
from .levels import Order
from .lowered import PRIVATE, STAGED, Operation, Place

__all__ = ["Pass", "Range", "Tiling", "tiling"]

I64 = npt.NDArray[np.int64]


class Range(NamedTuple):
    """Elements start..stop-1 of one of the four memories; `rank` is whose."""

    memory: int
    rank: int
    start: int
    stop: int


class Pass(NamedTuple):
    """An operation over a range of elements: what one call of NumPy does."""

    kept: Range | None
    taken: Range
    into: Range
    travels: tuple[bool, bool]


class Tiling(NamedTuple):
    """number tiles: every one but the last takes `size` elements of each position."""

    number: int
    size: int

    def lengths(self, low: I64, last: bool) -> I64:
        """Return elements of each position in a tile; `low` is where positions start."""
        if not last:
            return np.full(len(low) - 1, self.size, dtype=np.int64)
        return np.diff(low) - (self.number - 1) * self.size


def tiling(order: Order, layout: Layout, block: int, most: int) -> Tiling | None:
    """Return tiles in which no rank has over `most` elements in staging, nor in private memory.

    None when one element of every slot is too much. The same at every rank.
    """
    used = np.zeros_like(order.staged)
    used[order.dst, order.dst_slot] = True
    used[:, : int(layout.scratch_block())] = False
    slots = max(int(np.max(np.sum(s, axis=1))) for s in (order.staged, used & ~order.staged))
    size = most // max(slots, 1)
    longest = -(-block // layout.chunks)
    if size < 1:
        return None
    number = -(-longest // size)
    # Of equal size, but for one element: so a short position still fills all tiles but the last.
    return Tiling(number, -(-longest // number))


class Ranges:
    """Where slots lie in a tile in which position c has lengths[c] elements.

    User's memory is that of tile 0; tile t lies t * size elements on.
    """

    def __init__(self, order: Order, layout: Layout, rank: int, block: int, lengths: I64) -> None:
        k = layout.chunks
        low = np.arange(k, dtype=np.int64) * block // k
        first = np.arange(layout.nslots, dtype=np.int64) // k * block + np.tile(
            low, layout.nslots // k
        )
        outputs = int(layout.output())
        sizes = np.tile(lengths, order.nslots // k)
        self.length: list[int] = sizes.tolist()
        self.users: list[int] = np.where(
            np.arange(layout.nslots) < outputs, first, first - layout.inputs * block
        ).tolist()
        staged = np.cumsum(order.staged * sizes, axis=1) - order.staged * sizes
        self.staged: list[list[int]] = staged.tolist()
        own = np.zeros(order.nslots, dtype=bool)
        own[order.dst_slot[order.dst == rank]] = True
        own[: int(layout.scratch_block())] = False
        own &= ~order.staged[rank]
        self.private: list[int] = (np.cumsum(own * sizes) - own * sizes).tolist()

    def range(self, place: Place) -> Range:
        """Return the elements of a slot."""
        memory, rank, slot = place
        if memory == STAGED:
            start = self.staged[rank][slot]
        else:
            start = (self.private if memory == PRIVATE else self.users)[slot]
        return Range(memory, rank, start, start + self.length[slot])

    def passes(self, operations: list[Operation]) -> list[Pass]:
        """Return the operations as passes, neighbours that continue one another made one."""
        done: list[Pass] = []
        for kept, taken, into, travels in operations:
            if not self.length[into.slot]:
                continue
            now = Pass(
                self.range(kept) if kept is not None else None,
                self.range(taken),
                self.range(into),
                travels,
            )
            if done and _continues(done[-1], now):
                now = _joined(done.pop(), now)
            done.append(now)
        return done


def _follows(first: Range | None, second: Range | None) -> bool:
    if first is None or second is None:
        return first is second
    return first[:2] == second[:2] and first.stop == second.start


def _continues(first: Pass, second: Pass) -> bool:
    """Return whether both can be one pass: all ranges go on and `second` reads no result."""
    if first.travels != second.travels:
        return False
    if not all(_follows(a, b) for a, b in zip(first[:3], second[:3])):
        return False
    into = first.into
    reads = [r for r in (second.kept, second.taken) if r is not None and r[:2] == into[:2]]
    return all(r.start >= into.stop or r.stop <= into.start for r in reads)


def _joined(first: Pass, second: Pass) -> Pass:
    def both(a: Range, b: Range) -> Range:
        return Range(a.memory, a.rank, a.start, b.stop)

    kept = both(first.kept, second.kept) if first.kept and second.kept else None
    return Pass(kept, both(first.taken, second.taken), both(first.into, second.into), first.travels)
