"""A program for nccl4py with its import changed: a unique id from rank 0, then reduce to all.

mpirun -np 4 python examples/nccl4py_allreduce.py
"""

import numpy as np
from mpi4py import MPI

from rccl_py.compat import nccl  # was: import nccl.core as nccl

world = MPI.COMM_WORLD
rank, nranks = world.Get_rank(), world.Get_size()
unique_id = world.bcast(nccl.get_unique_id() if rank == 0 else None, root=0)
comm = nccl.Communicator.init(nranks=nranks, rank=rank, unique_id=unique_id)

data = np.array([float(rank)], dtype=np.float32)
comm.reduce(data, data, nccl.SUM)  # no root: to all

expected = nranks * (nranks - 1) // 2
for line in world.gather(f"rank {rank}: {data[0]:.0f}, expected {expected}") or ():
    print(line)
comm.destroy()
