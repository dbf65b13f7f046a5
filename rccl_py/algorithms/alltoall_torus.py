"""Alltoall on a torus: every block along one dimension after another, from neighbour to neighbour.

Owns the dimension-ordered form over `recipe.grid`. Knows no fabric: neighbours are neighbours in
the grid. A block is known by its displacement: how far each coordinate of its receiver lies from
its sender's, round the torus. All ranks do the same for every displacement, so a rank holds one
block of each at any time, and scratch block `displacement` is where it waits. A ring of 4, the
blocks that rank 0 sends at each step::

    step 0   to 1: for 1, and half of that for 2     to 3: for 3, and the other half of that for 2
    step 1   to 1: from 3, the half for 1            to 3: from 1, the half for 3

Every block takes the shorter way; half way round, half of it goes either way. There is a copy of
this for every dimension, each for its part of every block and beginning with another dimension,
so that links of all dimensions work at once. With b bytes/s a link, a dimension of d ranks is busy
for (n / d) * floor(d^2 / 4) / 2 blocks over b: what any algorithm needs at least (shortest ways).
Sources: dimension order, W. J. Dally and C. L. Seitz, IEEE Trans. Comput. C-36 (1987); the lower
bound, D. S. Scott, "Efficient all-to-all communication patterns in hypercube and mesh topologies",
DMCC 1991.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..schedule import I32, Layout, Move, Phase, Pipeline, Schedule, pipeline, rows, together
from .flat import Ints, local_copy
from .recipe import Recipe, scheduled, spaced

__all__ = ["torus"]


@dataclass(frozen=True, eq=False, slots=True)
class _Torus:
    """A grid of ranks and the displacements on it, each known by its number, as a place is.

    ranks : int32[n], by place. shape: the dimensions of more than one rank. at : int[D, n], the
    coordinates of every place, and of every displacement. after : int32[n, n], the rank a
    displacement (second) from a place (first).
    """

    ranks: I32
    shape: tuple[int, ...]
    at: Ints
    after: I32

    def number(self, displacement: Ints) -> Ints:
        """Return the numbers of displacements : int[D, k], taken round the torus."""
        sizes = np.array(self.shape)[:, None]
        return np.asarray(np.ravel_multi_index(tuple(displacement % sizes), self.shape))


def _torus(grid: I32) -> _Torus:
    shape = tuple(d for d in grid.shape if d > 1) or (1,)
    at, ranks = np.indices(shape).reshape(len(shape), -1), grid.ravel()
    sizes = np.array(shape)[:, None, None]
    places = np.ravel_multi_index(tuple((at[:, :, None] + at[:, None, :]) % sizes), shape)
    return _Torus(ranks, shape, at, ranks[places])


def torus(recipe: Recipe) -> Schedule:
    """Return the alltoall in sum(floor(d / 2)) steps over dimensions of d ranks."""
    assert recipe.grid is not None  # the registry offers this only where there is one
    made, n = _torus(recipe.grid), recipe.n
    copies, parts = len(made.shape), 2 if any(d % 2 == 0 and d > 2 for d in made.shape) else 1
    width, ranks = copies * parts, np.arange(n)
    layout, unit = Layout(recipe.pieces * width, n, n, n), Layout(width, n, n, n)

    def copy(c: int) -> Iterator[Phase]:
        order = [*range(c, copies), *range(c)]
        for turn, axis in enumerate(order):
            for s in range(made.shape[axis] // 2):
                yield _hop(made, unit, _Leg(c, axis, order[:turn], order[turn + 1 :], s))

    def piece() -> Iterator[Phase]:
        return together(*(copy(c) for c in range(copies)))

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(ranks), layout.output(ranks), layout.chunks)
        one = spaced(recipe.piece("alltoall/torus", piece), width, recipe.pieces)
        yield pipeline(one, recipe.pieces, width)

    return scheduled("alltoall", "torus", recipe, layout, copies, phases)


@dataclass(frozen=True, slots=True)
class _Leg:
    """Step `s` along `axis` of copy `copy`, after the axes `done` and before those `left`."""

    copy: int
    axis: int
    done: list[int]
    left: list[int]
    s: int


def _hop(made: _Torus, layout: Layout, leg: _Leg) -> Phase:
    """Return the phase of a leg: what goes one place on, and what goes one place back."""
    moves = (_one_way(made, layout, leg, sign) for sign in (1, -1))
    return Phase(tuple(move for move in moves if move is not None))


def _one_way(made: _Torus, layout: Layout, leg: _Leg, sign: int) -> Move | None:
    """Return what a leg moves on (sign 1) or back (-1), None for nothing.

    Every place sends its neighbour one message: of the displacements that go this way alone, all
    of the copy's part, of those half way round half of it.
    """
    d, n, parts = made.shape[leg.axis], len(made.ranks), layout.chunks // len(made.shape)
    ahead = made.at[leg.axis]  # of each displacement
    way = ahead if sign > 0 else d - ahead
    split = (2 * ahead == d) & (d > 2)
    whole = (2 * way < d) | ((d == 2) & (sign > 0))
    kinds = [np.flatnonzero((ahead > 0) & (way > leg.s) & some) for some in (whole, split)]
    many = np.array([len(kind) for kind in kinds])
    far, used = np.concatenate(kinds), many > 0
    if not len(far):
        return None
    hop = np.zeros((len(made.shape), 1), int)
    hop[leg.axis] = sign

    @cache
    def slots(_s: int) -> tuple[I32, I32]:
        gone = np.zeros((len(made.shape), len(far)), int)
        gone[leg.done], gone[leg.axis] = made.at[leg.done][:, far], sign * leg.s
        last = (way[far] == leg.s + 1) & ~made.at[leg.left][:, far].any(axis=0)
        origin = made.after[:, made.number(-gone)]
        target = made.after[:, made.number(made.at[:, far] - gone)]
        wait = layout.scratch_block(far)
        half = np.int32(leg.copy * parts) + (split[far] & (sign < 0))
        leaves = np.where(gone.any(axis=0), wait, layout.input(target)) + half
        lands = np.where(last, layout.output(origin), wait) + half
        return leaves.ravel().astype(np.int32), lands.ravel().astype(np.int32)

    src, dst = (np.repeat(x, used.sum()) for x in (made.ranks, made.after[:, made.number(hop)[0]]))
    count = np.tile(np.array([parts, 1])[used], n)
    moved = rows(src, dst, count=count, channel=leg.copy, times=np.tile(many[used], n))
    return Move(moved, slots)
