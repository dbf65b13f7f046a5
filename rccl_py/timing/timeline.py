"""What an engine says of a call: when its parts and messages ran, what held them, who was idle.

Owns the result type of all engines. Times are seconds from the call. Knows no schedule; links
are numbers, which a fabric turns into names.

One message of a rank, and what its times mean::

    ready          start                 pushed        end
      |-- lead ------|===== on the wire ====|-- latency --|
      the rank is    first byte leaves      the sender    the receiver
      free to send                          is free       has it all
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidUsage
from ..fabric import F64, Fabric
from ..schedule import I32
from ..units import format_time
from .reasons import Leg, critical_path, why_slow

__all__ = ["Leg", "Part", "Timeline", "Transfers", "bound_by"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """`steps` equal steps. seconds: of all. bound: "latency", "link", "memory" or "channels"."""

    start: float
    seconds: float
    steps: int
    bound: str
    link: int | None


def bound_by(place: int, seconds: float, wire: float) -> str:
    """Return what bounds a step of `seconds` s, whose slowest message is `wire` s at `place`.

    place: as in Transfers.link.
    """
    if seconds >= 2 * wire:
        return "latency"
    return "link" if place >= 0 else _HELD[place]


_HELD = {-1: "memory", -2: "channels"}


@dataclass(frozen=True, eq=False, slots=True)
class Transfers:
    """The messages of a call, one entry a message, in order of start.

    start, pushed, end : float64[m] s, the first byte leaves, the last has left, the last is there.
    src, dst : int32[m], ranks. channel, stage, step : int32[m], which repetition of which stage.
    nbytes : float64[m], payload. link : int32[m], the link that held it back most, -1: the memory
    of a rank, -2: its channels. after : int64[m], the message whose arrival (at src) or push (by
    src) let it start, -1: the launch. alone : float64[m] s it would have been on the wire by
    itself; None if unknown.
    """

    start: F64
    pushed: F64
    end: F64
    src: I32
    dst: I32
    channel: I32
    stage: I32
    step: I32
    nbytes: F64
    link: I32
    after: I64
    alone: F64 | None = None

    def __len__(self) -> int:
        return len(self.start)

    @staticmethod
    def joined(parts: Sequence[Transfers]) -> Transfers:
        """Return the messages of all parts, one after the other; `after` is kept as it is."""
        columns: dict[str, Any] = {}
        for name, kind in _COLUMNS.items():
            found = [np.zeros(0, dtype=kind), *(getattr(part, name) for part in parts)]
            columns[name] = None if any(c is None for c in found) else np.concatenate(found)
        return Transfers(**columns)

    def sorted(self) -> Transfers:
        """Return the same messages in order of start (ties: as they are), `after` renumbered."""
        order = np.argsort(self.start, kind="stable")
        place = np.empty(len(order) + 1, dtype=np.int64)
        place[order], place[-1] = np.arange(len(order)), -1
        columns: dict[str, Any] = {name: getattr(self, name) for name in _COLUMNS}
        columns = {name: None if c is None else c[order] for name, c in columns.items()}
        columns["after"] = place[columns["after"]]
        return Transfers(**columns)


_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("start", "pushed", "end"), np.float64),
    **dict.fromkeys(("src", "dst", "channel", "stage", "step"), np.int32),
    "nbytes": np.float64,
    "link": np.int32,
    "after": np.int64,
    "alone": np.float64,
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole call: launch, then its parts. busiest: link with most busy seconds, or None.

    engine: which one says so; why: why that one was taken. transfers: every message, where detail
    was asked for. link_busy: float64[nlinks], s each link is used; None where it was not counted.
    tail: s after the last part until the call returns. ends: float64[nranks] s, when each rank
    has all it needs; None where the engine does not tell ranks apart. arrival: float64[nranks] s
    each rank called late, None: none did; launch counts until the last one is ready. queued:
    float64[nlinks] s that messages of all jobs waited for others on each link, if simulated.
    """

    launch: float
    parts: tuple[Part, ...]
    busiest: int | None
    busy: float
    engine: str = "estimate"
    transfers: Transfers | None = None
    link_busy: F64 | None = field(default=None, compare=False)
    why: str = ""
    tail: float = 0.0
    ends: F64 | None = field(default=None, compare=False)
    queued: F64 | None = field(default=None, compare=False)
    arrival: F64 | None = field(default=None, compare=False)
    nranks: int = 0

    def waits(self, bound: str) -> float:
        """Seconds of the parts that this limits: "latency", "link", "memory" or "channels"."""
        return sum(part.seconds for part in self.parts if part.bound == bound)

    @property
    def seconds(self) -> float:
        """From call to last byte."""
        return self.launch + sum(part.seconds for part in self.parts) + self.tail

    def utilisation(self) -> F64:
        """Return the part of the call each link is busy: float64[nlinks], 0 to 1.

        Raises InvalidUsage where links were not counted: ask Plan.timed, not Profile.timeline.
        """
        if self.link_busy is None:
            raise InvalidUsage(
                "Timeline.utilisation: this timeline did not count its links; Plan.timed() does"
            )
        return self.link_busy / self.seconds

    def queueing(self) -> F64:
        """Return the s that messages wait for others, at the link that held them: float64[nlinks].

        What each was on the wire beyond what it would have been alone, summed.

        Raises InvalidUsage without detail.
        """
        moved = self._detail("queueing")
        if moved.alone is None or self.link_busy is None:
            raise InvalidUsage(
                f"Timeline.queueing: the engine {self.engine!r} did not say what messages take "
                "alone; use engine='clock'"
            )
        on_link = moved.link >= 0
        extra = (moved.pushed - moved.start - moved.alone)[on_link]
        beyond = np.maximum(extra, 0.0)
        return np.asarray(
            np.bincount(moved.link[on_link], weights=beyond, minlength=len(self.link_busy)),
            dtype=np.float64,
        )

    def idle(self) -> F64:
        """Return the s each rank neither sends nor receives: float64[nranks].

        A rank sends while a message of its own is on the wire, and receives as long, a latency
        later.

        Raises InvalidUsage without detail.
        """
        moved = self._detail("idle")
        late = moved.end - moved.pushed
        return self.seconds - _covered(
            np.concatenate([moved.src, moved.dst]),
            np.concatenate([moved.start, moved.start + late]),
            np.concatenate([moved.pushed, moved.end]),
            self.nranks,
        )

    def critical_path(self) -> list[Leg]:
        """Return the chain of waits from the call to its end, as (what, seconds, ...)."""
        return critical_path(self)

    def why_slow(self, fabric: Fabric) -> list[str]:
        """Return what the time goes to, the largest part first, one sentence each."""
        return why_slow(self, fabric)

    def explain(self, fabric: Fabric) -> str:
        """Return the time, the engine and why it was taken, and what the time goes to."""
        head = f"{format_time(self.seconds)} by {self.engine}" + (self.why and f" ({self.why})")
        return "\n".join([head, *(f"  {line}" for line in self.why_slow(fabric))])

    def _detail(self, what: str) -> Transfers:
        if self.transfers is None:
            raise InvalidUsage(
                f"Timeline.{what}: this timeline holds no messages; ask for detail=True"
            )
        return self.transfers


def _covered(who: I32, start: F64, end: F64, count: int) -> F64:
    """Return the s that the intervals of each `who` cover together: float64[count]."""
    if not len(who):
        return np.zeros(count)
    order = np.lexsort((start, who))
    who, start, end = who[order], start[order], end[order]
    # Ranks one after another on one line of time, so that one running maximum serves all.
    offset = who * (2.0 * float(end.max()))
    reached = np.maximum.accumulate(end + offset) - offset
    before = np.concatenate([[0.0], reached[:-1]])
    before[np.flatnonzero(np.diff(who, prepend=-1))] = 0.0
    alone = np.maximum(end - np.maximum(start, before), 0.0)
    return np.asarray(np.bincount(who, weights=alone, minlength=count), dtype=np.float64)
