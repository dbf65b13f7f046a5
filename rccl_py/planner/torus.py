"""Tori found from who is joined to whom: a product of rings, whatever its vertices are called.

Owns the search. Knows a matrix of direct links, no fabric, no rank and no name. A torus is told by
its squares: two neighbours of a vertex lie in different dimensions where they have a second common
neighbour (the corner of a square), in one dimension where they have none::

    d - e - f      b and d turn at a: e closes the square      grid  a b c
    |   |   |      a and c do not turn at b: b, and no other,        d e f
    a - b - c      joins them: one dimension goes on

A ring of four is itself a square: as a graph it is two dimensions of two, so those are found and
put together again in pairs of one bandwidth.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from ..fabric import F64
from ..schedule import I32

__all__ = ["torus_grid"]

_MOST = 8192  # vertices a torus is looked for among
_DEGREE = 12  # neighbours a vertex of one may have: six dimensions

Near = list[list[int]]
Cycle = list[int]


def torus_grid(capacity: F64) -> tuple[I32 | None, str]:
    """Return the vertices where they stand in a torus, or None and why there is none.

    capacity : float64[n, n] B/s of direct links, 0 where there is none. The grid is int32[d_0,
    d_1, ...], the longest dimension first, every neighbour in it (around its ends too) joined,
    nobody else, and all links of a dimension alike: this is verified, link by link.
    """
    n = len(capacity)
    if n < 3 or n > _MOST:
        return None, "fewer than three ranks" if n < 3 else f"more than {_MOST} ranks"
    if not np.array_equal(capacity, capacity.T):
        return None, "links that are wider one way than back"
    near = [np.flatnonzero(row).tolist() for row in capacity]
    ways = sorted({len(v) for v in near})
    if len(ways) > 1:
        few = min(range(n), key=lambda v: len(near[v]))
        return None, f"rank {few} has {ways[0]} neighbours, others up to {ways[-1]}"
    if not 2 <= ways[0] <= _DEGREE:
        return None, f"{ways[0]} neighbours each"
    cycles = _dimensions(near, capacity)
    if cycles is None or prod(map(len, cycles)) != n:
        return None, "its links are no product of rings"
    cycles.sort(key=lambda c: (-len(c), -capacity[c[0], c[1]], c[1:]))
    grid = _filled(near, cycles)
    if grid is None or not _holds(grid, capacity):
        return None, "its links are no product of rings, all links of each alike"
    return grid.astype(np.int32), ""


def _common(near: Near, one: int, two: int) -> set[int]:
    return set(near[one]).intersection(near[two])


def _dimensions(near: Near, capacity: F64) -> list[Cycle] | None:
    """Return the ring through vertex 0 in each dimension, each from 0 on."""
    cycles: list[Cycle] = []
    left = list(near[0])
    while left:
        one = left.pop(0)
        mate = next((two for two in left if _opposite(near, one, two)), None)
        if mate is None:
            cycles.append([0, one])
            continue
        left.remove(mate)
        cycle = [0, one, mate] if mate in near[one] else _walked(near, one)
        if cycle is None or cycle[-1] != mate:
            return None
        cycles.append(cycle)
    return _fours(near, capacity, cycles)


def _opposite(near: Near, one: int, two: int) -> bool:
    """Return whether two neighbours of vertex 0 are before and after it in one ring."""
    return two in near[one] or len(_common(near, one, two)) == 1


def _walked(near: Near, after: int) -> Cycle | None:
    """Return the ring of five or more that goes from vertex 0 to `after`, and straight on."""
    cycle = [0, after]
    while len(cycle) <= len(near):
        behind, here = cycle[-2:]
        ahead = [
            v
            for v in near[here]
            if v != behind and v not in near[behind] and _common(near, v, behind) == {here}
        ]
        if len(ahead) != 1:
            return None
        if ahead[0] == 0:
            return cycle
        cycle.append(ahead[0])
    return None


def _fours(near: Near, capacity: F64, cycles: list[Cycle]) -> list[Cycle] | None:
    """Return the rings with those of two put together in pairs: rings of four of one bandwidth."""
    found = [c for c in cycles if len(c) > 2]
    pairs = sorted((c for c in cycles if len(c) == 2), key=lambda c: (-capacity[0, c[1]], c[1]))
    while pairs:
        (_, one), *pairs = pairs
        if pairs and capacity[0, one] == capacity[0, pairs[0][1]]:
            two = pairs.pop(0)[1]
            corner = _common(near, one, two) - {0}
            if len(corner) != 1:
                return None
            found.append([0, one, *corner, two])
        else:
            found.append([0, one])
    return found


def _filled(near: Near, cycles: list[Cycle]) -> npt.NDArray[np.int64] | None:
    """Return the grid the rings through vertex 0 span: each further place closes a square."""
    dims = tuple(map(len, cycles))
    grid = np.full(dims, -1, dtype=np.int64)
    for place in product(*map(range, dims)):
        moved = [d for d, c in enumerate(place) if c]
        if len(moved) < 2:
            grid[place] = cycles[moved[0]][place[moved[0]]] if moved else 0
            continue
        back = [tuple(c - (e == d) for e, c in enumerate(place)) for d in moved[:2]]
        both = tuple(c - (e in moved[:2]) for e, c in enumerate(place))
        corner = _common(near, int(grid[back[0]]), int(grid[back[1]])) - {int(grid[both])}
        if len(corner) != 1:
            return None
        grid[place] = corner.pop()
    return grid


def _holds(grid: npt.NDArray[np.int64], capacity: F64) -> bool:
    """Return whether neighbours in the grid are those that are joined, alike in each dimension."""
    if len(np.unique(grid)) != grid.size:
        return False
    joined = np.zeros(capacity.shape, dtype=bool)
    for d in range(grid.ndim):
        ahead = np.roll(grid, -1, axis=d)
        widths = capacity[grid, ahead]
        if (widths != widths.flat[0]).any():
            return False
        joined[grid, ahead] = joined[ahead, grid] = True
    return bool(np.array_equal(joined, capacity > 0))
