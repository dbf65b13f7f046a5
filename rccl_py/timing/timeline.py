"""What an engine says of a schedule: when each part ran, what bounded it, which link was busiest.

Owns the result type of all engines. Times are seconds from the call.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Part", "Timeline"]


@dataclass(frozen=True, slots=True)
class Part:
    """`steps` equal steps. seconds: of all of them. bound: "latency", "link" or "memory"."""

    start: float
    seconds: float
    steps: int
    bound: str
    link: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole call: launch, then its parts. busiest: link with most busy seconds, or None."""

    launch: float
    parts: tuple[Part, ...]
    busiest: int | None
    busy: float

    def waits(self, bound: str) -> float:
        """Seconds of the parts that this bound limits: "latency", "link" or "memory"."""
        return sum(part.seconds for part in self.parts if part.bound == bound)

    @property
    def seconds(self) -> float:
        """From call to last byte."""
        return self.launch + sum(part.seconds for part in self.parts)
