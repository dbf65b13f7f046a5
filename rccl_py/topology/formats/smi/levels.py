"""How far up the devices of a pasted text meet: at a switch, a higher one, a CPU, between CPUs.

Owns the rule that bounds the CPUs of a host, since a matrix may call every pair SYS, as in virtual
machines and where each GPU has a root complex of its own:

    NUMA node of every GPU (else CPU list) known    a CPU for each distinct one
    neither                                         CPUs that PHB, NODE show, and at least two

Devices beyond that go to the CPUs there are: by colour where two CPUs explain every SYS, else in
order. Knows no text and no graph; every SYS that is not kept is said.
"""

from __future__ import annotations

from itertools import combinations

from .node import FAR, LEVELS, Node

__all__ = ["Groups", "levels_of"]

_NAMES = ("PIX", "PXB", "PHB or NODE", "SYS")


class Groups:
    """Disjoint sets of 0..n-1."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def top(self, a: int) -> int:
        """Return the member that stands for the set of `a`."""
        while self._parent[a] != a:
            self._parent[a] = a = self._parent[self._parent[a]]
        return a

    def join(self, a: int, b: int) -> None:
        """Make one set of those of `a` and `b`."""
        a, b = sorted((self.top(a), self.top(b)))
        self._parent[b] = a

    def among(self, members: list[int]) -> list[list[int]]:
        """Return `members` by set, in order of their first."""
        found: dict[int, list[int]] = {}
        for member in members:
            found.setdefault(self.top(member), []).append(member)
        return list(found.values())


def levels_of(node: Node) -> list[Groups]:
    """Return the devices that meet at a switch, a higher one, a CPU, and at all."""
    count = len(node.gpus) + len(node.nics)
    levels = [Groups(count) for _ in range(4)]
    known = {pair: LEVELS[own.kind] for pair, own in node.pairs.items() if own.kind in LEVELS}
    for (a, b), level in known.items():
        for groups in levels[level:]:
            groups.join(a, b)
    _note_conflicts(node, levels, known)
    apart = [pair for pair in known if known[pair] == 3 and not _share_cpu(levels, pair)]
    placed = bool(node.places) and all(node.places) and not _is_far(node)
    _join_places(node, levels)
    if not placed or len(set(node.places)) < 2:
        _join_lone_nics(node, levels)
    for island in levels[3].among(list(range(count))):
        _bound(node, levels, island, placed)
    _note_sys(node, [pair for pair in apart if _share_cpu(levels, pair)], placed)
    return levels


def _share_cpu(levels: list[Groups], pair: tuple[int, int]) -> bool:
    return levels[2].top(pair[0]) == levels[2].top(pair[1])


def _is_far(node: Node) -> bool:
    """Return whether some devices have no common host, so that NUMA nodes may be of several."""
    return any(own.kind in FAR for own in node.pairs.values())


def _join_places(node: Node, levels: list[Groups]) -> None:
    """Put GPUs of one NUMA node under one CPU, whatever the matrix calls them."""
    if _is_far(node):
        return
    first: dict[str, int] = {}
    placed = [gpu for gpu, place in enumerate(node.places) if place]
    for gpu in placed:
        levels[2].join(gpu, first.setdefault(node.places[gpu], gpu))
        levels[3].join(gpu, placed[0])


def _join_lone_nics(node: Node, levels: list[Groups]) -> None:
    """Put NICs that are SYS to every GPU, and of which no more is known, under one CPU."""
    first, count = len(node.gpus), len(node.gpus) + len(node.nics)
    near = {d for pair, own in node.pairs.items() if LEVELS.get(own.kind, 3) < 3 for d in pair}
    rowed = {d for a, b in node.pairs if a >= first for d in (a, b)}
    far = {b for (_, b), own in node.pairs.items() if own.kind == "SYS"}
    lone = sorted(set(range(first, count)) & far - near - rowed)
    for nic in lone[1:]:
        levels[2].join(lone[0], nic)
        levels[3].join(lone[0], nic)


def _bound(node: Node, levels: list[Groups], island: list[int], placed: bool) -> None:
    """Merge what hangs from more CPUs than the rule allows."""
    groups, gpus = levels[2].among(island), len(node.gpus)
    if placed:
        kept = [g for g in groups if g[0] < gpus]
        others = [g for g in groups if g[0] >= gpus]
        if len(kept) == 1 and others and not _has_sys(node, kept[0]):
            kept.append(others.pop(0))  # NICs that are far from all GPUs: a socket without GPUs
    else:
        kept = [g for g in groups if len(levels[1].among(g)) > 1 or _has_place(node, g)]
        others = [g for g in groups if g not in kept]
        if len(groups) <= max(2, len(kept)):
            return
        if len(kept) <= 2 and _join_by_colour(node, levels, groups):
            return
        if not kept:
            _halve(node, levels, groups)
            return
        if len(kept) == 1:
            kept.append([device for group in others for device in group])
            _join_all(levels[2], kept[1])
            return
    for k, group in enumerate(others if kept else []):
        free = [own for own in kept if not _are_sys(node, own, group)]
        home = free[0] if free else kept[k * len(kept) // len(others)]
        levels[2].join(home[0], group[0])


def _join_all(groups: Groups, members: list[int]) -> None:
    for member in members[1:]:
        groups.join(members[0], member)


def _is_sys(node: Node, a: int, b: int) -> bool:
    own = node.pairs.get((min(a, b), max(a, b)))
    return own is not None and own.kind == "SYS"


def _are_sys(node: Node, one: list[int], other: list[int]) -> bool:
    return any(_is_sys(node, a, b) for a in one for b in other if a != b)


def _has_sys(node: Node, members: list[int]) -> bool:
    return any(_is_sys(node, a, b) for a, b in combinations(members, 2))


def _has_place(node: Node, members: list[int]) -> bool:
    return any(k < len(node.places) and node.places[k] for k in members)


def _join_by_colour(node: Node, levels: list[Groups], groups: list[list[int]]) -> bool:
    """Join `groups` to two if no SYS pair is then under one CPU; return whether that is so."""
    colour, pending = {0: 0}, [0]
    while pending:
        k = pending.pop()
        for other in range(len(groups)):
            if other == k or not _are_sys(node, groups[k], groups[other]):
                continue
            if other not in colour:
                colour[other] = 1 - colour[k]
                pending.append(other)
            elif colour[other] == colour[k]:
                return False
    if len(colour) < len(groups):
        return False
    for half in (0, 1):
        _join_all(levels[2], [groups[k][0] for k in sorted(colour) if colour[k] == half])
    return True


def _halve(node: Node, levels: list[Groups], groups: list[list[int]]) -> None:
    """Put the first half of the GPUs, and of other devices, to one CPU and the rest to another."""
    with_gpu = [g for g in groups if g[0] < len(node.gpus)]
    halves: tuple[list[int], list[int]] = ([], [])
    for part in (_units(node, with_gpu), [g for g in groups if g not in with_gpu]):
        for k, group in enumerate(part):
            halves[2 * k // len(part)].extend(group)
    for half in halves:
        _join_all(levels[2], half)


def _units(node: Node, groups: list[list[int]]) -> list[list[int]]:
    """Return `groups`, those with a link of their own together; as they are if that is one."""
    joined = Groups(len(groups))
    for one, other in combinations(range(len(groups)), 2):
        pairs = ((min(a, b), max(a, b)) for a in groups[one] for b in groups[other])
        if any(pair in node.pairs and node.pairs[pair].lanes for pair in pairs):
            joined.join(one, other)
    units = joined.among(list(range(len(groups))))
    return groups if len(units) < 2 else [[d for k in unit for d in groups[k]] for unit in units]


def _note_conflicts(node: Node, levels: list[Groups], known: dict[tuple[int, int], int]) -> None:
    wrong = []
    for (a, b), level in known.items():
        meets = next(k for k in range(4) if levels[k].top(a) == levels[k].top(b))
        if meets < level:
            wrong.append((a, b, _NAMES[level], _NAMES[meets]))
    if wrong:
        a, b, given, meets_at = wrong[0]
        node.notes.add(
            f"the matrix contradicts itself for {len(wrong)} pair(s): {node.vertex(a)}-"
            f"{node.vertex(b)} is {given}, but by way of other devices {meets_at}: nearer one taken"
        )


def _note_sys(node: Node, lost: list[tuple[int, int]], placed: bool) -> None:
    if not lost:
        return
    (a, b), why = lost[0], "no NUMA node or CPU list of every GPU is given: two sockets assumed"
    if placed:
        count = len(set(node.places))
        why = f"the GPUs' NUMA nodes (else CPU lists) are {count}, which bounds the sockets"
    node.notes.add(
        f"{len(lost)} pair(s) that the text calls SYS, {node.vertex(a)}-{node.vertex(b)} first, "
        f"hang from one CPU: {why}"
    )
