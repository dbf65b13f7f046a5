"""What crosses between two halves of a cluster's nodes, over the worst choice of halves.

Owns the formula of each kind of network: a fat tree's min-cut, the middle of a torus, the links
between two halves of a dragonfly's groups. Every node counts with its own ports. Exact where all
nodes are alike, and over every halving of a fat tree of few nodes; else the least that is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import networkx as nx
import numpy as np

from ..fabric import F64, I64
from .build import Network, Topology, nics_of
from .kinds import used_nics

__all__ = ["network_bisection"]

_ENUMERATED = 12  # nodes whose halvings (924 at most) are all tried


@dataclass(frozen=True, eq=False)
class _Ports:
    """The ports of all nodes, by kind of node.

    kind: int64[nodes]. sends: float64[kinds, rails], B/s of the NICs in use; all: float64[kinds,
    rails], B/s of every NIC, which a leaf's uplinks are built for. widest: B/s of one port.
    """

    kind: I64
    sends: F64
    all: F64
    widest: float

    @cached_property
    def node(self) -> F64:
        """B/s that each node sends: float64[nodes]."""
        return np.asarray(self.sends.sum(axis=1)[self.kind], dtype=np.float64)

    @property
    def alike(self) -> bool:
        """Whether all nodes are of one kind."""
        return len(self.sends) == 1


def _rates(graph: nx.DiGraph, attribute: str) -> dict[str, float]:
    """Return B/s of each NIC's port."""
    ports = {nic: graph.nodes[nic]["port"] for nic in nics_of(graph)}
    usable = attribute == "usable"
    return {nic: p.bandwidth * (p.efficiency if usable else 1.0) for nic, p in ports.items()}


def _ports(topology: Topology, attribute: str, sent: Mapping[int, float]) -> _Ports | None:
    """Return the ports of all nodes; None where a node has none."""
    graphs, number = [topology.node], {id(topology.node): 0}
    kind = np.zeros(topology.nodes, dtype=np.int64)
    for node, graph in topology.unlike:
        if id(graph) not in number:
            number[id(graph)] = len(graphs)
            graphs.append(graph)
        kind[node] = number[id(graph)]
    present = np.unique(kind)
    graphs = [graphs[k] for k in present.tolist()]
    rates = [_rates(graph, attribute) for graph in graphs]
    if not all(rates):
        return None
    rails = topology.network.kind == "rails"
    rail = [{nic: graph.nodes[nic]["index"] if rails else 0 for nic in own}
            for graph, own in zip(graphs, rates)]  # fmt: skip
    shape = len(graphs), 1 + max(max(own.values()) for own in rail)
    sends, whole = np.zeros(shape), np.zeros(shape)
    for k, (graph, own) in enumerate(zip(graphs, rates)):
        used = used_nics(graph)
        total = sum(own[nic] for nic in used)
        for nic, rate in own.items():
            whole[k, rail[k][nic]] += rate
        for nic in used:  # a PCIe link that limits a node limits all its ports alike
            sends[k, rail[k][nic]] += own[nic] * sent[id(graph)] / total if total else 0.0
    # Nodes that differ in anything but their ports are alike here.
    _, first, same = np.unique(np.hstack([sends, whole]), axis=0, return_index=True,
                               return_inverse=True)  # fmt: skip
    widest = max(max(own.values()) for own in rates)
    return _Ports(same.ravel()[np.searchsorted(present, kind)], sends[first], whole[first], widest)


def _above(stands: tuple[F64, F64], up: F64, parent: I64) -> tuple[F64, F64]:
    """Return the least cut below each parent, standing left and right, over `up` wide uplinks."""
    left, right = stands
    own = (
        np.bincount(parent, np.minimum(left, right + up)),
        np.bincount(parent, np.minimum(right, left + up)),
    )
    return own[0].astype(np.float64), own[1].astype(np.float64)


def _grouped(ports: _Ports, group: I64, some: F64, rates: F64) -> F64:
    """Return the B/s of `some` nodes below each leaf: float64[groups, rails]."""
    kinds = len(ports.sends)
    counts = np.bincount(group * kinds + ports.kind, some, (int(group[-1]) + 1) * kinds)
    return np.asarray(counts.reshape(-1, kinds) @ rates)


def _tree(network: Network, ports: _Ports, halves: Iterator[F64]) -> tuple[float, float]:
    """Return the least min-cut of a fat tree over `halves`, and the ports of the lesser half there.

    Every leaf, and the spines of every pod, stand on whichever side cuts less, so the sum is a
    min-cut. Leaves are as in wire.py: each has the uplinks of the widest of its rail.
    """
    group = np.arange(len(ports.kind)) // network.leaf_nodes
    everyone = np.ones(len(group))
    below = _grouped(ports, group, everyone, ports.all)
    full = below.max(axis=0)
    up = np.tile(np.maximum(full, full[full > 0].min()), len(below)) / network.oversubscription
    pod = np.zeros(len(up), dtype=np.int64)
    if not network.spine:
        up = np.zeros(len(up))
    elif network.pod_nodes:
        pod = np.repeat(np.arange(len(below)) // max(1, network.pod_nodes // network.leaf_nodes),
                        len(full))  # fmt: skip
    inside = np.bincount(pod, up)
    pod_up = np.full(len(inside), inside.max()) / network.pod_oversubscription
    total = _grouped(ports, group, everyone, ports.sends).ravel()
    best = float("inf"), 0.0
    for half in halves:
        left = _grouped(ports, group, half, ports.sends).ravel()
        stands = _above((total - left, left), up, pod)
        if len(inside) > 1:
            stands = _above(stands, pod_up, np.zeros(len(inside), dtype=np.int64))
        cut = float(min(stands[0].sum(), stands[1].sum()))
        best = min(best, (cut, float(min(left.sum(), (total - left).sum()))))
    return best


def _halves(network: Network, ports: _Ports) -> tuple[Iterator[F64], bool]:
    """Return halvings of the nodes, and whether those are all: 1 for a node that sends.

    Of nodes that are alike the first half stands for all: it splits the fewest groups.
    """
    count = len(ports.kind)
    at, half = np.arange(count), count // 2
    if ports.alike:
        return iter([(at < half).astype(np.float64)]), True
    if count <= _ENUMERATED:
        chosen = combinations(range(count), half)
        return (np.isin(at, own).astype(np.float64) for own in chosen), True
    group = at // network.leaf_nodes
    weight = np.bincount(group, ports.node)[group]
    orders = [at, at[::-1], np.argsort(ports.node, kind="stable"),
              np.lexsort((group, weight)), np.lexsort((group, -weight))]  # fmt: skip
    return (np.isin(at, order[:half]).astype(np.float64) for order in orders), False


def _torus(network: Network, ports: _Ports) -> float:
    """Return what crosses the middle of a torus's longest side."""
    dims = network.dims or (len(ports.kind),)
    ways = 2 if network.wrap else 1
    rate = network.local_rate or float(ports.all.sum(axis=1).max())
    return ways * float(np.prod(dims)) / max(dims) * rate


def _dragonfly(network: Network, ports: _Ports) -> float:
    """Return what crosses between two halves of the groups in use, by direct links alone.

    Every two groups have the same number of links, as fabric.dragonfly cables whole rounds only.
    """
    nodes, each = len(ports.kind), max(1, network.routers * network.leaf_nodes)
    used = -(-nodes // each)
    if used < 2:  # half a group's routers, all joined to the others
        routers = -(-nodes // network.leaf_nodes)
        return (routers // 2) * (routers - routers // 2) * (network.local_rate or ports.widest)
    links = network.routers * network.global_links // max(network.groups - 1, 1)
    return (used // 2) * (used - used // 2) * links * (network.global_rate or ports.widest)


def network_bisection(
    topology: Topology, attribute: str, sent: Mapping[int, float]
) -> tuple[float, bool, str]:
    """Return B/s over the worst halving of the nodes, whether that is exact, and what it is from.

    attribute: "raw" or "usable". sent: B/s of the NICs in use of each graph, by its id.
    """
    network, nodes = topology.network, topology.nodes
    if nodes < 2:
        return 0.0, True, "one node has no network"
    ports = _ports(topology, attribute, sent)
    if ports is None or not ports.widest:
        return 0.0, True, "a node without NICs"
    if network.kind in ("torus", "dragonfly"):
        wide = (_torus if network.kind == "torus" else _dragonfly)(network, ports)
        ends = float(np.sort(ports.node)[: nodes // 2].sum())
        found, exact = min(ends, wide), ports.alike
    else:
        halves, exact = _halves(network, ports)
        found, ends = _tree(network, ports, halves)
    if found >= ends * (1 - 1e-9):
        who = "half the nodes'" if ports.alike else "the weaker half of the nodes'"
        return found, exact, f"{who} ports, {network.kind}"
    how = network.kind
    factors = [network.oversubscription, network.pod_oversubscription if network.pod_nodes else 1]
    over = " and ".join(f"{f:g}:1" for f in factors if f != 1)
    if over and network.kind in ("rails", "leaf-spine"):
        how += f", oversubscribed {over}"
    return found, exact, how
