"""Doubling and halving: pairs of ranks at distances that are powers of two.

Owns recursive-doubling and halving-doubling of allreduce, recursive-doubling of allgather and
recursive-halving of reduce_scatter. Where n is no power of two, the allreduces fold: of the first
2(n-q) ranks, q the largest power of two up to n, each odd one gives its vector to the even one
before it, stands by, and gets the result::

    6 ranks     fold   1 -> 0, 3 -> 2     then 0, 2, 4, 5 as 0, 1, 2, 3     unfold  0 -> 1, 2 -> 3

Sources: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import COPY, REDUCE, Layout, Phase, Schedule, at, rows
from . import split
from .exchange import Turns, backwards, forwards, nesting, pairs, power_of_two
from .flat import Ints, local_copy
from .recipe import Recipe, scheduled

__all__ = ["allgather", "halving_doubling", "recursive_doubling", "reduce_scatter"]


def _acting(n: int) -> tuple[Ints, Ints]:
    """Return (the ranks that act, a power of two of them; the odd ones folded away)."""
    folded = n - (1 << (n.bit_length() - 1))
    odd = 2 * np.arange(folded) + 1
    return np.setdiff1d(np.arange(n), odd), odd


def _nearest_first(q: int) -> Ints:
    """Return int[log2(q), q]: partners at distance 1, 2, 4, ..."""
    return np.arange(q) ^ (1 << np.arange(q.bit_length() - 1))[:, None]


def recursive_doubling(recipe: Recipe) -> Schedule:
    """Return the allreduce in which pairs swap whole vectors: log2(q) steps, and 2 to fold.

    A rank holds the sum of its aligned run of 1, 2, 4, ... ranks. Both of a pair put the lower
    run's sum first, so that all results agree to the bit: what arrives lands in the other one of
    two buffers, and the upper rank adds its own to it. The start is chosen such that the last sum
    is the output.
    """
    n, layout = recipe.n, Layout(1, 1, 1, 1)
    acting, odd = _acting(n)
    place = np.arange(len(acting))
    output, scratch = layout.output(), layout.scratch_block()
    partners = _nearest_first(len(acting))
    flips = (partners < place).sum(axis=0) % 2 == 1  # an upper rank's sum changes buffers

    def phases() -> Iterator[Phase]:
        held = np.where(flips, scratch, output)
        yield local_copy(acting, layout.input(), held, 1)
        if len(odd):
            into = held[: len(odd)]
            yield Phase((at(rows(odd, odd - 1, op=REDUCE), layout.input(), into),))
        for partner in partners:
            free = output + scratch - held
            yield Phase((at(rows(acting, acting[partner], op=COPY), held, free[partner]),))
            upper = partner < place
            held, other = np.where(upper, free, held), np.where(upper, held, free)
            yield Phase((at(rows(acting, acting, op=REDUCE), other, held),))
        if len(odd):
            yield Phase((at(rows(odd - 1, odd), output, output),))

    return scheduled("allreduce", "recursive-doubling", recipe, layout, 1, phases)


def halving_doubling(recipe: Recipe) -> Schedule:
    """Return Rabenseifner's allreduce: halve the vector log2(q) times, then double it back.

    Partners are nearest first, so that the longest way carries the least. q chunks, numbered such
    that what a rank keeps is always one run: a row a rank and step.
    """
    acting, odd = _acting(recipe.n)
    q = len(acting)
    partners = _nearest_first(q)
    layout = Layout(q, 1, 1)
    output = layout.output()
    own = np.empty(q, dtype=np.int64)
    own[nesting(partners)] = output + np.arange(q)
    turns = pairs(partners, acting, own)

    def phases() -> Iterator[Phase]:
        yield local_copy(acting, layout.input(), output, q)
        if len(odd):
            fold = rows(odd, odd - 1, count=q, op=REDUCE)
            yield Phase((at(fold, layout.input(), output),))
        yield from backwards(turns)
        yield from forwards(turns)
        if len(odd):
            yield Phase((at(rows(odd - 1, odd, count=q), output, output),))

    return scheduled("allreduce", "halving-doubling", recipe, layout, 1, phases)


def _farthest_first(group: Ints, own: Ints) -> Turns:
    """Return the turns on group[0] that, backwards, halve at distance q/2, q/4, ..., 1."""
    return pairs(_nearest_first(group.shape[1])[::-1], group[0], own[0])


def _reduce_half(group: Ints, own: Ints, _width: object, _channel: object) -> Iterator[Phase]:
    return backwards(_farthest_first(group, own))


def _gather_half(group: Ints, own: Ints, _width: object, _channel: object) -> Iterator[Phase]:
    return forwards(_farthest_first(group, own))


_RECURSIVE = {
    name: split.Halves(name, _reduce_half, _gather_half)
    for name in ("recursive-halving", "recursive-doubling")
}


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return recursive halving: log2(n) steps, n a power of two; the farthest partner first.

    Blocks belong to ranks, so only this order keeps what a rank sends in one run. Raises
    ScheduleError where n is no power of two.
    """
    power_of_two("reduce_scatter/recursive-halving", recipe.n, "circulant")
    return split.reduce_scatter(_RECURSIVE["recursive-halving"], recipe)


def allgather(recipe: Recipe) -> Schedule:
    """Return recursive doubling: log2(n) steps, n a power of two; the nearest partner first.

    Raises ScheduleError where n is no power of two.
    """
    power_of_two("allgather/recursive-doubling", recipe.n, "circulant")
    return split.allgather(_RECURSIVE["recursive-doubling"], recipe)
