"""A Topology as named values: what GraphML and node-link files of this library hold.

Owns the document both formats share: values of the whole, of every vertex and of every directed
link, in their order; and how a Topology is written into one (graph_exact reads it back). Knows
neither XML nor JSON. A link names its type in a table of link types;
its medium and efficiency stand beside it for other readers. What follows from type and lanes may
be absent, and is absent in large graphs.

Values beyond text, number, truth, nothing and list are written {"tuple": […]}, {"dict": {…}},
{"float": "inf"}, {"link": name} and {"torus": {…}}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import networkx as nx
import numpy as np

from ....errors import FormatError, InvalidArgument
from ....fabric.torus import Torus
from ....links import LinkType
from ...build import Topology

__all__ = ["EDGE_VALUES", "FORMAT", "Document", "Item", "derived", "document_of", "is_own"]

FORMAT = "rccl_py topology 1"
_COMPACT = 8000  # links: above, what follows from type and lanes is left out
_OWN = ("name", "device", "nodes", "network", "unlike")  # fields with a rule of their own
EDGE_VALUES = ("link", "medium", "lanes", "raw", "bandwidth", "efficiency", "latency", "message")


@dataclass(slots=True)
class Item:
    """A vertex or a directed link: its name(s), its values, and where it stands in the file.

    `where` is a prefix to which the name of a value is joined: ``file:12: `` or ``file: nodes[3].``
    """

    ends: tuple[str, ...]
    values: dict[str, Any]
    where: str = ""

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise the FormatError of one value."""
        raise FormatError(f"{self.where}{key}: {what}")


@dataclass(slots=True)
class Document:
    """A graph file: values of the whole, vertices and links in order."""

    path: Path
    values: dict[str, Any]
    nodes: list[Item] = field(default_factory=list)
    edges: list[Item] = field(default_factory=list)
    directed: bool = True
    where: str = ""


def is_own(document: Document) -> bool:
    """Say whether `document` was written by this library."""
    return document.values.get("format") == FORMAT


@dataclass(slots=True)
class _Table:
    """Link types by a name that is theirs alone."""

    names: dict[LinkType, str] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)

    def name(self, link: LinkType) -> str:
        if link not in self.names:
            name, k = link.name, 2
            while name in self.rows:
                name, k = f"{link.name}#{k}", k + 1
            self.names[link] = name
            self.rows[name] = _record(link)
        return self.names[link]


def _record(value: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(value)
    return built


def _written(value: Any, table: _Table, where: str) -> Any:
    """Return a value in words of the document."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, LinkType):
        return {"link": table.name(value)}
    if isinstance(value, (list, tuple)):
        inner = [_written(item, table, where) for item in value]
        return inner if isinstance(value, list) else {"tuple": inner}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _written(item, table, where) for key, item in value.items()}}
    raise InvalidArgument(f"{where}: a {type(value).__name__} cannot be written into a graph file")


def _graph_values(graph: nx.DiGraph, table: _Table) -> dict[str, Any]:
    """Return the values of a graph; a torus, which marks computed routes, by its fields."""
    found: dict[str, Any] = {}
    for key, value in graph.graph.items():
        where = f"graph value {key}"
        if isinstance(value, Torus):
            rows = {own.name: getattr(value, own.name) for own in fields(Torus)}
            flat = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in rows.items()}
            found[str(key)] = {"torus": {k: _written(v, table, where) for k, v in flat.items()}}
        else:
            found[str(key)] = _written(value, table, where)
    return found


def _edge_values(own: dict[str, Any], table: _Table, compact: bool, where: str) -> dict[str, Any]:
    link: LinkType = own["link"]
    known = {
        "link": table.name(link), "medium": link.medium, "lanes": own["lanes"], "raw": own["raw"],
        "bandwidth": own["bandwidth"], "efficiency": link.efficiency,
        "latency": list(own["latency"]), "message": own["message"],
    }  # fmt: skip
    if compact:
        usual = derived(link, own["lanes"])
        kept = {"link", *(key for key, value in usual.items() if own[key] != value)}
        known = {key: value for key, value in known.items() if key in kept or key == "lanes"}
    rest = {k: _written(v, table, f"{where}: {k}") for k, v in own.items() if k not in EDGE_VALUES}
    return {k: _written(v, table, f"{where}: {k}") for k, v in known.items()} | rest


def derived(link: LinkType, lanes: float) -> dict[str, Any]:
    """Return what a link of a type has unless it says otherwise."""
    raw = link.bandwidth * lanes
    return {"raw": raw, "bandwidth": raw * link.efficiency, "latency": link.latency,
            "message": link.message}  # fmt: skip


def _parts(graph: nx.DiGraph, table: _Table) -> tuple[list[Item], list[Item]]:
    compact = graph.number_of_edges() > _COMPACT
    nodes = [
        Item((str(v),), {k: _written(x, table, f"{v}: {k}") for k, x in own.items()})
        for v, own in graph.nodes(data=True)
    ]
    edges = [
        Item((str(a), str(b)), _edge_values(own, table, compact, f"{a} -> {b}"))
        for a, b, own in graph.edges(data=True)
    ]
    return nodes, edges


def document_of(topology: Topology) -> Document:
    """Return `topology` as a document. Raises InvalidArgument for values that no file can hold."""
    table = _Table()
    nodes, edges = _parts(topology.node, table)
    values: dict[str, Any] = {
        "format": FORMAT,
        "name": topology.name,
        "nodes": topology.nodes,
        "device": _record(topology.device),
        "network": _record(topology.network),
        "graph": _graph_values(topology.node, table),
    }
    for own in fields(Topology):
        if own.name not in _OWN and own.name != "node":
            values[own.name] = msgspec.to_builtins(getattr(topology, own.name))
    unlike = []
    for number, graph in topology.unlike:
        inner, links = _parts(graph, table)
        unlike.append({
            "node": number, "graph": _graph_values(graph, table),
            "nodes": [{"id": item.ends[0], **item.values} for item in inner],
            "edges": [{"source": item.ends[0], "target": item.ends[1], **item.values}
                      for item in links],
        })  # fmt: skip
    values |= {"unlike": unlike, "links": table.rows}
    return Document(Path(), values, nodes, edges)
