"""Optima equal the published ones, and what trying all cuts or a plain linear program gives."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from check_tables import (
    a100,
    amd4,
    dgx1,
    dgx2x2,
    graph,
    grid,
    h100,
    mi250_boxes,
    mi300x,
    ndv2,
    ualink,  # fmt: skip
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from rccl_py import load, lower
from rccl_py.fabric.graph import Graph, graph_of
from rccl_py.fabric.symmetry import symmetry
from rccl_py.planner.optimum import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    gather,
    reduce,
    reduce_scatter,  # fmt: skip
    scatter,
)

# ---- published optima: GB/s of algbw, 1 / x* = T n / M in s per GB, ranks inside the cut ---------

TABLE = {  # allgather, 1 / x*, ranks inside, allreduce, alltoall
    "DGX-1": (lambda: graph(dgx1(), 1, 8), 171.429, "7/150", 7, 85.714, 75.0),
    "AMD4": (amd4, 2.6667, "3/2", 3, 1.3333, 2.0),
    "NDv2 x 2": (lambda: ndv2(2), 25.0, "16/25", 8, 12.5, 3.125),
    "NDv2 x 4": (lambda: ndv2(4), 16.667, None, None, None, 2.0833),
    "DGX-2 x 2": (dgx2x2, 129.032, "31/125", 31, None, 12.5),
    "A100 1 x 8": (lambda: a100(1), 342.857, "7/300", 7, 171.429, 342.857),
    "A100 2 x 8": (lambda: a100(2), 346.667, "3/65", 15, 173.333, 50.0),
    "A100 4 x 8": (lambda: a100(4), 266.667, "3/25", 24, None, 33.333),
    "A100 16 x 8": (lambda: a100(16), 213.333, None, None, None, None),
    "MI250 1 x 16": (lambda: mi250_boxes(1), 342.857, "7/150", 14, 171.429, 75.0),
    "MI250 2 x 16": (lambda: mi250_boxes(2), 354.133, "15/166", 30, None, 32.0),
    "MI250 4 x 16": (lambda: mi250_boxes(4), 341.333, "3/16", 48, None, None),
    "H100 1 x 8": (lambda: h100(1), 514.286, "7/450", 7, 257.143, 514.286),
    "H100 2 x 8": (lambda: h100(2), 533.333, "3/100", 15, 266.667, 100.0),
    "H100 4 x 8": (lambda: h100(4), 516.13, None, None, None, None),
    "H100 16 x 8": (lambda: h100(16), 426.667, "3/10", 120, None, 53.333),
    "MI300X 1 x 8": (lambda: mi300x(1), 512.0, "1/64", 7, 256.0, 512.0),
    "MI300X 2 x 8": (lambda: mi300x(2), 531.2, "5/166", 15, 265.6, 100.0),
    "MI300X 3 x 8": (lambda: mi300x(3), 519.65, None, None, None, None),
    "MI300X 4 x 8": (lambda: mi300x(4), 514.065, "31/498", 31, None, 66.667),
    "MI300X 8 x 8": (lambda: mi300x(8), 457.14, None, None, None, None),
    "K8 without a link": (lambda: mi300x(1, 0.0), 438.857, "7/384", 7, 246.857, 438.857),
    "K8, a link at half": (lambda: mi300x(1, 32.0), 475.43, None, None, 251.43, None),
    "H100 2 x 8, a NIC down": (lambda: h100(2, 0), 480.0, None, None, 263.33, None),
    "UALink pod of 64": (lambda: ualink(1, 64), 812.698, "63/800", 63, None, None),
    "UALink 4 pods of 8": (lambda: ualink(4, 8), 533.333, "3/50", 24, None, None),
    "torus 4 x 4": (lambda: grid((4, 4), (50.0,) * 2, True), None, None, None, None, 100.0),
    "torus 4 x 4 x 4": (lambda: grid((4,) * 3, (50.0,) * 3, True), None, None, None, None, 100.0),
}  # fmt: skip


def digits(rate: float, known: float) -> bool:
    """Return whether `rate` is `known` to its printed digits."""
    places = len(str(known).partition(".")[2])
    return abs(rate - known) <= 0.5 * 10.0**-places * (1 + 1e-6)


@pytest.mark.parametrize("name", TABLE)
def test_the_optimum_is_the_published_one(name):
    build, gathered, inverse, inside, reduced, exchanged = TABLE[name]
    made = build()
    alike, n = symmetry(made), made.nranks
    for of in (allgather, reduce_scatter) if gathered else ():
        found = of(made, alike)
        assert digits(found.rate, gathered) and found.exact
        assert inverse is None or n / found.rate == pytest.approx(float(Fraction(inverse)))
        held = found.ranks if of is allgather else n - found.ranks
        assert inside is None or held == inside
    if reduced:
        found = allreduce(made, alike)
        assert digits(found.optimum.rate, reduced) and found.optimum.exact
        assert found.reached == pytest.approx(found.optimum.rate, rel=1e-6)
        assert found.roots.sum() == pytest.approx(1)
    if exchanged:
        assert digits(alltoall(made, alike).optimum.rate, exchanged)


@pytest.mark.parametrize("build, rate", [
    (lambda: a100(1), 300.0), (lambda: a100(2), 200.0), (lambda: h100(2), 400.0),
    (lambda: h100(2, 0), 350.0),
])  # fmt: skip
def test_switches_that_add_up_raise_the_optimum_of_allreduce(build, rate):
    found = allreduce(build(), in_network=True).optimum
    assert digits(found.rate, rate) and found.exact


def test_a_weak_rank_owns_less_of_an_allreduce():
    """With a link down reduce_scatter + allgather reach 219.43 GB/s, with even parts."""
    made = mi300x(1, 0.0)
    even = 1 / (1 / allgather(made).rate + 1 / reduce_scatter(made).rate)
    found = allreduce(made)
    assert digits(even, 219.43) and found.optimum.rate == pytest.approx(54 * 64 / 14)
    assert found.roots[:2].max() < found.roots[2:].min()


GIB = (1 << 30) / 1e9


@pytest.mark.parametrize("dims, rates, wrap, gib, microseconds", [
    ((5, 5), (50, 50), False, 1, 9600.0), ((10, 10), (100, 100), False, 1, 4950.0),
    ((7, 12), (100, 100), False, 4, 19761.9), ((5, 5), (50, 75), False, 1, 7680.0),
    ((3, 3, 3), (50, 50, 50), True, 1, 3209.9), ((4, 2, 3), (50, 50, 50), True, 3, 11500.0),
])  # fmt: skip
def test_meshes_and_tori_gather_in_the_published_time(dims, rates, wrap, gib, microseconds):
    made = grid(dims, tuple(rate * GIB for rate in rates), wrap)
    assert digits(gib * GIB / allgather(made).rate * 1e6, microseconds)


@pytest.mark.parametrize("dims", [(2,), (3,), (5, 3), (4, 6), (3, 4, 5), (2, 3, 3), (1, 7)])
def test_a_torus_exchanges_as_its_closed_form_says(dims):
    """2 b over n times the mean distance along the longest side; a ring of two is one link."""
    made = grid(dims, (1.0,) * len(dims), True)
    far = [(d / 4 if d % 2 == 0 else (d * d - 1) / (4 * d)) / (1 if d == 2 else 2)
           for d in dims if d > 1]  # fmt: skip
    found = alltoall(made).optimum
    assert found.rate == pytest.approx(1 / max(far)) and found.exact


# ---- against trying everything ----------------------------------------------------------------


@st.composite
def networks(draw, most: int = 6):
    """Strongly connected graphs, some vertices switches, capacities alike or not."""
    size = draw(st.integers(2, most))
    held = draw(st.integers(2, size))
    rates = draw(st.sampled_from([(0, 1, 2), (0, 3, 7, 10), (0, 0.3, 1.7, np.pi)]))
    pairs = [(v, w) for v in range(size) for w in range(size) if v != w]
    chosen = draw(st.lists(st.sampled_from(rates), min_size=len(pairs), max_size=len(pairs)))
    edges = [(str(v), str(w), float(c)) for (v, w), c in zip(pairs, chosen) if c]
    edges += [(str(v), str((v + 1) % size), 1.0) for v in range(size)]
    return Graph.of_edges(edges, [str(v) for v in range(held)])


def sets(made: Graph):
    """Yield (ranks inside, B/s leaving, set) of every set of vertices."""
    for k in range(1, made.nvertices):
        for some in combinations(range(made.nvertices), k):
            inside = np.isin(np.arange(made.nvertices), some)
            out = made.capacity[inside[made.tail] & ~inside[made.head]].sum()
            yield int(made.weight[inside].sum()), float(out), set(some)


@settings(deadline=None, max_examples=60)
@given(networks())
def test_the_gathers_are_bounded_by_the_worst_of_all_cuts(made):
    n = made.nranks
    worst = min(n * out / k for k, out, _ in sets(made) if 0 < k < n)
    assert allgather(made).rate == pytest.approx(worst)
    turned = min(n * out / (n - k) for k, out, _ in sets(made) if 0 < k < n)
    assert reduce_scatter(made).rate == pytest.approx(turned)


@settings(deadline=None, max_examples=40)
@given(networks(), st.integers(0, 5))
def test_collectives_with_a_root_are_bounded_by_the_worst_cut_around_it(made, root):
    n, root = made.nranks, root % made.nranks
    own = int(made.rank[root])
    known = [(k, out, own in some) for k, out, some in sets(made)]
    cases = {
        broadcast: min(out for k, out, mine in known if mine and k < n),
        reduce: min(out for k, out, mine in known if not mine and k),
        gather: min(n * out / k for k, out, mine in known if not mine and k),
        scatter: min(n * out / (n - k) for k, out, mine in known if mine and k < n),
    }
    for of, worst in cases.items():
        found = of(made, root)
        assert found.rate == pytest.approx(worst), of
        assert found.capacity / found.share == pytest.approx(worst)
        crossing = found.inside[made.tail] & ~found.inside[made.head]
        assert made.capacity[crossing].sum() == pytest.approx(found.capacity)
        assert found.inside[own] == (of in (broadcast, scatter))


def incidence(made: Graph) -> np.ndarray:
    """Return what leaves less what enters each vertex, by edge: float64[V, m]."""
    found = np.zeros((made.nvertices, len(made.tail)))
    found[made.tail, np.arange(len(made.tail))] += 1
    found[made.head, np.arange(len(made.tail))] -= 1
    return found


def plain_allreduce(made: Graph) -> float:
    """Return the optimum by the program written out: a flow each way for every rank."""
    v, m, n = made.nvertices, len(made.tail), made.nranks
    net = incidence(made)
    columns = n + 2 * m + 2 * n * m  # x, a, b, flows
    equal, upper, right = [], [], []
    place = np.zeros((v, n))
    place[made.rank, np.arange(n)] = 1
    for part in range(2):
        own = slice(n + part * m, n + (part + 1) * m)
        for switch in np.flatnonzero(made.weight == 0):
            row = np.zeros(columns)
            row[own] = net[switch]
            equal.append(row)
        for k in range(n):
            first = n + 2 * m + (part * n + k) * m
            for u in range(v):
                if u == made.rank[k]:
                    continue
                row = np.zeros(columns)
                row[first : first + m] = net[u] * (1 if part == 0 else -1)
                row[:n] -= place[u]
                equal.append(row)
            for e in range(m):
                row = np.zeros(columns)
                row[first + e], row[n + part * m + e] = 1, -1
                upper.append(row)
                right.append(0.0)
    for e in range(m):
        row = np.zeros(columns)
        row[n + e] = row[n + m + e] = 1
        upper.append(row)
        right.append(made.capacity[e])
    cost = np.zeros(columns)
    cost[:n] = -1
    return -linprog(cost, np.array(upper), right, np.array(equal), np.zeros(len(equal))).fun


def plain_alltoall(made: Graph) -> float:
    """Return the optimum by the program written out: a flow for every pair."""
    n, m = made.nranks, len(made.tail)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    net, columns = incidence(made), 1 + len(pairs) * m
    equal = []
    for k, (a, b) in enumerate(pairs):
        for u in range(made.nvertices):
            row = np.zeros(columns)
            row[1 + k * m : 1 + (k + 1) * m] = net[u]
            row[0] = (u == made.rank[b]) * 1.0 - (u == made.rank[a])
            equal.append(row)
    upper = np.hstack([np.zeros((m, 1)), np.tile(np.eye(m), len(pairs))])
    cost = np.zeros(columns)
    cost[0] = -1
    return -n * linprog(cost, upper, made.capacity, np.array(equal), np.zeros(len(equal))).fun


@settings(deadline=None, max_examples=25)
@given(networks(5))
def test_allreduce_is_what_the_program_without_symmetry_gives(made):
    found = allreduce(made)
    assert found.optimum.exact
    assert found.optimum.rate == pytest.approx(plain_allreduce(made), rel=1e-6)
    assert (found.broadcast + found.reduce <= made.capacity * (1 + 1e-6)).all()


@settings(deadline=None, max_examples=25)
@given(networks(5))
def test_alltoall_is_what_the_program_without_symmetry_gives(made):
    assert alltoall(made).optimum.rate == pytest.approx(plain_alltoall(made), rel=1e-6)


FLOWS = ["DGX-1", "AMD4", "NDv2 x 2", "A100 2 x 8", "MI250 1 x 16", "H100 2 x 8", "MI300X 3 x 8",
         "K8 without a link", "H100 2 x 8, a NIC down", "torus 4 x 4 x 4"]  # fmt: skip


@pytest.mark.parametrize("name", FLOWS)
def test_the_flows_of_all_ranks_together_fit_the_links(name):
    made = TABLE[name][0]()
    found = alltoall(made)
    assert_flows(made, found)


@pytest.mark.parametrize("name, ranks", [("mi300x-8-x16-leaf-spine", None), ("mixed-x6", None),
                                         ("v100-8-x32-edr", 24)])  # fmt: skip
def test_the_flows_of_a_machine_fit_its_links(name, ranks):
    made = graph_of(lower(load(name), ranks))
    assert_flows(made, alltoall(made))


def assert_flows(made: Graph, found) -> None:
    each = found.optimum.rate / made.nranks
    net, total = incidence(made), np.zeros(len(made.tail))
    for v in np.flatnonzero(made.weight).tolist():
        flow = found.flow(v)
        taken = -net @ flow
        wanted = made.weight * float(each)
        wanted[v] -= each * made.nranks
        assert taken == pytest.approx(wanted, rel=1e-6, abs=1e-6 * each)
        assert flow.min() >= -1e-6 * each
        total += flow
    assert (total <= made.capacity * (1 + 1e-6)).all()


# ---- machines -------------------------------------------------------------------------------

REGULAR = {
    "mesh": ("mi300x-8", {"nodes": 6}),
    "leaves": ("mi300x-8", {"nodes": 8, "network": "leaf-spine", "leaf_nodes": 2,
                            "oversubscription": 4}),
    "pods": ("h100-8", {"nodes": 12, "leaf_nodes": 2, "pod_nodes": 4, "oversubscription": 3}),
    "switches": ("ualink-64", {"nodes": 3}),
    "one node": ("gb200-nvl72", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REGULAR)
def test_of_a_regular_machine_single_parts_say_what_flows_say(name):
    machine, options = REGULAR[name]
    made = graph_of(lower(load(machine, **options)))
    for of in (allgather, reduce_scatter):
        one, other = of(made), of(made, closed=True)
        assert one.exact and not other.exact and one.rate == pytest.approx(other.rate)
    one, other = (alltoall(made, closed=closed).optimum for closed in (False, True))
    assert one.rate == pytest.approx(other.rate, rel=1e-6)
    one, other = (allreduce(made, closed=closed).optimum for closed in (False, True))
    assert one.rate == pytest.approx(other.rate, rel=1e-6)
    for of in (broadcast, gather):
        assert of(made).rate == pytest.approx(of(made, closed=True).rate)


def test_ranks_on_one_accelerator_need_no_link():
    made = graph_of(lower(load("mi300x-8"), [3, 3]))
    for of in (allgather, reduce_scatter, broadcast, gather):
        assert of(made).rate == np.inf
    assert allreduce(made).optimum.rate == alltoall(made).optimum.rate == np.inf


def test_what_cannot_be_reached_has_the_rate_zero():
    made = Graph.of_edges([("0", "1", 1.0), ("1", "0", 1.0), ("1", "2", 1.0)], ["0", "1", "2"])
    assert allgather(made).rate == allreduce(made).optimum.rate == 0.0
    assert alltoall(made).optimum.rate == gather(made, 0).rate == 0.0
    assert broadcast(made, 0).rate == 1.0 and broadcast(made, 2).rate == 0.0
