"""Routes inside a node on random graphs agree with networkx; every fast form has its slow twin."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py import load
from rccl_py.fabric import Domain, Hubs, Listed, Planes, Searched, Wired
from rccl_py.links import LINKS
from rccl_py.topology import inside
from rccl_py.topology.build import SCALE_UP, add_link, add_pcie, new_graph
from rccl_py.topology.lower import domain_of

FAST, BUS = LINKS["ualink-200g"], LINKS["pcie5-x16"]


@st.composite
def graphs(draw) -> nx.DiGraph:
    """Return accelerators, switches of any depth and a PCI tree, joined at random."""
    gpus, switches = draw(st.integers(2, 8)), draw(st.integers(0, 5))
    graph = new_graph("random")
    for k in range(gpus):
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=0)
    for k in range(switches):
        graph.add_node(f"plane{k}", kind="switch")
    names = list(graph)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    for (a, b), lanes in draw(
        st.dictionaries(st.sampled_from(pairs), st.integers(1, 4), max_size=14)
    ).items():
        add_link(graph, a, b, FAST, lanes)
    if draw(st.booleans()):
        graph.add_node("cpu0", kind="cpu", host=0, numa=0)
        for k in range(draw(st.integers(1, gpus))):
            add_pcie(graph, "cpu0", f"gpu{k}", BUS)
    return graph


def ways(graph: nx.DiGraph, a: str, b: str) -> tuple[list[list[str]], bool]:
    """Return networkx's shortest paths by the rules of `inside`, and whether all are taken."""
    up = nx.DiGraph((x, y) for x, y, d in graph.edges(data=True) if d["link"].medium in SCALE_UP)
    host = nx.DiGraph((x, y) for x, y, d in graph.edges(data=True) if d["link"].medium == "pci")
    kind = graph.nodes(data="kind")
    switched = up.subgraph([v for v in up if v in (a, b) or kind[v] == "switch"])
    for allowed, every in ((switched, True), (up, False), (host.subgraph(
            [v for v in host if v in (a, b) or kind[v] == "cpu"]), False)):  # fmt: skip
        if a in allowed and b in allowed and nx.has_path(allowed, a, b):
            return list(nx.all_shortest_paths(allowed, a, b)), every
    return [], False


def taken(domain: Domain, i: int, j: int) -> dict[tuple[str, str], float]:
    found = domain.inside.routes(np.array([i]), np.array([j]))
    edges = [tuple(domain.names[k].split(" -> ")) for k in found.link.tolist()]
    return dict(zip(edges, found.share.tolist()))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_paths_are_the_shortest_paths_of_networkx(graph):
    domain = domain_of(graph)
    for i in range(domain.ngpus):
        for j in range(domain.ngpus):
            if i == j:
                continue
            a, b = f"gpu{i}", f"gpu{j}"
            paths, every = ways(graph, a, b)
            links = taken(domain, i, j)
            assert bool(domain.inside.reaches(np.array([i]), np.array([j]))[0]) == bool(paths)
            if every:
                assert links.keys() == {e for path in paths for e in pairwise(path)}
                assert sum(links.values()) == pytest.approx(len(paths[0]) - 1)
                for v in graph:  # what enters a switch leaves it
                    into = sum(s for (_, y), s in links.items() if y == v)
                    out = sum(s for (x, _), s in links.items() if x == v)
                    assert into - out == pytest.approx((v == b) - (v == a))
            elif paths:
                assert links.keys() in [set(pairwise(p)) for p in paths]


def same(one: Domain, other: Domain) -> None:
    """Assert that two forms of a node's routes agree, pair by pair and link by link."""
    i, j = (x.ravel() for x in np.indices((one.ngpus, one.ngpus)))
    a, b = one.inside, other.inside
    np.testing.assert_allclose(a.latency(i, j), b.latency(i, j), rtol=1e-9)
    np.testing.assert_allclose(a.message(i, j), b.message(i, j), rtol=1e-9)
    assert (a.reaches(i, j) == b.reaches(i, j)).all()
    assert (a.coherent(i, j) == b.coherent(i, j)).all()
    loads = []
    for form in (a, b):
        found = form.routes(i, j)
        key = found.row * one.nlinks + found.link
        loads.append(np.bincount(key, weights=found.share, minlength=len(i) * one.nlinks))
    np.testing.assert_allclose(*loads, rtol=1e-9, atol=1e-12)


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_searching_a_source_when_asked_equals_listing_all_pairs(graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside, "_LISTED", 0)
        patch.setattr(inside, "_planes", lambda g: None)
        patch.setattr(inside, "_hubs", lambda g: None)
        searched = domain_of(graph)
        patch.setattr(inside, "_LISTED", 128)
        listed = domain_of(graph)
    assert isinstance(searched.inside, Searched) and isinstance(listed.inside, Listed)
    same(listed, searched)


@pytest.mark.parametrize("build", [
    lambda: load("h100-8").node, lambda: load("helios-72").node,
    lambda: load("h100-8").without("gpu2", "plane1").with_link("gpu5", "plane3", 1).node,
])  # fmt: skip
def test_switch_planes_equal_listing_all_pairs(build, monkeypatch):
    fast = domain_of(build())
    monkeypatch.setattr(inside, "_planes", lambda g: None)
    monkeypatch.setattr(inside, "_hubs", lambda g: None)
    monkeypatch.setattr(inside, "_LISTED", 128)
    slow = domain_of(build())
    assert isinstance(fast.inside, Planes) and isinstance(slow.inside, Listed)
    same(fast, slow)


TORUS = """name: box
summary: a torus
device: mi300x
gpus: {n}
scale_up: {{torus: {{link: ualink-200g, dims: {dims}, wrap: {wrap}}}}}
"""


@pytest.mark.parametrize("dims, wrap", [
    ([2], True), ([5], True), ([5], False), ([2, 3], True), ([4, 4], True), ([3, 2, 4], True),
    ([3, 3, 3], False), ([1, 4], True),
])  # fmt: skip
def test_a_torus_has_the_hops_and_latencies_of_a_search_on_its_graph(tmp_path, dims, wrap):
    n = int(np.prod(dims))
    path = tmp_path / "box.yaml"
    path.write_text(TORUS.format(n=n, dims=dims, wrap=str(wrap).lower()))
    graph = load(path).node
    fast = domain_of(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside, "_torus", lambda g: None)
        slow = domain_of(graph)
    assert isinstance(fast.inside, Wired) and not isinstance(slow.inside, Wired)
    i, j = (x.ravel() for x in np.indices((n, n)))
    assert fast.inside.latency(i, j) == pytest.approx(slow.inside.latency(i, j))
    for form in (fast.inside, slow.inside):
        found = form.routes(i, j)
        hops = np.bincount(found.row, weights=found.share, minlength=n * n)
        undirected = graph.to_undirected()
        wanted = [nx.shortest_path_length(undirected, f"gpu{a}", f"gpu{b}") for a, b in zip(i, j)]
        assert hops == pytest.approx(wanted)


def test_a_torus_with_a_broken_link_goes_around_it(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(TORUS.format(n=16, dims=[4, 4], wrap="true"))
    domain = domain_of(load(path).without("gpu0", "gpu1").node)
    assert not isinstance(domain.inside, Wired) and len(taken(domain, 0, 1)) == 3


def test_accelerators_on_one_switch_each_equal_listing_all_pairs(monkeypatch):
    graph = load("mi300x-8-cpx").node
    fast = domain_of(graph)
    monkeypatch.setattr(inside, "_hubs", lambda g: None)
    monkeypatch.setattr(inside, "_LISTED", 128)
    slow = domain_of(graph)
    assert isinstance(fast.inside, Hubs) and isinstance(slow.inside, Listed)
    same(fast, slow)


def test_a_fabric_of_a_searched_graph_can_travel_to_another_process():
    import pickle

    from rccl_py import lower

    fabric = lower(load("tpu-v4-64").without("gpu0", "gpu1"))
    assert isinstance(fabric.domain.inside, Searched)
    other = pickle.loads(pickle.dumps(fabric))
    i, j = np.zeros(63, np.int32), np.arange(1, 64, dtype=np.int32)
    assert other.latency(i, j).tolist() == fabric.latency(i, j).tolist()


def test_a_nic_beside_the_gpu_is_nearer_than_one_beyond_the_cpu(tmp_path):
    """Both four hops away; NCCL's PXB comes before PHB."""
    graph = new_graph("box")
    graph.add_node("gpu0", kind="gpu", index=0, host=0)
    for name, kind in (("cpu0", "cpu"), ("sw0", "pci"), ("sw1", "pci"), ("sw2", "pci")):
        graph.add_node(name, kind=kind, host=0, numa=0)
    for k in (0, 1):
        graph.add_node(f"nic{k}", kind="nic", index=k, host=0, port=LINKS["ib-400g"])
    for a, b in (("gpu0", "sw0"), ("sw0", "cpu0"), ("cpu0", "sw2"), ("sw2", "nic0"),
                 ("sw0", "sw1"), ("sw1", "sw3"), ("sw3", "nic1")):  # fmt: skip
        graph.add_node("sw3", kind="pci", host=0)
        add_pcie(graph, a, b, BUS)
    assert domain_of(graph).nics_of(0) == [1]
