"""What a planner answers: the choice, every candidate with the reason it lost, bound, bottleneck.

Owns the result types and their wording. Knows nothing of how candidates are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from .breakpoints import Range

__all__ = ["ENGINES", "Candidate", "Plan", "reason_lost"]

ENGINES = {"estimate": "the estimate", "simulate": "the simulation", "clock": "the clock"}
"""What engines are called in sentences."""

_TURNS = 1.5  # times the busiest link's seconds, beyond which links take turns
_BOUNDS = (("latency", "hops"), ("link", "links"), ("memory", "memory"), ("channels", "channels"))


@dataclass(frozen=True, eq=False, repr=False)
class Candidate:
    """One way to do the call. seconds: predicted. reason: why it lost ("" for the chosen one).

    seconds is infinite for an algorithm that was not timed; reason then says why. engine, checked:
    the finer engine that was asked about it, and its seconds; "" and NaN where none was.
    """

    algorithm: str
    protocol: str
    nchannels: int
    pieces: int
    seconds: float
    reason: str = ""
    engine: str = ""
    checked: float = np.nan

    def __repr__(self) -> str:
        return f"<Candidate {self}>"

    def __str__(self) -> str:
        named = f"{self.algorithm}/{self.protocol}".rstrip("/")
        cut = f", {self.pieces} pieces" if self.pieces > 1 else ""
        took = format_time(self.seconds) if np.isfinite(self.seconds) else "not timed"
        return f"{named}{cut}: {took}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What will be done and why. block: bytes of one block; size: rccl-tests' bytes.

    candidates: best of each algorithm first, by time. bound: no algorithm can be faster, switches
    that add up included (docs/bounds.md). bottleneck: the chosen candidate's busiest link and for
    how long. channels: how many of a kernel's share the work, 0 for as many as it takes. policy:
    whose choice it is, "" for ours. decided: which engine's times the choice goes by, and why.
    time, algbw, busbw, gap and share are by the estimate; `decided_time` is by the engine that
    decided. hint: what would plan better.
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
    hint: str = ""

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

    @cached_property
    def shares(self) -> dict[str, float]:
        """What the time goes to, by the estimate, as parts that add up to 1.

        Parts of the call that each limits: "launch", "hops", "links", "memory", "channels", and
        "copying out" (with filling a window) after the last message.
        """
        line = self.timeline
        seconds = {"launch": line.launch, **{name: line.waits(bound) for bound, name in _BOUNDS}}
        seconds["copying out"] = line.tail
        return {name: found / line.seconds for name, found in seconds.items()}

    @property
    def bottleneck(self) -> str:
        """What most of the time goes to: launch, hops, memory, the tail, or the busiest link."""
        line, most = self.timeline, self._most
        took = self.shares[most] * line.seconds
        share = f"{_percent(self._main)} of the call"
        if most == "launch":
            return f"launch: {format_time(took)}, {share}"
        if most == "hops":
            steps = sum(p.steps for p in line.parts if p.bound == "latency")
            verb = "takes" if steps == 1 else "take"
            return f"latency: {_steps(steps)} of hops {verb} {format_time(took)}, {share}"
        if most == "copying out":
            return f"filling a window and copying out: {format_time(took)}, {share}"
        if most != "links" or line.busiest is None:
            return f"{most} of the busiest rank: {format_time(took)}, {share}"
        name = self.profile.fabric.link_name(line.busiest)
        if self._in_turn:
            return f"links in turn, {name} {format_time(line.busy)}: {format_time(took)}, {share}"
        return f"{name}: busy {format_time(line.busy)}, {share}"

    @property
    def rest(self) -> str:
        """What the bottleneck leaves of the call: ``"copying out 12%, hops 1%"``; to 100%."""
        others = {name: part for name, part in self.shares.items() if name != self._most}
        if self._most == "links" and not self._in_turn:
            over = self.shares["links"] - self._main
            others["other links"] = max(over, 0.0)
            if over < 0:  # it is busy while something else takes longer, too
                named = _named_percents(others, 100 - round(100 * self.shares["links"]))
                return f"the limit for {_percent(self.shares['links'])}, {named}"
        return _named_percents(others, 100 - round(100 * self._main))

    @cached_property
    def _most(self) -> str:
        """The key of `shares` that is largest."""
        return max(self.shares, key=lambda name: self.shares[name])

    @property
    def _in_turn(self) -> bool:
        """Whether links that limit the call take turns, so that no single one does."""
        line = self.timeline
        return line.busiest is None or line.waits("link") > _TURNS * line.busy

    @property
    def _main(self) -> float:
        """The part of the call that the bottleneck accounts for."""
        line = self.timeline
        if self._most == "links" and not self._in_turn:
            return line.busy / line.seconds
        return self.shares[self._most]

    @property
    def engine(self) -> str:
        """The engine that decided: estimate, simulate or clock."""
        first = self.candidates[0]
        return first.engine if first.engine and first.reason else "estimate"

    @property
    def decided_time(self) -> float:
        """What the call takes, in s, by the engine that decided."""
        return self.time if self.engine == "estimate" else self.candidates[0].checked

    @property
    def chosen(self) -> str:
        """What is done, its time and busbw, as text; by the engine that decided."""
        seconds, by = self.decided_time, ""
        if self.engine != "estimate":
            by = f" by {ENGINES[self.engine]} ({format_time(self.time)} by the estimate)"
        elif self.candidates[0].engine:
            by = " by the estimate"
        return (
            f"{self.algorithm}/{self.protocol}, {self.nchannels} channel(s), "
            f"{self.pieces} piece(s): {format_time(seconds)}{by}, "
            f"busbw {format_bandwidth(self.busbw * self.time / seconds)}"
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

    def summary(self, ranges: Sequence[Range] = ()) -> str:
        """Return the plan on one screen, as ``rccl-plan --explain`` prints it.

        ranges: of Planner.breakpoints, what other sizes get; none: that line is left out.
        """
        from .describe import explained

        return "\n".join(explained(self, ranges))

    def explain(self) -> str:
        """Return the choice, the bound, the bottleneck and every candidate as lines of text."""
        fabric = self.profile.fabric.name
        lines = [
            f"# {self.collective} of {format_size(self.size)} bytes on {fabric}, "
            f"{self.nranks} ranks",
            f"chosen      {self.chosen}",
            *([f"side by side {self.made_of}"] if self.made_of else []),
            f"lower bound {format_time(self.bound.seconds)} "
            f"({self.decided_time / self.bound.seconds:.2f}x): {self.bound.cut}",
            f"bottleneck  {self.bottleneck}" + (f"; rest: {self.rest}" if self.rest else ""),
            *([f"decided by  {self.decided}"] if self.candidates[0].engine else []),
            f"first call  {format_time(self.first_call)} more with new buffers (registration)",
            *([f"hint        {self.hint}"] if self.hint else []),
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


def _percent(share: float) -> str:
    return f"{round(100 * share)}%"


def _named_percents(parts: dict[str, float], total: int) -> str:
    """Return ``"hops 8%, memory 3%"``, largest first, in whole percents that add up to `total`."""
    whole = sum(parts.values())
    if whole <= 0 or total <= 0:
        return ""
    exact = {name: part / whole * total for name, part in parts.items()}
    found = {name: int(part) for name, part in exact.items()}
    left = total - sum(found.values())
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[:left]:
        found[name] += 1
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {part}%" for name, part in ordered if part)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def reason_lost(winner: Timeline, loser: Timeline, fabric: Fabric) -> str:
    """Return what costs the loser most more than the winner: hops, links, memory or its tail."""
    slow = loser.seconds / winner.seconds - 1
    if slow < 0.0005:
        return "as fast; listed later"
    more = {b: loser.waits(b) - winner.waits(b) for b in ("latency", "link", "memory")}
    more["tail"] = loser.tail - winner.tail
    most = max(more, key=lambda name: more[name])
    text = f"+{slow:.1%}: " if slow < 0.1 else f"+{slow:.0%}: "
    if most == "latency":
        steps = sum(p.steps for p in loser.parts if p.bound == "latency")
        return text + f"{format_time(loser.waits(most))} of latency in {_steps(steps)}"
    if most == "tail":
        return text + f"{format_time(loser.tail)} of filling a window and copying out"
    if most == "memory" or loser.busiest is None:
        return text + f"{format_time(loser.waits('memory'))} of memory"
    name, waited = fabric.link_name(loser.busiest), loser.waits("link")
    if waited > _TURNS * loser.busy:
        busy = format_time(loser.busy)
        return text + f"{format_time(waited)} of links in turn, {name} {busy} of it"
    return text + f"{name} busy {format_time(loser.busy)}"
