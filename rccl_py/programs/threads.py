"""Programs of thread blocks: run them in an order that works, find races, fill a ledger.

Owns the meaning of send and receive (matched in order on a queue), of waiting for another thread's
step, of signals and of packets. Knows no file format and no slots. A program that waits for ever,
or whose result depends on which thread is faster, is refused with the place that does.

    thread (gpu 0, tb 1)    send i[0] | after (tb 0, step 2) | receive o[3], reduced
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from .ledger import NAMES, Fault, Ledger, Place, Value
from .levels import balance

__all__ = ["Action", "run_threads"]

Clock = npt.NDArray[np.uint16]
"""What a thread knows: for every thread, how many of its actions are surely over."""

_MOST_THREADS = 1 << 13  # each may hold a clock, of 16 KiB then
_MOST_ACTIONS = (1 << 16) - 1  # of a thread


@dataclass(slots=True, eq=False)
class Action:
    """One thing a thread does, and where the program says so.

    verb: "send" (src to `queue`; without src, what was just received), "receive" (from `queue` to
    dst; with base, combined with it), "move" (src to dst; with base, combined), "signal" and
    "wait" (on `queue`; `count` signals, 0: one more than the last time), "await" (packets in src),
    "after" (action number `count` of thread `thread`), "stand" (nothing: others wait for it).
    """

    verb: str
    where: str
    src: tuple[Place, ...] = ()
    base: tuple[Place, ...] = ()
    dst: tuple[Place, ...] = ()
    queue: Hashable = None
    channel: int = 0
    thread: int = -1
    count: int = 0
    packets: bool = False
    switched: bool = False


@dataclass(slots=True)
class _Access:
    """Who wrote a place last (thread, tick, action), and who has read it since."""

    write: tuple[int, int, Action] | None = None
    reads: dict[int, tuple[int, Action]] = field(default_factory=dict)


@dataclass(slots=True)
class _Signals:
    """Signals of one semaphore: what each, and all before it, had seen."""

    clocks: list[Clock] = field(default_factory=list)
    waits: int = 0


@dataclass(eq=False)
class _Machine:
    threads: list[list[Action]]
    ledger: Ledger
    order: list[tuple[int, Action]] = field(default_factory=list)
    queues: dict[Hashable, deque[tuple[Action, Clock]]] = field(default_factory=dict)
    signals: dict[Hashable, _Signals] = field(default_factory=dict)
    packets: dict[Place, Clock] = field(default_factory=dict)
    asleep: dict[Hashable, list[int]] = field(default_factory=dict)
    places: dict[Place, _Access] = field(default_factory=dict)
    done: dict[tuple[int, int], Clock] = field(default_factory=dict)
    given: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.threads)
        for queue, signals in self.given.items():
            zero = np.zeros(count, dtype=np.uint16)
            self.signals[queue] = _Signals([zero] * signals)
        self.at = [0] * count
        self.needs: list[int] = [0] * count
        self.clocks: dict[int, Clock] = {}  # of threads that have begun and not ended
        self.awaited = {(a.thread, a.count) for t in self.threads for a in t if a.verb == "after"}

    def run(self) -> None:
        """Run every thread as far as it gets, until all are done. Raises ScheduleError."""
        ready = deque(range(len(self.threads)))
        while ready:
            thread = ready.popleft()
            actions = self.threads[thread]
            while self.at[thread] < len(actions):
                action = actions[self.at[thread]]
                waits = self.blocked(thread, action)
                if waits is not None:
                    self.asleep.setdefault(waits, []).append(thread)
                    break
                self.act(thread, action, ready)
        self.complete()

    def blocked(self, thread: int, action: Action) -> Hashable | None:
        """Return what a thread has to wait for, None if it can go on."""
        if action.verb == "receive" and not self.queues.get(action.queue):
            return "queue", action.queue
        if action.verb == "after" and self.at[action.thread] <= action.count:
            return "after", action.thread, action.count
        if action.verb == "wait":
            signals = self.signals.setdefault(action.queue, _Signals())
            if not self.needs[thread]:
                signals.waits += 1
                self.needs[thread] = action.count or signals.waits
            if len(signals.clocks) < self.needs[thread]:
                return "signal", action.queue
        if action.verb == "await":
            missing = [p for p in action.src if self.ledger.own(p) not in self.packets]
            if missing:
                return "packet", self.ledger.own(missing[0])
        return None

    def act(self, thread: int, action: Action, ready: deque[int]) -> None:
        """Do one action and wake who waited for it."""
        if thread not in self.clocks:
            self.clocks[thread] = np.zeros(len(self.threads), dtype=np.uint16)
        clock = self.clocks[thread]
        clock[thread] += 1
        self.hear(thread, action, clock)
        self.touch(thread, action, clock)
        self.order.append((thread, action))
        woken: list[Hashable] = [("after", thread, self.at[thread])]
        if action.verb == "send":
            self.queues.setdefault(action.queue, deque()).append((action, clock.copy()))
            woken.append(("queue", action.queue))
        elif action.verb == "signal":
            clocks = self.signals.setdefault(action.queue, _Signals()).clocks
            clocks.append(np.maximum(clocks[-1], clock) if clocks else clock.copy())
            woken.append(("signal", action.queue))
        elif action.packets:
            seen = clock.copy()
            for place in map(self.ledger.own, action.dst):
                self.packets[place] = seen
                woken.append(("packet", place))
        if (thread, self.at[thread]) in self.awaited:
            self.done[thread, self.at[thread]] = clock.copy()
        self.at[thread] += 1
        if self.at[thread] == len(self.threads[thread]):
            del self.clocks[thread]
        for key in woken:
            ready.extend(self.asleep.pop(key, ()))

    def hear(self, thread: int, action: Action, clock: Clock) -> None:
        """Add what an action learns of other threads."""
        heard: list[Clock] = []
        if action.verb == "receive":
            heard = [self.queues[action.queue].popleft()[1]]
        elif action.verb == "after":
            heard = [self.done[action.thread, action.count]]
        elif action.verb == "wait":
            heard = [self.signals[action.queue].clocks[self.needs[thread] - 1]]
            self.needs[thread] = 0
        elif action.verb == "await":
            heard = [self.packets[self.ledger.own(place)] for place in action.src]
        for other in heard:
            np.maximum(clock, other, out=clock)

    def touch(self, thread: int, action: Action, clock: Clock) -> None:
        """Refuse an access that is not ordered after the ones it depends on."""
        tick = int(clock[thread])
        if action.verb == "await":
            return
        for place in map(self.ledger.own, (*action.src, *action.base)):
            access = self.places.setdefault(place, _Access())
            self.ordered(access.write, clock, action, place)
            access.reads[thread] = tick, action
        for place in map(self.ledger.own, action.dst):
            access = self.places.setdefault(place, _Access())
            self.ordered(access.write, clock, action, place)
            for reader, (when, by) in access.reads.items():
                self.ordered((reader, when, by), clock, action, place)
            self.places[place] = _Access((thread, tick, action))

    def ordered(
        self, before: tuple[int, int, Action] | None, clock: Clock, now: Action, place: Place
    ) -> None:
        if before is None or clock[before[0]] >= before[1]:
            return
        rank, buffer, chunk = place
        raise ScheduleError(
            f"{now.where} and {before[2].where} both use {NAMES[buffer]} chunk {chunk} of rank "
            f"{rank}, and neither waits for the other: make one depend on the other"
        )

    def complete(self) -> None:
        """Refuse a program that has not come to its end."""
        stuck = [(t, a[self.at[t]]) for t, a in enumerate(self.threads) if self.at[t] < len(a)]
        if stuck:
            told = "; ".join(f"{a.where} waits for {self.awaits(a)}" for _, a in stuck[:3])
            more = f"; {len(stuck) - 3} more wait" if len(stuck) > 3 else ""
            raise ScheduleError(f"the program never ends: {told}{more}")
        for queue in self.queues.values():
            if queue:
                raise ScheduleError(
                    f"{queue[0][0].where} sends what nobody receives "
                    f"({len(queue)} message(s) too many)"
                )

    def awaits(self, action: Action) -> str:
        if action.verb == "after":
            return self.threads[action.thread][action.count].where
        if action.verb == "receive":
            return f"a message {action.queue}"
        return "packets" if action.verb == "await" else f"a signal {action.queue}"


def _needed_later(ledger: Ledger, order: list[tuple[int, Action]]) -> dict[int, list[bool]]:
    """Return, by position in `order`, which bases are read again before they are overwritten."""
    live = {
        ledger.own((rank, "o", chunk))
        for rank in range(ledger.n)
        for chunk in range(ledger.outputs * ledger.chunks)
        if ledger.goals[rank, chunk // ledger.chunks] >= 0
    }
    found = {}
    for number in range(len(order) - 1, -1, -1):
        action = order[number][1]
        live.difference_update(map(ledger.own, action.dst))
        if action.base:
            found[number] = [ledger.own(place) in live for place in action.base]
        live.update(map(ledger.own, (*action.src, *action.base)))
    return found


@dataclass(eq=False)
class _Filling:
    """Steps of threads and messages while a program's actions go into the ledger.

    in_turn: a thread sends one message a step; else as many as are ready.
    """

    ledger: Ledger
    in_turn: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    results: dict[int, list[Value]] = field(default_factory=dict)
    queues: dict[Hashable, deque[tuple[list[Value], int, int]]] = field(default_factory=dict)
    signals: dict[Hashable, list[int]] = field(default_factory=dict)
    waits: dict[Hashable, int] = field(default_factory=dict)
    done: dict[tuple[int, int], int] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)

    def add(self, thread: int, action: Action, stays: list[bool]) -> None:
        step = self.steps.get(thread, 0)
        self.ledger.writer = action.where
        step = max(step, getattr(self, f"_{action.verb}")(thread, action, stays, step))
        self.steps[thread] = step
        number = self.count.get(thread, 0)
        self.done[thread, number] = step
        self.count[thread] = number + 1

    def _stand(self, _thread: int, _action: Action, _stays: list[bool], step: int) -> int:
        return step

    _await = _stand

    def _after(self, _thread: int, action: Action, _stays: list[bool], _step: int) -> int:
        return self.done[action.thread, action.count]

    def _signal(self, _thread: int, action: Action, _stays: list[bool], step: int) -> int:
        heard = self.signals.setdefault(action.queue, [])
        heard.append(max(step, heard[-1]) if heard else step)
        return step

    def _wait(self, _thread: int, action: Action, _stays: list[bool], _step: int) -> int:
        number = action.count or self.waits.get(action.queue, 0) + 1
        self.waits[action.queue] = number
        return self.signals[action.queue][number - 1]

    def _send(self, thread: int, action: Action, _stays: list[bool], step: int) -> int:
        values = [self.ledger.look(p) for p in action.src] if action.src else self.results[thread]
        step = self._turn(thread, max(step, *(v.born[0] + 1 for v in values)))
        message = values, step, action.channel
        self.queues.setdefault(action.queue, deque()).append(message)
        return step

    def _turn(self, thread: int, step: int) -> int:
        """Return the step a message leaves in that is ready for `step`."""
        if self.in_turn:
            step = self.sent[thread] = max(step, self.sent.get(thread, -1) + 1)
        return step

    def _receive(self, thread: int, action: Action, stays: list[bool], step: int) -> int:
        values, sent, channel = self.queues[action.queue].popleft()
        size = len(action.base or action.dst)
        if len(values) != size:
            raise Fault(f"receives {size} chunk(s) where {len(values)} are sent")
        return self._done(thread, action, stays, values, (sent, step), channel)

    def _move(self, thread: int, action: Action, stays: list[bool], step: int) -> int:
        values = [self.ledger.look(place) for place in action.src]
        if values[0].rank != (action.dst or action.base)[0][0]:
            step = self._turn(thread, max(step, *(v.born[0] + 1 for v in values)))
        return self._done(thread, action, stays, values, (step, step), action.channel)

    def _done(
        self,
        thread: int,
        action: Action,
        stays: list[bool],
        values: list[Value],
        ready: tuple[int, int],
        channel: int,
    ) -> int:
        switched = action.switched
        if action.base:
            places = action.dst or (None,) * len(action.base)
            step, made = self.ledger.reduce(
                values, action.base, places, *ready, channel, stays=stays, switched=switched
            )
        else:
            rank = action.dst[0][0]
            step, made = self.ledger.copy(
                values, rank, action.dst, *ready, channel, switched=switched
            )
        self.results[thread] = made
        return step


def run_threads(
    threads: list[list[Action]], ledger: Ledger, given: dict[Hashable, int] | None = None
) -> Ledger:
    """Run a program of threads and return the ledger of what moves when.

    ledger: an empty one. given: signals that are there from the start. Of four orders of steps
    (a thread's messages at once or in turn, sums in the step of what they are added to or in the
    next) the lightest is taken. Raises ScheduleError, which names the action, where the program
    never ends, leaves messages, depends on which thread is faster, reads what nobody wrote, or
    combines what does not belong together.
    """
    longest = max(map(len, threads), default=0)
    if len(threads) > _MOST_THREADS or longest > _MOST_ACTIONS:
        raise ScheduleError(
            f"{len(threads)} thread blocks of up to {longest} actions: at most {_MOST_THREADS} of "
            f"{_MOST_ACTIONS} can be followed"
        )
    machine = _Machine(threads, ledger, given=given or {})
    machine.run()
    later = _needed_later(ledger, machine.order)
    orders = [(turn, fused) for turn in (False, True) for fused in (True, False)]
    found = [_filled(machine, ledger.fresh(fused=f), later, in_turn=turn) for turn, f in orders]
    return min(found, key=Ledger.burden)


def _filled(
    machine: _Machine, ledger: Ledger, later: dict[int, list[bool]], *, in_turn: bool
) -> Ledger:
    filling = _Filling(ledger, in_turn)
    filling.signals = {queue: [0] * count for queue, count in machine.given.items()}
    for number, (thread, action) in enumerate(machine.order):
        try:
            filling.add(thread, action, later.get(number, []))
        except Fault as fault:
            raise ScheduleError(f"{action.where} {fault}") from None
    balance(ledger)
    return ledger
