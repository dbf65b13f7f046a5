"""The bottleneck in the words of who runs the machine.

Owns sentences such as "node 1 (ranks 8..15) leaves through 8 NICs of 50 GB/s". Knows fabrics only
to tell what a link is.
"""

from __future__ import annotations

import numpy as np

from ...fabric import I64, Fabric
from ...fabric.graph import Graph
from ...units import format_bandwidth
from .cuts import Bools, Optimum

__all__ = ["plural", "through", "who", "words"]


def words(optimum: Optimum, fabric: Fabric | None = None) -> str:
    """Return what limits a collective, from the side of the cut that has fewer ranks."""
    inside, graph = optimum.inside, optimum.graph
    if inside is None:
        if optimum.full is None:
            return optimum.how
        links = _counted(graph, optimum.full, fabric)
        return f"{optimum.how} by {links}" if optimum.share else f"{optimum.how}: {links} are full"
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
    for name, label in (*graph.sides, *((nest.name, nest.unit) for nest in graph.nests[::-1])):
        unit = label[graph.rank]
        own = np.unique(unit[ranks])
        if own[0] >= 0 and np.isin(unit, own).sum() == len(ranks):
            if len(own) == 1:
                return f"{name} {own[0]} ({numbers(ranks)})", False
            return f"{len(own)} {plural(name)} ({numbers(ranks)})", True
    return numbers(ranks), len(ranks) > 1


def plural(name: str) -> str:
    """Return the plural of a kind: ``"nodes"``, ``"switches"``, ``"like sets of ranks"``."""
    noun, of, rest = name.partition(" of ")
    if noun.endswith("leaf"):
        return f"{noun[:-1]}ves{of}{rest}"
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}{of}{rest}"


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
    return _counted(graph, inside[graph.tail] & ~inside[graph.head], fabric)


def _counted(graph: Graph, edges: Bools, fabric: Fabric | None) -> str:
    """Return how many links of each kind and speed some edges (bool[m]) are."""
    at = np.flatnonzero(edges)
    count = np.diff(graph.ptr)[at]
    rates, rate = np.unique(
        np.round(graph.capacity[at] / np.maximum(count, 1), 3), return_inverse=True
    )
    kinds, kind = ["link"], np.zeros(len(at), dtype=np.int64)
    if fabric is not None and len(at):
        kinds, kind = _kinds(fabric, graph.links[graph.ptr[at]])
    sorts, sort = np.unique(kind * len(rates) + rate, return_inverse=True)
    found = np.bincount(sort, np.maximum(count, 1)).astype(np.int64)
    parts = []
    for k in np.argsort(-found, kind="stable").tolist():
        what, speed = divmod(int(sorts[k]), len(rates))
        kind_words = kinds[what] if found[k] == 1 else plural(kinds[what])
        parts.append(f"{found[k]} {kind_words} of {format_bandwidth(float(rates[speed]))}")
    return " and ".join(parts[:3]) + (" and others" if len(parts) > 3 else "") or "nothing"


def _kinds(fabric: Fabric, link: I64) -> tuple[list[str], I64]:
    """Return words for links, and which of them each link of the fabric is."""
    names = ["NIC", "network link"]
    kind = (link >= fabric.cables + 2 * fabric.ports).astype(np.int64)
    own = np.flatnonzero(link < fabric.cables)
    node = np.searchsorted(fabric.first_link, link[own], side="right") - 1
    for number, domain in enumerate(fabric.domains):
        media = sorted(set(domain.media))
        code = np.array([media.index(name) for name in domain.media], dtype=np.int64)
        at = np.flatnonzero(fabric.kind[node] == number)
        if len(at):
            words_of = [_MEDIA.get(name, "link") for name in media]
            new = [word for word in dict.fromkeys(words_of) if word not in names]
            names += new
            table = np.array([names.index(word) for word in words_of])
            kind[own[at]] = table[code[link[own[at]] - fabric.first_link[node[at]]]]
    return names, kind


_MEDIA = {
    "xgmi": "xGMI link",
    "nvlink": "NVLink",
    "ualink": "UALink",
    "pci": "PCI link",
    "cpu": "socket link",
}
