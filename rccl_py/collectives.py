"""What each collective is: who starts with what, who must end with what, and its busbw factor.

Owns the start and goal of every collective as part numbers, and how rccl-tests counts its size.
Knows no algorithm. A block is the unit one rank contributes or receives; a part is the identity
of a block's content: two blocks that start with the same part number are to be reduced together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .arguments import text
from .errors import InvalidArgument
from .schedule import I32

__all__ = ["COLLECTIVES", "Collective", "collective_named"]


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of the table.

    inputs, outputs: blocks at a rank, "one" or "all" (one per rank). starts(n, root) and
    goals(n, root): int32[n, blocks], the part of each block, -1 where a rank has no such buffer.
    reduces: contributions of all ranks are combined; else a part has one origin, origin(part, n,
    root). factor(n): busbw over algbw (nccl-tests, PERFORMANCE.md). in_place(rank, root): which
    block of the larger side the smaller one is, None when the sides are the same, -1 when the
    collective has no in-place form.
    """

    name: str
    perf_name: str
    title: str
    inputs: str
    outputs: str
    reduces: bool
    rooted: bool
    starts: Callable[[int, int], I32]
    goals: Callable[[int, int], I32]
    origin: Callable[[int, int, int], int]
    factor: Callable[[int], float]
    in_place: Callable[[int, int], int | None]

    def blocks(self, n: int) -> tuple[int, int]:
        """Return the input and output blocks of a rank that has both."""
        return (n if self.inputs == "all" else 1), (n if self.outputs == "all" else 1)

    def own(self, n: int) -> int:
        """Return the blocks of its input that a rank finds in its output, where that is not all.

        Of an allgather, alltoall, gather or scatter one: a copy that no schedule can avoid.
        """
        return int(n > 1 and not self.reduces and "all" in (self.inputs, self.outputs))

    def size(self, block_bytes: float, n: int) -> float:
        """Return rccl-tests' size in bytes of a call whose block is `block_bytes`."""
        return max(self.blocks(n)) * block_bytes


def _ranks(n: int) -> I32:
    return np.arange(n, dtype=np.int32)[:, None]


def _zero(n: int, _root: int) -> I32:
    return np.zeros((n, 1), dtype=np.int32)


def _own(n: int, _root: int) -> I32:
    return _ranks(n)


def _each(n: int, _root: int) -> I32:
    every: I32 = np.broadcast_to(_ranks(n).T, (n, n))
    return every


def _cross_in(n: int, _root: int) -> I32:
    parts: I32 = _ranks(n) * np.int32(n) + _ranks(n).T
    return parts


def _cross_out(n: int, _root: int) -> I32:
    parts: I32 = _ranks(n).T * np.int32(n) + _ranks(n)
    return parts


def _at_root(whole: Callable[[int, int], I32]) -> Callable[[int, int], I32]:
    def only(n: int, root: int) -> I32:
        return np.where(_ranks(n) == root, whole(n, root), -1).astype(np.int32)

    return only


def _ring(n: int) -> float:
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


def _unit(_n: int) -> float:
    return 1.0


def _same(_rank: int, _root: int) -> int | None:
    return None


def _mine(rank: int, _root: int) -> int | None:
    return rank


def _roots(rank: int, root: int) -> int | None:
    return root if rank == root else None


def _never(_rank: int, _root: int) -> int | None:
    return -1


def _from_part(part: int, _n: int, _root: int) -> int:
    return part


def _from_row(part: int, n: int, _root: int) -> int:
    return part // n


def _from_root(_part: int, _n: int, root: int) -> int:
    return root


def _table(*rows: Collective) -> dict[str, Collective]:
    return {row.name: row for row in rows}


COLLECTIVES: dict[str, Collective] = _table(
    Collective(
        "allreduce",
        "all_reduce",
        "AllReduce",
        "one",
        "one",
        True,
        False,
        _zero,
        _zero,
        _from_part,
        _twice,
        _same,
    ),
    Collective(
        "allgather",
        "all_gather",
        "AllGather",
        "one",
        "all",
        False,
        False,
        _own,
        _each,
        _from_part,
        _ring,
        _mine,
    ),
    Collective(
        "reduce_scatter",
        "reduce_scatter",
        "ReduceScatter",
        "all",
        "one",
        True,
        False,
        _each,
        _own,
        _from_part,
        _ring,
        _mine,
    ),
    Collective(
        "alltoall",
        "alltoall",
        "AlltoAll",
        "all",
        "all",
        False,
        False,
        _cross_in,
        _cross_out,
        _from_row,
        _ring,
        _never,
    ),
    Collective(
        "broadcast",
        "broadcast",
        "Broadcast",
        "one",
        "one",
        False,
        True,
        _at_root(_zero),
        _zero,
        _from_root,
        _unit,
        _same,
    ),
    Collective(
        "reduce",
        "reduce",
        "Reduce",
        "one",
        "one",
        True,
        True,
        _zero,
        _at_root(_zero),
        _from_part,
        _unit,
        _same,
    ),
    Collective(
        "gather",
        "gather",
        "Gather",
        "one",
        "all",
        False,
        True,
        _own,
        _at_root(_each),
        _from_part,
        _ring,
        _roots,
    ),
    Collective(
        "scatter",
        "scatter",
        "Scatter",
        "all",
        "one",
        False,
        True,
        _at_root(_each),
        _own,
        _from_root,
        _ring,
        _roots,
    ),
)
"""Factors: facts of nccl-tests; in place: NCCL user guide, "In-place operations"."""

_ALIASES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
}


def collective_named(name: str) -> Collective:
    """Return the collective called `name` (``all_reduce_perf`` and the like are understood)."""
    key = text(name, "collective").lower().replace("-", "_").removesuffix("_perf")
    key = _ALIASES.get(key, key)
    if key not in COLLECTIVES:
        raise InvalidArgument(f"collective {name!r} is not known: one of {', '.join(COLLECTIVES)}")
    return COLLECTIVES[key]
