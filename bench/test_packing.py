"""Forests from nothing: how long the search takes, and how near it comes to what is proven."""

import time

import pytest

import rccl_py as rccl
from rccl_py.planner.packing import forests

CASES = [
    ("mi250x-4", None, 1.0),
    ("v100-8", None, 1.0),
    ("mi300x-8", None, 1.0),
    ("l40s-8", None, 1.0),
    ("mi250x-4", 2, 1.0),  # 16 ranks
    ("h100-8", 4, 10.0),  # 32
    ("mi300x-8", 4, 10.0),
    ("mixed-x6", None, 10.0),  # 36, in nodes of two sizes
    ("tpu-v4-64", None, 60.0),
]


@pytest.mark.benchmark(timer=time.process_time)  # nothing here waits or uses several cores
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "broadcast"])
@pytest.mark.parametrize(("name", "nodes", "limit"), CASES)
def test_forests_are_found_in_their_limit(benchmark, name, nodes, limit, collective):
    machine = rccl.load(name) if nodes is None else rccl.load(name, nodes=nodes)
    fabric = rccl.lower(machine)
    found = benchmark.pedantic(lambda: forests(fabric, collective), rounds=1, warmup_rounds=1)
    best = found[-1]
    benchmark.extra_info["of what is proven"] = best.proof / best.seconds
    benchmark.extra_info["trees"] = len(best.forest.weights)
    benchmark.extra_info["depth"] = best.depth
    assert best.proof / best.seconds >= (0.97 if collective == "broadcast" else 0.99)
    assert benchmark.stats.stats.median <= limit
