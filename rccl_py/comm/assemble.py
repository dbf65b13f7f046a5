"""Making communicators out of processes: from an MPI communicator, by unique id, split, shrink,
grow.

Owns how processes that know nothing but an id find each other, and what they must agree on first.
Nothing blocks in MPI before all who are needed have come.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..errors import (
    CollectiveMismatch,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    RcclError,
    RcclTimeout,
)
from ..fabric import Fabric
from .core import planner_of
from .job import ANNOUNCED, Job, job
from .local import TIMEOUT
from .machines import machine_for, placed
from .member import Member
from .op import Op, named
from .place import Place
from .process import ProcessCore
from .schedules import schedules_told
from .setup import Handle, Joiner, larger_fabric
from .unique_id import UniqueId

__all__ = ["from_mpi", "grow", "init", "shrink", "split"]

_HEARD: dict[str, dict[int, dict[str, Any]]] = {}  # announcements by id and rank
_SENT: list[tuple[Any, Any]] = []
_BEGUN: dict[int, Any] = {}  # barriers of from_mpi that not all have come to


def _timeout(config: Config) -> float:
    return TIMEOUT if config.timeout is None else config.timeout


def _announce(
    uid: bytes,
    n: int,
    rank: int,
    config: Config,
    worlds: Sequence[int] | None = None,
    **wish: Any,
) -> list[dict[str, Any]]:
    """Come to the meeting of `uid`; return what every rank said, by rank, with its world rank.

    worlds: the processes that may come, None where only they know it.
    """
    mpi, key = job().mpi, blake2b(uid, digest_size=16).hexdigest()
    world = mpi.COMM_WORLD
    said = {"id": key, "rank": rank, "n": n, "world": world.Get_rank(), **wish}
    held = np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)
    for other in range(world.Get_size()) if worlds is None else worlds:
        if other != world.Get_rank():
            request = world.Isend([held, mpi.BYTE], dest=other, tag=ANNOUNCED)
            _SENT.append((request, held))
    _hear(said)
    start, timeout = time.monotonic(), _timeout(config)
    while len(_HEARD[key]) < n:
        _listen(mpi)
        job().progress()
        if time.monotonic() - start > timeout:
            missing = [r for r in range(n) if r not in _HEARD[key]]
            raise RcclTimeout(
                f"rank {rank} waited {timeout:g} s for a communicator of {n} ranks to be made: "
                f"{named(missing)} did not come"
            )
        if len(_HEARD[key]) < n:
            time.sleep(0.0002)
    found = _HEARD.pop(key)
    _SENT[:] = [(r, h) for r, h in _SENT if not r.Test()]
    for row in found.values():
        if row["n"] != n:
            raise CollectiveMismatch(
                f"rank {rank} says there are {n} ranks, rank {row['rank']} says {row['n']}"
            )
    return [found[r] for r in range(n)]


def _hear(said: dict[str, Any]) -> None:
    heard = _HEARD.setdefault(said["id"], {})
    if said["rank"] in heard and heard[said["rank"]]["world"] != said["world"]:
        raise InvalidUsage(f"init: two processes came as rank {said['rank']}")
    heard[said["rank"]] = said


def _listen(mpi: Any) -> None:
    status = mpi.Status()
    while mpi.COMM_WORLD.Iprobe(source=mpi.ANY_SOURCE, tag=ANNOUNCED, status=status):
        held = np.empty(status.Get_count(mpi.BYTE), dtype=np.uint8)
        mpi.COMM_WORLD.Recv([held, mpi.BYTE], source=status.Get_source(), tag=ANNOUNCED)
        _hear(json.loads(held.tobytes()))


def _mpi_comm(mpi: Any, worlds: Sequence[int]) -> Any:
    """Return an MPI communicator of these processes, in this order; all of them call it."""
    world = mpi.COMM_WORLD.Get_group()
    group = world.Incl(list(worlds))
    made = mpi.COMM_WORLD.Create_group(group, tag=1)
    group.Free()
    world.Free()
    return made


# ---- from an MPI communicator -------------------------------------------------------------------


def _fabric_from_first(comm: Any, topology: Any) -> tuple[Fabric, Any]:
    """Return the fabric rank 0 read, and the machine; its error is raised by all ranks."""
    found: tuple[Fabric, Any] | RcclError | None = None
    if comm.Get_rank() == 0:
        try:
            machine = machine_for(topology, comm.Get_size())
            # As bytes: only who grows needs the machine, and networkx to read it.
            found = placed(machine, comm.Get_size()), pickle.dumps(machine)
        except RcclError as error:
            found = error
        except Exception as error:  # whatever it is, the others must not wait for it
            found = InternalError(f"from_mpi: rank 0 failed with {type(error).__name__}: {error}")
    found = comm.bcast(found)
    if isinstance(found, tuple):
        return found
    raise found or InvalidArgument("from_mpi: rank 0 read no fabric")


def _require_alike(comm: Any, **settings: object) -> None:
    """Raise on every rank when the ranks were given different settings: plans must be equal."""
    said = comm.allgather({name: repr(value) for name, value in settings.items()})
    for name in settings:
        values = {row[name]: rank for rank, row in reversed(list(enumerate(said)))}
        if len(values) > 1:
            told = ", ".join(f"rank {rank} {value}" for value, rank in values.items())
            raise InvalidUsage(f"from_mpi: {name} differs between ranks: {told}")


def _require_one_machine(comm: Any, topology: Any) -> None:
    """Raise on every rank when ranks that name a machine name different ones."""
    said = comm.allgather(str(topology) if isinstance(topology, (str, Path)) else None)
    named_by = {name: rank for rank, name in reversed(list(enumerate(said))) if name is not None}
    if len(named_by) > 1:
        told = ", ".join(f"rank {rank} {name!r}" for name, rank in named_by.items())
        raise InvalidUsage(f"the topology differs between ranks: {told}")


def _require_all(comm: Any, timeout: float) -> None:
    """Return when all ranks of an MPI communicator are here; raise RcclTimeout else."""
    # A barrier others have not come to cannot be taken back: the next attempt goes on with it.
    key, start = comm.py2f(), time.monotonic()
    here = _BEGUN.pop(key, None) or comm.Ibarrier()
    while not here.Test():
        if time.monotonic() - start > timeout:
            _BEGUN[key] = here
            raise RcclTimeout(
                f"from_mpi: rank {comm.Get_rank()} waited {timeout:g} s: not all of the "
                f"{comm.Get_size()} processes of the MPI communicator made this call"
            )
        time.sleep(0.0001)


def _worlds(mpi: Any, comm: Any) -> list[int]:
    group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = mpi.Group.Translate_ranks(group, list(range(comm.Get_size())), world)
    group.Free()
    world.Free()
    return [int(r) for r in ranks]


def _board_for(own: Job, comm: Any, worlds: list[int], shared: bool | None) -> None:
    """Make sure some board of this process has all these processes; collective."""
    from ..transports.board import Processes, make_board

    covered = any(set(worlds) <= set(ranks) for _, _, ranks in own.boards)
    if comm.allreduce(int(covered), op=own.mpi.MIN):
        return
    board = make_board(own.mpi, comm, shared)
    own.boards.append((board, Processes(comm), {w: r for r, w in enumerate(worlds)}))


def from_mpi(handle: Handle, comm: Any, topology: Any, config: Config, shared: bool | None) -> None:
    """Make `handle` this process's rank of a communicator over `comm`."""
    own = job()
    if not isinstance(comm, own.mpi.Intracomm) or comm == own.mpi.COMM_NULL:
        raise InvalidArgument(f"from_mpi: {comm!r} is no mpi4py intracommunicator")
    if shared is not None and not isinstance(shared, bool):
        raise InvalidArgument(f"from_mpi: shared_memory {shared!r}: True, False or None")
    _require_all(comm, _timeout(config))
    _require_one_machine(comm, topology)
    _require_alike(comm, algo=config.algo, proto=config.proto, shared_memory=shared,
                   config=config, schedules=schedules_told(config))  # fmt: skip
    fabric, machine = _fabric_from_first(comm, topology)
    worlds = _worlds(own.mpi, comm)
    _board_for(own, comm, worlds, shared)
    key = comm.bcast(f"{own.world}.{_serial()}" if comm.Get_rank() == 0 else None)
    planner = planner_of(fabric, config)
    core = ProcessCore(own, comm, planner, _place(), config, worlds, key, config.comm_name, shared)
    core.machine = machine
    handle._member = core.member


_COUNT = [0]
_PLACES: list[Place] = []


def _serial() -> int:
    _COUNT[0] += 1
    return _COUNT[0]


def _place() -> Place:
    """Return the one place of this process."""
    if not _PLACES:
        _PLACES.append(Place())
    return _PLACES[0]


def init(handle: Handle, n: int, rank: int, uid: bytes, config: Config, topology: Any) -> None:
    """Make `handle` rank `rank` of the communicator of an id."""
    rows = _announce(uid, n, rank, config)
    made = _mpi_comm(job().mpi, [row["world"] for row in rows])
    from_mpi(handle, made, topology, config, None)
    made.Free()  # the communicator has its own duplicates


# ---- out of another communicator ----------------------------------------------------------------


def _child(core: ProcessCore, comm: Any, fabric: Fabric, config: Config, what: str) -> Member:
    """Return this process's member of a new communicator over `comm`."""
    worlds = _worlds(core.job.mpi, comm)
    _board_for(core.job, comm, worlds, core.shared)
    first = f"{core.job.world}.{_serial()}" if comm.Get_rank() == 0 else None
    key = comm.bcast(first)
    name = config.comm_name if config.comm_name != core.config.comm_name else None
    child = ProcessCore(
        core.job,
        comm,
        planner_of(fabric, config, child=True),
        core.member.place,
        config,
        worlds,
        key,
        name or f"{core.name}/{what}",
        core.shared,
    )
    child.machine, child.run = core.machine, core.run
    return child.member


def split(core: ProcessCore, op: Op, joiner: Joiner) -> None:
    """Meet all ranks of `core` and make this rank's part of a split."""
    core.member.number(op)
    core.run_one(op)
    color, key = joiner.wish
    said = [json.loads(t) for t in core.texts(op, json.dumps([color, key]))]
    mine = sorted((k, r) for r, (c, k) in enumerate(said) if c == color)
    undefined = core.job.mpi.UNDEFINED
    comm = core.transport.comm.Split(undefined if color is None else color, key)
    joiner.handle._pending = None
    if color is None:
        return
    ranks = [r for _, r in mine]
    fabric = core.subset(ranks, joiner.config).fabric
    joiner.handle._member = _child(core, comm, fabric, joiner.config, f"split{color}")
    comm.Free()


def shrink(core: ProcessCore, excluded: list[int], joiner: Joiner) -> None:
    """Make the communicator of the ranks that stay."""
    staying = [r for r in range(core.nranks) if r not in excluded]
    core.shrinks += 1
    uid = f"shrink {core.key} {core.shrinks}".encode()
    worlds = [core.worlds[r] for r in staying]
    rows = _announce(uid, len(staying), staying.index(core.rank), core.config, worlds, out=excluded)
    for row in rows:
        if row["out"] != excluded:
            raise CollectiveMismatch(
                f"shrink of {core.name} differs between ranks: rank {core.rank} excludes "
                f"{excluded}, another {row['out']}"
            )
    comm = _mpi_comm(core.job.mpi, [row["world"] for row in rows])
    fabric = core.subset(staying, joiner.config).fabric
    joiner.handle._member = _child(core, comm, fabric, joiner.config, "shrunk")
    comm.Free()


def grow(core: ProcessCore | None, n: int, uid: UniqueId | None, rank: int, joiner: Joiner) -> None:
    """Make the communicator of the ranks of `core` and new ones."""
    if core is not None:
        if n <= core.nranks:
            raise InvalidArgument(
                f"grow: nranks {n} is not more than the {core.nranks} ranks of {core.name}"
            )
        said = uid.as_bytes.hex() if uid is not None else ""
        found = [t for t in core.say(said) if t]
        if not found:
            raise InvalidArgument(
                "grow: no existing rank passed the unique id of comm.get_unique_id()"
            )
        token = bytes.fromhex(found[0])
        larger = larger_fabric(core, n)
    else:
        assert uid is not None
        token = bytes(uid)
    old = core.nranks if core is not None else -1
    rows = _announce(token, n, rank, joiner.config, old=old)
    size = max(row["old"] for row in rows)
    if core is None and rank < size:
        raise InvalidArgument(f"grow: new rank {rank}: expected {size} to {n - 1}")
    own, comm = job(), _mpi_comm(job().mpi, [row["world"] for row in rows])
    given = (larger, core.machine, core.run) if core is not None else None
    fabric, machine, run = comm.bcast(given)  # rank 0 is one of the old
    worlds = _worlds(own.mpi, comm)
    _board_for(own, comm, worlds, None)
    key = comm.bcast(f"{own.world}.{_serial()}" if comm.Get_rank() == 0 else None)
    place, config = _place() if core is None else core.member.place, joiner.config
    planner = planner_of(fabric, config, child=True)
    child = ProcessCore(own, comm, planner, place, config, worlds, key, f"grown{key}", None)
    child.machine, child.run = machine, run
    joiner.handle._member = child.member
    comm.Free()
