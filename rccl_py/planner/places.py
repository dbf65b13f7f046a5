"""Where ranks are, and what a stage of an algorithm sends: the words of formulas of volumes.

Owns Stage and Places. Knows how many ranks there are, which node each is on, the levels of the
machine, and how many links a torus has between two; no algorithm, no size and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..fabric import I64, Fabric, Wired
from ..fabric.torus import Torus
from ..schedule import I32
from .rings import Rings
from .shape import Shape

__all__ = ["Ints", "Places", "Sent", "Stage", "places_of"]

Ints = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Stage:
    """What all ranks together send in `steps` steps in a row: blocks between nodes, and inside.

    A block is what one rank contributes, or sends one peer. far_hops: how many of the steps wait
    for a hop between nodes. far_messages, messages: what is posted between nodes and inside them,
    by all ranks in all steps. message: blocks of the largest message of a step, on average. many:
    whether a rank sends to three others or more at once. node, rank: blocks that leave one node
    (or enter it), and that leave one rank (or enter it) for others of its node, in all steps.
    walks: whether the data goes from node to node, all of it through one before the next.
    """

    far: float
    near: float
    steps: int = 1
    far_hops: int = 0
    far_messages: float = 0.0
    messages: float = 0.0
    message: float = 0.0
    many: bool = False
    node: float = 0.0
    rank: float = 0.0
    walks: bool = False

    def times(self, part: float) -> Stage:
        """Return the same of parts of a block."""
        return replace(
            self,
            far=self.far * part,
            near=self.near * part,
            message=self.message * part,
            node=self.node * part,
            rank=self.rank * part,
        )


@dataclass(frozen=True, eq=False)
class Places:
    """Where ranks are. node: int[n], of each. nodes: int32[N, g], None where they are uneven.

    tiers: as in a Recipe. grid: whether the ranks are a torus. ring, tree: the largest part of the
    data that one ring carries, and one tree of an allreduce; 0 where that is not known. links: of
    two columns of ranks, the links inside nodes from each to the other, None: one each; alike:
    whether they are as many in all from any rank. root: of a call that has one.
    """

    node: Ints
    nodes: I32 | None
    tiers: I32 | None
    grid: bool = False
    ring: float = 0.0
    tree: float = 0.0
    links: Callable[[Ints, Ints], Ints] | None = None
    alike: bool = False
    root: int = 0

    def of(self, root: int) -> Places:
        """Return the same for another root."""
        return replace(self, root=root)

    @property
    def n(self) -> int:
        """Ranks."""
        return len(self.node)

    @cached_property
    def count(self) -> int:
        """Nodes."""
        return len(np.unique(self.node))

    @property
    def g(self) -> float:
        """Ranks of a node."""
        return self.n / self.count

    @cached_property
    def pairs(self) -> tuple[float, float]:
        """Ordered pairs of different ranks: on different nodes, and on one."""
        sizes = np.unique(self.node, return_counts=True)[1].astype(np.float64)
        inside = float((sizes**2).sum())
        return self.n**2 - inside, inside - self.n

    @cached_property
    def crossed(self) -> float:
        """Links inside nodes that all pairs of one node take together."""
        if self.links is None:
            return self.pairs[1]
        ranks = np.arange(self.n)
        if self.alike:
            return float(self.n * self.links(ranks * 0, ranks).sum())
        return float(sum(int(self.links(ranks, np.roll(ranks, k)).sum()) for k in range(1, self.n)))

    @property
    def everyone(self) -> Stage:
        """The stage in which every rank sends one block to every other at once."""
        far, near = self.pairs
        return Stage(far, self.crossed, 1, int(self.count > 1), far, near, 1.0, self.n > 3)

    def turn(self, partner: Ints, blocks: float, steps: int = 1) -> Stage:
        """Return the stage in which rank r sends `blocks` to partner[r], `steps` times."""
        return self.sent(np.arange(self.n), partner, blocks, steps)

    def sent(self, src: Ints, dst: Ints, blocks: float, steps: int = 1) -> Stage:
        """Return the stage in which src[i] sends `blocks` to dst[i], `steps` times."""
        crosses = int((self.node[src] != self.node[dst]).sum())
        far, near = crosses * steps, (len(src) - crosses) * steps
        wide = near if self.links is None else int(self.links(src, dst).sum()) * steps
        return Stage(far * blocks, wide * blocks, steps, steps * (crosses > 0), far, near, blocks)


Sent = Callable[[Places], Iterator[Stage]]
"""Yields what an algorithm sends, stage by stage, in order."""


def places_of(fabric: Fabric, nodes: I32 | None, shape: Shape, rings: Rings, trees: int) -> Places:
    """Return where the ranks of a fabric are. nodes: int32[N, g]. trees: of an allreduce."""
    node = fabric.node
    if nodes is not None:  # as two-level algorithms see them
        node = np.empty_like(node)
        node[nodes] = np.arange(len(nodes))[:, None]
    ring = float(rings.weights.max() / rings.weights.sum())
    links, alike = _links_between(fabric)
    grid = shape.grid is not None
    return Places(node, nodes, shape.tiers, grid, ring, 1.0 / trees, links, alike)


def _links_between(fabric: Fabric) -> tuple[Callable[[Ints, Ints], I64] | None, bool]:
    """Return what counts the links from each rank to another where accelerators relay, else None.

    Only in one domain: there all is inside. And whether they are as many in all from any rank.
    """
    inside = fabric.domain.inside
    if fabric.copies > 1 or not isinstance(inside, Wired):
        return None, False
    graph, local = inside.graph, fabric.local.astype(np.int64)
    every = np.array_equal(np.sort(local), np.arange(fabric.domain.ngpus))
    alike = isinstance(graph, Torus) and graph.turns and every
    return (lambda src, dst: graph.hops(local[src], local[dst])), alike
