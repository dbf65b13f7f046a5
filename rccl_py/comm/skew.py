"""Alltoallv so unequal that relays pay: its plan, kept for the next call, and its run.

Owns which calls are planned. The planning is rccl_py.planner.flows', loaded when one first is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..algorithms.uneven import deliver
from .call import Call, checked_dtype

if TYPE_CHECKING:
    from ..fabric import Fabric
    from ..planner.flows import UnevenPlan

__all__ = ["Skewed", "relay_parts"]

_LARGE = 1 << 20  # B the busiest rank sends or gets from which on a call is planned (assumed)
_MOST = 64  # ranks up to which it is: planning takes a second there
_KEPT = 16  # plans; a training step that repeats its counts repeats the plan


class Skewed:
    """The plans of one communicator's alltoallv calls. on: whether any is made."""

    def __init__(self, fabric: Fabric, *, on: bool) -> None:
        self.fabric, self.on = fabric, on and 2 < fabric.nranks <= _MOST
        self._plans: dict[bytes, UnevenPlan | None] = {}

    def plan(self, calls: Sequence[Call]) -> UnevenPlan | None:
        """Return the plan of an alltoallv of all ranks' calls; None where all goes direct."""
        if not self.on or calls[0].signature.collective != "alltoallv":
            return None
        sends = [call.sends[0] for call in calls if call.sends is not None]
        counts = np.array(sends, dtype=np.int64)
        counts *= checked_dtype(calls[0].signature.dtype).itemsize
        away = counts - np.diag(np.diag(counts))
        if max(away.sum(axis=0).max(), away.sum(axis=1).max()) < _LARGE:
            return None
        key = counts.tobytes()
        if key not in self._plans:
            from ..planner.flows import plan_alltoallv

            if len(self._plans) >= _KEPT:
                self._plans.pop(next(iter(self._plans)))
            found = plan_alltoallv(self.fabric, counts)
            self._plans[key] = None if found.algorithm == "direct" else found
        return self._plans[key]


def relay_parts(
    plan: UnevenPlan, held: Sequence[Sequence[npt.NDArray[np.generic]]]
) -> list[list[npt.NDArray[np.uint8]]]:
    """Return the bytes rank j gets from i, found[j][i], of held[i][j], by the plan's rounds."""
    parts = [[np.ascontiguousarray(part).view(np.uint8) for part in row] for row in held]
    return deliver(plan.exchange, parts)
