"""The GPU-GPU links of an hwloc XML file: its NVLink and xGMI matrices, as links between objects.

Owns how <distances2> and <distances2hetero> are read and what their figures mean. Knows no graph
and no PCI tree. Every failure is a FormatError that opens with file and line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..xml_tree import Element, Notes
from .devices import info

__all__ = ["Pair", "pairs_of"]

_OBJECT_LIMIT = 1024  # objects of one matrix
_WHOLE = re.compile(r"[0-9]{1,20}")
_TYPED = re.compile(r"([A-Za-z][A-Za-z0-9]{0,30}):([0-9]{1,20})")
_RATE_LIMIT = 100_000_000  # MB/s
_PLACEHOLDER = 100_000  # MB/s hwloc writes for any xGMI with ROCm SMI (topology-rsmi.c)
_LEGACY = 50_000  # MB/s: what older amdgpu drivers give every xGMI link


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two objects that scale-up links join. rate: B/s per direction, or links: how many, not both.

    kind: "nvlink" or "xgmi".
    """

    a: Element
    b: Element
    kind: str
    line: int
    rate: float = 0.0
    links: float = 0.0


@dataclass(frozen=True, slots=True)
class _Matrix:
    element: Element
    objects: list[Element]
    values: list[list[int]]


class _Index:
    """Finds the objects of a file by their gp_index, or by type and os_index."""

    def __init__(self, root: Element) -> None:
        self.gp: dict[int, Element] = {}
        self.os: dict[tuple[str, int], Element] = {}
        for element in root.walk():
            if element.name != "object":
                continue
            gp, os = element.integer("gp_index"), element.integer("os_index")
            if gp is not None:
                self.gp.setdefault(gp, element)
            if os is not None:
                self.os.setdefault((element.text("type"), os), element)


def _words(matrix: Element, name: str, limit: int) -> list[str]:
    """Return the blank-separated words of all children called `name`."""
    words = " ".join("".join(child.words) for child in matrix.named(name)).split()
    if len(words) != limit:
        raise matrix.error(f"<{matrix.name}> has {len(words)} {name}: {limit} were expected")
    return words


def _objects(matrix: Element, count: int, index: _Index) -> list[Element]:
    found: list[Element] = []
    kind, by_os = matrix.text("type"), matrix.text("indexing") == "os"
    for word in _words(matrix, "indexes", count):
        typed = _TYPED.fullmatch(word)
        if typed is None and not _WHOLE.fullmatch(word):
            raise matrix.error(f"<{matrix.name}> index {word[:40]!r} is not a whole number")
        own, number = (typed[1], int(typed[2])) if typed else (kind, int(word))
        element = index.os.get((own, number)) if by_os else index.gp.get(number)
        if element is None:
            what = "os_index" if by_os else "gp_index"
            raise matrix.error(f"<{matrix.name}> names {own[:30]} {number}: no object has this "
                               f"{what}")  # fmt: skip
        found.append(element)
    return found


def _matrix(element: Element, index: _Index) -> _Matrix:
    count = element.integer("nbobjs")
    if count is None or not 1 <= count <= _OBJECT_LIMIT:
        raise element.error(f"<{element.name}> nbobjs {element.text('nbobjs')[:20]!r}: expected 1 "
                            f"to {_OBJECT_LIMIT}")  # fmt: skip
    objects = _objects(element, count, index)
    words = _words(element, "u64values", count * count)
    bad = next((word for word in words if not _WHOLE.fullmatch(word)), None)
    if bad is not None:
        raise element.error(f"<{element.name}> value {bad[:40]!r} is not a whole number")
    values = [int(word) for word in words]
    rows = [values[i * count : (i + 1) * count] for i in range(count)]
    return _Matrix(element, objects, rows)


def _rates(matrix: _Matrix, notes: Notes) -> dict[tuple[int, int], int]:
    """Return MB/s by pair of places i < j, without zeros."""
    found: dict[tuple[int, int], int] = {}
    for i, row in enumerate(matrix.values):
        for j in range(i + 1, len(row)):
            one, other = row[j], matrix.values[j][i]
            if one != other:
                notes.add("a scale-up matrix has other figures one way than back: the smaller is "
                          "taken", matrix.element.line)  # fmt: skip
            rate = min(one, other) or max(one, other)
            if rate > _RATE_LIMIT:
                raise matrix.element.error(f"{rate} MB/s between two devices is absurd")
            if rate:
                found[i, j] = rate
    return found


def _nvlinks(matrix: _Matrix, notes: Notes) -> list[Pair]:
    objects, line = matrix.objects, matrix.element.line
    return [
        Pair(objects[i], objects[j], "nvlink", line, rate=rate * 1e6)
        for (i, j), rate in _rates(matrix, notes).items()
    ]


def _xgmi(matrix: _Matrix, hops: dict[frozenset[int], int], notes: Notes) -> list[Pair]:
    """Return xGMI pairs: those one hop apart, counted in links where the figures allow it."""
    objects, line = matrix.objects, matrix.element.line
    found = _rates(matrix, notes)
    direct = {
        (i, j): rate
        for (i, j), rate in found.items()
        if hops.get(frozenset((id(objects[i]), id(objects[j]))), 1) <= 1
    }
    if len(direct) < len(found):
        notes.add("xGMI of several hops is reached through peers", line)
    figures = set(direct.values())
    if figures == {_PLACEHOLDER}:
        notes.add("hwloc writes 100000 MB/s for any xGMI: one link between each two GPUs assumed",
                  line)  # fmt: skip
        return [Pair(objects[i], objects[j], "xgmi", line, links=1) for i, j in direct]
    if all(rate % _LEGACY == 0 for rate in figures):
        return [
            Pair(objects[i], objects[j], "xgmi", line, links=rate // _LEGACY)
            for (i, j), rate in direct.items()
        ]
    return [
        Pair(objects[i], objects[j], "xgmi", line, rate=rate * 1e6)
        for (i, j), rate in direct.items()
    ]


def _peers(root: Element, notes: Notes) -> list[Pair]:
    """Return the pairs that XGMIPeers names, for files without a matrix."""
    named = {e.text("name"): e for e in root.walk() if e.text("type") == "OSDev"}
    found: dict[frozenset[str], Pair] = {}
    for name, element in named.items():
        for peer in info(element, "XGMIPeers").split()[:_OBJECT_LIMIT]:
            if peer in named and peer != name:
                pair = Pair(element, named[peer], "xgmi", element.line, links=1)
                found.setdefault(frozenset((name, peer)), pair)
    if found:
        notes.add("xGMI is given by peers only: one link between each two assumed")
    return list(found.values())


def pairs_of(root: Element, notes: Notes) -> list[Pair]:
    """Return the scale-up links of a file, each pair once.

    Raises FormatError when a matrix is not square, has other words than whole numbers, or names
    objects that the file does not have.
    """
    wanted = ("NVLinkBandwidth", "XGMIBandwidth", "XGMIHops")
    elements = [e for e in root.named("distances2", "distances2hetero") if e.text("name") in wanted]
    index = _Index(root) if elements else None
    read = {e.text("name"): _matrix(e, index) for e in elements if index is not None}
    hops: dict[frozenset[int], int] = {}
    if "XGMIHops" in read:
        objects, values = read["XGMIHops"].objects, read["XGMIHops"].values
        hops = {
            frozenset((id(a), id(b))): values[i][j]
            for i, a in enumerate(objects)
            for j, b in enumerate(objects)
        }
    found: list[Pair] = []
    if "NVLinkBandwidth" in read:
        found += _nvlinks(read["NVLinkBandwidth"], notes)
    if "XGMIBandwidth" in read:
        found += _xgmi(read["XGMIBandwidth"], hops, notes)
    return found or _peers(root, notes)
