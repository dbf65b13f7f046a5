"""What an algorithm takes at least, without building it: sums that never exceed the estimate.

Owns the least time of an algorithm on a machine, from what it must send (rccl_py.planner.volumes)
and what all ports of a kind carry together, and the least time of a schedule in several pieces,
from its profile in one. Knows no route.

A floor is launch + hops and messages of every stage + the larger of (bytes between nodes over all
NICs' cables, bytes inside nodes over all links that leave an accelerator). Each is a part of what
rccl_py.timing.estimate adds up: the sum of the maxima of steps is no less than the maximum of the
sums over links, and the busiest link carries no less than the mean. In k pieces the first piece
still goes through every stage before, and the last through every stage after, those that use the
busier of the two kinds of links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..algorithms import Algorithm
from ..fabric import F64, Fabric
from ..links import Protocol
from ..timing import Profile
from ..units import format_time
from .volumes import Places, Stage, stages_of

__all__ = ["PIECES", "Floor", "Limits", "Machine", "limits_of"]

PIECES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The numbers of pieces that are tried."""


@dataclass(frozen=True, slots=True)
class Floor:
    """seconds: no less is estimated. why: the term that is most of it, for people."""

    seconds: float
    why: str


@dataclass(frozen=True, eq=False)
class Machine:
    """What floors ask of a fabric: where its ranks are, what it carries, how long hops take."""

    fabric: Fabric
    places: Places

    @cached_property
    def rates(self) -> tuple[F64, F64]:
        """B/s of payload all NICs' cables, and all links out of accelerators, carry: [3] each."""
        fabric = self.fabric
        per_link = 1.0 / fabric.pace
        held = np.unique(fabric.node)
        own, far = np.zeros(3), np.zeros(3)
        for kind in np.unique(fabric.kind[held]):
            domain = fabric.domains[int(kind)]
            node = held[fabric.kind[held] == kind]
            out = np.flatnonzero((domain.tail >= 0) & domain.joins)
            own += len(node) * per_link[:, fabric.first_link[node[0]] + out].sum(axis=1)
            if fabric.ports:
                cables = fabric.cables + fabric.first_port[node[0]] + np.arange(domain.nnics)
                far += len(node) * per_link[:, cables].sum(axis=1)
        return far, own

    @cached_property
    def hops(self) -> tuple[F64, F64]:
        """Seconds of the quickest hop out of a node, and of any: float64[3] each, by protocol."""
        fabric = self.fabric
        near = np.full(3, np.inf)
        held = np.unique(fabric.node)
        for kind in np.unique(fabric.kind[held]):
            node = int(held[fabric.kind[held] == kind][0])
            ranks = np.flatnonzero(fabric.node == node)[:64].astype(np.int32)
            src, dst = (a.ravel() for a in np.meshgrid(ranks, ranks))
            apart = src != dst
            if apart.any():
                near = np.minimum(near, fabric.latency(src[apart], dst[apart]).min(axis=1))
        far = np.full(3, np.inf)
        if not self.one_node:
            least = [d.port_latency.min(axis=1) for d in fabric.domains if d.nnics]
            far = np.minimum.reduce(least) if least else np.zeros(3)
        anywhere = np.minimum(near, far)
        return (np.where(np.isfinite(far), far, 0.0),
                np.where(np.isfinite(anywhere), anywhere, 0.0))  # fmt: skip

    @cached_property
    def one_node(self) -> bool:
        """Whether all ranks are on one node: groups of one domain are joined by scale-up links."""
        return bool((self.fabric.node == self.fabric.node[0]).all())

    @cached_property
    def posts(self) -> tuple[float, float]:
        """The least s a rank spends on a message to another node, and to one of its own."""
        domains = [self.fabric.domains[int(k)]
                   for k in np.unique(self.fabric.kind[np.unique(self.fabric.node)])]  # fmt: skip
        far = min((float(d.port_message.min(initial=np.inf)) for d in domains), default=0.0)
        near, ranks = np.inf, np.arange(self.fabric.nranks, dtype=np.int32)
        for node in self._kinds_of_nodes:
            own = ranks[self.fabric.node == node][:64]
            if len(own) > 1:
                src, dst = (a.ravel() for a in np.meshgrid(own, own))
                near = min(near, float(self.fabric.message(src, dst)[src != dst].min()))
        return (0.0 if far == np.inf else far), (0.0 if near == np.inf else near)

    @cached_property
    def _kinds_of_nodes(self) -> list[int]:
        """One node that holds ranks of each class."""
        _, classes = self.fabric.classes
        held, first = np.unique(classes, return_index=True)
        return [int(v) for c, v in zip(held, first) if c >= 0]

    def floor(self, algorithm: Algorithm, block: float, protocol: Protocol) -> Floor:
        """Return what a call of blocks of `block` bytes takes at least by an algorithm."""
        stages = self._stages(algorithm)
        if not stages:
            return Floor(0.0, "")
        timed = _Timed.of(self, stages, block, protocol)
        seconds = min(timed.least(k) for k in PIECES if k <= algorithm.pieces)
        return Floor(self.fabric.launch + seconds, timed.why())

    def _stages(self, algorithm: Algorithm) -> list[Stage] | None:
        key = algorithm.collective, algorithm.name
        if key not in self._known:
            self._known[key] = stages_of(*key, self.places)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, str], list[Stage] | None]:
        return {}


@dataclass(frozen=True, eq=False, slots=True)
class _Timed:
    """Stages in s: hops and messages, and bytes between nodes and inside, float64[stages] each."""

    waits: F64
    far: F64
    near: F64
    steps: F64

    @classmethod
    def of(cls, m: Machine, stages: list[Stage], block: float, protocol: Protocol) -> _Timed:
        """Return the stages of a call of blocks of `block` bytes."""
        i = protocol.index
        (far_rate, rate), (far_hop, hop), (far_post, post) = m.rates, m.hops, m.posts
        far = np.array([s.far for s in stages])
        near = np.array([s.near for s in stages])
        hops, steps = np.array([(s.far_hops, s.steps) for s in stages]).T
        posted = np.array([(s.far_messages, s.messages) for s in stages]) / m.places.n
        if m.one_node:
            near, far, hops = near + far, far * 0, hops * 0
            posted = np.stack([posted[:, 0] * 0, posted.sum(axis=1)], axis=1)
        waits = hops * far_hop[i] + (steps - hops) * hop[i] + posted @ np.array([far_post, post])
        return cls(
            waits,
            far * block / far_rate[i] if far_rate[i] else far * 0,
            near * block / rate[i] if rate[i] else near * 0,
            steps.astype(np.float64),
        )

    def least(self, pieces: int) -> float:
        """Return the s the stages take at least in so many pieces."""
        # A stage is at work for pieces - 1 steps more than alone; before it does, and after, the
        # first piece and the last go through the others.
        waits = float(self.waits.sum() + (pieces - 1) * (self.waits / self.steps).max())
        if pieces == 1:
            return waits + float(np.maximum(self.far, self.near).sum())
        kinds = ((self.far, self.near), (self.near, self.far))
        return waits + max(_overlapped(one, other, pieces) for one, other in kinds)

    def why(self) -> str:
        """Return what most of it is, for people."""
        terms = {
            f"{int(self.steps.sum())} steps of hops take": float(self.waits.sum()),
            "its bytes keep all NICs busy for": float(self.far.sum()),
            "its bytes keep all scale-up links busy for": float(self.near.sum()),
        }
        most = max(terms, key=lambda name: terms[name])
        return f"{most} {format_time(terms[most])}"


def _overlapped(one: F64, other: F64, pieces: int) -> float:
    """Return the s in which one kind of link is busy, and a piece is before or after its use."""
    used = np.flatnonzero(one)
    if not len(used):
        return 0.0
    alone = other[: used[0]].sum() + other[used[-1] + 1 :].sum()
    return float(one.sum() + alone / pieces)


@dataclass(frozen=True, eq=False)
class Limits:
    """What a schedule of one piece says about itself in several: no link carries less then.

    busiest: float64[3] s per slot byte that the link used most over the whole call is used.
    """

    profile: Profile
    busiest: F64

    def least(self, block: float, pieces: int, protocol: Protocol) -> float:
        """Return the s a call takes at least in several pieces.

        Every piece goes through all steps, one behind another: so any step is at work pieces - 1
        times more, and all are at least as long as the shortest; what crosses a link crosses it.
        """
        made, i = self.profile, protocol.index
        latency, slot = made.latency(protocol), block / made.chunks
        wire = made.link[i] * slot
        if not len(wire):
            return self.profile.fabric.launch
        whole = float(
            (made.steps * latency).sum() + (pieces - 1) * latency.max() + self.busiest[i] * slot
        )
        steps = float(made.steps.sum()) + pieces - 1
        paced = steps * float((latency + wire / pieces).min())
        return made.fabric.launch + max(whole, paced)

    def likely(self, block: float, protocol: Protocol) -> float:
        """Return about the number of pieces that suits: what overlaps saves, steps more cost.

        In k pieces about (k - 1) steps of the longest latency are added, and of all the steps'
        bytes but the busiest link's 1 / k is left: least at k = sqrt(bytes / latency).
        """
        made, i = self.profile, protocol.index
        slot = block / made.chunks
        latency = float(made.latency(protocol).max(initial=0.0))
        hidden = float((made.steps * made.link[i]).sum() - self.busiest[i]) * slot
        return float(np.sqrt(max(hidden, 0.0) / latency)) if latency > 0 else 1.0


def limits_of(made: Profile) -> Limits:
    """Return the limits a profile of one piece sets."""
    return Limits(made, (made.total_link * made.fabric.pace).max(axis=1, initial=0.0))
