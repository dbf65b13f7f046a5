"""The ring in two directions: half of every block either way round, on one channel each.

Owns which rings that is; what a ring does is in `flat`, how its halves make collectives in
`split`. Of a machine's rings only the first is taken: others are ring's::

    reduce-scatter, step 0, 4 ranks      block c is the slots c+ and c-
    channel 0   0 -> 1  3+    1 -> 2  0+    2 -> 3  1+    3 -> 0  2+
    channel 1   1 -> 0  2-    2 -> 1  3-    3 -> 2  0-    0 -> 3  1-
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..schedule import Schedule
from . import split
from .flat import ring_allgather, ring_reduce_scatter
from .recipe import Recipe

__all__ = ["allgather", "allreduce", "reduce_scatter"]

_HALVES = split.Halves(
    "both-ways", ring_reduce_scatter, ring_allgather, on_rings=True, by_block=True
)


def _turned(recipe: Recipe) -> Recipe:
    """Return a recipe whose rings are the first one, forwards and backwards."""
    ring = recipe.rings[0]
    both = np.stack([ring, ring[::-1]])
    return replace(recipe, rings=both, weights=np.ones(2, dtype=np.int32), memo={})


def allreduce(recipe: Recipe) -> Schedule:
    """Return the allreduce: 2(n-1) steps, half of the bytes on either way of each link."""
    return split.allreduce(_HALVES, _turned(recipe))


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return the reduce_scatter: n-1 steps."""
    return split.reduce_scatter(_HALVES, _turned(recipe))


def allgather(recipe: Recipe) -> Schedule:
    """Return the allgather: n-1 steps."""
    return split.allgather(_HALVES, _turned(recipe))
