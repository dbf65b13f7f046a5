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

from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric
from ..links import Protocol
from ..schedule import Schedule
from .sim_cut import cut
from .sim_read import Reading, stuck
from .sim_tables import Call, Tables, tables
from .stages import I64, stages, uses
from .timeline import Timeline

__all__ = ["KEPT", "MAX_EVENTS", "Job", "simulate", "simulate_jobs"]

MAX_EVENTS = 50_000_000
"""Messages a simulation takes on at most, unless told otherwise: some tens of seconds."""
KEPT = 4_000_000
"""Messages that detail=True keeps at most, some 400 MB of columns; and those that the stages of all
jobs have when each repetition is counted once, some 2 GB."""

Change = tuple[float, int, float]
"""At this time, s, a resource (a link's number) has this part of its capacity, 0 to 1."""


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """One call. ranks: the fabric's ranks its own are, None: all of them, in order.

    start: earliest s. after: jobs (places in the list) that must have ended, as on a stream.
    arrival: float64[nranks] s each rank comes late. channels: how many of a kernel's share the
    work, 0 for as many as it takes.
    """

    schedule: Schedule
    block: float
    protocol: Protocol
    ranks: Sequence[int] | None = None
    start: float = 0.0
    after: tuple[int, ...] = ()
    arrival: npt.ArrayLike | None = None
    channels: int = 0


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
    channels: int = 0,
) -> Timeline:
    """Return what happens in one call with blocks of `block` bytes. See simulate_jobs."""
    job = Job(schedule, block, protocol, arrival=arrival, channels=channels)
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
    found = Reading(fabric, calls, _finished(made, fabric, calls), detail)
    return [found.timeline(j) for j in range(len(jobs))]


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


def _call(job: Job, number: int, fabric: Fabric, left: int, most: int) -> tuple[Call, int]:
    """Return a job's stages, and how many messages they have; at most `left`."""
    seat, own = _placed(job, number, fabric)
    late = np.zeros(own.nranks) if job.arrival is None else np.asarray(job.arrival, np.float64)
    if late.shape != (own.nranks,) or not (late >= 0).all() or not 0 <= job.start < np.inf:
        raise InvalidArgument(
            f"job {number}: start {job.start} and arrival of shape {late.shape}: expected s from 0 "
            f"on, one for each of {own.nranks} ranks"
        )
    slot = job.block / job.schedule.layout.chunks
    cuts, messages, held = [], 0, 0
    for stage in stages(job.schedule, own, job.channels):
        messages += stage.steps * len(stage.src)
        held += len(stage.src)
        if messages > left or held > KEPT:
            limit = f"max_events={most:,}: raise it, or" if messages > left else f"{KEPT:,}:"
            raise InvalidUsage(
                f"{job.schedule.collective}/{job.schedule.algorithm} on {own.nranks} ranks has at "
                f"least {most - left + messages if messages > left else held:,} messages to "
                f'simulate, more than {limit} use engine="clock" or engine="estimate"'
            )
        used = uses(stage, own, job.protocol, job.channels)
        cuts.append(cut(stage, used, own, job.protocol, slot, (seat, fabric.nranks)))
    return Call(
        cuts, float(job.start), fabric.launch + late, tuple(sorted(set(job.after)))
    ), messages


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
    from .sim_state import with_room

    state = made.state
    while True:
        found = sim_loop.run(state)
        if found == sim_loop.DONE:
            return replace(made, state=state)
        if found == sim_loop.STUCK:
            raise stuck(replace(made, state=state), fabric, calls)
        state = with_room(state)
