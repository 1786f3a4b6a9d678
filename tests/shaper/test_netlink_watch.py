"""What the kernel tells while we do nothing: changes that others make, and counters."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from p3_shaper.bands import default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.namespace import socket_in
from p3_shaper.netlink import Change, Watch, open_netlink
from p3_shaper.rates import parse_rate
from p3_shaper.tcmessage import Counters
from p3_shaper.tree import htb_tree
from p3_shaper.watch import LINK, OVERRUN, QDISC

pytestmark = pytest.mark.calm

RATE = parse_rate("200mbit")
TABLE = default_table()


def test_changes_by_others_are_told_and_our_own_are_not(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            async with netlink.watch(link.index) as changes:
                await netlink.ensure(link.index, htb_tree(TABLE, RATE, link.limits))
                node.run(["tc", "qdisc", "add", "dev", "lo", "root", "pfifo"])
                node.run(["tc", "qdisc", "del", "dev", "eth0", "parent", "7033:10"])
                first = await anext(changes)
                assert (first.what, first.removed) == (QDISC, True)
                assert "bfifo 7043: parent 7033:10" in first.text

    asyncio.run(work())


def test_what_happens_to_the_link_is_told(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            async with netlink.watch(link.index) as changes:
                node.run(["ip", "link", "set", "eth0", "down"])
                assert await _next_link(changes) == Change(LINK, False, "link eth0 down")
                node.run(["ip", "link", "set", "eth0", "name", "eth7"])
                node.run(["ip", "link", "del", "eth7"])
                while not (change := await _next_link(changes)).removed:
                    pass
                assert change.text == "link eth7 down"

    asyncio.run(work())


async def _next_link(changes: Watch) -> Change:
    while (change := await anext(changes)).what != LINK:
        pass
    return change


def test_what_the_kernel_had_to_drop_is_told_and_the_watch_goes_on(pair: Pair) -> None:
    """More changes at once than a socket holds: nobody may take silence for peace."""
    node = pair.nodes[0]
    flood = "qdisc change dev eth0 root handle 5: pfifo limit 7\n" * 4000

    async def work() -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            node.run(["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "5:", "pfifo"])
            async with netlink.watch(link.index) as changes:
                subprocess.run(
                    ["tc", "-netns", node.name, "-batch", "-"], input=flood, text=True, check=True
                )
                while (await anext(changes)).what != OVERRUN:
                    pass
                node.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
                while not (await anext(changes)).removed:
                    pass

    asyncio.run(work())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_every_band_counts_its_own_marks(pair: Pair, family: socket.AddressFamily) -> None:
    """Sockets marked as the training side marks them; ECN bits make no difference."""
    node, peer = pair.nodes

    async def work() -> dict[int, Counters]:
        async with open_netlink(peer.name) as netlink:
            mac = (await netlink.link("eth0")).mac
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            tree = htb_tree(TABLE, RATE, link.limits)
            await netlink.ensure(link.index, tree)
            _settle_neighbour(node, peer, family, mac)
            before = await netlink.statistics(link.index)
            for band in TABLE.bands:
                for ecn in range(4):
                    _send(node, peer, family, band.tos | ecn, band.index + 1)
            _send(node, peer, family, 0, 20)
            after = await netlink.statistics(link.index)
            packets = [after[item].packets - before[item].packets for item in tree.bands]
            assert packets == [4 * (band.index + 1) for band in TABLE.bands]
            unmarked = after[tree.unmarked].packets - before[tree.unmarked].packets
            assert unmarked >= 20
            root = tree.qdiscs[0].handle
            assert after[root].packets - before[root].packets >= sum(packets) + 20
            return after

    counters = asyncio.run(work())
    assert all(item.drops == 0 and item.backlog == 0 for item in counters.values())


def _address(node: Node, family: socket.AddressFamily) -> str:
    return node.address if family == socket.AF_INET else node.address6


def _settle_neighbour(node: Node, peer: Node, family: socket.AddressFamily, mac: str) -> None:
    """Resolving it would be unmarked traffic, and would hold packets back."""
    place = ["neigh", "replace", _address(peer, family), "lladdr", mac]
    node.run(["ip", *place, "dev", "eth0", "nud", "permanent"])


def _send(node: Node, peer: Node, family: socket.AddressFamily, tos: int, packets: int) -> None:
    with socket_in(node.name, family, socket.SOCK_DGRAM) as sender:
        if family == socket.AF_INET:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        for _ in range(packets):
            sender.sendto(bytes(100), (_address(peer, family), 9))


READER = """
import asyncio
from p3_shaper.netlink import TcError, open_netlink
from p3_shaper.plan import clear

async def work():
    async with open_netlink() as netlink:
        link = await netlink.link("eth0")
        tree = await netlink.observe(link.index)
        print(len(tree.classes), len(await netlink.statistics(link.index)))
        try:
            await netlink.apply(link.index, clear(tree, tree.owner))
        except TcError as error:
            print(error)

asyncio.run(work())
"""


def test_reading_needs_no_privilege_and_changing_does(pair: Pair) -> None:
    node = pair.nodes[0]

    async def prepare() -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            await netlink.ensure(link.index, htb_tree(TABLE, RATE, link.limits))

    asyncio.run(prepare())
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    counted, refused = node.run([*plain, sys.executable, "-c", READER]).stdout.splitlines()
    assert counted == "9 18"
    assert "cannot delete qdisc 7033: root" in refused
    assert "needs CAP_NET_ADMIN" in refused
