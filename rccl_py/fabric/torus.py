"""Tori and meshes of one to four dimensions as arrays, dimension-order routed.

Owns their wiring and routes. Knows no rank or time; cables from ports to nodes are the caller's.
A node is a switch, or an accelerator that relays: then `port_node` is left out, and ports are
nodes. Nodes are numbered with the last dimension fastest, as np.ravel_multi_index does.

    dims (2, 4):  node0 - node1 - node2 - node3 -+     x is the first dimension, then y, z, w
                    |       |       |       |    |     a ring of 2 is one link of twice the
                  node4 - node5 - node6 - node7 -+     bandwidth: both its cables join the pair
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from math import factorial, prod

import numpy as np

from ..arguments import whole
from ..errors import InvalidArgument
from ..schedule import I32
from .flows import Placement, hashed, pick, place
from .wiring import (
    F64,
    I64,
    Bundles,
    Entries,
    check_routing,
    ends,
    joined,
    numbers,
    rates,
    spread,
    weights,
)

__all__ = ["Torus"]

NODE_LIMIT = 1 << 20  # assumed: ten times the largest machine asked for
AXES = "xyzw"


@dataclass(frozen=True, eq=False)
class Torus:
    """A ring (or a line) of `dims[d]` nodes in each dimension d.

    bandwidth_per_link: B/s of one link, each way: one number, or one a dimension. port_node:
    int32[nports], node of each port; None = port i is node i. wrap: whether a dimension is a
    ring: one claim, or one a dimension. routing, all on shortest paths: "spray" (evenly over
    every order of dimensions, both ways round where equally long), "ecmp" (`flows` choices of an
    order and ways, by hash), "adaptive" (starts as ecmp, then pieces leave the slowest links).
    """

    dims: tuple[int, ...]
    bandwidth_per_link: float | Sequence[float]
    port_node: I32 | None = None
    wrap: bool | Sequence[bool] = True
    routing: str = "spray"
    seed: int = 0
    flows: int = 1

    def __post_init__(self) -> None:
        check_routing(self.routing, self.seed, self.flows)
        if not isinstance(self.dims, tuple) or not 1 <= len(self.dims) <= 4:
            raise InvalidArgument(f"dims {self.dims!r}: a tuple of 1 to 4 sizes was expected")
        for size in self.dims:
            whole(size, "dims", 1, NODE_LIMIT)
        if self.nodes > NODE_LIMIT:
            raise InvalidArgument(f"dims {self.dims}: {self.nodes} nodes, at most {NODE_LIMIT}")
        rates(self.bandwidth_per_link, "bandwidth_per_link", len(self.dims))
        if not isinstance(self.wrap, bool) and np.shape(self.wrap) != (len(self.dims),):
            raise InvalidArgument(
                f"wrap {self.wrap!r}: one claim was expected, or {len(self.dims)}, one a dimension"
            )
        if self.port_node is not None:
            numbers(self.port_node, "port_node", self.nodes)

    @property
    def nodes(self) -> int:
        """Nodes of the torus."""
        return prod(self.dims)

    @property
    def nports(self) -> int:
        """Ports of all nodes."""
        return self.nodes if self.port_node is None else len(self.port_node)

    @property
    def together(self) -> bool:
        """Whether the flows of one routes() call are placed looking at each other."""
        return self.routing == "adaptive"

    @cached_property
    def _wraps(self) -> tuple[bool, ...]:
        if isinstance(self.wrap, bool):
            return (self.wrap,) * len(self.dims)
        return tuple(map(bool, self.wrap))

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        return tuple(prod(self.dims[d + 1 :]) for d in range(len(self.dims)))

    @cached_property
    def _slots(self) -> I64:
        """Link slots in use, in order of (node, dimension, direction); slot % 2 is 1 for minus."""
        there = np.zeros((self.nodes, len(self.dims), 2), dtype=bool)
        node = np.arange(self.nodes)
        for d, size in enumerate(self.dims):
            own = node // self._strides[d] % size
            ring = self._wraps[d]
            there[:, d, 0] = size > 1 if ring else own < size - 1
            there[:, d, 1] = size > 2 if ring else own > 0
        return np.flatnonzero(there.ravel())

    @cached_property
    def _link(self) -> I64:
        """The link of each slot, -1 where it has none: int64[nodes * dims * 2]."""
        link = np.full(self.nodes * len(self.dims) * 2, -1)
        link[self._slots] = np.arange(len(self._slots))
        return link

    @property
    def nlinks(self) -> int:
        """Directed links between nodes."""
        return len(self._slots)

    @cached_property
    def bandwidth(self) -> F64:
        """B/s of each link: float64[nlinks]; the link of a ring of two counts both its cables."""
        rate = rates(self.bandwidth_per_link, "bandwidth_per_link", len(self.dims))
        double = [2.0 if n == 2 and ring else 1.0 for n, ring in zip(self.dims, self._wraps)]
        each: F64 = rate * np.array(double)
        chosen: F64 = each[self._slots // 2 % len(self.dims)]
        return chosen

    @cached_property
    def bundled(self) -> bool:
        """Whether links side by side are one."""
        return False

    @property
    def sprayed(self) -> Torus:
        """The same switches under "spray"."""
        return replace(self, routing="spray")

    @cached_property
    def layer(self) -> I64:
        """No two links are a layer: int64[nlinks], all -1."""
        return np.full(self.nlinks, -1)

    @property
    def depth(self) -> I64:
        """Any link may be the first or the last of a route: int64[nlinks], all 0."""
        return np.zeros(self.nlinks, dtype=np.int64)

    @cached_property
    def parts(self) -> dict[str, I64]:
        """The two halves of the ports along each dimension."""
        node = self._nodes(np.arange(self.nports))
        return {
            f"half along {AXES[d]}": (2 * self._coordinate(node, d) >= size).astype(np.int64)
            for d, size in enumerate(self.dims)
            if size > 1
        }

    def _nodes(self, port: I64) -> I64:
        if self.port_node is None:
            return port
        node: I64 = self.port_node[port].astype(np.int64)
        return node

    def _coordinate(self, node: I64, d: int) -> I64:
        own: I64 = node // self._strides[d] % self.dims[d]
        return own

    def _steps(self, one: I64, two: I64, d: int) -> tuple[I64, I64]:
        """Return (hops, way) in dimension d; way is 0 for plus, 1 for minus, 2 for either."""
        size = self.dims[d]
        ahead = self._coordinate(two, d) - self._coordinate(one, d)
        if not self._wraps[d]:
            return np.abs(ahead), (ahead < 0).astype(np.int64)
        ahead %= size
        back = size - ahead
        way = np.where(ahead < back, 0, np.where(ahead > back, 1, 2 if size > 2 else 0))
        return np.minimum(ahead, back), way

    def _walk(self, corner: I64, d: int, hops: I64, way: I64) -> tuple[I64, I64, I64]:
        """Return (row, position, link) of rows that go `hops` on in dimension d from `corner`."""
        row, position = spread(hops)
        stride, size, minus = self._strides[d], self.dims[d], way[row]
        own = self._coordinate(corner, d)
        now = (own[row] + np.where(minus == 1, -position, position)) % size
        node = (corner - own * stride)[row] + now * stride
        return row, position, self._link[(node * len(self.dims) + d) * 2 + minus]

    def _corner(self, one: I64, two: I64, done: Sequence[int]) -> I64:
        """Return the node that has the coordinates of `two` in dimensions `done`, else `one`'s."""
        node: I64 = one.copy()
        for d in done:
            node += (self._coordinate(two, d) - self._coordinate(one, d)) * self._strides[d]
        return node

    def hops(self, src: I64, dst: I64) -> I64:
        """Return the links of a shortest path: int64[k]."""
        src, dst = ends(src, dst, self.nports)
        one, two = self._nodes(src), self._nodes(dst)
        return self._distance(one, two)

    def _distance(self, one: I64, two: I64) -> I64:
        total: I64 = np.zeros(len(one), dtype=np.int64)
        for d in range(len(self.dims)):
            total += self._steps(one, two, d)[0]
        return total

    def switches(self, src: I64, dst: I64) -> I64:
        """Return the nodes a shortest path crosses, both ends included: hops + 1."""
        return self.hops(src, dst) + 1

    def routes(self, src: I64, dst: I64, weight: F64 | None = None) -> Entries:
        """Return (row, link, share) of each flow src[i] -> dst[i]; none where both share a node.

        weight: relative bytes of each flow, for adaptive routing; 1 each when not given.
        """
        src, dst = ends(src, dst, self.nports)
        one, two = self._nodes(src), self._nodes(dst)
        heavy, flow = weights(weight, len(src)), np.flatnonzero(one != two)
        one, two = one[flow], two[flow]
        if self.routing == "spray":
            row, link, share = self._sprayed(one, two)
            return flow[row], link, share
        most = int(self._distance(one, two).max(initial=0))
        how = Placement(
            self._choose,
            lambda i, choice: self._paths(one[i], two[i], choice, most),
            self.bandwidth,
            self.flows,
            self.together,
        )
        row, link, share = place(how, src[flow], dst[flow], heavy[flow])
        return flow[row], link, share

    def _sprayed(self, one: I64, two: I64) -> Entries:
        """Average over all orders of the dimensions a flow moves in.

        Of m! orders, k! (m - 1 - k)! correct exactly one set of k dimensions before dimension d.
        """
        steps = [self._steps(one, two, d) for d in range(len(self.dims))]
        moved = np.stack([hops > 0 for hops, _ in steps])
        moves = moved.sum(axis=0)
        parts = []
        for d, done in _befores(len(self.dims)):
            chance = np.zeros(len(self.dims) + 1)
            for m in range(len(done) + 1, len(self.dims) + 1):
                chance[m] = factorial(len(done)) * factorial(m - 1 - len(done)) / factorial(m)
            at = np.flatnonzero(moved[[d, *done]].all(axis=0))
            hops, way = steps[d][0][at], steps[d][1][at]
            corner = self._corner(one[at], two[at], done)
            for turn in (0, 1):
                go = np.flatnonzero((way == turn) | (way == 2))
                row, _, link = self._walk(corner[go], d, hops[go], np.full(len(go), turn))
                half = np.where(way[go] == 2, 0.5, 1.0) * chance[moves[at[go]]]
                parts.append((at[go[row]], link, half[row]))
        return joined(parts)

    @property
    def turns(self) -> bool:
        """Whether moving all nodes alike changes nothing: rings only, a port each, spray."""
        return self.routing == "spray" and self.port_node is None and all(self._wraps)

    def even_loads(self) -> F64:
        """Return what each link carries where every node sends 1 to every other: float64[nlinks].

        Only where the torus `turns`: then what node 0 sends along a dimension is spread over all
        links of it.
        """
        others = np.arange(1, self.nodes)
        _, link, share = self.routes(np.zeros(len(others), dtype=np.int64), others)
        way = self._slots % (2 * len(self.dims))
        return np.asarray(np.bincount(way[link], share, 2 * len(self.dims))[way], dtype=np.float64)

    @cached_property
    def _orders(self) -> list[tuple[int, ...]]:
        return list(permutations(range(len(self.dims))))

    def _choose(self, src: I64, dst: I64, k: I64, salt: int) -> I64:
        """Return order * 2**dims + ways by hash: bit d of ways is 1 for minus where either does."""
        order = pick(hashed(self.seed, 2 * salt, src, dst, k), len(self._orders))
        ways = pick(hashed(self.seed, 2 * salt + 1, src, dst, k), 1 << len(self.dims))
        return (order << len(self.dims)) | ways

    def _paths(self, one: I64, two: I64, choice: I64, most: int) -> I64:
        """Return the links between nodes over a choice: int64[most, m], -1 for none."""
        count, order = len(self.dims), choice >> len(self.dims)
        steps = [self._steps(one, two, d) for d in range(count)]
        paths = np.full((most, len(one)), -1)
        for number in np.unique(order).tolist():
            at = np.flatnonzero(order == number)
            first, corner = np.zeros(len(at), np.int64), one[at]
            for d in self._orders[number]:
                hops, way = steps[d][0][at], steps[d][1][at]
                turn = np.where(way == 2, choice[at] >> d & 1, way)
                row, position, link = self._walk(corner, d, hops, turn)
                paths[first[row] + position, at[row]] = link
                first = first + hops
                corner = self._corner(corner, two[at], (d,))
        return paths

    def _ends(self, link: int) -> tuple[int, int, str]:
        """Return the nodes a link joins, and its direction as text."""
        node, own = divmod(int(self._slots[link]), 2 * len(self.dims))
        d, minus = divmod(own, 2)
        size, stride = self.dims[d], self._strides[d]
        at = node // stride % size
        other = node + ((at + (-1 if minus else 1)) % size - at) * stride
        return node, other, f"{AXES[d]}{'-' if minus else '+'}"

    def link_name(self, link: int) -> str:
        """Return what a link joins: ``"node5 -> node6 (x+)"``."""
        one, two, way = self._ends(whole(link, "link", 0, self.nlinks - 1))
        return f"node{one} -> node{two} ({way})"

    def switch_name(self, port: int) -> str:
        """Return the node a port hangs on."""
        node = self._nodes(np.array([whole(port, "port", 0, self.nports - 1)]))[0]
        return f"node{node}"

    @property
    def port_switch(self) -> I64:
        """The node each port hangs on: int64[nports]."""
        return self._nodes(np.arange(self.nports))

    def bundles(self) -> Bundles:
        """Return every link by the nodes it joins."""
        node, own = np.divmod(self._slots, 2 * len(self.dims))
        d, minus = np.divmod(own, 2)
        size, stride = np.array(self.dims)[d], np.array(self._strides)[d]
        at = node // stride % size
        other = node + ((at + np.where(minus == 1, -1, 1)) % size - at) * stride
        return node, other, self.bandwidth, np.arange(self.nlinks), np.ones(self.nlinks, np.int64)

    @property
    def sides(self) -> dict[str, I64]:
        """Ways to divide the nodes that a cut may follow: the two halves of each dimension."""
        node = np.arange(self.nodes)
        return {
            f"half along {AXES[d]}": (2 * self._coordinate(node, d) >= size).astype(np.int64)
            for d, size in enumerate(self.dims)
            if size > 1
        }

    def switch_text(self, switch: int) -> str:
        """Return the name of a node."""
        return f"node{switch}"

    def edges(self) -> Iterator[tuple[str, str, float]]:
        """Return (from, to, B/s) of every link."""
        for link, rate in enumerate(self.bandwidth.tolist()):
            one, two, _ = self._ends(link)
            yield f"node{one}", f"node{two}", rate


def _befores(dims: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return each dimension with each set of others that may be corrected before it."""
    return [
        (d, done)
        for d in range(dims)
        for k in range(dims)
        for done in combinations([e for e in range(dims) if e != d], k)
    ]
