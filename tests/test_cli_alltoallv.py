"""rccl-plan alltoallv: counts are read or drawn, and the plan says why it is what it is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rccl_py.cli.plan import main
from rccl_py.errors import FormatError, InvalidArgument
from rccl_py.formats.counts import read_counts
from rccl_py.planner.flows import plan_alltoallv
from rccl_py.planner.flows.demands import zipf_counts
from rccl_py.topology import load, lower
from rccl_py.units import format_time

SKEWED = ["alltoallv", "--counts", "zipf:1.6", "--size", "64M", "--topology", "mi300x-8"]


def planned(capsys, *arguments: str) -> list[dict]:
    assert main(["alltoallv", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


@pytest.fixture
def counts_file(tmp_path):
    def written(text: str | bytes):
        path = tmp_path / "counts"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


# ---- counts ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(data=st.data(), n=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 13]))
def test_counts_written_as_csv_or_json_are_read_back(data, n, tmp_path_factory):
    wanted = data.draw(arrays(np.int64, (n, n), elements=st.integers(0, 1 << 52)))
    path = tmp_path_factory.getbasetemp() / "counts"
    rows = wanted.tolist()
    for text in (
        "\n".join(",".join(map(str, row)) for row in rows),
        "\ufeff# sender by sender\n\n" + "\r\n".join(" ; ".join(map(str, row)) for row in rows),
        json.dumps(rows),
        json.dumps({"counts": rows, "of": "a step"}),
    ):
        path.write_text(text, encoding="utf-8")
        found = read_counts(path)
        assert found.dtype == np.int64 and np.array_equal(found, wanted)


def test_parts_may_have_units(counts_file):
    found = read_counts(counts_file("0, 4K\n1.5MiB, 1e6\n"))
    assert found.tolist() == [[0, 4096], [1572864, 1000000]]


@pytest.mark.parametrize("text, said", [
    ("", "no counts"),
    ("# only words\n", "no counts"),
    ("0,1\n2\n", "counts:2: 1 parts, 2 ranks"),
    ("0,1,2\n3,4,5\n", "counts:1: 3 parts, 2 ranks"),
    ("0,1\n\n2,-3\n", "counts:3: part 2 is '-3'"),
    ("0,\n2,3\n", "counts:1: part 2 is ''"),
    ("0,0.5\n2,3\n", "part 2 is '0.5'"),
    ("rank0,rank1\n2,3\n", "part 1 is 'rank0'"),
    ("9" * 5000, "part 1 is '999"),
    ("0,\u00b2\n0,0\n", "part 2 is '\u00b2'"),
    ("1024P,0\n1,0\n", "add up to more"),
    (b"\xff\xfe0\x00", "byte 0 is no UTF-8"),
    ("[[0, 1], [2]]", "row 1 (of rank 1): 1 parts, 2 ranks"),
    ("[[0, 1], [2, 1.5]]", "row 1 (of rank 1): the part for rank 1 is 1.5"),
    ("[[0, true], [2, 1]]", "the part for rank 1 is True"),
    ("[[0, NaN], [2, 1]]", "the part for rank 1 is nan"),
    ("[[0, 1], [-2, 1]]", "the part for rank 0 is -2"),
    ("[0, 1]", "row 0 (of rank 0) is 0"),
    ('["ab", "cd"]', "row 0 (of rank 0) is 'ab'"),
    ('{"parts": [[0]]}', 'without "counts"'),
    ('{"counts": 3}', "the counts are 3"),
    ("[[0, 1],\n [2, 1]", "counts:2: not JSON"),
    ("[]", "no counts"),
])  # fmt: skip
def test_a_malformed_file_is_an_error_that_says_where(counts_file, text, said):
    path = counts_file(text)
    with pytest.raises(FormatError) as found:
        read_counts(path)
    assert said in str(found.value) and str(path) in str(found.value)
    assert "\n" not in str(found.value)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 33), st.floats(1.01, 20), st.integers(0, 1 << 30), st.integers(0, 99))
def test_drawn_counts_add_up_to_what_was_asked_and_can_be_drawn_again(n, exponent, size, seed):
    found = zipf_counts(n, exponent, size, seed)
    assert found.shape == (n, n) and (found >= 0).all() and found.sum() == n * size
    assert np.array_equal(found, zipf_counts(n, exponent, size, seed))


def test_an_exponent_of_1_6_draws_more_skewed_counts_than_larger_ones():
    largest = [zipf_counts(16, exponent, 1 << 20).max() for exponent in (20.0, 3.0, 1.6)]
    assert largest == sorted(largest) and largest[0] < 2 * (1 << 16) < 4 * (1 << 16) < largest[2]


@pytest.mark.parametrize("exponent, size, seed", [
    (1.0, 8, 0), (float("nan"), 8, 0), (-2, 8, 0), (1.6, -1, 0), (1.6, 1 << 60, 0), (1.6, 8, -1),
])  # fmt: skip
def test_counts_that_cannot_be_drawn_are_refused(exponent, size, seed):
    with pytest.raises(InvalidArgument):
        zipf_counts(4, exponent, size, seed)


# ---- the command ----------------------------------------------------------------------------


def test_the_command_tells_what_the_plan_holds(capsys):
    assert main(SKEWED) == 0
    out = capsys.readouterr().out
    plan = plan_alltoallv(lower(load("mi300x-8")), zipf_counts(8, 1.6, 64 << 20))
    assert f"chosen        {plan.algorithm}/{plan.protocol}, " in out
    assert plan.algorithm.startswith("relayed") and format_time(plan.seconds) in out
    assert f"bound T*      {format_time(plan.bound)}, gap {plan.gap:.1%}" in out
    assert f"bottleneck    {plan.bottleneck}\n" in out and "gpu" in plan.bottleneck
    others = out.split("alternatives\n")[1].splitlines()
    assert [line.split()[0].split("/")[0] for line in others] == [
        c.algorithm for c in plan.candidates[1:]]  # fmt: skip


def test_a_file_and_the_same_counts_drawn_give_one_plan(capsys, counts_file):
    counts = zipf_counts(16, 1.6, 1 << 22, seed=3)
    path = counts_file(json.dumps(counts.tolist()))
    machine = ["--topology", "h100-8", "--nodes", "2"]
    (read,) = planned(capsys, "--counts", str(path), *machine)
    first, drawn = planned(capsys, "--counts", "zipf:1.6:3", "--size", "64K,4M", *machine)
    assert read == drawn and first["bytes"] == 16 << 16
    assert read["seconds"] >= read["bound"]["seconds"] > 0
    assert read["gap"] == pytest.approx(1 - read["bound"]["seconds"] / read["seconds"])
    assert read["most_sent"] == counts.sum(axis=1).max()


@pytest.mark.parametrize("algo, left", [
    ("direct,staged", {"direct", "staged"}), ("^relayed,BALANCED", {"direct", "staged", "greedy"}),
])  # fmt: skip
def test_algo_allows_some_ways_or_all_but_some(capsys, algo, left):
    (plan,) = planned(capsys, *SKEWED[1:], "--algo", algo)
    assert {c["algorithm"] for c in plan["candidates"]} == left


def test_protocols_may_be_restricted_by_a_flag_or_the_environment(capsys, monkeypatch):
    (plan,) = planned(capsys, *SKEWED[1:], "--proto", "^Simple", "--algo", "direct")
    assert plan["protocol"] == "LL128"
    monkeypatch.setenv("NCCL_PROTO", "LL")
    (slower,) = planned(capsys, *SKEWED[1:], "--algo", "direct")
    assert slower["protocol"] == "LL" and slower["seconds"] > plan["seconds"]
    assert "no protocol" in error(capsys, *SKEWED, "--proto", "^LL,LL128,Simple")


def test_another_engine_may_time_the_plan_too(capsys):
    (plan,) = planned(capsys, *SKEWED[1:], "--algo", "direct", "--engine", "simulate")
    assert plan["timed"]["engine"] == "simulate"
    assert plan["timed"]["seconds"] == pytest.approx(plan["seconds"], rel=0.2)
    assert main([*SKEWED, "--algo", "direct", "--engine", "estimate"]) == 0
    assert " by estimate (asked for)" in capsys.readouterr().out


def test_nothing_to_send_is_a_plan_too(capsys):
    (plan,) = planned(capsys, "--counts", "zipf:1.6", "--size", "0", "--topology", "mi300x-8")
    assert plan["bytes"] == 0 and plan["gap"] == pytest.approx(0)


@pytest.mark.parametrize("arguments, said", [
    (["alltoallv"], "--counts is missing"),
    (["allreduce", "--counts", "zipf:1.6"], "--counts is for alltoallv, not for allreduce"),
    (["alltoallv", "--counts", "zipf:1.6"], "needs a --size"),
    (["alltoallv", "--counts", "zipf:much", "--size", "8"], "expected zipf:A"),
    (["alltoallv", "--counts", "zipf:1", "--size", "8"], "expected more than 1"),
    (["alltoallv", "--counts", "/no/such/file"], "/no/such/file: no such file"),
    (["alltoallv", "--counts", "/"], "/: cannot be read"),
    (["alltoallv", "--counts", "zipf:2", "--size", "8", "--algo", "ring"], "ways of an alltoallv"),
    (["alltoallv", "--counts", "zipf:2", "--size", "8", "--algo",
      "^direct,balanced,staged,greedy,relayed"], "leaves no way"),
    (["alltoallv", "--counts", "zipf:2", "--size", "8", "--compare"], "--compare has no effect"),
    (["alltoallv", "--counts", "zipf:2", "--size", "8", "--tuner-csv", "x"], "has no effect on"),
])  # fmt: skip
def test_what_makes_no_sense_is_one_line_and_code_2(capsys, arguments, said):
    assert said in error(capsys, *arguments, "--topology", "mi300x-8")


def test_counts_for_another_number_of_ranks_are_refused(capsys, counts_file):
    path = counts_file("0,1\n2,3\n")
    said = error(capsys, "alltoallv", "--counts", str(path), "--topology", "mi300x-8")
    assert "for 2 ranks, mi300x-8 has 8" in said
    (plan,) = planned(capsys, "--counts", str(path), "--topology", "mi300x-8", "-g", "2")
    assert plan["nranks"] == 2 and plan["bytes"] == 6


def test_too_many_ranks_for_a_matrix_are_refused_before_it_is_read(capsys):
    said = error(capsys, "alltoallv", "--counts", "/no/such/file", "--topology", "h100-8",
                 "--nodes", "500")  # fmt: skip
    assert "4000 ranks have 16,000,000 parts: at most 2048 ranks" in said
