"""Join nodes to the whole machine as one networkx graph, for people and as a check on lower().

Owns vertex names of a cluster: ``node3/gpu0``, ``leaf2``, ``spine``. Nothing that times a call
reads this graph: Fabric has the same links as arrays.
"""

from __future__ import annotations

import networkx as nx

from ..links import LinkType
from .build import Network, Topology, nics_of

__all__ = ["join", "leaf_of"]


def leaf_of(network: Network, node: int, nic: int, nics: int) -> int:
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


def join(topology: Topology) -> nx.DiGraph:
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
            leaf, usable = leaf_of(network, node, q, len(nics)), port.bandwidth * port.efficiency
            whole.add_node(f"leaf{leaf}", kind="leaf")
            _cable(whole, named[nic], f"leaf{leaf}", port, usable, network.hop)
            if node < min(network.leaf_nodes, topology.nodes):
                # What a full leaf carries; the last has its siblings' uplinks.
                first = leaf_of(network, 0, q, len(nics))
                full[first] = full.get(first, 0.0) + usable
            leaves.setdefault(leaf, leaf_of(network, 0, q, len(nics)))
    if port is not None and network.spine and len(leaves) > 1:
        whole.add_node("spine", kind="spine")
        for leaf, first in leaves.items():
            rate = full[first]
            _cable(
                whole, f"leaf{leaf}", "spine", port, rate / network.oversubscription, network.hop
            )
    return whole
