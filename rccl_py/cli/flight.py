"""`rccl-flight`: say where the flight records of several ranks part, from their files.

Owns the command's arguments and the summary; the comparison is `disagreement`'s. Exit codes: 0 when
ranks agree, 1 when they do not, 2 with one line on stderr for what cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import OneLineParser, guarded

if TYPE_CHECKING:
    from ..disagreement import Disagreement

__all__ = ["main"]

PATTERN = "rccl-flight-*.json"


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="rccl-flight",
        description="Compare the flight records of the ranks of a run: who called something else, "
        "who has not called, who waits.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="FILE|FOLDER",
        help=f"a record, or a folder of records ({PATTERN}); none: the run that failed last",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _files(paths: Sequence[str]) -> list[Path]:
    """Return the files of `paths`, each once."""
    from ..errors import FormatError

    found: dict[Path, Path] = {}
    if not paths:
        from ..comm.records import newest_run

        newest = newest_run()
        if newest is None:
            raise FormatError("no run has left flight records here: name a file or a folder")
        paths = [str(newest)]
    for name in paths:
        path = Path(name)
        files = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
        if path.exists() and not path.is_dir() and not path.is_file():
            raise FormatError(f"{path}: is no file but a device or a pipe")
        if not files:
            raise FormatError(f"{path}: no flight record in this folder ({PATTERN})")
        found.update({file.resolve(): file for file in files})
    return list(found.values())


def _summary(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one object a communicator: its size, who has a record, the calls they hold."""
    names = dict.fromkeys(record["communicator"] for record in records)
    rows = []
    for name in names:
        own = [record for record in records if record["communicator"] == name]
        calls = [c for record in own for c in record["calls"] if c["kind"] == "collective"]
        seqs = [call["seq"] for call in calls]
        rows.append(
            {
                "communicator": name,
                "nranks": own[0]["nranks"],
                "recorded": sorted(record["rank"] for record in own),
                "collectives": len(set(seqs)),
                "first": min(seqs, default=None),
                "last": max(seqs, default=None),
                "unfinished": len({c["seq"] for c in calls if c["state"] != "done"}),
                "reasons": sorted({r["reason"] for r in own if r.get("reason")}),
            }
        )
    return rows


def _summary_line(row: Mapping[str, Any]) -> str:
    told = f"{row['communicator']}: {len(row['recorded'])} of {row['nranks']} ranks recorded"
    if not row["collectives"]:
        return f"{told}, no collective"
    told += f", collectives {row['first']} to {row['last']}"
    return f"{told}, {row['unfinished']} not done" if row["unfinished"] else told


def _print_text(rows: Sequence[Mapping[str, Any]], found: Disagreement | None) -> None:
    for row in rows:
        print(_summary_line(row))
        for reason in row["reasons"]:
            print(f"  reason: {reason}")
    print("ranks agree" if found is None else found.text)


def _print_json(rows: Sequence[Mapping[str, Any]], found: Disagreement | None) -> None:
    import json
    from dataclasses import asdict

    told = None if found is None else asdict(found)
    print(json.dumps({"agree": found is None, "disagreement": told, "communicators": rows},
                     indent=1))  # fmt: skip


def _compare(paths: Sequence[str], as_json: bool) -> int:
    from ..disagreement import first_disagreement, read_record

    records = [read_record(file) for file in _files(paths)]
    found = first_disagreement(records)
    (_print_json if as_json else _print_text)(_summary(records), found)
    return 0 if found is None else 1


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().read(argv)
    return guarded("rccl-flight", lambda: _compare(arguments.paths, arguments.json))
