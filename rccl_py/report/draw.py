"""A machine as a matplotlib picture: colour is bandwidth, or how busy a plan keeps each link.

Owns colours, line styles, the legend and the colour bar; layout says where things stand.
matplotlib is optional and imported here alone, when a picture is asked for. Nothing of pyplot's
global state is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidArgument, InvalidUsage
from ..links import PROTOCOLS
from ..topology.build import Topology
from ..topology.kinds import kinds_of
from .layout import Line, Panel, headline, panels_of
from .layout.parts import Key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..planner import Plan

__all__ = ["COLOURS", "busy_links", "draw", "required", "save"]

COLOURS: dict[str, tuple[str, str]] = {
    "gpu": ("#dbe9f9", "#1f4e8c"),
    "nic": ("#dff2e1", "#2c6e36"),
    "switch": ("#fdeacc", "#8a5200"),
    "pci": ("#eeeeee", "#555555"),
    "cpu": ("#eadff5", "#5b3a86"),
    "node": ("#e0f1f3", "#1d5f69"),
    "leaf": ("#fff4cf", "#7a6200"),
    "spine": ("#f9dcd4", "#8f2f17"),
    "group": ("#f7f7f7", "#777777"),
    "band": ("#fff8ec", "#d9b77a"),
}
"""Fill and outline of each kind of box."""

NAMES = {"gpu": "GPU", "nic": "NIC", "switch": "switch", "pci": "PCI switch or bridge",
         "cpu": "CPU (NUMA node)", "node": "node", "leaf": "leaf or rail switch",
         "spine": "spine or core"}  # fmt: skip
STYLES: dict[str, tuple[str, Any]] = {
    "solid": ("scale-up link", "-"),
    "dashed": ("PCIe or CPU link", (0, (4, 1.6))),
    "dotted": ("network cable", (0, (1.2, 1.0))),
}
"""What each style of line stands for, and its dashes."""

_LINKS = 400_000  # links of a fabric whose load is still named one by one
_WIDEST = 16.0  # inches two panels may have side by side
_DOTS = 130
_SWITCHES = re.compile(r"leaf|spine|pod|core|group|node")
_NAME = re.compile(r"(?:node(\d+): )?(.+) -> (.+)")


def required() -> None:
    """Raise one clear error where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidUsage(
            "drawing needs matplotlib, which is not installed: pip install rccl_py[plot]"
        ) from None


def busy_links(plan: Plan) -> dict[Key, float]:
    """Return the share of a plan's time each directed link is busy, by its two ends.

    Links inside a node are ("gpu0", "gpu1"): the busiest of all nodes; cables ("node3/nic0",
    "leaf5"); leaves ("leaf5", "spines"). Raises InvalidArgument for a fabric of too many links.
    """
    profile, fabric = plan.profile, plan.profile.fabric
    total = profile.total_link
    if len(total) > _LINKS:
        raise InvalidArgument(
            f"{fabric.name}: {len(total)} links are too many to draw by load (limit {_LINKS}): "
            "draw by bandwidth, or fewer nodes"
        )
    slot = plan.block / profile.chunks
    busy = profile.busy(slot, PROTOCOLS[plan.protocol]) / plan.time
    found: dict[Key, float] = {}
    for link in np.flatnonzero(total).tolist():
        for key in _keys(fabric.link_name(link)):
            found[key] = max(found.get(key, 0.0), float(busy[link]))
    return found


def _keys(name: str) -> Iterator[Key]:
    """Yield the ends a link's name gives: ``node3: nic0 -> leaf5`` is node3/nic0 to leaf5.

    One box stands for all spines, all cores or a group of routers: its line shows the busiest.
    """
    match = _NAME.fullmatch(name.partition(" (")[0])
    if match is None:
        return
    node, *ends = match.groups()
    if any(_SWITCHES.match(v) for v in ends):
        ends = [f"node{node}/{v}" if v.startswith("nic") else _box_of(v) for v in ends]
    a, b = ends
    if a != b:
        yield a, b


def _box_of(switch: str) -> str:
    """Return the box a switch of the network is drawn in."""
    for part, box in (("core", "cores"), ("spine", "spines"), ("pod", "spines")):
        if part in switch:
            return box
    return switch.partition(" ")[0]  # "group2 router1" is in group2


def _value(line: Line, load: Mapping[Key, float] | None) -> float:
    return line.value if load is None else max((load.get(k, 0.0) for k in line.keys), default=0.0)


def _norm(values: Sequence[float], by: str) -> Any:
    """Return the scale of colours: logarithmic in GB/s, linear in percent."""
    from matplotlib.colors import LogNorm, Normalize

    if by == "load":
        return Normalize(0.0, max([*values, 1e-9]) * 100)
    rates = [v / 1e9 for v in values if v > 0] or [1.0]
    low, high = min(rates), max(rates)
    return LogNorm(low / 1.3, high * 1.3) if high / low < 1.2 else LogNorm(low, high)


def _colour_map() -> Any:
    """Return viridis without its lightest part, dark for the widest: readable on white."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.2, 1.0, 256)))


def _arranged(panels: list[Panel]) -> tuple[list[tuple[float, float]], float, float]:
    """Return each panel's lower left corner, and the width and height of all.

    Panels stand side by side where they fit, a row below the other otherwise.
    """
    rows: list[list[int]] = []
    for k, panel in enumerate(panels):
        used = sum(panels[i].width for i in rows[-1]) if rows else math.inf
        if used + panel.width <= _WIDEST:
            rows[-1].append(k)
        else:
            rows.append([k])
    title = 0.35
    heights = [max(panels[i].height for i in row) + title for row in rows]
    width = max(sum(panels[i].width for i in row) for row in rows)
    corners = [(0.0, 0.0)] * len(panels)
    for r, row in enumerate(rows):
        x = (width - sum(panels[i].width for i in row)) / 2
        top = sum(heights) - sum(heights[:r])
        for i in row:
            free = heights[r] - title - panels[i].height
            corners[i] = x, top - title - panels[i].height - free / 2
            x += panels[i].width
    return corners, width, sum(heights)


def _plain(text: str) -> str:
    """Return a text matplotlib draws as it stands: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def _paint(axes: Any, panel: Panel, load: Mapping[Key, float] | None, colour: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.set_xlim(0, panel.width)
    axes.set_ylim(0, panel.height)
    axes.axis("off")
    axes.set_title(_plain(panel.title), fontsize=9.5, pad=4)
    order = sorted(panel.lines, key=lambda line: _value(line, load))
    for line in order:
        (x, y), (u, v), value = line.a, line.b, _value(line, load)
        axes.plot([x, u], [y, v], color=colour(value), linewidth=line.width,
                  linestyle=STYLES[line.style][1], solid_capstyle="butt", zorder=2)  # fmt: skip
        if line.text:
            at = x + (u - x) * line.at, y + (v - y) * line.at
            axes.text(*at, _plain(line.text), fontsize=6.5, ha="center", va="center", zorder=3,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # fmt: skip
    for box in panel.boxes:
        fill, edge = COLOURS[box.kind]
        behind = box.kind == "band" or (box.kind == "group" and not box.text)
        axes.add_patch(FancyBboxPatch(
            (box.x - box.w / 2 + 0.03, box.y - box.h / 2 + 0.03), box.w - 0.06, box.h - 0.06,
            boxstyle="round,pad=0.03", facecolor=fill, edgecolor=edge, linewidth=0.8,
            zorder=1 if behind else 4))  # fmt: skip
        if box.text:
            axes.text(box.x, box.y, _plain(box.text), fontsize=box.size, color=edge, ha="center",
                      va="center_baseline" if "\n" not in box.text else "center",
                      zorder=5, linespacing=1.05)  # fmt: skip
    for text in panel.texts:
        axes.text(text.x, text.y, _plain(text.text), fontsize=text.size, color="0.25", ha="center",
                  va="center", zorder=5)  # fmt: skip


def _legend(figure: Any, panels: list[Panel], height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {box.kind for panel in panels for box in panel.boxes}
    styles = {line.style for panel in panels for line in panel.lines}
    handles: list[Any] = [
        Patch(facecolor=COLOURS[k][0], edgecolor=COLOURS[k][1], label=name)
        for k, name in NAMES.items() if k in kinds]  # fmt: skip
    handles += [Line2D([], [], color="0.3", linestyle=dash, linewidth=1.6, label=name)
                for style, (name, dash) in STYLES.items() if style in styles]  # fmt: skip
    columns = max(1, int((figure.get_figwidth() - 0.4) / 1.75))
    figure.legend(handles=handles, loc="lower center", ncols=min(columns, len(handles)),
                  fontsize=8, frameon=False, bbox_to_anchor=(0.5, 0.04 / height))  # fmt: skip


def _require_same(topology: Topology, plan: Plan) -> None:
    """Raise InvalidArgument where `plan` was made on another machine than is drawn."""
    fabric = plan.profile.fabric
    # Ranks may be fewer than accelerators, and nodes fewer than the machine has.
    kinds = [kind.graph for kind in kinds_of(topology)] if fabric.name == topology.name else []
    links = [{f"{a} -> {b}" for a, b in graph.edges} for graph in kinds]
    fits = fabric.nranks <= topology.ngpus and len(fabric.kind) <= topology.nodes
    if not fits or any(set(domain.names) not in links for domain in fabric.domains):
        raise InvalidArgument(
            f"draw: the plan is of {fabric.name} with {fabric.nranks} ranks on {len(fabric.kind)} "
            f"node(s), but {topology.name} with {topology.ngpus} GPUs in {topology.nodes} node(s) "
            "is drawn: plan on the machine that is drawn"
        )


def draw(topology: Topology, by: str = "bandwidth", plan: Plan | None = None) -> Figure:
    """Return the picture of `topology`: one node, its host, and the network between nodes.

    by: "bandwidth" (usable, of each link or bundle drawn) or "load" (share of the time of `plan`
    each link is busy; `plan` must be made on this machine). Raises InvalidUsage without
    matplotlib, InvalidArgument for another `by`, a missing plan or one of another machine.
    """
    if by not in ("bandwidth", "load"):
        raise InvalidArgument(f"draw: by={by!r} is not known: bandwidth or load")
    if by == "load" and plan is None:
        raise InvalidArgument("draw: by='load' needs a plan: give plan=Planner(...).plan(...)")
    if plan is not None:
        _require_same(topology, plan)
    required()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    panels = panels_of(topology)
    load = busy_links(plan) if plan is not None and by == "load" else None
    corners, inner_w, inner_h = _arranged(panels) if panels else ([], 4.0, 1.0)
    inner_w = max(inner_w, 4.5)
    bar, head, foot = 1.0, 0.5 if plan is None else 0.72, 0.75
    width, height = inner_w + bar, inner_h + head + foot
    figure = Figure(figsize=(width, height), dpi=_DOTS)
    FigureCanvasAgg(figure)
    values = [_value(line, load) for panel in panels for line in panel.lines]
    norm, colours = _norm(values, by), _colour_map()
    scale = 100.0 if by == "load" else 1e-9

    def colour(value: float) -> Any:
        return colours(norm(value * scale)) if value > 0 else "0.82"

    for panel, (x, y) in zip(panels, corners):
        axes = figure.add_axes((x / width, (y + foot) / height,
                                panel.width / width, panel.height / height))  # fmt: skip
        _paint(axes, panel, load, colour)
    title = headline(topology)
    if plan is not None:
        title += f"\n{plan}"
    figure.suptitle(_plain(title), fontsize=11, x=0.5, y=1 - 0.1 / height, va="top")
    tall = min(inner_h - 0.6, 4.0)
    rest = foot + (inner_h - tall) / 2
    bar_axes = figure.add_axes(((inner_w + 0.05) / width, rest / height, 0.16 / width,
                                tall / height))  # fmt: skip
    label = "busy, % of the call" if by == "load" else "usable GB/s per direction"
    _bar(figure.colorbar(ScalarMappable(norm, colours), cax=bar_axes), label, norm, by)
    _legend(figure, panels, height)
    return figure


def _bar(bar: Any, label: str, norm: Any, by: str) -> None:
    """Label the colour bar with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if by == "bandwidth":
        decades = math.log10(norm.vmax / norm.vmin)
        subs: tuple[float, ...] = tuple(k / 4 for k in range(4, 40))
        for least, chosen in ((0.35, (1, 1.5, 2, 3, 4, 5, 6, 8)), (1.1, (1, 2, 5)), (3.0, (1,))):
            subs = chosen if decades > least else subs
        bar.locator = LogLocator(10, subs=subs, numticks=40)
        bar.formatter = FuncFormatter(lambda v, _: f"{v:g}")
        bar.update_ticks()
        bar.ax.yaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: str) -> None:
    """Write `figure` to `path`: .png, .svg or .pdf. Raises InvalidArgument for other names."""
    kind = path.rpartition(".")[2].lower()
    if kind not in ("png", "svg", "pdf"):
        raise InvalidArgument(f"{path}: a picture's name ends in .png, .svg or .pdf")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        figure.savefig(path, metadata=metadata[kind])
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be written: {error.strerror}") from None
