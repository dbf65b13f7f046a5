"""Hide an allreduce behind computation: two streams of a rank overlap in modelled time.

python examples/overlap.py
"""

import numpy as np

import rccl_py as rccl

COMPUTE = 400e-6  # seconds of a backward pass, say


def step(overlapping):
    comms = rccl.Communicator.init_all("mi300x-8")
    gradients = [np.ones(1 << 22, np.float32) for _ in comms]
    streams = [c.stream("communication") if overlapping else c.default_stream for c in comms]
    for comm, gradient, stream in zip(comms, gradients, streams):
        ready = comm.default_stream.record()
        stream.wait(ready)
        comm.allreduce(gradient, gradient, stream=stream)
        comm.advance(COMPUTE)
    return comms[0].elapsed


print(f"one after the other {step(False) * 1e6:7.1f} us")
print(f"overlapping         {step(True) * 1e6:7.1f} us")

comms = rccl.Communicator.init_all("mi300x-8")
with rccl.group() as group:
    for comm in comms:
        comm.alltoall(np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32))
    print(f"an alltoall would take {group.simulate() * 1e6:.1f} us (nothing was launched)")
