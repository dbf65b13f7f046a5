"""Streams keep their order and touch when they are put together; columns stay int32."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers import SIZES, built, step_of, steps_of, suits
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.algorithms import ALGORITHMS
from rccl_py.schedule import (
    COPY,
    REDUCE,
    Layout,
    Move,
    Phase,
    Step,
    at,
    pipeline,
    rows,
    shifted,
    together,
)

Row = tuple[int, int, int, int, int, int]


def tagged(tag: int, steps: int, moves: int = 1) -> Phase:
    """Return a phase whose every row says which phase, move and repetition it is."""

    def make(m: int) -> Move:
        ends = rows([tag, tag], [m, m], count=[1, 2], op=[COPY, REDUCE], channel=m)
        return Move(ends, lambda s: (np.array([s, s + 1], np.int32), np.array([s, s], np.int32)))

    return Phase(tuple(make(m) for m in range(moves)), steps)


def pause(steps: int) -> Phase:
    return Phase((), steps)


def listed(phases: list[Phase]) -> list[list[Row]]:
    """Return the rows of every repetition, the naive way."""
    names = ("src", "dst", "src_slot", "dst_slot", "count", "op")
    found = []
    for phase in phases:
        for s in range(phase.steps):
            steps = [move.step(s) for move in phase.moves]
            found.append([row for step in steps
                          for row in zip(*(getattr(step, c).tolist() for c in names))])  # fmt: skip
    return found


def slow_together(streams: list[list[Phase]]) -> list[list[Row]]:
    """Return what a step of each at a time gives; repetitions in which nothing moves vanish."""
    lists = [listed(s) for s in streams]
    longest = max((len(s) for s in lists), default=0)
    merged = [[row for s in lists if t < len(s) for row in s[t]] for t in range(longest)]
    return [step for step in merged if step]


streams = st.lists(
    st.lists(st.builds(lambda steps, moves: (steps, moves), st.integers(1, 4), st.integers(0, 2)),
             max_size=4),
    max_size=4,
)  # fmt: skip


def phases_from(shape: list[tuple[int, int]], first_tag: int) -> list[Phase]:
    return [tagged(first_tag + i, steps, moves) if moves else pause(steps)
            for i, (steps, moves) in enumerate(shape)]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(streams)
def test_together_runs_a_step_of_each_stream_at_a_time_in_order(shapes):
    made = [phases_from(shape, 10 * i) for i, shape in enumerate(shapes)]
    assert listed(list(together(*made))) == slow_together(made)


@settings(deadline=None, max_examples=60)
@given(streams)
def test_together_names_the_single_phases_that_run_side_by_side(shapes):
    made = [phases_from(shape, 10 * i) for i, shape in enumerate(shapes)]
    for phase in together(*made):
        own = [m.rows for part in phase.made_of for m in part.moves]
        assert [id(r) for r in own] == [id(m.rows) for m in phase.moves]


@settings(deadline=None, max_examples=60)
@given(streams.map(lambda s: s[0] if s else []), st.integers(1, 5), st.integers(0, 7),
       st.integers(0, 9))  # fmt: skip
def test_a_pipeline_starts_each_piece_one_step_later_and_a_stride_on(shape, pieces, stride, first):
    stages = phases_from(shape, 0)
    pieces_listed = []
    for p in range(pieces):
        move = first + p * stride
        pieces_listed.append([[]] * p + [
            [(src, dst, a + move, b + move, count, op) for src, dst, a, b, count, op in step]
            for step in listed(stages)
        ])  # fmt: skip
    longest = max(len(s) for s in pieces_listed)
    wanted = [[row for s in pieces_listed if t < len(s) for row in s[t]] for t in range(longest)]
    found = listed(list(pipeline(iter(stages), pieces, stride, first)))
    assert found == [step for step in wanted if step]


@pytest.mark.parametrize("by", [0, 1, 6])
def test_shifted_adds_to_every_slot_and_keeps_the_rows_themselves(by):
    stages = [tagged(0, 3), tagged(1, 1, 2)]
    moved = list(shifted(stages, by))
    wanted = [
        [(a, b, c + by, d + by, e, f) for a, b, c, d, e, f in step] for step in listed(stages)
    ]
    assert listed(moved) == wanted
    assert all(new.rows is old.rows for p, q in zip(moved, stages)
               for new, old in zip(p.moves, q.moves))  # fmt: skip


def test_together_of_nothing_is_nothing():
    assert list(together()) == [] and list(together([], [])) == []


def test_pauses_alone_take_no_step():
    assert list(together([pause(3)], [pause(1)])) == []


def test_after_leaves_out_the_first_repetitions():
    move = tagged(0, 5).moves[0]
    assert [move.after(2).step(s).src_slot.tolist() for s in range(3)] == [
        move.step(s).src_slot.tolist() for s in range(2, 5)
    ]


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda a: f"{a.collective}/{a.name}")
@pytest.mark.parametrize("n", [3, 8])
def test_every_column_is_read_only_int32_of_one_length(row, n):
    if not suits(row, n):
        pytest.skip(f"{row.name} needs {row.needs}")
    for step in built(row.collective, row.name, n, n - 1, 1 if row.two_level else None):
        columns = [getattr(step, c) for c in type(step).__slots__]
        assert {(c.dtype.str[1:], c.shape) for c in columns} == {("i4", (len(step.src),))}
        assert not any(c.flags.writeable for c in columns)


@pytest.mark.parametrize("value", [7, [7, 7, 7], np.full(3, 7, dtype=np.int64)])
def test_rows_repeats_scalars_and_copies_arrays_to_int32(value):
    made = rows([0, 1, 2], value, count=value)
    assert made.dst.tolist() == made.count.tolist() == [7, 7, 7]
    assert made.dst.dtype == np.int32 and not made.dst.flags.writeable


def test_rows_are_not_done_by_a_switch_unless_they_say_so():
    made = rows([0, 1], [1, 0])
    assert not made.switched and rows([0, 1], [1, 0], switched=True).switched
    # What a switch does is what the ranks would: a step does not tell.
    assert "switched" not in Step.__slots__


def test_columns_do_not_follow_a_later_change_of_the_array_they_came_from():
    ranks = np.arange(3, dtype=np.int32)
    made, move = rows(ranks, ranks), at(rows(0, [0, 1, 2]), ranks, ranks)
    ranks[:] = 9
    assert made.src.tolist() == move.step(0).src_slot.tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_rows_have_the_length_of_the_array_they_are_given(length):
    one_end = rows(0, np.arange(length))
    columns = [getattr(one_end, c) for c in ("src", "dst", "count", "op", "channel")]
    assert {len(c) for c in columns} == {length} and one_end.size == length


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "collective, name",
    [("allreduce", "ring"), ("allreduce", "tree"), ("alltoall", "bruck"), ("gather", "tree")],
)
def test_iterating_twice_gives_the_same_steps(collective, name, n):
    schedule = built(collective, name, n, 0, pieces=1)
    first, second = ([listed_step(x) for x in schedule] for _ in range(2))
    assert first == second


def listed_step(step) -> list[list[int]]:
    return [getattr(step, c).tolist() for c in type(step).__slots__]


def test_iterating_a_schedule_runs_phases_repetitions_and_moves_in_that_order():
    schedule = built("allreduce", "direct-twoshot", 4)
    flat = [step for together_ in steps_of(schedule) for step in together_]
    assert [listed_step(s) for s in schedule] == [listed_step(s) for s in flat]


def test_steps_are_written_by_hand_as_rows():
    step = step_of((0, 1, 2, 3), (1, 0, 2, 5, 2, REDUCE))
    assert step.count.tolist() == [1, 2] and step.op.tolist() == [COPY, REDUCE]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))
def test_a_layout_puts_input_output_and_scratch_blocks_one_after_another(k, i, o, s):
    layout = Layout(k, i, o, s)
    first = [int(layout.input(b)) for b in range(i)] + [int(layout.output(b)) for b in range(o)]
    first += [int(layout.scratch_block(b)) for b in range(s)]
    assert first == [k * b for b in range(i + o + s)]
    assert layout.nslots == k * (i + o + s)


@pytest.mark.parametrize("kind", ["input", "output", "scratch_block"])
def test_a_layout_takes_arrays_of_blocks(kind):
    layout = Layout(3, 2, 2, 2)
    find = getattr(layout, kind)
    both = find(np.array([0, 1]))
    assert both.dtype == np.int32 and both.tolist() == [int(find(0)), int(find(1))]


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
@pytest.mark.parametrize("elements", [0, 1, 2, 5, 16])
def test_positions_of_a_block_cover_every_element_once(chunks, elements):
    ranges = [set(range(c * elements // chunks, (c + 1) * elements // chunks))
              for c in range(chunks)]  # fmt: skip
    assert set().union(*ranges) == set(range(elements))
    assert not any(a & b for a, b in combinations(ranges, 2))
