"""The allgather that spreads what each rank has heard: a barrier, where there is nothing to send.

Owns the rounds of distance 1, 2, 4, ...: after them every rank has heard from every other, for any
n. Knows no fabric. What 4 ranks have heard of::

    start       0         1         2         3
    distance 1  3 0       0 1       1 2       2 3        from the rank one place back
    distance 2  1 2 3 0   2 3 0 1   3 0 1 2   0 1 2 3    from the one two places back

Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J.
Parallel Programming 17 (1988).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import Layout, Phase, Schedule, at, rows
from .flat import local_copy
from .recipe import Recipe, scheduled

__all__ = ["dissemination"]


def dissemination(recipe: Recipe) -> Schedule:
    """Return the allgather in ceil(log2(n)) rounds, each rank passing on all the next lacks.

    Those are the blocks of the ranks from some places back up to itself: at most two runs of
    slots, so that there are at most 2 n rows a round.
    """
    n, layout = recipe.n, Layout(1, 1, recipe.n)
    ranks = np.arange(n)

    def round_of(distance: int) -> Phase:
        many = min(distance, n - distance)
        first = (ranks - many + 1) % n
        ahead = np.minimum(many, n - first)  # up to the last block; the rest is at the front
        count = np.stack([ahead, many - ahead], axis=1).ravel()
        slot = layout.output(np.stack([first, np.zeros(n, int)], axis=1).ravel())
        src = np.repeat(ranks, 2)
        used = count > 0
        moved = rows(src[used], ((src + distance) % n)[used], count=count[used])
        return Phase((at(moved, slot[used], slot[used]),))

    def phases() -> Iterator[Phase]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), 1)
        yield from (round_of(1 << k) for k in range((n - 1).bit_length()))

    return scheduled("allgather", "dissemination", recipe, layout, 1, phases)
