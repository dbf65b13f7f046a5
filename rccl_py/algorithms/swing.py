"""Swing: halving and doubling with partners that swing to either side, near ones first.

Owns who is whose partner, on a line of ranks and on a torus. At step s the even positions go
1, -1, 3, -5, 11, ... places on, (1 - (-2)^(s+1)) / 3 of them, and the odd ones as far back: about
two thirds of the 1, 2, 4, 8, ... of halving-doubling, so that fewer messages share a link of a
ring::

    4 ranks    step 0   0 <-> 1   2 <-> 3        step 1   1 <-> 2   3 <-> 0

On a torus of D dimensions 2 D copies of it run at once, each with its share of the data: copy c
takes the dimensions in turn from dimension c on, and half of the copies swing the other way, so
that every port of every rank is in use.

Source: D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: short-cutting rings for higher
bandwidth allreduce", NSDI 2024.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import Layout, Phase, Schedule, together
from .exchange import Turns, backwards, forwards, nesting, pairs, power_of_two
from .flat import Ints, local_copy
from .recipe import Recipe, scheduled
from .shapes import identity_order

__all__ = ["allreduce", "copies_of", "partners_of"]


def _swung(shape: tuple[int, ...], axis: int, s: int, sign: int) -> Ints:
    """Return each position's partner along `axis` at its step s: int[q], row-major positions."""
    size = shape[axis]
    by = sign * ((1 - (-2) ** (s + 1)) // 3)
    place = np.arange(size)
    partner = np.where(place % 2 == 0, place + by, place - by) % size
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    return np.asarray(np.take(grid, partner, axis=axis).ravel())


def partners_of(shape: tuple[int, ...], first: int, sign: int) -> Ints:
    """Return int[log2(q), q]: the dimensions in turn from `first` on, until each is used up."""
    axes = [(first + k) % len(shape) for k in range(len(shape))]
    turn = [(s, axis) for s in range(max(shape).bit_length()) for axis in axes]
    steps = [_swung(shape, axis, s, sign) for s, axis in turn if s < shape[axis].bit_length() - 1]
    return np.array(steps, dtype=np.int64).reshape(-1, int(np.prod(shape)))


def copies_of(shape: tuple[int, ...]) -> list[Ints]:
    """Return the partners of every copy; a side of two has but one way, no mirror image."""
    signs = (1, -1) if max(shape) > 2 else (1,)
    return [partners_of(shape, axis, sign) for sign in signs for axis in range(len(shape))]


def allreduce(recipe: Recipe) -> Schedule:
    """Return the allreduce, n a power of two: 2 log2(n) steps, on the grid if there is one.

    Each copy's chunks are numbered such that what a rank keeps is always one run. Raises
    ScheduleError where n is no power of two.
    """
    n = recipe.n
    power_of_two("allreduce/swing", n, "circulant")
    if recipe.grid is None:
        group, copies = identity_order(n)[0], [partners_of((n,), 0, 1)]
    else:
        sides = tuple(d for d in recipe.grid.shape if d > 1) or (1,)
        group, copies = recipe.grid.ravel(), copies_of(sides)
    layout = Layout(len(copies) * n, 1, 1)

    def turns(c: int, partners: Ints) -> Turns:
        own = np.empty(n, dtype=np.int64)
        own[nesting(partners)] = layout.output() + c * n + np.arange(n)
        return pairs(partners, group, own, 1, c)

    made = [turns(c, partners) for c, partners in enumerate(copies)]

    def phases() -> Iterator[Phase]:
        yield local_copy(np.arange(n), layout.input(), layout.output(), layout.chunks)
        yield from together(*(backwards(each) for each in made))
        yield from together(*(forwards(each) for each in made))

    return scheduled("allreduce", "swing", recipe, layout, len(copies), phases)
