"""The table of the perf command: rccl-tests' lines, as scripts parse them.

Owns the rows' types, every format and every width. Prints nothing, and knows no communicator and
no schedule: numbers come in, text goes out. The formats are facts of rccl-tests 2.17
(``util.cu``, ``common.cu``): times in microseconds, bandwidths in 1e9 B/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "Columns",
    "Config",
    "Measurement",
    "Rank",
    "Row",
    "config_lines",
    "float_text",
    "footer_lines",
    "header_lines",
    "row_line",
    "too_slow",
]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One half of a row. time: s; algbw, busbw: B/s; wrong: elements, None when unchecked."""

    time: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size of the table. size: B; count: elements of a block; root: -1 when there is none.

    A half that was not run is None. algorithm, protocol and channels are for their columns.
    """

    size: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Measurement | None
    in_place: Measurement | None
    algorithm: str = "N/A"
    protocol: str = "N/A"
    channels: int = 0
    cycle: int = 0


@dataclass(frozen=True, slots=True)
class Rank:
    """Who runs where: one comment line of the header and one entry of the JSON."""

    rank: int
    pid: int
    host: str
    device: int
    bus: str
    title: str


@dataclass(frozen=True, slots=True)
class Config:
    """What the header and the JSON tell of a run. Sizes are bytes; `factor` 0 means steps."""

    program: str
    version: tuple[int, int, int]
    nthreads: int
    ngpus: int
    smallest: int
    largest: int
    step: int
    factor: int
    warmup: int
    iterations: int
    aggregated: int
    check: int
    graph: int
    blocking: int = 0
    parallel_init: int = 0

    @property
    def version_code(self) -> int:
        """The version as one number, by the rule of NCCL_VERSION(major, minor, patch)."""
        major, minor, patch = self.version
        return major * 10000 + minor * 100 + patch


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns the table has."""

    out_of_place: bool = True
    in_place: bool = True
    algorithms: bool = False


def float_text(value: float, width: int) -> str:
    """Return `value` with as many decimals as fit: two, one, none, then an exponent."""
    digits = 0
    while digits <= 20 and value >= 10**digits:
        digits += 1
    if not math.isfinite(value) or digits >= width + 1:
        return f"{value:{width}.{1 if width >= 7 else 0}e}"
    decimals = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:{width}.{decimals}f}"


def config_lines(config: Config, ranks: Sequence[Rank]) -> list[str]:
    """Return the comment lines that open a run: what was asked, and who takes part."""
    code = config.version_code
    version = ".".join(map(str, config.version))
    step, unit = (config.factor, "factor") if config.factor else (config.step, "bytes")
    lines = [
        f"# rccl-tests version {version}-rccl_py rccl-headers={code} rccl-library={code}",
        f"# Collective test starting: {config.program}",
        f"# nThread {config.nthreads} nGpus {config.ngpus} minBytes {config.smallest} "
        f"maxBytes {config.largest} step: {step}({unit}) warmup iters: {config.warmup} "
        f"iters: {config.iterations} agg iters: {config.aggregated} "
        f"validation: {config.check} graph: {config.graph} unalign: 0",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {r.rank:2d} Group {0:2d} Pid {r.pid:6d} on {r.host:>10} "
        f"device {r.device:2d} [{r.bus}] {r.title}"
        for r in ranks[:1024]
    ]
    return lines + ["..."] * (len(ranks) > 1024)


def header_lines(columns: Columns) -> list[str]:
    """Return the table's head: a comment line, places, names, units."""
    halves = columns.out_of_place + columns.in_place
    names = _half_head("time", "algbw", "busbw", "#wrong")
    units = _half_head("(us)", "(GB/s)", "(GB/s)", "")
    left = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format
    pad = 28 if columns.algorithms else 0
    extra = "algo      proto      nchannels" if columns.algorithms else ""
    if halves == 2:
        places = "           out-of-place                       in-place          "
    else:
        places = f"           {'out-of-place' if columns.out_of_place else 'in-place'}          "
    return [
        "#",
        left("", "", "", "", "") + places,
        left("size", "count", "type", "redop", "root") + names * halves + f" {extra:>{pad}} ",
        left("(B)", "(elements)", "", "", "") + units * halves + f" {'':>{pad}} ",
    ]


def _half_head(time: str, algbw: str, busbw: str, wrong: str) -> str:
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"


def _half(m: Measurement) -> str:
    wrong = "    N/A" if m.wrong is None else f"  {m.wrong:6g}"
    return (
        f"  {float_text(m.time * 1e6, 7)}  {float_text(m.algbw / 1e9, 6)}"
        f"  {float_text(m.busbw / 1e9, 6)}{wrong}"
    )


def row_line(row: Row, columns: Columns) -> str:
    """Return one line of the table."""
    line = f"{row.size:12d}  {row.count:12d}  {row.dtype:>8}  {row.op:>6}  {row.root:6d}"
    if columns.out_of_place and row.out_of_place:
        line += _half(row.out_of_place)
    if columns.in_place and row.in_place:
        line += _half(row.in_place)
    if columns.algorithms:
        # One blank at least before each: rccl-tests has none before the first when a name is long.
        line += f" {row.algorithm:>7}  {row.protocol:>8}  {row.channels:10d}"
    return line


def footer_lines(config: Config, failures: int, average: float, least: float | None) -> list[str]:
    """Return the closing comments. average: B/s; failures: checks that found wrong values.

    `least` is the bandwidth NCCL_TESTS_MIN_BW asks for, 1e9 B/s; a tenth less still passes.
    """
    verdict = "" if least is None else "FAILED" if too_slow(average, least) else "OK"
    return [
        f"# {'Out of bounds values':<20} : {failures} {'FAILED' if failures else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {average / 1e9:g} {verdict}",
        "#",
        f"# Collective test concluded: {config.program}",
        "#",
        "",
    ]


def too_slow(average: float, least: float | None) -> bool:
    """Tell whether `average` B/s misses `least`, in 1e9 B/s, by more than a tenth."""
    return least is not None and average / 1e9 < 0.9 * least
