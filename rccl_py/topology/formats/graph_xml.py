"""Read and write NCCL/RCCL graph XML: the channels a search found, as NCCL_GRAPH_FILE takes them.

Owns what a <graph> and its <channel> mean and which are refused: a channel that names a GPU twice,
channels of one ring or tree that do not name the same GPUs, counts that differ from what is
listed. Knows no machine. Every failure is a FormatError that opens with file and line.

    <graph pattern="4" ...>                 ring
      <channel>
        <net dev="0"/>  <gpu dev="0"/> ... <gpu dev="7"/>  <net dev="3"/>
      </channel>                            enters by NIC 0, leaves by NIC 3
    </graph>

Numbers: `speedintra`, `speedinter` are GB/s a channel, here whole B/s; `latencyinter` is us, here
s. `dev` is decimal or 0x hex. NCCL before 2.20 reads a bare "10" as ten, later ones as sixteen;
written are 0 to 9 plain and the rest as 0x, which all read alike. Of a job over several hosts the
number holds the host in its upper eight bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, InvalidArgument
from .xml_tree import Element, Notes, read_tree, root_name

__all__ = [
    "PATH_TYPES",
    "PATTERNS",
    "Channel",
    "Graph",
    "GraphFile",
    "describe_graph",
    "graphs_of",
    "is_graph_xml",
    "read_graph_xml",
    "rings_graph",
    "write_graph_xml",
]

PATTERNS = {
    1: "balanced-tree", 2: "split-tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet-direct",
}  # fmt: skip
"""Names of NCCL's pattern numbers (src/include/graph.h, 2.19 to 2.30)."""
_NUMBERS = {name: number for number, name in PATTERNS.items()}
_COMPLETE = frozenset({"balanced-tree", "split-tree", "tree", "ring"})  # each names every GPU
PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path types, nearest first."""
_CHANNELS = 1024  # NCCL has 64, RCCL 256
_GRAPHS = 64  # NCCL writes 4 to 6
_SPEED = 1e15  # B/s; nothing is faster
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
    if value is None or not 0 <= value * 1e9 <= _SPEED:
        raise element.error(
            f"<graph> {name} {element.text(name)[:40]!r}: expected GB/s, 0 to {_SPEED / 1e9:g}"
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


def _faults(graph: Graph) -> Iterator[tuple[int, str]]:
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
    for k, fault in _faults(graph):
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


def _spelled(number: int) -> str:
    return str(number) if number < 10 else f"{number:#x}"


def _lines(graph: Graph) -> Iterator[str]:
    values: dict[str, Any] = {
        "id": graph.id, "pattern": _NUMBERS[graph.pattern], "crossnic": graph.cross_nic,
        "nchannels": len(graph.channels), "speedintra": f"{graph.speed_intra / 1e9:.15g}",
        "speedinter": f"{graph.speed_inter / 1e9:.15g}",
        "latencyinter": f"{graph.latency_inter * 1e6:.12g}", "typeintra": graph.type_intra,
        "typeinter": graph.type_inter, "samechannels": int(graph.same_channels),
    }  # fmt: skip
    opening = "  <graph " + " ".join(f'{name}="{value}"' for name, value in values.items())
    if not graph.channels:
        yield opening + "/>"
        return
    yield opening + ">"
    for channel in graph.channels:
        yield "    <channel>"
        enter, leave = channel.nets[:1], channel.nets[1:]
        yield from (f'      <net dev="{_spelled(net)}"/>' for net in enter)
        for k in range(len(channel.order)):
            own = f' dev="{_spelled(channel.gpus[k])}"' if channel.gpus else ""
            own += f' rank="{channel.ranks[k]}"' if channel.ranks else ""
            yield f"      <gpu{own}/>"
        yield from (f'      <net dev="{_spelled(net)}"/>' for net in leave)
        yield "    </channel>"
    yield "  </graph>"


def write_graph_xml(graphs: GraphFile | Sequence[Graph]) -> str:
    """Return the text of a graph file, which read_graph_xml reads back to equality.

    Raises FormatError for a graph that NCCL would not take: a GPU twice in a channel, an unknown
    pattern, a speed that is not 0 to 1e15 B/s.
    """
    own = graphs.graphs if isinstance(graphs, GraphFile) else tuple(graphs)
    for graph in own:
        for _, fault in _faults(graph):
            raise FormatError(f"graph {graph.id}: {fault}")
        if graph.pattern not in _NUMBERS:
            raise FormatError(f"graph {graph.id}: pattern {graph.pattern!r}: one of "
                              f"{', '.join(_NUMBERS)}")  # fmt: skip
        for speed in (graph.speed_intra, graph.speed_inter):
            if not 0 <= speed <= _SPEED:
                raise FormatError(f"graph {graph.id}: speed {speed:g} B/s: expected 0 to 1e15")
    lines = ['<graphs version="1">', *(line for graph in own for line in _lines(graph))]
    return "\n".join([*lines, "</graphs>", ""])


def _rows(values: object, what: str, shape: str, ok: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidArgument(f"{what}: rows of different lengths: expected {shape}") from None
    if not (array.size and np.issubdtype(array.dtype, np.integer) and ok(array)):
        raise InvalidArgument(f"{what}: {array.dtype}{list(array.shape)} given: expected {shape}")
    return array


def rings_graph(
    orders: object,
    nics: object = None,
    *,
    speed_intra: float,
    speed_inter: float = 0.0,
    type_intra: str = "NVL",
    type_inter: str = "PIX",
) -> GraphFile:
    """Return the graph file of some rings, one a channel.

    orders : int[k, n], the GPUs (dev) of each ring in order. nics : int[k] or int[k, 2], the NIC a
    ring enters and leaves the node by; None on one node. speed_intra, speed_inter : B/s a channel
    inside the node and between nodes. type_intra, type_inter : the worst path, of PATH_TYPES.

    Raises
    ------
    InvalidArgument, FormatError
        When the arrays have other shapes, or a ring names a GPU twice or leaves one out.
    """
    rings = _rows(orders, "orders", "int[rings, GPUs]", lambda a: a.ndim == 2 and a.min() >= 0)
    k = len(rings)
    nets = np.zeros((k, 0), dtype=np.int64)
    if nics is not None:
        nets = _rows(nics, "nics", f"int[{k}] or int[{k}, 2]",
                     lambda a: a.shape in ((k,), (k, 2)) and a.min() >= -1)  # fmt: skip
        nets = nets if nets.ndim == 2 else np.stack([nets, nets], 1)
    for name in (type_intra, type_inter):
        if name not in PATH_TYPES:
            raise InvalidArgument(f"path type {name!r}: one of {', '.join(PATH_TYPES)}")
    speeds = [float(round(s)) if math.isfinite(s) else -1.0 for s in (speed_intra, speed_inter)]
    if not all(0 <= s <= _SPEED for s in speeds):
        raise InvalidArgument(f"speeds {speed_intra}, {speed_inter}: expected B/s, 0 to 1e15")
    channels = [
        Channel(tuple(ring), (), tuple(net)) for ring, net in zip(rings.tolist(), nets.tolist())
    ]
    graph = Graph(
        0, "ring", tuple(channels), speeds[0], speeds[1], type_intra, type_inter,
        cross_nic=int(any(len(set(c.nets)) > 1 for c in channels)),
        same_channels=all(c.gpus == channels[0].gpus for c in channels),
    )  # fmt: skip
    for _, fault in _faults(graph):
        raise FormatError(f"orders: {fault}")
    return GraphFile((graph,))


def describe_graph(graphs: GraphFile) -> list[str]:
    """Return the lines a person reads a graph file as."""
    lines = []
    for graph in graphs.graphs:
        lines.append(
            f"graph {graph.id}: {graph.pattern}, {len(graph.channels)} channels, "
            f"{graph.speed_intra / 1e9:g} GB/s a channel inside ({graph.type_intra}), "
            f"{graph.speed_inter / 1e9:g} GB/s between nodes ({graph.type_inter})"
            + (", same channels" if graph.same_channels else "")
            + (f", cross-NIC {graph.cross_nic}" if graph.cross_nic else "")
        )
        for k, channel in enumerate(graph.channels):
            nets = ["none" if net < 0 else gpu_text(net) for net in channel.nets]
            what = "gpu" if channel.gpus else "rank"
            order = " ".join(gpu_text(gpu) for gpu in channel.order)
            lines.append(f"  channel {k}: " + " -> ".join(
                [*(f"nic {n}" for n in nets[:1]), f"{what} {order}",
                 *(f"nic {n}" for n in nets[1:])]))  # fmt: skip
    return lines + [f"note: {note}" for note in graphs.notes]
