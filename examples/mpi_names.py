"""An mpi4py program with its import changed: the same names over this library's communicators.

mpirun -np 3 python examples/mpi_names.py
"""

import numpy as np

from rccl_py.compat import mpi as MPI  # was: from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

total = np.zeros(3)
comm.Allreduce(np.arange(3.0) + rank, total, op=MPI.SUM)

counts = np.arange(1, size + 1)
gathered = np.zeros(counts.sum(), dtype="i")
comm.Allgatherv(np.full(rank + 1, rank, dtype="i"), [gathered, counts])

for line in comm.gather(f"rank {rank}: {total.tolist()} {gathered.tolist()}", root=0) or ():
    print(line)
