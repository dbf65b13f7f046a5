"""Schedules from outside the registry: written in Python, or read from other tools' files.

Every one is proved (rccl_py.check) before it can run.
"""

from .chunks import Chunk, Program
from .plan import FAMILY, Custom, custom, distinct, proved

__all__ = ["FAMILY", "Chunk", "Custom", "Program", "custom", "distinct", "proved"]
