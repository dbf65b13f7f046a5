"""Bucket: rings along one dimension of a torus after another, on shards that shrink.

Owns the order in which each colour takes the dimensions, and which blocks a ring of each carries.
A torus of D dimensions has 2 D colours with an equal share of the data: colour c starts with
dimension c and goes on to the next, and half of the colours go round the other way, so that
at any time every dimension and direction serves one colour::

    2 x 2 ranks    0 1     colour 0   reduce-scatter along rows, then columns, and back
                   2 3     colour 1   reduce-scatter along columns, then rows, and back

    colour 0       rank 0 keeps      rank 1         rank 2         rank 3
    rows           blocks 0 2        1 3            0 2            1 3
    columns        0                 1              2              3

Any sides will do; those of 1 are left out. Where no side is above 2 both directions are the same
link, and there are D colours.

Source: N. Jain and Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
interconnects", ICS 2010; P. Sack and W. Gropp, "Collective algorithms for multiported torus
networks", ACM TOPC 1 (2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import ScheduleError
from ..schedule import Layout, Phase, Schedule, together
from .flat import Ints, local_copy, ring_allgather, ring_reduce_scatter
from .recipe import Recipe, scheduled

__all__ = ["allgather", "allreduce", "reduce_scatter"]


@dataclass(frozen=True, eq=False, slots=True)
class _Colour:
    """The ranks as one colour sees them: int[d_a, d_b, ...], its first dimension first.

    number: the channel. back: whether its rings go the other way.
    """

    ranks: Ints
    number: int
    back: bool

    def _stage(self, k: int, own: Ints, *, whole: bool) -> tuple[Ints, Ints, int]:
        """Return the rings along dimension k: group int[G, d], own int[G, d], slots a chunk.

        own : int[n], the slot of each rank's block, in this colour's order. whole: blocks of
        neighbours lie next to each other, so that a ring carries a run of them as one chunk.
        """
        before, size = int(np.prod(self.ranks.shape[:k])), self.ranks.shape[k]
        after = self.ranks.size // (before * size)
        lines = self.ranks.reshape(before, size, after).swapaxes(1, 2)  # [before, after, size]
        chunks = own.reshape(before, size, after).swapaxes(1, 2)
        each = 1 if whole else after
        shape = (before, after, each, size)
        group = np.broadcast_to(lines[:, :, None, :], shape).reshape(-1, size)
        slots = np.broadcast_to(chunks[:, None, :each, :], shape).reshape(-1, size)
        if self.back:
            group, slots = group[:, ::-1], slots[:, ::-1]
        return group, slots, after if whole else 1

    def reduced(self, own: Ints, *, whole: bool) -> Iterator[Phase]:
        """Yield the reduce-scatter: a ring along each dimension, on an ever smaller shard."""
        for k in range(self.ranks.ndim):
            yield from ring_reduce_scatter(*self._stage(k, own, whole=whole), self.number)

    def gathered(self, own: Ints, *, whole: bool) -> Iterator[Phase]:
        """Yield the allgather: the same rings, the last dimension first."""
        for k in reversed(range(self.ranks.ndim)):
            yield from ring_allgather(*self._stage(k, own, whole=whole), self.number)


def _colours(recipe: Recipe) -> list[_Colour]:
    if recipe.grid is None:
        raise ScheduleError(
            f"bucket: the recipe for {recipe.n} ranks has no grid; where a torus joins them, give "
            "Recipe(grid=int32[d_0, d_1, ...]), the ranks where they stand in it"
        )
    grid = recipe.grid.reshape([d for d in recipe.grid.shape if d > 1] or [1])
    around = (False, True) if max(grid.shape) > 2 else (False,)
    axes = [np.roll(np.arange(grid.ndim), -first) for first in range(grid.ndim)]
    seen = [(grid.transpose(order), back) for back in around for order in axes]
    return [_Colour(ranks, c, back) for c, (ranks, back) in enumerate(seen)]


def allreduce(recipe: Recipe) -> Schedule:
    """Return the allreduce: 2 * sum(d - 1) steps; each colour's chunks in its own order.

    This and the others raise ScheduleError for a recipe without a grid.
    """
    n, colours = recipe.n, _colours(recipe)
    layout = Layout(n * len(colours), 1, 1)

    def both(colour: _Colour) -> Iterator[Phase]:
        own = layout.output() + colour.number * n + np.arange(n)
        yield from colour.reduced(own, whole=True)
        yield from colour.gathered(own, whole=True)

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(n), layout.input(), layout.output(), layout.chunks)
        yield from together(*(both(colour) for colour in colours))

    return scheduled("allreduce", "bucket", recipe, layout, len(colours), phases)


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return the reduce_scatter: sum(d - 1) steps; partial sums live in scratch."""
    n, colours = recipe.n, _colours(recipe)
    layout, ranks = Layout(len(colours), n, 1, n), np.arange(n)

    def half(colour: _Colour) -> Iterator[Phase]:
        own = layout.scratch_block(colour.ranks.ravel()) + colour.number
        return colour.reduced(own, whole=False)

    def phases() -> Iterator[Phase]:
        yield local_copy(ranks, layout.input(), layout.scratch_block(), n * layout.chunks)
        yield from together(*(half(colour) for colour in colours))
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), layout.chunks)

    return scheduled("reduce_scatter", "bucket", recipe, layout, len(colours), phases)


def allgather(recipe: Recipe) -> Schedule:
    """Return the allgather: sum(d - 1) steps."""
    n, colours = recipe.n, _colours(recipe)
    layout, ranks = Layout(len(colours), 1, n), np.arange(n)

    def half(colour: _Colour) -> Iterator[Phase]:
        own = layout.output(colour.ranks.ravel()) + colour.number
        return colour.gathered(own, whole=False)

    def phases() -> Iterator[Phase]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        yield from together(*(half(colour) for colour in colours))

    return scheduled("allgather", "bucket", recipe, layout, len(colours), phases)
