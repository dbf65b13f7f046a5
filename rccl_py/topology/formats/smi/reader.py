"""Topologies as pasted in bug reports: nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology.

Owns which of the three a text holds. Knows nothing of what their cells mean.
"""

from __future__ import annotations

from pathlib import Path

from ...build import Topology
from . import nvidia, rocm, tables
from .graph import topology_of_node
from .page import Page, cleaned, read_page

__all__ = ["is_smi_text", "read_smi_text"]

_SNIFF = 64 << 10  # characters looked at to tell the format


def is_smi_text(text: str) -> bool:
    """Return whether `text` holds such a topology, by its first 64 Ki characters."""
    start = text[:_SNIFF].lstrip("\ufeff")
    if start.lstrip()[:1] == "<":
        return False  # XML, whatever its text says
    page = Page(Path(), tuple(cleaned(line) for line in start.split("\n")))
    return bool(tables.find_tables(page) or tables.find_json(page) or nvidia.find_matrix(page))


def read_smi_text(path: Path) -> Topology:
    """Return the node whose topology is pasted in the text file at `path`.

    What the text leaves open (device, PCIe generation, NIC speed, CPU link, links side by side)
    is assumed by rules that Topology.notes tells. Raises FormatError (file, line, what is wrong).
    """
    page = read_page(path)
    if tables.find_tables(page) or tables.find_json(page):
        return topology_of_node(rocm.read_tables(page))
    heads = nvidia.find_matrix(page)
    if heads:
        return topology_of_node(nvidia.read_matrix(page, heads))
    raise page.error(
        1,
        "no topology found: expected the output of nvidia-smi topo -m, rocm-smi --showtopo or "
        "amd-smi topology, with its head line and rows",
    )
