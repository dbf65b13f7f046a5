"""nccl-2.30: the table an NCCL printed on H100 nodes, and what follows from it.

RECORDED is NCCL 2.27.5's own tuning table (NCCL_DEBUG_SUBSYS=TUNING) of 8 H100 and 8 NICs of
400 Gb/s a node: us and GB/s under LL, LL128 and Simple. Source: meta-pytorch/autoparallel,
cost_models/nccl_cost_model.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rccl_py.collectives import COLLECTIVES
from rccl_py.planner.policies import POLICIES, figures_of
from rccl_py.planner.policies.graph import Figures, Graph
from rccl_py.planner.policies.nccl import channels_of, cost_table, pick
from rccl_py.topology import load, lower

PROTOCOLS = ("LL", "LL128", "Simple")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

RECORDED = {
    ("allreduce", "Ring", 2): ((40, 20.8), (75.2, 156.6), (131.6, 204.8)),
    ("allreduce", "Ring", 4): ((78.8, 10.5), (144.4, 151.5), (282.8, 198.2)),
    ("allreduce", "Ring", 8): ((156.4, 10.4), (282.8, 149.1), (585.2, 195)),
    ("allreduce", "Ring", 32): ((622, 10.2), (1113.2, 147.4), (2399.6, 192.8)),
    ("allreduce", "Tree", 2): ((25.2, 16.6), (48.5, 124.8), (92.4, 140.8)),
    ("allreduce", "Tree", 4): ((35.2, 8.7), (65.5, 98.6), (120.4, 122.4)),
    ("allreduce", "Tree", 8): ((45.2, 8.7), (82.5, 98.6), (148.4, 122.4)),
    ("allreduce", "Tree", 32): ((65.2, 8.7), (116.5, 98.6), (204.4, 122.4)),
    ("allgather", "Ring", 2): ((23.3, 41.6), (44.6, 313.2), (70, 409.6)),
    ("allgather", "Ring", 4): ((42.7, 21.1), (79.2, 303.1), (145.6, 396.4)),
    ("allgather", "Ring", 8): ((81.5, 20.7), (148.4, 298.3), (296.8, 390.1)),
    ("allgather", "Ring", 32): ((314.3, 20.5), (563.6, 294.8), (1204, 385.5)),
}


def h100(nodes):
    """Return the figures of the recorded machine: 8 channels of 48 GB/s, Intel, plain trees."""
    graph = Graph(8, 48.0, 48.0)
    return Figures(nodes, 8 * nodes, "90", graph, graph, None, channels=16, plain_tree=True)


def found_on(machine, nodes=None, ranks=None):
    return figures_of(lower(load(machine, nodes=nodes), ranks))


@pytest.mark.parametrize("key", RECORDED, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
@pytest.mark.parametrize("figures", [h100, lambda n: found_on("h100-8", n)],
                         ids=["given", "from-machine"])  # fmt: skip
def test_every_recorded_latency_and_bandwidth_is_reproduced_to_the_printed_digit(key, figures):
    collective, algorithm, nodes = key
    table = cost_table(collective, figures(nodes))
    for protocol, (latency, bandwidth) in zip(PROTOCOLS, RECORDED[key]):
        cost = table[algorithm, protocol]
        # One digit is printed, of single precision: a half may have gone either way.
        assert abs(cost.latency - latency) < 0.0501, protocol
        assert abs(cost.bandwidth - bandwidth) < 0.0501, protocol


def test_reduce_scatter_costs_what_allgather_costs():
    assert cost_table("reduce_scatter", h100(4)) == cost_table("allgather", h100(4))


# nchannels and bw as NCCL's GRAPH lines print them; the communicator has twice the channels.
@pytest.mark.parametrize("machine, nodes, ring, channels", [
    ("h100-8", 1, Graph(12, 30.0, 30.0), 24),
    ("h100-8", 2, Graph(8, 48.0, 48.0), 16),
    ("a100-8", 1, Graph(12, 20.0, 20.0), 24),
    ("v100-8", 1, Graph(6, 20.0, 20.0), 12),
    ("b200-8", 1, Graph(16, 45.0, 45.0), 32),
    ("l40s-8", 1, Graph(1, 20.0, 20.0), 2),
])  # fmt: skip
def test_a_machine_has_the_channels_a_library_finds_on_it(machine, nodes, ring, channels):
    f = found_on(machine, nodes)
    assert (f.ring, f.channels, f.nodes) == (ring, channels, nodes)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_number_of_ranks_and_any_size_has_a_pick(collective, ranks):
    f = found_on("h100-8", ranks=ranks)
    for size in (0, 1, 63, 64, 1000, MIB, 3 * GIB):
        found = pick(f, collective, size)
        assert found.protocol in PROTOCOLS
        assert found.channels is None or 1 <= found.channels <= f.channels
        assert (found.seconds is None) == (found.algorithm == "P2P")


def test_a_large_allreduce_on_one_node_of_h100_goes_through_the_switches():
    f = found_on("h100-8")
    assert [pick(f, "allreduce", s).algorithm for s in (8, 64 * KIB, GIB)] == [
        "Ring", "Ring", "NVLS",
    ]  # fmt: skip
    large = pick(f, "allreduce", GIB)
    assert (large.protocol, large.channels, large.ours) == ("Simple", 16, "nvls")
    # bus bandwidth 8 channels x 40 GB/s x .85 x 7/8 x 2 = 476 GB/s
    busbw = cost_table("allreduce", f)["NVLS", "Simple"].bandwidth * 14 / 8
    assert busbw == pytest.approx(476)


def test_nvls_needs_multicast_switches_and_three_ranks():
    for machine, ranks in (("a100-8", 8), ("h100-8", 2), ("l40s-8", 8)):
        assert pick(found_on(machine, ranks=ranks), "allreduce", GIB).algorithm == "Ring", machine


def test_nvls_and_nvls_tree_take_one_and_several_nodes():
    names = [{a for a, _ in cost_table("allreduce", found_on("h100-8", n))} for n in (1, 2)]
    assert names == [{"Tree", "Ring", "NVLS"}, {"Tree", "Ring", "NVLSTree"}]


def test_ll128_is_off_where_the_nic_is_far_or_the_device_is_not_known_to_be_safe():
    near = found_on("a100-8", 2)
    assert ("Ring", "LL128") in cost_table("allgather", near)
    assert ("Ring", "LL128") not in cost_table("allgather", replace(near, type_inter="PXN"))
    hopper = replace(h100(2), type_inter="PXN")
    assert ("Ring", "LL128") in cost_table("allgather", hopper)
    assert ("Ring", "LL128") not in cost_table("allgather", replace(hopper, arch="89"))


def test_pat_is_for_one_rank_a_node_only():
    graph = Graph(1, 48.0, 48.0)
    alone = Figures(16, 16, "90", graph, graph, None, channels=2, plain_tree=True)
    assert pick(alone, "allgather", 64 * KIB).algorithm == "PAT"
    assert "PAT" not in {a for a, _ in cost_table("allgather", h100(16))}
    # 8 + log2(16) x 14 / 3.5 + 16 x 2.8
    assert cost_table("allgather", alone)["PAT", "Simple"].latency == pytest.approx(68.8)


def test_collnet_is_considered_where_switches_reduce():
    f = replace(found_on("h100-8", 4), collnet=True)
    names = {a for a, _ in cost_table("allreduce", f)}
    assert {"CollNetDirect", "CollNetChain", "NVLS"} <= names


def test_the_cpus_maker_bounds_ll_between_nodes():
    amd = replace(h100(4), cpu="amd")
    assert cost_table("allreduce", amd)["Ring", "LL"].bandwidth == pytest.approx(19 * 32 / 62)
    # 62 - 6 hops inside at the AMD host's 2 us, 6 outside
    assert cost_table("allreduce", amd)["Ring", "LL"].latency == pytest.approx(
        6.6 + 56 * 2 + 6 * 2.7
    )


def test_small_calls_use_fewer_channels():
    f = h100(2)
    # LL: 8 B a thread and 512 threads; on a ring, times the ranks.
    assert channels_of("Tree", "LL", 8 * 512 * 3, f) == 3
    assert channels_of("Ring", "LL", 8 * 512 * 3 * 16, f) == 3
    assert channels_of("Ring", "Simple", 64 * 512 * 5 + 1, f) == 5
    assert [channels_of("Tree", "LL128", s, f) for s in (0, GIB)] == [1, 16]


def test_a_ring_between_nodes_pays_for_its_plateau():
    # 2399.6 us of latency times 1.4, and 1 GiB at 192.8 GB/s
    f = h100(32)
    ring = pick(f, "allreduce", 8 * GIB)
    assert (ring.algorithm, ring.protocol) == ("Ring", "Simple")
    assert ring.seconds == pytest.approx(2399.6e-6 * 1.4 + 8 * GIB / 192.753e9, rel=1e-3)


def test_what_nccl_has_no_model_for_has_no_time():
    for collective in ("alltoall", "gather", "scatter"):
        found = POLICIES["nccl-2.30"].pick(h100(2), collective, MIB)
        assert (found.algorithm, found.seconds, found.ours) == ("P2P", None, "direct")
