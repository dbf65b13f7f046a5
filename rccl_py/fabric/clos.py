"""Leaf/spine/core networks (folded Clos, "fat trees"), rails among them, as arrays.

Owns their wiring and routes. Knows no node, rank or time; cables from ports to leaves are the
caller's.

    core0 core1   core2 core3     spine s of every pod joins the same `cores` cores: group s,
      | \\ / |       | \\ / |       cores s * cores and up, so choosing a spine chooses a group
    pod0  pod1    pod0  pod1
    spine0        spine1          every leaf of a pod joins every spine of the pod
      |  \\________/ |
    leaf0         leaf1

Under "spray" all links of a bundle carry the same, so a leaf's uplinks are one link and a pod's
are one: four entries a flow at most, however wide the network is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..arguments import whole
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
    rates,
    weights,
)

__all__ = ["Clos"]


@dataclass(frozen=True, eq=False)
class Clos:
    """Ports under leaves, leaves in pods, spines in each pod, cores above the spines.

    leaf: int32[nports]. pod: int32[nleaves]. leaf_up: float64[nleaves], B/s of all uplinks of a
    leaf, each way. pod_up: float64[npods], B/s from a pod to all cores (several pods only).
    spines: in each pod; 0 leaves its leaves apart ("rails without a spine"). cores: in each
    spine's group; 0 leaves the pods apart. routing: "spray" (all shortest paths evenly), "ecmp"
    (`flows` paths a pair of ports, each by hash of ports, number and seed), "adaptive" (starts
    as ecmp, then pieces of flows leave the slowest links).
    """

    leaf: I32
    pod: I32
    leaf_up: F64
    pod_up: F64 = field(default_factory=lambda: np.zeros(0))
    spines: int = 1
    cores: int = 0
    routing: str = "spray"
    seed: int = 0
    flows: int = 1

    def __post_init__(self) -> None:
        check_routing(self.routing, self.seed, self.flows)
        whole(self.spines, "spines", 0, 1 << 20)
        whole(self.cores, "cores", 0, 1 << 20)
        numbers(self.pod, "pod", np.size(self.pod))
        numbers(self.leaf, "leaf", np.size(self.pod))
        if self.spines:
            rates(self.leaf_up, "leaf_up", self.nleaves)
        if self._tiers == 3:
            rates(self.pod_up, "pod_up", self.npods)
        check_size(self.nlinks, f"{self.nleaves} leaves x {self.spines} spines, {self.npods} pods")

    @property
    def nports(self) -> int:
        """Ports of all leaves."""
        return len(self.leaf)

    @property
    def nleaves(self) -> int:
        """Leaves of all pods."""
        return len(self.pod)

    @cached_property
    def npods(self) -> int:
        """Pods: one more than the highest number in `pod`."""
        return int(np.max(self.pod, initial=-1)) + 1

    @property
    def together(self) -> bool:
        """Whether the flows of one routes() call are placed looking at each other."""
        return self.routing == "adaptive"

    @property
    def _tiers(self) -> int:
        if not self.spines:
            return 1
        return 3 if self.npods > 1 and self.cores else 2

    @cached_property
    def _starts(self) -> tuple[int, int, int, int, int]:
        """First link of: leaves up, leaves down, pods up, pods down; then the count of all."""
        each = 1 if self.routing == "spray" else self.spines
        wide = self.nleaves * each if self.spines else 0
        high = self.npods * each * (1 if self.routing == "spray" else self.cores)
        high = high if self._tiers == 3 else 0
        return 0, wide, 2 * wide, 2 * wide + high, 2 * (wide + high)

    @property
    def nlinks(self) -> int:
        """Directed links between switches; a bundle is one under spray."""
        return self._starts[4]

    @cached_property
    def bandwidth(self) -> F64:
        """B/s of each link: float64[nlinks]."""
        each = 1 if self.routing == "spray" else self.spines
        parts = []
        if self.spines:
            parts += [np.repeat(rates(self.leaf_up, "leaf_up", self.nleaves) / each, each)] * 2
        if self._tiers == 3:
            each *= 1 if self.routing == "spray" else self.cores
            parts += [np.repeat(rates(self.pod_up, "pod_up", self.npods) / each, each)] * 2
        return np.concatenate([np.zeros(0), *parts])

    @property
    def whole(self) -> bool:
        """Whether every port reaches every other."""
        return self._tiers == 3 or (self._tiers == 2 and self.npods == 1)

    @cached_property
    def bundled(self) -> bool:
        """Whether links side by side are one."""
        return self.routing == "spray"

    @property
    def sprayed(self) -> Clos:
        """The same switches under "spray"."""
        return replace(self, routing="spray")

    @cached_property
    def layer(self) -> I64:
        """Tier and direction of each link; -1 under adaptive: int64[nlinks]."""
        tier = np.searchsorted(self._starts[1:4], np.arange(self.nlinks), side="right")
        return np.full(self.nlinks, -1) if self.together else tier

    @property
    def depth(self) -> I64:
        """0 up from leaves, 1 up from pods, 2 down to pods, 3 down to leaves: int64[nlinks]."""
        return np.repeat([0, 3, 1, 2], np.diff(self._starts))

    @cached_property
    def parts(self) -> dict[str, I64]:
        """The leaf of each port, and its pod if there are several."""
        leaf = self.leaf.astype(np.int64)
        pods = {"pod": self.pod[leaf].astype(np.int64)} if self.npods > 1 else {}
        return {"leaf": leaf, **pods}

    def _far(self, src: I64, dst: I64) -> tuple[I64, I64, I64]:
        """Return the flows that leave their leaf, and their leaves; raise when one cannot."""
        one, two = self.leaf[src].astype(np.int64), self.leaf[dst].astype(np.int64)
        flow = np.flatnonzero(one != two)
        one, two = one[flow], two[flow]
        apart = self.pod[one] != self.pod[two] if self._tiers == 2 else np.full(len(flow), True)
        if self._tiers < 3 and apart.any():
            at = int(apart.argmax())
            what = "spines" if not self.spines else "cores"
            raise FabricError(
                f"port {src[flow[at]]} on leaf{one[at]} of pod{self.pod[one[at]]} cannot reach "
                f"port {dst[flow[at]]} on leaf{two[at]} of pod{self.pod[two[at]]}: no {what} join "
                f"them: give the network {what}, or go through a peer whose port shares the leaf"
            )
        return flow, one, two

    def routes(self, src: I64, dst: I64, weight: F64 | None = None) -> Entries:
        """Return (row, link, share) of each flow src[i] -> dst[i]; none where both share a leaf.

        weight: relative bytes of each flow, for adaptive routing; 1 each when not given.
        Raises FabricError, naming both ports, when no spine or core joins them.
        """
        src, dst = ends(src, dst, self.nports)
        heavy = weights(weight, len(src))
        flow, one, two = self._far(src, dst)
        if self.routing == "spray":
            return self._bundles(flow, one, two)
        how = Placement(
            self._choose,
            lambda i, choice: self._paths(one[i], two[i], choice),
            self.bandwidth,
            self.flows,
            self.together,
        )
        row, link, share = place(how, src[flow], dst[flow], heavy[flow])
        return flow[row], link, share

    def _bundles(self, flow: I64, one: I64, two: I64) -> Entries:
        up, down, high, low, _ = self._starts
        whole_share = np.ones(len(flow))
        parts: list[Entries] = [(flow, up + one, whole_share), (flow, down + two, whole_share)]
        if self._tiers == 3:
            pod_one, pod_two = self.pod[one].astype(np.int64), self.pod[two].astype(np.int64)
            far = np.flatnonzero(pod_one != pod_two)
            parts.append((flow[far], high + pod_one[far], whole_share[far]))
            parts.append((flow[far], low + pod_two[far], whole_share[far]))
        return joined(parts)

    def loads(self, src: I64, dst: I64, weight: F64) -> F64:
        """Return what flows under "spray" put on each link: float64[nlinks], as `routes` would."""
        flow, one, two = self._far(src, dst)
        up, down, high, low, count = self._starts
        load, heavy = np.zeros(count), weight[flow]
        if not self.spines:
            return load
        for first, leaf in ((up, one), (down, two)):
            load[first : first + self.nleaves] = np.bincount(leaf, heavy, self.nleaves)
        if self._tiers == 3:
            pods = self.pod[one], self.pod[two]
            heavy = np.where(pods[0] != pods[1], heavy, 0.0)
            for first, pod in zip((high, low), pods):
                load[first : first + self.npods] = np.bincount(pod, heavy, self.npods)
        return load

    def above(self, leaf: I64, pod: I64, far: F64, away: F64, *, up: bool) -> F64:
        """Return what flows under "spray" put on links one way: float64[nlinks].

        leaf, pod: of the ports at one end; far: what leaves the leaf, away: what leaves the pod.
        """
        load, (ups, downs, high, low, _) = np.zeros(self.nlinks), self._starts
        first = ups if up else downs
        load[first : first + self.nleaves] = np.bincount(leaf, far, self.nleaves)
        if self._tiers == 3:
            first = high if up else low
            load[first : first + self.npods] = np.bincount(pod, away, self.npods)
        return load

    def _choose(self, src: I64, dst: I64, k: I64, salt: int) -> I64:
        """Return spine * cores + core by hash, each tier by bits of its own."""
        spine = pick(hashed(self.seed, 2 * salt, src, dst, k), self.spines)
        if self._tiers < 3:
            return spine
        core = pick(hashed(self.seed, 2 * salt + 1, src, dst, k), self.cores)
        return spine * self.cores + core

    def _paths(self, one: I64, two: I64, choice: I64) -> I64:
        """Return the links between two leaves over a choice: int64[2 or 4, m], -1 for none."""
        up, down, high, low, _ = self._starts
        cores = self.cores if self._tiers == 3 else 1
        spine = choice // cores
        ways = [up + one * self.spines + spine, down + two * self.spines + spine]
        if self._tiers == 3:
            pod_one, pod_two = self.pod[one].astype(np.int64), self.pod[two].astype(np.int64)
            bundle, far = self.spines * cores, pod_one != pod_two
            ways.append(np.where(far, high + pod_one * bundle + choice, -1))
            ways.append(np.where(far, low + pod_two * bundle + choice, -1))
        return np.stack(ways)

    def switches(self, src: I64, dst: I64) -> I64:
        """Return the switches of a shortest path: 1 in a leaf, 3 in a pod, 5 between pods."""
        src, dst = ends(src, dst, self.nports)
        flow, one, two = self._far(src, dst)
        count = np.ones(len(src), dtype=np.int64)
        count[flow] = np.where(self.pod[one] == self.pod[two], 3, 5)
        return count

    def _spine(self, pod: int, spine: int) -> str:
        return f"spine{spine}" if self.npods == 1 else f"pod{pod} spine{spine}"

    def link_name(self, link: int) -> str:
        """Return what a link joins: ``"leaf3 -> spine7"``, or ``"leaf3 -> spines"`` of a bundle."""
        link = whole(link, "link", 0, self.nlinks - 1)
        tier = int(np.searchsorted(self._starts[1:4], link, side="right"))
        own = link - self._starts[tier]
        if self.routing == "spray":
            pair = (f"leaf{own}", "spines") if tier < 2 else (f"pod{own}", "cores")
        elif tier < 2:
            leaf, spine = divmod(own, self.spines)
            pair = f"leaf{leaf}", self._spine(int(self.pod[leaf]), spine)
        else:
            above, core = divmod(own, self.cores)
            pod, spine = divmod(above, self.spines)
            pair = self._spine(pod, spine), f"core{spine * self.cores + core}"
        return " -> ".join(pair if tier % 2 == 0 else pair[::-1])

    def switch_name(self, port: int) -> str:
        """Return the leaf a port hangs on."""
        return f"leaf{self.leaf[whole(port, 'port', 0, self.nports - 1)]}"

    @property
    def port_switch(self) -> I64:
        """The leaf each port hangs on: int64[nports]."""
        return self.leaf.astype(np.int64)

    def bundles(self) -> Bundles:
        """Return what joins switches: leaves, then the spines of each pod, then all cores."""
        up, down, high, low, _ = self._starts
        ways: list[tuple[I64, I64, F64, I64, I64]] = []
        wide = 1 if self.routing == "spray" else self.spines
        spines = self.nleaves + self.pod.astype(np.int64)
        pods = self.nleaves + np.arange(self.npods)
        tiers = [(np.arange(self.nleaves), spines, self.leaf_up, wide, up, down)] * (
            self._tiers > 1
        )
        if self._tiers == 3:
            core = np.full(self.npods, self.nleaves + self.npods)
            wide *= 1 if self.routing == "spray" else self.cores
            tiers.append((pods, core, self.pod_up, wide, high, low))
        for below, above, rate, links, rise, fall in tiers:
            k = len(below)
            rate, count = rates(rate, "leaf_up or pod_up", k), np.full(k, links)
            ways.append((below, above, rate, rise + links * np.arange(k), count))
            ways.append((above, below, rate, fall + links * np.arange(k), count))
        none = np.zeros(0, np.int64)
        columns = zip((none, none, np.zeros(0), none, none), *ways)
        tail, head, rate, first, count = (np.concatenate(c) for c in columns)
        return tail, head, rate, first, count

    @property
    def sides(self) -> dict[str, I64]:
        """None: the tiers are found from which leaves nodes share."""
        return {}

    def switch_text(self, switch: int) -> str:
        """Return ``"leaf3"``, ``"spines"`` (of its pod, where there are several) or ``"cores"``."""
        if switch < self.nleaves:
            return f"leaf{switch}"
        if switch == self.nleaves + self.npods:
            return "cores"
        return "spines" if self.npods == 1 else f"pod{switch - self.nleaves} spines"

    def edges(self) -> Iterator[tuple[str, str, float]]:
        """Return (from, to, B/s) of every link, bundles taken apart into even links."""
        for leaf in range(self.nleaves if self.spines else 0):
            rate = float(np.ravel(self.leaf_up)[leaf % np.size(self.leaf_up)]) / self.spines
            for spine in range(self.spines):
                name = self._spine(int(self.pod[leaf]), spine)
                yield f"leaf{leaf}", name, rate
                yield name, f"leaf{leaf}", rate
        for pod in range(self.npods if self._tiers == 3 else 0):
            total = float(np.ravel(self.pod_up)[pod % np.size(self.pod_up)])
            for k in range(self.spines * self.cores):
                name = self._spine(pod, k // self.cores)
                yield name, f"core{k}", total / (self.spines * self.cores)
                yield f"core{k}", name, total / (self.spines * self.cores)
