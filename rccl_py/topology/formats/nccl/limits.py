"""What of a machine the NCCL/RCCL topology XML has no place for.

Owns the refusals; plan.py makes elements of what is left.
"""

from __future__ import annotations

from collections import Counter

from ...build import Topology
from .pci_levels import refused

__all__ = ["require_expressible"]

_LIMIT = 640  # NCCL holds 640 of a kind


def require_expressible(topology: Topology) -> None:
    """Refuse vertices and edges that have no counterpart in the format."""
    graph = topology.node
    kinds = Counter(data["kind"] for _, data in graph.nodes(data=True))
    for kind, count in kinds.items():
        if kind not in ("gpu", "nic", "cpu", "pci", "switch"):
            raise refused(topology, f"it has vertices of kind {kind}")
        if kind in ("gpu", "nic", "cpu") and count > _LIMIT:
            raise refused(topology, f"{count} of kind {kind}: NCCL holds {_LIMIT}")
    if "relay" in graph.graph:
        raise refused(topology, "its accelerators relay for each other (a torus)")
    if not kinds["gpu"]:
        raise refused(topology, "it has no accelerator")
    for a, b, data in graph.edges(data=True):
        if not graph.has_edge(b, a):
            raise refused(topology, f"{a} -> {b} has no way back")
        back = graph.edges[b, a]
        if data["link"] != back["link"] or data["lanes"] != back["lanes"]:
            raise refused(topology, f"{a} -> {b} and its way back carry different links")
        usable = data["link"].bandwidth * data["lanes"] * data["link"].efficiency
        if abs(data["bandwidth"] - usable) > 1e-6 * usable:
            raise refused(topology, f"{a} -> {b} carries {data['bandwidth']:g} B/s, its link "
                                    f"{usable:g}: give it a link of its own")  # fmt: skip
        packaged = a.startswith("package") or b.startswith("package")
        kinds_here = {graph.nodes[a]["kind"], graph.nodes[b]["kind"]}
        if kinds_here == {"gpu", "nic"} or (kinds_here == {"switch"} and not packaged):
            raise refused(topology, f"{a} is joined to {b} directly")
