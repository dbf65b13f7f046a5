"""What groups put on the links inside nodes when every position sends to every other.

Owns the sums over pairs of one node where all its accelerators are alike: on switch planes that are
all the same, and on a whole torus, where what one sends is what each does, moved. n ranks of one
node have n^2 pairs; here each is looked at once. Knows no schedule, no protocol and no NIC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..schedule import I32
from .alike import Amounts
from .inside import Planes, Wired
from .tables import F64, I64
from .torus import Torus

if TYPE_CHECKING:
    from .domain import Domain
    from .fabric import Fabric

__all__ = ["Peers", "peers_inside", "plain_inside"]


@dataclass(frozen=True, eq=False, slots=True)
class Peers:
    """What all messages inside nodes ask for. link: float64[nlinks], slots on each.

    latency: float64[3] s, the longest route by protocol. message: float64[members] s that each
    spends on its messages; count: int64[members], how many it sends, and gets. coherent: whether
    peers load and store.
    """

    link: F64
    latency: F64
    message: F64
    count: I64
    coherent: bool


def peers_inside(fabric: Fabric, group: I32, slots: I64) -> Peers | None:
    """Return what every position's messages to all others of its node ask for.

    group: int32[G, m]. slots: int64[G], of each message. None where that takes a look at each pair.
    """
    members = group.ravel()
    if (np.bincount(fabric.place) > 1).any():
        return None
    kinds = np.unique(fabric.kind[np.unique(fabric.node[members])])
    domains = [fabric.domains[int(k)] for k in kinds]
    if fabric.copies == 1 and isinstance(domains[0].inside, Wired):
        return _around(fabric, domains[0], domains[0].inside, group, slots)
    sorts = [_plain(domain) for domain in domains]
    if any(sort is None for sort in sorts):
        return None
    number = np.repeat(np.arange(len(group)), group.shape[1]) * fabric.copies
    _, of, count = np.unique(number + fabric.node[members], return_inverse=True, return_counts=True)
    others = count[of] - 1
    heavy = (np.repeat(slots, group.shape[1]) * others).astype(np.float64)
    link, message, latency = np.zeros(fabric.nlinks), np.zeros(len(members)), np.zeros(3)
    for kind, domain, sort in zip(kinds, domains, sorts):
        mine = np.flatnonzero(fabric.kind[fabric.node[members]] == kind)
        if sort is None or not others[mine].any():
            continue
        ranks, inside = members[mine], domain.inside
        assert isinstance(inside, Planes)
        local = fabric.local[ranks].astype(np.int64)
        amounts = Amounts(fabric, fabric.node[ranks], local, domain.ngpus, heavy[mine])
        for ways in (inside.up, inside.down):
            each = np.repeat(np.arange(domain.ngpus), ways.shape[1])
            share = np.full(len(each), 1.0 / ways.shape[1])
            amounts.put(link, fabric.first_link, each, ways.ravel(), share)
        latency = np.maximum(latency, sort[0])
        message[mine] = others[mine] * sort[1]
    return Peers(link, latency, message, others, coherent=True)


def plain_inside(fabric: Fabric) -> bool:
    """Return whether all accelerators of each node are alike, on switch planes that are all alike.

    Then what a phase inside nodes asks for follows from what each rank sends and gets.
    """
    kinds = np.unique(fabric.kind[np.unique(fabric.node)])
    alone = bool((np.bincount(fabric.place) < 2).all())
    return alone and all(_plain(fabric.domains[int(k)]) is not None for k in kinds)


def _plain(domain: Domain) -> tuple[F64, float] | None:
    """Return the latency of any two, float64[3] s, and the s of a message: planes all alike."""
    inside = domain.inside
    if not isinstance(inside, Planes) or not inside.even:
        return None
    up, down = (inside.link_latency[:, ways] for ways in (inside.up, inside.down))
    spent = inside.link_message[inside.up]
    for column in (*up, *down, spent):
        if (column != column.flat[0]).any():
            return None
    return up[:, 0, 0] + down[:, 0, 0], float(spent.flat[0])


def _around(fabric: Fabric, domain: Domain, inside: Wired, group: I32, slots: I64) -> Peers | None:
    """Return the same on a torus, all of whose accelerators are one group."""
    graph, n = inside.graph, domain.ngpus
    if len(group) != 1 or not isinstance(graph, Torus) or not graph.turns:
        return None
    if not np.array_equal(np.sort(fabric.local[group[0]]), np.arange(n)):
        return None
    link = np.zeros(fabric.nlinks)
    link[inside.link] = graph.even_loads() * float(slots[0])
    one, others = np.zeros(n - 1, dtype=np.int64), np.arange(1, n)
    message = float(inside.message(one, others).sum())
    return Peers(
        link,
        inside.latency(one, others).max(axis=1),
        np.full(n, message),
        np.full(n, n - 1),
        inside.loads,
    )
