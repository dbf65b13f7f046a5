"""SimGrid platforms become graphs whose routes carry their links' rates and latencies."""

from __future__ import annotations

import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError
from rccl_py.topology.build import Topology, gpus_of
from rccl_py.topology.formats.simgrid.reader import is_simgrid, read_simgrid
from rccl_py.topology.lower import lower

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs", "simgrid")
REAL = sorted(CASES.glob("*.xml"))
needs_cases = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains peer_inputs/simgrid/"
)

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'


def platform(body: str) -> str:
    return f'{HEAD}<platform version="4.1">\n{body}</platform>\n'


def cluster(hosts: str, **more: str) -> str:
    own = {"id": "c", "prefix": "n-", "suffix": ".x", "speed": "1Gf", "bw": "125MBps",
           "lat": "50us"} | more  # fmt: skip
    return f'<cluster radical="{hosts}" {" ".join(f"{k}={v!r}" for k, v in own.items())}/>\n'


def zone(body: str, routing: str = "Full", name: str = "z") -> str:
    return f'<zone id="{name}" routing="{routing}">\n{body}</zone>\n'


def hosts(*names: str) -> str:
    return "".join(f'<host id="{name}" speed="1Gf"/>\n' for name in names)


def link(name: str, rate: str = "10MBps", wait: str = "1us", policy: str = "") -> str:
    sharing = f' sharing_policy="{policy}"' if policy else ""
    return f'<link id="{name}" bandwidth="{rate}" latency="{wait}"{sharing}/>\n'


def route(a: str, b: str, *links: str, more: str = "") -> str:
    inner = "".join(f'<link_ctn id="{name}"/>' for name in links)
    return f'<route src="{a}" dst="{b}"{more}>{inner}</route>\n'


THREE = platform(zone(
    hosts("a", "b", "c") + link("1") + link("2", "20MBps", "2us") + link("3", "30MBps", "3us")
    + link("m", "5MBps", "10us")
    + route("a", "b", "1", "m", "2") + route("a", "c", "1", "m", "3") + route("b", "c", "2", "3")
))  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def reader(text: str) -> Topology:
        path = tmp_path / "platform.xml"
        path.write_text(text)
        return read_simgrid(path)

    return reader


def latency(topology: Topology, a: int, b: int) -> float:
    return float(lower(topology).latency(np.array([a]), np.array([b]))[0, 0])


def links_of(topology: Topology, a: int, b: int) -> set[int]:
    return set(lower(topology).routes(np.array([a]), np.array([b])).link.tolist())


def rate(topology: Topology, a: int, b: int) -> float:
    """Return the B/s one flow gets alone."""
    fabric = lower(topology)
    found = fabric.routes(np.array([a]), np.array([b]))
    return float((fabric.bandwidth[found.link] / found.share).min())


def test_a_flat_cluster_is_a_crossbar(read):
    topology = read(platform(cluster("0-9")))
    assert topology.ngpus == 10 and latency(topology, 0, 9) == pytest.approx(100e-6)
    assert rate(topology, 0, 9) == 125e6


def test_a_backbone_is_one_link_that_all_share(read):
    topology = read(platform(cluster("0-9", bb_bw="2.25GBps", bb_lat="500us")))
    assert latency(topology, 0, 9) == pytest.approx(600e-6)
    assert len(links_of(topology, 0, 1) & links_of(topology, 2, 3)) == 1


def test_a_fatpipe_backbone_only_limits_each_flow_and_adds_its_latency(read):
    topology = read(platform(cluster("0-9", bb_bw="50MBps", bb_lat="500us",
                                     bb_sharing_policy="FATPIPE")))  # fmt: skip
    assert not links_of(topology, 0, 1) & links_of(topology, 2, 3)
    assert latency(topology, 0, 9) == pytest.approx(600e-6) and rate(topology, 0, 9) == 50e6


def test_a_shared_host_link_carries_both_ways(read):
    topology = read(platform(cluster("0-3", sharing_policy="SHARED")))
    assert links_of(topology, 0, 1) & links_of(topology, 2, 0)
    split = read(platform(cluster("0-3")))
    assert not links_of(split, 0, 1) & links_of(split, 2, 0)


def test_a_crossbar_beyond_one_graph_is_a_node_a_host(read):
    topology = read(platform(zone(cluster("0-65535"))))
    assert topology.nodes == topology.ngpus == 65536
    assert latency(topology, 0, 65535) == pytest.approx(100e-6)
    assert rate(topology, 0, 65535) == 125e6


def test_a_torus_joins_the_neighbours_of_every_dimension(read):
    topology = read(platform(cluster("0-11", topology="TORUS", topo_parameters="3,2,2")))
    assert set(topology.node["gpu0"]) == {"gpu1", "gpu2", "gpu3", "gpu6"}
    assert latency(topology, 0, 11) == pytest.approx(150e-6)  # (2, 1, 1): one step each


def test_a_fat_tree_has_its_levels_and_parallel_links(read):
    topology = read(platform(cluster("0-15", topology="FAT_TREE", topo_parameters="2;4,4;1,2;1,2")))
    graph = topology.node
    assert set(graph["level1-0"]) == {"gpu0", "gpu1", "gpu2", "gpu3", "level2-0", "level2-1"}
    assert graph.edges["level1-0", "level2-1"]["lanes"] == 2
    assert latency(topology, 0, 15) == pytest.approx(200e-6)


def test_a_fat_tree_of_three_levels_is_wired_by_digits(read):
    topology = read(platform(cluster("0-7", topology="FAT_TREE",
                                     topo_parameters="3;2,2,2;1,2,2;1,1,1")))  # fmt: skip
    graph = topology.node.to_undirected()
    assert nx.is_connected(graph) and latency(topology, 0, 7) == pytest.approx(300e-6)
    assert {graph.degree(f"level2-{k}") for k in range(4)} == {4}
    assert {graph.degree(f"level3-{k}") for k in range(4)} == {2}


def test_a_dragonfly_has_green_black_and_blue_links(read):
    topology = read(platform(cluster("0-119", topology="DRAGONFLY",
                                     topo_parameters="3,4;4,3;5,1;2")))  # fmt: skip
    graph = topology.node
    lanes = [d["lanes"] for a, b, d in graph.edges(data=True) if "gpu" not in a + b]
    assert {n: lanes.count(n) for n in set(lanes)} == {1: 240, 3: 180, 4: 6}
    assert graph.has_edge("router1", "router20") and latency(topology, 0, 1) == 100e-6


def test_links_that_routes_share_are_shared_in_the_graph(read):
    topology = read(THREE)
    assert topology.ngpus == 3 and [topology.node.nodes[g]["label"]
                                    for g in gpus_of(topology.node)] == ["a", "b", "c"]  # fmt: skip
    assert links_of(topology, 0, 1) & links_of(topology, 0, 2)
    assert latency(topology, 0, 1) == pytest.approx(13e-6) and rate(topology, 0, 1) == 5e6
    assert latency(topology, 2, 1) == pytest.approx(5e-6) and rate(topology, 2, 1) == 20e6


def test_a_shared_link_serves_both_directions_and_a_split_one_each_its_own(read):
    def two(policy: str) -> Topology:
        return read(platform(zone(hosts("a", "b") + link("l", policy=policy)
                                  + route("a", "b", "l"))))  # fmt: skip

    for policy in ("", "SHARED"):
        assert links_of(two(policy), 0, 1) & links_of(two(policy), 1, 0)
    for policy in ("SPLITDUPLEX", "FULLDUPLEX"):
        topology = two(policy)
        assert not links_of(topology, 0, 1) & links_of(topology, 1, 0)
        assert topology.node.has_edge("gpu0", "gpu1")


def test_a_fatpipe_route_is_an_edge_of_its_own(read):
    topology = read(platform(zone(hosts("a", "b", "c") + link("l", policy="FATPIPE")
                                  + route("a", "b", "l") + route("a", "c", "l"))))  # fmt: skip
    assert not links_of(topology, 0, 1) & links_of(topology, 0, 2)


def test_a_route_longer_than_another_way_over_its_links_is_kept_and_said(read):
    topology = read(platform(zone(
        hosts("a", "b", "c") + link("1") + link("2") + link("3")
        + route("a", "b", "1", "2", "3") + route("a", "c", "1") + route("b", "c", "1")
    )))  # fmt: skip
    assert latency(topology, 0, 1) == pytest.approx(3e-6)
    assert any("not the only shortest" in note for note in topology.notes)


def test_a_route_may_lead_one_way_only(read):
    body = hosts("a", "b") + link("1") + link("2", "1MBps")
    topology = read(platform(zone(body + route("a", "b", "1", more=' symmetrical="NO"')
                                  + route("b", "a", "2", more=' symmetrical="no"'))))  # fmt: skip
    assert rate(topology, 0, 1) == 10e6 and rate(topology, 1, 0) == 1e6


@pytest.mark.parametrize("routing", ["Floyd", "Dijkstra", "DijkstraCache", "floyd"])
def test_floyd_and_dijkstra_find_the_route_of_fewest_links(read, routing):
    topology = read(platform(zone(
        hosts("a", "b") + '<router id="r"/><router id="s"/>' + link("1") + link("2") + link("3")
        + link("4") + link("5") + route("a", "r", "1") + route("r", "b", "2")
        + route("a", "s", "3") + route("s", "b", "4", "5"), routing
    )))  # fmt: skip
    assert latency(topology, 0, 1) == pytest.approx(2e-6)


def test_zones_are_joined_by_their_gateways(read):
    topology = read(platform(zone(
        cluster("0-3", id="one", suffix=".1") + cluster("0-3", id="two", suffix=".2", bb_bw="1GBps",
                                                        bb_lat="500us")
        + link("w", "1MBps", "7ms")
        + '<zoneRoute src="one" dst="two" gw_src="n-one_router.1" gw_dst="n-two_router.2">'
        '<link_ctn id="w"/></zoneRoute>'
    )))  # fmt: skip
    assert topology.ngpus == 8
    assert latency(topology, 0, 7) == pytest.approx(50e-6 + 7e-3 + 500e-6 + 50e-6)
    assert latency(topology, 7, 0) == pytest.approx(latency(topology, 0, 7))
    assert links_of(topology, 0, 7) & links_of(topology, 1, 6)


def test_a_vivaldi_zone_around_one_zone_adds_nothing(read):
    inner = zone(hosts("a", "b") + link("l") + route("a", "b", "l"), name="inner")
    assert latency(read(platform(zone(inner, "Vivaldi"))), 0, 1) == pytest.approx(1e-6)


def test_a_zone_of_one_host_is_its_own_gateway(read):
    topology = read(platform(zone(
        cluster("0-1", router_id="r") + zone(hosts("h"), "None", "own") + link("l", "1MBps", "1ms")
        + '<zoneRoute src="c" dst="own" gw_src="r" gw_dst="h"><link_ctn id="l"/></zoneRoute>'
    )))  # fmt: skip
    assert topology.ngpus == 3 and latency(topology, 0, 2) == pytest.approx(1.05e-3)


def test_cabinets_host_links_and_as_spellings_of_version_4_are_read(read):
    text = platform(
        '<AS id="w" routing="Full"><AS id="c1" routing="Cluster">'
        '<cabinet id="k" prefix="h-" suffix=".1" speed="1Gf" bw="125MBps" lat="100us" '
        'radical="1-2"/><router id="r1"/><backbone id="bb" bandwidth="2GBps" latency="500us"/></AS>'
        '<AS id="c2" routing="Cluster"><host id="x" speed="1Gf"/><router id="r2"/>'
        + link("l", "1MBps", "1ms", "SPLITDUPLEX")
        + '<host_link id="x" up="l_UP" down="l_DOWN"/></AS>'
        + link("w12")
        + '<ASroute src="c1" dst="c2" gw_src="r1" gw_dst="r2"><link_ctn id="w12"/></ASroute></AS>'
    ).replace("4.1", "4")
    assert latency(read(text), 0, 2) == pytest.approx(100e-6 + 500e-6 + 1e-6 + 1e-3)


@pytest.mark.parametrize("text, rate", [
    ("1Gbps", 125e6), ("1GBps", 1e9), ("1kBps", 1e3), ("1KBps", 1e3), ("1KiBps", 1024),
    ("1MiBps", 2**20), ("8Mbps", 1e6), ("1.25E8", 1.25e8), ("2.5MBps", 2.5e6), ("1TBps", 1e12),
])  # fmt: skip
def test_bandwidths_are_read_in_simgrids_units(read, text, rate):
    topology = read(platform(cluster("0-1", bw=text)))
    assert topology.node.edges["gpu0", "switch"]["bandwidth"] == pytest.approx(rate)


@pytest.mark.parametrize("text, seconds", [
    ("0", 0), ("50us", 50e-6), ("1ms", 1e-3), ("2s", 2), ("5ns", 5e-9), ("7ps", 7e-12), ("1m", 60),
    ("2.4E-5", 2.4e-5),
])  # fmt: skip
def test_latencies_are_read_in_simgrids_units(read, text, seconds):
    topology = read(platform(cluster("0-1", lat=text)))
    assert topology.node.edges["gpu0", "switch"]["latency"][0] == pytest.approx(seconds)


def test_profiles_and_limiters_are_said_not_read(read):
    notes = read(platform(cluster("0-1", limiter_link="150MBps"))).notes
    assert any("limiter" in note for note in notes)


@pytest.mark.parametrize("text, line, says", [
    ("<platform", 1, "not well-formed"),
    ("<topology/>", 1, "expected <platform>"),
    ('<platform version="3"/>', 1, "version"),
    (platform(""), 3, "no <host>"),
    (platform(cluster("0-1", bw="-3MBps")), 4, "no bandwidth"),
    (platform(cluster("0-1", bw="0MBps")), 4, "above 0"),
    (platform(cluster("0-1", bw="1e30MBps")), 4, "beyond any link"),
    (platform(cluster("0-1", lat="3 parsecs")), 4, "no time"),
    (platform(cluster("9-1")), 4, "radical"),
    (platform(cluster("0-99999999")), 4, "at most"),
    (platform(cluster("0-5000", topology="TORUS", topo_parameters="5001")), 4, "at most 4096"),
    (platform(cluster("0-1", topology="STAR")), 4, "STAR"),
    (platform(cluster("0-1", topology="TORUS", topo_parameters="3,2")), 4, "6 hosts"),
    (platform(cluster("0-1", topology="TORUS", topo_parameters="x")), 4, "whole numbers"),
    (platform(cluster("0-1", topology="FAT_TREE", topo_parameters="2;1;1;1")), 4, "2 numbers"),
    (platform(cluster("0-1", topology="DRAGONFLY", topo_parameters="1;1;1;2")), 4, "two numbers"),
    (platform(cluster("0-3", topology="DRAGONFLY", topo_parameters="4,1;1,1;1,1;1")), 4, "groups"),
    (platform(cluster("0-1", sharing_policy="WIFI")), 4, "WIFI"),
    (platform(zone(hosts("a", "a"))), 6, "twice"),
    (platform(zone(link("1") + link("1"))), 6, "twice"),
    (platform(zone(hosts("a") + route("a", "b", "1"))), 6, "'b' is not"),
    (platform(zone(hosts("a", "b") + route("a", "b", "1"))), 7, "link '1'"),
    (platform(zone(hosts("a"), "Vivaldi")), 4, "Vivaldi"),
    (platform(zone(hosts("a"), "Wifi")), 4, "Wifi"),
    (platform(zone('<peer id="p"/>')), 5, "Vivaldi"),
    (platform(zone("".join(hosts(f"h{k}") for k in range(300)))), 3, "at most 256"),
    (HEAD.replace('dtd">', 'dtd" [<!ENTITY e "x">]>') + '<platform version="4.1"/>', 2, "DOCTYPE"),
    (platform("<zone id='&e;' routing='Full'/>"), 4, "entity"),
])  # fmt: skip
def test_a_platform_that_cannot_be_read_is_one_error_with_its_line(read, text, line, says):
    with pytest.raises(FormatError) as error:
        read(text)
    message = str(error.value)
    assert says in message and f"platform.xml:{line}: " in message and message.isprintable()


def test_an_entity_of_the_dtd_is_never_fetched(read):
    with pytest.raises(FormatError, match="entity"):
        read(platform("<zone id='z' routing='Full'>&outside;</zone>"))


@settings(max_examples=120, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.data())
def test_a_mutated_platform_is_read_or_refused_in_one_line(read, data):
    text = data.draw(st.sampled_from([
        THREE, platform(cluster("0-15", topology="FAT_TREE", topo_parameters="2;4,4;1,2;1,2")),
        platform(cluster("0-11", topology="TORUS", topo_parameters="3,2,2")),
    ]))  # fmt: skip
    at = data.draw(st.integers(len(HEAD), len(text)))
    new = data.draw(st.one_of(st.text(max_size=4), st.sampled_from(
        ["0", "-1", "1e9", "99999999999", "&e;", "<a>", '"', ",", ";", "nan", "z"])))  # fmt: skip
    cut = data.draw(st.integers(0, 8))
    changed = text[:at] + new + text[at + cut :]
    try:
        assert isinstance(read(changed.encode("utf-8", "replace").decode()), Topology)
    except FormatError as error:
        assert str(error).isprintable()


@needs_cases
@pytest.mark.parametrize("file", REAL, ids=lambda file: file.name)
def test_every_real_platform_is_recognised_and_read(file):
    assert is_simgrid(file.read_text())
    topology = read_simgrid(file)
    assert topology.ngpus >= 2 and all(note.isprintable() for note in topology.notes)
