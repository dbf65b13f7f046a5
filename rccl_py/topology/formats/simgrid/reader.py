"""Read a SimGrid platform file (DTD version 4 and 4.1) as one graph of its hosts.

Owns which elements are read and what they mean. Hosts are accelerators of the generic device,
links keep their bandwidth and latency (SimGrid's own TCP factors are not applied), and rates that
change over time are taken at their start. One <cluster> of any shape, or zones with routing Full,
Floyd, Dijkstra, Cluster or None and flat clusters within. What has no such meaning here (Vivaldi,
Wifi, <peer>) is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

from ....links import DEVICES
from ...build import Network, Topology, new_graph
from ..quantities import MAX_GPUS, shown, without
from ..xml_plain import Part, read_parts
from ..xml_tree import Notes
from .cluster import (
    Cluster,
    as_nodes,
    build_cluster,
    cluster_of,
    hosts_of,
    policy_of,
    rate_of,
    time_of,
)
from .routes import Places, Route, SimLink, Use, Zone, add_routes

__all__ = ["is_simgrid", "read_simgrid"]

_WHAT = "a SimGrid platform"
_MAX_ROUTED = 256  # hosts whose routes are found pair by pair: 65,280 routes
_ROUTING = {"full": "Full", "floyd": "Floyd", "dijkstra": "Dijkstra", "dijkstracache": "Dijkstra",
            "cluster": "Cluster", "none": "None", "vivaldi": "None"}  # fmt: skip
_SILENT = {"prop", "config", "actor", "process", "random"}
_REFUSED = {
    "peer": "Vivaldi coordinates have no links",
    "bypassZoneRoute": "routes that bypass zones are not read",
    "bypassASroute": "routes that bypass zones are not read",
    "include": "SimGrid itself no longer reads it",
}


def is_simgrid(text: str) -> bool:
    """Say whether `text` looks like a SimGrid platform file."""
    head = without(text[:65536], "<!--", "-->")
    return bool(re.search(r"<platform[\s>]", head)) and head.lstrip("\ufeff \t\r\n")[:1] == "<"


@dataclass(slots=True)
class _Platform:
    """What has been read so far."""

    notes: Notes
    hosts: list[str] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    zones: dict[str, Zone] = field(default_factory=dict)
    links: dict[str, SimLink] = field(default_factory=dict)
    places: Places = field(default_factory=lambda: Places({}))


def _place(platform: _Platform, zone: Zone, part: Part, name: str, host: bool) -> None:
    if not name:
        raise part.error(f"<{part.name}> has no id")
    if name in platform.places.zone:
        raise part.error(f"<{part.name}> {shown(name)} is given twice")
    if zone.routing == "Cluster" and host:
        zone.own.setdefault(name, ((), ()))
    platform.places.zone[name] = zone
    zone.points.add(name)
    if host:
        platform.hosts.append(name)
        if len(platform.hosts) > MAX_GPUS:
            raise part.error(f"more than {MAX_GPUS} hosts: at most so many are read as one graph")


def _new_zone(platform: _Platform, part: Part, routing: str, above: Zone | None) -> Zone:
    name = part.text("id")
    if name in platform.zones:
        raise part.error(f"<{part.name}> {shown(name)} is given twice")
    platform.zones[name] = Zone(name, routing, part, above)
    return platform.zones[name]


def _add_link(platform: _Platform, part: Part, default: str = "SHARED") -> SimLink:
    name = part.text("id")
    if not name or name in platform.links:
        raise part.error(f"<{part.name}> {shown(name)} is given twice, or has no id")
    if part.text("sharing_policy").upper() == "WIFI":
        raise part.error(f"<link> {shown(name)} is WIFI: radio links are not read")
    for profile in ("bandwidth_file", "latency_file", "state_file"):
        if part.text(profile):
            platform.notes.add(f"{profile} of a link is not read: its start value holds", part.line)
    policy = policy_of(part, "sharing_policy", default)
    link = SimLink(name, rate_of(part, "bandwidth"), time_of(part, "latency"), policy)
    platform.links[name] = link
    return link


def _use(platform: _Platform, part: Part, name: str, way: str = "") -> Use:
    """Return the link called `name`; of a split link also ``name_UP`` and ``name_DOWN``."""
    link = platform.links.get(name)
    suffix = re.fullmatch(r"(.+)_(UP|DOWN)", name)
    if link is None and suffix and suffix[1] in platform.links:
        link, way = platform.links[suffix[1]], suffix[2]
    if link is None:
        raise part.error(f"<{part.name}>: link {shown(name)} is not defined above")
    if link.policy != "SPLITDUPLEX":
        return link, ""
    return link, "DOWN" if way.upper() == "DOWN" else "UP"  # UP unless it says otherwise


def _turned(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    other = {"UP": "DOWN", "DOWN": "UP", "": ""}
    return tuple((link, other[way]) for link, way in reversed(uses))


def _add_route(platform: _Platform, zone: Zone, part: Part) -> None:
    """Read <route>, <bypassRoute>, <zoneRoute> or <ASroute>."""
    between = part.name in ("zoneRoute", "ASroute")
    ends = part.text("src"), part.text("dst")
    for end in ends:
        inside = platform.zones.get(end) if between else platform.places.zone.get(end)
        if inside is None or (inside.above if between else inside) is not zone:
            what = "a zone" if between else "a host or router"
            raise part.error(f"<{part.name}>: {shown(end)} is not {what} of zone {shown(zone.id)}")
    gateways = (part.text("gw_src"), part.text("gw_dst")) if between else ("", "")
    for gateway, end in zip(gateways, ends, strict=True):
        home = platform.places.zone.get(gateway)
        if between and (home is None or platform.zones[end] not in home.chain()):
            raise part.error(f"<{part.name}>: gateway {shown(gateway)} is no host or router of "
                             f"zone {shown(end)}")  # fmt: skip
    uses = tuple(_use(platform, ctn, ctn.text("id"), ctn.text("direction"))
                 for ctn in part.all("link_ctn"))  # fmt: skip
    bypass = part.name == "bypassRoute"
    if ends in zone.routes and not bypass:
        raise part.error(f"<{part.name}> {shown(ends[0])} -> {shown(ends[1])} is given twice")
    zone.routes[ends] = Route(uses, gateways)
    if part.text("symmetrical").upper() != "NO" and not bypass:
        back = Route(_turned(uses), (gateways[1], gateways[0]))
        zone.routes.setdefault((ends[1], ends[0]), back)


def _flat(platform: _Platform, zone: Zone, cluster: Cluster) -> None:
    """Read a flat cluster among other zones: its hosts, their links, its backbone and router."""
    if cluster.part.text("limiter_link"):
        platform.notes.add("limiter_link is not modelled", cluster.part.line)
    for name in cluster.hosts:
        _place(platform, zone, cluster.part, name, host=True)
        link = SimLink(f"{cluster.id}/{name}", cluster.bandwidth, cluster.latency, cluster.policy)
        split = cluster.policy == "SPLITDUPLEX"
        zone.own[name] = ((link, "UP" if split else ""),), ((link, "DOWN" if split else ""),)
    _place(platform, zone, cluster.part, cluster.router, host=False)
    if cluster.backbone is not None:
        zone.backbone = ((SimLink(f"{cluster.id}/backbone", *cluster.backbone), ""),)


def _cabinet(platform: _Platform, zone: Zone, part: Part) -> None:
    if zone.routing != "Cluster":
        raise part.error("<cabinet> outside a zone of routing Cluster is not read")
    rate, wait = rate_of(part, "bw"), time_of(part, "lat")
    for name in hosts_of(part):
        _place(platform, zone, part, name, host=True)
        link = SimLink(f"{zone.id}/{name}", rate, wait, "SPLITDUPLEX")
        zone.own[name] = ((link, "UP"),), ((link, "DOWN"),)


def _host_link(platform: _Platform, zone: Zone, part: Part) -> None:
    name = part.text("id")
    if zone.routing != "Cluster" or name not in zone.points:
        raise part.error(f"<host_link>: {shown(name)} is no host of a zone of routing Cluster")
    up = _use(platform, part, part.text("up"), "UP")
    down = _use(platform, part, part.text("down"), "DOWN")
    zone.own[name] = (up,), (down,)


def _read_zone(platform: _Platform, part: Part, above: Zone | None) -> None:
    routing = part.text("routing")
    known = _ROUTING.get(routing.lower())  # a Vivaldi zone around one other zone adds nothing
    if known is None:
        raise part.error(f"zone {shown(part.text('id'))}: routing {shown(routing)} is not read: "
                         "expected Full, Floyd, Dijkstra, Cluster or None")  # fmt: skip
    zone, homes = _new_zone(platform, part, known, above), 0
    for child in part.parts:
        before = len(platform.hosts)
        _read_child(platform, zone, child)
        homes += len(platform.hosts) > before
    if routing.lower() == "vivaldi" and (homes > 1 or zone.points):
        raise part.error(f"zone {shown(zone.id)} joins hosts by Vivaldi coordinates: only links "
                         "are read")  # fmt: skip


def _read_child(platform: _Platform, zone: Zone, child: Part) -> None:
    match child.name:
        case "zone" | "AS":
            _read_zone(platform, child, zone)
        case "cluster":
            _read_cluster(platform, child, zone)
        case "host" | "router":
            for profile in ("speed_file", "availability_file", "state_file"):
                if child.text(profile):
                    platform.notes.add(f"{profile} of a host is not read", child.line)
            _place(platform, zone, child, child.text("id"), host=child.name == "host")
        case "link":
            _add_link(platform, child)
        case "backbone":
            zone.backbone = ((_add_link(platform, child), ""),)
        case "cabinet":
            _cabinet(platform, zone, child)
        case "host_link":
            _host_link(platform, zone, child)
        case "route" | "bypassRoute" | "zoneRoute" | "ASroute":
            _add_route(platform, zone, child)
        case name if name in _REFUSED:
            raise child.error(f"<{name}> cannot be represented: {_REFUSED[name]}")
        case name if name not in _SILENT:
            platform.notes.add(f"<{name[:40]}> is ignored", child.line)


def _read_cluster(platform: _Platform, part: Part, above: Zone | None) -> None:
    cluster = cluster_of(part)
    platform.clusters.append(cluster)
    zone = _new_zone(platform, part, "Cluster", above)
    if len(cluster.hosts) <= MAX_GPUS and cluster.shape == "FLAT":
        _flat(platform, zone, cluster)


def _elements(root: Part) -> Iterator[Part]:
    if root.name != "platform":
        raise root.error(f"the root element is <{root.name[:40]}>: expected <platform>")
    version = root.text("version")
    if not re.fullmatch(r"4(\.\d+)?", version):
        raise root.error(f"<platform> version {shown(version)}: 4 or 4.1 is read "
                         "(simgrid_update_xml upgrades older files)")  # fmt: skip
    for part in root.parts:
        if part.name in ("zone", "AS", "cluster"):
            yield part
        elif part.name in _REFUSED:
            raise part.error(f"<{part.name}> cannot be represented: {_REFUSED[part.name]}")


def read_simgrid(path: Path) -> Topology:
    """Return the machine that the SimGrid platform file at `path` describes.

    Raises FormatError (file, line, what is wrong or cannot be represented).
    """
    root = read_parts(path, _WHAT)
    platform, graph = _Platform(Notes()), new_graph(path.stem)
    for part in _elements(root):
        if part.name == "cluster":
            _read_cluster(platform, part, None)
        else:
            _read_zone(platform, part, None)
    said = ["SimGrid platform: links as they are, without SimGrid's TCP factors; hosts are "
            "accelerators of the generic device (launch and memory assumed)"]  # fmt: skip
    nodes, network = 1, Network()
    only = platform.clusters[0] if len(platform.clusters) == 1 else None
    if only is None or platform.hosts not in ([], list(only.hosts)):
        said += _routed(platform, graph, root)
    elif len(only.hosts) > MAX_GPUS:
        nodes, network, more = as_nodes(graph, only)
        said += more
    else:
        said += build_cluster(graph, only)
    notes = (*said, *platform.notes.lines())
    return Topology(path.stem, graph, DEVICES["generic"], nodes, network, notes)


def _routed(platform: _Platform, graph: nx.DiGraph, root: Part) -> list[str]:
    """Add hosts whose routes are found pair by pair."""
    for odd in platform.clusters:
        if odd.shape != "FLAT" or len(odd.hosts) > MAX_GPUS:
            raise odd.part.error(f"a {odd.shape} cluster of {len(odd.hosts)} hosts beside other "
                                 "hosts is not read: one cluster alone, or flat ones")  # fmt: skip
    count = len(platform.hosts)
    if not count:
        raise root.error("no <host> and no <cluster> is found")
    if count > _MAX_ROUTED:
        raise root.error(f"{count} hosts with routes of their own: at most {_MAX_ROUTED} are read; "
                         f"one <cluster> may have {MAX_GPUS}")  # fmt: skip
    for k, name in enumerate(platform.hosts):
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=k, label=name)
    return add_routes(graph, platform.hosts, platform.places, root)
