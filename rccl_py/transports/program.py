"""What a transport runs: a schedule's rows as element ranges, and where order must be kept.

Owns the map from slots to elements, whether a row of a step reads what another writes (then reads
are staged), and keeps the order that processes need (:mod:`rccl_py.transports.levels`). Knows no
data and no process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..check import alias_map
from ..execute import slots_of
from ..schedule import I32, Layout, Schedule, Step
from .levels import Order, order_of

__all__ = ["INPUT", "OUTPUT", "SCRATCH", "Extents", "Program", "Ranges", "StepFacts"]

I64 = npt.NDArray[np.int64]

INPUT, OUTPUT, SCRATCH = 0, 1, 2

_KEPT_ROWS = 1 << 17  # 3 MB of columns a schedule


@dataclass(frozen=True, slots=True)
class StepFacts:
    """staged: some row of the step reads a slot that another row of it writes."""

    step: Step
    staged: bool


@dataclass(frozen=True, eq=False, slots=True)
class Ranges:
    """Elements of some transfers: buffer (INPUT, OUTPUT, SCRATCH), first element, length."""

    buffer: I64
    start: I64
    length: I64


class Program:
    """A schedule ready to run on any element count; `in_place`: some rank's buffers coincide."""

    def __init__(self, schedule: Schedule, *, in_place: bool = False) -> None:
        self.schedule = schedule
        self._alias = alias_map(schedule) if in_place else None

    @cached_property
    def steps(self) -> list[StepFacts]:
        """Every step with its facts."""
        return list(self._facts())

    @cached_property
    def stream(self) -> Iterable[Step]:
        """The steps in order: kept where they are few, made anew each time where they are many."""
        rows = sum(p.steps * m.rows.size for p in self.schedule.phases() for m in p.moves)
        return list(self.schedule) if rows <= _KEPT_ROWS else self.schedule

    @cached_property
    def scratch_used(self) -> npt.NDArray[np.bool_]:
        """Which scratch slots each rank uses: bool[nranks, scratch slots]."""
        layout = self.schedule.layout
        first = int(layout.scratch_block())
        used = np.zeros((self.schedule.nranks, layout.nslots - first), dtype=bool)
        if used.size:
            for step in self.stream:
                _, _, dst, dst_slot, _ = slots_of(step)
                inside = dst_slot >= first
                used[dst[inside], dst_slot[inside] - first] = True
        return used

    @cached_property
    def order(self) -> Order:
        """The order in which processes may run the rows."""
        return order_of(self.schedule, self.stream)

    def _place(self, rank: I32, slot: I32) -> I64:
        nslots = self.schedule.layout.nslots
        where = slot if self._alias is None else self._alias[rank, slot]
        return rank.astype(np.int64) * nslots + where

    def _facts(self) -> Iterator[StepFacts]:
        for step in self.stream:
            src, src_slot, dst, dst_slot, _ = slots_of(step)
            reads, writes = self._place(src, src_slot), self._place(dst, dst_slot)
            other = reads != writes  # a slot copied onto itself is no hazard
            yield StepFacts(step, bool(np.isin(reads[other], writes).any()))


class Extents:
    """Element ranges of slots when a block has `block` elements.

    Position c of a block holds elements [c * block // chunks, (c + 1) * block // chunks). Scratch
    takes room only for the slots a rank uses.
    """

    def __init__(self, program: Program, block: int) -> None:
        layout: Layout = program.schedule.layout
        self.layout, self.block = layout, block
        self.low = np.arange(layout.chunks + 1, dtype=np.int64) * block // layout.chunks
        sizes = np.tile(np.diff(self.low), layout.scratch)
        used = program.scratch_used
        self._scratch = np.zeros((len(used), used.shape[1] + 1), dtype=np.int64)
        np.cumsum(used * sizes, axis=1, out=self._scratch[:, 1:])
        self._out, self._first_scratch = int(layout.output()), int(layout.scratch_block())

    def scratch_elements(self, rank: int) -> int:
        """Return how many scratch elements `rank` needs."""
        return int(self._scratch[rank, -1])

    def ranges(self, rank: I32, slot: I32, count: I32) -> Ranges:
        """Return the elements that `count` slots from `slot` on are at each rank."""
        k = self.layout.chunks
        buffer = (slot >= self._out).astype(np.int64) + (slot >= self._first_scratch)
        base = np.array([0, self._out, self._first_scratch])[buffer]
        ends = []
        for at in (slot - base, slot - base + count):
            block, position = np.divmod(at, k)
            element = block * self.block + self.low[position]
            held = buffer == SCRATCH
            if held.any():
                element[held] = self._scratch[rank[held], at[held]]
            ends.append(element)
        return Ranges(buffer, ends[0], ends[1] - ends[0])
