"""Communicator: one rank's handle, with the names of NVIDIA's nccl4py.

Owns the methods people call. Each checks its arguments, then hands one Call to the world its rank
lives in. Buffers are contiguous NumPy arrays; anything else is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arguments import whole
from ..collectives import collective_named
from ..dtypes import name_of
from ..errors import (
    InternalError,
    InvalidArgument,
    InvalidUsage,
    RcclError,
    RcclSystemError,
)
from ..fabric import Fabric
from ..planner import Plan, Planner
from ..reduce_ops import ReduceOp, op_named
from ..units import LARGEST
from .call import Call, Signature, checked_call, checked_dtype
from .group import current
from .world import LocalWorld, MpiWorld

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["Communicator", "fabric_of"]


def fabric_of(topology: str | Path | Topology, nranks: int | None) -> Fabric:
    """Return the fabric of the first `nranks` accelerators of a machine (all by default)."""
    from ..topology import (  # with networkx: only who reads a machine pays for it
        Topology,
        load,
        lower,
    )

    machine = topology if isinstance(topology, Topology) else load(topology)
    if nranks is not None:
        # Too many is lower()'s to refuse: it knows the way out.
        too_many = isinstance(nranks, int) and nranks > machine.ngpus
        whole(nranks, f"{machine.name}: nranks", 1, LARGEST if too_many else machine.ngpus)
    return lower(machine, nranks)


def _fabric_from_first(comm: Any, topology: str | Path | Topology | None) -> Fabric:
    """Return the fabric rank 0 read; its error is raised by all ranks."""
    found: Fabric | RcclError | None = None
    if comm.Get_rank() == 0:
        try:
            if topology is None:
                raise InvalidArgument("from_mpi: rank 0 was given no topology")
            found = fabric_of(topology, comm.Get_size())
        except RcclError as error:
            found = error
        except Exception as error:  # whatever it is, the others must not wait for it
            found = InternalError(f"from_mpi: rank 0 failed with {type(error).__name__}: {error}")
    found = comm.bcast(found)
    if not isinstance(found, Fabric):
        raise found or InvalidArgument("from_mpi: rank 0 read no fabric")
    return found


def _require_alike(comm: Any, **settings: object) -> None:
    """Raise on every rank when the ranks were given different settings: plans must be equal."""
    said = comm.allgather({name: repr(value) for name, value in settings.items()})
    for name in settings:
        values = {row[name]: rank for rank, row in reversed(list(enumerate(said)))}
        if len(values) > 1:
            told = ", ".join(f"rank {rank} {value}" for value, rank in values.items())
            raise InvalidUsage(f"from_mpi: {name} differs between ranks: {told}")


class Communicator:
    """A rank of a communicator. Make them with init_all, from_mpi or rccl_py.run."""

    def __init__(self, rank: int, world: LocalWorld | MpiWorld) -> None:
        self._rank = rank
        self._world = world
        self._open = True

    @classmethod
    def init_all(
        cls,
        topology: str | Path | Topology,
        nranks: int | None = None,
        *,
        algo: str | None = None,
        proto: str | None = None,
    ) -> list[Communicator]:
        """Return one communicator a rank, all in this process (ncclCommInitAll).

        topology: a machine's name, a file, or a Topology. nranks: use so many of its accelerators.
        algo, proto: restrictions in the syntax of NCCL_ALGO and NCCL_PROTO. A collective runs when
        the last rank has called it, at the latest when the group ends.
        """
        world = LocalWorld(Planner(fabric_of(topology, nranks), algo, proto), waits=False)
        return [cls(rank, world) for rank in range(world.nranks)]

    @classmethod
    def from_mpi(
        cls,
        comm: Any,
        topology: str | Path | Topology | None,
        *,
        algo: str | None = None,
        proto: str | None = None,
        shared_memory: bool | None = None,
    ) -> Communicator:
        """Return this process's rank of a communicator over an mpi4py communicator.

        Collective over `comm`. The topology is read by rank 0; other ranks' is not looked at.
        shared_memory False sends messages even between ranks of one host.
        Raises InvalidArgument when `comm` has more ranks than the machine has accelerators.
        """
        from ..transports.mpi import MpiTransport

        _require_alike(comm, algo=algo, proto=proto, shared_memory=shared_memory)
        planner = Planner(_fabric_from_first(comm, topology), algo, proto)
        transport = MpiTransport(comm, shared_memory)
        return cls(transport.rank, MpiWorld(planner, transport))

    @property
    def rank(self) -> int:
        """This rank's number, 0 to nranks - 1."""
        return self._rank

    @property
    def nranks(self) -> int:
        """How many ranks there are."""
        return self._world.nranks

    @property
    def fabric(self) -> Fabric:
        """The fabric the communicator's time is modelled on."""
        return self._world.planner.fabric

    @property
    def planner(self) -> Planner:
        """The planner that chooses for this communicator."""
        return self._world.planner

    @property
    def elapsed(self) -> float:
        """Modelled seconds of all collectives run so far."""
        self.synchronize()
        return self._world.elapsed

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the collective that ran last, None before the first."""
        self.synchronize()
        return self._world.last_plan

    def synchronize(self) -> None:
        """Make sure no call of this communicator waits for a rank that has not made it.

        Raises InvalidUsage naming those ranks (all ranks in one thread only).
        """
        if isinstance(self._world, LocalWorld) and not self._world.waits and current() is None:
            self._world.require_complete()

    def destroy(self) -> None:
        """Release the communicator; later calls raise InvalidArgument."""
        if self._open and isinstance(self._world, MpiWorld):
            self._world.transport.close()
        self._open = False

    def __repr__(self) -> str:
        state = "" if self._open else ", destroyed"
        return f"<Communicator rank {self._rank} of {self.nranks} on {self.fabric.name}{state}>"

    def scratch_elements(self, plan: Plan, count: int) -> int:
        """Return the scratch elements of all ranks together, for blocks of `count` elements."""
        if not plan.schedule.layout.scratch:
            return 0
        slots = int(self._world.program(plan, False).scratch_used.sum())
        return slots * -(-count // plan.schedule.layout.chunks)

    def mem_alloc(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of `count` elements that calls use without a copy (ncclMemAlloc).

        Under mpirun a collective call (counts may differ, 0 included): the memory is shared with
        the ranks of the host, until the communicator is destroyed. Else it is plain memory.
        """
        kind = checked_dtype(dtype)
        whole(count, "mem_alloc: count", 0, LARGEST // kind.itemsize)
        if isinstance(self._world, MpiWorld):
            memory: npt.NDArray[Any] = self._world.transport.allocate(count * kind.itemsize)
            return memory.view(kind)
        try:
            return np.empty(count, dtype=kind)
        except (MemoryError, ValueError):
            size = count * kind.itemsize
            raise RcclSystemError(f"mem_alloc: {size} bytes are more than there is") from None

    def mem_free(self, array: npt.NDArray[Any]) -> None:
        """Give back an array of mem_alloc (ncclMemFree); it must not be used afterwards.

        Under mpirun a collective call. Else the memory is Python's to free.
        """
        if isinstance(self._world, MpiWorld):
            self._world.transport.release(array.reshape(-1))

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
        return self._world.plan(Signature(spec.name, count, name, op_named(str(op)).value, root))

    def _call(
        self, collective: str, sendbuf: object, recvbuf: object, op: ReduceOp | str, root: int
    ) -> None:
        if not self._open:
            raise InvalidArgument(
                f"{collective} at rank {self._rank}: the communicator is destroyed"
            )
        queued = current()
        try:
            call = checked_call(collective, sendbuf, recvbuf, op, root, self._rank, self.nranks)
        except InvalidArgument:
            if queued is None and isinstance(self._world, LocalWorld):
                self._world.withdraw()  # the other ranks' calls that waited for this one
            raise
        if isinstance(self._world, MpiWorld):
            self._now_or_queued(partial(self._world.call, call))
        elif queued is None:
            number = self._world.submit(self._rank, call)
            if self._world.waits:
                self._world.wait(self._rank, number)
        elif self._world.waits:
            queued.starts.append(partial(self._submit_waiting, self._world, call, queued.ends))
        else:
            queued.starts.append(partial(self._submit, self._world, call))
            queued.ends.append(self._world.require_complete)
            queued.undos.append(self._world.withdraw)

    def _submit(self, world: LocalWorld, call: Call) -> None:
        world.submit(self._rank, call)

    def _submit_waiting(self, world: LocalWorld, call: Call, ends: list[Any]) -> None:
        ends.append(partial(world.wait, self._rank, world.submit(self._rank, call)))

    @staticmethod
    def _now_or_queued(step: Any) -> None:
        queued = current()
        if queued is None:
            step()
        else:
            queued.starts.append(step)

    def allreduce(
        self, sendbuf: object, recvbuf: object, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce every rank's sendbuf; leave the result in every recvbuf (ncclAllReduce).

        Both hold count elements of one type. In place when they are the same array.
        """
        self._call("allreduce", sendbuf, recvbuf, op, 0)

    def allgather(self, sendbuf: object, recvbuf: object) -> None:
        """Put rank r's sendbuf (count) into block r of every recvbuf (nranks * count)."""
        self._call("allgather", sendbuf, recvbuf, ReduceOp.SUM, 0)

    def reduce_scatter(
        self, sendbuf: object, recvbuf: object, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce the sendbufs (nranks * count); leave block r in rank r's recvbuf (count)."""
        self._call("reduce_scatter", sendbuf, recvbuf, op, 0)

    def alltoall(self, sendbuf: object, recvbuf: object) -> None:
        """Put block j of rank r's sendbuf into block r of rank j's recvbuf (nranks blocks each)."""
        self._call("alltoall", sendbuf, recvbuf, ReduceOp.SUM, 0)

    def broadcast(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Copy the root's sendbuf to every recvbuf; other ranks' sendbuf is not looked at."""
        self._call("broadcast", sendbuf, recvbuf, ReduceOp.SUM, root)

    def reduce(
        self, sendbuf: object, recvbuf: object, op: ReduceOp | str = ReduceOp.SUM, root: int = 0
    ) -> None:
        """Reduce every rank's sendbuf into the root's recvbuf; others' is not looked at."""
        self._call("reduce", sendbuf, recvbuf, op, root)

    def gather(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put rank r's sendbuf (count) into block r of the root's recvbuf (nranks * count)."""
        self._call("gather", sendbuf, recvbuf, ReduceOp.SUM, root)

    def scatter(self, sendbuf: object, recvbuf: object, root: int = 0) -> None:
        """Put block r of the root's sendbuf (nranks * count) into rank r's recvbuf (count)."""
        self._call("scatter", sendbuf, recvbuf, ReduceOp.SUM, root)
