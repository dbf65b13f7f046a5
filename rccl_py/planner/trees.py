"""The trees of an allreduce: over the nodes, or over the ranks of one.

Owns which trees are used side by side; their shapes are rccl_py.algorithms.shapes'. Knows no link
and no time.
"""

from __future__ import annotations

import numpy as np

from ..algorithms.shapes import double_binary_tree, two_level_trees
from ..schedule import I32

__all__ = ["find_trees"]


def find_trees(n: int, nodes: I32 | None, local_orders: I32) -> I32:
    """Return int32[T, n], the parent of each of `n` ranks in every tree, -1 for a root.

    nodes: int32[N, g], the ranks of each node. local_orders: int32[R, n], the rings inside nodes.
    Over several nodes a pair of trees for every local rank, else one pair.
    """
    if nodes is not None and len(nodes) > 1:
        return two_level_trees(nodes, np.arange(nodes.shape[1]), n, local_orders)
    pair = double_binary_tree(n)
    if n < 3 or len(local_orders) < 2:
        return pair
    # On a mesh one pair leaves most links idle: every rotation of it uses others.
    turned = [
        np.where(np.roll(pair, k, axis=1) < 0, -1, (np.roll(pair, k, axis=1) + k) % n)
        for k in range(n)
    ]
    return np.concatenate(turned).astype(np.int32)
