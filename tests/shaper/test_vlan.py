"""Frames of a VLAN on its parent, and on the VLAN's own interface: real flows, both families."""

from __future__ import annotations

import asyncio
import re

import pytest
from support.cases import case
from support.flows import Flow

from p3_shaper.bands import default_table
from p3_shaper.cli import main
from p3_shaper.cluster import Pair
from p3_shaper.cluster_nodes import batch
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import parse_rate
from p3_shaper.tree import htb_tree

pytestmark = pytest.mark.needs_kinds("link:vlan")
DEVICES = pytest.mark.parametrize("device", ["eth0", "eth0.10"], ids=["parent", "vlan"])
TABLE = default_table()
MEGABYTE = 1_000_000


def address(family: int, index: int) -> str:
    return f"10.79.0.{index + 1}" if family == 4 else f"fd79::{index + 1}"


@pytest.fixture
def tagged(pair: Pair) -> Pair:
    """Two nodes that have VLAN 10 of eth0 as eth0.10, with addresses."""
    for node in pair.nodes:
        lines = (
            "link add link eth0 name eth0.10 type vlan id 10",
            "link set eth0.10 addrgenmode none up",
            f"address add {address(4, node.index)}/24 dev eth0.10",
            f"address add {address(6, node.index)}/64 dev eth0.10 nodad",
        )
        batch("ip", lines, node.name)
    return pair


@DEVICES
def test_marked_frames_and_acknowledgements_find_their_bands(tagged: Pair, device: str) -> None:
    node, peer = tagged.nodes
    low = TABLE.bands[-1]

    async def work(family: int) -> None:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link(device)
            tree = htb_tree(TABLE, parse_rate("200mbit"), link.limits)
            await netlink.ensure(link.index, tree)
            async with Flow.to(node.name, peer.name, address(family, 1), low.tos) as leaving:
                await leaving.arrived(2 * MEGABYTE)
            sent = await netlink.statistics(link.index)
            assert sent[tree.bands[-1]].bytes > 2 * MEGABYTE
            assert sent[tree.unmarked].bytes < 10_000
            async with Flow.to(peer.name, node.name, address(family, 0), low.tos) as coming:
                await coming.arrived(4 * MEGABYTE)
            both = await netlink.statistics(link.index)
            packets = both[tree.bands[0]].packets - sent[tree.bands[0]].packets
            assert packets > 20
            assert both[tree.bands[0]].bytes - sent[tree.bands[0]].bytes < 128 * packets
        node.run(["tc", "qdisc", "del", "dev", device, "root"])

    for family in (4, 6):
        with case(f"IPv{family}"):
            asyncio.run(work(family))


@DEVICES
def test_p3_shape_limits_what_a_vlan_carries(tagged: Pair, device: str) -> None:
    for way in ([], ["--ingress"]):
        with case(way):
            limits_what_a_vlan_carries(tagged, device, way)


def limits_what_a_vlan_carries(tagged: Pair, device: str, way: list[str]) -> None:
    node, peer = tagged.nodes
    here, there = (peer, node) if way else (node, peer)

    def shown() -> str:
        links = node.run(["ls", "/sys/class/net"]).stdout
        return links + node.run(["tc", "qdisc", "show"]).stdout

    async def send(family: int) -> None:
        target = address(family, there.index)
        async with Flow.to(here.name, there.name, target, 0) as flow:
            await flow.arrived(MEGABYTE)

    before = shown()
    assert main([device, "100mbit", *way, "--netns", node.name]) == 0
    for family in (4, 6):
        asyncio.run(send(family))
    counted = node.run(
        ["tc", "-s", "class", "show", "dev", f"p3ifb{_index(tagged, device)}" if way else device]
    )
    sent = re.search(r"Sent (\d+) bytes", counted.stdout)
    assert sent is not None
    assert int(sent[1]) > 2 * MEGABYTE
    assert main([device, "--clear", "--netns", node.name]) == 0
    assert shown() == before


def _index(pair: Pair, device: str) -> str:
    return pair.nodes[0].run(["cat", f"/sys/class/net/{device}/ifindex"]).stdout.strip()
