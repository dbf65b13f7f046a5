"""The estimate: per step, the longest path's latency plus the busiest link's load over its rate.

Owns the planner's clock. A schedule on a fabric becomes a Profile once: per part its steps, its
latency under each protocol, seconds per byte of a slot on the busiest link and in memory. Any
size, protocol or element count is then a few multiplications. Rows that repeat are loaded once:
the memo is the Rows object (schedule.Rows), so a ring of 10,000 ranks costs one step, not 20,000.

Rules, each argued in docs/timing.md:

* T(step) = latency + message overhead + max(link, memory)
* the moves of a phase are posted together: loads add, latency counts once
* a phase of local rows only has no latency; its memory traffic streams behind the next step that
  crosses a link (kernels work slice by slice), so it is carried there and counts in the maximum
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..links import Protocol
from ..schedule import REDUCE, Phase, Rows, Schedule
from .timeline import Part, Timeline

__all__ = ["Loads", "Profile", "profile"]

_BLOCK = 1 << 18  # rows routed at a time: bounds memory, not results


@dataclass(frozen=True, eq=False, slots=True)
class _Load:
    """What one repetition of some rows asks of the fabric, per slot byte."""

    link: F64  # slots on each link
    memory: F64  # slots read and written at each rank
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


def _load(fabric: Fabric, rows: Rows) -> _Load:
    n, link = fabric.nranks, np.zeros(fabric.nlinks)
    latency, messages = np.zeros(3), np.zeros(n)
    remote = rows.src != rows.dst
    for start in range(0, len(rows.src), _BLOCK):
        part = slice(start, start + _BLOCK)
        src, dst = rows.src[part], rows.dst[part]
        routes = fabric.routes(src, dst)
        weight = rows.count[part][routes.row] * routes.share
        link += np.bincount(routes.link, weights=weight, minlength=fabric.nlinks)
        far = remote[part]
        if far.any():
            latency = np.maximum(latency, fabric.latency(src[far], dst[far]).max(axis=1))
            spent = fabric.message(src[far], dst[far])
            messages += np.bincount(src[far], weights=spent, minlength=n)
    # A reduce reads both sides and writes one; a copy reads one and writes one.
    at_dst = np.where(rows.op == REDUCE, 2.0, 1.0) * rows.count
    memory = np.bincount(rows.src, weights=rows.count, minlength=n)
    memory += np.bincount(rows.dst, weights=at_dst, minlength=n)
    return _Load(link, memory, latency, messages, bool(remote.any()))


class Loads:
    """Loads of rows on one fabric: what repeats, in this schedule or another, is routed once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.loaded = 0
        self._by_object: dict[int, tuple[Rows, _Load]] = {}
        self._by_content: dict[bytes, _Load] = {}
        self._phases: dict[tuple[int, ...], _Load] = {}

    def of_rows(self, rows: Rows) -> _Load:
        """Return the load of one repetition of `rows`."""
        found = self._by_object.get(id(rows))
        if found is None:
            digest = blake2b(digest_size=16)
            for column in (rows.src, rows.dst, rows.count, rows.op):
                digest.update(column)
            load = self._by_content.get(digest.digest())
            if load is None:
                load = _load(self.fabric, rows)
                self._by_content[digest.digest()] = load
                self.loaded += len(rows.src)
            # The Rows object is kept with its load, so that its id stays its own.
            found = (rows, load)
            self._by_object[id(rows)] = found
        return found[1]

    def forget_objects(self) -> None:
        """Let go of the Rows objects seen; their loads stay, by content."""
        self._by_object.clear()
        self._phases.clear()

    def of_phase(self, phase: Phase) -> _Load:
        """Return the sum over a phase's moves: loads and messages add, latency is the largest."""
        if len(phase.moves) == 1:
            return self.of_rows(phase.moves[0].rows)
        key = tuple(sorted(id(m.rows) for m in phase.moves))
        total = self._phases.get(key)
        if total is None:
            parts = [self.of_rows(m.rows) for m in phase.moves]
            total = _Load(
                np.sum([p.link for p in parts], axis=0),
                np.sum([p.memory for p in parts], axis=0),
                np.max([p.latency for p in parts], axis=0),
                np.sum([p.messages for p in parts], axis=0),
                any(p.remote for p in parts),
            )
            self._phases[key] = total
        return total


def profile(schedule: Schedule, fabric: Fabric, loads: Loads | None = None) -> Profile:
    """Return the Profile of `schedule` on `fabric`; `loads` carries what earlier ones routed."""
    loads = loads or Loads(fabric)
    before = loads.loaded
    steps, latency, link, memory, busiest = [], [], [], [], []
    total, carried, rows = np.zeros(fabric.nlinks), np.zeros(fabric.nranks), 0
    rate = 1.0 / fabric.bandwidth
    for phase in schedule.phases():
        if not phase.moves:
            continue
        load = loads.of_phase(phase)
        rows += phase.steps * sum(len(m.rows.src) for m in phase.moves)
        if not load.remote:
            carried = carried + load.memory * phase.steps
            continue
        total += load.link * phase.steps
        busy = load.link * rate
        at = int(busy.argmax())
        steps.append(phase.steps)
        latency.append(load.latency + load.messages.max())
        link.append(busy[at])
        # What was carried is spread over the steps it streams behind.
        memory.append((load.memory + carried / phase.steps).max() / fabric.memory)
        busiest.append(at)
        carried = np.zeros(fabric.nranks)
    if carried.any():
        steps.append(1)
        latency.append(np.zeros(3))
        link.append(0.0)
        memory.append(carried.max() / fabric.memory)
        busiest.append(-1)
    loads.forget_objects()
    stacked = np.array(latency).reshape(-1, 3).T
    return Profile(fabric, schedule.layout.chunks, np.array(steps, dtype=np.int64), stacked,
                   np.array(link), np.array(memory), np.array(busiest, dtype=np.int64), total, rows,
                   loads.loaded - before)  # fmt: skip
