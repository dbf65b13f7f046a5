"""One schedule priced in many numbers of pieces: the pieces of a pipeline are copies of one.

Owns the rule that makes that possible: a schedule of k pieces has the stages of the schedule of
one piece, k times, and around them k times as many slots. Knows no algorithm by name. Schedules
that tell no pipeline are told anew for every number of pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..schedule import I32, Move, Outline, Phase, Pipeline, Schedule

__all__ = ["Told", "in_pieces", "told"]

Told = list[Phase | Pipeline]


def told(schedule: Schedule) -> Told | None:
    """Return what a schedule of one piece consists of; None where it is no pipeline and copies."""
    phases = schedule.phases
    if not isinstance(phases, Outline):
        return None
    parts = list(phases.parts())
    pipes = [part for part in parts if isinstance(part, Pipeline)]
    around = [part for part in parts if isinstance(part, Phase)]
    if len(pipes) != 1 or pipes[0].pieces != 1 or not all(map(_stays, around)):
        return None
    return parts


def _stays(phase: Phase) -> bool:
    return all(bool((m.rows.src == m.rows.dst).all()) for m in phase.moves)


def in_pieces(parts: Told, whole: Schedule, pieces: int) -> Schedule:
    """Return `whole`, a schedule of several pieces, told from the parts of a single one.

    What it puts on links and ranks is the same; only its slots are not those of `whole`.
    """
    made = [_of_pieces(part, pieces) for part in parts]

    def phases() -> Iterable[Phase | Pipeline]:
        return made

    return replace(whole, phases=Outline(phases))


def _of_pieces(part: Phase | Pipeline, pieces: int) -> Phase | Pipeline:
    if isinstance(part, Pipeline):
        return replace(part, pieces=pieces)
    return replace(part, moves=tuple(_wider(move, pieces) for move in part.moves), made_of=())


def _wider(move: Move, times: int) -> Move:
    rows, slots = move.rows, move.slots

    def wide(s: int) -> tuple[I32, I32]:
        one, two = slots(s)
        return one * np.int32(times), two * np.int32(times)

    return Move(replace(rows, count=rows.count * np.int32(times)), wide)
