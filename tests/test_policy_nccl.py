"""nccl-2.30: the table an NCCL printed on H100 nodes, and what follows from it.

RECORDED is NCCL 2.27.5's own tuning table (NCCL_DEBUG_SUBSYS=TUNING) of 8 H100 and 8 NICs of
400 Gb/s a node: us and GB/s under LL, LL128 and Simple. Source: meta-pytorch/autoparallel,
cost_models/nccl_cost_model.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.planner.policies import POLICIES, policy_named
from rccl_py.planner.policies.graph import Figures, Graph, figures_of
from rccl_py.planner.policies.nccl import channels_of, cost_table
from rccl_py.topology import load, lower

PROTOCOLS = ("LL", "LL128", "Simple")
MIB = 1 << 20

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


@pytest.mark.parametrize("key", RECORDED, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
@pytest.mark.parametrize("figures", [h100, lambda n: figures_of(lower(load("h100-8", nodes=n)))],
                         ids=["given", "from-machine"])  # fmt: skip
def test_every_recorded_latency_and_bandwidth_is_reproduced_to_the_printed_digit(key, figures):
    collective, algorithm, nodes = key
    table = cost_table(collective, figures(nodes))
    for protocol, (latency, bandwidth) in zip(PROTOCOLS, RECORDED[key]):
        cost = table[algorithm, protocol]
        # The rule rounds half either way: NCCL computes in single precision.
        assert abs(cost.latency - latency) < 0.0501, protocol
        assert abs(cost.bandwidth - bandwidth) < 0.0501, protocol


def test_reduce_scatter_costs_what_allgather_costs():
    f = h100(4)
    assert cost_table("reduce_scatter", f) == cost_table("allgather", f)
