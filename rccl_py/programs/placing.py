"""From a finished ledger to a Schedule: which slot every value lies in, and the steps' columns.

Owns the choice of slots. A value of an output chunk lies there if that slot is free by then, also
when the call is in place; otherwise in scratch, and a last step copies it. Slots of scratch are
used again. Knows no threads and no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from ..schedule import COPY, REDUCE, Layout, Move, Phase, Schedule, at, rows
from .ledger import Ledger, Op, Value, When

__all__ = ["schedule_of"]

_NONE: When = (-1, 0)
_LAST: When = (1 << 60, 0)


@dataclass(slots=True, eq=False)
class _Chain:
    """The values that follow each other in one slot. ends: the last time it is read or written."""

    first: Value
    born: When
    written: When
    ends: When
    changed: When = _LAST
    copy_of: Value | None = None
    output: int = -1
    final: bool = False
    slot: int = -1


@dataclass(slots=True)
class _Slot:
    """When a slot is free again: after `written`, and not before `read`."""

    written: When = _NONE
    read: When = _NONE

    def free(self, when: When) -> bool:
        return self.written < when and self.read <= when


@dataclass(eq=False)
class _Placing:
    ledger: Ledger
    chains: dict[int, _Chain] = field(default_factory=dict)
    slots: dict[tuple[int, int], _Slot] = field(default_factory=dict)
    scratch: int = 0
    copied: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Where an input chunk that is a result itself lies too: (step of the copy, slot)."""

    def __post_init__(self) -> None:
        ledger = self.ledger
        self.first_output = ledger.inputs * ledger.chunks
        self.first_scratch = self.first_output + ledger.outputs * ledger.chunks
        self.inputs = {
            (v.rank, v.source): v
            for v in [*ledger.held.values(), *(op.src for op in ledger.ops)]
            if v.source >= 0
        }
        self.last = {key: value.read for key, value in self.inputs.items()}

    def chain(self, value: Value) -> _Chain:
        return self.chains[id(value.chain or value)]

    def alias(self, rank: int, output: int) -> tuple[int, int] | None:
        """Return the input chunk that shares an output chunk's memory in an in-place call."""
        ledger = self.ledger
        block = ledger.spec.in_place(rank, ledger.root)
        if block == -1 or (block is None and ledger.inputs != ledger.outputs):
            return None
        shift = (block or 0) * ledger.chunks
        chunk = output + shift if ledger.inputs > ledger.outputs else output - shift
        return (rank, chunk) if (rank, chunk) in self.inputs else None

    def collect(self, final: dict[tuple[int, int], Value]) -> None:
        """Make the chains of all values that are written."""
        for op in self.ledger.ops:
            first = op.to.chain or op.to
            ends = max(op.to.born, op.to.read)
            if op.base is None:
                self.chains[id(first)] = _Chain(first, op.when, op.when, ends)
                chain = self.chains[id(first)]
                chain.copy_of = op.src if op.src.rank == op.to.rank else None
                chain.output = self.output_of(op.to)
            else:
                chain = self.chains[id(first)]
                chain.written = max(chain.written, op.when)
                chain.changed = min(chain.changed, op.when)
                chain.ends = max(chain.ends, ends)
        for (_, output), value in final.items():
            if value.source >= 0:
                self.last[value.rank, value.source] = _LAST  # a last copy still reads it
            else:
                chain = self.chain(value)
                chain.output, chain.final, chain.ends = output, True, _LAST

    def output_of(self, value: Value) -> int:
        """Return the output chunk whose place a value is written to, -1 for none."""
        ledger, place = self.ledger, value.place
        if place is None or place[1] == "s":
            return -1
        chunk = place[2]
        if place[1] == "i":
            if not ledger.in_place or ledger.inputs <= ledger.outputs:
                return -1
            chunk -= (ledger.spec.in_place(value.rank, ledger.root) or 0) * ledger.chunks
        if not 0 <= chunk < ledger.outputs * ledger.chunks:
            return -1
        absent = ledger.goals[value.rank, chunk // ledger.chunks] < 0
        fits = chunk % ledger.chunks == value.what % ledger.chunks
        return chunk if fits and not absent else -1

    def fits_output(self, chain: _Chain) -> bool:
        """Return whether a chain may lie in its output slot, in place too."""
        rank, output = chain.first.rank, chain.output
        if output < 0:
            return False
        slot = self.slots.get((rank, self.first_output + output))
        if slot is not None and not slot.free(chain.born):
            return False
        key = self.alias(rank, output)
        if key is None:
            return True
        same = chain.copy_of is self.inputs[key]
        return self.last[key] <= (chain.changed if same else chain.born)

    def take(self, chain: _Chain, slot: int) -> None:
        chain.slot = slot
        self.slots[chain.first.rank, slot] = _Slot(chain.written, chain.ends)

    def place(self, chains: list[_Chain]) -> None:
        """Give slots to chains that one transfer begins."""
        rest = []
        for chain in chains:
            if self.fits_output(chain):
                self.take(chain, self.first_output + chain.output)
            else:
                rest.append(chain)
        position, run = -1, list[_Chain]()
        for chain in rest:
            here = chain.first.what % self.ledger.chunks
            if run and here != position + 1:
                self.into_scratch(run)
                run = []
            run.append(chain)
            position = here
        if run:
            self.into_scratch(run)

    def into_scratch(self, run: list[_Chain]) -> None:
        """Give neighbours the first free neighbouring slots of scratch."""
        chunks, rank, born = self.ledger.chunks, run[0].first.rank, run[0].born
        first, block = run[0].first.what % chunks, 0
        while True:
            start = self.first_scratch + block * chunks + first
            held = [self.slots.get((rank, start + k)) for k in range(len(run))]
            if all(slot is None or slot.free(born) for slot in held):
                break
            block += 1
        for k, chain in enumerate(run):
            self.take(chain, start + k)
        self.scratch = max(self.scratch, block + 1)

    def slot(self, value: Value, step: int) -> int:
        """Return the slot `step` finds a value in; beside other results, if it is one."""
        if value.source < 0:
            return self.chain(value).slot
        made, slot = self.copied.get((value.rank, value.source), (step, value.source))
        return slot if made < step else value.source

    def finish(self, final: dict[tuple[int, int], Value]) -> list[Op]:
        """Return the copies that bring results that lie elsewhere to the output."""
        found = []
        for (rank, output), value in final.items():
            slot = self.first_output + output
            if value.source < 0 and self.chain(value).slot == slot:
                continue
            step = max(0, value.born[0] + 1)
            if value.source < 0:
                step = max(step, self.chain(value).written[0] + 1)
            key = self.alias(rank, output)
            if key is not None and self.inputs[key] is not value:
                step = max(step, self.last[key][0] + 1)
            held = self.slots.get((rank, slot), _Slot())
            step = max(step, held.written[0] + 1, held.read[0] + 1)
            if value.source >= 0:
                self.copied[rank, value.source] = step, slot
            to = Value(rank, value.what, value.who, (step, 0))
            self.chains[id(to)] = _Chain(to, (step, 0), (step, 0), _LAST, slot=slot)
            found.append(Op((step, 0), self.ledger.groups, value, to, None, 0, False))
        return found


def _runs(ops: list[Op], placing: _Placing) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Yield (src, src_slot, dst, dst_slot, count, op, channel): neighbours of a transfer joined."""
    row: list[int] = []
    group = -1
    for op in ops:
        kind = COPY if op.base is None else REDUCE
        source, target = (placing.slot(value, op.when[0]) for value in (op.src, op.to))
        new = [op.src.rank, source, op.to.rank, target, 1, kind]
        if row and op.group == group and _follows(row, new, placing):
            row[4] += 1
            continue
        if row:
            yield tuple(row)  # type: ignore[misc]
        row, group = [*new, op.channel], op.group
    if row:
        yield tuple(row)  # type: ignore[misc]


def _follows(row: list[int], new: list[int], placing: _Placing) -> bool:
    n = row[4]
    same = row[0] == new[0] and row[2] == new[2] and row[5] == new[5]
    if not same or new[1] != row[1] + n or new[3] != row[3] + n:
        return False
    borders = (placing.first_output, placing.first_scratch)
    return not any(new[k] == border for k in (1, 3) for border in borders)


def _move(ops: list[Op], placing: _Placing) -> Move:
    found = np.array(list(_runs(ops, placing)), dtype=np.int32)
    src, src_slot, dst, dst_slot, count, op, channel = found.T
    moved = rows(src, dst, count=count, op=op, channel=channel, switched=ops[0].switched)
    return at(moved, src_slot, dst_slot)


def schedule_of(ledger: Ledger, name: str, nchannels: int) -> Schedule:
    """Return the schedule of a ledger whose program is done.

    Raises Fault where the program misses the collective's goal.
    """
    final = ledger.result()
    placing = _Placing(ledger)
    placing.collect(final)
    ordered = sorted(ledger.ops, key=lambda op: (op.when, op.group))
    for _, members in groupby(ordered, key=lambda op: op.group):
        begun = [placing.chain(op.to) for op in members if op.base is None]
        if begun:
            placing.place(begun)
    ordered += placing.finish(final)
    ordered.sort(key=lambda op: (op.when, op.group))
    phases = []
    for _, step in groupby(ordered, key=lambda op: op.when[0]):
        parts = groupby(step, key=lambda op: op.when[1])
        phases.append(Phase(tuple(_move(list(ops), placing) for _, ops in parts)))
    layout = Layout(ledger.chunks, ledger.inputs, ledger.outputs, placing.scratch)
    kept = tuple(phases)
    return Schedule(ledger.collective, name, ledger.n, ledger.root, layout, nchannels, lambda: kept)
