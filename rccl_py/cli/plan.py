"""rccl-plan: what a collective would do on a machine, and why the other ways lose."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import plan_alltoallv, plan_barrier, plan_faults, plan_modes, plan_schedules, plan_sizes
from .common import (
    OneLineParser,
    add_engine_argument,
    add_topology_arguments,
    at_least,
    filter_from,
    guarded,
    print_json,
    topology_from,
)

if TYPE_CHECKING:
    from ..planner import Plan, Planner
    from ..programs import Custom
    from ..timing import Timeline
    from ..topology import Topology

__all__ = ["main"]


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="rccl-plan",
        description="Print every candidate with its predicted time and the reason it lost, the "
        "lower bound, the bottleneck, and the rings and trees as RCCL's INFO log prints them.",
        epilog="Options that would have no effect are refused. A barrier goes by "
        "dissemination, or direct where ranks are few; it has no options but the machine's. "
        "NCCL_ALGO and NCCL_PROTO restrict the candidates, as --algo and --proto do. "
        "RCCL_PY_SCHEDULES names schedules, as --schedule does.",
    )
    parser.add_argument(
        "collective",
        nargs="?",
        help="allreduce, allgather, reduce_scatter, alltoall, alltoallv, barrier, ... (may be left "
        "out with --schedule)",
    )
    add_topology_arguments(parser)
    parser.add_argument(
        "--size",
        action="append",
        metavar="BYTES",
        help="rccl-tests' size, such as 64K or 1G (may be repeated; default: a table of sizes)",
    )
    parser.add_argument("-g", "--ngpus", type=at_least(1), metavar="K", help="use the first K GPUs")
    parser.add_argument(
        "-r",
        "--root",
        type=at_least(0),
        metavar="R",
        help="root of broadcast, reduce, gather and scatter (0)",
    )
    parser.add_argument("--algo", metavar="LIST", help="as NCCL_ALGO: ring,tree or ^tree or ...")
    parser.add_argument("--proto", metavar="LIST", help="as NCCL_PROTO: LL, LL128, Simple")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="take what a library would: nccl-2.30, rccl-2.28, rccl-2.26, rccl-2.22 or "
        "csv:FILE (docs/policies.md)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="what each policy picks, beside the best by the physical model",
    )
    parser.add_argument(
        "--tuner-csv",
        metavar="FILE",
        help="write the best plans, as far as NCCL can express them, for its tuner plugin",
    )
    parser.add_argument(
        "--schedule",
        action="append",
        metavar="FILE",
        help="compare a schedule of another tool with the planner's choice: MSCCL XML or MSCCL++ "
        "JSON (docs/custom.md; may be repeated)",
    )
    parser.add_argument(
        "--export", metavar="FILE", help="write the plan of the one --size as MSCCL XML"
    )
    parser.add_argument(
        "--limits",
        choices=plan_schedules.LIMITS,
        help="whose reader must hold the --export: rccl (64 steps a thread block; the default), "
        "msccl (256), none",
    )
    parser.add_argument(
        "--pieces", type=int, metavar="K", help="--export the algorithm in K pieces instead"
    )
    plan_faults.add_arguments(parser)
    plan_sizes.add_arguments(parser)
    plan_alltoallv.add_arguments(parser)
    add_engine_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the plans as JSON")
    parser.add_argument(
        "--ranks", type=at_least(1), metavar="N", help="print tree lines of N ranks (8)"
    )
    parser.add_argument(
        "--all", action="store_true", help="print rings and trees always, and whole"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().read(argv)
    return guarded("rccl-plan", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from ..collectives import collective_named
    from ..errors import InvalidUsage

    arguments.collective = plan_modes.named(arguments.collective)
    plan_modes.check(arguments)
    if arguments.collective == "barrier":
        return plan_barrier.run(arguments)
    if arguments.collective == "alltoallv":
        return plan_alltoallv.run(arguments)
    customs = plan_schedules.read(plan_schedules.named(arguments.schedule, os.environ, os.pathsep))
    spec = collective_named(plan_schedules.collective_of(arguments.collective, customs))
    plan_modes.check_root(arguments, spec.name, rooted=spec.rooted)
    root, sizes = arguments.root or 0, plan_sizes.sizes_from(arguments)
    topology = topology_from(arguments)
    planner = _planner(arguments, topology, customs)
    blocks = max(spec.blocks(planner.fabric.nranks))
    wanted = sizes or [8 * 4**k for k in range(15)]
    if arguments.tuner_csv:
        _write_tuner(arguments, planner, spec.name, blocks, sorted(set(sizes)))
    if arguments.compare:
        _compare(arguments, planner, spec.name, [size / blocks for size in wanted])
        return 0
    if arguments.breakpoints:
        plan_sizes.breakpoints(planner, spec.name, sizes, root, as_json=arguments.json)
        return 0
    plans = [planner.plan(spec.name, size / blocks, root) for size in wanted]
    if arguments.export:
        if len(sizes) != 1:
            raise InvalidUsage("--export writes one plan: give one --size")
        plan_schedules.export(
            plans[0], arguments.export, arguments.limits or "rccl", arguments.pieces
        )
    if arguments.json:
        _print_json(arguments, plans, planner, topology, customs)
    elif arguments.explain:
        plan_sizes.explain(plans, planner)
        _print_timed(arguments, plans)
        _print_notes(topology)
    else:
        if customs:
            print("\n".join(plan_schedules.lines(plans, planner, customs)))
        _print(arguments, plans, planner, topology, whole=not sizes)
    if arguments.without and not arguments.json:
        healthy = _planner(arguments, plan_faults.healthy(arguments), customs)
        print("\n".join(plan_faults.compared(plan, healthy)[0] for plan in plans))
    return 0


def _planner(arguments: argparse.Namespace, topology: Topology, customs: list[Custom]) -> Planner:
    """Return the planner the arguments and the environment ask for."""
    from ..planner import Planner
    from ..planner.policies.compare import EXPRESSIBLE
    from ..topology import lower

    ngpus = arguments.ngpus or (customs[0].nranks if customs else None)
    return Planner(
        lower(topology, ngpus),
        filter_from("--algo", arguments.algo, "NCCL_ALGO"),
        filter_from("--proto", arguments.proto, "NCCL_PROTO"),
        policy=arguments.policy,
        custom=customs,
        synthesise=arguments.synthesis or "auto",
        cache=plan_sizes.kept,
        verify=arguments.verify or arguments.explain,
        always=EXPRESSIBLE if arguments.tuner_csv else (),
    )


def _print_json(
    arguments: argparse.Namespace,
    plans: list[Plan],
    planner: Planner,
    topology: Topology,
    customs: list[Custom],
) -> None:
    """Print the plans as JSON."""
    from ..planner.describe import plan_as_dict

    told = [plan_as_dict(p, planner) | _more(p, topology, arguments.engine) for p in plans]
    for one, plan in zip(told, plans) if customs else ():
        one["schedules"] = plan_schedules.as_dicts(plan, customs)
    for one, plan in zip(told, plans) if arguments.explain else ():
        one["breakpoints"] = plan_sizes.as_dicts(planner, plan.collective, plan.root)
    if arguments.without:
        healthy = _planner(arguments, plan_faults.healthy(arguments), customs)
        told = [one | plan_faults.compared(p, healthy)[1] for one, p in zip(told, plans)]
    print_json(told)


def _print(
    arguments: argparse.Namespace,
    plans: list[Plan],
    planner: Planner,
    topology: Topology,
    *,
    whole: bool,
) -> None:
    """Print a table of plans (whole), or each of them, and what to think of them."""
    from ..planner.describe import plan_lines, table_lines

    if whole:
        print(f"# {plans[0].collective} on {planner.fabric.name}, {planner.fabric.nranks} ranks")
        print("\n".join(table_lines(plans)))
    for plan in [] if whole else plans:
        print("\n".join(plan_lines(plan, planner, arguments.ranks or 8, whole=arguments.all)))
    print("\n".join(_trust(plans, topology)))
    _print_timed(arguments, plans)
    _print_notes(topology)


def _print_notes(topology: Topology) -> None:
    """Print what reading or changing the machine had to assume."""
    for note in topology.notes:
        print(f"# note: {note}")


def _print_timed(arguments: argparse.Namespace, plans: list[Plan]) -> None:
    """Print what the --engine that is asked for says of each plan, if one is."""
    from ..units import format_size

    for plan in plans if arguments.engine else []:
        said = _timed(plan, arguments.engine).explain(plan.profile.fabric).splitlines()
        print("\n".join(f"# {format_size(plan.size)}: {text}" for text in said))


def _trust(plans: list[Plan], topology: Topology) -> Iterator[str]:
    """Yield how far off predictions of these sizes usually are, one line a class of sizes."""
    from ..report.band import band_for

    seen = {band_for(topology, _nodes(p), p.size, p.collective): None for p in plans}
    for band in seen:
        yield "# error band: " + (str(band) if band else "no machine like this was measured")


def _timed(plan: Plan, engine: str) -> Timeline:
    """Return the plan's time by an engine, with every message where that is not too much."""
    from ..errors import InvalidUsage

    try:
        return plan.timed(engine, detail=True)
    except InvalidUsage:
        return plan.timed(engine)


def _nodes(plan: Plan) -> int:
    return len(set(plan.profile.fabric.node.tolist()))


def _more(plan: Plan, topology: Topology, engine: str | None) -> dict[str, object]:
    """Return what JSON says besides the plan: the usual error, and another engine's time."""
    from dataclasses import asdict

    from ..report.band import band_for

    band = band_for(topology, _nodes(plan), plan.size, plan.collective)
    found: dict[str, object] = {"error_band": asdict(band) if band else None}
    if engine:
        line = _timed(plan, engine)
        fabric = plan.profile.fabric
        found["timed"] = {"engine": line.engine, "why": line.why, "seconds": line.seconds,
                          "waits": line.why_slow(fabric)}  # fmt: skip
    return found


def _compare(
    arguments: argparse.Namespace, planner: Planner, collective: str, wanted: list[float]
) -> None:
    """Print what each policy picks, by size, beside the best."""
    from ..errors import InvalidUsage
    from ..planner.policies import policies_for
    from ..planner.policies.compare import compared, comparison_as_dict, comparison_lines

    policies = list(policies_for(planner.fabric.arch))
    if planner.policy is not None and planner.policy.name not in [p.name for p in policies]:
        policies.append(planner.policy)
    if not policies:
        raise InvalidUsage(
            f"--compare: no policy knows the devices of {planner.fabric.name} (arch "
            f"{planner.fabric.arch!r}): give one with --policy csv:FILE"
        )
    rows = [
        row
        for block in wanted
        for row in compared(planner, policies, collective, block, arguments.root or 0)
    ]
    if arguments.json:
        print_json([comparison_as_dict(row) for row in rows])
        return
    print(f"# {collective} on {planner.fabric.name}, {planner.fabric.nranks} ranks")
    print("\n".join(comparison_lines(rows)))
    for note in sorted({row.pick.note for row in rows} - {""}):
        print(f"# note: {note}")


def _write_tuner(
    arguments: argparse.Namespace, planner: Planner, collective: str, blocks: int, sizes: list[int]
) -> None:
    """Write the tuner file: the best plan that NCCL can express, by range of sizes."""
    from .. import __version__
    from ..planner.policies import figures_of, tuner_csv
    from ..planner.policies.compare import rules_of
    from .perf_files import write_whole

    fabric = planner.fabric
    wanted = sizes or [1 << k for k in range(10, 34)]
    plans = [planner.plan_by(None, collective, s / blocks, arguments.root or 0) for s in wanted]
    rules, remarks = rules_of(plans, figures_of(fabric))
    head = [
        f"{collective} on {fabric.name}, {fabric.nranks} ranks: the fastest by the model of "
        f"rccl_py {__version__} that NCCL has a name for",
        "use: NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=this file",
    ]
    write_whole(arguments.tuner_csv, tuner_csv(rules, [*head, *remarks]))
