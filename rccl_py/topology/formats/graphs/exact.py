"""A document of this library as the Topology it was written from.

Owns the checks: every value is of its kind and in range, every vertex and link type is there,
accelerators and NICs are counted from 0. Knows neither XML nor JSON. Every failure is one
FormatError that opens with the place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

import msgspec
import networkx as nx
import numpy as np

from ....errors import FormatError, InvalidArgument
from ....fabric.torus import Torus
from ....links import LINKS, Device, LinkType
from ...build import SCALE_UP, Network, Topology
from ..quantities import MAX_EDGES, MAX_GPUS, clean, shown
from .values import EDGE_VALUES, Document, Item, derived

__all__ = ["topology_from"]

_MAX_NODES = 1_000_000  # as load() takes
_HIGHEST = 1e18
_RULED = ("node", "unlike", "device", "network")  # fields of Topology that are no plain values
# Fields by which something is divided: 0 has no meaning. Ranges of oversubscription as in load().
_LOWEST = {"leaf_nodes": 1, "oversubscription": 1e-3, "pod_oversubscription": 1e-3, "flows": 1,
           "dims": 1, "bandwidth": 1.0, "efficiency": 1e-6, "memory": 1.0, "nodes": 1}  # fmt: skip
_WORDS = {"routing": ("spray", "ecmp", "adaptive"),
          "kind": ("rails", "leaf-spine", "dragonfly", "torus")}  # fmt: skip


@dataclass(slots=True)
class _Reader:
    """The table of link types of a file, and its place for messages."""

    whole: Item
    links: dict[str, LinkType] = field(default_factory=dict)

    def link(self, item: Item, key: str, name: object) -> LinkType:
        if not isinstance(name, str) or (name not in self.links and name not in LINKS):
            item.fail(key, f"link type {shown(name)} is neither in the file's links nor known")
        return self.links[name] if name in self.links else LINKS[name]

    def value(self, item: Item, key: str, value: Any) -> Any:
        """Return a written value as it was."""
        if isinstance(value, list):
            return [self.value(item, key, inner) for inner in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            item.fail(key, f"one of tuple, dict, float and link was expected, found {shown(value)}")
        ((kind, inner),) = value.items()
        if kind == "tuple" and isinstance(inner, list):
            return tuple(self.value(item, key, one) for one in inner)
        if kind == "dict" and isinstance(inner, dict):
            return {name: self.value(item, key, one) for name, one in inner.items()}
        if kind == "float" and inner in ("inf", "-inf", "nan"):
            return float(inner)
        if kind == "link":
            return self.link(item, key, inner)
        item.fail(key, f"{shown(value)} is no value of this format")

    def record(self, key: str, value: Any, kind: Any) -> Any:
        """Return a record of the whole, such as the device, checked against its type."""
        try:
            found = msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            self.whole.fail(key, shown_reason(error))
        if is_dataclass(kind) and isinstance(value, dict):
            known = {own.name for own in fields(kind)}
            extra = next((name for name in value if name not in known), None)
            if extra is not None:
                self.whole.fail(clean(f"{key}.{extra}")[:80],
                                f"is not known: {', '.join(sorted(known))}")  # fmt: skip
            for own in fields(kind):
                self._sane(clean(f"{key}.{own.name}"), own.name, getattr(found, own.name))
        else:
            self._sane(key, key, found)
        return found

    def _sane(self, key: str, name: str, value: Any) -> None:
        """Refuse numbers that no machine has, and texts that would break a line."""
        if isinstance(value, (tuple, list)):
            for one in value:
                self._sane(key, name, one)
        elif isinstance(value, str) and not value.isprintable():
            self.whole.fail(key, "one line of printable text was expected")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            low = _LOWEST.get(name, 0.0)
            if not low <= value <= _HIGHEST:
                self.whole.fail(key, f"{value!r}: a number from {low:g} to {_HIGHEST:g} was "
                                "expected")  # fmt: skip
        known = _WORDS.get(name)
        if known is not None and value not in known:
            self.whole.fail(key, f"{shown(value)}: expected {' or '.join(known)}")


def shown_reason(error: Exception) -> str:
    """Return msgspec's sentence on one line."""
    return " ".join(str(error).split())[:200]


def _number(item: Item, key: str, value: Any, zero: bool) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        item.fail(key, f"{shown(value)}: a number {'of 0 or more' if zero else 'above 0'} was "
                  "expected")  # fmt: skip
    number: float = value
    return number


def _index(item: Item, key: str, most: int) -> int:
    value = item.values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        item.fail(key, f"{shown(value)}: a whole number of 0 to {most - 1} was expected")
    return value


def _add_node(reader: _Reader, graph: nx.DiGraph, item: Item, most: int) -> None:
    name, kind = item.ends[0], item.values.get("kind")
    if name in graph:
        item.fail("id", f"{shown(name)} is given twice")
    if not isinstance(kind, str) or not kind:
        item.fail("kind", f"{shown(kind)}: gpu, nic, switch, pci or cpu was expected")
    values = {key: reader.value(item, key, value) for key, value in item.values.items()}
    if kind in ("gpu", "nic"):
        _index(item, "index", most)
        _index(item, "host", _MAX_NODES)
    if kind == "nic" and not isinstance(values.get("port"), LinkType):
        item.fail("port", "the link type of a NIC's cable was expected")
    graph.add_node(name, **values)


def _check_indices(graph: nx.DiGraph, document: Document) -> None:
    for kind in ("gpu", "nic"):
        own = sorted(d["index"] for _, d in graph.nodes(data=True) if d["kind"] == kind)
        if own != list(range(len(own))):
            raise FormatError(f"{document.where}: the {kind} vertices are not counted 0 to "
                              f"{len(own) - 1} by index, each once")  # fmt: skip
        if kind == "gpu" and not own:
            raise FormatError(f"{document.where}: no vertex of kind gpu is found")
        if kind == "gpu" and len(own) > MAX_GPUS:
            raise FormatError(f"{document.where}: {len(own)} accelerators in one graph: at most "
                              f"{MAX_GPUS} are read")  # fmt: skip


def _add_edge(reader: _Reader, graph: nx.DiGraph, item: Item) -> None:
    a, b = item.ends
    for key, end in (("source", a), ("target", b)):
        if end not in graph:
            item.fail(key, f"{shown(end)} is no vertex of the file")
    if a == b or graph.has_edge(a, b):
        item.fail("target", f"{shown(b)}: a link to itself, or given twice")
    values = item.values
    link = reader.link(item, "link", values.get("link"))
    medium, efficiency = values.get("medium", link.medium), values.get("efficiency")
    if not isinstance(medium, str):
        item.fail("medium", f"{shown(medium)}: a text was expected")
    if efficiency is not None and _number(item, "efficiency", efficiency, False) != link.efficiency:
        link = replace(link, efficiency=efficiency)
    link = link if medium == link.medium else replace(link, medium=medium)
    lanes = _number(item, "lanes", values.get("lanes", 1), False)
    own: dict[str, Any] = {"link": link, "lanes": lanes} | derived(link, lanes)
    for key, zero in (("raw", False), ("bandwidth", False), ("message", True)):
        if key in values:
            own[key] = _number(item, key, values[key], zero)
    if "latency" in values:
        own["latency"] = _latency(item, values["latency"])
    rest = {k: reader.value(item, k, v) for k, v in values.items() if k not in EDGE_VALUES}
    graph.add_edge(a, b, **own, **rest)


def _latency(item: Item, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, list) or len(value) != 3:
        item.fail("latency", f"{shown(value)}: three numbers (LL, LL128, Simple) were expected")
    ll, ll128, simple = (_number(item, "latency", one, True) for one in value)
    return ll, ll128, simple


def _torus(reader: _Reader, key: str, value: Any) -> Torus:
    """Return the mark of a torus, of which routes are computed."""
    try:
        own = {name: reader.value(reader.whole, key, one) for name, one in value.items()}
        ports = own.pop("port_node", None)
        return Torus(**own, port_node=None if ports is None else np.array(ports, dtype=np.int32))
    except (TypeError, ValueError, AttributeError, OverflowError, InvalidArgument) as error:
        reader.whole.fail(key, f"is no torus: {shown_reason(error)}")


def _graph(reader: _Reader, document: Document, values: Any, most: int) -> nx.DiGraph:
    if not isinstance(values, dict):
        reader.whole.fail("graph", f"{shown(values)}: named values were expected")
    graph = nx.DiGraph()
    for key, value in values.items():
        if isinstance(value, dict) and set(value) == {"torus"}:
            graph.graph[key] = _torus(reader, f"graph.{key}", value["torus"])
        else:
            graph.graph[key] = reader.value(reader.whole, f"graph.{key}", value)
    for item in document.nodes:
        _add_node(reader, graph, item, most)
    for item in document.edges:
        _add_edge(reader, graph, item)
    for item in document.edges:
        _need_way_back(graph, item)
    _check_indices(graph, document)
    return graph


def _need_way_back(graph: nx.DiGraph, item: Item) -> None:
    """Refuse a host link of one direction: what leaves a node by a NIC also enters by it."""
    a, b = item.ends
    if graph.edges[a, b]["link"].medium not in SCALE_UP and not graph.has_edge(b, a):
        item.fail("target", f"{shown(a)} -> {shown(b)} has no way back, which links of a host need")


def _unlike(reader: _Reader, document: Document, value: Any) -> tuple[tuple[int, nx.DiGraph], ...]:
    """Return the graphs of nodes that are not as the others."""
    if not isinstance(value, list):
        reader.whole.fail("unlike", "a list was expected")
    found = []
    for k, one in enumerate(value):
        where = f"{reader.whole.where}unlike[{k}]"
        good = isinstance(one, dict) and isinstance(one.get("node"), int) and all(
            isinstance(one.get(key), list) and all(isinstance(row, dict) for row in one[key])
            for key in ("nodes", "edges"))  # fmt: skip
        if not good:
            reader.whole.fail(f"unlike[{k}]", "node, graph, nodes and edges were expected")
        own = Document(document.path, {}, where=where)
        for i, row in enumerate(one["nodes"]):
            rest = {key: v for key, v in row.items() if key != "id"}
            own.nodes.append(Item((str(row.get("id")),), rest, f"{where}.nodes[{i}]."))
        for i, row in enumerate(one["edges"]):
            rest = {key: v for key, v in row.items() if key not in ("source", "target")}
            ends = str(row.get("source")), str(row.get("target"))
            own.edges.append(Item(ends, rest, f"{where}.edges[{i}]."))
        found.append((one["node"], _graph(reader, own, one.get("graph", {}), MAX_GPUS)))
    return tuple(found)


def topology_from(document: Document, whole: Item) -> Topology:
    """Return the Topology that a document of this library holds.

    whole: its values of the whole, whose `where` opens messages. Raises FormatError.
    """
    reader, values = _Reader(whole), document.values
    if len(document.edges) > MAX_EDGES:
        raise FormatError(f"{document.where}: {len(document.edges)} links: at most {MAX_EDGES} "
                          "are read")  # fmt: skip
    table = values.get("links", {})
    if not isinstance(table, dict):
        whole.fail("links", "link types by name were expected")
    reader.links = {name: reader.record(f"links.{name}"[:80], row, LinkType)
                    for name, row in table.items()}  # fmt: skip
    hints = get_type_hints(Topology)
    plain = [f.name for f in fields(Topology)
             if f.name in values and f.name not in _RULED]  # fmt: skip
    own = {key: reader.record(key, values[key], hints[key]) for key in plain}
    own.setdefault("name", document.path.stem)
    if not 1 <= own.setdefault("nodes", 1) <= _MAX_NODES:
        whole.fail("nodes", f"{own['nodes']}: 1 to {_MAX_NODES} was expected")
    for key, kind in (("device", Device), ("network", Network)):
        if key not in values:
            whole.fail(key, "is missing")
        own[key] = reader.record(key, values[key], kind)
    own["unlike"] = _unlike(reader, document, values.get("unlike", []))
    own["node"] = _graph(reader, document, values.get("graph", {}), MAX_GPUS)
    return Topology(**own)
