"""Key figures of a machine: what one accelerator can send, and what crosses its middle.

Owns scale-up and scale-out bandwidth per accelerator and the bisection bandwidth of a node, raw
and usable, in B/s per direction; network_halving has that of the network. Reads the graph of one
node; knows no routes, no ranks and no time. A bisection is what can be sent at once from one half
of the accelerators to the other, over the worst choice of halves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import networkx as nx

from .build import SCALE_UP, Topology, gpus_of
from .halving import node_bisection
from .kinds import used_nics

_HUB = re.compile(r"package\d+")

__all__ = [
    "Bisection",
    "Rates",
    "Spread",
    "bisection",
    "host_bandwidth",
    "host_bisection",
    "limited",
    "node_ports",
    "package_bandwidth",
    "scale_out_bandwidth",
    "scale_out_bisection",
    "scale_up_bandwidth",
]


@dataclass(frozen=True, slots=True)
class Rates:
    """B/s per direction: raw as the link is sold, usable after what links.py says is lost."""

    raw: float
    usable: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The least and the most of the accelerators have; equal on regular machines."""

    least: Rates
    most: Rates


@dataclass(frozen=True, slots=True)
class Bisection:
    """B/s per direction over the worst halving. exact: all halvings are accounted for.

    Where exact is False the figure is the least found, so the true one is at most this. how: what
    it was read from.
    """

    raw: float
    usable: float
    exact: bool
    how: str


def _spread(rows: list[Rates]) -> Spread:
    raw, usable = [r.raw for r in rows] or [0.0], [r.usable for r in rows] or [0.0]
    return Spread(Rates(min(raw), min(usable)), Rates(max(raw), max(usable)))


def _is_scale_up(graph: nx.DiGraph, a: str, b: str) -> bool:
    return graph.edges[a, b]["link"].medium in SCALE_UP


def _out(graph: nx.DiGraph, vertices: set[str], inside: set[str], scale_up: bool = True) -> Rates:
    """Return what the links of `vertices` carry together to vertices that are not `inside`."""
    own = [
        graph.edges[a, b]
        for a in sorted(vertices)
        for b in graph.successors(a)
        if b not in inside
        and _is_scale_up(graph, a, b) == scale_up
        and graph.nodes[b]["kind"] != "nic"
    ]
    return Rates(float(sum(e["raw"] for e in own)), float(sum(e["bandwidth"] for e in own)))


def _packages(graph: nx.DiGraph) -> list[tuple[list[str], set[str]]]:
    """Return the accelerators that are partitions of one package, and its own switches.

    Readers say it by the attribute ``package``, or by a switch named ``package3``.
    A switch is a package's own where all accelerators beside it are of that package.
    """
    parts: dict[object, list[str]] = {}
    for gpu in gpus_of(graph):
        hub = next((v for v in graph.successors(gpu) if _HUB.fullmatch(v)
                    and graph.nodes[v]["kind"] == "switch"), None)  # fmt: skip
        package = graph.nodes[gpu].get("package", hub)
        if package is not None:
            parts.setdefault(package, []).append(gpu)
    found = []
    for members in parts.values():
        own = set(members)
        near = {v for gpu in members for v in graph.successors(gpu)
                if graph.nodes[v]["kind"] == "switch"}  # fmt: skip
        hubs = {v for v in near if all(w in own for w in graph.successors(v)
                                       if graph.nodes[w]["kind"] == "gpu")}  # fmt: skip
        found.append((members, hubs))
    return found


def scale_up_bandwidth(topology: Topology) -> Spread:
    """Return what an accelerator's scale-up links carry together, out of it; 0 without any.

    Of a partition: its share of what leaves its package; of a machine of one package, what leaves
    the partition.
    """
    graph = topology.node
    packages = _packages(graph)
    outside = {}
    for members, hubs in packages:
        whole = _out(graph, {*members, *hubs}, {*members, *hubs})
        share = Rates(whole.raw / len(members), whole.usable / len(members))
        outside.update(dict.fromkeys(members, share))
    if len(packages) < 2:
        outside = {}
    return _spread([outside.get(gpu) or _out(graph, {gpu}, set()) for gpu in gpus_of(graph)])


def package_bandwidth(topology: Topology) -> Spread | None:
    """Return what a partition sends inside its package; None where nothing is partitioned."""
    graph, rows = topology.node, []
    for members, hubs in _packages(graph):
        others = set(graph) - set(members) - hubs
        rows += [_out(graph, {gpu}, others) for gpu in members if len(members) > 1]
    return _spread(rows) if any(r.raw for r in rows) else None


def host_bandwidth(topology: Topology) -> Spread:
    """Return what an accelerator's PCIe (or coherent) links carry, out of it; 0 without any."""
    graph = topology.node
    return _spread([_out(graph, {gpu}, set(), False) for gpu in gpus_of(graph)])


def node_ports(graph: nx.DiGraph, nics: list[str] | None = None) -> Rates:
    """Return what the NICs of a node carry; usable: no more than the PCIe links above them.

    nics: those that count; None: those that accelerators use.
    """
    raw = usable = 0.0
    behind: dict[str, list[str]] = {}
    for nic in used_nics(graph) if nics is None else nics:
        above = [v for v in graph.predecessors(nic) if graph.nodes[v]["kind"] != "nic"]
        behind.setdefault(above[0] if len(above) == 1 else nic, []).append(nic)
    for over, below in behind.items():
        raw += sum(graph.nodes[nic]["port"].bandwidth for nic in below)
        own = sum(limited(graph, nic) for nic in below)
        widths = [graph.edges[v, over]["bandwidth"] for v in graph.predecessors(over)
                  if graph.nodes[v]["kind"] != "nic"]  # fmt: skip
        shared = over not in below and graph.nodes[over]["kind"] == "pci" and widths
        usable += min(own, sum(widths)) if shared else own
    return Rates(float(raw), float(usable))


def limited(graph: nx.DiGraph, nic: str) -> float:
    """Return a NIC's usable B/s: its port's, or its PCIe link's where that is narrower."""
    port = graph.nodes[nic]["port"]
    into = sum(graph.edges[v, nic]["bandwidth"] for v in graph.predecessors(nic))
    usable = float(port.bandwidth * port.efficiency)
    return min(usable, float(into)) if into else usable


def scale_out_bandwidth(topology: Topology) -> Rates:
    """Return an accelerator's share of the NICs its node uses, out of the node; 0 without any."""
    ports, count = node_ports(topology.node), max(topology.gpus_per_node, 1)
    return Rates(ports.raw / count, ports.usable / count)


def bisection(topology: Topology) -> Bisection:
    """Return the scale-up bisection of one node."""
    raw, exact, how = node_bisection(topology.node, "raw")
    return Bisection(raw, node_bisection(topology.node, "bandwidth")[0], exact, how)


def host_bisection(topology: Topology) -> Bisection:
    """Return the bisection of one node over PCIe, coherent and CPU links alone."""
    raw, exact, how = node_bisection(topology.node, "raw", host=True)
    usable, _, _ = node_bisection(topology.node, "bandwidth", host=True)
    return Bisection(raw, usable, exact, how)


def scale_out_bisection(topology: Topology) -> Bisection:
    """Return the bisection of the network between nodes; 0 for one node.

    Read from the network's wiring: a fat tree's min-cut, a torus's longest side, the links between
    two halves of a dragonfly's groups; never more than what half the nodes send.
    """
    from .network_halving import network_bisection

    ports = {}
    for graph in (topology.node, *(graph for _, graph in topology.unlike)):
        if id(graph) not in ports:
            own = node_ports(graph)
            ports[id(graph)] = own.raw, own.usable
    raw, exact, how = network_bisection(topology, "raw", {k: r for k, (r, _) in ports.items()})
    usable, _, _ = network_bisection(topology, "usable", {k: u for k, (_, u) in ports.items()})
    return Bisection(raw, usable, exact, how)
