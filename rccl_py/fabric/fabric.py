"""Links and routes as arrays, for machines: which links a message from rank to rank crosses.

Owns capacities, latencies and routes. Knows no topology file, no schedule, no byte size. A fabric
is `copies` of one scale-up Domain joined by leaves and spines, so its routes come from one
domain's table however many ranks there are.

Link numbers: domain a's own links first (a * domain.nlinks + t), then every NIC's cable up, every
NIC's cable down, every leaf's way up, every leaf's way down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..schedule import I32

__all__ = ["F64", "Domain", "Fabric", "Routes", "Table", "expand"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def expand(ptr: I64, keys: npt.NDArray[np.integer]) -> tuple[I64, I64]:
    """Return (row, entry): for each key, in order, the entries ptr[key]..ptr[key+1]-1."""
    first = ptr[keys]
    lengths = ptr[np.asarray(keys) + 1] - first
    row = np.repeat(np.arange(len(keys)), lengths)
    ends = np.cumsum(lengths)
    entry = np.arange(len(row)) - np.repeat(ends - lengths - first, lengths)
    return row, entry


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Lists of (link, share) by key, packed: the entries of key k are ptr[k]..ptr[k+1]-1."""

    ptr: I64
    link: I32
    share: F64

    @staticmethod
    def of(
        nkeys: int, entries: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]]
    ) -> Table:
        """Return the packed form of (key, link, share) columns, in order within each key."""
        empty: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]] = [((), (), ())]
        columns = (np.concatenate([np.ravel(c) for c in cs]) for cs in zip(*(entries or empty)))
        key, link, share = columns
        order = np.argsort(key, kind="stable")
        ptr = np.zeros(nkeys + 1, dtype=np.int64)
        np.cumsum(np.bincount(key.astype(np.int64), minlength=nkeys), out=ptr[1:])
        return Table(ptr, link[order].astype(np.int32), share[order].astype(np.float64))

    def entries(self, key: int) -> list[tuple[int, float]]:
        """Return the (link, share) entries of one key."""
        at = slice(self.ptr[key], self.ptr[key + 1])
        return list(zip(self.link[at].tolist(), self.share[at].tolist()))


@dataclass(frozen=True, eq=False, slots=True)
class Domain:
    """One scale-up domain of m accelerators and q NICs; tables are keyed by pair (i * m + j).

    bandwidth, raw: B/s of each of its links. names, media: one text a link. tail, head:
    the accelerator a link leaves and enters, -1 where that is none. routes: links between
    two accelerators. latency: float64[3, m*m] s under LL, LL128, Simple. message: float64[m*m] s
    a sender spends per message. up, down: accelerator to NIC (i * q + nic) and back. pairs: NICs
    that carry i to j in another domain, packed as (source NIC * q + destination NIC, share).
    cross_latency: float64[3, m*m] s without switches. port: B/s of each NIC's cable.
    """

    ngpus: int
    nnics: int
    bandwidth: F64
    raw: F64
    names: tuple[str, ...]
    media: tuple[str, ...]
    tail: I32
    head: I32
    routes: Table
    latency: F64
    message: F64
    up: Table
    down: Table
    pairs: Table
    cross_latency: F64
    cross_message: F64
    port: F64
    port_raw: F64

    @property
    def nlinks(self) -> int:
        """Directed links inside the domain."""
        return len(self.bandwidth)


@dataclass(frozen=True, eq=False, slots=True)
class Routes:
    """What each transfer crosses: entry e of transfer row[e] puts share[e] of it on link[e]."""

    row: I64
    link: I64
    share: F64


@dataclass(frozen=True, eq=False)
class Fabric:
    """Ranks placed on accelerators of `copies` domains.

    place: int32[nranks], the accelerator of each rank. leaf: int32[copies * q], the leaf of each
    NIC. leaf_bandwidth: B/s of each leaf's uplinks, either way. hop: s per switch. launch: s per
    call. memory: B/s of one accelerator's memory (read + write).
    """

    name: str
    domain: Domain
    copies: int
    place: I32
    leaf: I32
    leaf_bandwidth: F64
    hop: float
    launch: float
    memory: float

    @property
    def nranks(self) -> int:
        """Ranks placed on this fabric."""
        return len(self.place)

    @cached_property
    def node(self) -> I32:
        """The domain each rank is in: int32[nranks]."""
        return np.asarray(self.place // self.domain.ngpus, dtype=np.int32)

    @cached_property
    def local(self) -> I32:
        """The accelerator inside its domain each rank is: int32[nranks]."""
        return np.asarray(self.place % self.domain.ngpus, dtype=np.int32)

    @cached_property
    def _offsets(self) -> tuple[int, int, int, int]:
        """First link number of: cables up, cables down, leaves up, leaves down."""
        up = self.copies * self.domain.nlinks
        down = up + len(self.leaf)
        leaf_up = down + len(self.leaf)
        return up, down, leaf_up, leaf_up + len(self.leaf_bandwidth)

    @cached_property
    def bandwidth(self) -> F64:
        """Usable B/s of every link: float64[nlinks]."""
        ports = np.tile(self.domain.port, self.copies if len(self.leaf) else 0)
        return np.concatenate(
            [
                np.tile(self.domain.bandwidth, self.copies),
                ports,
                ports,
                self.leaf_bandwidth,
                self.leaf_bandwidth,
            ]
        )

    @property
    def nlinks(self) -> int:
        """Directed links of the whole fabric."""
        return self._offsets[3] + len(self.leaf_bandwidth)

    def link_name(self, link: int) -> str:
        """Return what link number `link` joins, for people: ``"node3: gpu0 -> gpu1"``."""
        up, down, leaf_up, leaf_down = self._offsets
        if link < up:
            node, own = divmod(int(link), self.domain.nlinks)
            return (f"node{node}: " if self.copies > 1 else "") + self.domain.names[own]
        if link < leaf_up:
            node, nic = divmod(int(link - (up if link < down else down)), self.domain.nnics)
            ends = (f"nic{nic}", f"leaf{self.leaf[node * self.domain.nnics + nic]}")
            return f"node{node}: " + " -> ".join(ends if link < down else ends[::-1])
        leaf = int(link - (leaf_up if link < leaf_down else leaf_down))
        return f"leaf{leaf} -> spine" if link < leaf_down else f"spine -> leaf{leaf}"

    def _pair(self, src: I32, dst: I32) -> I64:
        return self.local[src].astype(np.int64) * self.domain.ngpus + self.local[dst]

    def routes(self, src: I32, dst: I32) -> Routes:
        """Return the links each transfer src[i] -> dst[i] crosses; none where src == dst."""
        pair, node_src, node_dst = self._pair(src, dst), self.node[src], self.node[dst]
        same = node_src == node_dst
        inside = np.flatnonzero(same & (src != dst))
        parts = [self._inside(inside, pair[inside], node_src[inside])]
        across = np.flatnonzero(~same)
        if len(across):
            parts += self._across(
                across,
                pair[across],
                node_src[across],
                node_dst[across],
                self.local[src[across]],
                self.local[dst[across]],
            )
        return Routes(*(np.concatenate(c) for c in zip(*parts)))

    def _inside(self, rows: I64, pair: I64, node: I32) -> tuple[I64, I64, F64]:
        table = self.domain.routes
        at, entry = expand(table.ptr, pair)
        link = table.link[entry] + node[at].astype(np.int64) * self.domain.nlinks
        return rows[at], link, table.share[entry]

    def _across(
        self, rows: I64, pair: I64, node_src: I32, node_dst: I32, local_src: I32, local_dst: I32
    ) -> list[tuple[I64, I64, F64]]:
        domain, q = self.domain, self.domain.nnics
        cable_up, cable_down, leaf_up, leaf_down = self._offsets
        at, entry = expand(domain.pairs.ptr, pair)
        nic_src, nic_dst = np.divmod(domain.pairs.link[entry].astype(np.int64), q)
        share, row = domain.pairs.share[entry], rows[at]
        port_src = node_src[at].astype(np.int64) * q + nic_src
        port_dst = node_dst[at].astype(np.int64) * q + nic_dst
        parts = [(row, cable_up + port_src, share), (row, cable_down + port_dst, share)]
        far = np.flatnonzero(self.leaf[port_src] != self.leaf[port_dst])
        parts.append((row[far], leaf_up + self.leaf[port_src[far]].astype(np.int64), share[far]))
        parts.append((row[far], leaf_down + self.leaf[port_dst[far]].astype(np.int64), share[far]))
        ends = (
            (domain.up, local_src[at] * q + nic_src, node_src[at]),
            (domain.down, local_dst[at] * q + nic_dst, node_dst[at]),
        )
        for table, key, node in ends:
            of, hop = expand(table.ptr, key)
            link = table.link[hop] + node[of].astype(np.int64) * domain.nlinks
            parts.append((row[of], link, share[of] * table.share[hop]))
        return parts

    def latency(self, src: I32, dst: I32) -> F64:
        """Return the seconds one hop takes under LL, LL128 and Simple: float64[3, len(src)]."""
        pair, node_src, node_dst = self._pair(src, dst), self.node[src], self.node[dst]
        if self.copies == 1:
            return self.domain.latency[:, pair]
        first_src, first_dst = self._first_leaf(pair, node_src, node_dst)
        switches = np.where(first_src == first_dst, 1, 3) * self.hop
        across = self.domain.cross_latency[:, pair] + switches
        return np.where(node_src == node_dst, self.domain.latency[:, pair], across)

    def _first_leaf(self, pair: I64, node_src: I32, node_dst: I32) -> tuple[I32, I32]:
        q, table = self.domain.nnics, self.domain.pairs
        if not q or not len(table.link):
            return node_src, node_dst
        entry = np.minimum(table.ptr[pair], len(table.link) - 1)
        nic_src, nic_dst = np.divmod(table.link[entry], q)
        return self.leaf[node_src * q + nic_src], self.leaf[node_dst * q + nic_dst]

    def message(self, src: I32, dst: I32) -> F64:
        """Return the seconds a sender spends on each message: float64[len(src)]."""
        pair = self._pair(src, dst)
        inside = self.domain.message[pair]
        if self.copies == 1:
            return inside
        same = self.node[src] == self.node[dst]
        return np.where(same, inside, self.domain.cross_message[pair])
