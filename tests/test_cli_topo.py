"""`rccl-topo` prints what a person wants to know of a machine, and fails in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rccl_py.cli.topo import main
from rccl_py.links import LINKS
from rccl_py.report.topo import describe, ranges, table
from rccl_py.topology import load, machine_names
from rccl_py.topology.build import Network

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


@pytest.fixture
def unlike(tmp_path: Path) -> str:
    """Three kinds of node: their leaves hold two each, at 3 to 1."""
    (tmp_path / "l40s.yaml").write_text(
        "name: l40s-4\nsummary: four GPUs and one NIC\ndevice: l40s\ngpus: 4\n"
        "host: {link: pcie4-x16, sockets: 1, switches: 2}\n"
        "nics: {link: roce-100g, count: 1, host_link: pcie4-x16}\n")  # fmt: skip
    path = tmp_path / "unlike.yaml"
    path.write_text(
        "name: unlike\nsummary: three kinds of node\nnodes:\n"
        "  - {node: mi300x-8, count: 3}\n  - {node: l40s.yaml, count: 2}\n"
        "  - {node: h100-8, count: 1}\n"
        "network: {kind: leaf-spine, leaf_nodes: 2, oversubscription: 3}\n")  # fmt: skip
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
    usable = f"{LINKS['xgmi-mi300'].usable / 1e9:.4g}"
    assert ["xgmi", "xgmi-mi300", "gpu-gpu", "1", "1", "64", usable] in rows
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


def test_show_says_what_a_gpu_and_the_machine_can_carry(capsys):
    lines = printed(capsys, "show", "mi300x-8", "--nodes", "4")
    at = lines.index("bandwidth (GB/s, per direction):")
    assert [line.split("  ")[1] for line in lines[at + 1 : at + 5]] == [
        "scale-up, a GPU", "scale-up, bisection", "scale-out, a GPU", "scale-out, bisection",
    ]  # fmt: skip
    assert "448 raw" in lines[at + 1] and "800 raw" in lines[at + 4]


def test_diff_of_equal_machines_says_so_and_exits_0(capsys):
    assert printed(capsys, "diff", "mi300x-8", "mi300x-8") == [
        "mi300x-8 and mi300x-8: no differences"]  # fmt: skip


def test_diff_of_unlike_machines_lists_them_and_exits_1(capsys, two, tmp_path):
    slow = tmp_path / "slow.xml"
    slow.write_text(TWO.replace('speed="400000"', 'speed="200000"'))
    assert main(["diff", two, str(slow)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "two -> slow" and "  NIC0 port: 400 Gb/s -> 200 Gb/s" in lines


def test_diff_of_one_machine_is_with_its_healthy_twin(capsys, tmp_path):
    assert printed(capsys, "diff", "mi300x-8") == ["mi300x-8: nothing is odd"]
    path = tmp_path / "odd.yaml"
    pairs = [[i, j] for i in range(8) for j in range(i + 1, 8) if (i, j) != (3, 5)]
    path.write_text("name: odd\nsummary: a lost link\ndevice: mi300x\ngpus: 8\nscale_up:\n"
                    f"  pairs: [{{link: xgmi-mi300, pairs: {pairs}}}]\n")  # fmt: skip
    assert main(["diff", str(path)]) == 1
    assert "  GPU3 - GPU5 link: xGMI 1 -> none" in capsys.readouterr().out.splitlines()


def test_diff_as_json_has_a_row_a_difference(capsys):
    assert main(["diff", "mi300x-8", "mi250x-4", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["equal"] and found["a"] == "mi300x-8"
    assert {"where", "what", "before", "after", "of", "text"} == set(found["differences"][0])


def test_validate_exits_0_for_sound_machines_and_2_for_an_unreadable_one(capsys, two):
    assert printed(capsys, "validate", two, "mi300x-8") == [f"{two}: ok", "mi300x-8: ok"]
    assert main(["validate", two, "no-such-machine"]) == 2
    out, err = capsys.readouterr()
    assert out == f"{two}: ok\n" and err.count("\n") == 1 and "no-such-machine" in err


def test_validate_exits_1_for_a_machine_with_errors(capsys, tmp_path):
    path = tmp_path / "apart.yaml"
    path.write_text("name: apart\nsummary: joined by nothing\ndevice: mi300x\ngpus: 2\n")
    assert main(["validate", str(path)]) == 1
    assert "error: apart: gpu0 cannot reach gpu1" in capsys.readouterr().out


def test_validate_as_json_has_a_machine_a_file(capsys, two):
    assert main(["validate", "--json", two, "no-such-machine"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["exit"] == 2 and [m["topology"] for m in found["machines"]] == [
        two, "no-such-machine"]  # fmt: skip
    assert found["machines"][0]["unreadable"] is None and found["machines"][1]["unreadable"]


@pytest.mark.parametrize("ending", [".xml", ".json", ".graphml"])
def test_what_is_converted_reads_back_without_a_link_lost(capsys, tmp_path, two, ending):
    path = tmp_path / f"two{ending}"
    assert printed(capsys, "convert", two, str(path))[0].startswith(f"{path}: two as ")
    assert printed(capsys, "diff", two, str(path)) == ["two and two: no differences"]


def test_convert_writes_to_stdout_in_the_format_asked_for(capsys, two):
    assert printed(capsys, "convert", two, "-", "--to", "nccl-xml")[0].lstrip().startswith("<")


def test_convert_exports_rings_as_graph_xml_that_show_reads(capsys, tmp_path):
    path = tmp_path / "rings.xml"
    printed(capsys, "convert", "mi300x-8", str(path), "--graph")
    lines = printed(capsys, "show", str(path))
    rate = LINKS["xgmi-mi300"].usable / 1e9
    assert lines[0].startswith(f"graph 0: ring, 8 channels, {rate:.6g} GB/s a channel inside")
    for end in (1, 2):  # every NIC is entered and left
        assert sorted(line.split("nic ")[end].split()[0] for line in lines[1:]) == list("01234567")


def test_convert_says_what_the_format_cannot_hold(capsys, tmp_path):
    path = tmp_path / "c.xml"
    assert main(["convert", "mi300x-8", "--nodes", "4", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: mi300x-8 as nccl-xml") and err.count("\n") == 1
    assert err.startswith("rccl-topo: note: only node 0 of 4 is written, without the rails network")
    assert main(["convert", "mi300x-8", "--nodes", "4", str(tmp_path / "c.json")]) == 0
    assert capsys.readouterr().err == ""


def test_rings_of_a_cluster_of_unlike_nodes_are_said_to_be_the_first_nodes(capsys, unlike):
    assert main(["convert", unlike, "-", "--graph"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("<graphs") and "3 node(s) unlike the first are left out" in err


def test_show_counts_the_kinds_of_unlike_nodes_and_describes_each(capsys, unlike):
    lines = printed(capsys, "show", unlike)
    assert lines[0] == "unlike: 40 x GPU in 3 kinds of node"
    assert lines[2].startswith("  3 x mi300x-8: 8 GPUs, 8 NICs of 400 Gb/s, AMD Instinct MI300X")
    assert lines[3:5] == ["  2 x l40s-4: 4 GPUs, 1 NIC of 100 Gb/s (nodes 3-4)",
                          "  1 x h100-8: 8 GPUs, 8 NICs of 400 Gb/s (node 5)"]  # fmt: skip
    assert [line for line in lines if line.startswith("==")] == [
        "== nodes 0-2: mi300x-8 ==", "== nodes 3-4: l40s-4 ==", "== node 5: h100-8 =="]  # fmt: skip
    assert "gfx942" not in "".join(lines[lines.index("== nodes 3-4: l40s-4 ==") :])


def test_show_says_how_a_node_with_a_fault_differs():
    whole = load("mi300x-8", nodes=4)
    lines = describe(whole.with_link("gpu0", "gpu1", 0, node=2))
    at = lines.index("== node 2: mi300x-8 ==")
    assert lines[at + 2 : at + 4] == ["as node 0, but:", "  GPU0 - GPU1 link: xGMI 1 -> none"]
    assert lines[0] == "mi300x-8: 32 x AMD Instinct MI300X"


@pytest.mark.parametrize("name, said", [
    ("frontier", "dragonfly, 74 groups of 32 routers, 4 nodes a router, 4 links a group pair"),
    ("mi300x-8-x12500-three-tier", "25 under a leaf, 1:1 oversubscribed, pods of 500"),
    ("h100-8-x32-rail-only", "rails, 32 under a leaf, leaves not joined"),
])  # fmt: skip
def test_each_kind_of_network_is_said_in_its_own_words(capsys, name, said):
    assert said in printed(capsys, "show", name)[1]


def test_a_torus_is_said_by_its_sizes():
    whole = load("mi300x-8", nodes=16)
    torus = replace(whole, network=Network("torus", dims=(4, 4)))
    assert describe(torus)[1] == "nodes: 16, torus of 4 x 4, closed; below is one node"


def test_show_gives_pcie_figures_where_nothing_else_joins_the_gpus(capsys):
    lines = printed(capsys, "show", "l40s-8")
    assert "  PCIe, a GPU       31.5 raw, 25.2 usable" in lines
    assert "  PCIe, bisection   22 raw, 22 usable (max-flow over all 35 halvings)" in lines


def test_show_gives_a_partition_its_share_of_the_package_and_what_is_inside(capsys):
    lines = printed(capsys, "show", "mi300x-8-cpx")
    assert any(line.startswith("  scale-up, a GPU      56 raw") for line in lines)
    assert "  inside a package     600 raw, 315 usable" in lines


@pytest.mark.parametrize("arguments, why", [
    (["out.bin"], "does not say a format"), (["out.xml", "--to", "svg"], "--to 'svg' is not known"),
    (["no/such/folder/out.xml"], "cannot be written"),
    (["out.xml", "--graph", "--to", "json"], "leave --to out"),
])  # fmt: skip
def test_a_conversion_that_cannot_be_is_one_line(
    capsys, monkeypatch, tmp_path, two, arguments, why
):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", two, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and why in err


def test_draw_names_its_file_after_the_machine(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    (line,) = printed(capsys, "draw", "mi300x-8")
    assert line.startswith("mi300x-8.png: mi300x-8, by bandwidth")
    assert (tmp_path / "mi300x-8.png").stat().st_size > 5000


def test_draw_by_load_plans_the_collective_named(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "load.svg"
    (line,) = printed(capsys, "draw", "mi300x-8", "--load", "alltoall:64M", "-o", str(path))
    assert ", by load, " in line and "alltoall of 67108864 B" in path.read_text()


@pytest.mark.parametrize("arguments, why", [
    (["-o", "x.gif"], ".png, .svg or .pdf"), (["--load", "nonsense"], "nonsense"),
    (["--load", "allreduce:many"], "many"), (["--load", "allreduce", "--by", "bandwidth"], "--by"),
])  # fmt: skip
def test_a_picture_that_cannot_be_is_one_line(capsys, arguments, why):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert main(["draw", "mi300x-8", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and why in err


@pytest.mark.parametrize("shell", [
    "{run} show helios-72 --matrix | head -1", "{run} show mi300x-8 >&-",
    "{run} convert helios-72 - --to json | head -c 10", "{run} list | true",
])  # fmt: skip
def test_a_closed_stdout_is_no_internal_error(shell):
    run = f"{sys.executable} -c 'import sys; from rccl_py.cli.topo import main; sys.exit(main())'"
    done = subprocess.run(["sh", "-c", shell.format(run=run)], capture_output=True, text=True,
                          cwd=Path(__file__).parents[1], timeout=60)  # fmt: skip
    assert done.stderr == ""


def test_ranges_join_runs_and_tables_align_their_columns():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and ranges([]) == ""
    assert table([["a", "bb"], ["ccc", "d"]], indent="") == ["a    bb", "ccc  d"]
    assert table([["a", "bb"], ["ccc", "d"]], right=True, indent="") == ["  a  bb", "ccc   d"]
