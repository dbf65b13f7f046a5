"""What crosses between two halves of one node's accelerators, over the worst choice of halves.

Owns which halvings are tried. Exact up to 16 accelerators, behind one level of switches with equal
ports, and on full meshes; through several levels (of switches, or of the host) up to 8; else the
least that is found. Knows no network between nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from .build import SCALE_UP, gpus_of

__all__ = ["node_bisection"]

F64 = npt.NDArray[np.float64]
_ENUMERATED = 16  # accelerators whose 6,435 halvings are all tried
_FLOW_EDGES = 6_000  # links, times halvings, of several switch levels that max-flow is run on
_FLOW_TRIALS = 24  # halvings tried by max-flow: each costs a search through the whole domain
_FLOW_ALL = (
    8  # accelerators whose halvings (70, counted from either side) are all given to max-flow
)
_SWAPPED = 256  # accelerators up to which a halving is improved by swaps
_SEED = 7  # of the halvings drawn at random: the same machine has the same figure


@dataclass(frozen=True, eq=False)
class _Domain:
    """A node's scale-up links: between accelerators as columns, to and from switches as matrices.

    tail, head: int64[links]; rate: float64[links]; up: [m, switches]; down: [switches, m].
    levels: some switches are joined to each other.
    """

    tail: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    rate: F64
    up: F64
    down: F64
    levels: bool


def _usable(graph: nx.DiGraph, host: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the scale-up links; host: those of PCI and CPUs instead. None that end at a NIC."""
    for a, b, data in graph.edges(data=True):
        ends = graph.nodes[a]["kind"], graph.nodes[b]["kind"]
        if (data["link"].medium in SCALE_UP) != host and "nic" not in ends:
            yield a, b, data


def _domain(graph: nx.DiGraph, attribute: str, host: bool) -> _Domain:
    gpus = gpus_of(graph)
    number = {v: i for i, v in enumerate(gpus)}
    switches = {v: k for k, v in enumerate(v for v in graph if graph.nodes[v]["kind"] == "switch")}
    up, down = np.zeros((len(gpus), len(switches))), np.zeros((len(switches), len(gpus)))
    direct: list[tuple[int, int, float]] = []
    levels = False
    for a, b, data in _usable(graph, host):
        if a in number and b in number:
            direct.append((number[a], number[b], data[attribute]))
        elif a in number and b in switches:
            up[number[a], switches[b]] += data[attribute]
        elif a in switches and b in number:
            down[switches[a], number[b]] += data[attribute]
        else:
            levels = True
    tail, head, rate = zip(*direct) if direct else ((), (), ())
    return _Domain(
        np.array(tail, dtype=np.int64), np.array(head, dtype=np.int64),
        np.array(rate, dtype=np.float64), up, down, levels,
    )  # fmt: skip


def _crossing(domain: _Domain, side: F64) -> F64:
    """Return the B/s from the accelerators where `side` [k, m] is 1 to the others, per row.

    Exact where switches join accelerators only: each passes the lesser of what its senders and
    its receivers have.
    """
    other = 1.0 - side
    direct = (side[:, domain.tail] * other[:, domain.head]) @ domain.rate
    through = np.minimum(side @ domain.up, other @ domain.down.T).sum(axis=1)
    return np.asarray(direct + through)


def _halvings(m: int) -> F64:
    """Return every halving of m accelerators, float64[k, m]; odd m: the smaller half sends."""
    first = combinations(range(m), m // 2) if m % 2 else (
        (0, *rest) for rest in combinations(range(1, m), m // 2 - 1))  # fmt: skip
    chosen = np.array(list(first), dtype=np.int64).reshape(-1, m // 2)
    side = np.zeros((len(chosen), m))
    np.put_along_axis(side, chosen, 1.0, axis=1)
    return np.concatenate([side, 1.0 - side])


def _guesses(m: int) -> Iterator[F64]:
    """Yield halvings worth trying: blocks of every size, then some at random.

    Blocks cut a torus along each of its dimensions, and a hierarchy at each of its levels.
    """
    at = np.arange(m)
    for block in range(m, 1, -1):
        if m % block == 0 and block % 2 == 0:
            yield ((at % block) < block // 2).astype(np.float64)
    if m % 2:
        yield (at < m // 2).astype(np.float64)
    generator = np.random.default_rng(_SEED)
    for _ in range(4):
        yield (generator.permutation(m) < m // 2).astype(np.float64)


def _improved(domain: _Domain, side: F64) -> float:
    """Return the least crossing that swapping one pair at a time leads to from `side`."""
    m, best = len(side), float(_crossing(domain, side[None])[0])
    if m > _SWAPPED:
        return best
    for _ in range(m):
        # What a vertex has across the cut less what it has beside it, were it moved alone.
        across = side[domain.tail] != side[domain.head]
        signed = np.where(across, domain.rate, -domain.rate)
        gain = np.bincount(domain.tail, signed, m) + np.bincount(domain.head, signed, m)
        ours, theirs = np.flatnonzero(side > 0), np.flatnonzero(side == 0)
        swapped = side.copy()
        swapped[ours[gain[ours].argmax()]] = 0.0
        swapped[theirs[gain[theirs].argmax()]] = 1.0
        crossing = float(_crossing(domain, swapped[None])[0])
        if crossing >= best:
            return best
        best, side = crossing, swapped
    return best


def _by_flow(graph: nx.DiGraph, attribute: str, side: F64, host: bool) -> float:
    """Return the max-flow between two halves of a domain whose switches join each other."""
    flow = nx.DiGraph()
    flow.add_nodes_from(["from", "to"])
    for a, b, data in _usable(graph, host):
        flow.add_edge(a, b, capacity=float(data[attribute]))
    for i, gpu in enumerate(gpus_of(graph)):
        # No capacity attribute: networkx takes it for infinite.
        flow.add_edge(*(("from", gpu) if side[i] else (gpu, "to")))
    return float(nx.maximum_flow_value(flow, "from", "to"))


def _own_links(graph: nx.DiGraph, attribute: str, host: bool) -> float:
    """Return what the first half of the accelerators can send, or the second half receive."""
    gpus = gpus_of(graph)
    first, second = set(gpus[: len(gpus) // 2]), set(gpus[len(gpus) // 2 :])
    out = into = 0.0
    for a, b, data in _usable(graph, host):
        out += data[attribute] if a in first else 0.0
        into += data[attribute] if b in second else 0.0
    return min(out, into)


def _flow_bisection(graph: nx.DiGraph, attribute: str, host: bool) -> tuple[float, bool, str]:
    """Return the least max-flow over some halvings, or over all where those are few."""
    m, edges = len(gpus_of(graph)), graph.number_of_edges()
    if edges > _FLOW_EDGES:
        return _own_links(graph, attribute, host), False, "the links of half the accelerators"
    whole = m <= _FLOW_ALL and edges * len(_halvings(m)) <= _FLOW_EDGES
    trials = max(1, min(_FLOW_TRIALS, _FLOW_EDGES // edges))
    tried = list(_halvings(m) if whole else islice(_guesses(m), trials))
    least = min(_by_flow(graph, attribute, side, host) for side in tried)
    if whole:
        return least, True, f"max-flow over all {len(tried) // 2} halvings"
    return least, False, f"max-flow over {len(tried)} halvings"


def node_bisection(
    graph: nx.DiGraph, attribute: str, host: bool = False
) -> tuple[float, bool, str]:
    """Return B/s over the worst halving, whether that is exact, and what it was read from.

    attribute: of the edges, "raw" or "bandwidth". host: over PCI and CPUs, not scale-up links.
    """
    domain, m = _domain(graph, attribute, host), len(gpus_of(graph))
    if m < 2:
        return 0.0, True, "one accelerator has no other half"
    if domain.levels:
        return _flow_bisection(graph, attribute, host)
    if m <= _ENUMERATED:
        sides = _halvings(m)
        return float(_crossing(domain, sides).min()), True, f"all {len(sides) // 2} halvings"
    first = (np.arange(m) < m // 2).astype(np.float64)
    if not len(domain.rate):
        alike = not np.ptp(domain.up, axis=0).any() and not np.ptp(domain.down, axis=1).any()
        if alike:
            return float(_crossing(domain, first[None])[0]), True, "half the switch ports"
    if not domain.up.any() and len(domain.rate) == m * (m - 1) and not np.ptp(domain.rate):
        return float(_crossing(domain, first[None])[0]), True, "a full mesh: all halvings are alike"
    tried = list(_guesses(m))
    return min(_improved(domain, side) for side in tried), False, f"the least of {len(tried)} " \
        "halvings and their neighbours"  # fmt: skip
