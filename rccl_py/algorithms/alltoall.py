"""Alltoall: direct, pairwise, ring relay, Bruck, and the rail-aligned two-level form.

Owns how blocks cross. Block j of rank r's input ends as block r of rank j's output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np

from ..schedule import (
    COPY,
    I32,
    AllPairs,
    Layout,
    Move,
    Pairs,
    Phase,
    Pipeline,
    Schedule,
    at,
    pipeline,
    rows,
    together,
)
from .flat import Ints, local_copy
from .recipe import Recipe, scheduled, spaced

__all__ = ["bruck", "direct", "grid", "hierarchical", "in_turn", "pairwise", "ring"]


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
            every = Pairs(np.arange(n, dtype=np.int32)[None], np.array([layout.chunks]), COPY)
            yield Phase(AllPairs(every, lambda: (_rotation(n, k, layout) for k in range(1, n))))

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


def _digits(n: int, radix: int) -> I32:
    """Return the digits of 0..n-1, the lowest first: int32[k, n], k >= 1."""
    digits = [np.arange(n) % radix]
    while radix ** len(digits) < n:
        digits.append(np.arange(n) // radix ** len(digits) % radix)
    return np.array(digits, dtype=np.int32)


def bruck(name: str, radix: int, recipe: Recipe) -> Schedule:
    """Return the alltoall in ceil(log(n) / log(radix)) steps: blocks move by digits of distance.

    A block that has d places to go in all moves by j * radix^k at step k, if j is digit k of d.
    It leaves the input at its first move and lands in the output at its last; in between it waits
    in scratch block d or n + d, in turn: a step never overwrites what it still reads.
    """
    n = recipe.n
    digit = _digits(n, radix)
    moves = np.cumsum(digit > 0, axis=0)  # of every distance, up to and with each step
    layout = Layout(1, n, n, min(2, max(int(moves[-1].max()) - 1, 0)) * n)

    def step(k: int) -> Phase:
        far = np.flatnonzero(digit[k])
        far = far[np.argsort(digit[k, far], kind="stable")]  # rows of one message lie together
        starts = np.flatnonzero(np.diff(digit[k, far], prepend=0))
        times = np.diff(starts, append=len(far))  # blocks of a message, by digit

        @cache
        def slots(_s: int) -> tuple[I32, I32]:
            rank, d = (np.concatenate(parts) for parts in zip(*(
                (np.repeat(np.arange(n), len(some)), np.tile(some, n))
                for some in np.split(far, starts[1:])
            )))  # fmt: skip
            first, last = moves[k, d] == 1, moves[k, d] == moves[-1, d]
            gone = d % radix**k  # how far the lower digits have brought it
            held = layout.scratch_block(d + n * (moves[k, d] % 2))
            wait = layout.scratch_block(d + n * ((moves[k, d] + 1) % 2))
            leaves = np.where(first, layout.input((rank + d) % n), held)
            lands = np.where(last, layout.output((rank - gone) % n), wait)
            return leaves, lands

        rank = np.arange(n)
        to = (rank + digit[k, far[starts], None] * radix**k) % n
        sent = rows(np.tile(rank, len(starts)), to.ravel(), times=np.repeat(times, n))
        return Phase((Move(sent, slots),))

    def phases() -> Iterator[Phase]:
        yield _own_block(n, layout)
        if n > 1:
            yield from (step(k) for k in range(len(digit)))

    return scheduled("alltoall", name, recipe, layout, 1, phases)


def hierarchical(recipe: Recipe) -> Schedule:
    """Return the rail-aligned alltoall: hand blocks to the peer on their rail, then cross once.

    Rank (a, l) gives its peer (a, r) every block for a rank (b, r); (a, r) then sends node b's
    (b, r) the g blocks of its whole node in one message. Scratch block b * g + l at (a, r) is
    (a, l)'s block for (b, r), so what crosses is contiguous at both ends where a node's ranks are
    numbered in a row, and blocks are whole; else it is g rows of one message. Of pieces one is
    inside while another crosses.
    """
    assert recipe.nodes is not None  # the registry offers this only where nodes are even
    return _two_hops("hier-direct-direct", recipe.nodes, recipe)


def grid(recipe: Recipe) -> Schedule:
    """Return the same on a grid as nearly square as n allows: along the rows, then the columns.

    About 2 sqrt(n) messages a rank instead of n - 1, each of sqrt(n) blocks. The numbers of rows
    and of columns are factors of n: a prime number of ranks is one row.
    """
    n = recipe.n
    height = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    return _two_hops("grid", np.arange(n, dtype=np.int32).reshape(height, -1), recipe)


def _two_hops(name: str, nodes: Ints, recipe: Recipe) -> Schedule:
    """Return the alltoall along the rows of nodes : int[N, g], then along its columns."""
    count, g = nodes.shape
    layout = Layout(recipe.pieces, recipe.n, recipe.n, recipe.n)
    unit = replace(layout, chunks=1)  # of the blocks of one piece
    # Blocks a row: of a whole one the next block's follows, of a piece it does not.
    wide = g if recipe.pieces == 1 and (np.diff(nodes, axis=1) == 1).all() else 1

    def inside(k: int) -> Move:
        rail = (np.arange(g) + k) % g

        @cache
        def slots(_s: int) -> tuple[I32, I32]:
            _, side, b = (x.ravel() for x in np.indices((count, g, count)))
            return unit.input(nodes[b, rail[side]]), unit.scratch_block(b * g + side)

        return Move(rows(nodes.ravel(), nodes[:, rail].ravel(), times=count), slots)

    def across(k: int) -> Move:
        to = (np.arange(count) + k) % count

        @cache
        def slots(_s: int) -> tuple[I32, I32]:
            a, _, part = (x.ravel() for x in np.indices((count, g, g // wide)))
            return unit.scratch_block(to[a] * g + part * wide), unit.output(nodes[a, part * wide])

        moved = rows(nodes.ravel(), nodes[to].ravel(), count=wide, times=g // wide)
        return Move(moved, slots)

    def piece() -> Iterator[Phase]:
        near = Pairs(nodes.astype(np.int32), np.full(count, count), COPY, count, own=True)
        rails = Pairs(nodes.T.astype(np.int32), np.full(g, g), COPY, g // wide, own=True)
        yield Phase(AllPairs(near, lambda: map(inside, range(g))))
        yield Phase(AllPairs(rails, lambda: map(across, range(count))))

    def phases() -> Iterator[Phase | Pipeline]:
        one = recipe.piece(f"alltoall/{name}/{wide}", piece)
        yield pipeline(spaced(one, 1, recipe.pieces), recipe.pieces, 1)

    return scheduled("alltoall", name, recipe, layout, 1, phases)


def in_turn(recipe: Recipe) -> Schedule:
    """Return the rail-aligned alltoall that crosses to one node after another.

    At step k rank (a, r) sends (a + k, r) the g blocks of its node, while its node hands each
    other the blocks for node a + k + 1; last, those for itself, which need no rail. A rail then
    serves one peer at a time, and both hops are busy from the second step on. Scratch is as in
    `hierarchical`.
    """
    assert recipe.nodes is not None  # the registry offers this only where nodes are even
    nodes, n = recipe.nodes, recipe.n
    count, g = nodes.shape
    layout = Layout(1, n, n, n)
    wide = g if (np.diff(nodes, axis=1) == 1).all() else 1  # blocks a row
    a, side, rail = (x.ravel() for x in np.indices((count, g, g)))
    peer = (side + rail) % g  # near ones first, for all ranks at once
    handed = rows(nodes[a, side], nodes[a, peer])  # the same at every step

    def inside(k: int) -> Phase:
        @cache
        def slots(_s: int) -> tuple[I32, I32]:
            b = (a + k) % count
            lands = layout.scratch_block(b * g + side) if k else layout.output(nodes[a, side])
            return layout.input(nodes[b, peer]), lands

        return Phase((Move(handed, slots),))

    def across(k: int) -> Phase:
        to = (np.arange(count) + k) % count

        @cache
        def slots(_s: int) -> tuple[I32, I32]:
            x, _, first = (y.ravel() for y in np.indices((count, g, g // wide)))
            first *= wide
            return layout.scratch_block(to[x] * g + first), layout.output(nodes[x, first])

        sent = rows(nodes.ravel(), nodes[to].ravel(), count=wide, times=g // wide)
        return Phase((Move(sent, slots),))

    def phases() -> Iterator[Phase]:
        turns = [*range(1, count), 0]
        crossing = (across(k) for k in range(1, count))
        yield from together((inside(k) for k in turns), chain([Phase(())], crossing))

    return scheduled("alltoall", "hier-direct-pairwise", recipe, layout, 1, phases)
