"""Packed forests: trees span, links are loaded as said, and no forest could be much faster.

The oracles enumerate: every spanning tree, every cut. Known optima are those that exact flows give
on machines of the literature (docs/algorithms.md, Forests).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from helpers import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.algorithms import Forest, algorithms_of
from rccl_py.algorithms.flat import depths
from rccl_py.algorithms.forest import colours
from rccl_py.check import check
from rccl_py.errors import InvalidArgument, ScheduleError
from rccl_py.fabric import Fabric
from rccl_py.planner.bounds import Cuts
from rccl_py.planner.packing import MOST_RANKS, cache_folder, forests, load_of, synthesise
from rccl_py.planner.packing.arborescence import centred, cheapest, flattened, grown, priced
from rccl_py.planner.packing.build import Packed, packed
from rccl_py.planner.packing.cache import kept, key_of, remember
from rccl_py.planner.packing.columns import Problem
from rccl_py.planner.packing.disjoint import arborescences, links_of, widest
from rccl_py.planner.packing.shares import rounded, shared
from rccl_py.planner.packing.symmetry import groups
from rccl_py.planner.packing.synthesis import problem_of, searched
from rccl_py.planner.packing.ways import Ways, ways_of
from rccl_py.topology import load, lower

COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce")
ROUNDING = 1.012
"""What a forest may be slower than the optimum: 0.3 % for depth, as much for shares, and a bit."""


# ---- machines ---------------------------------------------------------------------------------


def ways(n: int, uses: dict[tuple[int, int], list[tuple[object, float]]]) -> Ways:
    """Return ways from what each pair uses: names of things, and their B/s."""
    names: dict[object, int] = {}
    rows = [(u * n + v, names.setdefault(name, len(names)), 1.0 / rate)
            for (u, v), things in uses.items() for name, rate in things]  # fmt: skip
    joined = np.zeros((n, n), dtype=bool)
    joined[tuple(zip(*uses))] = True
    pair, thing, seconds = (np.array(column) for column in zip(*rows))
    return Ways(n, pair.astype(np.int64), thing.astype(np.int64), seconds, joined)


def meshed(capacity: np.ndarray) -> Ways:
    """Return the ways of direct links: capacity float64[n, n] B/s, 0 where there is none."""
    links = {(int(u), int(v)): [((u, v), capacity[u, v])] for u, v in np.argwhere(capacity > 0)}
    return ways(len(capacity), links)


def complete(n: int, rate: float = 64.0, **other: float) -> np.ndarray:
    """Return a full mesh, some pairs (``p01=32``) at another rate both ways."""
    capacity = rate * (1 - np.eye(n))
    for name, value in other.items():
        u, v = int(name[1]), int(name[2])
        capacity[u, v] = capacity[v, u] = value
    return capacity


def undirected(n: int, edges: str, rate: float) -> np.ndarray:
    """Return the mesh of ``"0-1:4 ..."``, weights times `rate` B/s."""
    capacity = np.zeros((n, n))
    for edge in edges.split():
        (u, v), weight = map(int, edge.split(":")[0].split("-")), int(edge.split(":")[1])
        capacity[u, v] = capacity[v, u] = weight * rate
    return capacity


def boxes(
    count: int, g: int, up: float, nic: float, rails: int, down: tuple[int, ...] = ()
) -> Ways:
    """Return boxes of g ranks on a switch, and NICs on rails; ranks in `down` have none."""
    uses: dict[tuple[int, int], list[tuple[object, float]]] = {}
    for u, v in product(range(count * g), repeat=2):
        if u != v and u // g == v // g:
            uses[u, v] = [(("up", u), up), (("down", v), up)]
        elif u // g != v // g and u % rails == v % rails and not {u, v} & set(down):
            uses[u, v] = [(("out", u), nic), (("in", v), nic)]
    return ways(count * g, uses)


DGX1 = 25.0 * np.array([
    [0, 2, 1, 1, 2, 0, 0, 0], [2, 0, 1, 2, 0, 1, 0, 0], [1, 1, 0, 2, 0, 0, 2, 0],
    [1, 2, 2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2, 1, 1], [0, 1, 0, 0, 2, 0, 1, 2],
    [0, 0, 2, 0, 1, 1, 0, 2], [0, 0, 0, 1, 1, 2, 2, 0]])  # fmt: skip
MI250 = undirected(16, "0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 "
    "4-5:4 4-6:1 5-6:1 5-7:1 6-7:4 8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 "
    "13-14:1 13-15:1 14-15:4", 50.0)  # fmt: skip
KNOWN = {
    "two squares": (meshed(undirected(4, "0-1:1 0-2:1 1-3:1 2-3:1", 1.0)), 8 / 3, 4 / 3),
    "DGX-1": (meshed(DGX1), 171.429, 85.714),
    "mesh of 8": (meshed(complete(8)), 512.0, 256.0),
    "mesh of 8, a link down": (meshed(complete(8, p01=0)), 438.857, 246.857),
    "mesh of 8, a link at half": (meshed(complete(8, p01=32)), 475.429, 251.429),
    "MI250 box": (meshed(MI250), 342.857, 171.429),
    "two A100 boxes": (boxes(2, 8, 300, 25, 2), 346.667, 173.333),
    "two H100 boxes": (boxes(2, 8, 450, 50, 8), 533.333, 266.667),
    "two H100 boxes, a NIC down": (boxes(2, 8, 450, 50, 8, down=(0,)), 480.0, 263.333),
}
"""Ways, and the B/s of allgather (of the whole output) and of allreduce that no algorithm beats."""


def small(draw: st.DrawFn, *, symmetric: bool) -> np.ndarray:
    n = draw(st.integers(2, 5))
    rates = st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)
    capacity = np.array(draw(rates), dtype=float).reshape(n, n)
    capacity[np.arange(n), (np.arange(n) + 1) % n] += 1  # one ring, so that all are joined
    if symmetric:
        capacity = capacity + capacity.T
    np.fill_diagonal(capacity, 0)
    return capacity


meshes = st.composite(lambda draw: small(draw, symmetric=False))
both_ways = st.composite(lambda draw: small(draw, symmetric=True))


def every_tree(n: int, root: int) -> list[np.ndarray]:
    """Return the parents of all spanning trees of n ranks, below one root."""
    found = []
    for parents in product(range(n), repeat=n - 1):
        tree = np.insert(np.array(parents), root, -1)
        at = np.where(tree < 0, root, tree)
        for _ in range(n):
            at = np.where(tree[at] < 0, at, tree[at])
        if (at == root).all():
            found.append(tree)
    return found


def slow_load(forest: Forest, capacity: np.ndarray, *, own: bool) -> float:
    """Return the s the busiest link of a mesh is busy for a byte a block, edge by edge."""
    n, root = len(capacity), [int(np.flatnonzero(p < 0)[0]) for p in forest.parents]
    total = {r: sum(int(w) for w, s in zip(forest.weights, root) if s == r or not own)
             for r in root}  # fmt: skip
    busy = np.zeros((n, n))
    for tree, weight, r in zip(forest.parents.tolist(), forest.weights.tolist(), root):
        for child, parent in enumerate(tree):
            if parent >= 0:
                busy[parent, child] += weight / total[r] / capacity[parent, child]
    return float(busy.max())


def cut_bound(capacity: np.ndarray) -> float:
    """Return the s an allgather of a byte a rank takes: over all cuts, ranks inside / B/s out."""
    n = len(capacity)
    sets = [list(s) for k in range(1, n) for s in combinations(range(n), k)]
    return max(len(s) / capacity[np.ix_(s, [v for v in range(n) if v not in s])].sum()
               for s in sets)  # fmt: skip


# ---- trees at prices --------------------------------------------------------------------------


@given(st.integers(2, 5), st.integers(0, 4), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_the_cheapest_tree_costs_what_the_cheapest_of_all_trees_costs(n, root, seed):
    price, root = np.random.default_rng(seed).integers(0, 6, (n, n)).astype(float), root % n
    np.fill_diagonal(price, np.inf)
    least = min(priced(tree[None], price)[0] for tree in every_tree(n, root))
    found = cheapest(price, root)
    assert np.flatnonzero(found < 0).tolist() == [root]
    assert depths(found[None]).max() < n
    assert priced(found[None], price)[0] == least


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 16, 17])
def test_hanging_ranks_higher_costs_nothing_and_makes_no_tree_deeper(n):
    rng = np.random.default_rng(n)
    price = rng.integers(0, 3, (n, n)).astype(float)
    np.fill_diagonal(price, np.inf)
    for root in range(n):
        tree = cheapest(price, root)
        flat = flattened(tree, price, 1e-9)
        assert priced(flat[None], price)[0] <= priced(tree[None], price)[0]
        assert depths(flat[None]).max() <= depths(tree[None]).max()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_a_tree_hung_up_in_its_middle_has_the_same_edges_and_the_least_depth(n):
    rng = np.random.default_rng(n)
    tree = np.array([-1, *(int(rng.integers(k)) for k in range(1, n))])

    def edges(parents: np.ndarray) -> set[frozenset[int]]:
        return {frozenset((c, int(p))) for c, p in enumerate(parents) if p >= 0}

    found = centred(tree)
    hops = np.full((n, n), n)
    hops[np.arange(n), np.arange(n)] = 0
    for c, p in enumerate(tree):
        if p >= 0:
            hops[c, p] = hops[p, c] = 1
    for k in range(n):
        hops = np.minimum(hops, hops[:, k : k + 1] + hops[k : k + 1, :])
    assert edges(found) == edges(tree)
    assert depths(found[None]).max() == hops.max(axis=1).min()


@pytest.mark.parametrize("n", [2, 3, 8, 15])
def test_grown_trees_keep_to_the_depth_they_may_have(n):
    rng = np.random.default_rng(n)
    price = np.where(rng.random((n, n)) < 0.5, np.inf, rng.random((n, n)))
    price[np.arange(n), (np.arange(n) + 1) % n] = 1.0
    np.fill_diagonal(price, np.inf)
    for deepest in (1, 2, n):
        trees, whole = grown(price, np.arange(n), deepest, 0.1)
        for root in np.flatnonzero(whole).tolist():
            assert np.flatnonzero(trees[root] < 0).tolist() == [root]
            assert depths(trees[root][None]).max() <= deepest
            assert np.isfinite(priced(trees[root][None], price)[0])
        assert whole.all() or deepest < n


# ---- forests ----------------------------------------------------------------------------------


@given(meshes())
@settings(max_examples=10, deadline=None)
def test_an_allgathers_forest_is_as_fast_as_the_worst_cut_allows(capacity):
    n, least = len(capacity), cut_bound(capacity)
    best = packed(problem_of(meshed(capacity), "allgather"), np.arange(n))[-1]
    assert least * (1 - 1e-9) <= best.seconds <= least * ROUNDING
    assert best.proof == pytest.approx(least, rel=0.002)
    assert slow_load(best.forest, capacity, own=True) == pytest.approx(best.seconds)
    roots = best.forest.parents.argmin(axis=1)
    assert len(set(np.bincount(roots, weights=best.forest.weights, minlength=n))) == 1
    assert (depths(best.forest.parents) > 0).sum() == (n - 1) * len(roots)


@given(meshes(), st.integers(0, 4))
@settings(max_examples=10, deadline=None)
def test_a_broadcasts_forest_is_as_fast_as_the_narrowest_cut_from_its_root(capacity, root):
    n, root = len(capacity), root % len(capacity)
    rest = [v for v in range(n) if v != root]
    cuts = [[root, *s] for k in range(n - 1) for s in combinations(rest, k)]
    width = min(capacity[np.ix_(s, [v for v in range(n) if v not in s])].sum() for s in cuts)
    best = packed(problem_of(meshed(capacity), "broadcast", root), np.arange(n))[-1]
    assert 1 / width * (1 - 1e-9) <= best.seconds <= ROUNDING / width
    assert (best.forest.parents.argmin(axis=1) == root).all()
    turned = packed(problem_of(meshed(capacity.T), "reduce", root), np.arange(n))[-1]
    assert turned.seconds == pytest.approx(best.seconds, rel=ROUNDING - 1)


@given(both_ways())
@settings(max_examples=10, deadline=None)
def test_an_allreduces_forest_is_the_best_mix_of_all_trees_there_are(capacity):
    from scipy.optimize import linprog

    n, rate = len(capacity), 1 / np.where(capacity > 0, capacity, np.nan)
    loads = []
    for tree in every_tree(n, 0):
        child = np.flatnonzero(tree >= 0)
        busy = np.zeros((n, n))
        busy[tree[child], child] = busy[child, tree[child]] = rate[tree[child], child]
        if not np.isnan(busy).any():
            loads.append(busy.ravel())
    table = np.array(loads).T
    exact = linprog([*[0] * len(loads), 1], np.hstack([table, -np.ones((n * n, 1))]),
                    np.zeros(n * n), [[*[1] * len(loads), 0]], [1]).fun  # fmt: skip
    best = packed(problem_of(meshed(capacity), "allreduce"), np.arange(n))[-1]
    assert exact * (1 - 1e-9) <= best.seconds <= exact * ROUNDING
    assert best.proof == pytest.approx(exact, rel=0.002)


@pytest.mark.parametrize("name", KNOWN)
def test_known_machines_are_packed_to_a_hundredth_of_their_optimum(name):
    machine, gathered, reduced = KNOWN[name]
    n = machine.n
    for collective, scale, optimum in (("allgather", n, gathered), ("allreduce", 1, reduced)):
        found = packed(problem_of(machine, collective), np.arange(n))
        assert scale / found[-1].proof == pytest.approx(optimum, rel=0.002)
        assert optimum * 0.99 <= scale / found[-1].seconds <= optimum * 1.00001
        assert [p.depth for p in found] == sorted(p.depth for p in found)
        assert [p.seconds for p in found] == sorted({p.seconds for p in found}, reverse=True)
        for one in found:
            own = load_of(one.forest, problem_of(machine, collective).ways,
                          own=collective == "allgather")  # fmt: skip
            assert one.seconds == pytest.approx(own.max())
            assert one.depth == depths(one.forest.parents).max()


def test_shallow_trees_are_enough_where_every_rank_is_two_hops_away():
    for name in ("DGX-1", "mesh of 8, a link down", "two A100 boxes", "two H100 boxes"):
        assert packed(problem_of(KNOWN[name][0], "allgather"),
                      np.arange(KNOWN[name][0].n))[-1].depth == 2  # fmt: skip


def test_a_rank_with_a_broken_link_need_not_own_as_much_as_the_others():
    machine = KNOWN["mesh of 8, a link down"][0]
    uniform = packed(problem_of(machine, "allgather"), np.arange(8))[-1]
    free = packed(problem_of(machine, "allreduce"), np.arange(8))[-1]
    assert (8 / uniform.seconds / 2) / (1 / free.seconds) < 0.9


def test_without_a_way_back_nothing_is_reduced_and_without_a_way_at_all_nothing_is_sent():
    capacity = np.zeros((3, 3))
    capacity[[0, 1, 2], [1, 2, 0]] = 1.0  # a ring one way
    assert packed(problem_of(meshed(capacity), "allreduce"), np.arange(3)) == []
    assert packed(problem_of(meshed(capacity), "allgather"), np.arange(3))[-1].depth == 2
    capacity[2, 0] = 0.0
    assert packed(problem_of(meshed(capacity), "allgather"), np.arange(3)) == []
    assert packed(problem_of(meshed(capacity), "broadcast", 0), np.arange(3))[-1].depth == 2
    assert packed(problem_of(meshed(capacity), "broadcast", 1), np.arange(3)) == []


def test_the_same_machine_with_its_links_in_another_order_has_the_same_forest():
    machine = meshed(complete(5, p01=32))
    rng = np.random.default_rng(1)
    number, order = rng.permutation(25), rng.permutation(len(machine.pair))
    other = Ways(5, machine.pair[order], number[machine.shared[order]], machine.seconds[order],
                 machine.joined)  # fmt: skip
    for collective in ("allgather", "allreduce"):
        one, two = (packed(problem_of(w, collective), np.arange(5)) for w in (machine, other))
        assert len(one) == len(two)
        for a, b in zip(one, two):
            assert np.array_equal(a.forest.parents, b.forest.parents)
            assert np.array_equal(a.forest.weights, b.forest.weights)


@given(meshes(), st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_trees_on_links_alone_keep_to_whole_capacities(capacity, root):
    root %= len(capacity)
    machine = meshed(capacity)
    links = links_of(machine)
    assert np.allclose(links, capacity)
    forest = arborescences(links, root)
    assert (forest.parents.argmin(axis=1) == root).all()
    assert (depths(forest.parents) > 0).sum() == len(forest.weights) * (len(capacity) - 1)
    rate = 1 / slow_load(forest, capacity, own=False)
    assert 0.99 * widest(links, root) <= rate <= widest(links, root) * 1.00001


def test_pairs_over_several_links_may_be_relayed_and_shared_switches_are_no_links():
    line = {(0, 1): [("a", 1.0)], (1, 2): [("b", 2.0)], (0, 2): [("a", 1.0), ("b", 2.0)]}
    assert links_of(ways(3, line)).tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    assert links_of(ways(3, {**line, (2, 1): [("b", 2.0)]})) is None
    assert links_of(ways(3, {**line, (2, 0): [("c", 2.0), ("a", 1.0)]})) is None


def test_where_links_lead_one_way_only_an_allreduce_goes_up_other_trees_than_down():
    uses = {}
    for box in (0, 8):
        for u, v in np.argwhere(DGX1 > 0).tolist():
            uses[box + u, box + v] = [((box, u, v), DGX1[u, v])]
    machine = ways(16, {**uses, (0, 9): [("there", 12.5)], (8, 1): [("back", 12.5)]})
    (found,) = searched(machine, np.arange(16), "allreduce", 0, None)
    assert 12.5 * 0.99 <= 1 / found.seconds <= 12.5 * 1.00001  # what a box's NIC allows
    check(row_of("allreduce").build(replace(recipe_of(16, pieces=2), forest=found.forest)))
    used = {(int(p), c) for tree in found.forest.up for c, p in enumerate(tree) if p >= 0}
    assert {(9, 0), (1, 8)} <= used and not {(0, 9), (8, 1)} & used


TOLD = """
from hashlib import blake2b
from rccl_py.planner.packing import forests
from rccl_py.topology import load, lower
told = blake2b(digest_size=8)
for collective in ("allgather", "allreduce", "broadcast"):
    for one in forests(lower(load("v100-8")), collective):
        told.update(one.forest.parents.tobytes() + one.forest.weights.tobytes())
told = told.hexdigest()
"""


def test_another_processor_finds_the_same_forest():
    """NumPy's, OpenBLAS' and the C library's sums depend on what the processor can do."""
    old = {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX "
           "AVX512_CNL AVX512_ICL AVX512_SPR", "OPENBLAS_CORETYPE": "Prescott",
           "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"}  # fmt: skip
    there = subprocess.run([sys.executable, "-W", "ignore", "-c", f"{TOLD}print(told)"], text=True,
                           check=True, capture_output=True, env={**os.environ, **old})  # fmt: skip
    here: dict[str, str] = {}
    exec(TOLD, here)
    assert there.stdout.strip() == here["told"]


# ---- symmetry and shares ----------------------------------------------------------------------


def test_a_torus_is_moved_along_its_sides_and_a_broken_one_is_not():
    grid = np.arange(15).reshape(3, 5)
    capacity = np.zeros((15, 15))
    for axis, way in product((0, 1), (1, -1)):
        capacity[grid.ravel(), np.roll(grid, way, axis).ravel()] = 1.0
    best = groups(meshed(capacity), np.arange(15))[0]
    assert best.shape == (15, 15)
    for image in best:
        assert np.array_equal(capacity[np.ix_(image, image)], capacity)
        assert (image == np.arange(15)).all() or (image != np.arange(15)).all()
    capacity[0, 1] = 0.5
    assert [len(g) for g in groups(meshed(capacity), np.arange(15))] == [1]


@given(st.integers(1, 4), st.integers(1, 20), st.integers(0, 1000))
@settings(deadline=None)
def test_shares_add_up_in_every_class_and_are_no_worse_than_remainders(classes, total, seed):
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(classes), 3)
    x = rng.random(3 * classes)
    x /= np.bincount(of, weights=x)[of]
    busy = rng.integers(0, 3, (3 * classes, 4)) + 0.25
    plain = rounded(x, total, of)
    assert (np.bincount(of, weights=plain) == total).all() and (plain >= 0).all()
    count, least = shared(x, busy, of, total, 0.0)
    each = np.bincount(of, weights=count)
    assert (each == each[0]).all() and each[0] <= total
    assert least == pytest.approx(float((count @ busy).max() / each[0]))
    assert least <= (plain @ busy).max() / total * 1.001


# ---- schedules --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def v100() -> Fabric:
    return lower(load("v100-8"))


@pytest.fixture(scope="module")
def unlike() -> Fabric:
    return lower(load("mi250x-4"), [0, 1, 2, 3, 4, 6, 7])  # of 8: pairs, one of them alone


def row_of(collective: str):
    return next(a for a in algorithms_of(collective) if a.needs == "forest")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_schedules_of_real_machines_are_the_collectives_they_claim(collective, v100, unlike):
    for fabric, root in ((v100, 0), (unlike, 5)):
        for forest in synthesise(fabric, collective, root):
            recipe = replace(recipe_of(fabric.nranks, root, pieces=2), forest=forest)
            check(row_of(collective).build(recipe))


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_trees_on_routes_and_flows_on_the_graph_of_links_have_the_same_optimum(collective, v100):
    for fabric in (v100, lower(load("mi250x-4")), lower(load("l40s-8"))):
        best, exact = forests(fabric, collective)[-1], Cuts(fabric).optimum(collective)
        whole = fabric.nranks if collective == "allgather" else 1
        assert exact.exact
        assert whole / best.proof == pytest.approx(exact.rate, rel=0.002)
        assert whole / best.seconds >= 0.99 * exact.rate


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_rank_sends_to_or_gets_from_more_than_two_others_on_a_channel(collective, v100):
    schedule = row_of(collective).build(
        replace(recipe_of(8), forest=synthesise(v100, collective)[-1]))  # fmt: skip
    ends: dict[tuple[str, int, int], set[int]] = {}
    for step in schedule:
        far = step.src != step.dst
        for channel, src, dst in zip(step.channel[far].tolist(), step.src[far].tolist(),
                                     step.dst[far].tolist()):  # fmt: skip
            ends.setdefault(("to", channel, src), set()).add(dst)
            ends.setdefault(("from", channel, dst), set()).add(src)
    assert max(map(len, ends.values())) == 2
    assert {channel for _, channel, _ in ends} == set(range(schedule.nchannels))


@given(st.integers(1, 9), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_pairs_get_as_many_colours_as_the_busiest_rank_has_pairs(n, seed):
    src, dst = np.nonzero(np.random.default_rng(seed).random((n, n)) < 0.6)
    colour = colours(src, dst, n)
    assert len({*zip(src, colour)}) == len({*zip(dst, colour)}) == len(src)
    most = max(np.bincount(src).max(initial=0), np.bincount(dst).max(initial=0))
    assert colour.max(initial=-1) + 1 <= most


def test_a_forest_that_does_not_fit_the_collective_is_refused_with_what_is_missing():
    chain = np.array([[-1, 0, 1]], dtype=np.int32)
    one = Forest(chain, np.array([3], dtype=np.int32))
    with pytest.raises(ScheduleError, match="root 0 weigh 1, those of root 1 0"):
        row_of("allgather").build(replace(recipe_of(3), forest=one))
    with pytest.raises(ScheduleError, match="none of 1 trees has the root 2"):
        row_of("broadcast").build(replace(recipe_of(3, 2), forest=one))
    with pytest.raises(ScheduleError, match="has no forest"):
        row_of("allreduce").build(replace(recipe_of(3), forest=None))
    check(row_of("allreduce").build(replace(recipe_of(3), forest=one)))


def test_only_what_trees_can_do_and_machines_worth_the_search_are_packed(v100):
    with pytest.raises(InvalidArgument, match="'alltoall' has no forest"):
        synthesise(v100, "alltoall")
    with pytest.raises(InvalidArgument, match=r"root 8 is not one of 0\.\.7"):
        synthesise(v100, "broadcast", 8)
    assert synthesise(lower(load("v100-8"), 1), "allreduce") == []
    large = lower(load("mi300x-8", nodes=MOST_RANKS // 8 + 1))
    assert synthesise(large, "allreduce") == []


# ---- on disk ----------------------------------------------------------------------------------


def same(one: list[Packed], two: list[Packed]) -> bool:
    return len(one) == len(two) and all(
        np.array_equal(a.forest.parents, b.forest.parents)
        and np.array_equal(a.forest.weights, b.forest.weights)
        and (a.seconds, a.proof, a.depth) == (b.seconds, b.proof, b.depth)
        for a, b in zip(one, two)
    )


def test_what_is_kept_on_disk_is_what_was_found(tmp_path: Path, v100, monkeypatch):
    found = forests(v100, "allgather", folder=tmp_path / "deep" / "down")
    (path,) = (tmp_path / "deep" / "down").iterdir()  # one file, nothing half written beside it
    monkeypatch.setattr("rccl_py.planner.packing.synthesis.packed", lambda *_: pytest.fail("anew"))
    assert same(found, forests(v100, "allgather", folder=tmp_path / "deep" / "down"))
    assert path.suffix == ".npz"


def test_a_file_that_is_broken_foreign_or_wrong_is_found_anew_and_written_again(tmp_path: Path):
    problem, order = problem_of(meshed(complete(3)), "allgather"), np.arange(3)
    found, key = packed(problem, order), key_of(problem, order)
    remember(tmp_path, key, found)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    for bad in (b"", b"no archive", good[: len(good) // 2], good[:-40]):
        path.write_bytes(bad)
        assert kept(tmp_path, key, problem) is None
    path.write_bytes(good)
    assert same(kept(tmp_path, key, problem) or [], found)
    (tmp_path / f"{'0' * 40}.npz").write_bytes(good)  # of another machine
    assert kept(tmp_path, "0" * 40, problem) is None

    forest = found[0].forest
    loop, twice, far = (forest.parents.copy() for _ in range(3))
    loop[0, [1, 2]] = [2, 1]
    twice[0, 1] = -1
    far[0, 1] = 3
    uneven = np.array([2, *[1] * (len(forest.weights) - 1)], dtype=np.int32)
    for wrong in (Forest(loop, forest.weights), Forest(twice, forest.weights),
                  Forest(far, forest.weights), Forest(forest.parents, uneven),
                  Forest(forest.parents[:, :2], forest.weights),
                  Forest(forest.parents, forest.weights * 0)):  # fmt: skip
        remember(tmp_path, key, [replace(found[0], forest=wrong)])
        assert kept(tmp_path, key, problem) is None


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path, unlike):
    (tmp_path / "file").write_text("in the way")
    found = forests(unlike, "broadcast", 1, folder=tmp_path / "file" / "below")
    assert same(found, forests(unlike, "broadcast", 1))


def test_the_name_of_a_file_is_what_the_machine_is_not_what_its_links_are_called():
    def key(capacity: np.ndarray, collective: str = "allgather", root: int = 0) -> str:
        return key_of(problem_of(meshed(capacity), collective, root), np.arange(len(capacity)))

    one, problem = complete(4), problem_of(meshed(complete(4)), "allgather")
    ways = problem.ways
    renamed = Ways(4, ways.pair, 50 - ways.shared, ways.seconds, ways.joined)
    assert key(one) == key_of(Problem(renamed, problem.roots), np.arange(4))
    keys = [key(one), key(complete(4, p01=32)), key(complete(4, 65.0)), key(complete(5)),
            key(one, "allreduce"), key(one, "broadcast"), key(one, "broadcast", 1)]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_the_folder_is_the_one_asked_for_else_the_users_cache():
    assert cache_folder({"RCCL_PY_CACHE": "/here", "XDG_CACHE_HOME": "/there"}) == Path("/here")
    assert cache_folder({"RCCL_PY_CACHE": "Off"}) is None
    assert cache_folder({"XDG_CACHE_HOME": "/there"}) == Path("/there/rccl_py")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "rccl_py"


def test_ways_are_what_the_fabrics_routes_cost(v100):
    found = ways_of(v100)
    pace = v100.pace[2]
    for src, dst in ((0, 1), (0, 7), (3, 4)):
        routes = v100.routes(np.array([src], np.int32), np.array([dst], np.int32))
        row = found.matrix[[src * 8 + dst]].toarray()[0]
        wanted = np.bincount(routes.link, weights=routes.share * pace[routes.link],
                             minlength=len(row))  # fmt: skip
        assert row == pytest.approx(wanted[: len(row)])
