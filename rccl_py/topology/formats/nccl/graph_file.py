"""Read NCCL/RCCL graph XML: the channels a search found, as NCCL_GRAPH_FILE takes them.

Owns what a <graph> and its <channel> mean and which are refused: a channel that names a GPU twice,
channels of one ring or tree that do not name the same GPUs, counts that differ from what is
listed. Knows no machine. Every failure is a FormatError that opens with file and line.

    <graph pattern="4" ...>                 ring
      <channel>
        <net dev="0"/>  <gpu dev="0"/> ... <gpu dev="7"/>  <net dev="3"/>
      </channel>                            enters by NIC 0, leaves by NIC 3
    </graph>

Numbers: `speedintra`, `speedinter` are GB/s a channel, here whole B/s; `latencyinter` is us, here
s. `dev` is decimal or 0x hex (NCCL before 2.20 reads a bare "10" as ten, as here; later ones as
sixteen). Of a job over several hosts the number holds the host in its upper eight bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..xml_tree import Element, Notes, read_tree, root_name

__all__ = [
    "PATH_TYPES",
    "PATTERNS",
    "SPEED_LIMIT",
    "Channel",
    "Graph",
    "GraphFile",
    "faults_of",
    "gpu_text",
    "graphs_of",
    "is_graph_xml",
    "read_graph_xml",
]

PATTERNS = {
    1: "balanced-tree", 2: "split-tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet-direct",
}  # fmt: skip
"""Names of NCCL's pattern numbers (src/include/graph.h, 2.19 to 2.30)."""
_COMPLETE = frozenset({"balanced-tree", "split-tree", "tree", "ring"})  # each names every GPU
PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path types, nearest first."""
_CHANNELS = 1024  # NCCL has 64, RCCL 256
_GRAPHS = 64  # NCCL writes 4 to 6
SPEED_LIMIT = 1e15  # B/s; nothing is faster
_HOST = 56  # bits below the host in a device number of a job over several hosts
_DEV = re.compile(r"-?[0-9]{1,18}|(0[xX])?[0-9a-fA-F]{1,16}")


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel: GPUs in order, and the NICs it enters and leaves the node by.

    gpus: dev numbers, () where the file gives ranks only; ranks: () where it gives none;
    nets: () on one node, else (enters,) or (enters, leaves), -1 for none.
    """

    gpus: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    nets: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int, ...]:
        """The GPUs by the numbers the file tells them apart with: dev, else rank."""
        return self.gpus or self.ranks


@dataclass(frozen=True, slots=True)
class Graph:
    """What a search found for one pattern; speeds in B/s a channel, latency in s."""

    id: int
    pattern: str
    channels: tuple[Channel, ...]
    speed_intra: float
    speed_inter: float
    type_intra: str
    type_inter: str
    cross_nic: int = 0
    same_channels: bool = False
    latency_inter: float = 0.0


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graphs of one file, and remarks on it (which equality leaves out)."""

    graphs: tuple[Graph, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)


def is_graph_xml(text: str) -> bool:
    """Return whether `text` opens as a graph file: its first element is <graphs>."""
    return root_name(text) == "graphs"


def _device(element: Element, name: str) -> int | None:
    """Return attribute dev or rank; None when absent. 64-bit two's complement, as NCCL writes."""
    text = element.text(name)
    if not text:
        return None
    if not _DEV.fullmatch(text):
        raise element.error(f"<{element.name}> {name}={text[:40]!r} is no device number")
    decimal = text.lstrip("-").isdecimal()
    value = int(text) if decimal else int(text, 16)
    return value - (1 << 64) if value >= 1 << 63 else value


def _whole(element: Element, name: str, low: int, high: int, default: int | None = None) -> int:
    value = element.integer(name)
    if value is None and default is not None:
        return default
    if value is None or not low <= value <= high:
        raise element.error(
            f"<{element.name}> {name} {element.text(name)[:40]!r}: expected {low} to {high}"
        )
    return value


def _speed(element: Element, name: str) -> float:
    value = element.number(name)
    if value is None or not 0 <= value * 1e9 <= SPEED_LIMIT:
        raise element.error(
            f"<graph> {name} {element.text(name)[:40]!r}: expected GB/s, 0 to {SPEED_LIMIT / 1e9:g}"
        )
    return float(round(value * 1e9))


def _type(element: Element, name: str) -> str:
    text = element.text(name).upper()
    if text not in PATH_TYPES:
        raise element.error(
            f"<graph> {name} {text[:20]!r} is no path type: one of {', '.join(PATH_TYPES)}"
        )
    return text


def _channel(element: Element, notes: Notes) -> Channel:
    devs: list[int | None] = []
    ranks: list[int | None] = []
    nets: list[int] = []
    for child in element.children:
        if child.name == "gpu":
            devs.append(_device(child, "dev"))
            ranks.append(_device(child, "rank"))
            if devs[-1] is None and ranks[-1] is None:
                raise child.error("<gpu> has neither dev nor rank")
        elif child.name == "net":
            net = _device(child, "dev")
            if net is None:
                raise child.error("<net> has no dev")
            nets.append(max(net, -1))
        else:
            notes.add(f"element <{child.name[:40]}> is not known: ignored", child.line)
    if not devs:
        raise element.error("<channel> names no <gpu>")
    if len(nets) > 2:
        raise element.error(f"<channel> names {len(nets)} <net>: expected the one it enters by and "
                            "the one it leaves by")  # fmt: skip
    return Channel(
        _all_or_none(element, "dev", devs), _all_or_none(element, "rank", ranks), tuple(nets)
    )


def _all_or_none(element: Element, kind: str, numbers: list[int | None]) -> tuple[int, ...]:
    given = tuple(n for n in numbers if n is not None)
    if given and len(given) < len(numbers):
        raise element.error(f"<channel>: some <gpu> have a {kind} and some do not")
    if any(n < 0 for n in given):
        raise element.error(f"<channel>: a <gpu> has the negative {kind} {min(given)}")
    return given


def faults_of(graph: Graph) -> Iterator[tuple[int, str]]:
    """Return (channel or -1, what is wrong with it) of a graph; nothing when it holds."""
    everyone: set[int] = set().union(*(c.order for c in graph.channels))
    for k, channel in enumerate(graph.channels):
        seen: set[int] = set()
        for gpu in channel.order:
            if gpu in seen:
                yield k, f"channel {k} names GPU {gpu_text(gpu)} twice"
            seen.add(gpu)
        if channel.ranks and len(set(channel.ranks)) < len(channel.ranks):
            yield k, f"channel {k} names a rank twice"
        missing = sorted(everyone - seen)
        if graph.pattern in _COMPLETE and missing:
            yield k, (f"channel {k} of the {graph.pattern} leaves out GPU {gpu_text(missing[0])}, "
                      "which another channel names: each must name every GPU")  # fmt: skip


def _graph(element: Element, notes: Notes) -> Graph:
    number = _whole(element, "pattern", 1, max(PATTERNS))
    own = element.named("channel")
    for child in element.children:
        if child.name != "channel":
            notes.add(f"element <{child.name[:40]}> is not known: ignored", child.line)
    count = _whole(element, "nchannels", 0, _CHANNELS, len(own))
    if count != len(own):
        raise element.error(f"<graph> nchannels {count}, but {len(own)} <channel> are listed: "
                            "they must be equal")  # fmt: skip
    latency = element.number("latencyinter") or 0.0
    if not 0 <= latency <= 1e6:
        raise element.error(f"<graph> latencyinter {latency:g}: expected us, 0 to 1e6")
    graph = Graph(
        id=_whole(element, "id", 0, 1 << 20),
        pattern=PATTERNS[number],
        channels=tuple(_channel(channel, notes) for channel in own),
        speed_intra=_speed(element, "speedintra"),
        speed_inter=_speed(element, "speedinter"),
        type_intra=_type(element, "typeintra"),
        type_inter=_type(element, "typeinter"),
        cross_nic=_whole(element, "crossnic", 0, 2, 0),
        same_channels=bool(_whole(element, "samechannels", 0, 1, 0)),
        latency_inter=round(latency * 1e-6, 12),
    )
    for k, fault in faults_of(graph):
        raise own[k].error(f"<graph> {graph.id}: {fault}")
    return graph


def graphs_of(root: Element, notes: Notes) -> GraphFile:
    """Return the graphs below a <graphs> element. Raises FormatError."""
    if root.name != "graphs":
        raise root.error(f"the root element is <{root.name[:40]}>: a graph file has <graphs>")
    version = root.integer("version")
    if version not in (None, 1):
        raise root.error(f"<graphs> version {version} is not known: expected 1")
    found: dict[int, Element] = {}
    graphs = []
    for child in root.children:
        if child.name != "graph":
            notes.add(f"element <{child.name[:40]}> is not known: ignored", child.line)
            continue
        if len(found) >= _GRAPHS:
            raise child.error(f"more than {_GRAPHS} <graph>")
        graphs.append(_graph(child, notes))
        first = found.setdefault(graphs[-1].id, child)
        if first is not child:
            raise child.error(
                f"graph id {graphs[-1].id} is given twice, first on line {first.line}"
            )
    if not graphs:
        raise root.error("<graphs> has no <graph>")
    return GraphFile(tuple(graphs), notes.lines())


def read_graph_xml(path: Path) -> GraphFile:
    """Return the graphs of the NCCL/RCCL graph XML file at `path`.

    Raises FormatError (file, line, what is wrong or missing).
    """
    notes = Notes()
    return graphs_of(read_tree(path, notes), notes)


def gpu_text(number: int) -> str:
    """Return how a person reads a device number: "5", or "host 2 gpu 5"."""
    host, dev = number >> _HOST, number & ((1 << _HOST) - 1)
    return f"host {host} gpu {dev}" if host > 0 else str(number)
