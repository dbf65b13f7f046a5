"""rccl-plan --without: the machine with parts of it gone, beside the healthy one.

Owns the flag and its line. What a machine without a vertex or a link is, rccl_py.topology says.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .common import topology_from

if TYPE_CHECKING:
    from ..planner import Plan, Planner
    from ..topology import Topology

__all__ = ["add_arguments", "compared", "degraded", "healthy", "line"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag."""
    parser.add_argument(
        "--without",
        action="append",
        metavar="A[,B]",
        help="plan for the machine without vertex A (a switch, a NIC), or without the link between "
        "A and B, in node 0; and say what that costs (may be repeated)",
    )


def healthy(arguments: argparse.Namespace) -> Topology:
    """Return the machine with nothing taken away."""
    return topology_from(argparse.Namespace(**{**vars(arguments), "without": None}))


def degraded(topology: Topology, given: list[str]) -> Topology:
    """Return the machine without what --without names. Raises FabricError, InvalidUsage."""
    from ..errors import InvalidUsage

    for text in given:
        ends = [v.strip() for v in text.split(",")]
        if len(ends) > 2 or not all(ends):
            raise InvalidUsage(
                f"--without {text!r}: expected one vertex, or the two ends of a link, as in "
                "--without nic3 or --without gpu0,gpu1; more in another --without"
            )
        node = 0 if topology.nodes > 1 else None
        topology = topology.without(ends[0], ends[1] if len(ends) > 1 else None, node)
    return topology


def line(what: str, before: float, named: str, after: float) -> str:
    """Return what a fault costs: s on the healthy machine, by which algorithm, and s on this."""
    from ..units import format_time

    more = after / before - 1
    return (
        f"# {what}: healthy: {format_time(before)} ({named}), this: {format_time(after)} "
        f"({more:+.1%})"
    )


def compared(plan: Plan, planner: Planner) -> tuple[str, dict[str, object]]:
    """Return what the healthy machine's planner says of a plan's call: as a line, and for JSON."""
    from ..units import format_size

    whole = planner.plan(plan.collective, plan.block, plan.root)
    took, named = whole.decided_time, f"{whole.algorithm}/{whole.protocol}"
    said = line(format_size(plan.size), took, named, plan.decided_time)
    return said, {"healthy": {"algorithm": whole.algorithm, "protocol": whole.protocol,
                              "seconds": took, "engine": whole.engine}}  # fmt: skip
