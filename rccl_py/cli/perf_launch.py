"""Under mpirun or not: who this process is, who may speak, and how all of them leave.

Owns the launchers' environment variables. MPI is loaded when a launcher is there, never else.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RcclSystemError

__all__ = ["Launch", "launch_from", "leave_together", "only_first_speaks", "world_of"]

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, srun --mpi=pmi2
    ("PMIX_RANK", "PMIX_RANK"),  # srun --mpi=pmix, prun
)
_PATIENCE = 5.0  # s that one rank waits for the others to fail the same way


@dataclass(frozen=True, slots=True)
class Launch:
    """How the process was started: alone, or as `rank` of a launcher's processes."""

    spans: bool
    rank: int


def launch_from(environment: Mapping[str, str]) -> Launch:
    """Return how this process was started, by the variables launchers set."""
    for rank, size in _LAUNCHERS:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            return Launch(True, int(environment[rank]))
    return Launch(False, 0)


def world_of(launch: Launch) -> Any:
    """Return MPI's world communicator, or None when the process stands alone."""
    if not launch.spans:
        return None
    from ..transports.mpi import import_mpi

    return import_mpi().COMM_WORLD


@contextlib.contextmanager
def only_first_speaks(launch: Launch) -> Iterator[None]:
    """Keep what processes but the first would print to themselves."""
    if launch.rank == 0:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def leave_together(launch: Launch, code: int) -> None:
    """Wait until every process has failed, so that none is killed before the first has spoken.

    A process that fails alone would leave the others waiting: then, and only then, abort.
    """
    try:
        world = world_of(launch)
    except RcclSystemError:
        time.sleep(0.5 if launch.rank else 0.0)  # nothing to wait with: let the first speak
        return
    met, patience = world.Ibarrier(), time.monotonic() + _PATIENCE
    while not met.Test():
        if time.monotonic() > patience:
            world.Abort(code)
        time.sleep(0.005)
