"""Streams, events and modelled time: what overlaps, what waits, and what that does to the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, Config
from rccl_py.comm.core import cost_of
from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.timing import Exchange, exchange

CLUSTER = "mi300x-8-x16-leaf-spine"
LARGE = 1 << 20  # elements of double: links are busy most of a call's time
QUIET = Config(flight_dir="")


def ranks(n: int | list[int] = 2, machine: str = "mi300x-8") -> list[Communicator]:
    return Communicator.init_all(machine, n, config=QUIET)


def reduce_all(comms: list[Communicator], count: int = 1000, streams: list | None = None) -> None:
    """Let all ranks reduce a vector of their own, on their stream of `streams`."""
    held = np.ones((len(comms), count))
    for k, comm in enumerate(comms):
        comm.allreduce(held[k], held[k], stream=None if streams is None else streams[k])


def seconds_of(comms: list[Communicator], count: int = 1000) -> float:
    """Return what one allreduce of `count` doubles takes alone."""
    return comms[0].plan("allreduce", count, "double").time


def message(comms: list[Communicator], count: int, src: int = 0, dst: int = 1) -> Exchange:
    """Return the model of one message of `count` doubles."""
    ends = [np.array([value]) for value in (src, dst, 8 * count)]
    return exchange(comms[0].fabric, *ends)


# ---- one stream -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_calls_on_the_default_stream_take_place_one_after_the_other(n):
    comms = ranks(n, CLUSTER)
    for _ in range(3):
        reduce_all(comms)
    assert [c.elapsed for c in comms] == pytest.approx([3 * seconds_of(comms)] * n)


def test_a_call_starts_when_the_last_rank_is_ready():
    comms = ranks(3)
    comms[1].advance(5.0)
    reduce_all(comms)
    assert [c.elapsed for c in comms] == pytest.approx([5.0 + seconds_of(comms)] * 3)


def test_computing_takes_the_time_it_is_given():
    comm, other = ranks()
    for seconds in (1.5, 0.0, 0.25):
        comm.advance(seconds)
    assert comm.elapsed == 1.75 and other.elapsed == 0.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, "1", None, True])
def test_computing_for_no_time_that_there_is_is_refused(seconds):
    comm = ranks(1)[0]
    with pytest.raises(InvalidArgument, match="advance: seconds"):
        comm.advance(seconds)
    with pytest.raises(InvalidArgument, match="advance: seconds"):
        comm.default_stream.advance(seconds)
    assert comm.elapsed == 0.0


def test_messages_and_collectives_of_one_stream_do_not_overlap():
    comms = ranks()
    reduce_all(comms)
    comms[0].send(np.ones(4), 1)
    comms[1].recv(np.ones(4), 0)
    moved = message(comms, 4).seconds
    assert comms[0].elapsed == pytest.approx(seconds_of(comms) + moved)


# ---- several streams ------------------------------------------------------------------------


def test_computing_on_two_streams_overlaps():
    comm = ranks(1)[0]
    side = comm.stream()
    comm.advance(2.0)
    comm.advance(3.0, stream=side)
    assert (comm.default_stream.elapsed, side.elapsed, comm.elapsed) == (2.0, 3.0, 3.0)


def test_computing_hides_a_collective_on_another_stream():
    comms = ranks()
    sides = [c.stream() for c in comms]
    reduce_all(comms, streams=sides)
    for comm in comms:
        comm.advance(1.0)
    assert sides[0].elapsed == pytest.approx(seconds_of(comms))
    assert [c.elapsed for c in comms] == [1.0, 1.0]


@pytest.mark.parametrize("count", [1, LARGE])
def test_two_collectives_at_once_share_the_links_they_both_use(count):
    comms = ranks(4)
    reduce_all(comms, count)
    reduce_all(comms, count, [c.stream() for c in comms])
    plan = comms[0].last_plan
    cost = cost_of(plan)
    wanted = cost.lead + max(cost.seconds - cost.lead, 2 * float(cost.busy().seconds.max()))
    assert comms[0].elapsed == pytest.approx(wanted)
    assert count == 1 or wanted > 1.5 * plan.time


@pytest.mark.parametrize("pieces", [1, 2, 4, 16])
def test_cutting_a_call_into_pieces_never_beats_the_lower_bound(pieces):
    for machine in ("mi300x-8", "h100-8"):
        comms = Communicator.init_all(machine)
        bound = comms[0].plan("allreduce", 1 << 20, "float").bound.seconds
        with rccl.group() as g:
            for comm in comms:
                for _ in range(pieces):
                    part = np.zeros((1 << 20) // pieces, np.float32)
                    comm.allreduce(part, part)
            assert g.simulate() >= bound * (1 - 1e-9)


def test_two_large_messages_over_one_link_take_about_twice_as_long_as_one():
    comms = ranks()
    sides = [c.stream() for c in comms]
    for on in ([None, None], sides):
        comms[0].send(np.ones(LARGE), 1, stream=on[0])
        comms[1].recv(np.ones(LARGE), 0, stream=on[1])
    one = message(comms, LARGE)
    assert comms[0].elapsed == pytest.approx(one.lead + 2 * float(one.busy.seconds.max()))
    assert comms[0].elapsed > 1.8 * one.seconds


@pytest.mark.parametrize("accelerators, machine", [
    (list(range(8)), "mi300x-8"),  # two halves of one node, every pair has its own link
    (list(range(16)), CLUSTER),  # two nodes
    ([0, 1, 8, 9], CLUSTER),
])  # fmt: skip
def test_collectives_on_disjoint_links_do_not_slow_each_other(accelerators, machine):
    comms = ranks(accelerators, machine)
    n = len(comms)
    halves = [c.split(c.rank * 2 // n) for c in comms]
    one = halves[0].plan("allreduce", LARGE, "double").time
    for half in (halves[: n // 2], halves[n // 2 :]):
        reduce_all(half, LARGE)
    assert [c.elapsed for c in comms] == pytest.approx([one] * n)


def test_a_message_beside_a_collective_that_leaves_its_link_alone_is_not_slowed():
    comms = ranks(4)
    front = [c.split(0 if c.rank < 2 else None) for c in comms]
    reduce_all(front[:2], LARGE)
    comms[2].send(np.ones(LARGE), 3)
    comms[3].recv(np.ones(LARGE), 2)
    assert front[0].elapsed == pytest.approx(front[0].last_plan.time)
    assert comms[2].default_stream.elapsed == pytest.approx(message(comms, LARGE, 2, 3).seconds)


def test_threads_take_the_modelled_time_that_one_thread_takes():
    def body(comm: Communicator) -> float:
        held, side = np.ones(LARGE // 8), comm.stream()
        comm.allreduce(held, held)
        comm.allreduce(np.ones(LARGE // 8), held, stream=side)
        comm.barrier(stream=side)
        return comm.elapsed

    comms = ranks(4)
    sides = [c.stream() for c in comms]
    for on in (None, sides):
        reduce_all(comms, LARGE // 8, on)
    for comm, side in zip(comms, sides):
        comm.barrier(stream=side)
    assert rccl.run(body, "mi300x-8", nranks=4) == pytest.approx([comms[0].elapsed] * 4)


def test_a_stream_of_another_rank_is_refused():
    comms = ranks()
    theirs = comms[1].stream("mine")
    for call in (
        lambda: comms[0].allreduce(np.ones(1), np.ones(1), stream=theirs),
        lambda: comms[0].send(np.ones(1), 1, stream=theirs),
        lambda: comms[0].barrier(stream=comms[1].default_stream),
        lambda: comms[0].advance(1.0, stream=theirs),
    ):
        with pytest.raises(InvalidArgument, match="is not one of rank 0: streams belong to one"):
            call()


@pytest.mark.parametrize("stream", ["side", 0, object])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(InvalidArgument, match="at rank 0 is none of"):
        ranks(1)[0].barrier(stream=stream)


def test_a_stream_serves_all_communicators_of_its_rank():
    comms = ranks()
    others, sides = [c.split(0) for c in comms], [c.stream() for c in comms]
    reduce_all(comms, streams=sides)
    reduce_all(others, streams=sides)
    assert sides[0].elapsed == pytest.approx(2 * seconds_of(comms))


# ---- events ---------------------------------------------------------------------------------


def test_an_event_happens_when_what_was_on_its_stream_is_done():
    comm = ranks(1)[0]
    comm.advance(2.0)
    event = comm.default_stream.record()
    comm.advance(3.0)
    assert event.query() and (event.time, comm.elapsed) == (2.0, 5.0)


def test_the_time_between_events_is_that_of_what_lies_between():
    comms = ranks()
    first = comms[0].default_stream.record()
    reduce_all(comms)
    second = comms[0].default_stream.record()
    assert first.elapsed(second) == pytest.approx(seconds_of(comms))
    assert second.elapsed(first) == -first.elapsed(second)


def test_a_stream_waits_for_an_event_of_another():
    comm = ranks(1)[0]
    side = comm.stream()
    comm.advance(2.0)
    side.wait(comm.default_stream.record())
    comm.advance(10.0)
    comm.advance(1.0, stream=side)
    assert side.elapsed == 3.0


def test_an_event_of_the_past_delays_nothing():
    comm = ranks(1)[0]
    side, early = comm.stream(), comm.default_stream.record()
    comm.advance(2.0, stream=side)
    side.wait(early)
    comm.advance(1.0, stream=side)
    assert side.elapsed == 3.0


def test_an_event_carries_the_time_its_host_has_waited_to_another_rank():
    comms = ranks()
    side = comms[0].stream()
    comms[0].advance(5.0, stream=side)
    side.synchronize()
    event = comms[0].default_stream.record()  # nothing on this stream, but the host is at 5 s
    comms[1].default_stream.wait(event)
    comms[1].advance(1.0)
    assert event.time == 5.0 and comms[1].default_stream.elapsed == 6.0


def test_an_event_carries_on_what_its_stream_has_waited_for():
    comms = ranks(3)
    comms[0].advance(4.0)
    first = comms[0].default_stream.record()
    comms[1].default_stream.wait(first)
    comms[2].default_stream.wait(comms[1].default_stream.record())
    comms[2].advance(1.0)
    assert comms[2].default_stream.elapsed == 5.0


def test_a_call_behind_an_event_that_has_not_happened_does_not_move_data_early():
    comms = ranks()
    side, results, held = comms[0].stream(), [np.zeros(1), np.zeros(1)], np.zeros(1)
    comms[0].recv(held, 1, stream=side)
    event = side.record()
    comms[0].default_stream.wait(event)
    for comm, result in zip(comms, results):
        comm.allreduce(held if comm.rank == 0 else np.ones(1), result)
    assert not event.query() and not any(r.any() for r in results)
    with pytest.raises(InvalidUsage, match="elapsed of default stream: wait for an event has not"):
        _ = comms[0].default_stream.elapsed
    with pytest.raises(InvalidUsage, match=r"time of an event of .*: recv\(.*has not run yet"):
        _ = event.time
    back = comms[1].stream()
    comms[1].send(np.full(1, 7.0), 0, stream=back)
    assert event.query() and [r[0] for r in results] == [8.0, 8.0]
    moved = message(comms, 1, 1, 0).seconds
    assert comms[0].elapsed == pytest.approx(moved + seconds_of(comms, 1))


def test_computing_behind_an_event_that_has_not_happened_starts_after_it():
    comms = ranks()
    side = comms[0].stream()
    comms[0].recv(np.ones(1), 1, stream=side)
    comms[0].default_stream.wait(side.record())
    comms[0].advance(1.0)
    comms[1].advance(2.0)
    comms[1].send(np.ones(1), 0)
    moved = message(comms, 1, 1, 0).seconds
    assert comms[0].default_stream.elapsed == pytest.approx(2.0 + moved + 1.0)


def test_several_streams_may_wait_for_one_event():
    comm = ranks(1)[0]
    comm.advance(1.0)
    event, sides = comm.default_stream.record(), [comm.stream() for _ in range(3)]
    for k, side in enumerate(sides):
        side.wait(event)
        comm.advance(float(k), stream=side)
    assert [side.elapsed for side in sides] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("event", [None, "event", 3.0])
def test_what_is_no_event_is_refused_and_the_stream_stays_good(event):
    comm = ranks(1)[0]
    with pytest.raises(InvalidArgument, match="is not an event of Stream"):
        comm.default_stream.wait(event)
    with pytest.raises(InvalidArgument, match="is not an event of Stream"):
        comm.default_stream.record().elapsed(event)
    comm.advance(1.0)
    assert comm.elapsed == 1.0


def test_events_of_threads_wait_for_each_other():
    events = {}

    def body(comm: Communicator) -> float:
        if comm.rank == 0:
            comm.advance(3.0)
            events[0] = comm.default_stream.record()
        comm.barrier()
        side = comm.stream()
        side.wait(events[0])
        comm.advance(1.0, stream=side)
        return side.elapsed

    assert rccl.run(body, "mi300x-8", nranks=3) == [4.0] * 3


# ---- the host -------------------------------------------------------------------------------


def test_nothing_starts_on_any_stream_before_the_time_the_host_has_waited_for():
    comm = ranks(1)[0]
    side = comm.stream()
    comm.advance(2.0)
    comm.synchronize()
    comm.advance(1.0, stream=side)
    assert side.elapsed == 3.0


@pytest.mark.parametrize("what", ["stream", "event"])
def test_the_host_may_wait_for_one_stream_or_one_event(what):
    comm = ranks(1)[0]
    side, later = comm.stream(), comm.stream()
    comm.advance(2.0, stream=side)
    comm.advance(9.0)
    assert (side if what == "stream" else side.record()).synchronize() == 2.0
    comm.advance(1.0, stream=later)
    assert later.elapsed == 3.0


def test_the_time_of_a_split_communicator_counts_from_its_making_and_for_its_rank():
    comms = ranks(4)
    reduce_all(comms)
    before = comms[0].elapsed  # the hosts wait
    parts = [c.split(c.rank // 2, key=-c.rank) for c in comms]
    assert [p.elapsed for p in parts] == [0.0] * 4
    reduce_all([parts[1], parts[0]])
    after = parts[0].last_plan.time
    assert [p.elapsed for p in parts] == pytest.approx([after, after, 0.0, 0.0])
    assert [c.elapsed for c in comms] == pytest.approx([before + after] * 2 + [before] * 2)


# ---- a group that is only simulated ---------------------------------------------------------

CALLS = ("allreduce", "allgather", "alltoall", "reduce_scatter", "barrier", "alltoallv",
         "allgatherv", "reduce_scatterv", "messages", "put")  # fmt: skip


class Group:
    """A group of calls of all ranks, which may be made again."""

    def __init__(self, comms: list[Communicator], drawn: list[tuple[str, int, int]]) -> None:
        self.comms, self.drawn = comms, drawn
        self.streams = [[c.default_stream, c.stream()] for c in comms]
        self.windows = [c.register_window(np.zeros(5000)) for c in comms]

    def call(self, order: list[int]) -> None:
        """Make all calls, rank by rank in this order."""
        for r in order:
            for name, size, which in self.drawn:
                self._one(self.comms[r], name, size, self.streams[r][which])

    def _one(self, comm: Communicator, name: str, size: int, stream) -> None:
        n, r = comm.nranks, comm.rank
        uneven = [size * (k % 3) for k in range(n)]
        if name == "barrier":
            comm.barrier(stream=stream)
        elif name in ("allreduce", "allgather", "alltoall", "reduce_scatter"):
            many = n if name in ("alltoall", "reduce_scatter") else 1
            out = n if name in ("allgather", "alltoall") else 1
            getattr(comm, name)(np.ones(many * size), np.ones(out * size), stream=stream)
        elif name == "alltoallv":
            sends = [size * ((r + k) % 3) for k in range(n)]  # symmetric: what i sends j sends back
            comm.alltoallv(np.ones(sum(sends)), sends, None, np.ones(sum(sends)), sends, None,
                           stream=stream)  # fmt: skip
        elif name == "allgatherv":
            comm.allgatherv(np.ones(uneven[r]), np.ones(sum(uneven)), uneven, stream=stream)
        elif name == "reduce_scatterv":
            comm.reduce_scatterv(np.ones(sum(uneven)), np.ones(uneven[r]), uneven, stream=stream)
        elif name == "put":
            comm.put_signal(np.ones(size), (r + 1) % n, self.windows[r], stream=stream)
        else:
            comm.send(np.ones(size), (r + 1) % n, stream=stream)
            comm.recv(np.ones(size), (r - 1) % n, stream=stream)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 3, 5, 8, 12]), st.integers(0, 11), st.lists(
    st.tuples(st.sampled_from(CALLS), st.sampled_from([0, 1, 5000]), st.integers(0, 1)),
    min_size=1, max_size=4))  # fmt: skip
def test_a_simulated_group_takes_what_the_launch_then_takes(n, turn, drawn):
    comms = ranks(n, CLUSTER)
    group, order = Group(comms, drawn), [(r + turn) % n for r in range(n)]
    before = comms[0].elapsed
    with rccl.group() as one:
        group.call(order)
        told = one.simulate()
    assert comms[0].elapsed == before
    with rccl.group():
        group.call(order)
    assert max(c.elapsed for c in comms) - before == pytest.approx(told, rel=1e-9)


def test_a_simulated_group_launches_nothing():
    comms, results = ranks(), [np.zeros(3), np.zeros(3)]
    with rccl.group() as one:
        for comm, result in zip(comms, results):
            comm.allreduce(np.ones(3), result)
        comms[0].send(np.ones(3), 1)
        assert one.simulate() > 0
    assert not results[0].any() and comms[0].elapsed == 0.0 and comms[0].last_plan is None
    reduce_all(comms)  # and what comes after meets nothing of it
    assert comms[0].elapsed == pytest.approx(seconds_of(comms))


def test_group_simulate_end_closes_the_group_without_a_launch():
    comms = ranks()
    rccl.group_start()
    reduce_all(comms)
    assert rccl.group_simulate_end() == seconds_of(comms) and comms[0].elapsed == 0.0


def test_an_empty_group_takes_no_time():
    with rccl.group() as one:
        assert one.simulate() == 0.0


def test_a_simulated_uneven_exchange_does_not_depend_on_the_order_of_the_ranks():
    comms = ranks([0, 1, 8], CLUSTER)
    counts = [[0, 9000, 1], [5, 0, 0], [0, 0, 0]]

    def call(order: list[int]) -> float:
        with rccl.group() as one:
            for r in order:
                into = [row[r] for row in counts]
                comms[r].alltoallv(np.ones(9001), counts[r], None, np.ones(9001), into, None)
            return one.simulate()

    assert call([0, 1, 2]) == call([2, 1, 0]) == call([1, 2, 0])


def test_a_thread_simulates_the_group_as_if_all_ranks_called_the_same():
    def body(comm: Communicator) -> tuple[float, float]:
        with rccl.group() as one:
            comm.alltoall(np.ones(4000), np.ones(4000))
            told = one.simulate()
        comm.barrier()
        return told, comm.elapsed

    plan = ranks(4)[0].plan("alltoall", 1000, "double")
    for told, spent in rccl.run(body, "mi300x-8", nranks=4):
        assert told == plan.time and spent < told
