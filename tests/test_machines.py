"""The machines in topologies/: each loads, is drawn, planned for, and has the published figures.

What is published stands in docs/tables_topologies.py, which prints docs/topologies.md; the page is
compared with what it prints, so neither can rot.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rccl_py import Planner, Topology, load, lower, machine_names
from rccl_py.fabric import Fabric
from rccl_py.report.topo import describe
from rccl_py.topology.build import gpus_of

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "topologies").glob("*.yaml"))
MIB = 1 << 20

each_machine = pytest.mark.parametrize("name", NAMES)


@cache
def machine(name: str) -> Topology:
    return load(name)


@cache
def fabric(name: str) -> Fabric:
    return lower(machine(name))


def _module() -> ModuleType:
    path = ROOT / "docs" / "tables_topologies.py"
    spec = importlib.util.spec_from_file_location("tables_topologies", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their own module up
    spec.loader.exec_module(made)
    return made


TABLES = _module()


# ---- every file -----------------------------------------------------------------------------


def test_at_least_twenty_four_machines_are_shipped_and_found_by_name():
    assert len(NAMES) >= 24 and sorted(machine_names()) == NAMES


@each_machine
def test_a_file_is_named_as_its_machine_and_says_what_it_is_and_who_says_so(name: str):
    found = machine(name)
    assert found.name == name and found.sources and all(map(str.strip, found.sources))
    assert 10 < len(found.summary) <= 100 and not found.summary.endswith(".")


@each_machine
def test_a_file_has_sources_of_its_own_and_lines_that_can_be_read(name: str):
    text = (ROOT / "topologies" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.isascii() and max(map(len, text.splitlines())) <= 100
    assert "\nsources:\n" in text  # its own, besides its node's


@each_machine
def test_a_machine_is_lowered_with_every_accelerator_it_has(name: str):
    assert fabric(name).nranks == machine(name).nranks


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mixed-x6"])
def test_a_machine_is_lowered_as_two_nodes(name: str):
    """All but the one that says which accelerators of which nodes it takes."""
    two = load(name, nodes=2)
    assert lower(two).nranks == 2 * two.gpus_per_node


@each_machine
def test_an_allreduce_of_64_mib_is_planned_and_no_faster_than_its_bound(name: str):
    # Spray: minimal paths are enough to see that a plan is found, and cost less to compute.
    # Of a cluster three nodes will do, of a rack or a pod 64 accelerators.
    found = machine(name)
    ranks = min(64, found.nranks, found.gpus_per_node * (1 if found.nodes == 1 else 3))
    plan = Planner(lower(load(name, routing="spray"), ranks)).plan("allreduce", 64 * MIB)
    assert plan.nranks == ranks and plan.bound.seconds <= plan.time < 0.1


@pytest.mark.parametrize("name", [n for n in NAMES if n != "ualink-1024"])
def test_a_machine_is_described(name: str):
    """All but the pod of 1,024, whose matrices of a million cells take seconds."""
    lines = describe(machine(name))
    assert lines[0].startswith(f"{name}: {machine(name).ngpus} x ")


# ---- published figures ----------------------------------------------------------------------


def test_every_machine_has_a_row_of_published_figures():
    assert sorted(TABLES.PUBLISHED) == NAMES


@each_machine
def test_the_figures_of_a_machine_equal_the_published_ones(name: str):
    row, ours = TABLES.published(name), TABLES.ours(name)
    for head in TABLES.HEADS:
        said = getattr(row, head)
        if not said:
            assert not any(ours[head]), f"{head}: {ours[head]}, and nothing is published"
            continue
        figures = [TABLES.figure(text) for text in said.split(" to ")]
        assert len(figures) == len(ours[head]), f"{head}: {said} against {ours[head]}"
        for figure, own in zip(figures, ours[head]):
            assert figure.is_met_by(own), f"{head}: {said} is {figure.value}, the file has {own}"


def test_the_page_shows_the_figures_of_today():
    shown = TABLES.PAGE.read_text(encoding="utf-8")
    assert shown == TABLES.page(shown), "run docs/tables_topologies.py"


@pytest.mark.parametrize(("text", "value", "rounding"), [
    ("448 GB/s", 448e9, 0),
    ("400 Gb/s", 50e9, 0),
    ("7 x 153.6 GB/s both ways", 537.6e9, 0),
    ("6,250 x 8 x 400 Gb/s / 2", 1.25e15, 0),
    ("about 130 TB/s both ways / 2", 32.5e12, 5e12 / 4),
    ("about 4 x 43 TB/s both ways", 86e12, 1e12),
    ("about 1.8 TB/s", 1.8e12, 0.05e12),
])  # fmt: skip
def test_a_published_figure_is_read_as_one_direction(text, value, rounding):
    found = TABLES.figure(text)
    assert (found.value, found.rounding) == (pytest.approx(value), pytest.approx(rounding))


def test_a_figure_that_is_off_by_more_than_its_last_digit_is_not_met():
    assert TABLES.figure("about 43 TB/s").is_met_by(43.4e12)
    assert not TABLES.figure("about 43 TB/s").is_met_by(43.6e12)
    assert not TABLES.figure("43 TB/s").is_met_by(43.001e12)
    with pytest.raises(ValueError, match="is not a figure"):
        TABLES.figure("43 TB")


# ---- what makes a machine that machine ------------------------------------------------------


def links(name: str) -> Counter[frozenset[str]]:
    """Return the links of a kind of scale-up between two accelerators, counted once a pair."""
    graph = machine(name).node
    gpus = set(gpus_of(graph))
    return Counter({frozenset((a, b)): data["lanes"] for a, b, data in graph.edges(data=True)
                    if a in gpus and b in gpus})  # fmt: skip


def beside(name: str, gpu: str) -> list[str]:
    """Return the NICs on the PCIe switch of an accelerator."""
    graph = machine(name).node
    above = [v for v in graph.successors(gpu) if graph.nodes[v]["kind"] == "pci"]
    return sorted(v for v in graph.successors(above[0]) if graph.nodes[v]["kind"] == "nic")


def test_a_gcd_of_mi250x_has_4_links_in_its_package_and_1_or_2_to_others():
    found = links("mi250x-4")
    assert sorted(found.values()) == [1] * 6 + [2] * 2 + [4] * 4
    assert all(found[frozenset((f"gpu{i}", f"gpu{i + 1}"))] == 4 for i in (0, 2, 4, 6))


def test_every_v100_of_a_dgx1_has_6_nvlinks_to_4_others_and_none_to_3():
    found = links("v100-8")
    for gpu in map("gpu{}".format, range(8)):
        assert sorted(n for pair, n in found.items() if gpu in pair) == [1, 1, 2, 2]


def test_every_chip_of_a_cube_has_6_links_and_the_ends_of_a_row_meet():
    graph = machine("tpu-v4-64").node
    assert {graph.out_degree(chip) - 1 for chip in gpus_of(graph)} == {6}  # and its host's NIC
    assert graph.has_edge("gpu0", "gpu3") and not graph.has_edge("gpu0", "gpu2")


@pytest.mark.parametrize(("name", "nics"), [
    ("a100-8", ["nic0", "nic1"]), ("v100-8", ["nic0"]), ("v100-16", ["nic0"]),
    ("mi355x-8", ["nic0"]), ("l40s-8", ["nic0"]),
])  # fmt: skip
def test_nics_hang_beside_their_accelerators(name, nics):
    assert beside(name, "gpu0") == nics and not set(nics) & set(beside(name, "gpu7"))


def crossed(name: str, src: int, dst: int) -> list[str]:
    """Return the links a message from rank to rank crosses."""
    one = fabric(name)
    found = one.routes(np.array([src], np.int32), np.array([dst], np.int32))
    return [one.link_name(int(link)) for link in np.unique(found.link)]


def test_partitions_of_a_package_are_ranks_that_share_its_links():
    for partition in range(8):
        assert "package0 -> package1" in crossed("mi300x-8-cpx", partition, 8 + partition)
    assert not any("package1" in link for link in crossed("mi300x-8-cpx", 0, 7))


def test_a_virtual_function_has_half_a_nic_and_no_more():
    graph = machine("mi300x-8-vm").node
    capped = {data["bandwidth"] for a, b, data in graph.edges(data=True)
              if "vf0.0" in (a, b) and "pci0" in (a, b)}  # fmt: skip
    assert capped == {25e9} and graph.nodes["nic0"]["port"].bandwidth == 50e9


def test_a_mixed_job_takes_8_8_4_2_8_and_6_accelerators_of_six_nodes():
    assert np.bincount(fabric("mixed-x6").node).tolist() == [8, 8, 4, 2, 8, 6]


def test_a_rack_is_one_domain_over_its_hosts():
    for name, hosts in (("helios-72", 18), ("gb200-nvl72", 18), ("ualink-1024", 128)):
        graph = machine(name).node
        assert len({graph.nodes[gpu]["host"] for gpu in gpus_of(graph)}) == hosts
        assert not any("nic" in link for link in crossed(name, 0, machine(name).nranks - 1))


def test_a_connection_takes_one_spine_by_hash_and_sprayed_packets_take_all():
    # Accelerator 0 of the first node and of the fifth, which is under another leaf.
    hashed, sprayed = ([link for link in crossed(name, 0, 32) if link.startswith("leaf0 -> ")]
                       for name in ("mi300x-8-x64-ecmp", "mi300x-8-x16-leaf-spine"))  # fmt: skip
    assert len(hashed) == 1 and hashed[0].removeprefix("leaf0 -> spine").isdigit()
    assert sprayed == ["leaf0 -> spines"]


def test_without_a_spine_a_message_changes_rail_inside_a_node():
    over = crossed("h100-8-x32-rail-only", 0, 9)
    assert not any("spine" in link for link in over) and any("gpu1" in link for link in over)


def test_groups_of_frontier_are_joined_by_4_links_a_pair():
    wiring = fabric("frontier").wiring
    assert wiring is not None and wiring.between == 4


def test_a_hundred_thousand_accelerators_lie_behind_three_tiers():
    one = fabric("mi300x-8-x12500-three-tier")
    assert one.nranks == 100_000 and one.wiring.npods == 25
    assert any("core" in link for link in crossed("mi300x-8-x12500-three-tier", 0, 99_999))
