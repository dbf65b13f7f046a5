"""Sends and receives: order, groups, ends that differ; circles are named, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers import SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, Config
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.errors import CollectiveMismatch, Deadlock, InvalidArgument, InvalidUsage

MACHINE = "mi300x-8-x16-leaf-spine"
QUIET = Config(flight_dir="")
Body = Callable[[Communicator, Communicator], object]


def in_one_thread(body: Body, n: int) -> list[object]:
    """Make every rank's calls one rank after the other; body gets two communicators."""
    comms = Communicator.init_all(MACHINE, n, config=QUIET)
    others = [comm.split(0) for comm in comms]
    return [body(*pair) for pair in zip(comms, others)]


def in_threads(body: Body, n: int, timeout: float = 0.5) -> list[object]:
    """Run every rank in a thread of its own; body gets two communicators."""
    return rccl.run(lambda c: body(c, c.split(0)), MACHINE, nranks=n, timeout=timeout, config=QUIET)


MODES = pytest.mark.parametrize("run", [in_one_thread, in_threads])


@pytest.fixture
def pair() -> list[Communicator]:
    return Communicator.init_all(MACHINE, 2, config=QUIET)


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def kept(program: Body) -> tuple[Body, dict[int, list[np.ndarray]]]:
    """Return the program, and where what it returns is kept by rank until all have run."""
    held: dict[int, list[np.ndarray]] = {}

    def body(comm: Communicator, other: Communicator) -> None:
        held[comm.rank] = program(comm, other)

    return body, held


# ---- what arrives ---------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("name", DTYPES)
def test_every_data_type_arrives_to_the_bit(run, name):
    data = np.arange(7).astype(dtype_named(name))

    def program(comm, _):
        held = data.copy() if comm.rank else np.zeros_like(data)
        comm.send(held, 0) if comm.rank else comm.recv(held, 1)
        return held

    body, held = kept(program)
    run(body, 2)
    assert held[0].tobytes() == data.tobytes()


@MODES
def test_messages_of_a_pair_arrive_in_the_order_they_were_sent(run):
    def program(comm, _):
        held = [vector(k if comm.rank == 0 else -1.0) for k in range(5)]
        for one in held:
            comm.send(one, 1) if comm.rank == 0 else comm.recv(one, 0)
        return held

    body, held = kept(program)
    run(body, 2)
    assert [x[0] for x in held[1]] == [0, 1, 2, 3, 4]


def test_the_order_of_a_pair_is_that_of_the_calls_though_streams_run_otherwise(pair):
    side, gate = pair[0].stream(), pair[0].stream()
    received = [vector(0), vector(0), vector(0)]
    pair[0].recv(received[2], 1, stream=gate)
    side.wait(gate.record())
    pair[0].send(vector(1), 1, stream=side)  # the first send, ready last
    pair[0].send(vector(2), 1)
    other = pair[1].stream()
    pair[1].recv(received[0], 0)
    pair[1].recv(received[1], 0, stream=other)
    assert received[1][0] == 2.0 and not received[0].any()
    pair[1].send(vector(3), 0, stream=other)
    assert [x[0] for x in received] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("order", ["send first", "recv first"])
def test_either_end_may_come_first(pair, order):
    target = vector(0)
    calls = [lambda: pair[0].send(vector(7), 1), lambda: pair[1].recv(target, 0)]
    for call in calls if order == "send first" else reversed(calls):
        call()
    assert target[0] == 7


@MODES
def test_a_message_of_no_elements_arrives(run):
    def program(comm, _):
        none, one = vector(), vector(comm.rank)
        for held in (none, one):
            comm.recv(held, 1) if comm.rank == 0 else comm.send(held, 0)
        return one

    body, held = kept(program)
    run(body, 2)
    assert held[0][0] == 1.0


def test_what_lies_behind_the_received_elements_is_not_touched(pair):
    target = np.zeros(5, np.float32)
    pair[0].send(vector(1, 2), 1)
    pair[1].recv(target[1:3], 0)
    assert target.tolist() == [0, 1, 2, 0, 0]


def test_the_sender_may_use_its_buffer_again_once_it_was_received(pair):
    source, target = vector(1), vector(0)
    pair[0].send(source, 1)
    pair[1].recv(target, 0)
    source[:] = 9
    assert target[0] == 1


@MODES
@pytest.mark.parametrize("n", SIZES)
def test_messages_to_oneself_in_a_group_arrive_in_order(run, n):
    def program(comm, _):
        held = [vector(0), vector(0)]
        with rccl.group():
            for k in range(2):
                comm.send(vector(10 * comm.rank + k), comm.rank)
            for one in held:
                comm.recv(one, comm.rank)
        return held

    body, held = kept(program)
    run(body, n)
    assert all([x[0] for x in held[r]] == [10 * r, 10 * r + 1] for r in range(n))


@MODES
@pytest.mark.parametrize("n", SIZES)
def test_many_ranks_send_to_one(run, n):
    def program(comm, _):
        if comm.rank:
            comm.send(vector(comm.rank), 0)
            return []
        held = [vector(0) for _ in range(n - 1)]
        for peer in reversed(range(1, n)):
            comm.recv(held[peer - 1], peer)
        return held

    body, held = kept(program)
    run(body, n)
    assert [x[0] for x in held[0]] == list(range(1, n))


@MODES
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("count", [0, 1, 101])
def test_a_ring_exchange_in_a_group_moves_all_by_one(run, n, count):
    def program(comm, _):
        held = np.full(count, -1, np.int64)
        with rccl.group():
            comm.send(np.full(count, comm.rank), (comm.rank + 1) % n)
            comm.recv(held, (comm.rank - 1) % n)
        return held

    body, held = kept(program)
    run(body, n)
    assert all((held[r] == (r - 1) % n).all() for r in range(n))


@MODES
@pytest.mark.parametrize("n", [2, 3, 5])
def test_everybody_sends_to_everybody_in_a_group(run, n):
    def program(comm, _):
        held = [vector(-1) for _ in range(n)]
        with rccl.group():
            for peer in range(n):
                comm.recv(held[peer], peer)
                comm.send(vector(10 * comm.rank + peer), peer)
        return held

    body, held = kept(program)
    run(body, n)
    assert all(held[r][p][0] == 10 * p + r for r in range(n) for p in range(n))


def test_a_group_may_hold_a_collective_and_messages(pair):
    totals, held = [vector(0), vector(0)], vector(0)
    with rccl.group():
        pair[0].send(vector(5), 1)
        pair[1].recv(held, 0)
        for comm, total in zip(pair, totals):
            comm.allreduce(vector(1), total)
    assert totals == [2, 2] and held == 5


def test_a_group_of_messages_may_end_while_an_earlier_collective_waits(pair):
    results, held = [vector(0), vector(0)], vector(0)
    pair[0].allreduce(vector(1), results[0])
    with rccl.group():
        pair[0].send(vector(5), 1)
    pair[1].allreduce(vector(1), results[1])
    pair[1].recv(held, 0)
    assert held == 5 and results[0] == results[1] == 2


# ---- ends that differ, ends that are missing ------------------------------------------------

UNLIKE = {
    "counts": (np.ones(4, "f4"), np.ones(5, "f4"), "count=4, dtype=float", "count=5, dtype=float"),
    "none and one": (np.ones(0, "f4"), np.ones(1, "f4"), "count=0", "count=1"),
    "types of one size": (np.ones(4, "f4"), np.ones(4, "i4"), "dtype=float", "dtype=int32"),
    "types of two sizes": (np.ones(2, "f8"), np.ones(4, "f4"), "dtype=double", "dtype=float"),
}


@MODES
@pytest.mark.parametrize("name", UNLIKE)
def test_ends_that_differ_are_named_with_rank_call_and_site(run, name):
    source, target, sent, received = UNLIKE[name]

    def body(comm, _):
        if comm.rank == 0:
            comm.send(source, 1)
        else:
            comm.recv(target, 0)

    site = r"test_messages\.py:\d+"
    what = rf"rank 0 made send\(.*{sent}.*\) at {site}; rank 1 made recv\(.*{received}.*{site}"
    with pytest.raises(CollectiveMismatch, match=what):
        run(body, 2)


def test_ends_that_differ_in_a_group_beside_a_collective_that_differs_are_one_error(pair):
    with pytest.raises(CollectiveMismatch, match="call 0 differs"), rccl.group():
        for comm in pair:
            comm.send(vector(1), 1) if comm.rank == 0 else comm.recv(vector(1), 0)
            comm.broadcast(vector(1), vector(1), root=comm.rank)


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize("peer", [2, -1, "1", 1.0, True, None])
def test_a_peer_that_is_no_rank_is_refused(pair, kind, peer):
    with pytest.raises(InvalidArgument, match=f"^{kind} at rank 0: peer .*expected"):
        getattr(pair[0], kind)(vector(1), peer)


def test_a_receive_into_read_only_memory_is_refused(pair):
    held = vector(1)
    held.flags.writeable = False
    with pytest.raises(InvalidArgument, match="recv at rank 0: recvbuf is read-only"):
        pair[0].recv(held, 1)


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_synchronize_names_a_message_without_its_other_end(pair, kind):
    getattr(pair[0], kind)(vector(1), 1)
    with pytest.raises(InvalidUsage, match=f"rank 0 of .* waits in {kind}.*: rank 1 did not make"):
        pair[0].synchronize()


def test_a_message_without_its_other_end_is_forgotten_once_told(pair):
    pair[0].send(vector(1), 1)
    with pytest.raises(InvalidUsage):
        pair[1].synchronize()
    held = vector(0)
    pair[0].send(vector(2), 1)
    pair[1].recv(held, 0)
    assert held == 2


# ---- circles --------------------------------------------------------------------------------


def receive_then_send(comm: Communicator, _: Communicator) -> None:
    comm.recv(vector(0), (comm.rank - 1) % comm.nranks)
    comm.send(vector(0), (comm.rank + 1) % comm.nranks)


def send_then_receive(comm: Communicator, _: Communicator) -> None:
    comm.send(vector(0), (comm.rank + 1) % comm.nranks)
    comm.recv(vector(0), (comm.rank - 1) % comm.nranks)


def two_communicators(comm: Communicator, other: Communicator) -> None:
    for one in (comm, other) if comm.rank else (other, comm):
        one.barrier()


def collective_against_message(comm: Communicator, _: Communicator) -> None:
    if comm.rank == 0:
        comm.barrier()
    if comm.rank < 2:
        comm.send(vector(0), 1) if comm.rank == 0 else comm.recv(vector(0), 0)
    if comm.rank:
        comm.barrier()


def two_groups(comm: Communicator, _: Communicator) -> None:
    for step in range(2):
        with rccl.group():
            if comm.rank < 2:
                comm.send(vector(0), 1 - comm.rank)
        if comm.rank < 2 and step:
            comm.recv(vector(0), 1 - comm.rank)
            comm.recv(vector(0), 1 - comm.rank)


def behind_an_event(comm: Communicator, other: Communicator) -> None:
    side = comm.stream("side")
    if comm.rank == 0:
        comm.default_stream.wait(side.record())  # happens at once: no part of any circle
        other.barrier()
        comm.barrier()
    else:
        comm.barrier(stream=side)
        other.barrier(stream=side)


CIRCLES = {
    "receive, then send": (receive_then_send, "recv"),
    "send, then receive": (send_then_receive, "send"),
    "two communicators": (two_communicators, "barrier"),
    "a collective against a message": (collective_against_message, "barrier"),
    "two groups": (two_groups, "send"),
    "beside an event": (behind_an_event, "barrier"),
}


@MODES
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_is_a_deadlock_at_once_that_names_ranks_calls_and_sites(run, n, name):
    body, first = CIRCLES[name]
    with pytest.raises(Deadlock) as caught:
        run(body, n)
    waits = re.findall(r"rank (\d+) of \S+ waits in (?:call \d+, )?(\w+)\(.*?\) at "
                       r"test_messages\.py:\d+ for rank (\d+)", str(caught.value))  # fmt: skip
    assert len(waits) >= 2 and first in {call for _, call, _ in waits}
    assert [w[2] for w in waits] == [w[0] for w in [*waits[1:], waits[0]]], "one leads to the next"
    assert caught.value.code == 5


@MODES
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_ring_of_receives_names_every_rank_once(run, n):
    with pytest.raises(Deadlock) as caught:
        run(receive_then_send, n)
    named = re.findall(r"rank (\d+) of \S+ waits in recv", str(caught.value))
    assert sorted(named) == [str(r) for r in range(n)]


def test_a_circle_through_a_stream_that_waits_for_an_event_is_told(pair):
    side = pair[0].stream("side")
    pair[0].recv(vector(0), 1, stream=side)
    pair[0].default_stream.wait(side.record())
    pair[0].send(vector(0), 1)
    pair[1].recv(vector(0), 0)
    with pytest.raises(Deadlock, match="default stream waits for an event of side; rank 0 of"):
        pair[1].send(vector(0), 0)


def test_a_circle_leaves_the_communicators_alone_that_have_no_part_in_it():
    comms = Communicator.init_all(MACHINE, 4, config=QUIET)
    crossed, apart = ([comm.split(0) for comm in comms] for _ in range(2))
    results = [vector(0) for _ in comms]
    apart[3].allreduce(vector(1), results[3])
    crossed[3].recv(vector(0), 0)
    with rccl.group():
        crossed[0].send(vector(1), 3)  # waits for rank 3, which waits in `apart`
        comms[0].recv(vector(0), 1)
    comms[0].send(vector(0), 1)
    comms[1].recv(vector(0), 0)
    with pytest.raises(Deadlock):
        comms[1].send(vector(0), 0)
    for comm, result in zip(apart[:3], results):
        comm.allreduce(vector(1), result)
    assert [r[0] for r in results] == [4, 4, 4, 4]


# ---- no circles -----------------------------------------------------------------------------


@dataclass
class Step:
    """What some ranks do together: messages (from, to), a collective (of 0: all, 1: the other).

    streams: for each rank, which of its streams. grouped: whether all of it is one group.
    """

    messages: list[tuple[int, int]] = field(default_factory=list)
    collective: int | None = None
    streams: list[int] = field(default_factory=list)
    shuffle: int = 0


@st.composite
def programs(draw) -> tuple[int, list[Step]]:
    """Draw what ranks do together, one thing after the other: each rank's part never hangs."""
    n, steps = draw(st.sampled_from([2, 3, 5])), []
    ranks = st.integers(0, n - 1)
    for _ in range(draw(st.integers(1, 8))):
        streams = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
        kind = draw(st.sampled_from(["message", "collective", "exchange"]))
        if kind == "collective":
            steps.append(Step(collective=draw(st.integers(0, 1)), streams=streams))
        elif kind == "message":
            a, b = draw(ranks), draw(ranks)
            steps.append(Step([(a, b if a != b else (a + 1) % n)], streams=streams))
        else:
            pairs = draw(st.lists(st.tuples(ranks, ranks), min_size=1, max_size=6))
            steps.append(Step(pairs, streams=streams, shuffle=draw(st.integers(0, 99))))
    return n, steps


class Run:
    """The program `steps` at one rank, and what it received."""

    def __init__(self, steps: list[Step], comm: Communicator, other: Communicator) -> None:
        self.steps, self.comm, self.other = steps, comm, other
        self.streams = [comm.default_stream, comm.stream()]
        self.got: list[tuple[float, np.ndarray]] = []

    def step(self, k: int) -> None:
        step, me = self.steps[k], self.comm.rank
        stream = self.streams[step.streams[me]]
        if step.collective is not None:
            held = np.array([float(me)])
            n = self.comm.nranks
            (self.other if step.collective else self.comm).allreduce(held, held, stream=stream)
            self.got.append((n * (n - 1) / 2, held))
            return
        ends = [("send", m, b) for m, (a, b) in enumerate(step.messages) if a == me]
        ends += [("recv", m, a) for m, (a, b) in enumerate(step.messages) if b == me]
        if step.shuffle:  # any order in which the messages of each pair keep theirs
            turn = np.random.default_rng(step.shuffle + me).permutation(2 * self.comm.nranks)
            ends.sort(key=lambda end: turn[2 * end[2] + (end[0] == "send")])
        if not ends:
            return
        with rccl.group():
            for kind, m, peer in ends:
                held = np.array([100.0 * k + m if kind == "send" else -1.0])
                getattr(self.comm, kind)(held, peer, stream=stream)
                if kind == "recv":
                    self.got.append((100.0 * k + m, held))

    def all(self) -> Run:
        for k in range(len(self.steps)):
            self.step(k)
        return self

    def is_right(self) -> bool:
        return all(wanted == held[0] for wanted, held in self.got)


@settings(deadline=None, max_examples=60)
@given(programs(), st.randoms(use_true_random=False))
def test_a_program_that_ends_is_never_called_a_deadlock_whatever_rank_goes_on_first(drawn, random):
    n, steps = drawn
    comms = Communicator.init_all(MACHINE, n, config=QUIET)
    others = [comm.split(0) for comm in comms]
    runs = [Run(steps, *pair) for pair in zip(comms, others)]
    turns = [r for r in range(n) for _ in steps]
    random.shuffle(turns)
    done = [0] * n
    for rank in turns:
        runs[rank].step(done[rank])
        done[rank] += 1
    for comm in (*comms, *others):
        comm.synchronize()
    assert all(run.is_right() for run in runs)


@settings(deadline=None, max_examples=25)
@given(programs())
def test_a_program_that_ends_is_never_called_a_deadlock_in_threads(drawn):
    n, steps = drawn
    runs = in_threads(lambda comm, other: Run(steps, comm, other).all(), n, timeout=30)
    assert all(run.is_right() for run in runs)


def test_a_second_stream_that_can_go_on_is_no_circle():
    comms = Communicator.init_all(MACHINE, 3, config=QUIET)
    received, late = vector(0), vector(0)
    comms[0].recv(received, 1)
    comms[0].barrier()
    first, second, third = (comms[1].stream() for _ in range(3))
    comms[1].recv(late, 2, stream=third)
    second.wait(third.record())
    comms[1].send(vector(7), 0, stream=second)  # what rank 0 waits for, once rank 2 has sent
    comms[1].barrier(stream=first)
    comms[1].send(vector(8), 0, stream=first)
    comms[2].send(vector(1), 1)
    comms[2].barrier()
    assert received == 7 and late == 1
