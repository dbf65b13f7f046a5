"""Wrong types, absurd numbers and odd files: one error of the tree, one line, exit code 2."""

import os
from pathlib import Path

import numpy as np
import pytest

import rccl_py as rccl
from rccl_py.cli import perf, plan, topo

ALL = rccl.Communicator.init_all
PAIR = ALL("mi300x-8", 2)

CALLS = {
    "nranks as text": lambda: ALL("mi300x-8", "2"),
    "nranks beyond": lambda: ALL("mi300x-8", 10**30),
    "nranks of nothing": lambda: ALL("mi300x-8", float("nan")),
    "nranks as bool": lambda: ALL("mi300x-8", True),
    "no topology": lambda: ALL(None),
    "a number for a topology": lambda: ALL(5),
    "bytes for a topology": lambda: ALL(b"mi300x-8"),
    "a null byte in a name": lambda: ALL("mi300x-8\x00"),
    "a name too long for a file": lambda: ALL("x" * 5000),
    "algo as a number": lambda: ALL("mi300x-8", algo=5),
    "proto as bytes": lambda: ALL("mi300x-8", proto=b"LL"),
    "nodes as text": lambda: rccl.load("mi300x-8", nodes="2"),
    "oversubscription as text": lambda: rccl.load("mi300x-8", oversubscription="4:1"),
    "oversubscription of nothing": lambda: rccl.load("mi300x-8", oversubscription=float("nan")),
    "leaf_nodes of a half": lambda: rccl.load("mi300x-8", leaf_nodes=1.5),
    "ranks as texts": lambda: rccl.lower(rccl.load("mi300x-8"), ["a"]),
    "a rank that is not there": lambda: rccl.lower(rccl.load("mi300x-8"), [0, 8]),
    "no collective": lambda: PAIR[0].plan(None, 5, "float"),
    "count as text": lambda: PAIR[0].plan("allreduce", "5", "float"),
    "count beyond": lambda: PAIR[0].plan("allreduce", 10**40, "float"),
    "no root": lambda: PAIR[0].plan("broadcast", 5, "float", root=None),
    "half a root": lambda: PAIR[0].plan("broadcast", 5, "float", root=1.5),
    "half an element": lambda: PAIR[0].mem_alloc(1.5, "float"),
    "more memory than there is": lambda: PAIR[0].mem_alloc(1 << 50, "float"),
    "more memory than a number": lambda: PAIR[0].mem_alloc(10**30, "float"),
    "a masked array": lambda: PAIR[0].allreduce(np.ma.ones(4), np.ones(4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_of_the_tree(name):
    with pytest.raises(rccl.RcclError):
        CALLS[name]()


FILES = {
    "a list for a key": "[a]: 1\n",
    "a mapping for a key": "{a: 1}: 1\n",
    "a sequence that says it is a mapping": "!!map [a]\n",
    "a machine with a null in its name": 'name: "\\0x"\nsummary: s\ngpus: 1\ndevice: mi300x\n',
    "half a surrogate": 'name: "\\ud83d"\nsummary: s\ngpus: 1\ndevice: mi300x\n',
    "endless lanes": "name: a\nsummary: s\ngpus: 2\ndevice: mi300x\n"
                     "scale_up: {mesh: {link: xgmi-mi300, lanes: .inf}}\n",
    "a bandwidth beyond any": "name: a\nsummary: s\ngpus: 2\ndevice: mi300x\n"
                              "links: {l: {bandwidth: 1e305GB/s, latency: 1us, source: me}}\n",
    "a hop of days": "name: a\nsummary: s\ngpus: 2\ndevice: mi300x\n"
                     "scale_up: {switch: {link: nvlink4, lanes: 1, hop: 1e6s}}\n",
    "more planes than can be routed": "name: a\nsummary: s\ngpus: 1024\ndevice: mi300x\n"
                     "scale_up: {switch: {link: nvlink4, lanes: 256, switches: 256, hop: 1us}}\n",
    "a cable inside the node": "name: a\nsummary: s\ngpus: 2\ndevice: mi300x\n"
                               "nics: {link: xgmi-mi300, count: 2}\n",
    "hosts that do not divide": "name: a\nsummary: s\ngpus: 4\nhosts: 3\ndevice: mi300x\n",
    "a node with too long a name": f"name: a\nsummary: s\nnode: {'x' * 5000}\nnodes: 2\n",
}  # fmt: skip
COMMANDS = {
    "a size beyond all": (perf, "allreduce --topology mi300x-8 -b 1e400 -e 1e400"),
    "a root in another script": (perf, "allreduce --topology mi300x-8 -r ²"),
    "a count of 60 digits": (perf, "allreduce --topology mi300x-8 -n " + "9" * 60),
    "a device for a file": (perf, "allreduce --topology /dev/zero"),
    "more GPUs than a number": (plan, "allreduce --topology mi300x-8 -g " + "9" * 30),
    "a plan for endless bytes": (plan, "allreduce --topology mi300x-8 --size 1e400"),
    "nothing to show": (topo, "show /nowhere/at/all"),
}


def outcome(capsys, module, arguments):
    code = module.main(arguments.split())
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("module, command", [(topo, "show"), (plan, "allreduce --topology")])
def test_a_bad_machine_is_one_line_and_exit_code_2(
    capsys, tmp_path, monkeypatch, name, module, command
):
    monkeypatch.chdir(tmp_path)  # so that the file's name is short, wherever the tests run
    Path("machine.yaml").write_text(FILES[name])
    code, out, err = outcome(capsys, module, f"{command} machine.yaml")
    assert code == 2 and not out and err.count("\n") == 1 and "machine.yaml" in err
    assert "internal error" not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_bad_argument_is_one_line_and_exit_code_2(capsys, name):
    code, out, err = outcome(capsys, *COMMANDS[name])
    assert code == 2 and not out and err.count("\n") == 1 and "internal error" not in err


def test_a_named_pipe_nobody_writes_is_refused_at_once(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, _, err = outcome(capsys, topo, f"show {tmp_path / 'pipe'}")
    assert code == 2 and "named pipe" in err


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_matrix_moves_like_the_array_it_is():
    comms = ALL("mi300x-8", 2)
    inputs = [np.matrix(np.full((200, 200), r + 1.0)) for r in range(2)]
    outputs = [np.matrix(np.zeros((200, 200))) for _ in range(2)]
    with rccl.group():
        for comm, x, y in zip(comms, inputs, outputs):
            comm.allreduce(x, y)
    assert all((y == 3.0).all() for y in outputs)


def test_a_fault_of_ours_is_one_line_too(capsys, monkeypatch):
    monkeypatch.setattr("rccl_py.topology.load", lambda *a, **k: 1 / 0)
    code, _, err = outcome(capsys, plan, "allreduce --topology mi300x-8")
    assert code == 2 and err.count("\n") == 1 and "ZeroDivisionError" in err
