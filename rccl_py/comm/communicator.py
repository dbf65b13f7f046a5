"""Communicator: one rank's handle, with the names of NVIDIA's nccl4py and the C calls behind them.

Owns the methods people call. Each checks its arguments and issues one call; the engines do the
rest. A handle whose partners have not all come yet (init, split in one thread) is pending.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import finite, whole
from ..buffers import as_array, flat
from ..collectives import collective_named
from ..config import CommShrinkFlag, Config, WindowFlag
from ..dtypes import name_of
from ..errors import (
    InvalidArgument,
    RcclError,
    RcclSystemError,
    RemoteError,
    Result,
)
from ..fabric import Fabric
from ..planner import Plan, Planner
from ..reduce_ops import PreMulSum, ReduceOp, op_named
from ..units import LARGEST
from . import setup
from .call import (
    KINDS,
    Call,
    Signature,
    checked_call,
    checked_dtype,
    checked_message,
    plain_call,
)
from .core import Core, planner_of
from .group import current, issue, meet_at_end, require_complete
from .local import LocalCore
from .machines import is_job, machine_for, placed
from .member import Member
from .op import Op, named
from .place import LOCK, Place, Stream
from .uneven import checked_uneven
from .unique_id import UniqueId, get_unique_id
from .window import WaitSignalDesc, Window, checked_put, checked_signal, checked_wait

if TYPE_CHECKING:
    from ..topology import Topology
    from .process import ProcessCore

__all__ = ["Communicator", "Properties"]

Reduction = ReduceOp | PreMulSum | str


@dataclass(frozen=True, slots=True)
class Properties:
    """What ncclCommQueryProperties tells. device: accelerator number on the modelled machine."""

    rank: int
    n_ranks: int
    cuda_dev: int
    nvml_dev: int
    n_lsa_teams: int
    device_api_support: bool = False
    multimem_support: bool = False
    host_rma_support: bool = True


class Communicator:
    """A rank of a communicator. Communicator() is null: to be initialised, or to join by grow."""

    def __init__(self) -> None:
        self._member: Member | None = None
        self._pending: Any = None

    # ---- making -----------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: Config | None = None,
        *,
        topology: str | Path | Topology | None = None,
    ) -> Communicator:
        """Return rank `rank` of a new communicator of `nranks` (ncclCommInitRankConfig).

        All ranks call it with one id of get_unique_id(): threads of this process, one thread in a
        group(), or the processes of an MPI job. topology: the machine, read by rank 0; None takes
        MI300X nodes of 8. Raises RcclTimeout naming the ranks that do not come.
        """
        comm = cls()
        comm.initialize(nranks, rank, unique_id, config, topology=topology)
        return comm

    def initialize(
        self,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: Config | None = None,
        *,
        topology: str | Path | Topology | None = None,
    ) -> None:
        """Make this null communicator a rank of a new one; see init."""
        if self._member is not None or self._pending is not None:
            raise InvalidArgument("initialize: the communicator is initialised already")
        config = _config(config)
        n = whole(nranks, "init: nranks", 1, LARGEST)
        r = whole(rank, "init: rank", 0, n - 1)
        uid = _first_id(unique_id)
        if is_job():
            from . import assemble

            assemble.init(self, n, r, uid, config, topology)
            return
        joiner = setup.Joiner(self, setup.here(), config, wish=topology)
        self._meet(setup.init(n, r, uid, joiner), config)

    @classmethod
    def init_all(
        cls,
        topology: str | Path | Topology,
        nranks: int | Sequence[int] | None = None,
        *,
        algo: str | None = None,
        proto: str | None = None,
        config: Config | None = None,
    ) -> list[Communicator]:
        """Return one communicator a rank, all made and called in this thread (ncclCommInitAll).

        topology: a machine's name, a file, or a Topology. nranks: the first so many of its
        accelerators, or which of them. algo, proto: restrictions in the syntax of NCCL_ALGO and
        NCCL_PROTO. A collective runs when the last rank has called it, at the latest when the
        group ends.
        """
        config = _config(config, algo, proto)
        if topology is None:
            raise InvalidArgument("init_all: topology None: a machine's name, a file or a Topology")
        machine = machine_for(topology, 0)
        fabric = placed(machine, nranks)
        places = [Place() for _ in range(fabric.nranks)]
        core = LocalCore(planner_of(fabric, config), places, config, waits=False)
        core.machine = machine
        return [_handle(cls, member) for member in core.members]

    @classmethod
    def from_mpi(
        cls,
        comm: Any,
        topology: str | Path | Topology | None = None,
        *,
        algo: str | None = None,
        proto: str | None = None,
        shared_memory: bool | None = None,
        config: Config | None = None,
        timeout: float | None = None,
    ) -> Communicator:
        """Return this process's rank of a communicator over an mpi4py communicator.

        Collective over `comm`. The topology is read by rank 0; other ranks' is not looked at.
        shared_memory False sends messages even between ranks of one host. timeout: seconds a rank
        waits for others (30). Raises InvalidArgument when the machine has too few accelerators.
        """
        from . import assemble

        config = _config(config, algo, proto)
        if timeout is not None:
            config = Config(timeout=timeout).merged(config)
        made = cls()
        assemble.from_mpi(made, comm, topology, config, shared_memory)
        return made

    def split(
        self, color: int | None = None, key: int = 0, config: Config | None = None
    ) -> Communicator:
        """Return the communicator of the ranks with the same colour (ncclCommSplit).

        Ranked by key, then by rank here. color None (NCCL_SPLIT_NOCOLOR) or -1: no part in any,
        the result is null. Collective; under group() or in one thread the result is pending until
        all ranks have called.
        """
        member = self._require("split")
        if color is not None and color != -1:
            color = whole(color, f"split at rank {member.rank}: color", 0, 2**31 - 1)
        wish = None if color == -1 else color, whole(key, "split: key", -(2**31), 2**31 - 1)
        child = type(self)()
        joiner = setup.Joiner(child, member.place, _config(config).merged(member.config), wish)
        core = member.core
        if not isinstance(core, LocalCore):
            from . import assemble

            assemble.split(core, Op(member, plain_call("split"), member.place.default), joiner)
            return child
        part = setup.Split(core, member.rank, joiner)
        op = Op(member, plain_call("split", part), member.place.default)
        part.op, child._pending = op, part
        issue(op)
        return child

    def shrink(
        self,
        exclude_ranks: Sequence[int] | None = None,
        config: Config | None = None,
        flag: CommShrinkFlag | int = CommShrinkFlag.DEFAULT,
    ) -> Communicator:
        """Return the communicator without some ranks, which must not call (ncclCommShrink).

        flag ABORT ends what is in flight here first and works on a failed communicator. Raises
        InvalidArgument for no ranks to exclude, ranks that are none, or the caller among them.
        """
        member = self._require("shrink", usable=False)
        n, where = member.core.nranks, f"shrink at rank {member.rank}"
        try:
            listed = list(exclude_ranks) if exclude_ranks is not None else []
        except TypeError:
            raise InvalidArgument(
                f"{where}: exclude_ranks {exclude_ranks!r} is not a sequence of ranks"
            ) from None
        excluded = sorted({whole(r, f"{where}: excluded rank", 0, n - 1) for r in listed})
        if not excluded:
            raise InvalidArgument(f"{where}: exclude_ranks is empty: name the ranks to leave out")
        if member.rank in excluded:
            raise InvalidArgument(
                f"{where}: the caller is in exclude_ranks {excluded}: excluded ranks do not call"
            )
        aborts = whole(flag, f"{where}: flag", 0, 1) == CommShrinkFlag.ABORT
        core = member.core
        if aborts:
            core.fail(RemoteError(f"rank {member.rank} of {core.name} shrinks it with flag ABORT"))
        elif core.failure is not None:
            member.require_usable("shrink")
        child = type(self)()
        joiner = setup.Joiner(child, member.place, _config(config).merged(member.config))
        if not isinstance(core, LocalCore):
            from . import assemble

            assemble.shrink(core, excluded, joiner)
            return child
        meeting = setup.shrink(core, member.rank, excluded, joiner)
        self._meet_child(child, meeting, joiner.config, core)
        return child

    def get_unique_id(self) -> UniqueId:
        """Return an id with which new ranks join by grow (ncclCommGetUniqueId)."""
        member = self._require("get_unique_id")
        uid = get_unique_id()
        if isinstance(member.core, LocalCore):
            setup.lead(member.core, uid)
        else:
            member.core.leads_to = uid
        return uid

    def grow(
        self,
        nranks: int,
        unique_id: UniqueId | None = None,
        rank: int | None = None,
        config: Config | None = None,
    ) -> Communicator:
        """Return a communicator of the ranks here and new ones (ncclCommGrow).

        Existing ranks call it on theirs without `rank` and keep their numbers; a new rank calls
        ``Communicator().grow(nranks, uid, rank)`` with the id of comm.get_unique_id().
        """
        n = whole(nranks, "grow: nranks", 1, LARGEST)
        child = type(self)()
        if self._member is None:
            if rank is None or rank == -1 or unique_id is None:
                raise InvalidArgument(
                    "grow: a new rank, on a null communicator, passes the unique id and its rank"
                )
            joiner = setup.Joiner(child, setup.here(), _config(config), wish="new")
            number, core = whole(rank, "grow: rank", 0, n - 1), None
        else:
            member = self._require("grow")
            if rank is not None and rank != -1:
                raise InvalidArgument(
                    f"grow at rank {member.rank}: an existing rank passes no rank, found {rank}"
                )
            joiner = setup.Joiner(child, member.place, _config(config).merged(member.config))
            number, core = member.rank, member.core
        if (core is None and is_job()) or not isinstance(core, LocalCore | None):
            from . import assemble

            assemble.grow(cast("ProcessCore | None", core), n, unique_id, number, joiner)
            return child
        meeting = setup.grow(core, n, unique_id, number, joiner)
        self._meet_child(child, meeting, joiner.config, meeting.core)
        return child

    def _meet(self, meeting: Any, config: Config) -> None:
        """Wait for the others now, at the end of the group, or (nonblocking) not at all."""
        if config.blocks:
            meet_at_end(meeting.wait) if current() else meeting.wait()

    def _meet_child(self, child: Communicator, meeting: Any, config: Config, core: Any) -> None:
        if core.waits and config.blocks:
            child._meet(meeting, config)

    # ---- ending -----------------------------------------------------------------------------

    def finalize(self) -> None:
        """Wait for what is in flight and take no more calls (ncclCommFinalize)."""
        member = self._require("finalize", usable=False)
        if member.state != "open" or member.revoked or member.core.revoked:
            state = "revoked" if member.state == "open" else member.state
            raise InvalidArgument(f"finalize at rank {member.rank}: the communicator is {state}")
        member.require_usable("finalize")
        if isinstance(member.core, LocalCore) and not member.core.waits and not current():
            require_complete(member.core, messages=True)
        member.state, member.core.repeat = "finalized", None

    def destroy(self) -> None:
        """Release the communicator (ncclCommDestroy); later calls raise InvalidArgument."""
        if self._member is None:
            if self._pending is None:
                raise InvalidArgument("destroy: the communicator is null or destroyed already")
            if isinstance(self._pending, setup.Meeting):
                self._pending.fail(RemoteError(f"{self._pending.what}: a rank gave it up"))
            self._pending = None
            return
        member = self._member
        if member.state == "destroyed":
            raise InvalidArgument(f"destroy at rank {member.rank}: it is destroyed already")
        member.state = "destroyed"
        member.core.release(member, orderly=True)

    def abort(self) -> None:
        """Free the communicator and whoever waits in it, here and at the other ranks.

        ncclCommAbort; may be called from another thread than the one that waits.
        """
        if self._member is None:
            self._pending = None
            return
        member = self._member
        if member.state in ("destroyed", "aborted"):
            return
        member.state = "aborted"
        error = RemoteError(f"rank {member.rank} of {member.core.name} called abort()")
        member.core.fail(error)
        member.core.release(member, orderly=False)

    def revoke(self, flags: int = 0) -> None:
        """Stop what is in flight and refuse collectives; split, shrink, destroy are left.

        ncclCommRevoke. Raises InvalidArgument for flags other than 0, or a second time.
        """
        if self._member is None and self._pending is None:
            return  # like ncclCommRevoke(NULL)
        member = self._require("revoke", usable=False)
        whole(flags, f"revoke at rank {member.rank}: flags", 0, 0)
        if member.state != "open" or member.revoked:
            state = "revoked already" if member.revoked else member.state
            raise InvalidArgument(f"revoke at rank {member.rank}: the communicator is {state}")
        member.revoked = True
        member.core.revoke(member)

    # ---- asking -----------------------------------------------------------------------------

    def _resolved(self) -> Member:
        """Return the member; raise when the handle is null or its partners have not come."""
        if self._member is None:
            if self._pending is None:
                raise InvalidArgument("the communicator is null: init, split or grow makes one")
            if self._pending.error is not None:
                raise self._pending.error
            missing = named(self._pending.missing())
            raise InvalidArgument(f"{self._pending.what} is in progress: {missing} did not come")
        return self._member

    @property
    def is_valid(self) -> bool:
        """Whether it is neither null nor destroyed nor aborted."""
        return self._member is not None and self._member.state in ("open", "finalized")

    @property
    def rank(self) -> int:
        """This rank's number, 0 to nranks - 1 (ncclCommUserRank)."""
        return self._resolved().rank

    @property
    def nranks(self) -> int:
        """How many ranks there are (ncclCommCount)."""
        return int(self._resolved().core.nranks)

    @property
    def name(self) -> str:
        """What messages call the communicator (config comm_name)."""
        return str(self._resolved().core.name)

    @property
    def config(self) -> Config:
        """The settings it was made with."""
        return self._resolved().config

    @property
    def device(self) -> int:
        """The accelerator of the modelled machine this rank is on (ncclCommCuDevice)."""
        member = self._resolved()
        return int(member.core.fabric.place[member.rank])

    @property
    def properties(self) -> Properties:
        """What ncclCommQueryProperties tells."""
        member = self._resolved()
        fabric = member.core.fabric
        local = int(fabric.local[member.rank])
        teams = len(np.unique(fabric.node))
        return Properties(member.rank, fabric.nranks, local, local, teams)

    @property
    def fabric(self) -> Fabric:
        """The fabric the communicator's time is modelled on."""
        return cast(Core, self._resolved().core).fabric

    @property
    def planner(self) -> Planner:
        """The planner that chooses for this communicator."""
        return cast(Core, self._resolved().core).planner

    @property
    def elapsed(self) -> float:
        """Modelled seconds this rank has spent since the communicator was made."""
        self.synchronize()
        member = self._resolved()
        return member.place.end() - member.born

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the collective that ran last, None before the first."""
        self._require_complete()
        return cast(Core, self._resolved().core).last_plan

    def _require_complete(self) -> None:
        core = self._resolved().core
        if isinstance(core, LocalCore) and not core.waits and not current():
            require_complete(core, messages=True)

    def synchronize(self) -> None:
        """Let the host wait for all streams of this rank, in modelled time.

        Raises InvalidUsage naming the ranks that have not made a call others have (all ranks in
        one thread only).
        """
        self._require_complete()
        core, member = self._resolved().core, self._resolved()
        with LOCK:
            waits = isinstance(core, LocalCore) and not core.waits
            for other in core.members if waits else [member]:
                other.place.wait_host()

    def get_async_error(self) -> Result:
        """Return SUCCESS, IN_PROGRESS, or the code of what went wrong (ncclCommGetAsyncError)."""
        if self._member is None and self._pending is not None:
            error = self._pending.error
            return Result.IN_PROGRESS if error is None else error.code
        member = self._resolved()
        member.core.poll(member)
        if member.core.failure is not None:
            return cast(Result, member.core.failure.code)
        member.inflight = [launch for launch in member.inflight if not launch.done]
        return Result.IN_PROGRESS if member.inflight else Result.SUCCESS

    def get_last_error(self) -> str:
        """Return the text of the last error of this rank, "" if there was none."""
        member = self._resolved()
        failure = member.core.failure
        return str(failure) if failure is not None else member.last_error

    def flight_record(self) -> dict[str, Any]:
        """Return the last calls of this rank, as ``rccl-flight`` reads them."""
        return self._resolved().recorder.dump()

    def __repr__(self) -> str:
        if self._member is None:
            return "<Communicator pending>" if self._pending else "<Communicator null>"
        member = self._member
        state = "" if member.state == "open" else f", {member.state}"
        return f"<Communicator rank {self.rank} of {self.nranks} on {self.fabric.name}{state}>"

    # ---- memory, plans, reductions ------------------------------------------------------------

    def scratch_elements(self, plan: Plan, count: int) -> int:
        """Return the scratch elements of all ranks together, for blocks of `count` elements."""
        if not plan.schedule.layout.scratch:
            return 0
        core = cast(Core, self._resolved().core)
        slots = int(core.program(plan, False).scratch_used.sum())
        return slots * -(-count // plan.schedule.layout.chunks)

    def mem_alloc(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of `count` elements, aligned to 4096 bytes (ncclMemAlloc)."""
        kind = checked_dtype(dtype)
        size = whole(count, "mem_alloc: count", 0, LARGEST // kind.itemsize) * kind.itemsize
        try:
            memory = np.empty(size + 4096, dtype=np.uint8)
        except (MemoryError, ValueError):
            raise RcclSystemError(f"mem_alloc: {size} bytes are more than there is") from None
        start = -memory.ctypes.data % 4096
        return memory[start : start + size].view(kind)

    def mem_free(self, array: npt.NDArray[Any]) -> None:
        """Accept an array of mem_alloc (ncclMemFree); the memory is Python's to free."""

    def plan(
        self,
        collective: str,
        count: int,
        dtype: npt.DTypeLike,
        *,
        root: int = 0,
        op: ReduceOp | str = ReduceOp.SUM,
        in_place: bool = False,
    ) -> Plan:
        """Return what a call would do and how long it would take, moving no data.

        count: elements of one block, what one rank contributes (or receives, in reduce_scatter).
        in_place: accepted for symmetry with a call; the modelled time does not depend on it.
        """
        spec = collective_named(collective)
        whole(count, f"{spec.name}: count", 0, LARGEST)
        name = name_of(checked_dtype(dtype))
        op_named(str(op))
        core = cast(Core, self._resolved().core)
        return core.plan(Signature(spec.name, count, name, root=_planned_root(root, core.nranks)))

    def create_pre_mul_sum(self, scalar: Any, datatype: npt.DTypeLike | None = None) -> PreMulSum:
        """Return the reduction scalar * sum (ncclRedOpCreatePreMulSum); each rank's own scalar.

        scalar: a number, or an array of one element. datatype: of the data, None for the scalar's.
        """
        member = self._require("create_pre_mul_sum")
        if isinstance(scalar, (int, float, np.number)) and not isinstance(scalar, bool):
            held = np.array([scalar])
        else:
            held = as_array(scalar, "create_pre_mul_sum: scalar")
        if held.size != 1:
            raise InvalidArgument(
                f"create_pre_mul_sum: scalar has {held.size} elements: expected 1"
            )
        kind = checked_dtype(held.dtype if datatype is None else datatype)
        try:
            with np.errstate(all="ignore"):
                scalar_array = held.reshape(1).astype(kind)
        except (OverflowError, ValueError, TypeError):
            raise InvalidArgument(
                f"create_pre_mul_sum: scalar {scalar!r} is no {name_of(kind)}"
            ) from None
        if kind.kind in "iu" and scalar_array[0] != held.reshape(1)[0]:
            raise InvalidArgument(
                f"create_pre_mul_sum: scalar {held.reshape(1)[0]} is no {name_of(kind)}"
            )
        return PreMulSum(scalar_array, member)

    def destroy_red_op(self, op: object) -> None:
        """Destroy a reduction of create_pre_mul_sum (ncclRedOpDestroy)."""
        if not isinstance(op, PreMulSum) or op.closed:
            raise InvalidArgument(
                f"destroy_red_op: {op!r} is no reduction of create_pre_mul_sum, or was destroyed"
            )
        op.close()

    # ---- time -------------------------------------------------------------------------------

    @property
    def default_stream(self) -> Stream:
        """The stream of calls that name none."""
        return self._resolved().place.default

    def stream(self, name: str = "") -> Stream:
        """Return a new stream of this rank: calls on it overlap those of its other streams."""
        place = self._resolved().place
        made = Stream(place, name or f"stream {len(place.streams)}")
        place.streams.append(made)
        return made

    def advance(self, seconds: float, *, stream: Stream | None = None) -> None:
        """Compute for `seconds` of modelled time on a stream of this rank."""
        self._stream(stream).advance(finite(seconds, "advance: seconds", -1e-300, 1e9))

    def _stream(self, stream: object) -> Stream:
        member = self._resolved()
        if stream is None:
            return member.place.default
        if not isinstance(stream, Stream):
            raise InvalidArgument(
                f"stream {stream!r} at rank {member.rank} is none of comm.stream()"
            )
        if stream.place is not member.place:
            raise InvalidArgument(
                f"{stream!r} is not one of rank {member.rank}: streams belong to one rank"
            )
        return stream

    # ---- issuing ----------------------------------------------------------------------------

    def _require(self, what: str, *, usable: bool = True) -> Member:
        """Return the member of an open communicator, for a call named `what`."""
        try:
            member = self._resolved()
        except InvalidArgument as error:
            raise InvalidArgument(f"{what}: {error}") from None
        if member.state in ("destroyed", "aborted"):
            raise InvalidArgument(
                f"{what} at rank {member.rank}: the communicator is {member.state}"
            )
        if usable and member.state == "finalized":
            raise InvalidArgument(f"{what} at rank {member.rank}: the communicator is finalized")
        if usable and member.inflight:
            if any(not launch.done for launch in member.inflight):
                raise InvalidArgument(
                    f"{what} at rank {member.rank}: an earlier call is in progress: poll "
                    "get_async_error() until it is SUCCESS"
                )
            member.inflight.clear()
        if usable:
            member.require_usable(what)
        return member

    def _issue(
        self, what: str, make: Callable[[Member], Call], stream: Stream | None
    ) -> Result | None:
        member = self._require(what)
        try:
            call, on = make(member), self._stream(stream)
            return issue(Op(member, call, on))
        except InvalidArgument as error:
            member.last_error = str(error)
            core = member.core
            if isinstance(core, LocalCore) and not core.waits and not current() and what in KINDS:
                with LOCK:
                    core.withdraw_collectives()  # the others' parts of what was refused here
            raise
        except RcclError as error:
            member.last_error = str(error)
            raise

    def _collective(
        self,
        name: str,
        buffers: tuple[object, object],
        op: object,
        root: object,
        stream: Stream | None,
        accumulate: npt.DTypeLike | None = None,
    ) -> Result | None:
        core: Any = self._member.core if self._member is not None else None
        again = core.repeat if core is not None and stream is None and accumulate is None else None
        if again is not None and again.fits(name, buffers, op, root) and not current():
            frame = sys._getframe(2)
            core.run_again(again, (frame.f_code, frame.f_lineno))
            return None

        def make(m: Member) -> Call:
            call = checked_call(
                name, *buffers, op, root, m.rank, m.core.nranks, accumulate, owner=m
            )
            if stream is None and accumulate is None and call.scale is None:
                call.given = (name, *buffers, op, root)
            return call

        return self._issue(name, make, stream)

    # ---- collectives ------------------------------------------------------------------------

    def allreduce(
        self,
        sendbuf: object,
        recvbuf: object,
        op: Reduction = ReduceOp.SUM,
        *,
        stream: Stream | None = None,
        accumulate: npt.DTypeLike | None = None,
    ) -> Result | None:
        """Reduce every rank's sendbuf; leave the result in every recvbuf (ncclAllReduce).

        Both hold count elements of one type. In place when they are the same array. accumulate:
        type partial results are held in where they lie, None for the data's.
        """
        return self._collective("allreduce", (sendbuf, recvbuf), op, 0, stream, accumulate)

    def broadcast(
        self, sendbuf: object, recvbuf: object, root: int = 0, *, stream: Stream | None = None
    ) -> Result | None:
        """Copy the root's sendbuf to every recvbuf (ncclBroadcast); others' is not looked at."""
        return self._collective("broadcast", (sendbuf, recvbuf), ReduceOp.SUM, root, stream)

    def reduce(
        self,
        sendbuf: object,
        recvbuf: object,
        op: Reduction = ReduceOp.SUM,
        root: int | None = None,
        *,
        stream: Stream | None = None,
        accumulate: npt.DTypeLike | None = None,
    ) -> Result | None:
        """Reduce every rank's sendbuf into the root's recvbuf (ncclReduce).

        Other ranks' recvbuf is not looked at. root None: into all, as allreduce (nccl4py).
        """
        name = "allreduce" if root is None else "reduce"
        return self._collective(name, (sendbuf, recvbuf), op, root or 0, stream, accumulate)

    def allgather(
        self, sendbuf: object, recvbuf: object, *, stream: Stream | None = None
    ) -> Result | None:
        """Put rank r's sendbuf (count) into block r of every recvbuf (ncclAllGather)."""
        return self._collective("allgather", (sendbuf, recvbuf), ReduceOp.SUM, 0, stream)

    def reduce_scatter(
        self,
        sendbuf: object,
        recvbuf: object,
        op: Reduction = ReduceOp.SUM,
        *,
        stream: Stream | None = None,
        accumulate: npt.DTypeLike | None = None,
    ) -> Result | None:
        """Reduce the sendbufs (nranks * count); leave block r at rank r (ncclReduceScatter)."""
        return self._collective("reduce_scatter", (sendbuf, recvbuf), op, 0, stream, accumulate)

    def alltoall(
        self, sendbuf: object, recvbuf: object, *, stream: Stream | None = None
    ) -> Result | None:
        """Put block j of rank r's sendbuf into block r of rank j's recvbuf (ncclAlltoAll)."""
        return self._collective("alltoall", (sendbuf, recvbuf), ReduceOp.SUM, 0, stream)

    def gather(
        self,
        sendbuf: object,
        recvbuf: object,
        root: int | None = None,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Put rank r's sendbuf into block r of the root's recvbuf (ncclGather).

        root None: of every recvbuf, as allgather (nccl4py).
        """
        name = "allgather" if root is None else "gather"
        return self._collective(name, (sendbuf, recvbuf), ReduceOp.SUM, root or 0, stream)

    def scatter(
        self, sendbuf: object, recvbuf: object, root: int = 0, *, stream: Stream | None = None
    ) -> Result | None:
        """Put block r of the root's sendbuf into rank r's recvbuf (ncclScatter)."""
        return self._collective("scatter", (sendbuf, recvbuf), ReduceOp.SUM, root, stream)

    def alltoallv(
        self,
        sendbuf: object,
        sendcounts: Sequence[int],
        sdispls: Sequence[int] | None,
        recvbuf: object,
        recvcounts: Sequence[int],
        rdispls: Sequence[int] | None,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Send sendcounts[j] elements from sdispls[j] on to rank j (ncclAllToAllv, RCCL).

        recvcounts[i] elements of rank i go to rdispls[i] on. Displacements None: one after the
        other. What a rank sends and the other receives must be equal, else CollectiveMismatch.
        """
        return self._issue(
            "alltoallv",
            lambda m: checked_uneven(
                "alltoallv",
                sendbuf,
                recvbuf,
                (sendcounts, sdispls),
                (recvcounts, rdispls),
                ReduceOp.SUM,
                m.rank,
                m.core.nranks,
            ),
            stream,
        )

    def allgatherv(
        self,
        sendbuf: object,
        recvbuf: object,
        recvcounts: Sequence[int],
        displs: Sequence[int] | None = None,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Put rank r's sendbuf (recvcounts[r]) at displs[r] of every recvbuf.

        recvcounts is the same at all ranks, displs need not be. No C call: grouped broadcasts.
        """
        return self._issue(
            "allgatherv",
            lambda m: checked_uneven(
                "allgatherv",
                sendbuf,
                recvbuf,
                ((), ()),
                (recvcounts, displs),
                ReduceOp.SUM,
                m.rank,
                m.core.nranks,
            ),
            stream,
        )

    def reduce_scatterv(
        self,
        sendbuf: object,
        recvbuf: object,
        recvcounts: Sequence[int],
        op: Reduction = ReduceOp.SUM,
        displs: Sequence[int] | None = None,
        *,
        stream: Stream | None = None,
        accumulate: npt.DTypeLike | None = None,
    ) -> Result | None:
        """Reduce the sendbufs; leave recvcounts[r] elements from displs[r] on at rank r.

        recvcounts and displs are of sendbuf; recvcounts is the same at all ranks.
        """
        return self._issue(
            "reduce_scatterv",
            lambda m: checked_uneven(
                "reduce_scatterv",
                sendbuf,
                recvbuf,
                (recvcounts, displs),
                ((), ()),
                op,
                m.rank,
                m.core.nranks,
                accumulate,
                owner=m,
            ),
            stream,
        )

    def barrier(self, *, stream: Stream | None = None) -> Result | None:
        """Wait until every rank has called it."""
        return self._issue("barrier", lambda _: plain_call("barrier"), stream)

    # ---- messages ---------------------------------------------------------------------------

    def send(self, sendbuf: object, peer: int, *, stream: Stream | None = None) -> Result | None:
        """Send a buffer to `peer`, which calls recv with as many elements (ncclSend)."""
        return self._issue(
            "send", lambda m: checked_message("send", sendbuf, peer, m.rank, m.core.nranks), stream
        )

    def recv(self, recvbuf: object, peer: int, *, stream: Stream | None = None) -> Result | None:
        """Receive into a buffer what `peer` sends (ncclRecv)."""
        return self._issue(
            "recv", lambda m: checked_message("recv", recvbuf, peer, m.rank, m.core.nranks), stream
        )

    def register_window(self, buffer: object, flags: WindowFlag | int | None = None) -> Window:
        """Register a buffer that others may put into (ncclCommWindowRegister); collective."""
        member = self._require("register_window")
        where = f"register_window at rank {member.rank}"
        held = flat(buffer, f"{where}: buffer", writes=True)
        window = Window(held, whole(flags or 0, f"{where}: flags", 0, 3))
        call = plain_call("register_window", window)
        self._issue("register_window", lambda _: call, None)
        return window

    def put_signal(
        self,
        local_buffer: object,
        peer: int,
        peer_window: Window,
        peer_window_offset: int = 0,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Put a buffer into the peer's window, offset in elements, and signal (ncclPutSignal)."""
        return self._put(
            (local_buffer, peer, peer_window, peer_window_offset),
            (signal_index, context, flags),
            stream,
            signals=True,
        )

    def put(
        self,
        local_buffer: object,
        peer: int,
        peer_window: Window,
        peer_window_offset: int = 0,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Put without a signal: there when a later signal of this rank is."""
        where = local_buffer, peer, peer_window, peer_window_offset
        return self._put(where, (0, 0, 0), stream, signals=False)

    def _put(
        self,
        where: tuple[object, object, object, object],
        key: tuple[Any, Any, Any],
        stream: Stream | None,
        *,
        signals: bool,
    ) -> Result | None:
        return self._issue(
            "put_signal" if signals else "put",
            lambda m: checked_put(
                m.config, *where, key, m.core, m.rank, m.core.nranks, signals=signals
            ),
            stream,
        )

    def signal(
        self,
        peer: int,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Signal a peer (ncclSignal)."""
        return self._issue(
            "signal",
            lambda m: checked_signal(
                m.config, peer, (signal_index, context, flags), m.rank, m.core.nranks
            ),
            stream,
        )

    def wait_signal(
        self,
        descs: WaitSignalDesc | Sequence[WaitSignalDesc],
        *,
        stream: Stream | None = None,
    ) -> Result | None:
        """Wait for signals of peers, and for what they put before them (ncclWaitSignal)."""
        return self._issue(
            "wait_signal", lambda m: checked_wait(m.config, descs, m.rank, m.core.nranks), stream
        )


def _handle(cls: type[Communicator], member: Member) -> Communicator:
    made = cls()
    made._member = member
    return made


def _config(config: object, algo: str | None = None, proto: str | None = None) -> Config:
    """Return the settings; algo and proto given beside them win."""
    if config is not None and not isinstance(config, Config):
        raise InvalidArgument(f"config is a {type(config).__name__}: a rccl_py.Config was expected")
    return Config(algo=algo, proto=proto).merged(config)


def _first_id(unique_id: object) -> bytes:
    ids: list[Any] = list(unique_id) if isinstance(unique_id, (list, tuple)) else [unique_id]
    if not ids or not all(isinstance(uid, UniqueId) for uid in ids):
        raise InvalidArgument(
            f"init: unique_id {unique_id!r}: a UniqueId of get_unique_id(), or several, expected"
        )
    return bytes(ids[0])


def _planned_root(root: object, n: int) -> int:
    return whole(root, "plan: root", 0, n - 1)
