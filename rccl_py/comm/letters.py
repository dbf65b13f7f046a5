"""The messages of one launch of a process: waited for together, compared, and timed.

Owns the end of sends, receives and waits for signals, which may be of several communicators. Knows
a communicator by its member's core.
"""

from __future__ import annotations

from ..errors import CollectiveMismatch, RcclError
from ..timing import Cost, Timetable, exchanges
from ..transports.mailbox import Message
from .job import Job
from .need import Need
from .op import Op

__all__ = ["finish_messages"]


def _is_open(op: Op, end: Message | Need | None) -> bool:
    assert op.member is not None
    if isinstance(end, Message):
        return not end.done
    return end is not None and not op.done and not op.member.core.signalled(op)


def finish_messages(job: Job, ends: list[tuple[Op, Message | Need | None]], timeout: float) -> None:
    """Wait for messages and signals that were begun together, and give them their time."""

    def needs() -> list[Need]:
        return [
            op.member.core.needs(op, end)
            for op, end in ends
            if op.member and end is not None and _is_open(op, end)
        ]

    try:
        job.wait(lambda: not any(_is_open(op, end) for op, end in ends), needs, timeout)
        _require_alike_ends(ends)
    except RcclError as error:
        for op, _ in ends:
            if not op.done and op.member is not None:
                op.finish(error)
                op.member.core.fail(error)
        raise
    _time_messages(ends)
    for op, _ in ends:
        if not op.done:
            op.finish()


def _require_alike_ends(ends: list[tuple[Op, Message | Need | None]]) -> None:
    for op, end in ends:
        if isinstance(end, Message) and end.error is not None and op.member is not None:
            raise CollectiveMismatch(
                f"a message of {op.member.core.name} differs between its ends: {end.error}. Count "
                "and data type must be the same"
            )


def _time_messages(ends: list[tuple[Op, Message | Need | None]]) -> None:
    """Give the messages of one launch their time: those with one peer leave together."""
    by_core: dict[int, list[tuple[Op, Message]]] = {}
    for op, end in ends:
        if isinstance(end, Message) and op.member is not None:
            by_core.setdefault(id(op.member.core), []).append((op, end))
    for pairs in by_core.values():
        first, table = pairs[0][0], Timetable()
        assert first.member is not None
        core, rows = first.member.core, []
        peers: dict[int, int] = {}
        for op, end in pairs:
            assert op.call is not None
            sends = op.call.signature.collective == "send"
            src, dst = (core.rank, end.peer) if sends else (end.peer, core.rank)
            rows.append((src, dst, len(end.data), peers.setdefault(end.peer, len(peers))))
        starts = [max(m.clock for _, m in pairs if peers[m.peer] == g) for g in range(len(peers))]
        found = exchanges(core.fabric, *zip(*rows))
        tasks = [table.add(e.cost.task((), at)) for e, at in zip(found, starts)]
        table.settle()
        start = min(starts)
        seconds = max(task.end for task in tasks) - start
        core.time(first, start, Cost(seconds, seconds, None))
