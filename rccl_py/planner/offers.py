"""What a machine can be offered for one collective: options, built when they are first priced.

Owns which options are priced at a size. Algorithms of few rows always are; one of many is built
only where the least it can take (rccl_py.planner.floors) is below the best found so far, so most
are never built. In which order, and what is left out, follows from the machine and the size alone,
not from what was asked before. Knows no policy and no wording of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..algorithms import Algorithm, Part, Recipe, algorithms_of
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..schedule import Outline, Phase
from ..timing import Loads, profile
from ..units import format_time
from .floors import PIECES, Floor, Limits, Machine, limits_of
from .mixing import mixes
from .plan import Candidate
from .ranking import Option, Timed
from .repeat import Told, in_pieces, told
from .volumes import SENT_AT_ONCE

__all__ = ["Made", "Offers", "Priced", "nothing_left", "without_tail"]

Made = tuple[Algorithm, str, Callable[[int], Recipe]]
"""An algorithm made for the machine: its row, a name of its own, the recipe by pieces."""

_SMALL = 64  # ranks of a machine on which a schedule of
_FEW = 1 << 12  # rows is built rather than thought about
_WALKED = 64  # ranks on which losers of few rows are tried in several pieces too
_MANY = 1 << 14  # rows that take 10 ms or less to build and route: more have to save something
_HELD = 1024  # ranks on which the rows of all algorithms are kept while one call is looked at
_HEAVY = 1 << 17  # rows of an algorithm that takes tenths of a second, and is not kept
_HARDLY = ((16384, 0.07), (4096, 0.02), (0, 0.005))
"""(more ranks than, part of the time): what one of more rows than _MANY has to save to be built."""
_MUCH = 0.06  # what one of more than _HEAVY rows has to save


@dataclass(frozen=True, eq=False)
class Priced:
    """The options that were priced for a size, and the candidates that were not, with reasons."""

    timed: list[Timed]
    left_out: list[Candidate]


@dataclass(eq=False)
class _Built:
    """The options of one algorithm that were built. parts: what one piece of it consists of."""

    one: Option
    recipe: Callable[[int], Recipe]
    pieces: dict[int, Option]
    limits: Limits
    parts: Told | None
    memo: dict[str, list[Phase]] = field(default_factory=dict)


@dataclass(eq=False)
class Offers:
    """The options of one collective (and root) on one machine.

    algorithms: those that can be done here, in the order in which equals are preferred. recipe:
    what the fabric tells a generator, by pieces. loads: what earlier options routed. mix: the row
    that puts two algorithms side by side, None where that is not wanted. patient: whether that may
    take seconds on a large machine. links: what tells the least s a byte of a block takes on the
    links, whatever does it.
    """

    fabric: Fabric
    algorithms: Sequence[Algorithm]
    recipe: Callable[[int], Recipe]
    loads: Loads
    machine: Machine
    mix: Algorithm | None = None
    patient: bool = False
    links: Callable[[], float] = lambda: 0.0
    mixed: dict[tuple[Part, ...], Option] = field(default_factory=dict)
    built: dict[str, _Built] = field(default_factory=dict)
    memo: dict[str, list[Phase]] = field(default_factory=dict)

    def priced(
        self,
        block: float,
        protocols: Sequence[str],
        always: Sequence[str] = (),
        more: Callable[[Timed | None], Iterable[Made]] = lambda _: (),
    ) -> Priced:
        """Return the options for blocks of `block` bytes that may be the fastest, and `always`.

        more(best): algorithms made for this machine, where the best option so far asks for them,
        or there is none.
        """
        found = _Search(self, block, always)
        for floor, number, algorithm, mine in self._in_order(block, protocols):
            if not self._is_small(algorithm):
                floor = self._spread_out(algorithm, floor, block, mine)
                found.ahead_of(floor.seconds)
            if self._is_skipped(algorithm, floor, found.best) and algorithm.name not in always:
                found.leave(algorithm.name, floor)
                continue
            found.add(
                self._one(algorithm, algorithm.name, self.recipe), algorithm.name, number, mine
            )
            if self._rows(algorithm) > _FEW:
                found.more(number)  # while what it consists of is at hand
                if self.fabric.nranks > _HELD or self._rows(algorithm) > _HEAVY:
                    self._forget()
        found.rest()
        self._forget()
        made = more(min(found.timed, key=lambda t: t[:2], default=None))
        for number, (row, name, recipe) in enumerate(made, len(self.algorithms) + 1):
            mine = [p for p in protocols if p in row.protocols]
            found.add(self._one(row, name, recipe), name, number, mine)
            found.more(number)
            self._forget()
        if self.mix is not None and found.timed:
            for protocol, parts in mixes(found.timed, block, asked=self.patient):
                option = self._mixed(self.mix, parts)
                found.price(option, len(self.algorithms), 0, [protocol])
        self._forget()
        return Priced(found.timed, found.left_out)

    def _in_order(
        self, block: float, protocols: Sequence[str]
    ) -> list[tuple[Floor, int, Algorithm, list[str]]]:
        """Return the algorithms, those of few rows first, then by the least they can take."""
        found = []
        every = all(self._is_small(algorithm) for algorithm in self.algorithms)
        links = 0.0 if every else self.links() * block
        for number, algorithm in enumerate(self.algorithms):
            mine = [p for p in protocols if p in algorithm.protocols]
            if not mine:
                continue
            if self._is_small(algorithm):  # built whatever it takes
                found.append((Floor(0.0, ""), number, algorithm, mine))
                continue
            floors = [self.machine.floor(algorithm, block, PROTOCOLS[p], links) for p in mine]
            floor = min(floors, key=lambda f: f.seconds)
            found.append((floor, number, algorithm, mine))
        return sorted(found, key=lambda entry: (not self._is_small(entry[2]),
                                                entry[0].seconds, entry[1]))  # fmt: skip

    def _spread_out(
        self, algorithm: Algorithm, floor: Floor, block: float, protocols: Sequence[str]
    ) -> Floor:
        """Return the floor of what sends in turn all that a built one sends at once: its links'."""
        known = self.built.get(SENT_AT_ONCE.get((algorithm.collective, algorithm.name), ""))
        if known is None or self.fabric.together:
            return floor
        made = known.one.profile
        slots = made.total_link * self.fabric.spread * (block / made.chunks)
        pace = self.fabric.pace[[PROTOCOLS[p].index for p in protocols]]
        most = float((slots * pace).max(axis=1, initial=0.0).min())
        seconds = self.fabric.launch + most + floor.waits
        if seconds <= floor.seconds:
            return floor
        return Floor(seconds, f"its bytes keep the busiest link busy for {format_time(most)}")

    def _rows(self, algorithm: Algorithm) -> float:
        n, nodes = self.fabric.nranks, self.machine.places.nodes
        g = n if nodes is None else nodes.shape[1]
        return algorithm.looks(n, g, sums_pairs=self.fabric.sums_pairs)

    def _is_small(self, algorithm: Algorithm) -> bool:
        return self.fabric.nranks <= _SMALL and self._rows(algorithm) <= _FEW

    def _is_skipped(self, algorithm: Algorithm, floor: Floor, best: float) -> bool:
        """Return whether an algorithm is not worth building: it cannot win, or hardly any time."""
        if self._is_small(algorithm):
            return False
        rows = self._rows(algorithm)
        hardly = next(part for ranks, part in _HARDLY if self.fabric.nranks > ranks)
        if rows > _HEAVY and self.fabric.nranks <= _HARDLY[1][0]:
            hardly = max(hardly, _MUCH)
        return floor.seconds > best * (1 - hardly * (rows > _MANY))

    def _one(self, row: Algorithm, name: str, recipe_of: Callable[[int], Recipe]) -> Option:
        """Return an algorithm's option of one piece. name: what it is known by here."""
        if name not in self.built:
            memo = self.memo if any(row is known for known in self.algorithms) else {}
            recipe = replace(recipe_of(1), memo=memo)
            schedule = row.build(recipe)
            parts = told(schedule) if self._most(row) > 1 else None
            same = schedule if parts is None else in_pieces(parts, schedule, 1)
            made = profile(same, self.fabric, self.loads)
            option = Option(row, 1, schedule, made, recipe)
            self.built[name] = _Built(option, recipe_of, {1: option}, limits_of(made), parts, memo)
        return self.built[name].one

    def _most(self, algorithm: Algorithm) -> int:
        return 1 if self.fabric.nranks == 1 else algorithm.pieces

    def _of_pieces(self, name: str, pieces: int) -> Option:
        """Return an option of several pieces of what is known by a name: one piece is routed."""
        known = self.built[name]
        if pieces not in known.pieces:
            row = known.one.algorithm
            recipe = replace(known.recipe(pieces), memo=known.memo)
            schedule = row.build(recipe)
            same = schedule
            if known.parts is None and isinstance(known.one.schedule.phases, Outline):
                known.parts = told(known.one.schedule)
            if known.parts is not None:
                same = in_pieces(known.parts, schedule, pieces)
            made = profile(same, self.fabric, self.loads)
            known.pieces[pieces] = Option(row, pieces, schedule, made, recipe)
        return known.pieces[pieces]

    def _mixed(self, row: Algorithm, parts: tuple[Part, ...]) -> Option:
        """Return the option that does each share by its algorithm."""
        if parts not in self.mixed:
            recipe = replace(self.recipe(1), mix=parts)
            schedule = row.build(recipe)
            made = profile(schedule, self.fabric, self.loads)
            self.mixed[parts] = Option(row, max(p.pieces for p in parts), schedule, made, recipe)
        return self.mixed[parts]

    def _forget(self) -> None:
        """Let go of rows: they are made again if a schedule runs; of all options they are the peak.

        Loads stay.
        """
        for known in self.built.values():
            known.parts = None
            known.memo.clear()
        self.loads.forget_objects()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An algorithm of which several pieces are not priced yet, and the s they take at least."""

    least: float
    number: int
    name: str
    protocols: list[str]


class _Search:
    """What is known of one call while its options are looked through."""

    def __init__(self, offers: Offers, block: float, always: Sequence[str]) -> None:
        self.offers, self.block, self.always = offers, block, always
        self.best = np.inf
        self.timed: list[Timed] = []
        self.left_out: list[Candidate] = []
        self.waiting: list[_Waiting] = []

    def leave(self, name: str, floor: Floor) -> None:
        """Leave an algorithm unbuilt."""
        self.left_out.append(Candidate(name, "", 0, 0, np.inf, _unbuilt(floor, self.best)))

    def price(self, option: Option, number: int, k: int, protocols: Sequence[str]) -> list[float]:
        """Price an option under each protocol. number, k: of equals the lower is preferred."""
        found = [float(option.profile.seconds(self.block, PROTOCOLS[p])) for p in protocols]
        for seconds, p in zip(found, protocols):
            self.timed.append((seconds, number * 512 + k, option, p))
        self.best = min([self.best, *found])
        return found

    def add(self, option: Option, name: str, number: int, protocols: list[str]) -> None:
        """Price an option of one piece, and put those of several on the list."""
        self.price(option, number, 1, protocols)
        tried = self._tried(name)
        if len(tried) > 1:
            least = min(self._least(name, k, protocols) for k in tried[1:])
            self.waiting.append(_Waiting(least, number, name, protocols))

    def more(self, number: int) -> None:
        """Price the other numbers of pieces of one algorithm, now."""
        mine = [w for w in self.waiting if w.number == number]
        self.waiting = [w for w in self.waiting if w.number != number]
        self._price(mine)

    def ahead_of(self, seconds: float) -> None:
        """Price what waits and may take less than `seconds`: what is built next has a floor."""
        while mine := min((w for w in self.waiting if w.least <= min(seconds, self.best)),
                          key=lambda w: (w.least, w.number), default=None):  # fmt: skip
            self.more(mine.number)

    def rest(self) -> None:
        """Price what still waits, the most promising first."""
        waiting, self.waiting = self.waiting, []
        self._price(waiting)

    def _tried(self, name: str) -> list[int]:
        most = self.offers._most(self.offers.built[name].one.algorithm)
        return [k for k in PIECES if k <= most]

    def _least(self, name: str, pieces: int, protocols: Sequence[str]) -> float:
        limits = self.offers.built[name].limits
        return min(limits.least(self.block, pieces, PROTOCOLS[p]) for p in protocols)

    def _price(self, waiting: list[_Waiting]) -> None:
        for w in sorted(waiting, key=lambda w: (w.least, w.number)):
            for protocol in w.protocols:
                self._walk(w, protocol)

    def _walk(self, w: _Waiting, protocol: str) -> None:
        """Price pieces from the number that is likely best, on while they get better either way.

        The time falls and then rises with the number of pieces; those that cannot win are passed.
        """
        tried, seen = self._tried(w.name), dict[int, float]()
        row = self.offers.built[w.name].one.algorithm
        # What is cheap is walked though it loses: its time is its own, not that of one piece.
        few = self.offers.fabric.nranks <= _WALKED and self.offers._rows(row) <= _FEW
        anyway = w.name in self.always or few
        hopeful = [
            i
            for i, k in enumerate(tried)
            if anyway or self._least(w.name, k, [protocol]) <= self.best
        ]
        if not hopeful:
            return
        likely = max(self.offers.built[w.name].limits.likely(self.block, PROTOCOLS[protocol]), 1.0)
        start = min(hopeful, key=lambda i: (abs(np.log(tried[i] / likely)), i))

        def seconds(i: int) -> float:
            if i not in seen:
                option = self.offers._of_pieces(w.name, tried[i])
                if tried[i] == 1:  # priced already
                    seen[i] = float(option.profile.seconds(self.block, PROTOCOLS[protocol]))
                else:
                    seen[i] = self.price(option, w.number, tried[i], [protocol])[0]
            return seen[i]

        for way in (-1, 1):
            at = start
            while at + way in hopeful and seconds(at + way) < seconds(at):
                at += way


def without_tail(entry: Timed, block: float) -> float:
    """Return the s of an option but for what follows its last step: windows and copying out."""
    seconds, _, option, protocol = entry
    made, slot = option.profile, block / option.profile.chunks
    return seconds - float(made.tail(slot, made.wire(slot, PROTOCOLS[protocol])))


def _unbuilt(floor: Floor, best: float) -> str:
    """Return why an algorithm was not built."""
    slower = floor.seconds / best - 1
    if slower <= 0:
        return f"at best {-slower:.1%} less, not built for that: {floor.why}"
    more = f"+{slower:.1%}" if slower < 0.1 else f"+{slower:.0%}"
    return f"at least {more}, so not built: {floor.why}, {format_time(floor.seconds)} at best"


def nothing_left(
    fabric: Fabric,
    collective: str,
    unfit: Sequence[Candidate],
    protocols: Sequence[str],
    algo: str | None,
    proto: str | None,
) -> str:
    """Return what is said where restrictions leave nothing. protocols: those that are left."""
    what = f"NCCL_ALGO={algo!r}" if protocols else f"NCCL_PROTO={proto!r}"
    if not protocols and algo is not None:
        what = f"NCCL_ALGO={algo!r} with {what}"
    if protocols and algo is None:
        what = f"the size of this machine ({fabric.nranks} ranks)"
    why = "; ".join(f"{c.algorithm}: {c.reason}" for c in unfit)
    exists = ", ".join([a.name for a in algorithms_of(collective)] if protocols else PROTOCOLS)
    return (
        f"{collective} on {fabric.name}: {what} leaves nothing to choose from"
        f"{' (' + why + ')' if why else ''}; there are {exists}"
    )
