"""The exact optimum of allgather, and of reduce_scatter, on any graph with capacities.

Owns the iteration over cuts: T = (M / N) max |S| / B(S) over sets S of vertices that not all ranks
are in, with |S| the ranks in S and B(S) the capacity leaving it (Zhao et al., "ForestColl", 2024:
out-trees that reach this can always be packed). Dinkelbach's method (Management Science, 1967): a
guess of the maximum is a flow problem (each rank supplies one unit, each sink takes all), whose
smallest cut is a better guess, or shows there is none. One sink for each orbit is asked.

A switch need not copy for that, provided it lets out as much as it takes in; of one that does not,
the bound still holds, and is exact where a part of its links that is even reaches it (`even`).

A reduce_scatter is an allgather on the graph with all edges turned round.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...fabric.graph import Graph
from ...fabric.quotient import Quotient, around, merged
from ...fabric.symmetry import Symmetry, stabiliser, symmetry
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

__all__ = ["allgather", "converging", "even", "of_turned", "reduce_scatter"]

_SINKS = 400  # sinks that are asked; a machine of more orbits is bounded by the cuts looked at
_WORK = 40_000_000  # edges of all flow problems together: some seconds
_FOLDS = 1_000_000  # effort up to which all that is alike from a sink is made one first
_BETTER = 1 + 1e-12
_SAME = 1e-9
_ROUNDS = 64  # of narrowing; chains of switches need one each


def allgather(graph: Graph, alike: Symmetry | None = None, *, closed: bool = False) -> Optimum:
    """Return the optimum of allgather. alike: the symmetry of the graph, where it is known.

    closed: look at no cuts but single ranks and the groups the graph's nests name. Of a machine
    of equal parts of equal parts these are all that count: what must enter k parts of a kind grows
    no faster with k than what can, so one part, or all but one, decides.
    """
    n = graph.nranks
    best, inside = 0.0, np.ones(graph.nvertices, dtype=bool)
    for group in groups(graph):
        for held, width, away in (
            (n - group.ranks, group.into, True),
            (group.ranks, group.out, False),
        ):
            if not width.all():
                return _apart(graph, group.inside(int(width.argmin())) ^ away)
            k = int((held / width).argmax())
            if held[k] / width[k] > best * _BETTER:
                best, inside = float(held[k] / width[k]), group.inside(k) ^ away
    if not best:
        return Optimum(graph, np.inf, True, "all ranks are at one vertex")
    if closed:
        return _of(graph, inside, False, "one rank, or one part of each kind")
    alike = alike or symmetry(graph)
    sinks, exact, evened = alike.rank_orbits, True, even(graph)
    if len(sinks) > _SINKS or len(sinks) * len(graph.tail) > _WORK:
        sinks, exact = sinks[:0], False
    for sink in sinks.tolist():
        inside = converging(alike, sink, inside)
    rate = _of(graph, inside, True, "").rate
    exact = exact and (evened is None or _rate(evened, alike) >= rate * (1 - _SAME))
    how = f"a smallest cut for each of {len(sinks)} sorts of rank" if exact else "the cuts tried"
    return _of(graph, inside, exact, how)


def _rate(graph: Graph, alike: Symmetry) -> float:
    """Return the optimum of a graph with the vertices, ranks and symmetry of another."""
    return allgather(graph, replace(alike, graph=graph)).rate


def even(graph: Graph) -> Graph | None:
    """Return a part of the graph whose switches let out as much as they take in, None if all do.

    Where what enters a switch is less than what leaves it, trees could only use all that leaves if
    it copied, and switches do not. The wider side is narrowed, all its edges alike, until both are
    as wide: what this part can is possible, and what the whole graph cannot, is not.
    """
    plain, rate = graph.weight == 0, graph.capacity
    for _ in range(_ROUNDS):
        into, out = (np.bincount(ends, rate, graph.nvertices) for ends in (graph.head, graph.tail))
        least, most = np.minimum(into, out), np.maximum(into, out)
        odd = plain & (most > least * (1 + _SAME))
        if not odd.any():
            break
        narrow = [np.where(odd, least / np.maximum(side, 1e-300), 1.0) for side in (out, into)]
        rate = rate * np.minimum(narrow[0][graph.tail], narrow[1][graph.head])
    if rate is graph.capacity:
        return None
    kept = np.flatnonzero(rate > 0)
    return replace(
        graph,
        tail=graph.tail[kept],
        head=graph.head[kept],
        capacity=rate[kept],
        ptr=np.zeros(len(kept) + 1, dtype=np.int64),
        links=graph.links[:0],
    )


def _of(graph: Graph, inside: Bools, exact: bool, how: str) -> Optimum:
    """Return what a set says: its ranks' blocks must leave it."""
    share, width = float(graph.weight[inside].sum()) / graph.nranks, leaving(graph, inside)
    return Optimum(graph, width / share, exact, how, inside, share, width)


def converging(alike: Symmetry, sink: int, inside: Bools) -> Bools:
    """Return the set that bounds what `sink` can get in, `inside` where no other is worse."""
    whole = alike.graph
    if effort(alike) <= _FOLDS * len(alike.rank_orbits):
        folded = merged(whole, stabiliser(alike, sink).vertex_orbit)
        if folded.graph.nvertices <= VERTICES:
            return _of_all(folded, int(folded.label[sink]), inside)
    small = around(alike, sink)
    graph, net = small.graph, Network.of(small.graph)
    own = int(small.label[sink])
    unit = 1.0 if net.whole is None else float(graph.capacity[0] / net.whole[0])
    best = int(whole.weight[inside].sum()), leaving(whole, inside) / unit
    if net.whole is not None:
        best = best[0], round(best[1])
    while True:
        time = Fraction(best[0]) / Fraction(best[1])
        found = net.cut(own, time, graph.weight)
        if found is None:
            return inside
        crossing = found[graph.tail] & ~found[graph.head]
        width = net.measure()[crossing].sum()
        held = int(graph.weight[found].sum())
        if not width:
            return found[small.label]
        more = held * Fraction(best[1]) / Fraction(width if net.whole is None else int(width))
        if more <= best[0] * (1 if net.whole is not None else _BETTER):
            return inside
        best = held, (float(width) if net.whole is None else int(width))
        inside = found[small.label]


def _of_all(small: Quotient, sink: int, inside: Bools) -> Bools:
    """Return the worst set of a small graph, by looking at all; `inside` where it is as bad."""
    sets = every_set(small.graph.nvertices, sink)
    held, width = sets @ small.graph.weight, all_leaving(small.graph, sets)
    counts = np.flatnonzero(held > 0)
    per = width[counts] / held[counts]
    best = int(per.argmin())
    known = leaving(small.whole, inside) / int(small.whole.weight[inside].sum())
    return sets[counts[best]][small.label] if per[best] * _BETTER < known else inside


def _apart(graph: Graph, inside: Bools) -> Optimum:
    """Return the optimum where nothing leads out of `inside`: none."""
    held = int(graph.weight[inside].sum())
    return Optimum(graph, 0.0, True, "nothing leaves the set", inside, held / graph.nranks, 0.0)


def reduce_scatter(graph: Graph, alike: Symmetry | None = None, *, closed: bool = False) -> Optimum:
    """Return the optimum of reduce_scatter: what must leave a set, the other ranks take."""
    if graph.mirrored:
        return of_turned(graph, allgather(graph, alike, closed=closed))
    turned = graph.reversed()
    known = None if alike is None else alike.of(turned)
    return of_turned(graph, allgather(turned, known, closed=closed))


def of_turned(graph: Graph, found: Optimum) -> Optimum:
    """Return what was found on the graph turned round as what it says of the graph itself."""
    inside = None if found.inside is None else ~found.inside
    return replace(found, graph=graph, inside=inside)
