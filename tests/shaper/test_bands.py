"""The band table: what may be a mark, and what it looks like in a header."""

from __future__ import annotations

import pytest

from p3_shaper.bands import DEFAULT_DSCPS, BandError, BandTable, default_table, table_of


def test_the_default_table_is_the_design_s() -> None:
    table = default_table()
    assert table.dscps == (41, 39, 23, 17, 15, 9, 7)
    assert [band.index for band in table.bands] == list(range(7))
    assert table.unmarked_share == 0.1
    assert len(table) == 7


def test_a_mark_leaves_the_ecn_bits_clear() -> None:
    assert [band.tos for band in default_table().bands] == [dscp << 2 for dscp in DEFAULT_DSCPS]
    assert not any(band.tos & 3 for band in default_table().bands)


def test_default_marks_are_neutral_and_ordered_for_hosts_and_switches_without_an_agent() -> None:
    """Low bits 1 and 7 give sk_priority 0 and 4, which share a band of pfifo_fast; see rfc2474."""
    assert all(dscp & 7 in (1, 7) for dscp in DEFAULT_DSCPS)
    selectors = [dscp >> 3 for dscp in DEFAULT_DSCPS]
    assert selectors == sorted(selectors, reverse=True)


def test_fewer_bands_are_the_most_urgent_ones() -> None:
    assert default_table(3).dscps == (41, 39, 23)
    assert table_of((9, 7), 1).dscps == (9,)


@pytest.mark.parametrize(
    ("dscps", "reason"),
    [
        ((), "0 bands"),
        (tuple(range(1, 18)), "17 bands"),
        ((0,), "unmarked"),
        ((64,), "not in 1..63"),
        ((9, 9), "already band 0's"),
        ((46,), "voice"),
        ((48,), "network control"),
        ((26,), "flow control"),
    ],
)
def test_a_table_that_cannot_work_is_refused(dscps: tuple[int, ...], reason: str) -> None:
    with pytest.raises(BandError, match=reason):
        BandTable(dscps)


def test_a_risky_mark_can_be_forced() -> None:
    assert BandTable((46, 0x1A), force=True).dscps == (46, 26)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_the_unmarked_share_is_a_part(share: float) -> None:
    with pytest.raises(BandError, match=r"like 0\.1"):
        BandTable(unmarked_share=share)


@pytest.mark.parametrize("bands", [0, 8])
def test_more_bands_than_marks_are_refused(bands: int) -> None:
    with pytest.raises(BandError, match="name more DSCPs"):
        default_table(bands)
