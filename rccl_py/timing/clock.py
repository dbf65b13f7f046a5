"""The clock: a time for every rank and channel, moved on by messages alone. No one waits for all.

Owns what waits for what inside a stage and between stages; docs/timing.md says it in words. A ring
of 10,000 ranks is two stages of 9,999 equal repetitions, which rccl_py.timing.maxplus does at once.

Rank 1 of a ring under way: it sends when it is free and has what it is to send::

    rank 0   |== step 0 ==|== step 1 ==|
                  latency |.....|.....         arrivals at rank 1
    rank 1   |== step 0 ==|     |== step 1 ==|

Links are shared inside a repetition as if all of it ran at once (rccl_py.timing.wires): ranks that
drift apart leave each other no room. rccl_py.timing.simulate knows that too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Schedule
from .log import Log
from .maxplus import Members, repeated
from .stages import I64, stages
from .timeline import Part, Timeline
from .wires import Wires, wires

__all__ = ["clock"]


def clock(
    schedule: Schedule,
    fabric: Fabric,
    block: float,
    protocol: Protocol,
    *,
    detail: bool = False,
    arrival: F64 | None = None,
) -> Timeline:
    """Return when each part of a call with blocks of `block` bytes runs, by the ranks' own clocks.

    arrival: float64[nranks] s each rank calls late; None: all at 0. detail: keep every message.

    Raises InvalidUsage where detail asks for more messages than are kept.
    """
    slot = block / schedule.layout.chunks
    run = _Run(fabric, arrival, Log(fabric.nlinks, slot) if detail else None)
    for number, stage in enumerate(stages(schedule, fabric)):
        found = wires(stage, fabric, protocol, slot)
        before = float(run.ready.max())
        if run.log is not None:
            run.log.room_for(stage.steps * len(stage.src), schedule.collective)
        run.pass_stage(number, found)
        run.parts.append(_part(found, before, float(run.ready.max()), fabric.nlinks))
    return run.timeline()


def _part(found: Wires, start: float, end: float, nlinks: int) -> Part:
    """Return what the last rank to leave a stage spent there, and what that was for most."""
    steps = found.stage.steps
    if not len(found.wire):
        return Part(start, end - start, steps, "memory", None)
    top = int(found.wire.argmax())
    wire, held = float(found.wire[top]), int(found.held[top])
    on_link = 0 <= held < nlinks
    bound = "link" if on_link else "memory"
    if (end - start) / steps >= 2 * wire:
        bound = "latency"
    return Part(start, end - start, steps, bound, held if on_link else None)


@dataclass(frozen=True, eq=False, slots=True)
class _Pairs:
    """Who takes part in a stage. rank : int64[k], of each member. sends, hears : int64[m], the
    members at either end of each message.
    """

    rank: I64
    sends: I64
    hears: I64

    @staticmethod
    def of(found: Wires, nranks: int) -> _Pairs:
        stage, m = found.stage, len(found.wire)
        first = stage.channel.astype(np.int64) * nranks
        ends = np.concatenate([first + stage.src, first + stage.dst])
        names, at = np.unique(ends, return_inverse=True)
        return _Pairs(names % nranks, at[:m], at[m:])

    def members(self, found: Wires) -> Members:
        """Return the same as arcs between clocks."""
        own = found.lead + found.wire
        stay = np.zeros(len(self.rank))
        np.maximum.at(stay, self.sends, own)
        return Members.of(stay, self.sends, self.hears, own + found.latency)


class _Run:
    """A call under way. ready : float64[nranks] s, when each rank is free for its next stage."""

    def __init__(self, fabric: Fabric, arrival: F64 | None, log: Log | None) -> None:
        self.fabric, self.log = fabric, log
        self.ready = np.full(fabric.nranks, fabric.launch)
        if arrival is not None:
            self.ready = self.ready + arrival
        # The call as a whole begins when the last rank has come.
        self.launch = float(self.ready.max())
        self.by = np.full(fabric.nranks, -1, dtype=np.int64)  # the message that made it so
        self.busy = np.zeros(fabric.nlinks)
        self.parts: list[Part] = []

    def pass_stage(self, number: int, found: Wires) -> None:
        """Move all clocks on by one stage."""
        if not len(found.wire):
            self.ready = self.ready + found.idle
            return
        steps, on_link = found.stage.steps, found.used < self.fabric.nlinks
        self.busy[found.used[on_link]] += steps * found.seconds[on_link]
        pairs = _Pairs.of(found, self.fabric.nranks)
        if self.log is None:
            after = repeated(pairs.members(found), self.ready[pairs.rank], steps)
            np.maximum.at(self.ready, pairs.rank, after)
            return
        times, by = self.ready[pairs.rank], self.by[pairs.rank]
        for step in range(steps):
            times, by = _logged(self.log, found, pairs, (number, step), times, by)
        self.ready, self.by = _latest(self.ready, self.by, pairs.rank, times, by)

    def timeline(self) -> Timeline:
        """Return what has happened."""
        busy = self.busy
        top = int(busy.argmax()) if busy.size and busy.max() > 0 else None
        return Timeline(
            self.launch,
            tuple(self.parts),
            top,
            float(busy[top]) if top is not None else 0.0,
            "clock",
            self.log.transfers() if self.log is not None else None,
            busy,
            ends=self.ready,
        )


def _logged(
    log: Log, found: Wires, pairs: _Pairs, where: tuple[int, int], times: F64, by: I64
) -> tuple[F64, I64]:
    """Do one repetition and keep its messages; return the clocks and who moved them."""
    start = times[pairs.sends] + found.lead
    numbers = log.add(found, *where, start, by[pairs.sends])
    pushed = start + found.wire
    at = np.concatenate([pairs.sends, pairs.hears])
    when = np.concatenate([pushed, pushed + found.latency])
    return _latest(times, by, at, when, np.concatenate([numbers, numbers]))


def _latest(times: F64, by: I64, at: I64, when: F64, who: I64) -> tuple[F64, I64]:
    """Return times moved on to the latest `when` of each place `at`, and `who` was that."""
    after, mover = times.copy(), by.copy()
    np.maximum.at(after, at, when)
    last = (when == after[at]) & (when > times[at])
    mover[at[last][::-1]] = who[last][::-1]  # of equals the first
    return after, mover
