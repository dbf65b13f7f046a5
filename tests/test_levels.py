"""Forms over nested levels: who talks to whom, what each level carries, and that levels overlap."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from helpers import algorithm, recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import Planner, load, lower
from rccl_py.algorithms import algorithms_of
from rccl_py.algorithms.recipe import spaced
from rccl_py.check import check
from rccl_py.links import PROTOCOLS
from rccl_py.schedule import Phase, at, rows
from rccl_py.timing import profile

COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
NAMES = ("levels-direct-direct", "levels-direct-circulant", "levels-circulant-circulant")
SHAPES = [(1,), (7,), (2, 2), (3, 1, 2), (1, 4), (2, 3, 4), (5, 2, 3), (2, 2, 2, 2), (4, 8)]


def schedule_of(collective: str, name: str, shape: tuple[int, ...], pieces: int = 1):
    """Return the schedule over levels of this shape, whose ranks are numbered at random."""
    n = prod(shape)
    tiers = np.random.default_rng(n).permutation(n).reshape(shape).astype(np.int32)
    recipe = replace(recipe_of(n, pieces=pieces), tiers=tiers)
    return algorithm(collective, name).build(recipe), tiers


def received(schedule, tiers: np.ndarray) -> np.ndarray:
    """Return the blocks each rank receives along each level: float64[levels, n]."""
    place = np.array([np.argwhere(tiers == r)[0] for r in range(tiers.size)])
    found = np.zeros((tiers.ndim, tiers.size))
    for step in schedule:
        far = step.src != step.dst
        along = place[step.src[far]] != place[step.dst[far]]
        assert (along.sum(axis=1) == 1).all()  # a row stays on one level
        np.add.at(found, (along.argmax(axis=1), step.dst[far]), step.count[far])
    return found / schedule.layout.chunks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_each_level_carries_what_blueconnect_says_whoever_stands_where(name, shape):
    n = prod(shape)
    wanted = [(m - 1) * prod(shape[:i]) for i, m in enumerate(shape)]  # blocks, of n in all
    for collective in COLLECTIVES:
        schedule, tiers = schedule_of(collective, name, shape)
        check(schedule)
        part = 2 / n if collective == "allreduce" else 1
        assert received(schedule, tiers) == pytest.approx(np.outer(wanted, np.ones(n)) * part)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_over_two_levels_it_sends_what_the_two_level_form_sends(collective):
    n, g = 12, 4
    nodes = np.arange(n, dtype=np.int32).reshape(-1, g)
    recipe = replace(recipe_of(n, 0, g), tiers=nodes, local_rings=None, local_weights=None)
    sent = []
    for name in ("levels-direct-circulant", "hier-direct-circulant"):
        schedule, total = algorithm(collective, name).build(recipe), np.zeros((n, n))
        for step in schedule:
            np.add.at(total, (step.src, step.dst), step.count / schedule.layout.chunks)
        np.fill_diagonal(total, 0)
        sent.append(total)
    assert sent[0] == pytest.approx(sent[1])


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("shape", [(2, 2), (2, 3, 2)])
def test_pieces_do_the_same_and_never_touch_each_others_slots(collective, shape):
    for pieces in (2, 5):
        check(schedule_of(collective, NAMES[1], shape, pieces)[0])


ROWS = [a for c in COLLECTIVES for a in algorithms_of(c)
        if a.name in ("levels-circulant-circulant", "hier-direct-circulant")]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda a: f"{a.collective}/{a.name}")
def test_in_pieces_levels_work_at_once_so_the_slowest_counts_and_not_the_sum(row):
    fabric = lower(load("h100-8", nodes=4))
    recipe = replace(Planner(fabric).recipe(), local_rings=None, local_weights=None)
    i, seconds = PROTOCOLS["Simple"].index, {}
    for pieces in (1, 2, 64):
        found = profile(row.build(replace(recipe, pieces=pieces, memo={})), fabric)
        seconds[pieces] = (found.steps * found.link[i]).sum() / found.chunks
        busiest = (found.total_link * fabric.pace[i]).max() / found.chunks
        stages = int(found.steps.sum()) - pieces + 1
        assert busiest <= seconds[pieces] * (1 + 1e-9)
    assert seconds[1] > 1.6 * busiest  # both levels take about as long here
    assert seconds[64] <= busiest * (1 + stages / 64)
    assert seconds[64] < seconds[2] < seconds[1]


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_blocks_that_are_spaced_out_keep_their_order_and_their_rows(blocks, width, pieces):
    slot = np.arange(blocks * width)
    (phase,) = spaced([Phase((at(rows(slot, slot), slot, slot),), 3)], width, pieces)
    src_slot, dst_slot = phase.moves[0].slots(0)
    wanted = [b * width * pieces + c for b in range(blocks) for c in range(width)]
    assert src_slot.tolist() == dst_slot.tolist() == wanted and phase.steps == 3
    assert src_slot.dtype == np.int32


def test_pieces_share_the_rows_that_a_memo_holds():
    recipe = recipe_of(8, 0, 4)
    for collective in COLLECTIVES:
        for name in ("hier-ring-circulant", "levels-direct-direct"):
            held = [{id(m.rows) for phase in algorithm(collective, name)
                     .build(replace(recipe, pieces=p)).phases() for m in phase.moves
                     if (m.rows.src != m.rows.dst).any()} for p in (2, 4)]  # fmt: skip
            assert held[0] == held[1] and held[0]
