"""Lower bounds: what no algorithm on this fabric can beat, and the cut that says so.

Owns the cuts tried and the volume each collective must send over them. A cut is a set of ranks
and the links its traffic to the others must cross. Sets tried: single ranks, the islands left
when links below each capacity are removed, nodes, leaves. Sources: "Allgather on any capacitated
graph" (ForestColl's cut formula), and for allreduce also the unicast volume between the groups of
a partition, 2 (P - 1) M over the capacity leaving them. Inside a domain whose switches add up and
multicast that volume need not cross: there only the cuts and the partitions into nodes, leaves
and pods count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..collectives import COLLECTIVES
from ..fabric import I64, Fabric, expand, loaded
from ..schedule import I32
from ..units import format_bandwidth

__all__ = ["Bound", "Cuts", "find_cuts", "lower_bound"]

_REPRESENTATIVES = 16  # classes of nodes that are tried; further nodes are copies of one of them
_PAIRS = 1 << 20  # ranks on one side of a cut times those on the other that are routed one by one
_HOPS = 64  # accelerators of a node whose hops are looked at


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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What of a cut is seen whole: one of its sides, or the layers of the wiring."""

    src: bool
    dst: bool
    layers: bool


def _flat(fabric: Fabric) -> tuple[Fabric, bool]:
    """Return the fabric to look for cuts on, and whether layers of its wiring are cuts.

    Adaptive flows take other links than shortest ones, but leave a node, and a leaf of a tree, by
    the same ones; in a dragonfly or a torus they may go around what others cross.
    """
    if fabric.wiring is None or not fabric.together:
        return fabric, True
    flat = fabric.wiring.sprayed
    return replace(fabric, wiring=flat), flat.bundled


def _capacity(fabric: Fabric, src: I32, dst: I32, layers: bool) -> float:
    """Return the B/s the routes src x dst can carry together: the narrowest place all cross."""
    seen = _Seen(True, True, layers)
    if len(src) * len(dst) > _PAIRS:
        whole = len(src) <= len(dst)
        bundled = fabric.wiring is not None and fabric.wiring.bundled
        seen = _Seen(whole, not whole, layers and bundled)
        if whole:
            dst = _sample(fabric, dst, src)
        else:
            src = _sample(fabric, src, dst)
    s, d = (a.ravel().astype(np.int32) for a in np.meshgrid(src, dst, indexing="ij"))
    same = fabric.node[s] == fabric.node[d]
    total = 0.0
    for part in (same, ~same):
        if part.any():
            total += min(_widths(fabric, s[part], d[part], seen, inside=part is same))
    return total


def _sample(fabric: Fabric, side: I32, other: I32) -> I32:
    """Return the ranks of `side` to look at where there are too many.

    Those on the other side's nodes, and one further node of each class, the farthest: which NICs a
    flow leaves and enters by follows from the classes of its two nodes.
    """
    own = np.unique(fabric.node[other])
    nodes = np.setdiff1d(np.unique(fabric.node[side]), own)[::-1]
    _, classes = fabric.classes
    first = np.unique(classes[nodes], return_index=True)[1]
    return side[np.isin(fabric.node[side], np.concatenate([own, nodes[first]]))]


def _widths(fabric: Fabric, src: I32, dst: I32, seen: _Seen, *, inside: bool) -> Iterator[float]:
    """Yield the capacity of each set of links that every one of these routes crosses."""
    load, bandwidth = loaded(fabric, src, dst, np.ones(len(src))), fabric.bandwidth
    used = np.flatnonzero(load)
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
    if seen.src:
        yield float(bandwidth[used[(used >= own) & (used < own + ports)]].sum())
    if seen.dst:
        yield float(bandwidth[used[(used >= own + ports) & (used < own + 2 * ports)]].sum())
    wiring = fabric.wiring
    if wiring is None or not seen.layers:
        return
    wired = used[used >= own + 2 * ports]
    layer = wiring.layer[wired - own - 2 * ports]
    for number in np.unique(layer[layer >= 0]).tolist():
        # Of a tree even layers lie on the way up, on the source's side, odd ones on the target's.
        if not (seen.dst if number % 2 else seen.src):
            continue
        links = wired[layer == number]
        if load[links].sum() >= len(src) * (1 - 1e-9):  # each of them crosses one
            yield float(bandwidth[links].sum())


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
    nodes, classes = fabric.classes
    own = classes[classes >= 0]
    _, at, count = np.unique(own, return_index=True, return_counts=True)
    firsts, weights = at.tolist(), count.tolist()
    if len(firsts) > _REPRESENTATIVES:
        firsts, weights = firsts[:_REPRESENTATIVES], []  # no partition is known whole
    some = [nodes[k] for k in firsts]
    kinds = [_unlike(fabric, node) for node in some]
    yield (
        "rank",
        [g for groups, _ in kinds for g in groups],
        [w * count for (_, ws), count in zip(kinds, weights) for w in ws],
    )
    if len(nodes) == 1:
        for name, groups in _islands(fabric, np.arange(fabric.nranks, dtype=np.int32)):
            yield f"group joined by {name}", groups, [1] * len(groups)
        return
    yield "node", some, weights
    if fabric.wiring is None:
        return
    ports = np.minimum(fabric.first_port[:-1], fabric.ports - 1)
    for name, group in fabric.wiring.parts.items():
        yield name, *_parts(group[ports], nodes, classes, fabric)


def _parts(
    group: npt.NDArray[np.integer],
    nodes: list[I32],
    classes: npt.NDArray[np.int64],
    fabric: Fabric,
) -> tuple[list[I32], list[int]]:
    """Return one group of each sort (leaves, pods) that holds ranks, and how many there are.

    group: of each node. Groups are of a sort when they hold as many nodes of each class.
    """
    held = np.unique(fabric.node)
    known: dict[tuple[int, ...], list[int]] = {}
    order = np.argsort(group[held], kind="stable")
    names, starts = np.unique(group[held][order], return_index=True)
    members = np.split(order, starts[1:])
    for k, inside in enumerate(members):
        known.setdefault(tuple(sorted(classes[held[inside]].tolist())), []).append(k)
    if len(names) < 2:
        return [], []
    some = [np.concatenate([nodes[v] for v in members[ks[0]]]) for ks in known.values()]
    weights = [len(ks) for ks in known.values()]
    if len(some) > _REPRESENTATIVES:
        return some[:_REPRESENTATIVES], []
    return some, weights


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
    hop = _hop(fabric)
    fabric, layers = _flat(fabric)
    everyone = np.arange(fabric.nranks, dtype=np.int32)
    cuts, partitions = [], {}
    for name, groups, weights in _partitions(fabric):
        leaving, stood_for = 0.0, 0
        for group, weight in zip(groups, weights or [0] * len(groups)):
            rest = np.setdiff1d(everyone, group).astype(np.int32)
            if not len(rest):
                continue
            out = _capacity(fabric, group, rest, layers)
            into = _capacity(fabric, rest, group, layers)
            title = _ranks_text(group) if name == "rank" else f"{_ranks_text(group)} ({name})"
            cuts.append(_Cut(title, group, out, into, name))
            leaving += out * weight
            stood_for += weight
        if weights and leaving:
            partitions[name] = stood_for, leaving
    return Cuts(tuple(cuts), partitions, hop)


def _hop(fabric: Fabric) -> float:
    """Return the s of the quickest hop a call cannot do without: between nodes, if it spans some.

    Under the protocol with the least hand-shake there. Over a network it is the quickest way out of
    a node, one switch, and the quickest way in, whichever ranks they are.
    """
    ranks = np.arange(fabric.nranks, dtype=np.int32)
    used = np.unique(fabric.node)
    if len(used) == 1:
        one = ranks[np.unique(fabric.local, return_index=True)[1][:_HOPS]]
        src, dst = (a.ravel().astype(np.int32) for a in np.meshgrid(one, ranks[: _HOPS * 8]))
        far = src != dst
        return float(fabric.latency(src[far], dst[far]).min()) if far.any() else 0.0
    out, into = np.inf, np.inf
    for kind in np.unique(fabric.kind[used]):
        domain = fabric.domains[int(kind)]
        locals_used = np.unique(fabric.local[fabric.kind[fabric.node] == kind])
        _, entry = expand(domain.attach, locals_used)
        port = domain.port_latency.min(axis=0)[domain.nic[entry]]
        out = min(out, float((port + domain.wait[entry]).min()))
        into = min(into, float(domain.wait[entry].min()))
    return out + into + fabric.hop


def _around(fabric: Fabric, cuts: Cuts, root: int) -> _Cut:
    """Return the cut between `root` and all other ranks."""
    if root not in cuts.roots:
        fabric, layers = _flat(fabric)
        alone = np.array([root], dtype=np.int32)
        rest = np.setdiff1d(np.arange(fabric.nranks), alone).astype(np.int32)
        out = _capacity(fabric, alone, rest, layers)
        into = _capacity(fabric, rest, alone, layers)
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
    best = Bound(cuts.hop, "latency: one hop of the fastest link")
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
            if fabric.multicast and (name == "rank" or name.startswith("group")):
                continue  # their switches add up and hand on
            share = 2.0 * (count - 1)
            if rate > 0 and share * size / rate > best.seconds:
                text = _text(f"{count} x {name}", share, size, rate, "leave")
                best = Bound(share * size / rate, text)
    return Bound(fabric.launch + best.seconds, best.cut)
