"""Scale-out networks as arrays: their routes against networkx and slow twins, and hashes."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from itertools import pairwise, permutations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.errors import FabricError, InvalidArgument, RcclError
from rccl_py.fabric import flows as flows_module
from rccl_py.fabric.clos import Clos
from rccl_py.fabric.dragonfly import Dragonfly
from rccl_py.fabric.flows import hashed, mix, pick
from rccl_py.fabric.torus import Torus

FEW = settings(max_examples=25, deadline=None)
ROUTINGS = ("spray", "ecmp", "adaptive")


def clos(n=64, under=8, spines=4, pods=1, cores=0, over=1.0, **how):
    """Return a network of full leaves whose every port has 1 B/s."""
    leaf = np.arange(n, dtype=np.int32) // under
    nleaves = int(leaf.max()) + 1
    pod = (np.arange(nleaves) * pods // nleaves).astype(np.int32)
    up = np.full(nleaves, under / over)
    return Clos(leaf, pod, up, np.bincount(pod, weights=up), spines, cores, **how)


@st.composite
def clos_networks(draw, routings=ROUTINGS):
    """Leaves of any size, pods of any number of leaves, ports in any order."""
    nleaves = draw(st.integers(1, 6))
    pods = draw(st.integers(1, min(3, nleaves)))
    rest = st.lists(st.integers(0, pods - 1), min_size=nleaves - pods, max_size=nleaves - pods)
    pod = np.array([*range(pods), *draw(rest)], dtype=np.int32)
    leaf = draw(st.lists(st.integers(0, nleaves - 1), min_size=1, max_size=12))
    rate = st.floats(1.0, 100.0)
    up = draw(st.lists(rate, min_size=nleaves, max_size=nleaves))
    high = draw(st.lists(rate, min_size=pods, max_size=pods))
    return Clos(np.array(leaf, dtype=np.int32), pod, np.array(up), np.array(high),
                draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from(routings)),
                draw(st.integers(0, 9)), draw(st.integers(1, 3)))  # fmt: skip


@st.composite
def dragonflies(draw, routings=ROUTINGS):
    groups, routers = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    least = -(-(groups - 1) // routers)
    port = draw(st.lists(st.integers(0, groups * routers - 1), min_size=1, max_size=12))
    return Dragonfly(groups, routers, np.array(port, dtype=np.int32), 3.0, 2.0,
                     draw(st.integers(least, least + 3)), draw(st.sampled_from(routings)),
                     draw(st.integers(0, 9)), draw(st.integers(1, 3)))  # fmt: skip


@st.composite
def tori(draw, routings=ROUTINGS):
    dims = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    while np.prod(dims) > 150:
        dims = dims[1:]
    wrap = draw(st.lists(st.booleans(), min_size=len(dims), max_size=len(dims)))
    return Torus(dims, [d + 1.0 for d in range(len(dims))], None, wrap,
                 draw(st.sampled_from(routings)), draw(st.integers(0, 9)),
                 draw(st.integers(1, 3)))  # fmt: skip


def any_network(routings=ROUTINGS):
    return st.one_of(clos_networks(routings), dragonflies(routings), tori(routings))


def pairs_of(wiring, most=200):
    """Return (src, dst) of all pairs of ports, or of `most` of them."""
    src, dst = (c.ravel() for c in np.meshgrid(*[np.arange(wiring.nports)] * 2))
    step = -(-len(src) // most)
    return src[::step], dst[::step]


def graph_of(wiring):
    graph = nx.DiGraph()
    graph.add_nodes_from(wiring.switch_name(p) for p in range(wiring.nports))
    for a, b, rate in wiring.edges():
        old = graph.edges[a, b]["rate"] if graph.has_edge(a, b) else 0.0
        graph.add_edge(a, b, rate=old + rate)
    return graph


def ends_of(wiring, link):
    return tuple(wiring.link_name(int(link)).partition(" (")[0].split(" -> "))


def used(wiring, src, dst, **more):
    """Return one {(from, to): share} a flow."""
    found = [defaultdict(float) for _ in src]
    for row, link, share in zip(*(c.tolist() for c in wiring.routes(src, dst, **more))):
        found[row][ends_of(wiring, link)] += share
    return found


def load(wiring, src, dst, weight=None):
    """Return the time of the slowest link when every flow has `weight` bytes."""
    row, link, share = wiring.routes(src, dst, weight)
    carried = share if weight is None else share * weight[row]
    return (np.bincount(link, weights=carried, minlength=wiring.nlinks) / wiring.bandwidth).max()


def permutation(n, seed=0):
    return np.arange(n), np.random.default_rng(seed).permutation(n)


# --- every kind -------------------------------------------------------------------------------


@FEW
@given(st.one_of(clos_networks(("ecmp", "adaptive")), dragonflies(), tori()))
def test_what_enters_a_switch_leaves_it_again_but_at_both_ends(wiring):
    src, dst = pairs_of(wiring)
    for i, links in enumerate(used(wiring, src, dst)):
        net = defaultdict(float)
        for (a, b), share in links.items():
            net[a] += share
            net[b] -= share
        ends = wiring.switch_name(src[i]), wiring.switch_name(dst[i])
        expected = {} if ends[0] == ends[1] else {ends[0]: 1.0, ends[1]: -1.0}
        assert {v: round(s, 9) for v, s in net.items() if abs(s) > 1e-9} == expected


@FEW
@given(any_network())
def test_links_and_edges_are_the_same_graph(wiring):
    named = defaultdict(float)
    for link in range(wiring.nlinks):
        named[ends_of(wiring, link)] += wiring.bandwidth[link]
    if "spines" not in {v for ends in named for v in ends}:
        assert named == pytest.approx(nx.get_edge_attributes(graph_of(wiring), "rate"))
    else:
        for leaf in range(wiring.nleaves):
            bundle = sum(d["rate"] for _, _, d in graph_of(wiring).out_edges(f"leaf{leaf}", True))
            assert named[f"leaf{leaf}", "spines"] == pytest.approx(bundle)


@FEW
@given(any_network())
def test_bandwidth_has_one_number_a_link_all_above_zero(wiring):
    assert wiring.bandwidth.shape == (wiring.nlinks,)
    assert (wiring.bandwidth > 0).all()


@FEW
@given(st.one_of(clos_networks(), tori()))
def test_switches_counts_the_vertices_of_a_shortest_path(wiring):
    src, dst = pairs_of(wiring)
    lengths = dict(nx.all_pairs_shortest_path_length(graph_of(wiring)))
    expected = [lengths[wiring.switch_name(a)][wiring.switch_name(b)] + 1 for a, b in zip(src, dst)]
    assert wiring.switches(src, dst).tolist() == expected


@FEW
@given(st.one_of(clos_networks(("ecmp", "adaptive")), tori()))
def test_shares_of_a_flow_add_up_to_the_hops_of_a_shortest_path(wiring):
    src, dst = pairs_of(wiring)
    row, _, share = wiring.routes(src, dst)
    total = np.bincount(row, weights=share, minlength=len(src))
    assert total == pytest.approx(wiring.switches(src, dst) - 1)


@FEW
@given(any_network(), st.integers(0, 5))
def test_the_same_call_gives_the_same_routes(wiring, rotate):
    src, dst = pairs_of(wiring)
    one, two = wiring.routes(src, dst), wiring.routes(src, dst)
    assert all((a == b).all() for a, b in zip(one, two))


@FEW
@given(any_network(("spray", "ecmp")))
def test_without_looking_at_each_other_a_flow_alone_takes_the_same_way(wiring):
    assert not wiring.together
    src, dst = pairs_of(wiring, 12)
    whole = used(wiring, src, dst)
    for i in range(len(src)):
        assert used(wiring, src[i : i + 1], dst[i : i + 1])[0] == pytest.approx(whole[i])


@FEW
@given(any_network())
def test_no_route_crosses_a_layer_twice(wiring):
    src, dst = pairs_of(wiring)
    row, link, share = wiring.routes(src, dst)
    assert wiring.layer.shape == (wiring.nlinks,)
    for layer in set(wiring.layer.tolist()) - {-1}:
        at = wiring.layer[link] == layer
        assert np.bincount(row[at], weights=share[at], minlength=1).max() <= 1 + 1e-9
    assert not wiring.together or (wiring.layer == -1).all()


@FEW
@given(any_network())
def test_parts_divide_the_ports_and_never_one_switch(wiring):
    switches = [wiring.switch_name(p) for p in range(wiring.nports)]
    for part in wiring.parts.values():
        assert part.shape == (wiring.nports,)
        assert len(set(zip(switches, part.tolist()))) == len(set(switches))


@FEW
@given(any_network(("ecmp",)))
def test_ecmp_of_one_flow_is_one_path(wiring):
    one = type(wiring)(**{**vars_of(wiring), "flows": 1})
    src, dst = pairs_of(wiring)
    assert (one.routes(src, dst)[2] == 1.0).all()


@FEW
@given(any_network(("adaptive",)), st.integers(0, 99))
def test_adaptive_is_never_slower_than_ecmp(wiring, seed):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, wiring.nports, (2, 40))
    weight = rng.uniform(0.1, 10, 40)
    if not wiring.nlinks:
        return
    ecmp = type(wiring)(**{**vars_of(wiring), "routing": "ecmp"})
    assert wiring.together
    assert load(wiring, src, dst, weight) <= load(ecmp, src, dst, weight) * (1 + 1e-9)


def vars_of(wiring):
    return {name: getattr(wiring, name) for name in type(wiring).__dataclass_fields__}


@pytest.mark.parametrize("make", [
    lambda **how: clos(routing="ecmp", **how),
    lambda **how: clos(routing="adaptive", **how),
    lambda **how: Torus((4, 4, 4), 1.0, routing="ecmp", **how),
    lambda **how: Dragonfly(5, 4, np.arange(20), 1.0, 1.0, 3, routing="ecmp", **how),
])  # fmt: skip
def test_another_seed_gives_other_routes(make):
    src, dst = permutation(make().nports)
    links = [make(seed=seed).routes(src, dst)[1].tolist() for seed in (0, 1)]
    assert links[0] != links[1]


@pytest.mark.parametrize("make", [clos, lambda **how: Torus((3, 2), 1.0, **how),
    lambda **how: Dragonfly(3, 2, np.arange(6), 1.0, 1.0, **how)])  # fmt: skip
@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_flows_have_no_routes(make, routing):
    none = np.zeros(0, dtype=np.int64)
    wiring = make(routing=routing)
    assert [len(c) for c in wiring.routes(none, none)] == [0, 0, 0]
    assert [len(c) for c in wiring.routes(np.array([1]), np.array([1]))] == [0, 0, 0]
    assert len(wiring.switches(none, none)) == 0


# --- Clos ---------------------------------------------------------------------------------------


def bundled(edge, wiring):
    """Return the aggregated link that stands for one link of the graph."""
    for a, b, up in ((*edge, True), (*edge[::-1], False)):
        if a.startswith("leaf"):
            return (a, "spines") if up else ("spines", a)
        if b.startswith("core"):
            pod = a.split()[0]
            return (pod, "cores") if up else ("cores", pod)
    raise AssertionError(edge)


@FEW
@given(clos_networks(("spray",)))
def test_clos_spray_uses_the_union_of_all_shortest_paths(wiring):
    graph, (src, dst) = graph_of(wiring), pairs_of(wiring, 40)
    for i, links in enumerate(used(wiring, src, dst)):
        ends = wiring.switch_name(src[i]), wiring.switch_name(dst[i])
        paths = list(nx.all_shortest_paths(graph, *ends))
        expected = {bundled(edge, wiring) for path in paths for edge in pairwise(path)}
        assert set(links) == expected
        assert set(links.values()) <= {1.0}


@FEW
@given(clos_networks(("ecmp", "adaptive")))
def test_clos_flows_keep_to_shortest_paths(wiring):
    graph, (src, dst) = graph_of(wiring), pairs_of(wiring, 40)
    for i, links in enumerate(used(wiring, src, dst)):
        ends = wiring.switch_name(src[i]), wiring.switch_name(dst[i])
        paths = nx.all_shortest_paths(graph, *ends)
        assert set(links) <= {edge for path in paths for edge in pairwise(path)}


def mixed(value):
    """Return mix() of one number, in Python's own integers."""
    mask = 2**64 - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


def hashed_slowly(seed, stream, *keys):
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15
    start = mixed((seed + (stream + 1) * golden) & mask)
    word = mixed(start)
    for key in keys:
        word = mixed((word + key * golden + start) & mask)
    return word


@FEW
@given(clos_networks(("ecmp",)))
def test_clos_ecmp_is_what_a_loop_over_flows_finds(wiring):
    src, dst = pairs_of(wiring, 40)
    for i, links in enumerate(used(wiring, src, dst)):
        expected = defaultdict(float)
        a, b = (int(wiring.leaf[p]) for p in (src[i], dst[i]))
        pods, several = (int(wiring.pod[a]), int(wiring.pod[b])), wiring.npods > 1
        for k in range(wiring.flows if a != b else 0):
            key = int(src[i]), int(dst[i]), k
            s = (hashed_slowly(wiring.seed, 0, *key) >> 32) * wiring.spines >> 32
            c = (hashed_slowly(wiring.seed, 1, *key) >> 32) * wiring.cores >> 32
            names = [f"pod{p} spine{s}" if several else f"spine{s}" for p in pods]
            core = [f"core{s * wiring.cores + c}"] if pods[0] != pods[1] else []
            path = [f"leaf{a}", names[0], *core, *(names[1:] if core else []), f"leaf{b}"]
            for edge in pairwise(path):
                expected[edge] += 1 / wiring.flows
        assert links == pytest.approx(expected)


def test_rails_without_a_spine_name_both_ports():
    wiring = clos(16, 8, spines=0)
    assert wiring.nlinks == 0
    assert wiring.switches([0], [7]).tolist() == [1]
    for question in (wiring.routes, wiring.switches):
        with pytest.raises(FabricError, match=r"port 3 on leaf0 .* port 9 on leaf1 .*no spines"):
            question(np.array([0, 3]), np.array([7, 9]))


def test_pods_without_cores_do_not_reach_each_other():
    wiring = clos(32, 8, spines=2, pods=2, cores=0)
    assert wiring.switches([0], [8]).tolist() == [3]
    with pytest.raises(FabricError, match=r"leaf0 of pod0 .* leaf2 of pod1: no cores"):
        wiring.routes([0], [16])


def test_uneven_leaves_share_their_own_uplinks():
    leaf = np.array([0, 0, 0, 1], dtype=np.int32)
    for routing, expected in (("spray", [6.0, 2.0]), ("ecmp", [3.0, 3.0, 1.0, 1.0])):
        wiring = Clos(leaf, np.zeros(2, np.int32), np.array([6.0, 2.0]), spines=2, routing=routing)
        assert wiring.bandwidth.tolist() == expected * 2


def test_oversubscribed_leaves_carry_ports_over_uplinks():
    assert load(clos(64, 8, over=2.0), np.arange(64), (np.arange(64) + 8) % 64) == 2.0


@pytest.mark.parametrize("shape", [(256, 16, 16), (1024, 32, 32), (1024, 32, 24), (1024, 32, 16),
                                   (2048, 32, 32, 4, 16)])  # fmt: skip
def test_adaptive_is_close_to_spray_and_far_from_ecmp(shape):
    flows = permutation(shape[0])
    spray, ecmp, adaptive = (load(clos(*shape, routing=r), *flows) for r in ROUTINGS)
    assert adaptive <= 1.5 * spray
    assert adaptive <= 0.6 * ecmp


def test_flows_that_are_all_equally_slow_survive_rounding():
    leaf, pod, up = np.array([0, 1], np.int32), np.array([0, 1], np.int32), np.full(2, 2.0)
    for rate in np.linspace(1.0, 3.0, 97):
        wiring = Clos(leaf, pod, up, np.array([2.0, rate]), 1, 1, "adaptive")
        assert load(wiring, [0, 0, 0], [1, 1, 1]) == pytest.approx(3 / min(rate, 2.0))


@pytest.mark.parametrize("seed", range(6))
def test_heavy_flows_are_kept_apart_by_adaptive(seed):
    src, dst = permutation(256, seed)
    weight = np.where(np.arange(256) % 16 == 0, 16.0, 1.0)
    ecmp, adaptive = (load(clos(256, 16, 16, routing=r), src, dst, weight) for r in ROUTINGS[1:])
    assert adaptive < ecmp


@pytest.mark.parametrize("routing, entries", [("spray", 4), ("ecmp", 4), ("adaptive", 16)])
def test_a_hundred_thousand_ports_cost_a_few_entries_a_flow(routing, entries):
    wiring = clos(100_000, 32, 16, pods=50, cores=16, routing=routing)
    src, dst = permutation(100_000)
    tracemalloc.start()
    row, link, share = wiring.routes(src, dst)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(row) == len(link) == len(share) <= entries * 100_000
    assert peak < 1 << 30


# --- hashes -------------------------------------------------------------------------------------


def chi_square(counts):
    """Return chi-square over its degrees of freedom, in standard deviations from 1."""
    counts = np.asarray(counts, dtype=float).ravel()
    expected, freedom = counts.mean(), len(counts) - 1
    return (((counts - expected) ** 2).sum() / expected - freedom) / np.sqrt(2 * freedom)


STRIDES = [(1, 0), (0, 1), (1, 1), (8, 8), (64, 1), (1024, 4096)]


@pytest.mark.parametrize("step", STRIDES)
@pytest.mark.parametrize("spines", [3, 16, 64, 97])
def test_flows_of_evenly_spaced_ports_spread_evenly_over_spines(step, spines):
    i = np.arange(20_000)
    word = hashed(7, 0, 5 + i * step[0], 9 + i * step[1], 0 * i)
    assert abs(chi_square(np.bincount(pick(word, spines), minlength=spines))) < 4


@pytest.mark.parametrize("step", STRIDES)
def test_tiers_choose_independently(step):
    i = np.arange(40_000)
    keys = 3 + i * step[0], 4 + i * step[1], 0 * i
    one, two = (pick(hashed(1, stream, *keys), 16) for stream in (0, 1))
    assert abs(chi_square(np.bincount(one * 16 + two, minlength=256))) < 4


@pytest.mark.parametrize("what", ["queue pair", "seed", "direction"])
def test_a_change_of_one_key_draws_anew(what):
    i, j = np.arange(40_000), np.arange(40_000) // 7 + 50_000
    other = {"queue pair": hashed(1, 0, i, j, 0 * i + 1), "seed": hashed(2, 0, i, j, 0 * i),
             "direction": hashed(1, 0, j, i, 0 * i)}[what]  # fmt: skip
    one, two = pick(hashed(1, 0, i, j, 0 * i), 16), pick(other, 16)
    assert abs(chi_square(np.bincount(one * 16 + two, minlength=256))) < 4


def test_ecmp_loads_of_a_clos_are_those_of_throwing_balls_into_bins():
    wiring = clos(16_384, 64, 64, routing="ecmp")
    _, link, _ = wiring.routes(*permutation(16_384))
    up = np.bincount(link, minlength=wiring.nlinks)[: wiring.nlinks // 2]
    fraction = np.bincount(up, minlength=4)[:4] / len(up)
    assert fraction == pytest.approx([0.368, 0.368, 0.184, 0.061], abs=0.02)  # Poisson(1)


@given(st.integers(0, 2**64 - 1))
def test_the_mixer_is_the_one_of_splitmix64(value):
    assert int(mix(np.array([value], dtype=np.uint64))[0]) == mixed(value)


@given(st.integers(0, 2**64 - 1), st.integers(0, 99), st.integers(0, 2**40), st.integers(0, 99))
def test_the_hash_is_that_of_pythons_integers(seed, stream, one, two):
    found = hashed(seed, stream, np.array([one]), np.array([two]))
    assert int(found[0]) == hashed_slowly(seed, stream, one, two)


def test_two_moves_of_one_try_never_enter_the_same_link():
    entered = np.array([[0, 0, 1, -1], [2, 3, 3, 4]])
    moves = flows_module._apart(entered, np.array([1.0, 2.0, 3.0, 0.0]), np.full(6, -1))
    links = entered[:, moves].ravel()
    links = links[links >= 0]
    assert 2 in moves and 3 not in moves
    assert len(links) == len(set(links.tolist()))


# --- dragonfly ----------------------------------------------------------------------------------


@FEW
@given(dragonflies(("spray",)))
def test_dragonfly_spray_is_even_over_the_shortest_of_the_links_between_two_groups(wiring):
    src, dst = pairs_of(wiring, 40)
    edges = [(a, b) for a, b, _ in wiring.edges()]
    for i, links in enumerate(used(wiring, src, dst)):
        one, two = wiring.switch_name(src[i]), wiring.switch_name(dst[i])
        here, there = one.split()[0], two.split()[0]
        joint = [(a, b) for a, b in edges if (a.split()[0], b.split()[0]) == (here, there)]
        expected = defaultdict(float)
        if here == there and one != two:
            expected[one, two] = 1.0
        ways = [[e for e in ((one, a), (a, b), (b, two)) if e[0] != e[1]] for a, b in joint]
        ways = [w for w in ways if len(w) == min(map(len, ways))] if here != there else []
        for edge in (edge for way in ways for edge in way):
            expected[edge] += 1 / len(ways)
        assert links == pytest.approx(expected)


@FEW
@given(dragonflies())
def test_dragonfly_groups_are_complete_and_joined_by_the_same_number_of_links(wiring):
    count = defaultdict(int)
    for a, b, _ in wiring.edges():
        count[a.split()[0], b.split()[0]] += 1
    inside = wiring.routers * (wiring.routers - 1)
    for pair in product([f"group{g}" for g in range(wiring.groups)], repeat=2):
        assert count[pair] == (inside if pair[0] == pair[1] else wiring.between)
    out = [e[:2] for e in wiring.edges() if e[0].split()[0] != e[1].split()[0]]
    assert sorted(out) == sorted((b, a) for a, b in out)
    ports = np.bincount([int(a.split()[1][6:]) + wiring.routers * int(a.split()[0][5:])
                         for a, _ in out], minlength=1)  # fmt: skip
    assert ports.max() <= wiring.global_links


@FEW
@given(dragonflies())
def test_dragonfly_switches_is_the_shortest_path_within_the_two_groups(wiring):
    graph, (src, dst) = graph_of(wiring), pairs_of(wiring, 40)
    for a, b, found in zip(src, dst, wiring.switches(src, dst)):
        one, two = wiring.switch_name(a), wiring.switch_name(b)
        groups = {one.split()[0], two.split()[0]}
        part = graph.subgraph([v for v in graph if v.split()[0] in groups])
        assert found == nx.shortest_path_length(part, one, two) + 1


@FEW
@given(dragonflies())
def test_dragonfly_routes_have_three_hops_or_five_with_a_detour(wiring):
    src, dst = pairs_of(wiring)
    row, _, share = wiring.routes(src, dst)
    hops = np.bincount(row, weights=share, minlength=len(src))
    assert hops.max(initial=0) <= (5 if wiring.together else 3)


def test_a_dragonfly_of_every_group_once_has_one_link_between_any_two():
    wiring = Dragonfly(9, 4, np.arange(36), 1.0, 1.0, 2)  # g = a h + 1, the largest
    assert wiring.between == 1
    assert nx.diameter(graph_of(wiring)) == 3


def test_two_groups_that_talk_to_each_other_only_take_detours_when_adaptive():
    src, dst = np.arange(8), np.arange(8) + 8
    loads = [load(Dragonfly(9, 8, np.arange(72), 1.0, 1.0, 1, routing=r), src, dst)
             for r in ROUTINGS]  # fmt: skip
    assert loads[0] == loads[1] == 8.0  # one link between the groups carries all
    assert loads[2] <= 2.5


def test_a_dragonfly_with_too_few_global_links_says_how_many_it_needs():
    with pytest.raises(FabricError, match=r"4 routers x 1 .* 4 links .* 9 other .* give 3 or more"):
        Dragonfly(10, 4, np.arange(4), 1.0, 1.0, 1)


# --- torus --------------------------------------------------------------------------------------


def steps_of(size, ring, a, b):
    """Return [(direction, hops)] of the shortest ways from a to b on a ring or line."""
    ahead, back = (b - a) % size, (a - b) % size
    if a == b:
        return [(0, 0)]
    if not ring:
        return [(1 if b > a else -1, abs(b - a))]
    if size == 2:
        return [(1, 1)]
    return [(1, ahead)] * (ahead <= back) + [(-1, back)] * (back <= ahead)


def torus_twin(wiring, one, two):
    """Return {(from, to): share} of every order of moved dimensions and every way, averaged."""
    found, dims = defaultdict(float), wiring.dims
    start, goal = np.unravel_index(one, dims), np.unravel_index(two, dims)
    ring = [bool(w) for w in wiring.wrap]
    ways = [steps_of(n, ring[d], int(start[d]), int(goal[d])) for d, n in enumerate(dims)]
    orders = list(permutations(range(len(dims))))
    choices = list(product(*ways))
    for order, choice in product(orders, choices):
        at = [int(c) for c in start]
        for d in order:
            direction, hops = choice[d]
            for _ in range(hops):
                was = int(np.ravel_multi_index(at, dims))
                at[d] = (at[d] + direction) % dims[d]
                edge = f"node{was}", f"node{int(np.ravel_multi_index(at, dims))}"
                found[edge] += 1 / len(orders) / len(choices)
    return found


@FEW
@given(tori(("spray",)))
def test_torus_spray_averages_over_orders_and_ways(wiring):
    src, dst = pairs_of(wiring, 15)
    for i, links in enumerate(used(wiring, src, dst)):
        assert links == pytest.approx(torus_twin(wiring, src[i], dst[i]))


@FEW
@given(tori())
def test_torus_routes_keep_to_shortest_paths(wiring):
    graph, (src, dst) = graph_of(wiring), pairs_of(wiring, 15)
    for i, links in enumerate(used(wiring, src, dst)):
        ends = f"node{src[i]}", f"node{dst[i]}"
        near = nx.single_source_shortest_path_length(graph, ends[0])
        far = nx.single_source_shortest_path_length(graph.reverse(), ends[1])
        assert all(near[a] + 1 + far[b] == near[ends[1]] for a, b in links)


@FEW
@given(tori())
def test_torus_is_the_grid_graph_of_networkx(wiring):
    grid = nx.grid_graph(wiring.dims[::-1], periodic=[bool(w) for w in wiring.wrap[::-1]])
    mine = graph_of(wiring).to_undirected()

    def name(v):
        at = (v,) if isinstance(v, int) else v
        return f"node{np.ravel_multi_index(at, wiring.dims)}"

    theirs = {frozenset((name(a), name(b))) for a, b in grid.edges if a != b}
    assert {frozenset(e) for e in mine.edges} == theirs


def test_a_ring_of_two_is_one_link_of_twice_the_bandwidth():
    assert Torus((2,), 5.0).bandwidth.tolist() == [10.0, 10.0]
    assert Torus((2,), 5.0, wrap=False).bandwidth.tolist() == [5.0, 5.0]


def test_a_tie_on_a_ring_goes_both_ways_round():
    links = used(Torus((4,), 1.0), [0], [2])[0]
    assert links == {("node0", "node1"): 0.5, ("node1", "node2"): 0.5,
                     ("node0", "node3"): 0.5, ("node3", "node2"): 0.5}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_transposed_torus_is_relieved_by_adaptive(seed):
    src = np.arange(64)
    flows = src, src % 8 * 8 + src // 8
    ecmp, adaptive = (load(Torus((8, 8), 1.0, routing=r, seed=seed), *flows)
                      for r in ROUTINGS[1:])  # fmt: skip
    assert adaptive <= 0.7 * ecmp


def test_torus_links_name_their_axis_and_direction():
    wiring = Torus((2, 3), 1.0)
    names = [wiring.link_name(k) for k in range(wiring.nlinks)]
    assert names[:3] == ["node0 -> node3 (x+)", "node0 -> node1 (y+)", "node0 -> node2 (y-)"]


def test_ports_of_one_torus_node_need_no_link():
    wiring = Torus((3,), 1.0, port_node=np.array([0, 0, 1], dtype=np.int32))
    assert wiring.hops([0, 0], [1, 2]).tolist() == [0, 1]
    assert used(wiring, [0, 0], [1, 2]) == [{}, {("node0", "node1"): 1.0}]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make, says", [
    (lambda: clos(routing="magic"), "routing 'magic': expected one of spray, ecmp, adaptive"),
    (lambda: clos(flows=0), "flows 0: expected 1 to"),
    (lambda: clos(seed=-1), "seed -1"),
    (lambda: Clos(np.array([3]), np.zeros(1, np.int32), np.ones(1)), "leaf 3: expected 0 to 0"),
    (lambda: Clos(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1)), r"leaf_up\[0\] 0"),
    (lambda: Clos(np.zeros(2), np.zeros(1, np.int32), np.ones(1)), "whole numbers"),
    (lambda: clos(64, 8, pods=2, cores=1 << 20, spines=1 << 10, routing="ecmp"), "links are more"),
    (lambda: Torus((), 1.0), "a tuple of 1 to 4 sizes"),
    (lambda: Torus((1 << 19, 4), 1.0), "nodes, at most"),
    (lambda: Torus((2, 2), [1.0]), "expected 2 numbers"),
    (lambda: Torus((2, 2), float("nan")), "nan B/s"),
    (lambda: Torus((2, 2), 1.0, wrap=[True]), r"wrap \[True\]: one claim .* or 2"),
    (lambda: Torus((2, 2), 1.0, wrap=None), "wrap None"),
    (lambda: Dragonfly(2, 2, np.array([4]), 1.0, 1.0), "port_router 4: expected 0 to 3"),
    (lambda: Dragonfly(2, 2, np.array([0]), 0.0, 1.0), "local_bandwidth 0"),
    (lambda: clos().routes([0, 1], [1]), "src has 2 ports, dst 1"),
    (lambda: clos().routes([64], [1]), "src 64: expected 0 to 63"),
    (lambda: clos().routes([0], [-1]), "dst -1"),
    (lambda: clos(routing="adaptive").routes([0], [9], np.array([-1.0])), "weight"),
    (lambda: clos(routing="adaptive").routes([0, 1], [9, 1], np.ones(7)), "weight"),
    (lambda: clos().link_name(10**6), "link 1000000"),
    (lambda: Torus((2,), 1.0).switch_name(2), "port 2"),
])  # fmt: skip
def test_a_wrong_figure_is_one_clear_line(make, says):
    with pytest.raises((InvalidArgument, FabricError), match=says) as error:
        make()
    assert isinstance(error.value, RcclError)
    assert "\n" not in str(error.value)


def test_adaptive_leaves_the_minimal_paths_when_a_whole_group_sends_to_the_next():
    """One link joins two groups: 8 flows over it, or a fair part of them over seven others."""
    rate = 45.5e9
    slowest = {}
    for routing in ("spray", "adaptive"):
        wiring = Dragonfly(9, 4, np.arange(72, dtype=np.int32) // 2, rate, rate, 2, routing)
        src = np.arange(72)
        _, link, share = wiring.routes(src, (src + 8) % 72)
        slowest[routing] = np.bincount(link, weights=share, minlength=wiring.nlinks).max()
    assert slowest["spray"] == pytest.approx(8) and slowest["adaptive"] <= 2.5
