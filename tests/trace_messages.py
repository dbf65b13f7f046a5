"""Messages made by hand for the tests of traces: no engine is asked, so none can be wrong."""

from __future__ import annotations

from functools import cache

import numpy as np

from rccl_py.fabric import Fabric
from rccl_py.timing.timeline import Timeline, Transfers
from rccl_py.topology import load, lower

LAUNCH = 5e-6


@cache
def fabric(name: str = "mi300x-8", nodes: int = 1) -> Fabric:
    """Return a machine's fabric."""
    return lower(load(name, nodes=nodes))


def timeline(moved: Transfers | None, seconds: float = 0.0) -> Timeline:
    """Return what an engine would say of these messages."""
    last = float(moved.end.max()) if moved is not None and len(moved) else LAUNCH
    return Timeline(LAUNCH, (), None, 0.0, "by hand", moved, tail=max(seconds, last) - LAUNCH)


def of_rows(rows: list[tuple[float, ...]]) -> Transfers:
    """Return messages from (start, pushed, end in us, src, dst, channel, step, bytes, after)."""
    columns = list(zip(*rows)) or [()] * 9
    start, pushed, end = (np.array(c, dtype=np.float64) * 1e-6 for c in columns[:3])
    src, dst, channel, step = (np.array(c, dtype=np.int32) for c in columns[3:7])
    none = np.zeros(len(rows), dtype=np.int32)
    return Transfers(start, pushed, end, src, dst, channel, none, step,
                     np.array(columns[7], dtype=np.float64), none - 1,
                     np.array(columns[8], dtype=np.int64))  # fmt: skip


def ring(n: int, steps: int, nbytes: float = 50e3, us: float = 2.0, at: int = 0) -> Transfers:
    """Return a ring's messages: rank r sends to r + 1, `us` on the wire and 1 us to arrive."""
    rows = []
    for s in range(steps):
        start = 5 + at + s * (us + 1)
        rows += [(start, start + us, start + us + 1, r, (r + 1) % n, 0, s, nbytes,
                  (s - 1) * n + (r - 1) % n if s else -1) for r in range(n)]  # fmt: skip
    return of_rows(rows)


def jumble(n: int, m: int, seed: int) -> Transfers:
    """Return m messages at random, some of no length, many at once, on three channels."""
    draw = np.random.default_rng(seed)
    start = np.sort(draw.choice(draw.uniform(5, 60, 40), m))
    wire = draw.choice([0.0, 1e-4, 0.3, 2.0, 17.123456], m)
    src = draw.integers(0, n, m)
    dst = (src + draw.integers(1, max(n, 2), m)) % n
    channel, size = draw.integers(0, 3, m), draw.integers(0, 1 << 20, m)
    after = draw.integers(-1, np.maximum(np.arange(m), 1))
    return of_rows(list(zip(start, start + wire, start + wire + 1, src, dst, channel,
                            np.arange(m), size, after)))  # fmt: skip
