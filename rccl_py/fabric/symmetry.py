"""The symmetry of a graph: which vertices and edges are alike, and the permutations that say so.

Owns orbits under automorphisms that keep ranks, capacities and directions. Sound by construction:
two vertices are in one orbit only where a permutation that was checked edge by edge takes one to
the other. Where the search's budget ends orbits are finer than they could be, never coarser. Names
do not count; `Graph.nests` says where copies may be, and is checked like all else.

Two steps. Copies first: groups of vertices (boxes, pods) that have the same edges inside, and to
the same vertices outside, may be exchanged; one of each stays, and counts for all. Then a search
(colour refinement with individualisation; McKay, "Practical graph isomorphism", 1981) on what is
left, which for a machine of 10,000 ranks is a few boxes and their switches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .automorphisms import Search, merged_orbits
from .graph import Graph, Nest
from .tables import I64

__all__ = ["Symmetry", "apart", "stabiliser", "symmetry"]


@dataclass(frozen=True, eq=False)
class Symmetry:
    """vertex_orbit: int64[V], edge_orbit: int64[m], the smallest vertex or edge of each orbit.

    copy: int64[V], the vertex that stands for each: itself, or the one at its place in the first
    of a set of groups that may be exchanged. found: permutations int64[V] of the search, each moves
    groups with the vertices that stand for them. complete: whether the search ended by itself.
    """

    graph: Graph
    vertex_orbit: I64
    edge_orbit: I64
    copy: I64
    steps: tuple[I64, ...]
    found: tuple[I64, ...]
    complete: bool

    @cached_property
    def rank_orbits(self) -> I64:
        """One vertex with ranks of each orbit of such."""
        return np.unique(self.vertex_orbit[self.graph.rank])

    def of(self, turned: Graph) -> Symmetry:
        """Return the symmetry of `Graph.reversed()`: the same permutations."""
        order = np.lexsort((self.graph.tail, self.graph.head))
        return replace(self, graph=turned, edge_orbit=self.edge_orbit[order])

    @cached_property
    def generators(self) -> tuple[I64, ...]:
        """Automorphisms int64[V] whose images make the orbits: v goes to perm[v]."""
        swaps = [
            perm for step, nest in zip(self.steps, self.graph.nests) for perm in _cycles(step, nest)
        ]
        return (*swaps, *self.found)

    def image(self, vertex: int) -> I64:
        """Return an automorphism int64[V] from the vertex that names its orbit to `vertex`."""
        perm, at = np.arange(self.graph.nvertices), int(vertex)
        for step, nest in zip(self.steps, self.graph.nests):
            there = int(step[at])
            if there != at:
                swap = _swap(nest, int(nest.unit[at]), int(nest.unit[there]))
                perm, at = perm[swap], there  # swap first, then what was collected
        return np.asarray(perm[self._walks[at]])

    @cached_property
    def _walks(self) -> dict[int, I64]:
        """For each vertex that stands for copies an automorphism from its orbit's name to it."""
        walks = {int(v): np.arange(self.graph.nvertices)
                 for v in np.unique(self.vertex_orbit)}  # fmt: skip
        layer = list(walks)
        while layer:
            following = []
            for v in layer:
                for perm in self.found:
                    w = int(perm[v])
                    if w not in walks:
                        walks[w] = perm[walks[v]]
                        following.append(w)
            layer = following
        return walks


def _members(nest: Nest, unit: int) -> I64:
    """Return the vertices of a group in order of their places."""
    inside = np.flatnonzero(nest.unit == unit)
    return np.asarray(inside[np.argsort(nest.spot[inside], kind="stable")])


def _swap(nest: Nest, one: int, two: int) -> I64:
    """Return the permutation that exchanges two groups, place by place."""
    perm = np.arange(len(nest.unit))
    a, b = _members(nest, one), _members(nest, two)
    perm[a], perm[b] = b, a
    return perm


def _cycles(step: I64, nest: Nest) -> list[I64]:
    """Return, for each set of copies, the permutations that shift all of it, and swap two."""
    moved = np.flatnonzero(step != np.arange(len(step)))
    made: list[I64] = []
    pairs = np.unique(np.stack([nest.unit[step[moved]], nest.unit[moved]]), axis=1)
    for first in np.unique(pairs[0]).tolist():
        units = [first, *pairs[1][pairs[0] == first].tolist()]
        members = np.stack([_members(nest, unit) for unit in units])
        perm = np.arange(len(step))
        perm[members] = np.roll(members, -1, axis=0)
        made.append(perm)
        if len(units) > 2:
            made.append(_swap(nest, units[0], units[1]))
    return made


def _mixed(*columns: I64) -> np.ndarray:
    """Return a hash of each row: uint64."""
    found = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        found = (found ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found


def _copies(graph: Graph, nest: Nest, copy: I64, sort: I64) -> I64:
    """Return the vertex that stands for each where groups of `nest` are copies: int64[V].

    copy: the vertices that stand for others already: only edges among those are looked at, and how
    the others are placed. sort: int64[V], which vertices may go to which.
    """
    step, rows = np.arange(graph.nvertices), _rows(graph, nest, copy, sort)
    order = np.lexsort(rows[3::-1])
    unit, what = rows[0][order], rows[1:, order]
    units, start, count = np.unique(unit, return_index=True, return_counts=True)
    if len(units) < 2:
        return step
    place = np.arange(len(unit)) - np.repeat(start, count)
    sums = np.add.reduceat(_mixed(*what, place), start)
    keys = _mixed(sums.view(np.int64), count)
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    model = first[of]  # the first group with the same sum; compared row by row below
    at = np.minimum(np.repeat(start[model], count) + place, len(unit) - 1)
    same = (what == what[:, at]).all(axis=0) & np.repeat(count == count[model], count)
    good = np.logical_and.reduceat(same, start)
    held = np.flatnonzero(nest.unit >= 0)
    held = held[np.lexsort((nest.spot[held], nest.unit[held]))]
    if not np.diff(nest.unit[held] * (nest.spot.max() + 1) + nest.spot[held]).all():
        return step  # two vertices at one place
    begin = np.searchsorted(nest.unit[held], units)
    own = np.searchsorted(units, nest.unit[held])
    stands = held[np.minimum(np.arange(len(held)) + (begin[model] - begin)[own], len(held) - 1)]
    moved = good[own] & (copy[held] == held)
    step[held[moved]] = stands[moved]
    return step


def _rows(graph: Graph, nest: Nest, copy: I64, sort: I64) -> I64:
    """Return what every group is, as rows: int64[5, k].

    (group, sort of row, place, place or vertex outside, what is there), in no order.
    """
    alive = copy == np.arange(graph.nvertices)
    tail, head = graph.tail.astype(np.int64), graph.head.astype(np.int64)
    kept = alive[tail] & alive[head]
    tail, head, rate = tail[kept], head[kept], graph.capacity[kept].view(np.int64)
    a, b, spot = nest.unit[tail], nest.unit[head], nest.spot
    inside = (a == b) & (a >= 0)
    out, into = ~inside & (a >= 0), ~inside & (b >= 0)
    here = np.flatnonzero(nest.unit >= 0)
    stands = copy[here]
    stays = nest.unit[stands] == nest.unit[here]
    parts = (
        (nest.unit[here], 0, spot[here], np.where(stays, spot[stands], -1 - here), sort[here]),
        (a[inside], 1, spot[tail[inside]], spot[head[inside]], rate[inside]),
        (a[out], 2, spot[tail[out]], head[out], rate[out]),
        (b[into], 3, spot[head[into]], tail[into], rate[into]),
    )
    rows: I64 = np.concatenate(
        [np.stack([np.full(len(p[0]), c) if isinstance(c, int) else c for c in p]) for p in parts],
        axis=1,
    )
    return rows


def _lifted(perm: I64, copy: I64, steps: tuple[I64, ...], graph: Graph) -> I64:
    """Return the permutation of all vertices that moves each with the one that stands for it.

    perm: int64[V], right where copy[v] == v. The k-th of some copies goes to the k-th.
    """
    lower: I64 = perm.copy()
    for step, nest in zip(reversed(steps), reversed(graph.nests)):
        lower = _one_lower(lower, step, nest)
    return lower


def _one_lower(perm: I64, step: I64, nest: Nest) -> I64:
    """Return `perm`, right where step[v] == v, for all that `step` leads there."""
    moved = np.flatnonzero(step != np.arange(len(step)))
    if not len(moved):
        return perm
    # (who stands, group) in order: the k-th copy of v's model is k places after it.
    order: I64 = moved[np.lexsort((nest.unit[moved], step[moved]))]
    model = step[order]
    start = np.searchsorted(model, model)
    turn = np.arange(len(order)) - start
    begin = np.searchsorted(model, perm[model])
    at = np.minimum(begin + turn, len(order) - 1)
    found: I64 = perm.copy()
    found[order] = np.where(model[at] == perm[model], order[at], -1)
    return found


def symmetry(graph: Graph, budget: int = 6_000_000) -> Symmetry:
    """Return the orbits of `graph`. budget: vertices and edges the search may look at."""
    return _searched(graph, graph.weight * 2 + graph.adds, None, budget)


def stabiliser(alike: Symmetry, vertex: int, budget: int = 6_000_000) -> Symmetry:
    """Return the orbits of vertices when one may not be moved; those of edges may be finer.

    vertex: one that stands for copies, as those that name orbits do.
    """
    sort = alike.graph.weight * 2 + alike.graph.adds
    sort[vertex] = -1
    return _searched(alike.graph, sort, apart(alike, vertex), budget)


def apart(alike: Symmetry, vertex: int) -> tuple[I64, ...]:
    """Return `steps` of the same graph when `vertex` may not be moved.

    Copies of a group that holds it are led to the second of them, not to its own, the first.
    """
    found = []
    for step, nest in zip(alike.steps, alike.graph.nests):
        moved = np.flatnonzero(step != np.arange(len(step)))
        mine = moved[nest.unit[step[moved]] == nest.unit[vertex]]
        order = mine[np.lexsort((nest.unit[mine], step[mine]))]
        target = step.copy()
        target[order] = order[np.searchsorted(step[order], step[order])]
        found.append(target)
    return tuple(found)


def _searched(graph: Graph, sort: I64, known: tuple[I64, ...] | None, budget: int) -> Symmetry:
    """Return the orbits of vertices of a sort. known: which groups are copies, if that is known."""
    size, copy = graph.nvertices, np.arange(graph.nvertices)
    steps: list[I64] = []
    colour = _mixed(sort)
    for k, nest in enumerate(graph.nests):
        step = _copies(graph, nest, copy, sort) if known is None else known[k]
        alive = np.flatnonzero(copy == np.arange(size))
        colour = _mixed(colour.view(np.int64), np.bincount(step[alive], minlength=size))
        steps.append(step)
        copy = step[copy]
    alive = np.flatnonzero(copy == np.arange(size))
    number = np.full(size, -1)
    number[alive] = np.arange(len(alive))
    kept = np.flatnonzero((number[graph.tail] >= 0) & (number[graph.head] >= 0))
    rates = np.unique(graph.capacity[kept], return_inverse=True)[1]
    tail, head = number[graph.tail[kept]], number[graph.head[kept]]
    search = Search(tail, head, rates, colour[alive].view(np.int64), budget)
    check = Checked(graph)
    found = _Found(search, lambda perm: _whole(perm, alive, copy, tuple(steps), graph, check))
    found.vertices()
    if known is None:
        found.edges()
    vertex = alive[found.vertex][number[copy]]
    edge = kept[found.edge][_edge_of(graph, copy, kept)]
    return Symmetry(graph, vertex, edge, copy, tuple(steps), tuple(found.perms), not search.spent)


class Checked:
    """Whether permutations keep a graph: edges, capacities, ranks, switches."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tail, self.head = graph.tail.astype(np.int64), graph.head.astype(np.int64)
        self.key = self.tail * graph.nvertices + self.head

    def __call__(self, perm: I64) -> bool:
        """Return whether v -> perm[v] is an automorphism."""
        graph = self.graph
        if not np.array_equal(np.sort(perm), np.arange(graph.nvertices)):
            return False
        if (graph.weight[perm] != graph.weight).any() or (graph.adds[perm] != graph.adds).any():
            return False
        wanted = perm[self.tail] * graph.nvertices + perm[self.head]
        at = np.minimum(np.searchsorted(self.key, wanted), max(len(self.key) - 1, 0))
        kept = (self.key[at] == wanted) & (graph.capacity[at] == graph.capacity)
        return bool(kept.all())


def _whole(perm: I64, alive: I64, copy: I64, steps: tuple[I64, ...], graph: Graph,
           check: Checked) -> I64 | None:  # fmt: skip
    """Return a permutation of what stands for copies as one of the whole graph, None if wrong."""
    full = np.arange(graph.nvertices)
    full[alive] = alive[perm]
    full = _lifted(full, copy, steps, graph)
    return full if check(full) else None


def _edge_of(graph: Graph, copy: I64, kept: I64) -> I64:
    """Return, for every edge, where in `kept` the edge is that stands for it."""
    key = graph.tail[kept].astype(np.int64) * graph.nvertices + graph.head[kept]
    wanted = copy[graph.tail] * graph.nvertices + copy[graph.head]
    return np.asarray(np.searchsorted(key, wanted), dtype=np.int64)


class _Found:
    """Orbits of what stands for copies, while permutations are found."""

    def __init__(self, search: Search, whole: Callable[[I64], I64 | None]) -> None:
        self.search, self.whole = search, whole
        self.vertex = np.arange(search.size)
        self.edge = np.arange(len(search.tail))
        self.perms: list[I64] = []

    def _take(self, pairs: list[tuple[int, int]]) -> bool:
        """Look for a permutation, and merge what it joins; return whether there was one."""
        perm = self.search.taking(pairs)
        full = None if perm is None else self.whole(perm)
        if perm is None or full is None:
            return False
        edges = self.search.edges(perm)
        assert edges is not None  # taking() has asked the same
        self.vertex = merged_orbits(self.vertex, perm)
        self.edge = merged_orbits(self.edge, edges)
        self.perms.append(full)
        return True

    def vertices(self) -> None:
        """Join the vertices of each cell."""
        self._joined(self.search.cells, lambda: self.vertex, lambda a, b: [(a, b)])

    def edges(self) -> None:
        """Join the edges of each sort between two cells."""
        tail, head, cells = self.search.tail, self.search.head, self.search.cells
        what = np.stack([cells[tail], cells[head], self.search.sort])
        sort = np.unique(what, axis=1, return_inverse=True)[1].reshape(-1)

        def ends(a: int, b: int) -> list[tuple[int, int]]:
            return [(int(tail[a]), int(tail[b])), (int(head[a]), int(head[b]))]

        self._joined(sort, lambda: self.edge, ends)

    def _joined(self, cells: I64, label: Callable[[], I64],
                pairs: Callable[[int, int], list[tuple[int, int]]]) -> None:  # fmt: skip
        """Join within each cell what permutations take to one another, until none is found."""
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
        for members in sorted(np.split(order, starts[1:]), key=len):
            left = members
            while len(left) > 1 and not self.search.spent:
                a = int(left[0])
                apart: list[int] = []
                rest = left[label()[left] != label()[a]]
                while len(rest) and not self.search.spent:
                    b = int(rest[-1])  # what is left alike is matched in order: a long cycle
                    if not self._take(pairs(a, b)):
                        apart += rest[label()[rest] == label()[b]].tolist()
                        rest = rest[label()[rest] != label()[b]]
                    rest = rest[label()[rest] != label()[a]]
                left = np.array([v for v in apart if label()[v] != label()[a]], dtype=np.int64)
