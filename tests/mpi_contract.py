"""Run under mpirun: the contract (contract.py) on several communicators, one after the other.

Usage: mpirun -n N python mpi_contract.py FOLDER RUN..., where a RUN is SIZE:LENGTH:MODE: the first
SIZE processes, how much of the contract, and how ranks reach each other: shared, messages, or hosts
(every process believes it is alone on its host). Every rank writes its digests to
FOLDER/RUN-RANK.json.
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
from rccl_py.transports.board import MessageBoard


class Alone(MPI.Intracomm):
    """A communicator whose ranks have no host in common; what it makes is of its kind."""

    def Split_type(self, _kind: int) -> MPI.Comm:
        return self.Split(self.Get_rank())


def communicator(world: MPI.Comm, length: str, mode: str) -> rccl.Communicator:
    """Return the communicator of a run, and make sure it is what the mode says."""
    n = world.Get_size()
    if mode == "hosts":
        socket.gethostname = lambda: f"host {world.Get_rank()}"
        world = Alone(world)
    machine, algo = contract.settings(n, length)
    shared = False if mode == "messages" else None
    made = rccl.Communicator.from_mpi(world, machine, algo=algo, shared_memory=shared)
    assert made._member.core.transport.shared == (mode == "shared" and n > 1)
    if mode == "hosts":
        board, processes, _ = job().boards[-1]
        assert isinstance(board, MessageBoard)
        assert list(processes._watched) == [made.rank]
    return made


def main(folder: str, *runs: str) -> None:
    world = MPI.COMM_WORLD
    for run in runs:
        size, length, mode = run.split(":")
        belongs = world.Get_rank() < int(size)
        part = world.Split(0 if belongs else MPI.UNDEFINED)
        if belongs:
            comm = communicator(part, length, mode)
            digests = contract.run(comm, length)
            comm.destroy()
            (Path(folder) / f"{run}-{part.Get_rank()}.json").write_text(json.dumps(digests))


if __name__ == "__main__":
    main(*sys.argv[1:])
