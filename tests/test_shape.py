"""The shape of a machine comes from its links: levels, tori, and why there are none."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import networkx as nx
import numpy as np
import pytest
from helpers import joined, machine, raw_links, switched
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import load, lower
from rccl_py.planner.shape import nodes_of, shape_of
from rccl_py.planner.torus import torus_grid


def links_of(dims: tuple[int, ...], widths: tuple[float, ...] | None = None) -> np.ndarray:
    """Return the links of a torus of these sizes; a ring of two is one link of twice the width."""
    grid = np.arange(prod(dims)).reshape(dims)
    capacity = np.zeros((grid.size, grid.size))
    for d, size in enumerate(dims):
        ahead, rate = np.roll(grid, -1, axis=d), (widths or (1.0,) * len(dims))[d]
        if size > 1:
            capacity[grid, ahead] = capacity[ahead, grid] = rate * (2 if size == 2 else 1)
    return capacity


def as_found(dims: tuple[int, ...]) -> list[int]:
    """Return the sizes a search finds, the longest first: two rings of two are one of four."""
    twos = sum(d == 2 for d in dims)
    return sorted([d for d in dims if d > 2] + [4] * (twos // 2) + [2] * (twos % 2), reverse=True)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(2, 7), min_size=1, max_size=4).filter(lambda d: 3 <= prod(d) <= 200),
       st.randoms(use_true_random=False))  # fmt: skip
def test_a_torus_is_found_whatever_its_ranks_are_called(dims, random):
    order = list(range(prod(dims)))
    random.shuffle(order)
    capacity = links_of(tuple(dims))[np.ix_(order, order)]
    grid, why = torus_grid(capacity)
    assert grid is not None, why
    assert list(grid.shape) == as_found(tuple(dims))
    assert sorted(grid.ravel().tolist()) == list(range(len(order)))
    for axis, size in enumerate(grid.shape):
        assert (capacity[grid, np.roll(grid, -1, axis=axis)] > 0).all() or size == 1


@pytest.mark.parametrize("dims", [(3, 5), (3, 3, 3), (5, 5), (2, 3, 4), (8, 8, 8), (2, 2, 2, 2, 2)])
def test_odd_and_even_sides_are_found(dims):
    grid, _ = torus_grid(links_of(dims))
    assert grid is not None and list(grid.shape) == as_found(dims)


def test_links_of_one_dimension_may_be_wider_than_those_of_another():
    grid, _ = torus_grid(links_of((4, 4), (1.0, 3.0)))
    assert grid is not None and grid.shape == (4, 4)
    rates = {float(links_of((4, 4), (1.0, 3.0))[grid, np.roll(grid, -1, axis=d)].min())
             for d in (0, 1)}  # fmt: skip
    assert rates == {1.0, 3.0}


def without(capacity: np.ndarray, a: int, b: int, rate: float = 0.0) -> np.ndarray:
    """Return the links with the one between a and b at another rate."""
    found = capacity.copy()
    found[a, b] = found[b, a] = rate
    return found


@pytest.mark.parametrize(
    "capacity, why",
    [
        (without(links_of((4, 4)), 0, 1), "rank 0 has 3 neighbours, others up to 4"),
        (without(links_of((4, 5)), 0, 1, 0.5), "no product of rings"),
        (np.ones((6, 6)) - np.eye(6), "no product of rings"),
        (nx.to_numpy_array(nx.petersen_graph()), "no product of rings"),
        (nx.to_numpy_array(nx.circulant_graph(13, [1, 5])), "no product of rings"),
        (nx.to_numpy_array(nx.path_graph(5)), "rank 0 has 1 neighbours"),
        (np.array([[0, 1, 1], [2, 0, 1], [1, 1, 0.0]]), "wider one way than back"),
        (np.ones((2, 2)) - np.eye(2), "fewer than three"),
    ],
    ids=["a link lost", "a link slower", "K6", "Petersen", "circulant", "line", "one way", "two"],
)
def test_what_is_no_torus_is_none_and_says_why(capacity, why):  # fmt: skip
    grid, said = torus_grid(capacity)
    assert grid is None and why in said


def test_a_torus_of_the_library_is_one():
    assert shape_of(lower(load("tpu-v4-64"))).grid.shape == (4, 4, 4)
    (level,) = shape_of(lower(load("tpu-v4-64"))).levels
    assert level.kind == "torus" and level.dims == (4, 4, 4)


def test_three_quarters_of_a_torus_are_none():
    shape = shape_of(lower(load("tpu-v4-64"), 48))
    assert shape.grid is None and "neighbours" in shape.no_grid


def test_nodes_of_one_rank_in_a_torus_are_a_torus_of_ranks(tmp_path):
    text = switched() + raw_links(up=100, port=10) + (
        "nics: {link: port, count: 1, host_link: bus}\nnodes: 12\n"
        "network: {kind: torus, dims: [4, 3]}\n")  # fmt: skip
    topology = load(machine(tmp_path, text, gpus=2))
    alone = lower(topology, [2 * node for node in range(12)])
    assert shape_of(alone).grid.shape == (4, 3)
    assert shape_of(lower(topology)).no_grid == "more than one rank a node"


@pytest.mark.parametrize("name, tiers, kinds", [
    ("mi300x-8", None, ["mesh"]), ("h100-8", None, ["switch"]), ("mi250x-4", None, ["irregular"]),
    ("mi300x-8-x128-rails", (4, 32, 8), ["mesh", "switch", "switch"]),
    ("gb200-nvl72-x8", (8, 72), ["switch", "switch"]),
    ("v100-8-x32-edr", (8, 4, 8), ["irregular", "switch", "switch"]),
])  # fmt: skip
def test_levels_are_those_of_the_links(name, tiers, kinds):
    shape = shape_of(lower(load(name)))
    assert (None if shape.tiers is None else shape.tiers.shape) == tiers
    assert [level.kind for level in shape.levels] == kinds
    assert prod(level.size for level in shape.levels) == load(name).ngpus


def test_each_level_says_how_widely_a_rank_leaves_it(tmp_path):
    text = switched() + raw_links(up=100, port=10) + (
        "nics: {link: port, count: 4, host_link: bus}\nnodes: 4\n"
        "network: {kind: leaf-spine, leaf_nodes: 2, oversubscription: 2}\n")  # fmt: skip
    shape = shape_of(lower(load(machine(tmp_path, text))))
    assert shape.tiers.shape == (2, 2, 4)
    assert [level.bandwidth / 1e9 for level in shape.levels] == pytest.approx([100, 10, 5])
    assert shape.levels[0].latency < shape.levels[1].latency < shape.levels[2].latency


def test_nodes_of_unequal_size_have_no_levels():
    shape = shape_of(lower(load("mixed-x6")))
    assert shape.levels == () and shape.tiers is None
    assert shape.no_tiers == "nodes of unequal size: 8, 6, 4, 2 ranks"
    assert nodes_of(lower(load("mixed-x6"))) is None


def test_an_outer_level_of_unequal_parts_is_left_out():
    topology = load("mi300x-8", nodes=6, network="leaf-spine", leaf_nodes=4)
    assert shape_of(lower(topology)).tiers.shape == (6, 8)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["mi300x-8-x16-leaf-spine", "h100-8-x32-rail-only"])
def test_relabelled_ranks_have_the_same_shape(name, seed):
    topology = load(name)
    before = shape_of(lower(topology, list(range(64))))
    order = np.random.default_rng(seed).permutation(64).tolist()
    other = lower(topology, order)
    after = shape_of(other)
    assert [str(level) for level in after.levels] == [str(level) for level in before.levels]
    assert after.tiers.shape == before.tiers.shape
    nodes = other.node[after.tiers]
    assert (nodes == nodes[..., :1]).all()  # the innermost level is a node, whoever is rank 0


@pytest.mark.parametrize("name", ["mi300x-8", "h100-8", "v100-8", "tpu-v4-64"])
def test_names_do_not_matter(name):
    topology = load(name)
    names = {v: f"x{abs(hash(v)) % 10**9}" for v in topology.node}
    node = nx.relabel_nodes(topology.node, names)
    other = lower(replace(topology, node=node))
    before, after = shape_of(lower(topology)), shape_of(other)
    assert after.levels == before.levels and after.no_tiers == before.no_tiers
    assert (after.grid is None) == (before.grid is None)


def test_an_irregular_box_is_no_mesh(tmp_path):
    fabric = lower(load(machine(tmp_path, joined("0-1:4 0-2:1 1-3:1 2-3:1") + raw_links(up=1))))
    assert shape_of(fabric).levels[0].kind == "irregular"
