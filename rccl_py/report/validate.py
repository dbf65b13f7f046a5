"""Hold measured tables against predictions, and say how far off they are.

Owns what is predicted for a table (machine, ranks, policy, launch), which rows count in which
statistic, and the limits that are to be reached. Knows nothing of how a prediction is made: it
asks a planner that follows the policy of the library that was measured. Prints nothing.

An error is predicted over measured time, minus 1: below 0 the prediction is too fast. The peak's is
of bandwidth, predicted over measured busbw, minus 1: above 0 too fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..collectives import COLLECTIVES
from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric
from ..planner import Plan, Planner
from ..topology import Topology, load, lower
from ..topology.build import gpus_of
from .band import CLASSES, PEAK, family_of
from .measured import F64, I64, Table

__all__ = [
    "LIMITS",
    "SUBSETS",
    "Judged",
    "Predictor",
    "Setup",
    "Statistics",
    "grouped",
    "policy_of",
    "statistics",
    "summary",
]

Mask = npt.NDArray[np.bool_]

SERIAL_LAUNCH = 4e-6
"""s that each GPU after the first adds when one thread starts all of a node's calls.

From rccl-tests on 8 MI300X, 41.2 us for small messages by one process and 16.6 us by eight.
"""

SMALL = 64 << 10
"""B below which a framework's own time hides the collective's."""

LEAST_PEAK = 1 << 20
"""B that the largest size of a table must reach for its bandwidth to be called a peak."""

LIMITS: dict[str, tuple[float, float | None]] = {
    "< 64 KiB": (0.25, None),
    ">= 1 MiB": (0.12, None),
    PEAK: (0.07, 0.20),
}
"""Median and 90th percentile of |error| that each class is to reach."""

SUBSETS: dict[str, Callable[[Judged], bool]] = {
    "all": lambda _: True,
    "alltoall": lambda judged: judged.table.collective == "alltoall",
    "multi-node": lambda judged: judged.nodes > 1,
}
"""Which tables a line of the summary is about."""

_RCCL = (
    ("rccl-2.22", re.compile(r"[ -]2\.(?:\d|1\d|2[0-2])\b|ROCm [56]\.")),
    ("rccl-2.26", re.compile(r"[ -]2\.2[3-7]\b|ROCm 7\.[0-2]\b")),
)
"""Policies of RCCL by what a header says of the release; any other is taken for the newest."""


@dataclass(frozen=True)
class Setup:
    """What a table was run on, or is to be taken for.

    machine: a name or a path. nodes: of that machine. gpus: ranks in all. policy: of whose
    algorithms and protocols; "free" for the planner's own choice. algo: as NCCL_ALGO. launch: one
    of measured.LAUNCHES.
    """

    machine: str
    nodes: int
    gpus: int
    policy: str
    algo: str | None = None
    launch: str = "eager"


@dataclass(frozen=True)
class Statistics:
    """Errors in a nutshell. median, p90: of |error|; bias: median of the signed error."""

    count: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, eq=False)
class Judged:
    """A table with its predictions.

    size: int64[m]; measured, predicted: s, float64[m]; choices: algorithm and protocol of each.
    nodes: of the machine; family: of its links.
    """

    table: Table
    setup: Setup
    nodes: int
    family: str
    size: I64
    measured: F64
    predicted: F64
    choices: tuple[str, ...]

    @cached_property
    def error(self) -> F64:
        """Predicted over measured time, minus 1."""
        return self.predicted / self.measured - 1

    @cached_property
    def counts(self) -> Mask:
        """Which rows count: those the grade holds for, and that are no framework's time."""
        least = SMALL if self.setup.launch == "framework" else 0
        found: Mask = self.size >= max(least, self.table.grade_from)
        return found

    def errors(self, kind: str) -> F64:
        """Return the errors of the rows of a class: one of CLASSES, or PEAK."""
        if kind == PEAK:
            rows = np.flatnonzero(self.counts & (self.size >= LEAST_PEAK))[-1:]
            return self.measured[rows] / self.predicted[rows] - 1
        low, high = CLASSES[kind]
        return self.error[self.counts & (low <= self.size) & (self.size < high)]


def statistics(errors: F64) -> Statistics | None:
    """Return what there is to say of some errors; None where there are none."""
    if not len(errors):
        return None
    size = np.abs(errors)
    return Statistics(
        len(errors),
        float(np.median(size)),
        float(np.percentile(size, 90)),
        float(np.median(errors)),
    )


def summary(judged: Sequence[Judged], kind: str) -> Statistics | None:
    """Return the statistics of a class over tables; every row counts alike."""
    found = [j.errors(kind) for j in judged]
    return statistics(np.concatenate(found)) if found else None


def policy_of(table: Table) -> str:
    """Return the policy of the library that was measured, from the header.

    Raises InvalidArgument where the header names neither RCCL nor NCCL.
    """
    said = table.header.get("policy")
    if said:
        return said
    library = table.header.get("library", "")
    if library.startswith("RCCL"):
        return next((name for name, said in _RCCL if said.search(library)), "rccl-2.28")
    if library.startswith("NCCL"):
        return "nccl-2.30"
    raise InvalidArgument(
        f"{table.path}: whose choices to predict is not said: give --policy, or a header line "
        "'# policy: nccl-2.30'"
    )


def planner_for(fabric: Fabric, setup: Setup) -> Planner:
    """Return the planner that chooses as the measured library would: decided here alone."""
    return Planner(fabric, setup.algo, policy=None if setup.policy == "free" else setup.policy)


def _plan(planner: Planner, collective: str, block: float, setup: Setup) -> Plan:
    """Return the plan; where NCCL_ALGO forbids the policy's pick, the fastest that it allows."""
    try:
        return planner.plan(collective, block)
    except InvalidUsage:
        if not setup.algo:
            raise
        return planner.plan_by(None, collective, block)


def _hosts(topology: Topology) -> int:
    """Return the hosts of one node: a rack in one scale-up domain has many."""
    return len({topology.node.nodes[gpu].get("host", 0) for gpu in gpus_of(topology.node)})


def _launched(fabric: Fabric, topology: Topology, setup: Setup) -> Fabric:
    """Return the fabric with the launch that was measured."""
    if setup.launch == "graph":
        return replace(fabric, launch=topology.device.graph_launch)
    if setup.launch == "serial":
        waited_for = setup.gpus / setup.nodes - 1
        return replace(fabric, launch=fabric.launch + waited_for * SERIAL_LAUNCH)
    return fabric


class Predictor:
    """Predicts tables, and keeps machines and planners: many tables share them."""

    def __init__(self) -> None:
        self._machines: dict[tuple[str, int], Topology] = {}
        self._planners: dict[Setup, Planner] = {}

    def setup(
        self,
        table: Table,
        machine: str | None = None,
        nodes: int | None = None,
        gpus: int | None = None,
        policy: str | None = None,
        launch: str | None = None,
    ) -> Setup:
        """Return what `table` was run on; what is given here wins over its header."""
        name = machine or table.header.get("machine")
        if not name:
            raise InvalidArgument(f"{table.path}: which machine this is, is not said: give "
                                  "--topology, or a header line '# machine: h100-8'")  # fmt: skip
        beside = Path(table.path).parent / "machines" / f"{name}.yaml"
        name = str(beside) if machine is None and beside.is_file() else name
        if nodes is None:
            nodes = -(-table.nodes // _hosts(self._machine(name, 1)))
        return Setup(
            name,
            nodes,
            table.gpus if gpus is None else gpus,
            policy or policy_of(table),
            table.algo,
            launch or table.launch,
        )

    def _machine(self, name: str, nodes: int) -> Topology:
        key = name, nodes
        if key not in self._machines:
            self._machines[key] = load(name, nodes=nodes)
        return self._machines[key]

    def _planner(self, setup: Setup) -> Planner:
        if setup not in self._planners:
            topology = self._machine(setup.machine, setup.nodes)
            fabric = lower(topology, _places(topology, setup))
            self._planners[setup] = planner_for(_launched(fabric, topology, setup), setup)
        return self._planners[setup]

    def judge(self, table: Table, setup: Setup | None = None) -> Judged:
        """Return the prediction of every size of a table, beside the best that was measured."""
        setup = setup or self.setup(table)
        topology, planner = self._machine(setup.machine, setup.nodes), self._planner(setup)
        size, measured = table.best()
        blocks = max(COLLECTIVES[table.collective].blocks(setup.gpus))
        plans = [_plan(planner, table.collective, s / blocks, setup) for s in size.tolist()]
        return Judged(
            table,
            setup,
            setup.nodes,
            family_of(topology, setup.nodes),
            size,
            measured,
            np.array([plan.time for plan in plans]),
            tuple(f"{plan.algorithm}/{plan.protocol}" for plan in plans),
        )


def _places(topology: Topology, setup: Setup) -> int | list[int]:
    """Return the accelerators of the ranks: as many of each node, the first ones."""
    each, left = divmod(setup.gpus, setup.nodes)
    if left or each > topology.gpus_per_node:
        raise InvalidArgument(
            f"{setup.gpus} GPUs on {setup.nodes} node(s) of {topology.name}, which has "
            f"{topology.gpus_per_node}: expected as many on each node (--nodes, --gpus)"
        )
    if setup.nodes == 1:
        return setup.gpus
    return [node * topology.gpus_per_node + k for node in range(setup.nodes) for k in range(each)]


def grouped(judged: Iterable[Judged], key: str) -> dict[str, list[Judged]]:
    """Return the tables by a key of the header, or by "family"."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        name = one.family if key == "family" else one.table.header.get(key, "")
        groups.setdefault(name, []).append(one)
    return dict(sorted(groups.items()))
