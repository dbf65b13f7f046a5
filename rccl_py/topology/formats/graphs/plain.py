"""Anyone's graph as a Topology: which vertex is an accelerator, and what a link's numbers mean.

Owns the rules for graphs that this library did not write. All that is assumed is said in notes.

* A vertex is what its ``kind``, ``type`` or ``role`` says, else what its name begins with: gpu,
  npu, rank … or switch, leaf, spine …. Of the rest: accelerators where none is known yet, else
  vertices to pass through.
* Accelerators are counted by ``index`` or ``rank``, else by the number in their name, else in the
  order of the file.
* A link needs ``bandwidth`` (or bw, capacity, rate, speed, weight): a text with a unit, or GB/s;
  ``latency`` (or lat, delay): a text with a unit, or µs; without one it is UALink's. An ending such
  as ``_gbps`` or ``_ns`` names the unit. ``lanes`` or ``count``: how many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from ....errors import FormatError
from ....links import DEVICES, LINKS, LinkType, Triple
from ...build import SCALE_UP, Topology, new_graph
from ..quantities import (
    MAX_EDGES,
    MAX_GPUS,
    bare_link,
    checked_rate,
    checked_time,
    clean,
    parse_rate,
    parse_seconds,
    shown,
)
from .values import Document, Item

__all__ = ["plain_topology"]

_GPU = ("gpu", "npu", "xpu", "tpu", "gcd", "rank", "accelerator", "accel", "device", "worker",
        "host", "server", "node", "compute")  # fmt: skip
_SWITCH = ("switch", "sw", "leaf", "spine", "core", "agg", "tor", "router", "plane", "nvswitch",
           "nvs", "hub", "xbar", "crossbar", "bridge", "pci", "pcie", "plx", "cpu", "nic", "fabric",
           "edge", "rail", "eth", "ib")  # fmt: skip
_KINDS = ("kind", "type", "role", "node_type")
_ORDER = ("index", "rank")
_RATES = ("bandwidth", "bw", "capacity", "rate", "speed", "throughput", "weight")
_TIMES = ("latency", "lat", "delay")
_LANES = ("lanes", "count", "links", "multiplicity")
# Units that the end of a name may give: B/s, and s.
_RATE_ENDS = {"gbps": 1e9 / 8, "gbit": 1e9 / 8, "gb_s": 1e9, "gbs": 1e9, "mbps": 1e6 / 8,
              "tbps": 1e12 / 8, "bps": 1 / 8, "gib_s": float(1 << 30)}  # fmt: skip
_TIME_ENDS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "sec": 1.0}


@dataclass(slots=True)
class _Said:
    """What was assumed, and for how many vertices or links."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> None:
        self.counts[text] = self.counts.get(text, 0) + 1

    def lines(self) -> tuple[str, ...]:
        return tuple(text.format(n=n) for text, n in self.counts.items())


def _kind_of(word: str) -> str:
    """Return gpu, switch or "" for a kind or a name by what it begins with."""
    head = re.match(r"[a-z]*", word.strip().lower())
    letters = head[0] if head else ""
    for kind, words in (("switch", _SWITCH), ("gpu", _GPU)):
        if letters in words or letters.rstrip("s") in words:
            return kind
    longer = [(len(w), kind) for kind, words in (("gpu", _GPU), ("switch", _SWITCH)) for w in words
              if len(w) > 2 and letters.startswith(w)]  # fmt: skip
    return max(longer)[1] if longer else ""


def _kinds(document: Document, said: _Said) -> dict[str, str]:
    """Return the kind of every vertex by its name."""
    found: dict[str, str] = {}
    for item in document.nodes:
        name = item.ends[0]
        if name in found:
            item.fail("id", f"{shown(name)} is given twice")
        given = next((item.values[k] for k in _KINDS if isinstance(item.values.get(k), str)), "")
        found[name] = _kind_of(given) or _kind_of(name)
    rest = [name for name, kind in found.items() if not kind]
    other = "switch" if "gpu" in found.values() else "gpu"
    for name in rest:
        found[name] = other
        what = "accelerators" if other == "gpu" else "vertices to pass through, as switches are"
        said.add(f"{{n}} vertices of unknown kind are taken for {what}")
    return found


def _order(items: list[Item]) -> list[Item]:
    """Return accelerators as they are counted."""
    for key in _ORDER:
        own = [item.values.get(key) for item in items]
        whole = all(isinstance(k, int) and not isinstance(k, bool) for k in own)
        if whole and len(set(own)) == len(own):
            return sorted(items, key=lambda item: int(item.values[key]))
    parts = [re.split(r"(\d+)", item.ends[0]) for item in items]
    if all(len(part) > 1 for part in parts):
        keys = {id(item): [int(word[:18]) if word.isdigit() else 0 for word in part[1::2]]
                for item, part in zip(items, parts, strict=True)}  # fmt: skip
        if len({tuple(key) for key in keys.values()}) == len(items):
            return sorted(items, key=lambda item: keys[id(item)])
    return items


def _vertices(document: Document, graph: nx.DiGraph, said: _Said) -> dict[str, str]:
    """Add the vertices, accelerators first, and return their names here by those of the file."""
    kinds = _kinds(document, said)
    gpus = _order([item for item in document.nodes if kinds[item.ends[0]] == "gpu"])
    if not gpus:
        raise FormatError(f"{document.where}: no accelerator is found: name vertices gpu0, gpu1 … "
                          "or give them kind gpu")  # fmt: skip
    if len(gpus) > MAX_GPUS:
        raise FormatError(f"{document.where}: {len(gpus)} accelerators: at most {MAX_GPUS} are "
                          "read as one graph")  # fmt: skip
    names: dict[str, str] = {}
    for k, item in enumerate(gpus):
        host = item.values.get("host")
        good = isinstance(host, int) and not isinstance(host, bool) and 0 <= host < MAX_GPUS
        names[item.ends[0]] = f"gpu{k}"
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=host if good else 0,
                       label=item.ends[0])  # fmt: skip
    for item in document.nodes:
        if kinds[item.ends[0]] == "switch":
            name = item.ends[0]
            while name in graph:  # a switch called gpu3
                name = f"switch {name}"
            names[item.ends[0]] = name
            graph.add_node(name, kind="switch")
    return names


def _find(item: Item, names: Iterable[str], ends: dict[str, float]) -> tuple[str, Any, float]:
    """Return the first value of an item called one of `names`, and the unit its name ends with."""
    lower = {key.lower(): key for key in item.values}
    for name in names:
        if name in lower:
            return lower[name], item.values[lower[name]], 0.0
    for name in names:
        for end, unit in ends.items():
            key = lower.get(f"{name}_{end}", lower.get(f"{name}{end}" if len(end) > 2 else "", ""))
            if key:
                # GBps is bytes, Gbps and gbps are bits.
                return key, item.values[key], unit * 8 if key.endswith("Bps") else unit
    return "", None, 0.0


def _quantity(item: Item, key: str, value: Any, number: Callable[[float], float],
              text: Callable[[str], float]) -> float:  # fmt: skip
    try:
        if isinstance(value, str):
            bare = re.fullmatch(r"\s*[0-9]{1,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,3})?\s*", value)
            return number(float(value)) if bare else text(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{shown(value)}: a number or a text with a unit was expected")
        return number(float(value))
    except (ValueError, OverflowError) as error:
        item.fail(clean(key), str(error))


def _rate(item: Item, said: _Said) -> float | None:
    key, value, unit = _find(item, _RATES, _RATE_ENDS)
    if not key:
        return None
    if not unit and not isinstance(value, str):
        said.add("bandwidths without a unit are taken for GB/s ({n} links)")
    if key.lower() == "weight":
        said.add("weight is taken for bandwidth ({n} links)")
    return _quantity(item, key, value, lambda x: checked_rate(x * (unit or 1e9)),
                     lambda x: parse_rate(x, None))  # fmt: skip


def _triple(item: Item, said: _Said) -> Triple | None:
    key, value, unit = _find(item, _TIMES, _TIME_ENDS)
    if not key:
        return None
    if isinstance(value, (list, tuple)) and len(value) == 3:
        ll, ll128, simple = (
            _quantity(item, key, one, checked_time, lambda x: parse_seconds(x, None))
            for one in value
        )
        return ll, ll128, simple
    if not unit and not isinstance(value, str):
        said.add("latencies without a unit are taken for microseconds ({n} links)")
    seconds = _quantity(item, key, value, lambda x: checked_time(x / (unit or 1e6)),
                        lambda x: parse_seconds(x, None))  # fmt: skip
    return seconds, seconds, seconds


def _medium(item: Item, said: _Said) -> str:
    for key in ("medium", "link", "type"):
        word = str(item.values.get(key, "")).lower()
        if word in SCALE_UP:
            return word
        if word in LINKS and LINKS[word].medium in SCALE_UP:
            return LINKS[word].medium
    return "ualink"


def _link(item: Item, said: _Said) -> LinkType:
    """Return the type of a link."""
    row = LINKS.get(str(item.values.get("link", "")))
    rate, latency = _rate(item, said), _triple(item, said)
    if rate is None:
        if row is None:
            item.fail("bandwidth", "is missing: give a link its bandwidth, such as 50GB/s (or a "
                      "number of GB/s)")  # fmt: skip
        rate = row.bandwidth * row.efficiency
    if latency is None:
        usual = row or LINKS["ualink-200g"]
        latency = usual.latency
        if row is None:
            said.add("{n} links give no latency: that of ualink-200g is assumed")
    name = row.name if row else f"{rate / 1e9:g}GB/s"
    plain = bare_link(name, rate, latency[2], "graph file", _medium(item, said))
    return LinkType(**{**{k: getattr(plain, k) for k in plain.__dataclass_fields__},
                       "latency": latency})  # fmt: skip


def _lanes(item: Item) -> float:
    key, value, _ = _find(item, _LANES, {})
    if not key:
        return 1
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not 0 < value <= 1e6:
        item.fail(clean(key), f"{shown(value)}: a number above 0 was expected")
    return float(value)


def _join(graph: nx.DiGraph, item: Item, a: str, b: str, link: LinkType, lanes: float) -> None:
    """Add a directed link; one beside an equal one adds lanes."""
    if graph.has_edge(a, b):
        if graph.edges[a, b]["link"] != link:
            item.fail("target", f"{shown(a)} - {shown(b)} is joined twice by unlike links: "
                      "parallel links must be alike")  # fmt: skip
        lanes += graph.edges[a, b]["lanes"]
    raw = link.bandwidth * lanes
    graph.add_edge(a, b, link=link, lanes=lanes, raw=raw, bandwidth=raw * link.efficiency,
                   latency=link.latency, message=link.message)  # fmt: skip


def _edges(document: Document, graph: nx.DiGraph, names: dict[str, str], said: _Said) -> None:
    both = not document.directed
    if len(document.edges) * (2 if both else 1) > MAX_EDGES:
        raise FormatError(f"{document.where}: {len(document.edges)} links: at most "
                          f"{MAX_EDGES // (2 if both else 1)} are read")  # fmt: skip
    kinds: dict[LinkType, LinkType] = {}
    for item in document.edges:
        for key, end in zip(("source", "target"), item.ends, strict=True):
            if end not in names:
                item.fail(key, f"{shown(end)} is no vertex of the file")
        a, b = names[item.ends[0]], names[item.ends[1]]
        if a == b:
            said.add("{n} links from a vertex to itself are ignored")
            continue
        link = _link(item, said)
        link, lanes = kinds.setdefault(link, link), _lanes(item)
        _join(graph, item, a, b, link, lanes)
        if both:
            _join(graph, item, b, a, link, lanes)
    single = sum(not graph.has_edge(b, a) for a, b in graph.edges)
    if single:
        said.counts[f"{single} links lead one way only"] = single


def plain_topology(document: Document) -> Topology:
    """Return the machine of a graph that this library did not write.

    Raises FormatError (place, what is wrong or missing).
    """
    said = _Said()
    name = document.values.get("name")
    name = clean(name)[:80] if isinstance(name, str) and name.strip() else document.path.stem
    graph = new_graph(name)
    names = _vertices(document, graph, said)
    _edges(document, graph, names, said)
    device = DEVICES.get(str(document.values.get("device", "")).lower())
    if device is None:
        said.add("the graph names no device: launch and memory are assumed (generic device)")
    return Topology(name, graph, device or DEVICES["generic"], notes=said.lines())
