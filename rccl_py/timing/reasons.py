"""Why a call takes as long as it does: the chain of waits that ends with it, and sentences on it.

Owns the critical path and its wording. Knows a Timeline, and a Fabric for names only.

From the last arrival back, each message to the one that let it start::

    launch | overhead | link | latency | overhead | link | latency | tail
           |---- message 4, 0 -> 1 ----|---- message 9, 1 -> 2 ----|
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..fabric import Fabric
from ..units import format_time

if TYPE_CHECKING:
    from .timeline import Timeline, Transfers

__all__ = ["Leg", "critical_path", "why_slow"]

_SMALL = 0.01  # a part of the call below which a reason is not worth a sentence


class Leg(NamedTuple):
    """A piece of the critical path. seconds : s.

    what: "launch", "arrival" (a rank calls late), "overhead" (starting messages, and work between
    them), "link", "memory", "channels", "latency" or "tail". at: the link, -1 for others. rank:
    whose wait it is, the sender's for a message, -1 for all. shared: s of it that other messages
    add.
    """

    what: str
    seconds: float
    at: int = -1
    rank: int = -1
    shared: float = 0.0


def critical_path(line: Timeline) -> list[Leg]:
    """Return the chain of waits from the call to its end; their seconds add up to all of it."""
    together = line.engine == "estimate"  # then no message waits for one other
    if together or line.transfers is None or not len(line.transfers):
        parts = [
            Leg(p.bound, p.seconds, p.link if p.bound == "link" and p.link is not None else -1)
            for p in line.parts
        ]
        legs = [Leg("launch", line.launch), *parts]
    else:
        legs = _walked(line, line.transfers)
    legs.append(Leg("tail", line.tail))
    return [leg for leg in legs if leg.seconds > 0]


def _walked(line: Timeline, moved: Transfers) -> list[Leg]:
    at, arrived = int(moved.end.argmax()), True
    # Local work may go on at a rank after the last message.
    legs = [Leg("memory", line.seconds - line.tail - float(moved.end[at]))]
    while True:
        src, before, start = int(moved.src[at]), int(moved.after[at]), float(moved.start[at])
        if arrived:  # where only its push was waited for, its flight was not
            legs.append(Leg("latency", float(moved.end[at] - moved.pushed[at]), -1, src))
        legs.append(_on_the_wire(moved, at))
        if before < 0:
            return (legs + _beginning(line, src, start))[::-1]
        arrived = int(moved.dst[before]) == src
        ready = float((moved.end if arrived else moved.pushed)[before])
        legs.append(Leg("overhead", start - ready, -1, src))
        at = before


def _on_the_wire(moved: Transfers, at: int) -> Leg:
    seconds, link = float(moved.pushed[at] - moved.start[at]), int(moved.link[at])
    shared = max(seconds - float(moved.alone[at]), 0.0) if moved.alone is not None else 0.0
    what = "link" if link >= 0 else "channels" if link == -2 else "memory"
    return Leg(what, seconds, max(link, -1), int(moved.src[at]), shared)


def _beginning(line: Timeline, src: int, start: float) -> list[Leg]:
    """Return the legs before the first message of the path, last first."""
    late = most = 0.0
    if line.arrival is not None:
        late, most = float(line.arrival[src]), float(line.arrival.max())
    launch = line.launch - most
    return [
        Leg("overhead", start - launch - late, -1, src),
        Leg("arrival", late, -1, src),
        Leg("launch", launch),
    ]


def why_slow(line: Timeline, fabric: Fabric) -> list[str]:
    """Return sentences on what the critical path waits for, the largest part first."""
    total, legs = line.seconds, critical_path(line)
    kinds: dict[str, list[Leg]] = {}
    for leg in legs:
        kinds.setdefault(leg.what, []).append(leg)
    costs = {what: sum(leg.seconds for leg in same) for what, same in kinds.items()}
    return [
        f"{costs[what] / total:.0%} of the time {_REASONS[what](kinds[what], total, fabric)}"
        for what in sorted(costs, key=lambda w: -costs[w])
        if costs[what] >= _SMALL * total
    ]


def _waits_for_links(legs: list[Leg], total: float, fabric: Fabric) -> str:
    by_link: dict[int, list[Leg]] = {}
    for leg in legs:
        by_link.setdefault(leg.at, []).append(leg)
    spent = {at: sum(leg.seconds for leg in same) for at, same in by_link.items()}
    top = max(spent, key=lambda at: spent[at])
    text = f"waits for {_place(by_link[top], top, fabric)}"
    if len(spent) > 1:
        text = (
            f"waits for {len(spent)} links in turn, {spent[top] / total:.0%} for "
            f"{_place(by_link[top], top, fabric)}"
        )
    shared = sum(leg.shared for leg in legs)
    if shared >= _SMALL * total:
        text += f"; other messages on them cost {format_time(shared)} of it"
    return text


def _place(legs: list[Leg], link: int, fabric: Fabric) -> str:
    """Return the name of a link, and whose NIC it is where it is a cable."""
    name, port = fabric.link_name(link), link - fabric.cables
    ranks = {leg.rank for leg in legs}
    if 0 <= port < fabric.ports and len(ranks) == 1 and -1 not in ranks:
        return f"the NIC of rank {ranks.pop()}: {name}"
    return f"the NIC link {name}" if 0 <= port < 2 * fabric.ports else f"the link {name}"


def _hops(legs: list[Leg], _total: float, _fabric: Fabric) -> str:
    if legs[0].rank < 0:
        return "is latency of messages under way"
    hops = "one hop" if len(legs) == 1 else f"{len(legs)} hops in a row"
    return f"is latency of messages under way, {hops}"


def _waits_for_memory(legs: list[Leg], _total: float, _fabric: Fabric) -> str:
    ranks = {leg.rank for leg in legs} - {-1}
    if len(ranks) == 1:
        return f"waits for the memory of rank {ranks.pop()} or of the rank it sends to"
    return "waits for the memory of ranks"


def _waits_for_channels(legs: list[Leg], _total: float, _fabric: Fabric) -> str:
    ranks = {leg.rank for leg in legs} - {-1}
    if len(ranks) == 1:
        return f"waits for the channels of rank {ranks.pop()} or of the rank it sends to"
    return "waits for the channels of ranks: more of them would move more"


def _late(legs: list[Leg], _total: float, _fabric: Fabric) -> str:
    return f"waits for rank {legs[0].rank} to call"


_REASONS: dict[str, Callable[[list[Leg], float, Fabric], str]] = {
    "launch": lambda *_: "is launch",
    "arrival": _late,
    "overhead": lambda *_: "goes to ranks that start messages, or work between them",
    "link": _waits_for_links,
    "memory": _waits_for_memory,
    "channels": _waits_for_channels,
    "latency": _hops,
    "tail": lambda *_: "goes to the last data leaving its staging buffer",
}
