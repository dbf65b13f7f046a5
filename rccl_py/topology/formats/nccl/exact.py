"""What a topology XML file cannot say, carried beside it in comments that RCCL skips.

Owns one comment form, ``<!-- rccl_py KEY JSON -->``: a device or a link whose figures no attribute
holds, so that a file written here reads back to the same fabric. RCCL and NCCL see a comment.
Knows no graph. A comment of this form that cannot be understood is a FormatError with its line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx

from ....errors import FormatError
from ....links import DEVICES, LINKS, Device, LinkType, Triple
from ..xml_tree import Comment

__all__ = ["Exact", "ExactEdges", "exact_comment", "exact_of", "set_edges"]

_PREFIX = "rccl_py "
_LIMIT = 64  # comments of this form; a writer needs one a kind of port and three more
_MOST = 1e18  # B/s or s: no figure of a link or device is larger
_NICS = 4096  # of one node, as the machine files allow


@dataclass(frozen=True, slots=True)
class ExactEdges:
    """Directed edges, by vertex names, that have the same figures; `line` is the comment's."""

    link: LinkType
    lanes: float
    latency: Triple
    between: list[tuple[str, str]]
    line: int = 0


@dataclass(slots=True)
class Exact:
    """Figures that replace those the file's attributes lead to; None where there are none.

    device, scale_up: the GPUs' row and that of one scale-up link; hop: seconds a scale-up switch
    adds; ports: a NIC's port, by index (written as ranges, both ends included); edges: figures of
    links the file cannot name otherwise.
    """

    device: Device | None = None
    scale_up: LinkType | None = None
    hop: float | None = None
    ports: dict[int, LinkType] = field(default_factory=dict)
    edges: list[ExactEdges] = field(default_factory=list)


def _named(value: object) -> object:
    """Return `value` with the rows of LINKS in it as their names."""
    if isinstance(value, LinkType):
        return value.name if LINKS.get(value.name) == value else value
    return [_named(v) for v in value] if isinstance(value, list) else value


def exact_comment(key: str, value: object) -> str:
    """Return the comment that carries `value` (a row, a number, a list) under `key`."""
    own = _named(value)
    text = json.dumps(msgspec.to_builtins(own)).replace("--", "-\\u002d")
    return f"<!-- {_PREFIX}{key} {text} -->"


def _numbers_hold(value: Any) -> bool:
    """Return whether every number of plain data is finite, not negative and not absurd."""
    if isinstance(value, dict):
        return all(_numbers_hold(v) for v in value.values())
    if isinstance(value, list):
        return all(_numbers_hold(v) for v in value)
    if isinstance(value, str):
        return value.isprintable() and len(value) <= 400
    return not isinstance(value, (int, float)) or (math.isfinite(value) and 0 <= value <= _MOST)


def _link(value: Any) -> LinkType:
    if isinstance(value, str):
        if value not in LINKS:
            raise ValueError(f"link {value[:40]!r} is not known")
        return LINKS[value]
    link: LinkType = msgspec.convert(value, LinkType, strict=False)
    times = (*link.latency, link.message)
    if not (link.bandwidth >= 1 and 1e-6 <= link.efficiency <= 1 and max(times) <= 1):
        raise ValueError("a link needs 1 B/s or more, an efficiency up to 1, latencies up to 1 s")
    return link


def _device(value: Any) -> Device:
    if isinstance(value, str):
        if value not in DEVICES:
            raise ValueError(f"device {value[:40]!r} is not known")
        return DEVICES[value]
    device: Device = msgspec.convert(value, Device, strict=False)
    if device.memory < 1 or device.launch > 1:
        raise ValueError("a device needs 1 B/s of memory or more and a launch up to 1 s")
    return device


def _edges(value: Any, line: int) -> ExactEdges:
    if not isinstance(value, dict):
        raise ValueError("expected link, lanes, latency, between")
    link = msgspec.to_builtins(_link(value.get("link")))
    found: ExactEdges = msgspec.convert({**value, "link": link}, ExactEdges, strict=False)
    if not 1e-6 <= found.lanes <= 1e6 or max(found.latency) > 1:
        raise ValueError("an edge needs 1e-6 to 1e6 lanes and latencies up to 1 s")
    return replace(found, line=line)


def _take(exact: Exact, key: str, value: Any, line: int) -> None:
    if not _numbers_hold(value):
        raise ValueError("a number or text is out of range")
    if key == "device":
        exact.device = _device(value)
    elif key == "scale_up":
        exact.scale_up = _link(value)
    elif key == "hop":
        exact.hop = msgspec.convert(value, float, strict=False)
        if exact.hop > 1:
            raise ValueError("a hop takes up to 1 s")
    elif key == "port":
        ranges, link = msgspec.convert(value, tuple[list[tuple[int, int]], Any])
        row = _link(link)
        for first, last in ranges[:_NICS]:
            exact.ports.update(dict.fromkeys(range(first, min(last, _NICS) + 1), row))
    elif key == "edge":
        exact.edges.append(_edges(value, line))
    else:
        raise ValueError("expected device, scale_up, hop, port or edge")


def exact_of(comments: Sequence[Comment], path: Path) -> Exact:
    """Return what the comments of the file at `path` carry. Raises FormatError."""
    exact, taken = Exact(), 0
    for line, text in comments:
        if not text.strip().startswith(_PREFIX):
            continue
        key, _, body = text.strip().removeprefix(_PREFIX).partition(" ")
        taken += 1
        try:
            if taken > _LIMIT:
                raise ValueError(f"more than {_LIMIT} such comments")
            _take(exact, key, json.loads(body), line)
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            why = "".join(c if c.isprintable() else "?" for c in str(error))
            raise FormatError(
                f"{path}:{line}: comment of rccl_py {key[:20]!r}: {why[:200]}: correct or remove it"
            ) from None
    return exact


def set_edges(graph: nx.DiGraph, exact: Exact, path: Path) -> None:
    """Give the edges that `exact` names its figures. Raises FormatError for one that is not."""
    for own in exact.edges:
        raw = own.link.bandwidth * own.lanes
        for a, b in own.between:
            if not graph.has_edge(a, b):
                raise FormatError(f"{path}:{own.line}: comment of rccl_py 'edge': {a[:40]} -> "
                                  f"{b[:40]} is no link of this file: remove it")  # fmt: skip
            graph.edges[a, b].update(
                link=own.link, lanes=own.lanes, raw=raw, bandwidth=raw * own.link.efficiency,
                latency=own.latency, message=own.link.message,
            )  # fmt: skip
