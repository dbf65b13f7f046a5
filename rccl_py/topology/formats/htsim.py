"""Read htsim's fat-tree description (.topo, also of its Ultra Ethernet forks) as one graph.

Owns what the tiers mean, after sim/datacenter/fat_tree_topology.cpp: hosts hang from ToR switches
(tier 0), ToRs from the aggregation switches of their pod (tier 1), those from core switches (tier
2). Speeds, latencies and bundles of a tier are those of its downlinks, both ways; a switch's own
latency is paid on leaving it. Packet headers, queues and congestion control do not exist here.

    core0 .. (tier 2)
      |  bundle x speed(2)
    agg0 ..  (tier 1)  ToR - every agg of its pod
      |  bundle x speed(1)
    tor0 ..  (tier 0)  --- gpu0 .. gpu(Radix_Down - 1)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

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
    read_text,
    shown,
)

__all__ = ["is_htsim", "read_htsim"]

_WHAT = "an htsim topology"
_HEAD = ("nodes", "tiers", "podsize")
_TIER = ("downlink_speed_gbps", "radix_down", "radix_up", "downlink_latency_ns",
         "switch_latency_ns", "oversubscribed", "bundle")  # fmt: skip
_LARGEST = 10**9
_NAMES = ("tor", "agg", "core")


@dataclass(slots=True)
class _Tier:
    line: int
    values: dict[str, tuple[float, int]] = field(default_factory=dict)  # by key: value, line

    def whole(self, key: str, default: int = 0) -> int:
        return int(self.values[key][0]) if key in self.values else default


def is_htsim(text: str) -> bool:
    """Say whether `text` looks like an htsim fat-tree description."""
    head = text[:65536]
    return all(re.search(rf"(?im)^[ \t]*{key}[ \t]+\d", head) for key in _HEAD)


def _number(path: Path, line: int, key: str, words: list[str]) -> float:
    """Return the number after a key; only speeds and latencies may have a fraction."""
    word = words[1] if len(words) > 1 else ""
    fraction = r"(\.\d{1,9})?" if key.endswith(("gbps", "ns")) else ""
    if not re.fullmatch(rf"\d{{1,12}}{fraction}", word) or float(word) > _LARGEST:
        raise FormatError(f"{path}:{line}: {words[0]}: {shown(word)}: a number of 0 to {_LARGEST} "
                          "was expected")  # fmt: skip
    return float(word)


@dataclass(slots=True)
class _File:
    path: Path
    head: dict[str, int] = field(default_factory=dict)
    tiers: dict[int, _Tier] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def read(self, text: str) -> None:
        tier: _Tier | None = None
        for line, raw in enumerate(text.splitlines(), 1):
            words = raw.partition("#")[0].split()
            if not words:
                continue
            key = words[0].lower()
            if key == "tier":
                tier = self._tier(line, words)
            elif tier is None:
                if self._skip(line, words[0], (*_HEAD, "tier")):
                    continue
                if key in self.head:
                    raise FormatError(f"{self.path}:{line}: {words[0]} is given twice")
                self.head[key] = int(_number(self.path, line, key, words))
            else:
                if self._skip(line, words[0], (*_TIER, "tier")):
                    continue
                if key in tier.values:
                    raise FormatError(f"{self.path}:{line}: {words[0]} is given twice in a tier")
                tier.values[key] = (_number(self.path, line, key, words), line)

    def _skip(self, line: int, word: str, known: tuple[str, ...]) -> bool:
        """Say whether a key has no meaning here, as queue sizes have none; a misspelt one has."""
        near = difflib.get_close_matches(word.lower(), known, 1, 0.75)
        if word.lower() in known:
            return False
        if near:
            raise FormatError(f"{self.path}:{line}: {shown(word)} is not known here: did you mean "
                              f"{near[0]}?")  # fmt: skip
        self.ignored.append(clean(word)[:40])
        return True

    def _tier(self, line: int, words: list[str]) -> _Tier:
        number = _number(self.path, line, "tier", words)
        if number > 2 or number in self.tiers:
            raise FormatError(f"{self.path}:{line}: tier {number:g}: 0, 1 and 2 can be described, "
                              "each once")  # fmt: skip
        self.tiers[int(number)] = _Tier(line)
        return self.tiers[int(number)]

    def check(self) -> None:
        for key in _HEAD:
            if self.head.get(key, 0) < 1:
                raise FormatError(f"{self.path}:1: {key.capitalize()} is missing or 0")
        if self.head["tiers"] not in (2, 3):
            raise FormatError(f"{self.path}:1: Tiers {self.head['tiers']}: expected 2 or 3")
        if self.head["nodes"] > MAX_GPUS:
            raise FormatError(f"{self.path}:1: {self.head['nodes']} hosts: at most {MAX_GPUS} are "
                              "read as one graph")  # fmt: skip
        for t in range(self.head["tiers"]):
            if t not in self.tiers:
                raise FormatError(f"{self.path}:1: tier {t} of {self.head['tiers']} is missing")
            needed = ["downlink_speed_gbps", "radix_down", "downlink_latency_ns"]
            needed += ["radix_up"] if t < self.head["tiers"] - 1 else []
            for key in needed:
                if self.tiers[t].values.get(key, (0,))[0] <= 0:
                    raise FormatError(f"{self.path}:{self.tiers[t].line}: tier {t}: {key} is "
                                      "missing or 0")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Shape:
    """How many of what: switches per pod, core switches, and links between two switches."""

    pods: int
    tors: int
    aggs: int
    cores: int
    bundle: tuple[int, int, int]


def _exact(file: _File, tier: int, what: str, value: int, divisor: int) -> int:
    if divisor < 1 or value % divisor or not value:
        raise FormatError(f"{file.path}:{file.tiers[tier].line}: tier {tier}: {value} {what} do "
                          f"not divide into groups of {divisor}")  # fmt: skip
    return value // divisor


def _uplinks(file: _File, tier: int, links: int) -> int:
    """Return the links above a tier that carry `links` below it, after its oversubscription."""
    below, above = (file.tiers[t].values["downlink_speed_gbps"][0] for t in (tier, tier + 1))
    share = file.tiers[tier].whole("oversubscribed", 1)
    count = links * below / (above * max(share, 1))
    if share < 1 or count != int(count) or count < 1:
        raise FormatError(f"{file.path}:{file.tiers[tier].line}: tier {tier}: {links} links of "
                          f"{below:g} Gb/s over {share} are no whole number of {above:g} Gb/s "
                          "uplinks")  # fmt: skip
    return int(count)


def _shape(file: _File) -> _Shape:
    nodes, top = file.head["nodes"], file.head["tiers"] - 1
    tiers = file.tiers
    bundle = [max(1, tiers[t].whole("bundle", 1)) if t <= top else 1 for t in range(3)]
    if bundle[0] != 1:
        raise FormatError(f"{file.path}:{tiers[0].line}: tier 0: a host has one link (Bundle 1)")
    pods = _exact(file, 0, "nodes", nodes, file.head["podsize"])
    tors = _exact(file, 0, "hosts of a pod", file.head["podsize"], tiers[0].whole("radix_down"))
    up = _uplinks(file, 0, nodes)
    aggs = _exact(file, 1, "ToR uplinks", up, pods * tiers[1].whole("radix_down"))
    _same_radix(file, 0, aggs * bundle[1])
    cores = 0
    if top == 2:
        cores = _exact(file, 2, "aggregation uplinks", _uplinks(file, 1, up),
                       tiers[2].whole("radix_down"))  # fmt: skip
        _same_radix(file, 1, _exact(file, 2, "core switches", cores, aggs) * bundle[2])
    elif pods != 1:
        raise FormatError(f"{file.path}:1: two tiers are one pod: Podsize {file.head['podsize']} "
                          f"of {nodes} nodes leaves {pods} pods apart")  # fmt: skip
    edges = 2 * (nodes + pods * tors * aggs + pods * aggs * (cores // max(aggs, 1)))
    if edges > MAX_EDGES:
        raise FormatError(f"{file.path}:1: {edges} directed links: at most {MAX_EDGES} are read")
    return _Shape(pods, tors, aggs, cores, (bundle[0], bundle[1], bundle[2]))


def _same_radix(file: _File, tier: int, needed: int) -> None:
    given = file.tiers[tier].whole("radix_up")
    if given != needed:
        raise FormatError(
            f"{file.path}:{file.tiers[tier].line}: tier {tier}: Radix_Up {given}, but its speeds, "
            f"Oversubscribed and the switches above need {needed}: is Bundle of tier {tier + 1} "
            "right?"
        )


def _cables(shape: _Shape, radix: int) -> Iterator[tuple[int, str, str]]:
    """Return (tier of the upper end, lower vertex, upper vertex) of every bundle."""
    for tor in range(shape.pods * shape.tors):
        for k in range(radix):
            yield 0, f"gpu{tor * radix + k}", f"tor{tor}"
    for tor in range(shape.pods * shape.tors):
        for k in range(shape.aggs):
            yield 1, f"tor{tor}", f"agg{tor // shape.tors * shape.aggs + k}"
    for agg in range(shape.pods * shape.aggs if shape.cores else 0):
        for k in range(agg % shape.aggs, shape.cores, shape.aggs):
            yield 2, f"agg{agg}", f"core{k}"


def _quantity(file: _File, tier: int, key: str,
              unit: Callable[[float], float]) -> float:  # fmt: skip
    value, line = file.tiers[tier].values.get(key, (0.0, 0))
    try:
        return unit(value)
    except ValueError as error:
        raise FormatError(f"{file.path}:{line}: {key}: {error}") from None


def _nanoseconds(value: float) -> float:
    return checked_time(value / 1e9)


def _links(file: _File, tier: int) -> tuple[LinkType, LinkType]:
    """Return the links up to a tier and down from it: leaving a switch costs its own latency."""
    rate = _quantity(file, tier, "downlink_speed_gbps", lambda x: checked_rate(x * 1e9 / 8))
    wire = _quantity(file, tier, "downlink_latency_ns", _nanoseconds)
    own = _quantity(file, tier, "switch_latency_ns", _nanoseconds)
    below = _quantity(file, tier - 1, "switch_latency_ns", _nanoseconds) if tier else 0.0
    name = f"htsim-{_NAMES[tier]}"
    return (bare_link(f"{name}-up", rate, wire + below, "htsim topology file"),
            bare_link(f"{name}-down", rate, wire + own, "htsim topology file"))  # fmt: skip


def _one_way(graph: nx.DiGraph, a: str, b: str, link: LinkType, lanes: int) -> None:
    rate = link.bandwidth * lanes
    graph.add_edge(a, b, link=link, lanes=lanes, raw=rate, bandwidth=rate,
                   latency=link.latency, message=link.message)  # fmt: skip


def read_htsim(path: Path) -> Topology:
    """Return the machine that the htsim fat-tree description at `path` describes.

    Raises FormatError (file, line, what is wrong).
    """
    file = _File(path)
    file.read(read_text(path, _WHAT))
    file.check()
    shape = _shape(file)
    graph, radix = new_graph(path.stem), file.tiers[0].whole("radix_down")
    for i in range(file.head["nodes"]):
        graph.add_node(f"gpu{i}", kind="gpu", index=i, host=i)
    counts = (shape.pods * shape.tors, shape.pods * shape.aggs, shape.cores)
    for name, count in zip(_NAMES, counts, strict=True):
        graph.add_nodes_from((f"{name}{k}" for k in range(count)), kind="switch")
    links = [_links(file, t) for t in range(file.head["tiers"])]
    for tier, low, high in _cables(shape, radix):
        up, down = links[tier]
        _one_way(graph, low, high, up, shape.bundle[tier])
        _one_way(graph, high, low, down, shape.bundle[tier])
    notes = (
        f"htsim fat tree of {shape.pods} pod(s), {counts[0]} ToR, {counts[1]} aggregation and "
        f"{counts[2]} core switches: links at their rate, without packet headers and queues",
        "htsim hosts name no accelerator: launch and memory are assumed (generic device)",
    )
    odd = ", ".join(dict.fromkeys(file.ignored[:64]))
    more = (f"ignored: {odd}",) if odd else ()
    return Topology(path.stem, graph, DEVICES["generic"], notes=notes + more)
