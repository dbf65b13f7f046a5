"""The GPUs among kfd's nodes: which device each is, and which nodes are partitions of one GPU.

Owns how gfx_target_version, PCI ids, location_id and unique_id are read. Knows no graph. Every
failure is a FormatError that opens with file and line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ....links import Device
from ..names import BusId, device_of
from ..pci_tree import part_of
from ..xml_tree import Notes
from .files import Node

__all__ = ["Package", "device_of_most", "packages_of"]


@dataclass(slots=True)
class Package:
    """One GPU: the kfd nodes that are its partitions, and what stands for it among its peers."""

    nodes: list[Node]
    bus: BusId
    gpus: list[str] = field(default_factory=list)
    vertex: str = ""


def _gfx(node: Node) -> str:
    """Return the arch: 90402 -> gfx942, 90010 -> gfx90a; "" when the driver is too old to say."""
    version = node.value("gfx_target_version")
    if not version:
        return ""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _device(package: Package) -> tuple[Device, str, str]:
    """Return a GPU's device, its arch and a remark, by PCI id where that is known."""
    node = package.nodes[0]
    arch, vendor, device = _gfx(node), node.value("vendor_id"), node.value("device_id")
    by_id = device_of("", None, vendor, device)
    if not by_id[2] or not arch:
        return by_id[0], arch or by_id[1], by_id[2]
    width = node.value("simd_per_cu") or 4  # every CDNA and GCN compute unit has 4 SIMDs
    units = sum(n.value("simd_count") for n in package.nodes) // width
    return device_of(arch, units, 0, 0)


def packages_of(nodes: list[Node]) -> list[Package]:
    """Return the GPUs: nodes at one bus and device with one unique_id are partitions of one."""
    found: dict[tuple[int, int, int], Package] = {}
    taken: dict[tuple[int, int], Node] = {}
    for node in nodes:
        place, domain = node.value("location_id"), node.value("domain")
        if place > 0xFFFF or domain > 0xFFFFFFFF:
            raise node.properties.error("location_id", f"location_id {place} of domain {domain} is "
                                        "no bus, device and function")  # fmt: skip
        own = node.value("unique_id")
        first = taken.setdefault((domain, place), node)
        if place and first is not node and first.value("unique_id") != own:
            raise node.properties.error("location_id", f"location_id {place} is also that of node "
                                        f"{first.number}, another GPU")  # fmt: skip
        # A GPU without a place is one of its own.
        key = (domain, place >> 3, own) if place else (-1, node.number, 0)
        bus = (domain, place >> 8, place >> 3 & 0x1F, 0)
        found.setdefault(key, Package([], bus)).nodes.append(node)
    return list(found.values())


def device_of_most(notes: Notes, packages: list[Package]) -> tuple[Device, list[str]]:
    """Return the device most GPUs are, as one partition of it, and every GPU's arch."""
    devices, arches = [], []
    for package in packages:
        device, arch, remark = _device(package)
        if remark:
            notes.add(remark)
        devices.append((device, len(package.nodes)))
        arches.append(arch)
    ((device, parts), count), *others = Counter(devices).most_common()
    if others:
        notes.add(f"GPUs of {len(others) + 1} kinds: all modelled as {device.title}, which "
                        f"{count} of {len(devices)} are")  # fmt: skip
    if parts > 1:
        notes.add(f"each GPU is {parts} partitions: every one is an accelerator with its "
                  "share of the memory's rate; they share the GPU's xGMI and PCIe")  # fmt: skip
    return part_of(device, parts), arches
