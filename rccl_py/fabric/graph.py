"""A fabric as one directed graph with capacities: what bounds and synthesis look at.

Owns which vertices and edges there are. An edge is as wide as its links carry bytes of payload
under Simple; every route of the fabric is a path in the graph, so what the graph cannot carry no
schedule can move. Knows no collective, no size and no time.

    rank 3 -> leaf3 -> spines -> leaf5 -> rank 13       one edge a bundle, one edge a NIC's way out

Vertices: the accelerators with ranks, in the order of their first ranks (so vertex r is rank r
wherever every rank has an accelerator of its own), then what else is in each node, then the
network's switches, of which those that routes cannot tell apart are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument
from ..schedule import I32
from .box import Box, box_of
from .clos import Clos
from .domain import Domain
from .fabric import Fabric
from .tables import F64, I64, expand

__all__ = ["Graph", "Nest", "graph_of"]

_SIMPLE = 2


@dataclass(frozen=True, eq=False, slots=True)
class Nest:
    """A way to group vertices: boxes, the boxes below some leaves, pods; finer ones come first.

    name: of one group, for people. unit: int64[V], the group of each vertex, -1 outside all. spot:
    int64[V], its place in the group: alike groups should have alike vertices at a place. Both are
    hints: who uses them checks what they suggest.
    """

    name: str
    unit: I64
    spot: I64


@dataclass(frozen=True, eq=False)
class Graph:
    """Edges tail[e] -> head[e], int32[m], sorted by (tail, head), no two alike; capacity: B/s.

    rank: int32[n], the vertex of each rank. ptr, links: edge e is the links
    links[ptr[e]]..links[ptr[e + 1] - 1] of the fabric side by side, of links in a row the
    narrowest. adds: bool[V], switches that add up and multicast. nests: how vertices are grouped.
    named(v): the name of a vertex, for people. sides: further (name, part of each vertex) to divide
    them by, -1 for outside: cuts that are worth a look, and no more.
    """

    nvertices: int
    tail: I32
    head: I32
    capacity: F64
    rank: I32
    ptr: I64
    links: I64
    adds: npt.NDArray[np.bool_]
    nests: tuple[Nest, ...]
    named: Callable[[int], str]
    sides: tuple[tuple[str, I64], ...] = ()

    @property
    def nranks(self) -> int:
        """Ranks, at their vertices."""
        return len(self.rank)

    @cached_property
    def weight(self) -> I64:
        """The ranks at each vertex: int64[V]."""
        return np.bincount(self.rank, minlength=self.nvertices)

    @property
    def names(self) -> list[str]:
        """The names of all vertices, for people."""
        return [self.named(v) for v in range(self.nvertices)]

    def links_of(self, edge: int) -> I64:
        """Return the links of the fabric that an edge is."""
        return self.links[self.ptr[edge] : self.ptr[edge + 1]]

    def reversed(self) -> Graph:
        """Return the graph with every edge turned round; `links` are those of the edges."""
        order = np.lexsort((self.tail, self.head))
        _, entry = expand(self.ptr, order)
        ptr = np.concatenate([[0], np.cumsum(np.diff(self.ptr)[order])]).astype(np.int64)
        return replace(self, tail=self.head[order], head=self.tail[order], ptr=ptr,
                       capacity=self.capacity[order], links=self.links[entry])  # fmt: skip

    @cached_property
    def mirrored(self) -> bool:
        """Whether every edge has one back that is as wide."""
        back = np.lexsort((self.tail, self.head))
        return bool(
            (self.head[back] == self.tail).all()
            and (self.tail[back] == self.head).all()
            and (self.capacity[back] == self.capacity).all()
        )

    @staticmethod
    def of_edges(edges: Iterable[tuple[str, str, float]], ranks: Sequence[str],
                 adds: Iterable[str] = ()) -> Graph:  # fmt: skip
        """Return the graph of directed edges (from, to, B/s) between named vertices.

        Edges given twice add up. ranks: the vertices with ranks, in order. adds: switches that add
        up and multicast. Raises InvalidArgument for a capacity that is not above 0, a loop, or a
        rank that no edge joins where there are several.
        """
        known = list(edges)
        number = {name: k for k, name in enumerate(dict.fromkeys(ranks))}
        for a, b, rate in known:
            if not (np.isfinite(rate) and rate > 0) or a == b:
                raise InvalidArgument(
                    f"edge {a} -> {b} of {rate} B/s: two different vertices and a finite capacity "
                    "above 0 were expected; leave out links that carry nothing"
                )
            for name in (a, b):
                number.setdefault(name, len(number))
        joined = {name for a, b, _ in known for name in (a, b)}
        alone = [name for name in ranks if name not in joined]
        if len(set(ranks)) > 1 and alone:
            raise InvalidArgument(f"rank {alone[0]}: no edge joins it to any other vertex")
        tail, head = [number[a] for a, _, _ in known], [number[b] for _, b, _ in known]
        adding, names = np.zeros(len(number), dtype=bool), tuple(number)
        adding[[number[name] for name in adds]] = True
        parts = _Parts(np.array(tail, np.int64), np.array(head, np.int64),
                       np.array([rate for _, _, rate in known], np.float64),
                       np.arange(len(known)), np.ones(len(known), np.int64))  # fmt: skip
        rank = np.array([number[name] for name in ranks], dtype=np.int32)
        return _merged(parts, rank, adding, (), lambda v: names[v])


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """Edges before they are merged: each is `count` links from `first` on."""

    tail: I64
    head: I64
    capacity: F64
    first: I64
    count: I64


def _merged(parts: _Parts, rank: I32, adds: npt.NDArray[np.bool_], nests: tuple[Nest, ...],
            named: Callable[[int], str]) -> Graph:  # fmt: skip
    """Return the graph of these edges, parallel ones as one."""
    size = len(adds)
    key = parts.tail * size + parts.head
    order = np.argsort(key, kind="stable")
    key = key[order]
    new = np.append(True, key[1:] != key[:-1]) if len(key) else np.zeros(0, dtype=bool)
    at = np.flatnonzero(new)
    rate = np.add.reduceat(parts.capacity[order], at) if len(at) else np.zeros(0)
    count = parts.count[order]
    ends = np.cumsum(count)
    starts = np.concatenate([[0], ends]).astype(np.int64)
    within = np.arange(int(starts[-1])) - np.repeat(ends - count, count)
    links = np.repeat(parts.first[order], count) + within
    tail, head = np.divmod(key[at], size) if size else (key, key)
    ptr = np.append(starts[:-1][at], starts[-1]).astype(np.int64)
    return Graph(size, tail.astype(np.int32), head.astype(np.int32), rate, rank, ptr, links, adds,
                 nests, named)  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class _Class:
    """Nodes that are copies of one Box: vertices int64[nodes, all of the box]."""

    box: Box
    nodes: I64
    vertices: I64


class _Draft:
    """What graph_of knows while it puts the pieces together."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        _, first, own = np.unique(fabric.place, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        number = np.empty(len(first), dtype=np.int64)
        number[order] = np.arange(len(first))
        self.rank = number[own].astype(np.int32)
        self.lead = first[order]  # a rank at each of the first vertices
        self.node = fabric.node[self.lead].astype(np.int64)
        self.local = fabric.local[self.lead].astype(np.int64)
        self.held = np.unique(self.node)
        self.wiring = fabric.wiring if len(self.held) > 1 else None
        self.classes, self.size = self._classes()
        self.switches = 0
        if self.wiring is not None:
            tail, head, *_ = self.wiring.bundles()
            ends = (tail, head, self.wiring.port_switch)
            self.switches = 1 + max(int(v.max(initial=-1)) for v in ends)

    def _classes(self) -> tuple[list[_Class], int]:
        """Return the nodes by what they hold, and the vertices of all of them."""
        fabric = self.fabric
        order = np.lexsort((self.local, self.node))
        starts = np.searchsorted(self.node[order], self.held)
        places = np.split(order, starts[1:])
        known: dict[tuple[int, bytes], list[int]] = {}
        kinds = fabric.kind[self.held].tolist()
        for k, (kind, inside) in enumerate(zip(kinds, places)):
            known.setdefault((kind, self.local[inside].tobytes()), []).append(k)
        found, size = [], len(self.lead)
        switch = None if self.wiring is None else self.wiring.port_switch
        for (kind, _), members in known.items():
            box = box_of(fabric.domains[kind], self.local[places[members[0]]],
                         wired=switch is not None, staged=fabric.staged)  # fmt: skip
            nodes, inner = self.held[members], len(box.names)
            own = size + np.arange(len(nodes) * inner).reshape(len(nodes), inner)
            size += own.size
            ranks = np.stack([places[k] for k in members])
            columns = [ranks, own]
            if switch is not None:
                ports = fabric.first_port[nodes][:, None] + np.arange(fabric.domains[kind].nnics)
                columns.append(-1 - switch[ports])  # the switches follow all nodes
            found.append(_Class(box, nodes, np.concatenate(columns, axis=1)))
        for one in found:
            below = one.vertices < 0
            one.vertices[below] = size - 1 - one.vertices[below]
        return found, size

    def parts(self) -> _Parts:
        """Return all edges."""
        fabric, columns = self.fabric, []
        for one in self.classes:
            box, domain = one.box, fabric.domains[int(fabric.kind[one.nodes[0]])]
            shape = len(one.nodes), len(box.tail)
            own, nics = domain.nlinks, domain.nnics
            cable = fabric.cables + fabric.first_port[one.nodes][:, None] - own
            ways = [fabric.first_link[one.nodes][:, None], cable, cable + fabric.ports - nics]
            which = (box.link >= own).astype(np.int64) + (box.link >= own + nics)
            link = np.choose(which, [np.broadcast_to(w + box.link, shape) for w in ways])
            ends = (one.vertices[:, box.tail].ravel(), one.vertices[:, box.head].ravel())
            columns.append((*ends, np.tile(box.capacity, shape[0]), link.ravel()))
        tail, head, rate, first = (np.concatenate(c) for c in zip(*columns))
        count = np.ones(len(first), dtype=np.int64)
        if self.wiring is None:
            return _Parts(tail, head, rate, first, count)
        more = self.wiring.bundles()
        wire = min(d.port_wire[_SIMPLE].min() for d in self._wired())
        start = fabric.cables + 2 * fabric.ports
        own_ends = [more[0] + self.size, more[1] + self.size]
        every = zip((tail, head, rate, first, count),
                    (*own_ends, more[2] / wire, more[3] + start, more[4]))  # fmt: skip
        return _Parts(*(np.concatenate(c) for c in every))

    def _wired(self) -> list[Domain]:
        return [d for d in self.fabric.domains if d.nnics]

    def adds(self) -> npt.NDArray[np.bool_]:
        """Return which vertices are switches that add up and multicast."""
        found = np.zeros(self.size + self.switches, dtype=bool)
        for one in self.classes:
            k = one.box.ranks
            found[one.vertices[:, k : k + len(one.box.names)][:, one.box.adds]] = True
        return found

    def nests(self) -> tuple[Nest, ...]:
        """Return boxes, boxes that share leaves, and pods."""
        if len(self.held) < 2:
            return ()
        unit = np.full(self.size + self.switches, -1)
        spot = np.zeros(len(unit), dtype=np.int64)
        for one in self.classes:
            inside = one.vertices[:, : one.box.ranks + len(one.box.names)]
            unit[inside], spot[inside] = one.nodes[:, None], np.arange(inside.shape[1])
        found = [Nest("node", unit, spot)]
        if isinstance(self.wiring, Clos):
            for name, label in self._above(self.wiring):
                up = np.full(len(unit), -1)
                up[self.size : self.size + len(label)] = label
                for one in self.classes:
                    inside = one.vertices[:, : one.box.ranks + len(one.box.names)]
                    up[inside] = label[one.vertices[:, -1] - self.size][:, None]
                if len(np.unique(up[up >= 0])) > 1:
                    found.append(Nest(name, up, _spots(up, found[-1])))
        return tuple(found)

    def _above(self, wiring: Clos) -> list[tuple[str, I64]]:
        """Return (name, label of each leaf and of each pod's spines) of the tiers of a Clos."""
        leaf, low = wiring.port_switch, np.full(self.switches, self.switches)
        fabric, found = self.fabric, []
        port = np.repeat(np.arange(fabric.copies), np.diff(fabric.first_port))
        first = np.full(fabric.copies, self.switches)
        np.minimum.at(first, port, leaf)
        np.minimum.at(low, leaf, first[port])
        if (low[leaf] == first[port]).all():
            found.append(("leaf group", np.where(low < self.switches, low, -1)))
        if wiring.npods > 1:
            label = np.full(self.switches, -1)
            label[: wiring.nleaves] = wiring.pod
            pods = label[wiring.nleaves : wiring.nleaves + wiring.npods]
            pods[:] = np.arange(len(pods))
            found.append(("pod", label))
        return found

    def sides(self) -> tuple[tuple[str, I64], ...]:
        """Return the parts of the wiring, nodes with the switch they hang on."""
        found = []
        for name, part in ({} if self.wiring is None else self.wiring.sides).items():
            label = np.full(self.size + self.switches, -1)
            label[self.size : self.size + len(part)] = part
            for one in self.classes:
                inside = one.vertices[:, : one.box.ranks + len(one.box.names)]
                label[inside] = label[one.vertices[:, -1]][:, None]
            found.append((name, label))
        return tuple(found)

    def named(self) -> Callable[[int], str]:
        """Return what names vertices."""
        classes, size, wiring = self.classes, self.size, self.wiring
        count, several = len(self.lead), len(self.held) > 1

        def name(vertex: int) -> str:
            if vertex < count:
                return f"rank {int(self.lead[vertex])}"
            if vertex >= size:
                assert wiring is not None  # only a wired fabric has further vertices
                return wiring.switch_text(vertex - size)
            for one in classes:
                row, column = np.nonzero(one.vertices == vertex)
                if len(row):
                    text = one.box.names[int(column[0]) - one.box.ranks]
                    return f"node{int(one.nodes[row[0]])}: {text}" if several else text
            raise InvalidArgument(f"vertex {vertex}: the graph has {size} in its nodes")

        return name


def _spots(up: I64, below: Nest) -> I64:
    """Return places in groups of groups: in order of the group below, then of the place there."""
    order = np.lexsort((np.arange(len(up)), below.spot, below.unit, up))
    spot = np.empty(len(up), dtype=np.int64)
    start = np.searchsorted(up[order], up[order])
    spot[order] = np.arange(len(up)) - start
    return spot


def graph_of(fabric: Fabric) -> Graph:
    """Return the graph of a fabric: vertex r is rank r where no two ranks share an accelerator.

    Routes that depend on traffic (adaptive) or on a hash (ecmp) are not told apart: all links that
    some choice of theirs may use are in the graph.
    """
    draft = _Draft(fabric)
    graph = _merged(draft.parts(), draft.rank, draft.adds(), draft.nests(), draft.named())
    return replace(graph, sides=draft.sides())
