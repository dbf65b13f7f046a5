"""The arguments of `rccl-perf`: rccl-tests' flags and long names, and what they must satisfy.

Owns the parser and Settings. Imports nothing heavy, so that ``--help`` stays fast; what needs the
machine or the data types (roots, names) is checked by the command itself.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidArgument
from ..units import parse_size
from .common import OneLineParser, add_topology_arguments, filter_from

__all__ = ["Settings", "parsed", "settings_from"]

_ALONE = ("-M", "-A", "--output_algo_proto_channels")

_COUNTS = (
    ("-t", "--nthreads", "N", "threads; ranks are threads times -g"),
    ("-g", "--ngpus", "K", "use K of the machine's GPUs (all; under mpirun: one a process)"),
    ("-n", "--iters", "N", "iterations, for the header only: a modelled time does not vary (20)"),
    ("-w", "--warmup_iters", "N", "warm-up iterations, for the header only (1)"),
    ("-m", "--agg_iters", "N", "aggregated iterations, for the header only (1)"),
    ("-N", "--run_cycles", "N", "print the table N times (1); 0: until interrupted"),
    ("-c", "--check", "N", "check the data N times; 0: move none and print N/A (1)"),
    ("-O", "--out_of_place", "0/1", "1: only out of place, 0: only in place (default: both)"),
    ("-M", "--output_algo_proto_channels", "0/1", "add columns algo, proto, nchannels"),
)  # fmt: skip
_DEFAULTS = {"iters": 20, "warmup_iters": 1, "agg_iters": 1, "run_cycles": 1, "check": 1,
             "output_algo_proto_channels": 0}  # fmt: skip

_WITHOUT_EFFECT = (
    ("-p", "--parallel_init"), ("-z", "--blocking"), ("-y", "--stream_null"), ("-T", "--timeout"),
    ("-G", "--cudagraph"), ("-C", "--report_cputime"), ("-S", "--report_timestamps"),
    ("-a", "--average"), ("-R", "--local_register"), ("-D", "--device_implementation"),
    ("-V", "--device_cta_count"), ("-I", "--per_iter"), ("-K", "--skip_samples"),
    ("-Y", "--memory_type"), ("-u", "--cumask"), ("-q", "--delay_inout_place"),
    ("-F", "--cache_flush"), ("-E", "--rotating_tensor"),
)  # fmt: skip
"""Flags of rccl-tests and nccl-tests that set up streams, kernels or clocks a model has none of."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A run that makes sense so far. Sizes are bytes; `factor` 0 means that sizes grow by `step`.

    ops, dtypes, root: names as given, "all" included. cycles: 0 for without end.
    """

    collective: str
    smallest: int
    largest: int
    step: int
    factor: int
    iterations: int
    warmup: int
    aggregated: int
    cycles: int
    check: int
    op: str
    dtype: str
    root: str
    nthreads: int | None
    ngpus: int | None
    out_of_place: bool
    in_place: bool
    algorithms: bool
    document: str | None
    records: str | None
    records_format: str
    trace: str | None
    data_limit: int
    algo: str | None
    proto: str | None
    policy: str | None
    schedules: str | None
    engine: str | None
    graph: int
    blocking: int
    parallel_init: int

    def sizes(self) -> Iterator[int]:
        """Yield the sizes of the table, in bytes."""
        size = self.smallest
        while size <= self.largest:
            yield size
            size = max(size * self.factor, 1) if self.factor else size + self.step


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="rccl-perf",
        description="Time a collective on a modelled machine, move real data and check it; the "
        "table, flags and files are those of rccl-tests.",
        epilog="Accepted for rccl-tests' sake, without effect on a model: "
        + " ".join(flag for flag, _ in _WITHOUT_EFFECT)
        + ". Environment: NCCL_ALGO, NCCL_PROTO, RCCL_PY_SCHEDULES, NCCL_TESTS_MIN_BW. Exit "
        "status: 0; 1 when wrong values were found or NCCL_TESTS_MIN_BW is missed; 2 for bad "
        "arguments.",
    )
    parser.add_argument("collective", metavar="COLLECTIVE",
                        help="allreduce allgather reduce_scatter alltoall broadcast reduce "
                        "gather scatter (all_reduce_perf and the like are understood)")  # fmt: skip
    add_topology_arguments(parser)
    sizes = parser.add_argument_group("sizes: bytes, or 64K, 1.5M, 8G")
    sizes.add_argument("-b", "--minbytes", default="32M", metavar="SIZE", help="first (32M)")
    sizes.add_argument("-e", "--maxbytes", default="32M", metavar="SIZE", help="last (32M)")
    sizes.add_argument("-i", "--stepbytes", metavar="SIZE", help="added each time (1M)")
    sizes.add_argument("-f", "--stepfactor", metavar="F", help="or multiplied by, 2 or more")
    what = parser.add_argument_group("what is run")
    what.add_argument("-o", "--op", default="sum", help="sum, prod, max, min, avg or all (sum)")
    what.add_argument("-d", "--datatype", default="float",
                      help="int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 "
                      "f8e4m3 f8e5m2 or all (float)")  # fmt: skip
    what.add_argument("-r", "--root", default="0", help="a rank, or all (0)")
    what.add_argument("--algo", metavar="A", help="as NCCL_ALGO, which it overrides")
    what.add_argument("--proto", metavar="P", help="as NCCL_PROTO, which it overrides")
    what.add_argument(
        "--schedule",
        metavar="FILES",
        help="as RCCL_PY_SCHEDULES: MSCCL XML or MSCCL++ JSON that calls it fits take, as in PATH "
        "(docs/custom.md)",
    )
    what.add_argument(
        "--engine",
        choices=["estimate", "clock", "simulate", "auto"],
        help="which timing engine the times are by (estimate; docs/timing.md)",
    )
    what.add_argument("--policy", metavar="NAME",
                      help="take what a library would: nccl-2.30, rccl-2.28, rccl-2.26, rccl-2.22, "
                      "csv:FILE "
                      "(docs/policies.md)")  # fmt: skip
    for short, long, metavar, text in _COUNTS:
        what.add_argument(short, long, metavar=metavar, help=text,
                          default=_DEFAULTS.get(long[2:]))  # fmt: skip
    what.add_argument("--data-limit", default="1G", metavar="SIZE",
                      help="move data up to this many bytes of buffers over all ranks (1G); "
                      "larger rows are timed without data and say N/A")  # fmt: skip
    files = parser.add_argument_group("files, complete or not there at all; they replace old ones")
    files.add_argument("-J", "--output_file", metavar="FILE", help="nccl-tests' JSON, schema 3")
    files.add_argument("-x", "-X", "--rccl_output_file", metavar="FILE", help="rccl-tests' records")
    files.add_argument("-Z", "--output_format", "--rccl_output_format", metavar="csv|json",
                       help="format of -x (csv)")  # fmt: skip
    files.add_argument("--trace", metavar="FILE",
                       help="the last row's call, message by message, for ui.perfetto.dev "
                       "(docs/trace.md); gzip if FILE ends in .gz")  # fmt: skip
    parser.add_argument("-A", dest="output_algo_proto_channels", help=argparse.SUPPRESS)
    for short, long in _WITHOUT_EFFECT:
        parser.add_argument(short, long, help=argparse.SUPPRESS)
    return parser


def _joined(argv: Sequence[str]) -> list[str]:
    """Return the arguments as argparse understands them.

    ``-b -8M`` is a negative size, not an option -8M; ``-M`` may stand alone for ``-M 1``.
    """
    words: list[str] = []
    for word in argv:
        option = words[-1] if words else ""
        if option in _ALONE and word not in ("0", "1"):
            words.append("1")
        elif re.fullmatch(r"-[A-Za-z]|--[a-z_-]+", option) and re.match(r"-[\d.]", word):
            words[-1] = f"{option}={word}" if option.startswith("--") else option + word
            continue
        words.append(word)
    return [*words, "1"] if words and words[-1] in _ALONE else words


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments; leaves the process for --help and for what cannot be parsed."""
    return _parser().read(_joined(argv))


def _count(arguments: argparse.Namespace, name: str, least: int = 0) -> int:
    text = str(getattr(arguments, name))
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,12}\s*", text):
        raise InvalidArgument(f"--{name} {text[:40]!r} cannot be read: expected a whole number")
    if int(text) < least:
        raise InvalidArgument(f"--{name} {text}: expected {least} or more")
    return int(text)


def _size(arguments: argparse.Namespace, name: str) -> int:
    try:
        return parse_size(getattr(arguments, name))
    except InvalidArgument as error:
        raise InvalidArgument(f"--{name.replace('_', '-')}: {error}") from None


def _optional(arguments: argparse.Namespace, name: str, least: int) -> int | None:
    return None if getattr(arguments, name) is None else _count(arguments, name, least)


def _growth(arguments: argparse.Namespace, smallest: int, largest: int) -> tuple[int, int]:
    """Return (step in bytes, factor or 0)."""
    if smallest > largest:
        raise InvalidArgument(f"--minbytes {arguments.minbytes} is above --maxbytes "
                              f"{arguments.maxbytes}: give both, the smaller first")  # fmt: skip
    if arguments.stepfactor is not None:
        return 1 << 20, _count(arguments, "stepfactor", 2)
    arguments.stepbytes = arguments.stepbytes or "1M"
    step = _size(arguments, "stepbytes")
    if step == 0 and largest > smallest:
        raise InvalidArgument("--stepbytes 0 never reaches --maxbytes: expected 1 or more")
    return max(step, 1), 0


def _flag(arguments: argparse.Namespace, name: str) -> bool | None:
    value = _optional(arguments, name, 0)
    if value is not None and value > 1:
        raise InvalidArgument(f"--{name} {value}: expected 0 or 1")
    return None if value is None else bool(value)


def _ignored(value: str | None) -> int:
    return int(value) if value and re.fullmatch("[0-9]{1,9}", value) else 0


def settings_from(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings, or raise InvalidArgument with the first thing that is wrong."""
    smallest, largest = _size(arguments, "minbytes"), _size(arguments, "maxbytes")
    step, factor = _growth(arguments, smallest, largest)
    only = _flag(arguments, "out_of_place")
    records_format = arguments.output_format or "csv"
    if records_format not in ("csv", "json"):
        raise InvalidArgument(f"--output_format {records_format!r}: expected csv or json")
    if arguments.output_format and not arguments.rccl_output_file:
        raise InvalidArgument(f"-Z {records_format} names no file: add -x FILE")
    return Settings(
        collective=arguments.collective,
        smallest=smallest, largest=largest, step=step, factor=factor,
        iterations=_count(arguments, "iters"), warmup=_count(arguments, "warmup_iters"),
        aggregated=_count(arguments, "agg_iters"), cycles=_count(arguments, "run_cycles"),
        check=_count(arguments, "check"),
        op=arguments.op, dtype=arguments.datatype, root=arguments.root,
        nthreads=_optional(arguments, "nthreads", 1), ngpus=_optional(arguments, "ngpus", 1),
        out_of_place=only is not False, in_place=only is not True,
        algorithms=bool(_flag(arguments, "output_algo_proto_channels")),
        document=arguments.output_file, records=arguments.rccl_output_file,
        records_format=records_format, trace=arguments.trace,
        data_limit=_size(arguments, "data_limit"),
        algo=filter_from("--algo", arguments.algo, "NCCL_ALGO", environment),
        proto=filter_from("--proto", arguments.proto, "NCCL_PROTO", environment),
        policy=arguments.policy,
        schedules=arguments.schedule or environment.get("RCCL_PY_SCHEDULES") or None,
        engine=arguments.engine,
        graph=_ignored(arguments.cudagraph), blocking=_ignored(arguments.blocking),
        parallel_init=_ignored(arguments.parallel_init),
    )  # fmt: skip
