"""A run of `rccl-perf` once its arguments are parsed: the machine, the ranks, row after row.

Owns what is checked against the machine, what a row is, and which rows move data. The formats are
report's, the buffers perf_data's. Time is modelled; nothing here is measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..collectives import Collective
from ..comm import Communicator
from ..config import Config as CommConfig
from ..dtypes import DTYPES, dtype_named, name_of
from ..errors import InvalidArgument, RcclError
from ..planner import Plan
from ..reduce_ops import ReduceOp, op_named
from ..report.perf import Columns, Config, Measurement, Rank, Row
from ..units import format_size
from .common import collective_for, topology_from
from .perf_arguments import Settings
from .perf_data import Exchange, available_memory, block_of, buffer_bytes

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["Run", "prepared"]

_SPARE = 256 << 20  # B of memory left to the library and to others


@dataclass(frozen=True, slots=True)
class _Case:
    """What the rows of one sweep share. root: -1 when the collective has none."""

    name: str
    dtype: np.dtype[Any]
    op: ReduceOp | None
    root: int


def _names(given: str, known: Sequence[str]) -> list[str]:
    return list(known) if given.strip().lower() == "all" else [given]


def _ranks_asked(settings: Settings, topology: Topology, world: Any) -> int:
    """Return the number of ranks, or raise InvalidArgument when the machine is too small."""
    if world is not None:
        asked, how = world.Get_size(), "mpirun started"
    elif settings.nthreads is not None:
        asked, how = settings.nthreads * (settings.ngpus or 1), "-t times -g asks for"
    else:
        asked, how = settings.ngpus or topology.nranks, "-g asks for"
    if asked > topology.nranks:
        raise InvalidArgument(f"{how} {asked} ranks, but {topology.name} has {topology.nranks} "
                              "GPUs: ask for fewer ranks, or for more --nodes")  # fmt: skip
    return int(asked)


def _roots(text: str, collective: Collective, n: int) -> list[int]:
    """Return the roots to run: -1 for a collective that has none."""
    if text.strip().lower() == "all":
        roots = list(range(n))
    elif not re.fullmatch(r"-?[0-9]{1,9}", text.strip()):
        raise InvalidArgument(f"root {text!r} cannot be read: expected a rank or all")
    elif not 0 <= int(text) < n:
        raise InvalidArgument(f"root {text} is out of range: ranks are 0 to {n - 1}")
    else:
        roots = [int(text)]
    return roots if collective.rooted else [-1]


def _cases(settings: Settings, collective: Collective, n: int) -> list[_Case]:
    """Return the sweeps of a run, in rccl-tests' order: types, then reductions, then roots."""
    dtypes = [(name_of(name), dtype_named(name)) for name in _names(settings.dtype, DTYPES)]
    ops: list[ReduceOp | None] = []
    ops += [op_named(name) for name in _names(settings.op, [op.value for op in ReduceOp])]
    roots = _roots(settings.root, collective, n)
    if not collective.reduces:
        ops = [None]
    return [_Case(name, dtype, op, root)
            for (name, dtype), op, root in itertools.product(dtypes, ops, roots)]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """A run whose arguments hold. `world`: MPI's communicator, None when all ranks live here."""

    settings: Settings
    world: Any
    topology: Topology | None  # of the process that speaks; the others need none
    collective: Collective
    n: int
    cases: list[_Case]
    comms: list[Communicator]

    @property
    def speaks(self) -> bool:
        """Whether this process prints and writes."""
        return self.world is None or self.world.Get_rank() == 0

    @property
    def columns(self) -> Columns:
        """The table's columns."""
        s = self.settings
        return Columns(s.out_of_place, s.in_place, s.algorithms)

    def config(self) -> Config:
        """Return what the header and the document tell of this run."""
        s = self.settings
        major, minor, patch = (int(part) for part in __version__.split(".")[:3])
        return Config(
            program=f"{self.collective.perf_name}_perf", version=(major, minor, patch),
            nthreads=1 if self.world is not None else s.nthreads or 1,
            ngpus=1 if self.world is not None else self.n // (s.nthreads or 1),
            smallest=s.smallest, largest=s.largest, step=s.step, factor=s.factor,
            warmup=s.warmup, iterations=s.iterations, aggregated=s.aggregated, check=s.check,
            graph=s.graph, blocking=s.blocking, parallel_init=s.parallel_init,
        )  # fmt: skip

    def ranks(self) -> list[Rank]:
        """Return who runs where, on the process that speaks; a call of all processes."""
        t = self.topology
        own = (os.getpid(), socket.gethostname().split(".")[0])
        places = [own] * self.n if self.world is None else self.world.gather(own) or []
        if t is None:
            return []
        gpus = [data for _, data in t.node.nodes(data=True) if data["kind"] == "gpu"]
        # A topology file may name each GPU's bus; else the index makes one up.
        named = {d["index"]: d.get("busid") or f"0000:{d['index']:02x}:00" for d in gpus}
        buses = [str(named[index]).partition(".")[0] for index in sorted(named)]
        return [Rank(rank, pid, host if t.nodes == 1 else f"node{rank // len(buses)}",
                     rank % len(buses), buses[rank % len(buses)], t.device.title)
                for rank, (pid, host) in enumerate(places)]  # fmt: skip

    def where(self) -> dict[str, int]:
        """Return the columns of the records that tell how many ranks took part."""
        if self.world is None or self.topology is None:
            return {"gpus": self.n}
        nodes = -(-self.n // self.topology.gpus_per_node)
        return {"nodes": nodes, "ranks": self.n, "ranksPerNode": -(-self.n // nodes),
                "gpusPerRank": 1}  # fmt: skip

    def _free(self) -> int:
        """Return the bytes that may be taken; a call of all processes: the smallest counts."""
        free = available_memory() or sys.maxsize
        return free if self.world is None else int(min(self.world.allgather(free)))

    def _largest_moved(self, itemsize: int, free: int, note: Callable[[str], None]) -> int | None:
        """Return the elements of the largest block that is moved; None when no data is."""
        if self.settings.check == 0:
            return None
        counts = {block_of(self.collective, size, itemsize, self.n)
                  for size in self.settings.sizes()}  # fmt: skip
        needs = {c: buffer_bytes(self.collective, c, itemsize, self.n) for c in counts}
        asked = [c for c, need in needs.items() if need <= self.settings.data_limit]
        # A side may be as large as the larger one, and the library may hold each once more.
        fitting = [c for c in asked if 4 * needs[c] + _SPARE <= free]
        if len(fitting) < len(asked):
            note(f"# {free >> 20} MiB of memory are available: larger sizes are timed without "
                 "data (N/A)")  # fmt: skip
        return max(fitting, default=None)

    def _scratch_fits(
        self, case: _Case, count: int, free: int, note: Callable[[str], None]
    ) -> bool:
        """Return whether the scratch the chosen schedule takes at all ranks fits beside buffers."""
        plan = self.comms[0].plan(self.collective.name, count, case.dtype, root=max(case.root, 0))
        scratch = self.comms[0].scratch_elements(plan, count) * case.dtype.itemsize
        buffers = buffer_bytes(self.collective, count, case.dtype.itemsize, self.n)
        if 3 * buffers + scratch + _SPARE <= free:
            return True
        note(f"# {plan.algorithm} takes {scratch >> 20} MiB of scratch for {plan.size:.0f} B, and "
             f"{free >> 20} MiB of memory are available: timed without data (N/A)")  # fmt: skip
        return False

    def _half(self, exchange: Exchange | None, plan: Plan, seconds: float, count: int,
              in_place: bool) -> Measurement:  # fmt: skip
        algbw = plan.size / seconds if seconds > 0 else 0.0
        never = in_place and self.collective.in_place(0, 0) == -1
        wrong = None if exchange is None or never else self._checked(exchange, count, in_place)
        return Measurement(seconds, algbw, algbw * self.collective.factor(self.n), wrong)

    def _seconds(self, plan: Plan) -> float:
        """Return what the call takes, by the engine that was asked for."""
        if self.settings.engine in (None, "estimate"):
            return plan.time
        return plan.timed(self.settings.engine or "auto").seconds

    def _checked(self, exchange: Exchange, count: int, in_place: bool) -> int:
        """Return the wrong elements, on all ranks, of the first check that finds any."""
        wrong = 0
        for _ in range(self.settings.check):
            wrong = exchange.run(count, in_place=in_place)
            if self.world is not None:
                wrong = self.world.allreduce(wrong)
            if wrong:
                break
        return wrong

    def _row(self, exchange: Exchange | None, case: _Case, count: int, cycle: int) -> Row:
        plan = self.comms[0].plan(self.collective.name, count, case.dtype, root=max(case.root, 0))
        seconds = self._seconds(plan)
        out, into = (self._half(exchange, plan, seconds, count, in_place) if wanted else None
                     for in_place, wanted in ((False, self.columns.out_of_place),
                                              (True, self.columns.in_place)))  # fmt: skip
        return Row(int(plan.size), count, case.name, case.op.value if case.op else "none",
                   case.root, out, into, plan.algorithm, plan.protocol, plan.nchannels,
                   cycle)  # fmt: skip

    def _cycles(self, note: Callable[[str], None]) -> Iterator[int]:
        cycles = self.settings.cycles
        for cycle in range(cycles) if cycles else itertools.count():
            if cycles > 1:
                note(f"# Testing {cycle + 1} cycle.")
            yield cycle

    def rows(self, begin: Callable[[str], None], note: Callable[[str], None]) -> Iterator[Row]:
        """Yield every row; begin(what) is called before one, note(line) to comment on more."""
        for case in self.cases:
            itemsize = case.dtype.itemsize
            free = self._free()
            largest = self._largest_moved(itemsize, free, note)
            exchange = None
            if largest is not None:
                exchange = Exchange(self.comms, self.collective, case.dtype, case.op,
                                    max(case.root, 0), largest)  # fmt: skip
            for cycle in self._cycles(note):
                for size in self.settings.sizes():
                    begin(f"{format_size(size)} {case.name} {case.op or ''}")
                    count = block_of(self.collective, size, itemsize, self.n)
                    moved = largest is not None and count <= largest
                    moved = moved and self._scratch_fits(case, count, free, note)
                    yield self._row(exchange if moved else None, case, count, cycle)
            if exchange is not None:
                exchange.close()


def _machine(
    arguments: argparse.Namespace, settings: Settings, world: Any
) -> tuple[Topology | None, int]:
    """Return the machine and the number of ranks; under mpirun the first process reads it."""
    topology, n, failure = None, 0, None
    if world is None or world.Get_rank() == 0:
        try:
            topology = topology_from(arguments)
            n = _ranks_asked(settings, topology, world)
        except RcclError as error:
            failure = error
    if world is not None:
        n, failure = world.bcast((n, failure))
    if failure is not None:
        raise failure
    return topology, n


def prepared(arguments: argparse.Namespace, settings: Settings, world: Any) -> Run:
    """Return a run on the machine the arguments name; raises what is wrong with them."""
    collective = collective_for(settings.collective)
    topology, n = _machine(arguments, settings, world)
    cases = _cases(settings, collective, n)
    config = CommConfig(algo=settings.algo, proto=settings.proto, policy=settings.policy,
                        schedules=settings.schedules)  # fmt: skip
    if world is not None:
        comms = [Communicator.from_mpi(world, topology, config=config)]
    else:
        assert topology is not None  # alone, this process has read it
        comms = Communicator.init_all(topology, nranks=n, config=config)
    # What leaves nothing to choose from is refused before a line of the table is out.
    comms[0].plan(collective.name, 0, cases[0].dtype, root=max(cases[0].root, 0))
    return Run(settings, world, topology, collective, n, cases, comms)
