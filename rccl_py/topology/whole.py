"""The whole machine as one networkx graph: every node, every NIC's cable, every switch.

For people, drawings and as a check on lower(); nothing that times a call reads it.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from ..links import LinkType
from .build import Topology, nics_of
from .wire import wiring_of

__all__ = ["whole_graph"]


def _cable(graph: nx.DiGraph, a: str, b: str, port: LinkType, rate: float, hop: float) -> None:
    graph.add_edge(
        a,
        b,
        link=port,
        lanes=1,
        raw=port.bandwidth,
        bandwidth=rate,
        latency=(hop, hop, hop),
        message=port.message,
    )


def whole_graph(topology: Topology) -> nx.DiGraph:
    """Return every node, leaf and spine of `topology`.

    Vertices of several nodes are ``node3/gpu0``; a switch has kind "switch-net" and the name the
    fabric gives it ("leaf2", "spines"). Edges are those of the fabric, link for link.
    """
    if topology.nodes == 1:
        return topology.node.copy()
    whole, ports = nx.DiGraph(name=topology.name), []
    for node in range(topology.nodes):
        graph = topology.graph_of(node)
        whole.update(nx.relabel_nodes(graph, {v: f"node{node}/{v}" for v in graph}, copy=True))
        ports += [(f"node{node}/{nic}", graph.nodes[nic]["port"]) for nic in nics_of(graph)]
    counts = np.array([len(nics_of(topology.graph_of(k))) for k in range(topology.nodes)])
    if not counts.all():
        return whole
    rates = np.array([port.bandwidth * port.efficiency for _, port in ports])
    rail = np.array([whole.nodes[nic]["index"] for nic, _ in ports])
    hop = topology.network.hop
    wiring = wiring_of(topology.network, counts, rail, rates, topology.name)
    for number, (nic, port) in enumerate(ports):
        switch = wiring.switch_name(number)
        whole.add_node(switch, kind="switch-net")
        _cable(whole, nic, switch, port, float(rates[number]), hop)
        _cable(whole, switch, nic, port, float(rates[number]), hop)
    for link, rate in enumerate(wiring.bandwidth.tolist()):
        a, _, b = wiring.link_name(link).partition(" (")[0].partition(" -> ")
        for name in (a, b):
            whole.add_node(name, kind="switch-net")
        _cable(whole, a, b, ports[0][1], rate, hop)
    return whole
