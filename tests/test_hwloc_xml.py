"""hwloc XML of versions 1, 2 and 3 becomes a graph, or one FormatError with file and line."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rccl_py.errors import FormatError
from rccl_py.links import LINKS
from rccl_py.topology import lower
from rccl_py.topology.build import Topology, gpus_of, nics_of
from rccl_py.topology.formats.hwloc.reader import is_hwloc, read_hwloc
from rccl_py.topology.formats.pci_tree import pcie_of

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
INTEL = {"CPUVendor": "GenuineIntel", "CPUFamilyNumber": "6", "CPUModelNumber": "143"}
EPYC = {"CPUVendor": "AuthenticAMD", "CPUFamilyNumber": "25", "CPUModelNumber": "1"}
GEN3, GEN4, GEN5 = "15.753846", "31.507692", "63.015385"
MI250X, MI300X = "0380 [1002:7408] [1002:0b0c] 00", "1200 [1002:74a1] [1002:74a1] 00"
H100, V100 = "0302 [10de:2330] [10de:16c1] a1", "0302 [10de:1db1] [10de:1212] a1"
CX7, CASSINI = "0207 [15b3:1021] [15b3:0041] 00", "0200 [17db:0501] [17db:0000] 02"
I210, ASPEED = "0200 [8086:1537] [ffff:0000] 03", "0300 [1a03:2000] [1a03:2000] 52"
serial = count(1000)


def infos(values: dict[str, str]) -> str:
    return "".join(f'<info name="{k}" value="{v}"/>' for k, v in values.items())


def os_device(name: str, kind: object, gp: object = "", subtype: str = "", **values: str) -> str:
    return (f'<object type="OSDev" gp_index="{gp or next(serial)}" name="{name}" '
            f'subtype="{subtype}" osdev_type="{kind}">{infos(values)}</object>\n')  # fmt: skip


def pci(bus: str, kind: str, body: str = "", speed: str = GEN5, gp: object = "") -> str:
    return (f'<object type="PCIDev" gp_index="{gp or next(serial)}" pci_busid="{bus}" '
            f'pci_type="{kind}" pci_link_speed="{speed}">\n{body}</object>\n')  # fmt: skip


def bridge(bus: str, body: str, speed: str = GEN5) -> str:
    return (f'<object type="Bridge" gp_index="{next(serial)}" bridge_type="1-1" depth="1" '
            f'bridge_pci="0000:[01-02]" pci_busid="{bus}" pci_type="0604 [1022:14bf] [1022:14bf] '
            f'00" pci_link_speed="{speed}">\n{body}</object>\n')  # fmt: skip


def host(body: str) -> str:
    return (f'<object type="Bridge" gp_index="{next(serial)}" bridge_type="0-1" depth="0" '
            f'bridge_pci="0000:[00-ff]">\n{body}</object>\n')  # fmt: skip


def numa(index: int) -> str:
    return f'<object type="NUMANode" os_index="{index}" gp_index="{next(serial)}"/>\n'


def package(index: int, body: str, cpu: dict[str, str] = EPYC, gp: object = "") -> str:
    return (f'<object type="Package" os_index="{index}" gp_index="{gp or next(serial)}">'
            f"{infos(cpu)}{numa(index)}\n{body}</object>\n")  # fmt: skip


def machine(body: str, after: str = "", version: str = ' version="2.0"',
            arch: str = "x86_64") -> str:  # fmt: skip
    own = infos({"Architecture": arch, "HostName": "node1"})
    return (f'{HEAD}<topology{version}>\n<object type="Machine" os_index="0" gp_index="1">{own}\n'
            f"{body}</object>\n{after}</topology>\n")  # fmt: skip


def matrix(name: str, indexes: list[object], rows: list[list[int]], tag: str = "distances2") -> str:
    words = " ".join(map(str, indexes))
    values = [str(v) for row in rows for v in row]
    parts = "".join(
        f'<u64values length="9">{" ".join(values[i : i + 10])} </u64values>\n'
        for i in range(0, len(values), 10)
    )
    kind = ' type="OSDev" indexing="gp"' if tag == "distances2" else ""
    return (f'<{tag}{kind} nbobjs="{len(indexes)}" kind="9" name="{name}">\n'
            f'<indexes length="9">{words} </indexes>\n{parts}</{tag}>\n')  # fmt: skip


def rsmi(k: int, gp: object = "", **values: str) -> str:
    return os_device(f"rsmi{k}", 1, gp or 500 + k, "RSMI", **values)


def gpu_port(k: int, kind: str = MI250X, speed: str = GEN4, name: str = "rsmi") -> str:
    """Return a root port with GPU `k` below it."""
    osdev = os_device(f"{name}{k}", 1, 500 + k)
    return host(bridge(f"0000:{16 * k:02x}:01.0", pci(f"0000:{16 * k + 1:02x}:00.0", kind, osdev,
                                                     speed), speed))  # fmt: skip


def edge(topology: Topology, a: str, b: str) -> dict:
    return topology.node.edges[a, b]


@pytest.fixture
def read(tmp_path):
    def inner(text: str) -> Topology:
        (tmp_path / "lstopo.xml").write_text(text)
        return read_hwloc(tmp_path / "lstopo.xml")

    return inner


PAIR = machine(
    package(0, gpu_port(0, H100, GEN5, "nvml"), INTEL)
    + package(1, gpu_port(1, H100, GEN5, "nvml") + host(bridge("0000:20:01.0",
              pci("0000:21:00.0", CX7, os_device("mlx5_0", 3) + os_device("ib0", 2)))), INTEL),
    matrix("NVLinkBandwidth", [500, 501], [[1000000, 450000], [450000, 1000000]]),
)  # fmt: skip


def test_packages_gpus_and_nics_become_vertices(read):
    topology = read(PAIR)
    nodes = topology.node.nodes
    assert gpus_of(topology.node) == ["gpu0", "gpu1"] and nics_of(topology.node) == ["nic0"]
    assert [nodes[g]["busid"] for g in ("gpu0", "gpu1")] == ["0000:01:00.0", "0000:11:00.0"]
    assert [nodes[g]["numa"] for g in ("gpu0", "gpu1")] == [0, 1]
    assert topology.device.name == "h100" and topology.name == "lstopo"
    lower(topology)


def test_a_root_port_is_no_vertex_and_its_link_is_the_one_below_it(read):
    topology = read(PAIR)
    assert edge(topology, "cpu0", "gpu0")["link"] is LINKS["pcie5-x16"]
    assert [v for v, k in topology.node.nodes(data="kind") if k == "pci"] == []


def test_packages_are_joined_by_the_link_of_their_model(read):
    assert edge(read(PAIR), "cpu0", "cpu1")["link"] is LINKS["upi-spr"]
    amd = machine(package(0, gpu_port(0)) + package(1, ""))
    assert edge(read(amd), "cpu0", "cpu1")["link"] is LINKS["xgmi-cpu"]


def test_nvlink_figures_count_links(read):
    own = edge(read(PAIR), "gpu0", "gpu1")
    assert own["link"] is LINKS["nvlink4"] and own["lanes"] == 18


def test_a_nic_has_its_rdma_name_and_the_speed_of_its_product(read):
    topology = read(PAIR)
    nic = topology.node.nodes["nic0"]
    assert nic["name"] == "mlx5_0" and nic["port"] is LINKS["ib-400g"]
    assert any("no port speeds" in note for note in topology.notes)


def test_the_name_of_a_dtd_is_accepted_and_the_file_never_opened(read, tmp_path):
    (tmp_path / "hwloc2.dtd").write_text("<!ENTITY x 'y'>")
    assert len(gpus_of(read(PAIR).node)) == 2


@pytest.mark.parametrize("doctype, message", [
    ('<!DOCTYPE topology SYSTEM "x" [<!ENTITY a "b">]>', "DOCTYPE"),
    ('<!DOCTYPE topology [<!ENTITY a SYSTEM "file:///etc/passwd">]>', "DOCTYPE"),
    ("<!DOCTYPE topology []>", "DOCTYPE"), ('<!DOCTYPE other SYSTEM "x">', "DOCTYPE"),
])  # fmt: skip
def test_a_doctype_with_declarations_is_refused(read, doctype, message):
    with pytest.raises(FormatError, match=f"lstopo.xml:2: .*{message}"):
        read(PAIR.replace('<!DOCTYPE topology SYSTEM "hwloc2.dtd">', doctype))


def test_an_entity_that_the_dtd_might_declare_is_refused(read):
    with pytest.raises(FormatError, match=r"entity"):
        read(PAIR.replace('<indexes length="9">500', '<indexes length="9">&x;'))


@pytest.mark.parametrize("text, expected", [
    (PAIR, True), ("<topology>", True), ("<?xml?><!-- <system> -->\n<topology version='3'>", True),
    ("<system version='2'>", False), ("<topologydiff>", False), ("<!-- <topology>", False),
    ("<graphml>", False), ("name: x", False), ("", False),
])  # fmt: skip
def test_hwloc_is_told_by_its_first_element(text, expected):
    assert is_hwloc(text) is expected


def test_a_file_of_hwloc_1_with_sockets_inside_numa_nodes(read):
    def node(k: int, io: str) -> str:
        socket = (
            f'<object type="Socket" os_index="{k}">{infos(INTEL)}<object type="Core"/></object>'
        )
        return f'<object type="NUMANode" os_index="{k}">{socket}{io}</object>'

    text = machine(node(0, gpu_port(0, V100, "0.000000", "card")) + node(1, gpu_port(1, V100)),
                   version="")  # fmt: skip
    topology = read(text.replace("hwloc2.dtd", "hwloc.dtd"))
    assert topology.node.has_edge("cpu0", "gpu0") and topology.node.has_edge("cpu1", "gpu1")
    assert edge(topology, "cpu0", "cpu1")["link"] is LINKS["upi-spr"]
    assert any("pci_link_speed not given" in note for note in topology.notes)


def test_a_file_of_hwloc_3_with_a_programming_interface_and_bitmask_types(read):
    text = machine(package(0, host(bridge("0000:00:01.0", pci("0000:01:00.0", MI300X + " 00",
                   os_device("rsmi0", "0x0000000c"))))), version=' version="3.0"')  # fmt: skip
    topology = read(text)
    assert topology.device.name == "mi300x" and gpus_of(topology.node) == ["gpu0"]


def tioga(bandwidth: list[list[int]], hops: list[list[int]] | None = None) -> str:
    """Return two MI250X packages, 4 GCDs under the Machine, as lstopo writes Frontier's nodes."""
    places = [500, 501, 502, 503]
    group = f'<object type="Group" gp_index="335">{numa(1)}</object>'
    nic = bridge("0000:c4:01.1", pci("0000:c5:00.0", CASSINI, os_device("hsi0", 2), GEN4), GEN4)
    eth = bridge("0000:94:01.1", pci("0000:95:00.0", I210, os_device("ens2", 2), "0.250000"))
    after = matrix("XGMIBandwidth", places, bandwidth)
    after += matrix("XGMIHops", places, hops) if hops else ""
    ports = "".join(gpu_port(k) for k in range(4))
    return machine(package(0, group + host(eth)) + ports + host(nic), after)


def test_io_under_the_machine_belongs_to_its_only_package(read):
    rows = [[100000] * 4 for _ in range(4)]
    topology = read(tioga(rows))
    assert all(topology.node.has_edge("cpu0", f"gpu{k}") for k in range(4))
    assert topology.node.nodes["nic0"]["port"] is LINKS["slingshot-200g"]
    assert nics_of(topology.node) == ["nic0"]
    assert any("without RDMA" in note for note in topology.notes)
    lower(topology)


def test_the_fixed_xgmi_figure_of_hwloc_is_one_link_and_said(read):
    topology = read(tioga([[100000] * 4 for _ in range(4)]))
    assert edge(topology, "gpu0", "gpu3")["lanes"] == 1
    assert any("100000 MB/s for any xGMI" in note for note in topology.notes)


def test_real_xgmi_figures_count_links_and_zero_is_none(read):
    rows = [[0, 200000, 50000, 0], [200000, 0, 0, 100000], [50000, 0, 0, 200000],
            [0, 100000, 200000, 0]]  # fmt: skip
    node = read(tioga(rows)).node
    lanes = {(a, b): d["lanes"] for a, b, d in node.edges(data=True) if d["link"].medium == "xgmi"}
    assert lanes["gpu0", "gpu1"] == 4 and lanes["gpu1", "gpu3"] == 2 and len(lanes) == 8


def test_xgmi_of_several_hops_is_no_link(read):
    hops = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 1], [2, 1, 1, 0]]
    topology = read(tioga([[100000] * 4 for _ in range(4)], hops))
    assert not topology.node.has_edge("gpu0", "gpu3") and topology.node.has_edge("gpu0", "gpu2")


def test_peers_without_a_matrix_are_one_link(read):
    def one(k: int) -> str:
        return host(pci(f"0000:{k + 1:02x}:00.0", MI300X, rsmi(k, XGMIPeers=f"rsmi{1 - k} ")))

    assert edge(read(machine(package(0, one(0) + one(1)))), "gpu0", "gpu1")["lanes"] == 1


def test_gpus_of_power_have_nvlink_to_their_package(read):
    def node(k: int) -> str:
        bus = f"000{4 + k}:04:00.0"
        gpu = pci(bus, V100, os_device(f"nvml{k}", 1, 500 + k), GEN3)
        return package(k, host(bridge(f"000{4 + k}:00:00.0", gpu, GEN3)), {}, 40 + k)

    rows = [[1000000, 0, 75000, 0], [0, 1000000, 0, 75000], [75000, 0, 1000000, 0],
            [0, 75000, 0, 1000000]]  # fmt: skip
    names: list[object] = ["OSDev:500", "OSDev:501", "Package:40", "Package:41"]
    text = machine(node(0) + node(1), matrix("NVLinkBandwidth", names, rows, "distances2hetero"),
                   arch="ppc64le")  # fmt: skip
    topology = read(text)
    assert edge(topology, "gpu1", "cpu1")["lanes"] == 3
    assert edge(topology, "gpu1", "cpu1")["link"].medium == "c2c"
    assert edge(topology, "gpu1", "pci0005:04:00.0")["link"] is LINKS["pcie3-x16"]
    assert edge(topology, "cpu0", "cpu1")["link"] is LINKS["power-xbus"]


def test_nvswitches_are_merged_into_one(read):
    switch = "0680 [10de:22a3] [10de:1796] a1"
    ports = "".join(host(pci(f"0000:f{k}:00.0", switch, gp=700 + k)) for k in range(2))
    rows = [[0, 0, 225000, 225000], [0, 0, 225000, 225000], [225000, 225000, 0, 0],
            [225000, 225000, 0, 0]]  # fmt: skip
    names: list[object] = ["OSDev:500", "OSDev:501", "PCIDev:700", "PCIDev:701"]
    text = machine(package(0, gpu_port(0, H100) + gpu_port(1, H100) + ports),
                   matrix("NVLinkBandwidth", names, rows, "distances2hetero"))  # fmt: skip
    topology = read(text)
    assert edge(topology, "gpu0", "nvswitch0")["lanes"] == 18
    assert not topology.node.has_edge("gpu0", "gpu1")
    lower(topology)


def nvlinks(count: int, kind: str, rate: int, names: list[object] | None = None) -> str:
    """Return GPUs of which every pair shows `rate`, as after hwloc's transitive closure."""
    ports = "".join(gpu_port(k, kind, name="nvml") for k in range(count))
    rows = [[1000000 if i == j else rate for j in range(count)] for i in range(count)]
    own = matrix("NVLinkBandwidth", names or [500 + k for k in range(count)], rows)
    return machine(package(0, ports), own)


@pytest.mark.parametrize("count, kind, rate, lanes", [(8, V100, 150000, 6), (3, H100, 450000, 18)])
def test_pairs_that_all_show_every_link_of_a_gpu_are_behind_one_switch(
    read, count, kind, rate, lanes
):
    topology = read(nvlinks(count, kind, rate))
    node = topology.node
    assert [node.edges[g, "nvswitch0"]["lanes"] for g in gpus_of(node)] == [lanes] * count
    assert not node.has_edge("gpu0", "gpu1") and any("one switch" in n for n in topology.notes)
    lower(topology)


def test_a_mesh_that_a_gpu_has_links_for_stays_a_mesh(read):
    node = read(nvlinks(4, V100, 50000)).node
    assert edge(read(nvlinks(4, V100, 50000)), "gpu0", "gpu3")["lanes"] == 2
    assert "nvswitch0" not in node


def test_unequal_pairs_beyond_the_links_of_a_gpu_are_said(read):
    text = nvlinks(4, V100, 150000).replace(
        "1000000 150000 150000 150000", "1000000 50000 150000 150000").replace(
        "150000 1000000 150000 150000", "50000 1000000 150000 150000")  # fmt: skip
    topology = read(text)
    assert edge(topology, "gpu0", "gpu1")["lanes"] == 2
    assert any("not all pairs are equal" in note for note in topology.notes)


def test_pairs_beside_the_switch_they_go_through_are_no_links_of_their_own(read):
    switch = "0680 [10de:22a3] [10de:1796] a1"
    ports = gpu_port(0, H100) + gpu_port(1, H100) + host(pci("0000:f0:00.0", switch, gp=700))
    rows = [[0, 450000, 450000], [450000, 0, 450000], [450000, 450000, 0]]
    names: list[object] = ["OSDev:500", "OSDev:501", "PCIDev:700"]
    text = machine(package(0, ports), matrix("NVLinkBandwidth", names, rows, "distances2hetero"))
    topology = read(text)
    assert edge(topology, "gpu0", "nvswitch0")["lanes"] == 18
    assert not topology.node.has_edge("gpu0", "gpu1")
    assert any("through that switch" in note for note in topology.notes)


def test_two_boards_of_nvswitches_are_one_domain_as_in_a_dgx_2(read):
    switch = "0680 [10de:1ac2] [0000:0000] a1 00"
    switches = "".join(host(pci(f"0000:f{k}:00.0", switch, gp=700 + k)) for k in range(2))
    rows = [[0] * 4 for _ in range(4)]
    for gpu, board in ((0, 2), (1, 3)):
        rows[gpu][board] = rows[board][gpu] = 150000
    names: list[object] = ["OSDev:500", "OSDev:501", "PCIDev:700", "PCIDev:701"]
    text = machine(package(0, gpu_port(0, V100) + gpu_port(1, V100) + switches),
                   matrix("NVLinkBandwidth", names, rows, "distances2hetero"))  # fmt: skip
    node = read(text).node
    assert [node.edges[g, "nvswitch0"]["lanes"] for g in ("gpu0", "gpu1")] == [6, 6]


def test_nested_pcie_switches_keep_their_order(read):
    gpu = bridge("0000:05:00.0", bridge("0000:06:00.0", pci("0000:07:00.0", H100)))
    inner = bridge("0000:02:00.0", bridge("0000:03:00.0", bridge("0000:04:00.0", gpu)))
    tree = host(bridge("0000:00:01.0", bridge("0000:01:00.0", inner)))
    node = read(machine(package(0, tree))).node
    path = ["cpu0", "pci0000:01:00.0", "pci0000:03:00.0", "pci0000:05:00.0", "gpu0"]
    assert all(node.has_edge(a, b) for a, b in pairwise(path)) and len(node) == len(path)


def test_devices_behind_a_pcie_switch_share_its_uplink(read):
    ports = "".join(bridge(f"0000:03:{k:02x}.0", pci(f"0000:{k + 4:02x}:00.0", kind))
                    for k, kind in enumerate((H100, H100, CX7)))  # fmt: skip
    tree = host(bridge("0000:00:01.0", bridge("0000:02:00.0", ports, GEN4), GEN4))
    node = read(machine(package(0, tree))).node
    assert node.edges["cpu0", "pci0000:02:00.0"]["link"] is LINKS["pcie4-x16"]
    assert all(node.has_edge("pci0000:02:00.0", v) for v in ("gpu0", "gpu1", "nic0"))
    assert sum(kind == "pci" for _, kind in node.nodes(data="kind")) == 1


def test_the_two_ports_of_a_nic_share_the_link_above_them(read):
    both = pci("0000:05:00.0", CX7, speed=GEN4) + pci("0000:05:00.1", CX7, speed=GEN4)
    node = read(machine(package(0, gpu_port(0) + host(bridge("0000:40:01.0", both, GEN4))))).node
    assert node.edges["cpu0", "pci0000:40:01.0"]["link"] is LINKS["pcie4-x16"]
    assert node.has_edge("pci0000:40:01.0", "nic0") and node.has_edge("pci0000:40:01.0", "nic1")


@pytest.mark.parametrize("device, port, taken", [
    (GEN3, GEN5, 63.0),  # NVML caps at gen 3
    (GEN3, "1.969231", 1.97),  # x2, as POWER9 has for its V100; NVML writes what the GPU could do
    (GEN4, "4.000000", 31.5),  # the port sleeps at gen 1
    (GEN4, "0.000000", 31.5), ("0.000000", GEN4, 31.5), ("4.0", "4.0", 4.0),
])  # fmt: skip
def test_of_the_two_ends_of_a_link_the_ports_counts_unless_it_sleeps(read, device, port, taken):
    one = host(bridge("0000:00:01.0", pci("0000:01:00.0", H100, speed=device), port))
    topology = read(machine(package(0, one)))
    assert edge(topology, "cpu0", "gpu0")["raw"] / 1e9 == pytest.approx(taken, rel=0.02)
    different = "0.000000" not in (device, port) and device != port
    assert any("different speeds" in note for note in topology.notes) == different


def test_names_of_hwloc_3_tell_rdma_by_their_bit(read):
    card = pci("0000:21:00.0", "0200 [ffff:0001]", os_device("eth0", 16) + os_device("x_0", 32))
    plain = pci("0000:22:00.0", "0200 [ffff:0002]", os_device("eth1", 16))
    topology = read(machine(package(0, gpu_port(0) + card + plain), version=' version="3.0"'))
    assert [topology.node.nodes[n]["name"] for n in nics_of(topology.node)] == ["x_0"]


def test_devices_without_bridges_hang_from_the_package(read):
    node = read(machine(package(0, pci("0000:01:00.0", H100)))).node
    assert node.edges["cpu0", "gpu0"]["link"] is LINKS["pcie5-x16"]


@pytest.mark.parametrize("rate, name, lanes", [
    ("63.015385", "pcie5-x16", 1), ("31.507692", "pcie4-x16", 1), ("15.753846", "pcie3-x16", 1),
    ("7.876923", "pcie3-x16", 0.5), ("4.000000", "pcie3-x16", 0.25), ("121.0", "pcie6-x16", 1),
])  # fmt: skip
def test_pcie_figures_of_hwloc_are_rows_and_widths(rate, name, lanes):
    row, share = pcie_of(float(rate) * 1e9)
    assert row.name == name and share == pytest.approx(lanes, rel=0.02)


def test_board_displays_are_no_accelerators(read):
    topology = read(machine(package(0, gpu_port(0, H100) + host(pci("0000:f0:00.0", ASPEED)))))
    assert gpus_of(topology.node) == ["gpu0"]


def test_a_vga_card_is_an_accelerator_where_nothing_else_computes(read):
    rtx = "0300 [10de:2484] [1458:404c] a1"
    assert len(gpus_of(read(machine(package(0, host(pci("0000:01:00.0", rtx))))).node)) == 1
    both = machine(package(0, gpu_port(0, H100) + host(pci("0000:f1:00.0", rtx))))
    topology = read(both)
    assert gpus_of(topology.node) == ["gpu0"]
    assert any("display of class 0300" in note for note in topology.notes)


def test_gpus_are_counted_by_their_runtime_index(read):
    def one(k: int, index: int) -> str:
        return host(pci(f"0000:{k:02x}:00.0", MI300X, rsmi(index)))

    nodes = read(machine(package(0, one(1, 1) + one(2, 0)))).node.nodes
    assert nodes["gpu0"]["busid"] == "0000:02:00.0"


def test_an_unknown_device_is_known_by_its_model(read):
    own = os_device("nvml0", 1, GPUModel="NVIDIA H200 NVL")
    topology = read(machine(package(0, host(pci("0000:01:00.0", "0302 [10de:ffff]", own)))))
    assert topology.device.name == "h100"
    topology = read(machine(package(0, host(pci("0000:01:00.0", "0302 [10de:ffff]")))))
    assert topology.device.name == "generic" and any("10de:ffff" in n for n in topology.notes)


def test_partitions_of_one_function_are_accelerators_of_their_own(read):
    def one(k: int) -> str:
        names = "".join(rsmi(4 * k + p) for p in range(4))
        return host(bridge(f"0000:{k:02x}:01.0", pci(f"0000:1{k}:00.0", MI300X, names)))

    rows = [[100000] * 8 for _ in range(8)]
    places: list[object] = list(range(500, 508))
    text = machine(package(0, one(0) + one(1)), matrix("XGMIBandwidth", places, rows))
    topology = read(text)
    assert len(gpus_of(topology.node)) == 8
    assert edge(topology, "package0", "package1")["lanes"] == 1
    assert edge(topology, "cpu0", "pci0000:10:00.0")["link"] is LINKS["pcie5-x16"]
    lower(topology)


def test_nics_without_an_active_port_are_left_out(read):
    def card(k: int, state: str) -> str:
        return host(pci(f"0000:8{k}:00.0", CX7, os_device(f"mlx5_{k}", 3, Port1State=state)))

    topology = read(machine(package(0, gpu_port(0, H100) + card(0, "1") + card(1, "4"))))
    assert [topology.node.nodes[n]["name"] for n in nics_of(topology.node)] == ["mlx5_1"]


def test_io_of_several_packages_is_put_at_the_first_and_said(read):
    topology = read(machine(package(0, "") + package(1, "") + gpu_port(0)))
    assert topology.node.has_edge("cpu0", "gpu0")
    assert any("put at the first" in note for note in topology.notes)


def test_a_machine_without_packages_is_one_cpu(read):
    assert read(machine(gpu_port(0))).node.has_edge("cpu0", "gpu0")


NV = 'pci_type="0302'
BROKEN = [
    ("<topology", "<system", "mismatched|closing tag"),
    ('version="2.0"', 'version="9.0"', "version '9.0'"),
    ('type="Machine"', 'type="Group"', "no object of type Machine"),
    (NV, 'pci_type="0106', "is an accelerator"),
    (NV, 'pci_type="xyz', "class and ids"),
    ('pci_busid="0000:11:00.0"', 'pci_busid="0000:01:00.0"', "also on line"),
    ('pci_busid="0000:11:00.0"', 'pci_busid="11"', "no bus id"),
    ('pci_busid="0000:11:00.0"', "", "no bus id"),
    (f'"{GEN5}"', '"-5"', "expected 0 to"),
    (f'"{GEN5}"', '"99999"', "expected 0 to"),
    (f'"{GEN5}"', '"fast"', "is not a number"),
    ('nbobjs="2"', 'nbobjs="3"', "2 indexes: 3 were expected"),
    ('nbobjs="2"', 'nbobjs="9999999"', "nbobjs"),
    ('nbobjs="2"', "", "nbobjs"),
    (">500 501 ", ">500 999999999 ", "no object has this"),
    (">500 501 ", ">500 x ", "not a whole number"),
    ("450000 1000000 ", "450000 ", "3 u64values: 4"),
    ("450000 1000000 ", "450000 1e9 ", "not a whole number"),
    ("450000 450000 ", "999999999999 999999999999 ", "absurd"),
    ("</topology>", "", "cut short"),
]


@pytest.mark.parametrize("old, new, message", BROKEN, ids=[b[2] for b in BROKEN])
def test_a_broken_file_is_named_with_its_line(read, old, new, message):
    assert old in PAIR
    with pytest.raises(FormatError, match=rf"lstopo.xml:[0-9]+: .*({message})") as error:
        read(PAIR.replace(old, new))
    assert "\n" not in str(error.value)


def test_two_machines_in_a_file_are_refused(read):
    two = PAIR.replace("</topology>", '<object type="Machine"/></topology>')
    with pytest.raises(FormatError, match="2 Machine objects"):
        read(two)


def test_an_empty_file_names_what_was_expected(tmp_path):
    (tmp_path / "e.xml").write_text("")
    with pytest.raises(FormatError, match="<topology> element was expected"):
        read_hwloc(tmp_path / "e.xml")


MUTATIONS = ["", '"', "<", "0", "999999999999999999999", "-1", "&lt;", "Bridge", "PCIDev", "OSDev",
             "Package", "nvml0", "500", "0000:01:00.0", "\x00", "</object>"]  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_in_one_line(tmp_path_factory, data):
    text = data.draw(st.sampled_from([PAIR, tioga([[100000] * 4 for _ in range(4)])]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(150, len(text) - 1))
        size = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.sampled_from(MUTATIONS)) + text[start + size :]
    path = tmp_path_factory.getbasetemp() / "mutated.xml"
    path.write_text(text)
    try:
        lower(read_hwloc(path))
    except FormatError as error:
        assert "\n" not in str(error) and str(path) in str(error)
