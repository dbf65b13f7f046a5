"""Alltoallv over nodes: every door of a node carries its share of what goes to each other node.

Owns which byte leaves by which rank of its node, enters by which of the other, and in which
round: the shape of FAST (arXiv 2505.09764). A rank is a door: it stands for the NIC it uses. Knows
how wide the doors are as weights, no fabric and no time.

Node 0 (ranks 0, 1) has 6 bytes for node 1 (ranks 2, 3), all of them rank 0's and for rank 3::

    hand out      rank 0 keeps 3, gives 3 to rank 1
    cross         0 -> 2 and 1 -> 3, three bytes each, at once
    collect       rank 2 hands its 3 bytes to rank 3

Lines are how it is computed: all bytes between two nodes side by side, cut where their sender
changes, where a door is full, where a stage ends. Cutting one line at two sets of places gives the
ranges of bytes that are alike in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .matching import Stages, greedy_order, stages_of
from .spread import spread
from .uneven import Exchange, Trips, exchange_of

__all__ = ["Doors", "balanced", "between_units", "direct", "greedy", "staged"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_LONGEST = 8  # stages among which what stays inside units is shared out


@dataclass(frozen=True, eq=False)
class Doors:
    """Where ranks stand. unit : int64[n], the node of each rank, numbered from 0 on.

    out, into : float64[n], the relative width of each rank's door; at least one of a unit is open.
    meshed: whether every two ranks of a unit have a link of their own.
    """

    unit: I64
    out: F64
    into: F64
    meshed: bool = False

    @property
    def count(self) -> int:
        """Units."""
        return int(self.unit.max()) + 1


def direct(counts: I64) -> Exchange:
    """Return the exchange in which every rank sends all it has at once."""
    away = counts - np.diag(np.diag(counts))
    src, dst = (a.astype(np.int32) for a in np.nonzero(away))
    zero = np.zeros(len(src), dtype=np.int64)
    trips = Trips(np.stack([src, dst], axis=1), zero, counts[src, dst], zero)
    return exchange_of("direct", counts, trips)


def between_units(counts: I64, unit: I64) -> I64:
    """Return the bytes from unit to unit: int64[u, u], nothing within one."""
    n = int(unit.max()) + 1
    key = unit[:, None] * n + unit[None, :]
    order = np.argsort(key, axis=None, kind="stable")
    starts = np.searchsorted(key.ravel()[order], np.arange(n * n))
    sums = np.concatenate([[0], np.cumsum(counts.ravel()[order])])
    ends = np.append(starts[1:], counts.size)
    found = np.asarray(sums[ends] - sums[starts], dtype=np.int64).reshape(n, n)
    np.fill_diagonal(found, 0)
    return found


def balanced(counts: I64, doors: Doors, pieces: int = 1) -> Exchange:
    """Return the exchange over balanced doors, all nodes at once, in `pieces` that overlap.

    While a piece crosses, the next is handed out and the one before collected.
    """
    demand = between_units(counts, doors.unit)
    a, b = np.nonzero(demand)
    size = demand[a, b]
    k = np.repeat(np.arange(pieces), len(a))
    src, dst, whole = (np.tile(c, pieces) for c in (a, b, size))
    ends = _part(whole, k, pieces), _part(whole, k + 1, pieces)
    stages = Stages(k, src, dst, *ends, count=pieces if len(a) else 0)
    return exchange_of(f"balanced-{pieces}", counts, _trips(counts, doors, stages))


def staged(counts: I64, doors: Doors) -> Exchange:
    """Return the exchange over balanced doors in stages of one-to-one pairs of nodes.

    No two nodes ever send to one at a time, and the crossings last together as long as the busiest
    node must send or receive (rccl_py.algorithms.matching.stages_of).
    """
    stages = _shortened(stages_of(between_units(counts, doors.unit)))
    return exchange_of("staged", counts, _trips(counts, doors, stages))


def greedy(counts: I64, doors: Doors) -> Exchange:
    """Return the exchange over balanced doors in which a pair of idle nodes never waits.

    It ends within twice the time of the busiest node (rccl_py.algorithms.matching.greedy_order).
    """
    demand = between_units(counts, doors.unit)
    busiest = max(int(demand.sum(axis=axis).max()) for axis in (0, 1))
    stages, _ = greedy_order(demand, -(-busiest // _LONGEST))
    return exchange_of("greedy", counts, _trips(counts, doors, stages))


def _shortened(stages: Stages) -> Stages:
    """Return stages with the long ones cut, so that none lasts over 1 / _LONGEST of them all.

    What is handed out before the first crossing, and collected after the last, is one stage.
    """
    if not stages.count:
        return stages
    lasts = np.zeros(stages.count, dtype=np.int64)
    np.maximum.at(lasts, stages.stage, stages.high - stages.low)
    into = -(-lasts * _LONGEST // int(lasts.sum()))
    first = np.cumsum(into) - into
    each = into[stages.stage]
    entry = np.repeat(np.arange(len(each)), each)
    k = np.arange(len(entry)) - np.repeat(np.cumsum(each) - each, each)
    size = (stages.high - stages.low)[entry]
    low = stages.low[entry] + _part(size, k, each[entry])
    high = stages.low[entry] + _part(size, k + 1, each[entry])
    stage = first[stages.stage[entry]] + k
    return Stages(stage, stages.src[entry], stages.dst[entry], low, high, int(into.sum()))


def _part(whole: I64, k: I64, pieces: int | I64) -> I64:
    """Return k / pieces of `whole`, rounded down, without overflow."""
    return whole // pieces * k + whole % pieces * k // pieces


# ---- lines ----------------------------------------------------------------------------------


def _cut(first: I64, second: I64) -> tuple[I64, I64, I64]:
    """Cut one line at the ends of two partitions of it.

    first, second : int64, where their parts end, in order. Returns (size, part of the first, part
    of the second) of every range between neighbouring cuts.
    """
    edges = np.union1d(first, second)
    edges = edges[edges > 0]
    size = np.diff(edges, prepend=0)
    return size, np.searchsorted(first, edges), np.searchsorted(second, edges)


@dataclass(frozen=True, eq=False)
class _Ranges:
    """Ranges of bytes that go from unit to unit. src, dst, out, into : int64, ranks."""

    src: I64
    dst: I64
    out: I64
    into: I64
    first: I64
    size: I64

    def cut(self, ends: I64) -> tuple[_Ranges, I64]:
        """Return the ranges cut at `ends` of the line they make, and the part each is in."""
        size, at, part = _cut(np.cumsum(self.size), ends)
        before = np.cumsum(size) - size - (np.cumsum(self.size) - self.size)[at]
        found = self.taken(at)
        columns = found.src, found.dst, found.out, found.into
        return _Ranges(*columns, found.first + before, size), part

    def taken(self, which: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> _Ranges:
        """Return some of the ranges, or all in another order."""
        return _Ranges(*(getattr(self, c)[which] for c in self.__dataclass_fields__))


def _shares(total: I64, weight: F64) -> I64:
    """Return whole shares of total : int64[k] by weight : float64[k, g], no row of it all 0."""
    upto = np.cumsum(weight, axis=1)
    part = upto / upto[:, -1:]  # exactly 1 from the last door that is open on
    ends = np.floor(total[:, None] * part).astype(np.int64)
    ends[:, -1] = total
    shares = np.diff(np.minimum(ends, total[:, None]), axis=1, prepend=0)
    return np.asarray(shares, dtype=np.int64)


class _Places:
    """The ranks of each unit: table : int64[u, g], -1 where a unit has fewer. side[rank]: where."""

    def __init__(self, doors: Doors) -> None:
        order = np.argsort(doors.unit, kind="stable")
        sizes = np.bincount(doors.unit, minlength=doors.count)
        self.g = int(sizes.max())
        self.side = np.empty(len(order), dtype=np.int64)
        self.side[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.table = np.full((doors.count, self.g), -1, dtype=np.int64)
        self.table[doors.unit, self.side] = np.arange(len(order))

    def widths(self, width: F64) -> F64:
        """Return the widths of each unit's doors: float64[u, g], 0 where there is none."""
        return np.where(self.table >= 0, width[self.table], 0.0)


def _trips(counts: I64, doors: Doors, stages: Stages) -> Trips:
    """Return the trips of all bytes: between units by their doors, in `stages`; inside at once."""
    across = _at_doors(counts, doors)
    demand = between_units(counts, doors.unit)
    number = doors.unit[across.out] * doors.count + doors.unit[across.into]
    lane = (number * len(counts) + across.out) * len(counts) + across.into
    order = np.argsort(lane, kind="stable")
    ranges, when = _in_stages(across.taken(order), lane[order], number[order], demand, stages)
    path = np.stack([ranges.src, ranges.out, ranges.into, ranges.dst], axis=1).astype(np.int32)
    return Trips.joined(
        [Trips(path, ranges.first, ranges.size, when), _inside(counts, doors, stages, across)]
    )


def _at_doors(counts: I64, doors: Doors) -> _Ranges:
    """Return all bytes between units with the doors they leave and enter by.

    A rank keeps of its own what its door can take, beginning with what is for its peer (the rank
    in the same place of the other unit); the rest goes to the doors that have room, in order.
    """
    places, n = _Places(doors), len(counts)
    src, dst = np.nonzero(counts * (doors.unit[:, None] != doors.unit[None, :]))
    pair = doors.unit[src] * doors.count + doors.unit[dst]
    turn = (places.side[dst] - places.side[src]) % places.g
    order = np.lexsort((turn, places.side[src], pair))
    src, dst, pair = src[order], dst[order], pair[order]
    line = _Ranges(src, dst, src, dst, np.zeros(len(src), dtype=np.int64), counts[src, dst])
    if not len(src):
        return line
    # Row p: one pair of units with something to send; column l: a rank of the first of the two.
    number, of = np.unique(pair, return_inverse=True)
    own = np.zeros((len(number), places.g), dtype=np.int64)
    np.add.at(own, (of, places.side[src]), counts[src, dst])
    from_unit = number // doors.count
    room = _shares(own.sum(axis=1), places.widths(doors.out)[from_unit])
    keep = np.minimum(own, room)
    line, part = line.cut(np.cumsum(np.stack([keep, own - keep], axis=2).ravel()))
    stays = part % 2 == 0
    rest = line.taken(~stays)
    rest, door = rest.cut(np.cumsum((room - keep).ravel()))
    out = places.table[from_unit[door // places.g], door % places.g]
    rest = _Ranges(rest.src, rest.dst, out, rest.into, rest.first, rest.size)
    every = _Ranges(*(np.concatenate([getattr(line.taken(stays), c), getattr(rest, c)])
                      for c in _Ranges.__dataclass_fields__))  # fmt: skip
    return _entering(every, doors, places, n)


def _entering(line: _Ranges, doors: Doors, places: _Places, n: int) -> _Ranges:
    """Return the ranges with the door each enters by: the peer's, where doors are as wide."""
    pair = doors.unit[line.src] * doors.count + doors.unit[line.dst]
    order = np.lexsort((line.first, line.dst, line.src, places.side[line.out], pair))
    line, pair = line.taken(order), pair[order]
    number, of = np.unique(pair, return_inverse=True)
    total = np.zeros(len(number), dtype=np.int64)
    np.add.at(total, of, line.size)
    to_unit = number % doors.count
    room = _shares(total, places.widths(doors.into)[to_unit])
    line, door = line.cut(np.cumsum(room.ravel()))
    into = places.table[to_unit[door // places.g], door % places.g]
    return _Ranges(line.src, line.dst, line.out, into, line.first, line.size)


def _in_stages(
    line: _Ranges, lane: I64, number: I64, demand: I64, stages: Stages
) -> tuple[_Ranges, I64]:
    """Return the ranges cut by stages, and the stage of each: of every lane the same part.

    lane: of each range, from door to door, in order; number: its pair of units.
    """
    if not len(line.src):
        return line, np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.diff(lane, prepend=-1))
    length = np.add.reduceat(line.size, starts)
    served = stages.src * len(demand) + stages.dst
    order = np.lexsort((stages.low, served))
    ptr = np.searchsorted(served[order], np.arange(demand.size + 1))
    first, last = ptr[number[starts]], ptr[number[starts] + 1]
    each = last - first
    entry = order[np.repeat(first - (np.cumsum(each) - each), each) + np.arange(each.sum())]
    whole = np.repeat(length, each)
    part = stages.high[entry] / demand.ravel()[served[entry]]
    ends = np.where(part >= 1, whole, np.minimum(np.floor(whole * part), whole)).astype(np.int64)
    ranges, at = line.cut(ends + np.repeat(np.cumsum(length) - length, each))
    # A stage too short for a byte of a lane ends where the one before does: the first is taken,
    # which has that byte.
    return ranges, stages.stage[entry[at]]


def _inside(counts: I64, doors: Doors, stages: Stages, across: _Ranges) -> Trips:
    """Return the trips of what stays inside units, shared out over the longest stages."""
    src, relay, dst, first, size = _ways_inside(counts, doors, across)
    lasts = np.zeros(max(stages.count, 1), dtype=np.int64)
    np.maximum.at(lasts, stages.stage, stages.high - stages.low)
    longest = np.sort(np.argsort(-lasts, kind="stable")[:_LONGEST])
    weight = np.broadcast_to(np.maximum(lasts[longest], 1).astype(np.float64),
                             (len(src), len(longest)))  # fmt: skip
    pieces = _shares(size, weight)
    starts = first[:, None] + np.cumsum(pieces, axis=1) - pieces
    path = np.repeat(np.stack([src, relay, dst], axis=1), len(longest), axis=0).astype(np.int32)
    # In the round of the crossing: one after that of handing out.
    when = np.tile(longest + int(stages.count > 0), len(src))
    return Trips(path, starts.ravel(), pieces.ravel(), when)


def _ways_inside(counts: I64, doors: Doors, across: _Ranges) -> tuple[I64, I64, I64, I64, I64]:
    """Return (src, relay, dst, first, size) of the bytes that stay inside; relay dst: none."""
    if not doors.meshed:
        src, dst = np.nonzero(counts * (doors.unit[:, None] == doors.unit[None, :]))
        keep = src != dst
        src, dst = src[keep], dst[keep]
        return src, dst, dst, np.zeros(len(src), dtype=np.int64), counts[src, dst]
    loads = np.zeros_like(counts)
    np.add.at(loads, (across.src, across.out), across.size)
    np.add.at(loads, (across.into, across.dst), across.size)
    found = []
    for unit in range(doors.count):
        ranks = np.flatnonzero(doors.unit == unit)
        square = np.ix_(ranks, ranks)
        ways = spread(counts[square], loads[square])
        i, j, k = np.nonzero(ways)
        before = np.cumsum(ways, axis=2) - ways
        found.append((ranks[i], ranks[k], ranks[j], before[i, j, k], ways[i, j, k]))
    src, relay, dst, first, size = (np.concatenate(c) for c in zip(*found))
    return src, relay, dst, first, size
