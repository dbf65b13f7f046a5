"""Making communicators out of ranks of one process: init, split, shrink, grow, windows.

Owns Meeting (ranks come one by one, the last one makes what all wanted) and what is made. A handle
whose meeting is not complete yet has no rank; asking names who has not come.
"""

from __future__ import annotations

import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..config import Config
from ..errors import CollectiveMismatch, InvalidArgument, InvalidUsage, RcclError, RcclTimeout
from ..fabric import Fabric
from .core import Core, planner_of
from .local import TIMEOUT, LocalCore
from .machines import machine_for, placed
from .member import Member
from .op import Op, named
from .place import LOCK, Place
from .unique_id import UniqueId

__all__ = [
    "Handle",
    "Joiner",
    "Meeting",
    "Split",
    "grow",
    "here",
    "init",
    "larger_fabric",
    "lead",
    "shrink",
]


class _Here(threading.local):
    place: Place | None = None


_HERE = _Here()  # a thread that makes one rank's calls is that rank's place
_MEETINGS: dict[bytes, Meeting] = {}  # like NCCL's bootstrap: ranks know nothing but the id
_GROWING: weakref.WeakValueDictionary[bytes, LocalCore] = weakref.WeakValueDictionary()


def here() -> Place:
    """Return the place of this thread; made when first asked for."""
    if _HERE.place is None:
        _HERE.place = Place()
    return _HERE.place


def settle_here(place: Place) -> None:
    """Say that this thread makes the calls of the ranks at `place`."""
    _HERE.place = place


class Handle(Protocol):
    """What a program holds of a rank: its member, or what it still waits for."""

    _member: Member | None
    _pending: Any


@dataclass(eq=False)
class Joiner:
    """A rank that has come: its handle, place and wishes."""

    handle: Handle
    place: Place
    config: Config
    wish: Any = None
    thread: int = field(default_factory=threading.get_ident)


class Meeting:
    """Ranks that must all come. what: the call, for messages. make(joined): run by the last."""

    def __init__(
        self,
        what: str,
        expected: Iterable[int],
        make: Callable[[dict[int, Joiner]], None],
        timeout: float,
    ) -> None:
        self.what, self.expected, self._make, self.timeout = what, list(expected), make, timeout
        self.joined: dict[int, Joiner] = {}
        self.error: RcclError | None = None
        self.complete = False
        self.core: LocalCore | None = None  # the communicator it grows out of
        self._changed = threading.Condition(LOCK)

    def missing(self) -> list[int]:
        """Return the ranks that have not come."""
        return [r for r in self.expected if r not in self.joined]

    def join(self, rank: int, joiner: Joiner) -> None:
        """Come to the meeting; the last one makes what it is about."""
        with LOCK:
            if rank not in self.expected:
                raise InvalidArgument(
                    f"{self.what}: rank {rank} is not one of those expected, {self.expected}"
                )
            if rank in self.joined:
                raise InvalidUsage(f"{self.what}: rank {rank} has come twice")
            self.joined[rank] = joiner
            joiner.handle._pending = self
            if len(self.joined) < len(self.expected):
                return
            try:
                self._make(self.joined)
            except RcclError as error:
                self.error = error
            self.complete = True
            for other in self.joined.values():
                other.handle._pending = None if self.error is None else self
            self._changed.notify_all()
            if self.error is not None:
                raise self.error

    def fail(self, error: RcclError) -> None:
        """End the meeting for all who have come and who come later."""
        with LOCK:
            self.error, self.complete = self.error or error, True
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until all have come; raise RcclTimeout naming who has not."""
        deadline = time.monotonic() + self.timeout
        with LOCK:
            while not self.complete:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    if self.complete:
                        break
                    self.fail(
                        RcclTimeout(
                            f"{self.what}: {named(self.missing())} of {len(self.expected)} did not "
                            f"come within {self.timeout:g} s; one thread that makes all ranks "
                            "must do so inside a group()"
                        )
                    )
            if self.error is not None:
                raise self.error


# ---- init ---------------------------------------------------------------------------------------


def init(nranks: int, rank: int, uid: bytes, joiner: Joiner) -> Meeting:
    """Come to the meeting of this unique id; the last rank makes the communicator."""
    with LOCK:
        meeting = _MEETINGS.get(uid)
        if meeting is None:
            timeout = TIMEOUT if joiner.config.timeout is None else joiner.config.timeout

            def make(joined: dict[int, Joiner]) -> None:
                _MEETINGS.pop(uid, None)
                _make_first(joined)

            meeting = _MEETINGS[uid] = Meeting(
                f"init of {nranks} ranks", range(nranks), make, timeout
            )
        if meeting.error is not None:
            raise meeting.error
        if len(meeting.expected) != nranks:
            said = sorted(meeting.joined)
            error = CollectiveMismatch(
                f"init: rank {rank} says nranks={nranks}, {named(said)} said "
                f"nranks={len(meeting.expected)}, with the same unique id"
            )
            meeting.fail(error)  # and keep it: ranks that come later are told the same
            raise error
        meeting.join(rank, joiner)
        return meeting


def _make_first(joined: dict[int, Joiner]) -> None:
    """Make the communicator of ranks that came one by one: places are threads, if there are any."""
    ordered = [joined[r] for r in sorted(joined)]
    machine = machine_for(ordered[0].wish, len(ordered))
    fabric = placed(machine, len(ordered))
    alone = len({j.thread for j in ordered}) == 1
    if alone and len(ordered) > 1:
        for joiner in ordered:
            joiner.place = Place()
    core = LocalCore(
        planner_of(fabric, ordered[0].config),
        [j.place for j in ordered],
        ordered[0].config,
        waits=not alone or len(ordered) == 1,
    )
    core.machine = machine
    _hand_out(core, ordered)


def _hand_out(core: LocalCore, ordered: Sequence[Joiner]) -> None:
    for member, joiner in zip(core.members, ordered):
        member.config = joiner.config
        joiner.handle._member = member


# ---- split, shrink, grow ------------------------------------------------------------------------


class Split:
    """A rank's part of a split: a call that meets those of the other ranks, like a collective."""

    def __init__(self, core: LocalCore, rank: int, joiner: Joiner) -> None:
        self.core, self.rank, self.joiner = core, rank, joiner
        self.what = f"split of {core.name}"
        self.op: Op | None = None

    @property
    def error(self) -> RcclError | None:
        """What went wrong with the call."""
        return self.op.error if self.op is not None else None

    def missing(self) -> list[int]:
        """Return the ranks that have not made the call."""
        if self.op is None or self.op.member is None:
            return []
        return [m.rank for m in self.core.lacking(self.op) if m.rank != self.rank]

    @staticmethod
    def meet(core: LocalCore, parts: Sequence[Split]) -> None:
        """Make the communicators: ranks of one colour together, by key, then by rank."""
        core.splits += 1
        by_color: dict[int, list[tuple[int, int]]] = {}
        for part in parts:
            color, key = part.joiner.wish
            part.joiner.handle._pending = None
            if color is not None:
                by_color.setdefault(color, []).append((key, part.rank))
        for color, members in sorted(by_color.items()):
            ranks = [rank for _, rank in sorted(members)]
            _make_child(core, ranks, [parts[r].joiner for r in ranks], core.split_name(color))


def _make_child(core: LocalCore, ranks: list[int], ordered: list[Joiner], what: str) -> None:
    """Make the communicator of some of the ranks of another, in this order."""
    config = ordered[0].config
    name = config.comm_name if config.comm_name != core.config.comm_name else None
    child = LocalCore(
        core.subset(ranks, config),
        [core.members[r].place for r in ranks],
        config,
        waits=core.waits,
        name=name or f"{core.name}/{what}",
    )
    _as_parent(child, core)
    _hand_out(child, ordered)


def _as_parent(child: LocalCore, core: LocalCore) -> None:
    child.machine, child.run = core.machine, core.run
    if child.config.timeout is None:
        child.timeout = core.timeout


def shrink(core: LocalCore, rank: int, exclude: list[int], joiner: Joiner) -> Meeting:
    """Come to the meeting of the ranks that stay; the last one makes the smaller communicator."""
    with LOCK:
        meeting: Meeting | None = core.shrinking
        if meeting is None or meeting.complete:
            staying = [r for r in range(core.nranks) if r not in exclude]

            def make(joined: dict[int, Joiner]) -> None:
                core.shrinking = None
                _make_smaller(core, joined)

            meeting = core.shrinking = Meeting(
                f"shrink of {core.name}", staying, make, core.timeout
            )
        joiner.wish = tuple(sorted(exclude))
        first = next(iter(meeting.joined.items()), None)
        if first is not None and first[1].wish != joiner.wish:
            error = CollectiveMismatch(
                f"shrink of {core.name} differs between ranks: rank {first[0]} excludes "
                f"{list(first[1].wish)}, rank {rank} excludes {list(joiner.wish)}"
            )
            meeting.fail(error)
            raise error
        meeting.join(rank, joiner)
        core.end_meetings_of_the_gone()
        return meeting


def _make_smaller(core: LocalCore, joined: dict[int, Joiner]) -> None:
    ranks = sorted(joined)
    _make_child(core, ranks, [joined[r] for r in ranks], "shrunk")


def lead(core: LocalCore, uid: UniqueId) -> None:
    """Let `uid` lead new ranks to `core`, to grow."""
    _GROWING[bytes(uid)] = core


def grow(
    core: LocalCore | None, nranks: int, uid: UniqueId | None, rank: int, joiner: Joiner
) -> Meeting:
    """Come to the meeting of old and new ranks; new ones find it by the id."""
    with LOCK:
        if core is None:
            core = _GROWING.get(bytes(uid)) if uid is not None else None
            if core is None:
                raise InvalidArgument(
                    "grow: the unique id leads to no communicator of this process: an existing "
                    "rank makes it with comm.get_unique_id()"
                )
        if nranks <= core.nranks:
            raise InvalidArgument(
                f"grow: nranks {nranks} is not more than the {core.nranks} ranks of {core.name}"
            )
        if joiner.wish == "new" and not core.nranks <= rank < nranks:
            raise InvalidArgument(f"grow: new rank {rank}: expected {core.nranks} to {nranks - 1}")
        meeting: Meeting | None = core.growing
        if meeting is None or meeting.complete:
            parent = core

            def make(joined: dict[int, Joiner]) -> None:
                parent.growing = None
                _make_larger(parent, joined)

            what = f"grow of {core.name} to {nranks} ranks"
            meeting = core.growing = Meeting(what, range(nranks), make, core.timeout)
            meeting.core = core
        if len(meeting.expected) != nranks:
            error = CollectiveMismatch(f"{meeting.what}: rank {rank} says nranks={nranks}")
            meeting.fail(error)
            raise error
        meeting.join(rank, joiner)
        core.end_meetings_of_the_gone()
        return meeting


def larger_fabric(core: Core, nranks: int) -> Fabric:
    """Return the fabric with the next free accelerators of its machine taken in."""
    from ..topology import lower

    machine = core.machine
    if isinstance(machine, bytes):  # as another process's rank 0 sent it
        machine = pickle.loads(machine)
    held = core.fabric.place.tolist()
    capacity = machine.ngpus
    taken = set(held)
    free = [g for g in range(min(capacity, nranks + len(held))) if g not in taken]
    more = nranks - len(held)
    if more > len(free):
        raise InvalidUsage(
            f"grow: {nranks} ranks asked for, but {core.fabric.name} has {capacity} "
            "accelerators: make the first communicator on a larger machine"
        )
    return lower(machine, [*held, *free[:more]])


def _make_larger(core: LocalCore, joined: dict[int, Joiner]) -> None:
    ordered = [joined[r] for r in sorted(joined)]
    for rank, member in enumerate(core.members):
        ordered[rank].place = member.place
    if not core.waits:
        for joiner in ordered[core.nranks :]:
            joiner.place = Place()
    config = ordered[0].config
    child = LocalCore(
        planner_of(larger_fabric(core, len(ordered)), config, child=True),
        [j.place for j in ordered],
        config,
        waits=core.waits,
        name=f"{core.name}/grown",
    )
    _as_parent(child, core)
    _hand_out(child, ordered)
