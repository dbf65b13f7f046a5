"""One call of one rank: its checked buffers, and what must agree with the other ranks' calls.

Owns argument checking. Every refusal is InvalidArgument, names the rank and leaves the
communicator as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..collectives import COLLECTIVES, Collective
from ..dtypes import DTYPES, dtype_named, name_of
from ..errors import InvalidArgument
from ..reduce_ops import ReduceOp, op_named

__all__ = ["Call", "Signature", "checked_call", "checked_dtype"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """What all ranks of a collective must agree on. block: elements one rank contributes."""

    collective: str
    block: int
    dtype: str
    op: str
    root: int

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the signature as int64[5], for processes to compare."""
        names = list(COLLECTIVES), list(DTYPES), [o.value for o in ReduceOp]
        return np.array(
            [
                names[0].index(self.collective),
                self.block,
                names[1].index(self.dtype),
                names[2].index(self.op),
                self.root,
            ],
            dtype=np.int64,
        )

    @staticmethod
    def of_numbers(row: npt.NDArray[np.int64]) -> Signature:
        """Return the signature that numbers() wrote."""
        collective, block, dtype, op, root = (int(v) for v in row[:5])
        return Signature(
            list(COLLECTIVES)[collective],
            block,
            list(DTYPES)[dtype],
            [o.value for o in ReduceOp][op],
            root,
        )

    def __str__(self) -> str:
        spec = COLLECTIVES[self.collective]
        parts = [f"count={self.block}", f"dtype={self.dtype}"]
        parts += [f"op={self.op}"] if spec.reduces else []
        parts += [f"root={self.root}"] if spec.rooted else []
        return f"{self.collective}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A checked call: signature, flat buffers (None where the rank has none), in place or not."""

    signature: Signature
    source: Array | None
    target: Array | None
    in_place: bool


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a supported data type; raise InvalidArgument for any other."""
    if isinstance(dtype, str):
        return dtype_named(dtype)
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise InvalidArgument(
            f"data type {dtype!r} is not one: expected {', '.join(DTYPES)}"
        ) from None
    return dtype_named(found.name)


def _of_call(where: str, read: Any, value: object) -> Any:
    """Return read(value); its refusal is told with the call it came from."""
    try:
        return read(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def _flat(buffer: object, what: str, writes: bool) -> Array:
    if not isinstance(buffer, np.ndarray):
        raise InvalidArgument(f"{what} is a {type(buffer).__name__}: a NumPy array was expected")
    if isinstance(buffer, np.ma.MaskedArray):
        raise InvalidArgument(f"{what} is a masked array: pass its .data, masks do not travel")
    if not buffer.flags.c_contiguous:
        raise InvalidArgument(
            f"{what} (shape {buffer.shape}, strides {buffer.strides}) is not "
            "contiguous: pass numpy.ascontiguousarray of it"
        )
    if writes and not buffer.flags.writeable:
        raise InvalidArgument(f"{what} is read-only: a writeable array was expected")
    if not buffer.dtype.isnative:
        raise InvalidArgument(
            f"{what} has byte order {buffer.dtype.str}: native order was expected"
        )
    _of_call(what, checked_dtype, buffer.dtype)
    # A subclass may reshape its own way (numpy.matrix stays two-dimensional).
    return np.asarray(buffer).reshape(-1)


def _needed(spec: Collective, rank: int, n: int, root: int) -> tuple[bool, bool]:
    """Return whether `rank` has an input and an output."""
    has_input = not spec.rooted or rank == root or spec.name in ("reduce", "gather")
    has_output = not spec.rooted or rank == root or spec.name in ("broadcast", "scatter")
    return has_input, has_output


def _is_in_place(
    spec: Collective, source: Array, target: Array, block: int, rank: int, root: int, where: str
) -> bool:
    """Return whether the call is in place; refuse any other overlap."""
    if not source.size or not target.size or not np.may_share_memory(source, target):
        return False
    which = spec.in_place(rank, root)
    larger, smaller = (source, target) if source.size > target.size else (target, source)
    offset = 0 if which is None else which * block * larger.itemsize
    if which != -1 and smaller.ctypes.data == larger.ctypes.data + offset:
        return True
    if which == -1:
        rule = "has no in-place form"
    elif which is None:
        rule = "is in place when both are the same array"
    else:
        part = f"elements {which * block}..{(which + 1) * block - 1}"
        rule = f"is in place when the smaller is {part} of the larger"
    raise InvalidArgument(f"{where}: sendbuf and recvbuf overlap; {spec.name} {rule}")


def _block(spec: Collective, source: Array | None, target: Array | None, n: int, where: str) -> int:
    """Return the elements of one block, from whichever buffers there are."""
    blocks, found = spec.blocks(n), []
    for what, buffer, parts in (("sendbuf", source, blocks[0]), ("recvbuf", target, blocks[1])):
        if buffer is None:
            continue
        if buffer.size % parts:
            raise InvalidArgument(
                f"{where}: {what} has {buffer.size} elements, which {parts} ranks do not divide"
            )
        found.append((buffer.size // parts, what, buffer.size))
    if len({size for size, _, _ in found}) > 1:
        given = ", ".join(f"{what} {total}" for _, what, total in found)
        raise InvalidArgument(
            f"{where}: the buffers do not fit: {given} elements; expected "
            f"{blocks[0]} and {blocks[1]} times one count"
        )
    return found[0][0]


def checked_call(
    collective: str,
    sendbuf: object,
    recvbuf: object,
    op: ReduceOp | str,
    root: int,
    rank: int,
    n: int,
) -> Call:
    """Return the checked call of `rank`; raise InvalidArgument for what cannot be done."""
    spec, where = COLLECTIVES[collective], f"{collective} at rank {rank}"
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)) or not 0 <= root < n:
        raise InvalidArgument(f"{where}: root {root!r} is not one of 0..{n - 1}")
    chosen = _of_call(where, op_named, op if isinstance(op, str) else str(op))
    has_input, has_output = _needed(spec, rank, n, int(root))
    source = _flat(sendbuf, f"{where}: sendbuf", False) if has_input else None
    target = _flat(recvbuf, f"{where}: recvbuf", True) if has_output else None
    if source is not None and target is not None and source.dtype != target.dtype:
        raise InvalidArgument(
            f"{where}: sendbuf is {source.dtype}, recvbuf is {target.dtype}: "
            "one data type was expected"
        )
    block = _block(spec, source, target, n, where)
    in_place = (
        source is not None
        and target is not None
        and _is_in_place(spec, source, target, block, rank, int(root), where)
    )
    kind = source if source is not None else target
    assert kind is not None  # every rank of every collective has one of the two
    signature = Signature(
        collective, block, name_of(kind.dtype), chosen.value, int(root) if spec.rooted else 0
    )
    return Call(signature, source, target, in_place)
