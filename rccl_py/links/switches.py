"""Switches and hops, one row a kind: seconds from port to port and what all ports carry.

Owns figures only. Machines give the `hop` of their own switches; these are what to give.
"""

from __future__ import annotations

from .kinds import Switch

__all__ = ["SWITCHES"]

NS = 1e-9
TERABIT = 1e12 / 8


def _rows(*switches: Switch) -> dict[str, Switch]:
    return {s.name: s for s in switches}


SWITCHES: dict[str, Switch] = _rows(
    Switch("ualink-25t", 150 * NS, 25.6 * TERABIT, "G"),
    Switch("ualink-50t", 200 * NS, 51.2 * TERABIT, "G"),
    Switch("ualink-100t", 250 * NS, 102.4 * TERABIT, "G"),
    Switch("tomahawk-ultra", 250 * NS, 51.2 * TERABIT, "O"),
    Switch("tomahawk-5", 700 * NS, 51.2 * TERABIT, "R (600-800)"),
    Switch("tomahawk-6", 700 * NS, 102.4 * TERABIT, "R (600-800)"),
    Switch("spectrum-4", 650 * NS, 51.2 * TERABIT, "R (500-800)"),
    Switch("nvswitch-2", 100 * NS, 36 * 25e9, "N; hop assumed (100-200)"),
    Switch("nvswitch-3", 100 * NS, 64 * 25e9, "N; hop assumed (100-200)"),
    Switch("nvswitch-4", 100 * NS, 72 * 50e9, "N; hop assumed (100-200)"),
    Switch("quantum", 130 * NS, 8.0 * TERABIT, "R"),
    Switch("quantum-2", 330 * NS, 25.6 * TERABIT, "R (150-330)"),
    Switch("quantum-x800", 330 * NS, 115.2 * TERABIT, "N; hop assumed as quantum-2"),
    Switch("rosetta", 350 * NS, 12.8 * TERABIT, "S"),
    Switch("pcie-switch", 150 * NS, 0.0, "R (100-150)"),
    # A posted write through a root complex takes 0.5 to 1 us in all; the complex's own part.
    Switch("root-complex", 400 * NS, 0.0, "assumed from R"),
    Switch("ocs", 0.0, 0.0, "assumed: light is switched, only the fibre's 5 ns a metre remain"),
)
