"""Four mistakes and what is said of each: who did what, where, and who waits for whom.

python examples/mistakes.py
"""

import numpy as np

import rccl_py as rccl

x, y = np.ones(8), np.zeros(8)


def different_counts(comm):
    count = 4 if comm.rank == 2 else 8
    comm.allreduce(x[:count], y[:count].copy())


def everybody_sends_first(comm):
    comm.send(x, (comm.rank + 1) % comm.nranks)
    comm.recv(y.copy(), (comm.rank - 1) % comm.nranks)


def two_communicators_crosswise(comm):
    other = comm.split(0)
    first, second = (comm, other) if comm.rank == 0 else (other, comm)
    first.barrier()
    second.barrier()


def one_rank_leaves(comm):
    if comm.rank != 1:
        comm.barrier()


for mistake, nranks in (
    (different_counts, 4),
    (everybody_sends_first, 3),
    (two_communicators_crosswise, 2),
    (one_rank_leaves, 2),
):
    try:
        config = rccl.Config(comm_name="world")
        rccl.run(mistake, "mi300x-8", nranks=nranks, config=config)
    except rccl.RcclError as error:
        kind, code = type(error).__name__, error.code
        text = str(error).split(". ")[0]
        print(f"{mistake.__name__}: {kind} ({code.name} {code.value})")
        print("   ", "\n    ".join(sorted(text.replace("deadlock: ", "").split("; "))))
