"""MSCCL++ execution plans in: what operations do, what is refused and where, real files."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from helpers import blocks, is_right
from mscclpp_plans import MEMORY, PUT, far, near, op, plan_of, read, signal, works

from rccl_py.errors import FormatError
from rccl_py.formats import read_mscclpp, read_schedule
from rccl_py.formats.mscclpp_json import read_mscclpp_text
from rccl_py.planner import Planner
from rccl_py.topology import load, lower

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs", "mscclpp")
REAL = sorted(CASES.glob("*.json"))
with_files = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains peer_inputs/mscclpp/"
)


# ---- what operations do -------------------------------------------------------------------------


def test_puts_signals_and_waits_become_two_steps_of_data():
    found = read(plan_of(PUT))
    assert (found.collective, found.nranks, found.protocols) == ("allreduce", 2, ("Simple",))
    assert found.most == float("inf") and found.notes == ()
    assert works(plan_of(PUT))


def test_gets_read_from_the_other_gpu():
    ready = [signal("signal", 0), signal("wait", 0)]
    fetch = op("get", [far(0, 0)], [near("s", 0)], **MEMORY)
    add = op("re", [near("i", 0), near("s", 0)], [near("i", 0)])
    assert works(plan_of([[[*ready, fetch, *ready, add]] for _ in range(2)]))


def test_put_with_signal_is_a_put_and_a_signal():
    programs = copy.deepcopy(PUT)
    for (ops,) in programs:
        ops[0] |= {"name": "pws", "channel_ids": [0]}
        del ops[1]
    assert works(plan_of(programs))


def test_reduce_and_send_writes_the_result_on_both_gpus():
    ready = [signal("signal", 0), signal("wait", 0)]
    for name, theirs in (("rres", far(0, 0)), ("res", near("s", 0))):
        fetch = [op("get", [far(0, 0)], [near("s", 0)], **MEMORY)] if name == "res" else []
        send = op(name, [near("i", 0), theirs], [near("i", 0), far(0, 0)], **MEMORY)
        assert works(plan_of([[[*ready, *fetch, send, *ready]], [[*ready, *ready]]]))


def test_packets_are_waited_for_without_signals():
    programs = [[[op("ppkt", [near("i", 0)], [far(2, r)], **MEMORY)],
                 [op("repkt", [near("i", 0), near("s", 1 - r)], [near("o", 0)])]]
                for r in range(2)]  # fmt: skip
    plan = plan_of(programs, protocol="LL", inplace=False)
    assert read(plan).protocols == ("LL",)
    assert works(plan)


def test_packets_pass_through_scratch():
    programs = [
        [[op("ppkt", [near("o", 0)], [far(2, 0)], **MEMORY)],
         [op("upkt", [near("s", 1)], [near("o", 1)])]],
        [[op("cpkt", [near("o", 1)], [near("s", 1)])],
         [op("rppkt", [near("s", 1)], [far(2, 1)], **MEMORY)],
         [op("upkt", [near("s", 0)], [near("o", 0)])]],
    ]  # fmt: skip
    assert works(plan_of(programs, "allgather", (1, 2, 2), protocol="LL"))


def test_barriers_and_semaphores_order_thread_blocks():
    half = [op("put", [near("i", 0)], [far(2, 0)], **MEMORY), signal("signal", 0)]
    add = op("re", [near("i", 0), near("s", 0)], [near("i", 0)])
    wait = {"name": "sem_acquire", "semaphore_ids": [0]}
    free = {"name": "sem_release", "semaphore_ids": [0]}
    meet = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    orders = ([[*half, signal("wait", 0), free], [wait, add]],
              [[*half, signal("wait", 0), meet], [meet, add]])  # fmt: skip
    for order in orders:
        assert works(plan_of([order, order]))
    with pytest.raises(FormatError, match="neither waits for the other"):
        read(plan_of([[order[0][:-1], [add]]] * 2))


def test_a_semaphore_may_be_free_at_first():
    order = [[{"name": "sem_acquire", "semaphore_ids": [0]}, *PUT[0][0]]]
    plan = plan_of([order, copy.deepcopy(PUT[1])])
    with pytest.raises(FormatError, match="waits for a signal semaphore 0 of gpu 0"):
        read(plan)
    plan["gpus"][0]["semaphores"] = [{"init_value": 1}]
    assert works(plan)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_switches_add_up_and_hand_on(n):
    ready = [signal("signal", *range(n - 1)), signal("wait", *range(n - 1))]

    def mine(r):
        return {"switch_channel_id": 0, "index": r, "size": 1}

    one = [[[*ready, op("glres", [mine(r)], [mine(r)], channel_type="switch"), *ready]]
           for r in range(n)]  # fmt: skip
    two = [[[*ready, op("glre", [mine(r)], [near("s", 0)], channel_type="switch"), *ready,
             op("gstore", [near("s", 0)], [mine(r)], channel_type="switch"), *ready]]
           for r in range(n)]  # fmt: skip
    for programs in (one, two):
        plan = plan_of(programs, chunks=(n, n, 1), groups=True)
        assert works(plan)
        moves = [m for p in read(plan).schedule.phases() for m in p.moves]
        assert all(m.rows.switched == bool((m.rows.src != m.rows.dst).all()) for m in moves)


def test_a_group_of_thread_blocks_shares_an_operation():
    programs = [
        [[op("ppkt", [near("i", 0)], [far(2, r)], **MEMORY, tbg_info={"tb_id": k, "tbg_size": 3})]
         for k in range(3)]
        + [[op("repkt", [near("i", 0), near("s", 1 - r)], [near("o", 0)],
               tbg_info={"tb_id": k, "tbg_size": 2})] for k in range(2)]
        for r in range(2)
    ]  # fmt: skip
    plan = plan_of(programs, protocol="LL", inplace=False)
    assert read(plan).schedule.layout.chunks == 6 and works(plan)


def test_a_pipeline_is_followed_once_and_said_so():
    programs = copy.deepcopy(PUT)
    programs[0][0] = [{"name": "pipeline", "ops": programs[0][0],
                       "iter_context": {"unit_size": 1024, "num_chunks": 1}}]  # fmt: skip
    assert read(plan_of(programs)).notes == (
        "pipeline loops are followed once, for the whole chunk",
    )
    assert works(plan_of(programs))


# ---- what is refused, and where -----------------------------------------------------------------


def changed(change):
    """Return the plan of two gpus after `change` was made to it."""
    plan = plan_of(copy.deepcopy(PUT))
    change(plan)
    return plan


def first_op(plan: dict) -> dict:
    """Return the first operation of gpu 0."""
    return plan["gpus"][0]["threadblocks"][0]["ops"][0]


WRONG = {
    "no wait": (lambda p: p["gpus"][0]["threadblocks"][0]["ops"].pop(2),
                "gpu 0 tb 0 op 2 (re)"),
    "no signal": (lambda p: p["gpus"][0]["threadblocks"][0]["ops"].pop(1),
                  "never ends: gpu 1 tb 0 op 2 (wait) waits for a signal to gpu 1"),
    "no put": (lambda p: p["gpus"][0]["threadblocks"][0]["ops"].pop(0),
               "gpu 1 tb 0 op 3 (re) reads scratch chunk 0 of rank 1, which holds nothing"),
    "the wrong chunk": (lambda p: first_op(p)["dst_buff"][0].update(index=1), "scratch chunk"),
    "another operation": (lambda p: first_op(p).update(name="teleport"),
                          "gpu 0 tb 0 op 0: operation 'teleport' is not known"),
    "a share too many": (lambda p: first_op(p).update(tbg_info={"tb_id": 2, "tbg_size": 2}),
                         "tb_id 2: a whole number from 0 to 1"),
    "too many shares": (lambda p: [o.update(tbg_info={"tb_id": 0, "tbg_size": s}) for o, s in zip(
        p["gpus"][0]["threadblocks"][0]["ops"], (1024, 1023))], "at most 1024"),
    "half of the work": (lambda p: first_op(p).update(tbg_info={"tb_id": 0, "tbg_size": 2}),
                         "which holds nothing"),
    "an offset outside": (lambda p: first_op(p)["src_buff"][0].update(index=9),
                          "gpu 0 tb 0 op 0 src_buff 0: chunks to 9 leave the input of gpu 0"),
    "10^9 chunks": (lambda p: first_op(p)["src_buff"][0].update(size=10**9), "size 1000000000"),
    "10^9 chunks of a huge scratch": (
        lambda p: [p["gpus"][0].update(scratch_chunks=10**9),
                   first_op(p)["src_buff"].append({"type": "s", "index": 0, "size": 1 << 20})],
        "more than 1048576 chunks in operands"),
    "a text for a number": (lambda p: first_op(p)["src_buff"][0].update(size="1"), "size '1'"),
    "a truth value for a number": (lambda p: first_op(p)["src_buff"][0].update(size=True),
                                   "size True"),
    "another buffer": (lambda p: first_op(p)["src_buff"][0].update(type="z"), "type 'z'"),
    "a remote buffer too many": (lambda p: first_op(p)["dst_buff"][0].update(buffer_id=9),
                                 "memory remote buffer 9: its thread block has 3"),
    "operands that do not pair": (lambda p: first_op(p).update(dst_buff=[]), "do not pair up"),
    "sizes that do not pair": (lambda p: first_op(p)["dst_buff"][0].update(size=2), "do not pair"),
    "operands that are no list": (lambda p: first_op(p).update(src_buff=7), "a list of objects"),
    "a channel too many": (lambda p: p["gpus"][0]["threadblocks"][0]["ops"][1].update(
        channel_ids=[5]), "memory channel 5: its thread block has 1"),
    "a channel one way": (lambda p: p["gpus"][1]["channels"][0].update(connected_to=[]),
                          "gpu 0 has 1 memory channel(s) to gpu 1, which has 0 back"),
    "another collective": (lambda p: p.update(collective="sendrecv"), "collective 'sendrecv'"),
    "another protocol": (lambda p: p.update(protocol="LL8"), "protocol 'LL8'"),
    "no gpus": (lambda p: p.update(gpus=[]), "0 gpus"),
    "a gpu twice": (lambda p: p["gpus"][1].update(id=0), "each of 0..1 once"),
    "10^9 input chunks": (lambda p: [g.update(input_chunks=10**9, output_chunks=10**9)
                                     for g in p["gpus"]], "more than 262144 chunks"),
    "chunks that disagree": (lambda p: p["gpus"][0].update(output_chunks=2),
                             "blocks of 1, 2 chunks"),
    "a thread block out of order": (lambda p: p["gpus"][0]["threadblocks"][0].update(id=3), "id 3"),
    "inplace that is no truth value": (lambda p: p.update(inplace="yes"), "inplace 'yes'"),
    "sizes turned round": (lambda p: p.update(min_message_size=9, max_message_size=8), "is above"),
    "a key missing": (lambda p: p.pop("protocol"), "has no 'protocol'"),
    "a name of two lines": (lambda p: p.update(name="a\nb"), "a text is expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_one_line_that_names_file_and_place(name):
    change, told = WRONG[name]
    with pytest.raises(FormatError) as caught:
        read(changed(change))
    message = str(caught.value)
    assert message.startswith("a.json: ") and told in message and "\n" not in message, message


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"7", b'{"gpus": 3}', b"\xff\xfe\x00", b"null",
                                  b"[" * 100_000, b'{"a": ' + b"1" * 10_000 + b"}"])  # fmt: skip
def test_what_is_no_plan_is_one_line(data):
    with pytest.raises(FormatError) as caught:
        read_mscclpp_text(data, Path("a.json"))
    assert str(caught.value).startswith("a.json") and "\n" not in str(caught.value)


def test_the_format_is_told_from_the_first_character(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(plan_of(PUT)))
    assert read_schedule(tmp_path / "a.json").nranks == read_mscclpp(tmp_path / "a.json").nranks


# ---- real files ---------------------------------------------------------------------------------


@with_files
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_a_real_plan_is_proved_runs_right_and_has_a_price(path):
    found = read_schedule(path)
    for in_place in (False, True):
        assert is_right(found.schedule, np.random.default_rng(0), in_place)
    planner = Planner(lower(load("mi300x-8"), found.nranks), custom=[found])
    size = (1 << 20) / max(blocks(found.collective, found.nranks))
    plan = planner.plan(found.collective, size)
    assert [c for c in plan.candidates if c.algorithm == found.name and c.seconds < 1]


@with_files
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_a_real_plan_without_one_operation_is_refused_or_still_right(path):
    rng, refused = random.Random(3), 0
    for _ in range(20):
        plan = json.loads(path.read_text())
        ops = rng.choice([t for g in plan["gpus"] for t in g["threadblocks"] if t["ops"]])["ops"]
        ops.pop(rng.randrange(len(ops)))
        try:
            found = read(plan)
        except FormatError as error:
            refused += 1
            assert "gpu" in str(error) or "rank" in str(error)
            continue
        assert is_right(found.schedule, np.random.default_rng(1), False)
    assert refused
