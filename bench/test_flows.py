"""Ways for an alltoall, plans of unequal parts: time, what was looked at, how near the bound."""

import numpy as np
import pytest

from rccl_py.planner.flows import plan_alltoallv, synthesise_paths
from rccl_py.topology import load, lower

WAYS = [("mi250x-4", 1, 1.0), ("mi300x-8", 4, 2.0), ("h100-8", 8, 5.0), ("tpu-v4-64", 1, 5.0)]
"""Machine, nodes, s: two seconds up to 32 ranks, five for 64."""
PARTS = [("mi300x-8", 1, 1.0), ("h100-8", 4, 2.0), ("mi300x-8", 16, 5.0)]


@pytest.mark.parametrize(("name", "nodes", "limit"), WAYS)
def test_ways_are_found_in_their_limit(benchmark, name, nodes, limit):
    topology = load(name, nodes=nodes) if nodes > 1 else load(name)
    if nodes > 1:  # a NIC less, so that routes are not as good as any by symmetry
        topology = topology.without("nic0", node=0)
    fabric = lower(topology)
    paths = benchmark.pedantic(synthesise_paths, args=(fabric,), rounds=3, warmup_rounds=1)
    benchmark.extra_info["ways"] = 0 if paths is None else len(paths.weight)
    assert benchmark.stats.stats.median <= limit


@pytest.mark.parametrize(("name", "nodes", "limit"), PARTS)
def test_unequal_parts_are_planned_in_their_limit(benchmark, name, nodes, limit):
    fabric = lower(load(name, nodes=nodes) if nodes > 1 else load(name))
    n = fabric.nranks
    counts = np.random.default_rng(0).zipf(1.6, size=(n, n)).clip(0, 10**4) * 100_000
    plan = benchmark.pedantic(plan_alltoallv, args=(fabric, counts), rounds=3, warmup_rounds=1)
    benchmark.extra_info["chosen"] = plan.algorithm
    benchmark.extra_info["rows"] = sum(len(r.src) for r in plan.exchange.rounds)
    benchmark.extra_info["of the bound"] = round(plan.bound / plan.seconds, 3)
    assert benchmark.stats.stats.median <= limit
