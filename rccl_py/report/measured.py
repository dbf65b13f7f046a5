"""Read tables of measured collectives: a header that says what was run, and a row a size.

Owns the format (bench/measured/README.md) and what a table says of itself. Knows no machine, no
prediction and no error of one. Nothing of a bad file is guessed: the message names file and line.

    # gpus: 8                     header: key, colon, value; the # may be left out
    # nodes: 1
    # collective: all_reduce
    size_bytes,time_us            columns, then rows; others are optional
    1048576,34.2
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..collectives import collective_named
from ..errors import FormatError, InvalidArgument

__all__ = ["HALVES", "LAUNCHES", "NEEDED", "SEED", "Table", "drawn_halves", "read_folder",
           "read_table", "stratum", "table_from"]  # fmt: skip

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

NEEDED = ("gpus", "nodes", "collective")
"""Header keys without which a table cannot be predicted."""

LAUNCHES = ("eager", "graph", "serial", "framework")
"""How calls were started: each by itself, from a graph, all GPUs by one thread, by a framework."""

HALVES = ("a", "b")
"""The tables a model may be fitted on, and those it is reported on."""

SEED = 5
"""Of the draw of the halves."""

_COLUMNS = ("size_bytes", "time_us", "algbw_GBps", "busbw_GBps", "in_place")
_KEY = re.compile(r"#?\s*([A-Za-z][\w ]*?)\s*:\s*(.*)")
_GRADE = re.compile(r"(?:grade |; )([A-D][+-]?)(?![\w])")
_GRAPH = re.compile(r"-G [1-9]")
_SERIAL = re.compile(r"-g (?:[2-9]|1\d)")
_ALGO = re.compile(r"NCCL_ALGO=(\w+)")
_LARGEST = 10_000_000  # B of a file; the largest published table has 2.5 kB


@dataclass(frozen=True, eq=False)
class Table:
    """One measured run.

    name: of its file. header: what it says, by key. size: int64[rows], rccl-tests' bytes. time: s,
    float64[rows]. algbw, busbw: B/s, NaN where not given. in_place: bool[rows].
    """

    name: str
    path: str
    header: dict[str, str]
    collective: str
    gpus: int
    nodes: int
    size: I64
    time: F64
    algbw: F64
    busbw: F64
    in_place: npt.NDArray[np.bool_]

    @property
    def grade(self) -> str:
        """How far it can be trusted, A+ to D; "" where it does not say."""
        said = self.header.get("grade")
        found = _GRADE.search(self.header.get("trust", "")) if said is None else None
        return said if said is not None else found[1] if found else ""

    @property
    def grade_from(self) -> int:
        """The least size in bytes that the grade holds for."""
        return int(self.header.get("grade_from", 0))

    @property
    def launch(self) -> str:
        """One of LAUNCHES; where it does not say, read off the flags of the benchmark."""
        said = " ".join(self.header.get(key, "") for key in ("system", "benchmark", "library"))
        if "launch" in self.header:
            return self.header["launch"]
        if "torch" in said:
            return "framework"
        return "graph" if _GRAPH.search(said) else "serial" if _SERIAL.search(said) else "eager"

    @property
    def algo(self) -> str | None:
        """What NCCL_ALGO was set to, None where it was not."""
        found = _ALGO.search(self.header.get("library", ""))
        return self.header.get("algo", found[1] if found else None)

    @property
    def half(self) -> str:
        """One of HALVES, or "" for a table that nobody drew."""
        return self.header.get("fit", "")

    def best(self) -> tuple[I64, F64]:
        """Return each size once, rising, and the least time measured for it in s."""
        size, at = np.unique(self.size, return_inverse=True)
        best = np.full(len(size), np.inf)
        np.minimum.at(best, at, self.time)
        return size, best


def read_table(path: str | Path) -> Table:
    """Return the table in a file. Raises FormatError, with file and line, for a bad one."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise FormatError(f"{file}: cannot be read: it is no plain file")
        if file.stat().st_size > _LARGEST:
            raise FormatError(f"{file}: over {_LARGEST} B: a table has a few hundred rows")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{file}: is no UTF-8 text (byte {error.start})") from None
    return table_from(text, str(file))


def read_folder(path: str | Path) -> list[Table]:
    """Return the tables of a folder, by name. Raises FormatError where it holds none."""
    found = [file for file in sorted(Path(path).glob("*.csv")) if file.name != "index.csv"]
    if not found:
        raise FormatError(f"{path}: no *.csv there: a folder of measured tables was expected")
    return [read_table(file) for file in found]


def table_from(text: str, path: str) -> Table:
    """Return the table that `text` holds; `path` is what messages call it."""
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]
    header: dict[str, str] = {}
    columns, rest = None, iter(lines)
    for number, line in rest:
        columns = _columns(line, f"{path}:{number}")
        if columns is not None:
            break
        _read_key(line, header, f"{path}:{number}")
    if columns is None:
        raise FormatError(f"{path}: no line of column names: expected {','.join(_COLUMNS)}, of "
                          "which the first two are needed")  # fmt: skip
    rows = [_row(line, columns, f"{path}:{number}") for number, line in rest
            if line and not line.startswith("#")]  # fmt: skip
    if not rows:
        raise FormatError(f"{path}: no rows follow the column names")
    return _checked(path, header, np.array(rows, dtype=np.float64))


def _columns(line: str, where: str) -> list[str] | None:
    """Return the column names of a line that holds them, None for another line."""
    names = [name.strip() for name in line.lstrip("# ").split(",")]
    if "size_bytes" not in names or ":" in line:
        return None
    if "time_us" not in names:
        raise FormatError(f"{where}: columns {line[:80]!r} lack time_us")
    unknown = [n for n in names if n not in _COLUMNS]
    if unknown or len(set(names)) < len(names):
        raise FormatError(f"{where}: columns {line[:80]!r}: expected each of "
                          f"{', '.join(_COLUMNS)} at most once")  # fmt: skip
    return names


def _read_key(line: str, header: dict[str, str], where: str) -> None:
    """Put the key and value of a header's line into `header`; a comment is passed over."""
    found = _KEY.fullmatch(line)
    if found is not None:
        header[found[1]] = found[2].strip()
    elif line and not line.startswith("#"):
        raise FormatError(f"{where}: {line[:80]!r}: expected a header line such as '# gpus: 8', or "
                          f"the column names {','.join(_COLUMNS)}")  # fmt: skip


def _row(line: str, columns: list[str], where: str) -> tuple[float, ...]:
    """Return a row's values in the order of _COLUMNS, bandwidths NaN where not given."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(columns):
        raise FormatError(f"{where}: {len(cells)} cells, but there are {len(columns)} columns")
    found = dict.fromkeys(_COLUMNS, math.nan) | {"in_place": 0.0}
    for name, cell in zip(columns, cells):
        if not cell and name not in ("size_bytes", "time_us"):
            continue
        try:
            value = float(cell)
        except ValueError:
            raise FormatError(f"{where}: {name} {cell[:40]!r} is no number") from None
        if not math.isfinite(value) or value < 0 or (name == "time_us" and value == 0):
            what = "above 0" if name == "time_us" else "of 0 or more"
            raise FormatError(f"{where}: {name} {cell[:40]!r}: a number {what} was expected")
        found[name] = value
    if found["size_bytes"] != int(found["size_bytes"]) or found["size_bytes"] > 2**53:
        raise FormatError(f"{where}: size_bytes {cells[0][:40]!r}: whole bytes were expected")
    if found["in_place"] not in (0, 1):
        raise FormatError(f"{where}: in_place {found['in_place']:g}: expected 0 or 1")
    return tuple(found[name] for name in _COLUMNS)


def _whole(header: dict[str, str], key: str, path: str, least: int = 1) -> int:
    value = header[key]
    if not value.isdecimal() or not least <= int(value) <= 10**15:
        raise FormatError(
            f"{path}: {key}: {value[:40]!r}: a whole number from {least} was expected"
        )
    return int(value)


def _one_of(header: dict[str, str], key: str, known: Iterable[str], path: str) -> None:
    if key in header and header[key] not in known:
        raise FormatError(f"{path}: {key}: {header[key][:40]!r}: one of {', '.join(known)} was "
                          "expected")  # fmt: skip


def _checked(path: str, header: dict[str, str], rows: F64) -> Table:
    """Return the table; raise FormatError for a header that cannot be used."""
    missing = [key for key in NEEDED if key not in header]
    if missing:
        raise FormatError(f"{path}: the header lacks {', '.join(missing)}: write lines such as "
                          f"'# {missing[0]}: ...' above the column names")  # fmt: skip
    if "grade_from" in header:
        _whole(header, "grade_from", path, 0)
    _one_of(header, "launch", LAUNCHES, path)
    _one_of(header, "fit", HALVES, path)
    try:
        collective = collective_named(header["collective"]).name
    except InvalidArgument as error:
        raise FormatError(f"{path}: {error}") from None
    size, time, algbw, busbw, in_place = rows.T
    return Table(
        Path(path).stem,
        path,
        header,
        collective,
        _whole(header, "gpus", path),
        _whole(header, "nodes", path),
        size.astype(np.int64),
        time * 1e-6,
        algbw * 1e9,
        busbw * 1e9,
        in_place > 0,
    )


def stratum(table: Table) -> str:
    """Return what the halves are drawn within, which the header alone says."""
    trust = "grade A" if table.grade.startswith("A") else "other grades"
    hosts = "one host" if table.nodes == 1 else "several hosts"
    return f"{trust}, {table.header.get('machine', '')}, {hosts}, {table.collective}"


def drawn_halves(tables: Iterable[Table], seed: int = SEED) -> dict[str, str]:
    """Return the half of each table, by name: how the `fit` lines of bench/measured were drawn.

    Tables of a stratum are put in the order of the SHA-256 of "seed:name" and dealt to the halves
    in turn, the first to the half that the hash of the stratum's own name says. So every stratum
    of two or more has both, and no figure in a table has a say.
    """
    strata: dict[str, list[str]] = {}
    for table in tables:
        strata.setdefault(stratum(table), []).append(table.name)
    halves = {}
    for key, names in strata.items():
        first = _hash(seed, key)[0] % 2
        for k, name in enumerate(sorted(names, key=lambda n: _hash(seed, n))):
            halves[name] = HALVES[(k + first) % 2]
    return halves


def _hash(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()
