"""The data of `rccl-perf`: buffers of this process's ranks, filled, moved and checked.

Owns the buffers, what each rank starts with and must end with, and how much memory may be used.
Knows no table and no time.

A rank has a send buffer and a work buffer. Out of place, results go from one to the other; in
place, the input is copied into the work buffer and both sides are views of it::

    allgather, 4 ranks, rank 2 in place      work  . . i .   ->   0 1 2 3
    reduce_scatter, rank 2 in place          work  0 1 2 3   ->   . . s .
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..collectives import Collective
from ..comm import group
from ..patterns import Pattern, fill, pattern, period_for, wrong
from ..reduce_ops import ReduceOp

if TYPE_CHECKING:
    from ..comm import Communicator

__all__ = ["Exchange", "available_memory", "block_of", "buffer_bytes"]

Array = npt.NDArray[Any]

_POISON = 0xFF  # every byte of a buffer before a call: NaN in a float, -1 in an integer


def block_of(collective: Collective, size: int, itemsize: int, n: int) -> int:
    """Return the elements of a block at a size in bytes, as rccl-tests' count column has it.

    Collectives with a block a rank round each down to 16 bytes (``...GetCollByteCount``).
    """
    elements = size // itemsize
    if max(collective.blocks(2)) == 1:
        return elements
    return elements // n // (16 // itemsize) * (16 // itemsize)


def _has_input(collective: Collective, rank: int, root: int) -> bool:
    return rank == root or bool(collective.starts(2, 0)[1, 0] >= 0)


def _has_output(collective: Collective, rank: int, root: int) -> bool:
    return rank == root or bool(collective.goals(2, 0)[1, 0] >= 0)


def buffer_bytes(collective: Collective, count: int, itemsize: int, n: int) -> int:
    """Return the bytes of send and receive buffers over all `n` ranks."""
    inputs, outputs = collective.blocks(n)
    senders = n if _has_input(collective, 1, 0) else 1
    receivers = n if _has_output(collective, 1, 0) else 1
    return (senders * inputs + receivers * outputs) * count * itemsize


def _number(path: str, expression: str = r"(\d+)") -> int | None:
    try:
        found = re.search(expression, Path(path).read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return None
    return int(found[1]) if found else None


def _memory_limits() -> Iterator[int | None]:
    """Yield what each limit leaves, in bytes; None where there is none or it cannot be read."""
    kib = _number("/proc/meminfo", r"MemAvailable:\s*(\d+)")
    yield None if kib is None else kib * 1024
    for folder, limit, used, cached in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
    ):  # fmt: skip
        most = _number(f"{folder}/{limit}")
        # Cached file pages count as used, but go when memory is asked for.
        spare = _number(f"{folder}/memory.stat", rf"(?m)^{cached} (\d+)") or 0
        yield None if most is None else most - (_number(f"{folder}/{used}") or 0) + spare
    if os.name == "posix":
        import resource  # not on every system

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = _number("/proc/self/statm") or 0
        unlimited = soft == resource.RLIM_INFINITY
        yield None if unlimited else soft - pages * resource.getpagesize()


def available_memory() -> int | None:
    """Return the bytes this process may still take: machine, control group, process limit."""
    known = [value for value in _memory_limits() if value is not None]
    return max(min(known), 0) if known else None


class Exchange:
    """Buffers for one collective, type, reduction and root, up to `largest` elements a block."""

    def __init__(self, comms: Sequence[Communicator], collective: Collective, dtype: np.dtype[Any],
                 op: ReduceOp | None, root: int, largest: int) -> None:  # fmt: skip
        self.comms, self.collective, self.op, self.root = comms, collective, op, root
        self.dtype, self.n = dtype, comms[0].nranks
        self.inputs, self.outputs = collective.blocks(self.n)
        self.send: dict[int, Array] = {}
        self.work: dict[int, Array] = {}
        self.lent: list[tuple[Communicator, Array]] = []
        self.filled: Pattern | None = None
        self.reduced: Array | None = None
        for comm in comms:
            rank = comm.rank
            has_input = _has_input(collective, rank, root)
            has_output = _has_output(collective, rank, root)
            # Memory that ranks of a host share: the transport then copies nothing in or out.
            # Every rank asks, for nothing where it has no buffer: the request is collective.
            sent = comm.mem_alloc(self.inputs * largest * has_input, dtype)
            self.lent += [(comm, sent)]
            blocks = max(self.inputs * has_input, self.outputs) * has_output
            worked = comm.mem_alloc(blocks * largest, dtype)
            self.lent += [(comm, worked)]
            if has_input:
                self.send[rank] = sent
            if has_output:
                self.work[rank] = worked

    def close(self) -> None:
        """Give the buffers back, so that the next sweep's are not added to them."""
        self.send.clear()
        self.work.clear()
        while self.lent:
            comm, array = self.lent.pop()
            comm.mem_free(array)

    def _fill(self, count: int) -> Pattern:
        """Fill the send buffers, unless they hold what blocks of `count` need already."""
        period = period_for(count)
        if self.filled is None or self.filled.period != period:
            op = self.op if self.collective.reduces else None
            self.filled = pattern(self.dtype, op, self.n, period=period)
            self.reduced = self.filled.reduced() if op else None
            for rank, buffer in self.send.items():
                fill(buffer, self.filled.row(rank))
        return self.filled

    def _sides(self, rank: int, count: int, in_place: bool) -> tuple[Array | None, Array | None]:
        """Return the send and receive views of a call at `rank`, with the input in place."""
        send, work = self.send.get(rank), self.work.get(rank)
        if send is not None:
            send = send[: self.inputs * count]
        if work is None:
            return send, None
        shared = self.collective.in_place(rank, self.root) if in_place else -1
        if send is None or shared == -1:
            work = work[: self.outputs * count]
            work.view(np.uint8)[...] = _POISON
            return send, work
        work = work[: max(self.inputs, self.outputs) * count]
        block = slice(None) if shared is None else slice(shared * count, (shared + 1) * count)
        if len(send) < len(work):
            work.view(np.uint8)[...] = _POISON
            work[block] = send
        else:
            work[...] = send
        return (work, work[block]) if self.inputs > self.outputs else (work[block], work)

    def _wrong(self, rank: int, result: Array, count: int, content: Pattern) -> int:
        """Return the wrong elements of `rank`'s result."""
        # Which block of its origin's input a rank gets: its own, or the only one there is.
        offset = (rank if self.inputs > 1 else 0) * count
        if self.collective.reduces:
            assert self.reduced is not None
            return wrong(result, self.reduced, offset)
        origins = range(self.n) if self.outputs > 1 else (self.root,)
        return sum(wrong(result[i * count : (i + 1) * count], content.row(origin), offset)
                   for i, origin in enumerate(origins))  # fmt: skip

    def run(self, count: int, *, in_place: bool) -> int:
        """Do the call on blocks of `count` elements, and return this process's wrong elements."""
        content = self._fill(count)
        sides = {c.rank: self._sides(c.rank, count, in_place) for c in self.comms}
        options: dict[str, Any] = {}
        if self.collective.reduces:
            options["op"] = self.op
        if self.collective.rooted:
            options["root"] = self.root
        with group():
            for comm in self.comms:
                getattr(comm, self.collective.name)(*sides[comm.rank], **options)
        results: Iterable[tuple[int, Array | None]] = ((r, out) for r, (_, out) in sides.items())
        return sum(self._wrong(r, out, count, content) for r, out in results if out is not None)
