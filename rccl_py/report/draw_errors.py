"""Predictions against measurements as a matplotlib picture: busbw over busbw, and error over size.

Owns colours and axes. A colour is a family of machines; both pictures show the rows that count.
matplotlib is optional and imported here when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collectives import COLLECTIVES
from .draw import required
from .validate import Judged, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_errors"]


def draw_errors(judged: Sequence[Judged]) -> Figure:
    """Return the picture of all tables. Raises InvalidUsage where matplotlib is missing."""
    required()
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), dpi=110)
    FigureCanvasAgg(figure)
    against, over = figure.subplots(1, 2)
    families = grouped(judged, "family")
    for k, (family, tables) in enumerate(families.items()):
        colour = colormaps["tab20"](k % 20)
        for one in tables:
            label = family if one is tables[0] else None
            _scatter(against, over, one, colour, label)
    _frame(against, over)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False, markerscale=2)
    figure.suptitle(f"{len(judged)} measured tables, {sum(len(j.size) for j in judged)} sizes",
                    fontsize=10)  # fmt: skip
    figure.subplots_adjust(left=0.06, right=0.86, bottom=0.1, top=0.92, wspace=0.18)
    return figure


def _scatter(against: Any, over: Any, one: Judged, colour: Any, label: str | None) -> None:
    """Put the rows of one table into both pictures."""
    factor = COLLECTIVES[one.table.collective].factor(one.setup.gpus) * 1e-9
    size, measured, predicted = (x[one.counts] for x in (one.size, one.measured, one.predicted))
    shape = "o" if one.nodes == 1 else "^"
    against.plot(size / measured * factor, size / predicted * factor, shape, color=colour,
                 markersize=2.5, alpha=0.7, label=label, linestyle="none")  # fmt: skip
    over.plot(size, one.error[one.counts] * 100, shape, color=colour, markersize=2.5, alpha=0.7,
              linestyle="none")  # fmt: skip


def _frame(against: Any, over: Any) -> None:
    """Name the axes and draw where a prediction is right."""
    line = np.array([1e-5, 1e3])
    against.plot(line, line, color="0.4", linewidth=0.8)
    against.set(xscale="log", yscale="log", xlabel="measured busbw, GB/s",
                ylabel="predicted busbw, GB/s",
                title="on the line: right; triangles: several nodes")  # fmt: skip
    over.axhline(0, color="0.4", linewidth=0.8)
    over.set(xlabel="size, B", ylabel="predicted / measured time - 1, %", ylim=(-100, 150),
             title="below 0: the prediction is too fast")  # fmt: skip
    over.set_xscale("log", base=2)
    for axes in (against, over):
        axes.tick_params(labelsize=7)
        axes.title.set_fontsize(9)
        axes.grid(True, linewidth=0.3, alpha=0.6)
