"""The graph holds what routes can carry, and its orbits are what permutations say."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from check_tables import amd4, dgx1, graph, grid, h100, mi250_boxes, mi300x
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import load, lower
from rccl_py.errors import InvalidArgument
from rccl_py.fabric import loaded
from rccl_py.fabric.graph import Graph, Nest, graph_of
from rccl_py.fabric.quotient import around
from rccl_py.fabric.symmetry import Symmetry, symmetry
from rccl_py.planner.optimum.flows import Network

# ---- what is in the graph -------------------------------------------------------------------

MACHINES = {
    "mesh": lambda: lower(load("mi300x-8")),
    "part of a mesh": lambda: lower(load("mi300x-8"), [1, 2, 5]),
    "switches": lambda: lower(load("h100-8", nodes=2)),
    "unequal links": lambda: lower(load("mi250x-4")),
    "the host": lambda: lower(load("l40s-8")),
    "leaves": lambda: lower(load("mi300x-8", nodes=3, network="leaf-spine", leaf_nodes=2)),
    "rails without a spine": lambda: lower(load("h100-8-x32-rail-only"), 20),
    "shared NICs": lambda: lower(load("v100-8-x32-edr"), 24),
    "hubs": lambda: lower(load("mi300x-8-cpx"), 24),
    "torus": lambda: lower(load("tpu-v4-64"), 24),
    "dragonfly": lambda: lower(load("mi300a-4-x512-dragonfly"), 40),
    "unlike nodes": lambda: lower(load("mixed-x6")),
    "by hash": lambda: lower(load("mi300x-8-x64-ecmp"), 48),
    "another order": lambda: lower(load("h100-8", nodes=2), [9, 3, 15, 0, 4]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_routes_carry_out_of_some_ranks_the_graph_carries_too(name):
    fabric = MACHINES[name]()
    made, n = graph_of(fabric), fabric.nranks
    rng = np.random.default_rng(n)
    for _ in range(6):
        some = rng.random(n) < rng.uniform(0.1, 0.9)
        some[rng.integers(n)] ^= some.all() or not some.any()
        src, dst = (a.ravel().astype(np.int32) for a in np.meshgrid(
            np.flatnonzero(some), np.flatnonzero(~some)))  # fmt: skip
        load = loaded(fabric, src, dst, np.ones(len(src)))
        carried = len(src) / (load * fabric.pace[2]).max()
        assert carried <= smallest_cut(made, some) * (1 + 1e-9)


def smallest_cut(made: Graph, some: np.ndarray) -> float:
    """Return the B/s from all of `some` ranks together to all others together."""
    ends = [(f"{v}", f"{w}", c) for v, w, c in edges_of(made)]
    for rank, inside in enumerate(some):
        v = str(made.rank[rank])
        ends.append(("from", v, 1e18) if inside else (v, "to", 1e18))
    joined = Graph.of_edges(ends, ["from", "to"])
    return Network.of(joined).largest(0, 1)[0]


def edges_of(made: Graph) -> list[tuple[int, int, float]]:
    return list(zip(made.tail.tolist(), made.head.tolist(), made.capacity.tolist()))


@pytest.mark.parametrize("name", MACHINES)
def test_every_link_of_an_edge_joins_its_sides_and_carries_its_part(name):
    fabric = MACHINES[name]()
    made = graph_of(fabric)
    assert len(np.unique(made.links)) == len(made.links)
    for edge in range(len(made.tail)):
        links = made.links_of(edge)
        assert (1 / fabric.pace[2, links]).sum() == pytest.approx(made.capacity[edge])
    key = made.tail.astype(np.int64) * made.nvertices + made.head
    assert (np.diff(key) > 0).all()  # in order, no two alike


def test_a_rank_is_its_vertex_and_has_its_name():
    made = graph_of(lower(load("h100-8", nodes=2), [9, 3, 15, 0, 4]))
    assert made.rank.tolist() == [0, 1, 2, 3, 4] and made.names[:2] == ["rank 0", "rank 1"]
    assert any(name.startswith("node1: ") for name in made.names)


def test_ranks_that_share_an_accelerator_share_its_vertex():
    made = graph_of(lower(load("mi300x-8"), [2, 2, 0, 2]))
    assert made.rank.tolist() == [0, 0, 1, 0] and made.weight.tolist() == [3, 1]


def test_a_mesh_is_a_complete_graph_and_an_idle_accelerator_is_no_way_round():
    assert len(graph_of(MACHINES["mesh"]()).tail) == 56
    assert len(graph_of(MACHINES["part of a mesh"]()).tail) == 6


def test_a_graph_turned_round_twice_is_itself():
    made = graph_of(MACHINES["leaves"]())
    turned = made.reversed()
    back = turned.reversed()
    assert sorted(edges_of(turned)) == sorted((w, v, c) for v, w, c in edges_of(made))
    assert edges_of(back) == edges_of(made) and (back.links == made.links).all()


@pytest.mark.parametrize("edges, ranks, what", [
    ([("a", "b", 0.0)], ["a", "b"], "edge a -> b of 0.0 B/s"),
    ([("a", "b", float("nan"))], ["a", "b"], "finite capacity above 0"),
    ([("a", "a", 1.0)], ["a", "b"], "two different vertices"),
    ([("a", "b", 1.0)], ["a", "b", "c"], "rank c: no edge joins it"),
])  # fmt: skip
def test_edges_that_cannot_be_are_refused(edges, ranks, what):
    with pytest.raises(InvalidArgument, match=what):
        Graph.of_edges(edges, ranks)


def test_parallel_edges_are_one():
    made = Graph.of_edges([("a", "b", 1.0), ("b", "a", 5.0), ("a", "b", 2.0)], ["a", "b"])
    assert edges_of(made) == [(0, 1, 3.0), (1, 0, 5.0)]
    assert made.links_of(0).tolist() == [0, 2] and not made.mirrored


# ---- symmetry -------------------------------------------------------------------------------


def keeps(made: Graph, perm: np.ndarray) -> bool:
    """Return whether v -> perm[v] is an automorphism, edge by edge."""
    known = {(v, w): c for v, w, c in edges_of(made)}
    goes = {(int(perm[v]), int(perm[w])): c for (v, w), c in known.items()}
    sort = made.weight * 2 + made.adds
    return goes == known and np.unique(perm).size == len(sort) and bool((sort[perm] == sort).all())


def slow_orbits(made: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest vertex and edge of each orbit, by trying every permutation."""
    found = [np.array(p) for p in permutations(range(made.nvertices)) if keeps(made, np.array(p))]
    ends = {(v, w): e for e, (v, w, _) in enumerate(edges_of(made))}
    vertex = np.min(found, axis=0)
    edge = np.min([[ends[int(p[v]), int(p[w])] for v, w in ends] for p in found], axis=0)
    return vertex, edge


@st.composite
def small_graphs(draw, most: int = 6):
    """Graphs with few capacities, so that symmetry is common, and not all vertices with ranks."""
    size = draw(st.integers(2, most))
    pairs = [(v, w) for v in range(size) for w in range(size) if v != w]
    rates = draw(st.lists(st.sampled_from([0, 0, 1, 1, 1, 2]), min_size=len(pairs),
                          max_size=len(pairs)))  # fmt: skip
    edges = [(str(v), str(w), float(c)) for (v, w), c in zip(pairs, rates) if c]
    edges += [(str(v), str((v + 1) % size), 1.0) for v in range(size)]  # none stands alone
    held = draw(st.integers(1, size))
    return Graph.of_edges(edges, [str(v) for v in range(held)])


def same_partition(one: np.ndarray, two: np.ndarray) -> bool:
    return len(set(zip(one, two))) == len(set(one)) == len(set(two))


@settings(deadline=None, max_examples=60)
@given(small_graphs(5))
def test_orbits_are_those_of_all_permutations_that_keep_the_graph(made):
    found = symmetry(made)
    vertex, edge = slow_orbits(made)
    assert same_partition(found.vertex_orbit, vertex) and same_partition(found.edge_orbit, edge)


@settings(deadline=None, max_examples=60)
@given(small_graphs(5), st.data())
def test_hints_that_are_wrong_make_no_orbit_coarser(made, data):
    size = made.nvertices
    numbers = st.lists(st.integers(-1, 2), min_size=size, max_size=size)
    nests = []
    for _ in range(data.draw(st.integers(1, 2))):
        unit = np.array(data.draw(numbers))
        spot = np.array(data.draw(st.one_of(numbers, st.permutations(range(size)))))
        nests.append(Nest("box", unit, np.abs(spot)))
    found = symmetry(replace(made, nests=tuple(nests)))
    vertex, _ = slow_orbits(made)
    assert len(set(zip(found.vertex_orbit, vertex))) == len(set(found.vertex_orbit))
    assert all(keeps(made, perm) for perm in found.generators)


def shuffled(made: Graph, rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
    """Return the graph with vertices renumbered (v becomes turn[v]) and no hints."""
    turn = rng.permutation(made.nvertices)
    tail, head = (turn[end].astype(np.int32) for end in (made.tail, made.head))
    order = np.lexsort((head, tail))
    other = replace(made, tail=tail[order], head=head[order],
                    capacity=made.capacity[order], rank=turn[made.rank].astype(np.int32),
                    adds=made.adds[np.argsort(turn)], nests=())  # fmt: skip
    return other, turn


GRAPHS = {
    "DGX-1": (lambda: graph(dgx1(), 1, 8), 2),
    "AMD4": (amd4, 1),
    "MI250": (lambda: mi250_boxes(1), 4),
    "2 x MI250": (lambda: mi250_boxes(2), 5),
    "3 x K8": (lambda: mi300x(3), 2),
    "K8 without a link": (lambda: mi300x(1, 0.0), 2),
    "3 x H100": (lambda: h100(3), 3),
    "a NIC down": (lambda: h100(3, 2), 8),
    "torus": (lambda: grid((3, 4), (1.0, 1.0), True), 1),
    "mesh 3 x 3": (lambda: grid((3, 3), (1.0, 1.0), False), 3),
    "line": (lambda: grid((5,), (1.0,), False), 3),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_vertices_may_be_renumbered(name):
    made, count = GRAPHS[name][0](), GRAPHS[name][1]
    found, rng = symmetry(made), np.random.default_rng(7)
    assert found.complete and len(np.unique(found.vertex_orbit)) == count
    assert all(keeps(made, perm) for perm in found.generators)
    other, turn = shuffled(made, rng)
    assert same_partition(symmetry(other).vertex_orbit[turn], found.vertex_orbit)


@pytest.mark.parametrize("name", ["mesh", "switches", "leaves", "shared NICs", "unlike nodes",
                                  "hubs", "by hash"])  # fmt: skip
def test_copies_are_found_as_the_search_alone_finds_them(name):
    made = graph_of(MACHINES[name]())
    found, alone = symmetry(made), symmetry(replace(made, nests=()), budget=80_000_000)
    assert alone.complete
    assert same_partition(found.vertex_orbit, alone.vertex_orbit)
    assert same_partition(found.edge_orbit, alone.edge_orbit)
    check_permutations(made, found)


def check_permutations(made: Graph, found: Symmetry) -> None:
    assert all(keeps(made, perm) for perm in found.generators)
    for v in np.random.default_rng(3).integers(made.nvertices, size=5).tolist():
        perm = found.image(v)
        assert perm[found.vertex_orbit[v]] == v and keeps(made, perm)


def test_pods_of_groups_of_boxes_are_exchanged_with_all_that_is_in_them():
    made = graph_of(lower(load("mi300x-8", nodes=13, network="rails", leaf_nodes=2, pod_nodes=4)))
    found = symmetry(made)
    assert [nest.name for nest in made.nests] == ["node", "leaf group", "pod"]
    assert len(found.rank_orbits) == 2  # in a full pod, and in the last one
    assert all((step != np.arange(len(step))).any() for step in found.steps[:2])
    check_permutations(made, found)


def test_where_the_budget_ends_orbits_are_finer():
    made = grid((6, 6), (1.0, 1.0), True)
    none = symmetry(made, budget=0)
    assert not none.complete and len(np.unique(none.vertex_orbit)) == 36


@pytest.mark.parametrize("name", ["switches", "leaves", "unlike nodes", "by hash"])
def test_a_flow_of_the_small_graph_is_one_of_the_large_one(name):
    made = graph_of(MACHINES[name]())
    found = symmetry(made)
    for sink in found.rank_orbits.tolist():
        small = around(found, sink)
        assert (small.label == small.label[sink]).sum() == 1
        flow = np.random.default_rng(0).random(len(small.graph.tail))
        spread = small.spread(flow)
        inside = np.bincount(small.edge[small.edge >= 0], spread[small.edge >= 0], len(flow))
        assert inside == pytest.approx(flow)
        assert small.graph.weight.sum() == made.nranks
