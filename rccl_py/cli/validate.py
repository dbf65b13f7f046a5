"""rccl-validate: published or own measurements beside what the model predicts for them."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .common import OneLineParser, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..report.measured import Table
    from ..report.validate import Judged

__all__ = ["main"]


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="rccl-validate",
        description="Predict every row of tables of measured collectives, as the library that "
        "was measured would choose, and print how far off that is.",
        epilog="A table is a CSV file with a header (docs/validation.md). Errors are predicted "
        "over measured time, minus 1; the peak's is of busbw, at the largest size.",
    )
    parser.add_argument(
        "tables", nargs="*", metavar="FILE|FOLDER", help="default: bench/measured of this checkout"
    )
    parser.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="the machine the tables are from (default: their header's)",
    )
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="nodes of that machine (default: the header's)"
    )
    parser.add_argument(
        "-g",
        "--gpus",
        type=int,
        metavar="K",
        help="ranks in all, evenly over the nodes (default: the header's)",
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        help="whose choices: nccl-2.30, rccl-2.28, csv:FILE, ..., or free for the fastest "
        "(default: the header's)",
    )
    parser.add_argument(
        "--launch",
        choices=["eager", "graph", "serial", "framework"],
        help="how calls were started (default: the header's, else by its flags)",
    )
    parser.add_argument(
        "--grade",
        choices=["A", "B", "C", "D"],
        help="tables of this grade and better (default: A for a folder, all for files)",
    )
    parser.add_argument(
        "--half",
        choices=["a", "b", "all"],
        default="all",
        help="tables to fit on, to report on, or all (default)",
    )
    parser.add_argument(
        "--by",
        metavar="KEY",
        help="statistics by family or by a key of the header: machine, collective, library, ...",
    )
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="rows furthest off (5)")
    parser.add_argument("--rows", action="store_true", help="every row (default for one table)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        help="draw predicted against measured, and the errors over size",
    )
    parser.add_argument(
        "--bands",
        action="store_true",
        help="print the errors by family as rccl_py/report/bands.csv has them",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().read(argv)
    return guarded("rccl-validate", lambda: _run(arguments))


def _default() -> str:
    """Return the folder of a checkout; an installed package has none."""
    from ..errors import InvalidArgument

    folder = Path(__file__).resolve().parents[2] / "bench" / "measured"
    if not folder.is_dir():
        raise InvalidArgument(
            "no tables are named, and an installed package brings none: name a FILE or FOLDER, or "
            "run this in a checkout of rccl_py, which has bench/measured"
        )
    return str(folder)


def _tables(arguments: argparse.Namespace) -> list[Table]:
    """Return the tables that are named, of the grade and half that are wanted."""
    from ..errors import InvalidArgument
    from ..report.measured import read_folder, read_table

    found = []
    for name in arguments.tables or [_default()]:
        folder = Path(name).is_dir()
        worst = arguments.grade or ("A" if folder else "")
        read = read_folder(name) if folder else [read_table(name)]
        found += [t for t in read if not worst or (t.grade or worst)[0] <= worst]
    wanted = [t for t in found if arguments.half in ("all", t.half)]
    if not wanted:
        raise InvalidArgument(
            f"no table is left of {', '.join(arguments.tables) or 'bench/measured'}: --grade "
            f"{arguments.grade or 'A'} and --half {arguments.half} leave all out"
        )
    return wanted


def _judged(arguments: argparse.Namespace) -> list[Judged]:
    from ..report.validate import Predictor

    predictor = Predictor()
    return [
        predictor.judge(
            table,
            predictor.setup(
                table,
                arguments.topology,
                arguments.nodes,
                arguments.gpus,
                arguments.policy,
                arguments.launch,
            ),
        )
        for table in _tables(arguments)
    ]


def _run(arguments: argparse.Namespace) -> int:
    from ..report.verdict import as_dict, bands_text

    began = time.perf_counter()
    judged = _judged(arguments)
    took = time.perf_counter() - began
    if arguments.plot:
        from ..report.draw import save
        from ..report.draw_errors import draw_errors

        save(draw_errors(judged), arguments.plot)
    if arguments.bands:
        print(bands_text(judged), end="")
    elif arguments.json:
        print(json.dumps({**as_dict(judged), "seconds": round(took, 3)}, indent=1))
    else:
        print("\n".join(_lines(arguments, judged)))
        rows = sum(len(one.size) for one in judged)
        print(f"# {len(judged)} table(s), {rows} sizes, predicted in {took:.1f} s")
    return 0


def _lines(arguments: argparse.Namespace, judged: Sequence[Judged]) -> list[str]:
    from ..report.verdict import group_lines, row_lines, summary_lines, table_lines, worst_lines

    lines = []
    for one in judged if arguments.rows or len(judged) == 1 else []:
        lines += row_lines(one)
    if len(judged) > 1:
        lines += table_lines(judged)
        lines += worst_lines(judged, arguments.worst) if arguments.worst > 0 else []
    if arguments.by:
        lines += group_lines(judged, arguments.by)
    return lines + summary_lines(judged)
