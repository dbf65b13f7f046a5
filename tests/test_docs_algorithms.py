"""docs/algorithms.md says of every algorithm what its schedule does.

The table's formulas are evaluated and compared with the emitted schedule: every flat algorithm for
n = 1..33 ranks, every two-level one for all N nodes of g ranks with N > 1, g > 1 and N * g <= 33,
each with 1 piece and, where the registry allows it, with 3.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers import MIX, forest_of, grid_of, paths_of, suits, tiers_of

from rccl_py.algorithms import ALGORITHMS, Algorithm, Recipe
from rccl_py.algorithms.shapes import double_binary_tree, identity_order, two_level_trees
from rccl_py.collectives import COLLECTIVES
from rccl_py.schedule import Schedule

DOCUMENT = Path(__file__).parents[1] / "docs" / "algorithms.md"
RANKS = range(1, 34)
COLUMNS = [
    "collective",
    "algorithm",
    "steps",
    "bytes sent by the busiest rank / M",
    "bytes received by the busiest rank / M",
    "scratch / M",
]


def set_bits(n: int) -> int:
    """Return the bits set in 1, 2, ..., n-1 together (documented below the table)."""
    return sum(d.bit_count() for d in range(1, n))


def largest_subtree(n: int) -> int:
    """Return the ranks of the largest subtree below the root of the binomial tree over n."""
    top = 1 << ((n - 1).bit_length() - 1)
    return max(n - top, top // 2)


def moves(n: int, radix: int) -> int:
    """Return the digits other than 0 of 1, 2, ..., n-1 in a base together."""
    return sum(d // radix**k % radix > 0 for d in range(n) for k in range(n.bit_length()))


def side(n: int) -> int:
    """Return the largest factor of n up to its square root."""
    return max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0)


NAMES = {
    "moves": moves,
    "side": side,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "min": min,
    "max": max,
    "set_bits": set_bits,
    "largest_subtree": largest_subtree,
    "sum": sum,
    "prod": math.prod,
    "len": len,
}


def table() -> dict[tuple[str, str], list[str]]:
    """Return the formulas of every row of the first table with the columns above."""
    rows: dict[tuple[str, str], list[str]] = {}
    inside = False
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [c.strip().strip("`") for c in line.strip().strip("|").split("|")]
        if cells[: len(COLUMNS)] == COLUMNS:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and set(cells[0]) != {"-"}:
            key = (cells[0], cells[1])
            assert key not in rows, f"two rows for {key}"
            rows[key] = cells[2 : len(COLUMNS)]
    return rows


ROWS = table()


def recipe_of(n: int, g: int | None, pieces: int, root: int) -> Recipe:
    """Return a recipe with one ring; g None: one level."""
    one, weight = identity_order(n), np.ones(1, dtype=np.int32)
    found = {"grid": grid_of(n), "tiers": tiers_of(n, g), "forest": forest_of(n),
             "paths": paths_of(n), "mix": MIX}  # fmt: skip
    if g is None:
        return Recipe(n, root, one, weight, double_binary_tree(n), pieces=pieces, **found)
    nodes = np.arange(n, dtype=np.int32).reshape(-1, g)
    trees = two_level_trees(nodes, np.arange(g), n)
    return Recipe(n, root, one, weight, trees, nodes, identity_order(g), weight, pieces, **found)


def emitted(schedule: Schedule) -> list[float]:
    """Return steps, sent and received by the busiest rank, and scratch, as the schedule has them.

    A step is a repetition of a phase with at least one row between two ranks.
    """
    n, layout = schedule.nranks, schedule.layout
    steps, sent, received = 0, np.zeros(n), np.zeros(n)
    for phase in schedule.phases():
        crosses = False
        for move in phase.moves:
            r = move.rows
            far = r.src != r.dst
            crosses = crosses or bool(far.any())
            for total, ends in ((sent, r.src), (received, r.dst)):
                total += phase.steps * np.bincount(ends[far], weights=r.total[far], minlength=n)
        steps += phase.steps * crosses
    size = max(COLLECTIVES[schedule.collective].blocks(n))
    slots = size * layout.chunks
    return [steps, sent.max() / slots, received.max() / slots, layout.scratch / size]


def shapes(algorithm: Algorithm) -> list[tuple[int, int | None]]:
    """Return the (n, g) an algorithm is tried on; the tree also on trees over nodes."""
    flat: list[tuple[int, int | None]] = [(n, None) for n in RANKS if suits(algorithm, n)]
    nested = [(n, g) for n in RANKS for g in range(2, n // 2 + 1) if n % g == 0]
    if algorithm.two_level:
        return [*nested]
    return flat + nested if algorithm.name == "tree" and not algorithm.two_level else flat


def test_the_table_has_one_row_for_each_algorithm_and_no_other():
    assert list(ROWS) == list(dict.fromkeys(ROWS))
    assert set(ROWS) == {(a.collective, a.name) for a in ALGORITHMS}


def sections() -> dict[str, str]:
    """Return the families' sections below the table by title."""
    parts = DOCUMENT.read_text(encoding="utf-8").split("\n## ")[1:]
    found = {part.splitlines()[0]: part for part in parts}
    return {title: s for title, s in found.items() if title not in ("The table", "Adding one")}


def test_every_algorithm_is_described_below_the_table():
    text = "".join(sections().values())
    whole = ("hier", "levels", "turned")  # told once, as `hier-A-B`
    shapes = {a.name: f"{a.name.split('-')[0]}-A-B" if a.name.split("-")[0] in whole else a.name
              for a in ALGORITHMS}  # fmt: skip
    assert [a for a, shape in shapes.items() if f"`{a}`" not in text and f"`{shape}`" not in text
            ] == []  # fmt: skip


def test_every_family_is_drawn_and_names_its_source():
    told = sections()
    assert len(told) > 15
    assert {title for title, s in told.items() if "```\n" not in s} == set()
    assert {title for title, s in told.items() if "\nSource: " not in s and "\nSources: " not in s
            } == set()  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_the_table_gives_the_steps_and_bytes_of_the_schedule(algorithm: Algorithm):
    formulas = [compile(f, f, "eval") for f in ROWS[algorithm.collective, algorithm.name]]
    rooted = COLLECTIVES[algorithm.collective].rooted
    for n, g in shapes(algorithm):
        for p in {1, min(3, algorithm.pieces)}:
            for root in {0, n - 1} if rooted else {0}:
                schedule = algorithm.build(recipe_of(n, g, p, root))
                values = {
                    "n": n,
                    "g": g or 1,
                    "N": n // (g or 1),
                    "p": p,
                    "k": 1,
                    "d": grid_of(n).shape,
                    "t": tiers_of(n).shape,
                    **NAMES,
                }
                found = emitted(schedule)
                wanted = [eval(f, {"__builtins__": {}}, values) for f in formulas] if n > 1 else [
                    0, 0, 0, found[3]]  # fmt: skip
                where = f"n={n} g={g} p={p} root={root}"
                assert found == pytest.approx(wanted, abs=1e-12), where


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
def test_more_rings_change_neither_the_steps_nor_the_bytes(collective: str):
    ring = next(a for a in ALGORITHMS if (a.collective, a.name) == (collective, "ring"))
    for n in (2, 3, 5, 8, 12):
        one = recipe_of(n, None, 1, 0)
        orders = np.stack([np.arange(n), np.arange(n)[::-1], np.roll(np.arange(n), 1)])
        weights = np.array([3, 1, 2], dtype=np.int32)
        many = Recipe(n, 0, orders.astype(np.int32), weights, one.trees)
        assert emitted(ring.build(many)) == pytest.approx(emitted(ring.build(one)))
