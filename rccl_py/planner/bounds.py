"""Lower bounds: what no algorithm on this fabric can beat, and the cut that says so.

Owns the time of a bound and its words; rates are those of rccl_py.planner.optimum, on the graph
of rccl_py.fabric.graph. A call takes the launch, at least one hop's latency (of small machines the
latency between the two ranks farthest apart), and what its size takes at the best rate:

    seconds = launch + latency + size / rate

All three add up, because a link carries nothing before the first hop's latency has passed. Where
switches add up and multicast, their share of a port (Fabric.multicast) counts: an allreduce inside
one domain takes at every port min(2 (n - 1) / n, (1 + 1 / n) / multicast) of its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..fabric import Fabric, expand
from ..fabric.graph import Graph, graph_of
from ..fabric.symmetry import Symmetry, symmetry
from ..units import format_bandwidth
from .optimum import Optimum, allgather, allreduce, alltoall, broadcast, gather, reduce_scatter
from .optimum import reduce as reduce_to
from .optimum import scatter as scatter_from
from .optimum.words import words

__all__ = ["Bound", "Cuts", "find_cuts", "lower_bound"]

_CLOSED = 16_384  # ranks above which the groups the graph names are the only cuts that are tried
_PAIRS = 64  # ranks up to which all latencies are looked at
_HOPS = 64  # accelerators of a node whose hops are looked at
_ROOTED = {"broadcast": broadcast, "reduce": reduce_to, "gather": gather, "scatter": scatter_from}


@dataclass(frozen=True, slots=True)
class Bound:
    """seconds: no call of this size can be faster. cut: the set and links that say so.

    launch, latency, links: the s it is the sum of. rate: B/s of algbw that `links` is for; exact:
    whether schedules reach that rate (else it is the best bound known).
    """

    seconds: float
    cut: str
    launch: float = 0.0
    latency: float = 0.0
    links: float = 0.0
    rate: float = np.inf
    exact: bool = True


class Cuts:
    """What bounds the calls on one fabric, found when it is first asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._known: dict[tuple[str, int], Optimum] = {}
        self._words: dict[tuple[str, int], str] = {}
        self._farthest: dict[tuple[str, int], tuple[float, str]] = {}

    @cached_property
    def graph(self) -> Graph:
        """The fabric as a graph."""
        return graph_of(self.fabric)

    @cached_property
    def alike(self) -> Symmetry:
        """Which parts of the graph are alike."""
        return symmetry(self.graph)

    def optimum(self, collective: str, root: int = 0) -> Optimum:
        """Return the best rate of a collective, and the cut that limits it."""
        key = collective, root if collective in _ROOTED else 0
        if key not in self._known:
            self._known[key] = self._found(*key)
        return self._known[key]

    def words(self, collective: str, root: int = 0) -> str:
        """Return what limits that rate."""
        key = collective, root if collective in _ROOTED else 0
        if key not in self._words:
            self._words[key] = words(self.optimum(*key), self.fabric)
        return self._words[key]

    def _found(self, collective: str, root: int) -> Optimum:
        graph, closed = self.graph, self.fabric.nranks > _CLOSED
        alike = None if closed else self.alike
        if collective in _ROOTED:
            return _ROOTED[collective](graph, root, alike, closed=closed)
        if collective == "allgather":
            return allgather(graph, alike, closed=closed)
        if collective == "reduce_scatter":
            return reduce_scatter(graph, alike, closed=closed)
        if collective == "alltoall":
            return alltoall(graph, alike, closed=closed).optimum
        part = self.fabric.multicast
        found = allreduce(graph, alike, closed=closed, in_network=part > 0).optimum
        if not part or not graph.adds.any() or graph.nests:
            return found
        switched = _at_ports(graph, part)
        return switched if switched.rate < found.rate else found

    def latency(self, collective: str, root: int = 0) -> tuple[float, str]:
        """Return the s of the hops a call cannot do without, and which they are."""
        key = collective, root if collective in _ROOTED else -1
        if key not in self._farthest:
            self._farthest[key] = self._far(*key)
        return self._farthest[key]

    def _far(self, collective: str, root: int) -> tuple[float, str]:
        one = _hop(self.fabric), "one hop of the fastest link"
        n = self.fabric.nranks
        if n > _PAIRS:
            return one
        least = self._distances  # [protocol, from, to]
        if root >= 0:
            least = least[:, :, [root]] if collective in ("reduce", "gather") else least[:, [root]]
        worst = least.reshape(3, -1).max(axis=1)
        protocol = int(worst.argmin())
        if worst[protocol] <= one[0] * (1 + 1e-9):
            return one
        at = int(least[protocol].argmax())
        a, b = np.unravel_index(at, least.shape[1:])
        ends = [root if len(rows) == 1 else int(k)
                for k, rows in zip((a, b), (least[0], least[0].T))]  # fmt: skip
        return float(worst[protocol]), f"rank {ends[0]} to rank {ends[1]}, however it goes"

    @cached_property
    def _distances(self) -> np.ndarray:
        """The least s from rank to rank, over others if that is quicker: float64[3, n, n]."""
        n = self.fabric.nranks
        i, j = (a.ravel().astype(np.int32) for a in np.meshgrid(*[range(n)] * 2, indexing="ij"))
        least = self.fabric.latency(i, j).reshape(3, n, n)
        for k in range(n):
            least = np.minimum(least, least[:, :, k : k + 1] + least[:, k : k + 1, :])
        return least


def _at_ports(graph: Graph, part: float) -> Optimum:
    """Return the bound of an allreduce at the ranks' ports, which their switches may help with.

    A sum or a copy by switches costs a port's bytes over `part`; all ranks' ports together carry
    2 n min(2 (n - 1) / n, (1 + 1 / n) / part) of the size, both directions counted.
    """
    n = graph.nranks
    held = graph.weight > 0
    out = float(graph.capacity[held[graph.tail]].sum())
    into = float(graph.capacity[held[graph.head]].sum())
    each = min(2.0 * (n - 1) / n, (1.0 + 1.0 / n) / part)
    inside = np.ones(graph.nvertices, dtype=bool)
    inside[graph.rank[0]] = False
    width = (out + into) / (2 * n)
    return Optimum(graph, width / each, False, "all ports, with what switches add up", inside,
                   each, width)  # fmt: skip


def find_cuts(fabric: Fabric) -> Cuts:
    """Return what bounds calls on `fabric`; it is worked out when it is asked for."""
    return Cuts(fabric)


def _hop(fabric: Fabric) -> float:
    """Return the s of the quickest hop a call cannot do without: between nodes, if it spans some.

    Under the protocol with the least hand-shake there. Over a network it is the quickest way out of
    a node, one switch, and the quickest way in, whichever ranks they are.
    """
    ranks = np.arange(fabric.nranks, dtype=np.int32)
    used = np.unique(fabric.node)
    if len(used) == 1:
        one = ranks[np.unique(fabric.local, return_index=True)[1][:_HOPS]]
        src, dst = (a.ravel().astype(np.int32) for a in np.meshgrid(one, ranks[: _HOPS * 8]))
        far = src != dst
        return float(fabric.latency(src[far], dst[far]).min()) if far.any() else 0.0
    out, into = np.inf, np.inf
    for kind in np.unique(fabric.kind[used]):
        domain = fabric.domains[int(kind)]
        locals_used = np.unique(fabric.local[fabric.kind[fabric.node] == kind])
        _, entry = expand(domain.attach, locals_used)
        port = domain.port_latency.min(axis=0)[domain.nic[entry]]
        out = min(out, float((port + domain.wait[entry]).min()))
        into = min(into, float(domain.wait[entry].min()))
    return out + into + fabric.hop


def _amount(found: Optimum, size: float) -> str:
    """Return how much must cross what limits the rate, for this size."""
    if not found.share:
        return f"{format_bandwidth(found.rate)} of algbw"
    way = "leave" if 0 < found.ranks <= found.graph.nranks / 2 else "enter"
    return f"{found.share * size / 1e9:.4g} GB must {way}"


def lower_bound(fabric: Fabric, cuts: Cuts, collective: str, size: float, root: int = 0) -> Bound:
    """Return the lower bound of a call of `size` bytes (rccl-tests' size) on `fabric`."""
    launch = fabric.launch
    if fabric.nranks == 1:
        return Bound(launch, "launch: one rank needs no link", launch)
    latency, hops = cuts.latency(collective, root)
    found = cuts.optimum(collective, root)
    links = size / found.rate
    text = f"latency: {hops}"
    if links > latency:
        text = f"{cuts.words(collective, root)}: {_amount(found, size)}"
    return Bound(launch + latency + links, text, launch, latency, links, found.rate, found.exact)
