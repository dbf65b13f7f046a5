"""Ranks on nodes, nodes on a network: which links a message from rank to rank crosses.

Owns link numbers and how a route is put together from its pieces: inside a node, node to NIC, NIC
to NIC. Knows no topology file, no schedule, no byte size.

Link numbers: node 0's own links first, then node 1's, and so on; then every NIC's cable to its
switch, every NIC's cable back, and the links between switches.

    rank 3 -- gpu3 -> pci1 -> nic1 => leaf1 => spines => leaf9 => nic9 -> pci9 -> gpu9 -- rank 77
              own links of node 0     cables and wiring           own links of node 9
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..schedule import I32
from .crossing import Flows, flows_of, hops_between
from .domain import Domain
from .pairs import sums_pairs
from .pausing import Pausing, pausing_of
from .tables import F64, I64, Patterns, Routes, expand, joined, patterns
from .wiring import Wiring

__all__ = ["Fabric"]
Columns = tuple[I64, I64, F64]


def _nothing(_: Fabric, __: float, ___: I64) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class Fabric:
    """Ranks placed on accelerators of nodes of one or several kinds.

    domains: the kinds; kind: int32[nodes], the kind of each node. place: int32[nranks], the
    accelerator of each rank, counted over all nodes. wiring: the links between the NICs' switches,
    None for one node. staged: peers' NICs are used so that a message leaves on the rail it arrives
    on (PXN). hop: s per switch. launch: s per call. memory: B/s of one accelerator's memory (read
    + write); reduction: B/s of reduced output. copy: B/s a kernel copies within its own memory.
    per_channel: B/s one channel of a kernel moves under LL, LL128 and Simple, 0 where that is no
    limit. first_use: this, bytes of a new buffer, the ranks that rank 0 exchanges data with, to
    the s its registration adds to the first call. arch: a gfx name or an sm number, "" if unknown.
    """

    name: str
    domains: tuple[Domain, ...]
    kind: I32
    place: I32
    wiring: Wiring | None
    staged: bool
    hop: float
    launch: float
    memory: float
    reduction: float
    copy: float
    per_channel: tuple[float, float, float]
    first_use: Callable[[Fabric, float, I64], float] = _nothing
    arch: str = ""

    @property
    def nranks(self) -> int:
        """Ranks placed on this fabric."""
        return len(self.place)

    @property
    def copies(self) -> int:
        """Nodes of this fabric."""
        return len(self.kind)

    @property
    def domain(self) -> Domain:
        """The kind of the first node; the only one where all nodes are alike."""
        return self.domains[int(self.kind[0])]

    @property
    def together(self) -> bool:
        """Whether routes depend on what else is sent: then hand over all of a step at once."""
        return self.wiring is not None and self.wiring.together

    def _starts(self, counts: list[int]) -> I64:
        """Return where each node's numbers begin, and the total."""
        return np.concatenate([[0], np.cumsum(np.array(counts, dtype=np.int64)[self.kind])])

    @cached_property
    def first_gpu(self) -> I64:
        """The first accelerator of each node, and the total: int64[nodes + 1]."""
        return self._starts([d.ngpus for d in self.domains])

    @cached_property
    def first_link(self) -> I64:
        """The first own link of each node, and the total: int64[nodes + 1]."""
        return self._starts([d.nlinks for d in self.domains])

    @cached_property
    def first_port(self) -> I64:
        """The first NIC of each node, and the total: int64[nodes + 1]."""
        return self._starts([d.nnics for d in self.domains])

    @cached_property
    def node(self) -> I32:
        """The node each rank is on: int32[nranks]."""
        found = np.searchsorted(self.first_gpu, self.place, side="right") - 1
        return np.asarray(found, dtype=np.int32)

    @cached_property
    def local(self) -> I32:
        """The accelerator inside its node each rank is: int32[nranks]."""
        return np.asarray(self.place - self.first_gpu[self.node], dtype=np.int32)

    @cached_property
    def classes(self) -> tuple[list[I32], I64]:
        """The ranks of each node that has some, and the class of every node: int64[nodes].

        Nodes are of a class when they are of one kind and hold the same accelerators: what leaves
        one leaves each. Nodes without ranks have class -1.
        """
        order = np.argsort(self.node, kind="stable").astype(np.int32)
        held, starts = np.unique(self.node[order], return_index=True)
        nodes = np.split(order, starts[1:])
        known: dict[tuple[int, bytes], int] = {}
        classes = np.full(self.copies, -1, dtype=np.int64)
        for node, ranks in zip(held.tolist(), nodes):
            key = int(self.kind[node]), np.sort(self.local[ranks]).tobytes()
            classes[node] = known.setdefault(key, len(known))
        return nodes, classes

    @property
    def capacity(self) -> int:
        """Accelerators of all nodes."""
        return int(self.first_gpu[-1])

    @property
    def ports(self) -> int:
        """NICs of all nodes, where they are cabled."""
        return int(self.first_port[-1]) if self.wiring is not None else 0

    @property
    def cables(self) -> int:
        """The first link that is a NIC's cable: cables up, then down, then the wiring."""
        return int(self.first_link[-1])

    @cached_property
    def bandwidth(self) -> F64:
        """Usable B/s of every link: float64[nlinks]."""
        own = self._by_node([d.bandwidth for d in self.domains])
        if self.wiring is None:
            return own
        cables = self._by_node([d.port for d in self.domains])
        return np.concatenate([own, cables, cables, self.wiring.bandwidth])

    @cached_property
    def pace(self) -> F64:
        """The s a byte of payload keeps each link busy, by protocol: float64[3, nlinks]."""
        own = self._by_node([d.wire.T for d in self.domains])
        if self.wiring is not None:
            cables = self._by_node([d.port_wire.T for d in self.domains])
            # What the network carries has been framed by a NIC.
            rest = np.tile(cables.min(axis=0), (len(self.wiring.bandwidth), 1))
            own = np.concatenate([own, cables, cables, rest])
        return np.ascontiguousarray(own.T / self.bandwidth)

    @cached_property
    def spread(self) -> F64:
        """The part of each link that ranks serving many peers at once reach: float64[nlinks]."""
        own = self._by_node([d.spread for d in self.domains])
        if self.wiring is None:
            return own
        cables = self._by_node([d.port_spread for d in self.domains])
        return np.concatenate([own, cables, cables, np.ones(len(self.wiring.bandwidth))])

    @cached_property
    def pausing(self) -> Pausing | None:
        """Which links pause what feeds them, and where on routes links are; None: none does."""
        return pausing_of(self)

    def least_spread(self, *, far: bool) -> float:
        """Return the least of `spread`, of links that join accelerators or of NICs."""
        kinds = [d.port_spread if far else d.spread[d.joins] for d in self.domains]
        return min(float(s.min(initial=1.0)) for s in kinds)

    def window(self, *, far: bool) -> float:
        """Return the B that must have arrived before a receiver hands them on."""
        return max(d.port_window if far else d.window for d in self.domains)

    def _by_node(self, arrays: list[F64]) -> F64:
        """Return arrays[kind] of every node, one after the other."""
        if len(arrays) == 1:
            return np.tile(arrays[0], (self.copies,) + (1,) * (arrays[0].ndim - 1))
        return np.concatenate([arrays[k] for k in self.kind.tolist()])

    @cached_property
    def leaving(self) -> npt.NDArray[np.bool_]:
        """Which links lead from an accelerator to a switch that multicasts: bool[nlinks]."""
        found = np.zeros(self.nlinks, dtype=bool)
        for node, kind in enumerate(self.kind.tolist()):
            found[self.first_link[node] + self.domains[kind].inside.leaving] = True
        return found

    @property
    def multicast(self) -> float:
        """The part of a port that transfers done by the switches get; 0: they only forward.

        0 too where no one level of switches joins a node: links alone add nothing up.
        """
        return min(d.multicast if len(d.inside.leaving) else 0.0 for d in self.domains)

    @cached_property
    def sums_pairs(self) -> bool:
        """Whether what all pairs of a group put on links is a sum, not a list of pairs."""
        return sums_pairs(self)

    @property
    def nlinks(self) -> int:
        """Directed links of the whole fabric."""
        return len(self.bandwidth)

    def link_name(self, link: int) -> str:
        """Return what link number `link` joins, for people: ``"node3: gpu0 -> gpu1"``."""
        link, cables, ports = int(link), self.cables, self.ports
        if link < cables:
            node = int(np.searchsorted(self.first_link, link, side="right")) - 1
            own = link - int(self.first_link[node])
            name = self.domains[int(self.kind[node])].names[own]
            return (f"node{node}: " if self.copies > 1 else "") + name
        assert self.wiring is not None  # only a wired fabric has further links
        if link < cables + 2 * ports:
            way, port = divmod(link - cables, ports)
            node = int(np.searchsorted(self.first_port, port, side="right")) - 1
            nic = self.domains[int(self.kind[node])].nic_names[port - int(self.first_port[node])]
            ends = nic, self.wiring.switch_name(port)
            return f"node{node}: " + " -> ".join(ends[::-1] if way else ends)
        return self.wiring.link_name(link - cables - 2 * ports)

    def _kinds(self, *nodes: I32) -> Iterator[tuple[tuple[Domain, ...], I64]]:
        """Yield (domain of each node, rows) for every combination of kinds that occurs."""
        if len(self.domains) == 1:
            yield self.domains * len(nodes), np.arange(len(nodes[0]))
            return
        number = np.zeros(len(nodes[0]), dtype=np.int64)
        for node in nodes:
            number = number * len(self.domains) + self.kind[node]
        for key in np.unique(number):
            which = np.unravel_index(int(key), (len(self.domains),) * len(nodes))
            yield tuple(self.domains[int(k)] for k in which), np.flatnonzero(number == key)

    def routes(self, src: I32, dst: I32, weight: F64 | None = None) -> Routes:
        """Return the links each transfer src[i] -> dst[i] crosses; none where src == dst.

        weight: float64[len(src)], how much each moves; adaptive routing looks at it.
        """
        if self.copies == 1:  # what most small calls are
            return self.domain.inside.routes(self.local[src], self.local[dst])
        near = self.node[src] == self.node[dst]
        parts = self._near(np.flatnonzero(near), src, dst)
        far = np.flatnonzero(~near)
        if len(far):
            parts += self._far(far, src, dst, weight)
        return joined(parts)

    def _near(self, rows: I64, src: I32, dst: I32) -> list[Columns]:
        """Return the routes of the transfers `rows`, which stay inside their nodes."""
        node, parts = self.node[src[rows]], []
        for (domain,), at in self._kinds(node):
            ranks = rows[at]
            found = domain.inside.routes(self.local[src[ranks]], self.local[dst[ranks]])
            link = found.link + self.first_link[node[at[found.row]]]
            parts.append((ranks[found.row], link, found.share))
        return parts

    def _far(self, rows: I64, src: I32, dst: I32, weight: F64 | None) -> list[Columns]:
        """Return the routes of the transfers `rows`, between nodes: out, over the network, in."""
        src, dst = src[rows], dst[rows]
        parts: list[Columns] = []
        ports: list[tuple[I64, I64, I64, F64]] = []
        for (source, target), at in self._kinds(self.node[src], self.node[dst]):
            i, j = self.local[src[at]], self.local[dst[at]]
            flows = flows_of(source, target, i, j, self.staged)
            own, here = self.first_link[self.node[src[at]]], self.first_link[self.node[dst[at]]]
            row = rows[at]
            for domain, end, first, leaving in ((source, i, own, True), (target, j, here, False)):
                links = self.nic_links(domain, end, flows, leaving=leaving)
                parts += [(row[r], link + first[r], share) for r, link, share in links]
            out = self.first_port[self.node[src[at]]][flows.row] + source.nic[flows.leaving]
            back = self.first_port[self.node[dst[at]]][flows.row] + target.nic[flows.entering]
            ports.append((row[flows.row], out, back, flows.share))
        row, out, back, share = (np.concatenate(c) for c in zip(*ports))
        heavy = share if weight is None else share * weight[row]
        return parts + self._network(row, out, back, share, heavy)

    def _network(self, row: I64, out: I64, into: I64, share: F64, heavy: F64) -> list[Columns]:
        """Return cables and wiring of flows from port to port."""
        if self.wiring is None:
            return []
        first, ports = self.cables, self.ports
        flow, link, part = self.wiring.routes(out, into, heavy)
        return [
            (row, first + out, share),
            (row, first + ports + into, share),
            (row[flow], first + 2 * ports + link, share[flow] * part),
        ]

    def nic_links(self, domain: Domain, i: I32, flows: Flows, *, leaving: bool) -> list[Columns]:
        """Return the own links from accelerators i to NICs, or back: (transfer, link, share)."""
        table, used = (domain.up, flows.leaving) if leaving else (domain.down, flows.entering)
        row, entry = expand(table.ptr, used)
        share = flows.share[row] * table.share[entry]
        parts = [(flows.row[row], table.link[entry].astype(np.int64), share)]
        if self.staged:
            ends = i[flows.row], domain.holder(used)
            relay = domain.inside.routes(*(ends if leaving else ends[::-1]))
            parts.append((flows.row[relay.row], relay.link, flows.share[relay.row] * relay.share))
        return parts

    def _every(self, near: str, far: str, shape: tuple[int, ...], src: I32, dst: I32) -> F64:
        """Return a quantity of each transfer, by the methods for either kind of transfer."""
        if self.copies == 1:
            own: F64 = getattr(self.domain.inside, near)(self.local[src], self.local[dst])
            return own
        inside = self.node[src] == self.node[dst]
        if len(src) and not inside.any():
            away: F64 = getattr(self, far)(src, dst)
            return away
        found = np.zeros((*shape, len(src)))
        rows = np.flatnonzero(inside)
        for (domain,), at in self._kinds(self.node[src[rows]]):
            ranks = rows[at]
            pairs = patterns(self.local[src[ranks]], self.local[dst[ranks]], domain.ngpus)
            found[..., ranks] = getattr(domain.inside, near)(pairs.i, pairs.j)[..., pairs.of]
        rows = np.flatnonzero(~inside)
        if len(rows):
            found[..., rows] = getattr(self, far)(src[rows], dst[rows])
        return found

    def latency(self, src: I32, dst: I32) -> F64:
        """Return the seconds one hop takes under LL, LL128 and Simple: float64[3, len(src)]."""
        return self._every("latency", "_far_latency", (3,), src, dst)

    def message(self, src: I32, dst: I32) -> F64:
        """Return the seconds a sender spends on each message: float64[len(src)]."""
        return self._every("message", "_far_message", (), src, dst)

    def coherent(self, src: I32, dst: I32) -> npt.NDArray[np.bool_]:
        """Return where a transfer crosses scale-up links only: a peer's load or store reaches."""
        return self._every("coherent", "_far_coherent", (), src, dst) > 0

    def _far_coherent(self, src: I32, _: I32) -> F64:
        return np.zeros(len(src))

    def _ends(self, src: I32, dst: I32) -> Iterator[tuple[Domain, Domain, I64, Patterns, Flows]]:
        """Yield (source, target, rows, their patterns, the flows of each pattern)."""
        for (source, target), at in self._kinds(self.node[src], self.node[dst]):
            width = max(source.ngpus, target.ngpus)
            pairs = patterns(self.local[src[at]], self.local[dst[at]], width)
            flows = flows_of(source, target, *pairs.ends, self.staged)
            if len(flows.row):
                yield source, target, at, pairs, flows

    def _far_latency(self, src: I32, dst: I32) -> F64:
        found = np.zeros((3, len(src)))
        for source, target, at, pairs, flows in self._ends(src, dst):
            hops = hops_between(source, target, pairs.ends, flows, self.staged)[:, pairs.of]
            if self.wiring is not None:
                leaving, entering = flows.leaving[flows.first], flows.entering[flows.first]
                out, into = (d.nic[a].astype(np.int64)
                             for d, a in ((source, leaving), (target, entering)))  # fmt: skip
                out = out[pairs.of] + self.first_port[self.node[src[at]]]
                into = into[pairs.of] + self.first_port[self.node[dst[at]]]
                hops += self.wiring.switches(out, into) * self.hop
            if len(at) == len(src):
                return hops
            found[:, at] = hops
        return found

    def _far_message(self, src: I32, dst: I32) -> F64:
        found = np.zeros(len(src))
        for source, _, at, pairs, flows in self._ends(src, dst):
            found[at] = source.port_message[source.nic[flows.leaving[flows.first]]][pairs.of]
        return found

    def reaches(self, src: I32, dst: I32) -> npt.NDArray[np.bool_]:
        """Return where a route exists: bool[len(src)]."""
        return self._every("reaches", "_far_reaches", (), src, dst) > 0

    def _far_reaches(self, src: I32, dst: I32) -> F64:
        found = np.zeros(len(src))
        for (source, target), at in self._kinds(self.node[src], self.node[dst]):
            flows = flows_of(source, target, self.local[src[at]], self.local[dst[at]], self.staged)
            found[at] = np.bincount(flows.row, minlength=len(at)) > 0
        return found
