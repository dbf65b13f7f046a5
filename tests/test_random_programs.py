"""Random programs: splits of splits, every call, several streams; one thread and threads alike.

A program is drawn as data. `Oracle` says in plain NumPy what every rank must hold after each step;
it and the runs share only the drawn program and the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers import blocks, expected, has_input, has_output
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py as rccl
from rccl_py import Communicator, Config, ReduceOp
from rccl_py.collectives import COLLECTIVES

MACHINE = "mi300x-8-x16-leaf-spine"
UNEVEN = ("alltoallv", "allgatherv", "reduce_scatterv")
REDUCING = ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
QUIET = Config(flight_dir="")


@dataclass
class Split:
    """All ranks of communicator `of` call split; colors, keys: of each of its ranks."""

    of: int
    colors: list[int | None]
    keys: list[int]


@dataclass
class Collective:
    """All ranks of communicator `of` call `name`; streams: by world rank, 0 is the default."""

    of: int
    name: str
    count: int
    dtype: str
    op: ReduceOp
    root: int
    counts: list[list[int]]
    streams: list[int]


@dataclass
class Exchange:
    """Every rank of `of` sends to the rank at its place in `to`, all in one group."""

    of: int
    to: list[int]
    count: int
    dtype: str
    streams: list[int]


@dataclass
class Program:
    """What `n` ranks do, step by step. comms: world ranks of every communicator, by its number."""

    n: int
    seed: int
    steps: list[Split | Collective | Exchange] = field(default_factory=list)
    comms: list[list[int]] = field(default_factory=list)

    def input(self, k: int, rank: int, count: int, dtype: str) -> np.ndarray:
        """Return what world rank `rank` puts into step k."""
        rng = np.random.default_rng([self.seed, k, rank])
        return rng.integers(0, 7, count).astype(dtype)


def parts_of(split: Split, members: list[int]) -> list[list[int]]:
    """Return the world ranks of the communicators a split makes, by colour."""
    found = []
    for color in sorted({c for c in split.colors if c is not None}):
        ranks = [r for r in range(len(members)) if split.colors[r] == color]
        found.append([members[r] for r in sorted(ranks, key=lambda r: (split.keys[r], r))])
    return found


@st.composite
def programs(draw) -> Program:
    n = draw(st.sampled_from([1, 2, 3, 5, 8]))
    program = Program(n, draw(st.integers(0, 999)), [], [list(range(n))])
    dtypes = st.sampled_from(["int32", "int64", "uint8", "float64"])
    for _ in range(draw(st.integers(1, 7))):
        of = draw(st.integers(0, len(program.comms) - 1))
        m = len(program.comms[of])
        streams = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
        count, dtype = draw(st.sampled_from([0, 1, 2, 3, 17])), draw(dtypes)
        kind = draw(st.sampled_from(["split", "collective", "collective", "exchange"]))
        if kind == "split":
            colors = draw(st.lists(st.sampled_from([0, 1, 5, None]), min_size=m, max_size=m))
            keys = draw(st.lists(st.integers(-2, 2), min_size=m, max_size=m))
            program.steps.append(Split(of, colors, keys))
            program.comms += parts_of(program.steps[-1], program.comms[of])
        elif kind == "exchange":
            to = draw(st.permutations(range(m)))
            program.steps.append(Exchange(of, list(to), count, dtype, streams))
        else:
            name = draw(st.sampled_from([*COLLECTIVES, *UNEVEN, "barrier"]))
            counts = draw(st.lists(st.lists(st.integers(0, 4), min_size=m, max_size=m),
                                   min_size=m, max_size=m))  # fmt: skip
            op, root = draw(st.sampled_from(list(ReduceOp))), draw(st.integers(0, m - 1))
            program.steps.append(Collective(of, name, count, dtype, op, root, counts, streams))
    return program


# ---- what must come out, in NumPy -------------------------------------------------------------


def averaged(total: np.ndarray, m: int) -> np.ndarray:
    return total // m if total.dtype.kind in "iu" else total / m


def oracle(program: Program) -> dict[tuple[int, int], np.ndarray]:
    """Return what world rank r holds after step k, by (k, r), where it holds anything new."""
    results: dict[tuple[int, int], np.ndarray] = {}
    for k, step in enumerate(program.steps):
        members = program.comms[step.of]
        m = len(members)
        if isinstance(step, Exchange):
            for r, world in enumerate(members):
                results[k, members[step.to[r]]] = program.input(k, world, step.count, step.dtype)
        elif isinstance(step, Collective) and step.name != "barrier":
            for r, found in enumerate(collective(program, k, step, members)):
                if found is not None:
                    averages = step.op is ReduceOp.AVG and step.name in REDUCING
                    results[k, members[r]] = averaged(found, m) if averages else found
    return results


def collective(program: Program, k: int, step: Collective, members: list[int]) -> list:
    """Return every rank's result before averaging, None where it has none."""
    m, counts = len(members), step.counts
    if step.name not in UNEVEN:
        many = blocks(step.name, m)[0] * step.count
        inputs = [program.input(k, w, many, step.dtype) for w in members]
        return expected(step.name, inputs, step.root, step.op.ufunc)
    sizes = [sum(counts[r]) for r in range(m)] if step.name == "alltoallv" else counts[0]
    if step.name == "reduce_scatterv":
        sizes = [sum(counts[0])] * m
    inputs = [program.input(k, w, size, step.dtype) for w, size in zip(members, sizes)]
    if step.name == "allgatherv":
        return [np.concatenate(inputs)] * m
    if step.name == "reduce_scatterv":
        total = inputs[0]
        for other in inputs[1:]:
            total = step.op.ufunc(total, other)
        return np.split(total, np.cumsum(counts[0])[:-1])
    pieces = [np.split(x, np.cumsum(row)[:-1]) for x, row in zip(inputs, counts)]
    return [np.concatenate([pieces[i][j] for i in range(m)]) for j in range(m)]


# ---- the program at one rank ------------------------------------------------------------------


class Rank:
    """World rank `world` of a program: its communicators by number, and what it received."""

    def __init__(self, program: Program, comm: Communicator) -> None:
        self.program, self.world = program, comm.rank
        self.comms: dict[int, Communicator] = {0: comm}
        self.streams = [comm.default_stream, comm.stream()]
        self.made = 1  # communicators of the steps so far
        self.held: dict[tuple[int, int], np.ndarray] = {}

    def step(self, k: int) -> None:
        """Make this rank's calls of step k."""
        step = self.program.steps[k]
        members = self.program.comms[step.of]
        parts = parts_of(step, members) if isinstance(step, Split) else []
        if step.of in self.comms:
            comm, r = self.comms[step.of], members.index(self.world)
            if isinstance(step, Split):
                child = comm.split(step.colors[r], step.keys[r])
                for number, ranks in enumerate(parts, self.made):
                    if self.world in ranks:
                        self.comms[number] = child
            elif isinstance(step, Exchange):
                self._exchange(k, step, comm, r)
            else:
                self._collective(k, step, comm, r, len(members))
        self.made += len(parts)

    def _exchange(self, k: int, step: Exchange, comm: Communicator, r: int) -> None:
        stream = self.streams[step.streams[self.world]]
        target = np.full(step.count, 99, step.dtype)
        source = self.program.input(k, self.world, step.count, step.dtype)
        with rccl.group():
            comm.send(source, step.to[r], stream=stream)
            comm.recv(target, step.to.index(r), stream=stream)
        self.held[k, self.world] = target

    def _collective(self, k: int, step: Collective, comm: Communicator, r: int, m: int) -> None:
        stream = self.streams[step.streams[self.world]]
        if step.name == "barrier":
            comm.barrier(stream=stream)
            return
        if step.name in UNEVEN:
            self._uneven(k, step, comm, r, stream)
            return
        many_in, many_out = blocks(step.name, m)
        source = self.program.input(k, self.world, many_in * step.count, step.dtype)
        target = np.full(many_out * step.count, 99, step.dtype)
        more = {"op": step.op} if step.name in REDUCING else {}
        more |= {"root": step.root} if step.name in ROOTED else {}
        getattr(comm, step.name)(
            source if has_input(step.name, r, step.root) else None,
            target if has_output(step.name, r, step.root) else None,
            stream=stream, **more,
        )  # fmt: skip
        if has_output(step.name, r, step.root):
            self.held[k, self.world] = target

    def _uneven(self, k: int, step: Collective, comm: Communicator, r: int, stream) -> None:
        counts = step.counts
        size, out = {
            "alltoallv": (sum(counts[r]), sum(row[r] for row in counts)),
            "allgatherv": (counts[0][r], sum(counts[0])),
            "reduce_scatterv": (sum(counts[0]), counts[0][r]),
        }[step.name]
        source = self.program.input(k, self.world, size, step.dtype)
        target = np.full(out, 99, step.dtype)
        if step.name == "alltoallv":
            into = [row[r] for row in counts]
            comm.alltoallv(source, counts[r], None, target, into, None, stream=stream)
        elif step.name == "allgatherv":
            comm.allgatherv(source, target, counts[0], stream=stream)
        else:
            comm.reduce_scatterv(source, target, counts[0], step.op, stream=stream)
        self.held[k, self.world] = target


def in_one_thread(program: Program, order: list[int]) -> tuple[list[Rank], list[float]]:
    """Make all ranks' calls, step by step, the ranks of a step in this order."""
    comms = Communicator.init_all(MACHINE, program.n, config=QUIET)
    ranks = [Rank(program, comm) for comm in comms]
    for k in range(len(program.steps)):
        for r in order:
            ranks[r].step(k)
    return ranks, [comm.elapsed for comm in comms]


def in_threads(program: Program) -> tuple[list[Rank], list[float]]:
    """Run every rank in a thread of its own."""

    def body(comm: Communicator) -> Rank:
        rank = Rank(program, comm)
        for k in range(len(program.steps)):
            rank.step(k)
        return rank

    ranks = rccl.run(body, MACHINE, nranks=program.n, config=QUIET)
    return ranks, [rank.comms[0].elapsed for rank in ranks]


def check(program: Program, ranks: list[Rank]) -> None:
    """Require what the oracle says of every rank."""
    wanted = oracle(program)
    found = {key: held for rank in ranks for key, held in rank.held.items()}
    assert found.keys() == wanted.keys()
    for (k, world), held in found.items():
        what = f"rank {world} after step {k}, {program.steps[k]}"
        assert held.dtype == wanted[k, world].dtype and (held == wanted[k, world]).all(), what


@settings(deadline=None, max_examples=120)
@given(programs(), st.randoms(use_true_random=False))
def test_a_program_in_one_thread_gives_what_numpy_gives_in_any_order_of_ranks(program, random):
    order = list(range(program.n))
    random.shuffle(order)
    ranks, _ = in_one_thread(program, order)
    check(program, ranks)


@settings(deadline=None, max_examples=80)
@given(programs())
def test_a_program_in_threads_gives_what_it_gives_in_one_thread(program):
    rccl.Communicator.init_all(MACHINE, 1)[0].synchronize()  # settles what other tests left
    alone, times = in_one_thread(program, list(range(program.n)))
    ranks, threads_times = in_threads(program)
    check(program, ranks)
    for one, other in zip(alone, ranks):
        assert all(one.held[key].tobytes() == held.tobytes() for key, held in other.held.items())
    if not any(isinstance(step, Exchange) for step in program.steps):
        # Messages that meet one by one are timed one by one, those that meet together as one.
        assert threads_times == pytest.approx(times, rel=1e-9)
