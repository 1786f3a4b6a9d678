"""The rates that links have, reached and kept for the urgent, in shares of what the kernel counts.

Up to 5 Gbit/s with iperf3's flows. At 10 Gbit/s two cores that others use too cannot always keep a
TCP flow going: a flood of UDP can, and scripts/bench_shaper says what iperf3 reaches
(docs/trees.md). What leaks counts only while the urgent band has a backlog, on any machine.
"""

from __future__ import annotations

import asyncio

import pytest
from support.flood import flood, sink

from experiments.backlogged import PACKET, Sample, Shares, shares
from experiments.shaper_flows import TABLE, Flows, counted, under_a_tree
from p3_shaper.cluster import Pair
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import Counters

WINDOWS = 20
WINDOW_S = 0.4


def check(found: list[Shares], rate: Rate) -> None:
    """Within 5 % in the best of some windows, and a leak under 4 % in all of them."""
    counted = [item for item in found if item.backlogged]
    assert counted
    assert max(item.rate for item in counted) >= 0.95 * rate.bits_per_second
    assert min(item.total for item in found) <= 1.05 * rate.bits_per_second
    sent = sum(item.rate * item.backlogged for item in counted)
    leaked = sum(item.leak * item.rate * item.backlogged for item in counted)
    assert leaked < 0.04 * sent


async def windows(flows: Flows, rate: Rate) -> list[Shares]:
    """One, and more while the machine was too busy to reach the rate."""
    found = [await flows.shares(WINDOW_S)]
    while found[-1].rate < 0.95 * rate.bits_per_second and len(found) < WINDOWS:
        found.append(await flows.shares(WINDOW_S))
    return found


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "5gbit"])
def test_iperf3_reaches_the_rate_and_little_leaks_to_a_lower_band(text: str) -> None:
    rate = parse_rate(text)

    async def work() -> list[Shares]:
        async with under_a_tree(rate, with_a_lower=True) as flows:
            return await windows(flows, rate)

    check(asyncio.run(work()), rate)


def test_a_flood_reaches_10_gigabits_and_little_leaks_to_a_lower_band(pair: Pair) -> None:
    rate = parse_rate("10gbit")
    peer = pair.nodes[1]

    async def work() -> list[Shares]:
        with sink(peer) as port:
            senders = [
                flood(peer.address, port, band.tos) for band in (TABLE.bands[0], TABLE.bands[-1])
            ]
            async with counted(pair, rate, senders) as flows:
                return await windows(flows, rate)

    check(asyncio.run(work()), rate)


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
