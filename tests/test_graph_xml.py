"""Graph XML both ways: what is read is written again, and what NCCL would not take is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.cli.topo_graph import graph_of_rings
from rccl_py.errors import FormatError, InvalidArgument
from rccl_py.links import DEVICES, LINKS
from rccl_py.topology import Topology, load
from rccl_py.topology.build import add_gpus, add_mesh, add_nic, new_graph
from rccl_py.topology.formats.nccl.graph_file import (
    PATH_TYPES,
    PATTERNS,
    Channel,
    Graph,
    GraphFile,
    read_graph_xml,
)
from rccl_py.topology.formats.nccl.graph_write import describe_graph, rings_graph, write_graph_xml
from rccl_py.topology.kinds import used_nics

CASES = os.environ.get("RCCL_PY_CASES", "")
REAL = Path(CASES, "topo_xml", "azure_azhpc-images", "ncv4-graph.xml")
needs_cases = pytest.mark.skipif(
    not CASES or not REAL.exists(), reason="RCCL_PY_CASES does not name a folder with topo_xml/"
)

HEAD = (
    '<graph id="0" pattern="4" crossnic="1" nchannels="{n}" speedintra="12.5" speedinter="0.24" '
    'latencyinter="2.5" typeintra="SYS" typeinter="PIX" samechannels="0">'
)
RING = "<channel>" + "".join(f'<gpu dev="{k}"/>' for k in range(3)) + "</channel>"


def graphs(*channels: str, head: str = HEAD) -> str:
    lines = [head.format(n=len(channels)), *channels, "</graph>"]
    return "\n".join(['<graphs version="1">', *lines, "</graphs>"])


@pytest.fixture
def parse(tmp_path):
    def parser(text: str) -> GraphFile:
        path = tmp_path / "graph.xml"
        path.write_text(text)
        return read_graph_xml(path)

    return parser


def test_a_ring_has_its_speeds_in_bytes_per_second_and_its_latency_in_seconds(parse):
    (graph,) = parse(graphs(RING)).graphs
    assert graph.pattern == "ring" and graph.id == 0 and graph.cross_nic == 1
    assert (graph.speed_intra, graph.speed_inter) == (12.5e9, 0.24e9)
    assert graph.latency_inter == 2.5e-6 and not graph.same_channels
    assert (graph.type_intra, graph.type_inter) == ("SYS", "PIX")
    assert graph.channels == (Channel((0, 1, 2)),)


def test_a_channel_has_the_nics_it_enters_and_leaves_by(parse):
    ends = RING.replace("<channel>", '<channel><net dev="3"/>')
    ends = ends.replace("</channel>", '<net dev="0"/></channel>')
    assert parse(graphs(ends)).graphs[0].channels[0].nets == (3, 0)


@pytest.mark.parametrize("spelled, number", [
    ("10", 10), ("0x10", 16), ("a", 10), ("0X1f", 31), ("0x100000000000003", (1 << 56) + 3),
])  # fmt: skip
def test_devices_are_decimal_or_hexadecimal(parse, spelled, number):
    text = graphs(f'<channel><gpu dev="{spelled}"/></channel>')
    assert parse(text).graphs[0].channels[0].gpus == (number,)


def test_no_nic_is_minus_one_in_two_spellings(parse):
    one, two = "-1", "0xffffffffffffffff"
    text = graphs(f'<channel><net dev="{one}"/><gpu dev="0"/><net dev="{two}"/></channel>')
    assert parse(text).graphs[0].channels[0].nets == (-1, -1)


def test_gpus_may_be_given_by_rank_or_by_both(parse):
    both = '<channel><gpu dev="1" rank="5"/><gpu dev="0" rank="4"/></channel>'
    assert parse(graphs(both)).graphs[0].channels[0] == Channel((1, 0), (5, 4))
    ranks = '<channel><gpu rank="5"/><gpu rank="4"/></channel>'
    assert parse(graphs(ranks)).graphs[0].channels[0].order == (5, 4)


def test_a_graph_without_channels_and_old_files_without_latency_are_read(parse):
    bare = '<graph id="2" pattern="3" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" '
    text = f'<graphs>{bare} typeinter="PIX"/></graphs>'
    assert parse(text).graphs[0].channels == ()


@needs_cases
def test_the_real_file_is_written_back_to_equality(parse):
    real = read_graph_xml(REAL)
    assert [g.pattern for g in real.graphs] == ["ring", "balanced-tree", "tree"]
    assert [len(g.channels) for g in real.graphs] == [2, 4, 4] and real.notes == ()
    text = write_graph_xml(real)
    assert parse(text) == real
    assert text.split() == REAL.read_text().split()


WRONG = {
    "twice": (graphs(RING.replace('dev="2"', 'dev="0"')), 3, "names GPU 0 twice"),
    "rank twice": (graphs('<channel><gpu dev="0" rank="1"/><gpu dev="1" rank="1"/></channel>'), 3,
                   "a rank twice"),
    "missing": (graphs(RING, RING.replace('<gpu dev="2"/>', "")), 4, "leaves out GPU 2"),
    "no gpu": (graphs("<channel/>"), 3, "names no <gpu>"),
    "three nets": (graphs(RING.replace("</", '<net dev="1"/>' * 3 + "</", 1)), 3, "3 <net>"),
    "net without dev": (graphs(RING.replace("</", "<net/></", 1)), 3, "no dev"),
    "gpu without number": (graphs("<channel><gpu/></channel>"), 3, "neither dev nor rank"),
    "some ranks": (graphs('<channel><gpu dev="0" rank="0"/><gpu dev="1"/></channel>'), 3, "some"),
    "negative": (graphs('<channel><gpu dev="-2"/></channel>'), 3, "negative dev -2"),
    "word": (graphs('<channel><gpu dev="first"/></channel>'), 3, "no device number"),
    "count": (graphs(RING, head=HEAD.replace("{n}", "7")), 2, "nchannels 7"),
    "pattern": (graphs(RING, head=HEAD.replace('"4"', '"9"')), 2, "pattern '9'"),
    "speed": (graphs(RING, head=HEAD.replace("12.5", "-1")), 2, "speedintra '-1'"),
    "absurd speed": (graphs(RING, head=HEAD.replace("12.5", "1e9")), 2, "expected GB/s"),
    "unit": (graphs(RING, head=HEAD.replace("12.5", "12GB/s")), 2, "not a number"),
    "latency": (graphs(RING, head=HEAD.replace('"2.5"', '"-1"')), 2, "latencyinter"),
    "type": (graphs(RING, head=HEAD.replace("SYS", "QPI")), 2, "typeintra 'QPI'"),
    "id twice": (graphs(RING).replace("</graphs>", HEAD.format(n=0) + "</graph></graphs>"), 5,
                 "id 0 is given twice"),
    "version": (graphs(RING).replace('version="1"', 'version="3"'), 1, "version 3"),
    "topology file": ('<system version="1"/>', 1, "<system>"),
    "empty": ('<graphs version="1"/>', 1, "no <graph>"),
    "cut": (graphs(RING)[:-12], 4, "cut short"),
    "entity": ('<!DOCTYPE x [<!ENTITY a "b">]>' + graphs(RING), 1, "DOCTYPE"),
    "many graphs": ("<graphs>" + "".join(HEAD.replace('id="0"', f'id="{k}"').format(n=0) +
                    "</graph>\n" for k in range(100)) + "</graphs>", 65, "more than 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_broken_graph_file_is_one_error_with_file_and_line(parse, tmp_path, case):
    text, line, what = WRONG[case]
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"{tmp_path / 'graph.xml'}:{line}: ")
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_an_nvls_graph_may_name_one_gpu_a_channel(parse):
    own = "".join(f'<channel><gpu dev="{k}"/></channel>' for k in range(3))
    text = graphs(own, head=HEAD.replace('"4"', '"5"')).replace('nchannels="1"', 'nchannels="3"')
    assert parse(text).graphs[0].pattern == "nvls"


def test_unknown_elements_are_ignored_and_noted(parse):
    found = parse(graphs(RING.replace("</", "<dot/></", 1)))
    assert any("<dot>" in note for note in found.notes)


def test_rings_become_a_graph_file_that_names_their_nics(parse):
    orders = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=np.int32)
    made = rings_graph(orders, [[0, 1], [2, 2]], speed_intra=20e9, speed_inter=12e9,
                       type_intra="NVL", type_inter="PXB")  # fmt: skip
    (graph,) = made.graphs
    assert graph.channels[0] == Channel((0, 1, 2, 3), (), (0, 1)) and graph.cross_nic == 1
    assert not graph.same_channels and parse(write_graph_xml(made)) == made


@pytest.mark.parametrize("nets, cross", [
    ([[0, 0], [1, 1]], 0), ([[0, 1], [1, 0]], 2), ([[0, 1], [1, 0], [2, 2]], 1),
    ([[0, 1], [2, 3]], 1), ([[0, 1], [1, 0], [2, 3], [3, 2]], 2),
])  # fmt: skip
def test_rings_that_go_back_and_forth_in_pairs_are_crossnic_2(nets, cross):
    made = rings_graph([[0, 1]] * len(nets), nets, speed_intra=1e9)
    assert made.graphs[0].cross_nic == cross


@pytest.mark.parametrize("name", ["a100-8", "h100-8", "l40s-8", "mi250x-4", "mi300a-4", "mi300x-8",
                                  "mi300x-8-cpx", "mi300x-8-vm", "v100-16", "v100-8"])  # fmt: skip
def test_every_nic_that_gpus_use_is_entered_and_left_by_a_channel(parse, name):
    whole = load(name)
    (graph,) = parse(graph_of_rings(whole)[0]).graphs
    used = {whole.node.nodes[nic]["index"] for nic in used_nics(whole.node)}
    assert {c.nets[0] for c in graph.channels} == {c.nets[1] for c in graph.channels} == used
    assert all(len(c.gpus) == whole.gpus_per_node for c in graph.channels)


def test_channels_of_a_mesh_use_every_link_once_at_its_whole_speed(parse):
    (graph,) = parse(graph_of_rings(load("mi300x-8"))[0]).graphs
    hops = [hop for c in graph.channels for hop in pairwise(c.gpus)]
    assert len(hops) == len(set(hops)) == 56
    assert graph.speed_intra == pytest.approx(LINKS["xgmi-mi300"].usable)
    assert graph.speed_inter == pytest.approx(LINKS["roce-400g"].usable)


def test_a_nic_no_ring_ends_at_gets_a_channel_of_its_own(parse):
    graph = new_graph("seven")
    names = add_gpus(graph, 7)  # a mesh of 7 has 6 rings
    add_mesh(graph, names, LINKS["xgmi-mi300"])
    for q, gpu in enumerate(names):
        add_nic(graph, q, LINKS["roce-400g"], [gpu], LINKS["pcie5-x16"])
    (made,) = parse(graph_of_rings(Topology("seven", graph, DEVICES["mi300x"]))[0]).graphs
    for end in (0, 1):
        assert {c.nets[end] for c in made.channels} == set(range(7))


def test_two_nics_a_gpu_are_two_channels_a_path_and_no_link_is_used_more(parse):
    graph = new_graph("double")
    names = add_gpus(graph, 8)
    add_mesh(graph, names, LINKS["xgmi-mi300"])
    for q in range(16):
        add_nic(graph, q, LINKS["roce-400g"], [names[q // 2]], LINKS["pcie5-x16"])
    (made,) = parse(graph_of_rings(Topology("double", graph, DEVICES["mi300x"]))[0]).graphs
    assert sorted(c.nets[0] for c in made.channels) == list(range(16))
    assert sorted(c.nets[1] for c in made.channels) == list(range(16))
    assert made.speed_intra == pytest.approx(LINKS["xgmi-mi300"].usable / 2)
    assert made.cross_nic == 2


def test_a_node_without_nics_has_rings_without_nets(parse):
    graph = new_graph("bare")
    add_mesh(graph, add_gpus(graph, 4), LINKS["xgmi-mi300"])
    (made,) = parse(graph_of_rings(Topology("bare", graph, DEVICES["mi300x"]))[0]).graphs
    assert made.channels and all(c.nets == () for c in made.channels)


def test_more_channels_than_nccl_takes_are_left_out_with_a_remark(parse):
    text, remarks = graph_of_rings(load("gb200-nvl72"))
    assert len(parse(text).graphs[0].channels) == 64 and "64 of 72 NICs" in remarks[0]


def test_one_nic_a_ring_is_entered_and_left_by():
    made = rings_graph([[0, 1], [0, 1]], [5, 6], speed_intra=1e9)
    assert [c.nets for c in made.graphs[0].channels] == [(5, 5), (6, 6)]
    assert made.graphs[0].cross_nic == 0 and made.graphs[0].same_channels


@pytest.mark.parametrize("orders, nics, kind, what", [
    ([[0, 0]], None, FormatError, "GPU 0 twice"), ([[0, 1], [0, 2]], None, FormatError, "leaves"),
    ([0, 1], None, InvalidArgument, "orders"), ([[0.5]], None, InvalidArgument, "orders"),
    ([[0], [0, 1]], None, InvalidArgument, "orders"), ([[-1]], None, InvalidArgument, "orders"),
    ([], None, InvalidArgument, "orders"), ([[0, 1]], [1, 2], InvalidArgument, "nics"),
    ([[0, 1]], [[1, 2, 3]], InvalidArgument, "nics"),
])  # fmt: skip
def test_rings_that_are_none_are_refused(orders, nics, kind, what):
    with pytest.raises(kind, match=what):
        rings_graph(orders, nics, speed_intra=1e9)


@pytest.mark.parametrize("change", [{"speed_intra": -1.0}, {"speed_intra": float("nan")},
                                    {"type_intra": "XYZ"}])  # fmt: skip
def test_speeds_and_types_of_rings_are_checked(change):
    with pytest.raises(InvalidArgument):
        rings_graph([[0, 1]], **{"speed_intra": 1e9, **change})


def test_a_graph_nccl_would_not_take_is_not_written():
    good = rings_graph([[0, 1]], speed_intra=1e9).graphs[0]
    for change in ({"pattern": "star"}, {"speed_inter": -1.0},
                   {"channels": (Channel((0, 0)),)}):  # fmt: skip
        with pytest.raises(FormatError, match="graph 0"):
            write_graph_xml([replace(good, **change)])


def test_numbers_above_nine_are_written_so_that_every_nccl_reads_them_alike():
    text = write_graph_xml(rings_graph([list(range(12))], speed_intra=1e9))
    assert '<gpu dev="9"/>' in text and '<gpu dev="0xb"/>' in text


def test_the_description_says_what_a_person_asks():
    made = rings_graph([[0, 1], [1, 0]], [[3, 0], [0, 3]], speed_intra=12e9, speed_inter=6e9)
    assert describe_graph(made) == [
        "graph 0: ring, 2 channels, 12 GB/s a channel inside (NVL), 6 GB/s between nodes (PIX), "
        "cross-NIC 2",
        "  channel 0: nic 3 -> gpu 0 1 -> nic 0",
        "  channel 1: nic 0 -> gpu 1 0 -> nic 3",
    ]


SPEEDS = st.integers(0, 10**13).map(float)


@st.composite
def any_graph(draw, number: int) -> Graph:
    gpus = draw(st.lists(st.integers(0, 1 << 60), min_size=1, max_size=5, unique=True))
    orders = draw(st.lists(st.permutations(gpus), max_size=4))
    nets = st.lists(st.integers(-1, 1 << 60), max_size=2).map(tuple)
    with_ranks = draw(st.booleans())
    channels = [
        Channel(tuple(o), tuple(range(len(o))) if with_ranks else (), draw(nets)) for o in orders
    ]
    kind = st.sampled_from(PATH_TYPES)
    return Graph(
        number, draw(st.sampled_from(sorted(PATTERNS.values()))), tuple(channels), draw(SPEEDS),
        draw(SPEEDS), draw(kind), draw(kind), draw(st.integers(0, 2)), draw(st.booleans()),
        round(draw(st.integers(0, 10**9)) * 1e-12, 12),
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_graphs_are_read_back_to_equality(tmp_path_factory, data):
    graphs = tuple(data.draw(any_graph(k)) for k in range(data.draw(st.integers(1, 3))))
    path = tmp_path_factory.getbasetemp() / "any.xml"
    path.write_text(write_graph_xml(graphs))
    assert read_graph_xml(path).graphs == graphs
