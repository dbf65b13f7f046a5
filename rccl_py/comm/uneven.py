"""Calls of unequal parts: alltoallv, allgatherv, reduce_scatterv, and what their counts must obey.

Owns the checks of counts and displacements. Every refusal is InvalidArgument and names the rank.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import whole
from ..buffers import flat
from ..dtypes import name_of
from ..errors import InvalidArgument
from ..units import LARGEST
from .call import Call, Signature, checked_reduction

__all__ = ["checked_uneven"]

Array = npt.NDArray[Any]


def _whole_list(values: object, what: str, n: int) -> list[int]:
    try:
        found = [whole(v, what, 0, LARGEST) for v in values]  # type: ignore[attr-defined]
    except TypeError:
        raise InvalidArgument(
            f"{what} is a {type(values).__name__}: a sequence of {n} whole numbers was expected"
        ) from None
    if len(found) != n:
        raise InvalidArgument(f"{what} has {len(found)} entries: expected one a rank, {n}")
    return found


def _parts(
    buffer: Array, counts: object, displs: object, what: str, n: int
) -> tuple[list[int], list[int]]:
    """Return checked (counts, displacements) of one side of a collective of unequal parts."""
    sizes = _whole_list(counts, f"{what} counts", n)
    packed = [sum(sizes[:r]) for r in range(n)]
    first = packed if displs is None else _whole_list(displs, f"{what} displacements", n)
    for rank, (at, size) in enumerate(zip(first, sizes)):
        if at + size > buffer.size:
            raise InvalidArgument(
                f"{what} of rank {rank} is elements {at}..{at + size - 1}, "
                f"the buffer has {buffer.size}"
            )
    return sizes, first


def _require_disjoint(parts: tuple[list[int], list[int]], where: str) -> None:
    spans = sorted((at, at + size, r) for r, (size, at) in enumerate(zip(*parts)) if size)
    for (_, end, a), (start, _, b) in pairwise(spans):
        if start < end:
            raise InvalidArgument(f"{where}: what comes from ranks {a} and {b} overlaps in recvbuf")


def checked_uneven(
    collective: str,
    sendbuf: object,
    recvbuf: object,
    sends: tuple[object, object],
    recvs: tuple[object, object],
    op: object,
    rank: int,
    n: int,
    accumulate: npt.DTypeLike | None = None,
    owner: object = None,
) -> Call:
    """Return the checked call of alltoallv, allgatherv or reduce_scatterv.

    sends, recvs: counts and displacements (None: one after the other); of allgatherv only recvs,
    of reduce_scatterv only sends, with the counts of all ranks.
    """
    where = f"{collective} at rank {rank}"
    source = flat(sendbuf, f"{where}: sendbuf", writes=False)
    target = flat(recvbuf, f"{where}: recvbuf", writes=True)
    if source.dtype != target.dtype:
        raise InvalidArgument(
            f"{where}: sendbuf is {source.dtype}, recvbuf is {target.dtype}: "
            "one data type was expected"
        )
    name, arithmetic, scale = checked_reduction(op, source.dtype, accumulate, owner, where)
    out = into = None
    if collective != "allgatherv":
        out = _parts(source, *sends, f"{where}: sendbuf", n)
    if collective != "reduce_scatterv":
        into = _parts(target, *recvs, f"{where}: recvbuf", n)
        _require_disjoint(into, where)
    counts: tuple[int, ...] = ()
    if collective == "allgatherv":
        assert into is not None
        counts = tuple(into[0])
        _require_size(source, counts[rank], f"{where}: sendbuf")
        source = source[: counts[rank]]
    elif collective == "reduce_scatterv":
        assert out is not None
        counts = tuple(out[0])
        _require_size(target, counts[rank], f"{where}: recvbuf")
        target = target[: counts[rank]]
    if not _uneven_overlap_is_right(collective, source, target, out, into, rank):
        raise InvalidArgument(
            f"{where}: sendbuf and recvbuf overlap: pass a copy, or this rank's own part"
        )
    reduces = collective == "reduce_scatterv"
    signature = Signature(
        collective,
        0 if collective == "alltoallv" else sum(counts),
        name_of(source.dtype),
        name if reduces else "",
        -1,
        name_of(arithmetic.held) if reduces and arithmetic.rounds else "",
        counts,
    )
    scale = scale if reduces else None
    return Call(signature, source, target, False, arithmetic, scale, out, into)


def _require_size(buffer: Array, count: int, what: str) -> None:
    if buffer.size < count:
        raise InvalidArgument(f"{what} has {buffer.size} elements: counts say {count}")


def _uneven_overlap_is_right(
    collective: str,
    source: Array,
    target: Array,
    out: tuple[list[int], list[int]] | None,
    into: tuple[list[int], list[int]] | None,
    rank: int,
) -> bool:
    """Return whether the buffers lie apart, or the smaller is this rank's part of the larger."""
    if not source.size or not target.size or not np.may_share_memory(source, target):
        return True
    if collective == "allgatherv" and into is not None:
        return bool(source.ctypes.data == target[into[1][rank] :].ctypes.data)
    if collective == "reduce_scatterv" and out is not None:
        return bool(target.ctypes.data == source[out[1][rank] :].ctypes.data)
    return False
