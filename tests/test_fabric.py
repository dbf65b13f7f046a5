"""Fabrics: every route is a flow on the joined graph; bad machine files are one clear error."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from helpers import machine

from rccl_py import Topology, load, lower
from rccl_py.errors import FabricError, FormatError, InvalidArgument
from rccl_py.fabric import Fabric
from rccl_py.links import LINKS
from rccl_py.topology.build import SCALE_UP

SWITCHED = "scale_up: {switch: {link: nvlink4, lanes: 18, switches: 3, hop: 0.1us}}"
MESHED = "scale_up: {mesh: {link: xgmi-mi300}}"
LINE = "scale_up: {pairs: [{link: xgmi-mi200, lanes: 2, pairs: [[0, 1], [1, 2], [2, 3]]}]}"


CASES = {
    "a full mesh": lambda folder: load("mi300x-8"),
    "unequal links": lambda folder: load("mi250x-4"),
    "three nodes on rails": lambda folder: load("h100-8", nodes=3),
    "rails in two pods": lambda folder: load("h100-8", nodes=3, leaf_nodes=2),
    "leaves with too few uplinks": lambda folder: load(
        "mi300x-8", nodes=4, network="leaf-spine", leaf_nodes=2, oversubscription=3),
    "two GCDs a NIC, two nodes": lambda folder: load("mi250x-4", nodes=2),
    "rails without a spine": lambda folder: load(machine(
        folder, f"{SWITCHED}\nnics: {{link: ib-400g, count: 4}}\nnodes: 3\n"
        "network: {kind: rails, spine: false}")),
    "rails without a spine over a mesh": lambda folder: load(machine(
        folder, f"{MESHED}\nnics: {{link: ib-400g, count: 2}}\nnodes: 2\n"
        "network: {spine: false}")),
    "more NICs than GPUs": lambda folder: load(machine(
        folder, f"{MESHED}\nnics: {{link: roce-100g, count: 7}}\nnodes: 2", gpus=3)),
    "fewer NICs than GPUs": lambda folder: load(machine(
        folder, f"{SWITCHED}\nnics: {{link: roce-100g, count: 2}}\nnodes: 2", gpus=5)),
    "a line that relays": lambda folder: load(machine(folder, LINE)),
    "only PCI": lambda folder: load(machine(
        folder, "nics: {link: ib-100g, count: 1, near: [[0, 1, 2]]}", gpus=3)),
    "one GPU a node": lambda folder: load(machine(
        folder, "nics: {link: ib-100g, count: 1}\nnodes: 3", gpus=1)),
}  # fmt: skip


@pytest.fixture(params=CASES.values(), ids=CASES)
def topology(request, tmp_path) -> Topology:
    return request.param(tmp_path)


def edge_of(fabric: Fabric, link: int, joined: bool) -> tuple[str, str]:
    """Return the ends in the joined graph of link number `link`."""
    name = fabric.link_name(link)
    node, _, ends = name.rpartition(": ")
    prefix = f"{node or 'node0'}/" if joined else ""
    return tuple(v if v.startswith(("leaf", "spine")) else prefix + v for v in ends.split(" -> "))


def accelerator(fabric: Fabric, rank: int, joined: bool) -> str:
    node, local = divmod(int(fabric.place[rank]), fabric.domain.ngpus)
    return f"node{node}/gpu{local}" if joined else f"gpu{local}"


def flow_left(flow: dict[tuple[str, str], float], source: str, target: str) -> float:
    """Return what is left of a unit of flow (and of each edge) after following it to `target`."""
    arrived, left = 0.0, dict(flow)
    while arrived < 1 - 1e-9:
        at, path = source, []
        while at != target:
            edge = max((e for e in left if e[0] == at), key=left.__getitem__, default=None)
            if edge is None or left[edge] < 1e-12 or len(path) > len(flow):
                return 1 - arrived
            path.append(edge)
            at = edge[1]
        step = min(left[e] for e in path)
        arrived += step
        left = {e: share - step * (e in path) for e, share in left.items()}
    return max(map(abs, left.values()), default=0.0)


def all_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    far = ~np.eye(n, dtype=bool)
    src, dst = np.nonzero(far)
    return src.astype(np.int32), dst.astype(np.int32)


def test_every_link_of_the_fabric_is_an_edge_of_the_joined_graph_and_as_wide(topology):
    fabric, graph = lower(topology), topology.graph()
    joined = topology.nodes > 1
    edges = [edge_of(fabric, link, joined) for link in range(fabric.nlinks)]
    assert len(set(edges)) == len(edges)
    # A lone leaf needs no way up; the fabric numbers one all the same.
    known = [(e, b) for e, b in zip(edges, fabric.bandwidth) if "spine" not in graph or e in
             graph.edges]  # fmt: skip
    known = [(e, b) for e, b in known if "spine" in graph or "spine" not in e]
    assert {e for e, _ in known} == set(graph.edges)
    assert [graph.edges[e]["bandwidth"] for e, _ in known] == pytest.approx([b for _, b in known])


def test_every_route_is_a_unit_of_flow_from_its_source_to_its_target(topology):
    fabric, graph, joined = lower(topology), topology.graph(), topology.nodes > 1
    src, dst = all_pairs(fabric.nranks)
    routes = fabric.routes(src, dst)
    flows: list[dict[tuple[str, str], float]] = [{} for _ in src]
    for row, link, share in zip(routes.row.tolist(), routes.link.tolist(), routes.share.tolist()):
        edge = edge_of(fabric, link, joined)
        flows[row][edge] = flows[row].get(edge, 0.0) + share
    for s, d, flow in zip(src.tolist(), dst.tolist(), flows):
        assert flow.keys() <= set(graph.edges) and all(share > 0 for share in flow.values())
        ends = accelerator(fabric, s, joined), accelerator(fabric, d, joined)
        assert flow_left(flow, *ends) < 1e-9, ends


def test_a_route_inside_a_node_is_a_shortest_and_among_those_a_widest_one(topology):
    fabric, node = lower(topology, topology.gpus_per_node), topology.node
    scale_up = nx.DiGraph((a, b, d) for a, b, d in node.edges(data=True)
                          if d["link"].medium in SCALE_UP)  # fmt: skip
    for s, d in zip(*all_pairs(fabric.nranks)):
        routes = fabric.routes(np.array([s]), np.array([d]))
        a, b = f"gpu{s}", f"gpu{d}"
        graph = scale_up if scale_up.has_node(a) and nx.has_path(scale_up, a, b) else node
        paths = [list(pairwise(p)) for p in nx.all_shortest_paths(graph, a, b)]
        widths = [min(node.edges[e]["bandwidth"] for e in path) for path in paths]
        taken = {edge_of(fabric, link, False) for link in routes.link.tolist()}
        if "switch" in {node.nodes[v]["kind"] for path in paths for _, v in path}:
            assert taken == {e for path in paths for e in path}
        else:
            assert taken in [set(p) for p, w in zip(paths, widths) if w == max(widths)]


def test_latency_inside_a_node_is_the_sum_over_the_links_of_a_scale_up_route(topology):
    fabric, node = lower(topology, topology.gpus_per_node), topology.node
    for s, d in zip(*all_pairs(fabric.nranks)):
        routes = fabric.routes(np.array([s]), np.array([d]))
        edges = [node.edges[edge_of(fabric, link, False)] for link in routes.link.tolist()]
        wanted = sum(s * np.array(e["latency"]) for s, e in zip(routes.share, edges))
        if not any(e["link"].medium in SCALE_UP for e in edges):
            wanted = wanted + np.array(edges[0]["link"].latency)
        assert fabric.latency(np.array([s]), np.array([d]))[:, 0] == pytest.approx(wanted)


def test_a_rank_has_no_route_to_itself(topology):
    ranks = np.arange(topology.ngpus, dtype=np.int32)
    assert len(lower(topology).routes(ranks, ranks).link) == 0


def test_uplinks_carry_what_is_cabled_below_over_the_oversubscription():
    fabric = lower(
        load("mi300x-8", nodes=4, network="leaf-spine", leaf_nodes=2, oversubscription=4)
    )
    up = fabric.cables + 2 * fabric.ports  # the first links of the wiring are the leaves' ways up
    port = LINKS["roce-400g"].bandwidth * LINKS["roce-400g"].efficiency
    assert fabric.bandwidth[up : up + 2] == pytest.approx(np.full(2, 2 * 8 * port / 4))
    assert [fabric.link_name(up + k) for k in range(2)] == ["leaf0 -> spines", "leaf1 -> spines"]


def test_another_leaf_is_two_switches_further_than_the_same_one():
    fabric = lower(load("mi300x-8", nodes=3, leaf_nodes=2))
    near, far = fabric.latency(np.array([0, 0]), np.array([8, 16])).T
    assert far - near == pytest.approx(np.full(3, 2 * fabric.hop))


def test_without_a_spine_other_rails_are_reached_through_a_peer(tmp_path):
    fabric = lower(CASES["rails without a spine"](tmp_path))
    names = [fabric.link_name(k) for k in fabric.routes(np.array([0]), np.array([5])).link]
    assert not any("spine" in name for name in names)
    assert "node0: nic1 -> leaf1" in names and "node0: plane0 -> gpu1" in names


@pytest.fixture
def unlike_links(monkeypatch):
    """Give every kind of link figures of its own, so that none can stand for another."""
    for k, (name, link) in enumerate(sorted(LINKS.items())):
        parts = 0.9 - k / 100, 0.8 + k / 1000, 0.7 + k / 500
        own = replace(link, parts=parts, window=1e5 + k, spread=0.95 - k / 200)
        monkeypatch.setitem(LINKS, name, own)


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_a_byte_keeps_a_link_busy_for_its_bytes_on_the_wire_over_the_bandwidth(
    made, tmp_path, unlike_links
):
    topology = made(tmp_path)
    fabric, graph, joined = lower(topology), topology.graph(), topology.nodes > 1
    assert fabric.pace.shape == (3, fabric.nlinks)
    wired = fabric.cables + 2 * fabric.ports
    for link in range(wired):
        kind = graph.edges[edge_of(fabric, link, joined)]["link"]
        wanted = np.array(kind.wire) / fabric.bandwidth[link]
        assert fabric.pace[:, link] == pytest.approx(wanted), fabric.link_name(link)
        assert fabric.spread[link] == kind.spread, fabric.link_name(link)
    if fabric.nlinks > wired:  # the network carries what NICs have framed
        nic = graph.edges[edge_of(fabric, fabric.cables, joined)]["link"]
        wanted = np.outer(nic.wire, 1 / fabric.bandwidth[wired:])
        assert fabric.pace[:, wired:] == pytest.approx(wanted)
        assert (fabric.spread[wired:] == 1).all()


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_windows_and_what_serving_many_leaves_are_told_of_nodes_and_of_nics(
    made, tmp_path, unlike_links
):
    topology = made(tmp_path)
    fabric = lower(topology)
    every = [d["link"] for _, _, d in topology.node.edges(data=True)]
    # Host links only where accelerators have no others to reach each other by.
    kinds = [link for link in every if link.medium not in ("pci", "cpu")] or every
    assert fabric.window(far=False) == max((kind.window for kind in kinds), default=0.0)
    assert fabric.least_spread(far=False) == min((kind.spread for kind in kinds), default=1.0)
    if fabric.ports:
        nic = topology.graph().edges[edge_of(fabric, fabric.cables, True)]["link"]
        assert (fabric.window(far=True), fabric.least_spread(far=True)) == (nic.window, nic.spread)


def test_the_links_that_leave_for_a_switch_are_those_from_accelerators_to_it(topology):
    fabric = lower(topology)
    names = [fabric.link_name(k) for k in np.flatnonzero(fabric.leaving)]
    switches = sum(d["kind"] == "switch" for _, d in topology.node.nodes(data=True))
    assert len(names) == topology.nodes * topology.gpus_per_node * switches
    assert all("gpu" in name.rpartition(" -> ")[0].rpartition(": ")[2] for name in names)
    assert not any("gpu" in name.rpartition(" -> ")[2] for name in names)


NO_MULTICAST = {
    "links that only forward":
        "scale_up: {switch: {link: nvlink3, lanes: 12, switches: 6, hop: 0us}}",
    "another make": "scale_up: {switch: {link: ualink-200g, lanes: 4, switches: 4, hop: 0us}}",
    "no switch at all": "scale_up: {mesh: {link: nvlink4}}",
    "pairs": "scale_up: {pairs: [{link: nvlink4, pairs: [[0, 1], [1, 2], [2, 3], [3, 0]]}]}",
}  # fmt: skip


@pytest.mark.parametrize("text", NO_MULTICAST.values(), ids=NO_MULTICAST)
def test_only_switches_of_links_that_say_so_multicast(text, tmp_path):
    assert lower(load(machine(tmp_path, SWITCHED))).multicast == LINKS["nvlink4"].multicast > 0
    assert lower(load(machine(tmp_path, text))).multicast == 0


def test_a_fabric_multicasts_as_well_as_its_worst_node():
    fabric = lower(load("h100-8", nodes=2))
    for part in (0.5, 0.0):
        worse = replace(fabric.domain, multicast=part)
        both = replace(fabric, domains=(fabric.domain, worse), kind=np.array([0, 1]))
        assert both.multicast == part


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 11])
def test_fewer_ranks_than_accelerators_take_the_first(ranks):
    fabric = lower(load("h100-8", nodes=2), ranks)
    assert fabric.place.tolist() == list(range(ranks)) and fabric.nranks == ranks
    assert fabric.copies == (1 if ranks <= 8 else 2)


def test_ranks_may_be_placed_on_any_accelerators():
    whole, some = lower(load("h100-8", nodes=2)), lower(load("h100-8", nodes=2), [9, 2, 0])
    assert some.node.tolist() == [1, 0, 0] and some.local.tolist() == [1, 2, 0]
    one, other = (
        f.routes(np.array([s]), np.array([d])) for f, s, d in ((whole, 9, 2), (some, 0, 1))
    )
    assert one.link.tolist() == other.link.tolist() and one.share.tolist() == other.share.tolist()


@pytest.mark.parametrize("ranks", [0, 9, [8], [-1], []])
def test_ranks_that_are_not_there_are_refused(ranks):
    with pytest.raises(InvalidArgument, match=r"mi300x-8: \d ranks asked for"):
        lower(load("mi300x-8"), ranks)


@pytest.mark.parametrize("text, gpus, what", [
    ("scale_up: {pairs: [{link: xgmi-mi300, pairs: [[0, 1]]}]}", 3, "gpu0 cannot reach gpu2"),
    ("", 2, "gpu0 cannot reach gpu1"),
    (f"{MESHED}\nnodes: 2", 2, "has no NIC"),
    ("nodes: 2\nhost: {link: pcie5-x16}\nnics: {link: ib-100g, count: 1, near: [[]]}", 2,
     "gpu0 reaches no NIC"),
    (f"{MESHED}\nnodes: 3\nnics: {{link: ib-100g, count: 1}}\n"
     "network: {spine: false, leaf_nodes: 2}", 2, "3 nodes need more than one group"),
])  # fmt: skip
def test_ranks_out_of_reach_are_a_fabric_error_that_names_them(tmp_path, text, gpus, what):
    with pytest.raises(FabricError, match=f"box: .*{what}|box: {what}"):
        lower(load(machine(tmp_path, text, gpus)))


GOOD = "name: a\nsummary: b\ndevice: mi300x\ngpus: 4\n"
BAD = {
    "an unknown key": (GOOD + "colour: red\n", "unknown field `colour`"),
    "an unknown key inside": (GOOD + "nics: {link: ib-400g, count: 1, speed: 2}\n", "nics: "),
    "a wrong type": (GOOD.replace("4", "many"), "gpus: Expected `int`"),
    "a wrong type inside": (GOOD + "nics: {link: ib-400g, count: two}\n", "nics.count: "),
    "a missing key": (GOOD.replace("gpus: 4\n", ""), "missing required field `gpus`"),
    "a number out of range": (GOOD.replace("4", "0"), "gpus: "),
    "a key given twice": (GOOD + "gpus: 5\n", ":5: key 'gpus' is given twice"),
    "an alias": (GOOD + "scale_up: &x {}\nnetwork: *x\n", ":6: aliases are not used here"),
    "broken YAML": (GOOD + "nics: {link: [\n", ":6: "),
    "a list": ("- a\n- b\n", "a mapping of keys"),
    "an empty file": ("", "a mapping of keys"),
    "two scale-up kinds": (GOOD + "scale_up: {mesh: {link: xgmi-mi300}, pairs: []}\n",
                           "scale_up: one of mesh, switch, pairs, torus was expected"),
    "no scale-up kind": (GOOD + "scale_up: {}\n", "scale_up: one of mesh"),
    "a GPU that is not there": (
        GOOD + "scale_up: {pairs: [{link: xgmi-mi300, pairs: [[0, 4]]}]}\n",
        r"scale_up.pairs\[0\].pairs: GPU 4 is not one of 0..3"),
    "a GPU that is not there, by a NIC": (
        GOOD + "nics: {link: ib-400g, count: 1, near: [[9]]}\n", r"nics.near\[0\]: GPU 9"),
    "a link to itself": (GOOD + "scale_up: {pairs: [{link: xgmi-mi300, pairs: [[1, 1]]}]}\n",
                         "GPU 1 is joined to itself"),
    "a link given twice": (
        GOOD + "scale_up: {pairs: [{link: xgmi-mi300, pairs: [[0, 1], [1, 0]]}]}\n", "given twice"),
    "an unknown link": (GOOD + "scale_up: {mesh: {link: xgmi-mi3000}}\n",
                        "scale_up.mesh.link: link 'xgmi-mi3000' is not known: .*xgmi-mi300"),
    "an unknown link of a NIC": (GOOD + "nics: {link: ib, count: 1}\n", "nics.link: .*ib-400g"),
    "an unknown device": (GOOD.replace("mi300x", "mi300z"), "device: .*'mi300z'.*mi300x"),
    "too few rows of near": (GOOD + "nics: {link: ib-400g, count: 2, near: [[0]]}\n",
                             "nics.near: 1 rows"),
    "a bandwidth without a unit": (
        GOOD + "links: {own: {bandwidth: 50, latency: 1us, source: me}}\n", "links.*bandwidth"),
    "a bandwidth of nothing": (
        GOOD + "links: {own: {bandwidth: 0GB/s, latency: 1us, source: me}}\n",
        "links.own.bandwidth: .* not above 0"),
    "a time that is none": (
        GOOD + "links: {own: {bandwidth: 1GB/s, latency: soon, source: me}}\n",
        "links.own.latency: "),
    "a rate no link has": (
        GOOD + "links: {own: {bandwidth: 1e-320GB/s, latency: 1us, source: me}}\n",
        "links.own.bandwidth: .*"),
    "a cap of nothing": (GOOD + "nics: {link: ib-400g, count: 1, cap: 1e-300GB/s}\n", "nics.cap: "),
    "more partitions than a node holds": (
        GOOD.replace("4", "16384") + "partitions: {count: 64, link: xgmi-mi300}\n",
        "partitions.count: 16384 GPUs of 64 are 1048576"),
    "more functions than a node holds": (
        GOOD + "nics: {link: ib-400g, count: 4096, functions: 256}\n", "nics.functions: 4096 NICs"),
    "a tag on what it does not fit": (
        GOOD.replace("name: a", "name: !!bool x"), "not YAML: KeyError"),
    "an escape in a text": (GOOD.replace("name: a", r'name: "\u009b31m"'), "printable"),
    "an escape in a key": (GOOD + r'"\e[31mx": 1' + "\n", "printable"),
    "a torus without sizes": (GOOD + "network: {kind: torus}\n", "network.dims: a torus needs it"),
    "sizes without a torus": (GOOD + "network: {dims: [2, 2]}\n", "network.dims: only a torus"),
    "a torus of another size": (
        GOOD + "scale_up: {torus: {link: ualink-200g, dims: [2, 3]}}\n",
        "scale_up.torus.dims: 2 x 3 are 6 places"),
    "two sockets that nothing joins": (
        GOOD + "host: {link: pcie5-x16, sockets: 2}\n", "host.socket_link: 2 sockets need it"),
    "a network of no kind": (GOOD + "network: {kind: ring}\n", "network.kind: "),
    "a node that is not there": ("name: a\nsummary: b\nnode: mi300x8\nnodes: 2\n",
                                 "node: .*did you mean mi300x-8 "),
    "a node that is this file": ("name: a\nsummary: b\nnode: bad.yaml\nnodes: 2\n",
                                 "node: 'bad.yaml' leads back"),
    "a node that is several": ("name: a\nsummary: b\nnode: mi300x-8-x128-rails\nnodes: 2\n",
                               "is itself 128 nodes"),
}  # fmt: skip


@pytest.mark.parametrize("text, what", BAD.values(), ids=BAD)
def test_a_bad_machine_file_is_one_line_that_names_the_file_and_the_key_or_line(
    tmp_path, text, what
):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=what) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:") and "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused_in_one_line(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(FormatError, match="not YAML: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_two_cluster_files_that_name_each_other_are_refused(tmp_path):
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nsummary: b\nnode: {other}.yaml\nnodes: 2\n")  # fmt: skip
    with pytest.raises(FormatError, match=r"two.yaml: node: 'one.yaml' leads back to .*one.yaml"):
        load(tmp_path / "one.yaml")


@pytest.mark.parametrize("content, what", [(b"\xff\xfe\x00", "not UTF-8"), (None, "is a folder")])
def test_a_folder_or_bytes_of_another_kind_are_refused_by_name(tmp_path, content, what):
    path = tmp_path / "thing.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(FormatError, match=what) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name, near", [("mi300x8", "mi300x-8"), ("h100", "h100-8"),
                                        ("MI250X-4", "mi250x-4")])  # fmt: skip
def test_an_unknown_machine_is_refused_with_the_near_names(name, near):
    with pytest.raises(InvalidArgument, match=f"{name!r} is neither.*did you mean.*{near}"):
        load(name)
