"""MSCCL++ plans whose result hangs on who is faster are refused, and their mended twins are not.

Every plan is told in other ways too, with thread blocks in another order and gpus renumbered: that
changes no verdict and no result.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from helpers import is_right
from hypothesis import given, settings
from hypothesis import strategies as st
from mscclpp_plans import (
    MEMORY,
    PORT,
    far,
    near,
    op,
    plan_of,
    read,
    renumbered,
    reordered,
    signal,
    works,
)

from rccl_py.errors import FormatError
from rccl_py.programs.plan import Custom

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs", "mscclpp")
REAL = sorted(CASES.glob("*.json"))

SIGNAL, WAIT = signal("signal", 0), signal("wait", 0)
MEET = [SIGNAL, WAIT]
SENT = [signal("signal", 0, kind="port"), signal("wait", 0, kind="port")]
FLUSH = signal("flush", 0, kind="port")


def put(r: int, k: int = 0, at: int | None = None, name: str = "put", **more) -> dict:
    """Return a put of input chunk k of gpu r into the scratch of the other, at chunk `at`."""
    return op(name, [near("i", k)], [far(2, k if at is None else at)], **{**MEMORY, **more})


def add(k: int = 0, at: int | None = None, name: str = "re", to: str = "i") -> dict:
    """Return what adds scratch chunk `at` to input chunk k."""
    at = k if at is None else at
    return op(name, [near("i", k), near("s", at)], [near(to, k)])


def free(number: int = 0) -> dict:
    return {"name": "sem_release", "semaphore_ids": [number]}


def take(number: int = 0) -> dict:
    return {"name": "sem_acquire", "semaphore_ids": [number]}


def barrier(count: int) -> dict:
    return {"name": "barrier", "barrier_id": 0, "num_threadblocks": count}


def both(blocks, **more) -> dict:
    """Return an allreduce of 2 chunks on two gpus; blocks(r): the thread blocks of gpu r."""
    more = {"inplace": True, "semaphores": 2, **more}
    return plan_of([blocks(r) for r in range(2)], chunks=(2, 2, 4), **more)


def simple(*ops) -> dict:
    """Return a plan in which gpu 0 and 1 do `ops` for chunk 0, and what is right for chunk 1."""
    return both(lambda r: [[o(r) if callable(o) else o for o in ops], [put(r, 1), *SENT, add(1)]])


def packets(*ops, **more) -> dict:
    """Return an out of place allreduce of one chunk, of thread blocks of packet operations."""
    return plan_of([[[o(r) if callable(o) else o for o in block] for block in ops]
                    for r in range(2)], protocol="LL", inplace=False, **more)  # fmt: skip


def fetched(*last: dict, final: bool = True) -> dict:
    """Return a plan in which gpu 0 adds up and writes to gpu 1's output, and then does `last`."""
    first = [*MEET, op("rres", [near("i", 0), far(0, 0)], [near("i", 0), far(0, 0)], **MEMORY)]
    return plan_of([[[*first, *last]], [[*MEET, *([WAIT] if final else [])]]])


def port(*ops: dict, name: str = "put", **more) -> dict:
    """Put chunk 0 by a port channel, do `ops`, then add to where it was put from."""
    return both(lambda r: [[put(r, name=name, **{**PORT, **more}), *ops, add()],
                           [put(r, 1), SIGNAL, WAIT, add(1)]])  # fmt: skip


TWO_PUTS = [put, SIGNAL, lambda r: put(r, 1), SIGNAL]


def halves(first: list, *others: list) -> dict:
    """Return a plan of both chunks, of these thread blocks."""
    return both(lambda r: [[o(r) if callable(o) else o for o in ops] for ops in (first, *others)])


def ppkt(r: int) -> dict:
    return op("ppkt", [near("i", 0)], [far(2, 0)], **MEMORY)


REPKT = add(0, 0, "repkt", "o")

WRONG = {
    "two wait on one channel": halves([*TWO_PUTS, WAIT, add(0)], [WAIT, add(1)]),
    "two signal on one channel": halves([put, SIGNAL, WAIT, WAIT, add(0), add(1)],
                                        [lambda r: put(r, 1), SIGNAL]),
    "two acquire one semaphore": halves([*TWO_PUTS, WAIT, free(), WAIT, free()], [take(), add(0)],
                                        [take(), add(1)]),
    "a semaphore freed by another": halves([put, SIGNAL, WAIT, free()], [free()],
                                           [take(), add(0)],
                                           [lambda r: put(r, 1), *SENT, add(1)]),
    "a barrier too early": halves([*TWO_PUTS, WAIT, barrier(2), WAIT], [barrier(2), add(0),
                                                                        add(1)]),
    "a barrier for too few": halves([*TWO_PUTS, WAIT, WAIT, barrier(2)], [barrier(2), add(0)],
                                    [barrier(2), add(1)]),
    "a stale packet": both(lambda r: [[put(r, 0, 0, "ppkt"), put(r, 1, 0, "ppkt")],
                                      [add(0, 0, "repkt", "o"), add(1, 0, "repkt", "o")]],
                           protocol="LL", inplace=False),
    "a stale packet after a signal": both(
        lambda r: [[put(r, 0, 0, "ppkt"), WAIT, put(r, 1, 0, "ppkt")],
                   [add(0, 0, "repkt", "o"), SIGNAL, add(1, 0, "repkt", "o")]],
        protocol="LL", inplace=False),
    "a relaxed signal": simple(put, signal("rlxsignal", 0), WAIT, add()),
    "a relaxed wait": simple(put, SIGNAL, signal("rlxwait", 0), add()),
    "a port's source before flush": port(*SENT),
    "a port's source before flush, with ids": port(*SENT, channel_ids=[0]),
    "putWithSignal without flush": port(SENT[1], name="pws", channel_ids=[0]),
    "a flush of memory": port(*SENT, signal("flush", 0)),
    "a memory signal after a port's put": plan_of(
        [[[put(r, **PORT), SIGNAL, WAIT, FLUSH, add()]] for r in range(2)]),
    # What arrives after the end, or is not waited for.
    "no last wait": fetched(SIGNAL, final=False),
    "a relaxed last signal": fetched(signal("rlxsignal", 0)),
    "a put into the output of who has no thread blocks": plan_of(
        [[[op("get", [far(0, 0)], [near("s", 0)], **MEMORY),
           op("res", [near("i", 0), near("s", 0)], [near("i", 0), far(0, 0)], **MEMORY)]], []]),
    "a flush, and nobody waits": plan_of(
        [[[*MEET, op("rre", [near("i", 0), far(0, 0)], [near("i", 0)], **MEMORY),
           op("put", [near("i", 0)], [far(0, 0)], **PORT), FLUSH]], [MEET]]),
    "a signal that overtakes a port's put": plan_of(
        [[[*MEET, op("rre", [near("i", 0), far(0, 0)], [near("i", 0)], **MEMORY),
           op("put", [near("i", 0)], [far(0, 0)], **PORT), SIGNAL]], [[*MEET, WAIT]]]),
    # Packets read as data, and data as packets.
    "packets added as data": packets([ppkt, SIGNAL], [WAIT, add(0, 0, "re", "o")]),
    "packets copied as data": packets(
        [ppkt, *MEET, op("copy", [near("s", 0)], [near("s", 1)]), add(0, 1, "re", "o")]),
    "packets put as data": packets(
        [op("cpkt", [near("i", 0)], [near("s", 1)]),
         op("put", [near("s", 1)], [far(2, 0)], **MEMORY), *MEET, add(0, 0, "re", "o")]),
    "packets got as data": packets(
        [op("cpkt", [near("i", 0)], [near("s", 1)]), *MEET,
         op("get", [far(2, 1)], [near("s", 0)], **MEMORY), add(0, 0, "re", "o")]),
    "packets read by another": packets(
        [op("cpkt", [near("i", 0)], [near("s", 1)]), *MEET,
         op("rre", [near("i", 0), far(2, 1)], [near("o", 0)], **MEMORY)]),
    "packets as a base": packets([ppkt, *MEET, op("repkt", [near("s", 0), near("s", 0)],
                                                  [near("o", 0)])]),
    "packets left as a result": packets(
        [ppkt], [op("recpkt", [near("i", 0), near("s", 0)], [near("s", 2), near("o", 0)])]),
    "data unpacked": packets([put, *MEET, REPKT]),
    "data over packets": packets(
        [ppkt, *MEET, put, *MEET, REPKT]),
    "data handed on as packets by a port": packets(
        [op("ppkt", [near("i", 0)], [far(2, 0)], **PORT)], [REPKT]),
}  # fmt: skip
"""Plans that no machine may run: an order of thread blocks, or the hardware's, spoils them."""

RIGHT = {
    "one waits for both": halves([*TWO_PUTS, WAIT, WAIT, add(0), add(1)]),
    "a semaphore each": halves([*TWO_PUTS, WAIT, free(0), WAIT, free(1)], [take(0), add(0)],
                               [take(1), add(1)]),
    "two semaphores freed": halves([put, SIGNAL, WAIT, free()], [free()],
                                   [take(), take(), add(0)],
                                   [lambda r: put(r, 1), *SENT, add(1)]),
    "a barrier of three": halves([*TWO_PUTS, WAIT, WAIT, barrier(3)], [barrier(3), add(0)],
                                 [barrier(3), add(1)]),
    "a place each for packets": both(
        lambda r: [[put(r, 0, 0, "ppkt"), put(r, 1, 1, "ppkt")],
                   [add(0, 0, "repkt", "o"), add(1, 1, "repkt", "o")]],
        protocol="LL", inplace=False),
    "signals that are not relaxed": simple(put, *MEET, add()),
    "relaxed signals before others": simple(signal("rlxsignal", 0), signal("rlxwait", 0),
                                            put, *MEET, add()),
    "put, flush, reuse": port(*SENT, FLUSH),
    "a flush before the signal": port(FLUSH, *SENT),
    "put, flush, reuse, with ids": port(*SENT, FLUSH, channel_ids=[0]),
    "putWithSignal, flush, reuse": port(SENT[1], FLUSH, name="pws", channel_ids=[0]),
    "putWithSignalAndFlush": port(SENT[1], name="pwsf", channel_ids=[0]),
    "relaxed signals of ports are not": port(
        signal("rlxsignal", 0, kind="port"), signal("rlxwait", 0, kind="port"), FLUSH),
    "a memory signal after a flush": plan_of(
        [[[put(r, **PORT), FLUSH, SIGNAL, WAIT, add()]] for r in range(2)]),
    "a last wait": fetched(SIGNAL),
    "a last wait for a port": plan_of(
        [[[*MEET, op("rre", [near("i", 0), far(0, 0)], [near("i", 0)], **MEMORY),
           op("pws", [near("i", 0)], [far(0, 0)], **PORT, channel_ids=[0])]],
         [[*MEET, SENT[1]]]]),
    "a last wait by another thread block": plan_of(
        [[[*MEET, op("rres", [near("i", 0), far(0, 0)], [near("i", 0), far(0, 0)], **MEMORY),
           SIGNAL]], [[*MEET, barrier(2)], [barrier(2), WAIT]]]),
    "packets unpacked": packets([ppkt], [REPKT]),
    "packets over data": packets([put, *MEET, *MEET, ppkt, REPKT]),
    "packets handed on by a port": packets(
        [op("cpkt", [near("i", 0)], [near("s", 1)]),
         op("ppkt", [near("s", 1)], [far(2, 0)], **PORT)], [REPKT]),
    "packets unpacked and put on by a port": packets(
        [op("cpkt", [near("i", 0)], [near("s", 1)])],
        [op("rppkt", [near("s", 1)], [far(2, 0)], **PORT)], [REPKT]),
}  # fmt: skip
"""The same, mended, and what else must not be refused."""


def told_otherwise(plan: dict) -> list[dict]:
    """Return a plan with its thread blocks in all orders, and gpus swapped."""
    most = max(len(gpu["threadblocks"]) for gpu in plan["gpus"])
    found = []
    for order in permutations(range(most)):
        orders = [[k for k in order if k < len(gpu["threadblocks"])] for gpu in plan["gpus"]]
        other = reordered(plan, orders)
        found += [other, renumbered(other, [1, 0])]
    return found


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_some_order_spoils_is_refused_with_its_place_however_it_is_told(name):
    for plan in told_otherwise(WRONG[name]):
        with pytest.raises(FormatError) as caught:
            read(plan)
        message = str(caught.value)
        assert re.search(r"gpu \d+ tb \d+ op \d+ \(\w+\)|gpu \d+: barrier 0", message), message
        assert "\n" not in message


@pytest.mark.parametrize("name", RIGHT)
def test_its_mended_twin_is_right_however_it_is_told(name):
    assert all(works(plan) for plan in told_otherwise(RIGHT[name]))


@pytest.mark.parametrize("name, told", [
    ("two wait on one channel", "both wait for a signal to gpu"),
    ("two acquire one semaphore", "both wait for a signal semaphore 0 of gpu"),
    ("a relaxed wait", "both use scratch chunk 0 of rank"),
    ("a port's source before flush", "both use"),
    ("no last wait", "gpu 0 tb 0 op 2 (rres) writes output chunk 0 of rank 1, whose thread blocks "
     "may end before it arrives: make one of them wait for it"),
    ("packets added as data", "reads data without flags from scratch chunk 0 of rank"),
    ("data over packets", "reads packets from scratch chunk 0 of rank"),
    ("packets left as a result", "leaves packets in output chunk 0 of rank"),
])  # fmt: skip
def test_the_reason_is_said(name, told):
    with pytest.raises(FormatError, match=re.escape(told)):
        read(WRONG[name])


@pytest.mark.parametrize("to", list(permutations(range(3))))
def test_a_last_wait_may_come_by_way_of_another_gpu(to):
    """Gpu 0 adds up and writes to both; gpu 1 hears of it from gpu 0, gpu 2 from gpu 1 only."""
    far_sums = [op("rres", [near("i", 0), far(0, 0), far(3, 0)],
                   [near("i", 0), far(0, 0), far(3, 0)], **MEMORY)]  # fmt: skip
    first, meet = [signal("wait", 0), signal("wait", 1)], SIGNAL
    last, passed = signal("wait", 0), signal("signal", 1)
    programs = [[[*first, *far_sums, meet]], [[meet, last, passed]], [[meet, signal("wait", 1)]]]
    assert works(renumbered(plan_of(programs), list(to)))
    programs[2][0].pop()
    with pytest.raises(FormatError, match="whose thread blocks may end before it arrives"):
        read(renumbered(plan_of(programs), list(to)))


# ---- any program, told otherwise ----------------------------------------------------------------


def verdict(plan: dict) -> Custom | None:
    """Return the schedule of a plan, None if it is refused."""
    try:
        return read(plan)
    except FormatError:
        return None


def sends(found: Custom, to: list[int]) -> Counter[tuple[int, int]]:
    """Return how many blocks go between which gpus, gpu r called to[r]."""
    moves = [m for phase in found.schedule.phases() for m in phase.moves]
    pairs = [zip(m.rows.src.tolist(), m.rows.dst.tolist()) for m in moves]
    return Counter((to[s], to[d]) for rows in pairs for s, d in rows if s != d)


def same(plan: dict, other: dict, to: list[int]) -> bool | None:
    """Require one verdict and one result of a plan told twice; return whether it is refused."""
    one, two = verdict(plan), verdict(other)
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert sends(one, to) == sends(two, list(range(two.nranks)))
        assert is_right(two.schedule, np.random.default_rng(0), False)
        assert is_right(two.schedule, np.random.default_rng(0), True)
    return one is None


def retold(plan: dict, draw) -> tuple[dict, list[int]]:
    """Return a plan told in a drawn way, and what its gpus are called."""
    orders = [draw(st.permutations(range(len(g["threadblocks"])))) for g in plan["gpus"]]
    to = draw(st.permutations(range(len(plan["gpus"]))))
    return renumbered(reordered(plan, orders), to), to


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_order_of_thread_blocks_and_the_numbers_of_gpus_change_no_verdict(data):
    draw = data.draw
    name = draw(st.sampled_from([*RIGHT, *WRONG]))
    plan = json.loads(json.dumps((RIGHT | WRONG)[name]))
    for _ in range(draw(st.integers(0, 2))):
        blocks = [t["ops"] for g in plan["gpus"] for t in g["threadblocks"] if t["ops"]]
        ops, others = draw(st.sampled_from(blocks)), draw(st.sampled_from(blocks))
        k = draw(st.integers(0, len(ops) - 1))
        moved = ops.pop(k) if draw(st.booleans()) else ops[k]  # moved, or done twice
        if draw(st.booleans()):
            others.insert(draw(st.integers(0, len(others))), moved)
        if not all(t["ops"] for g in plan["gpus"] for t in g["threadblocks"]):
            return
    same(plan, *retold(plan, draw))


@pytest.mark.skipif(not REAL, reason="RCCL_PY_CASES does not name a folder of MSCCL++ plans")
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_a_real_plan_told_otherwise_is_the_same(path):
    plan = json.loads(path.read_text())

    @settings(deadline=None, max_examples=8)
    @given(st.data())
    def told(data):
        assert not same(plan, *retold(plan, data.draw))
        wrong = json.loads(json.dumps(plan))
        blocks = [t["ops"] for g in wrong["gpus"] for t in g["threadblocks"] if len(t["ops"]) > 1]
        ops = data.draw(st.sampled_from(blocks))
        ops.pop(data.draw(st.integers(0, len(ops) - 1)))
        same(wrong, *retold(wrong, data.draw))

    told()
