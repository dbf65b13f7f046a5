"""A machine's host links as a PCI tree: every bridge and device below one CPU.

Owns how a graph that need not be a tree becomes one: bridges that share a GPU become one, and what
hangs from no CPU gets one, invented where the host has none. What cannot become a tree is a
FormatError; what changes is a remark. Knows no elements.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from ....errors import FormatError
from ....links import LinkType, Triple
from ...build import SCALE_UP, Topology, gpus_of
from ..names import PCIE_SPEEDS

__all__ = ["Figures", "PciTree", "figures_of", "plain", "refused"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a directed edge carries."""

    link: LinkType
    lanes: float
    latency: Triple


def figures_of(data: dict[str, Any]) -> Figures:
    """Return what an edge with such attributes carries."""
    return Figures(data["link"], data["lanes"], tuple(data["latency"]))


def refused(topology: Topology, why: str) -> FormatError:
    """Return the error that says why `topology` cannot be written."""
    return FormatError(f"{topology.name}: cannot be written as topology XML: {why}")


def plain(link: LinkType) -> Figures:
    """Return what one link of a row carries."""
    return Figures(link, 1.0, link.latency)


class PciTree:
    """Parents of a machine's bridges, GPUs and NICs, by the machine's own vertex names.

    tree: what joins them, with `figures` (None: invented). parent: filled nearest to a CPU first.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.graph: nx.DiGraph = topology.node
        self.data: dict[str, dict[str, Any]] = dict(self.graph.nodes(data=True))
        self.gpus = gpus_of(self.graph)
        self.tree = nx.Graph()
        self.parent: dict[str, str] = {}
        self.remarks: Counter[str] = Counter()
        self._contract()
        self._give_cpus()
        self._grow()

    def host(self, vertex: str) -> int:
        """Return the host a vertex is of."""
        return int(self.data.get(vertex, {}).get("host", 0))

    def kind(self, vertex: str) -> str:
        """Return the kind of a vertex."""
        return str(self.data[vertex]["kind"]) if vertex in self.data else "cpu"

    def refuse(self, why: str) -> FormatError:
        """Return the error that says why the machine cannot be written."""
        return refused(self.topology, why)

    def _host_edges(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Return the edges of the PCI tree, one a pair."""
        order = {v: i for i, v in enumerate(self.graph)}
        for a, b, data in self.graph.edges(data=True):
            kinds = {self.kind(a), self.kind(b)}
            coherent = kinds == {"gpu", "cpu"} and data["link"].medium == "c2c"
            if order[a] > order[b] or data["link"].medium in SCALE_UP or coherent:
                continue
            if kinds <= {"cpu", "pci", "gpu", "nic"} and kinds != {"cpu"} and not data.get("peer"):
                yield a, b, data

    def _contract(self) -> None:
        """Make one bridge of those that share a GPU: it has several links, of one kind, to it."""
        tree = self.tree
        tree.add_nodes_from(v for v in self.graph if self.kind(v) in ("cpu", "pci", "gpu", "nic"))
        for a, b, data in self._host_edges():
            tree.add_edge(a, b, figures=figures_of(data))
        for gpu in self.gpus:
            above = [v for v in tree[gpu] if self.kind(v) == "pci"]
            if len(above) < 2:
                continue
            links = {tree.edges[gpu, v]["figures"].link for v in above}
            if len(links) > 1:
                raise self.refuse(f"{gpu} hangs from bridges by links of {len(links)} kinds")
            self.remarks[f"a GPU with {len(above)} PCIe ports is written with one as wide"] += 1
            for other in above[1:]:
                self._merge(above[0], other)

    def _merge(self, into: str, other: str) -> None:
        """Move the edges of bridge `other` to `into`, adding lanes where both have one."""
        for neighbour in list(self.tree[other]):
            own: Figures = self.tree.edges[other, neighbour]["figures"]
            if self.tree.has_edge(into, neighbour):
                old: Figures = self.tree.edges[into, neighbour]["figures"]
                own = replace(old, lanes=old.lanes + own.lanes)
            if neighbour != into:
                self.tree.add_edge(into, neighbour, figures=own)
        self.tree.remove_node(other)

    def _give_cpus(self) -> None:
        """Hang what hangs from no CPU from one of its host, invented where the host has none."""
        below = self.tree.subgraph(v for v in self.tree if self.kind(v) != "cpu")
        bare: dict[int, list[list[str]]] = {}
        order = {v: i for i, v in enumerate(self.graph)}
        for part in sorted(nx.connected_components(below), key=lambda c: min(order[v] for v in c)):
            if not any(self.kind(n) == "cpu" for v in part for n in self.tree[v]):
                own = sorted(part, key=order.__getitem__)
                devices = [v for v in own if self.kind(v) != "pci"]
                if devices:
                    bare.setdefault(self.host(devices[0]), []).append(own)
        for host, parts in bare.items():
            cpus = [v for v in self.tree if self.kind(v) == "cpu" and self.host(v) == host]
            if not cpus:
                cpus = [f"cpu of host {host}, {k}" for k in range(min(2, len(parts)))]
                self.data |= {v: {"kind": "cpu", "host": host, "numa": k}
                              for k, v in enumerate(cpus)}  # fmt: skip
                self.tree.add_nodes_from(cpus)
                self.remarks["CPUs, their links and what joins them to PCIe are invented"] += 1
            for k, part in enumerate(parts):
                self._hang(part, cpus[k * len(cpus) // len(parts)])

    def _hang(self, part: list[str], cpu: str) -> None:
        bridges = [v for v in part if self.kind(v) == "pci"]
        links = [d["figures"].link for v in part for _, _, d in self.tree.edges(v, data=True)]
        named = [link for link in links if link.name in PCIE_SPEEDS]
        link = max(named, key=lambda row: row.bandwidth, default=None)
        for top in bridges[:1] or part:
            self.tree.add_edge(cpu, top, figures=None if link is None else plain(link))

    def _grow(self) -> None:
        """Give every vertex its parent, nearest to a CPU first."""
        cpus = [v for v in self.tree if self.kind(v) == "cpu"]
        seen, queue = set(cpus), deque(cpus)
        while queue:
            vertex = queue.popleft()
            if self.kind(vertex) in ("gpu", "nic"):
                continue
            for child in self.tree[vertex]:
                if child not in seen:
                    self.parent[child] = vertex
                    seen.add(child)
                    queue.append(child)
        for vertex in self.tree:
            if vertex not in seen and self.kind(vertex) != "pci":
                raise self.refuse(f"{vertex} is reached only through another device")
        for a, b in self.tree.edges:
            if self.parent.get(a) != b and self.parent.get(b) != a and not self.bare(a, b):
                raise self.refuse(f"{a} and {b} close a circle of PCIe links")

    def bare(self, *vertices: str) -> bool:
        """Return whether one of them is a NIC without PCI function, which hangs from CPUs."""
        nics = [v for v in vertices if self.kind(v) == "nic" and self.data[v].get("busid") == ""]
        return any(all(self.kind(n) == "cpu" for n in self.tree[v]) for v in nics)
