"""The post of one rank: messages with tags, sent without their receiver's help, over windows.

Owns how a message crosses and how it is matched. Knows no buffer specification and no request.

    rank s                          window of rank d
    bytes of one piece  --put-->    ring s of 256 units: bytes   a piece is as many units as are
    head (number, tag)  --signal->  heads[s, first unit]         free and needed, a message as many
         acks[d]        <--put--    units up to this are read    pieces as it takes

What has come is matched in the order of its arrival with the receives in the order of their
posting, so any tag and any source can be asked for. Pieces are read, and acknowledged, whenever
this rank waits for a message or tests for one: not while it is in a collective.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument, RcclTimeout, RemoteError, Result
from .mpi_errors import ERR_RANK, checked_rank

if TYPE_CHECKING:
    from ..comm import Communicator

__all__ = ["ANY_SOURCE", "ANY_TAG", "PROC_NULL", "Arrived", "Leaving", "Post", "Wanted"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
ANY_SOURCE = ANY_TAG = -1
PROC_NULL = -2
_UNITS = 256  # of a ring: so many short messages of one rank may wait to be read
_UNIT = 1 << 12  # bytes, at most
_RINGS = 1 << 26  # bytes of all rings of a rank, at most; memory is used where somebody sends it
_HEAD = 64  # bytes: unit number, kind, tag, length of message and of piece, which synchronous one
_MESSAGE, _MATCHED = 0, 1
_LONGEST_NAP = 5e-4  # s
_AT_EXIT = 2.0  # s a process that ends gives the others to read its last messages
_PATIENCE = 30.0  # s a wait for messages lasts where the communicator has no timeout of its own


class Leaving:
    """A message on its way out. done: its bytes have left; for a synchronous one: it is matched."""

    def __init__(self, tag: int, data: Bytes, kind: int = _MESSAGE, waits: int = 0) -> None:
        self.tag, self.data, self.kind, self.waits = tag, data, kind, waits
        self.sent = 0
        self.left = self.done = False


class Arrived:
    """A message that has come. waits: number by which a synchronous sender is told of its match."""

    def __init__(self, source: int, tag: int, data: Bytes, waits: int) -> None:
        self.source, self.tag, self.data, self.waits = source, tag, data, waits


class Wanted:
    """A receive that was posted. deliver: takes the message when one matches."""

    def __init__(self, source: int, tag: int, deliver: Callable[[Arrived], None]) -> None:
        self.source, self.tag, self.deliver = source, tag, deliver

    def takes(self, message: Arrived) -> bool:
        """Return whether a message is one it asks for."""
        return self.source in (ANY_SOURCE, message.source) and self.tag in (ANY_TAG, message.tag)


class Post:
    """Sends and receives the messages of one rank. Making it is collective."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.rank, self.nranks = communicator.rank, communicator.nranks
        self._wanted: list[Wanted] = []
        self._unasked: list[Arrived] = []
        self._leaving: dict[int, deque[Leaving]] = {}
        self._unmatched: dict[int, Leaving] = {}
        self._synchronous = 0
        if self.nranks == 1:
            return
        n = self.nranks
        self._unit = max(min(_UNIT, _RINGS // (n * _UNITS) // 8 * 8), 64)
        self._heads_at = n * _UNITS * self._unit
        self._acks_at = self._heads_at + n * _UNITS * _HEAD
        self._memory = np.zeros(self._acks_at + 8 * n, np.uint8)
        self._rings = self._memory[: self._heads_at].reshape(n, -1)
        heads = self._memory[self._heads_at : self._acks_at].view(np.int64)
        self._heads = heads.reshape(n, _UNITS, -1)
        self._acks = self._memory[self._acks_at :].view(np.int64)
        self._ranks = np.arange(n)
        self._taken, self._sent = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._signals = [0] * n  # taken from the core before their piece was read
        self._parts: dict[int, tuple[Bytes, int]] = {}  # what has come of a message, how much
        self._window = communicator.register_window(self._memory)
        self._stream = communicator.stream("acknowledgements")
        _ending(self)

    # ---- what requests ask for ------------------------------------------------------------------

    def checked(self, rank: object, what: str) -> int:
        """Return another rank's number; raise MpiError when it is none."""
        return checked_rank(rank, self.nranks, f"{what}: rank", ERR_RANK)

    def send(self, dest: int, tag: int, data: Bytes, *, synchronous: bool = False) -> Leaving:
        """Send bytes, which are copied unless they leave at once; return how far they are."""
        if tag < 0:
            raise InvalidArgument(f"tag {tag}: a message's tag is 0 or more")
        waits = 0
        if synchronous:
            self._synchronous += 1
            waits = self._synchronous
        message = Leaving(tag, data, waits=waits)
        if waits:
            self._unmatched[waits] = message
        self._post(dest, message)
        if not message.left:
            message.data = data.copy()  # the caller may write to its buffer again
        return message

    def want(self, wanted: Wanted) -> None:
        """Post a receive; what has come already is delivered at once."""
        for message in self._unasked:
            if wanted.takes(message):
                self._unasked.remove(message)
                self._match(wanted, message)
                return
        self._wanted.append(wanted)

    def forget(self, wanted: Wanted) -> bool:
        """Take a receive back; return whether it was not matched yet."""
        if wanted not in self._wanted:
            return False
        self._wanted.remove(wanted)
        return True

    def peek(self, source: int, tag: int) -> Arrived | None:
        """Return the first message that a receive would get, if one has come."""
        self.progress()
        wanted = Wanted(source, tag, lambda message: None)
        return next((m for m in self._unasked if wanted.takes(m)), None)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready`, moving all messages on meanwhile."""
        timeout = self.communicator.config.timeout or _PATIENCE
        start, nap = time.monotonic(), 0.0
        while not ready():
            self.progress()
            if ready():
                return
            source = self._only_source()
            if source is not None:
                # The core's own wait sees a rank that has ended, and a circle of waits.
                self._await_signal(source)
                self._signals[source] += 1
                continue
            if time.monotonic() - start > timeout:
                raise RcclTimeout(f"rank {self.rank} waited {timeout:g} s in {what}")
            time.sleep(nap)
            nap = min(_LONGEST_NAP, nap + 1e-5)

    def _only_source(self) -> int | None:
        """Return the one rank whose message is waited for, if nothing else can happen."""
        alone = len(self._wanted) == 1 and not self._leaving and not self._unmatched
        source = self._wanted[0].source if alone else ANY_SOURCE
        return source if source not in (ANY_SOURCE, self.rank) else None

    # ---- moving ---------------------------------------------------------------------------------

    def progress(self) -> None:
        """Read what has come and send what can leave; never waits."""
        if self.nranks == 1:
            return
        code = self.communicator.get_async_error()
        if code not in (Result.SUCCESS, Result.IN_PROGRESS):
            raise RemoteError(self.communicator.get_last_error())
        come = self._heads[self._ranks, self._taken % _UNITS, 0] == self._taken + 1
        for source in np.flatnonzero(come).tolist():
            self._read_all(source)
        for dest in list(self._leaving):
            self._push(dest)

    def _await_signal(self, source: int) -> None:
        from ..comm.window import WaitSignalDesc

        self.communicator.wait_signal(WaitSignalDesc(source))

    def _read_all(self, source: int) -> None:
        """Read the pieces of a rank that are there, and tell it."""
        while self._heads[source, self._taken[source] % _UNITS, 0] == self._taken[source] + 1:
            self._read(source, int(self._taken[source]) % _UNITS)
        ack = self._taken[source : source + 1].view(np.uint8)
        place = self._acks_at + 8 * self.rank
        self.communicator.put(ack, source, self._window, place, stream=self._stream)

    def _read(self, source: int, unit: int) -> None:
        if self._signals[source]:
            self._signals[source] -= 1
        else:
            self._await_signal(source)  # it is there: the head was put with it
        _, kind, tag, length, piece, waits = self._heads[source, unit, :6].tolist()
        data, filled = self._parts.pop(source, None) or (np.empty(length, np.uint8), 0)
        at = unit * self._unit
        data[filled : filled + piece] = self._rings[source, at : at + piece]
        self._taken[source] += self._units(piece)
        if filled + piece < length:
            self._parts[source] = data, filled + piece
        elif kind == _MATCHED:
            self._unmatched.pop(waits).done = True
        else:
            self._arrive(Arrived(source, tag, data, waits))

    def _units(self, nbytes: int) -> int:
        return max(1, -(-nbytes // self._unit))

    def _post(self, dest: int, message: Leaving) -> None:
        if dest == self.rank:
            message.left, message.done = True, not message.waits
            self._arrive(Arrived(dest, message.tag, message.data.copy(), message.waits))
            return
        self._leaving.setdefault(dest, deque()).append(message)
        self.progress()

    def _push(self, dest: int) -> None:
        """Put pieces for a rank into its ring, while there is room."""
        queue = self._leaving.get(dest, deque())
        while queue and self._put(dest, queue[0]):
            message = queue[0]
            if message.sent == message.data.size:
                message.left = True
                message.done = message.kind == _MATCHED or not message.waits
                queue.popleft()
        if not queue:
            self._leaving.pop(dest, None)

    def _put(self, dest: int, message: Leaving) -> bool:
        """Put the next piece of a message, if there is room for enough of it."""
        sent = int(self._sent[dest])
        needed, free = self._units(message.data.size - message.sent), _UNITS - sent
        free += int(self._acks[dest])
        if free < min(needed, _UNITS // 4):
            return False
        unit = sent % _UNITS
        units = min(needed, free, _UNITS - unit)
        piece = message.data[message.sent : message.sent + units * self._unit]
        if piece.size:
            place = (self.rank * _UNITS + unit) * self._unit
            self.communicator.put(piece, dest, self._window, place)
        head = [sent + 1, message.kind, message.tag, message.data.size, piece.size, message.waits]
        data = np.array([*head, 0, 0], np.int64).view(np.uint8)
        place = self._heads_at + (self.rank * _UNITS + unit) * _HEAD
        self.communicator.put_signal(data, dest, self._window, place)
        self._sent[dest] = sent + units
        message.sent += piece.size
        return True

    def _arrive(self, message: Arrived) -> None:
        for wanted in self._wanted:
            if wanted.takes(message):
                self._wanted.remove(wanted)
                self._match(wanted, message)
                return
        self._unasked.append(message)

    def _match(self, wanted: Wanted, message: Arrived) -> None:
        wanted.deliver(message)
        if not message.waits:
            return
        if message.source == self.rank:
            self._unmatched.pop(message.waits).done = True
        else:
            told = Leaving(0, np.empty(0, np.uint8), _MATCHED, message.waits)
            self._leaving.setdefault(message.source, deque()).append(told)
            self._push(message.source)  # now: this rank may not wait for a message again

    def drain(self, until: float) -> None:
        """Move messages on until all have been read, or the clock says `until`."""
        try:
            while self._leaving or (self._acks != self._sent).any():
                self.progress()
                if time.monotonic() > until:
                    return
                time.sleep(_LONGEST_NAP)
        except Exception:  # the communicator is over: then so are its messages
            return


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


def _ending(post: Post) -> None:
    """Let a process that ends wait until its last messages were read."""
    if not _OPEN:
        atexit.register(_drain_all)
    _OPEN.add(post)


def _drain_all() -> None:
    until = time.monotonic() + _AT_EXIT
    for post in list(_OPEN):
        post.drain(until)
