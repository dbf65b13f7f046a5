"""Test data whose every result is known: fill buffers with it, and count wrong elements.

Owns what element i of rank r's buffer holds and what any collective must make of it. Each rank
fills and checks its own buffers, with no communication. Knows no schedule and no transport.

One table of `period` values (a prime number of them) serves all ranks; rank r reads it from
spin(r) on, so a buffer of any length is one row copied over and over::

    element         0  1  2  3  4  5  6  7  ...          table  a b c d e     (period 5)
    rank 0, spin 0  a  b  c  d  e  a  b  c
    rank 1, spin 1  b  c  d  e  a  b  c  d               reduced row: one period of
    rank 2, spin 3  d  e  a  b  c  d  e  a               a+b+d, b+c+e, c+d+a, ...

The period divides no distance between two blocks, so a block in the wrong place is wrong.
Reductions are exact in the type for every order and any number of ranks: float sums stay below
2**mantissa, products are powers of two within range, integers wrap. A result is compared bit by
bit, so NaN or the other zero is wrong as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument
from .reduce_ops import ReduceOp, finish

__all__ = ["Pattern", "fill", "pattern", "period_for", "wrong"]

Array = npt.NDArray[Any]

_PERIODS = (4099, 4127)
"""Primes p with p - 1 no multiple of 5, so that r -> r**5 is a permutation modulo p."""

_FLOATS = {
    "float16": (11, 15),
    "float32": (24, 127),
    "float64": (53, 1023),
    "bfloat16": (8, 127),
    "float8_e4m3fn": (4, 8),
    "float8_e5m2": (3, 15),
}
"""Significand bits and largest exponent: IEEE 754-2008 table 3.5; bfloat16: Intel white paper
338302 (2018); 8 bits: OCP 8-bit floating point specification (2023), table 1."""

_TILE = 16  # periods copied or compared at a time: 256 KiB of float, within a second-level cache
_LARGEST = 127  # of a float's integer values: enough to tell rows apart


def period_for(count: int) -> int:
    """Return the period for blocks of `count` elements: a prime that does not divide `count`."""
    return _PERIODS[0] if count % _PERIODS[0] else _PERIODS[1]


def _spin(rank: int, period: int) -> int:
    # A power, and no multiple of the rank: rank and block must not make up for each other.
    return pow(rank + 1009, 5, period)


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """What every rank's buffer holds, element by element, and what their reduction is.

    values : dtype[2 * period], the table twice over, so that a row is a view. `op` is None for a
    collective that only copies. Ranks from `contributors` on contribute zeros or ones, the
    neutral element, where the type is too small for more.
    """

    values: Array
    op: ReduceOp | None
    nranks: int
    contributors: int
    repetition: int = 0

    @property
    def period(self) -> int:
        """Elements after which a buffer repeats."""
        return len(self.values) // 2

    def row(self, rank: int) -> Array:
        """Return dtype[period]: element i of `rank`'s buffer is row[i % period]."""
        if rank >= self.contributors:
            neutral = 1 if self.op is ReduceOp.PROD else 0
            return np.full(self.period, neutral).astype(self.values.dtype)
        start = (_spin(rank, self.period) + 1031 * self.repetition) % self.period
        row: Array = self.values[start : start + self.period]
        return row

    def reduced(self) -> Array:
        """Return dtype[period]: the reduction of all ranks' rows, in the order of the ranks."""
        if self.op is None:
            raise InvalidArgument("this pattern is for copying: it has no reduction")
        total: Array = self.row(0).copy()
        # Rows repeat after a period of ranks, and a repeated row changes no minimum or maximum.
        repeats = self.op in (ReduceOp.MIN, ReduceOp.MAX)
        last = min(self.nranks, self.period) if repeats else self.contributors
        for rank in range(1, last):
            self.op.ufunc(total, self.row(rank), out=total)
        finish(self.op, total, self.nranks)
        return total


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in _FLOATS


def _bits(dtype: np.dtype[Any], period: int, draw: np.random.Generator) -> Array:
    """Return random bits as finite values of the type."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    bits = draw.integers(0, np.iinfo(unsigned).max, period, dtype=unsigned, endpoint=True)
    if _is_float(dtype):
        # Without its top bit an exponent is below the one of infinity and NaN.
        bits &= unsigned.type(np.iinfo(unsigned).max ^ (1 << (8 * dtype.itemsize - 2)))
    values: Array = bits.view(dtype)
    return values


def _largest_total(table: npt.NDArray[np.int64], n: int, period: int) -> int:
    total = np.zeros(period, dtype=np.int64)
    twice = np.concatenate([table, table])
    for rank in range(n):
        start = _spin(rank, period)
        total += twice[start : start + period]
    return int(total.max())


def _counts(n: int, period: int, cap: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return int64[period] of values >= 0 whose total over `n` ranks is nowhere above `cap`."""
    if cap >= n:
        return draw.integers(0, min(_LARGEST, cap // n), period, endpoint=True)
    # Too many ranks for all to contribute to every element: thin out until the fullest fits.
    share, chance = cap / n, draw.random(period)
    while True:
        table = (chance < share).astype(np.int64)
        if _largest_total(table, n, period) <= cap:
            return table
        share *= 0.8


def _reducible(
    dtype: np.dtype[Any], op: ReduceOp, n: int, period: int, draw: np.random.Generator
) -> Array:
    """Return the table of a reduction over `n` ranks that is exact in a float type."""
    digits, exponent = _FLOATS[dtype.name]
    if op is ReduceOp.PROD:
        table = 2 ** np.minimum(_counts(n, period, exponent, draw), 3)
    elif op in (ReduceOp.SUM, ReduceOp.AVG):
        table = _counts(n, period, 1 << digits, draw)
    else:
        top = min(_LARGEST, (1 << digits) - 1)
        table = draw.integers(-top, top, period, endpoint=True)
    return table.astype(np.float64).astype(dtype)


def pattern(
    dtype: np.dtype[Any],
    op: ReduceOp | None,
    nranks: int,
    *,
    period: int = _PERIODS[0],
    repetition: int = 0,
) -> Pattern:
    """Return the pattern for `nranks` ranks of a reduction, or of a copy when `op` is None."""
    draw = np.random.default_rng([nranks, period])
    contributors = nranks
    if op is None or not _is_float(dtype):
        table = _bits(dtype, period, draw)
        if op is ReduceOp.PROD:
            table |= dtype.type(1)  # odd numbers: a product that never collapses to zero
    else:
        if op not in (ReduceOp.MIN, ReduceOp.MAX):
            contributors = min(nranks, period)
        table = _reducible(dtype, op, contributors, period, draw)
    return Pattern(np.concatenate([table, table]), op, nranks, contributors, repetition)


def _tile(row: Array, offset: int, length: int) -> Array:
    periods = min(_TILE, -(-length // len(row)))
    return np.tile(np.roll(row, -(offset % len(row))), max(periods, 1))


def _pieces(array: Array, row: Array, offset: int, visit: Callable[[Array, Array], int]) -> int:
    """Return the sum of visit(piece of array, what belongs there) over all pieces."""
    tile = _tile(row, offset, len(array))
    return sum(
        visit(array[start : start + len(tile)], tile[: len(array) - start])
        for start in range(0, len(array), len(tile))
    )


def _copied(piece: Array, content: Array) -> int:
    piece[...] = content
    return 0


def _differing(piece: Array, content: Array) -> int:
    return int(np.count_nonzero(piece != content))


def fill(array: Array, row: Array, offset: int = 0) -> None:
    """Write element `offset` + i of a row's buffer to array[i], for all of a 1-d array."""
    _pieces(array, row, offset, _copied)


def wrong(array: Array, row: Array, offset: int = 0) -> int:
    """Return how many elements of a contiguous 1-d array differ from fill(array, row, offset).

    Bits are compared: one flipped bit is a wrong element, and so is any NaN but the expected.
    """
    if array.dtype != row.dtype:
        raise InvalidArgument(f"a buffer of {array.dtype} was to be checked against {row.dtype}")
    unsigned = f"u{array.dtype.itemsize}"
    return _pieces(array.view(unsigned), row.view(unsigned), offset, _differing)
