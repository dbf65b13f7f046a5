"""Efficiencies are sums of header bytes: checked against the figures specifications state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.errors import InvalidArgument
from rccl_py.framing import (
    FRAMINGS,
    UNFRAMED,
    infiniband,
    nvlink,
    pcie,
    replay_slowdown,
    roce,
    slingshot,
    tcp,
    ualink,
    ualoe,
    uet,
    xgmi,
)

every = pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)


def test_ualink_reaches_the_93_percent_that_the_consortium_states():
    found = ualink()
    assert found.payload / (found.payload + found.overhead) == pytest.approx(0.9524, abs=5e-5)
    assert found.efficiency == pytest.approx(0.93, abs=0.005)
    assert found.coding == 628 / 640


def test_five_ualink_writes_and_their_responses_fill_21_flits():
    # The specification's largest example (5.4.4): 1280 B of data in 1344 B.
    assert 5 * (256 + ualink().overhead) == pytest.approx(21 * 64)


@pytest.mark.parametrize("framing, nominal, signalled", [
    (ualink(), 200, 212.5), (ualink(gigabits=100), 100, 106.25), (roce(), 400, 425),
    (infiniband(forward_correction=False), 100, 103.125), (pcie(5), 63.0154, 64),
    (pcie(6), 121, 128), (ualink(gigabits=128), 128, 128),
])  # fmt: skip
def test_a_stated_rate_is_what_its_line_code_leaves_of_the_signalling_rate(
    framing, nominal, signalled
):
    assert framing.signalling(nominal) == pytest.approx(signalled, rel=1e-5)


@pytest.mark.parametrize("framing, percent", [
    (roce(4096), 98.04), (roce(2048), 96.15), (roce(1024), 92.59), (uet(4096), 97.11),
    (infiniband(4096), 99.37), (tcp(), 94.15), (nvlink(), 88.89), (nvlink(both_ways=False), 94.12),
    (nvlink(64, both_ways=False), 80.0), (pcie(5, 128), 84.21), (pcie(5, 256), 91.43),
    (pcie(5, 512), 95.52), (pcie(6), 91.78), (xgmi(), 84.21), (ualoe(), 92.32), (UNFRAMED, 100),
])  # fmt: skip
def test_a_framing_leaves_what_its_headers_do_not_take(framing, percent):
    assert framing.efficiency * 100 == pytest.approx(percent, abs=0.005)


@every
def test_every_framing_leaves_something_but_never_more_than_all(framing):
    assert 0.5 < framing.efficiency <= 1 and framing.overhead >= 0
    assert framing.name in FRAMINGS and framing.source and framing.describe()


@every
@given(size=st.integers(0, 1 << 40))
def test_what_a_message_takes_is_never_less_than_its_share_of_a_long_one(framing, size):
    assert framing.wire(size) >= size / framing.efficiency * (1 - 1e-12)


@every
def test_a_long_message_takes_what_the_efficiency_says(framing):
    size = framing.payload * 1e6
    assert framing.wire(size) * framing.efficiency == pytest.approx(size, rel=1e-5)


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_a_longer_message_never_takes_less(first, second):
    small, large = sorted((first, second))
    assert roce().wire(small) <= roce().wire(large)


def test_only_the_first_packet_of_a_write_carries_where_it_goes():
    one, two = roce(1024).wire(1024), roce(1024).wire(2048)
    assert one == 1024 + 82 + 16 and two == 2 * (1024 + 82) + 16


def test_a_message_without_data_is_one_empty_packet():
    assert roce().wire(0) == 98 and ualink().wire(0) == pytest.approx(12.8 * 640 / 628)


def test_a_trimmed_packet_still_costs_its_headers_and_at_least_a_small_frame():
    assert uet().trimmed() == 122 and xgmi().trimmed() == 84


@pytest.mark.parametrize("make, wider", [
    (ualink, [64, 128, 192, 256]), (roce, [256, 512, 1024, 2048, 4096]), (nvlink, [16, 128, 256]),
    (lambda n: pcie(4, n), [128, 256, 512]), (slingshot, [64, 2048]), (uet, [1024, 4096, 8192]),
])  # fmt: skip
def test_larger_packets_leave_more(make, wider):
    found = [make(n).efficiency for n in wider]
    assert found == sorted(found) and len(set(found)) == len(found)


def test_uncompressed_requests_take_twice_the_control_bytes():
    assert ualink(compressed=False).overhead == 2 * ualink().overhead


def test_packing_more_transactions_into_a_frame_leaves_more():
    assert ualoe(packed=1).efficiency < ualoe(packed=4).efficiency < ualink().efficiency


@pytest.mark.parametrize("make", [
    lambda: ualink(100), lambda: ualink(gigabits=400), lambda: ualoe(packed=0), lambda: roce(1500),
    lambda: uet(0), lambda: tcp(100), lambda: infiniband(-1), lambda: pcie(7), lambda: pcie(5, 100),
    lambda: nvlink(0), lambda: nvlink(272), lambda: xgmi(65), lambda: slingshot(0),
    lambda: roce().wire(-1), lambda: roce().wire(math.nan), lambda: roce().wire(math.inf),
    lambda: replay_slowdown(0, 640, 0, 0), lambda: replay_slowdown(1e9, 640, 1, 0),
    lambda: replay_slowdown(1e9, 640, -1e-9, 0), lambda: replay_slowdown(1e9, 640, math.nan, 0),
])  # fmt: skip
def test_what_no_such_link_has_is_one_clear_error(make):
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---- replay ---------------------------------------------------------------------------------


def test_without_errors_nothing_is_sent_again():
    assert replay_slowdown(100e9, 640, 0.0, 0.4e-6) == 1


def test_few_errors_cost_a_round_trip_each():
    # 8e11 bits a second, one in 1e12 bad: 0.8 round trips a second.
    found = replay_slowdown(100e9, 640, 1e-12, 0.4e-6)
    assert found - 1 == pytest.approx(0.8 * 0.4e-6, rel=1e-6)


def test_errors_in_every_unit_stop_the_link():
    assert replay_slowdown(100e9, 640, 0.99, 0.4e-6) == math.inf


@given(st.floats(0, 1e-4), st.floats(0, 1e-4))
def test_more_errors_never_make_a_link_faster(first, second):
    few, many = sorted((first, second))
    assert 1 <= replay_slowdown(1e11, 640, few, 4e-7) <= replay_slowdown(1e11, 640, many, 4e-7)
