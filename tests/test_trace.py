"""A trace says of every message what the engine said, draws none over another, and is bounded."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from trace_messages import LAUNCH, fabric, jumble, of_rows, ring, timeline

from rccl_py.errors import InvalidArgument, InvalidUsage
from rccl_py.links import PROTOCOLS
from rccl_py.report.trace import chrome_trace
from rccl_py.report.tracks import chains, lanes, utilisation

SIMPLE = PROTOCOLS["Simple"]
ABOUT = {"collective": "allreduce", "algorithm": "ring"}


class Read:
    """A trace file as a reader sees it, times in whole ns."""

    def __init__(self, text: str) -> None:
        self.file: dict[str, Any] = json.loads(text)
        self.events: list[dict[str, Any]] = self.file["traceEvents"]
        self.other: dict[str, Any] = self.file["otherData"]
        self.tracks = {e["tid"]: e["args"]["name"] for e in self.named("thread_name")}
        self.process = {e["args"]["name"]: e["pid"] for e in self.named("process_name")}

    def named(self, what: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["ph"] == "M" and e["name"] == what]

    def of(self, process: str, kind: str = "X") -> list[dict[str, Any]]:
        pid = self.process[process]
        return [e for e in self.events if e["ph"] == kind and e["pid"] == pid]


def span(event: dict[str, Any]) -> tuple[int, int]:
    first = round(event["ts"] * 1000)
    return first, first + round(event["dur"] * 1000)


def traced(moved, name: str = "mi300x-8", nodes: int = 1, **more: Any) -> Read:
    return Read(chrome_trace(timeline(moved), fabric(name, nodes), SIMPLE, ABOUT, **more))


def test_every_message_is_a_slice_on_its_rank_with_all_that_is_known_of_it():
    moved = of_rows([(5, 7.5, 8.25, 3, 1, 0, 0, 4096, -1), (9, 9.125, 10, 1, 2, 1, 4, 100, 0)])
    first, second = traced(moved).of("ranks")
    assert (first["name"], first["ts"], first["dur"]) == ("to rank 2", 9.0, 0.125)
    assert (second["name"], second["ts"], second["dur"]) == ("to rank 1", 5.0, 2.5)
    assert second["args"] == {
        "src": 3, "dst": 1, "bytes": 4096, "channel": 0, "stage": 0, "step": 0,
        "held_by": "memory", "arrives_us": 8.25, "algorithm": "ring", "protocol": "Simple",
    }  # fmt: skip
    tracks = traced(moved).tracks
    assert [tracks[e["tid"]] for e in (first, second)] == ["rank 1 ch 1", "rank 3 ch 0"]


def test_the_call_holds_its_launch_and_the_file_says_what_it_is_of():
    read = traced(ring(4, 3))
    call, launch = read.of("call")
    assert (call["name"], span(call)) == ("allreduce", (0, 14_000))
    assert (launch["name"], span(launch)) == ("launch", (0, round(LAUNCH * 1e9)))
    assert read.file["displayTimeUnit"] == "ns"
    assert {k: read.other[k] for k in ("machine", "engine", "messages", "left_out")} == {
        "machine": "mi300x-8", "engine": "by hand", "messages": 12, "left_out": "nothing",
    }  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_slices_overlap_on_a_track_and_none_is_lost(n, seed):
    moved = jumble(8, 0 if n == 1 else 50 * n, seed)
    read = traced(moved)
    tracks = defaultdict(list)
    for event in (*read.of("ranks"), *read.of("links")):
        tracks[event["tid"]].append(span(event))
    for spans in tracks.values():
        assert spans == sorted(spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    whole = np.rint(moved.pushed * 1e9) - np.rint(moved.start * 1e9)
    spans = [span(e) for e in read.of("ranks")]
    assert sum(b - a for a, b in spans) == whole.sum()
    assert Counter(e["args"]["src"] for e in read.of("ranks")) == Counter(moved.src.tolist())


def test_a_rank_that_sends_several_at_once_has_several_tracks():
    moved = of_rows([(5, 8, 9, 0, 1, 0, 0, 1, -1), (6, 8, 9, 0, 2, 0, 0, 1, -1),
                     (7, 8, 9, 0, 3, 1, 0, 1, -1), (8, 9, 9, 0, 3, 0, 1, 1, 0)])  # fmt: skip
    read = traced(moved)
    found = {read.tracks[e["tid"]]: 0 for e in read.of("ranks")}
    for event in read.of("ranks"):
        found[read.tracks[event["tid"]]] += 1
    assert found == {"rank 0 ch 0": 2, "rank 0 ch 0 (2)": 1, "rank 0 ch 1": 1}


def test_lanes_are_as_few_as_the_most_that_run_at_once():
    for seed in range(20):
        draw = np.random.default_rng(seed)
        start = np.sort(draw.integers(0, 50, 60))
        end = start + draw.integers(1, 9, 60)
        most = max(int(((start <= t) & (end > t)).sum()) for t in range(60))
        assert max(lanes(start, end)) + 1 == most


def test_a_link_that_is_crossed_by_one_message_at_a_time_shows_them():
    read = traced(ring(8, 3))
    links = Counter(read.tracks[e["tid"]] for e in read.of("links"))
    assert set(links.values()) == {3}
    assert links["gpu0 -> gpu1"] == 3
    assert read.of("links", "C") == []


def test_a_link_that_messages_share_has_a_counter_of_how_busy_it_is():
    f = fabric()
    link = int(f.routes(np.array([0], np.int32), np.array([1], np.int32)).link[0])
    half = 5e-6 / f.pace[SIMPLE.index, link]  # a message that fills half of 10 us
    moved = of_rows([(5, 15, 16, 0, 1, 0, 0, half, -1), (10, 20, 21, 0, 1, 1, 0, half, -1)])
    points = traced(moved).of("links", "C")
    assert {e["name"] for e in points} == {"gpu0 -> gpu1"}
    assert [(e["ts"], e["args"]["busy %"]) for e in points] == [
        (5.0, 50.0), (10.0, 100.0), (15.0, 50.0), (20.0, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("points", [2, 3, 50, 10_000])
def test_a_counter_is_bounded_and_keeps_the_busy_time(points):
    draw = np.random.default_rng(7)
    start = np.sort(draw.integers(0, 1_000_000, 400))
    end = start + draw.integers(0, 9_000, 400)
    busy = draw.uniform(0, 100e-9, 400)
    at, used = utilisation(start, end, busy, points)
    assert len(at) <= points and used[-1] == 0 and used.min() >= 0 and used.max() <= 1
    if points >= 50:
        assert (used[:-1] * np.diff(at)).sum() == pytest.approx(busy.sum() * 1e9, rel=0.05)


def test_messages_between_nodes_are_on_their_cables():
    read = traced(ring(16, 2), "mi300x-8", 2)
    names = {read.tracks[e["tid"]] for e in read.of("links")} | {
        e["name"] for e in read.of("links", "C")
    }
    assert any("nic" in name for name in names)


def test_arrows_follow_what_a_message_waited_for():
    read = traced(ring(4, 3))
    chain = defaultdict(list)
    for event in sorted(read.of("ranks"), key=lambda e: e["ts"]):
        chain[event["bind_id"]].append((event["args"]["src"], event["flow_in"], event["flow_out"]))
    assert len(chain) == 4
    for found in chain.values():
        first = found[0][0]
        assert found == [(first, False, True), ((first + 1) % 4, True, True),
                         ((first + 2) % 4, True, False)]  # fmt: skip


def test_of_several_that_waited_for_one_the_first_has_the_arrow():
    found = chains(np.array([-1, 0, 0, 1]), np.array([True, True, True, True]))
    assert found.into.tolist() == [False, True, False, True]
    assert found.out.tolist() == [True, True, False, False]
    assert found.name.tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("limit", [100, 137, 1_000, 5_000])
def test_a_big_run_is_bounded_and_the_file_says_what_is_missing(limit):
    read = traced(ring(64, 100), "mi300x-8", 8, limit=limit)
    assert len(read.events) <= limit
    left = read.other["left_out"]
    assert "links in use" in left and ("messages" in left)
    ranks = {e["args"]["src"] for e in read.of("ranks")}
    assert 0 in ranks
    if limit >= 1_000:
        gone = sorted(set(range(64)) - ranks)
        assert gone == list(range(gone[0], gone[-1] + 1))  # from the middle
        assert 63 in ranks and f"ranks {gone[0]}-{gone[-1]}, {100 * len(gone)} of 6400" in left


def test_what_fits_exactly_is_whole():
    whole = traced(ring(64, 100), "mi300x-8", 8)
    assert whole.other["left_out"] == "nothing"
    assert len(whole.of("ranks")) == 6400


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [100, 333, 4_000])
def test_no_limit_is_ever_passed(limit, seed):
    read = traced(jumble(16, 2_000, seed), "mi300x-8", 2, limit=limit)
    assert len(read.events) <= limit
    assert len(read.events) > limit // 3


def test_the_same_messages_make_the_same_file():
    one, two = (chrome_trace(timeline(jumble(8, 300, 5)), fabric(), SIMPLE, ABOUT)
                for _ in range(2))  # fmt: skip
    assert one == two


def test_a_call_without_messages_is_a_launch():
    read = traced(of_rows([]))
    assert [e["name"] for e in read.events if e["ph"] == "X"] == ["allreduce", "launch"]


def test_a_timeline_without_messages_is_refused_with_the_way_out():
    with pytest.raises(InvalidUsage, match=r"engine='clock' or 'simulate' and detail=True"):
        chrome_trace(timeline(None), fabric(), SIMPLE)


@pytest.mark.parametrize("limit", [99, -1, 2.5, None])
def test_a_limit_that_makes_no_sense_is_refused(limit):
    with pytest.raises(InvalidArgument, match="trace: limit"):
        chrome_trace(timeline(ring(2, 1)), fabric(), SIMPLE, limit=limit)
