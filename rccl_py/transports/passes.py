"""Passes over memory: what a reduction or copy is in NumPy, and a list of them done in order.

Owns the form in which both planes run rows. Knows no schedule and no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy.typing as npt

from ..reduce_ops import Arithmetic

__all__ = ["Array", "Work", "apply", "combiner"]

Array = npt.NDArray[Any]
Combine = Callable[..., Any]
Work = tuple[Combine | None, Any, Any, Any]
"""(function, kept, taken, into): ``function(kept, taken, out=into)``; None: ``into := taken``."""


def combiner(arithmetic: Arithmetic, reduces: bool, travels: tuple[bool, bool]) -> Combine | None:
    """Return the function of a pass; travels: whether kept and taken are read as transfers are."""
    ufunc = arithmetic.ufunc
    if not arithmetic.rounds or travels == (False, False):
        return ufunc if reduces else None
    travel = arithmetic.travel
    if not reduces:

        def copy(_kept: Array, taken: Array, out: Array) -> None:
            out[...] = travel(taken)

        return copy
    keeps, takes = (travel if t else _itself for t in travels)

    def reduce(kept: Array, taken: Array, out: Array) -> None:
        ufunc(keeps(kept), takes(taken), out=out)

    return reduce


def _itself(array: Array) -> Array:
    return array


def apply(works: Iterable[Work]) -> None:
    """Do passes in order."""
    for function, kept, taken, into in works:
        if function is None:
            into[...] = taken
        else:
            function(kept, taken, out=into)
