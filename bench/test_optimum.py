"""Bounds from nothing: graph, orbits and optimum, at 1,024, 10,000 and 100,000 ranks."""

import time

import pytest

import rccl_py as rccl
from rccl_py.planner.bounds import Cuts

CASES = [
    ("mi300x-8-x128-rails", None, 1024, 0.050),
    ("h100-8-x128-superpod", None, 1024, 0.050),
    ("ualink-64-x16", None, 1024, 0.050),
    ("ualink-1024", None, 1024, 0.050),  # one node of 8,192 links
    ("mi300x-8-x12500-three-tier", 10_000, 10_000, 0.300),
    ("mi300x-8-x12500-three-tier", None, 100_000, 2.0),  # closed form: the graph is all of it
]
COLLECTIVES = ["allgather", "allreduce", "alltoall"]


@pytest.mark.benchmark(timer=time.process_time)  # nothing here waits or uses several cores
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("name", "asked", "ranks", "limit"), CASES)
def test_a_bound_is_found_in_its_limit(benchmark, name, asked, ranks, limit, collective):
    fabric = rccl.lower(rccl.load(name), asked)
    fabric.classes  # noqa: B018  what planning has asked for already

    def found():
        return Cuts(fabric).optimum(collective)

    optimum = benchmark.pedantic(found, rounds=5, warmup_rounds=1)
    assert fabric.nranks == ranks
    cuts = Cuts(fabric)
    benchmark.extra_info["vertices, edges"] = (cuts.graph.nvertices, len(cuts.graph.tail))
    benchmark.extra_info["GB/s"] = optimum.rate / 1e9
    benchmark.extra_info["exact"] = optimum.exact
    assert benchmark.stats.stats.median <= limit
