"""Events of the Chrome trace format, as ui.perfetto.dev and chrome://tracing read them.

Owns how an event is spelled and how many there may be. Knows no message and no link. Times come in
whole nanoseconds and stand in the file as microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Event", "Page", "counter_event", "slice_event"]

Event = dict[str, Any]


@dataclass(eq=False)
class Page:
    """The events written so far, and the number of the last track."""

    limit: int
    events: list[Event] = field(default_factory=list)
    track: int = 10  # no track has the number of a process

    @property
    def room(self) -> int:
        """Events that may still come."""
        return self.limit - len(self.events)

    def name(self, process: int, track: int, what: str, name: str) -> None:
        """Add a name's event, with the place of it in the viewer's order."""
        sort = what.replace("_name", "_sort_index")
        for kind, args in ((what, {"name": name}), (sort, {"sort_index": track or process})):
            self.events.append(
                {"ph": "M", "pid": process, "tid": track, "name": kind, "args": args}
            )

    def new_track(self, process: int, name: str) -> int:
        """Return the number of a track that was added (two events)."""
        self.track += 1
        self.name(process, self.track, "thread_name", name)
        return self.track

    def text(self, other: Mapping[str, object]) -> str:
        """Return the file."""
        lines = (json.dumps(event, separators=(",", ":")) for event in self.events)
        head = json.dumps({"displayTimeUnit": "ns", "otherData": other})
        return head[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


def slice_event(process: int, track: int, name: str, start: int, end: int, args: Event) -> Event:
    """Return a complete event; start, end: ns."""
    return {"ph": "X", "pid": process, "tid": track, "name": name, "ts": start / 1e3,
            "dur": (end - start) / 1e3, "args": args}  # fmt: skip


def counter_event(process: int, name: str, at: int, values: Event) -> Event:
    """Return the values a counter has from `at` (ns) on."""
    return {"ph": "C", "pid": process, "tid": 0, "name": name, "ts": at / 1e3, "args": values}
