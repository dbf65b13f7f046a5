"""The matrix of ``nvidia-smi topo -m``, also with the classes that rccl-topo adds to it.

Owns what a head, a row and a cell of it are, and the columns after the matrix. Knows no graph.

            GPU0   GPU1   NIC0   CPU Affinity   NUMA Affinity   GPU NUMA ID
    GPU0     X     NV12   PXB    48-63,176-191  3               N/A
    GPU1    NV12    X     SYS    16-31,144-159  1               N/A
    NIC0    PXB    SYS     X
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....links import DEVICES
from .device import amd_device, is_grace, named_device, nvidia_device
from .node import LEVELS, Node, Pair
from .page import Grid, Page, brief, read_grid

__all__ = ["find_matrix", "is_head", "read_matrix"]

_GPU = re.compile(r"GPU\d{1,4}")
_NAME = re.compile(r"[A-Za-z][\w.\-:/]{0,63}")
_COUNTED = re.compile(r"(NV|XGMI|UAL)(\d{1,3}(?:\.\d{1,3})?)")
_ALIKE = {  # cells of other versions: NODE stays inside one NUMA node, as PHB does in our classes
    "NODE": "PHB", "SOC": "SYS", "QPI": "SYS", "PSB": "PIX", "INT": "PIX",
}  # fmt: skip
_PLAIN = frozenset(LEVELS) | frozenset(_ALIKE) | {"NVB", "PXN", "DIS"}
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})  # cells of topo -p2p
_AFTER = re.compile(r"\b(?:CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU\s*$|NUMA\s*$)")
_LEGEND = re.compile(r"^\s*(NIC\d{1,4}):\s*([\w.\-]{1,64})\s*$")
_CPUS = re.compile(r"\d+(?:[-,]\d+)*,?")
_HEAD_LIMIT = 64  # matrices looked at in one text
_WHAT = "the nvidia-smi matrix"


def _is_cell(word: str) -> bool:
    return word == "X" or word in _PLAIN or _COUNTED.fullmatch(word) is not None


def is_head(line: str) -> bool:
    """Return whether a cleaned line can be the head of a matrix: GPU names, then NIC names."""
    words = _AFTER.split(line, maxsplit=1)[0].split()
    if not words or not _GPU.fullmatch(words[0]):
        return False
    if len(words) == 1:
        return True
    return not (_is_cell(words[1]) or words[1] in _PEER) and all(map(_NAME.fullmatch, words))


def find_matrix(page: Page) -> list[int]:
    """Return the lines of every head that is followed by a row of such a matrix."""
    found = []
    for number, line in enumerate(page.lines, 1):
        if "GPU" in line and is_head(line):
            first = next((text.split() for text in page.lines[number : number + 4] if text.strip()),
                         [])  # fmt: skip
            if _GPU.fullmatch(first[0] if first else "") and any(
                _is_cell(word) or word in _PEER for word in first[1:]
            ):
                found.append(number)
                if len(found) == _HEAD_LIMIT:
                    break
    return found


def _peer_access(page: Page, head: int) -> bool:
    """Return whether the matrix under `head` is that of topo -p2p."""
    for line in page.lines[head:]:
        words = line.split()
        if words and (is_head(line) or not _GPU.fullmatch(words[0])):
            break
        if _PEER.intersection(words[1:]):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a GPU is: NUMA node, CPU list as printed, NUMA node of its own memory."""

    numa: int | None
    cpus: str
    memory: int | None


def read_matrix(page: Page, heads: Sequence[int]) -> Node:
    """Return what the first matrix of the text says. Raises FormatError."""
    kinds = {head: _peer_access(page, head) for head in heads}
    usable = [head for head in heads if not kinds[head]]
    if not usable:
        raise page.error(
            heads[0],
            "this is the matrix of nvidia-smi topo -p2p: it says who may "
            "access whom, not by what path: paste nvidia-smi topo -m",
        )
    head = usable[0]
    columns = _AFTER.split(page.lines[head - 1], maxsplit=1)[0].split()
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    if columns[: len(gpus)] != gpus:
        raise page.error(head, f"{_WHAT}: a GPU column stands after a NIC column")
    grid = read_grid(page, _WHAT, head, columns, gpus, _is_cell)
    node = Node(page, [], columns[len(gpus) :], _pairs(page, grid), DEVICES["generic"])
    node.nics = _named(page, node.nics)
    _name_device(node, _add_places(page, grid, gpus, node))
    if any(name not in grid.rows for name in columns):
        node.notes.add("NIC rows missing: how NICs lie to each other is known by way of GPUs only")
    if len(usable) > 1:
        node.notes.add(f"{len(usable)} matrices in the text: the first is read, on line {head}")
    return node


def _pairs(page: Page, grid: Grid) -> dict[tuple[int, int], Pair]:
    """Return the pairs, after holding both halves of the matrix against each other."""
    pairs: dict[tuple[int, int], Pair] = {}
    for i, name in enumerate(grid.columns):
        row = grid.rows.get(name)
        if row is None:
            continue
        for j, cell in enumerate(row.cells):
            other = grid.columns[j]
            if (i == j) != (cell == "X"):
                raise page.error(
                    row.line,
                    f"row {brief(name)}, column {brief(other)} of {_WHAT}: "
                    f"{cell} found: X was expected on the diagonal, and only there",
                )
            if i == j:
                continue
            own, key = _pair(page, row.line, cell), (min(i, j), max(i, j))
            if own.lanes and not _GPU.fullmatch(grid.columns[key[1]]):
                raise page.error(
                    row.line,
                    f"row {brief(name)}, column {brief(other)} of {_WHAT} is {cell}: links of that "
                    "kind join GPUs only, a NIC has a PCIe class",
                )
            if pairs.setdefault(key, own) != own:
                raise page.error(
                    row.line,
                    f"row {brief(name)}, column {brief(other)} of {_WHAT} is {cell}, but row "
                    f"{brief(other)}, column {brief(name)} is {grid.rows[other].cells[i]}: "
                    "both directions must agree",
                )
    return pairs


def _pair(page: Page, line: int, cell: str) -> Pair:
    counted = _COUNTED.fullmatch(cell)
    if counted is None:
        return Pair(_ALIKE.get(cell, cell))
    lanes = float(counted[2])
    if not lanes:
        raise page.error(line, f"{_WHAT}: {cell} joins nothing: a link count above 0 was expected")
    return Pair(counted[1], lanes)


def _named(page: Page, nics: list[str]) -> list[str]:
    """Return the NICs' names, by the NIC Legend where there is one."""
    legend: dict[str, str] = {}
    for line in page.lines:
        found = _LEGEND.match(line) if "NIC" in line else None
        if found:
            legend.setdefault(found[1], found[2])
    return [legend.get(name, name) for name in nics]


def _add_places(page: Page, grid: Grid, gpus: list[str], node: Node) -> list[_Place]:
    """Add the GPUs, and return where each is."""
    places = [_place(page, grid, name) for name in gpus]
    by_numa = all(place.numa is not None for place in places)
    for k, place in enumerate(places):
        own: dict[str, Any] = {"numa": place.numa} if place.numa is not None else {}
        node.gpus.append({**own, "dev": int(gpus[k][3:])})
        node.places.append(str(place.numa) if by_numa else place.cpus)
    if any(place.memory is not None for place in places):
        node.notes.add(
            "GPU NUMA ID given: GPU memory is a NUMA node of its own, so a coherent "
            "CPU link exists; its rate is not in the text: only PCIe is modelled"
        )
    return places


def _place(page: Page, grid: Grid, name: str) -> _Place:
    """Return what stands behind a row's cells; pastes lose tabs, so blanks may be all there is."""
    row = grid.rows[name]
    head, line = page.lines[grid.line - 1], page.lines[row.line - 1]
    columns = [word for word in ("CPU", "NUMA Aff", "GPU NUMA") if word in head]
    if "\t" in head and "\t" in line:
        heads = [part.strip() for part in head.split("\t")]
        parts = [part.strip() for part in line.split("\t")] + [""] * 4
        if "CPU Affinity" not in heads[: len(parts) - 4]:
            return _Place(None, "", None)
        at = heads.index("CPU Affinity")
        # The tool prints two tabs behind the NUMA node.
        return _Place(_first(parts[at + 1]), parts[at], _first(parts[at + 3] or parts[at + 2]))
    words = [word for text in row.rest for word in text.replace("N/A", " N/A ").split()]
    if len(columns) == 3 and len(words) == 2 and not re.search("[-,]", words[0]):
        words = ["", *words]
    words += [""] * 3
    cpus = words[0] if "CPU" in head and _CPUS.fullmatch(words[0]) else ""
    return _Place(_first(words[1]) if len(columns) > 1 else None, cpus, _first(words[2]))


def _first(text: str) -> int | None:
    """Return the first number of a list such as "0,3-9"; None of N/A."""
    found = re.match(r"\d{1,6}(?!\d)", text)
    return int(found[0]) if found else None


def _name_device(node: Node, places: list[_Place]) -> None:
    """Set the device: the one the text names, else one that the links fit."""
    lanes: dict[int, float] = dict.fromkeys(range(len(node.gpus)), 0.0)
    kinds, largest = set(), 0.0
    for (a, b), own in node.pairs.items():
        if own.lanes:
            kinds.add(own.kind)
            lanes[a] += own.lanes
            lanes[b] += own.lanes
            largest = max(largest, own.lanes)
    named = named_device(node.page.lines)
    node.grace = is_grace(
        named[0] if named is not None else DEVICES["generic"],
        [place.cpus for place in places],
        all(place.memory is not None for place in places),
    )
    node.amd = "XGMI" in kinds or (named is not None and named[0].name.startswith("mi"))
    if named is not None:
        node.device, remark, _ = named
    elif "XGMI" in kinds:
        most = max(sum(k in pair for pair, own in node.pairs.items() if own.lanes) for k in lanes)
        relayed = any(own.kind == "NVB" for own in node.pairs.values())
        node.device, remark = amd_device(most, relayed, len(node.gpus), 0)
    elif "UAL" in kinds:
        node.device, remark = DEVICES["mi455x"], "UALink in the matrix: AMD Instinct MI455X assumed"
    else:
        places_of = Counter(place for place in node.places if place)
        sharing = max(places_of.values(), default=2) if node.grace else 0
        total = max(lanes.values(), default=0.0)
        node.device, remark = nvidia_device(largest, total, len(lanes), sharing)
    node.notes.add(remark)
