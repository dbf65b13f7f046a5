"""The least time in which given amounts cross between all pairs, over any relays: exact to 0.2%.

Owns the linear program and its proof. Knows hops and their costs, no fabric and no schedule.

    least T   with   sum of x over the ways of a pair = its demand
                     sum of cost * x over what uses a resource <= T

Ways are made as they are asked for (column generation; L. R. Ford and D. R. Fulkerson, "A suggested
computation for maximal multi-commodity network flows", Management Science 5, 1958): the program's
prices make some ways cheaper than those known. Prices p >= 0 that add up to 1 prove as well that no
ways at all are faster: T >= sum of demand * (the cheapest way of the pair at these prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...fabric import F64, I64
from .hops import Hops

__all__ = ["Ways", "fastest_ways", "proven"]

CLOSE = 2e-3
"""A part of the bound that is not worth more programs."""
LOOSE = 5e-3
"""A part of the time that is given up for fewer relays."""
MEAN = 0.7
"""How far the prices that ask for ways stay with the best known ones (P. Wentges, "Weighted
Dantzig-Wolfe decomposition", Int. Trans. Operational Research 4, 1997)."""
WARM = 12
"""Rounds without a program before the first: more cost more than the programs they save."""
ROUNDS = 60
"""Programs solved at most; then what is known is returned with its bound."""


@dataclass(frozen=True, eq=False, slots=True)
class Ways:
    """Ways through relays and what goes on each.

    ways: the ranks each visits. amount : float64, B on each. seconds: of the busiest resource.
    bound: no ways make it faster. loads : float64[nresources] s. prices : float64[nresources],
    what proves the bound.
    """

    ways: tuple[tuple[int, ...], ...]
    amount: F64
    seconds: float
    bound: float
    loads: F64
    prices: F64


def fastest_ways(hops: Hops, demand: F64, *, close: float = CLOSE) -> Ways | None:
    """Return ways for demand[i, j] B from rank i to rank j; None where some pair has no way.

    demand : float64[n, n], its diagonal is ignored. The busiest resource's time is within `close`
    of the least, or the bound tells how far it is; among those within LOOSE of it the ways with the
    fewest hops are taken.
    """
    demand = np.where(np.eye(hops.n, dtype=bool), 0.0, demand)
    known = _Known(hops, demand)
    if known.cut_off:
        return None
    if not known.pairs.size:
        nothing = np.zeros(hops.nresources)
        return Ways((), np.zeros(0), 0.0, 0.0, nothing, nothing)
    best, prices = known.first_prices(close)
    for _ in range(ROUNDS):
        seconds, found = known.solve()
        # Prices of a vertex blame one of many equal links: seek between them and the best known.
        for pull in (MEAN, 0.0):
            mixed = pull * prices + (1 - pull) * found
            bound = known.price(mixed)
            if bound > best:
                best, prices = bound, mixed
            if known.grown or seconds <= best * (1 + close):
                break
        if seconds <= best * (1 + close) or not known.grown:
            break
    amount = known.sparing(seconds * (1 + LOOSE))
    used = np.flatnonzero(amount > 1e-9 * amount.max())
    ways = tuple(known.ways[k] for k in used)
    loads = known.loads(amount)
    return Ways(ways, amount[used], float(loads.max()), best, loads, prices)


def proven(hops: Hops, demand: F64, prices: F64) -> float:
    """Return the s that no ways beat, as prices of resources (which add up to 1) prove it."""
    return _Known(hops, np.where(np.eye(hops.n, dtype=bool), 0.0, demand)).price(prices)


class _Known:
    """The ways known so far, as columns of the program. grown: whether the last prices added any.

    Amounts and times are scaled, so that the direct ways take about 1.
    """

    def __init__(self, hops: Hops, demand: F64) -> None:
        self.hops = hops
        self.pairs = np.argwhere(demand > 0)
        self.unit = float(demand.max(initial=0.0)) or 1.0
        self.demand = demand[self.pairs[:, 0], self.pairs[:, 1]] / self.unit
        self.ways: list[tuple[int, ...]] = []
        self.pair: list[int] = []
        self.seen: set[tuple[int, ...]] = set()
        self.grown = True
        self.cut_off = False
        self.carried = np.zeros(len(hops.src))
        self._start()

    def _start(self) -> None:
        """Begin with every pair's route, or the fewest hops where it has none."""
        step, _ = _cheapest(self.hops, np.ones(len(self.hops.src)))
        if (step[self.pairs[:, 0], self.pairs[:, 1]] < 0).any():
            self.cut_off = True
            return
        self._add(step, range(len(self.pairs)))
        self.carried = self._carried(step)
        self.scale = float((self.hops.matrix @ self.carried).max())

    def first_prices(self, close: float) -> tuple[float, F64]:
        """Return (bound, prices) after some rounds in which what is used most gets dearer.

        N. Garg and J. Koenemann, "Faster and simpler algorithms for multicommodity flow", SIAM J.
        Computing 37 (2007). The ways of each round are learnt.
        """
        best, found = 0.0, np.zeros(self.hops.nresources)
        loads = self._columns().dot(self.demand)
        blame = (loads / loads.max()) ** 32
        for _ in range(WARM):
            prices = np.asarray(blame / blame.sum(), dtype=np.float64)
            bound = self.price(prices)
            if bound > best:
                best, found = bound, prices
            if best * (1 + close) >= self.scale * self.unit:
                break  # the first ways are as good as any
            loads = self.hops.matrix @ self.carried
            blame = (blame + prices.max() * 1e-3 * (loads > 0)) * np.exp(loads / loads.max())
        return best, found

    def _add(self, step: I64, which: Sequence[int]) -> None:
        """Add the way of each pair of `which` that follows step[i, j], the first relay."""
        before = len(self.ways)
        for k in which:
            i, j = self.pairs[k].tolist()
            way = [i]
            while way[-1] != j:
                way.append(int(step[way[-1], j]))
            if tuple(way) not in self.seen:
                self.seen.add(tuple(way))
                self.ways.append(tuple(way))
                self.pair.append(k)
        self.grown = len(self.ways) > before

    def _carried(self, step: I64) -> F64:
        """Return what goes over each hop if every pair follows `step`: float64[m]."""
        here, there = self.pairs[:, 0], self.pairs[:, 1]
        total = np.zeros(len(self.hops.src))
        amount = self.demand
        while len(here):
            following = step[here, there]
            total += np.bincount(self.hops.number[here, following], amount, len(total))
            on = following != there
            here, there, amount = following[on], there[on], amount[on]
        return total

    def _columns(self) -> Any:
        """Return the cost of each way on each resource: sparse [nresources, ways]."""
        from scipy.sparse import csc_array

        row = [self.hops.number[a, b] for way in self.ways for a, b in pairwise(way)]
        ptr = np.cumsum([0, *(len(way) - 1 for way in self.ways)])
        shape = len(self.hops.src), len(self.ways)
        used = csc_array((np.ones(len(row)), np.array(row, dtype=np.int64), ptr), shape=shape)
        return self.hops.matrix @ used

    def _constraints(self, cost: Any) -> tuple[Any, npt.NDArray[np.intp]]:
        """Return (which ways belong to which pair, resources that some way uses)."""
        from scipy.sparse import csr_array

        k = len(self.ways)
        belongs = csr_array(
            (np.ones(k), (np.array(self.pair), np.arange(k))), shape=(len(self.pairs), k)
        )
        return belongs, np.flatnonzero(cost.sum(axis=1) > 0)

    def solve(self) -> tuple[float, F64]:
        """Return the least time with the ways known, and the prices of resources."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, hstack

        cost = self._columns().tocsr()
        belongs, used = self._constraints(cost)
        rows = hstack([cost[used] / self.scale, csr_array(-np.ones((len(used), 1)))])
        equal = hstack([belongs, csr_array((len(self.pairs), 1))])
        objective = np.append(np.zeros(len(self.ways)), 1.0)
        found = linprog(
            objective, A_ub=rows, b_ub=np.zeros(len(used)), A_eq=equal, b_eq=self.demand,
            method="highs",
        )  # fmt: skip
        assert found.status == 0, found.message  # there is always a way, and T is bounded by 0
        prices = np.zeros(self.hops.nresources)
        prices[used] = np.maximum(-found.ineqlin.marginals, 0.0)
        return float(found.fun) * self.scale * self.unit, prices / prices.sum()

    def price(self, prices: F64) -> float:
        """Return the bound that `prices` prove, and learn the ways they make cheapest."""
        price = prices @ self.hops.matrix
        least = price.max() * 1e-9  # of equal ways the one with fewer hops
        step, total = _cheapest(self.hops, price + least)
        self._add(step, range(len(self.pairs)))
        self.carried = self._carried(step)
        # The fewest hops of equal ways cost `least` more each: take that off again.
        floor = total[self.pairs[:, 0], self.pairs[:, 1]] - least * self.hops.n
        return float(self.demand @ np.maximum(floor, 0.0)) * self.unit

    def sparing(self, most: float) -> F64:
        """Return what goes on each way so that no resource takes over `most` s: fewest hops."""
        from scipy.optimize import linprog

        if self.scale * self.unit <= most:  # the first ways, which have the fewest hops there are
            return np.append(self.demand, np.zeros(len(self.ways) - len(self.pairs))) * self.unit
        cost = self._columns().tocsr()
        belongs, used = self._constraints(cost)
        lengths = np.array([len(way) - 1.0 for way in self.ways])
        found = linprog(
            lengths, A_ub=cost[used] / self.scale,
            b_ub=np.full(len(used), most / (self.scale * self.unit)), A_eq=belongs,
            b_eq=self.demand, method="highs",
        )  # fmt: skip
        assert found.status == 0, found.message  # the program before had a solution within it
        return np.asarray(np.maximum(found.x, 0.0) * self.unit, dtype=np.float64)

    def loads(self, amount: F64) -> F64:
        """Return the s each resource is busy with these amounts: float64[nresources]."""
        return np.asarray(self._columns() @ amount, dtype=np.float64)


def _cheapest(hops: Hops, price: F64) -> tuple[I64, F64]:
    """Return (the first rank on the cheapest way i -> j, -1 where none; its price): [n, n] both.

    R. W. Floyd, "Algorithm 97: shortest path", CACM 5 (1962). Of equal ways the first is taken.
    """
    n = hops.n
    total = np.full((n, n), np.inf)
    np.fill_diagonal(total, 0.0)
    total[hops.src, hops.dst] = price
    step = np.full((n, n), -1, dtype=np.int64)
    step[hops.src, hops.dst] = hops.dst
    for k in range(n):
        over = total[:, k, None] + total[None, k]
        better = over < total * (1 - 1e-12)
        total[better] = over[better]
        step = np.where(better, step[:, k, None], step)
    return step, total
