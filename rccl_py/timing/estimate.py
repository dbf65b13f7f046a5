"""The estimate: per step, the longest path's latency plus the busiest link's load over its rate.

Owns the planner's clock. A schedule on a fabric becomes a Profile once: per part its steps, its
latency under each protocol, seconds per byte of a slot on the busiest link and in memory. Any
size, protocol or element count is then a few multiplications. Rows that repeat are loaded once:
the memo is by phase, so a ring of 10,000 ranks costs one step, not 20,000; a pipeline is its
stages and how many pieces are in each.

Rules, each argued in docs/timing.md:

* T(step) = latency + message overhead + max(link, memory); memory: reading, writing and adding
* the moves of a phase are posted together: loads add, latency counts once
* a phase of local rows only has no latency; its memory traffic streams behind the next step that
  crosses a link (kernels work slice by slice), so it is carried there and counts in the maximum
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..collectives import COLLECTIVES
from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import AllPairs, Outline, Phase, Pipeline, Schedule
from .chains import slowest_chain
from .loads import INTO, MOVED, OUT, REDUCED, SENDING, Load, Loads
from .memory import Work, reads_input
from .messages import last_of
from .strands import LONGEST
from .timeline import Part, Timeline
from .windows import most, peaks, windows

__all__ = ["Loads", "Profile", "Total", "profile"]

I64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]

_BOUNDS = ("latency", "link", "memory")
_LONG = 16  # stages of one piece that are quicker looked at side by side


@dataclass(frozen=True, eq=False, slots=True)
class Total:
    """Slots on links over a part of a call. used: int[k], the links it uses, in order.

    of: int64[k], the sort of each; at: int[m], the first link of each sort; slots: float64[m], on
    each link of a sort.
    """

    used: Ints
    of: Ints | slice
    at: Ints
    slots: F64


@dataclass(frozen=True, eq=False)
class Profile:
    """A schedule on a fabric, ready for any size. One entry a part, in order.

    steps: int64. hops: float64[3, parts] s. messages: float64[parts] s the rank that sends most
    spends on its messages, on all channels. link: float64[3, parts] s per
    slot byte on the link that is busiest under each protocol; busiest: int64[3, parts], which
    (-1: none). memory: float64[parts] s per slot byte. through: float64[parts], the most slots a
    rank sends or gets in one repetition; window: float64[parts] B. last: slots a rank gets in the
    last repetition and does not pass on, or of its own block. totals: slots over the whole call.
    rows: rows of the schedule; loaded: rows that had to be routed.
    """

    fabric: Fabric
    chunks: int
    nchannels: int
    steps: I64
    hops: F64
    messages: F64
    link: F64
    memory: F64
    busiest: I64
    through: F64
    window: F64
    last: float
    totals: tuple[Total, ...]
    rows: int
    loaded: int

    @cached_property
    def total_link(self) -> F64:
        """Slots on each link over the whole call: float64[nlinks]."""
        total = np.zeros(self.fabric.nlinks)
        for part in self.totals:
            total[part.used] += part.slots[part.of]
        return total

    def seconds(self, block: F64 | float, protocol: Protocol, channels: int = 0) -> F64:
        """Return the seconds a call takes for blocks of `block` bytes, launch included.

        channels: how many share the work, 0 for as many as it takes.
        """
        slot = np.asarray(block, dtype=np.float64)[..., None] / self.chunks
        wire = self.wire(slot, protocol, channels)
        each = self.steps * (self.latency(protocol, channels) + wire)
        return np.asarray(self.fabric.launch + each.sum(axis=-1) + self.tail(slot, wire))

    def latency(self, protocol: Protocol, channels: int = 0) -> F64:
        """Return the s one repetition of each part takes before bytes count: hops and messages.

        Fewer channels than the schedule has use fewer of its rings or trees, and post less.
        """
        used = min(channels or self.nchannels, self.nchannels) / self.nchannels
        return np.asarray(self.hops[protocol.index] + self.messages * used)

    def wire(self, slot: F64 | float, protocol: Protocol, channels: int = 0) -> F64:
        """Return the s one repetition of each part takes besides its latency, for slots in B."""
        wire = np.maximum(self.link[protocol.index], self.memory) * slot
        each = self.fabric.per_channel[protocol.index]
        if channels and each:
            wire = np.maximum(wire, self.through * slot / (channels * each))
        return np.asarray(wire)

    def tail(self, slot: F64 | float, wire: F64) -> F64:
        """Return the s once a call: the first window fills, and the last block is copied out."""
        moved = self.through * slot
        part = np.divide(np.minimum(moved, self.window), moved, out=np.zeros_like(moved),
                         where=moved > 0)  # fmt: skip
        copied = np.asarray(slot * self.last / self.fabric.copy)
        fill = (wire * part).max(axis=-1, initial=0.0)
        return np.asarray(fill + copied.reshape(fill.shape))

    def timeline(self, block: float, protocol: Protocol, channels: int = 0) -> Timeline:
        """Return when each part runs and what bounds it, for blocks of `block` bytes."""
        busy = self.busy(block / self.chunks, protocol)
        return replace(self.outline(block, protocol, channels), link_busy=busy)

    def outline(self, block: float, protocol: Protocol, channels: int = 0) -> Timeline:
        """Return the timeline without how long each link is busy, but for the busiest."""
        slot, clock, parts = block / self.chunks, self.fabric.launch, []
        wires, seconds, held = self._held(slot, protocol, channels)
        columns = (seconds, self.steps, held, self.busiest[protocol.index])
        for each, steps, bound, at in zip(*(column.tolist() for column in columns)):
            parts.append(Part(clock, each, steps, _BOUNDS[bound], at if at >= 0 else None))
            clock += each
        return self._timeline(slot, protocol, parts, wires)

    def summary(self, block: float, protocol: Protocol, channels: int = 0) -> Timeline:
        """Return the outline with all parts that are bound by the same in one."""
        slot = block / self.chunks
        wires, seconds, held = self._held(slot, protocol, channels)
        found = np.unique(held)
        whole, count = (np.bincount(held, column, 3)[found] for column in (seconds, self.steps))
        clock = self.fabric.launch + np.append(0.0, np.cumsum(whole))
        columns = zip(*(c.tolist() for c in (clock[:-1], whole, count, found)))
        parts = [Part(c, each, int(steps), _BOUNDS[b], None) for c, each, steps, b in columns]
        return self._timeline(slot, protocol, parts, wires)

    def _held(self, slot: float, protocol: Protocol, channels: int) -> tuple[F64, F64, I64]:
        """Return the s of bytes of each part, of all of it, and what bounds it: [parts] each."""
        wires, before = self.wire(slot, protocol, channels), self.latency(protocol, channels)
        held = np.where(wires > self.link[protocol.index] * slot, 2, 1)
        return wires, self.steps * (before + wires), np.where(before >= wires, 0, held)

    def _timeline(self, slot: float, protocol: Protocol, parts: list[Part], wires: F64) -> Timeline:
        top, busy = self._busiest(slot, protocol)
        tail = float(self.tail(slot, wires))
        return Timeline(self.fabric.launch, tuple(parts), top, busy, tail=tail)

    def _busiest(self, slot: float, protocol: Protocol) -> tuple[int | None, float]:
        """Return the link that is used longest, None if none is, and its s."""
        pace = self.fabric.pace[protocol.index]
        if len(self.totals) == 1:  # alike links stand for one another
            (total,) = self.totals
            links, slots = total.at, total.slots
        else:
            slots = self.total_link
            links = np.arange(len(slots))
        busy = slots * pace[links] * slot
        top = int(busy.argmax()) if len(busy) else 0
        return (int(links[top]), float(busy[top])) if len(busy) and busy[top] > 0 else (None, 0.0)

    def busy(self, slot: float, protocol: Protocol) -> F64:
        """Return the s each link is used over the whole call: float64[nlinks]."""
        return np.asarray(self.total_link * self.fabric.pace[protocol.index] * slot)


def _stays(phase: Phase) -> bool:
    """Return whether all rows stay at their ranks."""
    if isinstance(phase.moves, AllPairs):
        return len(phase.moves.pairs.group[0]) == 1
    return all((m.rows.src == m.rows.dst).all() for m in phase.moves)


def own_of(phase: Phase, schedule: Schedule) -> float:
    """Return the slots of its own that a rank copies to where they stay: its block of the output.

    Handing on all of the output is no copy: it is reduced into, or sent from where it is.
    """
    n = schedule.nranks
    each = (np.bincount(m.rows.src, weights=m.rows.total, minlength=n) for m in phase.moves)
    most = float(np.sum(list(each), axis=0).max())
    return most if most < schedule.layout.outputs * schedule.layout.chunks else 0.0


def _told(schedule: Schedule) -> Iterable[Phase | Pipeline]:
    """Return the phases of a schedule, its pipelines whole where it tells them."""
    phases = schedule.phases
    return phases.parts() if isinstance(phases, Outline) else phases()


class _Parts:
    """The columns of a Profile while they are gathered."""

    def __init__(self, schedule: Schedule, fabric: Fabric, loads: Loads) -> None:
        self.schedule, self.fabric, self.loads = schedule, fabric, loads
        self.before, self.rows, self.own = loads.loaded, 0, 0.0
        self.carried: Work | None = None
        self.last: Phase | None = None
        self.totals: list[Total] = []
        # By load, all of which `loads` keeps meanwhile.
        self.known: dict[int, tuple[Ints | F64, ...]] = {}
        nothing = np.zeros(0)
        self.columns: list[tuple[Ints | F64, ...]] = [
            (np.zeros(0, np.int64), np.zeros((3, 0)), nothing, np.zeros((3, 0)), nothing,
             np.zeros((3, 0), np.int64), nothing, nothing)
        ]  # fmt: skip

    def phase(self, phase: Phase) -> None:
        """Add a phase."""
        if not phase.moves:
            return
        self.rows += phase.steps * _count(phase)
        if _stays(phase) and reads_input(phase, self.schedule):
            self.own = max(self.own, own_of(phase, self.schedule))
            return
        load, fabric = self.loads.of_phase(phase), self.fabric
        if not load.remote:
            before = self.carried or Work.nothing(fabric.nranks)
            self.carried = before.plus(load.work(fabric.nranks), phase.steps)
            return
        self.totals.append(Total(load.at, slice(None), load.at, load.slots * phase.steps))
        hops, self.last = load.latency, phase
        if phase.steps > 1 and len(phase.moves) == 1:
            hops = slowest_chain(fabric, phase) / phase.steps
        known = self.known.get(id(load)) if self.carried is None else None
        if known is None:
            known = self._busiest(load, phase.steps)
            if self.carried is None:
                self.known[id(load)] = known
        self.carried = None
        self.columns.append((np.array([phase.steps]), hops[:, None], *known))

    def _busiest(self, load: Load, steps: int) -> tuple[Ints | F64, ...]:
        """Return the columns of a load from `sends` on."""
        fabric, work = self.fabric, load.work(self.fabric.nranks)
        busy = load.slots * fabric.pace[:, load.at]
        at = busy.argmax(axis=1)
        if self.carried is not None:  # spread over the steps it streams behind
            work = work.plus(self.carried, 1 / steps)
        moved = max(load.ranks[OUT].max(), load.ranks[INTO].max())
        sends, memory, through, window = (
            np.array([float(value)])
            for value in (load.ranks[SENDING].max(), work.seconds(fabric), moved,
                          fabric.window(far=load.far))
        )  # fmt: skip
        link, where = busy[np.arange(3), at], load.at[at].astype(np.int64)
        return sends, link[:, None], memory, where[:, None], through, window

    def pipeline(self, part: Pipeline) -> bool:
        """Add all pieces of a pipeline at once; return whether that was possible."""
        if not part.stages or self.carried or self.fabric.together:
            return False
        if part.pieces < 2 and (len(part.stages) < _LONG or any(s.steps > 1 for s in part.stages)):
            return False
        if not all(stage.moves for stage in part.stages):
            return False
        stages = [self.loads.of_phase(stage) for stage in part.stages]
        if not all(load.remote for load in stages):
            return False
        steps = np.array([stage.steps for stage in part.stages])
        self.rows += part.pieces * sum(stage.steps * _count(stage) for stage in part.stages)
        self.last = part.stages[-1]
        if len(stages) > LONGEST and (steps == 1).all():
            self._sliding(stages, part.pieces)
            return True
        run, counts = windows(steps, part.pieces)
        # Once all pieces are under way the same stages are at work step after step.
        new = np.flatnonzero(np.append(True, (counts[1:] != counts[:-1]).any(axis=1)))
        self._at_once(counts[new], steps * part.pieces, np.diff(new, append=len(run)), run, stages)
        return True

    def _sliding(self, stages: list[Load], pieces: int) -> None:
        found, fabric = self.loads.strands(stages), self.fabric
        total = pieces * found.total
        self.totals.append(Total(found.used, found.of, found.at, total))
        link, at = found.links(pieces)
        ranks, hops = found.ranks(pieces), found.largest(found.latency, pieces)
        far = found.largest(np.array([[float(load.far) for load in stages]]), pieces)[0] > 0
        memory = np.maximum(ranks[MOVED] / fabric.memory, ranks[REDUCED] / fabric.reduction)
        window = np.where(far, fabric.window(far=True), fabric.window(far=False))
        through = np.maximum(ranks[OUT], ranks[INTO])
        run = np.ones(len(window), dtype=np.int64)
        self.columns.append((run, hops, ranks[SENDING], link, memory, at, through, window))

    def _at_once(self, counts: I64, whole: I64, times: I64, run: I64, stages: list[Load]) -> None:
        fabric, found = self.fabric, self.loads.lumps(stages)
        total = (whole[:, None] * found.link).sum(axis=0)
        self.totals.append(Total(found.used, found.of, found.at, total))
        link, at = most(counts, found.link, found.pace)
        ranks = peaks(counts, found.rank)
        memory = np.maximum(ranks[MOVED] / fabric.memory, ranks[REDUCED] / fabric.reduction)
        active = counts > 0
        hops = np.where(active[:, :, None], found.latency, 0.0).max(axis=1).T
        far = (active & np.array([load.far for load in stages])).any(axis=1)
        window = np.where(far, fabric.window(far=True), fabric.window(far=False))
        columns = (hops, ranks[SENDING], link, memory, found.at[at],
                   np.maximum(ranks[OUT], ranks[INTO]), window)  # fmt: skip
        self.columns.append((run, *(np.repeat(c, times, axis=-1) for c in columns)))

    def done(self) -> Profile:
        """Return the profile of all that was added."""
        if self.carried:
            nothing, one = np.zeros((3, 1)), np.zeros(1)
            self.columns.append((np.ones(1, np.int64), nothing, one, nothing,
                                 np.array([self.carried.seconds(self.fabric)]),
                                 np.full((3, 1), -1), one, one))  # fmt: skip
        columns = (np.concatenate(c, axis=-1) for c in zip(*self.columns))
        steps, hops, sends, link, memory, busiest, through, window = columns
        last = 0.0 if self.last is None else last_of(self.last, self.fabric.nranks)
        schedule = self.schedule
        called = COLLECTIVES.get(schedule.collective)  # None: made by hand, for no collective
        asked = called.own(schedule.nranks) * schedule.layout.chunks if called else 0
        last = max(self.own, last, float(asked))
        return Profile(self.fabric, schedule.layout.chunks, schedule.nchannels, steps, hops, sends,
                       link, memory, busiest, through, window, last,
                       tuple(self.totals), self.rows, self.loads.loaded - self.before)  # fmt: skip


def _count(phase: Phase) -> int:
    if isinstance(phase.moves, AllPairs):
        return phase.moves.pairs.size
    return sum(move.rows.size for move in phase.moves)


def profile(schedule: Schedule, fabric: Fabric, loads: Loads | None = None) -> Profile:
    """Return the Profile of `schedule` on `fabric`; `loads` carries what earlier ones routed."""
    found = _Parts(schedule, fabric, loads or Loads(fabric))
    for part in _told(schedule):
        if isinstance(part, Phase):
            found.phase(part)
            continue
        found.loads.prepare(part.stages)
        if not found.pipeline(part):
            for phase in part:
                found.phase(phase)
    return found.done()
