"""By which doors unequal parts leave ranks and nodes, and how long those must be open at least.

Owns the units and doors of a fabric and the bound of an exchange by its ports: a rank's own links,
a node's NICs. Knows no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...algorithms.balanced import Doors
from ...fabric import F64, I64, Fabric
from ...units import format_bandwidth

__all__ = ["Port", "busiest_port", "doors_of"]


def doors_of(fabric: Fabric) -> Doors:
    """Return the nodes of `fabric` as units, with every rank's part of its NICs as its door.

    One node, or accelerators without NICs: every rank is a unit of its own.
    """
    n = fabric.nranks
    unit = np.unique(fabric.node, return_inverse=True)[1].astype(np.int64)
    if fabric.wiring is None or not unit.any():
        return Doors(np.arange(n), np.ones(n), np.ones(n))
    width = _nic_shares(fabric)
    shut = np.bincount(unit, weights=width) == 0
    width = np.where(shut[unit], 1.0, width)
    return Doors(unit, width, width, _meshed(fabric))


def _meshed(fabric: Fabric) -> bool:
    """Return whether rank 0's routes to the others of its node share no link."""
    near = np.flatnonzero(fabric.node == fabric.node[0])[1:].astype(np.int32)
    routes = fabric.routes(np.zeros_like(near), near)
    return len(near) > 1 and len(np.unique(routes.link)) == len(routes.link)


def _nic_shares(fabric: Fabric) -> F64:
    """Return the B/s of NICs each rank has for itself: a NIC is shared out to all that use it."""
    found = np.zeros(fabric.nranks)
    for node in np.unique(fabric.node).tolist():
        domain = fabric.domains[int(fabric.kind[node])]
        ranks = np.flatnonzero(fabric.node == node)
        local = fabric.local[ranks]
        uses = [domain.nics_of(i) for i in local.tolist()]
        users = np.bincount([nic for nics in uses for nic in nics], minlength=domain.nnics)
        for rank, nics in zip(ranks.tolist(), uses):
            found[rank] = sum(float(domain.port[nic]) / users[nic] for nic in nics)
    return found


@dataclass(frozen=True, slots=True)
class Port:
    """What must pass a set of links, and how long that takes at least. name: for people."""

    seconds: float
    name: str


def busiest_port(fabric: Fabric, counts: I64) -> Port:
    """Return the port that needs longest for `counts` (int64[n, n] bytes), under any algorithm.

    All that a rank has for others leaves by links that begin at its accelerator; all that a node
    has for others, by its NICs. The same for what arrives.
    """
    ports = [*_ranks(fabric, counts), *_nodes(fabric, counts)]
    return max(ports, key=lambda p: p.seconds, default=Port(0.0, "nothing to send"))


def _rate(fabric: Fabric) -> F64:
    """Return the most payload each link carries under any protocol: float64[nlinks] B/s."""
    return np.asarray(1.0 / fabric.pace.min(axis=0))


def _port(what: str, verb: str, nbytes: int, rate: float) -> Port:
    text = f"{what} {verb} {nbytes / 1e9:.4g} GB at {format_bandwidth(rate)}"
    return Port(nbytes / rate, text)


def _ranks(fabric: Fabric, counts: I64) -> Iterator[Port]:
    """Yield the ports of every rank with something to send or to receive."""
    away = counts - np.diag(np.diag(counts))
    rate = _rate(fabric)
    for rank, (node, local) in enumerate(zip(fabric.node.tolist(), fabric.local.tolist())):
        domain, first = fabric.domains[int(fabric.kind[node])], int(fabric.first_link[node])
        own = rate[first : first + domain.nlinks]
        for verb, ends, nbytes in (
            ("sends", domain.tail, int(away[rank].sum())),
            ("receives", domain.head, int(away[:, rank].sum())),
        ):
            total = float(own[ends == local].sum())
            if nbytes and total > 0:
                yield _port(f"rank {rank}", verb, nbytes, total)


def _nodes(fabric: Fabric, counts: I64) -> Iterator[Port]:
    """Yield the ports of every node: its NICs' cables, out and in."""
    if fabric.wiring is None:
        return
    rate, ports = _rate(fabric), fabric.ports
    unit = np.unique(fabric.node, return_inverse=True)[1]
    inside = np.zeros((int(unit.max()) + 1,) * 2, dtype=np.int64)
    np.add.at(inside, (unit[:, None], unit[None, :]), counts)
    np.fill_diagonal(inside, 0)
    for number, node in enumerate(np.unique(fabric.node).tolist()):
        first, last = int(fabric.first_port[node]), int(fabric.first_port[node + 1])
        for verb, start, nbytes in (
            ("sends", fabric.cables, int(inside[number].sum())),
            ("receives", fabric.cables + ports, int(inside[:, number].sum())),
        ):
            total = float(rate[start + first : start + last].sum())
            if nbytes and total > 0:
                yield _port(f"node {node} ({last - first} NICs)", verb, nbytes, total)
