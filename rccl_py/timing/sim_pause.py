"""Back-pressure: links that stop all they carry while what they feed takes less.

Owns what lossless Ethernet does to rates that are max-min fair (rccl_py.timing.sim_share). A flow
that is held past a pausing link makes the others on it no faster than itself; a flow so slowed
holds the links before. What paused flows leave of other links goes to nobody::

    cable of rank 0   |a b a b|  a, b: 1/7 each, and the cable idle the rest of the time
    cable to rank 3   |a c d e f g h|  seven senders: 1/7 for a
"""

from __future__ import annotations

import numpy as np

from .sim_jit import called, compiled
from .sim_state import State

__all__ = ["back_pressure"]

_FULL = 1e-9  # of a resource: what is left of one that is full, up to rounding
_SAME = 1 + 1e-12  # rates within this of each other are the same


@called
def back_pressure(s: State, seed: int, members: int, resources: int) -> None:
    """Slow down what is on pausing links, from the far end of all routes back.

    seed: a flow of the ring, which has so many members and, listed as shared, resources.
    """
    deepest = _held(s, seed, members, resources)
    for depth in range(deepest - 1, 0, -1):
        for k in range(resources):
            number = np.int64(s.resource[k]["shared"])
            if s.pauses[number] == depth:
                s.resource[number]["want"] = _slowest(s, number, depth)
        for k in range(resources):
            number = np.int64(s.resource[k]["shared"])
            if s.pauses[number] == depth:
                _slow(s, number, depth)


@compiled
def _held(s: State, seed: int, members: int, resources: int) -> int:
    """Find how far on its way each flow is held, the first place if there are several.

    That is a resource that is full, on which none is faster; or what the flow takes alone.
    Return the furthest.
    """
    for k in range(resources):
        resource = s.resource[s.resource[k]["shared"]]
        resource["want"] = 0.0
        u = resource["first"]
        while u >= 0:
            resource["want"] = max(resource["want"], s.flow[s.use[u]["flow"]]["rate"])
            u = s.use[u]["next"]
    deepest, number = 0, seed
    for _ in range(members):
        flow = s.flow[number]
        held = 127
        if flow["rate"] * _SAME >= s.size[flow["size"]]["alone"]:
            held = np.int64(s.reach_alone[number])
        for u in range(flow["first_use"], s.flow[number + 1]["first_use"]):
            resource = s.resource[s.use[u]["resource"]]
            full = resource["crowded"] and resource["left"] <= _FULL
            if full and flow["rate"] * _SAME >= resource["want"]:
                held = min(held, np.int64(s.depth[u]))
        s.reach[number] = held if held < 127 else 0
        deepest = max(deepest, np.int64(s.reach[number]))
        number = np.int64(flow["ring"])
    return deepest


@compiled
def _slowest(s: State, number: int, depth: int) -> float:
    """Return the rate of the slowest flow that is held past this link, B/s."""
    least = np.inf
    u = np.int64(s.resource[number]["first"])
    while u >= 0:
        use = s.use[u]
        if s.reach[use["flow"]] > depth:
            least = min(least, s.flow[use["flow"]]["rate"])
        u = np.int64(use["next"])
    return least


@compiled
def _slow(s: State, number: int, depth: int) -> None:
    """Give flows on a link the rate it has found, and say that it holds them."""
    most = s.resource[number]["want"]
    u = np.int64(s.resource[number]["first"])
    while u >= 0:
        use = s.use[u]
        flow = s.flow[use["flow"]]
        if flow["rate"] > most * _SAME:
            flow["rate"] = most
            flow["held"] = u
            s.reach[use["flow"]] = depth
        u = np.int64(use["next"])
