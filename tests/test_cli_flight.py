"""`rccl-flight` tells where records part by text, by JSON and by its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rccl_py as rccl
from rccl_py.cli.flight import main
from rccl_py.recorder import Recorder


def flown(folder: Path, *counts: int, n: int = 0, name: str = "world") -> list[str]:
    """Write one record a count: one call done, and one of that count still running."""
    files = []
    for rank, count in enumerate(counts):
        recorder = Recorder(n or len(counts), rank, name)
        recorder.add(1, "broadcast(count=2, root=0)", ("train.py", 3), "done")
        call = f"allreduce{'_' * count}(count={count})"
        recorder.add(2, call, ("train.py", 4), "running")
        files.append(str(recorder.write(folder, "timeout after 3 s")))
    return files


def test_ranks_that_agree_are_told_so_with_exit_code_0(tmp_path, capsys):
    assert main(flown(tmp_path, 1, 1, 1)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "world: 3 of 3 ranks recorded, collectives 1 to 2, 1 not done",
        "  reason: timeout after 3 s", "ranks agree",
    ]  # fmt: skip


def test_a_disagreement_is_told_with_exit_code_1(tmp_path, capsys):
    assert main(flown(tmp_path, 1, 1, 2, n=4)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "world: 3 of 4 ranks recorded, collectives 1 to 2, 1 not done",
        "  reason: timeout after 3 s",
        "communicator 'world', call 2: ranks disagree on collective",
        "  ranks 0, 1 called allreduce_(count=1) at train.py:4",
        "  rank 2 called allreduce__(count=2) at train.py:4   <-- odd",
        "  no record of rank 3",
    ]


def test_a_folder_stands_for_the_records_in_it(tmp_path, capsys):
    flown(tmp_path, 1, 1)
    (tmp_path / "other.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert "2 of 2 ranks" in capsys.readouterr().out


def test_a_file_named_twice_is_read_once(tmp_path):
    files = flown(tmp_path, 1, 1)
    assert main([str(tmp_path), *files]) == 0


def test_every_communicator_has_a_line(tmp_path, capsys):
    flown(tmp_path, 1, 1, name="dp")
    Recorder(2, 0, "tp").write(tmp_path, "asked")
    assert main([str(tmp_path)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "recorded" in line] == [
        "dp: 2 of 2 ranks recorded, collectives 1 to 2, 1 not done",
        "tp: 1 of 2 ranks recorded, no collective",
    ]


def test_json_says_the_same(tmp_path, capsys):
    assert main(["--json", *flown(tmp_path, 1, 2, 1)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["agree"] is False
    assert told["disagreement"]["ranks"] == [1] and told["disagreement"]["seq"] == 2
    assert told["communicators"] == [{
        "communicator": "world", "nranks": 3, "recorded": [0, 1, 2], "collectives": 2, "first": 1,
        "last": 2, "unfinished": 1, "reasons": ["timeout after 3 s"],
    }]  # fmt: skip


def test_json_of_ranks_that_agree_holds_no_disagreement(tmp_path, capsys):
    assert main(["--json", *flown(tmp_path, 1, 1)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agree"] is True and told["disagreement"] is None


@pytest.mark.parametrize("name, text, what", [
    ("a.json", "{", "a.json:1: not JSON"), ("a.json", "{}", "a.json: format is None"),
    ("a.json", None, "a.json: cannot be read: No such file"),
])  # fmt: skip
def test_what_is_no_record_is_one_line_and_exit_code_2(tmp_path, capsys, name, text, what):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and what in told.err and len(told.err.splitlines()) == 1


def test_a_folder_without_records_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no flight record in this folder (rccl-flight-*.json)" in capsys.readouterr().err


def test_without_an_argument_the_run_that_failed_last_is_read(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main([]) == 2
    assert "no run has left flight records" in capsys.readouterr().err
    comms = rccl.Communicator.init_all("mi300x-8", 2)
    with pytest.raises(rccl.RcclError):
        for comm in comms:
            comm.broadcast(np.ones(2), np.ones(2), comm.rank)
    assert main([]) == 1
    assert "rank 1" in capsys.readouterr().out
