"""Write an allreduce chunk by chunk, see it proved, priced, run, and carried to MSCCL XML.

python examples/custom_schedule.py
"""

import numpy as np

import rccl_py as rccl
from rccl_py.errors import RcclError

N = 8
machine = rccl.lower(rccl.load("mi300x-8"))


def halving(n: int) -> rccl.Custom:
    """Return an allreduce by halves: with a partner 4, 2, 1 ranks off, then back."""
    program = rccl.Program("allreduce", n, chunks=n, in_place=True)
    distances = [n >> k for k in range(1, n.bit_length())]
    for d in distances:  # of 2d chunks, each adds up the d that its own number lies in
        for r in range(n):
            own = r & ~(d - 1)
            program.chunk(r, "input", own, d).reduce(program.chunk(r ^ d, "input", own, d))
    for d in reversed(distances):  # and hands them back
        for r in range(n):
            own = r & ~(d - 1)
            program.chunk(r, "input", own, d).copy(r ^ d, "input", own)
    return program.custom("my-halving")


mine = halving(N)
steps = sum(phase.steps for phase in mine.schedule.phases())
print(f"{mine}: proved, {steps} steps")

plan = rccl.Planner(machine, custom=[mine]).plan("allreduce", 64 << 10)
for candidate in plan.candidates:
    if candidate.algorithm == mine.name:
        print(f"64 KiB by {candidate.protocol}: {candidate.seconds * 1e6:.2f} us")

config = rccl.Config(schedules=[mine])
comms = rccl.Communicator.init_all("mi300x-8", config=config)
inputs = np.arange(N * 1000, dtype=np.float32).reshape(N, 1000)
outputs = np.empty_like(inputs)
with rccl.group():
    for comm, x, y in zip(comms, inputs, outputs):
        comm.allreduce(x, y)
print(comms[0].last_plan.algorithm, "ran, right:", bool((outputs == inputs.sum(axis=0)).all()))

text = rccl.msccl_xml(mine.schedule, name=mine.name)
print(f"MSCCL XML: {len(text.splitlines())} lines, {text.splitlines()[0][:62]}...")

wrong = rccl.Program("allreduce", 2)
total = wrong.chunk(0, "input").copy(0, "output").reduce(wrong.chunk(1, "input"))
try:
    wrong.custom("one-sided")
except RcclError as error:
    print("refused:", str(error).partition(": ")[2])
