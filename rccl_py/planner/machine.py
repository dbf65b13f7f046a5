"""From what people name a machine by to the fabric that is planned on: the planner's door.

Owns what counts as a machine here. Names and files are rccl_py.topology's, which is loaded when one
is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidArgument
from ..fabric import Fabric

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["fabric_for"]


def fabric_for(machine: Fabric | Topology | str | Path, asker: str) -> Fabric:
    """Return a fabric as it is, or that of a Topology, a machine's name or a file, all its ranks.

    asker: who was given it, for messages. Raises InvalidArgument for anything else.
    """
    if isinstance(machine, Fabric):
        return machine
    from ..topology import Topology, load, lower

    if isinstance(machine, (str, Path)):
        return lower(load(machine))
    if isinstance(machine, Topology):
        return lower(machine)
    raise InvalidArgument(
        f"{asker}: {machine!r} is a {type(machine).__name__}: a machine's name, a file, a Topology "
        "or a Fabric was expected, such as 'mi300x-8' or lower(load('mi300x-8'), 4)"
    )
