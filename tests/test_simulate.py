"""The simulation equals a twin that knows nothing but the rules, and closed forms where there are.

The twin polls every rank after every event and shares everything anew each time; it has no lanes,
no queues, no crowded resources and no components.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from types import SimpleNamespace as Wire

import numpy as np
import pytest
from helpers import algorithm, joined, machine, recipe_of, switched

from rccl_py import Planner, load, lower
from rccl_py.errors import FabricError, InvalidArgument, InvalidUsage
from rccl_py.fabric import link_number
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import COPY, REDUCE, Layout, Phase, Schedule, at, rows
from rccl_py.timing import profile
from rccl_py.timing.simulate import Job, simulate, simulate_jobs
from rccl_py.timing.stages import stages, uses

SIMPLE = PROTOCOLS["Simple"]


# ---- the twin -------------------------------------------------------------------------------


def fair(wires, full):
    """Return the rate of each wire in B/s: all rise alike until something they use is full."""
    rate, rising = [0.0] * len(wires), set(range(len(wires)))
    left = {r: full[r] for wire in wires for r in wire.use}
    while rising:
        want = defaultdict(float)
        for i in rising:
            for r, seconds in wires[i].use.items():
                want[r] += seconds
        more = max(0.0, min(left[r] / want[r] for r in want))
        tight = {r for r in want if left[r] / want[r] <= more * (1 + 1e-12) or left[r] <= 1e-14}
        for i in rising:
            rate[i] += more
        for r in want:
            left[r] -= more * want[r]
        rising -= {i for i in rising if tight & wires[i].use.keys()}
    return rate


def pressed(wires, rate, full):
    """Return the rates where links pause: what is held past one makes all on it as slow.

    A wire is held by what is full and on which nobody is faster.
    """
    users, held = defaultdict(list), []
    for i, wire in enumerate(wires):
        for r in wire.use:
            users[r].append(i)
    load = {r: sum(rate[i] * wires[i].use[r] for i in on) for r, on in users.items()}
    for i, wire in enumerate(wires):
        held.append(min((wire.depth[r] for r in wire.use if load[r] >= full[r] * (1 - 1e-9)
                         and rate[i] * (1 + 1e-12) >= max(rate[k] for k in users[r])),
                        default=0))  # fmt: skip
    for depth in range(6, 0, -1):
        most = {}
        for i, wire in enumerate(wires):
            for r in wire.pauses:
                if wire.depth[r] == depth and held[i] > depth:
                    most[r] = min(most.get(r, np.inf), rate[i])
        for i, wire in enumerate(wires):
            bound = min((most[r] for r in wire.pauses if r in most), default=np.inf)
            if rate[i] > bound * (1 + 1e-12):
                rate[i], held[i] = bound, depth
    return rate


def tail_of(job, own):
    """Return what the estimate adds once a call, s."""
    return profile(job.schedule, own).timeline(job.block, job.protocol, job.channels).tail


class Twin:
    """Ranks and channels as generators that say what they wait for."""

    def __init__(self, jobs, fabric, changes=()):
        self.now, self.serial, self.timers, self.wires = 0.0, itertools.count(), [], []
        self.full, self.processes, self.messages = defaultdict(lambda: 1.0), [], []
        self.fabric, self.left, self.ends, self.most = fabric, {}, {}, 0.0
        self.over, self.tails = set(), {}
        for time, resource, part in changes:
            self.after(time, lambda r=resource, p=part: self.full.update({r: p}))
        for j, job in enumerate(jobs):
            seat = list(range(fabric.nranks)) if job.ranks is None else list(job.ranks)
            own = fabric if job.ranks is None else replace(fabric, place=fabric.place[seat])
            self.left[j], self.tails[j] = len(seat), tail_of(job, own)
            made = [self.stage(j, k, stage, own, job, seat)
                    for k, stage in enumerate(stages(job.schedule, own, job.channels))]  # fmt: skip
            for r in range(len(seat)):
                self.processes.append([self.rank(j, r, job, made), lambda: True])
        self.run()

    def stage(self, j, k, stage, own, job, seat):
        slot = job.block / job.schedule.layout.chunks
        used = uses(stage, own, job.protocol, job.channels)
        made = []
        for i in range(len(stage.src)):
            nbytes, use = float(stage.slots[i] * slot), defaultdict(float)
            depth, pauses = {}, set()
            for e in range(used.ptr[i], used.ptr[i + 1]):
                r = int(used.resource[e])
                if r >= own.nlinks:
                    block, rank = divmod(r - own.nlinks, own.nranks)
                    r = own.nlinks + block * self.fabric.nranks + seat[rank]
                if nbytes:
                    use[r] += float(used.seconds[e]) * slot / nbytes
                if used.depth is not None:
                    depth[r] = int(used.depth[e])
                    pauses |= {r} if used.pauses[e] else set()
            made.append(Wire(j=j, k=k, src=int(stage.src[i]), dst=int(stage.dst[i]), use=use,
                             channel=int(stage.channel[i]), nbytes=nbytes, pushed=0, arrived=0,
                             depth=depth, pauses=pauses,
                             hop=float(stage.latency[job.protocol.index, i])))  # fmt: skip
        return stage.steps, made, stage.lead, stage.memory * slot

    def after(self, seconds, act):
        heappush(self.timers, (self.now + seconds, next(self.serial), act))

    def sleep(self, seconds):
        over = []
        self.after(seconds, lambda: over.append(1))
        return lambda: bool(over)

    def rank(self, j, r, job, made):
        yield lambda: self.over.issuperset(job.after)
        late = 0.0 if job.arrival is None else job.arrival[r]
        yield self.sleep(max(job.start - self.now, 0.0) + self.fabric.launch + late)
        for steps, wires, lead, pause in made:
            channels = {w.channel for w in wires if r in (w.src, w.dst)}
            done = []
            for c in channels:
                own = [w for w in wires if w.channel == c]
                lane = self.lane(steps, [w for w in own if w.src == r],
                                 [w for w in own if w.dst == r], float(lead[r]), done)  # fmt: skip
                self.processes.append([lane, lambda: True])
            if channels:
                yield lambda d=done, c=channels: len(d) == len(c)
            elif not wires:
                yield self.sleep(float(pause[r]))
        self.left[j] -= 1
        self.ends[j, r] = self.now
        if not self.left[j]:
            self.after(self.tails[j], lambda: self.over.add(j))

    def lane(self, steps, sent, heard, lead, done):
        for step in range(steps):
            if sent:
                if lead:
                    yield self.sleep(lead)
                for w in sent:
                    self.start(w, step)
            yield lambda s=step: (all(w.pushed > s for w in sent)
                                  and all(w.arrived > s for w in heard))  # fmt: skip
        done.append(1)

    def start(self, wire, step):
        wire.start, wire.step, wire.left = self.now, step, wire.nbytes
        if wire.nbytes and wire.use:
            self.wires.append(wire)
        else:
            self.after(0.0, lambda: self.push(wire))

    def push(self, wire):
        wire.pushed += 1
        row = (wire.j, wire.k, wire.step, wire.channel, wire.src, wire.dst, wire.start, self.now)

        def arrive():
            wire.arrived += 1
            self.messages.append((*row, self.now, wire.nbytes))

        self.after(wire.hop, arrive)

    def settle(self):
        moving = True
        while moving:
            moving = False
            for process in list(self.processes):
                while process[1]():
                    moving, process[1] = True, next(process[0], None)
                    if process[1] is None:
                        self.processes.remove(process)
                        break

    def run(self):
        while True:
            self.settle()
            rate = fair(self.wires, self.full)
            if self.fabric.pausing is not None:
                rate = pressed(self.wires, rate, self.full)
            load = defaultdict(float)
            for wire, x in zip(self.wires, rate):
                for r, seconds in wire.use.items():
                    load[r] += x * seconds
            self.most = max([self.most, *(load[r] - self.full[r] for r in load)])
            ends = [self.now + w.left / x if x else np.inf for w, x in zip(self.wires, rate)]
            to = min([*ends, self.timers[0][0] if self.timers else np.inf])
            if to == np.inf:
                return
            for wire, x in zip(self.wires, rate):
                wire.left -= x * (to - self.now)
            self.now, over = to, [w for w, e in zip(self.wires, ends) if e <= to * (1 + 1e-13)]
            self.wires = [w for w in self.wires if w not in over]
            for wire in over:
                self.push(wire)
            while self.timers and self.timers[0][0] <= to * (1 + 1e-13):
                heappop(self.timers)[2]()


# ---- random cases ---------------------------------------------------------------------------


@cache
def fabrics(folder):
    """Return fabrics of several shapes: switch, planes, ring, line, mesh, nodes; slow memory."""

    def link(rate, us, note):
        return (f"links: {{up: {{bandwidth: {rate}GB/s, latency: {us}us, source: test, "
                f"efficiency: 1, medium: nvlink, message: {note}us}}}}\n")  # fmt: skip

    shapes = [
        (switched() + link(10, 3, 0.5), 5),
        (switched() + link(50, 0.5, 0), 6),
        (switched(2, 2) + link(7, 1, 0.25), 4),
        (joined("0-1:1 1-2:1 2-3:1 3-0:1") + link(10, 1, 0), 4),
        (joined("0-1:1 1-2:2 2-3:1 3-4:1") + link(20, 2, 0.125), 5),
        (joined("0-1:1 0-2:3 1-2:1") + link(5, 1, 0.5), 3),
    ]
    found = [lower(load(machine(folder, text, n, f"box{i}"))) for i, (text, n) in enumerate(shapes)]
    found.append(lower(load("mi250x-4", nodes=2), [0, 1, 2, 8, 9, 10]))
    found.append(lower(load("h100-8", nodes=2), [0, 1, 8, 9, 10]))
    found.append(lower(load("mi300x-8", nodes=5), [0, 8, 16, 24, 25, 32]))
    narrow = {"leaf_nodes": 1, "seed": 3, "oversubscription": 4, "routing": "ecmp"}
    hashed = load("mi300x-8", nodes=4, network="leaf-spine", **narrow)
    found.append(lower(hashed, [0, 1, 8, 9, 16, 24]))
    found += [replace(f, memory=2e10, reduction=1e10) for f in found]
    found += [replace(f, per_channel=(2e9, 5e9, 1e10)) for f in found[::3]]
    return found


def random_phase(rng, n, chunks, local):
    m = int(rng.integers(1, 2 * n + 1))
    src = rng.integers(0, n, m)
    dst = src if local else (src + rng.integers(1, n, m)) % n
    if rng.random() < 0.3:  # a ring
        src, m = np.arange(n), n
        dst = src if local else np.roll(src, -1)
    moved = rows(src, dst, count=rng.integers(1, 4, m) if rng.random() < 0.5 else 1,
                 op=REDUCE if rng.random() < 0.3 else COPY,
                 channel=rng.integers(0, 3, m) if rng.random() < 0.4 else 0)  # fmt: skip
    return Phase((at(moved, chunks, chunks),), int(rng.integers(1, 5)))


def random_schedule(rng, n):
    chunks = int(rng.integers(1, 5))
    phases = [random_phase(rng, n, chunks, rng.random() < 0.15)
              for _ in range(int(rng.integers(1, 4)))]  # fmt: skip
    return Schedule("any", "random", n, 0, Layout(chunks, 1, 3), 3, lambda: iter(phases))


def random_job(rng, fabric, number):
    n = fabric.nranks
    ranks = None
    if number and rng.random() < 0.7 and n > 2:
        ranks = rng.permutation(n)[: int(rng.integers(2, n + 1))].tolist()
        n = len(ranks)
    protocol = list(PROTOCOLS.values())[int(rng.integers(3))]
    block = float(rng.choice([0.0, 1.0, 1e4, 1e5, 1e6, 12345678.0]))
    after = tuple(int(k) for k in range(number) if rng.random() < 0.4)
    start = float(rng.random() * 1e-4) if rng.random() < 0.3 else 0.0
    late = rng.random(n) * 1e-4 if rng.random() < 0.3 else None
    return Job(random_schedule(rng, n), block, protocol, ranks, start, after, late,
               int(rng.integers(0, 4)))  # fmt: skip


def random_case(rng, folder):
    every = fabrics(folder)
    fabric = every[int(rng.integers(len(every)))]
    jobs = [random_job(rng, fabric, k) for k in range(int(rng.choice([1, 1, 2, 3])))]
    changes = []
    if rng.random() < 0.4:
        for _ in range(int(rng.integers(1, 4))):
            link, time = int(rng.integers(fabric.nlinks)), float(rng.random() * 3e-4)
            part = float(rng.choice([0.0, 0.25, 0.5, 1.0]))
            changes += [(time, link, part), (time + 1e-4 * float(rng.random()), link, 1.0)]
        # Later changes of one link must not take back the last one.
        changes += [(1e-3, link, 1.0) for link in {c[1] for c in changes}]
    return jobs, fabric, changes


def told(line, j):
    """Return a timeline's messages as the twin tells them."""
    t = line.transfers
    columns = (t.stage, t.step, t.channel, t.src, t.dst, t.start, t.pushed, t.end, t.nbytes)
    return [(j, *row) for row in zip(*(c.tolist() for c in columns))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machines")


@pytest.mark.parametrize("part", range(10))
def test_every_message_of_1000_random_cases_is_when_the_twin_says(folder, part):
    rng = np.random.default_rng([5, part])
    for _ in range(100):
        jobs, fabric, changes = random_case(rng, folder)
        lines = simulate_jobs(jobs, fabric, detail=True, changes=changes)
        twin = Twin(jobs, fabric, changes)
        ours = sorted(row for j, line in enumerate(lines) for row in told(line, j))
        theirs = sorted(twin.messages)
        assert [row[:6] for row in ours] == [row[:6] for row in theirs]
        assert np.array([row[6:] for row in ours]).reshape(-1) == pytest.approx(
            np.array([row[6:] for row in theirs]).reshape(-1), rel=1e-9)  # fmt: skip
        for j, line in enumerate(lines):
            wanted = [twin.ends[j, r] for r in range(len(line.ends))]
            assert line.ends == pytest.approx(wanted, rel=1e-9)
            assert line.seconds == pytest.approx(max(wanted) + twin.tails[j], rel=1e-9)
        assert twin.most <= 1e-9  # the twin itself takes no more of a resource than there is


def test_a_twin_that_shares_in_another_way_is_told_apart(folder, monkeypatch):
    def alike(wires, full):
        users = defaultdict(int)
        for wire in wires:
            for r in wire.use:
                users[r] += 1
        return [min(full[r] / users[r] / seconds for r, seconds in w.use.items()) for w in wires]

    monkeypatch.setitem(globals(), "fair", alike)
    rng, differs = np.random.default_rng(6), 0
    for _ in range(60):
        jobs, fabric, _ = random_case(rng, folder)
        lines, twin = simulate_jobs(jobs, fabric), Twin(jobs, fabric)
        last = [max(e for (k, _), e in twin.ends.items() if k == j) for j in range(len(jobs))]
        found = [line.seconds - line.tail for line in lines]
        differs += found != pytest.approx(last, rel=1e-9)
    assert differs > 5


def test_a_twin_whose_links_do_not_pause_is_told_apart(folder, monkeypatch):
    monkeypatch.setitem(globals(), "pressed", lambda wires, rate, full: rate)
    rng, differs, cases = np.random.default_rng(6), 0, 0
    while cases < 40:
        jobs, fabric, _ = random_case(rng, folder)
        if fabric.pausing is None:
            continue
        cases += 1
        ends, lines = Twin(jobs, fabric).ends, simulate_jobs(jobs, fabric)
        wanted = [ends[j, r] for j, line in enumerate(lines) for r in range(len(line.ends))]
        differs += np.concatenate([line.ends for line in lines]) != pytest.approx(wanted, rel=1e-9)
    assert differs > 5


# ---- what is kept ---------------------------------------------------------------------------


def test_no_link_moves_more_in_any_time_than_it_can_and_all_that_leaves_arrives(folder):
    rng = np.random.default_rng(7)
    for _ in range(60):
        jobs, fabric, _ = random_case(rng, folder)
        lines, seconds = simulate_jobs(jobs, fabric, detail=True), defaultdict(list)
        for job, line in zip(jobs, lines):
            seat = np.arange(fabric.nranks) if job.ranks is None else np.array(job.ranks)
            t, wanted = line.transfers, np.zeros((len(seat), 2))
            routes = fabric.routes(seat[t.src].astype(np.int32), seat[t.dst].astype(np.int32))
            for row, link, share in zip(routes.row, routes.link, routes.share):
                spent = share * t.nbytes[row] * fabric.pace[job.protocol.index, link]
                seconds[int(link)].append((t.start[row], t.pushed[row], spent))
            assert (t.start <= t.pushed).all() and (t.pushed <= t.end).all()
            assert (np.diff(t.start) >= -1e-13).all()
            slot = job.block / job.schedule.layout.chunks
            for step in job.schedule:
                far = step.src != step.dst
                np.add.at(wanted, (step.src[far], 0), step.count[far] * slot)
                np.add.at(wanted, (step.dst[far], 1), step.count[far] * slot)
            for end, ranks in enumerate((t.src, t.dst)):
                assert np.bincount(ranks, t.nbytes, len(seat)) == pytest.approx(wanted[:, end])
        for found in seconds.values():
            start, pushed, spent = np.array(found).T
            for a, b in itertools.product(np.unique(start), np.unique(pushed)):
                inside = (start >= a) & (pushed <= b)
                assert spent[inside].sum() <= max(b - a, 0.0) * (1 + 1e-9) + 1e-18


def test_the_same_jobs_take_the_same_time_to_the_bit_whenever_they_run(folder):
    rng = np.random.default_rng(8)
    for _ in range(30):
        jobs, fabric, changes = random_case(rng, folder)
        one, two = (simulate_jobs(jobs, fabric, detail=True, changes=changes) for _ in range(2))
        bare = simulate_jobs(jobs, fabric, changes=changes)
        for a, b, c in zip(one, two, bare):
            assert told(a, 0) == told(b, 0) and a.seconds == b.seconds == c.seconds
            assert (a.transfers.after == b.transfers.after).all()
            assert (a.transfers.link == b.transfers.link).all()
            assert (a.queued == c.queued).all() and (a.link_busy == c.link_busy).all()


def test_a_message_starts_when_the_one_it_waited_for_is_there_or_has_left(folder):
    rng = np.random.default_rng(9)
    for _ in range(40):
        jobs, fabric, _ = random_case(rng, folder)
        for job, line in zip(jobs, simulate_jobs(jobs, fabric, detail=True)):
            t, lead = line.transfers, {}
            own = fabric
            if job.ranks is not None:
                own = replace(fabric, place=fabric.place[list(job.ranks)])
            for k, stage in enumerate(stages(job.schedule, own, job.channels)):
                lead[k] = stage.lead
            for i, before in enumerate(t.after.tolist()):
                if before >= 0:
                    told = t.pushed[before] if t.src[before] == t.src[i] else t.end[before]
                    assert t.src[i] in (t.src[before], t.dst[before])
                    assert told <= t.start[i] * (1 + 1e-12)
                    if t.stage[before] == t.stage[i] or t.stage[i] == t.stage[before] + 1:
                        told = told + lead[int(t.stage[i])][t.src[i]]
                        assert told == pytest.approx(t.start[i], rel=1e-9)


# ---- closed forms ---------------------------------------------------------------------------

PLAIN = ("links: {up: {bandwidth: 50GB/s, latency: 0.5us, source: test, efficiency: 1, "
         "medium: nvlink, message: 0us}}\n")  # fmt: skip
RATE, HOP = 50e9, 0.5e-6


@cache
def plain(folder, n):
    """Return n ranks on one switch: 50 GB/s, 500 ns, and memory and copies that are no limit."""
    found = lower(load(machine(folder, switched() + PLAIN, n, f"plain{n}")))
    return replace(found, memory=1e15, copy=np.inf)


def sends(n, *messages, steps=1, channel=0):
    """Return the schedule of messages (src, dst, slots), all posted together."""
    src, dst, count = (np.array(c) for c in zip(*messages))
    phase = Phase((at(rows(src, dst, count=count, channel=channel), 1, 1),), steps)
    return Schedule("any", "messages", n, 0, Layout(1, 1, 99), 3, lambda: iter([phase]))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12, 64])
@pytest.mark.parametrize("nbytes", [0, 1, 1e6, 1e9])
def test_a_ring_takes_the_textbooks_time(folder, n, nbytes):
    fabric = plain(folder, n)
    schedule = algorithm("allreduce", "ring").build(recipe_of(n, one_ring=True))
    line = simulate(schedule, fabric, nbytes, SIMPLE)
    wanted = 2 * (n - 1) * (HOP + nbytes / (n * RATE))
    assert line.seconds - fabric.launch == pytest.approx(wanted, rel=1e-3)


SYMMETRIC = [("allreduce", "ring"), ("allreduce", "direct-twoshot"), ("allreduce", "circulant"),
             ("allgather", "direct"), ("reduce_scatter", "ring"), ("alltoall", "direct"),
             ("alltoall", "pairwise")]  # fmt: skip


@pytest.mark.parametrize("collective, name", SYMMETRIC)
def test_symmetric_calls_take_what_the_estimate_says(folder, collective, name):
    fabric = plain(folder, 8)
    schedule = algorithm(collective, name).build(recipe_of(8, one_ring=True))
    for block in (0.0, 1e3, 1e8):
        rough = profile(schedule, fabric).timeline(block, SIMPLE)
        line = simulate(schedule, fabric, block, SIMPLE)
        assert line.seconds == pytest.approx(rough.seconds, rel=1e-9)
        assert line.busy == pytest.approx(rough.busy) and line.engine == "simulate"


def test_two_messages_on_one_link_get_half_each_until_the_small_one_is_over(folder):
    fabric = plain(folder, 3)
    line = simulate(sends(3, (0, 2, 1), (1, 2, 3)), fabric, 1e6, SIMPLE, detail=True)
    small, large = sorted(line.transfers.pushed - fabric.launch)
    assert small == pytest.approx(2e6 / RATE) and large == pytest.approx(4e6 / RATE)
    # The small one waits 1e6 / RATE, the large one as long: then it is alone.
    assert line.queued.sum() == pytest.approx(2e6 / RATE)
    link = int(line.queued.argmax())
    assert line.transfers.link.tolist() == [link, link] and line.busiest == link
    assert line.transfers.alone == pytest.approx(line.transfers.nbytes / RATE)


def test_a_message_held_elsewhere_leaves_its_share_to_the_others(folder):
    # 0 sends to 2, 3 and 4; 1 sends to 4: 0's link is the narrow one, 1 gets two thirds of 4's.
    found = simulate(sends(5, (0, 2, 1), (0, 3, 1), (0, 4, 1), (1, 4, 2)), plain(folder, 5), 1e6,
                     SIMPLE, detail=True)  # fmt: skip
    pushed = found.transfers.pushed - found.launch
    assert pushed == pytest.approx(3e6 / RATE)


def test_two_communicators_share_links_and_a_stream_goes_in_order(folder):
    fabric = plain(folder, 4)
    one = sends(2, (0, 1, 1))
    jobs = [Job(one, 1e6, SIMPLE, (0, 3)), Job(one, 1e6, SIMPLE, (1, 3)),
            Job(one, 1e6, SIMPLE, (2, 3), after=(0, 1)),
            Job(one, 1e6, SIMPLE, (0, 1), start=1.0)]  # fmt: skip
    a, b, c, d = simulate_jobs(jobs, fabric)
    both = fabric.launch + 2e6 / RATE + HOP
    assert a.seconds == b.seconds == pytest.approx(both)
    assert c.launch == pytest.approx(both + fabric.launch)
    assert c.seconds == pytest.approx(c.launch + 1e6 / RATE + HOP)
    assert d.seconds == pytest.approx(1.0 + fabric.launch + 1e6 / RATE + HOP)


ONE_CALL = [(name, nodes, collective, algorithm_name, channels)
            for name, nodes in (("mi300x-8", 1), ("h100-8", 1), ("h100-8", 2))
            for collective, algorithm_name in (("allreduce", "ring"), ("alltoall", None),
                                               ("allgather", None))
            for channels in (0, 1, 4)]  # fmt: skip


@cache
def fabric_of(name, nodes):
    return lower(load(name, nodes=nodes))


@cache
def planner(name, nodes, algo):
    return Planner(fabric_of(name, nodes), algo)


def planned(name, nodes, collective, algorithm_name=None, block=1 << 20, channels=0):
    algo = f"{collective}:{algorithm_name}" if algorithm_name else None
    return replace(planner(name, nodes, algo).plan(collective, block), channels=channels)


@pytest.mark.parametrize("name, nodes, collective, algorithm_name, channels", ONE_CALL)
def test_one_job_alone_takes_what_the_plan_says(name, nodes, collective, algorithm_name, channels):
    for block in (0, 1000, 1 << 20):
        plan = planned(name, nodes, collective, algorithm_name, block, channels)
        fabric, wanted = plan.profile.fabric, plan.timed("simulate")
        bare = Job(plan.schedule, block, plan.protocol, channels=channels)
        seated = replace(bare, ranks=range(fabric.nranks))
        for job in (plan.job(), bare, seated):
            (line,) = simulate_jobs([job], fabric)
            assert line.seconds == pytest.approx(wanted.seconds, rel=1e-12)
            assert line.tail == pytest.approx(wanted.tail, rel=1e-12) and line.nranks == plan.nranks
    assert wanted.tail > 0


@pytest.mark.parametrize("name, nodes", [("mi300x-8", 1), ("h100-8", 1), ("h100-8", 2)])
def test_calls_one_after_the_other_take_the_sum_of_their_times(name, nodes):
    plans = [planned(name, nodes, "allreduce", "ring"), planned(name, nodes, "alltoall"),
             planned(name, nodes, "allgather", channels=2)]  # fmt: skip
    jobs = [plan.job(after=(k - 1,) if k else ()) for k, plan in enumerate(plans)]
    lines = simulate_jobs(jobs, plans[0].profile.fabric)
    total = np.cumsum([plan.timed("simulate").seconds for plan in plans])
    assert [line.seconds for line in lines] == pytest.approx(total.tolist(), rel=1e-12)


def test_a_profile_of_another_fabric_is_not_taken_for_that_of_the_job():
    plan = planned("h100-8", 1, "allgather")
    slow = replace(plan.profile.fabric, copy=plan.profile.fabric.copy / 2)
    (line,) = simulate_jobs([plan.job()], slow)
    assert line.tail > plan.timeline.tail
    wanted = profile(plan.schedule, slow).timeline(plan.block, PROTOCOLS[plan.protocol])
    assert line.tail == pytest.approx(wanted.tail, rel=1e-12)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_may_be_given_by_its_name(folder, name):
    one = sends(2, (0, 1, 1))
    told = simulate(one, plain(folder, 2), 1e6, name).seconds
    assert told == simulate(one, plain(folder, 2), 1e6, PROTOCOLS[name]).seconds


@pytest.mark.parametrize("wrong", ["simple", "", None, 2, ["Simple"]])
def test_a_protocol_that_is_none_is_refused(folder, wrong):
    with pytest.raises(InvalidArgument, match=r"job 0: protocol .*expected one of .*Simple"):
        simulate_jobs([Job(sends(2, (0, 1, 1)), 1e6, wrong)], plain(folder, 2))


def test_ranks_that_come_late_hold_up_only_those_that_wait_for_them(folder):
    fabric = plain(folder, 4)
    line = simulate(sends(4, (0, 1, 1), (2, 3, 1)), fabric, 1e6, SIMPLE, arrival=[5e-3, 0, 0, 0])
    soon = fabric.launch + 1e6 / RATE + HOP
    assert line.ends == pytest.approx([soon + 5e-3 - HOP, soon + 5e-3, soon - HOP, soon])
    assert line.seconds == pytest.approx(soon + 5e-3)


def test_more_flows_that_share_with_nobody_than_the_heap_holds_at_first(folder, monkeypatch):
    monkeypatch.setattr("rccl_py.timing.sim_tables._ALONE", 0)
    n, fabric = 200, plain(folder, 400)
    call = sends(400, *((i, n + i, 1 + i) for i in range(n)), steps=3)
    lines = simulate_jobs([Job(call, 1e6, SIMPLE, start=start) for start in (0.0, 1.0)], fabric,
                          detail=True)  # fmt: skip
    for start, line in zip((0.0, 1.0), lines):
        moved = line.transfers
        spent = moved.pushed - moved.start
        assert spent == pytest.approx((1.0 + moved.src) * 1e6 / RATE)
        # A rank that only sends waits for nothing but its own cable.
        assert moved.start == pytest.approx(start + fabric.launch + moved.step * spent)


def test_detail_of_a_call_without_messages_is_no_messages(folder):
    one = Schedule("any", "nothing", 2, 0, Layout(1, 1, 1), 1, lambda: iter([]))
    line = simulate(one, plain(folder, 2), 1e6, SIMPLE, detail=True)
    assert len(line.transfers) == 0 and line.transfers.start.dtype == np.float64


# ---- links that change on the way -----------------------------------------------------------


def up_link(fabric, rank):
    return int(fabric.routes(np.array([rank], np.int32), np.array([rank ^ 1], np.int32)).link[0])


def test_a_link_that_loses_half_of_its_capacity_on_the_way_takes_longer_from_then_on(folder):
    fabric = plain(folder, 2)
    half = fabric.launch + 0.5e6 / RATE
    found = simulate(sends(2, (0, 1, 1)), fabric, 1e6, SIMPLE,
                     changes=[(half, up_link(fabric, 0), 0.5)])  # fmt: skip
    assert found.seconds == pytest.approx(half + 1e6 / RATE + HOP)


def test_what_is_on_a_link_that_is_down_goes_on_when_it_is_back(folder):
    fabric = plain(folder, 4)
    half, link = fabric.launch + 0.5e6 / RATE, up_link(fabric, 0)
    changes = [(1.0, link, 1.0), (half, link, 0.0)]
    line = simulate(sends(4, (0, 1, 1), (2, 3, 1)), fabric, 1e6, SIMPLE, changes=changes)
    assert line.seconds == pytest.approx(1.0 + 0.5e6 / RATE + HOP)
    assert line.ends[3] == pytest.approx(fabric.launch + 1e6 / RATE + HOP)
    assert line.queued[link] == pytest.approx(1.0 - half)


def test_a_link_that_stays_down_is_named_with_the_ranks_that_wait(folder):
    fabric = plain(folder, 4)
    link = up_link(fabric, 2)
    with pytest.raises(FabricError) as told:
        simulate(sends(4, (0, 1, 1), (2, 3, 1)), fabric, 1e6, SIMPLE, changes=[(0.0, link, 0.0)])
    assert f"link {link} ({fabric.link_name(link)})" in str(told.value)
    assert "rank 2 for its message to rank 3" in str(told.value)
    assert "rank 0" not in str(told.value)


# ---- what is refused ------------------------------------------------------------------------


def test_too_many_messages_are_refused_before_anything_runs(folder):
    schedule = algorithm("allreduce", "ring").build(recipe_of(12, one_ring=True))
    with pytest.raises(InvalidUsage, match=r"132 messages.*max_events=100.*engine=\"clock\""):
        simulate(schedule, plain(folder, 12), 1e6, SIMPLE, max_events=100)
    assert simulate(schedule, plain(folder, 12), 1e6, SIMPLE, max_events=264).seconds > 0


@pytest.mark.parametrize("job, why", [
    ({"ranks": (0, 9)}, "0 to 3"), ({"ranks": (0, 0)}, "1 different"),
    ({"ranks": None}, "for 2 ranks on 4"), ({"ranks": (0, 1), "after": (0,)}, "after job 0"),
    ({"ranks": (0, 1), "arrival": [1.0]}, "shape"),
    ({"ranks": (0, 1), "start": -1.0}, "start -1.0"),
    ({"ranks": (0, 1), "arrival": [0.0, np.nan]}, "from 0"),
])  # fmt: skip
def test_a_job_that_does_not_fit_is_refused(folder, job, why):
    with pytest.raises(InvalidArgument, match=why):
        simulate_jobs([Job(sends(2, (0, 1, 1)), 1e6, SIMPLE, **job)], plain(folder, 4))


@pytest.mark.parametrize("machine_name, more", [
    ("mi300x-8", {}), ("h100-8", {"nodes": 3}), ("mi250x-4", {"nodes": 2}),
    ("h100-8", {"nodes": 4, "network": "leaf-spine", "leaf_nodes": 1}),
])  # fmt: skip
def test_every_link_is_found_by_its_name(machine_name, more):
    fabric = lower(load(machine_name, **more))
    found = [link_number(fabric, fabric.link_name(k)) for k in range(fabric.nlinks)]
    assert found == list(range(fabric.nlinks))


@pytest.mark.parametrize("nodes, wrong, near", [
    (1, "gpu0 -> gpu99", "gpu0 -> gpu"), (2, "gpu0 -> plane1", "node0: gpu0 -> plane1"),
    (2, "node0: gpu0 -> plane9", "node0: gpu0 -> plane"), (2, "node7: gpu0 -> plane0", "node0: "),
    (1, "", ""), (1, "7", "pci7 -> "), (1, "node999999999999: x", ""),
])  # fmt: skip
def test_a_name_no_link_has_is_refused_with_those_like_it(nodes, wrong, near):
    fabric = lower(load("h100-8" if nodes == 2 else "mi300x-8", nodes=nodes))
    with pytest.raises(InvalidArgument, match=f"no link '{wrong}'.*'{near}"):
        link_number(fabric, wrong)
    plan = Planner(fabric).plan("allgather", 1024)
    with pytest.raises(InvalidArgument, match="no link"):
        simulate_jobs([plan.job()], fabric, changes=[(0.0, wrong, 0.5)])


def test_a_link_that_changes_may_be_given_by_its_name(folder):
    fabric, call = plain(folder, 2), sends(2, (0, 1, 1))
    link = up_link(fabric, 0)
    by_number, by_name = (simulate(call, fabric, 1e6, SIMPLE, changes=[(0.0, at, 0.25)]).seconds
                          for at in (link, fabric.link_name(link)))  # fmt: skip
    assert by_number == by_name == pytest.approx(fabric.launch + 4e6 / RATE + HOP)


@pytest.mark.parametrize("change", [
    (-1.0, 0, 0.5), (0.0, -1, 0.5), (0.0, 10**6, 0.5), (0.0, 0, 1.5), (0.0, 0, np.nan),
    (np.inf, 0, 0.5), (0.0, 0.5, 0.5), (0.0, None, 0.5), ("0", 0, 0.5), (0.0, 0), 7,
])  # fmt: skip
def test_a_change_that_cannot_be_is_refused(folder, change):
    with pytest.raises(InvalidArgument, match="change"):
        simulate(sends(2, (0, 1, 1)), plain(folder, 2), 1e6, SIMPLE, changes=[change])


# ---- the compiler ---------------------------------------------------------------------------


def python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip


def test_importing_the_engine_does_not_import_the_compiler():
    names = "Job, Transfers, simulate, simulate_jobs, timed"
    program = f"import sys, rccl_py; from rccl_py.timing import {names}; "
    assert python(program + "print('numba' in sys.modules)").split() == ["False"]


RUN = """
import sys
if {blocked}:
    sys.modules["numba"] = None
import rccl_py
from rccl_py.timing.simulate import simulate
from rccl_py.links import PROTOCOLS
fabric = rccl_py.lower(rccl_py.load("mi250x-4", nodes=2), [0, 1, 2, 8, 9, 10])
plan = rccl_py.Planner(fabric).plan("alltoall", 1 << 20)
line = simulate(plan.schedule, fabric, 12345.0, PROTOCOLS["Simple"], detail=True)
print(line.seconds.hex(), line.transfers.end.tobytes().hex())
print(("numba" in sys.modules) and sys.modules["numba"] is not None)
"""


def test_without_the_compiler_results_are_the_same_to_the_bit():
    plain_python, compiled = (python(RUN.format(blocked=b)).splitlines() for b in (True, False))
    assert plain_python[0] == compiled[0] and (plain_python[1], compiled[1]) == ("False", "True")
