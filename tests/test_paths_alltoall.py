"""Alltoall over relays: the optimum of every check machine, ways that reach it, their schedules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers import SIZES, paths_of, recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from rccl_py.algorithms import Paths, algorithms_of
from rccl_py.check import check
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.planner.flows import synthesise_paths
from rccl_py.planner.flows.hops import Hops, hops_of
from rccl_py.planner.flows.paths import relayed_loads, shares_of_ways
from rccl_py.planner.flows.ways import fastest_ways
from rccl_py.timing import profile
from rccl_py.topology import load, lower

BUILD = next(a for a in algorithms_of("alltoall") if a.name == "paths").build

# ---- machines of the check table, in GB/s ---------------------------------------------------

MI250 = """0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 4-5:4 4-6:1
    5-6:1 5-7:1 6-7:4 8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 13-14:1 13-15:1
    14-15:4"""
DGX1 = """0-3:2 0-4:2 1-2:2 1-5:2 2-3:2 4-7:2 5-6:2 6-7:2
    0-1:1 0-2:1 1-3:1 2-6:1 3-7:1 4-5:1 4-6:1 5-7:1"""
Edges = dict[tuple[int, int], float]


def edges(text: str, unit: float, boxes: int = 1, size: int = 0) -> Edges:
    """Return both directions of ``"0-1:4 ..."``, times `unit`, in each of `boxes` of `size`."""
    found = {}
    for edge in text.split():
        ends, lanes = edge.split(":")
        a, b = map(int, ends.split("-"))
        for box in range(boxes):
            found[a + box * size, b + box * size] = found[b + box * size, a + box * size] = (
                float(lanes) * unit
            )
    return found


def torus(*shape: int, unit: float = 50.0) -> Edges:
    """Return both directions of every link of a torus of `shape`."""
    grid, found = np.arange(np.prod(shape)).reshape(shape), {}
    for axis in range(len(shape)):
        for a, b in zip(grid.ravel().tolist(), np.roll(grid, -1, axis).ravel().tolist()):
            found[a, b] = found[b, a] = unit
    return found


def hops_from(n: int, joined: Edges, doors: tuple[int, float, list[int]] | None = None) -> Hops:
    """Return hops between neighbours; doors: (box size, B/s, door of each rank) joins the boxes."""
    nlinks = len(joined) + (2 * (max(doors[2]) + 1) if doors else 0)
    src, dst, row, link, cost = [], [], [], [], []
    numbers = {ends: k for k, ends in enumerate(sorted(joined))}
    for i in range(n):
        for j in range(n):
            used = []
            if (i, j) in joined:
                used = [(numbers[i, j], joined[i, j])]
            elif doors and i // doors[0] != j // doors[0]:
                first, many = len(joined), max(doors[2]) + 1
                used = [(first + doors[2][i], doors[1]), (first + many + doors[2][j], doors[1])]
            if used:
                row += [len(src)] * len(used)
                link += [at for at, _ in used]
                cost += [1 / rate for _, rate in used]
                src.append(i)
                dst.append(j)
    ends = (np.array(c, dtype=np.int32) for c in (src, dst))
    uses = (np.array(c, dtype=np.int64) for c in (row, link))
    return Hops(n, *ends, *uses, np.array(cost), nlinks)


ALMOST_K8 = {(i, j): 64.0 for i in range(8) for j in range(8) if i != j and {i, j} != {0, 1}}
TABLE = {
    "DGX-1": (lambda: hops_from(8, edges(DGX1, 25)), 75.0),
    "AMD4": (lambda: hops_from(4, edges("0-1:1 0-2:1 1-3:1 2-3:1", 1)), 2.0),
    "MI250 1x16": (lambda: hops_from(16, edges(MI250, 50)), 75.0),
    "MI250 2x16": (
        lambda: hops_from(32, edges(MI250, 50, 2, 16), (16, 16.0, list(range(32)))), 32.0),
    "NDv2 x2": (lambda: hops_from(16, edges(DGX1, 25, 2, 8), (8, 12.5, [0] * 8 + [1] * 8)), 3.125),
    "K8 less a link": (lambda: hops_from(8, ALMOST_K8), 438.857142857),
    "torus 4x4": (lambda: hops_from(16, torus(4, 4)), 100.0),
    "torus 3x5": (lambda: hops_from(15, torus(3, 5)), 2 * 50 / ((5 * 5 - 1) / (4 * 5))),
    "torus 5x5": (lambda: hops_from(25, torus(5, 5)), 2 * 50 / ((5 * 5 - 1) / (4 * 5))),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_optimum_of_a_machine_is_that_of_the_table_and_whole_shares_nearly_reach_it(name):
    make, wanted = TABLE[name]
    hops = make()
    n = hops.n
    ways = fastest_ways(hops, np.ones((n, n)))
    assert ways is not None
    assert n / ways.bound == pytest.approx(wanted, rel=1e-6)
    assert n / ways.seconds >= 0.99 * wanted
    paths = shares_of_ways(hops, ways)
    assert paths.total <= 64
    assert 0.98 * wanted <= n / relayed_loads(hops, paths).max() <= wanted * (1 + 1e-9)


# ---- against slow twins ---------------------------------------------------------------------


def by_edges(hops: Hops, demand: np.ndarray) -> float:
    """Return the least time by the other formulation: what each source has on every hop."""
    n, m = hops.n, len(hops.src)
    rows, equal, wanted = np.zeros((hops.nresources, n * m + 1)), [], []
    for s in range(n):
        np.add.at(rows, (hops.resource, s * m + hops.row), hops.cost)
        for v in range(n):
            if v != s:
                line = np.zeros(n * m + 1)
                line[s * m : (s + 1) * m] = (hops.dst == v) * 1.0 - (hops.src == v)
                equal.append(line)
                wanted.append(demand[s, v])
    rows[:, -1] = -1.0
    objective = np.append(np.zeros(n * m), 1.0)
    found = linprog(objective, A_ub=rows, b_ub=np.zeros(len(rows)), A_eq=np.array(equal),
                    b_eq=wanted)  # fmt: skip
    return float(found.fun)


@st.composite
def joined(draw: st.DrawFn, most: int = 6) -> Hops:
    """Draw a machine in which every rank reaches every other: a ring, and further links."""
    n = draw(st.integers(2, most))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    more = draw(st.lists(st.sampled_from(pairs), max_size=8))
    ring = [(i, (i + 1) % n) for i in range(n)]
    widths = {p: float(draw(st.integers(1, 5))) for p in sorted({*ring, *more})}
    return hops_from(n, widths)


@settings(max_examples=25, deadline=None)
@given(joined(), st.integers(0, 2**32 - 1))
def test_ways_take_no_longer_than_the_program_over_edges_and_no_shorter(hops, seed):
    demand = np.random.default_rng(seed).integers(0, 5, size=(hops.n, hops.n)).astype(float)
    np.fill_diagonal(demand, 0)
    ways = fastest_ways(hops, demand)
    assert ways is not None
    least = by_edges(hops, demand) if demand.any() else 0.0
    assert ways.bound == pytest.approx(least, rel=3e-3)
    assert least * (1 - 1e-7) <= ways.seconds <= least * 1.008
    assert ways.bound <= least * (1 + 1e-7)
    brought = np.zeros_like(demand)
    for way, amount in zip(ways.ways, ways.amount):
        brought[way[0], way[-1]] += amount
    assert np.allclose(brought, demand)


@settings(max_examples=25, deadline=None)
@given(joined())
def test_prices_prove_the_bound_by_the_cheapest_way_of_every_pair(hops):
    ways = fastest_ways(hops, np.ones((hops.n, hops.n)))
    assert ways is not None and ways.prices.min() >= 0
    assert ways.prices.sum() == pytest.approx(1)
    price = np.full((hops.n, hops.n), np.inf)
    np.fill_diagonal(price, 0)
    for a, b, cost in zip(hops.src, hops.dst, ways.prices @ hops.matrix):
        price[a, b] = cost
    for _ in range(hops.n):  # Bellman and Ford: min-plus squaring
        price = np.minimum(price, (price[:, :, None] + price[None]).min(axis=1))
    assert ways.bound <= price.sum() * (1 + 1e-9)


def slow_loads(hops: Hops, paths: Paths) -> np.ndarray:
    """Return what each resource carries, walking path after path."""
    total = np.zeros(hops.nresources)
    for q, weight in enumerate(paths.weight):
        stops = paths.rank[paths.ptr[q] : paths.ptr[q + 1]]
        for a, b in pairwise(stops):
            for e in np.flatnonzero(hops.row == hops.number[a, b]):
                total[hops.resource[e]] += hops.cost[e] * weight / paths.total
    return total


@settings(max_examples=25, deadline=None)
@given(joined(), st.integers(1, 3))
def test_whole_shares_of_any_machine_are_an_alltoall_and_load_links_as_told(hops, pieces):
    n = hops.n
    ways = fastest_ways(hops, np.ones((n, n)))
    assert ways is not None
    paths = shares_of_ways(hops, ways)
    assert np.allclose(relayed_loads(hops, paths), slow_loads(hops, paths))
    check(BUILD(replace(recipe_of(n), paths=paths, pieces=pieces)))


def test_a_machine_in_two_parts_has_ways_inside_them_only():
    two = hops_from(4, edges("0-1:1 2-3:2", 1))
    assert fastest_ways(two, np.ones((4, 4))) is None
    inside = np.array([[0, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 6], [0, 0, 0, 0]], dtype=float)
    ways = fastest_ways(two, inside)
    assert ways is not None and ways.ways == ((0, 1), (2, 3)) and ways.seconds == 4.0


# ---- schedules ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_relays_keep_as_many_blocks_as_shares_meet_at_one_position(n):
    paths = paths_of(n)
    schedule = BUILD(replace(recipe_of(n), paths=paths, pieces=2))
    met = np.zeros((n, paths.total), dtype=int)
    begun: dict[tuple[int, int], int] = {}
    for q, weight in enumerate(paths.weight.tolist()):
        stops = paths.rank[paths.ptr[q] : paths.ptr[q + 1]].tolist()
        first = begun.get((stops[0], stops[-1]), 0)
        begun[stops[0], stops[-1]] = first + weight
        for relay in stops[1:-1]:
            met[relay, first : first + weight] += 1
    assert schedule.layout.scratch == met.max()
    assert schedule.layout.chunks == 2 * paths.total


def fabric_of(name: str, **more: int) -> Fabric:
    return lower(load(name, **more))


@pytest.mark.parametrize("name", ["v100-8", "mi250x-4"])
def test_where_some_pairs_have_no_wide_route_relays_win_and_come_near_the_bound(name):
    fabric = fabric_of(name)
    paths = synthesise_paths(fabric)
    assert paths is not None and (np.diff(paths.ptr) > 2).any()
    n, hops = fabric.nranks, hops_of(fabric)
    ways = fastest_ways(hops, np.ones((n, n)))
    assert ways is not None
    recipe = replace(recipe_of(n), paths=paths, pieces=64)
    schedule = BUILD(recipe)
    check(BUILD(replace(recipe, pieces=2)))
    block, simple = 2.0**30, PROTOCOLS["Simple"]
    seconds = float(profile(schedule, fabric).seconds(block, simple))
    direct = next(a for a in algorithms_of("alltoall") if a.name == "direct").build(recipe)
    assert 0.95 <= ways.bound * block / seconds <= 1
    assert seconds < 0.95 * float(profile(direct, fabric).seconds(block, simple))
    # What the steps put on links is what the shares were chosen by.
    told = profile(schedule, fabric).total_link / schedule.layout.chunks
    wanted = relayed_loads(hops, paths)[: fabric.nlinks] / fabric.pace[simple.index]
    assert np.allclose(told, wanted)


@pytest.mark.parametrize("name, nodes", [("h100-8", 1), ("mi300x-8", 1), ("l40s-8", 1),
                                         ("mi300x-8", 2), ("tpu-v4-64", 1)])  # fmt: skip
def test_where_routes_are_as_fast_as_any_ways_there_are_none(name, nodes):
    fabric = fabric_of(name, **({"nodes": nodes} if nodes > 1 else {}))
    n = fabric.nranks
    hops = hops_of(fabric)
    straight = np.bincount(hops.resource, weights=hops.cost).max()
    ways = fastest_ways(hops, np.ones((n, n)))
    assert synthesise_paths(fabric) is None
    assert ways is not None and ways.bound >= straight * 0.99


def test_two_ranks_and_more_than_64_are_not_asked():
    assert synthesise_paths(lower(load("h100-8"), 2)) is None
    assert synthesise_paths(fabric_of("h100-8", nodes=9)) is None


def test_the_same_machine_gets_the_same_ways():
    one, other = (synthesise_paths(fabric_of("mi250x-4")) for _ in range(2))
    assert one is not None and other is not None and one.total == other.total
    for c in ("ptr", "rank", "weight"):
        assert np.array_equal(getattr(one, c), getattr(other, c))
