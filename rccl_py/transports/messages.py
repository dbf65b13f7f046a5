"""The message plane: ranks that share no memory send each other the rows of every step.

Owns how rows travel as MPI messages. Every wait polls requests; none of MPI's blocking calls is
made, so a rank that never comes is waited for only as long as the caller's Waiting lets it.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from ..check import alias_map
from ..reduce_ops import Arithmetic
from ..schedule import COPY, I32, Step
from .kept import keep
from .passes import Array, Work, apply, combiner
from .program import SCRATCH, Extents, Program
from .quiet import quiet_runner
from .shared import HEAD, HeadsDiffer
from .waiting import Waiting

__all__ = ["MessageBound", "MessagePlane"]

_TAGS = 32_000  # below every MPI's tag limit; messages of one tag keep their order
_HEADS, _LENGTHS, _TEXTS = _TAGS + 1, _TAGS + 2, _TAGS + 3
_POLLS = 1000


class _Row(NamedTuple):
    """A row as this rank sees it: the other rank (its own for a local row), its own ranges."""

    peer: int
    tag: int
    read: tuple[int, int, int]
    write: tuple[int, int, int]
    is_copy: bool


class _Exchange(NamedTuple):
    """A step at this rank. apart: it reads nothing of its own that it writes."""

    arriving: list[_Row]
    leaving: list[_Row]
    apart: bool


class MessageBound:
    """A program on a block size and arithmetic, as this rank's messages step by step."""

    def __init__(self, program: Program, block: int, arithmetic: Arithmetic, rank: int) -> None:
        self.arithmetic, self._rank = arithmetic, rank
        self._extents = Extents(program, block)
        self.scratch = self._extents.scratch_elements(rank)
        self._alias = alias_map(program.schedule)
        self.exchanges = [self._exchange(step) for step in program.stream]

    def _exchange(self, step: Step) -> _Exchange:
        arriving = np.flatnonzero(step.dst == self._rank)
        leaving = np.flatnonzero((step.src == self._rank) & (step.dst != self._rank))
        local = arriving[step.src[arriving] == self._rank]
        read = self._slots(step.src_slot, step.count, np.concatenate([leaving, local]))
        written = self._slots(step.dst_slot, step.count, arriving)
        rows = [self._rows(step, chosen) for chosen in (arriving, leaving)]
        return _Exchange(rows[0], rows[1], not np.isin(read, written).any())

    def _slots(self, first: I32, count: I32, rows: Any) -> Any:
        """Return where the slots of some rows lie at this rank if its call is in place."""
        ranges = [np.arange(f, f + c) for f, c in zip(first[rows].tolist(), count[rows].tolist())]
        slots = np.concatenate(ranges) if ranges else np.zeros(0, dtype=np.int64)
        return slots if self._alias is None else self._alias[self._rank, slots]

    def _rows(self, step: Step, chosen: Any) -> list[_Row]:
        src, dst, count = step.src[chosen], step.dst[chosen], step.count[chosen]
        read = self._extents.ranges(src, step.src_slot[chosen], count)
        write = self._extents.ranges(dst, step.dst_slot[chosen], count)
        found = []
        for i, row in enumerate(chosen.tolist()):
            if not read.length[i]:
                continue
            peer = int(src[i]) if src[i] != self._rank else int(dst[i])
            ends = [
                (int(r.buffer[i]), int(r.start[i]), int(r.start[i] + r.length[i]))
                for r in (read, write)
            ]
            copies = bool(step.op[row] == COPY)
            found.append(_Row(peer, row % _TAGS, ends[0], ends[1], copies))
        return found


class MessagePlane:
    """Runs bound programs over messages of `comm`."""

    def __init__(self, mpi: Any, comm: Any, waiting: Waiting) -> None:
        self._mpi, self._comm, self._waiting = mpi, comm, waiting
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._others = [r for r in range(self.size) if r != self.rank]
        self._quiet = quiet_runner()
        self._open: list[tuple[int, Any, Any]] = []  # (other rank, request, its memory)

    def bind(self, program: Program, block: int, arithmetic: Arithmetic) -> MessageBound:
        """Return the program compiled for this rank."""
        return MessageBound(program, block, arithmetic, self.rank)

    def collective(
        self,
        head: bytes,
        clock: float,
        bound: MessageBound | None,
        source: Array | None,
        target: Array | None,
    ) -> float:
        """Run a call that every rank makes; return the largest clock."""
        own = np.frombuffer(head + np.float64(clock).tobytes(), dtype=np.uint8)
        heads = self._all_to_all(own, dict.fromkeys(self._others, len(own)), _HEADS)
        if any(heads[r][:HEAD].tobytes() != head for r in self._others):
            raise HeadsDiffer([heads[r][:HEAD].tobytes() for r in range(self.size)])
        latest = max(float(heads[r][HEAD:].view(np.float64)[0]) for r in range(self.size))
        if bound is not None:
            scratch = np.empty(bound.scratch, dtype=bound.arithmetic.held)
            memory = [source, target, scratch]
            assert len(memory) - 1 == SCRATCH
            for exchange in bound.exchanges:
                self._run(exchange, memory, bound.arithmetic)
        return latest

    def _run(self, exchange: _Exchange, memory: list[Array | None], arithmetic: Arithmetic) -> None:
        def view(part: tuple[int, int, int]) -> Array:
            buffer = memory[part[0]]
            assert buffer is not None  # a valid schedule uses only buffers a rank has
            return buffer[part[1] : part[2]]

        works: list[Work] = []
        for row in exchange.arriving:
            into = view(row.write)
            if row.peer == self.rank:
                taken = view(row.read) if exchange.apart else view(row.read).copy()
            elif row.is_copy and exchange.apart:
                self._receive(into, row.peer, row.tag)
                continue
            else:
                taken = np.empty_like(into)  # of what the sender has rounded
                self._receive(taken, row.peer, row.tag)
            function = combiner(arithmetic, not row.is_copy, (False, False))
            works.append((function, into, taken, into))
        for row in exchange.leaving:
            self._send(arithmetic.travel(view(row.read)), row.peer, row.tag)
        self._complete()
        self._quiet(apply, works)

    def _bytes(self, array: Array) -> list[Any]:
        """Return an MPI buffer of the array's bytes: types MPI does not know travel too."""
        return [array.view(np.uint8), self._mpi.BYTE]

    def _receive(self, into: Array, peer: int, tag: int) -> None:
        request = self._comm.Irecv(self._bytes(into), source=peer, tag=tag)
        self._open.append((peer, request, into))

    def _send(self, array: Array, peer: int, tag: int) -> None:
        request = self._comm.Isend(self._bytes(array), dest=peer, tag=tag)
        self._open.append((peer, request, array))

    def _complete(self) -> None:
        """Poll until every open request is done."""
        requests = [request for _, request, _ in self._open]
        test = self._mpi.Request.Testall
        for _ in range(_POLLS):
            if test(requests):
                self._open = []
                return
            os.sched_yield()
        began = time.perf_counter()
        while self._open:
            self._open = [entry for entry in self._open if not entry[1].Test()]
            if self._open:
                missing = sorted({peer for peer, _, _ in self._open})
                self._waiting.pause(time.perf_counter() - began, missing)

    def _all_to_all(self, own: Array, lengths: dict[int, int], tag: int) -> list[Array]:
        """Return what every rank sent of `lengths` bytes, by rank."""
        found = [np.empty(lengths.get(r, 0), dtype=np.uint8) for r in range(self.size)]
        found[self.rank] = own
        for peer in self._others:
            self._receive(found[peer], peer, tag)
        for peer in self._others:
            self._send(own, peer, tag)
        self._complete()
        return found

    def exchange_texts(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""
        own = np.frombuffer(text.encode(), dtype=np.uint8)
        size = np.array([len(own)], dtype=np.int64).view(np.uint8)
        sizes = self._all_to_all(size, dict.fromkeys(self._others, 8), _LENGTHS)
        lengths = {r: int(sizes[r].view(np.int64)[0]) for r in self._others}
        return [t.tobytes().decode() for t in self._all_to_all(own, lengths, _TEXTS)]

    def abandon(self) -> None:
        """Let go of messages that never came.

        MPI may still write where they were to land, so that memory is kept.
        """
        if self._open:
            keep(self._open)
        self._open = []
