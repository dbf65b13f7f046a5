"""Time of a schedule on a fabric: one signature, engines that agree where they should.

Knows no algorithm and no buffer. simulate, and Numba with it, is loaded when it is first asked.
"""

from .engines import ENGINES, timed
from .estimate import Loads, Profile, profile
from .exchange import Exchange, exchange, exchanges
from .overlap import Busy, Cost, Task, Timetable
from .timeline import Leg, Part, Timeline, Transfers

__all__ = [
    "ENGINES",
    "Busy",
    "Cost",
    "Exchange",
    "Leg",
    "Loads",
    "Part",
    "Profile",
    "Task",
    "Timeline",
    "Timetable",
    "Transfers",
    "exchange",
    "exchanges",
    "profile",
    "timed",
]
