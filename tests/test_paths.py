"""Path classes are those nvidia-smi and rocm-smi print."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from rccl_py.links import LINKS, LinkType
from rccl_py.topology.build import (
    add_gpus,
    add_link,
    add_mesh,
    add_nic,
    add_pcie,
    add_switches,
    new_graph,
)
from rccl_py.topology.paths import LEGEND, distances, gpu_matrix, nearest_gpus, nic_matrix

GEN5 = LINKS["pcie5-x16"]
PORT = LINKS["ib-400g"]


def host(*trees: list[Any]) -> nx.DiGraph:
    """Return a graph of sockets; a tree is of GPUs and NICs (names) and bridges (lists)."""
    graph = new_graph("host")
    bridges = iter(range(1000))

    def attach(up: str, tree: list[Any]) -> None:
        for item in tree:
            if isinstance(item, list):
                name = f"pci{next(bridges)}"
                graph.add_node(name, kind="pci", host=0)
            else:
                name, index = item, int(item.lstrip("gpunic"))
                graph.add_node(name, kind=item[:3], index=index, host=0, port=PORT)
            add_pcie(graph, up, name, GEN5)
            attach(name, item if isinstance(item, list) else [])

    for k, tree in enumerate(trees):
        graph.add_node(f"cpu{k}", kind="cpu", host=0)
        attach(f"cpu{k}", tree)
        for j in range(k):
            add_link(graph, f"cpu{j}", f"cpu{k}", LINKS["xgmi-cpu"])
    return graph


def scale_up(count: int) -> nx.DiGraph:
    graph = new_graph("scale-up")
    add_gpus(graph, count)
    return graph


@pytest.mark.parametrize("trees, expected", [
    ([[["gpu0", "gpu1"]]], "PIX"),
    ([[[["gpu0"], ["gpu1"]]]], "PXB"),
    ([[["gpu0", ["gpu1"]]]], "PXB"),
    ([["gpu0", "gpu1"]], "PHB"),
    ([[["gpu0"], ["gpu1"]]], "PHB"),
    ([["gpu0"], [["gpu1"]]], "SYS"),
])  # fmt: skip
def test_gpus_without_scale_up_have_the_class_of_the_bridges_between_them(trees, expected):
    assert gpu_matrix(host(*trees)) == [["X", expected], [expected, "X"]]


@pytest.mark.parametrize("trees, expected", [
    ([[["gpu0", "nic0"]]], "PIX"), ([[[["gpu0"], "nic0"]]], "PXB"), ([["gpu0", "nic0"]], "PHB"),
    ([["gpu0"], [], ["nic0"]], "SYS"),
])  # fmt: skip
def test_a_nic_has_the_class_of_the_bridges_above_it(trees, expected):
    assert nic_matrix(host(*trees)) == [[expected]]


def test_the_vertex_of_a_card_with_two_ports_is_no_bridge():
    graph = host([["gpu0", ["nic0", "nic1"]]])
    card = next(v for v in graph.predecessors("nic0"))
    assert nic_matrix(graph) == [["PXB", "PXB"]]
    graph.nodes[card]["bridge"] = False
    assert nic_matrix(graph) == [["PIX", "PIX"]]


@pytest.mark.parametrize("row, lanes, expected", [
    ("xgmi-mi300", 1, "XGMI1"), ("xgmi-mi200", 4, "XGMI4"), ("nvlink2", 2, "NV2"),
    ("ualink-200g", 8, "UAL8"),
])  # fmt: skip
def test_direct_links_are_counted(row, lanes, expected):
    graph = scale_up(3)
    add_mesh(graph, ["gpu0", "gpu1", "gpu2"], LINKS[row], lanes)
    assert gpu_matrix(graph)[0] == ["X", expected, expected]


def test_a_scale_up_link_wins_over_a_shared_bridge():
    graph = host([["gpu0", "gpu1"]])
    add_link(graph, "gpu0", "gpu1", LINKS["nvlink4"], 6)
    assert gpu_matrix(graph)[0][1] == "NV6"


def test_lanes_through_all_shared_switches_add_up():
    graph = scale_up(4)
    add_switches(graph, ["gpu0", "gpu1", "gpu2"], LINKS["nvlink4"], 18, 4, 0.1e-6)
    cells = gpu_matrix(graph)
    assert cells[0] == ["X", "NV18", "NV18", "DIS"] and cells[3] == ["DIS", "DIS", "DIS", "X"]


def test_the_narrower_side_of_a_switch_decides():
    graph = scale_up(2)
    graph.add_node("plane0", kind="switch")
    add_link(graph, "gpu0", "plane0", LINKS["nvlink4"], 18)
    add_link(graph, "gpu1", "plane0", LINKS["nvlink4"], 12)
    assert gpu_matrix(graph) == [["X", "NV12"], ["NV12", "X"]]


def test_gpus_joined_through_peers_only_are_nvb():
    graph = scale_up(4)
    for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu3")):
        add_link(graph, a, b, LINKS["xgmi-mi200"])
    assert gpu_matrix(graph)[0] == ["X", "XGMI1", "NVB", "NVB"]


def coherent() -> nx.DiGraph:
    graph = new_graph("c2c")
    add_gpus(graph, 2)
    graph.add_node("cpu0", kind="cpu", host=0)
    for name in ("gpu0", "gpu1"):
        add_link(graph, name, "cpu0", LINKS["nvlink-c2c"])
    graph.add_node("nic0", kind="nic", index=0, host=0, port=PORT)
    add_pcie(graph, "cpu0", "nic0", GEN5)
    return graph


def test_coherent_links_are_c2c_between_gpus_and_p2c_to_a_nic():
    assert gpu_matrix(coherent())[0] == ["X", "C2C"] and nic_matrix(coherent()) == [["P2C"]] * 2


def test_a_nic_next_to_a_peer_is_reached_by_pxn_and_is_nearest_to_that_peer():
    graph = scale_up(3)
    add_mesh(graph, ["gpu0", "gpu1"], LINKS["xgmi-mi300"])
    add_nic(graph, 0, PORT, ["gpu0"], GEN5)
    assert nic_matrix(graph) == [["PIX"], ["PXN"], ["DIS"]]
    assert nearest_gpus(graph) == [[0]]


def test_a_nic_nobody_reaches_has_no_nearest_gpu():
    graph = scale_up(1)
    add_nic(graph, 0, PORT, [], GEN5)
    assert nearest_gpus(graph) == [[]]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_matrices_are_symmetric_with_a_diagonal_of_x_and_known_classes(count):
    graph = scale_up(count)
    for i in range(count - 1):
        add_link(graph, f"gpu{i}", f"gpu{i + 1}", LINKS["xgmi-mi200"], i + 1)
    cells = gpu_matrix(graph)
    assert [cells[i][i] for i in range(count)] == ["X"] * count
    assert all(cells[i][j] == cells[j][i] for i in range(count) for j in range(count))
    assert {cell.rstrip("0123456789") for row in cells for cell in row} <= set(LEGEND)


@pytest.mark.parametrize("build, expected", [
    (lambda: _line("xgmi-mi200"), (30, 2, "XGMI")),
    (lambda: host([["gpu0", "gpu1", "gpu2"]]), (40, 2, "PCIE")),
    (lambda: host(["gpu0", "gpu1"], ["gpu2"]), (72, 3, "PCIE")),
    (lambda: scale_up(3), (0, 0, "-")),
])  # fmt: skip
def test_weight_hops_and_link_type_are_those_of_rocm_smi(build, expected):
    table = distances(build())
    assert (table.weight[0][2], table.hops[0][2], table.kind[0][2]) == expected
    assert table.weight[1][1] == 0 and table.kind[1][1] == "0"


def _line(row: str) -> nx.DiGraph:
    graph, link = scale_up(3), LINKS[row]
    assert isinstance(link, LinkType)
    add_link(graph, "gpu0", "gpu1", link)
    add_link(graph, "gpu1", "gpu2", link)
    return graph


def test_a_nic_on_scale_up_links_is_that_many_away_and_next_to_its_gpu():
    graph = new_graph("crossbar")
    names = add_gpus(graph, 3)
    add_link(graph, names[0], names[1], LINKS["xgmi-mi300"])
    for q, (near, lanes) in enumerate((("gpu0", 2), ("gpu2", 1))):
        graph.add_node(f"nic{q}", kind="nic", index=q, host=0, port=PORT)
        add_link(graph, near, f"nic{q}", LINKS["nvlink4"], lanes)
    assert nic_matrix(graph) == [["NV2", "DIS"], ["PXN", "DIS"], ["DIS", "NV1"]]
    assert nearest_gpus(graph) == [[0], [2]]
