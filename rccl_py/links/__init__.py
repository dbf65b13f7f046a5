"""Link and device parameter sets: one row a link, one row a device, each number with its source.

Owns figures only: it knows no topology, no schedule and no time. Rates are bytes per second per
direction, times are seconds. A latency triple is what one hop over the link costs a collective
step under the LL, LL128 and Simple protocols (flag written by the sender to seen by the receiver,
with the protocol's own hand-shake); it is not a cable's flight time.

Rows cite their sources by letter; SOURCES says what the letters mean, and docs/links.md, made from
these tables, shows all of it.
"""

from .devices import DEVICES
from .kinds import Device, LinkType, Protocol, Switch, Triple
from .registration import REGISTRATIONS, Registration, first_call, first_touch, registration
from .sources import SOURCES
from .switches import SWITCHES
from .table import LINKS, PROTOCOLS

__all__ = [
    "DEVICES",
    "LINKS",
    "PROTOCOLS",
    "REGISTRATIONS",
    "SOURCES",
    "SWITCHES",
    "Device",
    "LinkType",
    "Protocol",
    "Registration",
    "Switch",
    "Triple",
    "first_call",
    "first_touch",
    "registration",
]
