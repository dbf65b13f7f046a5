"""Checks of arguments people pass: whole numbers in a range, finite numbers, texts.

Owns the refusals, so that a wrong type is one InvalidArgument and not an error from deep inside.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

from .errors import InvalidArgument

__all__ = ["finite", "text", "whole"]


def whole(value: object, what: str, low: int, high: int) -> int:
    """Return `value` as an int in low..high; NumPy integers are whole numbers, bools are not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgument(f"{what} {value!r} is a {type(value).__name__}: a whole number from "
                              f"{low} to {high} was expected")  # fmt: skip
    if not low <= int(value) <= high:
        raise InvalidArgument(f"{what} {int(value)}: expected {low} to {high}")
    return int(value)


def finite(value: object, what: str, above: float, most: float) -> float:
    """Return `value` as a float above `above` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgument(
            f"{what} {value!r} is a {type(value).__name__}: a number was expected"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not above < number <= most:
        if above == -1e-300:
            raise InvalidArgument(f"{what} {number:g}: expected 0 or more, at most {most:g}")
        raise InvalidArgument(f"{what} {number:g}: expected above {above:g}, at most {most:g}")
    return number


def text(value: object, what: str) -> str:
    """Return `value` if it is a text."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} {value!r} is a {type(value).__name__}: a text was expected")
    return value
