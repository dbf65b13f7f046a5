"""Which accelerator and which CPU a pasted text is about: as it says, else by its link counts.

Owns the names that tools print for devices and how many links each device has. Knows no graph.
Everything that is not read but inferred comes back as a remark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ....links import DEVICES, LINKS, Device, LinkType
from ..names import cpu_link, device_of

__all__ = [
    "amd_device",
    "amd_of_arch",
    "is_grace",
    "named_device",
    "nvidia_device",
    "pcie_row",
    "sockets",
]

_LINE_LIMIT = 400  # characters; a line that lists a device is shorter, a log's may be megabytes

# What nvidia-smi, lspci and collect_env print, to a row of DEVICES, or to the CUDA compute
# capability of devices without one (NVIDIA's list of CUDA GPUs). The first that fits counts, so
# longer names stand before what they contain.
_NVIDIA: tuple[tuple[str | int, str], ...] = (
    ("gb10", r"\bGB10\b|DGX Spark"), ("rtx-pro-6000", r"RTX 50\d0|RTX PRO \d000"),
    ("gb300", "GB300"), ("b300", r"\bB300"),
    ("gb200", "GB200"), ("b200", r"\bB[12]00"), ("gh200", "GH200"), ("h200", r"\bH200"),
    ("h800", r"\bH800"), ("h100", r"\bH(?:20|100)\b"), ("a100", r"\bA(?:30|100|800)\b"),
    ("rtx4090", r"RTX 40[89]0"), ("l4", r"\bL4\b"),
    ("l40s", r"\bL(?:2|20|40S?)\b|RTX 40\d0|RTX \d000 Ada"),
    ("a10", r"\bA(?:2|10G?|16|40)\b|RTX 30\d0|RTX A\d000"),
    (75, r"\bT4\b|RTX 20\d0|TITAN RTX|RTX [3-8]000\b"), ("v100", r"\bV100|TITAN V\b"),
    (61, r"\bP40?\b|GTX 10\d0|TITAN X"), ("p100", r"\bP100"),
)  # fmt: skip
_SELLER = re.compile(r"NVIDIA|Tesla|GeForce|Quadro|TITAN", re.IGNORECASE)
_SOLD = tuple((row, re.compile(pattern)) for row, pattern in _NVIDIA)

_INSTINCT = re.compile(
    r"\bMI-?(50|60|100|2[015]0X?|300A|30[08]X?|325X?|35[05]X?|455X?)\b", re.IGNORECASE
)
_GFX = re.compile(r"\bgfx[0-9a-f]{3,4}\b")
_MODELS = {  # AMD's product names, less X, to rows of DEVICES
    "50": "mi50", "60": "mi50", "100": "mi100", "200": "mi250x", "210": "mi210", "250": "mi250x",
    "300A": "mi300a", "300": "mi300x", "308": "mi308x", "325": "mi325x", "350": "mi350x",
    "355": "mi355x", "455": "mi455x",
}  # fmt: skip

# Generation of the device's own PCIe link, by the makers' data sheets; others: 4 is assumed.
_PCIE = {"p100": 3, "v100": 3, "mi455x": 6, "b300": 6, "gb300": 6} | dict.fromkeys(
    ("h100", "h200", "h800", "gh200", "b200", "gb200", "rtx-pro-6000", "mi300a", "mi300x",
     "mi308x", "mi325x", "mi350x", "mi355x", "navi4x"), 5,
)  # fmt: skip


def pcie_row(device: Device) -> tuple[LinkType, str]:
    """Return the PCIe x16 row of `device`, and a remark: a paste says neither speed nor width."""
    generation = _PCIE.get(device.name, 4)
    what = f"{device.title}'s" if device.name != "generic" else "an assumed"
    return LINKS[f"pcie{generation}-x16"], (
        f"PCIe speed and width not in the text: {what} gen {generation} x16 everywhere"
    )


def named_device(lines: Sequence[str]) -> tuple[Device, str, str] | None:
    """Return the device that most lines of the text name, a remark, and the arch if only that.

    None if no line names one. A product's name says more than its arch.
    """
    found = Counter(_devices(lines))
    products = Counter({own: count for own, count in found.items() if not own[2]})
    return (products or found).most_common(1)[0][0] if found else None


def _devices(lines: Sequence[str]) -> Iterator[tuple[Device, str, str]]:
    for line in lines:
        if len(line) > _LINE_LIMIT:
            continue
        model = _INSTINCT.search(line)
        if model:
            yield *_row(_MODELS[model[1].upper().rstrip("X")], model[0]), ""
            continue
        arch = _GFX.search(line)
        if arch:
            device, _, remark = device_of(arch[0], None, 0, 0)
            yield device, remark or _named(arch[0], device), arch[0]
        elif _SELLER.search(line):
            fits = ((row, pattern.search(line)) for row, pattern in _SOLD)
            found = next(((row, match[0]) for row, match in fits if match), None)
            if found is not None:
                yield *_row(*found), ""


def _row(row: str | int, text: str) -> tuple[Device, str]:
    if row == "gb10":  # sm121: LPDDR5X of 273 GB/s and no NVLink, by NVIDIA's DGX Spark data sheet
        return DEVICES["generic"], (
            f"device named in the text: {text} (GB10, sm121), which is not in the device table: "
            "the generic one taken"
        )
    if isinstance(row, str):
        return DEVICES[row], _named(text, DEVICES[row])
    device, _, remark = device_of("", row, 0, 0)
    return device, remark or _named(text, device)


def _named(text: str, device: Device) -> str:
    return f"device named in the text: {text}, modelled as {device.title}"


_GRACE_LISTS = frozenset({"0-71", "72-143", "144-215", "216-287"})  # 72 cores, no second threads


def is_grace(device: Device, cpu_lists: Sequence[str], own_memory: bool) -> bool:
    """Return whether the CPUs are Grace: of 72 cores each, or with GPU memory as NUMA nodes.

    cpu_lists: of every GPU, as printed. own_memory: every GPU has a NUMA node of its own.
    """
    if own_memory or device.name in ("gh200", "gb200", "gb300"):
        return True
    shared = Counter(cpu_lists)
    # One list alone may be that of any machine of 72 CPUs.
    return len(shared) > 1 and max(shared.values()) <= 2 and shared.keys() <= _GRACE_LISTS


def nvidia_device(largest: float, total: float, gpus: int, sharing: int = 0) -> tuple[Device, str]:
    """Return the device that NVLink counts fit, and a remark that names its look-alikes.

    largest: links of the best-joined pair; total: of the best-joined GPU, over all its pairs.
    sharing: GPUs under one Grace CPU; 0: the CPUs are others.
    """
    if sharing:
        name = "gb200" if sharing > 1 else "gh200"
        twin = "GB300" if sharing > 1 else "GB200 or GB300 with one GPU a CPU shown"
        return DEVICES[name], (
            f"device not named in the text: {DEVICES[name].title} assumed by its Grace CPUs "
            f"({sharing} GPU(s) each; {twin} looks the same)"
        )
    name = _by_links(largest, total, gpus)
    if name == "generic":
        return DEVICES[name], "the text names no device and has no NVLink: the generic one taken"
    twins = _twins(name, largest, total)
    twin = f" ({twins} look the same)" if twins else ""
    return DEVICES[name], (
        f"device not named in the text: {DEVICES[name].title} assumed by its NVLink counts{twin}"
    )


def _by_links(largest: float, total: float, gpus: int) -> str:
    if not largest:
        return "generic"
    if largest > 12 or (largest == 6 and gpus == 4 and total == 18):  # HGX H100 of four: NV6 mesh
        return "h100"
    if largest > 6 or (largest == 4 and total >= 12):  # HGX A100 of four: NV4 mesh
        return "a100"
    if largest == 4 and total == 4:
        return "a10"  # the four-link bridge of A40, A6000, RTX 3090
    return "p100" if largest == 1 and total == 4 and gpus >= 5 else "v100"  # DGX-1 of 2016


def _twins(name: str, largest: float, total: float) -> str:
    """Return the devices whose matrix is alike; bridges join a GPU to one other only."""
    bridge = largest == total
    if name == "h100":
        return "H200, H20, B200 and B300" if largest > 12 else "H200 and bridges of four H200 NVL"
    if name == "a100" and largest == 12:
        return "bridges of A100, H100 PCIe and H100 NVL" if bridge else ""
    if name == "a100":
        return "A800 and H800" if largest == 8 else ""
    if name == "a10":
        return "bridges of A30, A40, RTX A6000 and RTX 3090"
    return "bridges of RTX 20 and Quadro RTX cards" if name == "v100" and bridge else ""


_ARCH_ONLY = {"gfx90a": ("mi250x", "mi210"), "gfx942": ("mi300x", "mi300a")}
"""Two devices of one arch: of several dies or in boards of eight, and in hives of four."""


def amd_of_arch(arch: str, direct: int, relayed: bool, gpus: int) -> tuple[Device, str] | None:
    """Return which device of `arch` has such links, and a remark; None if the arch has one only.

    direct, relayed, gpus: as amd_device() takes them.
    """
    if arch not in _ARCH_ONLY:
        return None
    usual, four = _ARCH_ONLY[arch]
    hive = direct == 3 and not relayed and (gpus == 4 or arch == "gfx90a")
    if arch == "gfx90a" and not direct and gpus > 1:
        hive = True  # the dies of a MI250X always have xGMI
    own, other = DEVICES[four if hive else usual], DEVICES[usual if hive else four]
    return own, (
        f"the text names {arch} only: {own.title} assumed by its links ({other.title} has "
        "this arch too)"
    )


_AMD_TWINS = {
    "mi355x": "MI350X", "mi300a": "MI300X of four", "mi300x": "MI325X and MI308X",
    "mi210": "MI100, MI300A and four dies of MI250X", "mi100": "MI210", "mi250x": "MI250",
}  # fmt: skip


def amd_device(direct: int, relayed: bool, gpus: int, rate: float) -> tuple[Device, str]:
    """Return the device that xGMI tables fit, and a remark that names its look-alikes.

    direct: largest number of peers with a direct link; relayed: some xGMI pair has no direct
    link; gpus: of the whole node; rate: MB/s of one link, 0 if not given.
    """
    if not direct:
        return DEVICES["generic"], "the text names no device and has no xGMI: the generic one taken"
    if 0.95 * 76_800 <= rate <= 1.05 * 76_800:
        name = "mi355x"
    elif rate >= 60_000 and direct == 3 and gpus == 4:
        name = "mi300a"
    elif rate >= 60_000 or (direct >= 7 and not relayed):
        name = "mi300x"
    elif direct == 3 and not relayed:
        name = "mi210" if gpus == 4 else "mi100"  # hives of four on bridge cards
    else:
        name = "mi250x"
    twins = _AMD_TWINS[name]
    if name == "mi300x" and not rate:
        twins = "MI325X, MI350X, MI355X, and MI250X under older drivers,"
    by = f"its links of {rate / 1e3:g} GB/s" if rate else "its links"
    return DEVICES[name], (
        f"device not named in the text: {DEVICES[name].title} assumed by {by} "
        f"({twins} may look the same)"
    )


_LSCPU = {
    "vendor": re.compile(r"Vendor ID:\s*(GenuineIntel|AuthenticAMD|HygonGenuine|CentaurHauls)"),
    "family": re.compile(r"CPU family:\s*(\d{1,4})\b"),
    "model": re.compile(r"^\s*Model:\s*(\d{1,4})\b"),
    "arch": re.compile(r"Architecture:\s*(x86_64|aarch64|ppc64le)\b"),
}
_EPYC = re.compile(r"\bAMD EPYC\b|\bThreadripper\b")


def sockets(lines: Sequence[str], amd: bool, grace: bool = False) -> tuple[LinkType, str]:
    """Return the link between two sockets, and a remark where it is assumed.

    What lscpu prints decides; `amd` GPUs without it are taken to sit on EPYC. grace: two Grace
    CPUs are joined coherently, as NVIDIA's GB200 and GH200 boards are.
    """
    if grace:
        return LINKS["nvlink-c2c"], "Grace CPUs: joined by NVLink-C2C, its usual rate assumed"
    found: dict[str, str] = {}
    for line in lines:
        if len(line) <= _LINE_LIMIT:
            for what, pattern in _LSCPU.items():
                match = pattern.search(line)
                if match and what not in found:
                    found[what] = match[1]
            if _EPYC.search(line):
                found.setdefault("vendor", "AuthenticAMD")
    if amd and not found:
        return LINKS[
            "xgmi-cpu"
        ], "CPU not named in the text: AMD EPYC (16 GB/s a socket link) assumed"
    numbers = [int(found[what]) if what in found else None for what in ("family", "model")]
    vendor = found.get("vendor", "").replace("HygonGenuine", "AuthenticAMD")
    return cpu_link(found.get("arch", ""), vendor, *numbers)
