"""Files that describe machines, one module a format: what each text means as a Topology.

load.py asks the table here which format a file has. New format: one module, one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..build import Topology

__all__ = ["FORMATS", "WRITERS", "Format", "format_of", "root_of"]

_HEAD = 1 << 16  # characters looked at to tell a format


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what people call it, and where its sniffer and reader are.

    fits: of `module`, says from a text's head whether it has this format; "" where the XML root
    element `root` decides. read: of `module`, takes the path and returns a Topology.
    """

    name: str
    what: str
    module: str
    read: str
    fits: str = ""
    root: str = ""

    def _from(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(f".{self.module}", __name__), name)
        return found

    def accepts(self, head: str, root: str) -> bool:
        """Return whether a text that begins like this, with this XML root, has this format."""
        return root == self.root if self.root else bool(self._from(self.fits)(head))

    def reader(self) -> Callable[[Path], Topology]:
        """Return the reader."""
        return self._from(self.read)


FORMATS = (
    Format("nccl-xml", "NCCL/RCCL topology XML", "nccl.reader", "read_nccl_xml", root="system"),
    Format("hwloc", "hwloc XML (lstopo)", "hwloc.reader", "read_hwloc", root="topology"),
    Format("simgrid", "SimGrid platform XML", "simgrid.reader", "read_simgrid", root="platform"),
    Format("graphs.graphml", "GraphML", "graphs.graphml", "read_graphml", root="graphml"),
    Format("json", "networkx node-link JSON", "graphs.node_link", "read_node_link", "is_node_link"),
    Format("smi", "nvidia-smi / rocm-smi / amd-smi text", "smi.reader", "read_smi_text",
           "is_smi_text"),
    Format("ns3", "ns-3 / SimAI topology text", "ns3", "read_ns3", "is_ns3"),
    Format("htsim", "htsim .topo text", "htsim", "read_htsim", "is_htsim"),
    Format("astra-sim", "ASTRA-sim network YAML", "astra_sim", "read_astra_sim", "is_astra_sim"),
)  # fmt: skip
"""Every format of a file but our own YAML, which is what none of these is."""

WRITERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "nccl-xml": ("nccl.writer", "write_nccl_xml", (".xml",)),
    "graphml": ("graphs.graphml", "write_graphml", (".graphml",)),
    "json": ("graphs.node_link", "write_node_link", (".json",)),
}
"""name -> (module, function from a Topology to text, file endings)."""


def root_of(head: str) -> str:
    """Return the name of an XML text's root element, "?" if it has none yet, "" if no XML."""
    text = head.lstrip("\ufeff \t\r\n")
    if not text.startswith("<"):
        return ""
    while True:
        if text.startswith("<!--"):
            _, found, text = text.partition("-->")
        elif text.startswith("<?"):
            _, found, text = text.partition("?>")
        elif text.startswith("<!"):
            _, found, text = text.partition(">")
        else:
            name = re.match(r"<([A-Za-z_][\w.:-]*)", text)
            return name[1].rpartition(":")[2] if name else "?"
        text = text.lstrip()
        if not found or not text:
            return "?"


def format_of(text: str) -> Format | None:
    """Return the format of a text; None for our own YAML (and for what nothing else fits)."""
    head = text[:_HEAD]
    root = root_of(head)
    found = next((f for f in FORMATS if f.accepts(head, root)), None)
    # An XML of another kind is told what was expected by the reader of the usual one.
    return FORMATS[0] if found is None and root else found
