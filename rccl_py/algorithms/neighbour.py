"""Neighbour exchange: everyone swaps two blocks with one neighbour, then with the other.

Owns the turns, along the machine's first ring, for an even number of ranks: n/2 steps where a ring
takes n-1, and messages of two blocks. First the two of a pair swap; then every rank hands on, to
the left and right in turn, the pair of blocks that came last::

    6 ranks            0        1        2        3        4        5
    step 0   0-1 2-3   0 1      0 1      2 3      2 3      4 5      4 5
    step 1   1-2 3-4   + 4 5    + 2 3    + 0 1    + 4 5    + 2 3    + 0 1
    step 2   0-1 2-3   + 2 3    + 4 5    + 4 5    + 0 1    + 0 1    + 2 3

Source: J. Chen, L. Zhang, Y. Zhang and W. Yuan, "Performance evaluation of allgather algorithms
on terascale Linux cluster with Fast Ethernet", HPC Asia 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..errors import ScheduleError
from ..schedule import Phase, Rows, Schedule, rows
from . import split
from .exchange import Turn, Turns, backwards, forwards
from .flat import Ints
from .recipe import Recipe

__all__ = ["allgather", "reduce_scatter"]


def _turns(group: Ints, own: Ints) -> Turns:
    """Return the turns on a ring of an even number of ranks. group, own : int[m]."""
    m = len(group)
    place = np.arange(m)
    sides = place ^ 1, (((place + 1) ^ 1) - 1) % m  # partners in 0-1, 2-3, ...; in 1-2, 3-4, ...
    both = own.reshape(-1, 2)
    held = both[:, :1] if (np.diff(both) == 1).all() else both  # a pair of blocks is a row, or two
    each = held.shape[1]

    def over(partner: Ints) -> Rows:
        return rows(np.repeat(group, each), np.repeat(group[partner], each), count=2 // each)

    def turns() -> Iterator[Turn]:
        yield Turn(rows(group, group[sides[0]]), own)
        ways = [over(side) for side in sides]
        last = place // 2  # the pair of blocks that came last
        for s in range(1, m // 2):
            yield Turn(ways[s % 2], held[last].ravel())
            last = last[sides[s % 2]]

    return turns


def _reduce_half(group: Ints, own: Ints, _width: object, _channel: object) -> Iterator[Phase]:
    return backwards(_turns(group[0], own[0]))


def _gather_half(group: Ints, own: Ints, _width: object, _channel: object) -> Iterator[Phase]:
    return forwards(_turns(group[0], own[0]))


_HALVES = split.Halves("neighbour", _reduce_half, _gather_half, on_rings=True)


def _on_one_ring(recipe: Recipe) -> Recipe:
    if recipe.n % 2:
        raise ScheduleError(
            f"neighbour: asked for {recipe.n} ranks, but they go in pairs; both-ways is for any"
        )
    return replace(recipe, rings=recipe.rings[:1], weights=np.ones(1, dtype=np.int32), memo={})


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return the reduce_scatter: the allgather backwards. Raises ScheduleError for an odd n."""
    return split.reduce_scatter(_HALVES, _on_one_ring(recipe))


def allgather(recipe: Recipe) -> Schedule:
    """Return the allgather: n/2 steps, n even. Raises ScheduleError for an odd n."""
    return split.allgather(_HALVES, _on_one_ring(recipe))
