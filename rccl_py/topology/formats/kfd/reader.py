"""Read the AMD kernel driver's view of a node: a copy of /sys/class/kfd/kfd/topology.

Owns which vertex and link each kfd node and io_link becomes. GPUs are counted by kfd node, as HIP
counts them. Partitions of one GPU (CPX, DPX, ...) are accelerators of their own that share a hub,
its xGMI and its PCIe link. kfd knows no NICs. What the driver does not give is assumed and said in
Topology.notes. Every failure is a FormatError that opens with the file.

    cpu0 --pcie-- gpu0 ===xgmi=== gpu1 --pcie-- cpu1        cpu0 --- cpu1
    cpu0 --pcie-- pci0000:27:00.0 --+-- gpu8 .. gpu15 --+-- package1 ===xgmi=== package2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import networkx as nx

from ....errors import FormatError
from ....links import Device, LinkType
from ...build import Topology, add_link, add_pcie, new_graph
from ..names import bus_text, cpu_link, scale_up_link
from ..pci_tree import (
    add_package,
    assumed_pcie,
    join_packages,
    links_of,
    pcie_of_transfers,
)
from ..xml_tree import Notes
from .files import IoLink, Node, find_nodes, read_nodes
from .gpus import Package, device_of_most, packages_of

__all__ = ["is_kfd", "read_kfd"]

# Link types of the driver's CRAT tables (kfd_crat.h).
_PCIE, _QPI, _XGMI = 2, 5, 11
_HOP_WEIGHT = 15  # of one xGMI hop, kfd_crat.c
_LEGACY_RATE = 50_000  # MB/s: older kernels take 16 lanes of 25 Gb/s for every xGMI link
_GENERIC = {"", "nodes", "topology", "kfd", "class", "virtual", "devices", "sys"}


@dataclass(slots=True)
class _Draft:
    """The graph being built, and what stands for each kfd node."""

    graph: nx.DiGraph
    notes: Notes
    nodes: dict[int, Node]
    device: Device
    packages: list[Package]
    cpus: dict[int, str] = field(default_factory=dict)
    package_of: dict[int, int] = field(default_factory=dict)

    def links(self, *kinds: int) -> Iterator[IoLink]:
        """Return the io_links of some kinds, by node."""
        for node in self.nodes.values():
            yield from (link for link in node.links if not kinds or link.kind in kinds)


def is_kfd(path: Path) -> bool:
    """Return whether `path` is a copy of kfd's topology, its nodes folder, or just above them."""
    return find_nodes(path) is not None


def _add_vertices(draft: _Draft, arches: list[str]) -> None:
    """Add CPUs and GPUs."""
    for k, node in enumerate(n for n in draft.nodes.values() if n.is_cpu):
        draft.cpus[node.number] = f"cpu{k}"
        draft.graph.add_node(f"cpu{k}", kind="cpu", host=0, numa=k, arch="", vendor="")
    owner = {n.number: p for p, package in enumerate(draft.packages) for n in package.nodes}
    for k, number in enumerate(sorted(owner)):
        node, package = draft.nodes[number], draft.packages[owner[number]]
        domain, bus, device, _ = package.bus
        draft.package_of[number] = owner[number]
        package.gpus.append(f"gpu{k}")
        draft.graph.add_node(
            f"gpu{k}", kind="gpu", index=k, host=0, dev=k, rank=None, gdr=True,
            arch=arches[owner[number]], numa=-1, kfd=number,
            busid=bus_text((domain, bus, device, node.value("location_id") & 7)),
        )  # fmt: skip


def _join_cpus(draft: _Draft) -> None:
    """Join the CPUs as listed, and those left alone to the first."""
    listed = [k for k in draft.links() if k.source in draft.cpus and k.target in draft.cpus]
    maker = "GenuineIntel" if any(k.kind == _QPI for k in listed) else "AuthenticAMD"
    row, remark = cpu_link("x86_64", maker, None, None)
    for cpu in draft.cpus.values():  # who made them shows in the links alone; AMD assumed else
        draft.graph.nodes[cpu].update(arch="x86_64", vendor=maker)
    pairs = sorted({(min(k.source, k.target), max(k.source, k.target)) for k in listed})
    for a, b in pairs:
        add_link(draft.graph, draft.cpus[a], draft.cpus[b], row)
    alone = nx.connected_components(nx.Graph(draft.graph.subgraph(draft.cpus.values())))
    for group in list(alone):
        if "cpu0" not in group:
            draft.notes.add(f"a link between CPUs is missing: {row.name} to cpu0 assumed")
            add_link(draft.graph, "cpu0", min(group), row)
    if remark and len(draft.cpus) > 1:
        draft.notes.add(remark)


def _host_link(draft: _Draft, link: IoLink | None) -> tuple[LinkType, float]:
    """Return the row and width of a GPU's link to its CPU, noting what is assumed."""
    device, notes = draft.device, draft.notes
    if link is not None and link.kind == _XGMI:
        own = scale_up_link(device, "xgmi")[0]
        if link.most and abs(link.most * 1e6 / own.bandwidth - 1) > 0.05:
            own = replace(own, bandwidth=link.most * 1e6)
        elif not link.most:
            notes.add("bandwidth of xGMI to the CPU not given: one link assumed")
        return replace(own, name=f"{own.name}-cpu", medium="c2c"), 1
    if link is not None and link.most:
        return pcie_of_transfers(link.most * 1e6)
    row = assumed_pcie(device)
    notes.add(f"PCIe bandwidth not given: {row.name} assumed, the device's own")
    return row, 1


def _listing(draft: _Draft) -> dict[int, list[IoLink]]:
    """Return the links from a CPU to each GPU, by GPU node."""
    listed: dict[int, list[IoLink]] = {}
    for link in draft.links(_PCIE, _XGMI):
        if link.source in draft.cpus:
            listed.setdefault(link.target, []).append(link)
    return listed


def _join_host(draft: _Draft) -> None:
    """Join every GPU to the CPUs it lists (the first where it lists none)."""
    if not draft.cpus:
        draft.notes.add("no node with CPU cores: one CPU assumed")
        draft.graph.add_node("cpu0", kind="cpu", host=0, numa=0, arch="", vendor="")
        draft.cpus[-1] = "cpu0"
    listed = _listing(draft)
    for package in draft.packages:
        node = package.nodes[0]
        uplinks: list[tuple[str, IoLink | None]] = [
            (draft.cpus[link.target], link)
            for link in node.links
            if link.target in draft.cpus and link.kind in (_PCIE, _XGMI)
        ] or [(draft.cpus[link.source], link) for link in listed.get(node.number, [])]
        if node.is_cpu:
            uplinks.append((draft.cpus[node.number], None))  # an APU sits beside its cores
        if not uplinks:
            first = next(iter(draft.cpus.values()))
            draft.notes.add(f"a GPU lists no link to a CPU: PCIe to {first} assumed")
            uplinks.append((first, None))
        for gpu in package.gpus:
            draft.graph.nodes[gpu]["numa"] = draft.graph.nodes[uplinks[0][0]]["numa"]
        _hang(draft, package, [(cpu, *_host_link(draft, link)) for cpu, link in uplinks])


def _hang(draft: _Draft, package: Package, ups: list[tuple[str, LinkType, float]]) -> None:
    """Join one GPU to CPUs; its partitions share a vertex, and so the link above it."""
    graph, below = draft.graph, package.gpus[0]
    if len(package.gpus) > 1:
        below = f"pci{bus_text(package.bus)}"
        graph.add_node(below, kind="pci", host=0, busid=bus_text(package.bus), bridge=False)
        for gpu in package.gpus:
            _, row, lanes = ups[0]
            add_pcie(graph, below, gpu, replace(row, medium="pci"), lanes)
    for cpu, row, lanes in ups:
        join = add_link if row.medium == "c2c" else add_pcie
        join(graph, cpu, below, row, lanes)


def _xgmi_pairs(draft: _Draft) -> dict[tuple[int, int], IoLink]:
    """Return the first xGMI link listed from each GPU to each other that is a direct one."""
    listed: dict[tuple[int, int], IoLink] = {}
    for link in draft.links(_XGMI):
        a, b = draft.package_of.get(link.source), draft.package_of.get(link.target)
        if a is not None and b is not None and a != b:
            listed.setdefault((a, b), link)
    if any(link.most for link in listed.values()):
        direct = {pair: link for pair, link in listed.items() if link.most}
        what = "the driver gives others a bandwidth"
    else:
        # Weight is 15 a hop; between partitions it is a sum of other weights (41).
        far = {p for p, k in listed.items() if k.weight > _HOP_WEIGHT and not k.weight % 15}
        direct = {pair: link for pair, link in listed.items() if pair not in far}
        what = "their weight is that of several hops"
    if len(direct) < len(listed):
        draft.notes.add(f"xGMI without a direct link is reached through peers ({what})")
    return direct


def _is_old(direct: dict[tuple[int, int], IoLink]) -> bool:
    """Return whether GPUs list links to earlier ones only: some driver's way, as is assumed."""
    return len(direct) > 1 and all(a > b for a, b in direct)


def _count(draft: _Draft, link: IoLink, row: LinkType) -> float:
    """Return how many xGMI links an io_link stands for, noting what is assumed."""
    if not link.most:
        draft.notes.add("xGMI bandwidth not given: one link between each two GPUs assumed")
        return 1
    each = link.least * 1e6
    legacy = link.least == _LEGACY_RATE and link.most % _LEGACY_RATE == 0
    if legacy and abs(each / row.bandwidth - 1) > 0.05:
        draft.notes.add(f"older drivers give every xGMI link {each / 1e9:g} GB/s: counted as "
                        f"links of {row.name}, {row.bandwidth / 1e9:g} GB/s each")  # fmt: skip
    if legacy:
        return link.most // _LEGACY_RATE
    links, remark = links_of(link.most * 1e6, row)
    if remark:
        draft.notes.add(remark)
    return links


def _join_gpus(draft: _Draft) -> None:
    """Add the fabric inside partitioned GPUs, and xGMI between GPUs."""
    row, remark = scale_up_link(draft.device, "xgmi")
    for p, package in enumerate(draft.packages):
        package.vertex = package.gpus[0]
        if len(package.gpus) > 1:
            package.vertex, own = f"package{p}", {node.number for node in package.nodes}
            inside = [k for node in package.nodes for k in node.links if k.target in own]
            rate = max((link.most for link in inside), default=0) * 1e6
            add_package(draft.graph, package.vertex, package.gpus, row, rate)
    direct = _xgmi_pairs(draft)
    if direct and remark:
        draft.notes.add(remark)
    old = _is_old(direct)
    if old:
        draft.notes.add("xGMI is listed by the later GPU of each two only: "
                        "taken as both ways")  # fmt: skip
    for (a, b), link in sorted(direct.items()):
        if (b, a) in direct and b < a:
            continue
        one_way = (b, a) not in direct and not old
        one, two = draft.packages[a], draft.packages[b]
        links, back = _count(draft, link, row), direct.get((b, a))
        if one_way:
            draft.notes.add(f"{one.vertex} lists xGMI to {two.vertex}, which lists none back: a "
                            "fault, or files left out of the copy; kept as one way")  # fmt: skip
        elif back is not None and _count(draft, back, row) != links:
            raise back.properties.error("max_bandwidth", f"max_bandwidth {back.most} MB/s from "
                f"{two.vertex} to {one.vertex}, but {link.most} the other way "
                f"({link.properties.file}): they must be equal")  # fmt: skip
        join_packages(draft.graph, one.vertex, two.vertex, row, links)
        if one_way:
            draft.graph.remove_edge(two.vertex, one.vertex)
    if not direct and len(draft.packages) > 1:
        draft.notes.add("no xGMI between GPUs is listed: they reach each other over PCIe only")


def _name(folder: Path) -> str:
    """Return the name of the first folder that is not one of the driver's own."""
    for part in (folder.absolute(), *folder.absolute().parents):
        if part.name not in _GENERIC:
            return part.name
    return "kfd"


def read_kfd(path: Path) -> Topology:
    """Return the node that a copy of /sys/class/kfd/kfd/topology describes.

    path: that folder, its nodes folder, or the kfd folder above. Raises FormatError (file, line,
    what is wrong or missing).
    """
    folder = find_nodes(path)
    if folder is None:
        raise FormatError(f"{path}: no nodes/0/properties is found: a copy of "
                          "/sys/class/kfd/kfd/topology was expected")  # fmt: skip
    notes, nodes = Notes(), {node.number: node for node in read_nodes(folder)}
    hidden = [n.number for n in nodes.values() if not n.properties.texts]
    if hidden:
        notes.add(f"{len(hidden)} nodes have empty properties (hidden from a container): left out")
    gpus = [node for node in nodes.values() if node.is_gpu]
    if not gpus:
        raise FormatError(f"{folder}: none of its {len(nodes)} nodes has a simd_count above 0: it "
                          "lists no accelerator")  # fmt: skip
    missing = [n for n in nodes.values() if n.value("io_links_count") > len(n.links)]
    if missing:
        notes.add(f"{len(missing)} nodes have fewer io_links than their io_links_count says: the "
                  "copy may be incomplete")  # fmt: skip
    packages = packages_of(gpus)
    device, arches = device_of_most(notes, packages)
    draft = _Draft(new_graph(_name(folder)), notes, nodes, device, packages)
    _add_vertices(draft, arches)
    _join_cpus(draft)
    _join_host(draft)
    _join_gpus(draft)
    notes.add("kfd lists no NICs: the node has none")
    return Topology(_name(folder), draft.graph, device, notes=notes.lines())
