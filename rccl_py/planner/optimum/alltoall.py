"""The exact optimum of alltoall on any graph: the maximum concurrent flow.

Owns the linear program: every rank sends every other rank f bytes a second, over any paths, and
no edge carries more than it can. One commodity a source, and of alike sources one (averaging over
the automorphisms); one row an orbit of edges:

    maximise f where, for the source of each orbit k, rank v takes f, and
    sum over k of |k| flow_k(orbit of edges) <= |orbit| c

The bound that needs no program: k ranks send the n - k others k (n - k) f over what leaves them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...fabric import F64, I64
from ...fabric.graph import Graph
from ...fabric.symmetry import Symmetry, symmetry
from .cuts import Bools, Optimum, groups
from .programs import Program, View, effort, view

__all__ = ["Alltoall", "alltoall"]

_VARIABLES = 12_000
_WORTH = 1e-9
_SAME = 1e-9
_EFFORT = 8_000_000  # of finding the views: edges, and those between vertices that have no copy


@dataclass(frozen=True, eq=False)
class Alltoall:
    """optimum; sources: int64[k], a vertex of each orbit of ranks; flows: float64[k, m] B/s.

    flows[i] is what source i sends, at the optimum's rate, on every edge; None where no program
    was solved. of: int64[V], the row of each vertex with ranks, -1 for the others.
    """

    optimum: Optimum
    alike: Symmetry | None
    sources: I64
    flows: F64 | None
    of: I64

    def flow(self, vertex: int) -> F64 | None:
        """Return what the ranks at `vertex` send on every edge: float64[m] B/s."""
        if self.flows is None or self.alike is None:
            return None
        graph, perm = self.alike.graph, self.alike.image(vertex)
        key = graph.tail.astype(np.int64) * graph.nvertices + graph.head
        goes = np.searchsorted(key, perm[graph.tail] * graph.nvertices + perm[graph.head])
        found = np.zeros(len(key))
        found[goes] = self.flows[self.of[vertex]]
        return found


def alltoall(graph: Graph, alike: Symmetry | None = None, *, closed: bool = False,
             variables: int = _VARIABLES) -> Alltoall:  # fmt: skip
    """Return the optimum of alltoall.

    closed: by the cuts the graph names only. variables: of the largest program that is solved.
    """
    if closed:
        none = np.zeros(0, dtype=np.int64)
        return Alltoall(_bounded(graph), None, none, None, none)
    alike = alike or symmetry(graph)
    sources = alike.rank_orbits
    of = np.full(graph.nvertices, -1)
    held = np.flatnonzero(graph.weight > 0)
    of[held] = np.searchsorted(sources, alike.vertex_orbit[held])
    bound = _bounded(graph)
    if bound.rate in (0.0, np.inf) or effort(alike) > _EFFORT:
        return Alltoall(bound, alike, sources, None, of)
    views = [view(graph, alike, int(v)) for v in sources]
    rate, flows, filled = _shortest(graph, alike, views)
    if filled:
        every = np.ones(len(graph.tail), dtype=bool)
        exact = Optimum(graph, rate, True, "flows by shortest ways", full=every)
        return Alltoall(exact, alike, sources, flows, of)
    if rate >= bound.rate * (1 - _SAME):
        return Alltoall(replace(bound, exact=True), alike, sources, flows, of)
    solved = None
    if sum(len(v.tail) for v in views) <= variables:
        solved = _solved(graph, alike, views)
    if solved is None:
        return Alltoall(bound, alike, sources, None, of)
    rate, flows, full = solved
    exact = Optimum(graph, rate, True, "the linear program of concurrent flows", full=full)
    if rate >= bound.rate * (1 - 1e-7):  # HiGHS's tolerance
        exact = replace(bound, exact=True)
    return Alltoall(exact, alike, sources, flows, of)


def _bounded(graph: Graph) -> Optimum:
    """Return the least bound by the groups the graph names."""
    n, best = graph.nranks, Optimum(graph, np.inf, True, "all ranks are at one vertex")
    for group in groups(graph):
        share = group.ranks * (n - group.ranks) / n
        for width, away in ((group.out, False), (group.into, True)):
            k = int((width / share).argmin())
            rate = float(width[k] / share[k])
            if rate < best.rate:
                how, inside = "a set sends what the others take", group.inside(k) ^ away
                best = Optimum(graph, rate, False, how, inside, float(share[k]), float(width[k]))
    return best


def _shortest(graph: Graph, alike: Symmetry, views: list[View]) -> tuple[float, F64, bool]:
    """Return what shortest ways alone reach, split by capacity: rate, flows, all edges full.

    Where that is what a cut allows no program is needed, and none where all edges are full: each
    byte crosses as few as it can. Most machines are so.
    """
    orbits, first, members = np.unique(alike.edge_orbit, return_index=True, return_counts=True)
    width, load, found = graph.capacity[first], np.zeros(len(orbits)), []
    for seen in views:
        held = np.bincount(seen.label, graph.weight, seen.size).astype(np.float64)
        flow = _ways(seen, held, width[seen.orbit])
        flow *= graph.weight[seen.centre] / graph.nranks
        sources = (alike.vertex_orbit == alike.vertex_orbit[seen.centre]).sum()
        load += np.bincount(seen.orbit, flow * sources, len(orbits))
        found.append(seen.spread(flow))
    used = load > 0
    rates = width[used] * members[used] / load[used]
    rate = float(rates.min())
    filled = bool(used.all() and rates.max() <= rate * (1 + _SAME))
    return rate, np.stack(found) * rate, filled


def _ways(seen: View, weight: F64, width: F64) -> F64:
    """Return the flow on each edge of a view that takes every rank one unit by shortest ways.

    weight: float64[vertices], the ranks at each; width: float64[edges], B/s of one of an edge's.
    """
    far = np.full(seen.size, -1)
    far[seen.own], distance = 0, 0
    while True:
        reached = seen.head[(far[seen.tail] == distance) & (far[seen.head] < 0)]
        if not len(reached):
            break
        distance += 1
        far[reached] = distance
    flow, passing = np.zeros(len(seen.tail)), weight.copy()
    ahead, wide = far[seen.head] == far[seen.tail] + 1, width * seen.count
    into = np.bincount(seen.head[ahead], wide[ahead], seen.size)
    for layer in range(distance, 0, -1):
        at = np.flatnonzero(ahead & (far[seen.head] == layer))
        flow[at] = passing[seen.head[at]] * wide[at] / into[seen.head[at]]
        passing += np.bincount(seen.tail[at], flow[at], seen.size)
    return flow


def _solved(graph: Graph, alike: Symmetry,
            views: list[View]) -> tuple[float, F64, Bools] | None:  # fmt: skip
    """Return the rate, what the source of each view sends on every edge, and the full edges."""
    scale = float(graph.capacity.max())
    orbits, first, members = np.unique(alike.edge_orbit, return_index=True, return_counts=True)
    program, n = Program(), graph.nranks
    aim = program.add(1)  # n f, in units of the widest edge
    limit = program.rows(len(orbits), graph.capacity[first] / scale, equal=False)
    flows = []
    for seen in views:
        flow = program.add(len(seen.tail))
        flows.append(flow)
        row = program.rows(seen.size - 1, equal=True)
        at, column, sign = seen.balance()
        program.put(row + at, flow + column, sign, equal=True)
        taken = np.bincount(seen.label, graph.weight, seen.size) * graph.weight[seen.centre] / n
        other = np.delete(taken, seen.own)
        program.put(row + np.arange(len(other)), aim, other, equal=True)
        alike_sources = alike.vertex_orbit == alike.vertex_orbit[seen.centre]
        sources = int(alike_sources.sum())
        program.put(limit + seen.orbit, flow + np.arange(len(seen.tail)),
                    sources / members[seen.orbit], equal=False)  # fmt: skip
    answer = program.solve(aim)
    if answer is None:
        return None
    found, worth = answer
    spread: list[F64] = [
        seen.spread(found[flow : flow + len(seen.tail)]) * scale for seen, flow in zip(views, flows)
    ]
    orbit = np.searchsorted(orbits, alike.edge_orbit)
    full = worth[limit : limit + len(orbits)] > _WORTH
    return float(found[aim]) * scale, np.stack(spread), full[orbit]
