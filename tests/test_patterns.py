"""Test data: exact whatever the order, and wrong wherever a bit, a block or a rank is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.errors import InvalidArgument
from rccl_py.patterns import fill, pattern, period_for, wrong
from rccl_py.reduce_ops import ReduceOp, finish

RANKS = [1, 2, 3, 7, 8, 12, 72]


def filled(row, length, offset=0):
    array = np.empty(length, dtype=row.dtype)
    fill(array, row, offset)
    return array


@pytest.mark.parametrize("period", [4099, 4127])
def test_periods_are_primes_and_give_every_rank_its_own_row(period):
    assert all(period % d for d in range(2, 65))
    content = pattern(dtype_named("uint64"), None, period, period=period)
    first = {content.row(rank)[0].item() for rank in range(period)}
    assert len(first) == period


@pytest.mark.parametrize("count", [0, 1, 8, 4098, 4099, 4127, 8198, 4099 * 4127])
def test_a_period_never_divides_the_distance_of_two_blocks(count):
    assert count in (0, 4099 * 4127) or count % period_for(count)


@pytest.mark.parametrize("offset", [0, 1, 4098, 4099, 10_000_000])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4099, 100_003])
def test_a_buffer_is_its_row_over_and_over_from_the_offset(offset, length):
    row = pattern(np.dtype("int32"), None, 3).row(2)
    expected = row[(np.arange(length) + offset) % len(row)]
    assert np.array_equal(filled(row, length, offset), expected)
    assert wrong(expected, row, offset) == 0


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("name", DTYPES)
def test_a_reduction_is_exact_in_any_order(name, op, n):
    content = pattern(dtype_named(name), op, n)
    rows = np.stack([content.row(rank) for rank in range(n)])
    for order in (rows[::-1], np.random.default_rng(n).permutation(rows)):
        parts = list(order)
        while len(parts) > 1:  # a tree: neighbours first
            pairs = [op.ufunc(a, b) for a, b in zip(parts[::2], parts[1::2])]
            parts = pairs + parts[len(parts) & ~1 :]
        total = parts[0].copy()
        finish(op, total, n)
        assert wrong(total, content.reduced()) == 0
    assert np.isfinite(content.reduced().astype(np.float64)).all()


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PROD])
@pytest.mark.parametrize("n", [5000, 100_000])
@pytest.mark.parametrize("name", ["half", "float", "bfloat16", "f8e4m3", "f8e5m2", "int8"])
def test_a_hundred_thousand_ranks_stay_exact(name, op, n):
    dtype = dtype_named(name)
    content = pattern(dtype, op, n)
    if name == "int8":
        exact = np.array([0 if op is ReduceOp.SUM else 1] * 4, dtype=np.int64)
        for rank in range(n):
            exact = op.ufunc(exact, content.row(rank)[:4].astype(np.int64))
            exact = exact.astype(np.int8).astype(np.int64)
    else:
        rows = (content.row(rank)[:4].astype(np.float64) for rank in range(n))
        exact = np.zeros(4) if op is ReduceOp.SUM else np.ones(4)
        for row in rows:
            exact = op.ufunc(exact, row)
    assert content.reduced()[:4].astype(np.float64).tolist() == exact.tolist()
    assert content.values.astype(np.float64).any()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("n", [2, 8, 72])
def test_a_missing_or_doubled_contribution_is_seen(name, n):
    content = pattern(dtype_named(name), ReduceOp.SUM, n)
    rows = [content.row(rank) for rank in range(n)]
    for left_out in (0, n // 2, n - 1):
        total = np.zeros_like(rows[0])
        for rank, row in enumerate(rows):
            total = total if rank == left_out else total + row
        assert wrong(total, content.reduced())
        assert wrong(content.reduced() + rows[left_out], content.reduced())


@pytest.mark.parametrize("name", DTYPES)
def test_copied_values_are_finite_and_differ_between_ranks_and_repetitions(name):
    content = pattern(dtype_named(name), None, 8)
    assert np.isfinite(content.values.astype(np.float64)).all()
    again = pattern(dtype_named(name), None, 8, repetition=1)
    assert wrong(content.row(1), content.row(2)) > 3000
    assert wrong(content.row(1), again.row(1)) > 3000


@pytest.mark.parametrize("count", [1, 3, 64, 4099, 1 << 12])
def test_blocks_of_one_buffer_are_told_apart(count):
    content = pattern(np.dtype("int32"), None, 8, period=period_for(count))
    buffer = filled(content.row(0), 8 * count)
    for block in range(1, 8):
        assert wrong(buffer[:count], content.row(0), block * count) > 0.9 * count


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(DTYPES),
    length=st.integers(1, 150_000),
    data=st.data(),
)
def test_one_flipped_bit_anywhere_is_one_wrong_element(name, length, data):
    dtype = dtype_named(name)
    row = pattern(dtype, ReduceOp.SUM, 8).reduced()
    array = filled(row, length, 17)
    element = data.draw(st.integers(0, length - 1))
    bit = data.draw(st.integers(0, 8 * dtype.itemsize - 1))
    array.view(np.uint8)[element * dtype.itemsize + bit // 8] ^= np.uint8(1 << bit % 8)
    assert wrong(array, row, 17) == 1


def test_nan_and_the_other_zero_are_wrong():
    row = np.zeros(4099, dtype=np.float32)
    array = row.copy()
    array[5], array[6] = np.nan, -0.0
    assert wrong(array, row) == 2


def test_a_whole_buffer_of_rubbish_is_all_wrong():
    row = pattern(np.dtype("float32"), None, 8).row(0)
    assert wrong(np.full(100_000, np.nan, np.float32), row) == 100_000


def test_a_buffer_of_another_type_is_refused():
    row = pattern(np.dtype("float32"), None, 2).row(0)
    with pytest.raises(InvalidArgument, match="float64"):
        wrong(np.zeros(3), row)


def test_a_pattern_for_copying_has_no_reduction():
    with pytest.raises(InvalidArgument):
        pattern(np.dtype("float32"), None, 2).reduced()
