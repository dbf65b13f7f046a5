"""How often ranks must meet: the level of every row of a schedule, and what others read.

Owns the order that processes keep. A rank runs the rows that arrive at it, level by level; before
level L + 1 ranks meet, so what others wrote or read up to level L is done. Knows no data and no
process. Rows are split to one slot each; S1-S7 hold.

A chain 0 -> 1 -> 2 that broadcasts two pieces takes three steps, but two meets (level 1 and 2):

    step      0           1           2
    piece a   0->1  (1)   1->2  (2)
    piece b               0->1  (1)   1->2  (2)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..check import alias_map
from ..execute import slots_of
from ..schedule import COPY, I32, Schedule, Step

__all__ = ["Order", "order_of"]

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
Columns = tuple[I64, I64, I64, I64, Bools]
"""src, src_slot, dst, dst_slot, reduces: one entry a slot."""


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """Every row in the schedule's order, one slot a row, and the level at which it may run.

    Rows of a step no longer depend on one another: where one read what another writes, the read
    became a row of its own, into a temporary slot behind the layout's.

    nslots : slots of a rank with the temporary ones.
    alias : int64[nranks, nslots], where a slot lies when the call is in place.
    read_next, read_later : whether another rank reads what the row writes; that, or what a later
    row writes there. An output that nobody reads any more may be written where the user wants it.
    staged : bool[nranks, nslots], which slots another rank reads at any time.
    meets : how often ranks meet; levels are 0..meets, and 0 reads nothing of others.
    """

    nslots: int
    alias: I64
    src: I64
    src_slot: I64
    dst: I64
    dst_slot: I64
    reduces: Bools
    read_next: Bools
    read_later: Bools
    level: I64
    staged: Bools
    meets: int

    def awaited(self, rank: int) -> list[list[int]]:
        """Return, per level, the ranks that must have come before `rank` goes on.

        Those it reads from at the level, and those that read at a lower one what it may now
        write anew. Level 1 waits for all: they have read the half of the staging that comes next.
        """
        everyone = [r for r in range(len(self.alias)) if r != rank]
        levels = [[], everyone]
        far = self.src != self.dst
        mine, read = far & (self.dst == rank), far & (self.src == rank)
        for level in range(2, self.meets + 1):
            from_them = self.src[mine & (self.level == level)]
            writes = ((self.dst == rank) & (self.level == level)).any()
            by_them = self.dst[read & (self.level < level)] if writes else self.src[:0]
            levels.append(np.unique(np.concatenate([from_them, by_them])).tolist())
        return levels


def order_of(schedule: Schedule, stream: Iterable[Step]) -> Order:
    """Return the order in which processes may run the steps of `schedule`."""
    n, nslots = schedule.nranks, schedule.layout.nslots
    placed = alias_map(schedule)
    if placed is None:
        placed = np.tile(np.arange(nslots, dtype=np.int32), (n, 1))
    steps, more = _without_hazards(stream, placed, schedule.layout.chunks)
    temporary = np.tile(np.arange(nslots, more), (n, 1))
    alias = np.concatenate([placed.astype(np.int64), temporary], axis=1)
    nslots = more
    outputs = int(schedule.layout.output()), int(schedule.layout.scratch_block())
    nexts, laters = _reads_to_come(steps, n, nslots)
    levels = _levels(steps, laters, alias, outputs)
    columns = [np.concatenate(c) if steps else np.zeros(0, np.int64) for c in zip(*steps)]
    src, src_slot, dst, dst_slot, reduces = columns or [np.zeros(0, np.int64)] * 5
    staged = np.zeros((n, nslots), dtype=bool)
    far = src != dst
    staged[src[far], src_slot[far]] = True
    flags = [np.concatenate(f) if f else np.zeros(0, bool) for f in (nexts, laters)]
    level = np.concatenate(levels) if levels else np.zeros(0, np.int64)
    return Order(
        nslots,
        alias,
        src,
        src_slot,
        dst,
        dst_slot,
        reduces.astype(bool),
        flags[0],
        flags[1],
        level,
        staged,
        max(1, int(level.max(initial=0))),
    )


def _without_hazards(stream: Iterable[Step], alias: I32, k: int) -> tuple[list[Columns], int]:
    """Return steps whose rows read nothing that the same step writes, and slots with temporaries.

    A row that does is split: first read into a temporary slot of the same position, then write
    from there, a step later.
    """
    nslots = alias.shape[1]
    most, steps = 0, []
    for step in stream:
        src, src_slot, dst, dst_slot, op = (c.astype(np.int64) for c in slots_of(step))
        far, reduces = src != dst, op != COPY
        # What others read is a copy made before: only a rank's own reads can be of memory that
        # its input shares with its output.
        read = src * nslots + np.where(far, src_slot, alias[src, src_slot])
        write, aliased = dst * nslots + dst_slot, dst * nslots + alias[dst, dst_slot]
        split = np.where(far, np.isin(read, write), np.isin(read, aliased) & (read != aliased))
        if split.any():
            who = dst[split] * k + src_slot[split] % k
            temporary = nslots + _earlier_equal(who) * k + src_slot[split] % k
            most = max(most, int(temporary.max()) // k + 1 - nslots // k)
            steps.append(
                (src[split], src_slot[split], dst[split], temporary, np.zeros(len(who), bool))
            )
            src, src_slot = src.copy(), src_slot.copy()
            src[split], src_slot[split] = dst[split], temporary
        steps.append((src, src_slot, dst, dst_slot, reduces))
    return steps, nslots + most * k


def _earlier_equal(values: I64) -> I64:
    """Return, for each entry, how many earlier entries have its value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return place


def _reads_to_come(steps: list[Columns], n: int, nslots: int) -> tuple[list[Bools], list[Bools]]:
    """Return, per step, read_next and read_later of its rows."""
    this, ever = np.zeros(n * nslots, dtype=bool), np.zeros(n * nslots, dtype=bool)
    nexts: list[Bools] = []
    laters: list[Bools] = []
    for src, src_slot, dst, dst_slot, _ in reversed(steps):
        write, far = dst * nslots + dst_slot, src != dst
        nexts.append(this[write])
        laters.append(ever[write])
        this[write] = False
        read = (src * nslots + src_slot)[far]
        this[read] = ever[read] = True
    return nexts[::-1], laters[::-1]


def _levels(
    steps: list[Columns],
    laters: list[Bools],
    alias: I64,
    outputs: tuple[int, int],
) -> list[I64]:
    """Return the level of every row, per step."""
    size, nslots = alias.size, alias.shape[1]
    where = (alias + np.arange(len(alias))[:, None] * nslots).ravel()
    written, read_by_others = np.zeros(size, np.int64), np.full(size, -1, np.int64)
    # A rank's own rows keep their order also where input and output share memory.
    own_written, own_read = np.zeros(size, np.int64), np.zeros(size, np.int64)
    levels = []
    for (src, src_slot, dst, dst_slot, _), reads_later in zip(steps, laters):
        far, read, write = src != dst, src * nslots + src_slot, dst * nslots + dst_slot
        straight = ~reads_later
        straight &= (dst_slot >= outputs[0]) & (dst_slot < outputs[1])
        level = np.where(far, written[read] + 1, own_written[where[read]])
        # The user's memory is written only when it is known that all ranks make this call; what
        # others read of the slot lies elsewhere.
        level = np.maximum(level, np.where(straight, 1, read_by_others[write] + 1))
        level = np.maximum(level, np.maximum(own_written[where[write]], own_read[where[write]]))
        np.maximum.at(read_by_others, read[far], level[far])
        np.maximum.at(own_read, where[read[~far]], level[~far])
        written[write] = own_written[where[write]] = level
        levels.append(level)
    return levels
