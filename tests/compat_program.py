"""A program that uses mpi4py's own MPI but for its communicator; run with mpirun by the tests."""

import numpy as np
from mpi4py import MPI

from rccl_py.compat import mpi as ours

comm = ours.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
assert (rank, size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)

# mpi4py's datatypes, operations and IN_PLACE
total = np.arange(4.0) + rank
comm.Allreduce(MPI.IN_PLACE, [total, MPI.DOUBLE], op=MPI.SUM)
assert (total == np.arange(4.0) * size + size * (size - 1) / 2).all()

# a user's operation that does not commute: keep the first of the pairs that is not 0
first = MPI.Op.Create(
    lambda a, b, t: np.copyto(np.frombuffer(b, "i4"), np.frombuffer(a, "i4"),
                              where=np.frombuffer(a, "i4") != 0)
)  # fmt: skip
mine, got = np.array([rank, rank + 1], "i4"), np.zeros(2, "i4")
comm.Allreduce([mine, MPI.INT], [got, MPI.INT], op=first)
assert got.tolist() == [1 if size > 1 else 0, 1]
first.Free()

# columns of a matrix, as derived and resized types
column = MPI.INT.Create_vector(3, 1, size).Create_resized(0, 4).Commit()
matrix = np.arange(3 * size, dtype="i4").reshape(3, size) if rank == 0 else None
own = np.empty(3, "i4")
comm.Scatter([matrix, 1, column] if rank == 0 else None, own, root=0)
assert (own == np.arange(3) * size + rank).all()
back = np.zeros((3, size), "i4")
comm.Gather(own, [back, 1, column] if rank == 0 else None, root=0)
assert rank or (back == matrix).all()

# where the largest is
pair = np.array([(float(rank % 3), rank)], dtype=[("value", "f8"), ("index", "i4")])
pair = pair.astype(np.dtype([("value", "f8"), ("index", "i4")], align=True))
found = np.empty_like(pair)
comm.Allreduce([pair, 1, MPI.DOUBLE_INT], [found, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
assert found["index"][0] == min(2, size - 1)

# messages: larger than a slot, to both neighbours, and the last one is not waited for
left, right = (rank - 1) % size, (rank + 1) % size
large, into = np.full(300_000, rank, "f8"), np.empty(300_000, "f8")
requests = [comm.Irecv(into, source=left, tag=7), comm.Isend(large, dest=right, tag=7)]
ours.Request.Waitall(requests)
assert (into == left).all()
status = ours.Status()
comm.send({"from": rank}, dest=right, tag=rank)
assert comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status) == {"from": left}
assert (status.source, status.tag) == (left, left)

half = comm.Split(rank % 2, -rank)
assert half.allreduce(1) == len(range(rank % 2, size, 2))
assert half.Get_rank() == len(range(rank + 2, size, 2))
half.Free()
comm.Barrier()
if rank == 0 and size > 1:
    comm.Send(large, dest=1)
elif rank == 1:
    comm.Recv(into, source=0)
    assert (into == 0).all()
print("well", rank)
