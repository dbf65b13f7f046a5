"""A difference of two machines as a row and as words.

Owns the type, how a link or port is spelled, and how equal differences are joined. Knows nothing
of how differences are found.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from .build import SCALE_UP

__all__ = [
    "NONE",
    "Difference",
    "link_text",
    "link_texts",
    "port_text",
    "shown",
    "summarised",
    "within",
]

NONE = "none"
_MEDIUM = {"xgmi": "xGMI", "nvlink": "NVLink", "ualink": "UALink"}
_FEW = 4  # equal differences from this many on are said once
_NAMED = 3  # places named in such a line


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two machines differ, or where one is not as the rest of it.

    where: the device or pair. what: link, path, pcie, port, missing, count, network, device,
    bandwidth, order or note. of: how many places of this kind the machine has, 0 where not counted.
    """

    where: str
    before: str
    after: str
    what: str
    of: int = 0

    @property
    def place(self) -> str:
        """Where, and what of it: ``GPU3 - GPU5 link``."""
        kind = {"link": " link", "path": " path", "pcie": " PCIe", "port": " port"}
        return f"{self.where}{kind.get(self.what, '')}"

    def __str__(self) -> str:
        return shown(self)


def shown(difference: Difference) -> str:
    """Return one line: ``GPU3 - GPU5 link: xGMI 1 -> none``."""
    d = difference
    if d.what == "missing":
        return f"{d.where} {'missing' if d.after == NONE else 'added'}"
    if d.what in ("order", "note"):
        return f"{d.where}: {d.after}"
    return f"{d.place}: {d.before} -> {d.after}"


def summarised(differences: Iterable[Difference]) -> list[Difference]:
    """Return the differences with equal ones joined: ``all 28 GPU pairs: 64 -> 76.8 GB/s``."""
    groups: dict[Hashable, list[Difference]] = {}
    for d in differences:
        key = d if d.what in ("order", "note") else (d.what, d.before, d.after, _kind(d.where))
        groups.setdefault(key, []).append(d)
    lines: list[Difference] = []
    for same in groups.values():
        if len(same) < _FEW:
            lines += same
            continue
        word = _kind(same[0].where)
        names = ", ".join(d.where for d in same[:_NAMED])
        whole = len(same) == same[0].of
        where = f"all {len(same)} {word}" if whole else f"{len(same)} {word} ({names}, ...)"
        lines.append(replace(same[0], where=where))
    return lines


def _kind(where: str) -> str:
    """Return what a place is one of: ``GPU3 - GPU5`` of "GPU pairs", ``node2/NIC1`` of "NICs"."""
    parts = [re.sub(r"\d+( .*)?$", "", end.split("/")[-1]) for end in re.split(" -> | - ", where)]
    if len(parts) == 1:
        return f"{parts[0]}s"
    if " -> " in where:
        return f"{parts[0]} to {parts[1]} ways"
    return f"{parts[0]} pairs" if parts[0] == parts[1] else f"{'-'.join(parts)} pairs"


def _lanes(edge: dict[str, Any]) -> str:
    lanes = edge["lanes"] * (16 if edge["link"].name.endswith("-x16") else 1)
    return f"{round(lanes, 3):g}"


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.4g}"


def link_text(edge: dict[str, Any] | None) -> str:
    """Return a link as people say it: ``xGMI 1``, ``PCIe gen5 x16``, ``none``."""
    if edge is None:
        return NONE
    link = edge["link"]
    if link.medium == "pci" and link.name.endswith("-x16"):
        return f"{link.name.removesuffix('-x16').replace('pcie', 'gen')} x{_lanes(edge)}"
    if link.medium in SCALE_UP:
        return f"{_MEDIUM.get(link.medium, link.medium.upper())} {_lanes(edge)}"
    return f"{link.name} {_rate(edge['raw'])} GB/s"


def link_texts(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> tuple[str, str] | None:
    """Return what differs of a link, or None: lanes or kind, else raw speed, else usable speed."""
    texts = link_text(before), link_text(after)
    if texts[0] != texts[1]:
        return texts
    if before is None or after is None:
        return None
    for name, suffix in (("raw", "GB/s"), ("bandwidth", "GB/s usable")):
        rates = _rate(before[name]), _rate(after[name])
        if rates[0] != rates[1]:
            return rates[0], f"{rates[1]} {suffix}"
    return None


def port_text(graph: nx.DiGraph, nic: str) -> str:
    """Return a NIC's speed as people say it: ``400 Gb/s``."""
    return f"{graph.nodes[nic]['port'].bandwidth * 8 / 1e9:.4g} Gb/s"


def within(node: int, differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the differences with the node they are in: ``node3/GPU0 - GPU1``."""
    for d in differences:
        yield replace(d, where=f"node{node}/{d.where}")
