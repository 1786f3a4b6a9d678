"""Rates and sizes: the unit decides, bits are never bytes, and what is echoed reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3_shaper.rates import (
    MAX_BITS_PER_SECOND,
    Rate,
    RateError,
    SizeError,
    parse_rate,
    parse_size,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("8bit", 8),
        ("200mbit", 200_000_000),
        ("1.5gbit", 1_500_000_000),
        ("1500Mbit", 1_500_000_000),
        ("10 Gbit/s", 10_000_000_000),
        ("64kibit", 65_536),
        ("0.5mbit", 500_000),
        ("400gbit", 400_000_000_000),
    ],
)
def test_a_rate_is_in_bits_a_second(text: str, bits: int) -> None:
    rate = parse_rate(text)
    assert rate.bits_per_second == bits
    assert rate.bytes_per_second == bits // 8


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("200", "200mbit"),
        ("200mbps", "kbit, mbit or gbit"),
        ("25MB", "kbit, mbit or gbit"),
        ("25MB/s", "kbit, mbit or gbit"),
        ("fast", "like 200mbit"),
        ("-5mbit", "like 200mbit"),
        ("1e9bit", "like 200mbit"),
        ("", "like 200mbit"),
        ("0mbit", "8bit to 10tbit"),
        ("100tbit", "8bit to 10tbit"),
    ],
)
def test_what_is_no_rate_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(RateError, match=advice):
        parse_rate(text)


@settings(deadline=None)
@given(st.integers(8, MAX_BITS_PER_SECOND))
def test_the_echo_of_a_rate_is_exact(bits: int) -> None:
    assert parse_rate(str(Rate(bits))) == Rate(bits)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (200_000_000, "200mbit"),
        (1_500_000_000, "1.5gbit"),
        (12_345_678, "12.345678mbit"),
        (8, "8bit"),
        (1_000_000_000_000, "1tbit"),
    ],
)
def test_the_echo_of_a_rate_is_short(bits: int, text: str) -> None:
    assert str(Rate(bits)) == text


def test_a_share_is_whole_bytes_and_never_more() -> None:
    rate = parse_rate("200mbit")
    assert rate.share(0.1).bits_per_second <= 20_000_000
    assert rate.share(0.1).bits_per_second >= 20_000_000 - 8
    assert Rate(8).share(0.001) == Rate(8)
    assert Rate(15).whole_bytes() == Rate(8)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1500B", 1500),
        ("256KB", 256_000),
        ("256kb", 256_000),
        ("256KiB", 262_144),
        ("1.25MB", 1_250_000),
        ("4MiB", 4 << 20),
    ],
)
def test_a_size_is_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["256", "256kbit", "0B", "0.5B", "KB", "-1KB", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SizeError):
        parse_size(text)


@settings(deadline=None)
@given(st.integers(1, 2**50))
def test_the_echo_of_a_size_is_exact(size: int) -> None:
    assert parse_size(size_text(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(256_000, "256KB"), (262_144, "256KiB"), (4 << 20, "4MiB"), (1500, "1.5KB")]
)
def test_the_echo_of_a_size_is_short(size: int, text: str) -> None:
    assert size_text(size) == text
