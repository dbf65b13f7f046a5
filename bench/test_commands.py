"""Start-up of the commands, as whole processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(sys.executable).with_name("rccl-perf")
needs_perf = pytest.mark.skipif(not PERF.exists(), reason="rccl-perf is not installed here")


def run(*arguments):
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([PERF, *arguments], check=True, capture_output=True, env=quiet)


@needs_perf
def test_help_takes_at_most_300_milliseconds(benchmark):
    benchmark.pedantic(run, args=("--help",), rounds=9, warmup_rounds=1)
    assert benchmark.stats.stats.median <= 0.300


@needs_perf
def test_table_of_8_ranks_without_data_takes_at_most_a_second(benchmark):
    table = ("allreduce", "--topology", "mi300x-8", "-b", "8", "-e", "8G", "-f", "2", "-c", "0")
    benchmark.pedantic(run, args=table, rounds=5, warmup_rounds=1)
    assert benchmark.stats.stats.median <= 1.0
