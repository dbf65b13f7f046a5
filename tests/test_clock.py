"""The clock equals a loop over every message of every repetition, in plain Python."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import algorithm, machine, options_of, raw_links, recipe_of, switched

from rccl_py import Planner, load, lower
from rccl_py.collectives import COLLECTIVES
from rccl_py.errors import InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import Layout, Phase, Schedule, at, rows
from rccl_py.timing import profile
from rccl_py.timing.clock import clock
from rccl_py.timing.log import Log
from rccl_py.timing.maxplus import Members, repeated
from rccl_py.timing.stages import stages, uses

MACHINES = {
    "mesh": lambda: lower(load("mi300x-8")),
    "unequal links": lambda: lower(load("mi250x-4")),
    "switch": lambda: lower(load("h100-8"), 5),
    "rails": lambda: lower(load("h100-8", nodes=2), [*range(4), *range(8, 12)]),
    "leaves": lambda: lower(load("mi300x-8", nodes=3, network="leaf-spine", leaf_nodes=2,
                                 oversubscription=4), [*range(4), *range(8, 12), *range(16, 20)]),
    "one rank": lambda: lower(load("mi300x-8"), 1),
}  # fmt: skip


@cache
def planner(name):
    return Planner(MACHINES[name]())


def arrivals(kind, n):
    if kind == "together":
        return None
    late = np.random.default_rng(n).random(n) * 20e-6
    return late if kind == "scattered" else np.where(np.arange(n) == n // 2, 30e-6, 0.0)


def paused(use, total):
    """The s on the wire of every message where links pause: the rule as it is written, by asking.

    What is on a link takes what the slowest of it takes further on.
    """
    ways = [list(zip(*(c[a:b].tolist() for c in (use.resource, use.depth, use.pauses))))
            for a, b in zip(use.ptr, use.ptr[1:])]  # fmt: skip

    @cache
    def seconds(link, depth, pauses):
        if not pauses:
            return total[link]
        held = [total[link]]
        for way in ways:
            if any(own == link for own, _, _ in way):
                before = max((total[r] for r, d, _ in way if d < depth), default=0.0)
                after = max((seconds(*e) for e in way if e[1] > depth), default=0.0)
                held.append(after if after > before * (1 + 1e-12) else 0.0)
        return max(held)

    return [max((seconds(*e) for e in way), default=0.0) for way in ways]


def slow(schedule, fabric, block, protocol, arrival=None):
    """The rules of waiting, one message after another; the s the call takes."""
    slot, n = block / schedule.layout.chunks, fabric.nranks
    late = [0.0] * n if arrival is None else arrival.tolist()
    ready = [fabric.launch + a for a in late]
    for stage in stages(schedule, fabric):
        if not len(stage.src):
            ready = [t + m * slot for t, m in zip(ready, stage.memory.tolist())]
            continue
        use, total = uses(stage, fabric, protocol), {}
        for e, s in zip(use.resource.tolist(), use.seconds.tolist()):
            total[e] = total.get(e, 0.0) + s * slot
        entries = [use.resource[a:b].tolist() for a, b in zip(use.ptr, use.ptr[1:])]
        wire = [max((total[e] for e in own), default=0.0) for own in entries]
        if use.depth is not None:
            wire = paused(use, total)
        hop, lead = stage.latency[protocol.index].tolist(), stage.lead.tolist()
        ends = list(zip(stage.channel.tolist(), stage.src.tolist(), stage.dst.tolist()))
        clocks = {(c, r): ready[r] for c, src, dst in ends for r in (src, dst)}
        for _ in range(stage.steps):
            after = dict(clocks)
            for (c, src, dst), w, latency in zip(ends, wire, hop):
                pushed = clocks[c, src] + lead[src] + w
                after[c, src] = max(after[c, src], pushed)
                after[c, dst] = max(after[c, dst], pushed + latency)
            clocks = after
        for (_, r), t in clocks.items():
            ready[r] = max(ready[r], t)
    return max(ready)


@pytest.mark.parametrize("late", ["together", "scattered", "one"])
@pytest.mark.parametrize("collective", list(COLLECTIVES))
@pytest.mark.parametrize("name", MACHINES)
def test_the_clock_equals_a_loop_over_every_message(name, collective, late):
    own = planner(name)
    for i, option in enumerate(options_of(own, collective, own.fabric.nranks - 1)):
        protocol = list(PROTOCOLS.values())[i % 3]
        block = (0, 1000.0, 3e7)[i % 3]
        arrival = arrivals(late, own.fabric.nranks)
        found = clock(option.schedule, own.fabric, block, protocol, arrival=arrival)
        expected = slow(option.schedule, own.fabric, block, protocol, arrival)
        assert found.seconds == pytest.approx(expected, rel=1e-9), option.algorithm.name
        assert found.ends.max() == pytest.approx(found.seconds, rel=1e-12)


@pytest.mark.parametrize("late", ["together", "scattered", "one"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 30, 64])
def test_a_ring_over_uneven_hops_equals_the_loop_for_any_size(n, late):
    fabric = lower(load("h100-8", nodes=8), n)
    schedule = algorithm("allreduce", "ring").build(recipe_of(n, one_ring=n > 12))
    arrival = arrivals(late, n)
    for block in (64.0, 1e8):
        found = clock(schedule, fabric, block, PROTOCOLS["Simple"], arrival=arrival)
        expected = slow(schedule, fabric, block, PROTOCOLS["Simple"], arrival)
        assert found.seconds == pytest.approx(expected, rel=1e-9)


def random_schedule(rng, n):
    """Phases of random messages and local copies; some come twice, behind other local work."""
    kinds = []
    for _ in range(4):
        m = int(rng.integers(1, 3 * n))
        src, dst = rng.integers(0, n, (2, m))
        src, dst = (src, src) if rng.random() < 0.4 else (src, dst)
        moved = rows(src, dst, count=rng.integers(1, 5, m), channel=rng.integers(0, 2, m))
        kinds.append(at(moved, 8, 8))
    order = rng.integers(0, len(kinds), 12)
    phases = [Phase((kinds[k],), int(rng.choice([1, 1, 2, 9, 60]))) for k in order]
    return Schedule("allreduce", "test", n, 0, Layout(8, 1, 1), 2, lambda: iter(phases))


@pytest.mark.parametrize("seed", range(60))
def test_random_messages_equal_the_loop(seed):
    rng = np.random.default_rng(seed)
    fabric = planner(("unequal links", "rails", "leaves")[seed % 3]).fabric
    schedule = random_schedule(rng, fabric.nranks)
    args = fabric, float(rng.choice([1e2, 1e6, 1e8])), PROTOCOLS["Simple"]
    arrival = arrivals(("together", "scattered", "one")[seed % 2], fabric.nranks)
    expected = slow(schedule, *args, arrival)
    for detail in (False, True):
        found = clock(schedule, *args, arrival=arrival, detail=detail)
        assert found.seconds == pytest.approx(expected, rel=1e-9)


def one_by_one(members, clocks, steps):
    for _ in range(steps):
        clocks = members.once(clocks)
    return clocks


@pytest.mark.parametrize("seed", range(40))
def test_many_repetitions_of_rings_at_once_are_each_of_them(seed):
    rng = np.random.default_rng(seed)
    k, steps = int(rng.integers(1, 300)), int(rng.integers(2, 3000))
    onward = rng.permutation(k)  # rings of several lengths, some of one member
    stay = rng.choice([1.0, 2.0, 2.0 * (1 + 1e-15), 3.5], k)
    members = Members.of(stay, np.arange(k), onward, stay + rng.choice([0.0, 0.1, 0.5, 2.0], k))
    clocks = rng.random(k) * rng.choice([0.0, 20.0, 2000.0])
    expected = one_by_one(members, clocks, steps)
    np.testing.assert_allclose(repeated(members, clocks, steps), expected, rtol=1e-12)


def test_a_ring_with_one_slow_member_farther_off_than_there_are_steps():
    k, steps = 5000, 900
    stay = np.where(np.arange(k) == 17, 2.0, 1.0)
    members = Members.of(stay, np.arange(k), np.roll(np.arange(k), -1), stay + 1.5)
    expected = one_by_one(members, np.zeros(k), steps)
    np.testing.assert_allclose(repeated(members, np.zeros(k), steps), expected, rtol=1e-12)


def test_clocks_that_part_slowly_are_not_taken_for_one_pace():
    pair = np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2])
    members = Members.of(np.zeros(4), *pair, np.array([1.0, 1.0, 1.0 + 1e-6, 1.0 + 1e-6]))
    for steps in (100, 1000):  # one by one, and as walks
        expected = one_by_one(members, np.zeros(4), steps)
        np.testing.assert_allclose(repeated(members, np.zeros(4), steps), expected, rtol=1e-12)


def test_repetitions_that_have_found_their_pace_are_not_done_one_by_one(monkeypatch):
    done = []
    once = Members.once
    monkeypatch.setattr(Members, "once", lambda self, c: done.append(1) or once(self, c))
    cost = np.array([1.0, 3.0, 2.0, 0.5])  # two circles through 0: not a ring
    members = Members.of(np.zeros(3), np.array([0, 1, 2, 0]), np.array([1, 2, 0, 2]), cost)
    found = repeated(members, np.array([0.0, 5.0, 1.0]), 100_000)
    assert len(done) < 100
    assert found == pytest.approx(one_by_one(members, np.array([0.0, 5.0, 1.0]), 100_000))


@pytest.mark.parametrize("seed", range(40))
def test_many_repetitions_of_any_waits_at_once_are_each_of_them(seed):
    rng = np.random.default_rng(seed)
    k, arcs, steps = (int(rng.integers(1, most)) for most in (40, 90, 2000))
    src, dst = rng.integers(0, k, (2, arcs))
    cost = rng.choice([1.0, 2.0, rng.random()], arcs)
    members = Members.of(rng.choice([0.0, 1.0, 0.3], k), src, dst, cost)
    clocks = rng.random(k) * rng.choice([0.0, 3.0])
    expected = one_by_one(members, clocks, steps)
    np.testing.assert_allclose(repeated(members, clocks, steps), expected, rtol=1e-12)


@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "broadcast", "gather"])
@pytest.mark.parametrize("name", ["unequal links", "rails", "leaves"])
def test_messages_are_kept_without_changing_the_time(name, collective):
    own = planner(name)
    for option in options_of(own, collective):
        arrival = arrivals("scattered", own.fabric.nranks)
        args = option.schedule, own.fabric, 1e6, PROTOCOLS["LL128"]
        line = clock(*args, arrival=arrival, detail=True)
        assert line.seconds == pytest.approx(clock(*args, arrival=arrival).seconds, rel=1e-12)
        moved = line.transfers
        assert (np.diff(moved.start) >= 0).all()
        assert (moved.pushed >= moved.start).all() and (moved.end >= moved.pushed).all()
        let = moved.after >= 0
        before = moved.after[let]
        came = moved.dst[before] == moved.src[let]
        ready = np.where(came, moved.end[before], moved.pushed[before])
        assert (came | (moved.src[before] == moved.src[let])).all()
        assert (moved.start[let] >= ready - 1e-15).all()
        sent = sum(s.steps * s.slots.sum() for s in stages(option.schedule, own.fabric))
        slot = 1e6 / option.schedule.layout.chunks
        assert moved.nbytes.sum() == pytest.approx(sent * slot)


def test_no_rank_waits_for_one_it_does_not_hear_from():
    own = planner("rails")
    schedule = algorithm("broadcast", "direct-oneshot").build(recipe_of(8))
    args = schedule, own.fabric, 1e6, PROTOCOLS["Simple"]
    leaf, others = 6, np.arange(8) != 6
    calm, held = clock(*args), clock(*args, arrival=np.where(others, 0.0, 1.0))
    np.testing.assert_allclose(held.ends[others], calm.ends[others], rtol=1e-12)
    assert held.ends[leaf] == pytest.approx(own.fabric.launch + 1.0)


def test_a_late_rank_delays_a_ring_by_no_more_than_it_is_late():
    fabric = lower(load("h100-8", nodes=4))
    schedule = algorithm("allreduce", "ring").build(recipe_of(32, one_ring=True))
    calm = clock(schedule, fabric, 1e6, PROTOCOLS["LL"]).seconds
    for late in (1e-6, 1e-4, 1e-2):
        held = clock(schedule, fabric, 1e6, PROTOCOLS["LL"],
                     arrival=np.where(np.arange(32) == 7, late, 0.0)).seconds  # fmt: skip
        assert max(calm, fabric.launch + late) <= held <= (calm + late) * (1 + 1e-12)


@pytest.mark.parametrize("n", [4, 1000])
def test_a_ring_on_one_switch_takes_the_closed_form(tmp_path, n):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=50.0), n)))
    schedule = algorithm("allreduce", "ring").build(recipe_of(n, one_ring=True))
    block, latency = float(1 << 30), 1e-6
    line = clock(schedule, fabric, block, PROTOCOLS["Simple"])
    closed = 2 * (n - 1) * (latency + block / (n * 50e9))
    assert line.seconds - fabric.launch == pytest.approx(closed, rel=1e-3)
    assert [part.steps for part in line.parts] == [n - 1, n - 1]


def test_ten_thousand_ranks_and_their_twenty_thousand_steps_are_the_estimate():
    fabric = lower(load("mi300x-8-x12500-three-tier"), 10_000)
    schedule = algorithm("allreduce", "ring").build(recipe_of(10_000, one_ring=True))
    args = float(1 << 30), PROTOCOLS["LL"]
    known = profile(schedule, fabric)
    line, bound = clock(schedule, fabric, *args), known.timeline(*args)
    assert 0.9 * bound.seconds < line.seconds <= bound.seconds
    np.testing.assert_allclose(line.link_busy, bound.link_busy, rtol=1e-9)


def test_more_messages_than_are_kept_are_refused_with_a_way_out():
    log = Log(4, 1.0, most=10)
    log.room_for(10, "allreduce")
    with pytest.raises(InvalidUsage, match=r"more than 10 .*ask without detail"):
        log.room_for(11, "allreduce")
