"""MSCCL XML out, and in again: attributes, limits, round trips, mutations, random thread orders."""

from __future__ import annotations

import os
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from helpers import built, recipe_of, suits
from msccl_twin import Stuck, read, runs_right, transfers

from rccl_py.algorithms import ALGORITHMS
from rccl_py.errors import FormatError, InvalidArgument
from rccl_py.formats import msccl_xml, read_schedule
from rccl_py.formats.msccl_write import Limits
from rccl_py.links import PROTOCOLS
from rccl_py.timing import Loads, profile
from rccl_py.topology import load, lower

CASES = Path(os.environ.get("RCCL_PY_CASES", "/nowhere"), "peer_inputs")
REAL = [*sorted((CASES / "msccl").glob("*.xml")), *CASES.glob("astra-sim/custom_allreduce.xml")]
with_files = pytest.mark.skipif(
    not REAL, reason="RCCL_PY_CASES does not name a folder that contains peer_inputs/msccl/"
)

DEMANDED = {
    "algo": "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes",
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}


def small_rows(n: int):
    """Yield (row, node size) of all algorithms MSCCL can say at n ranks."""
    for row in ALGORITHMS:
        if suits(row, n) and not row.switched and row.name != "multicast":
            yield row, (max(g for g in range(1, n) if n % g == 0) if row.two_level else None)


def test_every_attribute_a_reader_demands_is_written():
    algo = ET.fromstring(msccl_xml(built("allreduce", "ring", 4)))
    for element in algo.iter():
        assert set(DEMANDED[element.tag].split()) <= set(element.keys())
    steps = [(gpu.get("id"), tb.get("id"), step) for gpu in algo for tb in gpu for step in tb]
    waited = {(gpu, step.get("depid"), step.get("deps"))
              for gpu, _, step in steps if step.get("depid") != "-1"}  # fmt: skip
    marked = {(gpu, tb, step.get("s")) for gpu, tb, step in steps if step.get("hasdep") == "1"}
    assert waited and waited == marked


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_what_is_written_is_read_back_as_the_same_transfers(n):
    for row, g in list(small_rows(n))[:: 4 if n == 8 else 1]:
        schedule = row.build(recipe_of(n, n // 2, g))
        back = read(msccl_xml(schedule, limits=None))  # which proves it
        rooted = back.collective in ("broadcast", "reduce", "gather", "scatter")
        assert back.schedule.root == (n // 2 if rooted else 0)
        assert transfers(back.schedule) == transfers(schedule), (row.collective, row.name)


@pytest.mark.parametrize("n", [2, 3])
def test_what_is_written_runs_right_in_any_order_of_threads(n):
    for seed, (row, g) in enumerate(small_rows(n)):
        text = msccl_xml(row.build(recipe_of(n, n // 2, g, min(row.pieces, 2))), limits=None)
        assert runs_right(text, seed), (row.collective, row.name)


def test_what_is_read_back_takes_hardly_longer_than_what_was_written():
    # It may take less: the steps of a schedule wait for each other, thread blocks need not.
    fabric = lower(load("mi300x-8"), 4)
    loads, simple = Loads(fabric), PROTOCOLS["Simple"]
    for row, g in small_rows(4):
        schedule = row.build(recipe_of(4, 1, g))
        back = read(msccl_xml(schedule, limits=None)).schedule
        before, after = (profile(s, fabric, loads) for s in (schedule, back))
        for block in (1 << 13, 1 << 26):
            ratio = after.seconds(block, simple) / before.seconds(block, simple)
            assert ratio < 1.06, (row.collective, row.name, block, ratio)


def test_one_gpu_is_written_and_read():
    assert read(msccl_xml(built("allreduce", "ring", 1))).nranks == 1


def test_what_switches_do_cannot_be_written():
    with pytest.raises(FormatError, match="allreduce/nvls: switches add up or hand on"):
        msccl_xml(built("allreduce", "nvls", 4))


@pytest.mark.parametrize("limits, told", [
    (Limits(1), "steps of gpu"), (Limits(64, peers=2), "peers gpu 0 has on channel 0 to send"),
    (Limits(64, channels=0), "channels"), (Limits(64, chunks=3), "chunks of a buffer"),
    (Limits(64, blocks=1), "thread blocks that others of gpu 0 wait for"),
])  # fmt: skip
def test_what_a_reader_could_not_hold_is_refused(limits, told):
    with pytest.raises(FormatError, match=told):
        msccl_xml(built("allreduce", "direct-twoshot", 4), limits=limits)


def test_readers_differ_in_the_steps_they_hold():
    schedule = built("allreduce", "ring", 48, one_ring=True)
    with pytest.raises(FormatError, match="at most 64 are held"):
        msccl_xml(schedule)
    assert msccl_xml(schedule, limits="msccl")
    with pytest.raises(InvalidArgument, match="limits 'nccl': one of rccl, msccl"):
        msccl_xml(schedule, limits="nccl")


def test_long_ranges_are_cut_to_what_one_step_may_count():
    text = msccl_xml(built("allreduce", "direct-oneshot", 2), limits=None)
    wide = text.replace('nchunksperloop="1"', 'nchunksperloop="100"')
    wide = re.sub('cnt="1"', 'cnt="100"', re.sub(r'([ios]_chunks)="1"', r'\1="100"', wide))
    again = ET.fromstring(msccl_xml(read(wide).schedule))
    assert max(int(step.get("cnt")) for step in again.iter("step")) == 71


def test_sizes_and_protocol_are_written():
    text = msccl_xml(built("allreduce", "ring", 2), name='a<"b', protocol="LL", least=8, most=64)
    found = read(text)
    assert (found.name, found.protocols, found.least, found.most) == ('a<"b', ("LL",), 8, 64)


# ---- mutations ----------------------------------------------------------------------------------


def mutated(text: str, rng: random.Random) -> str:
    """Return the program with one step dropped, changed or exchanged."""
    algo = ET.fromstring(text)
    gpu = rng.choice(algo.findall("gpu"))
    tb = rng.choice([t for t in gpu.findall("tb") if t.findall("step")])
    steps = tb.findall("step")
    k = rng.randrange(len(steps))
    step, kind = steps[k], rng.choice(["drop", "offset", "alone", "type", "buffer", "swap"])
    if kind == "drop":
        tb.remove(step)
        for number, other in enumerate(tb.findall("step")):
            other.set("s", str(number))
    elif kind == "offset":
        side = rng.choice(["srcoff", "dstoff"])
        step.set(side, str(max(0, int(step.get(side)) + rng.choice([-1, 1]))))
    elif kind == "alone":
        step.set("depid", "-1")
    elif kind == "type":
        step.set("type", rng.choice(["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"]))
    elif kind == "buffer":
        step.set(rng.choice(["srcbuf", "dstbuf"]), rng.choice("ios"))
    else:
        other = steps[rng.randrange(len(steps))]
        for name in ("type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt"):
            mine, theirs = step.get(name), other.get(name)
            step.set(name, theirs)
            other.set(name, mine)
    return ET.tostring(algo, encoding="unicode")


def test_a_broken_program_is_refused_or_still_right():
    texts = [msccl_xml(built(*what, 3, 1)) for what in (
        ("allreduce", "ring"), ("allreduce", "circulant"), ("reduce_scatter", "ring"),
        ("allgather", "circulant"), ("alltoall", "bruck"), ("reduce", "tree"))]  # fmt: skip
    rng, refused = random.Random(6), 0
    for number in range(200):
        text = mutated(rng.choice(texts), rng)
        try:
            read(text)
        except FormatError as error:
            refused += 1
            assert str(error).startswith("a.xml:") and "\n" not in str(error)
            continue
        try:
            assert all(runs_right(text, seed) for seed in range(3)), f"mutation {number}"
        except Stuck:
            pytest.fail(f"mutation {number} never ends, yet was accepted")
    assert refused > 60


# ---- real files ---------------------------------------------------------------------------------


@with_files
@pytest.mark.parametrize("path", REAL[:4], ids=lambda p: p.stem)
def test_a_real_file_with_a_step_dropped_or_offsets_changed_is_refused_or_right(path):
    rng = random.Random(7)
    for _ in range(6):
        text = mutated(path.read_text(), rng)
        try:
            read(text)
        except FormatError as error:
            assert str(error).startswith("a.xml:")
            continue
        assert runs_right(text, 1)


@with_files
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
def test_a_real_file_survives_out_and_in(path):
    found = read_schedule(path)
    back = read(msccl_xml(found.schedule, limits="msccl"))
    assert transfers(back.schedule) == transfers(found.schedule)
