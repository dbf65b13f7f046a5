"""Links and routes as arrays, for machines: which links a message from rank to rank crosses.

A Fabric is nodes, each a scale-up Domain of one kind or another, and the wiring between their
NICs. Knows no topology file, no schedule, no byte size.
"""

from .alike import loaded
from .domain import Domain
from .fabric import Fabric
from .inside import Found, Hubs, Inside, Listed, Planes, Searched, Wired
from .naming import link_number
from .pairs import crossing_pairs
from .pausing import BEYOND, Pausing
from .peers import peers_inside, plain_inside
from .tables import F64, I64, Routes, Table, expand, firsts

__all__ = [
    "BEYOND",
    "F64",
    "I64",
    "Domain",
    "Fabric",
    "Found",
    "Hubs",
    "Inside",
    "Listed",
    "Pausing",
    "Planes",
    "Routes",
    "Searched",
    "Table",
    "Wired",
    "crossing_pairs",
    "expand",
    "firsts",
    "link_number",
    "loaded",
    "peers_inside",
    "plain_inside",
]
