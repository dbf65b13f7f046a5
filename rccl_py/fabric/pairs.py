"""What groups put on links when every position sends to every other, without a row for each pair.

Owns the sums over all pairs of a group that lie in different nodes. n ranks have n^2 pairs; here a
rank is looked at once for every local number its group holds, so n * g times in nodes of g::

    one group of 128 nodes of 8    1,048,576 pairs    8,192 looks

How many members with local number j lie in other nodes, under the same leaf, in the same pod, is
counted by group; a message's own links follow from its pair of local numbers, as in
rccl_py.fabric.alike. Knows no schedule and no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..schedule import I32
from .alike import Amounts
from .clos import Clos
from .crossing import Flows, flows_of, hops_between
from .domain import Domain
from .tables import F64, I64, Patterns, expand, patterns

if TYPE_CHECKING:
    from .fabric import Fabric

__all__ = ["Crossing", "crossing_pairs", "sums_pairs"]

_CELLS = 1 << 20  # of a table of members by group, local number, NIC and leaf
_LOOKS = 1 << 24  # at ranks; more are left to whoever lists pairs


@dataclass(frozen=True, eq=False, slots=True)
class Crossing:
    """What all messages between nodes ask for. link: float64[nlinks], slots on each.

    latency: float64[3] s, the longest route by protocol. message: float64[members] s that each
    spends on its messages; far: int64[members], how many it sends, and gets.
    """

    link: F64
    latency: F64
    message: F64
    far: I64


@dataclass(frozen=True, eq=False, slots=True)
class _Looks:
    """Members e of groups, and the local numbers their groups hold: one row for every two of both.

    member, held: int64[rows]: e, and which (group, local number). i, j: the member's own local
    number and the other. amount: int64[rows], members with local number j in other nodes; inside:
    1 where one lies in the member's own node. node, group, local: int64[members]. of: int64
    [members], the (group, local number) of each. count: int64[held], members of each.
    """

    node: I64
    local: I64
    of: I64
    count: I64
    member: I64
    held: I64
    i: I64
    j: I64
    inside: I64
    amount: I64


def _looks(fabric: Fabric, group: I32) -> _Looks | None:
    groups, m = group.shape
    ranks, width = group.ravel(), fabric.domains[0].ngpus
    node, local = fabric.node[ranks].astype(np.int64), fabric.local[ranks].astype(np.int64)
    number = np.repeat(np.arange(groups), m)
    held, of, count = np.unique(number * width + local, return_inverse=True, return_counts=True)
    ptr = np.searchsorted(held // width, np.arange(groups + 1))
    if int((np.diff(ptr) * m).sum()) > _LOOKS:
        return None
    member, entry = expand(ptr, number)
    i, j = local[member], held[entry] % width
    whose = np.full(fabric.copies * width, -1, dtype=np.int64)
    whose[node * width + local] = number
    inside = (whose[node[member] * width + j] == number[member]).astype(np.int64)
    amount = count[entry] - inside
    return _Looks(node, local, of, count, member, entry, i, j, inside, amount)


def crossing_pairs(fabric: Fabric, group: I32, slots: I64) -> Crossing | None:
    """Return what every position's messages to all others in other nodes ask for.

    group: int32[G, m]. slots: int64[G], of each message.

    None where no sum over pairs is known: a rank in two groups, unlike nodes, links that are not
    bundled.
    """
    wiring = fabric.wiring
    if not sums_pairs(fabric) or (np.bincount(group.ravel()) > 1).any():
        return None
    looks = _looks(fabric, group)
    if looks is None:
        return None
    under = _Under(fabric, wiring, looks) if isinstance(wiring, Clos) else None
    weight = (np.repeat(slots, group.shape[1])[looks.member] * looks.amount).astype(np.float64)
    link = np.zeros(fabric.nlinks)
    out = _Way(fabric, looks, leaving=True)
    out.put(link, weight, under)
    _Way(fabric, looks, leaving=False).put(link, weight, under)
    hops, each = out.latency(under), out.message()
    members = len(looks.node)
    return Crossing(
        link,
        hops,
        np.bincount(looks.member, each * looks.amount, members).astype(np.float64),
        np.bincount(looks.member, looks.amount, members).astype(np.int64),
    )


def sums_pairs(fabric: Fabric) -> bool:
    """Return whether all pairs of a group can be summed: nodes alike, links side by side one."""
    wiring = fabric.wiring
    if fabric.together or len(fabric.domains) > 1 or fabric.copies == 1:
        return False
    return wiring is None or (isinstance(wiring, Clos) and wiring.bundled and wiring.whole)


class _Counts:
    """How often each number below a limit occurs: a table where that is small, else in order."""

    def __init__(self, numbers: I64, below: int) -> None:
        self.known: I64 | None = None
        if below <= _CELLS:
            self.count = np.bincount(numbers.ravel(), minlength=below)
        else:
            self.known, self.count = np.unique(numbers, return_counts=True)

    def of(self, numbers: I64) -> I64:
        """Return how often each of these occurs."""
        if self.known is None:
            return self.count[numbers]
        at = np.minimum(np.searchsorted(self.known, numbers), len(self.known) - 1)
        return np.where(self.known[at] == numbers, self.count[at], 0)


class _Under:
    """Members by (group, local number), NIC and the leaf (and pod) that NIC hangs on."""

    def __init__(self, fabric: Fabric, wiring: Clos, looks: _Looks) -> None:
        self.wiring, self.looks = wiring, looks
        nics = fabric.domains[0].nnics
        self.leaf = wiring.leaf.reshape(-1, nics).astype(np.int64)  # [node, NIC]
        self.pod = wiring.pod[self.leaf].astype(np.int64)
        each = looks.of[:, None] * nics + np.arange(nics)
        self.by_leaf, self.by_pod = (
            _Counts(each * many + under[looks.node], len(looks.count) * nics * many)
            for under, many in ((self.leaf, wiring.nleaves), (self.pod, wiring.npods))
        )

    def shared(self, row: I64, own: I64, other: I64) -> tuple[I64, I64, I64, I64]:
        """Return (leaf, pod, members under the same leaf, members in the same pod) of looks.

        own: the NIC used at the member; other: that at the members it deals with.
        """
        looks, found = self.looks, []
        node = looks.node[looks.member[row]]
        each = looks.held[row] * self.leaf.shape[1] + other
        for under, many, counts in ((self.leaf, self.wiring.nleaves, self.by_leaf),
                                    (self.pod, self.wiring.npods, self.by_pod)):  # fmt: skip
            here = under[node, own]
            self_too = looks.inside[row] * (under[node, other] == here)
            found.append((here, counts.of(each * many + here) - self_too))
        (leaf, under_leaf), (pod, in_pod) = found
        return leaf, pod, under_leaf, in_pod


class _Way:
    """One direction of all looks: members that send to the others, or that get from them."""

    def __init__(self, fabric: Fabric, looks: _Looks, *, leaving: bool) -> None:
        self.fabric, self.looks, self.is_out = fabric, looks, leaving
        self.domain: Domain = fabric.domains[0]
        ends = (looks.i, looks.j) if leaving else (looks.j, looks.i)
        self.kinds: Patterns = patterns(*ends, self.domain.ngpus)
        self.flows: Flows = flows_of(self.domain, self.domain, *self.kinds.ends, fabric.staged)

    def put(self, link: F64, weight: F64, under: _Under | None) -> None:
        """Add what the members' own links, their cables and the switches above carry."""
        fabric, flows, kinds = self.fabric, self.flows, self.kinds
        node = self.looks.node[self.looks.member].astype(np.int32)
        amounts = Amounts(fabric, node, kinds.of, len(kinds), weight)
        end = kinds.ends[0 if self.is_out else 1]
        for row, own, share in fabric.nic_links(self.domain, end, flows, leaving=self.is_out):
            amounts.put(link, fabric.first_link, row, own, share)
        if fabric.wiring is None:
            return
        nic = self.domain.nic[flows.leaving if self.is_out else flows.entering]
        first = fabric.first_port + fabric.cables + (0 if self.is_out else fabric.ports)
        amounts.put(link, first, flows.row, nic, flows.share)
        if under is not None:
            self._above(link[fabric.cables + 2 * fabric.ports :], weight, under)

    def _above(self, link: F64, weight: F64, under: _Under) -> None:
        flows, count = self.flows, np.bincount(self.flows.row, minlength=len(self.kinds))
        row, entry = expand(np.concatenate([[0], np.cumsum(count)]), self.kinds.of)
        nics = self.domain.nic[flows.leaving][entry], self.domain.nic[flows.entering][entry]
        own, other = nics if self.is_out else nics[::-1]
        leaf, pod, under_leaf, in_pod = under.shared(
            row, own.astype(np.int64), other.astype(np.int64)
        )
        amount = self.looks.amount[row]
        each = flows.share[entry] * weight[row] / np.maximum(amount, 1)
        far = each * (amount - under_leaf), each * (amount - in_pod)
        link += under.wiring.above(leaf, pod, *far, up=self.is_out)

    def message(self) -> F64:
        """Return the s a member spends on a message, by look: float64[rows]."""
        nic = self.domain.nic[self.flows.leaving[self.flows.first]]
        each: F64 = self.domain.port_message[nic]
        return each[self.kinds.of]

    def latency(self, under: _Under | None) -> F64:
        """Return the s of the longest route: float64[3]."""
        some = np.flatnonzero(self.looks.amount)
        if not len(some):
            return np.zeros(3)
        of = self.kinds.of[some]
        hops = hops_between(
            self.domain, self.domain, self.kinds.ends, self.flows, self.fabric.staged
        )[:, of]
        if under is not None:
            first = self.flows.first[of]
            own, other = self.flows.leaving[first], self.flows.entering[first]
            nics = (self.domain.nic[a].astype(np.int64) for a in (own, other))
            _, _, under_leaf, in_pod = under.shared(some, *nics)
            amount = self.looks.amount[some]
            switches = np.where(amount > in_pod, 5, np.where(in_pod > under_leaf, 3, 1))
            hops = hops + switches * self.fabric.hop
        return np.asarray(hops.max(axis=1))
