"""Bucket: rings along one dimension of a torus after another, on shards that shrink.

Owns the order in which each colour takes the dimensions, its share of the data, and which blocks a
ring carries. A torus of D dimensions has 2 D colours: colour c starts with dimension c and goes on
to the next, and half of the colours go round the other way, so that at any time every dimension
and direction serves one colour::

    2 x 2 ranks    0 1     colour 0   reduce-scatter along rows, then columns, and back
                   2 3     colour 1   reduce-scatter along columns, then rows, and back

    colour 0       rank 0 keeps      rank 1         rank 2         rank 3
    rows           blocks 0 2        1 3            0 2            1 3
    columns        0                 1              2              3

Any sides will do; those of 1 are left out. Where no side is above 2 both directions are the same
link, and there are D colours. In pieces, all stages of all colours are at work at once.

Source: N. Jain and Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
interconnects", ICS 2010; P. Sack and W. Gropp, "Collective algorithms for multiported torus
networks", ACM TOPC 1 (2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..schedule import Layout, Phase, Pipeline, Schedule, pipeline, together
from .flat import Ints, local_copy, ring_allgather, ring_reduce_scatter
from .recipe import Recipe, scheduled, spaced

__all__ = ["allgather", "allreduce", "link_loads", "reduce_scatter", "shares"]

Floats = npt.NDArray[np.float64]


_FINE = 16  # the most parts of the data a colour gets
_ENOUGH = 0.97  # of the rate that exact shares would reach


@dataclass(frozen=True, eq=False, slots=True)
class _Colour:
    """The ranks as one colour sees them: int[d_a, d_b, ...], its first dimension first.

    channel: its number. first, width: its slots of a block of the data. back: whether its rings go
    the other way.
    """

    ranks: Ints
    channel: int
    first: int
    width: int
    back: bool

    def _stage(self, k: int, own: Ints, *, whole: bool) -> tuple[Ints, Ints, int, int]:
        """Return the rings along dimension k: group int[G, d], own int[G, d], width, channel.

        own : int[n], the first slot of each rank's block, in this colour's order. whole: blocks of
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
        return group, slots, self.width * (after if whole else 1), self.channel

    def reduced(self, own: Ints, *, whole: bool) -> Iterator[Phase]:
        """Yield the reduce-scatter: a ring along each dimension, on an ever smaller shard."""
        for k in range(self.ranks.ndim):
            yield from ring_reduce_scatter(*self._stage(k, own, whole=whole))

    def gathered(self, own: Ints, *, whole: bool) -> Iterator[Phase]:
        """Yield the allgather: the same rings, the last dimension first."""
        for k in reversed(range(self.ranks.ndim)):
            yield from ring_allgather(*self._stage(k, own, whole=whole))


def link_loads(sides: tuple[int, ...]) -> Floats:
    """Return what crosses a link of dimension i for a part of colour c: float64[D, D].

    Of a shard, a ring of d carries (d - 1) / d over each link and leaves 1 / d.
    """
    count = len(sides)
    found = np.zeros((count, count))
    for c in range(count):
        shard = 1.0
        for i in np.roll(np.arange(count), -c):
            found[i, c] = shard * (1 - 1 / sides[i])
            shard /= sides[i]
    return found


def shares(sides: tuple[int, ...]) -> Ints:
    """Return the parts of the data for the colour that starts with each dimension: int[D].

    Those under which the links of all dimensions carry the same, whatever the sides, to within
    what `_ENOUGH` says; 4 x 4 x 4: 1, 1, 1; 3 x 5: 8, 5. A colour may get nothing.
    """
    loads = link_loads(sides)
    exact = np.linalg.solve(loads, np.ones(len(sides)))
    if exact.min() < 0:  # no sides are known for which it is
        return np.ones(len(sides), dtype=np.int64)
    exact /= exact.sum()
    best = (loads @ exact).max()
    for fine in range(1, _FINE + 1):
        parts = np.rint(exact / exact.max() * fine).astype(np.int64)
        if best >= _ENOUGH * (loads @ parts).max() / parts.sum():
            break
    return np.asarray(parts)


def _colours(recipe: Recipe) -> tuple[list[_Colour], int]:
    """Return the colours, and the slots of a block of the data."""
    if recipe.grid is None:
        raise ScheduleError(
            f"bucket: the recipe for {recipe.n} ranks has no grid; where a torus joins them, give "
            "Recipe(grid=int32[d_0, d_1, ...]), the ranks where they stand in it"
        )
    sides = tuple(d for d in recipe.grid.shape if d > 1)
    if not sides:
        return [_Colour(recipe.grid.reshape(1), 0, 0, 1, back=False)], 1
    grid, around = recipe.grid.reshape(sides), (False, True) if max(sides) > 2 else (False,)
    colours: list[_Colour] = []
    total = 0
    for back in around:
        for axis, width in enumerate(shares(sides).tolist()):
            if width:
                order = np.roll(np.arange(len(sides)), -axis)
                ranks = grid.transpose(order)
                colours.append(_Colour(ranks, len(colours), total, width, back))
                total += width
    return colours, total


def allreduce(recipe: Recipe) -> Schedule:
    """Return the allreduce: 2 * sum(d - 1) steps; each colour's chunks in its own order.

    This and the others raise ScheduleError for a recipe without a grid.
    """
    n, pieces = recipe.n, recipe.pieces
    colours, total = _colours(recipe)
    layout = Layout(n * total * pieces, 1, 1)

    def both(colour: _Colour) -> Iterator[Phase]:
        own = colour.first * n + colour.width * np.arange(n)
        yield from colour.reduced(own, whole=True)
        yield from colour.gathered(own, whole=True)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(np.arange(n), layout.input(), layout.output(), layout.chunks)
        one = recipe.piece("allreduce/bucket", lambda: together(*map(both, colours)))
        yield pipeline(one, pieces, n * total, int(layout.output()))

    return scheduled("allreduce", "bucket", recipe, layout, len(colours), phases)


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return the reduce_scatter: sum(d - 1) steps; partial sums live in scratch."""
    n, pieces = recipe.n, recipe.pieces
    colours, total = _colours(recipe)
    layout, ranks = Layout(total * pieces, n, 1, n), np.arange(n)
    base = int(layout.scratch_block())

    def half(colour: _Colour) -> Iterator[Phase]:
        return colour.reduced(colour.ranks.ravel() * total + colour.first, whole=False)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), base, n * layout.chunks)
        one = recipe.piece("reduce_scatter/bucket", lambda: together(*map(half, colours)))
        yield pipeline(spaced(one, total, pieces), pieces, total, base)
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), layout.chunks)

    return scheduled("reduce_scatter", "bucket", recipe, layout, len(colours), phases)


def allgather(recipe: Recipe) -> Schedule:
    """Return the allgather: sum(d - 1) steps."""
    n, pieces = recipe.n, recipe.pieces
    colours, total = _colours(recipe)
    layout, ranks = Layout(total * pieces, 1, n), np.arange(n)

    def half(colour: _Colour) -> Iterator[Phase]:
        return colour.gathered(colour.ranks.ravel() * total + colour.first, whole=False)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        one = recipe.piece("allgather/bucket", lambda: together(*map(half, colours)))
        yield pipeline(spaced(one, total, pieces), pieces, total, int(layout.output()))

    return scheduled("allgather", "bucket", recipe, layout, len(colours), phases)
