"""Comm: MPI's communicator, with mpi4py's method names, over one of ours.

Owns the methods people call. What they do is in mpi_move, mpi_reduce, mpi_objects (collectives) and
mpi_messages (messages). Capitals take buffers, small letters Python objects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..comm import Communicator
from ..errors import InvalidArgument
from . import mpi_messages as messages
from . import mpi_move as move
from . import mpi_objects as objects
from . import mpi_reduce as reduction
from .mpi_errors import MpiError
from .mpi_ops import OPS, Op
from .mpi_post import ANY_SOURCE, ANY_TAG, PROC_NULL
from .mpi_requests import UNDEFINED, Request, Status
from .mpi_world import Seat, alone, world

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TAG_UB", "Comm"]

TAG_UB = 1  # MPI's key of the largest tag
_SUM = OPS["SUM"]


class Comm:
    """A communicator. Comm(communicator) wraps one; Comm() is COMM_NULL."""

    _find: Callable[[], Seat] | None

    def __new__(
        cls, communicator: Communicator | Comm | None = None, *,
        find: Callable[[], Seat] | None = None, name: str = "",
    ) -> Self:  # fmt: skip
        """Return it complete: mpi4py's subclasses call ``__new__`` and have an __init__ of theirs.

        find: looks up COMM_WORLD or COMM_SELF whenever it is used.
        """
        self = object.__new__(cls)
        self._find = find
        if isinstance(communicator, Comm):
            self._find = communicator._find
        elif communicator is not None:
            seat = Seat(communicator, name)
            self._find = lambda: seat
        return self

    @property
    def _seat(self) -> Seat:
        if self._find is None:
            raise InvalidArgument("the communicator is COMM_NULL: it was freed, or never made")
        return self._find()

    @property
    def communicator(self) -> Communicator:
        """The communicator underneath: its modelled time, plans and machine."""
        return self._seat.communicator

    def __bool__(self) -> bool:
        return self._find is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        if self._find is None or other._find is None:
            return self._find is other._find
        return self._find is other._find or self._seat is other._seat

    def __hash__(self) -> int:
        return hash(id(self._find))

    def __repr__(self) -> str:
        return f"<Comm over {self.communicator!r}>" if self else "<Comm COMM_NULL>"

    # ---- what it is -----------------------------------------------------------------------------

    def Get_rank(self) -> int:
        """Return this rank's number."""
        return self.communicator.rank

    def Get_size(self) -> int:
        """Return how many ranks there are."""
        return self.communicator.nranks

    def Get_name(self) -> str:
        """Return the name."""
        return self._seat.name

    def Set_name(self, name: str) -> None:
        """Give it a name."""
        self._seat.name = name

    rank = property(Get_rank)
    size = property(Get_size)
    name = property(Get_name, Set_name)

    def Is_inter(self) -> bool:
        """Return False: there are no intercommunicators."""
        return False

    def Is_intra(self) -> bool:
        """Return True."""
        return True

    def Get_attr(self, keyval: int) -> int | None:
        """Return the largest tag for TAG_UB, None for whatever else."""
        return 2**31 - 1 if keyval == TAG_UB else None

    # ---- others like it -------------------------------------------------------------------------

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """Return the communicator of the ranks of one colour, ordered by key, then by rank."""
        made = self.communicator.split(None if color == UNDEFINED else color, key)
        return Comm.__new__(type(self), made if made.is_valid else None)

    def Dup(self, info: object = None) -> Self:
        """Return a communicator of the same ranks."""
        return self.Split(0, self.Get_rank())

    def Clone(self) -> Self:
        """Return a communicator of the same ranks."""
        return self.Dup()

    def Free(self) -> None:
        """Release it; it is COMM_NULL afterwards. Raises MpiError for COMM_WORLD and COMM_SELF."""
        if self._find in (world, alone):
            raise MpiError(f"Free: {self.name} is MPI's own: free what Split and Dup return")
        self.communicator.destroy()
        self._find = None

    def Abort(self, errorcode: int = 0) -> None:
        """End all its calls with errors, and this program."""
        self.communicator.abort()
        raise SystemExit(errorcode)

    # ---- buffers --------------------------------------------------------------------------------

    def Barrier(self) -> None:
        """Return when every rank has come here."""
        self.communicator.barrier()

    def Bcast(self, buf: object, root: int = 0) -> None:
        """Copy the root's buffer to all."""
        move.bcast(self.communicator, buf, root)

    def Gather(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put rank r's buffer into block r of the root's."""
        move.gather(self.communicator, sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put rank r's buffer into part r of the root's."""
        move.gatherv(self.communicator, sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put block r of the root's buffer into rank r's."""
        move.scatter(self.communicator, sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put part r of the root's buffer into rank r's."""
        move.scatterv(self.communicator, sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: object, recvbuf: object) -> None:
        """Put rank r's buffer into block r of everybody's."""
        move.allgather(self.communicator, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: object, recvbuf: object) -> None:
        """Put rank r's buffer into part r of everybody's."""
        move.allgatherv(self.communicator, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: object, recvbuf: object) -> None:
        """Put block j of rank r's buffer into block r of rank j's."""
        move.alltoall(self.communicator, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: object, recvbuf: object) -> None:
        """Put part j of rank r's buffer into part r of rank j's."""
        move.alltoallv(self.communicator, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: object, recvbuf: object) -> None:
        """Put part j of rank r's buffer into part r of rank j's; a datatype a part."""
        move.alltoallw(self.communicator, sendbuf, recvbuf)

    def Reduce(self, sendbuf: object, recvbuf: object, op: object = _SUM, root: int = 0) -> None:
        """Reduce every rank's buffer into the root's."""
        reduction.reduce(self.communicator, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: object, recvbuf: object, op: object = _SUM) -> None:
        """Reduce every rank's buffer into everybody's."""
        reduction.allreduce(self.communicator, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: object, recvbuf: object, op: object = _SUM) -> None:
        """Reduce every rank's buffer; leave block r at rank r."""
        reduction.reduce_scatter_block(self.communicator, sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: object, recvbuf: object, recvcounts: object = None, op: object = _SUM
    ) -> None:
        """Reduce every rank's buffer; leave part r, of recvcounts[r] elements, at rank r."""
        reduction.reduce_scatter(self.communicator, sendbuf, recvbuf, recvcounts, op)

    def Scan(self, sendbuf: object, recvbuf: object, op: object = _SUM) -> None:
        """Leave the reduction of ranks 0 to r at rank r."""
        reduction.scan(self.communicator, sendbuf, recvbuf, op, exclusive=False)

    def Exscan(self, sendbuf: object, recvbuf: object, op: object = _SUM) -> None:
        """Leave the reduction of the ranks below r at rank r, nothing at rank 0."""
        reduction.scan(self.communicator, sendbuf, recvbuf, op, exclusive=True)

    # ---- objects --------------------------------------------------------------------------------

    barrier = Barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object."""
        return objects.bcast(self.communicator, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's object at the root, None elsewhere."""
        return objects.gather(self.communicator, sendobj, root)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Return this rank's of the root's objects."""
        return objects.scatter(self.communicator, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return every rank's object."""
        return objects.allgather(self.communicator, sendobj)

    def alltoall(self, sendobj: Any) -> list[Any]:
        """Return what every rank had for this one."""
        return objects.alltoall(self.communicator, sendobj)

    def reduce(self, sendobj: Any, op: Op | Any = _SUM, root: int = 0) -> Any:
        """Return the reduction of all objects at the root, None elsewhere."""
        return objects.reduce(self.communicator, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Op | Any = _SUM) -> Any:
        """Return the reduction of all objects."""
        return objects.allreduce(self.communicator, sendobj, op)

    def scan(self, sendobj: Any, op: Op | Any = _SUM) -> Any:
        """Return the reduction of the objects of ranks 0 to r."""
        return objects.scan(self.communicator, sendobj, op, exclusive=False)

    def exscan(self, sendobj: Any, op: Op | Any = _SUM) -> Any:
        """Return the reduction of the objects of the ranks below r, None at rank 0."""
        return objects.scan(self.communicator, sendobj, op, exclusive=True)

    # ---- messages of buffers --------------------------------------------------------------------

    def Isend(self, buf: object, dest: int, tag: int = 0) -> Request:
        """Begin to send a buffer, which may be written to again at once."""
        return messages.send(self._seat.post, buf, dest, tag, "Isend")

    def Issend(self, buf: object, dest: int, tag: int = 0) -> Request:
        """Begin to send a buffer; it is over when a receive has matched it."""
        return messages.send(self._seat.post, buf, dest, tag, "Issend", synchronous=True)

    def Irecv(self, buf: object, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive into a buffer."""
        return messages.receive(self._seat.post, buf, source, tag, "Irecv")

    def Send(self, buf: object, dest: int, tag: int = 0) -> None:
        """Send a buffer: return when its bytes have left, received or not."""
        messages.send(self._seat.post, buf, dest, tag, "Send").wait()

    def Ssend(self, buf: object, dest: int, tag: int = 0) -> None:
        """Send a buffer: return when a receive has matched it."""
        messages.send(self._seat.post, buf, dest, tag, "Ssend", synchronous=True).wait()

    Bsend = Rsend = Send
    Ibsend = Irsend = Isend

    def Recv(
        self,
        buf: object,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Receive into a buffer; a shorter message fills its start."""
        messages.receive(self._seat.post, buf, source, tag, "Recv").wait(status)

    def Sendrecv(
        self,
        sendbuf: object,
        dest: int,
        sendtag: int = 0,
        recvbuf: object = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a buffer and receive into another."""
        coming = messages.receive(self._seat.post, recvbuf, source, recvtag, "Sendrecv: recvbuf")
        leaving = messages.send(self._seat.post, sendbuf, dest, sendtag, "Sendrecv: sendbuf")
        coming.wait(status)
        leaving.wait()

    def Sendrecv_replace(
        self,
        buf: object,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a buffer and receive into the same."""
        what = "Sendrecv_replace"
        leaving = messages.send(self._seat.post, buf, dest, sendtag, what)
        messages.receive(self._seat.post, buf, source, recvtag, what).wait(status)
        leaving.wait()

    def Iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """Return whether a message has come that a receive would get."""
        found = self._seat.post.peek(source, tag)
        if found is not None and status is not None:
            status.note(found)
        return found is not None

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """Wait until a message has come that a receive would get."""
        if source != PROC_NULL:
            self._seat.post.wait(lambda: self.Iprobe(source, tag, status), "Probe")
        elif status is not None:
            status.note(None)
        return True

    # ---- messages of objects --------------------------------------------------------------------

    probe, iprobe = Probe, Iprobe

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send an object."""
        return messages.send_object(self._seat.post, obj, dest, tag, "isend")

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send an object; it is over when a receive has matched it."""
        return messages.send_object(self._seat.post, obj, dest, tag, "issend", synchronous=True)

    def irecv(self, buf: object = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive an object, which the request's wait() returns; buf is not used."""
        return messages.receive_object(self._seat.post, source, tag, "irecv")

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object: return when its bytes have left, received or not."""
        messages.send_object(self._seat.post, obj, dest, tag, "send").wait()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object: return when a receive has matched it."""
        messages.send_object(self._seat.post, obj, dest, tag, "ssend", synchronous=True).wait()

    bsend, ibsend = send, isend

    def recv(
        self,
        buf: object = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Return the object that comes; buf is not used."""
        if buf is not None and not isinstance(buf, int):
            warnings.warn("recv: buf is not used, memory is found as needed", stacklevel=2)
        return messages.receive_object(self._seat.post, source, tag, "recv").wait(status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: object = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send an object and return the one that comes."""
        leaving = self.isend(sendobj, dest, sendtag)
        found = self.recv(recvbuf, source, recvtag, status)
        leaving.wait()
        return found
