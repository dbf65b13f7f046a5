"""What every communicator must do, as programs all ranks run: the same for threads and processes.

`run(comm, length)` makes every call of the public API, compares what arrives with plain NumPy and
returns a digest of all bytes received, in order. Transports agree when their digests do. Data is
made from (name of the case, rank), so every rank knows every rank's input and no rank tells it.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from helpers import blocks, buffers_of, expected

import rccl_py as rccl
from rccl_py.dtypes import DTYPES, dtype_named

COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall",
               "gather", "scatter")  # fmt: skip
REDUCING = ("allreduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
OPS = ("sum", "prod", "min", "max", "avg")
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}


def is_float(kind: np.dtype[Any]) -> bool:
    return kind.kind in "fV"


@lru_cache(24)
def inputs(case: str, n: int, count: int, dtype: str, op: str = "sum") -> tuple[np.ndarray, ...]:
    """Return every rank's data, whose reduction is exact in any order.

    Whole numbers wrap around, so they may be anything. Of floating point numbers three ranks have
    small ones at a place and the others what changes nothing.
    """
    kind, made = dtype_named(dtype), []
    for rank in range(n):
        rng = np.random.default_rng([zlib.crc32(case.encode()), rank])
        if not is_float(kind):
            held = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
        elif op in ("min", "max"):
            held = rng.integers(-8, 9, count).astype(kind)
        else:
            few = (np.arange(count) + rank) % n < 3
            some = rng.choice([-1.0, 0.5, 2.0], count)
            held = np.where(few, some, 1.0 if op == "prod" else 0.0).astype(kind)
        held.flags.writeable = False
        made.append(held)
    return tuple(made)


def averaged(total: np.ndarray, n: int) -> np.ndarray:
    """Return a sum divided by n: whole numbers towards zero, others rounded once."""
    kind = total.dtype
    if kind.kind == "u":
        return total // kind.type(n)
    if kind.kind == "i":
        wide = total.astype(np.int64)
        return (np.sign(wide) * (np.abs(wide.astype(object)) // n)).astype(kind)
    real = np.float64 if kind.itemsize == 8 else np.float32
    return (total.astype(real) / real(n)).astype(kind)


def results(collective: str, given: Any, root: int, op: str) -> list[Any]:
    """Return what every rank must have, None where it receives nothing."""
    with np.errstate(all="ignore"):
        found = expected(collective, list(given), root, UFUNCS[op])
        if op == "avg" and collective in REDUCING:
            found = [None if held is None else averaged(held, len(given)) for held in found]
    return found


class Checks:
    """One rank of a communicator under test, and the digest of what it has received."""

    def __init__(self, comm: rccl.Communicator, reduced: bool = False) -> None:
        self.comm, self.reduced = comm, reduced
        self.rank, self.n = comm.rank, comm.nranks
        self.hash = hashlib.blake2b(digest_size=16)

    def same(self, case: str, found: np.ndarray, wanted: np.ndarray) -> None:
        """Require equal bits, and take them into the digest."""
        self.hash.update(found.tobytes())
        if found.tobytes() != np.asarray(wanted, dtype=found.dtype).tobytes():
            where = np.flatnonzero(found.view(np.uint8) != wanted.view(np.uint8))
            at = int(where[0]) // found.itemsize
            raise AssertionError(
                f"{case}, n={self.n}, rank {self.rank}: element {at} of {found.size} is "
                f"{found[at]}, not {wanted[at]}"
            )

    def call(self, collective: str, source: Any, target: Any, op: Any = "sum", root: int = 0,
             **more: Any) -> None:  # fmt: skip
        """Make a collective call with the arguments it takes."""
        more |= {"root": root} if collective in ROOTED else {}
        more |= {"op": op} if collective in REDUCING else {}
        getattr(self.comm, collective)(source, target, **more)

    def collective(self, collective: str, count: int, dtype: str, op: str = "sum", root: int = 0,
                   placed: int = 0) -> None:  # fmt: skip
        """Make a call and compare. placed: 0 out of place, 1 in place, 2 at odd ranks only."""
        n, case = self.n, f"{collective} {count} {dtype} {op} root={root} placed={placed}"
        given = inputs(case, n, blocks(collective, n)[0] * count, dtype, op)
        in_place = [placed == 1 or (placed == 2 and r % 2 == 1) for r in range(n)]
        one = [g if r == self.rank else g[:0] for r, g in enumerate(given)]
        source, target = buffers_of(collective, one, root, in_place, 7)[self.rank]
        unread = None if source is None or in_place[self.rank] else source.copy()
        self.call(collective, source, target, op, root)
        wanted = results(collective, given, root, op)[self.rank]
        if wanted is not None:
            self.same(case, target, wanted)
        if unread is not None:
            assert source.tobytes() == unread.tobytes(), f"{case}: sendbuf was written"

    def counts(self) -> tuple[int, ...]:
        """Return none, one, fewer than ranks, and primes."""
        if self.reduced:
            return (101,) if self.n > 16 else (1, 101)
        return tuple(dict.fromkeys((0, 1, max(self.n - 1, 1), 101, 4099)))

    def root(self, k: int) -> int:
        """Return some root; always the last where calls are few: every root is planned anew."""
        return self.n - 1 if self.reduced else k % self.n


# ---- the checks ---------------------------------------------------------------------------------


def collectives_of_any_count_in_and_out_of_place(c: Checks) -> None:
    for k, collective in enumerate(COLLECTIVES):
        for i, count in enumerate(c.counts()):
            for placed in (0, 1, 2):
                if c.reduced and placed != (i + k) % 3:
                    continue
                if count == 4099 and placed != k % 3:
                    continue
                dtype, op = DTYPES[(5 * k + i + placed) % 12], OPS[(k + i) % 5]
                c.collective(collective, count, dtype, op, c.root(k + i), placed)


def every_type_with_every_reduction(c: Checks) -> None:
    for k, dtype in enumerate(DTYPES):
        for i, op in enumerate(OPS):
            for j, collective in enumerate(REDUCING):
                if c.reduced and (i + k) % 5 != j:
                    continue
                c.collective(collective, 37, dtype, op, c.root(k), (i + j) % 3)
        moving = [name for name in COLLECTIVES if name not in REDUCING]
        c.collective(moving[k % len(moving)], 37, dtype, root=c.root(k))


def every_root(c: Checks) -> None:
    for root in range(c.n) if not c.reduced else dict.fromkeys((0, c.n - 1)):
        for k, collective in enumerate(ROOTED):
            c.collective(collective, 5, "int32", "sum", root, (root + k) % 3)


def parts_of_unequal_sizes(c: Checks) -> None:
    n, r = c.n, c.rank
    for scale, dtype in ((1, "int64"), (0, "half"), (13, "bfloat16"), (101, "uint8")):
        sizes = [[(3 * i + 5 * j) % 4 * scale for j in range(n)] for i in range(n)]
        if c.reduced and scale not in ((13,) if n > 16 else (0, 1, 13)):
            continue
        # alltoallv, packed and with a gap of one element behind every part
        for gap in (0, 1):
            sent, got = sizes[r], [sizes[i][r] for i in range(n)]
            at = [sum(row) + gap * j for j in range(n) for row in [sent[:j]]]
            to = [sum(row) + gap * j for j in range(n) for row in [got[:j]]]
            case = f"alltoallv {scale} {dtype} {gap}"
            given = inputs(case, n, 4 * 101 * n + n, dtype)
            kind = given[0].dtype
            target = np.full(sum(got) + n, 7).astype(kind)
            wanted = target.copy()
            for i in range(n):
                first = sum(sizes[i][:r]) + gap * r
                wanted[to[i] : to[i] + got[i]] = given[i][first : first + got[i]]
            places = (None, None) if gap == 0 else (at, to)
            c.comm.alltoallv(given[r], sent, places[0], target, got, places[1])
            c.same(case, target, wanted)
        row = [sizes[i][0] for i in range(n)]
        given = inputs(f"allgatherv {scale} {dtype}", n, max(row), dtype)
        whole = np.concatenate([g[:m] for g, m in zip(given, row)])
        target = np.full(len(whole) + 1, 7).astype(whole.dtype)
        c.comm.allgatherv(given[r], target, row)
        c.same("allgatherv", target[:-1], whole)
        backwards = [sum(row[i + 1 :]) for i in range(n)]
        own = target[backwards[r] : backwards[r] + row[r]]
        own[...] = given[r][: row[r]]
        c.comm.allgatherv(own, target, row, backwards)  # in place, the last rank's part first
        wanted = np.concatenate([g[:m] for g, m in zip(given[::-1], row[::-1])])
        c.same("allgatherv in place", target[:-1], wanted)
        for op in OPS:
            given = inputs(f"reduce_scatterv {scale} {dtype} {op}", n, sum(row), dtype, op)
            total = results("allreduce", given, 0, op)[0]
            mine = slice(sum(row[:r]), sum(row[: r + 1]))
            source = given[r].copy()
            target = source[mine] if op == "max" else np.empty(row[r], source.dtype)
            c.comm.reduce_scatterv(source, target, row, op)
            c.same(f"reduce_scatterv {op}", target, total[mine])


def messages(c: Checks) -> None:
    comm, n, r = c.comm, c.n, c.rank
    right, left = (r + 1) % n, (r - 1) % n
    for count, dtype in ((0, "float"), (1, "f8e4m3"), (101, "double"), (100_003, "int32")):
        if c.reduced and n > 16 and count in (1, 101):
            continue
        given = inputs(f"ring {count}", n, count, dtype)
        target = np.empty_like(given[r])
        with rccl.group():  # also to itself, where there is one rank
            comm.send(given[r], right)
            comm.recv(target, left)
        c.same("ring in a group", target, given[left])
        if n == 1:
            continue
        target = np.empty_like(given[r])  # one after the other: rank 0 begins, the others relay
        if r == 0:
            comm.send(given[r], right)
            comm.recv(target, left)
        else:
            comm.recv(target, left)
            comm.send(given[r], right)
        c.same("ring of relays", target, given[left])
    everybody = inputs("all pairs", n, n, "int64")
    target = np.empty((n, 2), np.int64)
    with rccl.group():  # two messages a pair: they keep their order
        for k in range(2):
            for peer in range(n):
                comm.send(everybody[r][peer : peer + 1] + k, peer)
                comm.recv(target[peer, k : k + 1], peer)
    wanted = np.array([[everybody[p][r], everybody[p][r] + 1] for p in range(n)])
    c.same("all pairs twice", target.reshape(-1), wanted.reshape(-1))


def groups(c: Checks) -> None:
    comm, n, r = c.comm, c.n, c.rank
    given = inputs("group", n, 2 * n, "float")
    total, highest, whole = np.empty(2 * n, "f4"), np.empty(2 * n, "f4"), np.empty(2 * n * n, "f4")
    moved, part = np.empty(2 * n, "f4"), np.empty(2, "f4")
    with rccl.group():
        comm.allreduce(given[r], total)
        comm.recv(moved, (r - 1) % n)
        with rccl.group():
            comm.allgather(given[r], whole)
            comm.send(given[r], (r + 1) % n)
        comm.allreduce(given[r], highest, op="max")
        comm.reduce_scatter(given[r], part)
        comm.barrier()
    added = sum(given[1:], given[0])
    c.same("group: sum", total, added)
    c.same("group: gathered", whole, np.concatenate(given))
    c.same("group: message", moved, given[(r - 1) % n])
    c.same("group: max", highest, np.maximum.reduce(given))
    c.same("group: part", part, added[2 * r : 2 * r + 2])
    other = comm.split(0, -r)  # the same ranks, last one first
    mine, theirs = np.empty(2 * n, "f4"), np.empty(2 * n * n, "f4")
    with rccl.group():  # two communicators, whose calls the ranks make in different order
        if r % 2:
            comm.allreduce(given[r], mine)
        other.allgather(given[r], theirs)
        if not r % 2:
            comm.allreduce(given[r], mine)
    c.same("two communicators: sum", mine, added)
    c.same("two communicators: gathered", theirs, np.concatenate(given[::-1]))
    other.destroy()


def subsets(c: Checks) -> None:
    comm, n, r = c.comm, c.n, c.rank
    halves = [q % 2 for q in range(n)]
    thirds = [q * 3 // n or None for q in range(n)]  # the first third has no part
    for colors, backwards in ((halves, False), (thirds, True)):
        made = comm.split(colors[r], -r if backwards else 0)
        if colors[r] is None:
            assert not made.is_valid
            continue
        ranks = [q for q in range(n) if colors[q] == colors[r]][:: -1 if backwards else 1]
        assert (made.nranks, made.rank) == (len(ranks), ranks.index(r))
        inner = Checks(made, c.reduced)
        inner.collective("allreduce", 101, "float", "avg")
        inner.collective("alltoall", 3, "int32")
        inner.collective("broadcast", 5, "half", root=len(ranks) - 1)
        given = inputs("subset", n, 4, "int64")
        whole = np.empty(4 * len(ranks), np.int64)
        made.allgather(given[r], whole)
        inner.same("subset", whole, np.concatenate([given[q] for q in ranks]))
        c.hash.update(inner.hash.digest())
        made.destroy()


def sums_of_multiples(c: Checks) -> None:
    comm, n, r = c.comm, c.n, c.rank
    factors = [(-1, 2, 1)[q % 3] for q in range(n)]
    for dtype in ("float", "half", "int32", "uint8", "bfloat16", "double"):
        given = inputs(f"multiples {dtype}", n, 11 * n, dtype)
        kind = given[0].dtype
        scalars = [np.array([f % 256 if dtype == "uint8" else f]).astype(kind) for f in factors]
        op = comm.create_pre_mul_sum(scalars[r], dtype)
        with np.errstate(all="ignore"):
            total = results("allreduce", [g * s for g, s in zip(given, scalars)], 0, "sum")[0]
        target = np.empty_like(given[r])
        comm.allreduce(given[r], target, op)
        c.same(f"multiples of {dtype}", target, total)
        comm.reduce_scatter(given[r], target[:11], op)
        c.same(f"multiples of {dtype}, scattered", target[:11], total[11 * r : 11 * r + 11])
        held = given[r].copy()
        comm.reduce(held, held, op, root=n - 1)
        if r == n - 1:
            c.same(f"multiples of {dtype}, at the root", held, total)
        comm.destroy_red_op(op)


def puts_and_signals(c: Checks) -> None:
    comm, n, r = c.comm, c.n, c.rank
    right, left = (r + 1) % n, (r - 1) % n
    there = np.zeros(n * 11, np.float32)
    window = comm.register_window(there)
    given = inputs("puts", n, 11, "float")
    comm.put_signal(given[r], right, window, 11 * r)
    comm.wait_signal(rccl.WaitSignalDesc(left))
    c.same("put to the right", there[11 * left : 11 * left + 11], given[left])
    comm.barrier()
    for peer in range(n):
        comm.put(given[r] + 1, peer, window, 11 * r)
        comm.signal(peer)
    comm.wait_signal([rccl.WaitSignalDesc(peer) for peer in range(n)])
    c.same("put to all", there, np.concatenate(given) + 1)
    for _ in range(3):
        comm.signal(left)
    comm.wait_signal(rccl.WaitSignalDesc(right, 2))
    comm.wait_signal(rccl.WaitSignalDesc(right, 1))
    comm.barrier()


def rough_numbers_and_wider_sums(c: Checks) -> None:
    """Numbers whose sum depends on the order: the digest shows the bits, NumPy the size."""
    for k, dtype in enumerate(d for d in DTYPES if is_float(dtype_named(d))):
        kind = dtype_named(dtype)
        for j, (collective, count) in enumerate((("allreduce", 1009), ("reduce_scatter", 67),
                                                 ("reduce", 311))):  # fmt: skip
            if c.reduced and j != k % 3:
                continue
            many = blocks(collective, c.n)[0] * count
            given = [np.random.default_rng([q, many, k]).standard_normal(many).astype(kind)
                     for q in range(c.n)]  # fmt: skip
            for wide in (None, "double" if kind.itemsize > 2 else "float"):
                target = np.zeros(count, kind)
                c.call(collective, given[c.rank], target, root=c.n - 1, accumulate=wide)
                c.hash.update(target.tobytes())
                exact = expected(collective, [g.astype("f8") for g in given], c.n - 1)[c.rank]
                if exact is None or kind.itemsize == 1:
                    continue
                size = expected(collective, [np.abs(g.astype("f8")) for g in given], c.n - 1)
                off = np.abs(target.astype("f8") - exact)
                roundings = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}[kind.itemsize] * c.n
                assert (off <= roundings * size[c.rank] + 1e-30).all(), (collective, dtype, wide)


def the_same_call_again(c: Checks) -> None:
    """The short way of a call that is made again gives what the long way gives."""
    n, r = c.n, c.rank
    source, target = np.empty(12, np.int32), np.empty(12 * n, np.int32)
    for step in range(5):
        given = inputs(f"again {step}", n, 12, "int32")
        source[:] = given[r]
        c.comm.allgather(source, target)
        c.same("again", target, np.concatenate(given))
    held = np.ones(3)
    for step in range(4):
        c.comm.allreduce(held, held, op="avg" if step == 2 else "sum")
    c.same("again in place", held, np.full(3, float(n) ** 3))


def large_buffers(c: Checks) -> None:
    """Several tiles, several pieces: a rank's data is the same numbers, shifted by its rank."""
    n, r = c.n, c.rank
    many = 250_007 if c.reduced else 1_000_003
    base = np.resize(np.random.default_rng(1).integers(0, 9, 65_521), many)

    def shifted(rank: int, kind: str) -> np.ndarray:
        return np.roll(base.astype(kind), 101 * rank)

    held = shifted(r, "float32")
    c.comm.allreduce(held, held)
    total = np.zeros(many, np.float32)
    for rank in range(n):
        total += shifted(rank, "float32")
    c.same("large sum", held, total)
    each = many // n
    target = np.empty(n * each, np.uint8)
    c.comm.alltoall(shifted(r, "uint8")[: n * each], target)
    wanted = [shifted(q, "uint8")[r * each : (r + 1) * each] for q in range(n)]
    c.same("large exchange", target, np.concatenate(wanted))
    held = shifted(r, "float64")
    c.comm.broadcast(held, held, root=n - 1)
    c.same("large copy", held, shifted(n - 1, "float64"))
    if not c.reduced:
        part = np.empty(each, np.float16)
        c.comm.reduce_scatter(shifted(r, "float16")[: n * each], part, op="max")
        parts = [shifted(q, "float16")[r * each : (r + 1) * each] for q in range(n)]
        c.same("large maximum", part, np.maximum.reduce(parts))


CHECKS = (
    collectives_of_any_count_in_and_out_of_place,
    every_type_with_every_reduction,
    every_root,
    parts_of_unequal_sizes,
    messages,
    groups,
    subsets,
    sums_of_multiples,
    puts_and_signals,
    rough_numbers_and_wider_sums,
    the_same_call_again,
    large_buffers,
)


FEW = (
    collectives_of_any_count_in_and_out_of_place,
    parts_of_unequal_sizes,
    messages,
    groups,
    subsets,
    puts_and_signals,
)


def settings(n: int, length: str) -> tuple[str, str | None]:
    """Return the machine and the algorithms (algo) of a run: the digest depends on them.

    Where many processes plan on few cores only one algorithm is left, as planning is not the point.
    """
    machine = "mi300x-8" if n <= 8 else "mi300x-8-x16-leaf-spine"
    return machine, "direct" if length == "few" else None


def run(comm: rccl.Communicator, length: str = "full") -> dict[str, str]:
    """Run the checks on one communicator; return the digest of each.

    length: "full", "short" (fewer counts, types and roots), "few" (also fewer checks).
    """
    digests = {}
    for check in FEW if length == "few" else CHECKS:
        checks = Checks(comm, length != "full")
        check(checks)
        comm.barrier()
        digests[check.__name__] = checks.hash.hexdigest()
    return digests
