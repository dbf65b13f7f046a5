"""This process as one of an MPI job: what it waits for, who has ended, and how it ends itself.

Owns the boards of the process, its record on them, and the rules by which a wait is given up: a
peer that has ended or failed, a circle of waits, the timeout. Knows cores by the state they keep.

A record holds what the process waits for and how far it has come in every communicator. A wait
counts only while its partner has not come that far: a process that is slow to see that its partner
has come is no part of a circle.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..errors import CollectiveMismatch, Deadlock, RcclError, RcclTimeout, RemoteError
from ..transports.board import ROOM
from ..transports.board import told as written
from ..transports.kept import keep
from .deadlock import circle, told
from .need import Need, Party
from .op import named

__all__ = ["ANNOUNCED", "Job", "job"]

ANNOUNCED = 32_000
"""The tag of announcements on COMM_WORLD: below every MPI's limit, above what people use."""

_LOOK = 0.01  # seconds between looks at the other processes
_TELL = 0.02  # seconds a wait lasts before it is told on the board
_CIRCLE = 0.05  # seconds between searches for a circle
_FAILURES = 8  # failed communicators that are told of at length, the latest; 8 times as many at all
_TEXT, _SHORT = 4000, 300  # characters of an error that are told
_LINGER = 2.0  # seconds a process that has failed gives the others to hear of it


class Job:
    """The one record of this process, on every board it is part of."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.world = mpi.COMM_WORLD.Get_rank()
        self.boards: list[tuple[Any, Any, dict[int, int]]] = []  # board, processes, world -> rank
        self.cores: dict[str, Party] = {}
        self.lock = threading.RLock()  # a nonblocking communicator's calls are another thread's
        self.apart: set[int] = set()  # threads whose waits do not keep the process from others
        self.pid = os.getpid()
        self.status = ""
        self.failed: dict[str, tuple[str, str]] = {}  # by communicator: class, message
        self.told = False
        self._needs: list[Need] = []
        self._looked = self._searched = 0.0
        self._suspect: list[tuple[str, str]] | None = None
        self._leavers: set[tuple[str, str, int, int]] = set()
        keep(self)  # and with it what its communicators have not sent or received at the end
        atexit.register(self._end)
        self._hook()

    def run(self) -> str:
        """Return a name that all processes of the first board share, and no other run has."""
        return str(self.boards[0][1].pids[0]) if self.boards else str(os.getpid())

    # ---- telling ------------------------------------------------------------------------------

    def publish(self) -> None:
        """Write the record: waits, how far every communicator is, what has failed."""
        with self.lock:
            said: dict[str, Any] = {"status": self.status[:_TEXT], "failed": self.failed}
            record = {
                **said,
                "waits": [need.told() for need in self._needs],
                "made": {key: core.made() for key, core in self.cores.items()},
            }
            if len(written(record)) > ROOM:
                record = {**said, "cut": True}
            for board, _, _ in self.boards:
                board.publish(record)
            self.told = True

    def leave(self, how: str) -> None:
        """Say that this process makes no more calls."""
        if not self.status and os.getpid() == self.pid:  # a fork's end is not this process's
            self.status = how
            self._needs = []
            try:
                self.publish()
            except Exception:  # MPI may be gone already: then nobody is there to be told
                return

    def fail(self, key: str, error: RcclError) -> None:
        """Say that a communicator has failed at this process."""
        self.failed.setdefault(key, (type(error).__name__, str(error)[:_TEXT]))
        for old in list(self.failed)[:-_FAILURES]:
            self.failed[old] = self.failed[old][0], self.failed[old][1][:_SHORT]
        while len(self.failed) > 8 * _FAILURES:
            self.failed.pop(next(iter(self.failed)))
        self.publish()

    def clear(self) -> None:
        """Say that the wait that was told is over."""
        self._needs = []
        self._suspect = None
        if self.told:
            self.told = False
            self.publish()
            self.told = False

    # ---- waiting ------------------------------------------------------------------------------

    def progress(self) -> None:
        """Move messages on, and take in what other processes say."""
        with self.lock:
            for core in list(self.cores.values()):
                core.mailbox.progress()
            for board, _, _ in self.boards:
                board.progress()

    def pause(self, waited: float, needs: list[Need], timeout: float) -> None:
        """Sleep a little in a wait for `needs`; raise when the wait must end."""
        self.progress()
        for need in needs:
            need.core.require_alive()
        if waited >= timeout:
            raise self._too_long(needs, timeout)
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look(needs)
        if waited >= _TELL and threading.get_ident() not in self.apart:
            if not self.told or [n.told() for n in needs] != [n.told() for n in self._needs]:
                self._needs = needs
                self.publish()
            if now - self._searched >= _CIRCLE:
                self._searched = now
                self._search()
        time.sleep(min(0.0005, max(waited, 2e-5)))

    def wait(
        self, ready: Callable[[], bool], needs: Callable[[], list[Need]], timeout: float
    ) -> None:
        """Wait until `ready`, for what `needs` tells; raise when the wait must end."""
        start = time.monotonic()
        spins = 0
        try:
            while not ready():
                spins += 1
                self.progress()
                if spins > 50:
                    self.pause(time.monotonic() - start, needs(), timeout)
        finally:
            self.clear()

    def _of(self, world: int) -> Iterator[tuple[Any, Any, int]]:
        for board, processes, ranks in self.boards:
            if world in ranks:
                yield board, processes, ranks[world]

    def record(self, world: int) -> dict[str, Any]:
        """Return what another process said last."""
        found: dict[str, Any] = {}
        for board, _, rank in self._of(world):
            found = board.read(rank)[1] or found
        return found

    def gone(self, world: int) -> str | None:
        """Return how a process ended, None while it runs."""
        for board, processes, rank in self._of(world):
            said = board.read(rank)[1].get("status")
            if said:
                return str(said)
            if processes.ended(rank):
                return f"has died (process {processes.pids[rank]})"
        return None

    def _look(self, needs: list[Need]) -> None:
        """Raise RemoteError when a process that is waited for has ended, or failed."""
        leavers: set[tuple[str, str, int, int]] = set()
        for need in needs:
            core = need.core
            for rank, world in enumerate(core.worlds):
                if world == self.world:
                    continue
                failed = self.record(world).get("failed", {}).get(core.key)
                if failed:
                    raise _heard(need, rank, *failed)
                how = self.gone(world) if rank in need.peers else None
                if how is None:
                    continue
                # What it sent before its end may arrive with the news of it: look twice.
                key = core.key, need.kind, need.number, rank
                if key in self._leavers:
                    raise RemoteError(f"{need.text} for rank {rank}, which {how}")
                leavers.add(key)
        self._leavers = leavers

    def _too_long(self, needs: list[Need], timeout: float) -> RcclError:
        need = needs[0]
        self._needs = needs
        self.publish()
        texts = self._circle()
        if texts is not None:
            return self._deadlock(texts)
        others = []
        for world in {need.core.worlds[p] for p in need.peers}:
            others += [f"{w['text']}" for w in self.record(world).get("waits", ())]
        tail = f"; meanwhile {'; '.join(sorted(set(others))[:4])}" if others else ""
        return RcclTimeout(
            f"rank {need.core.rank} of {need.core.name} waited {timeout:g} s in {need.call} for "
            f"{named(list(need.peers))}{tail}"
        )

    def _search(self) -> None:
        """Raise Deadlock when the same circle is seen twice."""
        texts = self._circle()
        if texts is not None and texts == self._suspect:
            raise self._deadlock(texts)
        self._suspect = texts

    def _deadlock(self, waits: list[tuple[str, str]]) -> Deadlock:
        """Return the error of a circle, and tell it to all whose communicators are part of it."""
        error = Deadlock(told([text for text, _ in waits]))
        for _, key in waits:
            self.fail(key, error)
        return error

    def _circle(self) -> list[tuple[str, str]] | None:
        return circle(self.world, self._waits)

    def _waits(self, world: int) -> Iterator[tuple[int, tuple[str, str]]]:
        own = world == self.world
        record = {} if own else self.record(world)
        waits = [n.told() for n in self._needs] if own else record.get("waits", ())
        for wait in waits:
            if wait["comm"] in record.get("failed", ()):
                continue  # it has been given up
            for peer, other in zip(wait["peers"], wait["worlds"]):
                if not self._has_come(wait, other):
                    yield other, (f"{wait['text']} for rank {peer}", wait["comm"])

    def _has_come(self, wait: dict[str, Any], other: int) -> bool:
        """Return whether process `other` has made what is waited for."""
        if other == self.world:
            core = self.cores.get(wait["comm"])
            made = core.made() if core is not None else {}
        else:
            record = self.record(other)
            if record.get("cut"):
                return True  # it cannot be known: better no circle than a wrong one
            made = record.get("made", {}).get(wait["comm"], {})
        if wait["kind"] == "collective":
            return bool(made.get("collective", 0) > wait["number"])
        by_peer = made.get(wait["kind"], {})
        return bool(by_peer.get(str(wait["rank"]), 0) > wait["number"])

    # ---- ending -------------------------------------------------------------------------------

    def _hook(self) -> None:
        """Make an error nobody catches, and a signal to end, known to the other processes."""
        before = sys.excepthook

        def hook(kind: Any, value: Any, trace: Any) -> None:
            before(kind, value, trace)
            sys.stderr.flush()
            self.leave(f"failed with {kind.__name__}: {value}")
            self._linger()
            self.mpi.COMM_WORLD.Abort(1)

        sys.excepthook = hook
        try:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._terminated)
        except ValueError:  # not the main thread: who starts threads handles signals
            return

    def _let_leave(self) -> None:
        """Wait a little until what was put has left: its memory goes with the program."""
        deadline = time.monotonic() + _LINGER
        while any(core.mailbox.leaving for core in self.cores.values()):
            self.progress()
            if time.monotonic() > deadline:
                return
            time.sleep(0.0005)

    def _take_announcements(self) -> None:
        """Take in those of communicators this process is no part of: MPICH's end wants it."""
        status, world = self.mpi.Status(), self.mpi.COMM_WORLD
        while world.Iprobe(source=self.mpi.ANY_SOURCE, tag=ANNOUNCED, status=status):
            held = bytearray(status.Get_count(self.mpi.BYTE))
            world.Recv([held, self.mpi.BYTE], source=status.Get_source(), tag=ANNOUNCED)

    def _end(self) -> None:
        """Leave, and have this process ended if MPI waits for a dead one, as Open MPI does."""
        with suppress(Exception):  # MPI may be gone already
            self._let_leave()
            self._take_announcements()
        self.leave("has ended its program")
        with suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) == self._terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # MPI's end runs no Python
        for board, processes, ranks in self.boards:
            others = [r for world, r in ranks.items() if world != self.world]
            if any(processes.ended(r) and not board.read(r)[1].get("status") for r in others):
                with suppress(ValueError):  # not the main thread
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.setitimer(signal.ITIMER_REAL, _LINGER)
                return

    def _linger(self) -> None:
        """Give the others time to hear of it: MPI's abort ends them all."""
        deadline = time.monotonic() + _LINGER
        worlds = {w for _, _, ranks in self.boards for w in ranks if w != self.world}
        while worlds and time.monotonic() < deadline:
            worlds = {w for w in worlds if self.gone(w) is None}
            for board, _, _ in self.boards:
                board.progress()
            time.sleep(0.005)

    def _terminated(self, number: int, frame: Any) -> None:
        """Name the rank whose death made the launcher end this one."""
        for core in self.cores.values():
            for rank, world in enumerate(core.worlds):
                if world == self.world:
                    continue
                for _, processes, at in self._of(world):
                    if processes.ended(at):
                        raise RemoteError(
                            f"rank {rank} of {core.name} has died (process {processes.pids[at]}); "
                            f"rank {core.rank} is being ended by the launcher"
                        )
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _heard(need: Need, rank: int, kind: str, text: str) -> RcclError:
    """Return the error of a rank whose communicator failed at another rank."""
    same = {c.__name__: c for c in (CollectiveMismatch, Deadlock, RcclTimeout, RemoteError)}
    if kind in same:
        return same[kind](text)
    return RemoteError(f"{need.text}: rank {rank} failed with {kind}: {text}")


_JOB: list[Job] = []  # a process is part of one job


def job() -> Job:
    """Return this process's job; made when first asked for."""
    if not _JOB:
        from ..transports.mpi import import_mpi

        _JOB.append(Job(import_mpi()))
    return _JOB[0]
