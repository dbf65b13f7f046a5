"""Alltoall: direct, pairwise, ring relay, Bruck, and the rail-aligned two-level form.

Owns how blocks cross. Block j of rank r's input ends as block r of rank j's output.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import COPY, Layout, Move, Phase, Schedule, at, rows
from .flat import local_copy
from .recipe import Recipe, scheduled

__all__ = ["bruck", "direct", "hierarchical", "pairwise", "ring"]


def _own_block(n: int, layout: Layout) -> Phase:
    ranks = np.arange(n)
    return local_copy(ranks, layout.input(ranks), layout.output(ranks), layout.chunks)


def _rotation(n: int, k: int, layout: Layout) -> Move:
    src = np.arange(n)
    dst = (src + k) % n
    return at(rows(src, dst, count=layout.chunks), layout.input(dst), layout.output(src))


def direct(recipe: Recipe) -> Schedule:
    """Return the alltoall in which every rank sends every block at once."""
    n, layout = recipe.n, Layout(1, recipe.n, recipe.n)

    def phases() -> Iterator[Phase]:
        yield _own_block(n, layout)
        if n > 1:
            yield Phase(tuple(_rotation(n, k, layout) for k in range(1, n)))

    return scheduled("alltoall", "direct", recipe, layout, 1, phases)


def pairwise(recipe: Recipe) -> Schedule:
    """Return the alltoall in n-1 steps: at step k everyone sends to the rank k places on."""
    n, layout = recipe.n, Layout(1, recipe.n, recipe.n)

    def phases() -> Iterator[Phase]:
        yield _own_block(n, layout)
        for k in range(1, n):
            yield Phase((_rotation(n, k, layout),))

    return scheduled("alltoall", "pairwise", recipe, layout, 1, phases)


def ring(recipe: Recipe) -> Schedule:
    """Return the alltoall that relays along one ring: step s moves blocks s places from home.

    Origin o's blocks for the ranks more than s places on go from o+s to o+s+1; a block that
    arrives home lands in the output, the others wait in scratch under their distance.
    """
    n, layout = recipe.n, Layout(1, recipe.n, recipe.n, recipe.n)
    order = recipe.rings[0]

    def phases() -> Iterator[Phase]:
        yield _own_block(n, layout)
        for s in range(n - 1):
            far = np.arange(s + 1, n)
            home, d = (a.ravel() for a in np.meshgrid(np.arange(n), far, indexing="ij"))
            here, there = order[(home + s) % n], order[(home + s + 1) % n]
            held = layout.input(order[(home + d) % n]) if s == 0 else layout.scratch_block(d)
            lands = np.where(d == s + 1, layout.output(order[home]), layout.scratch_block(d))
            yield Phase((at(rows(here, there), held, lands),))

    return scheduled("alltoall", "ring", recipe, layout, 1, phases)


def bruck(recipe: Recipe) -> Schedule:
    """Return the alltoall in ceil(log2 n) steps: blocks move by the set bits of their distance.

    Scratch block d holds the block that has d places to go in all; bit k moves it 2^k on.
    """
    n, layout = recipe.n, Layout(1, recipe.n, recipe.n, 2 * recipe.n)
    ranks, distance = np.arange(n), np.arange(1, n)

    def phases() -> Iterator[Phase]:
        yield _own_block(n, layout)
        if n == 1:
            return
        r, d = (a.ravel() for a in np.meshgrid(ranks, distance, indexing="ij"))
        yield local_copy(r, layout.input((r + d) % n), layout.scratch_block(d), 1)
        for k in range(int(n - 1).bit_length()):
            far = distance[(distance >> k) & 1 == 1]
            r, d = (a.ravel() for a in np.meshgrid(ranks, far, indexing="ij"))
            moved = rows(r, (r + (1 << k)) % n, op=COPY)
            # Land in the other half, then swap back: a step never overwrites what it still reads.
            yield Phase((at(moved, layout.scratch_block(d), layout.scratch_block(n + d)),))
            yield local_copy(r, layout.scratch_block(n + d), layout.scratch_block(d), 1)
        r, d = (a.ravel() for a in np.meshgrid(ranks, distance, indexing="ij"))
        yield local_copy(r, layout.scratch_block(d), layout.output((r - d) % n), 1)

    return scheduled("alltoall", "bruck", recipe, layout, 1, phases)


def hierarchical(recipe: Recipe) -> Schedule:
    """Return the rail-aligned alltoall: hand blocks to the peer on their rail, then cross once.

    Rank (a, l) gives its peer (a, r) every block for a rank (b, r); (a, r) then sends node b's
    (b, r) the g blocks of its whole node in one message. Scratch block b * g + l at (a, r) is
    (a, l)'s block for (b, r), so what crosses is contiguous at both ends where a node's ranks are
    numbered in a row; else it is g rows of one message.
    """
    assert recipe.nodes is not None  # the registry offers this only where nodes are even
    nodes = recipe.nodes
    count, g = nodes.shape
    layout = Layout(1, recipe.n, recipe.n, recipe.n)
    together = g if (np.diff(nodes, axis=1) == 1).all() else 1  # blocks a row

    def inside(k: int) -> Move:
        a, side, b = (
            x.ravel()
            for x in np.meshgrid(np.arange(count), np.arange(g), np.arange(count), indexing="ij")
        )
        rail = (side + k) % g
        slots = layout.input(nodes[b, rail]), layout.scratch_block(b * g + side)
        return at(rows(nodes[a, side], nodes[a, rail]), *slots)

    def across(k: int) -> Move:
        each = np.arange(count), np.arange(g), np.arange(0, g, together)
        a, rail, side = (x.ravel() for x in np.meshgrid(*each, indexing="ij"))
        b = (a + k) % count
        slots = layout.scratch_block(b * g + side), layout.output(nodes[a, side])
        return at(rows(nodes[a, rail], nodes[b, rail], count=together), *slots)

    def phases() -> Iterator[Phase]:
        yield Phase(tuple(inside(k) for k in range(g)))
        yield Phase(tuple(across(k) for k in range(count)))

    return scheduled("alltoall", "hier-direct-direct", recipe, layout, 1, phases)
