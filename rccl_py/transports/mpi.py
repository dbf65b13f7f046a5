"""The MPI transport: one rank a process, the planned schedule over shared memory or messages.

Owns how rows cross processes. The only module that imports mpi4py. It never calls MPI's own
collectives for data: every rank runs the rows that arrive at it, in the schedule's order, so the
bits are the local transport's. Ranks of one host read each other's window; where the communicator
spans hosts, rows travel as messages.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RcclSystemError
from ..reduce_ops import ReduceOp
from ..schedule import COPY, Step
from .program import INPUT, OUTPUT, SCRATCH, Extents, Program

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


def _shared_memory_left() -> int:
    """Return the bytes of shared memory this host can still give, less a tenth for others."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize * 9 // 10


class MpiTransport:
    """Runs schedules over one MPI communicator.

    shared: None uses shared memory where all ranks are on one host; False always sends messages.
    """

    def __init__(self, comm: Any, shared: bool | None = None) -> None:
        self._mpi = import_mpi()
        self.comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        host = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        one_host = host.Get_size() == self.size
        host.Free()
        self.shared = one_host and shared is not False
        self._window: Any = None
        self._capacity = 0
        self._segments: list[npt.NDArray[np.uint8]] = []

    def agree(self, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return every rank's row of control numbers: int64[size, len(own)]."""
        rows = np.empty((self.size, len(own)), dtype=np.int64)
        self.comm.Allgather(own, rows)
        return rows

    def close(self) -> None:
        """Free the window and the communicator."""
        self._segments = []
        if self._window is not None:
            self._window.Free()
            self._window = None
        self.comm.Free()

    def run(
        self,
        program: Program,
        block: int,
        source: Array | None,
        target: Array | None,
        op: ReduceOp,
        dtype: Any,
    ) -> None:
        """Run this rank's part of `program` on its flat buffers."""
        if block == 0:
            return
        run = self._run_shared if self.shared and self.size > 1 else self._run_messages
        run(program, block, source, target, op, np.dtype(dtype))

    # ---- shared memory: every rank reads what arrives at it -----------------------------------

    def _segment_layout(
        self, program: Program, extents: Extents, itemsize: int
    ) -> list[list[tuple[int, int]]]:
        """Return, per rank, (first byte, elements) of input, output and scratch in its segment."""
        layout, (reads_input, reads_output) = program.schedule.layout, program.remote_reads
        input_elements = layout.inputs * extents.block if reads_input else 0
        output_elements = layout.outputs * extents.block if reads_output else 0
        found = []
        for rank in range(self.size):
            first, parts = 0, []
            for elements in (input_elements, output_elements, extents.scratch_elements(rank)):
                parts.append((first, elements))
                first += -(-elements * itemsize // _ALIGN) * _ALIGN
            found.append([*parts, (first, 0)])
        return found

    def _reserve(self, size: int) -> bool:
        """Make every rank's segment at least `size` bytes; return False where it cannot be.

        Collective; `size` is the same at all ranks. Asking MPI for more than the host's shared
        memory holds may hang or kill the job, so rank 0 looks first and tells the others.
        """
        if size <= self._capacity:
            return True
        wanted = 2 * size  # a growing series of calls then reserves half as often
        free = self.comm.bcast(_shared_memory_left() if self.rank == 0 else None)
        wanted = wanted if wanted * self.size < free else size
        if wanted * self.size >= free:
            return False
        self._segments = []
        if self._window is not None:
            self._window.Free()
        self._window = self._mpi.Win.Allocate_shared(wanted, 1, comm=self.comm)
        self._capacity = wanted
        for rank in range(self.size):
            memory, _ = self._window.Shared_query(rank)
            self._segments.append(np.frombuffer(memory, dtype=np.uint8, count=wanted))
        return True

    def _run_shared(
        self,
        program: Program,
        block: int,
        source: Array | None,
        target: Array | None,
        op: ReduceOp,
        dtype: np.dtype[Any],
    ) -> None:
        extents = Extents(program, block)
        places = self._segment_layout(program, extents, dtype.itemsize)
        if not self._reserve(max(parts[-1][0] for parts in places)):
            self._run_messages(program, block, source, target, op, dtype)
            return
        peers = [
            [self._segments[rank][at : at + n * dtype.itemsize].view(dtype) for at, n in parts[:3]]
            for rank, parts in enumerate(places)
        ]
        mine = peers[self.rank]
        own: list[Array | None] = [source, target, mine[SCRATCH]]
        if mine[INPUT].size and source is not None:
            mine[INPUT][:] = source
            own[INPUT] = mine[INPUT]
        if mine[OUTPUT].size and target is not None:
            own[OUTPUT] = mine[OUTPUT]
        self.comm.Barrier()
        for facts in program.steps:
            if facts.meets:
                self.comm.Barrier()
            self._pull(extents, facts.step, facts.staged, own, peers, op)
        # Nobody may leave, and write its segment anew, while another still reads it.
        self.comm.Barrier()
        if own[OUTPUT] is mine[OUTPUT] and target is not None and mine[OUTPUT].size:
            target[:] = mine[OUTPUT]

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
            requests.append(self.comm.Irecv(_bytes(landed), source=peer, tag=row % _TAGS))
            moves.append((landed, there[at : at + length], is_copy))
        peers = step.dst[leaving].tolist()
        for row, peer, (_, buffer, start, _, _, length, _) in zip(
            leaving.tolist(), peers, self._rows(extents, step, leaving)
        ):
            held = own[buffer]
            if length and held is not None:
                part = held[start : start + length]
                requests.append(self.comm.Isend(_bytes(part), dest=peer, tag=row % _TAGS))
        self._mpi.Request.Waitall(requests)
        _apply(moves, op)


_TAGS = 32_000  # below every MPI's tag limit; rows of a step between two ranks keep their order


def _bytes(array: Array) -> list[Any]:
    """Return an MPI buffer of the array's bytes: types MPI does not know travel too."""
    from mpi4py import MPI

    return [array.view(np.uint8), MPI.BYTE]


def _apply(moves: list[tuple[Array, Array, bool]], op: ReduceOp) -> None:
    combine = op.ufunc
    with np.errstate(all="ignore"):
        for moved, there, is_copy in moves:
            if is_copy:
                if moved.ctypes.data != there.ctypes.data:
                    there[...] = moved
            else:
                combine(there, moved, out=there)
