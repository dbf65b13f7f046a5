"""The network between nodes as arrays: what every kind of it answers, and the pieces they share.

Owns the Wiring protocol. A wiring knows ports (the network side of NICs, numbered from 0),
switches and the links between switches; the cable from a port to its first switch belongs to the
caller. It knows no rank, no node, no byte size and no time. Routes are computed from the numbers
of a port and never stored per pair, so memory follows the entries returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..arguments import text, whole
from ..errors import FabricError, InvalidArgument

__all__ = ["Bundles", "Entries", "Wiring"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]

Bundles = tuple[I64, I64, F64, I64, I64]
"""Columns (from, to, B/s, first link, links) of what joins two switches, by their numbers."""

Entries = tuple[I64, I64, F64]
"""Columns (row, link, share): share of flow number row crosses link; no order is promised."""

ROUTINGS = ("spray", "ecmp", "adaptive")
LINK_LIMIT = 1 << 26  # assumed: 512 MB of bandwidths; 100,000 ports need some 3 million links
FLOW_LIMIT = 4096  # assumed: queue pairs of one connection, far above what any library opens


class Wiring(Protocol):
    """Switches and the links between them, each link one direction."""

    @property
    def bandwidth(self) -> F64:
        """B/s of each link: float64[nlinks]."""
        ...

    @property
    def nlinks(self) -> int:
        """Directed links between switches."""
        ...

    @property
    def nports(self) -> int:
        """Ports that may be a source or a destination."""
        ...

    @property
    def together(self) -> bool:
        """Whether the flows of one routes() call are placed looking at each other."""
        ...

    @property
    def bundled(self) -> bool:
        """Whether links side by side are one: all of a leaf's ways up, for one."""
        ...

    @property
    def sprayed(self) -> Wiring:
        """The same switches under "spray"."""
        ...

    @property
    def layer(self) -> I64:
        """A number for links of which no route crosses two, -1 for others: int64[nlinks].

        So what crosses a layer is bounded by it. All are -1 where a route may change with the
        traffic (adaptive): the links one call leaves out, another can use.
        """
        ...

    @property
    def depth(self) -> I64:
        """Where on its routes a link is, 0 to 3; one number for all that may be anywhere."""
        ...

    @property
    def parts(self) -> dict[str, I64]:
        """Ways to divide the ports that a cut may follow: name -> part of each, int64[nports]."""
        ...

    def routes(self, src: I64, dst: I64, weight: F64 | None = None) -> Entries:
        """Return (row, link, share) of each flow src[i] -> dst[i], ports; none inside one switch.

        weight: float64[k], the relative bytes of each flow; only adaptive routing looks at it.
        Raises FabricError when a flow cannot reach its destination.
        """
        ...

    def switches(self, src: I64, dst: I64) -> I64:
        """Return the switches a shortest path crosses: int64[k], 1 where both share one."""
        ...

    def link_name(self, link: int) -> str:
        """Return what a link joins, for people: ``"leaf3 -> spine7"``."""
        ...

    def switch_name(self, port: int) -> str:
        """Return the switch a port hangs on, as edges() calls it."""
        ...

    @property
    def port_switch(self) -> I64:
        """The switch each port hangs on: int64[nports]."""
        ...

    def bundles(self) -> Bundles:
        """Return what joins the switches: links side by side that routes use alike are one.

        Switches that routes cannot tell apart (the spines of a pod) have one number.
        """
        ...

    @property
    def sides(self) -> dict[str, I64]:
        """Ways to divide the switches of `bundles` that a cut may follow: int64[switches]."""
        ...

    def switch_text(self, switch: int) -> str:
        """Return the name of a switch of `bundles`."""
        ...

    def edges(self) -> Iterator[tuple[str, str, float]]:
        """Return (from, to, B/s) of every link of the switch graph, bundles taken apart."""
        ...


def spread(counts: I64) -> tuple[I64, I64]:
    """Return (row, position): row i counts[i] times, with positions 0..counts[i]-1."""
    row = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return row, np.arange(len(row)) - np.repeat(ends - counts, counts)


def joined(parts: Sequence[Entries]) -> Entries:
    """Return several groups of entries as one."""
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    row, link, share = (np.concatenate(columns) for columns in zip(none, *parts))
    return row, link, share


def ends(src: npt.ArrayLike, dst: npt.ArrayLike, nports: int) -> tuple[I64, I64]:
    """Return both columns of ports as int64[k]; raises InvalidArgument when they are not that."""
    one, two = numbers(src, "src", nports), numbers(dst, "dst", nports)
    if one.shape != two.shape:
        raise InvalidArgument(f"src has {one.size} ports, dst {two.size}: give as many of both")
    return one, two


def numbers(values: npt.ArrayLike, what: str, below: int) -> I64:
    """Return a column of whole numbers in 0..below-1 as int64[k]."""
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InvalidArgument(
            f"{what} is {found.dtype}{list(found.shape)}: one column of whole numbers was expected"
        )
    if found.min() < 0 or found.max() >= below:
        bad = found.min() if found.min() < 0 else found.max()
        raise InvalidArgument(f"{what} {bad}: expected 0 to {below - 1}")
    return found.astype(np.int64)


def weights(values: npt.ArrayLike | None, count: int) -> F64:
    """Return the relative bytes of `count` flows as float64[count]: 1 each when not given."""
    if values is None:
        return np.ones(count)
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"weight: {count} numbers were expected") from None
    if found.shape != (count,) or not (np.isfinite(found) & (found >= 0)).all():
        raise InvalidArgument(f"weight: {count} numbers of 0 or more were expected")
    return found


def rates(values: npt.ArrayLike, what: str, count: int) -> F64:
    """Return `count` bandwidths (B/s, above 0) as float64[count]; one number stands for all."""
    try:
        found = np.asarray(values, dtype=np.float64)
        found = np.full(count, found) if found.ndim == 0 else found
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}: numbers in B/s were expected") from None
    if found.shape != (count,):
        raise InvalidArgument(f"{what} has shape {list(found.shape)}: expected {count} numbers")
    wrong = ~(np.isfinite(found) & (found > 0) & (found <= 1e18))
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidArgument(f"{what}[{at}] {found[at]:g} B/s: expected above 0, at most 1e+18")
    return found


def check_routing(routing: str, seed: int, flows: int) -> None:
    """Raise InvalidArgument when the choice of routes is not one of those known."""
    if text(routing, "routing") not in ROUTINGS:
        raise InvalidArgument(f"routing {routing!r}: expected one of {', '.join(ROUTINGS)}")
    whole(seed, "seed", 0, (1 << 64) - 1)
    whole(flows, "flows", 1, FLOW_LIMIT)


def check_size(nlinks: int, what: str) -> None:
    """Raise FabricError when a network has more links than are held one by one."""
    if nlinks > LINK_LIMIT:
        raise FabricError(
            f"{what}: {nlinks} links are more than {LINK_LIMIT}: use spray, or fewer switches"
        )
