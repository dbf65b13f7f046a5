"""run(): a function on every rank, each in a thread of its own; for notebooks and tests.

Owns the threads. A rank that fails ends the others: whoever waits for it is told which one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import finite
from ..config import Config
from ..errors import InvalidArgument, RemoteError
from .communicator import Communicator
from .core import planner_of
from .engine import leave
from .local import LocalCore
from .machines import machine_for, placed
from .place import Place
from .setup import settle_here

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
    timeout: float | None = None,
    config: Config | None = None,
) -> list[Any]:
    """Call ``fn(comm, *args)`` on every rank of a machine at once and return the results by rank.

    timeout: seconds a rank waits inside one call before it says who is missing (None: as config
    says, or 30).
    Raises the first error of the lowest rank that failed by itself.
    """
    if config is not None and not isinstance(config, Config):
        raise InvalidArgument(f"run: config is a {type(config).__name__}: a Config was expected")
    if timeout is not None:
        finite(timeout, "run: timeout", -1e-300, 1e9)
    settings = Config(algo=algo, proto=proto).merged(config)
    machine = machine_for(topology, 0)
    fabric = placed(machine, nranks)
    places = [Place() for _ in range(fabric.nranks)]
    core = LocalCore(planner_of(fabric, settings), places, settings, waits=True)
    core.machine = machine
    core.timeout = core.timeout if timeout is None else timeout
    results: list[Any] = [None] * core.nranks
    errors: dict[int, BaseException] = {}

    def body(rank: int) -> None:
        settle_here(places[rank])
        comm = Communicator()
        comm._member = core.members[rank]
        try:
            results[rank] = fn(comm, *args)
            leave(places[rank], "has returned from its function")
        except BaseException as error:  # handed to the caller below
            errors[rank] = error
            leave(places[rank], f"failed with {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=body, args=(r,), name=f"rank {r}", daemon=True)
        for r in range(core.nranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        own = [r for r, e in sorted(errors.items()) if not isinstance(e, RemoteError)]
        raise errors[own[0] if own else min(errors)]
    return results
