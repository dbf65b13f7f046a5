"""The shared-memory plane: ranks of one host that read each other's staging.

Owns the window of a communicator and how ranks meet in it. A rank's segment, B::

    0      64          192         320     4096
    | flag | control 0 | control 1 |       | slot 0 | slot 1 | slot 2 | ...
             head, clock                     staging: what others read, a tile a slot

A call runs tile by tile (:mod:`rccl_py.transports.tiles`), and tiles use different slots in turn:
a rank may begin tile k + 1 while another still reads tile k. To begin k + 2, which may write where
k was, it must have met all in k + 1, so all are done with k. Hence nobody waits at a tile's end.

Small calls use slots 0 and 1, for which the views of their buffers are kept. Others go around in
the rest, two of them or many: where cores do not share an L3 cache, memory that another core has
just read is slow to write. Measured with tiles of 1 MiB and two ranks, us/MiB of an allreduce:

    slots gone around in             2     4     8    16
    cores that share an L3          76    85   111   134     a call that fits the cache
    cores that do not              490   460   320   240

Which it is, ranks find out by trying (_pace), after the first large call and now and then: a
virtual machine's cores move.

Flags only grow: a rank adds one each time it comes to a meet, and whoever waits for it waits until
its flag is no less than its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..reduce_ops import Arithmetic
from .bound import SharedBound
from .passes import Array, Work, apply
from .program import Program
from .quiet import quiet_runner
from .tiles import tiling
from .waiting import Waiting
from .windows import Window

__all__ = ["CONTROL", "HEAD", "HeadsDiffer", "SharedPlane"]

HEAD = 64  # bytes of a call's signature
CONTROL = 4096  # bytes of a segment before its staging: a page
_LINE = 64  # bytes of a cache line
TILE = 1 << 20  # bytes of a slot: two are more than an L2 cache, whence it is slow to take them
CROWDED = 2  # times as much where ranks share cores, and a meet has to wait for turns on them
_RING = 8  # slots that calls go around in at least, where rewriting is slow and there are as many
_TRIED = 1 << 20  # bytes written and read to find out: what leaves a core's own cache
_SLOWER = 4.0  # times as slow as private memory that counts as slow: 1.1 where it is not, 8 where
_AGAIN = 256  # large calls between trials
_POLLS = 2_000  # about 0.1 ms: longer than a tile takes
_YIELDS = 2_000  # about 1 ms, in which another rank that was put off a core gets one
_TEXT = bytes(HEAD - 5) + b"texts"  # the head of exchange_texts
_PACE = bytes(HEAD - 4) + b"pace"


class HeadsDiffer(Exception):
    """Ranks made different calls; heads: bytes by rank. No target has been written."""

    def __init__(self, heads: list[bytes]) -> None:
        super().__init__("ranks made different calls")
        self.heads = heads


class SharedPlane:
    """Runs bound programs in a window that all ranks of `comm` share; collective to make.

    collective: runs a call (_collective) without NumPy's warnings.
    """

    def __init__(self, mpi: Any, comm: Any, size: int, waiting: Waiting) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._waiting = waiting
        self._window = Window(mpi, comm, CONTROL + size)
        self._segments = self._window.segments
        segments = [memoryview(s) for s in self._segments]  # type: ignore[arg-type]
        self._flags = [s[:_LINE].cast("q") for s in segments]
        ends = [(_LINE * (1 + 2 * h), _LINE * (1 + 2 * h) + HEAD) for h in range(2)]
        self._heads = [[s[a:b] for s in segments] for a, b in ends]
        self._clocks = [[s[b : b + 8].cast("d") for s in segments] for _, b in ends]
        self._own_flag = self._flags[self.rank]
        self._own_heads, self._own_clocks = (
            [of_half[self.rank] for of_half in both] for both in (self._heads, self._clocks)
        )
        self._other_flags = self._without_own(self._flags)
        self._other_heads = [self._without_own(of_half) for of_half in self._heads]
        self._other_clocks = [self._without_own(of_half) for of_half in self._clocks]
        self._memories: dict[tuple[int, np.dtype[Any]], list[Array]] = {}
        self.collective = partial(quiet_runner(), self._collective)
        self._fence = self._window.fence
        self._meets, self._tiles, self._last = 0, 0, 0
        self._own_flag[0] = 0
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
        usable = set().union(*comm.allgather(mine))  # also: all flags are 0 before any is read
        crowded = self.size > len(usable)
        self._polls = 0 if crowded else _POLLS  # polling keeps a core from a rank that has none
        self._slot = min(TILE * CROWDED if crowded else TILE, size // 2)
        self._slots = size // self._slot
        self._private = np.empty(self._slot, dtype=np.uint8)
        self._large, self._rewrites_slowly = 0, False

    def bind(self, program: Program, block: int, arithmetic: Arithmetic) -> SharedBound | None:
        """Return the program compiled for this rank, or None where staging is too small."""
        item = arithmetic.held.itemsize
        most = self._slot // item
        tiles = tiling(program.order, program.schedule.layout, block, most)
        if tiles is None:
            return None
        return SharedBound(program, block, arithmetic, tiles, self.rank, self.memories)

    def _without_own(self, of_ranks: list[Any]) -> list[Any]:
        return [item for rank, item in enumerate(of_ranks) if rank != self.rank]

    def memories(self, slot: int, dtype: np.dtype[Any]) -> list[Array]:
        """Return every rank's slot of staging, by rank, and private memory last."""
        key = slot, dtype
        if key not in self._memories:
            start = CONTROL + slot * self._slot
            parts = [s[start : start + self._slot] for s in self._segments]
            whole = self._slot // dtype.itemsize * dtype.itemsize
            self._memories[key] = [p[:whole].view(dtype) for p in (*parts, self._private)]
        return self._memories[key]

    def _turns(self, tiles: int) -> list[int]:
        """Return the slots that the next `tiles` tiles use in turn, from after the last one's."""
        many = min(self._slots - 2, max(_RING, tiles) if self._rewrites_slowly else 2)
        if many < 2:
            return [self._tiles & 1, 1 - (self._tiles & 1)]
        return [2 + (self._last - 1 + i) % many for i in range(many)]

    def _collective(
        self,
        head: bytes,
        clock: float,
        bound: SharedBound | None,
        source: Array | None,
        target: Array | None,
    ) -> float:
        """Run a call that every rank makes; return the largest clock."""
        if bound is None:
            return self._arrive(head, clock, ())
        clock = self._run(head, clock, bound, source, target)
        if not bound.small:  # all have made this call, so all come to try
            if self._large % _AGAIN == 0:
                self._pace()
            self._large += 1
        return clock

    def _run(
        self,
        head: bytes,
        clock: float,
        bound: SharedBound,
        source: Array | None,
        target: Array | None,
    ) -> float:
        """Run a call that moves data; return the largest clock."""
        half = self._tiles & 1
        if bound.number == 1:
            kept = bound.kept[half]
            if kept[0] is source and kept[1] is target:
                works = kept[2]
            else:
                slot = half if bound.small else self._turns(1)[0]
                works = bound.last(slot, source, target)
            clock = self._arrive(head, clock, works[0])
            if not bound.small:
                self._last = slot
            apply(works[1])
            if len(works) > 2:
                self._finish(bound.awaited, works)
            return clock
        slots = self._turns(bound.number)
        levels = bound.streams(slots, source, target)
        clock = self._arrive(head, clock, map(next, levels[0]))
        apply(map(next, levels[1]))
        self._finish(bound.awaited, [map(next, level) for level in levels])
        for _ in range(2, bound.number):
            self._tile(bound.awaited, [map(next, level) for level in levels])
        # Not before all are known to make this call, so that all go on from one slot.
        self._last = slots[(bound.number - 1) % len(slots)]
        self._tile(bound.awaited, bound.last(self._last, source, target))
        return clock

    def _pace(self) -> None:
        """Find out whether memory that another rank has read is slow to write."""
        size = min(_TRIED, self._slot)
        own, theirs = (
            self._segments[rank % self.size][CONTROL : CONTROL + size]
            for rank in (self.rank, self.rank + 1)
        )
        source, private = self._private[:size], np.empty(size, dtype=np.uint8)
        shared, alone = [], []
        for _ in range(4):
            start = time.perf_counter()
            own[:] = source
            between = time.perf_counter()
            private[:] = source
            shared.append(between - start)
            alone.append(time.perf_counter() - between)
            self._arrive(_PACE, 0.0, ())
            private[:] = theirs
            self._arrive(_PACE, 0.0, ())
        slower = min(shared[1:]) / max(min(alone[1:]), 1e-9)
        self._rewrites_slowly = self._arrive(_PACE, float(slower > _SLOWER), ()) > 0

    def _arrive(self, head: bytes, clock: float, first: Iterable[Work]) -> float:
        """Begin a call's first tile: show the call and meet; return the largest clock.

        Raises HeadsDiffer, at all ranks, when they did not make the same call.
        """
        half = self._tiles & 1
        self._tiles += 1
        self._own_heads[half][:] = head
        self._own_clocks[half][0] = clock
        apply(first)
        self._meet(self._other_flags)
        for theirs in self._other_heads[half]:
            if theirs.tobytes() != head:
                raise HeadsDiffer([h.tobytes() for h in self._heads[half]])
        for other in self._other_clocks[half]:
            if other[0] > clock:
                clock = other[0]
        return clock

    def _tile(self, awaited: list[list[int]], levels: Sequence[Iterable[Work]]) -> None:
        """Run a tile that is not the first."""
        self._tiles += 1
        apply(levels[0])
        self._meet(self._other_flags)
        apply(levels[1])
        self._finish(awaited, levels)

    def _finish(self, awaited: list[list[int]], levels: Sequence[Iterable[Work]]) -> None:
        """Run the levels after the first meet's."""
        for level in range(2, len(levels)):
            self._meet([self._flags[rank] for rank in awaited[level]])
            apply(levels[level])

    def _meet(self, awaited: Sequence[Any]) -> None:
        """Come to the next meet and wait until the ranks of some flags have come to it."""
        if self._fence is not None:
            self._fence()
        self._meets = meet = self._meets + 1
        self._own_flag[0] = meet
        for flag in awaited:
            if flag[0] < meet:
                self._wait(flag, meet)
        if self._fence is not None:
            self._fence()

    def _wait(self, flag: Any, meet: int) -> None:
        for _ in range(self._polls):
            if flag[0] >= meet:
                return
        for _ in range(_YIELDS):
            os.sched_yield()
            if flag[0] >= meet:
                return
        began = time.perf_counter()
        while flag[0] < meet:
            missing = [r for r, other in enumerate(self._flags) if other[0] < meet]
            self._waiting.pause(time.perf_counter() - began, missing)

    def exchange_texts(self, text: str) -> list[str]:
        """Return every rank's text, by rank: a piece of each a tile, until all are through."""
        mine = text.encode()
        found = [b""] * self.size
        at, longest, piece = 0, 1, self._slot - 8
        while at < longest:
            start = CONTROL + (self._tiles & 1) * self._slot
            own = self._segments[self.rank][start : start + self._slot]
            own[:8].view(np.int64)[0] = len(mine)
            part = np.frombuffer(mine[at : at + piece], dtype=np.uint8)
            own[8 : 8 + len(part)] = part
            self._arrive(_TEXT, 0.0, ())
            for rank, segment in enumerate(self._segments):
                theirs = segment[start : start + self._slot]
                length = int(theirs[:8].view(np.int64)[0])
                longest = max(longest, length)
                found[rank] += theirs[8 : 8 + max(0, min(piece, length - at))].tobytes()
            at += piece
        return [t.decode() for t in found]

    def close(self) -> None:
        """Free the window; collective."""
        self.abandon()
        self._window.free()

    def abandon(self) -> None:
        """Let go of every view of the window."""
        self._memories, self._segments = {}, []
        for views in (self._flags, self._heads, self._clocks, self._other_flags):
            views.clear()
        for views in (self._own_heads, self._own_clocks, self._other_heads, self._other_clocks):
            views.clear()
