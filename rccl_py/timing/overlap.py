"""Operations that overlap in modelled time: when each starts, and when it ends beside the others.

Owns Task (an operation with what it waits for and how busy it keeps links while alone) and
Timetable (which settles their times). Knows no communicator and no data.

An operation alone takes its predicted seconds: first its lead (launch and latency), in which it
uses no link, then the rest, in which it uses busy / rest of each link's bandwidth. Operations that
run at once share links max-min fairly: speeds rise together until a link is full, those that cross
it keep that speed, the others rise on, none above 1. Two operations on disjoint links do not slow
each other; two that each fill a link take twice as long, their leads apart::

    alone    A ======      together   A ============     (the same link)
             B ======                 B ============
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..fabric import F64

__all__ = ["Busy", "Cost", "Task", "Timetable"]

Ints = npt.NDArray[np.int64]

_KEPT = 8192  # operations whose times are left open; then they are settled without later ones


class Busy(NamedTuple):
    """Links an operation uses. link: int64, ascending. seconds: float64, how long while alone."""

    link: npt.NDArray[np.int64]
    seconds: F64

    @staticmethod
    def nothing() -> Busy:
        """Return what uses no link."""
        return Busy(np.zeros(0, dtype=np.int64), np.zeros(0))

    @staticmethod
    def of(seconds: F64) -> Busy:
        """Return the links of float64[nlinks] that are used at all."""
        link = np.flatnonzero(seconds)
        return Busy(link, seconds[link])


class Cost(NamedTuple):
    """What an operation takes alone. seconds; lead: of these, before it uses links. busy(): the
    links it uses and for how long, None where it uses none.
    """

    seconds: float
    lead: float
    busy: Callable[[], Busy] | None

    def task(self, after: Iterable[Task] = (), release: float = 0.0, medium: object = None) -> Task:
        """Return the operation, to be put on a timetable."""
        return Task(self.seconds, after, release, self.busy, medium, self.lead)


class Task:
    """An operation. seconds: alone; lead: of these, before it uses links. after: operations that
    must have ended. release: earliest s.

    busy(): the links it uses and for how long, None where it uses none (computation).
    medium: whose links those are; only tasks of one medium slow each other. start, end: seconds,
    once settled.
    """

    __slots__ = ("after", "busy", "end", "lead", "leading", "medium", "release", "seconds", "start")

    def __init__(
        self,
        seconds: float,
        after: Iterable[Task] = (),
        release: float = 0.0,
        busy: Callable[[], Busy] | None = None,
        medium: object = None,
        lead: float = 0.0,
    ) -> None:
        self.seconds, self.release, self.busy, self.medium = seconds, release, busy, medium
        self.after: tuple[Task, ...] = tuple(after)
        self.lead = min(lead, seconds) if busy is not None else seconds
        self.leading = self.lead > 0
        self.start = -1.0
        self.end = -1.0


def _speeds(task: Ints, link: Ints, use: F64, count: int) -> F64:
    """Return max-min fair speeds, at most 1: task[e] at speed 1 takes use[e] of link[e]."""
    speed, open_ = np.ones(count), np.ones(count, dtype=bool)
    nlinks = int(link.max(initial=-1)) + 1
    while True:
        moving = open_[task]
        wanted = np.bincount(link[moving], weights=use[moving], minlength=nlinks)
        fixed = ~moving
        taken = np.bincount(link[fixed], weights=(use * speed[task])[fixed], minlength=nlinks)
        tight = wanted > 1e-12
        most = np.min((1.0 - taken[tight]) / wanted[tight]) if tight.any() else 1.0
        if most >= 1.0:
            return speed
        full = tight & (1.0 - taken <= wanted * (most * (1 + 1e-9)))
        stopped = np.zeros(count, dtype=bool)
        stopped[task[moving & full[link]]] = True
        speed[stopped] = max(most, 0.0)
        open_ &= ~stopped


class Timetable:
    """Tasks in the order they were made; settle() gives them their times."""

    def __init__(self) -> None:
        self._open: list[Task] = []

    def add(self, task: Task) -> Task:
        """Take in a task whose `after` were added before."""
        self._open.append(task)
        if len(self._open) > _KEPT:
            self.settle()
        return task

    def settle(self) -> None:
        """Give every task its start and end; tasks added later do not change them."""
        waiting, self._open = self._open, []
        follow: dict[int, list[Task]] = {}
        left: dict[int, int] = {}
        ready: list[tuple[float, int, Task]] = []
        for number, task in enumerate(waiting):
            before = [a for a in task.after if a.end < 0]
            left[id(task)] = len(before)
            for other in before:
                follow.setdefault(id(other), []).append(task)
            if not before:
                ready.append((_earliest(task), number, task))
        heapify(ready)
        running: list[tuple[Task, float]] = []  # task, part of it left to do
        clock, serial = 0.0, len(waiting)
        while ready or running:
            if not running:
                clock = ready[0][0]
            while ready and ready[0][0] <= clock:
                task = heappop(ready)[2]
                task.start = clock
                running.append((task, 1.0))
            until = ready[0][0] if ready else np.inf
            clock, running, ended = _advance(clock, running, until)
            for task in ended:
                for later in follow.pop(id(task), ()):
                    left[id(later)] -= 1
                    if not left[id(later)]:
                        serial += 1
                        heappush(ready, (_earliest(later), serial, later))
                task.after, task.busy = (), None  # what is over keeps nothing alive


def _earliest(task: Task) -> float:
    return max([task.release, *(a.end for a in task.after)])


def _advance(
    clock: float, running: list[tuple[Task, float]], until: float
) -> tuple[float, list[tuple[Task, float]], list[Task]]:
    """Run to the next end or to `until`; return the time, what still runs, and what ended.

    What runs is a task and the part left of its lead, or of what follows it.
    """
    speed = _together([task for task, _ in running])
    spans = [task.lead if task.leading else task.seconds - task.lead for task, _ in running]
    ends = [
        clock + (span * left / s if span else 0.0)
        for span, (_, left), s in zip(spans, running, speed)
    ]
    to = min([*ends, until])
    still, ended = [], []
    for (task, left), span, s, end in zip(running, spans, speed, ends):
        if end > to:
            still.append((task, left - (to - clock) * s / span))
        elif task.leading and task.lead < task.seconds:
            task.leading = False
            still.append((task, 1.0))
        else:
            task.end = end
            ended.append(task)
    return to, still, ended


def _together(tasks: list[Task]) -> list[float]:
    """Return the speed of each running task."""
    speed = [1.0] * len(tasks)
    media: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        if task.busy is not None and not task.leading and task.seconds > task.lead:
            media.setdefault(id(task.medium), []).append(i)
    for shared in media.values():
        if len(shared) > 1:
            for i, s in zip(shared, _shared([tasks[i] for i in shared])):
                speed[i] = s
    return speed


def _shared(tasks: list[Task]) -> list[float]:
    """Return the speeds of tasks on one medium."""
    uses = [task.busy() for task in tasks if task.busy is not None]
    owner = np.repeat(np.arange(len(uses)), [len(use.link) for use in uses])
    each = [use.seconds / (task.seconds - task.lead) for use, task in zip(uses, tasks)]
    link, at = np.unique(np.concatenate([use.link for use in uses]), return_inverse=True)
    crowded = np.bincount(at, minlength=len(link)) > 1  # alone on a link, none is slowed there
    kept = crowded[at]
    speeds = _speeds(owner[kept], at[kept], np.concatenate(each)[kept], len(tasks))
    return [float(s) for s in speeds]
