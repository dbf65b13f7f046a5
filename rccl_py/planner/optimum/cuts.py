"""Cuts of a graph: sets of vertices, what must cross them, and how much can.

Owns what an optimum says, and the sets that are looked at first: single ranks, and the groups the
graph's nests name. Every set is a cut, so whatever set is found, what it bounds is true. Knows no
flow and no linear program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...fabric import F64, I64
from ...fabric.graph import Graph

__all__ = [
    "VERTICES",
    "Groups",
    "Optimum",
    "all_leaving",
    "every_set",
    "groups",
    "leaving",
]

VERTICES = 12
"""Vertices of a graph up to which every set is looked at, and no flow is needed."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Optimum:
    """rate: B/s of algbw (rccl-tests' size over time) that is possible, and no more is.

    share: the part of the size that must leave the vertices `inside` (bool[V]), over `capacity`
    B/s; rate is capacity / share where `exact` is by a cut. exact: whether a schedule reaches the
    rate; else it is the best bound that was found. how: what shows it, for people. inside is None
    where no one cut says so: then full, bool[m], are the edges whose capacity it depends on, share
    of the size over `capacity` for several sets together, and 0 where a linear program says so.
    """

    graph: Graph
    rate: float
    exact: bool
    how: str
    inside: Bools | None = None
    share: float = 0.0
    capacity: float = 0.0
    full: Bools | None = None

    @property
    def ranks(self) -> int:
        """Ranks inside the cut, 0 where there is none."""
        return 0 if self.inside is None else int(self.graph.weight[self.inside].sum())

    @property
    def text(self) -> str:
        """The bottleneck in words, without the names of links."""
        from .words import words

        return words(self)


def leaving(graph: Graph, inside: Bools) -> float:
    """Return the B/s of the edges that leave a set of vertices (bool[V])."""
    crossing = inside[graph.tail] & ~inside[graph.head]
    return float(graph.capacity[crossing].sum())


def every_set(vertices: int, outside: int) -> Bools:
    """Return all sets of so few vertices that one is outside of: bool[sets, vertices]."""
    others = np.delete(np.arange(vertices), outside)
    sets = np.zeros((1 << len(others), vertices), dtype=bool)
    sets[:, others] = np.arange(len(sets))[:, None] >> np.arange(len(others)) & 1
    return sets


def all_leaving(graph: Graph, sets: Bools) -> F64:
    """Return the B/s that leave each of some sets: float64[sets]."""
    crossing = sets[:, graph.tail] & ~sets[:, graph.head]
    return np.asarray(crossing @ graph.capacity, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Groups:
    """Sets of vertices side by side: label int64[V], -1 outside all.

    ranks: int64[k], in each; out, into: float64[k], B/s that leave and enter each.
    """

    name: str
    label: I64
    ranks: I64
    out: F64
    into: F64

    def inside(self, k: int) -> Bools:
        """Return group k as a set of vertices."""
        return np.asarray(self.label == k)


def groups(graph: Graph) -> list[Groups]:
    """Return the single ranks, and the groups of every nest that hold some ranks but not all."""
    single = np.where(graph.weight > 0, np.arange(graph.nvertices), -1)
    named = [("rank", single), *((nest.name, nest.unit) for nest in graph.nests)]
    named += list(graph.sides)
    found = [grouped(graph, name, label) for name, label in named]
    return [g for g in found if len(g.ranks)]


def grouped(graph: Graph, name: str, unit: I64) -> Groups:
    """Return groups by a number for each vertex, -1 for none; those without ranks are left out."""
    held = np.bincount(unit[graph.rank][unit[graph.rank] >= 0], minlength=1)
    good = np.flatnonzero((held > 0) & (held < graph.nranks))
    number = np.full(max(len(held), int(unit.max(initial=-1)) + 1) + 1, -1)
    number[good] = np.arange(len(good))
    label = number[unit]
    one, two = label[graph.tail], label[graph.head]
    rate = np.where(one != two, graph.capacity, 0.0)  # of what stays inside nothing counts
    out, into = (
        np.bincount(ends[ends >= 0], rate[ends >= 0], len(good)).astype(np.float64)
        for ends in (one, two)
    )
    return Groups(name, label, held[good], out, into)
