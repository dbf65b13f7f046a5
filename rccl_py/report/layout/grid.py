"""Accelerators that form a torus or mesh in index order, and domains of no known shape.

Owns how the sizes of a torus are found. A third size becomes slices side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .parts import Box, Line, Link, Panel, Point, Text, about, both

__all__ = ["dense", "grid", "grid_dims"]

_GRID = 256  # accelerators of a torus drawn one by one
_WIDE = 16.5  # inches of slices side by side


def grid_dims(graph: Any, gpus: list[str], links: list[Link]) -> tuple[int, ...]:
    """Return the sizes of the torus or mesh the accelerators form in index order, or nothing."""
    n, at = len(gpus), {v: i for i, v in enumerate(gpus)}
    pairs = {tuple(sorted((at[a], at[b]))) for a, b, _ in links}
    for dims in _factorings(n):
        if n - 1 > len(pairs) or len(pairs) > n * len(dims):
            continue
        if all(_near(i, j, dims) for i, j in pairs):
            return dims
    return ()


def _factorings(n: int) -> Iterable[tuple[int, ...]]:
    """Yield ways to write n as two or three sizes of at least 2, squarest first."""
    found: list[tuple[int, ...]] = []
    for a in (a for a in range(2, n // 2 + 1) if n % a == 0):
        found.append((a, n // a))
        rest = n // a
        found += [(a, b, rest // b) for b in range(2, rest // 2 + 1) if rest % b == 0]
    return sorted(found, key=lambda d: (max(d) - min(d), d))


def _near(i: int, j: int, dims: tuple[int, ...]) -> bool:
    """Return whether places i and j (last size runs fastest) are neighbours in one direction."""
    steps = []
    for size in reversed(dims):
        (i, x), (j, y) = divmod(i, size), divmod(j, size)
        if x != y:
            steps.append(min(abs(x - y), size - abs(x - y)))
    return steps == [1]


def grid(gpus: list[str], dims: tuple[int, ...], links: list[Link]) -> Panel:
    """Return a torus as rows and columns; a third size as slices side by side."""
    panel = Panel(f"scale-up: {' x '.join(map(str, dims))}, {about(links)}")
    slices, rows, columns = (1, *dims) if len(dims) == 2 else dims
    rows_shown, columns_shown = min(rows, 16), min(columns, 16)
    fit = int(_WIDE / (columns_shown * 0.62 + 0.5))
    shown = max(1, min(slices, _GRID // (rows * columns), fit))
    dx, dy, skew = 0.62, 0.55, columns_shown * 0.62 + 0.5
    place: dict[str, Point] = {}
    part: dict[str, int] = {}
    for i, v in enumerate(gpus):
        rest, c = divmod(i, columns)
        s, r = divmod(rest, rows)
        if s < shown and r < rows_shown and c < columns_shown:
            place[v], part[v] = (c * dx + s * skew, -r * dy), s
            panel.boxes.append(Box(*place[v], 0.4, 0.26, str(i), "gpu", 7))
    closing = 0
    for a, b, edge in links:
        if a not in place or b not in place:
            continue
        (xa, ya), (xb, yb) = place[a], place[b]
        if abs(xa - xb) < dx * 1.01 and abs(ya - yb) < dy * 1.01 and (xa == xb or ya == yb):
            panel.lines.append(Line(place[a], place[b], edge["bandwidth"], both(a, b), "solid",
                                    2.0))  # fmt: skip
        elif part[a] == part[b]:
            closing += 1
            for (x, y), (u, w) in ((place[a], place[b]), (place[b], place[a])):
                tip = (x - math.copysign(0.29, u - x) if y == w else x,
                       y - math.copysign(0.24, w - y) if x == u else y)  # fmt: skip
                panel.lines.append(Line((x, y), tip, edge["bandwidth"], both(a, b), "solid", 2.0))
    said = ["stubs: links around to the other end"] if closing else []
    said += ["slices (left to right) are joined GPU by GPU"] if slices > 1 else []
    left = len(gpus) - len(place)
    said += [f"{left} more GPUs are not drawn"] if left else []
    bottom = -(rows_shown - 1) * dy - 0.5
    middle = ((columns_shown - 1) * dx + (shown - 1) * skew) / 2
    panel.texts.append(Text(middle, bottom, "; ".join(said) or "no links around", 8))
    return panel.fitted()


def dense(graph: Any, gpus: list[str], links: list[Link]) -> Panel:
    """Return a large domain of no known shape as counted boxes."""
    panel = Panel(f"scale-up: {about(links)}")
    for k in range(min(len(gpus), 64)):
        r, c = divmod(k, 16)
        panel.boxes.append(Box(c * 0.45, -r * 0.36, 0.4, 0.28,
                               str(graph.nodes[gpus[k]]["index"]), "gpu", 7))  # fmt: skip
    lanes = sum(e["lanes"] for _, _, e in links) * 2 / len(gpus)
    text = f"{len(gpus)} GPUs, about {lanes:.3g} lanes each; links are too many to draw"
    rows = -(-min(len(gpus), 64) // 16)
    panel.texts.append(Text(16 * 0.45 / 2, -rows * 0.36 - 0.1, text, 8))
    return panel.fitted()
