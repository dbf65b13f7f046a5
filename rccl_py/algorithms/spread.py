"""Large parts inside a unit, spread over its ranks: what one link cannot carry goes over others.

Owns how much of a part goes straight and how much over each relay. Knows that every two ranks of a
unit have a link of their own (a mesh), not how wide it is.

Four ranks, 9 bytes from 0 to 3 and nothing else::

    0 -> 3          3 bytes
    0 -> 1 -> 3     3 bytes
    0 -> 2 -> 3     3 bytes
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["spread"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_LEVELS = 24  # limits that are tried: a part in 16 million of the largest load


def spread(parts: I64, loads: I64) -> I64:
    """Return the bytes of each part by way: int64[g, g, g], found[i, j, k] of i -> j over k.

    parts : int64[g, g], bytes to bring from i to j. loads : int64[g, g], what their links carry
    besides. Of a part up to a limit goes straight (k = j), the rest in equal shares over all others
    (k another rank); the limit is one with which the busiest link carries least.
    """
    g = len(parts)
    parts = np.where(np.eye(g, dtype=bool), 0, parts)
    straight = (parts + loads).max(initial=0)
    if g < 3 or straight == 0:
        return _ways(parts, parts)
    best, limit, low, high = float(straight), float(straight), 0.0, float(straight)
    for _ in range(_LEVELS):
        tried = (low + high) / 2
        most = _busiest(parts, loads, tried)
        if most < best:
            best, limit = most, tried
        low, high = (low, tried) if most <= tried else (tried, high)
    direct = np.minimum(parts, np.maximum(np.ceil(limit - loads), 0).astype(np.int64))
    return _ways(parts, direct)


def _busiest(parts: I64, loads: I64, limit: float) -> float:
    """Return the load of the busiest link if parts go straight up to `limit`, over all beyond."""
    direct = np.minimum(parts, np.maximum(limit - loads, 0.0))
    each = (parts - direct) / (len(parts) - 2)
    # Over k: i -> k carries the shares of all i's parts but the one for k; k -> j likewise.
    first = each.sum(axis=1)[:, None] - each
    second = each.sum(axis=0)[None, :] - each
    carried = loads + direct + first + second
    np.fill_diagonal(carried, 0.0)
    return float(carried.max())


def _ways(parts: I64, direct: I64) -> I64:
    """Return found[i, j, k]: `direct` at k = j, the rest of the part in shares over others."""
    g = len(parts)
    found = np.zeros((g, g, g), dtype=np.int64)
    i, j, k = np.meshgrid(np.arange(g), np.arange(g), np.arange(g), indexing="ij")
    relay = (k != i) & (k != j) & (i != j)
    rest, others = parts - direct, max(g - 2, 1)
    place = np.cumsum(relay, axis=2) - 1  # of each relay, counted from 0 on
    share = rest[:, :, None] // others + (place < (rest % others)[:, :, None])
    found[relay] = share[relay]
    a, b = np.nonzero(~np.eye(g, dtype=bool))
    found[a, b, b] = direct[a, b]
    return found
