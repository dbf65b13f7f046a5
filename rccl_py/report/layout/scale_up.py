"""Where the scale-up links of one node stand: a ring, rows below switches, a grid, a band.

Owns which of them suits a node. Boxes do not overlap: every place is counted out from box sizes.

    ring   direct links of up to 24 GPUs; wide links are kept short
    rows   GPUs below, switches above, each link by itself
    band   many GPUs and switch planes (see band)
    packages  GPUs that hang on one switch each, such as partitions of a package
    grid   GPUs that form a torus or mesh in index order (see grid)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...topology.build import SCALE_UP, gpus_of
from .band import band
from .grid import dense, grid, grid_dims
from .parts import (
    Box,
    Line,
    Link,
    Panel,
    Point,
    Text,
    about,
    both,
    links_of,
    short,
    title_of,
    widths_of,
)

__all__ = ["scale_up_panel"]

_RING = 24  # accelerators drawn as a ring at most
_EACH = 72  # links between accelerators and switches drawn one by one at most
_PACKAGE = 16  # accelerators of a package drawn inside it
_ROW = 40  # accelerators drawn in one row
_LEVEL = 24  # switches drawn in one row


def scale_up_panel(graph: Any) -> Panel | None:
    """Return the picture of a node's scale-up links; None where it has none."""
    links = [(a, b, e) for a, b, e in links_of(graph, lambda link: link.medium in SCALE_UP)
             if {graph.nodes[a]["kind"], graph.nodes[b]["kind"]} <= {"gpu", "switch"}]  # fmt: skip
    if not links:
        return None
    gpus = gpus_of(graph)
    kinds = {frozenset((graph.nodes[a]["kind"], graph.nodes[b]["kind"])) for a, b, _ in links}
    switches = [v for v in dict.fromkeys(v for link in links for v in link[:2])
                if graph.nodes[v]["kind"] == "switch"]  # fmt: skip
    if switches:
        flat = kinds == {frozenset(("gpu", "switch"))}
        if flat and len(links) > _EACH:
            return band(graph, gpus, switches, links)
        packages = _packages(graph, gpus, switches)
        if packages and any(a in packages and b in packages for a, b, _ in links):
            return _packaged(graph, packages, links)
        return _rows(graph, gpus, switches, links)
    dims = grid_dims(graph, gpus, links) if len(gpus) > 8 else ()
    if dims:
        return grid(gpus, dims, links)
    if len(gpus) <= _RING:
        return _ring(graph, gpus, links)
    return dense(graph, gpus, links)


def _around(order: Sequence[str], links: Sequence[Link]) -> float:
    """Return lanes times length of the chords, for links between places on a unit circle."""
    at = {v: k for k, v in enumerate(order)}
    n = len(order)
    return sum(
        float(e["lanes"]) * abs(math.sin(math.pi * (at[a] - at[b]) / n)) for a, b, e in links
    )


def _ordered(gpus: list[str], links: Sequence[Link]) -> list[str]:
    """Return an order around the ring that keeps wide links short; by index where all do."""
    best, cost = list(gpus), _around(gpus, links)
    for _ in range(len(gpus)):
        better = False
        for i in range(1, len(gpus) - 1):
            for j in range(i + 1, len(gpus)):
                turned = best[:i] + best[i : j + 1][::-1] + best[j + 1 :]
                found = _around(turned, links)
                if found < cost - 1e-6:
                    best, cost, better = turned, found, True
        if not better:
            break
    return best


def _ring(graph: Any, gpus: list[str], links: list[Link]) -> Panel:
    panel, n = Panel(f"scale-up: {about(links)}"), len(gpus)
    radius = max(1.9, 1.05 * n / (2 * math.pi) + 0.5)
    order = _ordered(gpus, links) if len(links) < n * (n - 1) // 2 or len(
        {e["lanes"] for _, _, e in links}) > 1 else gpus  # fmt: skip
    place = {
        v: (
            radius * math.sin(2 * math.pi * (k + 0.5) / n),
            radius * math.cos(2 * math.pi * (k + 0.5) / n),
        )
        for k, v in enumerate(order)
    }
    width, lanes = widths_of(links), {e["lanes"] for _, _, e in links}  # fmt: skip
    said = len(lanes) > 1 and len(links) <= 28
    for a, b, edge in sorted(links, key=lambda link: link[2]["bandwidth"]):
        text = f"x{edge['lanes']:g}" if said else ""
        at = min(0.45, 0.75 / max(math.dist(place[a], place[b]), 0.1))  # near one end
        panel.lines.append(Line(place[a], place[b], edge["bandwidth"], both(a, b), "solid",
                                width(edge), text, at))  # fmt: skip
    panel.boxes += [Box(*place[v], 0.62, 0.32, title_of(graph, v), "gpu") for v in gpus]
    return panel.fitted()


def _packages(graph: Any, gpus: list[str], switches: list[str]) -> dict[str, list[str]]:
    """Return the GPUs of each switch, where every GPU hangs on one switch of few; else nothing."""
    found: dict[str, list[str]] = {v: [] for v in switches}
    for gpu in gpus:
        on = [v for v in graph.successors(gpu) if v in found]
        if len(on) != 1:
            return {}
        found[on[0]].append(gpu)
    few = len(switches) <= _RING and all(0 < len(m) <= _PACKAGE for m in found.values())
    return found if few else {}


def _packaged(graph: Any, packages: dict[str, list[str]], links: list[Link]) -> Panel:
    """Return a ring of packages that hold GPUs (partitions), and the links between packages."""
    between = [link for link in links if link[0] in packages and link[1] in packages]
    inside = [link for link in links if link not in between]
    panel, n = Panel(f"scale-up: {about(between)} between packages"), len(packages)
    across = 4
    deep = -(-max(map(len, packages.values())) // across)
    w, h = across * 0.36 + 0.2, deep * 0.3 + 0.36
    radius = max(2.3, n * (w + 0.35) / (2 * math.pi))
    turn = 2 * math.pi / n
    place = {v: (radius * math.sin(turn * (k + 0.5)), radius * math.cos(turn * (k + 0.5)))
             for k, v in enumerate(packages)}  # fmt: skip
    width = widths_of(links)
    for a, b, edge in between:
        panel.lines.append(Line(place[a], place[b], edge["bandwidth"], both(a, b), "solid",
                                width(edge)))  # fmt: skip
    for v, members in packages.items():
        x, y = place[v]
        panel.boxes.append(Box(x, y, w, h + 0.06, " ", "group"))  # hides the ends of links
        panel.boxes.append(Box(x, y + h / 2 - 0.13, w - 0.08, 0.24, short(v), "switch", 7))
        for i, gpu in enumerate(members):
            at = x + (i % across - (across - 1) / 2) * 0.36, y + h / 2 - 0.4 - (i // across) * 0.3
            panel.boxes.append(Box(*at, 0.31, 0.25, str(graph.nodes[gpu]["index"]), "gpu", 7))
    said = f"boxes below a package: its GPUs, {about(inside)} into it"
    panel.texts.append(Text(0.0, -radius - h / 2 - 0.25, said, 8))
    return panel.fitted()


def _layers(graph: Any, switches: list[str], gpus: list[str]) -> list[list[str]]:
    """Return the switches by how many hops they are from an accelerator."""
    level, layer, seen = [], list(gpus), set(gpus)
    while layer:
        following = []
        for v in layer:
            for w in graph.successors(v):
                if w not in seen and graph.nodes[w]["kind"] == "switch":
                    seen.add(w)
                    following.append(w)
        if following:
            level.append(following)
        layer = following
    return level


def _spread(names: Sequence[str], width: float, y: float) -> dict[str, Point]:
    return {v: (width * (k + 0.5) / len(names), y) for k, v in enumerate(names)}


def _rows(graph: Any, gpus: list[str], switches: list[str], links: list[Link]) -> Panel:
    """Return accelerators below, switches above in as many rows as they have levels."""
    if len(gpus) > _ROW:
        return dense(graph, gpus, links)
    panel = Panel(f"scale-up: {about(links)}")
    levels = _layers(graph, switches, gpus)
    if max(map(len, levels), default=0) > _LEVEL:
        return dense(graph, gpus, links)
    widest = max([0.75 * len(gpus), *(1.05 * len(level) for level in levels)])
    place = _spread(gpus, widest, 0.0)
    gap = max(1.7, 0.16 * widest)
    for k, level in enumerate(levels):
        place |= _spread(level, widest, gap * (k + 1))
    width, alpha = widths_of(links, 3.0), {e["lanes"] for _, _, e in links}
    said = len(alpha) > 1 and len(links) <= 28
    for a, b, edge in ((a, b, e) for a, b, e in links if a in place and b in place):
        text = f"x{round(edge['lanes'], 3):g}" if said else ""
        panel.lines.append(Line(place[a], place[b], edge["bandwidth"], both(a, b), "solid",
                                width(edge), text, 0.3))  # fmt: skip
    panel.boxes += [Box(*place[v], 0.62, 0.32, title_of(graph, v), "gpu") for v in gpus]
    small = 7.0 if max(map(len, switches)) > 10 else 8.0
    panel.boxes += [Box(*place[v], 0.95, 0.34, short(v), "switch", small)
                    for v in switches if v in place]  # fmt: skip
    return panel.fitted()
