"""A schedule made ready to be timed message by message: what every engine but the estimate reads.

Owns Stage: the messages of one repetition of a phase with their routes, and what each rank's
memory has to do. Knows no size and no protocol: an engine multiplies. The rules are those of
rccl_py.timing.estimate, so that engines differ only in what waits for what:

* a stage is a phase that crosses links; phases of local rows only are carried to the next stage
  (kernels work slice by slice), or left as a last stage without messages
* rows of a phase with the same two ends and channel are one message
* routes are looked up once a set of rows, however often the set repeats
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import BEYOND, F64, Fabric
from ..links import Protocol
from ..schedule import I32, Phase, Schedule
from .memory import STAGED, Work, reads_input, staged, work
from .messages import Messages, crossing, fans, serving_many, spent

__all__ = ["Stage", "Uses", "place_of", "stages", "uses"]

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """`steps` repetitions of the same messages, one entry a message.

    src, dst : int32[m], ranks. slots : int64[m], slots moved a repetition. channel : int32[m].
    ptr : int64[m + 1], link : int64[k], share : float64[k]: message i puts share[e] of its bytes
    on link[e], no link twice, for e in ptr[i]:ptr[i + 1]. latency : float64[3, m] s of the hop
    under each protocol. lead : float64[nranks], s a rank spends on its messages before their
    first byte. memory : float64[nranks], s per byte of a slot that a rank's memory and adders need
    for one repetition; it goes on while the messages do.
    """

    steps: int
    src: I32
    dst: I32
    slots: I64
    channel: I32
    ptr: I64
    link: I64
    share: F64
    latency: F64
    lead: F64
    memory: F64


@dataclass(frozen=True, eq=False, slots=True)
class Uses:
    """What each message takes of what is shared, every resource giving 1 s of itself a second.

    Message i keeps resource[e] busy for seconds[e] per byte of a slot, e in ptr[i]:ptr[i + 1].
    Resources are numbered: the fabric's links first, then the memory of every rank; where channels
    are counted, then what every rank's channels send, and what they receive. Where links pause
    what feeds them: depth : int8[k], how far on the way of the message the resource is, and
    pauses : bool[k], whether it is such a link; else None.
    """

    ptr: I64
    resource: I64
    seconds: F64
    count: int
    depth: I8 | None = None
    pauses: npt.NDArray[np.bool_] | None = None


def uses(stage: Stage, fabric: Fabric, protocol: Protocol, channels: int = 0) -> Uses:
    """Return the resources that the messages of `stage` share under `protocol`.

    A rank's memory work is divided over its messages by their slots, so that it is done when they
    are: the busiest resource's seconds are what the estimate calls max(link, memory). channels:
    how many of a kernel's share the work; 0, or a device whose channels are no limit: not counted.
    """
    m, nlinks, n = len(stage.src), fabric.nlinks, fabric.nranks
    row = np.repeat(np.arange(m), np.diff(stage.ptr))
    touched = np.bincount(stage.src, weights=stage.slots, minlength=n)
    touched += np.bincount(stage.dst, weights=stage.slots, minlength=n)
    each = np.divide(stage.memory, touched, out=np.zeros(n), where=touched > 0)
    ends = [(nlinks + stage.src, each[stage.src]), (nlinks + stage.dst, each[stage.dst])]
    rate = channels * fabric.per_channel[protocol.index]
    if rate:
        ends += [
            (nlinks + k * n + end, np.full(m, 1 / rate))
            for k, end in ((1, stage.src), (2, stage.dst))
        ]
    rows = np.concatenate([row, *(np.arange(m) for _ in ends)])
    resource = np.concatenate([stage.link, *(number for number, _ in ends)])
    wire = stage.slots[row] * stage.share * fabric.pace[protocol.index, stage.link]
    seconds = np.concatenate([wire, *(stage.slots * part for _, part in ends)])
    used = np.flatnonzero(seconds > 0)
    order = used[np.argsort(rows[used], kind="stable")]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(rows[used], minlength=m))])
    count, depth, pauses = nlinks + n * (len(ends) - 1), None, None
    if fabric.pausing is not None:
        along = fabric.pausing.along(stage.link, fabric.node[stage.src][row])
        sides = np.repeat(np.array([0, BEYOND] * (len(ends) // 2), dtype=np.int8), m)
        depth = np.concatenate([along, sides])[order]
        pauses = np.append(fabric.pausing.pauses, False)[np.minimum(resource[order], nlinks)]
    return Uses(ptr, resource[order], seconds[order], count, depth, pauses)


def place_of(resource: npt.ArrayLike, nlinks: int, nranks: int) -> I64:
    """Return resources as Transfers.link tells them: links, -1 memory of a rank, -2 channels."""
    found = np.asarray(resource, dtype=np.int64)
    return np.where(found < nlinks, found, np.where(found < nlinks + nranks, -1, -2))


def stages(schedule: Schedule, fabric: Fabric, channels: int = 0) -> Iterator[Stage]:
    """Yield the stages of `schedule` on `fabric`, in order.

    channels: how many of a kernel's share the work, 0 for as many as it takes; fewer than the
    schedule has post fewer messages.
    """
    posted = min(channels or schedule.nchannels, schedule.nchannels) / schedule.nchannels
    known: dict[tuple[int, ...], Stage] = {}
    kept: list[Phase] = []  # what is named by its objects is kept, so that the names stay its own
    carried = Work.nothing(fabric.nranks)
    for phase in schedule.phases():
        if not phase.moves:
            continue
        key = tuple(id(m.rows) for m in phase.moves)
        if not any((m.rows.src != m.rows.dst).any() for m in phase.moves):
            if not reads_input(phase, schedule):
                carried = carried.plus(work(fabric.nranks, phase), phase.steps)
            continue
        if key not in known:
            known[key] = _stage(fabric, phase, posted)
            kept.append(phase)
        own = work(fabric.nranks, phase).plus(_bounced(fabric, known[key]))
        total = own.plus(carried, 1 / phase.steps)
        yield _with(known[key], phase.steps, total.each(fabric))
        carried = Work.nothing(fabric.nranks)
    if carried:
        yield _with(_nothing(fabric), 1, carried.each(fabric))


def _with(stage: Stage, steps: int, memory: F64) -> Stage:
    return Stage(
        steps,
        stage.src,
        stage.dst,
        stage.slots,
        stage.channel,
        stage.ptr,
        stage.link,
        stage.share,
        stage.latency,
        stage.lead,
        memory,
    )


def _nothing(fabric: Fabric) -> Stage:
    none, zero = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    idle = np.zeros(fabric.nranks)
    start = np.zeros(1, dtype=np.int64)
    return Stage(1, none, none, zero, none, start, zero, np.zeros(0), np.zeros((3, 0)), idle, idle)


def _stage(fabric: Fabric, phase: Phase, part: float) -> Stage:
    """Return the stage of one repetition, without its memory. part: of the messages, posted."""
    every = [m.rows for m in phase.moves]
    src, dst, count, channel = (
        np.concatenate([np.asarray(getattr(r, c), dtype=np.int64) for r in every])
        for c in ("src", "dst", "total", "channel")
    )
    fan, far, n = fans(phase, src, dst), src != dst, fabric.nranks
    # One message a channel and pair of ends; adding up, handing on, serving many stay apart.
    many = serving_many(phase, fabric)
    kind = (np.sign(fan) + 1) * 2 + many
    name = ((channel[far] * 6 + kind[far]) * n + src[far]) * n + dst[far]
    key, first, at = np.unique(name, return_index=True, return_inverse=True)
    slots = np.bincount(at, weights=count[far], minlength=len(key)).astype(np.int64)
    source, target, lane, fan = (c[far][first] for c in (src, dst, channel, fan))
    sent = Messages(source.astype(np.int32), target.astype(np.int32), slots, fan)
    routes = fabric.routes(sent.src, sent.dst, slots.astype(np.float64))
    many = many[far][first]
    part_of_link = routes.share * crossing(fabric, fan, routes, many)
    ptr, link, share = _ways(routes.row, routes.link, part_of_link, len(key), fabric.nlinks)
    # Channels between the same two ranks post one message: the rank's time is spent once.
    once = np.unique((kind[far][first] * n + source) * n + target, return_index=True)[1]
    posted = sent.part(once)
    lead = np.asarray(
        np.bincount(posted.src, weights=spent(fabric, posted, many[once]), minlength=n), float
    )
    return Stage(
        1,
        sent.src,
        sent.dst,
        slots,
        lane.astype(np.int32),
        ptr,
        link,
        share,
        fabric.latency(sent.src, sent.dst),
        lead * part,
        np.zeros(n),
    )


def _ways(row: I64, link: I64, share: F64, rows: int, nlinks: int) -> tuple[I64, I64, F64]:
    """Return (ptr, link, share) by row, every link once: int64[rows + 1], int64[k], float64[k].

    Ways of one message may meet on a link (of a message's flows that choose each its own, two take
    one uplink): it carries the shares of all of them.
    """
    order = np.argsort(row, kind="stable")
    row, link = row[order].astype(np.int64), link[order].astype(np.int64)
    share = np.asarray(share[order], dtype=np.float64)
    name = row * nlinks + link
    ordered = np.sort(name)
    if (ordered[1:] == ordered[:-1]).any():
        _, first, at = np.unique(name, return_index=True, return_inverse=True)
        total = np.asarray(np.bincount(at, weights=share), dtype=np.float64)
        kept = np.sort(first)  # in the order of the way, as before
        row, link, share = row[kept], link[kept], total[at[kept]]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return ptr.astype(np.int64), link, share


def _bounced(fabric: Fabric, stage: Stage) -> Work:
    """Return the work of the staging buffers that a stage's messages pass."""
    detour = staged(fabric, stage.src, stage.dst)
    total = Work.nothing(fabric.nranks)
    if detour is None:
        return total
    moved = np.bincount(stage.dst, weights=STAGED * stage.slots * detour, minlength=fabric.nranks)
    return Work(np.asarray(moved, float), total.reduced)
