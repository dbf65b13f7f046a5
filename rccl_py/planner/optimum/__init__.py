"""The exact optimum of each collective on a graph: what no schedule can beat, and the cut why.

Knows graphs, not fabrics, algorithms or sizes: results are rates, in B/s of rccl-tests' algbw.
"""

from .allgather import allgather, reduce_scatter
from .allreduce import Allreduce, allreduce
from .alltoall import Alltoall, alltoall
from .cuts import Optimum
from .rooted import broadcast, gather, reduce, scatter
from .words import words

__all__ = [
    "Allreduce",
    "Alltoall",
    "Optimum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "words",
]
