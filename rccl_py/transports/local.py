"""The local transport: all ranks' buffers are in this process.

Owns how rows run fast on NumPy arrays. A transfer keeps positions (S3), so the positions of a
block never mix: small calls run all ranks at once on a padded array; large calls run one position
after another, a cache-sized tile at a time, from the first step to the last. The order at every
element is the schedule's either way, so the bits are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..execute import execute, slots_of
from ..reduce_ops import Arithmetic
from ..schedule import COPY, I32, Layout, Step
from .program import Extents, Program

__all__ = ["Buffers", "run"]

Array = npt.NDArray[Any]
Row = tuple[Array, Array, bool, bool]
"""source, target, is it a copy, does it come from another rank"""
Buffers = tuple[Array | None, Array | None]
"""A rank's flat input and output, None where the collective gives it none."""

_SLOT = 1 << 13  # bytes of a slot below which one fancy index a step beats one call a row
_PADDED = 3 << 19  # KiB (1.5 GiB) the padded array may take
_TILE = 1 << 17  # bytes of one row's tile: a position of all ranks then fits a core's cache
_THREADED = 1 << 23  # bytes moved from which a second thread pays


def run(program: Program, block: int, buffers: Sequence[Buffers], arithmetic: Arithmetic) -> None:
    """Run `program` on every rank's buffers; `block` is elements of one block.

    buffers are flat, contiguous, already checked, and of the type that is held. A rank whose input
    and output coincide calls in place.
    """
    if block == 0:
        return
    layout = program.schedule.layout
    slot = -(-block // layout.chunks) * arithmetic.held.itemsize
    filled = min(block, layout.chunks) * (layout.nslots // layout.chunks)
    if slot <= _SLOT and slot * filled * len(buffers) <= _PADDED << 10:
        _run_padded(program, block, buffers, arithmetic)
    else:
        _run_columns(program, block, buffers, arithmetic)


class _Padding:
    """Positions that hold elements, each padded to the widest: [filled positions, widest].

    element: which element of its block a place holds. real: whether it is one, or padding.
    """

    def __init__(self, layout: Layout, block: int) -> None:
        low = np.arange(layout.chunks + 1, dtype=np.int64) * block // layout.chunks
        sizes = np.diff(low)
        filled = np.flatnonzero(sizes)
        within = np.arange(int(sizes.max()))
        self.element = np.minimum(low[filled][:, None] + within, block - 1)
        self.real = within < sizes[filled][:, None]
        self.count, self._chunks = len(filled), layout.chunks
        self._place = np.full(layout.chunks, -1, dtype=np.int32)
        self._place[filled] = np.arange(len(filled), dtype=np.int32)

    def _moved(self, slot: I32) -> I32:
        block, position = np.divmod(slot, self._chunks)
        return np.asarray(block * self.count + self._place[position], dtype=np.int32)

    def steps(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps on the filled positions only, slots renumbered."""
        if self.count == self._chunks:
            yield from steps
            return
        for step in steps:
            src, src_slot, dst, dst_slot, op = slots_of(step)
            kept = self._place[src_slot % self._chunks] >= 0
            one = np.ones(int(kept.sum()), dtype=np.int32)
            yield Step(
                src[kept],
                dst[kept],
                self._moved(src_slot[kept]),
                self._moved(dst_slot[kept]),
                one,
                op[kept],
                0 * one,
            )


def _run_padded(
    program: Program, block: int, buffers: Sequence[Buffers], arithmetic: Arithmetic
) -> None:
    layout = program.schedule.layout
    padding = _Padding(layout, block)
    blocks = layout.nslots // layout.chunks
    shape = len(buffers), blocks, padding.count, padding.element.shape[1]
    held = np.zeros(shape, dtype=arithmetic.held)
    for rank, (source, _) in enumerate(buffers):
        if source is not None:
            held[rank, : layout.inputs] = source.reshape(-1, block)[:, padding.element]
    by_slot = held.reshape(len(buffers), blocks * padding.count, -1)
    with np.errstate(all="ignore"):
        travel = arithmetic.travel if arithmetic.rounds else None
        execute(padding.steps(program.stream), by_slot, arithmetic.ufunc, travel)
    outputs = slice(layout.inputs, layout.inputs + layout.outputs)
    for rank, (_, target) in enumerate(buffers):
        if target is not None:
            target.reshape(-1, block)[...] = held[rank, outputs][:, padding.real]


class _Columns:
    """Rows of a program by position, as views that a tile cuts further."""

    def __init__(self, program: Program, block: int, memory: list[list[Array | None]]) -> None:
        self.memory = memory
        self.extents = Extents(program, block)
        k = program.schedule.layout.chunks
        self.by_position: list[list[list[Row]]] = [[] for _ in range(k)]
        for facts in program.steps:
            self._add(slots_of(facts.step), facts.staged)

    def _add(self, slots: tuple[Any, ...], staged: bool) -> None:
        src, src_slot, dst, dst_slot, op = slots
        one = np.ones(len(src), dtype=np.int32)
        read = self.extents.ranges(src, src_slot, one)
        write = self.extents.ranges(dst, dst_slot, one)
        position = src_slot % self.extents.layout.chunks
        opened: dict[int, list[Row]] = {}
        columns = (
            src,
            read.buffer,
            read.start,
            dst,
            write.buffer,
            write.start,
            read.length,
            op == COPY,
            position,
        )
        for s, sb, s0, d, db, d0, length, is_copy, c in zip(*(x.tolist() for x in columns)):
            source, target = self.memory[s][sb], self.memory[d][db]
            if not length or source is None or target is None:
                continue
            row = (source[s0 : s0 + length], target[d0 : d0 + length], is_copy, s != d)
            if staged:
                opened.setdefault(c, []).append(row)
            else:
                self.by_position[c].append([row])
        for c, batch in opened.items():
            self.by_position[c].append(batch)


def _run_column(batches: list[list[Row]], arithmetic: Arithmetic, tile: int) -> None:
    """Run one position's rows in order, tile by tile; rows of one batch read before any writes."""
    length, combine = len(batches[0][0][0]) if batches else 0, arithmetic.ufunc
    with np.errstate(all="ignore"):
        for low in range(0, length, tile):
            cut = slice(low, low + tile)
            for batch in batches:
                staged = [source[cut].copy() for source, *_ in batch] if len(batch) > 1 else None
                for i, (source, target, is_copy, far) in enumerate(batch):
                    moved, there = staged[i] if staged else source[cut], target[cut]
                    if far and arithmetic.rounds:
                        moved = arithmetic.travel(moved)
                    if is_copy:
                        there[...] = moved
                    else:
                        combine(there, moved, out=there)


def _run_columns(
    program: Program, block: int, buffers: Sequence[Buffers], arithmetic: Arithmetic
) -> None:
    extents = Extents(program, block)
    memory = [
        [source, target, np.empty(extents.scratch_elements(rank), dtype=arithmetic.held)]
        for rank, (source, target) in enumerate(buffers)
    ]
    columns = _Columns(program, block, memory).by_position
    itemsize = arithmetic.held.itemsize
    tile = max(1, _TILE // itemsize)
    workers = min(len(columns), os.cpu_count() or 1)
    if workers < 2 or block * itemsize * len(buffers) < _THREADED:
        for batches in columns:
            _run_column(batches, arithmetic, tile)
        return
    # Positions share no element, so threads need no lock; NumPy lets go of the interpreter.
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda batches: _run_column(batches, arithmetic, tile), columns))
