"""Rooted collectives in ceil(log2(n)) rounds, scatter + ring allgather, and multicast.

Owns the binomial rounds: in each, every rank that has what the root sends hands it to one more,
the farthest first, so that few messages go far. 4 ranks, broadcast and scatter from 0::

    round 0   distance 2    0 -> 2              0 -> 2 (blocks 2, 3)
    round 1   distance 1    0 -> 1, 2 -> 3      0 -> 1 (block 1), 2 -> 3 (block 3)

Ranks are counted from the root on. Reduce and gather are the same backwards. Knows no fabric.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import COPY, REDUCE, Layout, Phase, Schedule, at, rows
from .flat import Ints, local_copy, ring_allgather, ring_reduce_scatter
from .recipe import Recipe, scheduled, shares_of

__all__ = [
    "broadcast",
    "gather",
    "multicast",
    "reduce",
    "ring_broadcast",
    "ring_reduce",
    "scatter",
    "switched_reduce",
]


def _rounds(n: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield (above, below) of a broadcast's rounds: who hands on to whom, counted from the root.

    What is below hands on, later, to all up to the next that was above.
    """
    for k in reversed(range((n - 1).bit_length())):
        above = np.arange(0, n - (1 << k), 2 << k)
        yield above, above + (1 << k)


def _spans(n: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (above, below, ranks in the part of the tree from below on) of every round."""
    for above, below in _rounds(n):
        yield above, below, np.minimum(below - above, n - below)


def _from_root(recipe: Recipe, place: Ints) -> Ints:
    return np.asarray((place + recipe.root) % recipe.n)


def broadcast(recipe: Recipe) -> Schedule:
    """Return the broadcast in which all who have the data hand it to one more rank each round."""
    layout = Layout(1, 1, 1)

    def phases() -> Iterator[Phase]:
        yield local_copy([recipe.root], layout.input(), layout.output(), 1)
        for above, below in _rounds(recipe.n):
            moved = rows(_from_root(recipe, above), _from_root(recipe, below), op=COPY)
            yield Phase((at(moved, layout.output(), layout.output()),))

    return scheduled("broadcast", "binomial", recipe, layout, 1, phases)


def reduce(recipe: Recipe) -> Schedule:
    """Return the reduce in which half of those who still have a sum hand it in each round."""
    layout = Layout(1, 1, 1, 1)

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(recipe.n), layout.input(), layout.scratch_block(), 1)
        for above, below in reversed(list(_rounds(recipe.n))):
            moved = rows(_from_root(recipe, below), _from_root(recipe, above), op=REDUCE)
            yield Phase((at(moved, layout.scratch_block(), layout.scratch_block()),))
        yield local_copy([recipe.root], layout.scratch_block(), layout.output(), 1)

    return scheduled("reduce", "binomial", recipe, layout, 1, phases)


def _spread(recipe: Recipe, chunks: int, base: int, *, down: bool) -> Iterator[Phase]:
    """Yield rounds that move chunk i of `chunks` slots between the root and rank root + i.

    down: from the root out; else towards it, the rounds backwards. Chunks lie in the order of the
    ranks counted from the root, from slot `base` on, at every rank.
    """
    found = list(_spans(recipe.n))
    for above, below, span in found if down else reversed(found):
        ends = _from_root(recipe, above), _from_root(recipe, below)
        slot = base + below * chunks
        moved = rows(*(ends if down else ends[::-1]), count=span * chunks, op=COPY)
        yield Phase((at(moved, slot, slot),))


def _turned(recipe: Recipe, layout: Layout, *, down: bool) -> Phase:
    """Return the root's copy between its blocks in rank order and scratch, root's own first."""
    ranks = np.arange(recipe.n)
    place = layout.scratch_block((ranks - recipe.root) % recipe.n)
    theirs = layout.input(ranks) if down else layout.output(ranks)
    ends = (theirs, place) if down else (place, theirs)
    return local_copy(np.full(recipe.n, recipe.root), *ends, 1)


def scatter(recipe: Recipe) -> Schedule:
    """Return the scatter in rounds: a rank hands over all blocks for the part of its tree below."""
    n, layout = recipe.n, Layout(1, recipe.n, 1, recipe.n)
    ranks = np.arange(n)

    def phases() -> Iterator[Phase]:
        yield _turned(recipe, layout, down=True)
        yield from _spread(recipe, 1, int(layout.scratch_block()), down=True)
        own = layout.scratch_block((ranks - recipe.root) % n)
        yield local_copy(ranks, own, layout.output(), 1)

    return scheduled("scatter", "binomial", recipe, layout, 1, phases)


def gather(recipe: Recipe) -> Schedule:
    """Return the gather in rounds, a scatter backwards."""
    n, layout = recipe.n, Layout(1, 1, recipe.n, recipe.n)
    ranks = np.arange(n)

    def phases() -> Iterator[Phase]:
        own = layout.scratch_block((ranks - recipe.root) % n)
        yield local_copy(ranks, layout.input(), own, 1)
        yield from _spread(recipe, 1, int(layout.scratch_block()), down=False)
        yield _turned(recipe, layout, down=False)

    return scheduled("gather", "binomial", recipe, layout, 1, phases)


def _around(recipe: Recipe) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Return (rings, own slots, widths, channels, slots a rank): chunks counted from the root."""
    shares = shares_of(recipe.weights)
    place = (recipe.rings - recipe.root) % recipe.n
    own = np.asarray(place * shares.total + shares.first[:, None])
    return recipe.rings, own, shares.width, shares.channel, shares.total


def ring_broadcast(recipe: Recipe) -> Schedule:
    """Return a scatter in rounds, then an allgather along the rings (van de Geijn)."""
    rings, own, width, lane, chunks = _around(recipe)
    layout = Layout(recipe.n * chunks, 1, 1)
    base = int(layout.output())

    def phases() -> Iterator[Phase]:
        yield local_copy([recipe.root], layout.input(), base, layout.chunks)
        yield from _spread(recipe, chunks, base, down=True)
        yield from ring_allgather(rings, base + own, width, lane)

    return scheduled("broadcast", "scatter-ring", recipe, layout, len(rings), phases)


def ring_reduce(recipe: Recipe) -> Schedule:
    """Return a reduce-scatter along the rings, then a gather in rounds."""
    rings, own, width, lane, chunks = _around(recipe)
    layout = Layout(recipe.n * chunks, 1, 1, 1)
    base = int(layout.scratch_block())

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(recipe.n), layout.input(), base, layout.chunks)
        yield from ring_reduce_scatter(rings, base + own, width, lane)
        yield from _spread(recipe, chunks, base, down=False)
        yield local_copy([recipe.root], base, layout.output(), layout.chunks)

    return scheduled("reduce", "ring-gather", recipe, layout, len(rings), phases)


def multicast(recipe: Recipe) -> Schedule:
    """Return the broadcast in which the root sends once and the switch hands on to all others."""
    n, layout = recipe.n, Layout(1, 1, 1)
    others = np.flatnonzero(np.arange(n) != recipe.root)

    def phases() -> Iterator[Phase]:
        yield local_copy([recipe.root], layout.input(), layout.output(), 1)
        if n > 1:
            handed = rows(recipe.root, others, switched=True)
            yield Phase((at(handed, layout.output(), layout.output()),))

    return scheduled("broadcast", "multicast", recipe, layout, 1, phases)


def switched_reduce(recipe: Recipe) -> Schedule:
    """Return the reduce in which the switch adds up what all send, and the root gets one sum.

    On data the others are added in their order from the root on, one move each.
    """
    n, layout = recipe.n, Layout(1, 1, 1)

    def phases() -> Iterator[Phase]:
        yield local_copy([recipe.root], layout.input(), layout.output(), 1)
        if n > 1:
            others = _from_root(recipe, np.arange(1, n))
            sent = (rows([rank], [recipe.root], op=REDUCE, switched=True) for rank in others)
            yield Phase(tuple(at(moved, layout.input(), layout.output()) for moved in sent))

    return scheduled("reduce", "nvls", recipe, layout, 1, phases)
