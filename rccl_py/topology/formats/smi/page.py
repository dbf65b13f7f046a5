"""A pasted text as clean lines, and the square tables in it.

Owns what a paste adds to a command's output (colours, quote marks, fences, prompts), the limits on
its size, and the errors of a table that is ragged or cut short. Knows no meaning of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import FormatError

__all__ = ["Grid", "Page", "Row", "brief", "cleaned", "read_grid", "read_page"]

_SIZE_LIMIT = 2 << 20  # bytes; a bug report with logs is some hundreds of kilobytes
_DEVICE_LIMIT = 256  # assumed: one host shows tens of GPUs and NICs, virtual functions included

_ESCAPE = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]|\x1b\([A-Z]")
_CARET = re.compile(r"\^\[\[[0-9;]{0,16}m")  # an escape that a terminal printed
_QUOTE = re.compile(r"^(?:[ \t]{0,8}>)+ ?")
_HOST = re.compile(r"^(?!NIC\d)[\w.\-\[\],<>]{1,80}: ?(?=[ \t]*(?:GPU|NIC|mlx)\d)")  # pdsh, mpirun


@dataclass(frozen=True, slots=True)
class Page:
    """A text's lines without what pasting added; line n of the file is lines[n - 1]."""

    path: Path
    lines: tuple[str, ...]

    def error(self, line: int, message: str) -> FormatError:
        """Return a FormatError that opens with the file and line."""
        return FormatError(f"{self.path}:{line}: {message}")


def brief(text: str) -> str:
    """Return `text` quoted, printable and short."""
    return repr("".join(c if c.isprintable() else "?" for c in text[:24]))


def cleaned(line: str) -> str:
    """Return one line without colours, quote marks, a host's name and table bars."""
    line = _CARET.sub("", _ESCAPE.sub("", line))
    line = _HOST.sub("", _QUOTE.sub("", line)).replace("\xa0", " ")
    bare = line.strip()
    if bare.startswith("|") and bare.endswith("|"):
        # A table of Markdown: its rule is dropped, its bars are blanks.
        line = "" if set(bare) <= set("|-: ") else bare.replace("|", " ").replace("**", "")
    return line


def read_page(path: Path) -> Page:
    """Return the cleaned lines of the file at `path`. Raises FormatError."""
    try:
        if not path.is_file():
            raise FormatError(f"{path}: is no regular file: a text file was expected")
        size = path.stat().st_size
        if size > _SIZE_LIMIT:
            raise FormatError(
                f"{path}: {size} bytes is no pasted topology (limit {_SIZE_LIMIT}): "
                "keep the tables only"
            )
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read: {reason}") from None
    return Page(path, tuple(cleaned(line) for line in text.split("\n")))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: where it stands, its cells, and the words after them."""

    line: int
    cells: tuple[str, ...]
    rest: tuple[str, ...] = ()


@dataclass(slots=True)
class Grid:
    """A square table: the names of its columns and, by the same names, its rows."""

    what: str
    line: int
    columns: tuple[str, ...]
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Return the line of the last row."""
        return max((row.line for row in self.rows.values()), default=self.line)


def check_columns(page: Page, what: str, line: int, columns: Sequence[str]) -> None:
    """Raise FormatError for too many columns, or a name given twice."""
    if len(columns) > _DEVICE_LIMIT:
        raise page.error(line, f"{what} has {len(columns)} columns (limit {_DEVICE_LIMIT})")
    seen: set[str] = set()
    for name in columns:
        if name in seen:
            raise page.error(line, f"{what} has two columns {brief(name)}: paste one matrix only")
        seen.add(name)


def read_grid(page: Page, what: str, line: int, columns: Sequence[str], required: Collection[str],
              is_cell: Callable[[str], bool]) -> Grid:  # fmt: skip
    """Return the table whose head is on `line`.

    what: its name in errors; required: the rows that must be there; is_cell: whether a word can
    be a cell. Raises FormatError for rows that are ragged, given twice or missing.
    """
    check_columns(page, what, line, columns)
    grid, names = Grid(what, line, tuple(columns)), set(columns)
    for number in range(line + 1, len(page.lines) + 1):
        words = page.lines[number - 1].split()
        if not words and len(grid.rows) < len(columns):
            continue  # some pastes have a blank line after every row
        if not words or words[0] not in names or (len(words) > 1 and words[1] in names):
            break
        if words[0] in grid.rows:
            raise page.error(number, f"{what} has two rows {brief(words[0])}")
        grid.rows[words[0]] = _row(page, grid, number, words, is_cell)
    missing = [name for name in columns if name in required and name not in grid.rows]
    if missing:
        raise page.error(
            grid.end,
            f"{what} ends before its row {brief(missing[0])} ({len(required) - len(missing)} of "
            f"{len(required)} rows found): the text is cut short, paste it whole",
        )
    return grid


def _row(page: Page, grid: Grid, line: int, words: list[str],
         is_cell: Callable[[str], bool]) -> Row:  # fmt: skip
    name, cells, rest = words[0], words[1 : len(grid.columns) + 1], words[len(grid.columns) + 1 :]
    for k, cell in enumerate(cells):
        if not is_cell(cell):
            if cell[0].isalpha() and cell != "N/A":
                raise page.error(
                    line,
                    f"row {brief(name)}, column {brief(grid.columns[k])} of {grid.what}: "
                    f"{brief(cell)} is no known cell",
                )
            raise _ragged(page, grid, line, name, k)
    if len(cells) < len(grid.columns):
        raise _ragged(page, grid, line, name, len(cells))
    return Row(line, tuple(cells), tuple(rest))


def _ragged(page: Page, grid: Grid, line: int, name: str, count: int) -> FormatError:
    return page.error(
        line,
        f"row {brief(name)} of {grid.what} has {count} cells, its head on line {grid.line} has "
        f"{len(grid.columns)} columns: a wrapped or cut line? paste it whole",
    )
