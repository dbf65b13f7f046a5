"""Packed lists by key, and the columns every route is told in.

Owns the packing. Knows no link, no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..schedule import I32

__all__ = ["F64", "I64", "Patterns", "Routes", "Table", "expand", "firsts", "joined", "patterns"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def expand(ptr: I64, keys: npt.NDArray[np.integer]) -> tuple[I64, I64]:
    """Return (row, entry): for each key, in order, the entries ptr[key]..ptr[key+1]-1."""
    first = ptr[keys]
    lengths = ptr[np.asarray(keys) + 1] - first
    row = np.repeat(np.arange(len(keys)), lengths)
    ends = np.cumsum(lengths)
    entry = np.arange(len(row)) - np.repeat(ends - lengths - first, lengths)
    return row, entry


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Lists of (link, share) by key, packed: the entries of key k are ptr[k]..ptr[k+1]-1."""

    ptr: I64
    link: I32
    share: F64

    @staticmethod
    def of(
        nkeys: int, entries: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]]
    ) -> Table:
        """Return the packed form of (key, link, share) columns, in order within each key."""
        empty: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]] = [((), (), ())]
        columns = (np.concatenate([np.ravel(c) for c in cs]) for cs in zip(*(entries or empty)))
        key, link, share = columns
        order = np.argsort(key, kind="stable")
        ptr = np.zeros(nkeys + 1, dtype=np.int64)
        np.cumsum(np.bincount(key.astype(np.int64), minlength=nkeys), out=ptr[1:])
        return Table(ptr, link[order].astype(np.int32), share[order].astype(np.float64))

    def entries(self, key: int) -> list[tuple[int, float]]:
        """Return the (link, share) entries of one key."""
        at = slice(self.ptr[key], self.ptr[key + 1])
        return list(zip(self.link[at].tolist(), self.share[at].tolist()))


@dataclass(frozen=True, eq=False, slots=True)
class Routes:
    """What each transfer crosses: entry e of transfer row[e] puts share[e] of it on link[e]."""

    row: I64
    link: I64
    share: F64


def joined(parts: Sequence[tuple[I64, I64, F64]]) -> Routes:
    """Return the routes of several (row, link, share) columns together."""
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Routes(none, none, np.zeros(0))
    return Routes(*(np.concatenate(c) for c in zip(*parts)))


@dataclass(frozen=True, eq=False, slots=True)
class Patterns:
    """The different pairs (i, j) among transfers. of: int64[k], the pair of each."""

    i: I64
    j: I64
    of: I64

    def __len__(self) -> int:
        return len(self.i)

    @property
    def ends(self) -> tuple[I32, I32]:
        """Both columns as int32."""
        return self.i.astype(np.int32), self.j.astype(np.int32)


def patterns(i: npt.NDArray[np.integer], j: npt.NDArray[np.integer], width: int) -> Patterns:
    """Return the different pairs of columns i, j of numbers below `width`, in order."""
    key = np.asarray(i, dtype=np.int64) * width + j
    if width * width > 4 * len(key):
        found, of = np.unique(key, return_inverse=True)
        return Patterns(*np.divmod(found, width), of)
    seen = np.zeros(width * width, dtype=np.int64)
    seen[key] = 1
    found = np.flatnonzero(seen)
    seen[found] = np.arange(len(found))
    return Patterns(*np.divmod(found, width), seen[key])


def firsts(values: F64) -> tuple[I64, I64]:
    """Return where each different value is first, in order, and of each entry which first it is.

    int64[distinct], int64[len(values)], positions. Without sorting: values meet in a table.
    """
    same = np.empty(len(values), dtype=np.int64)
    left, bits = np.arange(len(values)), values.view(np.uint64)
    wide = max(len(values).bit_length() + 1, 8)
    owner, found, turn = np.empty(1 << wide, dtype=np.int64), [], 0x9E3779B97F4A7C15
    while len(left):
        # Of those that meet in a place the first owns it; unlike ones try again elsewhere.
        key = ((bits[left] ^ (bits[left] >> np.uint64(29))) * np.uint64(turn)) >> np.uint64(
            64 - wide
        )
        owner[key[::-1]] = left[::-1]
        own = owner[key]
        like = bits[own] == bits[left]
        same[left[like]] = own[like]
        found.append(left[own == left])
        left, turn = left[~like], (turn * 0xD1342543DE82EF95) % (1 << 64)
    at = np.sort(np.concatenate(found)) if found else same
    return at, same
