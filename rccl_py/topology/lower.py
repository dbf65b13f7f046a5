"""Lower a Topology to a Fabric: shortest, then widest, routes inside a node; leaves between nodes.

Owns how a route is chosen: a direct scale-up link, else one switch (all planes at once, by
bandwidth), else the shortest scale-up path through peers, else the host's PCI tree. Knows no
collective. Raises FabricError for ranks that cannot reach each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np

from ..errors import FabricError, InvalidArgument
from ..fabric import F64, Domain, Fabric, Table
from .build import SCALE_UP, Network, Topology, gpus_of, nics_of

__all__ = ["lower"]

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(key, link, share) columns of some routes."""


@dataclass(frozen=True, eq=False)
class _Graph:
    """A node's graph with its links numbered in order."""

    graph: nx.DiGraph
    gpus: list[str]
    nics: list[str]
    number: dict[tuple[str, str], int]

    def bandwidth(self, a: str, b: str) -> float:
        return float(self.graph.edges[a, b]["bandwidth"])

    def latency(self, a: str, b: str) -> F64:
        return np.array(self.graph.edges[a, b]["latency"])

    def kind(self, vertex: str) -> str:
        return str(self.graph.nodes[vertex]["kind"])

    def medium(self, a: str, b: str) -> str:
        return str(self.graph.edges[a, b]["link"].medium)


def _numbered(graph: nx.DiGraph) -> _Graph:
    number = {edge: i for i, edge in enumerate(graph.edges)}
    return _Graph(graph, gpus_of(graph), nics_of(graph), number)


def _widest_shortest(
    g: _Graph, source: str, usable: Callable[[str, str], bool], through: Callable[[str], bool]
) -> dict[str, list[str]]:
    """Return, per reachable vertex, the path with fewest hops and, among those, most bandwidth."""
    best: dict[str, tuple[float, list[str]]] = {source: (np.inf, [source])}
    layer = [source]
    while layer:
        found: dict[str, tuple[float, list[str]]] = {}
        for a in layer:
            width, path = best[a]
            for b in g.graph.successors(a):
                if b in best or not usable(a, b):
                    continue
                wide = min(width, g.bandwidth(a, b))
                if b not in found or wide > found[b][0]:
                    found[b] = (wide, [*path, b])
        best.update(found)
        layer = [v for v in found if through(v)]
    return {v: path for v, (_, path) in best.items()}


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Routes between every two accelerators of a node (key i * m + j), and what they cost."""

    entries: list[Entries]
    done: np.ndarray
    latency: F64
    message: F64


def _fill(g: _Graph, pairs: _Pairs, key: int, path: list[str]) -> None:
    """Write one single-path route into `pairs`."""
    edges = list(pairwise(path))
    pairs.entries.append(
        (np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges)))
    )
    pairs.latency[:, key] = sum(g.latency(*e) for e in edges)
    if not any(g.medium(*e) in SCALE_UP for e in edges):
        # A host path pays PCI's hand-shake once, however many bridges it crosses.
        first = next((g.graph.edges[e]["link"] for e in edges if g.medium(*e) == "pci"), None)
        if first is not None:
            pairs.latency[:, key] += np.array(first.latency)
    pairs.message[key] = max(g.graph.edges[e]["message"] for e in edges)
    pairs.done[key] = True


def _switched(g: _Graph, pairs: _Pairs) -> None:
    """Route the pairs that share switches: over all of them, shares by bandwidth."""
    m, switches = len(g.gpus), [v for v in g.graph if g.kind(v) == "switch"]
    if not switches:
        return
    up = np.full((m, len(switches)), -1)
    down = np.full((m, len(switches)), -1)
    bandwidth = np.array([d["bandwidth"] for _, _, d in g.graph.edges(data=True)] + [0.0])
    for i, gpu in enumerate(g.gpus):
        for k, switch in enumerate(switches):
            up[i, k] = g.number.get((gpu, switch), -1)
            down[i, k] = g.number.get((switch, gpu), -1)
    width = np.minimum(bandwidth[up][:, None, :], bandwidth[down][None, :, :])
    width[pairs.done.reshape(m, m)] = 0.0
    total = width.sum(axis=2)
    a, b, w = np.nonzero(width)
    key, share = a * m + b, width[a, b, w] / total[a, b]
    pairs.entries.append(
        (np.repeat(key, 2), np.stack([up[a, w], down[b, w]], 1), np.repeat(share, 2))
    )
    latency = np.array([d["latency"] for _, _, d in g.graph.edges(data=True)])
    message = np.array([d["message"] for _, _, d in g.graph.edges(data=True)])
    pairs.latency[:, key] = (latency[up[a, w]] + latency[down[b, w]]).T
    pairs.message[key] = message[up[a, w]]
    pairs.done[key] = True


def _pair_routes(g: _Graph) -> _Pairs:
    m = len(g.gpus)
    index = {v: i for i, v in enumerate(g.gpus)}
    pairs = _Pairs([], np.eye(m, dtype=bool).ravel(), np.zeros((3, m * m)), np.zeros(m * m))
    for a, b, data in g.graph.edges(data=True):
        if a in index and b in index and data["link"].medium in SCALE_UP:
            _fill(g, pairs, index[a] * m + index[b], [a, b])
    _switched(g, pairs)

    def is_scale_up(a: str, b: str) -> bool:
        return g.medium(a, b) in SCALE_UP

    def is_host(vertex: str) -> bool:
        return g.kind(vertex) in ("pci", "cpu")

    for i, a in enumerate(g.gpus):
        open_pairs = np.flatnonzero(~pairs.done[i * m : (i + 1) * m])
        if not len(open_pairs):
            continue
        relayed = _widest_shortest(g, a, is_scale_up, lambda v: g.kind(v) != "nic")
        hosted = _widest_shortest(g, a, lambda x, y: not is_scale_up(x, y), is_host)
        for j in open_pairs.tolist():
            path = relayed.get(g.gpus[j]) or hosted.get(g.gpus[j])
            if path is not None:
                _fill(g, pairs, i * m + j, path)
    return pairs


def _nic_paths(g: _Graph) -> dict[tuple[int, int], list[str]]:
    """Return the host path of every accelerator to every NIC it can reach without a peer."""
    found: dict[tuple[int, int], list[str]] = {}
    for i, gpu in enumerate(g.gpus):
        paths = _widest_shortest(
            g,
            gpu,
            lambda a, b: g.medium(a, b) not in SCALE_UP,
            lambda v: g.kind(v) in ("pci", "cpu"),
        )
        for q, nic in enumerate(g.nics):
            if nic in paths:
                found[i, q] = paths[nic]
    return found


def _nics_used(g: _Graph, paths: dict[tuple[int, int], list[str]]) -> list[list[int]]:
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
class _Cross:
    """How accelerators reach other nodes: tables keyed i * q + nic, and i * m + j."""

    up: list[Entries]
    down: list[Entries]
    pairs: list[Entries]
    latency: F64
    message: F64


def _path_entries(g: _Graph, key: int, path: list[str]) -> Entries:
    edges = list(pairwise(path))
    return np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges))


def _no_cross(m: int) -> _Cross:
    return _Cross([], [], [], np.zeros((3, m * m)), np.zeros(m * m))


def _cross_routes(g: _Graph, inside: Table, latency: F64, network: Network) -> _Cross:
    m, q = len(g.gpus), len(g.nics)
    paths = _nic_paths(g)
    used = _nics_used(g, paths)
    cross = _no_cross(m)
    owner = {nic: i for i in reversed(range(m)) for nic in used[i]}
    staged = network.kind == "rails" and not network.spine
    for i in range(m):
        for nic in owner if staged else used[i]:
            # A NIC of another accelerator is reached through that one (PXN), over scale-up.
            gpu = i if nic in used[i] else owner[nic]
            if gpu != i:
                relay = inside.entries(i * m + gpu)
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


def _join_nics(g: _Graph, cross: _Cross, key: int, sources: list[int], targets: list[int]) -> None:
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


def _domain(node: nx.DiGraph, network: Network, joined: bool) -> Domain:
    g = _numbered(node)
    m, q = len(g.gpus), len(g.nics)
    inside = _pair_routes(g)
    routes = Table.of(m * m, inside.entries)
    cross = _cross_routes(g, routes, inside.latency, network) if joined else _no_cross(m)
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
    below = np.bincount(leaf, weights=np.tile(ports, copies))
    return leaf, below / network.oversubscription


def _placed(topology: Topology, ranks: int | Sequence[int] | None) -> np.ndarray:
    total = topology.ngpus
    wanted = (
        np.arange(total if ranks is None else ranks)
        if not isinstance(ranks, Sequence)
        else np.asarray(ranks)
    )
    if not len(wanted):
        raise InvalidArgument(f"{topology.name}: 0 ranks asked for: expected 1 to {total}")
    if len(wanted) > total or wanted.max() >= total or wanted.min() < 0:
        raise InvalidArgument(
            f"{topology.name}: {len(wanted)} ranks asked for, but {topology.nodes} node(s) of "
            f"{topology.gpus_per_node} GPUs are {total}: ask for fewer ranks or more --nodes"
        )
    return wanted.astype(np.int32)


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
