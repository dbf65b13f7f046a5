"""The tables of bench/measured: each parses, agrees with itself, and has a machine and a half."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rccl_py import load
from rccl_py.collectives import COLLECTIVES
from rccl_py.planner.policies import POLICIES
from rccl_py.report.measured import HALVES, LAUNCHES, Table, drawn_halves, read_folder, stratum
from rccl_py.report.validate import Predictor

FOLDER = Path(__file__).parents[1] / "bench" / "measured"
NAMES = sorted(path.stem for path in FOLDER.glob("*.csv"))
MACHINES = sorted(FOLDER.glob("machines/*.yaml"))
KEYS = {"system", "gpus", "nodes", "collective", "dtype", "library", "source", "date", "grade",
        "machine", "policy", "launch", "fit"}  # fmt: skip
OPTIONAL = {"algo", "grade_from"}

each_table = pytest.mark.parametrize("name", NAMES)


@cache
def tables() -> dict[str, Table]:
    return {table.name: table for table in read_folder(FOLDER)}


@cache
def predictor() -> Predictor:
    return Predictor()


def test_the_folder_holds_the_tables_the_limits_are_about():
    assert sum(t.grade.startswith("A") for t in tables().values()) >= 95
    assert {t.grade[0] for t in tables().values()} == set("ABCD")


@each_table
def test_a_header_has_every_key_and_no_other(name: str):
    header = tables()[name].header
    assert set(header) >= KEYS and set(header) <= KEYS | OPTIONAL
    assert all(header.values())
    assert header["launch"] in LAUNCHES and header["fit"] in HALVES
    assert header["policy"] in (*POLICIES, "free")


@each_table
def test_bandwidths_are_those_of_size_and_time(name: str):
    table = tables()[name]
    factor = COLLECTIVES[table.collective].factor(table.gpus)
    algbw = table.size / table.time
    # Small ones are printed with two decimals of a GB/s.
    rounding = 0.006e9
    assert np.all(np.abs(table.algbw - algbw) <= 0.02 * algbw + rounding)
    assert np.all(np.abs(table.busbw - algbw * factor) <= 0.02 * algbw * factor + 2 * rounding)


@each_table
def test_its_machine_exists_and_has_as_many_ranks(name: str):
    table = tables()[name]
    setup = predictor().setup(table)
    machine = load(setup.machine, nodes=setup.nodes)
    assert setup.gpus == table.gpus and table.gpus % setup.nodes == 0
    assert table.gpus <= machine.nranks


@each_table
def test_nothing_but_figures_is_kept_of_a_source(name: str):
    assert all(len(value) <= 160 for value in tables()[name].header.values())


def test_the_halves_are_what_the_seed_draws():
    assert {t.name: t.half for t in tables().values()} == drawn_halves(tables().values())


def test_every_stratum_of_two_tables_or_more_has_both_halves():
    halves = defaultdict(list)
    for table in tables().values():
        halves[stratum(table)].append(table.half)
    assert all(set(found) == set(HALVES) for found in halves.values() if len(found) > 1)
    assert all(abs(found.count("a") - found.count("b")) <= 1 for found in halves.values())


def test_the_halves_do_not_depend_on_the_order_or_the_figures_of_tables():
    backwards = list(tables().values())[::-1]
    assert drawn_halves(backwards) == drawn_halves(tables().values())
    assert drawn_halves(backwards, seed=6) != drawn_halves(backwards)


@pytest.mark.parametrize("path", MACHINES, ids=lambda p: p.stem)
def test_a_machine_beside_the_tables_loads_is_used_and_says_its_sources(path: Path):
    machine = load(path)
    assert machine.name == path.stem and machine.sources
    assert path.stem in {t.header["machine"] for t in tables().values()}
