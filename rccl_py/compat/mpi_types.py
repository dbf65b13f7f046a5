"""MPI datatypes: the NumPy type of an element, or where its bytes lie.

Owns Datatype, the named ones, the constructors of derived ones, and the reading of what people
pass as a type (ours, mpi4py's, NumPy's, a type code). Knows no buffer and no communicator. mpi4py
is never imported here; its types are recognised once somebody else has imported it.

A vector of 2 blocks of 1 INT every 3 INTs, on memory ``a b c d e f``: places are the bytes of a and
of d, the extent is 4 INTs (a to d), and what travels is ``a d``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .mpi_errors import MessageError, NotProvided

__all__ = ["DATATYPES", "DATATYPE_NULL", "Datatype", "datatype_of", "is_datatype", "mpi4py_loaded"]

Places: TypeAlias = npt.NDArray[np.int64]
_FARTHEST = 1 << 30  # bytes; mpi4py's derived types are read with arrays of their extent


def mpi4py_loaded() -> Any:
    """Return mpi4py.MPI if the program has imported it, else None."""
    return sys.modules.get("mpi4py.MPI")


class Datatype:
    """The type of an element.

    dtype: NumPy's type of it, None for a derived type. places : int64[size], where its bytes lie
    from its start, in the order they travel; None when they are the extent's, one after another.
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any] | None,
        extent: int,
        places: Places | None = None,
        lb: int = 0,
        alignment: int = 1,
    ) -> None:
        self.name, self.dtype = name, dtype
        self.extent, self.lb, self.alignment = extent, lb, alignment
        self.places = places

    @staticmethod
    def plain(name: str, dtype: npt.DTypeLike) -> Datatype:
        """Return the datatype of one NumPy element."""
        kind = np.dtype(dtype)
        return Datatype(name, kind, kind.itemsize, alignment=kind.alignment)

    @property
    def size(self) -> int:
        """Bytes of an element that travel."""
        return self.extent if self.places is None else len(self.places)

    @property
    def ub(self) -> int:
        """Where the next element starts, in bytes."""
        return self.lb + self.extent

    @property
    def is_predefined(self) -> bool:
        """Whether it is a named type."""
        return self.dtype is not None

    @property
    def typestr(self) -> str:
        """NumPy's text of the type, such as ``i4``."""
        return f"V{self.extent}" if self.dtype is None else self.dtype.str.lstrip("<>|=")

    def Get_size(self) -> int:
        """Return the bytes of an element that travel."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return (lower bound, extent) in bytes."""
        return self.lb, self.extent

    def Get_name(self) -> str:
        """Return the name."""
        return self.name

    def Commit(self) -> Datatype:
        """Return the type itself: it is ready when it is made."""
        return self

    def Free(self) -> None:
        """Do nothing: the memory is Python's to free."""

    def Dup(self) -> Datatype:
        """Return a type like this one."""
        return Datatype(self.name, self.dtype, self.extent, self.places, self.lb, self.alignment)

    def __repr__(self) -> str:
        return f"<Datatype {self.name}>"

    def _bytes(self) -> Places:
        return np.arange(self.extent, dtype=np.int64) if self.places is None else self.places

    def Create_contiguous(self, count: int) -> Datatype:
        """Return the type of `count` elements, one after another."""
        return _laid("contiguous", [(self, count, 0)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return the type of `count` blocks, `stride` elements from start to start."""
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return the type of `count` blocks, `stride` bytes from start to start."""
        return _laid("vector", [(self, blocklength, k * stride) for k in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return the type of blocks at displacements in elements."""
        return self.Create_hindexed(blocklengths, [d * self.extent for d in displacements])

    def Create_hindexed(
        self, blocklengths: Sequence[int], displacements: Sequence[int]
    ) -> Datatype:
        """Return the type of blocks at displacements in bytes."""
        if len(blocklengths) != len(displacements):
            raise MessageError(
                f"datatype: {len(blocklengths)} block lengths, {len(displacements)} displacements"
            )
        return _laid("indexed", [(self, c, d) for c, d in zip(blocklengths, displacements)])

    def Create_indexed_block(self, blocklength: int, displacements: Iterable[int]) -> Datatype:
        """Return the type of equal blocks at displacements in elements."""
        found = [d * self.extent for d in displacements]
        return self.Create_hindexed([blocklength] * len(found), found)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return the type of equal blocks at displacements in bytes."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    @classmethod
    def Create_struct(
        cls,
        blocklengths: Sequence[int],
        displacements: Sequence[int],
        datatypes: Sequence[Any],
    ) -> Datatype:
        """Return the type of blocks of several types at displacements in bytes."""
        kinds = [datatype_of(t) for t in datatypes]
        if not len(blocklengths) == len(displacements) == len(kinds):
            raise MessageError(
                f"datatype: {len(blocklengths)} block lengths, {len(displacements)} displacements, "
                f"{len(kinds)} types"
            )
        made = _laid("struct", list(zip(kinds, blocklengths, displacements)))
        made.extent += -made.extent % made.alignment  # padded at the end, as C pads a struct
        return made

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = 0
    ) -> Datatype:
        """Return the type of a box of an array. order: 0 for C, 1 for Fortran."""
        if not len(sizes) == len(subsizes) == len(starts):
            raise MessageError(f"datatype: sizes {sizes}, subsizes {subsizes}, starts {starts}")
        shape = tuple(sizes) if order == 0 else tuple(sizes)[::-1]
        box = tuple(slice(b, b + s) for b, s in zip(starts, subsizes))
        if any(b < 0 or s < 0 or b + s > n for n, s, b in zip(sizes, subsizes, starts)):
            raise MessageError(f"datatype: {subsizes} from {starts} is not inside {sizes}")
        numbers = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        chosen = numbers[box if order == 0 else box[::-1]].reshape(-1)
        made = _laid("subarray", [(self, 1, int(k) * self.extent) for k in chosen])
        made.lb, made.extent = 0, int(np.prod(shape)) * self.extent
        return made

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return this type with other bounds: the next element starts `extent` bytes on."""
        return Datatype("resized", None, extent, self._bytes(), lb, self.alignment)


def _laid(name: str, blocks: Sequence[tuple[Datatype, int, int]]) -> Datatype:
    """Return the type of blocks of (type, count, displacement in bytes)."""
    pieces, low, high = [], [], []
    for kind, count, at in blocks:
        if count <= 0:
            continue
        starts = at + kind.extent * np.arange(count, dtype=np.int64)
        pieces.append((starts[:, None] + kind._bytes()).reshape(-1))
        low.append(int(starts.min()) + kind.lb)
        high.append(int(starts.max()) + kind.ub)
    if not pieces:
        return Datatype(name, None, 0, np.empty(0, np.int64))
    alignment = max(kind.alignment for kind, _, _ in blocks)
    places = np.concatenate(pieces)
    return Datatype(name, None, max(high) - min(low), places, min(low), alignment)


def _pair(value: str) -> np.dtype[Any]:
    return np.dtype([("value", value), ("index", "i4")], align=True)


_NAMED: dict[str, Any] = {
    "CHAR": "S1", "SIGNED_CHAR": "i1", "UNSIGNED_CHAR": "u1", "BYTE": "u1", "PACKED": "u1",
    "SHORT": "h", "UNSIGNED_SHORT": "H", "INT": "i", "UNSIGNED": "I", "LONG": "l",
    "UNSIGNED_LONG": "L", "LONG_LONG": "q", "UNSIGNED_LONG_LONG": "Q", "WCHAR": "U1",
    "INT8_T": "i1", "INT16_T": "i2", "INT32_T": "i4", "INT64_T": "i8",
    "UINT8_T": "u1", "UINT16_T": "u2", "UINT32_T": "u4", "UINT64_T": "u8",
    "AINT": "p", "COUNT": "i8", "OFFSET": "i8",
    "FLOAT": "f", "DOUBLE": "d", "LONG_DOUBLE": "g", "FLOAT16_T": "f2",
    "C_BOOL": "?", "C_FLOAT_COMPLEX": "F", "C_DOUBLE_COMPLEX": "D", "C_LONG_DOUBLE_COMPLEX": "G",
    "SHORT_INT": _pair("h"), "TWOINT": _pair("i"), "LONG_INT": _pair("l"),
    "FLOAT_INT": _pair("f"), "DOUBLE_INT": _pair("d"), "LONG_DOUBLE_INT": _pair("g"),
}  # fmt: skip
_SAME = {
    "UNSIGNED_INT": "UNSIGNED", "SIGNED_INT": "INT", "SIGNED_SHORT": "SHORT",
    "SIGNED_LONG": "LONG", "SIGNED_LONG_LONG": "LONG_LONG", "INT_INT": "TWOINT",
    "BOOL": "C_BOOL", "CXX_BOOL": "C_BOOL", "C_COMPLEX": "C_FLOAT_COMPLEX",
    "COMPLEX": "C_FLOAT_COMPLEX", "DOUBLE_COMPLEX": "C_DOUBLE_COMPLEX",
    "F_FLOAT_COMPLEX": "C_FLOAT_COMPLEX", "F_DOUBLE_COMPLEX": "C_DOUBLE_COMPLEX",
    "F_COMPLEX": "C_FLOAT_COMPLEX", "CXX_FLOAT_COMPLEX": "C_FLOAT_COMPLEX",
    "CXX_DOUBLE_COMPLEX": "C_DOUBLE_COMPLEX", "COMPLEX8": "C_FLOAT_COMPLEX",
    "COMPLEX16": "C_DOUBLE_COMPLEX", "REAL": "FLOAT", "REAL4": "FLOAT", "REAL8": "DOUBLE",
    "DOUBLE_PRECISION": "DOUBLE", "F_FLOAT": "FLOAT", "F_DOUBLE": "DOUBLE", "FLOAT32_T": "FLOAT",
    "FLOAT64_T": "DOUBLE", "INTEGER": "INT", "F_INT": "INT", "INTEGER1": "INT8_T",
    "INTEGER2": "INT16_T", "INTEGER4": "INT32_T", "INTEGER8": "INT64_T", "CHARACTER": "CHAR",
    "SINT8_T": "INT8_T", "SINT16_T": "INT16_T", "SINT32_T": "INT32_T", "SINT64_T": "INT64_T",
}  # fmt: skip
"""Fortran's default widths are those of mpi4py's wheels."""

DATATYPE_NULL = Datatype("DATATYPE_NULL", None, 0, np.empty(0, np.int64))
DATATYPES: dict[str, Datatype] = {name: Datatype.plain(name, t) for name, t in _NAMED.items()}
DATATYPES |= {name: DATATYPES[other] for name, other in _SAME.items()}


def is_datatype(value: object) -> bool:
    """Return whether `value` is a type of a message, and not its count."""
    mpi = mpi4py_loaded()
    return isinstance(value, (Datatype, str, np.dtype)) or (
        mpi is not None and isinstance(value, mpi.Datatype)
    )


def datatype_of(value: object) -> Datatype:
    """Return the datatype of ours, mpi4py's or NumPy's type, or of a type code as ``"d"``.

    Raises MessageError when it is none.
    """
    if isinstance(value, Datatype):
        return value
    mpi = mpi4py_loaded()
    if mpi is not None and isinstance(value, mpi.Datatype):
        return _of_mpi4py(value, mpi)
    try:
        kind = np.dtype(value)  # type: ignore[call-overload]
    except TypeError:
        raise MessageError(
            f"datatype {value!r} is a {type(value).__name__}: a Datatype, a NumPy type or a type "
            "code was expected"
        ) from None
    return Datatype.plain(kind.name, kind)


@cache
def _by_handle(mpi: Any) -> dict[int, Datatype]:
    pairs = ((getattr(mpi, name, None), kind) for name, kind in DATATYPES.items())
    return {theirs.handle: kind for theirs, kind in pairs if theirs is not None}


def _of_mpi4py(theirs: Any, mpi: Any) -> Datatype:
    """Return our datatype of mpi4py's: by name, or by where its Pack takes the bytes from."""
    if theirs == mpi.DATATYPE_NULL:
        return DATATYPE_NULL
    found = _by_handle(mpi).get(theirs.handle)
    if found is not None:
        return found
    if theirs.is_predefined:
        raise NotProvided(f"datatype {theirs.name} is not provided: move it as BYTE")
    first, length = theirs.true_lb, theirs.true_extent
    if first < 0 or first + length > _FARTHEST:
        raise NotProvided(f"datatype whose bytes are {first}..{first + length - 1} from its start "
                          f"is not provided: 0 to {_FARTHEST - 1} are")  # fmt: skip
    # Which byte went where: pack the numbers of the bytes, eight bits of them at a time.
    numbers = np.arange(max(first + length, theirs.extent, 1), dtype=np.int64)
    places = np.zeros(theirs.size, np.int64)
    for shift in range(0, int(numbers[-1]).bit_length(), 8):
        digits = (numbers >> shift).astype(np.uint8)
        packed = np.zeros(theirs.Pack_size(1, mpi.COMM_SELF), np.uint8)
        # One element is `extent` bytes to Pack; what a resized type reads behind them is there.
        theirs.Pack(digits[: theirs.extent], packed, 0, mpi.COMM_SELF)
        places |= packed[: theirs.size].astype(np.int64) << shift
    return Datatype("derived", None, theirs.extent, places, theirs.lb)
