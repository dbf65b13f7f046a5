"""What a notebook shows for a Topology or a Plan: a small self-contained piece of HTML.

Owns the words, the tables and an inline SVG; layout says where things stand. No scripts,
no style sheets, no files; every text from a machine's file is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ..topology.build import Topology, nics_of
from ..topology.figures import (
    Spread,
    bisection,
    host_bandwidth,
    host_bisection,
    package_bandwidth,
    scale_out_bandwidth,
    scale_out_bisection,
    scale_up_bandwidth,
)
from ..topology.kinds import kinds_of, used_nics
from ..topology.paths import LEGEND, gpu_matrix, nic_matrix
from ..units import format_bandwidth, format_size, format_time
from .layout import Line, Panel, headline, panels_of
from .words import kind_words

if TYPE_CHECKING:
    from ..planner import Plan

__all__ = ["panel_svg", "plan_html", "topology_html"]

_SCALE = 84  # pixels an inch of the layout: letters of 8 points are 9 pixels high
_WIDE = 16  # accelerators and NICs of a matrix that is shown whole
_MATRIX = 1 << 16  # pairs whose path class is still looked up
_CANDIDATES = 10  # rows of a plan's table
_KINDS = 4  # kinds of node that are named
_SHAPES = 1200  # boxes and lines of a panel that is still put in
# Points of viridis (matplotlib), light green for the narrowest to dark violet for the widest.
_COLOURS = ("#7ad151", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989", "#482878", "#440154")
_BOXES = {"gpu": ("#dbe9f9", "#1f4e8c"), "nic": ("#dff2e1", "#2c6e36"),
          "switch": ("#fdeacc", "#8a5200"), "pci": ("#eeeeee", "#555555"),
          "cpu": ("#eadff5", "#5b3a86"), "node": ("#e0f1f3", "#1d5f69"),
          "leaf": ("#fff4cf", "#7a6200"), "spine": ("#f9dcd4", "#8f2f17"),
          "group": ("#f7f7f7", "#777777"), "band": ("#fff8ec", "#d9b77a")}  # fmt: skip
_DASHES = {"solid": "", "dashed": ' stroke-dasharray="6 3"', "dotted": ' stroke-dasharray="2 2"'}
_CELL = "padding:1px 6px;text-align:left;border:none;white-space:nowrap"
_PAGE = ('<div style="font:13px sans-serif;color:#222;background:#fff;padding:8px;'
         'max-width:1000px;overflow-x:auto">')  # fmt: skip


def _row(cells: Iterable[str], head: bool = False) -> str:
    tag = "th" if head else "td"
    return f"<tr>{''.join(f'<{tag} style={_CELL!r}>{cell}</{tag}>' for cell in cells)}</tr>"


def _table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return a table; its cells are HTML already."""
    first = _row(map(escape, head), True) if head else ""
    body = "".join(_row(row) for row in rows)
    return f'<table style="border-collapse:collapse;margin:4px 0">{first}{body}</table>'


def _colour(value: float, low: float, high: float) -> str:
    """Return a colour for a bandwidth, on a logarithmic scale."""
    if not value > 0:
        return "#cccccc"
    part = 1.0 if high <= low else math.log(value / low) / math.log(high / low)
    return _COLOURS[round(min(max(part, 0.0), 1.0) * (len(_COLOURS) - 1))]


def _line(line: Line, height: float, low: float, high: float) -> str:
    (x, y), (u, v) = ((p[0] * _SCALE, (height - p[1]) * _SCALE) for p in (line.a, line.b))
    drawn = (f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{u:.0f}" y2="{v:.0f}" '
             f'stroke="{_colour(line.value, low, high)}" stroke-width="{line.width:.1f}"'
             f"{_DASHES[line.style]}/>")  # fmt: skip
    if not line.text:
        return drawn
    at = x + (u - x) * line.at, y + (v - y) * line.at
    return drawn + _words(*at, line.text, 7, "#222", ' stroke="#fff" stroke-width="3" '
                          'paint-order="stroke"')  # fmt: skip


def _words(x: float, y: float, text: str, size: float, colour: str, more: str = "") -> str:
    rows = text.split("\n")
    pixels = size * _SCALE / 72
    return "".join(
        f'<text x="{x:.0f}" y="{y + (k - (len(rows) - 1) / 2 + 0.35) * pixels * 1.15:.1f}" '
        f'font-size="{pixels:.1f}" fill="{colour}" text-anchor="middle"{more}>{escape(row)}</text>'
        for k, row in enumerate(rows)
    )


def panel_svg(panel: Panel) -> str:
    """Return one panel as an SVG element; colour is bandwidth, dark the widest of the panel."""
    height = panel.height
    rates = [line.value for line in panel.lines if line.value > 0] or [1.0]
    low, high = min(rates), max(rates)
    behind: list[str] = []
    before: list[str] = []
    for box in panel.boxes:
        fill, edge = _BOXES[box.kind]
        x, y = (box.x - box.w / 2) * _SCALE, (height - box.y - box.h / 2) * _SCALE
        shape = (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.w * _SCALE:.1f}" '
            f'height="{box.h * _SCALE:.1f}" rx="3" fill="{fill}" stroke="{edge}"/>'
        )
        at = box.x * _SCALE, (height - box.y) * _SCALE  # fmt: skip
        shape += _words(*at, box.text, box.size, edge) if box.text else ""
        (behind if not box.text else before).append(shape)
    lines = [_line(line, height, low, high) for line in panel.lines]
    words = [_words(t.x * _SCALE, (height - t.y) * _SCALE, t.text, t.size, "#444")
             for t in panel.texts]  # fmt: skip
    size = panel.width * _SCALE, height * _SCALE
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]:.0f}" '
            f'height="{size[1]:.0f}" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" '
            f'style="max-width:100%;height:auto" font-family="sans-serif">'
            f"{''.join(behind + lines + before + words)}</svg>")  # fmt: skip


def _pictures(topology: Topology) -> str:
    """Return scale-up and scale-out as SVG, each below its title; the host where it is alone."""
    panels = panels_of(topology)
    wanted = [p for p in panels if not p.title.startswith("host")] or panels
    return "".join(
        f"<div>{escape(panel.title)}</div>{panel_svg(panel)}"
        for panel in wanted
        if len(panel.boxes) + len(panel.lines) <= _SHAPES
    )


def _both(spread: Spread) -> str:
    least, most = (f"{format_bandwidth(r.raw)} raw, {format_bandwidth(r.usable)} usable"
                   for r in (spread.least, spread.most))  # fmt: skip
    return least if least == most else f"{least}, to {most}"


def _nodes(topology: Topology) -> str:
    """Return which nodes the accelerators are in; the figures of a node are the first kind's."""
    kinds = kinds_of(topology)
    if len(kinds) > 1:
        own = "; ".join(kind_words(topology, kind) for kind in kinds[:_KINDS])
        left = f"; {len(kinds) - _KINDS} more kinds" if len(kinds) > _KINDS else ""
        return f" ({escape(own + left)}; below is the first)"
    many = topology.nodes > 1
    return f" ({topology.nodes} nodes of {topology.gpus_per_node})" if many else ""


def _figures(topology: Topology) -> list[list[str]]:
    out, up, across = (scale_out_bandwidth(topology), bisection(topology),
                       scale_out_bisection(topology))  # fmt: skip
    inside, host = package_bandwidth(topology), host_bandwidth(topology)
    nics = len(used_nics(topology.node))
    rows = [["GPUs", f"{topology.ngpus}"
             + _nodes(topology)],
            ["scale-up a GPU, each way", _both(scale_up_bandwidth(topology))],
            ["scale-out a GPU, each way", f"{format_bandwidth(out.raw)} raw, "
             f"{format_bandwidth(out.usable)} usable ({nics} NICs a node)"],
            ["scale-up bisection", f"{'' if up.exact else 'at most '}{format_bandwidth(up.usable)}"
             f" usable ({escape(up.how)})"]]  # fmt: skip
    if inside is not None:
        rows.insert(2, ["inside a package, each way", _both(inside)])
    if not up.raw and host.most.raw and topology.gpus_per_node > 1:
        half = host_bisection(topology)
        least = "" if half.exact else "at most "
        rows[-1:] = [["PCIe a GPU, each way", _both(host)],
                     ["PCIe bisection", f"{least}{format_bandwidth(half.usable)} usable "
                      f"({escape(half.how)})"]]  # fmt: skip
    if topology.nodes > 1:
        rows.append(["scale-out bisection", f"{'' if across.exact else 'at most '}"
                     f"{format_bandwidth(across.usable)} usable "
                     f"({escape(across.how)})"])  # fmt: skip
    return rows


def _matrix(cells: list[list[str]], column: str) -> str:
    if not cells or not cells[0]:
        return ""
    if len(cells) > _WIDE or len(cells[0]) > _WIDE:
        found: dict[str, int] = {}
        for cell in (c for row in cells for c in row if c != "X"):
            found[cell] = found.get(cell, 0) + 1
        shares = ", ".join(f"{n} x {escape(cell)}" for cell, n in found.items())
        return f"<div>GPU-{column} paths: {shares}</div>"
    head = ["", *(f"{column}{j}" for j in range(len(cells[0])))]
    rows = [[f"<b>GPU{i}</b>", *map(escape, row)] for i, row in enumerate(cells)]
    used = {cell.rstrip("0123456789.") for row in cells for cell in row}
    means = "; ".join(f"{n}: {escape(m)}" for n, m in LEGEND.items() if n in used and n != "X")
    return _table(rows, head) + f'<div style="color:#666">{means}</div>'


def _paths(topology: Topology) -> list[str]:
    """Return both path matrices, folded; none of a machine too large to look them all up."""
    graph, count = topology.node, topology.gpus_per_node
    found = []
    if count**2 <= _MATRIX:
        found.append(_folded("GPU-GPU paths", _matrix(gpu_matrix(graph), "GPU")))
    if count * len(nics_of(graph)) <= _MATRIX:
        found.append(_folded("GPU-NIC paths", _matrix(nic_matrix(graph), "NIC")))
    return found


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def topology_html(topology: Topology) -> str:
    """Return what a notebook shows of a machine: figures, a picture, path matrices, notes."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in topology.notes)
    parts = [
        _PAGE,
        f"<b>{escape(headline(topology))}</b>",
        _table([[f'<span style="color:#666">{name}</span>', text]
                for name, text in _figures(topology)]),
        _pictures(topology),
        *_paths(topology),
        _folded(f"notes: {len(topology.notes)}", f"<ul>{notes}</ul>" if notes else ""),
        "</div>",
    ]  # fmt: skip
    return "".join(parts)


def _bar(share: float, colour: str) -> str:
    width = max(1, round(160 * min(share, 1.0)))
    return (f'<span style="display:inline-block;height:9px;width:{width}px;'
            f'background:{colour}"></span>')  # fmt: skip


def plan_html(plan: Plan) -> str:
    """Return what a notebook shows of a plan: time, choice, bound, bottleneck, candidates."""
    from ..planner.plan import ENGINES

    seconds = plan.decided_time
    timed = [c for c in plan.candidates if math.isfinite(c.seconds)]
    shown = timed[:_CANDIDATES]
    slowest = max((c.seconds for c in shown), default=1.0)
    rows = [["lower bound", _bar(plan.bound.seconds / slowest, "#999"),
             format_time(plan.bound.seconds), escape(plan.bound.cut)]]  # fmt: skip
    for k, c in enumerate(shown):
        name = escape(f"{c.algorithm}/{c.protocol}")
        rows.append(
            [
                f"<b>{name}</b>" if k == 0 else name,
                _bar(c.seconds / slowest, "#1f9e89" if k == 0 else "#9bbbe0"),
                format_time(c.seconds),
                escape(c.reason or "chosen: the fastest"),
            ]
        )
    left = len(plan.candidates) - len(shown)  # fmt: skip
    fabric = plan.profile.fabric.name
    title = (f"{plan.collective} of {format_size(plan.size)} bytes on {fabric}, "
             f"{plan.nranks} ranks")  # fmt: skip
    figures = [
        ["time", format_time(seconds) + ("" if plan.engine == "estimate" else
                                         f" by {ENGINES[plan.engine]}")],
        ["busbw", f"{format_bandwidth(plan.busbw * plan.time / seconds)} (algbw "
                  f"{format_bandwidth(plan.size / seconds)})"],
        ["chosen", escape(f"{plan.algorithm}/{plan.protocol}, {plan.nchannels} channel(s), "
                          f"{plan.pieces} piece(s)")],
        ["lower bound", f"{format_time(plan.bound.seconds)} ({seconds / plan.bound.seconds:.2f}x): "
         f"{escape(plan.bound.cut)}"],
        ["bottleneck", escape(plan.bottleneck + (f"; rest: {plan.rest}" if plan.rest else ""))],
        *([["hint", escape(plan.hint)]] if plan.hint else []),
    ]  # fmt: skip
    more = f'<div style="color:#666">and {left} more candidates (plan.explain())</div>'
    return "".join([
        _PAGE, f"<b>{escape(title)}</b>",
        _table([[f'<span style="color:#666">{name}</span>', text] for name, text in figures]),
        _table(rows, ["candidate", "time", "", "why it lost"]), more if left > 0 else "", "</div>",
    ])  # fmt: skip
