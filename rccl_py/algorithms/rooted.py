"""Gather and scatter: direct, along rings, on a binomial tree.

Owns how blocks of different ranks travel to and from a root. A gather is written, a scatter is
the same with time and direction reversed. Blocks under way wait in scratch, block r of it at most
once a rank; at the root they lie in the root's own n blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..schedule import COPY, Layout, Phase, Schedule, at, rows
from .flat import Ints, depths, local_copy
from .recipe import Recipe, scheduled, shares_of
from .shapes import binomial

__all__ = ["direct", "ring", "tree"]


@dataclass(frozen=True, eq=False, slots=True)
class _Hops:
    """One step of a gather: block[i] moves from far[i] to near[i] on a channel's slots."""

    far: Ints
    near: Ints
    block: Ints
    first: Ints
    width: Ints
    channel: Ints


def _layout(collective: str, recipe: Recipe, chunks: int) -> Layout:
    n = recipe.n
    return Layout(chunks, 1, n, n) if collective == "gather" else Layout(chunks, n, 1, n)


def _places(collective: str, recipe: Recipe, layout: Layout, rank: Ints, block: Ints) -> Ints:
    """Return where `block` lies at `rank`: the root's own buffer, or scratch."""
    at_root = layout.output(block) if collective == "gather" else layout.input(block)
    return np.where(rank == recipe.root, at_root, layout.scratch_block(block))


def _phase(collective: str, recipe: Recipe, layout: Layout, hops: _Hops) -> Phase:
    far = _places(collective, recipe, layout, hops.far, hops.block) + hops.first
    near = _places(collective, recipe, layout, hops.near, hops.block) + hops.first
    if collective == "gather":
        ends, slots = (hops.far, hops.near), (far, near)
    else:
        ends, slots = (hops.near, hops.far), (near, far)
    moved = rows(*ends, count=hops.width, op=COPY, channel=hops.channel)
    return Phase((at(moved, *slots),))


def _schedule(
    collective: str, name: str, recipe: Recipe, chunks: int, nchannels: int, steps: list[_Hops]
) -> Schedule:
    layout, ranks = _layout(collective, recipe, chunks), np.arange(recipe.n)
    kept = [hops for hops in steps if len(hops.far)]

    def phases() -> Iterator[Phase]:
        own = _places(collective, recipe, layout, ranks, ranks)
        if collective == "gather":
            yield local_copy(ranks, layout.input(), own, chunks)
            for hops in kept:
                yield _phase(collective, recipe, layout, hops)
            return
        for hops in reversed(kept):
            yield _phase(collective, recipe, layout, hops)
        yield local_copy(ranks, own, layout.output(), chunks)

    return scheduled(collective, name, recipe, layout, nchannels, phases)


def _plain(far: Ints, near: Ints, block: Ints) -> _Hops:
    zero, one = np.zeros(len(far), dtype=np.int64), np.ones(len(far), dtype=np.int64)
    return _Hops(far, near, block, zero, one, zero)


def direct(collective: str, recipe: Recipe) -> Schedule:
    """Return the gather or scatter in which every rank talks to the root, all at once."""
    others = np.flatnonzero(np.arange(recipe.n) != recipe.root)
    hops = _plain(others, np.full(len(others), recipe.root), others)
    return _schedule(collective, "direct", recipe, 1, 1, [hops])


def ring(collective: str, recipe: Recipe) -> Schedule:
    """Return the gather or scatter along every ring: each step all blocks move one place on.

    At step s the rank d places from the root passes on the block of the rank d + s away.
    """
    shares, n = shares_of(recipe.weights), recipe.n
    lines = np.stack([np.roll(o, -int(np.flatnonzero(o == recipe.root)[0])) for o in recipe.rings])
    steps = []
    for s in range(n - 1):
        place = np.arange(1, n - s)
        c, d = (a.ravel() for a in np.meshgrid(np.arange(len(lines)), place, indexing="ij"))
        steps.append(
            _Hops(
                lines[c, d], lines[c, d - 1], lines[c, d + s], shares.first[c], shares.width[c], c
            )
        )
    return _schedule(collective, "ring", recipe, shares.total, len(lines), steps)


def tree(collective: str, recipe: Recipe) -> Schedule:
    """Return the gather or scatter on a binomial tree: a child hands over its whole subtree."""
    parents = binomial(recipe.n, recipe.root)
    depth = depths(parents)[0]
    holder = np.arange(recipe.n)
    steps = []
    for d in range(int(depth.max()), 0, -1):
        moving = np.flatnonzero(depth[holder] == d)
        steps.append(_plain(holder[moving], parents[0][holder[moving]], moving))
        holder = np.where(depth[holder] == d, parents[0][holder], holder)
    return _schedule(collective, "tree", recipe, 1, 1, steps)
