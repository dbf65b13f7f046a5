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

from dataclasses import dataclass, replace

import numpy as np

from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Schedule
from .log import Log
from .maxplus import Members, repeated
from .stages import I64, Stage, place_of, stages
from .timeline import Part, Timeline, bound_by
from .wires import Wires, numbered, wires

__all__ = ["clock"]


def clock(
    schedule: Schedule,
    fabric: Fabric,
    block: float,
    protocol: Protocol,
    *,
    detail: bool = False,
    arrival: F64 | None = None,
    channels: int = 0,
) -> Timeline:
    """Return when each part of a call with blocks of `block` bytes runs, by the ranks' own clocks.

    arrival: float64[nranks] s each rank calls late; None: all at 0. detail: keep every message.
    channels: how many share the work, 0 for as many as it takes.

    Raises InvalidUsage where detail asks for more messages than are kept.
    """
    slot = block / schedule.layout.chunks
    run = _Run(fabric, arrival, Log(fabric.nlinks, slot) if detail else None)
    last: _Ready | None = None
    for number, stage in enumerate(stages(schedule, fabric, channels)):
        if last is not None and _is_again(stage, last.found.stage):
            last = last.again(stage)
        else:
            last = _Ready.of(wires(stage, fabric, protocol, slot, channels), fabric.nranks)
        before = float(run.ready.max())
        if run.log is not None:
            run.log.room_for(stage.steps * len(stage.src), schedule.collective)
        run.pass_stage(number, last)
        run.parts.append(_part(last.found, before, float(run.ready.max()), fabric.nlinks))
    return run.timeline()


def _is_again(stage: Stage, before: Stage) -> bool:
    """Return whether a stage is the one before it once more, as under way in a pipeline."""
    return stage.src is before.src and np.array_equal(stage.memory, before.memory)


def _part(found: Wires, start: float, end: float, nlinks: int) -> Part:
    """Return what the last rank to leave a stage spent there, and what that was for most."""
    steps = found.stage.steps
    if not len(found.wire):
        return Part(start, end - start, steps, "memory", None)
    top = int(found.wire.argmax())
    place = int(place_of(found.held[top], nlinks, len(found.idle))) if found.held[top] >= 0 else -1
    bound = bound_by(place, (end - start) / steps, float(found.wire[top]))
    return Part(start, end - start, steps, bound, place if place >= 0 else None)


@dataclass(frozen=True, eq=False, slots=True)
class _Ready:
    """A stage whose messages have seconds and whose members are known.

    rank : int64[k], of each member. sends, hears : int64[m], the members at either end of each
    message. members: the same as arcs between clocks.
    """

    found: Wires
    rank: I64
    sends: I64
    hears: I64
    members: Members

    @staticmethod
    def of(found: Wires, nranks: int) -> _Ready:
        stage, m = found.stage, len(found.wire)
        first = stage.channel.astype(np.int64) * nranks
        ends = np.concatenate([first + stage.src, first + stage.dst])
        names, at = numbered(ends, int(first.max(initial=0)) + nranks)
        own, stay = found.lead + found.wire, np.zeros(len(names))
        np.maximum.at(stay, at[:m], own)
        members = Members.of(stay, at[:m], at[m:], own + found.latency)
        return _Ready(found, names % nranks, at[:m], at[m:], members)

    def again(self, stage: Stage) -> _Ready:
        """Return the same for as many repetitions as `stage` has."""
        return replace(self, found=replace(self.found, stage=stage))


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

    def pass_stage(self, number: int, stage: _Ready) -> None:
        """Move all clocks on by one stage."""
        found = stage.found
        if not len(found.wire):
            self.ready = self.ready + found.idle
            return
        steps, on_link = found.stage.steps, found.used < self.fabric.nlinks
        self.busy[found.used[on_link]] += steps * found.seconds[on_link]
        times = self.ready[stage.rank]
        if self.log is None:
            np.maximum.at(self.ready, stage.rank, repeated(stage.members, times, steps))
            return
        by = self.by[stage.rank]
        for step in range(steps):
            times, by = _logged(self.log, stage, (number, step), times, by)
        self.ready, self.by = _latest(self.ready, self.by, stage.rank, times, by)

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
    log: Log, stage: _Ready, where: tuple[int, int], times: F64, by: I64
) -> tuple[F64, I64]:
    """Do one repetition and keep its messages; return the clocks and who moved them."""
    found = stage.found
    start = times[stage.sends] + found.lead
    numbers = log.add(found, *where, start, by[stage.sends])
    pushed = start + found.wire
    at = np.concatenate([stage.sends, stage.hears])
    when = np.concatenate([pushed, pushed + found.latency])
    return _latest(times, by, at, when, np.concatenate([numbers, numbers]))


def _latest(times: F64, by: I64, at: I64, when: F64, who: I64) -> tuple[F64, I64]:
    """Return times moved on to the latest `when` of each place `at`, and `who` was that."""
    after, mover = times.copy(), by.copy()
    np.maximum.at(after, at, when)
    last = (when == after[at]) & (when > times[at])
    mover[at[last][::-1]] = who[last][::-1]  # of equals the first
    return after, mover
