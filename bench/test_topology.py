"""Reading a machine and lowering it to a fabric: a node, 1,024 and 100,000 accelerators."""

import subprocess
import sys

import pytest

import rccl_py as rccl

NODES = ("mi300x-8", "mi250x-4", "h100-8", "helios-72", "mi300x-8-cpx")
THOUSANDS = ("mi300x-8-x128-rails", "h100-8-x128-superpod", "ualink-1024")
LARGEST = "mi300x-8-x12500-three-tier"


def lowered(name):
    """Read the machine's file and return its fabric."""
    return rccl.lower(rccl.load(name))


@pytest.mark.parametrize(
    ("name", "limit"),
    [*((n, 0.020) for n in NODES), *((n, 0.100) for n in THOUSANDS), (LARGEST, 10.0)],
)
def test_loading_and_lowering_stay_in_their_limit(benchmark, name, limit):
    fabric = benchmark.pedantic(lowered, args=(name,), rounds=9, warmup_rounds=1)
    benchmark.extra_info["accelerators"] = fabric.nranks
    benchmark.extra_info["links"] = fabric.nlinks
    assert fabric.nranks == {LARGEST: 100_000}.get(name, fabric.nranks)
    assert benchmark.stats.stats.median <= limit


PEAK = """
import re, sys
import numpy as np
import rccl_py as rccl
fabric = rccl.lower(rccl.load(sys.argv[1], routing=sys.argv[2]))
ranks = np.arange(fabric.nranks, dtype=np.int32)
routes = fabric.routes(ranks, np.roll(ranks, -4321))  # every rank sends across the machine
assert len(np.unique(routes.row)) == fabric.nranks
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


@pytest.mark.parametrize("routing", ["spray", "ecmp", "adaptive"])
def test_100_000_accelerators_and_a_route_of_each_peak_below_4_gigabytes(benchmark, routing):
    def peak():
        found = subprocess.run(
            [sys.executable, "-c", PEAK, LARGEST, routing],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(found.stdout)

    most = benchmark.pedantic(peak, rounds=1)
    benchmark.extra_info["peak MB"] = most / 1e6
    assert most <= 4e9
