"""Schedules of other tools: how long reading MSCCL XML takes, for a box and for a pod."""

import time
from pathlib import Path

import pytest

import rccl_py as rccl
from rccl_py.formats import msccl_xml
from rccl_py.formats.msccl_xml import read_msccl_text

CASES = [("ring", 8, 0.2), ("direct-twoshot", 8, 0.2), ("ring", 64, 6.0),
         ("direct-twoshot", 64, 8.0)]  # fmt: skip


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("name, n, limit", CASES)
def test_a_file_is_read_in_its_limit(benchmark, name, n, limit):
    fabric = rccl.lower(rccl.load("ualink-64"), n)
    planner = rccl.Planner(fabric, algo=name, max_channels=1)
    text = msccl_xml(planner.plan("allreduce", 1 << 20).schedule, limits=None)
    read = benchmark.pedantic(lambda: read_msccl_text(text.encode(), Path("a.xml")), rounds=1)
    benchmark.extra_info["steps in the file"] = text.count("<step")
    benchmark.extra_info["rows"] = sum(len(step.src) for step in read.schedule)
    assert benchmark.stats.stats.median <= limit
