"""What one byte from a rank to another costs: the seconds it keeps each shared thing busy.

Owns Ways, and what symmetry makes of them. Knows a fabric by its routes only, so what is packed on
ways is packed on what messages really cross: planes, rails, peers' NICs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...algorithms.flat import Ints
from ...fabric import F64, Fabric
from ...links import PROTOCOLS

__all__ = ["Ways", "ways_of"]


@dataclass(frozen=True, eq=False)
class Ways:
    """Pairs of ranks as a sparse matrix.

    n: ranks. pair : int64[k], src * n + dst; shared : int64[k], what it uses; seconds : float64[k]
    per byte. joined : bool[n, n], which pairs have a route. Entries of one pair and one shared
    thing add up. dislike : float64[n, n] from 0 to 2, what decides between pairs that cost the
    same: long hops, and peers on another rail; None: nothing. odd : bool[n, n], pairs that trees
    do well without (see `plain`); None: none.
    """

    n: int
    pair: npt.NDArray[np.int64]
    shared: npt.NDArray[np.int64]
    seconds: F64
    joined: npt.NDArray[np.bool_]
    dislike: F64 | None = None
    odd: npt.NDArray[np.bool_] | None = None

    @cached_property
    def matrix(self) -> Any:
        """The seconds as scipy's csr_array of shape (n * n, things)."""
        from scipy.sparse import csr_array

        things = int(self.shared.max(initial=0)) + 1
        found = csr_array((self.seconds, (self.pair, self.shared)), (self.n**2, things))
        found.sum_duplicates()
        return found

    def turned(self) -> Ways:
        """Return the ways backwards: what dst -> src costs stands at src -> dst."""
        src, dst = np.divmod(self.pair, self.n)
        dislike = None if self.dislike is None else self.dislike.T
        odd = None if self.odd is None else self.odd.T
        pair = dst * self.n + src
        return Ways(self.n, pair, self.shared, self.seconds, self.joined.T, dislike, odd)

    def both(self) -> Ways:
        """Return what a byte there and one back cost together."""
        back = self.turned()
        return Ways(
            self.n,
            np.concatenate([self.pair, back.pair]),
            np.concatenate([self.shared, back.shared]),
            np.concatenate([self.seconds, back.seconds]),
            self.joined & back.joined,
            None if self.dislike is None else (self.dislike + self.dislike.T) / 2,
            None if self.odd is None else self.odd | self.odd.T,
        )

    def plain(self) -> Ways | None:
        """Return the ways without the odd pairs; None where no pair is odd.

        What few pairs share is seldom shared by messages of unequal length, or of ranks that drift
        apart: there a tree takes in the simulation what its load says, else up to a third more.
        """
        if self.odd is None or not (self.odd & self.joined).any():
            return None
        joined = self.joined & ~self.odd
        kept = joined.ravel()[self.pair]
        pair, shared, seconds = self.pair[kept], self.shared[kept], self.seconds[kept]
        return Ways(self.n, pair, shared, seconds, joined, self.dislike)

    def over(self, images: Ints) -> Ways:
        """Return what a pair and all its images cost together; images : int[m, n], where each rank
        goes.
        """
        if len(images) == 1:
            return self
        src, dst = np.divmod(self.pair, self.n)
        back = np.argsort(images, axis=1)  # which rank comes to be this one
        pair = (back[:, src] * self.n + back[:, dst]).ravel()
        entry = np.tile(np.arange(len(self.pair)), len(images))
        joined = np.ones_like(self.joined)
        dislike = None if self.dislike is None else np.zeros_like(self.dislike)
        for image in images:
            joined &= self.joined[np.ix_(image, image)]
            if dislike is not None and self.dislike is not None:
                dislike += self.dislike[np.ix_(image, image)] / len(images)
        return Ways(self.n, pair, self.shared[entry], self.seconds[entry], joined, dislike)

    @cached_property
    def kinds(self) -> npt.NDArray[np.int64]:
        """The kind of each thing: int64[things], -1 if none uses it; of a kind are things that all
        pairs use alike. Kinds are numbered by what they are, not by the order of things.
        """
        columns = self.matrix.tocsc()
        columns.sort_indices()
        rounded = np.round(columns.data / self.unit, 9)
        keys = {
            thing: columns.indices[a:b].astype(np.int64).tobytes() + rounded[a:b].tobytes()
            for thing, (a, b) in enumerate(zip(columns.indptr[:-1], columns.indptr[1:]))
            if b > a
        }
        number = {key: k for k, key in enumerate(sorted(set(keys.values())))}
        found = np.full(columns.shape[1], -1, dtype=np.int64)
        for thing, key in keys.items():
            found[thing] = number[key]
        return found

    @cached_property
    def distinct(self) -> Any:
        """`matrix` with one column for each kind of thing, in shares of the longest seconds."""
        _, first = np.unique(self.kinds, return_index=True)
        columns = self.matrix.tocsc()[:, first[self.kinds[first] >= 0]]
        columns.data = np.round(columns.data / self.unit, 9)
        return columns.tocsr()

    @cached_property
    def unit(self) -> float:
        """The longest s a byte of a pair keeps one thing busy."""
        return float(self.matrix.data.max(initial=1e-300))

    def spread(self, prices: F64) -> F64:
        """Return prices of kinds as prices of things, alike things sharing theirs alike."""
        used = self.kinds >= 0
        found = np.zeros(len(used))
        found[used] = (prices / np.bincount(self.kinds[used]))[self.kinds[used]]
        return found

    def priced(self, prices: F64) -> F64:
        """Return what each pair costs at prices of things: float64[n, n], inf without a route."""
        each = np.asarray(self.matrix @ prices).reshape(self.n, self.n)
        each[~self.joined] = np.inf
        return each

    def spans(self, root: int | None = None) -> bool:
        """Return whether every rank reaches every other, or the root does."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, connected_components

        graph = csr_array(self.joined.astype(np.int8))
        if root is None:
            return int(connected_components(graph, connection="strong")[0]) == 1
        return len(breadth_first_order(graph, root, return_predecessors=False)) == self.n


def ways_of(fabric: Fabric) -> Ways:
    """Return the ways between the ranks of `fabric`, large messages under Simple."""
    n = fabric.nranks
    src, dst = (a.ravel().astype(np.int32) for a in np.indices((n, n)))
    far = np.flatnonzero((src != dst) & fabric.reaches(src, dst))
    routes = fabric.routes(src[far], dst[far], np.ones(len(far)))
    pace = fabric.pace[PROTOCOLS["Simple"].index]
    joined = np.zeros(n * n, dtype=bool)
    joined[far] = True
    seconds = routes.share * pace[routes.link]
    link = routes.link.astype(np.int64)
    found = Ways(n, far[routes.row], link, seconds, joined.reshape(n, n), _dislike(fabric))
    return replace(found, odd=_passing(found) | _off_rail(fabric))


def _passing(ways: Ways) -> npt.NDArray[np.bool_]:
    """Return the pairs whose way uses all that another from or to the same rank uses, and more:
    bool[n, n]. It passes by that rank, which might as well keep what it hands on.
    """
    n = ways.n
    used = ways.matrix.astype(bool).astype(np.int32)
    count = np.diff(used.indptr).reshape(n, n)
    found = np.zeros((n, n), dtype=bool)
    for rank in range(n):
        for at, turned in ((np.arange(n) + rank * n, False), (np.arange(n) * n + rank, True)):
            mine = used[at]
            both = (mine @ mine.T).toarray()  # things that two ways have in common
            each = count[:, rank] if turned else count[rank]
            passes = ((both == each) & (each > 0) & (each[:, None] > each)).any(axis=1)
            found[(slice(None), rank) if turned else (rank, slice(None))] |= passes
    return found


def _off_rail(fabric: Fabric) -> npt.NDArray[np.bool_]:
    """Return the pairs of ranks in different nodes whose places there are unlike: bool[n, n].

    Between nodes of two sizes the places of the larger count modulo the smaller's ranks.
    """
    size = np.bincount(fabric.node)[fabric.node]
    place = fabric.local[:, None] % size, fabric.local[None, :] % size[:, None]
    return np.asarray((fabric.node[:, None] != fabric.node) & (place[0] != place[1]))


def _dislike(fabric: Fabric) -> F64:
    """Return the s of a hop and a message, over the most there is, twice off a rank's own rail.

    So that a rank sends between nodes to few others where it makes no difference to links.
    """
    n = fabric.nranks
    src, dst = (a.ravel().astype(np.int32) for a in np.indices((n, n)))
    spent: F64 = fabric.latency(src, dst)[PROTOCOLS["Simple"].index] + fabric.message(src, dst)
    near = (fabric.node[src] == fabric.node[dst]) | (fabric.local[src] == fabric.local[dst])
    spent *= np.where(near, 1.0, 2.0) / max(float(spent.max()), 1e-300)
    return np.round(spent, 6).reshape(n, n)
