"""The estimate equals a loop over every row of every step, and the closed forms of textbooks."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from helpers import SIZES, algorithm, machine, raw_links, recipe_of, switched

from rccl_py import Planner, load, lower
from rccl_py.algorithms import ALGORITHMS
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import REDUCE, Phase, Schedule
from rccl_py.timing import Loads, exchange, exchanges, profile

MACHINES = {
    "mesh": lambda: lower(load("mi300x-8")),
    "unequal links": lambda: lower(load("mi250x-4")),
    "switch": lambda: lower(load("h100-8"), 5),
    "rails": lambda: lower(load("h100-8", nodes=2), [*range(4), *range(8, 12)]),
    "two nodes of three": lambda: lower(load("mi250x-4", nodes=2), [0, 1, 2, 8, 9, 10]),
    "leaves": lambda: lower(load("mi300x-8", nodes=3, network="leaf-spine", leaf_nodes=2,
                                 oversubscription=4), [*range(4), *range(8, 12), *range(16, 20)]),
    "one rank": lambda: lower(load("mi300x-8"), 1),
}  # fmt: skip


@cache
def planner(name: str) -> Planner:
    return Planner(MACHINES[name]())


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


class Slow:
    """The same sums, one row after another: links, memory, latency and messages of a step."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.n = fabric, fabric.nranks
        self.known: dict[tuple[int, int], tuple] = {}

    def pair(self, src: int, dst: int) -> tuple:
        if (src, dst) not in self.known:
            ends = np.array([src], np.int32), np.array([dst], np.int32)
            routes = self.fabric.routes(*ends)
            self.known[src, dst] = (
                list(zip(routes.link.tolist(), routes.share.tolist())),
                self.fabric.latency(*ends)[:, 0].tolist(), float(self.fabric.message(*ends)[0]),
            )  # fmt: skip
        return self.known[src, dst]

    def add(self, phase: Phase, s: int, load: dict) -> None:
        if len(phase.made_of) > 1:
            for part in phase.made_of:
                self.add(part, 0, load)  # parts repeat their rows, whichever repetition it is
            return
        before, into = None, Counter()
        joined = getattr(self.fabric, "coherent", None)
        for move in phase.moves:
            step, reduced = move.step(s), Counter()
            for src, dst, count, op in zip(*(getattr(step, c).tolist() for c in
                                             ("src", "dst", "count", "op"))):  # fmt: skip
                load["memory"][src] += count
                if op == REDUCE:  # moves posted together reduce into the same slots
                    reduced[dst] += 2 * count
                    load["added"][dst] += count
                else:
                    load["memory"][dst] += count
                ends = np.array([src], np.int32), np.array([dst], np.int32)
                if joined and src != dst and not joined(*ends)[0]:
                    load["memory"][dst] += 2 * count  # into the staging buffer and out of it
                if src != dst:
                    links, latency, message = self.pair(src, dst)
                    for link, share in links:
                        load["link"][link] += share * count
                    load["latency"] = [max(a, b) for a, b in zip(load["latency"], latency)]
                    # Neighbouring rows between the same two ranks travel as one message.
                    load["sending"][src] += message if (src, dst) != before else 0.0
                before = src, dst
            into |= reduced  # the largest of both, rank by rank
        load["memory"].update(into)

    def chain(self, phase: Phase, kind: int) -> float:
        """The slowest run of hops, followed one by one from every row of a ring."""
        rows = phase.moves[0].rows
        ends = list(zip(rows.channel.tolist(), rows.src.tolist(), rows.dst.tolist()))
        onward = {(c, src): dst for c, src, dst in ends}
        hop = [self.pair(src, dst)[1][kind] for _, src, dst in ends]
        if len(onward) < len(ends) or any((c, dst) not in onward for c, _, dst in ends):
            return max(hop) * phase.steps
        sums = []
        for c, src, _ in ends:
            total = 0.0
            for _ in range(phase.steps):
                total += self.pair(src, onward[c, src])[1][kind]
                src = onward[c, src]
            sums.append(total)
        return max(sums)

    def seconds(self, schedule: Schedule, block: float, protocol: str) -> float:
        kind, slot = PROTOCOLS[protocol], block / schedule.layout.chunks
        total, carried, later = self.fabric.launch, Counter(), Counter()
        adding = getattr(self.fabric, "reduction", 0) or self.fabric.memory / 3
        for phase in schedule.phases():
            ring = phase.steps > 1 and len(phase.moves) == 1
            if ring:
                total += self.chain(phase, kind.index)
            for s in range(phase.steps):
                load = {"memory": Counter(), "link": Counter(), "latency": [0.0] * 3,
                        "sending": Counter(), "added": Counter()}  # fmt: skip
                self.add(phase, s, load)
                if not load["sending"] and not load["link"]:
                    starts = [m.step(s).src_slot for m in phase.moves]
                    if any((slot >= schedule.layout.output()).any() for slot in starts):
                        carried.update(load["memory"])
                        later.update(load["added"])
                    continue
                # What was moved locally before streams behind, spread over the steps of a phase.
                each = [load["memory"][r] + carried[r] / phase.steps for r in range(self.n)]
                memory = max(each) * slot / self.fabric.memory
                added = [load["added"][r] + later[r] / phase.steps for r in range(self.n)]
                memory = max(memory, max(added) * slot / adding)
                wire = max(load["link"][k] / self.fabric.bandwidth[k] for k in load["link"])
                total += 0.0 if ring else load["latency"][kind.index]
                total += max(load["sending"].values())
                total += max(wire * slot * kind.wire, memory)
            if any((m.rows.src != m.rows.dst).any() for m in phase.moves):
                carried.clear()
                later.clear()
        left = max(carried.values(), default=0) / self.fabric.memory
        return total + max(left, max(later.values(), default=0) / adding) * slot


SEVERAL_NODES = ("rails", "two nodes of three", "leaves")
CASES = [(name, row) for name in MACHINES for row in ALGORITHMS
         if not row.two_level or name in SEVERAL_NODES]  # fmt: skip


@pytest.mark.parametrize("name, row", CASES, ids=[f"{m}-{a.collective}/{a.name}" for m, a in CASES])
def test_the_estimate_equals_a_loop_over_every_row_of_every_step(name, row):
    made = planner(name)
    slow, n = Slow(made.fabric), made.fabric.nranks
    for pieces in (1, 3) if row.pieces > 1 else (1,):
        schedule = row.build(made.recipe(n - 1, pieces))
        fast = profile(schedule, made.fabric)
        for block, protocol in ((1, "LL"), (n - 1, "LL128"), (1e6, "Simple"), (1e9, "LL")):
            wanted = slow.seconds(schedule, block, protocol)
            assert fast.seconds(block, PROTOCOLS[protocol]) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", MACHINES)
def test_loads_known_from_other_schedules_change_nothing(name):
    made, shared = planner(name), Loads(planner(name).fabric)
    for row in [a for a in ALGORITHMS if not a.two_level] * 2:
        schedule = row.build(made.recipe())
        alone, again = profile(schedule, made.fabric), profile(schedule, made.fabric, shared)
        for field in ("steps", "latency", "link", "memory", "busiest", "total_link"):
            assert np.array_equal(getattr(alone, field), getattr(again, field)), (row.name, field)


def test_rows_that_repeat_are_routed_once():
    made = planner("mesh")
    found = profile(algorithm("allreduce", "ring").build(made.recipe()), made.fabric)
    assert found.rows == 8 + 2 * 7 * 7 * 8 and found.loaded <= 8 + 7 * 8


@pytest.mark.parametrize("name", MACHINES)
def test_a_timeline_adds_up_to_the_time_and_names_the_link_most_loaded(name):
    made = planner(name)
    for row in (a for a in ALGORITHMS if not a.two_level):
        schedule = row.build(made.recipe())
        fast, total = profile(schedule, made.fabric), np.zeros(made.fabric.nlinks)
        for step in schedule:
            routes = made.fabric.routes(step.src, step.dst)
            np.add.at(total, routes.link, routes.share * step.count[routes.row])
        line = fast.timeline(1e6, PROTOCOLS["Simple"])
        assert line.seconds == pytest.approx(float(fast.seconds(1e6, PROTOCOLS["Simple"])))
        starts = [
            line.launch + sum(p.seconds for p in line.parts[:i]) for i in range(len(line.parts))
        ]
        assert [p.start for p in line.parts] == pytest.approx(starts)
        assert fast.total_link == pytest.approx(total)
        if total.any():
            busy = total / made.fabric.bandwidth * 1e6 / schedule.layout.chunks
            assert line.busy == pytest.approx(busy.max()) == pytest.approx(busy[line.busiest])
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

LAST_COPIED = ("reduce_scatter", "reduce", "scatter")
"""Those whose result waits in scratch, and is read and written once more at the end."""


@pytest.mark.parametrize("n", [k for k in SIZES if k > 1])
@pytest.mark.parametrize("collective, name", FORMS)
def test_on_one_switch_the_estimate_is_the_textbooks_formula(tmp_path, collective, name, n):
    fabric = lower(load(machine(tmp_path, ONE_SWITCH, n)))
    row = algorithm(collective, name)
    for pieces in (1, 4) if row.pieces > 1 else (1,):
        found = profile(row.build(recipe_of(n, 0, None, pieces, one_ring=True)), fabric)
        for m in (0, 1, 1e6, 1e9):
            fixed, sent = FORMS[collective, name](n, m, pieces)
            copied = 2 * m if collective in LAST_COPIED else 0
            wanted = fabric.launch + fixed + sent / RATE + copied / fabric.memory
            assert found.seconds(m, PROTOCOLS["Simple"]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("protocol, wire", [("LL", 2.0), ("LL128", 128 / 120), ("Simple", 1.0)])
def test_a_protocol_multiplies_the_bytes_on_the_wire(tmp_path, protocol, wire):
    fabric = lower(load(machine(tmp_path, ONE_SWITCH, 4)))
    found = profile(algorithm("allgather", "ring").build(recipe_of(4, one_ring=True)), fabric)
    empty, full = (found.seconds(m, PROTOCOLS[protocol]) for m in (0, 1e9))
    assert full - empty == pytest.approx(wire * 3e9 / RATE)


def test_with_links_that_are_no_limit_memory_is(tmp_path):
    fabric = lower(load(machine(tmp_path, switched() + raw_links(up=1e6), 4)))
    found = profile(algorithm("allgather", "direct").build(recipe_of(4)), fabric)
    line = found.timeline(1e9, PROTOCOLS["Simple"])
    # Each rank reads its block for 3 others and writes 3 others'; its own input is not charged.
    assert line.seconds - line.launch == pytest.approx(1e-6 + 6e9 / fabric.memory)
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
