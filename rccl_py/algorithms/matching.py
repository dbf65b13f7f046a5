"""A matrix of demands as a sequence of one-to-one stages.

Owns the decomposition by bottleneck matchings and the greedy order. Knows demands between units
(nodes, ranks), no bytes of anybody, no fabric.

Three units, every row and column sum 6, and the three stages it takes::

    3 1 2        3 . .       . . 2       . 1 .
    2 3 1   =    . 3 .   +   2 . .   +   . . 1
    1 2 3        . . 3       . 2 .       1 . .
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Stages", "greedy_order", "padded", "stages_of"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Stages:
    """Which demands are served when, one entry a demand and stage.

    stage, src, dst : int64[k]. low, high : int64[k], what of the demand src -> dst is served, from
    low to high. count: stages.
    """

    stage: I64
    src: I64
    dst: I64
    low: I64
    high: I64
    count: int


def padded(demand: I64) -> I64:
    """Return `demand` with idle amounts added so that all rows and columns add up to the most.

    Rows and columns that miss some are filled against each other in order (the north-west corner
    rule of the transportation problem).
    """
    full: I64 = np.array(demand, dtype=np.int64)
    most = max(int(full.sum(axis=0).max(initial=0)), int(full.sum(axis=1).max(initial=0)))
    rows, columns = most - full.sum(axis=1), most - full.sum(axis=0)
    i = j = 0
    while i < len(full) and j < len(full):
        idle = min(int(rows[i]), int(columns[j]))
        full[i, j] += idle
        rows[i] -= idle
        columns[j] -= idle
        i, j = (i + 1, j) if rows[i] == 0 else (i, j + 1)
    return full


def stages_of(demand: I64) -> Stages:
    """Return stages in which every unit sends to at most one and receives from at most one.

    Together they last exactly as long as the largest row or column sum of `demand` (int64[u, u]):
    G. Birkhoff, "Tres observaciones sobre el algebra lineal", 1946. Each stage is a matching whose
    smallest entry is as large as any allows, and lasts as long as that entry, which keeps stages
    few. As FAST schedules nodes (arXiv 2505.09764).
    """
    left, served = padded(demand), np.zeros_like(demand)
    found: list[tuple[I64, ...]] = []
    every = np.arange(len(demand))
    while left.any():
        to = _widest_matching(left)
        lasts = int(left[every, to].min())
        left[every, to] -= lasts
        low = served[every, to]
        high = np.minimum(low + lasts, demand[every, to])
        served[every, to] = high
        busy = np.flatnonzero(high > low)
        found.append((np.full(len(busy), len(found)), busy, to[busy], low[busy], high[busy]))
    return _joined([row for row in found if len(row[1])])


def _joined(found: list[tuple[I64, ...]]) -> Stages:
    """Return stages one after the other; one that served nothing is not among them."""
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Stages(none, none, none, none, none, 0)
    stage, src, dst, low, high = (np.concatenate(c) for c in zip(*found))
    _, number = np.unique(stage, return_inverse=True)
    return Stages(number.astype(np.int64), src, dst, low, high, len(found))


def _widest_matching(left: I64) -> I64:
    """Return to[i] of a perfect matching on positive entries whose smallest entry is the largest.

    left : int64[u, u], all rows and columns add up to the same, so that there is one (D. Koenig,
    1916). Binary search over the values of `left`, with Hopcroft and Karp's matching for each.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    values = np.unique(left[left > 0])
    # Each row and column needs one entry as large: no threshold above the least of their largest.
    most = min(int(left.max(axis=0).min()), int(left.max(axis=1).min()))
    low, high = 0, int(np.searchsorted(values, most, side="right")) - 1
    best = None
    while low <= high or best is None:
        middle = (low + high + 1) // 2
        graph = csr_array((left >= values[middle]).astype(np.int8))
        to = maximum_bipartite_matching(graph, perm_type="column")
        if (to >= 0).all():
            best, low = to, middle + 1
        else:
            high = middle - 1
    return np.asarray(best, dtype=np.int64)


def greedy_order(demand: I64, grain: int = 0) -> tuple[Stages, int]:
    """Return demands in the order a work-conserving schedule serves them, and when it ends.

    Whenever a sender and a receiver are both idle and the one has something for the other, such a
    demand starts: the largest first, and at most `grain` of it at a time (0: all of it). It ends
    within twice the largest row or column sum: what is served last waited only while its sender or
    its receiver was busy with others. Stage numbers say how many of the same sender or receiver
    came before, not when it starts.
    """
    order = np.argsort(-demand, axis=None, kind="stable")
    waiting = order[demand.ravel()[order] > 0].tolist()
    left = dict(zip(waiting, demand.ravel()[waiting].tolist()))
    n, now, end, rows = len(demand), 0, 0, []
    sends, receives = [0] * n, [0] * n  # until when each is busy
    deep_out, deep_in = [0] * n, [0] * n  # services before, of each sender and receiver
    while waiting:
        for key in waiting:
            i, j = divmod(key, n)
            if sends[i] > now or receives[j] > now:
                continue
            size = min(grain, left[key]) if grain else left[key]
            low = int(demand[i, j]) - left[key]
            left[key] -= size
            sends[i] = receives[j] = now + size
            level = max(deep_out[i], deep_in[j])
            deep_out[i] = deep_in[j] = level + 1
            rows.append((level, i, j, low, low + size))
        waiting = [key for key in waiting if left[key]]
        end = max(end, *sends, *receives)
        now = min((t for t in (*sends, *receives) if t > now), default=now)
    stage, src, dst, low_, high_ = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Stages(stage, src, dst, low_, high_, int(stage.max(initial=-1)) + 1), end
