"""Run under mpirun: imported and written schedules give the same bits over processes as locally.

Usage: mpirun -n N python mpi_custom.py FILE. FILE is an MSCCL XML of an allreduce on N ranks.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from rccl_py import Communicator, Config, Program, group


def pairs(n: int):
    """Return a reduce_scatter that every rank does straight with every other."""
    program = Program("reduce_scatter", n)
    for r in range(n):
        total = program.chunk(r, "input", r).copy(r, "output")
        for k in range(1, n):
            total.reduce(program.chunk((r + k) % n, "input", r))
    return program.custom("pairs")


def main() -> int:
    """Return how many buffers differ, over all processes."""
    world, wrong = MPI.COMM_WORLD, 0
    n, rank = world.Get_size(), world.Get_rank()
    config = Config(schedules=[sys.argv[1], pairs(n)], flight_dir="")
    over = Communicator.from_mpi(world, "mi300x-8", config=config)
    local = Communicator.init_all("mi300x-8", n, config=config)
    rng = np.random.default_rng(5)
    for count in (1, 5, 1001):
        data = (rng.random((n, n * count)) * 9 - 4).astype(np.float32)
        for name in ("allreduce", "reduce_scatter"):
            size = n * count if name == "allreduce" else count
            here, there = np.empty((n, size), np.float32), np.empty(size, np.float32)
            with group():
                for comm, x, y in zip(local, data, here):
                    getattr(comm, name)(x, y)
            getattr(over, name)(data[rank], there)
            used = {c.last_plan.algorithm for c in (over, local[0])}
            wrong += there.tobytes() != here[rank].tobytes() or len(used) > 1
            wrong += used <= {"ring", "direct", "tree"}
    total = world.allreduce(int(wrong))
    if rank == 0:
        print(f"{total} differ")
    return total


if __name__ == "__main__":
    sys.exit(min(main(), 1))
