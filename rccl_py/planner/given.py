"""Schedules from outside the registry as options of a planner: imported, or written in Python.

Owns Given: which of them a call may use, priced like all others, and whether they are taken before
anything else, as RCCL takes an MSCCL file that fits. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ..algorithms import Algorithm, Recipe
from ..collectives import COLLECTIVES
from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..programs import Custom, distinct, proved
from ..schedule import Schedule
from ..timing import Loads, profile
from .plan import Candidate
from .ranking import Choice, Option, Timed

__all__ = ["AnySchedule", "Given"]

AnySchedule: TypeAlias = Custom | Schedule | Algorithm
_AFTER = 1 << 20  # of equals, the library's own are preferred


@dataclass(frozen=True, eq=False)
class Given:
    """The schedules given to one planner.

    first: whether one that fits a call is taken even if another is faster; of several, the
    fastest. loads: what the planner's options routed. recipe: what the fabric tells, by root.
    """

    fabric: Fabric
    customs: tuple[Custom, ...]
    algorithms: tuple[Algorithm, ...]
    first: bool
    loads: Loads
    recipe: Callable[[int], Recipe]
    options: dict[int, Option] = field(default_factory=dict)

    @staticmethod
    def of(
        fabric: Fabric,
        schedules: Sequence[AnySchedule],
        first: bool,
        loads: Loads,
        recipe: Callable[[int], Recipe],
    ) -> Given:
        """Return what was given, proved where it was not yet.

        Raises InvalidUsage for a schedule made for another number of ranks, ScheduleError for one
        that does not do its collective, InvalidArgument for something else.
        """
        customs, algorithms = list[Custom](), list[Algorithm]()
        for given in schedules:
            if isinstance(given, Algorithm):
                algorithms.append(replace(given, build=_proving(given)))
            elif isinstance(given, Schedule):
                customs.append(Custom(proved(given), given.algorithm, source="Python"))
            elif isinstance(given, Custom):
                customs.append(given)
            else:
                raise InvalidArgument(
                    f"custom: {given!r} is a {type(given).__name__}: a Custom "
                    "(rccl_py.read_schedule, rccl_py.custom), a Schedule or an Algorithm was "
                    "expected"
                )
        customs = distinct(customs)
        for custom in customs:
            if custom.nranks != fabric.nranks:
                raise InvalidUsage(
                    f"{custom.source or custom.name}: {custom} does not fit {fabric.name} with "
                    f"{fabric.nranks} ranks: leave it out, or take {custom.nranks} ranks"
                )
        return Given(fabric, tuple(customs), tuple(algorithms), first, loads, recipe)

    def rows(self, collective: str) -> list[Algorithm]:
        """Return the algorithms given for a collective, as rows of the registry."""
        return [a for a in self.algorithms if a.collective == collective]

    def priced(
        self, collective: str, block: float, root: int, protocols: Sequence[str]
    ) -> tuple[list[Timed], list[Candidate]]:
        """Return the options for a call, and the candidates that are not for it, with reasons."""
        timed, left = list[Timed](), list[Candidate]()
        spec = COLLECTIVES[collective]
        size = spec.size(block, self.fabric.nranks)
        for number, custom in enumerate(self.customs):
            if custom.collective != collective:
                continue
            mine = [p for p in protocols if p in custom.protocols]
            at = root if spec.rooted else custom.schedule.root
            why = custom.unfit(self.fabric.nranks, at, size)
            if not why and not mine:
                why = f"only by {', '.join(custom.protocols)}"
            if why:
                left.append(Candidate(custom.name, "", 0, 0, np.inf, why))
                continue
            option = self._option(number)
            for protocol in mine:
                seconds = float(option.profile.seconds(block, PROTOCOLS[protocol]))
                timed.append((seconds, _AFTER + number, option, protocol))
        return timed, left

    def _option(self, number: int) -> Option:
        if number not in self.options:
            custom = self.customs[number]
            made = profile(custom.schedule, self.fabric, self.loads)
            recipe = self.recipe(custom.schedule.root)
            self.options[number] = Option(custom.algorithm, 1, custom.schedule, made, recipe)
        return self.options[number]

    def chosen(self, choice: Choice, timed: list[Timed]) -> Choice:
        """Return the choice with given schedules taken first, if they are to be."""
        if not self.first or not timed:
            return choice
        taken = min(timed, key=lambda t: t[:2])
        best = choice.taken
        source = self.customs[taken[1] - _AFTER].source
        saved = 1 - best[0] / taken[0] if taken[0] > 0 else 0.0
        also = ", the fastest here too"
        if best[2] is not taken[2] and saved >= 5e-4:
            also = f"; {best[2].algorithm.name}/{best[3]} would take {saved:.1%} less"
        return replace(
            choice,
            follows=taken,
            channels=0,
            why=f"chosen: given as {source or 'custom'}{also}",
            asked="what was given",
        )


def _proving(algorithm: Algorithm) -> Callable[[Recipe], Schedule]:
    def build(recipe: Recipe) -> Schedule:
        schedule = algorithm.build(recipe)
        if (schedule.collective, schedule.nranks) != (algorithm.collective, recipe.n):
            raise InvalidUsage(
                f"{algorithm.name} was given for {algorithm.collective} on {recipe.n} ranks, but "
                f"builds {schedule.collective} on {schedule.nranks}"
            )
        return proved(schedule)

    return build
