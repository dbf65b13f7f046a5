"""One-sided calls between ranks of one process: puts land at once, signals are counted.

Owns the signal counters and who waits for them. Part of LocalCore.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from ..timing import Cost, Task
from .op import Op
from .place import OPEN, Stream
from .window import Put, as_bytes

__all__ = ["OneSided"]

Key = tuple[int, int, int, int]
"""(target, source, signal index, context)"""


class Timed(Protocol):
    """A communicator as one-sided calls need it."""

    def messages(self, src: Any, dst: Any, size: Any) -> Cost:
        """Return what messages take."""
        ...

    def time(self, ops: Any, cost: Cost) -> None:
        """Give calls their modelled time."""
        ...


class OneSided:
    """Signals of one communicator."""

    def __init__(self, core: Timed) -> None:
        self._core = core
        self._arrived: dict[Key, list[tuple[Task, ...]]] = {}
        self._waiting: list[Op] = []

    def activate(self, op: Op, ready: deque[Stream]) -> None:
        """Run a put or a signal; run a wait as soon as it can."""
        assert op.call is not None and op.member is not None
        if op.call.signature.collective == "wait_signal":
            self._waiting.append(op)
            OPEN.add((id(self._core), -2, id(op)))
        else:
            self._put(op)
        for waiting in list(self._waiting):
            self._try(waiting, ready)

    def _put(self, op: Op) -> None:
        assert op.call is not None and op.member is not None and op.launch is not None
        put, peer, data = op.call.payload, op.call.signature.peer, op.call.source
        size = 0
        if isinstance(put, Put) and put.window is not None and data is not None:
            size = data.nbytes
            there = as_bytes(put.window.arrays[peer])
            there[put.offset : put.offset + size] = data.view("u1")
        before = len(op.launch.tasks)
        self._core.time([op], self._core.messages([op.member.rank], [peer], [size]))
        if put.signals:
            key = peer, op.member.rank, put.index, put.context
            self._arrived.setdefault(key, []).append(tuple(op.launch.tasks[before:]))
        op.finish()

    def _wanted(self, op: Op) -> dict[Key, int]:
        """Return how many signals `op` waits for; several descriptors of one key add up."""
        assert op.call is not None and op.member is not None
        wanted: dict[Key, int] = {}
        for desc in op.call.payload:
            key = op.member.rank, desc.peer, desc.signal_index, desc.context
            wanted[key] = wanted.get(key, 0) + desc.op_count
        return wanted

    def _try(self, op: Op, ready: deque[Stream]) -> None:
        wanted = self._wanted(op)
        if any(len(self._arrived.get(key, ())) < count for key, count in wanted.items()):
            return
        assert op.launch is not None
        for key, count in wanted.items():
            held = self._arrived[key]
            for tasks in held[:count]:
                op.launch.tasks += tasks
            del held[:count]
        op.launch.tasks += op.stream.tail
        self._waiting.remove(op)
        OPEN.discard((id(self._core), -2, id(op)))
        op.finish()
        ready.append(op.stream)

    def lacking(self, op: Op) -> list[int]:
        """Return the ranks whose signals `op` waits for."""
        wanted = self._wanted(op).items()
        return [key[1] for key, count in wanted if len(self._arrived.get(key, ())) < count]

    def waiting(self) -> Op | None:
        """Return the first call that waits for signals."""
        return self._waiting[0] if self._waiting else None

    def forget(self) -> None:
        """Forget who waits."""
        self._waiting.clear()
