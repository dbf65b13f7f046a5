"""Pairs of ranks that trees and relays do well without: which they are, and what that is good for.

Where few pairs share a link, messages of ranks that drift apart do not meet: the simulation takes
what the load of links says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import recipe_of

from rccl_py.algorithms import Paths, algorithms_of
from rccl_py.algorithms.paths import PEERS
from rccl_py.check import check
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.planner.flows import synthesise_paths
from rccl_py.planner.flows.hops import hops_of
from rccl_py.planner.flows.ways import fastest_ways, proven
from rccl_py.planner.packing import forests, load_of
from rccl_py.planner.packing.columns import Pool, mixed, solved
from rccl_py.planner.packing.synthesis import problem_of
from rccl_py.planner.packing.ways import ways_of
from rccl_py.timing import profile, timed
from rccl_py.topology import load, lower


def fabric_of(name: str, nodes: int = 1) -> Fabric:
    return lower(load(name, nodes=nodes) if nodes > 1 else load(name))


def slow_odd(fabric: Fabric) -> np.ndarray:
    """Return the odd pairs, one by one: bool[n, n]."""
    n = fabric.nranks
    used = {}
    for i, j in np.argwhere(ways_of(fabric).joined).tolist():
        routes = fabric.routes(np.array([i], np.int32), np.array([j], np.int32))
        used[i, j] = set(routes.link[routes.share > 0].tolist())
    found = np.zeros((n, n), dtype=bool)
    size = [int((fabric.node == fabric.node[i]).sum()) for i in range(n)]
    for (i, j), links in used.items():
        passed = [(i, k) for k in range(n)] + [(k, j) for k in range(n)]
        found[i, j] = any(used.get(pair) and used[pair] < links for pair in passed)
        if fabric.node[i] != fabric.node[j]:
            found[i, j] |= fabric.local[i] % size[j] != fabric.local[j] % size[i]
    return found


@pytest.mark.parametrize(("name", "nodes"), [("v100-8", 1), ("mi250x-4", 1), ("frontier", 2),
                                             ("h100-8", 2), ("mixed-x6", 1)])  # fmt: skip
def test_odd_are_the_pairs_that_pass_others_or_leave_their_rail(name, nodes):
    fabric = fabric_of(name, nodes)
    ways = ways_of(fabric)
    odd = slow_odd(fabric)
    assert ways.odd is not None and np.array_equal(ways.odd & ways.joined, odd)
    plain = ways.plain()
    assert plain is not None and np.array_equal(plain.joined, ways.joined & ~odd)
    kept = np.repeat(plain.joined.ravel(), np.diff(ways.matrix.indptr))
    assert plain.matrix.data == pytest.approx(ways.matrix.data[kept])
    turned, both = ways.turned().plain(), ways.both().plain()
    assert turned is not None and np.array_equal(turned.joined, plain.joined.T)
    assert both is not None and np.array_equal(both.joined, plain.joined & plain.joined.T)
    assert plain.plain() is None


def test_a_switch_has_no_odd_pairs():
    assert ways_of(fabric_of("h100-8")).plain() is None


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_forests_of_plain_pairs_take_in_the_simulation_what_the_estimate_says(collective):
    fabric = fabric_of("frontier", 2)
    ways, best = ways_of(fabric), forests(fabric, collective)[-1]
    assert best.seconds <= best.proof * 1.01  # no forest of any pairs is faster
    tree, child = np.nonzero(best.forest.parents >= 0)
    assert ways.odd is not None and not ways.odd[best.forest.parents[tree, child], child].any()
    row = next(a for a in algorithms_of(collective) if a.name == "forest")
    schedule = row.build(replace(recipe_of(16), forest=best.forest, pieces=16))
    slow, fast = (timed(schedule, fabric, float(1 << 30), PROTOCOLS["Simple"], engine=e).seconds
                  for e in ("simulate", "estimate"))  # fmt: skip
    assert slow <= fast * 1.005


def test_what_no_price_is_paid_for_is_used_less():
    fabric = fabric_of("frontier", 2)
    problem = problem_of(ways_of(fabric), "allgather")
    pool = Pool(problem)
    mix, _ = solved(pool, 4)
    assert mix is not None
    which, most = pool.within(4, mix), mix.busy * 1.005
    early, idle = mixed(pool, which, most), mixed(pool, which, most, mix.prices)
    assert early is not None and idle is not None
    busy = np.array(pool.busy)
    loose = mix.prices <= 1e-6 * mix.prices.max()
    loads = [one.x @ busy[: len(one.x)] for one in (early, idle)]
    assert all(load.max() <= most * (1 + 1e-9) for load in loads)
    assert loads[1][loose].max() < loads[0][loose].max()


def test_prices_prove_a_bound_for_all_hops():
    hops = hops_of(fabric_of("v100-8"))
    demand = np.ones((8, 8))
    ways = fastest_ways(hops, demand)
    assert ways is not None
    assert proven(hops, demand, ways.prices) == pytest.approx(ways.bound, rel=1e-9)
    uniform = np.full(hops.nresources, 1 / hops.nresources)
    assert proven(hops, demand, uniform) < ways.bound


@pytest.mark.parametrize("name", ["v100-8", "mi250x-4"])
def test_relays_of_plain_hops_take_in_the_simulation_what_the_estimate_says(name):
    fabric = fabric_of(name)
    ways, paths = ways_of(fabric), synthesise_paths(fabric)
    assert paths is not None and ways.odd is not None
    last = np.zeros(len(paths.rank), dtype=bool)
    last[paths.ptr[1:] - 1] = True
    at = np.flatnonzero(~last)
    assert not ways.odd[paths.rank[at], paths.rank[at + 1]].any()
    row = next(a for a in algorithms_of("alltoall") if a.name == "paths")
    schedule = row.build(replace(recipe_of(8), paths=paths, pieces=64))
    slow, fast = (timed(schedule, fabric, float(1 << 29), PROTOCOLS["Simple"], engine=e).seconds
                  for e in ("simulate", "estimate"))  # fmt: skip
    assert slow <= fast * 1.005


def channels_of(paths: Paths, n: int) -> dict[int, set[tuple[int, int]]]:
    """Return the pairs of ranks that talk, by channel, of a checked alltoall."""
    row = next(a for a in algorithms_of("alltoall") if a.name == "paths")
    schedule = row.build(replace(recipe_of(n), paths=paths, pieces=2))
    check(schedule)
    found: dict[int, set[tuple[int, int]]] = {}
    for phase in schedule.phases():
        for rows in (move.rows for move in phase.moves):
            for src, dst, c in zip(rows.src.tolist(), rows.dst.tolist(), rows.channel.tolist()):
                if src != dst:
                    found.setdefault(c, set()).add((src, dst))
    assert schedule.nchannels == max(found) + 1
    assert profile(schedule, fabric_of("h100-8", -(-n // 8))).rows > 0
    return found


def ring_paths(n: int, reach: int) -> Paths:
    """Return ways around a ring of n, up to `reach` ranks a hop."""
    ways = [[i, *((i + min(s, d)) % n for s in range(reach, d, reach)), (i + d) % n]
            for i in range(n) for d in range(1, n)]  # fmt: skip
    ptr = np.concatenate([[0], np.cumsum([len(way) for way in ways])]).astype(np.int64)
    rank = np.array([r for way in ways for r in way], dtype=np.int32)
    return Paths(ptr, rank, np.ones(len(ways), dtype=np.int32), 1)


def test_few_peers_have_channels_of_two_many_have_one():
    few = channels_of(ring_paths(16, PEERS), 16)
    assert len(few) == PEERS // 2
    for pairs in few.values():
        for end in zip(*pairs):
            assert np.bincount(end).max() <= 2
    seen = [pair for pairs in few.values() for pair in pairs]
    assert len(seen) == len(set(seen)) == 16 * PEERS
    assert list(channels_of(ring_paths(16, PEERS + 1), 16)) == [0]


def test_the_load_of_a_plain_forest_is_that_of_the_machine():
    fabric = fabric_of("v100-8")
    ways, best = ways_of(fabric), forests(fabric, "allgather")[-1]
    plain = ways.plain()
    assert plain is not None
    for own in (True, False):
        whole, part = (load_of(best.forest, w, own=own) for w in (ways, plain))
        assert whole[: len(part)] == pytest.approx(part)
