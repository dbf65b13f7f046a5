"""`rccl-perf --trace`: the last row's call as a file for ui.perfetto.dev.

Owns which call is traced and how the file is packed. The trace is report's, the times an engine's.
"""

from __future__ import annotations

import gzip
from collections import deque
from typing import TYPE_CHECKING

from ..report.trace import plan_trace
from ..units import format_size
from .perf_data import block_of
from .perf_files import write_whole

if TYPE_CHECKING:
    from ..planner import Plan
    from .perf_run import Run

__all__ = ["write_trace"]


def _last_plan(run: Run) -> Plan:
    """Return the plan of the table's last row, which has the largest size."""
    case, size = run.cases[-1], deque(run.settings.sizes(), maxlen=1)[0]
    count = block_of(run.collective, size, case.dtype.itemsize, run.n)
    return run.comms[0].plan(run.collective.name, count, case.dtype, root=max(case.root, 0))


def write_trace(run: Run, path: str) -> str:
    """Write the trace of the last row's call; return the comment that says so."""
    plan = _last_plan(run)
    timeline = plan.timed(detail=True)
    text = plan_trace(plan, timeline)
    # No time and no name in the header: the same call makes the same bytes.
    write_whole(path, gzip.compress(text.encode(), mtime=0) if path.endswith(".gz") else text)
    return (f"# Trace of {run.collective.name} of {format_size(plan.size)} bytes "
            f"(engine {timeline.engine}) in {path}")  # fmt: skip
