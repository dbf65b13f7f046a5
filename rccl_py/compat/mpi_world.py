"""Which communicator MPI's COMM_WORLD and COMM_SELF are, for the thread that asks.

Owns Seat, what MPI's names keep beside a communicator, and the communicators nobody passed: made
when first asked for, as importing mpi4py.MPI does. A rank that is a thread says use() first.
"""

from __future__ import annotations

import threading

from ..comm import Communicator
from ..errors import InvalidArgument, RcclSystemError
from ..transports.mpi import import_mpi
from .mpi_post import Post

__all__ = ["Seat", "alone", "use", "world"]

_MACHINE = "mi300x-8"  # of a rank alone: any would do
_PATIENCE = 600.0  # s a rank waits for others: MPI sets no limit, people at a keyboard take long


class Seat:
    """A communicator, and the post its messages go through. Making it is collective."""

    def __init__(self, communicator: Communicator, name: str) -> None:
        if communicator.config.blocking is False:
            raise InvalidArgument(
                "a nonblocking communicator has no MPI names: their calls return when they are done"
            )
        self.communicator, self.name = communicator, name
        self.post = Post(communicator)


class _Thread(threading.local):
    world: Seat | None = None
    alone: Seat | None = None


_THREAD = _Thread()
_LOCK = threading.Lock()
_PROCESS: list[Seat] = []  # the process's own world, once somebody has asked for it


def use(communicator: Communicator | None) -> None:
    """Make a communicator COMM_WORLD for this thread; None: the process's own again.

    Every rank of the communicator must say so.
    """
    _THREAD.world = None if communicator is None else Seat(communicator, "MPI_COMM_WORLD")


def world() -> Seat:
    """Return COMM_WORLD's seat: what use() was told, else all processes of the MPI launch."""
    if _THREAD.world is not None:
        return _THREAD.world
    with _LOCK:
        if not _PROCESS:
            _PROCESS.append(Seat(_of_process(), "MPI_COMM_WORLD"))
        return _PROCESS[0]


def alone() -> Seat:
    """Return COMM_SELF's seat: one rank, this thread's."""
    if _THREAD.alone is None:
        _THREAD.alone = Seat(_single(), "MPI_COMM_SELF")
    return _THREAD.alone


def _single() -> Communicator:
    return Communicator.init_all(_MACHINE, nranks=1)[0]


def _of_process() -> Communicator:
    """Return the communicator of all processes, or of this one where there is no MPI."""
    try:
        comm = import_mpi().COMM_WORLD
    except RcclSystemError:
        return _single()
    return Communicator.from_mpi(comm, timeout=_PATIENCE)
