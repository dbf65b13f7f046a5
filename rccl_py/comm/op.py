"""One issued call of one rank: what it is, where in the program it was made, how far it is.

Owns Op and the words that describe one. Knows no engine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..errors import RcclError
from ..recorder import Entry
from .call import Call

if TYPE_CHECKING:
    from .member import Member
    from .place import Launch, Stream

__all__ = ["Op", "Site", "call_site", "named", "site_text"]

Site = tuple[CodeType, int]
_OURS = str(Path(__file__).parent.parent)


def call_site() -> Site | None:
    """Return where the program, outside this library, made the call."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def site_text(site: Site | None) -> str:
    """Return ``file.py:12`` (the file's name only)."""
    return f"{Path(site[0].co_filename).name}:{site[1]}" if site else "?"


def named(ranks: list[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1, 2 and 5 more``."""
    shown = ", ".join(str(r) for r in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"


class Op:
    """A call that was issued. number: which collective (or which send, ...) of its rank it is.

    turn: which send to its peer, or which recv from it, a message is; the other end has the same.
    """

    __slots__ = (
        "call",
        "done",
        "entry",
        "error",
        "event",
        "launch",
        "member",
        "number",
        "result",
        "seconds",
        "site",
        "stream",
        "turn",
    )

    def __init__(self, member: Member | None, call: Call | None, stream: Stream | None) -> None:
        self.member, self.call = member, call
        self.stream: Any = stream
        self.site = call_site() if call is not None else None
        self.number = self.turn = -1
        self.done = False
        self.error: RcclError | None = None
        self.entry: Entry | None = None
        self.launch: Launch | None = None
        self.event: Any = None
        self.seconds = 0.0
        self.result: Any = None

    def describe(self) -> str:
        """Return ``call 3, allreduce(count=4, ...) at train.py:12``."""
        if self.call is None:
            return "wait for an event" if self.event is not None else "advance"
        signature = self.call.signature
        number = f"call {self.number}, " if signature.peer < 0 else ""
        return f"{number}{signature} at {site_text(self.site)}"

    def finish(self, error: RcclError | None = None) -> None:
        """Note that it has run, or failed."""
        self.done, self.error = True, error
        if self.entry is not None:
            self.entry.state = "failed" if error is not None else "done"
        if self.launch is not None:
            self.launch.left -= 1
            self.launch.error = self.launch.error or error
        if self.call is not None:
            self.call.forget()  # the flight recorder keeps the signature, not the buffers
