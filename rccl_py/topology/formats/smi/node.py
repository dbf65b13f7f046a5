"""What a pasted text says of a node, before it is a graph.

Owns the shapes that the readers of nvidia-smi, rocm-smi and amd-smi fill in. Knows no graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ....links import Device
from ..xml_tree import Notes
from .page import Page

__all__ = ["FAR", "LEVELS", "Node", "Pair"]

LEVELS = {"PIX": 0, "PXB": 1, "PHB": 2, "C2C": 2, "P2C": 2, "SYS": 3}
"""How far up two devices meet: a switch, a higher one, a CPU, the link between CPUs."""

FAR = frozenset({"PXN", "DIS"})
"""Classes that say two devices have no common host."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What is known of two devices: `kind` is NV, XGMI, UAL (of `lanes`), NVB or a host class."""

    kind: str
    lanes: float = 0.0


@dataclass(slots=True)
class Node:
    """What a text says of a node: GPUs first, then NICs, and pairs (i < j) of both."""

    page: Page
    gpus: list[dict[str, Any]]
    nics: list[str]
    pairs: dict[tuple[int, int], Pair]
    device: Device
    amd: bool = False
    grace: bool = False  # CPUs are NVIDIA Grace
    places: list[str] = field(default_factory=list)  # of GPUs: one text a NUMA node, "" unknown
    notes: Notes = field(default_factory=Notes)

    def vertex(self, index: int) -> str:
        """Return the vertex of device `index`."""
        count = len(self.gpus)
        return f"gpu{index}" if index < count else f"nic{index - count}"
