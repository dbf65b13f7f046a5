"""SimGrid's routes: from zones and <route> elements to the links of every pair, and to a graph.

Owns how a route is found (Full: as given; Floyd and Dijkstra: fewest links; between zones: by
gateways) and how links that several routes share become vertices. Knows no XML.

A link that routes share is a pair of switch vertices, so that its capacity stands on one edge:

    gpu0 -> "link 4" ==> "link 4 out" -> "link 3" ==> "link 3 out" -> gpu2

SHARED: one such pair for both directions; SPLITDUPLEX: one for UP and one for DOWN; FATPIPE:
only its latency (and a lower rate) on the edge between its neighbours. A route none of whose
links another route uses is one edge. So is a route that is not the only shortest over its links:
that is said in a note, with its links no longer shared.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import networkx as nx

from ....links import LinkType
from ..quantities import MAX_EDGES, bare_link, shown
from ..xml_plain import Part
from .cluster import SOURCE, one_way

__all__ = ["Route", "SimLink", "Use", "Zone", "add_routes", "find_route"]


@dataclass(frozen=True, slots=True)
class SimLink:
    """A <link>: B/s and s."""

    id: str
    bandwidth: float
    latency: float
    policy: str


Use = tuple[SimLink, str]
"""A link and the direction it is used in: "UP", "DOWN", or "" where there is none."""


@dataclass(frozen=True, slots=True)
class Route:
    """The links of a <route>, or of a <zoneRoute> from gateway to gateway."""

    uses: tuple[Use, ...]
    gateways: tuple[str, str] = ("", "")


@dataclass(slots=True, eq=False)
class Zone:
    """A <zone> or <cluster>: what is in it, and the routes it gives."""

    id: str
    routing: str
    part: Part
    above: Zone | None = None
    points: set[str] = field(default_factory=set)  # hosts and routers
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    own: dict[str, tuple[tuple[Use, ...], tuple[Use, ...]]] = field(default_factory=dict)
    """In a cluster: by host, the links up to the crossbar and down from it."""
    backbone: tuple[Use, ...] = ()

    def chain(self) -> list[Zone]:
        """Return this zone and those above it, the outermost first."""
        above = self.above.chain() if self.above else []
        return [*above, self]


@dataclass(slots=True)
class Places:
    """Which zone each host and router is in, and paths already searched."""

    zone: dict[str, Zone]
    searched: dict[tuple[int, str], dict[str, list[tuple[str, str]]]] = field(default_factory=dict)


def _steps(places: Places, zone: Zone, a: str) -> dict[str, list[tuple[str, str]]]:
    """Return, per reachable point, the routes (by their ends) of fewest links from `a`."""
    key = (id(zone), a)
    if key not in places.searched:
        after: dict[str, list[tuple[str, int]]] = {}
        for (x, y), route in zone.routes.items():
            after.setdefault(x, []).append((y, max(1, len(route.uses))))
        done: dict[str, list[tuple[str, str]]] = {}
        queue: list[tuple[int, int, str, list[tuple[str, str]]]] = [(0, 0, a, [])]
        serial = 0
        while queue:
            cost, _, at, path = heapq.heappop(queue)
            if at in done:
                continue
            done[at] = path
            for y, length in after.get(at, ()):
                if y not in done:
                    serial += 1
                    heapq.heappush(queue, (cost + length, serial, y, [*path, (at, y)]))
        places.searched[key] = done
    return places.searched[key]


def _pieces(places: Places, zone: Zone, a: str, b: str) -> list[Route] | None:
    """Return the routes of `zone` that lead from point or zone `a` to `b`."""
    if (a, b) in zone.routes:
        return [zone.routes[a, b]]
    if zone.routing in ("Floyd", "Dijkstra"):
        path = _steps(places, zone, a).get(b)
        return None if path is None else [zone.routes[step] for step in path]
    return None


def _local(places: Places, zone: Zone, a: str, b: str) -> list[Use] | None:
    """Return the links between two points of one zone; None where it gives no route."""
    if zone.own and (a, b) not in zone.routes:
        up = zone.own[a][0] if a in zone.own else ()
        down = zone.own[b][1] if b in zone.own else ()
        return [*up, *zone.backbone, *down]
    pieces = _pieces(places, zone, a, b)
    return None if pieces is None else [use for piece in pieces for use in piece.uses]


def find_route(places: Places, a: str, b: str) -> list[Use] | None:
    """Return the links from host or router `a` to `b`; None where the platform gives no route."""
    if a == b:
        return []
    if a not in places.zone or b not in places.zone:
        return None
    one, two = places.zone[a].chain(), places.zone[b].chain()
    if one[-1] is two[-1]:
        return _local(places, one[-1], a, b)
    depth = next((k for k, (x, y) in enumerate(zip(one, two, strict=False)) if x is not y),
                 min(len(one), len(two)))  # fmt: skip
    if depth in (0, len(one), len(two)):
        return None  # a point beside a zone: SimGrid has no routes between those
    pieces = _pieces(places, one[depth - 1], one[depth].id, two[depth].id)
    if pieces is None:
        return None
    links: list[Use] = []
    at = a
    for piece in pieces:
        inner = find_route(places, at, piece.gateways[0])
        if inner is None:
            return None
        links += [*inner, *piece.uses]
        at = piece.gateways[1]
    last = find_route(places, at, b)
    return None if last is None else links + last


_Pair = tuple[int, int]
_Key = tuple[str, str]


@dataclass(slots=True)
class _Draft:
    """The graph being built from routes."""

    graph: nx.DiGraph
    routes: dict[_Pair, list[Use]]
    shared: Counter[_Key] = field(default_factory=Counter)
    paths: dict[_Pair, list[str]] = field(default_factory=dict)
    alone: set[_Pair] = field(default_factory=set)  # one edge: no link of theirs is shared
    forced: set[_Pair] = field(default_factory=set)  # one edge although links are shared
    kinds: dict[tuple[str, float, float], LinkType] = field(default_factory=dict)
    edges: int = 0  # laid over vertices so far; networkx would count them anew

    def link(self, name: str, bandwidth: float, latency: float) -> LinkType:
        key = (name, bandwidth, latency)
        if key not in self.kinds:
            self.kinds[key] = bare_link(name, bandwidth, latency, SOURCE)
        return self.kinds[key]


def _key(use: Use) -> _Key:
    return use[0].id, use[1]


def _direct(draft: _Draft, pair: _Pair) -> None:
    uses = draft.routes[pair]
    rate = min((link.bandwidth for link, _ in uses), default=1e12)  # assumed: 1 TB/s without links
    wait = sum(link.latency for link, _ in uses)
    name = f"simgrid-{uses[0][0].id}" if len(uses) == 1 else "simgrid-route"
    one_way(draft.graph, f"gpu{pair[0]}", f"gpu{pair[1]}", draft.link(name, rate, wait))


def _hops(draft: _Draft, pair: _Pair) -> Iterator[tuple[str, str, LinkType]]:
    """Return the edges of a route over the vertices of its links."""
    at, rate, wait, limit = f"gpu{pair[0]}", 0.0, 0.0, float("inf")
    for use in draft.routes[pair]:
        link, way = use
        if link.policy == "FATPIPE":
            wait, limit = wait + link.latency, min(limit, link.bandwidth)
            continue
        into = f"link {link.id} {way}".strip()
        # The edge between carries no more than either link, so it never is the narrow one.
        edge = min(max(rate, link.bandwidth), limit)
        yield at, into, draft.link("simgrid-join", edge, wait)
        yield into, f"{into} out", draft.link(f"simgrid-{link.id}", link.bandwidth, link.latency)
        at, rate, wait, limit = f"{into} out", link.bandwidth, 0.0, float("inf")
    yield at, f"gpu{pair[1]}", draft.link("simgrid-join", min(rate, limit), wait)


def _lay(draft: _Draft, pair: _Pair) -> bool:
    """Add a route over vertices; False, and nothing added, where an edge is there with another."""
    hops = list(_hops(draft, pair))
    vertices = [a for a, _, _ in hops] + [hops[-1][1]]
    if len(set(vertices)) < len(vertices):
        return False
    for a, b, link in hops:
        if draft.graph.has_edge(a, b) and draft.graph.edges[a, b]["link"] != link:
            return False
    for a, b, link in hops:
        for v in (a, b):
            if v not in draft.graph:
                draft.graph.add_node(v, kind="switch")
        if not draft.graph.has_edge(a, b):
            one_way(draft.graph, a, b, link)
            draft.edges += 1
    draft.paths[pair] = vertices
    return True


def _ways(graph: nx.DiGraph, source: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return hops from an accelerator over switches, and in how many shortest ways."""
    hops, ways = {source: 0}, {source: 1}
    layer = [source]
    while layer:
        following: list[str] = []
        for a in layer:
            if a != source and graph.nodes[a]["kind"] == "gpu":
                continue
            for b in graph.successors(a):
                if b not in hops:
                    hops[b], ways[b] = hops[a] + 1, 0
                    following.append(b)
                if hops[b] == hops[a] + 1:
                    ways[b] += ways[a]
        layer = following
    return hops, ways


def _verify(draft: _Draft) -> None:
    """Mark the routes that are not the only shortest way between their ends."""
    by_source: dict[int, list[_Pair]] = {}
    for pair in draft.paths:
        by_source.setdefault(pair[0], []).append(pair)
    for source, pairs in by_source.items():
        hops, ways = _ways(draft.graph, f"gpu{source}")
        for pair in pairs:
            target = f"gpu{pair[1]}"
            if hops[target] != len(draft.paths[pair]) - 1 or ways[target] != 1:
                draft.forced.add(pair)


def add_routes(graph: nx.DiGraph, hosts: list[str], places: Places, part: Part) -> list[str]:
    """Add the links of all routes between `hosts` (gpu0, gpu1 …) to `graph`; return notes."""
    draft, missing = _Draft(graph, {}), 0
    for i, a in enumerate(hosts):
        for j, b in enumerate(hosts):
            if i != j:
                uses = find_route(places, a, b)
                missing += uses is None
                if uses is not None:
                    draft.routes[i, j] = uses
    for uses in draft.routes.values():
        draft.shared.update({_key(use) for use in uses if use[0].policy != "FATPIPE"})
    for pair, uses in draft.routes.items():
        if all(use[0].policy == "FATPIPE" or draft.shared[_key(use)] == 1 for use in uses):
            draft.alone.add(pair)
        elif not _lay(draft, pair):
            draft.forced.add(pair)
        if draft.edges + len(draft.alone) + len(draft.forced) > MAX_EDGES:
            raise part.error(f"the routes need more than {MAX_EDGES} directed links")
    _verify(draft)
    for pair in sorted(draft.alone | draft.forced):
        _direct(draft, pair)
    return _said(draft, hosts, missing)


def _said(draft: _Draft, hosts: list[str], missing: int) -> list[str]:
    notes = []
    if draft.forced:
        a, b = min(draft.forced)
        notes.append(
            f"{len(draft.forced)} of {len(draft.routes)} routes (first {shown(hosts[a])} -> "
            f"{shown(hosts[b])}) are not the only shortest over their links: each is a link of its "
            "own at the rate of its slowest, shared with no other route"
        )
    if missing:
        notes.append(f"{missing} pair(s) of hosts have no route in the file: they are relayed "
                     "through others, or out of reach")  # fmt: skip
    return notes
