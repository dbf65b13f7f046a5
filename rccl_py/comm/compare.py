"""The calls of all ranks side by side: do they agree, and do their buffers lie apart.

Owns those two comparisons and their words. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CollectiveMismatch, InvalidArgument
from .call import Call
from .op import named

__all__ = ["mismatch", "require_apart"]


def mismatch(number: int, said: Sequence[tuple[int, str, str]], name: str) -> CollectiveMismatch:
    """Return the error that names the odd ranks; said: (rank, what it called, where)."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for rank, what, site in said:
        groups.setdefault(what, []).append((rank, site))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0][0]))
    parts = [
        f"{named([r for r, _ in ranks])} called {what} at "
        + ", ".join(sorted({site for _, site in ranks}))
        for what, ranks in ordered
    ]
    return CollectiveMismatch(
        f"call {number} differs between ranks of {name}: {'; '.join(parts)}. "
        "All ranks must make the same calls in the same order"
    )


def require_apart(number: int, calls: Sequence[Call]) -> None:
    """Refuse a receive buffer that overlaps a buffer of another rank."""
    spans = []
    for rank, call in enumerate(calls):
        for array, written in ((call.source, False), (call.target, True)):
            if array is not None and array.size:
                first = array.ctypes.data
                spans.append((first, first + array.nbytes, rank, written))
    spans.sort()
    # Per kind, the furthest end so far and whose it is; and the furthest of any other rank.
    reach: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for first, last, rank, written in spans:
        for kind, ends in reach.items():
            hit = next((r for end, r in ends if end > first and r != rank), None)
            if hit is not None and (written or kind):
                raise InvalidArgument(
                    f"call {number}: buffers of ranks {hit} and {rank} overlap and one of them "
                    "is written: every rank needs a recvbuf of its own"
                )
        by_rank: dict[int, int] = {}
        for end, r in [*reach[written], (last, rank)]:
            by_rank[r] = max(end, by_rank.get(r, 0))
        reach[written] = sorted(((e, r) for r, e in by_rank.items()), reverse=True)[:2]
