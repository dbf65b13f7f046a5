"""The plan of an exchange of unequal parts: candidates, their times, the bound and its port.

Owns the choice and its result. The ways to do it are in rccl_py.algorithms (balanced, uneven);
their times come from the engines, by the shape of their rounds: bytes as slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...algorithms.balanced import balanced, direct, greedy, staged
from ...algorithms.uneven import Exchange, Parcels, Trips, checked_counts, exchange_of
from ...arguments import text
from ...errors import InvalidArgument
from ...fabric import F64, I64, Fabric
from ...links import PROTOCOLS
from ...schedule import I32, Layout, Phase, Schedule, at, rows
from ...timing import Busy, Cost, Timeline, profile, timed
from ...units import format_time
from ..machine import fabric_for
from .doors import Port, busiest_port, doors_of
from .hops import Hops, hops_of
from .ways import Ways, fastest_ways

if TYPE_CHECKING:
    from ...topology import Topology

__all__ = ["WAYS", "UnevenCandidate", "UnevenPlan", "plan_alltoallv", "rounds_as_schedule"]

WAYS = ("direct", "balanced", "staged", "greedy", "relayed")
"""How unequal parts may be exchanged; docs/algorithms.md draws each."""
_PIECES = (1, 2, 4, 8, 16)
_RELAYED = 16
"""Ranks up to which relayed ways are sought: a program of 240 pairs takes 0.1 s."""
NEAR = 0.02
"""The part of its time by which direct may miss the bound and nothing else is tried."""
_ROUNDS = 512
"""Rounds of an exchange that is timed; more only wait for one another."""
_PARTS = 1 << 20
"""Parts times pieces of an exchange that is built: some seconds, and rows of 48 B each."""
_UNITS = 64
"""Nodes (or ranks that are on their own) that are paired in stages."""
_GRAINS = 1 << 30
"""The most grains a message is told in; of a larger one a grain is more than a byte."""


@dataclass(frozen=True, slots=True)
class UnevenCandidate:
    """One way to do it. seconds: predicted, infinite if it was not timed; reason: why it lost."""

    algorithm: str
    protocol: str
    rounds: int
    seconds: float
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class UnevenPlan:
    """How unequal parts are exchanged, and why so.

    counts : int64[n, n] B. exchange: the rounds. seconds: predicted, by the estimate. bound:
    no algorithm that sends from rank to rank is faster; bottleneck: the port or links that prove
    it. candidates: the chosen one first, then the others by time.
    """

    counts: I64
    exchange: Exchange
    algorithm: str
    protocol: str
    seconds: float
    bound: float
    bottleneck: str
    candidates: tuple[UnevenCandidate, ...]
    fabric: Fabric

    def __repr__(self) -> str:
        return f"<UnevenPlan {self}>"

    def __str__(self) -> str:
        return (
            f"alltoallv of {int(self.counts.sum())} B on {len(self.counts)} ranks: "
            f"{self.algorithm}/{self.protocol}, {format_time(self.seconds)}"
        )

    @property
    def gap(self) -> float:
        """The part of the time that the bound does not explain: 0 to 1."""
        return 1.0 - self.bound / self.seconds if self.seconds > 0 else 0.0

    @cached_property
    def _shape(self) -> tuple[Schedule, float]:
        return rounds_as_schedule(self.exchange, self.fabric.node)

    @property
    def cost(self) -> Cost:
        """What it takes alone, for a timetable: until links are used, and each link's seconds."""
        schedule, unit = self._shape
        known, protocol = profile(schedule, self.fabric), PROTOCOLS[self.protocol]
        wire = float((known.steps * known.wire(unit, protocol)).sum())
        lead = max(self.seconds - wire, 0.0)
        return Cost(self.seconds, lead, lambda: Busy.of(known.busy(unit, protocol)))

    def timeline(self, engine: str = "auto", *, detail: bool = False) -> Timeline:
        """Return when its rounds run, by any engine (rccl_py.timing.engines)."""
        schedule, unit = self._shape
        return timed(
            schedule, self.fabric, unit, PROTOCOLS[self.protocol], engine=engine, detail=detail
        )


def plan_alltoallv(
    fabric: Fabric | Topology | str | Path,
    counts: npt.ArrayLike,
    protocol: str | Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
) -> UnevenPlan:
    """Return the fastest known way to exchange counts[i, j] bytes from rank i to rank j.

    fabric: or a machine's name, file or Topology. counts : int[n, n]. protocol: the only one to
    use, or those to choose from; None for the fastest of all. algorithms: those to choose from, of
    WAYS; None for all.

    Raises InvalidArgument where counts are not [n, n] whole numbers >= 0, or for a name unknown.
    """
    fabric = fabric_for(fabric, "plan_alltoallv")
    wanted = checked_counts(counts)
    if len(wanted) != fabric.nranks:
        raise InvalidArgument(
            f"counts of an alltoallv are for {len(wanted)} ranks, {fabric.name} has "
            f"{fabric.nranks}: expected [{fabric.nranks}, {fabric.nranks}]"
        )
    every = list(PROTOCOLS)
    asked = every if protocol is None else protocol
    named = list(asked) if isinstance(asked, (list, tuple)) else [asked]
    protocols = [_known(k, "protocol", every) for k in named]
    chosen = [_known(k, "algorithm", WAYS) for k in algorithms or WAYS]
    tried = _Tried(fabric, protocols)
    port = busiest_port(fabric, wanted)
    if "direct" in chosen:
        tried.add("direct", direct(wanted))
    if tried.best > (fabric.launch + port.seconds) * (1 + NEAR):
        ways = _ways_for(fabric, wanted) if "relayed" in chosen else None
        port = _tighter(fabric, port, ways)
        for name, built in _built(fabric, wanted, chosen, ways):
            tried.add(name, built)
    else:
        for name in (k for k in chosen if k != "direct"):
            tried.add(name, f"direct is within {NEAR:.0%} of the bound")
    return tried.plan(wanted, port)


class _Tried:
    """The candidates timed so far. best: s of the fastest, infinite before there is one."""

    def __init__(self, fabric: Fabric, protocols: Sequence[str]) -> None:
        self.fabric, self.protocols = fabric, protocols
        self.timed: list[tuple[float, str, Exchange]] = []
        self.left_out: list[UnevenCandidate] = []

    @property
    def best(self) -> float:
        return min((seconds for seconds, _, _ in self.timed), default=np.inf)

    def add(self, name: str, built: Exchange | str) -> None:
        """Time an exchange, or note why there is none."""
        if isinstance(built, str):
            self.left_out.append(UnevenCandidate(name, "", 0, np.inf, built))
            return
        self.timed.append((*_fastest(built, self.fabric, self.protocols), built))

    def plan(self, counts: I64, port: Port) -> UnevenPlan:
        """Return the plan of the fastest; of equals, of the first."""
        if not self.timed:
            why = "; ".join(f"{c.algorithm}: {c.reason}" for c in self.left_out)
            raise InvalidArgument(
                f"alltoallv on {self.fabric.name}: nothing to choose from ({why}); let direct in"
            )
        ranked = sorted(self.timed, key=lambda found: found[0])
        seconds, protocol, best = ranked[0]
        told = [_candidate(found, seconds) for found in ranked]
        # The bound is of what links must carry: a call is also launched.
        least = min(self.fabric.launch + port.seconds, seconds)
        return UnevenPlan(
            counts, best, best.algorithm, protocol, seconds, least, port.name,
            (*told, *self.left_out), self.fabric,
        )  # fmt: skip


def _known(name: object, what: str, of: Sequence[str]) -> str:
    found = text(name, what)
    if found not in of:
        raise InvalidArgument(f"alltoallv: {what} {name!r}: expected one of {', '.join(of)}")
    return found


def _candidate(found: tuple[float, str, Exchange], best: float) -> UnevenCandidate:
    seconds, protocol, exchange = found
    reason = f"{format_time(seconds - best)} slower" if seconds > best else ""
    return UnevenCandidate(exchange.algorithm, protocol, len(exchange.rounds), seconds, reason)


# ---- candidates -----------------------------------------------------------------------------


def _built(
    fabric: Fabric, counts: I64, chosen: Sequence[str], ways: Ways | None
) -> Iterator[tuple[str, Exchange | str]]:
    """Yield (name, the exchange, or why there is none) of every candidate."""
    doors, parts = doors_of(fabric), int(np.count_nonzero(counts))
    if "balanced" in chosen and doors.count == fabric.nranks:
        yield "balanced", "every rank is a unit of its own: nobody to balance with"
    elif "balanced" in chosen:
        for pieces in _PIECES:
            few = parts * pieces <= _PARTS
            why = f"{parts:,} parts in {pieces} pieces, over the limit of {_PARTS:,}"
            yield f"balanced-{pieces}", balanced(counts, doors, pieces) if few else why
    for name, build in (("staged", staged), ("greedy", greedy)):
        if name not in chosen:
            continue
        if doors.count > _UNITS:
            yield name, f"{doors.count} nodes or ranks to pair, over the limit of {_UNITS}"
            continue
        built = build(counts, doors)
        most = len(built.rounds)
        yield name, built if most <= _ROUNDS else f"{most} rounds, over the limit of {_ROUNDS}"
    if "relayed" in chosen:
        yield from _relayed(counts, ways)


def _relayed(counts: I64, ways: Ways | None) -> Iterator[tuple[str, Exchange | str]]:
    if ways is None:
        yield "relayed", f"more than {_RELAYED} ranks, or some pair that nothing joins"
    elif all(len(way) == 2 for way in ways.ways):
        yield "relayed", "no relay makes it faster"
    else:
        for pieces in _PIECES:
            yield f"relayed-{pieces}", relayed(counts, ways, pieces)


def _ways_for(fabric: Fabric, counts: I64) -> Ways | None:
    """Return the fastest ways, as if every rank served few: what they take at least."""
    away = counts - np.diag(np.diag(counts))
    if fabric.nranks > _RELAYED or not away.any():
        return None
    return fastest_ways(_bare(hops_of(fabric), fabric), away.astype(np.float64))


def _bare(hops: Hops, fabric: Fabric) -> Hops:
    """Return hops whose links give all they can: no algorithm gets more out of them."""
    links = hops.resource < hops.nlinks
    at = hops.resource[links]
    least = fabric.pace.min(axis=0)[at] / fabric.pace[PROTOCOLS["Simple"].index, at]
    cost = hops.cost.copy()
    cost[links] *= least * (fabric.spread[at] if hops.n > 3 else 1.0)
    return replace(hops, cost=cost)


def relayed(counts: I64, ways: Ways, pieces: int = 1) -> Exchange:
    """Return the exchange along `ways`, found for these counts; pieces are a hop apart."""
    n = len(counts)
    order = sorted(range(len(ways.ways)), key=lambda k: (ways.ways[k][0], ways.ways[k][-1], k))
    every = [ways.ways[k] for k in order]
    src, dst = (np.array([way[k] for way in every], dtype=np.int64) for k in (0, -1))
    first, size = _whole_bytes(counts, src * n + dst, ways.amount[order])
    longest = max(len(way) for way in every)
    path = np.array([way + way[-1:] * (longest - len(way)) for way in every], dtype=np.int32)
    k = np.repeat(np.arange(pieces), len(every))
    low = np.tile(size, pieces) * k // pieces
    high = np.tile(size, pieces) * (k + 1) // pieces
    trips = Trips(np.tile(path, (pieces, 1)), np.tile(first, pieces) + low, high - low, k)
    return exchange_of(f"relayed-{pieces}", counts, trips)


def _whole_bytes(counts: I64, pair: I64, amount: F64) -> tuple[I64, I64]:
    """Return (first byte, bytes) of each way. pair: of each way, in order; amounts add up to it."""
    _, starts, of = np.unique(pair, return_index=True, return_inverse=True)
    total = counts.ravel()[pair]
    upto = np.cumsum(amount)
    upto -= np.append(0.0, upto)[starts][of]
    ends = np.minimum(np.rint(upto), total).astype(np.int64)
    ends[np.append(starts[1:], len(pair)) - 1] = total[np.append(starts[1:], len(pair)) - 1]
    first = np.append(0, ends[:-1])
    first[starts] = 0
    return first, ends - first


def _tighter(fabric: Fabric, port: Port, ways: Ways | None) -> Port:
    """Return the port, or the links that the ways' prices blame if those need longer."""
    if ways is None or ways.bound <= port.seconds * (1 + 1e-6):
        return port
    prices = ways.prices[: fabric.nlinks]
    blamed = np.flatnonzero(prices > 1e-3 * prices.max(initial=0.0))
    top = blamed[np.lexsort((blamed, -prices[blamed]))] if len(blamed) else blamed
    names = ", ".join(fabric.link_name(int(link)) for link in top[:2])
    more = f" and {len(top) - 2} more links" if len(top) > 2 else ""
    return Port(ways.bound, f"all ways cross {names}{more}" if names else "memory of the ranks")


# ---- time -----------------------------------------------------------------------------------


def rounds_as_schedule(exchange: Exchange, node: I32) -> tuple[Schedule, float]:
    """Return a schedule that engines time as the exchange, and the bytes of its block.

    node : int32[n], of each rank: what crosses nodes is told apart from what does not, as
    kernels of their own. Rows have the ends and bytes of the rounds' messages; slots mean nothing,
    so it cannot be run.
    """
    most = max((int(r.size.max()) for r in exchange.rounds), default=0)
    grain = -(-max(most, 1) // _GRAINS)
    n, own = exchange.nranks, -(-np.diag(exchange.counts) // grain)
    mine, ranks = np.flatnonzero(own), np.arange(n)
    kept = rows(ranks[mine], ranks[mine], count=own[mine])
    phases = [Phase((at(kept, 0, 0),))] if len(mine) else []
    phases += [p for r in exchange.rounds if (p := _phase(r, n, node, grain)) is not None]
    layout = Layout(1, 1, int(own.max(initial=0)) + 1)
    shape = Schedule("alltoallv", exchange.algorithm, n, 0, layout, 1, lambda: iter(phases))
    return shape, float(grain)


def _phase(parcels: Parcels, n: int, node: I32, grain: int) -> Phase | None:
    """Return the phase of one round: everything between the same two ranks is one message."""
    key = parcels.src.astype(np.int64) * n + parcels.dst
    parts = []
    near = node[parcels.src] == node[parcels.dst]
    for which in (near & (parcels.src != parcels.dst), ~near):
        if not which.any():
            continue
        ends, of = np.unique(key[which], return_inverse=True)
        size = np.zeros(len(ends), dtype=np.int64)
        np.add.at(size, of, parcels.size[which])
        count = -(-size // grain)
        times = -(-count // _GRAINS)  # over the range of int32: several rows, still one message
        src, dst = np.divmod(np.repeat(ends, times), n)
        each = np.repeat(-(-count // times), times)
        parts.append(Phase((at(rows(src, dst, count=each), 0, 0),)))
    if len(parts) < 2:
        return parts[0] if parts else None
    return Phase(tuple(m for part in parts for m in part.moves), 1, tuple(parts))


def _fastest(exchange: Exchange, fabric: Fabric, protocols: Sequence[str]) -> tuple[float, str]:
    """Return (seconds, protocol) of the fastest protocol, by the estimate.

    Of all candidates, so that they compare: the clock flatters rounds that ranks leave one by one,
    since it lets them share no links with the next.
    """
    schedule, unit = rounds_as_schedule(exchange, fabric.node)
    known = profile(schedule, fabric)
    return min((float(known.seconds(unit, PROTOCOLS[p])), p) for p in protocols)
