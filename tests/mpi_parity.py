"""Run under mpirun: every algorithm over processes gives the bits the local transport gives.

Usage: mpirun -n N python mpi_parity.py [shared|tiles|messages ...]. Every process makes all ranks'
data, runs its own rank over MPI and all ranks locally, and compares its own output to the bit.
tiles: shared memory with so small tiles that most calls take several. All three are the default.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from helpers import blocks, buffers_of, divisors, recipe_of, suits
from mpi4py import MPI

from rccl_py.algorithms import ALGORITHMS
from rccl_py.dtypes import DTYPES, dtype_named
from rccl_py.reduce_ops import Arithmetic, ReduceOp
from rccl_py.transports import local, shared
from rccl_py.transports.mpi import MpiTransport
from rccl_py.transports.program import Program

COUNTS = (0, 1, 3, 101, 4099, 20_011)


def cases(n: int):
    """Yield (algorithm, node size, root, pieces, count, arithmetic, in place by rank)."""
    ops = [op for op in ReduceOp if op is not ReduceOp.AVG]
    for k, row in enumerate(a for a in ALGORITHMS if suits(a, n)):
        for i, count in enumerate(COUNTS):
            if n > 2 and i != k % len(COUNTS) and (n > 4 or count != COUNTS[-1]):
                continue
            sizes = divisors(n) if row.two_level else [None]
            in_place = [(i + k) % 3 == 1 or ((i + k) % 3 == 2 and r % 2 == 0) for r in range(n)]
            dtype = dtype_named(DTYPES[(3 * k + i) % len(DTYPES)])
            wide = np.dtype(np.float32) if dtype.kind in "fV" and dtype.itemsize < 4 else None
            arithmetic = Arithmetic(ops[(k + i) % len(ops)], dtype, wide)
            yield (row, sizes[(i + k) % len(sizes)], (i + k) % n, min(row.pieces, 1 + 2 * (i % 2)),
                   count, arithmetic, in_place)  # fmt: skip


class Patient:
    """Waits at most a minute."""

    def pause(self, waited, missing):
        if waited > 60:
            raise TimeoutError(f"ranks {list(missing)} have not come")
        time.sleep(0.0001)


def run(mode: str) -> tuple[int, int]:
    """Return how many buffers of this process are equal and how many differ."""
    world = MPI.COMM_WORLD
    n, rank, wrong, right = world.Get_size(), world.Get_rank(), 0, 0
    shared.TILE = 2048 if mode == "tiles" else 1 << 20
    transport = MpiTransport(world, Patient(), shared=False if mode == "messages" else None)
    assert transport.shared == (mode != "messages")
    for seed, (row, g, root, pieces, count, arithmetic, in_place) in enumerate(cases(n)):
        schedule = row.build(recipe_of(n, root, g, pieces))
        rng = np.random.default_rng(seed)
        many, dtype = blocks(row.collective, n)[0] * count, arithmetic.dtype
        inputs = [rng.integers(-9, 10, many).astype(dtype) / dtype.type(3) if dtype.kind in "fV"
                  else rng.integers(0, 100, many).astype(dtype) for _ in range(n)]  # fmt: skip
        inputs = [held.astype(arithmetic.held) for held in inputs]
        here, there = (buffers_of(row.collective, inputs, root, in_place, 7) for _ in range(2))
        program = Program(schedule, in_place=any(in_place) and row.collective != "alltoall")
        local.run(program, count, here, arithmetic)
        bound = transport.bind(program, count, arithmetic)
        head = seed.to_bytes(64, "little")
        assert transport.collective(head, seed + rank, bound, *there[rank]) == seed + n - 1
        for mine, wanted in zip(there[rank], here[rank]):
            same = mine is None or mine.tobytes() == wanted.tobytes()
            wrong, right = wrong + (not same), right + same
            if not same:
                what = f"node={g} root={root} pieces={pieces} count={count} {arithmetic} {in_place}"
                print(f"rank {rank}, {mode}: {row.collective}/{row.name} n={n} {what}")
    transport.close()
    return right, wrong


def main() -> int:
    """Return the number of buffers that differ, over all processes."""
    found = np.array([run(mode) for mode in sys.argv[1:] or ("shared", "tiles", "messages")])
    right, wrong = MPI.COMM_WORLD.allreduce(found.sum(axis=0))
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(f"{right} buffers equal to the bit, {wrong} differ")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
