"""Real TCP flows under a tree: who gets the link, and what a change of the tree costs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.cases import case
from support.flows import FAMILIES, MEGABYTE, Flow

from p3_shaper.bands import Band, BandTable, default_table
from p3_shaper.cli import main
from p3_shaper.cluster import Node, Pair
from p3_shaper.netlink import Netlink, open_netlink
from p3_shaper.operations import make, messages_of
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import TC_ROOT, Verb
from p3_shaper.tree import Tree, htb_prio_tree, htb_tree, prio_tree

RATE = parse_rate("200mbit")
WINDOWS = 6
TABLE = default_table()
SIXTEEN = BandTable(tuple(range(5, 21)))
FIFTEEN = BandTable(SIXTEEN.dscps[:15])


@asynccontextmanager
async def shaped(node: Node, rate: Rate = RATE) -> AsyncIterator[tuple[Netlink, int, Tree]]:
    async with open_netlink(node.name) as netlink:
        link = await netlink.link("eth0")
        tree = htb_tree(TABLE, rate, link.limits)
        await netlink.ensure(link.index, tree)
        yield netlink, link.index, tree


async def before_a_slow_wire(node: Node, netlink: Netlink, index: int, tree: Tree) -> None:
    """Put a prio tree below a tbf, which holds its packets back to RATE.

    prio has no rate: it orders what its device cannot take yet, and a veth takes everything at
    once. What the full ring of a NIC is to a prio at its root, the tbf is here.
    """
    wire = "handle 1: tbf rate 200mbit burst 256k limit 4mb"
    node.run(["tc", "qdisc", "add", "dev", node.device, "root", *wire.split()])
    top, *rest = messages_of(tree)
    assert top.parent == TC_ROOT
    await netlink.apply(index, make([replace(top, parent=0x1_0001), *rest]))


async def compete(
    pair: Pair,
    family: socket.AddressFamily,
    place: tuple[Netlink, int, Tree],
    bands: tuple[Band, Band],
    *,
    guaranteed: bool,
) -> None:
    """The first of two bands has 95 % while both have a backlog, and then the second the link.

    On a busy machine its sender may be late, and then the second has its turn: the best of some
    windows counts. Without an order each would have about half of every window.
    """
    node, peer = pair.nodes
    netlink, index, tree = place
    high, low = bands
    async with Flow.between(node, peer, family, low.tos) as lower:
        await lower.arrived(4 * MEGABYTE)
        async with Flow.between(node, peer, family, high.tos) as higher:
            await higher.arrived(1 * MEGABYTE)  # both have a backlog by now
            found: list[float] = []
            while len(found) < WINDOWS and max(found, default=0.0) < 0.95:
                before = await netlink.statistics(index)
                await higher.arrived(8 * MEGABYTE)
                after = await netlink.statistics(index)
                assert after[tree.bands[low.index]].backlog > 0
                above, below = (
                    after[classid].bytes - before[classid].bytes
                    for classid in (tree.bands[high.index], tree.bands[low.index])
                )
                found.append(above / (above + below))
            assert max(found) >= 0.95
            if guaranteed:
                await lower.arrived(100_000)
        await lower.arrived(4 * MEGABYTE)


@FAMILIES
def test_a_higher_band_takes_95_percent_and_the_lower_one_recovers(
    pair: Pair, family: socket.AddressFamily
) -> None:
    async def work() -> None:
        async with shaped(pair.nodes[0]) as place:
            await compete(pair, family, place, (TABLE.bands[0], TABLE.bands[-1]), guaranteed=True)

    asyncio.run(work())


@pytest.mark.needs_kinds("prio")
@pytest.mark.parametrize(
    ("kind", "table"),
    [("prio", TABLE), ("prio", FIFTEEN), ("htb+prio", TABLE), ("htb+prio", SIXTEEN)],
    ids=["prio", "prio of 16 classes", "htb+prio", "htb+prio of 16 bands"],
)
def test_a_higher_band_of_prio_takes_95_percent_and_the_lower_one_recovers(
    pair: Pair, kind: str, table: BandTable
) -> None:
    """Where there are more bands than HTB can order, two neighbours beyond those."""
    node = pair.nodes[0]
    high = table.bands[0 if table is TABLE else -2]

    async def work() -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link(node.device)
            if kind == "prio":
                tree = prio_tree(table)
                await before_a_slow_wire(node, netlink, link.index, tree)
            else:
                tree = htb_prio_tree(table, RATE, link.limits)
                await netlink.ensure(link.index, tree)
            place = (netlink, link.index, tree)
            for family in (socket.AF_INET, socket.AF_INET6):
                with case(family):
                    await compete(pair, family, place, (high, table.bands[-1]), guaranteed=False)

    asyncio.run(work())


def test_unmarked_traffic_keeps_its_share_beside_a_busy_band(pair: Pair) -> None:
    node, peer = pair.nodes

    async def work() -> None:
        async with (
            shaped(node) as (netlink, index, tree),
            Flow.between(node, peer, socket.AF_INET, 0) as plain,
            Flow.between(node, peer, socket.AF_INET, TABLE.bands[0].tos) as urgent,
        ):
            await plain.arrived(1 * MEGABYTE)
            await urgent.arrived(1 * MEGABYTE)
            before = await netlink.statistics(index)
            await urgent.arrived(12 * MEGABYTE)
            after = await netlink.statistics(index)
            marked = after[tree.bands[0]].bytes - before[tree.bands[0]].bytes
            unmarked = after[tree.unmarked].bytes - before[tree.unmarked].bytes
            assert 0.08 < unmarked / (marked + unmarked) < 0.15

    asyncio.run(work())


@FAMILIES
def test_acknowledgements_of_what_comes_in_take_the_top_band(
    pair: Pair, family: socket.AddressFamily
) -> None:
    node, peer = pair.nodes
    low = TABLE.bands[-1]

    async def work() -> None:
        async with (
            shaped(node) as (netlink, index, tree),
            Flow.between(peer, node, family, low.tos) as incoming,
        ):
            await incoming.arrived(20 * MEGABYTE)
            counters = await netlink.statistics(index)
            top, own = counters[tree.bands[0]], counters[tree.bands[-1]]
            assert top.packets > 50
            assert top.bytes < 128 * top.packets
            assert own.packets < 5  # the handshake

    asyncio.run(work())


@FAMILIES
def test_acknowledgements_with_sack_blocks_take_the_top_band_too(
    pair: Pair, family: socket.AddressFamily
) -> None:
    """Longer ones, with timestamps and SACK blocks; a short queue for what comes in drops some."""
    node, peer = pair.nodes
    assert main(["eth0", "200mbit", "--ingress", "--buffer", "64KiB", "--netns", node.name]) == 0

    async def work() -> None:
        async with (
            shaped(node) as (netlink, index, tree),
            Flow.between(peer, node, family, 0) as incoming,
        ):
            await incoming.arrived(10 * MEGABYTE)
            counters = await netlink.statistics(index)
            assert counters[tree.bands[0]].packets > 50
            assert counters[tree.unmarked].packets < 10  # the handshake, neighbour discovery

    asyncio.run(work())
    counted = peer.run(["nstat", "-asz", "TcpExtTCPSackRecovery"]).stdout.split()
    assert int(counted[counted.index("TcpExtTCPSackRecovery") + 1]) > 0


def test_a_change_of_rates_under_load_loses_nothing(pair: Pair) -> None:
    """Classes are changed in place; a new root would lose all that waits."""
    node, peer = pair.nodes

    async def work() -> None:
        async with (
            shaped(node) as (netlink, index, _),
            Flow.between(node, peer, socket.AF_INET, TABLE.bands[0].tos) as first,
            Flow.between(node, peer, socket.AF_INET, TABLE.bands[3].tos) as second,
        ):
            await first.arrived(2 * MEGABYTE)
            limits = (await netlink.link("eth0")).limits
            for rate, floor in (
                ("150mbit", "2mbit"),
                ("600mbit", "10mbit"),
                ("2gbit", "5mbit"),  # the queues' limits grow too
                ("100mbit", "1mbit"),
                ("300mbit", "5mbit"),
            ):
                guarantee = parse_rate(floor)
                tree = htb_tree(TABLE, parse_rate(rate), limits, guarantee=guarantee)
                changes = await netlink.ensure(index, tree)
                assert len(changes) >= len(tree.classes)
                assert {item.request.verb for item in changes} == {Verb.CHANGE}
                await first.arrived(2 * MEGABYTE)
            counters = await netlink.statistics(index)
            assert {item.drops for item in counters.values()} == {0}
            assert first.lost() <= 0
            assert second.lost() <= 0

    asyncio.run(work())


def test_big_tcp_passes_in_packets_larger_than_64_kilobytes(pair: Pair) -> None:
    """Burst and quantum follow gso_max_size; what waits shows the packets' size (IPv6 alone)."""
    node, peer = pair.nodes
    node.run(["ip", "link", "set", node.device, "gso_max_size", "185000"])

    async def work() -> None:
        async with (
            shaped(node, parse_rate("2gbit")) as (netlink, index, tree),
            Flow.between(node, peer, socket.AF_INET6, TABLE.bands[0].tos) as flow,
        ):
            assert {item.quantum for item in tree.classes if item.quantum} == {185_000}
            largest = 0.0
            while largest <= 100_000:
                await flow.arrived(MEGABYTE)
                waiting = (await netlink.statistics(index))[tree.bands[0]]
                largest = max(largest, waiting.backlog / max(1, waiting.qlen))
            await flow.arrived(20 * MEGABYTE)
            assert {item.drops for item in (await netlink.statistics(index)).values()} == {0}
            assert flow.lost() <= 0

    asyncio.run(work())
