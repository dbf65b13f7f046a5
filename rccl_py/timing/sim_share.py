"""Max-min fair sharing of resources by flows, where something has changed and nowhere else.

Owns rates. A resource whose members could all go as fast as alone is not crowded and joins no one:
flows are looked at together only through crowded resources. Among those (progressive filling) all
rates rise alike, in bytes a second, until a resource is full or a flow goes as fast as alone; that
one keeps its rate, the others rise on::

    link 7 |## a ##|## b ##|          a and b: half of link 7 each
    link 9 |## b ##|#### c #####|     c: what b leaves of link 9
"""

from __future__ import annotations

import numpy as np

from .sim_agenda import has_room, push
from .sim_jit import called, compiled
from .sim_pause import back_pressure
from .sim_state import FRESH, MARK, NONE, ONE, TOUCHED, State

__all__ = ["join", "leave", "share", "touch"]

_LEVEL = 1 + 1e-12  # resources that are full within this of each other are full together


@compiled
def touch(s: State, number: int) -> None:
    """Have a resource looked at before time goes on."""
    resource = s.resource[number]
    if not resource["touched"]:
        resource["touched"] = 1
        s.resource[s.n[TOUCHED]]["changed"] = number
        s.n[TOUCHED] += 1


@compiled
def join(s: State, number: int, time: float) -> None:
    """Put a flow on its resources; it moves once they are shared anew."""
    flow = s.flow[number]
    size = s.size[flow["size"]]
    flow["left"] = size["nbytes"]
    flow["since"] = time
    flow["rate"] = 0.0
    flow["due"] = flow["held"] = -1
    s.flow[s.n[FRESH]]["fresh"] = number
    s.n[FRESH] += 1
    for u in range(flow["first_use"], s.flow[number + 1]["first_use"]):
        use = s.use[u]
        resource = s.resource[use["resource"]]
        use["before"] = -1
        use["next"] = resource["first"]
        if resource["first"] >= 0:
            s.use[resource["first"]]["before"] = u
        resource["first"] = u
        resource["members"] += 1
        resource["demand"] += np.int64(size["alone"] * use["seconds"] * ONE)
        touch(s, np.int64(use["resource"]))


@compiled
def leave(s: State, number: int, time: float) -> None:
    """Take a flow off its resources."""
    flow = s.flow[number]
    alone = s.size[flow["size"]]["alone"]
    _count(s, number, time)
    flow["due"] = -1
    for u in range(flow["first_use"], s.flow[number + 1]["first_use"]):
        use = s.use[u]
        resource = s.resource[use["resource"]]
        if use["before"] >= 0:
            s.use[use["before"]]["next"] = use["next"]
        else:
            resource["first"] = use["next"]
        if use["next"] >= 0:
            s.use[use["next"]]["before"] = use["before"]
        resource["members"] -= 1
        resource["demand"] -= np.int64(alone * use["seconds"] * ONE)
        touch(s, np.int64(use["resource"]))


@compiled
def _count(s: State, number: int, time: float) -> None:
    """Move a flow on to `time`, and count what it waited for others."""
    flow = s.flow[number]
    passed = time - flow["since"]
    flow["since"] = time
    flow["left"] = max(flow["left"] - flow["rate"] * passed, 0.0)
    u = flow["held"]
    if u >= 0:
        waited = passed * (1.0 - flow["rate"] / s.size[flow["size"]]["alone"])
        s.resource[s.use[u]["resource"]]["queued"] += waited
        if len(s.waited):
            s.waited[u] += waited


@called
def share(s: State, time: float) -> None:
    """Give rates to all that what has changed since the last time can have changed.

    What the heap lacks room for stays among the fresh.
    """
    s.n[MARK] += 2
    seeded = s.n[MARK] - 1
    seeds = s.n[FRESH]
    for i in range(seeds):
        s.flow[s.flow[i]["fresh"]]["mark"] = seeded
    for i in range(s.n[TOUCHED]):
        number = np.int64(s.resource[i]["changed"])
        resource = s.resource[number]
        was = resource["crowded"]
        if resource["full"] < 1.0:
            resource["crowded"] = resource["members"] > 0
        else:  # every member's demand may be one unit too small
            resource["crowded"] = resource["demand"] > ONE + resource["members"]
        if len(s.pauses) and s.pauses[number] and resource["members"] > 1:
            resource["crowded"] = 1
        resource["touched"] = 0
        u = resource["first"] if was or resource["crowded"] else NONE
        while u >= 0:
            flow = s.flow[s.use[u]["flow"]]
            if flow["mark"] < seeded:
                flow["mark"] = seeded
                s.flow[seeds]["fresh"] = s.use[u]["flow"]
                seeds += 1
            u = s.use[u]["next"]
    left = 0
    for i in range(seeds):
        number = np.int64(s.flow[i]["fresh"])
        if s.flow[number]["mark"] == seeded and not _together(s, number, time):
            s.flow[left]["fresh"] = number
            left += 1
    s.n[TOUCHED], s.n[FRESH] = 0, left


@compiled
def _together(s: State, seed: int, time: float) -> bool:
    """Give rates to all flows joined to this one by crowded resources; False: no room in the heap.

    They become a ring.
    """
    if not has_room(s):
        return False
    members, resources = _reached(s, seed)
    least, number = np.inf, seed
    for _ in range(members):
        flow = s.flow[number]
        alone = s.size[flow["size"]]["alone"]
        _count(s, number, time)
        flow["due"] = flow["held"] = -1
        flow["rate"] = -1.0 if resources else alone
        least = min(least, alone)
        number = np.int64(flow["ring"])
    if resources:
        _fill(s, seed, members, resources, least)
        if len(s.pauses):
            back_pressure(s, seed, members, resources)
    first, end = seed, np.inf
    for _ in range(members):
        flow = s.flow[number]
        if flow["rate"] > 0.0:
            ends = time + flow["left"] / flow["rate"]
            if ends < end:
                first, end = number, ends
        number = np.int64(flow["ring"])
    if end < np.inf:
        s.flow[first]["due"] = push(s, end, len(s.delay) + first)
    return True


@compiled
def _reached(s: State, seed: int) -> tuple[int, int]:
    """Put what is joined to a flow into its ring, and list the resources as shared.

    Return how many there are of each.
    """
    mark = s.n[MARK]
    s.flow[seed]["mark"] = mark
    members, resources, number, last = 1, 0, seed, seed
    while True:
        for u in range(s.flow[number]["first_use"], s.flow[number + 1]["first_use"]):
            resource = s.resource[s.use[u]["resource"]]
            if resource["crowded"] and resource["mark"] != mark:
                resource["mark"] = mark
                s.resource[resources]["shared"] = s.use[u]["resource"]
                resources += 1
                v = resource["first"]
                while v >= 0:
                    other = np.int64(s.use[v]["flow"])
                    if s.flow[other]["mark"] != mark:
                        s.flow[other]["mark"] = mark
                        s.flow[last]["ring"] = other
                        last = other
                        members += 1
                    v = s.use[v]["next"]
        if number == last:
            s.flow[last]["ring"] = seed
            return members, resources
        number = np.int64(s.flow[number]["ring"])


@compiled
def _fill(s: State, seed: int, members: int, resources: int, least: float) -> None:
    """Raise all rates of a ring together; least: B/s of the flow that is slowest alone."""
    for k in range(resources):
        resource = s.resource[s.resource[k]["shared"]]
        resource["left"], resource["want"], resource["open"] = resource["full"], 0.0, 0
        u = resource["first"]
        while u >= 0:
            resource["want"] += s.use[u]["seconds"]
            resource["open"] += 1
            u = s.use[u]["next"]
    todo = members
    while todo > 0:
        level = np.inf
        for k in range(resources):
            level = min(level, _level(s.resource[s.resource[k]["shared"]]))
        if least <= level:
            least, number = np.inf, seed
            for _ in range(members):
                flow = s.flow[number]
                alone = s.size[flow["size"]]["alone"]
                if flow["rate"] < 0.0 and alone <= level:
                    _fix(s, number, alone, NONE)
                    todo -= 1
                elif flow["rate"] < 0.0:
                    least = min(least, alone)
                number = np.int64(flow["ring"])
        else:
            todo -= _stop(s, resources, level)


@compiled
def _level(resource: np.void) -> float:
    """Return the rate at which a resource is full, B/s."""
    if resource["open"] == 0:
        return np.inf
    level: float = max(resource["left"], 0.0) / resource["want"]
    return level


@compiled
def _stop(s: State, resources: int, level: float) -> int:
    """Stop the flows on all resources that are full at `level`; return how many."""
    full = 0
    for k in range(resources):
        number = s.resource[k]["shared"]
        if _level(s.resource[number]) <= level * _LEVEL:
            s.resource[k]["shared"] = s.resource[full]["shared"]
            s.resource[full]["shared"] = number
            full += 1
    stopped = 0
    for k in range(full):
        u = np.int64(s.resource[s.resource[k]["shared"]]["first"])
        while u >= 0:
            number = np.int64(s.use[u]["flow"])
            if s.flow[number]["rate"] < 0.0:
                _fix(s, number, level, u)
                stopped += 1
            u = s.use[u]["next"]
    return stopped


@compiled
def _fix(s: State, number: int, rate: float, held: int) -> None:
    """Give a flow its rate, and its resources what is left."""
    flow = s.flow[number]
    flow["rate"] = rate
    flow["held"] = held
    for u in range(flow["first_use"], s.flow[number + 1]["first_use"]):
        resource = s.resource[s.use[u]["resource"]]
        if resource["crowded"]:
            resource["left"] -= rate * s.use[u]["seconds"]
            resource["want"] -= s.use[u]["seconds"]
            resource["open"] -= 1
