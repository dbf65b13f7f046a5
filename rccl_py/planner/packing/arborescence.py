"""Cheap trees that span all ranks from a root: the cheapest of all, and shallow ones.

Owns two searches over a dense matrix of prices. Knows no links and no weights.

Prices: float64[n, n], of an edge parent -> child; inf where there is none.
"""

from __future__ import annotations

from math import fsum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...algorithms.flat import Ints, depths
from ...fabric import F64
from ...schedule import I32

__all__ = ["centred", "cheapest", "flattened", "grown", "priced"]


def priced(parents: Ints, price: F64) -> F64:
    """Return the price of each tree: float64[T]; parents: int[T, n], price: float64[n, n]."""
    each = price[np.maximum(parents, 0), np.arange(parents.shape[1])]
    return np.array([fsum(row) for row in np.where(parents < 0, 0.0, each).tolist()])


def centred(parents: Ints) -> I32:
    """Return the same tree (int32[n]) hung up in its middle, where it is shallowest."""
    tree = np.array(parents, dtype=np.int32)
    for _ in range(2):  # to one end of a longest path, and from there to the other
        far = int(depths(tree[None])[0].argmax())
        tree = _rerooted(tree, far)
    depth = depths(tree[None])[0]
    middle = int(depth.argmax())
    for _ in range(int(depth.max()) // 2):
        middle = int(tree[middle])
    return _rerooted(tree, middle)


def _rerooted(parents: I32, root: int) -> I32:
    """Return the tree with the edges from `root` up turned around."""
    tree: I32 = parents.copy()
    at, above = root, -1
    while at >= 0:
        tree[at], at, above = above, int(parents[at]), at
    return tree


class _Opening(NamedTuple):
    """What a contracted cycle is opened with: its vertices, the real edge along the cycle into
    each, and which vertex held every real one before.
    """

    cycle: Ints
    tail: Ints
    head: Ints
    holder: Ints


def cheapest(price: F64, root: int) -> I32:
    """Return the cheapest spanning tree from `root`: int32[n], -1 there.

    Every vertex takes its cheapest way in; a cycle becomes one vertex, whose ways in cost what they
    cost more than the way in they replace. All vertices must be reachable.

    Source: J. Edmonds, "Optimum branchings", J. Res. NBS 71B (1967).
    """
    n = len(price)
    cost = price.copy()
    np.fill_diagonal(cost, np.inf)
    cost[:, root] = np.inf
    tail = np.repeat(np.arange(n)[:, None], n, axis=1)  # the real edge behind each
    head = np.repeat(np.arange(n)[None, :], n, axis=0)
    holder, done = np.arange(n), []
    while True:
        parent = cost.argmin(axis=0)
        parent[np.isinf(cost.min(axis=0))] = root  # the root, and what was contracted
        cycle = _cycle(parent.tolist(), root)
        if not cycle:
            break
        at = np.array(cycle)
        done.append(_Opening(at, tail[parent[at], at], head[parent[at], at], holder.copy()))
        _contract(cost, tail, head, parent, at)
        holder[np.isin(holder, at)] = at[0]
    every = np.arange(n)
    tails, heads = tail[parent, every], head[parent, every]
    for opening in reversed(done):
        one = opening.cycle[0]
        entering = tails[one], heads[one]
        tails[opening.cycle], heads[opening.cycle] = opening.tail, opening.head
        entered = opening.holder[entering[1]]
        tails[entered], heads[entered] = entering
    tails[root] = -1
    return np.asarray(tails, dtype=np.int32)


def _cycle(parent: list[int], root: int) -> list[int]:
    """Return the vertices of one cycle of the pointers, [] if all lead to the root."""
    seen = [0] * len(parent)
    seen[root] = -1
    for start in range(len(parent)):
        path, at = [], start
        while not seen[at]:
            seen[at] = start + 1
            path.append(at)
            at = parent[at]
        if seen[at] == start + 1:
            return path[path.index(at) :]
        for vertex in path:
            seen[vertex] = -1
    return []


def _contract(cost: F64, tail: Ints, head: Ints, parent: Ints, at: Ints) -> None:
    """Make a cycle one vertex, its first, in place."""
    every, one, rest = np.arange(len(cost)), at[0], at[1:]
    into = cost[:, at] - cost[parent[at], at]
    way_in, way_out = at[into.argmin(axis=1)], at[cost[at, :].argmin(axis=0)]
    least_in, least_out = into.min(axis=1), cost[way_out, every]
    for ends in (tail, head):
        entering, leaving = ends[every, way_in], ends[way_out, every]
        ends[:, one], ends[one, :] = entering, leaving
    cost[:, one], cost[one, :] = least_in, least_out
    cost[rest, :] = cost[:, rest] = np.inf
    cost[one, one] = np.inf


def grown(price: F64, roots: Ints, deepest: int, slope: float) -> tuple[I32, npt.NDArray[np.bool_]]:
    """Return a cheap tree from each root, grown edge by edge: int32[k, n], and which span.

    The next edge is the cheapest that leads out of the tree, to a depth of at most `deepest`;
    `slope` is what each level of its upper end adds to its price. (Prim's rule, on directed edges.)
    """
    n, k = len(price), len(roots)
    row = np.arange(k)
    parents = np.full((k, n), -1, dtype=np.int32)
    depth = np.zeros((k, n), dtype=np.int64)
    outside = np.ones((k, n), dtype=bool)
    best = price[roots].copy()
    above = np.repeat(np.asarray(roots)[:, None], n, axis=1)
    outside[row, roots] = False
    for _ in range(n - 1):
        way = np.where(outside, best, np.inf).argmin(axis=1)
        reached = np.isfinite(best[row, way]) & outside[row, way]
        who, way = row[reached], way[reached]
        parents[who, way] = above[who, way]
        depth[who, way] = depth[who, above[who, way]] + 1
        outside[who, way] = False
        offer = price[way] + slope * depth[who, way][:, None]
        offer[depth[who, way] >= deepest] = np.inf
        better = offer < best[who]
        best[who] = np.where(better, offer, best[who])
        above[who] = np.where(better, way[:, None], above[who])
    return parents, np.asarray(~outside.any(axis=1))


def flattened(parents: Ints, price: F64, slack: float) -> I32:
    """Return a tree (int32[n]) that costs no more, with ranks hung higher where that is free."""
    n, tree = len(parents), np.array(parents, dtype=np.int32)
    for _ in range(n):
        depth = depths(tree[None])[0]
        below = np.eye(n, dtype=bool)  # below[u, v]: v is u or under it
        for v in np.argsort(-depth, kind="stable").tolist():
            if tree[v] >= 0:
                below[tree[v]] |= below[v]
        now = price[np.maximum(tree, 0), np.arange(n)]
        gain = np.where((price <= now + slack) & ~below.T, depth[None, :] - depth[:, None] - 1, 0)
        gain[:, tree < 0] = 0
        weight = gain * below.sum(axis=1)[None, :]
        u, v = np.unravel_index(int(weight.argmax()), weight.shape)
        if gain[u, v] <= 0:
            break
        tree[v] = u
    return tree
