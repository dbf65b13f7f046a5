"""A timeline as a trace for ui.perfetto.dev or chrome://tracing: who sent what when, on which link.

Owns which tracks there are, and what is left out where the messages are more than a viewer takes.
Opens no file and times nothing: an engine's messages come in, text goes out, the same text for the
same messages.

    process "call"    the call, and the launch in it
    process "ranks"   a track a rank and channel; (2), (3) where it sends several at once
    process "links"   a track a link with what crosses it; where messages share a link, a counter
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..arguments import whole
from ..errors import InvalidUsage
from ..fabric import Fabric
from ..links import PROTOCOLS, Protocol
from ..planner import Plan
from ..timing.timeline import Timeline, Transfers
from .events import Event, Page, counter_event, slice_event
from .tracks import (
    Chains,
    Crossings,
    apart,
    chains,
    crossings,
    lanes,
    nanoseconds,
    utilisation,
)

__all__ = ["LIMIT", "chrome_trace", "plan_trace"]

I64 = npt.NDArray[np.int64]
LIMIT = 200_000  # events; assumed: what a browser opens within seconds
_LEAST = 100
_MOST = 1 << 30
_POINTS = 512  # of a link's counter at most; assumed: about what a screen shows
_CALL, _RANKS, _LINKS = 1, 2, 3  # process numbers
_HELD = {-1: "memory", -2: "channels"}
_NAMES = {_CALL: "call", _RANKS: "ranks", _LINKS: "links"}


def plan_trace(plan: Plan, timeline: Timeline, *, limit: int = LIMIT) -> str:
    """Return the trace of a plan's call; timeline: of an engine that was asked for detail."""
    about = {
        "collective": plan.collective,
        "bytes": int(plan.size),
        "ranks": plan.nranks,
        "algorithm": plan.algorithm,
        "protocol": plan.protocol,
        "channels": plan.nchannels,
        "pieces": plan.pieces,
        **({"policy": plan.policy} if plan.policy else {}),
    }
    fabric, protocol = plan.profile.fabric, PROTOCOLS[plan.protocol]
    return chrome_trace(timeline, fabric, protocol, about, limit=limit)


def chrome_trace(
    timeline: Timeline,
    fabric: Fabric,
    protocol: Protocol,
    about: Mapping[str, object] | None = None,
    *,
    limit: int = LIMIT,
) -> str:
    """Return a Chrome trace (JSON) of at most `limit` events, one a line.

    about: what is told of the call, by name: "collective" names it, "algorithm" stands at every
    message. Ranks beyond the limit are left out from the middle and links by how little they were
    used; "otherData" says so. Raises InvalidUsage for a timeline without messages.
    """
    limit = whole(limit, "trace: limit", _LEAST, _MOST)
    moved = timeline.transfers
    if moved is None:
        raise InvalidUsage(
            f"a trace shows messages, and this timeline of the engine {timeline.engine!r} has "
            "none: time the call with engine='clock' or 'simulate' and detail=True"
        )
    about = dict(about or {})
    page = Page(limit)
    for process, name in _NAMES.items():
        page.name(process, 0, "process_name", name)
    _draw_call(page, timeline, about)
    words = {"algorithm": about.get("algorithm", ""), "protocol": protocol.name}
    view = _View(moved, nanoseconds(moved.start), nanoseconds(moved.pushed), fabric, words)
    # Half of the room is for ranks; what they leave is for links.
    some_ranks = _draw_ranks(page, view, (limit - len(page.events)) // 2)
    some_links = _draw_links(page, view, protocol)
    other = {
        "machine": fabric.name,
        **about,
        "protocol": protocol.name,
        "engine": timeline.engine,
        "seconds": timeline.seconds,
        "messages": len(moved),
        "left_out": "; ".join(t for t in (some_ranks, some_links) if t) or "nothing",
    }
    return page.text(other)


def _draw_call(page: Page, timeline: Timeline, about: Mapping[str, object]) -> None:
    """Add the call as a whole, and its launch."""
    track = page.new_track(_CALL, "call")
    end, launch = nanoseconds(np.array([timeline.seconds, timeline.launch])).tolist()
    name = str(about.get("collective", "call"))
    page.events.append(slice_event(_CALL, track, name, 0, max(end, launch), dict(about)))
    page.events.append(slice_event(_CALL, track, "launch", 0, launch, {}))


@dataclass(frozen=True, eq=False)
class _View:
    """The messages and what is said of each. start, end: int64[m] ns, on the wire."""

    moved: Transfers
    start: I64
    end: I64
    fabric: Fabric
    words: Mapping[str, object]
    names: dict[int, str] = field(default_factory=dict)

    def link_name(self, link: int) -> str:
        """Return the name of a link, or of what else holds a message back: see Transfers."""
        if link not in self.names:
            self.names[link] = _HELD.get(link) or self.fabric.link_name(link)
        return self.names[link]

    def told(self, messages: I64) -> Iterator[tuple[int, int, int, int, Event]]:
        """Yield (start ns, end ns, src, dst, args) of messages."""
        moved = self.moved
        ends, numbers = nanoseconds(moved.end[messages]), np.rint(moved.nbytes[messages])
        columns = (self.start[messages], self.end[messages], ends, numbers.astype(np.int64),
                   moved.src[messages], moved.dst[messages], moved.channel[messages],
                   moved.stage[messages], moved.step[messages], moved.link[messages])  # fmt: skip
        for start, end, there, size, src, dst, channel, stage, step, link in zip(
            *(column.tolist() for column in columns)
        ):
            args = {"src": src, "dst": dst, "bytes": size, "channel": channel, "stage": stage,
                    "step": step, "held_by": self.link_name(link), "arrives_us": there / 1e3,
                    **self.words}  # fmt: skip
            yield start, end, src, dst, args


@dataclass(frozen=True, eq=False, slots=True)
class _RankTracks:
    """The messages a rank sends, by start, and the name of each one's track."""

    messages: I64
    track: list[str]

    @property
    def events(self) -> int:
        return len(self.messages) + 2 * len(set(self.track))


def _rank_tracks(view: _View, rank: int, messages: I64) -> _RankTracks:
    channel = view.moved.channel[messages]
    track = [""] * len(messages)
    for one in np.unique(channel).tolist():
        at = np.flatnonzero(channel == one)
        found = lanes(view.start[messages[at]], view.end[messages[at]])
        for k, lane in zip(at.tolist(), found):
            track[k] = f"rank {rank} ch {one}" + (f" ({lane + 1})" if lane else "")
    return _RankTracks(messages, track)


def _draw_ranks(page: Page, view: _View, room: int) -> str:
    """Add what each rank sends, at most `room` events; return what was left out."""
    n = view.fabric.nranks
    order = np.argsort(view.moved.src, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(view.moved.src, minlength=n))])
    kept: dict[int, _RankTracks] = {}
    cut = ""
    for rank in _from_both_ends(n):
        sent = order[ptr[rank] : ptr[rank + 1]]
        if not len(sent):
            continue
        if not kept and len(sent) > room // 3:  # a message needs three events at the most
            cut = f"all but the first {room // 3} of the {len(sent)} messages of rank {rank}"
            sent = sent[: room // 3]
        tracks = _rank_tracks(view, rank, sent)
        if tracks.events > room:
            break
        kept[rank] = tracks
        room -= tracks.events
    drawn = np.zeros(len(order), dtype=bool)
    for tracks in kept.values():
        drawn[tracks.messages] = True
    arrows = chains(view.moved.after, drawn)
    for rank in sorted(kept):
        _draw_rank(page, view, kept[rank], arrows)
    missing = np.flatnonzero((np.diff(ptr) > 0) & ~np.isin(np.arange(n), sorted(kept)))
    if len(missing):
        missed = int((~drawn).sum())
        gone = f"ranks {missing[0]}-{missing[-1]}, {missed} of {len(drawn)} messages"
        cut = f"{cut}; {gone}" if cut else gone
    return cut


def _from_both_ends(n: int) -> Iterator[int]:
    """Yield 0, n - 1, 1, n - 2, ...: what comes last is in the middle."""
    for k in range(n):
        yield n - 1 - k // 2 if k % 2 else k // 2


def _draw_rank(page: Page, view: _View, tracks: _RankTracks, arrows: Chains) -> None:
    number = {name: page.new_track(_RANKS, name) for name in sorted(set(tracks.track), key=_order)}
    every = zip(tracks.messages.tolist(), tracks.track, view.told(tracks.messages))
    for message, track, (start, end, _, dst, args) in every:
        event = slice_event(_RANKS, number[track], f"to rank {dst}", start, end, args)
        if arrows.into[message] or arrows.out[message]:
            event["bind_id"] = hex(int(arrows.name[message]))
            event["flow_in"], event["flow_out"] = (
                bool(arrows.into[message]), bool(arrows.out[message]))  # fmt: skip
        page.events.append(event)


def _order(name: str) -> list[int]:
    """Return the numbers of a track's name, to sort by."""
    return [int(word.strip("()")) for word in name.split() if word.strip("()").isdigit()]


def _draw_links(page: Page, view: _View, protocol: Protocol) -> str:
    """Add the links, the busiest first in line for the room; return what was left out."""
    pace = view.fabric.pace[protocol.index]
    found = crossings(view.moved, view.fabric, pace, page.room // 3)
    used = int((found.total > 0).sum())
    kept: dict[int, list[Event]] = {}
    room, coarse = page.room, 0
    for link in np.argsort(-found.total, kind="stable")[:used].tolist():
        messages = found.message[found.ptr[link] : found.ptr[link + 1]]
        if not len(messages):
            break
        alone = apart(view.start[messages], view.end[messages])
        if alone and len(messages) + 2 <= room:
            kept[link] = []
            room -= len(messages) + 2
            continue
        kept[link] = _counter(view, found, link)
        if len(kept[link]) > room:
            del kept[link]
            break
        coarse += alone
        room -= len(kept[link])
    for link in sorted(kept):
        if kept[link]:
            page.events += kept[link]
        else:
            _draw_link(page, view, link, found.message[found.ptr[link] : found.ptr[link + 1]])
    texts = []
    if coarse:
        texts.append(f"the messages of {coarse} links, which have counters")
    if len(kept) < used:
        texts.append(f"{used - len(kept)} of {used} links in use, the least busy")
    return "; ".join(texts)


def _draw_link(page: Page, view: _View, link: int, messages: I64) -> None:
    track = page.new_track(_LINKS, view.link_name(link))
    for start, end, src, dst, args in view.told(messages):
        page.events.append(slice_event(_LINKS, track, f"{src} to {dst}", start, end, args))


def _counter(view: _View, found: Crossings, link: int) -> list[Event]:
    """Return a link's utilisation over time, in percent."""
    at = slice(found.ptr[link], found.ptr[link + 1])
    messages = found.message[at]
    times, used = utilisation(view.start[messages], view.end[messages], found.busy[at], _POINTS)
    name = view.link_name(link)
    return [
        counter_event(_LINKS, name, ns, {"busy %": round(100 * share, 2)})
        for ns, share in zip(times.tolist(), used.tolist())
    ]
