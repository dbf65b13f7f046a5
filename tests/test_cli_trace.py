"""`rccl-perf --trace FILE` writes the last row's call, and says in one line when it cannot."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from mpirun import mpirun

from rccl_py import Planner, load, lower
from rccl_py.cli import perf_launch
from rccl_py.cli.perf import main

TEXT = "allreduce --topology mi300x-8 -b 64K -e 1M -f 16"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    launched = [name for pair in perf_launch._LAUNCHERS for name in pair]
    for name in [*launched, "NCCL_ALGO", "NCCL_PROTO"]:
        monkeypatch.delenv(name, raising=False)


def written(capsys, path, text: str = TEXT) -> tuple[str, dict]:
    code = main([*text.split(), "--trace", str(path)])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    data = path.read_bytes()
    return out, json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def test_the_trace_is_of_the_last_row_s_plan(capsys, tmp_path):
    out, trace = written(capsys, tmp_path / "t.json")
    other = trace["otherData"]
    assert f"# Trace of allreduce of 1M bytes (engine {other['engine']}) in" in out
    plan = Planner(lower(load("mi300x-8")), synthesise=False).plan("allreduce", 1 << 20)
    assert (other["bytes"], other["ranks"]) == (1 << 20, 8)
    assert (other["algorithm"], other["protocol"]) == (plan.algorithm, plan.protocol)
    sent = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 2]
    assert len(sent) == other["messages"] > 0
    assert {e["args"]["src"] for e in sent} == set(range(8))


def test_all_messages_lie_between_launch_and_the_end_of_the_call(capsys, tmp_path):
    _, trace = written(capsys, tmp_path / "t.json")
    call, launch, *sent = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert all(e["ts"] >= launch["dur"] for e in sent)
    assert all(e["args"]["arrives_us"] <= call["dur"] + 1e-3 for e in sent)


def test_a_name_that_ends_in_gz_is_packed_and_the_same_twice(capsys, tmp_path):
    _, plain = written(capsys, tmp_path / "t.json")
    _, packed = written(capsys, tmp_path / "t.json.gz")
    assert packed == plain
    first = (tmp_path / "t.json.gz").read_bytes()
    written(capsys, tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").read_bytes() == first


@pytest.mark.parametrize("what", ["-g 1 -b 8 -e 8", "-b 0 -e 0"])
def test_a_call_that_moves_nothing_has_a_trace_too(capsys, tmp_path, what):
    text = f"allreduce --topology mi300x-8 {what}"
    _, trace = written(capsys, tmp_path / "t.json", text)
    assert {"call", "ranks", "links"} == {
        e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }


def test_where_it_cannot_be_written_is_said_before_the_run(capsys, tmp_path):
    code = main([*TEXT.split(), "--trace", str(tmp_path / "none" / "t.json")])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and "cannot be written" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("flag", ["-J", "-x"])
def test_one_file_for_two_things_is_refused(capsys, tmp_path, flag):
    path = str(tmp_path / "same")
    code = main([*TEXT.split(), flag, path, "--trace", path])
    assert code == 2
    assert f"{flag} and --trace both name '{path}': give two files" in capsys.readouterr().err


def test_the_python_of_the_docs_makes_a_trace():
    docs = Path(__file__).parents[1] / "docs" / "trace.md"
    (code,) = re.findall(r"```python\n(.*?)```", docs.read_text(), re.S)
    names: dict = {}
    exec(compile(code, str(docs), "exec"), names)
    assert json.loads(names["text"])["otherData"]["bytes"] == 64 << 20


@pytest.mark.mpi
def test_under_mpirun_the_first_process_writes(tmp_path):
    path = tmp_path / "t.json"
    done = mpirun(2, "-m", "rccl_py.cli.perf", *TEXT.split(), "--trace", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Trace of allreduce") == 1
    assert json.loads(path.read_text())["otherData"]["ranks"] == 2
