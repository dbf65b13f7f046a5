"""Sum an array over all ranks: every rank a process.

mpirun -np 4 python examples/allreduce.py
"""

import numpy as np
from mpi4py import MPI

import rccl_py as rccl

comm = rccl.Communicator.from_mpi(MPI.COMM_WORLD, "mi300x-8")
mine = np.full(4, comm.rank, dtype=np.float32)
total = np.empty_like(mine)
comm.allreduce(mine, total, rccl.SUM)
lines = MPI.COMM_WORLD.gather(f"rank {comm.rank} of {comm.nranks}: {total.tolist()}")
if comm.rank == 0:
    print("\n".join(lines))
    print(f"would take {comm.elapsed * 1e6:.2f} us by {comm.last_plan.algorithm}")
comm.destroy()
