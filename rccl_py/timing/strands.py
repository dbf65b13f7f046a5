"""Long pipelines of single steps (chains): sums over a window of stages that slides by one.

Owns the maxima over links, and over ranks, while a window slides. A link of a chain is used in a
few stages only, so its load is a few steps up and down, not a column of all stages::

    stages that use a link    2   5        window of 4: it carries
    step                      0 1 2 3 4 5 6 7 8 9
                                  1 1 1 2 1 1 1        five segments, whatever the length

Knows loads of stages; no schedule, no size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from .windows import link_sorts

if TYPE_CHECKING:
    from .loads import Load

__all__ = ["LONGEST", "Strands", "strands"]

I64 = npt.NDArray[np.int64]

LONGEST = 256
"""Stages of a pipeline that is better taken as columns (timing.windows)."""


@dataclass(frozen=True, eq=False, slots=True)
class _Uses:
    """Who is used in which stage, in order of who: int64[e] each, and how much: float64[q, e]."""

    who: I64
    stage: I64
    much: F64

    def segments(self, pieces: int) -> tuple[I64, I64, I64, F64]:
        """Return (who, first step, step after, much) of the spans in which a sum stays the same."""
        who = np.concatenate([self.who, self.who])
        time = np.concatenate([self.stage, self.stage + pieces])
        order = np.lexsort((time, who))
        who, time = who[order], time[order]
        # What comes goes again: a running sum over all of them starts at 0 with each of them.
        much = np.cumsum(np.concatenate([self.much, -self.much], axis=1)[:, order], axis=1)
        kept = np.flatnonzero((who[:-1] == who[1:]) & (time[:-1] < time[1:]))
        return who[kept], time[kept], time[kept + 1], much[:, kept]


@dataclass(frozen=True, eq=False, slots=True)
class Strands:
    """The stages of a long pipeline. used, at, of: links, as in timing.windows.Lumps.

    total: float64[m], slots on a link of each sort, of one piece. latency: float64[3, stages] s.
    pace: float64[3, m].
    """

    used: I64
    at: I64
    of: I64
    total: F64
    latency: F64
    pace: F64
    stages: int
    by_link: _Uses
    by_rank: _Uses

    def links(self, pieces: int) -> tuple[F64, I64]:
        """Return (s a byte, link) of the busiest link in each step: float64, int64[3, steps]."""
        who, first, after, much = self.by_link.segments(pieces)
        steps = self.stages + pieces - 1
        found = [_covering(first, after, much[0] * row[who], steps, who) for row in self.pace]
        most, at = (np.stack(column) for column in zip(*found))
        return most, self.at[at]

    def ranks(self, pieces: int) -> F64:
        """Return the most a rank does in each step: float64[5, steps]."""
        who, first, after, much = self.by_rank.segments(pieces)
        steps = self.stages + pieces - 1
        return np.stack([_covering(first, after, row, steps, who)[0] for row in much])

    def largest(self, rows: F64, pieces: int) -> F64:
        """Return the largest of the stages at work in each step: float64[q, steps]."""
        first = np.arange(self.stages)
        steps = self.stages + pieces - 1
        return np.stack([_covering(first, first + pieces, row, steps, first)[0] for row in rows])


def _covering(first: I64, after: I64, value: F64, steps: int, who: I64) -> tuple[F64, I64]:
    """Return the largest value over each step, and whose: float64[steps], int64[steps].

    Segment i covers first[i] to after[i] - 1; of equals the lower number is taken. A segment is two
    spans of 2^k steps; then spans hand their value on to their halves.
    """
    order = np.lexsort((-who, value))  # the last to write a place is the largest
    first, after, value, who = first[order], after[order], value[order], who[order]
    level = np.frexp((after - first).astype(np.float64))[1] - 1
    top = int(level.max(initial=0))
    most, at = np.zeros((top + 1, steps)), np.zeros((top + 1, steps), dtype=np.int64)
    low = np.concatenate([first, after - (1 << level)])
    twice = np.argsort(np.concatenate([np.arange(len(first))] * 2), kind="stable")
    place = (np.concatenate([level, level]) * steps + low)[twice]
    most.ravel()[place] = np.concatenate([value, value])[twice]
    at.ravel()[place] = np.concatenate([who, who])[twice]
    for k in range(top, 0, -1):
        for shift in (0, 1 << (k - 1)):
            there = slice(shift, steps)
            value, own = most[k, : steps - shift], at[k, : steps - shift]
            more = (value > most[k - 1, there]) | (
                (value == most[k - 1, there]) & (own < at[k - 1, there])
            )
            most[k - 1, there][more] = value[more]
            at[k - 1, there][more] = own[more]
    return most[0], at[0]


def strands(fabric: Fabric, stages: list[Load]) -> Strands:
    """Return the strands of some stages."""
    used, at, of = link_sorts(fabric, stages)
    sort = np.full(fabric.nlinks, -1, dtype=np.int64)
    sort[at] = np.arange(len(at))
    links = _uses([(sort[load.at], load.slots[None, :]) for load in stages])
    total = np.zeros(len(at))
    total += np.bincount(links.who, weights=links.much[0], minlength=len(at))
    latency = np.stack([load.latency for load in stages], axis=1)
    ranks = _uses([(load.who.astype(np.int64), load.ranks) for load in stages])
    return Strands(used, at, of, total, latency, fabric.pace[:, at], len(stages), links, ranks)


def _uses(stages: list[tuple[I64, F64]]) -> _Uses:
    """Return who is used when; those numbered -1 are left out."""
    stage = np.repeat(np.arange(len(stages)), [len(who) for who, _ in stages])
    who = np.concatenate([who for who, _ in stages])
    much = np.concatenate([much for _, much in stages], axis=1)
    kept = np.flatnonzero(who >= 0)
    return _Uses(who[kept], stage[kept], much[:, kept])
