"""From what a text says of pairs of devices to a graph that has those classes.

Owns the scale-up links: meshes, and switches where a GPU shows more links than it has. host
adds the PCI tree. Knows no text.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any

import networkx as nx

from ....links import LINKS, LinkType
from ...build import Topology, add_link, new_graph
from ..names import port_of, scale_up_link
from ..pci_tree import nvlinks_of
from .device import pcie_row
from .host import add_host
from .levels import Groups
from .node import Node

__all__ = ["topology_of_node"]

_HOP = 0.1e-6  # s, assumed: one switch, port to port, where the link's row names none
_PACKAGE = 4  # links between the two dies of a MI250X package
_SWITCHED = {"NV": "nvswitch", "UAL": "plane"}
_KIND = {"NV": "nvlink", "XGMI": "xgmi", "UAL": "ualink"}


def topology_of_node(node: Node) -> Topology:
    """Return the topology with the pairs of `node`; what is assumed is in its notes."""
    graph = new_graph(node.page.path.stem)
    pcie, remark = pcie_row(node.device)
    for k, own in enumerate(node.gpus):
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=0, **own)
    for k, name in enumerate(node.nics):
        port, speed = port_of(name, "", None, pcie.bandwidth)
        node.notes.add(speed)
        graph.add_node(f"nic{k}", kind="nic", index=k, host=0, port=port, name=name)
    for kind in ("NV", "XGMI", "UAL"):
        _add_scale_up(graph, node, kind)
    if add_host(graph, node, pcie):
        node.notes.add(remark)
    elif len(node.gpus) > 1:
        node.notes.add("the text places no GPU on a host: scale-up links only, no PCI tree")
    return Topology(graph.name, graph, node.device, notes=node.notes.lines())


def _add_scale_up(graph: nx.DiGraph, node: Node, kind: str) -> None:
    """Add the links of one kind, group by group of the GPUs they join."""
    lanes = {pair: own.lanes for pair, own in node.pairs.items() if own.kind == kind}
    if not lanes:
        return
    row, remark = scale_up_link(node.device, _KIND[kind])
    if kind == "UAL":
        row, remark = LINKS["ualink-200g"], ""
    if remark:
        node.notes.add(remark)
    groups = Groups(len(node.gpus))
    for a, b in lanes:
        groups.join(a, b)
    switches = 0
    for group in groups.among(list(range(len(node.gpus)))):
        own = {pair: lanes[pair] for pair in combinations(group, 2) if pair in lanes}
        if _is_switched(node, kind, group, own):
            _add_switch(graph, node, row, f"{_SWITCHED[kind]}{switches}", own)
            switches += 1
        else:
            for (a, b), count in own.items():
                inside = node.device.name == "mi250x" and count == _PACKAGE
                link = LINKS["xgmi-mi200-package"] if inside else row
                add_link(graph, f"gpu{a}", f"gpu{b}", link, count)


def _is_switched(node: Node, kind: str, group: list[int],
                 lanes: dict[tuple[int, int], float]) -> bool:  # fmt: skip
    """Return whether pairs of `group` must share their links: they are more than a GPU has."""
    if kind not in _SWITCHED or len(group) < 3:
        return False
    sums: defaultdict[int, float] = defaultdict(float)
    for (a, b), count in lanes.items():
        sums[a] += count
        sums[b] += count
    limit = max(lanes.values()) if kind == "UAL" else nvlinks_of(node.device, max(lanes.values()))
    if max(sums.values()) <= limit:
        return False
    if len(lanes) == len(group) * (len(group) - 1) // 2:
        return True
    node.notes.add(
        f"{kind} links of one GPU add up to {max(sums.values()):g}, it has {limit:g}, "
        "and not every pair has some: each pair modelled with links of its own"
    )
    return False


def _add_switch(graph: nx.DiGraph, node: Node, row: LinkType, name: str,
                lanes: dict[tuple[int, int], float]) -> None:  # fmt: skip
    """Join a group to one switch, each GPU by the most lanes it shows to any."""
    own: defaultdict[int, float] = defaultdict(float)
    for (a, b), count in lanes.items():
        own[a], own[b] = max(own[a], count), max(own[b], count)
    hop = row.hop or _HOP
    graph.add_node(name, kind="switch")
    for gpu in sorted(own):
        add_link(graph, f"gpu{gpu}", name, row, own[gpu])
        graph.edges[name, f"gpu{gpu}"]["latency"] = (hop, hop, hop)
    node.notes.add(
        f"every pair of {len(own)} GPUs shows {_span(own.values())} links, more than a "
        f"GPU has for all: one switch, {_span(own.values())} lanes a GPU"
    )
    for (a, b), count in lanes.items():
        if count < min(own[a], own[b]):
            add_link(graph, f"gpu{a}", f"gpu{b}", row, count)
            node.notes.add(
                f"gpu{a}-gpu{b} has {count:g} links where both have more with others: "
                "modelled as a path of its own beside the switch"
            )


def _span(counts: Any) -> str:
    low, high = min(counts), max(counts)
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"
