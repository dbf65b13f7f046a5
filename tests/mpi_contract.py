"""Run under mpirun: the contract (contract.py), and what every rank's digests are.

Usage: mpirun -n N python mpi_contract.py FOLDER full|reduced MODE... Every rank writes its digests,
as JSON by mode and check, to FOLDER/<N>-<rank>.json. Modes: shared, messages, hosts (every rank
believes it is alone on its host).
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import contract
from mpi4py import MPI

import rccl_py as rccl
from rccl_py.comm.job import job


def machine_of(n: int) -> str:
    return "mi300x-8" if n <= 8 else "mi300x-8-x16-leaf-spine"


class Alone:
    """An MPI communicator whose ranks have no host in common; what it makes is like it."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def Split_type(self, _kind: int) -> MPI.Comm:
        return self._comm.Split(self._comm.Get_rank())

    def Dup(self) -> Alone:
        return Alone(self._comm.Dup())

    def Split(self, color: int = 0, key: int = 0) -> Alone:
        return Alone(self._comm.Split(color, key))


def digests(world: MPI.Comm, mode: str, reduced: bool) -> dict[str, str]:
    if mode == "hosts":
        socket.gethostname = lambda: f"host {world.Get_rank()}"
        world = Alone(world)
    shared = False if mode == "messages" else None
    comm = rccl.Communicator.from_mpi(world, machine_of(world.Get_size()), shared_memory=shared)
    assert comm._member.core.transport.shared == (mode == "shared" and world.Get_size() > 1)
    if mode == "hosts":
        processes = job().boards[-1][1]
        assert not any(processes.ended(r) for r in range(comm.nranks) if r != comm.rank)
        assert type(job().boards[-1][0]).__name__ == "MessageBoard"
    found = contract.run(comm, reduced)
    comm.destroy()
    return found


def main(folder: str, length: str, *modes: str) -> None:
    world = MPI.COMM_WORLD
    found = {mode: digests(world, mode, length == "reduced") for mode in modes}
    path = Path(folder) / f"{world.Get_size()}-{world.Get_rank()}.json"
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
