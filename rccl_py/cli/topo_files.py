"""`rccl-topo draw` and `convert`: pictures, and machines in other formats."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .common import collective_for, filter_from, topology_from
from .plan_sizes import kept

if TYPE_CHECKING:
    from ..planner import Plan
    from ..topology import Topology

__all__ = ["check_graph", "convert", "draw", "graph_lines"]

_SIZE = "256M"  # of a load drawn without one: where links, not hops, decide
_WHOLE = ("graphml", "json")  # formats that hold every node and the network
_SNIFFED = 1 << 12  # bytes of a file looked at to see a graph XML


def _plan(topology: Topology, asked: str) -> Plan:
    """Return the plan of ``collective[:size]`` on `topology`."""
    from ..planner import Planner
    from ..topology import lower
    from ..units import parse_size

    name, _, size = asked.partition(":")
    spec, bytes_ = collective_for(name), parse_size(size or _SIZE)
    planner = Planner(
        lower(topology),
        filter_from("--algo", None, "NCCL_ALGO"),
        filter_from("--proto", None, "NCCL_PROTO"),
        cache=kept,
    )
    return planner.plan(spec.name, bytes_ / max(spec.blocks(planner.fabric.nranks)))


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


def check_graph(arguments: argparse.Namespace) -> None:
    """Raise InvalidArgument for an option of `show` that means nothing for graph XML."""
    from ..errors import InvalidArgument

    given = dict(vars(arguments), command=None, topology=None)
    given.update({name: given[name] or None for name in ("matrix", "rocm")})  # off is not given
    for name in (name for name, value in given.items() if value is not None):
        raise InvalidArgument(
            f"show: {arguments.topology} is graph XML, rings and trees without a machine: "
            f"--{name.replace('_', '-')} has no effect on it"
        )


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


def _left_out(topology: Topology, name: str) -> list[str]:
    """Return what of the machine the format cannot hold: remarks for its user."""
    if name in _WHOLE or topology.nodes == 1:
        return []
    if not name:  # rings of one node are what NCCL takes for each of many
        other = "unlike the first are left out" if topology.unlike else ""
        return [f"{len(topology.unlike)} node(s) {other}: the rings are node 0's"] if other else []
    network = f"the {topology.network.kind} network"
    more = f"; {len(topology.unlike)} nodes are unlike it" if topology.unlike else ""
    return [f"only node 0 of {topology.nodes} is written, without {network}{more}: {name} holds "
            f"one node (--to json holds all)"]  # fmt: skip


def _written(topology: Topology, name: str) -> str:
    from importlib import import_module

    from ..topology.formats import WRITERS

    module, function, _ = WRITERS[name]
    writer = getattr(import_module(f"rccl_py.topology.formats.{module}"), function)
    return str(writer(topology))


def convert(arguments: argparse.Namespace) -> int:
    """Write the machine, or its rings, and say where."""
    from ..errors import InvalidArgument
    from .topo_graph import graph_of_rings

    if arguments.graph and arguments.to is not None:
        raise InvalidArgument("convert: --graph writes graph XML: leave --to out")
    name = "" if arguments.graph else _format(arguments)
    topology = topology_from(arguments)
    remarks = _left_out(topology, name)
    if arguments.graph:
        text, more = graph_of_rings(topology)
        remarks += more
    else:
        text = _written(topology, name)
    text = text if text.endswith("\n") else text + "\n"
    if arguments.output == "-":
        sys.stdout.write(text)
        _remark(remarks)
        return 0
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"{arguments.output}: cannot be written: {why}") from None
    print(f"{arguments.output}: {topology.name} as {name or 'graph XML'}")
    _remark(remarks)
    return 0


def _remark(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"rccl-topo: note: {remark}", file=sys.stderr)
