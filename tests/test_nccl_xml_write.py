"""A machine written as topology XML is a file RCCL takes, and reads back to the same fabric."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xml_pieces import AMD, PAIR, cpu, gpu, link, nic, system

from rccl_py.errors import FormatError, InvalidArgument
from rccl_py.links import DEVICES, LINKS, Device
from rccl_py.topology.build import Topology, add_gpus, add_link, add_nic, add_switches, new_graph
from rccl_py.topology.formats.nccl.reader import parse_nccl_xml, read_nccl_xml
from rccl_py.topology.formats.nccl.writer import write_nccl_xml
from rccl_py.topology.load import load, machine_names
from rccl_py.topology.lower import lower

CASES = os.environ.get("RCCL_PY_CASES", "")
REAL = sorted(Path(CASES, "topo_xml").rglob("*.xml")) if CASES else []
needs_cases = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains topo_xml/"
)


def back(text: str) -> Topology:
    return parse_nccl_xml(text, Path("back.xml"))


def inside(topology: Topology):
    """Return every pair's bandwidth, latency and message time on one node."""
    domain = lower(replace(topology, nodes=1, unlike=(), place=())).domain
    m = domain.ngpus
    i, j = (x.ravel() for x in np.meshgrid(np.arange(m), np.arange(m), indexing="ij"))
    routes = domain.inside.routes(i, j)
    rate = np.full(m * m, np.inf)
    np.minimum.at(rate, routes.row, domain.bandwidth[routes.link] / routes.share)
    return rate, domain.inside.latency(i, j), domain.inside.message(i, j)


def outside(topology: Topology):
    """Return which NICs GPUs use, what the way to them carries and costs, and the NICs' ports."""
    domain = lower(replace(topology, nodes=2, unlike=(), place=())).domain
    rows = np.repeat(np.arange(len(domain.nic)), np.diff(domain.up.ptr))
    rate = np.full(len(domain.nic), np.inf)
    np.minimum.at(rate, rows, domain.bandwidth[domain.up.link] / domain.up.share)
    return (domain.attach, domain.nic, rate, domain.wait, domain.owner, domain.port,
            domain.port_latency, domain.port_message)  # fmt: skip


def require_same(one: Topology, two: Topology) -> None:
    for a, b in zip(inside(one), inside(two)):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    if any(data["kind"] == "nic" for _, data in one.node.nodes(data=True)):
        for a, b in zip(outside(one), outside(two)):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    assert one.device == two.device


CANNOT = {"tpu-v4-64": "torus", "tpu-v5p-512": "torus", "ualink-1024": "NCCL holds 640"}


@pytest.mark.parametrize("name", sorted(machine_names()))
def test_every_shipped_machine_reads_back_to_the_same_fabric_or_says_why_it_cannot(name):
    topology = load(name)
    if name in CANNOT:
        with pytest.raises(FormatError, match=CANNOT[name]):
            write_nccl_xml(topology)
    else:
        require_same(topology, back(write_nccl_xml(topology)))


@needs_cases
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_every_real_file_reads_back_to_the_same_fabric(path):
    topology = read_nccl_xml(path)
    require_same(topology, back(write_nccl_xml(topology)))


@needs_cases
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_writing_what_was_read_back_changes_nothing(path):
    text = write_nccl_xml(read_nccl_xml(path))
    again = write_nccl_xml(replace(back(text), name=path.stem))
    lines = [[line for line in t.splitlines() if "<!-- " not in line] for t in (text, again)]
    assert lines[0] == lines[1]


def test_what_a_file_says_of_its_devices_is_written_again(read):
    text = write_nccl_xml(read(PAIR))
    for part in ('busid="0000:01:00.0"', 'class="0x120000"', 'gcn="gfx942"', 'sm="304"',
                 'numaid="0"', AMD, 'link_speed="32.0 GT/s PCIe" link_width="16"',
                 '<net name="mlx5_0" dev="0" speed="400000"', 'gdr="1"',
                 '<xgmi target="0000:02:00.0" count="1" tclass="0x120000"/>'):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("name", ["mi300x-8", "h100-8", "helios-72", "mi250x-4"])
def test_the_text_is_what_the_parser_of_nccl_takes(name):
    text = write_nccl_xml(load(name))
    assert re.search(r'^<system version="[12]">$', text, re.MULTILINE) and text.isascii()
    for line in text.splitlines():
        if line.startswith("<!-- "):  # the parser's first token must end in a blank
            assert line.endswith(" -->") and "--" not in line[4:-3]
            continue
        assert re.fullmatch(r'\s*</?[a-z0-9]+( [a-z_0-9]+="[^"<>&]*")*/?>', line)
        assert line.count('="') <= 16
        assert all(len(value) < 255 for value in re.findall(r'"([^"]*)"', line))


def test_bus_ids_and_guids_and_names_are_each_given_once():
    text = write_nccl_xml(load("helios-72"))
    for attribute, count in (("busid", 72 * 5), ("guid", 216)):
        found = re.findall(rf' {attribute}="([^"]*)"', text)
        assert len(found) == len(set(found)) == count


def test_the_version_follows_the_accelerators_and_may_be_chosen():
    assert '<system version="2">' in write_nccl_xml(load("mi300x-8"))
    assert '<system version="1">' in write_nccl_xml(load("h100-8"))
    assert '<system version="2">' in write_nccl_xml(load("h100-8"), version=2)
    with pytest.raises(InvalidArgument, match="version"):
        write_nccl_xml(load("h100-8"), version=3)


def test_cpu_affinity_is_kept_but_never_invented(read):
    masked = PAIR.replace('numaid="0"', 'numaid="0" affinity="00ff,00ff"')
    assert 'affinity="00ff,00ff"' in write_nccl_xml(read(masked))
    assert "affinity" not in write_nccl_xml(load("mi300x-8"))


def test_what_is_invented_or_left_out_is_said_in_comments():
    text = write_nccl_xml(load("mi300x-8-x16-leaf-spine"))
    assert "<!-- one of 16 nodes; their network (leaf-spine) is not said here -->" in text


def test_writing_is_deterministic():
    assert write_nccl_xml(load("mi300x-8")) == write_nccl_xml(load("mi300x-8"))


def pair_of(own, lanes: float = 1, device: Device = DEVICES["mi300x"]) -> Topology:
    graph = new_graph("pair")
    names = add_gpus(graph, 2)
    add_link(graph, *names, own, lanes)
    add_nic(graph, 0, LINKS["roce-400g"], names, LINKS["pcie5-x16"])
    return Topology("pair", graph, device)


@pytest.mark.parametrize("lanes", [1, 2.5, 0.5, 16])
def test_a_link_of_the_machines_own_is_carried_in_a_comment(lanes):
    own = replace(LINKS["xgmi-mi300"], name="mine", bandwidth=7e9, efficiency=0.9, source="a -->")
    topology = pair_of(own, lanes)
    text = write_nccl_xml(topology)
    require_same(topology, back(text))
    assert back(text).node.edges["gpu0", "gpu1"]["link"] == own


def test_a_device_of_the_machines_own_is_carried_in_a_comment():
    device = Device("mine", "Mine", "gfx942", 3e-6, 2e12, "xgmi-mi300")
    topology = pair_of(LINKS["xgmi-mi300"], device=device)
    assert back(write_nccl_xml(topology)).device == device


def test_a_machine_of_plain_rows_needs_no_comment_of_ours():
    assert "<!-- rccl_py" not in write_nccl_xml(pair_of(LINKS["xgmi-mi300"]))


def test_an_odd_row_between_sockets_is_carried(read):
    topology = read(system(cpu(gpu("1:0.0", 0)) + cpu(gpu("2:0.0", 1), 1)))
    own = replace(LINKS["xgmi-cpu"], name="narrow", bandwidth=1e9)
    for ends in (("cpu0", "cpu1"), ("cpu1", "cpu0")):
        rate = own.bandwidth * own.efficiency
        topology.node.edges[ends].update(link=own, raw=own.bandwidth, bandwidth=rate)
    require_same(topology, back(write_nccl_xml(topology)))


def test_switch_planes_become_targets_of_one_switch():
    topology = load("h100-8")
    text = write_nccl_xml(topology)
    counts = re.findall(r'<nvlink target="[^"]+" count="(\d+)" tclass="0x068000"/>', text)
    assert sum(map(int, counts)) == 8 * 18
    assert back(text).node.edges["gpu0", "nvswitch0"]["lanes"] == 18


PIECES = {
    "coherent": system(cpu(gpu("1:0.0", 0, '<c2c bw="44712" count="5"/>', 'sm="90"')
                           + gpu("2:0.0", 1, '<c2c bw="44712" count="5"/>', 'sm="90"'), 0,
                           'arch="arm64"'), 1),
    "power": system(cpu(gpu("1:0.0", 0, link("nvlink", "4:0:0.0", 3, "0x068001"), 'sm="70"')
                        + gpu("2:0.0", 1, arch='sm="70"'), 0, 'arch="ppc64"'), 1),
    "two ports": system(cpu(gpu("1:0.0", 0) + nic("2:0.0", 0).replace(
        "</nic>", '<net name="mlx5_1" dev="1" speed="200000"/></nic>'))),
    "socket NIC": system(cpu(gpu("1:0.0", 0) + '<nic><net name="eth0" dev="0" speed="1000"/></nic>')
                         + cpu(gpu("2:0.0", 1)
                               + '<nic><net name="eth0" dev="0" speed="1000"/></nic>', 1)),
    "partitions": system(cpu(gpu("1:0.0", 0, link("xgmi", "2:0.0", 2), rank=0).replace(
        "</gpu>", '</gpu><gpu dev="0" gcn="gfx942" rank="2"/>')
        + gpu("2:0.0", 1, link("xgmi", "1:0.0", 2)))),
    "PCI peers": system(cpu(
        f'<pci busid="1:0.0" class="0x060400"><pcilink target="2:0.0"/>{gpu("3:0.0", 0)}</pci>'
        f'<pci busid="2:0.0" class="0x060400"><pcilink target="1:0.0"/>{gpu("4:0.0", 1)}</pci>')),
    "hosts": system("".join(
        cpu(gpu(f"{k}:1:0.0", 0, link("nvlink", "fffffff:ff:ff.0", 18, "0x068000"), 'sm="100"',
                rank=k) + nic(f"{k}:2:0.0", 0), 0, f'arch="arm64" host_hash="0x{k + 7}"')
        for k in range(3)), 1),
    "GPU and NIC": system(cpu(gpu("1:0.0", 0).replace(
        "</gpu>", '</gpu><nic><net name="x" dev="0" speed="100000"/></nic>'))),
    "slow and narrow": system(cpu(gpu("1:0.0", 0, pci='link_speed="2.5 GT/s" link_width="4"')
                                  + gpu("2:0.0", 1, pci='link_speed="128 GT/s" link_width="8"'))),
    "numaid -1": system(cpu(gpu("1:0.0", 0), -1)),
}  # fmt: skip


@pytest.mark.parametrize("case", PIECES)
def test_every_kind_of_element_reads_back(read, case):
    topology = read(PIECES[case])
    text = write_nccl_xml(topology)
    require_same(topology, back(text))
    assert "<!-- rccl_py" not in text
    ends = [{frozenset(e) for e in t.node.edges} for t in (topology, back(text))]
    assert ends[0] == ends[1]


def refused(topology: Topology, why: str) -> None:
    with pytest.raises(FormatError, match=f"pair: cannot be written as topology XML: .*{why}"):
        write_nccl_xml(topology)


def test_what_the_format_has_no_place_for_is_refused_by_name():
    plain = pair_of(LINKS["xgmi-mi300"])
    for change, why in (
        (lambda g: g.remove_edge("gpu1", "gpu0"), "no way back"),
        (lambda g: g.edges["gpu0", "gpu1"].update(lanes=2), "different links"),
        (lambda g: [g.edges[e].update(bandwidth=1.0) for e in (("gpu0", "gpu1"),)], "1 B/s"),
        (lambda g: g.add_node("x", kind="router"), "kind router"),
        (lambda g: add_link(g, "gpu0", "nic0", LINKS["pcie5-x16"]), "directly"),
        (lambda g: add_switches(g, ["gpu0"], LINKS["xgmi-mi300"], 1, 1, 0.0, "a")
         or add_switches(g, ["gpu1"], LINKS["xgmi-mi300"], 1, 1, 0.0, "b"), "one switch"),
        (lambda g: g.remove_nodes_from(["gpu0", "gpu1"]), "no accelerator"),
    ):  # fmt: skip
        graph = plain.node.copy()
        change(graph)
        refused(replace(plain, node=graph), why)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_machine_of_pairs_switches_and_nics_reads_back(data):
    count = data.draw(st.integers(1, 6))
    graph = new_graph("any")
    names = add_gpus(graph, count)
    row = LINKS[data.draw(st.sampled_from(["xgmi-mi300", "nvlink4", "ualink-200g"]))]
    if data.draw(st.booleans()):
        add_switches(graph, names, row, data.draw(st.integers(1, 18)), data.draw(st.integers(1, 4)),
                     data.draw(st.sampled_from([1e-7, 3e-7])))  # fmt: skip
    else:
        for i in range(count - 1):
            add_link(graph, names[i], names[i + 1], row, data.draw(st.integers(1, 4)))
    port = LINKS[data.draw(st.sampled_from(["roce-400g", "ib-200g", "uec-800g", "eth-10g"]))]
    for q in range(data.draw(st.integers(0, 3))):
        near = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        host = LINKS[data.draw(st.sampled_from(["pcie4-x16", "pcie5-x16"]))]
        add_nic(graph, q, port, near, host)
    device = DEVICES[data.draw(st.sampled_from(["mi300x", "mi325x", "h100", "generic"]))]
    topology = Topology("any", graph, device)
    try:
        text = write_nccl_xml(topology)
    except FormatError as error:
        assert "links of 2 kinds" in str(error)
        return
    for a, b in zip(inside(topology), inside(back(text))):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_what_a_net_says_of_itself_is_written_again(read):
    text = system(cpu(gpu("1:0.0", 0) + nic("2:0.0", 0)), 1).replace(
        'port="1"/>', 'port="2" latency="1.500000" guid="0xabc" maxconn="7" gdr="0" coll="1"/>'
    )
    again = write_nccl_xml(read(text))
    for kept in (
        'port="2"',
        'latency="1.500000"',
        'guid="0xabc"',
        'maxconn="7"',
        'gdr="0"',
        'coll="1"',
    ):
        assert again[again.index("<net") :].count(kept) == 1
