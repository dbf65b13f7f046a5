"""What a program of copies and reductions does, chunk by chunk: who holds what, and when.

Owns Ledger: it follows every chunk (which part it is, which ranks have contributed to it), refuses
what cannot be right, and gives every transfer its step. Knows no threads, no files and no slots;
`placing` turns a finished ledger into a Schedule.

A place is (rank, buffer, chunk); what it holds is a value, and every write makes a new one::

    rank 0   i[1] ---- copy, step 0 ----> o[1] of rank 1
    rank 2   i[1] -- reduce, step 1 ----> o[1] of rank 1     a value built on the one before

So a value may be read late, after its place was written again: it only needs a slot of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..collectives import COLLECTIVES, Collective
from ..errors import RcclError

__all__ = ["BEFORE", "NEVER", "Fault", "Ledger", "Op", "Place", "Value", "When"]

Place = tuple[int, str, int]
"""Rank, buffer ("i", "o" or "s"), chunk."""
When = tuple[int, int]
"""Step and move in it; odd moves are done by a switch."""

NEVER: When = (1 << 60, 0)
BEFORE: When = (-1, 0)
NAMES = {"i": "input", "o": "output", "s": "scratch"}


class Fault(RcclError):
    """What is wrong, without the place: whoever reads the program adds where, and re-raises."""


@dataclass(slots=True, eq=False)
class Value:
    """A chunk somewhere. what: part * chunks + position; who: its contributors, as bits.

    born: when it is written (before all steps: an input); read: the last time; gone: when a
    reduction changes it into another value. chain: the first value of the slot. source: input
    chunk it is, -1 otherwise. writer: who wrote it, for messages.
    """

    rank: int
    what: int
    who: int
    born: When = BEFORE
    read: When = BEFORE
    gone: When = NEVER
    source: int = -1
    place: Place | None = None
    writer: str = ""
    chain: Value | None = None


@dataclass(slots=True, eq=False)
class Op:
    """One chunk moved: src is copied to `to`, or reduced into `base`, which becomes `to`."""

    when: When
    group: int
    src: Value
    to: Value
    base: Value | None
    channel: int
    switched: bool


@dataclass(eq=False)
class Ledger:
    """The state of a program that does `collective` on n ranks with `chunks` chunks a block.

    in_place: the program is one for in-place calls, where input and output share places. fused:
    what is copied to a place may be added to in the same step. writer: names the instruction that
    is being done, for messages.
    """

    collective: str
    n: int
    root: int
    chunks: int
    in_place: bool
    fused: bool = True
    ops: list[Op] = field(default_factory=list)
    writer: str = ""
    groups: int = 0
    held: dict[Place, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec: Collective = COLLECTIVES[self.collective]
        starts = self.spec.starts(self.n, self.root)
        self.goals = self.spec.goals(self.n, self.root)
        self.inputs, self.outputs = starts.shape[1], self.goals.shape[1]
        self._aliases = [self._alias(rank) for rank in range(self.n)]
        for rank in range(self.n):
            for block in range(self.inputs):
                part = int(starts[rank, block])
                for position in range(self.chunks if part >= 0 else 0):
                    chunk = block * self.chunks + position
                    value = Value(rank, part * self.chunks + position, 1 << rank, source=chunk)
                    value.place = self.own((rank, "i", chunk))
                    self.held[value.place] = value

    def fresh(self, *, fused: bool) -> Ledger:
        """Return an empty ledger for the same program."""
        return Ledger(self.collective, self.n, self.root, self.chunks, self.in_place, fused)

    def burden(self) -> int:
        """Return what an order of steps costs, roughly: steps times what the busiest pairs move."""
        loads: dict[tuple[int, int, int], int] = {}
        for op in self.ops:
            if op.src.rank != op.to.rank:
                key = op.when[0], op.src.rank, op.to.rank
                loads[key] = loads.get(key, 0) + 1
        busiest: dict[int, int] = {}
        for (step, _, _), chunks in loads.items():
            busiest[step] = max(busiest.get(step, 0), chunks)
        return len(busiest) * sum(busiest.values())

    def own(self, place: Place) -> Place:
        """Return the one name of a place: in place, input and output may be the same memory."""
        alias = self._aliases[place[0]]
        if alias is None or place[1] != alias[0]:
            return place
        return place[0], alias[1], place[2] + alias[2]

    def _alias(self, rank: int) -> tuple[str, str, int] | None:
        """Return which buffer of a rank lies in which other, from which chunk on; None: in none."""
        block = self.spec.in_place(rank, self.root) if self.in_place else -1
        if block == -1 or (block is None and self.inputs != self.outputs):
            return None
        shift = (block or 0) * self.chunks
        return ("o", "i", shift) if self.inputs > self.outputs else ("i", "o", shift)

    def told(self, value: Value) -> str:
        """Return what a value is, in words."""
        part, position = divmod(value.what, self.chunks)
        ranks = [str(r) for r in range(self.n) if value.who >> r & 1]
        of = ", ".join(ranks[:8]) + (", ..." if len(ranks) > 8 else "")
        return f"chunk {position} of part {part} (from rank{'s' * (len(ranks) > 1)} {of})"

    def look(self, place: Place) -> Value:
        """Return what a place holds. Raises Fault where nothing was written."""
        value = self.held.get(self.own(place))
        if value is None:
            rank, buffer, chunk = place
            raise Fault(f"reads {NAMES[buffer]} chunk {chunk} of rank {rank}, which holds nothing")
        return value

    def _put(self, value: Value, place: Place | None) -> None:
        value.writer = self.writer
        if place is not None:
            value.place = self.own(place)
            self.held[value.place] = value

    def _record(self, op: Op) -> None:
        self.ops.append(op)
        op.src.read = max(op.src.read, op.when)

    def copy(
        self,
        values: Sequence[Value],
        rank: int,
        places: Sequence[Place] | None,
        sent: int,
        received: int = 0,
        channel: int = 0,
        *,
        switched: bool = False,
    ) -> tuple[int, list[Value]]:
        """Copy values to `rank`, as one transfer; return its step and what is there now.

        sent, received: the first step either side is ready. places: None where only a reduction
        will use them.
        """
        ready = max(v.born[0] + 1 for v in values)
        when = max(sent, received, ready), int(switched)
        if any(v.gone < when for v in values):
            # What is sent waits at the receiver, not at the sender.
            when, switched = (max(sent, ready), 0), False
        made = []
        for i, value in enumerate(values):
            to = Value(rank, value.what, value.who, when)
            self._put(to, places[i] if places is not None else None)
            self._record(Op(when, self.groups, value, to, None, channel, switched))
            made.append(to)
        self.groups += 1
        return when[0], made

    def _same(self, value: Value, base: Value) -> None:
        if value.what != base.what:
            raise Fault(f"reduces {self.told(value)} into {self.told(base)}: not the same chunk")
        twice = value.who & base.who
        if twice:
            rank = (twice & -twice).bit_length() - 1
            raise Fault(
                f"reduces {self.told(value)} into {self.told(base)}: rank {rank} counts twice"
            )

    def _bases(self, bases: Sequence[Place], stays: Sequence[bool]) -> list[Value]:
        """Return values that a reduction may change: copies of inputs and of what stays."""
        found = [self.look(place) for place in bases]
        kept = [i for i, value in enumerate(found) if value.source >= 0 or stays[i]]
        if kept:
            sources = [found[i] for i in kept]
            ready = max(v.born[0] + 1 for v in sources)
            wanted = [sources[k].place for k in range(len(kept))]
            _, copies = self.copy(sources, found[0].rank, None, ready)
            for i, value, at in zip(kept, copies, wanted):
                found[i], value.place = value, at
        return found

    def reduce(
        self,
        values: Sequence[Value],
        bases: Sequence[Place],
        places: Sequence[Place | None],
        sent: int,
        received: int = 0,
        channel: int = 0,
        *,
        stays: Sequence[bool] | None = None,
        switched: bool = False,
    ) -> tuple[int, list[Value]]:
        """Combine values into what `bases` hold and leave the results at `places`.

        As one transfer; returns its step and the results. A place of None: the result is for
        sending on only. stays: whether what a base holds is needed afterwards (by default where it
        is not overwritten). Raises Fault where chunks differ or a rank would count twice.
        """
        for value, base_at in zip(values, bases):
            self._same(value, self.look(base_at))
        rank = bases[0][0]
        if stays is None:
            own = [None if p is None else self.own(p) for p in places]
            stays = [self.own(base) != place for base, place in zip(bases, own)]
        targets = self._bases(bases, stays)
        floor = max(sent, received)
        when = self._when(values, targets, floor, switched)
        if any(v.gone < when for v in values):
            _, values = self.copy(values, rank, None, sent, sent, channel)
            when, switched = self._when(values, targets, floor, False), False
        made = []
        for value, base, place in zip(values, targets, places):
            to = Value(rank, base.what, base.who | value.who, when)
            to.chain = base.chain or base
            base.gone = when
            self._put(to, place)
            self._record(Op(when, self.groups, value, to, base, channel, switched))
            made.append(to)
        self.groups += 1
        return when[0], made

    def _when(
        self, values: Sequence[Value], targets: Sequence[Value], floor: int, switched: bool
    ) -> When:
        """Return the first time all may happen: after what they read, in turn on one place."""
        step = max(floor, *(v.born[0] + 1 for v in values))
        step = max(step, *(b.born[0] + (b.chain is None and not self.fused) for b in targets))
        step = max(step, *(b.read[0] for b in targets))
        move = 0
        for base in targets:
            if base.born[0] == step:
                move = max(move, base.born[1] + 1)
            if base.read[0] == step:
                move = max(move, base.read[1])
        return step, move + (move % 2 != switched)

    def result(self) -> dict[tuple[int, int], Value]:
        """Return the value of every (rank, output chunk). Raises Fault where a goal is missed."""
        found = {}
        for rank in range(self.n):
            for block in range(self.outputs):
                part = int(self.goals[rank, block])
                for position in range(self.chunks if part >= 0 else 0):
                    chunk = block * self.chunks + position
                    found[rank, chunk] = self._meets(rank, chunk, part, position)
        return found

    def _meets(self, rank: int, chunk: int, part: int, position: int) -> Value:
        who = (1 << self.n) - 1
        if not self.spec.reduces:
            who = 1 << self.spec.origin(part, self.n, self.root)
        wanted = Value(rank, part * self.chunks + position, who)
        value = self.held.get(self.own((rank, "o", chunk)))
        if value is not None and (value.what, value.who) == (wanted.what, who):
            return value
        holds = "nothing" if value is None else self.told(value)
        by = f", written by {value.writer}" if value is not None and value.writer else ""
        raise Fault(
            f"at the end output chunk {chunk} of rank {rank} holds {holds}{by}: "
            f"{self.told(wanted)} was expected"
        )
