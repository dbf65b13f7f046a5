"""Flight records on disk: what every rank called last, written when a communicator fails.

Owns where they go: a folder a run among the system's temporary files, the newest of which
``rccl-flight`` reads when it is given none. Config(flight_dir=) chooses another; "" writes none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RcclError

if TYPE_CHECKING:
    from .member import Member

__all__ = ["dump_records", "newest_run"]

_RUNS = 32  # folders of runs kept


def _runs() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"rccl-flight-{user}"


def newest_run() -> Path | None:
    """Return the folder of the run that failed last, None where there is none."""
    folders = [f for f in _runs().glob("run-*") if f.is_dir()]
    return max(folders, key=lambda f: f.stat().st_mtime, default=None)


def _folder(core: Any) -> Path | None:
    chosen = core.config.flight_dir
    if chosen == "":
        return None
    if chosen:
        return Path(chosen)
    folder = _runs() / f"run-{core.run}"
    if not folder.exists():
        old = sorted(_runs().glob("run-*"), key=lambda f: f.stat().st_mtime)
        for gone in old[: max(0, len(old) - _RUNS + 1)]:
            shutil.rmtree(gone, ignore_errors=True)
    return folder


def dump_records(core: Any, reason: str) -> None:
    """Write the record of every rank of `core` that this process knows."""
    members: list[Member] = core.members
    try:
        folder = _folder(core)
        for member in members if folder is not None else ():
            assert folder is not None
            member.recorder.write(folder, reason)
    except (OSError, RcclError):
        return  # a full disk must not hide what went wrong
