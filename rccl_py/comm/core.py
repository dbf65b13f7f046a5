"""What all ranks of a communicator share, wherever they live: fabric, planner, plans, programs.

Owns how a checked call becomes a plan, a program and a time. Knows no queue and no process.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import Config
from ..errors import CollectiveMismatch, RcclError
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..planner import Plan, Planner
from ..planner.barrier import plan_barrier
from ..reduce_ops import finish
from ..timing import Busy, Cost, exchange
from ..transports.program import Program
from .call import Call, Signature, checked_dtype
from .schedules import schedules_of
from .skew import Skewed

__all__ = [
    "Core",
    "cost_of",
    "counts_differ",
    "in_rank_order",
    "narrowed",
    "planner_of",
    "share",
    "widened",
]

Array = npt.NDArray[Any]
_NUMBERS = itertools.count()
_KEPT_PROGRAMS = 64


class Core:
    """Planner and programs of one communicator. failure: the error that ended it, if one did."""

    def __init__(self, planner: Planner, name: str | None, config: Config) -> None:
        self.planner, self.config = planner, config
        self.nranks = planner.fabric.nranks
        self.name = name or config.comm_name or f"comm{next(_NUMBERS)}"
        self.failure: RcclError | None = None
        self.revoked = False
        self.repeat: Any = None  # of ranks that are processes: the last call, ready once more
        self.last_plan: Plan | None = None
        self.splits = 0
        # Names the folder of its flight records; that of its children too.
        self.run = f"{os.getpid()}.{next(_NUMBERS)}"
        self.machine: Any = None  # the Topology it was made of, if known: what it may grow on
        self._programs: dict[tuple[int, bool], Program] = {}
        # Libraries whose choices are a policy send all parts direct.
        self.skewed = Skewed(planner.fabric, on=planner.policy is None)

    def split_name(self, color: int) -> str:
        """Return the name of a part of the split that is being made."""
        again = f".{self.splits}" if self.splits > 1 else ""
        return f"split{color}{again}"

    @property
    def fabric(self) -> Fabric:
        """The fabric its time is modelled on."""
        return self.planner.fabric

    def subset(self, ranks: Sequence[int], config: Config) -> Planner:
        """Return the planner of some of the ranks, in this order."""
        place = np.asarray(self.fabric.place[np.asarray(ranks, dtype=np.int64)], dtype=np.int32)
        return planner_of(replace(self.fabric, place=place), config, child=True)

    def plan(self, signature: Signature) -> Plan:
        """Return the plan of a call with this signature."""
        block = signature.block * checked_dtype(signature.dtype).itemsize
        return self.planner.plan(signature.collective, block, max(signature.root, 0))

    def program(self, plan: Plan, in_place: bool) -> Program:
        """Return the plan's schedule ready to run; kept for the next call."""
        key = id(plan.schedule), in_place
        if key not in self._programs:
            if len(self._programs) >= _KEPT_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = Program(plan.schedule, in_place=in_place)
        return self._programs[key]

    def messages(self, src: Sequence[int], dst: Sequence[int], size: Sequence[int]) -> Cost:
        """Return what messages posted at once take."""
        return exchange(self.fabric, src, dst, size).cost

    @cached_property
    def barrier_cost(self) -> Cost:
        """What a barrier takes, whatever NCCL_ALGO allows: it moves no data."""
        seconds = plan_barrier(self.fabric).seconds
        return Cost(seconds, seconds, None)

    def uneven_cost(self, calls: Sequence[Call]) -> Cost:
        """Return what a collective of unequal parts takes: direct, or by its plan."""
        plan = self.skewed.plan(calls)
        return self.messages(*self.uneven(calls)) if plan is None else plan.cost

    def uneven(self, calls: Sequence[Call]) -> tuple[list[int], list[int], list[int]]:
        """Return (src, dst, bytes) of the messages of a collective of unequal parts."""
        first = calls[0].signature
        size = checked_dtype(first.dtype).itemsize
        rows = []
        for i in range(self.nranks):
            for j in range(self.nranks):
                if first.collective == "alltoallv":
                    sends = calls[i].sends
                    count = sends[0][j] if sends is not None else 0
                else:
                    count = first.counts[i if first.collective == "allgatherv" else j]
                if count:
                    rows.append((i, j, count * size))
        src, dst, nbytes = (list(c) for c in zip(*rows)) if rows else ([], [], [])
        return src, dst, nbytes


def planner_of(fabric: Fabric, config: Config, *, child: bool = False) -> Planner:
    """Return the planner a communicator of this configuration has.

    child: it is made of another; of inherited schedules it takes those for its number of ranks.
    """
    return Planner(
        fabric,
        config.algo,
        config.proto,
        max_channels=config.max_ctas,
        policy=config.policy,
        custom=schedules_of(config, fabric.nranks if child else None),
        custom_first=True,
        # A first call waits for its plan, in every process: nothing is synthesised unasked.
        synthesise="auto" if config.algo else "never",
    )


def cost_of(plan: Plan) -> Cost:
    """Return what a plan's call takes: launch and latencies first, then its use of links."""
    profile, protocol = plan.profile, PROTOCOLS[plan.protocol]
    slot = plan.block / profile.chunks
    wire = profile.wire(slot, protocol, plan.channels)

    def busy() -> Busy:
        return Busy.of(profile.busy(slot, protocol))

    return Cost(plan.time, plan.time - float((profile.steps * wire).sum()), busy)


def widened(call: Call) -> tuple[Array | None, Array | None]:
    """Return the buffers a schedule runs on: multiplied, and of the type that is held."""
    source, target, arithmetic = call.source, call.target, call.arithmetic
    if call.scale is not None and source is not None:
        with np.errstate(all="ignore"):
            source = np.multiply(source, call.scale.reshape(-1)[0])
    if arithmetic is not None and arithmetic.rounds:
        source = None if source is None else source.astype(arithmetic.held)
        target = None if target is None else np.empty(target.size, dtype=arithmetic.held)
    return source, target


def narrowed(call: Call, target: Array | None, n: int) -> None:
    """Finish a reduction in `target` (an average divides) and leave it in the call's buffer."""
    if target is None or call.target is None or call.arithmetic is None:
        return
    finish(call.arithmetic.op, target, n)
    if target is not call.target:
        with np.errstate(all="ignore"):
            call.target[...] = target.astype(call.arithmetic.dtype)


def in_rank_order(call: Call, rank: int, parts: Sequence[Array]) -> None:
    """Reduce parts[r], rank r's share for `rank`, into the call's buffer: own part first, then on.

    The order of the direct algorithm: rank, rank + 1, ... around.
    """
    n, arithmetic = len(parts), call.arithmetic
    assert arithmetic is not None and call.target is not None
    total = parts[rank].astype(arithmetic.held)
    with np.errstate(all="ignore"):
        for step in range(1, n):
            moved = parts[(rank + step) % n].astype(arithmetic.held, copy=False)
            arithmetic.ufunc(total, moved, out=total)
    finish(arithmetic.op, total, n)
    call.target[...] = total.astype(arithmetic.dtype)


def share(array: Any, parts: tuple[list[int], list[int]] | None, rank: int) -> Any:
    """Return one rank's part of a buffer; the whole where there is only one."""
    if parts is None:
        return array
    return array[parts[1][rank] : parts[1][rank] + parts[0][rank]]


def counts_differ(sends: list[list[int]], recvs: list[list[int]]) -> CollectiveMismatch | None:
    """Return the error when what a rank sends is not what the other receives."""
    for i, out in enumerate(sends):
        for j, into in enumerate(recvs):
            if out[j] != into[i]:
                return CollectiveMismatch(
                    f"alltoallv: rank {i} sends {out[j]} elements to rank {j}, which receives "
                    f"{into[i]} from it (sendcounts[{j}] against recvcounts[{i}])"
                )
    return None
