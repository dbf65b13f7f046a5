"""What a step asks of each rank's memory and of its adders.

Owns the counting of bytes read, written and reduced at every rank, and of the detour through a
staging buffer. Knows no links but whether a path is coherent. Rules, argued in docs/timing.md:

* what is sent is read once, what is copied to is written once
* reductions posted together add up in registers: their target is read and written once, however
  many there are; but each is added, at the accelerator's reduction rate
* what a switch adds up or hands on (timing.messages) crosses the memory of the rank that gets the
  sum, or sends, once each way: its own share is handed in, the sum is written, and nothing is added
* a path that is not load and store all the way (PCIe, NICs) ends in a staging buffer: what comes
  over it is written there and read again before it is used
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from ..fabric import F64, I64, Fabric
from ..schedule import I32, REDUCE, Phase, Rows, Schedule
from .messages import fans

__all__ = ["STAGED", "Work", "reads_input", "staged", "work"]

STAGED = 2.0
"""Times a byte that passes a staging buffer crosses the receiver's memory more: in and out."""

Bools = npt.NDArray[np.bool_]


def staged(fabric: Fabric, src: I32, dst: I32) -> Bools | None:
    """Return which messages src[i] -> dst[i] pass a staging buffer; None where none does.

    A message to oneself passes none.
    """
    found = np.asarray(~fabric.coherent(src, dst) & (src != dst), dtype=bool)
    return found if found.any() else None


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """moved: float64[nranks], what is read and written; reduced: float64[nranks], what is added."""

    moved: F64
    reduced: F64

    @staticmethod
    def nothing(nranks: int) -> Work:
        """No work at any rank."""
        return Work(np.zeros(nranks), np.zeros(nranks))

    def plus(self, other: Work, part: float = 1.0) -> Work:
        """Return this and a part of the other, rank by rank."""
        return Work(self.moved + other.moved * part, self.reduced + other.reduced * part)

    def __bool__(self) -> bool:
        return bool(self.moved.any() or self.reduced.any())

    def each(self, fabric: Fabric) -> F64:
        """Return the s a byte of each unit takes every rank: float64[nranks]."""
        return np.maximum(self.moved / fabric.memory, self.reduced / fabric.reduction)

    def seconds(self, fabric: Fabric) -> float:
        """Return the s a byte of each unit takes the rank that needs longest."""
        # Without a rate of its own a device adds as fast as it reads two inputs and writes one.
        rate = fabric.reduction
        moved = self.moved.max(initial=0.0) / fabric.memory
        return float(max(moved, self.reduced.max(initial=0.0) / rate))


def work(nranks: int, phase: Phase) -> Work:
    """Return the slots that one repetition of `phase` reads, writes and adds at each rank.

    Detours through staging buffers are not in it: they depend on the fabric. Phases side by side
    add into slots of their own.
    """
    if len(phase.made_of) > 1:
        return reduce(Work.plus, (work(nranks, part) for part in phase.made_of))
    if any(move.rows.switched for move in phase.moves):
        return _with_switched(nranks, phase)
    src, dst, count, op = (
        np.concatenate([getattr(m.rows, c) for m in phase.moves])
        for c in ("src", "dst", "total", "op")
    )
    reduces = op == REDUCE
    total: F64 = np.asarray(np.bincount(src, weights=count, minlength=nranks), dtype=np.float64)
    if not reduces.all():
        total += np.bincount(dst, weights=count * ~reduces, minlength=nranks)
    if not reduces.any():
        return Work(total, np.zeros(nranks))
    added: F64 = np.asarray(np.bincount(dst, count * reduces, nranks), dtype=np.float64)
    target = added
    if len(phase.moves) > 1:  # posted together: into the same slots
        every = [m.rows for m in phase.moves]
        into = [np.bincount(r.dst, r.total * (r.op == REDUCE), nranks) for r in every]
        target = reduce(np.maximum, np.asarray(into, dtype=np.float64))
    return Work(total + 2.0 * target, added)


def _with_switched(nranks: int, phase: Phase) -> Work:
    """Return the work of a phase some of which a switch does."""
    total, target, added = np.zeros(nranks), np.zeros(nranks), np.zeros(nranks)
    for move, fan in zip(phase.moves, _fans(phase)):
        r = move.rows
        reduces = r.op == REDUCE
        if r.switched:
            total += _switched(nranks, r, fan)
            continue
        total += np.bincount(r.src, weights=r.total, minlength=nranks)
        total += np.bincount(r.dst, weights=r.total * ~reduces, minlength=nranks)
        into = np.bincount(r.dst, weights=r.total * reduces, minlength=nranks)
        target, added = np.maximum(target, 2.0 * into), added + into
    return Work(total + target, added)


def _fans(phase: Phase) -> list[I64]:
    """Return the fan of every row, by move."""
    every = [m.rows for m in phase.moves]
    src, dst = (np.concatenate([getattr(r, end) for r in every]) for end in ("src", "dst"))
    return np.split(fans(phase, src, dst), np.cumsum([len(r.src) for r in every])[:-1])


def _switched(nranks: int, r: Rows, fan: I64) -> F64:
    """Return the slots that rows done by a switch read and write at each rank: float64[nranks].

    The rank at the switched end of a fan of f rows is in all of them, and has 1 / f of its share in
    each: read to be handed in, and written as the sum or as its own copy.
    """
    part = 2.0 * r.total / np.abs(fan)
    adds = r.op == REDUCE
    sent = np.bincount(r.src, weights=np.where(adds, r.total, part), minlength=nranks)
    got = np.bincount(r.dst, weights=np.where(adds, part, r.total), minlength=nranks)
    return np.asarray(sent + got, dtype=np.float64)


def reads_input(phase: Phase, schedule: Schedule) -> bool:
    """Return whether a local phase only hands the input on: kernels read it where they need it."""
    first_other = int(schedule.layout.output())
    return all((m.slots(0)[0] < first_other).all() for m in phase.moves)
