"""What ``rccl-plan barrier`` prints: the one plan that has no size."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from . import plan_faults
from .common import print_json, topology_from

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print how long a barrier takes on the machine, and how it goes; return the exit code."""
    from ..planner.barrier import plan_barrier
    from ..topology import lower
    from ..units import format_time

    topology = topology_from(arguments)
    fabric = lower(topology, arguments.ngpus)
    found = plan_barrier(fabric)
    healthy = None
    if arguments.without:
        healthy = plan_barrier(lower(plan_faults.healthy(arguments), arguments.ngpus))
    if arguments.json:
        told = {"collective": "barrier", "topology": fabric.name, "nranks": fabric.nranks}
        more = {} if healthy is None else {"healthy": asdict(healthy)}
        print_json({**told, **asdict(found), **more})
        return 0
    rounds = "1 round" if found.rounds == 1 else f"{found.rounds} rounds"
    print(
        f"# barrier on {fabric.name}, {fabric.nranks} ranks\n"
        f"{found.algorithm}/{found.protocol}, {rounds}: {format_time(found.seconds)}"
    )
    if healthy is not None:
        named = f"{healthy.algorithm}/{healthy.protocol}"
        print(plan_faults.line("barrier", healthy.seconds, named, found.seconds))
    for note in topology.notes:
        print(f"# note: {note}")
    return 0
