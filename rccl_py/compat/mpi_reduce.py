"""MPI's collectives that reduce, over one communicator.

Owns how each becomes calls of Communicator: one reduction of the core where mpi_ops.way_of says so,
else every contribution travels and is folded in rank order where the result is wanted. A function
each, named after MPI's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .mpi_buffers import is_in_place, read_block
from .mpi_errors import MessageError
from .mpi_move import checked_root
from .mpi_ops import fold, op_of, way_of
from .mpi_types import Datatype

if TYPE_CHECKING:
    from ..comm import Communicator

__all__ = ["allreduce", "reduce", "reduce_scatter", "reduce_scatter_block", "scan"]

Array: TypeAlias = npt.NDArray[Any]


def _taken(spec: object, what: str, *, writes: bool) -> tuple[Array, Datatype]:
    block = read_block(spec, what, writes=writes)
    return block.elements(what), block.kind


def _require_same(mine: Array, dtype: np.dtype[Any], count: int, what: str) -> None:
    if mine.dtype != dtype or mine.size != count:
        raise MessageError(f"{what}: sendbuf is {mine.size} x {mine.dtype}, recvbuf asks for "
                           f"{count} x {dtype}")  # fmt: skip


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _gathered(comm: Communicator, mine: Array) -> Array:
    """Return every rank's contribution, [nranks, count]."""
    rows = np.empty((comm.nranks, mine.size), mine.dtype)
    comm.allgather(_bytes(mine), _bytes(rows))
    return rows


def allreduce(comm: Communicator, sendbuf: object, recvbuf: object, op: object) -> None:
    """Reduce every rank's contribution; leave the result at all."""
    result, kind = _taken(recvbuf, "Allreduce: recvbuf", writes=True)
    mine = result
    if not is_in_place(sendbuf):
        mine, _ = _taken(sendbuf, "Allreduce: sendbuf", writes=False)
        _require_same(mine, result.dtype, result.size, "Allreduce")
    chosen = op_of(op, "Allreduce")
    way = way_of(chosen, mine.dtype, "Allreduce")
    if way.core is None:
        result[...] = fold(chosen, _gathered(comm, mine), kind)
    elif way.encode is None:
        comm.allreduce(mine.view(way.dtype), result.view(way.dtype), way.core)
    else:
        moved = way.encode(mine)
        comm.allreduce(moved, moved, way.core)
        way.arrive(moved, result)


def reduce(comm: Communicator, sendbuf: object, recvbuf: object, op: object, root: int) -> None:
    """Reduce every rank's contribution; leave the result at the root."""
    result, at_root = None, comm.rank == checked_root(root, comm.nranks, "Reduce")
    if at_root:
        result, kind = _taken(recvbuf, "Reduce: recvbuf", writes=True)
    if result is not None and is_in_place(sendbuf):
        mine = result
    else:
        mine, kind = _taken(sendbuf, "Reduce: sendbuf", writes=False)
        if result is not None:
            _require_same(mine, result.dtype, result.size, "Reduce")
    chosen = op_of(op, "Reduce")
    way = way_of(chosen, mine.dtype, "Reduce")
    if way.core is None:
        rows = np.empty((comm.nranks, mine.size), mine.dtype) if at_root else None
        # In place the contribution is copied: the result is written where it lies.
        comm.gather(_bytes(mine), None if rows is None else _bytes(rows), root)
        if rows is not None and result is not None:
            result[...] = fold(chosen, rows, kind)
        return
    moved = way.travels(mine)
    into = None if result is None else (moved if way.encode is not None else result.view(way.dtype))
    comm.reduce(moved, into, way.core, root)
    if into is not None and result is not None:
        way.arrive(into, result)


def reduce_scatter_block(comm: Communicator, sendbuf: object, recvbuf: object, op: object) -> None:
    """Reduce every rank's contribution of nranks blocks; leave block r at rank r."""
    n, what = comm.nranks, "Reduce_scatter_block"
    if is_in_place(sendbuf):
        recv = read_block(recvbuf, f"{what}: recvbuf", writes=True, blocks=n)
        mine, kind, count = recv.elements(f"{what}: recvbuf"), recv.kind, recv.count
    else:
        mine, kind = _taken(sendbuf, f"{what}: sendbuf", writes=False)
        count = mine.size // n
    _reduce_scatter(comm, mine, kind, recvbuf, [count] * n, op, what, is_in_place(sendbuf))


def reduce_scatter(
    comm: Communicator, sendbuf: object, recvbuf: object, recvcounts: object, op: object
) -> None:
    """Reduce every rank's contribution; leave its r-th part, of recvcounts[r], at rank r."""
    n, what, own = comm.nranks, "Reduce_scatter", is_in_place(sendbuf)
    if own:
        mine, kind = _taken(recvbuf, f"{what}: recvbuf", writes=True)
    else:
        mine, kind = _taken(sendbuf, f"{what}: sendbuf", writes=False)
    if recvcounts is None and own:
        raise MessageError(f"{what}: recvcounts are needed when it is in place")
    if recvcounts is None:
        wanted, counts = _taken(recvbuf, f"{what}: recvbuf", writes=True)[0], np.empty(n, np.int64)
        comm.allgather(np.array([wanted.size], np.int64), counts)
    else:
        counts = np.asarray(recvcounts, np.int64).reshape(-1)
    if len(counts) != n or (counts < 0).any():
        raise MessageError(f"{what}: recvcounts {counts.tolist()}: expected {n} of 0 or more")
    _reduce_scatter(comm, mine, kind, recvbuf, counts.tolist(), op, what, own)


def _reduce_scatter(
    comm: Communicator,
    mine: Array,
    kind: Datatype,
    recvbuf: object,
    counts: list[int],
    op: object,
    what: str,
    own: bool,
) -> None:
    """Reduce contributions; leave part r at rank r. own: in place, at the start of recvbuf."""
    n, count = comm.nranks, counts[comm.rank]
    if own:
        result = mine[:count]
    else:
        result, _ = _taken(recvbuf, f"{what}: recvbuf", writes=True)
        if result.size != count:
            raise MessageError(
                f"{what}: recvbuf has {result.size} elements, this rank's part {count}"
            )
    _require_same(mine, result.dtype, sum(counts), what)
    chosen = op_of(op, what)
    way, equal = way_of(chosen, mine.dtype, what), len(set(counts)) == 1
    if way.core is None:
        rows = np.empty((n, count), mine.dtype)
        if equal:
            comm.alltoall(_bytes(mine), _bytes(rows))
        else:
            size = mine.itemsize
            out, coming = [c * size for c in counts], [count * size] * n
            starts = [[sum(c[:r]) for r in range(n)] for c in (out, coming)]
            comm.alltoallv(_bytes(mine), out, starts[0], _bytes(rows), coming, starts[1])
        result[...] = fold(chosen, rows, kind)
        return
    if own or way.encode is not None:  # in place is elsewhere in the core's rules
        into = np.empty(count * way.per, way.dtype)
    else:
        into = result.view(way.dtype)
    if equal:
        comm.reduce_scatter(way.travels(mine), into, way.core)
    else:
        comm.reduce_scatterv(way.travels(mine), into, [c * way.per for c in counts], way.core)
    way.arrive(into, result)


def scan(
    comm: Communicator, sendbuf: object, recvbuf: object, op: object, *, exclusive: bool
) -> None:
    """Leave at rank r the reduction of ranks 0..r (exclusive: 0..r-1, nothing at rank 0)."""
    what = "Exscan" if exclusive else "Scan"
    result, kind = _taken(recvbuf, f"{what}: recvbuf", writes=True)
    mine = result
    if not is_in_place(sendbuf):
        mine, _ = _taken(sendbuf, f"{what}: sendbuf", writes=False)
        _require_same(mine, result.dtype, result.size, what)
    chosen = op_of(op, what)
    chosen.require(mine.dtype, what)
    rows = _gathered(comm, mine)[: comm.rank + (not exclusive)]
    if len(rows):
        result[...] = fold(chosen, rows, kind)
