"""Schedules of other tools for rccl-plan: read, compared with the planner's choice, written.

Owns --schedule and --export. Knows no file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planner import Plan, Planner
    from ..programs import Custom

__all__ = ["as_dicts", "collective_of", "export", "lines", "named", "read"]


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


def export(plan: Plan, path: str) -> None:
    """Write a plan's schedule as MSCCL XML. Raises FormatError where that cannot say it."""
    from ..formats import msccl_xml
    from .perf_files import write_whole

    name = f"{plan.algorithm}_{plan.nranks}"
    write_whole(path, msccl_xml(plan.schedule, name=name, protocol=plan.protocol))
