"""The PCI functions of an hwloc XML file: where each hangs, and which are accelerators and NICs.

Owns how <object> bridges, PCIDevs and OSDevs are read and which devices count. Knows no graph.
Every failure is a FormatError that opens with file and line.

    Package / Group / Machine (the holder)
      Bridge 0-1 (host) > Bridge 1-1 (root port) > Bridge (switch) > Bridge (port) > PCIDev > OSDev
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ....links import Device
from ..names import BusId, bus_id, bus_text, device_of
from ..xml_tree import Element, Notes

__all__ = [
    "Function",
    "accelerators",
    "device_at",
    "functions_of",
    "info",
    "nics",
    "partitions",
    "port_speed",
]

_TYPE = re.compile(r"([0-9a-f]{4})\s*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_SPEED_LIMIT = 2000.0  # GB/s; PCIe gen 7 x16 has 242
_FUNCTION_LIMIT = 8192  # PCI functions; machines with many virtual functions have hundreds
_GPU_LIMIT = 1024

_NVIDIA, _AMD, _INTEL, _HABANA = 0x10DE, 0x1002, 0x8086, 0x1DA3
_VGA, _COMPUTE = "0300", ("0302", "0380", "1200")
_NIC_CLASSES = ("0200", "0207", "0208", "0c06")  # Ethernet, InfiniBand, fabric, old InfiniBand
_RDMA = re.compile(
    r"(mlx|bnxt_re|ionic|irdma|rdma|roce|ib|qedr|hfi|qib|cxi|efa|mana|erdma|opib)\w*"
)
_RUNTIME = re.compile(r"(rsmi|nvml|cuda)([0-9]{1,4})")
_PARTITION = re.compile(r"rsmi[0-9]{1,4}")

# Gb/s of a port, by vendor:device and what pci.ids calls it; hwloc files do not say it.
_PORT_SPEEDS = {
    "15b3:1003": 40, "15b3:1007": 40, "15b3:1011": 56, "15b3:1013": 100, "15b3:1015": 25,
    "15b3:1017": 100, "15b3:1019": 100, "15b3:101b": 200, "15b3:101d": 100, "15b3:101f": 25,
    "15b3:1021": 400, "15b3:1023": 800, "15b3:a2d2": 100, "15b3:a2d6": 200,
    "15b3:a2dc": 400, "15b3:673c": 40,  # ConnectX-3 to -8, BlueField 1 to 3, ConnectX-2 QDR
    "14e4:1750": 200, "14e4:1751": 200, "14e4:1760": 400,  # Thor, Thor 2
    "17db:0501": 200, "8086:24f0": 100, "8086:24f1": 100,  # Slingshot Cassini, Omni-Path
    "1d0f:efa0": 100, "1d0f:efa1": 100, "1d0f:efa2": 200,  # EFA
    "8086:1592": 100, "8086:1593": 25, "8086:159b": 25, "8086:1583": 40, "8086:158b": 25,
    "8086:1572": 10, "8086:1563": 10, "8086:1528": 10, "8086:10fb": 10,
    "8086:1521": 1, "8086:1533": 1, "8086:1537": 1, "14e4:165f": 1, "14e4:1657": 1,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Function:
    """A PCI function: a device, or a bridge's side. speed: B/s after line coding, 0 unknown.

    holder: the nearest object above that is no I/O. above: the bridge it hangs from. ports: how
    many PCI-PCI bridges are above it.
    """

    element: Element
    bus: BusId
    bridge: bool
    pci_class: str
    vendor: int
    device: int
    speed: float
    holder: Element
    above: Function | None
    ports: int
    names: list[Element] = field(default_factory=list)

    @property
    def ids(self) -> str:
        """vendor:device as pci.ids spells it."""
        return f"{self.vendor:04x}:{self.device:04x}"

    def os_names(self) -> list[str]:
        """Return what the operating system calls the device: cuda0, nvml0, mlx5_0, eth0 ..."""
        return [name for name in (osdev.text("name") for osdev in self.names) if name]


def info(element: Element, name: str) -> str:
    """Return the value of an object's <info name=...>; "" when it has none."""
    found = (e.text("value") for e in element.named("info") if e.text("name") == name)
    return next(found, "")


def _function(element: Element, holder: Element, above: Function | None) -> Function:
    bus = bus_id(element.text("pci_busid"))
    if bus is None:
        raise element.error(f"pci_busid {element.text('pci_busid')[:40]!r} is no bus id such as "
                            "0000:c1:00.0")  # fmt: skip
    kind = _TYPE.match(element.text("pci_type"))
    if kind is None:
        raise element.error(f"pci_type {element.text('pci_type')[:40]!r}: class and ids such as "
                            "'0302 [10de:2330]' were expected")  # fmt: skip
    speed = element.number("pci_link_speed") or 0.0
    if not 0 <= speed <= _SPEED_LIMIT:
        raise element.error(f"pci_link_speed {speed:g} GB/s: expected 0 to {_SPEED_LIMIT:g}")
    return Function(
        element, bus, element.text("type") == "Bridge", kind[1].lower(), int(kind[2], 16),
        int(kind[3], 16), speed * 1e9, holder, above, above.ports + 1 if above else 0,
    )  # fmt: skip


def functions_of(machine: Element) -> list[Function]:
    """Return the PCI functions of a machine, in document order."""
    found: list[Function] = []
    seen: dict[BusId, Element] = {}
    pending: list[tuple[Element, Element, Function | None]] = [(machine, machine, None)]
    while pending:
        element, holder, above = pending.pop()
        kind, below = element.text("type"), above
        if kind == "PCIDev" or (kind == "Bridge" and "pci_busid" in element.attributes):
            below = _function(element, holder, above)
            found.append(below)
            first = seen.setdefault(below.bus, element)
            if first is not element:
                raise element.error(f"pci_busid {bus_text(below.bus)} is also on line {first.line}")
            if len(found) > _FUNCTION_LIMIT:
                raise element.error(f"more than {_FUNCTION_LIMIT} PCI functions")
        elif kind == "OSDev" and above is not None:
            above.names.append(element)
        elif kind not in ("Bridge", "OSDev", "Misc"):
            holder, below = element, None
        pending += [(child, holder, below) for child in reversed(element.named("object"))]
    return found


def _counts(function: Function) -> bool:
    """Return whether a device of a compute class is an accelerator, and no NPU or FPGA."""
    if function.pci_class == "1200":
        return function.vendor in (_AMD, _NVIDIA, _HABANA)
    return function.vendor in (_AMD, _NVIDIA, _INTEL)


def _number(function: Function) -> int | None:
    """Return the index RSMI, NVML or CUDA gives a device."""
    found = [_RUNTIME.fullmatch(name) for name in function.os_names()]
    return next((int(match[2]) for match in found if match), None)


def accelerators(functions: list[Function], notes: Notes) -> list[Function]:
    """Return the accelerators: by RSMI, NVML or CUDA index where all have one, else by bus id.

    Boards' management displays (ASPEED, Matrox) and processors' own are none; a VGA card is one
    where it has a runtime's name, or nothing else computes.
    """
    devices = [f for f in functions if not f.bridge]
    compute = [f for f in devices if f.pci_class in _COMPUTE and _counts(f)]
    kinds = {f.ids for f in compute}
    for vga in (f for f in devices if f.pci_class == _VGA and f.vendor in (_AMD, _NVIDIA)):
        if _number(vga) is not None or vga.ids in kinds or not kinds:
            compute.append(vga)
        else:
            notes.add("a display of class 0300 beside accelerators is left out", vga.element.line)
    if len(compute) > _GPU_LIMIT:
        raise compute[-1].element.error(f"more than {_GPU_LIMIT} accelerators")
    numbers = [_number(f) for f in compute]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return sorted(compute, key=lambda f: _number(f) or 0)
    return sorted(compute, key=lambda f: f.bus)


def partitions(function: Function) -> list[Element]:
    """Return the OSDevs of a GPU that is several RSMI devices; none when it is one."""
    found = [o for o in function.names if _PARTITION.fullmatch(o.text("name"))]
    return found if len(found) > 1 else []


_MODELS = (
    ("MI355", 0x75A3), ("MI350", 0x75A0), ("MI300A", 0x74A0), ("MI3", 0x74A1), ("MI2", 0x740C),
    ("MI100", 0x738C), ("MI50", 0x66A1), ("MI60", 0x66A0), ("B200", 0x2901), ("B300", 0x2901),
    ("H100", 0x2330), ("H200", 0x2330), ("H20", 0x2330), ("H800", 0x2330), ("A100", 0x20B0),
    ("A800", 0x20B0), ("V100", 0x1DB1), ("P100", 0x15F9), ("A10", 0x2236), ("L40", 0x26B9),
)  # fmt: skip
"""How a GPUModel tells the device where the PCI id is not known: the first that it contains."""


def device_at(function: Function) -> tuple[Device, str, str]:
    """Return a device, its arch and a remark, by PCI id or else by its GPUModel."""
    own = device_of("", None, function.vendor, function.device)
    model = next((m for m in (info(o, "GPUModel") for o in function.names) if m), "")
    alike = next((number for text, number in _MODELS if text in model.upper()), None)
    if own[2] and alike is not None:
        return device_of("", None, function.vendor, alike)
    if own[2]:
        what = f" ({model[:60]})" if model else ""
        return own[0], own[1], f"{function.ids}{what} is no known accelerator: modelled as generic"
    return own


def is_rdma(osdev: Element) -> bool:
    """Return whether an OSDev is of type OpenFabrics: 3 in hwloc 1 and 2, bit 32 in hwloc 3."""
    kind = osdev.integer("osdev_type") or 0
    return kind == 3 if kind < 7 else bool(kind & 32)


def _is_fast(function: Function) -> bool:
    """Return whether a NIC is one that RCCL uses with RDMA."""
    known = _PORT_SPEEDS.get(function.ids, 0)
    rdma = any(map(is_rdma, function.names)) or any(
        _RDMA.fullmatch(name) for name in function.os_names()
    )
    return rdma or function.pci_class != "0200" or known >= 100


def _is_down(function: Function) -> bool:
    """Return whether every port that says its state is not active (4)."""
    infos = [e for o in function.names for e in o.named("info")]
    states = [e.text("value") for e in infos
              if re.fullmatch(r"Port[0-9]{1,2}State", e.text("name"))]  # fmt: skip
    return bool(states) and "4" not in states


def nics(functions: list[Function], notes: Notes) -> list[Function]:
    """Return the NICs, by bus id: those with RDMA where there are any, else all Ethernet."""
    found = [f for f in functions if not f.bridge and f.pci_class in _NIC_CLASSES]
    up = [f for f in found if not _is_down(f)]
    if len(up) < len(found):
        notes.add(f"{len(found) - len(up)} NICs without an active port are left out")
    fast = [f for f in up if _is_fast(f)]
    if fast and len(fast) < len(up):
        notes.add(f"{len(up) - len(fast)} Ethernet NICs without RDMA are left out beside "
                  f"{len(fast)} with it")  # fmt: skip
    return sorted(fast or up, key=lambda f: f.bus)


def port_speed(function: Function) -> float | None:
    """Return a NIC's port speed (Mb/s) by its PCI id; None when that is not known."""
    known = _PORT_SPEEDS.get(function.ids)
    return known * 1000.0 if known else None
