"""Prints docs/validation.md with its tables made anew from bench/measured and today's model.

    python docs/tables_validation.py > t.md && mv t.md docs/validation.md

tests/test_validate.py fails when the page is not what this prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rccl_py.report.band import CLASSES, PEAK
from rccl_py.report.measured import read_folder
from rccl_py.report.validate import (
    LIMITS,
    SUBSETS,
    Judged,
    Predictor,
    Statistics,
    grouped,
    summary,
)
from rccl_py.units import format_size

HERE = Path(__file__).parent
PAGE = HERE / "validation.md"
FOLDER = HERE.parent / "bench" / "measured"
KINDS = (*CLASSES, PEAK)
WORST = 10
"""Tables of which the worst row is shown."""
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@cache
def judged() -> tuple[Judged, ...]:
    """Return every table of grade A with its predictions."""
    predictor = Predictor()
    return tuple(predictor.judge(t) for t in read_folder(FOLDER) if t.grade.startswith("A"))


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(found: Statistics | None) -> str:
    if found is None:
        return "-"
    return f"{found.median:.0%} / {found.p90:.0%} ({found.bias * 100:+.0f})"


def _limit(kind: str) -> str:
    if kind not in LIMITS:
        return ""
    median, p90 = LIMITS[kind]
    return f", limit {median:.0%}" + (f" / {p90:.0%}" if p90 is not None else "")


def _cells(tables: Sequence[Judged]) -> list[str]:
    return [_cell(summary(tables, kind)) for kind in KINDS]


def limits() -> str:
    """The errors of both halves beside the limits."""
    rows = []
    for name, belongs in SUBSETS.items():
        for half in "ab":
            found = [j for j in judged() if belongs(j) and j.table.half == half]
            which = "fitted on" if half == "a" else "**reported**"
            rows.append((name, f"{half}, {which}", str(len(found)), *_cells(found)))
    heads = [f"{kind}{_limit(kind)}" for kind in KINDS]
    return _table(("tables", "half", "number", *heads), rows)


def families() -> str:
    """The errors of both halves together, by family of machines."""
    rows = [(f"`{name}`", str(len(found)), *_cells(found))
            for name, found in grouped(judged(), "family").items()]  # fmt: skip
    return _table(("family", "tables", *KINDS), rows)


def collectives() -> str:
    """The errors of both halves together, by collective."""
    rows = [(name, str(len(found)), *_cells(found))
            for name, found in grouped(judged(), "collective").items()]  # fmt: skip
    return _table(("collective", "tables", *KINDS), rows)


def runs() -> str:
    """Every table of grade A."""
    rows = []
    for one in judged():
        header, setup = one.table.header, one.setup
        ranks = f"{setup.nodes} x {setup.gpus // setup.nodes}"
        errors = [summary([one], kind) for kind in KINDS]
        shown = ["-" if e is None else f"{e.median:.0%} ({e.bias * 100:+.0f})" for e in errors]
        rows.append((f"{header['system']}, {header['library']}", ranks, one.table.collective,
                     one.table.half, *shown))  # fmt: skip
    return _table(("what was run", "nodes x ranks", "collective", "half", *KINDS), rows)


def worst() -> str:
    """The row furthest off of each of the tables of half b that are furthest off."""
    found = []
    for one in judged():
        if one.table.half == "b":
            error = np.where(one.counts, np.abs(one.error), 0.0)
            found.append((float(error.max()), one, int(error.argmax())))
    found.sort(key=lambda f: -f[0])
    rows = [(f"`{one.table.name}`", format_size(int(one.size[at])), f"{one.measured[at] * 1e6:.1f}",
             f"{one.predicted[at] * 1e6:.1f}", f"{one.error[at]:+.0%}", one.choices[at])
            for _, one, at in found[:WORST]]  # fmt: skip
    return _table(("table", "size", "measured us", "predicted us", "error", "predicted for"), rows)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (limits, families, collectives, worst, runs)
}


def page(text: str) -> str:
    """Return `text` with its tables made anew."""
    return _TABLE.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


if __name__ == "__main__":
    print(page(PAGE.read_text(encoding="utf-8")), end="")
