"""Write NCCL/RCCL graph XML, make it from rings, and say in words what it holds.

Owns the text that is written. Device numbers 0 to 9 are written plain and the rest as 0x, which
NCCL of any version reads alike. Knows no machine. What NCCL would not take is a FormatError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....errors import FormatError, InvalidArgument
from .graph_file import (
    PATH_TYPES,
    PATTERNS,
    SPEED_LIMIT,
    Channel,
    Graph,
    GraphFile,
    faults_of,
    gpu_text,
)

__all__ = ["describe_graph", "rings_graph", "write_graph_xml"]

_NUMBERS = {name: number for number, name in PATTERNS.items()}


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
        for _, fault in faults_of(graph):
            raise FormatError(f"graph {graph.id}: {fault}")
        if graph.pattern not in _NUMBERS:
            raise FormatError(f"graph {graph.id}: pattern {graph.pattern!r}: one of "
                              f"{', '.join(_NUMBERS)}")  # fmt: skip
        for speed in (graph.speed_intra, graph.speed_inter):
            if not 0 <= speed <= SPEED_LIMIT:
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
    if not all(0 <= s <= SPEED_LIMIT for s in speeds):
        raise InvalidArgument(f"speeds {speed_intra}, {speed_inter}: expected B/s, 0 to 1e15")
    channels = [
        Channel(tuple(ring), (), tuple(net)) for ring, net in zip(rings.tolist(), nets.tolist())
    ]
    graph = Graph(
        0, "ring", tuple(channels), speeds[0], speeds[1], type_intra, type_inter,
        cross_nic=_cross_nic(channels),
        same_channels=all(c.gpus == channels[0].gpus for c in channels),
    )  # fmt: skip
    for _, fault in faults_of(graph):
        raise FormatError(f"orders: {fault}")
    return GraphFile((graph,))


def _cross_nic(channels: Sequence[Channel]) -> int:
    """Return 0 where rings leave by the NIC they enter by, 2 where pairs go back and forth, else 1.

    With 2 NCCL changes pairs of rings round in every other node (src/graph/connect.cc, 2.19 on),
    so a ring enters a node by the NIC of the rail it left the last by.
    """
    nets = [c.nets for c in channels]
    if not any(len(set(own)) > 1 for own in nets):
        return 0
    paired = all(one == two[::-1] for one, two in zip(nets[::2], nets[1::2]))
    return 2 if paired and len(nets) % 2 == 0 else 1


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
