"""The kinds of node a cluster is made of: which nodes are alike, and what each is called.

Owns when two nodes are of one kind: their graphs are equal. Knows no network, route or time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from ..errors import FabricError
from .across import attached
from .build import Topology, nics_of
from .node_graph import numbered

__all__ = ["Kind", "kinds_of", "used_nics"]


@dataclass(frozen=True, eq=False)
class Kind:
    """Nodes that are alike. nodes: their numbers, ascending; name: of the machine they are."""

    graph: nx.DiGraph
    nodes: list[int]
    name: str

    def of(self, topology: Topology) -> Topology:
        """Return `topology` as one node of this kind; its device is unnamed where it is foreign."""
        device = topology.device
        if self.name != _name(topology, topology.node):
            device = replace(device, title=self.name, arch="")
        return replace(topology, node=self.graph, device=device, nodes=1, unlike=(), place=())


def _sizes(graph: nx.DiGraph) -> tuple[Any, ...]:
    raw = sum(rate for _, _, rate in graph.edges(data="raw"))
    return graph.graph.get("name"), len(graph), graph.number_of_edges(), raw


def kinds_of(topology: Topology) -> list[Kind]:
    """Return the kinds of the nodes of `topology`, in the order they first occur."""
    unlike = dict(topology.unlike)
    if not unlike:
        return [Kind(topology.node, list(range(topology.nodes)), _name(topology, topology.node))]
    found: list[Kind] = []
    by_id: dict[int, Kind] = {}
    by_size: dict[tuple[Any, ...], list[Kind]] = {}
    for node in range(topology.nodes):
        graph = unlike.get(node, topology.node)
        kind = by_id.get(id(graph))
        if kind is None:
            near = by_size.setdefault(_sizes(graph), [])
            kind = next((k for k in near if nx.utils.graphs_equal(k.graph, graph)), None)
            if kind is None:
                kind = Kind(graph, [], _name(topology, graph))
                near.append(kind)
                found.append(kind)
            by_id[id(graph)] = kind
        kind.nodes.append(node)
    return found


def _name(topology: Topology, graph: nx.DiGraph) -> str:
    return str(graph.graph.get("name") or topology.name)


def used_nics(graph: nx.DiGraph) -> list[str]:
    """Return the NICs that accelerators of the node use, by index: farther ones stay idle."""
    g = numbered(graph)
    if not g.gpus or not g.nics:
        return []
    try:
        used = set(attached(g).nic.tolist())
    except FabricError:  # lower() says what is wrong
        return nics_of(graph)
    return [nic for q, nic in enumerate(g.nics) if q in used]
