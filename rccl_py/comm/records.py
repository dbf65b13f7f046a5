"""Flight records on disk: what every rank called last, written when a communicator fails.

Owns where they go: a folder a process under the system's temporary files, told in no message but
found by ``rccl-flight`` when it is given none; config flight_dir chooses another, "" writes none.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .member import Member

__all__ = ["dump_records", "record_folder"]


def record_folder(core: Any) -> Path | None:
    """Return the folder for the records of a communicator, None where none are wanted."""
    chosen = core.config.flight_dir
    if chosen == "":
        return None
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "rccl-flight"


def dump_records(core: Any, reason: str) -> None:
    """Write the record of every rank of `core` that this process knows."""
    folder = record_folder(core)
    if folder is None:
        return
    members: list[Member] = core.members
    for member in members:
        try:
            member.recorder.write(folder, reason)
        except OSError:
            return  # a full disk must not hide what went wrong
