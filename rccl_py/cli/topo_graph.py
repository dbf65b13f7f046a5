"""The planner's rings of a node as graph XML: which GPUs, entered and left by which NICs.

Owns how channels are made of rings. NCCL takes the channels of a file as they are, so every NIC
that GPUs use is entered by one and left by one: a NIC without is idle in every job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..fabric import Fabric
    from ..topology import Topology

__all__ = ["graph_of_rings"]

_CHANNELS = 64  # NCCL's MAXCHANNELS since 2.24; RCCL takes 256
_TRIED = 256  # paths looked at for the one whose links are used least
_CLASSES = ("NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")  # NCCL's path types, nearest first

Path = tuple[int, ...]
Net = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Channel:
    """The GPUs of one channel in order, and the NICs (-1: none) it enters and leaves by."""

    path: Path
    nets: Net

    @property
    def ends(self) -> Path:
        """The GPUs beside the NICs."""
        return self.path[0], self.path[-1]


def graph_of_rings(topology: Topology) -> tuple[str, list[str]]:
    """Return the rings of the node of `topology` as graph XML, and remarks for its user."""
    from ..errors import FabricError
    from ..planner import Planner
    from ..topology import lower
    from ..topology.build import Network

    node = replace(topology, nodes=1, unlike=(), place=())
    fabric = lower(node)
    try:
        # Rings over two nodes enter and leave by the NICs, as those of a cluster do.
        two = Planner(lower(replace(node, nodes=2, network=Network()))).rings
    except FabricError:  # without NICs that all GPUs reach there is one node alone
        orders = Planner(fabric).rings.orders.tolist()
        return _written(node, fabric, [_Channel(tuple(o), (-1, -1)) for o in orders]), []
    each = fabric.nranks
    paths = [tuple(rank for rank in order if rank < each) for order in two.orders.tolist()]
    if len(two.local_orders) == 1 and each > 1:
        paths = list(_both_ways(paths))
    nics = [fabric.domain.nics_of(i) for i in range(each)]
    channels = _paired(_channels(paths, nics))
    if len(channels) <= _CHANNELS:
        return _written(node, fabric, channels), []
    kept, every = _kept(channels), {q for own in nics for q in own}
    used = {c.nets[0] for c in kept} & {c.nets[1] for c in kept}
    remark = f"{_CHANNELS} channels, all that NCCL takes, use {len(used)} of {len(every)} NICs"
    return _written(node, fabric, kept), [remark] if used < every else []


def _both_ways(paths: list[Path]) -> Iterator[Path]:
    """Yield every second turn of one ring, and the same backwards: the NICs at its ends pair up."""
    for path in paths[::2]:
        yield path
        yield path[::-1]


def _channels(paths: list[Path], nics: list[list[int]]) -> list[_Channel]:
    """Return a channel a path, and more until every NIC is entered and left.

    nics: those that each GPU uses. A path added closes as a ring and is cut open anew.
    """
    entered: Counter[int] = Counter()
    left: Counter[int] = Counter()
    found: list[_Channel] = []

    def add(path: Path) -> None:
        enter = min(nics[path[0]], key=lambda q: entered[q])
        leave = min(nics[path[-1]], key=lambda q: (left[q], q == enter and len(path) > 1))
        entered[enter] += 1
        left[leave] += 1
        found.append(_Channel(path, (enter, leave)))

    for path in paths:
        add(path)
    every = sorted({q for own in nics for q in own})
    if all(entered[q] and left[q] for q in every):
        return found
    # The planner's own paths first: turned ones cross the link that closes their ring.
    own = list(dict.fromkeys(paths))
    turns = own + [path[k:] + path[:k] for path in own for k in range(1, len(path))]
    turns += [path[::-1] for path in turns]
    uses = Counter(hop for path in paths for hop in pairwise(path))
    while any(not entered[q] or not left[q] for q in every):

        def gain(path: Path) -> int:
            ends = (entered, path[0]), (left, path[-1])
            return sum(any(not uses[q] for q in nics[gpu]) for uses, gpu in ends)

        most = max(map(gain, turns))
        best = list(islice((path for path in turns if gain(path) == most), _TRIED))
        path = min(best, key=lambda p: max((uses[hop] for hop in pairwise(p)), default=0))
        uses.update(pairwise(path))
        add(path)
    return found


def _kept(channels: list[_Channel]) -> list[_Channel]:
    """Return as many channels as NCCL takes, by twos, first those that bring in other NICs."""
    pairs = [channels[k : k + 2] for k in range(0, len(channels), 2)]
    seen: set[int] = set()
    first: list[list[_Channel]] = []
    last: list[list[_Channel]] = []
    for pair in pairs:
        nets = {q for c in pair for q in c.nets}
        (last if nets <= seen else first).append(pair)
        seen |= nets
    return [c for pair in first + last for c in pair][:_CHANNELS]


def _paired(channels: list[_Channel]) -> list[_Channel]:
    """Return channels so that, where it can be, each second one goes back over the first's NICs.

    With such pairs (crossnic 2) NCCL changes them round in every other node, which keeps rails.
    """
    waiting = list(channels)
    pairs: list[_Channel] = []
    alone: list[_Channel] = []
    while waiting:
        one = waiting.pop(0)
        back = next((k for k, c in enumerate(waiting) if c.nets == one.nets[::-1]), None)
        if back is None:
            alone.append(one)
        else:
            pairs += [one, waiting.pop(back)]
    return pairs + alone


def _speed(fabric: Fabric, channels: list[_Channel]) -> float:
    """Return B/s that every channel can have inside the node while all are busy."""
    hops = np.array([hop for c in channels for hop in pairwise(c.path)], dtype=np.int32)
    if not len(hops):
        return float(fabric.memory)
    routes = fabric.routes(hops[:, 0], hops[:, 1])
    load = np.bincount(routes.link, routes.share, fabric.nlinks)
    used = load > 0
    return float((np.asarray(fabric.bandwidth)[used] / load[used]).min())


def _across(topology: Topology, channels: list[_Channel]) -> float:
    """Return B/s of a channel between nodes: a NIC's, shared by those that enter or leave by it."""
    from ..topology.build import nics_of
    from ..topology.figures import limited

    nics = nics_of(topology.node)
    uses = [Counter(c.nets[end] for c in channels) for end in (0, 1)]
    return min(limited(topology.node, nics[q]) / count for use in uses for q, count in use.items())


def _written(topology: Topology, fabric: Fabric, channels: list[_Channel]) -> str:
    """Return the text, with the speed of a channel and the worst path of any."""
    from ..topology.build import gpus_of, nics_of
    from ..topology.formats.nccl.graph_write import rings_graph, write_graph_xml
    from ..topology.paths import gpu_matrix, nic_matrix

    graph = topology.node
    gpus, nics = gpu_matrix(graph), nic_matrix(graph)
    number = [[graph.nodes[v]["index"] for v in of(graph)] for of in (gpus_of, nics_of)]
    inside = [gpus[a][b] for c in channels for a, b in pairwise(c.path)]
    open_ended = channels[0].nets[0] >= 0
    outside = [nics[g][q] for c in channels for g, q in zip(c.ends, c.nets)] if open_ended else []
    return write_graph_xml(
        rings_graph(
            [[number[0][gpu] for gpu in c.path] for c in channels],
            [[number[1][q] for q in c.nets] for c in channels] if open_ended else None,
            speed_intra=_speed(fabric, channels),
            speed_inter=_across(topology, channels) if open_ended else 0.0,
            type_intra=_worst(inside, "NVL"),
            type_inter=_worst(outside, "PIX"),
        )
    )


def _nccl(cell: str) -> str:
    """Return NCCL's name of a path class: links of every kind are its NVL."""
    if cell in _CLASSES:
        return cell
    return {"C2C": "PHB", "P2C": "PHB", "DIS": "SYS"}.get(cell, "NVL")


def _worst(cells: list[str], none: str) -> str:
    return max((_nccl(c) for c in cells), key=_CLASSES.index, default=none)
