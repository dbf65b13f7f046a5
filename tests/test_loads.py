"""Loads by sums against loads message by message, and outlines in short against whole ones."""

from functools import cache

import numpy as np
import pytest

from rccl_py import COLLECTIVES, Planner, load, lower
from rccl_py.algorithms import algorithms_of
from rccl_py.algorithms.flat import direct_allgather, direct_reduce_scatter
from rccl_py.links import PROTOCOLS
from rccl_py.planner.volumes import SENT_AT_ONCE
from rccl_py.schedule import Outline, Phase
from rccl_py.timing import loads as module
from rccl_py.timing import profile
from rccl_py.timing.few import few_loads
from rccl_py.timing.loads import Load, Loads

MACHINES = [("mi300x-8", None), ("mixed-x6", None), ("gb200-nvl72", 12), ("tpu-v4-64", 27),
            ("mi300x-8-x64-ecmp", 24), ("rtx-pro-6000-8", None)]  # fmt: skip


@cache
def planner_of(name, ranks):
    return Planner(lower(load(name), ranks), synthesise=False)


def phases_of(schedule):
    told = schedule.phases.parts() if isinstance(schedule.phases, Outline) else schedule.phases()
    for part in told:
        yield from (part,) if isinstance(part, Phase) else part.stages


def require_same(one, two, nranks):
    np.testing.assert_array_equal(one.at, two.at)
    np.testing.assert_allclose(one.slots, two.slots, rtol=1e-9)
    every = np.zeros((2, 5, nranks))
    every[0][:, one.who], every[1][:, two.who] = one.ranks, two.ranks
    np.testing.assert_allclose(*every, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(one.latency, two.latency, rtol=1e-12)
    assert (one.far, one.remote) == (two.far, two.remote)


@pytest.mark.parametrize(("name", "ranks"), MACHINES)
def test_phases_of_few_rows_are_loaded_at_once_as_they_are_one_by_one(name, ranks):
    planner, seen = planner_of(name, ranks), 0
    for collective in ("allreduce", "alltoall", "broadcast", "gather"):
        for row in algorithms_of(collective):
            if planner._unfit(row) or row.name == "ring":
                continue
            schedule = row.build(planner.recipe())
            few = [p for p in phases_of(schedule) if p.moves and module._is_few(p)
                   and len(p.made_of) < 2][:40]  # fmt: skip
            if few:
                one_by_one = Loads(planner.fabric)
                for phase, fields in zip(few, few_loads(planner.fabric, few)):
                    require_same(Load(*fields), one_by_one.of_phase(phase), planner.fabric.nranks)
                seen += len(few)
    assert seen > 40


@pytest.mark.parametrize(
    ("name", "ranks", "summed"),
    [("tpu-v4-64", None, True), ("tpu-v4-64", 27, False), ("gb200-nvl72", None, True),
     ("helios-72-x8", 90, True), ("ualink-64", 41, True), ("mixed-x6", None, False)],
)  # fmt: skip
def test_all_pairs_are_summed_as_if_each_were_looked_at(name, ranks, summed, monkeypatch):
    fabric = planner_of(name, ranks).fabric
    n, draw = fabric.nranks, np.random.default_rng(4)
    groups = [np.arange(n)[None, :], draw.permutation(n)[None, :],
              draw.permutation(n)[: n // 3 * 3].reshape(3, -1)]  # fmt: skip
    for group, half in zip(groups, (direct_allgather, direct_reduce_scatter, direct_allgather)):
        (phase,) = half(group.astype(np.int32), group, 3)
        found = []
        for least in (1, 1 << 40):
            monkeypatch.setattr(module, "_PAIRS", least)
            loads = Loads(fabric)
            found.append((loads.of_phase(phase), loads.loaded))
        require_same(found[0][0], found[1][0], n)
        assert found[0][1] <= 2 * n or len(group) > 1 or not summed


@pytest.mark.parametrize(("name", "ranks"), [("mi300x-8", None), ("mi300x-8-x64-ecmp", 24)])
def test_a_summary_says_of_a_call_what_its_outline_says(name, ranks):
    planner = planner_of(name, ranks)
    for row in algorithms_of("allreduce"):
        if planner._unfit(row):
            continue
        made = profile(row.build(planner.recipe(0, min(4, row.pieces))), planner.fabric)
        for block in (1e3, 1e9):
            short, whole = (f(block, PROTOCOLS["LL128"]) for f in (made.summary, made.outline))
            assert short.seconds == pytest.approx(whole.seconds, rel=1e-12)
            for bound in ("latency", "link", "memory"):
                assert short.waits(bound) == pytest.approx(whole.waits(bound), rel=1e-12)
                steps = [sum(p.steps for p in t.parts if p.bound == bound) for t in (short, whole)]
                assert steps[0] == steps[1]
            assert (short.busiest, short.busy, short.tail) == (
                whole.busiest, whole.busy, whole.tail)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ranks"), [("mi300x-8-x64-ecmp", 24), ("mi300x-8-x16-leaf-spine", 32)]
)
def test_what_is_sent_in_turn_takes_no_less_than_what_is_sent_at_once(name, ranks):
    planner = planner_of(name, ranks)
    offers = planner._offers("alltoall", 0)[0]
    rows = {row.name: row for row in offers.algorithms}
    for (collective, turns), at_once in SENT_AT_ONCE.items():
        offers._one(rows[at_once], at_once, offers.recipe)
        made = profile(rows[turns].build(planner.recipe()), planner.fabric)
        for block in (1e3, 1e8):
            low = offers.machine.floor(rows[turns], block, PROTOCOLS["Simple"])
            floor = offers._spread_out(rows[turns], low, block, ["Simple"])
            assert floor.seconds <= float(made.seconds(block, PROTOCOLS["Simple"])) * (1 + 1e-9)
            assert collective in COLLECTIVES and floor.seconds >= low.seconds
