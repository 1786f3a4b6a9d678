"""A tree for each transmit queue: values, the real kernel, and real flows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from support.flows import Flow

from p3_shaper.bands import default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.link import Link
from p3_shaper.multiqueue import mq_tree, queue_rate
from p3_shaper.netlink import Netlink, open_netlink
from p3_shaper.operations import put_root
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import TC_ROOT, Counters, Verb, total
from p3_shaper.tree import MAX_QUEUES, LinkLimits, Tree, TreeError, htb_tree, prio_tree

QUEUES = 2
RATE = parse_rate("200mbit")
TABLE = default_table()
MEGABYTE = 1_000_000


def tree_at(rate: Rate, limits: LinkLimits, queues: int = QUEUES) -> Tree:
    return mq_tree(htb_tree(TABLE, queue_rate(rate, queues), limits), queues)


@contextmanager
def wide_pair() -> Iterator[Pair]:
    """Two nodes whose eth0 has QUEUES transmit queues."""
    with Pair() as pair:
        left, right = pair.nodes
        queues = f"numtxqueues {QUEUES} numrxqueues {QUEUES}"
        left.run(["ip", "link", "delete", "eth0"])
        peer = f"peer name eth0 netns {right.name} {queues}"
        left.run(["ip", *f"link add eth0 {queues} type veth {peer}".split()])
        for node in pair.nodes:
            for address in (f"{node.address}/24", f"{node.address6}/64"):
                nodad = ["nodad"] if ":" in address else []
                node.run(["ip", "address", "add", address, "dev", "eth0", *nodad])
            node.run(["ip", "link", "set", "eth0", "up"])
        yield pair


@asynccontextmanager
async def device(node: Node) -> AsyncIterator[tuple[Netlink, Link]]:
    async with open_netlink(node.name) as netlink:
        yield netlink, await netlink.link("eth0")


def test_every_queue_has_the_same_tree_and_together_they_keep_to_the_rate() -> None:
    tree = tree_at(RATE, LinkLimits(), 4)
    root, *rest = tree.qdiscs
    assert (root.kind, root.handle, root.parent) == ("mq", 0x7033 << 16, TC_ROOT)
    tops = [item for item in rest if item.kind == "htb"]
    assert sorted(item.parent for item in tops) == [0x7033_0001 + queue for queue in range(4)]
    assert len({item.handle for item in tree.qdiscs}) == 4 * 9 + 1
    assert {item.parent >> 16 for item in tree.filters} == {item.major for item in tops}
    assert sum(item.ceil.bits_per_second for item in tree.classes if not item.quantum) == (
        RATE.bits_per_second
    )
    for band in (*tree.bands, tree.unmarked):
        assert set(tree.copies(band)) <= {item.classid for item in tree.classes}
        assert len(set(tree.copies(band))) == 4


@pytest.mark.parametrize("queues", [1, MAX_QUEUES + 1])
def test_one_queue_is_no_use_and_too_many_are_refused(queues: int) -> None:
    with pytest.raises(TreeError, match=f"{queues} transmit queues: mq is for 2 to"):
        tree_at(parse_rate("1tbit"), LinkLimits(), queues)


def test_as_many_queues_as_allowed_leave_the_majors_to_others_and_to_the_kernel() -> None:
    tree = tree_at(parse_rate("1tbit"), LinkLimits(), MAX_QUEUES)
    assert min(item.major for item in tree.qdiscs) > 0x1000
    assert max(item.major for item in tree.qdiscs) == 0x7033


def test_counters_of_all_queues_are_one() -> None:
    counters = {1: Counters(1, 2, 3, 4, 5, 6), 3: Counters(10, 20, 30, 40, 50, 60)}
    assert total(counters, (1, 2, 3)) == Counters(11, 22, 33, 44, 55, 66)
    assert total(counters, (2,)) == Counters()


def test_it_is_applied_changed_in_place_mended_and_put_back() -> None:
    async def work(node: Node) -> None:
        async with device(node) as (netlink, link):
            assert link.tx_queues == QUEUES
            await netlink.ensure(link.index, tree_at(RATE, link.limits))
            wanted = tree_at(parse_rate("300mbit"), link.limits)
            changes = await netlink.ensure(link.index, wanted)
            assert {item.request.verb for item in changes} == {Verb.CHANGE}
            assert await netlink.observe(link.index) == wanted
            for damage in (
                "qdisc replace dev eth0 parent 7033:2 handle 99: pfifo limit 10",
                "qdisc del dev eth0 parent 7033:1",
                "class change dev eth0 classid 6ff3:11 parent 6ff3:1 htb rate 1mbit ceil 2mbit",
            ):
                node.run(["tc", *damage.split()])
                mended = await netlink.ensure(link.index, wanted)
                assert TC_ROOT not in [item.request.message.parent for item in mended]
                assert await netlink.ensure(link.index, wanted) == []
            saved = await netlink.snapshot(link)
            node.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
            await netlink.apply(link.index, put_root(saved.messages, ()))
            assert await netlink.observe(link.index) == wanted

    with wide_pair() as pair:
        asyncio.run(work(pair.nodes[0]))


def test_a_queue_keeps_to_its_part_of_the_rate_and_orders_bands_in_it() -> None:
    """Every processor is given the first queue; without that a hash of the flow chooses."""

    async def work(node: Node, peer: Node) -> None:
        async with (
            device(node) as (netlink, link),
            Flow.between(node, peer, socket.AF_INET6, TABLE.bands[-1].tos) as lower,
        ):
            tree = tree_at(RATE, link.limits)
            await netlink.ensure(link.index, tree)
            first, second = zip(*map(tree.copies, tree.bands), strict=True)
            await lower.arrived(MEGABYTE)
            async with Flow.between(node, peer, socket.AF_INET, TABLE.bands[0].tos) as higher:
                await higher.arrived(MEGABYTE)
                before = await netlink.statistics(link.index)
                await higher.arrived(6 * MEGABYTE)
                after = await netlink.statistics(link.index)
            sent = [after[item].bytes - before[item].bytes for item in first]
            assert sent[0] >= 0.95 * sum(sent)
            assert total(after, second).bytes == 0

    with wide_pair() as pair:
        processors = "sed -n 's/^Cpus_allowed:\t//p' /proc/self/status"
        pair.nodes[0].run(["sh", "-c", f"{processors} > /sys/class/net/eth0/queues/tx-0/xps_cpus"])
        asyncio.run(work(*pair.nodes))


def test_a_prio_tree_can_stand_in_every_queue_too() -> None:
    tree = mq_tree(prio_tree(TABLE), 3)
    assert [item.kind for item in tree.qdiscs].count("prio") == 3
    assert not tree.classes
    assert all(len(tree.copies(band)) == 3 for band in tree.bands)
