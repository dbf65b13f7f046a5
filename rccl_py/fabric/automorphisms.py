"""A search for automorphisms of a small coloured graph, every one checked edge by edge.

Owns colour refinement and the backtracking over it. A colouring is refined until no two vertices
of a colour differ in the colours around them; to find a permutation that takes `a` to `b`, each
gets a colour of its own in one of two copies, both are refined, and what is left alike is matched
in order; where that is no automorphism a further vertex is given a colour in each copy. Knows no
rank, no fabric.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .tables import I64

__all__ = ["Search", "merged_orbits"]

U64 = npt.NDArray[np.uint64]

_BRANCHES = 6  # vertices tried for one choice; a machine's choices are alike, so the first is right


def _mix(value: U64) -> U64:
    """Return a hash of each number (the finaliser of SplitMix64: Steele, Lea, Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)), dtype=np.uint64)


class Search:
    """Automorphisms of edges tail[e] -> head[e] of a sort each, sorted by (tail, head).

    colour: int64[V], which vertices may go to which. budget: vertices and edges that may be looked
    at, over all questions; `spent` once it is used up.
    """

    def __init__(self, tail: I64, head: I64, sort: I64, colour: I64, budget: int) -> None:
        self.size, self.tail, self.head = len(colour), tail, head
        self.key, self.sort, self.left = tail * len(colour) + head, sort, budget
        factor = _mix(sort.astype(np.uint64) + np.uint64(1)) | np.uint64(1)
        turned = np.argsort(head, kind="stable")
        every = np.arange(len(colour) + 1)
        # The far end of each edge, a factor for its sort, and where each vertex's edges begin.
        self._sides = (
            (head, factor, np.searchsorted(tail, every)),
            (tail[turned], factor[turned] ^ np.uint64(0x5555555555555554),
             np.searchsorted(head[turned], every)),
        )  # fmt: skip
        self.cells = self._refined(np.unique(colour, return_inverse=True)[1][None, :])[0]

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.left <= 0

    def _refined(self, colour: I64) -> I64:
        """Return colours int64[copies, V], told apart by all that is around, alike in all copies.

        Sums of hashes stand for what is around: should two meet by chance, a cell is coarser and a
        permutation of it fails its check.
        """
        count = int(colour.max(initial=-1)) + 1
        nothing = np.zeros((len(colour), 1), dtype=np.uint64)
        while True:
            own = _mix(colour.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
            around = own * np.uint64(3)
            for other, factor, ptr in self._sides:
                total = np.concatenate([nothing, np.cumsum(own[:, other] * factor, axis=1)], axis=1)
                around = _mix(around + total[:, ptr[1:]] - total[:, ptr[:-1]])
            found = np.unique(around, return_inverse=True)[1].reshape(colour.shape)
            self.left -= (self.size + len(self.tail)) * len(colour)
            fresh = int(found.max(initial=-1)) + 1
            if fresh == count or self.spent:
                return found
            colour, count = found, fresh

    def edges(self, perm: I64) -> I64 | None:
        """Return where each edge goes under `perm`, None where it is no automorphism."""
        wanted = perm[self.tail] * self.size + perm[self.head]
        at = np.searchsorted(self.key, wanted)
        at = np.minimum(at, max(len(self.key) - 1, 0))
        if (self.key[at] != wanted).any() or (self.sort[at] != self.sort).any():
            return None
        return at if (self.cells[perm] == self.cells).all() else None

    def taking(self, pairs: Sequence[tuple[int, int]]) -> I64 | None:
        """Return an automorphism that takes a to b for every (a, b), None where none was found."""
        both = np.stack([self.cells, self.cells])
        for k, pair in enumerate(pairs):
            both[[0, 1], pair] = self.size + k
        return self._extended(both)

    def _extended(self, both: I64) -> I64 | None:
        both = self._refined(both)
        count = int(both.max(initial=-1)) + 1
        one, two = (np.bincount(copy, minlength=count) for copy in both)
        if self.spent or not np.array_equal(one, two):
            return None
        perm = np.empty(self.size, dtype=np.int64)
        perm[np.argsort(both[0], kind="stable")] = np.argsort(both[1], kind="stable")
        if self.edges(perm) is not None:
            return perm
        if one.max(initial=0) < 2:
            return None
        cell = int(np.where(one > 1, one, self.size + 1).argmin())
        a, options = int((both[0] == cell).argmax()), np.flatnonzero(both[1] == cell)
        for b in options[:_BRANCHES].tolist():
            further = both.copy()
            further[[0, 1], [a, b]] = count
            found = self._extended(further)
            if found is not None or self.spent:
                return found
        return None


def merged_orbits(label: I64, perm: I64) -> I64:
    """Return labels with those that `perm` joins made one: the smallest number of each set."""
    while True:
        other = label[perm]
        least = np.minimum(label, other)
        if np.array_equal(label, other):
            return label
        # Both labels lead to the smaller of the two, and what led to either follows.
        leads = np.arange(len(label))
        np.minimum.at(leads, label, least)
        np.minimum.at(leads, other, least)
        while not np.array_equal(leads, leads[leads]):
            leads = leads[leads]
        label = leads[label]
