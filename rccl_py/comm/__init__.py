"""The API people call: communicators, groups, and ranks as threads."""

from .communicator import Communicator
from .group import group
from .threads import run

__all__ = ["Communicator", "group", "run"]
