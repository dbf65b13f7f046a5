"""Builders of one scale-up domain as a networkx graph: vertices, links, and what they carry.

Owns the vertex and edge attributes every reader of a topology graph relies on. Knows nothing of
files, ranks, schedules or time.

Vertices (name, then attributes): ``gpu3`` kind=gpu, index, host · ``nic0`` kind=nic, index, host,
port (a LinkType: its cable to the network) · ``plane2`` kind=switch · ``pci…`` kind=pci ·
``cpu1`` kind=cpu.
Edges are directed, one per direction, and carry: link (LinkType), lanes, raw and bandwidth (B/s),
latency (Triple, s), message (s).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from ..errors import FabricError
from ..links import LINKS, Device, LinkType, Triple

__all__ = [
    "Network",
    "Topology",
    "add_gpus",
    "add_link",
    "add_mesh",
    "add_nic",
    "add_switches",
    "gpus_of",
    "new_graph",
    "nics_of",
]

SCALE_UP = frozenset({"xgmi", "nvlink", "ualink"})
"""Media that may relay through an accelerator or a switch of their own."""


@dataclass(frozen=True, slots=True)
class Network:
    """How nodes are joined.

    kind "rails": NIC q of every node of a pod goes to rail switch q of that pod; "leaf-spine":
    all NICs of a node go to its leaf. `leaf_nodes`: nodes under one leaf (or in one pod).
    `oversubscription`: NIC capacity under a leaf over its uplink capacity. `spine` False: rail
    switches are not joined, other rails are reached through a scale-up peer. `hop`: seconds a
    switch adds.
    """

    kind: str = "rails"
    leaf_nodes: int = 32
    oversubscription: float = 1.0
    spine: bool = True
    hop: float = 0.6e-6  # Tomahawk 5 class, 0.6-0.8 us port to port


@dataclass(frozen=True)
class Topology:
    """One node's graph, how many nodes, and the network between them."""

    name: str
    node: nx.DiGraph
    device: Device
    nodes: int = 1
    network: Network = field(default_factory=Network)
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        """Accelerators in one node's graph."""
        return len(gpus_of(self.node))

    @property
    def ngpus(self) -> int:
        """Accelerators in all nodes."""
        return self.nodes * self.gpus_per_node

    def graph(self) -> nx.DiGraph:
        """Return the whole machine as one networkx graph: every node, leaf and spine.

        Vertices of several nodes are ``node3/gpu0``, ``leaf2``, ``spine``. It is for people and a
        check on lower(): nothing that times a call reads it.
        """
        return _join(self)


def new_graph(name: str) -> nx.DiGraph:
    """Return an empty domain graph."""
    return nx.DiGraph(name=name)


def gpus_of(graph: nx.DiGraph) -> list[str]:
    """Return the accelerators' vertex names, by index."""
    found = [(data["index"], v) for v, data in graph.nodes(data=True) if data["kind"] == "gpu"]
    return [v for _, v in sorted(found)]


def nics_of(graph: nx.DiGraph) -> list[str]:
    """Return the NICs' vertex names, by index."""
    found = [(data["index"], v) for v, data in graph.nodes(data=True) if data["kind"] == "nic"]
    return [v for _, v in sorted(found)]


def add_gpus(graph: nx.DiGraph, count: int, hosts: int = 1, **attributes: Any) -> list[str]:
    """Add `count` accelerators spread evenly over `hosts`, and return their names."""
    per_host = -(-count // hosts)
    names = [f"gpu{i}" for i in range(count)]
    for i, name in enumerate(names):
        graph.add_node(name, kind="gpu", index=i, host=i // per_host, **attributes)
    return names


def _edge(graph: nx.DiGraph, a: str, b: str, link: LinkType, lanes: float, latency: Triple) -> None:
    if graph.has_edge(a, b):
        raise FabricError(f"link {a} -> {b} is given twice: give its count instead")
    raw = link.bandwidth * lanes
    graph.add_edge(
        a,
        b,
        link=link,
        lanes=lanes,
        raw=raw,
        bandwidth=raw * link.efficiency,
        latency=latency,
        message=link.message,
    )


def add_link(
    graph: nx.DiGraph, a: str, b: str, link: LinkType, lanes: float = 1, *, extra: float = 0.0
) -> None:
    """Join `a` and `b` both ways by `lanes` links of a kind; `extra` seconds are added per hop."""
    ll, ll128, simple = link.latency
    latency = (ll + extra, ll128 + extra, simple + extra)
    _edge(graph, a, b, link, lanes, latency)
    _edge(graph, b, a, link, lanes, latency)


def add_mesh(graph: nx.DiGraph, names: Sequence[str], link: LinkType, lanes: float = 1) -> None:
    """Join every pair of `names` directly."""
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            add_link(graph, a, b, link, lanes)


def add_switches(
    graph: nx.DiGraph,
    names: Iterable[str],
    link: LinkType,
    lanes: float,
    switches: int,
    hop: float,
    prefix: str = "plane",
) -> None:
    """Join every one of `names` to each of `switches` planes; `lanes` are per GPU, over all planes.

    The way up carries the link's latency, the way down only the switch's `hop` seconds, so a
    GPU-to-GPU path pays each once.
    """
    planes = [f"{prefix}{k}" for k in range(switches)]
    for plane in planes:
        graph.add_node(plane, kind="switch")
    for name in names:
        for plane in planes:
            _edge(graph, name, plane, link, lanes / switches, link.latency)
            _edge(graph, plane, name, link, lanes / switches, (hop, hop, hop))


def add_nic(
    graph: nx.DiGraph,
    index: int,
    port: LinkType,
    near: Sequence[str],
    host_link: LinkType,
    host: int = 0,
    **attributes: Any,
) -> str:
    """Add NIC `index`, joined to the accelerators `near` through a PCIe switch of their own."""
    nic, switch = f"nic{index}", f"pci{index}"
    graph.add_node(nic, kind="nic", index=index, host=host, port=port, **attributes)
    if switch not in graph:
        graph.add_node(switch, kind="pci", host=host)
        for gpu in near:
            add_pcie(graph, gpu, switch, host_link)
    add_pcie(graph, switch, nic, host_link)
    return nic


def add_pcie(graph: nx.DiGraph, a: str, b: str, link: LinkType, lanes: float = 1) -> None:
    """Join two PCI devices; a hop inside the host costs no hand-shake of its own.

    The latency of a step is the NIC's or the scale-up link's; PCI hops below a NIC only limit
    its bandwidth, so they add the assumed 150 ns of a PCIe switch traversal.
    """
    hop = (0.15e-6, 0.15e-6, 0.15e-6)
    _edge(graph, a, b, link, lanes, hop)
    _edge(graph, b, a, link, lanes, hop)


def link_named(name: str, links: dict[str, LinkType] | None = None) -> LinkType:
    """Return the link called `name` from `links` and the built-in table."""
    table = {**LINKS, **(links or {})}
    if name not in table:
        raise FabricError(f"link type {name!r} is not known: one of {', '.join(sorted(table))}")
    return table[name]


def _leaf_of(network: Network, node: int, nic: int, nics: int) -> int:
    """Return the number of the leaf that NIC `nic` of `node` is cabled to."""
    group = node // network.leaf_nodes
    return group * nics + nic if network.kind == "rails" else group


def _cable(graph: nx.DiGraph, a: str, b: str, port: LinkType, bandwidth: float, hop: float) -> None:
    for ends in ((a, b), (b, a)):
        graph.add_edge(
            *ends,
            link=port,
            lanes=1,
            raw=port.bandwidth,
            bandwidth=bandwidth,
            latency=(hop, hop, hop),
            message=port.message,
        )


def _join(topology: Topology) -> nx.DiGraph:
    """Return every node, leaf and the spine of `topology` as one graph."""
    network, whole = topology.network, nx.DiGraph(name=topology.name)
    nics = nics_of(topology.node)
    full: dict[int, float] = {}
    leaves: dict[int, int] = {}
    port: LinkType | None = None
    for node in range(topology.nodes):
        named = {v: f"node{node}/{v}" for v in topology.node} if topology.nodes > 1 else {}
        whole.update(nx.relabel_nodes(topology.node, named, copy=True))
        for q, nic in enumerate(nics if topology.nodes > 1 else []):
            port = topology.node.nodes[nic]["port"]
            leaf, usable = _leaf_of(network, node, q, len(nics)), port.bandwidth * port.efficiency
            whole.add_node(f"leaf{leaf}", kind="leaf")
            _cable(whole, named[nic], f"leaf{leaf}", port, usable, network.hop)
            if node < min(network.leaf_nodes, topology.nodes):
                # What a full leaf carries; the last has its siblings' uplinks.
                first = _leaf_of(network, 0, q, len(nics))
                full[first] = full.get(first, 0.0) + usable
            leaves.setdefault(leaf, _leaf_of(network, 0, q, len(nics)))
    if port is not None and network.spine and len(leaves) > 1:
        whole.add_node("spine", kind="spine")
        for leaf, first in leaves.items():
            rate = full[first]
            _cable(
                whole, f"leaf{leaf}", "spine", port, rate / network.oversubscription, network.hop
            )
    return whole
