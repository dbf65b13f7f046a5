"""Run under mpirun: every algorithm over processes gives the bits the local transport gives.

Usage: mpirun -n N python mpi_parity.py shared|messages. Every process makes all ranks' data, runs
its own rank over MPI and all ranks locally, and compares its own output to the bit.
"""

from __future__ import annotations

import sys

import numpy as np
from helpers import blocks, buffers_of, divisors, recipe_of
from mpi4py import MPI

from rccl_py.algorithms import ALGORITHMS
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.reduce_ops import ReduceOp
from rccl_py.transports import local
from rccl_py.transports.mpi import MpiTransport
from rccl_py.transports.program import Program

COUNTS = (0, 1, 3, 101, 4099)


def cases(n: int):
    """Yield (algorithm, node size, root, pieces, count, dtype, op, in place by rank)."""
    ops = [op for op in ReduceOp if op is not ReduceOp.AVG]
    for k, row in enumerate(ALGORITHMS):
        for i, count in enumerate(COUNTS):
            if n > 2 and i != k % len(COUNTS):
                continue
            sizes = divisors(n) if row.two_level else [None]
            in_place = [(i + k) % 3 == 1 or ((i + k) % 3 == 2 and r % 2 == 0) for r in range(n)]
            yield (row, sizes[(i + k) % len(sizes)], (i + k) % n, min(row.pieces, 1 + 2 * (i % 2)),
                   count, dtype_named(DTYPES[(3 * k + i) % len(DTYPES)]), ops[(k + i) % len(ops)],
                   in_place)  # fmt: skip


def main() -> int:
    """Return the number of cases that differ, over all processes."""
    world = MPI.COMM_WORLD
    transport = MpiTransport(world, shared=None if sys.argv[1] == "shared" else False)
    n, rank, wrong, right = world.Get_size(), world.Get_rank(), 0, 0
    for seed, (row, g, root, pieces, count, dtype, op, in_place) in enumerate(cases(n)):
        schedule = row.build(recipe_of(n, root, g, pieces))
        rng = np.random.default_rng(seed)
        many = blocks(row.collective, n)[0] * count
        inputs = [rng.integers(-9, 10, many).astype(dtype) / dtype.type(3) if dtype.kind in "fV"
                  else rng.integers(0, 100, many).astype(dtype) for _ in range(n)]  # fmt: skip
        inputs = [held.astype(dtype) for held in inputs]
        here, there = (buffers_of(row.collective, inputs, root, in_place, 7) for _ in range(2))
        program = Program(schedule, in_place=any(in_place) and row.collective != "alltoall")
        local.run(program, count, here, op, dtype)
        source, target = there[rank]
        places = transport.agree(np.array([*transport.locate(source), *transport.locate(target)]))
        transport.run(program, count, source, target, op, dtype, places)
        for mine, wanted in zip(there[rank], here[rank]):
            same = mine is None or mine.tobytes() == wanted.tobytes()
            wrong, right = wrong + (not same), right + same
            if not same:
                what = f"node={g} root={root} pieces={pieces} count={count} {dtype} {op} {in_place}"
                print(f"rank {rank}: {row.collective}/{row.name} n={n} {what}")
    transport.close()
    wrong, right = world.allreduce(wrong), world.allreduce(right)
    if rank == 0:
        print(f"{right} buffers equal to the bit, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
