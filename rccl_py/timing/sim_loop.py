"""The loop of a simulation: what waits for what, until nothing is left to happen.

Owns the rules of waiting over the records of rccl_py.timing.sim_state. Events that are due at one
time up to rounding happen one after the other before rates are looked at: in symmetric calls whole
repetitions end together.
"""

from __future__ import annotations

from collections.abc import Callable

from .sim_agenda import later, pop, push, replace
from .sim_jit import compiled, kept, source_of
from .sim_share import join, leave, share, touch
from .sim_state import (
    ARRIVED,
    CHANGED,
    FREE,
    FRESH,
    IN_FLIGHT,
    JOBS,
    LEAD,
    LENGTH,
    MARGIN,
    PAUSED,
    PEAK,
    PUSHED,
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
    for m in range(first, last):
        if len(s.transfer):
            at = s.n[STARTED]
            row = s.transfer[at]
            row["message"] = m
            row["step"] = lane["step"]
            row["start"] = time
            row["after"] = cause
            s.current[m] = at
        s.n[STARTED] += 1
        wire = s.message[m]["wire"]
        if wire >= 0:
            later(s, wire, time, 4 * m + PUSHED, -1)
        else:
            join(s, -1 - wire, time)


@compiled
def _begin(s: State, number: int, time: float, cause: int) -> bool:
    """Begin a lane's next repetition; return whether it is over already."""
    lane = s.lane[number]
    step = lane["step"] + 1
    sent = s.lane[number + 1]["first_out"] - lane["first_out"]
    wait = sent
    for i in range(lane["first_heard"], s.lane[number + 1]["first_heard"]):
        if s.message[s.heard[i]]["arrived"] <= step:
            wait += 1
    lane["step"] = step
    lane["wait"] = wait
    if sent > 0:
        if lane["lead"] >= 0:
            later(s, lane["lead"], time, 4 * number + LEAD, cause)
        else:
            _start(s, number, time, cause)
    return bool(wait == 0)


@compiled
def _enter(s: State, number: int, time: float, cause: int, ready: int) -> int:
    """Move an actor to its next stage; return the lanes in s.stack that are over at once."""
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
            _finish(s, actor["job"], time)
            return ready
        stage = s.stage[actor["stage"]]
        if stage["pause"] >= 0:
            if s.pause[stage["pause"] + rank] >= 0:
                later(s, s.pause[stage["pause"] + rank], time, 4 * number + PAUSED, cause)
                return ready
            continue
        first, last = s.first_lane[stage["row"] + rank], s.first_lane[stage["row"] + rank + 1]
        if first < last:
            actor["left"] = last - first
            for lane in range(first, last):
                if _begin(s, lane, time, cause):
                    s.stack[ready] = lane
                    ready += 1
            return ready


@compiled
def _finish(s: State, number: int, time: float) -> None:
    """Count an actor of a job as done; after the last, start the jobs that waited for it."""
    s.job[number]["left"] -= 1
    if s.job[number]["left"] > 0:
        return
    s.n[JOBS] -= 1
    for i in range(s.job[number]["first_next"], s.job[number + 1]["first_next"]):
        job = s.job[s.following[i]]
        job["needs"] -= 1
        job["time"] = max(job["time"], time)
        if job["needs"] == 0:
            for a in range(job["first_actor"], s.job[s.following[i] + 1]["first_actor"]):
                push(s, job["time"] + s.actor[a]["late"], _node_of_actor(s, a))


@compiled
def _node_of_actor(s: State, actor: int) -> int:
    return len(s.delay) + len(s.flow) - 1 + actor


@compiled
def _go_on(s: State, ready: int, time: float, cause: int) -> None:
    """Move on the lanes in s.stack, which have all they waited for, and what follows them."""
    while ready > 0:
        ready -= 1
        number = s.stack[ready]
        lane = s.lane[number]
        if lane["step"] + 1 < lane["steps"]:
            if _begin(s, number, time, cause):
                s.stack[ready] = number
                ready += 1
            continue
        actor = s.actor[lane["actor"]]
        actor["left"] -= 1
        if actor["left"] == 0:
            ready = _enter(s, lane["actor"], time, cause, ready)


@compiled
def _less(s: State, number: int, time: float, cause: int) -> None:
    """Count one thing less that a lane waits for."""
    lane = s.lane[number]
    lane["wait"] -= 1
    if lane["wait"] == 0:
        s.stack[0] = number
        _go_on(s, 1, time, cause)


@compiled
def _pushed(s: State, number: int, time: float) -> None:
    """A message's last byte has left."""
    message = s.message[number]
    tag = -1
    if len(s.transfer):
        tag = s.current[number]
        s.transfer[tag]["pushed"] = time
    later(s, message["hop"], time, 4 * number + ARRIVED, tag)
    _less(s, message["sends"], time, tag)


@compiled
def _arrived(s: State, number: int, time: float, tag: int) -> None:
    """A message's last byte is there; it may be ahead of the lane that hears it."""
    message = s.message[number]
    s.n[IN_FLIGHT] -= 1
    if len(s.transfer):
        s.transfer[tag]["end"] = time
    message["arrived"] += 1
    if s.lane[message["hears"]]["step"] == message["arrived"] - 1:
        _less(s, message["hears"], time, tag)


@compiled
def _end(s: State, number: int, time: float, until: float) -> None:
    """End the flows of a ring whose time has come, from the one that is due on."""
    at = number
    while True:
        flow = s.flow[at]
        after = flow["ring"]  # it may start again, then the ring is gone
        if flow["rate"] > 0.0 and flow["since"] + flow["left"] / flow["rate"] <= until:
            leave(s, at, time)
            _pushed(s, flow["message"], time)
        at = after
        if at == number:
            return


@compiled
def _next(s: State, until: float) -> None:
    """Let the next thing happen."""
    top = s.heap[0]
    time, node, serial = top["time"], top["node"], top["serial"]
    if node < len(s.delay):
        queue = s.delay[node]
        number = queue["first"]
        event = s.event[number]
        code, following = event["code"], event["next"]
        tag = s.tag[number] if len(s.tag) else -1
        queue["first"] = following
        if following < 0:
            pop(s)
        else:
            replace(s, s.event[following]["time"], node)
        event["next"] = s.n[FREE]
        s.n[FREE] = number
        s.n[ROOM] += 1
        _happen(s, code >> 2, code & 3, time, tag)
        return
    pop(s)
    node -= len(s.delay)
    if node < len(s.flow) - 1:
        if s.flow[node]["due"] == serial:
            _end(s, node, time, until)
        return
    node -= len(s.flow) - 1
    if node < len(s.actor):
        _go_on(s, _enter(s, node, time, -1, 0), time, -1)
    else:
        change = s.change[s.n[CHANGED]]
        s.resource[change["resource"]]["full"] = change["full"]
        touch(s, change["resource"])
        s.n[CHANGED] += 1
        if s.n[CHANGED] < len(s.change):
            push(s, s.change[s.n[CHANGED]]["time"], _node_of_actor(s, len(s.actor)))


@compiled
def _happen(s: State, number: int, kind: int, time: float, tag: int) -> None:
    """Let an event of a queue happen."""
    if kind == PUSHED:
        _pushed(s, number, time)
    elif kind == ARRIVED:
        _arrived(s, number, time, tag)
    elif kind == LEAD:
        _start(s, number, time, tag)
    else:
        _go_on(s, _enter(s, number, time, tag, 0), time, tag)


def _made(stamp: str) -> Callable[[State], int]:
    """Return the loop; stamp: what its code on disk is known by."""

    def loop(s: State) -> int:
        """Go on until all is done (DONE), nothing more can happen, or events lack room (GROW)."""
        assert len(stamp) > 0
        n = s.n
        while n[LENGTH] > 0:
            time = s.heap[0]["time"]
            until = time * _SAME
            while n[LENGTH] > 0 and s.heap[0]["time"] <= until and n[ROOM] >= n[MARGIN]:
                time = s.heap[0]["time"]
                _next(s, until)
            if n[TOUCHED] > 0 or n[FRESH] > 0:
                share(s, time)
            if n[ROOM] < n[MARGIN]:
                return GROW
        return DONE if n[JOBS] == 0 else STUCK

    return kept(loop)


run = _made(source_of("sim_loop", "sim_agenda", "sim_share", "sim_state", "sim_jit"))
