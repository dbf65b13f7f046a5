"""Perfetto's own trace processor finds in our files, by SQL, what the messages were."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from trace_messages import fabric, jumble, ring, timeline
from trace_processor import NEEDS, Opened, opened

from rccl_py import Planner
from rccl_py.links import PROTOCOLS
from rccl_py.report.trace import chrome_trace, plan_trace
from rccl_py.timing.timeline import Transfers

SIMPLE = PROTOCOLS["Simple"]
SLICES = "slice join thread_track on slice.track_id = thread_track.id join thread using (utid) " \
         "join process using (upid)"  # fmt: skip


@pytest.fixture(scope="module")
def trace_processor():
    for name in NEEDS:
        pytest.importorskip(name, reason=f"{name} is not installed: the test extra brings it")
    return opened


def text_of(moved: Transfers, name: str = "mi300x-8", nodes: int = 1, limit: int = 200_000) -> str:
    about = {"collective": "allreduce", "algorithm": "ring"}
    return chrome_trace(timeline(moved), fabric(name, nodes), SIMPLE, about, limit=limit)


def nothing_dropped(db: Opened) -> None:
    wrong = db.rows("select name, value from stats where severity in ('error', 'data_loss') "
                    "and value > 0")  # fmt: skip
    assert wrong == []


@pytest.fixture(scope="module")
def mixed(trace_processor):
    moved = jumble(8, 2_000, 11)
    return moved, trace_processor(text_of(moved).encode())


def test_counts_durations_and_bytes_by_sql_are_those_of_the_messages(mixed):
    moved, db = mixed
    nothing_dropped(db)
    start, pushed = (np.rint(t * 1e9).astype(np.int64) for t in (moved.start, moved.pushed))
    found = db.rows(f"""
        select extract_arg(slice.arg_set_id, 'args.src') as src, count(*), sum(dur),
               min(slice.ts) as first, max(slice.ts + slice.dur) as last,
               sum(extract_arg(slice.arg_set_id, 'args.bytes')) as bytes
        from {SLICES} where process.name = 'ranks' group by src order by src""")  # fmt: skip
    for src, messages, ns, first, last, nbytes in found:
        own = moved.src == src
        assert messages == own.sum()
        assert ns == (pushed - start)[own].sum()
        assert (first, last) == (start[own].min(), pushed[own].max())
        assert nbytes == moved.nbytes[own].sum()
    assert len(found) == len(np.unique(moved.src))


def test_no_slice_lies_in_another_but_the_launch_in_its_call(mixed):
    _, db = mixed
    deep = db.rows(f"select slice.name, depth, process.name as process from {SLICES} "
                   "where depth > 0")  # fmt: skip
    assert deep == [("launch", 1, "call")]


def test_counters_by_sql_hold_the_busy_time_of_shared_links(mixed):
    moved, db = mixed
    f = fabric()
    found = dict(
        db.rows("""
        select name, sum(value / 100 * dur) as busy from (
            select process_counter_track.name as name, value,
                   lead(ts) over (partition by track_id order by ts) - ts as dur
            from counter join process_counter_track on track_id = process_counter_track.id)
        group by name""")
    )
    assert found
    routes = f.routes(moved.src, moved.dst)
    seconds = moved.nbytes[routes.row] * routes.share * f.pace[SIMPLE.index, routes.link]
    start, end = moved.start[routes.row], moved.pushed[routes.row]
    # Random messages ask for more than a link has: what is drawn is at most all of it.
    for link in range(f.nlinks):
        name = f"{f.link_name(link)} busy %"
        if name in found:
            own = routes.link == link
            assert found[name] <= 1.001 * seconds[own].sum() * 1e9 + own.sum()
            assert found[name] <= (end[own].max() - start[own].min()) * 1e9 * 1.001


def test_a_ring_has_the_links_it_goes_round_and_an_arrow_a_hop(trace_processor):
    moved = ring(8, 14)
    db = trace_processor(gzip.compress(text_of(moved).encode(), mtime=0))
    nothing_dropped(db)
    links = db.rows(f"select thread.name as link, count(*), sum(dur) from {SLICES} "
                    "where process.name = 'links' group by link")  # fmt: skip
    assert len(links) == 8
    assert {row[1:] for row in links} == {(14, 14 * 2_000)}
    assert db.rows("select count(*) as n from flow") == [(8 * 13,)]
    assert db.rows("""
        select count(*) as n from flow join slice a on slice_out = a.id
        join slice b on slice_in = b.id
        where extract_arg(a.arg_set_id, 'args.dst') != extract_arg(b.arg_set_id, 'args.src')
        """) == [(0,)]  # fmt: skip


def test_a_big_run_is_cut_and_what_is_left_is_exact(trace_processor):
    moved = ring(64, 100)
    db = trace_processor(text_of(moved, "mi300x-8", 8, limit=4_000).encode())
    nothing_dropped(db)
    found = db.rows(f"""
        select extract_arg(slice.arg_set_id, 'args.src') as src, count(*), sum(dur)
        from {SLICES} where process.name = 'ranks' group by src""")  # fmt: skip
    assert 10 <= len(found) < 64
    assert {row[1:] for row in found} == {(100, 100 * 2_000)}


@pytest.mark.parametrize("engine", ["clock", "simulate"])
def test_what_an_engine_timed_is_what_sql_finds(trace_processor, engine):
    plan = Planner(fabric("mi300x-8", 2)).plan("allreduce", 8 << 20)
    line = plan.timed(engine, detail=True)
    db = trace_processor(plan_trace(plan, line).encode())
    nothing_dropped(db)
    moved = line.transfers
    start, pushed = (np.rint(t * 1e9).astype(np.int64) for t in (moved.start, moved.pushed))
    found = db.rows(f"""
        select process.name as process, count(*), sum(dur) from {SLICES}
        where process.name in ('call', 'ranks') group by process order by process""")  # fmt: skip
    call = np.rint(1e9 * np.array([line.seconds, line.launch])).astype(int).sum()
    assert found == [("call", 2, call), ("ranks", len(moved), (pushed - start).sum())]


def test_the_sql_of_the_docs_tells_the_time_of_each_link(trace_processor):
    docs = Path(__file__).parents[1] / "docs" / "trace.md"
    (sql,) = re.findall(r"```sql\n(.*?)```", docs.read_text(), re.S)
    found = trace_processor(text_of(ring(8, 14)).encode()).rows(sql)
    assert len(found) == 8
    assert {row[1:] for row in found} == {(14, 28.0)}
