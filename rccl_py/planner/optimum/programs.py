"""Flow problems of alike sources or sinks as one linear program, and HiGHS's answer to it.

Owns how orbits make a program small: what a vertex of an orbit does all of it do, so one flow for
each orbit of ranks is looked for, on a graph where what is alike from there is one vertex; and how
rows and columns are put together. Exact by averaging over the automorphisms, of which all are
checked (rccl_py.fabric.symmetry). Knows no collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fabric import F64, I64
from ...fabric.graph import Graph
from ...fabric.symmetry import Symmetry, stabiliser

__all__ = ["Program", "View", "effort", "view"]


@dataclass(frozen=True, eq=False)
class View:
    """A graph as it looks from one vertex, the vertices alike from there made one.

    centre: that vertex. label: int64[V]. tail, head: int64[k], labels an edge joins; orbit:
    int64[k], the orbit of edges of the whole graph it is of (numbered from 0); count: float64[k],
    how many edges it stands for. edge: int64[m], the one that stands for each, -1 for none.
    """

    centre: int
    label: I64
    tail: I64
    head: I64
    orbit: I64
    count: F64
    edge: I64

    @property
    def size(self) -> int:
        """Vertices."""
        return int(self.label.max()) + 1

    @property
    def own(self) -> int:
        """The label of the centre."""
        return int(self.label[self.centre])

    def balance(self, values: F64 | None = None) -> tuple[I64, I64, F64]:
        """Return (row, column, +1 or -1): what leaves less what enters, all but the centre's."""
        column = np.arange(len(self.tail))
        row = np.concatenate([self.tail, self.head])
        sign = np.repeat([1.0, -1.0], len(column))
        kept = row != self.own
        column = np.tile(column, 2)[kept]
        return row[kept] - (row[kept] > self.own), column, sign[kept]

    def spread(self, flow: F64) -> F64:
        """Return a flow on the edges of the view as one on all edges: float64[m]."""
        each = flow / self.count
        return np.where(self.edge >= 0, each[self.edge], 0.0)


def effort(alike: Symmetry, each: int = 400) -> int:
    """Return how much work the views from all sorts of rank are: some 20 ns each, often less.

    each: of an edge between vertices that stand for copies, or have none.
    """
    graph, stands = alike.graph, alike.copy == np.arange(alike.graph.nvertices)
    left = int((stands[graph.tail] & stands[graph.head]).sum())
    return len(alike.rank_orbits) * (20 * len(graph.tail) + each * left)


def view(graph: Graph, alike: Symmetry, centre: int) -> View:
    """Return how `graph` looks from a vertex. alike: its symmetry, which says what edges are."""
    orbits, orbit = np.unique(alike.edge_orbit, return_inverse=True)
    seen = stabiliser(alike, centre).vertex_orbit if len(orbits) < len(orbit) else None
    label = np.arange(graph.nvertices) if seen is None else np.unique(seen, return_inverse=True)[1]
    size = int(label.max()) + 1
    tail, head = label[graph.tail], label[graph.head]
    kept = np.flatnonzero(tail != head)
    key = (tail[kept] * size + head[kept]) * len(orbits) + orbit[kept]
    keys, of, count = np.unique(key, return_inverse=True, return_counts=True)
    edge = np.full(len(orbit), -1, dtype=np.int64)
    edge[kept] = of
    ends, own = np.divmod(keys, len(orbits))
    tail, head = np.divmod(ends, size)
    return View(centre, label, tail, head, own, count.astype(np.float64), edge)


class Program:
    """A linear program put together block by block: maximise the variable `aim`, all >= 0."""

    def __init__(self) -> None:
        self.variables = 0
        self._rows = [0, 0]  # equal to, at most
        self._entries: tuple[list[tuple[I64, I64, F64]], ...] = ([], [])
        self._right: tuple[list[F64], list[F64]] = ([], [])

    def add(self, count: int) -> int:
        """Add so many variables and return the first."""
        self.variables += count
        return self.variables - count

    def rows(self, count: int, right: F64 | float = 0.0, *, equal: bool) -> int:
        """Add so many rows with these right sides, and return the first."""
        at = 0 if equal else 1
        self._right[at].append(np.broadcast_to(np.asarray(right, dtype=np.float64), (count,)))
        self._rows[at] += count
        return self._rows[at] - count

    def put(self, row: I64 | int, column: I64 | int, value: F64 | float, *, equal: bool) -> None:
        """Add entries."""
        one, two, each = np.broadcast_arrays(row, column, np.asarray(value, dtype=np.float64))
        self._entries[0 if equal else 1].append((np.ravel(one), np.ravel(two), np.ravel(each)))

    def solve(self, aim: int) -> tuple[F64, F64] | None:
        """Return the variables at the optimum, and what each row of "at most" is worth to it.

        float64[variables], float64[rows], 0 for rows that are not full. None where HiGHS finds no
        optimum.
        """
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        parts: list[tuple[Any, F64 | None]] = []
        for at in (0, 1):
            shape = self._rows[at], self.variables
            if not self._entries[at]:
                parts.append((None, None))
                continue
            row, column, value = (np.concatenate(c) for c in zip(*self._entries[at]))
            parts.append((coo_array((value, (row, column)), shape).tocsr(),
                          np.concatenate(self._right[at])))  # fmt: skip
        cost = np.zeros(self.variables)
        cost[aim] = -1.0
        (equal, given), (upper, most) = parts
        found = linprog(cost, upper, most, equal, given, (0, None), method="highs")
        if found.status != 0:
            return None
        return np.asarray(found.x), np.abs(np.asarray(found.ineqlin.marginals))
