"""The policies of RCCL: models by device, windows by bytes a rank, and published choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rccl_py.collectives import COLLECTIVES
from rccl_py.errors import InvalidUsage
from rccl_py.planner.policies import POLICIES, figures_of, policies_for
from rccl_py.planner.policies.graph import Graph
from rccl_py.planner.policies.rccl import Release, cost_table, model_of, window_of
from rccl_py.topology import load, lower

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NEW = Release(msccl=False, windows=True)


def found_on(machine, nodes=None, ranks=None):
    return figures_of(lower(load(machine, nodes=nodes), ranks))


def chosen(policy, figures, collective, size):
    found = POLICIES[policy].pick(figures, collective, size)
    return f"{found.algorithm}/{found.protocol}"


def test_a_mesh_of_eight_has_rccls_rings_and_its_presets_channels():
    # "Channel 00/56" in RCCL's log of an MI300X node; gfx950: 112 on one node by default.
    one, several = found_on("mi300x-8"), found_on("mi300x-8", 2)
    assert (one.ring, one.channels) == (Graph(7, 48.0, 48.0), 56)
    assert (several.ring, several.channels) == (Graph(8, 48.0, 48.0), 64)
    assert found_on("mi355x-8").channels == 112


@pytest.mark.parametrize("arch, ainic, model", [
    ("gfx906", False, "0"), ("gfx90a", False, "0"), ("gfx1100", False, "0"),
    ("gfx942", False, "5"), ("gfx942", True, "8"), ("gfx950", True, "6"), ("gfx1201", False, "7"),
    ("gfx1151", False, "9"),
])  # fmt: skip
def test_the_tuning_model_follows_device_and_nic(arch, ainic, model):
    assert model_of(replace(found_on("mi300x-8"), arch=arch, ainic=ainic)) == model


def test_a_device_without_tables_is_refused_by_name():
    with pytest.raises(InvalidUsage, match=r"no tuning model for arch 'gfx700': .*gfx94"):
        model_of(replace(found_on("mi300x-8"), arch="gfx700"))


# RCCL's topo_expl on 8 MI300 nodes says: Tree LL up to 1M, Tree LL128 2M-32M, Tree Simple
# 64M-256M, Ring Simple from 512M. In 2.28.3 the LL window ends at 512 KiB.
SAMPLE = (
    [(1 << k, "Tree/LL") for k in range(10, 20)]
    + [(1 << k, "Tree/LL128") for k in range(21, 26)]
    + [(1 << k, "Tree/Simple") for k in range(26, 29)]
    + [(1 << k, "Ring/Simple") for k in range(29, 34)]
)


@pytest.mark.parametrize("size, expected", SAMPLE)
def test_allreduce_on_eight_nodes_is_what_topo_expl_prints(size, expected):
    f = replace(found_on("mi300x-8", 8), ainic=True)
    assert chosen("rccl-2.28", f, "allreduce", size) == expected


# rocm-systems pull request 9409, "before": two MI350X nodes, algo proto nchannels as run.
@pytest.mark.parametrize("size, expected", [
    (32 * MIB, "Tree/LL128"), (64 * MIB, "Ring/LL128"), (128 * MIB, "Ring/Simple"),
])  # fmt: skip
def test_allreduce_on_two_mi350_nodes_is_what_their_run_printed(size, expected):
    found = POLICIES["rccl-2.28"].pick(found_on("mi350x-8", 2), "allreduce", size)
    assert f"{found.algorithm}/{found.protocol}" == expected
    assert found.channels == 64


def test_windows_are_open_below_and_closed_above():
    f = found_on("mi300x-8", 2)
    ask = lambda collective, part: window_of(NEW, f, collective, part * f.ranks)  # noqa: E731
    assert [ask("allgather", p) for p in (1, 98_304, 98_305, 5_046_272, 5_046_273)] == [
        "LL", "LL", "LL128", "LL128", "Simple",
    ]  # fmt: skip
    # LL128 overrides LL where both hold: LL up to 655,360, LL128 from 131,072.
    assert [ask("reduce_scatter", p) for p in (131_072, 131_073, 3_211_265)] == [
        "LL", "LL128", "Simple",
    ]  # fmt: skip


def test_the_ll128_window_of_allreduce_is_wider_beyond_two_nodes():
    two, four = found_on("mi300x-8", 2), found_on("mi300x-8", 4)
    assert window_of(NEW, two, "allreduce", 4_415_058) == "Simple"
    assert window_of(NEW, four, "allreduce", 4_415_058) == "LL128"
    assert window_of(NEW, four, "allreduce", int(4_415_057 * 3.8) + 1) == "Simple"


def test_without_ll128_its_window_is_left_to_the_others():
    far = replace(found_on("mi300x-8", 2), type_inter="PHB")
    assert window_of(NEW, far, "allreduce", 2 * MIB) == "Simple"
    assert window_of(NEW, far, "reduce_scatter", 200_000 * 16) == "LL"


def test_one_node_of_mi300_has_no_tree_simple_and_its_own_ll_cutoffs():
    mi300, mi355 = found_on("mi300x-8"), found_on("mi355x-8")
    assert ("Tree", "Simple") not in cost_table(NEW, "allreduce", mi300)
    assert chosen("rccl-2.28", mi300, "reduce_scatter", 352_128 * 8) == "Ring/LL"
    assert chosen("rccl-2.28", mi300, "reduce_scatter", 352_129 * 8) == "Ring/Simple"
    assert chosen("rccl-2.28", mi355, "reduce_scatter", MIB * 8) == "Ring/LL"


def test_direct_allgather_goes_first_up_to_its_size_for_multiples_of_eight_ranks():
    limits = {("mi300x-8", 1): 4 * MIB, ("mi300x-8", 4): 4 * MIB, ("mi355x-8", 1): 8 * MIB,
              ("mi355x-8", 4): 8 * MIB}  # fmt: skip
    for (machine, nodes), limit in limits.items():
        f = found_on(machine, nodes)
        assert chosen("rccl-2.28", f, "allgather", limit) == "Direct/Simple"
        assert chosen("rccl-2.28", f, "allgather", limit + 8).startswith("Ring/")
    assert chosen("rccl-2.28", found_on("mi300x-8", ranks=4), "allgather", MIB).startswith("Ring/")


def test_channels_follow_the_table_of_thresholds():
    f = found_on("mi355x-8", 4)
    pick = POLICIES["rccl-2.28"].pick
    # gfx950: 512 KiB to 1 MiB a rank is 56 channels, above that 64
    assert pick(f, "reduce_scatter", 32 * MIB).channels == 56
    assert pick(f, "reduce_scatter", 64 * MIB).channels == 64


# The published MI300X table of RCCL 2.22.3: 22.9 us at 512 B, 13.1 us at 1 KiB (MSCCL begins).
@pytest.mark.parametrize("size, algorithm, ours", [
    (512, "Ring/LL", "ring"),
    (KIB, "MSCCL one-shot/LL", "direct-oneshot"),
    (16 * KIB, "MSCCL one-shot/LL", "direct-oneshot"),
    (32 * KIB, "MSCCL two-shot/LL", "direct-twoshot"),
    (MIB, "MSCCL two-shot/LL", "direct-twoshot"),
    (16 * MIB, "MSCCL two-shot/Simple", "direct-twoshot"),
    (32 * MIB, "Ring/Simple", "ring"),
])  # fmt: skip
def test_rccl_of_rocm_6_takes_the_direct_algorithms_on_a_node_of_eight(size, algorithm, ours):
    found = POLICIES["rccl-2.22"].pick(found_on("mi300x-8"), "allreduce", size)
    assert (f"{found.algorithm}/{found.protocol}", found.ours) == (algorithm, ours)


@pytest.mark.parametrize("policy", ["rccl-2.22", "rccl-2.26"])
def test_msccl_is_for_whole_nodes_of_eight_mi300_or_mi350_only(policy):
    for f in (found_on("mi300x-8"), found_on("mi355x-8")):
        assert "MSCCL" in chosen(policy, f, "allreduce", MIB)
    for f in (found_on("mi300x-8", 2), found_on("mi300x-8", ranks=4), found_on("mi250x-4")):
        assert "MSCCL" not in chosen(policy, f, "allreduce", MIB)


def test_msccl_is_gone_from_2_28_and_ll128_is_not_yet_in_2_22():
    assert "MSCCL" not in chosen("rccl-2.28", found_on("mi300x-8"), "allreduce", MIB)
    assert "LL128" not in chosen("rccl-2.22", found_on("mi300x-8", 8), "allreduce", 8 * MIB)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("machine", ["mi300x-8", "mi355x-8", "mi250x-4"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_any_number_of_ranks_and_any_size_has_a_pick(machine, collective, ranks):
    f = found_on(machine, ranks=ranks)
    for policy in policies_for(f.arch):
        for size in (0, 1, 63, 1000, MIB, 3 * GIB):
            found = policy.pick(f, collective, size)
            assert found.protocol in ("LL", "LL128", "Simple")
            assert found.channels is None or 1 <= found.channels <= max(f.channels, 8)


def test_devices_whose_tables_are_not_published_say_whose_are_taken():
    found = POLICIES["rccl-2.28"].pick(found_on("helios-72"), "allreduce", MIB)
    assert "gfx950" in found.note
