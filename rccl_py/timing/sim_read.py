"""What a simulation that has ended, or cannot go on, has to say.

Owns how records become timelines and errors. Knows nothing of how they came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FabricError
from ..fabric import F64, Fabric
from .sim_cut import Cut
from .sim_tables import Call, Tables
from .stages import place_of
from .timeline import Part, Timeline, Transfers, bound_by

__all__ = ["Reading", "stuck"]


def stuck(made: Tables, fabric: Fabric, calls: Sequence[Call]) -> FabricError:
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
    what, rank = divmod(number - fabric.nlinks, fabric.nranks)
    return f"{'channels' if what else 'memory'} of rank {rank} is"


class Reading:
    """A simulation that has ended, read job by job."""

    def __init__(self, fabric: Fabric, calls: Sequence[Call], made: Tables, detail: bool) -> None:
        self.fabric, self.calls, self.made, self.detail = fabric, calls, made, detail
        s = made.state
        self.job_of = np.repeat(np.arange(len(calls)), [len(c.cuts) for c in calls])
        if detail:
            cuts = [c for call in calls for c in call.cuts]
            self.first = np.cumsum([0] + [len(c.src) for c in cuts])
            self.stage = np.searchsorted(self.first, s.transfer["message"], side="right") - 1
            self.held = self._held(cuts)

    def timeline(self, j: int) -> Timeline:
        """Return what happened in job j."""
        s, call = self.made.state, self.calls[j]
        job = s.job[j]
        launch = float(job["time"] + call.late.max())
        late = call.late - self.fabric.launch
        busy = np.zeros(self.fabric.nlinks)
        parts, clock = [], launch
        ends = s.stage["end"][job["first_stage"] : job["last_stage"]].tolist()
        for c, end in zip(call.cuts, ends):
            # A stage may be over before the last rank of the call has come.
            after = max(end, clock)
            parts.append(_part(c, clock, after, self.fabric, busy))
            clock = after
        top = int(busy.argmax()) if busy.size and busy.max() > 0 else None
        actors = slice(int(job["first_actor"]), int(s.job["first_actor"][j + 1]))
        return Timeline(
            launch,
            tuple(parts),
            top,
            float(busy[top]) if top is not None else 0.0,
            "simulate",
            self._transfers(j) if self.detail else None,
            busy,
            tail=call.tail,
            ends=s.actor["end"][actors].copy(),
            queued=self._queued(),
            arrival=late if late.any() else None,
            nranks=len(call.late),
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
        found[row[order]] = place_of(resource, self.fabric.nlinks, self.fabric.nranks)[order]
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

        def column(name: str, kind: type) -> npt.NDArray[Any]:
            every = np.concatenate([np.zeros(0, kind), *(getattr(c, name) for c in cuts)])
            return np.asarray(every[base])

        return Transfers(
            rows["start"].copy(),
            rows["pushed"].copy(),
            rows["end"].copy(),
            column("src", np.int32),
            column("dst", np.int32),
            column("channel", np.int32),
            (stage - first).astype(np.int32),
            rows["step"].copy(),
            column("nbytes", np.float64),
            self.held[rows["message"]],
            place[rows["after"]],
            column("alone", np.float64),
        )


def _part(c: Cut, start: float, end: float, fabric: Fabric, busy: F64) -> Part:
    """Return a stage as a part, and add what it keeps links busy to `busy`."""
    spent, steps = end - start, c.steps
    if c.pause is not None:
        return Part(start, spent, steps, "memory", None)
    total = np.bincount(c.resource, weights=c.seconds, minlength=fabric.nlinks)
    busy += steps * total[: fabric.nlinks]
    top = int(total.argmax()) if len(total) and total.max() > 0 else -1
    if top < 0:
        return Part(start, spent, steps, "latency", None)
    place = int(place_of(top, fabric.nlinks, fabric.nranks))
    bound = bound_by(place, spent / steps, float(total[top]))
    return Part(start, spent, steps, bound, place if place >= 0 else None)
