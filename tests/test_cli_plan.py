"""rccl-plan: no option is ignored, odd values are one line, JSON is valid and documented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rccl_py import Planner, load, lower
from rccl_py.algorithms import ALGORITHMS
from rccl_py.cli.perf import main as perf
from rccl_py.cli.plan import main
from rccl_py.cli.topo import main as topo
from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.planner.barrier import plan_barrier
from rccl_py.planner.flows import plan_alltoallv
from rccl_py.planner.restrict import allowed_algorithms, allowed_protocols

ON = ["--topology", "mi300x-8", "-g", "4"]
QUICK = [*ON, "--synthesis", "never"]
MODES = {
    "plan": ["allreduce", "--size", "1M", *QUICK],
    "table": ["allreduce", *QUICK],
    "explain": ["allreduce", "--size", "1M", "--explain", *QUICK],
    "json": ["allreduce", "--size", "1M", "--json", *QUICK],
    "breakpoints": ["allreduce", "--breakpoints", *QUICK],
    "compare": ["allreduce", "--compare", "--size", "1M", "--topology", "mi300x-8"],
    "barrier": ["barrier", *ON],
    "alltoallv": ["alltoallv", "--counts", "zipf:2", "--size", "1M", *ON],
}
OPTIONS = {
    "export": ["--export", "no/such/folder/x.xml"],
    "limits": ["--limits", "msccl"],
    "pieces": ["--pieces", "2"],
    "root": ["--root", "0"],
    "policy": ["--policy", "rccl-2.28"],
    "verify": ["--verify"],
    "engine": ["--engine", "estimate"],
    "ranks": ["--ranks", "3"],
    "all": ["--all"],
    "explain": ["--explain"],
    "compare": ["--compare"],
    "breakpoints": ["--breakpoints"],
    "schedule": ["--schedule", "no-such.xml"],
    "tuner-csv": ["--tuner-csv", "no/such/folder/x.csv"],
    "synthesis": ["--synthesis", "never"],
    "algo": ["--algo", "ring"],
    "proto": ["--proto", "LL"],
    "counts": ["--counts", "zipf:2"],
    "size": ["--size", "1M"],
}
IGNORED = {
    "plan": "limits pieces root counts",
    "table": "export limits pieces root ranks all counts",
    "explain": "limits pieces root ranks all counts",
    "json": "limits pieces root ranks all counts",
    "breakpoints": "export limits pieces root policy verify engine ranks all explain compare "
    "counts size",
    "compare": "export limits pieces root engine ranks all explain counts",
    "barrier": " ".join(OPTIONS),
    "alltoallv": " ".join(sorted({*OPTIONS} - {"algo", "proto", "engine", "counts", "size"})),
}


def refused(capsys, module, *arguments: str) -> str:
    """Return the one line that is said instead of anything else."""
    try:
        code = module(list(arguments))
    except SystemExit as left:  # argparse's own
        code = left.code
    out, err = capsys.readouterr()
    assert code == 2 and not out and err.count("\n") == 1 and "internal error" not in err, err
    return err


@pytest.mark.parametrize("mode", MODES)
def test_an_option_without_effect_is_refused_by_name_and_mode(capsys, mode):
    for option in IGNORED[mode].split():
        said = refused(capsys, main, *MODES[mode], *OPTIONS[option])
        assert f"--{option}" in said or "least --size" in said, (option, said)
        named = {"plan": "", "table": "", "json": "--json"}.get(mode, mode)
        assert named in said or "allreduce" in said or "--export FILE" in said, (option, said)


def test_an_engine_is_heard_beside_the_screen_and_a_fault_beside_a_barrier(capsys):
    assert main([*MODES["explain"], "--engine", "simulate"]) == 0
    assert "# 1M: " in capsys.readouterr().out
    for mode in ("barrier", "alltoallv"):
        assert main([*MODES[mode], "--without", "gpu0,gpu1"]) == 0
        assert "healthy: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments, said", [
    (["-g", "0"], "-g/--ngpus: 0: expected 1 or more"),
    (["-g", "-2"], "-g/--ngpus: -2: expected 1 or more"),
    (["-g", "x"], "-g/--ngpus: 'x': a whole number"),
    (["-g", "99"], "99 ranks asked for"),
    (["--ranks", "0"], "--ranks: 0: expected 1 or more"),
    (["--ranks", "-3"], "--ranks: -3: expected 1 or more"),
    (["--nodes", "0"], "nodes 0: expected 1 to 1000000"),
    (["--leaf-nodes", "0"], "leaf_nodes 0: expected 1 to 1000000"),
    (["--seed", "-1"], "seed -1: expected 0 to"),
    (["--pieces", "0", "--export", "x"], "--pieces 0: direct has one piece"),
    (["--size", "-8"], "--size: size '-8' is negative"),
    (["--size", "nan"], "--size: size 'nan' cannot be read"),
    (["--size", "1e400"], "--size: size '1e400' is beyond"),
    (["--size", "8,"], "--size: size '' cannot be read"),
    (["--size", ""], "argument size is empty"),
    (["--export", ""], "argument export is empty"),
    (["--counts", ""], "argument counts is empty"),
    (["--tuner-csv", ""], "argument tuner-csv is empty"),
    (["--breakpoints", "--size", "0,8"], "lowest bytes 0: expected above 0"),
    (["--breakpoints", "--size", "8,8"], "give two, or none"),
    (["--verify", "--policy", "rccl-2.28"], "--verify has no effect with --policy"),
])  # fmt: skip
def test_an_odd_value_is_one_line_and_code_2(capsys, arguments, said):
    size = [] if "--size" in arguments else ["--size", "1M"]
    assert said in refused(capsys, main, "allgather", *QUICK, *size, *arguments)


def test_a_root_is_for_collectives_that_have_one(capsys):
    assert "root 4: expected 0 to 3" in refused(capsys, main, "gather", *QUICK, "--root", "4")
    assert "--root: -1: expected 0" in refused(capsys, main, "gather", *QUICK, "--root", "-1")
    assert main(["gather", *QUICK, "--size", "1M", "--root", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["root"] == 3


@pytest.mark.parametrize("gone, said", [
    (["nope"], "there is no nope: there are gpu0..gpu7; nic0..nic7"),
    (["nic3", "nic3"], "there is no nic3"),
    (["gpu0,gpu1", "gpu1,gpu0"], "no link joins gpu1 and gpu0; gpu1 is joined to gpu2"),
    (["gpu0,nope"], "there is no nope: there are gpu0"),
    (["gpu0"], "gpu0 is an accelerator"),
    (["gpu0,"], "expected one vertex, or the two ends of a link"),
])  # fmt: skip
def test_what_is_not_there_cannot_be_taken_away(capsys, gone, said):
    words = [word for name in gone for word in ("--without", name)]
    for mode in ("gather", "barrier"):
        assert said in refused(capsys, main, mode, "--topology", "mi300x-8", *words)


# ---- restrictions -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["^", "^,", ",", ";", "allreduce:", "allreduce:^", " , "])
def test_a_restriction_that_names_nothing_says_what_it_could_name(capsys, text):
    with pytest.raises(InvalidUsage, match="names nothing: expected names, as in 'ring,tree'"):
        Planner("mi300x-8", text)
    with pytest.raises(InvalidUsage, match="names nothing: expected names, as in 'LL,LL128'"):
        allowed_protocols(text, "allreduce")
    for command, more in ((main, QUICK), (perf, ON)):
        said = refused(capsys, command, "allreduce", *more, "--algo", text)
        assert f"--algo={text!r} names nothing" in said
        assert "names nothing" in refused(capsys, command, "allreduce", *more, "--proto", " ")
        assert "proto is empty" in refused(capsys, command, "allreduce", *more, "--proto", "")


@pytest.mark.parametrize("text", ["ring,^tree", "^^ring", "ring,^"])
def test_a_caret_leads_the_list_or_is_refused(text):
    with pytest.raises(InvalidUsage, match="a \\^ leads the whole list"):
        allowed_algorithms(text, "allreduce")


def test_a_name_is_the_algorithm_called_so_and_else_a_family():
    assert allowed_algorithms("bruck", "alltoall") == ["bruck"]
    assert allowed_algorithms("BRUCK,bruck-4", "alltoall") == ["bruck", "bruck-4"]
    assert allowed_algorithms("ring", "broadcast") == ["ring"]
    assert allowed_algorithms("direct", "allreduce") == ["direct-oneshot", "direct-twoshot"]
    every = allowed_algorithms(None, "broadcast")
    assert allowed_algorithms("^ring", "broadcast") == [a for a in every if a != "ring"]


@pytest.mark.parametrize("collective", sorted({a.collective for a in ALGORITHMS}))
def test_each_algorithm_can_be_asked_for_alone(collective):
    for name in allowed_algorithms(None, collective):
        assert allowed_algorithms(name, collective) == [name]


# ---- JSON -------------------------------------------------------------------------------------


def _keys(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if not isinstance(value, dict):
        return set()
    own = {k for k in value if k not in ("time_goes_to", "error_band")}
    return own.union(*(_keys(value[k]) for k in own)) | (set(value) - own)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("arguments", [
    [*MODES["explain"], "--engine", "estimate", "--without", "gpu0,gpu1"],
    [*MODES["compare"], "--size", "0"],
    MODES["breakpoints"],
    [*MODES["barrier"], "--without", "gpu0,gpu1"],
    [*MODES["alltoallv"], "--engine", "estimate", "--without", "gpu0,gpu1"],
    ["gather", "--size", "0,8", "--topology", "mi300x-8", "-g", "1", "--engine", "simulate"],
    ["gather", "--breakpoints", "--topology", "mi300x-8", "-g", "1"],
], ids=lambda a: f"{a[0]}-{a[1].lstrip('-')}")  # fmt: skip
def test_every_mode_prints_valid_json_whose_keys_are_documented(capsys, arguments):
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=_refuse)
    page = (Path(__file__).parents[1] / "docs" / "plans.md").read_text(encoding="utf-8")
    section = page.partition("\n## JSON\n")[2].partition("\n## ")[0]
    assert _keys(told) - set(re.findall(r"`(\w+)`", section)) == set()


def test_the_parts_of_a_bound_and_the_ends_of_ranges_are_in_json(capsys):
    assert main(["allgather", "--size", "64M", *QUICK, "--json"]) == 0
    ((bound),) = [plan["bound"] for plan in json.loads(capsys.readouterr().out)]
    over = max(bound["latency"], bound["hops"] + bound["links"], bound["memory"])
    assert bound["seconds"] == pytest.approx(bound["launch"] + over + bound["own"], rel=1e-12)
    assert bound["hops"] > 0 and bound["own"] > 0
    assert main(["allgather", "--breakpoints", *QUICK, "--json"]) == 0
    planner = Planner(lower(load("mi300x-8"), 4), synthesise="never")
    for found in json.loads(capsys.readouterr().out):
        for size, seconds in ((found["from"], found["first"]), (found["to"], found["last"])):
            taken = planner.plan("allgather", size / 4).time
            assert taken <= seconds * (1 + 1e-9) and seconds < taken * 1.02


# ---- doors, and what shows itself -------------------------------------------------------------


def test_a_planner_takes_a_name_a_file_or_a_machine_as_other_doors_do(tmp_path):
    wanted = Planner(lower(load("mi300x-8")), synthesise="never").plan("allgather", 8.0).time
    path = Path(__file__).parents[1] / "topologies" / "mi300x-8.yaml"
    for machine in ("mi300x-8", path, str(path), load("mi300x-8")):
        assert Planner(machine, synthesise="never").plan("allgather", 8.0).time == wanted
    for wrong in (8, None, ["mi300x-8"]):
        with pytest.raises(InvalidArgument, match="a machine's name, a file, a Topology or a Fab"):
            Planner(wrong)
    with pytest.raises(InvalidArgument, match="did you mean mi300x-8"):
        Planner("mi300x8")
    assert plan_barrier("mi300x-8") == plan_barrier(lower(load("mi300x-8")))


def test_results_show_themselves_in_one_short_line():
    planner = Planner("mi300x-8", synthesise="never")
    plan = planner.plan("allreduce", 1 << 20)
    uneven = plan_alltoallv("mi300x-8", np.full((8, 8), 1 << 20))
    shown = [plan, plan.bound, *plan.candidates, *planner.breakpoints("allreduce"), uneven]
    for one in shown:
        for text in (repr(one), str(one)):
            assert "\n" not in text and len(text) < 160, text
    assert repr(uneven).startswith("<UnevenPlan alltoallv of 67108864 B on 8 ranks: ")
    assert repr(plan.bound).startswith("<Bound ") and plan.bound.cut in repr(plan.bound)


# ---- sibling commands -------------------------------------------------------------------------


def test_a_barrier_is_planned_and_other_commands_say_so(capsys, tmp_path):
    said = refused(capsys, perf, "barrier", *ON)
    assert said.endswith("rccl-plan barrier times that one\n")
    picture = str(tmp_path / "x.png")
    said = refused(capsys, topo, "draw", "mi300x-8", "--load", "barrier", "-o", picture)
    assert said.endswith("rccl-plan barrier times that one\n")
    assert main(["Barrier", "--topology", "mi300x-8", "--nodes", "8"]) == 0
    assert "dissemination/" in capsys.readouterr().out


def test_rccl_topo_draws_the_load_of_the_plan_that_is_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_ALGO", "rings")
    said = refused(capsys, topo, "draw", "mi300x-8", "--load", "allreduce", "-o", str(tmp_path))
    assert "NCCL_ALGO='rings'" in said


@pytest.mark.parametrize("arguments", [["draw", "mi300x-8", "--load", ""], ["show", ""],
                                       ["draw", "mi300x-8", "-o", ""]])  # fmt: skip
def test_an_empty_argument_of_rccl_topo_is_not_taken_for_none(capsys, arguments):
    assert " is empty: name one, or leave it out" in refused(capsys, topo, *arguments)


def test_options_of_a_machine_are_refused_for_graph_xml(capsys, tmp_path):
    path = tmp_path / "rings.xml"
    assert topo(["convert", "mi300x-8", str(path), "--graph"]) == 0
    assert topo(["show", str(path)]) == 0
    capsys.readouterr()
    for more in (["--nodes", "2"], ["--matrix"], ["--no-pxn"]):
        said = refused(capsys, topo, "show", str(path), *more)
        assert "has no effect on it" in said
