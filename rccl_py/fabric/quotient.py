"""A graph with alike vertices made one: small enough to solve, and the way back.

Owns what may be merged once one vertex is told apart (a source, a sink). Copies that may be
exchanged without moving that vertex are merged, place by place, and capacities added: a flow or a
cut of the small graph is one of the large graph, evenly spread, and as good as any (averaging over
the exchanges). Knows no collective.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .graph import Graph
from .symmetry import Symmetry, apart
from .tables import F64, I64

__all__ = ["Quotient", "around", "merged"]


@dataclass(frozen=True, eq=False)
class Quotient:
    """graph: the small one; label: int64[V], the small vertex of each; edge: int64[m], the small
    edge of each, -1 where both ends are one. whole: the graph it was made of.
    """

    whole: Graph
    graph: Graph
    label: I64
    edge: I64

    def spread(self, flow: F64) -> F64:
        """Return a flow float64[small edges] as one on all edges, evenly: float64[m]."""
        part = self.whole.capacity / self.graph.capacity[self.edge]
        return np.where(self.edge >= 0, flow[self.edge] * part, 0.0)


def merged(graph: Graph, label: I64) -> Quotient:
    """Return `graph` with the vertices of each label made one; labels are any integers."""
    _, first, own = np.unique(label, return_index=True, return_inverse=True)
    size = len(first)
    tail, head = own[graph.tail], own[graph.head]
    kept = np.flatnonzero(tail != head)
    keys, of = np.unique(tail[kept] * size + head[kept], return_inverse=True)
    edge = np.full(len(graph.tail), -1, dtype=np.int64)
    edge[kept] = of
    tail, head = np.divmod(keys, max(size, 1))
    small = replace(
        graph,
        nvertices=size,
        tail=tail.astype(np.int32),
        head=head.astype(np.int32),
        capacity=np.asarray(np.bincount(of, graph.capacity[kept], len(keys)), dtype=np.float64),
        rank=own[graph.rank].astype(np.int32),
        ptr=np.zeros(len(keys) + 1, dtype=np.int64),
        links=np.zeros(0, dtype=np.int64),
        adds=graph.adds[first],
        nests=(),
        sides=(),
        named=lambda v: graph.named(int(first[v])),
    )
    return Quotient(graph, small, own.astype(np.int64), edge)


def around(alike: Symmetry, vertex: int) -> Quotient:
    """Return the graph with all merged that may be exchanged without moving `vertex`.

    vertex: one that stands for copies, as those that name orbits do.
    """
    label = np.arange(alike.graph.nvertices)
    for step in apart(alike, vertex):
        label = step[label]
    return merged(alike.graph, label)
