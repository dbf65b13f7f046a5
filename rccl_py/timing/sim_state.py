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

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..fabric import F64
from ..schedule import I32

__all__ = [
    "ACTOR", "ARRIVED", "CHANGE", "CHANGED", "DELAY", "EVENT", "FLOW", "FREE", "FRESH", "HEAP",
    "IN_FLIGHT", "JOB", "JOBS", "LANE", "LEAD", "LENGTH", "MARGIN", "MARK", "MESSAGE", "ONE",
    "PAUSED", "PEAK", "PUSHED", "RESOURCE", "ROOM", "SERIAL", "STAGE", "STARTED", "State",
    "TOUCHED", "TRANSFER", "USE", "counters", "free_events",
]  # fmt: skip

Records = npt.NDArray[Any]
"""A structured array; its columns are those of the dtypes below."""


def _record(ints: str, floats: str = "", longs: str = "") -> np.dtype[Any]:
    """Return the dtype with int32, float64 and int64 columns of these names."""
    columns = [(name, np.float64) for name in floats.split()]
    columns += [(name, np.int64) for name in longs.split()]
    columns += [(name, np.int32) for name in ints.split()]
    return np.dtype(columns)


# Where several rows belong to one, `first_...` says where they begin; one more row ends the last.
JOB = _record("first_actor first_stage last_stage left needs first_next", "time")
"""left: actors not done. needs: jobs to be done before; first_next: jobs that need this one.
time: s, the earliest start."""
ACTOR = _record("job stage left due", "late end")
"""left: lanes not done in this stage. late: s from the job's time until the rank is ready."""
STAGE = _record("", "end", "row pause")
"""row, pause: where its actors' first lanes and pauses begin, pause -1: none. end: s."""
LANE = _record("actor steps step wait lead first_out first_heard")
"""step: the repetition under way, -1 before. wait: pushes and arrivals it lacks. lead: a delay."""
MESSAGE = _record("sends hears wire hop arrived")
"""sends, hears: lanes. wire: a delay, or -1 - flow. hop: a delay. arrived: repetitions."""
FLOW = _record("message first_use ring mark held due", "nbytes alone left since rate")
"""alone, rate: B/s. left: B at `since`. held: the use that holds it back, -1: none. ring: the next
flow that shares with it. due: serial of its event, -1: another of its ring has it."""
USE = _record("resource flow next before", "seconds")
"""seconds: s of the resource per byte."""
RESOURCE = _record("first members mark open crowded touched", "full left want queued", "demand")
"""full: how much of it there is, 1 unless changed. demand: what its members would take without
each other, in units of 1 / ONE: whole numbers, so that it is 0 when the last has left."""
DELAY = _record("first last", "seconds")
EVENT = _record("code next", "time")
"""code: 4 * number + kind."""
HEAP = _record("serial node", "time")
"""node: a delay, whose first event is meant; then flows; then actors; then the next change."""
CHANGE = _record("resource", "time full")
TRANSFER = _record("message step", "start pushed end", "after")

ONE = 1 << 44
LEAD, PUSHED, ARRIVED, PAUSED = range(4)
"""Kinds of events: a lane may start its messages; a message has left, is there; an actor goes on."""

(LENGTH, SERIAL, FREE, ROOM, MARGIN, TOUCHED, FRESH, MARK, JOBS, CHANGED, STARTED, IN_FLIGHT,
 PEAK) = range(13)  # fmt: skip
"""Places in State.n: the heap's length and last serial; the first free event, how many there are
and must be; resources and flows to look at; marks given; jobs not done; changes and messages so
far; messages in flight and their most."""


class State(NamedTuple):
    """All of a simulation. heard: messages by the lane that hears them. first_lane, pause: by
    stage and actor. following: jobs by the job they need. touched ... stack: room to work in.
    tag, current, waited, transfer: who caused an event, the running transfer of a message, s each
    use held back, and what is told of every message; of length 0 without detail.
    """

    n: npt.NDArray[np.int64]
    job: Records
    actor: Records
    stage: Records
    lane: Records
    message: Records
    heard: I32
    first_lane: I32
    pause: I32
    following: I32
    flow: Records
    use: Records
    resource: Records
    delay: Records
    event: Records
    heap: Records
    change: Records
    touched: I32
    fresh: I32
    members: I32
    shared: I32
    stack: I32
    tag: npt.NDArray[np.int64]
    current: npt.NDArray[np.int64]
    waited: F64
    transfer: Records

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(column.nbytes for column in self)


def counters(jobs: int, margin: int) -> npt.NDArray[np.int64]:
    """Return State.n at the start."""
    n = np.zeros(13, dtype=np.int64)
    n[FREE], n[MARGIN], n[JOBS] = -1, margin, jobs
    return n


def free_events(state: State, more: int) -> State:
    """Return the state with room for `more` events and as many entries of the heap."""
    had = len(state.event)
    event = np.concatenate([state.event, np.zeros(more, dtype=EVENT)])
    event["next"][had:] = np.arange(had + 1, had + more + 1)
    event["next"][-1] = state.n[FREE]
    state.n[FREE] = had
    state.n[ROOM] += more
    tag = state.tag
    if len(state.transfer):
        tag = np.concatenate([tag, np.zeros(more, dtype=np.int64)])
    return state._replace(event=event, tag=tag)
