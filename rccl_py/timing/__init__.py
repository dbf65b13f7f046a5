"""Time of a schedule on a fabric: one signature, engines that agree where they should.

Knows no algorithm and no buffer.
"""

from .estimate import Loads, Profile, profile
from .exchange import Exchange, exchange, exchanges
from .overlap import Busy, Cost, Task, Timetable
from .timeline import Part, Timeline

__all__ = [
    "Busy",
    "Cost",
    "Exchange",
    "Loads",
    "Part",
    "Profile",
    "Task",
    "Timeline",
    "Timetable",
    "exchange",
    "exchanges",
    "profile",
]
