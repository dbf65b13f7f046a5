"""Whole trees from one root on a machine of links only: as many as the narrowest cut has room for.

Owns the packing of arborescences where every pair of ranks has a link of its own, or none: cubes,
meshes, tori. There whole capacities have whole solutions, which a linear program hardly finds when
all links are full. Knows no switches: `columns` does those.

A tree grows edge by edge, the ranks nearest to the root first. An edge may be taken if without it
the root still reaches its end k - 1 times over; there always is one.

Source: L. Lovasz, "On two minimax theorems in graph", J. Combin. Theory B 21 (1976); the theorem is
J. Edmonds, "Edge-disjoint branchings" (1973).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...algorithms import Forest
from ...algorithms.flat import Ints, depths
from ...fabric import F64
from .ways import Ways

__all__ = ["arborescences", "links_of", "widest"]

_MOST = 16  # trees, at least; more only if the root has more neighbours
_LOSS = 0.003  # of the bandwidth, that fewer trees may cost
_TRIES = 6  # orders of growth, of which the one with the shallowest trees is taken
_FINE = 1 << 20  # parts of the widest link in which flows are whole


def links_of(ways: Ways) -> F64 | None:
    """Return B/s of the links between ranks: float64[n, n], 0 where there is none.

    None where there is more than links: things that no pair of ranks has to itself. Pairs whose
    way leads over several links, of other pairs, count as unjoined: their ranks may relay.
    """
    matrix, n = ways.matrix, ways.n
    single = np.diff(matrix.indptr) == 1
    thing = matrix.indices[matrix.indptr[:-1][single]]
    if len(np.unique(thing)) < len(thing) or len(np.setdiff1d(matrix.indices, thing)):
        return None
    found = np.zeros(n * n)
    found[single] = 1.0 / matrix.data[matrix.indptr[:-1][single]]
    return found.reshape(n, n)


def _flow(capacity: npt.NDArray[np.int32], root: int, end: int) -> int:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    return int(maximum_flow(csr_array(capacity), root, end).flow_value)


def _narrowest(capacity: npt.NDArray[np.int32], root: int) -> int:
    """Return the least flow from the root to any other rank."""
    n = len(capacity)
    return min(_flow(capacity, root, end) for end in range(n) if end != root)


def widest(links: F64, root: int) -> float:
    """Return the B/s that can go from the root to every rank at once: its narrowest cut."""
    unit = links.max() / _FINE
    return _narrowest((links / unit).astype(np.int32), root) * float(unit)


def _counts(links: F64, root: int, rate: float) -> tuple[npt.NDArray[np.int32], int]:
    """Return whole capacities of links, and how many trees they have room for: the fewest that
    lose next to nothing, else those that lose least.
    """
    best: tuple[float, npt.NDArray[np.int32], int] | None = None
    for count in range(1, max(_MOST, 2 * int((links[root] > 0).sum())) + 1):
        for loss in (1e-9, _LOSS, 0.02, 0.05):
            room = np.floor(links * count / (rate * (1 - loss))).astype(np.int32)
            if (best is None or loss < best[0]) and _narrowest(room, root) >= count:
                best = loss, room, count
                break
        if best is not None and best[0] <= _LOSS:
            break
    assert best is not None or len(links) > 1  # every root reaches every rank
    return best[1:] if best is not None else ((links > 0).astype(np.int32), 1)


def arborescences(links: F64, root: int) -> Forest:
    """Return trees of one weight from `root` that keep to the links.

    links : float64[n, n] B/s, 0 where there is none; every rank can be reached.
    """
    room, count = _counts(links, root, widest(links, root))
    best: tuple[tuple[int, int], npt.NDArray[np.int32]] | None = None
    for seed in range(_TRIES):
        spare, rng = room.copy(), np.random.default_rng(seed)
        turns = [rng.permutation(len(links)) for _ in range(count)]
        trees = np.array([_grown(spare, root, count - 1 - k, turn)
                          for k, turn in enumerate(turns)], dtype=np.int32)  # fmt: skip
        depth = depths(trees)
        rank = int(depth.max()), int(depth.sum())
        best = (rank, trees) if best is None or rank < best[0] else best
    assert best is not None  # it is tried at least once
    found, weights = np.unique(best[1], axis=0, return_counts=True)
    return Forest(found, weights.astype(np.int32))


def _grown(room: npt.NDArray[np.int32], root: int, left: int, turn: Ints) -> Ints:
    """Return a tree's parents and take its edges from `room`, so that `left` trees still fit.

    turn: int[n], the order in which the children of a rank are tried.
    """
    n = len(room)
    parents, order = np.full(n, -1, dtype=np.int64), [root]
    inside = np.zeros(n, dtype=bool)
    inside[root] = True
    for parent in order:  # grows while it is walked
        for child in turn[(room[parent] > 0)[turn] & ~inside[turn]].tolist():
            room[parent, child] -= 1
            if left and _flow(room, root, child) < left:
                room[parent, child] += 1
                continue
            parents[child], inside[child] = parent, True
            order.append(child)
    return parents
