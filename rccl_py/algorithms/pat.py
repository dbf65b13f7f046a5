"""PAT: a binomial tree below every rank, the longest way first and with the least on it.

Owns the turns of NCCL's "parallel aggregated trees". For allgather the ways are the powers of two
below n from the largest down; at way w the block of rank r is at r, r + 2w, r + 4w, ... and goes
w further from each of them. All blocks a rank sends at a step go in one message; in pieces, each
is so much smaller, and the next follows a step behind. Each way has a channel, so that none serves
several peers at once::

    allgather, 4 ranks       rank 0 sends to            holds afterwards
    way 2                    2: block 0                 0 2
    way 1                    1: blocks 0 2              0 2 3 1

    reduce_scatter           the same backwards: the short ways first, with the most on them

Source: S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
arXiv 2506.20252 (2025).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import Layout, Phase, Pipeline, Schedule, pipeline, rows
from .exchange import Turn, Turns, backwards, forwards
from .flat import local_copy
from .recipe import Recipe, scheduled, spaced

__all__ = ["allgather", "reduce_scatter"]


def _channels(n: int) -> int:
    return max(1, (n - 1).bit_length())


def _turns(n: int) -> Turns:
    """Return the turns: ceil(log2(n)). The block of rank r is slot r."""

    def turns() -> Iterator[Turn]:
        for d in reversed(range((n - 1).bit_length())):
            way = 1 << d
            travelled = np.arange(0, n - way, 2 * way)  # how far from home what is sent is
            src, so_far = (a.ravel() for a in np.meshgrid(np.arange(n), travelled, indexing="ij"))
            yield Turn(rows(src, (src + way) % n, channel=d), (src - so_far) % n)

    return turns


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return the reduce_scatter: ceil(log2(n)) steps, any n; partial sums live in scratch."""
    n, pieces = recipe.n, recipe.pieces
    layout, ranks = Layout(pieces, n, 1, n), np.arange(n)
    base = int(layout.scratch_block())

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), base, n * pieces)
        one = recipe.piece("reduce_scatter/pat", lambda: backwards(_turns(n)))
        yield pipeline(spaced(one, 1, pieces), pieces, 1, base)
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), pieces)

    return scheduled("reduce_scatter", "pat", recipe, layout, _channels(n), phases)


def allgather(recipe: Recipe) -> Schedule:
    """Return the allgather: ceil(log2(n)) steps, any n."""
    n, pieces = recipe.n, recipe.pieces
    layout, ranks = Layout(pieces, 1, n), np.arange(n)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), pieces)
        one = recipe.piece("allgather/pat", lambda: forwards(_turns(n)))
        yield pipeline(spaced(one, 1, pieces), pieces, 1, int(layout.output()))

    return scheduled("allgather", "pat", recipe, layout, _channels(n), phases)
