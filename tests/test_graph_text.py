"""GraphML and node-link JSON give a machine back as it was, and take anyone's graph by rules."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError, InvalidArgument
from rccl_py.links import DEVICES, LINKS
from rccl_py.topology.build import (
    Network,
    Topology,
    add_gpus,
    add_mesh,
    add_nic,
    add_switches,
    add_torus,
    gpus_of,
    new_graph,
)
from rccl_py.topology.formats.astra_sim import is_astra_sim
from rccl_py.topology.formats.graphs.graphml import is_graphml, read_graphml, write_graphml
from rccl_py.topology.formats.graphs.node_link import is_node_link, read_node_link, write_node_link
from rccl_py.topology.formats.htsim import is_htsim
from rccl_py.topology.formats.nccl.reader import read_nccl_xml
from rccl_py.topology.formats.ns3 import is_ns3
from rccl_py.topology.formats.simgrid.reader import is_simgrid
from rccl_py.topology.load import load
from rccl_py.topology.lower import lower

BOTH = pytest.mark.parametrize(
    "write, read", [(write_graphml, read_graphml), (write_node_link, read_node_link)],
    ids=["graphml", "node-link"],
)  # fmt: skip
CASES = os.environ.get("RCCL_PY_CASES", "")
REAL = sorted(Path(CASES, "topo_xml").rglob("*.xml"))[::7] if CASES else []
needs_cases = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains topo_xml/"
)
FOREIGN = pytest.mark.parametrize("kind", ["graphml", "edges", "links"])


def node(gpus: int = 4) -> nx.DiGraph:
    graph = new_graph("hand made")
    names = add_gpus(graph, gpus, hosts=2, busid="0000:01:00.0", rank=None, gdr=True, share=0.5)
    add_mesh(graph, names[: gpus // 2], LINKS["xgmi-mi300"], 2)
    add_switches(graph, names, LINKS["ualink-200g"], 3, 3, 0.2e-6)
    for q in range(2):
        port = replace(LINKS["roce-400g"], bandwidth=50e9 - q)  # alike by name only
        add_nic(graph, q, port, names, LINKS["pcie5-x16"], host=q, name="mlx5 <&> \"'é")
    return graph


def machine(**more: object) -> Topology:
    network = Network(leaf_nodes=4, oversubscription=1.5)
    own = {"nodes": 3, "network": network, "notes": ("a remark", "zwei: <&> ü")} | more
    return Topology("a machine", node(), DEVICES["mi300x"], **own)


def again(topology: Topology, write, read, folder: Path) -> Topology:
    path = folder / "graph.txt"
    path.write_text(write(topology), encoding="utf-8")
    return read(path)


def foreign(graph: nx.Graph, kind: str, folder: Path) -> Topology:
    path = folder / "mine.txt"
    if kind == "graphml":
        nx.write_graphml(graph, path)
        return read_graphml(path)
    path.write_text(json.dumps(nx.node_link_data(graph, edges=kind)))
    return read_node_link(path)


def same_graph(one: nx.DiGraph, two: nx.DiGraph) -> bool:
    return (
        list(one.nodes(data=True)) == list(two.nodes(data=True))
        and list(one.edges(data=True)) == list(two.edges(data=True))
        and one.graph == two.graph
    )


@BOTH
def test_a_machine_comes_back_as_it_was(write, read, tmp_path):
    topology = machine()
    found = again(topology, write, read, tmp_path)
    assert same_graph(topology.node, found.node)
    for name in ("name", "device", "nodes", "network", "notes"):
        assert getattr(found, name) == getattr(topology, name)


@BOTH
def test_types_come_back_too(write, read, tmp_path):
    found = again(machine(), write, read, tmp_path).node
    own = found.nodes["gpu0"]
    assert own["rank"] is None and own["gdr"] is True and type(own["index"]) is int
    edge = found.edges["gpu0", "gpu1"]
    assert type(edge["latency"]) is tuple and edge["link"] == LINKS["xgmi-mi300"]
    assert [found.nodes[f"nic{q}"]["port"].bandwidth for q in (0, 1)] == [50e9, 50e9 - 1]


@BOTH
def test_a_machine_that_comes_back_lowers_to_the_same_fabric(write, read, tmp_path):
    topology = machine()
    one, two = lower(topology), lower(again(topology, write, read, tmp_path))
    pairs = np.array(list(product(range(12), repeat=2)))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].astype(np.int32)
    a, b = one.routes(*pairs.T), two.routes(*pairs.T)
    assert np.array_equal(a.link, b.link) and np.array_equal(a.share, b.share)
    assert np.array_equal(one.bandwidth, two.bandwidth)
    assert np.array_equal(one.latency(*pairs.T), two.latency(*pairs.T))


@BOTH
def test_a_node_unlike_the_others_comes_back(write, read, tmp_path):
    topology = machine(unlike=((2, node(6)),))
    ((number, graph),) = again(topology, write, read, tmp_path).unlike
    assert number == 2 and same_graph(graph, topology.unlike[0][1])


@BOTH
def test_a_torus_comes_back_with_its_computed_routes(write, read, tmp_path):
    graph = new_graph("torus")
    add_torus(graph, add_gpus(graph, 12), (3, 4), True, LINKS["ualink-200g"])
    topology = Topology("torus", graph, DEVICES["generic"])
    found = again(topology, write, read, tmp_path)
    pairs = np.array(list(product(range(12), repeat=2)))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].astype(np.int32)
    a, b = lower(topology).routes(*pairs.T), lower(found).routes(*pairs.T)
    assert np.array_equal(a.link, b.link) and np.array_equal(a.share, b.share)


@needs_cases
@BOTH
def test_every_real_nccl_topology_comes_back(write, read, tmp_path):
    for file in REAL:
        try:
            topology = read_nccl_xml(file)
        except FormatError:
            continue
        found = again(topology, write, read, tmp_path)
        assert same_graph(topology.node, found.node) and found.notes == topology.notes


@BOTH
@pytest.mark.parametrize("name", ["mi300x-8", "helios-72", "h100-8"])
def test_shipped_machines_come_back(write, read, tmp_path, name):
    topology = load(name)
    found = again(topology, write, read, tmp_path)
    assert same_graph(topology.node, found.node) and found.network == topology.network


@BOTH
def test_a_link_that_is_not_as_its_type_says_comes_back(write, read, tmp_path):
    topology = machine()
    topology.node.edges["gpu0", "gpu1"].update(bandwidth=1.5e9, latency=(1e-6, 2e-6, 3e-6))
    found = again(topology, write, read, tmp_path)
    assert same_graph(topology.node, found.node)


@BOTH
def test_large_graphs_leave_out_what_follows_from_type_and_lanes(write, read, tmp_path):
    graph = new_graph("wide")
    add_switches(graph, add_gpus(graph, 256), LINKS["ualink-200g"], 36, 18, 0.2e-6)
    topology = Topology("wide", graph, DEVICES["generic"])
    assert "efficiency" not in re.sub(r'"links".*', "", write(topology).split("gpu255")[-1])
    assert same_graph(graph, again(topology, write, read, tmp_path).node)


def test_networkx_reads_what_is_written(tmp_path):
    topology = machine()
    (tmp_path / "g.graphml").write_text(write_graphml(topology), encoding="utf-8")
    one = nx.read_graphml(tmp_path / "g.graphml")
    two = nx.node_link_graph(json.loads(write_node_link(topology)), edges="edges")
    link = LINKS["xgmi-mi300"]
    for graph in (one, two):
        assert list(graph.nodes) == list(topology.node.nodes)
        assert graph.edges["gpu0", "gpu1"]["bandwidth"] == pytest.approx(2 * link.usable)
    assert one.edges["gpu0", "gpu1"]["latency_simple"] == pytest.approx(link.latency[2])


def test_graphml_that_networkx_wrote_anew_comes_back_as_it_was(tmp_path):
    topology = machine()
    path = tmp_path / "g.graphml"
    path.write_text(write_graphml(topology), encoding="utf-8")
    nx.write_graphml(nx.read_graphml(path), path)
    assert same_graph(topology.node, read_graphml(path).node)


def test_a_long_graph_is_recognised_by_its_beginning():
    text = json.dumps({"directed": False, "nodes": [{"id": k} for k in range(9000)], "edges": []})
    assert is_node_link(text[:65536]) and not is_node_link(text[:1000])


def test_each_writer_is_recognised_by_its_own_reader_alone():
    sniffers = (is_graphml, is_node_link, is_simgrid, is_astra_sim, is_ns3, is_htsim)
    for write, own in ((write_graphml, is_graphml), (write_node_link, is_node_link)):
        assert [sniff for sniff in sniffers if sniff(write(machine()))] == [own]


@BOTH
def test_a_value_that_no_file_can_hold_is_refused(write, read):
    topology = machine()
    topology.node.nodes["gpu0"]["odd"] = object()
    with pytest.raises(InvalidArgument, match="odd"):
        write(topology)


@FOREIGN
def test_vertices_of_no_kind_are_accelerators_in_order(kind, tmp_path):
    graph = nx.cycle_graph(12)
    nx.set_edge_attributes(graph, 50.0, "bandwidth")
    topology = foreign(graph, kind, tmp_path)
    assert topology.ngpus == 12 and set(topology.node["gpu10"]) == {"gpu9", "gpu11"}
    assert topology.node.edges["gpu0", "gpu1"]["bandwidth"] == 50e9
    assert sum("assumed" in note or "taken for" in note for note in topology.notes) >= 3


@FOREIGN
def test_names_tell_accelerators_from_switches_and_are_counted_by_number(kind, tmp_path):
    graph = nx.Graph()
    for name in ("npu10", "npu9", "npu8"):
        graph.add_edge(name, "leaf0", capacity="400Gb/s", latency="500ns")
    graph.add_edge("leaf0", "spine0", capacity="400Gb/s", latency="500ns")
    found = foreign(graph, kind, tmp_path).node
    assert [found.nodes[g]["label"] for g in gpus_of(found)] == ["npu8", "npu9", "npu10"]
    assert {v for v in found if found.nodes[v]["kind"] == "switch"} == {"leaf0", "spine0"}
    own = found.edges["gpu0", "leaf0"]
    assert own["bandwidth"] == 50e9 and own["latency"] == (5e-7,) * 3


@FOREIGN
def test_a_given_kind_stands_above_the_name_and_ranks_above_numbers(kind, tmp_path):
    graph = nx.Graph()
    graph.add_node("switch1", kind="Accelerator", rank=1)
    graph.add_node("b", type="GPU", rank=0)
    graph.add_node("gpu7", role="ToR switch")
    graph.add_edge("switch1", "gpu7", bw="1TB/s", lanes=2)
    graph.add_edge("b", "gpu7", bw="1TB/s", count=1)
    found = foreign(graph, kind, tmp_path).node
    assert [found.nodes[g]["label"] for g in gpus_of(found)] == ["b", "switch1"]
    assert found.edges["gpu1", "gpu7"]["bandwidth"] == 2e12


@pytest.mark.parametrize("values, rate, seconds", [
    ({"bandwidth": 2}, 2e9, None), ({"bandwidth": "2"}, 2e9, None), ({"bw": "16Gbps"}, 2e9, None),
    ({"Bandwidth_Gbps": 16}, 2e9, None), ({"bandwidth_GBps": 2}, 2e9, None),
    ({"weight": 2, "latency": 3}, 2e9, 3e-6), ({"capacity": 2, "delay": "3ns"}, 2e9, 3e-9),
    ({"speed": 2, "latency_ns": 3}, 2e9, 3e-9), ({"rate": 2, "latency_us": 3.0}, 2e9, 3e-6),
    ({"bandwidth": "2GiB/s", "lat": "0.5ms"}, 2 * 2**30, 5e-4),
])  # fmt: skip
def test_numbers_and_texts_of_a_link_are_read_by_their_unit(values, rate, seconds, tmp_path):
    graph = nx.Graph()
    graph.add_edge("gpu0", "gpu1", **values)
    for kind in ("graphml", "edges"):
        own = foreign(graph, kind, tmp_path).node.edges["gpu1", "gpu0"]
        assert own["bandwidth"] == pytest.approx(rate)
        expected = LINKS["ualink-200g"].latency if seconds is None else (seconds,) * 3
        assert own["latency"] == pytest.approx(expected)


@FOREIGN
def test_a_directed_graph_keeps_its_directions_and_parallel_links_are_lanes(kind, tmp_path):
    graph = nx.MultiDiGraph()
    for a, b in (("gpu0", "gpu1"), ("gpu0", "gpu1"), ("gpu1", "gpu2")):
        graph.add_edge(a, b, bandwidth=10)
    topology = foreign(graph, kind, tmp_path)
    assert topology.node.edges["gpu0", "gpu1"]["lanes"] == 2
    assert not topology.node.has_edge("gpu1", "gpu0")
    assert any("one way" in note for note in topology.notes)


def test_a_d3_file_may_name_vertices_and_count_them(tmp_path):
    path = tmp_path / "d3.json"
    links = [{"source": 0, "target": 1, "bandwidth": 5}]
    path.write_text(json.dumps({"nodes": [{"name": "gpu0"}, {"name": "gpu1"}], "links": links}))
    assert read_node_link(path).node.edges["gpu1", "gpu0"]["bandwidth"] == 5e9


def test_editors_drawings_in_graphml_are_skipped(tmp_path):
    path = tmp_path / "y.graphml"
    path.write_text(
        '<graphml><key id="k" for="edge" attr.name="bandwidth" attr.type="double">'
        '<default>7</default></key><key id="y" for="node" yfiles.type="nodegraphics"/>'
        '<graph edgedefault="undirected"><node id="gpu0"><data key="y"><Shape x="1"/></data></node>'
        '<node id="gpu1"/><edge source="gpu0" target="gpu1"/></graph></graphml>'
    )
    assert read_graphml(path).node.edges["gpu0", "gpu1"]["bandwidth"] == 7e9


PLAIN = {"nodes": [{"id": "gpu0"}, {"id": "gpu1"}],
         "edges": [{"source": "gpu0", "target": "gpu1", "bandwidth": 5}]}  # fmt: skip


def changed(document: dict, where: str, value: object) -> str:
    copy = json.loads(json.dumps(document))
    *path, last = (int(p) if p.isdigit() else p for p in where.split("."))
    at = copy
    for step in path:
        at = at[step]
    at[last] = value
    return json.dumps(copy)


@pytest.mark.parametrize("text, says", [
    ("", ":1: not JSON"), ('{"nodes": [\n3,}', ":2: not JSON"), ("[1]", "object"), ("{}", "nodes"),
    ("[" * 100000, "not JSON"), ('{"nodes": [' + "9" * 5000 + "]}", "not JSON"),
    (changed(PLAIN, "nodes", 3), "nodes: a list"), (changed(PLAIN, "edges", {}), "edges: a list"),
    (changed(PLAIN, "nodes.1", "gpu1"), r"nodes\[1\]: an object"),
    (changed(PLAIN, "nodes.1.id", None), r"nodes\[1\].id"),
    (changed(PLAIN, "nodes.1.id", "gpu0"), r"nodes\[1\].id: 'gpu0' is given twice"),
    (changed(PLAIN, "edges.0.target", "gpu9"), r"edges\[0\].target: 'gpu9' is no vertex"),
    (changed(PLAIN, "edges.0.bandwidth", 0), r"edges\[0\].bandwidth: .*above 0"),
    (changed(PLAIN, "edges.0.bandwidth", -5), "above 0"),
    (changed(PLAIN, "edges.0.bandwidth", 1e30), "beyond any link"),
    (changed(PLAIN, "edges.0.bandwidth", float("nan")), "above 0"),
    (changed(PLAIN, "edges.0.bandwidth", "5 furlongs"), "no bandwidth"),
    (changed(PLAIN, "edges.0.bandwidth", [1]), "a number or a text"),
    (changed(PLAIN, "edges.0.lanes", -1), "lanes"), (changed(PLAIN, "edges.0.latency", -1), "0 or"),
    (changed(PLAIN, "edges.0", {"source": "gpu0", "target": "gpu1"}), "bandwidth: is missing"),
    (changed(PLAIN, "nodes", [{"id": "sw0"}, {"id": "sw1"}]), "no accelerator"),
    (changed(PLAIN, "nodes", [{"id": k} for k in range(5000)]), "at most 4096"),
    (changed(PLAIN, "graph", 3), "graph"),
])  # fmt: skip
def test_a_broken_json_graph_is_one_error_with_its_place(text, says, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=says) as error:
        read_node_link(path)
    assert str(error.value).startswith(str(path)) and str(error.value).isprintable()


OWN = json.loads(write_node_link(machine()))


@pytest.mark.parametrize("where, value, says", [
    ("graph.nodes", 0, "graph.nodes"), ("graph.nodes", "many", "graph.nodes"),
    ("graph.device.memory", -1, "memory"), ("graph.device.launch", float("inf"), "launch"),
    ("graph.device.colour", "red", "colour"), ("graph.network.leaf_nodes", 0, "leaf_nodes"),
    ("graph.network.kind", "star", "star"), ("graph.network.oversubscription", 0, "oversubscr"),
    ("graph.links.xgmi-mi300.bandwidth", 0, "bandwidth"), ("graph.links", [], "graph.links"),
    ("graph.name", "two\nlines", "name"), ("graph.notes", "text", "notes"),
    ("graph.unlike", [1], "unlike"), ("graph.graph", 3, "graph"),
    ("nodes.0.kind", 3, r"nodes\[0\].kind"), ("nodes.0.index", 1, "not counted"),
    ("nodes.0.index", -1, r"nodes\[0\].index"), ("nodes.0.host", "here", r"nodes\[0\].host"),
    ("nodes.0.share", {"a": 1, "b": 2}, "share"), ("nodes.7.port", 4, r"nodes\[7\].port"),
    ("nodes.7.port", {"link": "none"}, "link type 'none'"), ("nodes.1.id", "gpu0", "twice"),
    ("edges.0.link", "none", r"edges\[0\].link"), ("edges.0.link", 5, "link type"),
    ("edges.0.lanes", 0, r"edges\[0\].lanes"), ("edges.0.bandwidth", -1, r"edges\[0\].bandwidth"),
    ("edges.0.latency", [1, 2], "three numbers"), ("edges.0.latency", [0, 0, -1], "latency"),
    ("edges.0.target", "gpu0", r"edges\[0\].target"), ("edges.0.source", "x", "no vertex"),
    ("edges.0.message", None, "message"),
])  # fmt: skip
def test_a_broken_file_of_this_library_is_one_error_with_its_place(where, value, says, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(changed(OWN, where, value))
    with pytest.raises(FormatError, match=says) as error:
        read_node_link(path)
    assert str(error.value).startswith(str(path)) and str(error.value).isprintable()


@pytest.mark.parametrize("text, line, says", [
    ("<graphml>", 1, "not well-formed"), ("<graph/>", 1, "expected <graphml>"),
    ("<graphml/>", 1, "0 <graph>"), ("<graphml>\n<graph/><graph/></graphml>", 1, "2 <graph>"),
    ("<graphml><graph>\n<node/></graph></graphml>", 2, "no id"),
    ("<graphml><graph>\n<node id='gpu0'><data key='k'>1</data></node></graph></graphml>", 2,
     "not declared"),
    ("<graphml><key id='k' attr.name='b' attr.type='double'/><graph>\n<node id='gpu0'>"
     "<data key='k'>x</data></node></graph></graphml>", 2, "is no double"),
    ("<graphml><graph><node id='gpu0'/>\n<edge source='gpu0'/></graph></graphml>", 2, "target"),
    ("<graphml><graph>\n<hyperedge/></graph></graphml>", 2, "hyperedges"),
    ("<graphml><key id='k'/>\n<key id='k'/><graph/></graphml>", 2, "twice"),
    ("<graphml>\n<graph/></graphml>", 2, "no accelerator"),
    ('<!DOCTYPE g [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>\n<graphml>&b;</graphml>', 1, ""),
    ('<!DOCTYPE g SYSTEM "/etc/passwd">\n<graphml>&b;</graphml>', 2, "entity"),
])  # fmt: skip
def test_a_broken_graphml_file_is_one_error_with_its_line(text, line, says, tmp_path):
    path = tmp_path / "g.graphml"
    path.write_text(text)
    with pytest.raises(FormatError) as error:
        read_graphml(path)
    message = str(error.value)
    assert says in message and f"g.graphml:{line}: " in message and message.isprintable()


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.data())
def test_a_mutated_graph_is_read_or_refused_in_one_line(tmp_path, data):
    small = Topology("s", node(2), DEVICES["generic"])
    write, read = data.draw(st.sampled_from([(write_graphml, read_graphml),
                                             (write_node_link, read_node_link)]))  # fmt: skip
    text = write(small)
    at = data.draw(st.integers(0, len(text)))
    odd = [
        "0",
        "-1",
        "1e999",
        "99999999999",
        "null",
        "&e;",
        "<a>",
        '"',
        "{}",
        "[]",
        "NaN",
        "\\ud800",
    ]
    new = data.draw(st.one_of(st.text(max_size=3), st.sampled_from(odd)))
    cut = data.draw(st.integers(0, 12))
    path = tmp_path / "g"
    path.write_bytes((text[:at] + new + text[at + cut :]).encode("utf-8", "replace"))
    try:
        assert isinstance(read(path), Topology)
    except FormatError as error:
        assert str(error).isprintable()
