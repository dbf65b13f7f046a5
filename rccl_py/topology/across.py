"""How the accelerators of a node reach its NICs, and which NICs each of them uses.

Owns the choice: an accelerator uses its nearest NICs over the host, shared out among the
accelerators as near as it is; one without any uses the NICs nearest over its peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..errors import FabricError
from ..fabric import F64, I64, Table
from .build import SCALE_UP
from .node_graph import NodeGraph, widest_shortest

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
    paths = widest_shortest(g.host, gpu, lambda v: g.kinds[v] in ("pci", "cpu"))
    return {v: path for v, path in paths.items() if g.kinds[v] == "nic"}


def _peer_paths(g: NodeGraph, gpu: str) -> dict[str, list[str]]:
    """Return the paths of an accelerator to every NIC, through peers too."""
    paths = widest_shortest(g.all_links, gpu, lambda v: g.kinds[v] != "nic")
    return {v: path for v, path in paths.items() if g.kinds[v] == "nic"}


def _nearest(g: NodeGraph, paths: dict[str, list[str]], index: dict[str, int]) -> tuple[int, ...]:
    """Return the NICs of the nearest class: without a CPU between, then one, then several.

    Among those the ones with the fewest hops, as NCCL orders PIX, PXB, PHB and SYS.
    """
    far = {v: (sum(g.kinds[x] == "cpu" for x in path), len(path)) for v, path in paths.items()}
    best = min(far.values(), default=(0, 0))
    return tuple(sorted(index[v] for v, distance in far.items() if distance == best))


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
    used = _shared_out([_nearest(g, own, index) for own in paths])
    key: list[int] = []
    links: list[tuple[int, int]] = []  # on the way to the NIC, and the same link back
    nic: list[int] = []
    wait: list[float] = []
    for own, nics in zip(paths, used):
        for q in nics:
            path = own[g.nics[q]]
            for a, b in pairwise(path):
                if (b, a) not in g.number:
                    raise FabricError(f"{a} -> {b} has no link back: {g.nics[q]} cannot be used")
                key.append(len(nic))
                links.append((g.number[a, b], g.number[b, a]))
            wait.append(_waited(g, path))
            nic.append(q)
    owner = np.full(len(index), -1, dtype=np.int32)
    hops = np.bincount(key, minlength=len(nic))
    for number in np.lexsort((np.arange(len(nic)), hops))[::-1].tolist():
        owner[nic[number]] = number  # at last the nearest, and of those the first
    ptr = np.concatenate([[0], np.cumsum([len(nics) for nics in used])]).astype(np.int64)
    up, down = np.array(links, dtype=np.int64).reshape(-1, 2).T
    whole = np.ones(len(key))
    return Attached(
        ptr,
        np.array(nic, dtype=np.int32),
        Table.of(len(nic), [(key, up, whole)]),
        Table.of(len(nic), [(key, down, whole)]),
        np.array(wait),
        owner,
    )


def _waited(g: NodeGraph, path: list[str]) -> float:
    """Return the s that the hops of a path to a NIC add: PCI traversals, and links to peers."""
    waited = 0.0
    for a, b in pairwise(path):
        edge = g.edge(a, b)
        waited += edge["latency"][0] if edge["link"].medium in SCALE_UP else _PCI_HOP
    return waited
