"""RCCL-like collectives over a simulated fabric: real data, modelled time.

import rccl_py as rccl

comms = rccl.Communicator.init_all("mi300x-8")
with rccl.group():
    for comm, x, y in zip(comms, inputs, outputs):
        comm.allreduce(x, y, op=rccl.SUM)
comms[0].elapsed, comms[0].last_plan
"""

from . import dtypes, errors
from .collectives import COLLECTIVES
from .comm import Communicator, group, run
from .errors import RcclError
from .planner import Plan, Planner
from .reduce_ops import ReduceOp
from .topology import Topology, load, lower, machine_names

__version__ = "0.1.0"

SUM = ReduceOp.SUM
PROD = ReduceOp.PROD
MIN = ReduceOp.MIN
MAX = ReduceOp.MAX
AVG = ReduceOp.AVG

__all__ = [
    "AVG",
    "COLLECTIVES",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Communicator",
    "Plan",
    "Planner",
    "RcclError",
    "ReduceOp",
    "Topology",
    "dtypes",
    "errors",
    "group",
    "load",
    "lower",
    "machine_names",
    "run",
]
