"""Steps and bytes of every algorithm, as closed formulas: tests/test_algorithms.py compares them.

A step is a repetition of a phase in which something crosses between ranks; bytes are counted in
blocks of the collective: what one rank contributes (or, of a reduce_scatter, receives).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from helpers import grid_of, tiers_of


def log2(n: int) -> int:
    """Return the smallest k with 2^k >= n."""
    return (n - 1).bit_length()


def any_(n: int) -> int:
    return int(n > 1)


def hung_below(n: int) -> int:
    """Return the depth of a double tree over the other ranks, hung below a root."""
    return 0 if n == 1 else 1 + log2(n - 1)


@dataclass(frozen=True)
class Formula:
    """steps(n, g, N) and sent(n, g, N): blocks the busiest sender sends; nodes of g, N of them."""

    steps: Callable[[int, int, int], int]
    sent: Callable[[int, int, int], Fraction | int] | None = None


_HALF = {"ring": lambda n: n - 1, "direct": any_, "circulant": log2}
_INSIDE = {**_HALF, "nvls": any_}


def _halves() -> dict[tuple[str, str], Formula]:
    table = {}
    for name, steps in _HALF.items():
        title = "direct-twoshot" if name == "direct" else name
        table["allreduce", title] = Formula(lambda n, g, N, s=steps: 2 * s(n),
                                            lambda n, g, N: Fraction(2 * (n - 1), n))  # fmt: skip
        for collective in ("reduce_scatter", "allgather"):
            table[collective, name] = Formula(lambda n, g, N, s=steps: s(n),
                                              lambda n, g, N: n - 1)  # fmt: skip
            for inner in ("direct", "ring"):
                table[collective, f"hier-{inner}-{name}"] = Formula(
                    lambda n, g, N, i=_HALF[inner], s=steps: i(g) + s(N), lambda n, g, N: n - 1
                )
    for inner in ("direct", "ring", "nvls"):
        for name, steps in _HALF.items():
            table["allreduce", f"hier-{inner}-{name}"] = Formula(
                lambda n, g, N, i=_INSIDE[inner], s=steps: 2 * (i(g) + s(N)),
                lambda n, g, N: Fraction(2 * (n - 1), n),
            )
        table["allreduce", f"hier-{inner}-tree"] = Formula(
            lambda n, g, N, i=_INSIDE[inner]: 2 * (i(g) + log2(N))
        )
    return table


def folded(n: int) -> int:
    """Return 1 where n is no power of two, so that some ranks only hand over and stand by."""
    return int(n & (n - 1) != 0)


def around(n: int) -> int:
    """Return the steps round the rings of helpers.grid_of, one dimension after another."""
    return sum(side - 1 for side in grid_of(n).shape)


def _flat() -> dict[tuple[str, str], Formula]:
    halves = {"both-ways": lambda n: n - 1, "bucket": around, "neighbour": lambda n: n // 2,
              "pat": log2, "recursive-doubling": log2, "recursive-halving": log2}  # fmt: skip
    table = {("allreduce", name): Formula(lambda n, g, N, s=steps: 2 * s(n),
                                          lambda n, g, N: Fraction(2 * (n - 1), n))
             for name, steps in (("both-ways", halves["both-ways"]), ("bucket", around),
                                 ("swing", log2))}  # fmt: skip
    table["allreduce", "recursive-doubling"] = Formula(
        lambda n, g, N: n.bit_length() - 1 + 2 * folded(n),
        lambda n, g, N: n.bit_length() - 1 + folded(n))  # fmt: skip
    table["allreduce", "halving-doubling"] = Formula(
        lambda n, g, N: 2 * (n.bit_length() - 1 + folded(n)),
        lambda n, g, N: 2 - Fraction(2, 1 << (n.bit_length() - 1)) + folded(n))  # fmt: skip
    for collective, other in (("reduce_scatter", "doubling"), ("allgather", "halving")):
        table |= {(collective, name): Formula(lambda n, g, N, s=steps: s(n), lambda n, g, N: n - 1)
                  for name, steps in halves.items() if not name.endswith(f"-{other}")}  # fmt: skip
    return table


def _levels() -> dict[tuple[str, str], Formula]:
    """Return the forms over the levels of helpers.tiers_of, the outermost first."""
    table = {}
    for inner, outer in (("direct", "direct"), ("direct", "circulant"), ("circulant", "circulant")):

        def steps(n: int, i=_HALF[inner], o=_HALF[outer]) -> int:
            first, *others = tiers_of(n).shape
            return o(first) + sum(i(m) for m in others)

        table |= _on_levels(f"levels-{inner}-{outer}", steps)

    def turned(n: int) -> int:
        *others, last = tiers_of(n).shape
        return _HALF["direct"](last) + sum(_HALF["ring"](m) for m in others)

    return table | _on_levels("turned-direct-ring", turned)


def _on_levels(name: str, steps: Callable[[int], int]) -> dict[tuple[str, str], Formula]:
    table = {("allreduce", name): Formula(lambda n, g, N: 2 * steps(n),
                                          lambda n, g, N: Fraction(2 * (n - 1), n))}  # fmt: skip
    for collective in ("reduce_scatter", "allgather"):
        table[collective, name] = Formula(lambda n, g, N: steps(n), lambda n, g, N: n - 1)
    return table


def digits(d: int, radix: int) -> list[int]:
    """Return the digits of d, the lowest first."""
    return [d % radix, *digits(d // radix, radix)] if d else []


def moved(n: int, radix: int) -> int:
    """Return the digits of 1, ..., n - 1 that are not 0: how often the blocks of a rank move."""
    return sum(digit > 0 for d in range(n) for digit in digits(d, radix))


def square(n: int) -> tuple[int, int]:
    """Return the rows and columns of the most nearly square grid, no more rows than columns."""
    rows = max(k for k in range(1, n + 1) if n % k == 0 and k * k <= n)
    return rows, n // rows


def lowest_subtree(n: int) -> int:
    """Return the most ranks below one child of a root that hands on to the farthest first."""
    return max((min(k, n - k) for k in (1 << e for e in range(log2(n)))), default=0)


FORMULAS: dict[tuple[str, str], Formula] = {
    **_halves(),
    **_flat(),
    **_levels(),
    ("allreduce", "tree"): Formula(lambda n, g, N: 2 * log2(n)),
    ("allreduce", "chain"): Formula(lambda n, g, N: 2 * (n - 1)),
    ("allreduce", "nvls"): Formula(
        lambda n, g, N: 2 * any_(n), lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("allreduce", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("alltoall", "direct"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("alltoall", "pairwise"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1),
    ("alltoall", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n * (n - 1) // 2),
    ("alltoall", "bruck"): Formula(
        lambda n, g, N: log2(n), lambda n, g, N: sum(d.bit_count() for d in range(n))),
    **{("alltoall", f"bruck-{b}"): Formula(
        lambda n, g, N, b=b: len(digits(n - 1, b)), lambda n, g, N, b=b: moved(n, b))
       for b in (4, 8)},
    ("alltoall", "grid"): Formula(
        lambda n, g, N: sum(any_(m) for m in square(n)), lambda n, g, N: 2 * n - sum(square(n))),
    ("alltoall", "torus"): Formula(
        lambda n, g, N: sum(d // 2 for d in grid_of(n).shape),
        lambda n, g, N: sum(n // d * (d * d // 4) for d in grid_of(n).shape)),
    ("alltoall", "hier-direct-pairwise"): Formula(
        lambda n, g, N: N - 1 + any_(g), lambda n, g, N: (g - 1) * N + (N - 1) * g),
    ("alltoall", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: (g - 1) * N + (N - 1) * g),
    ("alltoall", "paths"): Formula(  # those of helpers.paths_of: a third goes over one relay
        lambda n, g, N: min(2, n - 1),
        lambda n, g, N: n - 1 + (Fraction(n - n % 2, 3) if n > 2 else 0)),
    # Those of helpers.forest_of: a chain and a heap below every rank, two to one.
    ("allreduce", "forest"): Formula(
        lambda n, g, N: 2 * (n - 1), lambda n, g, N: Fraction(2 * (n - 1), n)),
    **{(c, "forest"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1)
       for c in ("reduce_scatter", "allgather")},
    ("allreduce", "mix"): Formula(
        lambda n, g, N: 2 * (n - 1), lambda n, g, N: Fraction(2 * (n - 1), n)),
    **{(c, "mix"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1)
       for c in ("reduce_scatter", "allgather")},
    ("broadcast", "arborescences"): Formula(
        lambda n, g, N: n - 1, lambda n, g, N: Fraction(2 * any_(n) + min(2, n - 1), 3)),
    ("reduce", "arborescences"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("broadcast", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("broadcast", "tree"): Formula(lambda n, g, N: hung_below(n)),
    ("broadcast", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("broadcast", "direct-twoshot"): Formula(
        lambda n, g, N: 2 * any_(n), lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("reduce", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: any_(n)),
    ("reduce", "tree"): Formula(lambda n, g, N: hung_below(n), lambda n, g, N: any_(n)),
    ("reduce", "direct-oneshot"): Formula(lambda n, g, N: any_(n), lambda n, g, N: any_(n)),
    ("reduce", "direct-twoshot"): Formula(lambda n, g, N: 2 * any_(n), lambda n, g, N: any_(n)),
    **{(c, f"hier-direct-{between}"): Formula(
        lambda n, g, N, s=steps: 2 * any_(g) + s(N))
       for c in ("broadcast", "reduce")
       for between, steps in (("ring", _HALF["ring"]), ("tree", hung_below), ("direct", any_))},
    **{(c, "direct"): Formula(lambda n, g, N: any_(n), sent)
       for c, sent in (("gather", lambda n, g, N: any_(n)), ("scatter", lambda n, g, N: n - 1))},
    ("gather", "ring"): Formula(lambda n, g, N: n - 1),
    ("scatter", "ring"): Formula(lambda n, g, N: n - 1, lambda n, g, N: n - 1),
    ("gather", "tree"): Formula(lambda n, g, N: max(d.bit_count() for d in range(n))),
    ("scatter", "tree"): Formula(
        lambda n, g, N: max(d.bit_count() for d in range(n)), lambda n, g, N: n - 1),
    ("allgather", "dissemination"): Formula(lambda n, g, N: log2(n), lambda n, g, N: n - 1),
    ("broadcast", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: log2(n)),
    ("reduce", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: any_(n)),
    ("gather", "binomial"): Formula(
        lambda n, g, N: log2(n), lambda n, g, N: lowest_subtree(n)),
    ("scatter", "binomial"): Formula(lambda n, g, N: log2(n), lambda n, g, N: n - 1),
    ("broadcast", "scatter-ring"): Formula(
        lambda n, g, N: log2(n) + n - 1, lambda n, g, N: Fraction(2 * (n - 1), n)),
    ("reduce", "ring-gather"): Formula(
        lambda n, g, N: n - 1 + log2(n), lambda n, g, N: Fraction(n - 1 + lowest_subtree(n), n)),
    ("broadcast", "multicast"): Formula(lambda n, g, N: any_(n), lambda n, g, N: n - 1),
    ("reduce", "nvls"): Formula(lambda n, g, N: any_(n), lambda n, g, N: any_(n)),
    ("gather", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: N if g > 1 else any_(N)),
    ("scatter", "hier-direct-direct"): Formula(
        lambda n, g, N: any_(g) + any_(N), lambda n, g, N: (g - 1) * N + N - 1),
}  # fmt: skip
