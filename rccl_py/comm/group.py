"""group(): calls made inside are one launch; they run when the outermost group ends.

Owns the open group of each thread, and how issued calls reach the engines: those of ranks of this
process (engine, local) and of ranks of other processes (process).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ..errors import InvalidArgument, InvalidUsage, Result
from .engine import launches_of, submit, wait
from .local import LocalCore
from .op import Op, named
from .place import LOCK, Launch, Place
from .simulate import seconds_of

__all__ = ["current", "group", "group_end", "group_simulate_end", "group_start", "issue"]


class _State(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.ops: list[Op] = []
        self.meetings: list[Callable[[], None]] = []
        self.simulated = False


_STATE = _State()  # per thread by nature: ncclGroupStart/End are too


def current() -> bool:
    """Return whether this thread has an open group."""
    return _STATE.depth > 0


def group_start() -> None:
    """Open a group (ncclGroupStart); groups nest."""
    _STATE.depth += 1


def group_end() -> Result | None:
    """Close a group (ncclGroupEnd); the outermost launches. IN_PROGRESS where it does not block.

    Raises InvalidUsage without an open group, and what goes wrong with the calls.
    """
    if _STATE.depth == 0:
        raise InvalidUsage("group_end without group_start")
    _STATE.depth -= 1
    if _STATE.depth:
        return None
    ops, meetings, simulated = _emptied()
    if simulated:
        return None
    for wait_for_others in meetings:
        wait_for_others()
    return _launch(ops, grouped=True) if ops else None


def group_simulate_end() -> float:
    """Close a group without launching; return the modelled seconds (ncclGroupSimulateEnd)."""
    if _STATE.depth == 0:
        raise InvalidUsage("group_simulate_end without group_start")
    seconds = seconds_of(_STATE.ops)
    _STATE.depth -= 1
    _STATE.simulated = True
    if _STATE.depth == 0:
        _emptied()
    return seconds


def _emptied() -> tuple[list[Op], list[Callable[[], None]], bool]:
    held = _STATE.ops, _STATE.meetings, _STATE.simulated
    _STATE.ops, _STATE.meetings, _STATE.simulated = [], [], False
    return held


class group:
    """Queue the calls made inside and launch them together at the end.

    Groups nest; only the outermost launches. If the body raises, nothing is launched.
    """

    def __enter__(self) -> group:
        self._before = len(_STATE.ops)
        group_start()
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        if kind is None:
            group_end()
            return
        _STATE.depth = max(_STATE.depth - 1, 0)  # 0: the body has called group_end
        if _STATE.depth == 0:
            _emptied()
        else:  # an outer group goes on, without what was called here
            del _STATE.ops[self._before :]

    def simulate(self) -> float:
        """Return the modelled seconds of the calls made so far; the group launches nothing then.

        Inside the ``with`` block; covers every collective, messages and all their overlap.
        """
        if not getattr(self, "_open", False):
            raise InvalidUsage("group.simulate: call it inside the with block, before it launches")
        _STATE.simulated = True
        return seconds_of(_STATE.ops)


def meet_at_end(wait_for_others: Callable[[], None]) -> None:
    """Wait for the others when this thread's group ends."""
    _STATE.meetings.append(wait_for_others)


def issue(op: Op) -> Result | None:
    """Queue a call in the open group, or launch it; return IN_PROGRESS where it does not block."""
    if _STATE.depth == 0:
        return _launch([op], grouped=False)
    assert op.member is not None
    for other in _STATE.ops[:1]:
        assert other.member is not None
        if other.member.config.blocks != op.member.config.blocks:
            raise InvalidArgument(
                f"{op.describe()}: communicator {op.member.core.name} and "
                f"{other.member.core.name} are in one group, but only one of them is blocking"
            )
    _STATE.ops.append(op)
    return None


def _launch(ops: list[Op], *, grouped: bool) -> Result | None:
    _require_own_partner(ops)
    here: list[Op] = []
    there: list[Op] = []
    for op in ops:
        assert op.member is not None
        (here if isinstance(op.member.core, LocalCore) else there).append(op)
    result = None
    if there:
        assert there[0].member is not None
        result = there[0].member.core.launch(there)
    if here:
        result = _launch_here(here, grouped=grouped) or result
    return result


def _launch_here(ops: list[Op], *, grouped: bool) -> Result | None:
    launches = launches_of(ops)
    members = list({id(op.member): op.member for op in ops if op.member}.values())
    one_thread = [member for member in members if not member.core.waits]
    try:
        submit(launches)
        if grouped and members[0].config.blocks:
            met = {id(o.member) for o in ops if o.call is not None and o.call.signature.peer < 0}
            _require_met([member for member in one_thread if id(member) in met])
    except BaseException:
        with LOCK:
            for member in one_thread:
                member.core.withdraw()
        raise
    if not members[0].config.blocks:
        for launch in launches:
            for member in {id(o.member): o.member for o in launch.ops if o.member}.values():
                member.inflight.append(launch)
        return Result.IN_PROGRESS
    waited = [m.core.timeout for m in members if m.core.waits]
    if waited:
        mine = [one for one in launches if any(o.member and o.member.core.waits for o in one.ops)]
        _wait(mine, min(waited))
    return None


def _wait(launches: Sequence[Launch], timeout: float) -> None:
    places: dict[int, tuple[Place, list[Launch]]] = {}
    for launch in launches:
        places.setdefault(id(launch.stream.place), (launch.stream.place, []))[1].append(launch)
    for place, own in places.values():
        wait(place, own, timeout)


def _require_met(members: Sequence[object]) -> None:
    """Raise when a collective of the group was made by some ranks only: one thread makes all."""
    with LOCK:
        for member in members:
            core: LocalCore = member.core  # type: ignore[attr-defined]
            require_complete(core, messages=False)


def require_complete(core: LocalCore, *, messages: bool) -> None:
    """Raise InvalidUsage when some ranks have made a call that others have not."""
    with LOCK:
        if core.failure is not None:
            core.members[0].require_usable("synchronize")
        waiting = core.waiting()
        if waiting is not None:
            op, missing = waiting
            text = op.describe()
            core.withdraw()
            raise InvalidUsage(
                f"{text}, of {core.name}: {named(missing)} did not make it; in one process every "
                "rank must call before the end of the group"
            )
        left = core.waiting_message() if messages else None
        if left is not None and left.member is not None:
            text, peers = left.describe(), [m.rank for m in core.lacking(left)]
            rank = left.member.rank
            core.withdraw()
            raise InvalidUsage(
                f"rank {rank} of {core.name} waits in {text}: {named(peers)} did not make its part"
            )


def _require_own_partner(ops: Sequence[Op]) -> None:
    """Refuse a message to oneself whose other end is not in the same group."""
    open_: dict[tuple[int, int], list[Op]] = {}
    count: dict[tuple[int, int], int] = {}
    for op in ops:
        if op.call is None or op.member is None:
            continue
        signature = op.call.signature
        if signature.collective in ("send", "recv") and signature.peer == op.member.rank:
            key = id(op.member.core), op.member.rank
            open_.setdefault(key, []).append(op)
            count[key] = count.get(key, 0) + (1 if signature.collective == "send" else -1)
    for key, left in count.items():
        if left:
            lacks = "recv" if left > 0 else "send"
            first = open_[key][0]
            raise InvalidUsage(
                f"{first.describe()} at rank {key[1]} is to itself, without the matching "
                f"{lacks} in the same group"
            )
