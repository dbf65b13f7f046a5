"""Whole shares of a block for every tree, so that the busiest thing is busy hardly longer.

Owns the rounding: largest remainders first, then single shares move from tree to tree while that
helps. Knows no machine; what it does is deterministic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...algorithms.flat import Ints
from ...fabric import F64

Whole = npt.NDArray[np.int64]
__all__ = ["rounded", "shared"]

_MOVES = 400  # of one share; ...
_IDLE = 12  # ... of which so many in a row may bring nothing
_LOOKED = 300  # moves that are looked at closely
_HELD = 8  # moves until a tree that gave a share may take one
_SPARE = 0.002  # of the seconds, that whole shares may need besides
_PARTS = 1e9  # of a unit, in which loads are whole
_WIDTH = 0.02  # by how much a thing may be below the busiest and still count
_STEPS, _CAP = 1 << 11, 1 << 12  # in which the last _WIDTH is told, and the most that is


def rounded(x: F64, total: int, of: Ints) -> Ints:
    """Return whole numbers near x * total which add up to it in each class: int64[T]."""
    exact = x * total
    whole = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - np.bincount(of, weights=whole).astype(np.int64)
    for which, lacks in enumerate(missing.tolist()):
        mine = np.flatnonzero(of == which)
        order = np.argsort(whole[mine] - exact[mine], kind="stable")
        np.add.at(whole, mine[order[np.arange(lacks) % len(mine)]], 1)
    return whole


def _cost(load: Whole, low: int, step: int) -> Whole:
    """Return a measure of loads (int64[..., L]) that the largest of each dominate: int64[...].

    It counts by how many steps each is above `low`, to the fourth power.
    """
    above = np.minimum(np.maximum(load - low, 0) // step, _CAP)
    above *= above
    return np.asarray((above * above).sum(axis=-1))


def _moved(count: Ints, busy: F64, of: Ints, total: int) -> tuple[Ints, float]:
    """Return the shares after moves from tree to tree, and how long the busiest thing is busy.

    The best move is made even where none helps, and not undone for some time (F. Glover, "Tabu
    search", 1989); what was best is returned. All of it is done in whole numbers, which add up
    alike on every processor.
    """
    asks = np.rint(busy * _PARTS).astype(np.int64)
    load = count @ asks
    top = int(load.max())
    low = int(top * (1 - _WIDTH))
    step = max((top - low) // _STEPS, 1)
    best, least, idle = count.copy(), (top, 0), 0
    since = np.full(len(count), -_HELD)  # when a tree gave a share last
    for turn in range(_MOVES):
        at = int(load.argmax())
        givers = np.flatnonzero((count > 0) & (asks[:, at] > 0))
        allowed = (of[givers][:, None] == of) & (asks[givers, at][:, None] > asks[None, :, at])
        giver, taker = np.nonzero(allowed & (since <= turn - _HELD))
        if not len(giver) or idle >= _IDLE:
            break
        giver = givers[giver]
        if len(giver) > _LOOKED:  # those that promise most, by how steeply the cost changes
            above = np.minimum(np.maximum(load - low, 0) // step, _CAP) // 8
            steep = (asks // (int(asks.max()) // 4096 + 1)) @ (above * above * above)
            first = np.argsort(steep[taker] - steep[giver], kind="stable")[:_LOOKED]
            giver, taker = giver[first], taker[first]
        cost = _cost(load + asks[taker] - asks[giver], low, step)
        move = int(cost.argmin())
        count[giver[move]] -= 1
        count[taker[move]] += 1
        since[giver[move]] = turn
        load = count @ asks
        found = int(load.max()), int(cost[move])
        if found < least:
            best, least, idle = count.copy(), found, 0
        else:
            idle += 1
    return best, float((best @ busy).max() / total)


def _totals(busy: F64, load: F64, most: int) -> list[int]:
    """Return numbers of shares worth trying: each leaves less of the busiest things idle than any
    smaller one, were all of them to carry whole shares only.
    """
    counts = np.arange(1, most + 1)
    tight = load >= load.max() * (1 - 1e-6)
    unit = np.where(busy > 0, busy, np.inf).min(axis=0)[tight]
    room = counts[:, None] * (load.max() * (1 + _SPARE)) / unit[None, :]
    idle = ((room - np.floor(room)) / room).max(axis=1)
    least = np.minimum.accumulate(idle)
    return [int(c) for c in counts[np.append(True, least[1:] < least[:-1] * 0.9)]]


def shared(x: F64, busy: F64, of: Ints, most: int, enough: float) -> tuple[Ints, float]:
    """Return shares int64[T] of up to `most` a class, and how long the busiest thing is busy.

    x : float64[T], the exact parts of each class; busy : float64[T, L], what a byte on each tree
    asks of each thing; of : int[T], classes.
    The fewest shares that keep it busy no longer than `enough` are taken, else the best there are.
    """
    found: tuple[Ints, float] | None = None
    totals = {*_totals(busy, x @ busy, most), most // 2, most}
    for total in sorted(t for t in totals if t > 0):
        count, least = _moved(rounded(x, total, of), busy, of, total)
        if found is None or least < found[1] * (1 - 1e-3):
            found = count, least
        if least <= enough:
            break
    assert found is not None  # at least one share is tried
    return found
