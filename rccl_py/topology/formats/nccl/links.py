"""The coherent links and PCI peers of a topology XML file, and the draft its readers fill in.

Owns the width of PCI links and where a <c2c> or <pcilink> may lead. Every failure is a FormatError
that opens with file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import networkx as nx

from ....links import LINKS, Device, LinkType
from ...build import add_link, add_pcie
from ..names import BusId, bus_id, pcie_link
from ..xml_tree import Element, Notes
from .survey import Survey

__all__ = [
    "Draft",
    "add_coherent",
    "add_pci_links",
    "count_of",
    "is_coherent",
    "is_cpu_class",
    "pcie_above",
]

_COUNT_LIMIT = 1024  # links of one kind between two devices; real ones have at most 72
_WIDTH_LIMIT = 64  # lanes: PCI Express has at most 32 a port, a device with several ports more


@dataclass(slots=True)
class Draft:
    """The graph being built, and which vertex stands for which element.

    gpus_at: a function's accelerators, of which partitions are several; shares: how many those of
    an accelerator's function are; packages: the vertex of a partition's whole device.
    """

    found: Survey
    graph: nx.DiGraph
    device: Device
    vertices: dict[int, str] = field(default_factory=dict)
    gpus_at: dict[tuple[int, BusId], list[str]] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    pcie: dict[int, tuple[LinkType, float]] = field(default_factory=dict)

    @property
    def notes(self) -> Notes:
        """Remarks on the file."""
        return self.found.notes

    def end(self, gpu: str) -> str:
        """Return the vertex that has a GPU's scale-up links: its package, else itself."""
        return self.packages.get(gpu, gpu)


def pcie_above(draft: Draft, pci: Element) -> tuple[LinkType, float]:
    """Return the link above a PCI function, by its own link_speed and link_width."""
    if id(pci) in draft.pcie:
        return draft.pcie[id(pci)]
    width = pci.integer("link_width")
    if width is not None and not 0 <= width <= _WIDTH_LIMIT:
        raise pci.error(f"<pci> link_width {width} is not 0 to {_WIDTH_LIMIT} lanes")
    link, lanes, remark = pcie_link(pci.text("link_speed"), width)
    if remark:
        draft.notes.add(remark, pci.line)
    elif link.name in ("pcie1-x16", "pcie2-x16") and pci.children:
        draft.notes.add("PCIe link slower than gen 3 is taken as written (an idle link may have "
                        "been read in its power-saving state)", pci.line)  # fmt: skip
    draft.pcie[id(pci)] = link, lanes
    return link, lanes


def is_cpu_class(link: Element) -> bool:
    """Return whether a link's target is a CPU: POWER's NVLink, by its PCI bridge class."""
    return link.text("tclass").lower().startswith(("0x068001", "0x0604"))


def is_coherent(pci: Element) -> bool:
    """Return whether a GPU's function also has a coherent link to its CPU."""
    links = [link for gpu in pci.named("gpu") for link in gpu.children]
    return any(link.name == "c2c" or is_cpu_class(link) for link in links)


def count_of(link: Element) -> int:
    """Return how many links an element stands for. Raises FormatError when that is absurd."""
    count = link.integer("count")
    if count is None:
        raise link.error(f"<{link.name}> has no count of links")
    if not 1 <= count <= _COUNT_LIMIT:
        raise link.error(f"<{link.name}> count {count}: expected 1 to {_COUNT_LIMIT} links")
    return count


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
            lanes = count_of(c2c) / draft.shares[f"gpu{k}"]
            add_link(draft.graph, f"gpu{k}", cpu, link, lanes)


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
                draft.graph.edges[a, b]["peer"] = draft.graph.edges[b, a]["peer"] = True
