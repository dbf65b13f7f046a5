"""Texts with units become SI numbers here, and numbers become texts; nowhere else.

Sizes follow rccl-tests: ``8``, ``64K``, ``64KB``, ``8GiB`` are all powers of 1024.
Bandwidths are bytes per second: ``800Gb/s`` (bits), ``46.5GB/s``, ``200Gbps``. Times are seconds.
"""

from __future__ import annotations

import re

from .errors import InvalidArgument

__all__ = [
    "format_bandwidth",
    "format_size",
    "format_time",
    "parse_bandwidth",
    "parse_size",
    "parse_time",
]

_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*"
_SIZE = re.compile(_NUMBER + r"([KMGTP]?)(i?B?)\s*", re.IGNORECASE)
_BANDWIDTH = re.compile(_NUMBER + r"([KMGT]?)(i?)([bB])(?:/s|ps)\s*")
_TIME = re.compile(_NUMBER + r"(s|ms|us|µs|ns)\s*")
LARGEST = 1 << 60
"""The largest size in bytes that is taken for one (1024 PiB)."""

_PREFIX = "KMGTP"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def _matched(pattern: re.Pattern[str], text: object, what: str, examples: str) -> re.Match[str]:
    found = pattern.fullmatch(str(text))
    if found is None:
        raise InvalidArgument(f"{what} {text!r} cannot be read: expected {examples}")
    return found


def parse_size(text: str | int) -> int:
    """Return the bytes that `text` names: ``"8"``, ``"64K"``, ``"1.5GiB"``, ``"8G"``, ``"64KB"``.

    Raises InvalidArgument when it is negative, has a fraction of a byte, or cannot be read.
    """
    if re.fullmatch(r"\s*-.*", str(text)):
        raise InvalidArgument(f"size {text!r} is negative: expected 0 or more bytes")
    found = _matched(_SIZE, text, "size", "bytes such as 8, 64K, 1.5GiB or 8G")
    prefix = found[2].upper()
    factor = 1024 ** (_PREFIX.index(prefix) + 1) if prefix else 1
    # Whole numbers stay integers: a float would round sizes above 2**53.
    size = int(found[1]) * factor if found[1].isdigit() else float(found[1]) * factor
    if not 0 <= size <= LARGEST:
        raise InvalidArgument(f"size {text!r} is beyond all memory: expected at most 1024P")
    if size != int(size):
        raise InvalidArgument(f"size {text!r} is {size} bytes: expected a whole number of bytes")
    return int(size)


def parse_bandwidth(text: str | float) -> float:
    """Return the bytes per second that `text` names: ``"800Gb/s"`` is 1e11, ``"46.5GB/s"``."""
    found = _matched(_BANDWIDTH, text, "bandwidth", "a text such as 800Gb/s or 46.5GB/s")
    if float(found[1]) > 1e12:
        raise InvalidArgument(f"bandwidth {text!r} is beyond any link")
    base = 1024 if found[3] else 1000
    factor = float(base ** (_PREFIX.index(found[2].upper()) + 1)) if found[2] else 1.0
    return float(found[1]) * factor / (1.0 if found[4] == "B" else 8.0)


def parse_time(text: str | float) -> float:
    """Return the seconds that `text` names: ``"2us"``, ``"150 ns"``, ``"0.5s"``."""
    found = _matched(_TIME, text, "time", "a text such as 2us, 150ns or 0.5s")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > 3600:
        raise InvalidArgument(f"time {text!r} is above an hour: no latency is")
    return seconds


def format_size(size: float) -> str:
    """Return `size` bytes as people write it: 1048576 -> ``"1M"``, 1000 -> ``"1000"``."""
    for power in range(5, 0, -1):
        unit = 1024**power
        if size >= unit and size % unit == 0:
            return f"{int(size // unit)}{_PREFIX[power - 1]}"
    return f"{size:g}" if size != int(size) else str(int(size))


def format_bandwidth(rate: float) -> str:
    """Return `rate` bytes per second as GB/s or TB/s: 4.65e10 -> ``"46.5 GB/s"``."""
    if rate >= 9.9995e12:
        return f"{rate / 1e12:.4g} TB/s"
    return f"{rate / 1e9:.5g} GB/s"


def format_time(seconds: float) -> str:
    """Return `seconds` in the unit that suits: 1.28e-05 -> ``"12.8 us"``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"
