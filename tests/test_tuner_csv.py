"""Tuner files: NCCL's format, first match wins, and errors that name file and line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.errors import FormatError, InvalidArgument, InvalidUsage
from rccl_py.planner import Planner
from rccl_py.planner.policies import (
    Rule,
    csv_policy,
    figures_of,
    policy_named,
    read_tuner_csv,
    tuner_csv,
)
from rccl_py.planner.policies.compare import rules_of
from rccl_py.planner.policies.tuner_csv import ALGORITHMS
from rccl_py.topology import load, lower

MIB = 1 << 20

# Made for this test in the shape of the plugin's own documentation.
EXAMPLE = """\
# a comment, then the header as the plugin's files have it
collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65536,tree,simple,2,1,-1,-1,-1
allreduce, 65537, 1048576, RING, simple, 4, 1, 8  # spaces, eight fields
allreduce,0,4294967295,ring,ll128,-1,-1,-1,-1,1
allreduce,0,4294967295,nvls,simple,-1,-1,-1,-1,0

reducescatter,0,1024,pat,simple,-1,-1,-1
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "tuner.csv"
        path.write_text(text)
        return path

    return write


def figures(machine="h100-8", **options):
    return figures_of(lower(load(machine, **options)))


def test_an_example_is_read_with_any_for_minus_one(written):
    rules = read_tuner_csv(written(EXAMPLE))
    assert len(rules) == 5
    assert rules[0] == Rule("allreduce", 0, 65536, "Tree", "Simple", 2, 1)
    assert rules[1] == Rule("allreduce", 65537, 1 << 20, "Ring", "Simple", 4, 1, 8)
    assert rules[2].registered == 1
    assert rules[4] == Rule("reduce_scatter", 0, 1024, "PAT", "Simple")


def test_the_first_line_that_matches_wins(written):
    policy = csv_policy(written(EXAMPLE))
    one, two = figures(), figures(nodes=2)
    assert [str(policy.pick(one, "allreduce", s)) for s in (0, 65536, 65537, 1 << 21)] == [
        "Tree/Simple, 2 channel(s)",
        "Tree/Simple, 2 channel(s)",
        "Ring/Simple, 4 channel(s)",
        "NVLS/Simple",  # the line before is for registered buffers only
    ]
    assert str(policy.pick(two, "allreduce", 1)) == "NVLS/Simple"


def test_a_call_without_a_line_is_refused_with_what_was_looked_for(written):
    policy = csv_policy(written(EXAMPLE))
    with pytest.raises(InvalidUsage, match=r"tuner.csv: no rule for broadcast of 8 bytes on 1 nod"):
        policy.pick(figures(), "broadcast", 8)


def test_what_the_format_has_no_name_for_is_sent_peer_to_peer(written):
    assert csv_policy(written(EXAMPLE)).pick(figures(), "alltoall", MIB).algorithm == "P2P"


@pytest.mark.parametrize("line, what", [
    ("allreduce,0,8,ring", "4 fields: expected 8 to 10"),
    ("allreduce,0,8,ring,ll,1,1,1,1,1,1", "11 fields"),
    ("alltoall,0,8,ring,ll,-1,-1,-1", "collective_type 'alltoall' is not known: one of broadcast"),
    ("allreduce,0,8,rign,ll,-1,-1,-1", "algorithm 'rign' is not known: one of tree, ring"),
    ("allreduce,0,8,1,ll,-1,-1,-1", "algorithm '1' is not known"),
    ("allreduce,0,8,ring,ll64,-1,-1,-1", "protocol 'll64' is not known: one of ll, ll128"),
    ("allreduce,9,8,ring,ll,-1,-1,-1", "min_bytes 9 is above max_bytes 8"),
    ("allreduce,-1,8,ring,ll,-1,-1,-1", "min_bytes '-1': expected a whole number"),
    ("allreduce,0,8K,ring,ll,-1,-1,-1", "max_bytes '8K': expected a whole number"),
    ("allreduce,0,99999999999999999999,ring,ll,-1,-1,-1", "max_bytes '9999"),
    ("allreduce,0,8,ring,ll,0,-1,-1", "channels '0': expected a whole number of 1 or more"),
    ("allreduce,0,8,ring,ll,-1,-2,-1", "nNodes '-2'"),
    ("allreduce,0,8,ring,ll,-1,-1,-1,-1,x", "regBuff 'x'"),
])  # fmt: skip
def test_a_wrong_line_is_named_by_file_and_number(written, line, what):
    path = written(f"# first\n\n{line}\n")
    with pytest.raises(FormatError, match=f"tuner.csv:3: .*{what}"):
        read_tuner_csv(path)


def test_a_file_without_rules_or_that_is_no_file_is_refused(written, tmp_path):
    with pytest.raises(FormatError, match="no rule in it"):
        read_tuner_csv(written("# nothing\n"))
    with pytest.raises(FormatError, match="cannot be read"):
        read_tuner_csv(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="cannot be read"):
        read_tuner_csv(tmp_path / "binary.csv")


def test_a_policy_may_be_a_files_name(written):
    path = written(EXAMPLE)
    assert policy_named(str(path)).name == policy_named(f"csv:{path}").name == f"csv:{path}"


maybe = st.none() | st.integers(1, 1 << 20)
rules = st.builds(
    lambda collective, ends, algorithm, protocol, channels, nodes, ranks, pipe, registered: Rule(
        collective, min(ends), max(ends), algorithm, protocol, channels, nodes, ranks, pipe,
        registered,
    ),
    st.sampled_from(["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"]),
    st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)),
    st.sampled_from(sorted(ALGORITHMS.values())),
    st.sampled_from(["LL", "LL128", "Simple"]),
    maybe, maybe, maybe, maybe, st.none() | st.integers(0, 1),
)  # fmt: skip


@given(st.lists(rules, min_size=1, max_size=8), st.lists(st.text(max_size=20), max_size=3))
def test_what_is_written_is_read_back(tmp_path_factory, written_rules, comments):
    path = tmp_path_factory.mktemp("tuner") / "t.csv"
    path.write_text(tuner_csv(written_rules, comments), encoding="utf-8")
    assert read_tuner_csv(path) == tuple(written_rules)


def test_what_the_format_cannot_say_is_refused():
    with pytest.raises(InvalidArgument, match="allreduce by Direct has no name there"):
        tuner_csv([Rule("allreduce", 0, 1, "Direct", "LL")])


def test_the_best_plans_become_rules_without_gaps_and_say_what_was_lost():
    planner = Planner(lower(load("mi300x-8", nodes=2)))
    plans = [planner.plan("allreduce", 1 << k) for k in range(10, 30, 3)]
    found, remarks = rules_of(plans, figures("mi300x-8", nodes=2))
    assert found[0].least == 0 and found[-1].most == (1 << 64) - 1
    assert all(a.most + 1 == b.least for a, b in pairwise(found))
    assert {r.algorithm for r in found} <= {"Ring", "Tree"}
    assert {(r.channels, r.nodes, r.ranks) for r in found} == {(64, 2, 16)}
    assert any("not expressible" in remark for remark in remarks)


def test_alltoall_cannot_be_carried_to_a_tuner():
    plans = [Planner(lower(load("h100-8"))).plan("alltoall", MIB)]
    with pytest.raises(InvalidArgument, match="alltoall has no algorithm there"):
        rules_of(plans, figures())
