"""A program bound to a block size and an arithmetic: this rank's passes on views of memory.

Owns the views that a call's passes work on. Making one costs as much as adding a hundred numbers,
so those of staging are made once, those of a small call's buffers are kept for the next call on
the same buffers, and those of a large call come from one iterator a pass, a tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, repeat
from typing import Any

import numpy as np

from ..reduce_ops import Arithmetic
from .lowered import PRIVATE, SOURCE, STAGED, TARGET, lowered
from .passes import Array, Work, combiner
from .program import Program
from .tiles import Pass, Range, Ranges, Tiling

__all__ = ["Memories", "SharedBound"]

Memories = Callable[[int, np.dtype[Any]], list[Array]]
"""(slot, dtype) to every rank's staging there, by rank, and this rank's private memory last."""

_KEPT = 1 << 18  # bytes of user's buffers up to which views of them are kept for the next call


class SharedBound:
    """A program on a block size and arithmetic, ready to run on rank `rank`'s buffers.

    number: how many tiles a call takes. awaited: per level, whom the rank waits for before it.
    small: whether views of the buffers are kept. kept: of slots 0 and 1 of staging, which such
    calls use, the buffers of the last one and its passes.
    """

    def __init__(
        self,
        program: Program,
        block: int,
        arithmetic: Arithmetic,
        tiles: Tiling,
        rank: int,
        memories: Memories,
    ) -> None:
        order, layout = program.order, program.schedule.layout
        self.number, self._size = tiles
        self.awaited = order.awaited(rank)
        self._arithmetic = arithmetic
        self._memories = memories
        low = np.arange(layout.chunks + 1, dtype=np.int64) * block // layout.chunks
        operations = lowered(order, layout, rank)
        self._passes: list[list[list[Pass]]] = []
        for last in (False, True):
            ranges = Ranges(order, layout, rank, block, tiles.lengths(low, last))
            self._passes.append([ranges.passes(level) for level in operations])
        used = block * (layout.inputs + layout.outputs) * arithmetic.held.itemsize
        self.small = self.number == 1 and used <= _KEPT
        self.kept: list[tuple[object, object, list[list[Work]]]] = [(self, self, [])] * 2

    def last(self, slot: int, source: Array | None, target: Array | None) -> list[list[Work]]:
        """Return the passes of the last tile, which may be the only one, a list a level.

        slot: which part of staging the tile uses.
        """
        users = {SOURCE: source, TARGET: target}
        first = (self.number - 1) * self._size

        def view(part: Range) -> Array:
            if part.memory >= PRIVATE:
                return self._view(slot, part)
            buffer = users[part.memory]
            assert buffer is not None  # a valid schedule uses only buffers a rank has
            return buffer[first + part.start : first + part.stop]

        levels = [[self._work(one, view) for one in level] for level in self._passes[1]]
        if self.small:
            self.kept[slot] = source, target, levels
        return levels

    def streams(
        self, slots: Sequence[int], source: Array | None, target: Array | None
    ) -> list[list[Iterator[Work]]]:
        """Return, for each level, a stream a pass: its work in each tile but the last, in turn.

        Tiles use `slots` of staging in turn.
        """
        users = {SOURCE: source, TARGET: target}
        many, size = self.number - 1, self._size

        def views(part: Range) -> Iterator[Array]:
            if part.memory >= PRIVATE:
                return cycle([self._view(slot, part) for slot in slots])
            buffer = users[part.memory]
            assert buffer is not None
            # Tiles lie one after another: the rows of a matrix.
            return iter(buffer[part.start : part.start + many * size].reshape(many, size))

        return [[zip(*self._stream(one, views)) for one in level] for level in self._passes[0]]

    def _view(self, slot: int, part: Range) -> Array:
        memories = self._memories(slot, self._arithmetic.held)
        return memories[part.rank if part.memory == STAGED else -1][part.start : part.stop]

    def _work(self, one: Pass, view: Callable[[Range], Array]) -> Work:
        function = combiner(self._arithmetic, one.kept is not None, one.travels)
        kept = view(one.kept) if one.kept is not None else None
        return function, kept, view(one.taken), view(one.into)

    def _stream(self, one: Pass, views: Callable[[Range], Iterator[Array]]) -> tuple[Any, ...]:
        function = combiner(self._arithmetic, one.kept is not None, one.travels)
        kept = views(one.kept) if one.kept is not None else repeat(None)
        return repeat(function), kept, views(one.taken), views(one.into)
