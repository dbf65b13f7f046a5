"""How communicators come to be, change and end: from init and split to abort and destroy."""

from __future__ import annotations

import pickle
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import SIZES

import rccl_py as rccl
from rccl_py import CommShrinkFlag, Communicator, Config, Result, UniqueId, get_unique_id
from rccl_py.disagreement import first_disagreement, read_record
from rccl_py.errors import (
    CollectiveMismatch,
    Deadlock,
    InvalidArgument,
    InvalidUsage,
    RcclError,
    RcclTimeout,
    RemoteError,
)

NODE = "mi300x-8"
CLUSTER = "mi300x-8-x16-leaf-spine"
QUIET = Config(flight_dir="")
NONBLOCKING = Config(flight_dir="", blocking=False)
SOON = Config(flight_dir="", timeout=0.05)


def ranks(n: int = 2, config: Config = QUIET) -> list[Communicator]:
    return Communicator.init_all(CLUSTER, n, config=config)


def in_threads(*bodies: Callable[[], object]) -> list[object]:
    """Run each in a thread; return what each returned, or the error it raised."""
    found: list[object] = [None] * len(bodies)

    def run(k: int) -> None:
        try:
            found[k] = bodies[k]()
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def total(comm: Communicator) -> float:
    """Return the sum of one and the ranks' numbers, over a communicator whose ranks all call."""
    held = np.array([comm.rank + 1.0])
    comm.allreduce(held, held)
    return float(held[0])


def works(comms: list[Communicator]) -> bool:
    """Return whether communicators of one thread reduce."""
    held = [np.array([comm.rank + 1.0]) for comm in comms]
    for comm, one in zip(comms, held):
        comm.allreduce(one, one)
    n = len(comms)
    return all(one[0] == n * (n + 1) / 2 for one in held)


# ---- unique ids -----------------------------------------------------------------------------


def test_unique_ids_differ():
    assert len({get_unique_id() for _ in range(20)}) == 20


@pytest.mark.parametrize("how", ["bytes", "as_bytes", "ndarray", "pickle"])
def test_an_id_travels_by_any_means(how):
    uid = get_unique_id()
    if how == "bytes":
        arrived = UniqueId.from_bytes(bytes(uid))
    elif how == "as_bytes":
        arrived = UniqueId(uid.as_bytes)
    elif how == "pickle":
        arrived = pickle.loads(pickle.dumps(uid))
    else:
        arrived = get_unique_id(empty=True)
        arrived.as_ndarray[:] = uid.as_ndarray
    assert arrived == uid and hash(arrived) == hash(uid) and len(bytes(arrived)) == 128


def test_bytes_that_are_no_id_are_refused():
    with pytest.raises(InvalidArgument, match="a unique id has 128 bytes, found 5"):
        UniqueId.from_bytes(b"short")


# ---- init -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_threads_meet_by_an_id(n):
    uid = get_unique_id()

    def rank(r: int) -> Callable[[], object]:
        def body() -> tuple[int, int, float]:
            comm = Communicator.init(n, r, uid, QUIET, topology=CLUSTER if r == 0 else None)
            return comm.rank, comm.nranks, total(comm)

        return body

    assert in_threads(*map(rank, range(n))) == [(r, n, n * (n + 1) / 2) for r in range(n)]


@pytest.mark.parametrize("n", SIZES)
def test_one_thread_makes_all_ranks_in_a_group(n):
    uid = get_unique_id()
    with rccl.group():
        comms = [Communicator.init(n, r, uid, QUIET) for r in reversed(range(n))]
    assert [c.rank for c in comms] == list(reversed(range(n)))
    assert works(comms)


def test_a_null_communicator_is_initialised_once():
    comm = Communicator()
    comm.initialize(1, 0, get_unique_id(), QUIET, topology=NODE)
    assert comm.rank == 0 and comm.is_valid and total(comm) == 1
    with pytest.raises(InvalidArgument, match="initialised already"):
        comm.initialize(1, 0, get_unique_id())


def test_several_ids_are_taken_the_first_is_where_ranks_meet():
    ids = [get_unique_id() for _ in range(2)]
    with rccl.group():
        comms = [Communicator.init(2, r, ids, QUIET) for r in range(2)]
    assert works(comms)


def test_without_a_machine_ranks_are_on_mi300x_nodes():
    with rccl.group():
        uid = get_unique_id()
        comms = [Communicator.init(12, r, uid, QUIET) for r in range(12)]
    assert comms[0].fabric.name.startswith("mi300x-8") and comms[11].properties.n_lsa_teams == 2


def test_ranks_that_do_not_come_are_named():
    uid = get_unique_id()
    found = in_threads(*(lambda r=r: Communicator.init(4, r, uid, SOON) for r in (0, 2)))
    assert all(isinstance(e, RcclTimeout) for e in found)
    assert "init of 4 ranks: ranks 1, 3 of 4 did not come within 0.05 s" in str(found[0])
    with pytest.raises(RcclTimeout, match="ranks 1, 3"):  # too late
        Communicator.init(4, 1, uid, SOON)


def test_ranks_that_say_different_numbers_of_ranks_are_all_told():
    uid = get_unique_id()
    found = in_threads(*(lambda r=r: Communicator.init(3 + r % 2, r, uid, QUIET) for r in range(3)))
    assert [type(e) for e in found] == [CollectiveMismatch] * 3
    assert "says nranks=" in str(found[0]) and "with the same unique id" in str(found[0])


def test_a_rank_that_comes_twice_is_refused_and_the_others_are_waited_for():
    uid = get_unique_id()
    with rccl.group():
        first = Communicator.init(2, 0, uid, QUIET)
        with pytest.raises(InvalidUsage, match="rank 0 has come twice"):
            Communicator.init(2, 0, uid, QUIET)
        second = Communicator.init(2, 1, uid, QUIET)
    assert works([first, second])


def test_a_machine_too_small_is_told_to_all_ranks():
    uid = get_unique_id()
    found = in_threads(*(lambda r=r: Communicator.init(9, r, uid, QUIET, topology=NODE)
                         for r in range(9)))  # fmt: skip
    assert all(isinstance(e, InvalidArgument) for e in found)
    assert all("9 ranks asked for" in str(e) for e in found)


# ---- split ----------------------------------------------------------------------------------


@pytest.mark.parametrize("colors, keys, groups", [
    ([0, 0, 0, 0, 0], [0] * 5, [[0, 1, 2, 3, 4]]),
    ([1, 0, 1, 0, 1], [0] * 5, [[0, 2, 4], [1, 3]]),
    ([0] * 5, [5, 4, 3, 2, 1], [[4, 3, 2, 1, 0]]),
    ([0] * 5, [1, 0, 1, 0, 1], [[1, 3, 0, 2, 4]]),
    ([7, None, 7, -1, 2**31 - 1], [0, 0, -1, 0, 0], [[2, 0], [4]]),
    ([None] * 5, [0] * 5, []),
])  # fmt: skip
@pytest.mark.parametrize("threads", [False, True])
def test_a_split_groups_by_colour_and_orders_by_key_then_rank(colors, keys, groups, threads):
    def part(comm: Communicator) -> Communicator:
        return comm.split(colors[comm.rank], keys[comm.rank])

    parts = rccl.run(part, NODE, nranks=5) if threads else [part(comm) for comm in ranks(5)]
    assert [r for r, p in enumerate(parts) if p.is_valid] == sorted(r for g in groups for r in g)
    for group in groups:
        assert [parts[r].rank for r in group] == list(range(len(group)))
        assert {parts[r].nranks for r in group} == {len(group)}
        assert threads or works([parts[r] for r in group])


@pytest.mark.parametrize("color", [-2, 2**31, 0.5, "a", True])
def test_a_colour_that_is_none_is_refused(color):
    with pytest.raises(InvalidArgument, match="split at rank 1: color"):
        ranks()[1].split(color)


@pytest.mark.parametrize("key", [2**31, -(2**31) - 1, "a", None])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(InvalidArgument, match="split: key"):
        ranks()[1].split(0, key)


def test_a_rank_without_a_colour_holds_a_null_communicator():
    parts = [c.split(None if c.rank else 0) for c in ranks()]
    assert (parts[0].is_valid, parts[1].is_valid) == (True, False)
    assert repr(parts[1]) == "<Communicator null>" and total(parts[0]) == 1
    with pytest.raises(InvalidArgument, match="allreduce: the communicator is null"):
        parts[1].allreduce(np.ones(1), np.ones(1))


def test_a_split_is_pending_in_one_thread_until_all_have_called():
    comms = ranks(4)
    first = comms[2].split(0)
    assert repr(first) == "<Communicator pending>" and first.get_async_error() is Result.IN_PROGRESS
    with pytest.raises(InvalidArgument, match=r"split of .* is in progress: ranks 0, 1, 3 did not"):
        _ = first.rank
    with pytest.raises(InvalidArgument, match=r"barrier: split of .* in progress"):
        first.barrier()
    rest = [comms[r].split(0) for r in (0, 1, 3)]
    assert first.rank == 2 and works([rest[0], rest[1], first, rest[2]])


def test_a_rank_may_split_twice_before_the_others_have_once_and_names_differ():
    comms = ranks(3)
    first = [comms[0].split(0), comms[0].split(0, key=1)]
    rest = [[c.split(0), c.split(0)] for c in comms[1:]]
    assert works([first[0], *(r[0] for r in rest)])
    assert [c.rank for c in (first[1], *(r[1] for r in rest))] == [2, 0, 1]
    assert first[0].name != first[1].name


def test_a_split_against_a_collective_is_a_mismatch():
    comms = ranks(2)
    comms[0].split(0)
    with pytest.raises(
        CollectiveMismatch, match=r"rank 0 called split\(\) .*rank 1 called barrier"
    ):
        comms[1].barrier()


def test_splits_nest_and_all_levels_go_on_working():
    def body(comm: Communicator) -> list[float]:
        half = comm.split(comm.rank // 4)
        quarter = half.split(half.rank % 2, key=-half.rank)
        alone = quarter.split(quarter.rank)
        return [total(c) for c in (alone, quarter, half, comm)] + [quarter.rank]

    found = rccl.run(body, NODE)
    assert found == [[1.0, 3.0, 10.0, 36.0, 1 - r % 4 // 2] for r in range(8)]


def test_a_split_in_a_group_is_made_when_the_group_ends():
    def body(comm: Communicator) -> float:
        with rccl.group():
            part = comm.split(comm.rank % 2)
        return total(part)

    assert rccl.run(body, NODE, nranks=4) == [3.0] * 4


def test_parts_keep_their_accelerators_and_their_parent_s_config():
    comms = ranks(12, Config(flight_dir="", comm_name="world", max_ctas=1))
    parts = [c.split(c.rank % 2, config=Config(comm_name="odd" if c.rank % 2 else None))
             for c in comms]  # fmt: skip
    assert [p.device for p in parts] == list(range(12))
    assert (parts[0].name, parts[1].name) == ("world/split0", "odd")
    assert parts[0].config.max_ctas == 1 and parts[11].properties.n_lsa_teams == 2


@pytest.mark.parametrize("first", ["fails", "splits"])
def test_a_rank_that_fails_before_a_split_is_named_to_those_who_wait_in_it(first):
    seen: list[RcclError] = []
    failed = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            core = comm._member.core
            while first == "splits" and len(core._met.get(0, ())) < 2:
                time.sleep(0.001)
            failed.set()
            raise KeyError("on purpose")
        try:
            if first == "fails":
                failed.wait()
            comm.split(0)
        except RcclError as error:
            seen.append(error)
            raise

    with pytest.raises(KeyError):
        rccl.run(body, NODE, nranks=3, config=QUIET)
    assert [type(e) for e in seen] == [RemoteError] * 2
    assert "split()" in str(seen[0]) and "for rank 1, which failed with" in str(seen[0])


def test_a_rank_that_stays_away_from_a_split_is_named():
    done = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            done.wait()
            return
        try:
            comm.split(0)
        finally:
            done.set()

    with pytest.raises(RcclTimeout, match=r"waited 0.05 s in call 0, split.* for rank 1"):
        rccl.run(body, NODE, nranks=2, timeout=0.05, config=QUIET)


def test_parts_wait_as_long_as_their_parent():
    done = threading.Event()

    def body(comm: Communicator) -> None:
        part = comm.split(0)
        if comm.rank == 1:
            done.wait()
            return
        try:
            part.barrier()
        finally:
            done.set()

    with pytest.raises(RcclTimeout, match=r"waited 0.05 s in call 0, barrier.* for rank 1"):
        rccl.run(body, NODE, nranks=2, timeout=0.05, config=QUIET)


# ---- shrink and grow ------------------------------------------------------------------------


@pytest.mark.parametrize("n, excluded", [(2, [0]), (3, [1]), (5, [0, 4]), (8, [1, 3, 5, 7])])
def test_a_shrunk_communicator_has_the_ranks_that_stay_in_their_order(n, excluded):
    comms = ranks(n)
    staying = [c for c in comms if c.rank not in excluded]
    smaller = [c.shrink(excluded[::-1]) for c in staying]
    assert [s.rank for s in smaller] == list(range(n - len(excluded)))
    assert [s.device for s in smaller] == [c.device for c in staying]
    assert works(smaller) and works(comms)


def test_ranks_that_exclude_different_ranks_are_told():
    comms = ranks(3)
    comms[0].shrink([2])
    with pytest.raises(CollectiveMismatch, match=r"rank 0 excludes \[2\], rank 1 excludes \[0\]"):
        comms[1].shrink([0])


def test_a_shrink_with_abort_frees_who_waits_and_leaves_out_who_does_not_come():
    over = threading.Event()

    def body(comm: Communicator) -> float:
        if comm.rank == 2:
            over.wait()
            return 0.0
        if comm.rank == 0:
            with pytest.raises(RemoteError, match=r"rank 1 of .* shrinks it with flag ABORT"):
                comm.allreduce(np.ones(1), np.ones(1))  # rank 2 never comes
        try:
            smaller = comm.shrink([2], flag=CommShrinkFlag.ABORT)
            return total(smaller)
        finally:
            if comm.rank == 0:
                over.set()

    assert rccl.run(body, NODE, nranks=3, config=QUIET) == [3.0, 3.0, 0.0]


def test_a_failed_communicator_shrinks_only_with_abort():
    comms = ranks(3)
    comms[2].abort()
    with pytest.raises(RemoteError, match="shrink at rank 0: the communicator has failed"):
        comms[0].shrink([2])
    assert works([c.shrink([2], flag=CommShrinkFlag.ABORT) for c in comms[:2]])


def test_a_failed_communicator_does_not_split():
    comms = ranks(3)
    comms[2].abort()
    with pytest.raises(RemoteError, match="split at rank 0: the communicator has failed"):
        comms[0].split(0)


@pytest.mark.parametrize("old, new", [(1, 2), (2, 3), (3, 8), (5, 12)])
def test_a_grown_communicator_has_old_ranks_first_and_new_ones_on_free_accelerators(old, new):
    comms = Communicator.init_all(rccl.load(NODE, nodes=2), old, config=QUIET)
    uid = comms[0].get_unique_id()
    grown = [c.grow(new) for c in comms]
    grown += [Communicator().grow(new, uid, r) for r in range(old, new)]
    assert [g.rank for g in grown] == list(range(new))
    assert sorted(g.device for g in grown) == list(range(new))
    assert works(grown) and works(comms)


def test_threads_grow_into_a_communicator():
    first = Communicator.init(1, 0, get_unique_id(), QUIET, topology=NODE)
    lead = first.get_unique_id()
    found = in_threads(
        lambda: total(first.grow(3)),
        *(lambda r=r: total(Communicator().grow(3, lead, r, QUIET)) for r in (1, 2)),
    )
    assert found == [6.0] * 3


def test_a_machine_that_is_full_cannot_grow():
    comms = Communicator.init_all(NODE, 8, config=QUIET)
    uid = comms[0].get_unique_id()
    for comm in comms:
        comm.grow(9)
    with pytest.raises(InvalidUsage, match=r"9 ranks asked for, but .* has 8 accelerators"):
        Communicator().grow(9, uid, 8)


def test_an_id_that_leads_nowhere_is_refused():
    with pytest.raises(InvalidArgument, match="leads to no communicator of this process"):
        Communicator().grow(2, get_unique_id(), 1)


# ---- revoke, abort, finalize, destroy -------------------------------------------------------


def test_a_revoked_communicator_splits_shrinks_and_is_destroyed_but_calls_nothing():
    comms = ranks(3)
    comms[1].revoke()
    for comm in comms:
        with pytest.raises(InvalidUsage, match="is revoked; only split, shrink and destroy"):
            comm.barrier()
    assert works([c.split(0) for c in comms]) and works([c.shrink([2]) for c in comms[:2]])
    for comm in comms:
        comm.destroy()


def test_calls_of_a_group_that_is_revoked_before_its_end_do_not_run():
    comms, held = ranks(), [np.ones(1), np.ones(1)]
    with pytest.raises(InvalidUsage, match="is revoked"), rccl.group():
        for comm, one in zip(comms, held):
            comm.allreduce(one, one)
        comms[1].revoke()
    assert held == [1, 1]


def test_revoke_frees_who_waits():
    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            comm.revoke()
            return ""
        with pytest.raises(InvalidUsage) as caught:
            comm.allreduce(np.ones(1), np.ones(1))
        return str(caught.value)

    text = rccl.run(body, NODE, nranks=2, config=QUIET)[0]
    assert "revoke" in text


def test_abort_from_another_thread_frees_who_waits():
    uid, handles = get_unique_id(), []

    def waits() -> None:
        handles.append(Communicator.init(2, 0, uid, QUIET))
        handles[0].allreduce(np.ones(1), np.ones(1))

    def aborts() -> Communicator:
        other = Communicator.init(2, 1, uid, QUIET)
        while not handles or not handles[0].flight_record()["calls"]:
            time.sleep(0.001)
        handles[0].abort()
        return other

    error, other = in_threads(waits, aborts)
    assert isinstance(error, RemoteError) and "rank 0 of " in str(error)
    with pytest.raises(RemoteError, match="barrier at rank 1: the communicator has failed"):
        other.barrier()
    handles[0].abort()  # a second time is no error
    assert not handles[0].is_valid


def test_an_aborted_communicator_is_told_as_such():
    comms = ranks()
    comms[0].abort()
    assert repr(comms[0]).endswith(", aborted>")
    assert comms[1].get_async_error() is Result.REMOTE_ERROR
    assert "rank 0 of" in comms[1].get_last_error()


def test_finalize_names_what_is_in_flight():
    comms = ranks(3)
    comms[0].barrier()
    with pytest.raises(InvalidUsage, match=r"barrier\(\).*: ranks 1, 2 did not make it"):
        comms[1].finalize()


def test_a_finalized_communicator_may_be_asked_and_destroyed():
    comms = ranks()
    assert works(comms)
    for comm in comms:
        comm.finalize()
        assert comm.rank in (0, 1) and comm.is_valid and comm.elapsed > 0
        with pytest.raises(InvalidArgument, match="the communicator is finalized"):
            comm.barrier()
        comm.destroy()
        assert not comm.is_valid and repr(comm).endswith(", destroyed>")


def test_a_rank_that_destroys_what_others_wait_in_is_named():
    comms = ranks()
    comms[0].barrier()
    comms[1].destroy()
    with pytest.raises(RemoteError, match=r"rank 1 destroyed .* wait for it in call 0, barrier"):
        comms[0].barrier()


def test_parts_outlive_their_parent():
    comms = ranks()
    parts = [c.split(0) for c in comms]
    for comm in comms:
        comm.destroy()
    assert works(parts)


# ---- nonblocking ----------------------------------------------------------------------------


def test_a_nonblocking_init_is_in_progress_until_the_others_come():
    uid = get_unique_id()
    first = Communicator.init(2, 0, uid, NONBLOCKING, topology=NODE)
    assert first.get_async_error() is Result.IN_PROGRESS
    with pytest.raises(InvalidArgument, match="init of 2 ranks is in progress: rank 1 did not"):
        first.barrier()
    second = Communicator.init(2, 1, uid, NONBLOCKING)
    assert first.get_async_error() is second.get_async_error() is Result.SUCCESS


def test_a_nonblocking_call_is_in_progress_until_the_others_make_it():
    comms, held = ranks(2, NONBLOCKING), np.ones(1)
    assert comms[0].allreduce(held, held) is Result.IN_PROGRESS
    assert comms[0].get_async_error() is Result.IN_PROGRESS
    with pytest.raises(InvalidArgument, match="an earlier call is in progress: poll"):
        comms[0].barrier()
    assert held == 1
    comms[1].allreduce(np.ones(1), np.ones(1))
    assert comms[0].get_async_error() is Result.SUCCESS and held == 2
    assert [c.barrier() for c in comms] == [Result.IN_PROGRESS] * 2


def test_a_refused_nonblocking_call_leaves_no_call_in_progress():
    comms = ranks(2, NONBLOCKING)
    comms[0].barrier()
    with pytest.raises(InvalidArgument):
        comms[1].allreduce([1], np.ones(1))
    assert comms[0].get_async_error() is Result.SUCCESS
    held = [np.ones(1), np.ones(1)]
    for comm, one in zip(comms, held):
        comm.allreduce(one, one)
    assert held == [2, 2]


def test_a_nonblocking_group_is_in_progress_as_a_whole():
    comms, held = ranks(2, NONBLOCKING), [np.ones(1), np.ones(1)]
    rccl.group_start()
    assert comms[0].allreduce(held[0], held[0]) is None
    comms[0].barrier()
    assert rccl.group_end() is Result.IN_PROGRESS
    comms[1].allreduce(held[1], held[1])
    assert held == [2, 2] and comms[0].get_async_error() is Result.IN_PROGRESS
    comms[1].barrier()
    assert comms[0].get_async_error() is Result.SUCCESS


def test_an_error_of_a_nonblocking_call_is_polled():
    comms = ranks(2, NONBLOCKING)
    comms[0].broadcast(np.ones(1), np.ones(1), 0)
    with pytest.raises(CollectiveMismatch):
        comms[1].broadcast(np.ones(1), np.ones(1), 1)
    assert [c.get_async_error() for c in comms] == [Result.INVALID_USAGE] * 2


def test_blocking_and_nonblocking_calls_do_not_share_a_group():
    some, others = ranks(), ranks(2, NONBLOCKING)
    held = [np.ones(1), np.ones(1)]
    with rccl.group():
        for comm, one in zip(some, held):
            comm.allreduce(one, one)
        with pytest.raises(InvalidArgument, match="are in one group, but only one of them is"):
            others[0].barrier()
    assert held == [2, 2]


# ---- settings and questions -----------------------------------------------------------------


def test_a_communicator_is_called_by_its_name_in_messages():
    comms = ranks(2, Config(flight_dir="", comm_name="gradients"))
    comms[0].broadcast(np.ones(1), np.ones(1), 0)
    with pytest.raises(CollectiveMismatch, match="differs between ranks of gradients"):
        comms[1].broadcast(np.ones(1), np.ones(1), 1)
    assert comms[0].name == "gradients"


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_no_more_channels_are_taken_than_the_config_allows(most):
    free = ranks(8)[0].plan("allreduce", 1 << 24, "float")
    held = Communicator.init_all(CLUSTER, 8, algo="ring", config=Config(max_ctas=most))
    plan = held[0].plan("allreduce", 1 << 24, "float")
    assert plan.schedule.nchannels <= most and plan.time >= free.time


def test_a_thread_waits_as_long_as_the_config_says():
    uid, over = get_unique_id(), threading.Event()

    def waits() -> None:
        try:
            Communicator.init(2, 0, uid, SOON).barrier()
        finally:
            over.set()

    found = in_threads(waits, lambda: (Communicator.init(2, 1, uid, SOON), over.wait())[1])
    assert isinstance(found[0], RcclTimeout) and "rank 0 waited 0.05 s in call 0" in str(found[0])


@pytest.mark.parametrize("accelerators", [[0, 1, 8, 9, 16], [3], [7, 6, 5]])
def test_properties_tell_where_a_rank_is(accelerators):
    comms = Communicator.init_all(CLUSTER, accelerators, config=QUIET)
    for r, (comm, at) in enumerate(zip(comms, accelerators)):
        told = comm.properties
        assert (told.rank, told.n_ranks, comm.device) == (r, len(accelerators), at)
        assert (told.cuda_dev, told.nvml_dev) == (at % 8, at % 8)
        assert told.n_lsa_teams == len({a // 8 for a in accelerators})


def test_the_last_error_is_the_rank_s_own_until_the_communicator_fails():
    comms = ranks()
    assert [c.get_last_error() for c in comms] == ["", ""]
    with pytest.raises(InvalidArgument) as caught:
        comms[1].broadcast(np.ones(1), np.ones(1), 5)
    assert [c.get_last_error() for c in comms] == ["", str(caught.value)]
    comms[1].abort()
    assert "called abort()" in comms[0].get_last_error()


# ---- flight records -------------------------------------------------------------------------


def records(folder: Path) -> list[dict]:
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def test_a_mismatch_leaves_records_that_name_the_rank(tmp_path):
    comms = ranks(3, Config(flight_dir=str(tmp_path), comm_name="w"))
    assert works(comms)
    with pytest.raises(CollectiveMismatch) as caught:
        for comm in comms:
            comm.broadcast(np.ones(1), np.ones(1), int(comm.rank == 1))
    held = records(tmp_path)
    found = first_disagreement(held)
    assert (found.kind, found.communicator, found.seq) == ("differs", "w", 1)
    assert found.ranks == (1,) and found.fields == ("root",)
    assert [r["reason"] for r in held] == [str(caught.value)] * 3


def test_a_deadlock_leaves_records_of_all_communicators_of_the_circle(tmp_path):
    comms = ranks(2, Config(flight_dir=str(tmp_path), comm_name="w"))
    others = [c.split(0, config=Config(comm_name="o")) for c in comms]
    with pytest.raises(Deadlock):
        for calls in ((comms[0], others[0]), (others[1], comms[1])):
            for comm in calls:
                comm.barrier()
    held = records(tmp_path)
    assert {(r["communicator"], r["rank"]) for r in held} == {
        (name, rank) for name in "wo" for rank in range(2)}  # fmt: skip
    assert {r["calls"][-1]["site"].rpartition(":")[0] for r in held} == {__file__}
    assert {r["calls"][-1]["state"] for r in held} == {"queued", "running"}


def test_a_deadlock_of_messages_leaves_records_of_who_waits_for_whom(tmp_path):
    comms = ranks(2, Config(flight_dir=str(tmp_path)))
    with pytest.raises(Deadlock):
        for comm in comms:
            comm.recv(np.ones(1), 1 - comm.rank)
            comm.send(np.ones(1), 1 - comm.rank)
    found = first_disagreement(records(tmp_path))
    assert (found.kind, found.ranks) == ("waits", (0, 1)) and "recv" in found.text


def test_a_timeout_leaves_records_that_name_the_missing_rank(tmp_path):
    over = threading.Event()

    def body(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank == 1:
            over.wait()
            return
        try:
            comm.allreduce(np.ones(4), np.ones(4))
        finally:
            over.set()

    with pytest.raises(RcclTimeout):
        rccl.run(body, NODE, nranks=3, timeout=0.05, config=Config(flight_dir=str(tmp_path)))
    found = first_disagreement(records(tmp_path))
    assert (found.kind, found.seq, found.ranks) == ("missing", 1, (1,))


@pytest.mark.parametrize("chosen, written", [("", 0), (None, 2)])
def test_records_go_to_the_temporary_files_unless_none_are_wanted(
    chosen, written, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ranks(2, Config(flight_dir=chosen))[0].abort()
    assert len(list(tmp_path.rglob("*.json"))) == written


def test_the_record_of_a_rank_may_be_asked_for_at_any_time():
    comms = ranks()
    assert works(comms)
    comms[0].send(np.ones(3), 1)
    calls = comms[0].flight_record()["calls"]
    assert [(c["collective"], c["state"], c["kind"]) for c in calls] == [
        ("allreduce", "done", "collective"), ("send", "running", "p2p")]  # fmt: skip
    assert calls[1]["bytes"] == 24 and calls[1]["site"].startswith(f"{__file__}:")
