"""The JSON that rocm-smi and amd-smi print, as the same tables their plain text has.

Owns the three shapes: a list of GPUs with `links` (amd-smi since ROCm 6.3), a list of GPUs with a
mapping a table (before), and rocm-smi's one key a pair. Knows no meaning of a cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from .page import Grid, Page, Row, brief, check_columns

__all__ = ["grids_of_json"]

_LINKS = {"weight": "weight", "num_hops": "hops", "link_type": "type", "bandwidth": "rate"}
_MAPS = {"weight": "weight", "hops": "hops", "link_type": "type", "numa_bandwidth": "rate"}
_DRM = re.compile(
    r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d{1,4}) and (\d{1,4})"
)
_DRM_KIND = {"Weight": "weight", "Hops": "hops", "Link type": "type"}
_Cells = dict[tuple[str, str], str]


def grids_of_json(page: Page, is_cell: Callable[[str], Callable[[str], bool]]) -> dict[str, Grid]:
    """Return the tables in the JSON of the text, by kind. Raises FormatError."""
    line, data = _decoded(page)
    if isinstance(data, dict):
        names, found = _rocm(data)
    elif isinstance(data, list) and all(isinstance(own, dict) for own in data):
        names, found = _amd(page, line, data)
    else:
        raise page.error(line, "the JSON is neither amd-smi's list of GPUs nor rocm-smi's mapping")
    check_columns(page, "the JSON", line, names)
    return {
        kind: _grid(page, line, kind, names, cells, is_cell(kind))
        for kind, cells in found.items()
        if cells
    }


def _decoded(page: Page) -> tuple[int, Any]:
    """Return the first JSON value of the text, and its line."""
    start = next((k for k, line in enumerate(page.lines) if line.lstrip()[:1] in ("[", "{")), None)
    if start is None:
        raise page.error(1, "no JSON list or mapping begins on a line of its own")
    try:
        return start + 1, json.JSONDecoder().raw_decode("\n".join(page.lines[start:]).lstrip())[0]
    except json.JSONDecodeError as error:
        raise page.error(start + error.lineno, f"not JSON: {error.msg}: cut short?") from None
    except (RecursionError, ValueError) as error:
        raise page.error(start + 1, f"not usable JSON: {str(error)[:80]}") from None


def _rocm(data: dict[str, Any]) -> tuple[list[str], dict[str, _Cells]]:
    """Return what rocm-smi's one key a pair says; it lists each pair once."""
    flat = {
        key: value for own in data.values() if isinstance(own, dict) for key, value in own.items()
    }
    found: dict[str, _Cells] = {kind: {} for kind in _DRM_KIND.values()}
    numbers: set[int] = set()
    for key, value in {**data, **flat}.items():
        match = _DRM.fullmatch(key)
        if match:
            a, b = int(match[2]), int(match[3])
            numbers |= {a, b}
            for pair in ((a, b), (b, a)):
                found[_DRM_KIND[match[1]]][f"GPU{pair[0]}", f"GPU{pair[1]}"] = str(value)
    return [f"GPU{k}" for k in sorted(numbers)], found


def _amd(page: Page, line: int, data: list[dict[str, Any]]) -> tuple[list[str], dict[str, _Cells]]:
    found: dict[str, _Cells] = {kind: {} for kind in _MAPS.values()}
    names = [_name(own, k) for k, own in enumerate(data)]
    numbers = {f"gpu_{own.get('gpu', k)}": names[k] for k, own in enumerate(data)}
    for name, own in zip(names, data):
        links = own.get("links", [])
        if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
            raise page.error(line, f"links of {brief(name)} are no list of mappings")
        for k, link in enumerate(links):
            for key, kind in _LINKS.items():
                if key in link:
                    found[kind][name, _name(link, k)] = str(link[key])
        for key, kind in _MAPS.items():
            if isinstance(own.get(key), dict):
                for other, value in own[key].items():
                    found[kind][name, numbers.get(other, other)] = str(value)
    return names, found


def _name(own: dict[str, Any], position: int) -> str:
    return str(own.get("bdf") or f"GPU{own.get('gpu', position)}")[:40]


def _grid(page: Page, line: int, kind: str, names: list[str], cells: _Cells,
          is_cell: Callable[[str], bool]) -> Grid:  # fmt: skip
    grid = Grid(f"the JSON's {kind} of links", line, tuple(names))
    for a in names:
        row = []
        for b in names:
            cell = "0" if a == b and kind in ("weight", "hops") else cells.get((a, b))
            if cell is None and a == b:
                cell = "N/A"
            if cell is None:
                raise page.error(
                    line,
                    f"{grid.what} has none from {brief(a)} to {brief(b)}: "
                    "cut short? paste it whole",
                )
            if not is_cell(cell):
                raise page.error(
                    line,
                    f"{grid.what} from {brief(a)} to {brief(b)} is {brief(cell)}, which is none",
                )
            row.append(cell)
        grid.rows[a] = Row(line, tuple(row))
    return grid
