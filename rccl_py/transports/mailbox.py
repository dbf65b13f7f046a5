"""Messages between processes: send, recv, put and signal over MPI, never blocking.

Owns the hand-shake. A message waits until its receiver has asked for it, whatever its size, so that
a program which hangs hangs always::

    sender                      receiver
    header (count, type) ---->  recv was called: compare
                         <----  acknowledged (or: they differ, and how)
    data                 ---->

A put needs no partner: header and data go at once and land when the other looks. Knows no
communicator but its MPI one, no clock but the numbers it carries.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .kept import keep

__all__ = ["Mailbox", "Message"]

Bytes = npt.NDArray[np.uint8]
_HEADER, _ANSWER, _DATA, _PUT, _PUT_DATA = 1, 2, 3, 4, 5  # tags
_PIECE = 1 << 30  # bytes of one MPI message


class Message:
    """One end of a message. said: what its header says. done: data has left, or arrived.

    clock: the later of the two ends' clocks, once they have met. error: how the ends differ.
    """

    __slots__ = ("clock", "data", "done", "error", "peer", "requests", "said")

    def __init__(self, peer: int, data: Bytes, said: dict[str, Any], clock: float) -> None:
        self.peer, self.data, self.said, self.clock = peer, data, said, clock
        self.done = False
        self.error: str | None = None
        self.requests: list[Any] | None = None


class _Put(NamedTuple):
    """What a peer has put and is still arriving."""

    said: dict[str, Any]
    data: Bytes
    requests: list[Any]


class Mailbox:
    """Messages of one rank of one communicator; progress() moves all of them on."""

    def __init__(self, mpi: Any, comm: Any, land: Callable[[int, dict[str, Any], Bytes], None]):
        self._mpi, self.comm, self._land = mpi, comm, land
        self._leaving: list[tuple[Any, Any]] = []  # (request, what it sends): kept until sent
        self._unanswered: dict[int, deque[Message]] = {}
        self._wanted: dict[int, deque[Message]] = {}
        self._headers: dict[int, deque[dict[str, Any]]] = {}
        self._moving: list[Message] = []
        self._landing: dict[int, deque[_Put]] = {}
        self._open = True

    def _isend(self, payload: bytes | Bytes, peer: int, tag: int) -> Any:
        held = np.frombuffer(payload, dtype=np.uint8) if isinstance(payload, bytes) else payload
        request = self.comm.Isend([held, self._mpi.BYTE], dest=peer, tag=tag)
        self._leaving.append((request, held))
        return request

    def _pieces(self, data: Bytes) -> list[Bytes]:
        return [data[i : i + _PIECE] for i in range(0, max(len(data), 1), _PIECE)]

    @property
    def leaving(self) -> bool:
        """Whether something has not left."""
        return bool(self._leaving)

    def send(self, message: Message) -> None:
        """Offer a message to its peer."""
        header = json.dumps({**message.said, "clock": message.clock}).encode()
        self._isend(header, message.peer, _HEADER)
        self._unanswered.setdefault(message.peer, deque()).append(message)

    def recv(self, message: Message) -> None:
        """Ask for the next message of its peer."""
        self._wanted.setdefault(message.peer, deque()).append(message)
        self._answer(message.peer)

    def put(self, peer: int, said: dict[str, Any], data: Bytes) -> None:
        """Put bytes where `said` tells the peer to; returns when they are on their way."""
        self._isend(json.dumps({**said, "size": len(data)}).encode(), peer, _PUT)
        if len(data):
            for piece in self._pieces(data.copy()):
                self._isend(piece, peer, _PUT_DATA)

    def progress(self) -> None:
        """Take in what has come and move on what can move; never waits."""
        if not self._open:
            return
        status = self._mpi.Status()
        while self.comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_HEADER, status=status):
            peer = status.Get_source()
            self._headers.setdefault(peer, deque()).append(self._read(peer, _HEADER, status))
            self._answer(peer)
        while self.comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_ANSWER, status=status):
            peer = status.Get_source()
            self._answered(self._unanswered[peer].popleft(), self._read(peer, _ANSWER, status))
        while self.comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_PUT, status=status):
            peer = status.Get_source()
            said = self._read(peer, _PUT, status)
            data = np.empty(said["size"], dtype=np.uint8)
            requests = [
                self.comm.Irecv([piece, self._mpi.BYTE], source=peer, tag=_PUT_DATA)
                for piece in (self._pieces(data) if len(data) else ())
            ]
            self._landing.setdefault(peer, deque()).append(_Put(said, data, requests))
        for peer, puts in self._landing.items():  # in order: a signal is behind what was put
            while puts and all(request.Test() for request in puts[0].requests):
                self._land(peer, puts[0].said, puts[0].data)
                puts.popleft()
        for message in list(self._moving):
            if all(request.Test() for request in message.requests or ()):
                message.done = True
                self._moving.remove(message)
        if self._leaving:
            self._leaving = [(r, held) for r, held in self._leaving if not r.Test()]

    def _read(self, peer: int, tag: int, status: Any) -> dict[str, Any]:
        held = np.empty(status.Get_count(self._mpi.BYTE), dtype=np.uint8)
        self.comm.Recv([held, self._mpi.BYTE], source=peer, tag=tag)
        found: dict[str, Any] = json.loads(held.tobytes())
        return found

    def _answer(self, peer: int) -> None:
        """Compare the oldest header of a peer with the oldest recv, and answer it."""
        headers, wanted = self._headers.get(peer), self._wanted.get(peer)
        while headers and wanted:
            header, message = headers.popleft(), wanted.popleft()
            clock = max(message.clock, header["clock"])
            same = all(header[k] == message.said[k] for k in ("count", "dtype"))
            error = None if same else f"{header['text']}; {message.said['text']}"
            answer = {"clock": clock, "error": error}
            self._isend(json.dumps(answer).encode(), peer, _ANSWER)
            message.clock, message.error = clock, error
            if error is not None or not len(message.data):
                message.done = True
                continue
            message.requests = [
                self.comm.Irecv([piece, self._mpi.BYTE], source=peer, tag=_DATA)
                for piece in self._pieces(message.data)
            ]
            self._moving.append(message)

    def _answered(self, message: Message, answer: dict[str, Any]) -> None:
        message.clock, message.error = answer["clock"], answer["error"]
        if message.error is not None or not len(message.data):
            message.done = True
            return
        message.requests = [
            self.comm.Isend([piece, self._mpi.BYTE], dest=message.peer, tag=_DATA)
            for piece in self._pieces(message.data)
        ]
        self._moving.append(message)

    def close(self, *, orderly: bool) -> None:
        """Take part no more; what has not left is given up. Collective when it is orderly."""
        self._open = False
        if self._leaving or self._moving or any(self._landing.values()):
            keep(self._leaving, self._moving, self._landing)
        self._leaving, self._moving, self._landing = [], [], {}
        if orderly:
            self.comm.Free()  # MPI keeps it until what is still on its way has arrived
