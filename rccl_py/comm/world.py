"""What the ranks of one communicator share: fabric, planner, transport, clock, open calls.

Owns when a collective runs: as soon as every rank has made its call of the same number. Knows
three ways ranks live: all in one thread (calls are queued), one a thread (calls wait), one a
process (MPI).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import (
    CollectiveMismatch,
    InvalidArgument,
    InvalidUsage,
    RcclSystemError,
    RcclTimeout,
    RemoteError,
)
from ..planner import Plan, Planner
from ..reduce_ops import ReduceOp, finish
from ..transports import local
from ..transports.program import Program
from .call import Call, Signature, checked_dtype

__all__ = ["LocalWorld", "MpiWorld", "World"]

_TIMEOUT = 30.0  # seconds a rank waits for the others before it says who is missing


def mismatch(calls: Iterable[tuple[int, Signature]], number: int) -> CollectiveMismatch | None:
    """Return the error that names the odd ranks, or None when all agree."""
    by_signature: dict[Signature, list[int]] = {}
    for rank, signature in calls:
        by_signature.setdefault(signature, []).append(rank)
    if len(by_signature) == 1:
        return None
    groups = sorted(by_signature.items(), key=lambda item: (-len(item[1]), item[1][0]))
    said = "; ".join(f"{_named(ranks)} called {signature}" for signature, ranks in groups)
    return CollectiveMismatch(f"call {number} differs between ranks: {said}")


def _named(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:8]) + (
        f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    )
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _require_apart(number: int, calls: dict[int, Call]) -> None:
    """Refuse a receive buffer that overlaps a buffer of another rank."""
    spans = []
    for rank, call in calls.items():
        for array, written in ((call.source, False), (call.target, True)):
            if array is not None and array.size:
                first = array.ctypes.data
                spans.append((first, first + array.nbytes, rank, written))
    spans.sort()
    reach: dict[bool, tuple[int, int]] = {}  # per kind, the furthest end so far and whose it is
    for first, last, rank, written in spans:
        for kind, (end, other) in reach.items():
            if end > first and other != rank and (written or kind):
                raise InvalidArgument(
                    f"call {number}: buffers of ranks {other} and {rank} overlap and one of them "
                    "is written: every rank needs a recvbuf of its own"
                )
        if written not in reach or last > reach[written][0]:
            reach[written] = (last, rank)


class World:
    """Planner, programs and modelled clock of one communicator; transports are below."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.nranks = planner.fabric.nranks
        self.elapsed = 0.0
        self.last_plan: Plan | None = None
        self._programs: dict[tuple[int, bool], Program] = {}

    def plan(self, signature: Signature) -> Plan:
        """Return the plan of a call with this signature."""
        block = signature.block * checked_dtype(signature.dtype).itemsize
        return self.planner.plan(signature.collective, block, signature.root)

    def program(self, plan: Plan, in_place: bool) -> Program:
        """Return the plan's schedule ready to run; kept for the next call."""
        key = id(plan.schedule), in_place
        if key not in self._programs:
            self._programs[key] = Program(plan.schedule, in_place=in_place)
        return self._programs[key]

    def _done(self, plan: Plan) -> None:
        self.elapsed += plan.time
        self.last_plan = plan


class LocalWorld(World):
    """All ranks in this process. waits: a call blocks its thread until all ranks have called."""

    def __init__(self, planner: Planner, *, waits: bool) -> None:
        super().__init__(planner)
        self.waits = waits
        self.timeout = _TIMEOUT
        self._changed = threading.Condition()
        self._made = [0] * self.nranks
        self._open: dict[int, dict[int, Call]] = {}
        self._finished = 0
        self._failure: Exception | None = None
        self._left: dict[int, str] = {}

    def submit(self, rank: int, call: Call) -> int:
        """Queue the next call of `rank`, run whatever is complete, and return its number."""
        with self._changed:
            self._check_usable()
            number = self._made[rank]
            self._made[rank] += 1
            self._open.setdefault(number, {})[rank] = call
            while self._failure is None and len(self._open.get(self._finished, {})) == self.nranks:
                try:
                    self._run(self._finished, self._open.pop(self._finished))
                    self._finished += 1
                except InvalidArgument as error:
                    if not self.waits:
                        self._withdraw()
                        raise
                    self._failure = error
                except MemoryError as error:
                    self._failure = RcclSystemError(
                        f"call {self._finished}: out of memory: {error}"
                    )
                except Exception as error:  # every rank made the call, so every rank must hear
                    self._failure = error
            self._changed.notify_all()
            if not self.waits and self._failure is not None:
                raise self._failure
            return number

    def wait(self, rank: int, number: int) -> None:
        """Block until call `number` has run at every rank."""
        with self._changed:
            while self._finished <= number:
                self._check_usable()
                missing = self._missing(number)
                gone = [r for r in missing if r in self._left]
                if gone:
                    self._failure = RemoteError(
                        f"rank {rank} waits in call {number} for rank "
                        f"{gone[0]}, which {self._left[gone[0]]}"
                    )
                    self._changed.notify_all()
                elif not self._changed.wait(self.timeout) and self._finished <= number:
                    self._failure = RcclTimeout(
                        f"rank {rank} waited {self.timeout:g} s in call "
                        f"{number} for {_named(missing)}"
                    )
                    self._changed.notify_all()

    def require_complete(self) -> None:
        """Raise InvalidUsage when some ranks have made a call that others have not."""
        with self._changed:
            self._check_usable()
            if self._open:
                number = min(self._open)
                call = next(iter(self._open[number].values()))
                missing = self._missing(number)
                self._withdraw()
                raise InvalidUsage(
                    f"call {number}, {call.signature}: {_named(missing)} did not make "
                    "it; in one process every rank must call before the end of the "
                    "group"
                )

    def withdraw(self) -> None:
        """Forget the calls that wait for other ranks: one of them was refused or failed.

        Run later, beside calls of another attempt, they would move old buffers.
        """
        with self._changed:
            if not self.waits:
                self._withdraw()

    def _withdraw(self) -> None:
        self._open.clear()
        self._made = [self._finished] * self.nranks

    def leave(self, rank: int, how: str) -> None:
        """Note that `rank` will make no more calls (its function returned or failed)."""
        with self._changed:
            self._left[rank] = how
            self._changed.notify_all()

    def _missing(self, number: int) -> list[int]:
        return [r for r in range(self.nranks) if self._made[r] <= number]

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __del__(self) -> None:
        if getattr(self, "_open", None) and getattr(self, "_failure", None) is None:
            number = min(self._open)
            call = next(iter(self._open[number].values()))
            warnings.warn(
                f"call {number}, {call.signature}, never ran: {_named(self._missing(number))} did "
                "not make it (synchronize() would have said so)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _run(self, number: int, calls: dict[int, Call]) -> None:
        error = mismatch(((r, c.signature) for r, c in sorted(calls.items())), number)
        if error is not None:
            raise error
        signature = calls[0].signature
        _require_apart(number, calls)
        plan = self.plan(signature)
        ordered = [calls[r] for r in range(self.nranks)]
        program = self.program(plan, any(c.in_place for c in ordered))
        op, dtype = ReduceOp(signature.op), checked_dtype(signature.dtype)
        local.run(program, signature.block, [(c.source, c.target) for c in ordered], op, dtype)
        for call in ordered:
            if call.target is not None:
                finish(op, call.target, self.nranks)
        self._done(plan)


class MpiWorld(World):
    """One rank of an MPI communicator."""

    def __init__(self, planner: Planner, transport: Any) -> None:
        super().__init__(planner)
        self.transport = transport
        self._made = 0

    def call(self, call: Call) -> None:
        """Run a call that every process makes."""
        number, self._made = self._made, self._made + 1
        signature = call.signature.numbers()
        places = (*self.transport.locate(call.source), *self.transport.locate(call.target))
        rows = self.transport.agree(np.concatenate([signature, [int(call.in_place)], places]))
        said = len(signature)
        if (rows[:, :said] != signature).any():
            signatures = ((r, Signature.of_numbers(row)) for r, row in enumerate(rows))
            error = mismatch(signatures, number)
            if error is not None:
                raise error
        plan = self.plan(call.signature)
        program = self.program(plan, bool(rows[:, said].any()))
        op, dtype = ReduceOp(call.signature.op), checked_dtype(call.signature.dtype)
        self.transport.run(
            program, call.signature.block, call.source, call.target, op, dtype, rows[:, said + 1 :]
        )
        if call.target is not None:
            finish(op, call.target, self.nranks)
        self._done(plan)
