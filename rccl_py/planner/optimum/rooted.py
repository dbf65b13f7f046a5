"""The optima of collectives with a root: broadcast, reduce, gather, scatter.

Owns which cut bounds each. A broadcast sends all to every rank: the narrowest cut between the root
and any rank (Edmonds, "Edge-disjoint branchings", 1973). A gather brings every rank's own to the
root: k of n ranks send k / n of the size over what leaves them, one flow from all of them. Reduce
and scatter are those two with every edge turned round. Roots that are alike have the same optimum:
it is found for one, and its cut is moved to the other.
"""

from __future__ import annotations

import numpy as np

from ...fabric.graph import Graph
from ...fabric.quotient import around, merged
from ...fabric.symmetry import Symmetry, stabiliser, symmetry
from .allgather import converging, of_turned
from .cuts import (
    VERTICES,
    Bools,
    Optimum,
    all_leaving,
    every_set,
    groups,
    leaving,
)
from .flows import Network
from .programs import effort

__all__ = ["broadcast", "gather", "reduce", "scatter"]

_EFFORT = 16_000_000  # of looking at all sinks, as alltoall's views
_FOLDS = 4_000_000  # up to which no solver is loaded for it
_FLOW = 60  # the effort of a flow for each edge that is left
_TRIED = "the cuts tried"


def broadcast(graph: Graph, root: int = 0, alike: Symmetry | None = None, *,
              closed: bool = False) -> Optimum:  # fmt: skip
    """Return the optimum of broadcast from a rank. closed: by the cuts the graph names only."""
    if not (graph.weight[np.arange(graph.nvertices) != graph.rank[root]] > 0).any():
        return Optimum(graph, np.inf, True, "all ranks are at one vertex")
    if closed:
        inside, best = _leaving_least(graph, int(graph.rank[root]))
        return Optimum(graph, best, False, _TRIED, inside, 1.0, best)
    alike = alike or symmetry(graph)
    source = int(alike.vertex_orbit[graph.rank[root]])
    inside, best = _leaving_least(graph, source)
    sinks: list[int] = []
    exact = effort(alike) <= _EFFORT
    if exact:
        held = stabiliser(alike, source)
        sinks = [int(v) for v in held.rank_orbits if v != source]
        folds = effort(held) <= _FOLDS
        exact = folds or effort(held, each=_FLOW) <= _EFFORT
    for sink in sinks if exact else []:
        width, found = _between(held, source, sink, folds=folds)
        if width < best * (1 - 1e-12):
            best, inside = width, found
    how = f"a smallest cut for each of {len(sinks)} sorts of rank" if exact else _TRIED
    inside = _moved(alike, int(graph.rank[root]), inside)
    return Optimum(graph, best, exact, how, inside, 1.0, best)


def _between(held: Symmetry, source: int, sink: int, *, folds: bool) -> tuple[float, Bools]:
    """Return the least B/s that separates two vertices, and the set with the source inside.

    held: the symmetry of the graph where the source may not be moved. folds: make one of what is
    alike from both first.
    """
    graph = held.graph
    if folds:
        folded = merged(graph, stabiliser(held, sink).vertex_orbit)
        if folded.graph.nvertices <= VERTICES:
            sets = every_set(folded.graph.nvertices, int(folded.label[sink]))
            sets = sets[sets[:, folded.label[source]]]
            width = all_leaving(folded.graph, sets)
            best = int(width.argmin())
            return float(width[best]), sets[best][folded.label]
    small = around(held, sink)
    ends = (int(small.label[v]) for v in (source, sink))
    least, found = Network.of(small.graph).largest(*ends)
    return least, found[small.label]


def _leaving_least(graph: Graph, source: int) -> tuple[Bools, float]:
    """Return the set with `source` inside and not all ranks that least leaves, of those named."""
    inside = np.zeros(graph.nvertices, dtype=bool)
    inside[source] = True
    best = leaving(graph, inside)
    for group in groups(graph):
        own = np.arange(len(group.ranks)) == group.label[source]
        for width, away in ((np.where(own, group.out, np.inf), False),
                            (np.where(own, np.inf, group.into), True)):  # fmt: skip
            k = int(width.argmin())
            if width[k] < best:
                best, inside = float(width[k]), group.inside(k) ^ away
    return inside, best


def _moved(alike: Symmetry, vertex: int, inside: Bools) -> Bools:
    """Return a set around the vertex that names an orbit as one around `vertex`."""
    if alike.vertex_orbit[vertex] == vertex:
        return inside
    found = np.zeros_like(inside)
    found[alike.image(vertex)] = inside
    return found


def gather(graph: Graph, root: int = 0, alike: Symmetry | None = None, *,
           closed: bool = False) -> Optimum:  # fmt: skip
    """Return the optimum of gather to a rank. closed: by the cuts the graph names only."""
    alike = alike if closed else alike or symmetry(graph)
    own = int(graph.rank[root])
    sink, n = own if alike is None else int(alike.vertex_orbit[own]), graph.nranks
    inside = np.ones(graph.nvertices, dtype=bool)
    inside[sink] = False
    if not (graph.weight[inside] > 0).any():
        return Optimum(graph, np.inf, True, "all ranks are at one vertex")
    for nest in graph.nests:
        near = (nest.unit == nest.unit[sink]) & (nest.unit[sink] >= 0)
        inside = _worse(graph, inside, ~near)
    if leaving(graph, inside) and alike is not None:
        inside = _moved(alike, own, converging(stabiliser(alike, sink), sink, inside))
    share, width = float(graph.weight[inside].sum()) / n, leaving(graph, inside)
    how = _TRIED if alike is None else "a smallest cut around the root"
    return Optimum(graph, width / share, alike is not None, how, inside, share, width)


def _worse(graph: Graph, one: Bools, two: Bools) -> Bools:
    """Return the set whose ranks take longer to leave it; the first where nothing must leave."""
    held = [float(graph.weight[inside].sum()) for inside in (one, two)]
    rates = [leaving(graph, inside) for inside in (one, two)]
    return two if held[1] * rates[0] > held[0] * rates[1] else one


def reduce(graph: Graph, root: int = 0, alike: Symmetry | None = None, *,
           closed: bool = False) -> Optimum:  # fmt: skip
    """Return the optimum of reduce to a rank."""
    turned = graph.reversed()
    known = None if alike is None else alike.of(turned)
    return of_turned(graph, broadcast(turned, root, known, closed=closed))


def scatter(graph: Graph, root: int = 0, alike: Symmetry | None = None, *,
            closed: bool = False) -> Optimum:  # fmt: skip
    """Return the optimum of scatter from a rank."""
    turned = graph.reversed()
    known = None if alike is None else alike.of(turned)
    return of_turned(graph, gather(turned, root, known, closed=closed))
