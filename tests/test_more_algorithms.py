"""What is special to single flat algorithms: who talks to whom, in which order, over which links.

Steps, bytes and results of all of them are in test_algorithms, test_check and
test_docs_algorithms; here is what only one of them promises.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from helpers import SIZES, algorithm, built, grid_of, is_right, recipe_of, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import Planner, load, lower
from rccl_py.algorithms import bucket, doubling, neighbour, swing
from rccl_py.algorithms.exchange import nesting
from rccl_py.check import check
from rccl_py.errors import ScheduleError
from rccl_py.execute import execute
from rccl_py.schedule import REDUCE, Schedule, Step

POWERS = (1, 2, 4, 8, 16, 32)
ANY = [("allreduce", "recursive-doubling"), ("allreduce", "halving-doubling"),
       ("reduce_scatter", "circulant"), ("allgather", "circulant"), ("allgather", "pat"),
       ("reduce_scatter", "pat"), ("allgather", "both-ways"), ("allreduce", "bucket")]  # fmt: skip


def crossing(schedule: Schedule) -> list[Step]:
    """Return the steps in which something goes from rank to rank, those rows only."""
    found = []
    for step in (s for steps in steps_of(schedule) for s in steps):
        far = step.src != step.dst
        if far.any():
            found.append(Step(*(getattr(step, c)[far] for c in Step.__slots__)))
    return found


def sent(schedule: Schedule) -> np.ndarray:
    """Return the blocks each rank sends: float64[n]."""
    total = np.zeros(schedule.nranks)
    for step in crossing(schedule):
        total += np.bincount(step.src, weights=step.count, minlength=schedule.nranks)
    return total / schedule.layout.chunks


def circle(n: int, **parts) -> object:
    return replace(recipe_of(n, one_ring=True), **parts)


# ---- any number of ranks --------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("name", ["circulant", "pat"])
def test_up_to_69_ranks_take_the_least_steps_and_send_exactly_n_minus_1_blocks(collective, name):
    for n in range(34, 70):
        schedule = built(collective, name, n)
        assert len(crossing(schedule)) == (n - 1).bit_length()
        assert sent(schedule).tolist() == [n - 1] * n


@pytest.mark.parametrize("collective, name", ANY)
def test_what_is_for_any_number_of_ranks_is_right_up_to_69(collective, name):
    for n in (37, 48, 63, 64, 65, 69):
        check(built(collective, name, n, one_ring=True), steps=False)


# ---- both ways ------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
def test_both_ways_puts_half_of_a_rings_load_on_each_direction_of_a_link(collective):
    for n in (n for n in SIZES if n > 2):
        both, ring = (built(collective, name, n, one_ring=True) for name in ("both-ways", "ring"))
        loads = np.zeros((2, n))
        for step in crossing(both):
            way = np.where((step.dst - step.src) % n == 1, 0, 1)
            assert ((step.dst - step.src) % n == np.where(way, n - 1, 1)).all()
            np.add.at(loads, (way, step.src), step.count)
        assert loads / both.layout.chunks == pytest.approx(np.tile(sent(ring) / 2, (2, 1)))


# ---- doubling and halving -------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 34))
def test_recursive_doubling_adds_in_the_order_of_ranks_everywhere(n):
    """With an operation that is not even commutative: joining words."""
    schedule = built("allreduce", "recursive-doubling", n)
    buf = np.full((n, schedule.layout.nslots), "?", dtype=object)
    buf[:, 0] = [f"{rank} " for rank in range(n)]
    execute(schedule, buf, lambda there, arriving: there + arriving)
    assert set(buf[:, schedule.layout.output()]) == {"".join(f"{r} " for r in range(n))}


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "halving-doubling"), ("allreduce", "swing"), ("allgather", "recursive-doubling"),
    ("reduce_scatter", "recursive-halving")])  # fmt: skip
def test_what_halves_or_doubles_sends_one_run_of_slots_to_one_partner_a_step(collective, name):
    for n in POWERS[1:]:
        row = algorithm(collective, name)
        for step in crossing(row.build(circle(n, grid=None))):
            partner = dict(zip(step.src.tolist(), step.dst.tolist(), strict=True))
            assert len(step.src) == n and all(partner[partner[r]] == r for r in range(n))


@pytest.mark.parametrize("make", [doubling.reduce_scatter, doubling.allgather, swing.allreduce])
def test_what_is_for_powers_of_two_says_so_and_what_else_there_is(make):
    for n in (3, 6, 12):
        with pytest.raises(ScheduleError, match=f"{n} ranks.*powers of two; circulant is for any"):
            make(recipe_of(n))


# ---- the load of a ring's links -------------------------------------------------------------


def worst_load(schedule: Schedule) -> float:
    """Return what the busiest links of a ring carry in the reduce-scatter half, over the data.

    The busiest of every step, added up; a message takes the shorter way, of two equal ones half.
    """
    n, total = schedule.nranks, 0.0
    for step in (s for s in crossing(schedule) if s.op[0] == REDUCE):
        load = np.zeros((2, n))
        for src, dst, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist()):
            ahead = (dst - src) % n
            parts = (1.0, 0.0) if 2 * ahead < n else (0.0, 1.0) if 2 * ahead > n else (0.5, 0.5)
            load[0, (src + np.arange(ahead)) % n] += count * parts[0]
            load[1, (src - np.arange(n - ahead)) % n] += count * parts[1]
        total += float(load.max())
    return total / schedule.layout.chunks


@pytest.mark.parametrize("name, loads", {
    "ring": {8: 0.88, 16: 0.94, 64: 0.98}, "both-ways": {8: 0.44, 16: 0.47, 64: 0.49},
    "halving-doubling": {8: 1.25, 16: 1.75, 64: 2.75}, "swing": {8: 1.0, 16: 1.19, 64: 1.55},
}.items(), ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
def test_the_busiest_link_of_a_ring_carries_what_was_computed_apart(name, loads):
    for n, wanted in loads.items():
        schedule = algorithm("allreduce", name).build(circle(n, grid=None))
        assert worst_load(schedule) == pytest.approx(wanted, abs=0.0051)


# ---- swing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2,), (8,), (64,), (4, 4), (8, 2), (2, 2, 2), (4, 2, 8)])
def test_swing_partners_are_mutual_and_reach_everyone(shape):
    for partners in swing.copies_of(shape):
        n = prod(shape)
        assert len(partners) == n.bit_length() - 1
        assert all((partner[partner] == np.arange(n)).all() for partner in partners)
        assert sorted(nesting(partners).tolist()) == list(range(n))


def test_swing_goes_1_1_3_5_11_places_to_the_sides():
    (partners,) = [swing.partners_of((64,), 0, 1)]
    assert [int(p[0]) for p in partners] == [1, 63, 3, 59, 11, 43]
    (mirrored,) = [swing.partners_of((64,), 0, -1)]
    assert [int(p[0]) for p in mirrored] == [63, 1, 61, 5, 53, 21]


@pytest.mark.parametrize("shape", [(8,), (4, 4), (8, 2), (4, 2, 2)])
def test_swing_on_a_torus_is_right_and_no_two_copies_start_over_the_same_links(shape):
    n = prod(shape)
    grid = np.random.default_rng(5).permutation(n).astype(np.int32).reshape(shape)
    schedule = swing.allreduce(circle(n, grid=grid))
    check(schedule)
    first = crossing(schedule)[: schedule.nchannels]
    assert [set(s.channel.tolist()) for s in first] == [{c} for c in range(len(first))]
    moved = {tuple(s.dst[np.argsort(s.src)].tolist()) for s in first}
    apart = sum(2 if side > 2 else 1 for side in shape)  # a side of two has one way
    assert len(moved) == apart


# ---- bucket ---------------------------------------------------------------------------------


def sides(most: int = 30):
    return st.lists(st.integers(1, 9), min_size=1, max_size=4).filter(lambda d: prod(d) <= most)


def loads_of(schedule: Schedule, grid: np.ndarray) -> np.ndarray:
    """Return the blocks that cross each (dimension, direction, rank); all must be neighbours."""
    place = np.empty((grid.size, grid.ndim), dtype=int)
    place[grid.ravel()] = np.stack(np.unravel_index(np.arange(grid.size), grid.shape), axis=1)
    load = np.zeros((grid.ndim, 2, grid.size))
    for step in crossing(schedule):
        apart = (place[step.dst] - place[step.src]) % grid.shape
        assert ((apart != 0).sum(axis=1) == 1).all()
        axis = (apart != 0).argmax(axis=1)
        along, side = apart[np.arange(len(axis)), axis], np.array(grid.shape)[axis]
        assert ((along == 1) | (along == side - 1)).all()
        np.add.at(load, (axis, (along != 1).astype(int), step.src), step.count)
    return load / schedule.layout.chunks


@settings(deadline=None, max_examples=10)
@given(sides(), st.integers(0, 99), st.sampled_from(["allreduce", "reduce_scatter", "allgather"]))
def test_bucket_is_right_on_any_torus_and_talks_to_neighbours_only(shape, seed, collective):
    n = prod(shape)
    rng = np.random.default_rng(seed)
    grid = rng.permutation(n).astype(np.int32).reshape(shape)
    schedule = algorithm(collective, "bucket").build(circle(n, grid=grid))
    assert all(is_right(schedule, rng, placed) for placed in (False, True))
    loads_of(schedule, grid)


@settings(deadline=None, max_examples=40)
@given(sides(most=2000).filter(lambda d: prod(d) > 1))
def test_bucket_shares_put_nearly_the_same_on_the_links_of_every_dimension(shape):
    shape = tuple(side for side in shape if side > 1)
    parts = bucket.shares(shape)
    load = bucket.link_loads(shape) @ parts / parts.sum()
    assert parts.min() >= 0 and parts.max() <= 16
    # What all dimensions carry together does not depend on the shares.
    assert load.sum() == pytest.approx(1 - 1 / prod(shape))
    assert load.sum() / len(shape) >= 0.97 * load.max() or parts.max() == 16


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (3, 5), (5, 2, 3), (3, 3, 3), (6,)])
def test_bucket_loads_all_links_of_a_dimension_alike_both_ways_as_its_shares_say(shape):
    grid = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    load = loads_of(algorithm("allreduce", "bucket").build(circle(grid.size, grid=grid)), grid)
    parts = bucket.shares(shape)
    wanted = bucket.link_loads(shape) @ parts / parts.sum()  # either way half, both halves: as much
    for axis, side in enumerate(shape):
        each = load[axis] if side > 2 else load[axis].sum(axis=0) / 2
        assert each == pytest.approx(np.full_like(each, wanted[axis]))


def test_sides_of_one_change_nothing_and_where_all_are_two_there_is_one_way_round():
    plain, padded = (algorithm("allreduce", "bucket").build(circle(12, grid=grid)) for grid in (
        grid_of(12).reshape(4, 3), grid_of(12).reshape(1, 4, 1, 3)))  # fmt: skip
    for one, other in zip(plain, padded, strict=True):
        assert all((getattr(one, c) == getattr(other, c)).all() for c in Step.__slots__)
    cube = algorithm("allreduce", "bucket").build(circle(8, grid=grid_of(8).reshape(2, 2, 2)))
    assert (plain.nchannels, cube.nchannels) == (4, 3)


def test_bucket_without_a_torus_names_what_is_missing():
    for make in (bucket.allreduce, bucket.reduce_scatter, bucket.allgather):
        with pytest.raises(ScheduleError, match=r"8 ranks has no grid.*Recipe"):
            make(circle(8, grid=None))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
def test_a_cube_of_tpus_uses_all_its_links_alike_for_large_calls(collective):
    made = Planner(lower(load("tpu-v4-64")), "bucket")
    plan = made.plan(collective, 1e9 if collective == "allreduce" else 1e9 / 64)
    used = plan.profile.total_link[plan.profile.total_link > 0]
    assert len(used) == 6 * 64 and used == pytest.approx(np.full(len(used), used[0]))


# ---- neighbour exchange and PAT -------------------------------------------------------------


def test_neighbours_only_talk_to_the_next_on_the_ring_two_blocks_at_a_time():
    for n in (2, 4, 6, 8, 12, 22):
        ring = np.random.default_rng(n).permutation(n).astype(np.int32)
        place = np.argsort(ring)
        for collective in ("allgather", "reduce_scatter"):
            recipe = circle(n, rings=ring[None])
            for s, step in enumerate(crossing(algorithm(collective, "neighbour").build(recipe))):
                apart = (place[step.dst] - place[step.src]) % n
                assert np.isin(apart, (1, n - 1)).all()
                ends = s == (0 if collective == "allgather" else n // 2 - 1)
                blocks = np.bincount(step.src, weights=step.count, minlength=n)
                assert blocks.tolist() == [1 if ends else 2] * n


def test_neighbours_need_an_even_number():
    for make in (neighbour.allgather, neighbour.reduce_scatter):
        with pytest.raises(ScheduleError, match=r"7 ranks.*pairs"):
            make(recipe_of(7))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12, 31, 33])
def test_pat_goes_far_first_with_few_blocks_and_talks_to_one_other_a_step(n):
    steps = crossing(built("allgather", "pat", n))
    ways = [set(((s.dst - s.src) % n).tolist()) for s in steps]
    assert ways == [{1 << d} for d in reversed(range((n - 1).bit_length()))]
    carried = [len(s.src) // n for s in steps]
    assert carried[0] == 1 and sum(carried) == n - 1 and carried == sorted(carried)


@pytest.mark.parametrize("forwards, backwards, n", [
    *((name, name, n) for name in ("pat", "neighbour") for n in (2, 4, 12)),
    *(("recursive-doubling", "recursive-halving", n) for n in (2, 4, 8))])  # fmt: skip
def test_the_reduce_scatter_is_the_allgather_backwards_with_every_arrow_turned(
    forwards, backwards, n
):
    gather = built("allgather", forwards, n, one_ring=True)
    scatter = built("reduce_scatter", backwards, n, one_ring=True)
    base = int(gather.layout.output()), int(scatter.layout.scratch_block())
    ahead = [sorted(zip((s.src_slot - base[0]).tolist(), s.count.tolist(), s.src.tolist(),
                        s.dst.tolist())) for s in crossing(gather)]  # fmt: skip
    back = [sorted(zip((s.src_slot - base[1]).tolist(), s.count.tolist(), s.dst.tolist(),
                       s.src.tolist())) for s in crossing(scatter)]  # fmt: skip
    assert ahead == back[::-1]
