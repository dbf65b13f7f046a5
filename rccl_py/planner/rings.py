"""Edge-disjoint rings of a machine: as many as its links allow, with their relative bandwidth.

Owns the search. Knows links and routes (Fabric), no schedule. A full mesh of n is decomposed
exactly where that is known (odd n: Walecki; even n: backtracking); a switch needs one ring; any
other graph is searched like NCCL does it: take the Hamiltonian cycle with the widest narrowest
link, subtract it, repeat.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..schedule import I32

__all__ = ["Rings", "find_rings", "mesh_paths", "mesh_rings", "widest_rings"]

_BUDGET = 20_000  # vertices visited per search: milliseconds, and the same on every machine
_SEARCHED = 16  # nodes of more accelerators and no mesh get one ring


@dataclass(frozen=True, eq=False)
class Rings:
    """Orders of all ranks, and of the locals of one node; weights are relative bandwidths.

    orders : int32[k, n], weights : int32[k]; local_orders : int32[j, g], local_weights : int32[j].
    rule: which rule found them, for people.
    """

    orders: I32
    weights: I32
    local_orders: I32
    local_weights: I32
    rule: str


def _cycle(free: np.ndarray, rng: np.random.Generator | None = None) -> list[int] | None:
    """Return a Hamiltonian cycle over the allowed directed edges free[i, j], or None.

    Depth first, the neighbour with fewest ways on first (ties by `rng`), within a budget.
    """
    n = len(free)
    path, used = [0], np.zeros(n, dtype=bool)
    used[0] = True
    jitter = rng.random((n, n)) if rng is not None else np.zeros((n, n))
    left = _BUDGET

    def choices(at: int) -> list[int]:
        open_ends = np.flatnonzero(free[at] & ~used)
        ways = (free[open_ends] & ~used).sum(axis=1) + jitter[at, open_ends]
        return [int(v) for v in open_ends[np.argsort(-ways, kind="stable")]]

    stack = [choices(0)]
    while stack:
        if len(path) == n and free[path[-1], 0]:
            return path
        left -= 1
        if left < 0:
            return None
        if len(path) < n and stack[-1]:
            vertex = stack[-1].pop()
            path.append(vertex)
            used[vertex] = True
            stack.append(choices(vertex))
            continue
        stack.pop()
        used[path.pop()] = False
    return None


def mesh_rings(n: int) -> I32:
    """Return directed Hamiltonian cycles of the complete graph that use every directed edge alike.

    n - 1 of them, each edge in one, for odd n and for even n other than 4 and 6 (Tillson). For 4
    and 6 there are none that share no edge, so twice as many, each edge in two: with half the
    bandwidth each they leave no link idle.
    """
    return np.array(_mesh_rings(n), dtype=np.int32)


@cache
def _mesh_rings(n: int) -> I32:
    if n <= 2:
        return np.arange(n, dtype=np.int32)[None, :]
    if n in (4, 6):
        # Zig-zag paths over n - 1 points use each edge twice, and each point is an end twice.
        around = np.arange(n - 1)
        zigzag = np.where(around % 2, (around + 1) // 2, -(around // 2))
        closed = [np.append((zigzag + i) % (n - 1), n - 1) for i in range(n - 1)]
        return np.array([c for cycle in closed for c in (cycle, cycle[::-1])], dtype=np.int32)
    if n % 2:
        around = np.arange(n - 1)
        zigzag = np.where(around % 2, (around + 1) // 2, -(around // 2))
        cycles = [np.append((zigzag + i) % (n - 1), n - 1) for i in range((n - 1) // 2)]
        return np.array([c for cycle in cycles for c in (cycle, cycle[::-1])], dtype=np.int32)
    best: list[list[int]] = []
    for seed in range(40):
        free, found = ~np.eye(n, dtype=bool), []
        rng = np.random.default_rng(seed)
        while (cycle := _cycle(free, rng)) is not None:
            free[cycle, np.roll(cycle, -1)] = False
            found.append(cycle)
        best = max(best, found, key=len)
        if len(best) == n - 1:
            break
    return np.array(best, dtype=np.int32)


def mesh_paths(n: int) -> I32:
    """Return n directed Hamiltonian paths of an even mesh, each directed edge once (zig-zag).

    Path i starts at i and ends at i + n/2: the shape RCCL uses between NICs. int32[n, n].
    """
    around = np.arange(n)
    zigzag = np.where(around % 2, (around + 1) // 2, -(around // 2))
    return np.array([(zigzag + i) % n for i in range(n)], dtype=np.int32)


def widest_rings(capacity: F64, limit: int = 16) -> tuple[I32, I32]:
    """Return rings and integer weights found by taking the widest cycle and subtracting it.

    capacity : float64[n, n] B/s of direct links, 0 where there is none.
    """
    left = capacity.copy()
    orders: list[list[int]] = []
    widths: list[float] = []
    while len(orders) < limit:
        found = None
        for width in np.unique(left[left > 0])[::-1]:
            found = _cycle(left >= width * (1 - 1e-9))
            if found is not None:
                break
        if found is None or (widths and width < widths[0] / 16):
            break
        left[found, np.roll(found, -1)] -= width
        left[left < capacity.max() * 1e-9] = 0
        orders.append(found)
        widths.append(float(width))
    if not orders:
        return np.arange(len(capacity), dtype=np.int32)[None, :], np.ones(1, dtype=np.int32)
    weights = np.maximum(1, np.rint(np.array(widths) / min(widths))).astype(np.int32)
    return np.array(orders, dtype=np.int32), weights


def _direct(fabric: Fabric, ranks: I32) -> F64:
    """Return B/s of each direct, unshared link between these ranks of one node: float64[g, g]."""
    capacity = np.zeros((len(ranks), len(ranks)))
    i, j = np.nonzero(_joined(fabric, ranks))  # the only pairs whose route may be a single link
    if not len(i):
        return capacity
    routes = fabric.routes(ranks[i], ranks[j])
    lengths = np.bincount(routes.row, minlength=len(i))
    single = lengths[routes.row] == 1
    at = routes.row[single]
    capacity[i[at], j[at]] = fabric.bandwidth[routes.link[single]]
    return capacity


def _joined(fabric: Fabric, ranks: I32) -> npt.NDArray[np.bool_]:
    """Return which of these ranks of one node some link joins directly: bool[g, g]."""
    domain = fabric.domains[int(fabric.kind[fabric.node[ranks[0]]])]
    ends = (domain.tail >= 0) & (domain.head >= 0) & (domain.tail != domain.head)
    found = np.zeros((domain.ngpus, domain.ngpus), dtype=bool)
    found[domain.tail[ends], domain.head[ends]] = True
    if not found.any():
        return np.zeros((len(ranks), len(ranks)), dtype=bool)
    local = fabric.local[ranks]
    return np.asarray(found[local[:, None], local])


def _together(capacity: F64, orders: I32, weights: I32) -> float:
    """Return the B/s that these rings carry together when each has its weight's share."""
    load = np.zeros_like(capacity)
    for order, weight in zip(orders, weights):
        load[order, np.roll(order, -1)] += weight
    used = load > 0
    return float((capacity[used] / load[used]).min() * weights.sum())


def _local_rings(capacity: F64) -> tuple[I32, I32, str]:
    g = len(capacity)
    one = np.arange(g, dtype=np.int32)[None, :], np.ones(1, dtype=np.int32)
    if g <= 2 or not capacity.any():
        return *one, "one ring in rank order (a switch, or too few ranks)"
    off = capacity[~np.eye(g, dtype=bool)]
    if off.min() > 0.999 * off.max() and g <= 64:
        orders = mesh_rings(g)
        return orders, np.ones(len(orders), dtype=np.int32), f"full mesh of {g}: disjoint cycles"
    if g <= _SEARCHED:
        found = widest_rings(capacity)
        if off.min() > 0:  # a mesh with some wider links: the greedy search may waste the others
            orders = mesh_rings(g)
            even = np.ones(len(orders), dtype=np.int32)
            if _together(capacity, orders, even) >= _together(capacity, *found):
                return orders, even, f"full mesh of {g}, unequal links: disjoint cycles"
        return *found, "search: widest cycle first, subtracted"
    return *one, f"one ring in rank order (no mesh, more than {_SEARCHED} ranks)"


def _own_nics(fabric: Fabric, ranks: I32) -> list[int]:
    """Return the first NIC of each of these ranks of one node."""
    domain = fabric.domains[int(fabric.kind[fabric.node[ranks[0]]])]
    return [(domain.nics_of(i) or [0])[0] for i in fabric.local[ranks].tolist()]


def _cut_by_nic(orders: I32, nics: list[int]) -> I32:
    """Return each ring cut open where the NICs at its two ends are used least so far.

    A node is entered at the one end and left at the other, so the two ends do not compete.
    """
    entered: Counter[int] = Counter()
    left: Counter[int] = Counter()
    paths = []
    for order in orders:
        ends = [(nics[order[c]], nics[order[c - 1]]) for c in range(len(order))]
        uses = [sorted((entered[first], left[last])) for first, last in ends]
        cut = min(range(len(order)), key=lambda c: uses[c][::-1])
        entered[ends[cut][0]] += 1
        left[ends[cut][1]] += 1
        paths.append(np.roll(order, -cut))
    return np.array(paths, dtype=np.int32)


def _across(nodes: I32, paths: I32) -> I32:
    """Return rings that walk each node's path, reversed in every other node, so rails line up."""
    walks = nodes[:, paths].astype(np.int32)  # [node, path, place]
    walks[1::2] = walks[1::2, :, ::-1]
    return np.asarray(walks.swapaxes(0, 1).reshape(len(paths), -1))


def find_rings(fabric: Fabric, nodes: I32 | None) -> Rings:
    """Return the rings of `fabric`; `nodes` : int32[N, g], or None where nodes are uneven."""
    n = fabric.nranks
    if nodes is None:
        one, weight = np.arange(n, dtype=np.int32)[None, :], np.ones(1, dtype=np.int32)
        return Rings(one, weight, one, weight, "one ring in rank order (nodes of unequal size)")
    capacity = _direct(fabric, nodes[0])
    local, weights, rule = _local_rings(capacity)
    if len(nodes) == 1:
        return Rings(local, weights, local, weights, rule)
    g = nodes.shape[1]
    meshed = len(local) > 1 and capacity[~np.eye(g, dtype=bool)].min() > 0
    if meshed and g % 2 == 0:
        paths, across = mesh_paths(g), np.ones(g, dtype=np.int32)
    elif len(local) == 1:
        paths = (np.arange(g)[None, :] + np.arange(g)[:, None]) % g
        across = np.ones(g, dtype=np.int32)
    else:
        paths = _cut_by_nic(local, _own_nics(fabric, nodes[0]))
        across = weights
    return Rings(_across(nodes, paths), across, local, weights, rule)
