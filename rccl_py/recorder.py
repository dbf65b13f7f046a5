"""The flight recorder: the last calls of each rank, kept cheaply and written out when asked.

Owns the ring of calls a rank keeps and the record it becomes. Knows nothing of communicators: a
call is any object with a text. Recording stores references and formats nothing, so that it can stay
on; texts are made when the record is dumped. Records are compared in `disagreement`.

A record of rank 1, four calls made, room for three:

    calls   [seq 1: allreduce done] [seq 2: allreduce done] [seq 3: broadcast queued]   total 4
"""

from __future__ import annotations

import json
import os
import re
import socket
import zlib
from collections import deque
from operator import index
from pathlib import Path
from types import CodeType
from typing import Any

from .arguments import text, whole
from .errors import RcclSystemError

__all__ = ["FIELDS", "FORMAT", "KINDS", "STATES", "VERSION", "Entry", "Recorder"]

FORMAT = "rccl_py flight record"
VERSION = 1
STATES = ("queued", "running", "done", "failed")
KINDS = ("collective", "p2p", "other")
"""Only collectives are numbered alike on all ranks, so only they are compared."""
FIELDS = ("count", "dtype", "op", "root")
"""What a call's fields() may tell that ranks must agree on."""

Site = tuple[CodeType | str, int]


class Entry:
    """One recorded call; its state and note may be changed while the call proceeds."""

    __slots__ = ("kind", "note", "seq", "site", "state", "what")

    def __init__(self, seq: int, what: object, site: Site | None, state: str, kind: str) -> None:
        self.seq = seq
        self.what = what
        self.site = site
        self.state = state
        self.kind = kind
        self.note = ""


def _plain(value: object) -> str | int | float | None:
    """Return `value` as JSON holds it: an enum or a number of NumPy as Python's own."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return str(value)


def _told(what: object) -> tuple[str, dict[str, Any]]:
    """Return a call's text and fields; a dump is made when things went wrong, so never raises."""
    try:
        said = str(what)
        ask = getattr(what, "fields", None)
        held = dict(ask()) if callable(ask) else {}
    except Exception as error:
        return f"{type(what).__name__} (no text: {type(error).__name__})", {}
    return said, {key: _plain(held.get(key)) for key in (*FIELDS, "bytes")}


def _place(site: Site | None) -> str | None:
    if site is None:
        return None
    file = site[0].co_filename if isinstance(site[0], CodeType) else site[0]
    return f"{file}:{site[1]}"


def _described(entry: Entry) -> dict[str, Any]:
    said, held = _told(entry.what)
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "call": said,
        "collective": said.partition("(")[0].strip(),
        **{key: held.get(key) for key in (*FIELDS, "bytes")},
        "state": entry.state,
        "site": _place(entry.site),
        "note": str(entry.note),
    }


class Recorder:
    """The last `capacity` calls of one rank of one communicator."""

    def __init__(self, nranks: int, rank: int, name: str, capacity: int = 1024) -> None:
        self.nranks = whole(nranks, "recorder: nranks", 1, 1 << 31)
        self.rank = whole(rank, "recorder: rank", 0, nranks - 1)
        self.name = text(name, "recorder: name")
        self.total = 0
        """Calls ever made, those no longer held too."""
        self._entries: deque[Entry] = deque(
            maxlen=whole(capacity, "recorder: capacity", 1, 1 << 31)
        )

    def add(
        self,
        seq: int,
        what: object,
        site: Site | None,
        state: str = "queued",
        kind: str = "collective",
    ) -> Entry:
        """Record a call and return its entry. Nothing is formatted or checked: this is cheap.

        seq: the call's number, for collectives the same on every rank. what: an object whose str()
        is the call, ``allreduce(count=4, op=sum)``; its fields(), if it has that method, give
        count, dtype, op, root and bytes. It must not change. site: code object or file, and line.
        """
        entry = Entry(seq, what, site, state, kind)
        self._entries.append(entry)
        self.total += 1
        return entry

    def dump(self, reason: str | None = None) -> dict[str, Any]:
        """Return the record as JSON holds it; `reason` says why it was asked for."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "communicator": self.name,
            "rank": self.rank,
            "nranks": self.nranks,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "reason": reason,
            "total": self.total,
            # A copy first: the rank may go on recording in its own thread.
            "calls": [_described(entry) for entry in self._entries.copy()],
        }

    def write(self, folder: Path, reason: str) -> Path:
        """Write the record into `folder` and return the file, which appears whole or not at all.

        Raises RcclSystemError when it cannot be written.
        """
        name = re.sub(r"[^\w.-]", "_", self.name)
        if name != self.name:  # two names must not become one file
            name += f"-{zlib.crc32(self.name.encode()):08x}"
        path = Path(folder) / f"rccl-flight-{name}-rank{self.rank}.json"
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.dump(reason), indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise RcclSystemError(
                f"{path}: the flight record cannot be written: {error.strerror}"
            ) from None
        return path
