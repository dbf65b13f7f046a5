"""Many accelerators and their switch planes: hosts above and below a band that holds the planes.

Owns what is drawn one by one and what is a counted box.

    [host 0] [host 1] ...
       |        |
    == plane0 == plane1 == ... ==
       |        |
    [host 9] [host 10] ...
"""

from __future__ import annotations

from typing import Any

from .parts import Box, Key, Line, Link, Panel, Point, Text, both, gigabytes, short, widths_of

__all__ = ["band"]

_SHOWN = 72  # accelerators of a switched domain drawn one by one; further ones as boxes
_BOXES = 32  # such boxes
_ODD = 24  # unusual links drawn by themselves


def _groups(graph: Any, gpus: list[str]) -> list[tuple[str, list[str]]]:
    """Return the accelerators by host; those of one large host by eights or sixteens."""
    hosts: dict[int, list[str]] = {}
    for v in gpus:
        hosts.setdefault(graph.nodes[v]["host"], []).append(v)
    if len(hosts) > 1:
        return [(f"host {h}", members) for h, members in hosts.items()]
    size = 8 if len(gpus) <= 32 else 16
    parts = [gpus[k : k + size] for k in range(0, len(gpus), size)]
    return [("", part) for part in parts]


def band(graph: Any, gpus: list[str], switches: list[str], links: list[Link]) -> Panel:
    """Return hosts above and below a band of switch planes; a line is a GPU's way to all planes."""
    rates: dict[tuple[float, float], int] = {}
    for _, _, edge in links:
        key = edge["lanes"], edge["bandwidth"]
        rates[key] = rates.get(key, 0) + 1
    lanes, usual = max(rates, key=lambda key: rates[key])
    odd = [link for link in links if (link[2]["lanes"], link[2]["bandwidth"]) != (lanes, usual)]
    medium = links[0][2]["link"].name
    panel = Panel(f"scale-up: {len(gpus)} GPUs, {len(switches)} switch planes, {medium}")
    groups = _groups(graph, gpus)
    shown: list[tuple[str, list[str]]] = []
    total = 0
    for group in groups:
        if total + len(group[1]) > _SHOWN and shown:
            break
        shown.append(group)
        total += len(group[1])
    whole: dict[str, float] = {}
    ways: dict[str, list[Key]] = {}
    for a, b, edge in links:
        gpu = a if graph.nodes[a]["kind"] == "gpu" else b
        whole[gpu] = whole.get(gpu, 0.0) + edge["bandwidth"]
        ways.setdefault(gpu, []).extend(both(a, b))
    across = 2 if max(len(members) for _, members in shown) <= 8 else 4
    cell_w, cell_h = 0.36, 0.3
    deep = max(-(-len(members) // across) for _, members in shown)
    block_w, block_h = across * cell_w + 0.2, deep * cell_h + 0.36
    top = [g for k, g in enumerate(shown) if k < -(-len(shown) // 2)]
    bottom = shown[len(top) :]
    width = max(len(top) * (block_w + 0.15), 0.2 + 0.72 * min(len(switches), 12), 7.0)
    plane_rows = -(-len(switches) // int(width / 0.72))
    plane_rows, extra = min(plane_rows, 3), plane_rows > 3
    band_h = 0.34 * plane_rows + 0.34
    place: dict[str, Point] = {}
    for row, sign in ((top, 1), (bottom, -1)):
        for k, (name, members) in enumerate(row):
            x = width * (k + 0.5) / len(row)
            y = sign * (band_h / 2 + 0.75 + block_h / 2)
            panel.boxes.append(Box(x, y, block_w, block_h, "", "group"))
            if name:
                panel.texts.append(Text(x, y + sign * (block_h / 2 - 0.1), name, 7))
            for i, gpu in enumerate(members):
                gx = x + (i % across - (min(across, len(members)) - 1) / 2) * cell_w
                gy = (
                    y + (block_h / 2 - 0.33) - (i // across) * cell_h - (0.0 if sign > 0 else -0.08)
                )
                place[gpu] = gx, gy
                title = str(graph.nodes[gpu]["index"])
                panel.boxes.append(Box(gx, gy, cell_w - 0.05, cell_h - 0.05, title, "gpu", 7))
                lx = x + (i - (len(members) - 1) / 2) * min(0.2, block_w / len(members))
                ends = (lx, y - sign * block_h / 2), (lx, sign * band_h / 2)
                keys = tuple(ways.get(gpu, []))
                panel.lines.append(Line(*ends, whole.get(gpu, 0.0), keys, "solid", 2.2))
    per_row = -(-len(switches) // plane_rows) if not extra else int(width / 0.72)
    for k, v in enumerate(switches[: per_row * plane_rows]):
        r, c = divmod(k, per_row)
        place[v] = (width * (c + 0.5) / min(per_row, len(switches)), band_h / 2 - 0.4 - 0.34 * r)
        panel.boxes.append(Box(*place[v], 0.66, 0.26, short(v, 9), "switch", 7))
    said = (
        f"every GPU to each of {len(switches)} planes: {_lanes(lanes)}, "
        f"{gigabytes(usual)}; all together {gigabytes(max(whole.values()))}"
    )
    panel.boxes.insert(0, Box(width / 2, 0.0, width + 0.2, band_h + 0.04, "", "band"))
    panel.texts.append(Text(width / 2, band_h / 2 - 0.12, said, 8))
    width_of = widths_of(links, 3.0)
    for a, b, edge in odd[:24]:
        if a in place and b in place:
            panel.lines.append(
                Line(
                    place[a],
                    place[b],
                    edge["bandwidth"],
                    both(a, b),
                    "solid",
                    width_of(edge),
                    f"x{round(edge['lanes'], 3):g}",
                    0.5,
                )
            )
    low = -(band_h / 2 + 0.75 + block_h) - 0.25 if bottom else -band_h / 2 - 0.3
    _remaining(panel, groups[len(shown) :], width, low)
    return panel.fitted()


def _lanes(count: float) -> str:
    return "1 lane" if count == 1 else f"{round(count, 3):g} lanes"


def _remaining(panel: Panel, groups: list[tuple[str, list[str]]], width: float, y: float) -> None:
    """Add boxes for the groups that are not drawn one by one."""
    if not groups:
        return
    merged = groups
    if len(groups) > _BOXES:
        each = -(-len(groups) // _BOXES)
        merged = [
            (f"{groups[k][0]}..", [v for _, m in groups[k : k + each] for v in m])
            for k in range(0, len(groups), each)
        ]
    per_row = max(1, int(width / 1.1))
    for k, (_, members) in enumerate(merged):
        r, c = divmod(k, per_row)
        text = f"{members[0]}-{members[-1].removeprefix('gpu')}"
        panel.boxes.append(Box(0.55 + c * 1.1, y - 0.2 - r * 0.36, 1.02, 0.28, text, "group", 7))
    rows = -(-len(merged) // per_row)
    panel.texts.append(
        Text(
            width / 2,
            y - 0.2 - rows * 0.36,
            "boxes: more GPUs, joined to the planes in the same way",
            8,
        )
    )
