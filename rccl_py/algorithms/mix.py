"""A mix: several algorithms side by side, each on its share of every block.

Owns how schedules are put into one. A share is some of the positions of every block, so that the
parts touch different slots; the slots of a part are spread over its positions. Knows no algorithm:
who asks says how each part is built. allgather, 3 shares, of 4 ranks the blocks of rank 0::

    positions   0 1 2 3 4 5 | 6 7 8
                ring, 2     | direct, 1, in three turns of a third each

A part of few steps takes turns, each on a part of its share, so that its load lies under all steps
of the others and not under the first. What only copies within ranks comes first, and last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import gcd, lcm

import numpy as np

from ..schedule import (
    I32,
    Layout,
    Move,
    Outline,
    Phase,
    Pipeline,
    Rows,
    Schedule,
    shifted,
    together,
)
from .recipe import Part, Recipe, scheduled

__all__ = ["mix"]

Build = Callable[[Recipe], Schedule]


def mix(collective: str, build: Callable[[str, str], Build], recipe: Recipe) -> Schedule:
    """Return the schedule that does each share of recipe.mix by its algorithm.

    build(collective, name): how an algorithm makes its schedule.
    """
    parts = recipe.mix
    assert parts is not None  # the registry offers this only where there is a mix
    own = [
        build(collective, p.algorithm)(replace(recipe, pieces=p.pieces, mix=None, memo={}))
        for p in parts
    ]
    unit = _unit(parts, [s.layout.chunks for s in own])
    layout = Layout(
        unit * sum(p.share for p in parts),
        own[0].layout.inputs,
        own[0].layout.outputs,
        max(s.layout.scratch for s in own),
    )
    first = np.cumsum([0, *(p.share * unit for p in parts)]).tolist()
    lanes = np.cumsum([0, *(s.nchannels for s in own)]).tolist()
    placed = [
        _Placed(s, layout.chunks, at, p.share * unit // (s.layout.chunks * p.turns), p.turns, lane)
        for p, s, at, lane in zip(parts, own, first, lanes)
    ]

    def phases() -> Iterator[Phase]:
        told = [p.told() for p in placed]
        yield from _at_once([head for head, _, _ in told])
        yield from together(*(p.turned(body) for p, (_, body, _) in zip(placed, told)))
        yield from _at_once([tail for _, _, tail in told])

    return scheduled(collective, "mix", recipe, layout, lanes[-1], phases)


def _at_once(streams: list[list[Phase]]) -> Iterator[Phase]:
    """Yield the first phases of all streams as one, then the second ones, and so on."""
    for same in zip_longest(*streams, fillvalue=Phase(())):
        yield Phase(tuple(m for phase in same for m in phase.moves))


def _unit(parts: Iterable[Part], chunks: list[int]) -> int:
    """Return the positions of one share: the least that each part's slots divide evenly."""
    need = [c * p.turns // gcd(c * p.turns, p.share) for p, c in zip(parts, chunks)]
    return lcm(*need)


@dataclass(frozen=True, eq=False, slots=True)
class _Placed:
    """One part: its schedule, and where its slots lie in blocks of `chunks` positions.

    first: its first position; wide: positions a slot of it takes; lane: its first channel.
    """

    schedule: Schedule
    chunks: int
    first: int
    wide: int
    turns: int
    lane: int

    def told(self) -> tuple[list[Phase], list[Phase | Pipeline], list[Phase]]:
        """Return what it consists of: copies before, what crosses links, copies after."""
        phases = self.schedule.phases
        every = list(phases.parts() if isinstance(phases, Outline) else phases())
        crossing = [k for k, part in enumerate(every) if not _stays(part)]
        start, end = (crossing[0], crossing[-1] + 1) if crossing else (len(every), len(every))
        head, tail = ([p for p in some if isinstance(p, Phase)]
                      for some in (every[:start], every[end:]))  # fmt: skip
        return self._whole(head), every[start:end], self._whole(tail)

    def _whole(self, phases: list[Phase]) -> list[Phase]:
        """Return copies of all turns at once."""
        by_turn = [list(self._shifted(self._moved(phases, {}), turn)) for turn in range(self.turns)]
        return list(_at_once(by_turn))

    def turned(self, body: list[Phase | Pipeline]) -> Iterator[Phase]:
        """Yield what crosses links, turn after turn; the rows of all turns are the same objects."""
        known: dict[int, tuple[Rows, Rows]] = {}
        placed = [self._placed(part, known) for part in body]
        once = list(chain.from_iterable(placed))
        for turn in range(self.turns):
            yield from self._shifted(once, turn)

    def _shifted(self, phases: Iterable[Phase], turn: int) -> Iterator[Phase]:
        return shifted(phases, turn * self.schedule.layout.chunks * self.wide)

    def _placed(
        self, part: Phase | Pipeline, known: dict[int, tuple[Rows, Rows]]
    ) -> Iterable[Phase]:
        if isinstance(part, Phase):
            return self._moved([part], known)
        own = self.schedule.layout.chunks
        blocks, rest = divmod(part.first, own)
        stages = tuple(self._moved(shifted(part.stages, rest), known))
        return replace(part, stages=stages, stride=part.stride * self.wide,
                       first=blocks * self.chunks)  # fmt: skip

    def _moved(
        self, phases: Iterable[Phase], known: dict[int, tuple[Rows, Rows]]
    ) -> Iterator[Phase]:
        """Yield phases with their rows where they belong; rows over several blocks are split."""
        for phase in phases:
            cut = [self._cut(m, s) for m in phase.moves for s in range(phase.steps)]
            if not any(c is not None for c in cut):
                yield Phase(tuple(self._as_is(m, known) for m in phase.moves), phase.steps)
                continue
            for s in range(phase.steps):
                yield Phase(tuple(self._split(m, s) for m in phase.moves))

    def _cut(self, move: Move, s: int) -> I32 | None:
        """Return how many blocks each row touches at repetition s, None where it is one each."""
        layout, own = self.schedule.layout, self.schedule.layout.chunks
        most = int(move.rows.count.max(initial=1))
        if most == 1 or max(layout.inputs, layout.outputs, layout.scratch) == 1:
            return None
        src, _ = move.slots(s)
        blocks = (src % own + move.rows.each.count + own - 1) // own
        return blocks if (blocks > 1).any() else None

    def _as_is(self, move: Move, known: dict[int, tuple[Rows, Rows]]) -> Move:
        rows, slots = move.rows, move.slots
        if id(rows) not in known:
            known[id(rows)] = rows, self._lane(rows, rows.count)
        return Move(known[id(rows)][1], lambda s: self._slots(*slots(s)))

    def _lane(self, rows: Rows, count: I32) -> Rows:
        count, channel = count * np.int32(self.wide), rows.channel + np.int32(self.lane)
        for column in (rows.src, rows.dst, count, rows.op, channel):
            column.flags.writeable = False  # S4
        return replace(rows, count=count, channel=channel)

    def _slots(self, src: I32, dst: I32) -> tuple[I32, I32]:
        own = self.schedule.layout.chunks
        one, two = (
            (slot // own * self.chunks + self.first + slot % own * self.wide).astype(np.int32)
            for slot in (src, dst)
        )
        return one, two

    def _split(self, move: Move, s: int) -> Move:
        """Return a move at one repetition as rows inside blocks."""
        own, rows = self.schedule.layout.chunks, move.rows.each
        src, dst = move.slots(s)
        blocks = (src % own + rows.count + own - 1) // own
        of = np.repeat(np.arange(len(src)), blocks)
        number = np.arange(len(of)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        gone = np.where(number, number * own - src[of] % own, 0)
        left = np.minimum(rows.count[of] - gone, own - (src[of] + gone) % own)
        columns = {c: getattr(rows, c)[of] for c in ("src", "dst", "op", "channel")}
        made = self._lane(Rows(**columns, count=rows.count, switched=rows.switched),
                          left.astype(np.int32))  # fmt: skip
        pair = self._slots(src[of] + gone, dst[of] + gone)
        return Move(made, lambda _s: pair)


def _stays(part: Phase | Pipeline) -> bool:
    return isinstance(part, Phase) and all((m.rows.src == m.rows.dst).all() for m in part.moves)
