"""From the host classes of pairs to a PCI tree, CPUs and links between them.

Owns how a host is rebuilt from what is known of pairs. Knows no text. The
picture, for GPU0-NIC0 PIX, GPU1-NIC0 PXB, GPU1-GPU2 NODE, GPU2-GPU3 SYS:

    cpu0 --+-- pci0 --+-- pci1 --+-- gpu0
     |     |          |          +-- nic0
     |     |          +-- pci2 ----- gpu1
     |     +-- gpu2
    cpu1 ----- gpu3

A class is nearest first: PIX shares the lowest switch, PXB a higher one, PHB (and NODE) the CPU,
SYS the link between CPUs (`levels` bounds how many). Any two CPUs share one link.
"""

from __future__ import annotations

from itertools import combinations

import networkx as nx

from ....links import LINKS, LinkType
from ...build import add_link, add_pcie
from .device import sockets
from .levels import Groups, levels_of
from .node import LEVELS, Node

__all__ = ["add_host"]


def add_host(graph: nx.DiGraph, node: Node, pcie: LinkType) -> bool:
    """Add the PCI tree and the CPUs; return whether the text says anything of them."""
    levels = levels_of(node)
    known = [pair for pair, own in node.pairs.items() if own.kind in LEVELS]
    hosted = {device for pair in known for device in pair}
    hosted |= {k for k, place in enumerate(node.places) if place}
    coherent = _coherent(node)
    cpus = 0
    for island in levels[3].among(sorted(hosted)):
        under = levels[2].among(island)
        first = cpus
        for members in under:
            cpu = ""
            if len(under) > 1 or _needs_cpu(node, levels, members):
                cpu = f"cpu{cpus}"
                cpus += 1
                numa = _numa(graph, node, members)
                graph.add_node(cpu, kind="cpu", host=0, numa=numa, arch="", vendor="")
            _add_tree(graph, node, levels, members, cpu, pcie, coherent)
        _join_cpus(graph, node, range(first, cpus))
    return bool(hosted)


def _needs_cpu(node: Node, levels: list[Groups], members: list[int]) -> bool:
    placed = any(k < len(node.places) and node.places[k] for k in members)
    return placed or len(levels[1].among(members)) > 1


def _numa(graph: nx.DiGraph, node: Node, members: list[int]) -> int:
    """Return the NUMA node of a CPU: as printed for its GPUs, else the first number left."""
    printed = sorted({own["numa"] for own in node.gpus if "numa" in own})
    mine = (node.gpus[k].get("numa") for k in members if k < len(node.gpus))
    own: list[int] = sorted({numa for numa in mine if numa is not None})
    if len(own) > 1:
        node.notes.add(
            f"NUMA nodes {', '.join(map(str, own))} are printed for GPUs that the matrix puts "
            "under one CPU: the matrix counts"
        )
    used = {data["numa"] for _, data in graph.nodes(data=True) if data["kind"] == "cpu"}
    if own and own[0] not in used:
        return own[0]
    if own:
        node.notes.add(
            f"NUMA node {own[0]} is printed for GPUs that the matrix puts under several CPUs: the "
            "matrix counts"
        )
    return next(
        n for n in range(len(used) + len(printed) + 1) if n not in used and n not in printed
    )


def _add_tree(graph: nx.DiGraph, node: Node, levels: list[Groups], members: list[int], cpu: str,
              pcie: LinkType, coherent: set[int]) -> None:  # fmt: skip
    """Add what hangs under one CPU ("" when the text shows none above the top switch)."""
    for device in members if cpu else ():
        if device >= len(node.gpus):
            graph.nodes[node.vertex(device)]["numa"] = graph.nodes[cpu]["numa"]
    for group in levels[1].among(members):
        for gpu in sorted(coherent.intersection(group)) if cpu else ():
            add_link(graph, f"gpu{gpu}", cpu, LINKS["nvlink-c2c"])
        if len(group) == 1:
            if cpu and group[0] not in coherent:
                add_pcie(graph, cpu, node.vertex(group[0]), pcie)
            continue
        switches = levels[0].among(group)
        top = _add_switch_chip(graph, cpu, pcie)
        for below in switches:
            above = top if len(switches) == 1 else _add_switch_chip(graph, top, pcie)
            for device in below:
                add_pcie(graph, above, node.vertex(device), pcie)


def _add_switch_chip(graph: nx.DiGraph, above: str, pcie: LinkType) -> str:
    name = f"pci{sum(data['kind'] == 'pci' for _, data in graph.nodes(data=True))}"
    graph.add_node(name, kind="pci", host=0, bridge=True)
    if above:
        add_pcie(graph, above, name, pcie)
    return name


def _coherent(node: Node) -> set[int]:
    """Return the GPUs with a coherent link to their CPU: both of a C2C pair, one of a P2C pair."""
    state: dict[int, bool] = dict.fromkeys(
        range(len(node.gpus), len(node.gpus) + len(node.nics)), False
    )
    for pair, own in node.pairs.items():
        if own.kind in ("C2C", "PHB"):
            state.update(dict.fromkeys((k for k in pair if k < len(node.gpus)), own.kind == "C2C"))
    mixed = sorted(pair for pair, own in node.pairs.items() if own.kind == "P2C")
    while mixed:
        # What is known of one tells the other; where nothing is, the first GPU has the link.
        a, b = next((pair for pair in mixed if state.keys() & pair), mixed[0])
        if a not in state and b not in state:
            state[a] = True
        state.setdefault(a, not state.get(b, False))
        state.setdefault(b, not state[a])
        mixed = [pair for pair in mixed if not state.keys() >= set(pair)]
    return {k for k, linked in state.items() if linked and k < len(node.gpus)}


def _join_cpus(graph: nx.DiGraph, node: Node, cpus: range) -> None:
    if len(cpus) > 1:
        link, remark = sockets(node.page.lines, node.amd, node.grace)
        if remark:
            node.notes.add(remark)
        for a, b in combinations(cpus, 2):
            add_link(graph, f"cpu{a}", f"cpu{b}", link)
