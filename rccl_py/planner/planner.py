"""The planner: time every candidate, choose the fastest.

Owns the choice. A candidate is (algorithm, protocol, channels, pieces). Profiles are built once a
(collective, root) and serve every size; a plan for another size is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..algorithms import Algorithm, Recipe, algorithms_of
from ..arguments import finite, text, whole
from ..collectives import COLLECTIVES, collective_named
from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric
from ..schedule import I32
from ..timing import Loads
from ..units import LARGEST
from .bounds import Bound, Cuts, find_cuts, lower_bound
from .breakpoints import Range, ranges, sizes_between
from .floors import Machine
from .given import AnySchedule, Given
from .machine import fabric_for
from .offers import Made, Offers, nothing_left, without_tail
from .places import places_of
from .plan import Candidate, Plan
from .policies import Figures, Policy, policy_named
from .ranking import Choice, Timed
from .restrict import allowed_algorithms, allowed_protocols
from .rings import Rings, find_rings
from .shape import Shape, nodes_of, shape_of
from .synthesis import Synthesis
from .trees import find_trees
from .verify import verified

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["Planner"]

_KEPT_PLANS = 512  # the same call again needs no planning
_NEEDS = {
    "grid": "no torus joins these ranks",
    "tiers": "no levels of equal groups",
    "forest": "no forest is synthesised",
    "paths": "no paths are synthesised",
    "mix": "no two algorithms side by side would use the links much better",
}
_MIXED = 1024  # ranks of a machine on which algorithms that use NICs alone are mixed in, if asked
_ON_NICS = ("direct", "levels-circulant-circulant", "turned-direct-ring")  # go well with others
_ROWS = 1 << 24  # a schedule of more rows than this is not enumerated to plan with


class Planner:
    """Plans collectives on one fabric: that of a machine's name, file or Topology, or a Fabric.

    algo, proto: restrictions in the syntax of NCCL_ALGO and NCCL_PROTO. max_channels: the most
    rings or trees that are used side by side. policy: a library whose choices are taken instead of
    the fastest ("nccl-2.30", "csv:FILE", ...; docs/policies.md). custom: schedules from outside the
    registry (docs/custom.md), candidates like all others; custom_first: taken wherever they fit.
    synthesise: whether algorithms are made for this machine: "auto" (up to 16 ranks; up to 64 where
    the others leave more than 10% of large calls), "always" or True, "never" or False. cache: the
    folder in which trees are kept, or what returns it. verify: simulate the first four before one
    is taken. always: algorithms that are timed on large machines too where they cannot win.
    """

    def __init__(
        self,
        fabric: Fabric | Topology | str | Path,
        algo: str | None = None,
        proto: str | None = None,
        max_channels: int | None = None,
        policy: str | Policy | None = None,
        custom: Sequence[AnySchedule] = (),
        *,
        custom_first: bool = False,
        synthesise: str | bool = "auto",
        cache: str | Path | Callable[[], Path | None] | None = None,
        verify: bool = False,
        always: Sequence[str] = (),
    ) -> None:
        fabric = fabric_for(fabric, "Planner")
        for what, restriction in (("algo", algo), ("proto", proto)):
            if restriction is not None:
                text(restriction, what)
        self.fabric = fabric
        self._algo, self._proto, self._channels = algo, proto, max_channels
        self._loads = Loads(fabric)
        self._given = Given.of(fabric, custom, custom_first, self._loads, self.recipe)
        self._verify, self._always = verify, tuple(always)
        self._synthesis = Synthesis.of(fabric, synthesise, cache)
        self._plans: dict[tuple[str, float, int, str], Plan] = {}
        self.policy: Policy | None = None
        if isinstance(policy, Policy):
            self.policy = policy
        elif policy is not None:
            self.policy = policy_named(text(policy, "policy"))
        self._figures: dict[str, Figures] = {}
        if self.policy is not None:
            self.figures(self.policy)
        self._known: dict[tuple[str, int], tuple[Offers, list[Candidate]]] = {}
        self._started: dict[tuple[str, int], bool] = {}
        for name in COLLECTIVES:  # an unknown token is an error now, not at the first call
            allowed_algorithms(algo, name)
            allowed_protocols(proto, name)

    @cached_property
    def nodes(self) -> I32 | None:
        """The ranks of each scale-up domain, or group of one, in order: int32[N, g].

        None where they are uneven. Nodes stand in the order of their first rank.
        """
        return nodes_of(self.fabric)

    @cached_property
    def shape(self) -> Shape:
        """The levels and the torus of the fabric, found from its links."""
        return shape_of(self.fabric)

    @cached_property
    def _machine(self) -> Machine:
        places = places_of(self.fabric, self.nodes, self.shape, self.rings, len(self.trees))
        return Machine(self.fabric, places)

    @cached_property
    def rings(self) -> Rings:
        """The rings of the fabric."""
        found, most = find_rings(self.fabric, self.nodes), self._channels
        if most is None:
            return found
        return Rings(
            found.orders[:most],
            found.weights[:most],
            found.local_orders[:most],
            found.local_weights[:most],
            f"{found.rule}; at most {most} channel(s)",
        )

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts that bound every call."""
        return find_cuts(self.fabric)

    @cached_property
    def trees(self) -> I32:
        """Parents of the allreduce trees: over the nodes, a pair a local rank; else one pair."""
        found = find_trees(self.fabric.nranks, self.nodes, self.rings.local_orders)
        return found[: self._channels]

    def recipe(self, root: int = 0, pieces: int = 1) -> Recipe:
        """Return what this fabric tells a generator."""
        rings, nodes = self.rings, self.nodes
        two_level = nodes is not None and len(nodes) > 1
        return Recipe(
            self.fabric.nranks,
            root,
            rings.orders,
            rings.weights,
            self.trees,
            nodes if two_level else None,
            rings.local_orders,
            rings.local_weights,
            pieces,
            self.shape.grid,
            self.shape.tiers,
        )

    def _unfit(self, algorithm: Algorithm) -> str:
        """Return why `algorithm` cannot be timed here, or nothing."""
        n = self.fabric.nranks
        if algorithm.two_level and (self.nodes is None or len(self.nodes) == 1):
            return "one scale-up domain" if self.nodes is not None else "nodes of unequal size"
        if algorithm.switched and (not self.fabric.multicast or n < 3):
            return "no switch here adds up and multicasts" if n > 2 else "two ranks"
        if algorithm.switched and not algorithm.two_level and not self._one_domain():
            return "more than one scale-up domain"
        if algorithm.needs:
            missing = self._missing(algorithm.needs)
            if missing:
                return missing
        g = n if self.nodes is None else self.nodes.shape[1]
        rows = algorithm.looks(n, g, sums_pairs=self.fabric.sums_pairs)
        if rows > _ROWS:
            return f"not timed: about {rows:.2g} messages, over the limit of {_ROWS}"
        return ""

    def _missing(self, need: str) -> str:
        """Return why this machine, or its number of ranks, has not what an algorithm needs."""
        n = self.fabric.nranks
        if need == "even":
            return "" if n % 2 == 0 else "an odd number of ranks"
        if need == "power of two":
            return "" if n & (n - 1) == 0 else "a number of ranks that is no power of two"
        if getattr(self.recipe(), need) is not None:
            return ""
        if need in ("forest", "paths"):
            why = self._synthesis.why_not(need)
        else:
            why = {"grid": self.shape.no_grid, "tiers": self.shape.no_tiers}.get(need, "")
        return f"{_NEEDS[need]}: {why}" if why else _NEEDS[need]

    def _one_domain(self) -> bool:
        return self.nodes is not None and len(self.nodes) == 1

    def _offers(self, collective: str, root: int) -> tuple[Offers, list[Candidate]]:
        """Return what this machine is offered, and the algorithms that cannot be, with reasons."""
        key = collective, root
        if key not in self._known:
            allowed = set(allowed_algorithms(self._algo, collective))
            rows = [a for a in algorithms_of(collective) if a.name in allowed]
            rows += self._given.rows(collective)
            reasons = [self._unfit(a) for a in rows]
            fit = [a for a, why in zip(rows, reasons) if not why]
            unfit = [
                Candidate(a.name, "", 0, 0, np.inf, why) for a, why in zip(rows, reasons) if why
            ]
            recipe = partial(self.recipe, root)
            mix = next((a for a in rows if a.needs == "mix"), None)
            patient = self._synthesis.mode == "always"
            links, machine = partial(self._links, collective, root), self._machine.rooted(root)
            offers = Offers(self.fabric, fit, recipe, self._loads, machine, mix, patient, links)
            self._known[key] = offers, unfit
        return self._known[key]

    def plan(self, collective: str, block: float, root: int = 0) -> Plan:
        """Return the plan of a call whose block (what one rank contributes) is `block` bytes.

        For allreduce, broadcast and reduce that is the whole buffer, for alltoall the part for one
        peer: rccl-tests' size is COLLECTIVES[name].size(block, nranks).

        Raises InvalidArgument for a root or size out of range, InvalidUsage when the restrictions
        leave no algorithm or no protocol.
        """
        return self.plan_by(self.policy, collective, block, root)

    def plan_by(self, policy: Policy | None, collective: str, block: float, root: int = 0) -> Plan:
        """Return the plan by another policy than this planner's; None: the fastest."""
        collective = collective_named(collective).name
        root = whole(root, f"{collective}: root", 0, self.fabric.nranks - 1)
        block = finite(block, f"{collective}: bytes of a block", -1.0, float(LARGEST))
        key = collective, block, root, "" if policy is None else policy.name
        if key not in self._plans:
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))  # the oldest
            self._plans[key] = self._plan(policy, collective, block, root)
        return self._plans[key]

    def _plan(self, policy: Policy | None, collective: str, block: float, root: int) -> Plan:
        spec, n = COLLECTIVES[collective], self.fabric.nranks
        choice, others = self._choice(policy, collective, block, root)
        decided = "the estimate"
        if self._verify and choice.follows is None:
            choice, decided = verified(choice, self.fabric)
        seconds, _, best, protocol = choice.taken
        bound = self._bound(collective, block, root)
        return Plan(
            collective,
            n,
            root,
            block,
            spec.size(block, n),
            best.algorithm.name,
            protocol,
            choice.channels or best.schedule.nchannels,
            best.pieces,
            seconds,
            best.schedule,
            self._candidates(choice, others),
            bound,
            best.profile,
            best.recipe or self.recipe(root, best.pieces),
            choice.channels,
            "" if policy is None else policy.name,
            decided,
            self._hint(choice, bound, root),
        )

    def _hint(self, choice: Choice, bound: Bound, root: int) -> str:
        """Return what might find a faster way, where little was looked for and much is left."""
        if choice.follows is not None:
            return ""
        asked = self._started.get((choice.collective, root), False)
        rows = self._may_be_made(choice.collective)
        left = (a.needs for a in rows if not asked or self._synthesis.why_not(a.needs))
        return self._synthesis.hint(left, bound, without_tail(choice.taken, choice.block))

    def _candidates(self, choice: Choice, others: list[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates that were timed, and then the others, each algorithm once."""
        timed = choice.ranked(self.fabric)
        names = {c.algorithm for c in timed}
        return (*timed, *(c for c in others if c.algorithm not in names))

    def _choice(
        self, policy: Policy | None, collective: str, block: float, root: int
    ) -> tuple[Choice, list[Candidate]]:
        """Return what is taken for a call, and the candidates that were not timed."""
        spec, n = COLLECTIVES[collective], self.fabric.nranks
        if block < 0:
            raise InvalidArgument(f"{collective}: {block} bytes: expected 0 or more")
        if not 0 <= root < n:
            raise InvalidArgument(f"{collective}: root {root} is not one of 0..{n - 1}")
        offers, unfit = self._offers(collective, root if spec.rooted else 0)
        protocols = allowed_protocols(self._proto, collective)
        if not protocols or not (offers.algorithms or self._synthesised(collective)):
            self._refuse(collective, unfit, protocols)
        pick = None
        if policy is not None:
            pick = policy.pick(self.figures(policy), collective, spec.size(block, n))
        always = self._always if pick is None else pick.stand_ins
        if self._synthesis.mode == "always" and self.fabric.nranks <= _MIXED:
            always = (*always, *_ON_NICS)
        more = partial(self._made, collective, root)
        priced = offers.priced(block, protocols, always, more)
        if not priced.timed:
            by = {a.name: f"only by {', '.join(a.protocols)}" for a in offers.algorithms}
            unfit = [*unfit, *(Candidate(name, "", 0, 0, np.inf, by[name]) for name in by)]
            self._refuse(collective, unfit, [])
        timed, left = self._given.priced(collective, block, root, protocols)
        choice = Choice(self.fabric.name, collective, block, [*priced.timed, *timed])
        if policy is not None and pick is not None:
            choice = choice.following(policy.name, pick, self._channels)
        return self._given.chosen(choice, timed), [*left, *priced.left_out, *unfit]

    def _may_be_made(self, collective: str) -> list[Algorithm]:
        """Return the rows of a collective whose recipes synthesis finds."""
        allowed = set(allowed_algorithms(self._algo, collective))
        rows = algorithms_of(collective)
        return [a for a in rows if a.name in allowed and a.needs in ("forest", "paths")]

    def _synthesised(self, collective: str) -> list[Algorithm]:
        """Return the rows of what may be synthesised for a collective here, in this mode."""
        rows = self._may_be_made(collective)
        return [a for a in rows if not self._synthesis.why_not(a.needs)]

    def _made(self, collective: str, root: int, best: Timed | None) -> list[Made]:
        """Return what is synthesised for a collective, of which `best` is the registry's best."""
        rows = self._synthesised(collective)
        if not rows or (best is not None and not self._starts(collective, root)):
            return []
        return list(self._synthesis.found(rows, self.recipe(root)))

    def _bound(self, collective: str, block: float, root: int) -> Bound:
        size = COLLECTIVES[collective].size(block, self.fabric.nranks)
        return lower_bound(self.fabric, self.cuts, collective, size, root)

    def _links(self, collective: str, root: int) -> float:
        """Return the s a byte of a block keeps the links busy at least, whatever does it."""
        size = COLLECTIVES[collective].size(1.0, self.fabric.nranks)
        return size / self.cuts.optimum(collective, root).rate if self.fabric.nranks > 1 else 0.0

    def _starts(self, collective: str, root: int) -> bool:
        """Return whether algorithms are made for a collective: it shows in one large call."""
        spec, key = COLLECTIVES[collective], (collective, root)
        if key not in self._started:
            size = self._synthesis.reference(self._bound(collective, 1.0, root))
            self._started[key] = size is None
            if size is not None:
                block = size / max(spec.blocks(self.fabric.nranks))
                offers, _ = self._offers(collective, root if spec.rooted else 0)
                priced = offers.priced(block, allowed_protocols(self._proto, collective))
                best = min(priced.timed, key=lambda t: t[:2])
                bound = self._bound(collective, block, root)
                self._started[key] = self._synthesis.pays(bound, without_tail(best, block))
        return self._started[key]

    def breakpoints(
        self, collective: str, lo: float = 8, hi: float = 16 << 30, root: int = 0
    ) -> list[Range]:
        """Return the sizes at which the choice changes, from `lo` to `hi` bytes (rccl-tests').

        A row that was left is not taken again, unless that saves more than 1%; docs/plans.md.

        Raises InvalidArgument where lo is not above 0 or hi not above lo.
        """
        collective = collective_named(collective).name
        root = whole(root, f"{collective}: root", 0, self.fabric.nranks - 1)
        lo = finite(lo, f"{collective}: lowest bytes", 0.0, float(LARGEST))
        hi = finite(hi, f"{collective}: highest bytes", lo, float(LARGEST))
        blocks = max(COLLECTIVES[collective].blocks(self.fabric.nranks))
        taken = []
        for size in sizes_between(lo, hi).tolist():
            _, _, option, protocol = self._choice(None, collective, size / blocks, root)[0].taken
            taken.append((option, protocol))
        return ranges(taken, blocks, lo, hi)

    def figures(self, policy: Policy) -> Figures:
        """Return what the policy's library would find here; raises where it does not run."""
        if policy.name not in self._figures:
            self._figures[policy.name] = policy.figures(self.fabric)
        return self._figures[policy.name]

    def _refuse(self, collective: str, unfit: list[Candidate], protocols: list[str]) -> NoReturn:
        left = nothing_left(self.fabric, collective, unfit, protocols, self._algo, self._proto)
        raise InvalidUsage(left)
