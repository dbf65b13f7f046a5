"""Commands on schedules of other tools: rccl-plan compares and writes them, rccl-perf runs them."""

from __future__ import annotations

import json

import pytest
from helpers import built

import rccl_py as rccl
from rccl_py import msccl_xml
from rccl_py.cli.perf import main as perf
from rccl_py.cli.plan import main as plan_command

NODE = "mi300x-8"


@pytest.fixture
def file(tmp_path):
    """A ring of four as a file."""
    path = tmp_path / "ring.xml"
    path.write_text(msccl_xml(built("allreduce", "ring", 4), name="file-ring"))
    return str(path)


def test_rccl_plan_shows_a_files_price_beside_the_planners_choice(file, capsys):
    assert plan_command(["--schedule", file, "--topology", NODE, "--size", "1M"]) == 0
    out = capsys.readouterr().out
    assert f"# schedule {file}: allreduce 'file-ring' on 4 ranks, Simple" in out
    assert "1M bytes:" in out and "against" in out and "x\n" in out
    assert "\n  file-ring " in out or "\n* file-ring " in out


def test_rccl_plan_tells_it_as_json(file, capsys):
    arguments = ["allreduce", "--schedule", file, "--topology", NODE, "--size", "64K", "--json"]
    assert plan_command(arguments) == 0
    (told,) = json.loads(capsys.readouterr().out)[0]["schedules"]
    assert told["name"] == "file-ring" and told["seconds"] > 0 and told["best_other_seconds"] > 0


def test_rccl_plan_writes_a_plan_that_is_read_again(tmp_path, capsys):
    out = tmp_path / "out.xml"
    command = ["allgather", "--topology", NODE, "-g", "4", "--size", "1M", "--export", str(out)]
    assert plan_command(command) == 0
    assert rccl.read_schedule(out).collective == "allgather"
    assert plan_command([*command[:5], "--export", str(out)]) == 2
    assert "--export writes one plan" in capsys.readouterr().err


@pytest.mark.parametrize("more, told", [
    (["allgather"], "does allreduce, not allgather"),
    (["-g", "8"], "does not fit"),
])  # fmt: skip
def test_rccl_plan_refuses_what_does_not_fit_in_one_line(file, capsys, more, told):
    assert plan_command([*more, "--schedule", file, "--topology", NODE]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_rccl_plan_without_a_collective_says_what_to_give(capsys):
    assert plan_command(["--topology", NODE]) == 2
    assert "name one, as in rccl-plan allreduce" in capsys.readouterr().err


def test_rccl_perf_runs_a_file_and_checks_the_data(file, capsys, monkeypatch):
    monkeypatch.setenv("RCCL_PY_SCHEDULES", file)
    arguments = ["allreduce", "--topology", NODE, "-g", "4", "-b", "1K", "-e", "1K", "-M", "1"]
    assert perf(arguments) == 0
    out = capsys.readouterr().out
    assert "file-ring" in out and "# Out of bounds values : 0 OK" in out
    assert perf([*arguments[:3], "-g", "3", *arguments[5:]]) == 2
