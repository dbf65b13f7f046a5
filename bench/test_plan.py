"""Planning with nothing cached: time, rows looked at, peak memory."""

import subprocess
import sys

import pytest

import rccl_py as rccl

GIB = 1 << 30
CASES = [("mi300x-8", 8, 0.050), ("helios-72", 72, 0.200), ("mi300x-8-x128-rails", 1024, 1.0)]
MOST = ("allreduce", "allgather", "reduce_scatter", "alltoall")
LIMITS = [
    ("mi300x-8", 0.1), ("mi300x-8-x128-rails", 0.1), ("helios-72-x8", 0.1), ("gb200-nvl72-x8", 0.1),
    ("ualink-64-x16", 0.1), ("mi300x-8-x12500-three-tier", 10.0),
]  # fmt: skip
"""Machines, and the s a first plan may take without synthesis: up to 1,024 ranks, and 100,000."""


def plan_from_nothing(name):
    """Read the machine, lower it, build every candidate, choose, and build the timeline."""
    planner = rccl.Planner(rccl.lower(rccl.load(name)))
    plan = planner.plan("allreduce", GIB)
    assert plan.timeline.seconds == pytest.approx(plan.time)
    return plan


@pytest.mark.parametrize(("name", "ranks", "limit"), CASES)
def test_plan_and_time_of_one_gib_stay_in_their_limit(benchmark, name, ranks, limit):
    plan = benchmark.pedantic(plan_from_nothing, args=(name,), rounds=7, warmup_rounds=1)
    assert plan.nranks == ranks
    benchmark.extra_info["candidates"] = len(plan.candidates)
    benchmark.extra_info["rows of the chosen schedule"] = plan.profile.rows
    benchmark.extra_info["predicted"] = str(plan)
    assert benchmark.stats.stats.median <= limit


@pytest.mark.parametrize("collective", MOST)
@pytest.mark.parametrize(("name", "limit"), LIMITS)
def test_a_first_plan_of_a_lowered_machine_stays_in_its_limit(benchmark, name, limit, collective):
    fabric = rccl.lower(rccl.load(name))

    def first():
        return rccl.Planner(fabric).plan(collective, GIB // fabric.nranks)

    plan = benchmark.pedantic(first, rounds=1 if limit > 1 else 5, warmup_rounds=int(limit <= 1))
    benchmark.extra_info["candidates"] = len(plan.candidates)
    benchmark.extra_info["predicted"] = str(plan)
    assert benchmark.stats.stats.median <= limit


PEAK = """
import re, sys
import rccl_py as rccl
rccl.Planner(rccl.lower(rccl.load(sys.argv[1]))).plan(sys.argv[2], 1 << 20)
# Not getrusage: its peak still holds the parent's from before exec.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


def peak(name, collective):
    command = [sys.executable, "-c", PEAK, name, collective]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_planning_peaks_below_300_megabytes(benchmark, name):
    most = benchmark.pedantic(peak, args=(name, "allreduce"), rounds=1)
    benchmark.extra_info["peak MB"] = most / 1e6
    assert most <= 300e6


@pytest.mark.parametrize("collective", MOST)
def test_planning_100_000_ranks_peaks_below_2_gigabytes(benchmark, collective):
    most = benchmark.pedantic(peak, args=("mi300x-8-x12500-three-tier", collective), rounds=1)
    benchmark.extra_info["peak MB"] = most / 1e6
    assert most <= 2e9
