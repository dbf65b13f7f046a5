"""Python objects over one communicator, pickled: mpi4py's lower-case collectives.

Owns how each becomes calls of Communicator, lengths first and bytes then; a function each. Objects
are reduced in rank order where the result is wanted.
"""

from __future__ import annotations

import pickle
from functools import reduce as fold
from typing import TYPE_CHECKING, Any

import numpy as np

from .mpi_errors import MessageError
from .mpi_move import checked_root, exchanged
from .mpi_ops import op_of

if TYPE_CHECKING:
    from ..comm import Communicator

__all__ = ["allgather", "allreduce", "alltoall", "bcast", "gather", "reduce", "scan", "scatter"]


def bcast(comm: Communicator, obj: Any, root: int) -> Any:
    """Return the root's object."""
    at_root = comm.rank == checked_root(root, comm.nranks, "bcast")
    data = pickle.dumps(obj) if at_root else b""
    length = np.array([len(data)], np.int64)
    comm.broadcast(length, length, root)
    area = np.empty(int(length[0]), np.uint8)
    if at_root:
        area[:] = np.frombuffer(data, np.uint8)
    comm.broadcast(area, area, root)
    return obj if at_root else pickle.loads(area.tobytes())


def gather(comm: Communicator, obj: Any, root: int) -> list[Any] | None:
    """Return every rank's object at the root, None elsewhere."""
    checked_root(root, comm.nranks, "gather")
    out = [b""] * comm.nranks
    out[root] = pickle.dumps(obj)
    got = exchanged(comm, out)
    return [pickle.loads(data) for data in got] if comm.rank == root else None


def _required(objs: Any, n: int, what: str) -> list[bytes]:
    found = [] if objs is None else list(objs)
    if len(found) != n:
        raise MessageError(f"{what}: {len(found)} objects: expected one a rank, {n}")
    return [pickle.dumps(obj) for obj in found]


def scatter(comm: Communicator, objs: Any, root: int) -> Any:
    """Return this rank's of the root's objects."""
    at_root = comm.rank == checked_root(root, comm.nranks, "scatter")
    out = _required(objs, comm.nranks, "scatter") if at_root else [b""] * comm.nranks
    return pickle.loads(exchanged(comm, out)[root])


def allgather(comm: Communicator, obj: Any) -> list[Any]:
    """Return every rank's object."""
    data, counts = pickle.dumps(obj), np.empty(comm.nranks, np.int64)
    comm.allgather(np.array([len(data)], np.int64), counts)
    area, sizes = np.empty(int(counts.sum()), np.uint8), counts.tolist()
    comm.allgatherv(np.frombuffer(data, np.uint8), area, sizes)
    ends = np.cumsum(counts).tolist()
    return [pickle.loads(area[e - s : e].tobytes()) for e, s in zip(ends, sizes)]


def alltoall(comm: Communicator, objs: Any) -> list[Any]:
    """Return what every rank had for this one."""
    out = _required(objs, comm.nranks, "alltoall")
    return [pickle.loads(data) for data in exchanged(comm, out)]


def reduce(comm: Communicator, obj: Any, op: object, root: int) -> Any:
    """Return the reduction of all objects at the root, None elsewhere."""
    chosen = op_of(op, "reduce")
    checked_root(root, comm.nranks, "reduce")
    got = gather(comm, obj, root)
    return None if got is None else fold(chosen, got)


def allreduce(comm: Communicator, obj: Any, op: object) -> Any:
    """Return the reduction of all objects."""
    chosen = op_of(op, "allreduce")
    return fold(chosen, allgather(comm, obj))


def scan(comm: Communicator, obj: Any, op: object, *, exclusive: bool) -> Any:
    """Return the reduction of ranks 0..r (exclusive: 0..r-1, None at rank 0)."""
    chosen = op_of(op, "exscan" if exclusive else "scan")
    got = allgather(comm, obj)[: comm.rank + (not exclusive)]
    return fold(chosen, got) if got else None
