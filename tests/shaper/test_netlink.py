"""Trees on the real kernel: applied, read back, changed, undone, put back."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.cases import case

from p3_shaper.bands import BandTable, default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.kinds import missing_in_config
from p3_shaper.link import Link
from p3_shaper.netlink import Hook, Netlink, TcError, open_netlink
from p3_shaper.observe import CLASSLESS
from p3_shaper.operations import make
from p3_shaper.parts import HtbOptions, Qdisc
from p3_shaper.plan import PlanError, clear, plan
from p3_shaper.rates import parse_rate
from p3_shaper.tcmessage import TC_ROOT, Object, TcMessage
from p3_shaper.tree import (
    AGENT_MAJOR,
    SHAPE_MAJOR,
    Tree,
    htb_prio_tree,
    htb_tree,
    link_tree,
    prio_tree,
)

pytestmark = pytest.mark.calm

RATE = parse_rate("200mbit")
TABLE = default_table()

HTB_WITH_TABLES = """
qdisc add dev eth0 root handle 1: htb default 30
class add dev eth0 parent 1: classid 1:1 htb rate 100mbit ceil 100mbit burst 15k
class add dev eth0 parent 1:1 classid 1:10 htb rate 5mbit ceil 100mbit prio 1 overhead 24
class add dev eth0 parent 1:1 classid 1:30 htb rate 1mbit ceil 100mbit prio 3
qdisc add dev eth0 parent 1:10 handle 10: tbf rate 4mbit burst 32k latency 50ms
qdisc add dev eth0 parent 1:30 handle 30: bfifo limit 1mb
filter add dev eth0 parent 1: protocol ip prio 20 u32 match ip dport 80 0xffff flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 10 u32 match ip tos 0xb8 0xfc flowid 1:10
filter add dev eth0 parent 1: protocol ip prio 10 u32 match ip protocol 17 0xff flowid 1:10
filter add dev eth0 parent 1: protocol ipv6 prio 11 u32 match ip6 priority 0xb8 0xfc flowid 1:10
filter add dev eth0 parent 1: protocol ip prio 5 handle 7: u32 divisor 16
filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 7:3: match ip dst 10.0.0.3/32 flowid 1:30
filter add dev eth0 parent 1:10 protocol ip prio 3 u32 match ip dport 22 0xffff flowid 1:10
"""


def tc(node: Node, lines: str) -> None:
    for line in lines.strip().splitlines():
        node.run(["tc", *line.split()])


def shown(node: Node) -> str:
    """What `tc` shows but for counters; sorted, since the kernel lists leaves by hash."""
    kinds = [["qdisc"], ["class"], ["filter"]]
    listing = [node.run(["tc", "-d", *kind, "show", "dev", "eth0"]).stdout for kind in kinds]
    listing.append(node.run(["tc", "filter", "show", "dev", "eth0", "parent", "1:10"]).stdout)
    lines = sorted("\n".join(listing).splitlines())
    return re.sub(r"direct_packets_stat \d+|ref \d+ bind \d+", "", "\n".join(lines))


@asynccontextmanager
async def device(node: Node) -> AsyncIterator[tuple[Netlink, Link]]:
    async with open_netlink(node.name) as netlink:
        yield netlink, await netlink.link("eth0")


def test_a_link_s_facts(pair: Pair) -> None:
    async def work() -> None:
        async with device(pair.nodes[0]) as (netlink, link):
            assert link.name == "eth0"
            assert link.kind == "veth"
            assert link.is_up
            assert link.mtu == 1500
            assert link.gso_max_size >= 65_536
            assert link.speed == parse_rate("10gbit")  # what the veth driver claims
            assert link.mac.count(":") == 5
            assert link.limits.packet == link.gso_max_size
            assert (await netlink.link("lo")).speed is None

    asyncio.run(work())


def test_htb_trees_read_back_as_applied(pair: Pair) -> None:
    """Down to bursts: every rate from 5 Mbit/s to beyond what 32 bits of bytes hold."""

    async def work() -> None:
        async with device(pair.nodes[0]) as (netlink, link):
            for text in ("5mbit", "200mbit", "1.234567gbit", "33gbit", "40gbit", "400gbit"):
                tree = htb_tree(TABLE, parse_rate(text), link.limits)
                operations = await netlink.ensure(link.index, tree)
                assert operations
                observed = await netlink.observe(link.index)
                assert observed == tree
                assert observed.owner == AGENT_MAJOR
                assert await netlink.ensure(link.index, tree) == []

    asyncio.run(work())


def test_fewer_bands_more_bands_and_back(pair: Pair) -> None:
    async def work() -> None:
        async with device(pair.nodes[0]) as (netlink, link):
            for bands in (7, 3, 5, 1, 7):
                tree = htb_tree(default_table(bands), RATE, link.limits)
                await netlink.ensure(link.index, tree)
                assert await netlink.observe(link.index) == tree
            other = htb_tree(BandTable((9, 41)), RATE, link.limits)
            operations = await netlink.ensure(link.index, other)
            assert TC_ROOT not in [item.request.message.parent for item in operations]

    asyncio.run(work())


def test_what_others_did_to_our_tree_is_mended_without_a_new_root(pair: Pair) -> None:
    node = pair.nodes[0]
    damage = """
class change dev eth0 parent 7033:1 classid 7033:11 htb rate 7mbit ceil 9mbit
qdisc replace dev eth0 parent 7033:12 handle 99: pfifo limit 10
filter del dev eth0 parent 7033: protocol all prio 16 u32
filter add dev eth0 parent 7033: protocol all prio 18 u32 match u32 0 0 flowid 7033:16
"""

    async def work() -> None:
        async with device(node) as (netlink, link):
            tree = htb_tree(TABLE, RATE, link.limits)
            await netlink.ensure(link.index, tree)
            tc(node, damage)
            assert await netlink.observe(link.index) != tree
            operations = await netlink.ensure(link.index, tree)
            assert await netlink.observe(link.index) == tree
            assert TC_ROOT not in [item.request.message.parent for item in operations]

    asyncio.run(work())


@pytest.mark.needs_kinds("prio")
def test_prio_trees_read_back_as_applied(pair: Pair) -> None:
    """From the fewest to the most that the kernel allows; in mode prio one more is unmarked's.

    Each is made where the one before is, with more or fewer bands, or of another kind.
    """

    async def work() -> None:
        async with device(pair.nodes[0]) as (netlink, link):
            for bands, of_htb in ((1, 2), (15, 16), (7, 7)):
                for tree in (
                    prio_tree(BandTable(tuple(range(5, 5 + bands)))),
                    htb_prio_tree(BandTable(tuple(range(5, 5 + of_htb))), RATE, link.limits),
                ):
                    with case(f"{len(tree.bands)} bands below {tree.root}"):
                        await netlink.ensure(link.index, tree)
                        assert await netlink.observe(link.index) == tree
                        assert await netlink.ensure(link.index, tree) == []

    asyncio.run(work())


def test_a_tree_of_a_kind_that_the_kernel_lacks_is_refused_and_nothing_changes(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            before = shown(node)
            tree = htb_tree(TABLE, RATE, link.limits)
            leaf = Qdisc("p3-nonsense", 0x7044_0000, 0x7033_0011)
            other = [leaf if item.parent == leaf.parent else item for item in tree.qdiscs]
            with pytest.raises(TcError, match="lacks p3-nonsense, and nothing was") as caught:
                await netlink.ensure(link.index, replace(tree, qdiscs=tuple(other)))
            assert caught.value.errno == errno.EOPNOTSUPP
            assert shown(node) == before

    asyncio.run(work())


def test_a_kind_that_no_kernel_has_is_missing_and_others_are_not(pair: Pair) -> None:
    """Tried in a namespace of its own: the node's devices do not notice."""
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            tc(node, "qdisc add dev eth0 root handle 5: pfifo limit 77")
            before = shown(node)
            async with netlink.watch(link.index) as changes:
                kinds = ["htb", "bfifo", "pfifo", "tbf", "ingress", "u32", "mirred", "p3-nonsense"]
                assert await netlink.missing(kinds) == {"p3-nonsense"}
                tc(node, "qdisc change dev eth0 root handle 5: pfifo limit 78")
                assert "78p" in (await anext(changes)).text
            assert shown(node).replace("78p", "77p") == before

    asyncio.run(work())


def test_the_kernel_s_configuration_answers_where_no_namespace_may_be_made() -> None:
    config = "CONFIG_NET_SCH_HTB=y\nCONFIG_NET_SCH_FIFO=m\n# CONFIG_NET_SCH_PRIO is not set\n"
    kinds = ["htb", "bfifo", "pfifo_fast", "prio", "u32", "mirred"]
    assert missing_in_config(config, kinds) == {"prio", "u32", "mirred"}
    assert missing_in_config(None, kinds) == set()


def test_a_failed_step_takes_the_ones_before_it_back(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            tc(node, HTB_WITH_TABLES)
            before = shown(node)
            tree = htb_tree(TABLE, RATE, link.limits)
            operations = plan(tree, await netlink.observe(link.index), takeover=True)
            bad = make([TcMessage(Object.CLASS, 0x7033_0077, 0x7033_0066, "htb", b"")])
            with pytest.raises(TcError, match="cannot add class 7033:77 htb"):
                await netlink.apply(link.index, [*operations, *bad])
            assert shown(node) == before

    asyncio.run(work())


def test_only_what_is_ours_is_cleared(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            default = shown(node)
            tree = link_tree(RATE, 256_000, link.limits)
            await netlink.ensure(link.index, tree)
            observed = await netlink.observe(link.index)
            assert clear(observed, AGENT_MAJOR) == []
            await netlink.apply(link.index, clear(observed, SHAPE_MAJOR))
            assert shown(node) == default

    asyncio.run(work())


def test_a_root_replaced_by_another_tool_is_not_restored_over(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            snapshot = await netlink.snapshot(link)
            await netlink.ensure(link.index, htb_tree(TABLE, RATE, link.limits))
            tc(node, "qdisc replace dev eth0 root handle 5: pfifo limit 77")
            before = shown(node)
            with pytest.raises(PlanError, match="left alone"):
                await netlink.restore(link.index, snapshot)
            assert shown(node) == before

    asyncio.run(work())


def test_a_root_of_our_handle_but_other_options_is_made_anew(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            tree = htb_tree(TABLE, RATE, link.limits)
            tc(node, "qdisc add dev eth0 root handle 7033: htb default 77")
            await netlink.ensure(link.index, tree)
            observed = await netlink.observe(link.index)
            assert observed == tree
            assert observed.root is not None
            assert observed.root.options == HtbOptions(default=0x1F)

    asyncio.run(work())


def test_errors_say_what_where_and_what_to_do(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, _):
            with pytest.raises(TcError, match=r"no interface 'eth9' .*name one") as caught:
                await netlink.link("eth9")
            assert caught.value.errno == errno.ENODEV
            with pytest.raises(TcError, match="no interface 'a-name-too-long-for-one'"):
                await netlink.link("a-name-too-long-for-one")
            tree = link_tree(RATE, 256_000, (await netlink.link("eth0")).limits)
            with pytest.raises(TcError, match="cannot add qdisc htb 7053: root"):
                await netlink.ensure(4_000, tree)
        with pytest.raises(TcError, match="no network namespace 'p3-nowhere'"):
            async with open_netlink("p3-nowhere"):
                pass

    asyncio.run(work())


def test_an_ingress_hook_is_apart_from_the_root(pair: Pair) -> None:
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            tc(node, "qdisc add dev eth0 ingress")
            assert await netlink.observe(link.index) == Tree()
            assert (await netlink.observe(link.index, Hook.INGRESS)).kinds == {"ingress"}
            await netlink.ensure(link.index, htb_tree(TABLE, RATE, link.limits))
            assert (await netlink.snapshot(link)).messages[0].parent == TC_ROOT
            await netlink.apply(link.index, clear(await netlink.observe(link.index), AGENT_MAJOR))
            assert "ingress" in shown(node)

    asyncio.run(work())


def test_a_tree_knows_what_tc_knows(pair: Pair) -> None:
    """Foreign trees are values as far as we model them, and bytes beyond."""
    node = pair.nodes[0]

    async def work() -> None:
        async with device(node) as (netlink, link):
            tc(node, HTB_WITH_TABLES)
            tree = await netlink.observe(link.index)
            assert tree.owner == 0
            assert {qdisc.kind for qdisc in tree.qdiscs} == {"htb", "tbf", "bfifo"}
            assert [item.classid & 0xFFFF for item in tree.classes] == [1, 0x30]
            assert [item.handle & 0xFFFF for item in tree.other if item.kind == "htb"] == [0x10]
            assert {item.priority for item in tree.filters} == {3, 5, 10, 11, 20}
            assert replace(tree, messages=()) == tree

    asyncio.run(work())


def test_where_no_filters_are_looked_for_there_can_be_none(pair: Pair) -> None:
    node = pair.nodes[0]
    for number, kind in enumerate(sorted(CLASSLESS), 1):
        with case(kind):
            tc(node, f"qdisc replace dev eth0 root handle {number}: {kind}")
            some = f"filter add dev eth0 parent {number}: protocol ip u32 match ip tos 4 0xfc"
            done = node.run(["tc", *some.split(), "action", "drop"], check=False)
            assert "Error: Qdisc not classful." in done.stderr
