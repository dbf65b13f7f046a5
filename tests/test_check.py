"""Every schedule passes the exact check; a broken one fails it, and exactly then."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from helpers import (
    built,
    column,
    divisors,
    is_right,
    mixes,
    of_steps,
    recipe_of,
    step_of,
    steps_of,
    suits,
)

from rccl_py.algorithms import ALGORITHMS, Algorithm
from rccl_py.check import check, check_hashes, check_steps
from rccl_py.errors import ScheduleError
from rccl_py.schedule import COPY, REDUCE, Layout, Phase, Schedule, Step

by_name = pytest.mark.parametrize("row", ALGORITHMS, ids=lambda a: f"{a.collective}/{a.name}")
PIECES = 3


def recipes(row: Algorithm, n: int):
    """Yield recipes for n: roots at both ends and inside, every size of node; none if it cannot."""
    if not suits(row, n):
        return
    roots = sorted({0, n // 2, n - 1})
    if not row.two_level:
        rooted = row.collective in ("broadcast", "reduce", "gather", "scatter")
        for root in roots if rooted else roots[:1]:
            yield recipe_of(n, root)
        return
    for g, root in zip(reversed(divisors(n)), cycle(reversed(roots))):
        yield recipe_of(n, root, g)


@by_name
def test_every_schedule_passes_the_exact_check_for_every_n_from_1_to_33(row):
    for n in range(1, 34):
        every = list(recipes(row, n))
        for k, recipe in enumerate(every):
            # S1-S7 at every step once an n; the proof of the result for all.
            check(row.build(recipe), steps=k == n % len(every))
        for recipe in (every if n <= 12 else every[n % len(every) :][:1]) if row.pieces > 1 else ():
            check(row.build(replace(recipe, pieces=PIECES)), steps=n <= 6)


@by_name
def test_all_ranks_reduce_in_the_same_order_for_every_n_from_1_to_33(row):
    rng = np.random.default_rng(1)
    for n in range(1, 34):
        every = list(recipes(row, n))
        if not every:
            continue
        recipe = every[n // 2 % len(every)]
        assert check_hashes(row.build(recipe), rng), n


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
@by_name
def test_one_ring_alone_serves_as_well_as_several_of_unequal_weight(row, n):
    for recipe in recipes(row, n):
        check(row.build(replace(recipe, rings=recipe.rings[:1], weights=recipe.weights[:1],
                                local_rings=None, local_weights=None)))  # fmt: skip


@pytest.mark.parametrize("n", [65, 130])
def test_more_ranks_than_one_word_of_the_rank_set_holds_are_told_apart(n):
    schedule = built("allreduce", "circulant", n)
    check(schedule, steps=False)
    broken = steps_of(schedule)
    broken[-1] = [without_row(broken[-1][0], n - 1)]
    with pytest.raises(ScheduleError, match="output block 0"):
        check(of_steps(schedule, broken), steps=False)


# ---- each invariant -------------------------------------------------------------------------

# Two ranks, one input, one output, one scratch block of two positions: slots 0-1, 2-3, 4-5.
TWO = Schedule("allreduce", "by hand", 2, 0, Layout(2, 1, 1, 1), 1, lambda: iter(()))
FINE = step_of((0, 0, 0, 2), (1, 1, 0, 2))


def twice(*streams: list[Phase]) -> Schedule:
    """Return a schedule that yields another of `streams` each time it is iterated."""
    again = cycle(streams)
    return replace(TWO, phases=lambda: iter(next(again)))


def phases_of(*steps: Step) -> list[Phase]:
    return list(of_steps(TWO, [[s] for s in steps]).phases())


VIOLATIONS = {
    "a rank that is not there": ("S1", step_of((0, 1, 0, 2), (0, 2, 0, 2)), "row 1 has dst 2"),
    "a rank below 0": ("S1", step_of((-1, 1, 0, 2)), "row 0 has src -1"),
    "a slot that is not there": ("S1", step_of((0, 1, 6, 2)), "row 0 has src_slot 6"),
    "a slot below 0": ("S1", step_of((0, 1, 0, 2), (1, 0, 0, -2)), "row 1 has dst_slot -2"),
    "an operation that is none": ("S1", step_of((0, 1, 0, 2, 1, 2)), "row 0 has op 2"),
    "two rows into one slot": ("S2", step_of((0, 1, 0, 2), (1, 1, 0, 2)), "rows 0 and 1 write"),
    "ranges that overlap": ("S2", step_of((0, 1, 1, 3), (1, 0, 0, 2), (0, 1, 2, 2, 2)),
                            "rows 0 and 2 write slot 3 of rank 1"),
    "no slots": ("S3", step_of((0, 1, 0, 2, 0)), "row 0 moves no slots"),
    "a range over the edge of the input": ("S3", step_of((0, 1, 0, 2), (0, 1, 1, 5, 2)),
                                           "row 1: src slots 1..2"),
    "a range over the end": ("S3", step_of((0, 1, 3, 5, 2)), "row 0: src slots 3..4"),
    "a range over the end at its target": ("S3", step_of((0, 1, 2, 5, 2)), "row 0: dst slots 5..6"),
    "a chunk that changes its position": ("S3", step_of((0, 1, 0, 3)), "row 0 changes"),
    "a write to the input": ("S3", step_of((0, 1, 2, 0)), "row 0 writes the input"),
    "columns of 64 bits": ("S4", replace(FINE, src=np.zeros(2, np.int64)), "column src is int64"),
    "columns of two lengths": ("S4", replace(FINE, op=column([COPY])), r"column op is int32\(1,\)"),
    "a table for a column": ("S4", replace(FINE, dst=column([[0, 1]])), "column dst is int32"),
    "a column that can be written": ("S4", replace(FINE, count=np.ones(2, np.int32)),
                                     "column count can be written"),
    "a channel too high": ("S5", step_of((0, 1, 0, 2), channel=1), "row 0 has channel 1 of 1"),
    "a channel below 0": ("S5", step_of((0, 1, 0, 2), channel=-1), "row 0 has channel -1"),
}  # fmt: skip


@pytest.mark.parametrize("rule, step, what", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_step_that_breaks_an_invariant_is_refused_with_its_name_step_and_row(rule, step, what):
    with pytest.raises(
        ScheduleError, match=f"breaks {rule} at phase 1 repetition 0 move 0: {what}"
    ):
        check_steps(of_steps(TWO, [[FINE], [step]]))


@pytest.mark.parametrize("other, where", [
    (phases_of(FINE), "phase 1"), ([], "phase 0"), (phases_of(FINE, FINE, FINE), "phase 2"),
    ([*phases_of(FINE), Phase(phases_of(FINE)[0].moves, 2)], "phase 1"),
    (phases_of(FINE, step_of((0, 0, 0, 4), (1, 1, 0, 2))),
     "phase 1 repetition 0 move 0: iterating twice gives row 0 another dst_slot"),
    (phases_of(FINE, step_of((0, 0, 0, 2))), "phase 1 .*another number of rows"),
])  # fmt: skip
def test_a_schedule_that_differs_the_second_time_breaks_s6(other, where):
    with pytest.raises(ScheduleError, match=f"breaks S6 at {where}"):
        check_steps(twice(phases_of(FINE, FINE), other))


def test_phases_that_can_be_read_only_once_break_s6():
    once = iter(phases_of(FINE, FINE, FINE))
    with pytest.raises(ScheduleError, match="breaks S6 at phase 1"):
        check_steps(replace(TWO, phases=lambda: once))


def test_a_move_that_reads_what_an_earlier_one_of_its_repetition_wrote_breaks_s7():
    late = step_of((1, 1, 0, 4), (0, 1, 2, 2))
    with pytest.raises(
        ScheduleError, match=r"S7 at phase 0 repetition 0 move 1: row 1 reads slot 2"
    ):
        check_steps(of_steps(TWO, [[FINE, late]]))
    assert check_steps(of_steps(TWO, [[FINE], [late]])) == 4


def test_a_result_written_where_a_rank_has_none_is_refused():
    like = built("reduce", "direct-oneshot", 2, 0)
    stray = [*steps_of(like), [step_of((0, 1, 0, int(like.layout.output())))]]
    with pytest.raises(ScheduleError, match="rank 1: it has no output"):
        check(of_steps(like, stray))


def test_a_schedule_that_is_right_apart_but_wrong_in_place_is_refused():
    # The second turn reads inputs that in place already hold a sum.
    like, rng = replace(TWO, nranks=3, layout=Layout(1, 1, 1)), np.random.default_rng(0)
    start = step_of(*((r, r, 0, 1) for r in range(3)))
    turns = [step_of(*((r, (r + k) % 3, 0, 1) for r in range(3)), op=REDUCE) for k in (1, 2)]
    schedule = of_steps(like, [[step] for step in (start, *turns)])
    assert is_right(schedule, rng, in_place=False) and not is_right(schedule, rng, in_place=True)
    assert check_steps(schedule) == 9
    with pytest.raises(ScheduleError, match="a rank is counted twice"):
        check(schedule)


# ---- broken at random -----------------------------------------------------------------------


def slow_violations(schedule: Schedule) -> set[str]:
    """Return the invariants of S1-S5 and S7 that a step breaks, one row after another."""
    layout, n, found = schedule.layout, schedule.nranks, set()
    ends = [layout.inputs * layout.chunks, (layout.inputs + layout.outputs) * layout.chunks]

    def part(slot: int) -> int:
        return sum(slot >= end for end in ends)

    for steps in steps_of(schedule):
        before: set[tuple[int, int]] = set()
        for step in steps:
            written: set[tuple[int, int]] = set()
            read: set[tuple[int, int]] = set()
            for src, dst, a, b, count, op, channel in zip(
                *(getattr(step, c).tolist() for c in type(step).__slots__)
            ):
                if not (0 <= src < n and 0 <= dst < n and op in (COPY, REDUCE)
                        and 0 <= a < layout.nslots and 0 <= b < layout.nslots):  # fmt: skip
                    found.add("S1")
                if not 0 <= channel < schedule.nchannels:
                    found.add("S5")
                if (count < 1 or part(a) != part(a + count - 1) or part(b) != part(b + count - 1)
                        or max(a, b) + count > layout.nslots or part(b) == 0
                        or (a - b) % layout.chunks):  # fmt: skip
                    found.add("S3")
                for i in range(count):
                    read.add((src, a + i))
                    found |= {"S2"} if (dst, b + i) in written else set()
                    written.add((dst, b + i))
            found |= {"S7"} if read & before else set()
            before |= written
    return found


def without_row(step: Step, row: int) -> Step:
    return Step(*(column(np.delete(getattr(step, c), row)) for c in Step.__slots__))


def broken(schedule: Schedule, rng: np.random.Generator) -> Schedule:
    """Return `schedule` with one thing changed at random."""
    phases = steps_of(schedule)
    p = int(rng.integers(len(phases)))
    m = int(rng.integers(len(phases[p])))
    step = phases[p][m]
    row, kind = int(rng.integers(len(step.src))), str(rng.choice(
        ["drop", "twice", "src", "dst", "src_slot", "dst_slot", "count", "op", "steps", "channel",
         "moves", "both_slots"]))  # fmt: skip
    columns = {c: getattr(step, c).copy() for c in Step.__slots__}
    if kind == "steps":
        q = int(rng.integers(len(phases)))
        phases[p], phases[q] = phases[q], phases[p]
    elif kind == "moves":
        q = int(rng.integers(len(phases[p])))
        phases[p][m], phases[p][q] = phases[p][q], phases[p][m]
    elif kind == "drop":
        phases[p][m] = without_row(step, row)
    elif kind == "twice":
        phases[p].append(step) if rng.random() < 0.5 else phases.insert(p, phases[p])
    else:
        by = int(rng.choice([-schedule.layout.chunks, -1, 1, schedule.layout.chunks]))
        for name in ("src_slot", "dst_slot") if kind == "both_slots" else (kind,):
            columns[name][row] = 1 - columns[name][row] if kind == "op" else columns[name][row] + by
        phases[p][m] = Step(*(column(c) for c in columns.values()))
    return of_steps(schedule, phases)


def refused(schedule: Schedule) -> str:
    try:
        check(schedule)
    except ScheduleError as error:
        return str(error)
    return ""


@by_name
def test_the_check_refuses_what_breaks_an_invariant_or_gives_a_wrong_result_and_only_that(row):
    """Wrong is what NumPy says of the result; a senseless reduction is wrong even if unused."""
    rng = np.random.default_rng([ord(c) for c in row.name])
    refusals = 0
    for _ in range(MUTANTS):
        n = int(rng.choice([k for k in (2, 3, 4, 6) if suits(row, k)]))
        g = int(rng.choice(divisors(n))) if row.two_level else None
        pieces = int(rng.choice([1, 2])) if row.pieces > 1 else 1
        recipe = recipe_of(n, int(rng.integers(n)), g, pieces, one_ring=bool(rng.random() < 0.7))
        mutant = broken(row.build(recipe), rng)
        violated = slow_violations(mutant)
        wrong = not violated and not all(
            is_right(mutant, rng, placed) and not mixes(mutant, placed) for placed in (False, True)
        )
        message = refused(mutant)
        assert bool(message) == bool(violated or wrong), (n, g, violated, wrong, message)
        refusals += bool(message)
    assert refusals > 0


MUTANTS = 12


def test_ranks_that_reduce_in_different_orders_fail_the_hash_check():
    # Each of three ranks adds the others to its own, nearest first: right sums, other roundings.
    like = replace(TWO, nranks=3, layout=Layout(1, 1, 1, 1))
    kept = [step_of(*((r, r, 0, to) for r in range(3))) for to in (2, 1)]
    turns = [step_of(*((r, (r + k) % 3, 2, 1) for r in range(3)), op=REDUCE) for k in (1, 2)]
    schedule = of_steps(like, [[step] for step in (*kept, *turns)])
    check(schedule)
    assert not check_hashes(schedule, np.random.default_rng(0))
