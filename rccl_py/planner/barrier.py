"""What a barrier takes: the quickest exchange of nothing in which every rank hears of every other.

Owns the choice among allgathers of no bytes. NCCL_ALGO and NCCL_PROTO say how data moves and do
not bind it: a barrier moves none. Knows no communicator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..algorithms import Recipe, algorithms_of
from ..algorithms.shapes import double_binary_tree, identity_order
from ..fabric import Fabric
from ..links import PROTOCOLS
from ..timing import Loads, profile
from .machine import fabric_for

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["Barrier", "plan_barrier"]

_FORMS = ("dissemination", "direct")
_ROWS = 1 << 16  # of a form that is tried besides dissemination


@dataclass(frozen=True, slots=True)
class Barrier:
    """How a barrier goes: an allgather of no bytes, by a protocol, in rounds; s from launch to end.

    All ranks are taken to come at once.
    """

    algorithm: str
    protocol: str
    rounds: int
    seconds: float


def plan_barrier(fabric: Fabric | Topology | str | Path) -> Barrier:
    """Return the quickest barrier of all ranks of `fabric`, or of a machine's name or file.

    In rounds of distance 1, 2, 4, ... (dissemination) or, where ranks are few, all to all at once.
    """
    fabric = fabric_for(fabric, "plan_barrier")
    n = fabric.nranks
    one = np.ones(1, dtype=np.int32)
    recipe = Recipe(n, 0, identity_order(n), one, double_binary_tree(n))
    loads, found = Loads(fabric), []
    for row in algorithms_of("allgather"):
        if row.name not in _FORMS or (row.name != _FORMS[0] and row.rows(n, n) > _ROWS):
            continue
        made = profile(row.build(recipe), fabric, loads)
        for protocol in row.protocols:
            seconds = float(made.seconds(0.0, PROTOCOLS[protocol]))
            found.append(Barrier(row.name, protocol, int(made.steps.sum()), seconds))
    return min(found, key=lambda barrier: barrier.seconds)
