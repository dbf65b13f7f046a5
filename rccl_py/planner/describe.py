"""Plans, rings and trees as text: what a person, or a script that knows RCCL's log, reads.

Owns the wording. Ring and tree lines are those of RCCL's INFO log (``Channel 00/07 : 0 1 2``,
``Trees [0] 1/-1/-1->0->-1``). Knows nothing of where the text goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

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
    """Yield the whole story of one plan: choice, bound, bottleneck, candidates, rings, trees.

    Rings and trees where the choice or a policy uses them; whole: always, in full.
    """
    yield from plan.explain().splitlines()
    names = f"{plan.algorithm} {plan.made_of}"
    if whole or plan.policy or "ring" in names:
        yield "#"
        yield f"# Rings ({planner.rings.rule})"
        yield from ring_lines(planner.rings.orders, None if whole else _LONG)
    if whole or plan.policy or "tree" in names:
        yield f"# Trees (down/down/down->rank->up), ranks 0..{min(ranks, plan.nranks) - 1}"
        yield from tree_lines(planner.trees, ranks, None if whole else _LONG // 4)


def explained(plan: Plan, ranges: Sequence[Range]) -> Iterator[str]:
    """Yield a plan on one screen: at most 24 lines of 100 columns.

    The choice, how much of the optimum it reaches and which cut says so, the bottleneck, the best
    of what was not chosen, and what other sizes get (ranges, of `Planner.breakpoints`).
    """
    by = "" if plan.engine == "estimate" else " (by the estimate)"
    rest = f"; rest: {plan.rest}" if plan.rest else ""
    lines = [
        f"# {plan.collective} of {format_size(plan.size)} bytes on {plan.profile.fabric.name}, "
        f"{plan.nranks} ranks",
        *_told("chosen", plan.chosen, 2),
        *(_told("side by side", plan.made_of) if plan.made_of else []),
        *_told("optimum", _optimum(plan), 2),
        *_told("because", plan.bound.cut, 2),
        *_told("bottleneck", f"{plan.bottleneck}{by}{rest}", 2),
        *_told("decided by", plan.decided, 2),
        *(_told("policy", plan.candidates[0].reason, 2) if plan.policy else []),
        *(_told("hint", plan.hint, 2) if plan.hint else []),
    ]
    lines += _alternatives(plan, _HIGH - len(lines) - (3 if ranges else 0))
    if ranges:
        text = "; ".join(f"to {about(r.hi)} {r}" for r in ranges)
        lines += _told("by size", f"(by the estimate) {text}", _HIGH - len(lines))
    yield from lines


def _optimum(plan: Plan) -> str:
    """Return how much of the optimum is reached, and what that takes for granted."""
    share = plan.bound.seconds / plan.decided_time
    least = "" if plan.bound.exact else "at least "
    text = (
        f"{least}{share:.1%} of the best any algorithm could do here, "
        f"{format_time(plan.bound.seconds)}"
    )
    if plan.collective == "allreduce" and plan.profile.fabric.multicast:
        text += ", if its switches add up"
    return text


def _alternatives(plan: Plan, room: int) -> list[str]:
    """Return the best of what was not chosen, in so many lines: its times, and why it lost."""
    others = plan.candidates[1:]
    if not others:
        return ["alternatives", "  none"]
    engine = next((c.engine for c in plan.candidates if c.engine), "")
    heads = "".join(f" {said:>10} " for said in ("estimate", engine.replace("ate", "ation")))
    lines = [f"{'alternatives':<38}{heads if engine else ''}".rstrip()]
    shown = sorted(others, key=lambda c: c.checked if plan.engine == c.engine else np.inf)
    names = [f"{c.algorithm}/{c.protocol}" for c in plan.candidates]
    alike = Counter(_alike(c) for c in shown)
    firsts = list({_alike(c): c for c in reversed(shown)}.values())[::-1]
    left = len(others)
    for number, candidate in enumerate(firsts):
        told = _alternative(candidate, names, engine, alike[_alike(candidate)] - 1)
        after = left - alike[_alike(candidate)]
        if number == _SHOWN or len(lines) + len(told) + (after > 0) > room:
            lines.append(f"  and {left} more (without --explain: all)")
            break
        lines, left = lines + told, after
    return lines


def _alike(candidate: Candidate) -> tuple[str, ...]:
    """Return what candidates share that are told of in one line."""
    times = f"{candidate.seconds:.6e}", f"{candidate.checked:.6e}"
    return *times, candidate.protocol, candidate.reason


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


def _alternative(candidate: Candidate, names: Sequence[str], engine: str, more: int) -> list[str]:
    """Return an alternative, and how many more are like it, in a line or two."""
    named = f"{candidate.algorithm}/{candidate.protocol}".rstrip("/")
    if names.count(named) > 1 or named == names[0]:
        named += f" ({candidate.pieces} pieces)"
    times = [candidate.seconds, *([candidate.checked] if engine else [])]
    took = "".join(f" {format_time(t) if np.isfinite(t) else '-':>10} " for t in times)
    head = f"  {named:<36}{took} "
    rows = wrap(
        candidate.reason + (f"; {more} more alike" if more else ""),
        _WIDE - len(head),
        max_lines=2,
        placeholder=" ...",
        break_on_hyphens=False,
    ) or [""]
    return [(head if k == 0 else " " * len(head)) + row for k, row in enumerate(rows)]


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


def _number(value: float) -> int | float:
    """Return a whole number as an integer."""
    return int(value) if float(value).is_integer() else value


def range_as_dict(found: Range) -> dict[str, object]:
    """Return a range of sizes as plain values, ready for JSON; in bytes, seconds and B/s."""
    return {
        "from": _number(found.lo),
        "to": _number(found.hi),
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "pieces": found.pieces,
        "first": found.first,
        "last": found.last,
        "latency": found.latency,
        "rate": found.rate if np.isfinite(found.rate) else None,
        "loses": found.loses,
    }


def plan_as_dict(plan: Plan, planner: Planner) -> dict[str, object]:
    """Return a plan as plain values, ready for JSON; in seconds, bytes and B/s.

    seconds and all that follows from them are by `engine`, the one that decided.
    """
    seconds = plan.decided_time
    return {
        "collective": plan.collective,
        "topology": planner.fabric.name,
        "nranks": plan.nranks,
        "root": plan.root,
        "size": _number(plan.size),
        "algorithm": plan.algorithm,
        "protocol": plan.protocol,
        "channels": plan.nchannels,
        "pieces": plan.pieces,
        "seconds": seconds,
        "engine": plan.engine,
        "estimated_seconds": plan.time,
        "algbw": plan.size / seconds,
        "busbw": plan.busbw * plan.time / seconds,
        "made_of": plan.made_of,
        "bound": {
            "seconds": plan.bound.seconds,
            "cut": plan.bound.cut,
            "exact": plan.bound.exact,
            "launch": plan.bound.launch,
            "latency": plan.bound.latency,
            "hops": plan.bound.hops,
            "links": plan.bound.links,
            "memory": plan.bound.memory,
            "own": plan.bound.own,
        },
        "cut": plan.bound.cut,
        "exact": plan.bound.exact,
        "gap": seconds / plan.bound.seconds,
        "share": plan.bound.seconds / seconds,
        "share_of_optimum": plan.bound.seconds / seconds,
        "hint": plan.hint,
        "decided_by": plan.decided,
        "bottleneck": plan.bottleneck,
        "time_goes_to": plan.shares,
        "first_call": plan.first_call,
        "candidates": [
            {
                "algorithm": c.algorithm,
                "protocol": c.protocol,
                "channels": c.nchannels,
                "pieces": c.pieces,
                "seconds": c.seconds if np.isfinite(c.seconds) else None,
                "engine": c.engine or "estimate",
                "checked_seconds": c.checked if np.isfinite(c.checked) else None,
                "reason": c.reason,
            }
            for c in plan.candidates
        ],
        "rings": planner.rings.orders.tolist(),
        "trees": planner.trees.tolist(),
    }
