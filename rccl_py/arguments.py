"""Checks of arguments people pass: whole numbers in a range, finite numbers, texts.

Owns the refusals, so that a wrong type is one InvalidArgument and not an error from deep inside.
"""

from __future__ import annotations

import math
import re
from numbers import Integral, Real

from .errors import InvalidArgument

__all__ = ["finite", "numbers", "text", "whole"]


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


def numbers(value: str, what: str) -> list[int]:
    """Return the whole numbers a list such as ``"0-3,8,11-9"`` names, in its order."""
    found: list[int] = []
    for part in text(value, what).replace(" ", "").split(","):
        run = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if run is None:
            raise InvalidArgument(f"{what} {part[:40]!r}: a list such as 0-3,8 was expected")
        first, last = int(run[1]), int(run[2] or run[1])
        if abs(last - first) + len(found) > 1 << 24:
            raise InvalidArgument(f"{what} {part!r}: more than {1 << 24} numbers")
        step = 1 if last >= first else -1
        found += range(first, last + step, step)
    return found
