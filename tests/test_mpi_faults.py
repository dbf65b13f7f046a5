"""Under mpirun what goes wrong is told to every rank, soon, and no program hangs.

The programs are in mpi_faults.py; one job runs many, each on a new communicator. The limit of a
wait is 0.5 s there, so whoever hears something within LATE heard it by more than its own patience
and a busy machine's.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from mpirun import mpirun

from rccl_py.cli import flight

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("mpi_faults.py")
N, ODD, AWAY = 4, 2, 1
OTHERS = (0, 2, 3)
LATE = 3.0
MODES = pytest.mark.parametrize("mode", ["shared", "messages"])

TOGETHER = (
    "differ_in_collective", "differ_in_count", "differ_in_dtype", "differ_in_op", "differ_in_root",
    "differ_in_order", "differ_in_a_repeated_call", "differ_in_a_message", "differ_in_parts",
    "circle_of_sends", "circle_of_recvs", "circle_of_a_collective_and_a_message",
    "circle_of_two_communicators", "old_waits_make_no_circle", "one_stays_away",
    "one_stays_away_from_a_recv",
    "one_stays_away_from_split", "one_destroys", "one_destroys_while_others_call",
    "abort_frees_a_collective", "abort_while_planning", "abort_frees_a_recv",
    "revoke_frees_the_others",
    "shrink_after_a_failure", "a_failed_communicator_refuses", "nonblocking_calls",
    "init_without_one", "from_mpi_without_one", "records", "one_returns",
)  # fmt: skip
"""What one job does, the last ends it."""


class Heard:
    """What became of a job: its folder, exit code and output, what ranks heard by case."""

    def __init__(self, folder: Path, n: int, mode: str, cases: tuple[str, ...],
                 options: tuple[str, ...] = ()) -> None:  # fmt: skip
        folder.mkdir()
        self.folder = folder
        done = mpirun(n, str(PROGRAM), str(folder), mode, *cases, options=options, timeout=90)
        self.code, self.errors = done.returncode, done.stderr
        self.said: dict[str, dict[int, dict]] = {}
        for file in folder.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                self.said.setdefault(row["case"], {})[int(file.stem)] = row

    def told(self, case: str, kind: str, *parts: str, by=range(N), late: float = LATE) -> list[str]:
        """Return what ranks heard in a case: all of these, this error, with these parts, soon."""
        rows = self.said.get(case, {})
        assert set(by) <= set(rows), f"{case}: only ranks {sorted(rows)} came back: {self.errors}"
        for rank in by:
            row = rows[rank]
            assert row["kind"] == kind, f"rank {rank}: {row}"
            for part in parts:
                assert re.search(part, row["text"]), f"rank {rank}: no {part!r} in {row['text']}"
            assert row["seconds"] < late, row
        return [rows[rank]["text"] for rank in by]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Run a job when its first test asks for it."""
    base = tmp_path_factory.mktemp("faults")

    @cache
    def run(n: int, mode: str, cases: tuple[str, ...], options: tuple[str, ...] = ()) -> Heard:
        return Heard(base / f"{len(list(base.iterdir()))}", n, mode, cases, options)

    return run


@pytest.fixture
def job(jobs, mode):
    return jobs(N, mode, TOGETHER)


# ---- calls that differ --------------------------------------------------------------------------

LINE = r"at mpi_faults\.py:\d+"
DIFFER = {
    "collective": (1, "allreduce(count=4, dtype=float, op=sum)", "broadcast(count=4, dtype=float, "
                   "root=0)"),
    "count": (1, "allreduce(count=4, dtype=float, op=sum)", "allreduce(count=3, dtype=float, "
              "op=sum)"),
    "dtype": (1, "allgather(count=4, dtype=float)", "allgather(count=4, dtype=int32)"),
    "op": (1, "allreduce(count=4, dtype=float, op=sum)", "allreduce(count=4, dtype=float, op=max)"),
    "root": (1, "broadcast(count=4, dtype=float, root=0)", "broadcast(count=4, dtype=float, "
             "root=1)"),
    "order": (1, "allreduce(count=4, dtype=float, op=sum)", "allgather(count=4, dtype=float)"),
    "a_repeated_call": (3, "allreduce(count=4, dtype=float, op=sum)",
                        "allreduce(count=4, dtype=float, op=min)"),
}  # fmt: skip


@MODES
@pytest.mark.parametrize("what", DIFFER)
def test_every_rank_hears_who_called_what_where_when_calls_differ(job, what):
    number, many, odd = DIFFER[what]
    texts = job.told(
        f"differ_in_{what}", "CollectiveMismatch", rf"^call {number} differs between ranks of comm",
        rf"ranks 0, 1, 3 called {re.escape(many)} {LINE}",
        rf"rank {ODD} called {re.escape(odd)} {LINE}",
    )  # fmt: skip
    assert len(set(texts)) == 1


@MODES
def test_both_ends_of_a_message_of_different_size_are_told_to_all(job):
    job.told("differ_in_a_message", "CollectiveMismatch",
             rf"rank 0 made send\(count=4, dtype=float, peer=1\) {LINE}; "
             rf"rank 1 made recv\(count=5, dtype=float, peer=0\) {LINE}")  # fmt: skip


@MODES
def test_a_part_sent_that_is_not_the_part_received_is_told_to_all(job):
    job.told("differ_in_parts", "CollectiveMismatch",
             "rank 2 sends 2 elements to rank 1, which receives 1")  # fmt: skip


# ---- waits that never end -----------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_circle_of_messages_is_printed_to_every_rank_before_the_timeout(job, kind):
    job.told(
        f"circle_of_{kind}s", "Deadlock", "^deadlock: ", r"one group\(\)",
        *[rf"rank {r} of \S+ waits in {kind}\(count=4, dtype=float, peer={(r + 1) % N}\) {LINE} "
          rf"for rank {(r + 1) % N}" for r in range(N)],
    )  # fmt: skip


@MODES
def test_a_circle_of_a_message_and_a_collective_is_printed_also_to_those_beside_it(job):
    job.told("circle_of_a_collective_and_a_message", "Deadlock",
             r"rank 0 of \S+ waits in recv\(.*\) \S+ \S+ for rank 1",
             r"rank 1 of \S+ waits in call 0, allreduce\(.*\) \S+ \S+ for rank 0")  # fmt: skip


@MODES
def test_a_circle_through_two_communicators_is_printed_to_every_rank(job):
    job.told("circle_of_two_communicators", "Deadlock",
             rf"rank {ODD} of \S+/split0 waits in call 0, allreduce\(.*\) {LINE} for rank \d",
             rf"rank \d of comm[^/ ]+ waits in call 2, allreduce\(.*\) {LINE} for rank {ODD}",
             )  # fmt: skip


@MODES
def test_a_rank_that_computes_on_after_a_deadlock_is_in_no_other_circle(job):
    job.told("old_waits_make_no_circle", "", "^Deadlock, then 4$")


AWAY_FROM = {
    "one_stays_away": r"call 0, allreduce\(count=4, dtype=float, op=sum\)",
    "one_stays_away_from_a_recv": r"recv\(count=4, dtype=float, peer=1\)",
    "one_stays_away_from_split": r"call 0, split\(\)",
}


@MODES
@pytest.mark.parametrize("case", AWAY_FROM)
def test_a_rank_that_stays_away_is_named_after_the_timeout_and_hears_it_when_it_comes(job, case):
    what = rf"^rank \d of \S+ waited 0.5 s in {AWAY_FROM[case]} {LINE} for rank {AWAY}"
    job.told(case, "RcclTimeout", what)
    assert min(job.said[case][r]["seconds"] for r in OTHERS) >= 0.5


@MODES
def test_a_process_that_does_not_come_to_init_or_from_mpi_ends_it_by_timeout(job):
    job.told("init_without_one", "RcclTimeout", "communicator of 4 ranks .* rank 1 did not come",
             by=OTHERS)  # fmt: skip
    job.told("from_mpi_without_one", "RcclTimeout", "waited 0.5 s: not all of the 4 processes",
             by=OTHERS)  # fmt: skip


@MODES
def test_a_destroy_by_one_rank_only_ends_by_timeout_and_the_others_hear_it(job):
    what = rf"rank 1 of \S+ waited 0.5 s in call 0, destroy\(\) {LINE} for ranks 0, 2, 3"
    job.told("one_destroys", "RcclTimeout", what)


@MODES
def test_a_destroy_that_meets_a_call_differs_from_it(job):
    what = rf"ranks 0, 2, 3 called allreduce\(.*\) {LINE}; rank 1 called destroy\(\) {LINE}"
    job.told("one_destroys_while_others_call", "CollectiveMismatch", what)


# ---- ends ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("where", ["collective", "recv"])
def test_an_abort_from_another_thread_frees_its_rank_and_the_others(job, where):
    job.told(f"abort_frees_a_{where}", "RemoteError", r"^rank 0 of \S+ called abort\(\)", by=OTHERS,
             late=0.5)  # fmt: skip


@MODES
def test_an_abort_that_comes_while_a_rank_still_plans_is_what_that_rank_hears(job):
    job.told("abort_while_planning", "RemoteError", r"^rank 0 of \S+ called abort\(\)", by=OTHERS)


@MODES
def test_a_revoke_frees_the_others(job):
    job.told("revoke_frees_the_others", "RemoteError", r"^rank 1 of \S+ revoked it", by=OTHERS)
    job.told("revoke_frees_the_others", "InvalidUsage", "is revoked", by=[1])


@MODES
def test_ranks_that_shrink_with_abort_after_a_failure_compute_on(job):
    job.told("shrink_after_a_failure", "", "^CollectiveMismatch, then 7 of 3", by=(0, 1, 3))


@MODES
def test_a_failed_communicator_refuses_calls_and_says_why_it_failed(job):
    job.told("a_failed_communicator_refuses", "CollectiveMismatch",
             r"allreduce at rank \d: the communicator has failed and takes no more calls",
             "It failed with: call 0 differs between ranks")  # fmt: skip


@MODES
def test_a_nonblocking_communicator_tells_success_and_failure_when_polled(job):
    job.told("nonblocking_calls", "", r"^IN_PROGRESS SUCCESS 4 INVALID_USAGE call 1 differs .*"
             rf"rank {ODD} called allreduce\(count=4, dtype=float, op=max\)")  # fmt: skip


@MODES
def test_flight_records_of_all_ranks_are_written_and_the_command_names_the_odd_one(job, capsys):
    folder = job.folder / "records"
    job.told("records", "CollectiveMismatch")
    assert len(list(folder.rglob("*.json"))) == N
    assert flight.main([str(folder)]) == 1
    told = capsys.readouterr().out
    assert "world: 4 of 4 ranks recorded" in told
    assert "call 1: ranks disagree on count" in told
    assert re.search(rf"rank {ODD} called allreduce\(count=3, .*<-- odd", told)


@MODES
def test_a_rank_that_returns_is_named_to_those_who_wait_for_it_and_the_job_ends_well(job):
    job.told("one_returns", "RemoteError",
             r"waits in call 1, allreduce\(.*\) \S+ \S+ for rank 1, which has ended its program",
             by=OTHERS)  # fmt: skip
    job.told("a put before the end", "", "True", by=[3])
    assert job.code == 0, job.errors


# ---- processes that end -------------------------------------------------------------------------


@pytest.mark.parametrize("mode, case", [("shared", "one_raises"),
                                        ("messages", "one_raises_while_others_recv")])  # fmt: skip
def test_the_error_of_one_rank_is_told_to_the_others_and_the_job_fails(jobs, mode, case):
    job = jobs(N, mode, (case,))
    job.told(case, "RemoteError", "for rank 1, which failed with ZeroDivisionError: on purpose",
             by=OTHERS, late=0.5)  # fmt: skip
    assert job.code != 0 and "ZeroDivisionError: on purpose" in job.errors


KILLED = {"shared": "killed_in_a_collective", "messages": "killed_before_a_recv"}


@MODES
def test_a_killed_rank_is_named_to_the_others_before_the_launcher_ends_them(jobs, mode):
    """This mpirun sends SIGTERM to all when one dies: whoever is faster, death is what is told."""
    job = jobs(N, mode, (KILLED[mode],))
    job.told(KILLED[mode], "RemoteError", r"rank 1(,| of \S+) (which )?has died", by=OTHERS)
    assert job.code != 0


@MODES
def test_survivors_of_three_kills_hear_each_shrink_compute_on_and_end(jobs, mode):
    job = jobs(5, mode, ("kills",), ("--enable-recovery",))
    for victim, case, where in (
        (4, "killed in a collective", r"call 0, allreduce\(.*"),
        (3, "killed before a recv", r"recv\(count=4, dtype=float, peer=3\)"),
        (2, "killed while others compute", r"call 0, allreduce\(.*"),
    ):
        left = range(victim)
        job.told(case, "RemoteError", rf"waits in {where} {LINE} for rank {victim}, which has died "
                 r"\(process \d+\)", by=left)  # fmt: skip
        total = sum(1 + r for r in left)
        job.told(f"{case}, shrunk", "", f"^{total} of {victim}$", by=left)
    assert set(job.said["end"]) == {0, 1}
