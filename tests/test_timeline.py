"""What a timeline says of links, ranks and reasons, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import algorithm, machine, raw_links, recipe_of, switched

from rccl_py import Planner, load, lower
from rccl_py.errors import InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import Layout, Phase, Schedule, at, rows
from rccl_py.timing import Part, Timeline, Transfers, timed


def transfers(*table, alone=None):
    """Columns of (start, pushed, end, src, dst, link, after)."""
    start, pushed, end, src, dst, link, after = (list(c) for c in zip(*table))
    m, whole = len(start), np.int32
    return Transfers(
        np.array(start, float), np.array(pushed, float), np.array(end, float),
        np.array(src, whole), np.array(dst, whole), np.zeros(m, whole), np.zeros(m, whole),
        np.zeros(m, whole), np.ones(m), np.array(link, whole), np.array(after, np.int64),
        None if alone is None else np.array(alone, float),
    )  # fmt: skip


def line_of(moved, seconds=10.0, launch=0.5, nranks=4):
    """A timeline of these messages; link 0, 1 and 2 are busy for 0, 1 and 2 s."""
    part = Part(launch, seconds - launch, 1, "link", 2)
    busy = np.arange(3, dtype=float)
    return Timeline(launch, (part,), 2, 2.0, "clock", moved, busy, nranks=nranks)


def hotspot(tmp_path, senders=3):
    """Every rank sends one block to rank 0 over one switch, then rank 0 answers rank 1."""
    n = senders + 1
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1.0), n)))
    src = np.arange(1, n)
    gather = Phase((at(rows(src, np.zeros(senders, int)), 0, src),))
    answer = Phase((at(rows([0], [1]), 1, 1),))
    layout = Layout(1, 1, n)
    return Schedule("gather", "test", n, 0, layout, 1, lambda: iter((gather, answer))), fabric


def test_utilisation_is_busy_time_over_the_call():
    line = line_of(None, 4.0)
    assert line.utilisation().tolist() == [0.0, 0.25, 0.5]


def test_a_rank_is_idle_when_it_neither_sends_nor_receives():
    moved = transfers((1, 3, 4, 0, 1, 0, -1), (2, 5, 5.5, 0, 2, 0, -1), (7, 8, 8, 1, 0, 1, 0))
    #  rank 0 sends 1-3 and 2-5, receives 7-8; rank 1 receives 2-4, sends 7-8; rank 2 2.5-5.5
    assert line_of(moved).idle() == pytest.approx([10 - 5, 10 - 3, 10 - 3, 10])


@pytest.mark.parametrize("seed", range(20))
def test_idle_time_is_what_a_sweep_finds(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 60))
    start = rng.integers(0, 50, m)
    pushed = start + rng.integers(0, 9, m)
    end = pushed + rng.integers(0, 3, m)
    src, dst = rng.integers(0, 5, (2, m))
    covered = np.zeros((5, 100), dtype=bool)  # by half seconds would be enough: all are whole
    for a, b, c, i, j in zip(start, pushed, end, src, dst):
        covered[i, a:b] = True
        covered[j, a + c - b : c] = True
    table = zip(start, pushed, end, src, dst, np.zeros(m, int), np.full(m, -1))
    found = line_of(transfers(*table), 70.0, nranks=5).idle()
    assert found == pytest.approx(70.0 - covered.sum(axis=1), abs=1e-9)


def test_queueing_is_time_on_the_wire_beyond_being_alone():
    moved = transfers((0, 3, 3, 0, 1, 2, -1), (0, 3, 3, 2, 1, 2, -1), (0, 4, 4, 3, 1, -1, -1),
                      (3, 4, 4, 0, 1, 0, 0), alone=[1, 2, 1, 1])  # fmt: skip
    assert line_of(moved).queueing().tolist() == [0.0, 0.0, 3.0]


def test_incast_queues_at_the_link_that_all_share(tmp_path):
    schedule, fabric = hotspot(tmp_path)
    line = timed(schedule, fabric, 1e6, PROTOCOLS["Simple"], engine="clock", detail=True)
    waited = line.queueing()
    shared = int(waited.argmax())
    assert "gpu0" in fabric.link_name(shared)
    each = 1e6 / fabric.bandwidth[shared]
    assert waited[shared] == pytest.approx(3 * (3 * each - each), rel=1e-6)
    assert waited.sum() == pytest.approx(waited[shared])


def test_the_critical_path_is_the_chain_of_what_let_what_start():
    moved = transfers(
        (2, 5, 6, 0, 1, 2, -1),  # 0: rank 0 to 1
        (2, 3, 9, 2, 3, 1, -1),  # 1: pushed at 3, long under way
        (3, 4, 4.5, 2, 0, -1, 1),  # 2: let start by 1's push, memory-bound
        (7, 9, 9.5, 1, 3, 1, 0),  # 3: let start by 0's arrival at 6
    )
    legs = line_of(moved, 9.75, 1.5).critical_path()
    assert [(leg.what, leg.seconds, leg.at) for leg in legs] == [
        ("launch", 1.5, -1), ("overhead", 0.5, -1), ("link", 3.0, 2), ("latency", 1.0, -1),
        ("overhead", 1.0, -1), ("link", 2.0, 1), ("latency", 0.5, -1), ("memory", 0.25, -1),
    ]  # fmt: skip


def test_a_push_that_lets_the_next_start_counts_no_flight():
    moved = transfers((1, 3, 8, 0, 1, 0, -1), (3.5, 5, 9, 0, 2, 1, 0))
    line = replace(line_of(moved, 9.0, 1.0), tail=2.0)
    assert [(leg.what, leg.seconds) for leg in line.critical_path()] == [
        ("launch", 1.0), ("link", 2.0), ("overhead", 0.5), ("link", 1.5), ("latency", 4.0),
        ("tail", 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["estimate", "clock", "simulate"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("collective, name", [
    ("allreduce", "ring"), ("allreduce", "tree"), ("broadcast", "tree"), ("gather", "tree"),
])  # fmt: skip
def test_the_legs_of_the_path_add_up_to_the_call(collective, name, late, engine):
    fabric = lower(load("h100-8", nodes=2))
    schedule = algorithm(collective, name).build(recipe_of(16, 3, 8))
    arrival = np.where(np.arange(16) == 5, 1e-2, 0.0) if late else None
    line = timed(schedule, fabric, 1e6, PROTOCOLS["Simple"], engine=engine, detail=True,
                 arrival=arrival)  # fmt: skip
    legs = line.critical_path()
    assert sum(leg.seconds for leg in legs) == pytest.approx(line.seconds, rel=1e-12)
    assert all(leg.seconds > 0 for leg in legs)
    if late and engine != "estimate":
        assert ("arrival", 5) in {(leg.what, leg.rank) for leg in legs}


def test_the_reason_names_the_nic_and_whose_it_is():
    fabric = lower(load("mi300x-8", nodes=2))
    one = Phase((at(rows([5], [13]), 0, 1),))
    schedule = Schedule("broadcast", "test", 16, 5, Layout(1, 1, 1), 1, lambda: iter((one,)))
    line = timed(schedule, fabric, 1e9, PROTOCOLS["Simple"], engine="clock", detail=True)
    first = line.why_slow(fabric)[0]
    assert "% of the time waits for the NIC of rank 5: node0: nic5 -> " in first
    assert first in line.explain(fabric)
    assert "by clock (asked for)" in line.explain(fabric)


def test_the_reason_names_a_rank_that_calls_late():
    fabric = lower(load("mi300x-8"))
    schedule = algorithm("allreduce", "direct-twoshot").build(recipe_of(8))
    arrival = np.where(np.arange(8) == 6, 1.0, 0.0)
    line = timed(schedule, fabric, 1e3, PROTOCOLS["LL"], engine="clock", detail=True,
                 arrival=arrival)  # fmt: skip
    assert line.why_slow(fabric)[0].endswith("% of the time waits for rank 6 to call")


def test_the_reason_says_what_other_messages_cost(tmp_path):
    schedule, fabric = hotspot(tmp_path)
    line = timed(schedule, fabric, 1e9, PROTOCOLS["Simple"], engine="clock", detail=True)
    assert any("other messages on them cost" in said for said in line.why_slow(fabric))


@pytest.mark.parametrize("engine", ["estimate", "clock"])
def test_without_messages_parts_are_the_reasons(engine):
    fabric = lower(load("mi300x-8"))
    plan = Planner(fabric).plan("allreduce", 1 << 28)
    line = plan.timed(engine)
    assert line.critical_path()[0].what == "launch"
    assert sum(leg.seconds for leg in line.critical_path()) == pytest.approx(line.seconds)
    assert "waits for" in line.why_slow(fabric)[0]


def test_what_needs_messages_says_how_to_get_them():
    line = line_of(None)
    for ask in (line.idle, line.queueing):
        with pytest.raises(InvalidUsage, match="ask for detail=True"):
            ask()
    with pytest.raises(InvalidUsage, match=r"Plan.timed\(\) does"):
        replace(line, link_busy=None).utilisation()
    with pytest.raises(InvalidUsage, match="use engine='clock'"):
        line_of(transfers((0, 1, 1, 0, 1, 0, -1))).queueing()


def test_messages_are_put_in_order_of_start_and_still_name_what_let_them_start():
    moved = transfers((5, 6, 7, 1, 2, 0, 1), (0, 1, 2, 0, 1, 0, -1), (5, 6, 7, 1, 3, 0, 1))
    found = moved.sorted()
    assert found.start.tolist() == [0, 5, 5]
    assert found.dst.tolist() == [1, 2, 3]
    assert found.after.tolist() == [-1, 0, 0]
    assert found.alone is None


def test_no_messages_are_messages_too():
    none = Transfers.joined([]).sorted()
    assert len(none) == 0
    assert line_of(none, 2.0).idle().tolist() == [2.0] * 4
    assert [leg.what for leg in line_of(none, 2.0).critical_path()] == ["launch", "link"]
