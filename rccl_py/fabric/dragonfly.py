"""Dragonfly networks as arrays: groups of fully joined routers, every two groups joined.

Owns their wiring and routes (Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable
dragonfly topology", ISCA 2008). Knows no node, rank or time; cables from ports to routers are the
caller's.

    group0: r0 - r1 - r2 - r3      a = 4 routers a group, each joined to each
             |    |    |    |      h global links a router, a * h a group
           g-1  g-2  g-3  g-4      the m-th goes to the m-th group below, and round again

Global link p of a group (router p // h) goes to group - 1 - p mod (groups - 1): the "palmtree"
order (Camarero, Vallejo, Beivide, ACM TACO 2014). Only whole rounds over the other groups are
cabled, so every two groups have the same number of links; links left over stay dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..arguments import finite, whole
from ..errors import FabricError
from ..schedule import I32
from .flows import Placement, hashed, pick, place
from .wiring import (
    F64,
    I64,
    Bundles,
    Entries,
    check_routing,
    check_size,
    ends,
    joined,
    numbers,
    spread,
    weights,
)

__all__ = ["Dragonfly"]


@dataclass(frozen=True, eq=False)
class Dragonfly:
    """`groups` groups of `routers` routers.

    port_router: int32[nports], router of each port (group * routers + its number there).
    local_bandwidth, global_bandwidth: B/s of one link, each way. global_links: of each router.
    routing: "spray" (evenly over the shortest paths by the links between the two groups), "ecmp"
    (`flows` of those, by hash), "adaptive" (as UGAL: starts as ecmp, then pieces leave the slowest
    links, for another minimal path or one over a third group).
    """

    groups: int
    routers: int
    port_router: I32
    local_bandwidth: float
    global_bandwidth: float
    global_links: int = 1
    routing: str = "spray"
    seed: int = 0
    flows: int = 1

    def __post_init__(self) -> None:
        check_routing(self.routing, self.seed, self.flows)
        for name in ("groups", "routers"):
            whole(getattr(self, name), name, 1, 1 << 20)
        whole(self.global_links, "global_links", 0, 1 << 20)
        finite(self.local_bandwidth, "local_bandwidth", 0.0, 1e18)
        finite(self.global_bandwidth, "global_bandwidth", 0.0, 1e18)
        a, h, others = self.routers, self.global_links, self.groups - 1
        if a * h < others:
            raise FabricError(
                f"{a} routers x {h} global links are {a * h} links a group, which cannot reach "
                f"{others} other groups: give {-(-others // a)} or more global links a router"
            )
        numbers(self.port_router, "port_router", self.groups * a)
        check_size(self.nlinks, f"{self.groups} groups of {a} routers")

    @property
    def nports(self) -> int:
        """Ports of all routers."""
        return len(self.port_router)

    @property
    def together(self) -> bool:
        """Whether the flows of one routes() call are placed looking at each other."""
        return self.routing == "adaptive"

    @cached_property
    def between(self) -> int:
        """Links from any group to any other."""
        others = self.groups - 1
        return self.routers * self.global_links // others if others else 0

    @cached_property
    def _nlocal(self) -> int:
        return self.groups * self.routers * (self.routers - 1)

    @property
    def nlinks(self) -> int:
        """Directed links between routers: the local ones first."""
        return self._nlocal + self.groups * (self.groups - 1) * self.between

    @cached_property
    def bandwidth(self) -> F64:
        """B/s of each link: float64[nlinks]."""
        rate: F64 = np.full(self.nlinks, float(self.global_bandwidth))
        rate[: self._nlocal] = self.local_bandwidth
        return rate

    @cached_property
    def bundled(self) -> bool:
        """Whether links side by side are one."""
        return False

    @property
    def sprayed(self) -> Dragonfly:
        """The same switches under "spray"."""
        return replace(self, routing="spray")

    @cached_property
    def layer(self) -> I64:
        """0 for global links, -1 for local ones; -1 for all under adaptive: int64[nlinks]."""
        layer = np.full(self.nlinks, -1)
        layer[self._nlocal :] = -1 if self.together else 0
        return layer

    @property
    def depth(self) -> I64:
        """A local link may be the first or the last of a route: int64[nlinks], all 0."""
        return np.zeros(self.nlinks, dtype=np.int64)

    @cached_property
    def parts(self) -> dict[str, I64]:
        """The router and the group of each port."""
        router = self.port_router.astype(np.int64)
        return {"router": router, "group": router // self.routers}

    def _local(self, one: I64, two: I64) -> I64:
        """Return the link from router to router of one group; -1 where they are the same."""
        column = two % self.routers - (two > one)
        return np.where(one == two, -1, one * (self.routers - 1) + column)

    def _global(self, one: I64, two: I64, k: I64) -> tuple[I64, I64, I64]:
        """Return (link, router it leaves, router it enters) of link k from group to group."""
        others, h = self.groups - 1, self.global_links
        out = k * others + (one - two) % self.groups - 1
        back = k * others + (two - one) % self.groups - 1
        link = self._nlocal + one * others * self.between + out
        return link, one * self.routers + out // h, two * self.routers + back // h

    def _minimal(self, one: I64, two: I64, k: I64) -> I64:
        """Return the links router to router over global link k: int64[5, m], -1 for none."""
        here, there = one // self.routers, two // self.routers
        same = here == there
        if self.groups == 1:
            return _stacked(self._local(one, two), len(one))
        link, leaves, enters = self._global(here, there, np.where(same, 0, k))
        first = self._local(one, np.where(same, two, leaves))
        last = np.where(same, -1, self._local(np.where(same, two, enters), two))
        return np.stack([first, np.where(same, -1, link), *[np.full(len(one), -1)] * 2, last])

    def _shortest(self, one: I64, two: I64) -> npt.NDArray[np.bool_]:
        """Return which global links between their groups lie on a shortest path: bool[links, m].

        A link that leaves the source's router saves a hop, as does one that enters the target's.
        """
        hops = np.stack(
            [
                (self._minimal(one, two, np.full(len(one), k)) >= 0).sum(axis=0)
                for k in range(max(self.between, 1))
            ]
        )
        return np.asarray(hops == hops.min(axis=0))

    def _detour(self, one: I64, two: I64, choice: I64) -> I64:
        """Return the links over a third group: int64[5, m], or a third router within a group."""
        here, there = one // self.routers, two // self.routers
        far = here != there
        paths = self._minimal(one, two, np.zeros(len(one), np.int64))
        near = np.flatnonzero(~far)
        via = here[near] * self.routers + choice[near] % self.routers
        straight = (via == one[near]) | (via == two[near])
        paths[0, near] = self._local(one[near], np.where(straight, two[near], via))
        paths[4, near] = np.where(straight, -1, self._local(via, two[near]))
        at = np.flatnonzero(far)
        own = choice[at]
        own, first = np.divmod(own, self.between)
        third, second = np.divmod(own, self.between)
        low, high = np.minimum(here[at], there[at]), np.maximum(here[at], there[at])
        third = third + (third >= low)  # groups other than these two
        third = third + (third >= high)
        up, leaves, enters = self._global(here[at], third, first)
        down, out, into = self._global(third, there[at], second)
        hops = (self._local(one[at], leaves), up, self._local(enters, out), down)
        paths[:, at] = np.stack([*hops, self._local(into, two[at])])
        return paths

    @cached_property
    def _detours(self) -> int:
        """Choices of a detour: third group and a link to and from it, or a third router."""
        return max((self.groups - 2) * self.between**2, 0)

    def _choose(self, src: I64, dst: I64, k: I64, salt: int) -> I64:
        """Return a choice by hash: 0.. a minimal path, negative a detour (odd salts only)."""
        word = hashed(self.seed, salt, src, dst, k)
        if salt == 0:  # where flows start: a shortest path
            best = self._shortest(self._routers(src), self._routers(dst))
            counted = np.cumsum(best, axis=0)
            return np.asarray((counted == pick(word, counted[-1]) + 1).argmax(axis=0))
        if salt % 2 == 0:
            return pick(word, max(self.between, 1))
        inside = self.port_router[src] // self.routers == self.port_router[dst] // self.routers
        if not self._detours:  # two groups: the links between them are all there is
            return np.where(inside, -1 - pick(word, self.routers), pick(word, max(self.between, 1)))
        return -1 - pick(word, np.where(inside, self.routers, self._detours))

    def _paths(self, one: I64, two: I64, choice: I64) -> I64:
        paths = self._minimal(one, two, np.maximum(choice, 0))
        aside = np.flatnonzero(choice < 0)
        if len(aside):
            paths[:, aside] = self._detour(one[aside], two[aside], -1 - choice[aside])
        return paths

    def routes(self, src: I64, dst: I64, weight: F64 | None = None) -> Entries:
        """Return (row, link, share) of each flow src[i] -> dst[i]; none where both share a router.

        weight: relative bytes of each flow, for adaptive routing; 1 each when not given.
        """
        src, dst = ends(src, dst, self.nports)
        one, two = self._routers(src), self._routers(dst)
        heavy, flow = weights(weight, len(src)), np.flatnonzero(one != two)
        one, two = one[flow], two[flow]
        if self.routing == "spray":
            return self._sprayed(flow, one, two)
        how = Placement(
            self._choose,
            lambda i, choice: self._paths(one[i], two[i], choice),
            self.bandwidth,
            self.flows,
            self.together,
        )
        row, link, share = place(how, src[flow], dst[flow], heavy[flow])
        return flow[row], link, share

    def _sprayed(self, flow: I64, one: I64, two: I64) -> Entries:
        best = self._shortest(one, two)
        best[1:, one // self.routers == two // self.routers] = False  # a group needs no global link
        k, row = np.nonzero(best)
        paths = self._minimal(one[row], two[row], k)
        share = (1.0 / best.sum(axis=0))[row]
        parts = []
        for hop in paths:
            at = np.flatnonzero(hop >= 0)
            parts.append((flow[row[at]], hop[at], share[at]))
        return joined(parts)

    def _routers(self, port: I64) -> I64:
        return self.port_router[port].astype(np.int64)

    def switches(self, src: I64, dst: I64) -> I64:
        """Return the routers on the shortest minimal path; a detour of "adaptive" has up to 6."""
        src, dst = ends(src, dst, self.nports)
        one, two = self._routers(src), self._routers(dst)
        row, k = spread(np.where(one // self.routers != two // self.routers, self.between, 1))
        hops = (self._minimal(one[row], two[row], k) >= 0).sum(axis=0)
        least = np.full(len(src), 5)
        np.minimum.at(least, row, hops)
        return least + 1

    def _name(self, router: int) -> str:
        group, own = divmod(router, self.routers)
        return f"group{group} router{own}"

    def _ends(self, link: int) -> tuple[int, int]:
        """Return the routers a link joins."""
        if link < self._nlocal:
            one, column = divmod(link, self.routers - 1)
            group, own = divmod(one, self.routers)
            return one, group * self.routers + column + (column >= own)
        others = self.groups - 1
        group, out = divmod(link - self._nlocal, others * self.between)
        k, step = divmod(out, others)
        two = (group - step - 1) % self.groups
        back = k * others + (two - group) % self.groups - 1
        h = self.global_links
        return group * self.routers + out // h, two * self.routers + back // h

    def link_name(self, link: int) -> str:
        """Return what a link joins: ``"group2 router1 -> group5 router0"``."""
        one, two = self._ends(whole(link, "link", 0, self.nlinks - 1))
        return f"{self._name(one)} -> {self._name(two)}"

    def switch_name(self, port: int) -> str:
        """Return the router a port hangs on."""
        return self._name(int(self.port_router[whole(port, "port", 0, self.nports - 1)]))

    @property
    def port_switch(self) -> I64:
        """The router each port hangs on: int64[nports]."""
        return self.port_router.astype(np.int64)

    def bundles(self) -> Bundles:
        """Return every link by the routers it joins."""
        tail, head = self._joined()
        return tail, head, self.bandwidth, np.arange(self.nlinks), np.ones(self.nlinks, np.int64)

    def _joined(self) -> tuple[I64, I64]:
        """Return the routers every link leaves and enters: int64[nlinks] each."""
        one, column = np.divmod(np.arange(self._nlocal), max(self.routers - 1, 1))
        group, own = np.divmod(one, self.routers)
        near = group * self.routers + column + (column >= own)
        others, h = self.groups - 1, self.global_links
        if not others:
            return one, near
        group, out = np.divmod(np.arange(self.nlinks - self._nlocal), others * self.between)
        k, step = np.divmod(out, others)
        two = (group - step - 1) % self.groups
        back = k * others + (two - group) % self.groups - 1
        leaves, enters = group * self.routers + out // h, two * self.routers + back // h
        return np.concatenate([one, leaves]), np.concatenate([near, enters])

    @property
    def sides(self) -> dict[str, I64]:
        """Ways to divide the routers that a cut may follow."""
        return {"group": np.arange(self.groups * self.routers) // self.routers}

    def switch_text(self, switch: int) -> str:
        """Return ``"group2 router1"``."""
        return self._name(switch)

    def edges(self) -> Iterator[tuple[str, str, float]]:
        """Return (from, to, B/s) of every link; parallel ones one by one."""
        for link in range(self.nlinks):
            one, two = self._ends(link)
            rate = self.local_bandwidth if link < self._nlocal else self.global_bandwidth
            yield self._name(one), self._name(two), float(rate)


def _stacked(first: I64, count: int) -> I64:
    return np.stack([first, *[np.full(count, -1)] * 4])
