"""Running NumPy without its warnings of overflow and of operations on NaN.

Owns how that is asked for once instead of at every call. A reduction gives what the hardware
gives; warnings of it are the caller's business, at its own arithmetic.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["quiet_runner"]


def quiet_runner() -> Callable[..., Any]:
    """Return a function that calls ``function(*arguments)`` with NumPy's warnings off.

    From version 2 on NumPy keeps them in a context variable: to enter a context made once costs a
    tenth of ``numpy.errstate``, which is as much as a small reduction.
    """
    if int(np.__version__.split(".")[0]) >= 2:
        context = contextvars.copy_context()
        context.run(np.seterr, all="ignore")
        return context.run

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return run
