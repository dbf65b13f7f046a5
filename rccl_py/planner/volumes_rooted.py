"""What algorithms of rooted collectives send, stage by stage, and the parts that others share.

Owns the volumes of broadcasts; a reduce is one backwards. Knows places, no link, no size, no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from ..algorithms.flat import depths
from ..algorithms.shapes import rooted_double_tree
from .places import Ints, Places, Sent, Stage

__all__ = ["ROOTED", "backwards", "chain", "in_nodes", "ring"]


def ring(p: Places) -> Iterator[Stage]:
    """Any ring enters every node once or more; n - 1 hops in a row cross count - 1 or more."""
    far, steps = p.count * (p.count > 1), p.n - 1
    yield Stage(far * steps, (p.n - far) * steps, steps, p.count - 1, message=p.ring)


def chain(p: Places) -> Iterator[Stage]:
    """Along the rings cut open, there and back."""
    far = p.count - 1
    for _ in range(2):
        yield Stage(far, p.n - 1 - far, p.n - 1, far, message=p.ring, walks=p.nodes is not None)


def in_nodes(kind: str, p: Places, blocks: float) -> Stage:
    """Return a half inside every node that moves `blocks` of each other rank to each."""
    g = p.g
    steps, each = (int(g) - 1, 0.0) if kind == "ring" else (1, blocks)
    return Stage(0.0, p.n * (g - 1) * blocks, max(steps, 1), 0, 0.0, p.n * (g - 1), each,
                 kind == "direct" and g > 3)  # fmt: skip


def _down(parents: Ints, p: Places, part: float) -> Iterator[Stage]:
    """Yield the levels of trees : int[T, n] that move `part` of the data each, the root's first."""
    depth = depths(parents)
    for d in range(1, int(depth.max()) + 1):
        tree, child = np.nonzero(depth == d)
        yield p.sent(parents[tree, child], child, part)


def _spread(p: Places, blocks: float) -> Stage:
    """Return the stage in which the root sends `blocks` to each other rank, or gets them."""
    inside = int((p.node == p.node[p.root]).sum())
    far, near = p.n - inside, inside - 1
    return Stage(far * blocks, near * blocks, 1, int(far > 0), 0.0, 0.0, blocks, p.n > 3,
                 far * blocks, near * blocks)  # fmt: skip


def _rooted_tree(p: Places) -> Iterator[Stage]:
    parents = rooted_double_tree(p.n, p.root)
    return _down(parents, p, 1 / len(parents))


def _rooted_chain(p: Places) -> Iterator[Stage]:
    return islice(chain(p), 1)


def _star(p: Places) -> Iterator[Stage]:
    yield _spread(p, 1.0)


def _twoshot(p: Places) -> Iterator[Stage]:
    yield _spread(p, 1 / p.n)
    yield p.everyone.times(1 / p.n)


def _rooted_rails(between: str) -> Sent:
    """The root's node, then all rails at once, then inside every node."""

    def sent(p: Places) -> Iterator[Stage]:
        count, g = p.count, p.g
        if g > 1:
            yield Stage(0.0, (g - 1) / g, 1, message=1 / g, many=g > 4, rank=(g - 1) / g)
        if between == "ring":
            yield Stage(count - 1, 0.0, count - 1, count - 1, message=1 / g)
        elif between == "tree":
            trees = rooted_double_tree(count, 0)
            deep = int(depths(trees).max())
            yield Stage(count - 1, 0.0, deep, deep, message=1 / len(trees) / g)
        else:
            yield Stage(count - 1, 0.0, 1, 1, 0.0, 0.0, 1 / g, count > 4, count - 1)
        yield in_nodes("direct", p, 1 / g)

    return sent


def _rounds(p: Places) -> Iterator[Stage]:
    """Those who have the data hand it to one more each round, the farthest first."""
    for k in reversed(range((p.n - 1).bit_length())):
        above = np.arange(0, p.n - (1 << k), 2 << k)
        yield p.sent((above + p.root) % p.n, (above + (1 << k) + p.root) % p.n, 1)


def _scattered(p: Places) -> Iterator[Stage]:
    """The same with what each has to hand on alone, and then an allgather along the rings."""
    for k, stage in zip(reversed(range((p.n - 1).bit_length())), _rounds(p)):
        # The last of a round may have fewer ranks behind it.
        yield replace(stage, far=0.0, near=0.0, message=min(1 << k, p.n - (1 << k)) / p.n)
    yield from (s.times(1 / p.n) for s in ring(p))


def backwards(down: Sent) -> Sent:
    """Return the same in the other order: a reduce for a broadcast."""
    return lambda p: iter([*down(p)][::-1])


ROOTED: tuple[tuple[str, Sent], ...] = (
    ("ring", _rooted_chain), ("tree", _rooted_tree), ("direct-oneshot", _star),
    ("direct-twoshot", _twoshot), ("binomial", _rounds), ("scatter-ring", _scattered),
    ("ring-gather", _scattered),
    *((f"hier-direct-{b}", _rooted_rails(b)) for b in ("ring", "tree", "direct")),
)  # fmt: skip
"""How broadcasts go, by algorithm; a reduce that gathers is a broadcast that scatters."""
