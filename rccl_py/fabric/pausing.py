"""Links that stop those who feed them: which they are, and what comes before what on a route.

Owns the order of links that back-pressure goes by. Where a receiver, or a link on the way, takes
less than is sent, a lossless Ethernet does not drop: switches pause the links that feed it (PFC,
IEEE 802.1Qbb), and a paused link holds back all it carries, what goes elsewhere too. Knows no
message and no time.

    own links | cable up | wiring, tier by tier | cable down | own links
    depth 0   | 1        | 2, 3, 4, 5           | 6          | 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .tables import I64

if TYPE_CHECKING:
    from .fabric import Fabric

__all__ = ["BEYOND", "Pausing", "pausing_of"]

I8 = npt.NDArray[np.int8]
BEYOND = 7
"""Depth of what is past the network: own links of the receiver's node, and the receiver."""


@dataclass(frozen=True, eq=False, slots=True)
class Pausing:
    """pauses : bool[nlinks], links that are paused by those after them on a route.

    depth : int8[nlinks], how far on a route between nodes a link is; own links count as the
    sender's. node : int64[nlinks], whose own link it is, -1 for the network's.
    """

    pauses: npt.NDArray[np.bool_]
    depth: I8
    node: I64

    def along(self, link: I64, source: npt.NDArray[np.integer]) -> I8:
        """Return how far each link is for a message that leaves node `source`: int8[k]."""
        own = self.node[link]
        return np.where((own >= 0) & (own != source), np.int8(BEYOND), self.depth[link])


def pausing_of(fabric: Fabric) -> Pausing | None:
    """Return the pausing links of `fabric`; None where there is none.

    The wiring pauses where any of its NICs do: it is of their kind.
    """
    if fabric.wiring is None or not any(d.port_pauses.any() for d in fabric.domains):
        return None
    own, ports, wired = fabric.cables, fabric.ports, fabric.wiring.nlinks
    cable = np.concatenate([fabric.domains[k].port_pauses for k in fabric.kind.tolist()])
    pauses = np.concatenate([np.zeros(own, bool), cable, cable, np.ones(wired, bool)])
    depth = np.repeat(np.array([0, 1, BEYOND - 1, 2], np.int8), [own, ports, ports, wired])
    depth[own + 2 * ports :] += fabric.wiring.depth.astype(np.int8)
    node = np.full(len(depth), -1)
    node[:own] = np.repeat(np.arange(fabric.copies), np.diff(fabric.first_link))
    return Pausing(pauses, depth, node)
