"""MPI's reductions: which core reduction carries one, or how contributions are folded here.

Owns Op, the named ones, and Way, how the data of an operation travels. Knows no communicator.

    INT16 sum    travels as int32, summed by the core, narrowed on arrival: equal modulo 2^16
    complex sum  travels as pairs of floats, summed by the core
    LAND, LOR    travel as truths of one byte; the core's MIN and MAX
    the others   are not reduced on the way: every contribution travels, and is folded in rank
                 order where the result is wanted
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..dtypes import DTYPES, dtype_named
from ..errors import InvalidArgument
from ..reduce_ops import ReduceOp
from .mpi_buffers import read_block
from .mpi_errors import MessageError
from .mpi_types import Datatype, mpi4py_loaded

__all__ = ["OPS", "OP_NULL", "Op", "Way", "fold", "op_of", "way_of"]

Array: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Callable[[Array, Array], Array]


def _first_or_equal(x: Array, y: Array, wins: Array) -> Array:
    ties = (x["value"] == y["value"]) & (y["index"] < x["index"])
    return np.where(wins | ties, y, x)


def _loc(x: Any, y: Any, wins: bool) -> Any:
    return y if wins or (x[0] == y[0] and y[1] < x[1]) else x


@dataclass(frozen=True, eq=False)
class _Named:
    """kinds: NumPy's letters of the types it works on. core: what reduces it, if anything does."""

    arrays: Combine
    objects: Callable[[Any, Any], Any]
    kinds: str
    core: ReduceOp | None = None


_NUMBERS = "biufc"
_TABLE = {
    "SUM": _Named(np.add, operator.add, _NUMBERS, ReduceOp.SUM),
    "PROD": _Named(np.multiply, operator.mul, _NUMBERS, ReduceOp.PROD),
    "MAX": _Named(np.maximum, lambda x, y: y if y > x else x, "biuf", ReduceOp.MAX),
    "MIN": _Named(np.minimum, lambda x, y: y if y < x else x, "biuf", ReduceOp.MIN),
    "LAND": _Named(np.logical_and, lambda x, y: bool(x) and bool(y), _NUMBERS),
    "LOR": _Named(np.logical_or, lambda x, y: bool(x) or bool(y), _NUMBERS),
    "LXOR": _Named(np.logical_xor, lambda x, y: bool(x) != bool(y), _NUMBERS),
    "BAND": _Named(np.bitwise_and, operator.and_, "biu"),
    "BOR": _Named(np.bitwise_or, operator.or_, "biu"),
    "BXOR": _Named(np.bitwise_xor, operator.xor, "biu"),
    "MAXLOC": _Named(lambda x, y: _first_or_equal(x, y, y["value"] > x["value"]),
                     lambda x, y: _loc(x, y, y[0] > x[0]), "V"),
    "MINLOC": _Named(lambda x, y: _first_or_equal(x, y, y["value"] < x["value"]),
                     lambda x, y: _loc(x, y, y[0] < x[0]), "V"),
    "REPLACE": _Named(lambda x, y: y, lambda x, y: y, "biufcVSU"),
    "NO_OP": _Named(lambda x, y: x, lambda x, y: x, "biufcVSU"),
}  # fmt: skip


class Op:
    """A reduction: one of MPI's names, or a function of the program's.

    function: ``function(inbuf, inoutbuf, datatype)`` on memory, leaving ``in op inout`` in inout;
    on objects it is called with None as datatype and returns the result.
    """

    def __init__(
        self, name: str, function: Callable[[Any, Any, Any], Any] | None = None,
        commutes: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.function, self._commutes = name, function, commutes

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], Any], commute: bool = False) -> Op:
        """Return the reduction that a function of the program does."""
        return cls("user", function, commute)

    def Free(self) -> None:
        """Do nothing: the memory is Python's to free."""

    def Is_commutative(self) -> bool:
        """Return whether the order of two contributions does not matter."""
        return self._commutes

    @property
    def is_predefined(self) -> bool:
        """Whether it is one of MPI's own."""
        return self.function is None

    def __call__(self, x: Any, y: Any) -> Any:
        """Return ``x op y`` of two objects."""
        if self.function is not None:
            return self.function(x, y, None)
        return _TABLE[self.name].objects(x, y)

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def combined(self, x: Array, y: Array, kind: Datatype) -> Array:
        """Return ``x op y`` of two arrays of one type."""
        if self.function is None:
            # NumPy's truths are bools; MPI's are of the data's type.
            found: Array = _TABLE[self.name].arrays(x, y)
            return found.astype(x.dtype, copy=False)
        both: Array = y.copy()
        self.function(_memory_of(x), _memory_of(both), kind)
        return both

    def require(self, dtype: np.dtype[Any], what: str) -> None:
        """Raise InvalidArgument when the reduction does not work on a type."""
        if self is OP_NULL:
            raise InvalidArgument(f"{what}: op is OP_NULL")
        if self.function is None and dtype.kind not in _TABLE[self.name].kinds:
            raise MessageError(f"{what}: {self.name} does not work on {dtype}")

    def Reduce_local(self, inbuf: object, inoutbuf: object) -> None:
        """Leave ``in op inout`` in inoutbuf, on this rank alone."""
        source = read_block(inbuf, "Reduce_local: inbuf", writes=False)
        target = read_block(inoutbuf, "Reduce_local: inoutbuf", writes=True)
        x, y = source.elements("Reduce_local: inbuf"), target.elements("Reduce_local: inoutbuf")
        if x.dtype != y.dtype or x.size != y.size:
            raise MessageError(f"Reduce_local: inbuf is {x.size} x {x.dtype}, inoutbuf is "
                               f"{y.size} x {y.dtype}")  # fmt: skip
        self.require(x.dtype, "Reduce_local")
        y[...] = self.combined(x, y, target.kind)


def _memory_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


OPS = {name: Op(name) for name in _TABLE}
OP_NULL = Op("OP_NULL")


def op_of(op: object, what: str) -> Op:
    """Return the reduction of ours or of mpi4py's object."""
    if isinstance(op, Op):
        return op
    mpi = mpi4py_loaded()
    if mpi is None or not isinstance(op, mpi.Op):
        raise InvalidArgument(f"{what}: op {op!r} is a {type(op).__name__}: an Op was expected")
    for name, ours in OPS.items():
        if op == getattr(mpi, name):
            return ours

    def function(x: Any, y: Any, kind: Datatype | None) -> Any:
        if kind is None:
            return op(x, y)
        named = getattr(mpi, kind.name, mpi.BYTE)
        return op.Reduce_local([x, named], [y, named])

    return Op("mpi4py", function, op.Is_commutative())


@dataclass(frozen=True, eq=False)
class Way:
    """How the data of a reduction travels: as which type, how many of it an element, reduced how.

    core: None when nothing is reduced on the way; then contributions are folded on arrival.
    """

    dtype: np.dtype[Any]
    per: int = 1
    core: ReduceOp | None = None
    encode: Callable[[Array], Array] | None = None
    decode: Callable[[Array], Array] | None = None

    def travels(self, array: Array) -> Array:
        """Return what travels of a rank's data; the data's own memory where nothing changes."""
        moved: Array = array.view(self.dtype) if self.encode is None else self.encode(array)
        return moved

    def arrive(self, got: Array, into: Array) -> None:
        """Put a result that travelled into an array of the data's type."""
        if self.decode is not None:
            into[...] = self.decode(got)
        elif not np.may_share_memory(got, into):
            into.view(self.dtype)[...] = got


def _truths(x: Array) -> Array:
    truths: Array = (x != 0).view(np.uint8)
    return truths


_CARRIED = frozenset(np.dtype(name) for name in
                     ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32",
                      "float64"))  # fmt: skip
_LOGICAL = {"LAND": ReduceOp.MIN, "LOR": ReduceOp.MAX, "LXOR": ReduceOp.SUM}


def _is_carried(dtype: np.dtype[Any]) -> bool:
    # The types of ml_dtypes are of NumPy's kind V; looked up only when one is met.
    return dtype in _CARRIED or any(
        dtype.name == dtype_named(n).name for n in DTYPES[9:] if dtype.names is None
    )


def way_of(op: Op, dtype: np.dtype[Any], what: str) -> Way:
    """Return how data of `dtype` is reduced by `op`; raise when it cannot be."""
    beyond = dtype.kind == "V" and dtype.names is None and _is_carried(dtype)
    if not beyond:
        op.require(dtype, what)
    folded = Way(np.dtype(np.uint8), dtype.itemsize)
    core = _TABLE[op.name].core if op.function is None else None
    if op.name in _LOGICAL and op.function is None:
        parity = op.name == "LXOR"  # a sum of truths modulo 256 keeps its lowest bit
        return Way(np.dtype(np.uint8), 1, _LOGICAL[op.name], _truths,
                   lambda got: (got & 1 if parity else got).astype(dtype))  # fmt: skip
    if core is None:
        return folded
    if _is_carried(dtype):
        return Way(dtype, 1, core)
    if dtype.kind == "b":
        either = core in (ReduceOp.SUM, ReduceOp.MAX)
        return Way(np.dtype(np.uint8), 1, ReduceOp.MAX if either else ReduceOp.MIN)
    if dtype.kind in "iu" and dtype.itemsize == 2:
        wide = np.dtype(np.int32 if dtype.kind == "i" else np.uint32)
        return Way(wide, 1, core, lambda x: x.astype(wide), lambda got: got.astype(dtype))
    if dtype in (np.dtype("F"), np.dtype("D")) and core is ReduceOp.SUM:
        return Way(np.dtype(np.float32 if dtype == np.dtype("F") else np.float64), 2, core)
    return folded


def fold(op: Op, rows: Iterable[Array], kind: Datatype) -> Array:
    """Return the contributions, in rank order, combined."""
    return reduce(lambda x, y: op.combined(x, y, kind), rows)
