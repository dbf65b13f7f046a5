"""Calls on a fabric as the records that rccl_py.timing.sim_loop runs on.

Owns how messages become lanes, flows and delays, and which messages can have to share at all. A
rank has the messages of one stage on the wire at a time, each once; so a resource of which no
more is asked for than there is, when every rank uses it at its most, holds no one back: what uses
only such resources takes the same time every time, and is a delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..fabric import F64, expand
from ..schedule import I32
from .sim_cut import Cut
from .sim_order import NO_ORDER, along
from .sim_state import (
    ACTOR,
    CHANGE,
    DELAY,
    EVENT,
    FLOW,
    HEAP,
    JOB,
    LANE,
    LENGTH,
    MESSAGE,
    RESOURCE,
    SERIAL,
    SIZE,
    STAGE,
    TRANSFER,
    USE,
    Records,
    State,
    counters,
    free_events,
)
from .stages import I64

__all__ = ["Call", "Tables", "tables"]

_ALONE = 1024  # flows in the heap at first
_SLACK = 1 + 1e-12  # sums of what resources are used may be off by roundings


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A job's stages. needs: jobs before it. start: s. late: float64[nranks] s until ready.

    tail: s from the last stage until the call is over.
    """

    cuts: list[Cut]
    start: float
    late: F64
    needs: tuple[int, ...]
    tail: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Tables:
    """The state to start from. number : int64[resources], what its resources are on the fabric.

    of_flow : int64[flows], of_use : int64[uses], the messages and uses of the cuts, one after the
    other, that they are.
    """

    state: State
    number: I64
    of_flow: I64
    of_use: I64


def tables(calls: Sequence[Call], changes: Iterable[tuple[float, int, float]], detail: bool,
           room: int) -> Tables:  # fmt: skip
    """Return the records of all calls. room: messages that will be told of, where detail is."""
    cuts = [c for call in calls for c in call.cuts]
    change = _changes(changes)
    seconds, resource = _joined(c.seconds for c in cuts), _whole(c.resource for c in cuts)
    alone = _joined(c.alone for c in cuts)
    row = np.repeat(np.arange(len(alone)), _whole(np.diff(c.ptr) for c in cuts))
    crowdable = _crowdable(calls, resource, seconds, alone, row, change["resource"])
    order = along(cuts, row, seconds, alone)
    if order is not None:
        crowdable |= order.feeding(resource, row, crowdable)
    kept = crowdable[resource] & (seconds > 0)
    flows = np.unique(row[kept])
    number = np.unique(np.concatenate([resource[kept], change["resource"]]))
    change["resource"] = np.searchsorted(number, change["resource"])
    message, lane, delay, pause = _messages(cuts, flows, alone)
    flow, size, use = _flows(cuts, flows, alone, row[kept], seconds[kept])
    use["resource"] = np.searchsorted(number, resource[kept])
    stage, first_lane = _stages(cuts)
    job, actor, following = _jobs(calls)
    lane["actor"][:-1] = _actors_of_lanes(calls)
    shared = np.zeros(len(number), dtype=RESOURCE)
    shared["full"], shared["first"] = 1.0, -1
    most = max([1, *(int(np.bincount(c.src).max(initial=1)) for c in cuts)])
    # Flows that share are in the heap once together; where more do not, it grows.
    heap = len(delay) + len(actor) + min(len(flows), _ALONE) + 64
    state = State(
        counters(len(calls), most + 4), job, actor, stage, lane, message,
        first_lane, pause, following, flow, size, use, shared, delay,
        np.zeros(0, dtype=EVENT), np.zeros(heap, dtype=HEAP), change,
        np.zeros(1), np.zeros(len(use) if detail else 0),
        np.zeros(room if detail else 0, dtype=TRANSFER),
        np.zeros(len(message) if detail else 0, dtype=np.int32), np.zeros(0, dtype=np.int32),
        *(NO_ORDER if order is None else order.columns(flows, kept, use["resource"], len(number))),
    )  # fmt: skip
    _first_events(state, calls)
    return Tables(free_events(state, 2 * (most + 4)), number, flows,
                  np.flatnonzero(kept))  # fmt: skip


def _joined(columns: Iterable[npt.NDArray[np.floating[Any]]]) -> F64:
    return np.concatenate([np.zeros(0), *columns])


def _whole(columns: Iterable[npt.NDArray[np.integer[Any]]]) -> I64:
    return np.concatenate([np.zeros(0, dtype=np.int64), *columns])


def _bases(counts: Iterable[int]) -> list[int]:
    """Return where each of several begins when they are put one after the other, and the end."""
    return [0, *np.cumsum(list(counts), dtype=np.int64).tolist()]


def _changes(changes: Iterable[tuple[float, int, float]]) -> Records:
    rows = sorted(changes, key=lambda change: change[0])
    found = np.zeros(len(rows), dtype=CHANGE)
    for row, (time, resource, full) in zip(found, rows):
        row["time"], row["resource"], row["full"] = time, resource, full
    return found


def _crowdable(calls: Sequence[Call], resource: I64, seconds: F64, alone: F64, row: I64,
               changed: I64) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Return by resource whether it may be asked for more than there is: bool[resources].

    It is not if all that can be on the wire at once takes no more of it when each goes as fast as
    alone; nor if what holds each message back alone, shared as it may be, always leaves enough of
    it: a rank's memory behind its links.
    """
    count = int(max(resource.max(initial=-1), changed.max(initial=-1))) + 1
    part = np.divide(seconds, alone[row], out=np.zeros_like(seconds), where=alone[row] > 0)
    most, at = np.zeros(count), 0
    for call in calls:
        keys: list[I64] = []
        sums: list[F64] = []
        for c in call.cuts:
            end = at + len(c.resource)
            rank = np.repeat(c.src.astype(np.int64), np.diff(c.ptr))
            key, place = _numbered(rank * count + c.resource)
            keys.append(key)
            total = np.bincount(place, weights=part[at:end], minlength=len(key))
            sums.append(total.astype(np.float64))
            at = end
        most += _largest(_whole(keys), _joined(sums), count)
    found = most > _SLACK
    found &= _behind(resource, part, row, found) > _SLACK
    found[changed] = True
    return np.asarray(found)


def _behind(resource: I64, part: F64, row: I64, asked: npt.NDArray[np.bool_]) -> F64:
    """Return by resource the most that its messages take of it at once, as what holds them allows.

    Of what a message takes longest alone there is 1 for all: together they take no more of any
    other resource than the one of them that takes most of it would. asked: who is asked about.
    """
    count, full = len(asked), np.flatnonzero(part >= 1.0)
    found = np.full(count, np.inf)
    asked = asked.copy()
    asked[resource[full]] = False
    entry = np.flatnonzero(asked[resource])
    if not len(entry):
        return found
    first = np.searchsorted(row[full], np.arange(row[-1] + 2))
    pair, other = expand(first, row[entry])
    key = resource[full[other]] * count + resource[entry[pair]]
    names, place = _numbered(key)
    many = np.bincount(place)
    # Of several that hold a message, the one that holds most others too: fewer to add up.
    chosen = np.zeros(len(entry), dtype=np.int64)
    order = np.lexsort((place, many[place], pair))
    chosen[pair[order]] = place[order]
    total = _largest(names[chosen], part[entry], count)
    found[asked] = total[asked]
    return found


def _numbered(key: I64) -> tuple[I64, I64]:
    """Return names and the place in them of each key; some names are no key's if that is faster."""
    if len(key) and int(key.max()) < 4 * len(key):
        return np.arange(int(key.max()) + 1), key
    names, place = np.unique(key, return_inverse=True)
    return names, place


def _largest(key: I64, value: F64, count: int) -> F64:
    """Return by key % count the sum of the largest value of each key: float64[count]."""
    names, place = _numbered(key)
    largest = np.zeros(len(names))
    np.maximum.at(largest, place, value)
    if not count:
        return np.zeros(0)
    return np.bincount(names % count, weights=largest, minlength=count).astype(np.float64)


def _messages(cuts: list[Cut], flows: I64, alone: F64) -> tuple[Records, Records, Records, I32]:
    """Return messages, lanes, the delays they name, and the pauses that name some too."""
    lanes = _bases(len(c.rank) for c in cuts)
    message = np.zeros(len(alone), dtype=MESSAGE)
    lane = np.zeros(lanes[-1] + 1, dtype=LANE)
    hop, lead = _joined(c.hop for c in cuts), _joined(c.lead for c in cuts)
    pause = _joined(c.pause for c in cuts if c.pause is not None)
    fixed = np.ones(len(alone), dtype=bool)
    fixed[flows] = False
    seconds, at = np.unique(np.concatenate([alone[fixed], hop, lead, pause]), return_inverse=True)
    wires, hops, leads, pauses = np.split(at, np.cumsum([fixed.sum(), len(hop), len(lead)]))
    delay = np.zeros(len(seconds), dtype=DELAY)
    delay["seconds"], delay["first"], delay["last"] = seconds, -1, -1
    message["wire"][fixed] = wires
    message["wire"][flows] = -1 - np.arange(len(flows))
    message["hop"] = hops
    message["heard"] = _heard(cuts)
    message["sends"] = _whole(c.sends + base for c, base in zip(cuts, lanes))
    message["hears"] = _whole(c.hears + base for c, base in zip(cuts, lanes))
    lane["lead"][:-1] = np.where(lead > 0, leads, -1)
    lane["steps"][:-1] = np.repeat([c.steps for c in cuts], np.diff(lanes))
    lane["step"] = -1
    for end, first in (("sends", "first_out"), ("hears", "first_heard")):
        counts = np.bincount(message[end], minlength=lanes[-1])
        lane[first][1:] = np.cumsum(counts)
    return message, lane, delay, np.where(pause > 0, pauses, -1).astype(np.int32)


def _heard(cuts: list[Cut]) -> I32:
    """Return the messages in order of the lanes that hear them."""
    bases = _bases(len(c.src) for c in cuts)
    found = _whole(np.argsort(c.hears, kind="stable") + base for c, base in zip(cuts, bases))
    return found.astype(np.int32)


def _flows(cuts: list[Cut], flows: I64, alone: F64, row: I64, seconds: F64
           ) -> tuple[Records, Records, Records]:  # fmt: skip
    """Return flows, the sizes they have, and uses, these without their resources."""
    nbytes = _joined(c.nbytes for c in cuts)[flows]
    kinds, kind = np.unique(nbytes + 1j * (nbytes / alone[flows]), return_inverse=True)
    size = np.zeros(len(kinds), dtype=SIZE)
    size["nbytes"], size["alone"] = kinds.real, kinds.imag
    flow = np.zeros(len(flows) + 1, dtype=FLOW)
    flow["message"][:-1] = flows
    flow["size"][:-1] = kind
    flow["due"] = flow["held"] = -1
    owner = np.searchsorted(flows, row)
    flow["first_use"][1:] = np.cumsum(np.bincount(owner, minlength=len(flows)))
    use = np.zeros(len(row), dtype=USE)
    use["flow"], use["seconds"] = owner, seconds / nbytes[owner]
    return flow, size, use


def _stages(cuts: list[Cut]) -> tuple[Records, I32]:
    lanes, rows = _bases(len(c.rank) for c in cuts), _bases(len(c.first) for c in cuts)
    stage = np.zeros(len(cuts), dtype=STAGE)
    stage["row"] = rows[:-1]
    quiet = [c.pause is not None for c in cuts]
    starts = np.array(_bases(len(c.pause) for c in cuts if c.pause is not None)[:-1])
    stage["pause"] = -1
    stage["pause"][quiet] = starts
    return stage, _whole(c.first + base for c, base in zip(cuts, lanes)).astype(np.int32)


def _jobs(calls: Sequence[Call]) -> tuple[Records, Records, I32]:
    """Return jobs, actors, and the jobs that follow each job."""
    job = np.zeros(len(calls) + 1, dtype=JOB)
    sizes = [len(call.late) for call in calls]
    job["first_actor"] = _bases(sizes)
    stages = _bases(len(call.cuts) for call in calls)
    job["first_stage"][:-1], job["last_stage"][:-1] = stages[:-1], stages[1:]
    job["left"][:-1] = sizes
    job["needs"][:-1] = [len(call.needs) for call in calls]
    job["time"][:-1] = [call.start for call in calls]
    job["tail"][:-1] = [call.tail for call in calls]
    pairs = sorted((before, i) for i, call in enumerate(calls) for before in call.needs)
    job["first_next"][1:] = np.cumsum(
        np.bincount(np.array([a for a, _ in pairs], dtype=np.int64), minlength=len(calls))
    )
    actor = np.zeros(sum(sizes), dtype=ACTOR)
    actor["job"] = np.repeat(np.arange(len(calls)), sizes)
    actor["late"] = _joined(call.late for call in calls)
    actor["stage"] = np.repeat(np.array(stages[:-1]) - 1, sizes)
    return job, actor, np.array([i for _, i in pairs], dtype=np.int32)


def _actors_of_lanes(calls: Sequence[Call]) -> I64:
    bases = _bases(len(call.late) for call in calls)
    return _whole(c.rank + base for call, base in zip(calls, bases) for c in call.cuts)


def _first_events(state: State, calls: Sequence[Call]) -> None:
    """Put the ranks of jobs that need no other, and the first change, into the heap."""
    nodes = len(state.delay) + len(state.flow) - 1
    free = np.repeat([not call.needs for call in calls], [len(call.late) for call in calls])
    start = np.repeat([call.start for call in calls], [len(call.late) for call in calls])
    at = np.flatnonzero(free)
    time, node = (start + state.actor["late"])[at], nodes + at
    if len(state.change):
        time = np.append(time, state.change["time"][0])
        node = np.append(node, nodes + len(state.actor))
    order = np.argsort(time, kind="stable")  # what is sorted is a heap
    state.heap["time"][: len(order)] = time[order]
    state.heap["node"][: len(order)] = node[order]
    state.heap["serial"][: len(order)] = np.arange(len(order))
    state.n[LENGTH], state.n[SERIAL] = len(order), len(order)
