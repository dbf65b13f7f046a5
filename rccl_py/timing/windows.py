"""Pipelines of many pieces: which stages run at once, and what all of them ask together.

Owns the counting of a pipeline's steps without taking it apart, and lumps: links (and ranks) that
are alike in every stage stand for one another, so that 100,000 ranks are some thousand columns.

    stages a b c, 3 pieces     step      0    1    2    3    4
                               at once   a    ab   abc  bc   c      counts int[steps, stages]

Knows loads of stages; no schedule, no size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..fabric import F64, Fabric, firsts

if TYPE_CHECKING:
    from .loads import Load

__all__ = ["Lumps", "link_sorts", "lumps", "most", "peaks", "windows"]

I64 = npt.NDArray[np.int64]

_CELLS = 1 << 20  # steps times columns that are added up at a time: bounds memory, not results


def windows(steps: I64, pieces: int) -> tuple[I64, I64]:
    """Return (repetitions, counts) of the phases of a pipeline: int64[k], int64[k, stages].

    steps: int64[stages], repetitions of each stage. counts: pieces that are in each stage then.
    """
    start = np.concatenate([[0], np.cumsum(steps)])
    breaks = np.unique(start[:, None] + np.arange(pieces))
    now = breaks[:-1, None]
    last = np.minimum(now - start[:-1], pieces - 1)
    first = np.maximum(now - start[1:] + 1, 0)
    return np.diff(breaks), np.maximum(last - first + 1, 0)


@dataclass(frozen=True, eq=False, slots=True)
class Lumps:
    """Stages as columns, one for all links that are alike in all of them, and so for ranks.

    at: int64[m], the first link of each sort. link: float64[stages, m], slots on it. pace:
    float64[3, m], s a byte. rank: float64[5, stages, r], what a rank of each sort does. used:
    int64[k], all links that are used; of: int64[k], the sort of each. latency: float64[stages, 3].
    """

    at: I64
    link: F64
    pace: F64
    rank: F64
    used: I64
    of: I64
    latency: F64


def lumps(fabric: Fabric, stages: list[Load]) -> Lumps:
    """Return the lumps of some stages.

    What is alike is known by a sum with random weights of 53 bits: unlike ones are taken for one
    another once in about 1e9 pipelines, and only if they nearly agree.
    """
    used, at, of = link_sorts(fabric, stages)
    rank, weights = np.zeros(fabric.nranks), np.random.default_rng(3).random((len(stages), 5))
    for load, weight in zip(stages, weights + 0.5):
        for row, part in zip(load.ranks, weight):
            rank[load.who] += row * part
    ranks, _ = firsts(rank)
    return Lumps(
        at,
        np.stack([_at(load.at, load.slots, at) for load in stages]),
        fabric.pace[:, at],
        np.stack([_at(load.who, load.ranks, ranks) for load in stages], axis=1),
        used,
        of,
        np.stack([load.latency for load in stages]),
    )


def link_sorts(fabric: Fabric, stages: list[Load]) -> tuple[I64, I64, I64]:
    """Return (links used, the first link of each sort, the sort of each used)."""
    link = np.zeros(fabric.nlinks)
    for load, weight in zip(stages, np.random.default_rng(1).random(len(stages)) + 0.5):
        link[load.at] += load.slots * weight
    used = np.flatnonzero(link)
    sign = link[used]
    scale = sign.max(initial=1.0) / fabric.pace.max(initial=1e-300)
    for row, part in zip(fabric.pace, np.random.default_rng(2).random(3)):
        sign += row[used] * (scale * part)
    at, same = firsts(sign)
    sort = np.empty(len(used), dtype=np.int64)
    sort[at] = np.arange(len(at))
    return used, used[at], sort[same]


def _at(keys: npt.NDArray[np.int32], values: F64, wanted: I64) -> F64:
    """Return the values of some keys of an ordered column, 0 where there is none."""
    if not len(keys):
        return np.zeros((*values.shape[:-1], len(wanted)))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[..., place], 0.0)


def _sums(counts: I64, columns: F64) -> Iterator[tuple[int, F64]]:
    """Yield (first column, counts @ columns) of a block of columns at a time: float64[k, block].

    Added stage after stage, the last first, so that the sum is the same on every machine.
    """
    stages, wide = columns.shape
    busy = counts > 0
    spans = list(zip(busy.argmax(axis=0), len(counts) - busy[::-1].argmax(axis=0)))
    block = max(1, _CELLS // len(counts))
    for first in range(0, wide, block):
        part = columns[:, first : first + block]
        total = np.zeros((len(counts), part.shape[1]))
        for s in reversed(range(stages)):
            a, b = spans[s]
            total[a:b] += counts[a:b, s, None] * part[s]
        yield first, total


def most(counts: I64, columns: F64, pace: F64 | None = None) -> tuple[F64, I64]:
    """Return (largest, column) of counts @ columns times each row of pace: float64, int64[p, k].

    The first column where several are as large.
    """
    paces = np.ones((1, columns.shape[1])) if pace is None else pace
    found = np.full((len(paces), len(counts)), -1.0)
    at = np.zeros(found.shape, dtype=np.int64)
    for first, total in _sums(counts, columns):
        for row, best, where in zip(paces, found, at):
            each = total if pace is None else total * row[first : first + total.shape[1]]
            top = each.argmax(axis=1)
            value = each[np.arange(len(each)), top]
            more = value > best
            best[more], where[more] = value[more], first + top[more]
    return found, at


def peaks(counts: I64, ranks: F64) -> F64:
    """Return the largest of counts @ each of ranks, float64[q, stages, r]: float64[q, k]."""
    q, stages, wide = ranks.shape
    if q * wide * len(counts) > _CELLS:
        return np.stack([most(counts, columns)[0][0] for columns in ranks])
    ((_, total),) = _sums(counts, ranks.swapaxes(0, 1).reshape(stages, -1))
    return np.asarray(total.reshape(len(counts), q, wide).max(axis=2).T)
