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

__all__ = ["add_arguments", "compared", "degraded", "healthy"]


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


def compared(plan: Plan, planner: Planner) -> tuple[str, dict[str, object]]:
    """Return what the healthy machine's planner says of a plan's call: as a line, and for JSON."""
    from ..units import format_size, format_time

    whole = planner.plan(plan.collective, plan.block, plan.root)
    more = plan.decided_time / whole.decided_time - 1
    took, now = format_time(whole.decided_time), format_time(plan.decided_time)
    line = (
        f"# {format_size(plan.size)}: healthy: {took} ({whole.algorithm}/{whole.protocol}), "
        f"this: {now} ({more:+.1%})"
    )
    return line, {"healthy": {"algorithm": whole.algorithm, "protocol": whole.protocol,
                              "seconds": whole.decided_time, "engine": whole.engine}}  # fmt: skip
