"""Shapes of trees and rings as arrays: who is whose parent, who follows whom.

Owns parent arrays (int32[T, n], -1 at the root) of chains, double binary, binomial and star
trees. Knows no slots, no fabric.
"""

from __future__ import annotations

import numpy as np

from ..schedule import I32
from .flat import Ints

__all__ = [
    "binomial",
    "chains",
    "double_binary_tree",
    "identity_order",
    "over_nodes",
    "rooted_double_tree",
    "star",
    "two_level_trees",
]


def identity_order(n: int) -> I32:
    """Return the one ring 0, 1, ..., n-1: int32[1, n]."""
    return np.arange(n, dtype=np.int32)[None, :]


def _binary_tree(n: int) -> I32:
    """Return the in-order binary tree: the lowest set bit of a rank says its level (NCCL btree)."""
    rank = np.arange(n)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    parent = np.where(up < n, up, rank ^ bit)
    parent[0] = -1
    return parent.astype(np.int32)


def double_binary_tree(n: int) -> I32:
    """Return two trees, each inner rank of one a leaf of the other: int32[2, n].

    The second is the first mirrored (even n) or shifted by one (odd n), as NCCL's dtree. For 4
    ranks: 0 - 2 - (1, 3) and 3 - 1 - (0, 2).
    """
    first = _binary_tree(n)
    rank = np.arange(n)
    source = n - 1 - rank if n % 2 == 0 else (rank + 1) % n
    moved = first[source]
    if n % 2 == 0:
        second = np.where(moved < 0, -1, n - 1 - moved)
    else:
        second = np.where(moved < 0, -1, (moved - 1) % n)
    return np.stack([first, second]).astype(np.int32)


def rooted_double_tree(n: int, root: int) -> I32:
    """Return two trees over the other ranks, both hung below `root`: int32[2, n]."""
    if n == 1:
        return np.full((1, 1), -1, dtype=np.int32)
    members = (root + 1 + np.arange(n - 1)) % n
    inner = double_binary_tree(n - 1)
    parents = np.full((2, n), -1, dtype=np.int32)
    parents[:, members] = np.where(inner < 0, root, members[inner])
    return parents if n > 2 else parents[:1]


def chains(orders: Ints, root: int) -> I32:
    """Return one chain a ring, cut so that it starts at `root`: int32[k, n]."""
    parents = np.full(orders.shape, -1, dtype=np.int32)
    for parent, order in zip(parents, orders):
        line = np.roll(order, -int(np.flatnonzero(order == root)[0]))
        parent[line[1:]] = line[:-1]
    return parents


def binomial(n: int, root: int) -> I32:
    """Return the binomial tree: a relative rank's parent is it without its lowest set bit."""
    relative = np.arange(n)
    parent = np.full(n, -1, dtype=np.int32)
    parent[(relative[1:] + root) % n] = ((relative & (relative - 1))[1:] + root) % n
    return parent[None, :]


def star(n: int, root: int) -> I32:
    """Return the tree in which every rank hangs below `root`: int32[1, n]."""
    parent = np.full((1, n), root, dtype=np.int32)
    parent[0, root] = -1
    return parent


def over_nodes(inner: Ints, heads: Ints) -> I32:
    """Return trees over the ranks `heads` : int[T, N] shaped as `inner` : int[T, N], others -1."""
    return np.where(inner < 0, -1, np.take_along_axis(heads, np.maximum(inner, 0), axis=1)).astype(
        np.int32
    )


def two_level_trees(nodes: Ints, heads: Ints, n: int, orders: Ints | None = None) -> I32:
    """Return a pair of trees per head: a chain inside each node, double trees over the heads.

    nodes : int[N, g]. heads : local indices that lead their node, one pair of trees each. orders :
    int[k, g], rings of locals, taken in turn. This is NCCL's tree for several nodes: the chain
    follows a ring from the head on.
    """
    count, g = nodes.shape
    inner = double_binary_tree(count)
    trees = np.full((2 * len(heads), n), -1, dtype=np.int32)
    rings = np.arange(g)[None, :] if orders is None else np.asarray(orders)
    for h, head in enumerate(heads):
        ring = rings[h % len(rings)]
        line = nodes[:, np.roll(ring, -int(np.flatnonzero(ring == head)[0]))]
        for t in range(2):
            tree = trees[2 * h + t]
            if g > 1:
                tree[line[:, 1:]] = line[:, :-1]
            tree[line[:, 0]] = over_nodes(inner[t : t + 1], line[:, 0][None, :])[0]
    return trees
