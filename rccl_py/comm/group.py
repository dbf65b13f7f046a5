"""group(): calls made inside are one launch; they run when the outermost group ends.

Owns the open group of each thread. Knows communicators only by what they queued.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["current", "group"]


@dataclass
class _Group:
    """starts: what each queued call does, in order. ends: run once all have started.

    undos: run when a start fails, so that nothing half launched is left.
    """

    starts: list[Callable[[], None]] = field(default_factory=list)
    ends: list[Callable[[], None]] = field(default_factory=list)
    undos: list[Callable[[], None]] = field(default_factory=list)


class _State(threading.local):
    open: _Group | None = None


_STATE = _State()  # per thread by nature: ncclGroupStart/End are too


def current() -> _Group | None:
    """Return this thread's open group, or None."""
    return _STATE.open


@contextmanager
def group() -> Iterator[None]:
    """Queue the calls made inside and launch them together at the end (ncclGroupStart/End).

    Groups nest; only the outermost launches. If the body raises, nothing is launched.
    """
    if _STATE.open is not None:
        yield
        return
    opened = _STATE.open = _Group()
    try:
        yield
    finally:
        _STATE.open = None
    try:
        for step in opened.starts:
            step()
    except BaseException:
        for undo in dict.fromkeys(opened.undos):
            undo()
        raise
    for step in dict.fromkeys(opened.ends):
        step()
