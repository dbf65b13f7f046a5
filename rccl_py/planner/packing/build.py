"""From ways to forests: packed as fast as any can be, then as shallow as that allows, then whole.

Owns the order of the search and what of it is kept: the forest that is within `_NEAR` of the
fastest mix at the least depth, and shallower ones that lose more. Knows no cache and no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...algorithms import Forest
from ...algorithms.flat import Ints, depths
from ...fabric import F64
from .arborescence import cheapest, priced
from .columns import Mix, Pool, Problem, mixed, solved
from .disjoint import arborescences, links_of, widest
from .shares import shared
from .symmetry import groups
from .ways import Ways

__all__ = ["ALONE", "Packed", "load_of", "packed", "paired"]

ALONE = 64
"""Ranks up to which forests are searched for where no ranks are alike: a minute at worst."""
_NEAR = 0.003  # of the seconds that fewer levels, or fewer moves, may cost
_ROUNDING = 0.003  # of the seconds that whole shares may cost; more only where no number will do
_FAR = 1.5  # times the seconds of the fastest: what is slower is not kept, however shallow
_PLAIN = 0.015  # of the seconds, that a plainer forest of the same depth may cost
_ODD = 0.02  # of the seconds, that odd pairs of ranks (`Ways.plain`) must save to be used
_BOTH = 16  # ranks up to which trees are searched for in both ways, where there are two
_BLOCK_SHARES = 128  # of one rank's block
_ALL_SHARES = 2048  # of what all trees share


@dataclass(frozen=True, eq=False, slots=True)
class Packed:
    """A forest; the s its busiest thing is busy per byte (of a block, or of the whole vector where
    all trees share it); `proof`, the s below which no forest gets; and its depth.
    """

    forest: Forest
    seconds: float
    proof: float
    depth: int

    @property
    def pairs(self) -> int:
        """Pairs of ranks that talk, so messages of a step: what a call pays whatever its size."""
        tree, child = np.nonzero(self.forest.parents >= 0)
        n = self.forest.parents.shape[1]
        return len(np.unique(self.forest.parents[tree, child].astype(np.int64) * n + child))


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """A group of moves, its pool, the fastest mix, and what is proven for the whole machine."""

    images: npt.NDArray[np.int64]
    pool: Pool
    mix: Mix
    proof: float = 0.0

    @property
    def seconds(self) -> float:
        """The s the mix takes a byte: trees that share one share it with their images."""
        shared_by = len(self.images) if self.pool.problem.free else 1
        return self.mix.busy * self.pool.problem.ways.unit / shared_by


def load_of(forest: Forest, ways: Ways, *, own: bool) -> F64:
    """Return the s each thing is busy per byte of a block: float64[things].

    own: whether every rank's block has trees of its own; else all trees share one.
    """
    weight = forest.weights / forest.weights.sum() * (ways.n if own else 1)
    tree, child = np.nonzero(forest.parents >= 0)
    pair = forest.parents[tree, child] * np.int64(ways.n) + child
    used = np.bincount(pair, weights=weight[tree], minlength=ways.n**2)
    return np.asarray(ways.matrix.T @ used)


def paired(down: Packed, up: Packed, ways: Ways) -> Packed:
    """Return the forest that reduces along `up` and hands on along `down`, root by root.

    Every tree of a root is cut where one of the other kind ends, so that a share goes up one tree
    and down one. ways: the way down; those of `up` are the same, turned. It proves nothing (0).
    """
    one, two = down.forest, up.forest
    sizes = [int(f.weights.sum()) // ways.n for f in (one, two)]  # shares of every root
    parts: list[tuple[Ints, Ints, Ints]] = []
    for root in range(ways.n):
        mine = [np.flatnonzero(f.parents[:, root] < 0) for f in (one, two)]
        ends = [np.cumsum(f.weights[m].astype(np.int64)) * s
                for f, m, s in zip((one, two), mine, reversed(sizes))]  # fmt: skip
        cuts = np.unique(np.concatenate([[0], *ends]))
        at = [m[np.searchsorted(e, cuts[:-1], side="right")] for m, e in zip(mine, ends)]
        parts.append((at[0], at[1], np.diff(cuts)))
    below, above, width = (np.concatenate(c) for c in zip(*parts))
    weights = (width // np.gcd.reduce(width)).astype(np.int32)
    forest = Forest(one.parents[below], weights, two.parents[above])
    busy = load_of(forest, ways, own=False)
    busy += load_of(Forest(two.parents[above], weights), ways.turned(), own=False)
    depth = max(down.depth, up.depth)
    return Packed(forest, float(busy.max()), 0.0, depth)


def _proven(whole: Problem, prices: F64) -> float:
    """Return the s that prices of things, which add up to 1, prove for all roots."""
    price = whole.ways.priced(prices)
    roots = whole.roots[:1] if whole.free else whole.roots
    return float(priced(np.array([cheapest(price, int(r)) for r in roots]), price).sum())


def _fastest(whole: Problem, order: Ints, *, moves: bool) -> _Found | None:
    """Return the fastest mix, of one rank's trees and their images where that loses nothing."""
    best, proof = None, 0.0
    for images in groups(whole.ways, order) if moves else [np.arange(whole.ways.n)[None, :]]:
        if len(images) == 1 and whole.ways.n > ALONE:
            continue
        together = whole.ways.over(images)
        roots = np.unique(images.min(axis=0)) if len(images) > 1 else whole.roots
        if not together.spans(None if moves else int(roots[0])):
            continue
        pool = Pool(Problem(together, roots, whole.free))
        mix, bound = solved(pool, whole.ways.n)
        if mix is None:
            continue
        found, bound = _Found(images, pool, mix), bound * together.unit
        if len(images) > 1:
            bound = _proven(whole, together.spread(mix.prices))
        proof = max(proof, bound)
        best = found if best is None or found.seconds < best.seconds else best
        if best.seconds <= proof * (1 + _NEAR):
            break
    return None if best is None else replace(best, proof=proof)


def _plain_first(whole: Problem, order: Ints, *, moves: bool) -> list[_Found]:
    """Return the fastest mix without odd pairs; with them where that is much faster.

    Of few ranks both, where prices cannot tell: which is faster in the end, a simulation says.
    """
    ways = whole.ways.plain()
    plain = None if ways is None else _fastest(replace(whole, ways=ways), order, moves=moves)
    if plain is not None:
        proof = 0.0
        for prices in (plain.mix.prices, plain.mix.proving):
            found = plain.pool.problem.ways.spread(prices)
            every = np.zeros(whole.ways.matrix.shape[1])
            every[: len(found)] = found
            proof = max(proof, _proven(whole, every))
        plain = replace(plain, proof=proof)
        if plain.seconds <= proof * (1 + 2 * _NEAR):
            return [plain]
    best = _fastest(whole, order, moves=moves)
    if best is None:
        return []
    if plain is None or plain.seconds > best.seconds * (1 + _ODD):
        return [best]
    proof = max(best.proof, plain.proof)
    both = [replace(plain, proof=proof), replace(best, proof=proof)]
    return both if whole.ways.n <= _BOTH else both[:1]


def _shallow(found: _Found) -> list[tuple[Mix, int]]:
    """Return mixes and their depths, the shallowest first, the last as fast as any."""
    pool, n = found.pool, found.pool.problem.ways.n
    used = np.array(pool.depth)[found.mix.x > 1e-9]
    low, high, kept = _eccentric(pool.problem), int(used.max()), [(found.mix, int(used.max()))]
    goal = found.mix.busy * (1 + _NEAR)
    while low < high:
        depth = (low + high) // 2
        mix, _ = solved(pool, depth, goal)
        if mix is not None and mix.busy <= found.mix.busy * _FAR:
            kept.append((mix, depth))
        if mix is not None and mix.busy <= goal:
            high = depth
        else:
            low = depth + 1
    kept.sort(key=lambda k: k[1])
    last = next(k for k, (mix, _) in enumerate(kept) if mix.busy <= goal)
    return [k for k in kept[: last + 1] if k[1] < n]


def _eccentric(problem: Problem) -> int:
    """Return the levels that a tree needs at least."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    graph = csr_array(problem.ways.joined.astype(np.int8))
    hops = shortest_path(graph, unweighted=True, indices=problem.roots).max(axis=1)
    return int(hops.min() if problem.free else hops.max())


def _whole(found: _Found, mix: Mix, depth: int, whole: Problem, loss: float = 0.0) -> Packed:
    """Return a mix as a forest: the plainest of those as fast, or slower by the part `loss`, in
    whole shares and with all images.
    """
    pool, free = found.pool, whole.free
    which = pool.within(depth, mix)
    most = mix.busy * (1 + _NEAR / 5 + loss)
    flat = mixed(pool, which, most, mix.prices if whole.ways.n > _BOTH else None) or mix
    used = np.zeros(len(pool.of), dtype=bool)
    for one in (flat, mix):
        used[: len(one.x)] |= one.x > 0
    which = which[used[which]]
    busy = np.array([pool.busy[t] for t in which])
    of = np.array([pool.of[t] for t in which])
    own = not free and len(whole.roots) > 1
    most = _BLOCK_SHARES if own else max(_ALL_SHARES // len(found.images), _BLOCK_SHARES // 2)
    enough = mix.busy * (1 + _ROUNDING + loss)
    count, _ = shared(flat.x[which], busy, of, most, enough)
    trees = np.array([pool.parents[t] for t in which])[count > 0]
    forest = _imaged(trees, count[count > 0], found.images)
    load = load_of(forest, whole.ways, own=own)
    return Packed(forest, float(load.max()), found.proof, int(depths(forest.parents).max()))


def _imaged(trees: Ints, weights: Ints, images: npt.NDArray[np.int64]) -> Forest:
    """Return the trees and their images, in order of their roots."""
    t, n = trees.shape
    parents = np.full((len(images), t, n), -1, dtype=np.int32)
    for moved, image in zip(parents, images):
        moved[:, image] = np.where(trees < 0, -1, image[np.maximum(trees, 0)])
    flat, weight = parents.reshape(-1, n), np.tile(weights, len(images)).astype(np.int32)
    order = np.argsort(flat.argmin(axis=1), kind="stable")
    return Forest(np.ascontiguousarray(flat[order]), weight[order] // np.gcd.reduce(weight))


def packed(whole: Problem, order: Ints) -> list[Packed]:
    """Return forests for a problem, the shallowest first, the last near the fastest there is.

    order : int[n], the ranks node by node: where the search for symmetry starts. Empty where no
    tree spans all ranks.
    """
    rooted = not whole.free and len(whole.roots) == 1
    if whole.ways.n < 2 or not whole.ways.spans(int(whole.roots[0]) if rooted else None):
        return []
    one = _on_links(whole) if rooted else []
    every = [one] if one else []
    if not one or whole.ways.n <= _BOTH:
        every += [[_whole(found, mix, depth, whole, loss)
                   for mix, depth in _shallow(found)
                   for loss in ((0.0,) if rooted else (0.0, _PLAIN))]
                  for found in _plain_first(whole, order, moves=not rooted)]  # fmt: skip
    if rooted:
        every = [[p for made in every for p in made]]
    kept = [p for made in every for p in _gaining(made)]
    return sorted(kept, key=lambda p: (p.depth, p.pairs, p.seconds))


def _gaining(made: list[Packed]) -> list[Packed]:
    """Return those that are faster than all that are as shallow, the shallowest first."""
    made = sorted(made, key=lambda p: (p.depth, p.pairs, p.seconds))
    return [p for k, p in enumerate(made) if all(p.seconds < q.seconds for q in made[:k])]


def _on_links(whole: Problem) -> list[Packed]:
    """Return the whole trees of a root where there is nothing but links between ranks."""
    links, root = links_of(whole.ways), int(whole.roots[0])
    if links is None:
        return []
    forest = arborescences(links, root)
    seconds = float(load_of(forest, whole.ways, own=False).max())
    proof = min(1.0 / widest(links, root), seconds)
    return [Packed(forest, seconds, proof, int(depths(forest.parents).max()))]
