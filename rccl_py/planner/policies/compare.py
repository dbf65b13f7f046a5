"""Policies beside the best by the physical model, and the best as rules of a tuner file.

Owns the comparison and its text. A planner is asked for plans; nothing here times anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import InvalidArgument
from ...units import format_size
from .choice import Pick, Policy
from .graph import Figures
from .nccl import channels_of
from .tuner_csv import Rule

if TYPE_CHECKING:
    from ..plan import Candidate, Plan
    from ..planner import Planner

__all__ = [
    "EXPRESSIBLE",
    "Comparison",
    "compared",
    "comparison_as_dict",
    "comparison_lines",
    "rules_of",
]

_NAMES = {
    ("allreduce", "ring"): "Ring",
    ("allreduce", "tree"): "Tree",
    ("allreduce", "chain"): "Tree",
    ("allreduce", "nvls"): "NVLS",
    ("allreduce", "hier-nvls-tree"): "NVLSTree",
    **{(name, "ring"): "Ring" for name in ("allgather", "reduce_scatter", "broadcast", "reduce")},
}
"""(collective, our algorithm) -> what NCCL calls it, where it has the same."""

EXPRESSIBLE = tuple(sorted({algorithm for _, algorithm in _NAMES}))
"""Our algorithms that NCCL has a name for."""

_LAST = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Comparison:
    """One policy at one size. pick: its choice. plan: that, timed by the physical model.

    best: what is fastest by that model.
    """

    policy: str
    pick: Pick
    plan: Plan
    best: Plan

    @property
    def gain(self) -> float:
        """How many times as long the policy's choice takes."""
        return self.plan.time / self.best.time if self.best.time > 0 else 1.0


def compared(
    planner: Planner, policies: Iterable[Policy], collective: str, block: float, root: int = 0
) -> list[Comparison]:
    """Return what each policy picks for blocks of `block` bytes, beside the best."""
    best = planner.plan_by(None, collective, block, root)
    found = []
    for policy in policies:
        pick = policy.pick(planner.figures(policy), collective, best.size)
        plan = planner.plan_by(policy, collective, block, root)
        found.append(Comparison(policy.name, pick, plan, best))
    return found


def comparison_lines(rows: Iterable[Comparison]) -> Iterator[str]:
    """Yield the table of `rccl-plan --compare`; times in us, all by the physical model but one."""
    yield (
        f"# {'size (B)':>12} {'policy':<10} {'picks':<22} {'channels':>8} {'time (us)':>12} "
        f"{'its own (us)':>12}  {'best here':<28} {'time (us)':>12} {'gain':>6}"
    )
    for row in rows:
        pick, best = row.pick, row.best
        own = "-" if pick.seconds is None else f"{pick.seconds * 1e6:.2f}"
        picks, fastest = (f"{x.algorithm}/{x.protocol}" for x in (pick, best))
        yield (
            f"  {best.size:>12.0f} {row.policy[:24]:<10} {picks:<22} {pick.channels or '-':>8} "
            f"{row.plan.time * 1e6:>12.2f} {own:>12}  {fastest:<28} {best.time * 1e6:>12.2f} "
            f"{row.gain:>5.2f}x"
        )


def comparison_as_dict(row: Comparison) -> dict[str, object]:
    """Return one comparison as plain values, ready for JSON; seconds and bytes."""
    return {
        "collective": row.best.collective,
        "size": row.best.size,
        "policy": row.policy,
        "algorithm": row.pick.algorithm,
        "protocol": row.pick.protocol,
        "channels": row.pick.channels,
        "own_seconds": row.pick.seconds,
        "note": row.pick.note,
        "ours": row.plan.algorithm,
        "seconds": row.plan.time,
        "best": {
            "algorithm": row.best.algorithm,
            "protocol": row.best.protocol,
            "seconds": row.best.time,
        },
        "gain": row.gain,
    }


def _expressible(plan: Plan, *, switched: bool) -> Candidate | None:
    """Return the fastest candidate that NCCL has a name for, None where there is none."""
    for candidate in sorted(plan.candidates, key=lambda c: c.seconds):
        name = _NAMES.get((plan.collective, candidate.algorithm))
        fits = name is not None and (switched or not name.startswith("NVLS"))
        if fits and math.isfinite(candidate.seconds):
            return candidate
    return None


def rules_of(plans: list[Plan], figures: Figures) -> tuple[list[Rule], list[str]]:
    """Return the best plans that NCCL can express as rules, and remarks on those it cannot.

    plans: of one collective, by rising size; a range reaches half way, by ratio, to the next.
    Channels are the library's own, and written out: NCCL's plugin starts from 1 channel, so that
    -1 leaves one instead of the default (RCCL's starts from the default since ROCm/rccl#1985).
    """
    rules: list[Rule] = []
    lost: dict[tuple[str, str], list[str]] = {}
    low = 0
    for plan, after in zip(plans, [*plans[1:], None]):
        high = _LAST if after is None else max(low, math.isqrt(int(plan.size * after.size)))
        found = _expressible(plan, switched=figures.nvls is not None)
        if found is None:
            raise InvalidArgument(
                f"tuner file: {plan.collective} has no algorithm there: expected allreduce, "
                "allgather, reduce_scatter, broadcast or reduce"
            )
        best = f"{plan.algorithm}/{plan.protocol}"
        if found.seconds > plan.time * 1.0005:
            share = 1 - plan.time / found.seconds
            key = best, f"{found.algorithm}/{found.protocol}"
            lost.setdefault(key, []).append(f"{format_size(plan.size)} ({share:.0%})")
        name = _NAMES[plan.collective, found.algorithm]
        channels = _channels(name, found.protocol, plan.size, figures)
        rule = Rule(plan.collective, low, high, name, found.protocol)
        rule = replace(rule, channels=channels, nodes=figures.nodes, ranks=figures.ranks)
        _append(rules, rule)
        low = high + 1
    remarks = [
        f"not expressible: {best}, faster than {instead} at {', '.join(sizes)}"
        for (best, instead), sizes in lost.items()
    ]
    return rules, remarks


def _channels(name: str, protocol: str, size: float, figures: Figures) -> int:
    """Return the channels the library would take for this size itself: all of them on AMD."""
    if figures.arch.startswith("gfx"):
        return figures.channels
    return channels_of(name, protocol, size, figures)


def _append(rules: list[Rule], rule: Rule) -> None:
    """Add a rule, or widen the last one if it says the same."""
    if rules and replace(rules[-1], least=rule.least, most=rule.most) == rule:
        rules[-1] = replace(rules[-1], most=rule.most)
    else:
        rules.append(rule)
