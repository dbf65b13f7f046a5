"""The constants of NCCL 2.30's tuning model, as its source has them.

Owns numbers only. Latencies are us, bandwidths GB/s (1e9), rows are protocols LL, LL128, Simple.
Source: NVIDIA/nccl 2.30.7 (commit 5067397), src/graph/tuning.cc; they are fits to NVIDIA's
machines, not physics.
"""

from __future__ import annotations

__all__ = [
    "ALGORITHMS",
    "BASE",
    "HARDWARE",
    "LL128_ARCHS",
    "LL_MOST",
    "NVLS_EFFICIENCY",
    "NVLS_TREE_CHANNEL",
    "RING_LL128_CHANNEL",
    "THREADS",
    "THRESHOLDS",
    "TREE_CHANNEL",
    "TREE_CORRECTION",
    "TREE_LL128_CHANNEL",
    "generation",
]

Row = tuple[float, float, float]

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
"""In NCCL's order: of equal times the first is taken."""

_NONE: Row = (0.0, 0.0, 0.0)

BASE: dict[str, Row] = {
    "Tree": (6.8, 14.0, 8.4),
    "Ring": (6.6, 14.0, 8.4),
    "PAT": (8.0, 8.0, 8.0),
    **dict.fromkeys(("CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"), _NONE),
}

HARDWARE: dict[str, dict[str, Row]] = {
    "NVLINK": {
        "Tree": (0.6, 1.25, 4.0),
        "Ring": (0.6, 1.9, 3.4),
        "CollNetDirect": (0.0, 0.0, 3.7),
        "CollNetChain": (0.0, 0.0, 2.8),
        "NVLS": (0.0, 0.0, 25.0),
        "NVLSTree": (0.0, 0.0, 25.0),
        "PAT": (0.0, 0.0, 4.0),
    },
    "PCI": {
        "Tree": (1.0, 1.9, 4.0),
        "Ring": (1.0, 2.5, 5.7),
        "CollNetDirect": (0.0, 0.0, 3.7),
        "CollNetChain": (0.0, 0.0, 2.8),
        "NVLS": _NONE,
        "NVLSTree": _NONE,
        "PAT": (0.0, 0.0, 4.0),
    },
    "NET": {
        "Tree": (5.0, 8.5, 14.0),
        "Ring": (2.7, 4.0, 14.0),
        "CollNetDirect": (0.0, 0.0, 31.0),
        "CollNetChain": (0.0, 0.0, 30.0),
        "NVLS": (0.0, 0.0, 18.0),
        "NVLSTree": (0.0, 0.0, 20.9),
        "PAT": (0.0, 0.0, 14.0),
    },
}

# Rows: Volta, Ampere, Hopper, Blackwell; columns: 1 node, 2 nodes, more.
LL_MOST: tuple[Row, ...] = (
    (39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0),
)  # fmt: skip
RING_LL128_CHANNEL: tuple[Row, ...] = (
    (20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 36.7), (40.0, 40.0, 40.0),
)  # fmt: skip
TREE_LL128_CHANNEL: tuple[Row, ...] = (
    (20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0),
)  # fmt: skip
TREE_CHANNEL: tuple[Row, ...] = (
    (26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0),
)  # fmt: skip
NVLS_TREE_CHANNEL: tuple[Row, ...] = (
    (26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0),
)  # fmt: skip
NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)

TREE_CORRECTION: dict[str, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1,
              1),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8,
               .9, .9, .9),
}  # fmt: skip
"""Tree allreduce: bandwidth times the entry log2(bytes / 64), nothing beyond the last."""

THREADS: dict[str, int] = {"LL": 512, "LL128": 640, "Simple": 512}
"""The most threads a channel has."""

THRESHOLDS: dict[str, int] = {"LL": 8, "LL128": 8, "Simple": 64}
"""Bytes a thread should have (LL on a ring: times the ranks); fewer channels are used below."""

LL128_ARCHS = frozenset({70, 80, 90, 100, 103, 110, 120, 121})
"""Compute capabilities on which LL128 is safe; others keep it off."""


def generation(capability: int) -> int:
    """Return the row of the tables above for a compute capability such as 90."""
    return 3 if capability >= 100 else 2 if capability >= 90 else 1 if capability >= 80 else 0
