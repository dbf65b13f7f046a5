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
from ..schedule import I32, Phase, Schedule
from .memory import STAGED, Work, staged, work
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
    remote: bool


@dataclass(frozen=True, eq=False)
class Profile:
    """A schedule on a fabric, ready for any size. One entry a part, in order.

    steps: int64. latency: float64[3, parts] s (hops and messages). link, memory: s per slot byte.
    busiest: int64, the link behind `link` (-1: none). total_link: float64[nlinks], slots over the
    whole call. rows: rows of the schedule; loaded: rows that had to be routed.
    """

    fabric: Fabric
    chunks: int
    steps: npt.NDArray[np.int64]
    latency: F64
    link: F64
    memory: F64
    busiest: npt.NDArray[np.int64]
    total_link: F64
    rows: int
    loaded: int

    def seconds(self, block: F64 | float, protocol: Protocol) -> F64:
        """Return the seconds a call takes for blocks of `block` bytes, launch included."""
        slot = np.asarray(block, dtype=np.float64)[..., None] / self.chunks
        wire = np.maximum(self.link * slot * protocol.wire, self.memory * slot)
        each = self.steps * (self.latency[protocol.index] + wire)
        return np.asarray(self.fabric.launch + each.sum(axis=-1))

    def timeline(self, block: float, protocol: Protocol) -> Timeline:
        """Return when each part runs and what bounds it, for blocks of `block` bytes."""
        slot, clock, parts = block / self.chunks, self.fabric.launch, []
        for i, steps in enumerate(self.steps.tolist()):
            latency = float(self.latency[protocol.index, i])
            link, memory = self.link[i] * slot * protocol.wire, self.memory[i] * slot
            wire = max(link, memory)
            bound = "latency" if latency >= wire else "link" if link >= memory else "memory"
            at = int(self.busiest[i])
            seconds = float(steps * (latency + wire))
            parts.append(Part(clock, seconds, steps, bound, at if at >= 0 else None))
            clock += seconds
        busy = self.total_link / self.fabric.bandwidth if len(self.total_link) else np.zeros(0)
        top = int(busy.argmax()) if busy.size and busy.max() > 0 else None
        spent = float(busy[top] * slot * protocol.wire) if top is not None else 0.0
        return Timeline(self.fabric.launch, tuple(parts), top, spent)


_Columns = tuple[I32, I32, I64]
"""src, dst, slots moved, of the messages of a phase."""


def _messages(phase: Phase) -> _Columns:
    """Return the phase's messages: neighbouring rows with the same two ends are one."""
    every = [m.rows for m in phase.moves]
    src, dst = (np.concatenate([getattr(r, end) for r in every]) for end in ("src", "dst"))
    count = np.concatenate([r.count for r in every]).astype(np.int64)
    if len(src) < 2:
        return src, dst, count
    starts = np.flatnonzero((src[1:] != src[:-1]) | (dst[1:] != dst[:-1])) + 1
    starts = np.concatenate([[0], starts])
    return src[starts], dst[starts], np.add.reduceat(count, starts)


def _load(fabric: Fabric, messages: _Columns) -> _Load:
    n, link = fabric.nranks, np.zeros(fabric.nlinks)
    latency, sending, bounced = np.zeros(3), np.zeros(n), np.zeros(n)
    all_src, all_dst, count = messages
    remote = all_src != all_dst
    # Where flows choose their way by what else is sent, all of them are handed over at once.
    block = len(all_src) if fabric.together else _BLOCK
    for start in range(0, len(all_src), max(block, 1)):
        part = slice(start, start + block)
        src, dst = all_src[part], all_dst[part]
        routes = fabric.routes(src, dst, count[part].astype(np.float64))
        weight = count[part][routes.row] * routes.share
        link += np.bincount(routes.link, weights=weight, minlength=fabric.nlinks)
        far = remote[part]
        if far.any():
            latency = np.maximum(latency, fabric.latency(src[far], dst[far]).max(axis=1))
            spent = fabric.message(src[far], dst[far])
            sending += np.bincount(src[far], weights=spent, minlength=n)
            detour = staged(fabric, src, dst)
            if detour is not None:
                bounced += np.bincount(dst, weights=STAGED * count[part] * detour, minlength=n)
    return _Load(link, Work(bounced, np.zeros(n)), latency, sending, bool(remote.any()))


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
        src, dst, count = _messages(phase)
        # The same ends in other proportions are the same routes: scale what is known.
        unit = int(np.gcd.reduce(count))
        digest = blake2b(digest_size=16)
        for column in (src, dst, count // unit):
            digest.update(np.ascontiguousarray(column).data)
        load = self._by_content.get(digest.digest())
        if load is None:
            load = _load(self.fabric, (src, dst, count // unit))
            self._by_content[digest.digest()] = load
            self.loaded += len(src)
        own = work(self.fabric.nranks, phase).plus(load.work, unit)
        return replace(load, link=load.link * unit, work=own)

    def forget_objects(self) -> None:
        """Let go of the phases seen; their loads stay, by content."""
        self._known.clear()
        self._kept.clear()


def profile(schedule: Schedule, fabric: Fabric, loads: Loads | None = None) -> Profile:
    """Return the Profile of `schedule` on `fabric`; `loads` carries what earlier ones routed."""
    loads = loads or Loads(fabric)
    before = loads.loaded
    steps, latency, link, memory, busiest = [], [], [], [], []
    total, carried, rows = np.zeros(fabric.nlinks), Work.nothing(fabric.nranks), 0
    rate = 1.0 / fabric.bandwidth
    for phase in schedule.phases():
        if not phase.moves:
            continue
        load = loads.of_phase(phase)
        rows += phase.steps * sum(len(m.rows.src) for m in phase.moves)
        if not load.remote:
            if _reads_input(phase, schedule):
                continue
            carried = carried.plus(load.work, phase.steps)
            continue
        total += load.link * phase.steps
        busy = load.link * rate
        at = int(busy.argmax())
        steps.append(phase.steps)
        hops = load.latency
        if phase.steps > 1 and len(phase.moves) == 1:
            hops = _chained(fabric, phase) / phase.steps
        latency.append(hops + load.messages.max())
        link.append(busy[at])
        # What was carried is spread over the steps it streams behind.
        memory.append(load.work.plus(carried, 1 / phase.steps).seconds(fabric))
        busiest.append(at)
        carried = Work.nothing(fabric.nranks)
    if carried:
        steps.append(1)
        latency.append(np.zeros(3))
        link.append(0.0)
        memory.append(carried.seconds(fabric))
        busiest.append(-1)
    stacked = np.array(latency).reshape(-1, 3).T
    return Profile(
        fabric,
        schedule.layout.chunks,
        np.array(steps, dtype=np.int64),
        stacked,
        np.array(link),
        np.array(memory),
        np.array(busiest, dtype=np.int64),
        total,
        rows,
        loads.loaded - before,
    )
