"""Loads of many phases of few rows each, all at once: a chain of 512 ranks has a thousand.

Owns the arithmetic of rccl_py.timing.loads with one more column, the phase each row is of. What a
phase gets is what it would get alone; sums may differ in the last bit. Knows no size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..fabric import F64, I64, Fabric
from ..schedule import REDUCE, Phase
from .memory import STAGED, staged
from .messages import Messages, spent
from .wires import numbered

__all__ = ["FEW", "few_loads"]

FEW = 256
"""Rows of a phase that are not worth a look of their own."""

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Parts = tuple[I32, F64, I32, F64, F64, bool, bool]
"""The fields of a Load."""


class _Rows(NamedTuple):
    """Rows of all phases, in order; int64[rows] each. phase, move: which they are of."""

    phase: I64
    move: I64
    src: I64
    dst: I64
    slots: I64
    reduces: Bools
    channel: I64


def few_loads(fabric: Fabric, phases: Sequence[Phase]) -> Iterator[Parts]:
    """Yield the fields of each phase's Load. Phases of rows that no switch does, none `together`.

    Of a single move all rows with the same two ends are one message, of several neighbours are, as
    in rccl_py.timing.messages.
    """
    rows, n = _rows(phases), fabric.nranks
    many = _to_many(rows, len(phases), n)
    phase, sent = _merged(rows, phases, n)
    apart = np.flatnonzero(sent.src != sent.dst)
    phase, sent = phase[apart], sent.part(apart)
    link, slots, ends = _on_links(fabric, phase, sent, many)
    who, ranks, edges = _at_ranks(fabric, rows, phase, sent, many)
    latency = np.zeros((3, len(phases)))
    leaves = np.zeros(len(phases), dtype=bool)
    starts = np.flatnonzero(np.diff(phase, prepend=-1))
    remote = np.zeros(len(phases), dtype=bool)
    if len(starts):
        hops = fabric.latency(sent.src, sent.dst)
        latency[:, phase[starts]] = np.maximum.reduceat(hops, starts, axis=1)
        remote[phase[starts]] = True
        leaves[phase[fabric.node[sent.src] != fabric.node[sent.dst]]] = True
    for p in range(len(phases)):
        a, b = ends[p : p + 2]
        c, d = edges[p : p + 2]
        yield (link[a:b], slots[a:b], who[c:d], ranks[:, c:d], latency[:, p],
               bool(leaves[p]), bool(remote[p]))  # fmt: skip


def _rows(phases: Sequence[Phase]) -> _Rows:
    moves = [(p, m.rows) for p, phase in enumerate(phases) for m in phase.moves]
    length = np.array([len(r.src) for _, r in moves])
    columns = [np.concatenate([getattr(r, c) for _, r in moves]).astype(np.int64)
               for c in ("src", "dst", "total", "op", "channel")]  # fmt: skip
    phase = np.repeat(np.array([p for p, _ in moves]), length)
    src, dst, count, op, channel = columns
    move = np.repeat(np.arange(len(moves)), length)
    return _Rows(phase, move, src, dst, count, op == REDUCE, channel)


def _to_many(rows: _Rows, count: int, n: int) -> Bools:
    """Return what rccl_py.timing.messages.to_many says of each phase: bool[phases]."""
    found = np.zeros(count, dtype=bool)
    far = np.flatnonzero(rows.src != rows.dst)
    lanes = int(rows.channel.max(initial=0)) + 1
    sender = (rows.phase[far] * lanes + rows.channel[far]) * n + rows.src[far]
    ends = np.unique(sender * n + rows.dst[far]) // n
    third = ends[2:][ends[2:] == ends[:-2]]
    found[third // (n * lanes)] = True
    return found


def _merged(rows: _Rows, phases: Sequence[Phase], n: int) -> tuple[I64, Messages]:
    """Return the phase of each message, ascending, and the messages."""
    key = (rows.phase * n + rows.src) * n + rows.dst
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    slots = np.add.reduceat(rows.slots, starts)
    single = np.array([len(p.moves) == 1 for p in phases])[rows.phase[starts]]
    if single.any():
        own = np.flatnonzero(single)
        _, first, of = np.unique(key[starts[own]], return_index=True, return_inverse=True)
        slots[own[first]] = np.bincount(of, weights=slots[own]).astype(np.int64)
        kept = np.sort(np.concatenate([np.flatnonzero(~single), own[first]]))
        starts, slots = starts[kept], slots[kept]
    src, dst = (c[starts].astype(np.int32) for c in (rows.src, rows.dst))
    return rows.phase[starts], Messages(src, dst, slots, np.zeros(len(starts), dtype=np.int64))


def _on_links(
    fabric: Fabric, phase: I64, sent: Messages, many: Bools
) -> tuple[I32, F64, npt.NDArray[np.intp]]:
    """Return links, slots on them, and where each phase's begin: [k], [k], [phases + 1]."""
    heavy, size = sent.slots.astype(np.float64), fabric.nlinks
    routes = fabric.routes(sent.src, sent.dst, heavy)
    number = phase[routes.row]
    used, at = numbered(number * size + routes.link, len(many) * size)
    slots = np.zeros(len(used))
    slots += np.bincount(at, weights=heavy[routes.row] * routes.share, minlength=len(used))
    of, link = np.divmod(used, size)
    if many.any():
        slots = np.where(many[of], slots / fabric.spread[link], slots)
    return link.astype(np.int32), slots, np.searchsorted(of, np.arange(len(many) + 1))


def _at_ranks(
    fabric: Fabric, rows: _Rows, phase: I64, sent: Messages, many: Bools
) -> tuple[I32, F64, npt.NDArray[np.intp]]:
    """Return ranks, float64[5, k] what each does, and where each phase's begin.

    The rows are those of rccl_py.timing.loads: moved, reduced, sending, out, into.
    """
    n = fabric.nranks
    reads, writes = rows.phase * n + rows.src, rows.phase * n + rows.dst
    used, at = numbered(np.concatenate([reads, writes]), len(many) * n)
    reads, writes = at[: len(reads)], at[len(reads) :]
    place = np.full(len(many) * n, -1) if len(many) * n <= 16 * len(used) else None

    def of(rank: I32) -> I64:
        key = phase * n + rank
        return np.searchsorted(used, key) if place is None else place[key]

    if place is not None:
        place[used] = np.arange(len(used))
    out, into, size = of(sent.src), of(sent.dst), len(used)

    def total(where: I64, much: F64 | I64) -> F64:
        return np.asarray(np.bincount(where, much, size), dtype=np.float64)

    added = total(writes, rows.slots * rows.reduces)
    target = added
    if rows.move[-1] > rows.phase[-1]:  # posted together: into the same slots
        keys, own = np.unique(rows.move * size + writes, return_inverse=True)
        each = np.bincount(own, rows.slots * rows.reduces, len(keys))
        target = np.zeros(size)
        np.maximum.at(target, keys % size, each)
    moved = total(reads, rows.slots) + total(writes, rows.slots * ~rows.reduces) + 2.0 * target
    detour = staged(fabric, sent.src, sent.dst)
    if detour is not None:
        moved += total(into, np.asarray(STAGED * sent.slots * detour, dtype=np.float64))
    ranks = np.stack([
        moved, added, total(out, spent(fabric, sent, many[phase])), total(out, sent.slots),
        total(into, sent.slots),
    ])  # fmt: skip
    of_phase, who = np.divmod(used, n)
    return who.astype(np.int32), ranks, np.searchsorted(of_phase, np.arange(len(many) + 1))
