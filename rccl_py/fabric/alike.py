"""What transfers put on links, by pattern: nodes of a kind are alike, so few patterns serve all.

Owns the sums over many transfers that need no route of each. A pattern is a pair of accelerators
(i, j) inside their nodes: it leaves and enters every node of its kinds by the same own links and
NICs. So per node and pattern only an amount is kept; the network's own links follow from ports.

    8 ranks a node, rails: 130,000 transfers between 128 nodes are 8 patterns (0, 0) ... (7, 7)

Knows no schedule and no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..schedule import I32
from .clos import Clos
from .crossing import flows_of
from .domain import Domain
from .inside import Planes
from .tables import F64, I64, Patterns, Routes, expand, patterns
from .wiring import Wiring

if TYPE_CHECKING:
    from .fabric import Fabric

__all__ = ["Amounts", "loaded", "on_wiring"]

_FEW = 256  # transfers that are not worth a pattern


def loaded(fabric: Fabric, src: I32, dst: I32,
           weight: F64) -> F64:  # fmt: skip
    """Return what transfers src[i] -> dst[i] of weight[i] put on each link: float64[nlinks]."""
    load = np.zeros(fabric.nlinks)
    if fabric.copies == 1 or fabric.together or len(src) < _FEW:
        _add(load, fabric.routes(src, dst, weight), weight)
        return load
    near = fabric.node[src] == fabric.node[dst]
    if near.all() or not near.any():
        (_near if near.all() else _far)(fabric, load, src, dst, weight)
        return load
    for rows, way in ((np.flatnonzero(near), _near), (np.flatnonzero(~near), _far)):
        if len(rows):
            way(fabric, load, src[rows], dst[rows], weight[rows])
    return load


def _add(load: F64, routes: Routes, weight: F64) -> None:
    load += np.bincount(routes.link, weights=weight[routes.row] * routes.share, minlength=len(load))


def _by_kind(fabric: Fabric, *nodes: I32) -> Iterator[tuple[tuple[int, ...], I64 | slice]]:
    """Yield (kind of each node, rows) for every combination of kinds that occurs."""
    kinds, number = len(fabric.domains), np.zeros(len(nodes[0]), dtype=np.int64)
    if kinds == 1:
        yield (0,) * len(nodes), slice(None)
        return
    for node in nodes:
        number = number * kinds + fabric.kind[node]
    for key in np.unique(number):
        which = np.unravel_index(int(key), (kinds,) * len(nodes))
        yield tuple(int(k) for k in which), np.flatnonzero(number == key)


class Amounts:
    """How much of each pattern every node has: float64[nodes that have some, patterns]."""

    def __init__(self, fabric: Fabric, node: I32, of: I64, count: int,
                 weight: F64) -> None:  # fmt: skip
        self.fabric = fabric
        seen = np.zeros(fabric.copies, dtype=np.int64)
        seen[node] = 1
        self.nodes = np.flatnonzero(seen)
        seen[self.nodes] = np.arange(len(self.nodes))
        key = seen[node] * count + of
        size = len(self.nodes) * count
        self.amount = np.bincount(key, weights=weight, minlength=size).reshape(-1, count)

    def put(self, load: F64, first: I64, pattern: I64, number: I64 | I32, share: F64) -> None:
        """Add share[e] of pattern[e] to place first[node] + number[e] of every node."""
        order = np.argsort(number, kind="stable")
        number, pattern, share = number[order], pattern[order], share[order]
        if not len(number):
            return
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        at = first[self.nodes][:, None] + number[starts]
        for k in range(0, len(self.nodes), step := max(1, (1 << 22) // len(number))):
            each = self.amount[k : k + step, pattern] * share
            load[at[k : k + step]] += np.add.reduceat(each, starts, axis=1)


def _few(fabric: Fabric, count: int, rows: int) -> bool:
    """Return whether patterns by nodes are fewer than what they stand for."""
    return count * fabric.copies <= 4 * rows


def _near(fabric: Fabric, load: F64, src: I32, dst: I32,
          weight: F64) -> None:  # fmt: skip
    """Add transfers that stay inside their nodes."""
    for (kind,), rows in _by_kind(fabric, fabric.node[src]):
        domain, one, two, heavy = fabric.domains[kind], src[rows], dst[rows], weight[rows]
        node, i, j = fabric.node[one], fabric.local[one], fabric.local[two]
        if isinstance(domain.inside, Planes) and domain.inside.even:
            _planes(fabric, load, domain, (node, i, j), heavy)
            continue
        kinds = patterns(i, j, domain.ngpus)
        if not _few(fabric, len(kinds), len(one)):
            _add(load, fabric.routes(one, two), heavy)
            continue
        routes = domain.inside.routes(kinds.i, kinds.j)
        amounts = Amounts(fabric, node, kinds.of, len(kinds), heavy)
        amounts.put(load, fabric.first_link, routes.row, routes.link, routes.share)


def _planes(
    fabric: Fabric,
    load: F64,
    domain: Domain,
    ends: tuple[I32, ...],
    weight: F64,
) -> None:
    """Add transfers over switch planes that are all alike: every plane carries as much."""
    (node, i, j), inside = ends, domain.inside
    assert isinstance(inside, Planes)
    weight = np.where(i == j, 0.0, weight)
    for local, ways in ((i, inside.up), (j, inside.down)):
        amounts = Amounts(fabric, node, local.astype(np.int64), domain.ngpus, weight)
        each = np.repeat(np.arange(domain.ngpus), ways.shape[1])
        share = np.full(len(each), 1.0 / ways.shape[1])
        amounts.put(load, fabric.first_link, each, ways.ravel(), share)


def _far(fabric: Fabric, load: F64, src: I32, dst: I32,
         weight: F64) -> None:  # fmt: skip
    """Add transfers between nodes: out, over the network, in."""
    for (source, target), rows in _by_kind(fabric, fabric.node[src], fabric.node[dst]):
        one, two, heavy = src[rows], dst[rows], weight[rows]
        pair = fabric.domains[source], fabric.domains[target]
        width = max(d.ngpus for d in pair)
        kinds = patterns(fabric.local[one], fabric.local[two], width)
        if not _few(fabric, len(kinds), len(one)):
            _add(load, fabric.routes(one, two), heavy)
            continue
        _by_pattern(fabric, load, pair, kinds, (fabric.node[one], fabric.node[two]), heavy)


def _by_pattern(
    fabric: Fabric,
    load: F64,
    pair: tuple[Domain, Domain],
    kinds: Patterns,
    nodes: tuple[I32, I32],
    weight: F64,
) -> None:
    i, j = kinds.ends
    flows = flows_of(*pair, i, j, fabric.staged)
    leaving = fabric.nic_links(pair[0], i, flows, leaving=True)
    entering = fabric.nic_links(pair[1], j, flows, leaving=False)
    nics = pair[0].nic[flows.leaving], pair[1].nic[flows.entering]
    cable = fabric.first_port + fabric.cables
    for node, own, nic, first in zip(
        nodes, (leaving, entering), nics, (cable, cable + fabric.ports)
    ):
        amounts = Amounts(fabric, node, kinds.of, len(kinds), weight)
        for row, link, share in own:
            amounts.put(load, fabric.first_link, row, link, share)
        if fabric.wiring is not None:
            amounts.put(load, first, flows.row, nic, flows.share)
    if fabric.wiring is None:
        return
    row, entry = np.arange(len(weight)), kinds.of
    count = np.bincount(flows.row, minlength=len(kinds))
    if (count != 1).any():
        row, entry = expand(np.concatenate([[0], np.cumsum(count)]), kinds.of)
    out, into = (fabric.first_port[node[row]] + nic[entry] for node, nic in zip(nodes, nics))
    heavy = weight[row] * flows.share[entry]
    load[fabric.cables + 2 * fabric.ports :] += on_wiring(fabric.wiring, out, into, heavy)


def on_wiring(wiring: Wiring, out: I64, into: I64, heavy: F64) -> F64:
    """Return what flows from port to port put on each link of a wiring: float64[nlinks]."""
    if isinstance(wiring, Clos) and wiring.bundled:
        return wiring.loads(out, into, heavy)
    flow, link, share = wiring.routes(out, into, heavy)
    load = np.bincount(link, weights=heavy[flow] * share, minlength=wiring.nlinks)
    return np.asarray(load, dtype=np.float64)
