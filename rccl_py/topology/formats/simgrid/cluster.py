"""SimGrid's <cluster>: its hosts, links and switches as a graph.

Owns the shapes FLAT (with or without a backbone), FAT_TREE, TORUS and DRAGONFLY, after SimGrid's
src/kernel/routing/{Cluster,FatTree,Torus,Dragonfly}Zone.cpp. Hosts are accelerators in order of
their radical. Of a shape's routes only the length is kept: which of several shortest ways a pair
takes is the library's own rule.

    FLAT      gpu - switch - gpu             with a backbone: gpu - in => out - gpu
    FAT_TREE  "2;4,4;1,2;1,2": levels; children of a switch; parents of a child; parallel links
    TORUS     "3,2,2": neighbours of every dimension, both ways
    DRAGONFLY "3,4;4,3;5,1;2": groups, links; chassis, links; blades, links; hosts of a blade
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from ....fabric.torus import Torus
from ....links import LinkType
from ...build import Network
from ..quantities import MAX_EDGES, MAX_GPUS, bare_link, join, parse_rate, parse_seconds, shown
from ..xml_plain import Part

__all__ = [
    "SOURCE",
    "Cluster",
    "as_nodes",
    "build_cluster",
    "cluster_of",
    "hosts_of",
    "one_way",
    "policy_of",
    "rate_of",
    "time_of",
]

SOURCE = "SimGrid platform file"
MAX_HOSTS = 100_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """A <cluster> as its attributes say: rates in B/s, latencies in s."""

    part: Part
    id: str
    hosts: tuple[str, ...]
    router: str
    bandwidth: float
    latency: float
    policy: str
    backbone: tuple[float, float, str] | None  # bandwidth, latency, policy
    shape: str
    parameters: str


def rate_of(part: Part, name: str) -> float:
    """Return an attribute as B/s; without a unit it is bytes per second, as SimGrid reads it."""
    try:
        return parse_rate(part.text(name))
    except ValueError as error:
        raise part.error(f"<{part.name}> {name}: {error}") from None


def time_of(part: Part, name: str) -> float:
    """Return an attribute as seconds; without a unit it is seconds, absent it is 0."""
    try:
        return parse_seconds(part.text(name) or "0")
    except ValueError as error:
        raise part.error(f"<{part.name}> {name}: {error}") from None


def policy_of(part: Part, name: str, default: str) -> str:
    """Return a sharing policy: SHARED, SPLITDUPLEX or FATPIPE."""
    text = part.text(name).upper() or default
    text = "SPLITDUPLEX" if text == "FULLDUPLEX" else text  # its spelling before SimGrid 3.19
    if text not in ("SHARED", "SPLITDUPLEX", "FATPIPE"):
        raise part.error(f"<{part.name}> {name}={shown(text)}: SHARED, SPLITDUPLEX or FATPIPE is "
                         "read")  # fmt: skip
    return text


def hosts_of(part: Part) -> tuple[str, ...]:
    """Return the host names that prefix, radical ("0-9,12") and suffix of `part` stand for."""
    ranges: list[tuple[int, int]] = []
    for group in re.split(r"[,;]", part.text("radical")):
        found = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9}))?\s*", group)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise part.error(f"<{part.name}> radical={shown(part.text('radical'))}: ranges such as "
                             "0-15 or 1-4,7 were expected")  # fmt: skip
        ranges.append((int(found[1]), int(found[2] or found[1])))
    count = sum(last - first + 1 for first, last in ranges)
    if count > MAX_HOSTS:
        raise part.error(f"<{part.name}> has {count} hosts: at most {MAX_HOSTS} are read")
    prefix, suffix = part.text("prefix"), part.text("suffix")
    return tuple(f"{prefix}{k}{suffix}" for low, high in ranges for k in range(low, high + 1))


def cluster_of(part: Part) -> Cluster:
    """Return what the <cluster> element `part` says."""
    backbone = None
    if part.text("bb_bw"):
        backbone = (rate_of(part, "bb_bw"), time_of(part, "bb_lat"),
                    policy_of(part, "bb_sharing_policy", "SHARED"))  # fmt: skip
    own = part.text("id")
    router = part.text("router_id") or f"{part.text('prefix')}{own}_router{part.text('suffix')}"
    return Cluster(
        part,
        own,
        hosts_of(part),
        router,
        rate_of(part, "bw"),
        time_of(part, "lat"),
        policy_of(part, "sharing_policy", "SPLITDUPLEX"),
        backbone,
        part.text("topology").upper() or "FLAT",
        part.text("topo_parameters"),
    )


def _levels(cluster: Cluster, groups: int, shape: str) -> list[list[int]]:
    """Return topo_parameters as `groups` lists of numbers, or say what was expected."""
    parts = cluster.parameters.split(";")
    numbers = [[item.strip() for item in part.split(",")] for part in parts]
    bad = [item for part in numbers for item in part if not re.fullmatch(r"\d{1,6}", item)]
    if len(parts) != groups or bad or any(int(i) < 1 for part in numbers for i in part):
        raise cluster.part.error(
            f"topo_parameters={shown(cluster.parameters)}: {shape} of whole numbers of 1 or more "
            "was expected"
        )
    return [[int(item) for item in part] for part in numbers]


def _need(cluster: Cluster, hosts: int, links: int) -> None:
    """Refuse a shape that has another number of hosts than the radical, or too many links."""
    if hosts != len(cluster.hosts):
        raise cluster.part.error(
            f"topo_parameters={shown(cluster.parameters)} are {hosts} hosts, but radical names "
            f"{len(cluster.hosts)}"
        )
    if 2 * links > MAX_EDGES:
        raise cluster.part.error(f"{2 * links} directed links: at most {MAX_EDGES} are read")


def _torus(graph: nx.DiGraph, cluster: Cluster, link: LinkType) -> None:
    (sides,) = _levels(cluster, 1, "a list such as 3,2,2")
    hosts = math.prod(sides)
    _need(cluster, hosts, hosts * len(sides))
    stride = 1
    for side in sides:
        for k in range(hosts):
            at = k // stride % side
            if at + 1 < side or (side > 2 and at == side - 1):
                after = k + stride if at + 1 < side else k - (side - 1) * stride
                join(graph, [(f"gpu{k}", f"gpu{after}")], link)
        stride *= side
    # Routed as our tori are: evenly over all shortest paths. SimGrid counts the first fastest.
    sizes = tuple(sides[::-1])
    shape = Torus(sizes, link.bandwidth, None, [size > 2 for size in sizes])
    graph.graph["torus"], graph.graph["relay"] = shape, link.latency[0]


def _fat_tree(graph: nx.DiGraph, cluster: Cluster, link: LinkType) -> None:
    (count, *rest), down, up, lanes = _levels(
        cluster, 4, "levels;down;up;lanes such as 2;4,4;1,2;1,2"
    )
    if rest or not count == len(down) == len(up) == len(lanes) or count > 8:
        raise cluster.part.error(f"topo_parameters={shown(cluster.parameters)}: down, up and lanes "
                                 f"need {count} numbers each (at most 8 levels)")  # fmt: skip
    sizes = [math.prod(up[:t]) * math.prod(down[t:]) for t in range(count + 1)]
    _need(cluster, sizes[0], sum(sizes[t] * up[t] for t in range(count)))
    for t in range(1, count + 1):
        graph.add_nodes_from((f"level{t}-{k}" for k in range(sizes[t])), kind="switch")
    for t in range(count):
        for k in range(sizes[t]):
            join(graph, _parents(k, t, down, up), link, lanes[t])


def _parents(k: int, level: int, down: list[int], up: list[int]) -> Iterator[tuple[str, str]]:
    """Return vertex k of a level with each of its parents.

    A vertex of a level is a number of mixed digits: digit j counts to up[j] below its level and
    to down[j] from there on; parent and child differ in the digit of the child's level only.
    """
    low = math.prod(up[:level])
    beneath, above = k % low, k // low // down[level]
    name = f"level{level}-{k}" if level else f"gpu{k}"
    for digit in range(up[level]):
        yield name, f"level{level + 1}-{beneath + low * (digit + up[level] * above)}"


def _dragonfly(graph: nx.DiGraph, cluster: Cluster, link: LinkType) -> None:
    levels = _levels(cluster, 4, "groups,links;chassis,links;blades,links;hosts")
    if [len(level) for level in levels] != [2, 2, 2, 1]:
        raise cluster.part.error(f"topo_parameters={shown(cluster.parameters)}: two numbers three "
                                 "times, then one, were expected")  # fmt: skip
    (groups, blue), (chassis, black), (blades, green), (nodes,) = levels
    each = chassis * blades
    if groups > each:
        raise cluster.part.error(f"{groups} groups, but a group of {each} routers has one for "
                                 f"every other group: at most {each} groups")  # fmt: skip
    routers = groups * each
    links = routers * (nodes + blades // 2 + chassis // 2 + 1) + groups * groups // 2
    _need(cluster, routers * nodes, links)
    graph.add_nodes_from((f"router{r}" for r in range(routers)), kind="switch")
    for r in range(routers):
        join(graph, [(f"gpu{r * nodes + k}", f"router{r}") for k in range(nodes)], link)
    for g in range(groups):
        for c in range(chassis):
            row = [f"router{(g * chassis + c) * blades + b}" for b in range(blades)]
            join(graph, combinations(row, 2), link, green)
        for b in range(blades):
            column = [f"router{(g * chassis + c) * blades + b}" for c in range(chassis)]
            join(graph, combinations(column, 2), link, black)
    for a, b in combinations(range(groups), 2):
        join(graph, [(f"router{a * each + b}", f"router{b * each + a}")], link, blue)


def _flat(graph: nx.DiGraph, cluster: Cluster, link: LinkType) -> None:
    """Join every host to the crossbar, or to both ends of the backbone."""
    hub_in = hub_out = "switch"
    graph.add_node("switch", kind="switch")
    if cluster.backbone is not None and cluster.backbone[2] == "SHARED":
        hub_out = "switch-out"
        graph.add_node(hub_out, kind="switch")
        rate, wait, _ = cluster.backbone
        one_way(graph, hub_in, hub_out, bare_link("simgrid-backbone", rate, wait, SOURCE))
    elif cluster.backbone is not None:  # FATPIPE limits each flow alone, and adds its latency
        rate, wait, _ = cluster.backbone
        link = bare_link(link.name, min(rate, link.bandwidth), link.latency[0] + wait / 2, SOURCE)
    for k in range(len(cluster.hosts)):
        low = f"gpu{k}"
        if cluster.policy == "SHARED":  # one resource for both ways
            graph.add_node(f"link{k}", kind="switch")
            graph.add_node(f"link{k}-out", kind="switch")
            own = bare_link("simgrid-join", link.bandwidth, 0.0, SOURCE)
            one_way(graph, f"link{k}", f"link{k}-out", link)
            one_way(graph, low, f"link{k}", own)
            one_way(graph, f"link{k}-out", low, own)
            one_way(graph, f"link{k}-out", hub_in, own)
            one_way(graph, hub_out, f"link{k}", own)
        else:
            one_way(graph, low, hub_in, link)
            one_way(graph, hub_out, low, link)


def one_way(graph: nx.DiGraph, a: str, b: str, link: LinkType) -> None:
    """Add the directed link a -> b."""
    graph.add_edge(a, b, link=link, lanes=1, raw=link.bandwidth, bandwidth=link.bandwidth,
                   latency=link.latency, message=link.message)  # fmt: skip


def as_nodes(graph: nx.DiGraph, cluster: Cluster) -> tuple[int, Network, list[str]]:
    """Make a crossbar too wide for one graph a node of one host, many of them under one leaf.

    Exact: a host's link is its NIC's cable, both links' latencies are the cable's, and the leaf
    joins all at full rate. Return how many nodes, their network and notes.
    """
    count, wide = len(cluster.hosts), cluster.backbone is None or cluster.backbone[2] == "FATPIPE"
    if cluster.shape != "FLAT" or cluster.policy != "SPLITDUPLEX" or not wide:
        raise cluster.part.error(f"{count} hosts: at most {MAX_GPUS} are read as one graph; only a "
                                 "SPLITDUPLEX crossbar without a shared backbone may have "
                                 f"{MAX_HOSTS}")  # fmt: skip
    rate, wait, _ = cluster.backbone or (cluster.bandwidth, 0.0, "")
    rate, wait = min(rate, cluster.bandwidth), 2 * cluster.latency + wait
    inner = bare_link("simgrid-host", rate, 0.0, SOURCE)
    port = bare_link("simgrid-cluster", rate, wait, SOURCE, "net")
    graph.add_node("gpu0", kind="gpu", index=0, host=0)
    graph.add_node("nic0", kind="nic", index=0, host=0, port=port)
    join(graph, [("gpu0", "nic0")], inner)
    network = Network(kind="leaf-spine", leaf_nodes=count, hop=0.0)
    return count, network, [f"SimGrid cluster {cluster.id}: crossbar of {count} hosts, a node each"]


_SHAPES = {"FLAT": _flat, "TORUS": _torus, "FAT_TREE": _fat_tree, "DRAGONFLY": _dragonfly}


def build_cluster(graph: nx.DiGraph, cluster: Cluster) -> list[str]:
    """Add the hosts, switches and links of `cluster` to an empty graph, and return its notes."""
    if cluster.shape not in _SHAPES:
        raise cluster.part.error(f"topology={shown(cluster.shape)}: {', '.join(_SHAPES)} are read")
    for k, name in enumerate(cluster.hosts):
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=k, label=name)
    link = bare_link("simgrid-cluster", cluster.bandwidth, cluster.latency, SOURCE)
    _SHAPES[cluster.shape](graph, cluster, link)
    notes = [f"SimGrid cluster {cluster.id}: {cluster.shape} of {len(cluster.hosts)} hosts"]
    if cluster.policy == "FATPIPE":
        notes.append("FATPIPE links of the cluster are shared here like any other")
    elif cluster.policy == "SHARED" and cluster.shape != "FLAT":
        notes.append("SHARED links of the cluster have their rate in each direction here, not in "
                     "both together")  # fmt: skip
    if cluster.shape != "FLAT":
        notes.append("pairs with several shortest ways use them as this library routes, not by "
                     "SimGrid's fixed choice")  # fmt: skip
    if cluster.part.text("limiter_link"):
        notes.append("limiter_link is not modelled")
    return notes
