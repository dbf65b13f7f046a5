"""Topologies pasted from nvidia-smi, rocm-smi and amd-smi become graphs with the same classes."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError
from rccl_py.links import LINKS
from rccl_py.topology import load
from rccl_py.topology.build import (
    Topology,
    add_gpus,
    add_link,
    add_pcie,
    add_switches,
    gpus_of,
    new_graph,
    nics_of,
)
from rccl_py.topology.formats.smi.reader import is_smi_text, read_smi_text
from rccl_py.topology.lower import lower
from rccl_py.topology.paths import gpu_matrix, nic_matrix

AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def matrix(cells, *, names=None, after=None, tab="\t", heads=AFFINITY):
    """Return a matrix as nvidia-smi prints it; after: what follows the cells of each row."""
    names = names or [f"GPU{i}" for i in range(len(cells))]
    heads = heads if after else ()
    lines = [tab.join(["", *names, *heads])]
    for name, row, rest in zip(names, cells, after or [()] * len(cells)):
        lines.append(tab.join([name, *row, *rest]))
    return "\n".join(lines) + "\n"


def switched(count, links="NV18"):
    return [["X" if i == j else links for j in range(count)] for i in range(count)]


def numa(*nodes):
    return [(f"{n * 8}-{n * 8 + 7}", str(n), "", "N/A") for n in nodes]


def rocm_table(title, cells, names=None):
    names = names or [f"GPU{i}" for i in range(len(cells))]
    rows = [
        name.ljust(7) + "".join(str(c).ljust(13) for c in row) for name, row in zip(names, cells)
    ]
    head = "       " + "".join(name.ljust(13) for name in names)
    return "\n".join([f"{'=' * 20} {title} between two GPUs {'=' * 20}", head, *rows]) + "\n\n"


def amd_table(title, cells, names):
    head = " " * 13 + " ".join(name.ljust(12) for name in names)
    rows = [
        name.ljust(13) + " ".join(str(c).ljust(12) for c in row) for name, row in zip(names, cells)
    ]
    return "\n".join([f"{title} TABLE:", head, *rows]) + "\n\n"


def square(count, cell, diagonal="0"):
    return [[diagonal if i == j else cell(i, j) for j in range(count)] for i in range(count)]


def numa_lines(*nodes):
    return "".join(
        f"GPU[{k}]\t\t: (Topology) Numa Node: {n}\nGPU[{k}]\t\t: (Topology) Numa Affinity: {n}\n"
        for k, n in enumerate(nodes)
    )


def buses(count):
    return [f"0000:{16 + k:02x}:00.0" for k in range(count)]


@pytest.fixture
def paste(tmp_path):
    """Read a pasted text."""

    def reader(text) -> Topology:
        path = tmp_path / "paste.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_smi_text(path)

    return reader


def kinds(topology, kind):
    return [v for v, data in topology.node.nodes(data=True) if data["kind"] == kind]


def noted(topology, text):
    return any(text in note for note in topology.notes)


MIXED = matrix(
    [
        ["X", "NV2", "SYS", "PIX", "SYS"],
        ["NV2", "X", "SYS", "PXB", "SYS"],
        ["SYS", "SYS", "X", "SYS", "NODE"],
        ["PIX", "PXB", "SYS", "X", "SYS"],
        ["SYS", "SYS", "NODE", "SYS", "X"],
    ],
    names=["GPU0", "GPU1", "GPU2", "NIC0", "NIC1"],
    after=[*numa(0, 0, 1), (), ()],
)
"""Two GPUs and a NIC below one CPU, a GPU and a NIC below another."""


def test_a_matrix_with_nics_becomes_gpus_nics_switches_and_cpus(paste):
    topology = paste(MIXED)
    graph = topology.node
    assert gpus_of(graph) == ["gpu0", "gpu1", "gpu2"] and nics_of(graph) == ["nic0", "nic1"]
    assert nic_matrix(graph) == [["PIX", "SYS"], ["PXB", "SYS"], ["SYS", "PHB"]]
    assert len(kinds(topology, "cpu")) == 2
    assert [graph.nodes[v]["numa"] for v in gpus_of(graph)] == [0, 0, 1]


def test_a_pair_of_bonded_links_carries_their_count(paste):
    edge = paste(MIXED).node.edges["gpu0", "gpu1"]
    assert edge["link"] is LINKS["nvlink2"] and edge["lanes"] == 2


def test_more_links_than_a_gpu_has_become_one_switch(paste):
    topology = paste(matrix(switched(8)))
    assert kinds(topology, "switch") == ["nvswitch0"]
    assert topology.node.edges["gpu3", "nvswitch0"]["lanes"] == 18
    assert gpu_matrix(topology.node) == switched(8)
    assert topology.device.name == "h100" and noted(topology, "one switch")


def test_links_that_a_gpu_has_become_a_mesh(paste):
    topology = paste(matrix(switched(4, "NV4")))
    assert kinds(topology, "switch") == [] and topology.device.name == "a100"
    assert topology.node.edges["gpu0", "gpu3"]["lanes"] == 4


@pytest.mark.parametrize("count, links, name", [
    (2, "NV1", "v100"), (4, "NV2", "v100"), (16, "NV6", "v100"), (5, "NV1", "p100"),
    (4, "NV6", "h100"), (4, "NV4", "a100"), (2, "NV4", "a10"), (8, "NV12", "a100"),
    (8, "NV8", "a100"), (8, "NV17", "h100"), (3, "PHB", "generic"),
])  # fmt: skip
def test_the_device_is_inferred_from_link_counts_and_said(paste, count, links, name):
    topology = paste(matrix(switched(count, links)))
    assert topology.device.name == name
    assert noted(topology, "names no device" if name == "generic" else "device not named")


@pytest.mark.parametrize("line, name", [
    ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", "h100"),
    ("GPU 0,1,2,3: NVIDIA GB200", "gb200"),
    ("|   0  Tesla V100-SXM2-32GB           On  | 00000000:3D:00.0 Off |", "v100"),
    ("0, NVIDIA A100-SXM4-80GB, 81920 MiB", "a100"),
    ("GPU 0: NVIDIA L40S (UUID: GPU-1)", "l40s"),
    ("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)", "rtx4090"),
    ("GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-1)", "a10"),
    ("GPU 0: NVIDIA GeForce RTX 5090", "rtx-pro-6000"), ("| 0 | NVIDIA GH200 480GB |", "gh200"),
    ("GPU 0: NVIDIA H200", "h200"), ("GPU 0: NVIDIA H20", "h100"), ("GPU 0: Tesla T4", "v100"),
    ("GPU 0: NVIDIA B200", "b200"), ("GPU 0: Tesla P40", "p100"),
])  # fmt: skip
def test_a_device_named_beside_the_matrix_decides(paste, line, name):
    topology = paste(f"{line}\n{matrix(switched(2, 'PHB'))}")
    assert topology.device.name == name and not noted(topology, "device not named")


def test_one_gpu_with_fewer_links_shows_in_its_row_and_column(paste):
    cells = switched(4)
    for k in range(3):
        cells[3][k] = cells[k][3] = "NV17"
    topology = paste(matrix(cells))
    assert gpu_matrix(topology.node) == cells
    assert topology.node.edges["gpu3", "nvswitch0"]["lanes"] == 17


def test_one_pair_with_fewer_links_shows_in_its_cell(paste):
    cells = switched(4)
    cells[0][1] = cells[1][0] = "NV17"
    topology = paste(matrix(cells))
    assert gpu_matrix(topology.node) == cells and noted(topology, "gpu0-gpu1 has 17 links")


def test_two_groups_behind_switches_are_two_switches(paste):
    cells = square(6, lambda i, j: "NV18" if i // 3 == j // 3 else "SYS", "X")
    topology = paste(matrix(cells))
    assert kinds(topology, "switch") == ["nvswitch0", "nvswitch1"]
    assert gpu_matrix(topology.node) == cells


def test_gpus_of_one_numa_node_hang_from_one_cpu(paste):
    topology = paste(matrix(switched(4), after=numa(3, 3, 1, 1)))
    assert [topology.node.nodes[v]["numa"] for v in kinds(topology, "cpu")] == [3, 1]
    assert topology.node.has_edge("gpu1", "cpu0") and topology.node.has_edge("gpu2", "cpu1")


def test_without_numa_nodes_the_cpu_lists_tell_the_cpus(paste):
    cells = switched(4)
    text = matrix(cells, after=[("0-9",), ("0-9",), ("10-19",), ("10-19",)],
                  heads=("CPU Affinity",))  # fmt: skip
    assert len(kinds(paste(text), "cpu")) == 2


def cpus_and_links(topology):
    """Return the NUMA nodes of the CPUs, and the links between CPUs."""
    graph, cpus = topology.node, kinds(topology, "cpu")
    links = [graph.edges[a, b]["link"].name for a, b in combinations(cpus, 2)
             if graph.has_edge(a, b)]  # fmt: skip
    return [graph.nodes[v]["numa"] for v in cpus], links


ALL_SYS = square(8, lambda i, j: "SYS", "X")


@pytest.mark.parametrize("after", [
    numa(0, 0, 0, 0, 1, 1, 1, 1),
    [(f"{k // 4 * 48}-{k // 4 * 48 + 47}", str(k // 4), "", "N/A") for k in range(8)],
])  # fmt: skip
def test_gpus_that_are_all_sys_are_on_as_many_sockets_as_numa_nodes(paste, after):
    topology = paste(matrix(ALL_SYS, after=after))
    assert cpus_and_links(topology) == ([0, 1], ["upi-skl"])
    assert gpu_matrix(topology.node)[0] == ["X", *["PHB"] * 3, *["SYS"] * 4]
    assert noted(topology, "12 pair(s) that the text calls SYS, gpu0-gpu1 first, hang from one CPU")


def test_gpus_near_both_numa_nodes_hang_from_one_cpu(paste):
    topology = paste(matrix(ALL_SYS, after=[("0-127", "0-1", "", "N/A")] * 8))
    assert cpus_and_links(topology) == ([0], []) and noted(topology, "bounds the sockets")


def test_without_numa_nodes_gpus_that_are_all_sys_are_on_as_many_sockets_as_cpu_lists(paste):
    after = [(f"{k // 4 * 8}-{k // 4 * 8 + 7}",) for k in range(8)]
    topology = paste(matrix(ALL_SYS, after=after, heads=("CPU Affinity",)))
    assert cpus_and_links(topology)[1] == ["upi-skl"]
    assert gpu_matrix(topology.node)[0] == ["X", *["PHB"] * 3, *["SYS"] * 4]


@pytest.mark.parametrize("count", [3, 5, 8])
def test_gpus_that_are_all_sys_and_no_more_are_on_two_sockets(paste, count):
    topology = paste(matrix(square(count, lambda i, j: "SYS", "X")))
    assert cpus_and_links(topology) == ([0, 1], ["upi-skl"])
    assert noted(topology, "two sockets assumed")


def test_gpus_with_a_nic_each_and_all_else_sys_are_on_two_sockets(paste):
    cells = [["X" if i == j else "PIX" if abs(i - j) == 8 else "SYS" for j in range(16)]
             for i in range(16)]  # fmt: skip
    names = [f"GPU{k}" for k in range(8)] + [f"NIC{k}" for k in range(8)]
    assert cpus_and_links(paste(matrix(cells, names=names))) == ([0, 1], ["upi-skl"])
    topology = paste(matrix(cells, names=names, after=numa(*[k // 4 for k in range(8)]) + [()] * 8))
    assert cpus_and_links(topology) == ([0, 1], ["upi-skl"])
    assert nic_matrix(topology.node)[5][4:] == ["PHB", "PIX", "PHB", "PHB"]


def test_nics_that_are_sys_to_every_gpu_go_to_the_sockets_that_gpus_have(paste):
    cells = square(12, lambda i, j: "NV18" if max(i, j) < 4 else "SYS", "X")
    names = [f"GPU{k}" for k in range(4)] + [f"NIC{k}" for k in range(8)]
    topology = paste(matrix(cells, names=names, after=numa(0, 0, 1, 1) + [()] * 8))
    assert cpus_and_links(topology) == ([0, 1], ["upi-skl"])
    assert nic_matrix(topology.node)[0] == ["PHB"] * 4 + ["SYS"] * 4


def test_a_dgx_without_columns_has_half_its_devices_on_each_of_two_sockets(paste):
    def cell(i, j):
        i, j = min(i, j), max(i, j)
        if j < 8:
            return "NV12"
        return "PXB" if (i if i < 8 else i - 8) // 2 == (j - 8) // 2 and j < 16 else "SYS"

    names = [f"GPU{k}" for k in range(8)] + [f"NIC{k}" for k in range(10)]
    topology = paste(matrix(square(18, cell, "X"), names=names))
    assert cpus_and_links(topology) == ([0, 1], ["upi-skl"])
    near = ["PXB", "PXB", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS", "PHB", "SYS"]
    assert nic_matrix(topology.node)[0] == near


def test_nics_that_are_sys_to_gpus_of_one_numa_node_have_a_socket_of_their_own(paste):
    cells = [["X", "PHB", "SYS"], ["PHB", "X", "SYS"], ["SYS", "SYS", "X"]]
    topology = paste(matrix(cells, names=["GPU0", "GPU1", "NIC0"], after=[*numa(0, 0), ()]))
    assert cpus_and_links(topology)[0] == [0, 1] and nic_matrix(topology.node)[0] == ["SYS"]


def test_three_sockets_that_a_matrix_shows_by_its_near_pairs_are_three(paste):
    cells = square(6, lambda i, j: "NODE" if i // 2 == j // 2 else "SYS", "X")
    assert cpus_and_links(paste(matrix(cells))) == ([0, 1, 2], ["upi-skl"] * 3)


def grace(*nodes, heads=AFFINITY):
    """Return what stands behind the rows of GPUs of Grace boards."""
    return [(f"{n * 72}-{n * 72 + 71}", f"{n},{2 + 16 * n}-{17 + 16 * n}", "", str(2 + 8 * k))
            for k, n in enumerate(nodes)]  # fmt: skip


def test_a_tray_of_four_gpus_on_two_grace_cpus_is_gb200(paste):
    topology = paste(matrix(switched(4), after=grace(0, 0, 1, 1)))
    assert topology.device.name == "gb200" and noted(topology, "GB300")
    assert cpus_and_links(topology) == ([0, 1], ["nvlink-c2c"])
    edge = topology.node.edges["gpu0", "nvswitch0"]
    assert edge["raw"] == 900e9
    assert lower(topology).nranks == 4


def test_grace_cpus_show_by_their_cpu_lists_too(paste):
    after = [(cpus, numas, "", "N/A") for cpus, numas, _, _ in grace(0, 0, 1, 1)]
    topology = paste(matrix(switched(4), after=after))
    assert topology.device.name == "gb200"
    one = paste(matrix(switched(4), after=[("0-71", "0", "", "N/A")] * 4))
    assert one.device.name == "h100"  # any machine may have 72 CPUs


def test_one_gpu_a_grace_cpu_is_gh200(paste):
    topology = paste(matrix(switched(4, "NV6"), after=grace(0, 1, 2, 3)))
    assert topology.device.name == "gh200"
    assert topology.node.edges["gpu0", "gpu3"]["raw"] == 150e9


def test_a_named_gb300_has_grace_cpus(paste):
    topology = paste(f"GPU 0: NVIDIA GB300\n{matrix(switched(4), after=numa(0, 0, 1, 1))}")
    assert topology.device.name == "gb300" and cpus_and_links(topology)[1] == ["nvlink-c2c"]


def test_bridged_pairs_of_twelve_links_name_what_looks_alike(paste):
    cells = square(8, lambda i, j: "NV12" if i // 2 == j // 2 else "SYS", "X")
    topology = paste(matrix(cells, after=numa(0, 0, 0, 0, 1, 1, 1, 1)))
    assert noted(topology, "H100 NVL") and topology.node.edges["gpu0", "gpu1"]["raw"] == 300e9


def test_gb10_is_no_rtx_pro(paste):
    topology = paste("GPU 0: NVIDIA GB10 (UUID: GPU-1)\n\tGPU0\tCPU Affinity\nGPU0\tX\t0-19\n")
    assert topology.device.name == "generic" and noted(topology, "GB10")


def test_a_matrix_of_links_alone_has_no_host(paste):
    topology = paste(matrix(switched(2)))
    assert kinds(topology, "cpu") == [] and noted(topology, "places no GPU on a host")


def test_a_cpu_list_may_be_empty(paste):
    topology = paste(matrix(switched(2), after=[("", "0", "", "N/A"), ("", "1", "", "N/A")]))
    assert len(kinds(topology, "cpu")) == 2


def test_blanks_for_tabs_read_the_same(paste):
    blanks = re.sub("\t+", "     ", MIXED)
    same = paste(blanks)
    assert nic_matrix(same.node) == nic_matrix(paste(MIXED).node)
    assert [same.node.nodes[v]["numa"] for v in gpus_of(same.node)] == [0, 0, 1]


def test_memory_on_a_numa_node_of_its_own_is_said(paste):
    text = matrix(switched(2), after=[("0-71", "0,2-9", "", "2"), ("72-143", "1,18", "", "10")])
    topology = paste(text)
    assert noted(topology, "coherent CPU link exists")
    assert [topology.node.nodes[v]["numa"] for v in gpus_of(topology.node)] == [0, 1]


@pytest.mark.parametrize("dress", [
    lambda text: f"$ nvidia-smi topo -m\n```\n{text}```\nand then it hangs\n",
    lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    lambda text: text.replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("ID\n", "ID\x1b[0m\n", 1),
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace("\n", "\n\n"),
    lambda text: "\ufeff" + text,
    lambda text: "".join(f"node-3: {line}\n" for line in text.splitlines()),
    lambda text: "NVIDIA Topology: \n" + text + "\n\nLegend:\n\n  X    = Self\n  NV#  = bonded\n",
    lambda text: text + "\n \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n",
])  # fmt: skip
def test_what_pasting_adds_does_not_matter(paste, dress):
    dressed = dress(MIXED)
    assert is_smi_text(dressed)
    assert nic_matrix(paste(dressed).node) == nic_matrix(paste(MIXED).node)


def test_a_table_of_markdown_is_read(paste):
    topology = paste("| | GPU0 | GPU1 |\n|---|:---|---|\n| **GPU0** | X | NV4 |\n"
                     "| **GPU1** | NV4 | X |\n")  # fmt: skip
    assert gpu_matrix(topology.node) == [["X", "NV4"], ["NV4", "X"]]


def test_nics_have_the_names_of_the_legend(paste):
    topology = paste(f"{MIXED}\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n")
    assert [topology.node.nodes[v]["name"] for v in nics_of(topology.node)] == [
        "mlx5_0", "mlx5_bond_0"
    ]  # fmt: skip


def test_nic_rows_may_be_missing(paste):
    topology = paste("\n".join(MIXED.splitlines()[:4]))
    assert nic_matrix(topology.node) == [["PIX", "SYS"], ["PXB", "SYS"], ["SYS", "PHB"]]
    assert noted(topology, "NIC rows missing")


def test_cells_of_old_versions_are_read(paste):
    cells = [["X", "PSB", "SOC"], ["PSB", "X", "SOC"], ["SOC", "SOC", "X"]]
    assert gpu_matrix(paste(matrix(cells)).node)[0] == ["X", "PIX", "SYS"]


def test_of_several_matrices_the_first_is_read_and_it_is_said(paste):
    topology = paste(matrix(switched(2)) + "\n" + matrix(switched(4)))
    assert topology.gpus_per_node == 2 and noted(topology, "2 matrices")


def test_a_matrix_that_contradicts_itself_is_read_as_the_nearer_and_it_is_said(paste):
    cells = [["X", "PHB", "SYS"], ["PHB", "X", "PHB"], ["SYS", "PHB", "X"]]
    topology = paste(matrix(cells))
    assert gpu_matrix(topology.node)[0] == ["X", "PHB", "PHB"] and noted(topology, "contradicts")


def test_what_lscpu_prints_beside_it_tells_the_link_between_cpus(paste):
    for vendor, link in (("AuthenticAMD", "xgmi-cpu"), ("GenuineIntel", "upi-spr")):
        lscpu = f"Vendor ID:  {vendor}\n  CPU family:  6\n  Model:  143\n"
        node = paste(lscpu + MIXED).node
        assert node.edges["cpu0", "cpu1"]["link"] is LINKS[link]


@pytest.mark.parametrize("text, line, what", [
    (MIXED.replace("NV2\tX", "NV3\tX"), 3, "both directions must agree"),
    (MIXED.replace("NODE\t8", "FAR\t8"), 4, "'FAR' is no known cell"),
    (MIXED.replace("GPU1\tNV2", "GPU0\tNV2"), 3, "two rows 'GPU0'"),
    (MIXED.replace("\tGPU0\tGPU1", "\tGPU0\tGPU0", 1), 1, "two columns 'GPU0'"),
    (MIXED.replace("PXB\tSYS\t0-7", "PXB\t0-7"), 3, "has 4 cells"),
    (MIXED.replace("GPU2\tSYS\tSYS\tX", "GPU2\tSYS\tSYS\tSYS"), 4, "expected on the diagonal"),
    ("\n".join(MIXED.splitlines()[:3]), 3, "ends before its row 'GPU2'"),
    (MIXED.replace("PXB", "NV1"), 3, "a NIC has a PCIe class"),
    (MIXED.replace("NV2", "NV0"), 2, "NV0 joins nothing"),
    ("\tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n", 1, "topo -p2p"),
    ("nothing of the kind\n", 1, "no topology found"),
    (rocm_table("Weight", square(2, lambda i, j: 15 + i)), 4, "both directions must agree"),
    (rocm_table("Hops", square(2, lambda i, j: "one")), 3, "'one' is no known cell"),
    (rocm_table("Hops", [[0, 1]], ["GPU0", "GPU1"]), 3, "ends before its row 'GPU1'"),
    (rocm_table("Hops", square(2, lambda i, j: 1)) + rocm_table("Weight",
     square(3, lambda i, j: 15)), 7, "tables of one machine"),
    (amd_table("ACCESS", [["ENABLED"] * 2] * 2, buses(2)), 2, "no table of weights"),
    (rocm_table("Hops", square(2, lambda i, j: 2)) + numa_lines(0, 1, 1).replace("GPU[2]", "GPU[1]")
     .replace("Node: 1", "Node: 3", 1), 10, "GPU1 is on NUMA node 1"),
    ('[\n {"gpu": 0, "links": [{"gpu": 0, "num_hops": 0,}\n', 2, "not JSON"),
    ('[{"gpu": 0, "hops": {"gpu_1": 1}, "link_accessibility": {}}, {"gpu": 1}]', 1,
     "has none from"),
    ('[{"gpu": "x", "num_hops": 1}]', 1, "no table of weights"),
    ('[1]\n"num_hops": 1', 1, "neither amd-smi's list"),
])  # fmt: skip
def test_a_broken_paste_is_one_error_with_file_and_line(paste, text, line, what):
    with pytest.raises(FormatError) as caught:
        paste(text)
    message = str(caught.value)
    assert f"paste.txt:{line}: " in message and what in message and "\n" not in message


def test_a_folder_a_missing_file_and_a_huge_one_are_refused(paste, tmp_path):
    with pytest.raises(FormatError, match="no regular file"):
        read_smi_text(tmp_path)
    with pytest.raises(FormatError, match="no regular file"):
        read_smi_text(tmp_path / "none.txt")
    with pytest.raises(FormatError, match="keep the tables only"):
        paste(b" " * (3 << 20))


def test_a_matrix_of_more_devices_than_a_host_has_is_refused(paste):
    names = [f"GPU{i}" for i in range(300)]
    with pytest.raises(FormatError, match="limit 256"):
        paste("\t" + "\t".join(names) + "\nGPU0\tX\tNV1\n")


def test_a_mesh_of_xgmi_is_read_from_the_four_tables(paste):
    text = (
        "======= ROCm System Management Interface =======\n"
        + rocm_table("Weight", square(8, lambda i, j: 15))
        + rocm_table("Hops", square(8, lambda i, j: 1))
        + rocm_table("Link Type", square(8, lambda i, j: "XGMI"))
        + "===== Numa Nodes =====\n" + numa_lines(0, 0, 0, 0, 1, 1, 1, 1)
        + "===== End of ROCm SMI Log =====\n"
    )  # fmt: skip
    topology = paste(text)
    assert gpu_matrix(topology.node) == square(8, lambda i, j: "XGMI1", "X")
    assert topology.device.name == "mi300x" and len(kinds(topology, "cpu")) == 2
    assert topology.node.edges["gpu0", "gpu7"]["link"] is LINKS["xgmi-mi300"]
    assert lower(topology).nranks == 8


@pytest.mark.parametrize("title, value", [("Weight", 15), ("Hops", 1), ("Link Type", "XGMI")])
def test_one_of_the_tables_is_enough(paste, title, value):
    topology = paste(rocm_table(title, square(4, lambda i, j: value)))
    assert gpu_matrix(topology.node) == square(4, lambda i, j: "XGMI1", "X")


def test_pcie_pairs_hang_from_one_cpu_or_two_by_hops(paste):
    def text(title, near, far):
        return rocm_table(title, square(4, lambda i, j: near if i // 2 == j // 2 else far))

    expected = square(4, lambda i, j: "PHB" if i // 2 == j // 2 else "SYS", "X")
    assert gpu_matrix(paste(text("Hops", 2, 3)).node) == expected
    assert gpu_matrix(paste(text("Weight", 40, 72)).node) == expected
    assert gpu_matrix(paste(text("Weight", 40, 52)).node) == expected
    types = text("Link Type", "PCIE", "PCIE") + numa_lines(0, 0, 1, 1)
    assert gpu_matrix(paste(types).node) == expected


def test_two_hives_are_joined_through_the_host(paste):
    def cell(near, far):
        return lambda i, j: near if i // 4 == j // 4 else far

    topology = paste(rocm_table("Hops", square(8, cell(1, 3)))
                     + rocm_table("Link Type", square(8, cell("XGMI", "PCIE"))))  # fmt: skip
    assert gpu_matrix(topology.node) == square(8, cell("XGMI1", "SYS"), "X")
    assert topology.device.name == "mi100"


def test_a_pair_that_lost_its_link_shows(paste):
    def cell(i, j):
        return "PCIE" if {i, j} == {3, 5} else "XGMI"

    topology = paste(rocm_table("Link Type", square(8, cell)))
    assert topology.device.name == "mi300x"
    assert not topology.node.has_edge("gpu3", "gpu5") and topology.node.has_edge("gpu3", "gpu4")
    assert [row.count("XGMI1") for row in gpu_matrix(topology.node)] == [7, 7, 7, 6, 7, 6, 7, 7]


def test_weights_of_two_links_are_no_direct_link(paste):
    def cell(i, j):
        return 15 if abs(i - j) in (1, 3) else 30

    topology = paste(rocm_table("Weight", square(4, cell))
                     + rocm_table("Link Type", square(4, lambda i, j: "XGMI")))  # fmt: skip
    assert gpu_matrix(topology.node)[0] == ["X", "XGMI1", "NVB", "XGMI1"]
    assert topology.device.name == "mi250x" and noted(topology, "relayed by peers")


def test_weights_of_nought_say_nothing(paste):
    tables = (("WEIGHT", 0, "0"), ("LINK TYPE", "XGMI", "SELF"), ("NUMA BW", "0-0", "N/A"))
    text = "".join(
        amd_table(title, square(8, lambda i, j: cell, own), buses(8))  # noqa: B023
        for title, cell, own in tables
    )
    assert gpu_matrix(paste(text).node) == square(8, lambda i, j: "XGMI1", "X")


def test_bandwidths_tell_links_side_by_side_and_pairs_without_any(paste):
    def rate(i, j):
        return {1: "50000-200000", 3: "50000-50000"}.get(i ^ j, "0-0")

    topology = paste(amd_table("HOPS", square(4, lambda i, j: 1), buses(4))
                     + amd_table("NUMA BW", square(4, rate, "N/A"), buses(4)))  # fmt: skip
    assert gpu_matrix(topology.node)[0] == ["X", "XGMI4", "NVB", "XGMI1"]
    assert not noted(topology, "side by side")


def test_bandwidths_alone_tell_direct_links(paste):
    def rate(i, j):
        return {1: "50000-200000", 3: "50000-50000"}.get(i ^ j, "0-0")

    text = rocm_table("Bandwidth", square(4, rate, "N/A")).replace(" between two GPUs", "")
    topology = paste(text + "Format: min-max; Units: mps\n")
    assert gpu_matrix(topology.node)[0] == ["X", "XGMI4", "NVB", "XGMI1"]
    assert topology.device.name == "mi250x" and noted(topology, "no bandwidth between 2 pair(s)")
    assert not noted(topology, "more than")


GCDS = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 6): 2, (2, 4): 2, (0, 2): 1, (1, 3): 1,
        (1, 5): 1, (3, 7): 1, (4, 6): 1, (5, 7): 1}  # fmt: skip
NAMED = "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI250X\n"


def gcd_weights(pairs):
    return rocm_table(
        "Weight", square(8, lambda i, j: 15 if (min(i, j), max(i, j)) in pairs else 30)
    )


@pytest.mark.parametrize("name", [NAMED, "", "Name: gfx90a\n"])
def test_dies_wired_as_usual_have_the_usual_links(paste, name):
    topology = paste(name + gcd_weights(GCDS))
    expected = square(8, lambda i, j: f"XGMI{GCDS[min(i, j), max(i, j)]}"
                      if (min(i, j), max(i, j)) in GCDS else "NVB", "X")  # fmt: skip
    assert gpu_matrix(topology.node) == expected == gpu_matrix(load("mi250x-4").node)
    assert noted(topology, "as in the usual node of MI250X")
    assert topology.node.edges["gpu0", "gpu1"]["link"] is LINKS["xgmi-mi200-package"]


def test_dies_wired_otherwise_have_four_links_in_the_package(paste):
    pairs = [pair for pair in GCDS if pair != (0, 6)]
    topology = paste(NAMED + gcd_weights(pairs))
    assert gpu_matrix(topology.node)[2] == ["XGMI1", "NVB", "X", "XGMI4", "XGMI1", *["NVB"] * 3]
    assert noted(topology, "1 elsewhere assumed")


def test_dies_whose_direct_pairs_are_not_told_are_wired_as_usual(paste):
    topology = paste(NAMED + rocm_table("Hops", square(8, lambda i, j: 1)))
    assert gpu_matrix(topology.node) == gpu_matrix(load("mi250x-4").node)
    assert noted(topology, "does not tell direct ones")


@pytest.mark.parametrize(
    "name, device", [("", "mi210"), ("Name: gfx90a\n", "mi210"), (NAMED, "mi250x")]
)
def test_four_gpus_joined_alike_are_mi250x_only_by_name(paste, name, device):
    topology = paste(name + rocm_table("Weight", square(4, lambda i, j: 15))
                     + rocm_table("Hops", square(4, lambda i, j: 1)))  # fmt: skip
    assert topology.device.name == device
    assert name == NAMED or noted(topology, "MI250X")


def test_gfx90a_without_xgmi_is_no_mi250x(paste):
    topology = paste("Name: gfx90a\n" + rocm_table("Hops", square(4, lambda i, j: 3)))
    assert topology.device.name == "mi210" and noted(topology, "MI250X (GCD) has this arch too")


def test_a_product_says_more_than_its_arch(paste):
    text = "  Name:  gfx90a\n  Marketing Name:  AMD Instinct MI210\n  Name:  gfx90a\n"
    assert paste(text + rocm_table("Hops", square(2, lambda i, j: 1))).device.name == "mi210"


@pytest.mark.parametrize("cell, rate, note", [
    ("50000-200000", 200e9, "3.12 xgmi-mi300 links"),
    ("128000-128000", 128e9, "14 xgmi-mi300 links, more"),
    ("100000-100000", 100e9, "1.56 links"), ("45000-45000", 45e9, "0.703 links"),
    ("64000-64000", 64e9, "MI325X"), ("76800-76800", 76.8e9, "MI350X"),
    ("0-64000", 64e9, "MI325X"), ("50000-50000", 64e9, "older drivers"),
])  # fmt: skip
def test_a_bandwidth_is_used_and_what_it_is_taken_for_is_said(paste, cell, rate, note):
    topology = paste(amd_table("HOPS", square(8, lambda i, j: 1), buses(8))
                     + amd_table("BW", square(8, lambda i, j: cell, "N/A"), buses(8))
                     .replace("BW TABLE", "NUMA BW TABLE"))  # fmt: skip
    assert topology.node.edges["gpu0", "gpu5"]["raw"] == pytest.approx(rate)
    assert noted(topology, note) and noted(topology, "device not named")


def test_amd_smi_rows_name_bus_ids(paste):
    topology = paste(amd_table("LINK TYPE", square(2, lambda i, j: "PCIE", "SELF"), buses(2)))
    assert [topology.node.nodes[v]["busid"] for v in gpus_of(topology.node)] == buses(2)


def test_the_two_dies_of_a_package_have_its_faster_links(paste):
    text = amd_table("NUMA BW", square(2, lambda i, j: "50000-200000", "N/A"), buses(2))
    node = paste(text + amd_table("HOPS", square(2, lambda i, j: 1), buses(2))).node
    assert node.edges["gpu0", "gpu1"]["link"] is LINKS["xgmi-mi200-package"]


def test_a_text_that_ends_behind_a_title_is_said_to_be_cut(paste):
    topology = paste(rocm_table("Weight", square(2, lambda i, j: 15))
                     + "===== Hops between two GPUs =====\n")  # fmt: skip
    assert noted(topology, "cut short") and noted(topology, "no link type table")


def test_of_tables_that_come_twice_the_first_is_read_and_it_is_said(paste):
    once = rocm_table("Link Type", square(2, lambda i, j: "XGMI"))
    topology = paste(once + rocm_table("Link Type", square(2, lambda i, j: "PCIE")))
    assert gpu_matrix(topology.node)[0] == ["X", "XGMI1"] and noted(topology, "twice")


def test_tables_that_do_not_tell_the_path_are_passed_over(paste):
    extra = "".join(
        amd_table(title, square(2, lambda i, j: cell, "SELF"), buses(2))  # noqa: B023
        for title, cell in (("CACHE COHERENCY", "C"), ("ATOMICS", "64,32"), ("DMA", "T"),
                            ("BI-DIRECTIONAL", "T"))
    )  # fmt: skip
    types = amd_table("LINK TYPE", square(2, lambda i, j: "XGMI", "SELF"), buses(2))
    access = amd_table("ACCESS", [["ENABLED"] * 2] * 2, buses(2))
    assert gpu_matrix(paste(access + types + extra).node)[0] == ["X", "XGMI1"]


def test_a_pair_without_a_link_type_is_not_joined(paste):
    topology = paste(amd_table("LINK TYPE", square(2, lambda i, j: "N/A", "SELF"), buses(2)))
    assert gpu_matrix(topology.node)[0] == ["X", "DIS"] and noted(topology, "not joined")


def test_a_device_named_beside_the_tables_decides(paste):
    types = rocm_table("Link Type", square(8, lambda i, j: "XGMI"))
    for line, name in (
        ("| 0000:26:00.0    AMD Instinct MI355X | N/A |", "mi355x"),
        ("GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X VF", "mi300x"),
        ("  Name:                    gfx90a", "mi250x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI350X", "mi350x"),
    ):
        assert paste(f"{line}\n{types}").device.name == name


def links_json(count, link):
    names = buses(count)
    return [
        {"gpu": i, "bdf": names[i],
         "links": [{"gpu": j, "bdf": names[j], **link(i, j)} for j in range(count)]}
        for i in range(count)
    ]  # fmt: skip


def test_json_of_three_kinds_reads_as_the_tables_do(paste):
    listed = links_json(4, lambda i, j: {
        "weight": 15, "link_type": "SELF" if i == j else "XGMI", "num_hops": int(i != j),
        "bandwidth": "N/A" if i == j else "50000-100000",
    })  # fmt: skip
    mapped = [
        {"gpu": i, "link_type": {f"gpu_{j}": "SELF" if i == j else "XGMI" for j in range(4)},
         "link_accessibility": {}} for i in range(4)
    ]  # fmt: skip
    drm = {"system": {
        f"(Topology) Link type between DRM devices {i} and {j}": "XGMI"
        for i, j in combinations(range(4), 2)
    }}  # fmt: skip
    for data, cell in ((listed, "XGMI2"), (mapped, "XGMI1"), (drm, "XGMI1")):
        text = "$ amd-smi topology --json\n" + json.dumps(data, indent=4)
        assert is_smi_text(text)
        assert gpu_matrix(paste(text).node) == square(4, lambda i, j: cell, "X")  # noqa: B023


@pytest.mark.parametrize("text", [
    "<system version='1'>\n\tGPU0\tGPU1\n", "name: x\ngpus: 8\nsummary: GPU0 GPU1 and so on\n",
    "{}", "", "GPU0 and GPU1 hang\nGPU1 is fine\n", '{"nodes": [], "links": []}',
    "weight between two GPUs is 15\n",
])  # fmt: skip
def test_other_texts_are_not_taken_for_a_topology(text):
    assert not is_smi_text(text)


def rendered(topology):
    """Return a machine's matrices in the style of nvidia-smi."""
    graph = topology.node
    gpus, nics = gpus_of(graph), nics_of(graph)
    names = [v.upper() for v in gpus] + [v.upper() for v in nics]
    rows = [a + b for a, b in zip(gpu_matrix(graph), nic_matrix(graph))]
    return matrix(rows, names=names)


def same(paste, topology):
    again = paste(rendered(topology))
    assert gpu_matrix(again.node) == gpu_matrix(topology.node)
    assert nic_matrix(again.node) == nic_matrix(topology.node)


@pytest.mark.parametrize("name", ["h100-8", "mi300x-8", "mi250x-4"])
def test_a_shipped_machine_comes_back_from_its_matrix(paste, name):
    same(paste, load(name))


@st.composite
def machines(draw):
    """Draw a node: CPUs with a PCI tree below, GPUs and NICs anywhere, scale-up links or none."""
    graph = new_graph("random")
    cpus = draw(st.integers(0, 2))  # a matrix may not tell three from two
    for k in range(cpus):
        graph.add_node(f"cpu{k}", kind="cpu", host=0, numa=k)
    for a, b in combinations(range(cpus), 2):
        add_link(graph, f"cpu{a}", f"cpu{b}", LINKS["upi-spr"])
    places = [f"cpu{k}" for k in range(cpus)]
    for k in range(draw(st.integers(0, 4))):
        graph.add_node(f"pci{k}", kind="pci", host=0)
        if places and draw(st.booleans()):
            add_pcie(graph, draw(st.sampled_from(places)), f"pci{k}", LINKS["pcie5-x16"])
        places.append(f"pci{k}")
    gpus = add_gpus(graph, draw(st.integers(1, 6)))
    nics = [f"nic{k}" for k in range(draw(st.integers(0, 4)))]
    for k, nic in enumerate(nics):
        graph.add_node(nic, kind="nic", index=k, host=0, port=LINKS["ib-400g"])
    for device in gpus + nics:
        if device in gpus and cpus and draw(st.integers(0, 4)) == 0:
            add_link(graph, device, f"cpu{draw(st.integers(0, cpus - 1))}", LINKS["nvlink-c2c"])
        elif places and (device in nics or draw(st.booleans())):
            add_pcie(graph, draw(st.sampled_from(places)), device, LINKS["pcie5-x16"])
    link = draw(st.sampled_from(["nvlink4", "xgmi-mi300", "ualink-200g"]))
    if draw(st.booleans()) and link != "xgmi-mi300":
        members = draw(st.lists(st.sampled_from(gpus), unique=True))
        lanes = draw(st.sampled_from([2, 6, 12, 18]))
        add_switches(graph, members, LINKS[link], lanes, draw(st.integers(1, 3)), 1e-7)
    else:
        for a, b in combinations(gpus, 2):
            lanes = draw(st.sampled_from([0, 0, 1, 2, 4]))
            if lanes:
                add_link(graph, a, b, LINKS[link], lanes)
    return Topology("random", graph, load("h100-8").device)


calm = settings(max_examples=60, deadline=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@calm
@given(machines())
def test_any_machine_comes_back_from_its_matrix(paste, topology):
    same(paste, topology)


@st.composite
def host_matrices(draw):
    """Draw a matrix of any classes, GPUs first, and NUMA nodes of the GPUs or none."""
    gpus, nics = draw(st.integers(1, 7)), draw(st.integers(0, 4))
    classes = draw(st.sampled_from([["SYS"], ["SYS", "PIX"], ["SYS", "NODE", "PXB", "PIX", "PHB"]]))
    cell = {pair: draw(st.sampled_from(classes)) for pair in combinations(range(gpus + nics), 2)}
    cells = square(gpus + nics, lambda i, j: cell[min(i, j), max(i, j)], "X")
    names = [f"GPU{k}" for k in range(gpus)] + [f"NIC{k}" for k in range(nics)]
    nodes = draw(st.none() | st.lists(st.integers(0, 3), min_size=gpus, max_size=gpus))
    after = None if nodes is None else numa(*nodes) + [()] * nics
    return matrix(cells, names=names, after=after), nodes


@calm
@given(host_matrices())
def test_no_matrix_has_more_sockets_than_numa_nodes_and_each_two_share_one_link(paste, case):
    text, nodes = case
    cpus, links = cpus_and_links(paste(text))
    assert nodes is None or len(cpus) <= max(len(set(nodes)), 2 if len(set(nodes)) < 2 else 0)
    assert len(links) == len(cpus) * (len(cpus) - 1) // 2


BASES = [
    MIXED, re.sub("\t+", "   ", MIXED),
    rocm_table("Weight", square(3, lambda i, j: 15)) + rocm_table("Link Type", square(
        3, lambda i, j: "XGMI")) + numa_lines(0, 0, 1),
    amd_table("HOPS", square(3, lambda i, j: 1), buses(3)) + amd_table(
        "NUMA BW", square(3, lambda i, j: "50000-100000", "N/A"), buses(3)),
    json.dumps(links_json(2, lambda i, j: {"num_hops": 1, "link_type": "XGMI"}), indent=1),
]  # fmt: skip


@calm
@given(st.sampled_from(BASES), st.data())
def test_a_mutated_paste_is_read_or_refused_with_one_line(paste, base, data):
    words = re.split(r"(\s+)", base)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        new = data.draw(st.one_of(
            st.sampled_from(words), st.just(""), st.just("\n"), st.text(max_size=6),
            st.sampled_from(["NV999", "XGMI0.001", "-1", "9" * 20, "0-999999999", "GPU9999"]),
        ))  # fmt: skip
        words[at] = new
    text = "".join(words)
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    try:
        topology = paste(text.encode("utf-8", "surrogatepass"))
    except FormatError as error:
        assert "paste.txt" in str(error) and str(error).isprintable()
    else:
        assert gpu_matrix(topology.node) and all(note.isprintable() for note in topology.notes)
