"""Read NCCL/RCCL topology XML: one node's devices and links as a Topology.

Owns which vertex and edge each element becomes. A <gpu> or a lone <net> stands for its PCI
function, as in NCCL; other <pci> become bridges; NVSwitches become one vertex that every GPU
reaches with all its links; several <gpu> of a function are partitions of a package. What the file
leaves open is assumed as NCCL assumes it and said in Topology.notes. Every failure is a
FormatError that opens with file and line.

    cpu0 --- pci0000:01:00.0 --+-- gpu0 ===xgmi=== gpu1
     | (socket link)           +-- nic0
    cpu1 --- …

Rules for files that say too little, each a remark where it applied:

* no <gpu>: PCI functions of class 0x0300, 0x0302, 0x0380, 0x12 are the accelerators, by bus id;
  without any of those, leaf functions without class, by vendor, else the highest bus ids, a power
  of two of them. Scale-up links are then unknown, but for eight modules that are only sold on
  boards of eight (A100 SXM to B300, MI300X to MI355X, by PCI ids): those of the board.
* no <net>: PCI network functions are the NICs, with the fastest port their PCIe link carries.
* link_speed missing or unknown: gen 3; link_width missing or 0: x16 (NCCL).
* CPU make missing: Intel UPI of 10 GB/s between sockets (NCCL). numaid missing: as they stand.
* net speed absurd (above 1.6 Tb/s): what PCIe carries; 0 or less: 10 Gb/s (NCCL).
* nvlink or xgmi to its own GPU or to a GPU not listed: dropped. Listed by one side: both ways.
* no version: read as 1 or 2, which mean the same.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

from ....errors import FabricError, FormatError
from ....links import Device
from ...build import Topology, add_link, add_pcie, new_graph
from ..names import bus_text, cpu_link, device_of, host_link, port_of
from ..xml_tree import Comment, Element, Notes, parse_tree, read_tree, root_name
from .exact import Exact, exact_of, set_edges
from .graph_file import graphs_of
from .graph_machine import topology_of_graphs
from .ids import NET_KEPT
from .links import Draft, add_coherent, add_pci_links, is_coherent, pcie_above
from .scale_up import add_scale_up
from .survey import Survey, survey

__all__ = ["is_nccl_xml", "parse_nccl_xml", "read_nccl_xml"]


def is_nccl_xml(text: str) -> bool:
    """Return whether `text` opens as a topology file: its first element is <system>."""
    return root_name(text) == "system"


def _checked(root: Element, notes: Notes) -> Element:
    """Return the <system> element, or say which other file this is."""
    if root.name != "system":
        raise root.error(f"the root element is <{root.name[:40]}>: expected <system>")
    if not root.text("version"):
        notes.add("<system> without version: read as 1 (NCCL) or 2 (RCCL), which mean the same",
                  root.line)  # fmt: skip
    elif root.integer("version") not in (1, 2):
        raise root.error(f"<system> version {root.text('version')[:20]!r} is not known: expected 1 "
                         "(NCCL) or 2 (RCCL)")  # fmt: skip
    return root


def _pci_number(pci: Element, name: str) -> int:
    """Return a PCI id attribute, which is hexadecimal with or without 0x; 0 when unreadable."""
    try:
        return int(pci.text(name), 16)
    except ValueError:
        return 0


def _devices(found: Survey, exact: Exact) -> tuple[Device, list[str]]:
    """Return the device most GPUs are, and every GPU's arch as text."""
    devices, arches = [], []
    for gpu, pci in found.gpus:
        own = device_of(gpu.text("gcn"), gpu.integer("sm"), _pci_number(pci, "vendor"),
                        _pci_number(pci, "device"))  # fmt: skip
        devices.append(own[0])
        arches.append(own[1])
        if own[2] and exact.device is None:
            found.notes.add(own[2], gpu.line)
    if exact.device is not None:
        return exact.device, arches
    (device, count), *others = Counter(devices).most_common()
    if others:
        found.notes.add(f"GPUs of {len(others) + 1} kinds: all modelled as {device.title}, which "
                        f"{count} of {len(devices)} are")  # fmt: skip
    return device, arches


def _add_gpus(draft: Draft, arches: list[str]) -> None:
    found = draft.found
    parts, packages = Counter(id(pci) for _, pci in found.gpus), dict[int, int]()
    for k, (gpu, pci) in enumerate(found.gpus):
        place, bus = found.place(gpu), found.buses[id(pci)]
        own: dict[str, Any] = {
            "busid": bus_text(bus), "numa": _numa(draft, place.cpu), "arch": arches[k],
            "dev": gpu.integer("dev"), "rank": gpu.integer("rank"), "gdr": gpu.text("gdr") == "1",
            "sm": gpu.integer("sm"), **_ids(pci),
        }  # fmt: skip
        draft.graph.add_node(f"gpu{k}", kind="gpu", index=k, host=place.host, **own)
        draft.gpus_at.setdefault((place.host, bus), []).append(f"gpu{k}")
        draft.shares[f"gpu{k}"] = parts[id(pci)]
        alone = parts[id(pci)] == 1 and not pci.named("pci", "nic", "pcilink")
        draft.vertices[id(pci)] = f"gpu{k}" if alone else _function(draft, pci)
        if parts[id(pci)] > 1:
            number = packages.setdefault(id(pci), len(packages))
            draft.graph.add_node(f"package{number}", kind="switch")
            draft.graph.nodes[f"gpu{k}"]["package"] = number
            draft.packages[f"gpu{k}"] = f"package{number}"


def _ids(pci: Element) -> dict[str, str]:
    """Return a PCI function's class, vendor and device as the file spells them."""
    return {"pci_class": pci.text("class"), "vendor": pci.text("vendor"),
            "device": pci.text("device"), "subsystem_vendor": pci.text("subsystem_vendor"),
            "subsystem_device": pci.text("subsystem_device")}  # fmt: skip


def _numa(draft: Draft, cpu: str) -> int:
    return int(draft.graph.nodes[cpu]["numa"])


def _add_cpus(draft: Draft) -> None:
    """Add the CPUs, and join those of one host pairwise by the slower side's socket link."""
    found, links = draft.found, {}
    for cpu in found.cpus:
        place = found.place(cpu)
        arch, vendor = cpu.text("arch"), cpu.text("vendor")
        links[place.cpu], remark = cpu_link(
            arch, vendor, cpu.integer("familyid"), cpu.integer("modelid")
        )
        if remark and len(found.cpus) > 1:
            draft.notes.add(remark, cpu.line)
        draft.graph.add_node(place.cpu, kind="cpu", host=place.host, numa=cpu.integer("numaid"),
                             arch=arch, vendor=vendor, familyid=cpu.integer("familyid"),
                             modelid=cpu.integer("modelid"),
                             affinity=cpu.text("affinity"))  # fmt: skip
    for a, b in combinations(found.cpus, 2):
        one, two = found.place(a), found.place(b)
        if one.host == two.host:
            slower = min(links[one.cpu], links[two.cpu], key=lambda link: link.bandwidth)
            add_link(draft.graph, one.cpu, two.cpu, slower)


def _add_nics(draft: Draft, exact: Exact) -> None:
    """Add the NICs' vertices; several <net> of one PCI function share a vertex of kind pci."""
    ports = Counter(id(pci) for _, pci in draft.found.nics)
    for k, (net, pci) in enumerate(draft.found.nics):
        place = draft.found.place(net)
        name = net.text("name") if net.name == "net" else ""
        pcie = 1e12  # B/s: a NIC directly under a CPU has no PCI link that limits it
        if pci is not None:
            link, lanes = pcie_above(draft, pci)
            pcie = link.bandwidth * lanes
            shared = ports[id(pci)] > 1 or bool(pci.named("pci", "pcilink", "gpu"))
            draft.vertices[id(pci)] = _function(draft, pci) if shared else f"nic{k}"
        speed = net.number("speed") if net.name == "net" else None
        port, remark = port_of(name, pci.text("class").lower() if pci else "", speed, pcie)
        if k in exact.ports:
            port = exact.ports[k]
        elif remark:
            draft.notes.add(remark, net.line)
        bus = bus_text(draft.found.buses[id(pci)]) if pci is not None else ""
        draft.graph.add_node(f"nic{k}", kind="nic", index=k, host=place.host, port=port, name=name,
                             busid=bus, numa=_numa(draft, place.cpu),
                             **(_ids(pci) if pci is not None else {}), **_kept(net))  # fmt: skip


def _kept(net: Element) -> dict[str, str]:
    """Return what a <net> says that no figure here follows from, for who writes the file again."""
    if net.name != "net":
        return {}
    return {f"net_{name}": net.text(name)[:64] for name in NET_KEPT if net.text(name)}


def _function(draft: Draft, pci: Element) -> str:
    """Return the vertex of a PCI function that is no bridge (paths do not count it as one)."""
    host, bus = draft.found.place(pci).host, bus_text(draft.found.buses[id(pci)])
    name = f"pci{bus}" if draft.found.hosts == 1 else f"pci{host}/{bus}"
    draft.graph.add_node(name, kind="pci", host=host, busid=bus, bridge=False, **_ids(pci))
    return name


def _add_pci_tree(draft: Draft) -> None:
    """Join every device to the bridge or CPU above it."""
    for pci in draft.found.by_bus.values():
        if id(pci) not in draft.vertices and pci.named("pci", "pcilink"):
            draft.vertices[id(pci)] = _function(draft, pci)
            draft.graph.nodes[draft.vertices[id(pci)]]["bridge"] = True
    for pci in draft.found.by_bus.values():
        if id(pci) in draft.vertices:
            link, lanes = pcie_above(draft, pci)
            above = _above(draft, pci)
            alone = draft.vertices[id(pci)].startswith("gpu")
            if above.startswith("cpu") and alone and is_coherent(pci):
                # The GPU has a faster link to the same CPU: its PCI link needs a vertex between.
                function = _function(draft, pci)
                add_pcie(draft.graph, above, function, link, lanes)
                above = function
            add_pcie(draft.graph, above, draft.vertices[id(pci)], link, lanes)
    for k, (_, gpu_pci) in enumerate(draft.found.gpus):
        if not draft.vertices[id(gpu_pci)].startswith("gpu"):
            link, lanes = pcie_above(draft, gpu_pci)
            add_pcie(draft.graph, draft.vertices[id(gpu_pci)], f"gpu{k}", link, lanes)
    for k, (net, nic_pci) in enumerate(draft.found.nics):
        name = f"nic{k}"
        if nic_pci is None:
            port = draft.graph.nodes[name]["port"]
            for cpu in sorted(draft.found.cpus_of[id(net)]):
                add_pcie(draft.graph, cpu, name, host_link(port))
        elif draft.vertices[id(nic_pci)] != name:
            link, lanes = pcie_above(draft, nic_pci)
            add_pcie(draft.graph, draft.vertices[id(nic_pci)], name, link, lanes)


def _above(draft: Draft, pci: Element) -> str:
    """Return the vertex of the bridge or CPU a PCI function hangs from."""
    parent = pci.parent
    if parent is not None and parent.name == "pci":
        return draft.vertices[id(parent)]
    return draft.found.place(pci).cpu


def read_nccl_xml(path: Path) -> Topology:
    """Return the node that the NCCL/RCCL topology XML file at `path` describes.

    The file must list its accelerators, as <gpu>, as PCI functions of a display or accelerator
    class, or as leaf functions of no class. A graph file (<graphs>) gives the machine its search
    saw. Raises FormatError (file, line, what is wrong or missing).
    """
    notes, comments = Notes(), list[Comment]()
    root = read_tree(path, notes, comments)
    return _topology(root, path, notes, comments)


def parse_nccl_xml(text: str, path: Path) -> Topology:
    """Return the node that the text of a topology XML file describes; errors call it `path`."""
    notes, comments = Notes(), list[Comment]()
    root = parse_tree(text.encode(), path, notes, comments)
    return _topology(root, path, notes, comments)


def _topology(root: Element, path: Path, notes: Notes, comments: list[Comment]) -> Topology:
    try:
        return _built(root, path, notes, comments)
    except FabricError as error:  # two elements that name one link
        raise FormatError(f"{path}:{root.line}: {error}") from None


def _built(root: Element, path: Path, notes: Notes, comments: list[Comment]) -> Topology:
    if root.name == "graphs":
        where = f"{path}:{root.line}"
        return topology_of_graphs(graphs_of(root, notes), path.stem, notes, where)
    exact = exact_of(comments, path)
    found = survey(_checked(root, notes), notes)
    device, arches = _devices(found, exact)
    draft = Draft(found, new_graph(path.stem), device)
    _add_cpus(draft)
    _add_gpus(draft, arches)
    _add_nics(draft, exact)
    _add_pci_tree(draft)
    add_pci_links(draft)
    add_scale_up(draft, exact)
    add_coherent(draft)
    set_edges(draft.graph, exact, path)
    return Topology(path.stem, draft.graph, device, notes=notes.lines())
