"""The first few candidates once more, by a finer engine: does the fastest stay the fastest?

Owns which candidates are asked about and what follows. The estimate lets every rank wait for all
others after each step. The simulation and the clock (rccl_py.timing.simulate and .clock) let it
wait for what it is sent only, so a form whose ranks drift apart is faster by them; and in the
simulation flows that do not start together get in each other's way. Schedules of too many messages
are clocked, those of far too many are not: then the estimate stands, and the plan says so.
"""

from __future__ import annotations

from dataclasses import replace

from ..fabric import Fabric
from ..links import PROTOCOLS
from ..timing import timed
from ..units import format_time
from .plan import ENGINES
from .ranking import Choice, Timed

__all__ = ["verified"]

_FIRST = 4  # algorithms that are asked about
_CLOSE = 1.20  # times the best estimate: what is slower is not asked about
_SIMULATED = 150_000  # rows of a schedule that is simulated
_CLOCKED = 1_500_000  # rows of one that is clocked
_SAVES = 0.01  # of the time, that makes the engine's favourite the choice
_CONFIRMS = 0.03  # of the estimate, that a finer engine may be off and still confirm it
_EQUAL = 5e-4  # of a time, that is no difference


def verified(choice: Choice, fabric: Fabric) -> tuple[Choice, str]:
    """Return the choice after a finer engine was asked, and which decided it and why, as text."""
    first = _first(choice)
    if not first:
        return choice, "the estimate"
    alone = f"the estimate: {_alone(choice)}" if len(first) == 1 else ""
    most = max(entry[2].profile.rows for entry in first)
    if most > _CLOCKED:
        many = f"the estimate: {most:,} messages are too many for another engine"
        return choice, alone or many
    engine = "simulate" if most <= _SIMULATED else "clock"
    said = ENGINES[engine]
    times = [_seconds(entry, choice, fabric, engine) for entry in first]
    choice = replace(choice, engine=engine, finer=tuple(zip(first, times)))
    won = min(range(len(first)), key=lambda k: (times[k], k))
    names = _names(first)
    if times[won] >= times[0] * (1 - _SAVES):
        told = f"{said} {_beside(first[0][0], names, times)}"
        return choice, f"{alone}; {told}" if alone else f"the estimate; {told}"
    saved = 1 - times[won] / times[0]
    why = (
        f"chosen: {format_time(times[won])} by {said}, {saved:.1%} less than {names[0]}, "
        "which the estimate has first"
    )
    followed = replace(choice, follows=first[won], why=why, asked=f"what {said} found faster")
    return followed, (
        f"{said}: {names[won]} {format_time(times[won])}, {names[0]} {format_time(times[0])}"
    )


def _alone(choice: Choice) -> str:
    """Return why only one option is worth a finer engine."""
    timed = sorted(choice.timed, key=lambda t: t[:2])
    if len(timed) > 1 and timed[1][0] <= timed[0][0] * _CLOSE:
        return (
            f"within {_CLOSE - 1:.0%} are only its own other protocols and pieces, or what takes "
            "as long to nine digits"
        )
    return f"nothing else comes within {_CLOSE - 1:.0%}"


def _names(first: list[Timed]) -> list[str]:
    """Return what to call options: by pieces where several are called alike, or "another"."""
    names = [f"{t[2].algorithm.name}/{t[3]}" for t in first]
    pieces = [f"{name} ({t[2].pieces} pieces)" for name, t in zip(names, first)]
    told = []
    for k, (name, piece) in enumerate(zip(names, pieces)):
        again = name in names[:k]
        several = names.count(name) > 1 and len({p for p in pieces if p.startswith(name)}) > 1
        told.append(piece if several else f"another {name}" if again else name)
    return told


def _beside(estimate: float, names: list[str], times: list[float]) -> str:
    """Return what the finer engine says where the estimate's first stays the choice."""
    off, best = times[0] / estimate - 1, min(times)
    faster = best < times[0] * (1 - _EQUAL)
    told = [f"{name} {format_time(s)}" for name, s in zip(names, times)]
    if faster:
        saved = f" would be {1 - best / times[0]:.1%} faster, within the {_SAVES:.0%} left alone"
        told[times.index(best)] += saved
    if faster or abs(off) > _CONFIRMS:
        others = f"; {', '.join(told[1:])}" if told[1:] else ""
        return f"takes {format_time(times[0])} ({off:+.1%}){others}"
    return f"confirms: {', '.join([format_time(times[0]), *told[1:]])}"


def _first(choice: Choice) -> list[Timed]:
    """Return the best entry of each of the first few algorithms that are close.

    What differs in its trees is another algorithm; what takes as long to nine digits is the same.
    """
    kept: dict[tuple[str, int], Timed] = {}
    times: set[str] = set()
    for entry in sorted(choice.timed, key=lambda t: t[:2]):
        recipe = entry[2].recipe
        trees = 0 if recipe is None or recipe.forest is None else id(recipe.forest)
        key = entry[2].algorithm.name, trees
        if key not in kept and f"{entry[0]:.9e}" not in times:
            kept[key] = entry
        times.add(f"{entry[0]:.9e}")
    found = list(kept.values())[:_FIRST]
    return [entry for entry in found if entry[0] <= found[0][0] * _CLOSE]


def _seconds(entry: Timed, choice: Choice, fabric: Fabric, engine: str) -> float:
    _, _, option, protocol = entry
    line = timed(
        option.schedule,
        fabric,
        choice.block,
        PROTOCOLS[protocol],
        engine=engine,
        known=option.profile,
    )
    return line.seconds
