"""One rank's rows as operations on places: what to copy and reduce, from where to where.

Owns where a slot's value lives while a schedule runs over shared memory, and the lowering of a
rank's rows to passes over memory. Knows no element count and no process.

What other ranks read lives in staging, which they can read; an output that nobody else reads is
made where the user wants it; the rest is private. A copy that no other rank reads is put off: most
never happen, as a reduction reads the copy's source instead. An allreduce of two ranks in one shot,
as rank 1 runs it::

    row                         operation
    scratch := input            staging := source               others read it
    -- meet --
    output := rank 0's scratch  (put off)
    output += own scratch       target := rank 0's staging + own staging
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..schedule import Layout
from .levels import Order

__all__ = ["PRIVATE", "SOURCE", "STAGED", "TARGET", "Operation", "Place", "lowered"]

SOURCE, TARGET, PRIVATE, STAGED = 0, 1, 2, 3


class Place(NamedTuple):
    """A slot in one of the four memories; `rank` is whose (another's only if STAGED)."""

    memory: int
    rank: int
    slot: int


class Operation(NamedTuple):
    """``into := taken`` or, with a `kept`, ``into := kept combined with taken``.

    travels: whether `kept` and `taken` come from another rank (rounded, if the arithmetic rounds).
    """

    kept: Place | None
    taken: Place
    into: Place
    travels: tuple[bool, bool]


class _Value(NamedTuple):
    """Where a slot's value is, and whether it comes from another rank."""

    place: Place
    travels: bool


class _Late(NamedTuple):
    """A copy that is put off. onto: where it would go. source: the memory it waits on (a slot's
    alias), None for another rank's."""

    onto: Place
    source: int | None


class _Lowering:
    """The state of one rank's lowering: where values are and which copies are put off."""

    def __init__(self, order: Order, layout: Layout, rank: int) -> None:
        self.rank, self.layout = rank, layout
        self.alias = order.alias[rank].tolist()
        self.staged = order.staged[rank].tolist()
        self.outputs = range(int(layout.output()), int(layout.scratch_block()))
        self.values: dict[int, _Value] = {}
        self.late: dict[int, _Late] = {}
        self.operations: list[Operation] = []

    def snapshot(self) -> None:
        """Copy the inputs that others read to staging."""
        for slot in range(self.outputs.start):
            if self.staged[slot]:
                source, staged = (Place(m, self.rank, slot) for m in (SOURCE, STAGED))
                self.operations.append(Operation(None, source, staged, (False, False)))

    def row(
        self, src: int, src_slot: int, dst_slot: int, reduces: bool, read: bool, lives: bool
    ) -> None:
        """Lower one row. read: others read its result; lives: its slot's place is staging."""
        self._settle_readers(dst_slot)
        if src == self.rank:
            value, source = self._value(src_slot), self._source(src_slot)
        else:
            value, source = _Value(Place(STAGED, src, src_slot), True), None
        into = self._home(dst_slot, lives)
        if reduces:
            self._put(self._value(dst_slot), value, into, dst_slot)
        elif read:
            self._put(None, value, into, dst_slot)
        else:
            self.values[dst_slot] = value
            self.late[dst_slot] = _Late(into, source)

    def end_level(self) -> None:
        """Make the copies that were put off and read others' memory: it may change from now on."""
        for slot in [slot for slot, late in self.late.items() if late.source is None]:
            self._settle(slot, self.late[slot].onto)

    def finish(self) -> None:
        """Bring every output to where the user wants it."""
        for slot in self.outputs:
            value = self.values.get(slot)
            target = Place(TARGET, self.rank, slot)
            if value is not None and value.place != target:
                self._settle_readers(slot)
                self._settle(slot, target)

    def _home(self, slot: int, lives: bool) -> Place:
        if slot in self.outputs:
            return Place(STAGED if lives else TARGET, self.rank, slot)
        return Place(STAGED if self.staged[slot] else PRIVATE, self.rank, slot)

    def _value(self, slot: int) -> _Value:
        if slot < self.outputs.start:
            return _Value(Place(SOURCE, self.rank, slot), False)
        return self.values[slot]

    def _source(self, slot: int) -> int | None:
        late = self.late.get(slot)
        return self.alias[slot] if late is None else late.source

    def _put(self, kept: _Value | None, taken: _Value, into: Place, slot: int) -> None:
        travels = kept is not None and kept.travels, taken.travels
        self.operations.append(Operation(kept and kept.place, taken.place, into, travels))
        self.values[slot] = _Value(into, False)
        self.late.pop(slot, None)

    def _settle(self, slot: int, onto: Place) -> None:
        value = self.values[slot]
        self.operations.append(Operation(None, value.place, onto, (False, value.travels)))
        self.values[slot] = _Value(onto, False)
        self.late.pop(slot, None)

    def _settle_readers(self, slot: int) -> None:
        """Make the copies that wait on memory which is about to be written."""
        where = self.alias[slot]
        for other in [s for s, late in self.late.items() if late.source == where and s != slot]:
            self._settle(other, self.late[other].onto)


def lowered(order: Order, layout: Layout, rank: int) -> list[list[Operation]]:
    """Return the operations of `rank`, a list a level: 0..order.meets."""
    state = _Lowering(order, layout, rank)
    levels: list[list[Operation]] = []
    mine = np.flatnonzero(order.dst == rank)
    mine = mine[np.argsort(order.level[mine], kind="stable")]
    columns = (
        order.level,
        order.src,
        order.src_slot,
        order.dst_slot,
        order.reduces,
        order.read_next,
        order.read_later,
    )
    rows = list(zip(*(c[mine].tolist() for c in columns)))
    at = 0
    state.snapshot()
    for level in range(order.meets + 1):
        while at < len(rows) and rows[at][0] == level:
            state.row(*rows[at][1:])
            at += 1
        state.end_level()
        if level == order.meets:
            state.finish()
        levels.append(state.operations)
        state.operations = []
    return levels
