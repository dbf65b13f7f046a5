"""Two communicators at once, and a link that loses half, goes down, and comes back in mid-flight.

python examples/contention.py
"""

import rccl_py as rccl
from rccl_py.timing import simulate_jobs

machine = rccl.load("h100-8", nodes=2)
fabric = rccl.lower(machine)  # 16 ranks; rank 8 is the first of node 1

# Gradients are reduced over all GPUs while half of each node exchanges an expert layer's tokens.
experts = [0, 1, 2, 3, 8, 9, 10, 11]
gradients = rccl.Planner(fabric).plan("allreduce", 256 << 20)
tokens = rccl.Planner(rccl.lower(machine, experts)).plan("alltoall", 4 << 20)


def told(title, jobs, changes=()):
    lines = simulate_jobs(jobs, fabric, changes=changes)
    ends = [f"{line.seconds * 1e6:8.1f}" for line in lines]
    print(f"{title:<32} allreduce ends at {ends[0]} us, alltoall at {ends[1]} us")
    return lines


told("one after the other", [gradients.job(), tokens.job(experts, after=(0,))])
both = [gradients.job(), tokens.job(experts)]
waited = told("at once", both)[0].queued.sum()  # s of all messages of all jobs
print(f"  messages wait for each other {waited * 1e3:.0f} ms, added up")

cable = "node0: nic0 -> leaf0"
told(f"{cable} at half", both, [(200e-6, cable, 0.5)])
told(f"{cable} down, 2 ms", both, [(200e-6, cable, 0.0), (2200e-6, cable, 1.0)])
try:
    told("and for good", both, [(200e-6, cable, 0.0)])
except rccl.errors.FabricError as error:
    print(str(error).partition(";")[0])
