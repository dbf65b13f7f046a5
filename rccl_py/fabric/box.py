"""One kind of node as a piece of a graph: what joins its ranks, and what joins them to its ports.

Owns which links a route may cross inside a node. Scale-up links join accelerators and switches.
The host's links (PCI, sockets) are crossed on the way to a NIC, and on the way from one, so its
bridges stand twice: a copy on the way up, a copy on the way down. Where the host also joins
accelerators that nothing else joins, its bridges stand once, and all its links are there.

    gpu0 -> pci0 (up) -> nic0 (up) -> port 0        port 0 -> nic0 (down) -> pci0 (down) -> gpu0

A vertex with one link in and one link out is left out: the narrower of the two stands for both.
Knows no other node, no wiring and no rank number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .domain import Domain
from .inside import Hubs, Planes
from .tables import F64, I64, expand

__all__ = ["Box", "box_of"]

_ROUTED = 64  # ranks of a node whose routes are looked at for accelerators without a rank
_SIMPLE = 2  # the row of a domain's wires: bytes of payload under Simple

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Box:
    """Vertices: `ranks` accelerators, then one a name, then one a port (a NIC's switch).

    tail, head: int64[e]. capacity: float64[e], B/s of payload. link: int64[e], the domain's own
    links, then one a NIC's cable up, then one a cable down. adds: bool, by name, whether it is a
    switch that adds up and multicasts.
    """

    ranks: int
    names: tuple[str, ...]
    tail: I64
    head: I64
    capacity: F64
    link: I64
    adds: Bools


@dataclass(frozen=True, eq=False, slots=True)
class _Edges:
    tail: I64
    head: I64
    capacity: F64
    link: I64

    def some(self, which: npt.NDArray[np.generic]) -> _Edges:
        return _Edges(self.tail[which], self.head[which], self.capacity[which], self.link[which])


def box_of(domain: Domain, used: I64, *, wired: bool, staged: bool) -> Box:
    """Return the piece that a node with ranks on accelerators `used`, in order, is.

    wired: whether ranks of other nodes are reached. staged: whether peers' NICs are used (PXN).
    """
    count = len(domain.vertices)
    edges = _edges(domain, used, wired, staged)
    terminal = np.zeros(3 * count + domain.nnics, dtype=bool)
    terminal[used] = terminal[3 * count :] = True
    before = -1
    while before != len(edges.tail):
        before = len(edges.tail)
        edges = _contracted(_pruned(edges, terminal), terminal)
    ends = np.concatenate([edges.tail, edges.head])
    inner = np.setdiff1d(ends, np.flatnonzero(terminal))
    number = np.zeros(len(terminal), dtype=np.int64)
    number[used] = np.arange(len(used))
    number[inner] = len(used) + np.arange(len(inner))
    number[3 * count :] = len(used) + len(inner) + np.arange(domain.nnics)
    adds = np.zeros(len(terminal), dtype=bool)
    if domain.multicast:
        adds[domain.end[domain.inside.leaving]] = True
    names = tuple(
        domain.vertices[v % count] + ("", " (up)", " (down)")[v // count] for v in inner.tolist()
    )
    return Box(len(used), names, number[edges.tail], number[edges.head], edges.capacity,
               edges.link, adds[inner])  # fmt: skip


def _edges(domain: Domain, used: I64, wired: bool, staged: bool) -> _Edges:
    """Return the links that may be crossed, each at the copies of its ends."""
    count, m = len(domain.vertices), domain.ngpus
    tail, head = domain.start.astype(np.int64), domain.end.astype(np.int64)
    host = ~domain.joins if not domain.joins.all() else np.zeros(len(tail), dtype=bool)
    hosted = not host.any() or not _joined(domain, used)
    rate = domain.bandwidth / domain.wire[_SIMPLE]
    number = {name: v for v, name in enumerate(domain.vertices)}
    nics = np.array([number[name] for name in domain.nic_names], dtype=np.int64)
    kept = np.ones(len(tail), dtype=bool) if hosted else domain.joins.copy()
    kept[np.isin(tail, nics) | np.isin(head, nics)] = False
    kept &= _relayed(domain, used, staged and wired)
    parts = [_Edges(tail[kept], head[kept], rate[kept], np.flatnonzero(kept))]
    if wired:
        whose = np.arange(m) if staged else used
        _, attached = expand(domain.attach, whose)
        ports = np.unique(domain.nic[attached]).astype(np.int64)
        for table, copy, cable in ((domain.up, 1, 0), (domain.down, 2, 1)):
            link = np.unique(table.link[expand(table.ptr, attached)[1]]).astype(np.int64)
            link = link[~kept[link]]
            aside = 0 if hosted else copy * count
            a, b = (np.where(v < m, v, v + aside) for v in (tail[link], head[link]))
            parts.append(_Edges(a, b, rate[link], link))
            a, b = nics[ports] + aside, 3 * count + ports
            speed = domain.port[ports] / domain.port_wire[_SIMPLE, ports]
            numbers = len(tail) + cable * domain.nnics + ports
            parts.append(_Edges(*((b, a) if cable else (a, b)), speed, numbers))
    columns = ((p.tail, p.head, p.capacity, p.link) for p in parts)
    return _Edges(*(np.concatenate(c) for c in zip(*columns)))


def _joined(domain: Domain, used: I64) -> bool:
    """Return whether scale-up links alone lead from every rank to every other."""
    if isinstance(domain.inside, (Planes, Hubs)):
        return True
    tail, head = domain.start[domain.joins], domain.end[domain.joins]
    for a, b in ((tail, head), (head, tail)):  # from one rank to all others, and back
        reached, count = np.zeros(len(domain.vertices), dtype=bool), 0
        reached[used[0]] = True
        while count != (count := int(reached.sum())):
            reached[b[reached[a]]] = True
        if not reached[used].all():
            return False
    return True


def _relayed(domain: Domain, used: I64, staged: bool) -> Bools:
    """Return the links that end at ranks or switches, or at an accelerator that routes cross.

    An accelerator without a rank runs no kernel: it hands on what routes lead over it, no more.
    """
    idle = np.ones(len(domain.vertices), dtype=bool)
    idle[used] = idle[domain.ngpus :] = False
    found = np.asarray(~(idle[domain.start] | idle[domain.end]))
    if isinstance(domain.inside, Planes) or not idle.any():
        return found | staged
    if isinstance(domain.inside, Hubs) and not staged:  # hubs no rank is on are crossed by routes
        one = used[np.unique(domain.inside.hub[used], return_index=True)[1]]
        between = ~(domain.start < domain.ngpus) & ~(domain.end < domain.ngpus) & domain.joins
        i, j = (a.ravel() for a in np.meshgrid(one, one, indexing="ij"))
        between[domain.inside.routes(i, j).link] = False
        return np.asarray(found & ~between)
    if staged or len(used) > _ROUTED:
        return np.ones(len(found), dtype=bool)
    i, j = (a.ravel() for a in np.meshgrid(used, used, indexing="ij"))
    found[domain.inside.routes(i, j).link] = True
    return found


def _pruned(edges: _Edges, terminal: Bools) -> _Edges:
    """Return the edges without those that lead nowhere or come from nowhere."""
    while True:
        into = np.bincount(edges.head, minlength=len(terminal)) > 0
        out = np.bincount(edges.tail, minlength=len(terminal)) > 0
        good = (terminal | into)[edges.tail] & (terminal | out)[edges.head]
        if good.all():
            return edges
        edges = edges.some(good)


def _contracted(edges: _Edges, terminal: Bools) -> _Edges:
    """Return the edges with chains as one edge each, as wide as the narrowest link."""
    size = len(terminal)
    into, out = (np.bincount(v, minlength=size) for v in (edges.head, edges.tail))
    chain = ~terminal & (into == 1) & (out == 1)
    following = np.full(size, -1)
    following[edges.tail] = np.arange(len(edges.tail))
    head, rate, link = edges.head.copy(), edges.capacity.copy(), edges.link.copy()
    at = np.flatnonzero(~chain[edges.tail] & chain[head])
    while len(at):
        further = following[head[at]]
        # Of links as wide the one with the higher number gives its name: a cable, if one is there.
        less = edges.capacity[further] < rate[at]
        same = (edges.capacity[further] == rate[at]) & (edges.link[further] > link[at])
        take = less | same
        link[at[take]] = edges.link[further[take]]
        rate[at] = np.minimum(rate[at], edges.capacity[further])
        head[at] = edges.head[further]
        at = at[chain[head[at]]]
    kept = ~chain[edges.tail] & (edges.tail != head)
    return _Edges(edges.tail, head, rate, link).some(kept)
