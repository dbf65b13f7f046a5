"""The reductions: which function combines two contributions, and what is done once at the end.

Owns ReduceOp, combine() and finish(). Knows nothing of ranks, schedules or where data lies.
An average is a sum, and one division by the number of ranks after the last contribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument

__all__ = ["Arithmetic", "PreMulSum", "ReduceOp", "combine", "finish", "op_named"]

_CHUNK = 1 << 18  # elements divided at a time: temporaries stay in the cache


class ReduceOp(str, Enum):
    """A reduction of the C API (``ncclRedOp_t``), in the order nccl-tests runs them."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    AVG = "avg"

    def __str__(self) -> str:
        return self.value

    @property
    def ufunc(self) -> np.ufunc:
        """The function of two arrays that combines contributions."""
        return _UFUNCS[self]


_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.AVG: np.add,
}


class PreMulSum:
    """A sum of every rank's data times that rank's scalar (``ncclRedOpCreatePreMulSum``).

    Made with Communicator.create_pre_mul_sum; of one communicator's rank and of one data type.
    scalar: an array of one element of dtype.
    """

    value = "mulsum"

    def __init__(self, scalar: npt.NDArray[Any], owner: object) -> None:
        self.scalar = scalar
        self.owner: object | None = owner

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type it works on."""
        return self.scalar.dtype

    @property
    def closed(self) -> bool:
        """Whether it was destroyed."""
        return self.owner is None

    def close(self) -> None:
        """Destroy it (``ncclRedOpDestroy``); calls refuse it from then on."""
        self.owner = None

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<PreMulSum {self.scalar.reshape(-1)[0]} {self.dtype}{state}>"


@dataclass(frozen=True)
class Arithmetic:
    """How elements are combined: by which reduction, of which type, summed in which type.

    dtype: the data's type, in which it travels. accumulate: the type partial results are held in
    where they lie, None for the data's own. What goes from rank to rank is rounded to dtype, so a
    ring rounds at every hop and a direct exchange once.
    """

    op: ReduceOp
    dtype: np.dtype[Any]
    accumulate: np.dtype[Any] | None = None

    @cached_property
    def held(self) -> np.dtype[Any]:
        """The type buffers have while a schedule runs."""
        return self.dtype if self.accumulate is None else self.accumulate

    @cached_property
    def rounds(self) -> bool:
        """Whether what is read differs from what is held."""
        return self.held != self.dtype

    @property
    def ufunc(self) -> np.ufunc:
        """The function of two arrays that combines contributions."""
        return self.op.ufunc

    def travel(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what arrives of `array`: rounded to the data's type, in the held type."""
        return array.astype(self.dtype).astype(self.held) if self.rounds else array


def op_named(name: str) -> ReduceOp:
    """Return the reduction called `name`, whatever its case.

    Raises InvalidArgument, listing the names, when there is no such reduction.
    """
    key = str(name).strip().lower().removeprefix("nccl")
    try:
        return ReduceOp(key)
    except ValueError:
        known = ", ".join(op.value for op in ReduceOp)
        raise InvalidArgument(f"reduction {name!r} is not known: one of {known}") from None


def combine(op: ReduceOp | str) -> np.ufunc:
    """Return the ufunc that combines two contributions of `op`."""
    return op_named(op).ufunc


def _divided(chunk: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    result: npt.NDArray[Any]
    if chunk.dtype.kind == "u":
        result = chunk.astype(np.uint64) // np.uint64(n)
    elif chunk.dtype.kind == "i":
        wide = chunk.astype(np.int64)
        result = wide // n
        # C division truncates towards zero, NumPy's rounds down.
        result += (wide < 0) & (result * n != wide)
    else:
        # Types below 32 bits cannot hold every n: divide in float32, round once on the way back.
        real = np.float64 if chunk.dtype.itemsize == 8 else np.float32
        result = chunk.astype(real) / real(n)
    return result.astype(chunk.dtype)


def finish(op: ReduceOp | str, array: npt.NDArray[Any], n: int) -> None:
    """Divide `array` in place by `n` when `op` is an average; else leave it.

    Integers truncate towards zero, as C does. `array` is one-dimensional or contiguous.
    """
    if op_named(op) is not ReduceOp.AVG or n == 1:
        return
    flat = array.reshape(-1)
    if flat.size and not np.shares_memory(flat, array):
        raise InvalidArgument(
            f"an array of strides {array.strides} cannot be divided in place: pass a contiguous one"
        )
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        chunk[...] = _divided(chunk, n)
