"""Predicted times against published measurements.

RCCL_PY_CASES names the folder that holds measured/*.csv; without it these tests are skipped. A
table's header says where its figures come from; docs/timing.md shows the result and discusses it.
Run this file as a script to print the table for docs/timing.md.
"""

from __future__ import annotations

import os
import re
import statistics
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import rccl_py as rccl

KIB, MIB = 1 << 10, 1 << 20
DOCUMENT = Path(__file__).parents[1] / "docs" / "timing.md"
FOLDER = Path(os.environ.get("RCCL_PY_CASES") or "/nonexistent") / "measured"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="RCCL_PY_CASES does not name a folder with measured/*.csv"
)

MACHINES = {
    "a100-8": """
name: a100-8
summary: 8 A100 SXM behind 6 NVSwitch2, 16 x 100G RoCE (as OCI BM.GPU.B4.8)
device: a100
gpus: 8
scale_up: {switch: {link: nvlink3, lanes: 12, switches: 6, hop: 0.1us}}
nics: {link: roce-100g, count: 16, host_link: pcie4-x16}
""",
    "b200-8": """
name: b200-8
summary: 8 B200 SXM behind 2 NVSwitch4
device: b200
gpus: 8
scale_up: {switch: {link: nvlink5, lanes: 18, switches: 2, hop: 0.1us}}
""",
    "mi355x-8": """
name: mi355x-8
summary: 8 MI355X, full mesh of Infinity Fabric, one 400G NIC a GPU
device: mi355x
gpus: 8
scale_up: {mesh: {link: xgmi-mi350}}
nics: {link: roce-400g, count: 8, host_link: pcie5-x16}
""",
}
"""Machines that have tables but no file in topologies/."""

CLASSES = (
    ("<= 32 KiB", 0, 32 * KIB),
    ("64 KiB - 1 MiB", 64 * KIB, MIB),
    ("2 - 32 MiB", 2 * MIB, 32 * MIB),
    ("64 - 128 MiB", 64 * MIB, 128 * MIB),
    (">= 256 MiB", 256 * MIB, 1 << 60),
)
LARGE = 256 * MIB
GRAPH_SAVES = 5.5e-6
"""s a graph launch saves on MI300X: 12.8 us launched, 7.5 us in a graph (AMD blog, 1 KiB)."""
ALIKE = "ring,tree;alltoall:direct"
"""NCCL_ALGO for the second column: what NCCL has, and RCCL without its MSCCL algorithms."""


@dataclass(frozen=True)
class Case:
    """One row. tables: (file, least size in B that is used). bound: the largest |error| allowed
    at 256 MiB and above, None where it is only reported; note: why, or what to know."""

    machine: str
    nodes: int
    ranks: int
    collective: str
    tables: tuple[tuple[str, int], ...]
    bound: float | None
    note: str = ""
    launched: bool = True
    missed: bool = False
    """The free choice is further off than the bound: a known failure, expected to fail."""

    @property
    def title(self) -> str:
        """The row's first three cells."""
        name = self.machine.rsplit("-", 1)[0] + ("" if self.launched else ", graph launch")
        return f"{name} | {self.nodes} x {self.ranks // self.nodes} | {self.collective}"


def _sxm(machine: str, prefix: str, bounds: dict[tuple[int, str], float]) -> list[Case]:
    """Return the cases of one data set: 2, 4 and 8 GPUs of a node, four collectives."""
    cases = []
    for ranks in (2, 4, 8):
        for collective, name in (
            ("allreduce", "all_reduce"),
            ("allgather", "all_gather"),
            ("reduce_scatter", "reduce_scatter"),
            ("alltoall", "alltoall"),
        ):
            bound = bounds.get((ranks, collective), bounds.get((ranks, "")))
            nvls = ranks == 8 and collective == "allreduce" and machine != "a100-8"
            note = "NVLS" if nvls else "" if bound else "two ranks"
            tables = ((f"nv_{prefix}_{ranks}gpu_{name}", 0),)
            cases.append(Case(machine, 1, ranks, collective, tables, None if nvls else bound, note))
    return cases


CASES = (
    Case("mi300x-8", 1, 8, "allreduce",
         (("amd_mi300x_1n8_all_reduce_blog", 0), ("amd_mi300x_1n8_all_reduce_aac8", 0)), 0.08),
    Case("mi300x-8", 1, 8, "allreduce", (("amd_mi300x_1n8_all_reduce_blog_graph", 0),), 0.08,
         launched=False),
    Case("mi300x-8", 2, 16, "allreduce",
         (("amd_mi300x_2n16_all_reduce_oci_qs", 0),
          ("amd_mi300x_2n16_all_reduce_pr3272", 0),
          # Its trust line: bandwidth healthy, latency about 4 times too high.
          ("amd_mi300x_2n16_all_reduce_aac10_cx7", 64 * MIB)), 0.15),
    Case("mi355x-8", 1, 8, "allreduce",
         (("amd_mi355x_1n8_all_reduce_oci", 0), ("amd_mi355x_1n8_all_reduce_oci_pollara", 0),
          # One process launches all eight, serially: 20-35 us more below about 1 MiB.
          ("amd_mi355x_1n8_all_reduce_vultr", 2 * MIB)), 0.08),
    Case("mi355x-8", 1, 8, "alltoall",
         (("amd_mi355x_1n8_alltoall_oci", 0), ("amd_mi355x_1n8_alltoall_oci_pollara", 0),
          ("amd_mi355x_1n8_alltoall_vultr", 2 * MIB)), 0.15),
    Case("mi355x-8", 2, 16, "allreduce",
         (("amd_mi355x_2n16_all_reduce_aac14_pollara", 0),
          ("amd_mi355x_2n16_all_reduce_oci_pollara", 0)), 0.20),
    Case("mi355x-8", 2, 16, "alltoall", (("amd_mi355x_2n16_alltoall_oci_pollara", 0),), 0.10),
    *_sxm("a100-8", "a100_sxm", {(8, ""): 0.20, (4, ""): 0.25}),
    Case("a100-8", 2, 16, "allreduce", (("nv_a100_2n16_all_reduce_oci_b4", 0),), 0.15, missed=True),
    *_sxm("h100-8", "h100_sxm", {(8, ""): 0.20, (4, ""): 0.25}),
    Case("h100-8", 2, 16, "allreduce",
         (("nv_h100_2n16_all_reduce_ib_issue309", 0), ("nv_h100_2n16_all_reduce_issue309b", 0)),
         None, "NVLS"),
    Case("h100-8", 4, 32, "allreduce", (("nv_h100_4n32_all_reduce_ib_issue309", 0),), None, "NVLS"),
    *_sxm("b200-8", "b200_sxm", {(8, ""): 0.25, (4, ""): 0.35}),
)  # fmt: skip


def measured(case: Case) -> dict[int, float]:
    """Return the best time in s at each size, in or out of place, of all the case's tables."""
    best: dict[int, float] = {}
    for name, least in case.tables:
        for line in (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines():
            if line.startswith(("#", "size_bytes")):
                continue
            size, time = int(line.split(",")[0]), float(line.split(",")[1]) * 1e-6
            if size >= least and time > 0:
                best[size] = min(time, best.get(size, time))
    return best


@cache
def planner(case: Case, algo: str | None, folder: Path) -> rccl.Planner:
    """Return the planner of the case's machine; YAML of the machine is written to `folder`."""
    name = case.machine
    if name in MACHINES:
        name = str(folder / f"{case.machine}.yaml")
        Path(name).write_text(MACHINES[case.machine], encoding="utf-8")
    fabric = rccl.lower(rccl.load(name, nodes=case.nodes), case.ranks)
    if not case.launched:
        fabric = replace(fabric, launch=fabric.launch - GRAPH_SAVES)
    return rccl.Planner(fabric, algo=algo)


def errors(case: Case, algo: str | None, folder: Path) -> dict[int, float]:
    """Return predicted over measured time, minus 1, at each size."""
    blocks = max(rccl.COLLECTIVES[case.collective].blocks(case.ranks))
    plan = planner(case, algo, folder).plan
    return {
        size: plan(case.collective, size / blocks).time / time - 1
        for size, time in measured(case).items()
    }


def medians(found: dict[int, float]) -> list[float | None]:
    """Return the median error of each size class, None where there is no measurement."""
    by_class = [[e for s, e in found.items() if low <= s <= high] for _, low, high in CLASSES]
    return [statistics.median(c) if c else None for c in by_class]


def row(case: Case, folder: Path) -> str:
    """Return the case's line of the table in docs/timing.md."""
    free, alike = (medians(errors(case, algo, folder)) for algo in (None, ALIKE))
    cells = ["-" if f is None or a is None else f"{f * 100:+.0f} ({a * 100:+.0f})"
             for f, a in zip(free, alike)]  # fmt: skip
    bound = (
        f"{case.bound:.0%}{', missed' if case.missed else ''}"
        if case.bound
        else f"not held: {case.note}"
    )
    return f"| {case.title} | {' | '.join(cells)} | {bound} |"


def numbers(line: str) -> list[int]:
    """Return the signed whole numbers of a line of the table."""
    return [int(n) for n in re.findall(r"[+-]\d+", line)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.mark.parametrize("case", [
    pytest.param(c, id=c.title, marks=[pytest.mark.xfail(strict=True, reason=(
        "the overlapped two-level forms and the tree use NVLink at once with the NICs; NCCL runs a "
        "ring there, whose modelled time is 4 % too slow"))] if c.missed else [])
    for c in CASES if c.bound])  # fmt: skip
def test_large_sizes_are_predicted_within_the_documented_bound(case: Case, folder: Path):
    large = {s: e for s, e in errors(case, None, folder).items() if s >= LARGE}
    assert large, "no measurement of 256 MiB or more"
    size, worst = max(large.items(), key=lambda item: abs(item[1]))
    assert abs(worst) <= (case.bound or 0), f"{worst:+.1%} at {size} B"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.title)
def test_the_document_shows_the_errors_of_today(case: Case, folder: Path):
    line = row(case, folder)
    print(line)
    start = line.split(case.collective + " |")[0] + case.collective + " |"
    shown = [s for s in DOCUMENT.read_text(encoding="utf-8").splitlines() if s.startswith(start)]
    assert len(shown) == 1, f"docs/timing.md has {len(shown)} rows {start}"
    assert shown[0].rsplit("|", 2)[1] == line.rsplit("|", 2)[1]
    for now, then in zip(numbers(line), numbers(shown[0]), strict=True):
        assert abs(now - then) <= 2, f"docs/timing.md is out of date: now\n{line}"


if __name__ == "__main__":
    import tempfile

    print(f"| machine | nodes x ranks | collective | {' | '.join(c[0] for c in CLASSES)} | bound |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        for each in CASES:
            print(row(each, Path(made)))
