"""Moves of all ranks that leave a machine as it is: then one rank's trees serve all.

Owns the search for such moves. Ranks are put on a grid, such as nodes x places or the sides of a
torus; a step along an axis that leaves all prices of pairs as they are is a move. What is packed
does not rest on it: the seconds of a tree and its images are added up link by link, and the proof
is made on the whole machine. Knows no names.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import numpy.typing as npt

from ...algorithms.flat import Ints
from .ways import Ways

__all__ = ["groups"]


def _sides(n: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write n as an ordered product of numbers above 1."""
    if n > 1:
        yield (n,)
    for first in range(2, n // 2 + 1):
        if n % first == 0:
            yield from ((first, *rest) for rest in _sides(n // first))


def _alike(ways: Ways) -> npt.NDArray[np.int64]:
    """Return the number of each pair's kind: int64[n, n]; alike pairs keep as many things as
    busy for as long, things that are alike by how many pairs use them, and for how long.
    """
    n, matrix = ways.n, ways.matrix
    sums = np.asarray(matrix.sum(axis=0)).ravel()
    uses = np.bincount(matrix.indices, minlength=matrix.shape[1])
    top = max(float(matrix.data.max(initial=0.0)), 1e-300)
    kind = np.round(sums / top, 6) * 1e4 + uses
    row = np.repeat(np.arange(n * n), np.diff(matrix.indptr))
    each = np.round(matrix.data / top, 9)
    marks = np.zeros((n * n, 4))
    for k, value in enumerate((each, each**2, each * kind[matrix.indices])):
        marks[:, k] = np.bincount(row, weights=value, minlength=n * n)
    marks[:, 3] = ways.joined.ravel()
    marks /= np.maximum(marks.max(axis=0), 1e-300)
    found = np.unique(np.round(marks, 7), axis=0, return_inverse=True)[1]
    return np.asarray(found, dtype=np.int64).reshape(n, n)


def groups(ways: Ways, order: Ints) -> list[npt.NDArray[np.int64]]:
    """Return groups of moves, the largest first, the last the one that moves nothing.

    order : int[n], the ranks as they stand, node by node. Each group: int64[m, n], where each rank
    goes; no move but the first leaves any rank in place.
    """
    n, kinds = ways.n, _alike(ways)
    best: list[npt.NDArray[np.int64]] = []
    for sides in _sides(n):
        grid = np.asarray(order, dtype=np.int64).reshape(sides)
        axes = [axis for axis in range(len(sides)) if _holds(kinds, grid, axis)]
        size = prod(sides[axis] for axis in axes)
        if axes and (not best or size > len(best[0])):
            best = [_moves(grid, axes), *(_moves(grid, [a]) for a in axes if len(axes) > 1)]
    return [*best, np.arange(n)[None, :]]


def _holds(kinds: Ints, grid: Ints, axis: int) -> bool:
    image = np.empty(grid.size, dtype=np.int64)
    image[grid.ravel()] = np.roll(grid, -1, axis=axis).ravel()
    return bool((kinds[np.ix_(image, image)] == kinds).all())


def _moves(grid: Ints, axes: list[int]) -> npt.NDArray[np.int64]:
    """Return all steps along these axes together: int64[m, n]."""
    found = []
    for steps in np.ndindex(*(grid.shape[a] for a in axes)):
        image = np.empty(grid.size, dtype=np.int64)
        image[grid.ravel()] = np.roll(grid, [-s for s in steps], axis=axes).ravel()
        found.append(image)
    return np.array(found)
