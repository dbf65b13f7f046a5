"""Collectives on a packed forest: many weighted trees that together load all links alike.

Owns how the trees of a Recipe's forest become a schedule: which slots each tree carries, and which
channel each pair of ranks uses. Knows no fabric: who found the trees chose them and their weights.

Two trees below every root, two to one; three slots a block (allgather, root 0's block)::

    slots 0 1   0 -> 1 -> 2 -> 3        slot 2   0 -> (1 -> 3, 2)

A level of all trees is one phase; with pieces, each follows the one before a level behind. A pair
of ranks always uses the same channel, and a rank has at most two peers to send to, and two to get
from, on any: pairs are the edges of a bipartite graph, its edges coloured (D. Konig, "Graphok es
matrixok", 1931), two colours a channel. So it is as with rings: one kernel a neighbour.

Source of the idea: J. Edmonds, "Edge-disjoint branchings" (1973); Z. Zhao et al., "ForestColl:
throughput-optimal collective communications on heterogeneous network fabrics" (2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..schedule import COPY, I32, REDUCE, Layout, Phase, Pipeline, Schedule, at, pipeline, rows
from .flat import Ints, depths, handed_in, landed, local_copy
from .recipe import Forest, Recipe, scheduled

__all__ = ["allgather", "allreduce", "broadcast", "colours", "reduce", "reduce_scatter"]


@dataclass(frozen=True, eq=False, slots=True)
class _Trees:
    """The trees of a schedule. parents : int32[T, n]; root, first, width : int[T], the root of
    each, its first slot in its block, and its slots; total: slots of a block.
    """

    parents: I32
    root: Ints
    first: Ints
    width: Ints
    total: int


def _forest(recipe: Recipe) -> Forest:
    if recipe.forest is None:
        raise ScheduleError(
            f"forest: the recipe for {recipe.n} ranks has no forest; let the planner synthesise "
            "one (rccl_py.planner.packing), or give Recipe(forest=Forest(parents, weights))"
        )
    return recipe.forest


def _shared(forest: Forest, which: Ints) -> _Trees:
    """Return the trees `which`, all of which share one block."""
    width = forest.weights[which].astype(np.int64)
    width //= max(int(np.gcd.reduce(width)), 1)
    parents = forest.parents[which]
    first = np.cumsum(width) - width
    return _Trees(parents, parents.argmin(axis=1), first, width, int(width.sum()))


def _own_blocks(name: str, recipe: Recipe) -> _Trees:
    """Return all trees, each root's of a block of its own.

    Raises ScheduleError unless every rank is a root, all with the same weight.
    """
    forest, n = _forest(recipe), recipe.n
    width = forest.weights.astype(np.int64)
    width //= max(int(np.gcd.reduce(width)), 1)
    root = forest.parents.argmin(axis=1)
    total = np.bincount(root, weights=width, minlength=n).astype(np.int64)
    if (total != total[0]).any():
        worst = int(np.abs(total - total[0]).argmax())
        raise ScheduleError(
            f"{name}/forest: the trees of root 0 weigh {total[0]}, those of root {worst} "
            f"{total[worst]}: every rank's block needs trees of the same weight in all"
        )
    order = np.argsort(root, kind="stable")
    first = np.empty_like(width)
    before = np.cumsum(width[order]) - width[order]
    first[order] = before - root[order] * total[0]
    return _Trees(forest.parents, root, first, width, int(total[0]))


def colours(src: Ints, dst: Ints, n: int) -> Ints:
    """Return a colour of each pair src[i] -> dst[i] : int64[m], no two alike at either end.

    As many colours as the most pairs any rank sends or gets by: where the two ends have no free
    colour in common, the path of two colours that starts at one end is swapped (Konig).
    """
    most = int(max(np.bincount(src).max(initial=0), np.bincount(dst).max(initial=0)))
    sends = np.full((n, most), -1, dtype=np.int64)  # the pair that leaves a rank by a colour
    gets = np.full((n, most), -1, dtype=np.int64)
    found = np.empty(len(src), dtype=np.int64)
    for pair, (u, v) in enumerate(zip(src.tolist(), dst.tolist())):
        a, b = int(sends[u].argmin()), int(gets[v].argmin())  # free: -1 is the least there is
        if gets[v, a] >= 0:
            _swap(v, a, b, (src, dst), (sends, gets), found)
        sends[u, a] = gets[v, a] = pair
        found[pair] = a
    return found


def _swap(
    v: int, a: int, b: int, ends: tuple[Ints, Ints], held: tuple[Ints, Ints], found: Ints
) -> None:
    """Swap colours a and b along the path that starts with what enters `v` by a."""
    path, side, at_, colour = [], 1, v, a
    while (pair := int(held[side][at_, colour])) >= 0:
        path.append(pair)
        side = 1 - side
        at_, colour = int(ends[side][pair]), a + b - colour
    for pair in path:
        held[0][ends[0][pair], found[pair]] = held[1][ends[1][pair], found[pair]] = -1
    for pair in path:
        found[pair] = a + b - found[pair]
        held[0][ends[0][pair], found[pair]] = held[1][ends[1][pair], found[pair]] = pair


@dataclass(frozen=True, eq=False, slots=True)
class _Edges:
    """Edges of trees by level, the roots' first. Columns int[e]; levels: where each begins."""

    tree: Ints
    child: Ints
    parent: Ints
    colour: Ints
    levels: Ints
    ncolours: int

    @property
    def nchannels(self) -> int:
        """Channels they use: two colours each."""
        return max(-(-self.ncolours // 2), 1)


def _edges(parents: I32) -> _Edges:
    """Return all edges; of a level, those of the same two ends are neighbours."""
    n = parents.shape[1]
    tree, child = np.nonzero(parents >= 0)
    parent = parents[tree, child].astype(np.int64)
    depth = depths(parents)[tree, child]
    pairs, of = np.unique(parent * n + child, return_inverse=True)
    colour = colours(pairs // n, pairs % n, n)[of]
    order = np.lexsort((tree, child, parent, colour, depth))
    starts = np.cumsum(np.bincount(depth, minlength=1))
    return _Edges(tree[order], child[order], parent[order], colour[order], starts,
                  int(colour.max(initial=-1)) + 1)  # fmt: skip


def _down(trees: _Trees, edges: _Edges, slot: Ints) -> Iterator[Phase]:
    """Yield one phase a level, the roots' first: parents send their tree's slots to children."""
    for a, b in pairwise(edges.levels.tolist()):
        t = edges.tree[a:b]
        moved = rows(edges.parent[a:b], edges.child[a:b], count=trees.width[t], op=COPY,
                     channel=edges.colour[a:b] // 2)  # fmt: skip
        yield Phase((at(moved, slot[t], slot[t]),))


def _up(trees: _Trees, edges: _Edges, slot: Ints, channel: int = 0) -> Iterator[Phase]:
    """Yield one phase a level, the deepest first: parents add what their children send, a move
    after another, in none of which two children of a tree's parent send.
    """
    for a, b in reversed(list(pairwise(edges.levels.tolist()))):
        turn, moves = _turns(edges, a, b), []
        for k in range(int(turn.max()) + 1):
            which = a + np.flatnonzero(turn == k)
            t = edges.tree[which]
            moved = rows(edges.child[which], edges.parent[which], count=trees.width[t], op=REDUCE,
                         channel=channel + edges.colour[which] // 2)  # fmt: skip
            moves.append(at(moved, slot[t], slot[t]))
        yield Phase(tuple(moves))


def _turns(edges: _Edges, a: int, b: int) -> Ints:
    """Return the move of each edge a..b: int64[b - a]; few moves, and a pair's edges in one.

    All edges of a colour take the first move in which no parent of theirs, of the same tree, is.
    """
    sums = edges.tree[a:b] * (int(edges.parent.max()) + 1) + edges.parent[a:b]
    _, busy = np.unique(sums, return_inverse=True)  # who adds up, tree by tree
    colour, found, taken = (
        edges.colour[a:b],
        np.empty(b - a, dtype=np.int64),
        list[npt.NDArray[np.bool_]](),
    )
    for c in np.unique(colour).tolist():
        mine = np.flatnonzero(colour == c)
        free = (k for k, held in enumerate(taken) if not held[busy[mine]].any())
        move = next(free, len(taken))
        if move == len(taken):
            taken.append(np.zeros(int(busy.max()) + 1, dtype=bool))
        taken[move][busy[mine]] = True
        found[mine] = move
    return found


def allgather(recipe: Recipe) -> Schedule:
    """Return every block going down its root's trees, shared out by weight."""
    trees = _own_blocks("allgather", recipe)
    edges = _edges(trees.parents)
    layout = Layout(trees.total * recipe.pieces, 1, recipe.n)
    ranks = np.arange(recipe.n)
    slot = trees.root * layout.chunks + trees.first

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        one = list(_down(trees, edges, slot))
        yield pipeline(one, recipe.pieces, trees.total, int(layout.output()))

    return scheduled("allgather", "forest", recipe, layout, edges.nchannels, phases)


def reduce_scatter(recipe: Recipe) -> Schedule:
    """Return every block being reduced up its root's trees; partial sums live in scratch."""
    trees = _own_blocks("reduce_scatter", recipe)
    edges, n = _edges(trees.parents), recipe.n
    layout = Layout(trees.total * recipe.pieces, n, 1, n)
    slot = trees.root * layout.chunks + trees.first

    def phases() -> Iterator[Phase | Pipeline]:
        yield handed_in(layout, n)
        first = int(layout.scratch_block())
        one = landed(_up(trees, edges, slot), 0, layout.chunks, int(layout.output()) - first)
        yield pipeline(list(one), recipe.pieces, trees.total, first)

    return scheduled("reduce_scatter", "forest", recipe, layout, edges.nchannels, phases)


def allreduce(recipe: Recipe) -> Schedule:
    """Return the data shared out over all trees, whatever their roots: up each, and down again."""
    forest = _forest(recipe)
    trees = _shared(forest, np.arange(len(forest.weights)))
    edges, layout = _edges(trees.parents), Layout(trees.total * recipe.pieces, 1, 1)
    above = edges if forest.up is None else _edges(forest.up)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(np.arange(recipe.n), layout.input(), layout.output(), layout.chunks)
        one = [*_up(trees, above, trees.first, edges.nchannels), *_down(trees, edges, trees.first)]
        yield pipeline(one, recipe.pieces, trees.total, int(layout.output()))

    nchannels = edges.nchannels + above.nchannels
    return scheduled("allreduce", "forest", recipe, layout, nchannels, phases)


def _rooted(name: str, recipe: Recipe) -> _Trees:
    forest = _forest(recipe)
    mine = np.flatnonzero(forest.parents[:, recipe.root] < 0)
    if not len(mine):
        raise ScheduleError(
            f"{name}/arborescences: none of {len(forest.weights)} trees has the root "
            f"{recipe.root}; a forest synthesised for {name} from that root has"
        )
    return _shared(forest, mine)


def broadcast(recipe: Recipe) -> Schedule:
    """Return the data shared out over the root's trees, down each."""
    trees = _rooted("broadcast", recipe)
    edges, layout = _edges(trees.parents), Layout(trees.total * recipe.pieces, 1, 1)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy([recipe.root], layout.input(), layout.output(), layout.chunks)
        one = list(_down(trees, edges, trees.first))
        yield pipeline(one, recipe.pieces, trees.total, int(layout.output()))

    return scheduled("broadcast", "arborescences", recipe, layout, edges.nchannels, phases)


def reduce(recipe: Recipe) -> Schedule:
    """Return the data shared out over the root's trees, up each; partial sums in scratch."""
    trees = _rooted("reduce", recipe)
    edges, layout = _edges(trees.parents), Layout(trees.total * recipe.pieces, 1, 1, 1)

    def phases() -> Iterator[Phase | Pipeline]:
        ranks = np.arange(recipe.n)
        yield local_copy(ranks, layout.input(), layout.scratch_block(), layout.chunks)
        one = list(_up(trees, edges, trees.first))
        yield pipeline(one, recipe.pieces, trees.total, int(layout.scratch_block()))
        yield local_copy([recipe.root], layout.scratch_block(), layout.output(), layout.chunks)

    return scheduled("reduce", "arborescences", recipe, layout, edges.nchannels, phases)
