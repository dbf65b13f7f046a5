"""What happens next: a heap of (time, serial) over queues of events that are in order already.

Owns the heap and the queues of rccl_py.timing.sim_state. An event that happens a fixed delay after
now is later than all that had the same delay, so only the first of each queue is in the heap.
Entries of flows that have got another due are passed over when they come up.
"""

from __future__ import annotations

import numpy as np

from .sim_jit import called, compiled
from .sim_state import FREE, LENGTH, ROOM, SERIAL, State

__all__ = ["has_room", "later", "pop", "push", "replace"]


@compiled
def _sink(s: State, i: int, time: float, serial: int, node: int) -> None:
    """Put an entry at place i, or below it."""
    heap, n = s.heap, s.n[LENGTH]
    while True:
        below = 2 * i + 1
        if below >= n:
            break
        t, k = heap[below]["time"], heap[below]["serial"]
        if below + 1 < n:
            t2, k2 = heap[below + 1]["time"], heap[below + 1]["serial"]
            if t2 < t or (t2 == t and k2 < k):
                below, t, k = below + 1, t2, k2
        if time < t or (time == t and serial < k):
            break
        heap[i] = heap[below]
        i = below
    heap[i]["time"] = time
    heap[i]["serial"] = serial
    heap[i]["node"] = node


@called
def _clean(s: State) -> None:
    """Take out all entries of flows that have got another due."""
    heap, kept, first = s.heap, 0, len(s.delay)
    for i in range(s.n[LENGTH]):
        node = heap[i]["node"] - first
        flow = 0 <= node < len(s.flow) - 1
        if not flow or s.flow[node]["due"] == heap[i]["serial"]:
            heap[kept] = heap[i]
            kept += 1
    s.n[LENGTH] = kept
    for i in range(kept // 2 - 1, -1, -1):
        entry = heap[i]
        _sink(s, np.int64(i), entry["time"], np.int64(entry["serial"]), np.int64(entry["node"]))


@compiled
def has_room(s: State) -> bool:
    """Return whether the heap has room for a flow; at least half of it, if entries were dropped.

    What is not a flow is in it once, and keeps its room.
    """
    most = len(s.heap) - len(s.delay) - len(s.actor) - 2
    if s.n[LENGTH] < most:
        return True
    _clean(s)
    found: bool = 2 * s.n[LENGTH] < most
    return found


@called
def push(s: State, time: float, node: int) -> int:
    """Put a node into the heap; return its serial."""
    if s.n[LENGTH] == len(s.heap):
        _clean(s)
    i = s.n[LENGTH]
    s.n[LENGTH] = i + 1
    s.n[SERIAL] += 1
    serial = s.n[SERIAL]
    heap = s.heap
    while i > 0:  # an equal time stays behind: its serial is larger
        above = (i - 1) >> 1
        if heap[above]["time"] <= time:
            break
        heap[i] = heap[above]
        i = above
    heap[i]["time"] = time
    heap[i]["serial"] = serial
    heap[i]["node"] = node
    return int(serial)


@compiled
def pop(s: State) -> None:
    """Take out the first entry."""
    n = s.n[LENGTH] - 1
    s.n[LENGTH] = n
    if n > 0:
        last = s.heap[n]
        _sink(s, np.int64(0), last["time"], np.int64(last["serial"]), np.int64(last["node"]))


@compiled
def replace(s: State, time: float, node: int) -> None:
    """Put a node into the heap in place of the first."""
    s.n[SERIAL] += 1
    _sink(s, np.int64(0), time, s.n[SERIAL], node)


@compiled
def later(s: State, delay: int, now: float, code: int, tag: int) -> None:
    """Have an event a delay after now. There is room: who calls the loop has seen to it."""
    number = s.n[FREE]
    event, queue = s.event[number], s.delay[delay]
    s.n[FREE] = event["next"]
    s.n[ROOM] -= 1
    time = now + queue["seconds"]
    event["time"] = time
    event["code"] = code
    event["next"] = -1
    if len(s.tag):
        s.tag[number] = tag
    if queue["first"] < 0:
        queue["first"] = number
        push(s, time, delay)
    else:
        s.event[queue["last"]]["next"] = number
    queue["last"] = number
