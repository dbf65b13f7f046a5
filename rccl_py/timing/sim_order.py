"""What comes before what on the way of every message, where links pause those that feed them.

Owns which pausing links can ever hold anyone, and the columns of rccl_py.timing.sim_state that
say so. Knows no rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import BEYOND, F64
from .sim_cut import Cut
from .stages import I8, I64

__all__ = ["NO_ORDER", "Order", "along"]

Bools = npt.NDArray[np.bool_]

_NONE = np.zeros(0, dtype=np.int8)
NO_ORDER = (_NONE, _NONE, _NONE, _NONE)
"""The columns of a simulation in which no link pauses."""
_SAME = 1 - 1e-12  # s that differ by less than this part are the same


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """depth : int8[k], pauses : bool[k], as of stages.Uses. alone : int8[m], how far on the way of
    a message what it takes longest alone is, the first of equals.
    """

    depth: I8
    pauses: Bools
    alone: I8

    def feeding(self, resource: I64, row: I64, crowdable: Bools) -> Bools:
        """Return by resource whether it can hold back what it carries: bool[resources].

        It pauses, several messages cross it, and one of them can be held further on.
        """
        found = np.zeros(len(crowdable), dtype=bool)
        several = np.bincount(resource, minlength=len(found)) > 1
        held = np.where(crowdable[resource], self.depth, 0)
        reach = self.alone.copy()
        np.maximum.at(reach, row, held)
        for depth in range(BEYOND - 1, 0, -1):
            here = self.pauses & (self.depth == depth) & several[resource]
            here &= reach[row] > depth
            found[resource[here]] = True
            on = found[resource] & (self.depth == depth)
            np.maximum.at(reach, row[on], np.int8(depth))
        return found

    def columns(
        self, flows: I64, kept: Bools, resource: npt.NDArray[np.integer], count: int
    ) -> tuple[I8, I8, I8, I8]:
        """Return State.depth, .reach, .reach_alone and .pauses.

        flows : int64[flows], messages. kept : bool[k], uses; resource : those' resources, of which
        there are `count`.
        """
        depth = self.depth[kept]
        pauses = np.zeros(count, dtype=np.int8)
        which = self.pauses[kept]
        pauses[resource[which]] = depth[which]
        return depth, np.zeros(len(flows), dtype=np.int8), self.alone[flows], pauses


def along(cuts: Sequence[Cut], row: I64, seconds: F64, alone: F64) -> Order | None:
    """Return the order of all uses of the cuts; None where no link pauses.

    row : int64[k], the message of each use. seconds : float64[k]. alone : float64[m].
    """
    if not any(c.pauses is not None and c.pauses.any() for c in cuts):
        return None
    depth = np.concatenate([c.depth for c in cuts if c.depth is not None])
    pauses = np.concatenate([c.pauses for c in cuts if c.pauses is not None])
    longest = np.flatnonzero(seconds >= alone[row] * _SAME)
    first = np.full(len(alone), BEYOND, dtype=np.int8)
    np.minimum.at(first, row[longest], depth[longest])
    return Order(depth, pauses, first)
