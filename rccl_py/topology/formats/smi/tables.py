"""The tables of rocm-smi and amd-smi: which are there, of which GPUs, with which cells.

Owns titles, heads, what a cell may be, and that both directions of a pair agree. Knows nothing of
what the cells together mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from ..xml_tree import Notes
from .json_form import grids_of_json
from .page import Grid, Page, brief, read_grid

__all__ = ["TELLING", "Tables", "find_json", "find_tables", "read_all"]

_KINDS = {
    "weight": "weight", "hops": "hops", "link type": "type", "link accessibility": "access",
    "access": "access", "bandwidth": "rate", "numa bw": "rate",
}  # fmt: skip
_BETWEEN = re.compile(r"\b(weight|hops|link type|link accessibility|bandwidth) between two gpus",
                      re.IGNORECASE)  # fmt: skip
_TABLE = re.compile(r"^\W{0,8}(access|weight|hops|link type|numa bw) table\b", re.IGNORECASE)
_RATES = re.compile(r"^\s*={2,}[^=]{0,80}\b(bandwidth)\b[^=]{0,80}={2,}\s*$", re.IGNORECASE)
_NAME = re.compile(
    r"GPU\d{1,4}|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE
)
_CELLS = {
    # XXXX and N/A are what the tools print in a cell they could not read.
    "weight": re.compile(r"\d{1,6}|N/A|XXXX"),
    "hops": re.compile(r"\d{1,6}|N/A|XXXX"),
    "type": re.compile(r"XGMI|PCIE|SELF|0|N/A|XXXX|UNKNOWN"),
    "access": re.compile(r"True|False|ENABLED|DISABLED|N/A"),
    "rate": re.compile(r"\d{1,9}-\d{1,9}|N/A|SELF"),
}
_MARK = re.compile(
    r'"(?:link_accessibility|link_status|numa_bandwidth|num_hops)"\s*:|'
    r'"\(Topology\) (?:Weight|Hops|Link type) between'
)
TELLING = frozenset({"weight", "hops", "type"})  # tables that tell xGMI from PCIe


def _title(line: str) -> str | None:
    """Return which table a line opens, None if none."""
    found = _BETWEEN.search(line) or _TABLE.search(line) or _RATES.search(line)
    return _KINDS[found[1].lower()] if found else None


def find_tables(page: Page) -> list[tuple[str, int]]:
    """Return (kind, line of the head) of every table of GPUs in the text."""
    found = []
    for number, line in enumerate(page.lines, 1):
        kind = _title(line) if len(line) <= 400 else None
        if kind is None:
            continue
        for k in range(number, min(number + 3, len(page.lines))):
            words = page.lines[k].split()
            if words:
                if all(map(_NAME.fullmatch, words)):
                    found.append((kind, k + 1))
                break
    return found


def find_json(page: Page) -> bool:
    """Return whether the text holds the JSON of rocm-smi or amd-smi."""
    if any(_MARK.search(line) for line in page.lines):
        return True
    return all(any(key in line for line in page.lines) for key in ('"link_type"', '"bdf"'))


@dataclass(slots=True)
class Tables:
    """The tables found, by kind (weight, hops, type, access, rate); all of the same GPUs."""

    page: Page
    grids: dict[str, Grid] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return next(iter(self.grids.values())).columns if self.grids else ()

    def add(self, kind: str, grid: Grid) -> None:
        """Add a table of the same GPUs. Raises FormatError for others."""
        if self.grids and grid.columns != self.names:
            raise self.page.error(
                grid.line,
                f"{grid.what} has the columns {_listed(grid.columns)}, the table before it "
                f"{_listed(self.names)}: tables of one machine were expected",
            )
        self.grids[kind] = grid

    def cell(self, kind: str, i: int, j: int) -> str:
        """Return a cell, "" when the table is not there or says N/A; both directions agree."""
        grid = self.grids.get(kind)
        if grid is None:
            return ""
        a, b = grid.columns[i], grid.columns[j]
        there, back = grid.rows[a].cells[j], grid.rows[b].cells[i]
        if there != back and kind != "access":
            raise self.page.error(
                grid.rows[b].line,
                f"row {brief(b)}, column {brief(a)} of {grid.what} is {brief(back)}, but row "
                f"{brief(a)}, column {brief(b)} is {brief(there)}: both directions must agree",
            )
        return "" if there in ("N/A", "XXXX", "UNKNOWN") else there

    def number(self, kind: str, i: int, j: int) -> int:
        """Return a cell as a number; 0 when there is none."""
        text = self.cell(kind, i, j)
        return int(text) if text.isdigit() else 0

    @property
    def rated(self) -> bool:
        """Whether the table of bandwidths is there and has any above 0."""
        return any(self.rate(i, j)[1] for i, j in combinations(range(len(self.names)), 2))

    def rate(self, i: int, j: int) -> tuple[int, int]:
        """Return MB/s of one link and of all between two GPUs."""
        low, _, high = self.cell("rate", i, j).partition("-")
        return (int(low), int(high)) if low.isdigit() and high.isdigit() else (0, 0)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(name[:24] for name in names[:3])
    return shown + (f", … ({len(names)})" if len(names) > 3 else "")


def _is_cell(kind: str) -> Callable[[str], bool]:
    """Return what tells a cell of such a table."""
    return lambda word: _CELLS[kind].fullmatch(word) is not None


def read_all(page: Page, notes: Notes) -> Tables:
    """Return every table of the text. Raises FormatError."""
    tables, again = Tables(page), list[int]()
    found = find_tables(page)
    for kind, head in found:
        if kind in tables.grids:
            again.append(head)  # another node, or another command
            continue
        columns = page.lines[head - 1].split()
        what = f"the {'link ' if kind == 'type' else ''}{kind} table"
        tables.add(kind, read_grid(page, what, head, columns, columns, _is_cell(kind)))
    if not found:
        for kind, grid in grids_of_json(page, _is_cell).items():
            tables.add(kind, grid)
    if not TELLING & set(tables.grids) and not tables.rated:
        line = next(iter(tables.grids.values())).line if tables.grids else 1
        raise page.error(
            line,
            "no table of weights, hops, link types or bandwidths above 0: that two GPUs may access "
            "each other does not tell xGMI from PCIe: paste rocm-smi --showtopo",
        )
    if again:
        notes.add(f"{len(again)} tables come twice: the first of a kind is read", again[0])
    cut = next((n for n, line in enumerate(page.lines, 1) if _is_cut(page, n, line)), 0)
    if cut:
        notes.add("a table's title without rows: is the text cut short?", cut)
    return tables


def _is_cut(page: Page, number: int, line: str) -> bool:
    """Return whether `line` is the title of a table and nothing comes after it."""
    titled = len(line) <= 400 and _title(line) is not None
    return (
        titled
        and ("==" in line or line.rstrip().endswith("TABLE:"))
        and not any(text.strip() for text in page.lines[number:])
    )
