"""Communicators over processes: shared arrays of mem_alloc, and errors of one process."""

import numpy as np
import pytest
from mpirun import mpirun

import rccl_py as rccl
from rccl_py.errors import InvalidArgument

PROGRAM = """
import numpy as np
from mpi4py import MPI
import rccl_py as rccl
comm = rccl.Communicator.from_mpi(MPI.COMM_WORLD, "mi300x-8")
n, r = comm.nranks, comm.rank
shared = comm.mem_alloc(1000 * n, np.int64)
mine = comm.mem_alloc(1000 if r else 0, np.int64)  # counts may differ
plain = np.arange(1000 * n) + r
shared[:] = plain
out = np.empty(1000 * n, np.int64)
comm.allreduce(shared, out)
assert (out == np.arange(1000 * n) * n + n * (n - 1) // 2).all()
comm.allreduce(shared, shared)  # in place, in shared memory
assert (shared == out).all()
comm.alltoall(shared if r % 2 else out, plain)  # some ranks registered, some not
assert (plain.reshape(n, 1000) == out.reshape(n, 1000)[r]).all()
comm.destroy()
print("well", r)
"""


def test_in_one_process_it_is_an_array_of_that_many_elements():
    (comm,) = rccl.Communicator.init_all("mi300x-8", nranks=1)
    array = comm.mem_alloc(7, "float")
    assert array.shape == (7,) and array.dtype == np.float32
    with pytest.raises(InvalidArgument, match="count -1"):
        comm.mem_alloc(-1, "float")


@pytest.mark.mpi
def test_shared_and_plain_buffers_mix_under_mpirun():
    done = mpirun(4, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("well") == 4


ALONE = """
import numpy as np
from mpi4py import MPI
import rccl_py as rccl
comm = rccl.Communicator.from_mpi(MPI.COMM_WORLD, "mi300x-8")
comm.allreduce([1] if comm.rank == 1 else np.ones(4), np.ones(4))
"""


@pytest.mark.mpi
def test_an_error_of_one_process_ends_the_others_instead_of_a_hang():
    done = mpirun(2, "-c", ALONE, timeout=60)
    assert done.returncode != 0
    assert "InvalidArgument: allreduce at rank 1: sendbuf is a list" in done.stderr


UNLIKE = """
from mpi4py import MPI
import rccl_py as rccl
rank = MPI.COMM_WORLD.Get_rank()
for settings in ({"algo": "ring" if rank else "tree"}, {"shared_memory": False if rank else None}):
    try:
        rccl.Communicator.from_mpi(MPI.COMM_WORLD, "mi300x-8", **settings)
    except rccl.RcclError as error:
        print(error)
"""


@pytest.mark.mpi
def test_processes_with_different_settings_are_told_apart():
    done = mpirun(2, "-c", UNLIKE, timeout=60)
    assert done.stdout.count("from_mpi: algo differs between ranks: rank") == 2
    assert done.stdout.count("from_mpi: shared_memory differs between ranks: rank") == 2
