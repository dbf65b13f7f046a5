"""The bottleneck in the words of who runs the machine.

Owns sentences such as "node 1 (ranks 8..15) leaves through 8 NICs of 50 GB/s". Knows fabrics only
to tell what a link is.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...fabric import I64, Fabric
from ...fabric.graph import Graph
from ...units import format_bandwidth
from .cuts import Bools, Optimum

__all__ = ["through", "who", "words"]


def words(optimum: Optimum, fabric: Fabric | None = None) -> str:
    """Return what limits a collective, from the side of the cut that has fewer ranks."""
    inside, graph = optimum.inside, optimum.graph
    if inside is None:
        return optimum.how
    outside = optimum.graph.nranks - optimum.ranks
    leaves = optimum.ranks <= outside
    ranks = np.flatnonzero((inside if leaves else ~inside)[graph.rank])
    name, many = who(graph, ranks)
    if leaves:
        verb = "leave through" if many else "leaves through"
    else:
        verb = "are entered by" if many else "is entered by"
    return f"{name} {verb} {through(graph, inside, fabric)}"


def who(graph: Graph, ranks: I64) -> tuple[str, bool]:
    """Return the name of a set of ranks, and whether it is several."""
    for nest in graph.nests[::-1]:
        unit = nest.unit[graph.rank]
        own = np.unique(unit[ranks])
        if own[0] >= 0 and np.isin(unit, own).sum() == len(ranks):
            if len(own) == 1:
                return f"{nest.name} {own[0]} ({numbers(ranks)})", False
            return f"{len(own)} {nest.name}s ({numbers(ranks)})", True
    return numbers(ranks), len(ranks) > 1


def numbers(ranks: I64) -> str:
    """Return ``"rank 3"``, ``"ranks 0..7"`` or ``"ranks 0, 1, 6, 7"``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    breaks = np.flatnonzero(np.diff(ranks) != 1) + 1
    runs = [(part[0], part[-1]) for part in np.split(ranks, breaks)]
    texts = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}..{b}" for a, b in runs]
    return f"ranks {', '.join(texts[:8])}{', ...' if len(texts) > 8 else ''}"


def through(graph: Graph, inside: Bools, fabric: Fabric | None) -> str:
    """Return what leaves a set: ``"8 NICs of 50 GB/s and 2 links of 16 GB/s"``."""
    found: Counter[tuple[str, str]] = Counter()
    for edge in np.flatnonzero(inside[graph.tail] & ~inside[graph.head]).tolist():
        links = graph.links_of(edge)
        count = max(len(links), 1)
        kind = "link" if fabric is None else _kind(fabric, int(links[0]))
        found[kind, format_bandwidth(float(graph.capacity[edge]) / count)] += count
    parts = [
        f"{count} {kind}{'s' * (count > 1)} of {rate}"
        for (kind, rate), count in found.most_common()
    ]
    return " and ".join(parts[:3]) + (" and others" if len(parts) > 3 else "") or "nothing"


def _kind(fabric: Fabric, link: int) -> str:
    if link < fabric.cables:
        return "link"
    return "NIC" if link < fabric.cables + 2 * fabric.ports else "network link"
