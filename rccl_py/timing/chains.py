"""The slowest chain of hops in a row: what a ring waits for.

Owns the following of rows that hand on to one another. Knows a fabric's latencies and one phase.

    4 ranks, 3 steps, hops of 1 1 1 5 us: chains of three are 3, 7, 7, 7 us, not 15
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..schedule import Phase

__all__ = ["slowest_chain"]

I64 = npt.NDArray[np.int64]


def slowest_chain(fabric: Fabric, phase: Phase) -> F64:
    """Return the latency of all steps of a phase of one move: float64[3], s.

    Where every row hands on to one other (a ring), ranks do not meet between steps: what counts
    is the slowest chain of `steps` hops in a row, not the slowest hop `steps` times.
    """
    rows, steps = phase.moves[0].rows, phase.steps
    hop = fabric.latency(rows.src, rows.dst)
    most = np.asarray(hop.max(axis=1) * steps)
    if (hop.min(axis=1) == hop.max(axis=1)).all():
        return most
    starts = np.full((int(rows.channel.max()) + 1) * fabric.nranks, -1, dtype=np.int64)
    first = rows.channel.astype(np.int64) * fabric.nranks
    starts[first + rows.src] = np.arange(len(rows.src))
    following = starts[first + rows.dst]
    if (following < 0).any() or (starts >= 0).sum() < len(rows.src):
        return most
    if np.bincount(following).max() > 1:
        return _doubled(hop, following, steps)
    rings = _all_but_one(hop, following, steps)
    if rings is not None:
        return rings
    chains = [_slowest(hop[:, around], steps) for around in _circles(following)]
    return np.asarray(np.max(chains, axis=0))


def _all_but_one(hop: F64, following: I64, steps: int) -> F64 | None:
    """Return the same of rings all of whose hops but one are done; None where some are not.

    A circle is known by its lowest row, which 1, 2, 4, ... rows further on tell one another.
    """
    lowest, ahead = np.arange(len(following)), following
    for _ in range(len(following).bit_length()):
        lowest, ahead = np.minimum(lowest, lowest[ahead]), ahead[ahead]
    size = np.bincount(lowest, minlength=len(following))
    circles = np.flatnonzero(size)
    rounds, rest = np.divmod(steps, size[circles])
    if (rest != size[circles] - 1).any():
        return None
    found = []
    for row in hop:
        whole, least = np.bincount(lowest, row, len(size)), np.full(len(size), np.inf)
        np.minimum.at(least, lowest, row)
        found.append(((rounds + 1) * whole[circles] - least[circles]).max())
    return np.array(found)


def _doubled(hop: F64, following: I64, steps: int) -> F64:
    """Return the same where several rows hand on to one: sums over 1, 2, 4, ... hops."""
    total, at = np.zeros_like(hop), np.arange(hop.shape[1])
    while steps:
        if steps & 1:
            total, at = total + hop[:, at], following[at]
        hop, following, steps = hop + hop[:, following], following[following], steps >> 1
    return np.asarray(total.max(axis=1))


def _circles(following: I64) -> list[I64]:
    """Return the rows of each circle, in the order in which they follow one another."""
    after, left, found = following.tolist(), [True] * len(following), []
    for start in range(len(after)):
        if left[start]:
            around, at = [], start
            while left[at]:
                left[at] = False
                around.append(at)
                at = after[at]
            found.append(np.array(around))
    return found


def _slowest(hop: F64, steps: int) -> F64:
    """Return the largest sum of `steps` hops in a row around a circle: float64[3]. hop: [3, m]."""
    m = hop.shape[1]
    rounds, rest = divmod(steps, m)
    whole = hop.sum(axis=1)
    if rest == m - 1:  # a ring's: all hops but one
        return np.asarray((rounds + 1) * whole - hop.min(axis=1))
    total = np.cumsum(np.concatenate([np.zeros((3, 1)), hop, hop[:, :rest]], axis=1), axis=1)
    return np.asarray(rounds * whole + (total[:, rest:] - total[:, : m + 1]).max(axis=1))
