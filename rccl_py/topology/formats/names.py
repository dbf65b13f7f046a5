"""What the attributes of a topology XML file mean: bus ids, PCIe links, devices, CPU links, ports.

Owns the tables that turn the texts of NCCL/RCCL files into rows of LINKS and DEVICES, and every
assumption made where a text is missing (returned as a remark, never silent). Knows no graph.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import log

from ...links import DEVICES, LINKS, Device, LinkType

__all__ = [
    "PCIE_SPEEDS",
    "BusId",
    "board_links",
    "bus_id",
    "bus_text",
    "cpu_link",
    "device_of",
    "fitting_speed",
    "host_link",
    "pci_ids",
    "pcie_link",
    "port_of",
    "scale_up_link",
]

BusId = tuple[int, int, int, int]
"""Domain, bus, device, function."""

_BUS = re.compile(
    r"(?:(?:0x)?([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]))?", re.IGNORECASE
)


def bus_id(text: str) -> BusId | None:
    """Return the bus id `text` spells: "0000:C1:00.0", "c1:0.0", "0x0:c1:00.0"; None if none."""
    found = _BUS.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return domain, bus, device, function


def bus_text(bus: BusId) -> str:
    """Return the usual spelling of a bus id."""
    return f"{bus[0]:04x}:{bus[1]:02x}:{bus[2]:02x}.{bus[3]:x}"


# GT/s to the generation that has a row, and what of that row's rate a lane has.
_GENERATIONS: dict[float, tuple[int, float]] = {
    2.5: (3, 0.25), 5.0: (3, 0.5), 8.0: (3, 1.0), 16.0: (4, 1.0), 32.0: (5, 1.0), 64.0: (6, 1.0),
    128.0: (6, 2.0),
}  # fmt: skip
_NAMES = {2.5: "pcie1-x16", 5.0: "pcie2-x16", 128.0: "pcie7-x16"}
PCIE_SPEEDS = {
    "pcie1-x16": "2.5 GT/s PCIe", "pcie2-x16": "5.0 GT/s PCIe", "pcie3-x16": "8.0 GT/s PCIe",
    "pcie4-x16": "16.0 GT/s PCIe", "pcie5-x16": "32.0 GT/s PCIe", "pcie6-x16": "64.0 GT/s PCIe",
    "pcie7-x16": "128.0 GT/s PCIe",
}  # fmt: skip
"""How files spell the speed of a row."""
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*GT/s(?:\s+PCIe)?", re.IGNORECASE)


def pcie_link(speed: str, width: int | None) -> tuple[LinkType, float, str]:
    """Return the row, how many x16 links of it, and a remark on what was assumed ("" if nothing).

    speed: as in ``link_speed``, such as "16.0 GT/s PCIe"; width: lanes. NCCL takes generation 3
    for a missing or unknown speed and 16 lanes for a missing or zero width, and so do we.
    """
    found = _SPEED.fullmatch(speed)
    rate = float(found[1]) if found else 0.0
    lanes, assumed = width or 16, []
    if not width:
        assumed.append("link_width missing or 0: x16 assumed")
    if rate not in _GENERATIONS:
        what = f"link_speed {speed[:24]!r} not known" if speed else "link_speed missing"
        assumed.append(f"{what}: PCIe gen 3 (8 GT/s) assumed")
    generation, worth = _GENERATIONS.get(rate, (3, 1.0))
    row = LINKS[f"pcie{generation}-x16"]
    if worth != 1.0:
        row = replace(row, name=_NAMES[rate], bandwidth=row.bandwidth * worth)
    return row, lanes / 16, f"PCIe {'; '.join(assumed)}, as NCCL does" if assumed else ""


def host_link(port: LinkType) -> LinkType:
    """Return the slowest PCIe x16 row that does not slow `port` down."""
    rows = [LINKS[f"pcie{g}-x16"] for g in (3, 4, 5, 6)]
    need = port.bandwidth * port.efficiency
    return next((row for row in rows if row.bandwidth * row.efficiency >= need), rows[-1])


def cpu_link(arch: str, vendor: str, family: int | None, model: int | None) -> tuple[LinkType, str]:
    """Return the link between two sockets of such CPUs, and a remark when it is assumed."""
    if arch.startswith(("arm", "aarch")):
        return LINKS["arm-cpu"], ""
    if arch.startswith("ppc"):
        return LINKS["power-xbus"], ""
    if vendor in ("AuthenticAMD", "AMD", "HygonGenuine"):  # Hygon's are Zen cores
        return LINKS["xgmi-cpu"], ""
    if vendor in ("CentaurHauls", "Shanghai"):
        return LINKS["zhaoxin-cpu"], ""
    if vendor == "GenuineIntel" and family is not None and model is not None:
        return LINKS[_intel(family, model)], ""
    remark = "CPU arch, vendor, family or model missing or not known: Intel UPI (10 GB/s) assumed"
    return LINKS["upi-skl"], remark


def _intel(family: int, model: int) -> str:
    """Return the row of an Intel CPU, by the model ranges of NCCL 2.30."""
    if family != 6 or model < 0x55:
        return "upi-bdw"
    # Granite Rapids and Sierra Forest (0xAD-0xAF) are newer than their numbers.
    if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
        return "upi-erp"
    return "upi-spr" if model >= 0x8F else "upi-skl"


# (vendor, device) of pci.ids, virtual functions included: for files that say neither gcn nor sm,
# and where several devices have one arch.
_PCI_DEVICES: dict[str, tuple[str, ...]] = {
    "p100": ("10de:15f8", "10de:15f9"),
    "v100": ("10de:1db1", "10de:1db4", "10de:1db5", "10de:1db6", "10de:1db8"),
    "a100": ("10de:20b0", "10de:20b1", "10de:20b2", "10de:20b3", "10de:20b5", "10de:20f1"),
    "a10": ("10de:2236", "10de:2237"),
    "rtx4090": ("10de:2684",),
    "l4": ("10de:27b8",),
    "l40s": ("10de:26b9",),
    "h100": ("10de:2330", "10de:2331", "10de:2336", "10de:2339"),
    "h200": ("10de:2335",),
    "h800": ("10de:2324",),
    "gh200": ("10de:2342", "10de:2345"),
    "b200": ("10de:2901",),
    "gb200": ("10de:2941",),
    "b300": ("10de:3182",),
    "gb300": ("10de:31c2",),
    "mi50": ("1002:66a0", "1002:66a1"),
    "mi100": ("1002:738c", "1002:738e"),
    "mi250x": ("1002:7408", "1002:740c"),
    "mi210": ("1002:740f", "1002:7410"),
    "mi300a": ("1002:74a0",),
    "mi300x": ("1002:74a1", "1002:74b5"),
    "mi308x": ("1002:74a2", "1002:74a8", "1002:74b6", "1002:74bc"),
    "mi325x": ("1002:74a5", "1002:74b9"),
    "mi350x": ("1002:75a0", "1002:75b0"),
    "mi355x": ("1002:75a3", "1002:75b3"),
}
_BY_PCI = {pci: name for name, ids in _PCI_DEVICES.items() for pci in ids}
# Modules that are only sold on boards of eight: NVLinks to the board's switches (A100 12, later
# 18: NVIDIA's HGX data sheets), or one xGMI link to each of the seven others (AMD's).
_BOARDS: dict[str, int] = {
    "10de:20b0": 12, "10de:20b2": 12, "10de:2330": 18, "10de:2335": 18, "10de:2901": 18,
    "10de:3182": 18, "1002:74a1": 0, "1002:74b5": 0, "1002:74a5": 0, "1002:74b9": 0,
    "1002:75a0": 0, "1002:75a3": 0, "1002:75b0": 0, "1002:75b3": 0,
}  # fmt: skip
_GFX = {
    "900": "gfx900", "906": "gfx906", "908": "gfx908", "910": "gfx90a", "90a": "gfx90a",
    "941": "gfx942",
}  # fmt: skip


def pci_ids(name: str) -> tuple[str, str] | None:
    """Return (vendor, device) as four hex digits of a device of the table; None if not in it."""
    ids = _PCI_DEVICES.get(name, ())
    return (ids[0][:4], ids[0][5:]) if ids else None


def board_links(vendor: int, device: int) -> int | None:
    """Return the links to switches of a module sold on boards of eight, 0 for a mesh; else None."""
    return _BOARDS.get(f"{vendor:04x}:{device:04x}")


def device_of(gcn: str, sm: int | None, vendor: int, device: int) -> tuple[Device, str, str]:
    """Return the device, its arch as text, and a remark when the device is not in the table.

    gcn: "910", "gfx942" …, which makes `sm` the number of compute units; without it `sm` is the
    CUDA compute capability. vendor, device: PCI ids, used when both are missing and to tell
    devices of one arch apart.
    """
    name = _BY_PCI.get(f"{vendor:04x}:{device:04x}")
    if gcn or sm is not None:
        found = _amd(gcn.lower().removeprefix("gfx"), sm) if gcn else _nvidia(sm or 0)
        twin = name is not None and DEVICES[name].arch == found[0].arch
        return (DEVICES[name], found[1], "") if name is not None and twin else found
    if name is not None:
        arch = DEVICES[name].arch
        return DEVICES[name], f"sm{arch}" if arch.isdigit() else arch, ""
    remark = "neither gcn nor sm, and no known PCI device id: modelled as the generic accelerator"
    return DEVICES["generic"], "", remark


def _amd(number: str, units: int | None) -> tuple[Device, str, str]:
    arch = _GFX.get(number, f"gfx{number}")
    if arch in ("gfx940", "gfx942"):  # one chip family, told apart by its compute units
        name = "mi300a" if units == 228 or (arch == "gfx940" and units != 304) else "mi300x"
        odd = units is not None and units not in (228, 304)
        remark = f"{arch} with {units} compute units: modelled as {DEVICES[name].title}"
        return DEVICES[name], arch, remark if odd else ""
    exact = next((d for d in DEVICES.values() if d.arch == arch), None)
    if exact is not None:
        return exact, arch, ""
    near = DEVICES["navi4x"] if arch.startswith("gfx120") else DEVICES["generic"]
    return near, arch, f"{arch} is not in the device table: modelled as {near.title}"


def _nvidia(sm: int) -> tuple[Device, str, str]:
    known = {int(d.arch): d for d in DEVICES.values() if d.arch.isdigit()}
    if sm in known:
        return known[sm], f"sm{sm}", ""
    below = [n for n in known if n <= sm and n // 10 == sm // 10]
    near = known[max(below)] if below else DEVICES["generic"]
    return near, f"sm{sm}", f"sm{sm} is not in the device table: modelled as {near.title}"


def scale_up_link(device: Device, kind: str) -> tuple[LinkType, str]:
    """Return the row of one link an element `kind` ("xgmi" or "nvlink") of `device` names."""
    own = LINKS.get(device.scale_up)
    media = ("nvlink",) if kind == "nvlink" else ("xgmi", "ualink")
    if own is not None and own.medium in media:
        return own, ""
    row = LINKS["nvlink3" if kind == "nvlink" else "xgmi-vega"]  # what NCCL and RCCL fall back to
    return row, f"{device.title} has no {kind} row of its own: {row.name} assumed"


_RATES = (10, 25, 40, 50, 100, 200, 400, 800)  # Gb/s: what ports are built for
_TOP_SPEED = 1_600_000.0  # Mb/s; no port is faster, so a larger number is a driver's mistake


def fitting_speed(pcie: float) -> float:
    """Return the fastest usual port speed (Mb/s) that raw PCIe bandwidth `pcie` (B/s) carries."""
    fits = [rate for rate in _RATES if rate * 1e9 / 8 <= pcie]
    return (fits[-1] if fits else _RATES[0]) * 1000.0


def port_of(name: str, pci_class: str, speed: float | None, pcie: float) -> tuple[LinkType, str]:
    """Return a NIC's port, and a remark when its speed is assumed.

    speed: Mb/s as ``<net speed>`` says, None when there is no <net>; pcie: raw B/s of its host
    link. A missing or absurd speed becomes the fastest usual one that PCIe carries; 0 or less
    becomes 10 Gb/s, as in NCCL.
    """
    remark, given = "", speed
    if given is None or given > _TOP_SPEED:
        speed = fitting_speed(pcie)
        what = "NIC speed not given" if given is None else f"NIC speed {given:g} Mb/s is absurd"
        remark = f"{what}: {speed / 1000:g} Gb/s assumed, the fastest port its PCIe link carries"
    elif given <= 0:
        speed, remark = 10_000.0, f"NIC speed {given:g}: 10 Gb/s assumed, as NCCL does"
    assert speed is not None  # every branch above sets it
    return _port(_family(name.lower(), pci_class), speed), remark


def _family(name: str, pci_class: str) -> str:
    """Return which rows of LINKS a NIC belongs to, by its name and PCI class."""
    if name.startswith(("cxi", "hsn")):
        return "slingshot-"
    if name.startswith(("eth", "en", "bond", "veth", "wl", "br")) or name == "lo":
        return "eth-"  # a socket interface: NCCL's TCP transport
    if pci_class.startswith("0x0207"):
        return "ib-"
    # ConnectX in Ethernet mode has class 0x0200 and the same name, so the class decides first.
    return "ib-" if not pci_class and name.startswith(("mlx", "ib")) else "roce-"


def _port(family: str, speed: float) -> LinkType:
    """Return the nearest row of a family at `speed` Mb/s."""
    wanted = speed * 1e6 / 8
    rows = [row for name, row in LINKS.items() if name.startswith(family)]
    row = min(rows, key=lambda r: abs(log(r.bandwidth / wanted)))
    if row.bandwidth == wanted:
        return row
    return replace(row, name=f"{family}{speed / 1000:g}g", bandwidth=wanted)
