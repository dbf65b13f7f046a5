"""A machine's picture: everything is on it, nothing overlaps, colours say bandwidth or load."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.links import DEVICES, LINKS
from rccl_py.planner import Planner
from rccl_py.report.html import plan_html, topology_html
from rccl_py.report.layout import Panel, headline, panels_of
from rccl_py.report.layout.grid import grid_dims
from rccl_py.report.topo import describe
from rccl_py.topology import Topology, load, lower, machine_names
from rccl_py.topology.build import add_gpus, add_link, add_switches, gpus_of, new_graph
from rccl_py.topology.diff import compare
from rccl_py.topology.suspects import suspects
from rccl_py.topology.validate import validate

CLUSTERS = {
    "rails": ("mi300x-8", {"nodes": 4}),
    "many rails": ("mi300x-8", {"nodes": 128}),
    "leaf-spine": ("mi300x-8", {"nodes": 16, "network": "leaf-spine", "leaf_nodes": 4}),
    "racks": ("helios-72", {"nodes": 3}),
    "hundred thousand": ("mi300x-8", {"nodes": 12_500}),
}


def torus(*dims: int) -> Topology:
    graph = new_graph("torus")
    rows, columns = dims
    names = add_gpus(graph, rows * columns)
    for i, name in enumerate(names):
        r, c = divmod(i, columns)
        add_link(graph, name, names[r * columns + (c + 1) % columns], LINKS["ualink-200g"])
        add_link(graph, name, names[(r + 1) % rows * columns + c], LINKS["ualink-200g"])
    return Topology("torus", graph, DEVICES["generic"])


def pod(gpus: int, hosts: int) -> Topology:
    graph = new_graph("pod")
    add_switches(graph, add_gpus(graph, gpus, hosts), LINKS["ualink-200g"], 72, 12, 1e-7)
    return Topology("pod", graph, DEVICES["mi455x"])


def overlapping(panel: Panel) -> list[tuple[str, str]]:
    """Return the labelled boxes that cover each other."""
    solid = [b for b in panel.boxes if b.text.strip()]
    return [(a.text, b.text) for a, b in combinations(solid, 2)
            if abs(a.x - b.x) < (a.w + b.w) / 2 - 1e-6
            and abs(a.y - b.y) < (a.h + b.h) / 2 - 1e-6]  # fmt: skip


BUILT = {
    "torus": lambda: torus(4, 8),
    "large torus": lambda: torus(32, 32),
    "pod": lambda: pod(1024, 128),
    "one host": lambda: pod(144, 1),
}


@cache
def machine(name: str) -> Topology:
    if name in BUILT:
        return BUILT[name]()
    of, changes = CLUSTERS.get(name, (name, {}))
    return load(of, **changes)


every = pytest.mark.parametrize("name", [*machine_names(), *CLUSTERS, *BUILT])


@every
def test_no_two_boxes_overlap(name):
    topology = machine(name)
    assert [overlapping(panel) for panel in panels_of(topology) if overlapping(panel)] == []


@every
def test_everything_lies_inside_its_panel(name):
    for panel in panels_of(machine(name)):
        for box in panel.boxes:
            assert box.w / 2 <= box.x <= panel.width - box.w / 2
            assert box.h / 2 <= box.y <= panel.height - box.h / 2


@every
def test_a_large_machine_is_summarised(name):
    panels = panels_of(machine(name))
    assert sum(len(p.boxes) + len(p.lines) for p in panels) < 1200
    assert sum(p.height for p in panels) < 30 and max(p.width for p in panels) < 32


@pytest.mark.parametrize("name", ["mi300x-8", "mi250x-4", "h100-8", "helios-72"])
def test_every_accelerator_is_on_the_scale_up_panel(name):
    topology = load(name)
    panel = panels_of(topology)[0]
    shown = [box.text.removeprefix("GPU") for box in panel.boxes if box.kind == "gpu"]
    assert sorted(map(int, shown)) == list(range(len(gpus_of(topology.node))))


def test_every_link_of_a_mesh_is_a_line():
    lines = panels_of(load("mi300x-8"))[0].lines
    assert len({frozenset(line.keys[0]) for line in lines}) == 28


def test_the_width_of_unequal_links_is_written_on_them():
    texts = [line.text for line in panels_of(load("mi250x-4"))[0].lines]
    assert sorted(texts) == ["x1"] * 6 + ["x2"] * 2 + ["x4"] * 4


def test_a_weak_link_to_a_plane_is_drawn_by_itself():
    topology = pod(72, 18)
    for edge in (("gpu5", "plane2"), ("plane2", "gpu5")):
        topology.node.edges[edge].update(lanes=3, bandwidth=1e9)
    (odd,) = [line for line in panels_of(topology)[0].lines if line.text]
    assert odd.text == "x3" and ("gpu5", "plane2") in odd.keys


@pytest.mark.parametrize("dims", [(4, 8), (3, 5), (2, 6), (16, 16)])
def test_the_sizes_of_a_torus_are_found(dims):
    graph = torus(*dims).node if 2 not in dims else None
    if graph is None:
        graph = new_graph("ladder")
        names = add_gpus(graph, 12)
        for i in range(12):
            if i % 6 < 5:
                add_link(graph, names[i], names[i + 1], LINKS["ualink-200g"])
            if i < 6:
                add_link(graph, names[i], names[i + 6], LINKS["ualink-200g"])
    links = [(a, b, d) for a, b, d in graph.edges(data=True)]
    assert grid_dims(graph, gpus_of(graph), links) == dims


@pytest.fixture(scope="module")
def drawing():
    return pytest.importorskip("rccl_py.report.draw", reason="never skips") if pytest.importorskip(
        "matplotlib", reason="matplotlib is not installed") else None  # fmt: skip


@pytest.mark.parametrize("name", ["mi250x-4", "helios-72", "rails", "pod"])
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_written_as_png_svg_or_pdf(drawing, tmp_path, name, ending):
    path = tmp_path / f"picture.{ending}"
    drawing.save(drawing.draw(machine(name)), str(path))
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start) and path.stat().st_size > 5000


def test_a_picture_has_a_title_a_colour_bar_and_a_legend(drawing):
    figure = drawing.draw(load("mi300x-8", nodes=4))
    assert figure.get_suptitle() == "mi300x-8: 32 x AMD Instinct MI300X, 4 nodes"
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert {"GPU", "NIC", "scale-up link", "network cable"} <= labels
    assert "usable GB/s per direction" in {axes.get_ylabel() for axes in figure.axes}


def test_drawing_leaves_pyplot_alone(drawing):
    before = "matplotlib.pyplot" in sys.modules
    drawing.draw(load("mi300x-8"))
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_load_is_the_busy_share_of_the_plans_own_links(drawing):
    topology = load("mi300x-8")
    plan = Planner(lower(topology)).plan("allreduce", 1 << 28)
    busy = drawing.busy_links(plan)
    assert len(busy) == 56 and all(0 < share <= 1 for share in busy.values())
    assert max(busy.values()) == pytest.approx(plan.timeline.busy / plan.time)


def test_load_knows_the_cables_of_each_node(drawing):
    topology = load("mi300x-8", nodes=2)
    busy = drawing.busy_links(Planner(lower(topology)).plan("allreduce", 1 << 28))
    assert busy["node1/nic0", "leaf0"] > 0 and busy["gpu0", "pci0"] > 0


def test_a_link_no_byte_crosses_is_grey(drawing):
    topology = load("mi300x-8", nodes=4)
    figure = drawing.draw(topology, "load", Planner(lower(topology)).plan("allreduce", 1 << 28))
    colours = {line.get_color() for axes in figure.axes for line in axes.get_lines()
               if isinstance(line.get_color(), str)}  # fmt: skip
    assert colours == {"0.82"}  # between rails nothing goes


@pytest.mark.parametrize("drawn, planned", [
    ("h100-8", ("mi300x-8", {})), ("mi300x-8", ("mi300x-8", {"nodes": 2})),
    ("h100-8", ("helios-72", {})),
])  # fmt: skip
def test_a_plan_of_another_machine_is_not_drawn(drawing, drawn, planned):
    plan = Planner(lower(load(planned[0], **planned[1]))).plan("allreduce", 1 << 20)
    with pytest.raises(InvalidArgument) as caught:
        drawing.draw(load(drawn), by="load", plan=plan)
    assert f"{planned[0]} with {plan.nranks} ranks" in str(caught.value)
    assert f"but {drawn} with 8 GPUs" in str(caught.value)


def test_a_plan_of_the_machine_before_its_fault_is_not_drawn(drawing):
    whole = load("mi300x-8")
    plan = Planner(lower(whole)).plan("allreduce", 1 << 20)
    with pytest.raises(InvalidArgument, match="plan on the machine that is drawn"):
        drawing.draw(whole.with_link("gpu0", "gpu1", 0), by="load", plan=plan)


def test_a_plan_of_some_of_the_ranks_is_drawn(drawing):
    topology = load("mi300x-8", nodes=4)
    plan = Planner(lower(topology, 16)).plan("allreduce", 1 << 20)
    assert drawing.draw(topology, by="load", plan=plan).axes


def unlike(kind: str) -> Topology:
    """Return two nodes of eight NICs and two of one NIC."""
    whole, small = load("mi300x-8", nodes=4), load("mi300x-8").node.copy()
    small.remove_nodes_from([f"nic{q}" for q in range(1, 8)])
    network = replace(whole.network, kind=kind, leaf_nodes=2)
    return replace(whole, network=network, unlike=((2, small), (3, small)))


def test_a_node_is_drawn_with_the_nics_it_has():
    panel = panels_of(unlike("leaf-spine"))[-1]
    assert [line.text for line in panel.lines if line.text] == ["x8", "x8"]
    assert "8 x roce-400g or 1 x roce-400g a node" in panel.title
    cables = [line for line in panels_of(unlike("rails"))[-1].lines if line.a[1] < line.b[1]]
    own = {key[0].split("/")[0] for line in cables for key in line.keys if "node3" in key[0]}
    assert own == {"node3"}
    assert sum("node3/nic" in key[0] for line in cables for key in line.keys) == 1


def test_uplinks_are_those_of_the_widest_leaf():
    panel = panels_of(unlike("leaf-spine"))[-1]
    (rate,) = {line.value for line in panel.lines if ("leaf1", "spines") in line.keys}
    assert rate == pytest.approx(2 * 8 * LINKS["roce-400g"].usable)


def test_the_network_panel_says_its_kind_and_its_oversubscriptions():
    three = load("mi300x-8", nodes=64, leaf_nodes=4, pod_nodes=16)
    three = replace(three, network=replace(three.network, pod_oversubscription=2.0))
    assert "pods of 16 with 2:1 above" in panels_of(three)[-1].title
    dragonfly = panels_of(load("frontier"))[-1]
    assert (
        "74 groups of 32 routers" in dragonfly.title and "4 links a group pair" in dragonfly.title
    )
    each = f"{LINKS['slingshot-200g'].usable / 1e9:.4g}"
    assert any(f"two groups: 4 x {each} GB/s" in text.text for text in dragonfly.texts)


def test_the_headline_of_unlike_nodes_claims_no_one_accelerator():
    figure_title = headline(load("mixed-x6"))
    assert figure_title == "mixed-x6: 48 x GPU in 2 kinds of node, 6 nodes"


@pytest.mark.parametrize("arguments", [("colour",), ("load",)])
def test_a_wrong_choice_is_said(drawing, arguments):
    with pytest.raises(InvalidArgument, match="draw: by="):
        drawing.draw(load("mi300x-8"), *arguments)


def test_another_ending_is_refused(drawing, tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.png, \.svg or \.pdf"):
        drawing.save(drawing.draw(load("mi300x-8")), str(tmp_path / "picture.gif"))


def test_a_folder_that_is_not_there_is_one_error(drawing, tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be written"):
        drawing.save(drawing.draw(load("mi300x-8")), str(tmp_path / "no" / "picture.png"))


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch):
    from rccl_py.report.draw import draw

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidUsage, match=r"pip install rccl_py\[plot\]"):
        draw(load("mi300x-8"))


def test_importing_the_library_does_not_load_matplotlib():
    code = "import sys, rccl_py, rccl_py.report.draw; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True, cwd=Path(__file__).parents[1])  # fmt: skip
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["mi300x-8", "helios-72", "rails", "pod"])
def test_the_html_of_a_machine_is_well_formed_and_small(name):
    topology = machine(name)
    text = topology_html(topology)
    assert ET.fromstring(text).find(".//{http://www.w3.org/2000/svg}svg") is not None
    assert len(text) < 120_000 and str(topology.ngpus) in text


def test_the_html_of_a_plan_names_choice_bound_and_every_shown_candidate():
    plan = Planner(lower(load("mi300x-8"))).plan("allreduce", 1 << 28)
    text = plan_html(plan)
    ET.fromstring(text)
    assert f"{plan.algorithm}/{plan.protocol}" in text and "lower bound" in text
    assert all(c.algorithm in text for c in plan.candidates[:5])


def test_texts_from_a_file_are_escaped():
    odd = replace(load("mi300x-8"), name="<script>alert(1)</script>", notes=("a < b & c",))
    text = topology_html(odd)
    assert "<script>" not in text and "a &lt; b &amp; c" in text


kinds = st.lists(st.sampled_from(["gpu", "gpu", "switch", "pci", "cpu", "nic"]), min_size=1,
                 max_size=14)  # fmt: skip
joins = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13), st.sampled_from(
    ["xgmi-mi300", "nvlink4", "ualink-200g", "pcie5-x16", "upi-spr", "nvlink-c2c"]),
    st.sampled_from([0.5, 1, 4])), max_size=30)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds, joins, st.integers(1, 3), st.booleans())
def test_any_graph_is_compared_checked_and_laid_out_without_an_error(parts, links, nodes, one_way):
    graph, counts = new_graph("any"), dict.fromkeys(["gpu", "switch", "pci", "cpu", "nic"], 0)
    for kind in ["gpu", *parts]:
        name, k = f"{kind}{counts[kind]}", counts[kind]
        counts[kind] += 1
        graph.add_node(name, kind=kind, index=k, host=k % 2)
        if kind == "nic":
            graph.nodes[name]["port"] = LINKS["roce-400g"]
    names = list(graph)
    for a, b, link, lanes in links:
        if a % len(names) != b % len(names) and not graph.has_edge(
                names[a % len(names)], names[b % len(names)]):  # fmt: skip
            add_link(graph, names[a % len(names)], names[b % len(names)], LINKS[link], lanes)
    if one_way and graph.number_of_edges():
        graph.remove_edge(*next(iter(graph.edges)))
    topology = Topology("any", graph, DEVICES["mi300x"], nodes)
    assert compare(topology, topology) == []
    assert all(f.severity in ("error", "warning", "note") for f in validate(topology))
    assert isinstance(suspects(topology), list)
    for panel in panels_of(topology):
        assert overlapping(panel) == []
    ET.fromstring(topology_html(topology))
    assert describe(topology)


def test_a_dollar_in_a_name_is_drawn_as_it_stands(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: the plot extra")
    from rccl_py.report.draw import draw, save

    path = tmp_path / "box.yaml"
    path.write_text('name: "$\\\\frac{$ a"\nsummary: s\ngpus: 2\ndevice: mi300x\n'
                    "scale_up: {mesh: {link: xgmi-mi300}}\n")  # fmt: skip
    save(draw(load(path)), str(tmp_path / "box.png"))
    assert (tmp_path / "box.png").stat().st_size > 1000
