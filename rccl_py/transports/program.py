"""What a transport runs: a schedule's rows as element ranges, and where order must be kept.

Owns the map from slots to elements and the two facts a transport needs about a step: whether a
row reads what another writes (then reads are staged), and whether ranks must meet before it.
Knows no data and no process.
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

__all__ = ["INPUT", "OUTPUT", "SCRATCH", "Extents", "Program", "Ranges", "StepFacts"]

I64 = npt.NDArray[np.int64]

INPUT, OUTPUT, SCRATCH = 0, 1, 2

_KEPT_ROWS = 1 << 17  # 3 MB of columns a schedule


@dataclass(frozen=True, slots=True)
class StepFacts:
    """staged: some row reads a slot another row writes. meets: ranks must meet before the step."""

    step: Step
    staged: bool
    meets: bool


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
        rows = sum(p.steps * len(m.rows.src) for p in self.schedule.phases() for m in p.moves)
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
    def remote_reads(self) -> tuple[bool, bool]:
        """Whether any rank reads another's input, and another's output."""
        layout = self.schedule.layout
        out, scratch = int(layout.output()), int(layout.scratch_block())
        found = [False, False]
        for step in self.stream:
            slot = step.src_slot[step.src != step.dst]
            found[0] |= bool((slot < out).any())
            found[1] |= bool(((slot >= out) & (slot < scratch)).any())
        return found[0], found[1]

    def _place(self, rank: I32, slot: I32) -> I64:
        nslots = self.schedule.layout.nslots
        where = slot if self._alias is None else self._alias[rank, slot]
        return rank.astype(np.int64) * nslots + where

    def _facts(self) -> Iterator[StepFacts]:
        size = self.schedule.nranks * self.schedule.layout.nslots
        # Since ranks last met: slots written, and slots read by another rank.
        written, read = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        for step in self.stream:
            src, src_slot, dst, dst_slot, _ = slots_of(step)
            reads, writes = self._place(src, src_slot), self._place(dst, dst_slot)
            far = src != dst
            other = reads != writes  # a slot copied onto itself is no hazard
            staged = bool(np.isin(reads[other], writes).any())
            meets = bool(written[reads[far]].any() or read[writes].any() or (staged and far.any()))
            if meets:
                written[:] = False
                read[:] = False
            written[writes] = True
            read[reads[far]] = True
            yield StepFacts(step, staged, meets)


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
