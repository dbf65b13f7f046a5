"""Run under mpirun: programs that go wrong, and what every rank hears.

Usage: mpirun -n N python mpi_faults.py FOLDER shared|messages CASE... A case begins with a new
communicator of all processes that are left. What a rank heard is a line of FOLDER/RANK.jsonl:
case, error class ("" for none), text, seconds of the call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rccl_py as rccl
from rccl_py import Communicator, Config, Planner
from rccl_py.errors import Result

WORLD = MPI.COMM_WORLD
ME, N = WORLD.Get_rank(), WORLD.Get_size()
FOLDER = Path(sys.argv[1])
SHARED = None if sys.argv[2] == "shared" else False
X, Y = np.ones(4, np.float32), np.zeros(4, np.float32)
ODD = 2


def make(world: MPI.Comm = WORLD, **more: object) -> Communicator:
    world.Barrier()  # the communicator's timeout is short
    config = Config(**{"timeout": 0.5, "flight_dir": "", **more})
    made = Communicator.from_mpi(world, "mi300x-8", shared_memory=SHARED, config=config)
    world.Barrier()
    return made


def note(case: str, kind: str, text: str, seconds: float = 0.0) -> None:
    with (FOLDER / f"{ME}.jsonl").open("a") as file:
        file.write(json.dumps({"case": case, "kind": kind, "text": text, "seconds": seconds}))
        file.write("\n")


def hear(case: str, call: Callable[[], object]) -> None:
    """Make calls and note how they ended."""
    began, kind, text = time.monotonic(), "", ""
    try:
        text = str(call() or "")
    except rccl.RcclError as error:
        kind, text = type(error).__name__, str(error)
    note(case, kind, text, time.monotonic() - began)


# ---- calls that differ --------------------------------------------------------------------------


def differ_in_collective(c: Communicator) -> None:
    c.barrier()
    if ME == ODD:
        c.broadcast(X, Y)
    else:
        c.allreduce(X, Y)


def differ_in_count(c: Communicator) -> None:
    c.barrier()
    c.allreduce(X[: 3 if ME == ODD else 4], Y)


def differ_in_dtype(c: Communicator) -> None:
    c.barrier()
    kind = np.int32 if ME == ODD else np.float32
    c.allgather(X.astype(kind), np.zeros(4 * N, kind))


def differ_in_op(c: Communicator) -> None:
    c.barrier()
    c.allreduce(X, Y, op="max" if ME == ODD else "sum")


def differ_in_root(c: Communicator) -> None:
    c.barrier()
    c.broadcast(X, Y, root=int(ME == ODD))


def differ_in_order(c: Communicator) -> None:
    c.barrier()
    if ME == ODD:
        c.allgather(X, np.zeros(4 * N, np.float32))
    c.allreduce(X, Y)
    if ME != ODD:
        c.allgather(X, np.zeros(4 * N, np.float32))


def differ_in_a_repeated_call(c: Communicator) -> None:
    for step in range(4):
        c.allreduce(X, Y, op="min" if ME == ODD and step == 3 else "sum")


def differ_in_a_message(c: Communicator) -> None:
    if ME == 0:
        c.send(X, 1)
    elif ME == 1:
        c.recv(np.zeros(5, np.float32), 0)
    else:
        c.barrier()


def differ_in_parts(c: Communicator) -> None:
    counts = [1] * N
    c.alltoallv(X, [2 if ME == ODD and peer == 1 else 1 for peer in range(N)], [0] * N,
                np.zeros(N, np.float32), counts, None)  # fmt: skip


# ---- waits that never end -----------------------------------------------------------------------


def circle_of_sends(c: Communicator) -> None:
    c.send(X, (ME + 1) % N)


def circle_of_recvs(c: Communicator) -> None:
    c.recv(Y, (ME + 1) % N)


def circle_of_a_collective_and_a_message(c: Communicator) -> None:
    if ME == 0:
        c.recv(Y, 1)
    c.allreduce(X, Y)


def circle_of_two_communicators(c: Communicator) -> None:
    other = c.split(0)
    c.barrier()
    for call in (c, other)[:: -1 if ME == ODD else 1]:
        call.allreduce(X, Y)


def old_waits_make_no_circle(c: Communicator) -> str:
    """Ranks 1 and 2 compute, and no longer wait where they were told of a deadlock."""
    other = c.split(0)
    try:
        circle_of_recvs(other)
    except rccl.RcclError as error:
        kind = type(error).__name__
    if ME in (1, 2):
        time.sleep(0.25)
    if ME == 0:
        c.recv(Y, 1)
    elif ME == 1:
        c.send(X, 0)
    c.allreduce(X, Y)
    return f"{kind}, then {Y[0]:g}"


def one_stays_away(c: Communicator) -> None:
    """The late rank finds what the others left, so it may only hear of it in its next call."""
    if ME == 1:
        time.sleep(1.0)
        c.allreduce(X, Y)
    c.allreduce(X, Y)


def one_stays_away_from_a_recv(c: Communicator) -> None:
    if ME == 1:
        time.sleep(1.0)
        c.barrier()
    else:
        c.recv(Y, 1)


def one_stays_away_from_split(c: Communicator) -> None:
    if ME == 1:
        time.sleep(1.0)
    c.split(0)


def one_destroys(c: Communicator) -> None:
    if ME == 1:
        c.destroy()
    else:
        time.sleep(0.7)
        c.allreduce(X, Y)


def one_destroys_while_others_call(c: Communicator) -> None:
    if ME == 1:
        c.destroy()
    else:
        c.allreduce(X, Y)


# ---- ends ---------------------------------------------------------------------------------------


def abort_frees_a_collective(c: Communicator) -> None:
    if ME == 1:
        time.sleep(0.35)
        return
    if ME == 0:
        threading.Timer(0.15, c.abort).start()
    c.allreduce(X, Y)


def abort_while_planning(c: Communicator) -> None:
    if ME == 1:
        time.sleep(0.35)
        return
    planned = Planner.plan_by

    def aborted(*args: object) -> object:
        ending = threading.Thread(target=c.abort)
        ending.start()
        ending.join()
        return planned(*args)

    if ME == 0:
        Planner.plan_by = aborted
    try:
        c.allreduce(np.ones(4321, np.float32), np.empty(4321, np.float32))
    finally:
        Planner.plan_by = planned


def abort_frees_a_recv(c: Communicator) -> None:
    if ME == 1:
        time.sleep(0.35)
        return
    if ME == 0:
        threading.Timer(0.15, c.abort).start()
    c.recv(Y, 1)


def revoke_frees_the_others(c: Communicator) -> None:
    if ME == 1:
        time.sleep(0.1)
        c.revoke()
    c.allreduce(X, Y)


def shrink_after_a_failure(c: Communicator) -> str:
    try:
        differ_in_count(c)
    except rccl.RcclError as error:
        kind = type(error).__name__
    if ME == ODD:
        return kind
    left = c.shrink([ODD], flag=rccl.CommShrinkFlag.ABORT)
    left.allreduce(np.full(4, 1.0 + ME, np.float32), Y)
    left.destroy()
    return f"{kind}, then {Y[0]:g} of {left._member.core.nranks}"


def a_failed_communicator_refuses(c: Communicator) -> None:
    try:
        c.allreduce(X[: 3 if ME == ODD else 4], Y)
    except rccl.RcclError:
        c.allreduce(X, Y)


def nonblocking_calls(c: Communicator) -> str:
    c = make(blocking=False)
    said = [c.allreduce(X, Y)]
    while (state := c.get_async_error()) is Result.IN_PROGRESS:
        time.sleep(0.001)
    said += [state, Y[0]]
    c.allreduce(X, Y, op="max" if ME == ODD else "sum")
    while (state := c.get_async_error()) is Result.IN_PROGRESS:
        time.sleep(0.001)
    text = c.get_last_error()
    c.abort()
    return f"{said[0].name} {said[1].name} {said[2]:g} {state.name} {text}"


def init_without_one(_c: Communicator) -> None:
    uid = WORLD.bcast(rccl.get_unique_id() if ME == 0 else None)
    if ME != 1:
        Communicator.init(N, ME, uid, Config(timeout=0.5), topology="mi300x-8")


def from_mpi_without_one(_c: Communicator) -> None:
    made = WORLD.Dup()
    if ME != 1:
        Communicator.from_mpi(made, "mi300x-8", timeout=0.5)


def records(_c: Communicator) -> None:
    c = make(flight_dir=str(FOLDER / "records"), comm_name="world")
    differ_in_count(c)


# ---- processes that end -------------------------------------------------------------------------


def one_returns(c: Communicator) -> None:
    """What the rank has put arrives all the same, though it needs both ends to move."""
    there = np.zeros(1_000_000, np.int64)
    window = c.register_window(there)
    if ME == 1:
        c.put_signal(np.arange(1_000_000), 3, window)
        sys.exit()
    time.sleep(0.3)
    if ME == 3:
        c.wait_signal(rccl.WaitSignalDesc(1))
        note("a put before the end", "", str((there == np.arange(1_000_000)).all()))
    else:
        time.sleep(0.5)
    c.allreduce(X, Y)


def one_raises(c: Communicator) -> None:
    if ME == 1:
        raise ZeroDivisionError("on purpose")
    c.allreduce(X, Y)


def one_raises_while_others_recv(c: Communicator) -> None:
    if ME == 1:
        raise ZeroDivisionError("on purpose")
    c.recv(Y, 1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(case: str, victim: int, world: MPI.Comm, call: Callable[[Communicator], None]) -> None:
    """Let one process die while the others are in `call`, and go on without it."""
    c = make(world, timeout=5.0)
    if victim == ME:
        time.sleep(0.1)
        die()
    hear(case, lambda: call(c))
    hear(f"{case}, shrunk", lambda: went_on(c, victim))


def went_on(c: Communicator, victim: int) -> str:
    left = c.shrink([victim], flag=rccl.CommShrinkFlag.ABORT)
    left.allreduce(np.full(4, 1.0 + ME, np.float32), Y)
    return f"{Y[0]:g} of {left.nranks}"


def compute_then_call(c: Communicator) -> None:
    time.sleep(0.4)
    c.allreduce(X, Y)


def kills() -> None:
    """Three processes die, one after the other; each time all that are left hear it."""
    world = WORLD
    for victim, case, call in (
        (4, "killed in a collective", lambda c: c.allreduce(X, Y)),
        (3, "killed before a recv", lambda c: c.recv(Y, 3)),
        (2, "killed while others compute", compute_then_call),
    ):
        killed(case, victim, world, call)
        world = WORLD.Create_group(WORLD.Get_group().Incl(range(victim)))
    note("end", "", "")


CASES = {f.__name__: f for f in (
    differ_in_collective, differ_in_count, differ_in_dtype, differ_in_op, differ_in_root,
    differ_in_order, differ_in_a_repeated_call, differ_in_a_message, differ_in_parts,
    circle_of_sends, circle_of_recvs, circle_of_a_collective_and_a_message,
    circle_of_two_communicators, old_waits_make_no_circle, one_stays_away,
    one_stays_away_from_a_recv,
    one_stays_away_from_split, one_destroys, one_destroys_while_others_call,
    abort_frees_a_collective, abort_while_planning, abort_frees_a_recv, revoke_frees_the_others,
    shrink_after_a_failure,
    a_failed_communicator_refuses, nonblocking_calls, init_without_one, from_mpi_without_one,
    records, one_returns, one_raises, one_raises_while_others_recv,
)}  # fmt: skip


ENDS = ("one_returns", "one_raises", "one_raises_while_others_recv")
KILLED = {
    "killed_in_a_collective": lambda c: c.allreduce(X, Y),
    "killed_before_a_recv": lambda c: c.recv(Y, 1),
}


def main() -> None:
    if sys.argv[3:] == ["kills"]:
        kills()
        return
    for name in sys.argv[3:]:
        if name in KILLED:
            killed(name, 1, WORLD, KILLED[name])
            continue
        comm = make()
        hear(name, lambda name=name, comm=comm: CASES[name](comm))
        if name not in ENDS:
            WORLD.Barrier()  # an abort also frees whoever is about to see that a call is done
        comm.abort()


if __name__ == "__main__":
    main()
