"""The names of data types and reductions."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rccl_py.dtypes import DTYPES, dtype_named, name_of
from rccl_py.errors import InvalidArgument
from rccl_py.reduce_ops import ReduceOp, combine, finish, op_named

SIZES = dict(zip(DTYPES, (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)))


@pytest.mark.parametrize("name", DTYPES)
def test_every_name_is_a_type_of_its_size_and_comes_back(name):
    assert dtype_named(name).itemsize == SIZES[name]
    assert name_of(dtype_named(name)) == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [("bf16", "bfloat16"), ("fp8_e4m3", "f8e4m3"), ("fp8_e5m2", "f8e5m2"), ("float16", "half"),
     ("Float32", "float"), ("float64", "double"), ("ncclFloat", "float"), ("int", "int32")],
)  # fmt: skip
def test_the_names_of_rccl_tests_numpy_and_people_are_understood(alias, name):
    assert dtype_named(alias) == dtype_named(name)


@pytest.mark.parametrize("name", ["", "complex64", "float128", "all"])
def test_an_unknown_type_is_refused_with_the_list(name):
    with pytest.raises(InvalidArgument, match="bfloat16"):
        dtype_named(name)


def test_a_type_no_collective_carries_has_no_name():
    with pytest.raises(InvalidArgument, match="complex128"):
        name_of(np.complex128)


def test_plain_types_do_not_import_ml_dtypes():
    code = ("import sys; sys.modules['rccl_py'] = type(sys)('rccl_py');"
            "sys.modules['rccl_py'].__path__ = [sys.argv[1]];"
            "from rccl_py.dtypes import dtype_named; dtype_named('half');"
            "assert 'ml_dtypes' not in sys.modules; dtype_named('bf16');"
            "assert 'ml_dtypes' in sys.modules")  # fmt: skip
    import rccl_py

    subprocess.run([sys.executable, "-c", code, rccl_py.__path__[0]], check=True)


@pytest.mark.parametrize("op", list(ReduceOp))
def test_a_reduction_is_its_own_name(op):
    assert op_named(op.value.upper()) is op and str(op) == op.value == f"{op}"
    assert combine(op) is op.ufunc


def test_an_unknown_reduction_is_refused_with_the_list():
    with pytest.raises(InvalidArgument, match="prod"):
        op_named("mulsum")


def test_an_integer_average_truncates_towards_zero():
    sums = np.array([-128, -7, -1, 0, 1, 7, 127], dtype=np.int8)
    finish(ReduceOp.AVG, sums, 2)
    assert sums.tolist() == [-64, -3, 0, 0, 0, 3, 63]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_an_average_over_more_ranks_than_the_type_holds_is_that_of_c(dtype):
    info = np.iinfo(dtype)
    sums = np.array([info.min, info.max], dtype=dtype)
    finish(ReduceOp.AVG, sums, 100_000)
    exact = [int(abs(value) // 100_000) * (-1 if value < 0 else 1)
             for value in (int(info.min), int(info.max))]  # fmt: skip
    assert sums.tolist() == exact


@pytest.mark.parametrize("name", ["half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100_000])
def test_a_float_average_is_the_sum_divided_once(name, n):
    dtype = dtype_named(name)
    sums = np.array([0, 1, 2, 6, 8], dtype=np.float64).astype(dtype)
    expected = (sums.astype(np.float64) / n).astype(np.float32).astype(dtype)
    finish(ReduceOp.AVG, sums, n)
    if name == "double":
        expected = np.array([0, 1, 2, 6, 8]) / n
    assert sums.tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN])
def test_other_reductions_have_nothing_to_finish(op):
    values = np.array([3, 5])
    finish(op, values, 2)
    assert values.tolist() == [3, 5]


def test_a_two_dimensional_average_is_done_in_place():
    values = np.full((3, 4), 8.0)
    finish("avg", values, 4)
    assert (values == 2.0).all()


def test_an_average_of_scattered_memory_is_refused():
    with pytest.raises(InvalidArgument, match="contiguous"):
        finish("avg", np.zeros((4, 4))[:, :3], 2)
