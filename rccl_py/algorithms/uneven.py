"""An exchange of unequal parts as data: trips of bytes over relays, the rounds they make, a proof.

Owns Trips (what goes which way), Parcels (one round's rows), how trips become rounds, and the exact
check and the execution of rounds. Knows no fabric and no time; a schedule cannot say this, since
its slots are of one size.

Ranks 0, 1 on one node and 2, 3 on another; rank 0 has 6 bytes for rank 3, the others nothing::

    path (0, 0, 2, 3)  bytes 0..2     round 0            round 1    round 2
    path (0, 1, 3, 3)  bytes 3..5     0 -> 1 bytes 3..5  0 -> 2     2 -> 3
                                                         1 -> 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument, ScheduleError
from ..schedule import I32

__all__ = ["Exchange", "Parcels", "Trips", "checked_counts", "deliver", "exchange_of", "prove"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False, slots=True)
class Trips:
    """Ranges of bytes and the ranks they pass, one entry a range.

    path : int32[m, hops + 1], from the rank that has the bytes to the one that wants them; the same
    rank twice in a row is a hop left out. first, size : int64[m], bytes first..first + size - 1 of
    what path[:, 0] has for path[:, -1]. when : int64[m], the round of the first hop.
    """

    path: I32
    first: I64
    size: I64
    when: I64

    @staticmethod
    def joined(parts: Sequence[Trips]) -> Trips:
        """Return all trips together; shorter paths wait at their ends."""
        longest = max(p.path.shape[1] for p in parts)
        wide = [np.pad(p.path, ((0, 0), (0, longest - p.path.shape[1])), "edge") for p in parts]
        return Trips(
            np.concatenate(wide),
            *(np.concatenate([getattr(p, c) for p in parts]) for c in ("first", "size", "when")),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Parcels:
    """One round: rows with no order among them, all reads before all writes.

    src, dst : int32[m], who hands over to whom. origin, final : int32[m], first, size : int64[m]:
    bytes first..first + size - 1 of what `origin` has for `final`.
    """

    src: I32
    dst: I32
    origin: I32
    final: I32
    first: I64
    size: I64


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """How parts of unequal sizes get where they belong.

    counts : int64[n, n], bytes rank i has for rank j.
    """

    algorithm: str
    counts: I64
    rounds: tuple[Parcels, ...]

    @property
    def nranks(self) -> int:
        """Ranks that take part."""
        return len(self.counts)


def checked_counts(counts: npt.ArrayLike) -> I64:
    """Return `counts` as int64[n, n]; raises InvalidArgument unless it is square and >= 0."""
    found = np.asarray(counts)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found):
        raise InvalidArgument(
            f"counts of an alltoallv: an array of shape {found.shape}: expected [n, n], the bytes "
            "rank i has for rank j"
        )
    if found.dtype.kind not in "iu":
        raise InvalidArgument(f"counts of an alltoallv are {found.dtype}: expected whole numbers")
    bad = np.argwhere(found < 0)
    if len(bad):
        i, j = bad[0].tolist()
        raise InvalidArgument(
            f"counts of an alltoallv: rank {i} has {found[i, j]} bytes for rank {j}: expected 0 or "
            "more"
        )
    return found.astype(np.int64)


def exchange_of(algorithm: str, counts: I64, trips: Trips) -> Exchange:
    """Return the exchange made of `trips`; what a rank has for itself is copied in round 0."""
    own = np.flatnonzero(np.diag(counts)).astype(np.int32)
    every, zero = [_row_columns(trips, h) for h in range(trips.path.shape[1] - 1)], 0 * own
    kept = (zero, own, own, own, own, zero, np.diag(counts)[own])
    when, *columns = (np.concatenate(c) for c in zip(*(c for c in (*every, kept))))
    order = np.lexsort((columns[4], columns[3], columns[2], columns[1], columns[0], when))
    when, columns = when[order], [c[order] for c in columns]
    _, starts = np.unique(when, return_index=True)
    rounds = []
    for a, b in zip(starts.tolist(), [*starts[1:].tolist(), len(when)]):
        src, dst, origin, final = (c[a:b].astype(np.int32) for c in columns[:4])
        rounds.append(Parcels(src, dst, origin, final, columns[4][a:b], columns[5][a:b]))
    return Exchange(algorithm, counts, tuple(rounds))


def _row_columns(trips: Trips, h: int) -> tuple[npt.NDArray[np.integer], ...]:
    """Return (when, src, dst, origin, final, first, size) of the rows of hop number `h`."""
    goes = (trips.path[:, h] != trips.path[:, h + 1]) & (trips.size > 0)
    path = trips.path[goes]
    ends = path[:, h], path[:, h + 1], path[:, 0], path[:, -1]
    return trips.when[goes] + h, *ends, trips.first[goes], trips.size[goes]


# ---- the proof ------------------------------------------------------------------------------

Held = dict[tuple[int, int, int], list[tuple[int, int]]]


def prove(exchange: Exchange) -> None:
    """Prove that every byte arrives where it belongs, exactly once.

    Raises ScheduleError with the round and the row that hands on what is not there, or brings what
    is there already, or with the pair of which something is missing.
    """
    n, held = exchange.nranks, Held()
    for number, parcels in enumerate(exchange.rounds):
        table = [getattr(parcels, c).tolist() for c in Parcels.__slots__]
        for k, (src, dst, origin, final, first, size) in enumerate(zip(*table)):
            where = f"{exchange.algorithm}: round {number} row {k}"
            if not all(0 <= rank < n for rank in (src, dst, origin, final)) or size < 1:
                raise ScheduleError(f"{where}: {size} bytes {src} -> {dst} among {n} ranks")
            what = f"bytes {first}..{first + size - 1} of {origin} for {final}"
            whole = [(0, int(exchange.counts[origin, final]))] if src == origin else None
            if not _covers(whole or held.get((src, origin, final), []), first, first + size):
                raise ScheduleError(f"{where}: rank {src} does not have {what}")
        for k, (_, dst, origin, final, first, size) in enumerate(zip(*table)):
            if (dst == origin) != (origin == final) or not _add(
                held.setdefault((dst, origin, final), []), first, first + size
            ):
                where = f"{exchange.algorithm}: round {number} row {k}"
                what = f"bytes {first}..{first + size - 1} of {origin} for {final}"
                raise ScheduleError(f"{where}: rank {dst} has {what}, or some, already")
    for i, j in np.argwhere(exchange.counts > 0).tolist():
        if held.get((j, i, j), []) != [(0, int(exchange.counts[i, j]))]:
            raise ScheduleError(
                f"{exchange.algorithm}: of {exchange.counts[i, j]} bytes of rank {i} for rank {j} "
                f"there arrive {held.get((j, i, j), [])}"
            )


def _covers(spans: list[tuple[int, int]], low: int, high: int) -> bool:
    return any(a <= low and high <= b for a, b in spans)


def _add(spans: list[tuple[int, int]], low: int, high: int) -> bool:
    """Add a span to disjoint ones, joining neighbours; return False where it overlaps one."""
    if any(a < high and low < b for a, b in spans):
        return False
    before = next((s for s in spans if s[1] == low), None)
    after = next((s for s in spans if s[0] == high), None)
    for old in (before, after):
        if old is not None:
            spans.remove(old)
    spans.append((before[0] if before else low, after[1] if after else high))
    return True


# ---- on data --------------------------------------------------------------------------------


def deliver(exchange: Exchange, parts: Sequence[Sequence[U8]]) -> list[list[U8]]:
    """Return what arrives: found[j][i] is what rank i had for rank j, moved round by round.

    parts[i][j] : uint8[counts[i, j]], read only. Relays hold what they hand on in buffers of their
    own, so that a byte that no row moves is not there (it stays 0).
    """
    n, counts = exchange.nranks, exchange.counts
    found = [[np.zeros(counts[i, j], dtype=np.uint8) for i in range(n)] for j in range(n)]
    relayed: dict[tuple[int, int, int], U8] = {}

    def place(rank: int, origin: int, final: int) -> U8:
        if rank == final:
            return found[final][origin]
        key = rank, origin, final
        if key not in relayed:
            relayed[key] = np.zeros(counts[origin, final], dtype=np.uint8)
        return relayed[key]

    for parcels in exchange.rounds:
        read = [
            (parts[origin][final] if src == origin else place(src, origin, final))[low:high].copy()
            for src, _, origin, final, low, high in _rows(parcels)
        ]
        for (_, dst, origin, final, low, high), data in zip(_rows(parcels), read):
            place(dst, origin, final)[low:high] = data
    return found


def _rows(parcels: Parcels) -> Iterator[tuple[int, ...]]:
    """Yield (src, dst, origin, final, first byte, byte after the last) of every row."""
    ends = (parcels.src, parcels.dst, parcels.origin, parcels.final)
    yield from zip(*(c.tolist() for c in (*ends, parcels.first, parcels.first + parcels.size)))
