"""What the readers of other tools' files share: their text, units, limits and the links they name.

Owns the limits of a foreign file, its units (bits or bytes, decimal or binary, picoseconds to
weeks) and the link type that stands for a bare pair of bandwidth and latency. Knows no format.
Quantities outside what any link has are refused, never clamped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import networkx as nx

from ...errors import FormatError
from ...links import LinkType
from ..build import add_link

__all__ = [
    "MAX_EDGES",
    "MAX_GPUS",
    "TEXT_LIMIT",
    "bare_link",
    "checked_rate",
    "checked_time",
    "clean",
    "join",
    "parse_rate",
    "parse_seconds",
    "read_text",
    "shown",
    "without",
]

TEXT_LIMIT = 8 << 20  # bytes
MAX_GPUS = 4096  # accelerators of one graph; larger machines are nodes joined by a network
MAX_EDGES = 200_000  # directed links of one graph, about 200 MB of networkx

_LOWEST, _HIGHEST = 1.0, 1e15  # B/s: a link below or above is a wrong unit
_LONGEST = 3600.0  # s: no hop takes an hour
_NUMBER = r"\s*([0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]{1,18})\s*"
_RATE = re.compile(_NUMBER + r"(?:([kKMGTPE]?)(i?)([bB])(?:/s|ps|yte/s|ytes/s|it/s|its/s))?\s*")
_TIME = re.compile(_NUMBER + r"(ps|ns|us|µs|μs|ms|s|m|min|h|d|w)?\s*")
# Units a second has, and seconds a unit has: dividing keeps 1000 ns at exactly 1e-6 s.
_PARTS = {"ps": 1e12, "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "ms": 1e3, "s": 1.0}
_WHOLES = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def clean(text: str) -> str:
    """Return `text` on one printable line: anything else in it becomes "?"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def shown(value: object) -> str:
    """Return `value` as a message quotes it: short and printable."""
    text = repr(value)
    return clean(text if len(text) <= 42 else text[:40] + "…")


def without(text: str, opening: str, closing: str) -> str:
    """Return `text` with the lines, but nothing else, of what stands between two marks.

    A mark that is not closed takes the rest. One pass, however often a mark is opened.
    """
    kept, at = [], 0
    while (start := text.find(opening, at)) >= 0:
        kept.append(text[at:start])
        end = text.find(closing, start + len(opening))
        end = len(text) if end < 0 else end + len(closing)
        kept.append("\n" * text.count("\n", start, end))
        at = end
    return "".join([*kept, text[at:]])


def read_text(path: Path, what: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text of the file at `path`, which should be `what`.

    Raises FormatError when it cannot be read, is no regular file, is longer than `limit` bytes or
    is not UTF-8.
    """
    try:
        if not path.exists():
            raise FormatError(f"{path}: no such file")
        if path.is_dir():
            raise FormatError(f"{path}: is a folder: {what} was expected")
        if not path.is_file():
            raise FormatError(f"{path}: is not a regular file: {what} was expected")
        size = path.stat().st_size
        if size > limit:
            raise FormatError(f"{path}: {size} bytes is no {what.split(' ', 1)[-1]} "
                              f"(limit {limit})")  # fmt: skip
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text: byte {error.start} is not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read: {reason}") from None


def checked_rate(rate: float) -> float:
    """Return `rate` (B/s) when a link can have it. Raises ValueError with what is wrong."""
    if not math.isfinite(rate) or rate <= 0:
        raise ValueError(f"a bandwidth above 0 was expected, found {rate:g}")
    if not _LOWEST <= rate <= _HIGHEST:
        raise ValueError(f"{rate:g} B/s is beyond any link: is the unit right?")
    return rate


def checked_time(seconds: float) -> float:
    """Return `seconds` when a hop can take so long. Raises ValueError with what is wrong."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a latency of 0 or more was expected, found {seconds:g}")
    if seconds > _LONGEST:
        raise ValueError(f"{seconds:g} s is beyond any link: is the unit right?")
    return seconds


def parse_rate(text: str, bare: float | None = 1.0) -> float:
    """Return the B/s that `text` names: ``200Gbps``, ``125MBps``, ``1.5GiB/s``, ``10Mb/s``.

    bare: B/s a number without a unit counts (0 needs none); None where a unit must be given.
    Raises ValueError with what is wrong.
    """
    found = _RATE.fullmatch(text)
    if found is None or (bare is None and not found[4]):
        raise ValueError(f"{shown(text)} is no bandwidth: expected a text such as 200Gbps or "
                         "25GB/s")  # fmt: skip
    if not found[4]:
        return checked_rate(float(found[1]) * (bare or 1.0))
    base = 1024.0 if found[3] else 1000.0
    factor = base ** ("KMGTPE".index(found[2].upper()) + 1) if found[2] else 1.0
    return checked_rate(float(found[1]) * factor / (1.0 if found[4] == "B" else 8.0))


def parse_seconds(text: str, bare: float | None = 1.0) -> float:
    """Return the seconds that `text` names: ``0.0005ms``, ``50us``, ``1.5 ns``.

    bare: seconds a number without a unit counts; None where a unit must be given.
    Raises ValueError with what is wrong.
    """
    found = _TIME.fullmatch(text)
    if found is None or (bare is None and not found[2] and float(found[1]) != 0):
        raise ValueError(f"{shown(text)} is no time: expected a text such as 2us or 0.0005ms")
    value, unit = float(found[1]), found[2]
    if not unit:
        return checked_time(value * (bare or 1.0))
    return checked_time(value / _PARTS[unit] if unit in _PARTS else value * _WHOLES[unit])


def bare_link(name: str, bandwidth: float, latency: float, source: str,
              medium: str = "ualink") -> LinkType:  # fmt: skip
    """Return the link type of a file that gives no more than `bandwidth` (B/s) and `latency` (s).

    Every protocol costs the same latency, a message costs the sender nothing and all of the
    bandwidth is usable: such files model no more. The medium is one that relays (as UALink does).
    """
    return LinkType(name, medium, bandwidth, 1.0, (latency, latency, latency), 0.0, source)


def join(graph: nx.DiGraph, pairs: Iterable[tuple[str, str]], link: LinkType,
         lanes: float = 1) -> None:  # fmt: skip
    """Join every pair both ways by `lanes` of `link`."""
    for a, b in pairs:
        add_link(graph, a, b, link, lanes)
