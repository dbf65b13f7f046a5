"""How far off a prediction usually is: the errors measured on machines of the same family.

Owns families of machines, the rule which family is nearest, and the table of errors
(bands.csv, written by ``rccl-validate --bands``). Knows no prediction and no measured table.

A family is the link that joins accelerators and, for several nodes, the kind of their network:
"nvlink4", "nvlink4+ib", "xgmi-mi300+roce", "pcie5-x16".
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..errors import FormatError
from ..links import LINKS, LinkType
from ..links.kinds import GB
from ..topology import Topology
from ..topology.build import gpus_of, nics_of

__all__ = ["ALL", "CLASSES", "LEAST", "PEAK", "Band", "band_for", "bands", "class_of", "family_of",
           "port_of"]  # fmt: skip

CLASSES: dict[str, tuple[float, float]] = {
    "< 64 KiB": (0, 64 << 10),
    "64 KiB - 1 MiB": (64 << 10, 1 << 20),
    ">= 1 MiB": (1 << 20, math.inf),
}
"""Classes of sizes in B: from, and below."""

PEAK = "peak"
"""The class of the largest size of every table."""

ALL = "all"
"""In place of a collective: all that were measured."""

LEAST = 4
"""Measured sizes that a band should stand on."""

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

    family: whose tables say so; exact: whether that is the machine's own family. collective: of
    that alone, or ALL; collectives: those that were measured. kind: the class of sizes. tables,
    rows: how many tables and measured sizes stand behind it. half: of the tables, "a" is what the
    model was fitted on. port: B/s that an accelerator of the family has to others.
    """

    family: str
    exact: bool
    collective: str
    kind: str
    tables: int
    rows: int
    median: float
    p90: float
    half: str = "b"
    port: float = 0.0
    collectives: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.collectives)
        which = f"of other collectives: {names}" if self.collective == ALL else self.collective
        fitted = ", fitted on" if "a" in self.half else ""
        near = "" if self.exact else ", the nearest family measured"
        return (f"error {self.median:.0%} (median), {self.p90:.0%} (p90) on "
                f"{self.rows} size{'s' * (self.rows != 1)} {self.kind} of "
                f"{self.tables} table{'s' * (self.tables != 1)} of {self.family} "
                f"({which}{fitted}){near}, as libraries choose (--policy)")  # fmt: skip


Bands = dict[tuple[str, str, str], Band]
"""Bands by family, collective or ALL, and class of sizes."""


def _scale_up(topology: Topology) -> tuple[LinkType | None, float]:
    """Return the link that gives the accelerators the most bandwidth, without host and NICs.

    And the B/s that an accelerator has over all its links of that kind, the mean over a node.
    """
    total: dict[str, float] = {}
    links: dict[str, LinkType] = {}
    gpus = set(gpus_of(topology.node))
    for a, _, data in topology.node.edges(data=True):
        link: LinkType = data["link"]
        if a in gpus:
            total[link.name] = total.get(link.name, 0.0) + data["bandwidth"]
            links[link.name] = link
    inside = {name: rate for name, rate in total.items() if links[name].medium != "pci"} or total
    if not inside:
        return None, 0.0
    name = max(inside, key=lambda name: inside[name])
    return links[name], inside[name] / len(gpus)


def port_of(topology: Topology) -> float:
    """Return the B/s that an accelerator has to the others of its node, over all its links."""
    return _scale_up(topology)[1]


def _network(topology: Topology) -> str:
    """Return the kind of network, without its rate: "roce" of roce-400g."""
    nics = nics_of(topology.node)
    name: str = topology.node.nodes[nics[0]]["port"].name if nics else "none"
    return name.rpartition("-")[0] or name


def family_of(topology: Topology, nodes: int | None = None) -> str:
    """Return the family of a machine of which a job takes `nodes` nodes (default: all)."""
    link, _ = _scale_up(topology)
    name = link.name if link is not None else "none"
    return name if (nodes or topology.nodes) == 1 else f"{name}+{_network(topology)}"


def _band(row: dict[str, str]) -> Band:
    """Return the band of a row of the table, without the collectives of others."""
    return Band(row["family"], True, row["collective"], row["class"], int(row["tables"]),
                int(row["rows"]), float(row["median"]), float(row["p90"]), row["half"],
                float(row["port_GBps"]) * GB, (row["collective"],))  # fmt: skip


@cache
def bands(path: Path = TABLE) -> Bands:
    """Return the known bands by family, collective or ALL, and class."""
    found: Bands = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        for row in csv.DictReader(lines):
            try:
                band = _band(row)
            except (KeyError, TypeError, ValueError) as error:
                raise FormatError(f"{path}: row {row}: {error}") from None
            found[band.family, band.collective, band.kind] = band
    return {key: _with_collectives(band, found) for key, band in found.items()}


def _with_collectives(band: Band, known: Bands) -> Band:
    """Return a band of all collectives with their names: those that have bands of that half."""
    if band.collective != ALL:
        return band
    names = [c for (family, c, kind), other in known.items()
             if (family, kind) == (band.family, band.kind) and c != ALL
             and (band.half != "b" or other.half == "b")]  # fmt: skip
    return replace(band, collectives=tuple(names))


def class_of(size: float) -> str:
    """Return the class of a size in B."""
    return next(kind for kind, (low, high) in CLASSES.items() if low <= size < high)


def _apart(a: str, b: str, kin: tuple[set[str], ...]) -> int:
    """Return how unlike two media are: 0 the same, then the first set that holds both."""
    if a == b:
        return 0
    return next((k for k, alike in enumerate(kin, 1) if {a, b} <= alike), len(kin) + 1)


def _nearest(topology: Topology, nodes: int, known: Bands) -> list[str]:
    """Return the families of one node, or of several, the nearest first: the sizes do not matter.

    Those with the most classes of sizes come first; then the network and the scale-up medium, how
    unlike they are added up, the network where that is equal; then the bandwidth of a port.
    """
    link, port = _scale_up(topology)
    medium = link.medium if link is not None else ""
    network = _network(topology) if nodes > 1 else ""
    classes: dict[str, set[str]] = {}
    ports: dict[str, float] = {}
    for band in known.values():
        if ("+" in band.family) == (nodes > 1):
            classes.setdefault(band.family, set()).add(band.kind)
            ports[band.family] = band.port

    def distance(family: str) -> tuple[int, int, int, float, str]:
        name, _, other_network = family.partition("+")
        other = LINKS[name].medium if name in LINKS else ""
        net, far = _apart(network, other_network, _NETWORKS), _apart(medium, other, _KIN)
        both = port > 0 and ports[family] > 0
        ratio = abs(math.log(port / ports[family])) if both else math.inf
        return -len(classes[family]), net + far, net, ratio, family

    return sorted(classes, key=distance)


def band_for(topology: Topology, nodes: int, size: float, collective: str) -> Band | None:
    """Return the usual error of a prediction for `size` B on `nodes` nodes of a machine.

    Of the machine's own family, and there of the collective, else of all that were measured. Where
    the family was never measured at such sizes, the nearest speaks for it, the same for all sizes
    and collectives: of one node for one node and of several for several. A few sizes are no
    estimate of an error: bands of fewer than LEAST are passed over while there are others. None
    where nothing of the sort is known.
    """
    kind, own, known = class_of(size), family_of(topology, nodes), bands()
    families = (own, *_nearest(topology, nodes, known))
    for least in (LEAST, 1):
        for family in families:
            for which in (collective, ALL):
                band = known.get((family, which, kind))
                if band is not None and band.rows >= least:
                    return replace(band, exact=family == own)
    return None
