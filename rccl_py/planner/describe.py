"""Plans, rings and trees as text: what a person, or a script that knows RCCL's log, reads.

Owns the wording. Ring and tree lines are those of RCCL's INFO log (``Channel 00/07 : 0 1 2``,
``Trees [0] 1/-1/-1->0->-1``). Knows nothing of where the text goes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import I32
from .plan import Plan
from .planner import Planner

__all__ = ["plan_as_dict", "plan_lines", "ring_lines", "table_lines", "tree_lines"]


def ring_lines(orders: I32) -> Iterator[str]:
    """Yield ``Channel cc/nn : order`` for every ring."""
    for c, order in enumerate(orders.tolist()):
        yield f"Channel {c:02d}/{len(orders):02d} : " + " ".join(str(r) for r in order)


def tree_lines(parents: I32, ranks: int) -> Iterator[str]:
    """Yield ``rank r: Trees [c] down/down/down->r->up ...`` for the first `ranks` ranks."""
    for rank in range(min(ranks, parents.shape[1])):
        parts = []
        for c, parent in enumerate(parents):
            down = np.flatnonzero(parent == rank).tolist()[:3]
            down += [-1] * (3 - len(down))
            parts.append(f"[{c}] {'/'.join(map(str, down))}->{rank}->{int(parent[rank])}")
        yield f"rank {rank}: Trees " + " ".join(parts)


def plan_lines(plan: Plan, planner: Planner, ranks: int = 8) -> Iterator[str]:
    """Yield the whole story of one plan: choice, bound, bottleneck, candidates, rings, trees."""
    yield from plan.explain().splitlines()
    yield "#"
    yield f"# Rings ({planner.rings.rule})"
    yield from ring_lines(planner.rings.orders)
    yield f"# Trees (down/down/down->rank->up), ranks 0..{min(ranks, plan.nranks) - 1}"
    yield from tree_lines(planner.trees, ranks)


def table_lines(plans: list[Plan]) -> Iterator[str]:
    """Yield one row a size: what is chosen, its time, the bound, the bottleneck."""
    yield (
        f"# {'size (B)':>12} {'algorithm':<22} {'proto':<7} {'channels':>8} {'pieces':>6} "
        f"{'time (us)':>12} {'bound (us)':>12} {'gap':>6}  bottleneck"
    )
    for plan in plans:
        yield (
            f"  {plan.size:>12.0f} {plan.algorithm:<22} {plan.protocol:<7} {plan.nchannels:>8} "
            f"{plan.pieces:>6} {plan.time * 1e6:>12.2f} {plan.bound.seconds * 1e6:>12.2f} "
            f"{plan.gap:>6.2f}  {plan.bottleneck}"
        )


def plan_as_dict(plan: Plan, planner: Planner) -> dict[str, object]:
    """Return a plan as plain values, ready for JSON; times in seconds, sizes in bytes."""
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
        "bound": {"seconds": plan.bound.seconds, "cut": plan.bound.cut},
        "bottleneck": plan.bottleneck,
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
