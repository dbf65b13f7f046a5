"""Time of a schedule on a fabric: one signature, engines that agree where they should.

Knows no algorithm and no buffer. Numba, and what it compiles, is loaded by the first
simulation.
"""

from .engines import ENGINES, timed
from .estimate import Loads, Profile, profile
from .exchange import Exchange, exchange, exchanges
from .overlap import Busy, Cost, Task, Timetable
from .simulate import Job, simulate, simulate_jobs
from .timeline import Leg, Part, Timeline, Transfers

__all__ = [
    "ENGINES",
    "Busy",
    "Cost",
    "Exchange",
    "Job",
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
    "simulate",
    "simulate_jobs",
    "timed",
]
