"""Ranks of one process: launches reach the head of their stream, meet their partners, and run.

Owns the progress of queues, the waiting of threads, and when waiting is given up: a circle in the
wait-for graph (at once), a rank that has ended (at once), the timeout. Knows cores only by
activate() and lacking().
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..arguments import finite
from ..errors import (
    Deadlock,
    InternalError,
    InvalidArgument,
    RcclError,
    RcclSystemError,
    RcclTimeout,
    RemoteError,
)
from ..timing import Task
from .deadlock import circle, told
from .op import Op, named
from .place import LOCK, OPEN, TIMETABLE, Event, Launch, Place, Stream

if TYPE_CHECKING:
    from .member import Member

__all__ = ["advance", "launches_of", "progress", "record", "submit", "wait", "wait_event"]

_LONGEST = 1e9  # seconds of computation
_PARTNERS = {"send": ("recv",), "recv": ("send",), "wait_signal": ("put_signal", "signal")}


def launches_of(ops: Iterable[Op]) -> list[Launch]:
    """Return one launch a stream, in the order the streams were first used."""
    by_stream: dict[int, tuple[Stream, list[Op]]] = {}
    for op in ops:
        by_stream.setdefault(id(op.stream), (op.stream, []))[1].append(op)
    launches = [Launch(stream, group) for stream, group in by_stream.values()]
    for launch in launches:
        for op in launch.ops:
            op.launch = launch
    return launches


def submit(launches: Sequence[Launch]) -> None:
    """Put launches on their streams and run all that can run; raise what went wrong with them."""
    with LOCK:
        for launch in launches:
            for op in launch.ops:
                if op.member is not None:
                    op.member.number(op)
            launch.stream.queue.append(launch)
        progress(launch.stream for launch in launches)
        if len(OPEN) > 1 and any(not launch.done for launch in launches):
            for launch in launches:
                _end_circle(launch.stream)
        raise_first(launches)


def raise_first(launches: Sequence[Launch]) -> None:
    """Raise the first error of these launches."""
    for launch in launches:
        if launch.error is not None:
            raise launch.error


def progress(streams: Iterable[Stream]) -> None:
    """Run whatever can run now that these streams have changed."""
    ready = deque(streams)
    batches: dict[int, Any] = {}
    while ready or batches:
        while ready:
            stream = ready.popleft()
            while stream.queue:
                head = stream.queue[0]
                if not head.active:
                    head.active = True
                    for op in head.ops:
                        if not op.done:
                            _activate(op, ready, batches)
                if not head.done:
                    break
                stream.queue.popleft()
                if head.tasks:
                    stream.tail = tuple(head.tasks)
                stream.place.woken.notify_all()
        for core in list(batches.values()):
            core.flush(ready)
        batches.clear()


def _activate(op: Op, ready: deque[Stream], batches: dict[int, Any]) -> None:
    if op.member is not None:
        if op.member.core.activate(op, ready):
            batches[id(op.member.core)] = op.member.core
    elif op.event is None:
        release = max(op.stream.place.host, op.stream.clock)
        task = Task(op.seconds, op.stream.tail, release)
        _timed(op, TIMETABLE.add(task))
        op.finish()
    elif op.result is None:
        _happen(op, ready)
    elif op.event.happened:
        _come_to(op, op.event)
    else:
        op.event.waiters.append(op)
        OPEN.add((id(op),))


def _timed(op: Op, *tasks: Task) -> None:
    if op.launch is not None:
        op.launch.tasks += tasks


def _come_to(waiter: Op, event: Event) -> None:
    """Let what comes after `waiter` start after an event that has happened."""
    _timed(waiter, *event.tasks, *waiter.stream.tail)
    waiter.stream.clock = max(waiter.stream.clock, event.release)
    waiter.finish()


def _happen(op: Op, ready: deque[Stream]) -> None:
    event, stream = op.event, op.stream
    event.happened, event.tasks = True, stream.tail
    event.release = max(stream.place.host, stream.clock)
    op.finish()
    for waiter in event.waiters:
        _come_to(waiter, event)
        OPEN.discard((id(waiter),))
        ready.append(waiter.stream)
    event.waiters.clear()


def _put(stream: Stream, *, seconds: float = 0.0, event: Event | None = None, waits: bool) -> None:
    op = Op(None, None, stream)
    op.seconds, op.event = seconds, event
    op.result = "waits" if waits else None
    submit(launches_of([op]))


def advance(stream: Stream, seconds: float) -> None:
    """Compute for `seconds` of modelled time on a stream."""
    _put(stream, seconds=finite(seconds, "advance: seconds", -1e-300, _LONGEST), waits=False)


def record(stream: Stream) -> Event:
    """Return an event that happens when all that is on the stream now is done."""
    event = Event(stream)
    _put(stream, event=event, waits=False)
    return event


def wait_event(stream: Stream, event: Event) -> None:
    """Let what is put on the stream from now on start after the event."""
    if not isinstance(event, Event):
        raise InvalidArgument(f"wait on {stream!r}: {event!r} is not an event of Stream.record()")
    _put(stream, event=event, waits=True)


# ---- waiting ------------------------------------------------------------------------------------


def _lacks(stream: Stream) -> Iterator[tuple[Op, Member]]:
    """Yield (unfinished call at the head of the stream, rank that has not come to it)."""
    if stream.queue:
        for op in stream.queue[0].ops:
            if not op.done and op.member is not None:
                for other in op.member.core.lacking(op):
                    yield op, other


def _waits(stream: Stream) -> Iterator[tuple[Stream, str]]:
    """Yield the streams that the head of `stream` waits for, with the sentence that says so."""
    for op in stream.queue[0].ops if stream.queue else ():
        if op.member is None and not op.done and op.event is not None:
            yield op.event.stream, f"{stream.name} waits for an event of {op.event.stream.name}"
    for op, other in _lacks(stream):
        assert op.member is not None
        text = (
            f"rank {op.member.rank} of {op.member.core.name} waits in {op.describe()} "
            f"for rank {other.rank}"
        )
        queued = [s for s in other.place.streams if s.queue]
        held = [s for s in queued if any(_is_partner(o, op, other) for o in _later(s))]
        for target in held:
            yield target, text
        if not held:
            for launch in other.place.blocked:
                if not launch.done:
                    yield launch.stream, text


def _later(stream: Stream) -> Iterator[Op]:
    for launch in stream.queue:
        if not launch.active:
            yield from launch.ops


def _is_partner(candidate: Op, op: Op, other: Member) -> bool:
    """Return whether `candidate`, queued at `other`, is the call that `op` waits for."""
    if candidate.member is not other or candidate.call is None or op.call is None:
        return False
    mine, its = op.call.signature, candidate.call.signature
    if mine.peer < 0 or its.peer < 0:
        return mine.peer == its.peer and candidate.number == op.number
    assert op.member is not None
    if its.peer != op.member.rank or its.collective not in _PARTNERS.get(mine.collective, ()):
        return False
    if mine.collective != "wait_signal":
        return candidate.turn == op.turn
    put = candidate.call.payload
    return put.signals and any(
        (d.peer, d.signal_index, d.context) == (other.rank, put.index, put.context)
        for d in op.call.payload
    )


def _end_circle(stream: Stream) -> None:
    """Fail every communicator of a circle that `stream` waits in, if there is one."""
    texts = circle(stream, _waits)
    if texts is None:
        return
    error = Deadlock(told(texts))
    waits = [found for found in _waited_for(stream) if circle(found, _waits) is not None]
    heads = [found.queue[0].ops for found in waits if found.queue]
    stuck = [op.member.core for ops in heads for op in ops if not op.done and op.member]
    cores = list({id(core): core for core in stuck}.values())
    ready: deque[Stream] = deque()
    for core in cores:
        core.fail(error, ready)  # all of them before any queue moves on
    progress(ready)


def _waited_for(start: Stream) -> list[Stream]:
    """Return `start` and the streams it waits for, and those they wait for."""
    found, ahead = [start], [start]
    while ahead:
        for other, _ in _waits(ahead.pop()):
            if other not in found:
                found.append(other)
                ahead.append(other)
    return found


def _give_up(launches: Sequence[Launch], timeout: float) -> None:
    """Fail the communicators that these launches wait in: the timeout is over."""
    for launch in launches:
        for op in launch.ops:
            if op.done or op.member is None:
                continue
            core = op.member.core
            missing = [m.rank for m in core.lacking(op)]
            core.fail(
                RcclTimeout(
                    f"rank {op.member.rank} waited {timeout:g} s in {op.describe()}, "
                    f"communicator {core.name}, for {named(missing) if missing else 'its turn'}"
                )
            )


def _end_of_the_gone(place: Place) -> None:
    """Fail what waits for a rank that has ended its program."""
    for launch in place.blocked:
        for op, other in list(_lacks(launch.stream)) if not launch.done else ():
            if other.place.left is not None and op.member is not None:
                op.member.core.fail(
                    RemoteError(
                        f"rank {op.member.rank} waits in {op.describe()} for rank {other.rank}, "
                        f"which {other.place.left}"
                    )
                )
                break


def wait(place: Place, launches: Sequence[Launch], timeout: float) -> None:
    """Block the thread of `place` until these launches are done; raise what went wrong."""
    deadline = time.monotonic() + timeout
    with LOCK:
        place.blocked = list(launches)
        try:
            while any(not launch.done for launch in launches):
                _end_of_the_gone(place)
                for launch in launches:
                    if not launch.done:
                        _end_circle(launch.stream)
                if all(launch.done for launch in launches):
                    break
                left = deadline - time.monotonic()
                late = left <= 0 or not place.woken.wait(left)
                if late and any(not launch.done for launch in launches):
                    _give_up(launches, timeout)
        finally:
            place.blocked = []
        raise_first(launches)


def look_after(place: Place, launches: Sequence[Launch], timeout: float) -> None:
    """End launches nobody waits for when they wait for a rank that has ended, or too long."""
    with LOCK:
        before, place.blocked = place.blocked, list(launches)
        try:
            _end_of_the_gone(place)
        finally:
            place.blocked = before
        late = [one for one in launches if not one.done and time.monotonic() - one.since > timeout]
        _give_up(late, timeout)


def leave(place: Place, how: str) -> None:
    """Note that the rank at `place` makes no more calls, and tell whoever waits for it."""
    with LOCK:
        place.left = how
        for core in {id(m.core): m.core for m in place.members}.values():
            core.end_meetings_of_the_gone()
            for member in core.members:
                member.place.woken.notify_all()


def error_of(error: Exception, what: str) -> RcclError:
    """Return an error of this library for whatever went wrong while a call ran."""
    if isinstance(error, RcclError):
        return error
    if isinstance(error, MemoryError):
        return RcclSystemError(f"{what}: out of memory: {error}")
    return InternalError(f"{what} failed with {type(error).__name__}: {error}")
