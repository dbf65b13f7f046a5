"""run(): a function on every rank, each in a thread of its own; for notebooks and tests.

Owns the threads. A rank that fails ends the others: whoever waits for it is told which one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RemoteError
from ..planner import Planner
from .communicator import Communicator, fabric_of
from .world import LocalWorld

if TYPE_CHECKING:
    from ..topology import Topology

__all__ = ["run"]


def run(
    fn: Callable[..., Any],
    topology: str | Path | Topology,
    *args: Any,
    nranks: int | None = None,
    algo: str | None = None,
    proto: str | None = None,
    timeout: float = 30.0,
) -> list[Any]:
    """Call ``fn(comm, *args)`` on every rank of a machine at once and return the results by rank.

    timeout: seconds a rank waits inside one collective before it says which ranks are missing.
    Raises the first error of the lowest rank that failed by itself.
    """
    world = LocalWorld(Planner(fabric_of(topology, nranks), algo, proto), waits=True)
    world.timeout = timeout
    results: list[Any] = [None] * world.nranks
    errors: dict[int, BaseException] = {}

    def body(rank: int) -> None:
        try:
            results[rank] = fn(Communicator(rank, world), *args)
            world.leave(rank, "has returned from its function")
        except BaseException as error:  # handed to the caller below
            errors[rank] = error
            world.leave(rank, f"failed with {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=body, args=(r,), name=f"rank {r}", daemon=True)
        for r in range(world.nranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        own = [r for r, e in sorted(errors.items()) if not isinstance(e, RemoteError)]
        raise errors[own[0] if own else min(errors)]
    return results
