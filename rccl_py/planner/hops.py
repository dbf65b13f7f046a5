"""The least latency of a call: what hops and messages take before a byte counts.

Owns three bounds, of which the largest counts, under the protocol where that is least:

* a call that spans nodes has a message between two of them
* what one rank has must get to the rank farthest from it, over others if that is quicker (looked
  at rank by rank on small machines only)
* what one rank has must get to all others: whoever knows it posts a message every `m` s, which is
  there `L` s later and can be handed on (Karp, Sahay, Santos, Schauser, "Optimal broadcast and
  summation in the LogP model", 1993), with the least L and m of any pair

Where switches multicast, one message may reach many ranks: then none is counted.

And two of what a call's bytes cannot hide: the last byte over a cut comes by a message between its
sides (`across`), and the last byte of what one rank has for another over all hops of its way
(`far`).
"""

from __future__ import annotations

from functools import cached_property
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric, expand
from ..schedule import I32
from ..units import format_time

__all__ = ["Hops", "spread_to"]

Bools = npt.NDArray[np.bool_]

_PAIRS = 64  # ranks up to which all latencies are looked at
_HOPS = 64  # accelerators of a node whose hops are looked at
_MOST = 4096  # ranks that are counted: more would take longer still

_WHOLE = ("broadcast", "reduce", "allreduce")  # all of the size goes from rank to rank
_TO_ROOT = ("reduce", "gather")  # their senders need not wait for one another
_ROOTED = ("broadcast", "scatter", *_TO_ROOT)


def spread_to(ranks: int, latency: float, message: float) -> float:
    """Return the s until so many ranks know what one knows: messages of `message` s, each
    `latency` s on its way.
    """
    arrivals: list[float] = [latency + message]
    at = 0.0
    for _ in range(min(ranks, _MOST) - 1):
        at = heappop(arrivals)
        heappush(arrivals, at + message)  # the sender's next one
        heappush(arrivals, at + message + latency)  # the receiver's first
    return at


class Hops:
    """The latencies of one fabric, found when they are first asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._known: dict[tuple[str, int], tuple[float, str]] = {}

    def least(self, collective: str, root: int = 0) -> tuple[float, str]:
        """Return the s of the hops and messages a call cannot do without, and which they are."""
        key = collective, root if collective in _ROOTED else -1
        if key not in self._known:
            self._known[key] = self._found(*key)
        return self._known[key]

    def across(self, collective: str, root: int, inside: Bools | None = None) -> float:
        """Return the least s of latency that the last byte over a cut takes besides.

        inside: bool[nranks], one side of it, None: no one cut is known, so any two ranks'. A root's
        bytes must first come to the cut, or from there to the root.
        """
        n, (near, far, message) = self.fabric.nranks, self._single
        least = near if far is None else np.minimum(near, far)
        if inside is None or inside.all() or not inside.any():
            return float((least + message).min())
        if n > _PAIRS:
            node = self.fabric.node
            apart = far is not None and len(np.unique(node[inside])) + len(
                np.unique(node[~inside])
            ) == len(np.unique(node))
            return float(((far if apart and far is not None else least) + message).min())
        ways = self._distances
        if collective not in _ROOTED:
            return float(ways[:, inside[:, None] != inside].min())
        others = inside != inside[root]
        return float((ways[:, others, root] if collective in _TO_ROOT
                      else ways[:, root, others]).min())  # fmt: skip

    def far(self, collective: str, root: int, size: float, out: F64, into: F64) -> float:
        """Return the least s until every rank has what each other has for it, of `size` bytes; 0
        on machines too large to look at each pair.

        out, into: B/s that leave and enter each rank, float64[nranks]. Every byte from a to b takes
        a's and b's links, and all latency of the quickest way from a to b besides.
        """
        n = self.fabric.nranks
        if n > _PAIRS:
            return 0.0
        ways, each = self._distances, size if collective in _WHOLE else size / n
        narrow = np.minimum(out[:, None], into)
        if collective in _ROOTED:
            at = np.index_exp[:, [root]] if collective in _TO_ROOT else np.index_exp[[root]]
            every = slice(None), *at
            ways, narrow = ways[every], narrow[at]
        apart = ways[0] > -1.0
        if collective not in _ROOTED:
            np.fill_diagonal(apart, val=False)
        elif collective in _TO_ROOT:
            apart[root] = False
        else:
            apart[:, root] = False
        whole = ways[:, apart] + each / narrow[apart]
        return float(whole.max(axis=1).min()) if whole.size else 0.0

    def _found(self, collective: str, root: int) -> tuple[float, str]:
        n, (near, far, message) = self.fabric.nranks, self._single
        hop = (near if far is None else far) + message
        every = [hop]
        if collective not in _TO_ROOT:
            least = near if far is None else np.minimum(near, far)
            every.append(np.array([spread_to(n, float(s), message) for s in least]))
        ends = None
        if n <= _PAIRS:
            ends = self._distances
            if root >= 0:
                ends = ends[:, :, [root]] if collective in _TO_ROOT else ends[:, [root]]
            every.append(ends.reshape(3, -1).max(axis=1))
        bound = np.max(every, axis=0)
        protocol = int(bound.argmin())
        seconds = float(bound[protocol])
        if seconds <= hop[protocol] * (1 + 1e-9):
            return seconds, "one hop of the fastest link"
        if ends is not None and seconds <= every[-1][protocol]:
            a, b = np.unravel_index(int(ends[protocol].argmax()), ends.shape[1:])
            one, two = (root if size == 1 else int(k)
                        for k, size in zip((a, b), ends.shape[1:]))  # fmt: skip
            return seconds, f"rank {one} to rank {two}, however it goes"
        return seconds, (
            f"{n} ranks learn what one knows, a message every {format_time(message)}, each "
            f"{format_time(float(least[protocol]))} on its way"
        )

    @cached_property
    def _message(self) -> float:
        """The part of a message's s that counts: 0 where one may reach many."""
        return 0.0 if self.fabric.multicast else 1.0

    @cached_property
    def _single(self) -> tuple[F64, F64 | None, float]:
        """The least s inside nodes and between them (None in one node), float64[3]; a message's."""
        fabric, ranks = self.fabric, np.arange(self.fabric.nranks, dtype=np.int32)
        near, spent = np.full(3, np.inf), [np.inf]
        used, first = np.unique(self._classes, return_index=True)
        for _, node in zip(used, first):
            own = ranks[fabric.node == fabric.node[node]][: _HOPS * 8]
            src, dst = (a.ravel() for a in np.meshgrid(own[:_HOPS], own))
            apart = fabric.local[src] != fabric.local[dst]
            if apart.any():
                near = np.minimum(near, fabric.latency(src[apart], dst[apart]).min(axis=1))
                spent.append(float(fabric.message(src[apart], dst[apart]).min()))
        far = self._between()
        if far is not None:
            spent.append(min(float(d.port_message.min()) for d in fabric.domains if d.nnics))
        message = min(spent) * self._message
        near = np.where(np.isfinite(near), near, np.inf if far is not None else 0.0)
        return near, far, message if np.isfinite(message) else 0.0

    @cached_property
    def _classes(self) -> I32:
        """What kind of node each rank is on: int32[nranks]."""
        return np.asarray(self.fabric.classes[1][self.fabric.node], dtype=np.int32)

    def _between(self) -> F64 | None:
        """Return the s of the quickest hop from node to node: float64[3]; None in one node.

        It is the quickest way out of a node, one switch, and the quickest way in, whichever ranks
        they are.
        """
        fabric = self.fabric
        used = np.unique(fabric.node)
        if len(used) == 1:
            return None
        out, into = np.full(3, np.inf), np.inf
        for kind in np.unique(fabric.kind[used]):
            domain = fabric.domains[int(kind)]
            locals_used = np.unique(fabric.local[fabric.kind[fabric.node] == kind])
            _, entry = expand(domain.attach, locals_used)
            port = domain.port_latency[:, domain.nic[entry]]
            out = np.minimum(out, (port + domain.wait[entry]).min(axis=1))
            into = min(into, float(domain.wait[entry].min()))
        return np.asarray(out + into + fabric.hop)

    @cached_property
    def _distances(self) -> F64:
        """The least s from rank to rank, over others if that is quicker: float64[3, n, n]."""
        n, fabric = self.fabric.nranks, self.fabric
        i, j = (a.ravel().astype(np.int32) for a in np.meshgrid(*[range(n)] * 2, indexing="ij"))
        spent = np.where(i == j, 0.0, fabric.message(i, j) * self._message)
        least: F64 = (fabric.latency(i, j) + spent).reshape(3, n, n)
        for k in range(n):
            least = np.minimum(least, least[:, :, k : k + 1] + least[:, k : k + 1, :])
        return least
