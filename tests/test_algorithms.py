"""Steps, rows and bytes of every algorithm are what its formula says, for n in 1..33.

A step is a repetition of a phase in which something crosses between ranks; bytes are counted in
blocks of the collective: what one rank contributes (or, of a reduce_scatter, receives).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from formulas import FORMULAS, log2
from helpers import (
    algorithm,
    built,
    divisors,
    many_rings,
    recipe_of,
    steps_of,
    suits,
)

from rccl_py.algorithms import ALGORITHMS, FAMILIES, algorithms_of
from rccl_py.algorithms.flat import depths
from rccl_py.algorithms.shapes import (
    binomial,
    chains,
    double_binary_tree,
    rooted_double_tree,
    star,
    two_level_trees,
)
from rccl_py.collectives import COLLECTIVES

RANKS = range(1, 34)
by_name = pytest.mark.parametrize("row", ALGORITHMS, ids=lambda a: f"{a.collective}/{a.name}")


@cache
def counted(collective: str, name: str, n: int, g: int | None,
            pieces: int = 1) -> tuple[int, list[Fraction]]:  # fmt: skip
    """Return (repetitions in which something crosses between ranks, blocks each rank sends)."""
    schedule = built(collective, name, n, n // 2, g, pieces)
    crossing, slots = 0, np.zeros(n)
    for steps in steps_of(schedule):
        crossed = False
        for step in steps:
            far = step.src != step.dst
            crossed |= bool(far.any())
            slots += np.bincount(step.src[far], weights=step.count[far], minlength=n)
        crossing += crossed
    return crossing, [Fraction(int(s), schedule.layout.chunks) for s in slots]


def crossing_steps(row, n: int, g: int, pieces: int = 1) -> int:
    return counted(row.collective, row.name, n, g if row.two_level else None, pieces)[0]


def sent_blocks(row, n: int, g: int, pieces: int = 1) -> list[Fraction]:
    return counted(row.collective, row.name, n, g if row.two_level else None, pieces)[1]


def cases(row) -> list[tuple[int, int, int]]:
    """Return (n, g, N) for every n, and every size of node."""
    return [(n, g, n // g) for n in RANKS
            for g in (divisors(n) if row.two_level else [n]) if suits(row, n)]  # fmt: skip


def test_every_algorithm_has_a_formula_and_every_formula_an_algorithm():
    assert set(FORMULAS) == {(a.collective, a.name) for a in ALGORITHMS}


@by_name
def test_steps_are_as_many_as_the_formula_says(row):
    formula = FORMULAS[row.collective, row.name]
    found = {case: crossing_steps(row, *case[:2]) for case in cases(row)}
    assert found == {case: formula.steps(*case) for case in cases(row)}


@pytest.mark.parametrize("row", [a for a in ALGORITHMS if FORMULAS[a.collective, a.name].sent],
                         ids=lambda a: f"{a.collective}/{a.name}")  # fmt: skip
def test_the_busiest_rank_sends_as_many_blocks_as_the_formula_says(row):
    formula = FORMULAS[row.collective, row.name]
    found = {case: max(sent_blocks(row, *case[:2])) for case in cases(row)}
    assert found == {case: formula.sent(*case) for case in cases(row)}


@pytest.mark.parametrize("row", [a for a in ALGORITHMS if a.pieces > 1],
                         ids=lambda a: f"{a.collective}/{a.name}")  # fmt: skip
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
def test_p_pieces_take_p_minus_1_steps_more_and_send_the_same(row, n):
    if not suits(row, n):
        pytest.skip(f"{row.name} needs {row.needs}")
    g = max(divisors(n)[:-1], default=1)
    one, three = crossing_steps(row, n, g), crossing_steps(row, n, g, 3)
    assert three == (one + 2 if one else 0)
    assert sent_blocks(row, n, g, 3) == sent_blocks(row, n, g)


@by_name
def test_what_is_sent_in_all_is_at_least_what_the_collective_must_move(row):
    for n, g, _ in cases(row):
        least = {"allreduce": 2 * (n - 1), "alltoall": n * (n - 1), "allgather": n * (n - 1),
                 "reduce_scatter": n * (n - 1)}.get(row.collective, n - 1)  # fmt: skip
        assert sum(sent_blocks(row, n, g)) >= least


@pytest.mark.parametrize("row", [a for a in ALGORITHMS if a.collective in ("allreduce", "reduce",
    "broadcast") and a.name not in ("scatter-ring", "ring-gather") and any(
    part in a.name for part in ("tree", "ring", "hier", "chain", "nvls", "levels", "binomial"))],
    ids=lambda a: f"{a.collective}/{a.name}")  # fmt: skip
def test_trees_rings_and_their_compositions_send_the_least_there_is_in_all(row):
    for n, g, _ in cases(row):
        least = (2 if row.collective == "allreduce" else 1) * (n - 1)
        scattered = row.collective != "allreduce" and row.two_level  # g - 1 parts go twice
        assert sum(sent_blocks(row, n, g)) == least + (Fraction(g - 1, g) if scattered else 0)


@pytest.mark.parametrize("n", RANKS)
def test_circulant_halves_send_exactly_n_minus_1_blocks_at_every_rank(n):
    for collective in ("reduce_scatter", "allgather"):
        assert sent_blocks(algorithm(collective, "circulant"), n, n) == [n - 1] * n


@pytest.mark.parametrize("n", RANKS)
def test_no_rank_of_a_tree_allreduce_sends_more_than_twice_the_data(n):
    assert max(sent_blocks(algorithm("allreduce", "tree"), n, n)) <= 2


@pytest.mark.parametrize("n", RANKS)
def test_in_a_chain_allreduce_only_the_ends_send_once_and_all_others_twice(n):
    sent = counted_on_one_ring("chain", n)
    assert sent == ([] if n == 1 else [1, *[2] * (n - 2), 1])


def counted_on_one_ring(name: str, n: int) -> list[int]:
    """Return the blocks each rank of an allreduce sends along the ring 0, 1, ..., n - 1."""
    schedule, slots = built("allreduce", name, n, one_ring=True), np.zeros(n)
    for step in schedule:
        far = step.src != step.dst
        slots += np.bincount(step.src[far], weights=step.count[far], minlength=n)
    return (slots / schedule.layout.chunks).astype(int).tolist() if slots.any() else []


def test_only_halves_done_by_a_switch_are_switched_and_they_are_whole():
    for row in (a for a in ALGORITHMS if suits(a, 6)):
        schedule = built(row.collective, row.name, 6, 0, 3 if row.two_level else None)
        rows = [m.rows for phase in schedule.phases() for m in phase.moves]
        inside = [(r.src != r.dst).all() and (r.src // 3 == r.dst // 3).all() for r in rows]
        by_switch = [not row.two_level or ok for ok in inside]
        assert [r.switched for r in rows] == [
            row.switched and ok and (r.src != r.dst).all() for r, ok in zip(rows, by_switch)
        ], row.name


def test_what_a_switch_does_leaves_the_ranks_with_what_they_have_without_one():
    for n, g in ((3, None), (8, None), (12, 4), (33, 11)):
        alone = "nvls" if g is None else "hier-nvls-ring"
        other = "direct-twoshot" if g is None else "hier-direct-ring"
        found, wanted = (
            [[getattr(step, c).tolist() for c in type(step).__slots__] for step in
             built("allreduce", name, n, 0, g)] for name in (alone, other))  # fmt: skip
        assert found == wanted


@pytest.mark.parametrize("n", RANKS)
def test_the_double_binary_tree_is_shallow_and_gives_a_rank_at_most_two_children(n):
    trees = double_binary_tree(n)
    children = [np.bincount(tree[tree >= 0], minlength=n) for tree in trees]
    assert depths(trees).max() == log2(n)
    assert (children[0] + children[1]).max() <= 2
    inner_in_both = int(((children[0] > 0) & (children[1] > 0)).sum())
    assert inner_in_both <= n % 2


def parents_of(kind: str, n: int, root: int) -> np.ndarray:
    if kind == "chains":
        return chains(recipe_of(n).rings, root)
    return {"binomial": binomial, "star": star, "double": rooted_double_tree}[kind](n, root)


@pytest.mark.parametrize("kind", ["chains", "binomial", "star", "double"])
@pytest.mark.parametrize("n", RANKS)
def test_a_rooted_tree_reaches_every_rank_from_its_root(kind, n):
    for root in range(n):
        for tree in parents_of(kind, n, root):
            assert np.flatnonzero(tree < 0).tolist() == [root]
            depth = depths(tree[None])[0]  # ends only if there is no cycle
            assert (depth == 0).sum() == 1 and depth.max(initial=0) < n


@pytest.mark.parametrize("count, g", [(1, 1), (1, 4), (2, 1), (2, 3), (3, 2), (4, 8), (5, 3)])
def test_two_level_trees_cross_between_nodes_only_from_head_to_head(count, g):
    nodes = np.arange(count * g).reshape(count, g)
    trees = two_level_trees(nodes, np.arange(g), count * g)
    assert len(trees) == 2 * g
    for t, tree in enumerate(trees):
        child = np.flatnonzero(tree >= 0)
        crossing = child[child // g != tree[child] // g]
        assert len(child) == count * g - 1 and len(crossing) == count - 1
        assert set(crossing % g) <= {t // 2} and set(tree[crossing] % g) <= {t // 2}


@pytest.mark.parametrize("count, g", [(1, 4), (2, 3), (3, 5), (4, 8)])
def test_inside_a_node_the_trees_follow_the_rings_in_turn_from_their_head_on(count, g):
    nodes, rings = np.arange(count * g).reshape(count, g), many_rings(g)[0]
    trees = two_level_trees(nodes, np.arange(g), count * g, rings)
    for t, tree in enumerate(trees):
        head, ring = t // 2, rings[t // 2 % len(rings)].tolist()
        at = ring.index(head)
        line = ring[at:] + ring[:at]
        for child in range(count * g):
            place = line.index(child % g)
            if place:  # what leads a node follows other nodes' heads
                assert tree[child] == child // g * g + line[place - 1]


def test_names_are_unique_and_every_collective_has_several_algorithms():
    names = [(a.collective, a.name) for a in ALGORITHMS]
    assert len(set(names)) == len(names)
    assert all(len(algorithms_of(collective)) >= 4 for collective in COLLECTIVES)
    assert set(FAMILIES) == {a.family for a in ALGORITHMS}


@pytest.mark.parametrize("row", [a for a in ALGORITHMS if a.two_level], ids=lambda a: a.name)
def test_a_two_level_form_crosses_between_nodes_only_on_rails(row):
    for count, g in ((2, 3), (3, 2), (4, 4)):
        for step in built(row.collective, row.name, count * g, 0, g):
            far = step.src // g != step.dst // g
            assert (step.src[far] % g == step.dst[far] % g).all()


def test_weights_of_rings_are_the_shares_of_the_data_they_carry():
    recipe = replace(recipe_of(5), weights=np.array([6, 2, 4], dtype=np.int32))
    schedule = algorithm("allreduce", "ring").build(recipe)
    carried = np.zeros(3)
    for step in schedule:
        far = step.src != step.dst
        carried += np.bincount(step.channel[far], weights=step.count[far], minlength=3)
    assert (carried / carried.sum()).tolist() == pytest.approx([6 / 12, 2 / 12, 4 / 12])
