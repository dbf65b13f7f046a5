"""Which of the timed options is taken, and why the others are not.

Owns the choice among options that are already timed: the fastest, or the one that does what a
policy picks, and the list of candidates with reasons. Knows no machine and no policy's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan, nan

from ..algorithms import Algorithm, Recipe
from ..errors import InvalidUsage
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..schedule import Schedule
from ..timing import Profile, Timeline
from .plan import ENGINES, Candidate, reason_lost
from .policies import Pick

__all__ = ["Choice", "Option", "Timed"]

_EQUAL = 5e-4  # of a time, that is no difference


@dataclass(frozen=True, eq=False)
class Option:
    """A schedule that can be timed for any size, and the recipe it was made by."""

    algorithm: Algorithm
    pieces: int
    schedule: Schedule
    profile: Profile
    recipe: Recipe | None = None


Timed = tuple[float, int, Option, str]
"""Seconds, number, option, protocol: of equals the lower number is taken."""


def _fastest(timed: list[Timed]) -> Timed:
    return min(timed, key=lambda t: t[:2])


@dataclass(frozen=True, eq=False)
class Choice:
    """One of the timed options of a call of `block` bytes.

    follows: the option a policy picks, None for the fastest. channels: how many share the work, 0
    for as many as it takes. why: the reason beside what is taken, "" for the fastest. engine,
    finer: the finer engine that was asked, and what it says of which options, in s.
    """

    machine: str
    collective: str
    block: float
    timed: list[Timed]
    follows: Timed | None = None
    channels: int = 0
    why: str = ""
    asked: str = "what the policy picks"
    engine: str = ""
    finer: tuple[tuple[Timed, float], ...] = ()

    @property
    def taken(self) -> Timed:
        """The option that is planned."""
        return self.follows or _fastest(self.timed)

    def following(self, policy: str, pick: Pick, most: int | None) -> Choice:
        """Return the choice of what a policy picks, in the pieces that suit best.

        most: channels at most. Raises InvalidUsage where no option does it.
        """
        channels = min(pick.channels or 0, most or 1 << 30)
        known = any(entry[3] == pick.protocol for entry in self.timed)
        found = self._doing(pick) if known else []
        if not found:
            raise InvalidUsage(
                f"{self.collective} on {self.machine}: {policy} picks {pick}, here "
                f"{pick.ours}, which NCCL_ALGO or NCCL_PROTO leaves out, or this machine is too "
                "large for: lift the restriction, or plan without a policy"
            )
        again = [
            (float(o.profile.seconds(self.block, PROTOCOLS[p], channels)), i, o, p)
            for _, i, o, p in found
        ]
        taken = _fastest(again)
        why = f"chosen: {policy} picks {pick}{_saved(taken, _fastest(self.timed))}"
        return replace(self, follows=taken, channels=channels, why=why)

    def _doing(self, pick: Pick) -> list[Timed]:
        """Return the options that do what is picked, by its protocol if they have it."""
        for same in (True, False):
            for name in pick.stand_ins:
                found = [
                    t
                    for t in self.timed
                    if t[2].algorithm.name == name and (not same or t[3] == pick.protocol)
                ]
                if found:
                    return found
        return []

    @cached_property
    def _winner(self) -> Timeline:
        _, _, option, protocol = self.taken
        return option.profile.summary(self.block, PROTOCOLS[protocol], self.channels)

    def ranked(self, fabric: Fabric) -> tuple[Candidate, ...]:
        """Return the best candidate of each (algorithm, protocol), the taken one first.

        The others follow by time, each with the reason why it is not taken.
        """
        taken = self.taken
        kept = {(taken[2].algorithm.name, taken[3]): self._candidate(taken, self.why)}
        for entry in sorted(self.timed, key=lambda t: t[:2]):
            key = entry[2].algorithm.name, entry[3]
            if key not in kept:
                kept[key] = self._candidate(entry, self._reason(entry, fabric))
        return tuple(kept.values())

    def checked(self, entry: Timed) -> float:
        """Return what the finer engine says of an option, in s; NaN where it was not asked."""
        return next((seconds for one, seconds in self.finer if one is entry), nan)

    def _candidate(self, entry: Timed, reason: str) -> Candidate:
        seconds, _, option, protocol = entry
        channels = self.channels if entry is self.follows else 0
        return Candidate(
            option.algorithm.name,
            protocol,
            channels or option.schedule.nchannels,
            option.pieces,
            seconds,
            reason,
            "" if isnan(self.checked(entry)) else self.engine,
            self.checked(entry),
        )

    def _reason(self, entry: Timed, fabric: Fabric) -> str:
        seconds, _, option, protocol = entry
        if self.finer and self.follows is not None:
            return self._overruled(entry)
        if self.follows is not None and seconds < self.follows[0] * (1 - _EQUAL):
            return f"{seconds / self.follows[0] - 1:.1%}: faster, but not {self.asked}"
        lost = option.profile.summary(self.block, PROTOCOLS[protocol])
        return reason_lost(self._winner, lost, fabric)

    def _overruled(self, entry: Timed) -> str:
        """Return why an option is not taken where a finer engine has another first."""
        taken, said, found = self.taken, ENGINES[self.engine], self.checked(entry)
        if not isnan(found):
            return f"{found / self.checked(taken) - 1:+.1%} by {said}"
        for asked, _ in self.finer:
            if abs(entry[0] / asked[0] - 1) < _EQUAL:
                return f"as fast as {asked[2].algorithm.name}/{asked[3]} by the estimate"
        return f"{entry[0] / taken[0] - 1:+.1%} by the estimate"


def _saved(taken: Timed, fastest: Timed) -> str:
    """Return what the fastest would save, in words."""
    saved = 1 - fastest[0] / taken[0] if taken[0] > 0 else 0.0
    if saved < _EQUAL:
        return ", the fastest here too"
    return f"; {fastest[2].algorithm.name}/{fastest[3]} would take {saved:.1%} less"
