"""Predictions against published measurements: the limits on the half nothing was fitted on."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from pathlib import Path

import pytest

from rccl_py.links import LINKS
from rccl_py.links.fitted import FITTED
from rccl_py.report.band import TABLE, family_of
from rccl_py.report.measured import Table, read_folder
from rccl_py.report.validate import LIMITS, SUBSETS, Judged, Predictor, summary
from rccl_py.report.verdict import bands_text
from rccl_py.topology import load

FOLDER = Path(__file__).parents[1] / "bench" / "measured"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="bench/measured is in a checkout, not in an installed package"
)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return [t for t in read_folder(FOLDER) if t.grade[0] <= "B"]


@pytest.fixture(scope="module")
def everything(tables) -> list[Judged]:
    predictor = Predictor()
    return [predictor.judge(table) for table in tables]


# ---- errors ---------------------------------------------------------------------------------


def test_the_limits_are_those_that_were_set():
    assert LIMITS == {"peak": (0.07, 0.20), ">= 1 MiB": (0.12, None), "< 64 KiB": (0.25, None)}
    assert set(SUBSETS) == {"all", "alltoall", "multi-node"}


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("subset", SUBSETS)
def test_the_half_nothing_was_fitted_on_is_within_the_limits(everything, subset, kind):
    held = [j for j in everything if j.table.grade[0] == "A" and j.table.half == "b"]
    found = summary([j for j in held if SUBSETS[subset](j)], kind)
    median, p90 = LIMITS[kind]
    assert found.count >= 10
    assert found.median <= median
    assert p90 is None or found.p90 <= p90


# ---- what was fitted on which ---------------------------------------------------------------


def fitted_on(family: str, tables: list[Table]) -> list[Table]:
    """Return the tables of grade A and half a that a family says it was fitted on."""
    return [t for t in tables if t.grade[0] == "A" and t.half == "a"
            and any(fnmatch(t.name, name) for name in FITTED[family].tables)]  # fmt: skip


@pytest.mark.parametrize("family", FITTED)
def test_every_name_a_family_gives_is_of_a_table_of_half_a(family, tables):
    names = [t.name for t in fitted_on(family, tables)]
    assert FITTED[family].tables
    for pattern in FITTED[family].tables:
        assert any(fnmatch(name, pattern) for name in names), pattern


@pytest.mark.parametrize("family", FITTED)
def test_a_family_is_fitted_on_runs_that_cross_its_links(family, tables):
    fit, predictor = FITTED[family], Predictor()
    own = {name for name, link in LINKS.items() if link.latency == fit.latency}
    for table in fitted_on(family, tables):
        setup = predictor.setup(table)
        crossed = family_of(load(setup.machine, nodes=setup.nodes), setup.nodes)
        inside, _, network = crossed.partition("+")
        assert inside in own or any(n.startswith(f"{network}-") for n in own if network), table.name


def test_every_table_of_half_a_was_fitted_on_once(tables):
    names = [t.name for family in FITTED for t in fitted_on(family, tables)]
    assert len(names) == len(set(names))
    assert set(names) == {t.name for t in tables if t.grade[0] == "A" and t.half == "a"}


def test_no_constant_goes_by_size():
    assert all(isinstance(figure, float) for fit in FITTED.values()
               for figure in (*fit.latency, *fit.parts, fit.message, fit.window, fit.spread,
                              fit.multicast))  # fmt: skip


# ---- the bands that come with the package ---------------------------------------------------


def test_the_bands_are_those_of_today(everything):
    how = "make docs, or rccl-validate --grade B --bands > rccl_py/report/bands.csv"
    said = bands_text(everything)
    now, shipped = (
        {(r["family"], r["collective"], r["class"]): r for r in csv.DictReader(lines[1:])}
        for lines in (said.splitlines(), TABLE.read_text().splitlines())
    )
    assert list(now) == list(shipped), how
    for key, row in now.items():
        for same in ("port_GBps", "half", "tables", "rows"):
            assert row[same] == shipped[key][same], how
        for figure in ("median", "p90"):
            assert float(row[figure]) == pytest.approx(float(shipped[key][figure]), abs=2e-3), how
