"""The estimate as a Timeline of messages: all ranks begin every repetition together.

Owns the replay of an estimate, for those who ask it for detail, and the question whether engines
must agree. The seconds are the profile's; nothing is timed here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Phase, Schedule
from .estimate import Profile
from .log import Log
from .stages import stages
from .timeline import Part, Timeline, Transfers
from .wires import Wires, wires

__all__ = ["even", "lockstep"]


def lockstep(
    schedule: Schedule,
    known: Profile,
    block: float,
    protocol: Protocol,
    channels: int = 0,
    *,
    detail: bool = False,
    arrival: F64 | None = None,
) -> Timeline:
    """Return the estimate; ranks that call late keep all others waiting.

    Raises InvalidUsage where detail asks for more messages than are kept.
    """
    line = known.timeline(block, protocol, channels)
    if arrival is not None:
        late = float(arrival.max())
        parts = tuple(replace(part, start=part.start + late) for part in line.parts)
        line = replace(line, launch=line.launch + late, parts=parts)
    if detail:
        line = replace(line, transfers=_replayed(schedule, known, block, protocol, channels, line))
    return line


def _replayed(
    schedule: Schedule, known: Profile, block: float, protocol: Protocol, channels: int,
    line: Timeline,
) -> Transfers:  # fmt: skip
    """Return the messages of all parts. A flight that the estimate ends early is cut there."""
    slot, fabric = block / schedule.layout.chunks, known.fabric
    log, before = Log(fabric.nlinks, slot), -1
    every = stages(schedule, fabric, channels)
    for number, (part, stage) in enumerate(zip(line.parts, every, strict=True)):
        found = wires(stage, fabric, protocol, slot, channels)
        log.room_for(stage.steps * len(stage.src), schedule.collective)
        if not len(stage.src):
            continue
        each = part.seconds / part.steps
        last = int((found.lead + found.wire + found.latency).argmax())
        for step in range(part.steps):
            after = np.full(len(stage.src), before, dtype=np.int64)
            start = _start(part, step, each) + found.lead
            until = _start(part, step + 1, each)
            before = int(log.add(found, number, step, start, after, until)[last])
    return log.transfers()


def _start(part: Part, step: int, each: float) -> float:
    return part.start + step * each


def even(schedule: Schedule, fabric: Fabric, protocol: Protocol, channels: int = 0) -> bool:
    """Return whether in every stage all ranks send and hear, and all messages take as long.

    Then no rank is ever ahead of another, and an engine that knows who waits for whom finds what
    one that makes all wait finds. True of any size: seconds on the wire are proportional to it.
    Pieces side by side must have ends of their own: what several send from one rank to another is
    one message to the engines that look at each, and several to the estimate. And messages that
    slow one another are of equal size, so that they end together however links are shared.
    """
    return all(map(_apart, schedule.phases())) and all(
        _is_even(wires(stage, fabric, protocol, 1.0, channels), fabric.nranks)
        for stage in stages(schedule, fabric, channels)
    )


def _apart(phase: Phase) -> bool:
    """Return whether the phases that run side by side in this one share no two ends."""
    if len(phase.made_of) < 2:
        return True
    seen: set[tuple[int, int]] = set()
    for part in phase.made_of:
        every = [m.rows for m in part.moves]
        own = {e for r in every for e in zip(r.src.tolist(), r.dst.tolist()) if e[0] != e[1]}
        if seen & own:
            return False
        seen |= own
    return True


def _is_even(found: Wires, nranks: int) -> bool:
    stage = found.stage
    if not len(stage.src):
        return _alike(found.idle)
    first = stage.channel.astype(np.int64) * nranks
    sends, hears = np.unique(first + stage.src), np.unique(first + stage.dst)
    return (
        np.array_equal(sends, hears)
        and len(np.unique(sends % nranks)) == nranks
        and all(_alike(times) for times in (found.wire, found.latency, found.lead))
        and _end_together(found)
    )


def _end_together(found: Wires) -> bool:
    """Return whether messages that slow one another on a resource are of equal size.

    They get equal bytes a second (rccl_py.timing.simulate), so that of unequal ones the small end
    first; what they leave may be more than the links of the large can take (few channels before
    many links), and the resource is idle in part.
    """
    slowed = found.wire > found.alone * (1 + 1e-12)
    held, slots = found.held[slowed], found.stage.slots[slowed]
    if not len(held):
        return True
    order = np.lexsort((slots, held))
    held, slots = held[order], slots[order]
    return not ((held[1:] == held[:-1]) & (slots[1:] != slots[:-1])).any()


def _alike(times: F64) -> bool:
    return bool(np.ptp(times) <= 1e-12 * times.max()) if len(times) else True
