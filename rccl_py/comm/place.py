"""Where ranks live and in which order their calls run: places, streams, events, launches.

Owns the queues. A Place is what runs one rank of each of several communicators (one device); a
Stream is a queue of a place; a Launch is what one group (or one call outside a group) puts on one
stream. Launches of a stream run in order, the calls of a launch have no order among them. Knows
no collective and no transport.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, InvalidUsage
from ..timing import Task, Timetable

if TYPE_CHECKING:
    from ..errors import RcclError
    from .member import Member
    from .op import Op

__all__ = ["LOCK", "OPEN", "TIMETABLE", "Event", "Launch", "Place", "Stream"]

LOCK = threading.RLock()
"""One lock for all ranks of a process: who waits for whom crosses communicators."""
TIMETABLE = Timetable()
"""One modelled time for all of them: a stream may carry calls of several communicators."""
OPEN: set[tuple[int, ...]] = set()
"""Meetings that some rank has come to and others have not; one alone makes no circle."""


class Launch:
    """Calls launched together on one stream. left: how many have not run. tasks: their times."""

    __slots__ = ("active", "error", "left", "ops", "since", "stream", "tasks")

    def __init__(self, stream: Stream, ops: Sequence[Op]) -> None:
        self.stream, self.ops = stream, list(ops)
        self.left = len(self.ops)
        self.since = time.monotonic()
        self.active = False
        self.tasks: list[Task] = []
        self.error: RcclError | None = None

    @property
    def done(self) -> bool:
        """Whether every call has run."""
        return self.left == 0


class Place:
    """A device: its streams, its share of modelled time, and the thread that waits at it.

    host: modelled seconds before which nothing new starts (the host has waited so long). left:
    how the rank ended, None while it runs. blocked: launches its thread waits for, if it does.
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.left: str | None = None
        self.blocked: list[Launch] = []
        self.woken = threading.Condition(LOCK)
        self.members: list[Member] = []
        self.default = Stream(self, "default stream")
        self.streams = [self.default]

    def end(self) -> float:
        """Return the modelled second at which all its streams are done."""
        with LOCK:
            TIMETABLE.settle()
            ends = [t.end for s in self.streams for t in s.tail]
            return max([self.host, *(s.clock for s in self.streams), *ends])

    def wait_host(self) -> float:
        """Let the host wait for all streams; return the modelled second."""
        self.host = self.end()
        return self.host


class Stream:
    """A queue of launches at one place; made with Communicator.stream()."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name = place, name
        self.queue: deque[Launch] = deque()
        self.tail: tuple[Task, ...] = ()
        self.clock = 0.0  # modelled second before which nothing here can start, besides `tail`

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    def _require_idle(self, what: str) -> None:
        if self.queue:
            first = next((op for op in self.queue[0].ops if not op.done), self.queue[0].ops[0])
            raise InvalidUsage(f"{what} of {self.name}: {first.describe()} has not run yet")

    @property
    def elapsed(self) -> float:
        """The modelled second at which all that was put on this stream is done."""
        with LOCK:
            self._require_idle("elapsed")
            TIMETABLE.settle()
            return max([self.place.host, self.clock, *(t.end for t in self.tail)])

    def synchronize(self) -> float:
        """Let the host wait for this stream; return the modelled second (cudaStreamSynchronize)."""
        with LOCK:
            self.place.host = max(self.place.host, self.elapsed)
            return self.place.host

    def advance(self, seconds: float) -> None:
        """Compute for `seconds` of modelled time on this stream."""
        from .engine import advance

        advance(self, seconds)

    def record(self) -> Event:
        """Return an event that happens when all that is on this stream now is done."""
        from .engine import record

        return record(self)

    def wait(self, event: Event) -> None:
        """Let what is put on this stream from now on start after `event`."""
        from .engine import wait_event

        wait_event(self, event)


class Event:
    """A point in a stream; made with Stream.record()."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.happened = False
        self.tasks: tuple[Task, ...] = ()
        self.release = 0.0
        self.waiters: list[Op] = []

    @property
    def time(self) -> float:
        """The modelled second at which it happened; InvalidUsage while it has not."""
        with LOCK:
            if not self.happened:
                self.stream._require_idle("time of an event")
            TIMETABLE.settle()
            return max([self.release, *(t.end for t in self.tasks)])

    def query(self) -> bool:
        """Return whether everything before it has run."""
        return self.happened

    def elapsed(self, end: Event) -> float:
        """Return the modelled seconds from this event to `end`."""
        if not isinstance(end, Event):
            raise InvalidArgument(f"elapsed: {end!r} is not an event of Stream.record()")
        return end.time - self.time

    def synchronize(self) -> float:
        """Let the host of its place wait for it; return the modelled second."""
        with LOCK:
            place = self.stream.place
            place.host = max(place.host, self.time)
            return place.host
