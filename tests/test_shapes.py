"""Shapes of machines that are not all even: every collective plans, is proved, and is right.

Odd numbers of ranks, nodes of unequal size, rails that do not line up, odd tori, meshes without a
decomposition into rings, and what is broken.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import is_right, joined, machine, raw_links

from rccl_py import Planner, load, lower
from rccl_py.check import check
from rccl_py.collectives import COLLECTIVES
from rccl_py.errors import FabricError
from rccl_py.topology.faults import with_link, without

RANKS = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33)
"""One, two, three, primes, powers of two and their neighbours."""
BLOCKS = (256.0, 4e6)
FEW = 1500  # rows that are run one by one


def planned(planner: Planner, collective: str, block: float) -> None:
    """Plan a call, and hold what its plan must be: proved, above its bound, right when run."""
    n = planner.fabric.nranks
    root = (n - 1) if COLLECTIVES[collective].rooted else 0
    plan = planner.plan(collective, block, root)
    check(plan.schedule, steps=n <= 9)
    assert plan.time >= plan.bound.seconds * (1 - 1e-9), str(plan)
    rows = sum(p.steps * m.rows.size for p in plan.schedule.phases() for m in p.moves)
    if rows * plan.schedule.layout.chunks <= FEW:
        assert is_right(plan.schedule, np.random.default_rng(n), in_place=False)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_number_of_ranks_plans_every_collective(n, collective):
    planned(_of_ranks(n), collective, BLOCKS[n % 2])


@cache
def _of_ranks(n: int) -> Planner:
    return Planner(lower(load("mi300x-8", nodes=-(-n // 8)), n), synthesise=False)


def mesh(folder, gpus: int, edges: str):
    text = raw_links(up=50.0) + joined(edges)
    return load(machine(folder, text, gpus))


def k(folder, gpus: int):
    return mesh(folder, gpus, " ".join(f"{i}-{j}:1" for i in range(gpus) for j in range(i)))


SHAPES = {
    "8 and 4 ranks": lambda _: lower(load("mi300x-8", nodes=2), range(12)),
    "one rank a node": lambda _: lower(load("mi300x-8", nodes=5), range(0, 40, 8)),
    "rails that do not line up": lambda _: lower(load("mi300x-8", nodes=2), [0, 1, 2, 13, 14, 15]),
    "K4": lambda folder: lower(k(folder, 4)),
    "K6": lambda folder: lower(k(folder, 6)),
    "a link at half its rate": lambda folder: lower(
        with_link(k(folder, 6), "gpu0", "gpu1", 0.5, None)),
    "a link down": lambda folder: lower(without(k(folder, 6), "gpu2", "gpu5", None)),
    "a NIC down": lambda _: lower(without(load("mi300x-8", nodes=2), "nic3", None, 1)),
    "torus 3x5": lambda folder: lower(torus(folder, 15, (3, 5))),
    "torus 3x3x3": lambda folder: lower(torus(folder, 27, (3, 3, 3))),
}  # fmt: skip


def torus(folder, gpus: int, dims: tuple[int, ...]):
    """Return one domain whose links are a torus of these sides, each more than 2."""
    place = np.arange(gpus).reshape(dims)
    edges = [f"{i}-{j}:1" for axis in range(len(dims))
             for i, j in zip(place.ravel(), np.roll(place, -1, axis=axis).ravel())]  # fmt: skip
    return mesh(folder, gpus, " ".join(edges))


@pytest.fixture(scope="module")
def planners(tmp_path_factory):
    return cache(lambda name: Planner(SHAPES[name](tmp_path_factory.mktemp("shape"))))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", SHAPES)
def test_an_uneven_machine_plans_every_collective(planners, name, collective):
    planned(planners(name), collective, BLOCKS[1])


@pytest.mark.parametrize("name", ["a link at half its rate", "a link down"])
def test_a_broken_link_costs_some_but_less_than_all_links_as_slow(planners, name):
    whole, broken = (planners(at).plan("allreduce", 1e9).time for at in ("K6", name))
    assert whole * (1 - 1e-9) <= broken < 2 * whole


# ---- ranks that nothing joins -------------------------------------------------------------------


@pytest.mark.parametrize("edges, ranks, what", [
    ("0-1:1 1-2:1 2-3:1 4-5:1 5-6:1 6-7:1", None, "ranks 0..3 cannot reach ranks 4..7"),
    ("0-1:1 1-2:1 2-3:1 4-5:1 5-6:1 6-7:1", [0, 4, 1, 5], "ranks 0 and 2 cannot reach ranks 1 and"),
    ("0-1:1 1-2:1 2-3:1 3-4:1 4-5:1 5-6:1", None, "ranks 0..6 cannot reach rank 7"),
])  # fmt: skip
def test_ranks_on_two_sides_are_an_error_that_names_both(tmp_path, edges, ranks, what):
    apart = mesh(tmp_path, 8, edges)
    with pytest.raises(FabricError, match=rf"{what}.*: no link, switch or NIC joins them"):
        lower(apart, ranks)
