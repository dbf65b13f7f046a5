"""One rank of one communicator, as its engine sees it: counters, state, flight record.

Owns what is kept per rank. A core (local.LocalCore, process.ProcessCore) is what the ranks of a
communicator share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errors import InvalidUsage, RcclError
from ..recorder import Recorder
from .op import Op

if TYPE_CHECKING:
    from .place import Launch, Place

__all__ = ["Member", "failed_before"]


def failed_before(failure: RcclError, what: str) -> RcclError:
    """Return the error of a call on a communicator that has failed: same class, told again."""
    return type(failure)(
        f"{what}: the communicator has failed and takes no more calls; abort() it, or shrink() "
        f"with flag ABORT. It failed with: {failure}"
    )


class Member:
    """Rank `rank` of `core`, which lives at `place`.

    collectives, messages: calls made so far. state: "open", "finalized", "destroyed", "aborted".
    inflight: launches a nonblocking communicator has not been polled to the end of.
    """

    def __init__(self, core: Any, rank: int, place: Place, config: Config) -> None:
        self.core, self.rank, self.place, self.config = core, rank, place, config
        self.collectives = 0
        self.messages = 0
        self.turns: dict[tuple[str, int], int] = {}  # sends to and receives from each peer so far
        self.state = "open"
        self.revoked = False
        self.inflight: list[Launch] = []
        self.last_error = ""
        self.born = place.end()
        self.recorder = Recorder(core.nranks, rank, core.name)
        self.signals: dict[tuple[int, int, int], int] = {}

    def number(self, op: Op) -> None:
        """Give an issued call its number and a line in the flight record."""
        call = op.call
        if call is None:
            return
        if call.signature.peer < 0:
            op.number, self.collectives = self.collectives, self.collectives + 1
            kind = "collective"
        else:
            op.number, self.messages = self.messages, self.messages + 1
            ends = call.signature.collective, call.signature.peer
            op.turn = self.turns.get(ends, 0)
            self.turns[ends] = op.turn + 1
            kind = "p2p"
        op.entry = self.recorder.add(op.number, call.signature, op.site, "queued", kind=kind)

    def require_usable(self, what: str) -> None:
        """Raise what a call on a failed or revoked communicator raises."""
        if self.core.failure is not None:
            raise failed_before(self.core.failure, f"{what} at rank {self.rank}")
        if (self.revoked or self.core.revoked) and what != "split":
            raise InvalidUsage(
                f"{what} at rank {self.rank}: communicator {self.core.name} is revoked; only "
                "split, shrink and destroy are left"
            )
