"""The estimate: per step, the longest path's latency plus the busiest link's load over its rate.

Owns the planner's clock. A schedule on a fabric becomes a Profile once: per part its steps, its
latency under each protocol, seconds per byte of a slot on the busiest link and in memory. Any
size, protocol or element count is then a few multiplications. Rows that repeat are loaded once:
the memo is by phase, so a ring of 10,000 ranks costs one step, not 20,000.

Rules, each argued in docs/timing.md:

* T(step) = latency + message overhead + max(link, memory); memory: reading, writing and adding
* the moves of a phase are posted together: loads add, latency counts once
* a phase of local rows only has no latency; its memory traffic streams behind the next step that
  crosses a link (kernels work slice by slice), so it is carried there and counts in the maximum
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import Phase, Schedule
from .memory import STAGED, Work, staged, work
from .messages import Messages, crossing, messages, spent, to_many
from .timeline import Part, Timeline

__all__ = ["Loads", "Profile", "profile"]

I64 = npt.NDArray[np.int64]

_BLOCK = 1 << 14  # rows routed at a time: bounds memory, not results


@dataclass(frozen=True, eq=False, slots=True)
class _Load:
    """What one repetition of a phase asks of the fabric, per slot byte."""

    link: F64  # slots on each link
    work: Work  # slots read, written and added at each rank
    latency: F64  # float64[3], s
    messages: F64  # s each rank spends sending
    through: tuple[F64, F64]  # slots each rank sends, and gets
    far: bool  # whether some leave their node
    remote: bool


@dataclass(frozen=True, eq=False)
class Profile:
    """A schedule on a fabric, ready for any size. One entry a part, in order.

    steps: int64. hops: float64[3, parts] s. messages: float64[parts] s the rank that sends most
    spends on its messages, on all channels. link: float64[3, parts] s per
    slot byte on the link that is busiest under each protocol; busiest: int64[3, parts], which
    (-1: none). memory: float64[parts] s per slot byte. through: float64[parts], the most slots a
    rank sends or gets in one repetition; window: float64[parts] B. last: slots a rank gets in the
    last repetition and does not pass on. total_link: float64[nlinks], slots over the whole call.
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
    total_link: F64
    rows: int
    loaded: int

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
        slot, clock, parts = block / self.chunks, self.fabric.launch, []
        index, wires = protocol.index, self.wire(block / self.chunks, protocol, channels)
        before = self.latency(protocol, channels)
        for i, steps in enumerate(self.steps.tolist()):
            latency, wire = float(before[i]), float(wires[i])
            bound = "memory" if wire > self.link[index, i] * slot else "link"
            bound = "latency" if latency >= wire else bound
            at = int(self.busiest[index, i])
            seconds = float(steps * (latency + wire))
            parts.append(Part(clock, seconds, steps, bound, at if at >= 0 else None))
            clock += seconds
        busy = self.busy(slot, protocol)
        top = int(busy.argmax()) if busy.size and busy.max() > 0 else None
        return Timeline(
            self.fabric.launch,
            tuple(parts),
            top,
            float(busy[top]) if top is not None else 0.0,
            link_busy=busy,
            tail=float(self.tail(slot, wires)),
        )

    def busy(self, slot: float, protocol: Protocol) -> F64:
        """Return the s each link is used over the whole call: float64[nlinks]."""
        return np.asarray(self.total_link * self.fabric.pace[protocol.index] * slot)


def _load(fabric: Fabric, sent: Messages, many: bool) -> _Load:
    n, link = fabric.nranks, np.zeros(fabric.nlinks)
    latency, sending, bounced = np.zeros(3), np.zeros(n), np.zeros(n)
    remote = sent.src != sent.dst
    out = np.bincount(sent.src, weights=sent.slots * remote, minlength=n)
    into = np.bincount(sent.dst, weights=sent.slots * remote, minlength=n)
    leaves = bool((fabric.node[sent.src] != fabric.node[sent.dst]).any())
    # Where flows choose their way by what else is sent, all of them are handed over at once.
    block = len(sent.src) if fabric.together else _BLOCK
    for start in range(0, len(sent.src), max(block, 1)):
        part = sent.part(slice(start, start + block))
        src, dst, slots, fan = part
        routes = fabric.routes(src, dst, slots.astype(np.float64))
        weight = slots[routes.row] * routes.share * crossing(fabric, fan, routes, many)
        link += np.bincount(routes.link, weights=weight, minlength=fabric.nlinks)
        far = remote[start : start + block]
        if far.any():
            latency = np.maximum(latency, fabric.latency(src[far], dst[far]).max(axis=1))
            sending += np.bincount(
                src[far], weights=spent(fabric, part.part(far), many), minlength=n
            )
            detour = staged(fabric, src, dst)
            if detour is not None:
                bounced += np.bincount(dst, weights=STAGED * slots * detour, minlength=n)
    moved = Work(bounced, np.zeros(n))
    return _Load(link, moved, latency, sending, (out, into), leaves, bool(remote.any()))


def _chained(fabric: Fabric, phase: Phase) -> F64:
    """Return the latency of all steps of a phase: float64[3], s.

    Where every row hands on to one other (a ring), ranks do not meet between steps: what counts
    is the slowest chain of `steps` hops in a row, not the slowest hop `steps` times.
    """
    rows, steps = phase.moves[0].rows, phase.steps
    hop = fabric.latency(rows.src, rows.dst)
    starts = np.full((int(rows.channel.max()) + 1) * fabric.nranks, -1, dtype=np.int64)
    first = rows.channel.astype(np.int64) * fabric.nranks
    starts[first + rows.src] = np.arange(len(rows.src))
    following = starts[first + rows.dst]
    if (following < 0).any() or (starts >= 0).sum() < len(rows.src):
        return np.asarray(hop.max(axis=1) * steps)
    # Sums over 1, 2, 4, ... hops from every row; `steps` of them are put together bit by bit.
    total, at = np.zeros_like(hop), np.arange(len(rows.src))
    while steps:
        if steps & 1:
            total, at = total + hop[:, at], following[at]
        hop, following, steps = hop + hop[:, following], following[following], steps >> 1
    return np.asarray(total.max(axis=1))


def _reads_input(phase: Phase, schedule: Schedule) -> bool:
    """Return whether a local phase only hands the input on: kernels read it where they need it."""
    first_other = int(schedule.layout.output())
    return all((m.slots(0)[0] < first_other).all() for m in phase.moves)


def _summed(parts: list[_Load]) -> _Load:
    """Return the load of phases posted together: loads and messages add, latency is the largest."""
    total = parts[0]
    for part in parts[1:]:
        total = _Load(
            total.link + part.link,
            total.work.plus(part.work),
            np.maximum(total.latency, part.latency),
            total.messages + part.messages,
            (total.through[0] + part.through[0], total.through[1] + part.through[1]),
            total.far or part.far,
            total.remote or part.remote,
        )
    return total


class Loads:
    """Loads of phases on one fabric: what repeats, in this schedule or another, is routed once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.loaded = 0
        # Flows that choose their way by what else is sent are loaded a whole phase at a time.
        self._together = fabric.together
        self._known: dict[tuple[tuple[int, ...], ...], _Load] = {}
        self._kept: list[Phase] = []
        self._by_content: dict[bytes, _Load] = {}

    def of_phase(self, phase: Phase) -> _Load:
        """Return the load of one repetition of `phase`."""
        parts = phase.made_of if len(phase.made_of) > 1 and not self._together else ()
        key = tuple(sorted(self._name(p) for p in parts)) if parts else (self._name(phase),)
        found = self._known.get(key)
        if found is None:
            found = _summed([self.of_phase(p) for p in parts]) if parts else self._single(phase)
            self._known[key] = found
            # What is named by its objects is kept, so that the names stay its own.
            self._kept.append(phase)
        return found

    @staticmethod
    def _name(phase: Phase) -> tuple[int, ...]:
        return tuple(id(m.rows) for m in phase.moves)

    def _single(self, phase: Phase) -> _Load:
        sent = messages(phase)
        # The same ends in other proportions are the same routes: scale what is known.
        unit = int(np.gcd.reduce(sent.slots))
        least = sent._replace(slots=sent.slots // unit)
        many = to_many(phase, self.fabric.nranks)
        digest = blake2b(bytes([many]), digest_size=16)
        for column in least if sent.fan.any() else least[:3]:
            digest.update(np.ascontiguousarray(column).data)
        load = self._by_content.get(digest.digest())
        if load is None:
            load = _load(self.fabric, least, many)
            self._by_content[digest.digest()] = load
            self.loaded += len(sent.src)
        own = work(self.fabric.nranks, phase).plus(load.work, unit)
        through = load.through[0] * unit, load.through[1] * unit
        return replace(load, link=load.link * unit, work=own, through=through)

    def forget_objects(self) -> None:
        """Let go of the phases seen; their loads stay, by content."""
        self._known.clear()
        self._kept.clear()


def own_of(phase: Phase, schedule: Schedule) -> float:
    """Return the slots of its own that a rank copies to where they stay: its block of the output.

    Handing on all of the output is no copy: it is reduced into, or sent from where it is.
    """
    most = max(float(np.bincount(m.rows.src, weights=m.rows.count).max()) for m in phase.moves)
    return most if most < schedule.layout.outputs * schedule.layout.chunks else 0.0


def last_of(phase: Phase, nranks: int) -> float:
    """Return the most slots a rank gets in one repetition where it gets one message a channel.

    Then what gets them is one kernel that sent before; several at once are got by kernels of
    their own while others send.
    """
    rows = [m.rows for m in phase.moves]
    src, dst, count, channel = (
        np.concatenate([getattr(r, c) for r in rows]).astype(np.int64)
        for c in ("src", "dst", "count", "channel")
    )
    if any(r.switched for r in rows):
        return 0.0
    far = src != dst
    ends = np.unique((channel[far] * nranks + src[far]) * nranks + dst[far])
    into = ends // nranks // nranks * nranks + ends % nranks
    if len(np.unique(into)) < len(into):
        return 0.0
    got = np.bincount(dst[far], weights=count[far], minlength=1)
    return float(got.max())


def profile(schedule: Schedule, fabric: Fabric, loads: Loads | None = None) -> Profile:
    """Return the Profile of `schedule` on `fabric`; `loads` carries what earlier ones routed."""
    loads = loads or Loads(fabric)
    before = loads.loaded
    total, carried, rows = np.zeros(fabric.nlinks), Work.nothing(fabric.nranks), 0
    parts: list[tuple[int, F64, float, F64, float, I64, float, float]] = []
    last, own = None, 0.0
    for phase in schedule.phases():
        if not phase.moves:
            continue
        load = loads.of_phase(phase)
        rows += phase.steps * sum(len(m.rows.src) for m in phase.moves)
        if not load.remote:
            if not _reads_input(phase, schedule):
                carried = carried.plus(load.work, phase.steps)
            else:
                own = max(own, own_of(phase, schedule))
            continue
        total += load.link * phase.steps
        busy = load.link * fabric.pace
        at, last = busy.argmax(axis=1), phase
        hops = load.latency
        if phase.steps > 1 and len(phase.moves) == 1:
            hops = _chained(fabric, phase) / phase.steps
        # What was carried is spread over the steps it streams behind.
        memory = load.work.plus(carried, 1 / phase.steps).seconds(fabric)
        most = max(float(way.max()) for way in load.through)
        parts.append((phase.steps, hops,
                float(load.messages.max()), busy[np.arange(3), at], memory, at,
                      most, fabric.window(far=load.far)))  # fmt: skip
        carried = Work.nothing(fabric.nranks)
    if carried:
        nothing, memory = np.zeros(3), carried.seconds(fabric)
        parts.append((1, nothing, 0.0, nothing, memory, np.full(3, -1, dtype=np.int64), 0.0, 0.0))
    columns = list(zip(*parts)) if parts else [[] for _ in range(8)]
    steps, hop, sends, link, memories, busiest, through, window = (np.array(c) for c in columns)
    return Profile(
        fabric,
        schedule.layout.chunks,
        schedule.nchannels,
        steps.astype(np.int64),
        hop.reshape(-1, 3).T,
        sends,
        link.reshape(-1, 3).T,
        memories,
        busiest.astype(np.int64).reshape(-1, 3).T,
        through,
        window,
        own if last is None else max(own, last_of(last, fabric.nranks)),
        total,
        rows,
        loads.loaded - before,
    )
