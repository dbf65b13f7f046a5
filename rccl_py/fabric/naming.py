"""Find a link by its name.

Owns the way back from what Fabric.link_name prints to the number. Knows nothing of how names are
made but where a node's stand: on more than one node they begin with ``"node3: "``, and so do a
NIC's cables anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain, islice

from ..arguments import text
from ..errors import InvalidArgument
from .fabric import Fabric

__all__ = ["link_number"]

_LOOKED_AT = 5000  # names compared with one that is unknown: some tenths of a second


def link_number(fabric: Fabric, name: str) -> int:
    """Return the number of the link that Fabric.link_name calls `name`.

    Raises InvalidArgument for a name no link has, with those most like it.
    """
    wanted = text(name, "link").strip()
    for link in _where(fabric, wanted):
        if fabric.link_name(link) == wanted:
            return link
    # Whoever left the node out is shown how it is written.
    others = chain(_of_node(fabric, 0), _where(fabric, wanted))
    known = {fabric.link_name(link): None for link in islice(others, _LOOKED_AT)}
    near = get_close_matches(wanted, list(known), n=3, cutoff=0.0)
    raise InvalidArgument(
        f"{fabric.name} has no link {wanted[:80]!r}: names most like it are "
        f"{', '.join(map(repr, near))}; Fabric.link_name(number) tells each of {fabric.nlinks:,}"
    )


def _where(fabric: Fabric, name: str) -> Iterator[int]:
    """Yield the links that may have this name."""
    found = re.match(r"node([0-9]{1,9}): ", name)
    if found is not None:
        if int(found[1]) < fabric.copies:
            yield from _of_node(fabric, int(found[1]))
        return
    if fabric.copies == 1:
        yield from range(fabric.cables)
    yield from range(fabric.cables + 2 * fabric.ports, fabric.nlinks)


def _of_node(fabric: Fabric, node: int) -> Iterator[int]:
    """Yield the links of a node and its NICs' cables, up and down."""
    yield from range(int(fabric.first_link[node]), int(fabric.first_link[node + 1]))
    if not fabric.ports:
        return
    for first in (fabric.cables, fabric.cables + fabric.ports):
        ports = fabric.first_port[node : node + 2].tolist()
        yield from range(first + ports[0], first + ports[1])
