"""Messages as they happen, kept as columns until they are a Transfers.

Owns the bound on how many are kept. Knows no engine.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidUsage
from ..fabric import F64
from .stages import I64, place_of
from .timeline import Transfers
from .wires import Wires

__all__ = ["MOST", "Log"]

MOST = 4_000_000
"""Messages that are kept at most: some 400 MB of columns."""


class Log:
    """The messages so far, a repetition at a time."""

    def __init__(self, nlinks: int, slot: float, most: int = MOST) -> None:
        self.count = 0
        self._nlinks, self._slot, self._most = nlinks, slot, most
        self._repetitions: list[Transfers] = []

    def room_for(self, messages: int, what: str) -> None:
        """Raise InvalidUsage if `messages` more of `what` would be too many to keep."""
        if self.count + messages > self._most:
            raise InvalidUsage(
                f"{what}: detail=True keeps every message, and there are more than {self._most:,} "
                f"(at least {self.count + messages:,}): ask without detail, or for fewer ranks, "
                "channels or pieces"
            )

    def add(
        self,
        found: Wires,
        stage: int,
        step: int,
        start: F64,
        after: I64,
        until: float = np.inf,
    ) -> I64:
        """Keep one repetition, nothing of it later than `until`; return the numbers: int64[m]."""
        own, m = found.stage, len(start)
        pushed = np.minimum(start + found.wire, until)
        link = place_of(found.held, self._nlinks, len(found.idle)).astype(np.int32)
        self._repetitions.append(
            Transfers(
                start,
                pushed,
                np.minimum(pushed + found.latency, until),
                own.src,
                own.dst,
                own.channel,
                np.full(m, stage, dtype=np.int32),
                np.full(m, step, dtype=np.int32),
                np.asarray(own.slots * self._slot, dtype=np.float64),
                link,
                after,
                found.alone,
            )
        )
        self.count += m
        return np.arange(self.count - m, self.count)

    def transfers(self) -> Transfers:
        """Return all messages in order of start."""
        return Transfers.joined(self._repetitions).sorted()
