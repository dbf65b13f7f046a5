"""One door to all engines: which of them to ask, and an answer that says who gave it and why.

Owns the choice and what every engine's answer has in common. Knows no engine's rules.

| engine | who waits | links | takes |
|---|---|---|---|
| estimate | all for all, after every step | a step's load at once | one step of each kind |
| clock | ranks for what they are sent | a step's load at once | one step of each kind |
| simulate | ranks for what they are sent | by what is on them | every message |
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..arguments import finite, text, whole
from ..errors import InvalidArgument
from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Schedule
from ..units import LARGEST
from .clock import clock
from .estimate import Profile, profile
from .lockstep import even, lockstep
from .simulate import MAX_EVENTS, simulate
from .stages import stages
from .timeline import Timeline, Transfers
from .wires import wires

__all__ = ["ENGINES", "MAX_EVENTS", "timed"]

ENGINES = ("auto", "estimate", "clock", "simulate")

_SIMULATED = 200_000  # messages that are simulated in about a second
_SHARED = 40_000_000  # rates that a simulation gives in some seconds
_LATE = "ranks that call late"
_CLOCKED = 4_000_000  # messages of one repetition of each stage that the clock takes in seconds


def timed(
    schedule: Schedule,
    fabric: Fabric,
    block: float,
    protocol: Protocol,
    *,
    engine: str = "auto",
    detail: bool = False,
    arrival: npt.ArrayLike | None = None,
    max_events: int = MAX_EVENTS,
    channels: int = 0,
    known: Profile | None = None,
) -> Timeline:
    """Return when a call with blocks of `block` bytes runs, by the engine asked for.

    arrival: float64[nranks] s each rank calls late. detail: keep every message. max_events: what
    simulate may take. channels: how many share the work, 0 for as many as it takes. known: the
    profile of `schedule` on `fabric`, where there is one. Timeline.engine and .why say who
    answered, and why auto took it.

    Raises InvalidArgument for an unknown engine or arrivals that do not fit the ranks,
    InvalidUsage where an engine is asked for more messages than it takes.
    """
    if text(engine, "engine") not in ENGINES:
        raise InvalidArgument(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    block = finite(block, "bytes of a block", -1e-300, float(LARGEST))
    max_events = whole(max_events, "max_events", 1, 1 << 62)
    channels = whole(channels, "channels", 0, 1 << 20)
    late = _checked(arrival, fabric.nranks)
    why = "asked for"
    if engine == "auto":
        need = _LATE if late is not None else "every message" if detail else ""
        engine, why = _chosen(schedule, fabric, protocol, channels, need, max_events)
    known = known or profile(schedule, fabric)
    if engine == "clock":
        line = clock(schedule, fabric, block, protocol, detail=detail, arrival=late,
                     channels=channels)  # fmt: skip
    elif engine == "simulate":
        line = simulate(schedule, fabric, block, protocol, detail=detail, arrival=late,
                        max_events=max_events, channels=channels, known=known)  # fmt: skip
    else:
        line = lockstep(schedule, known, block, protocol, channels, detail=detail, arrival=late)
    slot = block / schedule.layout.chunks
    tail = float(known.tail(slot, known.wire(slot, protocol, channels)))
    if detail and line.transfers is None:  # nothing was sent
        line = replace(line, transfers=Transfers.joined([]))
    return replace(line, engine=engine, why=why, tail=tail, arrival=late, nranks=fabric.nranks)


def _checked(arrival: npt.ArrayLike | None, nranks: int) -> F64 | None:
    """Return arrivals as float64[nranks]; None where no rank is late."""
    if arrival is None:
        return None
    try:
        late = np.array(arrival, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"arrival: {type(arrival).__name__} is not a row of numbers: expected the s each of "
            f"{nranks} ranks calls late"
        ) from None
    if late.shape != (nranks,):
        raise InvalidArgument(
            f"arrival: shape {late.shape}: expected ({nranks},), the s each rank calls late"
        )
    bad = np.flatnonzero(~(np.isfinite(late) & (late >= 0)))
    if len(bad):
        raise InvalidArgument(
            f"arrival: {late[bad[0]]:g} s of rank {bad[0]}: expected 0 s or more, finite"
        )
    return late if late.any() else None


def _chosen(
    schedule: Schedule, fabric: Fabric, protocol: Protocol, channels: int, need: str,
    max_events: int,
) -> tuple[str, str]:  # fmt: skip
    """Return the engine that auto takes, and why. need: what the estimate cannot tell, or ""."""
    every, distinct = _messages(schedule, _CLOCKED)
    if distinct > _CLOCKED:
        return "estimate", f"auto: more than {_CLOCKED:,} different messages, too many for a clock"
    most = min(_SIMULATED, max_events)
    if every > most:
        return "clock", f"auto: {every:,} messages, more than the {most:,} that are simulated"
    if not need and even(schedule, fabric, protocol, channels):
        return "estimate", "auto: all ranks do the same at any time, so engines agree"
    shared = _shared(schedule, fabric, protocol, channels, late=need == _LATE)
    if shared > _SHARED:
        return "clock", (
            f"auto: {every:,} messages that end one by one and share what the others leave, too "
            f'many to simulate in seconds (engine="simulate" would give some {shared:.0e} rates)'
        )
    return "simulate", f"auto: {need or 'ranks get ahead of others'}, and {every:,} messages only"


def _messages(schedule: Schedule, most: int) -> tuple[int, int]:
    """Return rows that cross links: all of them, and those of one repetition of each phase.

    Stops where the latter are more than `most`.
    """
    every = distinct = 0
    seen: dict[int, tuple[object, int]] = {}  # rows are held, so that ids stay theirs
    for phase in schedule.phases():
        for move in phase.moves:
            rows = move.rows
            if id(rows) not in seen:
                seen[id(rows)] = rows, int(((rows.src != rows.dst) * rows.times).sum())
            found = seen[id(rows)][1]
            every, distinct = every + found * phase.steps, distinct + found
        if distinct > most:
            break
    return every, distinct


def _shared(
    schedule: Schedule, fabric: Fabric, protocol: Protocol, channels: int, *, late: bool
) -> float:
    """Return about how many rates a simulation would give: messages times those that end apart.

    Each that ends gives all that share with it new rates. Messages of one size, held by the same,
    end together unless ranks come late; ranks with one message each share with few.
    """
    total = 0.0
    for stage in stages(schedule, fabric, channels):
        m = len(stage.src)
        if not m or max(np.bincount(stage.src).max(), np.bincount(stage.dst).max()) == 1:
            continue
        found = wires(stage, fabric, protocol, 1.0, channels)
        size = found.wire * stage.slots
        most = float(size.max())
        if 0 < most < np.inf:  # else all end at once, or none does
            apart = m if late else len(np.unique(np.round(size / most, 12)))
            total += float(stage.steps) * m * apart
    return total
