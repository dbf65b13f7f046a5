"""`rccl-perf` prints rccl-tests' table, checks real data, and fails in one line."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpirun import mpirun

from rccl_py.cli import perf_data, perf_launch
from rccl_py.cli.perf import main
from rccl_py.cli.perf_arguments import parsed, settings_from
from rccl_py.cli.perf_data import Exchange, block_of, buffer_bytes
from rccl_py.cli.perf_files import check_writable, write_whole
from rccl_py.cli.perf_launch import Launch, launch_from, leave_together, only_first_speaks
from rccl_py.collectives import COLLECTIVES
from rccl_py.comm import Communicator
from rccl_py.dtypes import dtype_named
from rccl_py.errors import RcclSystemError
from rccl_py.reduce_ops import ReduceOp

NUMBER = r"[\d.]+(?:e[+-]\d+)?"
HALF = rf"\s+(?P<time{{0}}>{NUMBER})\s+(?P<algbw{{0}}>{NUMBER})\s+(?P<busbw{{0}}>{NUMBER})"
ROW = re.compile(
    r"^\s+(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>\w+)\s+(?P<redop>\w+)\s+(?P<root>-?\d+)"
    + HALF.format(0) + r"\s+(?P<wrong0>\d+|N/A)"
    + HALF.format(1) + r"\s+(?P<wrong1>\d+|N/A)(?P<rest>.*)$"
)  # fmt: skip
"""How scripts read a row of all_reduce_perf."""

LAUNCHED = [name for pair in perf_launch._LAUNCHERS for name in pair]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in [*LAUNCHED, "NCCL_ALGO", "NCCL_PROTO", "NCCL_TESTS_MIN_BW"]:
        monkeypatch.delenv(name, raising=False)


def run(capsys, text: str, *more: str) -> tuple[int, str, str]:
    code = main([*text.split(), *more])
    out, err = capsys.readouterr()
    return code, out, err


def rows(capsys, text: str, *more: str) -> list[dict[str, str]]:
    code, out, err = run(capsys, text, *more)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line and not line.startswith("#")]
    found = [ROW.match(line) for line in lines]
    assert all(found), out
    return [match.groupdict() for match in found if match]


# ---- the table ---------------------------------------------------------------------------------


def test_the_table_reads_as_all_reduce_perfs(capsys):
    found = rows(capsys, "allreduce --topology mi300x-8 -b 8 -e 64K -f 2 -g 8")
    assert [int(row["size"]) for row in found] == [8 << k for k in range(14)]
    for row in found:
        assert (row["type"], row["redop"], row["root"]) == ("float", "sum", "-1")
        assert row["wrong0"] == row["wrong1"] == "0"
        assert int(row["count"]) * 4 == int(row["size"])
    last = found[-1]
    assert float(last["busbw0"]) == pytest.approx(float(last["algbw0"]) * 2 * 7 / 8, abs=0.02)
    assert float(last["algbw0"]) == pytest.approx(65536 / float(last["time0"]) / 1e3, abs=0.02)


def test_the_average_is_the_mean_of_every_busbw(capsys):
    code, out, _ = run(capsys, "allreduce --topology mi300x-8 -b 1M -e 8M -f 2")
    halves = [float(m[k]) for line in out.splitlines() if (m := ROW.match(line))
              for k in ("busbw0", "busbw1")]  # fmt: skip
    average = float(re.search(r"# Avg bus bandwidth    : (\S+) ", out)[1])
    assert code == 0 and average == pytest.approx(sum(halves) / len(halves), abs=0.01)
    assert "# Out of bounds values : 0 OK" in out


@pytest.mark.parametrize("name", list(COLLECTIVES))
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_every_collective_is_right_on_real_data(capsys, name, n):
    collective = COLLECTIVES[name]
    found = rows(capsys, f"{collective.perf_name}_perf --topology mi300x-8 -g {n} -b 4 -e 40K "
                         f"-f 10 -r {n - 1}")  # fmt: skip
    assert {row["wrong0"] for row in found} == {"0"}
    assert {row["wrong1"] for row in found} == {"N/A" if name == "alltoall" else "0"}
    assert {row["redop"] for row in found} == {"sum" if collective.reduces else "none"}
    assert {row["root"] for row in found} == {str(n - 1) if collective.rooted else "-1"}


def test_all_types_and_reductions_are_exact_on_many_ranks(capsys):
    found = rows(capsys, "allreduce --topology helios-72 -b 1K -e 1K -o all -d all")
    assert len(found) == 12 * 5
    assert [row["redop"] for row in found[:5]] == ["sum", "prod", "max", "min", "avg"]
    assert {row["wrong0"] for row in found} | {row["wrong1"] for row in found} == {"0"}


def test_all_roots_are_run_in_turn(capsys):
    found = rows(capsys, "broadcast --topology mi300x-8 -g 3 -b 1K -e 1K -r all")
    assert [row["root"] for row in found] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("name", "size", "itemsize", "n", "count"),
    [("allreduce", 8, 4, 8, 2), ("allreduce", 7, 4, 8, 1), ("allgather", 8, 4, 8, 0),
     ("allgather", 128, 4, 8, 4), ("allgather", 1000, 4, 8, 28), ("alltoall", 1000, 1, 7, 128),
     ("reduce_scatter", 1 << 20, 8, 72, 1820), ("gather", 64, 2, 1, 32), ("broadcast", 5, 1, 3, 5),
     ("scatter", 1 << 20, 2, 3, 174760)],
)  # fmt: skip
def test_counts_are_rccl_tests_rounded_to_16_bytes_a_rank(name, size, itemsize, n, count):
    assert block_of(COLLECTIVES[name], size, itemsize, n) == count


def test_sizes_can_grow_by_bytes(capsys):
    found = rows(capsys, "allreduce --topology mi300x-8 -b 1K -e 3K -i 1K")
    assert [row["size"] for row in found] == ["1024", "2048", "3072"]


def test_without_effect_flags_and_long_names_are_accepted(capsys):
    found = rows(capsys, "all_reduce_perf --topology mi300x-8 --minbytes 8 --maxbytes=16 "
                 "--stepfactor 2 --iters 5 --warmup_iters 2 --agg_iters 1 --check 1 --op max "
                 "--datatype half --root 0 --ngpus 4 --nthreads 2 -p 0 -z 1 -G 0 -C 0 -a 1 -T 60 "
                 "-S 0 -R 1 -y 0 -Y fine -u 0,0 -q 10 -F 0 -E 0 -D 0 -V 16")  # fmt: skip
    assert [(row["size"], row["type"], row["redop"]) for row in found] == [
        ("8", "half", "max"), ("16", "half", "max")]  # fmt: skip


def test_threads_times_gpus_are_the_ranks(capsys):
    _, out, _ = run(capsys, "allreduce --topology mi300x-8 -t 3 -g 2 -b 8 -e 8")
    assert "# nThread 3 nGpus 2 " in out and out.count("#  Rank ") == 6


def test_all_gpus_of_all_nodes_are_used_by_default(capsys):
    _, out, _ = run(capsys, "allreduce --topology mi300x-8-x16-leaf-spine --nodes 2 -b 8 -e 8")
    assert out.count("#  Rank ") == 16 and "on      node1 device  7 " in out


@pytest.mark.parametrize("flag", ["-M", "-M 1", "-A 1", "--output_algo_proto_channels 1"])
def test_algorithm_columns_name_what_was_chosen(capsys, flag):
    found = rows(capsys, f"allreduce {flag} --topology mi300x-8 -b 8M -e 8M --algo ring "
                         "--proto Simple")  # fmt: skip
    algorithm, protocol, channels = found[0]["rest"].split()
    assert (algorithm.lower(), protocol) == ("ring", "Simple") and int(channels) >= 1


def test_algo_and_proto_come_from_nccls_variables_unless_given(monkeypatch):
    given = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    plain = settings_from(parsed(["allreduce", "--topology", "x"]), given)
    named = settings_from(parsed(["allreduce", "--topology", "x", "--algo", "ring"]), given)
    assert (plain.algo, plain.proto) == ("Tree", "LL")
    assert (named.algo, named.proto) == ("ring", "LL")


@pytest.mark.parametrize(("flag", "place"), [("-O 1", "out-of-place"), ("-O 0", "in-place")])
def test_one_half_can_be_left_out(capsys, flag, place):
    code, out, _ = run(capsys, f"allreduce --topology mi300x-8 -b 8 -e 8 {flag}")
    line = next(line for line in out.splitlines() if line.startswith("   "))
    assert code == 0 and len(line.split()) == 9 and f"          {place}" in out


def test_cycles_repeat_the_table(capsys):
    code, out, _ = run(capsys, "allreduce --topology mi300x-8 -b 8 -e 16 -f 2 -N 2")
    told = [line for line in out.splitlines() if line.startswith(("# Testing", "   "))]
    assert code == 0
    assert [line[:11] for line in told[::3]] == ["# Testing 1", "# Testing 2"] and len(told) == 6


# ---- data, and its limits ----------------------------------------------------------------------


def test_rows_above_the_data_limit_are_timed_without_data(capsys):
    found = rows(capsys, "allreduce --topology mi300x-8 -b 1K -e 4K -f 2 --data-limit 32K")
    # 8 ranks x 2 buffers x 2 KiB = 32 KiB is the last that is moved.
    assert [row["wrong0"] for row in found] == ["0", "0", "N/A"]


def test_huge_rows_on_a_rack_are_timed_without_data(capsys):
    found = rows(capsys, "allreduce --topology helios-72 -b 8G -e 8G")
    assert found[0]["wrong0"] == found[0]["wrong1"] == "N/A" and float(found[0]["busbw0"]) > 0


def test_check_0_moves_nothing(capsys, monkeypatch):
    monkeypatch.setattr(Exchange, "run", None)
    found = rows(capsys, "allreduce --topology mi300x-8 -b 8 -e 8 -c 0")
    assert found[0]["wrong0"] == found[0]["wrong1"] == "N/A"


def test_little_memory_is_told_and_no_error(capsys, monkeypatch):
    monkeypatch.setattr("rccl_py.cli.perf_run.available_memory", lambda: (256 << 20) + (1 << 17))
    code, out, err = run(capsys, "allreduce --topology mi300x-8 -b 1K -e 4K -f 2")
    wrong = [m["wrong0"] for line in out.splitlines() if (m := ROW.match(line))]
    assert (code, err, wrong) == (0, "", ["0", "0", "N/A"])
    assert out.count("MiB of memory are available") == 1


def test_available_memory_is_known_here():
    free = perf_data.available_memory()
    assert free is None or free > 0


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_buffer_bytes_are_what_the_ranks_hold(name):
    comms = Communicator.init_all("mi300x-8")
    op = ReduceOp.SUM if COLLECTIVES[name].reduces else None
    exchange = Exchange(comms, COLLECTIVES[name], np.dtype("int32"), op, 2, 100)
    held = sum(a.nbytes for a in exchange.send.values())
    bytes_ = buffer_bytes(COLLECTIVES[name], 100, 4, 8)
    assert held < bytes_ <= held + sum(a.nbytes for a in exchange.work.values())


@pytest.mark.parametrize(
    ("name", "in_place"),
    [(name, False) for name in COLLECTIVES]
    + [(name, True) for name in COLLECTIVES if name != "alltoall"],
)
def test_one_flipped_bit_in_a_received_buffer_is_counted(monkeypatch, name, in_place):
    collective, op = COLLECTIVES[name], ReduceOp.SUM if COLLECTIVES[name].reduces else None
    comms = Communicator.init_all("mi300x-8", nranks=5)
    exchange = Exchange(comms, collective, dtype_named("half"), op, 3, 64)
    original, struck = Exchange._wrong, []

    def checked(self, rank, result, count, content):
        if rank == 3 and not struck:
            result.view(np.uint16)[-1] ^= np.uint16(1)
            struck.append(rank)
        return original(self, rank, result, count, content)

    assert exchange.run(64, in_place=in_place) == 0
    monkeypatch.setattr(Exchange, "_wrong", checked)
    assert exchange.run(64, in_place=in_place) == 1 and struck


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_a_call_that_moves_nothing_is_all_wrong(name):
    collective, op = COLLECTIVES[name], ReduceOp.SUM if COLLECTIVES[name].reduces else None

    class Idle:
        nranks = 4

        def __init__(self, rank):
            self.rank = rank

        def mem_alloc(self, count, dtype):
            return np.empty(count, dtype)

        def __getattr__(self, _name):
            return lambda *_args, **_options: None

    exchange = Exchange([Idle(r) for r in range(4)], collective, np.dtype("float32"), op, 1, 500)
    received = sum(min(len(out), collective.blocks(4)[1] * 500) for out in exchange.work.values())
    for _ in range(2):  # what an earlier call left must not pass for a result
        assert exchange.run(500, in_place=False) == received


def test_wrong_values_fail_the_run(capsys, monkeypatch):
    monkeypatch.setattr(Exchange, "run", lambda *_args, **_options: 3)
    code, out, _ = run(capsys, "allreduce --topology mi300x-8 -b 8 -e 16 -f 2")
    assert code == 1 and "# Out of bounds values : 4 FAILED" in out
    assert ROW.match(out.splitlines()[-7])["wrong0"] == "3"


def test_blocks_that_are_multiples_of_the_period_are_told_apart():
    comms = Communicator.init_all("mi300x-8", nranks=3)
    exchange = Exchange(comms, COLLECTIVES["alltoall"], np.dtype("int32"), None, 0, 2 * 4099)
    assert exchange.run(4099, in_place=False) == 0
    assert len(set(exchange.send[0][::4099].tolist())) > 1
    assert exchange.run(4100, in_place=False) == 0


@pytest.mark.parametrize(("least", "code", "word"), [("1", 0, "OK"), ("1e9", 1, "FAILED")])
def test_the_least_bandwidth_decides_the_exit_code(capsys, monkeypatch, least, code, word):
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", least)
    found, out, _ = run(capsys, "allreduce --topology mi300x-8 -b 8M -e 8M -c 0")
    assert found == code and re.search(rf"# Avg bus bandwidth    : \S+ {word}\n", out)


# ---- files -------------------------------------------------------------------------------------


def test_the_document_and_the_records_hold_the_table(capsys, tmp_path):
    document, records = tmp_path / "run.json", tmp_path / "run.csv"
    found = rows(capsys, "allgather --topology mi300x-8 -b 1M -e 4M -f 2",
                 "-J", str(document), "-Z", "csv", "-x", str(records))  # fmt: skip
    read = json.loads(document.read_text())
    assert read["version"] == 3 and [r["size"] for r in read["results"]] == [
        int(row["size"]) for row in found]  # fmt: skip
    lines = list(csv.DictReader(records.open()))
    assert len(lines) == 6 and {line["gpus"] for line in lines} == {"8"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.csv", "run.json"]


def test_json_records_are_a_list(capsys, tmp_path):
    path = tmp_path / "records.json"
    rows(capsys, "reduce --topology mi300x-8 -b 1K -e 1K", "-Z", "json", "-x", str(path))
    assert [record["inPlace"] for record in json.loads(path.read_text())] == [0, 1]


def test_the_document_tells_no_variables_but_the_librarys(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "do not tell")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    rows(capsys, "reduce --topology mi300x-8 -b 1K -e 1K", "-J", str(tmp_path / "a.json"))
    text = (tmp_path / "a.json").read_text()
    assert "do not tell" not in text and "NCCL_DEBUG=INFO" in text


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(RcclSystemError, match="cannot be written"):
        write_whole(str(path), "new")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_or_device_is_written_to_and_not_replaced():
    check_writable(os.devnull)
    write_whole(os.devnull, "text")
    assert not Path(os.devnull).is_file()


# ---- bad input ---------------------------------------------------------------------------------

BASE = "--topology mi300x-8"
BAD = {
    "an unknown collective": (f"allsum {BASE}", "allsum"),
    "an unknown type": (f"allreduce {BASE} -d float3", "float3"),
    "an unknown reduction": (f"allreduce {BASE} -o mulsum", "mulsum"),
    "an unknown machine": ("allreduce --topology nowhere-8", "nowhere-8"),
    "no machine": ("allreduce", "--topology"),
    "no collective": (BASE, "COLLECTIVE"),
    "a negative size": (f"allreduce {BASE} -b -8", "negative"),
    "a negative size with a unit": (f"allreduce {BASE} -b -8M", "negative"),
    "a negative size after a long name": (f"allreduce {BASE} --maxbytes -1K", "negative"),
    "an unreadable size": (f"allreduce {BASE} -b 8Q", "8Q"),
    "an unreadable data limit": (f"allreduce {BASE} --data-limit many", "many"),
    "sizes the wrong way round": (f"allreduce {BASE} -b 1M -e 8", "above"),
    "a factor of one": (f"allreduce {BASE} -b 8 -e 16 -f 1", "stepfactor"),
    "a factor of nought": (f"allreduce {BASE} -b 8 -e 16 -f 0", "stepfactor"),
    "a negative factor": (f"allreduce {BASE} -b 8 -e 16 -f -2", "stepfactor"),
    "a broken factor": (f"allreduce {BASE} -b 8 -e 16 -f 1.5", "stepfactor"),
    "a step of nought": (f"allreduce {BASE} -b 8 -e 16 -i 0", "stepbytes"),
    "a root too high": (f"broadcast {BASE} -r 8", "0 to 7"),
    "a negative root": (f"broadcast {BASE} -r -1", "0 to 7"),
    "an unreadable root": (f"broadcast {BASE} -r first", "first"),
    "too many ranks": (f"allreduce {BASE} -g 9", "8 GPUs"),
    "too many ranks by threads": (f"allreduce {BASE} -t 3 -g 3", "8 GPUs"),
    "no ranks": (f"allreduce {BASE} -g 0", "ngpus"),
    "an unreadable count": (f"allreduce {BASE} -n ten", "ten"),
    "a negative count": (f"allreduce {BASE} -c -1", "check"),
    "an unknown flag": (f"allreduce {BASE} --frobnicate", "frobnicate"),
    "an unknown format": (f"allreduce {BASE} -Z xml -x f", "xml"),
    "a format without a file": (f"allreduce {BASE} -Z csv", "-x"),
    "an unwritable document": (f"allreduce {BASE} -J /nowhere/at/all.json", "/nowhere"),
    "an unwritable record file": (f"allreduce {BASE} -x /nowhere/at/all.csv", "/nowhere"),
    "a folder for a file": (f"allreduce {BASE} -J /", "folder"),
    "one file for two": (f"allreduce {BASE} -J both -x both", "both"),
    "an unknown algorithm": (f"allreduce {BASE} --algo fastest", "fastest"),
    "an unknown protocol": (f"allreduce {BASE} --proto HTTP", "HTTP"),
    "a flag that is neither": (f"allreduce {BASE} -O 2", "out_of_place"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    text, told = BAD[case]
    code, out, err = run(capsys, text)
    assert code == 2 and told in err
    assert err.startswith("rccl-perf: ") and err.count("\n") == 1 and err.endswith("\n")
    assert out == "" and not list(tmp_path.iterdir())


def test_an_unreadable_least_bandwidth_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "fast")
    code, _, err = run(capsys, f"allreduce {BASE} -b 8 -e 8")
    assert code == 2 and "NCCL_TESTS_MIN_BW" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_one_line():
    command = [sys.executable, "-m", "rccl_py.cli.perf", *f"allreduce {BASE} -b 8 -e 8".split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "table" in done.stderr


def test_help_names_every_flag_and_loads_no_numpy():
    code = ("import sys; from rccl_py.cli.perf import main; code = main(['--help']);"
            "assert 'numpy' not in sys.modules and 'networkx' not in sys.modules;"
            "sys.exit(code)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for flag in ("-b", "-e", "-f", "-J", "-Z", "-x", "-M", "--data-limit", "-p", "-z", "--algo"):
        assert flag in done.stdout


def test_progress_is_shown_on_a_terminals_stderr_only(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run(capsys, f"allreduce {BASE} -b 8 -e 16 -f 2")
    assert code == 0 and "row 1/2: 8 float sum" in err and err.endswith("\r\033[K")
    assert "\r" not in out and "\033" not in out


# ---- mpirun ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "launch"),
    [({}, Launch(False, 0)), ({"PMIX_RANK": "3"}, Launch(True, 3)),
     ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, Launch(True, 1)),
     ({"PMI_SIZE": "4", "PMI_RANK": "0"}, Launch(True, 0)), ({"PMI_RANK": "x"}, Launch(False, 0))],
)  # fmt: skip
def test_launchers_are_known_by_their_variables(environment, launch):
    assert launch_from(environment) == launch


def test_only_the_first_process_speaks(capsys):
    with only_first_speaks(Launch(True, 1)):
        print("not me")
        print("nor me", file=sys.stderr)
    with only_first_speaks(Launch(True, 0)):
        print("me")
    assert capsys.readouterr() == ("me\n", "")


def test_without_mpi4py_the_message_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    code, _, err = run(capsys, f"allreduce {BASE} -b 8 -e 8")
    assert code == 2 and "rccl_py[mpi]" in err and err.count("\n") == 1


def test_a_process_that_fails_alone_aborts_the_others(monkeypatch):
    class World:
        code = 0

        def Ibarrier(self):
            return self

        def Test(self):
            return bool(self.code)

        def Abort(self, code):
            self.code = code

    world = World()
    monkeypatch.setattr(perf_launch, "world_of", lambda _launch: world)
    monkeypatch.setattr(perf_launch, "_PATIENCE", -1.0)
    leave_together(Launch(True, 0), 2)
    assert world.code == 2


def perf_processes(n: int, text: str) -> subprocess.CompletedProcess[str]:
    return mpirun(n, "-m", "rccl_py.cli.perf", *text.split())


@pytest.mark.mpi
def test_eight_processes_print_one_table_like_one_process_does(capsys):
    text = f"allreduce {BASE} -b 8 -e 64K -f 8 -d bfloat16"
    done = perf_processes(8, text)
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if ROW.match(line)]
    _, out, _ = run(capsys, text)
    assert table == [line for line in out.splitlines() if ROW.match(line)]
    assert done.stdout.count("# Avg bus bandwidth") == 1 and done.stdout.count("#  Rank ") == 8
    assert len(set(re.findall(r"Pid +(\d+)", done.stdout))) == 8


@pytest.mark.mpi
def test_two_processes_are_two_ranks_in_the_files(tmp_path):
    done = perf_processes(2, f"reduce_scatter {BASE} -g 8 -b 1K -e 4K -f 2 -o avg -d int8 "
                     f"-x {tmp_path}/r.csv -J {tmp_path}/r.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "-g 8 has no effect under mpirun" in done.stdout
    records = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert len(records) == 6 and records[0]["ranks"] == records[0]["ranksPerNode"] == "2"
    assert {record["#wrong"] for record in records} == {"0"}
    assert len(json.loads((tmp_path / "r.json").read_text())["config"]["devices"]) == 2


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("n", "text", "told"),
    [(9, f"allreduce {BASE}", "8 GPUs"), (2, f"allreduce {BASE} -b -1", "negative"),
     (2, f"broadcast {BASE} -r 2", "0 to 1"), (2, f"allreduce {BASE} --nonsense", "nonsense"),
     (2, f"allreduce {BASE} -J /nowhere/at/all.json", "/nowhere")],
)  # fmt: skip
def test_all_processes_leave_after_one_line(n, text, told):
    done = perf_processes(n, text)
    ours = [line for line in done.stderr.splitlines() if line.startswith("rccl-perf:")]
    assert done.returncode == 2 and len(ours) == 1 and told in ours[0]
    assert "MPI_ABORT" not in done.stderr.upper() and done.stdout == ""


def test_a_restriction_that_leaves_nothing_is_told_before_the_table(capsys):
    code, out, err = run(capsys, f"allreduce {BASE} -b 8 -e 8 --algo nvls")
    assert code == 2 and out == "" and "leaves nothing to choose from" in err


def test_scratch_that_does_not_fit_times_the_row_without_data(capsys, monkeypatch):
    monkeypatch.setattr("rccl_py.cli.perf_run.available_memory", lambda: 320 << 20)
    code, out, _ = run(capsys, "gather --topology helios-72 --algo ring -b 8M -e 8M")
    assert code == 0 and "MiB of scratch" in out and "N/A" in out
