"""What a buffer costs the first time a link sees it: pin, map, translate; nothing afterwards.

Owns the registration rows and `first_touch`. A communicator that knows a buffer (registered, or
seen before) reads and writes it in place, so later calls pay nothing: the figures are those of the
first. Knows no communicator and no cache of its own.

    pin        the host's pages are locked (host memory only)
    map        the other end's page table or the NIC's translation table gets an entry a page
    translate  the first access to a page misses at the destination: one walk of its table
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil, inf
from typing import TypeVar

from ..arguments import finite, whole
from ..errors import InvalidArgument
from .devices import DEVICES
from .kinds import GB, US, Device, LinkType
from .table import LINKS

__all__ = ["REGISTRATIONS", "Registration", "first_call", "first_touch", "registration"]


@dataclass(frozen=True, slots=True)
class Registration:
    """How memory is made known to the far end of a kind of link.

    call: s of the call itself. per_page: s for each page's entry (host memory: pinning, too).
    rate: B/s at which the tables below an entry are filled. page: largest page, B, an entry can
    stand for. walk: s of one missed translation at the destination; `walks` of them overlap.
    most: B that are ever registered, where data goes through a buffer of fixed size instead of
    from and to the user's own (then `zero_copy` is False).
    """

    name: str
    call: float
    per_page: float
    rate: float
    page: int
    walk: float
    walks: int
    source: str
    most: float = inf

    @property
    def zero_copy(self) -> bool:
        """Whether later calls move data from and to the buffer itself."""
        return self.most == inf


_KIB, _MIB = 1 << 10, 1 << 20

# W gives two equations: a page costs a, and each 4 KiB of a page b. 1.5 TiB in 4 KiB pages:
# a + b = 0.60 us; in 2 MiB pages: a / 512 + b = 0.24 us. So b = 0.24 us (17 GB/s), a = 0.36 us.
_PER_PAGE, _RATE = 0.36 * US, 17 * GB

REGISTRATIONS: dict[str, Registration] = {
    r.name: r
    for r in (
        # Scale-up: an IPC handle is opened, its pages enter the peer's page table. Device memory
        # is resident, so nothing is pinned; an entry is taken to cost what a host page does.
        Registration(
            "peer", 197 * US, _PER_PAGE, 0.0, 2 * _MIB, 1 * US, 32, "Y; entries as W; walk assumed"
        ),
        # Network: the NIC's translation table; GPU pages are 64 KiB there.
        Registration(
            "nic", 50 * US, _PER_PAGE, 0.0, 64 * _KIB, 1 * US, 32, "X, AA; entries as W, Z; walk "
            "assumed"
        ),
        # Through host memory: the bounce buffer's pages are pinned and mapped for the device.
        Registration(
            "host", 50 * US, _PER_PAGE, _RATE, 4 * _KIB, 1 * US, 32, "W; call assumed as X; size "
            "assumed: NCCL's 4 MiB a channel, 16 channels", most=64 * _MIB,
        ),
    )
}  # fmt: skip


def registration(device: Device, link: LinkType) -> Registration:
    """Return which way of registering `link` needs for memory of `device`."""
    if link.medium in ("net", "ici"):
        return REGISTRATIONS["nic"]
    if link.coherent or (link.medium == "pci" and device.p2p):
        return REGISTRATIONS["peer"]
    return REGISTRATIONS["host"]


_Row = TypeVar("_Row", Device, LinkType)


def _row(table: Mapping[str, _Row], asked: _Row | str, what: str) -> _Row:
    """Return a row of a table by its name; a row stands for itself."""
    if isinstance(asked, str):
        if asked not in table:
            near = ", ".join(get_close_matches(asked, table, n=3, cutoff=0.4)) or "docs/links.md"
            raise InvalidArgument(f"{what} {asked!r} is not known: see {near}")
        return table[asked]
    if not isinstance(asked, (Device, LinkType)):
        raise InvalidArgument(f"{what} {asked!r}: a name of docs/links.md or a row was expected")
    return asked


def first_touch(
    device: Device | str, link: LinkType | str, nbytes: float, *, page: int | None = None
) -> float:
    """Return the seconds a buffer of `nbytes` costs before its first use over `link`.

    Later uses of the same buffer cost nothing. Without data there is nothing to register: 0. Where
    data bounces off host memory it is the bounce buffer that is pinned, once, not the user's.

    Parameters
    ----------
    device, link : a row, or its name in docs/links.md
    page : int, optional
        B of the pages the buffer lies in, a power of two from 4 KiB; without it the device's.
        An entry never stands for more than the link's table allows.

    Raises
    ------
    InvalidArgument
        If `nbytes` is below 0 or not a number, or `page` not such a power of two.
    """
    device, link = _row(DEVICES, device, "device"), _row(LINKS, link, "link")
    nbytes = finite(nbytes, "first_touch: bytes", -1e-300, float(1 << 62))
    size = device.page if page is None else page
    if not isinstance(size, int) or size < 4 * _KIB or size & (size - 1):
        raise InvalidArgument(f"first_touch: page {page!r}: expected a power of two from 4096")
    if not nbytes:
        return 0.0
    how = registration(device, link)
    known = min(nbytes, how.most)
    pages = ceil(known / min(size, how.page))
    fill = known / how.rate if how.rate else 0.0
    walks = ceil(pages / how.walks) * how.walk
    return how.call + pages * how.per_page + fill + walks


def first_call(
    device: Device | str, peers: Mapping[LinkType, int] | Mapping[str, int], nbytes: float
) -> float:
    """Return the s a rank's first call with a new buffer costs more than later ones.

    peers: how many other ranks it reaches over each kind of link. Each peer over a scale-up link
    or PCIe opens the buffer for itself, one after the other; a NIC learns of it once, whoever is
    behind the network, and so does a bounce buffer.
    """
    if not isinstance(peers, Mapping):
        raise InvalidArgument(
            f"first_call: peers {peers!r}: a count by link was expected, such as "
            "{'xgmi-mi300': 7, 'roce-400g': 8}"
        )
    total, device = 0.0, _row(DEVICES, device, "device")
    for name, count in peers.items():
        link = _row(LINKS, name, "link")
        whole(count, f"first_call: peers over {link.name}", 0, 1 << 30)
        opened = count if registration(device, link).name == "peer" else min(count, 1)
        total += opened * first_touch(device, link, nbytes)
    return total
