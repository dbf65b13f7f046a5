"""The board: where every process of a job says what it waits for, and how it ended.

Owns the exchange of small records between processes that may each be stuck. On one host it is
shared memory, across hosts messages. Written seldom: when a wait has lasted, when something went
wrong. Knows not what a record says.
"""

from __future__ import annotations

import json
import os
import select
import socket
from contextlib import suppress
from typing import Any

import numpy as np

from .windows import Window, shared_memory_left

__all__ = ["ROOM", "Board", "MessageBoard", "Processes", "SharedBoard", "make_board", "told"]

ROOM = (1 << 17) - 16  # bytes a record may have
_PIECE = 2000  # bytes of one message: MPI buffers so few, so they arrive though the sender ends


def told(record: dict[str, Any]) -> bytes:
    """Return a record as it is written."""
    return json.dumps(record, ensure_ascii=False).encode(errors="replace")


class SharedBoard:
    """Records in a window; a version number that is odd while one is written."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._window = Window(mpi, comm, 16 + ROOM)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        # version, length | text
        self._heads = [segment[:16].view(np.int64) for segment in self._window.segments]
        self._texts = [segment[16:] for segment in self._window.segments]
        self._known: list[tuple[int, dict[str, Any]]] = [(0, {})] * self.size
        self._version = 0
        self._heads[self.rank][:] = 0
        comm.Barrier()

    def publish(self, record: dict[str, Any]) -> None:
        """Write this process's record, which has room."""
        text = np.frombuffer(told(record), dtype=np.uint8)
        head = self._heads[self.rank]
        # Counted apart: a signal may have ended an earlier publish half way.
        self._version += 2
        head[0] = self._version - 1
        self._texts[self.rank][: len(text)] = text
        head[1] = len(text)
        head[0] = self._version

    def read(self, rank: int) -> tuple[int, dict[str, Any]]:
        """Return (version, record) of a process; {} while it has written none."""
        head = self._heads[rank]
        version = int(head[0])
        if version == self._known[rank][0] or version % 2:
            return self._known[rank]
        text = self._texts[rank][: int(head[1])].tobytes()
        if int(head[0]) == version:
            with suppress(ValueError):  # written anew meanwhile
                self._known[rank] = version, json.loads(text)
        return self._known[rank]

    def progress(self) -> None:
        """Nothing to take in: it is memory."""


class MessageBoard:
    """Records sent to every other process, in pieces: how long the record is, then some of it."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._known: list[tuple[int, dict[str, Any]]] = [(0, {})] * self.size
        self._parts = [b""] * self.size
        self._leaving: list[tuple[Any, Any]] = []

    def publish(self, record: dict[str, Any]) -> None:
        """Send this process's record to the others."""
        self._leaving = [(r, held) for r, held in self._leaving if not r.Test()]
        text = told(record)
        size = len(text).to_bytes(8, "little")
        for at in range(0, len(text), _PIECE):
            held = np.frombuffer(size + text[at : at + _PIECE], dtype=np.uint8)
            for rank in range(self.size):
                if rank != self.rank:
                    request = self._comm.Isend([held, self._mpi.BYTE], dest=rank, tag=1)
                    self._leaving.append((request, held))
        version, _ = self._known[self.rank]
        self._known[self.rank] = version + 1, record

    def progress(self) -> None:
        """Take in the records that have come."""
        status = self._mpi.Status()
        while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=1, status=status):
            rank = status.Get_source()
            held = np.empty(status.Get_count(self._mpi.BYTE), dtype=np.uint8)
            self._comm.Recv([held, self._mpi.BYTE], source=rank, tag=1)
            piece = held.tobytes()
            self._parts[rank] += piece[8:]
            if len(self._parts[rank]) == int.from_bytes(piece[:8], "little"):
                self._known[rank] = self._known[rank][0] + 1, json.loads(self._parts[rank])
                self._parts[rank] = b""

    def read(self, rank: int) -> tuple[int, dict[str, Any]]:
        """Return (version, record) of a process; {} while none has come."""
        return self._known[rank]


Board = SharedBoard | MessageBoard


class Processes:
    """Which processes of this host still run."""

    def __init__(self, comm: Any) -> None:
        rows = comm.allgather((socket.gethostname(), os.getpid()))
        own = socket.gethostname()
        self._watched = {r: self._open(pid) for r, (host, pid) in enumerate(rows) if host == own}
        self.pids = [pid for _, pid in rows]

    @staticmethod
    def _open(pid: int) -> int:
        try:
            return os.pidfd_open(pid)
        except (AttributeError, OSError):
            return -1

    def ended(self, rank: int) -> bool:
        """Return whether a process of this host is gone (False where that cannot be seen)."""
        found = self._watched.get(rank, -1)
        if found >= 0:
            return bool(select.select([found], [], [], 0)[0])
        return False


def make_board(mpi: Any, comm: Any, shared: bool | None) -> Board:
    """Return a board over `comm`; collective."""
    host = comm.Split_type(mpi.COMM_TYPE_SHARED)
    alone = host.Get_size() == comm.Get_size()
    host.Free()
    room = shared_memory_left() > ROOM * comm.Get_size()
    if comm.allreduce(int(alone and room and shared is not False), op=mpi.MIN):
        return SharedBoard(mpi, comm)
    return MessageBoard(mpi, comm)
