"""`rccl-topo`: list, show, draw, compare, check and convert machines.

Owns the command's arguments; the texts are report.topo's, the pictures report.draw's, and
topo_check and topo_files hold the commands that write or judge. Exit codes: 0; 1 where `diff`
finds differences or `validate` errors; 2 with one line on stderr.
"""

from __future__ import annotations

import argparse

from .common import OneLineParser, add_cluster_arguments, guarded, topology_from

__all__ = ["main"]

_MACHINE = ("a machine's name (rccl-topo list), or a file: YAML, NCCL/RCCL XML, or another format "
            "of docs/machines.md")  # fmt: skip


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="rccl-topo",
        description="Show machines as text or picture, compare two, find what is odd in one, and "
        "write them in other formats.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="name the installed machines")
    show = commands.add_parser("show", help="print a machine's devices, links and paths")
    show.add_argument("topology", metavar="NAME|FILE", help=_MACHINE + ", or an NCCL graph XML")
    add_cluster_arguments(show)
    show.add_argument(
        "--matrix", action="store_true", help="print whole matrices, however many GPUs or NICs"
    )
    show.add_argument(
        "--rocm",
        action="store_true",
        help="add the weight, hops and link type tables of rocm-smi --showtopo",
    )
    _add_draw(commands)
    _add_checks(commands)
    _add_convert(commands)
    return parser


def _add_draw(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    draw = commands.add_parser("draw", help="draw a machine: .png, .svg or .pdf (matplotlib)")
    draw.add_argument("topology", metavar="NAME|FILE", help=_MACHINE)
    draw.add_argument("-o", "--output", metavar="FILE", help="default: the machine's name.png")
    draw.add_argument(
        "--by",
        choices=["bandwidth", "load"],
        help="colour: usable bandwidth (default), or how busy a plan keeps each link",
    )
    draw.add_argument(
        "--load",
        metavar="COLLECTIVE[:SIZE]",
        help="the plan whose load is drawn, such as allreduce:256M (means --by load)",
    )
    add_cluster_arguments(draw)


def _add_checks(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    diff = commands.add_parser(
        "diff",
        help="print how two machines differ; of one, what is not as the rest of it",
        description="Exit code 0: no difference; 1: differences; 2: a file cannot be read.",
    )
    diff.add_argument("a", metavar="A", help=_MACHINE)
    diff.add_argument("b", metavar="B", nargs="?", help="without it, A's healthy twin")
    diff.add_argument("--json", action="store_true", help="print JSON (docs/topo.md)")
    diff.add_argument("--all", action="store_true", help="do not join equal differences")
    validate = commands.add_parser(
        "validate",
        help="check machines: reachable, sound speeds, odd ones out, assumptions",
        description="Exit code 0: no errors; 1: errors; 2: a file cannot be read.",
    )
    validate.add_argument("topologies", metavar="NAME|FILE", nargs="+", help=_MACHINE)
    validate.add_argument("--json", action="store_true", help="print JSON (docs/topo.md)")


def _add_convert(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    convert = commands.add_parser("convert", help="write a machine in another format")
    convert.add_argument("topology", metavar="IN", help=_MACHINE)
    convert.add_argument("output", metavar="OUT", help="the file to write, or - for stdout")
    convert.add_argument(
        "--to", metavar="FORMAT", help="nccl-xml, graphml or json (default: by OUT's ending)"
    )
    convert.add_argument(
        "--graph",
        action="store_true",
        help="write the node's rings as graph XML, for NCCL_GRAPH_FILE",
    )
    add_cluster_arguments(convert)


def _list() -> int:
    from ..report.topo import table
    from ..topology import machine_names

    print("\n".join(table([[n, text] for n, text in machine_names().items()], indent="")))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from ..report.topo import describe
    from .topo_files import check_graph, graph_lines

    lines = graph_lines(arguments.topology)
    if lines is not None:
        check_graph(arguments)
    else:
        lines = describe(topology_from(arguments), arguments.matrix, arguments.rocm)
    print("\n".join(lines))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "list":
        return _list()
    if arguments.command == "show":
        return _show(arguments)
    from . import topo_check, topo_files

    return {
        "draw": topo_files.draw,
        "convert": topo_files.convert,
        "diff": topo_check.diff,
        "validate": topo_check.validate,
    }[arguments.command](arguments)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().read(argv)
    return guarded("rccl-topo", lambda: _run(arguments))
