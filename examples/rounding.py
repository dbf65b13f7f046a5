"""How ring, tree and direct round bfloat16 sums, and what a wider accumulator changes.

python examples/rounding.py
"""

import ml_dtypes
import numpy as np

import rccl_py as rccl

N, COUNT = 8, 10_000
rng = np.random.default_rng(0)
inputs = [rng.normal(size=COUNT).astype(ml_dtypes.bfloat16) for _ in range(N)]
exact = sum(x.astype(np.float64) for x in inputs)
once = exact.astype(ml_dtypes.bfloat16).astype(np.float64)  # the best bfloat16 can say

print("mean error over that of rounding once")
for algo in ("ring", "tree", "direct-oneshot", "direct-twoshot"):
    for accumulate in (None, "float"):
        comms = rccl.Communicator.init_all("mi300x-8", algo=algo)
        outputs = [np.empty(COUNT, ml_dtypes.bfloat16) for _ in comms]
        for comm, x, y in zip(comms, inputs, outputs):
            comm.allreduce(x, y, accumulate=accumulate)
        error = np.abs(outputs[0].astype(np.float64) - exact).mean() / np.abs(once - exact).mean()
        print(f"{algo:<16} sums held in {accumulate or 'bfloat16':<9} {error:5.2f}")
