"""The wiring of a cluster's network: which switch each NIC hangs on, and what joins the switches.

Owns how a Network's words (leaves, pods, oversubscription) become the numbers of a Wiring. Knows
no accelerator. Raises FabricError for a network that cannot hold the nodes.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..errors import FabricError
from ..fabric import F64, I64
from ..fabric.clos import Clos
from ..fabric.dragonfly import Dragonfly
from ..fabric.torus import Torus
from ..fabric.wiring import Wiring
from .build import Network

__all__ = ["wiring_of"]


def wiring_of(network: Network, nics: I64, rail: I64, port: F64, name: str) -> Wiring:
    """Return the wiring between the ports of all nodes.

    nics: int64[nodes], NICs of each node. rail, port: the rail and the usable B/s of every NIC,
    node by node. name: the machine's, for errors.
    """
    node = np.repeat(np.arange(len(nics)), nics)
    try:
        return _KINDS[network.kind](network, node, rail, port)
    except FabricError as error:
        raise FabricError(f"{name}: {error}") from None


def _clos(network: Network, node: I64, rail: I64, port: F64) -> Wiring:
    """Return a fat tree of leaves and spines; of pods joined by a core where pod_nodes says so.

    A leaf is built for `leaf_nodes` nodes: the last one has its siblings' uplinks, however few
    nodes are below it, and so has the last pod.
    """
    nodes = int(node[-1]) + 1
    group = node // network.leaf_nodes
    rails = int(rail.max()) + 1 if network.kind == "rails" else 1
    leaf = group * rails + (rail if network.kind == "rails" else 0)
    nleaves = (int(group[-1]) + 1) * rails
    below = np.bincount(leaf, weights=port, minlength=nleaves)
    full = below.reshape(-1, rails).max(axis=0)
    up = np.tile(full, nleaves // rails)
    up = (
        np.maximum(up, up[up > 0].min()) / network.oversubscription
    )  # a rail no node of a group has
    pod = np.zeros(nleaves, dtype=np.int64)
    if network.pod_nodes:
        if network.pod_nodes % network.leaf_nodes:
            raise FabricError(
                f"pod_nodes {network.pod_nodes} is not a multiple of leaf_nodes "
                f"{network.leaf_nodes}: a pod holds whole leaves"
            )
        pod = np.arange(nleaves) // (network.pod_nodes // network.leaf_nodes * rails)
    inside = np.bincount(pod, weights=up)
    pod_up = np.full(len(inside), inside.max()) / network.pod_oversubscription
    spines = cores = 0
    if network.spine:
        # As many spines as a leaf has uplinks of a NIC's speed; as many cores a spine likewise.
        spines = max(1, round(float(up.max() / port.max())))
        cores = max(1, round(float(pod_up.max() / port.max() / spines)))
    elif nleaves > rails:
        raise FabricError(
            f"{nodes} nodes need more than one group of {network.leaf_nodes} nodes, and leaves "
            "without a spine join only one: set spine: true or a larger leaf_nodes"
        )
    return Clos(
        leaf.astype(np.int32),
        pod.astype(np.int32),
        up,
        pod_up,
        spines,
        cores,
        network.routing,
        network.seed,
        network.flows,
    )


def _dragonfly(network: Network, node: I64, rail: I64, port: F64) -> Wiring:
    """Return routers in groups: a group's routers joined pairwise, groups by global links."""
    router = node // network.leaf_nodes
    groups, routers = network.groups, network.routers
    if int(router[-1]) >= groups * routers:
        raise FabricError(
            f"{int(node[-1]) + 1} nodes, {network.leaf_nodes} a router, need "
            f"{int(router[-1]) + 1} routers, but {groups} groups of {routers} are "
            f"{groups * routers}: more groups or routers"
        )
    each = float(port.max())
    return Dragonfly(
        groups,
        routers,
        router.astype(np.int32),
        network.local_rate or each,
        network.global_rate or each,
        network.global_links,
        network.routing,
        network.seed,
        network.flows,
    )


def _torus(network: Network, node: I64, rail: I64, port: F64) -> Wiring:
    """Return a torus of nodes."""
    nodes = int(node[-1]) + 1
    if nodes > prod(network.dims):
        sizes = " x ".join(map(str, network.dims))
        raise FabricError(f"{nodes} nodes do not fit a torus of {sizes}: give larger dims")
    rate = network.local_rate or float(np.bincount(node, weights=port).max())
    return Torus(
        network.dims,
        rate,
        node.astype(np.int32),
        network.wrap,
        network.routing,
        network.seed,
        network.flows,
    )


_KINDS = {"rails": _clos, "leaf-spine": _clos, "dragonfly": _dragonfly, "torus": _torus}
