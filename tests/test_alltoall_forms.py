"""Alltoall that relays: by digits, on a grid, round a torus, and over rails in turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from helpers import algorithm, built, recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.check import check


def crossing(schedule) -> list[list[tuple[int, int, int]]]:
    """Return (src, dst, slots) of every repetition in which something crosses."""
    found = []
    for phase in schedule.phases():
        for s in range(phase.steps):
            steps = [m.step(s) for m in phase.moves]
            sent = [t for x in steps for t in zip(x.src.tolist(), x.dst.tolist(), x.count.tolist())]
            found.append([t for t in sent if t[0] != t[1]])
    return [sent for sent in found if sent]


@pytest.mark.parametrize("n, blocks", [(8, (12, 10, 7)), (16, (32, 24, 22)), (31, (75, 61, 50)),
                                       (64, (192, 144, 112))])  # fmt: skip
def test_a_higher_base_sends_fewer_blocks(n, blocks):
    for name, wanted in zip(("bruck", "bruck-4", "bruck-8"), blocks):
        sent = np.zeros(n, dtype=int)
        for step in crossing(built("alltoall", name, n)):
            for src, _, count in step:
                sent[src] += count
        assert sent.tolist() == [wanted] * n


@pytest.mark.parametrize("name, base", [("bruck", 2), ("bruck-4", 4), ("bruck-8", 8)])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 9, 31, 64])
def test_a_rank_serves_at_most_base_minus_one_peers_a_step_of_neighbouring_rows(name, base, n):
    for step in crossing(built("alltoall", name, n)):
        ends = [(src, dst) for src, dst, _ in step]
        runs = 1 + sum(one != other for one, other in pairwise(ends))
        assert runs == len(set(ends))  # rows of one message lie together
        assert max(np.bincount([src for src, _ in set(ends)])) <= base - 1


@pytest.mark.parametrize("n, peers", [(1, 0), (4, 2), (7, 6), (12, 5), (16, 6), (36, 10)])
def test_on_a_grid_a_rank_sends_to_its_row_and_to_its_column(n, peers):
    ends = {(src, dst) for step in crossing(built("alltoall", "grid", n)) for src, dst, _ in step}
    assert len(ends) == n * peers


def torus_of(shape: tuple[int, ...], pieces: int = 1):
    """Return the alltoall on a torus of this shape, ranks placed at random, and their places."""
    n = prod(shape)
    grid = np.random.default_rng(n).permutation(n).reshape(shape).astype(np.int32)
    recipe = replace(recipe_of(n), grid=grid, pieces=pieces)
    place = np.array([np.argwhere(grid == r)[0] for r in range(n)])
    return algorithm("alltoall", "torus").build(recipe), place


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3).filter(lambda s: prod(s) <= 40))
def test_only_neighbours_talk_and_every_link_of_a_dimension_carries_the_least_there_is(shape):
    schedule, place = torus_of(tuple(shape))
    check(schedule)
    n, load = prod(shape), {}
    for step in crossing(schedule):
        for src, dst, count in step:
            load[src, dst] = load.get((src, dst), 0) + count / schedule.layout.chunks
    for (src, dst), blocks in load.items():
        (axis,) = np.flatnonzero(place[src] != place[dst])
        d = shape[axis]
        assert (place[dst] - place[src])[axis] % d in (1, d - 1)
        # Two ranks in a dimension are joined once, and all that goes either way takes that link.
        assert blocks == pytest.approx(n / d * (d * d // 4) / (2 if d > 2 else 1))
    degree = sum((2 if d > 2 else 1) for d in shape if d > 1)
    assert len(load) == n * degree


@pytest.mark.parametrize("shape, pieces, part", [
    ((4, 4), 1, 1.0), ((4, 4, 4), 1, 1.0), ((5, 5), 1, 1.0), ((9,), 1, 1.0), ((3, 3, 3), 1, 1.0),
    ((4, 8), 1, 0.88), ((4, 8), 16, 0.98), ((3, 4, 5), 16, 0.98),
])  # fmt: skip
def test_a_torus_takes_what_the_bound_says_of_equal_dimensions_and_nearly_of_others(
    shape, pieces, part
):
    schedule, _ = torus_of(shape, pieces)
    n, seconds = prod(shape), 0.0  # a link takes a second a block
    for step in crossing(schedule):
        load = {}
        for src, dst, count in step:
            load[src, dst] = load.get((src, dst), 0) + count
        seconds += max(load.values()) / schedule.layout.chunks
    bound = max(n * (d * d // 4) / d / 2 for d in shape)
    assert bound * (1 - 1e-9) <= seconds <= bound / part * (1 + 1e-9)


@pytest.mark.parametrize("count, g", [(2, 2), (3, 4), (4, 3), (5, 1)])
def test_rails_in_turn_cross_to_one_node_at_a_time_while_the_node_hands_out_the_next(count, g):
    steps = crossing(built("alltoall", "hier-direct-pairwise", count * g, 0, g))
    for k, step in enumerate(steps if g > 1 else [[], *steps]):
        far = [(src, dst, c) for src, dst, c in step if src // g != dst // g]
        assert {(dst // g - src // g) % count for src, dst, _ in far} == ({k} if k else set())
        assert all(src % g == dst % g and c == g for src, dst, c in far)  # one message a rail
        assert len(far) == (count * g if k else 0)
        assert len(step) - len(far) == count * g * (g - 1)
