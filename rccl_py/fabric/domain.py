"""One kind of scale-up domain as arrays: its links, its routes inside, its way to its NICs.

Owns what all domains of a kind share; a fabric counts copies of it. Knows no rank and no network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..schedule import I32
from .inside import Inside
from .tables import F64, I64, Table

__all__ = ["Domain"]


@dataclass(frozen=True, eq=False, slots=True)
class Domain:
    """One scale-up domain of m accelerators and q NICs.

    bandwidth, raw: B/s of each of its links. names, media: one text a link. tail, head:
    the accelerator a link leaves and enters, -1 where that is none. start, end: int32, the vertex
    it leaves and enters, a number into vertices: all names, accelerators first. inside: routes
    between its accelerators. nic_names: one a NIC; rail: int32[q], the rail of each: its number in
    a sound node, where one may be missing. group: int32[m], 0 for all, or the group of each
    accelerator, inside which links are of another kind than between groups: two-level algorithms go
    by them.

    An attachment is an accelerator and a NIC it uses: those of accelerator i are
    attach[i]..attach[i+1]-1. nic: int32, the NIC of each; up, down: links from the accelerator to
    that NIC and back, by attachment; wait: s the PCI hops between them add, either way.
    owner: int32[q], the attachment through which peers reach a NIC, -1 for none. wire, port_wire:
    float64[3, links or NICs], bytes that cross per byte of payload under LL, LL128 and Simple.
    spread, port_spread: float64, the part of each link or NIC that serving many peers reaches.
    port_pauses: bool[q], whether a NIC's cable is paused by what it feeds. joins: bool, the links
    accelerators reach each other by: scale-up ones where there are any, the host's else. window,
    port_window: B that must have arrived over them, or over a NIC, before a receiver hands them
    on. multicast: the part of a port that transfers done by its switches get, 0 where they only
    forward. port, port_raw: B/s of each NIC's cable. port_latency: float64[3, q] s.
    port_message: s.
    """

    ngpus: int
    nnics: int
    bandwidth: F64
    raw: F64
    names: tuple[str, ...]
    media: tuple[str, ...]
    tail: I32
    head: I32
    start: I32
    end: I32
    vertices: tuple[str, ...]
    inside: Inside
    nic_names: tuple[str, ...]
    rail: I32
    group: I32
    attach: I64
    nic: I32
    up: Table
    down: Table
    wait: F64
    owner: I32
    port: F64
    port_raw: F64
    port_latency: F64
    port_message: F64
    wire: F64
    port_wire: F64
    spread: F64
    port_spread: F64
    port_pauses: npt.NDArray[np.bool_]
    joins: npt.NDArray[np.bool_]
    window: float
    port_window: float
    multicast: float = 0.0

    @property
    def nlinks(self) -> int:
        """Directed links inside the domain."""
        return len(self.bandwidth)

    def nics_of(self, local: int) -> list[int]:
        """Return the NICs accelerator `local` uses."""
        return [int(n) for n in self.nic[self.attach[local] : self.attach[local + 1]]]

    def on_rail(self, rail: np.ndarray) -> I64:
        """Return the NIC on each of these rails, -1 where there is none."""
        known = np.full(max(int(self.rail.max(initial=-1)), int(rail.max(initial=-1))) + 1, -1)
        known[self.rail] = np.arange(self.nnics)
        return np.asarray(known[rail], dtype=np.int64)

    def holder(self, attachment: np.ndarray) -> I64:
        """Return the accelerator of each attachment."""
        return np.searchsorted(self.attach, attachment, side="right") - 1
