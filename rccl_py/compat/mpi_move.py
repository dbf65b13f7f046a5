"""MPI's collectives that move data, and those that reduce it, over one communicator.

Owns how each becomes calls of Communicator; a function each, named after MPI's. Knows messages
(mpi_buffers) and reductions (mpi_ops), no MPI communicator. Data that is only moved travels as
bytes: what ranks must agree on is the number of bytes, as MPI asks of their type signatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .mpi_blocks import Block, Parts
from .mpi_buffers import is_in_place, read_block, read_parts, read_typed_parts
from .mpi_errors import ERR_ROOT, MessageError, checked_rank

if TYPE_CHECKING:
    from ..comm import Communicator

__all__ = ["allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw", "bcast", "checked_root",
           "exchanged", "gather", "gatherv", "scatter", "scatterv"]  # fmt: skip

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_NONE = np.empty(0, np.uint8)


def checked_root(root: object, n: int, what: str) -> int:
    """Return the root's rank; raise MpiError of class ERR_ROOT when it is none."""
    return checked_rank(root, n, f"{what}: root", ERR_ROOT)


def _require_same(send: Block, recv: Block, what: str) -> None:
    if send.nbytes != recv.nbytes:
        raise MessageError(
            f"{what}: a block is {send.nbytes} bytes ({send.count} x {send.kind.name}) in sendbuf "
            f"and {recv.nbytes} ({recv.count} x {recv.kind.name}) in recvbuf"
        )


def bcast(comm: Communicator, buf: object, root: int) -> None:
    """Copy the root's message to all."""
    at_root = comm.rank == checked_root(root, comm.nranks, "Bcast")
    block = read_block(buf, "Bcast: buf", writes=not at_root)
    area = block.read() if at_root else block.area()
    if not area.flags.writeable:
        area = area.copy()  # the core writes into every recvbuf, the root's too
    comm.broadcast(area, area, root)
    if not at_root:
        block.settle(area)


def gather(comm: Communicator, sendbuf: object, recvbuf: object, root: int) -> None:
    """Put rank r's block into block r of the root's message."""
    rank, n = comm.rank, comm.nranks
    if rank != checked_root(root, n, "Gather"):
        comm.gather(read_block(sendbuf, "Gather: sendbuf", writes=False).read(), None, root)
        return
    recv = read_block(recvbuf, "Gather: recvbuf", writes=True, blocks=n)
    own = is_in_place(sendbuf)
    area = recv.area(load=own)
    if own:
        part = area[rank * recv.nbytes : (rank + 1) * recv.nbytes]
    else:
        send = read_block(sendbuf, "Gather: sendbuf", writes=False)
        _require_same(send, recv, "Gather")
        part = send.read()
    comm.gather(part, area, root)
    recv.settle(area)


def scatter(comm: Communicator, sendbuf: object, recvbuf: object, root: int) -> None:
    """Put block r of the root's message into rank r's."""
    rank, n = comm.rank, comm.nranks
    if rank != checked_root(root, n, "Scatter"):
        recv = read_block(recvbuf, "Scatter: recvbuf", writes=True)
        area = recv.area()
        comm.scatter(None, area, root)
        recv.settle(area)
        return
    send = read_block(sendbuf, "Scatter: sendbuf", writes=False, blocks=n)
    data = send.read()
    if is_in_place(recvbuf):
        part = data[rank * send.nbytes : (rank + 1) * send.nbytes]
        if not part.flags.writeable:  # its own part stays where it is, but the core may write it
            part = part.copy()
        comm.scatter(data, part, root)
        return
    recv = read_block(recvbuf, "Scatter: recvbuf", writes=True)
    _require_same(send, recv, "Scatter")
    area = recv.area()
    comm.scatter(data, area, root)
    recv.settle(area)


def allgather(comm: Communicator, sendbuf: object, recvbuf: object) -> None:
    """Put rank r's block into block r of every message."""
    recv = read_block(recvbuf, "Allgather: recvbuf", writes=True, blocks=comm.nranks)
    own = is_in_place(sendbuf)
    area = recv.area(load=own)
    if own:
        part = area[comm.rank * recv.nbytes : (comm.rank + 1) * recv.nbytes]
    else:
        send = read_block(sendbuf, "Allgather: sendbuf", writes=False)
        _require_same(send, recv, "Allgather")
        part = send.read()
    comm.allgather(part, area)
    recv.settle(area)


def alltoall(comm: Communicator, sendbuf: object, recvbuf: object) -> None:
    """Put block j of rank r's message into block r of rank j's."""
    n = comm.nranks
    recv = read_block(recvbuf, "Alltoall: recvbuf", writes=True, blocks=n)
    if is_in_place(sendbuf):
        data = recv.read().copy()
    else:
        send = read_block(sendbuf, "Alltoall: sendbuf", writes=False, blocks=n)
        _require_same(send, recv, "Alltoall")
        data = send.read()
    area = recv.area()
    comm.alltoall(data, area)
    recv.settle(area)


# ---- unequal parts: bytes, with byte counts and displacements -----------------------------------


def _uneven(comm: Communicator, send: Parts | None, recv: Parts | None) -> None:
    """Exchange parts; None where this rank sends, or receives, nothing."""
    zeros = [0] * comm.nranks
    data, out, at = _NONE, zeros, zeros
    if send is not None:
        data, out, at = send.read(), send.counts, send.displs
    if recv is None:
        comm.alltoallv(data, out, at, _NONE.copy(), zeros, zeros)
        return
    area = recv.area()
    comm.alltoallv(data, out, at, area, recv.counts, recv.displs)
    recv.settle(area)


def _only(block: Block, rank: int, n: int) -> Parts:
    """Return a message for one rank as the parts of all."""
    none = Block(block.memory, block.kind, 0, 0, 0)
    return Parts([block if r == rank else none for r in range(n)], block.memory)


def _without(parts: Parts, rank: int) -> Parts:
    """Return the parts without one rank's: it is in place."""
    blocks = [
        Block(b.memory, b.kind, 0, 0, 0) if r == rank else b for r, b in enumerate(parts.blocks)
    ]
    return Parts(blocks, parts.whole)


def gatherv(comm: Communicator, sendbuf: object, recvbuf: object, root: int) -> None:
    """Put rank r's message into part r of the root's."""
    rank, n = comm.rank, comm.nranks
    at_root = rank == checked_root(root, n, "Gatherv")
    recv = read_parts(recvbuf, "Gatherv: recvbuf", n, writes=True) if at_root else None
    if recv is not None and is_in_place(sendbuf):
        _uneven(comm, None, _without(recv, rank))
        return
    send = read_block(sendbuf, "Gatherv: sendbuf", writes=False)
    _uneven(comm, _only(send, root, n), recv)


def scatterv(comm: Communicator, sendbuf: object, recvbuf: object, root: int) -> None:
    """Put part r of the root's message into rank r's."""
    rank, n = comm.rank, comm.nranks
    at_root = rank == checked_root(root, n, "Scatterv")
    send = read_parts(sendbuf, "Scatterv: sendbuf", n, writes=False) if at_root else None
    if send is not None and is_in_place(recvbuf):
        _uneven(comm, _without(send, rank), None)
        return
    recv = read_block(recvbuf, "Scatterv: recvbuf", writes=True)
    _uneven(comm, send, _only(recv, root, n))


def allgatherv(comm: Communicator, sendbuf: object, recvbuf: object) -> None:
    """Put rank r's message into part r of every message."""
    recv = read_parts(recvbuf, "Allgatherv: recvbuf", comm.nranks, writes=True)
    own, mine = is_in_place(sendbuf), recv.blocks[comm.rank]
    if own:
        part = mine.read().copy()
    else:
        send = read_block(sendbuf, "Allgatherv: sendbuf", writes=False)
        _require_same(send, mine, "Allgatherv")
        part = send.read()
    area = recv.area()
    comm.allgatherv(part, area, recv.counts, recv.displs)
    recv.settle(area)


def _exchange(comm: Communicator, send: Parts | None, recv: Parts) -> None:
    """Exchange parts; send None: in place, from copies of what is to be received into."""
    if send is None:
        data = np.concatenate([b.read() for b in recv.blocks]) if recv.blocks else _NONE
        starts = np.cumsum([0, *recv.counts[:-1]]).tolist()
        area = recv.area()
        comm.alltoallv(data, recv.counts, starts, area, recv.counts, recv.displs)
        recv.settle(area)
    else:
        _uneven(comm, send, recv)


def alltoallv(comm: Communicator, sendbuf: object, recvbuf: object) -> None:
    """Put part j of rank r's message into part r of rank j's."""
    n = comm.nranks
    recv = read_parts(recvbuf, "Alltoallv: recvbuf", n, writes=True)
    own = is_in_place(sendbuf)
    send = None if own else read_parts(sendbuf, "Alltoallv: sendbuf", n, writes=False)
    _exchange(comm, send, recv)


def alltoallw(comm: Communicator, sendbuf: object, recvbuf: object) -> None:
    """Put part j of rank r's message into part r of rank j's; every part is of its own type."""
    n = comm.nranks
    recv = read_typed_parts(recvbuf, "Alltoallw: recvbuf", n, writes=True)
    own = is_in_place(sendbuf)
    send = None if own else read_typed_parts(sendbuf, "Alltoallw: sendbuf", n, writes=False)
    _exchange(comm, send, recv)


# ---- texts of any length: pickled objects -------------------------------------------------------


def exchanged(comm: Communicator, out: list[bytes]) -> list[bytes]:
    """Send out[r] to every rank r and return what each rank sent here: lengths first."""
    n = comm.nranks
    lengths, coming = np.array([len(o) for o in out], np.int64), np.empty(n, np.int64)
    comm.alltoall(lengths, coming)
    data, area = np.frombuffer(b"".join(out), np.uint8), np.empty(int(coming.sum()), np.uint8)
    starts = [np.cumsum([0, *c[:-1]]).tolist() for c in (lengths.tolist(), coming.tolist())]
    comm.alltoallv(data, lengths.tolist(), starts[0], area, coming.tolist(), starts[1])
    return [area[s : s + c].tobytes() for s, c in zip(starts[1], coming.tolist())]
