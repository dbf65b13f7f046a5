"""Schedules of one's own: written in Python, planned beside the library's, run by communicators."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import algorithm, blocks, built, is_right
from mpirun import mpirun

import rccl_py as rccl
from rccl_py import Communicator, Config, Custom, Planner, Program, custom, msccl_xml
from rccl_py.algorithms import Algorithm
from rccl_py.check import check
from rccl_py.errors import InvalidArgument, InvalidUsage, ScheduleError
from rccl_py.schedule import Layout, Phase, at, rows

NODE = "mi300x-8"
QUIET = Config(flight_dir="")


def fabric(n: int):
    """Return n accelerators of a node."""
    return rccl.lower(rccl.load(NODE), n)


def ring(n: int, name: str = "mine", **more) -> Custom:
    """Return an allgather round a ring, written chunk by chunk."""
    program = Program("allgather", n)
    for r in range(n):
        chunk = program.chunk(r, "input").copy(r, "output", r)
        for k in range(1, n):
            chunk = chunk.copy((r + k) % n, "output", r)
    return program.custom(name, **more)


def star(n: int, name: str = "star", **more) -> Custom:
    """Return an allreduce over rank 0."""
    program = Program("allreduce", n)
    total = program.chunk(0, "input").copy(0, "output")
    for r in range(1, n):
        total.reduce(program.chunk(r, "input"))
    for r in range(1, n):
        total.copy(r, "output")
    return program.custom(name, **more)


def halves(n: int):
    """Yield the phases of a broadcast from rank 0 in one step."""
    layout = Layout(1, 1, 1)
    others = np.arange(1, n)
    sends = rows(np.zeros(n - 1, dtype=int), others, channel=others % 2)
    yield Phase((at(rows([0], [0]), layout.input(), layout.output()),
                 at(sends, layout.input(), layout.output())))  # fmt: skip


# ---- the language of chunks ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9])
def test_a_ring_of_chunks_is_a_schedule(n):
    found = ring(n)
    check(found.schedule)
    assert sum(p.steps for p in found.schedule.phases()) == n
    for in_place in (False, True):
        assert is_right(found.schedule, np.random.default_rng(0), in_place)


def test_independent_statements_share_a_step_and_dependent_ones_do_not():
    (gather, send) = star(5).schedule.phases()
    assert len(gather.moves) == 5  # onto one place, in the order they are written
    assert [len(m.rows.src) for m in send.moves] == [4]


def test_neighbouring_chunks_travel_as_one_row():
    program = Program("allreduce", 2, chunks=6)
    for r in range(2):
        program.chunk(r, "input", 0, 6).copy(r, "output")
    mine, theirs = (program.chunk(r, "output", 3 - 3 * r, 3) for r in range(2))
    mine.reduce(program.chunk(1, "input", 3, 3)).copy(1, "output", 3)
    theirs.reduce(program.chunk(0, "input", 0, 3)).copy(0, "output", 0)
    counts = [row for p in program.custom("x").schedule.phases() for m in p.moves
              for row in m.rows.count.tolist()]  # fmt: skip
    assert sorted(counts) == [3, 3, 3, 3, 6, 6]


def test_in_place_programs_may_work_in_the_input():
    program = Program("allreduce", 3, in_place=True)
    total = program.chunk(0, "input")
    for r in (1, 2):
        total.reduce(program.chunk(r, "input"))
    for r in (1, 2):
        total.copy(r, "input")
    for in_place in (False, True):
        assert is_right(program.custom("x").schedule, np.random.default_rng(0), in_place)


def test_channels_are_counted():
    program = Program("broadcast", 3, root=1)
    source = program.chunk(1, "input")
    for r in range(3):
        source.copy(r, "output", channel=r)
    assert program.custom("x").schedule.nchannels == 3


def random_program(rng: random.Random) -> Custom:
    """Return a program that adds and sends in any order, by way of other ranks' scratch."""
    n = rng.randint(1, 5)
    name = rng.choice(["allreduce", "reduce_scatter", "allgather", "alltoall", "reduce", "scatter"])
    program = Program(name, n, chunks=rng.randint(1, 3), root=rng.randrange(n),
                      in_place=rng.random() < 0.5)  # fmt: skip
    ledger, k = program._ledger, program.chunks
    adds = name in ("allreduce", "reduce_scatter", "reduce")
    starts = ledger.spec.starts(n, ledger.root)
    held = {}
    order = [(r, b, c) for r in range(n) for b in range(ledger.inputs) for c in range(k)
             if starts[r, b] >= 0]  # fmt: skip
    rng.shuffle(order)
    for r, b, c in order:
        what = int(starts[r, b]) * k + c
        mine = program.chunk(r, "input", b * k + c)
        if not adds or what not in held:
            held[what] = mine.copy(rng.randrange(n), "scratch", 10 + what)
        else:
            held[what] = held[what].reduce(mine, channel=rng.randrange(2))
    goals = [(r, b, c) for r in range(n) for b in range(ledger.outputs) for c in range(k)
             if ledger.goals[r, b] >= 0]  # fmt: skip
    rng.shuffle(goals)
    for r, b, c in goals:
        chunk = held[int(ledger.goals[r, b]) * k + c]
        for _ in range(rng.randrange(3)):
            chunk = chunk.copy(rng.randrange(n), "scratch", rng.randrange(4))
        chunk.copy(r, "output", b * k + c)
    return program.custom("random")


def test_any_program_that_reaches_the_goal_is_right_out_of_place_and_in_place():
    for seed in range(150):
        found = random_program(random.Random(seed))
        for in_place in (False, True):
            alone = in_place and found.collective != "alltoall"
            assert is_right(found.schedule, np.random.default_rng(seed), alone), seed


def test_a_missed_goal_is_refused_with_what_is_there():
    program = Program("allgather", 2)
    program.chunk(0, "input").copy(1, "output", 0)
    with pytest.raises(ScheduleError) as caught:
        program.custom("half")
    assert "output chunk 0 of rank 0 holds nothing" in str(caught.value)
    assert "test_custom.py:" in str(caught.value)


def test_a_wrong_statement_is_refused_where_it_stands():
    program = Program("allreduce", 3, chunks=2)
    with pytest.raises(ScheduleError, match=r"test_custom.py:\d+: reads scratch chunk 4 of rank 1"):
        program.chunk(1, "scratch", 4).copy(0, "output")
    first = program.chunk(0, "input", 0)
    with pytest.raises(ScheduleError, match="not the same chunk"):
        first.reduce(program.chunk(1, "input", 1))
    total = first.copy(0, "output").reduce(program.chunk(1, "input", 0))
    with pytest.raises(ScheduleError, match="rank 1 counts twice"):
        total.reduce(program.chunk(1, "input", 0))


@pytest.mark.parametrize("call, told", [
    (lambda: Program("allsum", 2), "'allsum' is not known"),
    (lambda: Program("allreduce", 0), "nranks 0: expected 1 to 1024"),
    (lambda: Program("allreduce", 2, chunks=10**9), "chunks 1000000000: expected 1 to 262144"),
    (lambda: Program("alltoall", 1000, chunks=100), "use fewer chunks"),
    (lambda: Program("reduce", 2, root=2), "root 2: expected 0 to 1"),
    (lambda: Program("allreduce", 2).chunk(2, "input"), "rank 2: expected 0 to 1"),
    (lambda: Program("allreduce", 2).chunk(0, "inputs"), "buffer 'inputs'"),
    (lambda: Program("allreduce", 2).chunk(0, "input", 1), "expected 0 to 0"),
    (lambda: Program("allreduce", 2).chunk(0, "input", 0, 2), "count from input chunk 0 on 2"),
    (lambda: Program("allreduce", 2).chunk(0, "input").reduce(3), "a Chunk of 1 chunk"),
    (lambda: Program("allreduce", 2).chunk(0, "input").copy(1, "output", channel=64), "channel 64"),
])  # fmt: skip
def test_a_wrong_argument_is_refused(call, told):
    with pytest.raises(InvalidArgument, match=told):
        call()


# ---- phases of one's own ------------------------------------------------------------------------


def test_phases_of_ones_own_become_a_schedule():
    found = custom("broadcast", 4, lambda: halves(4), Layout(1, 1, 1), name="fan")
    assert (found.name, found.nranks, found.schedule.nchannels) == ("fan", 4, 2)
    assert is_right(found.schedule, np.random.default_rng(0), True)


def test_wrong_phases_are_refused_with_step_and_row():
    def wrong():
        yield Phase((at(rows([0, 0], [1, 1]), [0, 0], [1, 1]),))

    with pytest.raises(ScheduleError, match="S2 at phase 0 repetition 0 move 0: rows 0 and 1"):
        custom("broadcast", 2, wrong, Layout(1, 1, 1))
    with pytest.raises(ScheduleError, match="rank 0: output block 0 does not hold"):
        custom("broadcast", 2, list, Layout(1, 1, 1))


def test_phases_must_come_from_a_function_and_fit_the_collective():
    with pytest.raises(InvalidArgument, match="a function that yields Phase"):
        custom("broadcast", 2, halves(2), Layout(1, 1, 1))
    with pytest.raises(ScheduleError, match="yields a int"):
        custom("broadcast", 2, lambda: [3], Layout(1, 1, 1))
    with pytest.raises(InvalidArgument, match="1 input and 4 output"):
        custom("allgather", 4, lambda: halves(4), Layout(1, 1, 1))


def test_a_digest_tells_schedules_apart():
    assert ring(3).digest == ring(3).digest
    others = [ring(4), ring(3, least=8), ring(3, protocols=("LL",)), star(3)]
    assert len({ring(3).digest, *(other.digest for other in others)}) == 5
    assert ring(3).digest in repr(ring(3))


# ---- the planner --------------------------------------------------------------------------------


def test_a_schedule_of_ones_own_is_a_candidate_with_time_and_reason():
    plan = Planner(fabric(4), custom=[ring(4)]).plan("allgather", 1 << 20)
    (mine, *_) = [c for c in plan.candidates if c.algorithm == "mine"]
    assert plan.bound.seconds <= mine.seconds < 1 and mine.reason
    assert mine.seconds >= plan.time


def test_names_that_are_taken_get_another():
    given = [ring(4, "ring"), ring(4, "ring"), ring(4, "mine"), ring(4, "mine")]
    plan = Planner(fabric(4), custom=given).plan("allgather", 1 << 20)
    names = {c.algorithm for c in plan.candidates}
    assert {"ring", "custom-ring", "custom-ring-2", "mine", "mine-2"} <= names


def test_it_may_be_taken_first_and_the_plan_says_what_that_costs():
    plan = Planner(fabric(8), custom=[star(8)], custom_first=True).plan("allreduce", 1 << 26)
    assert plan.algorithm == "star" and plan.candidates[0].algorithm == "star"
    assert "chosen: given as test_custom.py:" in plan.candidates[0].reason
    assert "would take" in plan.candidates[0].reason
    assert any("faster, but not what was given" in c.reason for c in plan.candidates)
    assert plan.time > Planner(fabric(8)).plan("allreduce", 1 << 26).time


def test_it_is_not_used_for_other_calls_and_the_plan_says_why():
    given = [ring(4, "small", most=1 << 10), ring(4, "quick", protocols=("LL",))]
    planner = Planner(fabric(4), proto="Simple", custom=given, custom_first=True)
    plan = planner.plan("allgather", 1 << 20)
    assert plan.algorithm not in ("small", "quick")
    why = {c.algorithm: c.reason for c in plan.candidates}
    assert why["small"] == "made for 0 to 1024 bytes" and why["quick"] == "only by LL"
    assert planner.plan("allgather", 256).algorithm == "small"
    assert "mine" not in [c.algorithm for c in planner.plan("allreduce", 8).candidates]


def test_another_root_is_not_what_it_is_for():
    found = custom("broadcast", 4, lambda: halves(4), Layout(1, 1, 1), name="fan")
    planner = Planner(fabric(4), custom=[found], custom_first=True)
    assert planner.plan("broadcast", 64, 0).algorithm == "fan"
    plan = planner.plan("broadcast", 64, 2)
    assert "made for root 0" in [c.reason for c in plan.candidates if c.algorithm == "fan"]


def test_another_number_of_ranks_is_an_error():
    with pytest.raises(InvalidUsage, match=r"allgather 'mine' on 4 ranks does not fit .* 8 ranks"):
        Planner(fabric(8), custom=[ring(4)])


def test_a_plain_schedule_and_a_row_of_a_registry_may_be_given_too():
    row = algorithm("allreduce", "circulant")
    mine = Algorithm("allreduce", "own-circulant", "own", row.build)
    plan = Planner(fabric(4), custom=[built("allreduce", "ring", 4), mine]).plan("allreduce", 64)
    assert "own-circulant" in [c.algorithm for c in plan.candidates]
    with pytest.raises(InvalidArgument, match="a int: a Custom"):
        Planner(fabric(4), custom=[3])


def test_what_is_given_without_a_proof_is_proved_first():
    whole = built("allgather", "ring", 4)
    cut = replace(whole, phases=lambda: list(whole.phases())[:1])
    with pytest.raises(ScheduleError, match="output block"):
        Planner(fabric(4), custom=[cut])
    for build, error in ((lambda _: whole, InvalidUsage), (lambda _: cut, ScheduleError)):
        row = Algorithm("allreduce" if error is InvalidUsage else "allgather", "own", "own", build)
        with pytest.raises(error):
            Planner(fabric(4), custom=[row]).plan(row.collective, 64)


# ---- communicators ------------------------------------------------------------------------------


def summed(comms, count=1001) -> bool:
    """Return whether an allreduce of ranks' numbers is right."""
    n = len(comms)
    inputs = np.arange(n * count, dtype=np.int64).reshape(n, count)
    outputs = np.zeros_like(inputs)
    with rccl.group():
        for comm, x, y in zip(comms, inputs, outputs):
            comm.allreduce(x, y)
    return bool((outputs == inputs.sum(axis=0)).all())


def test_a_communicator_runs_a_file_it_is_given(tmp_path):
    (tmp_path / "ring.xml").write_text(msccl_xml(built("allreduce", "ring", 4), name="file-ring"))
    settings = Config(schedules=str(tmp_path / "ring.xml"), flight_dir="")
    comms = Communicator.init_all(NODE, 4, config=settings)
    assert summed(comms)
    assert comms[0].last_plan.algorithm == "file-ring"


def test_files_and_schedules_may_be_mixed(tmp_path):
    path = tmp_path / "ring.xml"
    path.write_text(msccl_xml(built("allreduce", "ring", 4), name="file-ring", least=1 << 20))
    comms = Communicator.init_all(NODE, 4, config=Config(schedules=[path, star(4)], flight_dir=""))
    assert summed(comms) and comms[0].last_plan.algorithm == "star"
    two = Config(schedules=f"{path}{os.pathsep}{path}", flight_dir="")
    assert summed(Communicator.init_all(NODE, 4, config=two))


def test_a_part_of_a_communicator_takes_what_has_its_number_of_ranks():
    comms = Communicator.init_all(NODE, 4, config=Config(schedules=[star(4)], flight_dir=""))
    with rccl.group():
        parts = [comm.split(comm.rank % 2, 0) for comm in comms]
    assert summed([part for part in parts if part is not None][::2])


def test_a_file_for_other_ranks_or_a_wrong_one_is_an_error(tmp_path):
    settings = Config(schedules=[star(3)], flight_dir="")
    with pytest.raises(InvalidUsage, match="does not fit"):
        Communicator.init_all(NODE, 4, config=settings)
    with pytest.raises(rccl.errors.FormatError, match="no such file"):
        Communicator.init_all(NODE, 4, config=Config(schedules=str(tmp_path / "none.xml")))
    with pytest.raises(InvalidArgument, match="schedules 3 is a int"):
        Config(schedules=3)


def test_processes_and_threads_get_the_same_bits(tmp_path):
    text = msccl_xml(built("allreduce", "circulant", 3), name="circulant-file")
    (tmp_path / "a.xml").write_text(text)
    done = mpirun(3, str(Path(__file__).with_name("mpi_custom.py")), str(tmp_path / "a.xml"))
    assert done.returncode == 0 and done.stdout == "0 differ\n", done.stdout + done.stderr


def test_blocks_of_the_helpers_and_of_programs_agree():
    for name in rccl.COLLECTIVES:
        ledger = Program(name, 3)._ledger
        assert (ledger.inputs, ledger.outputs) == blocks(name, 3)
