"""Algorithms: generators of steps, and the one table that names them.

Owns ALGORITHMS: a new algorithm is one generator, one row here, one row in docs/algorithms.md.
Algorithms know no fabric and no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..schedule import Schedule
from . import (
    alltoall,
    alltoall_torus,
    binomial,
    both_ways,
    bucket,
    costs,
    dissemination,
    doubling,
    forest,
    hierarchical,
    levels,
    mix,
    neighbour,
    pat,
    paths,
    rooted,
    split,
    swing,
    trees,
)
from .recipe import Forest, Part, Paths, Recipe
from .split import CIRCULANT, DIRECT, NVLS, RING

__all__ = [
    "ALGORITHMS",
    "FAMILIES",
    "Algorithm",
    "Forest",
    "Part",
    "Paths",
    "Recipe",
    "algorithms_of",
]


_PIECES = 256  # of a pipeline at most: with more, their latency costs what filling it did
_EVERY = ("LL", "LL128", "Simple")
_SWITCHED = ("Simple",)  # a switch adds numbers, not numbers with flags between them


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row: how `collective` is done by the algorithm `name`.

    family: what NCCL_ALGO calls it. build(recipe): the schedule. pieces: the most it is cut into.
    two_level: needs nodes of equal size. switched: needs switches that add up and multicast.
    protocols: those it can travel by. rows(n, g): about how many distinct messages the schedule has
    on n ranks, g a node (repeats of a phase count once), so that a planner knows what not to
    enumerate; summed(n, g): the same where a fabric sums over all pairs of a group. needs: what
    else of the recipe or of n it cannot do without: "grid", "tiers", "forest", "paths", "mix",
    "even" (n), "power of two" (n), or nothing.
    """

    collective: str
    name: str
    family: str
    build: Callable[[Recipe], Schedule]
    pieces: int = 1
    two_level: bool = False
    rows: Callable[[int, int], float] = costs.square
    switched: bool = False
    protocols: tuple[str, ...] = _EVERY
    needs: str = ""
    summed: Callable[[int, int], float] | None = None

    def looks(self, n: int, g: int, *, sums_pairs: bool) -> float:
        """Return about how many things an estimate looks at; sums_pairs: of the Fabric."""
        return self.summed(n, g) if sums_pairs and self.summed is not None else self.rows(n, g)


def _split(collective: str, halves: split.Halves, name: str) -> Algorithm:
    build = {
        "allreduce": split.allreduce,
        "reduce_scatter": split.reduce_scatter,
        "allgather": split.allgather,
    }[collective]
    return Algorithm(
        collective,
        name,
        halves.name,
        partial(build, halves),
        rows={"ring": costs.linear, "circulant": costs.halving}.get(halves.name, costs.square),
        summed=costs.in_pairs if halves is DIRECT else None,
    )


def _two_level(collective: str, inside: split.Halves, between: split.Halves) -> Algorithm:
    build = {
        "allreduce": hierarchical.allreduce,
        "reduce_scatter": hierarchical.reduce_scatter,
        "allgather": hierarchical.allgather,
    }[collective]
    return Algorithm(
        collective,
        f"hier-{inside.name}-{between.name}",
        "hier",
        partial(build, inside, between),
        pieces=_PIECES,
        two_level=True,
        rows={"ring": costs.on_rails, "circulant": costs.on_rails_log}.get(
            between.name, costs.two_stage
        ),
        summed=costs.in_two_pairs if between is DIRECT else None,
        switched=inside is NVLS,
        protocols=_SWITCHED if inside is NVLS else _EVERY,
    )


def _levels(collective: str, inner: split.Halves, outer: split.Halves) -> Algorithm:
    build = {
        "allreduce": levels.allreduce,
        "reduce_scatter": levels.reduce_scatter,
        "allgather": levels.allgather,
    }[collective]
    return Algorithm(
        collective,
        f"levels-{inner.name}-{outer.name}",
        "hier",
        partial(build, inner, outer),
        pieces=_PIECES,
        rows=costs.nested,
        summed=costs.in_two_pairs,
        needs="tiers",
    )


def _build_of(collective: str, name: str) -> Callable[[Recipe], Schedule]:
    """Return how an algorithm of the table below makes its schedule."""
    return next(a.build for a in ALGORITHMS if (a.collective, a.name) == (collective, name))


_HALVES = (RING, DIRECT, CIRCULANT)
_Flat = tuple[str, str, Callable[[Recipe], Schedule], int, Callable[[int, int], float], str]
_FLAT: tuple[_Flat, ...] = (  # collective, name and family, generator, pieces, rows, needs
    ("allreduce", "both-ways", both_ways.allreduce, 1, costs.linear, ""),
    ("allreduce", "recursive-doubling", doubling.recursive_doubling, 1, costs.halving, ""),
    ("allreduce", "halving-doubling", doubling.halving_doubling, 1, costs.halving, ""),
    ("allreduce", "swing", swing.allreduce, 1, costs.on_torus_log, "power of two"),
    ("allreduce", "bucket", bucket.allreduce, _PIECES, costs.on_torus, "grid"),
    ("reduce_scatter", "both-ways", both_ways.reduce_scatter, 1, costs.linear, ""),
    ("reduce_scatter", "recursive-halving", doubling.reduce_scatter, 1, costs.log, "power of two"),
    ("reduce_scatter", "bucket", bucket.reduce_scatter, _PIECES, costs.square, "grid"),
    ("reduce_scatter", "neighbour", neighbour.reduce_scatter, 1, costs.square, "even"),
    ("reduce_scatter", "pat", pat.reduce_scatter, 4, costs.square, ""),
    ("allgather", "both-ways", both_ways.allgather, 1, costs.linear, ""),
    ("allgather", "recursive-doubling", doubling.allgather, 1, costs.log, "power of two"),
    ("allgather", "bucket", bucket.allgather, _PIECES, costs.square, "grid"),
    ("allgather", "neighbour", neighbour.allgather, 1, costs.square, "even"),
    ("allgather", "pat", pat.allgather, 4, costs.square, ""),
)
_ON_LEVELS = ((DIRECT, DIRECT), (DIRECT, CIRCULANT), (CIRCULANT, CIRCULANT))

ALGORITHMS: tuple[Algorithm, ...] = (
    _split("allreduce", RING, "ring"),
    Algorithm(
        "allreduce", "tree", "tree", trees.tree_allreduce, pieces=_PIECES, rows=costs.on_heads
    ),
    Algorithm("allreduce", "chain", "chain", trees.chain_allreduce, pieces=_PIECES),
    Algorithm("allreduce", "direct-oneshot", "direct", trees.oneshot_allreduce),
    _split("allreduce", DIRECT, "direct-twoshot"),
    _split("allreduce", CIRCULANT, "circulant"),
    *(_two_level("allreduce", i, b) for i in (DIRECT, RING) for b in _HALVES),
    *(
        Algorithm(
            "allreduce",
            f"hier-{i.name}-tree",
            "nvlstree" if i is NVLS else "hier",
            partial(hierarchical.allreduce, i, None),
            pieces=_PIECES,
            two_level=True,
            rows=costs.linear,
            switched=i is NVLS,
            protocols=_SWITCHED if i is NVLS else _EVERY,
        )
        for i in (DIRECT, RING, NVLS)
    ),
    Algorithm(
        "allreduce",
        "nvls",
        "nvls",
        hierarchical.nvls_allreduce,
        pieces=_PIECES,
        switched=True,
        protocols=_SWITCHED,
    ),
    *(_two_level("allreduce", NVLS, b) for b in _HALVES),
    *(_split("reduce_scatter", h, h.name) for h in _HALVES),
    *(_two_level("reduce_scatter", i, b) for i in (DIRECT, RING) for b in _HALVES),
    *(_split("allgather", h, h.name) for h in _HALVES),
    Algorithm(
        "allgather", "dissemination", "dissemination", dissemination.dissemination, rows=costs.log
    ),
    *(_two_level("allgather", i, b) for i in (DIRECT, RING) for b in _HALVES),
    *(
        Algorithm(collective, name, name, build, pieces, rows=rows, needs=needs)
        for collective, name, build, pieces, rows, needs in _FLAT
    ),
    *(
        _levels(collective, inner, outer)
        for collective in ("allreduce", "reduce_scatter", "allgather")
        for inner, outer in _ON_LEVELS
    ),
    *(
        Algorithm(
            collective,
            "turned-direct-ring",
            "turned",
            partial(levels.turned, build, DIRECT, RING),
            pieces=_PIECES,
            rows=costs.nested,
            summed=costs.in_two_pairs,
            needs="tiers",
        )
        for collective, build in (
            ("allreduce", levels.allreduce),
            ("reduce_scatter", levels.reduce_scatter),
            ("allgather", levels.allgather),
        )
    ),
    *(
        Algorithm(name, kind, "forest", build, pieces=_PIECES, rows=rows, needs="forest")
        for name, kind, build, rows in (
            ("allreduce", "forest", forest.allreduce, costs.square),
            ("reduce_scatter", "forest", forest.reduce_scatter, costs.square),
            ("allgather", "forest", forest.allgather, costs.square),
            ("broadcast", "arborescences", forest.broadcast, costs.linear),
            ("reduce", "arborescences", forest.reduce, costs.linear),
        )
    ),
    *(
        Algorithm(name, "mix", "mix", partial(mix.mix, name, _build_of), needs="mix")
        for name in ("allreduce", "reduce_scatter", "allgather")
    ),
    Algorithm("alltoall", "direct", "direct", alltoall.direct, summed=costs.in_pairs),
    Algorithm("alltoall", "pairwise", "pairwise", alltoall.pairwise),
    Algorithm("alltoall", "ring", "ring", alltoall.ring, rows=costs.cube),
    *(
        Algorithm(
            "alltoall", name, "bruck", partial(alltoall.bruck, name, radix), rows=costs.halving
        )
        for name, radix in (("bruck", 2), ("bruck-4", 4), ("bruck-8", 8))
    ),
    Algorithm(
        "alltoall",
        "grid",
        "grid",
        alltoall.grid,
        pieces=16,
        rows=costs.on_grid,
        summed=costs.in_two_pairs,
    ),
    Algorithm(
        "alltoall",
        "hier-direct-direct",
        "hier",
        alltoall.hierarchical,
        pieces=_PIECES,
        two_level=True,
        rows=costs.two_stage,
        summed=costs.in_two_pairs,
    ),
    Algorithm(
        "alltoall",
        "hier-direct-pairwise",
        "hier",
        alltoall.in_turn,
        two_level=True,
        rows=costs.two_stage,
    ),
    Algorithm(
        "alltoall",
        "torus",
        "torus",
        alltoall_torus.torus,
        pieces=16,
        rows=costs.torus_rows,
        needs="grid",
    ),
    Algorithm("alltoall", "paths", "paths", paths.alltoall, pieces=_PIECES, needs="paths"),
    *(
        Algorithm(name, kind, kind, partial(build, kind, shape), pieces=_PIECES, rows=costs.linear)
        for name, build in (("broadcast", trees.broadcast), ("reduce", trees.reduce))
        for kind, shape in (("ring", trees.chain_trees), ("tree", trees.double_trees))
    ),
    *(
        Algorithm(
            name,
            "direct-oneshot",
            "direct",
            partial(build, "direct-oneshot", trees.star_tree),
            rows=costs.linear,
        )
        for name, build in (("broadcast", trees.broadcast), ("reduce", trees.reduce))
    ),
    Algorithm("broadcast", "direct-twoshot", "direct", trees.broadcast_twoshot),
    Algorithm("reduce", "direct-twoshot", "direct", trees.reduce_twoshot),
    *(
        Algorithm(
            name,
            f"hier-direct-{between}",
            "hier",
            partial(build, between),
            pieces=_PIECES,
            two_level=True,
            rows=costs.linear,
        )
        for name, build in (("broadcast", hierarchical.broadcast), ("reduce", hierarchical.reduce))
        for between in ("ring", "tree", "direct")
    ),
    *(
        Algorithm(name, kind, kind, partial(build, name), rows=rows)
        for name in ("gather", "scatter")
        for kind, build, rows in (
            ("direct", rooted.direct, costs.linear),
            ("ring", rooted.ring, costs.square),
            ("tree", rooted.tree, costs.log),
        )
    ),
    *(
        Algorithm(
            name,
            "hier-direct-direct",
            "hier",
            build,
            pieces=_PIECES,
            two_level=True,
            rows=costs.linear,
        )
        for name, build in (("gather", hierarchical.gather), ("scatter", hierarchical.scatter))
    ),
    *(
        Algorithm(name, "binomial", "binomial", build, rows=costs.linear)
        for name, build in (
            ("broadcast", binomial.broadcast),
            ("reduce", binomial.reduce),
            ("gather", binomial.gather),
            ("scatter", binomial.scatter),
        )
    ),
    Algorithm("broadcast", "scatter-ring", "ring", binomial.ring_broadcast, rows=costs.linear),
    Algorithm("reduce", "ring-gather", "ring", binomial.ring_reduce, rows=costs.linear),
    *(
        Algorithm(name, kind, "nvls", build, rows=costs.linear, switched=True, protocols=_SWITCHED)
        for name, kind, build in (
            ("broadcast", "multicast", binomial.multicast),
            ("reduce", "nvls", binomial.switched_reduce),
        )
    ),
)

FAMILIES: tuple[str, ...] = tuple(sorted({a.family for a in ALGORITHMS}))
"""What NCCL_ALGO may name, besides full algorithm names."""


def algorithms_of(collective: str) -> tuple[Algorithm, ...]:
    """Return the rows of one collective."""
    return tuple(a for a in ALGORITHMS if a.collective == collective)
