"""What readers of the operating system's files share: PCIe widths, link counts, GPUs in parts.

Owns how a rate that a file gives becomes a row of LINKS and a number of links, and how the
partitions of one GPU hang together in the graph. Knows no file and no line: whatever it assumes is
returned as a remark.

    gpu0 --.                        .-- gpu8        package0 is the fabric inside one GPU; its
    gpu1 --+-- package0 ==xgmi== package1 --+--     partitions share its xGMI links and its PCIe.
    ...  --'                        '-- ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx

from ...links import LINKS, Device, LinkType
from ..build import add_link

__all__ = [
    "add_package",
    "assumed_pcie",
    "join_packages",
    "links_of",
    "nvlinks_of",
    "part_of",
    "pcie_of",
    "pcie_of_transfers",
]

_TRANSFERS = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # GT/s a lane, PCI-SIG
_SLACK = 1.02  # files round their rates in other places than links does

PACKAGE_RATE = 819.2e9
"""B/s between two partitions of a GPU: what amdgpu's kfd reports for them (819200 MB/s)."""
_PACKAGE_EFFICIENCY = 0.385
"""8 CPX ranks of one MI300X: tuned all_reduce 315 GB/s busbw (AMD ROCm blog) of those 819.2."""

# Product data sheets: the PCIe generation of an accelerator whose file does not say it.
_PCIE = {
    "mi50": 4, "mi100": 4, "mi250x": 4, "a100": 4, "a10": 4, "l40s": 4,
    "mi300a": 5, "mi300x": 5, "mi325x": 5, "mi355x": 5, "navi4x": 5, "h100": 5, "b200": 5,
    "mi455x": 6,
}  # fmt: skip


# NVLinks of one device: NVIDIA's data sheets (A10: the bridge of RTX 30 cards); 18 since H100.
_NVLINKS = {"p100": 4, "v100": 6, "a100": 12, "a10": 4, "h800": 8} | dict.fromkeys(
    ("h100", "h200", "gh200", "b200", "gb200", "b300", "gb300"), 18
)


def nvlinks_of(device: Device, largest: float) -> float:
    """Return how many NVLinks `device` has; of an unknown one, `largest`, what a pair shows."""
    return max(float(_NVLINKS.get(device.name, 0)), largest)


def _row(generation: int) -> LinkType:
    return LINKS[f"pcie{generation}-x16"]


def _sixteenths(share: float) -> float:
    """Return `share` of an x16 link, as whole lanes where it is as good as that."""
    lanes = round(share * 16)
    return lanes / 16 if lanes and abs(share * 16 / lanes - 1) < _SLACK - 1 else share


def pcie_of(rate: float) -> tuple[LinkType, float]:
    """Return the row of a PCIe link of `rate` B/s after line coding, and how many x16 it is.

    16 GB/s may be gen 3 x16 or gen 4 x8: they are equally fast, so the older one is taken.
    """
    row = next((r for r in map(_row, _TRANSFERS) if r.bandwidth * _SLACK >= rate), _row(6))
    return row, _sixteenths(rate / row.bandwidth)


def pcie_of_transfers(rate: float) -> tuple[LinkType, float]:
    """Return the same for `rate` B/s before line coding (lanes x GT/s / 8), as amdgpu gives it."""
    full = {generation: speed * 2e9 for generation, speed in _TRANSFERS.items()}
    generation = next((g for g, most in full.items() if most * _SLACK >= rate), 6)
    return _row(generation), _sixteenths(rate / full[generation])


def assumed_pcie(device: Device) -> LinkType:
    """Return the PCIe x16 row of a device whose file does not give its link."""
    return _row(_PCIE.get(device.name, 3))


def links_of(rate: float, row: LinkType) -> tuple[float, str]:
    """Return how many links of `row` make `rate` B/s, and a remark where that is no whole number.

    Within 5 % of a whole number is that number; else the share is kept (a link that lost lanes).
    """
    exact = rate / row.bandwidth
    count = round(exact)
    if count and abs(exact / count - 1) <= 0.05:
        return count, ""
    return exact, (
        f"{rate / 1e9:g} GB/s is no whole number of {row.name} links "
        f"({row.bandwidth / 1e9:g} GB/s): taken as {exact:.3g} links"
    )


def part_of(device: Device, parts: int) -> Device:
    """Return one of `parts` equal partitions of `device`: its share of the memory's rate."""
    if parts == 1:
        return device
    return replace(
        device, title=f"{device.title}, 1/{parts} partition", memory=device.memory / parts
    )


def _scaled(graph: nx.DiGraph, a: str, b: str, row: LinkType, share: float) -> None:
    """Give both directions of a link `share` of the hand-shake of `row`."""
    ll, ll128, simple = row.latency
    for edge in ((a, b), (b, a)):
        graph.edges[edge]["latency"] = (ll * share, ll128 * share, simple * share)


def add_package(
    graph: nx.DiGraph, hub: str, partitions: Sequence[str], row: LinkType, rate: float = 0.0
) -> None:
    """Join the `partitions` of one GPU to a new vertex `hub`, the fabric inside its package.

    rate: raw B/s of one partition, 0 for what amdgpu reports. row: the xGMI between packages, of
    whose hand-shake each way in or out costs a quarter and each xGMI link a half (assumed): a
    transfer inside a package costs half a hand-shake, one between packages a whole.
    """
    own = replace(
        row,
        name="xgmi-package",
        bandwidth=rate or PACKAGE_RATE,
        efficiency=_PACKAGE_EFFICIENCY,
    )
    graph.add_node(hub, kind="switch", host=0)
    for gpu in partitions:
        add_link(graph, gpu, hub, own)
        _scaled(graph, gpu, hub, row, 0.25)


def join_packages(graph: nx.DiGraph, a: str, b: str, row: LinkType, links: float) -> None:
    """Join GPUs or packages `a` and `b`; what leads through a hub pays its part there."""
    add_link(graph, a, b, row, links)
    hubs = sum(graph.nodes[v]["kind"] == "switch" for v in (a, b))
    if hubs:
        _scaled(graph, a, b, row, 1 - 0.25 * hubs)
