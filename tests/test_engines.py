"""Engines agree where they must, auto says what it took and why, and refusals name a way out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers import options_of

from rccl_py import Planner, load, lower
from rccl_py.collectives import COLLECTIVES
from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import Layout, Phase, Schedule, at, rows
from rccl_py.timing import ENGINES, timed
from rccl_py.timing.lockstep import _is_even as is_even
from rccl_py.timing.lockstep import even
from rccl_py.timing.stages import stages
from rccl_py.timing.wires import wires

MACHINES = {
    "mi300x-8": lambda: lower(load("mi300x-8")),
    "h100-8": lambda: lower(load("h100-8")),
    "h100-8 x 4": lambda: lower(load("h100-8", nodes=4)),
    "helios-72": lambda: lower(load("helios-72")),
    "ualink-64": lambda: lower(load("ualink-64")),
    "tpu-v4-64": lambda: lower(load("tpu-v4-64")),
}
_RANKS_ALIKE = {"ring", "both-ways", "circulant"}
FLAT = {"allreduce": _RANKS_ALIKE | {"direct-oneshot", "direct-twoshot", "recursive-doubling",
                                     "halving-doubling", "swing"},
        "allgather": _RANKS_ALIKE | {"direct", "recursive-doubling", "neighbour", "pat",
                                     "dissemination"},
        "reduce_scatter": _RANKS_ALIKE | {"direct", "recursive-halving", "neighbour", "pat"},
        "alltoall": {"direct", "pairwise", "ring", "bruck", "bruck-4", "bruck-8",
                     "grid"}}  # fmt: skip
"""What is even on one mesh or switch: every rank does the same there."""
BLOCK = float(1 << 20)


@cache
def planner(name):
    return Planner(MACHINES[name]())


@cache
def offered(name, collective):
    """The algorithms the planner offers, in few pieces (more say nothing new, slowly)."""
    return options_of(planner(name), collective)


def seconds(option, engine, block=BLOCK, protocol="Simple", **how):
    fabric = option.profile.fabric
    return timed(option.schedule, fabric, block, PROTOCOLS[protocol], engine=engine,
                 known=option.profile, **how).seconds  # fmt: skip


@pytest.mark.parametrize("collective", list(COLLECTIVES))
@pytest.mark.parametrize("name", MACHINES)
def test_engines_agree_where_all_ranks_do_the_same(name, collective):
    for option in offered(name, collective):
        if not even(option.schedule, planner(name).fabric, PROTOCOLS["Simple"]):
            continue
        for block in (1024.0, 64.0 * BLOCK):
            bound = seconds(option, "estimate", block)
            for engine in ("clock", "simulate"):
                found = seconds(option, engine, block)
                assert found == pytest.approx(bound, rel=1e-9), (option.algorithm.name, engine)


@pytest.mark.parametrize("collective", FLAT)
@pytest.mark.parametrize("name", ["mi300x-8", "h100-8", "helios-72", "ualink-64"])
def test_flat_algorithms_are_even_on_a_mesh_and_on_a_switch(name, collective):
    fabric = planner(name).fabric
    found = {o.algorithm.name for o in offered(name, collective)
             if o.pieces == 1 and even(o.schedule, fabric, PROTOCOLS["Simple"])}  # fmt: skip
    every = {o.algorithm.name for o in offered(name, collective)}
    n = fabric.nranks
    folded = {"recursive-doubling", "halving-doubling", "bruck-4"} if n & (n - 1) else ()
    assert found - {"nvls"} == FLAT[collective] & every - set(folded)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_two_level_algorithms_are_even_on_rails(collective):
    fabric = planner("h100-8 x 4").fabric
    wanted = {"alltoall": {"hier-direct-direct"}}.get(
        collective, {f"hier-{i}-{b}" for i in ("direct", "ring")
                     for b in ("ring", "direct", "circulant")})  # fmt: skip
    found = {o.algorithm.name for o in offered("h100-8 x 4", collective)
             if even(o.schedule, fabric, PROTOCOLS["Simple"])}  # fmt: skip
    assert wanted <= found


@pytest.mark.parametrize("collective", list(COLLECTIVES))
@pytest.mark.parametrize("name", MACHINES)
def test_to_wait_for_all_is_never_faster_than_to_wait_for_some(name, collective):
    for option in offered(name, collective):
        for protocol, block in (("LL", 1024.0), ("Simple", 64 * BLOCK)):
            bound = seconds(option, "estimate", block, protocol)
            found = seconds(option, "clock", block, protocol)
            assert found <= bound * (1 + 1e-9), (option.algorithm.name, option.pieces)


@pytest.mark.parametrize("times", ["wire", "latency", "lead"])
def test_one_message_that_takes_longer_makes_a_stage_uneven(times):
    fabric = planner("mi300x-8").fabric
    option = offered("mi300x-8", "alltoall")[0]
    found = wires(next(stages(option.schedule, fabric)), fabric, PROTOCOLS["LL"], 1.0)
    assert is_even(found, 8)
    longer = getattr(found, times).copy()
    longer[5] *= 1.01
    assert not is_even(replace(found, **{times: longer}), 8)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall"])
@pytest.mark.parametrize("name", ["mi300x-8", "h100-8", "h100-8 x 4"])
def test_engines_agree_on_any_number_of_channels_where_all_ranks_do_the_same(name, collective):
    fabric, slower = replace(planner(name).fabric, per_channel=(2e9, 8e9, 2e10)), 0
    for option in options_of(Planner(fabric), collective):
        for channels in (1, 3, 64):
            if not even(option.schedule, fabric, PROTOCOLS["Simple"], channels):
                continue
            for block in (1024.0, 64.0 * BLOCK):
                bound = seconds(option, "estimate", block, channels=channels)
                slower += bound > seconds(option, "estimate", block)
                for engine in ("clock", "simulate"):
                    found = seconds(option, engine, block, channels=channels)
                    assert found == pytest.approx(bound, rel=1e-9), (option.algorithm.name, engine)
    assert slower


@pytest.mark.parametrize("engine", ["clock", "simulate"])
def test_where_channels_are_too_few_the_path_waits_for_them_and_says_so(engine):
    option = offered("mi300x-8", "alltoall")[0]
    fabric = planner("mi300x-8").fabric
    line = timed(option.schedule, fabric, 64.0 * BLOCK, PROTOCOLS["Simple"], engine=engine,
                 detail=True, channels=1)  # fmt: skip
    assert set(line.transfers.link.tolist()) == {-2}
    assert {part.bound for part in line.parts} == {"channels"}
    assert any("waits for the channels of rank" in said for said in line.why_slow(fabric))
    many = timed(option.schedule, fabric, 64.0 * BLOCK, PROTOCOLS["Simple"], engine=engine,
                 detail=True)  # fmt: skip
    assert -2 not in many.transfers.link.tolist()


@pytest.mark.parametrize("engine", ["clock", "simulate", "estimate"])
def test_a_plan_is_timed_on_its_own_channels(engine):
    plan = planner("mi300x-8").plan("allreduce", 256 * BLOCK)
    few = replace(plan, channels=1)
    assert few.timed(engine).seconds > 2 * plan.timed(engine).seconds


def test_channels_below_none_are_refused():
    with pytest.raises(InvalidArgument, match="channels"):
        seconds(uneven(), "clock", channels=-1)


def uneven(name="h100-8 x 4", collective="broadcast", algorithm="tree"):
    return next(o for o in offered(name, collective) if o.algorithm.name == algorithm)


def test_auto_estimates_what_is_even_and_says_so():
    plan = planner("mi300x-8").plan("allreduce", BLOCK)
    line = plan.timed()
    assert line.engine == "estimate"
    assert "engines agree" in line.why
    assert line.seconds == pytest.approx(plan.time)


@pytest.mark.parametrize("how, why", [
    ({}, "get ahead"), ({"detail": True}, "every message"),
    ({"arrival": np.arange(32) * 1e-6}, "call late"),
])  # fmt: skip
def test_auto_simulates_what_is_uneven_or_asked_in_detail(how, why):
    option = uneven()
    line = timed(option.schedule, option.profile.fabric, BLOCK, PROTOCOLS["LL"], **how)
    assert line.engine == "simulate"
    assert why in line.why
    assert (line.transfers is not None) == ("detail" in how)


def test_auto_clocks_more_messages_than_may_be_simulated():
    option = uneven()
    line = timed(option.schedule, option.profile.fabric, BLOCK, PROTOCOLS["LL"], max_events=10)
    assert line.engine == "clock"
    assert "more than the 10 that are simulated" in line.why


@pytest.mark.parametrize("sizes, late, engine", [
    (1, False, "simulate"), (9_000, False, "clock"), (1, True, "clock"),
])  # fmt: skip
def test_auto_clocks_messages_that_end_one_by_one_and_share_with_all_others(sizes, late, engine):
    fabric = lower(load("ualink-64", nodes=2), 128)
    src, dst = (ends[np.triu_indices(128, 1)] for ends in np.indices((128, 128)))
    src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    count = np.random.default_rng(1).integers(sizes, 2 * sizes, len(src)) if sizes > 1 else 1
    phase = Phase((at(rows(src, dst, count=count), 1, 1),), 1)
    call = Schedule("any", "sizes", 128, 0, Layout(1, 1, 2 * sizes), 1, lambda: iter([phase]))
    line = timed(call, fabric, 1e3, PROTOCOLS["Simple"], detail=True,
                 arrival=np.arange(128) * 1e-6 if late else None)  # fmt: skip
    assert line.engine == engine
    if engine == "clock":
        assert "16,256 messages that end one by one" in line.why


@pytest.mark.parametrize("less, engine", [(0, "simulate"), (1, "clock")])
def test_auto_simulates_up_to_the_last_message_allowed(less, engine):
    option = uneven(collective="gather")
    fabric = option.profile.fabric
    moved = sum(s.steps * len(s.src) for s in stages(option.schedule, fabric))
    rows = sum(p.steps * sum(int((m.rows.src != m.rows.dst).sum()) for m in p.moves)
               for p in option.schedule.phases())  # fmt: skip
    assert rows >= moved
    line = timed(option.schedule, fabric, BLOCK, PROTOCOLS["LL"], max_events=rows - less)
    assert line.engine == engine


def test_the_estimate_in_detail_stays_in_its_steps_and_behind_late_ranks():
    option = uneven(collective="allreduce", algorithm="ring")  # over uneven hops
    fabric = option.profile.fabric
    line = timed(option.schedule, fabric, 64.0, PROTOCOLS["LL"], engine="estimate", detail=True,
                 arrival=np.where(np.arange(32) == 3, 1e-3, 0.0))  # fmt: skip
    moved = line.transfers
    assert moved.start.min() >= fabric.launch + 1e-3
    assert line.parts[0].start == pytest.approx(fabric.launch + 1e-3)
    for number, part in enumerate(line.parts):
        ends = part.start + (moved.step[moved.stage == number] + 1) * part.seconds / part.steps
        assert (moved.end[moved.stage == number] <= ends * (1 + 1e-12)).all()


def test_auto_estimates_what_is_too_much_for_a_clock(monkeypatch):
    monkeypatch.setattr("rccl_py.timing.engines._CLOCKED", 10)
    option = uneven()
    line = timed(option.schedule, option.profile.fabric, BLOCK, PROTOCOLS["LL"], detail=True)
    assert line.engine == "estimate"
    assert "too many for a clock" in line.why


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_in_the_same_shape(engine):
    option = uneven()
    fabric = option.profile.fabric
    late = np.linspace(0.0, 1e-4, 32)
    line = timed(option.schedule, fabric, BLOCK, PROTOCOLS["Simple"], engine=engine, detail=True,
                 arrival=late)  # fmt: skip
    moved = sum(s.steps * len(s.src) for s in stages(option.schedule, fabric))
    assert len(line.transfers) == moved
    assert line.nranks == 32
    assert line.seconds >= fabric.launch + 1e-4
    assert line.transfers.end.max() <= line.seconds * (1 + 1e-12)
    assert line.link_busy.shape == (fabric.nlinks,)
    assert line.engine == ("simulate" if engine == "auto" else engine)
    assert sum(leg.seconds for leg in line.critical_path()) == pytest.approx(line.seconds)


def test_links_are_as_busy_whichever_engine_asks():
    option = uneven()
    lines = [timed(option.schedule, option.profile.fabric, BLOCK, PROTOCOLS["LL128"], engine=e)
             for e in ENGINES[1:]]  # fmt: skip
    for line in lines[1:]:
        np.testing.assert_allclose(line.link_busy, lines[0].link_busy, rtol=1e-9)
        assert line.busiest is not None
        assert line.busy == pytest.approx(lines[0].busy)


def test_the_estimate_keeps_all_waiting_for_a_late_rank():
    option = uneven()
    late = np.where(np.arange(32) == 3, 1e-3, 0.0)
    assert seconds(option, "estimate", arrival=late) == pytest.approx(
        seconds(option, "estimate") + 1e-3
    )


def test_nobody_late_is_no_arrival():
    option = uneven()
    assert seconds(option, "clock", arrival=np.zeros(32)) == seconds(option, "clock")
    plan = planner("mi300x-8").plan("allreduce", BLOCK)
    assert plan.timed(arrival=np.zeros(8)).engine == "estimate"
    assert plan.timed(arrival=np.zeros(8)).arrival is None


@pytest.mark.parametrize("engine", ["", "Clock", "fluid"])
def test_an_unknown_engine_is_refused_with_those_there_are(engine):
    with pytest.raises(InvalidArgument, match="expected one of auto, estimate, clock, simulate"):
        seconds(uneven(), engine)
    with pytest.raises(InvalidArgument, match="a text was expected"):
        seconds(uneven(), 3)


@pytest.mark.parametrize("arrival, said", [
    (np.zeros(3), r"shape \(3,\): expected \(32,\)"),
    (np.full(32, -1.0), "-1 s of rank 0"),
    (np.where(np.arange(32) == 9, np.nan, 0.0), "nan s of rank 9"),
    (np.where(np.arange(32) == 9, np.inf, 0.0), "inf s of rank 9"),
    ("soon", "not a row of numbers"),
    (1.0, r"shape \(\)"),
])  # fmt: skip
def test_arrivals_that_do_not_fit_are_refused(arrival, said):
    with pytest.raises(InvalidArgument, match=said):
        seconds(uneven(), "clock", arrival=arrival)


def test_past_its_limit_simulate_refuses_and_names_the_others():
    with pytest.raises(InvalidUsage, match=r"clock.*estimate|estimate.*clock"):
        seconds(uneven(), "simulate", max_events=10)


def test_a_call_of_one_rank_is_launch_and_copying():
    plan = Planner(lower(load("mi300x-8"), 1)).plan("allreduce", BLOCK)
    for engine in ENGINES:
        line = plan.timed(engine, detail=True)
        assert line.seconds == pytest.approx(plan.time)
        assert len(line.transfers) == 0
        assert line.idle().tolist() == [pytest.approx(line.seconds)]
