"""What a planner leaves out would not win, what it puts together is right, what it says is so."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from helpers import MIX, fits, recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import COLLECTIVES, Planner, load, lower
from rccl_py.algorithms import ALGORITHMS, Part
from rccl_py.check import check
from rccl_py.cli.plan import main
from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.planner import offers, verify
from rccl_py.planner.breakpoints import NOISE, sizes_between
from rccl_py.planner.describe import explained
from rccl_py.planner.floors import PIECES, limits_of
from rccl_py.planner.repeat import in_pieces, told
from rccl_py.planner.synthesis import Synthesis
from rccl_py.timing import profile, timed

MACHINES = {
    "mesh": ("mi300x-8", None), "seven of a mesh": ("mi300x-8", 7), "switch": ("h100-8", None),
    "packages": ("mi250x-4", None), "uneven nodes": ("mixed-x6", None), "PCI": ("l40s-8", None),
    "sixteen": ("mi300x-8-x16-leaf-spine", 16),
    "leaves": ("mi300x-8-x16-leaf-spine", 32), "five nodes": ("h100-8-x32-rail-only", 40),
    "torus": ("tpu-v4-64", None), "dragonfly": ("mi250x-4-x1024-dragonfly", 32),
}  # fmt: skip
FOUR = ("allreduce", "allgather", "reduce_scatter", "alltoall")
SIZES = (1.0, 1e4, 1e7, 1e9)


@cache
def fabric_of(name):
    machine, ranks = MACHINES[name]
    return lower(load(machine), ranks)


@cache
def planner_of(name):
    return Planner(fabric_of(name), synthesise=False)


def rows_of(planner, collective):
    return [row for row in planner._offers(collective, 0)[0].algorithms
            if row.rows(planner.fabric.nranks, 8) < 5000]  # fmt: skip


# ---- floors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [m for m in MACHINES if m not in ("leaves", "five nodes")])
def test_no_algorithm_is_estimated_below_its_floor(name):
    planner, known = planner_of(name), 0
    for collective in (*FOUR, "broadcast", "reduce"):
        root = 3 if collective == "reduce" else 0
        made_of = planner._offers(collective, root)[0]
        for row in rows_of(planner, collective):
            for pieces in {1, min(8, row.pieces)}:
                recipe = planner.recipe(root, pieces)
                made = profile(row.build(recipe), planner.fabric, planner._loads)
                for block in SIZES:
                    links = made_of.links() * block
                    for protocol in row.protocols:
                        floor = made_of.machine.floor(row, block, PROTOCOLS[protocol], links)
                        least = float(made.seconds(block, PROTOCOLS[protocol]))
                        assert floor.seconds <= least * (1 + 1e-9), (row.name, pieces, block)
                        known += floor.seconds > 0
    assert known > 100


@pytest.mark.parametrize("name", ["mesh", "switch", "sixteen"])
def test_several_pieces_take_no_less_than_one_says(name):
    planner = planner_of(name)
    for row in (r for c in FOUR for r in rows_of(planner, c) if r.pieces > 1):
        limits = limits_of(profile(row.build(planner.recipe()), planner.fabric, planner._loads))
        for pieces in {2, min(16, row.pieces), row.pieces}:
            made = profile(row.build(planner.recipe(0, pieces)), planner.fabric, planner._loads)
            for block in SIZES:
                for protocol in row.protocols:
                    least = limits.least(block, pieces, PROTOCOLS[protocol])
                    assert least <= float(made.seconds(block, PROTOCOLS[protocol])) * (1 + 1e-9)


@pytest.mark.parametrize("collective", FOUR)
@pytest.mark.parametrize("name", ["sixteen", "torus"])
def test_what_is_left_unbuilt_would_not_have_won(name, collective, monkeypatch):
    """Where nothing is built for less than it may save, the choice is that of building all."""
    every = planner_of(name)
    monkeypatch.setattr(offers, "_SMALL", 0)
    monkeypatch.setattr(offers, "_HARDLY", ((0, 0.0),))
    few = Planner(fabric_of(name), synthesise=False)
    for block in (64.0, 1e6, 1e8):
        whole, part = (p.plan(collective, block) for p in (every, few))
        assert part.time <= whole.time * (1 + 1e-12), (part, whole)
    left = [c for c in part.candidates if "not built" in c.reason]
    assert all(not np.isfinite(c.seconds) for c in left)
    assert left or name == "torus"  # whose forms have no floor


def test_the_same_size_gives_the_same_plan_whatever_was_asked_before():
    sizes = [8.0, 1e4, 1e6, 1e8, 1e9]
    for name in ("mesh", "sixteen"):
        one, two = (Planner(fabric_of(name), synthesise=False) for _ in range(2))
        forwards = [str(one.plan("allreduce", s)) for s in sizes]
        backwards = [str(two.plan("allreduce", s)) for s in sizes[::-1]][::-1]
        assert forwards == backwards


# ---- pieces, priced from one -------------------------------------------------------------------

CUT = [row for row in ALGORITHMS if row.pieces > 1]


@pytest.mark.parametrize("row", CUT, ids=lambda r: f"{r.collective}/{r.name}")
@pytest.mark.parametrize("name", ["mesh", "sixteen"])
def test_pieces_priced_from_one_cost_what_they_cost(row, name):
    fabric = fabric_of(name)
    n, g = fabric.nranks, 8 if name == "sixteen" else None
    if (row.two_level and g is None) or (row.switched and not fabric.multicast):
        return
    recipe = recipe_of(n, 1, g)
    if not fits(row, recipe):
        return
    parts = told(row.build(recipe))
    if parts is None:
        return
    whole = row.build(recipe_of(n, 1, g, pieces=4))
    real, found = (profile(s, fabric) for s in (whole, in_pieces(parts, whole, 4)))
    assert real.chunks == found.chunks and real.last == pytest.approx(found.last)
    for column in ("steps", "hops", "messages", "link", "memory", "through", "window"):
        assert np.allclose(getattr(real, column), getattr(found, column), rtol=1e-12), column


# ---- breakpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("name, collective", [
    ("mesh", "allreduce"), ("mesh", "alltoall"), ("switch", "allreduce"), ("sixteen", "allgather"),
    ("uneven nodes", "reduce_scatter"), ("torus", "allreduce"),
])  # fmt: skip
def test_breakpoints_go_one_way_and_lose_next_to_nothing(name, collective):
    planner = planner_of(name)
    found = planner.breakpoints(collective)
    blocks = max(COLLECTIVES[collective].blocks(planner.fabric.nranks))
    assert found[0].lo == 8 and found[-1].hi == 16 << 30
    assert all(after.lo == before.hi + 1 for before, after in pairwise(found))
    names = [(r.algorithm, r.protocol, r.pieces) for r in found]
    assert len(set(names)) == len(names), "a row that was left is taken again"
    latency = [r.latency for r in found]
    assert latency == sorted(latency), "a larger call goes on to an option of less latency"
    for r in found:
        for size in sizes_between(r.lo, r.hi, 1).tolist():
            plan = planner.plan(collective, size / blocks)
            entry = next(
                c for c in plan.candidates if (c.algorithm, c.protocol) == (r.algorithm, r.protocol)
            )
            assert entry.seconds <= plan.time * (1 + max(NOISE, r.loses) + 0.05 * (r.pieces > 1))


def test_breakpoints_of_two_sizes_are_those_between_them():
    found = planner_of("mesh").breakpoints("allreduce", 1000, 2000)
    assert found[0].lo == 1000 and found[-1].hi == 2000
    with pytest.raises(InvalidArgument, match="highest bytes"):
        planner_of("mesh").breakpoints("allreduce", 2000, 1000)


# ---- mixes -------------------------------------------------------------------------------------


@cache
def two_nodes():
    return Planner(lower(load("h100-8", nodes=2)), "^forest")


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_two_nodes_use_links_that_one_algorithm_leaves_idle(collective):
    planner = two_nodes()
    plan = planner.plan(collective, (8 << 30) / 16)
    assert plan.algorithm == "mix" and " and " not in plan.made_of and ", " in plan.made_of
    alone = [c.seconds for c in plan.candidates if c.algorithm != "mix"]
    assert plan.time < 0.99 * min(alone)
    small = planner.recipe()
    parts = tuple(Part(p.algorithm, p.share, min(p.pieces, 2), 1) for p in plan.recipe.mix)
    row = next(a for a in ALGORITHMS if (a.collective, a.name) == (collective, "mix"))
    check(row.build(replace(small, mix=parts, memo={})), steps=False)


HALVED = ["allreduce", "reduce_scatter", "allgather"]


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from([2, 3, 5, 8]),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(HALVED),
)
def test_a_mix_is_right_in_any_shares_pieces_and_turns(n, a, b, pieces, turns, collective):
    g = next((k for k in (2, 4) if n % k == 0 and k < n), None)
    first = "hier-direct-ring" if g else "circulant"
    parts = (Part(first, a, pieces if g else 1), Part("ring", b, 1, turns))
    recipe = recipe_of(n, 0, g)
    row = next(r for r in ALGORITHMS if (r.collective, r.name) == (collective, "mix"))
    made = row.build(replace(recipe, mix=parts, memo={}))
    check(made)
    fabric = lower(load("mi300x-8"), n)
    total = profile(made, fabric)
    whole = np.zeros(fabric.nlinks)
    for part in parts:
        build = next(r.build for r in ALGORITHMS if (r.collective, r.name) ==
                     (collective, part.algorithm))  # fmt: skip
        alone = profile(build(recipe_of(n, 0, g, pieces=part.pieces)), fabric)
        whole += alone.total_link / alone.chunks * part.share / (a + b)
    assert np.allclose(total.total_link / total.chunks, whole)


def test_the_mix_of_the_tests_is_two_thirds_and_one():
    assert [part.share for part in MIX] == [2, 1]


# ---- synthesis ---------------------------------------------------------------------------------


def test_larger_machines_are_synthesised_for_only_where_large_calls_leave_much(monkeypatch):
    def refuse(*_):
        raise AssertionError("synthesised")

    monkeypatch.setattr(Synthesis, "_forests", refuse)
    monkeypatch.setattr(Synthesis, "_paths", refuse)
    fabric = lower(load("ualink-64"))  # a plain switch: nothing is left
    for size in (64.0, 1e7):
        assert Planner(fabric).plan("allgather", size).algorithm
    torus = Planner(lower(load("tpu-v4-64")))
    for size in (64.0, 1e9):  # a quarter of the optimum without trees: at any size
        with pytest.raises(AssertionError, match="synthesised"):
            torus.plan("broadcast", size)
    assert Planner(lower(load("mi250x-4")), synthesise=False).plan("alltoall", 1 << 28)


@pytest.mark.parametrize("machine", ["mi250x-4", "mi300x-8", "h100-8"])
@pytest.mark.parametrize("collective, row", [("broadcast", "arborescences"),
                                             ("allgather", "forest")])  # fmt: skip
def test_no_restriction_to_what_is_synthesised_is_faster_than_the_plan(machine, collective, row):
    fabric = lower(load(machine))
    free, bound = Planner(fabric), Planner(fabric, row)
    for size in (1 << 14, 1 << 20, 1 << 24, 1 << 32):
        block = size / max(COLLECTIVES[collective].blocks(8))
        best = free.plan(collective, block).time
        assert best <= bound.plan(collective, block).time * (1 + 1e-12)


def test_what_is_left_on_a_machine_too_large_to_synthesise_unasked_is_hinted_at():
    planner = Planner(lower(load("helios-72")), "tree")
    assert not planner.plan("allreduce", 64).hint
    plan = Planner(lower(load("helios-72")), "tree,forest").plan("allreduce", 1 << 30)
    assert plan.hint.startswith("--synthesis always looks for trees")


def test_a_range_says_what_its_ends_take_by_the_plan():
    planner = planner_of("mesh")
    blocks = max(COLLECTIVES["alltoall"].blocks(8))
    for r in planner.breakpoints("alltoall", 1024, 1 << 30):
        for size, seconds in ((r.lo, r.first), (r.hi, r.last)):
            plan = planner.plan("alltoall", size / blocks)
            assert plan.time <= seconds * (1 + 1e-12) <= plan.time * (1 + NOISE + r.loses + 0.05)


def test_an_unknown_collective_is_refused_with_the_names_there_are():
    for call in (planner_of("mesh").plan, planner_of("mesh").breakpoints):
        with pytest.raises(InvalidArgument, match=r"allgater.*allgather"):
            call("allgater", 64)


def test_synthesis_brings_an_irregular_box_close_to_its_optimum():
    fabric = lower(load("mi250x-4"))
    with_it, without = (Planner(fabric, synthesise=s) for s in ("auto", "never"))
    for collective, least in (("allreduce", 0.95), ("alltoall", 0.95)):
        block = (16 << 30) / max(COLLECTIVES[collective].blocks(8))
        plan, plain = (p.plan(collective, block) for p in (with_it, without))
        assert plan.share > least > plain.share
        assert plan.algorithm in ("forest", "paths")
        row = next(a for a in ALGORITHMS if (a.collective, a.name) == (collective, plan.algorithm))
        check(row.build(replace(plan.recipe, pieces=1, memo={})), steps=False)


def test_who_allows_forests_alone_gets_one_at_any_size():
    plan = Planner(fabric_of("mesh"), "forest").plan("allgather", 64)
    assert {c.algorithm for c in plan.candidates} == {"forest"} == {plan.algorithm}
    with pytest.raises(InvalidUsage, match="synthesis is switched off"):
        Planner(fabric_of("mesh"), "forest", synthesise=False).plan("allgather", 64)


def test_forests_are_kept_in_the_folder_that_is_named(tmp_path):
    fabric = lower(load("mi250x-4"))
    first, second = (
        Planner(fabric, "forest", cache=tmp_path).plan("allgather", 1 << 28) for _ in range(2)
    )
    assert len(list(tmp_path.iterdir())) == 1 and first.time == second.time


def test_an_unknown_mode_is_refused_and_what_is_not_synthesised_says_why():
    fabric = fabric_of("mesh")
    with pytest.raises(InvalidArgument, match=r"'maybe'.*auto, always, never"):
        Planner(fabric, synthesise="maybe")
    reasons = {c.algorithm: c.reason for c in planner_of("mesh").plan("allgather", 8).candidates}
    assert reasons["forest"].endswith("synthesis is switched off")
    large = Planner(lower(load("mi300x-8-x128-rails"))).plan("alltoall", 8).candidates
    assert any("1024 ranks, over the 64" in c.reason for c in large)


# ---- the clock ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mesh", "sixteen"])
def test_a_verified_choice_is_no_slower_by_the_finer_engine(name):
    fabric = fabric_of(name)
    plain, checked = (Planner(fabric, verify=v, synthesise=False) for v in (False, True))
    for collective in FOUR[:3]:
        for size in (1 << 20, 1 << 26):
            block = size / max(COLLECTIVES[collective].blocks(fabric.nranks))
            one, two = (p.plan(collective, block) for p in (plain, checked))
            assert one.decided == "the estimate"
            assert two.decided.startswith(("the estimate", "the simulation: "))
            times = [
                timed(p.schedule, fabric, block, PROTOCOLS[p.protocol], engine="simulate").seconds
                for p in (one, two)
            ]
            assert times[1] <= times[0] * (1 + 1e-12)


def test_what_is_too_large_to_simulate_is_clocked_and_then_estimated(monkeypatch):
    block = (1 << 26) / 16
    for limit, engine in (("_SIMULATED", "the clock"), ("_CLOCKED", "too many for another")):
        monkeypatch.setattr(verify, limit, 0)
        plan = Planner(fabric_of("sixteen"), verify=True, synthesise=False).plan(
            "reduce_scatter", block
        )
        assert engine in plan.decided


# ---- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, collective", [
    ("mesh", "allreduce"), ("switch", "alltoall"), ("uneven nodes", "allgather"),
    ("sixteen", "reduce_scatter"),
])  # fmt: skip
def test_an_explanation_is_one_screen(name, collective):
    planner = planner_of(name)
    ranges = planner.breakpoints(collective, 8, 1 << 28)
    for size in (8, 1 << 20, 1 << 30):
        blocks = max(COLLECTIVES[collective].blocks(planner.fabric.nranks))
        plan = planner.plan(collective, size / blocks)
        lines = list(explained(plan, ranges))
        assert len(lines) <= 24 and max(map(len, lines)) <= 100
        text = "\n".join(lines)
        assert f"{plan.share:.1%} of the best any algorithm could do here" in text
        assert plan.algorithm in text and "alternatives" in text and "by size" in text


def run(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_command_explains_on_one_screen_and_in_json(capsys):
    out = run(capsys, "allreduce", "--topology", "h100-8", "--size", "64M", "--explain")
    assert len(out.splitlines()) <= 24 and "of the best any algorithm could do here" in out
    (plan,) = json.loads(run(capsys, "allreduce", "--topology", "h100-8", "--size", "64M",
                             "--explain", "--json"))  # fmt: skip
    assert plan["share_of_optimum"] == pytest.approx(1 / plan["gap"])
    assert plan["breakpoints"][0]["from"] == 8 and plan["decided_by"] and plan["bound"]["cut"]


def test_the_command_prints_breakpoints(capsys):
    arguments = ("allgather", "--topology", "mi300x-8", "--breakpoints", "--size", "1K,1G")
    lines = run(capsys, *arguments).splitlines()
    found = json.loads(run(capsys, *arguments, "--json"))
    assert len(lines) == len(found) + 2 and found[0]["from"] == 1024
    assert found[-1]["to"] == 1 << 30
    assert PIECES[0] == found[0]["pieces"] == 1
