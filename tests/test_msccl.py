"""MSCCL XML in and out: what a program means, what is refused and where, round trips, real files.

The oracle is a slow executor of the format (msccl_twin) that runs thread blocks in random order.
"""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers import blocks, is_right
from msccl_twin import file_of, read, runs_right, transfers

from rccl_py.check import check
from rccl_py.errors import FormatError
from rccl_py.formats import read_msccl, read_schedule
from rccl_py.planner import Planner
from rccl_py.topology import load, lower

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs")
REAL = [*sorted((CASES / "msccl").glob("*.xml")), *CASES.glob("astra-sim/custom_allreduce.xml")]
with_files = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains peer_inputs/msccl/"
)

PAIR = [
    [(1, -1, 0, ["s i0 o0"]), (-1, 1, 0, ["r i0 o1"]), (-1, -1, 0, ["cpy i0 o0"])],
    [(0, -1, 0, ["s i0 o1"]), (-1, 0, 0, ["r i0 o0"]), (-1, -1, 0, ["cpy i0 o1"])],
]
"""An allgather of two gpus."""


# ---- what a program means -----------------------------------------------------------------------


def test_a_program_of_two_gpus_becomes_a_schedule_of_one_step():
    found = read(file_of(PAIR))
    assert (found.collective, found.nranks, found.schedule.layout.chunks) == ("allgather", 2, 1)
    assert [len(p.moves) for p in found.schedule.phases()] == [1]
    assert transfers(found.schedule) == {(0, 1, 0, 0): 1, (1, 0, 0, 0): 1}
    assert is_right(found.schedule, np.random.default_rng(0), False)


def test_sizes_protocol_and_name_are_read():
    found = read(file_of(PAIR, proto="LL128", minBytes=64, maxBytes=1 << 20, name="mine"))
    assert (found.name, found.protocols, found.least, found.most) == (
        "mine", ("LL128",), 64, 1 << 20)  # fmt: skip
    assert read(file_of(PAIR)).most == float("inf")


def test_what_other_tools_leave_out_is_said():
    found = read(file_of(PAIR, outofplace=None, minBytes=None, maxBytes=None))
    assert "outofplace, minBytes, maxBytes missing" in found.notes[0]
    assert read(file_of(PAIR)).notes == ()


RING = [
    [(1, 2, 0, ["s i0 -", "rrs i2 -", "rrcs i1 i1", "rcs - i0", "r - i2"])],
    [(2, 0, 0, ["s i1 -", "rrs i0 -", "rrcs i2 i2", "rcs - i1", "r - i0"])],
    [(0, 1, 0, ["s i2 -", "rrs i1 -", "rrcs i0 i0", "rcs - i2", "r - i1"])],
]
"""An allreduce on a ring of three, in place: every fused step there is."""


def test_fused_steps_reduce_copy_and_send_on():
    text = file_of(RING, "allreduce", inplace=1, outofplace=0, chunks=(3, 0, 0))
    assert runs_right(text, 1)
    found = read(text)
    assert found.schedule.layout.scratch == 0
    for in_place in (False, True):
        assert is_right(found.schedule, np.random.default_rng(0), in_place)


def test_a_program_for_in_place_calls_serves_other_calls_too():
    text = file_of([[(1, 1, 0, ["s o0 -", "r - o1"])], [(0, 0, 0, ["s o1 -", "r - o0"])]],
                   inplace=1, outofplace=0, chunks=(0, 2, 0))  # fmt: skip
    for in_place in (False, True):
        assert is_right(read(text).schedule, np.random.default_rng(0), in_place)


def test_a_program_that_still_needs_its_input_later_serves_in_place_calls_too():
    # o0 is written before i0 is sent: in place that would be too late.
    text = file_of([[(1, 1, 0, ["cpy i0 s0", "cpy i1 s1", "r - o0", "re s0 o0", "s i0 -",
                                "r - o1", "re s1 o1", "s i1 -"])],
                    [(0, 0, 0, ["cpy i0 s0", "cpy i1 s1", "s i0 -", "s i1 -", "r - o0", "re s0 o0",
                                "r - o1", "re s1 o1"])]], "allreduce")  # fmt: skip
    assert runs_right(text, 1)
    for in_place in (False, True):
        assert is_right(read(text).schedule, np.random.default_rng(0), in_place)


def test_a_message_that_is_received_late_is_kept_until_then():
    # Gpu 0 sends x, then reduces into x and sends the sum; gpu 1 takes the sum first.
    text = file_of([
        [(1, -1, 0, ["s i0 -"]), (-1, 1, 1, ["rrc i0 i0 0 0"]), (1, -1, 2, ["s i0 - 1 0"])],
        [(0, -1, 1, ["s i0 -"]), (-1, 0, 2, ["r - s0"]), (-1, 0, 0, ["rrc i0 i0 1 0 0"])],
    ], "allreduce", whole=1, inplace=1, outofplace=0, chunks=(1, 0, 1))  # fmt: skip
    assert runs_right(text, 3)
    for in_place in (False, True):
        assert is_right(read(text).schedule, np.random.default_rng(0), in_place)


def test_chunks_may_lie_anywhere_in_scratch_and_output_meanwhile():
    # Chunk 1 waits where the output's chunk 0 belongs.
    text = file_of([[(1, 1, 0, ["cpy i1 o0", "s o0 -", "s i0 -", "r - s5", "r - s0", "cpy i0 o0",
                                "cpy i1 o1", "re s5 o1", "re s0 o0"])],
                    [(0, 0, 0, ["s i1 -", "s i0 -", "r - o0", "cpy o0 o1", "re i1 o1", "r - o0",
                                "re i0 o0"])]], "allreduce")  # fmt: skip
    assert runs_right(text, 1)
    assert is_right(read(text).schedule, np.random.default_rng(0), True)


# ---- what is refused, and where -----------------------------------------------------------------

WRONG = {
    "a receive without a send": ([PAIR[0], PAIR[1][1:]], "gpu 0 tb 1 step 0 (line 7)",
                               "waits for a message from gpu 1 to gpu 0 on channel 0"),
    "a send nobody receives": ([PAIR[0], PAIR[1][:1] + PAIR[1][2:]], "sends what nobody receives",
                               "gpu 0 tb 0 step 0 (line 4)"),
    "a circle": ([[(1, 1, 0, ["r - o1", "s i0 -"])], [(0, 0, 0, ["r - o0", "s i0 -"])]],
                 "never ends: gpu 0 tb 0 step 0 (line 4) waits for a message from gpu 1",
                 "gpu 1 tb 0 step 0"),
    "threads that wait for each other": (
        [[(1, -1, 0, ["s i0 - 1 0"]), (-1, 1, 0, ["r - o1 0 0"])], PAIR[1]],
        "gpu 0 tb 0 step 0 (line 4) waits for gpu 0 tb 1 step 0 (line 7)", "never ends"),
    "a race": ([[(1, -1, 0, ["s o0 -"]), *PAIR[0][1:]], PAIR[1]], "neither waits for the other",
               "gpu 0 tb 0 step 0"),
    "nothing there": ([[(1, -1, 0, ["s s3 -"]), *PAIR[0][1:]], PAIR[1]],
                      "gpu 0 tb 0 step 0 (line 4) reads scratch chunk 3 of rank 0",
                      "holds nothing"),
    "the wrong place": ([[PAIR[0][0], (-1, 1, 0, ["r - o0"])], PAIR[1]],
                        "output chunk 0 of rank 0 holds chunk 0 of part 1 (from rank 1)",
                        "gpu 0 tb 1 step 0 (line 7)"),
    "another count": ([PAIR[0], [PAIR[1][0], (-1, 0, 0, ["r - o0 2"])]],
                      "receives 2 chunk(s) where 1 are sent", "gpu 1 tb 1 step 0"),
    "missing data": ([PAIR[0], PAIR[1][:2]], "output chunk 1 of rank 1 holds nothing", "a.xml"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused_with_its_place(name):
    gpus, *told = WRONG[name]
    with pytest.raises(FormatError) as caught:
        read(file_of(gpus))
    assert all(text in str(caught.value) for text in told), str(caught.value)


def test_what_is_for_both_kinds_of_call_must_be_ordered_in_both():
    # In place, what arrives overwrites what the other thread block may still have to send.
    late = [[(1, -1, 0, ["s i0 -"]), (-1, 1, 0, ["r - o0", "re i0 o0"])],
            [(0, -1, 0, ["s i0 -"]), (-1, 0, 0, ["r - o0", "re i0 o0"])]]  # fmt: skip
    assert read(file_of(late, "allreduce", whole=1))
    with pytest.raises(FormatError, match=r"in place: gpu . tb 1 step 0 .* neither waits"):
        read(file_of(late, "allreduce", whole=1, inplace=1))


def test_chunks_that_do_not_belong_together_are_not_reduced():
    text = file_of([[(1, 1, 0, ["s i0 -", "rrc i0 o0", "r - o1"])],
                    [(0, 0, 0, ["s i1 -", "r - o1", "s i0 -"])]], "allreduce")  # fmt: skip
    with pytest.raises(FormatError, match=r"tb 0 step 1 \(line 5\) reduces chunk 1 of part 0"):
        read(text)


def test_a_rank_counts_once():
    text = file_of([[(1, 1, 0, ["s i0 -", "rrc i0 o0", "s o0 -"])],
                    [(0, 0, 0, ["s i0 -", "rrc i0 o0", "rrc o0 o0"])]],
                   "allreduce", whole=1)  # fmt: skip
    with pytest.raises(FormatError, match="rank 0 counts twice"):
        read(text)


BROKEN = {
    "cut short": (lambda t: t[: len(t) // 2], "not well-formed XML"),
    "empty": (lambda t: "", "no element found"),
    "another root": (lambda t: "<system/>", "the first element is <system>"),
    "an entity bomb": (lambda t: '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]>' + t,
                       "DOCTYPE"),
    "deep nesting": (lambda t: "<algo>" * 100 + "</algo>" * 100, "nested deeper"),
    "a text for a number": (lambda t: t.replace('ngpus="2"', 'ngpus="two"'),
                            "ngpus='two' is not a whole number"),
    "a fraction": (lambda t: t.replace('cnt="1"', 'cnt="1.5"', 1), "not a whole number"),
    "a huge number": (lambda t: t.replace('cnt="1"', 'cnt="99999999999999999999999"', 1),
                      "not a whole number"),
    "10^9 chunks": (lambda t: t.replace('nchunksperloop="2"', 'nchunksperloop="1000000000"'),
                    "more than 262144 chunks"),
    "10^9 chunks in a step": (lambda t: t.replace('cnt="1"', 'cnt="1000000000"', 1),
                              "expected 1 to 1048576"),
    "10^9 gpus": (lambda t: t.replace('ngpus="2"', 'ngpus="1000000000"'), "expected 1 to 1024"),
    "chunks that do not divide": (lambda t: t.replace('nchunksperloop="2"', 'nchunksperloop="3"'),
                                  "needs a multiple of 2"),
    "no coll": (lambda t: t.replace(' coll="allgather"', ""), "coll=''"),
    "another coll": (lambda t: t.replace("allgather", "alltoallv"), "coll='alltoallv': one of"),
    "another proto": (lambda t: t.replace('"Simple"', '"ll64"'), "proto='ll64'"),
    "no proto": (lambda t: t.replace('proto="Simple" ', ""), "proto=''"),
    "no inplace": (lambda t: t.replace('inplace="0" ', ""), "no attribute inplace"),
    "for no call": (lambda t: t.replace('outofplace="1"', 'outofplace="0"'), "for which calls"),
    "sizes turned round": (lambda t: t.replace('minBytes="0" maxBytes="0"',
                                               'minBytes="9" maxBytes="8"'), "above maxBytes"),
    "a gpu too many": (lambda t: t.replace('gpu id="1"', 'gpu id="2"'), "id=2: expected 0 to 1"),
    "a gpu twice": (lambda t: t.replace('gpu id="1"', 'gpu id="0"'), "described on line 2"),
    "a gpu missing": (lambda t: t.replace('ngpus="2"', 'ngpus="2"').split("<gpu id=\"1\"")[0]
                      + "</algo>", "gpu 1 is missing"),
    "a tb twice": (lambda t: t.replace('tb id="1"', 'tb id="0"', 1), "has a tb 0 already"),
    "its own peer": (lambda t: t.replace('send="1"', 'send="0"', 1), "its own gpu as a peer"),
    "a channel too many": (lambda t: t.replace('chan="0"', 'chan="4"', 1), "expected -1 to 3"),
    "no peer": (lambda t: t.replace('send="1"', 'send="-1"', 1), "its tb has send=-1"),
    "two on one end": (lambda t: t.replace('id="2" send="-1"', 'id="2" send="1"', 1),
                       "both send with gpu 1 on channel 0"),
    "another type": (lambda t: t.replace('type="s"', 'type="x"', 1), "type='x': one of s, r,"),
    "steps out of order": (lambda t: t.replace('<step s="0"', '<step s="1"', 1),
                           "steps count from 0 on"),
    "another buffer": (lambda t: t.replace('srcbuf="i"', 'srcbuf="z"', 1), "srcbuf='z'"),
    "an offset outside": (lambda t: t.replace('srcoff="0"', 'srcoff="7"', 1),
                          "src chunks 7..7 leave buffer i of 1 chunks"),
    "a dependency on nothing": (lambda t: t.replace('depid="-1"', 'depid="9"', 1).replace(
        'deps="-1"', 'deps="0"', 1), "depends on step 0 of tb 9"),
    "a buffer too large": (lambda t: t.replace('o_chunks="2"', 'o_chunks="5"', 1), "o_chunks=5"),
    "a NUL": (lambda t: t.replace("Simple", "Sim\0ple"), "not well-formed"),
    "an unknown encoding": (lambda t: '<?xml version="1.0" encoding="nope"?>' + t, "encoding"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_file_is_one_line_that_names_file_and_line(name):
    break_it, told = BROKEN[name]
    text = file_of(PAIR)
    assert break_it(text) != text
    with pytest.raises(FormatError) as caught:
        read(break_it(text))
    message = str(caught.value)
    assert told in message and "\n" not in message
    assert re.match(r"a\.xml:\d+: ", message), message


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        read_msccl(tmp_path / "none.xml")
    with pytest.raises(FormatError, match="no regular file"):
        read_schedule(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe<nothing")
    with pytest.raises(FormatError, match="not JSON"):
        read_schedule(tmp_path / "x")


def test_huge_numbers_take_no_memory():
    text = file_of(PAIR, chunks=(1, 2, 1 << 30))
    tracemalloc.start()
    try:
        assert read(text).schedule.layout.scratch == 0
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_more_thread_blocks_than_can_be_followed_are_refused():
    blocks = [(-1, -1, 0, ["nop - -"])] * 4200
    with pytest.raises(FormatError, match="8402 thread blocks of up to 1 actions: at most 8192"):
        read(file_of([[*PAIR[0][:1], *blocks], [*PAIR[1][:1], *blocks]]))


# ---- real files ---------------------------------------------------------------------------------


@with_files
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_a_real_file_is_proved_runs_right_and_has_a_price(path):
    found, text = read_schedule(path), path.read_text()
    check(found.schedule)
    assert runs_right(text, 0)
    for in_place in (False, True):
        if found.collective != "alltoall" or not in_place:
            assert is_right(found.schedule, np.random.default_rng(0), in_place)
    planner = Planner(lower(load("mi300x-8"), found.nranks), custom=[found])
    size = 1 << 20
    plan = planner.plan(found.collective, size / max(blocks(found.collective, found.nranks)))
    mine = [c for c in plan.candidates if c.algorithm == found.name]
    assert mine and all(plan.bound.seconds <= c.seconds < 1 for c in mine)
