"""Steps, rows and bytes of every algorithm are what its formula says, for n in 1..33.

A step is a repetition of a phase in which something crosses between ranks; bytes are counted in
blocks of the collective: what one rank contributes (or, of a reduce_scatter, receives).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from helpers import (
    algorithm,
    built,
    divisors,
    grid_of,
    many_rings,
    recipe_of,
    steps_of,
    suits,
    tiers_of,
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


def log2(n: int) -> int:
    """Return the smallest k with 2^k >= n."""
    return (n - 1).bit_length()


def any_(n: int) -> int:
    return int(n > 1)


def hung_below(n: int) -> int:
    """Return the depth of a double tree over the other ranks, hung below a root."""
    return 0 if n == 1 else 1 + log2(n - 1)


@dataclass(frozen=True)
class Formula:
    """steps(n, g, N) and sent(n, g, N): blocks the busiest sender sends; nodes of g, N of them."""

    steps: Callable[[int, int, int], int]
    sent: Callable[[int, int, int], Fraction | int] | None = None


_HALF = {"ring": lambda n: n - 1, "direct": any_, "circulant": log2}
_INSIDE = {**_HALF, "nvls": any_}


def _halves() -> dict[tuple[str, str], Formula]:
    table = {}
    for name, steps in _HALF.items():
        title = "direct-twoshot" if name == "direct" else name
        table["allreduce", title] = Formula(lambda n, g, N, s=steps: 2 * s(n),
                                            lambda n, g, N: Fraction(2 * (n - 1), n))  # fmt: skip
        for collective in ("reduce_scatter", "allgather"):
            table[collective, name] = Formula(lambda n, g, N, s=steps: s(n),
                                              lambda n, g, N: n - 1)  # fmt: skip
            for inner in ("direct", "ring"):
                table[collective, f"hier-{inner}-{name}"] = Formula(
                    lambda n, g, N, i=_HALF[inner], s=steps: i(g) + s(N), lambda n, g, N: n - 1
                )
    for inner in ("direct", "ring", "nvls"):
        for name, steps in _HALF.items():
            table["allreduce", f"hier-{inner}-{name}"] = Formula(
                lambda n, g, N, i=_INSIDE[inner], s=steps: 2 * (i(g) + s(N)),
                lambda n, g, N: Fraction(2 * (n - 1), n),
            )
        table["allreduce", f"hier-{inner}-tree"] = Formula(
            lambda n, g, N, i=_INSIDE[inner]: 2 * (i(g) + log2(N))
        )
    return table


def folded(n: int) -> int:
    """Return 1 where n is no power of two, so that some ranks only hand over and stand by."""
    return int(n & (n - 1) != 0)


def around(n: int) -> int:
    """Return the steps round the rings of helpers.grid_of, one dimension after another."""
    return sum(side - 1 for side in grid_of(n).shape)


def _flat() -> dict[tuple[str, str], Formula]:
    halves = {"both-ways": lambda n: n - 1, "bucket": around, "neighbour": lambda n: n // 2,
              "pat": log2, "recursive-doubling": log2, "recursive-halving": log2}  # fmt: skip
    table = {("allreduce", name): Formula(lambda n, g, N, s=steps: 2 * s(n),
                                          lambda n, g, N: Fraction(2 * (n - 1), n))
             for name, steps in (("both-ways", halves["both-ways"]), ("bucket", around),
                                 ("swing", log2))}  # fmt: skip
    table["allreduce", "recursive-doubling"] = Formula(
        lambda n, g, N: n.bit_length() - 1 + 2 * folded(n),
        lambda n, g, N: n.bit_length() - 1 + folded(n))  # fmt: skip
    table["allreduce", "halving-doubling"] = Formula(
        lambda n, g, N: 2 * (n.bit_length() - 1 + folded(n)),
        lambda n, g, N: 2 - Fraction(2, 1 << (n.bit_length() - 1)) + folded(n))  # fmt: skip
    for collective, other in (("reduce_scatter", "doubling"), ("allgather", "halving")):
        table |= {(collective, name): Formula(lambda n, g, N, s=steps: s(n), lambda n, g, N: n - 1)
                  for name, steps in halves.items() if not name.endswith(f"-{other}")}  # fmt: skip
    return table


def _levels() -> dict[tuple[str, str], Formula]:
    """Return the forms over the levels of helpers.tiers_of, the outermost first."""
    table = {}
    for inner, outer in (("direct", "direct"), ("direct", "circulant"), ("circulant", "circulant")):

        def steps(n: int, i=_HALF[inner], o=_HALF[outer]) -> int:
            first, *others = tiers_of(n).shape
            return o(first) + sum(i(m) for m in others)

        name = f"levels-{inner}-{outer}"
        table["allreduce", name] = Formula(lambda n, g, N, s=steps: 2 * s(n),
                                           lambda n, g, N: Fraction(2 * (n - 1), n))  # fmt: skip
        for collective in ("reduce_scatter", "allgather"):
            table[collective, name] = Formula(lambda n, g, N, s=steps: s(n),
                                              lambda n, g, N: n - 1)  # fmt: skip
    return table


def digits(d: int, radix: int) -> list[int]:
    """Return the digits of d, the lowest first."""
    return [d % radix, *digits(d // radix, radix)] if d else []


def moved(n: int, radix: int) -> int:
    """Return the digits of 1, ..., n - 1 that are not 0: how often the blocks of a rank move."""
    return sum(digit > 0 for d in range(n) for digit in digits(d, radix))


def square(n: int) -> tuple[int, int]:
    """Return the rows and columns of the most nearly square grid, no more rows than columns."""
    rows = max(k for k in range(1, n + 1) if n % k == 0 and k * k <= n)
    return rows, n // rows


def lowest_subtree(n: int) -> int:
    """Return the most ranks below one child of a root that hands on to the farthest first."""
    return max((min(k, n - k) for k in (1 << e for e in range(log2(n)))), default=0)


FORMULAS: dict[tuple[str, str], Formula] = {
    **_halves(),
    **_flat(),
    **_levels(),
    ("allreduce", "tree"): Formula(lambda n, g, N: 2 * log2(n)),
    ("allreduce", "chain"): Formula(lambda n, g, N: 2 * (n - 1)),
    ("allreduce", "nvls"): Formula(
        lambda n, g, N: 2 * any_(n), lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("allreduce", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("alltoall", "direct"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("alltoall", "pairwise"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1),
    ("alltoall", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n * (n - 1) // 2),
    ("alltoall", "bruck"): Formula(
        lambda n, g, N: log2(n), lambda n, g, N: sum(d.bit_count() for d in range(n))),
    **{("alltoall", f"bruck-{b}"): Formula(
        lambda n, g, N, b=b: len(digits(n - 1, b)), lambda n, g, N, b=b: moved(n, b))
       for b in (4, 8)},
    ("alltoall", "grid"): Formula(
        lambda n, g, N: sum(any_(m) for m in square(n)), lambda n, g, N: 2 * n - sum(square(n))),
    ("alltoall", "torus"): Formula(
        lambda n, g, N: sum(d // 2 for d in grid_of(n).shape),
        lambda n, g, N: sum(n // d * (d * d // 4) for d in grid_of(n).shape)),
    ("alltoall", "hier-direct-pairwise"): Formula(
        lambda n, g, N: N - 1 + any_(g), lambda n, g, N: (g - 1) * N + (N - 1) * g),
    ("alltoall", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: (g - 1) * N + (N - 1) * g),
    ("alltoall", "paths"): Formula(  # those of helpers.paths_of: a third goes over one relay
        lambda n, g, N: min(2, n - 1),
        lambda n, g, N: n - 1 + (Fraction(n - n % 2, 3) if n > 2 else 0)),
    # Those of helpers.forest_of: a chain and a heap below every rank, two to one.
    ("allreduce", "forest"): Formula(
        lambda n, g, N: 2 * (n - 1), lambda n, g, N: Fraction(2 * (n - 1), n)),
    **{(c, "forest"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1)
       for c in ("reduce_scatter", "allgather")},
    ("allreduce", "mix"): Formula(
        lambda n, g, N: 2 * (n - 1), lambda n, g, N: Fraction(2 * (n - 1), n)),
    **{(c, "mix"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1)
       for c in ("reduce_scatter", "allgather")},
    ("broadcast", "arborescences"): Formula(
        lambda n, g, N: n - 1, lambda n, g, N: Fraction(2 * any_(n) + min(2, n - 1), 3)),
    ("reduce", "arborescences"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("broadcast", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("broadcast", "tree"): Formula(lambda n, g, N: hung_below(n)),
    ("broadcast", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("broadcast", "direct-twoshot"): Formula(
        lambda n, g, N: 2 * any_(n), lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("reduce", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("reduce", "tree"): Formula(lambda n, g, N: hung_below(n), lambda n, g, N: any_(n)),
    ("reduce", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: any_(n)),
    ("reduce", "direct-twoshot"): Formula(lambda n, g, N: 2 * any_(n), lambda n, g, N: any_(n)),
    **{(c, f"hier-direct-{between}"): Formula(
        lambda n, g, N, s=steps: 2 * any_(g) + s(N))
       for c in ("broadcast", "reduce")
       for between, steps in (("ring", _HALF["ring"]), ("tree", hung_below), ("direct", any_))},
    **{(c, "direct"): Formula(lambda n, g, N: any_(n), sent)
       for c, sent in (("gather", lambda n, g, N: any_(n)), ("scatter", lambda n, g, N: n - 1))},
    ("gather", "ring"): Formula(lambda n, g, N: n - 1),
    ("scatter", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1),
    ("gather", "tree"): Formula(lambda n, g, N: max(d.bit_count() for d in range(n))),
    ("scatter", "tree"): Formula(
        lambda n, g, N: max(d.bit_count() for d in range(n)), lambda n, g, N: n - 1),
    ("allgather", "dissemination"): Formula(lambda n, g, N: log2(n), lambda n, g, N: n - 1),
    ("broadcast", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: log2(n)),
    ("reduce", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: any_(n)),
    ("gather", "binomial"): Formula(
        lambda n, g, N: log2(n), lambda n, g, N: lowest_subtree(n)),
    ("scatter", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: n - 1),
    ("broadcast", "scatter-ring"): Formula(
        lambda n, g, N: log2(n) + n - 1, lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("reduce", "ring-gather"): Formula(
        lambda n, g, N: n - 1 + log2(n), lambda n, g, N: Fraction(n - 1 + lowest_subtree(n), n)),
    ("broadcast", "multicast"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("reduce", "nvls"): Formula(lambda n, g, N: any_(n), lambda n, g, N: any_(n)),
    ("gather", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: N if g > 1 else any_(N)),
    ("scatter", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: (g - 1) * N + N - 1),
}  # fmt: skip


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
