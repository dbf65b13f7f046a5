"""Links and routes as arrays, for machines: which links a message from rank to rank crosses.

A Fabric is nodes, each a scale-up Domain of one kind or another, and the network between them.
Knows no topology file, no schedule, no byte size.
"""

from .fabric import F64, Domain, Fabric, Routes, Table, expand

__all__ = ["F64", "Domain", "Fabric", "Routes", "Table", "expand"]
