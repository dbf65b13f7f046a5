"""About how many distinct messages a schedule has, on n ranks with g a node.

Owns the estimates of the registry's `rows` and `summed`: a planner asks them what not to
enumerate, so the order of magnitude is what matters. Repeats of a phase count once. Knows no
schedule.
"""

from __future__ import annotations

import math

__all__ = [
    "cube",
    "halving",
    "in_pairs",
    "in_two_pairs",
    "linear",
    "log",
    "nested",
    "on_grid",
    "on_heads",
    "on_rails",
    "on_rails_log",
    "on_torus",
    "on_torus_log",
    "square",
    "torus_rows",
    "two_stage",
]


def linear(n: int, _g: int) -> float:
    """Return those of one ring, chain or tree."""
    return n


def nested(n: int, g: int) -> float:
    """Return those of three levels, the outer two alike."""
    return 2 * n * (g + 2 * math.sqrt(n / g))


def on_heads(n: int, g: int) -> float:
    """Return those of a pair of trees for every rank of a node, which leads it."""
    return 2.0 * n * g if g < n else n * max(1.0, g / 8)


def square(n: int, _g: int) -> float:
    """Return those between all pairs."""
    return n * n


def torus_rows(n: int, _g: int) -> float:
    """Return those of three equal dimensions: messages, whatever is in them."""
    return float(18 * n ** (4 / 3))


def cube(n: int, _g: int) -> float:
    """Return those of every block relayed along a ring."""
    return n**3 / 2


def log(n: int, _g: int) -> float:
    """Return those of one message a rank in every step of a doubling."""
    return n * math.log2(n + 1)


def halving(n: int, _g: int) -> float:
    """Return those of a doubling there and back."""
    return 2 * n * math.log2(n + 1)


def on_torus(n: int, _g: int) -> float:
    """Return those of six stages of six colours."""
    return 36 * n


def on_torus_log(n: int, _g: int) -> float:
    """Return those of six copies of a doubling."""
    return 12 * n * math.log2(n + 1)


def two_stage(n: int, g: int) -> float:
    """Return those of all pairs inside nodes, then on rails."""
    return n * (g + n / g)


def on_rails(n: int, g: int) -> float:
    """Return those of all pairs inside nodes, and rings on rails."""
    return n * (g + 2)


def on_rails_log(n: int, g: int) -> float:
    """Return those of all pairs inside nodes, and doublings on rails."""
    return n * (g + 2 * math.log2(n / g + 1))


def in_pairs(n: int, g: int) -> float:
    """Return those between nodes, summed: a rank for every local number."""
    return n * g


def in_two_pairs(n: int, g: int) -> float:
    """Return those of two stages, both summed."""
    return 2 * n * g


def on_grid(n: int, _g: int) -> float:
    """Return those along rows and columns of a square."""
    return 2 * n * math.sqrt(n)
