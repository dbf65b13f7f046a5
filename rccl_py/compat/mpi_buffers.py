"""Messages as mpi4py's callers write them: a buffer, and what part of it as which type.

Owns the reading of ``data``, ``[data, count]``, ``[data, (count, displ)]``, ``[data, type]``,
``[data, count, type]`` and ``[data, counts, displs, type]``, and the checks that a message is
inside its buffer. Knows no collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..buffers import as_array
from .mpi_blocks import Block, Parts
from .mpi_errors import MessageError, NotProvided
from .mpi_types import Datatype, datatype_of, is_datatype, mpi4py_loaded

__all__ = ["BOTTOM", "IN_PLACE", "is_in_place", "read_block", "read_parts", "read_typed_parts"]

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class _Mark:
    name: str

    def __repr__(self) -> str:
        return self.name


IN_PLACE = _Mark("IN_PLACE")
BOTTOM = _Mark("BOTTOM")


def is_in_place(spec: object) -> bool:
    """Return whether a buffer argument says "in place": ours, mpi4py's, or None."""
    mpi = mpi4py_loaded()
    return spec is None or spec is IN_PLACE or (mpi is not None and spec is mpi.IN_PLACE)


def _is_bottom(spec: object) -> bool:
    mpi = mpi4py_loaded()
    return spec is BOTTOM or (mpi is not None and spec is mpi.BOTTOM)


def _memory(buffer: object, what: str, writes: bool) -> tuple[Bytes, Datatype]:
    """Return the bytes of a contiguous buffer (of C's or Fortran's order) and its element."""
    if _is_bottom(buffer):
        raise NotProvided(f"{what}: BOTTOM, memory by its address, is not provided")
    array = np.asarray(as_array(buffer, what))
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise MessageError(
            f"{what} (shape {array.shape}, strides {array.strides}) is not contiguous: "
            "pass numpy.ascontiguousarray of it"
        )
    kind = Datatype.plain(array.dtype.name, array.dtype)
    if writes and not array.flags.writeable:
        raise MessageError(f"{what} is read-only: a writeable buffer was expected")
    return array.reshape(-1, order="A").view(np.uint8), kind


@dataclass(frozen=True)
class _Spec:
    """A message's parts as given, None for what was left out."""

    buffer: object
    counts: Any = None
    displs: Any = None
    kind: Datatype | None = None


def _parted(spec: object, what: str) -> _Spec:
    """Return the parts of a message; a buffer alone is one too."""
    if not isinstance(spec, (list, tuple)):
        return _Spec(spec)
    if not 2 <= len(spec) <= 4:
        raise MessageError(f"{what} has {len(spec)} items: expected [data, ...] of 2 to 4 items")
    buffer, *rest = spec
    kind = datatype_of(rest.pop()) if rest[-1] is not None and is_datatype(rest[-1]) else None
    if kind is None and rest and rest[-1] is None:
        rest.pop()
    if not rest:
        return _Spec(buffer, None, None, kind)
    if len(rest) == 2:
        return _Spec(buffer, rest[0], rest[1], kind)
    if len(rest) != 1:
        raise MessageError(f"{what}: {spec[3]!r} is not a datatype")
    counts = rest[0]
    if isinstance(counts, tuple) and len(counts) == 2:
        return _Spec(buffer, counts[0], counts[1], kind)
    return _Spec(buffer, counts, None, kind)


def _whole(value: object, what: str, name: str) -> int:
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise MessageError(f"{what}: {name} {value!r} is a {type(value).__name__}: "
                           "a whole number was expected") from None  # fmt: skip
    if number < 0:
        raise MessageError(f"{what}: negative {name} {number}")
    return number


def _entries(memory: Bytes, kind: Datatype, what: str) -> int:
    """Return how many elements a buffer holds; raise MessageError unless it is a whole number."""
    if not memory.size:
        return 0
    if kind.extent <= 0 or memory.size % kind.extent:
        raise MessageError(
            f"{what}: the count cannot be told: {memory.size} bytes are no multiple of "
            f"{kind.name}'s extent, {kind.extent}"
        )
    return memory.size // kind.extent


def _opened(given: _Spec, what: str, writes: bool) -> tuple[Bytes, Datatype]:
    """Return memory and datatype; no buffer is no memory."""
    if given.buffer is None:
        return np.empty(0, np.uint8), given.kind or Datatype.plain("BYTE", np.uint8)
    memory, kind = _memory(given.buffer, what, writes)
    return memory, given.kind or kind


def _required(kind: Datatype, count: int, at: int, memory: Bytes, what: str) -> None:
    """Raise MessageError when `count` elements from byte `at` leave the memory."""
    if not count or not kind.size:
        return
    low, high = (0, kind.extent) if kind.places is None else (
        int(kind.places.min()), int(kind.places.max()) + 1)  # fmt: skip
    low, high = at + low, at + (count - 1) * kind.extent + high
    if low < 0 or high > memory.size:
        raise MessageError(f"{what}: {count} x {kind.name} are bytes {low}..{high - 1}, "
                           f"the buffer has {memory.size}")  # fmt: skip


def read_block(spec: object, what: str, *, writes: bool, blocks: int = 1) -> Block:
    """Return a message of `blocks` equal blocks; its count, if given, is that of one block."""
    given = _parted(spec, what)
    if given.buffer is None and not isinstance(spec, (list, tuple)):
        raise MessageError(f"{what} is None: a buffer or [data, ...] was expected")
    memory, kind = _opened(given, what, writes)
    displ = 0 if given.displs is None else _whole(given.displs, what, "displacement")
    at = displ * kind.extent
    if at > memory.size:
        raise MessageError(f"{what}: displacement {displ} is behind the buffer's {memory.size} B")
    if given.counts is not None:
        count = _whole(given.counts, what, "count")
    else:
        entries = _entries(memory[at:], kind, what)
        if entries % blocks:
            raise MessageError(f"{what} has {entries} elements, which {blocks} ranks do not divide")
        count = entries // blocks
    _required(kind, count * blocks, at, memory, what)
    return Block(memory, kind, count, count * blocks, at)


def _listed(values: object, what: str, name: str, n: int) -> list[int]:
    found = [_whole(v, what, name) for v in values]  # type: ignore[attr-defined]
    if len(found) != n:
        raise MessageError(f"{what} has {len(found)} {name}s: expected one a rank, {n}")
    return found


def _is_whole(value: object) -> bool:
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def read_parts(spec: object, what: str, n: int, *, writes: bool) -> Parts:
    """Return a message of `n` parts with counts and displacements in elements of one type.

    One number stands for all ranks: as displacement, the distance from part to part.
    """
    given = _parted(spec, what)
    if given.buffer is None and not isinstance(spec, (list, tuple)):
        raise MessageError(f"{what} is None: a buffer or [data, ...] was expected")
    memory, kind = _opened(given, what, writes)
    if given.counts is None:
        entries = _entries(memory, kind, what)
        counts = [entries // n + (r < entries % n) for r in range(n)]
    elif _is_whole(given.counts):
        counts = [_whole(given.counts, what, "count")] * n
    else:
        counts = _listed(given.counts, what, "count", n)
    if given.displs is None:
        displs = [sum(counts[:r]) for r in range(n)]
    elif _is_whole(given.displs):
        displs = [r * _whole(given.displs, what, "displacement") for r in range(n)]
    else:
        displs = _listed(given.displs, what, "displacement", n)
    return _checked_parts(memory, [kind] * n, counts, [d * kind.extent for d in displs], what)


def read_typed_parts(spec: object, what: str, n: int, *, writes: bool) -> Parts:
    """Return a message of Alltoallw: a type a rank, displacements in bytes."""
    if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
        raise MessageError(f"{what}: expected [data, (counts, displs), types]")
    buffer, *middle, types = spec
    memory, _ = _memory(buffer, what, writes)
    kinds = [datatype_of(t) for t in types]
    if len(kinds) != n:
        raise MessageError(f"{what} has {len(kinds)} types: expected one a rank, {n}")
    flat: Sequence[object] = middle[0] if len(middle) == 1 else middle
    if not flat:
        return _checked_parts(memory, kinds, [1] * n, [0] * n, what)
    counts = _listed(flat[0], what, "count", n)
    return _checked_parts(memory, kinds, counts, _listed(flat[1], what, "displacement", n), what)


def _checked_parts(
    memory: Bytes, kinds: list[Datatype], counts: list[int], at: list[int], what: str
) -> Parts:
    for r, (kind, count, start) in enumerate(zip(kinds, counts, at)):
        _required(kind, count, start, memory, f"{what}, part of rank {r}")
    blocks = [Block(memory, k, c, c, a) for k, c, a in zip(kinds, counts, at)]
    return Parts(blocks, memory)
