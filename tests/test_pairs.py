"""What all pairs of a group ask of a fabric, summed, is what a row for each pair asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rccl_py.fabric.pairs as pairs_module
from rccl_py.fabric import crossing_pairs
from rccl_py.schedule import COPY, REDUCE, AllPairs, Move, Pairs, Phase, rows
from rccl_py.timing import Loads
from rccl_py.timing import loads as loads_module
from rccl_py.topology import load, lower

MACHINES = ("mi300x-8-x128-rails", "helios-72-x8", "ualink-64-x16", "gb200-nvl72-x8",
            "mi300x-8-x12500-three-tier")  # fmt: skip


def listed(pairs: Pairs) -> Phase:
    """Return the phase of these pairs, a row for each."""
    group, moves, m = pairs.group, [], pairs.group.shape[1]
    count = np.tile(pairs.count // pairs.times, m)
    for k in range(0 if pairs.own else 1, m):
        ends = group.T.ravel(), np.roll(group, -k, axis=1).T.ravel()
        made = rows(*ends, count=count, op=pairs.op, times=pairs.times)
        moves.append(Move(made, lambda _s: (np.zeros(0, np.int32), np.zeros(0, np.int32))))
    assert sum(m.rows.size for m in moves) == pairs.size
    return Phase(tuple(moves))


def summed(pairs: Pairs) -> Phase:
    """Return the phase of these pairs, whose rows nobody may ask for."""

    def never():
        raise AssertionError("the rows of all pairs were made")

    return Phase(AllPairs(pairs, never))


def some_groups(draw: np.random.Generator, n: int, groups: int, m: int) -> np.ndarray:
    return draw.permutation(n)[: groups * m].reshape(groups, m).astype(np.int32)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MACHINES), st.integers(1, 6), st.integers(2, 24), st.integers(0, 9999),
       st.booleans(), st.booleans())  # fmt: skip
def test_the_sum_over_all_pairs_is_the_load_of_their_rows(
    name, groups, m, seed, reduces, contiguous
):
    fabric, draw = _fabric(name), np.random.default_rng(seed)
    n = fabric.nranks
    if contiguous:
        first = int(draw.integers(0, n - groups * m))
        group = np.arange(first, first + groups * m, dtype=np.int32).reshape(m, groups).T.copy()
    else:
        group = some_groups(draw, n, groups, m)
    times = int(draw.integers(1, 3))
    pairs = Pairs(group, draw.integers(1, 5, groups) * times, REDUCE if reduces else COPY, times,
                  own=not reduces and bool(seed % 2))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads_module, "_PAIRS", 0)
        found = Loads(fabric).of_phase(summed(pairs))
    wanted = Loads(fabric).of_phase(listed(pairs))
    assert found.at.tolist() == wanted.at.tolist()
    assert found.slots == pytest.approx(wanted.slots, rel=1e-12)
    assert found.who.tolist() == wanted.who.tolist()
    assert found.ranks == pytest.approx(wanted.ranks, rel=1e-12)
    assert found.latency == pytest.approx(wanted.latency, rel=1e-12)
    assert (found.far, found.remote) == (wanted.far, wanted.remote)


_KNOWN: dict[str, object] = {}


def _fabric(name):
    if name not in _KNOWN:
        _KNOWN[name] = lower(load(name))
    return _KNOWN[name]


def test_counts_in_order_are_those_of_a_table(monkeypatch):
    fabric, draw = _fabric("mi300x-8-x128-rails"), np.random.default_rng(0)
    group, slots = some_groups(draw, fabric.nranks, 5, 30), np.arange(1, 6)
    table = crossing_pairs(fabric, group, slots)
    monkeypatch.setattr(pairs_module, "_CELLS", 0)
    order = crossing_pairs(fabric, group, slots)
    assert np.array_equal(table.link, order.link) and np.array_equal(table.far, order.far)
    assert np.array_equal(table.latency, order.latency)


def test_groups_that_share_a_rank_are_not_summed():
    fabric = _fabric("mi300x-8-x128-rails")
    group = np.array([[0, 9, 17], [17, 33, 41]], dtype=np.int32)
    assert crossing_pairs(fabric, group, np.ones(2, dtype=np.int64)) is None


@pytest.mark.parametrize("spoil", [
    lambda f: replace(f, wiring=replace(f.wiring, routing="ecmp")),
    lambda f: replace(f, wiring=replace(f.wiring, routing="adaptive")),
    lambda f: replace(f, wiring=replace(f.wiring, spines=0)),
], ids=["ecmp", "adaptive", "leaves apart"])  # fmt: skip
def test_networks_whose_links_are_no_bundles_or_join_not_all_are_not_summed(spoil):
    fabric = spoil(_fabric("mi300x-8-x128-rails"))
    assert not fabric.sums_pairs
    group = np.arange(64, dtype=np.int32)[None]
    assert crossing_pairs(fabric, group, np.ones(1, dtype=np.int64)) is None


def test_an_entry_that_stands_for_several_rows_is_told_row_by_row_in_a_step():
    few = rows([0, 1], [1, 2], count=[3, 4], times=2)
    many = rows([0, 1], [1, 2], count=[3, 4], times=np.array([1, 3]))
    assert (few.size, many.size) == (4, 4)
    assert few.total.tolist() == [6, 8] and many.total.tolist() == [3, 12]
    slots = np.arange(4, dtype=np.int32)
    for moved, src in ((few, [0, 0, 1, 1]), (many, [0, 1, 1, 1])):
        step = Move(moved, lambda _s: (slots, slots)).step(0)
        assert step.src.tolist() == src and not step.count.flags.writeable
        assert Move(moved, lambda _s: (slots, slots)).step(0).src is step.src
