"""The central type: a schedule is a repeatable stream of steps, a step is columns of transfers.

Owns Step, Rows, Move, Phase, Layout, Schedule and the three ways to put streams together. Knows
no byte size, no data, no fabric and no time. Rows of a step have no order among them: all reads
come before all writes. The invariants S1-S7 are written in docs/schedule.md and checked in
:mod:`rccl_py.check`.

A ring over 4 ranks, reduce-scatter, one slot a chunk (step 0; the next steps move the same rows
one chunk back)::

    src       0 1 2 3
    dst       1 2 3 0      Phase(moves=(Move(rows, slots),), steps=3)
    slot      3 0 1 2      rows = src, dst, count, op, channel: the same in all three steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "COPY",
    "I32",
    "REDUCE",
    "AllPairs",
    "Layout",
    "Move",
    "Outline",
    "Pairs",
    "Phase",
    "Pipeline",
    "Rows",
    "Schedule",
    "Step",
    "at",
    "changed",
    "pipeline",
    "rows",
    "shifted",
    "together",
]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
SlotPair = tuple[I32, I32]

COPY = 0
"""Destination slot := source slot."""
REDUCE = 1
"""Destination slot := destination slot combined with source slot, in that order."""


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """Transfers with no order among them: int32 columns of equal length, one row a transfer.

    src, dst: ranks (equal = a local copy or reduce). src_slot, dst_slot: first slot at either
    end. count: contiguous slots moved. op: COPY or REDUCE. channel: which channel carries it.
    """

    src: I32
    dst: I32
    src_slot: I32
    dst_slot: I32
    count: I32
    op: I32
    channel: I32


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """The part of a step that repeats: who sends to whom, how much, on which channel.

    switched: whether the switch between the ranks does it: adds up what several send to one, or
    hands on to several what one sends. What the ranks hold afterwards is the same. times: rows
    that an entry stands for (of all, or int64, of each), one after the other and alike but for
    their slots: one message, so who only adds up loads need not look at each.
    """

    src: I32
    dst: I32
    count: I32
    op: I32
    channel: I32
    switched: bool = False
    times: int | I64 = 1
    _each: list[Rows] = field(default_factory=list, init=False, repr=False)

    @property
    def size(self) -> int:
        """How many rows these are."""
        if isinstance(self.times, int):
            return len(self.src) * self.times
        return int(self.times.sum())

    @property
    def total(self) -> I64:
        """The slots of all rows an entry stands for: int64, one an entry."""
        return self.count.astype(np.int64) * self.times

    @property
    def each(self) -> Rows:
        """The same with an entry for every row; made once."""
        if isinstance(self.times, int) and self.times == 1:
            return self
        if not self._each:
            columns = self.src, self.dst, self.count, self.op, self.channel
            src, dst, count, op, channel = (np.repeat(column, self.times) for column in columns)
            for column in (src, dst, count, op, channel):
                column.flags.writeable = False  # S4
            self._each.append(Rows(src, dst, count, op, channel, self.switched))
        return self._each[0]


@dataclass(frozen=True, eq=False, slots=True)
class Move:
    """Rows, and the slots they use at repetition `s`: ``slots(s) -> (src_slot, dst_slot)``."""

    rows: Rows
    slots: Callable[[int], SlotPair]

    def step(self, s: int) -> Step:
        """Return repetition `s` as a Step."""
        r = self.rows.each
        src_slot, dst_slot = self.slots(s)
        src_slot.flags.writeable = dst_slot.flags.writeable = False  # S4
        return Step(r.src, r.dst, src_slot, dst_slot, r.count, r.op, r.channel)

    def after(self, s0: int) -> Move:
        """Return this move with its first `s0` repetitions left out."""
        slots = self.slots
        return Move(self.rows, lambda s: slots(s + s0)) if s0 else self


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Groups in which every position sends to every other one, all at once.

    group: int32[G, m]. count: int64[G], slots of each message, in `times` rows. op: of all. own:
    whether each also copies its own share, as a row to itself.
    """

    group: I32
    count: I64
    op: int
    times: int = 1
    own: bool = False

    @property
    def size(self) -> int:
        """How many rows these are."""
        groups, m = self.group.shape
        return int(groups * m * (m - 1 + self.own) * self.times)


class AllPairs(Sequence[Move]):
    """The moves of `pairs`, made when they are first asked for; who only adds up loads need not."""

    __slots__ = ("_made", "_make", "pairs")

    def __init__(self, pairs: Pairs, make: Callable[[], Iterable[Move]]) -> None:
        self.pairs, self._make = pairs, make
        self._made: tuple[Move, ...] | None = None

    @property
    def all(self) -> tuple[Move, ...]:
        """The moves."""
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def __len__(self) -> int:
        return int(self.pairs.group.shape[1]) - 1 + self.pairs.own

    @overload
    def __getitem__(self, k: int) -> Move: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[Move, ...]: ...
    def __getitem__(self, k: int | slice) -> Move | tuple[Move, ...]:
        return self.all[k]

    def __iter__(self) -> Iterator[Move]:
        return iter(self.all)


def changed(moves: Sequence[Move], change: Callable[[Move], Move]) -> Sequence[Move]:
    """Return what `change` makes of each of a phase's moves; their rows must stay the same."""
    if isinstance(moves, AllPairs):
        return AllPairs(moves.pairs, lambda: map(change, moves.all))
    return tuple(map(change, moves))


@dataclass(frozen=True, eq=False, slots=True)
class Phase:
    """Moves posted together, repeated `steps` times.

    The moves of one repetition run in order (which fixes the order of a reduction), but none
    waits for another: a move reads no slot that an earlier one of the repetition wrote (S7).
    Each repetition waits for the one before. Timing therefore pays latency once a repetition.
    made_of: the phases that run side by side in this one, () if it is a single one; what it does
    is in `moves`, but who adds up loads need not look at each move again.
    """

    moves: Sequence[Move]
    steps: int = 1
    made_of: tuple[Phase, ...] = ()


def _column(value: npt.ArrayLike, length: int) -> I32:
    column = np.array(value, dtype=np.int32)
    if not column.ndim:
        column = np.full(length, column)
    elif len(column) != length:
        column = np.array(np.broadcast_to(column, (length,)))
    column.flags.writeable = False
    return column


def rows(
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    *,
    count: npt.ArrayLike = 1,
    op: npt.ArrayLike = COPY,
    channel: npt.ArrayLike = 0,
    switched: bool = False,
    times: int | I64 = 1,
) -> Rows:
    """Return read-only int32 columns of one length; scalars are repeated."""
    length = np.size(src) if np.ndim(src) else np.size(dst)
    wanted = (src, dst, count, op, channel)
    columns = (_column(np.ravel(c) if np.ndim(c) else c, length) for c in wanted)
    source, target, counts, ops, channels = columns
    return Rows(source, target, counts, ops, channels, switched, times)


def at(moved: Rows, src_slot: npt.ArrayLike, dst_slot: npt.ArrayLike) -> Move:
    """Return the move of these rows over the same slots at every repetition."""
    length = moved.size
    pair = (
        _column(np.ravel(src_slot) if np.ndim(src_slot) else src_slot, length),
        _column(np.ravel(dst_slot) if np.ndim(dst_slot) else dst_slot, length),
    )
    return Move(moved, lambda _s: pair)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where slots live at every rank: blocks of `chunks` slots, input then output then scratch.

    A slot's position is its number modulo `chunks`: position c of a block of e elements holds
    elements [c*e//chunks, (c+1)*e//chunks). A transfer keeps positions (S3), so source and
    destination always have the same size, whatever the element count.
    """

    chunks: int
    inputs: int
    outputs: int
    scratch: int = 0

    @property
    def nslots(self) -> int:
        """Slots of one rank."""
        return (self.inputs + self.outputs + self.scratch) * self.chunks

    def input(self, block: npt.ArrayLike = 0) -> I32:
        """Return the first slot of input block(s) `block`."""
        return np.asarray(np.asarray(block) * self.chunks, dtype=np.int32)

    def output(self, block: npt.ArrayLike = 0) -> I32:
        """Return the first slot of output block(s) `block`."""
        return np.asarray((self.inputs + np.asarray(block)) * self.chunks, dtype=np.int32)

    def scratch_block(self, block: npt.ArrayLike = 0) -> I32:
        """Return the first slot of scratch block(s) `block`."""
        first = self.inputs + self.outputs
        return np.asarray((first + np.asarray(block)) * self.chunks, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective done by an algorithm on `nranks` ranks, without sizes, data or time.

    phases() yields the same phases each time it is called (S6); iterating yields their steps.
    """

    collective: str
    algorithm: str
    nranks: int
    root: int
    layout: Layout
    nchannels: int
    phases: Callable[[], Iterable[Phase]]

    def __iter__(self) -> Iterator[Step]:
        for phase in self.phases():
            for s in range(phase.steps):
                for move in phase.moves:
                    yield move.step(s)


def _shift(move: Move, by: int) -> Move:
    slots = move.slots

    def moved(s: int) -> SlotPair:
        src_slot, dst_slot = slots(s)
        return src_slot + np.int32(by), dst_slot + np.int32(by)

    return Move(move.rows, moved)


def shifted(phases: Iterable[Phase], by: int) -> Iterator[Phase]:
    """Yield `phases` with `by` added to every slot; the rows stay the same objects."""
    for phase in phases:
        moves = changed(phase.moves, partial(_shift, by=by))
        yield Phase(moves, phase.steps, phase.made_of) if by else phase


def together(*streams: Iterable[Phase]) -> Iterator[Phase]:
    """Yield phases that run `streams` side by side, a step of each at a time.

    The streams must touch different slots. A phase with no moves is a pause.
    """
    sources = [iter(s) for s in streams]
    active: list[tuple[Iterator[Phase], Phase, int]] = []
    for source in sources:
        first = next(source, None)
        if first is not None:
            active.append((source, first, 0))
    while active:
        run = min(phase.steps - used for _, phase, used in active)
        busy = [(phase, used) for _, phase, used in active if phase.moves]
        if len(busy) == 1 and not busy[0][1]:
            alone = busy[0][0]
            yield Phase(alone.moves, run, alone.made_of or (alone,))
        elif busy:
            moves = tuple(m.after(used) for phase, used in busy for m in phase.moves)
            yield Phase(moves, run, tuple(phase for phase, _ in busy))
        following: list[tuple[Iterator[Phase], Phase, int]] = []
        for source, phase, used in active:
            if used + run < phase.steps:
                following.append((source, phase, used + run))
                continue
            after = next(source, None)
            if after is not None:
                following.append((source, after, 0))
        active = following


@dataclass(frozen=True, eq=False, slots=True)
class Pipeline:
    """`pieces` copies of a stream, each a step behind the one before and `stride` slots on.

    stages: the stream; `first` is added to every slot of it. Iterating yields the phases that all
    pieces together are; who only adds up loads need not take it apart.

    With pieces >= steps every stage is busy with a different piece::

        piece 0   a b c
        piece 1     a b c
        piece 2       a b c
    """

    stages: tuple[Phase, ...]
    pieces: int
    stride: int
    first: int = 0

    def _delayed(self, piece: int) -> Iterator[Phase]:
        if piece:
            yield Phase((), piece)
        yield from shifted(self.stages, self.first + piece * self.stride)

    def __iter__(self) -> Iterator[Phase]:
        return together(*(self._delayed(p) for p in range(self.pieces)))


def pipeline(phases: Iterable[Phase], pieces: int, stride: int, first: int = 0) -> Pipeline:
    """Return `pieces` copies of a stream, one step behind another, as a Pipeline."""
    return Pipeline(tuple(phases), pieces, stride, first)


@dataclass(frozen=True, eq=False, slots=True)
class Outline:
    """The phases of a schedule, told with its pipelines whole; called, it yields the phases."""

    parts: Callable[[], Iterable[Phase | Pipeline]]

    def __call__(self) -> Iterator[Phase]:
        """Yield the phases, pipelines taken apart."""
        for part in self.parts():
            if isinstance(part, Pipeline):
                yield from part
            else:
                yield part
