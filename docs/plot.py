"""Draw the README's pictures: busbw of allreduce on mi300x-8 by algorithm, and a Helios rack.

Run as ``python docs/plot.py``; it writes docs/img/allreduce-mi300x-8.png and helios-72.png.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import rccl_py as rccl

MACHINE, COLLECTIVE = "mi300x-8", "allreduce"
TARGET = Path(__file__).parent / "img" / f"{COLLECTIVE}-{MACHINE}.png"
EXPONENTS = np.arange(10, 32.01, 0.25)
# Colours of Okabe and Ito, which the colour-blind can tell apart; in the order of the legend.
COLOURS = {
    "direct-twoshot": "#0072B2",
    "ring": "#009E73",
    "tree": "#CC79A7",
    "direct-oneshot": "#E69F00",
    "circulant": "#D55E00",
}


def curves() -> tuple[dict[str, list[float]], list[float]]:
    """Return busbw in GB/s at each size, of each algorithm's best candidate and of the bound."""
    fabric = rccl.lower(rccl.load(MACHINE))
    planner = rccl.Planner(fabric)
    factor = rccl.COLLECTIVES[COLLECTIVE].factor(fabric.nranks)
    found: dict[str, list[float]] = {name: [] for name in COLOURS}
    bound = []
    for size in (2.0**EXPONENTS).tolist():
        plan = planner.plan(COLLECTIVE, size)
        for name, column in found.items():
            best = min(c.seconds for c in plan.candidates if c.algorithm == name)
            column.append(size / best * factor / 1e9)
        bound.append(size / plan.bound.seconds * factor / 1e9)
    return found, bound


def draw(target: Path) -> None:
    """Write the plot to `target`."""
    found, bound = curves()
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=100)
    axes.plot(EXPONENTS, bound, color="0.25", linestyle="--", linewidth=1.4, label="lower bound")
    for name, colour in COLOURS.items():
        axes.plot(EXPONENTS, found[name], color=colour, linewidth=2.2, label=name)
    axes.legend(loc="upper left", frameon=False, fontsize=11)
    axes.set_xlim(EXPONENTS[0], EXPONENTS[-1])
    axes.set_ylim(0, max(bound) * 1.08)
    names = ("1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB")
    axes.set_xticks(range(10, 32, 4), names)
    axes.set_xlabel("size per rank")
    axes.set_ylabel("busbw (GB/s)")
    axes.set_title("allreduce on 8 MI300X: predicted busbw by algorithm", fontsize=12)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    target.parent.mkdir(exist_ok=True)
    # No date and no version in the file: the same model gives the same bytes.
    figure.savefig(target, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(TARGET)
    rack = TARGET.with_name("helios-72.png")
    # No date and no version in the file here either.
    rccl.draw(rccl.load("helios-72")).savefig(rack, dpi=75, metadata={"Software": None})
    for path in (TARGET, rack):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
