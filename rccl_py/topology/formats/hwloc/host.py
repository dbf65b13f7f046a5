"""The CPUs of an hwloc XML file, and the draft that its reader fills in.

Owns which object is a CPU: a Package (a Socket in hwloc 1.x), or the Machine where there is none;
and which of them an object in the tree belongs to. Every failure is a FormatError with file and
line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations

import networkx as nx

from ....links import Device, LinkType
from ...build import add_link
from ..names import cpu_link
from ..xml_tree import Element, Notes
from .devices import info

__all__ = ["Draft", "add_cpus", "cpu_at", "machine_of"]

_PACKAGES = ("Package", "Socket")


@dataclass(slots=True)
class Draft:
    """The graph being built, and what stands for which element."""

    graph: nx.DiGraph
    notes: Notes
    root: Element
    machine: Element
    device: Device
    cpus: list[Element] = field(default_factory=list)
    cpu_of: dict[int, str] = field(default_factory=dict)
    vertex: dict[int, str] = field(default_factory=dict)
    """By id of a Function or of an OSDev, PCIDev or Package element."""
    package: dict[str, str] = field(default_factory=dict)
    """The hub of a partition."""


def machine_of(root: Element) -> Element:
    """Return the one Machine object, or say which other file this is."""
    if root.name != "topology":
        raise root.error(f"the root element is <{root.name[:40]}>: hwloc's <topology> was expected")
    version = root.text("version")
    if version and not re.fullmatch(r"[1-3](\.[0-9]{1,3})*", version):
        raise root.error(f"<topology> version {version[:20]!r} is not known: expected 1 to 3")
    machines = [e for e in root.walk() if e.name == "object" and e.text("type") == "Machine"]
    if len(machines) > 1:
        raise machines[1].error(f"{len(machines)} Machine objects: one machine a file is expected")
    if not machines:
        raise root.error("<topology> has no object of type Machine: lstopo writes one")
    return machines[0]


def _numa(element: Element) -> int:
    """Return the os_index of the first NUMA node inside or above an object; -1 when none."""
    above: Element | None = element
    for own in element.walk():
        if own.text("type") == "NUMANode":
            return own.integer("os_index") or 0
    while above is not None and above.text("type") != "NUMANode":
        above = above.parent
    return (above.integer("os_index") or 0) if above is not None else -1


def add_cpus(draft: Draft) -> None:
    """Add the packages as CPUs, and join each two by the slower one's link."""
    found = [e for e in draft.machine.walk() if e.text("type") in _PACKAGES]
    draft.cpus, links = found or [draft.machine], list[LinkType]()
    for k, element in enumerate(draft.cpus):
        draft.cpu_of[id(element)] = draft.vertex[id(element)] = f"cpu{k}"
        arch = info(draft.machine, "Architecture") or info(draft.root, "Architecture")
        vendor = info(element, "CPUVendor") or info(draft.machine, "CPUVendor")
        family, model = (info(element, name) for name in ("CPUFamilyNumber", "CPUModelNumber"))
        numbers = [int(t) if re.fullmatch(r"[0-9]{1,6}", t) else None for t in (family, model)]
        link, remark = cpu_link(arch, vendor, numbers[0], numbers[1])
        links.append(link)
        if remark and len(draft.cpus) > 1:
            draft.notes.add(remark, element.line)
        draft.graph.add_node(f"cpu{k}", kind="cpu", host=0, numa=max(_numa(element), 0), arch=arch,
                             vendor=vendor)  # fmt: skip
    for a, b in combinations(range(len(draft.cpus)), 2):
        slower = min(links[a], links[b], key=lambda link: link.bandwidth)
        add_link(draft.graph, f"cpu{a}", f"cpu{b}", slower)


def cpu_at(draft: Draft, holder: Element) -> str:
    """Return the CPU of an object: the package above it, else the first inside it."""
    if id(holder) not in draft.cpu_of:
        above: Element | None = holder
        while above is not None and id(above) not in draft.cpu_of:
            above = above.parent
        inside = [e for e in holder.walk() if id(e) in draft.cpu_of] if above is None else [above]
        if len(inside) > 1:
            draft.notes.add(f"I/O of all {len(inside)} packages is put at the first", holder.line)
        first = inside[0] if inside and inside[0] is not None else draft.cpus[0]
        draft.cpu_of[id(holder)] = draft.cpu_of[id(first)]
    return draft.cpu_of[id(holder)]
