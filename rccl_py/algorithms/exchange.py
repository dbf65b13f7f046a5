"""Turns of an allgather, and the reduce-scatter that is the same turns the other way round.

Owns Turn, the two ways to play turns, and the turns of pairs that swap what they hold. Knows no
collective's buffers: a caller says which slots. An allgather hands every chunk down a tree from
its owner; backwards in time, with every arrow turned, the same trees bring all contributions to
the owner. So one list of turns makes both halves::

    allgather, 4 ranks                     reduce-scatter

    turn 0   0 -> 1  chunk 0               turn 1   1 -> 0  partial sum of chunk 0
    turn 1   1 -> 3  chunk 0               turn 0   3 -> 1  partial sum of chunk 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import ScheduleError
from ..schedule import REDUCE, Phase, Rows, at, rows
from .flat import Ints

__all__ = ["Turn", "Turns", "backwards", "forwards", "nesting", "pairs", "power_of_two"]


@dataclass(frozen=True, eq=False, slots=True)
class Turn:
    """What moves at once: rows that copy, and the first slot of each, the same at both ends.

    Turns over the same ends share their rows, so that whoever adds up loads looks at them once.
    """

    rows: Rows
    slot: Ints


Turns = Callable[[], Iterator[Turn]]
"""The turns of an allgather, in order; no rank gets a chunk twice."""


def forwards(turns: Turns) -> Iterator[Phase]:
    """Yield the allgather: one phase a turn."""
    for turn in turns():
        yield Phase((at(turn.rows, turn.slot, turn.slot),))


def backwards(turns: Turns) -> Iterator[Phase]:
    """Yield the reduce-scatter: the turns from the last to the first, every arrow turned."""
    held, turned = list(turns()), dict[int, Rows]()
    for turn in reversed(held):
        r = turn.rows
        if id(r) not in turned:
            turned[id(r)] = rows(r.dst, r.src, count=r.count, op=REDUCE, channel=r.channel)
        yield Phase((at(turned[id(r)], turn.slot, turn.slot),))


def power_of_two(algorithm: str, n: int, instead: str) -> int:
    """Return log2(n). Raises ScheduleError where n is no power of two, naming what is for any n."""
    if n & (n - 1):
        raise ScheduleError(
            f"{algorithm}: asked for {n} ranks, but it is for powers of two; {instead} is for any"
        )
    return n.bit_length() - 1


def nesting(partners: Ints) -> Ints:
    """Return the order in which what a rank keeps after each halving lies together: int[q].

    partners : int[L, q], q = 2^L, whom each position halves with at step 0, 1, ...; an involution
    at every step. At step s a position gives away half of a run of q >> s, aligned in this order.
    For 4 positions that halve at distance 1, then 2: 0, 2, 1, 3.
    """
    order = np.zeros(1, dtype=np.int64)
    for partner in partners:
        order = np.stack([order, partner[order]], axis=1).ravel()
    return order


def _runs(slots: Ints, width: int) -> tuple[Ints, int]:
    """Return the first slots of every window's rows, and how many slots a row moves.

    slots : int[W, w], the chunks of each window, in order; where they all lie in a row it is one.
    """
    if (np.diff(slots, axis=1) == width).all():
        return slots[:, :1], slots.shape[1] * width
    return slots, width


def pairs(partners: Ints, group: Ints, own: Ints, width: int = 1, channel: int = 0) -> Turns:
    """Return the turns in which pairs swap all they hold, so that it doubles: L of them.

    partners : int[L, q], as for `nesting`; group : int[q], the rank at each position; own : int[q],
    the slot of its chunk. Backwards the pairs of step 0 come first, and swap halves.
    """
    order = nesting(partners)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))

    def turns() -> Iterator[Turn]:
        for s in reversed(range(len(partners))):
            held = len(order) >> (s + 1)
            first, count = _runs(np.sort(own[order].reshape(-1, held), axis=1), width)
            slot = first[place // held]
            each = slot.shape[1]
            src, dst = np.repeat(group, each), np.repeat(group[partners[s]], each)
            yield Turn(rows(src, dst, count=count, channel=channel), slot.ravel())

    return turns
