"""A plan of unequal parts, for people and for JSON.

Owns the wording. Knows nothing of where the text goes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...units import format_time
from .alltoallv import UnevenCandidate, UnevenPlan

__all__ = ["uneven_as_dict", "uneven_lines"]


def uneven_lines(plan: UnevenPlan) -> Iterator[str]:
    """Yield the choice, the bound T* and its port, and every alternative with its time."""
    total, n = int(plan.counts.sum()), len(plan.counts)
    sent, got = plan.counts.sum(axis=1), plan.counts.sum(axis=0)
    rounds = len(plan.exchange.rounds)
    yield f"# alltoallv of {total:,} bytes on {plan.fabric.name}, {n} ranks"
    yield (
        f"# most sent {int(sent.max()):,} by rank {int(sent.argmax())}, most received "
        f"{int(got.max()):,} by rank {int(got.argmax())}, on average {total // n:,}"
    )
    yield (
        f"chosen        {plan.algorithm}/{plan.protocol}, "
        f"{rounds} round{'' if rounds == 1 else 's'}: {format_time(plan.seconds)}"
    )
    yield f"bound T*      {format_time(plan.bound)}, gap {plan.gap:.1%}"
    yield f"bottleneck    {plan.bottleneck}"
    yield "alternatives"
    for candidate in plan.candidates[1:]:
        yield _alternative(candidate)
    if len(plan.candidates) == 1:
        yield "  none"


def _alternative(candidate: UnevenCandidate) -> str:
    """Return one line: the way, its time, why it lost."""
    timed = np.isfinite(candidate.seconds)
    name = f"{candidate.algorithm}/{candidate.protocol}".rstrip("/")
    took = format_time(candidate.seconds) if timed else "-"
    return f"  {name:<22} {took:>10}  {candidate.reason or 'as fast'}"


def uneven_as_dict(plan: UnevenPlan) -> dict[str, object]:
    """Return a plan as plain values, ready for JSON; in seconds and bytes."""
    total, n = int(plan.counts.sum()), len(plan.counts)
    return {
        "collective": "alltoallv",
        "topology": plan.fabric.name,
        "nranks": n,
        "size": total / n,
        "bytes": total,
        "largest_part": int(plan.counts.max()),
        "most_sent": int(plan.counts.sum(axis=1).max()),
        "most_received": int(plan.counts.sum(axis=0).max()),
        "algorithm": plan.algorithm,
        "protocol": plan.protocol,
        "rounds": len(plan.exchange.rounds),
        "seconds": plan.seconds,
        "bound": {"seconds": plan.bound, "port": plan.bottleneck},
        "gap": plan.gap,
        "bottleneck": plan.bottleneck,
        "candidates": [
            {
                "algorithm": c.algorithm,
                "protocol": c.protocol,
                "rounds": c.rounds,
                "seconds": c.seconds if np.isfinite(c.seconds) else None,
                "reason": c.reason,
            }
            for c in plan.candidates
        ],
    }
