"""Path classes between accelerators and NICs, as nvidia-smi and rocm-smi name them.

Owns the names and what decides between them. Works on the domain graph of any Topology; chooses
no route and knows no time (lower.py does). A pair has the first of these that fits:

    X      itself                          PIX   at most one PCI bridge
    NV#    # NVLinks, direct or switched   PXB   several PCI bridges, no CPU
    XGMI#  # xGMI links                    C2C   coherent links to one CPU, no PCI
    UAL#   # UALink lanes                  P2C   a coherent link to the CPU, then PCI
    ICI#   # links of a torus              PHB   through one CPU's host bridge
    NVB    through peer accelerators       SYS   through the link between CPUs
    PXN    through a peer next to the NIC  DIS   not reachable
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from .build import SCALE_UP, gpus_of, nics_of

__all__ = [
    "LEGEND",
    "Distances",
    "class_of",
    "distances",
    "gpu_matrix",
    "nearest_gpus",
    "nic_matrix",
]

LEGEND: dict[str, str] = {
    "X": "itself",
    "NV": "that many NVLinks, direct or through switches",
    "XGMI": "that many xGMI (Infinity Fabric) links",
    "UAL": "that many UALink lanes, direct or through switches",
    "ICI": "that many inter-chip links of a torus",
    "NVB": "scale-up links through one or more peer GPUs",
    "C2C": "coherent links to one CPU, no PCI",
    "PIX": "at most one PCI bridge",
    "PXB": "several PCI bridges, no CPU",
    "P2C": "a coherent link to the CPU, then PCI",
    "PXN": "scale-up link to a peer GPU, then that one's PCI path to the NIC",
    "PHB": "through the host bridge of one CPU (NUMA node)",
    "SYS": "through the link between CPUs (NUMA nodes)",
    "DIS": "not reachable",
}
"""What each class means, nearest first; NV, XGMI and UAL are followed by a count."""

_COUNTED = {"nvlink": "NV", "xgmi": "XGMI", "ualink": "UAL", "ici": "ICI"}
_HOST_KINDS = frozenset({"pci", "cpu"})
_Paths = dict[str, list[str]]


def _shortest(graph: nx.DiGraph, source: str, usable: Callable[[str, str], bool],
              through: Callable[[str], bool]) -> _Paths:  # fmt: skip
    """Return the path with fewest hops to every vertex that `usable` edges reach."""
    paths = {source: [source]}
    layer = [source]
    while layer:
        following = []
        for a in layer:
            for b in graph.successors(a):
                if b not in paths and usable(a, b):
                    paths[b] = [*paths[a], b]
                    following.append(b)
        layer = [v for v in following if through(v)]
    return paths


def _is_scale_up(graph: nx.DiGraph, a: str, b: str) -> bool:
    return graph.edges[a, b]["link"].medium in SCALE_UP


def _host_paths(graph: nx.DiGraph, gpu: str) -> _Paths:
    """Return the paths over PCI, coherent and CPU links alone."""
    return _shortest(graph, gpu, lambda a, b: not _is_scale_up(graph, a, b),
                     lambda v: graph.nodes[v]["kind"] in _HOST_KINDS)  # fmt: skip


def _peer_paths(graph: nx.DiGraph, gpu: str) -> _Paths:
    """Return the paths over scale-up links alone, through peers and switches."""
    return _shortest(graph, gpu, lambda a, b: _is_scale_up(graph, a, b), lambda v: True)


def _host_class(graph: nx.DiGraph, path: list[str]) -> str:
    """Return the class of a path over the host."""
    kinds = [graph.nodes[v]["kind"] for v in path]
    cpus = kinds.count("cpu")
    if cpus > 1:
        return "SYS"
    if cpus == 0:
        bridges = [v for v in path[1:-1] if graph.nodes[v].get("bridge", True)]
        return "PIX" if len(bridges) <= 1 else "PXB"
    media = [graph.edges[edge]["link"].medium for edge in pairwise(path)]
    if "c2c" not in media:
        return "PHB"
    return "C2C" if set(media) == {"c2c"} else "P2C"


@dataclass(frozen=True, slots=True)
class _Direct:
    """Lanes from each GPU: to GPUs, and to switches; and the medium's short name."""

    peers: dict[str, float]
    switches: tuple[tuple[str, float], ...]
    name: str


def _direct(graph: nx.DiGraph, gpu: str) -> _Direct:
    peers, switches, name = {}, [], ""
    for b in graph.successors(gpu):
        edge = graph.edges[gpu, b]
        if edge["link"].medium in SCALE_UP:
            name = _COUNTED[edge["link"].medium]
            if graph.nodes[b]["kind"] == "switch":
                switches.append((b, float(edge["lanes"])))
            else:
                peers[b] = float(edge["lanes"])
    return _Direct(peers, tuple(sorted(switches)), name)


def _counted(one: _Direct, other: _Direct, b: str) -> str:
    """Return NV#, XGMI# or UAL# when b is one link or one switch away; else ""."""
    lanes = one.peers.get(b, 0.0)
    if not lanes:
        back = dict(other.switches)
        lanes = sum(min(n, back.get(switch, 0.0)) for switch, n in one.switches)
    return f"{one.name}{round(lanes, 3):g}" if lanes else ""


def gpu_matrix(graph: nx.DiGraph) -> list[list[str]]:
    """Return the path class of every accelerator (row) to every accelerator (column), by index."""
    gpus = gpus_of(graph)
    direct = {gpu: _direct(graph, gpu) for gpu in gpus}
    memo: dict[tuple[object, object], str] = {}  # GPUs on the same switches have the same class
    return [_row(graph, a, gpus, direct, memo) for a in gpus]


def _relayed(graph: nx.DiGraph, path: list[str], one: _Direct, other: _Direct) -> str:
    """Return the class of a scale-up path of several hops: NVB, or a count where no GPU relays."""
    if any(graph.nodes[v]["kind"] == "gpu" for v in path[1:-1]):
        return "NVB"
    lanes = min(sum(n for _, n in end.switches) for end in (one, other))
    return f"{one.name}{round(lanes, 3):g}"


def _row(graph: nx.DiGraph, a: str, gpus: list[str], direct: dict[str, _Direct],
         memo: dict[tuple[object, object], str]) -> list[str]:  # fmt: skip
    row = []
    for b in gpus:
        if a == b:
            row.append("X")
            continue
        key = (direct[a].switches, direct[b].switches)
        if b in direct[a].peers or key not in memo:
            cell = _counted(direct[a], direct[b], b)
            if b not in direct[a].peers:
                memo[key] = cell
        else:
            cell = memo[key]
        row.append(cell)
    if "" in row:
        peers, hosted = _peer_paths(graph, a), _host_paths(graph, a)
        for j, b in enumerate(gpus):
            if not row[j]:
                if b in peers:
                    row[j] = _relayed(graph, peers[b], direct[a], direct[b])
                else:
                    row[j] = _host_class(graph, hosted[b]) if b in hosted else "DIS"
    return row


def _together(graph: nx.DiGraph) -> dict[str, int]:
    """Return a number for each vertex with scale-up links, equal where they reach each other."""
    up = nx.DiGraph((a, b) for a, b in graph.edges if _is_scale_up(graph, a, b))
    groups = nx.strongly_connected_components(up)
    return {v: number for number, group in enumerate(groups) for v in group}


def _over_links(graph: nx.DiGraph, path: list[str]) -> str:
    """Return the class of a path to a NIC that scale-up links join: NV#, or PXN through a peer."""
    if any(graph.nodes[v]["kind"] == "gpu" for v in path[1:-1]):
        return "PXN"
    edges = [graph.edges[edge] for edge in pairwise(path)]
    lanes = min(float(edge["lanes"]) for edge in edges)
    return f"{_COUNTED[edges[0]['link'].medium]}{round(lanes, 3):g}"


def class_of(cell: str) -> str:
    """Return the name in LEGEND of what a matrix holds: "NV" of "NV18"."""
    return cell if cell in LEGEND else cell.rstrip("0123456789.")


def nic_matrix(graph: nx.DiGraph) -> list[list[str]]:
    """Return the path class of every accelerator (row) to every NIC (column), by index."""
    gpus, nics = gpus_of(graph), nics_of(graph)
    if not nics:
        return [[] for _ in gpus]
    hosted = {gpu: _host_paths(graph, gpu) for gpu in gpus}
    reached = {nic: {gpu for gpu in gpus if nic in hosted[gpu]} for nic in nics}
    rows = []
    together = _together(graph)
    known: dict[int, set[str]] = {}  # what one of those that reach each other reaches, all do
    on_scale_up = {nic for nic in nics if any(_is_scale_up(graph, a, nic)
                                              for a in graph.predecessors(nic))}  # fmt: skip
    for gpu in gpus:
        peers = _peer_paths(graph, gpu) if on_scale_up else {}
        row = []
        for nic in nics:
            if gpu in reached[nic]:
                row.append(_host_class(graph, hosted[gpu][nic]))
                continue
            if nic in on_scale_up and nic in peers:
                row.append(_over_links(graph, peers[nic]))
                continue
            key = together.get(gpu, -1)
            if key not in known:
                known[key] = set(_peer_paths(graph, gpu)) if key >= 0 else set()
            row.append("DIS" if known[key].isdisjoint(reached[nic]) else "PXN")
        rows.append(row)
    return rows


def nearest_gpus(graph: nx.DiGraph, matrix: list[list[str]] | None = None) -> list[list[int]]:
    """Return, per NIC, the indices of the accelerators whose path class to it is the nearest.

    matrix: the result of nic_matrix, if it is at hand. A NIC without a host path to any has none.
    """
    rows = nic_matrix(graph) if matrix is None else matrix
    order = [name for name in LEGEND if name not in ("PXN", "DIS")]
    nearest = []
    for q in range(len(nics_of(graph))):
        ranks = {i: order.index(class_of(row[q])) for i, row in enumerate(rows)
                 if class_of(row[q]) in order}  # fmt: skip
        best = min(ranks.values(), default=0)
        nearest.append([i for i, rank in ranks.items() if rank == best])
    return nearest


@dataclass(frozen=True, slots=True)
class Distances:
    """The three tables of ``rocm-smi --showtopo``: rows and columns are accelerators, by index.

    weight: 15 a scale-up link, 20 a PCI path to the CPU, 32 between CPUs (what the kernel driver
    reports for xGMI, PCIe and two EPYC sockets). hops: links, with a switch and a PCI tree each
    counted as one. kind: XGMI, NVLINK, UALINK, PCIE; "-" where there is no path. Itself: 0.
    """

    weight: list[list[int]]
    hops: list[list[int]]
    kind: list[list[str]]


def distances(graph: nx.DiGraph) -> Distances:
    """Return weight, hops and link type between every two accelerators."""
    gpus = gpus_of(graph)
    table = Distances([], [], [])
    for a in gpus:
        peers, hosted = _peer_paths(graph, a), _host_paths(graph, a)
        row = [_distance(graph, a, b, peers, hosted) for b in gpus]
        table.weight.append([weight for weight, _, _ in row])
        table.hops.append([hops for _, hops, _ in row])
        table.kind.append([kind for _, _, kind in row])
    return table


def _distance(graph: nx.DiGraph, a: str, b: str, peers: _Paths,
              hosted: _Paths) -> tuple[int, int, str]:  # fmt: skip
    if a == b:
        return 0, 0, "0"
    if b in peers:
        hops = sum(graph.nodes[v]["kind"] == "gpu" for v in peers[b][1:])
        medium = graph.edges[a, peers[b][1]]["link"].medium
        return 15 * hops, hops, medium.upper()
    if b not in hosted:
        return 0, 0, "-"
    crossings = sum(graph.edges[e]["link"].medium == "cpu" for e in pairwise(hosted[b]))
    return 40 + 32 * crossings, 2 + crossings, "PCIE"
