"""A bound is launch, latency and links: its latency is what hops take, its words name the links."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from check_tables import a100
from hypothesis import given
from hypothesis import strategies as st

from rccl_py import COLLECTIVES, Planner, load, lower
from rccl_py.planner.bounds import Cuts, find_cuts, lower_bound
from rccl_py.planner.hops import Hops, spread_to
from rccl_py.planner.optimum import allgather, words


@pytest.mark.parametrize("name, collective, text", [
    ("mi300x-8", "allgather", "rank 0 is entered by 7 xGMI links of 48.365 GB/s"),
    ("mi300x-8", "allreduce", "the 8 ranks together are entered by 56 xGMI links of 48.365 GB/s"),
    ("mi300x-8-x16-leaf-spine", "alltoall",
     "leaf group 0 (ranks 0..31) leaves through 1 network link of 768 GB/s"),
    ("b200-8-x64-ndr", "allgather", "node 0 (ranks 0..7) is entered by 8 NICs of 47 GB/s"),
    ("h100-8-x128-superpod", "allreduce",
     "the 128 nodes together are entered by 1024 NICs of 47 GB/s"),
    ("tpu-v4-64", "alltoall",
     "flows by shortest ways: 384 links of 45 GB/s are full"),
])  # fmt: skip
def test_the_bottleneck_is_named_in_words(name, collective, text):
    fabric = lower(load(name))
    assert Cuts(fabric).words(collective) == text
    assert find_cuts(fabric).optimum(collective).exact


def test_without_a_fabric_links_have_no_names():
    found = allgather(a100(4))
    assert found.text == words(found)
    assert found.text.startswith("ranks 0..7 are entered by 8 links of ")


def test_a_bound_is_the_sum_of_its_parts():
    fabric = lower(load("mi300x-8"))
    bound = lower_bound(fabric, find_cuts(fabric), "allgather", 1e9)
    each = max(bound.latency, bound.hops + bound.links)
    assert bound.own == pytest.approx(1e9 / 8 / fabric.copy)
    assert bound.seconds == pytest.approx(bound.launch + each + bound.own, rel=1e-12)
    assert bound.launch == fabric.launch and bound.links == pytest.approx(1e9 / bound.rate)
    assert bound.exact and bound.latency > 0


@pytest.mark.parametrize("name, collective, moved, added", [
    ("mi300x-8-cpx", "allgather", 2, 0), ("mi300x-8-cpx", "reduce_scatter", 1, 1),
    ("tpu-v4-64", "allgather", 2 + 2, 0),  # what comes over a link that is not load and store
    ("tpu-v4-64", "reduce_scatter", 1 + 2, 1), ("tpu-v4-64", "allreduce", 3 + 4, 1),
])  # fmt: skip
def test_memory_bounds_what_must_be_read_written_and_added(name, collective, moved, added):
    fabric, size = lower(load(name)), 64 << 30
    bound = lower_bound(fabric, find_cuts(fabric), collective, size)
    volume = size * 63 / 64
    wanted = max(moved * volume / fabric.memory, added * volume / fabric.reduction)
    assert bound.memory == pytest.approx(wanted)
    over = max(bound.hops + bound.links, wanted)
    assert bound.seconds == pytest.approx(bound.launch + over + bound.own)
    assert bound.cut.startswith("memory") == (wanted > bound.hops + bound.links)
    block = size / max(COLLECTIVES[collective].blocks(64))
    plan = Planner(fabric, synthesise=False).plan(collective, block)
    assert plan.bound.seconds <= plan.time


def test_switches_of_several_nodes_help_with_their_part_of_a_port():
    """All ports together do 2 (n - 1) additions and copies of the size, NICs at 2 bytes each."""
    fabric, size = lower(load("gb200-nvl72-x8")), 1e12
    bound = lower_bound(fabric, find_cuts(fabric), "allreduce", size)
    graph, part, n = find_cuts(fabric).graph, fabric.multicast, fabric.nranks
    one = graph.tail == graph.rank[0]
    up = graph.capacity[one & graph.adds[graph.head]].sum()
    nic = graph.capacity[one & ~graph.adds[graph.head]].sum()
    by_switch = part * (72 - 1) / (72 + 1)  # additions a byte at a port does
    assert bound.rate == pytest.approx(n * (2 * up * by_switch + nic) / (2 * (n - 1)))
    assert not bound.exact


# ---- latency --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 8, 9, 64, 65])
def test_what_one_knows_spreads_by_doubling_and_at_no_cost_of_messages_at_once(n):
    assert spread_to(n, 0.0, 1.0) == int(n - 1).bit_length()
    assert spread_to(n, 5.0, 0.0) == 5.0


@given(st.integers(2, 200), st.integers(0, 6), st.integers(1, 6))
def test_what_one_knows_spreads_as_counting_says(n, latency, message):
    """Of p(t) who know at t, those who knew a message ago and those it then reached."""
    know = [1] * (latency + message)
    while know[-1] < n:
        know.append(know[-message] + know[-message - latency])
    assert spread_to(n, latency, message) == len(know) - 1


def test_the_latency_of_a_torus_is_at_least_that_of_the_ranks_farthest_apart():
    fabric = lower(load("tpu-v4-64"))
    seconds, what = Hops(fabric).least("gather", 0)
    far = np.array([42]), np.array([0])  # (2, 2, 2) away
    pair = float(fabric.latency(*far).min() + fabric.message(*far)[0])
    assert seconds == pytest.approx(pair) and what.endswith("to rank 0, however it goes")
    assert Hops(fabric).least("allgather")[0] >= pair * (1 - 1e-12)


@pytest.mark.parametrize("root", [0, 3, 13])
def test_what_a_root_gets_takes_the_shortest_way_from_the_farthest_rank(root):
    fabric = lower(load("mi300x-8", nodes=2))
    src, dst = (a.ravel().astype(np.int32) for a in np.meshgrid(np.arange(16), np.arange(16)))
    spent = fabric.latency(src, dst) + fabric.message(src, dst)
    worst = []
    for each in spent:
        ways = nx.DiGraph()
        ways.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), each.tolist()))
        found = nx.single_source_dijkstra_path_length(ways.reverse(), root)
        worst.append(max(found.values()))
    assert Hops(fabric).least("reduce", root)[0] == pytest.approx(min(worst))
