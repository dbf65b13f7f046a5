"""Which two algorithms go well side by side: what one leaves idle, the other uses.

Owns the search for a mix, on what options put on links over a whole call. A part w of the data by
one and 1 - w by the other loads each link with w a + (1 - w) b; the busiest link is least where
the two lines of the most loaded links cross, and w is a fraction of small numbers::

    two nodes of 8     scale-up   NIC        the busiest
    hier               14/16      1/2  x 9   scale-up: 1        (in units of its own time)
    direct             7/16       4    x 9   NIC: 4.5
    13/14 and 1/14     0.964      0.79       0.964

Whether that pays, with all hops and messages, is for who prices the result. Knows no generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from ..algorithms import Part
from ..fabric import F64
from ..links import PROTOCOLS
from ..timing import Profile
from .ranking import Option, Timed

__all__ = ["mixes"]

_SHARES = 32  # the most shares that the data is cut into
_SAVES = 0.01  # a mix is worth building where the busiest link is used so much less
_TRIED = 10  # options that are looked at, the fastest ones
_LINKS = 1 << 13  # links of a machine whose options are mixed unasked
_TURNS = 64
_FINER = (1, 2, 4)  # times the pieces that suit each alone
_MADE = ("mix", "forest", "paths")  # needs of algorithms made for a machine: whole as they are


def mixes(
    timed: Sequence[Timed], block: float, *, asked: bool = False
) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """Yield (protocol, parts) of the mixes that may be faster than all options, best first.

    timed: the options of a call with blocks of `block` bytes. asked: whether it may take seconds.
    """
    fastest = min(timed, key=lambda t: t[:2])
    protocol = fastest[3]
    options = _best(timed, protocol)
    if len(options) < 2 or (options[0].profile.fabric.nlinks > _LINKS and not asked):
        return
    busy = _busy(options, protocol)
    alone = busy.max(axis=1, initial=0.0)
    # Time that is no link's cannot be saved: nothing to gain where hops and memory rule.
    if not busy.size or alone.min() * block < 0.5 * fastest[0]:
        return
    found = []
    steps = [int(o.profile.steps.sum()) for o in options]
    hops = [float(o.profile.steps @ o.profile.hops[PROTOCOLS[protocol].index]) for o in options]
    # Of a pipeline, in as many pieces as are tried at most: stages that wait for the first.
    filling = [(s - o.pieces) / (_FINER[-1] * o.pieces) if o.pieces > 1 else 0.0
               for s, o in zip(steps, options)]  # fmt: skip
    for i, j in combinations(range(len(options)), 2):
        share, most = _least(busy[i], busy[j], float(alone.min()) * (1 - _SAVES))
        if share is not None:  # every step waits for the slower hop of the two
            waits = max(steps[i], steps[j]) * max(hops[i] / steps[i], hops[j] / steps[j])
            fills = max(filling[i], filling[j]) * most
            found.append((most + waits / block + fills, i, j, share))
    found.sort(key=lambda f: (round(f[0] / alone.min(), 3), f[1:3]))
    for _, i, j, share in found[: 4 if asked else 2]:
        for finer in _FINER:
            parts = _parts(options[i], options[j], share, finer)
            if parts is not None:
                yield protocol, parts


def _best(timed: Sequence[Timed], protocol: str) -> list[Option]:
    """Return the fastest option of each algorithm under a protocol, the fastest first."""
    kept: dict[str, Option] = {}
    for _, _, option, by in sorted(timed, key=lambda t: t[:2]):
        if by == protocol and not option.algorithm.switched and option.algorithm.needs not in _MADE:
            kept.setdefault(option.algorithm.name, option)
    return list(kept.values())[:_TRIED]


def _busy(options: Sequence[Option], protocol: str) -> F64:
    """Return the s per block byte each sort of link is used: float64[options, sorts].

    Links that all options load alike are one sort.
    """
    pace = options[0].profile.fabric.pace[PROTOCOLS[protocol].index]
    every = np.asarray(np.stack([_per_byte(o.profile) for o in options]) * pace)
    every = every[:, every.any(axis=0)]
    if not every.size:
        return every
    _, first = np.unique(np.round(every / every.max(), 9), axis=1, return_index=True)
    return np.asarray(every[:, first])


def _per_byte(made: Profile) -> F64:
    return made.total_link / made.chunks


_FRACTIONS = sorted(
    {Fraction(k, total) for total in range(2, _SHARES + 1) for k in range(1, total)},
    key=lambda f: (f.denominator, f),
)
_VALUES = np.array([float(f) for f in _FRACTIONS])


def _least(one: F64, two: F64, below: float) -> tuple[Fraction | None, float]:
    """Return the share of the first for which the busiest link is used least, and how long.

    None where that is not below `below`. Of shares that differ by 0.2% the simplest is taken.
    """
    steep = (one >= one.max() * 0.25) | (two >= two.max() * 0.25)
    most = np.max(
        _VALUES[:, None] * one[None, steep] + (1 - _VALUES[:, None]) * two[None, steep], axis=1
    )
    if most.min() >= below:
        return None, float(most.min())
    at = int(np.flatnonzero(most <= most.min() * 1.002)[0])
    return _FRACTIONS[at], float(most[at])


def _parts(one: Option, two: Option, share: Fraction, finer: int) -> tuple[Part, ...] | None:
    """Return the parts: the one of fewer steps takes turns, so that both are busy all the time.

    finer: how many times the pieces that suit each alone; None where neither has so many.
    """
    pieces = [o.pieces * finer if o.pieces * finer <= o.algorithm.pieces else o.pieces
              for o in (one, two)]  # fmt: skip
    if finer > 1 and pieces == [one.pieces, two.pieces]:
        return None
    steps = [int(o.profile.steps.sum()) + k - o.pieces for o, k in zip((one, two), pieces)]
    turns = [max(1, min(_TURNS, round(max(steps) / s))) for s in steps]
    shares = share.numerator, share.denominator - share.numerator
    return tuple(
        Part(o.algorithm.name, s, k, t) for o, s, k, t in zip((one, two), shares, pieces, turns)
    )
