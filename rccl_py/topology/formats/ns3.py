"""Read the text topologies of packet simulators: ns-3 (ASTRA-sim, SimAI) and htsim.

Owns what their lines mean. Each file is one graph: end hosts are accelerators, in order of their
numbers; every link is full duplex at the given rate and delay; packet headers, queues and
congestion control do not exist here (efficiency 1). Launch and memory are those of the named GPU
or the generic device. Numbers follow the tools' sources: SimAI network_frontend/ns3/common.h,
htsim sim/datacenter/fat_tree_topology.cpp.

ns-3:  nodes switches links                                   | then the ids of the switches,
SimAI: nodes gpus_per_server nvswitches switches links GPU    | then "src dst rate delay error"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from ...errors import FormatError
from ...links import DEVICES, Device, LinkType
from ..build import Topology, new_graph
from .quantities import (
    MAX_EDGES,
    MAX_GPUS,
    bare_link,
    join,
    parse_rate,
    parse_seconds,
    read_text,
    shown,
)

__all__ = ["is_ns3", "read_ns3"]

_WHAT = "an ns-3 topology"
_SOURCE = "ns-3 topology file"
_MAX_SWITCHES = 100_000
# GPU names of SimAI's generator that are not ours; H800 and H20 are H100 silicon.
_GPUS = {"h800": "h100", "h20": "h100", "h200": "h100", "a800": "a100", "gb200": "b200"}


@dataclass(frozen=True, slots=True)
class _Header:
    nodes: int
    switches: int
    links: int
    nvswitches: int = 0
    per_server: int = 0
    gpu: str = ""


def is_ns3(text: str) -> bool:
    """Say whether `text` looks like an ns-3 topology: a header of counts, then link lines."""
    lines = [line.split() for line in text[:200_000].splitlines() if line.strip()]
    if not lines or not re.fullmatch(r"\d+( \d+){2}|\d+( \d+){4} [A-Za-z]\S*( \d+)?",
                                     " ".join(lines[0])):  # fmt: skip
        return False
    rest = [words for words in lines[1:] if not all(word.isdigit() for word in words)]
    return bool(rest) and len(rest[0]) >= 4 and bool(re.match(r"[\d.]+[kKMGT]?i?[bB]", rest[0][2]))


def _whole(path: Path, line: int, word: str, what: str, low: int, high: int) -> int:
    if not re.fullmatch(r"\d{1,12}", word) or not low <= int(word) <= high:
        raise FormatError(f"{path}:{line}: {what}: {shown(word)}: a whole number of {low} to "
                          f"{high} was expected")  # fmt: skip
    return int(word)


def _header(path: Path, line: int, words: list[str]) -> _Header:
    if len(words) not in (3, 6, 7):
        raise FormatError(
            f"{path}:{line}: the header has {len(words)} fields: expected 'nodes switches links' "
            "or 'nodes gpus_per_server nvswitches switches links GPU'"
        )
    most = MAX_GPUS + _MAX_SWITCHES
    nodes = _whole(path, line, words[0], "nodes", 1, 10**9)
    if len(words) == 3:
        found = _Header(nodes, _whole(path, line, words[1], "switches", 0, most),
                        _whole(path, line, words[2], "links", 0, 10**9))  # fmt: skip
    else:
        found = _Header(
            nodes,
            _whole(path, line, words[3], "switches", 0, most),
            _whole(path, line, words[4], "links", 0, 10**9),
            _whole(path, line, words[2], "nvswitches", 0, most),
            _whole(path, line, words[1], "gpus_per_server", 1, most),
            words[5],
        )
    hosts = nodes - found.switches - found.nvswitches
    if hosts < 1:
        raise FormatError(f"{path}:{line}: {nodes} nodes, {nodes - hosts} of them switches: no "
                          "host is left")  # fmt: skip
    if hosts > MAX_GPUS:
        raise FormatError(f"{path}:{line}: {hosts} hosts: at most {MAX_GPUS} are read as one graph")
    if 2 * found.links > MAX_EDGES:
        raise FormatError(f"{path}:{line}: {found.links} links: at most {MAX_EDGES // 2} are read")
    return found


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """Return (line, words) of every line with words; what follows a # is a remark."""
    rows = ((i, line.partition("#")[0].split()) for i, line in enumerate(text.splitlines(), 1))
    return [(i, words) for i, words in rows if words]


def _switches(path: Path, header: _Header,
              rows: Iterator[tuple[int, list[str]]]) -> dict[int, str]:  # fmt: skip
    """Return the vertex of every switch by its id; NVSwitches stand first in the file."""
    wanted, found = header.nvswitches + header.switches, dict[int, str]()
    while len(found) < wanted:
        line, words = next(rows, (0, []))
        if not line:
            raise FormatError(f"{path}: ends after {len(found)} of {wanted} switch ids")
        for word in words:
            number = _whole(path, line, word, "switch id", 0, header.nodes - 1)
            if number in found:
                raise FormatError(f"{path}:{line}: switch {number} is given twice")
            if len(found) == wanted:
                raise FormatError(f"{path}:{line}: more than the {wanted} switch ids of the header")
            kind = "nvswitch" if len(found) < header.nvswitches else "switch"
            found[number] = f"{kind}{number}"
    return found


@dataclass(slots=True)
class _Wires:
    """The links of the file so far, and what a note says about them."""

    path: Path
    header: _Header
    names: dict[int, str]
    lanes: dict[tuple[str, str], tuple[LinkType, int]]
    kinds: dict[tuple[float, float, str], LinkType]
    errors: int = 0  # links with an error rate

    def add(self, line: int, words: list[str]) -> None:
        if len(words) not in (4, 5):
            raise FormatError(f"{self.path}:{line}: {len(words)} fields: a link is "
                              "'src dst rate delay error_rate'")  # fmt: skip
        ends = []
        for what, word in zip(("src", "dst"), words, strict=False):
            ends.append(self.names[_whole(self.path, line, word, what, 0, self.header.nodes - 1)])
        if ends[0] == ends[1]:
            raise FormatError(f"{self.path}:{line}: node {words[0]} is joined to itself")
        try:
            rate, delay = parse_rate(words[2]), parse_seconds(words[3])
            if len(words) == 5 and not 0 <= float(words[4][:40]) <= 1:
                raise ValueError(f"error rate {shown(words[4])}: 0 to 1 was expected")
        except ValueError as error:
            raise FormatError(f"{self.path}:{line}: {error}") from None
        self.errors += len(words) == 5 and float(words[4]) > 0
        self._put(line, ends[0], ends[1], self._link(rate, delay, ends))

    def _link(self, rate: float, delay: float, ends: list[str]) -> LinkType:
        medium = "nvlink" if any(end.startswith("nvswitch") for end in ends) else "ualink"
        key = (rate, delay, medium)
        if key not in self.kinds:
            name = f"ns3-{rate * 8e-9:g}Gbps-{delay * 1e9:g}ns"
            self.kinds[key] = bare_link(name, rate, delay, _SOURCE, medium)
        return self.kinds[key]

    def _put(self, line: int, a: str, b: str, link: LinkType) -> None:
        pair = (b, a) if (b, a) in self.lanes else (a, b)
        same, count = self.lanes.get(pair, (link, 0))
        if same is not link:
            raise FormatError(f"{self.path}:{line}: {a} - {b} is given twice with another rate or "
                              "delay: parallel links must be alike")  # fmt: skip
        self.lanes[pair] = (link, count + 1)


def _device(gpu: str) -> tuple[Device, str]:
    """Return the device that `gpu` names, and a remark."""
    name = gpu.lower()
    device = DEVICES.get(_GPUS.get(name, name))
    if device is None:
        what = f"GPU {shown(gpu)} is not known" if gpu else "the file names no accelerator"
        return DEVICES["generic"], f"{what}: launch and memory are assumed (generic device)"
    return device, "" if name == device.name else f"{gpu} is modelled as {device.title}"


def _vertices(header: _Header, switches: dict[int, str]) -> dict[int, str]:
    hosts = (k for k in range(header.nodes) if k not in switches)
    return switches | {number: f"gpu{i}" for i, number in enumerate(hosts)}


def _graph(name: str, header: _Header, wires: _Wires) -> nx.DiGraph:
    graph = new_graph(name)
    for i in range(header.nodes - header.switches - header.nvswitches):
        host = i // header.per_server if header.per_server else 0
        graph.add_node(f"gpu{i}", kind="gpu", index=i, host=host)
    for vertex in wires.names.values():
        if not vertex.startswith("gpu"):
            graph.add_node(vertex, kind="switch")
    for pair, (link, count) in wires.lanes.items():
        join(graph, [pair], link, count)
    return graph


def read_ns3(path: Path) -> Topology:
    """Return the machine that the ns-3 topology (ASTRA-sim or SimAI) at `path` describes.

    Raises FormatError (file, line, what is wrong).
    """
    rows = iter(_rows(read_text(path, _WHAT)))
    line, words = next(rows, (1, []))
    header = _header(path, line, words)
    names = _vertices(header, _switches(path, header, rows))
    wires = _Wires(path, header, names, {}, {})
    done, left = 0, 0
    for line, words in rows:
        if done == header.links:
            left += 1
            continue
        wires.add(line, words)
        done += 1
    if done < header.links:
        raise FormatError(f"{path}:{line}: the file ends after {done} of the {header.links} links "
                          "its header promises")  # fmt: skip
    device, remark = _device(header.gpu)
    notes = ["ns-3 topology: every link is full duplex at its rate, without packet headers; its "
             "delay is paid once a link"]  # fmt: skip
    notes += [remark] if remark else []
    if wires.errors:
        notes.append(f"error rates of {wires.errors} link(s) are not modelled")
    if left:
        notes.append(f"{left} line(s) beyond the {header.links} links are ignored, as ns-3 does")
    return Topology(path.stem, _graph(path.stem, header, wires), device, notes=tuple(notes))
