"""The healthy twin: what in a node is not as the rest of it, by majority.

Owns the rule: where most links of a kind are alike, the others are suspects. Prints nothing;
knows no device's data sheet, so a node whose links are all slow looks healthy.

    pairs      most pairs of GPUs are joined alike (a full mesh): pairs that are not
    GPUs       else most GPUs have equally many lanes: GPUs with fewer
    switches   most links between GPUs and switches are alike: those that are not
    PCIe       most GPUs (or NICs of one speed) hang from equal links: those that do not
    ports      most NICs are equally fast: slower ones, unless they are a kind of their own
    nearest    most GPUs have as near a NIC: GPUs that have a farther one
    nodes      few nodes of a cluster are unlike the first: where they differ from it
    both ways  a link is as wide one way as the other
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import networkx as nx

from .build import SCALE_UP, Topology, gpus_of, nics_of
from .diff import node_differences
from .difference import NONE, Difference, link_text, port_text, within
from .kinds import kinds_of
from .narrowest import host_links, scale_up_link, where_narrow
from .paths import LEGEND, class_of, nic_matrix

__all__ = ["suspects"]

_MAJORITY = 0.6  # assumed: a kind of link has a usual width when so many of its links have it
_STRAY = 0.25  # assumed: a larger part of odd ones is how the machine is built
_MATRIX = 1 << 16  # pairs of an accelerator and a NIC whose path class is still looked up
_UNLIKE = 32  # nodes of their own kind that are looked at
_NEAREST = tuple(LEGEND)

Key = TypeVar("Key", bound=Hashable)


def _majority(values: Mapping[Key, str]) -> str | None:
    """Return the value most have, if they are a majority."""
    if len(values) < 3:
        return None  # of two, which is the odd one?
    value, count = Counter(values.values()).most_common(1)[0]
    return value if count >= _MAJORITY * len(values) and count > 1 else None


def _odd(values: Mapping[str, str], what: str) -> Iterator[Difference]:
    """Yield those that are not as most; "before" is what most have."""
    usual = _majority(values)
    if usual is None:
        return
    for where, value in values.items():
        if value != usual:
            yield Difference(where, usual, value, what, len(values))


def _title(graph: nx.DiGraph, vertex: str) -> str:
    data = graph.nodes[vertex]
    named = {"gpu": "GPU", "nic": "NIC"}.get(data["kind"])
    return f"{named}{data['index']}" if named else vertex


def _one_way(graph: nx.DiGraph) -> Iterator[Difference]:
    """Yield links that are not as wide back as there, unless many are so by design.

    Two GPUs answer each other over a link, so one with no way back at all is never by design.
    """
    found: list[Difference] = []
    lost: list[Difference] = []
    for a, b, there in graph.edges(data=True):
        back = graph.get_edge_data(b, a)
        alike = back is not None and link_text(back) == link_text(there)
        if alike or (back is not None and (a, b) > (b, a)):
            continue
        where = f"{_title(graph, b)} -> {_title(graph, a)}"
        d = Difference(where, link_text(there), link_text(back), "link")
        gpus = graph.nodes[a]["kind"] == graph.nodes[b]["kind"] == "gpu"
        (lost if back is None and gpus else found).append(d)
    yield from lost
    if len(found) <= _STRAY * graph.number_of_edges():
        yield from found


def _pairs(graph: nx.DiGraph) -> Iterator[Difference]:
    """Yield odd pairs of a mesh; without one, accelerators with fewer lanes than most."""
    gpus = gpus_of(graph)
    joined = {v for e in graph.edges if graph.edges[e]["link"].medium in SCALE_UP for v in e}
    if not any(v in joined for v in gpus) or any(graph.nodes[v]["kind"] == "switch"
                                                 for v in joined):  # fmt: skip
        return
    if len(gpus) <= 64:  # a mesh has at most as many links as a device has ports
        texts = {f"{_title(graph, a)} - {_title(graph, b)}": link_text(scale_up_link(graph, a, b))
                 for a, b in combinations(gpus, 2)}  # fmt: skip
        usual = _majority(texts)
        if usual not in (None, NONE):
            found = list(_odd(texts, "link"))
            hit = Counter(end for d in found for end in d.where.split(" - "))
            # Pairs that leave out every GPU equally often are how the node is built.
            if len(hit) < len(gpus) or len(set(hit.values())) > 1:
                yield from found
            return
    lanes = {}
    for gpu in gpus:
        own = [graph.edges[gpu, b] for b in graph.successors(gpu)
               if graph.edges[gpu, b]["link"].medium in SCALE_UP]  # fmt: skip
        lanes[_title(graph, gpu)] = f"{round(sum(e['lanes'] for e in own), 3):g} lanes in all"
    usual = _majority(lanes)
    for d in _odd(lanes, "link"):
        if float(d.after.split()[0]) < float(d.before.split()[0]):
            yield d


def _switches(graph: nx.DiGraph) -> Iterator[Difference]:
    switches = [v for v in graph if graph.nodes[v]["kind"] == "switch"]
    near = [s for s in switches if any(graph.nodes[v]["kind"] == "gpu"
                                       for v in graph.predecessors(s))]  # fmt: skip
    gpus = gpus_of(graph)
    if len(near) * len(gpus) > 1 << 17:
        return
    joined = {
        (g, s) for s in near for g in graph.predecessors(s) if graph.nodes[g]["kind"] == "gpu"
    }
    # Where GPUs hang on different switches, a missing link is no sign of anything.
    whole = len(joined) >= _MAJORITY * len(near) * len(gpus)
    texts = {f"{_title(graph, g)} - {s}": link_text(scale_up_link(graph, g, s))
             for g in gpus for s in near if whole or (g, s) in joined}  # fmt: skip
    yield from _odd(texts, "link")


def _pcie(graph: nx.DiGraph) -> Iterator[Difference]:
    groups: dict[str, list[str]] = {"gpu": gpus_of(graph)}
    for nic in nics_of(graph):
        groups.setdefault(port_text(graph, nic), []).append(nic)
    links = host_links(graph, [v for members in groups.values() for v in members])
    for members in groups.values():
        texts = {_title(graph, v): link_text(links.get(v)) for v in members}
        wide = {link_text(links[v]): links[v]["bandwidth"] for v in members if v in links}
        at = {_title(graph, v): where_narrow(graph, v, links.get(v)) for v in members}
        for d in _odd(texts, "pcie"):
            if wide.get(d.after, 0.0) < wide.get(d.before, 0.0):
                yield replace(d, after=d.after + at[d.where])


def _ports(graph: nx.DiGraph) -> Iterator[Difference]:
    nics = nics_of(graph)
    found = list(_odd({_title(graph, v): port_text(graph, v) for v in nics}, "port"))
    if len(found) <= _STRAY * len(nics):
        yield from found


def _nearest(graph: nx.DiGraph) -> Iterator[Difference]:
    """Yield accelerators whose nearest NIC is farther than most others' is."""
    if not nics_of(graph) or len(nics_of(graph)) * len(gpus_of(graph)) > _MATRIX:
        return
    rows = nic_matrix(graph)
    near = {_title(graph, gpu): min(map(class_of, row), key=_NEAREST.index)
            for gpu, row in zip(gpus_of(graph), rows)}  # fmt: skip
    for d in _odd(near, "path"):
        if _NEAREST.index(d.after) > _NEAREST.index(d.before):
            yield Difference(f"{d.where} - nearest NIC", d.before, d.after, "path", d.of)


def _nodes(topology: Topology) -> Iterator[Difference]:
    """Yield what differs in a few nodes that are unlike all others of a cluster."""
    for node, graph in topology.unlike[:_UNLIKE]:
        yield from within(node, node_differences(topology.node, graph))


def suspects(topology: Topology) -> list[Difference]:
    """Return what nodes would have otherwise, were each as most of itself: before is healthy.

    A few nodes unlike all others are held against those; of a cluster of several kinds of node each
    kind is looked at, in the first node that is of it.
    """
    if len(topology.unlike) <= _STRAY * topology.nodes:
        return [*_of_node(topology.node), *_nodes(topology)]
    kinds = kinds_of(topology)
    found: list[Difference] = []
    for kind in kinds:
        own = _of_node(kind.graph)
        found += own if len(kinds) == 1 else within(kind.nodes[0], own)
    return found


def _of_node(graph: nx.DiGraph) -> list[Difference]:
    found: dict[str, Difference] = {}
    for part in (_one_way, _pairs, _switches, _pcie, _ports, _nearest):
        for d in part(graph):
            found.setdefault(f"{d.where} {d.what}", d)
    return list(found.values())
