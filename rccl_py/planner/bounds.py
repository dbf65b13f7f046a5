"""Lower bounds: what no algorithm on this fabric can beat, and the cut that says so.

Owns the time of a bound and its words; rates are those of rccl_py.planner.optimum, on the graph
of rccl_py.fabric.graph, latencies those of rccl_py.planner.hops. A call takes the launch, and then
whichever is longer, the hops and messages it cannot do without, or its bytes at the best rate and
the hops they cannot hide, or what ranks read, write and add in their memories; and at last the
copy of a rank's own block, where there is one:

    seconds = launch + max(latency, hops + size / rate, memory) + own

Hops and bytes do not simply add up: while the farthest rank's bytes are on their way, those of
others cross the cut. What they do add is the message that brings the last of them over (docs/
bounds.md has the proof). Where switches add up and multicast, their share of a port
(Fabric.multicast) counts: an allreduce inside one domain takes at every port
min(2 (n - 1) / n, (1 + 1 / n) / multicast) of its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..collectives import COLLECTIVES
from ..fabric import F64, Fabric
from ..fabric.graph import Graph, graph_of
from ..fabric.symmetry import Symmetry, symmetry
from ..timing.memory import STAGED
from ..units import format_bandwidth, format_time
from .hops import Hops
from .optimum import Optimum, allgather, allreduce, alltoall, broadcast, gather, reduce_scatter
from .optimum import reduce as reduce_to
from .optimum import scatter as scatter_from
from .optimum.words import words

__all__ = ["Bound", "Cuts", "find_cuts", "lower_bound"]

_CLOSED = 16_384  # ranks above which the groups the graph names are the only cuts that are tried
_WORK = {"allgather": (2, 0, 1), "alltoall": (2, 0, 1), "reduce_scatter": (1, 1, 1),
         "allreduce": (3, 1, 2)}  # fmt: skip
"""Times n - 1 blocks of a n-th of the size that a rank, on average, reads or writes, and adds.

Every block gets n - 1 times to a rank that did not have it, or had not added it: it is read where
it is sent, and then written, or added. The last column is how often a block has to arrive.
"""
_RECEIVED = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}
_ROOTED = {"broadcast": broadcast, "reduce": reduce_to, "gather": gather, "scatter": scatter_from}


@dataclass(frozen=True, slots=True, repr=False)
class Bound:
    """seconds: no call of this size can be faster. cut: the set and links that say so.

    launch, latency, links: s of a call of nothing, of the hops and messages of a call of one byte,
    and of its size at the best rate. hops: s of latency that no byte hides. own: s in which a rank
    copies its own block. memory: s its memory and adders take. seconds = launch + max(latency,
    hops + links, memory) + own. rate: B/s of algbw that `links` is for; exact: whether schedules
    reach that rate (else it is the best bound known).
    """

    seconds: float
    cut: str
    launch: float = 0.0
    latency: float = 0.0
    links: float = 0.0
    rate: float = np.inf
    exact: bool = True
    hops: float = 0.0
    own: float = 0.0
    memory: float = 0.0

    def __repr__(self) -> str:
        return f"<Bound {format_time(self.seconds)}: {self.cut}>"


class Cuts:
    """What bounds the calls on one fabric, found when it is first asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._known: dict[tuple[str, int], Optimum] = {}
        self._words: dict[tuple[str, int], str] = {}

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

    def unhidden(self, collective: str, root: int, size: float) -> float:
        """Return the s of latency that the bytes of a call of `size` cannot hide."""
        found, inside = self.optimum(collective, root), None
        if found.inside is not None and not (collective == "allreduce" and self.fabric.multicast):
            inside = found.inside[found.graph.rank]
        first = self.hops.across(collective, root, inside)
        far = self.hops.far(collective, root, size, *self.ports)
        return max(first, far - size / found.rate)

    @cached_property
    def ports(self) -> tuple[F64, F64]:
        """B/s that leave each rank, and that enter it: float64[nranks] each."""
        graph = self.graph
        out, into = (np.bincount(end, weights=graph.capacity, minlength=graph.nvertices)[graph.rank]
                     for end in (graph.tail, graph.head))  # fmt: skip
        return np.asarray(out, dtype=np.float64), np.asarray(into, dtype=np.float64)

    @cached_property
    def staged(self) -> bool:
        """Whether all that arrives passes a staging buffer: no two ranks load and store."""
        for domain in self.fabric.domains:
            one = np.arange(domain.ngpus, dtype=np.int32)
            for k in range(1, domain.ngpus):
                if domain.inside.coherent(one, np.roll(one, -k)).any():
                    return False
        return True

    def _found(self, collective: str, root: int) -> Optimum:
        found = self._by_cuts(collective, root)
        if collective not in _RECEIVED or (collective == "allreduce" and self.fabric.multicast):
            return found
        shared = _shared(self.graph, _RECEIVED[collective], out=collective == "reduce_scatter")
        return found if shared is None or shared.rate >= found.rate * (1 - 1e-9) else shared

    def _by_cuts(self, collective: str, root: int) -> Optimum:
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
        if not part or not graph.adds.any():
            return allreduce(graph, alike, closed=closed).optimum
        # Ports with a part of their rate say more than switches that are as good as they could be.
        limit = {} if graph.nests else {"variables": 0}
        found = allreduce(graph, alike, closed=closed, in_network=True, **limit).optimum
        switched = _at_ports(graph, part)
        return switched if switched.rate < found.rate else found

    @cached_property
    def hops(self) -> Hops:
        """The latencies no call can do without."""
        return Hops(self.fabric)


def _shared(graph: Graph, times: int, *, out: bool) -> Optimum | None:
    """Return the bound of ports that ranks share, None where they share none.

    Every rank receives n - 1 blocks, `times` over, each for itself: switches that only hand on do
    not copy. So what enters a switch counts once, however many ranks are behind it. out: what
    ranks send instead.
    """
    tail, head = (graph.head, graph.tail) if out else (graph.tail, graph.head)
    ranks, n = graph.weight > 0, graph.nranks
    last = ranks[head]
    behind = np.bincount(tail[last], graph.capacity[last], graph.nvertices)
    before = np.bincount(head, graph.capacity, graph.nvertices)
    fewer = ~ranks & ~graph.adds & (before < behind * (1 - 1e-9))
    if not fewer.any():
        return None
    width = float(np.where(fewer, before, behind).sum())
    share = times * (n - 1.0)
    full = (last & ~fewer[tail]) | fewer[head]
    verb = "left" if out else "entered"
    how = f"the {n} ranks together are {verb}"
    return Optimum(graph, width / share, False, how, None, share, width, full)


def _at_ports(graph: Graph, part: float) -> Optimum:
    """Return the bound of an allreduce at the ranks' ports, which their switches may help with.

    Until all n ranks have the sum of all, each byte is added n - 1 times and handed on n - 1 times.
    Done by a rank, one costs a byte out of a port and one into another; by a switch of k ranks at
    best (k + 1) / (k - 1) / part bytes at its ports. So all ports together carry, both directions
    counted, the size 2 (n - 1) times over what a byte at each of them does.
    """
    held, ranks = graph.weight > 0, graph.nranks
    at = np.zeros(graph.nvertices)  # ranks at each switch
    up = held[graph.tail] & graph.adds[graph.head]
    np.add.at(at, graph.head[up], 1.0)
    worth = np.full(graph.nvertices, 0.5)
    many = graph.adds & (at > 1)
    worth[many] = np.maximum(0.5, part * (at[many] - 1) / (at[many] + 1))
    does = 0.0
    for end, other in ((graph.tail, graph.head), (graph.head, graph.tail)):
        port = held[end]
        does += float((graph.capacity[port] * worth[other[port]]).sum())
    rate = does / (2 * (ranks - 1))
    into = held[graph.head]
    width = float(graph.capacity[into].sum())
    how = f"with what switches add up, the {ranks} ranks together are entered"
    return Optimum(graph, rate, False, how, None, width / rate, width, into)


def find_cuts(fabric: Fabric) -> Cuts:
    """Return what bounds calls on `fabric`; it is worked out when it is asked for."""
    return Cuts(fabric)


def _amount(found: Optimum, size: float) -> str:
    """Return how much must cross what limits the rate, for this size."""
    if not found.share:
        return f"{format_bandwidth(found.rate)} of algbw"
    leaves = 0 < found.ranks <= found.graph.nranks / 2 or found.text.endswith("are left")
    way = "leave" if leaves else "enter"
    return f"{found.share * size / 1e9:.4g} GB must {way}"


def _memory(fabric: Fabric, cuts: Cuts, collective: str, size: float) -> tuple[float, str]:
    """Return the s that memory takes at least, and in words whether it moves or adds."""
    if collective not in _WORK or fabric.multicast:
        return 0.0, ""  # switches add up, and hand on to many what is read once
    moved, added, arrives = map(float, _WORK[collective])
    volume = size * (fabric.nranks - 1) / fabric.nranks
    if cuts.staged:
        moved += STAGED * arrives
    by_way = (
        (
            moved * volume / fabric.memory,
            f"reads and writes {moved * volume / 1e9:.4g} GB",
            "memory",
        ),
        (added * volume / fabric.reduction, f"adds {added * volume / 1e9:.4g} GB", "reduction"),
    )
    seconds, what, which = max(by_way)
    return seconds, f"memory: a rank {what} at {format_bandwidth(getattr(fabric, which))}"


def lower_bound(fabric: Fabric, cuts: Cuts, collective: str, size: float, root: int = 0) -> Bound:
    """Return the lower bound of a call of `size` bytes (rccl-tests' size) on `fabric`."""
    launch = fabric.launch
    if fabric.nranks == 1:
        return Bound(launch, "launch: one rank needs no link", launch)
    latency, hops = cuts.hops.least(collective, root)
    found = cuts.optimum(collective, root)
    links = size / found.rate
    text = f"latency: {hops}"
    if links > latency:
        text = f"{cuts.words(collective, root)}: {_amount(found, size)}"
    beside = cuts.unhidden(collective, root, size)
    memory, what = _memory(fabric, cuts, collective, size)
    if memory > max(latency, beside + links):
        text = what
    asked = COLLECTIVES[collective]
    own = asked.own(fabric.nranks) * size / max(asked.blocks(fabric.nranks)) / fabric.copy
    seconds = launch + max(latency, beside + links, memory) + own
    exact = found.exact or memory >= beside + links
    return Bound(seconds, text, launch, latency, links, found.rate, exact, beside, own, memory)
