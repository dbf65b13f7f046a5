"""Flight records are compared: the first call that ranks made differently, or not at all, is named.

`naive` is the comparison's slow twin for complete records: it looks at every call of every rank.
"""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.disagreement import first_disagreement, ranks_text, read_record
from rccl_py.errors import FormatError

AGREED = ("collective", "count", "dtype", "op", "root")
CHOICES = {
    "collective": ["allreduce", "broadcast", "reduce"], "count": [1, 4, 1000],
    "dtype": ["float", "half"], "op": ["sum", "max"], "root": [0, 1],
}  # fmt: skip


def made(seq: int, state: str = "done", kind: str = "collective", call: str = "", **fields) -> dict:
    """Return a recorded call; what is not given is an allreduce of four."""
    told = {"collective": "allreduce", "count": 4, "dtype": "float", "op": "sum", "root": 0}
    told |= fields
    inside = ", ".join(f"{key}={told[key]}" for key in AGREED[1:])
    return {"seq": seq, "kind": kind, "call": call or f"{told['collective']}({inside})", **told,
            "bytes": 16, "state": state, "site": f"train.py:{10 + seq}", "note": ""}  # fmt: skip


def p2p(seq: int, call: str, state: str = "queued") -> dict:
    return made(seq, state, "p2p", call, collective=call.partition("(")[0])


def record(rank: int, calls: list[dict], n: int = 3, name: str = "world", total=None) -> dict:
    return {"format": "rccl_py flight record", "version": 1, "communicator": name, "rank": rank,
            "nranks": n, "host": "h", "pid": 1, "reason": None,
            "total": len(calls) if total is None else total, "calls": calls}  # fmt: skip


def records(*logs: list[dict], n: int = 0, name: str = "world") -> list[dict]:
    """Return one record a log, of ranks 0, 1, ..."""
    return [record(rank, log, n or len(logs), name) for rank, log in enumerate(logs)]


def naive(logs: list[list[dict]]) -> tuple[str, int] | None:
    """Return kind and number of the first disagreement of complete records."""
    for seq in range(max(map(len, logs), default=0)):
        calls = [log[seq] for log in logs if seq < len(log)]
        if any([c[k] for k in AGREED] != [calls[0][k] for k in AGREED] for c in calls):
            return ("differs", seq)
        if len(calls) < len(logs) and any(call["state"] != "done" for call in calls):
            return ("missing", seq)
    return None


# ---- any logs -------------------------------------------------------------------------------

call_fields = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in
                                     CHOICES.items()})  # fmt: skip


@st.composite
def alike(draw, least: int = 1):
    """Logs that agree: n ranks, at least one call each."""
    n = draw(st.integers(2, 6))
    calls = draw(st.lists(call_fields, min_size=least, max_size=8))
    return [[made(seq, **fields) for seq, fields in enumerate(calls)] for _ in range(n)]


@given(alike(least=0))
def test_logs_that_agree_have_no_disagreement(logs):
    assert first_disagreement(records(*logs)) is None


@given(alike(), st.data())
def test_one_planted_difference_is_found_with_its_call_rank_and_field(logs, data):
    rank = data.draw(st.integers(0, len(logs) - 1))
    seq = data.draw(st.integers(0, len(logs[0]) - 1))
    key = data.draw(st.sampled_from(AGREED))
    was = logs[rank][seq][key]
    logs[rank][seq][key] = data.draw(st.sampled_from([v for v in CHOICES[key] if v != was]))
    found = first_disagreement(records(*logs))
    odd = (rank,) if len(logs) > 2 else (1,)  # of two, neither is odder
    assert (found.kind, found.seq, found.ranks, found.fields) == ("differs", seq, odd, (key,))
    assert f"call {seq}:" in found.text and key in found.text


@given(alike(), st.data())
def test_taking_the_planted_difference_back_makes_the_logs_agree(logs, data):
    rank = data.draw(st.integers(0, len(logs) - 1))
    seq = data.draw(st.integers(0, len(logs[0]) - 1))
    whole = copy.deepcopy(logs)
    logs[rank][seq]["count"] += 1
    assert first_disagreement(records(*logs)) is not None
    assert first_disagreement(records(*whole)) is None


@given(alike(), st.data())
def test_a_rank_that_stopped_is_found_when_others_wait(logs, data):
    rank = data.draw(st.integers(0, len(logs) - 1))
    seq = data.draw(st.integers(0, len(logs[0]) - 1))
    for other, log in enumerate(logs):
        del log[seq + (other != rank) :]
        if other != rank:
            log[seq]["state"] = data.draw(st.sampled_from(["queued", "running", "failed"]))
    found = first_disagreement(records(*logs))
    assert (found.kind, found.seq, found.ranks) == ("missing", seq, (rank,))


@given(alike(), st.data())
def test_a_skipped_call_is_found_though_all_later_numbers_are_off(logs, data):
    rank = data.draw(st.integers(0, len(logs) - 1))
    skipped = data.draw(st.integers(0, len(logs[0]) - 1))
    del logs[rank][skipped]
    for seq, call in enumerate(logs[rank]):
        call["seq"] = seq
    logs[rank - 1][-1]["state"] = "queued"
    found = first_disagreement(records(*logs))
    assert found is not None and (found.kind, found.seq) == naive(logs)
    assert found.seq >= skipped


@given(st.lists(st.lists(st.sampled_from([0, 0, 0, 1]), max_size=5), min_size=2, max_size=4),
       st.lists(st.sampled_from(["done", "done", "queued"]), min_size=20, max_size=20))  # fmt: skip
def test_any_logs_are_judged_as_the_slow_twin_judges_them(choices, states):
    states = iter(states)
    logs = [[made(seq, next(states), count=[4, 5][c]) for seq, c in enumerate(log)]
            for log in choices]  # fmt: skip
    found = first_disagreement(records(*logs))
    assert (found and (found.kind, found.seq)) == naive(logs)


@given(alike(), st.randoms())
def test_the_order_of_records_does_not_matter(logs, random):
    logs[-1][-1]["count"] = 77
    shuffled = records(*logs)
    random.shuffle(shuffled)
    assert first_disagreement(shuffled) == first_disagreement(records(*logs))


@given(alike(), st.integers(0, 7), st.data())
def test_a_ring_that_lost_early_calls_does_not_hide_a_later_difference(logs, lost, data):
    dumps = records(*logs)
    rank = data.draw(st.integers(0, len(logs) - 1))
    lost = min(lost, len(logs[0]) - 1)
    dumps[rank]["calls"] = dumps[rank]["calls"][lost:]
    assert first_disagreement(dumps) is None
    dumps[rank]["calls"][-1]["dtype"] = "double"
    assert first_disagreement(dumps).seq == len(logs[0]) - 1


# ---- what is told ---------------------------------------------------------------------------


def test_the_odd_rank_is_named_with_both_calls_and_sites():
    found = first_disagreement(records(*[[made(0), made(1, count=4 + (r == 2))] for r in range(5)]))
    assert found.text.splitlines() == [
        "communicator 'world', call 1: ranks disagree on count",
        "  ranks 0, 1, 3, 4 called allreduce(count=4, dtype=float, op=sum, root=0) at train.py:11",
        "  rank 2 called allreduce(count=5, dtype=float, op=sum, root=0) at train.py:11   <-- odd",
    ]


def test_of_two_halves_neither_is_called_odd():
    found = first_disagreement(records([made(0)], [made(0, op="max")]))
    assert "odd" not in found.text and found.ranks == (1,)


def test_every_field_that_differs_is_named():
    found = first_disagreement(records([made(0)], [made(0)], [made(0, op="max", root=1)]))
    assert found.fields == ("op", "root") and "disagree on op, root" in found.text


def test_a_call_that_every_rank_made_differently_is_told_in_a_few_lines():
    found = first_disagreement(records(*[[made(0, count=r)] for r in range(20)]))
    assert "and 12 more different calls" in found.text and found.ranks == tuple(range(1, 20))


def test_who_waits_and_what_the_absent_rank_did_last_are_told():
    found = first_disagreement(records([made(0), made(1, "running")], [made(0)],
                                       [made(0), made(1, "queued")]))  # fmt: skip
    assert found.text.splitlines() == [
        "communicator 'world', call 1: rank 1 has not made it, others wait in it",
        "  rank 0 waits in allreduce(count=4, dtype=float, op=sum, root=0), running at train.py:11",
        "  rank 2 waits in allreduce(count=4, dtype=float, op=sum, root=0), queued at train.py:11",
        "  rank 1 last called allreduce(count=4, dtype=float, op=sum, root=0), done at train.py:10",
    ]


def test_a_rank_that_called_nothing_is_told_so():
    found = first_disagreement(records([], [made(0, "queued")]))
    assert "  rank 0 has called nothing" in found.text


def test_a_receive_that_keeps_a_rank_from_its_call_is_told():
    found = first_disagreement(records([made(0, "queued")], [p2p(0, "recv(count=4, peer=0)")]))
    assert found.kind == "missing"
    assert "rank 1 waits for rank 0 in recv(count=4, peer=0), queued" in found.text


def test_a_note_is_told():
    late = made(0, "failed") | {"note": "timed out after 3 s"}
    assert "failed at train.py:10 (timed out after 3 s)" in first_disagreement(
        records([late], [])).text  # fmt: skip


def test_a_call_without_a_site_is_told_without_one():
    found = first_disagreement(records([made(0) | {"site": None}], [made(0, count=5)]))
    assert found.text.splitlines()[1].endswith("root=0)")


def test_a_call_that_one_rank_has_not_made_yet_is_no_disagreement_when_nobody_waits():
    assert first_disagreement(records([made(0)], [])) is None


def test_a_call_all_ranks_have_made_alike_and_not_finished_is_no_disagreement():
    assert first_disagreement(records([made(0, "failed")], [made(0, "running")])) is None


def test_the_earliest_of_two_disagreements_is_told():
    found = first_disagreement(records([made(0), made(1)], [made(0, op="max"), made(1, count=5)]))
    assert (found.seq, found.fields) == (0, ("op",))


def test_a_withdrawn_call_gives_way_to_the_later_one_of_its_number():
    log = [made(0, "failed", count=9), made(0)]
    assert first_disagreement(records(log, [made(0)])) is None


# ---- records that are not there -------------------------------------------------------------


def test_a_rank_without_a_record_is_named_when_others_wait():
    found = first_disagreement(records([made(0, "queued")], [made(0, "queued")], n=5))
    assert (found.kind, found.ranks) == ("missing", (2, 3, 4))
    assert "no record says that ranks 2-4 made it" in found.text


def test_ranks_without_records_are_no_disagreement_when_nobody_waits():
    assert first_disagreement(records([made(0)], n=5)) is None


def test_a_difference_is_told_before_what_a_missing_record_may_explain():
    found = first_disagreement(records([made(0, "queued"), made(1)],
                                       [made(0, "queued"), made(1, op="max")], n=3))  # fmt: skip
    assert (found.kind, found.seq) == ("differs", 1)
    assert "  no record of rank 2" in found.text


def test_a_rank_whose_ring_holds_no_collective_any_more_is_not_blamed():
    dumps = [record(0, [made(9, "queued")], 2),
             record(1, [p2p(50, "send(count=4, peer=0)", "done")], 2, total=99)]  # fmt: skip
    assert first_disagreement(dumps) is None


def test_calls_before_the_first_that_a_ring_holds_are_not_missing():
    dumps = [record(0, [made(0, "queued"), made(1)], 2), record(1, [made(1)], 2, total=2)]
    assert first_disagreement(dumps) is None


def test_a_rank_that_lost_early_calls_may_still_be_missing_later_ones():
    dumps = [record(0, [made(0), made(1), made(2, "queued")], 2),
             record(1, [made(1)], 2, total=2)]  # fmt: skip
    assert (first_disagreement(dumps).seq, first_disagreement(dumps).ranks) == (2, (1,))


def test_no_records_have_no_disagreement():
    assert first_disagreement([]) is None


# ---- several communicators, sends and receives ----------------------------------------------


def test_communicators_are_compared_each_for_itself():
    dumps = records([made(0)], [made(0)], name="dp") + records([made(0, op="max")], [
        made(0, op="max")], name="tp")  # fmt: skip
    assert first_disagreement(dumps) is None


def test_a_difference_in_one_communicator_is_told_before_a_wait_in_another():
    dumps = records([made(0, "queued")], [], name="dp") + records([made(3)], [made(3, count=5)],
                                                                  name="tp")  # fmt: skip
    found = first_disagreement(dumps)
    assert (found.kind, found.communicator, found.seq) == ("differs", "tp", 3)


def test_sends_and_receives_are_not_compared_by_number():
    sent, received = p2p(0, "send(count=4, peer=1)", "done"), p2p(0, "recv(peer=0)", "done")
    assert first_disagreement(records([sent], [received])) is None


def test_other_calls_are_not_compared():
    assert first_disagreement(records([made(0, kind="other")], [made(0, kind="other", count=5)])
                              ) is None  # fmt: skip


def test_unfinished_sends_and_receives_are_told_as_waits():
    one, other = p2p(0, "recv(count=4, peer=1)"), p2p(0, "recv(count=4, peer=0)", "running")
    found = first_disagreement(records([one], [other]))
    assert (found.kind, found.seq, found.ranks) == ("waits", None, (0, 1))
    assert "rank 0 waits for rank 1 in recv(count=4, peer=1), queued at train.py:10" in found.text
    assert "rank 1 waits for rank 0 in recv(count=4, peer=0), running" in found.text


def test_many_waits_are_told_in_a_few_lines():
    found = first_disagreement(records(*[[p2p(0, "recv(peer=0)")] for _ in range(20)]))
    assert "and 12 more" in found.text and len(found.text.splitlines()) == 10


@pytest.mark.parametrize("ranks, text", [
    ([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([2, 0, 1], "ranks 0-2"),
    ([0, 1, 3, 5, 6, 7, 8], "ranks 0, 1, 3, 5-8"),
])  # fmt: skip
def test_ranks_are_written_as_people_write_them(ranks, text):
    assert ranks_text(ranks) == text


# ---- what is no record ----------------------------------------------------------------------

BROKEN = {
    "format": ({"format": "pytorch"}, "format is 'pytorch': 'rccl_py flight record' was"),
    "version": ({"version": 2}, "version is 2: 1 was expected"),
    "communicator": ({"communicator": 3}, "communicator is 3: a name was expected"),
    "nranks": ({"nranks": 0}, "nranks is 0: a number from 1"),
    "nranks of a giant": ({"nranks": 10**12}, "nranks is 1000000000000"),
    "rank": ({"rank": 3}, "rank is 3: a number from 0 to 2"),
    "rank that is a truth value": ({"rank": True}, "rank is True"),
    "total": ({"total": 0}, "total is 0: a number from 1"),
    "reason": ({"reason": 3}, "reason is 3"),
    "calls": ({"calls": None}, "calls is None: a list was expected"),
    "a call": ({"calls": [3], "total": 1}, r"calls\[0\] is 3: an object"),
}
BROKEN_CALL = {
    "seq": ({"seq": "1"}, r"calls\[0\]\.seq is '1': a number"),
    "call": ({"call": None}, r"calls\[0\]\.call is None: a text"),
    "collective": ({"collective": 1}, r"calls\[0\]\.collective is 1"),
    "kind": ({"kind": "rma"}, r"calls\[0\]\.kind is 'rma': one of collective, p2p, other"),
    "state": ({"state": []}, r"calls\[0\]\.state is \[\]: one of queued, running, done, failed"),
    "count": ({"count": [4]}, r"calls\[0\]\.count is \[4\]: a number, a text or null"),
    "site": ({"site": 5}, r"calls\[0\]\.site is 5"),
    "note": ({"note": {}}, r"calls\[0\]\.note is \{\}"),
}


@pytest.mark.parametrize("change, what", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_is_refused_by_its_key(change, what):
    good = record(1, [made(0)])
    with pytest.raises(FormatError, match=f"^record 1: {what}"):
        first_disagreement([record(0, [made(0)]), good | change])


@pytest.mark.parametrize("change, what", BROKEN_CALL.values(), ids=BROKEN_CALL)
def test_a_broken_call_is_refused_by_its_key(change, what):
    with pytest.raises(FormatError, match=f"^record 0: {what}"):
        first_disagreement([record(0, [made(0) | change])])


@pytest.mark.parametrize("key", ["format", "version", "communicator", "rank", "nranks", "total",
                                 "calls"])  # fmt: skip
def test_a_key_that_is_not_there_is_named_with_the_file(tmp_path, key):
    broken = record(0, [])
    del broken[key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(FormatError, match=f"a.json: {key} is None"):
        read_record(path)


@pytest.mark.parametrize("text, what", [
    ("", "a.json:1: not JSON"), ("{\n\n]", "a.json:3: not JSON"), ("[]", "a.json: an object"),
    ("3", "a.json: an object"), ("[" * 100_000, "a.json.* not JSON"), ("\udce9", "a.json: not JSON")
])  # fmt: skip
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, text, what):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FormatError, match=what):
        read_record(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(FormatError, match=r"a\.json: cannot be read: No such file"):
        read_record(tmp_path / "a.json")


def test_two_records_of_one_rank_are_refused():
    with pytest.raises(FormatError, match="'world': rank: two records of rank 1"):
        first_disagreement([record(1, []), record(1, [])])


def test_records_of_communicators_of_two_sizes_are_refused():
    with pytest.raises(FormatError, match="nranks: 3 at rank 0, 4 at rank 1: pass one run's files"):
        first_disagreement([record(0, [], 3), record(1, [], 4)])
