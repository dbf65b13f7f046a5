"""Simulate calls message by message: what is on the wire together shares it max-min fair.

Owns the engine for contention: several calls at once, of several communicators, and links that
slow down, fail and come back on the way. Knows no algorithm and no buffer. The rules of waiting
are the clock's; what differs is that a message gets what others leave it at the time, so ranks
that drift apart do give each other room::

    rank 0   |=== a ====|                     a and b cross link 7: while both do, half of it each
    rank 1        |=== b ====|
    link 7   |aaaa|a+b a+|bbb|

The loop is compiled when it is first used (rccl_py.timing.sim_loop); results are the same, to the
bit, however often it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import FabricError, InvalidArgument, InvalidUsage
from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Schedule
from .sim_tables import Call, Cut, Tables, cut, tables
from .stages import I64, stages
from .timeline import Part, Timeline, Transfers

__all__ = ["KEPT", "MAX_EVENTS", "Job", "simulate", "simulate_jobs"]

MAX_EVENTS = 50_000_000
"""Messages a simulation takes on at most, unless told otherwise: some tens of seconds."""
KEPT = 4_000_000
"""Messages that detail=True keeps at most: some 400 MB of columns."""

Change = tuple[float, int, float]
"""At this time, s, a resource (a link's number) has this part of its capacity, 0 to 1."""


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """One call. ranks: the fabric's ranks its own are, None: all of them, in order.

    start: earliest s. after: jobs (places in the list) that must have ended, as on a stream.
    arrival: float64[nranks] s each rank comes late.
    """

    schedule: Schedule
    block: float
    protocol: Protocol
    ranks: Sequence[int] | None = None
    start: float = 0.0
    after: tuple[int, ...] = ()
    arrival: npt.ArrayLike | None = None


def simulate(
    schedule: Schedule,
    fabric: Fabric,
    block: float,
    protocol: Protocol,
    *,
    detail: bool = False,
    arrival: npt.ArrayLike | None = None,
    max_events: int = MAX_EVENTS,
    changes: Iterable[Change] = (),
) -> Timeline:
    """Return what happens in one call with blocks of `block` bytes. See simulate_jobs."""
    job = Job(schedule, block, protocol, arrival=arrival)
    return simulate_jobs([job], fabric, detail=detail, max_events=max_events, changes=changes)[0]


def simulate_jobs(
    jobs: Sequence[Job],
    fabric: Fabric,
    *,
    detail: bool = False,
    max_events: int = MAX_EVENTS,
    changes: Iterable[Change] = (),
) -> list[Timeline]:
    """Return what happens in each of several calls that share a fabric.

    All times are s from one zero; a timeline's launch is when the last rank of its job is ready.
    changes: (s, link, part of its capacity from then on, 0: it is down) in any order.

    Raises InvalidUsage beyond `max_events` messages, InvalidArgument for jobs that do not fit the
    fabric, FabricError when a link is down for good and ranks wait for what is on it.
    """
    jobs, changes = list(jobs), list(changes)
    _require_order(jobs)
    _require_changes(changes, fabric)
    calls, messages = [], 0
    for number, job in enumerate(jobs):
        call, count = _call(job, number, fabric, max_events - messages, max_events)
        calls.append(call)
        messages += count
    if detail and messages > KEPT:
        raise InvalidUsage(
            f"detail=True keeps every message, and these jobs have {messages:,}, more than "
            f"{KEPT:,}: ask without detail, or for fewer ranks, channels or pieces"
        )
    made = tables(calls, changes, detail, messages)
    run = _Run(fabric, jobs, calls, _finished(made, fabric, calls))
    return run.timelines()


def _require_order(jobs: Sequence[Job]) -> None:
    for number, job in enumerate(jobs):
        bad = [other for other in job.after if not 0 <= other < number]
        if bad:
            raise InvalidArgument(
                f"job {number} is to run after job {bad[0]}: only jobs before it in the list, 0 to "
                f"{number - 1}, can be waited for: put it further back"
            )


def _require_changes(changes: Sequence[Change], fabric: Fabric) -> None:
    for time, resource, full in changes:
        if not (time >= 0 and 0 <= resource < fabric.nlinks + fabric.nranks and 0 <= full <= 1):
            raise InvalidArgument(
                f"change ({time}, {resource}, {full}): expected s from 0 on, a link below "
                f"{fabric.nlinks}, and the part of its capacity it has from then on, 0 to 1"
            )


def _call(
    job: Job, number: int, fabric: Fabric, left: int, most: int
) -> tuple[Call, int]:
    """Return a job's stages, and how many messages they have; at most `left`."""
    seat, own = _placed(job, number, fabric)
    late = np.zeros(own.nranks) if job.arrival is None else np.asarray(job.arrival, np.float64)
    if late.shape != (own.nranks,) or not (late >= 0).all() or not 0 <= job.start < np.inf:
        raise InvalidArgument(
            f"job {number}: start {job.start} and arrival of shape {late.shape}: expected s from 0 "
            f"on, one for each of {own.nranks} ranks"
        )
    slot = job.block / job.schedule.layout.chunks
    cuts, messages = [], 0
    for stage in stages(job.schedule, own):
        messages += stage.steps * len(stage.src)
        if messages > left:
            raise InvalidUsage(
                f"{job.schedule.collective}/{job.schedule.algorithm} on {own.nranks} ranks has at "
                f"least {most - left + messages:,} messages to simulate, more than max_events="
                f'{most:,}: raise it, or use engine="clock" or engine="estimate"'
            )
        cuts.append(cut(stage, own, job.protocol, slot, seat, fabric.nranks))
    return Call(cuts, float(job.start), fabric.launch + late, tuple(sorted(set(job.after)))), messages


def _placed(job: Job, number: int, fabric: Fabric) -> tuple[I64, Fabric]:
    """Return the ranks of the fabric that a job's are, and the fabric of those only."""
    n = job.schedule.nranks
    if job.ranks is None:
        seat = np.arange(fabric.nranks)
    else:
        seat = np.asarray(job.ranks, dtype=np.int64)
        if len(seat) and (seat.min() < 0 or seat.max() >= fabric.nranks):
            raise InvalidArgument(
                f"job {number}: ranks {seat.min()} to {seat.max()} asked for, but {fabric.name} "
                f"has 0 to {fabric.nranks - 1}"
            )
    if len(seat) != n or len(np.unique(seat)) != n:
        raise InvalidArgument(
            f"job {number}: a schedule for {n} ranks on {len(np.unique(seat))} different ranks of "
            f"{fabric.name}: give Job.ranks, one for each"
        )
    if job.ranks is None:
        return seat, fabric
    return seat, replace(fabric, place=fabric.place[seat])


def _finished(made: Tables, fabric: Fabric, calls: Sequence[Call]) -> Tables:
    """Return the tables after the loop has ended."""
    from . import sim_loop  # what compiles it is loaded with it
    from .sim_state import free_events

    state = made.state
    while True:
        found = sim_loop.run(state)
        if found == sim_loop.DONE:
            return replace(made, state=state)
        if found == sim_loop.STUCK:
            raise _stuck(replace(made, state=state), fabric, calls)
        state = free_events(state, max(len(state.event), int(state.n[4])))


def _stuck(made: Tables, fabric: Fabric, calls: Sequence[Call]) -> FabricError:
    """Return the error of a simulation in which nothing more can happen."""
    s = made.state
    down = np.flatnonzero((s.resource["full"] == 0) & (s.resource["members"] > 0))
    names = [_resource_name(fabric, int(made.number[r])) for r in down[:4].tolist()]
    cuts = [(j, c) for j, call in enumerate(calls) for c in call.cuts]
    bases = np.cumsum([0] + [len(c.src) for _, c in cuts])
    waits = []
    for use in s.use[np.isin(s.use["resource"], down)]:
        if s.flow["held"][use["flow"]] < 0 or s.flow["rate"][use["flow"]] > 0:
            continue
        message = int(s.flow["message"][use["flow"]])
        stage = int(np.searchsorted(bases, message, side="right")) - 1
        j, c = cuts[stage]
        where, of = message - int(bases[stage]), f" of job {j}" if len(calls) > 1 else ""
        waits.append(f"rank {c.src[where]}{of} for its message to rank {c.dst[where]}")
    more = f", and {len(waits) - 4} more" if len(waits) > 4 else ""
    left = int((s.job["left"][:-1] > 0).sum())
    return FabricError(
        f"{fabric.name}: {', '.join(names)} down and nothing else goes on: waiting are "
        f"{'; '.join(waits[:4])}{more}; {left} of {len(calls)} job(s) not done: bring the link "
        "back with a later change, or route around it (Topology.without)"
    )


def _resource_name(fabric: Fabric, number: int) -> str:
    if number < fabric.nlinks:
        return f"link {number} ({fabric.link_name(number)}) is"
    return f"memory of rank {(number - fabric.nlinks) % fabric.nranks} is"


class _Run:
    """A simulation that has ended, read job by job."""

    def __init__(self, fabric: Fabric, jobs: Sequence[Job], calls: Sequence[Call], made: Tables
                 ) -> None:  # fmt: skip
        self.fabric, self.jobs, self.calls, self.made = fabric, jobs, calls, made
        s = made.state
        self.job_of = np.repeat(np.arange(len(calls)), [len(c.cuts) for c in calls])
        if len(s.transfer):
            cuts = [c for call in calls for c in call.cuts]
            self.first = np.cumsum([0] + [len(c.src) for c in cuts])
            self.stage = np.searchsorted(self.first, s.transfer["message"], side="right") - 1
            self.held = self._held(cuts)

    def timelines(self) -> list[Timeline]:
        return [self._timeline(j) for j in range(len(self.jobs))]

    def _timeline(self, j: int) -> Timeline:
        s, call = self.made.state, self.calls[j]
        job = s.job[j]
        launch = float(job["time"] + call.late.max())
        busy = np.zeros(self.fabric.nlinks)
        parts, clock = [], launch
        ends = s.stage["end"][job["first_stage"] : job["last_stage"]].tolist()
        for c, end in zip(call.cuts, ends):
            # A stage may be over before the last rank of the call has come.
            after = max(end, clock)
            parts.append(_part(c, clock, after, self.fabric.nlinks, busy))
            clock = after
        top = int(busy.argmax()) if busy.size and busy.max() > 0 else None
        actors = slice(int(job["first_actor"]), int(s.job["first_actor"][j + 1]))
        return Timeline(
            launch,
            tuple(parts),
            top,
            float(busy[top]) if top is not None else 0.0,
            "simulate",
            self._transfers(j) if len(s.transfer) else None,
            busy,
            ends=s.actor["end"][actors].copy(),
            queued=self._queued(),
        )

    def _queued(self) -> F64:
        """Return how long messages of all jobs waited for others on each link: float64[nlinks]."""
        found = np.zeros(self.fabric.nlinks)
        on_link = self.made.number < self.fabric.nlinks
        found[self.made.number[on_link]] = self.made.state.resource["queued"][on_link]
        return found

    def _held(self, cuts: Sequence[Cut]) -> npt.NDArray[np.int32]:
        """Return by message the link that held it back most, over all repetitions.

        That is the resource that takes it longest alone, or others made it wait for longest.
        """
        s = self.made.state
        seconds = np.concatenate([np.zeros(0), *(c.seconds for c in cuts)])
        resource = np.concatenate([np.zeros(0, dtype=np.int64), *(c.resource for c in cuts)])
        counts = np.concatenate([np.zeros(0, dtype=np.int64), *(np.diff(c.ptr) for c in cuts)])
        row = np.repeat(np.arange(len(counts)), counts)
        weight = np.zeros(len(seconds))
        weight[self.made.of_use] = s.waited
        order = np.lexsort((-np.arange(len(row)), seconds, weight, row))
        found = np.full(len(counts), -1, dtype=np.int32)
        found[row[order]] = np.where(resource < self.fabric.nlinks, resource, -1)[order]
        return found

    def _transfers(self, j: int) -> Transfers:
        s = self.made.state
        kept = np.flatnonzero(self.job_of[self.stage] == j)
        rows, stage = s.transfer[kept], self.stage[kept]
        place = np.full(len(s.transfer) + 1, -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        where = rows["message"] - self.first[stage]
        first = int(s.job["first_stage"][j])
        cuts = self.calls[j].cuts
        base = np.cumsum([0] + [len(c.src) for c in cuts])[stage - first] + where

        def column(name: str) -> npt.NDArray[np.generic]:
            return np.concatenate([getattr(c, name) for c in cuts])[base]

        return Transfers(
            rows["start"].copy(),
            rows["pushed"].copy(),
            rows["end"].copy(),
            column("src"),
            column("dst"),
            column("channel"),
            (stage - first).astype(np.int32),
            rows["step"].copy(),
            column("nbytes"),
            self.held[rows["message"]],
            place[rows["after"]],
            column("alone"),
        )


def _part(c: Cut, start: float, end: float, nlinks: int, busy: F64) -> Part:
    """Return a stage as a part, and add what it keeps links busy to `busy`."""
    spent, steps = end - start, c.steps
    if c.pause is not None:
        return Part(start, spent, steps, "memory", None)
    total = np.bincount(c.resource, weights=c.seconds, minlength=nlinks)
    busy += steps * total[:nlinks]
    top = int(total.argmax()) if len(total) else -1
    on_link = 0 <= top < nlinks and total[top] > 0
    bound = "link" if on_link else "memory"
    if top < 0 or spent / steps >= 2 * total[top]:
        bound = "latency"
    return Part(start, spent, steps, bound, top if on_link else None)
