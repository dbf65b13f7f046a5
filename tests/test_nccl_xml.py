"""NCCL/RCCL topology XML becomes a graph, or one FormatError with file and line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from xml_pieces import AMD, GEN5, PAIR, cpu, gpu, link, nic, system

from rccl_py.links import LINKS
from rccl_py.topology.build import Topology, gpus_of, nics_of
from rccl_py.topology.formats.names import bus_id, fitting_speed, pcie_link
from rccl_py.topology.formats.nccl.graph_file import is_graph_xml
from rccl_py.topology.formats.nccl.reader import is_nccl_xml, read_nccl_xml
from rccl_py.topology.lower import lower

CASES = os.environ.get("RCCL_PY_CASES", "")
REAL = sorted(Path(CASES, "topo_xml").rglob("*.xml")) if CASES else []
needs_cases = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains topo_xml/"
)


def edge(topology: Topology, a: str, b: str):
    return topology.node.edges[a, b]


def test_two_gpus_and_a_nic_become_vertices_with_their_bus_ids(read):
    topology = read(PAIR)
    assert gpus_of(topology.node) == ["gpu0", "gpu1"] and nics_of(topology.node) == ["nic0"]
    assert [topology.node.nodes[g]["busid"] for g in gpus_of(topology.node)] == [
        "0000:01:00.0", "0000:02:00.0"
    ]  # fmt: skip
    assert topology.device.name == "mi300x" and topology.nodes == 1 and topology.notes == ()


def test_a_scale_up_link_carries_its_count_and_the_row_of_its_device(read):
    own = edge(read(PAIR.replace('count="1"', 'count="4"')), "gpu0", "gpu1")
    assert own["link"] is LINKS["xgmi-mi300"] and own["lanes"] == 4
    assert own["raw"] == 4 * 64e9


@pytest.mark.parametrize("speed, width, gigabytes", [
    ("2.5 GT/s PCIe", 1, 0.246), ("5 GT/s", 16, 7.88), ("8 GT/s", 16, 15.76),
    ("16.0 GT/s PCIe", 8, 15.75), ("32 GT/s", 16, 63.0), ("64.0 GT/s PCIe", 16, 121.0),
    ("", 16, 15.76), ("Unknown speed", 16, 15.76), ("", 0, 15.76), ("32 GT/s", None, 63.0),
])  # fmt: skip
def test_a_pci_link_has_the_rate_of_its_speed_and_width_and_gen_3_x16_when_missing(
    speed, width, gigabytes
):
    row, lanes, remark = pcie_link(speed, width)
    assert row.bandwidth * lanes / 1e9 == pytest.approx(gigabytes, rel=2e-3)
    assert bool(remark) == (not width or not re.match(r"\d", speed))


@pytest.mark.parametrize("text, expected", [
    ("0000:C1:00.0", (0, 0xC1, 0, 0)), ("c1:0.1", (0, 0xC1, 0, 1)),
    ("0x0001:00:00.0", (1, 0, 0, 0)), ("00000000:0f:1d.0", (0, 0x0F, 0x1D, 0)),
    ("fffffff:ff:ff.0", (0xFFFFFFF, 0xFF, 0xFF, 0)), ("0000:00:1e", (0, 0, 0x1E, 0)),
    ("", None), ("zz:00.0", None), ("0000:01:00.0.0", None), ("0000:123:00.0", None),
])  # fmt: skip
def test_bus_ids_are_read_in_every_usual_spelling(text, expected):
    assert bus_id(text) == expected


def test_a_target_may_be_spelled_otherwise_than_the_device(read):
    text = PAIR.replace('target="0000:02:00.0"', 'target="0x00000000:02:00.0"')
    assert read(text).node.has_edge("gpu0", "gpu1")


def test_gpus_are_counted_by_rank_when_every_one_has_its_own(read):
    topology = read(system(cpu(gpu("1:0.0", 0, rank=1) + gpu("2:0.0", 1, rank=0))))
    assert topology.node.nodes["gpu0"]["busid"] == "0000:02:00.0"


def test_gpus_are_counted_by_dev_when_a_rank_is_missing(read):
    topology = read(system(cpu(gpu("1:0.0", 1, rank="") + gpu("2:0.0", 0, rank=-1))))
    assert topology.node.nodes["gpu0"]["busid"] == "0000:02:00.0"


@pytest.mark.parametrize("arch, device", [
    ('sm="104" gcn="910"', "mi250x"), ('sm="228" gcn="940"', "mi300a"),
    ('sm="228" gcn="942"', "mi300a"), ('sm="304" gcn="gfx942"', "mi300x"),
    ('sm="256" gcn="gfx950"', "mi355x"), ('sm="64" gcn="906"', "mi50"),
    ('sm="120" gcn="908"', "mi100"), ('gcn="gfx1250"', "mi455x"), ('sm="90"', "h100"),
    ('sm="80"', "a100"), ('sm="103"', "b300"), ('sm="999"', "generic"), ('gcn="gfx777"', "generic"),
])  # fmt: skip
def test_the_arch_of_a_gpu_names_its_device(read, arch, device):
    assert read(system(cpu(gpu("1:0.0", 0, arch=arch)))).device.name == device


@pytest.mark.parametrize("arch, number, device", [
    ("gfx942", "0x74a5", "mi325x"), ("gfx942", "0x74B5", "mi300x"), ("gfx942", "", "mi300x"),
    ("gfx950", "0x75a0", "mi350x"), ("gfx90a", "0x74a5", "mi250x"),
])  # fmt: skip
def test_devices_of_one_arch_are_told_apart_by_their_pci_ids(read, arch, number, device):
    body = gpu("1:0.0", 0, arch=f'gcn="{arch}"', pci=f'vendor="0x1002" device="{number}"')
    assert read(system(cpu(body))).device.name == device


def test_an_unknown_arch_is_said_in_the_notes(read):
    notes = read(system(cpu(gpu("1:0.0", 0, arch='gcn="gfx777"')))).notes
    assert any("gfx777" in note for note in notes)


@pytest.mark.parametrize("target, tclass", [
    ("0000:c5:00.0", "0x068000"), ("fffffff:ff:ff.0", "0x068000"), ("fffffff:ffff:ff", "0x068000"),
    ("fffffff:ff:ff.0", ""),
])  # fmt: skip
def test_nvswitches_become_one_vertex_every_gpu_reaches_with_all_its_links(read, target, tclass):
    links = link("nvlink", target, 12, tclass) + link("nvlink", target, 6, tclass)
    topology = read(system(cpu(
        gpu("1:0.0", 0, links, 'sm="90"') + gpu("2:0.0", 1, links, 'sm="90"')), 1))  # fmt: skip
    up, down = (edge(topology, *ends) for ends in (("gpu0", "nvswitch0"), ("nvswitch0", "gpu1")))
    assert up["lanes"] == 18 and down["lanes"] == 18
    assert up["latency"] == LINKS["nvlink4"].latency and down["latency"] < up["latency"]


def test_a_link_listed_by_one_side_only_is_taken_as_both_ways_and_noted(read):
    topology = read(PAIR.replace(link("xgmi", "0000:01:00.0"), ""))
    assert topology.node.has_edge("gpu1", "gpu0")
    assert any("none back" in note for note in topology.notes)


def test_power_nvlinks_to_the_cpu_and_the_pci_link_stand_side_by_side(read):
    one = gpu("1:0.0", 0, link("nvlink", "0004:00:00.0", 3, "0x068001"), 'sm="70"')
    topology = read(system(cpu(one, 0, 'arch="ppc64le"'), 1))
    own = edge(topology, "gpu0", "cpu0")
    assert own["lanes"] == 3 and own["link"].medium == "c2c"
    assert topology.node.has_edge("gpu0", "pci0000:01:00.0")


def test_a_c2c_link_has_count_times_bw_megabytes_per_second(read):
    one = gpu("1:0.0", 0, '<c2c bw="45000" count="10"/>', 'sm="90"')
    assert edge(read(system(cpu(one, 0, 'arch="arm64"'), 1)), "gpu0", "cpu0")["raw"] == 450e9


def test_pci_links_join_peer_switches(read):
    body = (f'<pci busid="1:0.0" class="0x060400" {GEN5}><pcilink target="2:0.0"/>'
            f'{gpu("3:0.0", 0)}</pci><pci busid="2:0.0" class="0x060400" {GEN5}>'
            f'<pcilink target="1:0.0"/>{gpu("4:0.0", 1)}</pci>')  # fmt: skip
    assert read(system(cpu(body))).node.has_edge("pci0000:01:00.0", "pci0000:02:00.0")


@pytest.mark.parametrize("cpus, row", [
    ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', "upi-bdw"),
    ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', "upi-skl"),
    ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', "upi-spr"),
    ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"', "upi-erp"),
    (AMD, "xgmi-cpu"), ('arch="ppc64"', "power-xbus"), ('arch="arm64"', "arm-cpu"),
    ("", "upi-skl"),
])  # fmt: skip
def test_sockets_are_joined_by_the_link_of_their_make(read, cpus, row):
    topology = read(system(cpu(gpu("1:0.0", 0), 0, cpus) + cpu(gpu("2:0.0", 1), 1, cpus)))
    assert edge(topology, "cpu0", "cpu1")["link"].name == row
    assert any("UPI" in note for note in topology.notes) == (not cpus)


def test_cpus_of_different_hosts_are_not_joined_and_devices_count_on_each(read):
    hosts = [cpu(gpu("1:0.0", 0, rank=k), 0, f'{AMD} host_hash="0x{k}"') for k in range(2)]
    topology = read(system("".join(hosts)))
    assert [topology.node.nodes[g]["host"] for g in gpus_of(topology.node)] == [0, 1]
    assert not any(data["link"].medium == "cpu" for _, _, data in topology.node.edges(data=True))


@pytest.mark.parametrize("name, pci_class, speed, row, gigabits", [
    ("mlx5_0", "0x020700", 400000, "ib-400g", 400), ("mlx5_0", "0x020700", 0, "ib-10g", 10),
    ("mlx5_0", "0x020000", 200000, "roce-200g", 200), ("mlx5_0", "0x020700", "", "ib-400g", 400),
    ("bnxt_re0", "0x020000", 180000, "roce-180g", 180), ("eth0", "0x020000", 1000, "eth-1g", 1),
    ("cxi0", "0x020000", 200000000, "slingshot-400g", 400),
])  # fmt: skip
def test_a_nic_has_the_port_of_its_name_class_and_speed(
    read, name, pci_class, speed, row, gigabits
):
    topology = read(
        system(cpu(gpu("1:0.0", 0) + nic("2:0.0", 0, name, speed, pci_class=pci_class)))
    )
    port = topology.node.nodes["nic0"]["port"]
    assert port.bandwidth == pytest.approx(gigabits * 1e9 / 8)
    assert port.name == row
    assert any("assumed" in note for note in topology.notes) == (speed in (0, "", 200000000))


def test_two_ports_of_one_card_share_its_pci_link(read):
    net = '<net name="mlx5_{0}" dev="{0}" speed="200000"/>'
    nets = net.format(0) + net.format(1)
    card = f'<pci busid="2:0.0" class="0x020000" {GEN5}><nic>{nets}</nic></pci>'
    graph = read(system(cpu(gpu("1:0.0", 0) + card))).node
    assert graph.nodes["pci0000:02:00.0"]["bridge"] is False
    assert set(graph.successors("pci0000:02:00.0")) == {"nic0", "nic1", "cpu0"}


def test_a_nic_may_sit_directly_under_a_cpu(read):
    body = gpu("1:0.0", 0) + '<nic><net name="eth0" dev="0" speed="100000"/></nic>'
    assert read(system(cpu(body))).node.has_edge("cpu0", "nic0")


def test_a_socket_nic_listed_under_every_cpu_is_one_nic_joined_to_each(read):
    net = '<nic><net name="eth0" dev="0" speed="10000"/></nic>'
    graph = read(system(cpu(gpu("1:0.0", 0) + net) + cpu(gpu("2:0.0", 1) + net, 1))).node
    assert nics_of(graph) == ["nic0"] and set(graph.predecessors("nic0")) == {"cpu0", "cpu1"}


def test_a_lone_cpu_may_have_numaid_minus_1(read):
    assert read(system(cpu(gpu("1:0.0", 0), -1))).node.has_edge("cpu0", "gpu0")


def test_a_net_without_dev_or_with_net_0_is_not_used(read):
    nets = '<nic><net name="a"/><net name="b" dev="0" net="0"/><net name="c" dev="1"/></nic>'
    topology = read(system(cpu(gpu("1:0.0", 0) + nets)))
    assert [topology.node.nodes[n]["name"] for n in nics_of(topology.node)] == ["c"]


CLOUD = system(cpu("".join(
    f'<pci busid="000{k}:00:00.0" class="{c}" link_speed="16 GT/s" link_width="16"/>'
    for k, c in enumerate(("0x030200", "0x120000", "0x020700", "0x010802"))
)), 1)  # fmt: skip


def test_a_cloud_file_without_gpu_elements_says_what_is_not_known(read):
    topology = read(CLOUD)
    assert topology.gpus_per_node == 2 and nics_of(topology.node) == ["nic0"]
    assert topology.node.nodes["nic0"]["port"].bandwidth == 25e9  # gen 4 x16 carries 200 Gb/s
    notes = " ".join(topology.notes)
    assert "2 accelerators have no <gpu> element" in notes and "200 Gb/s assumed" in notes


@pytest.mark.parametrize("generation, gigabits", [(3, 100), (4, 200), (5, 400), (6, 800)])
def test_an_unknown_nic_has_the_fastest_port_its_pcie_carries(generation, gigabits):
    assert fitting_speed(LINKS[f"pcie{generation}-x16"].bandwidth) == gigabits * 1000


@pytest.mark.parametrize("vendor, device, ends, lanes", [
    ("0x10de", "0x20b0", ("gpu0", "nvswitch0"), 12), ("0x1002", "0x74a1", ("gpu0", "gpu7"), 1),
])  # fmt: skip
def test_modules_of_boards_of_eight_are_joined_as_on_their_board(read, vendor, device, ends, lanes):
    own = f'class="0x0302" vendor="{vendor}" device="{device}"'
    leaves = [f'<pci busid="{k}:0.0" {own}/>' for k in range(8)]
    topology = read(system(cpu("".join(leaves))))
    assert edge(topology, *ends)["lanes"] == lanes
    assert any("board of eight" in note for note in topology.notes)
    assert not read(system(cpu("".join(leaves[1:])))).node.has_edge(*ends)


def test_leaf_functions_without_class_are_a_power_of_two_accelerators_and_else_nics(read):
    leaves = "".join(f'<pci busid="0:0:{k:x}.0"/>' for k in (0x15, 0x16, 0x17, 0x18, 0x19))
    topology = read(system(cpu(leaves), 1))
    assert [topology.node.nodes[g]["busid"] for g in gpus_of(topology.node)] == [
        f"0000:00:{k:02x}.0" for k in (0x16, 0x17, 0x18, 0x19)
    ]
    assert topology.node.nodes["nic0"]["busid"] == "0000:00:15.0"
    assert any("power of two" in note for note in topology.notes)


def test_leaf_functions_without_class_are_told_apart_by_their_vendors(read):
    vendors = ("0x1002", "0x1002", "0x1002", "0x15b3")
    leaves = "".join(f'<pci busid="{k}:0.0" vendor="{v}"/>' for k, v in enumerate(vendors))
    topology = read(system(cpu(leaves)))
    assert topology.gpus_per_node == 3 and len(nics_of(topology.node)) == 1


@pytest.mark.parametrize("text", ["0x03", "030200", "0X030200", "0x0300", "0x12", "120000"])
def test_a_class_may_be_cut_short_or_without_0x(read, text):
    leaf = f'<pci busid="1:0.0" class="{text}" {GEN5}/><pci busid="2:0.0" class="0x02"/>'
    topology = read(system(cpu(leaf)))
    assert topology.gpus_per_node == 1 and nics_of(topology.node) == ["nic0"]


def test_a_link_of_a_gpu_to_itself_is_dropped_and_noted(read):
    body = "".join(gpu(f"{k}:0.0", k, link("nvlink", f"{k}:0.0", 12), 'sm="80"') for k in (1, 2))
    topology = read(system(cpu(body), 1))
    assert not topology.node.has_edge("gpu0", "gpu1")
    assert any("its own GPU: dropped" in note and "2 times" in note for note in topology.notes)


def test_links_to_gpus_outside_the_job_are_dropped_and_noted(read):
    topology = read(system(cpu(
        gpu("1:0.0", 0, link("xgmi", "2:0.0") + link("xgmi", "3:0.0"))
        + gpu("2:0.0", 1, link("xgmi", "1:0.0") + link("xgmi", "3:0.0")))))  # fmt: skip
    assert topology.node.has_edge("gpu0", "gpu1") and topology.gpus_per_node == 2
    assert any("does not list: dropped" in note for note in topology.notes)


def test_links_without_tclass_of_several_gpus_to_one_unseen_device_lead_to_a_switch(read):
    bare = '<nvlink target="0000:c5:00.0" count="18"/>'
    body = "".join(gpu(f"{k}:0.0", k, bare, 'sm="90"') for k in (0, 1))
    topology = read(system(cpu(body), 1))
    assert edge(topology, "gpu0", "nvswitch0")["lanes"] == 18
    assert any("taken for a switch" in note for note in topology.notes)


def test_partitions_of_one_function_are_accelerators_that_share_its_links(read):
    links = link("nvlink", "fffffff:ff:ff.0", 36, "0x068000") + '<c2c bw="56000" count="7"/>'
    part = '<gpu dev="{2}" sm="100" mlopart="{0}" rank="{1}" gdr="1">' + links + "</gpu>"
    pcis = "".join(
        f'<pci busid="{k + 1}:0.0" class="0x030200" {GEN5}>'
        + part.format(0, 2 * k, k) + part.format(1, 2 * k + 1, k) + "</pci>" for k in (0, 1)
    )  # fmt: skip
    topology = read(system(cpu(pcis, 0, 'arch="arm64"'), 1))
    assert gpus_of(topology.node) == [f"gpu{k}" for k in range(4)]
    assert edge(topology, "package0", "nvswitch0")["lanes"] == 36
    assert edge(topology, "gpu0", "cpu0")["lanes"] == 3.5  # half of the device's seven
    assert topology.node.has_edge("gpu3", "package1")
    assert lower(topology).nranks == 4


def test_hosts_joined_by_fabric_links_share_a_switch(read):
    far = '<xgmi target="ffff:00:00.0" count="72" fabric_supported="1"/>'
    hosts = [cpu(gpu("1:0.0", 0, far, 'gcn="gfx1250"', rank=k), 0, f'{AMD} host_hash="0x{k}"')
             for k in range(2)]  # fmt: skip
    topology = read(system("".join(hosts)))
    assert edge(topology, "gpu0", "nvswitch0")["lanes"] == 72
    assert edge(topology, "nvswitch0", "gpu1")["link"].medium == "ualink"


def test_a_fabric_link_leads_to_the_one_gpu_of_another_host_with_its_bus_id(read):
    hosts = [cpu(gpu(f"{k}:0:0.0", 0, f'<xgmi target="{1 - k}:0:0.0" count="4" fabric_supported="1"'
                     ' tclass="0x120000"/>', rank=k), 0, f'{AMD} host_hash="0x{k}"')
             for k in range(2)]  # fmt: skip
    assert edge(read(system("".join(hosts))), "gpu0", "gpu1")["lanes"] == 4


def test_a_missing_version_or_numaid_is_noted(read):
    topology = read(PAIR.replace('version="2"', "").replace('numaid="0"', ""))
    assert topology.node.has_edge("gpu0", "gpu1")
    assert any("without version" in n for n in topology.notes)
    assert any("without numaid" in n for n in topology.notes)


def test_a_gpu_may_share_its_function_with_a_nic(read):
    body = gpu("1:0.0", 0).replace("</gpu>", '</gpu><nic><net name="x" dev="0"/></nic>')
    graph = read(system(cpu(body))).node
    assert set(graph.successors("pci0000:01:00.0")) == {"cpu0", "gpu0", "nic0"}


def test_hygon_and_amd_sockets_are_joined_as_epyc(read):
    for vendor in ("HygonGenuine", "AMD"):
        make = f'arch="x86_64" vendor="{vendor}" familyid="159" modelid="2"'
        topology = read(system(cpu(gpu("1:0.0", 0), 0, make) + cpu(gpu("2:0.0", 1), 1, make)))
        assert edge(topology, "cpu0", "cpu1")["link"].name == "xgmi-cpu"


GRAPH = (
    '<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" '
    'speedinter="10" typeintra="{}" typeinter="PIX" samechannels="1">'
    + '<channel><net dev="3"/><gpu dev="0"/><gpu dev="1"/><net dev="3"/></channel>' * 2
    + "</graph></graphs>"
)


@pytest.mark.parametrize("kind, joint", [("NVL", "nvswitch0"), ("SYS", "cpu0")])
def test_a_graph_file_gives_the_machine_its_search_saw(read, kind, joint):
    topology = read(GRAPH.format(kind))
    assert topology.gpus_per_node == 2 and edge(topology, "gpu0", joint)["bandwidth"] == 40e9
    assert topology.node.nodes["nic0"]["port"].bandwidth == 20e9
    assert any("names channels, not hardware" in note for note in topology.notes)
    assert lower(topology).nranks == 2


def test_first_elements_tell_the_two_kinds_of_file_apart():
    for text in ("<system version='1'>", "<?xml version='1.0'?>\n<!-- <graphs> -->\n<system>"):
        assert is_nccl_xml(text) and not is_graph_xml(text)
    assert is_graph_xml("\ufeff <graphs version='1'/>") and not is_nccl_xml("<systems>")
    assert not is_nccl_xml("name: x") and not is_nccl_xml("<!-- <system>") and not is_nccl_xml("")


def test_what_is_not_known_is_ignored_with_one_note_each(read):
    text = PAIR.replace("<gpu ", '<gpu colour="red" ').replace("<nic>", "<blob/><blob/><nic>")
    notes = read(text).notes
    assert [note for note in notes if "colour" in note and "2 times" in note]
    assert [note for note in notes if "<blob>" in note and "2 times" in note] and len(notes) == 2


def test_comments_and_a_declaration_are_accepted(read):
    assert read('<?xml version="1.0"?>\n<!-- a\n b -->\n' + PAIR).ngpus == 2


@needs_cases
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_every_real_file_loads_and_its_ranks_reach_each_other(path):
    topology = read_nccl_xml(path)
    assert topology.gpus_per_node == len(gpus_of(topology.node)) >= 1
    assert lower(topology).nranks == topology.gpus_per_node


@needs_cases
@pytest.mark.parametrize("stem, device, gpus, nics, scale_up", [
    ("topo_8p_942", "mi300x", 8, 8, 56), ("topo_8p_950", "mi350x", 8, 8, 56),
    ("topo_4p_942", "mi300a", 4, 4, 12), ("topo_8p_90a_1", "mi250x", 8, 1, 24),
    ("H100-topology", "h100", 8, 16, 16), ("topo_8A100_4CX6", "a100", 8, 5, 16),
    ("ndv5-topo", "generic", 8, 8, 0), ("topo_16p1h", "mi250x", 16, 8, 56),
    ("topo_3p_pcie", "mi210", 3, 1, 0), ("g5.48xl-topo", "generic", 8, 1, 0),
    ("ncv4-topo", "a100", 4, 1, 0), ("p4d-24xl-topo", "a100", 8, 4, 16),
])  # fmt: skip
def test_real_machines_have_the_devices_their_makers_built_in(stem, device, gpus, nics, scale_up):
    (path,) = [path for path in REAL if path.stem == stem]
    topology = read_nccl_xml(path)
    media = [data["link"].medium for _, _, data in topology.node.edges(data=True)]
    assert topology.device.name == device and topology.gpus_per_node == gpus
    assert len(nics_of(topology.node)) == nics
    assert sum(medium in ("xgmi", "nvlink") for medium in media) == scale_up
