"""`rccl-topo`: list the machines that are installed, and show one or a topology file.

Owns the command's arguments; the texts are report_topo's. Exit codes: 0, or 2 with one line on
stderr.
"""

from __future__ import annotations

import argparse

from .common import OneLineParser, add_cluster_arguments, guarded, topology_from

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="rccl-topo", description="Show machines: devices, links with bandwidth, path matrices."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="name the installed machines")
    show = commands.add_parser("show", help="print a machine's devices, links and paths")
    show.add_argument(
        "topology",
        metavar="NAME|FILE",
        help="a machine's name (rccl-topo list), a YAML file, or NCCL/RCCL XML",
    )
    add_cluster_arguments(show)
    show.add_argument(
        "--matrix", action="store_true", help="print whole matrices, however many GPUs or NICs"
    )
    show.add_argument(
        "--rocm",
        action="store_true",
        help="add the weight, hops and link type tables of rocm-smi --showtopo",
    )
    return parser


def _list() -> int:
    from ..report_topo import table
    from ..topology import machine_names

    print("\n".join(table([[n, text] for n, text in machine_names().items()], indent="")))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from ..report_topo import describe

    print("\n".join(describe(topology_from(arguments), arguments.matrix, arguments.rocm)))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "list":
        return guarded("rccl-topo", _list)
    return guarded("rccl-topo", lambda: _show(arguments))
