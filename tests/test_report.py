"""The table and the files, as scripts parse them."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from rccl_py.report.files import csv_text, json_text, records_json_text
from rccl_py.report.perf import (
    Columns,
    Config,
    Measurement,
    Rank,
    Row,
    config_lines,
    float_text,
    footer_lines,
    header_lines,
    row_line,
    too_slow,
)

CONFIG = Config(
    program="all_reduce_perf", version=(1, 2, 3), nthreads=1, ngpus=8, smallest=8,
    largest=1 << 33, step=1 << 20, factor=2, warmup=1, iterations=20, aggregated=1, check=1,
    graph=0,
)  # fmt: skip
RANKS = [Rank(r, 4242, "node", r, f"0000:{r:02x}:00", "AMD Instinct MI300X") for r in range(8)]
ROW = Row(1 << 20, 1 << 18, "float", "sum", -1,
          Measurement(12.344e-6, 84.945e9, 148.654e9, 0),
          Measurement(12345.678e-6, 0.0849e9, 1486.54e9, 3))  # fmt: skip
LONG = Measurement(0.5, 17.18e9, 17.18e9, None)
UNCHECKED = Row(1 << 33, 1 << 31, "half", "none", 0, LONG, LONG)


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [(0, 7, "   0.00"), (0.005, 6, "  0.01"), (9.999, 7, "  10.00"), (1234.5, 6, "1234.5"),
     (999.99, 6, "999.99"), (9999.9, 7, "9999.90"), (12345.6, 7, "12345.6"), (12345.6, 6, " 12346"),
     (123456, 7, " 123456"), (1234567, 7, "1234567"), (12345678, 7, "1.2e+07"),
     (1234567, 6, " 1e+06")],
)  # fmt: skip
def test_numbers_have_the_decimals_that_fit(value, width, text):
    assert float_text(value, width) == text


def test_the_head_is_rccl_tests_to_the_blank():
    assert header_lines(Columns()) == [
        "#",
        "#" + " " * 62 + "out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong  ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)          ",
    ]


def test_a_row_is_rccl_tests_to_the_blank():
    assert row_line(ROW, Columns()) == (
        "     1048576        262144     float     sum      -1    12.34   84.94  148.65       0"
        "  12345.7    0.08  1486.5       3"
    )


def test_an_unchecked_row_says_so():
    assert row_line(UNCHECKED, Columns()) == (
        "  8589934592    2147483648      half    none       0   500000   17.18   17.18    N/A"
        "   500000   17.18   17.18    N/A"
    )


def test_algorithm_columns_follow_the_last_half():
    row = Row(*[getattr(ROW, f) for f in ("size", "count", "dtype", "op", "root", "out_of_place",
                                          "in_place")], "ring", "LL128", 24)  # fmt: skip
    columns = Columns(algorithms=True)
    assert row_line(row, columns).endswith("       3    ring     LL128          24")
    assert header_lines(columns)[2].endswith("  #wrong algo      proto      nchannels ")


def test_a_long_algorithm_name_keeps_a_blank_before_it():
    row = Row(8, 2, "float", "sum", -1, ROW.out_of_place, ROW.in_place, "hier-direct-circulant",
              "Simple", 1)  # fmt: skip
    assert row_line(row, Columns(algorithms=True)).split()[-3:] == [
        "hier-direct-circulant", "Simple", "1"]  # fmt: skip


@pytest.mark.parametrize("columns", [Columns(in_place=False), Columns(out_of_place=False)])
def test_one_half_alone_has_its_own_head_and_nine_columns(columns):
    head = header_lines(columns)
    assert ("out-of-place" in head[1]) == columns.out_of_place
    assert len(row_line(ROW, columns).split()) == 9
    assert head[2].split()[1:] == ["size", "count", "type", "redop", "root", "time", "algbw",
                                   "busbw", "#wrong"]  # fmt: skip


def test_head_and_rows_line_up():
    head, line = header_lines(Columns())[2], row_line(ROW, Columns())
    for name in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"):
        end = head.index(name) + len(name)
        assert line[end - 1] != " " and line[end : end + 1] in ("", " ")


def test_the_opening_comments_tell_the_run_and_the_ranks():
    lines = config_lines(CONFIG, RANKS)
    assert lines[0] == "# rccl-tests version 1.2.3-rccl_py rccl-headers=10203 rccl-library=10203"
    assert lines[1] == "# Collective test starting: all_reduce_perf"
    assert lines[2] == (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0"
    )
    assert lines[3:5] == ["#", "# Using devices"]
    assert lines[5] == ("#  Rank  0 Group  0 Pid   4242 on       node device  0 [0000:00:00] "
                        "AMD Instinct MI300X")  # fmt: skip
    assert len(lines) == 5 + 8


def test_many_ranks_are_cut_short():
    lines = config_lines(CONFIG, RANKS * 1000)
    assert len(lines) == 5 + 1024 + 1 and lines[-1] == "..."


def test_the_footer_is_what_scripts_grep():
    lines = footer_lines(CONFIG, 0, 123.4564e9, None)
    assert lines[0] == "# Out of bounds values : 0 OK"
    assert lines[1] == "# Avg bus bandwidth    : 123.456 "
    assert re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", "\n".join(lines))[1] == "123.456"
    assert lines[2:] == ["#", "# Collective test concluded: all_reduce_perf", "#", ""]


def test_the_footer_judges_wrong_values_and_the_least_bandwidth():
    lines = footer_lines(CONFIG, 2, 89.9e9, 100.0)
    assert lines[0].endswith(": 2 FAILED") and lines[1].endswith(": 89.9 FAILED")
    assert footer_lines(CONFIG, 0, 90.1e9, 100.0)[1].endswith(": 90.1 OK")
    assert too_slow(89.9e9, 100.0) and not too_slow(90.1e9, 100.0) and not too_slow(0, None)


def _document(**changes):
    given = {"arguments": ["rccl-perf", "allreduce"], "environment": {"NCCL_ALGO": "Ring"},
             "started": "2025-01-02 03:04:05", "ended": "2025-01-02 03:04:06", "failures": 0,
             "average": 12.5e9, "least": None}  # fmt: skip
    return json.loads(json_text(CONFIG, RANKS, [ROW, UNCHECKED], **{**given, **changes}))


def test_the_document_has_the_keys_of_schema_3_in_order():
    document = _document()
    assert list(document) == ["version", "start_time", "args", "env", "nccl_version", "config",
                              "results", "out_of_bounds", "average_bus_bandwidth", "errors",
                              "end_time"]  # fmt: skip
    assert document["version"] == 3 and document["nccl_version"] == 10203
    assert document["env"] == ["NCCL_ALGO=Ring"]
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["average_bus_bandwidth"] == {"bandwidth": 12.5, "okay": "unchecked"}
    assert len(document["config"]["devices"]) == 8 and document["config"]["step_factor"] == 2
    assert set(document["config"]["devices"][0]) == {"rank", "group", "pid", "hostname", "device",
                                                     "device_hex", "device_info"}  # fmt: skip


def test_the_documents_results_are_the_rows():
    first, second = _document()["results"]
    assert first == {
        "size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 12.344, "alg_bw": 84.945, "bus_bw": 148.654, "nwrong": 0.0},
        "in_place": {"time": 12345.678, "alg_bw": 0.0849, "bus_bw": 1486.54, "nwrong": 3.0},
        "actual_iterations": 20, "experiment_name": "",
    }  # fmt: skip
    assert second["out_of_place"]["nwrong"] is None


def test_the_document_judges_the_least_bandwidth():
    assert _document(least=10.0)["average_bus_bandwidth"]["okay"] == "true"
    assert _document(least=20.0)["average_bus_bandwidth"]["okay"] == "false"
    assert _document(failures=1)["out_of_bounds"] == {"count": 1, "okay": "false"}


def test_csv_has_a_record_for_each_half():
    text = csv_text("AllReduce", {"gpus": 8}, [ROW, UNCHECKED])
    assert text.splitlines()[0] == ("numCycle,collective,gpus,size,type,redop,inplace,"
                                    "time,algbw,busbw,#wrong")  # fmt: skip
    records = list(csv.DictReader(io.StringIO(text)))
    assert [r["inplace"] for r in records] == ["0", "1", "0", "1"]
    assert [r["#wrong"] for r in records] == ["0", "3", "N/A", "N/A"]
    assert records[0]["collective"] == "AllReduce" and records[0]["time"] == "12.344000"
    assert text.splitlines()[1].startswith('0,"AllReduce",8,1048576,"float","sum",0,')


def test_json_records_parse_and_tell_the_processes():
    where = {"nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 1}
    records = json.loads(records_json_text("AllReduce", where, [ROW]))
    assert [r["inPlace"] for r in records] == [0, 1]
    assert records[1]["wrong"] == "3" and records[0]["ranksPerNode"] == 8
    assert json.loads(records_json_text("AllReduce", where, [])) == []
