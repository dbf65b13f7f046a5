"""How far off a prediction usually is: the errors measured on machines of the same family.

Owns families of machines, the rule which family is nearest, and the table of errors
(bands.csv, written by ``rccl-validate --bands``). Knows no prediction and no measured table.

A family is the link that joins accelerators and, for several nodes, the kind of their network:
"nvlink4", "nvlink4+ib", "xgmi-mi300+roce", "pcie5-x16".
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import FormatError
from ..links import LINKS, LinkType
from ..topology import Topology
from ..topology.build import gpus_of, nics_of

__all__ = ["CLASSES", "PEAK", "Band", "band_for", "bands", "family_of"]

CLASSES: dict[str, tuple[float, float]] = {
    "< 64 KiB": (0, 64 << 10),
    "64 KiB - 1 MiB": (64 << 10, 1 << 20),
    ">= 1 MiB": (1 << 20, math.inf),
}
"""Classes of sizes in B: from, and below."""

PEAK = "peak"
"""The class of the largest size of every table."""

TABLE = Path(__file__).with_name("bands.csv")

_KIN = (
    {"xgmi", "ualink"},  # loads and stores of AMD's kernels, with the same hand-shake
    {"nvlink", "c2c"},
    {"xgmi", "ualink", "nvlink", "c2c", "ici"},  # no host in between
)
"""Media of scale-up links that are alike, the closest first."""

_NETWORKS = ({"roce", "uec", "efa"}, {"ib", "slingshot"})
"""Networks that are alike: Ethernet's, and those with credits a link."""


@dataclass(frozen=True)
class Band:
    """The usual error of a prediction. median, p90: of |predicted / measured - 1|.

    family: whose tables say so; exact: whether that is the machine's own family. kind: the class of
    sizes. rows: how many measured sizes stand behind it.
    """

    family: str
    exact: bool
    kind: str
    rows: int
    median: float
    p90: float

    def __str__(self) -> str:
        whose = self.family if self.exact else f"{self.family}, the nearest family measured"
        return (f"error {self.median:.0%} (median), {self.p90:.0%} (90th percentile) on "
                f"{self.rows} sizes {self.kind} of {whose}")  # fmt: skip


def _scale_up(topology: Topology) -> LinkType | None:
    """Return the link that gives the accelerators the most bandwidth, without host and NICs."""
    total: dict[str, float] = {}
    links: dict[str, LinkType] = {}
    gpus = set(gpus_of(topology.node))
    for a, _, data in topology.node.edges(data=True):
        link: LinkType = data["link"]
        if a in gpus:
            total[link.name] = total.get(link.name, 0.0) + data["bandwidth"]
            links[link.name] = link
    inside = {name: rate for name, rate in total.items() if links[name].medium != "pci"} or total
    return links[max(inside, key=lambda name: inside[name])] if inside else None


def _network(topology: Topology) -> str:
    """Return the kind of network, without its rate: "roce" of roce-400g."""
    nics = nics_of(topology.node)
    name: str = topology.node.nodes[nics[0]]["port"].name if nics else "none"
    return name.rpartition("-")[0] or name


def family_of(topology: Topology, nodes: int | None = None) -> str:
    """Return the family of a machine of which a job takes `nodes` nodes (default: all)."""
    link = _scale_up(topology)
    name = link.name if link is not None else "none"
    return name if (nodes or topology.nodes) == 1 else f"{name}+{_network(topology)}"


@cache
def bands(path: Path = TABLE) -> dict[tuple[str, str], Band]:
    """Return the known bands by (family, class)."""
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        for row in csv.DictReader(lines):
            try:
                band = Band(row["family"], True, row["class"], int(row["rows"]),
                            float(row["median"]), float(row["p90"]))  # fmt: skip
            except (KeyError, TypeError, ValueError) as error:
                raise FormatError(f"{path}: row {row}: {error}") from None
            found[band.family, band.kind] = band
    return found


def _apart(a: str, b: str, kin: tuple[set[str], ...]) -> int:
    """Return how unlike two media are: 0 the same, then the first set that holds both."""
    if a == b:
        return 0
    return next((k for k, alike in enumerate(kin, 1) if {a, b} <= alike), len(kin) + 1)


def _distance(link: LinkType | None, network: str, family: str) -> tuple[int, int, float]:
    """Return how far a family is: its network first, then the medium, then the link's rate."""
    name, _, other_network = family.partition("+")
    other = LINKS.get(name)
    medium, rate = (link.medium, link.bandwidth) if link is not None else ("", 1.0)
    far = _apart(medium, other.medium if other is not None else "", _KIN)
    ratio = abs(math.log(rate / other.bandwidth)) if other is not None else math.inf
    return _apart(network, other_network, _NETWORKS), far, ratio


def class_of(size: float) -> str:
    """Return the class of a size in B."""
    return next(kind for kind, (low, high) in CLASSES.items() if low <= size < high)


def band_for(topology: Topology, nodes: int, size: float) -> Band | None:
    """Return the usual error of a prediction for `size` B on `nodes` nodes of a machine.

    Where the machine's own family was never measured, the nearest speaks for it: of one node for
    one node and of several for several; the same kind of network before the same scale-up link,
    and among links of one medium the nearest in bandwidth. None where nothing of the sort is known.
    """
    kind, own, link = class_of(size), family_of(topology, nodes), _scale_up(topology)
    known = bands()
    if (own, kind) in known:
        return known[own, kind]
    network = _network(topology) if nodes > 1 else ""
    others = [b for b in known.values() if b.kind == kind and ("+" in b.family) == (nodes > 1)]
    if not others:
        return None
    nearest = min(others, key=lambda b: (_distance(link, network, b.family), b.family))
    return Band(nearest.family, False, kind, nearest.rows, nearest.median, nearest.p90)
