"""Which of many equal paths a flow takes: by hash (ECMP), or looking at the others (adaptive).

Owns the hash and the rounds of adaptive placement. Knows no topology: a wiring hands in how a
choice number is drawn and which links it stands for.

    choose(src, dst, k, salt) -> choice      hashed; the same arguments give the same choice
    paths(flow, choice) -> links[h, m]       links crossed, -1 where a path has fewer than h;
                                             a link keeps its hop in all paths of one pair of ends
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .wiring import F64, I64, Entries

__all__ = ["Placement", "hashed", "pick", "place"]

U64 = npt.NDArray[np.uint64]
Choose = Callable[[I64, I64, I64, int], I64]
Paths = Callable[[I64, I64], I64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: the step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""

PARTS = 4
"""Least number of pieces adaptive routing moves on their own; switches move packets (assumed)."""
ROUNDS = 20
"""Rounds of adaptive placement (assumed: on permutations of 100,000 ports, more gains < 10%)."""
TRIES = 2
"""Alternatives a piece looks at in a round: "two choices" (Mitzenmacher, IEEE TPDS 2001)."""

MOST = 1 << 15
"""Pieces that look for another path in one round (assumed: few of more could move anyway)."""
IDLE = 4
"""Rounds without a move after which it is over (assumed)."""


def mix(value: U64) -> U64:
    """Return a bijective mix of 64-bit words: Stafford's variant 13, as SplitMix64 ends with.

    Every input bit turns over about half of the output bits.
    """
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = value ^ (value >> np.uint64(31))
    return mixed


def hashed(seed: int, stream: int, *keys: I64) -> U64:
    """Return one 64-bit hash a row of equally long key columns; streams are independent."""
    start = mix(np.array([(seed + stream * _GOLDEN + _GOLDEN) & _MASK], dtype=np.uint64))
    word = mix(start)
    for key in keys:
        word = mix(word + np.asarray(key).astype(np.uint64) * np.uint64(_GOLDEN) + start)
    return word


def pick(word: U64, count: int | I64) -> I64:
    """Return a number in 0..count-1 from the upper bits of a hash; count <= 2**31."""
    among = np.asarray(count, dtype=np.int64).astype(np.uint64)
    scaled: U64 = ((word >> np.uint64(32)) * among) >> np.uint64(32)
    return scaled.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Placement:
    """How one call's flows are placed.

    flows: paths hashed for each (queue pairs of a connection). adaptive: whether they then move.
    """

    choose: Choose
    paths: Paths
    bandwidth: F64
    flows: int
    adaptive: bool


def place(how: Placement, src: I64, dst: I64, weight: F64) -> Entries:
    """Return (flow, link, share): each flow's pieces on the paths they take.

    weight: float64[k], relative bytes of each flow. Adaptive starts as ECMP, and no round raises
    the time (load over bandwidth) of the slowest link.
    """
    parts = how.flows * (-(-PARTS // how.flows) if how.adaptive else 1)
    flow = np.repeat(np.arange(len(src)), parts)
    part = np.tile(np.arange(parts), len(src))
    choice = how.choose(src[flow], dst[flow], part // (parts // how.flows), 0)
    links = how.paths(flow, choice)
    if how.adaptive and len(flow):
        _settle(how, links, flow, (src[flow], dst[flow], part), weight[flow] / parts)
    hop, at = np.nonzero(links >= 0)
    return flow[at], links[hop, at], np.full(len(at), 1.0 / parts)


def _settle(how: Placement, links: I64, flow: I64, keys: tuple[I64, I64, I64], heavy: F64) -> None:
    """Move pieces to less loaded paths, in `links` itself.

    A piece moves when the slowest of the links it enters, with it, is faster than the slowest
    it leaves. Pieces whose links stay below the slow ones, with all that would enter, move
    together; of the others a link takes in one a try, so the moves of a try cannot add up.
    """
    n = len(how.bandwidth)
    bandwidth = np.append(how.bandwidth, np.inf)  # link -1 is the last: free, always at time 0
    load, idle = _loads(links, heavy, n), 0
    owner = np.full(n + 1, -1, dtype=np.int64)
    for turn in range(ROUNDS):
        if idle == IDLE:
            return
        idle += 1
        cost = (load[links] / bandwidth[links]).max(axis=0)
        slow = (cost.mean() + cost.max()) / 2 * (1 - 1e-9)  # equal costs may round below their mean
        busy = np.flatnonzero(cost >= slow)
        stride = -(-len(busy) // MOST)
        busy = busy[turn % stride :: stride]
        for again in range(TRIES):
            src, dst, part = keys[0][busy], keys[1][busy], keys[2][busy]
            choice = how.choose(src, dst, part, 1 + turn * TRIES + again)
            new, old = how.paths(flow[busy], choice), links[:, busy]
            same, piece = new == old, heavy[busy]
            entered, left = np.where(same, -1, new), np.where(same, -1, old)
            after = load[entered] + np.where(entered < 0, 0.0, piece)
            now = load[left] / bandwidth[left]
            gain = now.max(axis=0) - (after / bandwidth[entered]).max(axis=0)
            moves = _room(entered, gain, piece, load, bandwidth * slow)
            if not len(moves):
                moves = _apart(entered, gain, owner)
            idle = 0 if len(moves) else idle
            for hop in range(len(entered)):
                np.add.at(load, entered[hop, moves], piece[moves])
                np.subtract.at(load, left[hop, moves], piece[moves])
            load[n] = 0.0
            links[:, busy[moves]] = new[:, moves]


def _loads(links: I64, heavy: F64, n: int) -> F64:
    """Return what each link carries: float64[n + 1], nothing on the last."""
    load: F64 = np.zeros(n + 1)
    for hop in links:
        load += np.bincount(np.where(hop < 0, n, hop), weights=heavy, minlength=n + 1)
    load[n] = 0.0
    return load


def _room(entered: I64, gain: F64, piece: F64, load: F64, most: F64) -> I64:
    """Return columns that gain and whose links stay below `most` even if all that gain entered.

    load: float64[nlinks + 1], as it is on return.
    """
    wish = np.flatnonzero(gain > 0)
    links, heavy = entered[:, wish], np.broadcast_to(piece[wish], (len(entered), len(wish)))
    at, own = np.unique(links, return_inverse=True)
    more = np.bincount(own.ravel(), weights=heavy.ravel(), minlength=len(at))
    fits = load[at] + more < most[at]
    moves: I64 = wish[(fits[own].reshape(links.shape) | (links < 0)).all(axis=0)]
    return moves


def _apart(entered: I64, gain: F64, owner: I64) -> I64:
    """Return columns that gain, no two of which enter the same link; larger gains go first.

    owner: int64[nlinks + 1] to write to; what it held does not matter.
    """
    most = gain.max(initial=0.0)
    wish = np.flatnonzero(gain > 1e-9 * most)
    level = (gain[wish] * (65535 / most)).astype(np.uint16) if len(wish) else wish
    wish = wish[np.argsort(level, kind="stable")]  # 16 bits: NumPy sorts them by radix
    wanted = entered[:, wish]
    for hop in wanted:
        owner[hop] = wish  # the last to write a link owns it
    moves: I64 = wish[((owner[wanted] == wish) | (wanted < 0)).all(axis=0)]
    return moves
