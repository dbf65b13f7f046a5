"""What a generator may know: ranks, orders, trees, groups and pieces; never a fabric or a time.

Owns Recipe (the generator's input) and the small helpers every generator shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from ..schedule import I32, Layout, Move, Outline, Phase, Pipeline, Schedule, changed
from .flat import Ints

__all__ = ["Forest", "Part", "Paths", "Recipe", "Shares", "scheduled", "shares_of", "spaced"]


@dataclass(frozen=True, eq=False, slots=True)
class Forest:
    """Weighted out-trees over all ranks, found for one machine.

    parents : int32[T, n], -1 at the root of a tree; a rank may be the root of several trees, or
    of none. weights : int32[T], the relative amount of data each carries. up : int32[T, n], trees
    from the same roots that an allreduce reduces along, where links are not as wide both ways;
    None: along those that it hands on by.
    """

    parents: I32
    weights: I32
    up: I32 | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Paths:
    """The ways the blocks of an alltoall take through ranks, found for one machine.

    Path q visits rank[ptr[q]:ptr[q + 1]], from the sender to the receiver, and carries weight[q]
    of the `total` shares of that pair's block. ptr : int64[Q + 1], rank : int32[ptr[Q]],
    weight : int32[Q]; the weights of every pair of different ranks add up to total.
    """

    ptr: npt.NDArray[np.int64]
    rank: I32
    weight: I32
    total: int


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a mix: so many shares of the data, by the algorithm of that name.

    In so many pieces, or in turns: the algorithm is done again and again, on a part of its share.
    """

    algorithm: str
    share: int
    pieces: int = 1
    turns: int = 1


@dataclass(frozen=True, eq=False)
class Recipe:
    """Inputs of a generator.

    n: ranks. root: of rooted collectives. rings : int32[k, n], edge-disjoint ring orders, with
    weights : int32[k], the relative bandwidth of each. trees : int32[T, n], parents of the trees
    an unrooted collective uses. nodes : int32[N, g] or None, the ranks of every scale-up domain
    where all have the same number. local_rings : int32[k, g] and local_weights, rings inside a
    node. pieces: parts a pipelined algorithm cuts the data into.

    What only some machines have, None elsewhere: grid : int32[d_0, d_1, ...], the ranks where they
    stand in a torus; tiers : int32[g_L, ..., g_1, g_0], the ranks by nested levels of the
    machine, the outermost first (pods, nodes, ranks of a node); forest and paths, as synthesised;
    mix, the algorithms that go well side by side.
    """

    n: int
    root: int
    rings: I32
    weights: I32
    trees: I32
    nodes: I32 | None = None
    local_rings: I32 | None = None
    local_weights: I32 | None = None
    pieces: int = 1
    grid: I32 | None = None
    tiers: I32 | None = None
    forest: Forest | None = None
    paths: Paths | None = None
    mix: tuple[Part, ...] | None = None
    memo: dict[str, list[Phase]] = field(default_factory=dict)

    def piece(self, key: str, make: Callable[[], Iterable[Phase]]) -> list[Phase]:
        """Return the phases of one piece, with slots from 0 on; made once a memo."""
        if key not in self.memo:
            self.memo[key] = list(make())
        return self.memo[key]


@dataclass(frozen=True, eq=False, slots=True)
class Shares:
    """Slots of a block split over channels: channel c has width[c] of them from first[c] on."""

    first: Ints
    width: Ints
    total: int

    @property
    def channel(self) -> Ints:
        """The channel numbers."""
        return np.arange(len(self.width))


def shares_of(weights: Ints) -> Shares:
    """Return slots in proportion to `weights`, in lowest terms."""
    width = np.asarray(weights) // np.gcd.reduce(weights)
    return Shares(np.cumsum(width) - width, width, int(width.sum()))


def scheduled(
    collective: str,
    algorithm: str,
    recipe: Recipe,
    layout: Layout,
    nchannels: int,
    phases: Callable[[], Iterable[Phase | Pipeline]],
) -> Schedule:
    """Return the Schedule of one generator's phases and pipelines."""
    told = Outline(phases)
    return Schedule(collective, algorithm, recipe.n, recipe.root, layout, nchannels, told)


def spaced(phases: Iterable[Phase], width: int, pieces: int) -> Iterator[Phase]:
    """Yield `phases` over blocks of `width` slots as those of blocks `pieces` times as long.

    The slots become the first `width` of each longer block; the rows stay the same objects, so
    that what a planner found out about them serves any number of pieces.
    """
    for phase in phases:
        apart = partial(_apart, width=width, pieces=pieces)
        yield phase if pieces == 1 else Phase(changed(phase.moves, apart), phase.steps)


def _apart(move: Move, width: int, pieces: int) -> Move:
    slots = move.slots

    def further(slot: I32) -> I32:
        return (slot + slot // width * (width * (pieces - 1))).astype(np.int32, copy=False)

    def found(s: int) -> tuple[I32, I32]:
        src_slot, dst_slot = slots(s)
        wide = further(src_slot)
        return wide, wide if dst_slot is src_slot else further(dst_slot)

    return Move(move.rows, found)
