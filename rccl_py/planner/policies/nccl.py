"""nccl-2.30: what NCCL 2.30 would pick, by its own cost model.

Owns the formulas; the numbers are in `nccl_tables`, what the library would find on a machine in
`graph`. Pure functions of a collective, bytes, and Figures. For every algorithm and protocol::

    time (us) = latency + bytes / (1000 * bandwidth in GB/s)      the smallest is taken

    busBw = channels * speed  --limits of the protocol-->  * ranks / steps = algorithm bandwidth

Source: NVIDIA/nccl 2.30.7, src/graph/tuning.cc and src/enqueue.cc. Checked against the table an
NCCL 2.27.5 printed on H100 nodes (tests/test_policy_nccl.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import nccl_tables as t
from .choice import PROTOCOLS, Pick, peer_to_peer, stand_ins
from .graph import Figures, Graph, log2

__all__ = ["Cost", "channels_of", "cost_table", "pick"]

_OFFERED = {
    "allreduce": tuple(a for a in t.ALGORITHMS if a != "PAT"),
    "allgather": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "reduce_scatter": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
_SIMPLE_ONLY = ("CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_NVLS_ARITY = 32  # the most ranks of a node for NVLS allgather and reduce_scatter
_PLATEAU = 64  # B a channel and rank from which a ring between nodes is charged more


@dataclass(frozen=True, slots=True)
class Cost:
    """One entry of NCCL's table. latency: us. bandwidth: GB/s of the algorithm."""

    latency: float
    bandwidth: float

    def us(self, size: float) -> float:
        """Return the us that `size` bytes take, before corrections by size."""
        return self.latency + size / (1000 * self.bandwidth)


def cost_table(collective: str, f: Figures) -> dict[tuple[str, str], Cost]:
    """Return (algorithm, protocol) -> cost, of those NCCL would consider, in its order."""
    table = {}
    for algorithm in t.ALGORITHMS:
        if algorithm not in _OFFERED[collective] or not _offered(algorithm, collective, f):
            continue
        for protocol in PROTOCOLS:
            if not _allowed(algorithm, protocol, f):
                continue
            bandwidth = _bandwidth(collective, algorithm, protocol, f)
            if bandwidth > 0:
                latency = _latency(collective, algorithm, PROTOCOLS.index(protocol), f)
                table[algorithm, protocol] = Cost(latency, bandwidth)
    return table


def _offered(algorithm: str, collective: str, f: Figures) -> bool:
    """Return whether the machine has what the algorithm needs."""
    if algorithm.startswith("CollNet"):
        return f.collnet and (algorithm == "CollNetChain" or f.nvls is not None)
    if algorithm == "PAT":
        return f.ranks == f.nodes
    if algorithm == "NVLSTree":
        return f.nvls is not None and f.nodes > 1 and f.nvls.channels >= 2
    if algorithm == "NVLS":
        small = collective == "allreduce" or f.local <= _NVLS_ARITY
        alone = f.nodes == 1 or f.collnet
        return f.nvls is not None and f.nvls.channels >= 2 and small and alone
    return True


def _allowed(algorithm: str, protocol: str, f: Figures) -> bool:
    if algorithm in _SIMPLE_ONLY:
        return protocol == "Simple"
    if protocol != "LL128":
        return True
    farthest = "PXN" if f.capability >= 90 else "PXB"
    near = f.nodes == 1 or f.within(f.type_inter, farthest)
    return near and f.within(f.type_intra, "NVB") and f.capability in t.LL128_ARCHS


def _graph(algorithm: str, f: Figures) -> Graph:
    if algorithm.startswith("NVLS"):
        assert f.nvls is not None  # _offered has seen it
        return f.nvls
    return f.tree if algorithm == "Tree" else f.ring


def _steps(collective: str, n: int) -> int:
    if collective == "allreduce":
        return 2 * (n - 1)
    return n - 1 if collective in ("allgather", "reduce_scatter") else n


def _bandwidth(collective: str, algorithm: str, protocol: str, f: Figures) -> float:
    """Return the algorithm's bandwidth, GB/s."""
    row, column = t.generation(f.capability), min(f.nodes, 3) - 1
    graph = _graph(algorithm, f)
    speed = graph.intra if f.nodes <= 2 or algorithm.startswith("CollNet") else graph.inter
    bus = graph.channels * speed
    # Between nodes LL is bound by the CPU's memory system, so NCCL goes by its maker.
    most = t.LL_MOST[row if f.nodes == 1 else 1 if f.cpu == "amd" else 0][column]
    if algorithm == "Ring" and protocol == "LL":
        bus = min(most, bus * 0.5)
    elif algorithm == "Ring" and protocol == "LL128":
        bus = min(bus * 0.92, graph.channels * t.RING_LL128_CHANNEL[row][column])
    elif algorithm == "Tree":
        bus = _tree_bus(bus, protocol, row, column, most, f)
    elif algorithm == "PAT":
        bus *= 0.75
    elif algorithm == "CollNetDirect":
        bus = _collnet_bus(collective, bus, graph, f)
    elif algorithm.startswith("NVLS"):
        bus = graph.channels * _nvls_channel(collective, algorithm, graph, row, column, f)
    return bus * _ratio(collective, algorithm, f.ranks)


def _tree_bus(bus: float, protocol: str, row: int, column: int, most: float, f: Figures) -> float:
    bus = min(bus * 0.92, f.tree.channels * t.TREE_CHANNEL[row][column])
    if protocol == "LL":
        bus = min(bus / 3.8, most)
    if protocol == "LL128":
        part = 7 / 9 if f.nodes == 1 else 120 / 128
        bus = min(bus * part, f.tree.channels * t.TREE_LL128_CHANNEL[row][column])
    return bus * (0.85 if f.plain_tree else 1.0)


def _collnet_bus(collective: str, bus: float, graph: Graph, f: Figures) -> float:
    ppn = f.ranks / f.nodes
    if collective != "allreduce":
        return ppn * min(graph.intra, 0.9 * graph.inter)
    factor = ppn / graph.channels
    factor -= (factor - 1) / 2
    return bus / factor * (0.85 if f.capability >= 90 else 1.0)


def _nvls_channel(
    collective: str, algorithm: str, graph: Graph, row: int, column: int, f: Figures
) -> float:
    """Return the GB/s of one channel of NVLS or NVLSTree."""
    n, ppn = graph.channels, f.ranks / f.nodes
    way = 2.0 if collective == "allreduce" else (ppn - 1) / ppn
    limits = [graph.intra * t.NVLS_EFFICIENCY[row] * (n - 1) / n * way]
    if f.nodes > 1:
        limits.append(graph.inter * (2 if algorithm == "NVLSTree" and f.nodes <= 2 else 1))
    if algorithm == "NVLSTree":
        limits.append(t.NVLS_TREE_CHANNEL[row][column])
    return min(limits)


def _ratio(collective: str, algorithm: str, n: int) -> float:
    """Return the algorithm's bandwidth over the bus bandwidth."""
    if algorithm == "Ring":
        return n / _steps(collective, n)
    if collective != "allreduce":
        return 1.0
    return n / _steps(collective, n) if algorithm.startswith("NVLS") else 0.5


def _latency(collective: str, algorithm: str, p: int, f: Figures) -> float:
    """Return the us of a call of no bytes; p: the protocol's place."""
    near = "NVLINK" if f.within(f.type_intra, "NVL") else "PCI"
    base = t.BASE[algorithm][p]
    intra = t.HARDWARE[near][algorithm][p]
    # One rank a node sends and receives through one NIC, which is charged as in a tree.
    row = "Tree" if f.ranks == f.nodes else algorithm
    inter = t.HARDWARE["NET"][row][p] + f.net_latency * (2 if p == 2 else 1)
    if algorithm == "Ring":
        return base + _ring_latency(collective, p, intra, inter, near, f)
    hops = f.local - 1
    if algorithm == "Tree":
        return base + 2 * (hops * intra + log2(f.nodes) * inter)
    if algorithm == "CollNetDirect":
        return base + 2 * (min(1, hops) * intra + hops * 0.4) + inter
    if algorithm == "CollNetChain":
        return base + 2 * hops * intra + inter
    if algorithm == "NVLS":
        return intra + (inter if f.nodes > 1 else 0.0)
    if algorithm == "NVLSTree":
        return base + intra + 2 * log2(f.nodes) * inter
    return base + log2(f.nodes) * inter / 3.5 + f.ranks * 2.8


def _ring_latency(
    collective: str, p: int, intra: float, inter: float, near: str, f: Figures
) -> float:
    steps = _steps(collective, f.ranks)
    if collective in ("broadcast", "reduce"):
        where = near if f.nodes == 1 else "NET"
        if f.same_channels:
            return t.HARDWARE[where]["Ring"][p]
        return steps * t.HARDWARE[where]["Tree" if p == 2 else "Ring"][p]
    crossing = (f.nodes - 1) * (2 if collective == "allreduce" else 1)
    overhead = f.net_overhead * (3 if p == 2 else 1) if f.nodes > 1 else 0.0
    return (steps - crossing) * max(intra, overhead) + crossing * inter


def _corrected(
    collective: str, algorithm: str, protocol: str, cost: Cost, size: float, f: Figures
) -> float:
    """Return the us of a call of `size` bytes, as NCCL corrects them by size."""
    latency, bandwidth = cost.latency, cost.bandwidth
    if collective == "allreduce" and algorithm == "Tree" and size >= 64:
        row = t.TREE_CORRECTION[protocol]
        at = log2(int(size) >> 6)
        bandwidth *= row[at] if at < len(row) else 1.0
    ring = (collective, algorithm, protocol) == ("allreduce", "Ring", "Simple") and f.nodes > 1
    if ring and int(size) // (f.channels * f.ranks) >= _PLATEAU:
        latency *= 1.9 if f.capability < 80 else 1.4
    return Cost(latency, bandwidth).us(size)


def _times(collective: str, size: float, f: Figures) -> Iterator[tuple[float, str, str]]:
    for (algorithm, protocol), cost in cost_table(collective, f).items():
        yield _corrected(collective, algorithm, protocol, cost, size, f), algorithm, protocol


def channels_of(algorithm: str, protocol: str, size: float, f: Figures) -> int:
    """Return the channels NCCL uses: fewer than there are where a thread would have too little."""
    if algorithm.startswith("NVLS"):
        return f.nvls_channels
    threads, threshold = t.THREADS[protocol], t.THRESHOLDS[protocol]
    if algorithm.startswith("CollNet"):
        threshold = 512
    elif algorithm == "Ring" and protocol == "LL":
        threshold *= f.ranks
    return max(1, min(f.channels, int(size // (threads * threshold))))


def pick(f: Figures, collective: str, size: float) -> Pick:
    """Return what NCCL 2.30 would do for `size` bytes."""
    if f.ranks == 1:
        return Pick("Ring", "Simple", 1, 0.0, stand_ins(collective, "Ring"))
    if collective not in _OFFERED:
        return peer_to_peer(collective, size, f.ranks)
    us, algorithm, protocol = min(_times(collective, size, f), key=lambda entry: entry[0])
    channels = channels_of(algorithm, protocol, size, f)
    return Pick(algorithm, protocol, channels, us * 1e-6, stand_ins(collective, algorithm, f.nodes))
