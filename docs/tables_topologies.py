"""Prints docs/topologies.md with its tables made anew from the files in topologies/.

    python docs/tables_topologies.py > t.md && mv t.md docs/topologies.md

PUBLISHED holds what vendors say, or what is counted from the links they say; everything called
"ours" is computed from the loaded machine. tests/test_machines.py fails when the two differ, or
when the page is not what this prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from rccl_py.topology import load, machine_names
from rccl_py.topology.figures import (
    bisection,
    scale_out_bandwidth,
    scale_out_bisection,
    scale_up_bandwidth,
)

PAGE = Path(__file__).parent / "topologies.md"
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FIGURE = re.compile(
    r"(?P<about>about )?(?P<times>(?:[\d,]+ x )*)(?P<number>[\d,.]+) (?P<unit>[GT][Bb])/s"
    r"(?P<both> both ways)?(?: / (?P<over>[\d,]+))?"
)
_UNITS = {"GB": 1e9, "TB": 1e12, "Gb": 1e9 / 8, "Tb": 1e12 / 8}


@dataclass(frozen=True)
class Row:
    """Published figures of one machine; "" where there is none.

    up, out: of one accelerator. inside: the bisection of a node's scale-up domain; across: of the
    network between nodes. like: the node of a cluster, whose other figures are its own.
    """

    up: str = ""
    out: str = ""
    inside: str = ""
    across: str = ""
    like: str = ""


@dataclass(frozen=True)
class Figure:
    """A published figure: B/s of one direction, and how far from it rounding may be."""

    value: float
    rounding: float

    def is_met_by(self, ours: float) -> bool:
        """Return whether `ours` is the figure: to 1e-6, or to its last digit if it is rounded."""
        return abs(ours - self.value) <= max(self.rounding, 1e-6 * self.value)


def figure(text: str) -> Figure:
    """Return what ``"about 4 x 43 TB/s both ways / 8"`` says, for one direction.

    "both ways" halves; "about" is rounded: half of the last digit that is not 0 is allowed.
    """
    found = _FIGURE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a figure")
    times = prod(int(t) for t in found["times"].replace(",", "").split(" x ") if t)
    number = found["number"].replace(",", "")
    over = int((found["over"] or "1").replace(",", "")) * (2 if found["both"] else 1)
    scale = times * _UNITS[found["unit"]] / over
    whole, _, part = number.partition(".")
    last = 10.0 ** (-len(part) if part else len(whole) - len(whole.rstrip("0")))
    return Figure(float(number) * scale, last / 2 * scale if found["about"] else 0.0)


_HGX_H100 = Row("900 GB/s both ways", "400 Gb/s", "3.6 TB/s both ways")
_HGX_B200 = Row("1.8 TB/s both ways", "400 Gb/s", "14.4 TB/s both ways / 2")
_HELIOS = Row("3.6 TB/s both ways", "300 GB/s", "about 260 TB/s both ways / 2")
_MI300X = Row("7 x 64 GB/s", "400 Gb/s", "16 x 64 GB/s")
_MI350 = Row("7 x 153.6 GB/s both ways", "400 Gb/s", "16 x 153.6 GB/s both ways")

PUBLISHED: dict[str, Row] = {
    "a100-4": Row("3 x 4 x 25 GB/s", "2 x 200 Gb/s / 4", "4 x 4 x 25 GB/s"),
    "a100-8": Row("600 GB/s both ways", "200 Gb/s", "2.4 TB/s both ways"),
    "a100-8-x140-superpod": Row(across="70 x 8 x 200 Gb/s", like="a100-8"),
    "b200-8": _HGX_B200,
    "b200-8-x64-ndr": Row(across="32 x 8 x 400 Gb/s", like="b200-8"),
    "b300-8": Row("1.8 TB/s both ways", "800 Gb/s", "14.4 TB/s both ways / 2"),
    "b300-8-x64-xdr": Row(across="32 x 8 x 800 Gb/s", like="b300-8"),
    "frontier": Row(across="37 x 37 x 4 x 200 Gb/s", like="mi250x-4"),
    "gb200-nvl72": Row("1.8 TB/s both ways", "400 Gb/s", "about 130 TB/s both ways / 2"),
    "gb200-nvl72-x8": Row(across="4 x 72 x 400 Gb/s", like="gb200-nvl72"),
    "h100-8": _HGX_H100,
    "h100-8-p5": Row("900 GB/s both ways", "32 x 100 Gb/s / 8", "3.6 TB/s both ways"),
    "h100-8-x128-superpod": Row(across="64 x 8 x 400 Gb/s", like="h100-8"),
    "h100-8-x32-rail-only": Row(across="16 x 8 x 400 Gb/s", like="h100-8"),
    "h200-8": _HGX_H100,
    "helios-72": _HELIOS,
    "helios-72-ualoe": _HELIOS,
    "helios-72-x8": Row(across="about 4 x 43 TB/s both ways", like="helios-72"),
    "l40s-8": Row(out="4 x 200 Gb/s / 8"),
    "mi250x-4": Row("6 x 50 GB/s to 7 x 50 GB/s", "4 x 200 Gb/s / 8", "6 x 50 GB/s"),
    "mi250x-4-x1024-dragonfly": Row(across="4 x 4 x 4 x 200 Gb/s", like="mi250x-4"),
    "mi300a-4": Row("3 x 256 GB/s both ways", "200 Gb/s", "4 x 256 GB/s both ways"),
    "mi300a-4-x512-dragonfly": Row(across="2 x 2 x 10 x 200 Gb/s", like="mi300a-4"),
    "mi300x-8": _MI300X,
    "mi300x-8-cpx": Row("7 x 64 GB/s / 8", "400 Gb/s / 8", "16 x 64 GB/s"),
    "mi300x-8-vm": Row("7 x 64 GB/s", "200 Gb/s", "16 x 64 GB/s"),
    "mi300x-8-x12500-three-tier": Row(across="6,250 x 8 x 400 Gb/s", like="mi300x-8"),
    "mi300x-8-x128-rails": Row(across="64 x 8 x 400 Gb/s", like="mi300x-8"),
    "mi300x-8-x16-leaf-spine": Row(across="8 x 8 x 400 Gb/s / 2", like="mi300x-8"),
    "mi300x-8-x64-ecmp": Row(across="32 x 8 x 400 Gb/s / 2", like="mi300x-8"),
    "mi325x-8": _MI300X,
    "mi350x-8": _MI350,
    "mi355x-8": _MI350,
    "mi355x-8-x64-rails": Row(across="32 x 8 x 400 Gb/s", like="mi355x-8"),
    "mixed-x6": Row("7 x 64 GB/s", "400 Gb/s", "16 x 64 GB/s", "3 x 8 x 400 Gb/s"),
    "rtx-pro-6000-8": Row(out="4 x 400 Gb/s / 8"),
    "tpu-v4-64": Row("6 x 50 GB/s", "100 Gb/s / 4", "2 x 16 x 50 GB/s"),
    "tpu-v5p-512": Row("1,200 GB/s both ways", "50 Gb/s", "2 x 64 x 100 GB/s"),
    "ualink-1024": Row("16 x 100 Gb/s", "400 Gb/s", "512 x 16 x 100 Gb/s"),
    "ualink-64": Row("4 x 800 Gb/s", "400 Gb/s", "32 x 4 x 800 Gb/s"),
    "ualink-64-x16": Row(across="8 x 64 x 400 Gb/s", like="ualink-64"),
    "ualink-8": Row("800 Gb/s", "400 Gb/s", "4 x 800 Gb/s"),
    "v100-16": Row("300 GB/s both ways", "8 x 100 Gb/s / 16", "2.4 TB/s both ways"),
    "v100-16-x16-edr": Row(across="8 x 8 x 100 Gb/s", like="v100-16"),
    "v100-8": Row("6 x 25 GB/s", "4 x 100 Gb/s / 8", "6 x 25 GB/s"),
    "v100-8-x32-edr": Row(across="16 x 4 x 100 Gb/s", like="v100-8"),
}
"""What is published of every machine; the machine's own file says where."""

HEADS = ("up", "out", "inside", "across")


def published(name: str) -> Row:
    """Return the published row; what a cluster does not say is its node's."""
    row = PUBLISHED[name]
    return replace(PUBLISHED[row.like], across=row.across) if row.like else row


@cache
def ours(name: str) -> dict[str, tuple[float, ...]]:
    """Return the raw B/s of one direction that the file `name` has, by column."""
    machine = load(name)
    up = scale_up_bandwidth(machine)
    return {
        "up": tuple(sorted({up.least.raw, up.most.raw})),
        "out": (scale_out_bandwidth(machine).raw,),
        "inside": (bisection(machine).raw,),
        "across": (scale_out_bisection(machine).raw,),
    }


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:,.10g}"


def _cell(said: str, found: Sequence[float]) -> str:
    if not said:
        return "-"
    return f"{said} / **{' to '.join(_gigabytes(v) for v in found)}**"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def machines() -> str:
    """Every shipped machine, what is published of it and what its file has."""
    rows = []
    for name in sorted(machine_names()):
        row, found, machine = published(name), ours(name), load(name)
        cells = [_cell(getattr(row, head), found[head]) for head in HEADS]
        rows.append((f"`{name}`", machine.summary, f"{machine.nranks:,}", *cells))
    return _table(("name", "what it is", "ranks", "scale-up of one", "scale-out of one",
                   "bisection of a node", "bisection of the network"), rows)  # fmt: skip


def sources() -> str:
    """Where the figures of every machine are from."""
    rows = []
    for name in sorted(machine_names()):
        own = load(name).sources
        rows.append((f"`{name}`", "; ".join(source.replace("|", "/") for source in own)))
    return _table(("name", "sources"), rows)


TABLES: dict[str, Callable[[], str]] = {made.__name__: made for made in (machines, sources)}


def page(text: str) -> str:
    """Return `text` with its tables made anew."""
    return _TABLE.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


if __name__ == "__main__":
    print(page(PAGE.read_text(encoding="utf-8")), end="")
