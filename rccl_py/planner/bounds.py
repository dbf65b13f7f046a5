"""Lower bounds: what no algorithm on this fabric can beat, and the cut that says so.

Owns the cuts tried and the volume each collective must send over them. A cut is a set of ranks
and the links its traffic to the others must cross. Sets tried: single ranks, the islands left
when links below each capacity are removed, nodes, leaves. Sources: "Allgather on any capacitated
graph" (ForestColl's cut formula), and for allreduce also the unicast volume between the groups of
a partition, 2 (P - 1) M over the capacity leaving them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..collectives import COLLECTIVES
from ..fabric import I64, Fabric, Routes
from ..schedule import I32
from ..units import format_bandwidth

__all__ = ["Bound", "Cuts", "find_cuts", "lower_bound"]

_REPRESENTATIVES = 16  # nodes whose ranks are all tried; a fabric's further nodes are copies


@dataclass(frozen=True, slots=True)
class Bound:
    """seconds: no call of this size can be faster. cut: the set and links that say so."""

    seconds: float
    cut: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """One set of ranks: B/s that can leave and enter it, and the partition it belongs to."""

    name: str
    ranks: I32
    out: float
    into: float
    partition: str


@dataclass(frozen=True, eq=False)
class Cuts:
    """The cuts of a fabric; partitions: name -> (groups, B/s leaving all of them together).

    roots: the cuts around single roots, as they are asked for.
    """

    cuts: tuple[_Cut, ...]
    partitions: dict[str, tuple[int, float]]
    hop: float
    roots: dict[int, _Cut] = field(default_factory=dict)


def _capacity(fabric: Fabric, src: I32, dst: I32) -> float:
    """Return the B/s the routes src x dst can carry together: the narrowest place all cross."""
    s, d = (a.ravel().astype(np.int32) for a in np.meshgrid(src, dst, indexing="ij"))
    same = fabric.node[s] == fabric.node[d]
    total = 0.0
    for part in (same, ~same):
        if part.any():
            total += min(_widths(fabric, s[part], d[part], inside=part is same))
    return total


def _widths(fabric: Fabric, src: I32, dst: I32, *, inside: bool) -> Iterator[float]:
    """Yield the capacity of each set of links that every one of these routes crosses."""
    routes, bandwidth = fabric.routes(src, dst), fabric.bandwidth
    used = np.flatnonzero(np.bincount(routes.link, minlength=fabric.nlinks))
    own, ports = fabric.cables, fabric.ports
    if inside:
        # Whose links they are: an accelerator's number over the whole fabric, -1 for none.
        tail, head = (_ends(fabric, used[used < own], end) for end in ("tail", "head"))
        source, target = np.unique(fabric.place[src]), np.unique(fabric.place[dst])
        # A relayed route also crosses links inside its own side: those are no part of the cut.
        leaves = np.isin(tail, source) & ~np.isin(head, source)
        enters = np.isin(head, target) & ~np.isin(tail, target)
        yield float(bandwidth[used[used < own][leaves]].sum())
        yield float(bandwidth[used[used < own][enters]].sum())
        return
    yield float(bandwidth[used[(used >= own) & (used < own + ports)]].sum())
    yield float(bandwidth[used[(used >= own + ports) & (used < own + 2 * ports)]].sum())
    if fabric.wiring is None:
        return
    wired = used[used >= own + 2 * ports]
    layer = fabric.wiring.layer[wired - own - 2 * ports]
    for number in np.unique(layer[layer >= 0]):
        links = wired[layer == number]
        if _all_cross(routes, links, len(src)):
            yield float(bandwidth[links].sum())


def _all_cross(routes: Routes, links: I64, count: int) -> bool:
    """Return whether each of `count` transfers crosses one of `links`."""
    crossing = routes.share[np.isin(routes.link, links)].sum()
    return bool(crossing >= count * (1 - 1e-9))


def _ends(fabric: Fabric, links: I64, end: str) -> I64:
    """Return the accelerator, over the whole fabric, at an end of each own link; -1 for none."""
    node = np.searchsorted(fabric.first_link, links, side="right") - 1
    found = np.full(len(links), -1, dtype=np.int64)
    for kind, domain in enumerate(fabric.domains):
        at = np.flatnonzero(fabric.kind[node] == kind)
        local = getattr(domain, end)[links[at] - fabric.first_link[node[at]]].astype(np.int64)
        found[at] = np.where(local < 0, -1, local + fabric.first_gpu[node[at]])
    return found


def _islands(fabric: Fabric, ranks: I32) -> Iterator[tuple[str, list[I32]]]:
    """Yield the groups of one node's ranks that links of at least each capacity hold together."""
    domain = fabric.domains[int(fabric.kind[fabric.node[ranks[0]]])]
    between = (domain.tail >= 0) & (domain.head >= 0)
    widths = np.unique(domain.bandwidth[between])
    place = {int(local): rank for local, rank in zip(fabric.local[ranks], ranks)}
    for width in widths[1:]:
        group = {local: {local} for local in place}
        for a, b in zip(
            domain.tail[between & (domain.bandwidth >= width)],
            domain.head[between & (domain.bandwidth >= width)],
        ):
            if int(a) in group and int(b) in group and group[int(a)] is not group[int(b)]:
                merged = group[int(a)] | group[int(b)]
                group.update(dict.fromkeys(merged, merged))
        sets = {frozenset(s) for s in group.values()}
        if 1 < len(sets) < len(place):
            yield (
                f"links of {format_bandwidth(float(width))}",
                [
                    np.array([place[v] for v in sorted(s)], dtype=np.int32)
                    for s in sorted(sets, key=min)
                ],
            )


def _unlike(fabric: Fabric, node: I32) -> tuple[list[I32], list[int]]:
    """Return one rank of each kind in a node, and how many there are of each.

    Ranks are of a kind when their links, in and out, and their NICs are as wide.
    """
    domain = fabric.domains[int(fabric.kind[fabric.node[node[0]]])]
    used = np.append(np.isin(np.arange(domain.ngpus), fabric.local[node]), True)
    joins = used[domain.tail] & used[domain.head]  # -1, a switch or the host, is the last: used
    kinds: dict[tuple[object, ...], list[int]] = {}
    for rank, local in zip(node.tolist(), fabric.local[node].tolist()):
        widths = [
            np.sort(domain.bandwidth[joins & (ends == local)]).tobytes()
            for ends in (domain.tail, domain.head)
        ]
        ports = [float(domain.port[nic]) for nic in domain.nics_of(local)]
        kinds.setdefault((*widths, *ports), []).append(rank)
    groups = [np.array(ranks[:1], dtype=np.int32) for ranks in kinds.values()]
    return groups, [len(ranks) for ranks in kinds.values()]


def _partitions(fabric: Fabric) -> Iterator[tuple[str, list[I32], list[int]]]:
    """Yield (name, representative groups, how many each stands for) of ways to split the ranks."""
    ranks = np.arange(fabric.nranks, dtype=np.int32)
    nodes = [ranks[fabric.node == a] for a in np.unique(fabric.node)]
    alike = len({len(node) for node in nodes}) == 1 and len(nodes) > _REPRESENTATIVES
    some = (
        nodes[:1] if alike else nodes if len(nodes) <= _REPRESENTATIVES else [nodes[0], nodes[-1]]
    )
    kinds, weights = zip(*(_unlike(fabric, node) for node in some))
    yield "rank", [g for part in kinds for g in part], [w for part in weights for w in part]
    if len(nodes) == 1:
        for name, groups in _islands(fabric, ranks):
            yield f"group joined by {name}", groups, [1] * len(groups)
        return
    yield "node", some, [1] * len(some)
    if fabric.wiring is None:
        return
    ports = np.minimum(fabric.first_port[:-1], fabric.ports - 1)
    for name, group in fabric.wiring.parts.items():
        own = group[ports][fabric.node]  # that of the node's first NIC
        held = [ranks[own == v] for v in np.unique(own)]
        if len(held) > 1:
            some = held if len(held) <= 2 else [held[0], held[-1]]
            yield name, some, [max(1, len(held) - 1), 1]


def _ranks_text(group: I32) -> str:
    """Return ``"rank 3"``, ``"ranks 0..7"`` or ``"ranks 0, 1, 6, 7"``."""
    if len(group) == 1:
        return f"rank {group[0]}"
    breaks = np.flatnonzero(np.diff(group) != 1) + 1
    runs = [(part[0], part[-1]) for part in np.split(group, breaks)]
    texts = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}..{b}" for a, b in runs]
    return f"ranks {', '.join(texts[:8])}{', ...' if len(texts) > 8 else ''}"


def find_cuts(fabric: Fabric) -> Cuts:
    """Return the cuts of `fabric` with their capacities."""
    everyone = np.arange(fabric.nranks, dtype=np.int32)
    cuts, partitions = [], {}
    for name, groups, weights in _partitions(fabric):
        leaving, stood_for, members = 0.0, 0, 0
        for group, weight in zip(groups, weights):
            rest = np.setdiff1d(everyone, group).astype(np.int32)
            if not len(rest):
                continue
            out, into = _capacity(fabric, group, rest), _capacity(fabric, rest, group)
            title = _ranks_text(group) if name == "rank" else f"{_ranks_text(group)} ({name})"
            cuts.append(_Cut(title, group, out, into, name))
            leaving += out * weight
            stood_for += weight
            members += weight * len(group)
        if leaving:
            # Where only some nodes were looked at, the others are copies of them.
            scale = fabric.nranks / members
            partitions[name] = round(stood_for * scale), leaving * scale
    hop = 0.0
    if fabric.nranks > 1:
        same = len(np.unique(fabric.node)) == 1
        src = np.zeros(fabric.nranks - 1, dtype=np.int32)
        reached = fabric.latency(src, everyone[1:])[0]
        hop = float(reached.min() if same else reached[fabric.node[1:] != fabric.node[0]].min())
    return Cuts(tuple(cuts), partitions, hop)


def _around(fabric: Fabric, cuts: Cuts, root: int) -> _Cut:
    """Return the cut between `root` and all other ranks."""
    if root not in cuts.roots:
        alone = np.array([root], dtype=np.int32)
        rest = np.setdiff1d(np.arange(fabric.nranks), alone).astype(np.int32)
        out, into = _capacity(fabric, alone, rest), _capacity(fabric, rest, alone)
        cuts.roots[root] = _Cut(_ranks_text(alone), alone, out, into, "rank")
    return cuts.roots[root]


def _volumes(collective: str, w: int, n: int, has_root: bool) -> tuple[float, float]:
    """Return (out, in): the part of the size M that must leave and enter a set of w ranks."""
    gathered, own = (n - w) / n, w / n
    return {
        "allreduce": (1.0, 1.0),
        "allgather": (own, gathered),
        "reduce_scatter": (gathered, own),
        "alltoall": (w * gathered, w * gathered),
        "broadcast": (1.0, 0.0) if has_root else (0.0, 1.0),
        "reduce": (0.0, 1.0) if has_root else (1.0, 0.0),
        "gather": (0.0, gathered) if has_root else (own, 0.0),
        "scatter": (gathered, 0.0) if has_root else (0.0, own),
    }[collective]


def _text(name: str, share: float, size: float, rate: float, way: str) -> str:
    return f"{name}: {share * size / 1e9:.4g} GB must {way} at {format_bandwidth(rate)}"


def lower_bound(fabric: Fabric, cuts: Cuts, collective: str, size: float, root: int = 0) -> Bound:
    """Return the lower bound of a call of `size` bytes (rccl-tests' size) on `fabric`."""
    n = fabric.nranks
    if n == 1:
        return Bound(fabric.launch, "launch: one rank needs no link")
    best = Bound(cuts.hop, "latency: one hop of the fastest link (LL)")
    tried = cuts.cuts
    if COLLECTIVES[collective].rooted:
        tried = (*tried, _around(fabric, cuts, root))
    for cut in tried:
        volumes = _volumes(collective, len(cut.ranks), n, bool(np.isin(root, cut.ranks)))
        for share, rate, way in zip(volumes, (cut.out, cut.into), ("leave", "enter")):
            if rate > 0 and share * size / rate > best.seconds:
                best = Bound(share * size / rate, _text(cut.name, share, size, rate, way))
    if collective == "allreduce":
        for name, (count, rate) in cuts.partitions.items():
            share = 2.0 * (count - 1)
            if rate > 0 and share * size / rate > best.seconds:
                text = _text(f"{count} x {name}", share, size, rate, "leave")
                best = Bound(share * size / rate, text)
    return Bound(fabric.launch + best.seconds, best.cut)
