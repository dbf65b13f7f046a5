"""Two ranks exchange a number inside a group, where the order of send and recv does not matter.

mpirun -np 2 python examples/send_recv.py
"""

import numpy as np
from mpi4py import MPI

from rccl_py.compat import nccl

world = MPI.COMM_WORLD
rank = world.Get_rank()
unique_id = world.bcast(nccl.get_unique_id() if rank == 0 else None, root=0)
comm = nccl.Communicator.init(2, rank, unique_id)

sent, received = np.array([100.0 + rank]), np.zeros(1)
with nccl.group():
    comm.send(sent, peer=1 - rank)
    comm.recv(received, peer=1 - rank)

for line in world.gather(f"rank {rank} sent {sent[0]:.0f}, received {received[0]:.0f}") or ():
    print(line)
comm.destroy()
