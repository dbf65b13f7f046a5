"""Transports: what runs fast gives the bits of a row-by-row loop, and NumPy's whole numbers."""

from __future__ import annotations

import re
from dataclasses import replace
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
    of_steps,
    recipe_of,
    slow_run,
    step_of,
    suits,
)
from mpirun import mpirun

from rccl_py.algorithms import ALGORITHMS
from rccl_py.collectives import COLLECTIVES
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.execute import execute
from rccl_py.reduce_ops import Arithmetic, ReduceOp
from rccl_py.schedule import Layout, Schedule
from rccl_py.transports import local
from rccl_py.transports.bound import SharedBound
from rccl_py.transports.lowered import SOURCE, STAGED, TARGET, lowered
from rccl_py.transports.passes import apply
from rccl_py.transports.program import Extents, Program
from rccl_py.transports.tiles import tiling

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
    local.run(Program(schedule, in_place=placed), block, fast, Arithmetic(op, dtype))
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
    for k, n in enumerate(n for n in (1, 2, 3, 5, 8, 12) if suits(row, n)):
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
    for n in (n for n in (2, 5, 6) if suits(row, n)):
        in_place = [placed == "all" or r % 2 == 0 for r in range(n)]
        g = max(divisors(n)[:-1]) if row.two_level else None
        run_both(row.build(recipe_of(n, n - 1, g)), 11, np.dtype(np.int64), ReduceOp.SUM, in_place)


@by_name
def test_an_input_apart_from_its_output_is_left_as_it_was(row, path):
    schedule = row.build(recipe_of(4, 1, 2 if row.two_level else None))
    inputs = data(4, blocks(row.collective, 4)[0] * 9, np.dtype(np.float32))
    given = buffers_of(row.collective, inputs, 1, [False] * 4, 7)
    local.run(Program(schedule), 9, given, Arithmetic(ReduceOp.SUM, np.dtype(np.float32)))
    assert all(source is None or source.tobytes() == before.tobytes()
               for (source, _), before in zip(given, inputs))  # fmt: skip


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("block", [99_991, 100_000])
def test_large_calls_agree_with_numpy_within_the_rounding_of_their_sums(collective, block):
    rows = [a for a in ALGORITHMS if a.collective == collective and not a.two_level]
    for row in (a for a in rows if suits(a, 3)):
        schedule, kind = row.build(recipe_of(3, 2)), np.dtype(np.float32)
        inputs = data(3, blocks(collective, 3)[0] * block, kind)
        given = buffers_of(collective, inputs, 2, [False] * 3, 7)
        local.run(Program(schedule), block, given, Arithmetic(ReduceOp.SUM, kind))
        exact = expected(collective, [held.astype(np.float64) for held in inputs], 2)
        for (_, target), wanted in zip(given, exact):
            # Two additions of numbers of about 1, each rounded to 24 bits.
            assert target is None or np.allclose(target, wanted, rtol=0, atol=16 * 2.0**-24)


@by_name
def test_execute_gives_the_same_numbers_as_a_loop_over_rows(row):
    for n in (n for n in (1, 3, 4) if suits(row, n)):
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


class Ranks:
    """All ranks of a call over shared memory in one process, each going on when it likes."""

    def __init__(self, schedule: Schedule, block: int, pairs: list, arithmetic: Arithmetic,
                 most: int, rng: np.random.Generator) -> None:  # fmt: skip
        program, self.n, self.rng = Program(schedule), schedule.nranks, rng
        tiles = tiling(program.order, schedule.layout, block, most)
        assert tiles is not None
        self.come = [0] * self.n
        self.slots = [1, 0, 2][: rng.integers(2, 4)]
        garbage = np.full((3, 2 * self.n, most), 3, dtype=arithmetic.held)

        def memories(rank: int):
            return lambda slot, _: [*garbage[slot, : self.n], garbage[0, self.n + rank]]

        self.bounds = [SharedBound(program, block, arithmetic, tiles, r, memories(r))
                       for r in range(self.n)]  # fmt: skip
        self.turns = [self.turn(r, *pairs[r]) for r in range(self.n)]

    def turn(self, rank: int, source, target):
        """Run a rank; yield, where it meets others, whom it waits for."""
        bound = self.bounds[rank]
        streams = bound.streams(self.slots, source, target)
        for tile in range(bound.number):
            levels = [map(next, level) for level in streams]
            if tile == bound.number - 1:
                slot = self.slots[tile % len(self.slots)]
                levels = bound.last(slot, source, target)
            for level, works in enumerate(levels):
                if level:
                    self.come[rank] += 1
                    yield bound.awaited[level]
                apply(works)

    def run(self) -> None:
        """Let a random one of the ranks that need not wait go on, until all are through."""
        waits = {rank: [] for rank in range(self.n)}
        while waits:
            free = [r for r, others in waits.items()
                    if all(self.come[o] >= self.come[r] for o in others)]  # fmt: skip
            rank = free[self.rng.integers(len(free))]
            others = next(self.turns[rank], None)
            if others is None:
                del waits[rank]
            else:
                waits[rank] = others


@pytest.mark.parametrize("placed", ["apart", "all", "some"])
@by_name
def test_ranks_that_wait_only_where_the_levels_say_get_the_same_whatever_their_order(row, placed):
    rng = np.random.default_rng(3)
    arithmetic = Arithmetic(ReduceOp.SUM, np.dtype(np.float64))
    for n in (n for n in (1, 2, 3, 6) if suits(row, n)):
        for i, g in enumerate(divisors(n) if row.two_level else [None]):
            schedule = row.build(recipe_of(n, n // 2, g, min(row.pieces, 1 + 2 * (n % 2))))
            most = 8 * max(1, schedule.layout.nslots)
            for block in (1, 7 * schedule.layout.chunks, 41 * schedule.layout.chunks - 1)[i % 2 :]:
                inputs = data(n, blocks(row.collective, n)[0] * block, arithmetic.dtype, block)
                in_place = [placed == "all" or (placed == "some" and r % 2 == 0) for r in range(n)]
                given = [row.collective, inputs, n // 2, in_place, 7]
                fast, slow = buffers_of(*given), buffers_of(*given)
                Ranks(schedule, block, fast, arithmetic, most, rng).run()
                slow_run(schedule, block, slow, np.add)
                for (_, mine), (_, wanted) in zip(fast, slow):
                    assert mine is None or mine.tobytes() == wanted.tobytes()


def test_a_step_whose_rows_read_what_others_write_needs_no_order_among_them():
    like = built("allreduce", "ring", 2)
    k = like.layout.chunks
    # Output := input, then both ranks swap the output: neither may write before the other read.
    copy = step_of((0, 0, 0, k, k), (1, 1, 0, k, k))
    swap = step_of((0, 1, k, k, k), (1, 0, k, k, k))
    schedule = of_steps(like, [[copy], [swap], [swap], [swap]])
    inputs = data(2, 50, np.dtype(np.int64))
    for seed in range(5):
        pairs = buffers_of("allreduce", inputs, 0, [seed % 2 == 0] * 2, 7)
        rng = np.random.default_rng(seed)
        Ranks(schedule, 50, pairs, Arithmetic(ReduceOp.SUM, np.dtype(np.int64)), 32, rng).run()
        assert [pairs[r][1].tolist() for r in (0, 1)] == [inputs[1].tolist(), inputs[0].tolist()]


@pytest.mark.parametrize("seed", range(40))
def test_steps_drawn_at_random_give_what_a_loop_over_their_rows_gives(seed):
    rng = np.random.default_rng(seed)
    n, layout = 3, Layout(2, 1, 1, 2)
    ranks = np.arange(n)
    # Every slot holds something before it is read.
    steps = [[step_of(*((r, r, 0, first, 2) for r in ranks))] for first in (2, 4, 6)]
    for _ in range(12):
        written = rng.permutation([(r, b, c) for r in ranks for b in (2, 4, 6) for c in (0, 1)])
        rows = [(rng.integers(n), dst, 2 * rng.integers(4) + c, b + c, 1, rng.integers(2))
                for dst, b, c in written[: rng.integers(1, 9)]]  # fmt: skip
        steps.append([step_of(*rows)])
    like = built("allreduce", "direct-oneshot", n)
    schedule = of_steps(replace(like, layout=layout), steps)
    arithmetic = Arithmetic(ReduceOp.SUM, np.dtype(np.float64))
    inputs = data(n, 23, arithmetic.dtype, seed)
    fast, slow = (buffers_of("allreduce", inputs, 0, [False] * n, 7) for _ in range(2))
    Ranks(schedule, 23, fast, arithmetic, 40, rng).run()
    slow_run(schedule, 23, slow, np.add)
    assert [y.tolist() for _, y in fast] == [y.tolist() for _, y in slow]


@by_name
def test_no_output_is_written_before_ranks_know_that_they_make_the_same_call(row):
    for n in (n for n in (2, 5) if suits(row, n)):
        schedule = row.build(recipe_of(n, 1, 1 if row.two_level else None))
        for rank in range(n):
            first = lowered(Program(schedule).order, schedule.layout, rank)[0]
            assert all(operation.into.memory != TARGET for operation in first)


@pytest.mark.parametrize("pieces", [1, 8, 64])
def test_a_pipelined_tree_meets_as_often_as_it_is_deep_not_as_it_has_pieces(pieces):
    most = {Program(built("allreduce", "tree", 8, 0, None, pieces)).order.meets}
    assert most == {Program(built("allreduce", "tree", 8, 0, None, 1)).order.meets}
    assert max(most) <= 8


def test_a_direct_exchange_in_one_shot_meets_once_and_adds_into_the_output():
    program = Program(built("allreduce", "direct-oneshot", 2))
    assert program.order.meets == 1
    first, second = lowered(program.order, program.schedule.layout, 1)
    assert [(o.kept, o.taken.memory, o.into.memory) for o in first] == [(None, SOURCE, STAGED)]
    (only,) = second
    assert [p.memory for p in (only.kept, only.taken, only.into)] == [STAGED, STAGED, TARGET]


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
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_processes_give_the_bits_of_the_local_transport(n):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'rccl_py[mpi]'")
    done = mpirun(n, str(Path(__file__).with_name("mpi_parity.py")))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9]\d+ buffers equal to the bit, 0 differ$", done.stdout, re.MULTILINE)


ODD_CALLS = """
import sys, time
import numpy as np
from mpi4py import MPI
from helpers import built
from rccl_py.reduce_ops import Arithmetic, ReduceOp
from rccl_py.transports.mpi import HeadsDiffer, MpiTransport
from rccl_py.transports.program import Program

class Waiting:
    patience, seen = 60.0, ()
    def pause(self, waited, missing):
        self.seen = tuple(missing)
        if waited > self.patience:
            raise TimeoutError
        time.sleep(0.001)

world, waiting = MPI.COMM_WORLD, Waiting()
n, r = world.size, world.rank
t = MpiTransport(world, waiting, shared=None if sys.argv[1] == "shared" else False)
program = Program(built("allreduce", "direct-twoshot", n))
arithmetic = Arithmetic(ReduceOp.SUM, np.dtype(int))
bound = t.bind(program, 7, arithmetic)
x, y = np.arange(7) + r, np.full(7, -1)
long = t.bind(program, 700_000, arithmetic)  # several tiles
u, v = np.arange(700_000) + r, np.full(700_000, -1)

# Calls that differ: everyone hears what everyone said, and nothing is written.
for _ in range(3):
    try:
        given = (long, u, v) if r == 1 else (bound, x, y)
        t.collective(bytes([r == 1]) * 64, 0.0, *given)
    except HeadsDiffer as error:
        assert error.heads == [bytes([q == 1]) * 64 for q in range(n)], error.heads
        assert (y == -1).all() and (v == -1).all()
    else:
        raise AssertionError("no HeadsDiffer")

# Texts of any length, an empty one too; then calls go on.
texts = [f"{q}é" * (q * 1_000_000) for q in range(n)]
assert t.exchange_texts(texts[r]) == texts
assert t.collective(bytes(64), r / 2, None, None, None) == (n - 1) / 2
assert t.collective(b"a" * 64, 1.0, bound, x, y) == 1.0
assert (y == n * np.arange(7) + n * (n - 1) // 2).all()
for k in range(3):
    assert t.collective(bytes([7 + k]) * 64, 1.0, long, u, v) == 1.0
    assert (v == n * np.arange(700_000) + n * (n - 1) // 2).all()
    v[:] = -1

# A rank that stays away: the others' pause is told who is missing, and may end the wait.
waiting.patience = 0.2
if r != n - 1:
    try:
        t.collective(b"b" * 64, 0.0, bound, x, y)
    except TimeoutError:
        assert n - 1 in waiting.seen, waiting.seen
    else:
        raise AssertionError("the call ended without a rank")
t.abandon()
print("well", r, flush=True)
world.Barrier()
world.Abort(0) if r == 0 else time.sleep(30)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["shared", "messages"])
def test_odd_calls_of_processes_end_at_every_rank(mode, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = mpirun(3, "-c", ODD_CALLS, mode)
    assert done.stdout.count("well") == 3, done.stdout[-2000:] + done.stderr[-2000:]
