"""Programs of thread blocks: a program that was run becomes a ledger of what moves when.

Owns the steps that threads and messages take. What runs, and what races, is in `machine`. Knows no
file format and no slots.

    thread (gpu 0, tb 1)    send i[0] | after (tb 0, step 2) | receive o[3], reduced
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from ..errors import ScheduleError
from .ledger import Fault, Ledger, Value
from .levels import balance
from .machine import MOST_ACTIONS, MOST_THREADS, Action, Machine

__all__ = ["Action", "run_threads"]


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

    _await = _flush = _stand

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
    threads: list[list[Action]],
    ledger: Ledger,
    given: dict[Hashable, int] | None = None,
    homes: list[int] | None = None,
    *,
    quick: bool = False,
) -> Ledger:
    """Run a program of threads and return the ledger of what moves when.

    ledger: an empty one. given: signals that are there from the start. homes: the rank of every
    thread, where others write its outputs, which must have arrived at its end. Of four orders of
    steps (a thread's messages at once or in turn, sums in the step of what they are added to or in
    the next) the lightest is taken; quick: the first, where only the result matters.

    Raises ScheduleError, which names the action, where the program never ends, leaves messages,
    depends on which thread is faster, reads what nobody wrote, or combines what does not belong
    together.
    """
    longest = max(map(len, threads), default=0)
    if len(threads) > MOST_THREADS or longest > MOST_ACTIONS:
        raise ScheduleError(
            f"{len(threads)} thread blocks of up to {longest} actions: at most {MOST_THREADS} of "
            f"{MOST_ACTIONS} can be followed"
        )
    machine = Machine(threads, ledger, given=given or {}, homes=homes)
    machine.run()
    later = _needed_later(ledger, machine.order)
    orders = [(turn, fused) for turn in (False, True) for fused in (True, False)]
    orders = orders[: 1 if quick else None]
    found = [_filled(machine, ledger.fresh(fused=f), later, in_turn=turn) for turn, f in orders]
    return min(found, key=Ledger.burden)


def _filled(
    machine: Machine, ledger: Ledger, later: dict[int, list[bool]], *, in_turn: bool
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
