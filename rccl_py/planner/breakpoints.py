"""At which sizes the choice changes: a table, for people and for whoever caches choices.

Owns the table and the rule that makes it readable. The fastest option is looked up at sizes a
factor of two apart; between them options are compared by their profiles. Options are ordered by
what they take for nothing at all: a larger call may go on to an option of higher latency, never
back, so a row that was left is not taken again. Where going back would be faster by no more than
1% (NOISE) it is left alone; where it is more than that, the row says so.

    from       to                       time at both
    8 B        64 KB   tree/LL          5.1 us    10.6 us
    64 KB      4 MB    direct/LL       10.6 us    31.0 us
    4 MB       16 GB   direct/Simple   31.0 us    51.9 ms
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..fabric import F64
from ..links import PROTOCOLS
from ..units import format_time
from .ranking import Option

__all__ = ["NOISE", "Range", "about", "breakpoint_lines", "ranges", "sizes_between"]

NOISE = 0.01
"""A choice this much slower than the fastest is kept rather than changed for a while."""

_PER_OCTAVE = 8  # sizes at which options are compared, between powers of two


@dataclass(frozen=True, slots=True, repr=False)
class Range:
    """Sizes lo..hi (bytes, both included) that are done alike.

    latency: s for next to nothing; rate: B/s of size that each further byte costs at the upper end.
    loses: the most a size of the range takes longer than by its fastest option, as a part of it.
    first, last: s of a call of lo and of hi bytes, by the estimate, as Planner.plan says them: more
    than latency + size / rate, since windows fill and blocks are copied out.
    """

    lo: float
    hi: float
    algorithm: str
    protocol: str
    pieces: int
    latency: float
    rate: float
    loses: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def __repr__(self) -> str:
        sizes = f"{self.lo:.0f} to {self.hi:.0f} B"
        return f"<Range {sizes}: {self}, {format_time(self.first)} to {format_time(self.last)}>"

    def __str__(self) -> str:
        cut = f", {self.pieces} pieces" if self.pieces > 1 else ""
        return f"{self.algorithm}/{self.protocol}{cut}"


@dataclass(frozen=True, eq=False)
class _Line:
    """An option under a protocol, and its s at every size looked at."""

    option: Option
    protocol: str
    seconds: F64

    def at(self, block: float) -> float:
        """Return the s for blocks of `block` bytes."""
        return float(self.option.profile.seconds(block, PROTOCOLS[self.protocol]))


def sizes_between(lo: float, hi: float, per_octave: int = 1) -> F64:
    """Return sizes a factor of 2 ** (1 / per_octave) apart, from lo to hi and both of them."""
    steps = int(np.floor(np.log2(hi / lo) * per_octave + 1e-9))
    found = lo * 2.0 ** (np.arange(steps + 1) / per_octave)
    return np.unique(np.append(found, [lo, hi]))


def ranges(taken: Sequence[tuple[Option, str]], blocks: int, lo: float, hi: float) -> list[Range]:
    """Return the ranges of sizes lo..hi of the options that are fastest at some of the sizes.

    taken: those, each with its protocol. blocks: blocks a size is.
    """
    sizes = sizes_between(lo, hi, _PER_OCTAVE)
    lines = _lines(taken, sizes / blocks)
    path = _monotone(np.stack([line.seconds for line in lines]))
    return list(_told(lines, path, sizes, blocks))


def _lines(options: Sequence[tuple[Option, str]], sizes: F64) -> list[_Line]:
    """Return each option once, in order of its latency."""
    seen: dict[tuple[str, int, str], _Line] = {}
    for option, protocol in options:
        key = option.algorithm.name, option.pieces, protocol
        if key not in seen:
            found = option.profile.seconds(sizes, PROTOCOLS[protocol])
            seen[key] = _Line(option, protocol, np.asarray(found))
    return sorted(seen.values(), key=lambda line: (line.at(0.0), line.seconds[0]))


def _monotone(seconds: F64) -> list[int]:
    """Return the line for every size: never one of less latency than before, and few changes.

    seconds: float64[lines, sizes], lines by latency. What is lost beyond NOISE counts most, then
    changes: a path of least cost, by dynamic programming over sizes.
    """
    count, many = seconds.shape
    over = np.maximum(seconds / seconds.min(axis=0) - 1 - NOISE, 0.0) * 1e6
    over += (seconds / seconds.min(axis=0) - 1) * 1e-3  # of equals the faster
    cost, came = over[:, 0].copy(), np.zeros((many, count), dtype=np.int64)
    for s in range(1, many):
        # The cheapest line up to each, one change dearer than staying.
        best = np.empty(count, dtype=np.int64)
        for k in range(count):
            best[k] = int(np.argmin(cost[: k + 1] + (np.arange(k + 1) < k)))
        came[s] = best
        cost = cost[best] + (best < np.arange(count)) + over[:, s]
    path = [int(cost.argmin())]
    for s in range(many - 1, 0, -1):
        path.append(int(came[s, path[-1]]))
    return path[::-1]


def _told(lines: list[_Line], taken: list[int], sizes: F64, blocks: int) -> Iterator[Range]:
    fastest = np.stack([line.seconds for line in lines]).min(axis=0)
    edges = [k for k in range(1, len(taken)) if taken[k] != taken[k - 1]]
    start = float(sizes[0])
    for first, after in zip([0, *edges], [*edges, len(taken)]):
        line = lines[taken[first]]
        last = after == len(taken)
        cross = 0.0 if last else _crossing(line, lines[taken[after]], blocks,
                                           sizes[after - 1], sizes[after])  # fmt: skip
        end = float(sizes[-1]) if last else cross - 1.0
        lost = float((line.seconds[first:after] / fastest[first:after]).max()) - 1
        top = line.at(end / blocks)
        slope = top - line.at(end / blocks / 2)
        rate = end / 2 / slope if slope > 0 else np.inf
        yield Range(start, end, line.option.algorithm.name, line.protocol, line.option.pieces,
                    line.at(0.0), rate, lost if lost > NOISE else 0.0,
                    line.at(start / blocks), top)  # fmt: skip
        start = cross


def _crossing(one: _Line, two: _Line, blocks: int, low: float, high: float) -> float:
    """Return the first whole size from low to high for which the second is as fast."""
    low, high = float(np.floor(low)), float(np.ceil(high))
    while high - low > 1:
        middle = float(np.floor((low + high) / 2))
        if two.at(middle / blocks) <= one.at(middle / blocks):
            high = middle
        else:
            low = middle
    return high


def about(size: float) -> str:
    """Return a size to three digits: 5243000 -> ``"5M"``, 1500 -> ``"1.46K"``."""
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size >= 1024**power:
            return f"{size / 1024**power:.3g}{unit}"
    return f"{size:.0f}"


def breakpoint_lines(found: Sequence[Range]) -> Iterator[str]:
    """Yield the table: from which size on what is done, and what that takes, first and last."""
    yield (
        f"# {'from':>10} {'to':>10}  {'algorithm':<24} {'proto':<7} {'pieces':>6}"
        f" {'at from':>10} {'at to':>10}"
    )
    for r in found:
        said = f"; up to {r.loses:.1%} slower than changing back" if r.loses else ""
        yield (
            f"  {about(r.lo):>10} {about(r.hi):>10}  {r.algorithm:<24} {r.protocol:<7} "
            f"{r.pieces:>6} {format_time(r.first):>10} {format_time(r.last):>10}{said}"
        )
