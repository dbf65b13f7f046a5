"""Allreduce, reduce_scatter and allgather from a pair of flat halves: ring, direct, circulant.

Owns how the two halves make three collectives. Every rank owns one chunk (a block): a
reduce-scatter half leaves it reduced at its owner, an allgather half hands it to all::

    allreduce       output := input, reduce-scatter half, allgather half, all on the output
    reduce_scatter  scratch := input, reduce-scatter half on scratch, output := own block; where
                    no row moves more than a block, that grows in the output
    allgather       output[own] := input, allgather half on the output
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..schedule import Layout, Phase, Schedule
from .flat import (
    Ints,
    circulant_allgather,
    circulant_reduce_scatter,
    direct_allgather,
    direct_reduce_scatter,
    handed_in,
    landed,
    local_copy,
    ring_allgather,
    ring_reduce_scatter,
)
from .recipe import Recipe, Shares, scheduled, shares_of
from .shapes import identity_order

__all__ = [
    "CIRCULANT",
    "DIRECT",
    "NVLS",
    "RING",
    "Halves",
    "allgather",
    "allreduce",
    "reduce_scatter",
]

Half = Callable[..., Iterator[Phase]]
"""Takes (group, own, width, channel, times=1), as rccl_py.algorithms.flat says."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A reduce-scatter half, its allgather half, and whether they follow the machine's rings.

    by_block: whether no row of them moves more than a rank's block, or a part of it.
    """

    name: str
    reduce_scatter: Half
    allgather: Half
    on_rings: bool = False
    by_block: bool = False


RING = Halves("ring", ring_reduce_scatter, ring_allgather, on_rings=True, by_block=True)
DIRECT = Halves("direct", direct_reduce_scatter, direct_allgather, by_block=True)
NVLS = Halves(
    "nvls",
    partial(direct_reduce_scatter, switched=True),
    partial(direct_allgather, switched=True),
)
"""The direct halves, with the switch adding up and handing on (NVIDIA's NVLink SHARP)."""
CIRCULANT = Halves("circulant", circulant_reduce_scatter, circulant_allgather)


def _groups(halves: Halves, recipe: Recipe) -> tuple[Ints, Shares]:
    if halves.on_rings:
        return recipe.rings, shares_of(recipe.weights)
    return identity_order(recipe.n), shares_of(np.ones(1, dtype=np.int32))


def _own(group: Ints, shares: Shares, base: Ints) -> Ints:
    """Return each position's chunk: the rank's block of `shares.total` slots, channel's part."""
    return np.asarray(base + group * shares.total + shares.first[:, None])


def allreduce(halves: Halves, recipe: Recipe) -> Schedule:
    """Return a two-half allreduce; n * channels chunks."""
    group, shares = _groups(halves, recipe)
    layout = Layout(recipe.n * shares.total, 1, 1)
    own = _own(group, shares, layout.output())

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(recipe.n), layout.input(), layout.output(), layout.chunks)
        yield from halves.reduce_scatter(group, own, shares.width, shares.channel)
        yield from halves.allgather(group, own, shares.width, shares.channel)

    name = "direct-twoshot" if halves is DIRECT else halves.name
    return scheduled("allreduce", name, recipe, layout, len(group), phases)


def reduce_scatter(halves: Halves, recipe: Recipe) -> Schedule:
    """Return a reduce_scatter whose partial sums live in scratch."""
    group, shares = _groups(halves, recipe)
    layout = Layout(shares.total, recipe.n, 1, recipe.n)
    ranks = np.arange(recipe.n)
    own = _own(group, shares, layout.scratch_block())

    def phases() -> Iterator[Phase]:
        half = halves.reduce_scatter(group, own, shares.width, shares.channel)
        if halves.by_block:
            yield handed_in(layout, recipe.n)
            yield from landed(
                half, int(layout.scratch_block()), layout.chunks, int(layout.output())
            )
            return
        yield local_copy(ranks, layout.input(), layout.scratch_block(), recipe.n * layout.chunks)
        yield from half
        yield local_copy(ranks, layout.scratch_block(ranks), layout.output(), layout.chunks)

    return scheduled("reduce_scatter", halves.name, recipe, layout, len(group), phases)


def allgather(halves: Halves, recipe: Recipe) -> Schedule:
    """Return an allgather on the output."""
    group, shares = _groups(halves, recipe)
    layout = Layout(shares.total, 1, recipe.n)
    ranks = np.arange(recipe.n)
    own = _own(group, shares, layout.output())

    def phases() -> Iterator[Phase]:
        yield local_copy(ranks, layout.input(), layout.output(ranks), layout.chunks)
        yield from halves.allgather(group, own, shares.width, shares.channel)

    return scheduled("allgather", halves.name, recipe, layout, len(group), phases)
