"""Texts with units become SI numbers, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.errors import InvalidArgument
from rccl_py.units import (
    format_bandwidth,
    format_size,
    format_time,
    parse_bandwidth,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(("text", "size"), [
    ("8", 8), (0, 0), ("64K", 65536), ("64KB", 65536), ("64kib", 65536), ("1.5M", 1572864),
    ("8G", 8 << 30), (" 2 T ", 2 << 40), ("1e3", 1000), ("9007199254740993", 9007199254740993),
])  # fmt: skip
def test_sizes_are_powers_of_1024_as_rccl_tests_reads_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "-8K", "1.5", "8X", "K", "0x10", "1,5", "nan", "inf"]
)
def test_a_size_that_is_none_is_refused_and_quoted(text):
    with pytest.raises(InvalidArgument, match=r"size .*: |size .* is "):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_a_size_survives_the_way_to_text_and_back(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(("text", "rate"), [
    ("800Gb/s", 1e11), ("46.5GB/s", 4.65e10), ("200Gbps", 2.5e10), ("1TB/s", 1e12), ("8b/s", 1.0),
])  # fmt: skip
def test_bandwidths_tell_bits_from_bytes(text, rate):
    assert parse_bandwidth(text) == pytest.approx(rate)


@pytest.mark.parametrize(("text", "seconds"), [("2us", 2e-6), ("150 ns", 1.5e-7), ("0.5s", 0.5)])
def test_times_are_seconds(text, seconds):
    assert parse_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize("read", [parse_bandwidth, parse_time])
@pytest.mark.parametrize("text", ["", "5", "-1us", "1GB", "fast", None])
def test_a_quantity_without_a_unit_is_refused_with_an_example(read, text):
    with pytest.raises(InvalidArgument, match="expected a text such as"):
        read(text)


def test_numbers_are_written_in_the_unit_that_suits():
    assert [format_time(t) for t in (1.28e-5, 2.0, 3e-9)] == ["12.8 us", "2 s", "3 ns"]
    assert [format_bandwidth(r) for r in (4.65e10, 2.6066e12, 1.2e14)] == [
        "46.5 GB/s", "2606.6 GB/s", "120 TB/s"]  # fmt: skip
    assert [format_size(s) for s in (1 << 20, 1000, 0)] == ["1M", "1000", "0"]
