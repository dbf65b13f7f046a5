"""Routes between the accelerators of one node.

Owns how a route is chosen: a direct scale-up link, else all switches both ends are joined to (by
bandwidth), else the shortest scale-up path through peers, else the host's PCI tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..fabric import F64
from .build import SCALE_UP
from .node_graph import Entries, NodeGraph, widest_shortest

__all__ = ["Pairs", "pair_routes"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Routes between every two accelerators of a node (key i * m + j), and what they cost."""

    entries: list[Entries]
    done: np.ndarray
    latency: F64
    message: F64


def _fill(g: NodeGraph, pairs: Pairs, key: int, path: list[str]) -> None:
    """Write one single-path route into `pairs`."""
    edges = list(pairwise(path))
    pairs.entries.append(
        (np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges)))
    )
    pairs.latency[:, key] = sum(g.latency(*e) for e in edges)
    if not any(g.medium(*e) in SCALE_UP for e in edges):
        # A host path pays PCI's hand-shake once, however many bridges it crosses.
        first = next((g.graph.edges[e]["link"] for e in edges if g.medium(*e) == "pci"), None)
        if first is not None:
            pairs.latency[:, key] += np.array(first.latency)
    pairs.message[key] = max(g.graph.edges[e]["message"] for e in edges)
    pairs.done[key] = True


def _switched(g: NodeGraph, pairs: Pairs) -> None:
    """Route the pairs that share switches: over all of them, shares by bandwidth."""
    m, switches = len(g.gpus), [v for v in g.graph if g.kind(v) == "switch"]
    if not switches:
        return
    up = np.full((m, len(switches)), -1)
    down = np.full((m, len(switches)), -1)
    bandwidth = np.array([d["bandwidth"] for _, _, d in g.graph.edges(data=True)] + [0.0])
    for i, gpu in enumerate(g.gpus):
        for k, switch in enumerate(switches):
            up[i, k] = g.number.get((gpu, switch), -1)
            down[i, k] = g.number.get((switch, gpu), -1)
    width = np.minimum(bandwidth[up][:, None, :], bandwidth[down][None, :, :])
    width[pairs.done.reshape(m, m)] = 0.0
    total = width.sum(axis=2)
    a, b, w = np.nonzero(width)
    key, share = a * m + b, width[a, b, w] / total[a, b]
    pairs.entries.append(
        (np.repeat(key, 2), np.stack([up[a, w], down[b, w]], 1), np.repeat(share, 2))
    )
    latency = np.array([d["latency"] for _, _, d in g.graph.edges(data=True)])
    message = np.array([d["message"] for _, _, d in g.graph.edges(data=True)])
    pairs.latency[:, key] = (latency[up[a, w]] + latency[down[b, w]]).T
    pairs.message[key] = message[up[a, w]]
    pairs.done[key] = True


def pair_routes(g: NodeGraph) -> Pairs:
    """Return the routes between every two accelerators; none where nothing joins them."""
    m = len(g.gpus)
    index = {v: i for i, v in enumerate(g.gpus)}
    pairs = Pairs([], np.eye(m, dtype=bool).ravel(), np.zeros((3, m * m)), np.zeros(m * m))
    for a, b, data in g.graph.edges(data=True):
        if a in index and b in index and data["link"].medium in SCALE_UP:
            _fill(g, pairs, index[a] * m + index[b], [a, b])
    _switched(g, pairs)

    def is_scale_up(a: str, b: str) -> bool:
        return g.medium(a, b) in SCALE_UP

    def is_host(vertex: str) -> bool:
        return g.kind(vertex) in ("pci", "cpu")

    for i, a in enumerate(g.gpus):
        open_pairs = np.flatnonzero(~pairs.done[i * m : (i + 1) * m])
        if not len(open_pairs):
            continue
        relayed = widest_shortest(g, a, is_scale_up, lambda v: g.kind(v) != "nic")
        hosted = widest_shortest(g, a, lambda x, y: not is_scale_up(x, y), is_host)
        for j in open_pairs.tolist():
            path = relayed.get(g.gpus[j]) or hosted.get(g.gpus[j])
            if path is not None:
                _fill(g, pairs, i * m + j, path)
    return pairs
