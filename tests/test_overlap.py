"""Operations that overlap in modelled time: against a slow twin in exact fractions, and by hand.

`slow` steps from event to event, and at each lets the speeds of what runs rise together until a
link is full. It knows nothing of queues or arrays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from helpers import SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.planner import Planner
from rccl_py.timing import Busy, Task, Timetable, exchange
from rccl_py.timing.overlap import _KEPT
from rccl_py.topology import load, lower

LINKS = 3


@dataclass(frozen=True)
class Case:
    """An operation: seconds alone, earliest second, what it follows, busy seconds of each link."""

    seconds: Fraction
    release: Fraction
    after: tuple[int, ...]
    busy: tuple[Fraction, ...]
    medium: int = 0


def alone(seconds, *, release=0, after=(), busy=(0, 0, 0), medium: int = 0) -> Case:
    exact = tuple(Fraction(b) for b in busy)
    return Case(Fraction(seconds), Fraction(release), tuple(after), exact, medium)


def timed(cases: list[Case], order: list[int] | None = None) -> list[tuple[float, float]]:
    """Return every operation's (start, end); added in this order, which must put `after` first."""
    table, made = Timetable(), {}
    for k in order if order is not None else range(len(cases)):
        case = cases[k]
        busy = np.array(case.busy, dtype=np.float64)
        uses = (lambda busy=busy: Busy.of(busy)) if busy.any() else None
        after = [made[a] for a in case.after]
        made[k] = table.add(
            Task(float(case.seconds), after, float(case.release), uses, case.medium)
        )
    table.settle()
    return [(made[k].start, made[k].end) for k in range(len(cases))]


def fair_speeds(cases: dict[int, Case]) -> dict[int, Fraction]:
    """Return max-min fair speeds: all rise together, those on a full link stop."""
    speed = dict.fromkeys(cases, Fraction(1))
    rising = {k for k, case in cases.items() if case.seconds}
    held: dict[tuple[int, int], Fraction] = {}
    while rising:
        level, full = Fraction(1), []
        for link in product(range(2), range(LINKS)):
            wanted = sum(share(cases[k], link) for k in rising)
            reached = (1 - held.get(link, Fraction(0))) / wanted if wanted else Fraction(2)
            if reached < level:
                level, full = reached, [link]
            elif reached == level and reached < 1:
                full.append(link)
        stopped = {k for k in rising if any(share(cases[k], link) for link in full)} or set(rising)
        for k in stopped:
            speed[k] = level
            for link in product(range(2), range(LINKS)):
                held[link] = held.get(link, Fraction(0)) + level * share(cases[k], link)
        assert all(used <= 1 for used in held.values())
        rising -= stopped
    return speed


def share(case: Case, link: tuple[int, int]) -> Fraction:
    """Return the part of a link an operation uses at speed 1."""
    return case.busy[link[1]] / case.seconds if link[0] == case.medium else Fraction(0)


def slow(cases: list[Case]) -> list[tuple[Fraction, Fraction]]:
    """Return every operation's (start, end), event by event."""
    clock, left = Fraction(0), [Fraction(1)] * len(cases)
    start: dict[int, Fraction] = {}
    end: dict[int, Fraction] = {}
    while len(end) < len(cases):
        free = [k for k, c in enumerate(cases) if k not in end and all(a in end for a in c.after)]
        running = {k: cases[k] for k in free if cases[k].release <= clock}
        for k in running:
            start.setdefault(k, clock)
        speed = fair_speeds(running)
        ends = {k: clock + left[k] * c.seconds / speed[k] for k, c in running.items()}
        coming = [cases[k].release for k in free if k not in running]
        clock, before = min([*ends.values(), *coming]), clock
        for k, case in running.items():
            if ends[k] == clock:
                end[k] = clock
            elif case.seconds:
                left[k] -= (clock - before) * speed[k] / case.seconds
    return [(start[k], end[k]) for k in range(len(cases))]


SECONDS = st.sampled_from([Fraction(k, 4) for k in (0, 1, 2, 3, 4, 8, 20)])
SHARES = st.sampled_from([Fraction(0), Fraction(1, 8), Fraction(1, 3), Fraction(1, 2), Fraction(1)])


@st.composite
def programs(draw, independent: bool = False) -> list[Case]:
    made = []
    for k in range(draw(st.integers(1, 7))):
        seconds = draw(SECONDS)
        after = () if independent or not k else draw(
            st.lists(st.integers(0, k - 1), max_size=2, unique=True))  # fmt: skip
        busy = [seconds * draw(SHARES) for _ in range(LINKS)]
        made.append(alone(seconds, release=draw(SECONDS), after=after, busy=busy,
                          medium=draw(st.integers(0, 1))))  # fmt: skip
    return made


# ---- any program ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(programs())
def test_starts_and_ends_are_those_of_the_slow_twin(cases):
    for found, wanted in zip(timed(cases), slow(cases)):
        assert found == pytest.approx([float(w) for w in wanted], rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=150)
@given(programs())
def test_no_link_carries_more_than_fits_between_any_start_and_any_end(cases):
    times = timed(cases)
    for (first, _), (_, last) in product(times, times):
        inside = [c for c, (a, b) in zip(cases, times) if a >= first and b <= last]
        for link in product(range(2), range(LINKS)):
            carried = sum(c.busy[link[1]] for c in inside if c.medium == link[0])
            assert float(carried) <= max(last - first, 0.0) + 1e-9


@settings(deadline=None, max_examples=100)
@given(programs())
def test_nothing_ends_sooner_than_alone_nor_starts_before_what_it_follows(cases):
    times = timed(cases)
    for case, (start, end) in zip(cases, times):
        assert end - start >= float(case.seconds) - 1e-9
        assert start >= max([float(case.release), *(times[a][1] for a in case.after)])


@settings(deadline=None, max_examples=100)
@given(programs(independent=True), st.randoms(use_true_random=False))
def test_the_order_of_adding_does_not_matter(cases, random):
    order = list(range(len(cases)))
    random.shuffle(order)
    for one, other in zip(timed(cases), timed(cases, order)):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(programs(independent=True))
def test_operations_that_use_no_link_never_slow_each_other(cases):
    free = [alone(c.seconds, release=c.release) for c in cases]
    for case, (start, end) in zip(cases, timed(free)):
        assert start == float(case.release)
        assert end == pytest.approx(float(case.release + case.seconds), rel=1e-12)


# ---- by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, Fraction(1, 4), 3])
def test_an_operation_alone_takes_its_own_seconds(seconds):
    case = alone(seconds, release=2, busy=(seconds, 0, seconds))
    assert timed([case]) == [(2.0, 2.0 + float(seconds))]


@pytest.mark.parametrize("n", SIZES)
def test_operations_that_each_fill_one_link_take_as_many_times_as_long(n):
    assert timed([alone(2, busy=(2, 0, 0))] * n) == [(0.0, pytest.approx(2.0 * n))] * n


@pytest.mark.parametrize("n", SIZES)
def test_operations_that_fill_half_a_link_slow_each_other_from_the_third_on(n):
    assert timed([alone(2, busy=(1, 0, 0))] * n) == [(0.0, pytest.approx(max(2.0, n)))] * n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_operations_on_disjoint_links_do_not_slow_each_other(n):
    cases = [alone(1, busy=[int(link == k) for link in range(LINKS)]) for k in range(n)]
    assert timed(cases) == [(0.0, 1.0)] * n


def test_operations_on_two_machines_do_not_slow_each_other():
    cases = [alone(1, busy=(1, 1, 1), medium=m) for m in range(2)]
    assert timed(cases) == [(0.0, 1.0)] * 2


def test_one_that_comes_later_slows_only_what_is_left():
    cases = [alone(2, busy=(2, 0, 0)), alone(1, release=1, busy=(1, 0, 0))]
    assert timed(cases) == [(0.0, 3.0), (1.0, 3.0)]


def test_what_one_operation_cannot_use_another_takes():
    # The first is held to half its speed on link 0; the third then has three quarters of link 1.
    cases = [alone(1, busy=(1, Fraction(1, 2), 0)), alone(1, busy=(1, 0, 0)),
             alone(1, busy=(0, 1, 0))]  # fmt: skip
    assert [end for _, end in timed(cases)] == pytest.approx([2.0, 2.0, 4 / 3])


def test_a_chain_runs_one_after_the_other():
    cases = [alone(1, busy=(1, 0, 0), after=[k - 1] if k else []) for k in range(5)]
    assert timed(cases) == [(float(k), k + 1.0) for k in range(5)]


def test_what_was_settled_stays_when_more_comes():
    table = Timetable()
    first = table.add(Task(1.0, busy=lambda: np.ones(1)))
    table.settle()
    later = table.add(Task(1.0, busy=lambda: np.ones(1)))
    table.settle()
    assert (first.end, later.start, later.end) == (1.0, 0.0, 1.0)


def test_many_operations_are_settled_on_the_way():
    table, tail = Timetable(), ()
    tasks = []
    for _ in range(_KEPT + 3):
        tasks.append(table.add(Task(1.0, tail)))
        tail = (tasks[-1],)
    assert tasks[_KEPT].end == _KEPT + 1 and tasks[-1].end < 0
    table.settle()
    assert tasks[-1].end == _KEPT + 3


# ---- messages posted together ---------------------------------------------------------------


@pytest.fixture(scope="module")
def fabric():
    return lower(load("mi300x-8"))


def seconds_of(fabric, *rows: tuple[int, int, int]) -> float:
    columns = [list(c) for c in zip(*rows)] if rows else [[], [], []]
    return exchange(fabric, *(np.array(c, dtype=np.int64) for c in columns)).seconds


def test_an_exchange_of_nothing_takes_a_launch(fabric):
    assert seconds_of(fabric) == fabric.launch


def test_a_message_to_oneself_is_a_copy_by_a_kernel(fabric):
    assert seconds_of(fabric, (3, 3, 1 << 20)) == fabric.launch + (1 << 20) / fabric.copy


@pytest.mark.parametrize("name, nodes", [("mi300x-8", 1), ("h100-8", 1), ("h100-8", 2),
                                         ("mi355x-8", 4), ("helios-72", 1)])  # fmt: skip
@pytest.mark.parametrize("block", [1, 999, 1 << 16, 1 << 22, 1 << 28])
def test_equal_messages_from_all_to_all_take_what_alltoall_by_direct_takes(name, nodes, block):
    fabric = lower(load(name, nodes=nodes))
    n = fabric.nranks
    src, dst = (ends.ravel() for ends in np.meshgrid(range(n), range(n), indexing="ij"))
    found = exchange(fabric, src, dst, np.full(n * n, block))
    plan = Planner(fabric, "direct").plan("alltoall", block)
    assert found.protocol == plan.protocol
    assert found.seconds == pytest.approx(plan.time, rel=1e-12)


def test_messages_on_disjoint_links_take_as_long_as_one(fabric):
    one = seconds_of(fabric, (0, 1, 1 << 24))
    assert seconds_of(fabric, (0, 1, 1 << 24), (2, 3, 1 << 24)) == one
    assert seconds_of(fabric, (0, 1, 1 << 24), (1, 0, 1 << 24)) == pytest.approx(one, rel=0.01)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_messages_over_one_link_share_its_bandwidth(fabric, k):
    # What is paid once, a window that fills too, drops out between two sizes.
    one, many = (
        seconds_of(fabric, *[(0, 1, 1 << 31)] * count)
        - seconds_of(fabric, *[(0, 1, 1 << 30)] * count)
        for count in (1, k)
    )
    assert many / one == pytest.approx(k, rel=1e-6)


def windowed(fabric: Fabric) -> Fabric:
    """Return `fabric` with windows, and protocols that differ from link to link."""
    made = []
    for domain in fabric.domains:
        odd = np.arange(domain.nlinks) % 5, np.arange(domain.nnics) % 3
        wire, port_wire = (np.array([[2.25], [1.125], [1.0]]) * (1 + each / 8) for each in odd)
        made.append(replace(domain, window=2e5, port_window=6e5, wire=wire, port_wire=port_wire,
                            spread=1 - odd[0] / 16, port_spread=0.75 + odd[1] / 16))  # fmt: skip
    return replace(fabric, domains=tuple(made))


FABRICS = [windowed(lower(load(name, nodes=nodes), ranks)) for name, nodes, ranks in (
    ("mi300x-8", 1, None), ("h100-8", 2, [0, 1, 5, 8, 9, 14]), ("mi250x-4", 2, [0, 1, 2, 8]),
)]  # fmt: skip


def slow_exchange(fabric: Fabric, rows: list[tuple[int, int, int]]) -> dict[str, tuple]:
    """Return by protocol the seconds, and those that each link is busy, message by message."""
    pair = {(s, d): (np.array([s], np.int32), np.array([d], np.int32)) for s, d, _ in rows}
    link, memory, out, into, sending = Counter(), Counter(), Counter(), Counter(), Counter()
    latency, far = [0.0] * 3, False
    served = {(s, d) for s, d, _ in rows if s != d}
    many = any(n > 2 for n in Counter(s for s, _ in served).values())  # one sends to three
    copied = Counter()
    for src, dst, size in rows:
        if src == dst:
            copied[src] += size
            continue
        memory[src] += size
        memory[dst] += size
        ends = pair[src, dst]
        memory[dst] += 0 if fabric.coherent(*ends)[0] else 2 * size  # in and out of a buffer
        routes = fabric.routes(*ends)
        for number, share in zip(routes.link.tolist(), routes.share.tolist()):
            link[number] += size * share / (float(fabric.spread[number]) if many else 1.0)
        latency = [max(a, b) for a, b in zip(latency, fabric.latency(*ends)[:, 0].tolist())]
        leaves = bool(fabric.node[src] != fabric.node[dst])
        least = min(min(d.port_spread if leaves else d.spread[d.joins]) for d in fabric.domains)
        sending[src] += float(fabric.message(*ends)[0]) / (least if many else 1.0)
        out[src] += size
        into[dst] += size
        far |= leaves
    window = max(d.port_window if far else d.window for d in fabric.domains)
    moved = max([0, *out.values(), *into.values()])
    filling = min(window, moved) / moved if moved else 0.0
    first, found = fabric.launch + max(sending.values(), default=0.0), {}
    first += max(copied.values(), default=0.0) / fabric.copy
    for name, protocol in PROTOCOLS.items():
        busy = {k: load * fabric.pace[protocol.index, k] for k, load in link.items()}
        wire = max([0.0, *busy.values(), *(b / fabric.memory for b in memory.values())])
        found[name] = first + latency[protocol.index] + wire * (1 + filling), busy
    return found


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(FABRICS) - 1), st.lists(st.tuples(
    st.integers(0, 7), st.integers(0, 7), st.sampled_from([0, 1, 999, 1 << 18, 1 << 22, 1 << 28])),
    min_size=1, max_size=9))  # fmt: skip
def test_an_exchange_takes_what_its_messages_add_up_to(number, rows):
    fabric = FABRICS[number]
    rows = [(src % fabric.nranks, dst % fabric.nranks, size) for src, dst, size in rows]
    found = exchange(fabric, *(np.array(c, dtype=np.int64) for c in zip(*rows)))
    every = slow_exchange(fabric, rows)
    seconds, busy = every[found.protocol]
    assert found.seconds == pytest.approx(seconds, rel=1e-12)
    assert seconds <= min(other for other, _ in every.values()) * (1 + 1e-12)
    used = dict(zip(found.busy.link.tolist(), found.busy.seconds.tolist()))
    assert used == pytest.approx(busy)
    assert fabric.launch * (1 - 1e-9) <= found.lead <= found.seconds


def test_longer_messages_never_take_less_time(fabric):
    times = [seconds_of(fabric, (0, 1, size), (1, 5, 2 * size)) for size in
             (0, 1, 7, 1 << 10, 1 << 16, 1 << 20, 1 << 30)]  # fmt: skip
    assert times == sorted(times)
