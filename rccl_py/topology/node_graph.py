"""A node's graph with its links numbered, and the one path search lowering uses.

Owns link numbers and the rule "fewest hops, then most bandwidth". Knows no ranks and no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from ..fabric import F64
from .build import gpus_of, nics_of

__all__ = ["Entries", "NodeGraph", "numbered", "widest_shortest"]

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(key, link, share) columns of some routes."""


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """A node's graph with its links numbered in order."""

    graph: nx.DiGraph
    gpus: list[str]
    nics: list[str]
    number: dict[tuple[str, str], int]

    def bandwidth(self, a: str, b: str) -> float:
        """Usable B/s of a link."""
        return float(self.graph.edges[a, b]["bandwidth"])

    def latency(self, a: str, b: str) -> F64:
        """Seconds of a hop under LL, LL128, Simple."""
        return np.array(self.graph.edges[a, b]["latency"])

    def kind(self, vertex: str) -> str:
        """What a vertex is: gpu, switch, nic, pci, cpu."""
        return str(self.graph.nodes[vertex]["kind"])

    def medium(self, a: str, b: str) -> str:
        """What a link is made of: xgmi, nvlink, ualink, c2c, pci, cpu, net."""
        return str(self.graph.edges[a, b]["link"].medium)


def numbered(graph: nx.DiGraph) -> NodeGraph:
    """Return `graph` with its directed links numbered in order."""
    number = {edge: i for i, edge in enumerate(graph.edges)}
    return NodeGraph(graph, gpus_of(graph), nics_of(graph), number)


def widest_shortest(
    g: NodeGraph, source: str, usable: Callable[[str, str], bool], through: Callable[[str], bool]
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
