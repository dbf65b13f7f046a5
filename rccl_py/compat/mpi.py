"""mpi4py.MPI's names over this library's communicators.

    from rccl_py.compat import mpi as MPI

    comm = MPI.COMM_WORLD
    total = np.empty(3)
    comm.Allreduce(np.arange(3.0), total, op=MPI.SUM)

Owns the names. Where mpi4py is installed COMM_WORLD is all processes of the launch, else this
process alone; use() chooses another communicator (a machine, a thread of rccl_py.run), run() calls
a program on threads. mpi4py's own datatypes, operations and IN_PLACE are taken as well, so a
program may keep its import and only take its communicator from here.
"""

from __future__ import annotations

import pickle
import platform
import time
from collections.abc import Callable
from typing import Any

from ..buffers import as_array
from ..comm import Communicator
from ..comm import run as _run
from .mpi_buffers import BOTTOM, IN_PLACE
from .mpi_comm import TAG_UB, Comm
from .mpi_errors import ERR_OTHER, ERR_RANK, ERR_ROOT, ERR_TRUNCATE
from .mpi_errors import MpiError as Exception
from .mpi_ops import OP_NULL, OPS, Op
from .mpi_post import ANY_SOURCE, ANY_TAG, PROC_NULL
from .mpi_requests import UNDEFINED, Request, Status
from .mpi_types import DATATYPE_NULL, DATATYPES, Datatype
from .mpi_world import alone, use, world

__all__ = [
    "ANY_SOURCE", "ANY_TAG", "BOTTOM", "BSEND_OVERHEAD", "COMM_NULL", "COMM_SELF", "COMM_WORLD",
    "DATATYPE_NULL", "ERR_OTHER", "ERR_RANK", "ERR_ROOT", "ERR_TRUNCATE", "IN_PLACE", "OP_NULL",
    "ORDER_C", "ORDER_FORTRAN", "PROC_NULL", "REQUEST_NULL", "SUCCESS", "TAG_UB", "THREAD_FUNNELED",
    "THREAD_MULTIPLE", "THREAD_SERIALIZED", "THREAD_SINGLE", "UNDEFINED", "Alloc_mem",
    "Attach_buffer", "Comm", "Datatype", "Detach_buffer", "Exception", "Finalize", "Free_mem",
    "Get_address", "Get_processor_name", "Get_version", "Init", "Intracomm", "Is_finalized",
    "Is_initialized", "Op", "Query_thread", "Request", "Status", "Wtick", "Wtime", "get_vendor",
    "pickle", "run", "use",
]  # fmt: skip

COMM_WORLD = Comm(find=world)
COMM_SELF = Comm(find=alone)
COMM_NULL = Comm()
REQUEST_NULL = Request()
Intracomm = Comm
SUCCESS, ORDER_C, ORDER_FORTRAN, BSEND_OVERHEAD = 0, 0, 1, 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)


def __getattr__(name: str) -> Any:
    """Return a named datatype or operation (PEP 562)."""
    found = DATATYPES.get(name) or OPS.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *DATATYPES, *OPS})


def run(program: Callable[..., Any], topology: Any, *args: Any, **settings: Any) -> list[Any]:
    """Call ``program(*args)`` on every rank of a machine, COMM_WORLD being all of them.

    topology, settings: as of rccl_py.run. Every rank is a thread.
    """

    def body(communicator: Communicator) -> Any:
        use(communicator)
        return program(*args)

    return _run(body, topology, **settings)


def Wtime() -> float:
    """Return the seconds of a clock: of this computer, not modelled (communicator.elapsed is)."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of Wtime, in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Return this computer's name."""
    return platform.node()


def Get_version() -> tuple[int, int]:
    """Return the MPI standard these names follow, where they follow it: 3.1."""
    return 3, 1


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return whose MPI this is."""
    return "rccl_py", (0, 1, 0)


def Get_address(buffer: object) -> int:
    """Return where a buffer's memory starts."""
    return int(as_array(buffer, "Get_address").ctypes.data)


def Alloc_mem(size: int, info: object = None) -> bytearray:
    """Return memory of `size` bytes."""
    return bytearray(size)


def Free_mem(memory: object) -> None:
    """Do nothing: the memory is Python's to free."""


def Attach_buffer(buffer: object) -> None:
    """Do nothing: a message that cannot leave at once is kept without a buffer for it."""


def Detach_buffer() -> None:
    """Do nothing: no buffer was taken."""


def Init() -> None:
    """Do nothing: what is needed is made when it is first used."""


Finalize = Init


def Is_initialized() -> bool:
    """Return True."""
    return True


def Is_finalized() -> bool:
    """Return False."""
    return False


def Query_thread() -> int:
    """Return how threads may call: one of a rank at a time."""
    return THREAD_SERIALIZED
