"""Algorithms: generators of steps, and the one table that names them.

Owns ALGORITHMS: a new algorithm is one generator, one row here, one row in docs/algorithms.md.
Algorithms know no fabric and no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..schedule import Schedule
from . import alltoall, hierarchical, rooted, split, trees
from .recipe import Forest, Paths, Recipe
from .split import CIRCULANT, DIRECT, NVLS, RING

__all__ = ["ALGORITHMS", "FAMILIES", "Algorithm", "Forest", "Paths", "Recipe", "algorithms_of"]


_EVERY = ("LL", "LL128", "Simple")
_SWITCHED = ("Simple",)  # a switch adds numbers, not numbers with flags between them


def _linear(n: int, _g: int) -> float:
    return n


def _on_heads(n: int, g: int) -> float:
    return n * max(1.0, g / 8)  # every rank of a node leads a pair of trees


def _square(n: int, _g: int) -> float:
    return n * n


def _cube(n: int, _g: int) -> float:
    return n**3 / 2


def _log(n: int, _g: int) -> float:
    return n * math.log2(n + 1)


def _square_log(n: int, _g: int) -> float:
    return n * n * math.log2(n + 1) / 2


def _two_stage(n: int, g: int) -> float:
    return n * (g + n / g)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row: how `collective` is done by the algorithm `name`.

    family: what NCCL_ALGO calls it. build(recipe): the schedule. pieces: the most it is cut into.
    two_level: needs nodes of equal size. switched: needs switches that add up and multicast.
    protocols: those it can travel by.
    rows(n, g): about how many distinct rows the
    schedule has on n ranks, g a node (repeats of a phase count once), so that a planner knows
    what not to enumerate. needs: what else of the recipe or of n it cannot do without: "grid",
    "tiers", "forest", "paths", "even" (n), "power of two" (n), or nothing.
    """

    collective: str
    name: str
    family: str
    build: Callable[[Recipe], Schedule]
    pieces: int = 1
    two_level: bool = False
    rows: Callable[[int, int], float] = _square
    switched: bool = False
    protocols: tuple[str, ...] = _EVERY
    needs: str = ""


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
        rows=_linear if halves is RING else _square,
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
        pieces=16 if collective == "allreduce" else 4,
        two_level=True,
        rows=_two_stage if collective == "allreduce" else _square,
        switched=inside is NVLS,
        protocols=_SWITCHED if inside is NVLS else _EVERY,
    )


_HALVES = (RING, DIRECT, CIRCULANT)

ALGORITHMS: tuple[Algorithm, ...] = (
    _split("allreduce", RING, "ring"),
    Algorithm("allreduce", "tree", "tree", trees.tree_allreduce, pieces=64, rows=_on_heads),
    Algorithm("allreduce", "chain", "chain", trees.chain_allreduce, pieces=64),
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
            pieces=64,
            two_level=True,
            rows=_linear,
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
        pieces=64,
        switched=True,
        protocols=_SWITCHED,
    ),
    *(_two_level("allreduce", NVLS, b) for b in _HALVES),
    *(_split("reduce_scatter", h, h.name) for h in _HALVES),
    *(_two_level("reduce_scatter", i, b) for i in (DIRECT, RING) for b in _HALVES),
    *(_split("allgather", h, h.name) for h in _HALVES),
    *(_two_level("allgather", i, b) for i in (DIRECT, RING) for b in _HALVES),
    Algorithm("alltoall", "direct", "direct", alltoall.direct),
    Algorithm("alltoall", "pairwise", "pairwise", alltoall.pairwise),
    Algorithm("alltoall", "ring", "ring", alltoall.ring, rows=_cube),
    Algorithm("alltoall", "bruck", "bruck", alltoall.bruck, rows=_square_log),
    Algorithm("alltoall", "hier-direct-direct", "hier", alltoall.hierarchical, two_level=True),
    *(
        Algorithm(name, kind, kind, partial(build, kind, shape), pieces=64, rows=_linear)
        for name, build in (("broadcast", trees.broadcast), ("reduce", trees.reduce))
        for kind, shape in (("ring", trees.chain_trees), ("tree", trees.double_trees))
    ),
    *(
        Algorithm(
            name,
            "direct-oneshot",
            "direct",
            partial(build, "direct-oneshot", trees.star_tree),
            rows=_linear,
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
            pieces=64,
            two_level=True,
            rows=_linear,
        )
        for name, build in (("broadcast", hierarchical.broadcast), ("reduce", hierarchical.reduce))
        for between in ("ring", "tree", "direct")
    ),
    *(
        Algorithm(name, kind, kind, partial(build, name), rows=rows)
        for name in ("gather", "scatter")
        for kind, build, rows in (
            ("direct", rooted.direct, _linear),
            ("ring", rooted.ring, _square),
            ("tree", rooted.tree, _log),
        )
    ),
    Algorithm(
        "gather", "hier-direct-direct", "hier", hierarchical.gather, two_level=True, rows=_linear
    ),
    Algorithm(
        "scatter", "hier-direct-direct", "hier", hierarchical.scatter, two_level=True, rows=_linear
    ),
)

FAMILIES: tuple[str, ...] = tuple(sorted({a.family for a in ALGORITHMS}))
"""What NCCL_ALGO may name, besides full algorithm names."""


def algorithms_of(collective: str) -> tuple[Algorithm, ...]:
    """Return the rows of one collective."""
    return tuple(a for a in ALGORITHMS if a.collective == collective)
