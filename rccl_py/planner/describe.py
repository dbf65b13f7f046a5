"""Plans, rings and trees as text: what a person, or a script that knows RCCL's log, reads.

Owns the wording. Ring and tree lines are those of RCCL's INFO log (``Channel 00/07 : 0 1 2``,
``Trees [0] 1/-1/-1->0->-1``). Knows nothing of where the text goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten, wrap

import numpy as np

from ..schedule import I32
from ..units import format_size, format_time
from .breakpoints import Range, about
from .plan import Candidate, Plan
from .planner import Planner

__all__ = [
    "explained",
    "plan_as_dict",
    "plan_lines",
    "range_as_dict",
    "ring_lines",
    "table_lines",
    "tree_lines",
]

_WIDE, _HIGH = 100, 24  # a screen
_SHOWN = 5  # alternatives on it

_LONG = 64  # ranks of a ring, and four times the trees, that a person still reads


def ring_lines(orders: I32, most: int | None = None) -> Iterator[str]:
    """Yield ``Channel cc/nn : order`` for every ring, of at most `most` ranks each."""
    for c, order in enumerate(orders.tolist()):
        cut = f" ... ({len(order)} ranks)" if most and len(order) > most else ""
        shown = " ".join(str(r) for r in order[:most])
        yield f"Channel {c:02d}/{len(orders):02d} : {shown}{cut}"


def tree_lines(parents: I32, ranks: int, most: int | None = None) -> Iterator[str]:
    """Yield ``rank r: Trees [c] down/down/down->r->up ...`` for the first `ranks` ranks.

    most: so many trees of each.
    """
    for rank in range(min(ranks, parents.shape[1])):
        parts = []
        for c, parent in enumerate(parents[:most]):
            down = np.flatnonzero(parent == rank).tolist()[:3]
            down += [-1] * (3 - len(down))
            parts.append(f"[{c}] {'/'.join(map(str, down))}->{rank}->{int(parent[rank])}")
        cut = f" ... ({len(parents)} trees)" if most and len(parents) > most else ""
        yield f"rank {rank}: Trees {' '.join(parts)}{cut}"


def plan_lines(
    plan: Plan, planner: Planner, ranks: int = 8, *, whole: bool = False
) -> Iterator[str]:
    """Yield the whole story of one plan: choice, bound, bottleneck, candidates, rings, trees."""
    yield from plan.explain().splitlines()
    yield "#"
    yield f"# Rings ({planner.rings.rule})"
    yield from ring_lines(planner.rings.orders, None if whole else _LONG)
    yield f"# Trees (down/down/down->rank->up), ranks 0..{min(ranks, plan.nranks) - 1}"
    yield from tree_lines(planner.trees, ranks, None if whole else _LONG // 4)


def explained(plan: Plan, ranges: Sequence[Range]) -> Iterator[str]:
    """Yield a plan on one screen: at most 24 lines of 100 columns.

    The choice, how much of the optimum it reaches and which cut says so, the bottleneck, the best
    of what was not chosen, and what other sizes get (ranges, of `Planner.breakpoints`).
    """
    lines = [
        f"# {plan.collective} of {format_size(plan.size)} bytes on {plan.profile.fabric.name}, "
        f"{plan.nranks} ranks",
        *_told("chosen", plan.chosen),
        *(_told("side by side", plan.made_of) if plan.made_of else []),
        *_told("optimum", f"{plan.share:.1%} of the best any algorithm could do here, "
                          f"{format_time(plan.bound.seconds)}"),
        *_told("because", plan.bound.cut, 2),
        *_told("bottleneck", plan.bottleneck, 2),
        *_told("decided by", plan.decided, 2),
        *(_told("policy", plan.candidates[0].reason, 2) if plan.policy else []),
        "alternatives",
        *(_alternative(c) for c in plan.candidates[1 : _SHOWN + 1]),
        *([] if len(plan.candidates) > 1 else ["  none"]),
    ]  # fmt: skip
    left = len(plan.candidates) - 1 - _SHOWN
    if left > 0:
        lines.append(f"  and {left} more (without --explain: all)")
    lines += _told("by size", "; ".join(f"to {about(r.hi)} {r}" for r in ranges),
                   _HIGH - len(lines))  # fmt: skip
    yield from lines


def _told(what: str, text: str, most: int = 1) -> list[str]:
    """Return ``what  text`` in at most so many lines."""
    rows = wrap(
        text,
        _WIDE - 14,
        max_lines=max(most, 1),
        placeholder=" ...",
        break_on_hyphens=False,
    ) or [""]
    return [f"{what if k == 0 else '':<12}  {row}" for k, row in enumerate(rows)]


def _alternative(candidate: Candidate) -> str:
    named = f"{candidate.algorithm}/{candidate.protocol}".rstrip("/")
    took = format_time(candidate.seconds) if np.isfinite(candidate.seconds) else "-"
    return _in_a_line(f"  {named:<34} {took:>10}  ", candidate.reason)


def _in_a_line(head: str, text: str) -> str:
    """Return head and text in one line of the screen."""
    return head + shorten(text, _WIDE - len(head), placeholder=" ...")


def table_lines(plans: list[Plan]) -> Iterator[str]:
    """Yield one row a size: what is chosen, its time, the bound, the bottleneck."""
    yield (
        f"# {'size (B)':>12} {'algorithm':<22} {'proto':<7} {'channels':>8} {'pieces':>6} "
        f"{'time (us)':>12} {'algbw':>8} {'busbw':>8} {'bound (us)':>12} {'gap':>6}  bottleneck"
    )
    for plan in plans:
        yield (
            f"  {plan.size:>12.0f} {plan.algorithm:<22} {plan.protocol:<7} {plan.nchannels:>8} "
            f"{plan.pieces:>6} {plan.time * 1e6:>12.2f} {plan.algbw / 1e9:>8.2f} "
            f"{plan.busbw / 1e9:>8.2f} {plan.bound.seconds * 1e6:>12.2f} "
            f"{plan.gap:>6.2f}  {plan.bottleneck}"
        )


def range_as_dict(found: Range) -> dict[str, object]:
    """Return a range of sizes as plain values, ready for JSON; in bytes, seconds and B/s."""
    return {
        "from": found.lo,
        "to": found.hi,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "pieces": found.pieces,
        "latency": found.latency,
        "rate": found.rate if np.isfinite(found.rate) else None,
        "loses": found.loses,
    }


def plan_as_dict(plan: Plan, planner: Planner) -> dict[str, object]:
    """Return a plan as plain values, ready for JSON; in seconds, bytes and B/s."""
    return {
        "collective": plan.collective,
        "topology": planner.fabric.name,
        "nranks": plan.nranks,
        "root": plan.root,
        "size": plan.size,
        "algorithm": plan.algorithm,
        "protocol": plan.protocol,
        "channels": plan.nchannels,
        "pieces": plan.pieces,
        "seconds": plan.time,
        "algbw": plan.algbw,
        "busbw": plan.busbw,
        "made_of": plan.made_of,
        "bound": {"seconds": plan.bound.seconds, "cut": plan.bound.cut},
        "gap": plan.gap,
        "share_of_optimum": plan.share,
        "decided_by": plan.decided,
        "bottleneck": plan.bottleneck,
        "first_call": plan.first_call,
        "candidates": [
            {
                "algorithm": c.algorithm,
                "protocol": c.protocol,
                "channels": c.nchannels,
                "pieces": c.pieces,
                "seconds": c.seconds if np.isfinite(c.seconds) else None,
                "reason": c.reason,
            }
            for c in plan.candidates
        ],
        "rings": planner.rings.orders.tolist(),
        "trees": planner.trees.tolist(),
    }
