"""`rccl-validate`: tables are read or refused in one line, and errors are counted as documented."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rccl_py import Planner, load, lower
from rccl_py.cli.plan import main as plan_main
from rccl_py.cli.validate import main
from rccl_py.errors import FormatError, InvalidArgument, InvalidUsage
from rccl_py.links import DEVICES, LINKS
from rccl_py.report import band
from rccl_py.report.band import (
    ALL,
    CLASSES,
    LEAST,
    PEAK,
    TABLE,
    Band,
    band_for,
    bands,
    class_of,
    family_of,
    port_of,
)
from rccl_py.report.measured import Table, read_folder, read_table, table_from
from rccl_py.report.validate import (
    SERIAL_LAUNCH,
    Judged,
    Predictor,
    Setup,
    grouped,
    policy_of,
    statistics,
    summary,
)
from rccl_py.report.verdict import BAND_COLUMNS, bands_text, table_lines, worst_lines

ROOT = Path(__file__).parents[1]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

HEADER = "# gpus: 8\n# nodes: 1\n# collective: all_reduce\n"
COLUMNS = "size_bytes,time_us,algbw_GBps,busbw_GBps,in_place\n"


def table(rows: str = "1024,20\n", columns: str = "size_bytes,time_us\n", **header: str) -> Table:
    more = "".join(f"# {key}: {value}\n" for key, value in header.items())
    return table_from(HEADER + more + columns + rows, "t.csv")


def judged(errors: dict[int, float], *, nodes: int = 1, name: str = "t", **header: str) -> Judged:
    """Return a table whose predictions are off by `errors`, by size in B."""
    rows = "".join(f"{size},100\n" for size in errors)
    said = HEADER + "".join(f"# {key}: {value}\n" for key, value in header.items())
    read = table_from(said + "size_bytes,time_us\n" + rows, f"{name}.csv")
    measured = np.full(len(errors), 1e-4)
    predicted = measured * (1 + np.array(list(errors.values())))
    setup = Setup("mi300x-8", nodes, 8, "free", None, read.launch)
    size = np.array(list(errors), dtype=np.int64)
    return Judged(read, setup, nodes, "xgmi-mi300", size, measured, predicted,
                  ("ring/LL",) * len(errors))  # fmt: skip


# ---- reading --------------------------------------------------------------------------------


def test_size_and_time_are_enough_and_columns_may_stand_in_any_order():
    read = table("20,1024\n", "time_us,size_bytes\n")
    assert read.size.tolist() == [1024] and read.time.tolist() == pytest.approx([20e-6])
    assert np.isnan(read.algbw).all() and not read.in_place.any()


def test_header_lines_need_no_hash_and_comments_and_empty_lines_are_passed_over():
    text = "gpus:2\n\n# measured on a Tuesday\nnodes: 1\ncollective: alltoall\n"
    read = table_from(text + "size_bytes,time_us\n8,5\n\n# the end\n", "t.csv")
    assert (read.gpus, read.nodes, read.collective) == (2, 1, "alltoall")
    assert read.size.tolist() == [8]


def test_the_time_of_a_size_is_the_best_in_or_out_of_place_and_sizes_need_not_rise():
    read = table("2048,30,,,0\n2048,28,,,1\n1024,21,,,1\n1024,25,,,0\n", COLUMNS)
    size, time = read.best()
    assert size.tolist() == [1024, 2048] and time.tolist() == pytest.approx([21e-6, 28e-6])


@pytest.mark.parametrize("text, said", [
    ("", "no line of column names"),
    (HEADER, "no line of column names"),
    ("size_bytes,time_us\n8,5\n", "lacks gpus, nodes, collective"),
    (HEADER + "size_bytes,algbw_GBps\n8,5\n", "t.csv:4: columns 'size_bytes,algbw_GBps' lack"),
    (HEADER + "size_bytes,time_us,speed\n8,5,1\n", "t.csv:4: columns"),
    (HEADER + "size_bytes,time_us,time_us\n8,5,5\n", "at most once"),
    (HEADER + COLUMNS, "no rows follow"),
    (HEADER + "size_bytes,time_us\n8,5,6\n", "t.csv:5: 3 cells, but there are 2 columns"),
    (HEADER + "size_bytes,time_us\n8,5\n16,fast\n", "t.csv:6: time_us 'fast' is no number"),
    (HEADER + "size_bytes,time_us\n8,nan\n", "t.csv:5: time_us 'nan': a number above 0"),
    (HEADER + "size_bytes,time_us\n8,0\n", "t.csv:5: time_us '0': a number above 0"),
    (HEADER + "size_bytes,time_us\n8,-1\n", "t.csv:5: time_us '-1'"),
    (HEADER + "size_bytes,time_us\n-8,1\n", "t.csv:5: size_bytes '-8': a number of 0 or more"),
    (HEADER + "size_bytes,time_us\n8.5,1\n", "t.csv:5: size_bytes '8.5': whole bytes"),
    (HEADER + "size_bytes,time_us\n1e300,1\n", "t.csv:5: size_bytes '1e300'"),
    (HEADER + "size_bytes,time_us\n,1\n", "t.csv:5: size_bytes '' is no number"),
    (HEADER + "size_bytes,time_us,in_place\n8,1,2\n", "t.csv:5: in_place 2: expected 0 or 1"),
    (HEADER + "1024,20\n", "t.csv:4: '1024,20': expected a header line"),
    (HEADER.replace("8", "many") + "size_bytes,time_us\n8,1\n", "gpus: 'many': a whole number"),
    (HEADER.replace("8", "0") + "size_bytes,time_us\n8,1\n", "gpus: '0': a whole number from 1"),
    (HEADER.replace("reduce", "most") + "size_bytes,time_us\n8,1\n", "collective 'all_most'"),
    (HEADER + "# launch: slow\nsize_bytes,time_us\n8,1\n", "launch: 'slow': one of eager, graph"),
    (HEADER + "# fit: c\nsize_bytes,time_us\n8,1\n", "fit: 'c': one of a, b"),
    (HEADER + "# grade_from: 1M\nsize_bytes,time_us\n8,1\n", "grade_from: '1M': a whole number"),
])  # fmt: skip
def test_a_bad_table_is_refused_with_its_file_and_line(text: str, said: str):
    with pytest.raises(FormatError, match=r"^t\.csv") as caught:
        table_from(text, "t.csv")
    assert said in str(caught.value)


def test_files_that_are_missing_binary_or_empty_folders_are_refused(tmp_path: Path):
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="no UTF-8 text"):
        read_table(binary)
    with pytest.raises(FormatError, match="cannot be read"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"no \*.csv there"):
        read_folder(tmp_path / "empty")


@pytest.mark.parametrize("header, grade", [
    ({"grade": "A-"}, "A-"), ({}, ""), ({"trust": "a vendor's; grade B+ above 1 MiB"}, "B+"),
    ({"trust": "a log, noisy; C"}, "C"), ({"trust": "Checked twice"}, ""),
])  # fmt: skip
def test_the_grade_is_a_key_or_stands_in_the_trust_line(header: dict[str, str], grade: str):
    assert table(**header).grade == grade


@pytest.mark.parametrize("header, launch", [
    ({"launch": "serial"}, "serial"), ({}, "eager"), ({"system": "8 GPUs (-G 1)"}, "graph"),
    ({"benchmark": "one process, -g 8"}, "serial"), ({"benchmark": "mpirun, -g 1"}, "eager"),
    ({"library": "NCCL through torch"}, "framework"), ({"benchmark": "-t 8 -w 5"}, "eager"),
])  # fmt: skip
def test_the_launch_is_a_key_or_read_off_the_flags(header: dict[str, str], launch: str):
    assert table(**header).launch == launch


# ---- what is predicted ----------------------------------------------------------------------


@pytest.mark.parametrize("library, policy", [
    ("RCCL 2.22.3, ROCm 6.3", "rccl-2.22"), ("RCCL (ROCm 6.2)", "rccl-2.22"),
    ("RCCL 2.26.6 (ROCm 7.0.2)", "rccl-2.26"), ("RCCL 2.27.7", "rccl-2.26"),
    ("RCCL of ROCm 7.1", "rccl-2.26"), ("RCCL 2.28.3, ROCm 7.12 development", "rccl-2.28"),
    ("RCCL", "rccl-2.28"), ("NCCL 2.18", "nccl-2.30"),
])  # fmt: skip
def test_the_policy_is_that_of_the_library(library: str, policy: str):
    assert policy_of(table(library=library)) == policy
    assert policy_of(table(library=library, policy="free")) == "free"


def test_a_table_of_no_known_library_needs_a_policy_and_one_of_no_machine_a_topology():
    with pytest.raises(InvalidArgument, match="--policy"):
        policy_of(table(library="Open MPI 4"))
    with pytest.raises(InvalidArgument, match="--topology"):
        Predictor().setup(table(library="NCCL"))


def test_what_is_given_wins_over_the_header():
    read = table(machine="h100-8", policy="nccl-2.30", launch="graph")
    setup = Predictor().setup(read, "mi300x-8", 2, 16, "free", "eager")
    assert setup == Setup("mi300x-8", 2, 16, "free", None, "eager")


def test_hosts_of_one_rack_are_one_node():
    rack = "# gpus: 72\n# nodes: 18\n# collective: all_reduce\n# machine: gb200-nvl72\n"
    row = "size_bytes,time_us\n8,1\n"
    two = rack.replace("72\n", "128\n", 1).replace("18", "32")
    setups = [Predictor().setup(table_from(text + "# policy: free\n" + row, "t.csv"))
              for text in (rack, two)]  # fmt: skip
    assert [(s.nodes, s.gpus) for s in setups] == [(1, 72), (2, 128)]


def test_a_machine_beside_the_table_is_found_first(tmp_path: Path):
    (tmp_path / "machines").mkdir()
    own = tmp_path / "machines" / "h100-8.yaml"
    own.write_text((ROOT / "topologies" / "h100-8.yaml").read_text())
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "# machine: h100-8\n# policy: free\nsize_bytes,time_us\n8,1\n")
    assert Predictor().setup(read_table(path)).machine == str(own)


def test_a_prediction_is_the_planners_time_for_the_same_bytes():
    read = table("1048576,34\n", machine="mi300x-8", policy="free")
    one = Predictor().judge(read)
    plan = Planner(lower(load("mi300x-8"))).plan("allreduce", MIB)
    assert one.predicted.tolist() == [plan.time]
    assert one.choices == (f"{plan.algorithm}/{plan.protocol}",)


def test_a_graph_launch_is_shorter_and_a_serial_one_longer_by_the_gpus_of_a_node():
    predictor = Predictor()
    times = {launch: predictor.judge(table(machine="mi300x-8", policy="free", launch=launch))
             for launch in ("eager", "graph", "serial")}  # fmt: skip
    eager, graph, serial = (float(one.predicted[0]) for one in times.values())
    device = DEVICES["mi300x"]
    assert eager - graph == pytest.approx(device.launch - device.graph_launch)
    assert serial - eager == pytest.approx(7 * SERIAL_LAUNCH)


def test_ranks_of_part_of_each_node_are_placed_evenly():
    read = table(machine="mi300x-8", policy="free")
    one = Predictor().judge(read, Setup("mi300x-8", 2, 8, "free"))
    fabric = lower(load("mi300x-8", nodes=2), [0, 1, 2, 3, 8, 9, 10, 11])
    assert one.predicted[0] == Planner(fabric).plan("allreduce", 1024).time
    with pytest.raises(InvalidArgument, match="as many on each node"):
        Predictor().judge(read, Setup("mi300x-8", 2, 7, "free"))
    with pytest.raises(InvalidArgument, match="has 8"):
        Predictor().judge(read, Setup("mi300x-8", 1, 9, "free"))


# ---- statistics -----------------------------------------------------------------------------


def test_statistics_are_of_the_size_of_errors_and_the_bias_of_their_sign():
    found = statistics(np.array([-0.4, -0.2, 0.1, -0.1, 0.3]))
    assert found is not None and found.count == 5
    assert (found.median, found.bias) == pytest.approx((0.2, -0.1))
    assert found.p90 == pytest.approx(0.36)
    assert statistics(np.array([])) is None


def test_a_row_counts_in_the_class_of_its_size_and_the_largest_is_the_peak():
    one = judged({8: 0.1, 64 * KIB: 0.2, MIB - 1: 0.3, MIB: 0.4, GIB: -0.2})
    assert one.errors("< 64 KiB").tolist() == pytest.approx([0.1])
    assert one.errors("64 KiB - 1 MiB").tolist() == pytest.approx([0.2, 0.3])
    assert one.errors(">= 1 MiB").tolist() == pytest.approx([0.4, -0.2])
    # Of bandwidth: 1 / (1 - 0.2) - 1.
    assert one.errors(PEAK).tolist() == pytest.approx([0.25])


def test_a_table_that_ends_below_a_mebibyte_has_no_peak():
    assert not len(judged({8: 0.1, MIB // 2: 0.1}).errors(PEAK))


def test_small_sizes_of_a_framework_and_sizes_below_the_grade_do_not_count():
    rows = {8: 9.0, 32 * KIB: 9.0, 64 * KIB: 0.1, 8 * MIB: 0.2}
    assert judged(rows, launch="framework").counts.tolist() == [False, False, True, True]
    assert judged(rows, grade_from=str(MIB)).counts.tolist() == [False, False, False, True]
    assert judged(rows).counts.all()
    assert not len(judged(rows, launch="framework").errors("< 64 KiB"))


def test_every_row_of_several_tables_counts_alike():
    both = [judged({MIB: 0.1, 2 * MIB: 0.1}), judged({MIB: 0.4})]
    found = summary(both, ">= 1 MiB")
    assert found is not None and (found.count, found.median) == (3, pytest.approx(0.1))
    assert summary(both, "< 64 KiB") is None and summary([], PEAK) is None


def test_tables_are_grouped_by_family_or_a_key_of_the_header():
    both = [judged({8: 0.1}, library="b"), judged({8: 0.1}, library="a")]
    assert [len(g) for g in grouped(both, "family").values()] == [2]
    assert list(grouped(both, "library")) == ["a", "b"] and list(grouped(both, "none")) == [""]


def test_the_worst_rows_come_first_and_only_those_that_count():
    both = [judged({8: 0.1, MIB: -0.6}, name="x"), judged({8: 5.0, MIB: 0.2}, name="y",
                                                         launch="framework")]  # fmt: skip
    lines = worst_lines(both, 2)
    assert [line.split()[0] for line in lines[1:]] == ["x", "y"]
    assert [line.split()[4] for line in lines[1:]] == ["-60.0", "+20.0"]
    assert len(table_lines(both)) == 4


# ---- bands ----------------------------------------------------------------------------------


def test_a_family_is_the_scale_up_link_and_for_several_nodes_the_network():
    assert family_of(load("mi300x-8")) == "xgmi-mi300"
    assert family_of(load("mi300x-8", nodes=2)) == "xgmi-mi300+roce"
    assert family_of(load("h100-8-x128-superpod"), 1) == "nvlink4"
    assert family_of(load("h100-8-x128-superpod")) == "nvlink4+ib"
    assert family_of(load("l40s-8")) == "pcie4-x16"


def test_every_band_is_of_a_class_and_sound():
    assert bands()
    for (family, collective, kind), found in bands().items():
        assert kind in CLASSES and 0 < found.tables <= found.rows, family
        assert 0 < found.median <= found.p90 and found.port > 0, family
        assert (family, ALL, kind) in bands() and found.collectives, family
        assert collective in (ALL, *found.collectives), family


def test_a_measured_machine_has_the_band_of_its_own_family_and_collective():
    found = band_for(load("mi300x-8"), 1, GIB, "allreduce")
    assert found is not None and found.exact
    assert (found.family, found.collective) == ("xgmi-mi300", "allreduce")
    assert "nearest" not in str(found) and "other" not in str(found)


def test_a_collective_that_was_not_measured_takes_the_others_of_its_family_and_says_so():
    found = band_for(load("mi300x-8"), 1, GIB, "alltoall")
    assert found is not None and found.exact and found.collective == ALL
    assert "of xgmi-mi300 (of other collectives: allreduce)" in str(found)


def known(*some: Band) -> dict[tuple[str, str, str], Band]:
    return {(b.family, b.collective, b.kind): b for b in some}


def one(family: str, kind: str = ">= 1 MiB", port: float = 1e9, collective: str = ALL) -> Band:
    return Band(family, True, collective, kind, 1, 15, 0.08, 0.12, port=port,
                collectives=("allreduce",))  # fmt: skip


def test_a_band_says_which_collectives_and_tables_stand_behind_it():
    own = one("nvlink4+ib", collective="allreduce")
    said = "error 8% (median), 12% (p90) on 15 sizes >= 1 MiB of 1 table of nvlink4+ib "
    assert str(own) == said + "(allreduce), as libraries choose (--policy)"
    assert "(allreduce, fitted on)" in str(replace(own, half="a"))
    assert "of 2 tables of" in str(replace(own, tables=2))
    assert "on 1 size >=" in str(replace(own, rows=1))
    assert "(allreduce), the nearest family measured, as" in str(replace(own, exact=False))
    assert "(of other collectives: allreduce)" in str(one("nvlink4+ib"))


@pytest.mark.parametrize("machine, nodes, family", [
    ("helios-72", 1, "xgmi-"), ("ualink-64", 1, "xgmi-"), ("helios-72-x8", 8, "xgmi-"),
    ("h200-8", 2, "nvlink4+ib"), ("tpu-v4-64", 1, ("xgmi-", "nvlink")), ("b300-8", 1, "nvlink5"),
])  # fmt: skip
def test_a_machine_nobody_measured_takes_the_nearest_of_as_many_nodes(machine, nodes, family):
    found = band_for(load(machine), nodes, GIB, "allreduce")
    assert found is not None and found.family.startswith(family)
    assert ("+" in found.family) == (nodes > 1)
    assert found.exact == (family_of(load(machine), nodes) == found.family)
    assert found.exact or "the nearest family measured" in str(found)


@pytest.mark.parametrize("machine, nodes", [
    ("helios-72", 1), ("ualink-64", 1), ("tpu-v4-64", 1), ("mi325x-8", 1),
])  # fmt: skip
def test_one_family_speaks_for_all_sizes_and_collectives_of_a_machine(machine, nodes):
    topology = load(machine, nodes=max(nodes, load(machine).nodes))
    found = {
        band_for(topology, nodes, size, collective).family
        for size in (8, 128 * KIB, GIB)
        for collective in ("allreduce", "alltoall", "reduce")
    }
    assert len(found) == 1 and family_of(topology, nodes) not in found


def test_a_band_of_few_sizes_is_passed_over_while_there_are_others():
    topology = load("helios-72-x8")
    for size in (8, 128 * KIB, GIB):
        found = band_for(topology, 8, size, "alltoall")
        assert found is not None and found.rows >= LEAST


def test_a_family_with_all_classes_is_preferred_to_a_nearer_one(monkeypatch: pytest.MonkeyPatch):
    near, far = one("xgmi-mi300"), [one("xgmi-mi200", kind) for kind in CLASSES]
    monkeypatch.setattr(band, "bands", lambda: known(near, *far))
    found = band_for(load("helios-72"), 1, GIB, "allreduce")
    assert found is not None and found.family == "xgmi-mi200"


def test_near_is_the_bandwidth_of_all_links_of_an_accelerator(monkeypatch: pytest.MonkeyPatch):
    link = load("mi300x-8").node.edges["gpu0", "gpu1"]["bandwidth"]
    assert port_of(load("mi300x-8")) == pytest.approx(7 * link)
    port = port_of(load("helios-72"))
    some = known(one("xgmi-mi350", port=port / 2), one("xgmi-mi300", port=port / 4))
    monkeypatch.setattr(band, "bands", lambda: some)
    found = band_for(load("helios-72"), 1, GIB, "allreduce")
    assert found is not None and found.family == "xgmi-mi350"


def test_several_nodes_say_nothing_of_one_nor_one_of_several(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(band, "bands", lambda: known(one("nvlink4+ib")))
    assert band_for(load("h200-8"), 1, GIB, "allreduce") is None
    monkeypatch.setattr(band, "bands", lambda: known(one("nvlink4")))
    assert band_for(load("h200-8", nodes=2), 2, GIB, "allreduce") is None


def test_the_network_and_the_medium_are_compared_before_ports(monkeypatch: pytest.MonkeyPatch):
    port = port_of(load("h100-8"))
    some = known(one("nvlink4+roce", port=port), one("nvlink5+ib", port=port * 2),
                 one("nvlink3+ib", port=port / 1.5), one("xgmi-mi350+ib", port=port),
                 one("xgmi-mi300"))  # fmt: skip
    monkeypatch.setattr(band, "bands", lambda: some)
    found = band_for(load("h100-8", nodes=2), 2, GIB, "allreduce")  # nvlink4+ib
    assert found is not None and not found.exact and found.family == "nvlink3+ib"
    assert band_for(load("h100-8"), 1, 8, "allreduce") is None  # no band of small sizes
    alone = band_for(load("h100-8"), 1, GIB, "allreduce")
    assert alone is not None and alone.family == "xgmi-mi300"


def test_a_network_alike_and_the_same_medium_win_over_the_same_network(
    monkeypatch: pytest.MonkeyPatch,
):
    some = known(one("nvlink4+efa"), one("xgmi-mi350+roce"), one("nvlink4+ib"))
    monkeypatch.setattr(band, "bands", lambda: some)
    topology = load("h100-8", nodes=2)
    for nic in [n for n, data in topology.node.nodes(data=True) if "port" in data]:
        topology.node.nodes[nic]["port"] = LINKS["roce-400g"]
    assert family_of(topology, 2) == "nvlink4+roce"
    assert band_for(topology, 2, GIB, "allreduce").family == "nvlink4+efa"


def test_every_size_has_a_class():
    assert [class_of(s) for s in (0, 64 * KIB - 1, 64 * KIB, MIB, 1 << 60)] == [
        "< 64 KiB", "< 64 KiB", "64 KiB - 1 MiB", ">= 1 MiB", ">= 1 MiB"]  # fmt: skip


def test_bands_are_of_the_reported_half_where_it_has_rows(tmp_path: Path):
    pair = [judged({MIB: 0.1, 8: 0.4}, fit="a"), judged({MIB: 0.3}, fit="b")]
    (tmp_path / "b.csv").write_text(bands_text(pair))
    found = bands(tmp_path / "b.csv")
    for which in ("allreduce", ALL):
        large, small = (found["xgmi-mi300", which, kind] for kind in (">= 1 MiB", "< 64 KiB"))
        assert (large.median, large.half, large.tables) == (0.3, "b", 1)
        assert (small.median, small.half, small.tables) == (0.4, "a", 1)


def test_bands_are_by_collective_and_of_all(tmp_path: Path):
    pair = [judged({MIB: 0.1}, fit="b"), judged({MIB: 0.3}, fit="b"),
            judged({MIB: 0.7}, fit="a", collective="alltoall")]  # fmt: skip
    (tmp_path / "b.csv").write_text(bands_text(pair))
    found = bands(tmp_path / "b.csv")
    assert found["xgmi-mi300", "allreduce", ">= 1 MiB"].median == 0.2
    assert found["xgmi-mi300", "alltoall", ">= 1 MiB"].half == "a"
    both = found["xgmi-mi300", ALL, ">= 1 MiB"]
    # Alltoall was only fitted on, so it is no part of what half b says.
    assert (both.tables, both.rows, both.collectives) == (2, 2, ("allreduce",))


def test_a_table_of_bands_that_lacks_a_column_is_refused(tmp_path: Path):
    path = tmp_path / "b.csv"
    path.write_text("family,class,median,p90\nnvlink4,>= 1 MiB,0.1,0.2\n")
    with pytest.raises(FormatError, match=r"b\.csv: row"):
        bands(path)


def test_plan_s_json_has_the_band_of_its_collective(capsys):
    arguments = ["allreduce", "--topology", "mi300x-8", "--size", "1M", "--json"]
    assert plan_main(arguments) == 0
    (told,) = json.loads(capsys.readouterr().out)
    (row,) = [r for r in csv.DictReader(TABLE.read_text().splitlines()[1:])
              if (r["family"], r["collective"], r["class"])
              == ("xgmi-mi300", "allreduce", ">= 1 MiB")]  # fmt: skip
    found = told["error_band"]
    assert found["collective"] == "allreduce" and found["collectives"] == ["allreduce"]
    assert [found["tables"], found["rows"]] == [int(row["tables"]), int(row["rows"])]
    assert found["half"] == row["half"] and found["exact"] is True


# ---- the command ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tables of grade A, one of each half, and one of grade C."""
    for name, more in (("one", "grade: A\n# fit: a"), ("two", "grade: A-\n# fit: b"),
                       ("odd", "grade: C\n# fit: b")):  # fmt: skip
        text = f"{HEADER}# machine: mi300x-8\n# policy: free\n# {more}\n{COLUMNS}"
        (tmp_path / f"{name}.csv").write_text(
            f"{text}1024,14,0.07,0.13,0\n16777216,130,129,226,0\n"
        )
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("rccl-validate: ") and said.count("\n") == 1
    return said


def test_a_folder_is_judged_by_grade_a_and_summed_by_halves(folder, capsys):
    out = printed(capsys, str(folder))
    assert "\none " in out and "\ntwo " in out and "\nodd " not in out
    assert "half a" in out and "half b" in out and "2 table(s), 4 sizes" in out
    assert "\nodd " in printed(capsys, str(folder), "--grade", "C")
    assert "\none " not in printed(capsys, str(folder / "two.csv"), str(folder), "--half", "b")


def test_a_file_is_judged_whatever_its_grade_and_row_by_row(folder, capsys):
    out = printed(capsys, str(folder / "odd.csv"))
    assert "allreduce on mi300x-8 1x8, free, eager launch, xgmi-mi300" in out
    assert "16777216" in out and "MISSED" not in out


def test_json_holds_every_row_and_the_summary(folder, capsys):
    document = json.loads(printed(capsys, str(folder), "--json"))
    assert set(document) == {"summary", "tables", "seconds"}
    rows = document["tables"][0]["rows"]
    assert [row["size"] for row in rows] == [1024, 16 * MIB]
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1, abs=1e-4)
    peaks = [s for s in document["summary"] if s["class"] == PEAK and s["half"] == "all"]
    assert peaks[0]["tables"] == "all" and peaks[0]["count"] == 2


def test_a_table_with_three_keys_and_two_columns_needs_only_the_command_line(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text("gpus: 16\nnodes: 2\ncollective: alltoall\nsize_bytes,time_us\n1048576,90\n")
    out = printed(capsys, str(path), "--topology", "h100-8", "--policy", "nccl-2.30")
    assert "alltoall on h100-8 2x8, nccl-2.30" in out
    out = printed(capsys, str(path), "--topology", "h100-8", "--policy", "free", "--nodes", "1",
                  "--gpus", "4")  # fmt: skip
    assert "alltoall on h100-8 1x4, free" in out
    assert "--topology" in refused(capsys, str(path), "--policy", "nccl-2.30")
    assert "--policy" in refused(capsys, str(path), "--topology", "h100-8")


def test_groups_bands_and_rows_are_printed_when_asked_for(folder, capsys):
    assert "# machine" in printed(capsys, str(folder), "--by", "machine")
    assert BAND_COLUMNS in printed(capsys, str(folder), "--bands")
    assert printed(capsys, str(folder), "--rows").count("chosen") == 2


def test_every_failure_is_one_line(folder, tmp_path, capsys):
    assert "cannot be read" in refused(capsys, str(tmp_path / "no.csv"))
    assert "leave all out" in refused(capsys, str(folder / "one.csv"), "--half", "b")
    assert "known" in refused(capsys, str(folder), "--topology", "h100-9")
    assert "h100-8, which has 8" in refused(capsys, str(folder), "--topology", "h100-8", "-g", "9")


def test_an_unknown_policy_is_refused_and_names_those_there_are(folder, capsys):
    said = refused(capsys, str(folder), "--policy", "nccl-9")
    assert "nccl-9" in said and "nccl-2.30" in said


def test_the_default_is_the_folder_of_the_checkout(capsys, monkeypatch):
    monkeypatch.setattr("rccl_py.cli.validate.__file__", "/nowhere/rccl_py/cli/validate.py")
    assert "bench/measured" in refused(capsys)


def test_a_picture_is_drawn(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "errors.png"
    printed(capsys, str(folder), "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_says_what_to_install(monkeypatch):
    from rccl_py.report.draw_errors import draw_errors

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidUsage, match=r"pip install rccl_py\[plot\]"):
        draw_errors([judged({8: 0.1})])


def test_the_page_shows_the_errors_of_today():
    path = ROOT / "docs" / "tables_validation.py"
    spec = importlib.util.spec_from_file_location("tables_validation", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    shown = made.PAGE.read_text(encoding="utf-8")
    assert made.page(shown) == shown, "docs/validation.md is out of date: make docs"
