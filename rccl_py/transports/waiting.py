"""What a rank does while it waits for others: the one thing a transport asks of its caller.

Owns the protocol only. Knows no MPI, no clock and no reason to stop: who calls a transport knows
how long a rank may wait, which ranks are known to be dead and what to raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Waiting"]


class Waiting(Protocol):
    """Looks, while a rank waits, whether waiting still makes sense."""

    def pause(self, waited: float, missing: Sequence[int]) -> None:
        """Sleep a little; raise when the wait must end.

        Called again and again while the ranks `missing` of the communicator have not come, from
        `waited` seconds after the transport gave up polling at full speed.
        """
