"""The estimate equals a loop over every row of every step, and the closed forms of textbooks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers import SIZES, algorithm, machine, raw_links, recipe_of, switched

from rccl_py import Planner, load, lower
from rccl_py.algorithms import ALGORITHMS, Algorithm
from rccl_py.errors import FabricError
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import REDUCE, Phase, Schedule
from rccl_py.timing import Loads, exchange, exchanges, profile



def figured(fabric: Fabric) -> Fabric:
    """Return `fabric` with windows, and figures of the protocols that differ from link to link."""
    domains = []
    for domain in fabric.domains:
        own, ports = np.arange(domain.nlinks), np.arange(domain.nnics)
        base = np.array([[2.5], [1.25], [1.0]])
        domains.append(replace(
            domain, window=3e5, port_window=8e5,
            wire=base * (1 + (own * np.array([[1], [3], [5]]) % 7) / 10),
            port_wire=base * (1 + (ports * np.array([[5], [1], [3]]) % 5) / 10)))  # fmt: skip
    return replace(fabric, domains=tuple(domains), copy=3e11, lane=2e10)


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
    return Planner(MACHINES[name]())


def fits(row: Algorithm, name: str) -> bool:
    """Return whether the machine has the nodes and the switches that an algorithm needs."""
    fabric = planner(name).fabric
    several = bool(fabric.node.max())
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


class Slow:
    """The same sums, one row after another: links, memory, latency and messages of a step."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.n = fabric, fabric.nranks
        self.known: dict[tuple[int, int], tuple] = {}
        self.node = fabric.node.tolist()
        self.leaves: set[int] = set()  # links from an accelerator to a switch
        for node, kind in enumerate(fabric.kind.tolist()):
            domain, first = fabric.domains[kind], int(fabric.first_link[node])
            self.leaves |= {first + k for k in range(domain.nlinks) if domain.head[k] < 0 <=
                            domain.tail[k]}  # fmt: skip

    def load(self, phase: Phase, s: int) -> dict:
        """Return what repetition s of a phase asks for."""
        load = {"memory": Counter(), "link": Counter(), "latency": [0.0] * 3, "far": False,
                "sending": Counter(), "added": Counter(), "out": Counter(),
                "into": Counter()}  # fmt: skip
        self.add(phase, s, load)
        return load

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
        sums, copies = self.fans(phase, s)
        for move in phase.moves:
            step, reduced, switched = move.step(s), Counter(), move.rows.switched
            for src, dst, count, op in zip(*(getattr(step, c).tolist() for c in
                                             ("src", "dst", "count", "op"))):  # fmt: skip
                load["memory"][src] += count
                fan = (-sums[dst] if op == REDUCE else copies[src]) if switched else 0
                if op == REDUCE and switched:
                    reduced[dst] += count  # the sum is written, and was added elsewhere
                elif op == REDUCE:  # moves posted together reduce into the same slots
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
                        load["link"][link] += share * count * self.crossing(fan, link)
                    load["latency"] = [max(a, b) for a, b in zip(load["latency"], latency)]
                    # Neighbouring rows between the same two ranks travel as one message, and
                    # what a switch does for all of a fan is asked for once.
                    message /= max(abs(fan), 1)
                    load["sending"][src] += message if (src, dst, fan) != before else 0.0
                    load["out"][src] += count
                    load["into"][dst] += count
                    load["far"] |= self.node[src] != self.node[dst]
                before = src, dst, fan
            into |= reduced  # the largest of both, rank by rank
        load["memory"].update(into)

    def fans(self, phase: Phase, s: int) -> tuple[Counter, Counter]:
        """Return how many send to each rank what a switch adds up, and get what it hands on."""
        sums, copies = Counter(), Counter()
        for step in (move.step(s) for move in phase.moves if move.rows.switched):
            for src, dst, op in zip(step.src.tolist(), step.dst.tolist(), step.op.tolist()):
                if op == REDUCE:
                    sums[dst] += 1
                else:
                    copies[src] += 1
        return sums, copies

    def crossing(self, fan: int, link: int) -> float:
        """Return what of a row a link carries: a fan's own part too, or one for all of it."""
        if fan == 0:
            return 1.0
        whole = (abs(fan) + 1) / abs(fan)  # what all hand in, or all get
        once = 1 / abs(fan)  # the sum, or what is sent a single time
        up = link in self.leaves
        return (whole if up == (fan < 0) else once) / self.fabric.multicast

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

    def copied(self, phase: Phase) -> int:
        """Return the slots a rank copies out at the end: it gets them from one sender a channel."""
        senders: dict[tuple[int, int], set[int]] = {}
        got = Counter()
        for move in phase.moves:
            step = move.step(phase.steps - 1)
            for src, dst, channel, count in zip(*(getattr(step, c).tolist() for c in
                                                  ("src", "dst", "channel", "count"))):  # fmt: skip
                if move.rows.switched:
                    return 0
                if src != dst:
                    senders.setdefault((dst, channel), set()).add(src)
                    got[dst] += count
        return max(got.values()) if all(len(s) == 1 for s in senders.values()) else 0

    @staticmethod
    def kept(phase: Phase, schedule: Schedule) -> int:
        """Return the slots of the input a rank puts in its output, where that is not all of it."""
        most = 0
        for step in (move.step(0) for move in phase.moves):
            put = Counter()
            for src, count in zip(step.src.tolist(), step.count.tolist()):
                put[src] += count
            most = max(most, *put.values())
        return most if most < schedule.layout.outputs * schedule.layout.chunks else 0

    def seconds(self, schedule: Schedule, block: float, protocol: str, channels: int = 0) -> float:
        kind, slot = PROTOCOLS[protocol], block / schedule.layout.chunks
        total, carried, later = self.fabric.launch, Counter(), Counter()
        filling, last, out = 0.0, 0, 0
        adding = getattr(self.fabric, "reduction", 0) or self.fabric.memory / 3
        for phase in schedule.phases():
            ring = phase.steps > 1 and len(phase.moves) == 1
            if ring:
                total += self.chain(phase, kind.index)
            for s in range(phase.steps):
                load = self.load(phase, s)
                if not load["sending"] and not load["link"]:
                    starts = [m.step(s).src_slot for m in phase.moves]
                    if any((slot >= schedule.layout.output()).any() for slot in starts):
                        carried.update(load["memory"])
                        later.update(load["added"])
                    else:
                        last = max(last, self.kept(phase, schedule))
                    continue
                # What was moved locally before streams behind, spread over the steps of a phase.
                each = [load["memory"][r] + carried[r] / phase.steps for r in range(self.n)]
                memory = max(each) * slot / self.fabric.memory
                added = [load["added"][r] + later[r] / phase.steps for r in range(self.n)]
                memory = max(memory, max(added) * slot / adding)
                pace = self.fabric.pace[kind.index]
                wire = max(load["link"][k] * pace[k] for k in load["link"]) * slot
                moved = max([*load["out"].values(), *load["into"].values()]) * slot
                wire = max(wire, memory)
                if channels:
                    wire = max(wire, moved / (channels * self.fabric.lane))
                total += 0.0 if ring else load["latency"][kind.index]
                total += max(load["sending"].values()) + wire
                window = max(getattr(d, "port_window" if load["far"] else "window")
                             for d in self.fabric.domains)  # fmt: skip
                if moved:
                    filling = max(filling, wire * min(window, moved) / moved)
            if any((m.rows.src != m.rows.dst).any() for m in phase.moves):
                carried.clear()
                later.clear()
                out = self.copied(phase)
        left = max(carried.values(), default=0) / self.fabric.memory
        total += max(left, max(later.values(), default=0) / adding) * slot
        return total + filling + max(last, out) * slot / self.fabric.copy


CASES = [(name, row) for name in MACHINES for row in ALGORITHMS if fits(row, name)]


def test_every_algorithm_is_compared_on_some_machine_with_windows_and_on_some_without():
    for figures in (False, True):
        compared = {row for name, row in CASES if bool(planner(name).fabric.lane) is figures}
        assert compared == set(ALGORITHMS)


@pytest.mark.parametrize("name, row", CASES, ids=[f"{m}-{a.collective}/{a.name}" for m, a in CASES])
def test_the_estimate_equals_a_loop_over_every_row_of_every_step(name, row):
    made = planner(name)
    slow, n = Slow(made.fabric), made.fabric.nranks
    for pieces in (1, 3) if row.pieces > 1 else (1,):
        schedule = row.build(made.recipe(n - 1, pieces))
        fast = profile(schedule, made.fabric)
        for block, protocol in ((1, "LL"), (n - 1, "LL128"), (1e6, "Simple"), (1e9, "LL")):
            for channels in (0, 2) if made.fabric.lane else (0,):
                wanted = slow.seconds(schedule, block, protocol, channels)
                found = fast.seconds(block, PROTOCOLS[protocol], channels)
                assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", MACHINES)
def test_loads_known_from_other_schedules_change_nothing(name):
    made, shared = planner(name), Loads(planner(name).fabric)
    for row in [a for a in ALGORITHMS if not a.two_level and fits(a, name)] * 2:
        schedule = row.build(made.recipe())
        alone, again = profile(schedule, made.fabric), profile(schedule, made.fabric, shared)
        for field in ("steps", "latency", "link", "memory", "busiest", "through", "window", "last",
                      "total_link"):  # fmt: skip
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
        schedule = row.build(made.recipe())
        fast, total = profile(schedule, made.fabric), np.zeros(made.fabric.nlinks)
        for phase in schedule.phases():
            for s in range(phase.steps):
                for link, slots in slow.load(phase, s)["link"].items():
                    total[link] += slots
        line = fast.timeline(1e6, PROTOCOLS["LL"])
        assert line.seconds == pytest.approx(float(fast.seconds(1e6, PROTOCOLS["LL"])))
        assert line.seconds == pytest.approx(
            line.launch + sum(p.seconds for p in line.parts) + line.tail)
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

LAST_COPIED = ("reduce_scatter", "reduce", "scatter")
"""Those whose result waits in scratch, and is read and written once more at the end."""


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
            copied = 2 * m if collective in LAST_COPIED else 0
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
    """Return n ranks on one switch; figures: of its domain, beside copy and lane of the device."""
    fabric = lower(load(machine(folder, ONE_SWITCH, n)))
    device = {key: figures.pop(key) for key in ("copy", "lane") if key in figures}
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


def test_the_last_block_is_copied_out_by_the_kernel_that_sent_before(tmp_path):
    slow, fast = (one_switch(tmp_path, 4, copy=rate) for rate in (1e9, 1e12))
    for name, last in (("ring", 1 / 4), ("direct-twoshot", 0), ("direct-oneshot", 0), ("tree", None)):
        schedule = algorithm("allreduce", name).build(recipe_of(4, one_ring=True))
        gone = [float(profile(schedule, f).seconds(1e8, PROTOCOLS["Simple"])) for f in (slow, fast)]
        if last is None:
            assert gone[0] > gone[1]
        else:
            assert gone[0] - gone[1] == pytest.approx(last * 1e8 * (1e-9 - 1e-12))


def test_a_few_channels_go_no_faster_than_their_lanes(tmp_path):
    fabric = one_switch(tmp_path, 4, lane=1e9)
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
