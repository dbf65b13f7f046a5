"""The host of a node: CPUs, PCI switches, accelerators and NICs.

Owns the order of devices on the page and which of a large host are drawn.

    with CPUs: a tree          without: columns
    CPU0 -+- pci -+- GPU       GPU0   GPU1
          |       +- NIC        |      |
          +- pci -+- GPU       pci    pci
                  +- NIC        |      |
                               NIC0   NIC1
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ...topology.build import SCALE_UP, nics_of
from .parts import Box, Line, Link, Panel, Point, both, links_of, short, title_of, widths_of

__all__ = ["host_panel"]

_LEAVES = 40  # GPUs and NICs of a host that are drawn
_COLUMNS = 9.7  # inches: wider rows of columns are broken


def host_panel(graph: Any) -> Panel | None:
    """Return the picture of PCI, CPUs and NICs; None where there are no such links."""
    links = links_of(graph, lambda link: link.medium not in SCALE_UP)
    if not links:
        return None
    joined = {v for link in links for v in link[:2]}
    whole = [v for v in graph if v in joined]
    kept, said = _one_host(graph, whole)
    kept_links = [link for link in links if link[0] in kept and link[1] in kept]
    if any(graph.nodes[v]["kind"] == "cpu" for v in kept):
        panel = _tree(graph, kept, kept_links)
    else:
        panel = _columns(graph, kept, kept_links)
    count = len(nics_of(graph))
    ports = sorted({graph.nodes[v]["port"].bandwidth * 8 / 1e9 for v in nics_of(graph)})
    speeds = "/".join(f"{p:g}" for p in ports)
    panel.title = f"host: PCIe, {_counted(count)}{f' of {speeds} Gb/s' if count else ''}"
    panel.title += f" ({said})" if said else ""
    return panel.fitted()


def _counted(nics: int) -> str:
    return "no NICs" if not nics else "1 NIC" if nics == 1 else f"{nics} NICs"


def _one_host(graph: Any, vertices: list[str]) -> tuple[set[str], str]:
    """Return the vertices to draw: all, or one host's, or the first of it."""

    def leaves(names: Iterable[str]) -> list[str]:
        return [v for v in names if graph.nodes[v]["kind"] in ("gpu", "nic")]

    if len(leaves(vertices)) <= _LEAVES:
        return set(vertices), ""
    hosts = {graph.nodes[v].get("host", 0) for v in vertices}
    first = min(hosts)
    kept = [v for v in vertices if graph.nodes[v].get("host", 0) == first]
    said = f"one of {len(hosts)} hosts" if len(hosts) > 1 else ""
    if len(leaves(kept)) <= _LEAVES:
        return set(kept), said
    chosen: set[str] = set()
    inside = set(kept)
    for v in kept:  # whole branches, until there are enough
        if v in chosen or graph.nodes[v]["kind"] != "gpu" or len(leaves(chosen)) >= _LEAVES // 2:
            continue
        chosen.add(v)
        layer = [v]
        while layer:
            near = {w for u in layer for w in graph.successors(u) if w in inside
                    and w not in chosen and graph.edges[u, w]["link"].medium not in SCALE_UP
                    and graph.nodes[w]["kind"] != "cpu"}  # fmt: skip
            chosen |= near
            layer = [w for w in near if graph.nodes[w]["kind"] == "pci"]
    more = len(leaves(kept)) - len(leaves(chosen))
    return chosen, f"{said + ', ' if said else ''}{more} more devices"


_SIZES = {"gpu": (0.58, 0.3, 8.0), "nic": (0.58, 0.3, 8.0), "pci": (0.64, 0.22, 6.5),
          "cpu": (0.9, 0.32, 8.0), "switch": (0.64, 0.26, 7.0)}  # fmt: skip


def _host_box(graph: Any, v: str, at: Point) -> Box:
    data = graph.nodes[v]
    w, h, size = _SIZES[data["kind"]]
    text = title_of(graph, v)
    if data["kind"] == "pci":
        text = str(data.get("busid", v))[-7:] if data.get("busid") else short(v, 8)
    elif data["kind"] == "cpu":
        text = v.upper() if len(v) < 8 else short(v.upper(), 9)
    return Box(*at, w, h, text, data["kind"], size)


def _tree(graph: Any, kept: set[str], links: list[Link]) -> Panel:
    """Return CPUs on top and everything below at the depth it has; a slot a leaf."""
    panel, order = Panel(""), [v for v in graph if v in kept]
    near: dict[str, list[str]] = {v: [] for v in order}
    for a, b, _ in links:
        near[a].append(b)
        near[b].append(a)
    depth = {v: 0 for v in order if graph.nodes[v]["kind"] == "cpu"}
    children: dict[str, list[str]] = {v: [] for v in order}
    layer = list(depth)
    while layer:
        following = []
        for v in layer:
            for w in near[v]:
                if w not in depth:
                    depth[w] = depth[v] + 1
                    children[v].append(w)
                    if graph.nodes[w]["kind"] in ("pci", "cpu"):
                        following.append(w)
        layer = following
    cursor = 0.0
    x: dict[str, float] = {}

    def settle(v: str) -> float:
        nonlocal cursor
        if not children[v]:
            x[v] = cursor
            cursor += 0.7
        else:
            own = [settle(w) for w in children[v]]
            x[v] = (min(own) + max(own)) / 2
        return x[v]

    for cpu in [v for v in depth if depth[v] == 0]:
        settle(cpu)
        cursor += 0.35
    place = {v: (x[v], -0.62 * depth[v]) for v in x}
    _paint(panel, graph, place, links)
    return panel


def _passes(a: Point, b: Point, place: dict[str, Point]) -> bool:
    """Return whether something stands on the straight way between two devices of one row."""
    low, high = sorted((a[0], b[0]))
    return any(y == a[1] and low < x < high for x, y in place.values())


def _paint(panel: Panel, graph: Any, place: dict[str, Point], links: list[Link]) -> None:
    width = widths_of(links, 3.0)
    for a, b, edge in links:
        if a in place and b in place:
            ends = [place[a], place[b]]
            if ends[0][1] == ends[1][1] and _passes(ends[0], ends[1], place):
                # Over the heads of what stands between: two CPUs of one row.
                middle = (ends[0][0] + ends[1][0]) / 2
                ends.insert(1, (middle, ends[0][1] + 0.35 + 0.02 * abs(ends[0][0] - ends[1][0])))
            for start, end in pairwise(ends):
                panel.lines.append(Line(start, end, edge["bandwidth"], both(a, b), "dashed",
                                        width(edge)))  # fmt: skip
    panel.boxes += [_host_box(graph, v, at) for v, at in place.items()]


def _ranked(graph: Any, part: list[str], near: dict[str, list[str]]) -> list[list[str]]:
    """Return GPUs, then PCI switches by their distance from a GPU, then NICs."""
    gpus = [v for v in part if graph.nodes[v]["kind"] == "gpu"]
    nics = [v for v in part if graph.nodes[v]["kind"] == "nic"]
    rows, seen, layer = [gpus], set(gpus), gpus or part[:1]
    while layer:
        layer = list(
            dict.fromkeys(
                w
                for u in layer
                for w in near[u]
                if w not in seen and graph.nodes[w]["kind"] == "pci"
            )
        )
        seen |= set(layer)
        rows.append(layer)
    rest = [v for v in part if v not in seen and v not in nics]
    return [row for row in [*rows, rest, nics] if row]


def _columns(graph: Any, kept: set[str], links: list[Link]) -> Panel:
    """Return GPUs over their PCI switches over their NICs; rows of columns where there are many."""
    panel = Panel("")
    near: dict[str, list[str]] = {}
    for a, b, _ in links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    place: dict[str, Point] = {}
    left, y, tall = 0.0, 0.0, 0
    for start in [v for v in graph if v in kept and v in near]:
        if start in place:
            continue
        part, layer = [start], [start]
        seen = {start}
        while layer:
            layer = [w for u in layer for w in near[u] if not (w in seen or seen.add(w))]  # type: ignore[func-returns-value]
            part += layer
        rows = _ranked(graph, part, near)
        wide = 0.75 * max(map(len, rows))
        if left > 0 and left + wide > _COLUMNS:
            left, y = 0.0, y - 0.7 * tall - 0.1
            tall = 0
        tall = max(tall, len(rows))
        for k, row in enumerate(rows):
            for i, v in enumerate(row):
                place[v] = left + wide * (i + 0.5) / len(row), y - 0.7 * k
        left += wide + 0.1
    _paint(panel, graph, place, links)
    return panel
