"""What a planner answers: the choice, every candidate with the reason it lost, bound, bottleneck.

Owns the result types and their wording. Knows nothing of how candidates are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..algorithms import Recipe
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..schedule import Schedule
from ..timing import Profile, Timeline
from ..units import format_size, format_time
from .bounds import Bound

__all__ = ["Candidate", "Plan", "reason_lost"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to do the call. seconds: predicted. reason: why it lost ("" for the chosen one).

    seconds is infinite for an algorithm that was not timed; reason then says why.
    """

    algorithm: str
    protocol: str
    nchannels: int
    pieces: int
    seconds: float
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """What will be done and why. block: bytes of one block; size: rccl-tests' bytes.

    candidates: best of each algorithm first, by time. bound: no algorithm can be faster.
    bottleneck: the chosen candidate's busiest link and for how long.
    """

    collective: str
    nranks: int
    root: int
    block: float
    size: float
    algorithm: str
    protocol: str
    nchannels: int
    pieces: int
    time: float
    schedule: Schedule
    candidates: tuple[Candidate, ...]
    bound: Bound
    profile: Profile
    recipe: Recipe

    @cached_property
    def timeline(self) -> Timeline:
        """When each part of the schedule runs, and what bounds it."""
        return self.profile.timeline(self.block, PROTOCOLS[self.protocol])

    @property
    def bottleneck(self) -> str:
        """What most of the time goes to: the busiest link, or hops that move next to nothing."""
        line = self.timeline
        if line.busiest is None:
            return "launch: one rank, no link is used"
        waits = [p for p in line.parts if p.bound == "latency"]
        waited, steps = sum(p.seconds for p in waits), sum(p.steps for p in waits)
        if waited > line.busy:
            return f"latency: {steps} step(s) take {format_time(waited)}, {waited / self.time:.0%}"
        name = self.profile.fabric.link_name(line.busiest)
        return f"{name}: busy {format_time(line.busy)}, {line.busy / self.time:.0%} of the call"

    @property
    def gap(self) -> float:
        """Predicted time over the lower bound."""
        return self.time / self.bound.seconds

    def explain(self) -> str:
        """Return the choice, the bound, the bottleneck and every candidate as lines of text."""
        fabric = self.profile.fabric.name
        lines = [
            f"# {self.collective} of {format_size(self.size)} bytes on {fabric}, "
            f"{self.nranks} ranks",
            f"chosen      {self.algorithm}/{self.protocol}, {self.nchannels} channel(s), "
            f"{self.pieces} piece(s): {format_time(self.time)}",
            f"lower bound {format_time(self.bound.seconds)} ({self.gap:.2f}x): {self.bound.cut}",
            f"bottleneck  {self.bottleneck}",
            "#",
            f"# {'algorithm':<22} {'proto':<7} {'channels':>8} {'pieces':>6} {'time (us)':>12}"
            "  why it lost",
        ]
        lines += [_candidate_line(c, i == 0) for i, c in enumerate(self.candidates)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return (
            f"{self.collective} of {self.size:.0f} B on {self.nranks} ranks: {self.algorithm}/"
            f"{self.protocol}, {self.nchannels} channel(s), {format_time(self.time)}"
        )


def _candidate_line(candidate: Candidate, best: bool) -> str:
    mark = "*" if best else " "
    if not np.isfinite(candidate.seconds):
        blank = f"{'-':<7} {'-':>8} {'-':>6} {'-':>12}"
        return f"{mark} {candidate.algorithm:<22} {blank}  {candidate.reason}"
    return (
        f"{mark} {candidate.algorithm:<22} {candidate.protocol:<7} {candidate.nchannels:>8} "
        f"{candidate.pieces:>6} {candidate.seconds * 1e6:>12.2f}  "
        f"{candidate.reason or 'chosen: the fastest'}"
    )


def reason_lost(winner: Timeline, loser: Timeline, fabric: Fabric) -> str:
    """Return what costs the loser its time: hops, or a link it keeps busy longer."""
    slow = loser.seconds / winner.seconds - 1
    waits = [sum(p.seconds for p in line.parts if p.bound == "latency") for line in (loser, winner)]
    steps = sum(p.steps for p in loser.parts if p.bound == "latency")
    if loser.busiest is not None and loser.busy - winner.busy > waits[0] - waits[1]:
        return f"+{slow:.0%}: {fabric.link_name(loser.busiest)} busy {format_time(loser.busy)}"
    if waits[0] > waits[1]:
        return f"+{slow:.0%}: {steps} latency-bound steps take {format_time(waits[0])}"
    return f"+{slow:.0%}: steps that wait for each other leave links idle"
