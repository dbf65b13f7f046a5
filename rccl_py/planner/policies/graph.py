"""What NCCL and RCCL would find on a machine: channels, their speeds, how far things are apart.

Owns the derivation from a Fabric, by the libraries' constants and trial speeds instead of ours: a
library counts a link at its own figure and takes the widest set of channels whose speed is one of
a list. Knows no cost model. The searches themselves (which ring goes where) are not repeated: a
switch, a mesh and a PCI bus have known answers, other graphs take the rings of `planner.rings`.

One H100 node, 18 NVLinks at 20.6::   60 GB/s fits 6 times, halved and doubled: 12 channels of 30
8 NICs of 400 Gb/s beside them::      48 GB/s fits each NIC once:                8 channels of 48

Sources: NVIDIA/nccl 2.30.7 src/graph/topo.h (constants), src/graph/search.cc (speeds, doubling),
src/transport/nvls.cc (NVLS channels); RCCL 2.28.3 src/graph/topo.h; RCCL's log of an MI300X node
("Channel 00/56") and its defaults for gfx950 for the channels of AMD's presets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...fabric import F64, Domain, Fabric
from ..rings import Rings, find_rings

__all__ = ["Figures", "Graph", "figures_of", "log2"]

GB = 1e9
_COUNT = {  # GB/s a library counts on over B/s raw of a lane; raw rates are those of our links
    "60": 18 / 20, "70": 20 / 25, "80": 20 / 25, "86": 12 / 14, "90": 20.6 / 25, "100": 40.1 / 50,
    "103": 40.1 / 50, "gfx906": 1.0, "gfx908": 24 / 46, "gfx90a": 36 / 50, "gfx94": 48 / 64,
    "gfx95": 48 / 76.8,
}  # fmt: skip
_UNKNOWN = 0.75  # assumed for devices no library knows: as MI300
_PCI = ((15.8, 12.0), (31.6, 24.0), (63.1, 48.0), (1e9, 96.0))
"""Raw GB/s of PCIe x16 up to which a generation goes, and what the libraries count on."""

_LOAD_STORE = ("xgmi", "nvlink", "ualink")
_INTRA = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
_INTER = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_INTRA_90 = (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)
_INTER_90 = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
_INTRA_100 = (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)
_INTER_100 = (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24,
              0.12)  # fmt: skip
_AMD = (48, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)

_PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET")
_UNBOUND = 1e6  # GB/s, of what is not there and limits nothing
_SEARCHED = 32  # channels a search finds at most
_MOST = 64  # channels of a communicator
_NVLS_HEADS = 32
_SLOWEST = 0.49  # speeds below this part of one that fits are not tried


def log2(value: int) -> int:
    """Return the whole part of the binary logarithm of value >= 1."""
    return int(value).bit_length() - 1


@dataclass(frozen=True, slots=True)
class Graph:
    """Channels of one pattern. intra, inter: GB/s of each, inside nodes and between them."""

    channels: int
    intra: float
    inter: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A machine as the libraries' cost models see it.

    arch: gfx name or sm number. channels: those a communicator has, before small calls take fewer;
    nvls_channels: those of NVLS. type_intra, type_inter: the libraries' path types. plain_tree: the
    trees' pattern is the simplest, which costs 15 %. net_latency: us, the NIC's own. ainic: AMD's
    Pensando NICs. collnet: the switches reduce. same_channels: all channels are one ring's.
    """

    nodes: int
    ranks: int
    arch: str
    ring: Graph
    tree: Graph
    nvls: Graph | None
    channels: int
    nvls_channels: int = 0
    type_intra: str = "NVL"
    type_inter: str = "PIX"
    cpu: str = "intel"
    net_latency: float = 0.0
    plain_tree: bool = False
    collnet: bool = False
    same_channels: bool = True
    ainic: bool = False

    @property
    def local(self) -> int:
        """Ranks of a node."""
        return self.ranks // self.nodes

    @property
    def capability(self) -> int:
        """NVIDIA's compute capability, 0 for others."""
        return int(self.arch) if self.arch.isdigit() else 0

    @property
    def net_overhead(self) -> float:
        """Us the host spends a network step."""
        return 2.0 if self.cpu == "amd" else 1.0

    @staticmethod
    def within(path: str, limit: str) -> bool:
        """Whether a path type is at most as far as another."""
        return _PATHS.index(path) <= _PATHS.index(limit)


@dataclass(frozen=True, slots=True)
class _Inside:
    """What a node's ranks have between them, in a library's GB/s.

    port: what a rank sends through switches (or PCI); rings, speed: disjoint rings of direct links
    and what each carries. scale_up: it is not PCI.
    """

    g: int
    port: float
    rings: int
    speed: float
    scale_up: bool
    switched: bool


@dataclass(frozen=True, slots=True)
class _Outside:
    """The NICs of a node's ranks: count, GB/s of the network and of the bus before them."""

    nics: int
    net: float
    bus: float


def figures_of(fabric: Fabric) -> Figures:
    """Return what NCCL or RCCL would find on `fabric`, by the arch of its devices."""
    nodes = len(np.unique(fabric.node))
    inside = _inside(fabric)
    outside = _outside(fabric)
    amd = fabric.arch.startswith("gfx")
    ring, tree = _amd_graph(inside, outside, nodes), None
    if not amd:
        ring, tree = _graphs(_capability(fabric.arch), inside, outside, nodes)
    nvls = None if amd else _nvls(_capability(fabric.arch), inside, outside, nodes)
    return Figures(
        nodes, fabric.nranks, fabric.arch, ring, tree or ring, nvls,
        _amd_channels(fabric.arch, ring, inside, nodes) if amd else min(_MOST, 2 * ring.channels),
        nvls_channels=_nvls_channels(_capability(fabric.arch), nodes) if nvls else 0,
        type_intra="NVL" if inside.scale_up or inside.g == 1 else "PHB",
        type_inter=_type_inter(inside, outside),
        cpu="amd" if amd else "intel",  # assumed: machines do not name their CPU
        plain_tree=_capability(fabric.arch) >= 90 and nodes > 1,
    )  # fmt: skip


def _capability(arch: str) -> int:
    return int(arch) if arch.isdigit() else 0


def _counted(arch: str, raw: float) -> float:
    """Return the GB/s a library counts a scale-up link of `raw` B/s at."""
    known = [part for name, part in _COUNT.items() if arch.startswith(name)]
    return raw / GB * (known[-1] if known else _UNKNOWN)


def _pci(raw: float) -> float:
    """Return the GB/s a library counts PCIe of `raw` B/s at."""
    return next(rate for most, rate in _PCI if raw / GB <= most)


def _inside(fabric: Fabric) -> _Inside:
    node = fabric.node[0]
    locals_used = fabric.local[fabric.node == node]
    domain, g = fabric.domains[int(fabric.kind[node])], len(locals_used)
    media = np.array(domain.media)
    up = np.isin(media, _LOAD_STORE) & np.isin(domain.tail, locals_used)
    if g == 1 or not up.any():
        return _Inside(g, _bus(domain), 0, 0.0, False, False)
    through = up & (domain.head < 0)
    if through.any():
        raw = min(float(domain.raw[through & (domain.tail == i)].sum()) for i in locals_used)
        return _Inside(g, _counted(fabric.arch, raw), 0, 0.0, True, True)
    rings, speed = _direct_rings(fabric, domain, locals_used)
    if speed == 0:
        return _Inside(g, _bus(domain), 0, 0.0, False, False)
    return _Inside(g, 0.0, rings, speed, True, False)


def _direct_rings(fabric: Fabric, domain: Domain, locals_used: np.ndarray) -> tuple[int, float]:
    """Return disjoint rings over direct links, and the GB/s each carries in a library's count."""
    ranks = np.flatnonzero(fabric.node == fabric.node[0]).astype(np.int32)
    found = find_rings(fabric, ranks[None, :])
    place = np.full(domain.ngpus, -1)
    place[locals_used] = np.arange(len(locals_used))
    capacity: F64 = np.zeros((len(ranks), len(ranks)))
    for link in np.flatnonzero((domain.tail >= 0) & (domain.head >= 0)).tolist():
        i, j = place[domain.tail[link]], place[domain.head[link]]
        if i >= 0 and j >= 0 and domain.media[link] in _LOAD_STORE:
            capacity[i, j] += _counted(fabric.arch, float(domain.raw[link]))
    return int(found.local_weights.sum()), _ring_speed(capacity, found)


def _ring_speed(capacity: F64, found: Rings) -> float:
    """Return the GB/s a ring carries when all are used; 0 where one takes a link that is none."""
    load = np.zeros_like(capacity)
    for order, weight in zip(found.local_orders, found.local_weights):
        load[order, np.roll(order, -1)] += weight
    used = load > 0
    return float((capacity[used] / load[used]).min()) if used.any() else 0.0


def _bus(domain: Domain) -> float:
    """Return the GB/s of the PCI bus, or of what joins the sockets if that is less."""
    rates = [_pci(raw) for raw, m in zip(domain.raw.tolist(), domain.media) if m == "pci"]
    sockets = [raw / GB for raw, m in zip(domain.raw.tolist(), domain.media) if m == "cpu"]
    return min([*rates, *sockets], default=_UNBOUND)


def _outside(fabric: Fabric) -> _Outside:
    node = fabric.node[0]
    domain = fabric.domains[int(fabric.kind[node])]
    used = {n for i in fabric.local[fabric.node == node].tolist() for n in domain.nics_of(i)}
    if not used:
        return _Outside(0, 0.0, 0.0)
    net = min(float(domain.port_raw[n]) for n in used) / GB
    links = [link for a in range(len(domain.nic)) for link, _ in domain.up.entries(a)]
    pci = [_pci(float(domain.raw[k])) for k in links if domain.media[k] == "pci"]
    return _Outside(len(used), net, min(pci, default=_UNBOUND))


def _fitting(inside: _Inside, outside: _Outside, nodes: int, speed: float) -> int:
    """Return how many channels of `speed` GB/s fit."""
    share = 1.0 if nodes == 1 else (inside.g - 1) / inside.g
    limits = [_SEARCHED]
    if nodes > 1:
        limits.append(outside.nics * int(min(outside.net, outside.bus) / speed + 1e-9))
    if inside.rings:
        # Between nodes rings are cut open into as many paths as there are ranks in a mesh.
        count = inside.rings if nodes == 1 else max(inside.rings, inside.g)
        limits.append(count * int(inside.speed / speed + 1e-9))
    elif inside.g > 1:
        limits.append(int(inside.port / (speed * share) + 1e-9))
    return min(limits)


def _widest(inside: _Inside, outside: _Outside, nodes: int, speeds: tuple[float, ...]) -> Graph:
    """Return the channels that carry most together; of equals the fastest."""
    best = Graph(1, 0.1, 0.1)  # the libraries' way out when nothing fits
    for speed in speeds:
        if speed <= _SLOWEST * best.intra:
            break
        channels = _fitting(inside, outside, nodes, speed)
        if channels * speed > best.channels * best.intra * (1 + 1e-9):
            best = Graph(channels, float(speed), float(speed))
    return best


def _doubled(graph: Graph, capability: int) -> Graph:
    """Return twice the channels at half the speed, as NCCL does with fast ones."""
    few = graph.intra >= 25 and not (capability >= 90 and graph.intra < 50 and graph.channels > 4)
    if not few or 2 * graph.channels > _MOST:
        return graph
    return Graph(2 * graph.channels, graph.intra / 2, graph.inter / 2)


def _graphs(capability: int, inside: _Inside, outside: _Outside, nodes: int) -> tuple[Graph, Graph]:
    """Return NCCL's ring and tree graphs; trees may be faster inside nodes than between them."""
    inter = _INTER_100 if capability >= 100 else _INTER_90 if capability >= 90 else _INTER
    intra = _INTRA_100 if capability >= 100 else _INTRA_90 if capability >= 90 else _INTRA
    ring = _doubled(_widest(inside, outside, nodes, intra if nodes == 1 else inter), capability)
    if nodes == 1 or inside.g == 1:
        return ring, ring
    # Trees have the rings' channels, and inside nodes the fastest speed at which those still fit.
    alone = _Outside(_SEARCHED, _UNBOUND, _UNBOUND)
    wider = [s for s in inter if s > ring.intra
             and _fitting(inside, alone, nodes, s) >= ring.channels]  # fmt: skip
    return ring, Graph(ring.channels, float(max(wider, default=ring.intra)), ring.inter)


def _nvls(capability: int, inside: _Inside, outside: _Outside, nodes: int) -> Graph | None:
    """Return the graph of in-switch reduction: a channel a head; None where there is none."""
    if (
        not inside.switched
        or not inside.scale_up
        or inside.g < 3
        or capability not in (90, 100, 103)
    ):
        return None
    heads = min(inside.g, _NVLS_HEADS)
    speeds = _INTRA_100 if capability >= 100 else _INTRA_90
    intra = next((s for s in speeds if s * heads <= inside.port), 0.1)
    inter = next((s for s in (_INTER_100 if capability >= 100 else _INTER_90)
                  if nodes > 1 and s <= min(outside.net, outside.bus)), intra)  # fmt: skip
    return Graph(heads, float(intra), float(inter))


def _nvls_channels(capability: int, nodes: int) -> int:
    if capability < 100:
        return 16
    return 24 if nodes == 1 else 32


def _amd_graph(inside: _Inside, outside: _Outside, nodes: int) -> Graph:
    return _widest(inside, outside, nodes, _AMD)


def _amd_channels(arch: str, ring: Graph, inside: _Inside, nodes: int) -> int:
    """Return RCCL's channels: presets multiply the rings of a mesh of 8, others double them."""
    if arch.startswith(("gfx94", "gfx95")) and inside.g == 8:
        if nodes > 1:
            return _MOST
        return ring.channels * (16 if arch.startswith("gfx95") else 8)
    return min(_MOST, 2 * ring.channels)


def _type_inter(inside: _Inside, outside: _Outside) -> str:
    """Return how far the NICs are: beside each rank, behind a peer, or behind the host."""
    if outside.nics >= inside.g:
        return "PIX"
    return "PXN" if inside.scale_up else "PHB"
