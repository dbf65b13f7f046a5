"""Congestion between nodes: full ports that pause what feeds them, colliding flows, spraying.

The machine has 9 nodes with one accelerator that sends: seven send to one node, and one of them
also to an idle one, its victim. What happens to that message is what tells networks apart.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers import options_of

from rccl_py import Planner, load, lower
from rccl_py.links import LINKS, PROTOCOLS
from rccl_py.schedule import Layout, Phase, Schedule, at, rows
from rccl_py.timing import timed
from rccl_py.timing.lockstep import even
from rccl_py.timing.stages import stages, uses

SIMPLE = PROTOCOLS["Simple"]
BIG = 1e8
MESSAGE_BOUND = 1e-4  # s that latencies and messages may take of calls that take milliseconds
ENGINES = ("clock", "simulate")


@cache
def nodes(count, ranks=1, pauses=True, **network):
    """Return `count` nodes of MI300X with `ranks` each; their NICs pause what feeds them or not."""
    place = [8 * node + rank for node in range(count) for rank in range(ranks)]
    fabric = lower(load("mi300x-8", nodes=count, **network), place)
    return fabric if pauses else without_pauses(fabric)


def without_pauses(fabric):
    quiet = [replace(d, port_pauses=np.zeros_like(d.port_pauses)) for d in fabric.domains]
    return replace(fabric, domains=tuple(quiet))


def sends(n, *messages, steps=1):
    """Return the schedule of messages (src, dst, slots), all posted together."""
    src, dst, count = (np.array(c) for c in zip(*messages))
    phase = Phase((at(rows(src, dst, count=count), 1, 1),), steps)
    return Schedule("any", "messages", n, 0, Layout(1, 1, 99), 1, lambda: iter([phase]))


def wires(schedule, fabric, engine, block=BIG, **how):
    """Return s on the wire by (src, dst)."""
    moved = timed(schedule, fabric, block, SIMPLE, engine=engine, detail=True, **how).transfers
    spent = (moved.pushed - moved.start).tolist()
    return dict(zip(zip(moved.src.tolist(), moved.dst.tolist()), spent))


INCAST = [(i, 7, 1) for i in range(7)]
VICTIM = (0, 8, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_behind_an_incast_waits_for_it_where_links_pause(engine):
    schedule, fabric = sends(9, *INCAST, VICTIM), nodes(9)
    alone = wires(sends(9, VICTIM), fabric, engine)[0, 8]
    found = wires(schedule, fabric, engine)
    assert found[3, 7] == pytest.approx(7 * alone, abs=MESSAGE_BOUND)
    assert found[0, 8] == pytest.approx(7 * alone, abs=MESSAGE_BOUND)


@pytest.mark.parametrize("engine, times", [("clock", 2), ("simulate", 7 / 6)])
def test_a_message_behind_an_incast_takes_what_is_left_where_links_have_credits(engine, times):
    schedule, fabric = sends(9, *INCAST, VICTIM), nodes(9, pauses=False)
    alone = wires(sends(9, VICTIM), fabric, engine)[0, 8]
    found = wires(schedule, fabric, engine)
    assert found[3, 7] == pytest.approx(7 * alone, abs=MESSAGE_BOUND)
    # The clock has all of a repetition at once on the cable; simulated it gets 6/7 of it.
    assert found[0, 8] == pytest.approx(times * alone, abs=MESSAGE_BOUND)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_leaves_other_cables_is_not_held_by_an_incast(engine):
    schedule, fabric = sends(10, *INCAST, (8, 9, 1)), nodes(10)
    assert wires(schedule, fabric, engine)[8, 9] == pytest.approx(
        wires(sends(10, (8, 9, 1)), fabric, engine)[8, 9])  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_held_by_its_own_cable_holds_nobody_it_meets_on_the_way(engine):
    """Ranks 0 and 1 of one leaf share its way up; 0 sends three messages, each slow for that."""
    fabric = nodes(8, network="leaf-spine", leaf_nodes=2)
    found = wires(sends(8, (0, 2, 1), (0, 4, 1), (0, 6, 1), (1, 7, 1)), fabric, engine)
    assert found[0, 2] == pytest.approx(3 * found[1, 7], rel=1e-2)


def test_pauses_travel_from_the_full_port_back_over_every_switch():
    """Leaves of one node: 0 .. 3 send to 4, and 0 to 5 over its leaf's way up, which is paused."""
    fabric = nodes(6, network="leaf-spine", leaf_nodes=1)
    schedule = sends(6, *((i, 4, 1) for i in range(4)), (0, 5, 1))
    for engine in ENGINES:
        found = wires(schedule, fabric, engine)
        assert found[0, 5] == pytest.approx(found[1, 4], abs=MESSAGE_BOUND)


def test_two_ranks_of_a_leaf_share_the_pause_of_its_way_up():
    """Ranks 0 and 1 of one leaf: 0 sends into an incast on another leaf, 1 to an idle node there.

    Under spray the leaf's way up is one link for both, so 1 is held though its own cable is free.
    """
    network = {"network": "leaf-spine", "leaf_nodes": 2}
    schedule = sends(6, (0, 4, 1), (2, 4, 1), (3, 4, 1), (1, 5, 1))
    for engine in ENGINES:
        held = wires(schedule, nodes(6, **network), engine)
        free = wires(schedule, nodes(6, pauses=False, **network), engine)
        assert held[1, 5] == pytest.approx(3 * free[1, 5], rel=1e-2, abs=MESSAGE_BOUND)


def seconds(schedule, fabric, engine, block=BIG):
    return timed(schedule, fabric, block, SIMPLE, engine=engine).seconds


@pytest.mark.parametrize("engine", ENGINES)
def test_collisions_are_bad_pauses_make_them_worse_and_spraying_is_best(engine):
    """Each of 64 ranks sends to one other, by 16 spines: hashed, some meet going up or down."""
    to = np.random.default_rng(1).permutation(64)
    schedule = sends(64, *((i, to[i], 1) for i in range(64) if to[i] // 16 != i // 16))
    mean = {}
    for name, routing, pauses in (("spray", "spray", False), ("ecmp", "ecmp", False),
                                  ("ecmp, pauses", "ecmp", True)):  # fmt: skip
        fabric = nodes(8, 8, pauses, network="leaf-spine", leaf_nodes=2, routing=routing, seed=1)
        mean[name] = float(np.mean(list(wires(schedule, fabric, engine).values())))
    assert mean["spray"] * 1.5 < mean["ecmp"]
    assert mean["ecmp"] * 1.02 < mean["ecmp, pauses"]


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "ring"), ("allreduce", "hier-ring-ring"), ("allgather", "direct"),
    ("alltoall", "direct"), ("alltoall", "hier-direct-direct"), ("reduce_scatter", "ring"),
])  # fmt: skip
def test_symmetric_collectives_take_the_same_with_and_without_pauses(collective, name):
    fabric = nodes(4, 8)
    option = next(o for o in options_of(Planner(fabric), collective, pieces=(1,))
                  if o.algorithm.name == name)  # fmt: skip
    free = without_pauses(fabric)
    assert even(option.schedule, fabric, SIMPLE) == even(option.schedule, free, SIMPLE)
    for engine in ("estimate", *ENGINES):
        held = seconds(option.schedule, fabric, engine)
        assert held == pytest.approx(seconds(option.schedule, free, engine), rel=1e-9)


def random_messages(rng, n):
    m = int(rng.integers(3, 3 * n))
    src = rng.integers(0, n, m)
    dst = np.where(rng.random(m) < 0.4, n - 1, (src + rng.integers(1, n, m)) % n)
    far = src != dst
    pairs = sorted(set(zip(src[far].tolist(), dst[far].tolist())))
    return sends(n, *((a, b, int(rng.integers(1, 4))) for a, b in pairs),
                 steps=int(rng.integers(1, 4)))  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_pauses_never_make_the_clock_faster_and_the_estimate_waits_for_all(seed):
    rng = np.random.default_rng(seed)
    fabric = nodes(7, network="leaf-spine", leaf_nodes=2, routing="ecmp", oversubscription=2)
    schedule = random_messages(rng, 7)
    free, held = (seconds(schedule, f, "clock") for f in (without_pauses(fabric), fabric))
    assert free <= held * (1 + 1e-12)
    assert held <= seconds(schedule, fabric, "estimate") * (1 + 1e-12)


def test_no_link_carries_more_than_it_can_while_others_pause():
    """Between any two times, what all messages put on a link at an even rate is at most its own."""
    rng = np.random.default_rng(4)
    fabric = nodes(7, network="leaf-spine", leaf_nodes=2, routing="ecmp", oversubscription=2)
    for _ in range(20):
        schedule = random_messages(rng, 7)
        moved = timed(schedule, fabric, BIG, SIMPLE, engine="simulate", detail=True).transfers
        spent = defaultdict(list)
        routes = fabric.routes(moved.src, moved.dst)
        for row, link, share in zip(routes.row, routes.link, routes.share):
            busy = share * moved.nbytes[row] * fabric.pace[SIMPLE.index, link]
            spent[int(link)].append((moved.start[row], moved.pushed[row], busy))
        for rows_ in spent.values():
            start, end, busy = np.array(rows_).T
            for a in np.unique(start):
                for b in np.unique(end):
                    inside = (start >= a) & (end <= b)
                    assert busy[inside].sum() <= max(b - a, 0) * (1 + 1e-9) + 1e-15
        sent = sum(s.steps * float(s.slots.sum()) for s in stages(schedule, fabric)) * BIG
        assert moved.nbytes.sum() == pytest.approx(sent)


def test_only_roce_pauses():
    assert {name for name, link in LINKS.items() if link.pauses} == {
        f"roce-{speed}g" for speed in (100, 200, 400, 800)
    }


def test_a_fabric_without_pausing_links_says_so_and_its_uses_have_no_order():
    for fabric in (lower(load("mi300x-8")), lower(load("h100-8", nodes=2))):
        assert fabric.pausing is None
        schedule = sends(fabric.nranks, (0, 1, 1))
        assert uses(next(stages(schedule, fabric)), fabric, SIMPLE).depth is None


def test_cables_and_wiring_pause_and_the_order_is_that_of_the_route():
    fabric = nodes(4, 8, network="leaf-spine", leaf_nodes=1)
    pausing, first = fabric.pausing, fabric.cables
    assert not pausing.pauses[:first].any() and pausing.pauses[first:].all()
    src, dst = np.array([0], np.int32), np.array([31], np.int32)
    found = fabric.routes(src, dst)
    names = [fabric.link_name(link) for link in found.link]
    order = np.argsort(pausing.along(found.link, fabric.node[src][found.row]), kind="stable")
    along = [names[i].split(": ")[-1] for i in order if "leaf" in names[i]]
    assert along == ["nic0 -> leaf0", "leaf0 -> spines", "spines -> leaf3", "leaf3 -> nic7"]
