"""A machine with a link narrowed, or something taken away: for asking what a fault costs.

Owns which vertices may go. Returns new topologies; the one given stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx as nx

from ..arguments import finite, whole
from ..errors import FabricError
from .build import Topology

__all__ = ["with_link", "without"]


def _changed(topology: Topology, node: int | None, change: Callable[[nx.DiGraph], None],
             note: str) -> Topology:  # fmt: skip
    """Return `topology` with `change` made to one node's graph, or to all nodes'."""
    made: dict[int, nx.DiGraph] = {}

    def of(graph: nx.DiGraph) -> nx.DiGraph:
        if id(graph) not in made:
            made[id(graph)] = graph.copy()
            change(made[id(graph)])
        return made[id(graph)]

    notes = (*topology.notes, note + ("" if node is None else f" (node {node})"))
    if node is None:
        unlike = tuple((k, of(graph)) for k, graph in topology.unlike)
        return replace(topology, node=of(topology.node), unlike=unlike, notes=notes)
    node = whole(node, f"{topology.name}: node", 0, topology.nodes - 1)
    if topology.nodes == 1:
        return replace(topology, node=of(topology.node), notes=notes)
    own = {**dict(topology.unlike), node: of(topology.graph_of(node))}
    return replace(topology, unlike=tuple(sorted(own.items(), key=lambda kv: kv[0])), notes=notes)


def with_link(topology: Topology, a: str, b: str, lanes: float, node: int | None) -> Topology:
    """Return the machine with `lanes` left between `a` and `b`, both ways."""
    lanes = finite(lanes, f"{topology.name}: lanes", -1e-300, 1e6)

    def change(graph: nx.DiGraph) -> None:
        _require_edge(topology, graph, a, b)
        for ends in ((a, b), (b, a)):
            if not graph.has_edge(*ends):
                continue
            if lanes == 0:
                graph.remove_edge(*ends)
                continue
            edge = graph.edges[ends]
            link = edge["link"]
            raw = link.bandwidth * lanes
            edge.update(lanes=lanes, raw=raw, bandwidth=raw * link.efficiency)

    said = f"{a} - {b}: {lanes:g} lanes left" if lanes else f"{a} - {b}: link taken away"
    return _changed(topology, node, change, said)


def without(topology: Topology, a: str, b: str | None, node: int | None) -> Topology:
    """Return the machine without link a - b, or without vertex `a`."""
    if b is not None:
        return with_link(topology, a, b, 0.0, node)

    def change(graph: nx.DiGraph) -> None:
        if a not in graph:
            raise FabricError(f"{topology.name}: there is no {a}: {_some(graph)}")
        if graph.nodes[a]["kind"] == "gpu":
            raise FabricError(
                f"{topology.name}: {a} is an accelerator: leave its rank out instead (lower() and "
                "the commands take a list of accelerators)"
            )
        graph.remove_node(a)  # of NICs the others keep their numbers, and so their rails

    return _changed(topology, node, change, f"{a} taken away")


def _require_edge(topology: Topology, graph: nx.DiGraph, a: str, b: str) -> None:
    for v in (a, b):
        if v not in graph:
            raise FabricError(f"{topology.name}: there is no {v}: {_some(graph)}")
    if not graph.has_edge(a, b):
        near = ", ".join(sorted(graph.successors(a))[:8])
        raise FabricError(f"{topology.name}: no link joins {a} and {b}; {a} is joined to {near}")


def _some(graph: nx.DiGraph) -> str:
    kinds: dict[str, list[str]] = {}
    for v, kind in graph.nodes(data="kind"):
        kinds.setdefault(kind, []).append(v)
    return "there are " + "; ".join(
        f"{vs[0]}..{vs[-1]}" if len(vs) > 1 else vs[0] for vs in kinds.values()
    )
