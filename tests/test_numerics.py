"""What rounding does: accumulate holds partial results wider, what travels is of the data's type.

The slow twin runs the chosen schedule slot by slot, held in one type and rounded between ranks; it
knows how a schedule is laid out, and nothing of how the library runs one.
"""

from __future__ import annotations

from functools import cache, reduce

import numpy as np
import pytest
from helpers import SIZES, SlowBuffers, blocks, buffers_of
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, Config
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.errors import InvalidArgument
from rccl_py.schedule import COPY, Schedule

NARROW = ("half", "bfloat16", "f8e4m3", "f8e5m2")
FAMILIES = ("ring", "tree", "direct")
REDUCING = ("allreduce", "reduce", "reduce_scatter")
F32 = np.dtype(np.float32)
FLOATS = [name for name in DTYPES if dtype_named(name).kind not in "iu"]
WHOLES = [name for name in DTYPES if dtype_named(name).kind in "iu"]


@cache
def ranks(n: int, algo: str | None = None) -> list[Communicator]:
    return Communicator.init_all("mi300x-8-x16-leaf-spine", n, algo=algo,
                                 config=Config(flight_dir=""))  # fmt: skip


def inputs_of(n: int, count: int, dtype: np.dtype, seed: int = 0) -> list[np.ndarray]:
    """Return values whose sums do not fit the narrow types: thirds of small numbers."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(-9, 10, count) / np.float32(3)).astype(dtype) for _ in range(n)]


def call(collective: str, comms: list[Communicator], pairs, op="sum", **more) -> None:
    """Let every rank make the call, the root being 0."""
    for comm, (source, target) in zip(comms, pairs):
        getattr(comm, collective)(source, target, op, **more,
                                  **{"root": 0} if collective == "reduce" else {})  # fmt: skip


class Rounding(SlowBuffers):
    """Slots held in a wide type; what goes to another rank is rounded to the data's type."""

    def __init__(self, schedule: Schedule, block: int, pairs, held: np.dtype, dtype: np.dtype):
        wide = [tuple(None if b is None else b.astype(held) for b in pair) for pair in pairs]
        super().__init__(schedule, block, wide, held, 77)
        self.outputs, self.dtype, self.held = [b for _, b in wide], dtype, held

    def run(self, schedule: Schedule, combine) -> list[np.ndarray | None]:
        """Run every step, all reads before all writes; return the outputs, rounded."""
        for step in schedule:
            columns = ("src", "dst", "src_slot", "dst_slot", "count", "op")
            rows = list(zip(*(getattr(step, c).tolist() for c in columns)))
            read = [(dst, dst_slot + i, op, self.slots[src][src_slot + i].copy() if src == dst
                     else self.slots[src][src_slot + i].astype(self.dtype).astype(self.held))
                    for src, dst, src_slot, dst_slot, count, op in rows
                    for i in range(count)]  # fmt: skip
            for dst, slot, op, moved in read:
                there = self.slots[dst][slot]
                there[...] = moved if op == COPY else combine(there, moved)
        return [None if out is None else out.astype(self.dtype) for out in self.outputs]


def rounded(schedule: Schedule, inputs: list[np.ndarray], held: np.dtype, combine=np.add):
    """Return every rank's output of a schedule by the slow twin."""
    n, many = schedule.nranks, blocks(schedule.collective, schedule.nranks)[0]
    pairs = buffers_of(schedule.collective, inputs, schedule.root, [False] * n, 77)
    twin = Rounding(schedule, len(inputs[0]) // many, pairs, held, inputs[0].dtype)
    with np.errstate(all="ignore"):
        return twin.run(schedule, combine)


# ---- against the slow twin ------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("held", ["float", None])
def test_an_allreduce_rounds_where_its_schedule_sends(family, name, held):
    dtype = dtype_named(name)
    for n in SIZES:
        comms = ranks(n, family)
        for count in (1, 37):
            inputs = inputs_of(n, count, dtype)
            pairs = buffers_of("allreduce", inputs, 0, [r % 2 == 1 for r in range(n)], 7)
            call("allreduce", comms, pairs, accumulate=held)
            schedule = comms[0].last_plan.schedule
            wanted = rounded(schedule, inputs, dtype if held is None else F32)
            for (_, found), twin in zip(pairs, wanted):
                assert found.tobytes() == twin.tobytes()


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(REDUCING), st.sampled_from(SIZES), st.sampled_from(NARROW),
       st.sampled_from(["half", "bfloat16", "float", "double"]), st.integers(0, 40),
       st.sampled_from(["sum", "prod", "max", "min"]), st.integers(0, 99))  # fmt: skip
def test_any_reduction_in_any_wider_type_rounds_where_its_schedule_sends(
    collective, n, name, held, count, op, seed
):
    dtype, wide = dtype_named(name), dtype_named(held)
    inputs = inputs_of(n, blocks(collective, n)[0] * count, dtype, seed)
    pairs = buffers_of(collective, inputs, 0, [False] * n, 7)
    comms = ranks(n)
    if wide.itemsize < dtype.itemsize:
        return
    with np.errstate(all="ignore"):
        call(collective, comms, pairs, op, accumulate=held)
    wanted = rounded(comms[0].last_plan.schedule, inputs, wide, rccl.ReduceOp(op).ufunc)
    for (_, found), twin in zip(pairs, wanted):
        assert found is None or found.tobytes() == twin.tobytes()


# ---- what that means ------------------------------------------------------------------------


def correctly_rounded(inputs: list[np.ndarray]) -> np.ndarray:
    """Return the exact sum, rounded once."""
    return reduce(np.add, [x.astype(np.float64) for x in inputs]).astype(F32).astype(
        inputs[0].dtype)  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_direct_exchange_that_holds_float_rounds_the_sum_once(name, n):
    inputs = inputs_of(n, 101, dtype_named(name))
    pairs = buffers_of("allreduce", inputs, 0, [False] * n, 7)
    call("allreduce", ranks(n, "direct"), pairs, accumulate="float")
    for _, found in pairs:
        assert found.tobytes() == correctly_rounded(inputs).tobytes()


@pytest.mark.parametrize("name", NARROW)
def test_a_ring_that_holds_float_rounds_at_every_hop(name):
    inputs = inputs_of(8, 101, dtype_named(name))
    results = {}
    for family in ("ring", "direct"):
        pairs = buffers_of("allreduce", inputs, 0, [False] * 8, 7)
        call("allreduce", ranks(8, family), pairs, accumulate="float")
        results[family] = pairs[0][1].astype(np.float64)
    exact = correctly_rounded(inputs).astype(np.float64)
    assert (results["ring"] != exact).any() and (results["direct"] == exact).all()


@pytest.mark.parametrize("name", NARROW)
def test_holding_the_type_of_the_data_is_holding_nothing_wider(name):
    inputs, found = inputs_of(5, 33, dtype_named(name)), []
    for held in (None, name):
        pairs = buffers_of("allreduce", inputs, 0, [False] * 5, 7)
        call("allreduce", ranks(5), pairs, accumulate=held)
        found.append([target.tobytes() for _, target in pairs])
    assert found[0] == found[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_whole_numbers_held_wider_wrap_as_their_sum_does(n):
    targets = [np.zeros(2, np.int8) for _ in range(n)]
    for comm, target in zip(ranks(n), targets):
        comm.allreduce(np.array([120, -120], np.int8), target, accumulate="int32")
    wanted = np.array([120 * n, -120 * n]).astype(np.int8)
    assert all((target == wanted).all() for target in targets)


@pytest.mark.parametrize("collective", ["reduce_scatter", "reduce"])
def test_an_average_held_wider_is_divided_before_it_is_rounded(collective):
    n = 2
    for comm in (made := ranks(n, "direct")):  # the sum is above half's range
        more = {"root": 0} if collective == "reduce" else {}
        x = np.full(n, 60000.0, np.float16)
        y = x[: 1 if collective == "reduce_scatter" else n].copy() * 0
        getattr(comm, collective)(x, y, op="avg", accumulate="float", **more)
        comm.kept = y
    assert made[0].kept[0] == 60000.0


def test_an_uneven_average_held_wider_is_divided_before_it_is_rounded():
    inputs = [np.full(2, 60000.0, np.float16) for _ in range(2)]  # the sum is above half's range
    for comm, x in zip(ranks(2), inputs):
        comm.reduce_scatterv(x, x[comm.rank :], [1, 1], "avg", accumulate="float")
    assert inputs[0][0] == inputs[1][1] == 60000.0


@pytest.mark.parametrize("accumulate, what", [
    ("half", "narrower than the data, float"), ("bfloat16", "narrower than the data, float"),
    ("f8e4m3", "narrower"), ("int32", "both must be whole numbers or both floating point"),
    ("int64", "both must be"), ("complex", "not known"), (3, "not"), (object(), "not"),
])  # fmt: skip
@pytest.mark.parametrize("collective", REDUCING)
def test_a_type_that_holds_less_or_another_kind_is_refused(collective, accumulate, what):
    comm, x = ranks(2)[1], np.ones(4, np.float32)
    with pytest.raises(InvalidArgument, match=f"^{collective} at rank 1: .*{what}"):
        call(collective, [comm], [(x, x[: 4 if collective != "reduce_scatter" else 2].copy())],
             accumulate=accumulate)  # fmt: skip


@pytest.mark.parametrize("name, held", [("int64", "int32"), ("int32", "float"), ("uint8", "half")])
def test_whole_numbers_are_held_in_whole_numbers_as_wide(name, held):
    x = np.ones(4, dtype_named(name))
    with pytest.raises(InvalidArgument, match="accumulate="):
        ranks(2)[0].allreduce(x, x, accumulate=held)


def test_ranks_that_hold_different_types_are_told():
    comms = Communicator.init_all("mi300x-8", 2, config=Config(flight_dir=""))
    x = [np.ones(4, np.float16) for _ in comms]
    comms[0].allreduce(x[0], x[0], accumulate="float")
    with pytest.raises(rccl.errors.CollectiveMismatch, match="accumulate=float"):
        comms[1].allreduce(x[1], x[1])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NARROW)
def test_an_uneven_reduce_scatter_holds_float_and_rounds_once(n, name):
    counts = [3 * r % 5 for r in range(n)]
    inputs = inputs_of(n, sum(counts), dtype_named(name))
    targets = [np.zeros(c, dtype_named(name)) for c in counts]
    for comm, x, y in zip(ranks(n), inputs, targets):
        comm.reduce_scatterv(x, y, counts, accumulate="float")
    assert np.concatenate(targets).tobytes() == correctly_rounded(inputs).tobytes()


# ---- pre-multiplied sums and averages -------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_pre_multiplied_sum_multiplies_each_rank_s_data_by_its_scalar(name, n):
    dtype, comms = dtype_named(name), ranks(n)
    inputs = [np.array([1, 2, 4, 8]).astype(dtype) for _ in comms]
    targets = [np.zeros(4, dtype) for _ in comms]
    for comm, x, y in zip(comms, inputs, targets):
        comm.allreduce(x, y, comm.create_pre_mul_sum(1 + comm.rank % 2, name))
    factor = sum(1 + r % 2 for r in range(n))  # at most 7, which three bits hold
    assert all(y.astype(int).tolist() == [factor * k for k in (1, 2, 4, 8)] for y in targets)
    assert all(x.astype(int).tolist() == [1, 2, 4, 8] for x in inputs), "the input is kept"


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize("in_place", [False, True])
def test_every_reducing_call_takes_a_pre_multiplied_sum(collective, in_place):
    n, comms = 3, ranks(3)
    inputs = [np.arange(blocks(collective, n)[0] * 2.0) for _ in comms]
    pairs = buffers_of(collective, inputs, 0, [in_place] * n, 7)
    for comm, pair in zip(comms, pairs):
        op = comm.create_pre_mul_sum(np.float64(comm.rank + 1))
        call(collective, [comm], [pair], op)
    total = inputs[0] * 6
    for rank, (_, target) in enumerate(pairs):
        share = total[2 * rank : 2 * rank + 2] if collective == "reduce_scatter" else total
        assert target is None or np.array_equal(target, share)


def test_a_pre_multiplied_sum_held_in_float_multiplies_in_the_data_s_type():
    comms, x = ranks(2, "direct"), dtype_named("bfloat16").type(1.0078125)  # 1 + 2**-7
    targets = [np.zeros(1, x.dtype) for _ in comms]
    for comm, y in zip(comms, targets):
        op = comm.create_pre_mul_sum(float(x), "bfloat16")
        comm.allreduce(np.full(1, x), y, op, accumulate="float")
    product = np.multiply(x, x)  # rounded: what is sent must be of the data's type anyway
    assert all(y[0] == np.float32(product) * 2 for y in targets)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_an_average_divides_the_sum_once(name, n):
    dtype = dtype_named(name)
    targets = [np.zeros(3, dtype) for _ in range(n)]
    for comm, y in zip(ranks(n), targets):
        comm.allreduce(np.array([1, 2, 0.5]).astype(dtype) * (comm.rank == 0), y, "avg")
    real = np.float64 if name == "double" else np.float32
    wanted = (np.array([1, 2, 0.5], real) / real(n)).astype(dtype)
    assert all(y.tobytes() == wanted.tobytes() for y in targets)


@pytest.mark.parametrize("name", WHOLES)
def test_an_average_of_whole_numbers_drops_the_rest(name):
    low = -7 if dtype_named(name).kind == "i" else 7
    targets = [np.zeros(2, dtype_named(name)) for _ in range(3)]
    for comm, y in zip(ranks(3), targets):
        comm.allreduce(np.array([8, low]).astype(y.dtype) * (comm.rank == 1), y, "avg")
    assert all(y.astype(int).tolist() == [2, int(low / 3)] for y in targets)
