"""GraphML, read and written: a graph as XML whose values have declared types.

Owns the XML: <key> declarations, <graph edgedefault>, <node>, <edge>, <data>. What the values mean
is graph_values' (files of this library) and graph_plain's (anyone's). A value that GraphML has no
type for stands as JSON text under a name that begins with ``json:``; the three latencies of a link
are latency_ll, latency_ll128 and latency_simple.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ....errors import InvalidArgument
from ...build import Topology
from ..quantities import clean, shown, without
from ..xml_plain import Part, read_parts
from .exact import topology_from
from .plain import plain_topology
from .values import Document, Item, document_of, is_own

__all__ = ["is_graphml", "read_graphml", "write_graphml"]

_WHAT = "a GraphML graph"
_SPACE = "http://graphml.graphdrawing.org/xmlns"
_LATENCIES = ("latency_ll", "latency_ll128", "latency_simple")
# What XML 1.0 can hold between elements and gives back unchanged.
_SAFE = re.compile(r"[!-\ud7ff\ue000-\ufffd]([ -\ud7ff\ue000-\ufffd]*[!-\ud7ff\ue000-\ufffd])?")
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def is_graphml(text: str) -> bool:
    """Say whether `text` looks like a GraphML file."""
    head = without(text[:65536], "<!--", "-->")
    return head.lstrip("\ufeff \t\r\n")[:1] == "<" and bool(
        re.search(r"<(\w+:)?graphml[\s>]", head)
    )


@dataclass(slots=True)
class _Writer:
    """The keys declared so far, by (domain, name, type)."""

    keys: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def data(self, domain: str, name: str, value: Any) -> str:
        """Return the <data> element of one value."""
        kind, text = "string", value
        if isinstance(value, bool):
            kind, text = "boolean", str(value).lower()
        elif isinstance(value, int) and abs(value) < 1 << 63:
            kind, text = "long", str(value)
        elif isinstance(value, float):
            kind, text = "double", repr(value)
        elif not isinstance(value, str) or not _SAFE.fullmatch(value):
            name, text = f"json:{name}", json.dumps(value)
        key = self.keys.setdefault((domain, name, kind), f"d{len(self.keys)}")
        return f'<data key="{key}">{escape(text)}</data>'

    def values(self, domain: str, values: dict[str, Any]) -> str:
        return "".join(self.data(domain, name, value) for name, value in values.items())


def _attribute(text: str) -> str:
    if not _SAFE.fullmatch(text):
        raise InvalidArgument(f"vertex {shown(text)} cannot be named in XML")
    return quoteattr(text)


def _split_latency(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a link with a number for each protocol's latency."""
    latency = values.get("latency")
    if not isinstance(latency, list):
        return values
    rest = {key: value for key, value in values.items() if key != "latency"}
    return rest | dict(zip(_LATENCIES, latency, strict=True))


def write_graphml(topology: Topology) -> str:
    """Return `topology` as GraphML, which read_graphml gives back as it was.

    networkx and graph editors read it too. Values are SI: B/s and s. Raises InvalidArgument when a
    vertex or link holds what no file can.
    """
    document, writer = document_of(topology), _Writer()
    body = [writer.values("graph", document.values)]
    for item in document.nodes:
        own = writer.values("node", item.values)
        body.append(f"<node id={_attribute(item.ends[0])}>{own}</node>")
    for item in document.edges:
        ends = f"source={_attribute(item.ends[0])} target={_attribute(item.ends[1])}"
        body.append(f"<edge {ends}>{writer.values('edge', _split_latency(item.values))}</edge>")
    keys = [
        f'<key id="{key}" for="{domain}" attr.name={quoteattr(name)} attr.type="{kind}"/>'
        for (domain, name, kind), key in writer.keys.items()
    ]
    head = ['<?xml version="1.0" encoding="utf-8"?>', f'<graphml xmlns="{_SPACE}">', *keys]
    return "\n".join([*head, '<graph edgedefault="directed">', *body, "</graph>", "</graphml>", ""])


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    kind: str
    default: str | None


def _keys(root: Part) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for part in root.all("key"):
        name = part.text("attr.name") or part.text("id")
        kind = part.text("attr.type").lower() or "string"
        inner = part.all("default")
        default = inner[0].content if inner else None
        if part.text("id") in found:
            raise part.error(f"<key> {shown(part.text('id'))} is given twice")
        found[part.text("id")] = _Key(name, kind, default)
    return found


def _typed(part: Part, key: _Key, text: str) -> Any:
    """Return the value of a <data> element, by the type its key declares."""
    bare = text.strip()
    try:
        match key.kind:
            case "boolean" if bare.lower() in _TRUE + _FALSE:
                return bare.lower() in _TRUE
            case "int" | "integer" | "long" if len(bare) < 40:
                return int(bare)
            case "float" | "double" if len(bare) < 40:
                value = float(bare)
                if math.isfinite(value):
                    return value
            case "string":
                return _json(part, key.name, text) if key.name.startswith("json:") else text
    except ValueError:
        pass
    raise part.error(f"{clean(key.name)[:60]}: {shown(bare)} is no {clean(key.kind)[:20]}")


def _json(part: Part, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise part.error(f"{clean(name)[:60]}: not JSON: "
                         f"{clean(' '.join(str(error).split()))[:120]}") from None  # fmt: skip


def _values(part: Part, keys: dict[str, _Key], defaults: dict[str, Any]) -> dict[str, Any]:
    values = dict(defaults)
    for data in part.all("data"):
        key = keys.get(data.text("key"))
        if key is None:
            raise data.error(f"<data>: key {shown(data.text('key'))} is not declared")
        if data.parts:
            continue  # drawings of editors: shapes and positions
        values[clean(key.name.removeprefix("json:"))] = _typed(data, key, data.content)
    return values


def _defaults(root: Part, keys: dict[str, _Key]) -> dict[str, dict[str, Any]]:
    """Return the values that a vertex, a link or the graph has unless it says otherwise."""
    found: dict[str, dict[str, Any]] = {"node": {}, "edge": {}, "graph": {}}
    for part in root.all("key"):
        key, domain = keys[part.text("id")], part.text("for") or "all"
        if key.default is not None:
            for name, values in found.items():
                if domain in (name, "all"):
                    values[clean(key.name.removeprefix("json:"))] = _typed(part, key, key.default)
    return found


def _joined_latency(values: dict[str, Any]) -> dict[str, Any]:
    if not all(name in values for name in _LATENCIES):
        return values
    rest = {key: value for key, value in values.items() if key not in _LATENCIES}
    return rest | {"latency": [values[name] for name in _LATENCIES]}


def _end(part: Part, name: str) -> str:
    if not part.text(name):
        raise part.error(f"<{part.name}> has no {name}")
    return part.text(name)[:200]


def _document(path: Path, root: Part) -> Document:
    if root.name != "graphml":
        raise root.error(f"the root element is <{root.name[:40]}>: expected <graphml>")
    graphs = root.all("graph")
    if len(graphs) != 1:
        raise root.error(f"{len(graphs)} <graph> elements: one was expected")
    graph, keys = graphs[0], _keys(root)
    usual = _defaults(root, keys)
    document = Document(path, _values(graph, keys, usual["graph"]))
    document.where = f"{path}:{graph.line}"
    document.directed = graph.text("edgedefault") != "undirected"
    for part in graph.parts:
        if part.name in ("hyperedge", "port") or part.all("graph"):
            raise part.error(
                f"<{part.name}>: hyperedges, ports and graphs in vertices are not read"
            )
        where = f"{path}:{part.line}: "
        if part.name == "node":
            own = _values(part, keys, usual["node"])
            document.nodes.append(Item((_end(part, "id"),), own, where))
        elif part.name == "edge":
            ends = _end(part, "source"), _end(part, "target")
            own = _joined_latency(_values(part, keys, usual["edge"]))
            document.edges.append(Item(ends, own, where))
            if not document.directed and part.text("directed") == "true":
                raise part.error("a directed <edge> in an undirected <graph> is not read")
    return document


def read_graphml(path: Path) -> Topology:
    """Return the machine that the GraphML file at `path` holds.

    A file of write_graphml comes back as it was; any other graph follows the rules of graph_plain.
    Raises FormatError (file, line, what is wrong).
    """
    document = _document(path, read_parts(path, _WHAT))
    if is_own(document):
        return topology_from(document, Item((), document.values, f"{document.where}: "))
    return plain_topology(document)
