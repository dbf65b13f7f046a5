"""What a simulation keeps: records of what never changes and of where everything is.

Owns the shapes. Knows neither schedule nor fabric: messages, lanes and resources are numbers.

    job      several ranks with their stages           one row a communicator's call
    actor    a rank of a job                           actors of a job are neighbours
    lane     an actor's channel in a stage             what goes from repetition to repetition
    message  from lane to lane, once a repetition      sorted by the lane that sends
    flow     a message that may have to share          the others take the same time every time
    use      a flow's need of one resource             member of that resource's list while it runs
    delay    a fixed wait; its events are in order     a queue each, so that the heap stays small
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..fabric import F64
from ..schedule import I32

__all__ = [
    "ACTED",
    "ACTOR",
    "ARRIVED",
    "CHANGE",
    "CHANGED",
    "DELAY",
    "EVENT",
    "FLOW",
    "FREE",
    "FRESH",
    "HEAP",
    "IN_FLIGHT",
    "JOB",
    "JOBS",
    "LANE",
    "LEAD",
    "LENGTH",
    "MARGIN",
    "MARK",
    "MESSAGE",
    "NONE",
    "NOTHING",
    "ONE",
    "PAUSED",
    "PEAK",
    "PUSHED",
    "QUEUE",
    "READY",
    "RESOURCE",
    "RING",
    "RING_END",
    "ROOM",
    "SERIAL",
    "SIZE",
    "STAGE",
    "STARTED",
    "TOUCHED",
    "TRANSFER",
    "USE",
    "State",
    "counters",
    "free_events",
    "with_room",
]

I8 = npt.NDArray[np.int8]
Records = npt.NDArray[Any]
"""A structured array; its columns are those of the dtypes below."""


def _record(ints: str, floats: str = "", longs: str = "") -> np.dtype[Any]:
    """Return the dtype with int32, float64 and int64 columns of these names."""
    columns = [(name, "f8") for name in floats.split()]
    columns += [(name, "i8") for name in longs.split()]
    columns += [(name, "i4") for name in ints.split()]
    return np.dtype(columns)


# Where several rows belong to one, `first_...` says where they begin; one more row ends the last.
JOB = _record("first_actor first_stage last_stage left needs first_next", "time tail")
"""left: actors not done. needs: jobs to be done before; first_next: jobs that need this one.
time: s, the earliest start. tail: s from the end of its last actor to its own."""
ACTOR = _record("job stage left", "late end")
"""left: lanes not done in this stage. late: s from the job's time until the rank is ready."""
STAGE = _record("", "end", "row pause")
"""row, pause: where its actors' first lanes and pauses begin, pause -1: none. end: s."""
LANE = _record("actor steps step wait lead first_out first_heard ready cause")
"""step: the repetition under way, -1 before. wait: pushes and arrivals it lacks. lead: a delay.
ready: a list of its own, of lanes to go on with; cause: row of State.transfer that let it."""
MESSAGE = _record("sends hears wire hop arrived heard")
"""sends, hears: lanes. wire: a delay, or -1 - flow. hop: a delay. arrived: repetitions.
heard: a list of its own, of messages by the lane that hears them."""
FLOW = _record("message first_use size ring mark held due fresh", "left since rate")
"""size: what it has. rate: B/s. left: B at `since`. held: the use that holds it back, -1: none.
ring: the next flow that shares with it. due: serial of its event, -1: another of its ring has it.
fresh: a list of its own, of flows that have started."""
SIZE = _record("", "nbytes alone")
"""B, and B/s alone: most flows have them in common with others."""
USE = _record("resource flow next before", "seconds")
"""seconds: s of the resource per byte."""
RESOURCE = _record(
    "first members mark open crowded touched changed shared", "full left want queued", "demand"
)
"""full: how much of it there is, 1 unless changed. demand: what its members would take without
each other, in units of 1 / ONE: whole numbers, so that it is 0 when the last has left.
changed, shared: lists of their own, of resources to look at and of those looked at together."""
DELAY = _record("first last", "seconds")
EVENT = _record("code next", "time")
"""code: 4 * number + kind."""
HEAP = _record("serial node", "time")
"""node: a delay, whose first event is meant; then flows; then actors; then the next change."""
CHANGE = _record("resource", "time full")
TRANSFER = _record("message step", "start pushed end", "after")

ONE = np.int64(1 << 44)
NONE = cast("int", np.int64(-1))
"""No one. Numbers handed on are all int64: every other type is compiled anew."""
LEAD, PUSHED, ARRIVED, PAUSED, ACTED, NOTHING = range(6)
"""Kinds of events: a lane may start its messages; a message has left, is there; an actor goes on.
Not in queues: an actor starts, or (its number is one too many) a change; nothing is due."""

(LENGTH, SERIAL, FREE, ROOM, MARGIN, TOUCHED, FRESH, MARK, JOBS, CHANGED, STARTED, IN_FLIGHT,
 PEAK, READY, QUEUE, RING, RING_END) = range(17)  # fmt: skip
"""Places in State.n: the heap's length and last serial; the first free event, how many there are
and must be; resources and flows to look at; marks given; jobs not done; changes and messages so
far; messages in flight and their most; lanes to go on; the queue whose first event happens; the
flow of a ring to look at next, and the one its round ends at."""


class State(NamedTuple):
    """All of a simulation. first_lane, pause: by stage and actor. following: jobs by the job they
    need. now: s at which the loop stopped for room.

    Of length 0 without detail: waited, s each use held back; transfer, what is told of every
    message; current, tag: the row there of each message, and of the message that caused each event
    or -1. Of length 0 where no link pauses what feeds it: depth, how far on a flow's way each use
    is; reach, reach_alone: how far on a flow is held, now and alone; pauses: the depth of each
    resource that pauses, 0 of others.
    """

    n: npt.NDArray[np.int64]
    job: Records
    actor: Records
    stage: Records
    lane: Records
    message: Records
    first_lane: I32
    pause: I32
    following: I32
    flow: Records
    size: Records
    use: Records
    resource: Records
    delay: Records
    event: Records
    heap: Records
    change: Records
    now: F64
    waited: F64
    transfer: Records
    current: I32
    tag: I32
    depth: I8
    reach: I8
    reach_alone: I8
    pauses: I8

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(column.nbytes for column in self)


def counters(jobs: int, margin: int) -> npt.NDArray[np.int64]:
    """Return State.n at the start."""
    n = np.zeros(17, dtype=np.int64)
    n[MARGIN], n[JOBS] = margin, jobs
    n[FREE] = n[QUEUE] = n[RING] = -1
    return n


def with_room(state: State) -> State:
    """Return the state with more room for what it ran short of: events, or entries of the heap."""
    if state.n[ROOM] < state.n[MARGIN]:
        return free_events(state, max(len(state.event) // 4, int(state.n[MARGIN])))
    more = np.zeros(len(state.heap), dtype=HEAP)
    return state._replace(heap=np.concatenate([state.heap, more]))


def free_events(state: State, more: int) -> State:
    """Return the state with room for `more` events."""
    had = len(state.event)
    event = np.concatenate([state.event, np.zeros(more, dtype=EVENT)])
    event["next"][had:] = np.arange(had + 1, had + more + 1)
    event["next"][-1] = state.n[FREE]
    state.n[FREE] = had
    state.n[ROOM] += more
    tag = np.zeros(len(event) if len(state.transfer) else 0, dtype=np.int32)
    tag[: len(state.tag)] = state.tag
    return state._replace(event=event, tag=tag)
