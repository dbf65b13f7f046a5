"""What a repetition of a phase asks of links and ranks; what repeats is routed once.

Owns Load, and Loads, the memory of a planner. Knows a fabric and phases, no size, no protocol and
no order of phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric, crossing_pairs, expand, loaded, peers_inside, plain_inside
from ..schedule import REDUCE, AllPairs, Pairs, Phase
from .few import FEW, few_loads
from .memory import STAGED, Work, staged, work
from .messages import Messages, crossing, messages, spent, switched_parts, to_many
from .strands import Strands, strands
from .windows import Lumps, lumps
from .wires import numbered

__all__ = ["INTO", "MOVED", "OUT", "REDUCED", "SENDING", "Load", "Loads"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

MOVED, REDUCED, SENDING, OUT, INTO = range(5)
"""Rows of Load.ranks: slots read and written, slots added, s spent on messages, slots sent, got."""

_PAIRS = 1 << 12  # pairs that are not worth a sum over all of them
_BLOCK = 1 << 18  # messages looked at at a time: bounds memory, not results
_SOME = 4  # phases of few rows that are worth loading together
_KEPT = 256e6  # bytes of loads that are kept by content for the algorithms to come


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """What one repetition of a phase asks of the fabric, per slot byte.

    at: int32[k], the links it uses in order; slots: float64[k], on each. who: int32[r], the ranks
    that do something, in order; ranks: float64[5, r], what each does (MOVED ... INTO). latency:
    float64[3] s, the longest route by protocol. far: whether some leave their node; remote: whether
    some leave their rank.
    """

    at: I32
    slots: F64
    who: I32
    ranks: F64
    latency: F64
    far: bool
    remote: bool

    def work(self, nranks: int) -> Work:
        """Return what each rank's memory and adders do."""
        found = Work.nothing(nranks)
        found.moved[self.who], found.reduced[self.who] = self.ranks[MOVED], self.ranks[REDUCED]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        return self.at.nbytes + self.slots.nbytes + self.who.nbytes + self.ranks.nbytes


def _load(fabric: Fabric, sent: Messages, many: bool) -> Load:
    """Return the load of messages, without what the rows they are made of do locally."""
    n, link, latency = fabric.nranks, np.zeros(fabric.nlinks), np.zeros(3)
    ranks, remote = np.zeros((5, n)), sent.src != sent.dst
    ranks[OUT] = np.bincount(sent.src, weights=sent.slots * remote, minlength=n)
    ranks[INTO] = np.bincount(sent.dst, weights=sent.slots * remote, minlength=n)
    leaves = bool((fabric.node[sent.src] != fabric.node[sent.dst]).any())
    # Where flows choose their way by what else is sent, all of them are handed over at once.
    block = max(len(sent.src) if fabric.together else _BLOCK, 1)
    for start in range(0, len(sent.src), block):
        far = remote[start : start + block]
        if not far.any():
            continue
        part = sent.part(slice(start, start + block))
        part = part if far.all() else part.part(far)
        link += _on_links(fabric, part, many)
        latency = np.maximum(latency, fabric.latency(part.src, part.dst).max(axis=1))
        ranks[SENDING] += np.bincount(part.src, weights=spent(fabric, part, many), minlength=n)
        detour = staged(fabric, part.src, part.dst)
        if detour is not None:
            bounced = STAGED * part.slots * detour
            ranks[MOVED] += np.bincount(part.dst, weights=bounced, minlength=n)
    at = np.flatnonzero(link).astype(np.int32)
    return Load(at, link[at], *_busy(ranks), latency, leaves, bool(remote.any()))


def _near_pairs(fabric: Fabric, group: I32, count: I64) -> Messages:
    """Return the messages between members of a group that share a node."""
    groups, m = group.shape
    members, number = group.ravel(), np.repeat(np.arange(groups), m)
    place = number * fabric.copies + fabric.node[members]
    order = np.argsort(place, kind="stable")
    _, first, held = np.unique(place[order], return_index=True, return_counts=True)
    ptr = np.append(first, len(order))
    one, two = expand(ptr, np.repeat(np.arange(len(held)), held))
    apart = one != two
    src, dst = order[one[apart]], order[two[apart]]
    slots = count[number[src]]
    return Messages(members[src], members[dst], slots, np.zeros(len(src), dtype=np.int64))


def _busy(ranks: F64) -> tuple[I32, F64]:
    """Return the ranks that do something, and what. ranks: float64[5, nranks]."""
    who = np.flatnonzero(ranks.any(axis=0)).astype(np.int32)
    return who, ranks[:, who] if len(who) < ranks.shape[1] else ranks


def _on_links(fabric: Fabric, sent: Messages, many: bool) -> F64:
    """Return the slots on each link: float64[nlinks]."""
    slots = sent.slots.astype(np.float64)
    if not sent.fan.any():
        even = loaded(fabric, sent.src, sent.dst, slots)
        return even / fabric.spread if many else even
    if fabric.together:
        routes = fabric.routes(sent.src, sent.dst, slots)
        weight = slots[routes.row] * routes.share * crossing(fabric, sent.fan, routes, many)
        every = np.bincount(routes.link, weights=weight, minlength=fabric.nlinks)
        return np.asarray(every, dtype=np.float64)
    plain = sent.fan == 0
    down, up = (slots * factor for factor in switched_parts(fabric, sent.fan))
    link = np.where(fabric.leaving, loaded(fabric, sent.src, sent.dst, up),
                    loaded(fabric, sent.src, sent.dst, down))  # fmt: skip
    return link + _on_links(fabric, sent.part(plain), many) if plain.any() else link


def _local(nranks: int, phase: Phase) -> Load:
    """Return the load of rows that all stay at their ranks."""
    ranks, own = np.zeros((5, nranks)), work(nranks, phase)
    ranks[MOVED], ranks[REDUCED] = own.moved, own.reduced
    return Load(np.zeros(0, np.int32), np.zeros(0), *_busy(ranks), np.zeros(3), False, False)


def _is_few(phase: Phase) -> bool:
    """Return whether a phase is loaded as quickly with others: of few rows, none by a switch."""
    if isinstance(phase.moves, AllPairs) and phase.moves.pairs.size >= FEW:
        return False
    rows = [m.rows for m in phase.moves]
    return 0 < sum(len(r.src) for r in rows) < FEW and not any(r.switched for r in rows)


def _summed(fabric: Fabric, parts: list[Load]) -> Load:
    """Return the load of phases posted together: loads and messages add, latency is the largest."""
    at, of = numbered(np.concatenate([part.at for part in parts]), fabric.nlinks)
    slots = np.zeros(len(at))
    slots += np.bincount(of, np.concatenate([part.slots for part in parts]), len(at))
    ranks, latency = np.zeros((5, fabric.nranks)), np.zeros(3)
    for part in parts:
        ranks[:, part.who] += part.ranks
        latency = np.maximum(latency, part.latency)
    far, remote = any(p.far for p in parts), any(p.remote for p in parts)
    return Load(at.astype(np.int32), slots, *_busy(ranks), latency, far, remote)


class Loads:
    """Loads of phases on one fabric: what repeats, in this schedule or another, is routed once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.loaded = 0
        # Flows that choose their way by what else is sent are loaded a whole phase at a time.
        self._together = fabric.together
        self._plain = not fabric.together and plain_inside(fabric)
        self._known: dict[tuple[tuple[int, ...], ...], Load] = {}
        self._kept: list[Phase] = []
        self._by_content: dict[bytes, Load] = {}
        self._lumps: dict[tuple[int, ...], Lumps] = {}
        self._strands: dict[tuple[int, ...], Strands] = {}

    def of_phase(self, phase: Phase) -> Load:
        """Return the load of one repetition of `phase`."""
        parts = phase.made_of if len(phase.made_of) > 1 and not self._together else ()
        key = tuple(sorted(self._name(p) for p in parts)) if parts else (self._name(phase),)
        found = self._known.get(key)
        if found is None:
            if parts:
                found = _summed(self.fabric, [self.of_phase(p) for p in parts])
            else:
                found = self._single(phase)
            self._known[key] = found
            # What is named by its objects is kept, so that the names stay its own.
            self._kept.append(phase)
        return found

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Load phases of few rows, all at once, for `of_phase` to find."""
        if self._together:
            return
        some = {}
        for phase in phases:
            for part in phase.made_of if len(phase.made_of) > 1 else (phase,):
                name = (self._name(part),)
                if name not in self._known and _is_few(part):
                    some[name] = part
        if len(some) < _SOME:
            return
        self._kept.extend(some.values())
        for name, fields in zip(some, few_loads(self.fabric, list(some.values()))):
            self._known[name] = Load(*fields)
        self.loaded += sum(len(m.rows.src) for part in some.values() for m in part.moves)

    @staticmethod
    def _name(phase: Phase) -> tuple[int, ...]:
        if isinstance(phase.moves, AllPairs):
            return (id(phase.moves.pairs),)
        return tuple(id(m.rows) for m in phase.moves)

    def _single(self, phase: Phase) -> Load:
        if isinstance(phase.moves, AllPairs) and phase.moves.pairs.size >= _PAIRS:
            pairs = self._pairs(phase.moves.pairs)
            if pairs is not None:
                return pairs
        if all((m.rows.src == m.rows.dst).all() for m in phase.moves):
            return _local(self.fabric.nranks, phase)
        sent = messages(phase)
        # The same ends in other proportions are the same routes: scale what is known.
        unit = int(np.gcd.reduce(sent.slots))
        least = sent._replace(slots=sent.slots // unit) if unit > 1 else sent
        many = to_many(phase, self.fabric.nranks)
        digest = blake2b(bytes([many]), digest_size=16)
        for column in self._deciding(least):
            digest.update(np.ascontiguousarray(column).data)
        load = self._by_content.get(digest.digest())
        if load is None:
            load = _load(self.fabric, least, many)
            self._by_content[digest.digest()] = load
            self.loaded += len(sent.src)
        own, ranks = work(self.fabric.nranks, phase), np.zeros((5, self.fabric.nranks))
        ranks[MOVED], ranks[REDUCED] = own.moved, own.reduced
        ranks[:, load.who] += load.ranks * unit
        ranks[SENDING, load.who] = load.ranks[SENDING]  # messages, whatever their size
        who, ranks = _busy(ranks)
        return replace(load, slots=load.slots * unit, who=who, ranks=ranks)

    def _deciding(self, sent: Messages) -> Sequence[npt.NDArray[np.generic]]:
        """Return what the load of messages follows from: they themselves, or what ranks do."""
        if sent.fan.any():
            return sent
        if not self._plain or (self.fabric.node[sent.src] != self.fabric.node[sent.dst]).any():
            return sent[:3]
        far, n = np.flatnonzero(sent.src != sent.dst), self.fabric.nranks
        out, into = (np.bincount(end[far], sent.slots[far], n) for end in (sent.src, sent.dst))
        return out, into, np.bincount(sent.src[far], minlength=n)

    def _pairs(self, pairs: Pairs) -> Load | None:
        """Return the load of all pairs of some groups; None where it takes a look at each."""
        unit = int(np.gcd.reduce(pairs.count))
        found = self._between_pairs(pairs.group, pairs.count // unit)
        if found is None:
            return None
        group, ranks = pairs.group, np.zeros((5, self.fabric.nranks))
        ranks[:, found.who] = found.ranks * unit
        ranks[SENDING, found.who] = found.ranks[SENDING]
        m, members = group.shape[1], group.ravel()
        sent = np.repeat(pairs.count, m).astype(np.float64)
        all_sent = sent * (m - 1 + pairs.own)
        if pairs.op == REDUCE:  # into the same slots, in registers
            ranks[MOVED, members] += all_sent + 2.0 * sent
            ranks[REDUCED, members] = all_sent
        else:
            ranks[MOVED, members] += 2.0 * all_sent
        who, ranks = _busy(ranks)
        return replace(found, slots=found.slots * unit, who=who, ranks=ranks)

    def _between_pairs(self, group: I32, count: I64) -> Load | None:
        """Return the load of the messages of all pairs, without what ranks do with them."""
        digest = blake2b(b"pairs", digest_size=16)
        for column in (np.array(group.shape), group, count):
            digest.update(np.ascontiguousarray(column).data)
        key = digest.digest()
        if key not in self._by_content:
            found = self._each_pair(group, count)
            if found is None:
                return None
            self._by_content[key] = found
        return self._by_content[key]

    def _each_pair(self, group: I32, count: I64) -> Load | None:
        fabric = self.fabric
        node = fabric.node[group]
        within = bool((node == node[:, :1]).all())
        crossing = None if within else crossing_pairs(fabric, group, count)
        if crossing is None and not within:
            return None
        inside = peers_inside(fabric, group, count)
        if inside is None and not fabric.sums_pairs:
            return None
        m, many = group.shape[1], group.shape[1] > 3  # as `to_many` says
        sent = np.repeat(count, m).astype(np.float64)
        ranks, members = np.zeros((5, fabric.nranks)), group.ravel()
        link, latency, away = np.zeros(fabric.nlinks), np.zeros(3), False
        if crossing is not None:
            part = fabric.least_spread(far=True) if many else 1.0
            ranks[SENDING, members] += crossing.message / part
            ranks[MOVED, members] += STAGED * sent * crossing.far
            link += crossing.link
            latency, away = crossing.latency, bool(crossing.far.any())
        if inside is not None:
            part = fabric.least_spread(far=False) if many else 1.0
            ranks[SENDING, members] += inside.message / part
            ranks[MOVED, members] += STAGED * sent * inside.count * (not inside.coherent)
            link += inside.link
            latency = np.maximum(latency, inside.latency)
        if many:
            link /= fabric.spread
        self.loaded += group.size
        if inside is None:
            near = _near_pairs(fabric, group, count)
            own = _load(fabric, near, many)
            ranks[:, own.who] += own.ranks
            link[own.at] += own.slots
            latency = np.maximum(latency, own.latency)
            self.loaded += len(near.src)
        ranks[OUT, members] = ranks[INTO, members] = sent * (m - 1)
        at = np.flatnonzero(link).astype(np.int32)
        return Load(at, link[at], *_busy(ranks), latency, away, True)

    def lumps(self, stages: list[Load]) -> Lumps:
        """Return the lumps of loads that `of_phase` returned: made once for all pieces."""
        key = tuple(id(load) for load in stages)
        if key not in self._lumps:
            self._lumps[key] = lumps(self.fabric, stages)
        return self._lumps[key]

    def strands(self, stages: list[Load]) -> Strands:
        """Return the strands of loads that `of_phase` returned: made once for all pieces."""
        key = tuple(id(load) for load in stages)
        if key not in self._strands:
            self._strands[key] = strands(self.fabric, stages)
        return self._strands[key]

    def forget_objects(self) -> None:
        """Let go of the phases seen; their loads stay by content, the latest ones."""
        self._lumps.clear()
        self._strands.clear()
        self._known.clear()
        self._kept.clear()
        held = sum(load.nbytes for load in self._by_content.values())
        while held > _KEPT:
            held -= self._by_content.pop(next(iter(self._by_content))).nbytes
