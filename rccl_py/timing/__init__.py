"""Time of a schedule on a fabric: one signature, engines that agree where they should.

Knows no algorithm and no buffer.
"""

from .estimate import Loads, Profile, profile
from .timeline import Part, Timeline

__all__ = ["Loads", "Part", "Profile", "Timeline", "profile"]
