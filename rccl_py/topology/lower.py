"""Lower a Topology to a Fabric: the tables of each kind of node, and the wiring between nodes.

Owns placement of ranks. Knows no collective. Raises FabricError for ranks that cannot reach each
other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from ..arguments import whole
from ..errors import FabricError, InvalidArgument
from ..fabric import I64, Domain, Fabric, Searched
from ..links import Device, LinkType, first_call
from .across import attached
from .build import Topology, nics_of
from .collecting import not_collecting
from .inside import inside_of
from .node_graph import numbered
from .wire import wiring_of

__all__ = ["domain_of", "lower"]

_HOST = ("pci", "cpu")  # media of a host's own links


def domain_of(node: nx.DiGraph) -> Domain:
    """Return the arrays of one node's graph.

    Raises FabricError when the graph is not as rccl_py.topology.build says: people may change it.
    """
    try:
        return _domain(node)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise FabricError(f"{node.name}: its graph lacks an attribute or has an odd one: {said}"
                          ) from None  # fmt: skip


def _domain(node: nx.DiGraph) -> Domain:
    g = numbered(node)
    rate = np.array(g.column("bandwidth"), dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(rate) & (rate > 0)))
    if len(bad):
        a, b, _ = g.edges[bad[0]]
        raise FabricError(f"{node.name}: link {a} -> {b} has {rate[bad[0]]} B/s: above 0 expected")
    for names, kind in ((g.gpus, "GPU"), (g.nics, "NIC")):
        if len({node.nodes[v]["index"] for v in names}) < len(names):
            raise FabricError(f"{node.name}: two {kind}s have the same index")
    ports = [node.nodes[nic]["port"] for nic in g.nics]
    index = {v: i for i, v in enumerate(g.gpus)}
    vertices = [*g.gpus, *(v for v in node if v not in index)]
    number = {v: i for i, v in enumerate(vertices)}
    own = attached(g)
    joins = _joining(g.column("link"))
    return Domain(
        ngpus=len(g.gpus),
        nnics=len(g.nics),
        bandwidth=rate,
        raw=np.array(g.column("raw"), dtype=np.float64),
        names=tuple(f"{a} -> {b}" for a, b, _ in g.edges),
        media=tuple(link.medium for link in g.column("link")),
        tail=np.array([index.get(a, -1) for a, _, _ in g.edges], dtype=np.int32),
        head=np.array([index.get(b, -1) for _, b, _ in g.edges], dtype=np.int32),
        start=np.array([number[a] for a, _, _ in g.edges], dtype=np.int32),
        end=np.array([number[b] for _, b, _ in g.edges], dtype=np.int32),
        vertices=tuple(vertices),
        inside=inside_of(g),
        nic_names=tuple(g.nics),
        group=np.array([node.nodes[v].get("group", 0) for v in g.gpus], dtype=np.int32),
        rail=np.array([node.nodes[nic]["index"] for nic in g.nics], dtype=np.int32),
        attach=own.attach,
        nic=own.nic,
        up=own.up,
        down=own.down,
        wait=own.wait,
        owner=own.owner,
        port=np.array([p.bandwidth * p.efficiency for p in ports], dtype=np.float64),
        port_raw=np.array([p.bandwidth for p in ports], dtype=np.float64),
        port_latency=np.array([p.latency for p in ports], dtype=np.float64).reshape(-1, 3).T,
        port_message=np.array([p.message for p in ports], dtype=np.float64),
        wire=np.array([link.wire for link in g.column("link")]).reshape(-1, 3).T,
        port_wire=np.array([p.wire for p in ports]).reshape(-1, 3).T,
        spread=np.array([link.spread for link in g.column("link")], dtype=np.float64),
        port_pauses=np.array([p.pauses for p in ports], dtype=bool),
        port_spread=np.array([p.spread for p in ports], dtype=np.float64),
        joins=joins,
        window=max((link.window for link, j in zip(g.column("link"), joins) if j), default=0.0),
        port_window=max((p.window for p in ports), default=0.0),
        multicast=min((link.multicast for link in g.column("link") if link.coherent), default=0.0),
    )


def _joining(links: Sequence[LinkType]) -> np.ndarray:
    """Return which links accelerators reach each other by: all but the host's, where others are."""
    found = np.array([link.medium not in _HOST for link in links], dtype=bool)
    return found if found.any() else ~found


def _placed(topology: Topology, ranks: int | Sequence[int] | None) -> np.ndarray:
    total, limit = topology.ngpus, 1 << 62
    if isinstance(ranks, Sequence):
        wanted = [whole(rank, f"{topology.name}: accelerator", -limit, limit) for rank in ranks]
        asked = len(wanted)
        place = np.array(wanted or [0])
    else:
        total = topology.nranks
        asked = total if ranks is None else whole(ranks, f"{topology.name}: ranks", 0, limit)
        place = np.array(topology.place or range(min(asked, total)))[:asked]
    if not asked:
        raise InvalidArgument(f"{topology.name}: 0 ranks asked for: expected 1 to {total}")
    if asked > total or place.max() >= topology.ngpus or place.min() < 0:
        raise InvalidArgument(
            f"{topology.name}: {asked} ranks asked for, but "
            + (
                f"its place has {total}"
                if topology.place
                else f"{topology.nodes} node(s) of {topology.gpus_per_node} GPUs are {total}"
            )
            + ": ask for fewer ranks or more --nodes"
        )
    return place.astype(np.int32)


def _kinds(topology: Topology, copies: int) -> tuple[list[nx.DiGraph], np.ndarray]:
    """Return the graphs that occur among the first `copies` nodes, and the kind of each node."""
    graphs, number = [topology.node], {id(topology.node): 0}
    kind = np.zeros(copies, dtype=np.int32)
    for node, graph in topology.unlike:
        if node < copies:
            if id(graph) not in number:
                number[id(graph)] = len(graphs)
                graphs.append(graph)
            kind[node] = number[id(graph)]
    return graphs, kind


def _copies(topology: Topology, last: int) -> int:
    """Return how many nodes there are up to the one that holds accelerator `last`."""
    sizes = np.full(topology.nodes, topology.gpus_per_node, dtype=np.int64)
    counted = {id(graph): sum(kind == "gpu" for _, kind in graph.nodes(data="kind"))
               for _, graph in topology.unlike}  # fmt: skip
    for node, graph in topology.unlike:
        sizes[node] = counted[id(graph)]
    return int(np.searchsorted(np.cumsum(sizes), last, side="right")) + 1


def _require_reachable(fabric: Fabric) -> None:
    """Raise FabricError where two ranks are not joined; one node of each kind is looked at."""
    joins = np.unique(fabric.node)
    kinds = fabric.kind[joins]
    for kind in np.unique(kinds):
        same = np.flatnonzero(kinds == kind)
        domain = fabric.domains[int(kind)]
        here = fabric.local[np.isin(fabric.node, joins[same])] if len(same) > 1 else (
            fabric.local[fabric.node == joins[same[0]]])  # fmt: skip
        locals_used = np.unique(here)
        # All from one and all to one: then every pair is joined, at worst through that one.
        one = np.full(len(locals_used), locals_used[0])
        pairs = [(one, locals_used)]
        if not (isinstance(domain.inside, Searched) and domain.inside.symmetric):
            pairs.append((locals_used, one))
        if len(locals_used) <= 64:
            i, j = np.meshgrid(locals_used, locals_used, indexing="ij")
            pairs = [(i.ravel(), j.ravel())]
        for i, j in pairs if np.any(np.bincount(fabric.node)[joins[same]] > 1) else []:
            bad = np.flatnonzero(~domain.inside.reaches(i, j))
            if len(bad):
                raise _apart(fabric, domain, int(joins[same[0]]), int(i[bad[0]]), int(j[bad[0]]))
        if len(joins) == 1:
            continue
        if not domain.nnics:
            raise FabricError(
                f"{fabric.name}: {len(joins)} nodes asked for, but node {joins[same[0]]} "
                "has no NIC to join them: add `nics` to the machine"
            )
        alone = locals_used[np.diff(domain.attach)[locals_used] == 0]
        if len(alone):
            raise FabricError(
                f"{fabric.name}: gpu{alone[0]} reaches no NIC: no PCI path joins them"
            )
    if fabric.staged and len(joins) > 1:
        _require_rails(fabric, kinds, joins)


def _apart(fabric: Fabric, domain: Domain, node: int, i: int, j: int) -> FabricError:
    """Return the error for a node whose accelerators i and j are not joined, by its two sides."""
    ranks = np.flatnonzero(fabric.node == node)
    here = fabric.local[ranks]
    side = domain.inside.reaches(np.full(len(here), i), here)
    one, two = _in_words(ranks[side]), _in_words(ranks[~side])
    what = f"{one} cannot reach {two}: no link, switch or NIC joins them"
    if not len(ranks[~side]):  # i reaches all, so j does not reach i
        what = "not all ranks of a node reach each other"
    return FabricError(
        f"{fabric.name}: gpu{i} cannot reach gpu{j}: no scale-up link, switch or PCI path joins "
        f"them, so {what} (add one, or use fewer GPUs)"
    )


def _in_words(ranks: I64) -> str:
    """Return ranks in words: ``"ranks 0..3 and 8"``."""
    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) > 1) + 1)
    parts = [f"{r[0]}..{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs]
    listed = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


def _require_rails(fabric: Fabric, kinds: np.ndarray, nodes: np.ndarray) -> None:
    """Raise FabricError where two nodes have no rail in common, which is all that joins them."""
    found, first = np.unique(kinds, return_index=True)
    for a, at in zip(found.tolist(), first.tolist()):
        for b, other in zip(found.tolist(), first.tolist()):
            one, two = fabric.domains[a], fabric.domains[b]
            if not len(np.intersect1d(one.rail[one.nic], two.rail[two.nic])):
                raise FabricError(
                    f"{fabric.name}: node {nodes[at]} has no NIC on a rail of node "
                    f"{nodes[other]}: rails without a spine need one in common"
                )


def lower(topology: Topology, ranks: int | Sequence[int] | None = None) -> Fabric:
    """Return the Fabric of `topology` with `ranks` placed on it.

    ranks: None for one on every accelerator (of topology.place, where it has one), a number for
    the first so many, or a list of accelerators. Raises InvalidArgument when there are fewer,
    FabricError when ranks cannot reach each other.
    """
    with not_collecting():
        return _lowered(topology, _placed(topology, ranks))


def _lowered(topology: Topology, place: np.ndarray) -> Fabric:
    network = topology.network
    graphs, kind = _kinds(topology, _copies(topology, int(place.max())))
    domains = tuple(domain_of(graph) for graph in graphs)
    wiring = None
    nics = np.array([d.nnics for d in domains], dtype=np.int64)[kind]
    if len(kind) > 1 and nics.all():
        port, rail = (
            np.concatenate([getattr(domains[k], name) for k in kind.tolist()])
            for name in ("port", "rail")
        )
        wiring = wiring_of(network, nics, rail.astype(np.int64), port, topology.name)
    fabric = Fabric(
        topology.name,
        domains,
        kind,
        place,
        wiring,
        network.staged,
        network.hop,
        topology.device.launch,
        topology.device.memory,
        topology.device.reduction_rate,
        topology.device.copy_rate,
        topology.device.per_channel,
        _first_use(topology, graphs),
        topology.device.arch,
    )
    _require_reachable(fabric)
    return fabric


@dataclass(frozen=True, eq=False)
class _FirstUse:
    """What registering a new buffer adds to rank 0's first call, by the ranks it deals with.

    links, ports: the kind of every own link and of every NIC's cable, by kind of node.
    """

    device: Device
    links: tuple[tuple[LinkType, ...], ...]
    ports: tuple[tuple[LinkType, ...], ...]

    def __call__(self, fabric: Fabric, nbytes: float, partners: I64) -> float:
        """Return s."""
        node, local = int(fabric.node[0]), int(fabric.local[0])
        kind = int(fabric.kind[node])
        domain = fabric.domains[kind]
        near = partners[fabric.node[partners] == node]
        found = domain.inside.routes(np.full(len(near), local), fabric.local[near])
        own = domain.tail[found.link] == local
        _, first = np.unique(found.row[own], return_index=True)  # the first link of each route
        peers = Counter(self.links[kind][k] for k in found.link[own][first].tolist())
        nics, far = domain.nics_of(local), len(partners) - len(near)
        if nics and far:
            peers[self.ports[kind][nics[0]]] += far
        return first_call(self.device, peers, nbytes)


def _first_use(topology: Topology, graphs: list[nx.DiGraph]) -> _FirstUse:
    return _FirstUse(
        topology.device,
        tuple(tuple(link for _, _, link in graph.edges(data="link")) for graph in graphs),
        tuple(tuple(graph.nodes[nic]["port"] for nic in nics_of(graph)) for graph in graphs),
    )
