"""Boxes, lines and texts of a picture, in inches, and what every layout says of links.

Owns the vocabulary of a picture. Knows no colours and no place of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Box",
    "Key",
    "Line",
    "Link",
    "Panel",
    "Point",
    "Text",
    "about",
    "both",
    "gigabytes",
    "letters",
    "links_of",
    "short",
    "title_of",
    "widths_of",
]

Point = tuple[float, float]
Key = tuple[str, str]
Link = tuple[str, str, Any]
"""Two vertices and the attributes of the edge between them."""

LETTER = 0.62  # width over height of a letter of DejaVu Sans, mean of digits and capitals
MARGIN = 0.25


@dataclass(frozen=True, slots=True)
class Box:
    """A device. x, y: its centre; kind: gpu, nic, switch, pci, cpu, node, leaf, spine, group."""

    x: float
    y: float
    w: float
    h: float
    text: str
    kind: str
    size: float = 8.0


@dataclass(frozen=True, slots=True)
class Line:
    """A link, or several drawn as one. value: B/s of one; keys: the directed links it stands for.

    style: solid (scale-up), dashed (PCIe, CPU), dotted (network). text: at its middle.
    """

    a: Point
    b: Point
    value: float
    keys: tuple[Key, ...]
    style: str = "solid"
    width: float = 1.2
    text: str = ""
    at: float = 0.5


@dataclass(frozen=True, slots=True)
class Text:
    """Words in the picture; x, y is their centre."""

    x: float
    y: float
    text: str
    size: float = 8.0


@dataclass(slots=True)
class Panel:
    """One part of the picture; y grows upwards."""

    title: str
    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)

    def fitted(self) -> Panel:
        """Return the panel moved so that everything lies inside its width and height."""
        spans = [(b.x - b.w / 2, b.x + b.w / 2, b.y - b.h / 2, b.y + b.h / 2) for b in self.boxes]
        spans += [(x, x, y, y) for line in self.lines for x, y in (line.a, line.b)]
        for t in self.texts:
            w, h = letters(t.text, t.size)
            spans.append((t.x - w / 2, t.x + w / 2, t.y - h / 2, t.y + h / 2))
        low_x, low_y = (min(s[k] for s in spans) - MARGIN for k in (0, 2))
        high_x, high_y = (max(s[k] for s in spans) + MARGIN for k in (1, 3))

        def move(p: Point) -> Point:
            return p[0] - low_x, p[1] - low_y

        boxes = [Box(*move((b.x, b.y)), b.w, b.h, b.text, b.kind, b.size) for b in self.boxes]
        lines = [Line(move(line.a), move(line.b), line.value, line.keys, line.style, line.width,
                      line.text, line.at) for line in self.lines]  # fmt: skip
        texts = [Text(*move((t.x, t.y)), t.text, t.size) for t in self.texts]
        width = max(high_x - low_x, letters(self.title, 10)[0] + 2 * MARGIN)
        return Panel(self.title, width, high_y - low_y, boxes, lines, texts)


def letters(text: str, size: float) -> Point:
    """Return the inches a text of `size` points takes: its longest line, and its lines."""
    rows = text.split("\n")
    return max(map(len, rows)) * size * LETTER / 72, len(rows) * size * 1.3 / 72


def gigabytes(rate: float) -> str:
    """Return a rate in GB/s, or in TB/s from ten of them on."""
    return f"{rate / 1e9:.4g} GB/s" if rate < 1e13 else f"{rate / 1e12:.4g} TB/s"


def title_of(graph: Any, vertex: str) -> str:
    """Return a vertex by the name people read: ``GPU3``."""
    data = graph.nodes[vertex]
    kind = {"gpu": "GPU", "nic": "NIC"}.get(data["kind"])
    return f"{kind}{data['index']}" if kind else vertex


def both(a: str, b: str) -> tuple[Key, ...]:
    """Return the keys of both directions of a link."""
    return (a, b), (b, a)


def links_of(graph: Any, usable: Callable[[Any], bool]) -> list[Link]:
    """Return each link once, as (a, b, the narrower direction)."""
    found: dict[frozenset[str], tuple[str, str, Any]] = {}
    for a, b, edge in graph.edges(data=True):
        if usable(edge["link"]):
            pair = frozenset((a, b))
            if pair not in found or edge["bandwidth"] < found[pair][2]["bandwidth"]:
                found[pair] = a, b, edge
    return list(found.values())


def widths_of(links: Sequence[Link], most: float = 4.0) -> Callable[[Any], float]:
    """Return how many points wide a link is drawn: 1 to `most`, by its raw bandwidth."""
    """Return how many points wide a link is drawn: 1 to `most`, by its raw bandwidth."""
    top = max((edge["raw"] for _, _, edge in links), default=1.0) or 1.0
    return lambda edge: 1.0 + (most - 1.0) * float(edge["raw"]) / top


def about(links: Sequence[Link]) -> str:
    """Return what the links are: ``28 xgmi-mi300 links, 46.55 GB/s each``."""
    names = sorted({edge["link"].name for _, _, edge in links})
    rates = sorted({round(edge["bandwidth"] / 1e9, 2) for _, _, edge in links})
    each = f"{rates[0]:g} GB/s each" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g} GB/s"
    return f"{len(links)} {'/'.join(names)} links, {each}"


def short(name: str, most: int = 12) -> str:
    """Return a name of at most `most` letters, its middle left out."""
    """Return a name of at most `most` letters, its middle left out."""
    return name if len(name) <= most else f"{name[: most - 4]}..{name[-2:]}"
