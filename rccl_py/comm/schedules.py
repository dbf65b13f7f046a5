"""The schedules a communicator's config names: files are read, others taken as they are.

Owns how ``Config.schedules`` becomes what a planner takes. Knows no file format and no planner.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import RcclError
from ..formats import read_schedule

__all__ = ["schedules_of", "schedules_told"]


def _named(config: Config) -> Sequence[Any]:
    asked = config.schedules
    if isinstance(asked, str):
        return [name for name in asked.split(os.pathsep) if name.strip()]
    return asked or ()


def schedules_of(config: Config, nranks: int | None = None) -> list[Any]:
    """Return the schedules of a config, read and proved.

    nranks: leave out those for another number of ranks (a communicator made of another inherits
    its config, and may have fewer ranks). Raises FormatError for a file that is wrong.
    """
    found = [read_schedule(s) if isinstance(s, (str, Path)) else s for s in _named(config)]
    return [s for s in found if nranks is None or getattr(s, "nranks", nranks) == nranks]


def schedules_told(config: Config) -> str:
    """Return what tells two configs' schedules apart: their contents, or why they are unreadable.

    Raises nothing, so that ranks can compare first.
    """
    try:
        return ", ".join(repr(s) for s in schedules_of(config))
    except RcclError as error:
        return str(error)
