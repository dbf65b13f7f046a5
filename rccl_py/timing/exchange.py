"""Time of messages posted together: sends and receives of a group, and uneven collectives.

Owns the estimate of one exchange. Like a phase of a schedule (rccl_py.timing.estimate), but with
bytes instead of slots: T = launch + latency + messages + max(busiest link, memory).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric
from ..links import PROTOCOLS
from ..schedule import I32

__all__ = ["Exchange", "exchange"]


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """seconds: from the call to the last byte. busy: float64[nlinks], s each link is used."""

    seconds: float
    busy: F64
    protocol: str


def exchange(
    fabric: Fabric,
    src: I32,
    dst: I32,
    size: npt.NDArray[np.int64],
    protocols: tuple[str, ...] = tuple(PROTOCOLS),
) -> Exchange:
    """Return the time of messages src[i] -> dst[i] of size[i] bytes, all posted at once.

    The fastest of `protocols` is taken. A message to oneself is a copy in memory.
    """
    n = fabric.nranks
    src, dst = np.asarray(src, dtype=np.int32), np.asarray(dst, dtype=np.int32)
    far = src != dst
    memory = np.bincount(src, weights=size, minlength=n)
    memory += np.bincount(dst, weights=size, minlength=n)
    local = float(memory.max(initial=0.0)) / fabric.memory
    busy = np.zeros(fabric.nlinks)
    if not far.any():
        return Exchange(fabric.launch + local, busy, next(iter(protocols)))
    there, back = src[far], dst[far]
    routes = fabric.routes(there, back)
    load = size[far][routes.row] * routes.share
    busy = np.bincount(routes.link, weights=load, minlength=fabric.nlinks) / fabric.bandwidth
    latency = fabric.latency(there, back).max(axis=1)
    spent = np.bincount(there, weights=fabric.message(there, back), minlength=n).max()
    found = {
        name: float(latency[p.index] + max(busy.max() * p.wire, local))
        for name, p in PROTOCOLS.items()
        if name in protocols
    }
    best = min(found, key=lambda name: found[name])
    seconds = fabric.launch + float(spent) + found[best]
    return Exchange(seconds, busy * PROTOCOLS[best].wire, best)
