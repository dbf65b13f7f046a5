"""The shape of a machine, found from its links: nested levels of equal groups, and tori.

Owns Shape and the search for it. Knows a fabric (who is joined to whom, how widely); no name of an
accelerator, a switch or a machine, no schedule and no time of a call. Where a machine has no such
shape, or lost it by a fault, the shape says what is in the way::

    4 nodes of 8 below 2 leaves     levels   8 ranks of a node      mesh     448 GB/s a rank
                                             2 nodes of a leaf      switch    50 GB/s
                                             2 leaves               switch    25 GB/s
                                    tiers    int32[2, 2, 8]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..fabric import F64, I64, Domain, Fabric
from ..schedule import I32
from ..units import format_bandwidth, format_time
from .torus import torus_grid

__all__ = ["Level", "Shape", "nodes_of", "shape_of"]

_PAIRS = 4096  # ranks of a torus of nodes
_SOURCES, _TARGETS = 4096, 8  # ranks whose routes show how wide a level is


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a machine. size: parts it joins. kind: mesh, switch, torus or irregular.

    of: what the parts are, for people. dims: of a torus. bandwidth: B/s by which a rank leaves a
    part, when all of the part's ranks do. latency: s of the quickest hop between parts.
    """

    size: int
    kind: str
    of: str
    bandwidth: float
    latency: float
    dims: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = "x".join(map(str, self.dims)) + " torus" if self.dims else self.kind
        rate = format_bandwidth(self.bandwidth)
        return f"{self.size} {self.of} ({kind}, {rate} a rank, {format_time(self.latency)})"


@dataclass(frozen=True, eq=False)
class Shape:
    """tiers: int32[g_L, ..., g_0], the ranks by level, and grid: int32[d_0, ...], the ranks in a
    torus; None where there are none: no_tiers and no_grid then say why.
    """

    fabric: Fabric
    tiers: I32 | None
    grid: I32 | None
    no_tiers: str = ""
    no_grid: str = ""

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, from the innermost to the outermost; empty where groups are not equal."""
        order, sizes, names, why = _nested(self.fabric)
        return () if why else _levels(self.fabric, order, sizes, names, self.grid)

    def __str__(self) -> str:
        text = ", ".join(map(str, self.levels)) or self.no_tiers
        return text + ("" if self.grid is None else f"; torus {self.grid.shape}")


def shape_of(fabric: Fabric) -> Shape:
    """Return the shape of a fabric."""
    grid, no_grid = _grid(fabric)
    order, sizes, _, no_tiers = _nested(fabric)
    if no_tiers or len(sizes) < 2:
        return Shape(fabric, None, grid, no_tiers or "one level only", no_grid)
    return Shape(fabric, order.reshape(sizes[::-1]).astype(np.int32), grid, "", no_grid)


def nodes_of(fabric: Fabric) -> I32 | None:
    """Return the ranks of each scale-up domain, or group of one, in order: int32[N, g].

    None where they are uneven. Nodes stand in the order of their first rank, ranks in that of
    their accelerators.
    """
    node = fabric.node
    if (node == node[0]).all():
        node = fabric.domains[int(fabric.kind[node[0]])].group[fabric.local]
    sizes = np.bincount(node)
    sizes = sizes[sizes > 0]
    if (sizes != sizes[0]).any():
        return None
    order = _sorted_by(fabric, [node])
    return order.astype(np.int32).reshape(-1, sizes[0])


# ---- levels ---------------------------------------------------------------------------------


def _sorted_by(fabric: Fabric, keys: list[npt.NDArray[np.integer]]) -> I64:
    """Return ranks ordered by nested keys, the outermost first.

    Groups of a key stand in the order of their first rank, ranks of a node as its accelerators do:
    so those in one place of their nodes, which share a rail, are in one place here.
    """
    numbers = []
    for key in keys:
        _, first, own = np.unique(key, return_index=True, return_inverse=True)
        numbers.append(first[own.ravel()])
    return np.lexsort((fabric.local, *numbers[::-1]))


def _nested(fabric: Fabric) -> tuple[I64, list[int], list[str], str]:
    """Return (ranks by level, sizes from the innermost, names of parts, why there are none)."""
    keys, names = _keys(fabric)
    order, sizes, kept = np.arange(fabric.nranks), [fabric.nranks], ["ranks"]
    chosen: list[npt.NDArray[np.integer]] = []
    for key, name in zip(keys, names):  # from the innermost
        counts = np.unique(key, return_counts=True)[1]
        if (counts != counts[0]).any():
            if not chosen and len(sizes) == 1 and key is keys[0]:
                held = ", ".join(map(str, np.unique(counts)[::-1]))
                return order, [], [], f"{name} of unequal size: {held} ranks"
            break  # what is outside of an uneven level is left whole
        inside = int(np.prod(sizes[:-1]))
        size = int(counts[0]) // inside
        if size == 1 or size * inside == fabric.nranks:
            continue
        sizes[-1:] = [size, fabric.nranks // (size * inside)]
        kept.append(name)
        chosen.append(key)
    if chosen:
        order = _sorted_by(fabric, chosen[::-1])
    return order, sizes, kept, ""


def _keys(fabric: Fabric) -> tuple[list[npt.NDArray[np.integer]], list[str]]:
    """Return the part each rank is in at each nested level, from the innermost, and their names."""
    node = fabric.node.astype(np.int64)
    found: list[tuple[str, npt.NDArray[np.integer]]] = []
    if (node == node[0]).all():
        domain = fabric.domains[int(fabric.kind[node[0]])]
        own: npt.NDArray[np.integer] = domain.group[fabric.local]
        if (own == own[0]).all():
            own = _hubs(domain)[fabric.local]
        found.append(("groups", own))
    else:
        found.append(("nodes", node))
        ports = np.minimum(fabric.first_port[:-1], fabric.ports - 1)
        for name, group in (fabric.wiring.parts if fabric.wiring else {}).items():
            key = group[ports][node]
            if _coarser(key, found[-1][1]):
                found.append((_PLURAL.get(name, name + "s"), key))
    names, keys = (list(column) for column in zip(*found))
    return keys, names


def _hubs(domain: Domain) -> I64:
    """Return a number for the switches each accelerator hangs on, the same for those that share.

    int64[ngpus]: a package's fabric, a PCI switch, a socket; one number where all hang on all.
    """
    hung: list[set[str]] = [set() for _ in range(domain.ngpus)]
    leaving = np.flatnonzero(domain.joins & (domain.tail >= 0) & (domain.head < 0))
    for link, local in zip(leaving.tolist(), domain.tail[leaving].tolist()):
        hung[local].add(domain.names[link].rpartition(" -> ")[2])
    known: dict[frozenset[str], int] = {}
    return np.array([known.setdefault(frozenset(hubs), len(known)) for hubs in hung])


_PLURAL = {"leaf": "leaves"}


def _coarser(key: npt.NDArray[np.integer], inner: npt.NDArray[np.integer]) -> bool:
    """Return whether every inner part lies in one part of `key`."""
    both = np.unique(np.stack([inner, key]), axis=1)
    return bool(len(np.unique(both[0])) == both.shape[1])


def _levels(
    fabric: Fabric, order: I64, sizes: list[int], names: list[str], grid: I32 | None
) -> tuple[Level, ...]:
    """Return the levels of ranks in order: how each is joined, and how widely."""
    found, inside = [], 1
    one_node = bool((fabric.node == fabric.node[0]).all())
    for size, name in zip(sizes, names):
        at = order[: inside * size]
        src, dst = at[:inside], np.resize(at[inside:], inside) if size > 1 else at[:inside]
        latency = 0.0
        if size > 1:
            latency = float(fabric.latency(*_columns(src, dst))[0].min())
        kind, dims = _kind(fabric, at, inside == 1, one_node)
        if grid is not None and len(sizes) == 1:
            kind, dims = "torus", grid.shape
        found.append(Level(size, kind, name, _leaving(fabric, at, inside), latency, dims))
        inside *= size
    return tuple(found)


def _columns(src: I64, dst: I64) -> tuple[I32, I32]:
    return src.astype(np.int32), dst.astype(np.int32)


def _kind(fabric: Fabric, at: I64, innermost: bool, one_node: bool) -> tuple[str, tuple[int, ...]]:
    """Return how the ranks `at` are joined at their outermost level, and a torus's dims."""
    same = bool((fabric.node[at] == fabric.node[at[0]]).all())
    if same and (innermost or one_node):
        domain = fabric.domains[int(fabric.kind[fabric.node[at[0]]])]
        direct = _direct(domain, fabric.local[at])
        if not direct.any():
            return "switch", ()
        off = direct[~np.eye(len(direct), dtype=bool)]
        return ("mesh" if len(off) and off.min() == off.max() > 0 else "irregular"), ()
    dims = tuple(getattr(fabric.wiring, "dims", ()))
    if dims:
        return "torus", dims
    return ("irregular" if "router" in getattr(fabric.wiring, "parts", {}) else "switch"), ()


def _some(ranks: I64, most: int) -> I64:
    """Return at most so many of some ranks, spread over them."""
    return ranks[np.linspace(0, len(ranks) - 1, min(len(ranks), most)).astype(np.int64)]


def _leaving(fabric: Fabric, at: I64, inside: int) -> float:
    """Return the B/s by which a rank of the first part leaves it, all of its ranks at once.

    What the links at the narrowest place on the way out carry together: links out of accelerators,
    or NICs' cables, or a tier of switches that all routes pass.
    """
    part, others = at[:inside], at[inside:]
    if not len(others):
        return 0.0
    node = int(fabric.node[part[0]])
    if (fabric.node[at] == node).all():
        domain, local = fabric.domains[int(fabric.kind[node])], fabric.local[part]
        leaves = domain.joins & np.isin(domain.tail, local) & ~np.isin(domain.head, local)
        return float(domain.bandwidth[leaves].sum()) / inside
    src, dst = _some(part, _SOURCES), _some(others, _TARGETS)
    wiring = fabric.wiring
    if wiring is not None and not wiring.bundled:
        fabric = replace(fabric, wiring=wiring.sprayed)
    routes = fabric.routes(*_columns(np.repeat(src, len(dst)), np.tile(dst, len(src))))
    used = np.unique(routes.link)
    cables, ports = fabric.cables, fabric.ports
    nics = used[(used >= cables) & (used < cables + ports)]
    width = float(fabric.bandwidth[nics].sum()) * inside / len(src)
    if fabric.wiring is not None and fabric.wiring.bundled:
        wired = used[used >= cables + 2 * ports]
        layer = fabric.wiring.layer[wired - cables - 2 * ports]
        for number in np.unique(layer[(layer >= 0) & (layer % 2 == 0)]).tolist():
            links = wired[layer == number]
            crossing = np.bincount(routes.link, routes.share, fabric.nlinks)[links].sum()
            if crossing >= len(src) * len(dst) * (1 - 1e-9):
                width = min(width, float(fabric.bandwidth[links].sum()))
    return width / inside


# ---- tori -----------------------------------------------------------------------------------


def _direct(domain: Domain, local: npt.NDArray[np.integer]) -> F64:
    """Return the B/s of the links that join these accelerators directly: float64[g, g]."""
    place = np.full(domain.ngpus + 1, -1)
    place[local] = np.arange(len(local))
    ends = domain.joins & (domain.tail >= 0) & (domain.head >= 0)
    tail, head = place[domain.tail[ends]], place[domain.head[ends]]
    kept = (tail >= 0) & (head >= 0)
    found = np.zeros((len(local), len(local)))
    np.add.at(found, (tail[kept], head[kept]), domain.bandwidth[ends][kept])
    return found


def _grid(fabric: Fabric) -> tuple[I32 | None, str]:
    """Return the ranks in a torus of accelerators, or of nodes of one rank; None, and why not."""
    if (fabric.node == fabric.node[0]).all():
        domain = fabric.domains[int(fabric.kind[fabric.node[0]])]
        if len(np.unique(fabric.local)) < fabric.nranks:
            return None, "ranks share accelerators"
        capacity = _direct(domain, fabric.local)
        if not capacity.any():
            return None, "ranks are joined by switches"
        return torus_grid(capacity)
    if len(np.unique(fabric.node)) < fabric.nranks:
        return None, "more than one rank a node"
    return _grid_of_nodes(fabric)


def _grid_of_nodes(fabric: Fabric) -> tuple[I32 | None, str]:
    """Return the same where each node has one rank and its NIC's switch stands in a torus."""
    wiring = fabric.wiring
    assert wiring is not None  # ranks on several nodes are joined by a network
    if fabric.nranks > _PAIRS or wiring.nlinks > 16 * _PAIRS:
        return None, "more ranks than a torus is looked for among"
    domain = [fabric.domains[int(fabric.kind[v])] for v in fabric.node]
    if any(len(d.nics_of(int(i))) != 1 for d, i in zip(domain, fabric.local)):
        return None, "more than one NIC a rank"
    ports = [int(fabric.first_port[v]) + d.nics_of(int(i))[0]
             for v, d, i in zip(fabric.node, domain, fabric.local)]  # fmt: skip
    hung = {wiring.switch_name(port): rank for rank, port in enumerate(ports)}
    if len(hung) < fabric.nranks:
        return None, "several ranks share a switch"
    capacity = np.zeros((fabric.nranks, fabric.nranks))
    for tail, head, rate in wiring.edges():
        if tail not in hung or head not in hung:
            return None, "switches without ranks lie between"
        capacity[hung[tail], hung[head]] += rate
    return torus_grid(capacity)
