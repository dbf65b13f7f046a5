"""Transports: what runs fast gives the bits of a row-by-row loop, and NumPy's whole numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    SlowBuffers,
    algorithm,
    blocks,
    buffers_of,
    built,
    divisors,
    expected,
    recipe_of,
    slow_run,
    step_of,
)
from mpirun import mpirun

from rccl_py.algorithms import ALGORITHMS
from rccl_py.collectives import COLLECTIVES
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.execute import execute
from rccl_py.reduce_ops import ReduceOp
from rccl_py.schedule import COPY, Schedule
from rccl_py.transports import local
from rccl_py.transports.program import Extents, Program

OPS = [op for op in ReduceOp if op is not ReduceOp.AVG]
by_name = pytest.mark.parametrize("row", ALGORITHMS, ids=lambda a: f"{a.collective}/{a.name}")


@pytest.fixture(params=["padded", "columns", "tiles and threads"])
def path(request, monkeypatch) -> str:
    """Force one of the local transport's ways to run."""
    monkeypatch.setattr(local, "_SLOT", 1 << 62 if request.param == "padded" else 0)
    if request.param == "tiles and threads":
        monkeypatch.setattr(local, "_TILE", 64)
        monkeypatch.setattr(local, "_THREADED", 1)
        monkeypatch.setattr(local.os, "cpu_count", lambda: 3)
    return request.param


def data(n: int, length: int, dtype: np.dtype, seed: int = 0) -> list[np.ndarray]:
    """Return each rank's input: numbers whose sums round differently in another order."""
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return [rng.integers(0, 100, length).astype(dtype) for _ in range(n)]
    return [rng.normal(size=length).astype(np.float32).astype(dtype) for _ in range(n)]


def run_both(schedule: Schedule, block: int, dtype: np.dtype, op: ReduceOp,
             in_place: list[bool]) -> list[np.ndarray]:  # fmt: skip
    """Run the transport and the slow twin; compare every buffer's bits; return the inputs."""
    inputs = data(schedule.nranks, blocks(schedule.collective, schedule.nranks)[0] * block, dtype)
    given = [schedule.collective, inputs, schedule.root, in_place, 7]
    fast, slow = buffers_of(*given), buffers_of(*given)
    placed = any(in_place) and schedule.collective != "alltoall"
    local.run(Program(schedule, in_place=placed), block, fast, op, dtype)
    slow_run(schedule, block, slow, op.ufunc)
    for pair, twin in zip(fast, slow):
        for mine, wanted in zip(pair, twin):
            assert (mine is None) == (wanted is None)
            assert mine is None or mine.tobytes() == wanted.tobytes()
    combined = expected(schedule.collective, inputs, schedule.root, op.ufunc)
    for (_, target), wanted in zip(fast, combined):
        if dtype.kind in "iu" and target is not None:
            assert np.array_equal(target, wanted)
    return inputs


@by_name
def test_the_local_transport_gives_the_bits_of_a_loop_over_rows(row, path):
    for k, n in enumerate((1, 2, 3, 5, 8, 12)):
        sizes = divisors(n) if row.two_level else [None]
        for i, block in enumerate((0, 1, n - 1, 13, 64)):
            pieces, g = min(row.pieces, 1 + i % 3), sizes[i % len(sizes)]
            kind = np.dtype(np.float32 if i % 2 else np.int64)
            if (i + k) % 2:
                run_both(row.build(recipe_of(n, i % n, g, pieces)), block, kind, ReduceOp.SUM,
                         [False] * n)  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_type_and_reduction_gives_the_bits_of_a_loop_over_rows(name, op, path):
    for collective, algo in (("allreduce", "ring"), ("reduce_scatter", "circulant"),
                             ("reduce", "tree")):  # fmt: skip
        run_both(built(collective, algo, 4, 1), 13, dtype_named(name), op, [False] * 4)


@pytest.mark.parametrize("placed", ["all", "some"])
@by_name
def test_in_place_and_mixed_calls_give_the_same_as_apart(row, placed, path):
    for n in (2, 5, 6):
        in_place = [placed == "all" or r % 2 == 0 for r in range(n)]
        g = max(divisors(n)[:-1]) if row.two_level else None
        run_both(row.build(recipe_of(n, n - 1, g)), 11, np.dtype(np.int64), ReduceOp.SUM, in_place)


@by_name
def test_an_input_apart_from_its_output_is_left_as_it_was(row, path):
    schedule = row.build(recipe_of(4, 1, 2 if row.two_level else None))
    inputs = data(4, blocks(row.collective, 4)[0] * 9, np.dtype(np.float32))
    given = buffers_of(row.collective, inputs, 1, [False] * 4, 7)
    local.run(Program(schedule), 9, given, ReduceOp.SUM, np.dtype(np.float32))
    assert all(source is None or source.tobytes() == before.tobytes()
               for (source, _), before in zip(given, inputs))  # fmt: skip


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("block", [99_991, 100_000])
def test_large_calls_agree_with_numpy_within_the_rounding_of_their_sums(collective, block):
    for row in (a for a in ALGORITHMS if a.collective == collective and not a.two_level):
        schedule, kind = row.build(recipe_of(3, 2)), np.dtype(np.float32)
        inputs = data(3, blocks(collective, 3)[0] * block, kind)
        given = buffers_of(collective, inputs, 2, [False] * 3, 7)
        local.run(Program(schedule), block, given, ReduceOp.SUM, kind)
        exact = expected(collective, [held.astype(np.float64) for held in inputs], 2)
        for (_, target), wanted in zip(given, exact):
            # Two additions of numbers of about 1, each rounded to 24 bits.
            assert target is None or np.allclose(target, wanted, rtol=0, atol=16 * 2.0**-24)


@by_name
def test_execute_gives_the_same_numbers_as_a_loop_over_rows(row):
    for n in (1, 3, 4):
        schedule = row.build(recipe_of(n, n - 1, 1 if row.two_level else None))
        layout = schedule.layout
        many_in, _ = blocks(row.collective, n)
        buf = np.random.default_rng(2).integers(0, 2**62, (n, layout.nslots))
        slow = [(r[: many_in * layout.chunks].copy(), None) for r in buf]
        pairs = [(source, buf[r, int(layout.output()) : int(layout.scratch_block())].copy())
                 for r, (source, _) in enumerate(slow)]  # fmt: skip
        twin = SlowBuffers(schedule, layout.chunks, pairs, np.int64, 0)
        for r in range(n):
            for s in range(layout.nslots):
                twin.slots[r][s][...] = buf[r, s]
        execute(schedule, buf, np.add)
        twin.run(schedule, np.add)
        assert buf.tolist() == [[int(x[0]) for x in slots] for slots in twin.slots]


def test_all_reads_of_a_step_come_before_its_writes():
    buf = np.array([[1, 2], [3, 4]])
    execute([step_of((0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, 1, 1, 1))], buf, np.add)
    assert buf.tolist() == [[3, 4], [1, 4]]


# ---- what processes rely on -----------------------------------------------------------------


def run_as_processes_may(program: Program, slots: SlowBuffers, rng: np.random.Generator) -> None:
    """Run between two meetings one rank's rows after another's, in whatever order of ranks."""
    segments: list[list[tuple]] = [[]]
    for facts in program.steps:
        if facts.meets:
            segments.append([])
        segments[-1].append((facts.step, "read" if facts.staged else "both", {}))
        if facts.staged:
            segments.append([(facts.step, "write", segments[-1][-1][2])])
    for segment in segments:
        for rank in rng.permutation(program.schedule.nranks):
            for step, what, kept in segment:
                rows = zip(*(getattr(step, c).tolist() for c in
                             ("src", "dst", "src_slot", "dst_slot", "count", "op")))  # fmt: skip
                for row, (src, dst, a, b, count, op) in enumerate(rows):
                    for i in range(count if dst == rank else 0):
                        if what != "write":
                            kept[row, i] = slots.slots[src][a + i].copy()
                        if what != "read":
                            there = slots.slots[dst][b + i]
                            moved = kept[row, i]
                            there[...] = moved if op == COPY else there + moved


@pytest.mark.parametrize("in_place", [False, True])
@by_name
def test_ranks_that_meet_only_where_the_program_says_get_the_same_whatever_their_order(
    row, in_place
):
    rng = np.random.default_rng(3)
    for n in (2, 3, 6):
        for g in divisors(n) if row.two_level else [None]:
            schedule = row.build(recipe_of(n, n // 2, g, min(row.pieces, 2)))
            k, placed = schedule.layout.chunks, in_place and row.collective != "alltoall"
            inputs = data(n, blocks(row.collective, n)[0] * k, np.dtype(np.int64))
            pairs = buffers_of(row.collective, inputs, n // 2, [placed] * n, 7)
            slots = SlowBuffers(schedule, k, pairs, np.int64, 7)
            run_as_processes_may(Program(schedule, in_place=placed), slots, rng)
            for (_, target), wanted in zip(pairs, expected(row.collective, inputs, n // 2)):
                assert wanted is None or np.array_equal(target, wanted)


@pytest.mark.parametrize("block", [0, 1, 5, 64])
@by_name
def test_element_ranges_are_those_of_the_slots_one_by_one(row, block):
    schedule = row.build(recipe_of(4, 1, 2 if row.two_level else None))
    layout, extents = schedule.layout, Extents(Program(schedule), block)
    low = [c * block // layout.chunks for c in range(layout.chunks + 1)]
    ends = [int(layout.output()), int(layout.scratch_block())]
    for step in schedule:
        for rank, slot in ((step.src, step.src_slot), (step.dst, step.dst_slot)):
            found = extents.ranges(rank, slot, step.count)
            for i, (first, count) in enumerate(zip(slot.tolist(), step.count.tolist())):
                sizes = [low[s % layout.chunks + 1] - low[s % layout.chunks]
                         for s in range(first, first + count)]  # fmt: skip
                buffer = sum(first >= end for end in ends)
                assert (found.buffer[i], found.length[i]) == (buffer, sum(sizes))
                if buffer < 2:
                    own = first - [0, *ends][buffer]
                    start = own // layout.chunks * block + low[own % layout.chunks]
                    assert found.start[i] == start


def test_scratch_takes_room_only_where_a_rank_writes_it():
    schedule = algorithm("gather", "direct").build(recipe_of(4, 0))
    extents = Extents(Program(schedule), 10)
    assert [extents.scratch_elements(r) for r in range(4)] == [0, 10, 10, 10]


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["shared", "messages"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_processes_give_the_bits_of_the_local_transport(n, mode):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'rccl_py[mpi]'")
    done = mpirun(n, str(Path(__file__).with_name("mpi_parity.py")), mode)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9]\d+ buffers equal to the bit, 0 differ$", done.stdout, re.MULTILINE)
