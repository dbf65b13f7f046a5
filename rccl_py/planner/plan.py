"""What a planner answers: the choice, every candidate with the reason it lost, bound, bottleneck.

Owns the result types and their wording. Knows nothing of how candidates are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..algorithms import Recipe
from ..collectives import COLLECTIVES
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..schedule import Schedule
from ..timing import Job, Profile, Timeline, timed
from ..units import format_bandwidth, format_size, format_time
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


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What will be done and why. block: bytes of one block; size: rccl-tests' bytes.

    candidates: best of each algorithm first, by time. bound: no algorithm can be faster that sends
    from rank to rank (reduction inside switches, such as NVLS, is not modelled and may be).
    bottleneck: the chosen candidate's busiest link and for how long. channels: how many of a
    kernel's share the work, 0 for as many as it takes. policy: whose choice it is, "" for ours.
    decided: which engine's times the choice goes by, and why.
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
    channels: int = 0
    policy: str = ""
    decided: str = "the estimate"

    @cached_property
    def timeline(self) -> Timeline:
        """When each part of the schedule runs, and what bounds it."""
        return self.profile.timeline(self.block, PROTOCOLS[self.protocol], self.channels)

    def timed(
        self, engine: str = "auto", detail: bool = False, arrival: npt.ArrayLike | None = None
    ) -> Timeline:
        """Return when the call runs by an engine: auto, estimate, clock or simulate.

        detail: keep every message. arrival: float64[nranks] s each rank calls late.
        """
        return timed(
            self.schedule,
            self.profile.fabric,
            self.block,
            PROTOCOLS[self.protocol],
            engine=engine,
            detail=detail,
            arrival=arrival,
            channels=self.channels,
            known=self.profile,
        )

    def job(
        self,
        ranks: Sequence[int] | None = None,
        start: float = 0.0,
        after: tuple[int, ...] = (),
        arrival: npt.ArrayLike | None = None,
    ) -> Job:
        """Return the call as one of several for timing.simulate_jobs; what each means: see Job.

        ranks: where on the fabric that they share this plan's ranks are, None: all of it.
        """
        return Job(
            self.schedule,
            self.block,
            self.protocol,
            ranks,
            start,
            after,
            arrival,
            self.channels,
            self.profile,
        )

    @property
    def bottleneck(self) -> str:
        """What most of the time goes to: launch, hops, memory, the tail, or the busiest link."""
        line = self.timeline
        costs = {"launch": line.launch, **{b: line.waits(b) for b in ("latency", "link", "memory")}}
        costs["tail"] = line.tail
        most = max(costs, key=lambda name: costs[name])
        share = f"{costs[most] / self.time:.0%} of the call"
        if most == "launch":
            return f"launch: {format_time(line.launch)}, {share}"
        if most == "latency":
            steps = sum(p.steps for p in line.parts if p.bound == "latency")
            return f"latency: {_steps(steps)} of hops take {format_time(costs[most])}, {share}"
        if most == "tail":
            return f"filling a window and copying out: {format_time(line.tail)}, {share}"
        if most == "memory" or line.busiest is None:
            return f"memory of the busiest rank: {format_time(costs[most])}, {share}"
        name = self.profile.fabric.link_name(line.busiest)
        return f"{name}: busy {format_time(line.busy)}, {line.busy / self.time:.0%} of the call"

    @property
    def chosen(self) -> str:
        """What is done, its time and busbw, as text."""
        return (
            f"{self.algorithm}/{self.protocol}, {self.nchannels} channel(s), "
            f"{self.pieces} piece(s): {format_time(self.time)}, "
            f"busbw {format_bandwidth(self.busbw)}"
        )

    @property
    def algbw(self) -> float:
        """rccl-tests' size over time, B/s."""
        return self.size / self.time

    @property
    def busbw(self) -> float:
        """algbw times the collective's factor (rccl-tests), B/s."""
        return self.algbw * COLLECTIVES[self.collective].factor(self.nranks)

    @property
    def gap(self) -> float:
        """Predicted time over the lower bound."""
        return self.time / self.bound.seconds

    @property
    def share(self) -> float:
        """The part of the best any algorithm could do here that the plan reaches, by its bound."""
        return self.bound.seconds / self.time

    @property
    def made_of(self) -> str:
        """The parts of a mix, ``"13/14 hier-direct-direct, 1/14 direct"``; else nothing."""
        parts = self.recipe.mix if self.algorithm == "mix" else None
        if not parts:
            return ""
        whole = sum(part.share for part in parts)
        return ", ".join(f"{part.share}/{whole} {part.algorithm}" for part in parts)

    @cached_property
    def first_call(self) -> float:
        """The s that registering a new buffer adds to rank 0's first call that uses it."""
        partners: set[int] = set()
        seen: dict[int, object] = {}  # rows that repeat are looked at once; held: ids stay theirs
        for phase in self.schedule.phases():
            for move in phase.moves:
                if id(move.rows) not in seen:
                    seen[id(move.rows)] = move.rows
                    src, dst = move.rows.src, move.rows.dst
                    partners.update(dst[src == 0].tolist(), src[dst == 0].tolist())
        others = np.array(sorted(partners - {0}), dtype=np.int64)
        fabric = self.profile.fabric
        return fabric.first_use(fabric, self.size, others)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the choice, the candidates, the bound, the bottleneck."""
        from ..report.html import plan_html

        return plan_html(self)

    def explain(self) -> str:
        """Return the choice, the bound, the bottleneck and every candidate as lines of text."""
        fabric = self.profile.fabric.name
        lines = [
            f"# {self.collective} of {format_size(self.size)} bytes on {fabric}, "
            f"{self.nranks} ranks",
            f"chosen      {self.chosen}",
            *([f"side by side {self.made_of}"] if self.made_of else []),
            f"lower bound {format_time(self.bound.seconds)} ({self.gap:.2f}x): {self.bound.cut}",
            f"bottleneck  {self.bottleneck}",
            f"first call  {format_time(self.first_call)} more with new buffers (registration)",
            "#",
            f"# {'algorithm':<22} {'proto':<7} {'channels':>8} {'pieces':>6} {'time (us)':>12}"
            "  why it lost",
        ]
        timed = [c for c in self.candidates if np.isfinite(c.seconds)]
        lines += [_candidate_line(c, i == 0) for i, c in enumerate(timed)]
        untimed: dict[str, list[str]] = {}
        for c in self.candidates[len(timed) :]:
            untimed.setdefault(c.reason, []).append(c.algorithm)
        lines += [f"  not tried: {', '.join(names)}: {why}" for why, names in untimed.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan {self}>"

    def __str__(self) -> str:
        return (
            f"{self.collective} of {self.size:.0f} B on {self.nranks} ranks: {self.algorithm}/"
            f"{self.protocol}, {self.nchannels} channel(s), {format_time(self.time)}"
        )


def _candidate_line(candidate: Candidate, best: bool) -> str:
    mark = "*" if best else " "
    return (
        f"{mark} {candidate.algorithm:<22} {candidate.protocol:<7} {candidate.nchannels:>8} "
        f"{candidate.pieces:>6} {candidate.seconds * 1e6:>12.2f}  "
        f"{candidate.reason or 'chosen: the fastest'}"
    )


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def reason_lost(winner: Timeline, loser: Timeline, fabric: Fabric) -> str:
    """Return what costs the loser most more than the winner: hops, links, memory or its tail."""
    slow = loser.seconds / winner.seconds - 1
    if slow < 0.0005:
        return "as fast; an equal that is listed earlier is taken"
    more = {b: loser.waits(b) - winner.waits(b) for b in ("latency", "link", "memory")}
    more["tail"] = loser.tail - winner.tail
    most = max(more, key=lambda name: more[name])
    text = f"+{slow:.1%}: " if slow < 0.1 else f"+{slow:.0%}: "
    if most == "latency":
        steps = sum(p.steps for p in loser.parts if p.bound == "latency")
        return text + f"{_steps(steps)} bound by latency take {format_time(loser.waits(most))}"
    if most == "tail":
        return text + f"filling a window and copying out take {format_time(loser.tail)}"
    if most == "memory" or loser.busiest is None:
        return text + f"memory takes {format_time(loser.waits('memory'))}"
    name, waited = fabric.link_name(loser.busiest), loser.waits("link")
    if waited > 1.5 * loser.busy:
        return (
            text
            + f"links in turn take {format_time(waited)}, busiest {name} {format_time(loser.busy)}"
        )
    return text + f"{name} busy {format_time(loser.busy)}"
