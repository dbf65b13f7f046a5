"""`rccl-topo` prints what a person wants to know of a machine, and fails in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rccl_py.cli.topo import main
from rccl_py.report_topo import ranges, table
from rccl_py.topology import machine_names

TWO = """<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="304" gcn="gfx942" rank="0"><xgmi target="0000:04:00.0" count="1"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="bnxt_re0" dev="0" speed="400000"/></nic>
      </pci>
    </pci>
    <pci busid="0000:04:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="304" gcn="gfx942" rank="1"><xgmi target="0000:02:00.0" count="1"/></gpu>
    </pci>
  </cpu>
</system>
"""


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "two.xml"
    path.write_text(TWO)
    return str(path)


def printed(capsys, *arguments: str) -> list[str]:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_list_names_every_installed_machine_with_its_summary(capsys):
    lines = printed(capsys, "list")
    assert [line.split()[0] for line in lines] == list(machine_names())
    assert all(summary in line for line, summary in zip(lines, machine_names().values()))


def test_show_prints_devices_links_and_both_matrices_of_an_xml_file(capsys, two):
    lines = printed(capsys, "show", two)
    rows = [line.split() for line in lines]
    assert lines[0] == "two: 2 x AMD Instinct MI300X"
    assert ["GPU1", "0000:04:00.0", "0", "gfx942"] in rows
    assert [
        "NIC0",
        "bnxt_re0",
        "0000:03:00.0",
        "0",
        "roce-400g",
        "400",
        "Gb/s",
        "0",
        "(PIX)",
    ] in rows
    assert ["xgmi", "xgmi-mi300", "gpu-gpu", "1", "1", "64", "46.55"] in rows
    assert ["GPU0", "X", "XGMI1"] in rows and ["GPU0", "PIX"] in rows and ["GPU1", "PHB"] in rows
    assert [row[0] for row in rows[rows.index(["legend:"]) + 1 :]] == ["X", "XGMI#", "PIX", "PHB"]


def test_rocm_adds_weight_hops_and_link_type(capsys, two):
    lines = printed(capsys, "show", two, "--rocm")
    for title, cell in (("weight", "15"), ("hops", "1"), ("link type", "XGMI")):
        at = lines.index(f"{title} between two GPUs:")
        assert lines[at + 2].split() == ["GPU0", "0", cell]


def test_notes_of_the_file_are_printed(capsys, tmp_path):
    path = tmp_path / "noted.xml"
    path.write_text(TWO.replace('link_speed="32.0 GT/s PCIe"', 'link_speed=""', 1))
    lines = printed(capsys, "show", str(path))
    assert any(line.startswith("  - PCIe link_speed missing") for line in lines)


@pytest.mark.parametrize("name", list(machine_names()))
def test_every_installed_machine_is_shown_within_a_screen_width(capsys, name):
    lines = printed(capsys, "show", name)
    assert lines and max(map(len, lines)) <= 120
    assert all(line == line.rstrip() for line in lines)


def test_a_large_machine_is_summarised_unless_the_matrix_is_asked_for(capsys):
    short, whole = printed(capsys, "show", "helios-72"), printed(
        capsys, "show", "helios-72", "--matrix")  # fmt: skip
    assert any("every pair UAL72" in line for line in short) and len(short) < 40
    assert sum(line.split()[:2] == ["GPU71", "UAL72"] for line in whole) == 1


def test_nodes_and_network_are_said_when_a_node_is_repeated(capsys, two):
    lines = printed(capsys, "show", two, "--nodes", "4", "--network", "leaf-spine",
                    "--leaf-nodes", "2", "--oversubscription", "2")  # fmt: skip
    assert lines[0].startswith("two: 8 x ")
    assert lines[1] == ("nodes: 4, leaf-spine, 2 under a leaf, 2:1 oversubscribed; "
                        "below is one node")  # fmt: skip


@pytest.mark.parametrize("content", [
    b"", b"<system", b"\x00\x01\x02", b"<system version='2'/>", b"<graphs version='1'/>",
    TWO[:300].encode(), TWO.replace("0000:04:00.0", "0000:02:00.0").encode(),
    TWO.replace('target="0000:04', 'target="0000:09').encode(), b"\xff\xfe" + TWO.encode(),
])  # fmt: skip
def test_a_bad_file_is_one_line_on_stderr_and_exit_code_2(capsys, tmp_path, content):
    path = tmp_path / "bad.xml"
    path.write_bytes(content)
    assert main(["show", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"rccl-topo: {path}:")


@pytest.mark.parametrize("arguments", [
    ["show", "no-such-machine"], ["show", "."], ["show", "mi300x-8", "--nodes", "0"],
])  # fmt: skip
def test_a_bad_name_or_number_is_one_line_and_exit_code_2(capsys, arguments):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("rccl-topo: ")


@pytest.mark.parametrize("arguments", [[], ["draw"], ["show"], ["show", "x", "--nodes", "many"]])
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_ranges_join_runs_and_tables_align_their_columns():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and ranges([]) == ""
    assert table([["a", "bb"], ["ccc", "d"]], indent="") == ["a    bb", "ccc  d"]
    assert table([["a", "bb"], ["ccc", "d"]], right=True, indent="") == ["  a  bb", "ccc   d"]
