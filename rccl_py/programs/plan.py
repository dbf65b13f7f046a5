"""A schedule from outside the registry: checked, named, and told for which calls it is meant.

Owns Custom and the function that makes one of phases. Knows no file format and no fabric.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ..algorithms import ALGORITHMS, Algorithm
from ..arguments import text, whole
from ..check import check
from ..collectives import collective_named
from ..errors import InvalidArgument, ScheduleError
from ..schedule import Layout, Phase, Schedule, Step

__all__ = ["FAMILY", "Custom", "custom", "distinct", "proved", "titled"]

FAMILY = "custom"
"""What NCCL_ALGO calls all of them."""

_EVERY = ("LL", "LL128", "Simple")
_MOST_RANKS = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class Custom:
    """A schedule that is proved to do its collective, and the calls it is for.

    protocols: those it may travel by. least, most: rccl-tests' sizes in bytes it is for, both
    included. source: the file or program it comes from. notes: what its reader had to assume.
    """

    schedule: Schedule
    name: str
    protocols: tuple[str, ...] = _EVERY
    least: float = 0
    most: float = math.inf
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def collective(self) -> str:
        """The collective it does."""
        return self.schedule.collective

    @property
    def nranks(self) -> int:
        """The number of ranks it is made for."""
        return self.schedule.nranks

    @property
    def algorithm(self) -> Algorithm:
        """The row of the registry it would be."""
        return Algorithm(
            self.collective, self.name, FAMILY, lambda _: self.schedule, protocols=self.protocols
        )

    def unfit(self, nranks: int, root: int, size: float) -> str:
        """Return why a call of `size` bytes on so many ranks is not what it is for, or nothing."""
        if nranks != self.nranks:
            return f"made for {self.nranks} ranks, here are {nranks}"
        if root != self.schedule.root:
            return f"made for root {self.schedule.root}"
        if not self.least <= size <= self.most:
            most = "" if math.isinf(self.most) else f" to {self.most:.0f}"
            return f"made for {self.least:.0f}{most} bytes" + ("" if most else " and more")
        return ""

    @cached_property
    def digest(self) -> str:
        """Twelve digits that differ where what is done differs: the steps, or what they are for."""
        schedule = self.schedule
        told = (self.collective, schedule.root, schedule.layout, self.protocols)
        found = hashlib.sha256(repr((*told, self.least, self.most)).encode())
        for step in schedule:
            for name in Step.__slots__:
                found.update(getattr(step, name).tobytes())
        return found.hexdigest()[:12]

    def __str__(self) -> str:
        """Return what it is in one line."""
        return f"{self.collective} {self.name!r} on {self.nranks} ranks"

    def __repr__(self) -> str:
        return f"<Custom {self}, {self.digest}>"


def titled(name: str) -> str:
    """Return a name for a schedule that no algorithm of the registry has."""
    return f"custom-{name}" if any(a.name == name for a in ALGORITHMS) else name


def distinct(customs: Iterable[Custom]) -> list[Custom]:
    """Return the schedules under names that tell them apart, from the registry too."""
    found: dict[str, Custom] = {}
    for custom in customs:
        first = name = titled(custom.name)
        number = 1
        while name in found:
            number += 1
            name = f"{first}-{number}"
        found[name] = custom if name == custom.name else replace(custom, name=name)
    return list(found.values())


def proved(schedule: Schedule) -> Schedule:
    """Return `schedule` once it is proved, out of place and in place.

    Raises ScheduleError, which names invariant, step and row (rccl_py.check).
    """
    check(schedule)
    return schedule


def custom(
    collective: str,
    nranks: int,
    phases: Callable[[], Iterable[Phase]],
    layout: Layout,
    *,
    name: str = "",
    root: int = 0,
    protocols: tuple[str, ...] = _EVERY,
    least: float = 0,
    most: float = math.inf,
) -> Custom:
    """Return a schedule of one's own, proved: what `phases()` yields on slots of `layout`.

    phases: called each time the schedule runs; it must yield the same phases again. Its rows and
    moves are made by rccl_py.schedule's rows and at (docs/schedule.md). Raises InvalidArgument for
    an argument that is wrong, ScheduleError where the schedule does not do the collective.
    """
    spec = collective_named(collective)
    nranks = whole(nranks, "custom: nranks", 1, _MOST_RANKS)
    root = whole(root, "custom: root", 0, nranks - 1)
    if not callable(phases):
        raise InvalidArgument(
            f"custom: phases is a {type(phases).__name__}: a function that yields Phase objects "
            "was expected (a generator object would be used up after one run)"
        )
    wanted = _sides(spec.name, nranks, root)
    if (layout.inputs, layout.outputs) != wanted:
        raise InvalidArgument(
            f"custom: {spec.name} on {nranks} ranks has {wanted[0]} input and {wanted[1]} output "
            f"block(s), the layout {layout.inputs} and {layout.outputs}"
        )
    title = text(name, "custom: name") or getattr(phases, "__name__", FAMILY)
    schedule = Schedule(spec.name, title, nranks, root, layout, _channels(phases), phases)
    return Custom(proved(schedule), title, protocols, least, most, "Python")


def _sides(collective: str, nranks: int, root: int) -> tuple[int, int]:
    spec = collective_named(collective)
    return spec.starts(nranks, root).shape[1], spec.goals(nranks, root).shape[1]


def _channels(phases: Callable[[], Iterable[Phase]]) -> int:
    most = 0
    for phase in phases():
        if not isinstance(phase, Phase):
            raise ScheduleError(
                f"custom: phases() yields a {type(phase).__name__}: Phase objects were expected"
            )
        for move in phase.moves:
            if len(move.rows.channel):
                most = max(most, int(move.rows.channel.max()))
    return most + 1
