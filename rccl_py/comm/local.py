"""The ranks of one communicator in one process: calls meet, are compared, and run.

Owns matching. Collectives meet by their number, messages by their two ends in order. Runs data
through the local transport. waits: a thread a rank, whose calls block; else one thread makes the
calls of all ranks and a call runs when the last rank has made it.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..collectives import COLLECTIVES
from ..config import Config
from ..errors import CollectiveMismatch, InvalidArgument, InvalidUsage, RcclError, RemoteError
from ..planner import Planner
from ..timing import Cost, exchanges
from ..transports import local
from .call import UNEVEN, Call
from .compare import mismatch, require_apart
from .core import Core, cost_of, counts_differ, in_rank_order, narrowed, share, widened
from .engine import error_of, look_after, progress
from .member import Member
from .onesided import OneSided
from .op import Op, named, site_text
from .place import LOCK, OPEN, TIMETABLE, Launch, Place, Stream
from .records import dump_records
from .skew import Skewed, relay_parts
from .window import Window

__all__ = ["LocalCore"]

TIMEOUT = 30.0  # seconds a rank waits for the others before it says who is missing


class LocalCore(Core):
    """A communicator whose ranks are all in this process."""

    def __init__(
        self,
        planner: Planner,
        places: Sequence[Place],
        config: Config,
        *,
        waits: bool,
        name: str | None = None,
    ) -> None:
        super().__init__(planner, name, config)
        self.waits = waits
        self.timeout = TIMEOUT if config.timeout is None else config.timeout
        self.members = [Member(self, r, place, config) for r, place in enumerate(places)]
        for member in self.members:
            member.place.members.append(member)
        self._met: dict[int, dict[int, Op]] = {}
        self._messages: dict[tuple[int, int, int], Op] = {}  # one end came; (from, to, turn)
        self._moves: list[tuple[Op, Op]] = []
        self.onesided = OneSided(self)
        self.windows: list[Window] = []
        self.shrinking: Any = None
        self.growing: Any = None
        self.ran = 0

    # ---- meeting ----------------------------------------------------------------------------

    def activate(self, op: Op, ready: deque[Stream]) -> bool:
        """Take in a call at the head of its stream; return whether messages now wait for flush."""
        assert op.member is not None and op.call is not None
        revoked = self.revoked and op.call.signature.collective != "split"
        if self.failure is not None or revoked:
            try:
                op.member.require_usable(str(op.call.signature))
            except RcclError as error:
                op.finish(error)
            return False
        if op.entry is not None:
            op.entry.state = "running"
        if op.call.signature.collective in ("send", "recv"):
            return self._activate_message(op, op.member.rank, op.call.signature.peer)
        if op.call.signature.peer >= 0:
            self.onesided.activate(op, ready)
            return False
        met = self._met.setdefault(op.number, {})
        met[op.member.rank] = op
        OPEN.add((id(self), op.number))
        if len(met) == self.nranks:
            OPEN.discard((id(self), op.number))
            self._run([self._met[op.number][r] for r in range(self.nranks)], ready)
            self._met.pop(op.number, None)
        return False

    def _activate_message(self, op: Op, rank: int, peer: int) -> bool:
        assert op.call is not None
        sends = op.call.signature.collective == "send"
        ends = (rank, peer, op.turn) if sends else (peer, rank, op.turn)
        partner = self._messages.pop(ends, None)
        if partner is None:
            self._messages[ends] = op
            OPEN.add((id(self), -1, *ends))
            return False
        OPEN.discard((id(self), -1, *ends))
        self._moves.append((op, partner) if sends else (partner, op))
        return True

    def lacking(self, op: Op) -> Iterable[Member]:
        """Return the ranks that `op`, which waits, waits for."""
        assert op.call is not None and op.member is not None
        if op.call.signature.collective == "wait_signal":
            return [self.members[r] for r in self.onesided.lacking(op)]
        if op.call.signature.peer >= 0:
            return (self.members[op.call.signature.peer],)
        met = self._met.get(op.number, {})
        return [m for m in self.members if m.rank not in met]

    # ---- running ----------------------------------------------------------------------------

    def flush(self, ready: deque[Stream]) -> None:
        """Move the messages that have met; those of one wave share links from the same moment."""
        moves, self._moves = self._moves, []
        good: list[tuple[Op, Op]] = []
        for send, recv in moves:
            assert send.call is not None and recv.call is not None
            a, b = send.call.signature, recv.call.signature
            if (a.block, a.dtype) != (b.block, b.dtype):
                self.fail(self._unlike(send, recv))
                return
            good.append((send, recv))
        if not good:
            return  # the communicator has failed since they met
        held = [(r, s.call.source.copy()) for s, r in good if s.call and s.call.source is not None]
        for recv, data in held:
            if recv.call is not None and recv.call.target is not None:
                recv.call.target[...] = data
        self._time_messages(good)
        for op in (op for pair in good for op in pair):
            op.finish()
            ready.append(op.stream)

    def _time_messages(self, pairs: Sequence[tuple[Op, Op]]) -> None:
        """Give messages their time: those between the same two launches leave together."""
        groups: dict[tuple[int, int], int] = {}
        rows, ends = [], {}
        for send, recv in pairs:
            assert send.member and recv.member and send.call and send.call.source is not None
            key = id(send.launch), id(recv.launch)
            group = groups.setdefault(key, len(groups))
            rows.append((send.member.rank, recv.member.rank, send.call.source.nbytes, group))
            ends[group] = [send, recv]
        for group, found in enumerate(exchanges(self.fabric, *zip(*rows))):
            self.time(ends[group], found.cost)

    def _unlike(self, send: Op, recv: Op) -> CollectiveMismatch:
        assert send.member is not None and recv.member is not None
        return CollectiveMismatch(
            f"a message of {self.name} differs between its ends: rank {send.member.rank} made "
            f"{send.describe()}; rank {recv.member.rank} made {recv.describe()}. Count and data "
            "type must be the same"
        )

    def time(self, ops: Sequence[Op], cost: Cost) -> None:
        """Give these calls, which meet now, their modelled time."""
        after = {id(t): t for op in ops for t in op.stream.tail}
        release = max(max(op.stream.place.host, op.stream.clock) for op in ops)
        task = cost.task(after.values(), release, self.fabric.domain)
        TIMETABLE.add(task)
        for launch in {id(op.launch): op.launch for op in ops}.values():
            if launch is not None:
                launch.tasks.append(task)

    def _run(self, ops: list[Op], ready: deque[Stream]) -> None:
        """Run a collective that every rank has come to."""
        error: RcclError | None = None
        number = ops[0].number
        try:
            calls = [op.call for op in ops if op.call is not None]
            signatures = {c.signature for c in calls}
            if len(signatures) > 1:
                raise mismatch(
                    number,
                    [(r, str(op.call.signature), site_text(op.site)) for r, op in enumerate(ops)
                     if op.call is not None],
                    self.name,
                )  # fmt: skip
            self._run_alike(calls, ops)
        except InvalidArgument as found:
            error = found  # nothing moved, and every rank hears it: the communicator stays good
        except Exception as found:
            self.fail(error_of(found, f"call {number}, {ops[0].describe()}"), ready)
            return
        self.ran = max(self.ran, number + 1)
        for op in ops:
            op.finish(error)
            ready.append(op.stream)

    def _run_alike(self, calls: list[Call], ops: list[Op]) -> None:
        name = calls[0].signature.collective
        require_apart(ops[0].number, calls)
        if name in COLLECTIVES:
            plan = self.plan(calls[0].signature)
            self._run_planned(plan, calls)
            self.time(ops, cost_of(plan))
            self.last_plan = plan
        elif name in UNEVEN:
            _run_uneven(calls, self.skewed)
            self.time(ops, self.uneven_cost(calls))
        elif name == "barrier":
            self.time(ops, self.barrier_cost)
        else:
            payloads = [call.payload for call in calls]
            payloads[0].meet(self, payloads)

    def _run_planned(self, plan: Any, calls: list[Call]) -> None:
        first = calls[0]
        assert first.arithmetic is not None
        buffers = [widened(c) for c in calls]
        kept = [c.target is b[1] and c.source is b[0] for c, b in zip(calls, buffers)]
        in_place = any(c.in_place and k for c, k in zip(calls, kept))
        local.run(self.program(plan, in_place), first.signature.block, buffers, first.arithmetic)
        for call, (_, target) in zip(calls, buffers):
            narrowed(call, target, self.nranks)

    # ---- ends -------------------------------------------------------------------------------

    def fail(self, error: RcclError, ready: deque[Stream] | None = None) -> None:
        """End the communicator: every call that waits in it, or comes later, raises."""
        with LOCK:
            self.end(error)
            self._end_calls(error, ready)

    def end(self, error: RcclError) -> None:
        """Take no more calls because of `error`."""
        if self.failure is None:
            self.failure = error
            dump_records(self, str(error))

    def _end_calls(self, error: RcclError, ready: deque[Stream] | None) -> None:
        self._forget_meetings()
        streams = [s for m in self.members for s in m.place.streams if s.queue]
        for stream in streams:
            for launch in stream.queue:
                for op in launch.ops:
                    if not op.done and op.member is not None and op.member.core is self:
                        op.member.last_error = str(error)
                        op.finish(error)
        for member in self.members:
            member.place.woken.notify_all()
        if ready is None:
            progress(streams)
        else:
            ready.extend(streams)

    def poll(self, member: Member) -> None:
        """Look after calls in flight: end those that wait for a rank that is gone, or too long."""
        if member.inflight and self.waits:
            look_after(member.place, member.inflight, self.timeout)

    def revoke(self, member: Member) -> None:
        """Stop what is in flight at all ranks."""
        with LOCK:
            self.revoked = True
            error = InvalidUsage(f"rank {member.rank} revoked communicator {self.name}")
            self._end_calls(error, None)

    def release(self, member: Member, *, orderly: bool) -> None:
        """Note that a rank is done with the communicator."""
        with LOCK:
            if member in member.place.members:
                member.place.members.remove(member)
            if orderly and self.failure is None and self.waiting() is not None:
                waiting = self.waiting()
                if waiting is not None and member.rank in waiting[1]:
                    self.fail(
                        RemoteError(
                            f"rank {member.rank} destroyed {self.name} while other ranks wait for "
                            f"it in {waiting[0].describe()}"
                        )
                    )

    def withdraw(self) -> None:
        """Forget the calls that wait for other ranks: a group of theirs failed.

        Run later, beside calls of another attempt, they would move old buffers.
        """
        self._forget_meetings()
        self._drop(lambda op: True)
        for member in self.members:
            member.turns.clear()

    def withdraw_collectives(self) -> None:
        """Forget the collectives that wait: a rank's part of one was refused."""
        self._met.clear()
        for key in [key for key in OPEN if key[0] == id(self) and len(key) == 2]:
            OPEN.discard(key)
        self._drop(lambda op: op.call is not None and op.call.signature.peer < 0)

    def _drop(self, which: Callable[[Op], bool]) -> None:
        """Take launches with such calls, that have not run, off their streams."""

        def waits(launch: Launch) -> bool:
            own = (o for o in launch.ops if o.member is not None and o.member.core is self)
            return any(which(op) for op in own if not op.done)

        streams = {id(s): s for m in self.members for s in m.place.streams}
        for stream in streams.values():
            gone = [launch for launch in stream.queue if waits(launch)]
            if gone:
                stream.queue = deque(launch for launch in stream.queue if launch not in gone)
                for member in stream.place.members:
                    member.inflight = [one for one in member.inflight if one not in gone]
        for member in self.members:
            member.collectives = self.ran
        progress(streams.values())

    def __del__(self) -> None:
        waiting = self.waiting() if getattr(self, "_met", None) and self.failure is None else None
        if waiting is not None:
            op, missing = waiting
            warnings.warn(
                f"{op.describe()}, of {self.name}, never ran: {named(missing)} did not make it "
                "(synchronize() would have said so)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forget_meetings(self) -> None:
        self._met.clear()
        self._messages.clear()
        self._moves.clear()
        self.onesided.forget()
        for key in [key for key in OPEN if key[0] == id(self)]:
            OPEN.discard(key)

    def waiting(self) -> tuple[Op, list[int]] | None:
        """Return the first collective some rank waits in, and the ranks it waits for."""
        for number in sorted(self._met):
            met = self._met[number]
            return next(iter(met.values())), [r for r in range(self.nranks) if r not in met]
        return None

    def waiting_message(self) -> Op | None:
        """Return a message that waits for its other end, or a wait for signals."""
        return next(iter(self._messages.values()), None) or self.onesided.waiting()

    def end_meetings_of_the_gone(self) -> None:
        """Fail a shrink or grow that waits for a rank that has ended its program."""
        for meeting in (self.shrinking, self.growing):
            for rank in meeting.missing() if meeting is not None and not meeting.complete else ():
                left = self.members[rank].place.left if rank < self.nranks else None
                if left is not None:
                    meeting.fail(RemoteError(f"{meeting.what} waits for rank {rank}, which {left}"))


def _run_uneven(calls: list[Call], skewed: Skewed) -> None:
    """Move the data of a collective of unequal parts: everybody to everybody, or by a plan."""
    n, name = len(calls), calls[0].signature.collective
    if name == "alltoallv":
        error = counts_differ(
            [c.sends[0] for c in calls if c.sends], [c.recvs[0] for c in calls if c.recvs]
        )
        if error is not None:
            raise error
    sources = [widened(c)[0] if name == "reduce_scatterv" else c.source for c in calls]
    held = [[share(s, c.sends, j).copy() for j in range(n)] for s, c in zip(sources, calls)]
    plan = skewed.plan(calls)
    if plan is not None:
        for call, row in zip(calls, relay_parts(plan, held)):
            for i, part in enumerate(row):
                share(call.target, call.recvs, i)[...] = part.view(held[i][0].dtype)
        return
    for j, call in enumerate(calls):
        if name == "reduce_scatterv":
            in_rank_order(call, j, [held[i][j] for i in range(n)])
            continue
        for i in range(n):
            share(call.target, call.recvs, i)[...] = held[i][j]
