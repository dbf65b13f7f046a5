"""The estimate equals a loop over every row of every step, and the closed forms of textbooks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers import SIZES, algorithm, equipped, machine, raw_links, recipe_of, suits, switched
from slow_estimate import Slow

from rccl_py import Planner, load, lower
from rccl_py.algorithms import ALGORITHMS, Algorithm
from rccl_py.errors import FabricError
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.timing import Loads, exchange, exchanges, profile


def figured(fabric: Fabric) -> Fabric:
    """Return `fabric` with windows, and figures of the protocols that differ from link to link."""
    domains = []
    for domain in fabric.domains:
        own, ports = np.arange(domain.nlinks), np.arange(domain.nnics)
        base = np.array([[2.5], [1.25], [1.0]])
        domains.append(replace(
            domain, window=3e5, port_window=8e5, spread=1 - own % 4 / 8,
            port_spread=0.875 - ports % 3 / 8,
            wire=base * (1 + (own * np.array([[1], [3], [5]]) % 7) / 10),
            port_wire=base * (1 + (ports * np.array([[5], [1], [3]]) % 5) / 10)))  # fmt: skip
    return replace(fabric, domains=tuple(domains), copy=3e11, per_channel=(1e10, 1.5e10, 2e10))


MACHINES = {
    "mesh": lambda: lower(load("mi300x-8")),
    "unequal links": lambda: figured(lower(load("mi250x-4"))),
    "switch": lambda: lower(load("h100-8"), 5),
    "planes": lambda: figured(lower(load("h100-8"), 6)),
    "rails": lambda: lower(load("h100-8", nodes=2), [*range(4), *range(8, 12)]),
    "figured rails": lambda: figured(lower(load("h100-8", nodes=2), [*range(3), *range(8, 11)])),
    "two nodes of three": lambda: lower(load("mi250x-4", nodes=2), [0, 1, 2, 8, 9, 10]),
    "leaves": lambda: lower(load("mi300x-8", nodes=3, network="leaf-spine", leaf_nodes=2,
                                 oversubscription=4), [*range(4), *range(8, 12), *range(16, 20)]),
    "one rank": lambda: lower(load("mi300x-8"), 1),
}  # fmt: skip


@cache
def planner(name: str) -> Planner:
    return Planner(MACHINES[name](), synthesise=False)


def fits(row: Algorithm, name: str) -> bool:
    """Return whether the machine has the ranks, nodes and switches that an algorithm needs."""
    fabric = planner(name).fabric
    several = bool(fabric.node.max())
    if not suits(row, fabric.nranks):
        return False
    if row.switched and (not fabric.multicast or fabric.nranks < 3):
        return False
    return several if row.two_level else not (row.switched and several)


class Slower:
    """A fabric that adds at a rate of its own, or whose paths are or are not load and store."""

    def __init__(self, fabric: Fabric, reduction: float = 0.0, direct: bool = True,
                 together: bool = False) -> None:  # fmt: skip
        self.fabric, self.direct = fabric, direct
        self.reduction = reduction or fabric.reduction
        self.together = together

    def __getattr__(self, name: str) -> object:
        return getattr(self.fabric, name)

    def coherent(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return np.full(len(src), self.direct)


CASES = [(name, row) for name in MACHINES for row in ALGORITHMS if fits(row, name)]


def test_every_algorithm_is_compared_on_a_machine_as_it_is_and_on_one_with_odd_figures():
    odd = ("unequal links", "planes", "figured rails")
    for names in (odd, [name for name in MACHINES if name not in odd]):
        assert {row for name, row in CASES if name in names} == set(ALGORITHMS)


@pytest.mark.parametrize("name, row", CASES, ids=[f"{m}-{a.collective}/{a.name}" for m, a in CASES])
def test_the_estimate_equals_a_loop_over_every_row_of_every_step(name, row):
    made = planner(name)
    slow, n = Slow(made.fabric), made.fabric.nranks
    for pieces in (1, 3) if row.pieces > 1 else (1,):
        schedule = row.build(equipped(made.recipe(n - 1, pieces)))
        fast = profile(schedule, made.fabric)
        for block, protocol in ((1, "LL"), (n - 1, "LL128"), (1e6, "Simple"), (1e9, "LL")):
            for channels in (0, 2) if all(made.fabric.per_channel) else (0,):
                wanted = slow.seconds(schedule, block, protocol, channels)
                found = fast.seconds(block, PROTOCOLS[protocol], channels)
                assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", MACHINES)
def test_loads_known_from_other_schedules_change_nothing(name):
    made, shared = planner(name), Loads(planner(name).fabric)
    for row in [a for a in ALGORITHMS if not a.two_level and fits(a, name)] * 2:
        schedule = row.build(equipped(made.recipe()))
        alone, again = profile(schedule, made.fabric), profile(schedule, made.fabric, shared)
        for field in ("steps", "hops", "messages", "link", "memory", "busiest", "through", "window",
                      "last", "total_link"):  # fmt: skip
            assert np.array_equal(getattr(alone, field), getattr(again, field)), (row.name, field)


def test_rows_that_repeat_are_routed_once():
    made = planner("mesh")
    found = profile(algorithm("allreduce", "ring").build(made.recipe()), made.fabric)
    assert found.rows == 8 + 2 * 7 * 7 * 8 and found.loaded <= 8 + 7 * 8


@pytest.mark.parametrize("name", MACHINES)
def test_a_timeline_adds_up_to_the_time_and_names_the_link_most_loaded(name):
    made = planner(name)
    slow = Slow(made.fabric)
    for row in (a for a in ALGORITHMS if not a.two_level and fits(a, name)):
        schedule = row.build(equipped(made.recipe()))
        fast, total = profile(schedule, made.fabric), np.zeros(made.fabric.nlinks)
        for phase in schedule.phases():
            for s in range(phase.steps):
                for link, slots in slow.load(phase, s)["link"].items():
                    total[link] += slots
        line = fast.timeline(1e6, PROTOCOLS["LL"])
        assert line.seconds == pytest.approx(float(fast.seconds(1e6, PROTOCOLS["LL"])))
        assert line.seconds == pytest.approx(
            line.launch + sum(p.seconds for p in line.parts) + line.tail
        )
        starts = [
            line.launch + sum(p.seconds for p in line.parts[:i]) for i in range(len(line.parts))
        ]
        assert [p.start for p in line.parts] == pytest.approx(starts)
        assert fast.total_link == pytest.approx(total)
        if total.any():
            busy = total * made.fabric.pace[0] * 1e6 / schedule.layout.chunks
            assert line.busy == pytest.approx(busy.max()) == pytest.approx(busy[line.busiest])
            assert line.link_busy == pytest.approx(busy)
        else:
            assert line.busiest is None


# ---- closed forms ---------------------------------------------------------------------------

ALPHA, RATE, NOTE = 3e-6, 10e9, 0.5e-6
ONE_SWITCH = (switched() + "links: {up: {bandwidth: 10GB/s, latency: 3us, source: test, "
              "medium: nvlink, message: 0.5us}}")  # fmt: skip


def log2(n: int) -> int:
    return (n - 1).bit_length()


# (seconds of latency and messages, bytes one port sends) of n ranks, blocks of m bytes, p pieces.
FORMS = {
    ("allreduce", "ring"): lambda n, m, p: (2 * (n - 1) * (ALPHA + NOTE), 2 * (n - 1) * m / n),
    ("allreduce", "direct-twoshot"): lambda n, m, p: (
        2 * (ALPHA + (n - 1) * NOTE), 2 * (n - 1) * m / n),
    ("allreduce", "direct-oneshot"): lambda n, m, p: (ALPHA + (n - 1) * NOTE, (n - 1) * m),
    ("allreduce", "circulant"): lambda n, m, p: (
        2 * log2(n) * (ALPHA + NOTE), 2 * (n - 1) * m / n),
    ("reduce_scatter", "ring"): lambda n, m, p: ((n - 1) * (ALPHA + NOTE), (n - 1) * m),
    ("allgather", "ring"): lambda n, m, p: ((n - 1) * (ALPHA + NOTE), (n - 1) * m),
    ("allgather", "direct"): lambda n, m, p: (ALPHA + (n - 1) * NOTE, (n - 1) * m),
    ("allgather", "circulant"): lambda n, m, p: (log2(n) * (ALPHA + NOTE), (n - 1) * m),
    ("alltoall", "direct"): lambda n, m, p: (ALPHA + (n - 1) * NOTE, (n - 1) * m),
    ("alltoall", "pairwise"): lambda n, m, p: ((n - 1) * (ALPHA + NOTE), (n - 1) * m),
    ("broadcast", "ring"): lambda n, m, p: (
        (n - 2 + p) * (ALPHA + NOTE), (n - 2 + p) * m / p),
    ("reduce", "ring"): lambda n, m, p: ((n - 2 + p) * (ALPHA + NOTE), (n - 2 + p) * m / p),
    ("scatter", "direct"): lambda n, m, p: (ALPHA + (n - 1) * NOTE, (n - 1) * m),
    ("gather", "direct"): lambda n, m, p: (ALPHA + NOTE, (n - 1) * m),
}  # fmt: skip

LANDED = {("reduce_scatter", "ring"), ("reduce_scatter", "direct")}
"""Sums that grow in the output."""
LAST_COPIED = ("reduce_scatter", "reduce", "scatter")
"""Of the others, those whose result waits in scratch: read and written once more at the end."""


def copied_out(collective: str, name: str, n: int, m: float, p: int) -> float:
    """Return the B a kernel copies within a rank: its own block, or the last message it gets.

    Where several messages come at once (direct, n > 2), other kernels than the sender get them.
    """
    last = {"ring": m, "pairwise": m, "circulant": n // 2 * m}.get(name, m if n == 2 else 0.0)
    if collective == "allreduce" and name != "direct-oneshot":
        return last / n
    if collective in ("broadcast", "reduce"):
        return m / p
    own = m if collective in ("allgather", "alltoall", "gather") else 0.0
    return m if collective == "scatter" else max(own, last)


@pytest.mark.parametrize("n", [k for k in SIZES if k > 1])
@pytest.mark.parametrize("collective, name", FORMS)
def test_on_one_switch_the_estimate_is_the_textbooks_formula(tmp_path, collective, name, n):
    fabric = lower(load(machine(tmp_path, ONE_SWITCH, n)))
    row = algorithm(collective, name)
    for pieces in (1, 4) if row.pieces > 1 else (1,):
        found = profile(row.build(recipe_of(n, 0, None, pieces, one_ring=True)), fabric)
        for m in (0, 1, 1e6, 1e9):
            fixed, sent = FORMS[collective, name](n, m, pieces)
            waits = collective in LAST_COPIED and (collective, name) not in LANDED
            copied = 2 * m if waits else 0
            wanted = fabric.launch + fixed + sent / RATE + copied / fabric.memory
            wanted += copied_out(collective, name, n, m, pieces) / fabric.copy
            assert found.seconds(m, PROTOCOLS["Simple"]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("protocol, wire", [("LL", 2.0), ("LL128", 128 / 120), ("Simple", 1.0)])
def test_a_protocol_multiplies_the_bytes_on_the_wire(tmp_path, protocol, wire):
    fabric = lower(load(machine(tmp_path, ONE_SWITCH, 4)))
    found = profile(algorithm("allgather", "ring").build(recipe_of(4, one_ring=True)), fabric)
    empty, full = (found.seconds(m, PROTOCOLS[protocol]) for m in (0, 1e9))
    assert full - empty == pytest.approx(wire * 3e9 / RATE + 1e9 / fabric.copy)


def one_switch(folder, n: int, **figures: object) -> Fabric:
    """Return n ranks on one switch; figures: of its domain, beside those of its device."""
    fabric = lower(load(machine(folder, ONE_SWITCH, n)))
    device = {key: figures.pop(key) for key in ("copy", "per_channel") if key in figures}
    return replace(fabric, domains=(replace(fabric.domain, **figures),), **device)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("name, share", [("ring", 1), ("direct", None)])
def test_a_first_window_fills_before_anything_is_handed_on(tmp_path, name, share, n):
    window, rate = 1 << 20, PROTOCOLS["Simple"]
    none, some = (one_switch(tmp_path, n, window=w) for w in (0.0, float(window)))
    schedule = algorithm("allgather", name).build(recipe_of(n, one_ring=True))
    for m in (0, 1, 1e3, 1 << 20, 1e9):
        moved = m * (share or n - 1)  # what a rank gets in one repetition
        without, with_window = (float(profile(schedule, f).seconds(m, rate)) for f in (none, some))
        assert with_window - without == pytest.approx(min(moved, window) / RATE, abs=1e-15)


def test_a_window_between_nodes_is_the_nics(tmp_path):
    text = switched() + raw_links(up=100, port=10) + "nics: {link: port, count: 2}\nnodes: 2\n"
    fabric = lower(load(machine(tmp_path, text, 2)))
    figures = {"window": 0.0, "port_window": 0.0}
    found = []
    for figure in (figures, {**figures, "port_window": 1e6}):
        made = replace(fabric, domains=(replace(fabric.domain, **figure),))
        near, far = [0, 2], [1, 3]
        inside = exchange(made, near, far, [1e8] * 2).seconds
        across = exchange(made, near, far[::-1], [1e8] * 2).seconds
        found.append((inside, across))
    assert found[1][0] == found[0][0]
    assert found[1][1] - found[0][1] == pytest.approx(1e6 / 10e9)


def test_what_a_protocol_leaves_of_a_link_is_how_fast_it_goes(tmp_path):
    schedule = algorithm("allgather", "ring").build(recipe_of(4, one_ring=True))
    wire = np.array([[4.0], [1.5], [1.25]])
    plain = one_switch(tmp_path, 4)
    slowed = one_switch(tmp_path, 4, wire=np.tile(wire, (1, plain.domain.nlinks)))
    for name, each in zip(("LL", "LL128", "Simple"), wire[:, 0]):
        gone = [float(profile(schedule, f).seconds(1e9, PROTOCOLS[name])) for f in (plain, slowed)]
        assert gone[1] - gone[0] == pytest.approx((each - PROTOCOLS[name].wire) * 3e9 / RATE)


@pytest.mark.parametrize("name, n, slower", [("direct", 3, 1), ("direct", 4, 2), ("direct", 8, 2),
                                             ("ring", 8, 1), ("circulant", 8, 1)])  # fmt: skip
def test_a_rank_that_serves_three_peers_or_more_reaches_a_part_of_the_link(
    tmp_path, name, n, slower
):
    plain = one_switch(tmp_path, n)
    half = one_switch(tmp_path, n, spread=np.full(plain.domain.nlinks, 0.5))
    schedule = algorithm("allgather", name).build(recipe_of(n, one_ring=True))
    one, other = (profile(schedule, f) for f in (plain, half))
    for before, after in ((one.link, other.link), (one.messages, other.messages)):
        assert after == pytest.approx(slower * before)
    assert (one.hops == other.hops).all()


def test_the_last_block_is_copied_out_by_the_kernel_that_sent_before(tmp_path):
    slow, fast = (one_switch(tmp_path, 4, copy=rate) for rate in (1e9, 1e12))
    for name, last in (("ring", 1 / 4), ("direct-twoshot", 0), ("direct-oneshot", 0)):
        schedule = algorithm("allreduce", name).build(recipe_of(4, one_ring=True))
        gone = [float(profile(schedule, f).seconds(1e8, PROTOCOLS["Simple"])) for f in (slow, fast)]
        assert gone[0] - gone[1] == pytest.approx(last * 1e8 * (1e-9 - 1e-12))


def test_a_few_channels_go_no_faster_than_their_lanes(tmp_path):
    fabric = one_switch(tmp_path, 4, per_channel=(1e6, 1e6, 1e9))
    found = profile(algorithm("allgather", "ring").build(recipe_of(4, one_ring=True)), fabric)
    gone = [float(found.seconds(1e9, PROTOCOLS["Simple"], c)) for c in (1, 2, 5, 10, 64, 0)]
    free = gone[-1]
    for channels, seconds in zip((1, 2, 5), gone):
        assert seconds - free == pytest.approx(3e9 / (channels * 1e9) - 3e9 / RATE)
    assert gone[3] == gone[4] == free == float(found.seconds(1e9, PROTOCOLS["Simple"]))
    line = found.timeline(1e9, PROTOCOLS["Simple"], 2)
    assert line.seconds == pytest.approx(gone[1])


def test_a_machine_whose_switches_only_forward_cannot_time_what_a_switch_does():
    made = planner("mesh")
    schedule = algorithm("allreduce", "nvls").build(made.recipe())
    with pytest.raises(FabricError, match="mi300x-8: no switch here adds up and hands on"):
        profile(schedule, made.fabric)


def test_with_links_that_are_no_limit_memory_is(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    found = profile(algorithm("allgather", "direct").build(recipe_of(4)), fabric)
    line = found.timeline(1e9, PROTOCOLS["Simple"])
    # Each rank reads its block for 3 others and writes 3 others'; its own it copies at the end.
    assert line.tail == pytest.approx(1e9 / fabric.copy)
    assert line.seconds - line.launch == pytest.approx(1e-6 + 6e9 / fabric.memory + line.tail)
    assert [part.bound for part in line.parts] == ["memory"]


def test_with_links_and_memory_that_are_no_limit_adding_is(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    fast = Slower(fabric, reduction=1e9)
    found = profile(algorithm("allreduce", "direct-oneshot").build(recipe_of(4)), fast)
    line = found.timeline(1e9, PROTOCOLS["Simple"])
    # Each rank adds what 3 others send.
    assert line.seconds - line.launch == pytest.approx(1e-6 + 3e9 / 1e9, rel=1e-6)
    assert [part.bound for part in line.parts] == ["memory"]


def test_adding_is_as_fast_as_two_reads_and_a_write_where_a_device_does_not_say(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    schedule = algorithm("reduce_scatter", "ring").build(recipe_of(4, one_ring=True))
    unsaid, said = (profile(schedule, Slower(fabric, reduction=r)).seconds(1e9, PROTOCOLS["Simple"])
                    for r in (0.0, fabric.memory / 3))  # fmt: skip
    assert unsaid == said and fabric.reduction == fabric.memory / 3


def test_what_passes_a_staging_buffer_is_written_and_read_once_more(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    schedule = algorithm("allgather", "direct").build(recipe_of(4))
    direct, bounced = (profile(schedule, Slower(fabric, direct=d)).seconds(1e9, PROTOCOLS["Simple"])
                       for d in (True, False))  # fmt: skip
    assert bounced - direct == pytest.approx(2 * 3e9 / fabric.memory)


def test_an_exchange_that_passes_a_staging_buffer_is_written_and_read_once_more(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    src, dst, size = [0, 1, 2, 3], [1, 1, 3, 3], [1e9, 5e8, 1e9, 0]
    direct, bounced = (exchange(Slower(fabric, direct=d), src, dst, size).seconds
                       for d in (True, False))  # fmt: skip
    # Rank 1 is the busiest: 1 GB in, and half a GB copied to itself, which needs no staging.
    assert direct - fabric.launch == pytest.approx(1e-6 + 2e9 / fabric.memory, rel=1e-3)
    assert bounced - direct == pytest.approx(2e9 / fabric.memory, rel=1e-3)


def test_flows_that_look_at_each_other_are_handed_over_all_at_once(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=10), 4)))
    asked = Slower(fabric, together=True)
    schedule = algorithm("allreduce", "circulant").build(recipe_of(4))
    assert profile(schedule, asked).seconds(1e6, PROTOCOLS["LL"]) == pytest.approx(
        float(profile(schedule, fabric).seconds(1e6, PROTOCOLS["LL"]))
    )
    found = exchanges(asked, [0, 1, 2], [1, 2, 3], [1e6] * 3, [0, 0, 1])
    alone = [exchange(fabric, [0, 1], [1, 2], [1e6] * 2), exchange(fabric, [2], [3], [1e6])]
    assert [e.seconds for e in found] == [e.seconds for e in alone]


def test_many_sizes_at_once_give_what_each_gives_alone():
    made = planner("mesh")
    found = profile(algorithm("allreduce", "tree").build(made.recipe()), made.fabric)
    sizes = np.array([0, 1, 7, 1e5, 1e9])
    alone = [float(found.seconds(size, PROTOCOLS["LL"])) for size in sizes]
    assert found.seconds(sizes, PROTOCOLS["LL"]).tolist() == alone
