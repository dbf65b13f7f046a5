"""`rccl-perf`: rccl-tests' table for a modelled machine, with real data behind ``#wrong``.

Owns the order of a run (arguments, files, header, rows, footer) and who prints. Exit codes: 0; 1
for wrong values or a missed NCCL_TESTS_MIN_BW; 2 with one line on stderr for bad arguments.
Imports little before the arguments are parsed, so that ``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, RcclSystemError
from .common import guarded
from .perf_arguments import Settings, parsed, settings_from
from .perf_files import check_writable, write_whole
from .perf_launch import Launch, launch_from, leave_together, only_first_speaks, world_of

if TYPE_CHECKING:
    from ..report.perf import Row
    from .perf_run import Run

__all__ = ["main"]

_PROG = "rccl-perf"


def _least_bandwidth() -> float | None:
    text = os.environ.get("NCCL_TESTS_MIN_BW")
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidArgument(f"NCCL_TESTS_MIN_BW={text!r} is no number of GB/s") from None


def _check_files(settings: Settings, world: Any) -> None:
    """Raise on every rank when the first cannot write the files."""
    failure: Exception | None = None
    files = {"-J": settings.document, "-x": settings.records, "--trace": settings.trace}
    named = [(flag, path) for flag, path in files.items() if path is not None]
    if world is None or world.Get_rank() == 0:
        try:
            seen: dict[str, str] = {}
            for flag, path in named:
                check_writable(path)
                other = seen.setdefault(os.path.realpath(path), flag)
                if other != flag:
                    raise InvalidArgument(f"{other} and {flag} both name {path!r}: give two files")
        except Exception as error:
            failure = error  # handed on: every rank must raise it, or the others would wait
    failure = failure if world is None else world.bcast(failure)
    if failure is not None:
        raise failure


class _Screen:
    """The table on stdout, and a line on a terminal's stderr that tells which row is under way."""

    def __init__(self, run: Run) -> None:
        self.speaks = run.speaks
        self.progresses = self.speaks and sys.stderr.isatty()
        settings = run.settings
        rows = sum(1 for _ in settings.sizes()) * len(run.cases) * settings.cycles
        self.total = f"/{rows}" if rows else ""
        self.row = 0
        self.noted: set[str] = set()

    def begin(self, what: str) -> None:
        """Show that a row is under way."""
        self.row += 1
        if self.progresses:
            print(f"\r\033[K{_PROG}: row {self.row}{self.total}: {what}", end="", file=sys.stderr,
                  flush=True)  # fmt: skip

    def clear(self) -> None:
        """Take the progress line away."""
        if self.progresses:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def say(self, *lines: str) -> None:
        """Print lines of the table."""
        self.clear()
        if not self.speaks:
            return
        try:
            print("\n".join(lines), flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:  # a full disk; what is still buffered must not be tried again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise RcclSystemError(f"the table cannot be written: {error.strerror}") from None

    def note(self, line: str) -> None:
        """Print a comment line, once."""
        if line not in self.noted:
            self.noted.add(line)
            self.say(line)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _average(rows: Sequence[Row]) -> float:
    """Return the mean busbw of all measurements, in B/s."""
    halves = [half for row in rows for half in (row.out_of_place, row.in_place) if half]
    return math.fsum(half.busbw for half in halves) / len(halves) if halves else 0.0


def _failures(rows: Sequence[Row]) -> int:
    return sum(
        1 for row in rows for half in (row.out_of_place, row.in_place) if half and half.wrong
    )


def _body(arguments: argparse.Namespace, launch: Launch, words: Sequence[str]) -> int:
    settings, least = settings_from(arguments, os.environ), _least_bandwidth()
    world = world_of(launch)
    _check_files(settings, world)
    from ..report import files
    from ..report import perf as report
    from .perf_run import prepared

    run = prepared(arguments, settings, world)
    screen, started = _Screen(run), _now()
    config, ranks = run.config(), run.ranks()
    if settings.document is not None:
        screen.say(f"# Writing JSON output to {settings.document}")
    screen.say(*report.config_lines(config, ranks))
    if launch.spans and settings.ngpus not in (None, 1):
        screen.note(f"# -g {settings.ngpus} has no effect under mpirun: a process is a rank")
    screen.say(*report.header_lines(run.columns))
    rows: list[Row] = []
    try:
        for row in run.rows(screen.begin, screen.note):
            screen.say(report.row_line(row, run.columns))
            rows.append(row)
    finally:
        screen.clear()
    average, failures = _average(rows), _failures(rows)
    screen.say(*report.footer_lines(config, failures, average, least))
    if run.speaks and settings.records is not None:
        write = files.csv_text
        if settings.records_format == "json":
            write = files.records_json_text
        write_whole(settings.records, write(run.collective.title, run.where(), rows))
    if run.speaks and settings.document is not None:
        known = {name: value for name, value in sorted(os.environ.items())
                 if name.startswith(("NCCL_", "RCCL_"))}  # fmt: skip
        write_whole(settings.document, files.json_text(
            config, ranks, rows, arguments=[_PROG, *words], environment=known, started=started,
            ended=_now(), failures=failures, average=average, least=least))  # fmt: skip
    if run.speaks and settings.trace is not None:
        from .perf_trace import write_trace

        screen.say(write_trace(run, settings.trace))
    return 1 if failures or report.too_slow(average, least) else 0


def _code(words: Sequence[str], launch: Launch) -> int:
    try:
        arguments = parsed(words)
        return guarded(_PROG, lambda: _body(arguments, launch, words))
    except SystemExit as left:  # --help, or arguments that cannot be parsed
        return left.code if isinstance(left.code, int) else 2
    except KeyboardInterrupt:
        return 130
    except Exception:
        if not launch.spans:
            raise
        # A rank that fails alone must not leave the others waiting for it.
        traceback.print_exc()
        return 3


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    launch = launch_from(os.environ)
    with only_first_speaks(launch):
        code = _code(words, launch)
    if code and launch.spans:
        leave_together(launch, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
