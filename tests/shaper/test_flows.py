"""Real TCP flows under a tree: who gets the link, and what a change of the tree costs."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from p3_shaper.bands import default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.namespace import socket_in
from p3_shaper.netlink import Netlink, open_netlink
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tree import Tree, htb_tree

RATE = parse_rate("200mbit")
TABLE = default_table()
MEGABYTE = 1_000_000
GIVE_UP_S = 30.0
"""Far beyond what any of this takes: a test that hangs must end."""

FAMILIES = pytest.mark.parametrize(
    "family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"]
)


class Flow:
    """A TCP connection from one node to another that is always sending, until closed."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.sender = sender
        self.received = 0
        self._receiver = receiver
        self._progress = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def between(
        cls, node: Node, peer: Node, family: socket.AddressFamily, tos: int
    ) -> AsyncIterator[Flow]:
        address = peer.address if family == socket.AF_INET else peer.address6
        with (
            socket_in(peer.name, family, socket.SOCK_STREAM) as listener,
            socket_in(node.name, family, socket.SOCK_STREAM) as sender,
        ):
            for end in (listener, sender):
                _mark(end, family, tos)
                end.setblocking(False)
            listener.bind((address, 0))
            listener.listen()
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sender, listener.getsockname()[:2])
            receiver, _ = await loop.sock_accept(listener)
            with receiver:
                receiver.setblocking(False)
                flow = cls(sender, receiver)
                async with asyncio.timeout(GIVE_UP_S):
                    flow._tasks = [
                        asyncio.create_task(item) for item in (flow._send(), flow._receive())
                    ]
                    try:
                        yield flow
                    finally:
                        await flow.stop()

    async def stop(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def arrived(self, more: int) -> None:
        """Wait until `more` bytes have arrived from now on."""
        goal = self.received + more
        async with self._progress:
            await self._progress.wait_for(lambda: self.received >= goal)

    def lost(self) -> int:
        """Segments sent again, but for those that turned out to have arrived before.

        tcpi_total_retrans less tcpi_dsack_dups: a probe after a pause is no loss.
        """
        info = self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 220)
        (sent_again,) = struct.unpack_from("=I", info, 100)
        (arrived_twice,) = struct.unpack_from("=I", info, 216)
        return int(sent_again - arrived_twice)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        data = bytes(1 << 18)
        while True:
            await loop.sock_sendall(self.sender, data)

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._receiver, 1 << 18):
            self.received += len(data)
            async with self._progress:
                self._progress.notify_all()


def _mark(end: socket.socket, family: socket.AddressFamily, tos: int) -> None:
    """Both families: an IPv6 socket may carry IPv4, and HyStart stalls preempted sockets."""
    if family == socket.AF_INET6:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    end.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


@asynccontextmanager
async def shaped(node: Node, rate: Rate = RATE) -> AsyncIterator[tuple[Netlink, int, Tree]]:
    async with open_netlink(node.name) as netlink:
        link = await netlink.link("eth0")
        tree = htb_tree(TABLE, rate, link.limits)
        await netlink.ensure(link.index, tree)
        yield netlink, link.index, tree


@FAMILIES
def test_a_higher_band_takes_95_percent_and_the_lower_one_recovers(
    pair: Pair, family: socket.AddressFamily
) -> None:
    node, peer = pair.nodes
    high, low = TABLE.bands[0], TABLE.bands[-1]

    async def work() -> None:
        async with (
            shaped(node) as (netlink, index, tree),
            Flow.between(node, peer, family, low.tos) as lower,
        ):
            await lower.arrived(4 * MEGABYTE)
            async with Flow.between(node, peer, family, high.tos) as higher:
                await higher.arrived(1 * MEGABYTE)  # both have a backlog by now
                before = await netlink.statistics(index)
                await higher.arrived(12 * MEGABYTE)
                after = await netlink.statistics(index)
                assert after[tree.bands[-1]].backlog > 0
                await lower.arrived(100_000)  # its guarantee: it is not starved
            above = after[tree.bands[0]].bytes - before[tree.bands[0]].bytes
            below = after[tree.bands[-1]].bytes - before[tree.bands[-1]].bytes
            assert above >= 0.95 * (above + below)
            await lower.arrived(4 * MEGABYTE)

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
            for rate, floor in (("150mbit", "2mbit"), ("300mbit", "5mbit"), ("200mbit", "1mbit")):
                guarantee = parse_rate(floor)
                tree = htb_tree(TABLE, parse_rate(rate), limits, guarantee=guarantee)
                assert len(await netlink.ensure(index, tree)) == len(tree.classes)
                await first.arrived(2 * MEGABYTE)
            counters = await netlink.statistics(index)
            assert {item.drops for item in counters.values()} == {0}
            assert first.lost() <= 0
            assert second.lost() <= 0

    asyncio.run(work())
