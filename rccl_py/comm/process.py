"""One rank of a communicator whose ranks are processes of an MPI job.

Owns the order in which a launch runs: messages are offered first, then collectives in one order
over all communicators, then messages are waited for. So no two groups can stand in each other's
way, however their calls are ordered. A call returns when it is done; on a nonblocking communicator
a thread makes it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..collectives import COLLECTIVES
from ..config import Config
from ..errors import CollectiveMismatch, InvalidUsage, RcclError, RemoteError, Result
from ..planner import Plan, Planner
from ..reduce_ops import ReduceOp, finish
from ..timing import Cost
from ..transports.mailbox import Mailbox, Message
from ..transports.mpi import HeadsDiffer, MpiTransport
from .call import UNEVEN, Call, Signature, plain_call
from .compare import mismatch
from .core import Core, cost_of, narrowed, widened
from .engine import error_of
from .exchange import run_uneven
from .job import Job
from .letters import finish_messages
from .local import TIMEOUT
from .member import Member, failed_before
from .need import Need
from .op import Op, Site, site_text
from .place import TIMETABLE, Launch, Place
from .records import dump_records
from .repeat import MOST, Repeat
from .unique_id import UniqueId
from .window import Window, as_bytes

__all__ = ["ProcessCore"]


class ProcessCore(Core):
    """This process's part of a communicator. key: its name in the job. worlds: rank in the job
    of every rank here.
    """

    waits = True

    def __init__(
        self,
        job: Job,
        mpi_comm: Any,
        planner: Planner,
        place: Place,
        config: Config,
        worlds: Sequence[int],
        key: str,
        name: str | None,
        shared: bool | None,
    ) -> None:
        super().__init__(planner, name or f"comm{key}", config)
        self.job, self.key, self.worlds, self.shared = job, key, list(worlds), shared
        self.timeout = TIMEOUT if config.timeout is None else config.timeout
        self.rank = int(mpi_comm.Get_rank())
        self.member = Member(self, self.rank, place, config)
        self.members = [self.member]
        self.windows: list[Window] = []
        self.shrinks = 0
        self.leads_to: UniqueId | None = None
        self._made: dict[str, dict[str, int]] = {"send": {}, "recv": {}, "signal": {}}
        self.arrived = 0
        self._signals: dict[tuple[int, int, int], list[float]] = {}
        self._taken: dict[int, int] = {}
        self._need: Need | None = None
        self.repeating: Repeat | None = None  # the call that is being made once more
        self.repeat: Repeat | None = None  # the last call, to be made once more
        self.transport = MpiTransport(mpi_comm, self, shared)
        self.mailbox = Mailbox(job.mpi, mpi_comm.Dup(), self._land)
        self.run = f"{job.run()}.{key}"
        job.cores[key] = self

    # ---- waiting ----------------------------------------------------------------------------

    def made(self) -> dict[str, Any]:
        """Return how far this rank has come, for others to compare with what they wait for."""
        return {"collective": self.arrived, **self._made}

    def require_alive(self) -> None:
        """Raise when the communicator was ended from another thread."""
        if self.failure is not None:
            raise self.failure
        if self.revoked:
            raise InvalidUsage(f"communicator {self.name} was revoked")

    def pause(self, waited: float, missing: Sequence[int]) -> None:
        """Sleep a little while ranks have not come (transports.waiting.Waiting)."""
        need, again = self._need, self.repeating
        if need is None:
            call = "its end" if again is None else told_call(self.arrived - 1, again)
            need = Need(self, "collective", self.arrived - 1, missing, call)
        need.peers = list(missing)
        self.job.pause(waited, [need], self.timeout)

    # ---- launching ----------------------------------------------------------------------------

    def launch(self, ops: list[Op]) -> Result | None:
        """Run the calls of one launch, which may be of several communicators."""
        launch = Launch(ops[0].stream, ops)
        for op in ops:
            op.launch = launch
            assert op.member is not None
            op.member.number(op)
        if self.member.config.blocks:
            self._run_all(ops)
            return None
        for member in {id(op.member): op.member for op in ops if op.member}.values():
            member.inflight.append(launch)
        threading.Thread(target=self._run_quietly, args=(ops,), daemon=True).start()
        return Result.IN_PROGRESS

    def _run_quietly(self, ops: list[Op]) -> None:
        self.job.apart.add(threading.get_ident())
        try:
            self._run_all(ops)
        except RcclError as error:  # poll() tells it
            self.member.last_error = str(error)
            for op in ops:
                if not op.done:
                    op.finish(error)
        finally:
            self.job.apart.discard(threading.get_ident())

    def _run_all(self, ops: list[Op]) -> None:
        if len(ops) == 1:
            core: ProcessCore = ops[0].member.core  # type: ignore[union-attr]
            core.run_one(ops[0])
            return
        messages = [op for op in ops if op.call and op.call.signature.peer >= 0]
        ends = [(op, op.member.core.offer(op)) for op in messages if op.member]
        collectives = [op for op in ops if op.call and op.call.signature.peer < 0]
        for op in sorted(collectives, key=_order):
            assert op.member is not None
            op.member.core.run_one(op)
        finish_messages(self.job, ends, self.timeout)

    def run_one(self, op: Op) -> None:
        """Run one call; an error that ends the communicator is told to the other processes."""
        assert op.call is not None
        try:
            if self.failure is not None:
                raise failed_before(self.failure, f"{op.call.signature} at rank {self.rank}")
            if op.call.signature.peer >= 0:
                finish_messages(self.job, [(op, self.offer(op))], self.timeout)
                return
            self._collective(op)
            op.finish()
        except RcclError as error:
            if not op.done:
                op.finish(error)
            if self.failure is None:
                self.fail(error)
            raise
        except Exception as error:
            # Another thread may have ended the communicator, and let go of what this call uses.
            found = self.failure or error_of(error, op.describe())
            op.finish(found)
            self.fail(found)
            raise found from error

    # ---- collectives --------------------------------------------------------------------------

    def _collective(self, op: Op) -> None:
        call = op.call
        assert call is not None
        name = call.signature.collective
        plan = self.plan(call.signature) if name in COLLECTIVES else None
        source, target, bound = call.source, call.target, None
        if plan is not None and call.arithmetic is not None:
            source, target = widened(call)
            program = self.program(plan, True)
            bound = self.transport.bind(program, call.signature.block, call.arithmetic)
        if self.failure is not None:  # by another thread, while this one planned
            raise self.failure
        clock = self._meet(op, bound, source, target)
        self.repeat = None
        if plan is not None:
            if source is call.source and target is call.target and bound is not None:
                self._keep(op, bound, plan)
            narrowed(call, target, self.nranks)
            self.time(op, clock, cost_of(plan))
            self.last_plan = plan
        elif name in UNEVEN:
            run_uneven(self, op, clock)
        elif name == "barrier":
            self.time(op, clock, self.barrier_cost)
        elif name == "register_window":
            self._register(call.payload)

    def _keep(self, op: Op, bound: Any, plan: Plan) -> None:
        """Remember a small call for the next, which may be the same."""
        call = op.call
        assert call is not None
        size = sum(0 if b is None else b.nbytes for b in (call.source, call.target))
        usable = self.member.config.blocks and len(self.member.place.streams) == 1
        if call.given is not None and size <= MOST and usable and Repeat.can_keep(call.given):
            self.repeat = Repeat(op, call.given, bound, plan)

    def run_again(self, again: Repeat, site: Site) -> None:
        """Make the last call once more."""
        member, stream = self.member, self.member.place.default
        number = member.collectives
        self.arrived = member.collectives = number + 1
        again.site = site
        entry = member.recorder.add(number, again.signature, site, "running")
        self.repeating = again
        try:
            clock = self.transport.collective(
                again.head(number),
                max(stream.clock, member.place.host),
                again.bound,
                again.source,
                again.target,
            )
        except BaseException as error:
            entry.state = "failed"
            self.repeating = None
            raise self._failed_call(number, again.signature, site, error) from None
        self.repeating = None
        if again.divides and again.target is not None:
            finish(ReduceOp.AVG, again.target, self.nranks)
        stream.clock = clock + again.plan.time
        entry.state = "done"
        if self.job.told:
            self.job.clear()
        self.last_plan = again.plan

    def _meet(self, op: Op, bound: Any, source: Any, target: Any) -> float:
        """Run a bound call that all ranks make; return the latest of their clocks."""
        assert op.call is not None
        self._need = Need(self, "collective", op.number, (), op.describe())
        self.arrived = op.number + 1
        try:
            head = op.call.signature.head(op.number)
            return self.transport.collective(head, self.ready(op), bound, source, target)
        except HeadsDiffer:
            raise self._differs(op.number, op.call.signature, op.site) from None
        finally:
            self._need = None
            self.job.clear()

    def _differs(self, number: int, signature: Signature, site: Site | None) -> RcclError:
        """Return the error of ranks that made different calls; all of them come here."""
        said = f"{signature}\n{site_text(site)}"
        texts = [t.split("\n") for t in self.transport.exchange_texts(said)]
        every = [(rank, what, where) for rank, (what, where) in enumerate(texts)]
        return mismatch(number, every, self.name)

    def _failed_call(
        self, number: int, signature: Signature, site: Site | None, error: BaseException
    ) -> BaseException:
        """Return what a call made once more raises, and end the communicator."""
        found: BaseException = error
        if isinstance(error, HeadsDiffer):
            try:
                found = self._differs(number, signature, site)
            except RcclError as late:
                found = late
        elif isinstance(error, Exception):
            found = error_of(error, f"call {number}, {signature}")
        if isinstance(found, RcclError):
            self.fail(found)
        return found

    def say(self, text: str) -> list[str]:
        """Return every rank's text; all ranks come here, or it is a mismatch."""
        try:
            return self.transport.exchange_texts(text)
        except HeadsDiffer:
            raise CollectiveMismatch(
                f"rank {self.rank} of {self.name} ends, grows or sets up the communicator, others "
                "made another call. All ranks must make the same calls in the same order"
            ) from None

    def texts(self, op: Op, text: str) -> list[str]:
        """Return every rank's text, in the course of call `op`."""
        self._need = Need(self, "collective", op.number, (), op.describe())
        try:
            return self.say(text)
        finally:
            self._need = None
            self.job.clear()

    def _register(self, window: Window) -> None:
        sizes = self.say(str(window.own.nbytes))
        window.sizes = [int(size) for size in sizes]
        window.number, window.owner = len(self.windows), self
        self.windows.append(window)

    # ---- messages -----------------------------------------------------------------------------

    def offer(self, op: Op) -> Message | Need | None:
        """Begin a message or a one-sided call; what it waits for is returned."""
        call = op.call
        assert call is not None
        kind, peer = call.signature.collective, call.signature.peer
        if kind in ("put_signal", "signal"):
            self._put(op, call)
            return None
        if kind == "wait_signal":
            return Need(self, "signal", 0, [], "")
        counts = self._made[kind]
        number = counts.get(str(peer), 0)
        counts[str(peer)] = number + 1
        data = call.source if kind == "send" else call.target
        assert data is not None
        said = {
            "count": call.signature.block,
            "dtype": call.signature.dtype,
            "text": f"rank {self.rank} made {op.describe()}",
            "number": number,
        }
        message = Message(peer, data.view(np.uint8), said, self.ready(op))
        (self.mailbox.send if kind == "send" else self.mailbox.recv)(message)
        return message

    def _put(self, op: Op, call: Call) -> None:
        put, peer = call.payload, call.signature.peer
        data = np.empty(0, np.uint8) if call.source is None else call.source.view(np.uint8)
        clock = self.time(op, self.ready(op), self.messages([self.rank], [peer], [len(data)]))
        said = {
            "window": -1 if put.window is None else put.window.number,
            "offset": put.offset,
            "signal": [put.index, put.context] if put.signals else None,
            "clock": clock,
        }
        if put.signals:
            counts = self._made["signal"]
            counts[str(peer)] = counts.get(str(peer), 0) + 1
        if peer == self.rank:
            self._land(peer, said, data)
        else:
            self.mailbox.put(peer, said, data)
        op.finish()

    def _land(self, peer: int, said: dict[str, Any], data: Any) -> None:
        """Take in what a peer has put."""
        if said["window"] >= 0 and len(data):
            there = as_bytes(self.windows[said["window"]].own)
            there[said["offset"] : said["offset"] + len(data)] = data
        if said["signal"] is not None:
            index, context = said["signal"]
            self._signals.setdefault((peer, index, context), []).append(said["clock"])

    def signalled(self, op: Op) -> bool:
        """Take the signals `op` waits for, if all are there."""
        assert op.call is not None
        wanted: dict[tuple[int, int, int], int] = {}
        for d in op.call.payload:
            key = d.peer, d.signal_index, d.context
            wanted[key] = wanted.get(key, 0) + d.op_count
        if any(len(self._signals.get(key, ())) < count for key, count in wanted.items()):
            return False
        clock = 0.0
        for key, count in wanted.items():
            held = self._signals[key]
            clock = max([clock, *held[:count]])
            del held[:count]
            self._taken[key[0]] = self._taken.get(key[0], 0) + count
        op.stream.clock = max(op.stream.clock, clock)
        op.finish()
        return True

    def needs(self, op: Op, end: Message | Need) -> Need:
        """Return what a message or a wait for signals still needs."""
        text = op.describe()
        if isinstance(end, Message):
            partner = "recv" if op.call and op.call.signature.collective == "send" else "send"
            return Need(self, partner, end.said["number"], [end.peer], text)
        assert op.call is not None
        lacks = [
            d.peer
            for d in op.call.payload
            if len(self._signals.get((d.peer, d.signal_index, d.context), [])) < d.op_count
        ]
        number = min((self._taken.get(p, 0) for p in lacks), default=0)
        return Need(self, "signal", number, lacks, text)

    # ---- time ---------------------------------------------------------------------------------

    def ready(self, op: Op) -> float:
        """Return the modelled second at which the call's stream is free."""
        return float(op.stream.elapsed)

    def time(self, op: Op, start: float, cost: Cost) -> float:
        """Give a call its modelled time; return its end."""
        stream = op.stream
        if len(stream.place.streams) == 1:
            stream.clock = max(stream.place.host, stream.clock, start) + cost.seconds
            return float(stream.clock)
        release = max(stream.place.host, start)
        task = TIMETABLE.add(cost.task(stream.tail, release, self.fabric.domain))
        stream.tail = (task,)
        TIMETABLE.settle()
        return task.end

    # ---- ends ---------------------------------------------------------------------------------

    def fail(self, error: RcclError) -> None:
        """End the communicator here, and tell the other processes."""
        self.repeat = None
        if self.failure is None:
            self.failure = error
            self.member.last_error = str(error)
            self.job.fail(self.key, error)
            dump_records(self, str(error))

    def revoke(self, member: Member) -> None:
        """Stop what is in flight, here and at the other processes."""
        self.revoked, self.repeat = True, None
        self.job.fail(self.key, RemoteError(f"rank {self.rank} of {self.name} revoked it"))

    def poll(self, member: Member) -> None:
        """Move messages on: a nonblocking communicator's calls are made by a thread."""
        self.job.progress()

    def release(self, member: Member, *, orderly: bool) -> None:
        """Free what the communicator holds; collective when it is orderly and nothing failed."""
        self.repeat = None
        gone = bool(self.job.status)  # the program has ended: others need not come any more
        orderly = orderly and self.failure is None and not self.revoked and not gone
        try:
            if orderly:
                op = Op(member, plain_call("destroy"), member.place.default)
                member.number(op)
                self.run_one(op)
        finally:
            orderly = orderly and self.failure is None
            self.mailbox.close(orderly=orderly)
            (self.transport.close if orderly else self.transport.abandon)()
            self.job.cores.pop(self.key, None)


def told_call(number: int, again: Repeat) -> str:
    """Return the words for a call that is made once more."""
    return f"call {number}, {again.signature} at {site_text(again.site)}"


def _order(op: Op) -> tuple[str, int]:
    assert op.member is not None
    return op.member.core.key, op.number
