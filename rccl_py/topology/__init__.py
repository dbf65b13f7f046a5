"""Machines: builders, file readers, and lowering to the arrays of a Fabric.

The only package that imports networkx.
"""

from .build import Network, Topology
from .load import load, machine_names
from .lower import lower

__all__ = ["Network", "Topology", "load", "lower", "machine_names"]
