"""The MPI transport: one rank a process, the planned schedule over shared memory or messages.

Owns which of the two planes a communicator uses, and the only import of mpi4py. It never calls
MPI's own collectives for data: every rank runs the rows that arrive at it, in the schedule's order
at every slot, so the bits are the local transport's. Ranks of one host read each other's staging
(:mod:`rccl_py.transports.shared`); where the communicator spans hosts, rows travel as messages
(:mod:`rccl_py.transports.messages`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import RcclSystemError
from ..reduce_ops import Arithmetic
from .bound import SharedBound
from .messages import MessageBound, MessagePlane
from .passes import Array
from .program import Program
from .shared import CONTROL, HeadsDiffer, SharedPlane
from .waiting import Waiting
from .windows import shared_memory_left

__all__ = ["Bound", "HeadsDiffer", "MpiTransport", "import_mpi"]

Bound = SharedBound | MessageBound
"""A program compiled for this rank: what bind() returns and collective() takes."""

STAGING = 16 << 20  # bytes of staging a rank, which takes memory as far as it is used
_LEAST = 1 << 16  # bytes of staging below which messages are better
_BOUND = 64  # compiled programs kept


def import_mpi() -> Any:
    """Return mpi4py.MPI, or say what to install."""
    # Open MPI's UCX window component prints an error on hosts without its hardware and then falls
    # back; windows here are shared memory, which never needs it.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RcclSystemError(
            f"MPI cannot be loaded ({error}): install it with pip install 'rccl_py[mpi]'"
        ) from None
    return MPI


class MpiTransport:
    """Runs schedules over one MPI communicator; collective to make.

    shared: None uses shared memory where all ranks are on one host and it has some to give; False
    always sends messages. comm: the transport's own communicator, a duplicate of the one given.
    """

    def __init__(self, comm: Any, waiting: Waiting, shared: bool | None = None) -> None:
        mpi = import_mpi()
        self.comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._messages = MessagePlane(mpi, self.comm, waiting)
        self._shared: SharedPlane | None = None
        size = self._staging(mpi) if shared is not False and self.size > 1 else 0
        if size:
            self._shared = SharedPlane(mpi, self.comm, size, waiting)
        self.shared = self._shared is not None
        self._collective: Callable[..., float] = (self._shared or self._messages).collective
        self._bound: OrderedDict[tuple[Program, int, Arithmetic], Bound] = OrderedDict()

    def _staging(self, mpi: Any) -> int:
        """Return the bytes of staging every rank gets, 0 for none; collective.

        Asking MPI for more than there is may hang or kill the job, so rank 0 looks and tells.
        """
        host = self.comm.Split_type(mpi.COMM_TYPE_SHARED)
        one_host = host.Get_size() == self.size
        host.Free()
        room = shared_memory_left() // self.size - CONTROL
        size = min(STAGING, room // 4096 * 4096)
        return int(self.comm.bcast(size if one_host and size >= _LEAST else 0))

    def bind(self, program: Program, block: int, arithmetic: Arithmetic) -> Bound | None:
        """Return `program` compiled for this rank and `block` elements a block; None for 0."""
        if block == 0:
            return None
        key = program, block, arithmetic
        bound = self._bound.get(key)
        if bound is None:
            if self._shared is not None:
                bound = self._shared.bind(program, block, arithmetic)
            # Too many slots for the staging there is: the same at every rank.
            bound = bound or self._messages.bind(program, block, arithmetic)
            self._bound[key] = bound
            if len(self._bound) > _BOUND:
                self._bound.popitem(last=False)
        else:
            self._bound.move_to_end(key)
        return bound

    def collective(
        self,
        head: bytes,
        clock: float,
        bound: Bound | None,
        source: Array | None,
        target: Array | None,
    ) -> float:
        """Run a call that every rank makes, on this rank's flat buffers.

        head: 64 bytes that are equal at all ranks, else every rank gets HeadsDiffer and no target
        is written. clock: this rank's time, s; the largest of all ranks' is returned. bound: None
        moves nothing.
        """
        if isinstance(bound, MessageBound):
            return self._messages.collective(head, clock, bound, source, target)
        return self._collective(head, clock, bound, source, target)

    def exchange_texts(self, text: str) -> list[str]:
        """Return every rank's text, by rank; every rank calls it."""
        return (self._shared or self._messages).exchange_texts(text)

    def close(self) -> None:
        """Free the window and the communicator; collective."""
        self._bound.clear()
        if self._shared is not None:
            self._shared.close()
        self.comm.Free()

    def abandon(self) -> None:
        """Let go of everything after a failure; not collective, calls nothing of MPI."""
        self._bound.clear()
        self._messages.abandon()
        if self._shared is not None:
            self._shared.abandon()
