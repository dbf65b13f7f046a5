"""Files of counts: how many bytes every rank has for every other, as CSV or JSON.

Owns the two forms and what is said of broken ones (file, line, column). Knows no machine.

    # one line a sender                {"counts": [[0, 4096], [65536, 0]]}
    0, 4K
    65536, 0
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import FormatError, InvalidArgument
from ..fabric import I64
from ..units import parse_size
from .text import clean, json_of

__all__ = ["read_counts"]

_FILE_LIMIT = 64 << 20  # bytes; 2,048 ranks with 15 characters a part
_TOTAL_LIMIT = 1 << 60  # bytes of one exchange: sums of rows and columns stay within int64
_DIGITS = 19  # of a whole number below that


def read_counts(path: str | Path) -> I64:
    """Return the counts of a file, int64[n, n] B: row i, column j is what rank i has for rank j.

    A file that opens with a bracket is JSON: the rows, or an object that has them as "counts".
    Any other is CSV, or columns between blanks: a line a sender, lines that begin with # left
    out; numbers may have a unit (4K, 1.5MiB).

    Raises FormatError where it cannot be read, is not square, or a part is no whole number of
    bytes >= 0.
    """
    file = Path(path)
    text = _text(file)
    rows = _json_rows(text, file) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text, file)
    if not rows:
        raise FormatError(f"{file}: no counts: expected a line for each rank")
    if sum(map(sum, rows)) > _TOTAL_LIMIT:
        raise FormatError(f"{file}: the parts add up to more than {_TOTAL_LIMIT} bytes")
    return np.array(rows, dtype=np.int64)


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:  # also a pipe: read no more than the limit
            data = opened.read(_FILE_LIMIT + 1)
    except FileNotFoundError:
        raise FormatError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{file}: cannot be read: {reason}") from None
    if len(data) > _FILE_LIMIT:
        raise FormatError(f"{file}: more than {_FILE_LIMIT} bytes are no counts")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{file}: byte {error.start} is no UTF-8: expected CSV or JSON as plain text"
        ) from None


def _square(found: int, first: int, where: str) -> None:
    if found != first:
        raise FormatError(f"{where}: {found} parts, {first} ranks: expected one part for each rank")


# ---- CSV ------------------------------------------------------------------------------------


def _csv_rows(text: str, file: Path) -> list[list[int]]:
    lines = [(k, line.strip()) for k, line in enumerate(text.splitlines(), 1)]
    told = [(k, line) for k, line in lines if line and not line.startswith("#")]
    rows = []
    for number, line in told:
        cells = line.split(",") if "," in line else line.replace(";", " ").split()
        _square(len(cells), len(told), f"{file}:{number}")
        rows.append([_part(cell.strip(), file, number, k) for k, cell in enumerate(cells, 1)])
    return rows


def _part(cell: str, file: Path, line: int, column: int) -> int:
    if cell.isascii() and cell.isdecimal() and len(cell) <= _DIGITS:
        return int(cell)
    try:
        if len(cell) > 2 * _DIGITS:  # more digits than Python makes a number of
            raise InvalidArgument("too long for a number")
        return parse_size(cell)
    except InvalidArgument:
        raise FormatError(
            f"{file}:{line}: part {column} is {clean(cell)}: expected a whole number of bytes, "
            "such as 4096, 64K or 1.5MiB"
        ) from None


# ---- JSON -----------------------------------------------------------------------------------


def _json_rows(text: str, file: Path) -> list[list[int]]:
    found = json_of(text.encode(), file)
    if isinstance(found, dict):
        if "counts" not in found:
            raise FormatError(f'{file}: an object without "counts", the rows of bytes')
        found = found["counts"]
    if not isinstance(found, list):
        raise FormatError(f"{file}: the counts are {clean(found)}: expected a list of rows")
    return [_json_row(row, len(found), file, i) for i, row in enumerate(found)]


def _json_row(row: object, n: int, file: Path, i: int) -> list[int]:
    where = f"{file}: row {i} (of rank {i})"
    if not isinstance(row, Sequence) or isinstance(row, str):
        raise FormatError(f"{where} is {clean(row)}: expected a list of bytes")
    _square(len(row), n, where)
    for j, part in enumerate(row):
        whole = isinstance(part, int) and not isinstance(part, bool)
        if not whole or not 0 <= part <= _TOTAL_LIMIT:
            raise FormatError(
                f"{where}: the part for rank {j} is {clean(part)}: expected a whole number of bytes"
            )
    return list(row)
