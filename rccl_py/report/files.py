"""The files of the perf command: nccl-tests' JSON document, and rccl-tests' CSV or JSON records.

Owns the key names and how values are spelled. Opens no file: numbers come in, text goes out. The
document has the keys of nccl-tests' schema version 3; the records are those of rccl-tests'
reporter (``-Z``). Times are microseconds, bandwidths 1e9 B/s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .perf import Config, Measurement, Rank, Row, too_slow

__all__ = ["csv_text", "json_text", "records_json_text"]

JSON_VERSION = 3


def _text(flag: bool) -> str:
    # nccl-tests writes truth values as strings.
    return "true" if flag else "false"


def _json_half(m: Measurement | None) -> dict[str, float | None] | None:
    if m is None:
        return None
    return {
        "time": round(m.time * 1e6, 6),
        "alg_bw": round(m.algbw / 1e9, 6),
        "bus_bw": round(m.busbw / 1e9, 6),
        "nwrong": None if m.wrong is None else float(m.wrong),
    }


def _json_row(row: Row, iterations: int) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.dtype,
        "redop": row.op,
        "root": f"{row.root:6d}",
        "out_of_place": _json_half(row.out_of_place),
        "in_place": _json_half(row.in_place),
        "actual_iterations": iterations,
        "experiment_name": "",
    }


def _json_config(config: Config, ranks: Sequence[Rank]) -> dict[str, Any]:
    steps = {"step_factor": config.factor} if config.factor else {"step_bytes": config.step}
    devices = [
        {
            "rank": r.rank,
            "group": 0,
            "pid": r.pid,
            "hostname": r.host,
            "device": r.device,
            "device_hex": r.bus,
            "device_info": r.title,
        }
        for r in ranks
    ]
    return {
        "nthreads": config.nthreads,
        "ngpus": config.ngpus,
        "minimum_bytes": config.smallest,
        "maximum_bytes": config.largest,
        **steps,
        "warmup_iters": config.warmup,
        "iterations": config.iterations,
        "aggregated_iterations": config.aggregated,
        "validation": config.check,
        "graph": config.graph,
        "blocking_collectives": _text(config.blocking > 0),
        "per_iter_timing": "false",
        "parallel_init": _text(config.parallel_init > 0),
        "devices": devices,
    }


def json_text(
    config: Config,
    ranks: Sequence[Rank],
    rows: Sequence[Row],
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    started: str,
    ended: str,
    failures: int,
    average: float,
    least: float | None,
) -> str:
    """Return the ``-J`` document of schema version 3. average: B/s; least: 1e9 B/s or None."""
    okay = "unchecked" if least is None else _text(not too_slow(average, least))
    document = {
        "version": JSON_VERSION,
        "start_time": started,
        "args": list(arguments),
        "env": [f"{name}={value}" for name, value in environment.items()],
        "nccl_version": config.version_code,
        "config": _json_config(config, ranks),
        "results": [_json_row(row, config.iterations) for row in rows],
        "out_of_bounds": {"count": failures, "okay": _text(failures == 0)},
        "average_bus_bandwidth": {"bandwidth": round(average / 1e9, 6), "okay": okay},
        "errors": [],
        "end_time": ended,
    }
    return json.dumps(document) + "\n"


_PLACES = (("out_of_place", 0), ("in_place", 1))


def _records(title: str, where: Mapping[str, int], rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return rccl-tests' record per measurement: values as text, texts in double quotes."""
    found = []
    for row in rows:
        for half, in_place in _PLACES:
            m: Measurement | None = getattr(row, half)
            if m is None:
                continue
            found.append(
                {
                    "numCycle": str(row.cycle),
                    "name": f'"{title}"',
                    **{key: str(value) for key, value in where.items()},
                    "size": str(row.size),
                    "type": f'"{row.dtype}"',
                    "redop": f'"{row.op}"',
                    "inPlace": str(in_place),
                    "time": f"{m.time * 1e6:.6f}",
                    "algBw": f"{m.algbw / 1e9:.6f}",
                    "busBw": f"{m.busbw / 1e9:.6f}",
                    "wrong": '"N/A"' if m.wrong is None else f'"{m.wrong}"',
                }
            )
    return found


def csv_text(title: str, where: Mapping[str, int], rows: Sequence[Row]) -> str:
    """Return the ``-Z csv`` file. `where` are the columns that tell how many ranks took part."""
    head = [
        "numCycle",
        "collective",
        *where,
        "size",
        "type",
        "redop",
        "inplace",
        "time",
        "algbw",
        "busbw",
        "#wrong",
    ]
    lines = [head, *(list(record.values()) for record in _records(title, where, rows))]
    return "".join(",".join(line) + "\n" for line in lines)


def records_json_text(title: str, where: Mapping[str, int], rows: Sequence[Row]) -> str:
    """Return the ``-Z json`` file: a list with one object per measurement."""
    objects = [
        "{" + ", ".join(f'"{key}":{value}' for key, value in record.items()) + "}"
        for record in _records(title, where, rows)
    ]
    return "[\n" + "".join(",\n".join(objects) + "\n" if objects else "") + "]\n"
