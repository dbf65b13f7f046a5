"""networkx's node-link JSON, read and written: a graph as lists of vertices and links.

Owns the JSON: ``nodes``, ``edges`` (or ``links``, as older networkx writes), ``graph``,
``directed``, ``multigraph``. What the values mean is graph_values' (files of this library) and
graph_plain's (anyone's).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ....errors import FormatError
from ...build import Topology
from ..quantities import MAX_EDGES, clean, read_text, shown
from .exact import topology_from
from .plain import plain_topology
from .values import Document, Item, document_of, is_own

__all__ = ["is_node_link", "read_node_link", "write_node_link"]

_WHAT = "a node-link graph"
_LONG = 50_000  # characters


def is_node_link(text: str) -> bool:
    """Say whether `text` looks like node-link JSON: an object with nodes, and edges or links.

    Of a long file the beginning is enough, which may show the vertices only.
    """
    if text.lstrip("\ufeff \t\r\n")[:1] != "{":
        return False
    has = {key for key in ("nodes", "edges", "links") if re.search(rf'"{key}"\s{{0,80}}:', text)}
    return "nodes" in has and (len(has) > 1 or len(text) >= _LONG)


def write_node_link(topology: Topology) -> str:
    """Return `topology` as node-link JSON, which read_node_link gives back as it was.

    networkx reads it as json_graph.node_link_graph(json.loads(text), edges="edges"). Values are
    SI: B/s and s. Raises InvalidArgument when a vertex or link holds what no file can.
    """
    document = document_of(topology)
    nodes = [{"id": item.ends[0], **item.values} for item in document.nodes]
    edges = [{"source": item.ends[0], "target": item.ends[1], **item.values}
             for item in document.edges]  # fmt: skip
    head = {"directed": True, "multigraph": False, "graph": document.values}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in (("nodes", nodes), ("edges", edges)):
        inner = ",\n  ".join(json.dumps(row) for row in rows)
        lines.append(f'"{key}": [\n  {inner}\n]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg}, column {error.colno}"
                          ) from None  # fmt: skip
    except (RecursionError, ValueError) as error:
        raise FormatError(
            f"{path}: not JSON: {clean(' '.join(str(error).split()))[:200]}"
        ) from None
    if not isinstance(data, dict):
        raise FormatError(f"{path}: an object with nodes and edges was expected, found "
                          f"{type(data).__name__}")  # fmt: skip
    return data


def _rows(path: Path, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = data.get(key)
    if not isinstance(rows, list):
        raise FormatError(f"{path}: {key}: a list was expected, found {type(rows).__name__}")
    if len(rows) > MAX_EDGES:
        raise FormatError(f"{path}: {key}: {len(rows)} items: at most {MAX_EDGES} are read")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise FormatError(f"{path}: {key}[{i}]: an object was expected, found {shown(row)}")
    return rows


def _named(path: Path, where: str, row: dict[str, Any], key: str) -> str:
    """Return the name of a vertex; networkx allows numbers and lists too."""
    if key not in row or row[key] is None or isinstance(row[key], (dict, bool, float)):
        raise FormatError(f"{path}: {where}.{key}: {shown(row.get(key))}: the name of a vertex was "
                          "expected")  # fmt: skip
    return clean(str(row[key]))[:200]


def _counted(document: Document, ends: tuple[str, str]) -> tuple[str, str]:
    """Return the names of vertices that links without ids count from 0, as d3 does."""
    names = [item.ends[0] for item in document.nodes]
    one, two = (names[int(e)] if e.isdigit() and len(e) < 9 and int(e) < len(names) else e
                for e in ends)  # fmt: skip
    return one, two


def _document(path: Path, data: dict[str, Any]) -> Document:
    links = "links" if "links" in data and "edges" not in data else "edges"
    values = data.get("graph", {})
    if isinstance(values, list):  # networkx 1 wrote pairs
        pairs = [v for v in values if isinstance(v, list) and len(v) == 2]
        values = {str(key): value for key, value in pairs}
    if not isinstance(values, dict):
        raise FormatError(f"{path}: graph: an object was expected, found {shown(values)}")
    document = Document(path, values, where=str(path))
    document.directed = bool(data.get("directed", False))
    for i, row in enumerate(_rows(path, data, "nodes")):
        where = f"nodes[{i}]"
        key = "id" if "id" in row or "name" not in row else "name"  # d3 and networkx 1 give a name
        own = {k: value for k, value in row.items() if k != "id"}
        document.nodes.append(Item((_named(path, where, row, key),), own, f"{path}: {where}."))
    counted = not any("id" in row for row in data["nodes"]) and not any(
        item.ends[0].isdigit() for item in document.nodes)  # fmt: skip
    for i, row in enumerate(_rows(path, data, links)):
        where = f"{links}[{i}]"
        ends = _named(path, where, row, "source"), _named(path, where, row, "target")
        if counted:
            ends = _counted(document, ends)
        own = {key: value for key, value in row.items() if key not in ("source", "target")}
        document.edges.append(Item(ends, own, f"{path}: {where}."))
    return document


def read_node_link(path: Path) -> Topology:
    """Return the machine that the node-link JSON file at `path` holds.

    A file of write_node_link comes back as it was; any other graph follows the rules of
    graph_plain. Raises FormatError (file, and line or place such as nodes[3].kind).
    """
    document = _document(path, _object(path, read_text(path, _WHAT)))
    if is_own(document):
        return topology_from(document, Item((), document.values, f"{path}: graph."))
    return plain_topology(document)
