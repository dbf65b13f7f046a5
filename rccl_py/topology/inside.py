"""Routes between the accelerators of one node: which way each pair goes, and how that is held.

Owns how a route is chosen, in this order: a direct scale-up link; switches alone, over all
shortest ways, split by bandwidth; the shortest scale-up path through peers (the widest of those);
the host's PCI tree. A node of switches of one level, and an intact torus, need no list: their
routes are computed (rccl_py.fabric.inside).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..fabric import F64, Found, Hubs, Inside, Listed, Planes, Searched, Table, Wired
from ..fabric.torus import Torus
from .build import SCALE_UP
from .node_graph import Entries, NodeGraph, widest_shortest

__all__ = ["inside_of"]

_LISTED = 32
"""Nodes of up to so many accelerators have every pair listed; larger ones are searched by need."""

_HUBS = 64  # switches with accelerators whose routes are all worked out at once


@dataclass(frozen=True, eq=False, slots=True)
class _Draft:
    """Routes being collected, by key."""

    entries: list[Entries]
    latency: F64
    message: F64
    done: np.ndarray
    coherent: np.ndarray

    @staticmethod
    def empty(keys: int) -> _Draft:
        no = np.zeros(keys, dtype=bool)
        return _Draft([], np.zeros((3, keys)), np.zeros(keys), no, no.copy())

    def found(self) -> Found:
        table = Table.of(len(self.done), self.entries)
        return Found(table, self.latency, self.message, self.done, self.coherent)


def _chain(g: NodeGraph, edges: list[tuple[str, str]]) -> F64:
    """Return the latency of links in a row: float64[3], s.

    In a torus of accelerators only the first hop has the link's hand-shake; the others relay.
    """
    relay = g.graph.graph.get("relay")
    if relay is None:
        return np.asarray(sum(g.latency(*e) for e in edges))
    return g.latency(*edges[0]) + float(relay) * (len(edges) - 1)


def _fill(g: NodeGraph, draft: _Draft, key: int, path: list[str]) -> None:
    """Write one single-path route into `draft`."""
    edges = list(pairwise(path))
    draft.entries.append(
        (np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges)))
    )
    draft.latency[:, key] = _chain(g, edges)
    media = [g.medium(*e) for e in edges]
    if not SCALE_UP.intersection(media):
        # A host path pays PCI's hand-shake once, however many bridges it crosses.
        first = next((g.edge(*e)["link"] for e in edges if g.medium(*e) == "pci"), None)
        if first is not None:
            draft.latency[:, key] += np.array(first.latency)
    draft.message[key] = max(g.edge(*e)["message"] for e in edges)
    draft.done[key] = True
    draft.coherent[key] = all(g.edge(*e)["link"].coherent for e in edges)


def _levels(g: NodeGraph, source: str) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return hops from `source`, and who leads to each vertex, over scale-up links and switches."""
    hops, before = {source: 0}, dict[str, list[str]]()
    layer = [source]
    while layer:
        following = []
        for a in layer:
            if a != source and g.kind(a) != "switch":
                continue  # a route through switches alone ends at the first accelerator
            for b, _ in g.scale_up.get(a, ()):
                if hops.get(b, hops[a] + 1) != hops[a] + 1:
                    continue
                if b not in hops:
                    hops[b] = hops[a] + 1
                    following.append(b)
                before.setdefault(b, []).append(a)
        layer = following
    return hops, before


@dataclass(frozen=True, eq=False, slots=True)
class _Way:
    """What a unit of flow crosses on every shortest way: links, shares, and what they cost."""

    links: list[int]
    shares: list[float]
    latency: tuple[float, float, float]
    message: float


def _way(g: NodeGraph, target: str, hops: dict[str, int], before: dict[str, list[str]],
         known: dict[str, _Way]) -> _Way:  # fmt: skip
    """Return the way to `target` that takes every shortest one, split by bandwidth.

    What arrives at a vertex comes from those before it in proportion to their links; over one
    switch, in proportion to the narrower of its two links. known: ways already found from here;
    where one vertex leads to the target, its way is continued.
    """
    if target in known:
        return known[target]
    if hops[target] > 1 and len(before[target]) == 1:
        a = before[target][0]
        so_far, edge = _way(g, a, hops, before, known), g.edge(a, target)
        ll, ll128, simple = edge["latency"]
        found = _Way(
            [*so_far.links, g.number[a, target]],
            [*so_far.shares, 1.0],
            (so_far.latency[0] + ll, so_far.latency[1] + ll128, so_far.latency[2] + simple),
            max(so_far.message, edge["message"]),
        )
    else:
        found = _split(g, target, hops, before)
    known[target] = found
    return found


def _split(g: NodeGraph, target: str, hops: dict[str, int], before: dict[str, list[str]]) -> _Way:
    """Return the way to `target`, worked out hop by hop from its end."""
    flow, links, shares, message = {target: 1.0}, list[int](), list[float](), 0.0
    waits = [0.0, 0.0, 0.0]
    for _ in range(hops[target]):
        earlier: dict[str, float] = {}
        for b, share in flow.items():
            widths = [_narrow(g, a, b, before) for a in before[b]]
            total = sum(widths)
            for a, width in zip(before[b], widths):
                part = share * width / total if total else 0.0
                if part:
                    edge = g.edge(a, b)
                    links.append(g.number[a, b])
                    shares.append(part)
                    for p, wait in enumerate(edge["latency"]):
                        waits[p] += part * wait
                    message = max(message, edge["message"])
                    earlier[a] = earlier.get(a, 0.0) + part
        flow = earlier
    return _Way(links, shares, (waits[0], waits[1], waits[2]), message)


def _spread(draft: _Draft, key: int, way: _Way) -> None:
    """Write a way through switches into `draft`."""
    draft.entries.append((np.full(len(way.links), key), np.array(way.links), np.array(way.shares)))
    draft.latency[:, key], draft.message[key] = way.latency, way.message
    draft.done[key] = draft.coherent[key] = True


def _narrow(g: NodeGraph, a: str, b: str, before: dict[str, list[str]]) -> float:
    """Return the B/s of the link a -> b, or of the widest way into `a` if that is less."""
    into = max((g.bandwidth(v, a) for v in before.get(a, ())), default=np.inf)
    return min(g.bandwidth(a, b), into)


def _from(g: NodeGraph, draft: _Draft, i: int, first: int) -> None:
    """Write the routes from accelerator i to all others into `draft`, from key `first` on."""
    a = g.gpus[i]
    index = {v: k for k, v in enumerate(g.gpus)}
    draft.done[first + i] = draft.coherent[first + i] = True
    for b, _ in g.scale_up.get(a, ()):
        if b in index:
            _fill(g, draft, first + index[b], [a, b])

    def still(targets: Iterable[int]) -> list[int]:
        return [j for j in targets if not draft.done[first + j]]

    left = still(range(len(g.gpus)))
    if left and g.has_switches:
        hops, before = _levels(g, a)
        known: dict[str, _Way] = {}
        for j in left:
            if g.gpus[j] in hops:
                _spread(draft, first + j, _way(g, g.gpus[j], hops, before, known))
        left = still(left)
    for search in (_over_peers, _over_host) if left else ():
        paths = search(g, a)
        for j in left:
            if g.gpus[j] in paths:
                _fill(g, draft, first + j, paths[g.gpus[j]])
        left = still(left)


def _over_peers(g: NodeGraph, a: str) -> dict[str, list[str]]:
    return widest_shortest(g.scale_up, a, lambda v: g.kinds[v] != "nic")


def _over_host(g: NodeGraph, a: str) -> dict[str, list[str]]:
    return widest_shortest(g.host, a, lambda v: g.kinds[v] in ("pci", "cpu"))


def _planes(g: NodeGraph) -> Planes | None:
    """Return the routes of a node whose accelerators are joined by one level of switches only."""
    index = {v: i for i, v in enumerate(g.gpus)}
    switches = {v: k for k, v in enumerate(v for v in g.graph if g.kind(v) == "switch")}
    if not switches:
        return None
    up = np.full((len(index), len(switches)), -1, dtype=np.int64)
    down = up.copy()
    for number, (a, b, data) in enumerate(g.edges):
        if data["link"].medium not in SCALE_UP:
            continue
        if a in index and b in switches:
            up[index[a], switches[b]] = number
        elif a in switches and b in index:
            down[index[b], switches[a]] = number
        else:
            return None
    own = Planes(
        up,
        down,
        np.append(g.column("bandwidth"), 0.0),
        np.array([*g.column("latency"), (0.0, 0.0, 0.0)]).T,
        np.append(g.column("message"), 0.0),
    )
    # Two accelerators that share no switch are joined some other way: then all are listed.
    joined = (own.bandwidth[up] > 0).astype(np.float32) @ (own.bandwidth[down] > 0).T
    return own if joined.min(initial=1.0) > 0 else None


def _hubs(g: NodeGraph) -> Hubs | None:
    """Return the routes of a node whose accelerators have one scale-up link each, to a switch."""
    index = {v: i for i, v in enumerate(g.gpus)}
    switches = {v: k for k, v in enumerate(v for v in g.graph if g.kind(v) == "switch")}
    up, down, hub = (np.full(len(index), -1, dtype=np.int64) for _ in range(3))
    for number, (a, b, data) in enumerate(g.edges):
        if data["link"].medium not in SCALE_UP:
            continue
        gpu, other, way = (a, b, up) if a in index else (b, a, down)
        if gpu not in index:
            continue
        if other not in switches or way[index[gpu]] >= 0:
            return None
        if hub[index[gpu]] not in (-1, switches[other]):
            return None
        way[index[gpu]], hub[index[gpu]] = number, switches[other]
    if min(up.min(initial=0), down.min(initial=0)) < 0:
        return None
    names = list(switches)
    used, hub = np.unique(hub, return_inverse=True)
    if len(used) > _HUBS:
        return None
    draft = _Draft.empty(len(used) ** 2)
    for k, a in enumerate(names[v] for v in used):
        hops, before = _levels(g, a)
        known: dict[str, _Way] = {}
        for j, b in enumerate(names[v] for v in used):
            key = k * len(used) + j
            if a == b:
                draft.done[key] = True
            elif b in hops:
                _spread(draft, key, _way(g, b, hops, before, known))
    if not draft.done.all():
        return None
    return Hubs(
        up,
        down,
        hub,
        len(used),
        draft.found(),
        np.array(g.column("latency")).T,
        np.array(g.column("message")),
    )


def _torus(g: NodeGraph) -> Wired | None:
    """Return the routes of an intact torus of accelerators, which builders mark by `torus`."""
    torus: Torus | None = g.graph.graph.get("torus")
    if torus is None:
        return None
    efficiency = None
    numbers = []
    for a, b, rate in torus.edges():
        ends = (f"gpu{a.removeprefix('node')}", f"gpu{b.removeprefix('node')}")
        if ends not in g.number:
            return None
        data = g.edge(*ends)
        efficiency = efficiency or data["bandwidth"] / rate
        if abs(data["bandwidth"] / rate - efficiency) > 1e-9:
            return None
        numbers.append(g.number[ends])
    if not numbers:
        return None
    first, relay = g.edges[numbers[0]][2], float(g.graph.graph["relay"])
    link = np.array(numbers, dtype=np.int64)
    return Wired(
        torus,
        link,
        np.array(first["latency"]),
        relay,
        first["message"],
        first["link"].coherent,
    )


def inside_of(g: NodeGraph) -> Inside:
    """Return the routes between every two accelerators of a node; none where nothing joins them."""
    m = len(g.gpus)
    structured = _torus(g) or _planes(g) or _hubs(g)
    if structured is not None:
        return structured
    if m <= _LISTED:
        every = _Draft.empty(m * m)
        for i in range(m):
            _from(g, every, i, i * m)
        return Listed(m, every.found())

    own = _Search(g)
    return Searched(own.search, own.reach, all((b, a) in g.number for a, b, _ in g.edges))


@dataclass(frozen=True, eq=False)
class _Search:
    """What a large graph answers about one of its accelerators (a class, so that it can travel)."""

    g: NodeGraph

    def search(self, i: int) -> Found:
        """Return the routes from accelerator i."""
        draft = _Draft.empty(len(self.g.gpus))
        _from(self.g, draft, i, 0)
        return draft.found()

    def reach(self, i: int) -> np.ndarray:
        """Return which accelerators are joined to accelerator i."""
        return _reach(self.g, i)


def _reach(g: NodeGraph, i: int) -> np.ndarray:
    """Return which accelerators are joined to accelerator i: bool[m], without their routes."""
    reached = {g.gpus[i]}
    for links, through in (
        (g.scale_up, lambda kind: kind != "nic"),
        (g.host, lambda kind: kind in ("pci", "cpu")),
    ):
        seen, layer = {g.gpus[i]}, [g.gpus[i]]
        while layer:
            following = [b for a in layer for b, _ in links.get(a, ()) if b not in seen]
            layer = [b for b in dict.fromkeys(following) if through(g.kinds[b])]
            seen.update(following)
        reached |= seen
    return np.array([v in reached for v in g.gpus])
