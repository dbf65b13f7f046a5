"""Pass a number around a ring until everyone has added it up: every rank a thread.

python examples/ring_exchange.py
"""

import numpy as np

import rccl_py as rccl


def body(comm):
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    held, total = np.array([comm.rank]), comm.rank
    for _ in range(comm.nranks - 1):
        arriving = np.empty_like(held)
        with rccl.group():
            comm.send(held, after)
            comm.recv(arriving, before)
        held, total = arriving, total + int(arriving[0])
    return total


print(rccl.run(body, "mi300x-8"))
