"""Collectives on trees, pipelined in pieces: chains (rings), double trees, stars, binomial.

Owns allreduce, reduce and broadcast along parent arrays, and the one-shot allreduce. T trees
share the data by weight; each piece follows the one before a level behind (schedule.pipeline).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..schedule import (
    COPY,
    I32,
    REDUCE,
    Layout,
    Move,
    Phase,
    Pipeline,
    Schedule,
    at,
    pipeline,
    rows,
)
from .flat import (
    Ints,
    direct_allgather,
    direct_reduce_scatter,
    local_copy,
    tree_broadcast,
    tree_reduce,
)
from .recipe import Recipe, scheduled, shares_of
from .shapes import chains, identity_order, rooted_double_tree, star

__all__ = [
    "broadcast",
    "broadcast_twoshot",
    "chain_allreduce",
    "chain_trees",
    "double_trees",
    "oneshot_allreduce",
    "reduce",
    "reduce_twoshot",
    "star_tree",
    "tree_allreduce",
]

Trees = Callable[[Recipe], tuple[I32, Ints]]
"""From a recipe, the parents int32[T, n] and the weight of each tree."""


def chain_trees(recipe: Recipe) -> tuple[I32, Ints]:
    """Return the rings cut at the root."""
    return chains(recipe.rings, recipe.root), recipe.weights


def double_trees(recipe: Recipe) -> tuple[I32, Ints]:
    """Return the double binary tree below the root."""
    parents = rooted_double_tree(recipe.n, recipe.root)
    return parents, np.ones(len(parents), dtype=np.int32)


def star_tree(recipe: Recipe) -> tuple[I32, Ints]:
    """Return the star below the root."""
    return star(recipe.n, recipe.root), np.ones(1, dtype=np.int32)


def tree_allreduce(recipe: Recipe) -> Schedule:
    """Return reduce to every tree's root and broadcast back, pipelined in pieces."""
    return _up_and_down("tree", recipe.trees, np.ones(len(recipe.trees), dtype=np.int32), recipe)


def chain_allreduce(recipe: Recipe) -> Schedule:
    """Return the same on chains, the rings cut at rank 0: what NCCL's tree is inside one node."""
    return _up_and_down("chain", chains(recipe.rings, 0), recipe.weights, recipe)


def _up_and_down(name: str, parents: I32, weights: Ints, recipe: Recipe) -> Schedule:
    shares = shares_of(weights)
    layout = Layout(recipe.pieces * shares.total, 1, 1)

    def piece() -> Iterator[Phase]:
        yield from tree_reduce(parents, shares.first, shares.width, shares.channel)
        yield from tree_broadcast(parents, shares.first, shares.width, shares.channel)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(np.arange(recipe.n), layout.input(), layout.output(), layout.chunks)
        one = recipe.piece(f"allreduce/{name}", piece)
        yield pipeline(one, recipe.pieces, shares.total, int(layout.output()))

    return scheduled("allreduce", name, recipe, layout, len(parents), phases)


def broadcast(name: str, trees: Trees, recipe: Recipe) -> Schedule:
    """Return a broadcast down `trees`, pipelined in pieces."""
    parents, weights = trees(recipe)
    shares = shares_of(weights)
    layout = Layout(recipe.pieces * shares.total, 1, 1)

    def piece() -> Iterator[Phase]:
        return tree_broadcast(parents, shares.first, shares.width, shares.channel)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy([recipe.root], layout.input(), layout.output(), layout.chunks)
        one = recipe.piece(f"broadcast/{name}", piece)
        yield pipeline(one, recipe.pieces, shares.total, int(layout.output()))

    return scheduled("broadcast", name, recipe, layout, len(parents), phases)


def reduce(name: str, trees: Trees, recipe: Recipe) -> Schedule:
    """Return a reduce up `trees`, pipelined in pieces; partial sums live in scratch."""
    parents, weights = trees(recipe)
    shares = shares_of(weights)
    layout = Layout(recipe.pieces * shares.total, 1, 1, 1)

    def piece() -> Iterator[Phase]:
        return tree_reduce(parents, shares.first, shares.width, shares.channel)

    def phases() -> Iterator[Phase | Pipeline]:
        ranks = np.arange(recipe.n)
        yield local_copy(ranks, layout.input(), layout.scratch_block(), layout.chunks)
        one = recipe.piece(f"reduce/{name}", piece)
        yield pipeline(one, recipe.pieces, shares.total, int(layout.scratch_block()))
        yield local_copy([recipe.root], layout.scratch_block(), layout.output(), layout.chunks)

    return scheduled("reduce", name, recipe, layout, len(parents), phases)


def oneshot_allreduce(recipe: Recipe) -> Schedule:
    """Return the allreduce in which every rank reads all vectors and reduces them in rank order.

    Each vector is first copied to scratch, so that the call may be in place.
    """
    n, layout = recipe.n, Layout(1, 1, 1, 1)
    everyone = np.arange(n)

    def move(origin: int) -> Move:
        spread = rows(origin, everyone, op=REDUCE if origin else COPY)
        return at(spread, layout.scratch_block(), layout.output())

    def phases() -> Iterator[Phase]:
        yield local_copy(everyone, layout.input(), layout.scratch_block(), 1)
        yield Phase(tuple(move(origin) for origin in range(n)))

    return scheduled("allreduce", "direct-oneshot", recipe, layout, 1, phases)


def _spread(recipe: Recipe, src: Ints, dst: Ints, *, gather: bool) -> Phase:
    """Return the phase that moves slot j between the root and rank j, for every j but the root."""
    others = np.flatnonzero(np.arange(recipe.n) != recipe.root)
    ends = (others, recipe.root) if gather else (recipe.root, others)
    slots = np.broadcast_to(src, (recipe.n,))[others], np.broadcast_to(dst, (recipe.n,))[others]
    return Phase((at(rows(*ends), *slots),)) if len(others) else Phase(())


def broadcast_twoshot(recipe: Recipe) -> Schedule:
    """Return scatter from the root, then a direct allgather (van de Geijn)."""
    n, layout = recipe.n, Layout(recipe.n, 1, 1)
    group, chunk = identity_order(n), np.asarray(layout.output() + np.arange(n))

    def phases() -> Iterator[Phase]:
        yield local_copy([recipe.root], layout.input(), layout.output(), layout.chunks)
        yield _spread(recipe, chunk, chunk, gather=False)
        yield from direct_allgather(group, chunk[group])

    return scheduled("broadcast", "direct-twoshot", recipe, layout, 1, phases)


def reduce_twoshot(recipe: Recipe) -> Schedule:
    """Return a direct reduce-scatter in scratch, then a gather to the root."""
    n, layout = recipe.n, Layout(recipe.n, 1, 1, 1)
    group, chunk = identity_order(n), np.asarray(layout.scratch_block() + np.arange(n))
    landing = np.asarray(layout.output() + np.arange(n))

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(n), layout.input(), layout.scratch_block(), layout.chunks)
        yield from direct_reduce_scatter(group, chunk[group])
        yield local_copy([recipe.root], chunk[recipe.root], landing[recipe.root], 1)
        yield _spread(recipe, chunk, landing, gather=True)

    return scheduled("reduce", "direct-twoshot", recipe, layout, 1, phases)
