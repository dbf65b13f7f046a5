"""The links of a topology XML file that are not its PCI tree: scale-up, coherent, PCI peers.

Owns where an <xgmi>, <nvlink>, <c2c> or <pcilink> may lead, how both sides of one are held against
each other, and the draft that readers of the file fill in. Every failure is a FormatError that
opens with file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import networkx as nx

from ...links import LINKS, Device, LinkType
from ..build import add_link, add_pcie
from .xml_survey import Survey
from .xml_tree import Element, Notes
from .xml_values import BusId, bus_id, pcie_link, scale_up_link

__all__ = ["Draft", "add_coherent", "add_pci_links", "add_scale_up", "is_coherent", "pcie_above"]

_SWITCH = "nvswitch0"
_HOP = 0.1e-6  # s, assumed: one NVSwitch, port to port
_COUNT_LIMIT = 1024  # links of one kind between two devices; real ones have at most 18

_Listing = tuple[int, Element]
"""How many links one side lists, and the first element that does."""


@dataclass(slots=True)
class Draft:
    """The graph being built, and which vertex stands for which element."""

    found: Survey
    graph: nx.DiGraph
    device: Device
    vertices: dict[int, str] = field(default_factory=dict)
    gpu_of: dict[tuple[int, BusId], str] = field(default_factory=dict)
    pcie: dict[int, tuple[LinkType, float]] = field(default_factory=dict)

    @property
    def notes(self) -> Notes:
        """Remarks on the file."""
        return self.found.notes


def pcie_above(draft: Draft, pci: Element) -> tuple[LinkType, float]:
    """Return the link above a PCI function, by its own link_speed and link_width."""
    if id(pci) in draft.pcie:
        return draft.pcie[id(pci)]
    width = pci.integer("link_width")
    if width is not None and not 0 <= width <= 32:
        raise pci.error(f"<pci> link_width {width} is not 0 to 32 lanes")
    link, lanes, remark = pcie_link(pci.text("link_speed"), width)
    if remark:
        draft.notes.add(remark, pci.line)
    elif link.name in ("pcie1-x16", "pcie2-x16") and pci.children:
        draft.notes.add("PCIe link slower than gen 3 is taken as written (an idle link may have "
                        "been read in its power-saving state)", pci.line)  # fmt: skip
    draft.pcie[id(pci)] = link, lanes
    return link, lanes


def _is_cpu_class(link: Element) -> bool:
    """Return whether a link's target is a CPU: POWER's NVLink, by its PCI bridge class."""
    return link.text("tclass").lower().startswith(("0x068001", "0x0604"))


def is_coherent(pci: Element) -> bool:
    """Return whether a GPU's function also has a coherent link to its CPU."""
    links = [link for gpu in pci.named("gpu") for link in gpu.children]
    return any(link.name == "c2c" or _is_cpu_class(link) for link in links)


def _count(link: Element) -> int:
    count = link.integer("count")
    if count is None:
        raise link.error(f"<{link.name}> has no count of links")
    if not 1 <= count <= _COUNT_LIMIT:
        raise link.error(f"<{link.name}> count {count}: expected 1 to {_COUNT_LIMIT} links")
    return count


def _target(draft: Draft, link: Element, gpu: str) -> str:
    """Return the vertex a scale-up link leads to: a GPU, the CPU, or the switch."""
    text, tclass = link.text("target")[:40], link.text("tclass").lower()[:20]
    where = f"<{link.name}> of {gpu}"
    if _is_cpu_class(link):
        return draft.found.place(link).cpu
    nowhere = set(text.lower().removeprefix("0x")) <= set("f:.0") and text.lower().startswith("ff")
    bus = bus_id(text)
    if not text or (bus is None and not nowhere):
        raise link.error(f"{where} target {text!r} is no bus id such as 0000:c1:00.0")
    host = draft.found.place(link).host
    peer = draft.gpu_of.get((host, bus)) if bus is not None else None
    if peer is None and (tclass.startswith("0x0680") or (nowhere and not tclass)):
        return _SWITCH
    if peer is None:
        raise link.error(f"{where} leads to {text}, which is no GPU of this file")
    if tclass.startswith("0x0680"):
        raise link.error(f"{where} leads to {text}, which is {peer}, but its tclass says switch")
    if peer == gpu:
        raise link.error(f"{where} leads to {text}, {gpu} itself: its peer's bus id is missing")
    return peer


def add_scale_up(draft: Draft) -> None:
    """Add GPU-GPU, GPU-switch and GPU-CPU links."""
    between: dict[tuple[str, str], _Listing] = {}
    for k, (element, _) in enumerate(draft.found.gpus):
        for link in element.named("nvlink", "xgmi"):
            key = (f"gpu{k}", _target(draft, link, f"gpu{k}"))
            count, first = between.get(key, (0, link))
            between[key] = (count + _count(link), first)  # one listing per lane adds up, as in NCCL
    for (a, b), (count, link) in between.items():
        row, remark = scale_up_link(draft.device, link.name)
        if remark:
            draft.notes.add(remark, link.line)
        if b.startswith("cpu"):
            add_link(draft.graph, a, b, replace(row, name=f"{row.name}-cpu", medium="c2c"), count)
        elif b == _SWITCH:
            _join_switch(draft.graph, a, row, count)
        elif not draft.graph.has_edge(a, b):
            _check_back(draft, between.get((b, a)), (a, b), count, link)
            add_link(draft.graph, a, b, row, count)
    if not between and len(draft.found.gpus) > 1 and draft.found.gpus[0][0].name == "gpu":
        draft.notes.add("no nvlink or xgmi in the file: GPUs reach each other over PCIe only")


def _check_back(
    draft: Draft, back: _Listing | None, pair: tuple[str, str], count: int, link: Element
) -> None:
    """Hold the two directions of a GPU-GPU link against each other."""
    a, b = pair
    if back is None:
        draft.notes.add(f"{a} lists a {link.name} to {b}, {b} lists none back: taken as both ways",
                        link.line)  # fmt: skip
    elif back[0] != count:
        raise link.error(f"{a} lists {count} {link.name} to {b}, but {b} lists {back[0]} to {a} "
                         f"(line {back[1].line}): they must be equal")  # fmt: skip


def _join_switch(graph: nx.DiGraph, gpu: str, link: LinkType, lanes: int) -> None:
    """Join a GPU to the switch: the way up costs the link's latency, the way down only the hop."""
    if _SWITCH not in graph:
        graph.add_node(_SWITCH, kind="switch")
    add_link(graph, gpu, _SWITCH, link, lanes)
    graph.edges[_SWITCH, gpu]["latency"] = (_HOP, _HOP, _HOP)


def add_coherent(draft: Draft) -> None:
    """Add the GPU-CPU links of <c2c>: bw is MB/s of each of count links."""
    for k, (element, _) in enumerate(draft.found.gpus):
        for c2c in element.named("c2c"):
            bandwidth, cpu = c2c.number("bw"), draft.found.place(c2c).cpu
            if bandwidth is None or not 0 < bandwidth <= 1e7:
                raise c2c.error(f"<c2c> bw {c2c.text('bw')[:40]!r}: expected MB/s above 0")
            if draft.graph.has_edge(f"gpu{k}", cpu):
                raise c2c.error(f"a second coherent link of gpu{k} to {cpu}: give one with a count")
            link = replace(LINKS["nvlink-c2c"], bandwidth=bandwidth * 1e6)
            add_link(draft.graph, f"gpu{k}", cpu, link, _count(c2c))


def add_pci_links(draft: Draft) -> None:
    """Join PCI switches that are peers (<pcilink>), as wide as the link above the first."""
    for pci in draft.found.by_bus.values():
        for peer in pci.named("pcilink"):
            bus, text = bus_id(peer.text("target")), peer.text("target")[:40]
            if bus is None:
                raise peer.error(f"<pcilink> target {text!r} is no bus id such as 0000:c1:00.0")
            other = draft.found.by_bus.get((draft.found.place(pci).host, bus))
            if other is None or id(other) not in draft.vertices:
                raise peer.error(f"<pcilink> leads to {text}, which is no PCI switch of this file")
            if other is pci:
                raise peer.error(f"<pcilink> leads to {text}, the same PCI switch")
            a, b = draft.vertices[id(pci)], draft.vertices[id(other)]
            if not draft.graph.has_edge(a, b):
                add_pcie(draft.graph, a, b, *pcie_above(draft, pci))
