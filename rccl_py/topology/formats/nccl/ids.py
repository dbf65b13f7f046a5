"""What a written topology XML file says of hardware that a machine does not name.

Owns the bus ids, PCI ids, CPU makes and NIC names that are invented, always the same for the same
machine. They are plausible, not real: RCCL tells devices apart by them and takes no rate from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....links import Device, LinkType
from ..names import bus_text, pci_ids

__all__ = [
    "BRIDGE",
    "NET_KEPT",
    "BusIds",
    "bridge_ids",
    "cpu_ids",
    "device_attributes",
    "gpu_ids",
    "nic_ids",
    "nic_name",
    "number_text",
]

NET_KEPT = ("port", "latency", "guid", "maxconn", "gdr", "coll")
"""Attributes of a <net> that are read to be written again."""

BRIDGE = {"class": "0x060400", "vendor": "0x11f8", "device": "0x4128",
          "subsystem_vendor": "0x11f8", "subsystem_device": "0x4128"}  # fmt: skip
"""A PCIe switch without a meaning of its own to NCCL, unlike Broadcom's (assumed ids)."""

# Row between sockets: the CPU that has it, as NCCL 2.30 tells them apart. 175 is EPYC's family as
# files up to NCCL 2.28 spell it; 143 Sapphire Rapids, 207 Emerald Rapids.
_CPUS: dict[str, tuple[str, str, int, int]] = {
    "xgmi-cpu": ("x86_64", "AuthenticAMD", 175, 17),
    "upi-bdw": ("x86_64", "GenuineIntel", 6, 79), "upi-skl": ("x86_64", "GenuineIntel", 6, 85),
    "upi-spr": ("x86_64", "GenuineIntel", 6, 143), "upi-erp": ("x86_64", "GenuineIntel", 6, 207),
    "zhaoxin-cpu": ("x86_64", "CentaurHauls", 7, 91),
    "arm-cpu": ("arm64", "", 0, 0), "power-xbus": ("ppc64", "", 0, 0),
}  # fmt: skip

# Family of ports: PCI class, (vendor, device) of pci.ids, name without number.
_NICS: dict[str, tuple[str, str, str, str]] = {
    "ib": ("0x020700", "0x15b3", "0x1021", "mlx5_"),  # ConnectX-7
    "roce": ("0x020000", "0x15b3", "0x1021", "mlx5_"),
    "uec": ("0x020000", "0x1dd8", "0x1002", "ionic_"),  # Pensando
    "slingshot": ("0x020000", "0x17db", "0x0501", "cxi"),  # Cassini
    "eth": ("0x020000", "0x8086", "0x1592", "eth"),  # E810
}

# Compute units as gcn files say them in `sm`: data sheets; MI455X assumed.
_UNITS = {"gfx906": 60, "gfx908": 120, "gfx90a": 104, "gfx940": 228, "gfx942": 304, "gfx950": 256,
          "gfx1250": 256}  # fmt: skip


class BusIds:
    """Bus ids that no two functions of one host share: given ones are kept, others invented."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[int, int] = {}

    def keep(self, text: str) -> str:
        """Return `text`, which the file gave, and never invent it."""
        self._taken.add(text)
        return text

    def new(self, host: int) -> str:
        """Return a bus id of `host` that is not in use."""
        while True:
            n = self._next.get(host, 0)
            self._next[host] = n + 1
            # Sixteen PCI domains a host, 254 buses a domain: unique over all hosts.
            text = bus_text((16 * host + n // 254, 1 + n % 254, 0, 0))
            if text not in self._taken:
                return self.keep(text)


def number_text(number: int) -> str:
    """Return a whole number as readers take it: decimal, beyond 18 digits 0x hex."""
    return str(number) if abs(number) < 10**18 else f"{number:#x}"


def cpu_ids(data: Mapping[str, Any], row: str, device: Device) -> dict[str, str]:
    """Return what tells a CPU's make: as given, else by the row between sockets, else a usual one.

    AMD GPUs sit beside EPYC, others beside Xeon (assumed).
    """
    if data.get("arch") or data.get("vendor"):
        given = {k: data.get(k) for k in ("arch", "vendor", "familyid", "modelid")}
        return {k: number_text(v) if isinstance(v, int) else str(v)
                for k, v in given.items() if v not in (None, "")}  # fmt: skip
    usual = "xgmi-cpu" if device.arch.startswith("gfx") else "upi-spr"
    arch, vendor, family, model = _CPUS.get(row) or _CPUS[usual]
    if not vendor:
        return {"arch": arch}
    return {"arch": arch, "vendor": vendor, "familyid": str(family), "modelid": str(model)}


def _given(data: Mapping[str, Any], invented: dict[str, str]) -> dict[str, str]:
    """Return the PCI ids of `data`, with what it does not name from `invented`."""
    if "pci_class" not in data:
        return invented
    given = {"class": data["pci_class"]} | {k: data.get(k, "") for k in BRIDGE if k != "class"}
    return {k: v for k, v in given.items() if v} or {"class": invented["class"]}


def gpu_ids(data: Mapping[str, Any], device: Device) -> dict[str, str]:
    """Return the PCI ids of an accelerator's function."""
    amd = device.arch.startswith("gfx")
    vendor, number = pci_ids(device.name) or ("1002" if amd else "10de", "0000")
    own = {"class": "0x120000" if amd else "0x030200", "vendor": f"0x{vendor}",
           "device": f"0x{number}", "subsystem_vendor": f"0x{vendor}",
           "subsystem_device": f"0x{number}"}  # fmt: skip
    return _given(data, own)


def bridge_ids(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the PCI ids of a bridge."""
    return _given(data, BRIDGE)


def _family(port: LinkType) -> str:
    return port.name.partition("-")[0] if port.name.partition("-")[0] in _NICS else "roce"


def nic_ids(data: Mapping[str, Any], port: LinkType) -> dict[str, str]:
    """Return the PCI ids of a NIC's function."""
    kind, vendor, number, _ = _NICS[_family(port)]
    own = {"class": kind, "vendor": vendor, "device": number, "subsystem_vendor": vendor,
           "subsystem_device": number}  # fmt: skip
    return _given(data, own)


def nic_name(data: Mapping[str, Any], port: LinkType, number: int) -> str:
    """Return a NIC's name."""
    return str(data.get("name") or f"{_NICS[_family(port)][3]}{number}")


def device_attributes(data: Mapping[str, Any], device: Device) -> dict[str, str]:
    """Return the attributes of <gpu> that tell its make: sm, and for AMD gcn and arch."""
    arch, units = str(data.get("arch") or device.arch), data.get("sm")
    if arch.startswith("gfx"):
        count = _UNITS.get(arch) if units is None else units
        own = {} if count is None else {"sm": number_text(int(count))}
        # RCCL writes its feature bits as `arch`; all known files have this number.
        return own | {"gcn": arch, "arch": "38911"}
    arch = arch.removeprefix("sm")
    return {"sm": number_text(int(arch))} if arch.isdecimal() else {}
