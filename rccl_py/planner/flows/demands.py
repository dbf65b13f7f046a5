"""Unequal parts drawn by a rule, for exchanges nobody has measured.

Owns the rule. Knows no fabric and no algorithm.
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ...fabric import I64

__all__ = ["zipf_counts"]

_LARGEST_DRAW = 10_000
"""No part is larger than so many of the smallest before they are scaled (assumed)."""
_MOST = 1 << 53
"""B of one exchange: the whole numbers a float64 holds."""


def zipf_counts(n: int, exponent: float, size: int, seed: int = 0) -> I64:
    """Return int64[n, n] B whose parts are Zipf-distributed, n * size B in all.

    exponent: above 1; most skewed about 1.8, where the busiest of 32 ranks sends 9 times the
    average, and even from 4 on; close to 1 most parts are at the limit, and even again. size: B a
    rank sends on average, its own part included, as rccl-tests counts an alltoall. The same
    arguments give the same counts.

    Raises InvalidArgument for an exponent of 1 or less, or a size that is negative or too large.

    References: G. K. Zipf, "Human behavior and the principle of least effort" (1949).
    """
    if not 1.0 < exponent <= 1e3:
        raise InvalidArgument(f"zipf: exponent {exponent:g}: expected more than 1, such as 1.6")
    if not 0 <= n * size <= _MOST or seed < 0:
        raise InvalidArgument(
            f"zipf: {size} bytes a rank on {n} ranks, seed {seed}: expected 0 or more, and at "
            f"most {_MOST} bytes in all"
        )
    drawn = np.random.default_rng(seed).zipf(exponent, size=n * n).clip(1, _LARGEST_DRAW)
    upto = np.cumsum(drawn, dtype=np.float64)
    ends = np.rint(upto / upto[-1] * (n * size)).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0).reshape(n, n), dtype=np.int64)
