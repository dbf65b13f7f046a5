"""Link and device parameter sets: one row a link, one row a device, each number with its source.

Owns figures only: it knows no topology, no schedule and no time. Rates are bytes per second per
direction, times are seconds. A latency triple is what one hop over the link costs a collective
step under the LL, LL128 and Simple protocols (flag written by the sender to seen by the receiver,
with the protocol's own hand-shake); it is not a cable's flight time.

Sources, cited by letter in the rows:

* A  AMD ROCm blog "MI300X RCCL xGMI" (2025-03-02): TransferBench all-to-all 45.1-47.2, mean 46.55
* B  RCCL tuning tables (gfx90a model 0-4, gfx942 model 5): hop latencies per protocol
* C  OLCF/LUMI osu_bw between the GCDs of one node (ROCm 5.4), arXiv 2302.14827
* D  oci measured MI355X all_reduce 402-409 GB/s busbw over 7 links
* E  NVIDIA NCCL src/graph/tuning.cc (2.30): hop latencies per protocol
* F  nccl-tests tables: H200 ring 363-367 of 450, B200 678-682 of 900, A100 222 of 300 GB/s
* G  UALink 200G 1.0: 93 % effective peak, switch hop <= 150-250 ns (consortium Q&A)
* H  PCI-SIG rates; usable part from bandwidth tests (gen4 25-26, gen5 52-55 GB/s x16)
* I  AMD Pollara: all_to_all 45.5 GB/s a NIC on two nodes, 9.2 M messages/s
* J  two-node all_reduce floors (25 us IB, 40-55 us RoCE) minus the single-node part: 10-20 us a hop
* K  RCCL/NCCL topology constants (GB/s per link) where nothing better is published
* M  NCCL alltoall latency on H100: 37, 42, 60, 98, 290 us at 2, 4, 8, 16, 32 nodes of 8, so 0.4 to
  1.1 us a remote peer (meta-pytorch/autoparallel, fitted to measurements)
* L  nccl-tests small-message latencies against rank count: intercept = launch, slope = hop
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DEVICES", "LINKS", "PROTOCOLS", "Device", "LinkType", "Protocol", "Triple"]

Triple = tuple[float, float, float]
"""Seconds under LL, LL128 and Simple."""

GB = 1e9
US = 1e-6


@dataclass(frozen=True, slots=True)
class Protocol:
    """How bytes travel: `wire` bytes on the link per byte of payload."""

    name: str
    wire: float
    index: int


PROTOCOLS: dict[str, Protocol] = {
    # LL carries 4 B data + 4 B flag; LL128 120 B data in 128 B; NCCL 2.30 source.
    "LL": Protocol("LL", 2.0, 0),
    "LL128": Protocol("LL128", 128 / 120, 1),
    "Simple": Protocol("Simple", 1.0, 2),
}


@dataclass(frozen=True, slots=True)
class LinkType:
    """A kind of link. `bandwidth` is raw B/s per direction; `efficiency` the usable part of it."""

    name: str
    medium: str  # xgmi, nvlink, ualink, c2c, pci, cpu, net: what path matrices call it
    bandwidth: float
    efficiency: float
    latency: Triple
    message: float  # seconds a sender spends per message
    source: str


def _us(ll: float, ll128: float, simple: float) -> Triple:
    return ll * US, ll128 * US, simple * US


_SCALE_UP_MESSAGE = 0.05 * US  # assumed: one flag write and its fence per peer
_NIC_MESSAGE = 0.5 * US  # M: the NIC itself takes 0.11 us (I), posting and progress the rest

_XGMI_MI200 = _us(0.8, 1.4, 2.5)  # B
_XGMI_MI300 = _us(0.8, 0.8, 2.1)  # B
_NVLINK = _us(0.85, 1.9, 3.4)  # L for LL, E for the others
_PCI = _us(1.0, 1.9, 4.0)  # E, its PCI row: charged once a path, however many PCI hops
_CPU = _us(0.3, 0.5, 1.0)  # assumed: a socket crossing on top of the PCI links
_ROCE = _us(10.0, 10.0, 16.0)  # J
_IB = _us(6.0, 6.5, 14.0)  # J, E


def _rows(*types: LinkType) -> dict[str, LinkType]:
    return {t.name: t for t in types}


def _pcie(generation: int, lane: float, efficiency: float) -> LinkType:
    """Return PCIe x16 of a generation; `lane` is raw GB/s of one lane."""
    return LinkType(
        f"pcie{generation}-x16", "pci", 16 * lane * GB, efficiency, _PCI, _SCALE_UP_MESSAGE, "H"
    )


def _ethernet(name: str, gigabits: float, efficiency: float, latency: Triple, why: str) -> LinkType:
    return LinkType(name, "net", gigabits / 8 * GB, efficiency, latency, _NIC_MESSAGE, why)


LINKS: dict[str, LinkType] = _rows(
    LinkType("xgmi-vega", "xgmi", 24 * GB, 1.0, _XGMI_MI200, _SCALE_UP_MESSAGE, "K, B"),
    LinkType("xgmi-mi100", "xgmi", 46 * GB, 0.78, _XGMI_MI200, _SCALE_UP_MESSAGE, "K (36), B"),
    LinkType("xgmi-mi200", "xgmi", 50 * GB, 0.75, _XGMI_MI200, _SCALE_UP_MESSAGE, "C, B"),
    LinkType("xgmi-mi300", "xgmi", 64 * GB, 0.7273, _XGMI_MI300, _SCALE_UP_MESSAGE, "A, B"),
    LinkType("xgmi-mi350", "xgmi", 76.8 * GB, 0.755, _XGMI_MI300, _SCALE_UP_MESSAGE, "D, B"),
    LinkType("nvlink1", "nvlink", 20 * GB, 0.9, _NVLINK, _SCALE_UP_MESSAGE, "K (18), E"),
    LinkType("nvlink2", "nvlink", 25 * GB, 0.8, _NVLINK, _SCALE_UP_MESSAGE, "K (20), E"),
    LinkType("nvlink3", "nvlink", 25 * GB, 0.75, _NVLINK, _SCALE_UP_MESSAGE, "F, E, L"),
    LinkType("nvlink4", "nvlink", 25 * GB, 0.81, _NVLINK, _SCALE_UP_MESSAGE, "F, E, L"),
    LinkType("nvlink5", "nvlink", 50 * GB, 0.75, _NVLINK, _SCALE_UP_MESSAGE, "F, E, L"),
    LinkType("nvlink-c2c", "c2c", 450 * GB, 0.85, _us(0.6, 1.0, 2.0), _SCALE_UP_MESSAGE, "assumed"),
    # No silicon has been measured: latency is xGMI's hand-shake; the switch hop is the machine's.
    LinkType("ualink-200g", "ualink", 25 * GB, 0.93, _XGMI_MI300, _SCALE_UP_MESSAGE, "G, B"),
    _pcie(3, 0.985, 0.76),
    _pcie(4, 1.969, 0.80),
    _pcie(5, 3.938, 0.84),
    _pcie(6, 7.563, 0.86),
    LinkType("upi-bdw", "cpu", 6 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("upi-skl", "cpu", 10 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("upi-spr", "cpu", 22 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("upi-erp", "cpu", 40 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("xgmi-cpu", "cpu", 16 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("power-xbus", "cpu", 32 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("arm-cpu", "cpu", 6 * GB, 1.0, _CPU, 0.0, "K"),
    LinkType("zhaoxin-cpu", "cpu", 6 * GB, 1.0, _CPU, 0.0, "K"),
    _ethernet("eth-10g", 10, 0.91, _us(20.0, 20.0, 30.0), "assumed (TCP)"),
    _ethernet("roce-100g", 100, 0.91, _ROCE, "I, J"),
    _ethernet("roce-200g", 200, 0.91, _ROCE, "I, J"),
    _ethernet("roce-400g", 400, 0.91, _ROCE, "I, J"),
    _ethernet("roce-800g", 800, 0.91, _ROCE, "I scaled, J"),
    _ethernet("uec-400g", 400, 0.95, _IB, "assumed: packet spraying, no go-back-N"),
    _ethernet("uec-800g", 800, 0.95, _IB, "assumed: packet spraying, no go-back-N"),
    _ethernet("ib-100g", 100, 0.95, _IB, "J, E"),
    _ethernet("ib-200g", 200, 0.95, _IB, "J, E"),
    _ethernet("ib-400g", 400, 0.95, _IB, "J, E"),
    _ethernet("ib-800g", 800, 0.95, _IB, "J, E"),
    _ethernet("slingshot-200g", 200, 0.92, _us(8.0, 8.0, 14.0), "assumed between ib and roce"),
)


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of accelerator.

    launch: seconds of a call that moves nothing (queue, kernel start and end). memory: usable B/s
    of one copy stream (read + write). scale_up: its native link, used where a file only says
    "xgmi" or "nvlink". arch: gfx name or sm number, as topology files spell it.
    """

    name: str
    title: str
    arch: str
    launch: float
    memory: float
    scale_up: str
    source: str = field(default="assumed")


def _devices(*devices: Device) -> dict[str, Device]:
    return {d.name: d for d in devices}


DEVICES: dict[str, Device] = _devices(
    Device("mi50", "AMD Instinct MI50", "gfx906", 8 * US, 0.8e12, "xgmi-vega", "launch assumed"),
    Device("mi100", "AMD Instinct MI100", "gfx908", 8 * US, 1.0e12, "xgmi-mi100", "launch assumed"),
    Device(
        "mi250x",
        "AMD Instinct MI250X (GCD)",
        "gfx90a",
        8 * US,
        1.2e12,
        "xgmi-mi200",
        "BabelStream MI250 GCD; launch assumed",
    ),
    Device(
        "mi300a",
        "AMD Instinct MI300A",
        "gfx940",
        11.5 * US,
        2.9e12,
        "xgmi-mi300",
        "BabelStream; launch as mi300x",
    ),
    Device(
        "mi300x",
        "AMD Instinct MI300X",
        "gfx942",
        11.5 * US,
        4.26e12,
        "xgmi-mi300",
        "BabelStream; launch: direct all_reduce 12.8 us (A), less its one hop",
    ),
    Device(
        "mi355x",
        "AMD Instinct MI355X",
        "gfx950",
        11.5 * US,
        6.4e12,
        "xgmi-mi350",
        "80 % of 8.0 TB/s; launch as mi300x",
    ),
    Device(
        "mi455x",
        "AMD Instinct MI455X",
        "gfx1250",
        11.5 * US,
        15.7e12,
        "ualink-200g",
        "80 % of 19.6 TB/s; launch as mi300x",
    ),
    Device("navi4x", "AMD Radeon (gfx12)", "gfx1201", 8 * US, 0.5e12, "pcie5-x16", "assumed"),
    Device("p100", "NVIDIA P100", "60", 12 * US, 0.55e12, "nvlink1", "assumed"),
    Device("v100", "NVIDIA V100", "70", 12 * US, 0.8e12, "nvlink2", "L"),
    Device("a100", "NVIDIA A100", "80", 8 * US, 1.6e12, "nvlink3", "80 % of 2.04 TB/s; L"),
    Device("a10", "NVIDIA A10/RTX 30", "86", 8 * US, 0.5e12, "nvlink3", "assumed"),
    Device("l40s", "NVIDIA L40S/RTX 40", "89", 8 * US, 0.7e12, "pcie4-x16", "assumed"),
    Device("h100", "NVIDIA H100", "90", 4.5 * US, 2.7e12, "nvlink4", "80 % of 3.35 TB/s; L"),
    Device("b200", "NVIDIA B200", "100", 7.5 * US, 6.2e12, "nvlink5", "80 % of 7.7 TB/s; L"),
    Device("generic", "accelerator of unknown make", "", 8 * US, 1.0e12, "pcie4-x16", "assumed"),
)
