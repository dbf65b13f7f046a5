"""The loop of a simulation: what waits for what, until nothing is left to happen.

Owns the rules of waiting over the records of rccl_py.timing.sim_state. What happens is taken one
by one; what follows of it at the same time (lanes and actors that go on, messages that start) is
done before the next is taken. Events that are due at one time up to rounding all happen before
rates are looked at: in symmetric calls whole repetitions end together.

Functions are called from one place where they can be: all of them become one, and each place is
another copy to compile.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .sim_agenda import later, pop, push, replace
from .sim_jit import compiled, kept, source_of
from .sim_share import join, leave, share, touch
from .sim_state import (
    ACTED,
    ARRIVED,
    CHANGED,
    FREE,
    FRESH,
    IN_FLIGHT,
    JOBS,
    LEAD,
    LENGTH,
    MARGIN,
    NONE,
    NOTHING,
    PAUSED,
    PEAK,
    PUSHED,
    QUEUE,
    READY,
    RING,
    RING_END,
    ROOM,
    STARTED,
    TOUCHED,
    State,
)

__all__ = ["DONE", "GROW", "STUCK", "run"]

DONE, GROW, STUCK = range(3)
_SAME = 1 + 4e-14  # some 200 roundings


@compiled
def _start(s: State, number: int, time: float, cause: int) -> None:
    """Put the messages of a lane on the wire."""
    lane = s.lane[number]
    first, last = lane["first_out"], s.lane[number + 1]["first_out"]
    s.n[IN_FLIGHT] += last - first
    s.n[PEAK] = max(s.n[PEAK], s.n[IN_FLIGHT])
    for m in range(np.int64(first), np.int64(last)):
        at = s.n[STARTED]
        s.n[STARTED] = at + 1
        if len(s.transfer):
            row = s.transfer[at]
            row["message"] = m
            row["step"] = lane["step"]
            row["start"] = time
            row["after"] = cause
            s.current[m] = at
        wire = np.int64(s.message[m]["wire"])
        if wire >= 0:
            later(s, wire, time, 4 * m + PUSHED, NONE)
        else:
            join(s, -1 - wire, time)


@compiled
def _begin(s: State, number: int, time: float, cause: int) -> int:
    """Begin a lane's next repetition; return the lane if its messages start now, else -1."""
    lane = s.lane[number]
    step = lane["step"] + 1
    sent = s.lane[number + 1]["first_out"] - lane["first_out"]
    wait = sent
    for i in range(lane["first_heard"], s.lane[number + 1]["first_heard"]):
        if s.message[s.message[i]["heard"]]["arrived"] <= step:
            wait += 1
    lane["step"] = step
    lane["wait"] = wait
    if wait == 0:
        _ready(s, number, cause)
    if sent == 0:
        return NONE
    if lane["lead"] >= 0:
        later(s, np.int64(lane["lead"]), time, 4 * number + LEAD, cause)
        return NONE
    return number


@compiled
def _ready(s: State, number: int, cause: int) -> None:
    """Have a lane go on."""
    s.lane[number]["cause"] = cause
    s.lane[s.n[READY]]["ready"] = number
    s.n[READY] += 1


@compiled
def _enter(s: State, number: int, time: float, cause: int) -> None:
    """Move an actor to its next stage, past those that it has no part in."""
    actor = s.actor[number]
    job = s.job[actor["job"]]
    rank = number - job["first_actor"]
    while True:
        if actor["stage"] >= job["first_stage"]:
            left = s.stage[actor["stage"]]
            left["end"] = max(left["end"], time)
        actor["stage"] += 1
        if actor["stage"] == job["last_stage"]:
            actor["end"] = time
            _finish(s, np.int64(actor["job"]), time)
            return
        stage = s.stage[actor["stage"]]
        if stage["pause"] >= 0:
            pause = np.int64(s.pause[stage["pause"] + rank])
            if pause >= 0:
                later(s, pause, time, 4 * number + PAUSED, cause)
                return
            continue
        first, last = s.first_lane[stage["row"] + rank], s.first_lane[stage["row"] + rank + 1]
        actor["left"] = last - first
        for lane in range(np.int64(first), np.int64(last)):
            _ready(s, lane, cause)
        if first < last:
            return


@compiled
def _finish(s: State, number: int, time: float) -> None:
    """Count an actor of a job as done; after the last, and the tail, start what waited for it."""
    s.job[number]["left"] -= 1
    if s.job[number]["left"] > 0:
        return
    s.n[JOBS] -= 1
    for i in range(s.job[number]["first_next"], s.job[number + 1]["first_next"]):
        job = s.job[s.following[i]]
        job["needs"] -= 1
        job["time"] = max(job["time"], time + s.job[number]["tail"])
        if job["needs"] == 0:
            first, last = job["first_actor"], s.job[s.following[i] + 1]["first_actor"]
            for a in range(np.int64(first), np.int64(last)):
                push(s, job["time"] + s.actor[a]["late"], len(s.delay) + len(s.flow) - 1 + a)


@compiled
def _follow(s: State, lane: int, actor: int, time: float, cause: int) -> None:
    """Do what follows at once: a lane's messages start, an actor or ready lanes go on."""
    while True:
        if lane >= 0:
            _start(s, lane, time, cause)
            lane = NONE
        if actor >= 0:
            _enter(s, actor, time, cause)
            actor = NONE
        if s.n[READY] == 0:
            return
        s.n[READY] -= 1
        number = np.int64(s.lane[s.n[READY]]["ready"])
        row = s.lane[number]
        cause = np.int64(row["cause"])
        if row["step"] + 1 < row["steps"]:
            lane = _begin(s, number, time, cause)
        else:
            s.actor[row["actor"]]["left"] -= 1
            if s.actor[row["actor"]]["left"] == 0:
                actor = np.int64(row["actor"])


@compiled
def _moved(s: State, number: int, kind: int, time: float, tag: int) -> int:
    """A message's last byte has left, or is there; return its row of s.transfer."""
    message = s.message[number]
    if kind == PUSHED:
        if len(s.transfer):
            tag = np.int64(s.current[number])
            s.transfer[tag]["pushed"] = time
        later(s, np.int64(message["hop"]), time, 4 * number + ARRIVED, tag)
        lane, counts = np.int64(message["sends"]), True
    else:
        s.n[IN_FLIGHT] -= 1
        if len(s.transfer):
            s.transfer[tag]["end"] = time
        message["arrived"] += 1
        lane = np.int64(message["hears"])
        # It may be ahead of the lane that hears it, which then counts it as it begins.
        counts = s.lane[lane]["step"] == message["arrived"] - 1
    if counts:
        s.lane[lane]["wait"] -= 1
        if s.lane[lane]["wait"] == 0:
            _ready(s, lane, tag)
    return tag


@compiled
def _ended(s: State, until: float) -> int:
    """Return the next flow of the ring whose time has come, -1 after the last."""
    while s.n[RING] >= 0:
        at: int = s.n[RING]
        flow = s.flow[at]
        s.n[RING] = flow["ring"] if flow["ring"] != s.n[RING_END] else NONE
        if flow["rate"] > 0.0 and flow["since"] + flow["left"] / flow["rate"] <= until:
            return at
    return NONE


@compiled
def _close(s: State, until: float) -> None:
    """Take out the event of a queue that has just happened; the queue stays if the next is due.

    Until then it was left there, so that the queue is in the heap once.
    """
    queue = s.delay[s.n[QUEUE]]
    number = queue["first"]
    event = s.event[number]
    following = event["next"]
    queue["first"] = following
    event["next"] = s.n[FREE]
    s.n[FREE] = number
    s.n[ROOM] += 1
    if following < 0:
        pop(s)
        s.n[QUEUE] = NONE
    elif s.event[following]["time"] > until or s.n[ROOM] < s.n[MARGIN]:
        replace(s, s.event[following]["time"], s.n[QUEUE])
        s.n[QUEUE] = NONE


@compiled
def _take(s: State, time: float, until: float) -> tuple[int, int, float, int]:
    """Take the next thing that is due: kind, number, time, cause."""
    n, heap = s.n, s.heap
    if n[QUEUE] >= 0:
        _close(s, until)
    while n[QUEUE] < 0:
        if n[ROOM] < n[MARGIN]:
            n[RING] = NONE  # the others of the ring are shared anew, and due again
            return NOTHING, NONE, time, NONE
        if n[RING] >= 0:
            flow = _ended(s, until)
            if flow >= 0:
                leave(s, flow, time)
                return PUSHED, np.int64(s.flow[flow]["message"]), time, NONE
        if n[LENGTH] == 0 or heap[0]["time"] > until:
            return NOTHING, NONE, time, NONE
        node, serial = np.int64(heap[0]["node"]), heap[0]["serial"]
        if node < len(s.delay):
            n[QUEUE] = node
            break
        now = heap[0]["time"]
        pop(s)
        node -= len(s.delay)
        if node >= len(s.flow) - 1:
            return ACTED, node - (len(s.flow) - 1), now, NONE
        if s.flow[node]["due"] == serial:
            time = now
            n[RING] = n[RING_END] = node
    first = np.int64(s.delay[n[QUEUE]]["first"])
    code = np.int64(s.event[first]["code"])
    tag = np.int64(s.tag[first]) if len(s.tag) else NONE
    return code & 3, code >> 2, s.event[first]["time"], tag


@compiled
def _change(s: State) -> None:
    """Change a resource, and have the next change in the heap."""
    change = s.change[s.n[CHANGED]]
    s.resource[change["resource"]]["full"] = change["full"]
    touch(s, np.int64(change["resource"]))
    s.n[CHANGED] += 1
    if s.n[CHANGED] < len(s.change):
        node = len(s.delay) + len(s.flow) - 1 + len(s.actor)
        push(s, s.change[s.n[CHANGED]]["time"], node)


def _made(stamp: str) -> Callable[[State], int]:
    """Return the loop; stamp: what its code on disk is known by."""

    def loop(s: State) -> int:
        """Go on until all is done (DONE), nothing more can happen, or room is short (GROW)."""
        assert len(stamp) > 0
        n, time, until = s.n, s.now[0], -1.0
        while True:
            kind, number, time, cause = _take(s, time, until)
            lane, actor = NONE, NONE
            if kind == NOTHING:
                if n[TOUCHED] > 0 or n[FRESH] > 0:
                    share(s, time)
                if n[ROOM] < n[MARGIN] or n[FRESH] > 0:
                    s.now[0] = time
                    return GROW
                if n[LENGTH] == 0:
                    return DONE if n[JOBS] == 0 else STUCK
                time = s.heap[0]["time"]
                until = time * _SAME
                continue
            if kind in (PUSHED, ARRIVED):
                cause = _moved(s, number, kind, time, cause)
            elif kind == LEAD:
                lane = number
            elif number == len(s.actor):
                _change(s)
            else:
                actor = number
            _follow(s, lane, actor, time, cause)

    return kept(loop)


run = _made(source_of("sim_loop", "sim_agenda", "sim_share", "sim_pause", "sim_state", "sim_jit"))
