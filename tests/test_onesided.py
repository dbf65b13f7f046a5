"""Windows, puts and signals: where they land, who waits for them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, Config, WaitSignalDesc, Window, WindowFlag
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.errors import Deadlock, InvalidArgument, InvalidUsage, RcclTimeout
from rccl_py.timing import exchange

MACHINE = "mi300x-8-x16-leaf-spine"


def ranks(n: int = 2, **more: object) -> list[Communicator]:
    return Communicator.init_all(MACHINE, n, config=Config(flight_dir="", **more))


def windows(comms: list[Communicator], count: int = 8, dtype="f8") -> tuple[list, list[Window]]:
    """Return every rank's buffer, and its window."""
    buffers = [np.zeros(count, dtype) for _ in comms]
    return buffers, [c.register_window(b) for c, b in zip(comms, buffers)]


@pytest.fixture
def pair() -> list[Communicator]:
    return ranks()


# ---- what lands -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("count", [0, 1, 101])
def test_every_rank_puts_into_the_next_and_waits_for_the_one_before(n, count):
    def body(comm: Communicator) -> np.ndarray:
        held = np.full(count, -1.0)
        window = comm.register_window(held)
        comm.put_signal(np.full(count, float(comm.rank)), (comm.rank + 1) % n, window)
        comm.wait_signal(WaitSignalDesc((comm.rank - 1) % n))
        return held

    found = rccl.run(body, MACHINE, nranks=n)
    assert all((found[r] == (r - 1) % n).all() for r in range(n))


@pytest.mark.parametrize("name", DTYPES)
def test_every_data_type_lands_to_the_bit(pair, name):
    dtype = dtype_named(name)
    buffers, (mine, _) = windows(pair, 5, dtype)
    data = np.arange(1, 4).astype(dtype)
    pair[0].put_signal(data, 1, mine, 2)
    assert buffers[1].tobytes() == np.array([0, 0, 1, 2, 3]).astype(dtype).tobytes()


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_an_offset_counts_elements_of_what_is_put(pair, offset):
    buffers, (mine, _) = windows(pair, 8, "f8")
    pair[0].put_signal(np.array([7], np.float32), 1, mine, offset)
    assert buffers[1].view(np.float32)[offset] == 7 and np.count_nonzero(buffers[1]) == 1


def test_a_rank_may_put_into_its_own_window(pair):
    buffers, (mine, _) = windows(pair)
    pair[0].put_signal(np.ones(2), 0, mine, 3)
    pair[0].wait_signal(WaitSignalDesc(0))
    assert buffers[0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    pair[0].synchronize()


def test_windows_may_differ_in_size_and_number(pair):
    sizes = [(2, 3), (5, 0)]
    buffers = [[np.zeros(k) for k in row] for row in sizes]
    held = [[pair[r].register_window(buffers[r][w]) for r in range(2)] for w in range(2)]
    pair[0].put(np.full(5, 1.0), 1, held[0][0])
    pair[1].put(np.full(3, 2.0), 0, held[1][1])
    assert buffers[1][0].tolist() == [1] * 5 and buffers[0][1].tolist() == [2] * 3
    assert not buffers[0][0].any()


def test_a_put_is_there_when_a_later_signal_of_its_rank_is(pair):
    buffers, (mine, _) = windows(pair)
    pair[1].wait_signal(WaitSignalDesc(0))
    pair[0].put(np.ones(8), 1, mine)
    with pytest.raises(InvalidUsage, match=r"wait_signal.*: rank 0 did not make its part"):
        pair[1].synchronize()
    pair[1].wait_signal(WaitSignalDesc(0))
    pair[0].signal(1)
    pair[1].synchronize()
    assert buffers[1].all()


def test_a_call_behind_a_wait_runs_when_the_signal_has_come(pair):
    buffers, (mine, _) = windows(pair, 1)
    target = np.zeros(1)
    pair[1].wait_signal(WaitSignalDesc(0))
    pair[1].send(buffers[1], 0)
    side = pair[0].stream()
    pair[0].recv(target, 1, stream=side)
    assert target == 0
    pair[0].put_signal(np.full(1, 9.0), 1, mine)
    assert target == 9


# ---- signals --------------------------------------------------------------------------------


def is_done(comm: Communicator) -> bool:
    """Return whether all the rank has called has run."""
    return comm.default_stream.record().query()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_wait_takes_as_many_signals_as_it_says(pair, count):
    pair[1].wait_signal(WaitSignalDesc(0, count))
    for k in range(count):
        assert not is_done(pair[1]), f"after {k}"
        pair[0].signal(1)
    assert is_done(pair[1])


@pytest.mark.parametrize("first", ["signals", "waits"])
def test_signals_are_counted_whichever_comes_first(pair, first):
    def signal() -> None:
        for _ in range(3):
            pair[0].signal(1)

    if first == "signals":
        signal()
    for count in (2, 1):
        pair[1].wait_signal(WaitSignalDesc(0, count))
    if first == "waits":
        signal()
    assert is_done(pair[1])
    pair[1].wait_signal(WaitSignalDesc(0))
    assert not is_done(pair[1]), "all three are taken"
    pair[0].signal(1)


def test_a_wait_for_several_peers_takes_all_of_them():
    comms = ranks(4)
    comms[0].wait_signal([WaitSignalDesc(peer, peer) for peer in (1, 2, 3)])
    for peer, times in ((3, 3), (1, 1), (2, 1)):
        for _ in range(times):
            comms[peer].signal(0)
    assert not is_done(comms[0])
    comms[2].signal(0)
    assert is_done(comms[0])


def test_two_descriptors_of_one_peer_take_both_their_signals(pair):
    pair[1].wait_signal([WaitSignalDesc(0), WaitSignalDesc(0, 2)])
    pair[0].signal(1)
    pair[0].signal(1)
    assert not is_done(pair[1])
    pair[0].signal(1)
    assert is_done(pair[1])


def test_signals_of_other_ranks_indices_and_contexts_do_not_count():
    comms = ranks(3, num_rma_sig=2, num_rma_ctx=2)
    comms[0].wait_signal(WaitSignalDesc(1, 1, 1, 1))
    comms[2].signal(0, 1, 1)
    for index, context in ((0, 0), (0, 1), (1, 0)):
        comms[1].signal(0, index, context)
    assert not is_done(comms[0])
    comms[1].signal(0, 1, 1)
    assert is_done(comms[0])


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([1, 2, 3, 5]), st.data())
def test_waits_that_ask_for_what_was_signalled_are_all_done(n, data):
    comms = ranks(n)
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    signals = data.draw(st.lists(pairs, max_size=12))
    late = data.draw(st.integers(0, len(signals)))
    for a, b in signals[:late]:
        comms[a].signal(b)
    for target in range(n):
        wanted = [a for a, b in signals if b == target]
        if wanted:
            descs = [WaitSignalDesc(a, wanted.count(a)) for a in sorted(set(wanted))]
            comms[target].wait_signal(descs, stream=comms[target].stream())
    for a, b in signals[late:]:
        comms[a].signal(b)
    for comm in comms:
        comm.synchronize()


def test_a_wait_ends_when_the_last_signal_has_arrived(pair):
    pair[0].advance(3.0)
    pair[0].signal(1)
    pair[1].wait_signal(WaitSignalDesc(0))
    pair[1].advance(1.0)
    ends = [np.array([k]) for k in (0, 1, 0)]
    arrived = 3.0 + exchange(pair[0].fabric, *ends).seconds
    assert pair[1].default_stream.elapsed == pytest.approx(arrived + 1.0)


# ---- waits that never end -------------------------------------------------------------------


def test_a_wait_nobody_signals_is_named_when_its_time_is_over():
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.wait_signal(WaitSignalDesc(2))
        comm.barrier()

    what = "waited 0.05 s in wait_signal.*peer=2.*for rank 2|rank 0 of .* in wait_signal"
    with pytest.raises((RcclTimeout, Deadlock), match=what):
        rccl.run(body, "mi300x-8", nranks=3, timeout=0.05, config=Config(flight_dir=""))


def test_ranks_that_wait_for_each_other_s_signal_are_a_deadlock():
    def body(comm: Communicator) -> None:
        comm.wait_signal(WaitSignalDesc(1 - comm.rank))
        comm.signal(1 - comm.rank)

    told = r"rank \d of \S+ waits in wait_signal\(peer=\d\) at test_onesided.py:\d+ for rank \d; "
    with pytest.raises(Deadlock, match=told + "rank"):
        rccl.run(body, "mi300x-8", nranks=2, timeout=0.5, config=Config(flight_dir=""))
    with pytest.raises(Deadlock, match=told):
        for comm in ranks():
            body(comm)


def test_a_put_without_signal_frees_nobody_so_it_makes_no_circle(pair):
    buffers, held = windows(pair)
    side = pair[1].stream()
    pair[0].wait_signal(WaitSignalDesc(1))
    pair[0].barrier()
    pair[1].barrier(stream=side)
    pair[1].put(np.ones(8), 0, held[1], stream=side)
    pair[1].signal(0)
    assert buffers[0].all()


def test_synchronize_names_the_peers_whose_signals_are_missing():
    comms = ranks(4)
    comms[0].wait_signal([WaitSignalDesc(p) for p in (1, 2, 3)])
    comms[2].signal(0)
    with pytest.raises(InvalidUsage, match=r"rank 0 of .*wait_signal.*: ranks 1, 3 did not"):
        comms[0].synchronize()


# ---- refusals -------------------------------------------------------------------------------


def put(comm: Communicator, window: object, count: int = 1, offset: object = 0, peer: object = 1,
        **more: object) -> None:  # fmt: skip
    comm.put_signal(np.ones(count), peer, window, offset, **more)


REFUSED: dict[str, tuple[Callable[[Communicator, Window], object], str]] = {
    "beyond the end": (lambda c, w: put(c, w, 1, 8), r"bytes 64\.\.71 of the window of rank 1"),
    "across the end": (lambda c, w: put(c, w, 5, 4), r"which has 64"),
    "a negative offset": (lambda c, w: put(c, w, 1, -1), "peer_window_offset -1: expected 0"),
    "half an offset": (lambda c, w: put(c, w, 1, 0.5), "peer_window_offset 0.5 is a float"),
    "a peer too high": (lambda c, w: put(c, w, peer=2), "peer 2: expected 0 to 1"),
    "no peer": (lambda c, w: put(c, w, peer=None), "peer None"),
    "no window": (lambda c, w: put(c, None), "peer_window None is no window"),
    "a buffer as window": (lambda c, w: put(c, w.own), "is no window of register_window"),
    "no buffer": (lambda c, w: c.put(None, 1, w), "put at rank 0: local_buffer is a NoneType"),
    "a signal too high": (lambda c, w: put(c, w, signal_index=1), "signal_index 1: expected 0"),
    "a context too high": (lambda c, w: put(c, w, context=1), "context 1: expected 0"),
    "flags": (lambda c, w: put(c, w, flags=1), "flags 1: expected 0"),
    "a signal to nobody": (lambda c, w: c.signal(-1), "signal at rank 0: peer -1"),
    "no descriptor": (lambda c, w: c.wait_signal([]), "one or more WaitSignalDesc"),
    "a number as descriptor": (lambda c, w: c.wait_signal([1]), "1 is not a WaitSignalDesc"),
    "a wait for nobody": (lambda c, w: c.wait_signal(WaitSignalDesc(2)), "peer 2: expected 0"),
    "a wait for nothing": (lambda c, w: c.wait_signal(WaitSignalDesc(1, 0)), "op_count 0"),
    "a wait for signal 1": (lambda c, w: c.wait_signal(WaitSignalDesc(1, 1, 1)), "signal_index 1"),
}  # fmt: skip


@pytest.mark.parametrize("do, what", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_put_or_waited_for_is_refused_and_nothing_lands(pair, do, what):
    buffers, (mine, _) = windows(pair)
    with pytest.raises(InvalidArgument, match=what):
        do(pair[0], mine)
    assert not buffers[1].any()
    pair[0].put_signal(np.ones(8), 1, mine)
    pair[1].wait_signal(WaitSignalDesc(0))
    assert buffers[1].all()


def test_the_last_elements_may_be_put(pair):
    buffers, (mine, _) = windows(pair)
    pair[0].put(np.ones(4), 1, mine, 4)
    pair[0].put(np.ones(0), 1, mine, 8)
    assert buffers[1].tolist() == [0] * 4 + [1] * 4


def test_a_window_some_ranks_have_not_registered_is_refused(pair):
    half = pair[0].register_window(np.zeros(4))
    assert not half.is_valid
    with pytest.raises(InvalidArgument, match="not registered by all ranks yet"):
        pair[0].put(np.ones(1), 1, half)


def test_a_closed_window_is_refused(pair):
    _, (mine, other) = windows(pair)
    mine.close()
    assert not mine.is_valid and other.is_valid and "closed" in repr(mine)
    with pytest.raises(InvalidArgument, match="is closed"):
        pair[0].put(np.ones(1), 1, mine)


def test_a_window_of_another_communicator_is_refused(pair):
    _, (mine, _) = windows(pair)
    other = [c.split(0) for c in pair]
    with pytest.raises(InvalidArgument, match="or of another communicator"):
        other[0].put(np.ones(1), 1, mine)


def test_a_window_is_registered_by_all_ranks_at_their_turn(pair):
    _, first = windows(pair)
    _, second = windows(pair)
    assert [w.number for w in (*first, *second)] == [0, 0, 1, 1]
    assert second[0].sizes == [64, 64]


@pytest.mark.parametrize("flags", [WindowFlag.COLL_SYMMETRIC, WindowFlag.STRICT_ORDERING, 3, None])
def test_the_flags_of_nccl_are_taken(pair, flags):
    held = [c.register_window(np.zeros(4), flags) for c in pair]
    assert all(w.is_valid for w in held)


@pytest.mark.parametrize("flags", [4, -1])
def test_other_flags_are_refused(pair, flags):
    with pytest.raises(InvalidArgument, match="register_window at rank 0: flags"):
        pair[0].register_window(np.zeros(4), flags)


def test_read_only_memory_is_no_window(pair):
    held = np.zeros(4)
    held.flags.writeable = False
    with pytest.raises(InvalidArgument, match="register_window at rank 0: buffer is read-only"):
        pair[0].register_window(held)
