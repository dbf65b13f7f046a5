"""Memory that the ranks of one host share: a segment a rank, readable by all.

Owns how it is asked for, how much there is, and what makes one rank's writes seen by another in
order. Knows no schedule; MPI is handed in.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Window", "shared_memory_left"]

_IN_ORDER = ("x86_64", "AMD64", "i386", "i686")


def shared_memory_left() -> int:
    """Return half of the shared memory this host has free, in B: MPI's own lies there too."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize // 2


class Window:
    """A segment of shared memory a rank, all readable by all: uint8 arrays by rank; collective.

    fence: orders what is stored before it and after it, for all ranks to see; None where the
    processor does that by itself (x86 never lets a later store be seen before an earlier one, nor
    a later load be done before an earlier one).
    """

    def __init__(self, mpi: Any, comm: Any, size: int) -> None:
        self._window = mpi.Win.Allocate_shared(size, 1, comm=comm)
        self.segments: list[npt.NDArray[np.uint8]] = []
        for rank in range(comm.Get_size()):
            memory, _ = self._window.Shared_query(rank)
            self.segments.append(np.frombuffer(memory, dtype=np.uint8))
        # MPI's Sync is for a window that is open for access.
        self._window.Lock_all(mpi.MODE_NOCHECK)
        in_order = platform.machine() in _IN_ORDER
        self.fence: Callable[[], None] | None = None if in_order else self._window.Sync

    def free(self) -> None:
        """Give the memory back; collective."""
        self.segments = []
        self._window.Unlock_all()
        self._window.Free()
