"""Demands as one-to-one stages, in a greedy order, and spread over the ranks of a mesh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.algorithms.matching import Stages, greedy_order, padded, stages_of
from rccl_py.algorithms.spread import spread


def zipf(rng: np.random.Generator, n: int, most: int = 2000) -> np.ndarray:
    """Return skewed counts, with some rows and some entries of nothing."""
    counts = rng.zipf(1.6, size=(n, n)).clip(0, most).astype(np.int64)
    counts *= rng.random((n, n)) < rng.random()
    counts[rng.random(n) < 0.2] = 0
    return counts


def demands(rng: np.random.Generator, n: int) -> np.ndarray:
    found = zipf(rng, n, 10**6)
    np.fill_diagonal(found, 0)
    return found


def busiest(demand: np.ndarray) -> int:
    return int(max(demand.sum(axis=0).max(initial=0), demand.sum(axis=1).max(initial=0)))


def require_each_served_once(stages: Stages, demand: np.ndarray) -> None:
    left = demand.copy()
    order = np.lexsort((stages.low, stages.dst, stages.src))
    for i, j, low, high in zip(*(c[order].tolist() for c in
                                 (stages.src, stages.dst, stages.low, stages.high))):  # fmt: skip
        assert low == demand[i, j] - left[i, j] and low < high
        left[i, j] -= high - low
    assert not left.any()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_stages_pair_units_one_to_one_and_last_as_long_as_the_busiest_unit(n, seed):
    demand = demands(np.random.default_rng(seed), n)
    full = padded(demand)
    assert set(full.sum(axis=0)) == set(full.sum(axis=1)) == {busiest(demand)}
    assert (full >= demand).all()
    stages = stages_of(demand)
    require_each_served_once(stages, demand)
    lasts = 0
    for k in range(stages.count):
        now = stages.stage == k
        assert now.any()
        assert len(set(stages.src[now])) == len(set(stages.dst[now])) == now.sum()
        lasts += int((stages.high - stages.low)[now].max())
    assert lasts <= busiest(demand)


@pytest.mark.parametrize("n, most", [(4, 9), (8, 21), (16, 46), (32, 80), (64, 150)])
def test_bottleneck_matchings_keep_the_stages_about_two_a_unit(n, most):
    # Of the same law as in the paper's runs; those had 9, 18, 42, 67 and 115.
    rng = np.random.default_rng(n)
    demand = rng.zipf(1.6, size=(n, n)).clip(0, 10**6).astype(np.int64) * 1024
    np.fill_diagonal(demand, 0)
    assert n - 1 <= stages_of(demand).count <= most


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_greedy_order_ends_within_twice_the_busiest_unit_and_serves_everything(n, seed):
    demand = demands(np.random.default_rng(seed), n)
    stages, end = greedy_order(demand, seed % 3 * 1000)
    require_each_served_once(stages, demand)
    assert end <= 2 * busiest(demand)
    # Played again by its stages alone, each unit doing its own in their order.
    sends, receives = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for k in np.argsort(stages.stage, kind="stable").tolist():
        i, j = stages.src[k], stages.dst[k]
        sends[i] = receives[j] = max(sends[i], receives[j]) + stages.high[k] - stages.low[k]
    assert max(sends.max(), receives.max()) <= end


# ---- over a mesh ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_parts_spread_over_a_mesh_are_whole_and_never_load_a_link_more_than_going_straight(g, seed):
    rng = np.random.default_rng(seed)
    parts, loads = zipf(rng, g), rng.integers(0, 50, size=(g, g))
    np.fill_diagonal(parts, 0)
    np.fill_diagonal(loads, 0)
    ways = spread(parts, loads)
    assert (ways >= 0).all() and np.array_equal(ways.sum(axis=2), parts)
    carried = loads.astype(np.int64)
    for i, j, k in zip(*np.nonzero(ways)):
        if k == j:
            carried[i, j] += ways[i, j, k]
        else:
            assert k != i
            carried[i, k] += ways[i, j, k]
            carried[k, j] += ways[i, j, k]
    # Rounding to bytes may add one a part to a link.
    assert carried.max(initial=0) <= (parts + loads).max(initial=0) + 2 * g


def test_one_large_part_goes_over_all_relays_alike():
    parts = np.zeros((5, 5), dtype=np.int64)
    parts[0, 3] = 4000
    ways = spread(parts, np.zeros((5, 5), dtype=np.int64))
    assert np.abs(ways[0, 3, 1:] - 1000).max() <= 1
