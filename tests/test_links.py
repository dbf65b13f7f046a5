"""Rows of links, switches, devices and registrations; the page that shows them; first touches."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.errors import InvalidArgument
from rccl_py.framing import UNFRAMED
from rccl_py.links import (
    DEVICES,
    LINKS,
    REGISTRATIONS,
    SOURCES,
    SWITCHES,
    Device,
    LinkType,
    first_call,
    first_touch,
    registration,
)

DOCS = Path(__file__).parents[1] / "docs"
GB = 1e9

each_link = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
each_device = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)


# ---- rows -----------------------------------------------------------------------------------


@each_link
def test_a_link_is_raw_times_framing_times_a_remainder_that_says_who_measured_it(link: LinkType):
    assert link.usable == pytest.approx(link.bandwidth * link.framing.efficiency * link.remainder)
    assert 0 < link.remainder <= 1 + 1e-9 and 0 < link.efficiency <= 1
    assert link.remainder == pytest.approx(1) or link.remainder_source


@each_link
def test_every_figure_of_a_link_is_in_range_and_has_a_source(link: LinkType):
    assert LINKS[link.name] is link and link.source and link.hop_source
    assert 1e9 <= link.bandwidth <= 1e12
    assert all(0 < t < 1e-4 for t in link.latency) and 0 <= link.message < 1e-5
    assert 0 <= link.hop < 1e-5 and 1 <= link.replay_slowdown < 1.0001


@each_link
def test_what_a_collective_gets_of_a_link_is_in_range(link: LinkType):
    assert all(0 < part <= 1 for part in link.parts) and 0 < link.spread <= 1
    assert 0 <= link.window < 1 << 26
    assert 0 <= link.multicast <= 1 and (link.multicast == 0 or link.coherent)


@each_link
def test_a_byte_takes_its_flags_and_what_its_protocol_leaves_of_a_link(link: LinkType):
    carried = 4 / 8, 120 / 128, 1.0  # data of what is sent: LL's words, LL128's lines, all
    assert [wire * part for wire, part in zip(link.wire, link.parts)] == pytest.approx(
        [1 / c for c in carried])  # fmt: skip
    half = replace(link, parts=tuple(part / 2 for part in link.parts))
    assert half.wire == pytest.approx([2 * wire for wire in link.wire])


def test_only_nvlink_from_the_fourth_on_has_switches_that_add_up():
    assert {name for name, link in LINKS.items() if link.multicast} >= {"nvlink4", "nvlink5"}
    assert not any(link.multicast for name, link in LINKS.items()
                   if link.medium != "nvlink" or name in ("nvlink1", "nvlink2", "nvlink3")
                   )  # fmt: skip


@pytest.mark.parametrize("text", [
    *(link.source for link in LINKS.values()), *(link.remainder_source for link in LINKS.values()),
    *(d.source for d in DEVICES.values()), *(s.source for s in SWITCHES.values()),
    *(r.source for r in REGISTRATIONS.values()),
])  # fmt: skip
def test_a_row_cites_sources_that_the_table_of_sources_explains(text):
    # Letters stand alone, in capitals; TB, CU and the like are words.
    cited = set(re.findall(r"(?<![\w-])([A-Z]{1,2})(?![\w-])", text)) - {"TB", "US", "GB", "CU"}
    assert cited <= set(SOURCES), cited - set(SOURCES)


# What copies were measured to carry, in GB/s: the calibration must not move by more than 2 %.
MEASURED = {
    "xgmi-mi100": 36, "xgmi-mi200": 37.5, "xgmi-mi200-package": 35.55, "xgmi-mi300a": 51.8,
    "nvlink1": 18, "pcie3-x16": 12, "pcie4-x16": 25.2, "pcie5-x16": 52.9,
    "pcie6-x16": 104, "ualink-200g": 23.25,
}  # fmt: skip
# Those fitted together with windows, hops and copies, so that whole tables come out right: a copy,
# or busbw at the largest sizes, which holds what the rest costs too.
NEAR = {
    "xgmi-mi300": 46.55, "xgmi-mi350": 58, "xgmi-mi350x": 52.5, "nvlink2": 22.45, "nvlink3": 18.75,
    "nvlink4": 20.25, "nvlink5": 37.5, "roce-400g": 45.5,
}  # fmt: skip


@pytest.mark.parametrize("name, gigabytes", MEASURED.items())
def test_a_measured_link_is_as_fast_as_it_was_measured(name, gigabytes):
    assert LINKS[name].usable / GB == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize("name, gigabytes", NEAR.items())
def test_a_fitted_link_is_near_what_was_measured_on_it(name, gigabytes):
    assert LINKS[name].usable / GB == pytest.approx(gigabytes, rel=0.12)


@pytest.mark.parametrize("device, links, gigabytes", [
    ("v100", 6, 150), ("a100", 12, 300), ("h100", 18, 450), ("h200", 18, 450), ("h800", 8, 200),
    ("b200", 18, 900), ("gb300", 18, 900), ("mi300x", 7, 448), ("mi325x", 7, 448),
    ("mi355x", 7, 537.6), ("mi350x", 7, 537.6), ("mi455x", 72, 1800), ("tpu-v5p", 6, 600),
])  # fmt: skip
def test_a_device_has_the_scale_up_rate_of_its_data_sheet(device, links, gigabytes):
    assert LINKS[DEVICES[device].scale_up].bandwidth * links / GB == pytest.approx(gigabytes)


def test_rubins_36_links_carry_1800_gigabytes():
    assert LINKS["nvlink6"].bandwidth * 36 == 1800 * GB


def test_a_ualink_station_is_four_lanes():
    station, lane = LINKS["ualink-station-800g"], LINKS["ualink-200g"]
    assert station.bandwidth == 4 * lane.bandwidth and station.usable == 4 * lane.usable
    assert LINKS["ualoe-200g"].usable < lane.usable


@each_device
def test_every_figure_of_a_device_is_in_range_and_has_a_source(device: Device):
    assert DEVICES[device.name] is device and device.source and device.scale_up in LINKS
    assert 0 < device.graph_launch <= device.launch < 1e-3
    # A copy within memory reads and writes; a channel is a part of the kernel that does it.
    assert 0 < device.copy_rate <= (device.peak or device.memory) / 2
    assert all(0 <= rate <= device.copy_rate for rate in device.per_channel)
    assert 0 < device.reduction_rate < device.memory
    assert not device.peak or 0.5 < device.memory / device.peak <= 1
    assert device.engines >= 0 and device.page >= 4096 and device.page & (device.page - 1) == 0


def test_a_graph_launch_on_mi300x_saves_what_was_measured():
    saved = DEVICES["mi300x"].launch - DEVICES["mi300x"].graph_launch
    assert saved == pytest.approx(5.5e-6, abs=1e-6)  # A; both launches are fitted


@pytest.mark.parametrize("arch, name", [
    ("90", "h100"), ("100", "b200"), ("103", "b300"), ("89", "l40s"), ("gfx942", "mi300x"),
    ("gfx950", "mi355x"), ("gfx90a", "mi250x"),
])  # fmt: skip
def test_the_usual_machine_of_an_arch_stands_where_file_readers_look(arch, name):
    rows = [d.name for d in DEVICES.values() if d.arch == arch]
    assert name == rows[-1 if arch.isdigit() else 0]


# ---- what others build on -------------------------------------------------------------------


def test_a_link_of_a_file_needs_no_more_than_seven_figures():
    own = LinkType("mine", "ualink", 100 * GB, 0.9, (1e-6, 1e-6, 1e-6), 0.0, "me")
    assert own.framing is UNFRAMED and own.remainder == 0.9 and own.usable == 90 * GB
    assert own.coherent and own.hop == 0 and own.replay_slowdown == pytest.approx(1)


def test_a_device_of_a_file_needs_no_more_than_seven_figures():
    own = Device("mine", "Mine", "", 4e-6, 3e12, "", "me")
    assert own.reduction_rate == 1e12 and own.graph_launch == 1e-6 and own.p2p


def test_a_link_given_another_rate_keeps_its_parts():
    half = replace(LINKS["roce-400g"], name="roce-200g-half", bandwidth=25 * GB)
    assert half.remainder == LINKS["roce-400g"].remainder
    assert half.usable == LINKS["roce-400g"].usable / 2
    assert {f.name for f in fields(half)} >= {"framing", "hop", "replay", "error_rate"}


def test_a_row_is_compared_and_hashed_by_its_figures():
    assert replace(LINKS["nvlink4"]) == LINKS["nvlink4"] and len(set(LINKS.values())) == len(LINKS)


@pytest.mark.parametrize("medium, coherent", [
    ("xgmi", True), ("nvlink", True), ("ualink", True), ("c2c", True), ("pci", False),
    ("net", False), ("cpu", False), ("ici", False),
])  # fmt: skip
def test_peers_are_reached_by_loads_and_stores_over_scale_up_links_only(medium, coherent):
    rows = [link for link in LINKS.values() if link.medium == medium]
    assert rows and all(link.coherent is coherent for link in rows)


# ---- first touch ----------------------------------------------------------------------------

MI300X, H100, GEFORCE = DEVICES["mi300x"], DEVICES["h100"], DEVICES["rtx4090"]


def test_no_buffer_costs_nothing():
    assert first_touch(MI300X, LINKS["roce-400g"], 0) == 0


def test_a_first_touch_is_a_call_its_pages_and_their_walks():
    how = REGISTRATIONS["peer"]
    found = first_touch(MI300X, LINKS["xgmi-mi300"], 1 << 30)
    assert found == pytest.approx(how.call + 512 * how.per_page + 16 * how.walk)


def test_a_nic_knows_gpu_memory_in_small_pages_only():
    nic, peer = (first_touch(H100, LINKS[name], 1 << 30) for name in ("ib-400g", "nvlink4"))
    assert nic > 5 * peer


def test_host_pages_cost_what_was_measured_to_register_them():
    # 1.5 TiB: 242 s in 4 KiB pages, 98 s in 2 MiB pages (ROCm/mori 679); here without walks.
    how, size = REGISTRATIONS["host"], 1.5 * 2**40
    assert size / how.rate + size / 4096 * how.per_page == pytest.approx(242, rel=0.02)
    assert size / how.rate + size / 2**21 * how.per_page == pytest.approx(98, rel=0.02)


def test_without_peer_to_peer_a_buffer_is_pinned_in_host_memory():
    pcie, size = LINKS["pcie4-x16"], 64 << 20
    assert first_touch(GEFORCE, pcie, size) > 10 * first_touch(DEVICES["l40s"], pcie, size)
    assert not registration(GEFORCE, pcie).zero_copy
    assert registration(DEVICES["l40s"], pcie).zero_copy


def test_a_bounce_buffer_is_pinned_whole_at_most():
    pcie = LINKS["pcie4-x16"]
    assert first_touch(GEFORCE, pcie, 64 << 20) == first_touch(GEFORCE, pcie, 1 << 30)


@given(st.sampled_from(sorted(LINKS)), st.sampled_from(sorted(DEVICES)), st.integers(0, 1 << 40),
       st.integers(0, 1 << 40))  # fmt: skip
def test_a_larger_buffer_never_costs_less(link, device, first, second):
    small, large = sorted((first, second))
    costs = [first_touch(DEVICES[device], LINKS[link], n) for n in (small, large)]
    assert 0 <= costs[0] <= costs[1] < math.inf


@given(st.integers(1, 1 << 36), st.integers(12, 30))
def test_larger_pages_never_cost_more(size, bits):
    link = LINKS["xgmi-mi300"]
    costs = [first_touch(MI300X, link, size, page=1 << b) for b in (bits, bits + 1)]
    assert costs[0] >= costs[1]


@pytest.mark.parametrize("nbytes, page", [
    (-1, None), (math.nan, None), (math.inf, None), (1, 0), (1, 4095), (1, 2048), (1, 12288),
    (1, -4096), (1, 4096.0), (1, "4K"),
])  # fmt: skip
def test_a_size_or_page_that_cannot_be_is_one_clear_error(nbytes, page):
    with pytest.raises(InvalidArgument) as caught:
        first_touch(MI300X, LINKS["xgmi-mi300"], nbytes, page=page)
    assert "expected" in str(caught.value) and "\n" not in str(caught.value)


def test_every_peer_opens_a_buffer_but_a_nic_learns_of_it_once():
    near, far, size = LINKS["xgmi-mi300"], LINKS["roce-400g"], 1 << 28
    found = first_call(MI300X, {near: 7, far: 120}, size)
    assert found == pytest.approx(
        7 * first_touch(MI300X, near, size) + first_touch(MI300X, far, size)
    )
    assert first_call(MI300X, {near: 0, far: 0}, size) == first_call(MI300X, {}, size) == 0


def test_fewer_than_no_peers_is_an_error():
    with pytest.raises(InvalidArgument, match="peers over xgmi-mi300 -1: expected 0"):
        first_call(MI300X, {LINKS["xgmi-mi300"]: -1}, 1)


# ---- the page -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_shows_the_figures_of_today(tables):
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.page(text) == text, "python docs/tables.py > links.md; mv links.md docs/links.md"


def cell(page: str, row: str, column: str) -> str:
    """Return one cell of the table of `page` that has this row and this column."""
    heads: list[str] = []
    for line in page.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not heads:
            heads = cells
        elif cells and cells[0] == f"`{row}`" and column in heads:
            return cells[heads.index(column)]
        heads = heads if cells else []
    raise AssertionError((row, column))


def test_the_page_shows_what_a_collective_gets_only_where_that_is_said(tables, monkeypatch):
    plain = replace(LINKS["nvlink4"], parts=(1.0, 1.0, 1.0), spread=1.0, window=0.0, multicast=0.0)
    said = replace(plain, parts=(0.25, 0.5, 0.75), spread=0.875, window=3 << 18, multicast=0.625)
    shown = "part: LL / LL128 / Simple", "to many", "window KiB", "multicast"
    for link, wanted in (
        (plain, ["-"] * 4),
        (said, ["0.25 / 0.5 / 0.75", "0.875", "768", "0.625"]),
    ):
        monkeypatch.setitem(tables.LINKS, "nvlink4", link)
        assert [cell(tables.links(), "nvlink4", column) for column in shown] == wanted
    shown = "kernel copy GB/s", "channel GB/s: LL / LL128 / Simple"
    for copy, rates, wanted in ((0.0, (0.0, 0.0, 0.0), ["-", "-"]),
                                (1.5e12, (1e10, 2e10, 2.5e10), ["1500", "10 / 20 / 25"])
                                ):  # fmt: skip
        device = replace(DEVICES["h100"], copy=copy, per_channel=rates)
        monkeypatch.setitem(tables.DEVICES, "h100", device)
        assert [cell(tables.devices(), "h100", column) for column in shown] == wanted


def test_every_source_is_cited(tables):
    prose, _, _ = tables.PAGE.read_text(encoding="utf-8").partition("## Sources")
    cited = set(re.findall(r"(?<![\w-])([A-Z]{1,2})(?![\w-])", prose))
    assert set(SOURCES) <= cited, set(SOURCES) - cited


def test_the_page_has_every_table_once(tables):
    text = tables.PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- table (\w+) -->", text)) == sorted(tables.TABLES)
    assert text.count("<!-- end -->") == len(tables.TABLES)
