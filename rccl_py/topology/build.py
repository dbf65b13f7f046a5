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
from ..fabric.torus import Torus
from ..links import LINKS, Device, LinkType, Triple

__all__ = [
    "Network",
    "Topology",
    "add_gpus",
    "add_host",
    "add_link",
    "add_mesh",
    "add_nic",
    "add_switches",
    "add_torus",
    "gpus_of",
    "new_graph",
    "nics_of",
]

SCALE_UP = frozenset({"xgmi", "nvlink", "ualink", "ici"})
"""Media that may relay through an accelerator or a switch of their own."""


@dataclass(frozen=True, slots=True)
class Network:
    """How nodes are joined.

    kind: "rails" (NIC q of every node of a group goes to leaf q of that group), "leaf-spine" (all
    NICs of a node go to its leaf), "dragonfly" (all NICs of a node go to its router), "torus" (a
    router a node, joined to its neighbours).
    leaf_nodes: nodes under one leaf, in one group of rails, or on one router.
    oversubscription: NIC capacity under a leaf over its uplink capacity. spine False: leaves are
    not joined (rails only). hop: seconds a switch adds.
    pod_nodes: nodes in a pod of a three-tier tree, 0 for two tiers; pod_oversubscription: what
    enters a pod's spines from below over what leaves them for the core.
    routing: "spray" (all shortest paths evenly), "ecmp" (one path a flow, by hash with `seed`;
    `flows` queue pairs a connection) or "adaptive" (flows avoid each other).
    pxn: a message leaves on the NIC of the rail it arrives on, through the peer that owns it; None:
    only where leaves are not joined.
    dims, wrap: a torus's sizes, and whether it closes. groups: of a dragonfly; routers: of each
    group; global_links: of each router. local_rate, global_rate: usable B/s of a link between
    routers of a group (or of a torus), and between groups; 0: as wide as a NIC.
    """

    kind: str = "rails"
    leaf_nodes: int = 32
    oversubscription: float = 1.0
    spine: bool = True
    hop: float = 0.6e-6  # Tomahawk 5 class, 0.6-0.8 us port to port
    pod_nodes: int = 0
    pod_oversubscription: float = 1.0
    routing: str = "spray"
    seed: int = 0
    flows: int = 1
    pxn: bool | None = None
    dims: tuple[int, ...] = ()
    wrap: bool = True
    groups: int = 0
    routers: int = 0
    global_links: int = 0
    local_rate: float = 0.0
    global_rate: float = 0.0

    @property
    def staged(self) -> bool:
        """Whether a peer's NIC is used so that a message stays on its rail."""
        return self.kind == "rails" and (not self.spine if self.pxn is None else self.pxn)


@dataclass(frozen=True, repr=False)
class Topology:
    """One node's graph, how many nodes, and the network between them.

    unlike: (node, graph) of nodes that are not as `node` says: of another kind, or with a fault.
    place: the accelerators that ranks take, in order; empty for all of them as they are counted.
    """

    name: str
    node: nx.DiGraph
    device: Device
    nodes: int = 1
    network: Network = field(default_factory=Network)
    notes: tuple[str, ...] = ()
    unlike: tuple[tuple[int, nx.DiGraph], ...] = ()
    summary: str = ""
    sources: tuple[str, ...] = ()
    place: tuple[int, ...] = ()

    def __repr__(self) -> str:
        nodes = f" in {self.nodes} nodes, {self.network.kind}" if self.nodes > 1 else ""
        notes = f", {len(self.notes)} note(s), the last: {self.notes[-1]}" if self.notes else ""
        kinds = len({id(graph) for _, graph in self.unlike})
        what = self.device.title + (f" and {kinds} unlike kind(s) of node" if kinds else "")
        return f"<Topology {self.name}: {self.ngpus} x {what}{nodes}{notes}>"

    @property
    def nranks(self) -> int:
        """Ranks of a job that takes all accelerators it may."""
        return len(self.place) or self.ngpus

    @property
    def gpus_per_node(self) -> int:
        """Accelerators in one node's graph."""
        return len(gpus_of(self.node))

    @property
    def ngpus(self) -> int:
        """Accelerators in all nodes."""
        extra = sum(len(gpus_of(graph)) - self.gpus_per_node for _, graph in self.unlike)
        return self.nodes * self.gpus_per_node + extra

    def graph_of(self, node: int) -> nx.DiGraph:
        """Return the graph of one node, counted from 0."""
        return dict(self.unlike).get(node, self.node)

    def graph(self) -> nx.DiGraph:
        """Return the whole machine as one networkx graph: every node, leaf and spine.

        Vertices of several nodes are ``node3/gpu0``, ``leaf2``, ``spines``. It is for people and a
        check on lower(): nothing that times a call reads it.
        """
        from .whole import whole_graph

        return whole_graph(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: key figures, a picture, the path matrix."""
        from ..report.html import topology_html

        return topology_html(self)

    def with_link(self, a: str, b: str, lanes: float, node: int | None = None) -> Topology:
        """Return the machine with `lanes` left between vertices `a` and `b`; 0 removes the link.

        node: in that node only; None: in every node. Raises FabricError when nothing joins them.
        """
        from .faults import with_link

        return with_link(self, a, b, lanes, node)

    def without(self, a: str, b: str | None = None, node: int | None = None) -> Topology:
        """Return the machine without the link a - b, or without vertex `a` and all its links.

        Accelerators keep their numbers when a link goes; a vertex that goes may be a switch, a PCI
        bridge or a NIC. node: in that node only; None: in every node.
        """
        from .faults import without

        return without(self, a, b, node)


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
    each = lanes / switches
    raw = link.bandwidth * each
    own = {
        "link": link,
        "lanes": each,
        "raw": raw,
        "bandwidth": raw * link.efficiency,
        "latency": link.latency,
        "message": link.message,
    }
    joins = [(name, plane) for name in names for plane in planes]
    graph.add_edges_from(joins, **own)
    graph.add_edges_from(((b, a) for a, b in joins), **{**own, "latency": (hop, hop, hop)})


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


def add_torus(
    graph: nx.DiGraph,
    names: Sequence[str],
    dims: Sequence[int],
    wrap: bool,
    link: LinkType,
    lanes: float = 1,
) -> None:
    """Join `names` as the points of a grid, last dimension fastest, by `lanes` links a neighbour.

    wrap: the ends of a dimension meet. Only a path's first hop has the link's hand-shake; each
    further one costs the link's `hop`.
    """
    torus = Torus(tuple(dims), link.bandwidth * lanes, None, wrap)
    for a, b, rate in torus.edges():
        one, two = names[int(a.removeprefix("node"))], names[int(b.removeprefix("node"))]
        _edge(graph, one, two, link, rate / link.bandwidth, link.latency)
    graph.graph["torus"], graph.graph["relay"] = torus, link.hop or 0.3e-6  # assumed: 0.3 us


def add_host(
    graph: nx.DiGraph,
    link: LinkType,
    sockets: int,
    socket_link: LinkType | None,
    switches: int,
) -> None:
    """Add the host: sockets ``cpu0``... joined pairwise, PCI switches ``sw0``... evenly below."""
    cpus = [f"cpu{k}" for k in range(sockets)]
    for k, name in enumerate(cpus):
        graph.add_node(name, kind="cpu", host=0, numa=k)
    for k, a in enumerate(cpus):
        for b in cpus[k + 1 :]:
            assert socket_link is not None  # the schema asks for it where there are two sockets
            add_link(graph, a, b, socket_link)
    for k in range(switches):
        graph.add_node(f"sw{k}", kind="pci", host=0)
        add_pcie(graph, cpus[k * sockets // switches], f"sw{k}", link)
