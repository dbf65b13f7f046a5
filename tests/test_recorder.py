"""The flight recorder keeps the last calls and writes them as JSON, whatever the calls are."""

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.disagreement import first_disagreement, read_record
from rccl_py.errors import InvalidArgument, RcclSystemError
from rccl_py.recorder import Recorder
from rccl_py.reduce_ops import ReduceOp


class Made:
    """A call that knows its fields."""

    def __init__(self, **fields) -> None:
        self.held = fields

    def __str__(self) -> str:
        return f"allreduce({', '.join(f'{k}={v}' for k, v in self.held.items())})"

    def fields(self):
        return self.held


class Untellable:
    def __str__(self) -> str:
        raise ValueError("no text")


def recorded(what: object, **more) -> dict:
    """Return the one call of a record, having been through JSON."""
    recorder = Recorder(2, 1, "world")
    recorder.add(7, what, more.pop("site", None), **more)
    (call,) = json.loads(json.dumps(recorder.dump()))["calls"]
    return call


def test_a_record_says_whose_it_is():
    record = Recorder(4, 3, "world").dump("hung")
    assert record == {
        "format": "rccl_py flight record", "version": 1, "communicator": "world", "rank": 3,
        "nranks": 4, "host": socket.gethostname(), "pid": os.getpid(), "reason": "hung",
        "total": 0, "calls": [],
    }  # fmt: skip


def test_a_call_has_its_fields():
    call = recorded(Made(count=4, dtype="float", op="sum", root=0, bytes=16))
    assert call == {
        "seq": 7, "kind": "collective", "call": "allreduce(count=4, dtype=float, op=sum, root=0, "
        "bytes=16)", "collective": "allreduce", "count": 4, "dtype": "float", "op": "sum",
        "root": 0, "bytes": 16, "state": "queued", "site": None, "note": "",
    }  # fmt: skip


def test_a_call_without_fields_is_its_text():
    call = recorded("broadcast(count=4, root=1)")
    assert (call["collective"], call["count"], call["root"]) == ("broadcast", None, None)


def test_a_call_without_brackets_is_its_own_collective():
    assert recorded("barrier")["collective"] == "barrier"


def test_numbers_of_numpy_and_enums_become_plain():
    call = recorded(Made(count=np.int64(4), dtype=np.dtype("f4"), op=ReduceOp.MAX, root=np.int8(1)))
    assert [call[key] for key in ("count", "dtype", "op", "root")] == [4, "float32", "max", 1]


def test_a_call_whose_text_fails_is_still_recorded():
    assert recorded(Untellable())["call"] == "Untellable (no text: ValueError)"


def test_a_call_whose_fields_fail_is_still_recorded():
    broken = SimpleNamespace(fields=lambda: 1 / 0)
    assert recorded(broken)["call"] == "SimpleNamespace (no text: ZeroDivisionError)"


def test_a_call_is_told_when_it_is_dumped_not_when_it_is_made():
    recorder = Recorder(1, 0, "world")
    recorder.add(1, Untellable(), None)
    what = Made(count=1)
    recorder.add(2, what, None)
    what.held = {"count": 2}
    assert recorder.dump()["calls"][1]["count"] == 2


def test_a_site_is_file_and_line():
    assert recorded("x()", site=("train.py", 31))["site"] == "train.py:31"
    assert recorded("x()", site=(recorded.__code__, 5))["site"] == f"{__file__}:5"


def test_a_state_and_a_note_change_while_the_call_proceeds():
    recorder = Recorder(2, 1, "world")
    entry = recorder.add(1, "x()", None, "running")
    assert recorder.dump()["calls"][0]["state"] == "running"
    entry.state, entry.note = "failed", ValueError("torn")
    assert [recorder.dump()["calls"][0][key] for key in ("state", "note")] == ["failed", "torn"]


@given(st.integers(1, 6), st.integers(0, 20))
def test_the_last_calls_are_kept_and_all_are_counted(capacity, made):
    recorder = Recorder(1, 0, "world", capacity)
    for seq in range(made):
        recorder.add(seq, "x()", None)
    record = recorder.dump()
    assert record["total"] == recorder.total == made
    assert [call["seq"] for call in record["calls"]] == list(range(made))[-capacity:]


@pytest.mark.parametrize("arguments, what", [
    ((0, 0, "w"), "nranks 0"), ((2, 2, "w"), "rank 2: expected 0 to 1"), ((2, -1, "w"), "rank -1"),
    ((2, 0, 3), "name 3 is a int"), ((2, 0, "w", 0), "capacity 0"), (("2", 0, "w"), "nranks '2'"),
])  # fmt: skip
def test_a_recorder_of_no_rank_is_refused(arguments, what):
    with pytest.raises(InvalidArgument, match=f"recorder: {what}"):
        Recorder(*arguments)


# ---- files ----------------------------------------------------------------------------------


def test_a_record_is_written_and_read_back(tmp_path):
    recorder = Recorder(2, 1, "world")
    recorder.add(1, Made(count=4), ("a.py", 1))
    path = recorder.write(tmp_path / "new" / "folder", "timeout")
    assert path == tmp_path / "new" / "folder" / "rccl-flight-world-rank1.json"
    assert read_record(path) == recorder.dump("timeout")


def test_nothing_but_the_record_is_left_in_the_folder(tmp_path):
    recorder = Recorder(2, 1, "world")
    recorder.write(tmp_path, "first")
    path = recorder.write(tmp_path, "second")
    assert list(tmp_path.iterdir()) == [path] and read_record(path)["reason"] == "second"


@pytest.mark.parametrize("name", ["a/b", "../x", "dp group", "", "x\0y"])
def test_any_name_is_a_file_in_the_folder(tmp_path, name):
    path = Recorder(1, 0, name).write(tmp_path, "why")
    assert path.parent == tmp_path and read_record(path)["communicator"] == name


def test_names_that_differ_in_odd_letters_only_are_different_files(tmp_path):
    assert len({Recorder(1, 0, name).write(tmp_path, "") for name in ("a/b", "a b", "a_b")}) == 3


def test_a_folder_that_cannot_be_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RcclSystemError, match=r"rank0\.json: the flight record cannot be written"):
        Recorder(1, 0, "w").write(tmp_path / "file", "why")


def test_records_of_recorders_can_be_compared():
    ranks = [Recorder(2, rank, "world") for rank in range(2)]
    for recorder in ranks:
        recorder.add(1, Made(count=4 + recorder.rank, op=ReduceOp.SUM), None)
    found = first_disagreement([recorder.dump() for recorder in ranks])
    assert (found.seq, found.fields) == (1, ("count",))
