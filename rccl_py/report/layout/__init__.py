"""Where things stand in a machine's picture, on up to three panels; no colours, no painter.

report.draw paints the panels with matplotlib, report.html as SVG.
"""

from __future__ import annotations

from ...topology.build import Topology
from ..words import machine_words
from .host import host_panel
from .network import network_panel
from .parts import Box, Line, Panel, Text, gigabytes, letters
from .scale_up import scale_up_panel

__all__ = ["Box", "Line", "Panel", "Text", "gigabytes", "headline", "letters", "panels_of"]


def headline(topology: Topology) -> str:
    """Return what a machine is, in a few words."""
    text = machine_words(topology)
    return f"{text}, {topology.nodes} nodes" if topology.nodes > 1 else text


def panels_of(topology: Topology) -> list[Panel]:
    """Return the panels that show `topology`: scale-up, host, scale-out; those that it has."""
    found = [scale_up_panel(topology.node), host_panel(topology.node), network_panel(topology)]
    return [panel for panel in found if panel is not None]
