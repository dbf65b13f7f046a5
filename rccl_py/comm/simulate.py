"""How long a group would take: its calls put on the model, none of them run.

Owns the estimate of calls that have not met. In one process all ranks' calls are there; of a rank
in another thread or process only its own are known, and the others are taken to do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..collectives import COLLECTIVES
from ..timing import Task, Timetable, exchanges
from .call import UNEVEN
from .core import Core, cost_of
from .op import Op

__all__ = ["seconds_of"]


def seconds_of(ops: Sequence[Op]) -> float:
    """Return the modelled seconds from the launch of these calls to the end of the last."""
    table = Timetable()
    tasks: list[Task] = []
    for core, own in _by_core(ops):
        for together in _meetings(own):
            together.sort(key=lambda op: op.member.rank if op.member else -1)
            tasks += [table.add(_collective(core, together))]
        tasks += [table.add(exchange) for exchange in _exchanges(core, own)]
    table.settle()
    return max((task.end for task in tasks), default=0.0)


def _by_core(ops: Sequence[Op]) -> list[tuple[Core, list[Op]]]:
    found: dict[int, tuple[Core, list[Op]]] = {}
    for op in ops:
        if op.member is not None and op.call is not None:
            found.setdefault(id(op.member.core), (op.member.core, []))[1].append(op)
    return list(found.values())


def _meetings(ops: Sequence[Op]) -> list[list[Op]]:
    """Return the calls of each collective: the k-th of every rank are one."""
    made: dict[int, int] = {}
    met: list[list[Op]] = []
    for op in ops:
        assert op.member is not None and op.call is not None
        if op.call.signature.peer >= 0:
            continue
        k = made.get(op.member.rank, 0)
        made[op.member.rank] = k + 1
        if k == len(met):
            met.append([])
        met[k].append(op)
    return met


def _collective(core: Core, ops: list[Op]) -> Task:
    calls = [op.call for op in ops if op.call is not None]
    signature = calls[0].signature
    medium = core.fabric.domain
    if signature.collective in COLLECTIVES:
        plan = core.plan(signature)
        return cost_of(plan).task(medium=medium)
    if signature.collective in UNEVEN:
        every = calls if len(calls) == core.nranks else [calls[0]] * core.nranks
        return core.uneven_cost(every).task(medium=medium)
    if signature.collective == "barrier":
        return core.barrier_cost.task(medium=medium)
    return Task(0.0)


def _exchanges(core: Core, ops: Sequence[Op]) -> list[Task]:
    """Return one task for the messages between each two launches, and one for each put and signal.

    The k-th send of a rank to another meets the k-th recv there.
    """
    rows: list[tuple[int, int, int, int]] = []
    groups: dict[tuple[int, ...], int] = {}
    made: dict[tuple[str, int, int], list[Op]] = {}
    for op in ops:
        assert op.member is not None and op.call is not None
        kind, rank, peer = op.call.signature.collective, op.member.rank, op.call.signature.peer
        ends = (peer, rank) if kind == "recv" else (rank, peer)
        if kind in ("put_signal", "signal"):
            rows.append((*ends, _bytes(op), groups.setdefault((len(rows),), len(groups))))
        elif kind in ("send", "recv"):
            made.setdefault((kind, *ends), []).append(op)
    senders = {op.member.rank for op in ops if op.member is not None}
    for (kind, src, dst), own in made.items():
        if kind == "recv" and src in senders:
            continue  # told by its sends; alone, its sends are another process's to know
        others = made.get(("recv", src, dst), []) if kind == "send" else []
        for op, other in zip_longest(own, others[: len(own)]):
            key = src, dst, id(op.stream), id(other.stream) if other is not None else 0
            rows.append((src, dst, _bytes(op), groups.setdefault(key, len(groups))))
    found = exchanges(core.fabric, *zip(*rows)) if rows else []
    return [e.cost.task(medium=core.fabric.domain) for e in found]


def _bytes(op: Op) -> int:
    assert op.call is not None
    data = op.call.source if op.call.source is not None else op.call.target
    return 0 if data is None else data.nbytes
