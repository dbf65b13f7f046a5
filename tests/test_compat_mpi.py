"""mpi4py's names over our communicators: values against NumPy, refusals, and mpi4py's own tests."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mpirun import mpirun

import rccl_py as rccl
from rccl_py.compat import mpi as MPI
from rccl_py.errors import CollectiveMismatch, Deadlock, InvalidArgument, RemoteError

HERE = Path(__file__).parent
SIZES = [1, 2, 3, 5, 8]


def on(n, program):
    """Return what `program(comm)` returns on each of n threads, comm being COMM_WORLD."""
    return MPI.run(lambda: program(MPI.COMM_WORLD), "mi300x-8", nranks=n, timeout=10)


by_size = pytest.mark.parametrize("n", SIZES)


# ---- reductions ---------------------------------------------------------------------------------

OPS = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum,
    "LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip
WHOLE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
CASES = [
    *((op, t) for op in OPS for t in WHOLE),
    *((op, t) for op in ("SUM", "PROD", "MAX", "MIN", "LAND", "LXOR")
      for t in ("float16", "float32", "float64", "longdouble")),
    *((op, t) for op in ("SUM", "PROD", "LOR") for t in ("complex64", "complex128", "clongdouble")),
    *((op, "bool") for op in ("LAND", "LOR", "LXOR", "BAND", "BOR", "MAX", "MIN")),
]  # fmt: skip


def contribution(rank, dtype, count=7):
    """Return small whole numbers with some zeros, of which no order of operations rounds."""
    values = (np.arange(count) * 3 + rank * 5) % 4 - (1 if np.dtype(dtype).kind in "ifc" else 0)
    return (values + 1j * (values % 2) if np.dtype(dtype).kind == "c" else values).astype(dtype)


@pytest.mark.parametrize("op, dtype", CASES)
def test_every_operation_reduces_every_type_it_is_for(op, dtype):
    def program(comm):
        mine, total = contribution(comm.rank, dtype), np.empty(7, dtype)
        comm.Allreduce(mine, total, op=getattr(MPI, op))
        return total

    rows = [contribution(r, dtype) for r in range(3)]
    with np.errstate(over="ignore"):
        expected = OPS[op](OPS[op](rows[0], rows[1]), rows[2]).astype(dtype)
    for total in on(3, program):
        assert (total == expected).all()


def test_sums_of_short_integers_wrap_around_as_in_mpi():
    def program(comm):
        total = np.empty(1, np.int16)
        comm.Allreduce(np.array([30000], np.int16), total)
        return int(total[0])

    assert on(3, program) == [np.int64(90000).astype(np.int16)] * 3


@by_size
def test_a_reduction_can_be_in_place_anywhere(n):
    def program(comm):
        a, b = np.arange(4) + comm.rank, np.arange(4) + comm.rank
        comm.Allreduce(MPI.IN_PLACE, a)
        root = n - 1
        if comm.rank == root:
            comm.Reduce(MPI.IN_PLACE, b, MPI.MAX, root)
        else:
            comm.Reduce(b, None, MPI.MAX, root)
        return a.tolist(), b.tolist()

    results = on(n, program)
    assert [a for a, _ in results] == [[i * n + n * (n - 1) // 2 for i in range(4)]] * n
    assert results[-1][1] == [i + n - 1 for i in range(4)]


@pytest.mark.parametrize("op", ["SUM", "BXOR"])  # reduced on the way, and folded here
@by_size
def test_parts_of_a_reduction_may_differ_in_size(n, op):
    counts = [(r * 2 + 1) % 4 for r in range(n)]

    def program(comm):
        part = np.full(counts[comm.rank], -1, np.int32)
        comm.Reduce_scatter(np.arange(sum(counts), dtype=np.int32) + comm.rank, part, counts,
                            getattr(MPI, op))  # fmt: skip
        return part.tolist()

    rows = np.arange(sum(counts)) + np.arange(n)[:, None]
    whole = OPS[op].reduce(rows, axis=0)
    ends = np.cumsum([0, *counts])
    assert on(n, program) == [whole[a:b].tolist() for a, b in pairwise(ends)]


@by_size
def test_scans_reduce_the_ranks_up_to_and_below(n):
    def program(comm):
        upto, below = np.empty(1, np.int64), np.full(1, -7, np.int64)
        comm.Scan(np.array([comm.rank + 1]), upto, MPI.PROD)
        comm.Exscan(np.array([comm.rank + 1]), below)
        return int(upto[0]), int(below[0])

    factorials = np.cumprod(np.arange(1, n + 1))
    sums = [-7, *np.cumsum(np.arange(1, n))]
    assert on(n, program) == list(zip(factorials, sums))


def test_a_users_operation_is_applied_in_rank_order():
    def function(a, b, datatype):
        x, y = np.frombuffer(a, "i8"), np.frombuffer(b, "i8")
        assert datatype.name in ("LONG", "int64")
        y[:] = x * 10 + y

    def program(comm):
        op, total = MPI.Op.Create(function), np.empty(2, np.int64)
        comm.Allreduce([np.array([comm.rank, 1]), MPI.LONG], [total, MPI.LONG], op)
        return total.tolist()

    assert on(4, program) == [[123, 1111]] * 4


def test_the_place_of_the_smallest_is_the_first_of_equals():
    pair = np.dtype([("value", "f4"), ("index", "i4")])

    def program(comm):
        mine = np.array([(1.0 + comm.rank % 2, comm.rank)], pair)
        found = np.empty(1, pair)
        comm.Allreduce([mine, MPI.FLOAT_INT], [found, MPI.FLOAT_INT], MPI.MAXLOC)
        return found["index"].tolist(), comm.allreduce((comm.rank % 2, comm.rank), MPI.MINLOC)

    assert on(4, program) == [([1], (0, 0))] * 4


# ---- movement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [
    lambda a: a, lambda a: [a, a.size], lambda a: [a, MPI.INT], lambda a: [a, "i"],
    lambda a: [a, a.size, MPI.INT], lambda a: [a, (a.size, 0), MPI.INT], lambda a: (a, MPI.INT),
    lambda a: [a, a.size, 0, MPI.INT], lambda a: [a, 4 * a.size, MPI.BYTE], lambda a: a.data,
    lambda a: [a, None, MPI.INT], lambda a: [a, np.int64(a.size), np.dtype("i4")],
])  # fmt: skip
def test_a_message_can_be_written_in_every_way_of_mpi4py(spec):
    def program(comm):
        buffer = np.full(6, comm.rank, np.int32)
        comm.Bcast(spec(buffer), root=1)
        return buffer.tolist()

    assert on(2, program) == [[1] * 6] * 2


def test_displacements_count_elements_and_leave_the_rest_alone():
    def program(comm):
        buffer = np.arange(8) + 10 * comm.rank
        comm.Bcast([buffer, (3, 2), MPI.LONG], root=0)
        return buffer.tolist()

    assert on(2, program)[1] == [10, 11, 2, 3, 4, 15, 16, 17]


@pytest.mark.parametrize("make", [
    lambda n: bytearray(n), lambda n: np.zeros(n, "S1"), lambda n: np.zeros(n // 2, np.int16),
    lambda n: np.zeros(n, bool), lambda n: np.zeros((2, n // 4), "u2", order="F"),
    lambda n: np.zeros(n // 8, np.complex64), lambda n: memoryview(bytearray(n)),
])  # fmt: skip
def test_what_the_core_does_not_carry_moves_as_bytes(make):
    def program(comm):
        own, all_ = make(16), make(16 * comm.size)
        memoryview(np.asarray(own).reshape(-1, order="A").view("u1"))[:] = bytes(
            [comm.rank % 2] * 16
        )
        comm.Allgather([own, MPI.BYTE], [all_, MPI.BYTE])
        return np.asarray(all_).reshape(-1, order="A").view("u1").tolist()

    assert on(3, program) == [[0] * 16 + [1] * 16 + [0] * 16] * 3


@by_size
def test_parts_of_different_sizes_go_where_their_displacements_say(n):
    counts = [[(i + 2 * j) % 3 for j in range(n)] for i in range(n)]  # i sends to j

    def program(comm):
        me = comm.rank
        out, coming = counts[me], [counts[i][me] for i in range(n)]
        send = np.concatenate([np.full(c, 10 * me + j) for j, c in enumerate(out)] or [[]])
        recv = np.full(3 * n, -1)
        comm.Alltoallv([send.astype("i8"), out], [recv, coming, 3 * np.arange(n), MPI.LONG])
        return recv.reshape(n, 3).tolist()

    for me, rows in enumerate(on(n, program)):
        for i, row in enumerate(rows):
            assert row == [10 * i + me] * counts[i][me] + [-1] * (3 - counts[i][me])


@by_size
def test_gathered_and_scattered_parts_in_place_at_the_root(n):
    counts = [r % 3 + 1 for r in range(n)]
    ends = np.cumsum([0, *counts]).tolist()

    def program(comm):
        me, root = comm.rank, n // 2
        mine = slice(ends[me], ends[me + 1])
        whole = np.full(ends[-1], -1)
        whole[mine] = me
        if me == root:
            comm.Gatherv(MPI.IN_PLACE, [whole, counts], root)
            gathered = whole.tolist()
            comm.Scatterv([whole + 100, counts], MPI.IN_PLACE, root)
            return gathered
        comm.Gatherv(whole[mine], None, root)
        part = np.empty(counts[me], int)
        comm.Scatterv(None, part, root)
        return part.tolist()

    results = on(n, program)
    for me in range(n):
        expected = (
            np.repeat(np.arange(n), counts).tolist() if me == n // 2 else [me + 100] * counts[me]
        )
        assert results[me] == expected


def test_columns_travel_as_a_derived_datatype():
    def program(comm):
        n = comm.size
        column = MPI.INT.Create_vector(4, 1, n).Create_resized(0, 4).Commit()
        matrix = np.arange(4 * n, dtype="i4").reshape(4, n)
        own, back = np.empty(4, "i4"), np.zeros((4, n), "i4")
        comm.Scatter([matrix, 1, column], own, root=0)
        comm.Allgather(own, [back, 1, column])
        return own.tolist(), (back == matrix).all()

    assert on(3, program) == [([r, 3 + r, 6 + r, 9 + r], True) for r in range(3)]


def test_objects_of_any_size_travel_pickled():
    def program(comm):
        r, n = comm.rank, comm.size
        assert comm.bcast({"x": [r] * 1000}, root=2) == {"x": [2] * 1000}
        assert comm.alltoall([(r, j) for j in range(n)]) == [(i, r) for i in range(n)]
        assert (
            comm.scatter([str(j) * j for j in range(n)] if r == 1 else None, root=1) == str(r) * r
        )
        assert comm.scan("abc"[r]) == "abc"[: r + 1]
        return comm.gather(b"x" * r, root=0), comm.reduce([r], root=0)

    assert on(3, program) == [([b"", b"x", b"xx"], [0, 1, 2]), (None, None), (None, None)]


# ---- messages -----------------------------------------------------------------------------------


@by_size
def test_a_ring_of_blocking_calls_passes_a_message_on(n):
    def program(comm):
        token = np.zeros(1)
        if comm.rank == 0 and n > 1:
            comm.Send(token, 1)
            comm.Recv(token, n - 1)
        elif n > 1:
            comm.Recv(token, comm.rank - 1)
            token += 1
            comm.Send(token, (comm.rank + 1) % n)
        return float(token[0])

    assert on(n, program)[0] == n - 1


def test_one_side_may_block_where_the_other_does_not():
    def program(comm):
        send, recv = np.full(400_000, comm.rank + 1.0), np.zeros(400_000)  # several pieces
        other = 1 - comm.rank
        if comm.rank:
            comm.Send(send, other)
            comm.Recv(recv, other)
        else:
            MPI.Request.Waitall([comm.Isend(send, other), comm.Irecv(recv, other)])
        return set(recv.tolist())

    assert on(2, program) == [{2.0}, {1.0}]


def test_messages_are_matched_by_tag_and_keep_their_order():
    def program(comm):
        if comm.rank == 1:
            for k in range(4):
                comm.send(k, dest=0, tag=k % 2)
            return None
        status = MPI.Status()
        comm.Probe(tag=1, status=status)
        got = [comm.recv(source=1, tag=1), comm.recv(tag=1), comm.recv(), comm.recv(tag=0)]
        return got, status.source

    assert on(2, program)[0] == ([1, 3, 0, 2], 1)


def test_a_shorter_message_fills_the_start_and_a_longer_one_is_refused():
    def program(comm):
        if comm.rank == 1:
            comm.Send(np.arange(3), 0)
            comm.Send(np.arange(3), 0)
            return None
        buffer, status = np.full(5, -1), MPI.Status()
        comm.Recv(buffer, 1, status=status)
        with pytest.raises(MPI.Exception, match="has 24 bytes, the buffer 8") as refused:
            comm.Recv(buffer[:1], 1)
        assert refused.value.Get_error_class() == MPI.ERR_TRUNCATE
        return buffer.tolist(), status.Get_count(MPI.LONG)

    assert on(2, program)[0] == ([0, 1, 2, -1, -1], 3)


def test_a_synchronous_message_is_over_when_it_is_matched():
    def program(comm):
        if comm.rank == 0:
            request = comm.issend("x", 1)
            assert not request.Test()
            comm.Barrier()  # the other asks for it only now: threads run in any order
            request.wait()
            comm.send("go", 1)
            return None
        comm.Barrier()
        assert comm.recv(source=0, tag=0) == "x"
        return comm.recv(source=0)

    assert on(2, program)[1] == "go"


def test_a_match_is_told_by_a_rank_that_waits_for_no_message_afterwards():
    def program(comm):
        if comm.rank == 0:
            comm.Barrier()  # the message is there before it is asked for
            return comm.recv(source=1)
        request = comm.issend("x", 0)
        comm.Barrier()
        return request.wait()

    assert on(2, program) == ["x", None]


@pytest.mark.parametrize("count, length", [(250, 0), (250, 3), (5, 20_000), (2, 60_000)])
def test_receives_posted_early_do_not_hold_up_a_sender_who_comes_to_the_barrier_later(
    count, length
):
    def program(comm):
        buffers = np.full((count, length), -1.0)
        if comm.rank == 0:
            requests = [comm.Irecv(b, 1, k) for k, b in enumerate(buffers)]
            comm.Barrier()
            MPI.Request.Waitall(requests)
        else:
            for k in range(count):
                comm.Send(np.full(length, float(k)), 0, k)
            comm.Barrier()
        return buffers

    got = on(2, program)[0]
    assert (got == np.arange(count)[:, None]).all()


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 131_071, 131_072, 131_073, 1_000_003])
def test_a_message_of_any_length_arrives_whole(length):
    def program(comm):
        left, right = (comm.rank - 1) % 3, (comm.rank + 1) % 3
        for k in range(3):  # around the ring
            sent, got = np.arange(length) + comm.rank + k, np.full(length + 1, -1)
            comm.Sendrecv(sent, right, 0, got, left)
            assert (got[:-1] == np.arange(length) + left + k).all() and got[-1] == -1
        return True

    assert on(3, program) == [True] * 3


def test_nothing_goes_to_and_comes_from_proc_null():
    def program(comm):
        buffer = np.ones(2)
        comm.Sendrecv(buffer, MPI.PROC_NULL, 0, buffer, MPI.PROC_NULL)
        return comm.recv(source=MPI.PROC_NULL), buffer.tolist()

    assert on(1, program) == [(None, [1.0, 1.0])]


def test_receives_that_wait_for_each_other_are_told_as_a_circle():
    with pytest.raises(Deadlock):
        on(2, lambda comm: comm.recv(source=1 - comm.rank))


def test_a_receive_from_a_rank_that_has_ended_says_so():
    with pytest.raises(RemoteError, match="rank 1"):
        on(2, lambda comm: comm.recv(source=1) if comm.rank == 0 else None)


def test_messages_take_modelled_time():
    def program(comm):
        if comm.rank == 0:
            comm.Send(np.zeros(1 << 16), 1)
        elif comm.rank == 1:
            comm.Recv(np.empty(1 << 16), 0)
        comm.Barrier()
        return comm.communicator.elapsed

    assert min(on(2, program)) > 1e-6


# ---- communicators ------------------------------------------------------------------------------


def test_splitting_orders_by_key_and_leaves_out_the_undefined():
    def program(comm):
        part = comm.Split(MPI.UNDEFINED if comm.rank == 4 else comm.rank % 2, -comm.rank)
        if part == MPI.COMM_NULL:
            return None
        found = part.allgather(comm.rank), part.Get_rank()
        part.Free()
        assert part == MPI.COMM_NULL and not part
        return found

    assert on(5, program) == [([2, 0], 1), ([3, 1], 1), ([2, 0], 0), ([3, 1], 0), None]


def test_a_duplicate_keeps_messages_of_its_own():
    def program(comm):
        other = comm.Dup()
        if comm.rank == 0:
            comm.send("first", 1)
            other.send("second", 1)
            return None
        return other.recv(source=0), comm.recv(source=0)

    assert on(2, program)[1] == ("second", "first")


def test_the_worlds_of_a_thread_are_its_own():
    def program(comm):
        assert comm == MPI.COMM_WORLD and comm != MPI.COMM_SELF and comm != MPI.COMM_NULL
        assert MPI.COMM_SELF.size == 1 and MPI.COMM_SELF.allgather(comm.rank) == [comm.rank]
        return MPI.COMM_WORLD.rank

    assert on(3, program) == [0, 1, 2]


def test_mpis_own_communicators_cannot_be_freed():
    with pytest.raises(MPI.Exception, match="MPI_COMM_SELF"):
        MPI.COMM_SELF.Free()


def test_nothing_can_be_asked_of_the_null_communicator():
    with pytest.raises(InvalidArgument, match="COMM_NULL"):
        MPI.COMM_NULL.Get_rank()


# ---- refusals -----------------------------------------------------------------------------------

REFUSED = [
    (lambda c: c.Bcast(np.zeros(4)[::2]), "not contiguous"),
    (lambda c: c.Bcast([np.zeros(2), 3, MPI.DOUBLE]), "bytes 0..23, the buffer has 16"),
    (lambda c: c.Bcast([np.zeros(2), -1, MPI.DOUBLE]), "negative count -1"),
    (lambda c: c.Bcast([np.zeros(2), 1.5, MPI.DOUBLE]), "count 1.5 is a float"),
    (lambda c: c.Bcast([bytearray(7), MPI.DOUBLE]), "7 bytes are no multiple of DOUBLE's extent"),
    (lambda c: c.Bcast([np.zeros(2)]), "has 1 items"),
    (lambda c: c.Bcast(None), "is None"),
    (lambda c: c.Bcast([MPI.BOTTOM, 1, MPI.INT]), "BOTTOM"),
    (lambda c: c.Bcast("text"), "is a str"),
    (lambda c: c.Bcast(np.zeros(2), root=1), "root 1 is not one of 0..0"),
    (lambda c: c.Allreduce(np.zeros(2), np.zeros(3)), "2 x float64, recvbuf asks for 3 x float64"),
    (lambda c: c.Allreduce(np.zeros(2, "F"), np.zeros(2, "F"), MPI.MAX), "MAX does not work on"),
    (lambda c: c.Allreduce(np.zeros(2), np.zeros(2), MPI.BAND), "BAND does not work on float64"),
    (lambda c: c.Allreduce(np.zeros(2), np.zeros(2), "sum"), "an Op was expected"),
    (lambda c: c.Allreduce(np.zeros(2), b"x" * 16), "read-only"),
    (lambda c: c.Gather(np.zeros(2), np.zeros(3)), "a block is 16 bytes"),
    (lambda c: c.Allgatherv(np.zeros(2), [np.zeros(4), [1, 1]]), "has 2 counts"),
    (lambda c: c.Send(np.zeros(1), 1), "rank 1 is not one of 0..0"),
    (lambda c: c.Send(np.zeros(1), 0, -3), "tag -3"),
    (lambda c: c.scatter([1, 2]), "2 objects: expected one a rank, 1"),
]


@pytest.mark.parametrize("call, said", REFUSED)
def test_what_does_not_fit_is_refused_in_words(call, said):
    with pytest.raises(InvalidArgument, match=said):
        call(MPI.COMM_SELF)


def test_messages_that_do_not_fit_are_also_the_value_errors_of_mpi4py():
    with pytest.raises(ValueError):
        MPI.COMM_SELF.Bcast([np.zeros(2), 3, MPI.DOUBLE])


def test_ranks_that_disagree_are_told_apart():
    with pytest.raises(CollectiveMismatch):
        on(2, lambda comm: comm.Bcast(np.zeros(1 + comm.rank)))


def test_a_nonblocking_communicator_is_refused():
    (comm,) = rccl.Communicator.init_all("mi300x-8", nranks=1, config=rccl.Config(blocking=False))
    with pytest.raises(InvalidArgument, match="nonblocking"):
        MPI.Comm(comm)


# ---- datatypes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make, places, extent", [
    (lambda t: t.Create_contiguous(3), [0, 1, 2], 3),
    (lambda t: t.Create_vector(2, 2, 3), [0, 1, 3, 4], 5),
    (lambda t: t.Create_hvector(2, 1, 12), [0, 3], 4),
    (lambda t: t.Create_indexed([1, 2], [4, 0]), [4, 0, 1], 5),
    (lambda t: t.Create_indexed_block(2, [3, 0]), [3, 4, 0, 1], 5),
    (lambda t: t.Create_subarray([3, 4], [2, 2], [1, 1]), [5, 6, 9, 10], 12),
    (lambda t: t.Create_subarray([3, 4], [2, 2], [1, 1], MPI.ORDER_FORTRAN), [4, 5, 7, 8], 12),
    (lambda t: t.Create_vector(2, 1, 2).Create_resized(0, 4), [0, 2], 1),
])  # fmt: skip
def test_a_derived_datatype_takes_the_elements_it_says(make, places, extent):
    made = make(MPI.INT)
    assert made.extent == 4 * extent and made.size == 4 * len(places)
    memory, out = np.arange(20, dtype="i4"), np.empty(len(places), "i4")
    status = MPI.Status()
    MPI.COMM_SELF.Sendrecv([memory, 1, made], 0, 0, out, 0, status=status)
    assert out.tolist() == places and status.Get_count(MPI.INT) == len(places)


def test_a_struct_is_padded_as_in_c():
    made = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR])
    assert (made.size, made.extent) == (9, 16)


# ---- processes, and mpi4py's own tests -----------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.parametrize("n", [1, 3])
def test_a_program_of_mpi4py_needs_only_another_communicator(n):
    done = mpirun(n, str(HERE / "compat_program.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("well") == n


SUITE = ["test_cco_buf", "test_cco_vec", "test_cco_obj", "test_p2p_buf", "test_p2p_obj"]
THEIRS = os.environ.get("RCCL_PY_MPI4PY_TESTS")
with_theirs = pytest.mark.skipif(
    not THEIRS, reason="RCCL_PY_MPI4PY_TESTS names no folder: test/ of mpi4py's source archive"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    from compat_suite import prepare

    folder = tmp_path_factory.mktemp("mpi4py_tests")
    prepare(THEIRS, folder)
    return str(folder)


@with_theirs
@pytest.mark.mpi
@pytest.mark.parametrize("n", [1, 2, 3])
def test_mpi4pys_own_tests_pass_under_mpirun(prepared, n):
    done = mpirun(n, str(HERE / "compat_suite.py"), "processes", prepared, *SUITE, timeout=600)
    assert done.stdout.count("all well") == n, done.stdout + done.stderr


@with_theirs
@pytest.mark.parametrize("n", [1, 2, 3])
def test_mpi4pys_own_tests_pass_on_threads(prepared, n):
    import subprocess
    import sys

    command = [sys.executable, str(HERE / "compat_suite.py"), f"threads:{n}", prepared, *SUITE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.count("all well") == n, done.stdout + done.stderr
