"""Which link of a graph limits a device: its own scale-up link, or the narrowest on its way up.

Owns the walk from a device to its CPU. Knows no routes and no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx

from .build import SCALE_UP

__all__ = ["host_links", "scale_up_link", "where_narrow"]

_Edge = dict[str, Any]


def scale_up_link(graph: nx.DiGraph, a: str, b: str) -> dict[str, Any] | None:
    """Return the scale-up link from a to b."""
    data = graph.get_edge_data(a, b)
    return dict(data) if data and data["link"].medium in SCALE_UP else None


def where_narrow(graph: nx.DiGraph, device: str, edge: _Edge | None) -> str:
    """Return where a host link is, if it is not the device's own: `` (above 0000:05:00.0)``."""
    if edge is None or edge["below"] == device:
        return ""
    return f" (above {graph.nodes[edge['below']].get('busid') or edge['below']})"


def host_links(graph: nx.DiGraph, devices: Iterable[str]) -> dict[str, _Edge]:
    """Return the link that limits each device below its CPU: the narrowest on the way up.

    Without CPUs, the link to its PCI switch. Devices without a host link are left out. An edge's
    attributes, and below: the vertex at its lower end, the device itself or a bridge above it.
    """
    cpus = [v for v in graph if graph.nodes[v]["kind"] == "cpu"]
    host = graph.subgraph(v for v in graph if graph.nodes[v]["kind"] in ("pci", "cpu"))
    depth: dict[str, int] = {}
    if cpus:
        depth = dict(nx.multi_source_dijkstra_path_length(host, cpus, weight=None))
    found: dict[str, _Edge] = {}
    for device in devices:
        at, left = device, len(depth) + 1
        while left > 0 and (not at or at not in cpus):
            above = [v for v in graph.successors(at) if v in host
                     and graph.edges[at, v]["link"].medium in ("pci", "c2c")]  # fmt: skip
            up = min(above, key=lambda v: depth.get(v, len(depth)), default=None)
            if up is None or (at != device and depth.get(up, left) >= depth.get(at, 0)):
                break
            edge = graph.edges[at, up]
            if device not in found or edge["bandwidth"] < found[device]["bandwidth"]:
                found[device] = {**edge, "below": at}
            at, left = up, min(left - 1, depth.get(up, 0))
    return found
