"""What switches do for the ranks: in arithmetic, on data, where it is offered, and why not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import built, divisors, equipped, is_right, machine, raw_links, suits, switched

import rccl_py as rccl
from rccl_py import Planner, load, lower
from rccl_py.algorithms import ALGORITHMS, algorithms_of
from rccl_py.check import check
from rccl_py.errors import InvalidUsage
from rccl_py.fabric import Fabric
from rccl_py.links import PROTOCOLS
from rccl_py.planner import Plan
from rccl_py.planner.bounds import find_cuts, lower_bound
from rccl_py.timing import profile
from rccl_py.timing.memory import work
from rccl_py.timing.stages import stages

SWITCHED = [a for a in algorithms_of("allreduce") if a.switched]
TWO_LEVEL = [a for a in SWITCHED if a.two_level]
SIMPLE = PROTOCOLS["Simple"]
TOPOLOGIES = sorted(path.stem for path in (Path(__file__).parents[1] / "topologies").glob("*.yaml"))


@cache
def fabric_of(name: str, nodes: int = 1, ranks: int | None = None) -> Fabric:
    return lower(load(name, nodes=nodes) if nodes > 1 else load(name), ranks)


def plan_of(name: str, algo: str, size: float, nodes: int = 1, ranks: int | None = None) -> Plan:
    return Planner(fabric_of(name, nodes, ranks), algo).plan("allreduce", size)


def ports(fabric: Fabric) -> tuple[np.ndarray, np.ndarray]:
    """Return the NVLinks of each accelerator of the first node: those up, and those down."""
    domain = fabric.domain
    nvlink, local = np.array(domain.media) == "nvlink", range(domain.ngpus)
    up = [np.flatnonzero(nvlink & (domain.tail == k)) for k in local]
    down = [np.flatnonzero(nvlink & (domain.head == k)) for k in local]
    return np.array(up), np.array(down)


# ---- bytes and seconds ----------------------------------------------------------------------


@pytest.mark.parametrize("name, ranks", [("h100-8", 8), ("h100-8", 3), ("h100-8", 5), ("b200-8", 8),
                                         ("gb200-nvl72", 72), ("gb200-nvl72", 33)])  # fmt: skip
def test_a_port_carries_all_and_an_nth_each_way_over_its_multicast_part(name, ranks):
    size = 1 << 30
    plan = plan_of(name, "nvls", size, ranks=ranks)
    fabric, moved = plan.profile.fabric, plan.profile.total_link * size / plan.profile.chunks
    for way in ports(fabric):
        wanted = (1 + 1 / ranks) * size / fabric.multicast
        assert moved[way[:ranks]].sum(axis=1) == pytest.approx(np.full(ranks, wanted))
        assert not moved[way[ranks:]].any()
    assert moved.sum() == pytest.approx(2 * ranks * wanted)  # and nothing anywhere else


@pytest.mark.parametrize("name, ranks", [("h100-8", 8), ("h100-8", 5), ("gb200-nvl72", 72)])
@pytest.mark.parametrize("pieces", [1, 2, 16, 64])
def test_pieces_keep_both_directions_of_a_port_busy(name, ranks, pieces):
    fabric, size = fabric_of(name, ranks=ranks), 1e9
    schedule = next(a for a in SWITCHED if a.name == "nvls").build(
        Planner(fabric).recipe(0, pieces))  # fmt: skip
    found = profile(schedule, fabric)
    rate = 1 / (1 / fabric.pace[SIMPLE.index, ports(fabric)[0][0]]).sum()  # s/B of a whole port
    one = size / pieces * rate / fabric.multicast
    # The first piece is only added up, the last only handed on; in between a port does both.
    wire = found.steps * found.link[SIMPLE.index] * size / found.chunks
    assert wire.sum() == pytest.approx(one * (2 + (pieces - 1) * (1 + 1 / ranks)))


@pytest.mark.parametrize("part", [1.0, 0.85, 0.5])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_against_the_direct_halves_a_switch_is_worth_its_part_of_the_port(n, part):
    fabric = fabric_of("h100-8", ranks=n)
    # A rank that serves many peers by itself reaches less, which is not what is compared here.
    domain = replace(fabric.domain, multicast=part, spread=np.ones(fabric.domain.nlinks))
    fabric = replace(fabric, domains=(domain,))
    per_rank = {
        name: Planner(fabric, name).plan("allreduce", 1e9).profile.total_link.max()
        / Planner(fabric, name).plan("allreduce", 1e9).profile.chunks
        for name in ("nvls", "direct-twoshot")
    }
    wanted = (1 + 1 / n) / part / (2 * (n - 1) / n)
    assert per_rank["nvls"] / per_rank["direct-twoshot"] == pytest.approx(wanted)


def test_a_switched_half_is_posted_once_not_once_a_peer(tmp_path):
    fabric = message_machine(tmp_path, 8)
    found = profile(built("allreduce", "nvls", 8), fabric)
    direct = profile(built("allreduce", "direct-twoshot", 8), fabric)
    hop, message = fabric.latency(*ends(0, 1))[:, 0], float(fabric.message(*ends(0, 1))[0])
    for made, posts in ((found, 1), (direct, 7)):
        assert made.hops == pytest.approx(np.tile(hop[:, None], made.hops.shape[1]))
        assert made.messages == pytest.approx(np.full(len(made.messages), posts * message))


def message_machine(folder: Path, n: int) -> Fabric:
    """Return n ranks on a switch that adds up, whose messages take a time that shows."""
    text = switched() + raw_links(up=100).replace("message: 0us", "message: 3us")
    fabric = lower(load(machine(folder, text, n)))
    return replace(fabric, domains=(replace(fabric.domain, multicast=0.5),))


def ends(src: int, dst: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([src], np.int32), np.array([dst], np.int32)


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_what_a_switch_adds_up_or_hands_on_is_read_and_written_once_at_its_end(n):
    phases = [phase for phase in built("allreduce", "nvls", n).phases()
              if (phase.moves[0].rows.src != phase.moves[0].rows.dst).all()]  # fmt: skip
    for phase in phases:
        # Read for n - 1 others, or written by them; and its own share, in and out.
        assert work(n, phase).moved.tolist() == pytest.approx([n - 1 + 2] * n)


def test_ranks_write_the_sum_a_switch_made_and_add_nothing():
    add, hand_on = (work(5, phase) for phase in built("allreduce", "nvls", 5).phases()
                    if (phase.moves[0].rows.src != phase.moves[0].rows.dst).all())  # fmt: skip
    assert not add.reduced.any() and not hand_on.reduced.any()
    by_ranks = [work(5, phase) for phase in built("allreduce", "direct-twoshot", 5).phases()]
    assert any(each.reduced.any() for each in by_ranks)
    assert (add.moved <= by_ranks[1].moved).all()


@pytest.mark.parametrize("name, nodes, ranks", [("h100-8", 1, 5), ("h100-8", 5, None)])
@pytest.mark.parametrize("row", algorithms_of("allreduce"), ids=lambda a: a.name)
def test_stages_put_on_every_link_what_the_estimate_does(row, name, nodes, ranks):
    if row.two_level == (nodes == 1) or (row.switched and row.two_level == (nodes == 1)):
        return
    fabric = fabric_of(name, nodes, ranks)
    if not suits(row, fabric.nranks):
        return
    domain = fabric.domain  # ranks that serve many reach less: only where they do it themselves
    fabric = replace(fabric, domains=(replace(
        domain, spread=domain.spread / 2, port_spread=domain.port_spread / 4),))  # fmt: skip
    for pieces in (1, 3):
        schedule = row.build(equipped(Planner(fabric).recipe(0, pieces)))
        total = np.zeros(fabric.nlinks)
        for stage in stages(schedule, fabric):
            of = np.repeat(np.arange(len(stage.src)), np.diff(stage.ptr))
            total += stage.steps * np.bincount(
                stage.link, weights=stage.share * stage.slots[of], minlength=fabric.nlinks
            )
        assert total == pytest.approx(profile(schedule, fabric).total_link)


# ---- data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(3, 34))
def test_one_domain_gives_what_numpy_gives(n):
    for pieces in (1, 2):
        schedule = built("allreduce", "nvls", n, 0, None, pieces)
        check(schedule, steps=n < 12)
        assert is_right(schedule, np.random.default_rng(n), in_place=bool(n % 2))


@pytest.mark.parametrize("n", [n for n in range(4, 34) if len(divisors(n)) > 2])
@pytest.mark.parametrize("row", TWO_LEVEL, ids=lambda a: a.name)
def test_several_domains_give_what_numpy_gives(row, n):
    for g in divisors(n)[1:-1]:
        schedule = built("allreduce", row.name, n, 0, g, 2 if n < 12 else 1)
        check(schedule, steps=n < 9)
    assert is_right(schedule, np.random.default_rng(n), in_place=bool(n % 2))


@pytest.mark.parametrize("dtype, op", [(np.float32, rccl.SUM), (np.int64, rccl.MAX)])
def test_a_communicator_that_is_held_to_nvls_adds_right(dtype, op):
    comms = rccl.Communicator.init_all("h100-8", algo="nvls")
    sent = [np.arange(1001, dtype=dtype) * (c.rank + 1) for c in comms]
    got = [np.empty(1001, dtype=dtype) for _ in comms]
    with rccl.group():
        for comm, send, receive in zip(comms, sent, got):
            comm.allreduce(send, receive, op=op)
    combine = np.add if op == rccl.SUM else np.maximum
    assert all(np.array_equal(combine.reduce(sent), result) for result in got)
    plan = comms[0].last_plan
    assert (plan.algorithm, plan.protocol) == ("nvls", "Simple")


# ---- where it is offered --------------------------------------------------------------------


def reasons(fabric: Fabric, size: float = 1e6) -> dict[str, str]:
    """Return why each switched algorithm was not timed; "" where it was."""
    plan = Planner(fabric).plan("allreduce", size)
    names = {a.name for a in SWITCHED}
    return {c.algorithm: "" if np.isfinite(c.seconds) else c.reason for c in plan.candidates
            if c.algorithm in names}  # fmt: skip


@pytest.mark.parametrize("name", ["mi300x-8", "ualink-8", "a100-8", "mi250x-4", "v100-16"])
def test_a_machine_whose_switches_only_forward_says_so(name):
    assert reasons(fabric_of(name))["nvls"] == "no switch here adds up and multicasts"
    with pytest.raises(InvalidUsage, match="nvls: no switch here adds up and multicasts"):
        plan_of(name, "nvls", 8)


def test_nodes_whose_switches_only_forward_say_so_of_every_form():
    found = reasons(fabric_of("mi300x-8", 2))
    assert set(found) == {a.name for a in SWITCHED}
    assert set(found.values()) == {"no switch here adds up and multicasts"}


def test_links_that_could_multicast_do_not_without_a_switch(tmp_path):
    text = "scale_up: {mesh: {link: nvlink4}}"
    assert reasons(lower(load(machine(tmp_path, text))))["nvls"].startswith("no switch here")


@pytest.mark.parametrize("ranks, why", [(1, "two ranks"), (2, "two ranks"), (3, "")])
def test_it_takes_three_ranks(ranks, why):
    assert reasons(fabric_of("h100-8", ranks=ranks))["nvls"] == why


def test_one_domain_may_be_any_node_of_a_cluster():
    cluster = load("h100-8", nodes=2)
    assert reasons(lower(cluster, list(range(8, 16))))["nvls"] == ""
    assert reasons(lower(cluster))["nvls"] == "more than one scale-up domain"
    assert reasons(lower(cluster, [0, 1, 2, 8]))["nvls"] == "more than one scale-up domain"


def test_several_domains_are_offered_every_two_level_form_and_one_domain_only_its_own():
    several = reasons(fabric_of("h100-8", 2))
    assert [name for name, why in several.items() if why] == ["nvls"]
    one = reasons(fabric_of("h100-8"))
    assert one["nvls"] == "" and {one[a.name] for a in TWO_LEVEL} == {"one scale-up domain"}


# ---- NCCL_ALGO and NCCL_PROTO ----------------------------------------------------------------


def test_a_switch_adds_numbers_so_only_simple_is_tried():
    for nodes in (1, 2):
        plan = Planner(fabric_of("h100-8", nodes)).plan("allreduce", 1e8)
        tried = {(c.algorithm, c.protocol) for c in plan.candidates if np.isfinite(c.seconds)}
        by_switch = {(a.name, "Simple") for a in SWITCHED if a.two_level == (nodes > 1)}
        assert {t for t in tried if t[0] in {a.name for a in SWITCHED}} == by_switch


@pytest.mark.parametrize("proto", ["LL", "LL128", "^Simple"])
def test_nvls_under_a_protocol_with_flags_is_refused_and_says_which_it_needs(proto):
    planner = Planner(fabric_of("h100-8"), "nvls", proto)
    with pytest.raises(InvalidUsage) as caught:
        planner.plan("allreduce", 8)
    said = str(caught.value)
    assert "NCCL_ALGO='nvls'" in said and f"NCCL_PROTO={proto!r}" in said
    assert "leaves nothing" in said and "nvls: only by Simple" in said and "\n" not in said


def test_nvls_and_another_under_a_protocol_with_flags_leave_the_other():
    plan = Planner(fabric_of("h100-8"), "nvls,ring", "LL").plan("allreduce", 1e9)
    assert (plan.algorithm, plan.protocol) == ("ring", "LL")


def test_nvlstree_is_the_form_with_trees_between_nodes():
    plan = plan_of("h100-8", "nvlstree", 1e8, nodes=2)
    assert (plan.algorithm, plan.protocol) == ("hier-nvls-tree", "Simple")
    assert {c.algorithm for c in plan.candidates} == {"hier-nvls-tree"}
    with pytest.raises(InvalidUsage, match="hier-nvls-tree: one scale-up domain"):
        plan_of("h100-8", "nvlstree", 1e8)


# ---- bounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_allreduce_beats_its_bound_on_any_machine(name):
    whole = lower(load(name))
    planner = Planner(whole if whole.nranks <= 24 else lower(load(name), 24))
    for size in (1, 1e4, 1e6, 1e8, 1e10):
        plan = planner.plan("allreduce", size)
        timed = [c for c in plan.candidates if np.isfinite(c.seconds)]
        assert min(c.seconds for c in timed) >= plan.bound.seconds * (1 - 1e-12), size


@pytest.mark.parametrize("name, nodes", [("h100-8", 1), ("gb200-nvl72", 1), ("h100-8", 4)])
def test_where_a_switch_adds_up_the_bound_is_what_one_rank_or_one_node_must_move(name, nodes):
    fabric, size = fabric_of(name, nodes), 1e12
    bound = lower_bound(fabric, find_cuts(fabric), "allreduce", size)
    deaf = replace(fabric, domains=tuple(replace(d, multicast=0.0) for d in fabric.domains))
    without = lower_bound(deaf, find_cuts(deaf), "allreduce", size)
    up = ports(fabric)[0][0]
    one_rank = fabric.launch + size / fabric.bandwidth[up].sum()
    assert one_rank <= bound.seconds <= without.seconds
    if nodes == 1:  # its share of the port is all that a switch gets of it
        n, part = fabric.nranks, fabric.multicast
        assert bound.links == pytest.approx(
            min((1 + 1 / n) / part, 2 * (n - 1) / n) * size / fabric.bandwidth[up].sum()
        )
        assert without.links / bound.links == pytest.approx(max(2 * (n - 1) / (n + 1) * part, 1))
    else:
        assert "node" in bound.cut


def test_what_a_switch_cannot_do_is_bounded_as_before():
    fabric = fabric_of("h100-8")
    deaf = replace(fabric, domains=(replace(fabric.domain, multicast=0.0),))
    for row in {a.collective for a in ALGORITHMS} - {"allreduce"}:
        bounds = [lower_bound(f, find_cuts(f), row, 1e9) for f in (fabric, deaf)]
        assert bounds[0].links == bounds[1].links, row
    # A root must still send, or get, all of it: a switch spares the others, not the root.
    halves = {(a.collective, a.name) for a in ALGORITHMS if a.switched} - {
        (a.collective, a.name) for a in SWITCHED}  # fmt: skip
    assert halves == {("broadcast", "multicast"), ("reduce", "nvls")}


@pytest.mark.parametrize("collective, name", [("broadcast", "multicast"), ("reduce", "nvls")])
def test_a_rooted_half_is_one_step_and_bound_by_the_root_whose_port_sends_or_gets_all_once(
    collective, name
):
    fabric, size = fabric_of("h100-8"), 1 << 30
    plan = Planner(fabric, name).plan(collective, size, root=3)
    moved = plan.profile.total_link * size / plan.profile.chunks
    port = ports(fabric)[0 if collective == "broadcast" else 1][3]
    assert moved[port].sum() == pytest.approx(size / fabric.multicast)
    assert plan.profile.steps.tolist() == [1] and plan.protocol == "Simple"
    assert plan.time >= plan.bound.seconds


def test_more_of_the_port_for_the_switch_never_makes_a_call_slower():
    fabric = fabric_of("h100-8")
    parts = (0.3, 0.5, 0.85, 1.0)
    for size in (1e4, 1e6, 1e8, 1e10):
        times = [
            Planner(replace(fabric, domains=(replace(fabric.domain, multicast=part),)))
            .plan("allreduce", size).time
            for part in parts
        ]  # fmt: skip
        assert all(later <= sooner for sooner, later in pairwise(times))
