"""The best mix of trees: a linear program whose columns are found as they are needed.

Owns the program and its proof. With x[t] bytes on tree t, of which every class of roots needs one,
and seconds[t, l] that a byte on t keeps thing l busy::

    least T   with   sum of x over the trees of a class = 1,   sum of x[t] * seconds[t, l] <= T

Prices p of the things, adding up to 1, come with its solution. No tree cheaper than what its class
pays now: the mix is optimal; else the cheapest tree joins. By weak duality any prices prove that
no mix is faster than the cheapest trees of all classes together.

Source: L. R. Ford and D. R. Fulkerson, "A suggested computation for maximal multi-commodity network
flows", Management Science 5 (1958); trees that carry all of it exist by J. Edmonds, "Edge-disjoint
branchings" (1973).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import floor, fsum, log2
from typing import Any

import numpy as np

from ...algorithms.flat import Ints, depths
from ...fabric import F64
from .arborescence import centred, cheapest, flattened, grown, priced
from .ways import Ways

__all__ = ["Mix", "Pool", "Problem", "mixed", "solved"]

_ROUNDS = 50  # of new trees; the proof says how much is left
_ENOUGH = 0.001  # a mix this near to what is proven is not improved
_TREND = 0.5  # how much of the best prices so far is kept in those tried next
_FIRST, _FEW = 12, 100  # searches at first prices; where there are few classes
_STEEP = 19.0  # times as dear the busiest is, at first, as what is idle
_SLOPES = (0.01, 0.3)  # mean prices that a level is worth, to grow shallow trees
_TIE = 5e-5  # mean prices that a pair costs besides, to choose among many that cost the same
_SLACKS = (1e-8, 1e-3)  # mean prices that hanging a rank higher may cost
_PRICED = 1e-6  # of the highest price, that is one
_STALL, _STALL_SHALLOW = (12, 0.001), (6, 0.003)  # rounds, and what they must bring to go on


# Sums that decide anything are exact, or made in one order: NumPy's and BLAS' depend on the
# processor, and every host must find the same forest.


def _normal(prices: F64) -> F64:
    """Return prices that add up to 1."""
    return np.asarray(prices / max(fsum(prices.tolist()), 1e-300))


def _power_of_two(value: float) -> float:
    """Return a power of two near a positive value: dividing by it rounds nothing."""
    return float(2.0 ** floor(log2(value * 1.1234)))  # no machine's value is where this jumps


@dataclass(frozen=True, eq=False, slots=True)
class Problem:
    """Trees for what: the ways, the roots (int[c]), and whether all trees share one byte and may
    have any root (else each root has a byte of its own, a class). Free trees are used both ways:
    their ways are `Ways.both`, so that the price of an edge is the same from either end.
    """

    ways: Ways
    roots: Ints
    free: bool = False

    @property
    def classes(self) -> int:
        """Classes of trees."""
        return 1 if self.free else len(self.roots)


@dataclass(eq=False, slots=True)
class Pool:
    """Trees found so far: parents int32[n], of which class, how long a byte keeps each kind of
    thing `busy`, float64[L] in units of the ways, depth, and by how many levels in all its edges
    come later than the first, and what is disliked of them.
    """

    problem: Problem
    parents: list[Ints] = field(default_factory=list)
    of: list[int] = field(default_factory=list)
    busy: list[F64] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    known: set[tuple[int, bytes]] = field(default_factory=set)

    def add(self, parents: Ints) -> None:
        """Add a tree unless it is there."""
        ways, n = self.problem.ways, self.problem.ways.n
        tree = (centred(parents) if self.problem.free else parents).astype(np.int32)
        root = int(tree.argmin())
        of = 0 if self.problem.free else int(np.flatnonzero(self.problem.roots == root)[0])
        key = of, tree.tobytes()
        if key in self.known:
            return
        self.known.add(key)
        child = np.flatnonzero(tree >= 0)
        used = np.asarray(ways.distinct[tree[child] * np.int64(n) + child].sum(axis=0))
        self.parents.append(tree)
        self.of.append(of)
        self.busy.append(used.ravel())
        depth = depths(tree[None])[0]
        self.depth.append(int(depth.max()))
        disliked = 0.0 if ways.dislike is None else float(ways.dislike[tree[child], child].sum())
        self.late.append(float(depth.sum()) - len(child) + round(disliked, 9))

    def within(self, deepest: int, last: Mix | None) -> Ints:
        """Return trees up to a depth that a program may want: of many, the best at the prices of
        the last one.
        """
        from scipy.sparse import csr_array

        which = np.flatnonzero(np.array(self.depth) <= deepest)
        kept = 4 * (self.problem.classes + self.problem.ways.distinct.shape[1]) + 100
        if last is None or len(which) <= kept:
            return which
        each = csr_array(np.array([self.busy[t] for t in which])) @ last.prices
        each -= last.paid[np.array(self.of)[which]]
        each[last.x[which[which < len(last.x)]].nonzero()[0]] = -np.inf
        return np.sort(which[np.argsort(each, kind="stable")[:kept]])


@dataclass(frozen=True, eq=False, slots=True)
class Mix:
    """A solution: x float64[T] by tree of the pool; how long the busiest kind of thing is `busy`
    a byte, in units of the ways; prices float64[L] of the kinds, and what each class pays,
    float64[c]. proving: float64[L], the prices that proved most in the search.
    """

    x: F64
    busy: float
    prices: F64
    paid: F64
    proving: F64


def mixed(pool: Pool, which: Ints, most: float = np.inf, priced: F64 | None = None) -> Mix | None:
    """Return the fastest mix of the trees `which`; given the `most` it may be busy, the one
    whose edges come earliest. None where the solver finds none.

    priced : float64[L], prices of the kinds; given them as well, what has none is used little, and
    edges come early where that leaves a choice: idle links are at hand when messages meet.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    table = np.array([pool.busy[t] for t in which]).T
    unit = _power_of_two(float(table.max(axis=0).mean()))
    classes, of = pool.problem.classes, np.array([pool.of[t] for t in which])
    needed = csr_array((np.ones(len(which)), (of, np.arange(len(which)))),
                       (classes, len(which) + 1))  # fmt: skip
    tight = np.zeros(len(table), dtype=bool)
    aim = np.zeros(len(which) + 1)
    aim[-1] = 1.0
    if np.isfinite(most):
        aim[:-1] = [pool.late[t] for t in which]
        aim[-1] = 0.0
    if priced is not None:
        tight = priced > _PRICED * priced.max()
        aim[-1] = max(fsum(aim[:-1].tolist()), 1.0) / len(which) * classes / most * unit
    room = np.where(tight, most / unit, 0.0) if tight.any() else np.zeros(len(table))
    limits = csr_array(np.hstack([table / unit, np.where(tight, 0.0, -1.0)[:, None]]))
    bounds = [(0, None)] * len(which) + [(0, most / unit)]
    found: Any = linprog(aim, limits, room, needed, np.ones(classes), bounds,
                         method="highs")  # fmt: skip
    if found.x is None:
        return None
    x = np.zeros(len(pool.of))
    x[which] = np.maximum(found.x[:-1], 0.0)
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    paid = np.asarray(found.eqlin.marginals) * unit
    return Mix(x, float(found.x[-1]) * unit, _normal(prices), paid, _normal(prices))


class _Search:
    """The state of one search: the prices that prove most, and what they prove."""

    def __init__(self, pool: Pool, deepest: int) -> None:
        self.pool, self.deepest, self.proof = pool, deepest, 0.0
        things = pool.problem.ways.distinct.shape[1]
        self.best = np.full(things, 1.0 / things)

    def offers(self, prices: F64) -> bool:
        """Add trees that are cheap at these prices; return whether one is new."""
        problem, n = self.pool.problem, self.pool.problem.ways.n
        price = np.asarray(problem.ways.distinct @ prices).reshape(n, n)
        price[~problem.ways.joined] = np.inf
        mean = _power_of_two(float(price[problem.ways.joined].mean()))
        price, tie = np.round(price / mean, 9), 0.0
        if problem.ways.dislike is not None:
            tie = _TIE * float(problem.ways.dislike.max(initial=0.0)) * (n - 1)
            price = price + _TIE * problem.ways.dislike
        trees: list[Ints] = []
        for slope in _SLOPES:
            some, whole = grown(price, problem.roots, self.deepest, slope)
            trees += list(some[whole])
        if self.deepest >= n - 1:
            # Where trees are free any root finds the cheapest.
            roots = problem.roots[:1] if problem.free else problem.roots
            exact = np.array([cheapest(price, int(root)) for root in roots])
            bound = fsum((priced(exact, price) - tie).tolist()) * mean
            if bound > self.proof:
                self.proof, self.best = bound, prices
            trees = [flattened(tree, price, _SLACKS[0]) for tree in trees]
            trees += [flattened(tree, price, slack) for tree in exact for slack in _SLACKS]
        before = len(self.pool.of)
        for tree in trees:
            self.pool.add(tree)
        return len(self.pool.of) > before

    def start(self) -> None:
        """Add trees at prices that grow with the load of those before."""
        prices, load = self.best, np.zeros(len(self.best))
        for _ in range(max(_FIRST, _FEW // self.pool.problem.classes)):
            before = len(self.pool.of)
            if not self.offers(prices):
                break
            load += np.sum(self.pool.busy[before:], axis=0)
            prices = _normal(1.0 + _STEEP * (load / load.max()) ** 2 * (load / load.max()) ** 2)


def solved(pool: Pool, deepest: int, goal: float = 0.0) -> tuple[Mix | None, float]:
    """Return the best mix of trees up to a depth, and what no mix of any depth is busy less than.

    None where none are so shallow. The search ends at `goal`, at the proof, or when new trees
    bring little. The proof is 0 where `deepest` rules out some trees. `pool` keeps what was found.
    """
    search, history = _Search(pool, deepest), []
    search.start()
    which = pool.within(deepest, None)
    if len(np.unique(np.array(pool.of)[which])) < pool.problem.classes:
        return None, search.proof
    mix = mixed(pool, which)
    if mix is None:
        return None, search.proof
    for _ in range(_ROUNDS):
        history.append(mix.busy)
        if mix.busy <= max(goal, search.proof * (1 + _ENOUGH)):
            break
        rounds, least = _STALL if search.proof else _STALL_SHALLOW
        if len(history) > rounds and mix.busy > history[-1 - rounds] * (1 - least):
            break
        if not any(search.offers(part * search.best + (1 - part) * mix.prices)
                   for part in ((_TREND, 0.0) if search.proof else (0.0,))):  # fmt: skip
            break
        mix = mixed(pool, pool.within(deepest, mix)) or mix
    return replace(mix, proving=search.best), search.proof
