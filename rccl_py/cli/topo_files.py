"""`rccl-topo draw` and `convert`: pictures, and machines in other formats."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .common import topology_from

if TYPE_CHECKING:
    from ..planner import Plan
    from ..topology import Topology

__all__ = ["convert", "draw", "graph_lines"]

_SIZE = "256M"  # of a load drawn without one: where links, not hops, decide
_SNIFFED = 1 << 12  # bytes of a file looked at to see a graph XML


def _plan(topology: Topology, asked: str) -> Plan:
    """Return the plan of ``collective[:size]`` on `topology`."""
    from ..collectives import collective_named
    from ..planner import Planner
    from ..topology import lower
    from ..units import parse_size

    name, _, size = asked.partition(":")
    spec, planner = collective_named(name), Planner(lower(topology))
    return planner.plan(spec.name, parse_size(size or _SIZE) / max(spec.blocks(
        planner.fabric.nranks)))  # fmt: skip


def draw(arguments: argparse.Namespace) -> int:
    """Write the picture and print where it is."""
    from ..errors import InvalidArgument
    from ..report.draw import draw as picture
    from ..report.draw import save

    if arguments.by == "bandwidth" and arguments.load:
        raise InvalidArgument("draw: --load draws by load: leave --by bandwidth out")
    by = "load" if arguments.load else arguments.by or "bandwidth"
    topology = topology_from(arguments)
    output = arguments.output or f"{Path(topology.name).name}.png"
    plan = _plan(topology, arguments.load or "allreduce") if by == "load" else None
    figure = picture(topology, by, plan)
    save(figure, output)
    width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
    print(f"{output}: {topology.name}, by {by}, {width} x {height}")
    return 0


def graph_lines(name: str) -> list[str] | None:
    """Return what a graph XML file says, as lines; None for anything else."""
    path = Path(name)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(_SNIFFED).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None  # load() says what is wrong with it
    from ..topology.formats.nccl.graph_file import is_graph_xml, read_graph_xml

    if not is_graph_xml(head):
        return None
    from ..topology.formats.nccl.graph_write import describe_graph

    return describe_graph(read_graph_xml(path))


def _format(arguments: argparse.Namespace) -> str:
    """Return the name of the format to write, from --to or the ending of OUT."""
    from ..errors import InvalidArgument
    from ..topology.formats import WRITERS

    known = ", ".join(WRITERS)
    if arguments.to is not None:
        if arguments.to not in WRITERS:
            raise InvalidArgument(f"convert: --to {arguments.to!r} is not known: one of {known}")
        return str(arguments.to)
    ending = Path(arguments.output).suffix.lower()
    for name, (_, _, endings) in WRITERS.items():
        if ending in endings:
            return name
    raise InvalidArgument(
        f"convert: {arguments.output!r} does not say a format by its ending: give --to, one of "
        f"{known}"
    )


def _rings(topology: Topology) -> str:
    """Return the rings of one node as graph XML.

    Rings share an accelerator's scale-up bandwidth evenly, which is exact on a full mesh and
    behind a switch.
    """
    from ..planner import Planner
    from ..topology import lower
    from ..topology.build import gpus_of, nics_of
    from ..topology.figures import scale_up_bandwidth
    from ..topology.formats.nccl.graph_write import rings_graph, write_graph_xml
    from ..topology.paths import gpu_matrix, nearest_gpus, nic_matrix

    node = replace(topology, nodes=1)
    orders = Planner(lower(node)).rings.orders.tolist()
    graph, k = topology.node, len(orders)
    speed = scale_up_bandwidth(node).least.usable
    slowest = min((graph.edges[e]["bandwidth"] for e in graph.edges), default=0.0)
    nics = nics_of(graph)
    ports = [graph.nodes[nic]["port"] for nic in nics]
    return write_graph_xml(
        rings_graph(
            _entered(orders, nearest_gpus(graph)) if nics else orders,
            [c % len(nics) for c in range(k)] if nics else None,
            speed_intra=(speed or slowest) / k,
            speed_inter=min((p.bandwidth * p.efficiency for p in ports), default=0.0),
            type_intra=_worst([c for row in gpu_matrix(graph) for c in row]),
            type_inter=_worst([_nearest(row) for row in nic_matrix(graph)])
            if nics and len(gpus_of(graph))
            else "PIX",
        )
    )


def _entered(orders: list[list[int]], near: list[list[int]]) -> list[list[int]]:
    """Return ring c turned so that it begins at a GPU next to the NIC it enters by."""
    turned = []
    for c, order in enumerate(orders):
        beside = [gpu for gpu in near[c % len(near)] if gpu in order]
        at = order.index(beside[0]) if beside else 0
        turned.append(order[at:] + order[:at])
    return turned


_CLASSES = ("NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")  # NCCL's path types, nearest first


def _nccl(cell: str) -> str:
    """Return NCCL's name of a path class: links of every kind are its NVL."""
    if cell in _CLASSES:
        return cell
    return {"C2C": "PHB", "P2C": "PHB", "DIS": "SYS"}.get(cell, "NVL")


def _worst(cells: list[str]) -> str:
    return max((_nccl(c) for c in cells if c != "X"), key=_CLASSES.index, default="NVL")


def _nearest(row: list[str]) -> str:
    return min((_nccl(c) for c in row), key=_CLASSES.index, default="SYS")


def _written(topology: Topology, name: str) -> str:
    from importlib import import_module

    from ..topology.formats import WRITERS

    module, function, _ = WRITERS[name]
    writer = getattr(import_module(f"rccl_py.topology.formats.{module}"), function)
    return str(writer(topology))


def convert(arguments: argparse.Namespace) -> int:
    """Write the machine, or its rings, and say where."""
    from ..errors import InvalidArgument

    if arguments.graph and arguments.to is not None:
        raise InvalidArgument("convert: --graph writes graph XML: leave --to out")
    name = "" if arguments.graph else _format(arguments)
    topology = topology_from(arguments)
    text = _rings(topology) if arguments.graph else _written(topology, name)
    text = text if text.endswith("\n") else text + "\n"
    if arguments.output == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"{arguments.output}: cannot be written: {why}") from None
    print(f"{arguments.output}: {topology.name} as {name or 'graph XML'}")
    return 0
