"""Jobs that do not fill a regular machine: uneven nodes, part of a node, any order, faults.

Whatever the placement, every collective keeps its goal, every rank is reached, and what a fault
or a partition costs shows in the routes.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import machine
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import COLLECTIVES, Planner, compare, load, lower
from rccl_py.check import check
from rccl_py.errors import FabricError, FormatError, InvalidArgument
from rccl_py.fabric import Fabric

MIXED = "name: box\nsummary: a mixed job\nnodes: [{node: mi300x-8, count: 2}, {node: h100-8}]\n"
CASES = {
    "uneven GPUs a node": lambda: load("mi300x-8", nodes=3, place="0-7,8-10,16"),
    "part of each node": lambda: load("mi300x-8", nodes=2, place="0-3,12-15"),
    "nodes interleaved": lambda: load("h100-8", nodes=2, place="0,8,1,9,2,10,3,11"),
    "backwards": lambda: load("mi300x-8", nodes=2, place="15-0"),
    "a broken link in one node": lambda: load("mi300x-8", nodes=2).without("gpu0", "gpu3", node=1),
    "a NIC less in one node": lambda: load("mi300x-8", nodes=2).without("nic3", node=0),
    "a plane less": lambda: load("h100-8", nodes=2).without("plane0"),
}  # fmt: skip


def mixed(folder, text: str = ""):
    (folder / "box.yaml").write_text(MIXED + text)
    return load(folder / "box.yaml")


def names(fabric: Fabric, src: int, dst: int) -> list[str]:
    return [fabric.link_name(k) for k in fabric.routes(np.array([src]), np.array([dst])).link]


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_keeps_its_goal_wherever_ranks_are(build, collective):
    planner = Planner(lower(build()), synthesise=False)  # tests/test_packing.py has those
    for size in (8.0, 1 << 28):
        plan = planner.plan(collective, size / planner.fabric.nranks)
        check(plan.schedule)
        assert 0 < plan.time < 10 and plan.time >= plan.bound.seconds * (1 - 1e-9)


@given(st.permutations(range(16)), st.integers(1, 16))
@settings(max_examples=25, deadline=None)
def test_any_placement_is_reached_by_the_links_of_its_own_accelerators(order, count):
    place = order[:count]
    whole, some = lower(load("mi300x-8", nodes=2)), lower(load("mi300x-8", nodes=2, place=place))
    src, dst = (a.ravel().astype(np.int32) for a in np.indices((count, count)))
    at = np.array(place, dtype=np.int32)
    one, other = some.routes(src, dst), whole.routes(at[src], at[dst])
    if some.copies == whole.copies:
        assert one.link.tolist() == other.link.tolist()
    assert one.share.tolist() == other.share.tolist()
    assert some.latency(src, dst).tolist() == whole.latency(at[src], at[dst]).tolist()


def test_a_cluster_may_have_nodes_of_several_kinds(tmp_path):
    topology = mixed(tmp_path)
    fabric = lower(topology)
    assert topology.ngpus == 24 and fabric.kind.tolist() == [0, 0, 1]
    assert names(fabric, 0, 7) == ["node0: gpu0 -> gpu7"]
    assert set(names(fabric, 16, 23)) == {f"node2: gpu0 -> plane{k}" for k in range(4)} | {
        f"node2: plane{k} -> gpu7" for k in range(4)}  # fmt: skip
    assert "node2: nic1 -> leaf1" in names(fabric, 17, 1)
    assert any("kinds of accelerator" in note for note in topology.notes)


def test_a_place_in_the_file_is_the_order_of_ranks(tmp_path):
    fabric = lower(mixed(tmp_path, "place: 20-23,0\n"))
    assert fabric.place.tolist() == [20, 21, 22, 23, 0]
    assert fabric.node.tolist() == [2, 2, 2, 2, 0] and fabric.local.tolist() == [4, 5, 6, 7, 0]


@pytest.mark.parametrize("text, what", [
    ("place: 0-24\n", r"box.yaml: place 24: expected 0 to 23"),
    ("place: 0,0\n", r"box.yaml: place: accelerator 0 is listed twice"),
    ("place: x\n", r"box.yaml: place 'x': a list such as 0-3,8"),
    ("node: mi300x-8\n", r"box.yaml: nodes: a list of"),
])  # fmt: skip
def test_a_bad_cluster_of_several_kinds_is_one_line_that_names_the_file(tmp_path, text, what):
    with pytest.raises(FormatError, match=what):
        mixed(tmp_path, text)


def test_more_nodes_than_a_cluster_of_several_kinds_has_are_refused(tmp_path):
    mixed(tmp_path)
    assert load(tmp_path / "box.yaml", nodes=2).unlike == ()
    with pytest.raises(InvalidArgument, match="4 nodes asked for, but its nodes are of several"):
        load(tmp_path / "box.yaml", nodes=4)


def test_a_link_taken_away_is_gone_around_and_a_narrow_one_is_narrow():
    fabric = lower(load("mi300x-8").without("gpu0", "gpu3"))
    assert len(names(fabric, 0, 3)) == 2 and len(names(fabric, 3, 0)) == 2
    assert names(fabric, 0, 4) == ["gpu0 -> gpu4"]
    half = lower(load("mi300x-8").with_link("gpu0", "gpu3", 0.5))
    link = half.routes(np.array([0, 1]), np.array([3, 3])).link
    assert half.bandwidth[link[0]] == pytest.approx(half.bandwidth[link[1]] / 2)


def test_a_fault_in_one_node_leaves_the_others_as_they_are():
    fabric = lower(load("mi300x-8", nodes=3).without("gpu0", "gpu3", node=1))
    assert [len(names(fabric, 8 * node, 8 * node + 3)) for node in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("call, what", [
    (lambda t: t.without("gpu0", "gpu9"), "there is no gpu9"),
    (lambda t: t.without("gpu0", "nic5"), "no link joins gpu0 and nic5; gpu0 is joined to"),
    (lambda t: t.without("gpu0"), "gpu0 is an accelerator: leave its rank out"),
    (lambda t: t.with_link("gpu0", "gpu1", -1), "lanes"),
    (lambda t: t.without("nic0", node=1), "node 1: expected 0 to 0"),
])  # fmt: skip
def test_a_fault_that_cannot_be_is_refused(call, what):
    with pytest.raises((FabricError, InvalidArgument), match=what):
        call(load("mi300x-8"))


PARTS = ("scale_up: {mesh: {link: xgmi-mi300}}\npartitions: {count: 4, link: own, lanes: 1}\n"
         "links: {own: {bandwidth: 400GB/s, latency: 0.5us, source: me, medium: xgmi}}\n"
         "nics: {link: roce-400g, count: 2}\n")  # fmt: skip


def test_partitions_share_the_links_and_the_memory_of_their_gpu(tmp_path):
    topology = load(machine(tmp_path, PARTS, gpus=2))
    fabric = lower(topology)
    assert fabric.nranks == 8 and fabric.memory == topology.device.memory == 1e12 / 4
    assert set(names(fabric, 0, 3)) == {"gpu0 -> package0", "package0 -> gpu3"}
    shared = {name for s in range(4) for name in names(fabric, s, 4 + s) if "> package" in name
              and name.startswith("package")}  # fmt: skip
    assert shared == {"package0 -> package1"}
    for size in (64.0, 1 << 26):
        check(Planner(fabric).plan("allreduce", size / 8).schedule)


def test_virtual_functions_are_dealt_to_the_gpus_of_a_nic_and_capped(tmp_path):
    text = ("scale_up: {mesh: {link: xgmi-mi300}}\nnodes: 2\n"
            "nics: {link: roce-400g, count: 1, functions: 4, cap: 100Gb/s}\n")  # fmt: skip
    fabric = lower(load(machine(tmp_path, text)))
    for gpu in range(4):
        found = fabric.routes(np.array([gpu]), np.array([4 + gpu]))
        assert fabric.bandwidth[found.link].min() == 12.5e9
        assert f"node0: vf0.{gpu} -> pci0" in names(fabric, gpu, 4 + gpu)


HOST = ("host: {link: pcie4-x16, sockets: 2, socket_link: xgmi-cpu, switches: 4}\n"
        "nics: {link: ib-200g, count: 4, host_link: pcie4-x16}\n")  # fmt: skip


def test_a_pci_tree_joins_gpus_and_nics_by_switch_and_socket(tmp_path):
    from rccl_py.topology.paths import gpu_matrix, nic_matrix

    topology = load(machine(tmp_path, HOST, gpus=8))
    assert gpu_matrix(topology.node)[0] == ["X", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert nic_matrix(topology.node)[0] == ["PIX", "PHB", "SYS", "SYS"]
    assert not lower(topology).coherent(np.array([0]), np.array([1]))[0]
    assert lower(load("h100-8")).coherent(np.array([0]), np.array([1]))[0]


def test_with_pxn_a_message_leaves_on_the_rail_it_arrives_on_through_its_owner():
    across, own = (lower(load("mi300x-8", nodes=2, pxn=pxn)) for pxn in (None, True))
    assert "node0: nic2 -> leaf2" in names(across, 2, 13)
    through = names(own, 2, 13)
    assert "node0: gpu2 -> gpu5" in through and "node0: nic5 -> leaf5" in through
    assert not any("spines" in name for name in through)


def test_the_first_call_registers_a_new_buffer_with_each_rank_it_deals_with():
    planner, few = (Planner(lower(load("mi300x-8")), algo=a) for a in ("direct-twoshot", "tree"))
    small, large = (planner.plan("allreduce", size).first_call for size in (1 << 20, 1 << 30))
    assert 0 < few.plan("allreduce", 1 << 30).first_call < large and small < large
    cluster = Planner(lower(load("mi300x-8", nodes=2)), algo="direct-twoshot")
    assert cluster.plan("allreduce", 1 << 30).first_call > large  # the NIC learns of it too
    part = Planner(lower(load("mi300x-8", nodes=2, place="15,3")))
    assert part.plan("allreduce", 1 << 30).first_call > 0
    assert Planner(lower(load("mi300x-8"), 1)).plan("allreduce", 1 << 30).first_call == 0


@pytest.mark.parametrize("nic", [0, 3, 7])
def test_a_nic_that_is_gone_leaves_the_others_on_their_rails(nic):
    cluster = load("h100-8", nodes=2)
    fabric = lower(cluster.without(f"nic{nic}", node=1))
    for other in range(8):
        if other != nic:
            assert f"node1: nic{other} -> leaf{other}" in names(fabric, 8 + other, other)
    times = {Planner(lower(load("h100-8-x32-rail-only", nodes=4).without(f"nic{k}", node=1)))
             .plan("alltoall", 1 << 20).time for k in (nic, 5)}  # fmt: skip
    assert max(times) == pytest.approx(min(times))
    assert any(f"NIC{nic}" in str(d) for d in compare(cluster, cluster.without(f"nic{nic}")))


def slow_and_fast(folder, slow: str, fast: str, count: int):
    """Return a cluster of one node on a slow port and `count` on fast ones, a GPU each."""
    for name, port in (("slow", slow), ("fast", fast)):
        (folder / f"{name}.yaml").write_text(
            f"name: {name}\nsummary: s\ngpus: 1\ndevice: h100\nnics: {{link: {port}, count: 1}}\n"
        )
    (folder / "box.yaml").write_text(
        f"name: box\nsummary: s\nnetwork: {{kind: leaf-spine}}\n"
        f"nodes: [{{node: slow.yaml}}, {{node: fast.yaml, count: {count}}}]\n"
        )  # fmt: skip
    return load(folder / "box.yaml")


BOUNDED = {
    "a slow node first of many": lambda folder: slow_and_fast(folder, "ib-100g", "ib-400g", 17),
    "NICs gone from the first of many nodes": lambda _: _without_nics(17),
    "leaves that hold unlike numbers": lambda _: load(
        "a100-8", nodes=6, network="leaf-spine", leaf_nodes=2, oversubscription=8,
        place="32,24,25,0"),
    "far from the NIC": lambda _: load("mi250x-4", nodes=2, place="0,2,7,5,14"),
    "rails in pods": lambda _: load("mi300x-8", nodes=6, leaf_nodes=1, pod_nodes=2),
    "adaptive leaves": lambda _: load("mi300x-8", nodes=4, network="leaf-spine", leaf_nodes=2,
                                      oversubscription=4, routing="adaptive"),
    "ECMP leaves": lambda _: load("mi300x-8", nodes=4, network="leaf-spine", leaf_nodes=2,
                                  routing="ecmp", seed=5),
}  # fmt: skip


def _without_nics(nodes: int):
    topology = load("mi300x-8", nodes=nodes, network="leaf-spine")
    for k in range(6):
        topology = topology.without(f"nic{k}", node=0)
    return topology


@pytest.mark.parametrize("build", BOUNDED.values(), ids=BOUNDED)
def test_no_plan_beats_its_bound_on_irregular_jobs(tmp_path, build):
    planner = Planner(lower(build(tmp_path)), synthesise=False)
    n = planner.fabric.nranks
    for collective in COLLECTIVES:
        for block in (8, 1 << 16, 1 << 26):
            for root in (0, n // 2, n - 1):
                plan = planner.plan(collective, block, root)
                assert plan.time >= plan.bound.seconds * (1 - 1e-9), (collective, block, root)


def test_rails_two_nodes_do_not_share_are_refused_and_those_they_share_are_used():
    rails = load("h100-8-x32-rail-only", nodes=2).without("nic7", node=1)
    fabric = lower(rails)
    through = names(fabric, 8, 7)
    assert "node0: leaf0 -> nic0" in through and not any("leaf7" in name for name in through)
    with pytest.raises(FabricError, match="rails without a spine need one in common"):
        lower(_apart())


def _apart():
    rails = load("h100-8-x32-rail-only", nodes=2)
    for k in range(8):
        rails = rails.without(f"nic{k}", node=k % 2)
    return rails


def test_a_graph_that_was_changed_badly_is_refused_with_the_link():
    topology = load("mi300x-8")
    topology.node.edges["gpu0", "gpu1"]["bandwidth"] = float("nan")
    with pytest.raises(FabricError, match="link gpu0 -> gpu1 has nan B/s"):
        lower(topology)
    other = load("mi300x-8")
    del other.node.edges["gpu0", "gpu3"]["latency"]
    with pytest.raises(FabricError, match="lacks an attribute"):
        lower(other)


def test_nics_of_unlike_speed_share_a_transfer_by_bandwidth(tmp_path):
    from dataclasses import replace

    from rccl_py.links import LINKS

    topology = load(machine(tmp_path, "nics: {link: ib-400g, count: 2}\nnodes: 2\n", gpus=1))
    topology.node.nodes["nic1"]["port"] = LINKS["ib-100g"]
    fabric = lower(replace(topology))
    found = fabric.routes(np.array([0]), np.array([1]))
    shares = {fabric.link_name(k): s for k, s in zip(found.link, found.share)}
    wide, narrow = (LINKS[name].usable for name in ("ib-400g", "ib-100g"))
    assert shares["node0: nic0 -> leaf0"] == pytest.approx(wide / (wide + narrow))
    assert shares["node0: nic1 -> leaf1"] == pytest.approx(narrow / (wide + narrow))
