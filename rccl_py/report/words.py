"""What a machine and its network are called, in a line: of commands, pictures and notebooks.

Owns these words. Knows no colours and no columns.
"""

from __future__ import annotations

from ..topology.build import Network, Topology, gpus_of, nics_of
from ..topology.kinds import Kind, kinds_of

__all__ = ["kind_words", "machine_words", "network_words", "node_words"]


def machine_words(topology: Topology) -> str:
    """Return the machine's name and accelerators: ``pair: 16 x AMD Instinct MI300X``."""
    kinds = {kind.name for kind in kinds_of(topology)}
    if len(kinds) == 1:
        return f"{topology.name}: {topology.ngpus} x {topology.device.title}"
    return f"{topology.name}: {topology.ngpus} x GPU in {len(kinds)} kinds of node"


def node_words(kind: Kind) -> str:
    """Return what a node of a kind holds: ``8 GPUs, 8 NICs of 400 Gb/s``."""
    graph = kind.graph
    gpus, nics = len(gpus_of(graph)), nics_of(graph)
    speeds = sorted({graph.nodes[nic]["port"].bandwidth * 8 / 1e9 for nic in nics})
    text = f"{gpus} GPU{'' if gpus == 1 else 's'}, "
    if not nics:
        return text + "no NICs"
    plural = "" if len(nics) == 1 else "s"
    return f"{text}{len(nics)} NIC{plural} of {'/'.join(f'{s:g}' for s in speeds)} Gb/s"


def kind_words(topology: Topology, kind: Kind) -> str:
    """Return how many nodes are of a kind, and what they are.

    The accelerator is said where it is known: a graph does not name it, the machine's first does.
    """
    own = str(topology.node.graph.get("name") or topology.name) == kind.name
    device = f", {topology.device.title}" if own else ""
    return f"{len(kind.nodes)} x {kind.name}: {node_words(kind)}{device}"


def _tree_words(network: Network) -> str:
    text = f", {network.leaf_nodes} under a leaf, {network.oversubscription:g}:1 oversubscribed"
    if not network.spine:
        text = f", {network.leaf_nodes} under a leaf, leaves not joined"
    if network.pod_nodes:
        text += f", pods of {network.pod_nodes}"
        if network.pod_oversubscription != 1:
            text += f" with {network.pod_oversubscription:g}:1 above"
    return text


def _dragonfly_words(network: Network) -> str:
    links = network.routers * network.global_links // max(network.groups - 1, 1)
    several = "" if links == 1 else "s"
    return (
        f", {network.groups} groups of {network.routers} routers, {network.leaf_nodes} "
        f"node{'' if network.leaf_nodes == 1 else 's'} a router, {links} link{several} a group pair"
    )


def network_words(topology: Topology) -> str:
    """Return how nodes are joined: ``rails, 32 under a leaf, 1:1 oversubscribed``."""
    network = topology.network
    if network.kind == "dragonfly":
        text = "dragonfly" + _dragonfly_words(network)
    elif network.kind == "torus":
        dims = " x ".join(map(str, network.dims or (topology.nodes,)))
        text = f"torus of {dims}, {'closed' if network.wrap else 'open'}"
    else:
        text = network.kind + _tree_words(network)
    return text if network.routing == "spray" else f"{text}, {network.routing}"
