"""What each algorithm sends, stage by stage, in blocks: formulas of the ranks' places alone.

Owns the table of volumes. Knows how many ranks there are, which node each is on and the levels of
the machine; no link, no size and no time. An algorithm that has no row is unknown here, which is
no error: whoever asks then builds it. Sources of the volumes: Thakur, Rabenseifner and Gropp
(IJHPCA 19, 2005) for the flat forms, Traff (circulant, arXiv 2109.12626), Cho et al. (BlueConnect,
MLSys 2019) for levels, Sanders, Speck and Traff (2009) for the two trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil, isqrt, log2, prod

import numpy as np

from .places import Places, Sent, Stage
from .volumes_rooted import ROOTED, backwards, chain, in_nodes, ring

__all__ = ["SENT_AT_ONCE", "stages_of"]

_WIDEST = 512  # ranks of a row of the grid whose turns are looked at one by one


def _direct(p: Places) -> Iterator[Stage]:
    yield p.everyone


def _twice(half: Sent) -> Sent:
    """Return an allgather backwards and then forwards, of parts of 1 / n of the buffer."""

    def sent(p: Places) -> Iterator[Stage]:
        stages = list(half(p))
        for s in (*stages[::-1], *stages):
            yield s.times(1 / p.n)

    return sent


def _both_ways(p: Places) -> Iterator[Stage]:
    """Half of the data goes around the other way."""
    for stage in ring(p):
        yield replace(stage, message=p.ring / 2)


def _circulant(p: Places) -> Iterator[Stage]:
    skips = [p.n]
    while skips[-1] > 1:
        skips.append(-(-skips[-1] // 2))
    for above, skip in pairwise(skips):
        yield p.turn((np.arange(p.n) + skip) % p.n, above - skip)


def _doubling(p: Places) -> Iterator[Stage]:
    """The halves of powers of two: distance d moves d blocks a rank."""
    for k in range(p.n.bit_length() - 1):
        yield p.turn(np.arange(p.n) ^ (1 << k), 1 << k)


def _dissemination(p: Places) -> Iterator[Stage]:
    """At step k a rank sends all it has, 2^k blocks, to the one 2^k places on."""
    ranks, held = np.arange(p.n), 1
    while held < p.n:
        yield p.turn((ranks + held) % p.n, min(held, p.n - held))
        held *= 2


def _folded(p: Places, turns: Callable[[int], Iterator[float]]) -> Iterator[Stage]:
    """Pairs at distance 1, 2, 4, ... among a power of two of ranks, the odd ones folded away."""
    folded = p.n - (1 << (p.n.bit_length() - 1))
    odd = 2 * np.arange(folded) + 1
    acting = np.setdiff1d(np.arange(p.n), odd)
    place = np.arange(len(acting))

    if folded:
        yield p.sent(odd, odd - 1, 1)
    for k, blocks in enumerate(turns(len(acting).bit_length() - 1)):
        distance = 1 << (k % (len(acting).bit_length() - 1))
        yield p.sent(acting, acting[place ^ distance], blocks)
    if folded:
        yield p.sent(odd - 1, odd, 1)


def _recursive_doubling(p: Places) -> Iterator[Stage]:
    return _folded(p, lambda steps: iter([1.0] * steps))


def _halving_doubling(p: Places) -> Iterator[Stage]:
    return _folded(p, lambda steps: iter([0.5 ** (k + 1) for k in range(steps)] * 2))


def _swing(p: Places) -> Iterator[Stage]:
    """Every step is a swap at distance 1, -1, 3, -5, ... in rank order; on a torus it differs."""
    steps = p.n.bit_length() - 1
    if p.grid:
        yield Stage(0.0, 0.0, 2 * steps)
        return
    ranks = np.arange(p.n)
    for _ in range(2):
        for s in range(steps):
            far = (1 - (-2) ** (s + 1)) // 3
            yield p.turn((ranks + np.where(ranks % 2, -far, far)) % p.n, 0.5 ** (s + 1))


def _pat(p: Places) -> Iterator[Stage]:
    """Binomial trees below every rank, the farthest child first: of 2^d, as many as fit."""
    ranks = np.arange(p.n)
    for d in reversed(range((p.n - 1).bit_length())):
        senders = len(range(0, p.n - (1 << d), 2 << d))
        yield p.turn((ranks + (1 << d)) % p.n, senders)


def _at_once(turns: list[Stage]) -> Stage:
    """Return the one step in which all of some turns are done."""
    return Stage(
        sum(s.far for s in turns),
        sum(s.near for s in turns),
        1,
        max(s.far_hops for s in turns),
        sum(s.far_messages for s in turns),
        sum(s.messages for s in turns),
        max(s.message for s in turns),
    )


def _grid(p: Places) -> Iterator[Stage]:
    """Rows and then columns of the rank order, as nearly square as the number of ranks allows."""
    height = next(k for k in range(isqrt(p.n), 0, -1) if p.n % k == 0)
    width = p.n // height
    if width > _WIDEST:
        return
    row, column = np.divmod(np.arange(p.n), width)
    for size, blocks, along in ((width, height, 1), (height, width, 0)):
        moved = [
            p.turn(row * width + (column + k) % width if along
                   else (row + k) % height * width + column, blocks)
            for k in range(1, size)
        ]  # fmt: skip
        if moved:
            yield _at_once(moved)


def _neighbour(p: Places) -> Iterator[Stage]:
    """Pairs 0-1, 2-3, ... and then 1-2, 3-4, ... in turn, two blocks each but at first."""
    ranks = np.arange(p.n)
    even, odd = ranks ^ 1, (ranks + np.where(ranks % 2, 1, -1)) % p.n
    steps = p.n // 2
    yield p.turn(even, 1)
    yield p.turn(odd, 2, steps // 2)
    yield p.turn(even, 2, (steps - 1) // 2)


def _tree(p: Places) -> Iterator[Stage]:
    """Two trees over the nodes, a chain in each; over ranks alone two. No less deep than log2."""
    if p.nodes is None or len(p.nodes) < 2:
        far, deep = p.count - 1, int(log2(p.n))
        near = 0 if far else p.n - 1
        for _ in range(2):
            yield Stage(far, near, deep, 0, message=p.tree)
        return
    count, g = p.nodes.shape
    far, deep = count - 1, int(log2(count))
    up = [Stage(far, 0.0, deep, deep, message=p.tree)]
    if g > 1:
        up.append(Stage(0.0, p.n - 1 - far, g - 1, message=p.tree))
    yield from reversed(up)
    yield from up


def _between(kind: str, p: Places) -> Iterator[tuple[int, float, float]]:
    """Yield (steps, blocks a rank sends, messages a rank) of a half over the nodes on rails."""
    count = p.count
    if kind == "ring":
        yield count - 1, count - 1, count - 1
    elif kind == "direct":
        yield 1, count - 1, count - 1
    else:
        left = count
        while left > 1:
            skip = -(-left // 2)
            yield 1, left - skip, 1
            left = skip


def _gathered(inside: str, between: str) -> Sent:
    """The two-level allgather; the reduce_scatter is it backwards, with the same sums."""

    def sent(p: Places) -> Iterator[Stage]:
        for steps, blocks, messages in _between(between, p):
            yield Stage(p.n * blocks, 0.0, steps, steps, p.n * messages, message=blocks / messages,
                        many=messages > 2 * steps)  # fmt: skip
        yield in_nodes(inside, p, p.count)

    return sent


def _rail_trees(inside: str) -> Sent:
    def sent(p: Places) -> Iterator[Stage]:
        within = in_nodes(inside, p, 1 / p.g)
        deep = max(int(log2(p.count)), 1)
        yield within
        for _ in range(2):
            yield Stage(p.count - 1.0, 0.0, deep, deep, message=0.5 / p.g)
        yield within

    return sent


def _switched(between: str) -> Sent:
    """Switches add up and hand on: a rank sends all it has once, and what it gathered once."""

    def sent(p: Places) -> Iterator[Stage]:
        whole = _rail_trees("direct") if between == "tree" else _twice(_gathered("direct", between))
        rails = list(whole(p)) if p.count > 1 else []
        yield Stage(0.0, float(p.n), 1, 0, 0.0, float(p.n))
        yield from (s for s in rails if s.far)
        yield Stage(0.0, p.n / p.g, 1, 0, 0.0, float(p.n))

    return sent


def _levels(inner: str, outer: str, *, turned: bool = False) -> Sent:
    """The allgather along every level of the tiers, the outermost first; turned: the innermost."""

    def sent(p: Places) -> Iterator[Stage]:
        assert p.tiers is not None  # the registry offers it only where there are levels
        shape = p.tiers.shape[::-1] if turned else p.tiers.shape
        for axis, m in enumerate(shape):
            far = axis > 0 if turned else axis < len(shape) - 1
            blocks = p.n * (m - 1) * prod(shape[:axis])
            kind = inner if axis else outer
            steps = {"circulant": ceil(log2(m)), "ring": m - 1}.get(kind, 1)
            posted = p.n * (m - 1) if kind == "direct" else 0.0
            each = blocks / p.n / (m - 1 if kind == "direct" else steps)
            yield Stage(
                blocks * far, blocks * (not far), steps, steps * far, posted * far,
                posted * (not far), each, kind == "direct" and m > 3,
            )  # fmt: skip

    return sent


def _pairwise(p: Places) -> Iterator[Stage]:
    every = p.everyone
    yield replace(every, steps=p.n - 1, far_hops=0, many=False)


def _relayed(p: Places) -> Iterator[Stage]:
    """Along one ring: step s moves blocks s places from home."""
    far, steps, moved = p.count * (p.count > 1), p.n - 1, p.n / 2 * (p.n - 1)
    yield Stage(far * moved, (p.n - far) * moved, steps, steps * (far > 0), message=p.n / 2)


def _bruck(radix: int) -> Sent:
    """Digit k of a block's distance moves it at step k; what moves by j * radix^k is known."""

    def sent(p: Places) -> Iterator[Stage]:
        ranks, unit = np.arange(p.n), 1
        while unit < p.n:
            digit = ranks // unit % radix
            moved = [p.turn((ranks + j * unit) % p.n, int((digit == j).sum()))
                     for j in range(1, radix) if (digit == j).any()]  # fmt: skip
            yield _at_once(moved)
            unit *= radix

    return sent


def _two_hops(p: Places) -> Iterator[Stage]:
    n, g, count = p.n, p.g, p.count
    yield Stage(0.0, n * (g - 1) * count, 1, 0, 0.0, n * (g - 1), count, g > 3)
    yield Stage(n * (count - 1) * g, 0.0, 1, 1, n * (count - 1), 0.0, g, count > 3)


def _two_hops_in_turn(p: Places) -> Iterator[Stage]:
    n, g, count = p.n, p.g, p.count
    yield Stage(n * (count - 1) * g, n * (g - 1) * count, count, count - 1, n * (count - 1))


_KINDS = ("ring", "direct", "circulant")
_LEVELS = (("direct", "direct"), ("direct", "circulant"), ("circulant", "circulant"))
_TURNED, _turned = "turned-direct-ring", _levels("ring", "direct", turned=True)
_TABLE: dict[tuple[str, str], Sent] = {
    **{
        (name, kind): half
        for name in ("allgather", "reduce_scatter")
        for kind, half in (
            ("ring", ring), ("both-ways", _both_ways), ("direct", _direct),
            ("circulant", _circulant), ("recursive-doubling", _doubling),
            ("recursive-halving", _doubling),
            ("neighbour", _neighbour), ("pat", _pat),
            ("dissemination", _dissemination),
            *((f"hier-{i}-{b}", _gathered(i, b)) for i in ("direct", "ring") for b in _KINDS),
            *((f"levels-{i}-{o}", _levels(i, o)) for i, o in _LEVELS),
            (_TURNED, _turned),
        )
    },
    **{
        ("allreduce", kind): sent
        for kind, sent in (
            ("ring", _twice(ring)), ("both-ways", _twice(_both_ways)), ("tree", _tree),
            ("chain", chain), ("direct-oneshot", _direct), ("direct-twoshot", _twice(_direct)),
            ("circulant", _twice(_circulant)), ("recursive-doubling", _recursive_doubling),
            ("halving-doubling", _halving_doubling), ("swing", _swing),
            *((f"hier-{i}-{b}", _twice(_gathered(i, b))) for i in _KINDS[:2] for b in _KINDS),
            *((f"hier-{i}-tree", _rail_trees(i)) for i in ("direct", "ring")),
            ("nvls", _switched("direct")),
            *((f"hier-nvls-{b}", _switched(b)) for b in (*_KINDS, "tree")),
            *((f"levels-{i}-{o}", _twice(_levels(i, o))) for i, o in _LEVELS),
            (_TURNED, _twice(_turned)),
        )
    },
    **{("broadcast", kind): sent for kind, sent in ROOTED},
    **{("reduce", kind): backwards(sent) for kind, sent in ROOTED},
    **{
        ("alltoall", kind): sent
        for kind, sent in (
            ("direct", _direct), ("pairwise", _pairwise), ("ring", _relayed),
            ("bruck", _bruck(2)), ("bruck-4", _bruck(4)), ("bruck-8", _bruck(8)),
            ("grid", _grid), ("hier-direct-direct", _two_hops),
            ("hier-direct-pairwise", _two_hops_in_turn),
        )
    },
}  # fmt: skip


SENT_AT_ONCE = {
    ("alltoall", "pairwise"): "direct",
    ("alltoall", "hier-direct-pairwise"): "hier-direct-direct",
}
"""Algorithms that send what another one sends, but in turn: no link carries less."""


def stages_of(collective: str, algorithm: str, places: Places) -> list[Stage] | None:
    """Return what an algorithm sends at least, in order; None where nothing is known of it."""
    sent = _TABLE.get((collective, algorithm))
    if sent is None or places.n < 2:
        return None
    return [stage for stage in sent(places) if stage.steps] or None
