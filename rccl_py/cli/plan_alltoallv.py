"""What ``rccl-plan alltoallv`` prints: the plan of an exchange of unequal parts.

Owns --counts. The plan and its text are rccl_py.planner's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import plan_faults
from .common import filter_from, print_json, topology_from
from .plan_sizes import sizes_from

if TYPE_CHECKING:
    from ..fabric import I64
    from ..planner.flows import UnevenPlan

__all__ = ["add_arguments", "run"]

_MOST = 2048
"""Ranks of an exchange that is planned: 4 million parts take some seconds and a GB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --counts."""
    parser.add_argument(
        "--counts",
        metavar="FILE|zipf:A[:SEED]",
        help="alltoallv: the bytes every rank (row) has for every other (column), as CSV or JSON; "
        "or Zipf-distributed parts, of which a rank sends --size on average (docs/plans.md)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print how unequal parts are best exchanged on a machine; return the exit code."""
    from ..planner.flows import plan_alltoallv
    from ..planner.flows.describe import uneven_as_dict, uneven_lines
    from ..topology import lower

    _check(arguments)
    topology = topology_from(arguments)
    fabric = lower(topology, arguments.ngpus)
    ways, protocols = _ways(arguments.algo), _protocols(arguments.proto)
    plans = [
        plan_alltoallv(fabric, counts, protocols, ways)
        for counts in _counts(arguments, fabric.nranks)
    ]
    healthy = []
    if arguments.without:
        whole = lower(plan_faults.healthy(arguments), arguments.ngpus)
        healthy = [plan_alltoallv(whole, plan.counts, protocols, ways) for plan in plans]
    if arguments.json:
        told = [uneven_as_dict(plan) | _timed(plan, arguments.engine) for plan in plans]
        for one, before in zip(told, healthy):
            one["healthy"] = {"algorithm": before.algorithm, "protocol": before.protocol,
                              "seconds": before.seconds}  # fmt: skip
        print_json(told)
        return 0
    for plan in plans:
        print("\n".join(uneven_lines(plan)))
        if arguments.engine:
            told_by = plan.timeline(arguments.engine).explain(fabric).splitlines()
            print("\n".join(f"# {text}" for text in told_by))
    for plan, before in zip(plans, healthy):
        named, size = f"{before.algorithm}/{before.protocol}", f"{int(plan.counts.sum()):,} bytes"
        print(plan_faults.line(size, before.seconds, named, plan.seconds))
    for note in topology.notes:
        print(f"# note: {note}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise InvalidUsage without counts."""
    from ..errors import InvalidUsage

    if not arguments.counts:
        raise InvalidUsage(
            "alltoallv: --counts is missing: a file of bytes, or zipf:1.6 with a --size"
        )


def _timed(plan: UnevenPlan, engine: str | None) -> dict[str, object]:
    """Return what JSON says of another engine's time."""
    if not engine:
        return {}
    line = plan.timeline(engine)
    return {"timed": {"engine": line.engine, "why": line.why, "seconds": line.seconds}}


def _counts(arguments: argparse.Namespace, n: int) -> Iterator[I64]:
    """Yield the counts of each plan: those of the file, or drawn for each size."""
    from ..errors import InvalidUsage
    from ..formats.counts import read_counts
    from ..planner.flows.demands import zipf_counts

    if n > _MOST:
        raise InvalidUsage(
            f"alltoallv: {n} ranks have {n * n:,} parts: at most {_MOST} ranks (take some of "
            "them, with -g or --nodes)"
        )
    sizes = sizes_from(arguments)
    if arguments.counts.partition(":")[0] != "zipf":
        if sizes:
            raise InvalidUsage("--size is for drawn counts (zipf:1.6): a file has its own")
        yield read_counts(arguments.counts)
        return
    exponent, seed = _zipf(arguments.counts)
    if not sizes:
        raise InvalidUsage(
            f"--counts {arguments.counts} needs a --size: the bytes a rank sends on average"
        )
    for size in sizes:
        yield zipf_counts(n, exponent, size, seed)


def _zipf(text: str) -> tuple[float, int]:
    """Return (exponent, seed) of ``zipf:1.6:7``."""
    from ..errors import InvalidUsage

    _, _, values = text.partition(":")
    exponent, _, seed = values.partition(":")
    try:
        return float(exponent), int(seed or 0)
    except ValueError:
        raise InvalidUsage(
            f"--counts {text!r}: expected zipf:A or zipf:A:SEED, such as zipf:1.6 or zipf:1.6:7"
        ) from None


def _ways(text: str | None) -> list[str] | None:
    """Return the ways --algo allows: a list, or a list that begins with ^ of those left out."""
    from ..errors import InvalidUsage
    from ..planner.flows.alltoallv import WAYS

    if text is None:
        return None
    asked = text.strip().lower()
    names = [name.strip() for name in asked.removeprefix("^").split(",") if name.strip()]
    unknown = [name for name in names if name not in WAYS]
    if unknown or not names:
        raise InvalidUsage(
            f"--algo {text!r}: expected ways of an alltoallv, of {', '.join(WAYS)}, or ^ and "
            "those to leave out"
        )
    found = [way for way in WAYS if (way in names) != asked.startswith("^")]
    if not found:
        raise InvalidUsage(f"--algo {text!r} leaves no way to do an alltoallv")
    return found


def _protocols(text: str | None) -> list[str]:
    """Return the protocols --proto, or else NCCL_PROTO, allows."""
    from ..errors import InvalidUsage
    from ..planner.restrict import allowed_protocols

    asked = filter_from("--proto", text, "NCCL_PROTO")
    found = allowed_protocols(asked, "alltoallv")
    if not found:
        by = "--proto" if text else "NCCL_PROTO"
        raise InvalidUsage(f"{by} {asked!r} leaves no protocol for an alltoallv")
    return found
