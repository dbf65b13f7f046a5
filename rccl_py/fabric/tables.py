"""Packed lists by key, and the columns every route is told in.

Owns the packing. Knows no link, no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..schedule import I32

__all__ = ["F64", "I64", "Routes", "Table", "expand", "joined"]

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
