"""Communicators: NCCL's semantics, and refusals that name the rank, the fact and the way out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import SIZES, blocks, buffers_of, expected, has_input, has_output
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, ReduceOp
from rccl_py.collectives import COLLECTIVES
from rccl_py.errors import (
    CollectiveMismatch,
    InvalidArgument,
    InvalidUsage,
    Result,
)

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("allreduce", "reduce", "reduce_scatter")
F32 = np.float32


@cache
def ranks_of(n: int, machine: str = "mi300x-8-x16-leaf-spine") -> list[Communicator]:
    return Communicator.init_all(machine, n)


@pytest.fixture
def pair() -> list[Communicator]:
    """Two ranks nobody else uses."""
    return Communicator.init_all("mi300x-8", 2)


def call(comm: Communicator, collective: str, source, target, op="sum", root: int = 0) -> None:
    more = {"root": root} if collective in ROOTED else {}
    more |= {"op": op} if collective in REDUCING else {}
    getattr(comm, collective)(source, target, **more)


def vectors(n: int, count: int = 4, dtype=F32) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return ([np.arange(count, dtype=dtype) + r for r in range(n)],
            [np.zeros(count, dtype=dtype) for _ in range(n)])  # fmt: skip


# ---- results --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(list(COLLECTIVES)), st.sampled_from([*SIZES, 16]), st.integers(0, 40),
       st.sampled_from(list(ReduceOp)), st.sampled_from(["int32", "uint8", "int64", "float64"]),
       st.integers(0, 15), st.lists(st.booleans(), min_size=16, max_size=16))  # fmt: skip
def test_every_call_gives_what_numpy_gives(collective, n, count, op, dtype, root, placed):
    root, rng, kind = root % n, np.random.default_rng(count), np.dtype(dtype)
    many = blocks(collective, n)[0] * count
    inputs = [rng.integers(0, 9, many).astype(kind) for _ in range(n)]
    pairs = buffers_of(collective, inputs, root, placed[:n], 7)
    with rccl.group():
        for comm, (source, target) in zip(ranks_of(n), pairs):
            call(comm, collective, source, target, op, root)
    wanted = expected(collective, inputs, root, op.ufunc)
    for (_, target), result in zip(pairs, wanted):
        if result is not None and op is ReduceOp.AVG and collective in REDUCING:
            result = result // n if kind.kind in "iu" else result / n
        assert result is None or np.array_equal(target, result)


@pytest.mark.parametrize("n", SIZES)
def test_an_average_of_whole_numbers_truncates_towards_zero(n):
    outputs = [np.zeros(3, np.int32) for _ in range(n)]
    for comm, out in zip(ranks_of(n), outputs):
        comm.allreduce(np.array([-1, 0, 7], np.int32) * (comm.rank == 0), out, op="avg")
    assert all(out.tolist() == [int(-1 / n), 0, 7 // n] for out in outputs)


def test_arrays_of_several_dimensions_are_taken_as_they_lie_in_memory(pair):
    inputs, outputs = [np.ones((2, 3)), np.ones((3, 2))], [np.zeros(6), np.zeros((6, 1))]
    for comm, x, y in zip(pair, inputs, outputs):
        comm.allreduce(x, y)
    assert (outputs[0] == 2).all() and (outputs[1] == 2).all()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_buffer_a_rank_has_no_use_for_may_be_anything(collective):
    n, root = 3, 1
    for rank, comm in enumerate(ranks_of(n)):
        many_in, many_out = blocks(collective, n)
        source = np.ones(many_in * 2) if has_input(collective, rank, root) else "nothing"
        target = np.zeros(many_out * 2) if has_output(collective, rank, root) else None
        call(comm, collective, source, target, root=root)
    assert ranks_of(n)[0].last_plan.collective == collective


# ---- when a call runs -----------------------------------------------------------------------


def test_a_call_runs_when_the_last_rank_has_made_it(pair):
    (x, y), (a, b) = vectors(2)
    pair[1].allreduce(y, b)
    assert not b.any()
    pair[0].allreduce(x, a)
    assert a.tolist() == b.tolist() == [1, 3, 5, 7]


def test_calls_of_a_group_run_when_the_outermost_group_ends(pair):
    inputs, outputs = vectors(2)
    with rccl.group():
        with rccl.group():
            for comm, x, y in zip(pair, inputs, outputs):
                comm.allreduce(x, y)
        assert not outputs[0].any()
    assert outputs[0].any()


def test_ranks_may_queue_several_calls_one_after_the_other(pair):
    with rccl.group():
        for comm in pair:
            held = np.ones(3)
            comm.allreduce(held, held)
            comm.allreduce(held, held)
            comm.broadcast(held, held)
    assert held.tolist() == [4, 4, 4] and pair[0].last_plan.collective == "broadcast"


def test_a_group_whose_body_raises_launches_nothing(pair):
    inputs, outputs = vectors(2)
    with pytest.raises(KeyError), rccl.group():
        for comm, x, y in zip(pair, inputs, outputs):
            comm.allreduce(x, y)
        raise KeyError
    assert not outputs[0].any() and pair[0].elapsed == 0.0


def test_two_communicators_may_share_a_group():
    pairs = [Communicator.init_all(m, 2) for m in ("mi300x-8", "h100-8")]
    outputs = [vectors(2)[1] for _ in pairs]
    with rccl.group():
        for rank in range(2):
            for comms, results in zip(pairs, outputs):
                comms[rank].allreduce(np.ones(4, F32), results[rank])
    assert all((y == 2).all() for results in outputs for y in results)


def test_a_rank_that_makes_no_call_is_named_at_the_end_of_the_group(pair):
    held = np.ones(2, F32)
    missing = pytest.raises(
        InvalidUsage, match=r"call 0, allreduce\(count=2.*: rank 1 did not make it"
    )
    with missing, rccl.group():
        pair[0].allreduce(held, held)
    results = [np.zeros(2, F32) for _ in pair]
    for comm, result in zip(pair, results):  # and the communicator stays good
        comm.allreduce(held, result)
    assert [r.tolist() for r in results] == [[2, 2], [2, 2]]


@pytest.mark.parametrize("ask", ["elapsed", "last_plan"])
def test_asking_for_time_or_plan_while_a_rank_is_missing_names_it(ask):
    comms = Communicator.init_all("mi300x-8", 3)
    comms[1].allreduce(np.ones(2), np.ones(2))
    with pytest.raises(InvalidUsage, match="ranks 0, 2 did not make it"):
        getattr(comms[0], ask)


def test_time_adds_up_over_calls_and_the_last_plan_is_kept(pair):
    plans = []
    for count in (1, 1000):
        for comm in pair:
            comm.allgather(np.ones(count), np.ones(2 * count))
        plans.append(pair[1].last_plan)
    assert [p.block for p in plans] == [8.0, 8000.0]
    assert pair[0].elapsed == pytest.approx(sum(p.time for p in plans))


def test_plan_tells_what_a_call_would_do_and_moves_nothing(pair):
    told = pair[0].plan("all_reduce", 1000, "float")
    assert pair[0].last_plan is None and pair[0].elapsed == 0.0
    for comm in pair:
        comm.allreduce(np.ones(1000, F32), np.ones(1000, F32))
    assert pair[0].last_plan.time == told.time == pair[0].elapsed


# ---- refusals -------------------------------------------------------------------------------

X = np.zeros(8, F32)
STRIDED, READ_ONLY, SWAPPED = X[::2], np.zeros(4, F32), np.zeros(4, ">f4")
READ_ONLY.flags.writeable = False
BAD = {
    "not contiguous": ("allreduce", STRIDED, np.zeros(4, F32), {}, "sendbuf .*not contiguous"),
    "in Fortran's order": ("allreduce", np.zeros((2, 2), F32, order="F"), np.zeros(4, F32), {},
                           "sendbuf .*ascontiguousarray"),
    "read-only": ("allreduce", np.zeros(4, F32), READ_ONLY, {}, "recvbuf is read-only"),
    "two types": ("allreduce", np.zeros(4), np.zeros(4, F32), {}, "float64, recvbuf is float32"),
    "a type not carried": ("allreduce", np.zeros(4, complex), np.zeros(4, complex), {},
                           "complex128"),
    "truth values": ("allreduce", np.zeros(4, bool), np.zeros(4, bool), {}, "bool"),
    "another byte order": ("allreduce", SWAPPED, np.zeros(4, F32), {}, "byte order >f4"),
    "a list": ("allreduce", [1, 2], np.zeros(2), {}, "sendbuf is a list: a NumPy array"),
    "nothing": ("allreduce", None, np.zeros(2), {}, "sendbuf is a NoneType"),
    "two lengths": ("allreduce", np.zeros(5, F32), np.zeros(4, F32), {}, "sendbuf 5, recvbuf 4"),
    "a gathered length": ("allgather", np.zeros(3, F32), np.zeros(4, F32), {}, "at rank 1: .* fit"),
    "a length ranks do not divide": ("reduce_scatter", np.zeros(5, F32), np.zeros(2, F32), {},
                                     "sendbuf has 5 elements, which 2 ranks do not divide"),
    "overlap": ("allreduce", X[:6], X[2:], {}, "overlap; allreduce is in place when both are"),
    "overlap of alltoall": ("alltoall", X, X, {}, "overlap; alltoall has no in-place form"),
    "the wrong block": ("allgather", X[:4], X, {}, r"in place when the smaller is elements 4\.\.7"),
    "a root too high": ("broadcast", X, X, {"root": 2}, r"root 2 is not one of 0\.\.1"),
    "a root below 0": ("reduce", X, X, {"root": -1}, "root -1"),
    "a root that is no number": ("gather", X, X, {"root": "0"}, "root '0'"),
    "a root that is a truth value": ("scatter", X, X, {"root": True}, "root True"),
    "a reduction that is none": ("allreduce", X, X, {"op": "median"}, "'median' is not known: one"),
}  # fmt: skip


@pytest.mark.parametrize("collective, source, target, more, what", BAD.values(), ids=BAD)
def test_an_argument_that_cannot_be_is_refused_by_rank_and_the_communicator_stays_good(
    pair, collective, source, target, more, what
):
    with pytest.raises(InvalidArgument, match=what) as caught:
        getattr(pair[1], collective)(source, target, **more)
    assert caught.value.code is Result.INVALID_ARGUMENT
    inputs, outputs = vectors(2)
    for comm, x, y in zip(pair, inputs, outputs):
        comm.allreduce(x, y)
    assert outputs[0].tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("name", BAD)
def test_a_refusal_opens_with_the_collective_and_the_rank(pair, name):
    collective, source, target, more, _ = BAD[name]
    with pytest.raises(InvalidArgument, match=f"^{collective} at rank 1: "):
        getattr(pair[1], collective)(source, target, **more)


CALLS = {
    "counts": lambda c, k: c.allreduce(np.ones(4 + k), np.ones(4 + k)),
    "types": lambda c, k: c.allreduce(*(np.ones(4, [F32, "f8"][k]) for _ in range(2))),
    "reductions": lambda c, k: c.allreduce(np.ones(4), np.ones(4), op=["sum", "max"][k]),
    "roots": lambda c, k: c.broadcast(np.ones(4), np.ones(4), root=k),
    "collectives": lambda c, k: (c.allreduce if k else c.broadcast)(np.ones(4), np.ones(4)),
}  # fmt: skip


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_ranks_that_call_different_things_are_named_with_what_they_called(make):
    comms = Communicator.init_all("mi300x-8", 4)
    with pytest.raises(CollectiveMismatch, match=r"ranks 0, 1, 3 called .*; rank 2 called"):
        for comm in comms:
            make(comm, int(comm.rank == 2))


def test_a_destroyed_communicator_refuses_calls_and_says_so_when_printed(pair):
    assert repr(pair[1]) == "<Communicator rank 1 of 2 on mi300x-8>"
    pair[1].destroy()
    with pytest.raises(InvalidArgument, match="destroy at rank 1: it is destroyed already"):
        pair[1].destroy()
    with pytest.raises(InvalidArgument, match="allreduce at rank 1: the communicator is destroyed"):
        pair[1].allreduce(X, X)
    assert repr(pair[1]).endswith("on mi300x-8, destroyed>")


@pytest.mark.parametrize("n, what", [(0, "nranks 0: expected 1 to 8"), (9, "9 ranks asked for"),
                                     (-1, "nranks -1")])  # fmt: skip
def test_more_or_fewer_ranks_than_the_machine_has_are_refused(n, what):
    with pytest.raises(InvalidArgument, match=what):
        Communicator.init_all("mi300x-8", n)


@pytest.mark.parametrize("more, what", [
    ({"count": -1}, "count -1"), ({"dtype": "int7"}, "int7"), ({"root": 8}, "root 8"),
    ({"collective": "allmix"}, "'allmix' is not known"),
    ({"op": "median"}, "'median' is not known"),
])  # fmt: skip
def test_plan_refuses_what_a_call_would_refuse(more, what):
    asked = {"collective": "broadcast", "count": 1, "dtype": "float", **more}
    with pytest.raises(InvalidArgument, match=what):
        Communicator.init_all("mi300x-8")[0].plan(**asked)


def test_a_retry_after_a_refusal_moves_only_the_retry_s_buffers():
    comms = Communicator.init_all("mi300x-8", 4)
    results = [np.full(2, -7.0) for _ in comms]
    with pytest.raises(InvalidArgument, match="at rank 2"):
        for comm in comms:
            bad = [1] if comm.rank == 2 else np.full(2, 1000.0)
            comm.allreduce(bad, results[comm.rank])
    for comm in comms:
        comm.allreduce(np.ones(2), results[comm.rank])
    assert all((y == 4.0).all() for y in results)


def test_a_recvbuf_that_two_ranks_share_is_refused_and_a_sendbuf_is_not():
    comms, shared = Communicator.init_all("mi300x-8", 3), np.ones(4)
    with pytest.raises(InvalidArgument, match="overlap and one of them is written"), rccl.group():
        for comm in comms:
            comm.allreduce(np.ones(4), shared)
    results = [np.zeros(4) for _ in comms]
    with rccl.group():
        for comm, y in zip(comms, results):
            comm.allreduce(shared, y)
    assert all((y == 3.0).all() for y in results)


def test_a_group_that_fails_on_one_communicator_leaves_nothing_of_another():
    a, b = Communicator.init_all("mi300x-8", 2), Communicator.init_all("mi300x-8", 2)
    with pytest.raises(CollectiveMismatch), rccl.group():
        b[0].allreduce(np.full(2, 1000.0), np.zeros(2))
        for comm in a:
            comm.broadcast(np.ones(2), np.ones(2), comm.rank)
        b[1].allreduce(np.full(2, 1000.0), np.zeros(2))
    results = [np.zeros(2), np.zeros(2)]
    with rccl.group():
        for comm, y in zip(b, results):
            comm.allreduce(np.ones(2), y)
    assert all((y == 2.0).all() for y in results)
