"""What a machine can carry, in words: of one accelerator, of a node, and between nodes.

Owns which figures are said, and when. Numbers are SI inside and GB/s (1e9 bytes per second, per
direction) in the texts.
"""

from __future__ import annotations

from ..topology.build import Topology
from ..topology.figures import (
    Bisection,
    Rates,
    Spread,
    bisection,
    host_bandwidth,
    host_bisection,
    package_bandwidth,
    scale_out_bandwidth,
    scale_out_bisection,
    scale_up_bandwidth,
)

__all__ = ["gigabytes", "network_rows", "node_rows"]


def gigabytes(rate: float) -> str:
    """Return a rate in GB/s."""
    return f"{rate / 1e9:.4g}" if rate < 1e13 else f"{rate / 1e9:.0f}"


def _rates(found: Rates) -> str:
    return f"{gigabytes(found.raw)} raw, {gigabytes(found.usable)} usable"


def _between(spread: Spread) -> str:
    """Return what the accelerators have: one text where all are alike."""
    least, most = _rates(spread.least), _rates(spread.most)
    return most if least == most else f"{least} to {most}"


def _halved(half: Bisection) -> str:
    least = "" if half.exact else "at most "
    return f"{least}{_rates(Rates(half.raw, half.usable))} ({half.how})"


def network_rows(topology: Topology) -> list[list[str]]:
    """Return what crosses the middle of the network; nothing for one node."""
    if topology.nodes < 2:
        return []
    return [["scale-out, bisection", _halved(scale_out_bisection(topology))]]


def node_rows(topology: Topology) -> list[list[str]]:
    """Return what one accelerator can send, and what crosses the middle of a node."""
    up, out, inside = (scale_up_bandwidth(topology), scale_out_bandwidth(topology),
                       package_bandwidth(topology))  # fmt: skip
    rows, half = [], bisection(topology)
    if up.most.raw:
        rows.append(["scale-up, a GPU", _between(up)])
        if inside is not None and inside != up:
            rows[-1][1] += " (its share of the package's links)"
            rows.append(["inside a package", _between(inside)])
        if topology.gpus_per_node > 1:
            rows.append(["scale-up, bisection", _halved(half)])
    if not half.raw and topology.gpus_per_node > 1:
        # Where scale-up links do not join all GPUs, they meet over the host.
        host = host_bandwidth(topology)
        if host.most.raw:
            rows.append(["PCIe, a GPU", _between(host)])
            rows.append(["PCIe, bisection", _halved(host_bisection(topology))])
    if out.raw:
        rows.append(["scale-out, a GPU", _rates(out)])
    return rows
