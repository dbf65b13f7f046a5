"""ASTRA-sim's analytical files, ns-3 and htsim topologies become graphs of the same numbers."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError
from rccl_py.topology.build import Topology, gpus_of
from rccl_py.topology.formats.astra_sim import is_astra_sim, read_astra_sim
from rccl_py.topology.formats.htsim import is_htsim, read_htsim
from rccl_py.topology.formats.ns3 import is_ns3, read_ns3
from rccl_py.topology.lower import lower

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs")
REAL = [
    (file, read, looks)
    for pattern, read, looks in (
        ("astra-sim/*.y*ml", read_astra_sim, is_astra_sim),
        ("astra-sim/*topology*.txt", read_ns3, is_ns3),
        ("simai/Spectrum-X*", read_ns3, is_ns3),
        ("*/*.topo", read_htsim, is_htsim),
    )
    for file in sorted(CASES.glob(pattern))
]
needs_cases = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains peer_inputs/"
)
SNIFFERS = (is_astra_sim, is_ns3, is_htsim)

GIB = float(1 << 30)

NS3 = """5 1 5
4
0 4 200Gbps 0.0005ms 0
1 4 200Gbps 500ns 0
2 4 100Gbps 0.5us 0
3 4 100Gbps 0.5us 0
0 1 25GBps 1us 0
"""

SIMAI = """7 2 2 1 6 H800
4 5
6
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 2880Gbps 0.000025ms 0
3 5 2880Gbps 0.000025ms 0
0 6 400Gbps 0.0005ms 0
2 6 400Gbps 0.0005ms 0.01
"""

TREE = """# three tiers
Nodes 8
Tiers 3
Podsize 4
Tier 0
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 300
Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 4
Downlink_Latency_ns 1000
Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 2000
Bundle 2
"""


@pytest.fixture
def read(tmp_path):
    def reader(text: str, how=read_astra_sim, name: str = "net.yml") -> Topology:
        path = tmp_path / name
        path.write_text(text)
        return how(path)

    return reader


def astra(kinds, counts, bandwidths, latencies) -> str:
    keys = {"topology": kinds, "npus_count": counts, "bandwidth": bandwidths, "latency": latencies}
    return "".join(f"{key}: [{', '.join(map(str, value))}]\n" for key, value in keys.items())


def latency(topology: Topology, a: int, b: int) -> float:
    return float(lower(topology).latency(np.array([a]), np.array([b]))[0, 0])


def test_a_ring_joins_neighbours_both_ways_at_the_given_rate(read):
    topology = read(astra(["Ring"], [4], [50.0], [500]))
    edges = {(a, b) for a, b in topology.node.edges}
    assert edges == {(f"gpu{i}", f"gpu{j}") for i in range(4) for j in ((i + 1) % 4, (i - 1) % 4)}
    own = topology.node.edges["gpu0", "gpu1"]
    assert own["bandwidth"] == own["raw"] == 50 * GIB and own["latency"] == (5e-7,) * 3


def test_a_ring_of_two_is_one_link(read):
    assert read(astra(["Ring"], [2], [1], [1])).node.number_of_edges() == 2


def test_every_link_of_fully_connected_has_the_whole_bandwidth(read):
    topology = read(astra(["FullyConnected"], [5], [100], [10]))
    assert topology.node.number_of_edges() == 20
    assert {d["bandwidth"] for _, _, d in topology.node.edges(data=True)} == {100 * GIB}


def test_a_switch_is_two_latencies_away(read):
    topology = read(astra(["Switch"], [8], [400], [936.25]))
    assert latency(topology, 0, 7) == pytest.approx(2 * 936.25e-9)


def test_rank_order_is_the_innermost_dimension_first(read):
    topology = read(astra(["Ring", "FullyConnected", "Switch"], [3, 2, 2], [1, 2, 3], [1, 2, 3]))
    graph, found = topology.node, set()
    for a, b in product(range(12), repeat=2):
        if graph.has_edge(f"gpu{a}", f"gpu{b}"):
            found.add((a, b, graph.edges[f"gpu{a}", f"gpu{b}"]["bandwidth"] / GIB))
    for a, b, rate in found:
        one, two = (a % 3, a // 3 % 2, a // 6), (b % 3, b // 3 % 2, b // 6)
        differ = [d for d in range(3) if one[d] != two[d]]
        assert differ == ([0] if rate == 1 else [1])
    assert set(graph["gpu0"]) >= {"d2-switch0"} and set(graph["gpu6"]) >= {"d2-switch0"}
    assert len(found) == 24 + 12


def test_a_pair_that_differs_in_two_dimensions_crosses_both(read):
    topology = read(astra(["FullyConnected", "Switch"], [4, 2], [100, 50], [10, 1000]))
    assert latency(topology, 0, 5) == pytest.approx(10e-9 + 2 * 1000e-9)


def test_the_host_is_the_coordinate_beyond_the_first_dimension(read):
    topology = read(astra(["Switch", "Ring"], [4, 3], [1, 1], [1, 1]))
    assert [topology.node.nodes[g]["host"] for g in gpus_of(topology.node)] == [
        i // 4 for i in range(12)
    ]


def test_the_same_file_as_json_is_the_same_machine(read):
    keys = {"topology": ["Switch", "Ring"], "npus_count": [2, 3], "bandwidth": [5, 6],
            "latency": [7, 8]}  # fmt: skip
    one, two = read(json.dumps(keys, indent="\t")), read(astra(*keys.values()))
    assert nx.utils.graphs_equal(one.node, two.node) and is_astra_sim(json.dumps(keys))


def test_a_key_that_astra_sim_does_not_know_is_ignored_and_said(read):
    topology = read(astra(["Ring"], [4], [1], [1]) + "width: 4\n")
    assert any("width" in note for note in topology.notes)


def test_notes_say_what_the_numbers_mean_and_what_is_assumed(read):
    notes = "; ".join(read(astra(["Switch"], [8], [400], [1])).notes)
    assert "2**30" in notes and "assumed" in notes and "stores and forwards" in notes


@settings(max_examples=30, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(st.tuples(st.sampled_from(["Ring", "FullyConnected", "Switch"]),
                          st.integers(2, 4)), min_size=1, max_size=4))  # fmt: skip
def test_any_stack_of_dimensions_joins_all_npus(read, shape):
    kinds, counts = [k for k, _ in shape], [n for _, n in shape]
    topology = read(astra(kinds, counts, [1.5] * len(shape), [2] * len(shape)))
    assert topology.ngpus == int(np.prod(counts)) and nx.is_strongly_connected(topology.node)


@pytest.mark.parametrize("text, line, says", [
    ("", 1, "topology"),
    ("- Ring\n", 1, "topology"),
    ("topology: [Ring]\nnpus_count: [4]\nbandwidth: [1]\n", 1, "latency is missing"),
    (astra(["Rin"], [4], [1], [1]), 1, "'Rin'"),
    (astra(["Ring"], [1], [1], [1]), 2, "2 or more"),
    (astra(["Ring"], [-4], [1], [1]), 2, "'-4'"),
    (astra(["Ring"], [4.5], [1], [1]), 2, "'4.5'"),
    (astra(["Ring", "Ring"], [4], [1, 1], [1, 1]), 2, "one value a dimension"),
    (astra(["Ring"], [4], [0], [1]), 3, "above 0"),
    (astra(["Ring"], [4], ["1e30"], [1]), 3, "beyond any link"),
    (astra(["Ring"], [4], [".nan"], [1]), 3, "not a number"),
    (astra(["Ring"], [4], [1], [-1]), 4, "0 or more"),
    (astra(["Ring"], [4], [1], ["1e15"]), 4, "beyond any link"),
    (astra(["Switch"], [100000000], [1], [1]), None, "at most 4096"),
    (astra(["FullyConnected"], [4096], [1], [1]), None, "directed links"),
    (astra(["Ring"], [4], [1], [1]) + "latency: [3]\n", 5, "given twice"),
    (astra(["Ring"], [4], [1], [1]).replace("width", "with"), 1, "'bandwith' on line 3"),
    ("dimensions-count: 2\n", 1, "1.x"),
    ("topology: [Ring\n", 2, "expected"),
    ("topology: [[Ring]]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]\n", 1, "list in a list"),
    ("[" * 5000, 1, "brackets"), ("- " * 5000, None, "not YAML"),
])  # fmt: skip
def test_a_broken_astra_file_is_one_error_with_its_line(read, text, line, says):
    with pytest.raises(FormatError) as error:
        read(text)
    message = str(error.value)
    assert says in message and "\n" not in message
    assert f"net.yml:{line}: " in message if line else "net.yml: " in message


def test_an_ns3_link_is_full_duplex_and_hosts_are_accelerators_in_order(read):
    topology = read(NS3, read_ns3)
    assert gpus_of(topology.node) == ["gpu0", "gpu1", "gpu2", "gpu3"]
    for ends in (("gpu0", "switch4"), ("switch4", "gpu0")):
        assert topology.node.edges[ends]["bandwidth"] == 25e9
    assert topology.node.edges["gpu2", "switch4"]["latency"] == (5e-7,) * 3
    assert topology.node.edges["gpu0", "gpu1"]["bandwidth"] == 25e9


def test_ns3_switch_ids_need_not_be_the_last(read):
    topology = read("3 1 2\n0\n0 1 10Gbps 1us 0\n0 2 10Gbps 1us 0\n", read_ns3)
    assert set(topology.node["switch0"]) == {"gpu0", "gpu1"}


def test_ns3_files_without_switches_are_direct_links(read):
    topology = read("2 0 1\n\n0 1 25Gbps 0.005ms 0\n", read_ns3)
    assert topology.node.edges["gpu1", "gpu0"]["latency"] == (5e-6,) * 3


def test_parallel_ns3_links_are_lanes(read):
    topology = read("2 0 2\n0 1 25Gbps 5us 0\n1 0 25Gbps 5us 0\n", read_ns3)
    assert topology.node.edges["gpu0", "gpu1"]["lanes"] == 2


def test_a_simai_header_names_servers_nvswitches_and_the_gpu(read):
    topology = read(SIMAI, read_ns3)
    graph = topology.node
    assert topology.device.name == "h100" and any("H800" in note for note in topology.notes)
    assert [graph.nodes[g]["host"] for g in gpus_of(graph)] == [0, 0, 1, 1]
    assert graph.edges["gpu0", "nvswitch4"]["link"].medium == "nvlink"
    assert graph.edges["gpu0", "nvswitch4"]["bandwidth"] == 360e9
    assert any("error rates of 1" in note for note in topology.notes)


@pytest.mark.parametrize("old, new, line, says", [
    ("5 1 5", "5 1", 1, "header"),
    ("5 1 5", "5 1 5000000", 1, "links"),
    ("5 1 5", "90000 1 5", 1, "at most 4096"),
    ("5 1 5", "5 5 5", 1, "no host"),
    ("5 1 5", "5 1 9", 7, "ends after 5"),
    ("\n4\n", "\n9\n", 2, "switch id"),
    ("0 1 25GBps", "0 7 25GBps", 7, "dst"),
    ("0 1 25GBps", "1 1 25GBps", 7, "itself"),
    ("25GBps", "0Gbps", 7, "above 0"),
    ("25GBps", "fast", 7, "no bandwidth"),
    ("25GBps 1us", "25GBps 1fortnight", 7, "no time"),
    ("25GBps 1us 0", "25GBps 1us 7", 7, "error rate"),
    ("25GBps 1us 0", "25GBps", 7, "fields"),
    ("0 1 25GBps", "0 4 25GBps", 7, "twice"),
])  # fmt: skip
def test_a_broken_ns3_file_is_one_error_with_its_line(read, old, new, line, says):
    with pytest.raises(FormatError, match=rf"net.yml:{line}: .*{says}"):
        read(NS3.replace(old, new), read_ns3)


def test_lines_beyond_the_promised_links_are_ignored_and_said(read):
    topology = read(NS3.replace("5 1 5", "5 1 4"), read_ns3)
    assert not topology.node.has_edge("gpu0", "gpu1")
    assert any("ignored" in note for note in topology.notes)


def test_an_htsim_fat_tree_is_wired_as_htsim_wires_it(read):
    graph = read(TREE, read_htsim).node
    kinds = [v.rstrip("0123456789") for v in graph]
    assert {k: kinds.count(k) for k in set(kinds)} == {"gpu": 8, "tor": 4, "agg": 4, "core": 4}
    assert set(graph["tor1"]) == {"gpu2", "gpu3", "agg0", "agg1"}
    assert set(graph["agg1"]) == {"tor0", "tor1", "core1", "core3"}
    own = graph.edges["agg1", "core3"]
    assert own["lanes"] == 2 and own["bandwidth"] == 25e9 and own["latency"] == (2e-6,) * 3


def test_a_switch_latency_is_paid_on_leaving_the_switch(read):
    graph = read(TREE, read_htsim).node
    assert graph.edges["gpu0", "tor0"]["latency"][0] == pytest.approx(1e-6)
    assert graph.edges["tor0", "gpu0"]["latency"][0] == pytest.approx(1.3e-6)
    assert graph.edges["tor0", "agg0"]["latency"][0] == pytest.approx(1.3e-6)


def test_queue_sizes_and_other_keys_are_ignored_and_said(read):
    topology = read(TREE + "Queue_Down_KB 100\nColour blue\n", read_htsim)
    assert any("Queue_Down_KB, Colour" in note for note in topology.notes)


def test_an_oversubscribed_leaf_spine_has_fewer_uplinks(read):
    two = ("Nodes 32\nTiers 2\nPodsize 32\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 8\n"
           "Radix_Up 2\nDownlink_Latency_ns 1000\nOversubscribed 4\nTier 1\n"
           "Downlink_speed_Gbps 100\nRadix_Down 4\nDownlink_Latency_ns 1000\n")  # fmt: skip
    graph = read(two, read_htsim).node
    assert set(graph["tor0"]) == {*(f"gpu{i}" for i in range(8)), "agg0", "agg1"}


@pytest.mark.parametrize("old, new, says", [
    ("Nodes 8", "Nodes 0", "Nodes"), ("Nodes 8", "Nodes 9", "divide"),
    ("Nodes 8", "Nodes 99999", "at most 4096"), ("Tiers 3", "Tiers 4", "2 or 3"),
    ("Podsize 4", "Podsize 0", "Podsize"), ("Radix_Down 2", "Radix_Down 0", "radix_down"),
    ("Radix_Up 4", "Radix_Up 3", "Bundle"), ("Bundle 2", "Bundle x", "'x'"),
    ("Bundle 2", "Bundel 2", "did you mean bundle"), ("Tiers 3", "Tier 3", "tier 3"),
    ("Nodes 8", "Nodes 8\nNodes 8", "twice"),
    ("Tier 2", "Tier 1", "tier 1"), ("Tier 2", "Tier 7", "tier 7"),
    ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 0", "downlink_speed_gbps"),
    ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 300", "whole number"),
    ("Downlink_Latency_ns 2000", "", "downlink_latency_ns"),
])  # fmt: skip
def test_a_broken_htsim_file_is_one_error(read, old, new, says):
    with pytest.raises(FormatError, match=says) as error:
        read(TREE.replace(old, new, 1), read_htsim)
    assert "\n" not in str(error.value) and "net.yml" in str(error.value)


@settings(max_examples=120, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.data())
def test_a_mutated_file_is_read_or_refused_in_one_line(read, data):
    text, how = data.draw(st.sampled_from([
        (astra(["Ring", "Switch"], [4, 2], [50.0, 5], [500, 1]), read_astra_sim),
        (NS3, read_ns3), (SIMAI, read_ns3), (TREE, read_htsim),
    ]))  # fmt: skip
    at = data.draw(st.integers(0, len(text)))
    odd = ["0", "-1", "1e9", "99999999999", "\n", " ", "[", ": ", "#", "nan", "\x00", "{"]
    new = data.draw(st.one_of(st.text(max_size=4), st.sampled_from(odd)))
    cut = data.draw(st.integers(0, 6))
    try:
        assert isinstance(read((text[:at] + new + text[at + cut :]).encode("utf-8", "replace")
                               .decode(), how), Topology)  # fmt: skip
    except FormatError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("how", [read_astra_sim, read_ns3, read_htsim])
def test_a_file_that_cannot_be_read_is_one_error(tmp_path, how):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "x"):
        with pytest.raises(FormatError):
            how(path)


@needs_cases
@pytest.mark.parametrize("file, read, looks", REAL, ids=lambda x: getattr(x, "name", ""))
def test_every_real_file_is_recognised_by_its_reader_alone_and_lowers(file, read, looks):
    text = file.read_text()
    assert [sniff for sniff in SNIFFERS if sniff(text)] == [looks]
    topology = read(file)
    fabric = lower(topology)
    last = np.array([topology.ngpus - 1])
    assert fabric.latency(np.array([0]), last).min() > 0
