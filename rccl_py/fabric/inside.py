"""Routes between the accelerators of one scale-up domain, as arrays.

Owns five ways to hold them, one protocol: all pairs listed; switch planes, whose routes follow
from the widths of each accelerator's links; accelerators on one switch each, whose routes are
those of their switches; a torus, whose routes follow from coordinates; and
any other large graph, searched from a source when that source is first asked for. Numbers i, j
are accelerators of the domain, links are the domain's own. Knows no graph and no rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .tables import F64, I64, Routes, Table, expand, joined

__all__ = ["Found", "Hubs", "Inside", "Listed", "Planes", "Searched", "Wired"]

Index = npt.NDArray[np.integer]


class Inside(Protocol):
    """How accelerators of one domain reach each other. i, j: integers of equal length k."""

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links each i[r] -> j[r] crosses; none where they are equal or unjoined."""

    def latency(self, i: Index, j: Index) -> F64:
        """Return the s of each hop under LL, LL128, Simple: float64[3, k]."""

    def message(self, i: Index, j: Index) -> F64:
        """Return the s a sender spends per message: float64[k]."""

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where a route exists (an accelerator reaches itself)."""

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where all links are of a scale-up medium: peers load and store directly."""

    @property
    def leaving(self) -> I64:
        """The links from accelerators to the one level of switches; none in other shapes."""


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """Routes from some keys (a pair, or one source's targets): a table, and what they cost."""

    table: Table
    latency: F64  # float64[3, keys]
    message: F64
    done: npt.NDArray[np.bool_]  # where there is a route
    coherent: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Listed:
    """Every pair listed: keys are i * m + j."""

    m: int
    found: Found

    @property
    def leaving(self) -> I64:
        """None: no switch of one level joins all."""
        return np.zeros(0, dtype=np.int64)

    def _key(self, i: Index, j: Index) -> I64:
        return np.asarray(i, dtype=np.int64) * self.m + j

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links of each pair."""
        table = self.found.table
        row, entry = expand(table.ptr, self._key(i, j))
        return Routes(row, table.link[entry].astype(np.int64), table.share[entry])

    def latency(self, i: Index, j: Index) -> F64:
        """Return float64[3, k] s."""
        return self.found.latency[:, self._key(i, j)]

    def message(self, i: Index, j: Index) -> F64:
        """Return float64[k] s."""
        return self.found.message[self._key(i, j)]

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where a route exists."""
        return self.found.done[self._key(i, j)]

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where peers load and store directly."""
        return self.found.coherent[self._key(i, j)]


@dataclass(frozen=True, eq=False, slots=True)
class Planes:
    """Every accelerator on switches of one level; a pair uses all switches both are joined to.

    up, down: int64[m, s], the link to and from each switch, -1 where there is none. Shares go by
    the narrower of the two links, so a lane that is lost is lost to both ends.
    """

    up: I64
    down: I64
    bandwidth: F64  # of the domain's links, and 0 at the end, which is what -1 finds
    link_latency: F64  # float64[3, nlinks + 1]
    link_message: F64

    @property
    def even(self) -> bool:
        """Whether every accelerator is on every switch, by links that are all as wide."""
        used = self.bandwidth[np.concatenate([self.up.ravel(), self.down.ravel()])]
        return bool(len(used) and used.min() > 0 and used.min() == used.max())

    def _width(self, i: Index, j: Index) -> F64:
        return np.minimum(self.bandwidth[self.up[i]], self.bandwidth[self.down[j]])

    def _widest(self, i: Index, j: Index) -> I64 | int:
        """Return the first of the widest switches of each pair."""
        return 0 if self.even else np.asarray(self._width(i, j).argmax(axis=1), dtype=np.int64)

    @property
    def leaving(self) -> I64:
        """The links up."""
        return np.asarray(self.up[self.up >= 0], dtype=np.int64)

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links of each pair: up and down of every switch they share."""
        width = self._width(i, j)
        width[np.asarray(i) == np.asarray(j)] = 0.0
        row, plane = np.nonzero(width)
        share = (width / np.maximum(width.sum(axis=1), 1e-300)[:, None])[row, plane]
        links = np.stack([self.up[i[row], plane], self.down[j[row], plane]], axis=1)
        return Routes(np.repeat(row, 2), links.ravel(), np.repeat(share, 2))

    def latency(self, i: Index, j: Index) -> F64:
        """Return float64[3, k] s: up and down of the widest switch."""
        plane = self._widest(i, j)
        both = self.link_latency[:, self.up[i, plane]] + self.link_latency[:, self.down[j, plane]]
        return np.where(np.asarray(i) == np.asarray(j), 0.0, both)

    def message(self, i: Index, j: Index) -> F64:
        """Return float64[k] s."""
        spent = self.link_message[self.up[i, self._widest(i, j)]]
        return np.where(np.asarray(i) == np.asarray(j), 0.0, spent)

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where a switch is shared."""
        return np.asarray((np.asarray(i) == np.asarray(j)) | (self._width(i, j) > 0).any(axis=1))

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return True: switch planes are scale-up links."""
        return np.ones(len(i), dtype=bool)


@dataclass(frozen=True, eq=False, slots=True)
class Hubs:
    """Every accelerator on one switch: up to it, from switch to switch, down to the other.

    up, down: int64[m], the link to and from that switch; hub: int64[m], its number. between: the
    routes of `hubs` switches, keyed a * hubs + b.
    """

    up: I64
    down: I64
    hub: I64
    hubs: int
    between: Found
    link_latency: F64  # float64[3, nlinks]
    link_message: F64

    @property
    def leaving(self) -> I64:
        """None: no switch of one level joins all."""
        return np.zeros(0, dtype=np.int64)

    def _key(self, i: Index, j: Index) -> I64:
        return np.asarray(self.hub[i] * self.hubs + self.hub[j])

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links of each pair."""
        far = np.flatnonzero(np.asarray(i) != np.asarray(j))
        i, j = np.asarray(i)[far], np.asarray(j)[far]
        row, entry = expand(self.between.table.ptr, self._key(i, j))
        link, share = self.between.table.link[entry], self.between.table.share[entry]
        one = np.ones(len(far))
        return joined(
            [(far, self.up[i], one), (far[row], link.astype(np.int64), share),
             (far, self.down[j], one)]
        )  # fmt: skip

    def latency(self, i: Index, j: Index) -> F64:
        """Return float64[3, k] s."""
        ends = self.link_latency[:, self.up[i]] + self.link_latency[:, self.down[j]]
        both = ends + self.between.latency[:, self._key(i, j)]
        return np.where(np.asarray(i) == np.asarray(j), 0.0, both)

    def message(self, i: Index, j: Index) -> F64:
        """Return float64[k] s."""
        ends = np.maximum(self.link_message[self.up[i]], self.link_message[self.down[j]])
        both = np.maximum(ends, self.between.message[self._key(i, j)])
        return np.where(np.asarray(i) == np.asarray(j), 0.0, both)

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where the switches are joined."""
        return self.between.done[self._key(i, j)]

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return True: switches join scale-up links."""
        return np.ones(len(i), dtype=bool)


class Grid(Protocol):
    """What `Wired` asks of a structured graph whose vertices are the accelerators."""

    def routes(self, src: I64, dst: I64) -> tuple[I64, I64, F64]:
        """Return (row, link, share)."""

    def hops(self, src: I64, dst: I64) -> I64:
        """Return the links of a shortest path."""


@dataclass(frozen=True, eq=False, slots=True)
class Wired:
    """A torus of accelerators: routes are computed. `hop`: float64[3] s for the first link, and
    `further` s for each after it, which relays without a hand-shake. loads: whether peers load and
    store over its links.
    """

    graph: Grid
    link: I64  # the domain's number of each of the graph's links
    hop: F64
    further: float
    sends: float
    loads: bool

    @property
    def leaving(self) -> I64:
        """None: no switch of one level joins all."""
        return np.zeros(0, dtype=np.int64)

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links of each pair."""
        row, link, share = self.graph.routes(np.asarray(i, np.int64), np.asarray(j, np.int64))
        return Routes(row, self.link[link], share)

    def latency(self, i: Index, j: Index) -> F64:
        """Return float64[3, k] s."""
        hops = self.graph.hops(np.asarray(i, np.int64), np.asarray(j, np.int64))
        first, rest = np.minimum(hops, 1), np.maximum(hops - 1, 0)
        return np.asarray(self.hop[:, None] * first + self.further * rest)

    def message(self, i: Index, j: Index) -> F64:
        """Return float64[k] s."""
        return np.where(np.asarray(i) == np.asarray(j), 0.0, self.sends)

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return True: a torus is connected."""
        return np.ones(len(i), dtype=bool)

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return whether its links are of a medium for that."""
        return np.full(len(i), self.loads)


@dataclass(frozen=True, eq=False, slots=True)
class Searched:
    """A large graph of no known shape: a source is searched when it is first asked for.

    search(i): the routes from i, keyed by target 0..m-1. reach(i): which targets there are routes
    to, told more quickly. symmetric: every link goes both ways, so
    whoever is reached reaches back.
    """

    search: Callable[[int], Found]
    reach: Callable[[int], npt.NDArray[np.bool_]]
    symmetric: bool
    known: dict[int, Found] = field(default_factory=dict)

    @property
    def leaving(self) -> I64:
        """None: no switch of one level joins all."""
        return np.zeros(0, dtype=np.int64)

    def _from(self, i: int) -> Found:
        if i not in self.known:
            self.known[i] = self.search(i)
        return self.known[i]

    def _each(self, i: Index) -> list[tuple[I64, Found]]:
        """Return the rows of each source, and its routes."""
        i = np.asarray(i, dtype=np.int64)
        return [(np.flatnonzero(i == source), self._from(int(source))) for source in np.unique(i)]

    def routes(self, i: Index, j: Index) -> Routes:
        """Return the links of each pair."""
        j, parts = np.asarray(j), []
        for rows, found in self._each(i):
            at, entry = expand(found.table.ptr, j[rows])
            link = found.table.link[entry].astype(np.int64)
            parts.append((rows[at], link, found.table.share[entry]))
        return joined(parts)

    def _columns(self, i: Index, j: Index, name: str, into: np.ndarray) -> np.ndarray:
        j = np.asarray(j)
        for rows, found in self._each(i):
            into[..., rows] = getattr(found, name)[..., j[rows]]
        return into

    def latency(self, i: Index, j: Index) -> F64:
        """Return float64[3, k] s."""
        return self._columns(i, j, "latency", np.zeros((3, len(i))))

    def message(self, i: Index, j: Index) -> F64:
        """Return float64[k] s."""
        return self._columns(i, j, "message", np.zeros(len(i)))

    def reaches(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where a route exists."""
        i, j, found = np.asarray(i), np.asarray(j), np.zeros(len(i), dtype=bool)
        for source in np.unique(i):
            rows = np.flatnonzero(i == source)
            found[rows] = self.reach(int(source))[j[rows]]
        return found

    def coherent(self, i: Index, j: Index) -> npt.NDArray[np.bool_]:
        """Return where peers load and store directly."""
        return self._columns(i, j, "coherent", np.zeros(len(i), dtype=bool))
