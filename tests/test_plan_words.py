"""What a plan says is true: one engine's figures, numbers that stay, percents that add up."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rccl_py import COLLECTIVES, Planner, load, lower
from rccl_py.cli.plan import main
from rccl_py.formats import read_schedule
from rccl_py.planner import describe, verify
from rccl_py.planner.describe import explained, plan_as_dict, plan_lines
from rccl_py.planner.optimum.words import plural
from rccl_py.units import format_time

MACHINES = ("mi300x-8", "h100-8", "mi250x-4", "l40s-8", "v100-8", "tpu-v4-64", "mixed-x6")


def planner_of(name, **options):
    return Planner(lower(load(name)), synthesise=False, **options)


def plan_of(name, collective, size, **options):
    planner = planner_of(name, **options)
    blocks = max(COLLECTIVES[collective].blocks(planner.fabric.nranks))
    return planner.plan(collective, size / blocks), planner


def verified_with(monkeypatch, ratios):
    """Return a plan whose finer engine takes so many times the estimate, by place."""
    left = list(ratios)
    monkeypatch.setattr(verify, "_seconds", lambda entry, *_: entry[0] * left.pop(0))
    plan, planner = plan_of("mi300x-8", "allgather", 1 << 28, verify=True)
    assert not left, "as many candidates are asked about as the test has ratios for"
    return plan, planner


# ---- one engine -------------------------------------------------------------------------------


def test_what_overrules_the_estimate_gives_the_figures_of_the_screen_and_of_json(monkeypatch):
    plan, planner = verified_with(monkeypatch, (1.5, 1.01))
    first = plan.candidates[0]
    assert plan.engine == "simulate" and plan.decided_time == first.checked
    assert first.checked == pytest.approx(1.01 * plan.time)
    text = " ".join("\n".join(explained(plan, ())).split())
    told = f"{format_time(first.checked)} by the simulation ({format_time(plan.time)} by the est"
    assert told in text
    assert f"{plan.bound.seconds / first.checked:.1%} of the best" in text
    (asked,) = [c for c in plan.candidates[1:] if c.engine]
    worse = f"{asked.checked / first.checked - 1:+.1%} by the simulation"
    assert asked.reason == worse and worse in text
    assert all(re.search(r"%? by the (estimate|simulation)$", c.reason)
               for c in plan.candidates[1:] if np.isfinite(c.seconds))  # fmt: skip
    said = plan_as_dict(plan, planner)
    assert said["engine"] == "simulate" and said["seconds"] == first.checked
    assert said["estimated_seconds"] == plan.time
    assert said["share"] == pytest.approx(plan.bound.seconds / first.checked)
    assert said["busbw"] == pytest.approx(plan.busbw * plan.time / first.checked)


def test_confirmed_is_only_what_is_close_and_first(monkeypatch):
    plan, _ = verified_with(monkeypatch, (1.02, 1.1))
    assert "the simulation confirms: " in plan.decided and plan.engine == "estimate"
    plan, _ = verified_with(monkeypatch, (1.095, 1.2))
    assert "confirms" not in plan.decided and "takes" in plan.decided
    assert "(+9.5%)" in plan.decided
    plan, _ = verified_with(monkeypatch, (1.0, 1.0))
    best, other = plan.candidates[0].checked, plan.candidates[1].seconds
    plan, _ = verified_with(monkeypatch, (1.0, 0.992 * best / other))
    assert "confirms" not in plan.decided
    assert "would be 0.8% faster, within the 1% left alone" in plan.decided


def test_what_is_called_alike_is_told_apart():
    entries = [(1.0, k, option, "Simple") for k, option in enumerate(_options(4, 8, 8))]
    assert verify._names(entries) == ["ring/Simple (4 pieces)", "ring/Simple (8 pieces)",
                                      "ring/Simple (8 pieces)"]  # fmt: skip
    entries = [(1.0, k, option, "Simple") for k, option in enumerate(_options(8, 8))]
    assert verify._names(entries) == ["ring/Simple", "another ring/Simple"]


def _options(*pieces):
    from rccl_py.algorithms import ALGORITHMS
    from rccl_py.planner.ranking import Option

    ring = next(a for a in ALGORITHMS if a.name == "ring")
    return [Option(ring, k, None, None) for k in pieces]


def test_the_estimate_alone_does_not_deny_what_comes_close(monkeypatch):
    monkeypatch.setattr(verify, "_FIRST", 1)
    plan, _ = plan_of("mi300x-8", "alltoall", 1 << 16, verify=True)
    near = [c for c in plan.candidates[1:] if c.seconds < 1.2 * plan.time]
    assert near and "nothing else" not in plan.decided
    plan, _ = plan_of("mi300x-8", "allreduce", 1 << 30, verify=True, algo="ring", proto="Simple")
    told = plan.decided.split("; ")
    assert told[0] == "the estimate: nothing else comes within 20%"
    assert len(told) == 2 and told[1].startswith("the simulation confirms: ")


# ---- numbers that stay, percents that add up --------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_the_bottleneck_and_the_rest_are_all_of_the_call(name):
    planner = planner_of(name)
    for collective in ("allreduce", "allgather", "alltoall"):
        blocks = max(COLLECTIVES[collective].blocks(planner.fabric.nranks))
        for size in (64, 1 << 16, 1 << 22, 1 << 30):
            plan = planner.plan(collective, size / blocks)
            assert sum(plan.shares.values()) == pytest.approx(1)
            found = f"{plan.bottleneck}; {plan.rest}".partition("the limit for")
            whole = sum(map(int, re.findall(r"(\d+)%", found[2] or found[0])))
            assert whole == 100, (plan, plan.bottleneck, plan.rest)


@pytest.mark.parametrize("name", MACHINES[:5])
def test_no_number_is_cut_off_the_screen(name):
    for size in (1 << 12, 1 << 26):
        plan, planner = plan_of(name, "allreduce", size)
        lines = list(explained(plan, planner.breakpoints("allreduce", 8, 1 << 30)))
        assert len(lines) <= 24 and max(map(len, lines)) <= 100
        text = " ".join(" ".join(lines).split())
        start = lines.index("alternatives")
        names = [line.split()[0] for line in lines[start + 1 :] if re.match(r"  \w\S*/\S+ ", line)]
        assert names
        for candidate in plan.candidates[1:]:
            if f"{candidate.algorithm}/{candidate.protocol}" == names[0]:
                times = re.findall(r"[\d.]+ (?:ms|us|ns|s)\b", candidate.reason)
                assert all(time in text for time in times), candidate.reason


def test_alternatives_that_are_equals_take_one_line():
    plan, _ = plan_of("h100-8", "allreduce", 1 << 20)
    first = plan.candidates[1]
    others = tuple(replace(first, algorithm=f"like{k}") for k in range(4))
    text = "\n".join(explained(replace(plan, candidates=(plan.candidates[0], first, *others)), ()))
    assert "4 more alike" in text and "like0" not in text and "and " not in text.split("alter")[1]


def test_a_bound_that_may_be_out_of_reach_says_at_least():
    plan, _ = plan_of("mi300x-8", "allgather", 1 << 20)
    for exact in (True, False):
        text = describe._optimum(replace(plan, bound=replace(plan.bound, exact=exact)))
        assert text.startswith("at least ") != exact
    assert "switches" not in text
    two = Planner(lower(load("h100-8", nodes=2)), "ring", synthesise=False)
    assert "if its switches add up" in describe._optimum(two.plan("allreduce", 1e6))


def test_a_hint_is_on_the_screen_in_the_list_and_in_json():
    plan, planner = plan_of("mi300x-8", "allgather", 1 << 20)
    plan = replace(plan, hint="--synthesis always may find better trees")
    said = json.dumps(plan_as_dict(plan, planner)), plan.summary(), plan.explain()
    assert all(plan.hint in text for text in said)
    assert "hint" not in replace(plan, hint="").summary()


@pytest.mark.parametrize("kind, several", [
    ("node", "nodes"), ("leaf group", "leaf groups"), ("like set of ranks", "like sets of ranks"),
    ("leaf", "leaves"), ("switch", "switches"), ("xGMI link", "xGMI links"), ("NIC", "NICs"),
])  # fmt: skip
def test_kinds_have_plurals(kind, several):
    assert plural(kind) == several


# ---- what is printed --------------------------------------------------------------------------


def run(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_json_has_whole_bytes_and_says_whether_its_bound_is_exact(capsys):
    (plan,) = json.loads(run(capsys, "allgather", "--topology", "mi300x-8", "--size", "1M",
                             "--explain", "--json"))  # fmt: skip
    assert isinstance(plan["size"], int) and plan["size"] == 1 << 20
    assert all(isinstance(r["from"], int) for r in plan["breakpoints"])
    assert plan["exact"] is True is plan["bound"]["exact"] and plan["cut"] == plan["bound"]["cut"]
    assert plan["share"] == pytest.approx(plan["bound"]["seconds"] / plan["seconds"])


def test_rings_and_trees_are_printed_where_they_are_used():
    for algo, rings, trees in (("ring", 1, 0), ("tree", 0, 1), ("direct-twoshot", 0, 0)):
        plan, planner = plan_of("mi300x-8", "allreduce", 1 << 26, algo=algo)
        text = "\n".join(plan_lines(plan, planner))
        assert ("# Rings" in text, "# Trees" in text) == (rings, trees)
        text = "\n".join(plan_lines(plan, planner, whole=True))
        assert "# Rings" in text and "# Trees" in text


def test_an_export_that_does_not_fit_names_what_does_and_that_is_so(capsys, tmp_path):
    path = tmp_path / "plan.xml"
    call = ("allgather", "--topology", "mi250x-4", "--size", "1G", "--algo", "forest",
            "--export", str(path))  # fmt: skip
    assert main(list(call)) == 2 and not path.exists()
    said = capsys.readouterr().err
    flag, count = re.search(r"(--pieces) (\d+) fits", said).groups()
    for more in ((flag, count), ("--limits", "none")):
        run(capsys, *call, *more)
        assert read_schedule(str(path)).nranks == 8
    assert main([*call, "--pieces", "0"]) == 2 and "cut into 1 to" in capsys.readouterr().err


def test_a_machine_without_a_link_is_told_beside_the_healthy_one(capsys):
    call = ("allgather", "--topology", "mi300x-8", "--size", "64M", "--synthesis", "never")
    healthy, _ = plan_of("mi300x-8", "allgather", 1 << 26)
    out = run(capsys, *call, "--without", "gpu0,gpu1")
    said = re.search(r"healthy: (.*) \(.*\), this: (.*) \((.*)%\)", out)
    assert said[1] == format_time(healthy.time) and float(said[3]) > 0
    (plan,) = json.loads(run(capsys, *call, "--without", "gpu0,gpu1", "--json"))
    assert plan["healthy"]["seconds"] == pytest.approx(healthy.time)
    assert plan["healthy"]["seconds"] < plan["seconds"]
    for bad in ("gpu0,gpu1,gpu2", "nowhere", "gpu0,"):
        assert main([*call, "--without", bad]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_notebook_names_sizes_as_the_text_does():
    plan, _ = plan_of("mi300x-8", "allreduce", 1 << 30)
    assert "of 1G bytes on" in plan._repr_html_() and "of 1G bytes on" in plan.explain()
