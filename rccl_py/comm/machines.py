"""From what people name a machine by to the fabric ranks are placed on.

Owns the default machine and the choice of accelerators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import whole
from ..errors import InvalidArgument, InvalidUsage
from ..fabric import Fabric
from ..units import LARGEST

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["is_job", "machine_for", "placed"]

_NODE, _SIZE = "mi300x-8", 8


def is_job() -> bool:
    """Return whether this process is one of several of an MPI job that has begun."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return False
    return bool(mpi.COMM_WORLD.Get_size() > 1)


def machine_for(topology: str | Path | Topology | None, nranks: int) -> Topology:
    """Return the machine of a name, a file or a Topology; None: MI300X nodes for so many ranks."""
    from ..topology import Topology, load  # with networkx: only who reads a machine pays for it

    if isinstance(topology, Topology):
        return topology
    if topology is not None:
        return load(topology)
    nodes = -(-nranks // _SIZE)
    return load(_NODE) if nodes <= 1 else load(_NODE, nodes=nodes)


def placed(machine: Topology, ranks: int | Sequence[int] | None) -> Fabric:
    """Return the fabric of the first so many accelerators of a machine, or of those listed.

    Raises InvalidArgument for an accelerator there is not, InvalidUsage for one listed twice.
    """
    from ..topology import lower

    listed: Any = ranks
    if ranks is None or isinstance(ranks, int) or not hasattr(ranks, "__len__"):
        if ranks is not None:
            # Too many is lower()'s to refuse: it knows the way out.
            too_many = isinstance(ranks, int) and ranks > machine.ngpus
            limit = LARGEST if too_many else machine.ngpus
            listed = whole(ranks, f"{machine.name}: nranks", 1, limit)
        return lower(machine, listed)
    if isinstance(ranks, (str, bytes)):
        raise InvalidArgument(f"{machine.name}: nranks {ranks!r}: a number or a list was expected")
    listed = [whole(r, f"{machine.name}: accelerator", 0, LARGEST) for r in ranks]
    twice = sorted({r for r in listed if listed.count(r) > 1}) if len(listed) < 4096 else []
    if twice:
        raise InvalidUsage(
            f"{machine.name}: accelerator {twice[0]} is listed twice: two ranks on one device "
            "are not allowed"
        )
    return lower(machine, listed)
