"""Runs a program of thread blocks in an order that works, and refuses it if any order might differ.

Owns the meaning of send and receive (matched in order on a queue), of waiting for another thread's
step, of signals, packets and lanes. Knows no file format and no steps.

One order is followed, and what surely precedes what is kept as vector clocks (Mattern 1989). That
speaks for all orders because nothing a thread learns depends on who was faster: a signal is waited
for by one thread at a time, so no thread takes what another might have had; its sender is known;
and packets are known by the first that came to their place. What would depend on it is refused.
Proof: by induction on another order's actions, each hears there what it heard here.

    thread 0    put s[0] | signal q ........ overwrite i[0]
    thread 1               wait for q | read s[0]: heard of the put, not of what follows the signal
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from .ledger import NAMES, Ledger, Place

__all__ = ["MOST_ACTIONS", "MOST_THREADS", "Action", "Machine"]

Clock = npt.NDArray[np.uint16]
"""What a thread knows: for every thread and lane, how many of its actions are surely over."""

MOST_THREADS = 1 << 13  # each may hold a clock, of 16 KiB then
MOST_ACTIONS = (1 << 16) - 1  # of a thread, or of a lane


@dataclass(slots=True, eq=False)
class Action:
    """One thing a thread does, and where the program says so.

    verb: "send" (src to `queue`; without src, what was just received), "receive" (from `queue` to
    dst; with base, combined with it), "move" (src to dst; with base, combined), "signal" and
    "wait" (on `queue`; `count` signals, 0: one more than the last time), "await" (packets in src),
    "flush" (all that was given to `lane` is over), "after" (action number `count` of thread
    `thread`), "stand" (nothing: others wait for it).

    packets: what is written are packets: data with flags between. unpacks: what is read in src are
    packets. relaxed: a signal or a wait that does not order data. counted: a signal that may come
    from several threads in any order. lane: who does a move or a signal instead of the thread,
    which goes on meanwhile; a lane does one thing after the other.
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
    unpacks: bool = False
    switched: bool = False
    relaxed: bool = False
    counted: bool = False
    lane: Hashable = None


_Turn = tuple[int, int, Action]
"""Thread or lane, which of its actions, and what it was."""


@dataclass(slots=True)
class _Access:
    """Who wrote a place last, and who has read it since."""

    write: _Turn | None = None
    reads: dict[int, tuple[int, Action]] = field(default_factory=dict)


@dataclass(slots=True)
class _Signals:
    """Signals of one semaphore: how many, and what each had seen.

    clocks: what each and all before it knew, None where it tells nothing or is counted by thread,
    in `of`. waits: how many have begun.
    """

    given: int = 0
    clocks: list[Clock | None] = field(default_factory=list)
    of: dict[int, list[Clock]] = field(default_factory=dict)
    waits: int = 0


@dataclass(eq=False)
class Machine:
    """The state of a program. given: signals that are there from the start, by queue.

    homes: the rank each thread belongs to; with it, a rank's outputs must have surely arrived when
    its own threads end, since others may still be running then.
    """

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
    homes: list[int] | None = None
    ended: dict[int, Clock] = field(default_factory=dict)  # what a rank's threads knew at their end

    def __post_init__(self) -> None:
        count = len(self.threads)
        uses = Counter(a.lane for t in self.threads for a in t if a.lane is not None)
        if uses and max(uses.values()) > MOST_ACTIONS:
            raise ScheduleError(f"more than {MOST_ACTIONS} actions on one channel")
        self.lanes = {lane: count + k for k, lane in enumerate(uses)}
        self.ends: dict[tuple[str, Hashable], _Turn] = {}  # who was last at an end of a channel
        self.width = count + len(uses)
        for queue, signals in self.given.items():
            self.signals[queue] = _Signals(signals, [self.fresh()] * signals)
        self.totals: dict[Hashable, Counter[int]] = {}  # counted signals of a queue, by thread
        for number, actions in enumerate(self.threads):
            for action in actions:
                if action.counted and action.verb == "signal":
                    self.totals.setdefault(action.queue, Counter())[number] += 1
        self.at = [0] * count
        self.needs: list[int] = [0] * count
        self.clocks: dict[int, Clock] = {}  # of lanes, and of threads that have begun, not ended
        self.awaited = {(a.thread, a.count) for t in self.threads for a in t if a.verb == "after"}

    def fresh(self) -> Clock:
        """Return the clock of who knows nothing."""
        return np.zeros(self.width, dtype=np.uint16)

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
            self.clocks[thread] = self.fresh()
        clock = self.clocks[thread]
        clock[thread] += 1
        self.hear(thread, action, clock)
        doer, seen = self.doer(thread, action, clock)
        self.touch(doer, action, seen)
        self.order.append((thread, action))
        woken: list[Hashable] = [("after", thread, self.at[thread])]
        if action.verb == "send":
            self.queues.setdefault(action.queue, deque()).append((action, seen.copy()))
            woken.append(("queue", action.queue))
        elif action.verb == "signal":
            self.signal(thread, action, clock, seen)
            woken.append(("signal", action.queue))
        elif action.packets:
            kept = seen.copy()
            for place in map(self.ledger.own, action.dst):
                self.packets.setdefault(place, kept)  # whose flag stays there from now on
                woken.append(("packet", place))
        if (thread, self.at[thread]) in self.awaited:
            self.done[thread, self.at[thread]] = clock.copy()
        self.at[thread] += 1
        if self.at[thread] == len(self.threads[thread]):
            last = self.clocks.pop(thread)
            if self.homes is not None:
                known = self.ended.setdefault(self.homes[thread], last)
                np.maximum(known, last, out=known)
        for key in woken:
            ready.extend(self.asleep.pop(key, ()))

    def doer(self, thread: int, action: Action, clock: Clock) -> tuple[int, Clock]:
        """Return who does an action, the thread or a lane, and what it knows."""
        if action.lane is None:
            return thread, clock
        self.alone("use", action.lane, thread, action, clock)
        lane = self.lanes[action.lane]
        seen = self.clocks.setdefault(lane, self.fresh())
        if action.verb == "flush":
            np.maximum(clock, seen, out=clock)
            return thread, clock
        np.maximum(seen, clock, out=seen)
        seen[lane] += 1
        return lane, seen

    def alone(self, end: str, key: Hashable, thread: int, action: Action, clock: Clock) -> None:
        """Refuse two threads at one end of a channel: who comes first?"""
        before = self.ends.get((end, key))
        if before is not None and clock[before[0]] < before[1]:
            self.apart(action, before[2], f"{end} {key}")
        self.ends[end, key] = thread, int(clock[thread]), action

    def apart(self, one: Action, two: Action, what: str) -> NoReturn:
        """Refuse a program in which two thread blocks do what one alone may."""
        raise ScheduleError(
            f"{one.where} and {two.where} both {what}, and neither waits for the other: make one "
            "depend on the other"
        )

    def signal(self, thread: int, action: Action, clock: Clock, seen: Clock) -> None:
        """Note a signal. clock: what the thread knows; seen: what the signal tells."""
        signals = self.signals.setdefault(action.queue, _Signals())
        if action.counted:
            signals.of.setdefault(thread, []).append(seen.copy())
            signals.clocks.append(None)
            return
        if action.count == 0:
            self.alone("signal", action.queue, thread, action, clock)
        tells = None if action.relaxed else seen.copy()
        last = signals.clocks[-1] if action.count and signals.clocks else None
        if tells is not None and last is not None:  # a barrier tells of all
            np.maximum(tells, last, out=tells)
        signals.clocks.append(tells)

    def hear(self, thread: int, action: Action, clock: Clock) -> None:
        """Add what an action learns of other threads."""
        heard: list[Clock] = []
        if action.verb == "receive":
            heard = [self.queues[action.queue].popleft()[1]]
        elif action.verb == "after":
            heard = [self.done[action.thread, action.count]]
        elif action.verb == "wait":
            heard = self.waited(thread, action, clock)
        elif action.verb == "await":
            heard = [self.packets[self.ledger.own(place)] for place in action.src]
        for other in heard:
            np.maximum(clock, other, out=clock)

    def waited(self, thread: int, action: Action, clock: Clock) -> list[Clock]:
        """Return what a wait surely learns, whichever signals come first."""
        signals, number = self.signals[action.queue], self.needs[thread]
        self.needs[thread] = 0
        if action.count == 0:
            self.alone("wait for a signal", action.queue, thread, action, clock)
        totals = self.totals.get(action.queue)
        if totals is None:
            tells = signals.clocks[number - 1]
            return [] if action.relaxed or tells is None else [tells]
        # Of `number` signals, those that others may give leave so many to each at least.
        spare = totals.total() - (number - signals.given)
        sure = {other: count - spare for other, count in totals.items() if count > spare}
        return [signals.of[other][least - 1] for other, least in sure.items()]

    def touch(self, doer: int, action: Action, clock: Clock) -> None:
        """Refuse an access that is not ordered after the ones it depends on."""
        tick = int(clock[doer])
        for k, place in enumerate(map(self.ledger.own, (*action.src, *action.base))):
            access = self.places.setdefault(place, _Access())
            self.ordered(access.write, clock, action, place)
            if action.verb != "await":
                access.reads[doer] = tick, action
            unpacks = action.verb == "await" or (action.unpacks and k < len(action.src))
            if unpacks != (access.write is not None and access.write[2].packets):
                self.mistaken(action, access.write, place, unpacks)
        for place in map(self.ledger.own, action.dst):
            access = self.places.setdefault(place, _Access())
            self.ordered(access.write, clock, action, place)
            for reader, (when, by) in access.reads.items():
                self.ordered((reader, when, by), clock, action, place)
            self.places[place] = _Access((doer, tick, action))

    def ordered(self, before: _Turn | None, clock: Clock, now: Action, place: Place) -> None:
        """Refuse a program in which nothing orders two uses of a place."""
        if before is not None and clock[before[0]] < before[1]:
            rank, buffer, chunk = place
            self.apart(now, before[2], f"use {NAMES[buffer]} chunk {chunk} of rank {rank}")

    def mistaken(
        self, action: Action, write: _Turn | None, place: Place, unpacks: bool
    ) -> NoReturn:
        """Refuse to read packets as data, or data as packets."""
        rank, buffer, chunk = place
        what = "packets", "data without flags"
        by = f"where {write[2].where} wrote" if write is not None else "which holds"
        raise ScheduleError(
            f"{action.where} reads {what[not unpacks]} from {NAMES[buffer]} chunk {chunk} of rank "
            f"{rank}, {by} {what[unpacks]}"
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
        if self.homes is not None:
            self.arrived()

    def arrived(self) -> None:
        """Refuse outputs that may arrive after their rank's end, or arrive as packets."""
        for rank, block in np.argwhere(self.ledger.goals >= 0).tolist():
            known = self.ended.get(rank)
            for chunk in range(block * self.ledger.chunks, (block + 1) * self.ledger.chunks):
                access = self.places.get(self.ledger.own((rank, "o", chunk)))
                if access is None or access.write is None:
                    continue
                doer, tick, action = access.write
                if known is None or known[doer] < tick:
                    raise ScheduleError(
                        f"{action.where} writes output chunk {chunk} of rank {rank}, whose thread "
                        f"blocks may end before it arrives: make one of them wait for it"
                    )
                if action.packets:
                    raise ScheduleError(
                        f"{action.where} leaves packets in output chunk {chunk} of rank {rank}: "
                        "data without flags was expected"
                    )

    def awaits(self, action: Action) -> str:
        """Return what a blocked action waits for, in words."""
        if action.verb == "after":
            return self.threads[action.thread][action.count].where
        if action.verb == "receive":
            return f"a message {action.queue}"
        return "packets" if action.verb == "await" else f"a signal {action.queue}"
