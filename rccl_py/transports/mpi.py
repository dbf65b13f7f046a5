"""The MPI transport: one rank a process, the planned schedule over shared memory or messages.

Owns how rows cross processes. The only module that imports mpi4py. It never calls MPI's own
collectives for data: every rank runs the rows that arrive at it, in the schedule's order, so the
bits are the local transport's. Ranks of one host read each other's window; where the communicator
spans hosts, rows travel as messages.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RcclSystemError
from ..reduce_ops import ReduceOp
from ..schedule import COPY, Step
from .program import INPUT, OUTPUT, SCRATCH, Extents, Program
from .windows import Window, shared_memory_left

__all__ = ["MpiTransport", "import_mpi"]

Array = npt.NDArray[Any]
_ALIGN = 64  # bytes: a cache line, so that no two buffers share one


def import_mpi() -> Any:
    """Return mpi4py.MPI, or say what to install."""
    # Open MPI's UCX window component prints an error on hosts without its hardware and then falls
    # back; windows here are shared memory, which never needs it.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RcclSystemError(
            f"MPI cannot be loaded ({error}): install it with pip install 'rccl_py[mpi]'"
        ) from None
    return MPI


def _end_all_on_error(mpi: Any) -> None:
    """Make an error that nobody catches end every process, as ``python -m mpi4py`` does.

    Else the process would wait in MPI's finalize for ranks that wait for it in a call.
    """
    before = sys.excepthook
    if getattr(before, "ends_all", False):
        return

    def hook(kind: Any, value: Any, trace: Any) -> None:
        before(kind, value, trace)
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(1)

    hook.ends_all = True  # type: ignore[attr-defined]
    sys.excepthook = hook


class MpiTransport:
    """Runs schedules over one MPI communicator.

    shared: None uses shared memory where all ranks are on one host; False always sends messages.
    """

    def __init__(self, comm: Any, shared: bool | None = None) -> None:
        self._mpi = import_mpi()
        _end_all_on_error(self._mpi)
        self.comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        host = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        one_host = host.Get_size() == self.size
        host.Free()
        self.shared = one_host and shared is not False
        self._staging: Window | None = None
        self._heaps: list[Window | None] = []

    def agree(self, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return every rank's row of control numbers: int64[size, len(own)]."""
        rows = np.empty((self.size, len(own)), dtype=np.int64)
        self.comm.Allgather(own, rows)
        return rows

    def close(self) -> None:
        """Free the windows and the communicator; collective."""
        for window in [self._staging, *self._heaps]:
            if window is not None:
                window.free()
        self._staging, self._heaps = None, []
        self.comm.Free()

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes that other ranks of the host read without a copy; collective.

        Sizes may differ between ranks. Plain memory where there is no shared memory to give.
        """
        total = int(self.agree(np.array([size])).sum())
        if not self.shared or not self._fits(total):
            return np.empty(size, dtype=np.uint8)
        window = Window(self._mpi, self.comm, size)
        self._heaps.append(window)
        own: npt.NDArray[np.uint8] = window.segments[self.rank]
        return own

    def release(self, array: Array) -> None:
        """Give back what allocate() gave; collective, in the order of the allocations or another.

        The array must not be used afterwards. Plain memory is left to Python.
        """
        numbers = self.agree(np.array([self.locate(array)[0]]))
        number = int(numbers.max())  # a rank whose part is empty does not find itself
        heap = self._heaps[number] if number >= 0 else None
        if heap is not None:
            self._heaps[number] = None
            heap.free()

    def locate(self, array: Array | None) -> tuple[int, int]:
        """Return (window, first byte) of an array made by allocate(); (-1, 0) for any other."""
        if array is not None and array.size:
            for number, heap in enumerate(self._heaps):
                if heap is None:
                    continue
                mine = heap.segments[self.rank]
                offset = array.ctypes.data - mine.ctypes.data
                if offset >= 0 and offset + array.nbytes <= mine.size:
                    return number, offset
        return -1, 0

    def run(
        self,
        program: Program,
        block: int,
        source: Array | None,
        target: Array | None,
        op: ReduceOp,
        dtype: Any,
        places: npt.NDArray[np.int64],
    ) -> None:
        """Run this rank's part of `program` on its flat buffers.

        places: int64[size, 4], every rank's locate() of its input and of its output.
        """
        if block == 0:
            return
        kind = np.dtype(dtype)
        if not (self.shared and self.size > 1):
            self._run_messages(program, block, source, target, op, kind)
            return
        extents = Extents(program, block)
        staged = self._staged(program, extents, kind.itemsize, places)
        size = max(parts[-1][0] for parts in staged)
        if self._reserve(size):
            peers = self._views(program, extents, kind, places, staged)
            self._run_shared(program, extents, source, target, op, peers)
        else:
            self._run_messages(program, block, source, target, op, kind)

    # ---- shared memory: every rank reads what arrives at it -----------------------------------

    def _staged(
        self, program: Program, extents: Extents, itemsize: int, places: npt.NDArray[np.int64]
    ) -> list[list[tuple[int, int]]]:
        """Return, per rank, (first byte, elements) of input, output, scratch and end in staging.

        What others read must lie where they can: in a window of allocate(), or staged.
        """
        layout, reads = program.schedule.layout, program.remote_reads
        found = []
        for rank in range(self.size):
            first, parts = 0, []
            wanted = [
                blocks * extents.block if read and places[rank, 2 * side] < 0 else 0
                for side, (blocks, read) in enumerate(zip((layout.inputs, layout.outputs), reads))
            ]
            for elements in (*wanted, extents.scratch_elements(rank)):
                parts.append((first, elements))
                first += -(-elements * itemsize // _ALIGN) * _ALIGN
            found.append([*parts, (first, 0)])
        return found

    def _fits(self, size: int) -> bool:
        """Return whether this host has `size` more bytes of shared memory; collective.

        Asking MPI for more may hang or kill the job, so rank 0 looks and tells the others. What
        was given before may not have been touched, and then still counts as free: it is added.
        """
        given = sum(w.total for w in (*self._heaps, self._staging) if w is not None)
        fits = given + size < shared_memory_left() if self.rank == 0 else None
        return bool(self.comm.bcast(fits))

    def _reserve(self, size: int) -> bool:
        """Make every rank's staging at least `size` bytes; return False where it cannot be.

        Collective; `size` is the same at all ranks.
        """
        held = self._staging.segments[self.rank].size if self._staging is not None else 0
        if size <= held:
            return True
        # Twice as much, so that a growing series of calls reserves half as often.
        for wanted in (2 * size, size):
            if self._fits(wanted * self.size):
                if self._staging is not None:
                    self._staging.free()
                self._staging = Window(self._mpi, self.comm, wanted)
                return True
        return False

    def _views(
        self,
        program: Program,
        extents: Extents,
        kind: np.dtype[Any],
        places: npt.NDArray[np.int64],
        staged: list[list[tuple[int, int]]],
    ) -> list[list[Array]]:
        """Return every rank's input, output and scratch as far as others can read them."""
        layout, views = program.schedule.layout, []
        lengths = (layout.inputs * extents.block, layout.outputs * extents.block)
        for rank, parts in enumerate(staged):
            sides: list[Array] = []
            for side, (at, elements) in enumerate(parts[:3]):
                heap, offset = places[rank, 2 * side : 2 * side + 2] if side < 2 else (-1, 0)
                memory = np.empty(0, dtype=np.uint8)
                window = self._heaps[heap] if heap >= 0 else None
                if window is not None:
                    memory = window.segments[rank]
                    at, elements = int(offset), lengths[side]
                elif elements and self._staging is not None:
                    memory = self._staging.segments[rank]
                sides.append(memory[at : at + elements * kind.itemsize].view(kind))
            views.append(sides)
        return views

    def _run_shared(
        self,
        program: Program,
        extents: Extents,
        source: Array | None,
        target: Array | None,
        op: ReduceOp,
        peers: list[list[Array]],
    ) -> None:
        mine = peers[self.rank]
        own: list[Array | None] = [source, target, mine[SCRATCH]]
        for side, buffer in ((INPUT, source), (OUTPUT, target)):
            if buffer is not None and mine[side].size:
                if side == INPUT and mine[side].ctypes.data != buffer.ctypes.data:
                    mine[side][:] = buffer
                own[side] = mine[side]
        self.comm.Barrier()
        for facts in program.steps:
            if facts.meets:
                self.comm.Barrier()
            self._pull(extents, facts.step, facts.staged, own, peers, op)
        # Nobody may leave, and write its memory anew, while another still reads it.
        self.comm.Barrier()
        result = own[OUTPUT]
        if result is not None and target is not None and result.ctypes.data != target.ctypes.data:
            target[:] = result

    def _pull(
        self,
        extents: Extents,
        step: Step,
        staged: bool,
        own: list[Array | None],
        peers: list[list[Array]],
        op: ReduceOp,
    ) -> None:
        arriving = np.flatnonzero(step.dst == self.rank)
        if not len(arriving) and not staged:
            return
        rows = self._rows(extents, step, arriving)
        moves = []
        for peer, buffer, start, to, at, length, is_copy in rows:
            side = own[buffer] if peer == self.rank else peers[peer][buffer]
            there = own[to]
            if length and side is not None and there is not None:
                moves.append((side[start : start + length], there[at : at + length], is_copy))
        if staged:
            moves = [(moved.copy(), there, is_copy) for moved, there, is_copy in moves]
            self.comm.Barrier()
        _apply(moves, op)

    def _rows(self, extents: Extents, step: Step, chosen: npt.NDArray[np.int64]) -> Any:
        """Return (source rank, its buffer, first, own buffer, first, length, is copy) of rows."""
        src, dst, count = step.src[chosen], step.dst[chosen], step.count[chosen]
        read = extents.ranges(src, step.src_slot[chosen], count)
        write = extents.ranges(dst, step.dst_slot[chosen], count)
        columns = (
            src,
            read.buffer,
            read.start,
            write.buffer,
            write.start,
            read.length,
            step.op[chosen] == COPY,
        )
        return zip(*(c.tolist() for c in columns))

    # ---- messages ---------------------------------------------------------------------------

    def _run_messages(
        self,
        program: Program,
        block: int,
        source: Array | None,
        target: Array | None,
        op: ReduceOp,
        dtype: np.dtype[Any],
    ) -> None:
        extents = Extents(program, block)
        own = [source, target, np.empty(extents.scratch_elements(self.rank), dtype=dtype)]
        for facts in program.steps:
            self._exchange(extents, facts.step, own, op, dtype)

    def _bytes(self, array: Array) -> list[Any]:
        """Return an MPI buffer of the array's bytes: types MPI does not know travel too."""
        return [array.view(np.uint8), self._mpi.BYTE]

    def _exchange(
        self,
        extents: Extents,
        step: Step,
        own: list[Array | None],
        op: ReduceOp,
        dtype: np.dtype[Any],
    ) -> None:
        arriving = np.flatnonzero(step.dst == self.rank)
        leaving = np.flatnonzero((step.src == self.rank) & (step.dst != self.rank))
        requests, moves = [], []
        for row, (peer, buffer, start, to, at, length, is_copy) in zip(
            arriving.tolist(), self._rows(extents, step, arriving)
        ):
            there = own[to]
            if not length or there is None:
                continue
            if peer == self.rank:
                held = own[buffer]
                if held is not None:
                    moved = held[start : start + length]
                    # Rows of a step all read before any writes: a local source is kept aside.
                    moves.append(
                        (
                            moved if len(arriving) == 1 and not len(leaving) else moved.copy(),
                            there[at : at + length],
                            is_copy,
                        )
                    )
                continue
            landed = np.empty(length, dtype=dtype)
            requests.append(self.comm.Irecv(self._bytes(landed), source=peer, tag=row % _TAGS))
            moves.append((landed, there[at : at + length], is_copy))
        peers = step.dst[leaving].tolist()
        for row, peer, (_, buffer, start, _, _, length, _) in zip(
            leaving.tolist(), peers, self._rows(extents, step, leaving)
        ):
            held = own[buffer]
            if length and held is not None:
                part = held[start : start + length]
                requests.append(self.comm.Isend(self._bytes(part), dest=peer, tag=row % _TAGS))
        self._mpi.Request.Waitall(requests)
        _apply(moves, op)


_TAGS = 32_000  # below every MPI's tag limit; rows of a step between two ranks keep their order


def _apply(moves: list[tuple[Array, Array, bool]], op: ReduceOp) -> None:
    combine = op.ufunc
    with np.errstate(all="ignore"):
        for moved, there, is_copy in moves:
            if is_copy:
                if moved.ctypes.data != there.ctypes.data:
                    there[...] = moved
            else:
                combine(there, moved, out=there)
