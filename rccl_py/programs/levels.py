"""Which steps a program's transfers take: as early as they can, unless a later one has room.

Owns the balance of a ledger that is filled: a copy that nobody needs yet moves to a later step, if
it fits beside what that step moves anyway. Knows no threads and no slots.

    step      1         2                 1         2
    0 -> 2    a b       c       becomes   a         b c      for step 2 moves two chunks anyway
    2 -> 1    d         e f               d         e f
"""

from __future__ import annotations

from itertools import groupby

from .ledger import BEFORE, NEVER, Ledger, Op, Value

__all__ = ["balance"]

_Pair = tuple[int, int]


def _groups(ledger: Ledger) -> list[list[Op]]:
    """Return the transfers, the last step's first."""
    ordered = sorted(ledger.ops, key=lambda op: op.group)
    groups = [list(ops) for _, ops in groupby(ordered, key=lambda op: op.group)]
    return sorted(groups, key=lambda ops: (ops[0].when, ops[0].group), reverse=True)


def _latest(ops: list[Op], readers: dict[int, list[Op]], last: int) -> int:
    """Return the last step a transfer may take without anybody waiting for it."""
    step = last
    for op in ops:
        for reader in readers.get(id(op.to), ()):
            step = min(step, reader.when[0] - 1)
        if op.src.gone < NEVER:
            step = min(step, op.src.gone[0] - 1)
    return step


def _readers(ledger: Ledger) -> dict[int, list[Op]]:
    """Return, by value, what reads or changes it."""
    found: dict[int, list[Op]] = {}
    for op in ledger.ops:
        values: list[Value | None] = [op.src, op.base]
        for value in values:
            if value is not None:
                found.setdefault(id(value), []).append(op)
    return found


def balance(ledger: Ledger) -> None:
    """Move copies between ranks to later steps with room; their order on a connection stays."""
    load: dict[tuple[int, _Pair], int] = {}
    for op in ledger.ops:
        key = op.when[0], (op.src.rank, op.to.rank)
        load[key] = load.get(key, 0) + 1
    room: dict[int, int] = {}
    for (step, pair), chunks in load.items():
        if pair[0] != pair[1]:
            room[step] = max(room.get(step, 0), chunks)
    last, readers = max(room, default=0), _readers(ledger)
    following: dict[tuple[int, int, int], int] = {}
    for ops in _groups(ledger):
        first, pair, step = ops[0], (ops[0].src.rank, ops[0].to.rank), ops[0].when[0]
        line = (*pair, first.channel)
        if first.base is None and not first.switched and pair[0] != pair[1]:
            most = min(_latest(ops, readers, last), following.get(line, last))
            for later in range(most, step, -1):
                if load.get((later, pair), 0) + len(ops) <= room.get(later, 0):
                    load[step, pair] -= len(ops)
                    load[later, pair] = load.get((later, pair), 0) + len(ops)
                    step = later
                    for op in ops:
                        op.when = op.to.born = (step, 0)
                    break
        following[line] = min(step, following.get(line, step))
    for op in ledger.ops:
        op.src.read = BEFORE
    for op in ledger.ops:
        op.src.read = max(op.src.read, op.when)
