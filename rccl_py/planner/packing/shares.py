"""Whole shares of a block for every tree, so that the busiest thing is busy hardly longer.

Owns the rounding: largest remainders first, then single shares move from tree to tree while that
helps. Knows no machine; what it does is deterministic.
"""

from __future__ import annotations

import numpy as np

from ...algorithms.flat import Ints
from ...fabric import F64

__all__ = ["rounded", "shared"]

_MOVES = 400
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


def _moved(count: Ints, seconds: F64, of: Ints, total: int) -> tuple[Ints, float]:
    """Return the shares after moves that help, and the s of the busiest thing per byte."""
    load = count @ seconds / total
    unit = float(load.max())
    now = float(_cost(load, unit))
    for _ in range(_MOVES):
        top = int(load.argmax())
        givers = np.flatnonzero((count > 0) & (seconds[:, top] > 0))
        giver, taker = np.nonzero((of[givers][:, None] == of[None, :])
                                  & (seconds[givers, top][:, None] > seconds[None, :, top]))  # fmt: skip
        if not len(giver):
            break
        giver = givers[giver]
        cost = _cost(load + (seconds[taker] - seconds[giver]) / total, unit)
        best = int(cost.argmin())
        if cost[best] >= now * (1 - 1e-9):
            break
        count[giver[best]] -= 1
        count[taker[best]] += 1
        load = count @ seconds / total
        now = float(_cost(load, unit))
    return count, float(load.max())


def _totals(seconds: F64, load: F64, most: int) -> list[int]:
    """Return numbers of shares worth trying: each leaves less of the busiest things idle than any
    smaller one, were all of them to carry whole shares only.
    """
    counts = np.arange(1, most + 1)
    tight = load >= load.max() * (1 - 1e-6)
    unit = np.where(seconds > 0, seconds, np.inf).min(axis=0)[tight]
    room = counts[:, None] * (load.max() * (1 + _SPARE)) / unit[None, :]
    idle = ((room - np.floor(room)) / room).max(axis=1)
    least = np.minimum.accumulate(idle)
    return [int(c) for c in counts[np.append(True, least[1:] < least[:-1] * 0.9)]]


def shared(x: F64, seconds: F64, of: Ints, most: int, enough: float) -> tuple[Ints, float]:
    """Return shares int64[T] of up to `most` a class, and the s of the busiest thing per byte.

    x : float64[T], the exact parts of each class; seconds : float64[T, L]; of : int[T], classes.
    The fewest shares that take at most `enough` s are taken, else the best there are.
    """
    found: tuple[Ints, float] | None = None
    totals = {*_totals(seconds, x @ seconds, most), most // 2, most}
    for total in sorted(t for t in totals if t > 0):
        count, least = _moved(rounded(x, total, of), seconds, of, total)
        if found is None or least < found[1] * (1 - 1e-3):
            found = count, least
        if least <= enough:
            break
    assert found is not None  # at least one share is tried
    return found
