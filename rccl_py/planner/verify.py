"""The first few candidates once more, by a finer engine: does the fastest stay the fastest?

Owns which candidates are asked about and what follows. The estimate lets every rank wait for all
others after each step; the clock (rccl_py.timing.clock) lets it wait for what it is sent only, so a
form whose ranks drift apart is faster by it. Where all ranks do the same at any time both agree,
and large schedules are not clocked: then the estimate stands, and the plan says so.
"""

from __future__ import annotations

from dataclasses import replace

from ..fabric import Fabric
from ..links import PROTOCOLS
from ..timing import timed
from ..units import format_time
from .ranking import Choice, Timed

__all__ = ["verified"]

_FIRST = 3  # algorithms that are clocked
_CLOSE = 1.10  # times the best estimate: what is slower is not asked about
_ROWS = 50_000  # rows of a schedule that is clocked
_SAVES = 0.01  # of the time, that makes the clock's favourite the choice


def verified(choice: Choice, fabric: Fabric) -> tuple[Choice, str]:
    """Return the choice after the clock was asked, and who decided it and why, as text."""
    first = _first(choice)
    if len(first) < 2:
        return choice, f"the estimate: nothing else comes within {_CLOSE - 1:.0%}"
    if any(entry[2].profile.rows > _ROWS for entry in first):
        return choice, f"the estimate: more than {_ROWS:,} messages, too many for the clock"
    clocked = [_clocked(entry, choice, fabric) for entry in first]
    won = min(range(len(first)), key=lambda k: (clocked[k], k))
    names = [f"{t[2].algorithm.name}/{t[3]}" for t in first]
    if clocked[won] >= clocked[0] * (1 - _SAVES):
        others = ", ".join(f"{name} {format_time(s)}" for name, s in zip(names[1:], clocked[1:]))
        return choice, (
            f"the estimate, which the clock confirms: {format_time(clocked[0])}, {others}"
        )
    saved = 1 - clocked[won] / clocked[0]
    why = (
        f"chosen: {format_time(clocked[won])} by the clock, {saved:.1%} less than {names[0]}, "
        "which the estimate has first"
    )
    followed = replace(choice, follows=first[won], why=why, asked="what the clock found faster")
    return followed, (
        f"the clock: {names[won]} {format_time(clocked[won])}, {names[0]} {format_time(clocked[0])}"
    )


def _first(choice: Choice) -> list[Timed]:
    """Return the best entry of each of the first few algorithms that are close."""
    kept: dict[str, Timed] = {}
    for entry in sorted(choice.timed, key=lambda t: t[:2]):
        kept.setdefault(entry[2].algorithm.name, entry)
    found = list(kept.values())[:_FIRST]
    return [entry for entry in found if entry[0] <= found[0][0] * _CLOSE]


def _clocked(entry: Timed, choice: Choice, fabric: Fabric) -> float:
    _, _, option, protocol = entry
    line = timed(
        option.schedule,
        fabric,
        choice.block,
        PROTOCOLS[protocol],
        engine="clock",
        known=option.profile,
    )
    return line.seconds
