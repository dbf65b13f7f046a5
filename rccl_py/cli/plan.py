"""rccl-plan: what a collective would do on a machine, and why the other ways lose."""

from __future__ import annotations

import argparse
import json
import os

from .common import OneLineParser, add_topology_arguments, guarded, topology_from

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="rccl-plan",
        description="Print every candidate with its predicted time and the reason it lost, the "
        "lower bound, the bottleneck, and the rings and trees as RCCL's INFO log prints them.",
        epilog="NCCL_ALGO and NCCL_PROTO restrict the candidates, as --algo and --proto do.",
    )
    parser.add_argument("collective", help="allreduce, allgather, reduce_scatter, alltoall, ...")
    add_topology_arguments(parser)
    parser.add_argument(
        "--size",
        action="append",
        metavar="BYTES",
        help="rccl-tests' size, such as 64K or 1G (may be repeated; default: a table of sizes)",
    )
    parser.add_argument("-g", "--ngpus", type=int, metavar="K", help="use the first K GPUs")
    parser.add_argument("-r", "--root", type=int, default=0, help="root of rooted collectives")
    parser.add_argument("--algo", metavar="LIST", help="as NCCL_ALGO: ring,tree or ^tree or ...")
    parser.add_argument("--proto", metavar="LIST", help="as NCCL_PROTO: LL, LL128, Simple")
    parser.add_argument("--json", action="store_true", help="print the plans as JSON")
    parser.add_argument("--ranks", type=int, default=8, help="tree lines of so many ranks (8)")
    parser.add_argument("--all", action="store_true", help="print long rings and trees whole")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    return guarded("rccl-plan", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from ..collectives import collective_named
    from ..planner import Planner
    from ..planner.describe import plan_as_dict, plan_lines, table_lines
    from ..topology import lower
    from ..units import parse_size

    spec = collective_named(arguments.collective)
    sizes = [parse_size(s) for text in arguments.size or [] for s in text.split(",")]
    algo = arguments.algo or os.environ.get("NCCL_ALGO")
    proto = arguments.proto or os.environ.get("NCCL_PROTO")
    topology = topology_from(arguments)
    planner = Planner(lower(topology, arguments.ngpus), algo, proto)
    blocks = max(spec.blocks(planner.fabric.nranks))
    wanted = sizes or [8 * 4**k for k in range(15)]
    plans = [planner.plan(spec.name, size / blocks, arguments.root) for size in wanted]
    if arguments.json:
        print(json.dumps([plan_as_dict(p, planner) for p in plans], indent=1))
        return 0
    if not sizes:
        print(f"# {spec.name} on {planner.fabric.name}, {planner.fabric.nranks} ranks")
        print("\n".join(table_lines(plans)))
    for plan in plans if sizes else []:
        print("\n".join(plan_lines(plan, planner, arguments.ranks, whole=arguments.all)))
    for note in topology.notes:
        print(f"# note: {note}")
    return 0
