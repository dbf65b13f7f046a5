"""The exact optimum of allreduce on any graph: reduce trees and broadcast trees share the links.

Owns the linear program, and when it is not needed. A reduce_scatter followed by an allgather has
every rank own as much as any other; on a degraded machine the weak rank is then the bottleneck
twice, and owning less is better. The program lets rank r own x_r of X, and splits every link:

    maximise X = sum x_r, where a + b <= c on every edge, and for every rank v
    a carries x_r from every r to v (broadcast), b carries x_r from v to every r (reduce)

Flows for different v may share bytes (copies, sums), so each has all of a, or of b; packings of
trees reach them (Edmonds, "Edge-disjoint branchings", 1973). A switch that only forwards has as
much of a leave as enters, and of b; one that adds up and multicasts need not.

Bounds that are no program: a set that not all ranks are in is left by X at least; and of k groups
which hold all ranks each is entered, and left, by all but its own, so what enters all of them is
2 (k - 1) X. Where that is what reduce_scatter and allgather reach, they are optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...fabric import F64, I64
from ...fabric.graph import Graph
from ...fabric.symmetry import Symmetry, symmetry
from .allgather import allgather, of_turned, reduce_scatter
from .cuts import Bools, Groups, Optimum, grouped, groups, leaving
from .programs import Program, View, effort, view
from .words import plural

__all__ = ["Allreduce", "allreduce"]

_VARIABLES = 6_000  # some second of HiGHS
_EFFORT = 8_000_000  # of finding the views, as alltoall's
_IMAGES = 4_096  # vertices times images of a set that are looked at
_SAME = 1e-9
_WORTH = 1e-9
_NEAR = 1e-7  # HiGHS's tolerance


@dataclass(frozen=True, eq=False)
class Allreduce:
    """optimum; roots: float64[n], the part of the buffer each rank owns, 1 in all.

    broadcast, reduce: float64[m], B/s of each edge for the trees that spread sums and for those
    that make them. They are of what reaches `reached` B/s: the optimum where that is exact.
    """

    optimum: Optimum
    reached: float
    roots: F64
    broadcast: F64
    reduce: F64


def allreduce(graph: Graph, alike: Symmetry | None = None, *, in_network: bool = False,
              closed: bool = False, variables: int = _VARIABLES) -> Allreduce:  # fmt: skip
    """Return the optimum of allreduce.

    in_network: the switches that can (graph.adds) add up and multicast. closed: only cuts and
    partitions the graph names, as allgather's. variables: of the largest
    program that is solved; beyond it the bound is by cuts, and not exact.
    """
    if not closed:
        alike = alike or symmetry(graph)
    spread = allgather(graph, alike, closed=closed)
    gathered = of_turned(graph, spread)
    if not graph.mirrored:
        gathered = reduce_scatter(graph, alike, closed=closed)
    if not np.isfinite(spread.rate) or not spread.rate:
        return _even(spread, spread, gathered)
    in_network = in_network and bool(graph.adds.any())
    bound = _bounded(graph, alike, (spread, gathered), in_network)
    both = 1.0 / (1.0 / spread.rate + 1.0 / gathered.rate)
    if spread.exact and gathered.exact and both >= bound.rate * (1 - _SAME):
        return _even(replace(bound, rate=both, exact=True), spread, gathered)
    if alike is None or closed:
        return _even(bound, spread, gathered)
    if variables and effort(alike) <= _EFFORT:
        views = [view(graph, alike, int(v)) for v in alike.rank_orbits]
        if sum(len(v.tail) for v in views) * 2 <= variables:
            found = _solved(graph, alike, views, in_network)
            if found is not None:
                return (
                    found if found.reached < bound.rate * (1 - _NEAR) else _cut_named(found, bound)
                )
    return _even(bound, spread, gathered)


def _cut_named(found: Allreduce, bound: Optimum) -> Allreduce:
    """Return the answer of the program with the bound it meets, which has a cut to name."""
    return replace(found, optimum=replace(bound, exact=True))


def _even(optimum: Optimum, spread: Optimum, gathered: Optimum) -> Allreduce:
    """Return reduce_scatter and allgather, each with its part of every link."""
    graph = optimum.graph
    slow = [1.0 / rate if rate else 0.5 for rate in (spread.rate, gathered.rate)]
    part = slow[0] / sum(slow) if sum(slow) else 0.5
    reached = 1.0 / sum(slow) if sum(slow) else np.inf
    n = graph.nranks
    return Allreduce(optimum, reached, np.full(n, 1.0 / n), graph.capacity * part,
                     graph.capacity * (1 - part))  # fmt: skip


def _bounded(graph: Graph, alike: Symmetry | None, halves: tuple[Optimum, Optimum],
             in_network: bool) -> Optimum:  # fmt: skip
    """Return the least bound by cuts and by partitions."""
    found = []
    known = groups(graph)
    for group in known:
        for width, away in ((group.out, False), (group.into, True)):
            k = int(width.argmin())
            found.append(_cut(graph, group.inside(k) ^ away))
    found += [_cut(graph, half.inside) for half in halves if half.inside is not None]
    found += [one for part in known if (one := _parted(graph, part, in_network)) is not None]
    best = min(found, key=lambda one: one.rate)
    both = 1.0 / (1.0 / halves[0].rate + 1.0 / halves[1].rate)
    if alike is None or both >= best.rate * (1 - _SAME):
        return best
    images = _images(graph, alike, halves[0])
    more = [one for part in images if (one := _parted(graph, part, in_network)) is not None]
    return min([best, *more], key=lambda one: one.rate)


def _parted(graph: Graph, part: Groups, in_network: bool) -> Optimum | None:
    """Return the bound of groups that hold all ranks, None where it is none.

    Of what is outside them only switches that forward may be left, which take in what they let out.
    """
    left = (part.label < 0) & ((graph.weight > 0) | (graph.adds if in_network else False))
    count = len(part.ranks)
    if part.ranks.sum() < graph.nranks or left.any() or count < 2:
        return None
    share = 2.0 * (count - 1)
    width, ends, verb = min(
        (float(part.into.sum()), graph.head, "entered"),
        (float(part.out.sum()), graph.tail, "left"),
        key=lambda way: way[0],
    )
    one, two = part.label[graph.tail], part.label[graph.head]
    full = (one != two) & (part.label[ends] >= 0)
    how = f"the {count} {plural(part.name)} together are {verb}"
    return Optimum(graph, width / share, False, how, None, share, width, full)


def _cut(graph: Graph, inside: Bools) -> Optimum:
    width = leaving(graph, inside)
    return Optimum(graph, width, False, "all of it leaves the set once", inside, 1.0, width)


def _images(graph: Graph, alike: Symmetry, spread: Optimum) -> list[Groups]:
    """Return the partition that what the allgather's cut leaves out makes with its images."""
    if spread.inside is None or graph.nvertices > _IMAGES:
        return []
    first = np.flatnonzero(~spread.inside & (graph.weight > 0))
    most = _IMAGES // max(len(first), 1)
    sets, layer = {first.tobytes(): first}, [first]
    while layer and len(sets) <= most:
        made = [np.sort(perm[one]) for one in layer for perm in alike.generators]
        layer = [one for one in {m.tobytes(): m for m in made}.values()
                 if one.tobytes() not in sets]  # fmt: skip
        sets.update((one.tobytes(), one) for one in layer)
    label = np.full(graph.nvertices, -1)
    for k, one in enumerate(sets.values()):
        if (label[one] >= 0).any():
            return []
        label[one] = k
    return [grouped(graph, "like set of ranks", label)]


def _solved(graph: Graph, alike: Symmetry, views: list[View], in_network: bool) -> Allreduce | None:
    """Return the answer of the program, one flow each way for each view."""
    scale = float(graph.capacity.max())
    orbits, first, orbit = np.unique(alike.edge_orbit, return_index=True, return_inverse=True)
    ranks, kind = np.unique(alike.vertex_orbit[graph.rank], return_inverse=True)
    program, count = Program(), len(orbits)
    total = program.add(1)
    own = program.add(len(ranks))  # x of one rank of each orbit
    split = [program.add(count), program.add(count)]  # a and b of one edge of each orbit
    row = program.rows(1, equal=True)
    program.put(row, total, -1.0, equal=True)
    program.put(row, own + np.arange(len(ranks)), np.bincount(kind).astype(float), equal=True)
    row = program.rows(count, graph.capacity[first] / scale, equal=False)
    for part in split:
        program.put(row + np.arange(count), part + np.arange(count), 1.0, equal=False)
    _forwarding(program, graph, alike, split, orbit, in_network)
    for seen in views:
        for part, sign in zip(split, (1.0, -1.0)):
            _flow(program, graph, seen, part, own, kind, sign)
    answer = program.solve(total)
    if answer is None:
        return None
    found, worth = answer
    rate = float(found[total]) * scale
    how = "the linear program of reduce and broadcast trees"
    full = worth[row : row + count] > _WORTH
    optimum = Optimum(graph, rate, True, how, full=full[orbit])
    roots = found[own + kind] / max(float(found[total]), 1e-300)
    a, b = (found[part + orbit] * scale for part in split)
    return Allreduce(optimum, rate, roots, a, b)


def _forwarding(program: Program, graph: Graph, alike: Symmetry, split: list[int], orbit: I64,
                in_network: bool) -> None:  # fmt: skip
    """Add the rows of switches that only forward, one a vertex orbit and part."""
    plain = graph.weight == 0
    if in_network:
        plain &= ~graph.adds
    names = np.unique(alike.vertex_orbit[plain])
    number = np.full(graph.nvertices, -1)
    number[names] = np.arange(len(names))
    for part in split:
        row = program.rows(len(names), equal=True)
        for ends, sign in ((graph.tail, 1.0), (graph.head, -1.0)):
            there = np.flatnonzero(number[ends] >= 0)
            at = number[ends[there]]
            program.put(row + at, part + orbit[there], np.full(len(there), sign), equal=True)


def _flow(program: Program, graph: Graph, seen: View, part: int, own: int, kind: I64,
          sign: float) -> None:  # fmt: skip
    """Add the flow from all ranks to a view's centre (sign 1), or from it to all of them (-1)."""
    count = len(seen.tail)
    flow = program.add(count)
    row = program.rows(seen.size - 1, equal=True)
    at, column, value = seen.balance()
    program.put(row + at, flow + column, value * sign, equal=True)
    label = seen.label[graph.rank]
    away = label != seen.own
    there = label[away] - (label[away] > seen.own)
    program.put(row + there, own + kind[away], np.full(int(away.sum()), -1.0), equal=True)
    row = program.rows(count, equal=False)
    each = np.arange(count)
    program.put(row + each, flow + each, 1.0, equal=False)
    program.put(row + each, part + seen.orbit, -seen.count, equal=False)
