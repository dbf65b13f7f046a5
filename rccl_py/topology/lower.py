"""Lower a Topology to a Fabric: one node's tables, as many copies as there are nodes, and leaves.

Owns placement of ranks and the leaves between nodes. Knows no collective. Raises FabricError for
ranks that cannot reach each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

from ..arguments import whole
from ..errors import FabricError, InvalidArgument
from ..fabric import F64, Domain, Fabric, Table
from .across import cross_routes, no_cross
from .build import Network, Topology
from .inside import pair_routes
from .node_graph import numbered

__all__ = ["lower"]


def _domain(node: nx.DiGraph, network: Network, joined: bool) -> Domain:
    g = numbered(node)
    m, q = len(g.gpus), len(g.nics)
    inside = pair_routes(g)
    routes = Table.of(m * m, inside.entries)
    cross = cross_routes(g, routes, inside.latency, network) if joined else no_cross(m)
    edges = list(node.edges(data=True))
    ports = [node.nodes[nic]["port"] for nic in g.nics]
    index = {v: i for i, v in enumerate(g.gpus)}
    return Domain(
        ngpus=m,
        nnics=q,
        bandwidth=np.array([d["bandwidth"] for _, _, d in edges], dtype=np.float64),
        raw=np.array([d["raw"] for _, _, d in edges], dtype=np.float64),
        names=tuple(f"{a} -> {b}" for a, b, _ in edges),
        media=tuple(d["link"].medium for _, _, d in edges),
        tail=np.array([index.get(a, -1) for a, _, _ in edges], dtype=np.int32),
        head=np.array([index.get(b, -1) for _, b, _ in edges], dtype=np.int32),
        routes=routes,
        latency=inside.latency,
        message=inside.message,
        up=Table.of(m * q, cross.up),
        down=Table.of(m * q, cross.down),
        pairs=Table.of(m * m, cross.pairs),
        cross_latency=cross.latency,
        cross_message=cross.message,
        port=np.array([p.bandwidth * p.efficiency for p in ports], dtype=np.float64),
        port_raw=np.array([p.bandwidth for p in ports], dtype=np.float64),
    )


def _leaves(network: Network, copies: int, ports: F64) -> tuple[np.ndarray, F64]:
    """Return the leaf of each NIC, and each leaf's uplink B/s."""
    q = len(ports)
    if copies == 1 or not q:
        return np.zeros(0, dtype=np.int32), np.zeros(0)
    group = np.arange(copies) // network.leaf_nodes
    if network.kind == "rails":
        leaf = group[:, None] * q + np.arange(q)[None, :]
    else:
        leaf = np.broadcast_to(group[:, None], (copies, q))
    leaf = leaf.astype(np.int32).ravel()
    # A leaf is built for `leaf_nodes` nodes: the last one has its siblings' uplinks, however few
    # nodes are below it.
    full = min(network.leaf_nodes, copies)
    each = ports * full if network.kind == "rails" else np.array([ports.sum() * full])
    return leaf, np.resize(each, int(leaf.max()) + 1) / network.oversubscription


def _placed(topology: Topology, ranks: int | Sequence[int] | None) -> np.ndarray:
    total, limit = topology.ngpus, 1 << 62
    if isinstance(ranks, Sequence):
        wanted = [whole(rank, f"{topology.name}: accelerator", -limit, limit) for rank in ranks]
        asked = len(wanted)
    else:
        asked = total if ranks is None else whole(ranks, f"{topology.name}: ranks", 0, limit)
        wanted = list(range(min(asked, total)))
    if not asked:
        raise InvalidArgument(f"{topology.name}: 0 ranks asked for: expected 1 to {total}")
    if asked > total or max(wanted) >= total or min(wanted) < 0:
        raise InvalidArgument(
            f"{topology.name}: {asked} ranks asked for, but {topology.nodes} node(s) of "
            f"{topology.gpus_per_node} GPUs are {total}: ask for fewer ranks or more --nodes"
        )
    return np.array(wanted, dtype=np.int32)


def _require_reachable(topology: Topology, fabric: Fabric) -> None:
    domain, m = fabric.domain, fabric.domain.ngpus
    locals_used = np.unique(fabric.local)
    lengths = np.diff(domain.routes.ptr).reshape(m, m)
    if np.any(np.bincount(fabric.node) > 1):
        i, j = np.meshgrid(locals_used, locals_used, indexing="ij")
        bad = np.argwhere((lengths[i, j] == 0) & (i != j))
        if len(bad):
            a, b = locals_used[bad[0][0]], locals_used[bad[0][1]]
            raise FabricError(
                f"{topology.name}: gpu{a} cannot reach gpu{b}: no scale-up link, "
                "switch or PCI path joins them (add one, or use fewer GPUs)"
            )
    if len(np.unique(fabric.node)) > 1:
        if not domain.nnics:
            raise FabricError(
                f"{topology.name}: {topology.nodes} nodes asked for, but the node "
                "has no NIC to join them: add `nics` to the machine"
            )
        joined = np.diff(domain.pairs.ptr).reshape(m, m)
        for gpu in locals_used:
            if not joined[gpu, gpu]:
                raise FabricError(
                    f"{topology.name}: gpu{gpu} reaches no NIC: no PCI path joins them"
                )


def lower(topology: Topology, ranks: int | Sequence[int] | None = None) -> Fabric:
    """Return the Fabric of `topology` with `ranks` placed on it.

    ranks: None for one on every accelerator, a number for the first so many, or a list of
    accelerators. Raises InvalidArgument when there are fewer accelerators, FabricError when ranks
    cannot reach each other.
    """
    place = _placed(topology, ranks)
    network = topology.network
    copies = int(place.max()) // topology.gpus_per_node + 1
    domain = _domain(topology.node, network, joined=copies > 1)
    leaf, leaf_bandwidth = _leaves(network, copies, domain.port)
    if not network.spine and len(np.unique(np.arange(copies) // network.leaf_nodes)) > 1:
        raise FabricError(
            f"{topology.name}: {copies} nodes need more than one pod of "
            f"{network.leaf_nodes} nodes, and rails without a spine join only one: "
            "set spine: true or a larger leaf_nodes"
        )
    fabric = Fabric(
        topology.name,
        domain,
        copies,
        place,
        leaf,
        leaf_bandwidth,
        network.hop,
        topology.device.launch,
        topology.device.memory,
    )
    _require_reachable(topology, fabric)
    return fabric
