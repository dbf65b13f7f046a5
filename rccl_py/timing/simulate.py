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
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric, link_number
from ..links import PROTOCOLS, Protocol
from ..schedule import Schedule
from .estimate import Profile, profile
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

Change = tuple[float, int | str, float]
"""From this time on, s, a link (number, or name as Fabric.link_name tells it) has this part of its
capacity, 0 to 1."""


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """One call; Plan.job makes one. ranks: the fabric's its own are, None: all of them, in order.

    block: bytes of a block. protocol: one, or its name. start: earliest s. after: jobs (places in
    the list) that must have ended, tail included, as on a stream. arrival: float64[nranks] s each
    rank comes late. channels: how many of a kernel's share the work, 0 for as many as it takes.
    known: the profile of the schedule on the very fabric it runs on, where there is one.
    """

    schedule: Schedule
    block: float
    protocol: Protocol | str
    ranks: Sequence[int] | None = None
    start: float = 0.0
    after: tuple[int, ...] = ()
    arrival: npt.ArrayLike | None = None
    channels: int = 0
    known: Profile | None = None


def simulate(
    schedule: Schedule,
    fabric: Fabric,
    block: float,
    protocol: Protocol | str,
    *,
    detail: bool = False,
    arrival: npt.ArrayLike | None = None,
    max_events: int = MAX_EVENTS,
    changes: Iterable[Change] = (),
    channels: int = 0,
    known: Profile | None = None,
) -> Timeline:
    """Return what happens in one call with blocks of `block` bytes. See simulate_jobs."""
    job = Job(schedule, block, protocol, arrival=arrival, channels=channels, known=known)
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

    All times are s from one zero; a timeline's launch is when the last rank of its job is ready,
    its tail what filling a window and copying out take once, on no link (docs/timing.md).
    changes: (s, link, part of its capacity from then on, 0: it is down) in any order; links by
    number or by name.

    Raises InvalidUsage beyond `max_events` messages, InvalidArgument for jobs that do not fit the
    fabric, FabricError when a link is down for good and ranks wait for what is on it.
    """
    jobs = list(jobs)
    _require_order(jobs)
    known = [_change(change, fabric) for change in changes]
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
    made = tables(calls, known, detail, messages)
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


def _change(change: Change, fabric: Fabric) -> tuple[float, int, float]:
    """Return (s, link's number, part) of a change that can be."""
    most = fabric.nlinks + fabric.nranks  # beyond the links: what ranks' memories move
    if isinstance(change, Sequence) and len(change) == 3:
        time, where, full = change
        link = link_number(fabric, where) if isinstance(where, str) else where
        numbers = isinstance(link, Integral) and isinstance(time, Real) and isinstance(full, Real)
        if numbers and 0 <= time < np.inf and 0 <= link < most and 0 <= full <= 1:
            return float(time), int(link), float(full)
    raise InvalidArgument(
        f"change {change!r}: expected s from 0 on, a link below {fabric.nlinks} or its name, and "
        "the part of its capacity it has from then on, 0 to 1"
    )


def _protocol(job: Job, number: int) -> Protocol:
    """Return the protocol of a job that has one or its name."""
    if isinstance(job.protocol, Protocol):
        return job.protocol
    if isinstance(job.protocol, str) and job.protocol in PROTOCOLS:
        return PROTOCOLS[job.protocol]
    raise InvalidArgument(
        f"job {number}: protocol {job.protocol!r}: expected one of {', '.join(PROTOCOLS)}"
    )


def _call(job: Job, number: int, fabric: Fabric, left: int, most: int) -> tuple[Call, int]:
    """Return a job's stages, and how many messages they have; at most `left`."""
    seat, own = _placed(job, number, fabric)
    protocol = _protocol(job, number)
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
        used = uses(stage, own, protocol, job.channels)
        cuts.append(cut(stage, used, own, protocol, slot, (seat, fabric.nranks)))
    needs = tuple(sorted(set(job.after)))
    tail = _tail(job, own, protocol)
    return Call(cuts, float(job.start), fabric.launch + late, needs, tail), messages


def _tail(job: Job, own: Fabric, protocol: Protocol) -> float:
    """Return the s from the last message until the call is over."""
    known = job.known
    if known is None or known.fabric is not own:
        known = profile(job.schedule, own)
    slot = job.block / job.schedule.layout.chunks
    return float(known.tail(slot, known.wire(slot, protocol, job.channels)))


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
