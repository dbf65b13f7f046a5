"""Misuse and what it gives: NCCL's own table, one row a misuse, with the C API's result code.

What is left of the communicator afterwards is part of the row: GOOD (InvalidArgument: the call had
no effect), ENDED (every later call tells the first failure again), or nothing to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from xml_pieces import PAIR

import rccl_py as rccl
from rccl_py import Communicator, Config, get_unique_id
from rccl_py.errors import (
    CollectiveMismatch,
    Deadlock,
    FormatError,
    InvalidArgument,
    InvalidUsage,
    RcclError,
    RcclTimeout,
    RemoteError,
)

GOOD, ENDED, NOTHING = "good", "ended", "nothing"
NODE = "mi300x-8"
Comms = list[Communicator]


def ranks(n: int = 2, **settings: object) -> Comms:
    """Return ranks of a new communicator that writes no flight records."""
    return Communicator.init_all(NODE, n, config=Config(flight_dir="", **settings))


def four() -> np.ndarray:
    return np.ones(4, np.float32)


class Row(NamedTuple):
    """do: the misuse, given the communicators. error: its class. after: what is left of them."""

    do: Callable[[Comms], object]
    error: type[RcclError]
    code: int
    after: str = GOOD


def wrong_argument(do: Callable[[Comms], object], after: str = GOOD) -> Row:
    return Row(do, InvalidArgument, 4, after)


def wrong_usage(do: Callable[[Comms], object], after: str = GOOD) -> Row:
    return Row(do, InvalidUsage, 5, after)


# ---- what takes several lines to do wrong ---------------------------------------------------


def use_a_closed_reduction(comms: Comms) -> None:
    op = comms[0].create_pre_mul_sum(2.0, np.float32)
    comms[0].destroy_red_op(op)
    comms[0].allreduce(four(), four(), op)


def destroy_a_reduction_twice(comms: Comms) -> None:
    op = comms[0].create_pre_mul_sum(2.0)
    for _ in range(2):
        comms[0].destroy_red_op(op)


def use_anothers_reduction(comms: Comms) -> None:
    comms[0].allreduce(four(), four(), comms[1].create_pre_mul_sum(2.0, np.float32))


def call_before_a_nonblocking_call_is_done(_: Comms) -> None:
    comms = ranks(blocking=False)
    comms[0].allreduce(four(), four())
    try:
        comms[0].allreduce(four(), four())
    finally:
        comms[1].allreduce(four(), four())


def group_blocking_and_nonblocking(comms: Comms) -> None:
    other = ranks(blocking=False)
    with rccl.group():
        comms[0].allreduce(four(), four())
        other[0].allreduce(four(), four())


def call_a_communicator_others_have_not_come_to(_: Comms) -> None:
    uid, settings = get_unique_id(), Config(blocking=False)
    Communicator.init(2, 0, uid, settings, topology=NODE).allreduce(four(), four())


def twice(method: str) -> Callable[[Comms], None]:
    def do(comms: Comms) -> None:
        for _ in range(2):
            getattr(comms[0], method)()

    return do


def after_that(first: str, then: str) -> Callable[[Comms], None]:
    def do(comms: Comms) -> None:
        getattr(comms[0], first)()
        getattr(comms[0], then)()

    return do


def call_a_revoked_communicator(comms: Comms) -> None:
    comms[0].revoke()
    comms[1].allreduce(four(), four())


def message_to_myself(kind: str, grouped: bool) -> Callable[[Comms], None]:
    def do(comms: Comms) -> None:
        if not grouped:
            getattr(comms[0], kind)(four(), 0)
            return
        with rccl.group():
            getattr(comms[0], kind)(four(), 0)
            comms[0].send(four(), 1)

    return do


def leave_a_rank_out_of_a_group(comms: Comms) -> None:
    with rccl.group():
        comms[0].allreduce(four(), four())


def differ(calls: list[Callable[[Communicator], object]]) -> Callable[[Comms], None]:
    def do(comms: Comms) -> None:
        for comm, call in zip(comms, calls):
            call(comm)

    return do


def swap_two_communicators(comms: Comms) -> None:
    others = [comm.split(0) for comm in comms]
    for pair in (comms, others):
        pair[0].allreduce(four(), four())
    for pair in (others, comms):
        pair[1].allreduce(four(), four())


def exchange_crosswise_without_a_group(comms: Comms) -> None:
    for comm in comms:
        comm.recv(four(), 1 - comm.rank)
        comm.send(four(), 1 - comm.rank)


def leave_no_algorithm(_: Comms) -> None:
    for comm in Communicator.init_all(NODE, 2, algo="nvls", config=Config(flight_dir="")):
        comm.allreduce(four(), four())


def stay_away(_: Comms) -> None:
    settings = Config(timeout=0.01, flight_dir="")
    Communicator.init(2, 0, get_unique_id(), settings, topology=NODE)


def be_aborted(comms: Comms) -> None:
    comms[0].abort()
    comms[1].allreduce(four(), four())


def grow_a_null_one_with_rank(rank: int) -> Callable[[Comms], object]:
    return lambda comms: Communicator().grow(3, comms[0].get_unique_id(), rank)


ROWS: dict[str, Row] = {
    # ---- NULL and broken handles --------------------------------------------------------------
    "a null communicator": wrong_argument(lambda c: Communicator().allreduce(four(), four())),
    "a null buffer": wrong_argument(lambda c: c[0].allreduce(None, four())),
    "a buffer that is no memory": wrong_argument(lambda c: c[0].allreduce([1.0], four())),
    "a destroyed communicator": wrong_argument(after_that("destroy", "barrier"), NOTHING),
    "an aborted communicator": wrong_argument(after_that("abort", "barrier"), NOTHING),
    # ---- roots, types, reductions, peers ------------------------------------------------------
    "a root too high": wrong_argument(lambda c: c[0].broadcast(four(), four(), 2)),
    "a root below 0": wrong_argument(lambda c: c[0].reduce(four(), four(), root=-1)),
    "an unknown data type": wrong_argument(lambda c: c[0].allreduce(*[np.ones(2, complex)] * 2)),
    "an unknown reduction": wrong_argument(lambda c: c[0].allreduce(four(), four(), "xor")),
    "a destroyed reduction": wrong_argument(use_a_closed_reduction),
    "a reduction destroyed twice": wrong_argument(destroy_a_reduction_twice),
    "a built-in reduction destroyed": wrong_argument(lambda c: c[0].destroy_red_op(rccl.SUM)),
    "a reduction of another rank": wrong_argument(use_anothers_reduction),
    "a pre-multiplied sum of another type": wrong_argument(
        lambda c: c[0].allreduce(four(), four(), c[0].create_pre_mul_sum(2.0, "half"))
    ),
    "a send to a rank that is none": wrong_argument(lambda c: c[0].send(four(), 2)),
    "a recv from a rank that is none": wrong_argument(lambda c: c[0].recv(four(), -1)),
    # ---- making communicators -----------------------------------------------------------------
    "a rank not below nranks": wrong_argument(lambda c: Communicator.init(2, 2, get_unique_id())),
    "a negative rank": wrong_argument(lambda c: Communicator.init(2, -1, get_unique_id())),
    "no ranks": wrong_argument(lambda c: Communicator.init(0, 0, get_unique_id())),
    "no unique id": wrong_argument(lambda c: Communicator.init(1, 0, None)),
    "a negative number of devices": wrong_argument(lambda c: Communicator.init_all(NODE, -1)),
    "a negative device": wrong_argument(lambda c: Communicator.init_all(NODE, [0, -1])),
    "one device twice": wrong_usage(lambda c: Communicator.init_all(NODE, [1, 1])),
    "a config that is none": wrong_argument(lambda c: c[0].split(0, config={})),
    "a config value out of range": wrong_argument(lambda c: Config(max_ctas=0)),
    "a call before others have come": wrong_argument(call_a_communicator_others_have_not_come_to),
    "a call before the last is done": wrong_argument(call_before_a_nonblocking_call_is_done),
    "blocking and nonblocking in one group": wrong_argument(group_blocking_and_nonblocking),
    # ---- life cycle ---------------------------------------------------------------------------
    "finalize twice": wrong_argument(twice("finalize"), NOTHING),
    "destroy twice": wrong_argument(twice("destroy"), NOTHING),
    "a call after finalize": wrong_argument(after_that("finalize", "barrier"), NOTHING),
    "shrink without ranks to exclude": wrong_argument(lambda c: c[0].shrink([])),
    "shrink by the caller": wrong_argument(lambda c: c[0].shrink([0])),
    "shrink by a rank that is none": wrong_argument(lambda c: c[0].shrink([2])),
    "grow to no more ranks": wrong_argument(lambda c: c[0].grow(2)),
    "grow with a rank by an existing one": wrong_argument(lambda c: c[0].grow(3, None, 0)),
    "grow without an id by a new one": wrong_argument(lambda c: Communicator().grow(3, None, 2)),
    "grow without a rank by a new one": wrong_argument(
        lambda c: Communicator().grow(3, c[0].get_unique_id())
    ),
    "grow with the rank of another": wrong_argument(grow_a_null_one_with_rank(1)),
    "grow with a rank too high": wrong_argument(grow_a_null_one_with_rank(3)),
    "revoke with flags": wrong_argument(lambda c: c[0].revoke(1)),
    "revoke twice": wrong_argument(twice("revoke"), NOTHING),
    "revoke after finalize": wrong_argument(after_that("finalize", "revoke"), NOTHING),
    "revoke after destroy": wrong_argument(after_that("destroy", "revoke"), NOTHING),
    "a collective on a revoked one": wrong_usage(call_a_revoked_communicator, NOTHING),
    # ---- groups -------------------------------------------------------------------------------
    "group_end without group_start": wrong_usage(lambda c: rccl.group_end()),
    "group_simulate_end without one": wrong_usage(lambda c: rccl.group_simulate_end()),
    "simulate outside the block": wrong_usage(lambda c: rccl.group().simulate()),
    "a send to oneself alone": wrong_usage(message_to_myself("send", False)),
    "a recv from oneself alone": wrong_usage(message_to_myself("recv", False)),
    "a send to oneself without its recv": wrong_usage(message_to_myself("send", True)),
    "a recv from oneself without its send": wrong_usage(message_to_myself("recv", True)),
    "a rank left out of a group": wrong_usage(leave_a_rank_out_of_a_group),
    # ---- restrictions and machines ------------------------------------------------------------
    "NCCL_ALGO not known": wrong_usage(lambda c: Communicator.init_all(NODE, algo="rings")),
    "NCCL_PROTO not known": wrong_usage(lambda c: Communicator.init_all(NODE, proto="LL256")),
    "NCCL_ALGO without a collective": wrong_usage(
        lambda c: Communicator.init_all(NODE, algo="ring;tree")
    ),
    "no algorithm left": wrong_usage(leave_no_algorithm),
    "more ranks than the machine has": wrong_argument(lambda c: Communicator.init_all(NODE, 9)),
    # ---- what NCCL does not detect: there a hang, or wrong data ----------------------------------
    "counts that differ": Row(differ([
        lambda c: c.allreduce(four(), four()),
        lambda c: c.allreduce(np.ones(5, "f4"), np.ones(5, "f4"))]),
        CollectiveMismatch, 5, ENDED),
    "types that differ": Row(differ([
        lambda c: c.allreduce(four(), four()), lambda c: c.allreduce(np.ones(4), np.ones(4))]),
        CollectiveMismatch, 5, ENDED),
    "reductions that differ": Row(differ([
        lambda c: c.allreduce(four(), four()), lambda c: c.allreduce(four(), four(), "max")]),
        CollectiveMismatch, 5, ENDED),
    "an order that differs": Row(differ([
        lambda c: (c.barrier(), c.broadcast(four(), four())),
        lambda c: (c.broadcast(four(), four()), c.barrier())]),
        CollectiveMismatch, 5, ENDED),
    "ends of a message that differ": Row(differ([
        lambda c: c.send(four(), 1), lambda c: c.recv(np.ones(5, "f4"), 0)]),
        CollectiveMismatch, 5, ENDED),
    "two communicators crosswise": Row(swap_two_communicators, Deadlock, 5, ENDED),
    "messages crosswise": Row(exchange_crosswise_without_a_group, Deadlock, 5, ENDED),
    # ---- other ranks --------------------------------------------------------------------------
    "a rank that aborts": Row(be_aborted, RemoteError, 6, NOTHING),
    "a rank that does not come": Row(stay_away, RcclTimeout, 8),
}  # fmt: skip

ABSENT = {
    "memory of another device": "buffers are NumPy arrays: there is one memory",
    "symmetric registration that differs": "a window may have another size at every rank",
    "a config struct without magic": "a Config is a Python object, always initialised",
    "simulation info not initialised": "group.simulate returns a number, there is no struct",
    "ranks of different NCCL versions": "all ranks are in one process, of one library",
    "several ranks on one GPU allowed by the environment": "the library reads no environment",
    "CUDA-graph capture mixed in a group": "there are no CUDA graphs",
    "a network interface that is not found": "there is no network: ranks find each other by id",
    "NCCL_COMM_ID that cannot be parsed": "the library reads no environment",
    "an unreadable graph file device": "there are no graph files, see test_nccl_xml_errors.py",
}  # fmt: skip


@pytest.mark.parametrize("name", [
    *ROWS, *(pytest.param(name, marks=pytest.mark.skip(reason=why)) for name, why in ABSENT.items())
])  # fmt: skip
def test_misuse_gives_its_result_code_and_leaves_of_the_communicator_what_nccl_leaves(name):
    row, comms = ROWS[name], ranks()
    with pytest.raises(row.error) as caught:
        row.do(comms)
    assert type(caught.value) is row.error and caught.value.code == row.code
    if row.after == GOOD:
        results = [np.zeros(4, np.float32) for _ in comms]
        for comm, result in zip(comms, results):
            comm.allreduce(four(), result)
        assert all((result == 2).all() for result in results)
    elif row.after == ENDED:
        for comm in comms:
            with pytest.raises(row.error, match="has failed and takes no more calls") as again:
                comm.barrier()
            assert type(again.value) is row.error and str(caught.value) in str(again.value)
            assert comm.get_async_error() == row.code
            assert comm.get_last_error() == str(caught.value)


def test_a_topology_file_of_another_version_is_refused_as_a_format_error(read):
    with pytest.raises(FormatError, match="version '7' is not known") as caught:
        read(PAIR.replace('version="2"', 'version="7"').replace('version="1"', 'version="7"'))
    assert caught.value.code == 4  # NCCL: invalid usage


@pytest.mark.parametrize("collective", rccl.COLLECTIVES)
def test_a_count_of_zero_is_a_success_that_does_nothing(collective):
    comms, empty = ranks(3), [np.zeros(0, np.float32) for _ in range(6)]
    for k, comm in enumerate(comms):
        getattr(comm, collective)(empty[2 * k], empty[2 * k + 1])
    assert comms[0].get_async_error() == 0 and comms[0].last_plan.collective == (
        {"reduce": "allreduce", "gather": "allgather"}.get(collective, collective))  # fmt: skip


def test_every_error_class_has_the_code_of_the_c_api():
    kinds = [RcclError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.code for kind in kinds if kind.__module__ == "rccl_py.errors"} == set(range(1, 9))


def test_a_group_ended_twice_leaves_no_group_open_nor_fewer_than_none():
    with pytest.raises(InvalidUsage, match="group_end without group_start"), rccl.group():
        rccl.group_end()
    with pytest.raises(KeyError), rccl.group():
        rccl.group_end()
        raise KeyError
    comms, held = ranks(), [four(), four()]
    with rccl.group():
        for comm, one in zip(comms, held):
            comm.allreduce(one, one)
        assert (held[0] == 1).all()
    assert (held[0] == 2).all()


def test_revoke_of_a_null_communicator_is_no_mistake():
    Communicator().revoke()
