"""Ways for the blocks of an alltoall on one machine, in whole shares: what `paths` runs on.

Owns the rounding to shares and the decisions which hops ways are made of and whether relays are
worth it. Knows hops and ways.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...algorithms import Paths
from ...algorithms.paths import PEERS
from ...fabric import F64, I64, Fabric
from ..packing.ways import ways_of
from .hops import Hops, hops_of
from .ways import Ways, fastest_ways, proven

__all__ = ["MOST_RANKS", "relayed_loads", "shares_of_ways", "synthesise_paths"]

MOST_RANKS = 64
"""Ranks up to which ways are sought: 4,032 pairs, each a row of the program."""
WORTH = 0.02
"""The part of the time that relays must save; less is not worth their messages (assumed)."""
SHARES = 64
"""The most shares a block is cut into."""
ODD = 0.02
"""The part of the time that hops past other ranks and between rails must save to be used."""
LOSS = 0.01
"""The part of the time that rounding to shares may cost, where some number of shares allows it."""


def synthesise_paths(fabric: Fabric) -> Paths | None:
    """Return the ways by which an alltoall is fastest on `fabric`.

    None where the fabric's own routes are as fast to within 2%, where it has more than MOST_RANKS
    ranks, or where some pair cannot be joined. The same fabric gives the same ways.
    """
    n = fabric.nranks
    if not 2 < n <= MOST_RANKS:
        return None
    hops = hops_of(fabric)
    found = _plain_first(fabric, hops)
    if found is None:
        return None
    used, ways = found
    paths = shares_of_ways(used, ways)
    straight = np.bincount(hops.resource, weights=hops.cost, minlength=hops.nresources).max()
    whole = len(hops.src) == n * (n - 1)
    if whole and relayed_loads(used, paths).max() > straight * (1 - WORTH):
        return None
    return paths


def _plain_first(fabric: Fabric, hops: Hops) -> tuple[Hops, Ways] | None:
    """Return the fastest ways over hops that share little, with those hops; over all where that
    is much faster. None where some pair cannot be joined.
    """
    demand = np.ones((hops.n, hops.n))
    plain = _plain(fabric)
    ways = None if plain is None else fastest_ways(plain, demand)
    if plain is None or ways is None:
        every = fastest_ways(hops, demand)
        return None if every is None else (hops, every)
    if ways.seconds <= proven(hops, demand, ways.prices) * (1 + ODD):
        return plain, ways
    every = fastest_ways(hops, demand)
    if every is None or ways.seconds <= every.seconds * (1 + ODD):
        return plain, ways
    return hops, every


def _plain(fabric: Fabric) -> Hops | None:
    """Return the hops but the odd ones: past other ranks, or to another rail. None: none is odd.

    Messages of different steps then hardly ever meet on a link, so that they take in a simulation
    what the load of links says.
    """
    odd = ways_of(fabric).odd
    if odd is None or not odd.any():
        return None
    peers = fabric.nranks - 1 - (odd | odd.T).sum(axis=1).min()
    hops = hops_of(fabric, many=bool(peers > PEERS))
    kept = ~odd[hops.src, hops.dst]
    number, entry = np.cumsum(kept) - 1, kept[hops.row]
    row, resource, cost = number[hops.row[entry]], hops.resource[entry], hops.cost[entry]
    return Hops(hops.n, hops.src[kept], hops.dst[kept], row, resource, cost, hops.nlinks)


def shares_of_ways(hops: Hops, ways: Ways, most: int = SHARES) -> Paths:
    """Return `ways`, which carry as much for every pair, in whole shares of each block.

    The fewest shares that cost at most LOSS of the time; else, of at most `most`, the fastest.
    """
    order = sorted(range(len(ways.ways)), key=lambda k: (_ends(ways, k), len(ways.ways[k]), k))
    every = [ways.ways[k] for k in order]
    pair = np.unique([way[0] * hops.n + way[-1] for way in every], return_inverse=True)[1]
    part = ways.amount[order] / np.bincount(pair, weights=ways.amount[order])[pair]
    # Rounded shares are compared with the ways as they are, both for one B of every block.
    level = ways.seconds * (int(pair.max()) + 1) / float(ways.amount.sum())
    best, fastest = None, np.inf
    for total in range(1, most + 1):
        paths = _packed(every, _rounded(part, pair, total), total)
        seconds = float(relayed_loads(hops, paths).max())
        if seconds < fastest * (1 - 1e-9):
            best, fastest = paths, seconds
        if seconds <= (1 + LOSS) * level:
            return paths
    assert best is not None  # one share at least was tried
    return best


def _ends(ways: Ways, k: int) -> tuple[int, int]:
    return ways.ways[k][0], ways.ways[k][-1]


def _rounded(part: F64, pair: I64, total: int) -> I64:
    """Return whole shares near part * total that add up to `total` for every pair.

    The largest remainders are rounded up (A. Hamilton's method of apportionment).
    """
    wanted = part * total
    shares = np.floor(wanted + 1e-9).astype(np.int64)
    short = total - np.bincount(pair, weights=shares).astype(np.int64)
    order = np.lexsort((np.arange(len(part)), shares - wanted, pair))
    place = np.empty(len(part), dtype=np.int64)
    starts = np.searchsorted(pair[order], np.arange(len(short)))
    place[order] = np.arange(len(part)) - starts[pair[order]]
    return shares + (place < short[pair])


def _packed(ways: Sequence[tuple[int, ...]], shares: I64, total: int) -> Paths:
    """Return the ways that carry something as Paths."""
    used = np.flatnonzero(shares).tolist()
    lengths = [len(ways[k]) for k in used]
    rank = np.array([r for k in used for r in ways[k]], dtype=np.int32)
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Paths(ptr, rank, shares[used].astype(np.int32), total)


def relayed_loads(hops: Hops, paths: Paths) -> F64:
    """Return the s each resource is busy per B of a block: float64[nresources]."""
    last = np.zeros(len(paths.rank), dtype=bool)
    last[paths.ptr[1:] - 1] = True
    at = np.flatnonzero(~last)
    path = np.searchsorted(paths.ptr, at, side="right") - 1
    hop = hops.number[paths.rank[at], paths.rank[at + 1]]
    part = np.bincount(hop, weights=paths.weight[path] / paths.total, minlength=len(hops.src))
    return np.asarray(hops.matrix @ part, dtype=np.float64)
