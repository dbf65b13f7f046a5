"""Two machines are compared device by device, and a node is held against its healthy twin."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.links import DEVICES, LINKS
from rccl_py.report.topo import describe
from rccl_py.topology import Topology, load, lower, machine_names
from rccl_py.topology.build import (
    Network,
    add_gpus,
    add_link,
    add_mesh,
    add_nic,
    add_pcie,
    add_switches,
    gpus_of,
    new_graph,
    nics_of,
)
from rccl_py.topology.diff import compare
from rccl_py.topology.difference import Difference, shown, summarised
from rccl_py.topology.figures import (
    bisection,
    host_bandwidth,
    host_bisection,
    package_bandwidth,
    scale_out_bandwidth,
    scale_out_bisection,
    scale_up_bandwidth,
)
from rccl_py.topology.kinds import used_nics
from rccl_py.topology.suspects import suspects
from rccl_py.topology.validate import validate

XGMI, GEN5, ROCE = LINKS["xgmi-mi300"], LINKS["pcie5-x16"], LINKS["roce-400g"]


def machine(graph: nx.DiGraph, nodes: int = 1) -> Topology:
    return Topology("box", graph, DEVICES["mi300x"], nodes)


def mesh(lanes: float = 1, count: int = 8, nics: int = 0) -> nx.DiGraph:
    graph = new_graph("box")
    names = add_gpus(graph, count)
    add_mesh(graph, names, XGMI, lanes)
    for q in range(nics):
        add_nic(graph, q, ROCE, [names[q]], GEN5)
    return graph


def without(graph: nx.DiGraph, a: str, b: str) -> nx.DiGraph:
    cut = graph.copy()
    cut.remove_edges_from([(a, b), (b, a)])
    return cut


def relinked(graph: nx.DiGraph, a: str, b: str, lanes: float) -> nx.DiGraph:
    """Return the graph with another number of lanes between two vertices, both ways."""
    changed = graph.copy()
    for edge in ((a, b), (b, a)):
        old = changed.edges[edge]
        changed.add_edge(*edge, **{**old, "lanes": lanes, "raw": old["link"].bandwidth * lanes,
                                   "bandwidth": old["link"].bandwidth * lanes
                                   * old["link"].efficiency})  # fmt: skip
    return changed


def lines(a: nx.DiGraph, b: nx.DiGraph) -> list[str]:
    return [shown(d) for d in summarised(compare(machine(a), machine(b)))]


@pytest.mark.parametrize("name", list(machine_names()))
def test_a_machine_has_no_difference_from_itself(name):
    assert compare(load(name), load(name)) == []


def test_a_lost_link_is_one_line_with_what_it_was():
    assert "GPU2 - GPU6 link: xGMI 1 -> none" in lines(mesh(), without(mesh(), "gpu2", "gpu6"))


def test_what_the_pair_has_instead_of_its_link_is_not_told_twice():
    found = lines(mesh(), without(mesh(), "gpu2", "gpu6"))
    assert [line for line in found if "GPU2 - GPU6" in line] == ["GPU2 - GPU6 link: xGMI 1 -> none"]


def test_a_narrower_link_is_said_by_its_lanes():
    assert "GPU3 - GPU5 link: xGMI 16 -> xGMI 8" in lines(
        mesh(16), relinked(mesh(16), "gpu3", "gpu5", 8))  # fmt: skip


def test_a_link_lost_one_way_is_said_with_its_direction():
    one_way = mesh()
    one_way.remove_edge("gpu1", "gpu0")
    assert "GPU1 -> GPU0 link: xGMI 1 -> none" in lines(mesh(), one_way)


def test_a_narrower_slot_is_said_as_lanes_of_its_generation():
    found = lines(mesh(nics=8), relinked(mesh(nics=8), "gpu3", "pci3", 0.5))
    assert "GPU3 PCIe: gen5 x16 -> gen5 x8" in found


def test_a_narrow_slot_above_a_bridge_is_said_with_the_bridge():
    wide = new_graph("box")
    wide.add_node("cpu0", kind="cpu", host=0)
    for bridge in range(4):
        wide.add_node(f"bridge{bridge}", kind="pci", host=0, busid=f"0000:{bridge}0:00.0")
        add_pcie(wide, "cpu0", f"bridge{bridge}", GEN5)
    for k, gpu in enumerate(add_gpus(wide, 8)):
        add_pcie(wide, gpu, f"bridge{k // 2}", GEN5)
    narrow = relinked(wide, "cpu0", "bridge1", 0.5)
    expected = [f"GPU{k} PCIe: gen5 x16 -> gen5 x8 (above 0000:10:00.0)" for k in (2, 3)]
    assert lines(wide, narrow) == expected
    assert list(map(shown, suspects(machine(narrow)))) == expected


def test_a_slower_port_is_said_in_bits():
    slow = mesh(nics=8)
    slow.nodes["nic4"]["port"] = LINKS["roce-200g"]
    assert "NIC4 port: 400 Gb/s -> 200 Gb/s" in lines(mesh(nics=8), slow)


def test_a_missing_accelerator_is_missing_with_its_bus_id():
    seven, eight = mesh(), mesh()
    for graph in (seven, eight):
        for k, gpu in enumerate(gpus_of(graph)):
            graph.nodes[gpu]["busid"] = f"0000:{k + 1:02x}:00.0"
    seven.remove_node("gpu2")
    for k, gpu in enumerate(gpus_of(seven)):
        seven.nodes[gpu]["index"] = k  # a reader counts those it finds
    found = lines(eight, seven)
    assert "GPU2 (0000:03:00.0) missing" in found and "GPUs a node: 8 -> 7" in found
    assert not any("link" in line for line in found)


def test_devices_are_matched_by_bus_id_however_they_are_numbered():
    a, b = without(mesh(), "gpu0", "gpu1"), without(mesh(), "gpu6", "gpu7")
    for graph, order in ((a, range(8)), (b, range(7, -1, -1))):
        for gpu, k in zip(gpus_of(graph), order):
            graph.nodes[gpu]["busid"] = f"0000:{k + 1:02x}:00.0"
    assert lines(a, b) == []


def test_the_same_links_in_another_order_are_one_line():
    node = load("mi250x-4").node
    turned = nx.relabel_nodes(node, {f"gpu{k}": f"gpu{7 - k}" for k in range(8)}, copy=True)
    for k in range(8):
        turned.nodes[f"gpu{k}"]["index"] = k
    found = lines(node.subgraph(gpus_of(node)).copy(), turned.subgraph(gpus_of(turned)).copy())
    assert [line for line in found if " link" in line and "another order" not in line] == []
    assert any(line.startswith("GPU order: the same scale-up links") for line in found)


def test_a_path_that_leaves_its_socket_is_a_path_difference():
    near, far = new_graph("a"), new_graph("b")
    for graph, cpu in ((near, "cpu0"), (far, "cpu1")):
        for name in ("cpu0", "cpu1"):
            graph.add_node(name, kind="cpu", host=0)
        add_pcie(graph, "cpu0", "cpu1", LINKS["upi-spr"])
        add_gpus(graph, 2)
        add_pcie(graph, "gpu0", "cpu0", GEN5)
        add_pcie(graph, "gpu1", cpu, GEN5)
    assert "GPU0 - GPU1 path: PHB -> SYS" in lines(near, far)


def test_equal_differences_are_one_line_that_says_all():
    faster = new_graph("box")
    add_mesh(faster, add_gpus(faster, 8), LINKS["xgmi-mi350"])
    assert lines(mesh(), faster)[0] == "all 28 GPU pairs link: 64 -> 76.8 GB/s"


def test_the_whole_is_said_in_percent():
    found = lines(mesh(), mesh(0.5))
    assert any(line.startswith("scale-up of a GPU: ") and line.endswith("(-50.0%)")
               for line in found)  # fmt: skip
    assert any(line.startswith("scale-up bisection: ") for line in found)


def test_a_switch_that_stands_for_several_planes_is_no_slower_machine():
    a, b = new_graph("a"), new_graph("b")
    add_switches(a, add_gpus(a, 8), LINKS["nvlink4"], 18, 4, 1e-7)
    add_switches(b, add_gpus(b, 8), LINKS["nvlink4"], 18, 1, 1e-7, prefix="nvswitch")
    assert lines(a, b) == ["switches: 4 -> 1"]


def test_a_lost_plane_is_missing():
    a, b = new_graph("a"), new_graph("b")
    for graph in (a, b):
        add_switches(graph, add_gpus(graph, 8), LINKS["nvlink4"], 18, 4, 1e-7)
    b.remove_node("plane2")
    assert "plane2 missing" in lines(a, b)


def test_a_fault_in_one_node_of_a_cluster_is_said_with_its_node():
    whole = machine(mesh(nics=8), nodes=4)
    broken = replace(whole, unlike=((3, without(whole.node, "gpu0", "gpu1")),))
    assert "node3/GPU0 - GPU1 link: xGMI 1 -> none" in map(shown, compare(whole, broken))
    assert "node3/GPU0 - GPU1 link: xGMI 1 -> none" in map(shown, suspects(broken))


def test_nodes_and_network_are_compared():
    a, b = load("mi300x-8", nodes=4), load("mi300x-8", nodes=8, network="leaf-spine")
    found = list(map(shown, compare(a, b)))
    assert "nodes: 4 -> 8" in found and "network kind: rails -> leaf-spine" in found


edits = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([0.5, 1, 2])), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(edits, edits)
def test_a_difference_turned_round_is_the_difference_of_the_turned_machines(first, second):
    graphs = []
    for changes in (first, second):
        graph = mesh(count=6)
        for a, b, lanes in changes:
            if a != b:
                graph = relinked(graph, f"gpu{a}", f"gpu{b}", lanes)
        graphs.append(graph)
    there = {(d.where, d.before, d.after) for d in compare(*map(machine, graphs))
             if d.what == "link"}  # fmt: skip
    back = {(d.where, d.after, d.before) for d in compare(*map(machine, graphs[::-1]))
            if d.what == "link"}  # fmt: skip
    assert there == back


@pytest.mark.parametrize("name", list(machine_names()))
def test_nothing_is_odd_in_an_installed_machine(name):
    assert suspects(load(name)) == []


def test_the_odd_pair_of_a_mesh_is_a_suspect():
    assert list(map(shown, suspects(machine(without(mesh(), "gpu3", "gpu5"))))) == [
        "GPU3 - GPU5 link: xGMI 1 -> none"]  # fmt: skip


def test_pairs_left_out_by_design_are_no_suspects():
    graph = mesh()
    for k in range(4):
        graph = without(graph, f"gpu{k}", f"gpu{k + 4}")
    assert suspects(machine(graph)) == []


def test_both_ends_of_a_lost_link_of_an_unequal_mesh_are_suspects():
    graph = new_graph("cube")
    add_gpus(graph, 8)
    for a in range(8):
        for bit in (1, 2, 4):
            if a < a ^ bit:
                add_link(graph, f"gpu{a}", f"gpu{a ^ bit}", LINKS["nvlink2"], bit % 3)
    found = map(shown, suspects(machine(without(graph, "gpu0", "gpu1"))))
    assert list(found) == ["GPU0 link: 4 lanes in all -> 3 lanes in all",
                           "GPU1 link: 4 lanes in all -> 3 lanes in all"]  # fmt: skip


def test_a_weak_link_to_a_plane_is_a_suspect():
    graph = new_graph("box")
    add_switches(graph, add_gpus(graph, 8), LINKS["nvlink4"], 16, 4, 1e-7)
    found = map(shown, suspects(machine(relinked(graph, "gpu5", "plane2", 3))))
    assert list(found) == ["GPU5 - plane2 link: NVLink 4 -> NVLink 3"]


def test_a_slot_at_half_its_width_is_a_suspect():
    graph = relinked(mesh(nics=8), "pci6", "nic6", 0.5)
    assert list(map(shown, suspects(machine(graph)))) == ["NIC6 PCIe: gen5 x16 -> gen5 x8"]


def test_a_management_network_is_no_suspect_but_one_slow_port_is():
    graph = mesh(nics=8)
    graph.nodes["nic3"]["port"] = LINKS["roce-100g"]
    assert list(map(shown, suspects(machine(graph)))) == ["NIC3 port: 400 Gb/s -> 100 Gb/s"]
    for q in range(3):
        graph.nodes[f"nic{q}"]["port"] = LINKS["eth-10g"]
    assert suspects(machine(graph)) == []


def test_a_link_without_its_way_back_is_a_suspect():
    graph = mesh()
    graph.remove_edge("gpu1", "gpu0")
    assert any(d.where == "GPU1 -> GPU0" for d in suspects(machine(graph)))


def test_validate_finds_accelerators_out_of_reach():
    graph = new_graph("box")
    add_gpus(graph, 2)
    (found,) = validate(machine(graph))
    assert found.severity == "error" and "cannot reach" in found.what


def test_validate_finds_a_port_faster_than_its_slot():
    graph = mesh(nics=1)
    graph.nodes["nic0"]["port"] = LINKS["roce-800g"]
    assert [(f.severity, f.where) for f in validate(machine(graph))] == [("warning", "NIC0")]


def test_validate_finds_a_link_that_carries_nothing():
    graph = relinked(mesh(), "gpu0", "gpu1", 0.0)
    assert any(f.severity == "error" and "carries 0 B/s" in f.what
               for f in validate(machine(graph)))  # fmt: skip


def test_validate_lists_what_was_assumed_last():
    noted = replace(machine(without(mesh(), "gpu0", "gpu1")), notes=("a speed was assumed",))
    found = validate(noted)
    assert [f.severity for f in found] == ["warning", "note"]
    assert found[-1].what == "a speed was assumed"


@pytest.mark.parametrize("name", list(machine_names()))
def test_an_installed_machine_has_no_errors_and_no_warnings(name):
    assert [f for f in validate(load(name)) if f.severity != "note"] == []


def test_a_mesh_sends_over_all_its_links_and_halves_over_a_quarter_of_them():
    found = machine(mesh())
    assert scale_up_bandwidth(found).most.raw == 7 * 64e9
    assert bisection(found).raw == 16 * 64e9 and bisection(found).exact


def test_a_switched_domain_halves_over_half_its_ports():
    found = bisection(load("helios-72"))
    assert found.raw == pytest.approx(36 * 1.8e12) and found.exact


def test_a_torus_halves_over_its_longest_side():
    graph = new_graph("torus")
    names = add_gpus(graph, 32)
    at = {(x, y): names[8 * x + y] for x in range(4) for y in range(8)}
    for (x, y), name in at.items():
        add_link(graph, name, at[(x + 1) % 4, y], XGMI)
        add_link(graph, name, at[x, (y + 1) % 8], XGMI)
    assert bisection(machine(graph)).raw == 8 * 64e9


def test_the_fast_bisection_is_the_least_max_flow_over_all_halvings():
    from itertools import combinations

    node = load("mi250x-4").node
    gpus = gpus_of(node)
    flow = nx.DiGraph()
    for a, b, data in node.edges(data=True):
        if data["link"].medium == "xgmi":
            flow.add_edge(a, b, capacity=data["raw"])
    least = float("inf")
    for half in combinations(gpus, 4):
        cut = flow.copy()
        cut.add_edges_from([*(("s", g) for g in half), *((g, "t") for g in gpus if g not in half)])
        least = min(least, nx.maximum_flow_value(cut, "s", "t"))
    assert bisection(load("mi250x-4")).raw == least


def test_scale_out_is_the_ports_or_what_pcie_lets_through():
    assert scale_out_bandwidth(machine(mesh(nics=8))).raw == 50e9
    narrow = scale_out_bandwidth(machine(relinked(mesh(nics=1), "pci0", "nic0", 0.25)))
    assert narrow.usable == pytest.approx(GEN5.bandwidth * 0.25 * GEN5.efficiency / 8)


@pytest.mark.parametrize("nodes, changes, halves", [
    (4, {}, 2.0), (7, {}, 3.0), (64, {"leaf_nodes": 4, "kind": "leaf-spine"}, 32.0),
    (64, {"leaf_nodes": 4, "kind": "leaf-spine", "oversubscription": 2.0}, 16.0),
    (64, {"leaf_nodes": 4, "pod_nodes": 16, "oversubscription": 2.0, "pod_oversubscription": 2.0},
     8.0),
    (64, {"kind": "torus", "dims": (4, 16)}, 8.0),
    (16, {"kind": "dragonfly", "groups": 4, "routers": 4, "global_links": 3, "leaf_nodes": 1,
          "global_rate": 1e9}, 16 * 1e9 / 400e9),
])  # fmt: skip
def test_scale_out_bisection_is_the_networks_own_formula(nodes, changes, halves):
    whole = machine(mesh(nics=8), nodes)
    found = scale_out_bisection(replace(whole, network=replace(whole.network, **changes)))
    assert found.raw == pytest.approx(halves * len(nics_of(whole.node)) * 50e9)


def cluster(network: Network, *nodes: nx.DiGraph) -> Topology:
    unlike = tuple((k, graph) for k, graph in enumerate(nodes) if graph is not nodes[0])
    return replace(machine(nodes[0], len(nodes)), network=network, unlike=unlike)


def boxes() -> tuple[nx.DiGraph, nx.DiGraph]:
    """Return a node of eight NICs of 50 GB/s, and one of a single NIC of 12.5 GB/s."""
    small = mesh(count=4)
    add_nic(small, 0, LINKS["roce-100g"], ["gpu0"], GEN5)
    return mesh(nics=8), small


def test_unlike_nodes_halve_over_their_own_ports():
    large, small = boxes()
    nodes = large, large, large, small, small, large
    tree = Network("leaf-spine", leaf_nodes=2)
    found = scale_out_bisection(cluster(tree, *nodes))
    assert found.raw == 425e9 and found.exact  # two small nodes and a large one
    assert found.how == "the weaker half of the nodes' ports, leaf-spine"
    narrow = scale_out_bisection(cluster(replace(tree, oversubscription=3.0), *nodes))
    # Leaves of 800, 412.5 and 412.5 GB/s with uplinks of 800 / 3: the lesser of two leaves'
    # nodes and one of the first's, or of one leaf's and its uplinks.
    assert narrow.raw == pytest.approx(800e9 / 3 + 12.5e9)


def test_the_bisection_of_unlike_nodes_is_the_least_max_flow_over_all_halvings():
    from itertools import combinations

    large, small = boxes()
    nodes = [large, small, large, large, small, large, small]
    network = Network("leaf-spine", leaf_nodes=2, oversubscription=2.0)
    flow, ports = nx.DiGraph(), [400.0 if g is large else 12.5 for g in nodes]
    uplink = max(sum(ports[k : k + 2]) for k in range(0, 7, 2)) / 2
    for k, port in enumerate(ports):
        for a, b, rate in ((k, f"leaf{k // 2}", port), (f"leaf{k // 2}", "spine", uplink)):
            flow.add_edge(a, b, capacity=rate)
            flow.add_edge(b, a, capacity=rate)
    least = float("inf")
    for half in combinations(range(7), 3):
        cut = flow.copy()
        cut.add_edges_from(("s", k) if k in half else (k, "t") for k in range(7))
        least = min(least, nx.maximum_flow_value(cut, "s", "t"))
    assert scale_out_bisection(cluster(network, *nodes)).raw == pytest.approx(least * 1e9)


def test_many_unlike_nodes_halve_at_most_over_the_least_found():
    large, small = boxes()
    found = scale_out_bisection(cluster(Network(leaf_nodes=4), *[large, small] * 10))
    assert not found.exact and found.raw <= 10 * 12.5e9


def test_a_node_with_a_fault_inside_is_alike_in_its_ports():
    found = scale_out_bisection(load("mi300x-8", nodes=64).with_link("gpu0", "gpu1", 0, node=3))
    assert found.exact and found.raw == 32 * 400e9


def test_nics_that_no_accelerator_uses_are_not_counted():
    graph = load("mi325x-8").node.copy()
    graph.add_node("cpu9", kind="cpu", host=0, numa=9)
    add_pcie(graph, "cpu0", "cpu9", GEN5)
    for q in (8, 9):
        graph.add_node(f"nic{q}", kind="nic", index=q, host=0, port=ROCE)
        add_pcie(graph, "cpu9", f"nic{q}", GEN5)
    assert used_nics(graph) == [f"nic{q}" for q in range(8)]
    assert scale_out_bandwidth(machine(graph)).raw == 50e9
    assert scale_out_bisection(machine(graph, 4)).raw == 2 * 400e9
    assert "  NIC8-9: no GPU uses it, others are nearer" in describe(machine(graph))
    assert ("note", "NIC8, NIC9") in [(f.severity, f.where) for f in validate(machine(graph))]


def partitioned(attribute: bool) -> nx.DiGraph:
    """Return two packages of two partitions each, joined by 7 links."""
    graph = new_graph("parts")
    for k, gpu in enumerate(add_gpus(graph, 4)):
        hub = f"{'hub' if attribute else 'package'}{k // 2}"
        graph.add_node(hub, kind="switch")
        add_link(graph, gpu, hub, XGMI, 8)
        if attribute:
            graph.nodes[gpu]["package"] = k // 2
    hubs = [v for v in graph if graph.nodes[v]["kind"] == "switch"]
    add_link(graph, *hubs, XGMI, 7)
    return graph


@pytest.mark.parametrize("attribute", [True, False])
def test_a_partition_has_its_share_of_what_leaves_the_package(attribute):
    found = machine(partitioned(attribute))
    assert scale_up_bandwidth(found).most.raw == scale_up_bandwidth(found).least.raw == 224e9
    assert package_bandwidth(found).most.raw == 512e9
    assert package_bandwidth(machine(mesh())) is None


def test_a_box_without_scale_up_links_halves_over_its_sockets():
    found = load("l40s-8")
    assert host_bandwidth(found).most.raw == found.node.edges["gpu0", "sw0"]["raw"]
    half = host_bisection(found)
    assert half.raw == found.node.edges["cpu0", "cpu1"]["raw"] and half.exact


def test_a_dragonfly_has_only_the_links_of_whole_rounds_between_two_groups():
    found = scale_out_bisection(load("frontier"))
    assert found.raw == 37 * 37 * 4 * 25e9
    assert lower(load("frontier")).wiring.between == 4


def test_a_nic_on_a_switch_of_accelerators_hangs_somewhere():
    graph = new_graph("crossbar")
    names = add_gpus(graph, 4)
    add_switches(graph, names, LINKS["nvlink4"], 1, 1, 1e-7)
    for q in range(3):
        graph.add_node(f"nic{q}", kind="nic", index=q, host=0, port=ROCE)
    add_link(graph, "nic0", "plane0", LINKS["nvlink4"])
    graph.add_edge("nic1", "plane0", **graph.edges["nic0", "plane0"])
    said = [f.where for f in validate(machine(graph)) if "no link joins it" in f.what]
    assert said == ["NIC2"]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_link_between_two_accelerators_that_goes_one_way_is_a_warning(count):
    graph = mesh(count=count)
    graph.remove_edge("gpu1", "gpu0")
    found = [f for f in validate(machine(graph)) if f.severity == "warning"]
    assert any(f.where == "GPU1 -> GPU0 link" and "none" in f.what for f in found)


def test_a_link_that_one_end_of_a_file_does_not_list_is_a_warning():
    note = "gpu0 lists xGMI to gpu1, which lists none back: taken as both ways"
    (found,) = validate(replace(machine(mesh()), notes=(note,)))
    assert (found.severity, found.what) == ("warning", note)


def test_a_difference_prints_as_its_line():
    assert str(Difference("GPU7", "present", "none", "missing")) == "GPU7 missing"


def test_a_link_to_a_nic_is_no_scale_up_bandwidth_of_a_lone_gpu():
    graph = new_graph("host")
    add_gpus(graph, 1)
    graph.add_node("nic0", kind="nic", index=0, host=0, port=ROCE)
    add_link(graph, "gpu0", "nic0", LINKS["ualink-200g"], 2)
    found = machine(graph, 4)
    assert scale_up_bandwidth(found).most.raw == 0 and scale_out_bandwidth(found).raw == 50e9
    assert not any("scale-up" in line for line in describe(found) if "  " in line[:2])
    assert suspects(found) == []


def test_a_link_to_a_nic_is_no_way_between_two_halves():
    graph = mesh(count=4)
    graph.add_node("nic0", kind="nic", index=0, host=0, port=ROCE)
    for gpu in ("gpu0", "gpu3"):
        add_link(graph, gpu, "nic0", LINKS["ualink-200g"], 2)
    assert bisection(machine(graph)).raw == bisection(machine(mesh(count=4))).raw == 4 * 64e9


def test_validate_looks_at_every_kind_of_node(tmp_path):
    from rccl_py import load
    from rccl_py.topology.validate import validate

    (tmp_path / "odd.yaml").write_text(
        "name: odd\nsummary: s\ngpus: 3\ndevice: h100\n"
        "scale_up: {mesh: {link: nvlink4, lanes: 6}}\n"
        "nics: {link: ib-800g, count: 3, host_link: pcie4-x16}\n"
    )
    (tmp_path / "two.yaml").write_text(
        "name: two\nsummary: s\nnodes: [{node: mi300x-8}, {node: odd.yaml}]\n"
    )
    found = [str(f) for f in validate(load(tmp_path / "two.yaml"))]
    assert any("node1/NIC0" in text and "behind PCIe" in text for text in found)
    assert not any("node0/NIC" in text for text in found)
