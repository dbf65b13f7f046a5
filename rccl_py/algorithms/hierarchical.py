"""Two-level forms: scale-up inside every node, one rail per local rank between nodes.

Owns how flat halves compose. Rank (a, l) is node a's local rank l; rail l joins (0, l), (1, l),
... Knows no fabric: nodes is an array of ranks. For 2 nodes of 2, allreduce, who owns what after
each half (quarters 0-3 of the data)::

                     (0,0)   (0,1)   (1,0)   (1,1)
    inside  RS        0 1     2 3     0 1     2 3    reduced over the node
    rails   RS        0       2       1       3      reduced over all
    rails   AG        0 1     2 3     0 1     2 3
    inside  AG       0 1 2 3  everywhere
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..schedule import Layout, Move, Phase, Pipeline, Schedule, at, pipeline, rows
from .flat import Ints, local_copy, tree_broadcast, tree_reduce
from .recipe import Recipe, Shares, scheduled, shares_of, spaced
from .shapes import chains, double_binary_tree, identity_order, over_nodes, rooted_double_tree, star
from .split import DIRECT, NVLS, Halves

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "gather",
    "nvls_allreduce",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def _nodes(recipe: Recipe) -> Ints:
    assert recipe.nodes is not None  # the registry offers these only where nodes are even
    return recipe.nodes


def _places(nodes: Ints) -> tuple[Ints, Ints]:
    """Return the node and the place in it of every rank: int[n] each."""
    place = np.empty(nodes.size, dtype=np.int64)
    place[nodes.ravel()] = np.arange(nodes.size)
    node, local = np.divmod(place, nodes.shape[1])
    return node, local


def _inside(halves: Halves, recipe: Recipe) -> tuple[Ints, Shares]:
    """Return local orders int[k, g] and how a block is shared over them."""
    if halves.on_rings and recipe.local_rings is not None and recipe.local_weights is not None:
        return recipe.local_rings, shares_of(recipe.local_weights)
    return identity_order(_nodes(recipe).shape[1]), shares_of(np.ones(1, dtype=np.int32))


def _local_groups(nodes: Ints, orders: Ints) -> Ints:
    """Return every node's ranks in every local order: int[N * k, g]."""
    return np.concatenate([nodes[:, order] for order in orders])


def allreduce(inside: Halves, between: Halves | None, recipe: Recipe) -> Schedule:
    """Return reduce-scatter inside, allreduce on rails, allgather inside; pipelined in pieces.

    `between` None puts a double binary tree on every rail instead of two halves.
    """
    nodes = _nodes(recipe)
    count, g = nodes.shape
    orders, shares = _inside(inside, recipe)
    per_piece = g * count * shares.total
    layout = Layout(recipe.pieces * per_piece, 1, 1)
    local = _local_groups(nodes, orders)
    lane = np.repeat(shares.channel, count)
    # Local rank l's block: channel c's part of it; on its rail, node a's part, of all channels.
    block = np.arange(g) * count * shares.total
    own_local = np.concatenate(
        [
            np.broadcast_to(block[order] + first * count, (count, g))
            for order, first in zip(orders, shares.first)
        ]
    )
    own_rail = block[:, None] + np.arange(count)[None, :] * shares.total
    wide = np.repeat(shares.width, count) * count

    def on_rails() -> Iterator[Phase]:
        if between is not None:
            yield from between.reduce_scatter(nodes.T, own_rail, shares.total, 0)
            yield from between.allgather(nodes.T, own_rail, shares.total, 0)
            return
        yield from _rail_trees(recipe.n, nodes.T, block, count * shares.total)

    def piece() -> Iterator[Phase]:
        # What other forms have too is made once: its rows are known when they are priced.
        own, rails = f"allreduce/inside/{inside.name}", f"allreduce/rails/{kind}/{shares.total}"
        yield from recipe.piece(
            f"{own}/up", lambda: inside.reduce_scatter(local, own_local, wide, lane)
        )
        yield from recipe.piece(rails, on_rails)
        yield from recipe.piece(
            f"{own}/down", lambda: inside.allgather(local, own_local, wide, lane)
        )

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(np.arange(recipe.n), layout.input(), layout.output(), layout.chunks)
        one = recipe.piece(f"allreduce/{name}", piece)
        yield pipeline(one, recipe.pieces, per_piece, int(layout.output()))

    kind = between.name if between else "tree"
    name = f"hier-{inside.name}-{kind}"
    return scheduled("allreduce", name, recipe, layout, len(orders), phases)


def nvls_allreduce(recipe: Recipe) -> Schedule:
    """Return an allreduce by one switch domain: it adds up every rank's block, and hands it on.

    In pieces, so that both directions of every port are in use: a piece is handed on while the
    next is added up.
    """
    one = replace(recipe, nodes=np.arange(recipe.n, dtype=np.int32)[None, :], memo={})
    return replace(allreduce(NVLS, DIRECT, one), algorithm="nvls")


def _rail_trees(n: int, rails: Ints, block: Ints, width: int) -> Iterator[Phase]:
    """Yield an allreduce of each rail's block of `width` slots on a double binary tree."""
    parents = np.full((2 * len(rails), n), -1, dtype=np.int32)
    for t, inner in enumerate(double_binary_tree(rails.shape[1])):
        trees = over_nodes(np.broadcast_to(inner, rails.shape), rails)
        np.put_along_axis(parents[t::2], rails, trees, axis=1)
    half = -(-width // 2)  # of an odd number of slots the first tree takes one more
    first = np.stack([block, block + half], axis=1).ravel()
    slots = np.tile([half, width - half], len(rails))
    used = np.flatnonzero(slots)
    yield from tree_reduce(parents[used], first[used], slots[used])
    yield from tree_broadcast(parents[used], first[used], slots[used])


def _block_groups(
    nodes: Ints, orders: Ints, shares: Shares
) -> tuple[Ints, Callable[[], Ints], Ints, Ints]:
    """Return groups that split, inside every node, the blocks of each node's ranks.

    One group per (channel, node), int[k * N, g], with what makes the own slots (of blocks of
    `shares.total`) for the ranks of every node, int[k * N * N, g], and with widths and channels.
    """
    count, g = nodes.shape
    k = len(orders)

    def own() -> Ints:
        block = nodes * shares.total  # first slot of the block of rank (b, l)
        parts = np.stack([block[:, order] + first for order, first in zip(orders, shares.first)])
        return np.broadcast_to(parts[:, None], (k, count, count, g)).reshape(-1, g)

    each = np.repeat(np.arange(k), count)
    return _local_groups(nodes, orders), own, shares.width[each], shares.channel[each]


def reduce_scatter(inside: Halves, between: Halves, recipe: Recipe) -> Schedule:
    """Return reduce-scatter inside for every node's blocks, then on rails."""
    nodes, n = _nodes(recipe), recipe.n
    orders, shares = _inside(inside, recipe)
    layout = Layout(recipe.pieces * shares.total, n, 1, n)
    base = int(layout.scratch_block())
    ranks = np.arange(n)

    def in_nodes() -> Iterator[Phase]:
        groups = _block_groups(nodes, orders, shares)
        return inside.reduce_scatter(*groups, times=len(nodes))

    def on_rails() -> Iterator[Phase]:
        return between.reduce_scatter(nodes.T, nodes.T * shares.total, shares.total, 0)

    def piece() -> Iterator[Phase]:
        yield from recipe.piece(f"reduce_scatter/inside/{inside.name}", in_nodes)
        yield from recipe.piece(f"reduce_scatter/rails/{between.name}/{shares.total}", on_rails)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), base, n * layout.chunks)
        one = spaced(recipe.piece(f"reduce_scatter/{name}", piece), shares.total, recipe.pieces)
        yield pipeline(one, recipe.pieces, shares.total, base)
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), layout.chunks)

    name = f"hier-{inside.name}-{between.name}"
    return scheduled("reduce_scatter", name, recipe, layout, len(orders), phases)


def allgather(inside: Halves, between: Halves, recipe: Recipe) -> Schedule:
    """Return allgather on rails, then inside for every node's blocks."""
    nodes, n = _nodes(recipe), recipe.n
    orders, shares = _inside(inside, recipe)
    layout = Layout(recipe.pieces * shares.total, 1, n)
    ranks = np.arange(n)

    def on_rails() -> Iterator[Phase]:
        return between.allgather(nodes.T, nodes.T * shares.total, shares.total, 0)

    def in_nodes() -> Iterator[Phase]:
        groups = _block_groups(nodes, orders, shares)
        return inside.allgather(*groups, times=len(nodes))

    def piece() -> Iterator[Phase]:
        yield from recipe.piece(f"allgather/rails/{between.name}/{shares.total}", on_rails)
        yield from recipe.piece(f"allgather/inside/{inside.name}", in_nodes)

    def phases() -> Iterator[Phase | Pipeline]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        one = spaced(recipe.piece(f"allgather/{name}", piece), shares.total, recipe.pieces)
        yield pipeline(one, recipe.pieces, shares.total, int(layout.output()))

    name = f"hier-{inside.name}-{between.name}"
    return scheduled("allgather", name, recipe, layout, len(orders), phases)


def _rail_parents(kind: str, recipe: Recipe) -> Ints:
    """Return parents of trees over the nodes, one or two a rail, rooted in the root's node.

    int32[T * g, n]; trees of one rail lie together.
    """
    nodes = _nodes(recipe)
    count, g = nodes.shape
    home = int(_places(nodes)[0][recipe.root])
    if kind == "tree":
        inner = rooted_double_tree(count, home)
    elif kind == "ring":
        inner = chains(identity_order(count), home)
    else:
        inner = star(count, home)
    parents = np.full((g, len(inner), recipe.n), -1, dtype=np.int32)
    for rail in range(g):
        heads = np.broadcast_to(nodes[:, rail], inner.shape)
        np.put_along_axis(parents[rail], heads, over_nodes(inner, heads), axis=1)
    return parents.reshape(-1, recipe.n)


def broadcast(between: str, recipe: Recipe) -> Schedule:
    """Return scatter to the root's node, a broadcast on every rail, allgather inside."""
    return _rooted("broadcast", between, recipe)


def reduce(between: str, recipe: Recipe) -> Schedule:
    """Return reduce-scatter inside, a reduce on every rail, gather in the root's node."""
    return _rooted("reduce", between, recipe)


def _rooted(collective: str, between: str, recipe: Recipe) -> Schedule:
    nodes = _nodes(recipe)
    g = nodes.shape[1]
    parents = _rail_parents(between, recipe)
    trees = len(parents) // g
    per_piece = g * trees
    down = collective == "broadcast"
    layout = Layout(recipe.pieces * per_piece, 1, 1, 0 if down else 1)
    base = int(layout.output() if down else layout.scratch_block())
    part = np.arange(g) * trees  # local rank l's part of a piece
    own = np.broadcast_to(part, nodes.shape)
    slot = np.arange(per_piece)
    home = nodes[_places(nodes)[0][recipe.root]]
    others = np.flatnonzero(home != recipe.root)
    zero = np.zeros(len(nodes), dtype=np.int64)

    def edge() -> Iterator[Phase]:
        """The root to its node's other ranks (broadcast), or back (reduce)."""
        if len(others):
            ends = (recipe.root, home[others]) if down else (home[others], recipe.root)
            yield Phase((at(rows(*ends, count=trees), part[others], part[others]),))

    def piece() -> Iterator[Phase]:
        if down:
            yield from edge()
            yield from tree_broadcast(parents, slot)
            yield from DIRECT.allgather(nodes, own, trees, zero)
        else:
            yield from DIRECT.reduce_scatter(nodes, own, trees, zero)
            yield from tree_reduce(parents, slot)
            yield from edge()

    def phases() -> Iterator[Phase | Pipeline]:
        if down:
            yield local_copy([recipe.root], layout.input(), base, layout.chunks)
        else:
            yield local_copy(np.arange(recipe.n), layout.input(), base, layout.chunks)
        one = recipe.piece(f"{collective}/hier-direct-{between}", piece)
        yield pipeline(one, recipe.pieces, per_piece, base)
        if not down:
            yield local_copy([recipe.root], base, layout.output(), layout.chunks)

    return scheduled(collective, f"hier-direct-{between}", recipe, layout, 1, phases)


def _two_steps(recipe: Recipe, layout: Layout, root_block: Ints) -> tuple[Phase, Phase]:
    """Return (rails to the root's node, that node to the root) of a gather.

    Block b of rank (a, l) waits at (home, l) in scratch; the root's own rail goes straight in.
    """
    nodes = _nodes(recipe)
    node, local = _places(nodes)
    home = nodes[node[recipe.root]]
    far = nodes[nodes[:, 0] != home[0]].ravel()
    near = home[local[far]]
    own = far  # the block a rank contributes carries its number
    landing = np.where(near == recipe.root, root_block[own], layout.scratch_block(own))
    rails = Phase((at(rows(far, near), layout.scratch_block(own), landing),))
    waiting = np.flatnonzero(home[local] != recipe.root)
    holder = home[local[waiting]]
    inward = Phase(
        (at(rows(holder, recipe.root), layout.scratch_block(waiting), root_block[waiting]),)
    )
    return (rails if len(far) else Phase(())), (inward if len(waiting) else Phase(()))


def gather(recipe: Recipe) -> Schedule:
    """Return the gather over all rails to the root's node, then inside it to the root.

    Of pieces one is on the rails while another is inside.
    """
    n, layout = recipe.n, Layout(recipe.pieces, 1, recipe.n, recipe.n)
    ranks, unit = np.arange(n), replace(layout, chunks=1)

    def piece() -> Iterator[Phase]:
        steps = _two_steps(recipe, unit, np.asarray(unit.output(ranks)))
        return (phase for phase in steps if phase.moves)

    def phases() -> Iterator[Phase | Pipeline]:
        own = np.where(ranks == recipe.root, layout.output(ranks), layout.scratch_block(ranks))
        yield local_copy(ranks, layout.input(), own, layout.chunks)
        one = spaced(recipe.piece("gather/hier-direct-direct", piece), 1, recipe.pieces)
        yield pipeline(one, recipe.pieces, 1)

    return scheduled("gather", "hier-direct-direct", recipe, layout, 1, phases)


def scatter(recipe: Recipe) -> Schedule:
    """Return the scatter inside the root's node by rail, then over all rails: a gather reversed."""
    n, layout = recipe.n, Layout(recipe.pieces, recipe.n, 1, recipe.n)
    ranks, unit = np.arange(n), replace(layout, chunks=1)

    def piece() -> Iterator[Phase]:
        steps = _two_steps(recipe, unit, np.asarray(unit.input(ranks)))
        for phase in reversed(steps):
            if phase.moves:
                yield Phase(tuple(_turned(move) for move in phase.moves))

    def phases() -> Iterator[Phase | Pipeline]:
        one = spaced(recipe.piece("scatter/hier-direct-direct", piece), 1, recipe.pieces)
        yield pipeline(one, recipe.pieces, 1)
        own = np.where(ranks == recipe.root, layout.input(ranks), layout.scratch_block(ranks))
        yield local_copy(ranks, own, layout.output(), layout.chunks)

    return scheduled("scatter", "hier-direct-direct", recipe, layout, 1, phases)


def _turned(move: Move) -> Move:
    src_slot, dst_slot = move.slots(0)
    r = move.rows
    return at(rows(r.dst, r.src, count=r.count, channel=r.channel), dst_slot, src_slot)
