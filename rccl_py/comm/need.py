"""What a process waits for, and what it must know of a communicator to say so.

Owns Need and Party. Knows no board and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Need", "Party"]


class Party(Protocol):
    """A communicator as the job sees it. worlds: rank in the job of every rank."""

    key: str
    name: str
    rank: int
    worlds: list[int]
    mailbox: Any

    def made(self) -> dict[str, Any]:
        """Return how far this rank has come."""
        ...

    def require_alive(self) -> None:
        """Raise when the communicator was ended from another thread."""
        ...


class Need:
    """What a process waits for: `peers` (ranks of core) must come to `number` of `kind`.

    kind: "collective"; "send" or "recv" that a peer must make; "signal". call: the call it is in.
    """

    __slots__ = ("call", "core", "kind", "number", "peers")

    def __init__(
        self, core: Party, kind: str, number: int, peers: Sequence[int], call: str
    ) -> None:
        self.core, self.kind, self.number, self.peers, self.call = core, kind, number, peers, call

    @property
    def text(self) -> str:
        """The sentence that says who waits in which call."""
        return f"rank {self.core.rank} of {self.core.name} waits in {self.call}"

    def told(self) -> dict[str, Any]:
        """Return what others need to know of it."""
        core = self.core
        return {
            "comm": core.key,
            "name": core.name,
            "rank": core.rank,
            "kind": self.kind,
            "number": self.number,
            "peers": list(self.peers),
            "worlds": [core.worlds[p] for p in self.peers],
            "text": self.text,
        }
