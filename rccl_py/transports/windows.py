"""Memory that the ranks of one host share: a segment a rank, readable by all.

Owns how it is asked for and how much there is. Knows no schedule; MPI is handed in.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Window", "shared_memory_left"]


def shared_memory_left() -> int:
    """Return half of the shared memory this host has free: MPI's own lies there too."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize // 2


class Window:
    """A segment of shared memory a rank, all readable by all: uint8 arrays by rank."""

    def __init__(self, mpi: Any, comm: Any, size: int) -> None:
        self._window = mpi.Win.Allocate_shared(size, 1, comm=comm)
        self.segments: list[npt.NDArray[np.uint8]] = []
        for rank in range(comm.Get_size()):
            memory, _ = self._window.Shared_query(rank)
            self.segments.append(np.frombuffer(memory, dtype=np.uint8))
        self.total = sum(segment.size for segment in self.segments)

    def free(self) -> None:
        """Give the memory back; collective."""
        self.segments = []
        self._window.Free()
