"""Forms over any number of nested levels: one pair of flat halves along each.

Owns how halves compose over `recipe.tiers`, the ranks by level, the outermost first. Knows no
fabric: a level is an axis of an array. 2 pods of 2 nodes of 2 ranks, tiers[pod, node, local];
allgather, whose blocks rank 0 = (0, 0, 0) holds after each level::

    its own       0
    pods          0       4          from (1, 0, 0)
    nodes         0   2   4   6      from (0, 1, 0), who holds 2 and 6
    inside        0 1 2 3 4 5 6 7    from (0, 0, 1), who holds 1, 3, 5 and 7

So the outermost level carries the fewest bytes, the innermost the most. A reduce_scatter is the
same backwards; an allreduce one after the other on shares of the vector. Source: M. Cho et al.,
"BlueConnect", MLSys 2019. Pieces follow each other a step behind, so that all levels work at once:
the time tends to that of the slowest level, not to the sum.

`turned` is the same with the levels in the other order: the outermost carries the most. That is
slow by itself, but beside one of the others it uses NICs that would be idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ..schedule import I32, Layout, Phase, Pipeline, Schedule, pipeline
from .flat import Ints, local_copy
from .recipe import Recipe, scheduled, spaced
from .split import Halves

__all__ = ["allgather", "allreduce", "reduce_scatter", "turned"]

Build = Callable[[Halves, Halves, Recipe], Schedule]


def _tiers(recipe: Recipe) -> I32:
    assert recipe.tiers is not None  # the registry offers these only where there are levels
    return recipe.tiers


def _name(inner: Halves, outer: Halves) -> str:
    return f"levels-{inner.name}-{outer.name}"


def _shares(tiers: Ints, axis: int) -> tuple[Ints, Ints, int]:
    """Return the groups along an axis, the first slot of each position's share, and its width.

    int[n / m, m] each. Of n slots a rank of coordinates x owns number sum(x[j] * (ranks of one
    step outwards of j)): what is shared out along an axis lies together, over all outer ones.
    """
    shape = tiers.shape
    weights = [prod(shape[:j]) for j in range(len(shape))]
    along = np.indices(shape)
    first = sum((along[j] * weights[j] for j in range(axis, len(shape))), np.zeros(shape, int))
    group, own = (np.moveaxis(a, axis, -1).reshape(-1, shape[axis]) for a in (tiers, first))
    return group, own, weights[axis]


def _blocks(tiers: Ints, axis: int) -> tuple[Ints, Callable[[], Ints], int]:
    """Return the groups along an axis, what makes own slots, and how many of each group there are.

    The ranks: int[n / m, m]. A group shares one block for each rank of outer levels: the blocks
    (ranks' numbers) each position owns are int[n / m * outer, m].
    """
    m, outer = tiers.shape[axis], prod(tiers.shape[:axis])
    by = tiers.reshape(outer, m, -1).swapaxes(1, 2)  # outer, inner, position

    def own() -> Ints:
        whole = (outer, by.shape[1], outer, m)
        return np.broadcast_to(by.swapaxes(0, 1)[None], whole).reshape(-1, m)

    return by.reshape(-1, m), own, outer


def allreduce(inner: Halves, outer: Halves, recipe: Recipe) -> Schedule:
    """Return reduce-scatter from the innermost level outwards, then allgather back inwards.

    n slots a piece; `outer` is done along the outermost level, `inner` along all others.
    """
    tiers, n = _tiers(recipe), recipe.n
    layout = Layout(recipe.pieces * n, 1, 1)

    def along(axis: int, *, up: bool) -> list[Phase]:
        """The phases of one level, which other forms have too."""
        kind = inner if axis else outer

        def made() -> Iterator[Phase]:
            group, own, width = _shares(tiers, axis)
            return (kind.reduce_scatter if up else kind.allgather)(group, own, width, 0)

        return recipe.piece(f"allreduce/level {axis}/{kind.name}/{up}", made)

    def piece() -> Iterator[Phase]:
        for axis in reversed(range(tiers.ndim)):
            yield from along(axis, up=True)
        for axis in range(tiers.ndim):
            yield from along(axis, up=False)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(np.arange(n), layout.input(), layout.output(), layout.chunks)
        one = recipe.piece(f"allreduce/{_name(inner, outer)}", piece)
        yield pipeline(one, recipe.pieces, n, int(layout.output()))

    return scheduled("allreduce", _name(inner, outer), recipe, layout, 1, phases)


def reduce_scatter(inner: Halves, outer: Halves, recipe: Recipe) -> Schedule:
    """Return a reduce-scatter along every level, the innermost first, on scratch."""
    tiers, n = _tiers(recipe), recipe.n
    layout, ranks = Layout(recipe.pieces, n, 1, n), np.arange(n)

    def along(axis: int) -> list[Phase]:
        kind = inner if axis else outer

        def made() -> Iterator[Phase]:
            group, own, times = _blocks(tiers, axis)
            return kind.reduce_scatter(group, own, times=times)

        return recipe.piece(f"reduce_scatter/level {axis}/{kind.name}", made)

    def piece() -> Iterator[Phase]:
        for axis in reversed(range(tiers.ndim)):
            yield from along(axis)

    def phases() -> Iterator[Phase | Pipeline]:
        base = layout.scratch_block()
        yield local_copy(ranks, layout.input(), base, n * layout.chunks)
        one = recipe.piece(f"reduce_scatter/{_name(inner, outer)}", piece)
        yield pipeline(spaced(one, 1, recipe.pieces), recipe.pieces, 1, int(base))
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), layout.chunks)

    return scheduled("reduce_scatter", _name(inner, outer), recipe, layout, 1, phases)


def allgather(inner: Halves, outer: Halves, recipe: Recipe) -> Schedule:
    """Return an allgather along every level, the outermost first."""
    tiers, n = _tiers(recipe), recipe.n
    layout, ranks = Layout(recipe.pieces, 1, n), np.arange(n)

    def along(axis: int) -> list[Phase]:
        kind = inner if axis else outer

        def made() -> Iterator[Phase]:
            group, own, times = _blocks(tiers, axis)
            return kind.allgather(group, own, times=times)

        return recipe.piece(f"allgather/level {axis}/{kind.name}", made)

    def piece() -> Iterator[Phase]:
        for axis in range(tiers.ndim):
            yield from along(axis)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        one = recipe.piece(f"allgather/{_name(inner, outer)}", piece)
        yield pipeline(spaced(one, 1, recipe.pieces), recipe.pieces, 1, int(layout.output()))

    return scheduled("allgather", _name(inner, outer), recipe, layout, 1, phases)


def turned(build: Build, inner: Halves, outer: Halves, recipe: Recipe) -> Schedule:
    """Return what `build`, one of the above, makes of the levels in the other order.

    `inner` is done along the innermost level, `outer` along all others. Of an allgather of N nodes
    of g ranks, n - g blocks enter a rank from other nodes, where the others have N - 1 enter.
    """
    other = replace(recipe, tiers=_tiers(recipe).T, memo={})
    name = f"turned-{inner.name}-{outer.name}"
    return replace(build(outer, inner, other), algorithm=name)
