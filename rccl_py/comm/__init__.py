"""The API people call: communicators, groups, streams, and ranks as threads."""

from .communicator import Communicator, Properties
from .group import group, group_end, group_simulate_end, group_start
from .machines import machine_for
from .place import Event, Stream
from .threads import run
from .unique_id import UniqueId, get_unique_id
from .window import WaitSignalDesc, Window

__all__ = [
    "Communicator",
    "Event",
    "Properties",
    "Stream",
    "UniqueId",
    "WaitSignalDesc",
    "Window",
    "get_unique_id",
    "group",
    "group_end",
    "group_simulate_end",
    "group_start",
    "machine_for",
    "run",
]
