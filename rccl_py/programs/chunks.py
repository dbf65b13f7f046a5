"""A small language to write a schedule in: take a chunk, copy it somewhere, reduce it into one.

    program = Program("allgather", 4)
    for r in range(4):
        chunk = program.chunk(r, "input").copy(r, "output", r)
        for k in range(1, 4):
            chunk = chunk.copy((r + k) % 4, "output", r)
    ring = program.custom("ring")

Owns Program and Chunk. Statements run in the order they are written; what does not need the result
of another shares a step with it. Knows no threads and no files.

References: the idea of chunks as the language is MSCCLang's (Cowan et al., ASPLOS 2023).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from ..arguments import whole
from ..collectives import collective_named
from ..errors import InvalidArgument, ScheduleError
from .ledger import Fault, Ledger, Place
from .placing import schedule_of
from .plan import Custom, proved

__all__ = ["Chunk", "Program"]

_MOST_RANKS = 1024
_MOST_CHUNKS = 1 << 18  # of all inputs: what a rank holds is followed chunk by chunk
_BUFFERS = {"input": "i", "output": "o", "scratch": "s", "i": "i", "o": "o", "s": "s"}


@dataclass(frozen=True, slots=True)
class _Statement:
    """What a line of a program says: copy `source` to `target`, or add it there."""

    where: str
    source: list[Place]
    target: list[Place]
    channel: int
    adds: bool

    def do(self, ledger: Ledger) -> None:
        """Note it in a ledger. Raises Fault."""
        ledger.writer = self.where
        values = [ledger.look(place) for place in self.source]
        if self.adds:
            ledger.reduce(values, self.target, self.target, 0, 0, self.channel)
        else:
            ledger.copy(values, self.target[0][0], self.target, 0, 0, self.channel)


class Program:
    """A schedule being written: `collective` on `nranks` ranks, blocks cut into `chunks` chunks.

    in_place: input and output are the same memory, as in an in-place call; the schedule serves
    other calls too. Chunks of a buffer are counted over its blocks: block b has chunks b * chunks
    to (b + 1) * chunks - 1.
    """

    def __init__(
        self,
        collective: str,
        nranks: int,
        *,
        chunks: int = 1,
        root: int = 0,
        in_place: bool = False,
    ) -> None:
        spec = collective_named(collective)
        self.nranks = whole(nranks, "Program: nranks", 1, _MOST_RANKS)
        self.chunks = whole(chunks, "Program: chunks", 1, _MOST_CHUNKS)
        root = whole(root, "Program: root", 0, self.nranks - 1)
        cells = self.nranks * spec.blocks(self.nranks)[0] * self.chunks
        if cells > _MOST_CHUNKS:
            raise InvalidArgument(
                f"Program: {cells} chunks in all inputs, at most {_MOST_CHUNKS}: use fewer chunks, "
                "or write phases (rccl_py.custom)"
            )
        self._ledger = Ledger(spec.name, self.nranks, root, self.chunks, in_place)
        self._statements: list[_Statement] = []
        self._channels = 1

    def chunk(self, rank: int, buffer: str, first: int = 0, count: int = 1) -> Chunk:
        """Return `count` neighbouring chunks of a buffer ("input", "output" or "scratch")."""
        return Chunk(self, *self._place(rank, buffer, first, count))

    def _place(self, rank: int, buffer: str, first: int, count: int) -> tuple[int, str, int, int]:
        rank = whole(rank, "chunk: rank", 0, self.nranks - 1)
        if buffer not in _BUFFERS:
            raise InvalidArgument(f"chunk: buffer {buffer!r}: input, output or scratch is expected")
        short, ledger = _BUFFERS[buffer], self._ledger
        blocks = {"i": ledger.inputs, "o": ledger.outputs, "s": _MOST_CHUNKS}[short]
        most = blocks * self.chunks
        first = whole(first, f"chunk: first of rank {rank}'s {buffer}", 0, most - 1)
        count = whole(count, f"chunk: count from {buffer} chunk {first} on", 1, most - first)
        return rank, short, first, count

    def _do(self, statement: _Statement) -> None:
        self._channels = max(self._channels, whole(statement.channel, "channel", 0, 63) + 1)
        try:
            statement.do(self._ledger)
        except Fault as fault:
            raise ScheduleError(f"{statement.where}: {fault}") from None
        self._statements.append(statement)

    def _say(self) -> str:
        frame = sys._getframe(2)
        return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"

    def custom(
        self,
        name: str,
        *,
        protocols: tuple[str, ...] = ("LL", "LL128", "Simple"),
        least: float = 0,
        most: float = math.inf,
    ) -> Custom:
        """Return what was written as a schedule, proved.

        Raises ScheduleError where it misses the collective's goal.
        """
        where = self._say()
        other = self._ledger.fresh(fused=False)
        for statement in self._statements:
            statement.do(other)
        try:
            best = min(self._ledger, other, key=Ledger.burden)
            schedule = schedule_of(best, name, self._channels)
        except Fault as fault:
            raise ScheduleError(f"{where}: {name}: {fault}") from None
        return Custom(proved(schedule), name, protocols, least, most, where)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring chunks at a rank: a place, not what it held when it was named."""

    program: Program
    rank: int
    buffer: str
    first: int
    count: int

    @property
    def places(self) -> list[Place]:
        """The place of each."""
        return [(self.rank, self.buffer, self.first + k) for k in range(self.count)]

    def copy(self, rank: int, buffer: str, first: int = 0, *, channel: int = 0) -> Chunk:
        """Copy to a place at `rank` (which may be the same) and return that place.

        Raises ScheduleError where nothing was written here yet.
        """
        program = self.program
        target = Chunk(program, *program._place(rank, buffer, first, self.count))
        program._do(_Statement(program._say(), self.places, target.places, channel, adds=False))
        return target

    def reduce(self, other: Chunk, *, channel: int = 0) -> Chunk:
        """Combine `other`, of this or another rank, into this place and return it.

        Raises ScheduleError where the two are not the same chunk, or a rank would count twice.
        """
        if not isinstance(other, Chunk) or other.count != self.count:
            raise InvalidArgument(
                f"reduce: {other!r}: a Chunk of {self.count} chunk(s) was expected"
            )
        program = self.program
        program._do(_Statement(program._say(), other.places, self.places, channel, adds=True))
        return self
