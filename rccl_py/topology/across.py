"""How the accelerators of a node reach its NICs, and which NICs each of them uses.

Owns the choice: an accelerator uses its nearest NICs over the host, shared out among the
accelerators as near as it is; one without any uses the NICs nearest over its peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..fabric import F64, I64, Table
from .build import SCALE_UP
from .node_graph import Entries, NodeGraph, widest_shortest

__all__ = ["Attached", "attached"]

_PCI_HOP = 0.15e-6  # assumed: a PCIe switch traversal, as in build.add_pcie


@dataclass(frozen=True, eq=False)
class Attached:
    """The attachments of a node, in the words of rccl_py.fabric.Domain."""

    attach: I64
    nic: np.ndarray
    up: Table
    down: Table
    wait: F64
    owner: np.ndarray


def _host_paths(g: NodeGraph, gpu: str) -> dict[str, list[str]]:
    """Return the paths of an accelerator to every NIC it reaches without a peer."""
    paths = widest_shortest(
        g,
        gpu,
        lambda a, b: g.medium(a, b) not in SCALE_UP,
        lambda v: g.kind(v) in ("pci", "cpu"),
    )
    return {v: path for v, path in paths.items() if g.kind(v) == "nic"}


def _peer_paths(g: NodeGraph, gpu: str) -> dict[str, list[str]]:
    """Return the paths of an accelerator to every NIC, through peers too."""
    paths = widest_shortest(g, gpu, lambda a, b: True, lambda v: g.kind(v) != "nic")
    return {v: path for v, path in paths.items() if g.kind(v) == "nic"}


def _nearest(paths: dict[str, list[str]], index: dict[str, int]) -> tuple[int, ...]:
    best = min(map(len, paths.values()), default=0)
    return tuple(sorted(index[v] for v, path in paths.items() if len(path) == best))


def _shared_out(nearest: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return each accelerator's part of its nearest NICs, which as near others use too."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, near in enumerate(nearest):
        groups.setdefault(near, []).append(i)
    used: list[tuple[int, ...]] = [()] * len(nearest)
    for near, members in groups.items():
        count, nics = len(members), len(near)
        for k, i in enumerate(members):
            first = k * nics // count
            used[i] = near[first : max((k + 1) * nics // count, first + 1)]
    return used


def attached(g: NodeGraph) -> Attached:
    """Return which NICs each accelerator of the node uses, and the links to them and back."""
    index = {v: q for q, v in enumerate(g.nics)}
    paths = [_host_paths(g, gpu) if index else {} for gpu in g.gpus]
    if index and not all(paths):
        paths = [own or _peer_paths(g, gpu) for gpu, own in zip(g.gpus, paths)]
    used = _shared_out([_nearest(own, index) for own in paths])
    up: list[Entries] = []
    down: list[Entries] = []
    nic: list[int] = []
    wait: list[float] = []
    for own, nics in zip(paths, used):
        for q in nics:
            path = own[g.nics[q]]
            up.append(_entries(g, len(nic), path))
            down.append(_entries(g, len(nic), path[::-1]))
            wait.append(_waited(g, path))
            nic.append(q)
    owner = np.full(len(index), -1, dtype=np.int32)
    for number in reversed(range(len(nic))):
        owner[nic[number]] = number
    ptr = np.concatenate([[0], np.cumsum([len(nics) for nics in used])]).astype(np.int64)
    return Attached(
        ptr,
        np.array(nic, dtype=np.int32),
        Table.of(len(nic), up),
        Table.of(len(nic), down),
        np.array(wait),
        owner,
    )


def _entries(g: NodeGraph, key: int, path: list[str]) -> Entries:
    edges = list(pairwise(path))
    return np.full(len(edges), key), np.array([g.number[e] for e in edges]), np.ones(len(edges))


def _waited(g: NodeGraph, path: list[str]) -> float:
    """Return the s that the hops of a path to a NIC add: PCI traversals, and links to peers."""
    waited = 0.0
    for a, b in pairwise(path):
        waited += g.latency(a, b)[0] if g.medium(a, b) in SCALE_UP else _PCI_HOP
    return waited
