"""Read ASTRA-sim's analytical network file (YAML or JSON) as one graph of all its NPUs.

Owns what a dimension (Ring, FullyConnected, Switch) becomes. The meaning follows the source of
astra-network-analytical: rank r has coordinate ``r // prod(npus[:d]) % npus[d]`` in dimension d;
bandwidth and latency are those of every link of a dimension, per direction, not a share of what
an NPU has; 1 GB/s is 2**30 B/s; a Ring is joined both ways; a Switch is two links and two
latencies away. Its protocols, launches and message overheads do not exist: such costs are those
of the generic device, said in a note.

    topology: [Ring, Switch], npus_count: [4, 2]      gpu0 - gpu1 - gpu2 - gpu3 - (gpu0)
                                                        |                 (d1-switch0 of 0 and 4)
                                                      gpu4 - gpu5 - gpu6 - gpu7 - (gpu4)
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import yaml

from ...errors import FormatError
from ...links import DEVICES, LinkType
from ..build import Topology, new_graph
from .quantities import (
    MAX_EDGES,
    MAX_GPUS,
    bare_link,
    checked_rate,
    checked_time,
    clean,
    join,
    read_text,
    shown,
)

__all__ = ["is_astra_sim", "read_astra_sim"]

_LIMIT = 64 << 10  # bytes; real files have four lines, and PyYAML reads some 100 kB/s
_BRACKETS = 64  # real files have four lists; PyYAML is slow on many
_GIGA = float(1 << 30)  # bw_GBps_to_Bpns() of common/NetworkFunction.cc
_NANO = 1e9  # ns a second
_MAX_DIMENSIONS = 12  # 2**12 NPUs are the limit, and a dimension has at least two
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_OLD = {"dimensions-count", "units-count", "topology-name", "topologies-per-dim"}
_SOURCE = "ASTRA-sim network file"

# Spellings of ASTRA-sim 1.x configurations and of hand-written files.
_ALIASES = {"ring": "Ring", "fullyconnected": "FullyConnected", "alltoall": "FullyConnected",
            "fc": "FullyConnected", "switch": "Switch"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Value:
    """A YAML value that remembers its line: a text, a list, or neither (None)."""

    text: str | None
    items: list[_Value] | None
    line: int


def is_astra_sim(text: str) -> bool:
    """Say whether `text` looks like an ASTRA-sim analytical network file."""
    head = text[:_LIMIT]

    def has(key: str) -> bool:
        return bool(re.search(rf"(?m)(?:^|[{{,\s])[\"']?{key}[\"']?[ \t]*:", head))

    # Files of ASTRA-sim 1.x are recognised too, so that its reader says what to write instead.
    return (has("npus_count") and has("topology")) or (
        has("dimensions-count") and has("units-count")
    )


def _value(node: yaml.Node) -> _Value:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return _Value(str(node.value), None, line)
    if isinstance(node, yaml.SequenceNode):
        flat = [
            _Value(str(n.value) if isinstance(n, yaml.ScalarNode) else None, None,
                   n.start_mark.line + 1)
            for n in node.value
        ]  # fmt: skip
        return _Value(None, flat, line)
    return _Value(None, None, line)


def _mapping(path: Path, text: str) -> dict[str, _Value]:
    """Return the file's top-level keys and values, known or not."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FormatError(f"{path}:{line}: {clean(str(error.problem or error.context))}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{path}: not YAML: {clean(' '.join(str(error).split()))}") from None
    if not isinstance(root, yaml.MappingNode):
        raise FormatError(f"{path}:1: the keys {', '.join(_KEYS)} were expected, found none")
    found: dict[str, _Value] = {}
    for key, value in root.value:
        line, name = key.start_mark.line + 1, str(key.value)
        if not isinstance(key, yaml.ScalarNode):
            raise FormatError(f"{path}:{line}: keys must be texts")
        if name in found:
            raise FormatError(f"{path}:{line}: key {shown(name)} is given twice")
        if name in _OLD:
            raise FormatError(
                f"{path}:{line}: {shown(name)} is of ASTRA-sim 1.x network files, which are not "
                "read: give topology, npus_count, bandwidth and latency as ASTRA-sim 2 does"
            )
        found[name] = _value(value)
    for name in _KEYS:
        if name not in found:
            near = difflib.get_close_matches(name, [k for k in found if k not in _KEYS], 1)
            hint = f" (is it {shown(near[0])} on line {found[near[0]].line}?)" if near else ""
            raise FormatError(f"{path}:1: key {name} is missing{hint}: one value a dimension is "
                              "expected")  # fmt: skip
    return found


def _items(path: Path, key: str, value: _Value) -> list[_Value]:
    items = [value] if value.text is not None else value.items
    if not items:
        raise FormatError(f"{path}:{value.line}: {key}: a list of one value a dimension was "
                          "expected, such as [8, 2]")  # fmt: skip
    if len(items) > _MAX_DIMENSIONS:
        raise FormatError(f"{path}:{value.line}: {key}: {len(items)} dimensions, at most "
                          f"{_MAX_DIMENSIONS} are read")  # fmt: skip
    for item in items:
        if item.text is None:
            raise FormatError(f"{path}:{item.line}: {key}: a list in a list: one value a dimension "
                              "was expected")  # fmt: skip
    return items


def _number(path: Path, key: str, item: _Value,
            unit: Callable[[float], float]) -> float:  # fmt: skip
    text = (item.text or "")[:40]
    try:
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
            raise ValueError(f"{shown(text)} is not a number")
        return unit(float(text))
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path}:{item.line}: {key}: {error}") from None


def _kind(path: Path, item: _Value) -> str:
    text = item.text or ""
    kind = _ALIASES.get(re.sub(r"[_\-\s]", "", text.lower()))
    if kind is None:
        raise FormatError(f"{path}:{item.line}: topology {shown(text)} is not known: expected "
                          "Ring, FullyConnected or Switch")  # fmt: skip
    return kind


def _count(path: Path, item: _Value) -> int:
    text = item.text or ""
    if not re.fullmatch(r"[+]?\d{1,9}", text) or int(text) < 2:
        raise FormatError(f"{path}:{item.line}: npus_count: {shown(text)}: a whole number of 2 or "
                          "more was expected")  # fmt: skip
    return int(text)


@dataclass(frozen=True, slots=True)
class _Dimension:
    kind: str
    npus: int
    bandwidth: float  # B/s a link and direction
    latency: float  # s a link


def _dimensions(path: Path, found: dict[str, _Value]) -> list[_Dimension]:
    items = {key: _items(path, key, found[key]) for key in _KEYS}
    n = len(items["topology"])
    for key in _KEYS[1:]:
        if len(items[key]) != n:
            raise FormatError(
                f"{path}:{found[key].line}: {key} has {len(items[key])} value(s), topology has "
                f"{n}: one value a dimension is expected"
            )
    return [
        _Dimension(
            _kind(path, items["topology"][d]),
            _count(path, items["npus_count"][d]),
            _number(path, "bandwidth", items["bandwidth"][d], lambda x: checked_rate(x * _GIGA)),
            _number(path, "latency", items["latency"][d], lambda x: checked_time(x / _NANO)),
        )
        for d in range(n)
    ]


def _directed(dimension: _Dimension) -> float:
    """Return the directed links an NPU has in a dimension, those to and from a switch halved."""
    if dimension.kind == "FullyConnected":
        return dimension.npus - 1
    return 2 if dimension.kind == "Switch" or dimension.npus > 2 else 1


def _check_size(path: Path, dimensions: list[_Dimension]) -> int:
    npus = math.prod(d.npus for d in dimensions)
    if npus > MAX_GPUS:
        raise FormatError(f"{path}: {npus} NPUs: at most {MAX_GPUS} are read as one graph; "
                          "describe one node and join it with nodes and network")  # fmt: skip
    edges = round(npus * sum(_directed(d) for d in dimensions))
    if edges > MAX_EDGES:
        raise FormatError(f"{path}: {edges} directed links: at most {MAX_EDGES} are read as one "
                          "graph; use Switch, or fewer NPUs")  # fmt: skip
    return npus


def _groups(npus: int, stride: int, count: int) -> Iterator[list[str]]:
    """Return the NPUs of every instance of a dimension, in order of its lowest NPU."""
    for low in range(npus):
        if low // stride % count == 0:
            yield [f"gpu{low + i * stride}" for i in range(count)]


def _build(graph: nx.DiGraph, kind: str, names: list[str], link: LinkType, switch: str) -> None:
    if kind == "Ring":
        ring = zip(names, names[1:] + names[:1], strict=True)
        join(graph, list(ring)[: len(names) if len(names) > 2 else 1], link)
    elif kind == "FullyConnected":
        join(graph, combinations(names, 2), link)
    else:
        graph.add_node(switch, kind="switch")
        join(graph, ((name, switch) for name in names), link)


def _notes(dimensions: list[_Dimension], found: dict[str, _Value]) -> tuple[str, ...]:
    shape = " x ".join(f"{d.kind}({d.npus})" for d in dimensions)
    notes = [
        f"ASTRA-sim {shape}: bandwidth is per link and direction, 1 GB/s = 2**30 B/s, and latency "
        "per link, as its analytical backend has them",
        "ASTRA-sim files name no accelerator: launch and memory are assumed (generic device)",
    ]
    if any(d.kind == "Switch" for d in dimensions):
        notes.append("a Switch is two latencies away, and its bandwidth is paid once (as in "
                     "congestion_unaware; the aware backend stores and forwards)")  # fmt: skip
    if len(dimensions) > 1:
        notes.append("all dimensions are one scale-up domain; host is the coordinate beyond "
                     "dimension 0")  # fmt: skip
    odd = [clean(name)[:40] for name in found if name not in _KEYS]
    if odd:
        notes.append(f"key(s) {', '.join(odd[:8])} are ignored, as ASTRA-sim does")
    return tuple(notes)


def read_astra_sim(path: Path) -> Topology:
    """Return the machine that the ASTRA-sim analytical network file at `path` describes.

    Raises FormatError (file, line, what is wrong).
    """
    text = read_text(path, "an ASTRA-sim network file", _LIMIT)
    if text.lstrip()[:1] == "{":
        text = text.replace("\t", " ")  # JSON may be indented by tabs, YAML may not
    if text.count("[") + text.count("{") > _BRACKETS:
        raise FormatError(f"{path}:1: no ASTRA-sim network file has so many brackets")
    found = _mapping(path, text)
    dimensions = _dimensions(path, found)
    npus = _check_size(path, dimensions)
    graph, stride = new_graph(path.stem), 1
    inner = dimensions[0].npus if len(dimensions) > 1 else npus
    # Two-level algorithms work inside all dimensions but the last, and across that one.
    group = npus // dimensions[-1].npus if len(dimensions) > 1 else npus
    for i in range(npus):
        own: dict[str, Any] = {"kind": "gpu", "index": i, "host": i // inner, "group": i // group}
        graph.add_node(f"gpu{i}", **own)
    for d, dimension in enumerate(dimensions):
        link = bare_link(f"astra-{dimension.kind.lower()}-d{d}", dimension.bandwidth,
                         dimension.latency, _SOURCE)  # fmt: skip
        for k, names in enumerate(_groups(npus, stride, dimension.npus)):
            _build(graph, dimension.kind, names, link, f"d{d}-switch{k}")
        stride *= dimension.npus
    return Topology(path.stem, graph, DEVICES["generic"], notes=_notes(dimensions, found))
