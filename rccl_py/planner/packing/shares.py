"""Whole shares of a block for every tree, so that the busiest thing is busy hardly longer.

Owns the rounding: largest remainders first, then single shares move from tree to tree while that
helps. Knows no machine; what it does is deterministic.
"""

from __future__ import annotations

import numpy as np

from ...algorithms.flat import Ints
from ...fabric import F64

__all__ = ["rounded", "shared"]

_MOVES = 400  # of one share; ...
_IDLE = 12  # ... of which so many in a row may bring nothing
_HELD = 8  # moves until a tree that gave a share may take one
_SPARE = 0.002  # of the seconds, that whole shares may need besides
_SHARP = 300.0  # how much the busiest thing counts more than the others


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


def _cost(load: F64, unit: float) -> F64:
    """Return a measure of loads (float64[..., L]) that the largest of each dominate."""
    top = load.max(axis=-1)
    rest = np.exp(_SHARP * (load - top[..., None]) / unit).sum(axis=-1)
    return np.asarray(top + np.log(rest) * unit / _SHARP)


def _moved(count: Ints, busy: F64, of: Ints, total: int) -> tuple[Ints, float]:
    """Return the shares after moves from tree to tree, and how long the busiest thing is busy.

    The best move is made even where none helps, and not undone for some time (F. Glover, "Tabu
    search", 1989); what was best is returned.
    """
    load = count @ busy / total
    unit = float(load.max())
    best, least, idle = count.copy(), float(_cost(load, unit)), 0
    since = np.full(len(count), -_HELD)  # when a tree gave a share last
    for step in range(_MOVES):
        top = int(load.argmax())
        givers = np.flatnonzero((count > 0) & (busy[:, top] > 0))
        allowed = (of[givers][:, None] == of) & (busy[givers, top][:, None] > busy[None, :, top])
        giver, taker = np.nonzero(allowed & (since <= step - _HELD))
        if not len(giver) or idle >= _IDLE:
            break
        cost = _cost(load + (busy[taker] - busy[givers[giver]]) / total, unit)
        move = int(np.round(cost / unit, 9).argmin())  # so that other processors agree
        count[givers[giver[move]]] -= 1
        count[taker[move]] += 1
        since[givers[giver[move]]] = step
        load = count @ busy / total
        if cost[move] < least * (1 - 1e-9):
            best, least, idle = count.copy(), float(cost[move]), 0
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
