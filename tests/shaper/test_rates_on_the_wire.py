"""iperf3's flows at the rates that links have, in shares of what the kernel counts.

At 10 Gbit/s two cores that others use too cannot always keep the link busy: what is reached there
is scripts/bench_shaper's to say (docs/trees.md). What leaks to a lower band counts only while the
urgent one has a backlog, and holds at any rate and on any machine.
"""

from __future__ import annotations

import asyncio

import pytest

from experiments.backlogged import PACKET, Sample, Shares, shares
from experiments.shaper_flows import under_a_tree
from p3_shaper.rates import parse_rate
from p3_shaper.tcmessage import Counters

WINDOWS = 8
WINDOW_S = 0.4


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "5gbit", "10gbit"])
def test_the_rate_is_reached_and_little_leaks_to_a_lower_band(text: str) -> None:
    """Within 5 % in the best of some windows, and under 4 % in all of them."""
    rate = parse_rate(text).bits_per_second
    in_full = text != "10gbit"

    def enough(found: list[Shares]) -> bool:
        reached = not in_full or max(item.rate for item in found) >= 0.95 * rate
        return reached and sum(item.backlogged for item in found) >= 0.5

    async def work() -> list[Shares]:
        async with under_a_tree(parse_rate(text), with_a_lower=True) as flows:
            found = [await flows.shares(WINDOW_S)]
            while not enough(found) and len(found) < WINDOWS:
                found.append(await flows.shares(WINDOW_S))
            return found

    found = [item for item in asyncio.run(work()) if item.backlogged]
    assert found
    if in_full:
        assert max(item.rate for item in found) >= 0.95 * rate
    assert min(item.total for item in found) <= 1.05 * rate
    sent = sum(item.rate * item.backlogged for item in found)
    leaked = sum(item.leak * item.rate * item.backlogged for item in found)
    assert leaked < 0.04 * sent


def _sample(time: float, top: int, backlog: int, low: int) -> Sample:
    return Sample(time, Counters(bytes=top, backlog=backlog), Counters(bytes=low))


def test_what_a_lower_band_takes_while_the_urgent_one_is_empty_is_no_leak() -> None:
    many = 10 * PACKET
    found = shares(
        [
            _sample(0.0, 0, many, 0),
            _sample(1.0, many - 2 * PACKET, many, PACKET),  # it had more than it sent
            _sample(2.0, 3 * many, 0, 2 * many),  # it may have been empty
            _sample(3.0, 3 * many, many, 4 * many),  # it was
        ]
    )
    assert found.backlogged == pytest.approx(1 / 3)
    assert found.rate == pytest.approx(8 * 9 * PACKET)
    assert found.leak == pytest.approx(1 / 9)
    assert found.lower == pytest.approx(4 / 7)
    assert found.total == pytest.approx(8 * 7 * many / 3)


def test_without_a_backlog_nothing_is_said_of_the_leak() -> None:
    found = shares([_sample(0.0, 0, PACKET, 0), _sample(1.0, PACKET, PACKET, PACKET)])
    assert (found.rate, found.leak, found.backlogged) == (0.0, 0.0, 0.0)
