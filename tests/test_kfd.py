"""A copy of the AMD kernel driver's topology becomes a graph, or one FormatError with its file."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError
from rccl_py.links import LINKS
from rccl_py.topology import load, lower
from rccl_py.topology.build import Topology, gpus_of, nics_of
from rccl_py.topology.formats.kfd.reader import is_kfd, read_kfd
from rccl_py.topology.formats.pci_tree import pcie_of_transfers
from rccl_py.topology.validate import validate

MI300X = {"gfx_target_version": 90402, "device_id": 0x74A1, "simd_count": 1216, "num_xcc": 8}
MI250X = {"gfx_target_version": 90010, "device_id": 0x7408, "simd_count": 440, "num_xcc": 1}
MI210 = {"gfx_target_version": 90010, "device_id": 0x740F, "simd_count": 416, "num_xcc": 1}
XGMI, PCIE, HT = 11, 2, 1


def properties(path: Path, values: dict[str, object]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "properties").write_text("".join(f"{k} {v}\n" for k, v in values.items()))


class Kfd:
    """A kfd folder being written, node by node; links are numbered as they come."""

    def __init__(self, root: Path) -> None:
        self.root, self.links, self.count = root, dict[int, int](), 0

    def node(self, **values: object) -> int:
        own = {"cpu_cores_count": 0, "simd_count": 0, "simd_per_cu": 4, "vendor_id": 0x1002}
        properties(self.root / str(self.count), {**own, **values})
        self.count += 1
        return self.count - 1

    def cpu(self) -> int:
        return self.node(cpu_cores_count=64, simd_per_cu=0, vendor_id=0)

    def gpu(self, location: int, device: dict[str, object] = MI300X, **values: object) -> int:
        return self.node(location_id=location, unique_id=location >> 3, **{**device, **values})

    def link(self, a: int, b: int, kind: int, most: int = 0, least: int = 0, weight: int = 15,
             both: bool = True) -> None:  # fmt: skip
        for source, target in ((a, b), (b, a)) if both else ((a, b),):
            k = self.links[source] = self.links.get(source, -1) + 1
            properties(self.root / str(source) / "io_links" / str(k), {
                "type": kind, "node_from": source, "node_to": target, "weight": weight,
                "min_bandwidth": least, "max_bandwidth": most, "flags": 1,
            })  # fmt: skip


def write_kfd(root: Path, topology: Topology, device: dict[str, object], each: int) -> None:
    """Write the scale-up links of a machine as the driver would: `each` MB/s a link."""
    kfd = Kfd(root)
    cpu, graph = kfd.cpu(), topology.node
    node = {name: kfd.gpu(0x0100 * (k + 1), device) for k, name in enumerate(gpus_of(graph))}
    for name, number in node.items():
        kfd.link(cpu, number, PCIE, most=64000, least=312, weight=20)
        for peer in graph.successors(name):
            if peer in node and node[peer] > number:
                most = round(graph.edges[name, peer]["lanes"]) * each
                kfd.link(number, node[peer], XGMI, most=most, least=each)


def scale_up(topology: Topology) -> dict[tuple[str, str], float]:
    edges = topology.node.edges(data=True)
    return {(a, b): d["bandwidth"] for a, b, d in edges if d["link"].medium == "xgmi"}


def two(root: Path, **link: int) -> Kfd:
    """Write one CPU and two MI300X."""
    kfd = Kfd(root)
    kfd.cpu(), kfd.gpu(0x100), kfd.gpu(0x200)
    kfd.link(0, 1, PCIE, most=64000, weight=20)
    kfd.link(0, 2, PCIE, most=64000, weight=20)
    kfd.link(1, 2, XGMI, **{"most": 64000, "least": 64000, **link})
    return kfd


def partitioned(root: Path, gpus: int = 2, parts: int = 8) -> None:
    """Write GPUs in CPX mode as kernel 6.x does: 13 and 819200 inside, 41 and 0 between."""
    kfd = Kfd(root)
    cpu, owner = kfd.cpu(), {}
    for g in range(gpus):
        for p in range(parts):
            number = kfd.gpu(0x2700 + 0x0800 * g + p, MI300X, simd_count=152, num_xcc=1)
            kfd.link(cpu, number, PCIE, most=64000, weight=20)
            for other, home in owner.items():
                rate = 819200 if home == g else 0
                kfd.link(other, number, XGMI, rate, rate, weight=13 if home == g else 41)
            owner[number] = g


@pytest.mark.parametrize("machine, device, each", [
    ("mi300x-8", MI300X, 64_000), ("mi250x-4", MI250X, 50_000),
])  # fmt: skip
def test_a_machine_written_as_kfd_has_the_same_scale_up_when_read_back(
    tmp_path, machine, device, each
):
    known = load(machine)
    write_kfd(tmp_path / "nodes", known, device, each)
    read = read_kfd(tmp_path)
    assert scale_up(read) == pytest.approx(scale_up(known))
    assert read.device.name == known.device.name


@pytest.mark.parametrize("inside", ["", "nodes", "topology/nodes", "kfd/topology/nodes"])
def test_the_folder_may_begin_at_or_above_the_nodes(tmp_path, inside):
    two(tmp_path / inside)
    assert is_kfd(tmp_path) and len(gpus_of(read_kfd(tmp_path).node)) == 2


def test_other_folders_files_and_names_are_not_kfd(tmp_path):
    (tmp_path / "nodes" / "x").mkdir(parents=True)
    (tmp_path / "file").write_text("nodes")
    assert not any(is_kfd(p) for p in (tmp_path, tmp_path / "file", tmp_path / "no", Path("\0")))


def test_the_topology_has_the_name_of_the_first_folder_of_its_own(tmp_path):
    two(tmp_path / "host7" / "kfd" / "topology" / "nodes")
    assert read_kfd(tmp_path / "host7" / "kfd").name == "host7"


def mesh(root: Path, count: int = 4, later: bool = False) -> None:
    """Write a mesh of MI300X on one CPU; later: each link is listed by its later GPU only."""
    kfd = Kfd(root)
    kfd.cpu()
    for k in range(count):
        kfd.link(0, kfd.gpu(0x100 * (k + 1)), PCIE, most=64000, weight=20)
    for b in range(2, count + 1):
        for a in range(1, b):
            kfd.link(b, a, XGMI, most=64000, least=64000, both=not later)


@pytest.mark.parametrize("count", [2, 4])
def test_a_link_that_one_gpu_does_not_list_is_kept_one_way_and_said(tmp_path, count):
    mesh(tmp_path, count)
    (gone,) = [link for link in (tmp_path / "1" / "io_links").iterdir()
               if "node_to 2\n" in (link / "properties").read_text()]  # fmt: skip
    shutil.rmtree(gone)
    topology = read_kfd(tmp_path)
    assert topology.node.has_edge("gpu1", "gpu0") and not topology.node.has_edge("gpu0", "gpu1")
    assert any("gpu1 lists xGMI to gpu0, which lists none back" in n for n in topology.notes)
    assert lower(topology).nranks == count


def test_a_link_of_one_way_is_a_warning_of_validate(tmp_path):
    mesh(tmp_path)
    (gone,) = [link for link in (tmp_path / "1" / "io_links").iterdir()
               if "node_to 2\n" in (link / "properties").read_text()]  # fmt: skip
    shutil.rmtree(gone)
    warned = [f.where for f in validate(read_kfd(tmp_path)) if f.severity == "warning"]
    assert any("GPU0" in where and "GPU1" in where for where in warned)


def test_links_that_only_the_later_gpus_list_are_both_ways(tmp_path):
    mesh(tmp_path, later=True)
    topology = read_kfd(tmp_path)
    assert len(scale_up(topology)) == 12
    assert any("by the later GPU of each two only" in note for note in topology.notes)


def test_gpus_keep_the_drivers_order_bus_ids_and_numa_node(tmp_path):
    kfd = Kfd(tmp_path)
    kfd.cpu(), kfd.cpu()
    kfd.gpu(0xC100, domain=1), kfd.gpu(0x0500)
    kfd.link(0, 1, HT, weight=32)
    kfd.link(0, 3, PCIE, most=32000), kfd.link(1, 2, PCIE, most=32000)
    nodes = read_kfd(tmp_path).node.nodes
    assert [nodes[g]["busid"] for g in ("gpu0", "gpu1")] == ["0001:c1:00.0", "0000:05:00.0"]
    assert [nodes[g]["numa"] for g in ("gpu0", "gpu1")] == [1, 0]
    assert nodes["gpu0"]["arch"] == "gfx942"


@pytest.mark.parametrize("rate, name, lanes", [
    (64000, "pcie5-x16", 1), (32000, "pcie4-x16", 1), (16000, "pcie3-x16", 1),
    (128000, "pcie6-x16", 1), (8000, "pcie3-x16", 0.5), (1000, "pcie3-x16", 1 / 16),
])  # fmt: skip
def test_pcie_rates_of_the_driver_are_lanes_times_transfers(rate, name, lanes):
    row, share = pcie_of_transfers(rate * 1e6)
    assert (row.name, share) == (name, lanes)


def test_xgmi_of_several_links_counts_them(tmp_path):
    two(tmp_path, most=128000)
    assert read_kfd(tmp_path).node.edges["gpu0", "gpu1"]["lanes"] == 2


def test_an_older_drivers_fixed_rate_counts_links_of_the_devices_own_row(tmp_path):
    two(tmp_path, most=50000, least=50000)
    topology = read_kfd(tmp_path)
    assert topology.node.edges["gpu0", "gpu1"]["raw"] == LINKS["xgmi-mi300"].bandwidth
    assert any("older drivers" in note for note in topology.notes)


def test_a_link_that_lost_half_its_lanes_keeps_half_its_rate(tmp_path):
    two(tmp_path, most=32000, least=32000)
    topology = read_kfd(tmp_path)
    assert topology.node.edges["gpu0", "gpu1"]["raw"] == 32e9
    assert any("no whole number" in note for note in topology.notes)


def test_xgmi_without_a_rate_is_one_link_and_said(tmp_path):
    two(tmp_path, most=0, least=0)
    topology = read_kfd(tmp_path)
    assert topology.node.edges["gpu0", "gpu1"]["lanes"] == 1
    assert any("xGMI bandwidth not given" in note for note in topology.notes)


def test_xgmi_without_a_rate_is_no_direct_link_where_others_have_one(tmp_path):
    kfd = two(tmp_path)
    kfd.gpu(0x300)
    kfd.link(0, 3, PCIE, most=64000), kfd.link(2, 3, XGMI, 64000, 64000), kfd.link(1, 3, XGMI)
    topology = read_kfd(tmp_path)
    assert not topology.node.has_edge("gpu0", "gpu2")
    lower(topology)
    assert any("peers" in note for note in topology.notes)


def test_a_weight_of_several_hops_is_no_direct_link(tmp_path):
    two(tmp_path, most=0, least=0, weight=30)
    assert not read_kfd(tmp_path).node.has_edge("gpu0", "gpu1")


def test_two_hives_of_mi210_reach_each_other_through_their_cpus(tmp_path):
    kfd = Kfd(tmp_path)
    kfd.cpu(), kfd.cpu()
    kfd.link(0, 1, HT, weight=32)
    for k in range(8):
        kfd.gpu(0x1000 * (k + 1), MI210)
        kfd.link(k // 4, k + 2, PCIE, most=32000, least=312, weight=20)
        for j in range(k - k % 4, k):
            kfd.link(j + 2, k + 2, XGMI, most=50000, least=50000)
    topology = read_kfd(tmp_path)
    assert len(scale_up(topology)) == 2 * 2 * 6
    assert topology.node.edges["cpu0", "cpu1"]["link"] is LINKS["xgmi-cpu"]
    lower(topology)  # raises when some pair cannot reach each other


def test_gpus_without_xgmi_reach_each_other_over_pcie_and_it_is_said(tmp_path):
    kfd = Kfd(tmp_path)
    kfd.cpu(), kfd.gpu(0x100), kfd.gpu(0x200)
    kfd.link(0, 1, PCIE), kfd.link(0, 2, PCIE)
    topology = read_kfd(tmp_path)
    lower(topology)
    assert topology.node.edges["cpu0", "gpu0"]["link"] is LINKS["pcie5-x16"]
    assert any("PCIe only" in n for n in topology.notes)
    assert any("PCIe bandwidth not given" in n for n in topology.notes)


def test_intel_cpus_are_told_by_their_link_type(tmp_path):
    kfd = two(tmp_path)
    kfd.cpu()
    kfd.link(0, 3, 5, weight=21)
    assert read_kfd(tmp_path).node.edges["cpu0", "cpu1"]["link"].name.startswith("upi")


def test_cpus_that_list_no_way_to_the_others_are_joined_and_it_is_said(tmp_path):
    kfd = two(tmp_path)
    kfd.cpu(), kfd.cpu(), kfd.gpu(0x300)
    kfd.link(0, 3, HT, weight=32), kfd.link(4, 5, PCIE, most=64000)
    topology = read_kfd(tmp_path)
    lower(topology)
    assert any("link between CPUs" in note for note in topology.notes)


def test_xgmi_to_the_cpu_is_a_coherent_link(tmp_path):
    kfd = Kfd(tmp_path)
    kfd.cpu(), kfd.gpu(0x100, {**MI300X, "device_id": 0x74A0, "simd_count": 912})
    kfd.link(0, 1, XGMI, 819200, 819200, weight=13)
    topology = read_kfd(tmp_path)
    edge = topology.node.edges["gpu0", "cpu0"]
    assert edge["link"].medium == "c2c" and edge["raw"] == 819.2e9
    assert topology.device.name == "mi300a"


def test_a_driver_without_gfx_version_is_read_by_pci_id(tmp_path):
    kfd = Kfd(tmp_path)
    kfd.cpu(), kfd.node(simd_count=240, device_id=0x66A1, location_id=0x500)
    kfd.link(0, 1, PCIE)
    assert read_kfd(tmp_path).device.name == "mi50"


def test_partitions_are_accelerators_that_share_the_links_of_their_gpu(tmp_path):
    partitioned(tmp_path)
    topology = read_kfd(tmp_path)
    node, whole = topology.node, load("mi300x-8").device
    assert len(gpus_of(node)) == 16
    assert node.nodes["gpu9"]["busid"] == "0000:2f:00.1"
    assert topology.device.memory == whole.memory / 8
    assert node.edges["package0", "package1"]["raw"] == 64e9
    assert node.edges["gpu3", "package0"]["raw"] == 819.2e9
    assert node.edges["cpu0", "pci0000:27:00.0"]["link"] is LINKS["pcie5-x16"]
    assert not node.has_edge("gpu0", "cpu0") and not node.has_edge("gpu0", "gpu8")


def test_a_transfer_between_packages_costs_one_hand_shake_and_one_inside_a_half(tmp_path):
    partitioned(tmp_path, parts=2)
    graph, row = read_kfd(tmp_path).node, LINKS["xgmi-mi300"]

    def cost(*path: str) -> float:
        return sum(graph.edges[e]["latency"][2] for e in pairwise(path))

    assert cost("gpu0", "package0", "package1", "gpu2") == pytest.approx(row.latency[2])
    assert cost("gpu0", "package0", "gpu1") == pytest.approx(row.latency[2] / 2)


def test_every_partition_of_a_full_node_is_reachable(tmp_path):
    partitioned(tmp_path, gpus=8, parts=4)
    topology = read_kfd(tmp_path)
    assert len(gpus_of(topology.node)) == 32
    lower(topology)


def test_there_are_no_nics_and_it_is_said(tmp_path):
    two(tmp_path)
    topology = read_kfd(tmp_path)
    assert nics_of(topology.node) == [] and any("no NICs" in n for n in topology.notes)


def test_nodes_hidden_from_a_container_are_left_out(tmp_path):
    two(tmp_path)
    (tmp_path / "2" / "properties").write_text("")
    shutil.rmtree(tmp_path / "2" / "io_links")
    topology = read_kfd(tmp_path)
    assert gpus_of(topology.node) == ["gpu0"] and any("hidden" in n for n in topology.notes)


def test_a_gpu_that_its_peers_do_not_list_keeps_what_it_lists(tmp_path):
    kfd = two(tmp_path)
    kfd.gpu(0x300)
    kfd.link(0, 3, PCIE, both=False), kfd.link(3, 1, XGMI, 64000, 64000, both=False)
    topology = read_kfd(tmp_path)
    assert topology.node.has_edge("gpu2", "gpu0") and topology.node.has_edge("cpu0", "gpu2")
    assert any("none back" in note for note in topology.notes)


def spoil(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))


BROKEN = [
    ("1/io_links/1/properties", "node_to 2", "node_to 9", "no such node"),
    ("1/io_links/1/properties", "node_to 2", "node_to 1", "to itself"),
    ("1/io_links/1/properties", "node_to 2", "node_to 0", "second link"),
    ("1/io_links/1/properties", "node_from 1", "node_from 2", "node 1's"),
    ("1/io_links/1/properties", "node_to 2\n", "", "has no node_to"),
    ("1/io_links/1/properties", "max_bandwidth 64000", "max_bandwidth 128000", "must be equal"),
    ("1/io_links/1/properties", "max_bandwidth 64000", "max_bandwidth -4", "not a whole number"),
    ("1/io_links/1/properties", "max_bandwidth 64000", "max_bandwidth 9e9", "not a whole number"),
    ("1/io_links/1/properties", "max_bandwidth 64000", "max_bandwidth 99999999", "above 10 TB/s"),
    ("1/io_links/1/properties", "max_bandwidth 64000", "max_bandwidth 3", "above max_bandwidth"),
    ("1/properties", "simd_count 1216", "simd_count x", "not a whole number"),
    ("1/properties", "simd_count 1216", "simd_count", "'key value'"),
    ("1/properties", "simd_per_cu 4", "simd_count 4", "given twice"),
    ("2/properties", "location_id 512", "location_id 256", "also that of node 1"),
    ("2/properties", "location_id 512", "location_id 99999", "no bus"),
]  # fmt: skip


@pytest.mark.parametrize("name, old, new, message", BROKEN, ids=[b[3] for b in BROKEN])
def test_a_broken_file_is_named_with_its_line(tmp_path, name, old, new, message):
    two(tmp_path)
    spoil(tmp_path, name, old, new)
    with pytest.raises(FormatError, match=message) as error:
        read_kfd(tmp_path)
    assert str(tmp_path / Path(name).parent.parts[0]) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make, message", [
    (lambda p: p.unlink(), "cannot be read"),
    (lambda p: (p.unlink(), p.symlink_to(p)), "cannot be read"),
    (lambda p: (p.unlink(), p.symlink_to("/dev/zero")), "not a regular file"),
    (lambda p: (p.unlink(), os.mkfifo(p)), "not a regular file"),
    (lambda p: (p.unlink(), p.mkdir()), "not a regular file"),
    (lambda p: p.write_bytes(b"simd_count 4\n" + b"x" * 70_000), "larger than"),
    (lambda p: p.write_bytes(b"\xff\xfe 1\n"), "not UTF-8"),
])  # fmt: skip
def test_what_is_no_small_text_file_is_refused(tmp_path, make, message):
    two(tmp_path)
    make(tmp_path / "2" / "properties")
    with pytest.raises(FormatError, match=message):
        read_kfd(tmp_path)


def test_a_folder_without_accelerators_or_without_nodes_is_refused(tmp_path):
    with pytest.raises(FormatError, match="was expected"):
        read_kfd(tmp_path)
    Kfd(tmp_path).cpu()
    with pytest.raises(FormatError, match="no accelerator"):
        read_kfd(tmp_path)


def test_more_than_1024_nodes_are_refused(tmp_path):
    two(tmp_path)
    for k in range(3, 1030):
        (tmp_path / str(k)).mkdir()
    with pytest.raises(FormatError, match="more than 1024"):
        read_kfd(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("kfd")
    partitioned(root, gpus=2, parts=2)
    return root, {path: path.read_text() for path in sorted(root.rglob("properties"))}


VALUES = ("", " 0", " 1", " 3", " 18446744073709551615", " -1", " 41", " 64000", " x", " 256")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_mutated_folder_is_read_or_refused_in_one_line(folder, data):
    root, files = folder
    changed = data.draw(st.lists(st.sampled_from(list(files)), min_size=1, max_size=3))
    try:
        for path in changed:
            lines = files[path].splitlines()
            k = data.draw(st.integers(0, len(lines) - 1))
            lines[k] = lines[k].split(" ")[0] + data.draw(st.sampled_from(VALUES))
            path.write_text("\n".join(lines[: data.draw(st.sampled_from([k, len(lines)]))]))
        lower(read_kfd(root))
    except FormatError as error:
        assert "\n" not in str(error) and str(root) in str(error)
    finally:
        for path in changed:
            path.write_text(files[path])
