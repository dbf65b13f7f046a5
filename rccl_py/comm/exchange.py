"""Collectives of unequal parts between processes: everybody sends to everybody.

Owns alltoallv, allgatherv and reduce_scatterv over a mailbox. Counts are compared before anything
moves, so that all ranks learn of a difference. Data goes direct also where the modelled time is
that of a plan over relays: what arrives is the same.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np

from ..timing import Cost
from ..transports.mailbox import Message
from .call import Call
from .core import counts_differ, in_rank_order, share, widened
from .job import Job
from .need import Need, Party
from .op import Op

__all__ = ["run_uneven"]


class Exchanging(Party, Protocol):
    """A rank's communicator as an exchange needs it."""

    nranks: int
    job: Job
    timeout: float

    def texts(self, op: Op, text: str) -> list[str]:
        """Return every rank's text."""
        ...

    def uneven_cost(self, calls: Any) -> Cost:
        """Return what a collective of unequal parts takes."""
        ...

    def time(self, op: Op, start: float, cost: Cost) -> float:
        """Give the call its modelled time."""
        ...


def run_uneven(core: Exchanging, op: Op, clock: float) -> None:
    """Run this rank's part of a collective of unequal parts that all ranks have come to."""
    call, n, me = op.call, core.nranks, core.rank
    assert call is not None
    name = call.signature.collective
    if name == "alltoallv":
        assert call.sends is not None and call.recvs is not None
        said = core.texts(op, json.dumps([call.sends[0], call.recvs[0]]))
        rows = [json.loads(text) for text in said]
        error = counts_differ([row[0] for row in rows], [row[1] for row in rows])
        if error is not None:
            raise error
        every = [Call(call.signature, sends=(row[0], []), recvs=(row[1], [])) for row in rows]
    else:
        every = [call] * n
    source = widened(call)[0] if name == "reduce_scatterv" else call.source
    held = [share(source, call.sends, j) for j in range(n)]
    if name == "reduce_scatterv":
        landed = [np.empty(call.signature.counts[me], dtype=held[0].dtype) for _ in range(n)]
    else:
        landed = [share(call.target, call.recvs, i) for i in range(n)]
    own = held[me].copy()
    if any(np.may_share_memory(part, to) for part in held for to in landed):
        held = [part.copy() for part in held]
    _exchange(core, op, held, landed)
    landed[me][...] = own
    if name == "reduce_scatterv":
        in_rank_order(call, me, landed)
    core.time(op, clock, core.uneven_cost(every))


def _exchange(core: Exchanging, op: Op, held: list[Any], landed: list[Any]) -> None:
    """Send held[j] to rank j and receive landed[i] from rank i."""
    ends = []
    for step in range(1, core.nranks):
        to, source = (core.rank + step) % core.nranks, (core.rank - step) % core.nranks
        for peer, data, put in ((to, held, core.mailbox.send), (source, landed, core.mailbox.recv)):
            if len(data[peer]):
                said = {"count": len(data[peer]), "dtype": "", "text": f"rank {core.rank}"}
                ends.append(Message(peer, data[peer].view(np.uint8), said, 0.0))
                put(ends[-1])

    def needs() -> list[Need]:
        peers = sorted({end.peer for end in ends if not end.done})
        return [Need(core, "collective", op.number, peers, op.describe())]

    core.job.wait(lambda: all(end.done for end in ends), needs, core.timeout)
