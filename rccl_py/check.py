"""The one door every schedule passes: invariants S1-S7, and the proof that it does its collective.

Owns validity. Knows no fabric and no time. A message names the invariant, the step and the row.
The proof runs the schedule (rccl_py.execute) on symbolic values: which part a slot holds, and
which ranks have contributed to it; nothing twice, nothing missing, nothing of another part.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from .collectives import COLLECTIVES, Collective
from .errors import ScheduleError
from .execute import execute, slots_of
from .schedule import COPY, I32, REDUCE, Layout, Phase, Schedule, Step

__all__ = ["alias_map", "check", "check_hashes", "check_steps"]

U64 = npt.NDArray[np.uint64]

_CELLS = 1 << 20  # words of a result compared at a time: bounds memory, not results


def _fail(schedule: Schedule, rule: str, where: str, what: str) -> ScheduleError:
    return ScheduleError(
        f"{schedule.collective}/{schedule.algorithm} on {schedule.nranks} ranks "
        f"breaks {rule} at {where}: {what}"
    )


def _first(bad: npt.NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(bad)[0])


def _check_columns(schedule: Schedule, step: Step, where: str) -> None:
    columns = {name: getattr(step, name) for name in Step.__slots__}
    for name, column in columns.items():
        what = ""
        if column.dtype != np.int32 or column.ndim != 1 or column.shape != step.src.shape:
            what = f"is {column.dtype}{column.shape}, expected int32 of length {step.src.size}"
        elif column.flags.writeable:
            what = "can be written"
        if what:
            raise _fail(schedule, "S4", where, f"column {name} {what}")
    n, layout = schedule.nranks, schedule.layout
    limits = (("src", n), ("dst", n), ("src_slot", layout.nslots), ("dst_slot", layout.nslots))
    for name, limit in limits:
        bad = (columns[name] < 0) | (columns[name] >= limit)
        if bad.any():
            raise _fail(
                schedule,
                "S1",
                where,
                f"row {_first(bad)} has {name} "
                f"{columns[name][_first(bad)]}, expected 0..{limit - 1}",
            )
    bad = (step.op != COPY) & (step.op != REDUCE)
    if bad.any():
        raise _fail(schedule, "S1", where, f"row {_first(bad)} has op {step.op[_first(bad)]}")
    bad = (step.channel < 0) | (step.channel >= schedule.nchannels)
    if bad.any():
        raise _fail(
            schedule,
            "S5",
            where,
            f"row {_first(bad)} has channel {step.channel[_first(bad)]} of {schedule.nchannels}",
        )


def _range_of(layout: Layout, slot: I32) -> npt.NDArray[np.integer]:
    """Return 0 for input, 1 for output, 2 for scratch."""
    ends = np.array([layout.inputs, layout.inputs + layout.outputs]) * layout.chunks
    return np.searchsorted(ends, slot, side="right")


def _check_ranges(schedule: Schedule, step: Step, where: str) -> None:
    layout = schedule.layout
    if (step.count < 1).any():
        raise _fail(schedule, "S3", where, f"row {_first(step.count < 1)} moves no slots")
    for name, slot in (("src", step.src_slot), ("dst", step.dst_slot)):
        last = slot + step.count - 1
        bad = (last >= layout.nslots) | (_range_of(layout, slot) != _range_of(layout, last))
        if bad.any():
            row = _first(bad)
            raise _fail(
                schedule,
                "S3",
                where,
                f"row {row}: {name} slots {slot[row]}..{last[row]} leave their layout range",
            )
    bad = (step.src_slot - step.dst_slot) % layout.chunks != 0
    if bad.any():
        raise _fail(schedule, "S3", where, f"row {_first(bad)} changes the position of a chunk")
    into_input = _range_of(layout, step.dst_slot) == 0
    if into_input.any():
        raise _fail(schedule, "S3", where, f"row {_first(into_input)} writes the input")


def _shape(phase: Phase) -> tuple[int, int]:
    return phase.steps, len(phase.moves)


def check_steps(schedule: Schedule) -> int:
    """Check S1-S7 on every step and return the number of rows; raise ScheduleError otherwise."""
    total = 0
    for p, (first, second) in enumerate(zip_longest(schedule.phases(), schedule.phases())):
        if first is None or second is None or _shape(first) != _shape(second):
            raise _fail(schedule, "S6", f"phase {p}", "iterating twice gives different phases")
        for s in range(first.steps):
            written: set[int] = set()
            for k, (move, again) in enumerate(zip(first.moves, second.moves)):
                step, where = move.step(s), f"phase {p} repetition {s} move {k}"
                _check_columns(schedule, step, where)
                _check_ranges(schedule, step, where)
                _check_repeat(schedule, step, again.step(s), where)
                _check_writes(schedule, step, written, where)
                total += len(step.src)
    return total


def _check_repeat(schedule: Schedule, step: Step, again: Step, where: str) -> None:
    for name in Step.__slots__:
        one, other = getattr(step, name), getattr(again, name)
        if one.shape != other.shape:
            raise _fail(schedule, "S6", where, "iterating twice gives another number of rows")
        bad = one != other
        if bad.any():
            what = f"iterating twice gives row {_first(bad)} another {name}"
            raise _fail(schedule, "S6", where, what)


def _row(step: Step, slots: npt.NDArray[np.bool_], k: int) -> int:
    """Return the row behind the k-th of the chosen entries of slots_of(step)."""
    return int(np.repeat(np.arange(len(step.count)), step.count)[np.flatnonzero(slots)[k]])


def _check_writes(schedule: Schedule, step: Step, written: set[int], where: str) -> None:
    src, src_slot, dst, dst_slot, _ = slots_of(step)
    nslots = schedule.layout.nslots
    reads = src.astype(np.int64) * nslots + src_slot
    writes = dst.astype(np.int64) * nslots + dst_slot
    places, counts = np.unique(writes, return_counts=True)
    if (counts > 1).any():
        place = int(places[_first(counts > 1)])
        both = " and ".join(str(_row(step, writes == place, k)) for k in (0, 1))
        what = f"rows {both} write slot {place % nslots} of rank {place // nslots}"
        raise _fail(schedule, "S2", where, what)
    stale = written.intersection(reads.tolist()) if written else set()
    if stale:
        place = min(stale)
        what = f"row {_row(step, reads == place, 0)} reads slot {place % nslots} of rank "
        what += f"{place // nslots}, which an earlier move of the repetition wrote"
        raise _fail(schedule, "S7", where, what)
    written.update(writes.tolist())


def alias_map(schedule: Schedule) -> npt.NDArray[np.int32] | None:
    """Return int32[nranks, nslots], where each slot lies when the call is in place; None if never.

    In place the smaller buffer is one block of the larger, or both are the same buffer.
    """
    spec, layout, n = COLLECTIVES[schedule.collective], schedule.layout, schedule.nranks
    place = np.tile(np.arange(layout.nslots, dtype=np.int32), (n, 1))
    one = np.arange(layout.chunks, dtype=np.int32)
    same_size = spec.inputs == spec.outputs
    for rank in range(n):
        block = spec.in_place(rank, schedule.root)
        if block == -1:
            return None
        if block is None and not same_size:
            continue  # a rank that has only one of the two buffers
        if layout.inputs > layout.outputs:
            place[rank, layout.output() + one] = layout.input(block or 0) + one
        else:
            place[rank, layout.input() + one] = layout.output(block or 0) + one
    return place


def _symbols(schedule: Schedule, spec: Collective) -> U64:
    """Return the start: uint64[n, nslots, 1 + words]; column 0 is part * chunks + position + 1."""
    n, layout = schedule.nranks, schedule.layout
    words = -(-n // 64)
    buf = np.zeros((n, layout.nslots, 1 + words), dtype=np.uint64)
    starts = spec.starts(n, schedule.root)
    if starts.shape[1] != layout.inputs:
        raise ScheduleError(
            f"{schedule.algorithm}: the layout has {layout.inputs} input blocks, "
            f"{spec.name} has {starts.shape[1]}"
        )
    position = np.arange(layout.chunks)
    identity = starts[:, :, None] * layout.chunks + position + 1
    held = np.broadcast_to(starts[:, :, None] >= 0, identity.shape).reshape(n, -1)
    filled = np.where(held, identity.reshape(n, -1), 0)
    buf[:, : filled.shape[1], 0] = filled
    rank = np.arange(n)
    bit = (np.uint64(1) << (rank % 64).astype(np.uint64))[:, None]
    for word in range(words):
        mine = (rank // 64 == word)[:, None] & held
        buf[:, : filled.shape[1], 1 + word] = np.where(mine, bit, np.uint64(0))
    return buf


def _merge(schedule: Schedule) -> Any:
    def merge(there: U64, arriving: U64) -> U64:
        if (there[..., 0] != arriving[..., 0]).any():
            raise _fail(schedule, "its goal", "a reduction", "different parts are combined")
        if (there[..., 1:] & arriving[..., 1:]).any():
            raise _fail(schedule, "its goal", "a reduction", "a rank is counted twice")
        merged: U64 = there.copy()
        merged[..., 1:] |= arriving[..., 1:]
        return merged

    return merge


def _placed(step: Step, place: npt.NDArray[np.int32]) -> Step:
    """Return the step with each slot where it lies when the call is in place."""
    src, src_slot, dst, dst_slot, op = slots_of(step)
    one = np.ones(len(src), dtype=np.int32)
    return Step(src, dst, place[src, src_slot], place[dst, dst_slot], one, op, one)


def _in_place(start: U64, place: npt.NDArray[np.int32]) -> U64:
    """Return the values an in-place call starts with, from those out of place."""
    inside = np.zeros_like(start)
    rank, slot = np.nonzero(start[..., 0])
    inside[rank, place[rank, slot]] = start[rank, slot]
    return inside


def _check_goal(
    schedule: Schedule, spec: Collective, buf: U64, alias: npt.NDArray[np.int32] | None
) -> None:
    n, layout = schedule.nranks, schedule.layout
    goals = spec.goals(n, schedule.root)
    who, position = _contributors(schedule, spec, goals), np.arange(layout.chunks)
    ranks, blocks = np.nonzero(goals >= 0)
    step = max(1, _CELLS // (layout.chunks * buf.shape[2]))
    for start in range(0, len(ranks), step):
        rank, block = ranks[start : start + step], blocks[start : start + step]
        part = goals[rank, block]
        slot = layout.output(block)[:, None] + position
        got = buf[rank[:, None], slot if alias is None else alias[rank[:, None], slot]]
        bad = got[..., 0] != part[:, None] * layout.chunks + position + 1
        bad |= (got[..., 1:] != who[0 * part if spec.reduces else part][:, None]).any(axis=2)
        if bad.any():
            first = _first(bad.any(axis=1))
            what = f"output block {block[first]} does not hold part {part[first]} with every "
            raise _fail(schedule, "its goal", f"rank {rank[first]}", what + "contribution")


def _contributors(schedule: Schedule, spec: Collective, goals: npt.NDArray[np.integer]) -> U64:
    """Return the ranks behind each part as bits: uint64[parts, words], one for all of a sum."""
    n = schedule.nranks
    if spec.reduces:
        origins, part = np.arange(n), np.zeros(n, dtype=np.int64)
    else:
        part = np.arange(int(goals.max()) + 1)
        origins = np.array([spec.origin(int(p), n, schedule.root) for p in part], dtype=np.int64)
    words = np.zeros((int(part.max()) + 1, -(-n // 64)), dtype=np.uint64)
    bit = np.uint64(1) << (origins % 64).astype(np.uint64)
    np.bitwise_or.at(words, (part, origins // 64), bit)
    return words


def _check_absent(schedule: Schedule, spec: Collective, buf: U64) -> None:
    """Refuse writes to the outputs of ranks that have none."""
    layout, absent = schedule.layout, spec.goals(schedule.nranks, schedule.root) < 0
    for rank in np.flatnonzero(absent.any(axis=1)):
        slot = layout.output(np.flatnonzero(absent[rank]))[:, None] + np.arange(layout.chunks)
        if buf[rank, slot].any():
            what = "it has no output, yet one is written"
            raise _fail(schedule, "its goal", f"rank {rank}", what)


def check(schedule: Schedule, *, steps: bool = True) -> None:
    """Prove that `schedule` does its collective, out of place and (where defined) in place.

    Raises ScheduleError naming the invariant or the output that fails. `steps` False leaves out
    S1-S7 and proves only the result.
    """
    if steps:
        check_steps(schedule)
    spec, merge = COLLECTIVES[schedule.collective], _merge(schedule)
    buf, place = _symbols(schedule, spec), alias_map(schedule)
    inside = None if place is None else _in_place(buf, place)
    refused: ScheduleError | None = None
    for step in schedule:
        execute((step,), buf, merge)
        if place is None or inside is None or refused is not None:
            continue
        try:
            execute((_placed(step, place),), inside, merge)
        except ScheduleError as error:  # told after what is wrong out of place
            refused = error
    _check_goal(schedule, spec, buf, None)
    _check_absent(schedule, spec, buf)
    if refused is not None:
        raise refused
    if inside is not None:
        _check_goal(schedule, spec, inside, place)


def check_hashes(schedule: Schedule, rng: np.random.Generator) -> bool:
    """Return whether all ranks that receive a part reduce it in one order, so agree to the bit."""
    spec, n, layout = COLLECTIVES[schedule.collective], schedule.nranks, schedule.layout
    buf = np.zeros((n, layout.nslots), dtype=np.uint64)
    filled = layout.inputs * layout.chunks
    buf[:, :filled] = rng.integers(1, 2**63, size=(n, filled), dtype=np.uint64)

    def mix(there: U64, arriving: U64) -> U64:
        with np.errstate(over="ignore"):
            scrambled: U64 = arriving ^ (arriving >> np.uint64(29))
            mixed: U64 = there * np.uint64(0x9E3779B97F4A7C15) + scrambled
        return mixed

    execute(schedule, buf, mix)
    goals = spec.goals(n, schedule.root)
    seen: dict[int, U64] = {}
    for rank in range(n):
        for block, part in enumerate(goals[rank]):
            slot = layout.output(block) + np.arange(layout.chunks)
            if part >= 0 and not np.array_equal(
                seen.setdefault(int(part), buf[rank, slot]), buf[rank, slot]
            ):
                return False
    return True
