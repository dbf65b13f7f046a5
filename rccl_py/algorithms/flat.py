"""Building blocks over groups of ranks that all do the same thing at once.

Owns ring, direct, circulant and tree traffic inside groups. Knows no collective's buffers: a
caller says which slots. Shapes: group : int[G, m], the ranks of each group in order; own : int[G *
times, m], the first slots of the chunks that position ends up owning (the same slot numbers at
every rank), `times` of every group, or what makes them; width, channel : scalars or int[G]. All
slots lie in one range that already holds the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..schedule import (
    COPY,
    I32,
    REDUCE,
    AllPairs,
    Layout,
    Move,
    Pairs,
    Phase,
    Rows,
    at,
    changed,
    rows,
)

__all__ = [
    "Ints",
    "Own",
    "circulant_allgather",
    "circulant_reduce_scatter",
    "depths",
    "direct_allgather",
    "direct_reduce_scatter",
    "handed_in",
    "landed",
    "local_copy",
    "ring_allgather",
    "ring_reduce_scatter",
    "tree_broadcast",
    "tree_reduce",
]

Ints = npt.NDArray[np.integer]
Own = Ints | Callable[[], Ints]
"""First slots, or what makes them where they are many: they are made when data moves."""


def local_copy(
    ranks: npt.ArrayLike, src_slot: npt.ArrayLike, dst_slot: npt.ArrayLike, count: npt.ArrayLike
) -> Phase:
    """Return the phase in which each rank copies `count` slots within itself."""
    return Phase((at(rows(ranks, ranks, count=count), src_slot, dst_slot),))


def handed_in(layout: Layout, n: int) -> Phase:
    """Return the phase that makes a reduce_scatter's partial sums: its own block in the output."""
    ranks, output = np.arange(n), np.full(n, layout.output())
    every, mine = n * layout.chunks, layout.chunks
    counts = np.repeat([every, mine], n)
    return local_copy(
        np.concatenate([ranks, ranks]),
        np.concatenate([np.full(n, layout.input()), layout.input(ranks)]),
        np.concatenate([np.full(n, layout.scratch_block()), output]),
        counts,
    )


def _land(move: Move, first: int, width: int, to: int) -> Move:
    slots, whole = move.slots, move.rows

    def home(rank: I32, slot: I32) -> I32:
        inside = slot - (rank * width + first)
        return np.where((inside >= 0) & (inside < width), inside + to, slot).astype(np.int32)

    def moved(s: int) -> tuple[I32, I32]:
        src_slot, dst_slot = slots(s)
        return home(whole.each.src, src_slot), home(whole.each.dst, dst_slot)

    return Move(whole, moved)


def landed(phases: Iterable[Phase], first: int, width: int, to: int) -> Iterator[Phase]:
    """Yield `phases` with the block of rank r, at r, in the slots from `to` on.

    It is in those from first + r * width on elsewhere: a sum grows where it stays. No row may
    reach beyond a block.
    """
    for phase in phases:
        moves = changed(phase.moves, partial(_land, first=first, width=width, to=to))
        yield Phase(moves, phase.steps, phase.made_of)


def _per_row(value: npt.ArrayLike, group: Ints) -> npt.NDArray[np.integer]:
    """Return a per-group value for every row, in the order of _flat: int[m * G]."""
    per_group = np.broadcast_to(np.asarray(value), (group.shape[0],))
    return np.tile(per_group, group.shape[1])


def _flat(by_group: Ints) -> Ints:
    """Return int[G, m, ...] as rows, position by position.

    Groups over the same ranks then give neighbouring rows the same two ends, and whoever adds up
    loads can take them as one message.
    """
    return np.swapaxes(by_group, 0, 1).ravel()


def _ring_rows(
    group: Ints, width: npt.ArrayLike, channel: npt.ArrayLike, op: int, times: int
) -> Rows:
    return rows(
        _flat(group),
        _flat(np.roll(group, -1, axis=1)),
        count=_per_row(width, group),
        op=op,
        channel=_per_row(channel, group),
        times=times,
    )


def _ring(
    group: Ints,
    own: Own,
    width: npt.ArrayLike,
    channel: npt.ArrayLike,
    op: int,
    behind: int,
    times: int,
) -> Iterator[Phase]:
    m = group.shape[1]
    if m < 2:
        return
    chunks, groups = _chunks(own), group.shape[0] * times

    def slots(s: int) -> tuple[I32, I32]:
        start = -(s + behind) % m * groups  # chunks rolled by s + behind
        slot = chunks()[start : start + m * groups]
        return slot, slot

    yield Phase((Move(_ring_rows(group, width, channel, op, times), slots),), m - 1)


def ring_reduce_scatter(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield m-1 steps: at step s position i sends chunk i-1-s to i+1, which reduces it.

    Afterwards position i holds its own chunk fully reduced. Source: algorithms AR1, any m.
    """
    yield from _ring(group, own, width, channel, REDUCE, 1, times)


def ring_allgather(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield m-1 steps: at step s position i sends chunk i-s to i+1."""
    yield from _ring(group, own, width, channel, COPY, 0, times)


def _twice(by_group: Ints) -> I32:
    """Return _flat of int[G, m] two times over: what is rolled by k starts at k * G."""
    wide = _flat(np.concatenate([by_group, by_group], axis=1)).astype(np.int32)
    wide.flags.writeable = False
    return wide


def _chunks(own: Own) -> Callable[[], I32]:
    """Return what gives _twice of the chunks, which are made at the first call."""
    return cache(lambda: _twice(own() if callable(own) else own))


def _rotations(
    group: Ints,
    own: Own,
    width: npt.ArrayLike,
    channel: npt.ArrayLike,
    op: int,
    switched: bool,
    times: int,
) -> Iterator[Phase]:
    """Yield one phase: moves of every position to the one k places on, for k from 1 on.

    Of `own` chunks, REDUCE sends the receiver's and COPY the sender's. All are parts of the same
    few arrays: m moves of m rows a group are held as 2 m.
    """
    size, groups = group.size, group.shape[0]
    chunks = _chunks(own)

    def slots(start: int) -> Callable[[int], tuple[I32, I32]]:
        part = slice(start * times, (start + size) * times)
        return lambda _s: (chunks()[part], chunks()[part])

    def moves() -> Iterator[Move]:
        ends = _twice(group)
        first = rows(_flat(group), _flat(group), count=_per_row(width, group), op=op,
                     channel=_per_row(channel, group))  # fmt: skip
        for k in range(1, group.shape[1]):
            to = ends[k * groups : k * groups + size]
            moved = Rows(first.src, to, first.count, first.op, first.channel, switched, times)
            yield Move(moved, slots(k * groups if op == REDUCE else 0))

    if group.shape[1] < 2:
        return
    if switched:
        yield Phase(tuple(moves()))
        return
    wide = np.broadcast_to(np.asarray(width, dtype=np.int64), (groups,))
    yield Phase(AllPairs(Pairs(np.asarray(group, np.int32), wide * times, op, times), moves))


def direct_reduce_scatter(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    switched: bool = False,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield one phase: every position sends every other's chunk straight to it.

    Position j reduces its own, then j-1, j-2, ...: one order, whatever arrives first. The
    rotation keeps several senders from meeting at one receiver. switched: the switch adds up.
    """
    yield from _rotations(group, own, width, channel, REDUCE, switched, times)


def direct_allgather(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    switched: bool = False,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield one phase: every position sends its own chunk straight to every other.

    switched: it sends once, and the switch hands on.
    """
    yield from _rotations(group, own, width, channel, COPY, switched, times)


def _skips(m: int) -> list[int]:
    """Return m, ceil(m/2), ..., 1: the circulant distances from the largest down."""
    skips = [m]
    while skips[-1] > 1:
        skips.append(-(-skips[-1] // 2))
    return skips


def _circulant(
    group: Ints,
    own: Own,
    width: npt.ArrayLike,
    channel: npt.ArrayLike,
    skip: int,
    above: int,
    op: int,
    times: int,
) -> Phase:
    """Return the step that moves relative chunks skip..above-1 over distance `skip`."""
    offsets = np.arange(skip, above)
    upper = np.roll(group, -skip, axis=1)
    ends = (group, upper) if op == REDUCE else (upper, group)

    @cache
    def sent() -> I32:
        chunks = own() if callable(own) else own
        rolled = np.stack([np.roll(chunks, -t, axis=1) for t in offsets], axis=2)
        return _flat(rolled).astype(np.int32)

    moved = rows(*map(_flat, ends), count=_per_row(width, group), op=op,
                 channel=_per_row(channel, group), times=times * len(offsets))  # fmt: skip
    return Phase((Move(moved, lambda _s: (sent(), sent())),))


def circulant_reduce_scatter(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield ceil(log2 m) steps for any m (Traff): halve the distance, send what lies beyond.

    At distance a (next larger e) position r sends the chunks of r+a..r+e-1 to r+a, which
    reduces them.
    """
    skips = _skips(group.shape[1])
    for above, skip in pairwise(skips):
        yield _circulant(group, own, width, channel, skip, above, REDUCE, times)


def circulant_allgather(
    group: Ints,
    own: Own,
    width: npt.ArrayLike = 1,
    channel: npt.ArrayLike = 0,
    *,
    times: int = 1,
) -> Iterator[Phase]:
    """Yield ceil(log2 m) steps for any m: the reduce-scatter's rounds backwards (Bruck)."""
    skips = _skips(group.shape[1])
    for above, skip in reversed(list(pairwise(skips))):
        yield _circulant(group, own, width, channel, skip, above, COPY, times)


def depths(parents: Ints) -> Ints:
    """Return each rank's distance from its tree's root: int[T, n]; parents: int[T, n], root -1."""
    count, n = parents.shape
    up = np.where(parents < 0, np.arange(n), parents) + n * np.arange(count)[:, None]
    up, depth = up.ravel(), (parents >= 0).astype(np.int64).ravel()
    while True:  # of 1, 2, 4, ... edges towards the root, where one stays
        further = depth[up]
        if not further.any():
            return depth.reshape(count, n)
        depth, up = depth + further, up[up]


def _sibling_ranks(parent: Ints) -> Ints:
    """Return, for each entry, how many earlier entries have the same value."""
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]
    first = np.searchsorted(ordered, ordered)
    place = np.empty(len(parent), dtype=np.int64)
    place[order] = np.arange(len(parent)) - first
    return place


def _levels(parents: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """Return (tree, child, parent) of all edges whose child is at depth 1, 2, ..., in order."""
    depth, n = depths(parents).ravel(), parents.shape[1]
    small = depth.astype(np.int16) if depth.max() < 1 << 15 else depth  # NumPy sorts it by radix
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(depth))
    levels = [order[a:b] for a, b in pairwise(ends)]
    return [(*np.divmod(at, n), parents.ravel()[at]) for at in levels]


def tree_reduce(
    parents: Ints, slot: Ints, width: npt.ArrayLike = 1, channel: npt.ArrayLike = 0
) -> Iterator[Phase]:
    """Yield one phase per level, deepest first: children send `slot` of their tree to the parent.

    parents : int[T, n]; slot, width, channel : int[T]. Siblings reduce in order of rank.
    """
    n = parents.shape[1]
    wide = np.broadcast_to(np.asarray(width), (len(parents),))
    lane = np.broadcast_to(np.asarray(channel), (len(parents),))
    for tree, child, parent in reversed(_levels(parents)):
        sibling = _sibling_ranks(tree * n + parent)
        moves = []
        for k in range(int(sibling.max()) + 1):
            of = sibling == k
            t = tree[of]
            moved = rows(child[of], parent[of], count=wide[t], op=REDUCE, channel=lane[t])
            moves.append(at(moved, slot[t], slot[t]))
        yield Phase(tuple(moves))


def tree_broadcast(
    parents: Ints, slot: Ints, width: npt.ArrayLike = 1, channel: npt.ArrayLike = 0
) -> Iterator[Phase]:
    """Yield one phase per level, the root's first: parents send `slot` of their tree down."""
    wide = np.broadcast_to(np.asarray(width), (len(parents),))
    lane = np.broadcast_to(np.asarray(channel), (len(parents),))
    for t, child, parent in _levels(parents):
        moved = rows(parent, child, count=wide[t], op=COPY, channel=lane[t])
        yield Phase((at(moved, slot[t], slot[t]),))
