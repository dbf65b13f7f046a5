"""Key figures of a machine: what one accelerator can send, and what crosses its middle.

Owns scale-up and scale-out bandwidth per accelerator and bisection bandwidth, raw and usable, in
B/s per direction. Reads the graph of one node and the network's parameters; knows no routes, no
ranks and no time. A bisection is what can be sent at once from one half of the accelerators to
the other, over the worst choice of halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt

from .build import SCALE_UP, Network, Topology, gpus_of, nics_of
from .halving import node_bisection

__all__ = [
    "Bisection",
    "Rates",
    "Spread",
    "bisection",
    "scale_out_bandwidth",
    "scale_out_bisection",
    "scale_up_bandwidth",
]

F64 = npt.NDArray[np.float64]


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


def _is_scale_up(graph: nx.DiGraph, a: str, b: str) -> bool:
    return graph.edges[a, b]["link"].medium in SCALE_UP


def scale_up_bandwidth(topology: Topology) -> Spread:
    """Return what an accelerator's scale-up links carry together, out of it; 0 without any."""
    graph, rows = topology.node, []
    for gpu in gpus_of(graph):
        own = [graph.edges[gpu, b] for b in graph.successors(gpu) if _is_scale_up(graph, gpu, b)]
        rows.append((sum(e["raw"] for e in own), sum(e["bandwidth"] for e in own)))
    rows = rows or [(0.0, 0.0)]
    raw, usable = zip(*rows)
    return Spread(Rates(float(min(raw)), float(min(usable))),
                  Rates(float(max(raw)), float(max(usable))))  # fmt: skip


def _node_ports(graph: nx.DiGraph) -> Rates:
    """Return what all NICs of a node carry; usable: no more than the PCIe links above them."""
    raw = usable = 0.0
    behind: dict[str, list[str]] = {}
    for nic in nics_of(graph):
        above = [v for v in graph.predecessors(nic) if graph.nodes[v]["kind"] != "nic"]
        behind.setdefault(above[0] if len(above) == 1 else nic, []).append(nic)
    for over, nics in behind.items():
        ports = [graph.nodes[nic]["port"] for nic in nics]
        raw += sum(port.bandwidth for port in ports)
        own = sum(_limited(graph, nic) for nic in nics)
        widths = [graph.edges[v, over]["bandwidth"] for v in graph.predecessors(over)
              if v not in nics]  # fmt: skip
        shared = over not in nics and graph.nodes[over]["kind"] == "pci" and widths
        usable += min(own, sum(widths)) if shared else own
    return Rates(float(raw), float(usable))


def _limited(graph: nx.DiGraph, nic: str) -> float:
    """Return a NIC's usable B/s: its port's, or its PCIe link's where that is narrower."""
    port = graph.nodes[nic]["port"]
    into = sum(graph.edges[v, nic]["bandwidth"] for v in graph.predecessors(nic))
    usable = float(port.bandwidth * port.efficiency)
    return min(usable, float(into)) if into else usable


def scale_out_bandwidth(topology: Topology) -> Rates:
    """Return an accelerator's share of its node's NICs, out of the node; 0 without any."""
    ports, count = _node_ports(topology.node), max(topology.gpus_per_node, 1)
    return Rates(ports.raw / count, ports.usable / count)


def bisection(topology: Topology) -> Bisection:
    """Return the scale-up bisection of one node."""
    raw, exact, how = node_bisection(topology.node, "raw")
    return Bisection(raw, node_bisection(topology.node, "bandwidth")[0], exact, how)


def _tree(network: Network, nodes: int, node: float) -> float:
    """Return what crosses between the first and the second half of the nodes of a fat tree.

    Groups (of nodes below one set of leaves) are filled in order. Every leaf, and the spines of
    every pod, stand on whichever side cuts less, so the sum is a min-cut.
    """
    half, size = nodes // 2, network.leaf_nodes
    first = np.arange(0, nodes, size)
    left = np.clip(half - first, 0, np.minimum(size, nodes - first)) * node
    right = np.minimum(size, nodes - first) * node - left
    # What a switch cuts below it where it stands left, and where it stands right.
    stands: tuple[F64, F64] = right.astype(np.float64), left.astype(np.float64)
    up = np.full(len(first), node * min(size, nodes) / network.oversubscription)
    if network.pod_nodes and network.pod_nodes < nodes:
        pod = first // network.pod_nodes
        stands = _above(stands, up, pod)
        whole = min(network.pod_nodes, nodes) / min(size, nodes) * up[0]
        up = np.full(int(pod[-1]) + 1, whole / network.pod_oversubscription)
    if len(up) == 1:
        up = np.array([np.inf])  # nothing above is needed
    top_left, top_right = _above(stands, up, np.zeros(len(up), dtype=np.int64))
    return float(min(top_left[0], top_right[0]))


def _above(stands: tuple[F64, F64], up: F64, parent: npt.NDArray[np.int64]) -> tuple[F64, F64]:
    """Return the least cut below each parent, standing left and right, over `up` wide uplinks."""
    left, right = stands
    own = (
        np.bincount(parent, np.minimum(left, right + up)),
        np.bincount(parent, np.minimum(right, left + up)),
    )
    return own[0].astype(np.float64), own[1].astype(np.float64)


def _torus(network: Network, nodes: int, node: float) -> float:
    """Return what crosses the middle of a torus's longest side."""
    dims = network.dims or (nodes,)
    ways = 2 if network.wrap else 1
    return ways * float(np.prod(dims)) / max(dims) * (network.local_rate or node)


def _dragonfly(network: Network, nodes: int, node: float, port: float) -> float:
    """Return what crosses between two halves of the groups in use, by direct links alone."""
    each = max(1, network.routers * network.leaf_nodes)
    used = -(-nodes // each)
    if used < 2:  # half a group's routers, all joined to the others
        routers = -(-nodes // network.leaf_nodes)
        return (routers // 2) * (routers - routers // 2) * (network.local_rate or port)
    links = network.routers * network.global_links / max(network.groups - 1, 1)
    return (used // 2) * (used - used // 2) * links * (network.global_rate or port)


def _across(topology: Topology, node: float, port: float) -> float:
    """Return the bisection of the network; at most what half the nodes send."""
    network, nodes = topology.network, topology.nodes
    ends = nodes // 2 * node
    if network.kind == "torus":
        return min(ends, _torus(network, nodes, node))
    if network.kind == "dragonfly":
        return min(ends, _dragonfly(network, nodes, node, port))
    return _tree(network, nodes, node)


def scale_out_bisection(topology: Topology) -> Bisection:
    """Return the bisection of the network between nodes; 0 for one node.

    By the network's own formula: a fat tree's min-cut, a torus's longest side, the links between
    two halves of a dragonfly's groups. Nodes that are unlike the first are taken as it.
    """
    nodes, network = topology.nodes, topology.network
    if nodes < 2:
        return Bisection(0.0, 0.0, True, "one node has no network")
    rates, nics = _node_ports(topology.node), nics_of(topology.node)
    if not nics:
        return Bisection(0.0, 0.0, True, "a node without NICs")
    ports = [topology.node.nodes[nic]["port"] for nic in nics]
    raw = _across(topology, rates.raw, max(p.bandwidth for p in ports))
    usable = _across(topology, rates.usable, max(p.bandwidth * p.efficiency for p in ports))
    half = raw >= nodes // 2 * rates.raw * (1 - 1e-9)
    how = f"half the nodes' ports, {network.kind}" if half else network.kind
    if not half and network.kind in ("rails", "leaf-spine"):
        factors = [network.oversubscription, network.pod_oversubscription]
        how += ", oversubscribed " + " and ".join(f"{f:g}:1" for f in factors if f != 1)
    return Bisection(raw, usable, True, how)
