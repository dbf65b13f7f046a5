"""A node's graph with its links numbered, and the one path search lowering uses.

Owns link numbers and the rule "fewest hops, then most bandwidth". Knows no ranks and no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np

from ..fabric import F64
from .build import SCALE_UP, gpus_of, nics_of

__all__ = ["Entries", "NodeGraph", "numbered", "widest_shortest"]

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(key, link, share) columns of some routes."""

Links = dict[str, list[tuple[str, float]]]
"""Vertex -> (neighbour, usable B/s) of the links that leave it."""


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """A node's graph with its links numbered in order: `edges` are (from, to, attributes)."""

    graph: nx.DiGraph
    gpus: list[str]
    nics: list[str]
    edges: list[tuple[str, str, dict[str, Any]]]

    @cached_property
    def number(self) -> dict[tuple[str, str], int]:
        """The number of each link."""
        return {(a, b): i for i, (a, b, _) in enumerate(self.edges)}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What each vertex is: gpu, switch, nic, pci, cpu."""
        return dict(self.graph.nodes(data="kind"))

    @cached_property
    def scale_up(self) -> Links:
        """The scale-up links that leave each vertex."""
        return self._links(lambda medium: medium in SCALE_UP)

    @cached_property
    def host(self) -> Links:
        """The links of the host (PCI, coherent, sockets) that leave each vertex."""
        return self._links(lambda medium: medium not in SCALE_UP)

    @cached_property
    def all_links(self) -> Links:
        """All links that leave each vertex."""
        return self._links(lambda medium: True)

    def _links(self, fits: Callable[[str], bool]) -> Links:
        found: Links = {}
        for a, b, data in self.edges:
            if fits(data["link"].medium):
                found.setdefault(a, []).append((b, data["bandwidth"]))
        return found

    @cached_property
    def has_switches(self) -> bool:
        """Whether a vertex is a scale-up switch."""
        return "switch" in self.kinds.values()

    def column(self, name: str) -> list[Any]:
        """Return an attribute of every link, by number."""
        return [data[name] for _, _, data in self.edges]

    def edge(self, a: str, b: str) -> dict[str, Any]:
        """Return the attributes of a link."""
        return self.edges[self.number[a, b]][2]

    def bandwidth(self, a: str, b: str) -> float:
        """Usable B/s of a link."""
        return float(self.edge(a, b)["bandwidth"])

    def latency(self, a: str, b: str) -> F64:
        """Seconds of a hop under LL, LL128, Simple."""
        return np.array(self.edge(a, b)["latency"])

    def kind(self, vertex: str) -> str:
        """What a vertex is: gpu, switch, nic, pci, cpu."""
        return self.kinds[vertex]

    def medium(self, a: str, b: str) -> str:
        """What a link is made of: xgmi, nvlink, ualink, c2c, pci, cpu, net."""
        return str(self.edge(a, b)["link"].medium)


def numbered(graph: nx.DiGraph) -> NodeGraph:
    """Return `graph` with its directed links numbered in order."""
    return NodeGraph(graph, gpus_of(graph), nics_of(graph), list(graph.edges(data=True)))


def widest_shortest(
    links: Links, source: str, through: Callable[[str], bool]
) -> dict[str, list[str]]:
    """Return, per reachable vertex, the path with fewest hops and, among those, most bandwidth.

    links: those that may be used; through: the vertices a path may pass.
    """
    before: dict[str, str] = {}
    width = {source: np.inf}
    layer = [source]
    while layer:
        found: dict[str, tuple[float, str]] = {}
        for a in layer:
            for b, bandwidth in links.get(a, ()):
                if b in width:
                    continue
                wide = min(width[a], bandwidth)
                if b not in found or wide > found[b][0]:
                    found[b] = (wide, a)
        width.update({b: wide for b, (wide, _) in found.items()})
        before.update({b: a for b, (_, a) in found.items()})
        layer = [v for v in found if through(v)]
    paths = {source: [source]}
    for b, a in before.items():  # in order of hops, so the path to `a` is known
        paths[b] = [*paths[a], b]
    return paths
