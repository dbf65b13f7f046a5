"""run(): a thread a rank; a rank that fails, leaves or differs is named to the others."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers import SIZES

import rccl_py as rccl
from rccl_py import Communicator
from rccl_py.errors import CollectiveMismatch, RcclError, RcclTimeout, RemoteError

F32 = np.float32


@pytest.mark.parametrize("n", SIZES[:5])
def test_run_returns_every_rank_s_result_in_order(n):
    def body(comm: Communicator, factor: int) -> list[float]:
        held = np.full(3, comm.rank * factor, F32)
        comm.allreduce(held, held)
        return [comm.rank, float(held[0])]

    assert rccl.run(body, "mi300x-8", 2, nranks=n) == [[r, n * (n - 1.0)] for r in range(n)]


def test_run_takes_groups_of_calls():
    def body(comm: Communicator) -> bool:
        x, y = np.ones(2), np.ones(2)
        with rccl.group():
            comm.allreduce(x, x)
            comm.allreduce(y, y, op=rccl.MAX)
            assert (x == 1).all()
        return bool((x == 4).all() and (y == 1).all())

    assert rccl.run(body, "mi300x-8", nranks=4) == [True] * 4


def test_a_rank_that_raises_ends_the_others_and_its_error_is_raised():
    seen: list[RcclError] = []

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("on purpose")
        try:
            comm.allreduce(np.ones(2), np.ones(2))
        except RcclError as error:
            seen.append(error)
            raise

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        rccl.run(body, "mi300x-8", nranks=3)
    assert len(seen) == 2 and all(isinstance(e, RemoteError) for e in seen)
    assert "rank 1, which failed with ZeroDivisionError: on purpose" in str(seen[0])


def test_a_rank_that_returns_early_is_named_to_those_who_wait_for_it():
    def body(comm: Communicator) -> None:
        if comm.rank != 2:
            comm.allreduce(np.ones(2), np.ones(2))

    with pytest.raises(RemoteError, match="for rank 2, which has returned from its function"):
        rccl.run(body, "mi300x-8", nranks=4)


def test_ranks_in_threads_that_call_different_things_all_learn_it():
    def body(comm: Communicator) -> None:
        comm.broadcast(np.ones(2), np.ones(2), root=comm.rank % 2)

    with pytest.raises(CollectiveMismatch, match=r"call 0 differs between ranks .*root=0.*root=1"):
        rccl.run(body, "mi300x-8", nranks=2)


def test_a_rank_that_stays_away_longer_than_the_timeout_is_named():
    failed = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            failed.wait()
            return
        try:
            comm.allreduce(np.ones(2), np.ones(2))
        finally:
            failed.set()

    with pytest.raises(RcclTimeout, match=r"rank 0 waited 0 s in call 0, allreduce.* for rank 1"):
        rccl.run(body, "mi300x-8", nranks=2, timeout=0.0)
