"""One call of one rank: its checked buffers, and what must agree with the other ranks' calls.

Owns argument checking. Every refusal is InvalidArgument, names the rank and leaves the
communicator as it was. Counts are those of the input (of the output where a root sends); a
receive buffer may be longer than needed, what lies behind is not touched (nccl4py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import whole
from ..buffers import flat
from ..collectives import COLLECTIVES, Collective
from ..dtypes import DTYPES, dtype_named, name_of
from ..errors import InvalidArgument
from ..reduce_ops import Arithmetic, PreMulSum, ReduceOp, op_named

__all__ = [
    "KINDS",
    "OPS",
    "Call",
    "Signature",
    "checked_call",
    "checked_dtype",
    "checked_message",
    "checked_reduction",
    "plain_call",
]

Array = npt.NDArray[Any]
Op = ReduceOp | PreMulSum | str

UNEVEN = ("alltoallv", "allgatherv", "reduce_scatterv")
SETUP = ("barrier", "split", "register_window", "finalize", "destroy")
KINDS: tuple[str, ...] = (*COLLECTIVES, *UNEVEN, *SETUP)
"""What all ranks of a communicator call together, numbered for processes to compare."""
OPS: tuple[str, ...] = (*(o.value for o in ReduceOp), PreMulSum.value)


@dataclass(frozen=True, slots=True)
class Signature:
    """What ranks must agree on. block: elements one rank contributes (of a message: all).

    accumulate: type partial results are held in, "" for the data's. counts: elements of every
    rank in a collective of unequal parts. peer: the other end of a message, -1 in a collective.
    """

    collective: str
    block: int = 0
    dtype: str = ""
    op: str = ""
    root: int = -1
    accumulate: str = ""
    counts: tuple[int, ...] = ()
    peer: int = -1

    def head(self, number: int) -> bytes:
        """Return call `number` with this signature as 64 bytes, for processes to compare."""
        dtypes = ("", *DTYPES)
        row = (
            number,
            KINDS.index(self.collective),
            self.block,
            dtypes.index(self.dtype),
            OPS.index(self.op) if self.op else -1,
            self.root,
            dtypes.index(self.accumulate),
            hash(self.counts) if self.counts else 0,
        )
        return np.array(row, dtype=np.int64).tobytes()

    def fields(self) -> dict[str, Any]:
        """Return what a flight record holds of it."""
        size = dtype_named(self.dtype).itemsize if self.dtype else 0
        return {
            "collective": self.collective,
            "count": self.block,
            "dtype": self.dtype,
            "op": self.op,
            "root": self.root,
            "peer": self.peer,
            "bytes": self.block * size,
        }

    def __str__(self) -> str:
        parts = [f"count={self.block}", f"dtype={self.dtype}"] if self.dtype else []
        parts += [f"op={self.op}"] if self.op else []
        parts += [f"root={self.root}"] if self.root >= 0 else []
        parts += [f"accumulate={self.accumulate}"] if self.accumulate else []
        parts += [f"counts={_shown(self.counts)}"] if self.counts else []
        parts += [f"peer={self.peer}"] if self.peer >= 0 else []
        return f"{self.collective}({', '.join(parts)})"


def _shown(counts: Sequence[int]) -> str:
    more = ", ..." if len(counts) > 16 else ""
    return f"[{', '.join(str(c) for c in counts[:16])}{more}]"


@dataclass(eq=False, slots=True)
class Call:
    """A checked call: signature, flat buffers (None where the rank has none), in place or not.

    scale: what the input is multiplied by first. sends, recvs: (counts, displacements) in elements
    of alltoallv. payload: what a call without data carries (a colour, a window). given: what the
    program passed, for the next call to compare with.
    """

    signature: Signature
    source: Array | None = None
    target: Array | None = None
    in_place: bool = False
    arithmetic: Arithmetic | None = None
    scale: Array | None = None
    sends: tuple[list[int], list[int]] | None = None
    recvs: tuple[list[int], list[int]] | None = None
    payload: Any = None
    given: tuple[Any, ...] | None = None

    def forget(self) -> None:
        """Let go of the buffers: the call is over."""
        self.source = self.target = self.scale = None


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a supported data type; raise InvalidArgument for any other."""
    if isinstance(dtype, str):
        return dtype_named(dtype)
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError):
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


def _needed(spec: Collective, rank: int, root: int) -> tuple[bool, bool]:
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
    """Return the elements of one block: the input's, where a root sends the output's."""
    blocks = spec.blocks(n)
    from_output = spec.name in ("broadcast", "scatter") or source is None
    what, buffer, parts = (
        ("recvbuf", target, blocks[1]) if from_output else ("sendbuf", source, blocks[0])
    )
    assert buffer is not None  # every rank of every collective has that one
    if buffer.size % parts:
        raise InvalidArgument(
            f"{where}: {what} has {buffer.size} elements, which {parts} ranks do not divide"
        )
    block = buffer.size // parts
    misfit = (from_output and source is not None and source.size != block * blocks[0]) or (
        target is not None and target.size < block * blocks[1]
    )
    if misfit:
        given = ", ".join(
            f"{what} {b.size}"
            for what, b in (("sendbuf", source), ("recvbuf", target))
            if b is not None
        )
        raise InvalidArgument(
            f"{where}: the buffers do not fit: {given} elements; expected "
            f"{blocks[0]} and {blocks[1]} times one count"
        )
    return block


def checked_reduction(
    op: object, dtype: np.dtype[Any], accumulate: npt.DTypeLike | None, owner: object, where: str
) -> tuple[str, Arithmetic, Array | None]:
    """Return the reduction's name, its arithmetic, and what the input is multiplied by."""
    wide = None if accumulate is None else _of_call(where, checked_dtype, accumulate)
    if wide is not None and (dtype.kind in "iu") != (wide.kind in "iu"):
        raise InvalidArgument(
            f"{where}: accumulate={name_of(wide)} with data of {name_of(dtype)}: both must be "
            "whole numbers or both floating point"
        )
    if wide is not None and wide.itemsize < dtype.itemsize:
        raise InvalidArgument(
            f"{where}: accumulate={name_of(wide)} is narrower than the data, {name_of(dtype)}"
        )
    wide = None if wide == dtype else wide
    if not isinstance(op, PreMulSum):
        chosen = op if isinstance(op, ReduceOp) else _of_call(where, op_named, str(op))
        return chosen.value, Arithmetic(chosen, dtype, wide), None
    if op.closed or op.owner is not owner:
        state = "was closed" if op.closed else "is of another communicator"
        raise InvalidArgument(f"{where}: op {op!r} {state}: create_pre_mul_sum makes a new one")
    if op.dtype != dtype:
        raise InvalidArgument(
            f"{where}: op {op!r} works on {name_of(op.dtype)}, the data is {name_of(dtype)}"
        )
    return op.value, Arithmetic(ReduceOp.SUM, dtype, wide), op.scalar


def checked_root(root: object, n: int, where: str) -> int:
    """Return the root as an int; refuse what is none."""
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)) or not 0 <= root < n:
        raise InvalidArgument(f"{where}: root {root!r} is not one of 0..{n - 1}")
    return int(root)


def checked_call(
    collective: str,
    sendbuf: object,
    recvbuf: object,
    op: object,
    root: object,
    rank: int,
    n: int,
    accumulate: npt.DTypeLike | None = None,
    owner: object = None,
) -> Call:
    """Return the checked call of `rank`; raise InvalidArgument for what cannot be done.

    owner: what a pre-multiplied sum must belong to.
    """
    spec, where = COLLECTIVES[collective], f"{collective} at rank {rank}"
    at = checked_root(root, n, where)
    has_input, has_output = _needed(spec, rank, at)
    source = flat(sendbuf, f"{where}: sendbuf", writes=False) if has_input else None
    target = flat(recvbuf, f"{where}: recvbuf", writes=True) if has_output else None
    if source is not None and target is not None and source.dtype != target.dtype:
        raise InvalidArgument(
            f"{where}: sendbuf is {source.dtype}, recvbuf is {target.dtype}: "
            "one data type was expected"
        )
    kind = source if source is not None else target
    assert kind is not None  # every rank of every collective has one of the two
    name, arithmetic, scale = checked_reduction(op, kind.dtype, accumulate, owner, where)
    block = _block(spec, source, target, n, where)
    if target is not None:
        target = target[: block * spec.blocks(n)[1]]
    in_place = (
        source is not None
        and target is not None
        and _is_in_place(spec, source, target, block, rank, at, where)
    )
    if not spec.reduces:
        name, arithmetic, scale = "", Arithmetic(ReduceOp.SUM, kind.dtype), None
    signature = Signature(
        collective,
        block,
        name_of(kind.dtype),
        name,
        at if spec.rooted else -1,
        name_of(arithmetic.held) if arithmetic.rounds else "",
    )
    return Call(signature, source, target, in_place, arithmetic, scale)


def checked_message(kind: str, buffer: object, peer: object, rank: int, n: int) -> Call:
    """Return the checked call of a send or a recv."""
    where = f"{kind} at rank {rank}"
    held = flat(buffer, f"{where}: {kind}buf", writes=kind == "recv")
    other = whole(peer, f"{where}: peer", 0, n - 1)
    signature = Signature(kind, held.size, name_of(held.dtype), peer=other)
    return Call(signature, held if kind == "send" else None, held if kind == "recv" else None)


def plain_call(kind: str, payload: object = None) -> Call:
    """Return a call without data."""
    return Call(Signature(kind), payload=payload)
