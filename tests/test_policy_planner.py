"""Policies in the planner, the commands and communicators."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rccl_py as rccl
from rccl_py.cli.perf import main as perf
from rccl_py.cli.plan import main as plan
from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.planner import Planner
from rccl_py.planner.policies import POLICIES, policy_named
from rccl_py.planner.policies.compare import compared
from rccl_py.topology import load, lower

MIB = 1 << 20


def planner(machine="mi300x-8", nodes=None, **options):
    return Planner(lower(load(machine, nodes=nodes)), **options)


@pytest.mark.parametrize("machine, nodes, policy", [
    ("mi300x-8", 1, "rccl-2.28"), ("mi300x-8", 2, "rccl-2.28"), ("mi300x-8", 1, "rccl-2.22"),
    ("h100-8", 1, "nccl-2.30"), ("h100-8", 2, "nccl-2.30"),
])  # fmt: skip
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "broadcast"])
def test_a_plan_is_what_the_policy_picks_timed_by_the_physical_model(
    machine, nodes, policy, collective
):
    p = planner(machine, nodes, policy=policy)
    for block in (64, 1 << 16, 4 * MIB):
        made = p.plan(collective, block)
        pick = POLICIES[policy].pick(p.fabric, collective, made.size)
        assert (made.algorithm, made.protocol) == (pick.ours, pick.protocol)
        assert (made.policy, made.channels) == (policy, pick.channels or 0)
        again = made.profile.seconds(block, PROTOCOLS[made.protocol], made.channels)
        assert made.time == float(again)
        assert made.timeline.seconds == pytest.approx(made.time)


def test_the_policys_choice_stands_first_and_says_what_the_fastest_saves():
    free, by = planner(), planner(policy="rccl-2.28")
    best, made = free.plan("allreduce", 1 << 16), by.plan("allreduce", 1 << 16)
    assert made.time > best.time
    assert made.candidates[0].reason.startswith("chosen: rccl-2.28 picks Ring/LL, 4 channel(s); ")
    assert f"{best.algorithm}/{best.protocol} would take" in made.candidates[0].reason
    assert made.candidates[1].algorithm == best.algorithm
    assert "faster, but not what the policy picks" in made.candidates[1].reason
    assert {c.algorithm for c in made.candidates} == {c.algorithm for c in best.candidates}
    assert "rccl-2.28 picks" in made.explain()


def test_a_policy_that_picks_the_fastest_says_so():
    made = planner("h100-8", policy="nccl-2.30").plan("allreduce", 1 << 30)
    assert made.algorithm == "nvls"
    assert made.candidates[0].reason.endswith("the fastest here too")


def test_a_tree_on_one_node_is_a_chain_and_on_several_a_tree(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("allreduce,0,1000000000,tree,ll,-1,-1,-1\n")
    for nodes, name in ((1, "chain"), (2, "tree")):
        assert planner(nodes=nodes, policy=str(path)).plan("allreduce", 64).algorithm == name


def test_where_the_machine_cannot_do_it_the_closest_is_taken(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("allreduce,0,1000000000,nvls,simple,-1,-1,-1\n")
    made = planner(policy=f"csv:{path}").plan("allreduce", 64)
    assert made.algorithm == "direct-twoshot"  # a mesh has no switch that adds


def test_max_ctas_bounds_the_policys_channels():
    assert planner(policy="rccl-2.28", max_channels=4).plan("allreduce", 1 << 28).channels == 4


def test_one_planner_answers_for_several_policies():
    p = planner()
    rows = compared(p, [POLICIES["rccl-2.28"], POLICIES["rccl-2.22"]], "allreduce", 1 << 16)
    assert [row.plan.algorithm for row in rows] == ["ring", "direct-twoshot"]
    assert all(row.best is p.plan("allreduce", 1 << 16) and row.gain >= 1 for row in rows)


@pytest.mark.parametrize("machine, policy, what", [
    ("mi300x-8", "nccl-2.30", "arch 'gfx942'"), ("h100-8", "rccl-2.28", "begins with gfx"),
    ("tpu-v4-64", "rccl-2.28", "devices without an arch"),
])  # fmt: skip
def test_a_library_on_devices_it_does_not_run_on_is_refused(machine, policy, what):
    with pytest.raises(InvalidUsage, match=what):
        planner(machine, policy=policy)


def test_an_unknown_policy_lists_those_there_are():
    with pytest.raises(InvalidArgument, match=f"'nccl-3'.*{', '.join(POLICIES)}"):
        policy_named("nccl-3")
    with pytest.raises(InvalidArgument, match="policy 5 is a int"):
        planner(policy=5)


def test_a_restriction_and_a_policy_that_contradict_are_refused():
    with pytest.raises(InvalidUsage, match=r"picks Ring/LL, 4 channel.*lift the restriction"):
        planner(algo="tree", policy="rccl-2.28").plan("allreduce", 1 << 16)


def test_a_communicator_follows_the_policy_of_its_config():
    config = rccl.Config(policy="rccl-2.22")
    comms = rccl.Communicator.init_all("mi300x-8", config=config)
    x = [np.full(16384, c.rank, np.float32) for c in comms]
    y = [np.empty(16384, np.float32) for _ in comms]
    with rccl.group():
        for c, send, recv in zip(comms, x, y):
            c.allreduce(send, recv, op=rccl.SUM)
    assert comms[0].last_plan.algorithm == "direct-twoshot"
    assert comms[0].last_plan.policy == "rccl-2.22"
    assert y[3][5] == 28


def test_the_perf_command_takes_a_policy(capsys):
    assert perf(["allreduce", "--topology", "mi300x-8", "-b", "64K", "-e", "64K", "-M", "1",
                 "--policy", "rccl-2.28"]) == 0  # fmt: skip
    row = next(
        line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["65536"]
    )
    assert "ring" in row and "LL" in row


def test_the_plan_command_compares(capsys):
    words = ["allreduce", "--topology", "h100-8", "--nodes", "2", "--compare"]
    assert plan(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# allreduce on h100-8, 16 ranks"
    assert len(lines) == 2 + 15
    assert plan([*words, "--size", "1M,1G", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in rows] == [MIB, 1 << 30]
    assert rows[1]["policy"] == "nccl-2.30" and rows[1]["gain"] >= 1


def test_the_plan_command_writes_a_tuner_file_it_can_read(tmp_path, capsys):
    path = tmp_path / "t.csv"
    words = ["allreduce", "--topology", "h100-8", "--nodes", "2"]
    assert plan([*words, "--size", "1K,1M,1G", "--tuner-csv", str(path)]) == 0
    text = path.read_text()
    assert "allreduce,0," in text and ",16,2,16,-1,-1" in text
    capsys.readouterr()
    assert plan([*words, "--size", "1M", "--policy", f"csv:{path}"]) == 0
    assert f"csv:{path} picks" in capsys.readouterr().out


@pytest.mark.parametrize("words, what", [
    (["--policy", "x"], "policy 'x' is not known"),
    (["--policy", "nowhere.csv"], "nowhere.csv: cannot be read"),
    (["--policy", "rccl-2.28"], "does not cover|do not cover|do not|tables"),
])  # fmt: skip
def test_the_plan_command_refuses_in_one_line(words, what, capsys):
    assert plan(["allreduce", "--topology", "h100-8", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert any(part in said for part in what.split("|"))


def test_a_machine_no_policy_knows_has_nothing_to_compare(capsys):
    assert plan(["allreduce", "--topology", "tpu-v4-64", "--compare"]) == 2
    assert "no policy knows the devices of tpu-v4-64" in capsys.readouterr().err
