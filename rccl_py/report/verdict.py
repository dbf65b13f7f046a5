"""What the validate command says: statistics, tables and rows as lines or JSON, bands as CSV.

Owns wording and layout. Knows no planner: judged tables come in, text goes out. Errors are shown in
percent of the measured time, the peak's in percent of the measured busbw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from ..collectives import COLLECTIVES
from ..links import LINKS
from ..topology import load
from ..units import format_size
from .band import ALL, CLASSES, PEAK, port_of
from .measured import HALVES
from .validate import LIMITS, SUBSETS, Judged, Statistics, grouped, statistics, summary

__all__ = ["as_dict", "bands_text", "group_lines", "row_lines", "summary_lines", "table_lines",
           "worst_lines"]  # fmt: skip

_KINDS = (*CLASSES, PEAK)

BAND_COLUMNS = "family,port_GBps,collective,class,half,tables,rows,median,p90"


def _percent(value: float) -> str:
    return f"{value * 100:+.1f}"


def _cell(found: Statistics | None) -> str:
    """Return median, 90th percentile and bias in percent, or dashes."""
    if found is None:
        return f"{'-':>6}{'-':>7}{'-':>8}"
    return f"{found.median * 100:6.1f}{found.p90 * 100:7.1f}{_percent(found.bias):>8}"


def _line(title: str, kind: str, judged: Sequence[Judged], with_limit: bool) -> str:
    found = summary(judged, kind)
    count = found.count if found else 0
    text = f"{title:<26}{kind:<16}{len(judged):>6}{count:>6} {_cell(found)}"
    if not with_limit or len(judged) == 1 or found is None or kind not in LIMITS:
        return text.rstrip()
    median, p90 = LIMITS[kind]
    met = found.median <= median and (p90 is None or found.p90 <= p90)
    limit = f"{median:.0%}" + (f", {p90:.0%}" if p90 is not None else "")
    return f"{text}  {'met' if met else 'MISSED'} ({limit})"


_HEADS = f"{'class':<16}{'tables':>6}{'rows':>6}{'median':>7}{'p90':>7}{'bias':>8}"


def _halves(judged: Sequence[Judged]) -> Iterable[tuple[str, list[Judged]]]:
    """Yield each half that has tables, then all."""
    for half in HALVES:
        found = [j for j in judged if j.table.half == half]
        if found and len(found) < len(judged):
            yield f"half {half}", found
    yield "all", list(judged)


def summary_lines(judged: Sequence[Judged]) -> list[str]:
    """Return the statistics of every class, for all tables and those of each of SUBSETS."""
    lines = [
        f"# {'tables':<24}{_HEADS}  {'limit (median, p90)' if len(judged) > 1 else ''}".rstrip()
    ]
    for subset, belongs in SUBSETS.items():
        chosen = [j for j in judged if belongs(j)]
        if subset != "all" and len(chosen) == len(judged):
            continue  # the same lines again
        for half, found in _halves(chosen):
            name = half if subset == "all" else f"{subset}, {half}"
            lines += [_line(name, kind, found, True) for kind in _KINDS if summary(found, kind)]
    return lines


def group_lines(judged: Sequence[Judged], key: str) -> list[str]:
    """Return the statistics of every class by a key of the header, or by family."""
    lines = [f"# {key:<24}{_HEADS}"]
    for name, found in grouped(judged, key).items():
        lines += [_line(name[:25], kind, found, False) for kind in _KINDS if summary(found, kind)]
    return lines


def _title(judged: Judged) -> str:
    setup = judged.setup
    machine = setup.machine.rpartition("/")[2].removesuffix(".yaml")
    return f"{machine} {setup.nodes}x{setup.gpus // setup.nodes}"


def table_lines(judged: Sequence[Judged]) -> list[str]:
    """Return a line a table: what it was run on, and the errors of each class."""
    classes = "".join(f"|{kind:^21}" for kind in CLASSES)
    heads = "|median    p90    bias" * len(CLASSES)
    lines = [
        f"# {'errors in %':<71}{classes}|  peak",
        f"# {'table':<46}{'machine':<20}{'half':<5}{heads}| busbw",
    ]
    for one in judged:
        cells = "".join(f"|{_cell(statistics(one.errors(kind)))}" for kind in CLASSES)
        peak = one.errors(PEAK)
        shown = f"{_percent(float(peak[0])):>7}" if len(peak) else f"{'-':>7}"
        lines.append(f"{one.table.name:<48}{_title(one):<20}{one.table.half:<5}{cells}|{shown}")
    return lines


def row_lines(one: Judged) -> list[str]:
    """Return a line a size: measured and predicted time and busbw, error, and what was chosen."""
    factor = COLLECTIVES[one.table.collective].factor(one.setup.gpus)
    policy, launch = one.setup.policy, one.setup.launch
    what = f"{one.table.collective} on {_title(one)}, {policy}, {launch} launch, {one.family}"
    heads = f"{'measured':>13}{'predicted':>13}{'error':>8}{'busbw':>9}{'predicted':>10}"
    units = f"{'(us)':>13}{'(us)':>13}{'(%)':>8}{'(GB/s)':>9}{'(GB/s)':>10}  chosen"
    lines = [f"# {one.table.name}: {what}", f"#{'size':>11}{heads}", f"#{'(B)':>11}{units}"]
    for k, size in enumerate(one.size.tolist()):
        time, mine = one.measured[k], one.predicted[k]
        rates = [size / t * factor / 1e9 for t in (time, mine)]
        mark = "" if one.counts[k] else "  (not counted)"
        lines.append(f"{size:>12}{time * 1e6:>13.2f}{mine * 1e6:>13.2f}"
                     f"{_percent(float(one.error[k])):>8}{rates[0]:>9.2f}{rates[1]:>10.2f}"
                     f"  {one.choices[k]}{mark}")  # fmt: skip
    return lines


def worst_lines(judged: Sequence[Judged], count: int) -> list[str]:
    """Return the `count` rows that are furthest off, of those that count."""
    rows = [(abs(float(one.error[k])), one, k) for one in judged
            for k in range(len(one.size)) if one.counts[k]]  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    lines = [f"# {'worst rows':<44}{'size':>8}{'measured us':>13}{'predicted':>11}{'error %':>9}"]
    for _, one, k in rows[:count]:
        lines.append(f"{one.table.name:<46}{format_size(float(one.size[k])):>8}"
                     f"{one.measured[k] * 1e6:>13.2f}{one.predicted[k] * 1e6:>11.2f}"
                     f"{_percent(float(one.error[k])):>9}  {one.choices[k]}")  # fmt: skip
    return lines


def _numbers(found: Statistics | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "count": found.count,
        "median": round(found.median, 6),
        "p90": round(found.p90, 6),
        "bias": round(found.bias, 6),
    }


def _table_dict(one: Judged) -> dict[str, Any]:
    rows = [
        {
            "size": size,
            "measured_us": round(float(one.measured[k]) * 1e6, 6),
            "predicted_us": round(float(one.predicted[k]) * 1e6, 6),
            "error": round(float(one.error[k]), 6),
            "chosen": one.choices[k],
            "counts": bool(one.counts[k]),
        }
        for k, size in enumerate(one.size.tolist())
    ]
    return {
        "table": one.table.name,
        "header": one.table.header,
        "collective": one.table.collective,
        "machine": one.setup.machine,
        "nodes": one.setup.nodes,
        "gpus": one.setup.gpus,
        "policy": one.setup.policy,
        "launch": one.setup.launch,
        "family": one.family,
        "errors": {kind: _numbers(statistics(one.errors(kind))) for kind in _KINDS},
        "rows": rows,
    }


def _summary_dicts(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    found = []
    for subset, belongs in SUBSETS.items():
        for half, tables in _halves([j for j in judged if belongs(j)]):
            for kind in _KINDS:
                numbers = _numbers(summary(tables, kind))
                if numbers is not None:
                    which = {"tables": subset, "half": half.removeprefix("half "), "class": kind}
                    found.append({**which, **numbers})
    return found


def as_dict(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return everything as JSON takes it: errors as fractions, times in microseconds."""
    return {"summary": _summary_dicts(judged), "tables": [_table_dict(j) for j in judged]}


def _half(judged: Sequence[Judged], kind: str) -> list[Judged]:
    """Return the tables with rows of a class: those of half b, or all where it has none."""
    found = [j for j in judged if len(j.errors(kind))]
    return [j for j in found if j.table.half == "b"] or found


def _band_line(family: str, port: float, name: str, kind: str, judged: Sequence[Judged]) -> str:
    """Return a row of bands.csv, "" where nothing of the class was measured."""
    tables = _half(judged, kind)
    found = summary(tables, kind)
    if found is None:
        return ""
    half = "".join(sorted({j.table.half for j in tables}))
    return (f"{family},{port / 1e9:.0f},{name},{kind},{half},{len(tables)},{found.count},"
            f"{found.median:.3f},{found.p90:.3f}")  # fmt: skip


def bands_text(judged: Sequence[Judged]) -> str:
    """Return bands.csv: the errors by family, collective and all of them, and class of sizes.

    Each is of half b where that has such rows, else of both. port_GBps: what an accelerator has to
    the others of its node, the median of a family's machines. Families whose link is none of ours
    (cores of CPUs) are left out.
    """
    lines = ["# Written by `rccl-validate --grade B --bands`: errors by family and class of sizes.",
             BAND_COLUMNS]  # fmt: skip
    for family, found in grouped(judged, "family").items():
        if family.partition("+")[0] not in LINKS:
            continue
        port = median(port_of(load(name)) for name in {j.setup.machine for j in found})
        for name in (*sorted({j.table.collective for j in found}), ALL):
            own = [j for j in found if name in (ALL, j.table.collective)]
            lines += [_band_line(family, port, name, kind, own) for kind in CLASSES]
    return "".join(f"{line}\n" for line in lines if line)
