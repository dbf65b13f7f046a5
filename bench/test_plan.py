"""Planning a 1 GiB allreduce with nothing cached: time, rows looked at, peak memory."""

import subprocess
import sys

import pytest

import rccl_py as rccl

GIB = 1 << 30
CASES = [("mi300x-8", 8, 0.050), ("helios-72", 72, 0.200), ("mi300x-8-x128-rails", 1024, 1.0)]


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


PEAK = """
import re, sys
import rccl_py as rccl
rccl.Planner(rccl.lower(rccl.load(sys.argv[1]))).plan("allreduce", 1 << 30)
# Not getrusage: its peak still holds the parent's from before exec.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_planning_peaks_below_300_megabytes(benchmark, name):
    def peak():
        found = subprocess.run(
            [sys.executable, "-c", PEAK, name], capture_output=True, text=True, check=True
        )
        return int(found.stdout)

    most = benchmark.pedantic(peak, rounds=1)
    benchmark.extra_info["peak MB"] = most / 1e6
    assert most <= 300e6
