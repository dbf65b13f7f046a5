"""Alltoall along given paths: every block is cut into shares, and each share is handed on.

Owns how shares travel and where relays keep them. Knows no fabric: which ways the shares take,
and how many of them each way, is in the recipe (`Paths`).

Two thirds of rank 0's block for rank 2 go straight there, a third over rank 1; 2 pieces::

    step        0              1              2
    piece 0     0 -> 2 aa      1 -> 2 b
                0 -> 1 b
    piece 1                    0 -> 2 cc      1 -> 2 d
                               0 -> 1 d

Where every rank has few peers, a channel is two of them, as in forests; else there is one.

A share stands at the same position in its block from the sender to the receiver, so two that wait
at one relay share a scratch block wherever their positions differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..schedule import Layout, Phase, Pipeline, Schedule, at, pipeline, rows
from .flat import local_copy
from .forest import colours
from .recipe import Paths, Recipe, scheduled

__all__ = ["PEERS", "alltoall"]

I64 = npt.NDArray[np.int64]

PEERS = 8
"""Peers of a rank up to which each two have a channel of their own: four kernels' (assumed)."""


def alltoall(recipe: Recipe) -> Schedule:
    """Return the alltoall whose blocks take the recipe's paths, all hops of them at work at once.

    Ways found by linear programming on the max concurrent flow: F. Shahrokhi and D. W. Matula,
    "The maximum concurrent flow problem", J. ACM 37 (1990).
    """
    paths = recipe.paths
    assert paths is not None  # the registry offers this only where there are some
    n, pieces = recipe.n, recipe.pieces
    first, block = _positions(paths, n), _waiting(paths, n)
    layout = Layout(paths.total * pieces, n, n, int(block.max(initial=-1)) + 1)
    channel = _channels(paths, n)

    def hops() -> Iterator[Phase]:
        for h in range(int(np.diff(paths.ptr).max(initial=1)) - 1):
            yield _hop(paths, layout, (first, block, channel), h)

    def phases() -> Iterator[Phase | Pipeline]:
        ranks = np.arange(n)
        yield local_copy(ranks, layout.input(ranks), layout.output(ranks), layout.chunks)
        yield pipeline(hops(), pieces, paths.total)

    nchannels = int(channel.max(initial=0)) + 1
    return scheduled("alltoall", "paths", recipe, layout, nchannels, phases)


def _channels(paths: Paths, n: int) -> I64:
    """Return the channel of each pair of ranks: int64[n, n]."""
    found = np.zeros(n * n, dtype=np.int64)
    last = np.zeros(len(paths.rank), dtype=bool)
    last[paths.ptr[1:] - 1] = True
    here = np.flatnonzero(~last)
    pair = np.unique(paths.rank[here].astype(np.int64) * n + paths.rank[here + 1])
    colour = colours(pair // n, pair % n, n)
    if colour.max(initial=0) < PEERS:
        found[pair] = colour // 2
    return found.reshape(n, n)


def _hop(paths: Paths, layout: Layout, kept: tuple[I64, I64, I64], h: int) -> Phase:
    """Return the phase in which every path that has one does its hop number `h`.

    kept: the first position of each path, where its shares wait, and the channel of each pair.
    Rows with the same two ends stand next to each other: they are one message.
    """
    first, block, channel = kept
    here = paths.ptr[:-1] + h
    last = paths.ptr[1:] - 1
    goes = np.flatnonzero(here < last)
    src, dst = paths.rank[here[goes]], paths.rank[here[goes] + 1]
    goes = goes[np.lexsort((dst, src))]
    here, last = here[goes], last[goes]
    sender, receiver = paths.rank[paths.ptr[goes]], paths.rank[last]
    held = layout.input(receiver) if h == 0 else layout.scratch_block(block[here])
    home = layout.output(sender)
    lands = np.where(here + 1 == last, home, layout.scratch_block(block[here + 1]))
    ends = paths.rank[here], paths.rank[here + 1]
    moved = rows(*ends, count=paths.weight[goes], channel=channel[ends])
    return Phase((at(moved, held + first[goes], lands + first[goes]),))


def _positions(paths: Paths, n: int) -> I64:
    """Return the first position of each path's shares in its pair's block: int64[Q]."""
    ends = paths.rank[paths.ptr[:-1]].astype(np.int64) * n + paths.rank[paths.ptr[1:] - 1]
    order = np.argsort(ends, kind="stable")
    before = np.cumsum(paths.weight[order]) - paths.weight[order]
    _, start = np.unique(ends[order], return_index=True)
    counts = np.diff(np.append(start, len(order)))
    first = np.empty(len(order), dtype=np.int64)
    first[order] = before - np.repeat(before[start], counts)
    return first


def _waiting(paths: Paths, n: int) -> I64:
    """Return the scratch block each relay keeps a path's shares in, by entry of `rank`; else -1.

    First fit, by position: of one relay as many blocks as the most shares at one position.
    """
    first, block = _positions(paths, n), np.full(len(paths.rank), -1, dtype=np.int64)
    relays = np.ones(len(paths.rank), dtype=bool)
    relays[paths.ptr[:-1]] = relays[paths.ptr[1:] - 1] = False
    entry = np.flatnonzero(relays)
    path = np.searchsorted(paths.ptr, entry, side="right") - 1
    order = np.lexsort((entry, first[path], paths.rank[entry]))
    taken: dict[int, list[int]] = {}  # of each relay, up to where each of its blocks is full
    for e, q in zip(entry[order].tolist(), path[order].tolist()):
        ends, low = taken.setdefault(int(paths.rank[e]), []), int(first[q])
        b = next((b for b, end in enumerate(ends) if end <= low), len(ends))
        if b == len(ends):
            ends.append(0)
        ends[b] = low + int(paths.weight[q])
        block[e] = b
    return block
