"""Clocks that push each other on: what equal repetitions do to the times of those who take part.

Owns the arithmetic of waiting inside a stage. A member is a rank on a channel. One repetition is

    t'[v] = max(t[v] + stay[v],  t[u] + cost[e] for every arc e from u to v)

stay: until the member's own messages have left; an arc: a message, from the sender's clock to its
arrival. Knows no fabric and no bytes. Two short cuts give what all repetitions one by one give:

* all clocks have moved by one amount since some repetition before: so they will again (max and
  plus keep differences), and what is left is a multiplication
* every member tells one other and hears from one (rings): a clock is the longest walk that ends
  there, of `steps` moves, each on to the next member or a stay; the stays of a walk are best all
  made at its slowest member, and walks that differ in length only are a window over the ring
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import F64
from .stages import I64

__all__ = ["Members", "repeated"]

_ALIKE = 1e-13  # of an advance: clocks that moved so much apart moved by one amount
_SAME = 1e-12  # stays that differ by less than this part are one


@dataclass(frozen=True, eq=False, slots=True)
class Members:
    """Who waits for whom. stay : float64[k] s, by member.

    src, dst : int64[m], members, in order of dst. cost : float64[m] s. first : int64[h], where the
    arcs to each member that hears from anyone begin.
    """

    stay: F64
    src: I64
    dst: I64
    cost: F64
    first: I64

    @staticmethod
    def of(stay: F64, src: I64, dst: I64, cost: F64) -> Members:
        """Return the members with these arcs, in any order."""
        order = np.argsort(dst, kind="stable")
        dst = dst[order]
        first = np.flatnonzero(np.diff(dst, prepend=-1))
        return Members(stay, src[order], dst, cost[order], first)

    def once(self, clock: F64) -> F64:
        """Return the clocks after one repetition: float64[k]."""
        after = clock + self.stay
        if len(self.first):
            heard = clock[self.src] + self.cost
            if len(self.first) < len(heard):
                heard = np.maximum.reduceat(heard, self.first)
            to = self.dst[self.first]
            after[to] = np.maximum(after[to], heard)
        return after


def repeated(members: Members, clock: F64, steps: int) -> F64:
    """Return the clocks after `steps` repetitions: float64[k] s."""
    if steps < 2:
        return members.once(clock) if steps else clock
    stays = _kinds(members.stay)
    rounds = steps.bit_length() * 16  # about what a window costs, in repetitions
    if steps > rounds * len(stays) and _is_rings(members):
        return _windows(members, clock, steps, stays)
    return _one_by_one(members, clock, steps)


def _one_by_one(members: Members, clock: F64, steps: int) -> F64:
    """Return the clocks after all repetitions, looking out for a move that is all clocks' own.

    What is compared with is taken anew at repetitions 1, 2, 4, ... (Brent's search for a period).
    """
    base = float(clock.min())
    clock, done, kept, kept_at, kept_base = clock - base, 0, clock - base, 0, base
    while done < steps:
        clock, done = members.once(clock), done + 1
        # Differences are what counts, so clocks stay small and keep their digits.
        least = float(clock.min())
        clock, base = clock - least, base + least
        moved, period = base - kept_base, done - kept_at
        if np.abs(clock - kept).max(initial=0.0) <= _ALIKE * moved:
            rounds, left = divmod(steps - done, period)
            base, steps = base + rounds * moved, done + left
            kept, kept_at, kept_base = clock, done, base  # the rest is less than a period
        elif done & (done - 1) == 0:
            kept, kept_at, kept_base = clock, done, base
    return clock + base


def _is_rings(members: Members) -> bool:
    """Return whether every member tells exactly one and hears from exactly one."""
    k = len(members.stay)
    return (
        len(members.src) == k
        and len(members.first) == k
        and bool((np.bincount(members.src, minlength=k) == 1).all())
    )


def _kinds(stay: F64) -> list[tuple[float, float]]:
    """Return the different stays as (least, most) of each, ascending."""
    values = np.unique(stay)
    ends = np.flatnonzero(np.diff(values) > _SAME * values[1:])
    starts = np.concatenate([[0], ends + 1])
    return list(zip(values[starts].tolist(), values[np.append(ends, len(values) - 1)].tolist()))


def _windows(members: Members, clock: F64, steps: int, stays: list[tuple[float, float]]) -> F64:
    """Return the clocks of rings after `steps` repetitions, from walks and their stays.

    A walk of j arcs to v, its steps - j stays at a member that stays s, ends at

        clock[start] + sum of arcs + (steps - j) s  =  steps s + clock[start] + sum of (arcs - s)

    so for each s it is the largest over j from the first such member back to `steps` back.
    """
    before = np.empty(len(clock), dtype=np.int64)
    arc = np.empty(len(clock))
    before[members.dst], arc[members.dst] = members.src, members.cost
    base = float(clock.min())
    best = np.full(len(clock), -np.inf)
    for least, most in stays:
        step = arc - most
        far, summed, at = _back_to(members.stay >= least, before, step, steps)
        found = _highest(clock - base, before, step, at, steps + 1 - far)
        best = np.maximum(best, summed + found + steps * most)
    return best + base


def _back_to(
    wanted: npt.NDArray[np.bool_], before: I64, step: F64, steps: int
) -> tuple[I64, F64, I64]:
    """Return hops back to the nearest wanted member, the sum of `step` on the way, and who it is.

    More than `steps` hops where there is none.
    """
    at = np.where(wanted, np.arange(len(before)), before)
    far = np.where(wanted, 0, 1)
    summed = np.where(wanted, 0.0, step)
    for _ in range(steps.bit_length()):
        far, summed, at = far + far[at], summed + summed[at], at[at]
    return np.where(wanted[at], np.minimum(far, steps + 1), steps + 1), summed, at


def _highest(value: F64, before: I64, step: F64, at: I64, count: I64) -> F64:
    """Return the largest value[u] + sum of `step` from u to at[v], u up to count[v] - 1 back.

    Windows of 1, 2, 4, ... members are made of two halves; count's bits say which to join.
    """
    best, behind = np.full(len(at), -np.inf), np.zeros(len(at))
    top, hop = value, step
    for bit in range(int(count.max(initial=0)).bit_length()):
        on = np.flatnonzero(count >> bit & 1)
        here = at[on]
        best[on] = np.maximum(best[on], behind[on] + top[here])
        behind[on] += hop[here]
        at = at.copy()
        at[on] = before[here]
        top = np.maximum(top, hop + top[before])
        hop, before = hop + hop[before], before[before]
    return best
