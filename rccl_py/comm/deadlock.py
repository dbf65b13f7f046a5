"""Who waits for whom: circles in the wait-for graph, and the words for one.

Owns the search and the wording. Knows nodes only by what it is told of them: streams in one
process, processes under mpirun. A launch ends when all its calls have run, so any circle is a
deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

__all__ = ["circle", "told"]

Node = TypeVar("Node", bound=Hashable)
Wait = TypeVar("Wait")


def circle(start: Node, waits: Callable[[Node], Iterable[tuple[Node, Wait]]]) -> list[Wait] | None:
    """Return the waits of a circle reachable from `start`, one a node, or None.

    waits(node): what it waits for, each with what is to be said of that.
    """
    path: list[Node] = [start]
    texts: list[Wait] = []
    ahead = [iter(waits(start))]
    on_path, seen = {start}, {start}
    while ahead:
        step = next(ahead[-1], None)
        if step is None:
            ahead.pop()
            on_path.discard(path.pop())
            if texts:
                texts.pop()
            continue
        node, text = step
        if node in on_path:
            first = path.index(node)
            return [*texts[first:], text]
        if node in seen:
            continue
        seen.add(node)
        on_path.add(node)
        path.append(node)
        texts.append(text)
        ahead.append(iter(waits(node)))
    return None


def told(texts: list[str]) -> str:
    """Return the sentence about a circle."""
    return (
        f"deadlock: {'; '.join(texts)}. None of them can go on: make the calls in one order on "
        "all ranks, or put calls that meet crosswise into one group()"
    )
