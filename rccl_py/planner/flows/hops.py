"""What a byte from rank to rank costs every link: the ground on which relayed ways are sought.

Owns Hops. A hop is one message from a rank to another along the fabric's own route; a way through
relays is several hops. Costs are in seconds, so that unlike links can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...fabric import F64, I64, Fabric
from ...links import PROTOCOLS
from ...schedule import I32

__all__ = ["Hops", "hops_of"]


@dataclass(frozen=True, eq=False)
class Hops:
    """Every pair of ranks that a route joins, and what a byte on it costs.

    n: ranks. src, dst : int32[m], in order of (src, dst). row, resource : int64[k], cost :
    float64[k]: hop row[e] keeps resource[e] busy for cost[e] s a byte. nresources: how many there
    are; the first nlinks of them are links of the fabric, then each rank's memory.
    """

    n: int
    src: I32
    dst: I32
    row: I64
    resource: I64
    cost: F64
    nlinks: int

    @property
    def nresources(self) -> int:
        """Links and memories."""
        return self.nlinks + self.n

    @cached_property
    def matrix(self) -> Any:
        """The costs as a sparse matrix: scipy.sparse.csc_array[nresources, m]."""
        from scipy.sparse import csc_array

        shape = self.nresources, len(self.src)
        return csc_array((self.cost, (self.resource, self.row)), shape=shape)

    @cached_property
    def number(self) -> I64:
        """The hop of each pair, -1 where there is none: int64[n, n]."""
        found = np.full((self.n, self.n), -1, dtype=np.int64)
        found[self.src, self.dst] = np.arange(len(self.src))
        return found


def hops_of(fabric: Fabric, protocol: str = "Simple", *, many: bool = True) -> Hops:
    """Return the hops of `fabric`: its routes under `protocol`; many: with every rank serving many.

    A hop reads the sender's memory and writes the receiver's. Flows that choose their way by what
    else is sent are asked for all at once: what they do then is taken for what they do.
    """
    n = fabric.nranks
    ends = np.meshgrid(np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int32), indexing="ij")
    src, dst = (end.ravel() for end in ends)
    keep = src != dst
    src, dst = src[keep], dst[keep]
    keep = fabric.reaches(src, dst)
    src, dst = src[keep], dst[keep]
    routes = fabric.routes(src, dst, np.ones(len(src)))
    pace = fabric.pace[PROTOCOLS[protocol].index, routes.link]
    cost = routes.share * pace / (fabric.spread[routes.link] if n > 3 and many else 1.0)
    each, m = np.full(len(src), 1.0 / fabric.memory), np.arange(len(src))
    return Hops(
        n,
        src,
        dst,
        np.concatenate([routes.row, m, m]).astype(np.int64),
        np.concatenate([routes.link, fabric.nlinks + src, fabric.nlinks + dst]).astype(np.int64),
        np.concatenate([cost, each, each]),
        fabric.nlinks,
    )
