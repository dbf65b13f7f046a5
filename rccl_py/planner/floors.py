"""What an algorithm takes at least, without building it: sums that never exceed the estimate.

Owns the least time of an algorithm on a machine, from what it must send (rccl_py.planner.volumes)
and what all ports of a kind carry together, and the least time of a schedule in several pieces,
from its profile in one. Knows no route.

A floor is launch + hops and messages of every stage + the largest of (bytes between nodes over all
NICs' cables, bytes inside nodes over all links that leave an accelerator, the largest message of
every step by itself, what one node or rank must send or get). Each is a part of what
rccl_py.timing.estimate adds up: the sum of the maxima of steps is no less than the maximum of the
sums over links, and the busiest link carries no less than the mean, or than any one message puts
on it. In k pieces the first piece still goes through every stage before, and the last through every
stage after, those that use the busier of the two kinds of links, or that have the largest message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..algorithms import Algorithm
from ..fabric import F64, I64, Domain, Fabric, Listed
from ..links import Protocol
from ..timing import Profile
from ..units import format_time
from .places import Places, Stage
from .volumes import stages_of

Bools = npt.NDArray[np.bool_]

__all__ = ["PIECES", "Floor", "Limits", "Machine", "limits_of"]

PIECES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The numbers of pieces that are tried."""


@dataclass(frozen=True, slots=True)
class Floor:
    """seconds: no less is estimated. why: the term that is most of it, for people. waits: s of hops
    and messages among them, where all is done in one piece.
    """

    seconds: float
    why: str
    waits: float = 0.0


@dataclass(frozen=True, eq=False)
class Machine:
    """What floors ask of a fabric: where its ranks are, what it carries, how long hops take."""

    fabric: Fabric
    places: Places

    def rooted(self, root: int) -> Machine:
        """Return the same for calls from or to `root`."""
        return self if root == self.places.root else replace(self, places=self.places.of(root))

    @cached_property
    def rates(self) -> tuple[tuple[F64, F64], tuple[F64, F64]]:
        """B/s of payload all NICs' cables, and all links out of accelerators, carry: [3] each.

        Of ranks that serve few peers, and then of those that serve many.
        """
        fabric = self.fabric
        found = []
        for part in (1.0, fabric.spread):
            per_link = part / fabric.pace
            own, far = np.zeros(3), np.zeros(3)
            for domain, nodes in self._kinds:
                out = np.flatnonzero((domain.tail >= 0) & domain.joins)
                first = fabric.first_link[nodes[0]]
                own += len(nodes) * per_link[:, first + out].sum(axis=1)
                far += len(nodes) * per_link[:, self._cables(domain, nodes[0])].sum(axis=1)
            found.append((far, own))
        return found[0], found[1]

    @cached_property
    def _kinds(self) -> list[tuple[Domain, I64]]:
        """The kinds of nodes that hold ranks, and those nodes."""
        fabric, held = self.fabric, np.unique(self.fabric.node)
        return [(fabric.domains[int(kind)], held[fabric.kind[held] == kind].astype(np.int64))
                for kind in np.unique(fabric.kind[held])]  # fmt: skip

    def _cables(self, domain: Domain, node: int) -> I64:
        """Return the cables out of the NICs of a node."""
        count = domain.nnics if self.fabric.ports else 0
        return np.arange(count) + int(self.fabric.cables + self.fabric.first_port[node])

    @cached_property
    def ends(self) -> tuple[F64, F64]:
        """The most B/s of payload that leave or enter one node over its NICs, and one rank inside.

        float64[3] each.
        """
        node, rank = np.zeros(3), np.zeros(3)
        for domain, nodes in self._kinds:
            each = 1.0 / self.fabric.pace
            node = np.maximum(node, each[:, self._cables(domain, nodes[0])].sum(axis=1))
            own = each[:, self.fabric.first_link[nodes[0]] :][:, : domain.nlinks]
            for end in (domain.tail, domain.head):
                used = np.flatnonzero((end >= 0) & domain.joins)
                each_rank = [np.bincount(end[used], row[used], 1).max() for row in own]
                rank = np.maximum(rank, each_rank)
        return node, rank

    @cached_property
    def alone(self) -> tuple[F64, F64]:
        """The least s a byte of one message takes between nodes, and inside: float64[3] each."""
        node, rank = self.ends
        far, near = node.copy(), np.zeros(3)
        domains = [domain for domain, _ in self._kinds]
        rails = {np.unique(d.rail).tobytes() for d in domains}
        if all((np.diff(d.attach) > 0).all() for d in domains) and len(rails) == 1:
            far = np.zeros(3)  # a message enters by the NICs of the rank that gets it
            for domain, nodes in self._kinds:
                each = 1.0 / self.fabric.pace[:, self._cables(domain, nodes[0])]
                holder = domain.holder(np.arange(len(domain.nic)))
                for i, row in enumerate(each if each.size else np.zeros((3, domain.nnics))):
                    far[i] = max(far[i], np.bincount(holder, row[domain.nic]).max(initial=0.0))
        for domain, nodes in self._kinds:
            near = np.maximum(near, self._listed(domain, int(nodes[0]), rank))
        spent = [np.divide(1.0, r, out=np.zeros(3), where=r > 0) for r in (far, near)]
        return spent[0], spent[1]

    def _listed(self, domain: Domain, node: int, rank: F64) -> F64:
        """Return the most B/s of one message inside a node: float64[3]. rank: of all messages."""
        if not isinstance(domain.inside, Listed):
            return rank
        table, first = domain.inside.found.table, self.fabric.first_link[node]
        if not len(table.link):
            return rank
        starts = table.ptr[:-1][np.diff(table.ptr) > 0]
        spent = table.share * self.fabric.pace[:, first + table.link]
        return np.asarray(1.0 / np.maximum.reduceat(spent, starts, axis=1).min(axis=1))

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

    def floor(
        self, algorithm: Algorithm, block: float, protocol: Protocol, links: float = 0.0
    ) -> Floor:
        """Return what a call of blocks of `block` bytes takes at least by an algorithm.

        links: s its bytes take on the links, whatever does it.
        """
        stages = self._stages(algorithm)
        if stages is None:
            seconds = links and self.fabric.launch + links
            return Floor(seconds, f"the machine's links take {format_time(links)}" if links else "")
        timed = _Timed.of(self, stages, block, protocol)
        pieces = np.array([k for k in PIECES if k <= algorithm.pieces], dtype=np.float64)
        seconds = self.fabric.launch + float(timed.least(pieces, links).min())
        return Floor(seconds, timed.why(links), float(timed.waits.sum()))

    def _stages(self, algorithm: Algorithm) -> F64 | None:
        """Return the stages of an algorithm as columns; None where nothing is known of it."""
        key = algorithm.collective, algorithm.name
        if key not in self._known:
            stages = stages_of(*key, self.places)
            self._known[key] = None if stages is None else self.columns(stages)
        return self._known[key]

    def columns(self, stages: list[Stage]) -> F64:
        """Return stages as columns: float64[11, stages].

        far, near, far_hops, steps, message, node, rank; messages a rank posts between nodes and
        inside; many, walks. In one node all is inside.
        """
        far, near, hops, steps, message, node, rank, away, here, many, walks = np.array(
            [
                (s.far, s.near, s.far_hops, s.steps, s.message, s.node, s.rank, s.far_messages,
                 s.messages, s.many, s.walks)
                for s in stages
            ],
            dtype=np.float64,
        ).T  # fmt: skip
        if self.one_node:
            near, far, hops, node = near + far, far * 0, hops * 0, node * 0
            away, here = away * 0, away + here
        n = self.places.n
        posted = away / n, here / n
        return np.array([far, near, hops, steps, message, node, rank, *posted, many, walks])

    @cached_property
    def _known(self) -> dict[tuple[str, str], F64 | None]:
        return {}


_SCALED = np.array([1, 1, 0, 0, 1, 1, 1])[:, None]
"""Which of the first columns of Machine.columns are blocks."""


@dataclass(frozen=True, eq=False, slots=True)
class _Timed:
    """Stages in s, float64[stages] each: hops and messages, bytes between nodes and inside, the
    largest message of every step by itself, of one step of it, and what one node or rank must do.

    walks: bool[stages], which go from node to node. nodes, ranks: of the machine, and of a node.
    """

    waits: F64
    far: F64
    near: F64
    steps: F64
    messages: F64
    largest: F64
    peak: F64
    walks: Bools
    nodes: int
    ranks: float

    @classmethod
    def of(cls, m: Machine, columns: F64, block: float, protocol: Protocol) -> _Timed:
        """Return the stages of a call of blocks of `block` bytes. columns: of Machine.columns."""
        i = protocol.index
        far, near, hops, steps, message, node, rank = columns[:7] * _SCALED * block + (
            columns[:7] * (1 - _SCALED)
        )
        many = columns[9].astype(np.int64)
        far_rate, rate = np.array(m.rates)[:, :, i].T
        (far_hop, hop), (far_post, post) = m.hops, m.posts
        waits = hops * far_hop[i] + (steps - hops) * hop[i]
        waits = waits + columns[7] * far_post + columns[8] * post
        alone, inside = m.alone[0][i], m.alone[1][i]
        rest = np.where(far > 0, min(alone, inside), inside)
        largest = message * np.where(hops > 0, max(alone, inside), rest)
        messages = message * (hops * alone + (steps - hops) * rest)
        one_node, one_rank = (end[i] for end in m.ends)
        peak = np.maximum(node / (one_node or np.inf), rank / (one_rank or np.inf))
        return cls(
            waits,
            far / far_rate[many] if far_rate[0] else far * 0,
            near / rate[many] if rate[0] else near * 0,
            steps,
            messages,
            largest,
            peak,
            columns[10] > 0,
            m.places.count,
            m.places.g,
        )

    def least(self, pieces: F64, links: float) -> F64:
        """Return the s the stages take at least in so many pieces. pieces: float64[k]."""
        # A stage is at work for pieces - 1 steps more than alone; before it does, and after, the
        # first piece and the last go through the others.
        waits = self.waits.sum() + (pieces - 1) * (self.waits / self.steps).max()
        far, near = self.far[:, None], self.near[:, None]
        if self.walks.any():  # pieces are a hop apart, so few nodes are at work at once
            idle = np.maximum(self.nodes / (pieces // self.ranks + 3), 1.0)
            idle = np.where(self.walks[:, None], idle, 1.0)
            far, near = far * idle, near * idle
        alone = (self.messages.sum() + (pieces - 1) * self.largest.max()) / pieces
        least = np.maximum(alone, max(self.peak.max(), links))
        for one, other in ((far, near), (near, far)):
            least = np.maximum(least, _overlapped(one, other, pieces))
        least = np.maximum(least, self._walked(pieces))
        whole = np.maximum.reduce([far[:, 0], near[:, 0], self.messages, self.peak]).sum()
        return np.asarray(waits + np.where(pieces == 1, max(whole, links), least))

    def _walked(self, pieces: F64) -> F64:
        """Return the s in which the pieces of what walks fill all of some node: float64[k].

        Rings start in one node, but not all at the same place of it: a window of 3 g - 2 hops
        holds a whole node of g ranks in every ring.
        """
        steps, near, hops = self.steps[self.walks], self.near[self.walks], 3 * (self.ranks - 1)
        full = np.maximum(steps[:, None] + pieces - 1 - 2 * hops, 0) / pieces
        full = np.where(np.minimum(steps[:, None], pieces) > hops, full, 0.0)
        return np.asarray((full * near[:, None]).max(axis=0, initial=0.0))

    def why(self, links: float) -> str:
        """Return what most of it is, for people."""
        terms = {
            "the machine's links take": links,
            f"{int(self.steps.sum())} steps of hops take": float(self.waits.sum()),
            "its bytes keep all NICs busy for": float(self.far.sum()),
            "its bytes keep all scale-up links busy for": float(self.near.sum()),
            "its largest messages alone take": float(self.largest.max()),
            "what one node or rank sends or gets takes": float(self.peak.max()),
        }
        most = max(terms, key=lambda name: terms[name])
        return f"{most} {format_time(terms[most])}"


def _overlapped(one: F64, other: F64, pieces: F64) -> F64:
    """Return the s in which one kind of link is busy, and a piece is before or after its use.

    float64[k]. one, other: float64[stages, k or 1].
    """
    used = np.flatnonzero(one[:, 0])
    if not len(used):
        return pieces * 0
    alone = other[: used[0]].sum(axis=0) + other[used[-1] + 1 :].sum(axis=0)
    return np.asarray(one.sum(axis=0) + alone / pieces)


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
