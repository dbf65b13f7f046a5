"""Forests for one collective on one fabric: the door of this package.

Owns which trees a collective wants (whose roots, which way data goes along them) and for how many
ranks the search is worth its time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...algorithms import Forest
from ...algorithms.flat import Ints
from ...collectives import COLLECTIVES
from ...errors import InvalidArgument
from ...fabric import Fabric
from .build import Packed, packed, paired
from .cache import kept, key_of, remember
from .columns import Problem
from .ways import Ways, ways_of

__all__ = ["MOST_RANKS", "forests", "problem_of", "searched", "synthesise"]

MOST_RANKS = 128
"""Ranks up to which forests are searched for; ALONE of them where no ranks are alike."""

_UP = ("reduce_scatter", "reduce")
_PACKED = ("allreduce", "allgather", *_UP, "broadcast")


def problem_of(ways: Ways, collective: str, root: int = 0) -> Problem:
    """Return what is to be packed for a collective.

    Trees carry data down to all ranks (allgather, broadcast), up from all (reduce_scatter, reduce:
    the ways are turned around), or both (allreduce: any rank may be a root, with any share).
    """
    if collective not in _PACKED:
        raise InvalidArgument(
            f"packing: {collective!r} has no forest: one of {', '.join(_PACKED)} was expected"
        )
    if collective == "allreduce":
        return Problem(ways.both(), np.arange(ways.n), free=True)
    roots = np.array([root]) if COLLECTIVES[collective].rooted else np.arange(ways.n)
    return Problem(ways.turned() if collective in _UP else ways, roots)


def forests(
    fabric: Fabric, collective: str, root: int = 0, folder: Path | None = None
) -> list[Packed]:
    """Return packed forests with what they cost, the shallowest first, the last the fastest.

    folder: where forests are kept on disk, None for nowhere; see `cache_folder`. Empty for one
    rank, more than MOST_RANKS, and where some rank cannot be reached by trees. The same machine
    gives the same forests, from disk or not.

    Raises InvalidArgument for a collective without forests, or a root out of range.
    """
    if not 0 <= root < fabric.nranks:
        raise InvalidArgument(f"packing: root {root} is not one of 0..{fabric.nranks - 1}")
    if not 1 < fabric.nranks <= MOST_RANKS:
        return []
    ways, order = ways_of(fabric), np.lexsort((fabric.local, fabric.node))
    return searched(ways, order, collective, root, folder)


def searched(
    ways: Ways, order: Ints, collective: str, root: int, folder: Path | None
) -> list[Packed]:
    """Return what `forests` does, for ways instead of a fabric; order: int[n], node by node."""
    problem = problem_of(ways, collective, root)
    if problem.free and not problem.ways.spans() and ways.spans():  # not two-way trees alone
        down, up = (searched(ways, order, c, 0, folder) for c in ("allgather", "reduce_scatter"))
        return [paired(down[-1], up[-1], ways)] if down and up else []
    if folder is None:
        return packed(problem, order)
    key = key_of(problem, order)
    found = kept(folder, key, problem)
    if found is None:
        found = packed(problem, order)
        remember(folder, key, found)
    return found


def synthesise(
    fabric: Fabric, collective: str, root: int = 0, folder: Path | None = None
) -> list[Forest]:
    """Return the forests of `forests`, for Recipe.forest, one a candidate."""
    return [one.forest for one in forests(fabric, collective, root, folder)]
