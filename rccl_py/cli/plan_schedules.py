"""Schedules of other tools for rccl-plan: read, compared with the planner's choice, written.

Owns --schedule and --export. Knows no file format.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planner import Plan, Planner
    from ..programs import Custom

__all__ = ["LIMITS", "as_dicts", "collective_of", "export", "lines", "named", "read"]


LIMITS = ("rccl", "msccl", "none")
"""Readers of MSCCL XML, from the one that holds least to none at all."""

_WRITTEN = 1 << 17  # transfers of what is looked through for one that fits: some seconds
_TRIED = 12  # algorithms, besides the chosen one


def named(given: list[str] | None, environment: Mapping[str, str], separator: str) -> list[str]:
    """Return the files to read: those given, else those RCCL_PY_SCHEDULES names."""
    if given:
        return given
    return [f for f in environment.get("RCCL_PY_SCHEDULES", "").split(separator) if f.strip()]


def read(files: list[str]) -> list[Custom]:
    """Return the schedules of the files, each proved. Raises FormatError."""
    if not files:
        return []  # nothing of it is loaded then
    from ..formats import read_schedule
    from ..programs import distinct

    return distinct(read_schedule(name) for name in files)


def collective_of(asked: str | None, customs: list[Custom]) -> str:
    """Return the collective: as asked, else the one the schedules do.

    Raises InvalidUsage where neither says, or a schedule does another.
    """
    from ..collectives import collective_named
    from ..errors import InvalidUsage

    found = collective_named(asked).name if asked else ""
    for custom in customs:
        found = found or custom.collective
        if custom.collective != found:
            raise InvalidUsage(f"{custom.source} does {custom.collective}, not {found}: "
                               "plan one collective at a time")  # fmt: skip
    if not found:
        raise InvalidUsage(
            "no collective: name one, as in rccl-plan allreduce, or give a --schedule"
        )
    return found


def _seconds(plan: Plan, custom: Custom) -> tuple[float, str]:
    """Return the best time of a schedule in a plan, and why there is none."""
    mine = [c for c in plan.candidates if c.algorithm == custom.name]
    best = min(mine, key=lambda c: c.seconds, default=None)
    if best is None or math.isinf(best.seconds):
        return math.inf, best.reason if best is not None else "not a candidate"
    return best.seconds, ""


def _others(plan: Plan, customs: list[Custom]) -> Any:
    names = {custom.name for custom in customs}
    own = [c for c in plan.candidates if c.algorithm not in names]
    return min(own, key=lambda c: c.seconds, default=None)


def lines(plans: list[Plan], planner: Planner, customs: list[Custom]) -> Iterator[str]:
    """Yield what each schedule is, and its time beside the best of the library's own, by size."""
    from ..units import format_size, format_time

    for custom in customs:
        layout = custom.schedule.layout
        steps = sum(phase.steps for phase in custom.schedule.phases())
        yield (
            f"# schedule {custom.source}: {custom}, {'/'.join(custom.protocols)}, "
            f"{custom.schedule.nchannels} channel(s), {layout.chunks} chunk(s) a block, "
            f"{steps} step(s): proved"
        )
        for note in custom.notes:
            yield f"# note: {note}"
        for plan in plans:
            seconds, why = _seconds(plan, custom)
            own = _others(plan, customs)
            if why or own is None:
                yield f"#   {format_size(plan.size):>8} bytes: not used: {why}"
                continue
            ratio = seconds / own.seconds
            yield (
                f"#   {format_size(plan.size):>8} bytes: {format_time(seconds)}, against "
                f"{format_time(own.seconds)} by {own.algorithm}/{own.protocol}: {ratio:.2f}x"
            )
    yield "#"


def as_dicts(plan: Plan, customs: list[Custom]) -> list[dict[str, object]]:
    """Return what JSON says of the schedules beside a plan."""
    found: list[dict[str, object]] = []
    for custom in customs:
        seconds, why = _seconds(plan, custom)
        own = _others(plan, customs)
        found.append({"source": custom.source, "name": custom.name,
                      "seconds": None if why else seconds, "reason": why,
                      "best_other": None if own is None else own.algorithm,
                      "best_other_seconds": None if own is None else own.seconds})  # fmt: skip
    return found


def export(plan: Plan, path: str, limits: str = "rccl", pieces: int | None = None) -> None:
    """Write a plan's schedule as MSCCL XML, for the reader `limits` names.

    pieces: what to cut it into instead of what the plan says. Raises FormatError where MSCCL cannot
    say it, or that reader not hold it; it names what would.
    """
    from ..errors import FormatError
    from ..units import format_time
    from .perf_files import write_whole

    plan = plan if pieces is None else _cut(plan, pieces)
    try:
        text = _written(plan, limits)
    except FormatError as error:
        what = str(error).partition(": take another plan")[0]
        raise FormatError(f"{what}: {_instead(plan, limits)}") from None
    write_whole(path, text)
    if path != "-":
        made = f"{plan.algorithm}, {plan.pieces} piece(s): {format_time(plan.time)}"
        print(f"# wrote {path}: {made} by the estimate", file=sys.stderr)


def _written(plan: Plan, limits: str) -> str:
    from ..errors import FormatError
    from ..formats import msccl_xml
    from ..formats.msccl_write import MOST_ROWS

    if plan.profile.rows > MOST_ROWS:
        raise FormatError(f"{plan.algorithm}: {plan.profile.rows:,} transfers, at most "
                          f"{MOST_ROWS:,} are written")  # fmt: skip
    name = f"{plan.algorithm}_{plan.nranks}"
    held = None if limits == "none" else limits
    return msccl_xml(plan.schedule, name=name, protocol=plan.protocol, limits=held)


def _fits(plan: Plan, limits: str) -> bool:
    from ..errors import FormatError

    try:
        _written(plan, limits)
    except FormatError:
        return False
    return True


def _cut(plan: Plan, pieces: int) -> Plan:
    """Return the plan with its algorithm in so many pieces. Raises InvalidUsage."""
    from ..algorithms import ALGORITHMS
    from ..errors import InvalidUsage
    from ..links import PROTOCOLS
    from ..timing import profile

    rows = [a for a in ALGORITHMS if (a.collective, a.name) == (plan.collective, plan.algorithm)]
    most = rows[0].pieces if rows else 1
    if not 1 <= pieces <= most or plan.algorithm == "mix":
        cut = f"is cut into 1 to {most}" if most > 1 else "has one piece: leave --pieces out"
        raise InvalidUsage(f"--pieces {pieces}: {plan.algorithm} {cut}"
                           if plan.algorithm != "mix" else
                           "--pieces: the parts of a mix have their own")  # fmt: skip
    recipe = replace(plan.recipe, pieces=pieces, memo={})
    schedule = rows[0].build(recipe)
    found = profile(schedule, plan.profile.fabric)
    seconds = float(found.seconds(plan.block, PROTOCOLS[plan.protocol], plan.channels))
    return replace(plan, schedule=schedule, profile=found, recipe=recipe, pieces=pieces,
                   nchannels=plan.channels or schedule.nchannels, time=seconds)  # fmt: skip


def _instead(plan: Plan, limits: str) -> str:
    """Return the best other plan that the reader holds, and which reader would hold this one."""
    from ..units import format_time

    found = [*_fewer(plan, limits), *_others_that_fit(plan, limits)]
    told = []
    if found:
        other, flag = min(found, key=lambda one: one[0].time)
        slower = other.time / plan.time - 1
        told.append(f"{flag} fits: {format_time(other.time)}, {slower:+.1%}")
    wider = [name for name in LIMITS[LIMITS.index(limits) + 1 :] if _fits(plan, name)]
    if wider:
        held = "is checked against no reader" if wider[0] == "none" else "holds it"
        told.append(f"--limits {wider[0]} {held}")
    return "; ".join(told) or "nothing else that was tried fits"


def _fewer(plan: Plan, limits: str) -> Iterator[tuple[Plan, str]]:
    """Yield the plan in as many pieces as the reader holds, and the flag that asks for it."""
    pieces = plan.pieces // 2 if plan.algorithm != "mix" else 0
    while pieces:
        if plan.profile.rows * pieces // plan.pieces > _WRITTEN:
            pieces //= 2
            continue
        other = _cut(plan, pieces)
        if _fits(other, limits):
            yield other, f"--pieces {pieces}"
            return
        pieces //= 2


def _others_that_fit(plan: Plan, limits: str) -> Iterator[tuple[Plan, str]]:
    """Yield the fastest plan of another algorithm that the reader holds, and its flag."""
    from ..errors import RcclError
    from ..planner import Planner

    names = dict.fromkeys(c.algorithm for c in plan.candidates if math.isfinite(c.seconds))
    names.pop(plan.algorithm, None)
    for name in list(names)[:_TRIED]:
        try:
            other = Planner(plan.profile.fabric, name).plan(plan.collective, plan.block, plan.root)
        except RcclError:  # a file's schedule, or what is made only beside others
            continue
        if _fits(other, limits):
            yield other, f"--algo {name}"
            return
