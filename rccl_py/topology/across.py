"""Routes from the accelerators of a node to its NICs, and which NICs carry what to other nodes.

Owns the choice of NICs: an accelerator uses its nearest ones, shared out among those as near as
it is. On rails without a spine the destination's rail is used, staged on the peer that owns it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..fabric import F64, Table
from .build import SCALE_UP, Network
from .node_graph import Entries, NodeGraph, widest_shortest

__all__ = ["Cross", "cross_routes", "no_cross"]


def _nic_paths(g: NodeGraph) -> dict[tuple[int, int], list[str]]:
    """Return the host path of every accelerator to every NIC it can reach without a peer."""
    found: dict[tuple[int, int], list[str]] = {}
    for i, gpu in enumerate(g.gpus):
        paths = widest_shortest(
            g,
            gpu,
            lambda a, b: g.medium(a, b) not in SCALE_UP,
            lambda v: g.kind(v) in ("pci", "cpu"),
        )
        for q, nic in enumerate(g.nics):
            if nic in paths:
                found[i, q] = paths[nic]
    return found


def _nics_used(g: NodeGraph, paths: dict[tuple[int, int], list[str]]) -> list[list[int]]:
    """Return each accelerator's NICs: its nearest, shared out among those as near as it is."""
    nearest: list[tuple[int, ...]] = []
    for i in range(len(g.gpus)):
        hops = {q: len(paths[i, q]) for q in range(len(g.nics)) if (i, q) in paths}
        nearest.append(tuple(q for q in hops if hops[q] == min(hops.values())))
    used: list[list[int]] = []
    for i, near in enumerate(nearest):
        peers = [j for j, other in enumerate(nearest) if other == near]
        k, count, nics = peers.index(i), len(peers), len(near)
        first, last = k * nics // count, max((k + 1) * nics // count, k * nics // count + 1)
        used.append(list(near[first:last]) if near else [])
    return used


@dataclass(frozen=True, eq=False)
class Cross:
    """How accelerators reach other nodes: tables keyed i * q + nic, and i * m + j."""

    up: list[Entries]
    down: list[Entries]
    pairs: list[Entries]
    latency: F64
    message: F64


def _path_entries(g: NodeGraph, key: int, path: list[str]) -> Entries:
    edges = list(pairwise(path))
    return np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges))


def no_cross(m: int) -> Cross:
    """Return the empty tables of a machine of one node."""
    return Cross([], [], [], np.zeros((3, m * m)), np.zeros(m * m))


def cross_routes(g: NodeGraph, inside: Table, latency: F64, network: Network) -> Cross:
    """Return how each of the m accelerators leaves and enters its node.

    inside, latency: the routes between accelerators of the node, and their float64[3, m*m] s.
    """
    m, q = len(g.gpus), len(g.nics)
    paths = _nic_paths(g)
    used = _nics_used(g, paths)
    cross = no_cross(m)
    owner = {nic: i for i in reversed(range(m)) for nic in used[i]}
    staged = network.kind == "rails" and not network.spine
    for i in range(m):
        for nic in owner if staged else used[i]:
            # A NIC of another accelerator is reached through that one (PXN), over scale-up.
            gpu = i if nic in used[i] else owner[nic]
            relay = inside.entries(i * m + gpu)
            if relay:
                cross.up.append((np.full(len(relay), i * q + nic), *np.array(relay).T))
            cross.up.append(_path_entries(g, i * q + nic, paths[gpu, nic]))
            cross.down.append(_path_entries(g, i * q + nic, paths[gpu, nic][::-1]))
    for i in range(m):
        for j in range(m):
            sources = used[j] if staged else used[i]
            if not sources or not used[j]:
                continue
            _join_nics(g, cross, i * m + j, sources, used[j])
            nic = sources[0]
            gpu = i if nic in used[i] else owner[nic]
            hops = len(paths[gpu, nic]) + len(paths[j, used[j][0]]) - 2
            cross.latency[:, i * m + j] += hops * _PCI_HOP + latency[:, i * m + gpu]
    return cross


def _join_nics(
    g: NodeGraph, cross: Cross, key: int, sources: list[int], targets: list[int]
) -> None:
    """Choose the NIC pairs that carry one accelerator to another node's."""
    q = len(g.nics)
    if len(sources) == len(targets):
        chosen = list(zip(sources, targets))
    else:
        chosen = [(a, b) for a in sources for b in targets]
    nics = np.array([a * q + b for a, b in chosen])
    cross.pairs.append((np.full(len(chosen), key), nics, np.full(len(chosen), 1 / len(chosen))))
    port = g.graph.nodes[g.nics[sources[0]]]["port"]
    cross.latency[:, key] = port.latency
    cross.message[key] = port.message


_PCI_HOP = 0.15e-6  # assumed: a PCIe switch traversal, as in build.add_pcie
