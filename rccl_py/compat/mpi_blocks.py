"""Elements in a memory, and the bytes that travel for them.

Owns Block and Parts. Everything travels as bytes; where an element's bytes lie one after another
they are the memory's own, else a packed copy, unpacked into place afterwards. Knows no collective,
and not how a message was written down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .mpi_errors import MessageError
from .mpi_types import Datatype

__all__ = ["Block", "Parts"]

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Block:
    """`total` elements of one type, from byte `at` of a memory. count: of one rank's block."""

    memory: Bytes
    kind: Datatype
    count: int
    total: int
    at: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one block that travel."""
        return self.count * self.kind.size

    @property
    def packed(self) -> bool:
        """Whether the bytes that travel are not the memory's own."""
        return self.kind.places is not None

    def _places(self) -> npt.NDArray[np.int64]:
        starts = self.at + self.kind.extent * np.arange(self.total, dtype=np.int64)
        places: npt.NDArray[np.int64] = (starts[:, None] + self.kind._bytes()).reshape(-1)
        return places

    def read(self) -> Bytes:
        """Return the bytes to send: the memory's own where they lie one after another."""
        if self.packed:
            return self.memory[self._places()]
        return self.memory[self.at : self.at + self.total * self.kind.extent]

    def area(self, load: bool = False) -> Bytes:
        """Return bytes to receive into. load: they hold the block's own data (in place)."""
        if not self.packed or load:
            return self.read()
        return np.empty(self.total * self.kind.size, np.uint8)

    def settle(self, area: Bytes) -> None:
        """Put what was received into `area` where it belongs; fewer bytes fill its start."""
        if self.packed:
            self.memory[self._places()[: area.size]] = area

    def elements(self, what: str) -> Array:
        """Return the elements as an array, to compute with."""
        if self.kind.dtype is None:
            raise MessageError(f"{what}: no reduction works on a derived datatype")
        return self.read().view(self.kind.dtype)


@dataclass(frozen=True, eq=False)
class Parts:
    """A block for every rank, each anywhere in one memory and of a type of its own."""

    blocks: list[Block]
    whole: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    @property
    def counts(self) -> list[int]:
        """Bytes that travel, by rank."""
        return [b.nbytes for b in self.blocks]

    @property
    def _direct(self) -> bool:
        return not any(b.packed for b in self.blocks)

    @property
    def displs(self) -> list[int]:
        """Where each rank's bytes start in what read() and area() return."""
        if self._direct:
            return [b.at for b in self.blocks]
        counts = self.counts
        return [sum(counts[:r]) for r in range(len(counts))]

    def read(self) -> Bytes:
        """Return the bytes to send, of all ranks."""
        return self.whole if self._direct else np.concatenate([b.read() for b in self.blocks])

    def area(self, load: bool = False) -> Bytes:
        """Return bytes to receive into. load: they hold the parts' own data (in place)."""
        if self._direct or load:
            return self.read()
        return np.empty(sum(self.counts), np.uint8)

    def settle(self, area: Bytes) -> None:
        """Put what was received into `area` where it belongs."""
        if self._direct:
            return
        for block, at in zip(self.blocks, self.displs):
            got = area[at : at + block.nbytes]
            if block.packed:
                block.settle(got)
            else:
                block.read()[:] = got
