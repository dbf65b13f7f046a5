"""Unequal parts: every byte once, balanced doors, stages as short as can be, plans that hold."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py.algorithms.balanced import (
    Doors,
    balanced,
    between_units,
    direct,
    greedy,
    staged,
)
from rccl_py.algorithms.uneven import (
    Exchange,
    Parcels,
    Trips,
    checked_counts,
    deliver,
    exchange_of,
    prove,
)
from rccl_py.errors import InvalidArgument, ScheduleError
from rccl_py.fabric import Fabric
from rccl_py.planner.flows import plan_alltoallv
from rccl_py.planner.flows.doors import busiest_port, doors_of
from rccl_py.timing import exchange
from rccl_py.topology import load, lower

# ---- drawing demands ------------------------------------------------------------------------


def zipf(rng: np.random.Generator, n: int, most: int = 2000) -> np.ndarray:
    """Return skewed counts, with some rows and some entries of nothing."""
    counts = rng.zipf(1.6, size=(n, n)).clip(0, most).astype(np.int64)
    counts *= rng.random((n, n)) < rng.random()
    counts[rng.random(n) < 0.2] = 0
    return counts


@st.composite
def placed(draw: st.DrawFn, most: int = 9) -> tuple[np.ndarray, Doors, np.random.Generator]:
    """Draw counts, and ranks in units of any sizes in any order with doors of any widths."""
    n = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    unit = np.unique(rng.integers(0, draw(st.integers(1, 4)), size=n), return_inverse=True)[1]
    out, into = (rng.integers(0, 4, size=n).astype(float) for _ in range(2))
    for width in (out, into):
        width[np.bincount(unit, weights=width)[unit] == 0] = 1.0
    return zipf(rng, n), Doors(unit, out, into, draw(st.booleans())), rng


def exchanges(counts: np.ndarray, doors: Doors) -> list[Exchange]:
    return [direct(counts), balanced(counts, doors), balanced(counts, doors, 3),
            staged(counts, doors), greedy(counts, doors)]  # fmt: skip


def random_parts(rng: np.random.Generator, counts: np.ndarray) -> list[list[np.ndarray]]:
    return [[rng.integers(1, 256, size=size, dtype=np.uint8) for size in row] for row in counts]


def arrives(made: Exchange, rng: np.random.Generator) -> bool:
    """Return whether running the rounds on random bytes leaves all parts where they belong."""
    n, parts = made.nranks, random_parts(rng, made.counts)
    found = deliver(made, parts)
    return all(np.array_equal(found[j][i], parts[i][j]) for i in range(n) for j in range(n))


# ---- every byte once ------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(placed())
def test_every_way_to_exchange_brings_every_byte_exactly_once(drawn):
    counts, doors, rng = drawn
    for made in exchanges(counts, doors):
        prove(made)
        assert arrives(made, rng), made.algorithm


@settings(max_examples=60, deadline=None)
@given(placed(6), st.integers(0, 2**32 - 1))
def test_a_broken_exchange_is_refused_unless_it_still_brings_everything(drawn, seed):
    counts, doors, rng = drawn
    made = balanced(counts, doors, 2)
    if not made.rounds:
        return
    damage = np.random.default_rng(seed)
    at = int(damage.integers(len(made.rounds)))
    columns = {c: getattr(made.rounds[at], c).copy() for c in Parcels.__slots__}
    row, name = int(damage.integers(len(columns["src"]))), damage.choice(list(columns))
    columns[name][row] += damage.choice([-1, 1])
    rounds = [*made.rounds[:at], Parcels(**columns), *made.rounds[at + 1 :]]
    broken = replace(made, rounds=tuple(rounds))
    try:
        prove(broken)
    except ScheduleError as error:
        assert re.search(r"round \d+ row \d+|there arrive", str(error))
    else:  # a part may be taken from where it still is: nothing is lost by that
        assert arrives(broken, rng)


def test_what_is_handed_on_twice_or_left_out_is_named_with_its_round_and_row():
    counts = np.array([[0, 0, 6], [0, 0, 0], [0, 0, 0]])
    trips = Trips(np.array([[0, 1, 2], [0, 0, 2]], dtype=np.int32), np.array([0, 4]),
                  np.array([4, 2]), np.array([0, 0]))  # fmt: skip
    good = exchange_of("by hand", counts, trips)
    prove(good)
    with pytest.raises(ScheduleError, match=r"round 0 row 1: rank 1 does not have bytes 0\.\.3"):
        prove(replace(good, rounds=good.rounds[1:]))
    with pytest.raises(
        ScheduleError, match=r"round 1 row 0: rank 1 has bytes 0\.\.3 of 0 for 2, or"
    ):
        prove(replace(good, rounds=(good.rounds[0], *good.rounds)))
    with pytest.raises(ScheduleError, match="of 6 bytes of rank 0 for rank 2 there arrive"):
        prove(replace(good, rounds=good.rounds[:1]))


@pytest.mark.parametrize("counts, what", [
    (np.zeros((2, 3), dtype=int), r"shape \(2, 3\): expected \[n, n\]"),
    (np.zeros((0, 0), dtype=int), r"shape \(0, 0\)"),
    (np.zeros((2, 2)), "are float64: expected whole numbers"),
    (np.array([[0, 1], [-3, 0]]), "rank 1 has -3 bytes for rank 0"),
])  # fmt: skip
def test_counts_that_are_none_are_refused_with_what_was_found(counts, what):
    with pytest.raises(InvalidArgument, match=what):
        checked_counts(counts)


# ---- balanced doors -------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(placed())
def test_every_door_carries_its_share_of_what_goes_to_each_other_unit(drawn):
    counts, doors, _ = drawn
    u, made = doors.count, balanced(counts, doors)
    demand = between_units(counts, doors.unit)
    leaves, enters = (np.zeros((len(counts), u), dtype=np.int64) for _ in range(2))
    for parcels in made.rounds:
        a, b = doors.unit[parcels.src], doors.unit[parcels.dst]
        across = a != b
        np.add.at(leaves, (parcels.src[across], b[across]), parcels.size[across])
        np.add.at(enters, (parcels.dst[across], a[across]), parcels.size[across])
    for found, width, wanted in ((leaves, doors.out, demand), (enters, doors.into, demand.T)):
        part = width / np.bincount(doors.unit, weights=width)[doors.unit]
        assert np.abs(found - wanted[doors.unit] * part[:, None]).max() <= 1


@settings(max_examples=60, deadline=None)
@given(placed())
def test_a_rank_never_hands_out_what_its_own_door_has_room_for(drawn):
    counts, doors, _ = drawn
    demand, n = between_units(counts, doors.unit), len(counts)
    kept = np.zeros((n, doors.count), dtype=np.int64)
    for parcels in balanced(counts, doors).rounds:
        b = doors.unit[parcels.dst]
        own = (doors.unit[parcels.src] != b) & (parcels.src == parcels.origin)
        np.add.at(kept, (parcels.src[own], b[own]), parcels.size[own])
    part = doors.out / np.bincount(doors.unit, weights=doors.out)[doors.unit]
    has = np.array([np.bincount(doors.unit, weights=row, minlength=doors.count) for row in counts])
    has[np.arange(n), doors.unit] = 0
    room = demand[doors.unit] * part[:, None]
    assert (kept >= np.minimum(has, room) - 1).all()


# ---- plans ----------------------------------------------------------------------------------


def fabric_of(name: str, nodes: int = 1) -> Fabric:
    return lower(load(name, nodes=nodes) if nodes > 1 else load(name))


@pytest.mark.parametrize("name, nodes", [("h100-8", 1), ("mi300x-8", 2)])
def test_direct_takes_what_messages_posted_together_take(name, nodes):
    fabric = fabric_of(name, nodes)
    counts = zipf(np.random.default_rng(5), fabric.nranks) * 4096
    src, dst = np.nonzero(counts)
    plan = plan_alltoallv(fabric, counts, algorithms=["direct"])
    wanted = exchange(fabric, src, dst, counts[src, dst])
    assert plan.seconds == pytest.approx(wanted.seconds, rel=1e-6)
    assert plan.protocol == wanted.protocol and plan.algorithm == "direct"


MACHINES = [("mi300x-8", 1), ("v100-8", 1), ("h100-8", 2), ("mi300x-8", 2)]


@pytest.mark.parametrize("name, nodes", MACHINES)
def test_a_plan_is_no_slower_than_direct_no_faster_than_its_bound_and_exact(name, nodes):
    fabric = fabric_of(name, nodes)
    for seed, unit in ((0, 1), (1, 100_000)):
        counts = zipf(np.random.default_rng(seed), fabric.nranks) * unit
        plan = plan_alltoallv(fabric, counts)
        prove(plan.exchange)
        by_name = {c.algorithm: c for c in plan.candidates}
        assert plan.seconds <= by_name["direct"].seconds
        assert 0 < plan.bound <= plan.seconds and 0 <= plan.gap < 1
        assert plan.candidates[0].algorithm == plan.algorithm
        assert all(c.reason for c in plan.candidates if c.seconds > plan.seconds)
        assert plan.timeline("clock").seconds >= plan.bound


@pytest.mark.parametrize("name, nodes, least", [("mi300x-8", 1, 5.0), ("h100-8", 2, 6.0)])
def test_one_large_part_uses_all_links_or_all_nics_and_not_one(name, nodes, least):
    fabric = fabric_of(name, nodes)
    counts = np.full((fabric.nranks,) * 2, 1000)
    counts[0, fabric.nranks - 1] = 2**30
    plan = plan_alltoallv(fabric, counts)
    direct_one = next(c for c in plan.candidates if c.algorithm == "direct")
    assert direct_one.seconds > least * plan.seconds
    assert plan.seconds < 1.6 * plan.bound
    assert any(word in plan.bottleneck for word in ("NICs", "rank 0", "gpu0"))


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_staged_and_greedy_links_are_busy_within_twice_the_bound_and_a_step_a_round(nodes):
    fabric = fabric_of("h100-8", nodes)
    for seed in range(3):
        counts = zipf(np.random.default_rng(seed), fabric.nranks) * 200_000
        # Doors of the model: NICs reach the part of their cables that serving many leaves.
        bound = busiest_port(fabric, counts).seconds / fabric.spread.min()
        step = 60e-6  # a round's latency, messages and the first window, at most
        for name in ("staged", "greedy"):
            plan = plan_alltoallv(fabric, counts, "Simple", [name])
            rounds = len(plan.exchange.rounds)
            own = np.diag(counts).max() / fabric.copy
            assert plan.seconds <= 2 * bound + own + rounds * step, (name, seed)


def test_small_parts_go_direct_and_what_cannot_be_better_is_not_tried():
    fabric = fabric_of("h100-8")
    small = plan_alltoallv(fabric, np.full((8, 8), 1024))
    assert small.algorithm == "direct" and len(small.exchange.rounds) == 1
    every = np.full((8, 8), 2**28) * (1 - np.eye(8, dtype=int))
    large = plan_alltoallv(fabric_of("mi300x-8"), every, "Simple")
    assert large.algorithm == "direct" and large.gap < 0.04


def test_nothing_to_exchange_takes_a_launch():
    fabric = fabric_of("h100-8")
    plan = plan_alltoallv(fabric, np.zeros((8, 8), dtype=int))
    assert plan.seconds == pytest.approx(fabric.launch) and plan.exchange.rounds == ()


def test_parts_beyond_the_range_of_a_column_take_in_proportion_to_their_size():
    fabric, counts = fabric_of("mi300x-8"), np.zeros((8, 8), dtype=np.int64)
    times = []
    for size in (2**33, 2**43):
        counts[2, 5] = size
        times.append(plan_alltoallv(fabric, counts, "Simple", ["direct"]).seconds)
    assert times[1] / times[0] == pytest.approx(1024, rel=1e-2)


def test_what_would_take_too_long_to_build_is_left_out_with_its_size():
    fabric = fabric_of("mi300x-8", 66)
    counts = np.zeros((fabric.nranks,) * 2, dtype=np.int64)
    counts[::8, 3] = 10_000_000
    plan = plan_alltoallv(fabric, counts)
    reasons = {c.algorithm: c.reason for c in plan.candidates}
    assert reasons["staged"] == "66 nodes or ranks to pair, over the limit of 64"
    assert plan.algorithm.startswith("balanced") and plan.seconds < 0.5 * next(
        c.seconds for c in plan.candidates if c.algorithm == "direct")  # fmt: skip


def test_uneven_nodes_have_doors_by_their_nics():
    fabric = lower(load("h100-8", nodes=2), [*range(8), *range(8, 12)])
    doors = doors_of(fabric)
    assert doors.unit.tolist() == [0] * 8 + [1] * 4
    counts = zipf(np.random.default_rng(3), 12) * 50_000
    plan = plan_alltoallv(fabric, counts)
    prove(plan.exchange)
    assert plan.seconds <= plan_alltoallv(fabric, counts, algorithms=["direct"]).seconds


def test_what_is_not_known_is_refused_with_what_is():
    fabric = fabric_of("h100-8")
    good = np.full((8, 8), 1024)
    with pytest.raises(InvalidArgument, match=r"are for 4 ranks, h100-8.* has 8"):
        plan_alltoallv(fabric, good[:4, :4])
    with pytest.raises(InvalidArgument, match="'simple': expected one of LL, LL128, Simple"):
        plan_alltoallv(fabric, good, "simple")
    with pytest.raises(InvalidArgument, match=r"'fast': expected one of direct, balanced"):
        plan_alltoallv(fabric, good, algorithms=["fast"])
    with pytest.raises(InvalidArgument, match=r"nothing to choose from .*let direct in"):
        plan_alltoallv(fabric, good, algorithms=["balanced"])


def test_the_same_call_gets_the_same_plan():
    fabric = fabric_of("mi300x-8")
    counts = zipf(np.random.default_rng(7), 8) * 100_000
    one, other = (plan_alltoallv(fabric, counts) for _ in range(2))
    assert one.seconds == other.seconds and one.candidates == other.candidates
    for a, b in zip(one.exchange.rounds, other.exchange.rounds, strict=True):
        assert all(np.array_equal(getattr(a, c), getattr(b, c)) for c in Parcels.__slots__)


# ---- calls ----------------------------------------------------------------------------------


def call_all(counts: np.ndarray, machine: str) -> tuple[float, bool]:
    """Return (modelled seconds of an alltoallv of int32 in all ranks, is the data right)."""
    n = len(counts)
    comms = rccl.Communicator.init_all(machine)
    sent = [np.arange(row.sum(), dtype=np.int32) + 1_000_000 * r for r, row in enumerate(counts)]
    got = [np.zeros(column.sum(), dtype=np.int32) for column in counts.T]
    with rccl.group():
        for r, comm in enumerate(comms):
            comm.alltoallv(sent[r], counts[r].tolist(), None, got[r], counts[:, r].tolist(), None)
    first = np.cumsum(counts, axis=1) - counts
    wanted = [np.concatenate([sent[i][first[i, j] : first[i, j] + counts[i, j]] for i in range(n)])
              for j in range(n)]  # fmt: skip
    return comms[0].elapsed, all(map(np.array_equal, got, wanted))


def test_a_skewed_alltoallv_takes_the_time_of_its_plan_and_its_data_goes_over_relays(monkeypatch):
    ran: list[str] = []

    def watched(made: Exchange, parts: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        ran.append(made.algorithm)
        return deliver(made, parts)

    monkeypatch.setattr("rccl_py.comm.skew.deliver", watched)
    counts = np.random.default_rng(9).zipf(1.6, (8, 8)).clip(0, 300) * 10_000
    seconds, right = call_all(counts, "mi300x-8")
    plan = plan_alltoallv(fabric_of("mi300x-8"), counts * 4)
    assert right and plan.algorithm.startswith("relayed") and ran == [plan.algorithm]
    assert seconds == pytest.approx(plan.seconds)


def test_a_small_or_even_alltoallv_takes_what_direct_messages_take():
    for counts in (zipf(np.random.default_rng(9), 8, 300), np.full((8, 8), 50_000)):
        seconds, right = call_all(counts, "mi300x-8")
        src, dst = np.nonzero(counts)
        wanted = exchange(fabric_of("mi300x-8"), src, dst, 4 * counts[src, dst])
        assert right and seconds == pytest.approx(wanted.seconds)
