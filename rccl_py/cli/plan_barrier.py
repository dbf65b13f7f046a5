"""What ``rccl-plan barrier`` prints: the one plan that has no size."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from .common import topology_from

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print how long a barrier takes on the machine, and how it goes; return the exit code."""
    from ..planner.barrier import plan_barrier
    from ..topology import lower
    from ..units import format_time

    fabric = lower(topology_from(arguments), arguments.ngpus)
    found = plan_barrier(fabric)
    if arguments.json:
        print(json.dumps({"collective": "barrier", "ranks": fabric.nranks, **asdict(found)}))
        return 0
    rounds = "1 round" if found.rounds == 1 else f"{found.rounds} rounds"
    print(
        f"# barrier on {fabric.name}, {fabric.nranks} ranks\n"
        f"{found.algorithm}/{found.protocol}, {rounds}: {format_time(found.seconds)}"
    )
    return 0
