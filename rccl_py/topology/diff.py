"""Differences of two machines.

Owns how devices of two machines are matched (by bus id where both have them, else by index) and
what is compared. Prints nothing, and knows no routes and no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import networkx as nx

from .build import SCALE_UP, Network, Topology, gpus_of, nics_of
from .difference import NONE, Difference, link_text, link_texts, port_text, within
from .figures import (
    bisection,
    scale_out_bandwidth,
    scale_out_bisection,
    scale_up_bandwidth,
)
from .narrowest import host_links, scale_up_link, where_narrow
from .paths import gpu_matrix, nic_matrix

__all__ = ["compare", "node_differences"]

_PERMUTED = 12  # accelerators whose relabelling is still searched for
_UNLIKE = 32  # nodes of their own kind that are compared
_PAIRS = 128  # accelerators whose path classes are compared pair by pair


@dataclass(frozen=True, eq=False)
class _Match:
    """Vertices of a and of b that are the same device, by the name people read."""

    pairs: dict[str, tuple[str, str]]
    gone: list[str]
    new: list[str]
    by: str


def _title(kind: str, data: dict[str, Any]) -> str:
    return f"{'GPU' if kind == 'gpu' else 'NIC'}{data['index']}"


def _matched(a: nx.DiGraph, b: nx.DiGraph, kind: str) -> _Match:
    """Return which accelerators (or NICs) of a and b are the same."""
    list_of = gpus_of if kind == "gpu" else nics_of
    ours, theirs = list_of(a), list_of(b)
    by, keys = "index", [[d["index"] for d in map(g.nodes.get, names)]
                         for g, names in ((a, ours), (b, theirs))]  # fmt: skip
    for attributes in (("host", "busid", "name"), ("host", "busid")):
        own = [[tuple(g.nodes[v].get(k) for k in attributes) for v in names]
               for g, names in ((a, ours), (b, theirs))]  # fmt: skip
        unique = all(len(set(part)) == len(part) for part in own)
        if unique and all(key[1] for part in own for key in part) and set(own[0]) & set(own[1]):
            by, keys = "bus id", own
            break
    first, second = (dict(zip(part, names)) for part, names in zip(keys, (ours, theirs)))
    pairs = {_title(kind, a.nodes[v]): (v, second[key]) for key, v in first.items()
             if key in second}  # fmt: skip
    gone = [_named(kind, a.nodes[v]) for key, v in first.items() if key not in second]
    new = [_named(kind, b.nodes[v]) for key, v in second.items() if key not in first]
    return _Match(pairs, gone, new, by)


def _named(kind: str, data: dict[str, Any]) -> str:
    bus = data.get("busid")
    return _title(kind, data) + (f" ({bus})" if bus else "")


def _missing(match: _Match) -> Iterator[Difference]:
    for name in match.gone:
        yield Difference(name, "present", NONE, "missing")
    for name in match.new:
        yield Difference(name, NONE, "present", "missing")


def _link_differences(a: nx.DiGraph, b: nx.DiGraph, match: _Match) -> Iterator[Difference]:
    """Yield the scale-up links between two accelerators that differ; one a pair, if both ways do.

    Only pairs that have a link in one of the machines are looked at.
    """
    order = {name: k for k, name in enumerate(match.pairs)}
    of_a = {v: name for name, (v, _) in match.pairs.items()}
    of_b = {v: name for name, (_, v) in match.pairs.items()}
    joined = set()
    for graph, names in ((a, of_a), (b, of_b)):
        joined |= {(names[u], names[v]) for u, v in graph.edges if u in names and v in names
                   and graph.edges[u, v]["link"].medium in SCALE_UP}  # fmt: skip
    pairs = {tuple(sorted(pair, key=order.__getitem__)) for pair in joined}
    for x, y in sorted(pairs, key=lambda p: (order[p[0]], order[p[1]])):
        (xa, xb), (ya, yb) = match.pairs[x], match.pairs[y]
        there = link_texts(scale_up_link(a, xa, ya), scale_up_link(b, xb, yb))
        back = link_texts(scale_up_link(a, ya, xa), scale_up_link(b, yb, xb))
        if there and there == back:
            yield Difference(f"{x} - {y}", *there, "link", len(pairs))
            continue
        for text, where in ((there, f"{x} -> {y}"), (back, f"{y} -> {x}")):
            if text:
                yield Difference(where, *text, "link", 2 * len(pairs))


def _switches(graph: nx.DiGraph) -> list[str]:
    return [v for v in graph if graph.nodes[v]["kind"] == "switch"]


def _switch_differences(a: nx.DiGraph, b: nx.DiGraph, match: _Match) -> Iterator[Difference]:
    """Yield switches that one machine lacks, and links to the others that differ.

    Where names tell nothing (one switch that stands for four planes), what an accelerator has to
    all switches together is compared.
    """
    ours, theirs = _switches(a), _switches(b)
    if len(ours) == len(theirs):
        both = dict(zip(ours, theirs))  # names are the reader's, order is the file's
    elif set(ours) <= set(theirs) or set(theirs) <= set(ours):
        both = {v: v for v in ours if v in theirs}
        for v in ours + theirs:
            if v not in both:
                there = ("present", NONE) if v in ours else (NONE, "present")
                yield Difference(v, *there, "missing")
    else:
        yield Difference("switches", str(len(ours)), str(len(theirs)), "count")
        for name, (va, vb) in match.pairs.items():
            text = link_texts(_total(a, va, ours), _total(b, vb, theirs))
            if text:
                yield Difference(f"{name} - switches", *text, "link", len(match.pairs))
        return
    total = len(match.pairs) * len(both)
    for name, (va, vb) in match.pairs.items():
        for sa, sb in both.items():
            text = link_texts(scale_up_link(a, va, sa), scale_up_link(b, vb, sb)) or link_texts(
                scale_up_link(a, sa, va), scale_up_link(b, sb, vb)
            )
            if text:
                yield Difference(f"{name} - {sa}", *text, "link", total)


def _total(graph: nx.DiGraph, gpu: str, switches: list[str]) -> dict[str, Any] | None:
    """Return an accelerator's links to all switches as if they were one."""
    own = [e for e in (scale_up_link(graph, gpu, s) for s in switches) if e is not None]
    if not own:
        return None
    sums = {k: sum(e[k] for e in own) for k in ("lanes", "raw", "bandwidth")}
    return {**own[0], **sums}


def _host_differences(a: nx.DiGraph, b: nx.DiGraph, match: _Match) -> Iterator[Difference]:
    ours, theirs = (host_links(g, (pair[k] for pair in match.pairs.values()))
                    for k, g in enumerate((a, b)))  # fmt: skip
    for name, (va, vb) in match.pairs.items():
        text = link_texts(ours.get(va), theirs.get(vb))
        if text:
            after = text[1] + where_narrow(b, vb, theirs.get(vb))
            yield Difference(name, text[0], after, "pcie", len(match.pairs))


def _port_differences(a: nx.DiGraph, b: nx.DiGraph, match: _Match) -> Iterator[Difference]:
    for name, (va, vb) in match.pairs.items():
        texts = port_text(a, va), port_text(b, vb)
        kinds = a.nodes[va]["port"].name, b.nodes[vb]["port"].name
        if texts[0] == texts[1] and kinds[0] != kinds[1]:
            texts = kinds
        if texts[0] != texts[1]:
            yield Difference(name, *texts, "port", len(match.pairs))


def _path_differences(a: nx.DiGraph, b: nx.DiGraph, gpus: _Match, nics: _Match,
                      told: set[str]) -> Iterator[Difference]:  # fmt: skip
    """Yield pairs whose path class differs, but for those whose own link was told."""
    if max(len(gpus.pairs), len(nics.pairs)) > _PAIRS:
        return
    at = [{v: i for i, v in enumerate(names)} for names in
          (gpus_of(a), gpus_of(b), nics_of(a), nics_of(b))]  # fmt: skip
    cells = gpu_matrix(a), gpu_matrix(b)
    names = list(gpus.pairs)
    total = len(names) * (len(names) - 1) // 2
    for x, y in combinations(names, 2):
        i, j = gpus.pairs[x], gpus.pairs[y]
        texts = cells[0][at[0][i[0]]][at[0][j[0]]], cells[1][at[1][i[1]]][at[1][j[1]]]
        counted = all(text[-1].isdigit() for text in texts)  # NV#, XGMI#: the links say it
        if texts[0] != texts[1] and not counted and f"{x} - {y}" not in told:
            yield Difference(f"{x} - {y}", *texts, "path", total)
    cells = nic_matrix(a), nic_matrix(b)
    for x, (xa, xb) in gpus.pairs.items():
        for y, (ya, yb) in nics.pairs.items():
            texts = cells[0][at[0][xa]][at[2][ya]], cells[1][at[1][xb]][at[3][yb]]
            if texts[0] != texts[1]:
                yield Difference(f"{x} - {y}", *texts, "path", len(gpus.pairs) * len(nics.pairs))


def _changed(what: str, before: float, after: float) -> Iterator[Difference]:
    """Yield a bandwidth that changed, with the change in percent."""
    if abs(before - after) <= 1e-6 * max(before, after):
        return
    percent = f" ({after / before - 1:+.1%})" if before else ""
    texts = (f"{rate / 1e9:.5g} GB/s" for rate in (before, after))
    first, second = texts
    yield Difference(what, first, second + percent, "bandwidth")


def _total_differences(a: Topology, b: Topology) -> Iterator[Difference]:
    """Yield what a whole accelerator, node or cluster can carry, where it changed (usable)."""
    spreads = scale_up_bandwidth(a), scale_up_bandwidth(b)
    least, most = ([getattr(s, end).usable for s in spreads] for end in ("least", "most"))
    if least == most:
        yield from _changed("scale-up of a GPU", *least)
    else:
        yield from _changed("scale-up of the GPU with the least", *least)
        yield from _changed("scale-up of the GPU with the most", *most)
    yield from _changed("scale-out of a GPU", scale_out_bandwidth(a).usable,
                        scale_out_bandwidth(b).usable)  # fmt: skip
    for title, of in (("scale-up", bisection), ("scale-out", scale_out_bisection)):
        yield from _changed(f"{title} bisection", of(a).usable, of(b).usable)


def _head_differences(a: Topology, b: Topology) -> Iterator[Difference]:
    if a.device.title != b.device.title:
        yield Difference("device", a.device.title, b.device.title, "device")
    for what, ours, theirs in (
        ("nodes", a.nodes, b.nodes),
        ("GPUs a node", a.gpus_per_node, b.gpus_per_node),
        ("NICs a node", len(nics_of(a.node)), len(nics_of(b.node))),
    ):
        if ours != theirs:  # fmt: skip
            yield Difference(what, str(ours), str(theirs), "count")
    if max(a.nodes, b.nodes) > 1:
        for name in Network.__dataclass_fields__:
            ours, theirs = getattr(a.network, name), getattr(b.network, name)
            if ours != theirs:
                yield Difference(f"network {name.replace('_', ' ')}", f"{ours}", f"{theirs}",
                                 "network")  # fmt: skip


def _profile(graph: nx.DiGraph, vertex: str) -> str:
    """Return the links of a vertex as one text: those of a relabelled graph are the same."""
    out = sorted(d["text"] for _, _, d in graph.out_edges(vertex, data=True))
    into = sorted(d["text"] for _, _, d in graph.in_edges(vertex, data=True))
    return "; ".join([*out, "from", *into])


def _relabelling(a: nx.DiGraph, b: nx.DiGraph) -> dict[str, str] | None:
    """Return which accelerator of b each of a is, if all scale-up links agree in some order."""
    parts = []
    for graph in (a, b):
        gpus = gpus_of(graph)
        if len(gpus) > _PERMUTED or any(d["kind"] == "switch" for _, d in graph.nodes(data=True)):
            return None
        part = nx.DiGraph()
        part.add_nodes_from(gpus)
        for u, v in graph.edges:
            edge = scale_up_link(graph, u, v)
            if u in part and v in part and edge:
                part.add_edge(u, v, text=f"{edge['link'].name} {link_text(edge)}")
        parts.append(part)
    kinds = [sorted(_profile(part, v) for v in part) for part in parts]
    if kinds[0] != kinds[1]:
        return None
    matcher = nx.isomorphism.DiGraphMatcher(
        parts[0], parts[1], edge_match=lambda x, y: x["text"] == y["text"]
    )
    return dict(matcher.mapping) if matcher.is_isomorphic() else None


def _order(a: nx.DiGraph, b: nx.DiGraph, links: list[Difference]) -> list[Difference]:
    """Return one line in place of `links` where b is a with its accelerators in another order."""
    if not links:
        return links
    found = _relabelling(a, b)
    if found is None:
        return links
    moved = [f"{_title('gpu', a.nodes[u])} is {_title('gpu', b.nodes[v])}"
             for u, v in found.items() if a.nodes[u]["index"] != b.nodes[v]["index"]]  # fmt: skip
    text = f"the same scale-up links with GPUs in another order: {', '.join(moved)}"
    return [Difference("GPU order", "as given", text, "order")]


def node_differences(a: nx.DiGraph, b: nx.DiGraph) -> list[Difference]:
    """Return where the graph of one node differs from another's."""
    gpus, nics = _matched(a, b, "gpu"), _matched(a, b, "nic")
    links = [*_link_differences(a, b, gpus), *_switch_differences(a, b, gpus)]
    told = {d.where for d in links}
    paths = list(_path_differences(a, b, gpus, nics, told))
    if gpus.by == "index" and not gpus.gone and not gpus.new:
        links = _order(a, b, links)
    return [
        *_missing(gpus),
        *_missing(nics),
        *links,
        *_host_differences(a, b, gpus),
        *_host_differences(a, b, nics),
        *_port_differences(a, b, nics),
        *paths,
    ]


def _unlike(a: Topology, b: Topology) -> Iterator[Difference]:
    """Yield what differs in the nodes that are not as the first of their machine."""
    some = sorted({k for t in (a, b) for k, _ in t.unlike if k < min(a.nodes, b.nodes)})
    for node in some[:_UNLIKE]:
        pair = a.graph_of(node), b.graph_of(node)
        if pair[0] is not pair[1] and pair != (a.node, b.node):
            yield from within(node, node_differences(*pair))
    if len(some) > _UNLIKE:
        yield Difference("nodes", "", f"{len(some) - _UNLIKE} more are unlike the first and were "
                         "not compared", "note")  # fmt: skip


def compare(a: Topology, b: Topology) -> list[Difference]:
    """Return where machine b differs from machine a, a line each; nothing when they are equal.

    Accelerators and NICs are the same by bus id where both machines have unique ones and share
    some, else by index. Links that are equal after putting accelerators in another order are one
    difference. Bus ids, names and NUMA numbers themselves are not compared.
    """
    return [
        *_head_differences(a, b),
        *node_differences(a.node, b.node),
        *_unlike(a, b),
        *_total_differences(a, b),
    ]
