"""Other programs' trees: put back and compared byte for byte, or refused beforehand."""

from __future__ import annotations

import asyncio

import pytest
from support.cases import case
from support.rawtc import raw

from p3_shaper.bands import default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.cluster_nodes import batch
from p3_shaper.netlink import Snapshot, open_netlink
from p3_shaper.plan import PlanError
from p3_shaper.rates import parse_rate
from p3_shaper.replay import ReplayError, check
from p3_shaper.tcmessage import Object, TcMessage, attribute
from p3_shaper.tree import htb_tree

pytestmark = pytest.mark.calm

HTB = """
qdisc add dev eth0 root handle 1: htb default 30
class add dev eth0 parent 1: classid 1:1 htb rate 100mbit burst 15k
class add dev eth0 parent 1:1 classid 1:30 htb rate 1mbit ceil 100mbit
"""
CLEAR = ["tc", "qdisc", "del", "dev", "eth0", "root"]
TREES = {
    "default": "",
    "htb": """
qdisc add dev eth0 root handle 1: htb default 30 r2q 5 direct_qlen 77
class add dev eth0 parent 1: classid 1:1 htb rate 100mbit ceil 100mbit burst 15k
class add dev eth0 parent 1:1 classid 1:10 htb rate 5mbit ceil 100mbit prio 1 overhead 24 mpu 64
class add dev eth0 parent 1:1 classid 1:30 htb rate 1mbit ceil 100mbit prio 3 quantum 3000
class add dev eth0 parent 1: classid 1:40 htb rate 50gbit ceil 60gbit
qdisc add dev eth0 parent 1:10 handle 10: tbf rate 4mbit burst 32k latency 50ms
qdisc add dev eth0 parent 1:30 handle 30: bfifo limit 1mb
qdisc add dev eth0 parent 1:40 handle 40: htb default 1
class add dev eth0 parent 40: classid 40:1 htb rate 1gbit
""",
    "htb with u32": f"""{HTB}
filter add dev eth0 parent 1: protocol ip prio 20 u32 match ip dport 80 0xffff flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 10 u32 match ip tos 0xb8 0xfc flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 10 u32 match ip protocol 17 0xff flowid 1:1
filter add dev eth0 parent 1: protocol ipv6 prio 11 u32 match ip6 priority 0xb8 0xfc flowid 1:30
filter add dev eth0 parent 1: protocol all prio 12 u32 skip_hw match u8 0 0 at nexthdr+3 flowid 1:30
filter add dev eth0 parent 1:1 protocol ip prio 3 u32 match ip dport 22 0xffff flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 7 chain 5 u32 match ip sport 9 0xffff flowid 1:30
""",
    "u32 with hash tables": f"""{HTB}
filter add dev eth0 parent 1: protocol ip prio 5 handle 7: u32 divisor 16
filter add dev eth0 parent 1: protocol ip prio 5 handle 8: u32 divisor 256
filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 7:3: match ip dst 10.0.0.3/32 flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 5 handle 7:3:9 u32 ht 7:3: match ip dst 10.0.0.4/32 \
flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 800:: match ip dst 10.0.0.0/8 \
hashkey mask 0x000000ff at 16 link 7:
filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 800:: match ip protocol 6 0xff \
offset at 0 mask 0x0f00 shift 6 plus 0 eat link 8:
filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 8:10: match tcp dst 80 0xffff flowid 1:30
""",
    "a hole in u32's numbers": f"""{HTB}
filter add dev eth0 parent 1: protocol ip prio 10 u32 match ip protocol 17 0xff flowid 1:30
filter add dev eth0 parent 1: protocol ip prio 20 u32 match ip protocol 6 0xff flowid 1:30
filter del dev eth0 parent 1: protocol ip prio 10 u32
""",
    "actions": f"""{HTB}
filter add dev eth0 parent 1: prio 9 u32 match u32 0 0 action mirred egress mirror dev lo
filter add dev eth0 parent 1: prio 8 u32 match u32 9 9 flowid 1:30 \
action mirred egress mirror dev lo pipe action mirred ingress redirect dev lo index 77
""",
    "pfifo": "qdisc add dev eth0 root handle 5: pfifo limit 77",
    "no handle of its own": "qdisc add dev eth0 root bfifo limit 70000",
    "tbf": "qdisc add dev eth0 root handle 8: tbf rate 10mbit burst 32k latency 50ms",
    "tbf with a child": """
qdisc add dev eth0 root handle 8: tbf rate 50gbit burst 1m limit 9m peakrate 60gbit mtu 64k
qdisc add dev eth0 parent 8:1 handle 80: pfifo limit 7
""",
    "mq": """
qdisc add dev eth0 root handle 1: mq
qdisc replace dev eth0 parent 1:1 handle 11: bfifo limit 9000
qdisc replace dev eth0 parent 1:2 handle 12: htb default 1
class add dev eth0 parent 12: classid 12:1 htb rate 1gbit
""",
    "clsact with filters beside it": """
qdisc add dev eth0 root handle 5: pfifo limit 77
qdisc add dev eth0 clsact
filter add dev eth0 ingress prio 1 u32 match u32 0 0 action mirred egress mirror dev lo
filter add dev eth0 egress protocol ip prio 2 u32 match ip protocol 17 0xff classid 5:1
filter add dev eth0 egress protocol ip prio 3 bpf bytecode "1,6 0 0 0," classid 5:1
""",
    "ingress beside the default": """
qdisc add dev eth0 ingress
filter add dev eth0 parent ffff: prio 1 u32 match u32 0 0 action mirred egress mirror dev lo
""",
    "a link of p3-shape": """
qdisc add dev eth0 root handle 7053: htb default 10
class add dev eth0 parent 7053: classid 7053:10 htb rate 200mbit ceil 200mbit burst 131072
qdisc add dev eth0 parent 7053:10 bfifo limit 256000
""",
}
TREES_OF_THE_SECOND_KERNEL = {
    "fq": "qdisc add dev eth0 root fq limit 777 flow_limit 55 maxrate 1gbit ce_threshold 3ms",
    "fq_codel": "qdisc add dev eth0 root handle 5: fq_codel limit 99 flows 64 target 3ms noecn",
    "sfq": "qdisc add dev eth0 root handle 5: sfq perturb 10 limit 90 depth 30 divisor 256",
    "cake": "qdisc add dev eth0 root handle 5: cake bandwidth 90mbit diffserv4 nat overhead 18",
    "prio": """
qdisc add dev eth0 root handle 1: prio bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 3
qdisc add dev eth0 parent 1:1 handle 10: codel limit 7
qdisc add dev eth0 parent 1:2 handle 20: netem delay 3ms limit 99 loss 1% rate 5mbit
qdisc add dev eth0 parent 1:3 handle 30: pfifo_fast
""",
    "hfsc": """
qdisc add dev eth0 root handle 1: hfsc default 10
class add dev eth0 parent 1: classid 1:1 hfsc sc rate 90mbit ul rate 90mbit
class add dev eth0 parent 1:1 classid 1:10 hfsc rt m1 9mbit d 10ms m2 5mbit ls m2 1mbit
""",
    "drr and qfq": """
qdisc add dev eth0 root handle 1: drr
class add dev eth0 parent 1: classid 1:1 drr quantum 3000
class add dev eth0 parent 1: classid 1:2 drr
qdisc add dev eth0 parent 1:2 handle 2: qfq
class add dev eth0 parent 2: classid 2:1 qfq weight 7 maxpkt 2000
""",
    "other classifiers": f"""{HTB}
filter add dev eth0 parent 1: prio 1 protocol ip flower ip_proto tcp dst_port 80 classid 1:30
filter add dev eth0 parent 1: prio 2 handle 6 fw classid 1:30
filter add dev eth0 parent 1: prio 3 protocol ip basic match 'cmp(u8 at 9 layer 1 eq 6)' flowid 1:30
filter add dev eth0 parent 1: prio 4 matchall classid 1:30 action skbedit priority 1:30
filter add dev eth0 parent 1: prio 5 handle 1: cgroup
filter add dev eth0 parent 1: prio 6 u32 match u32 1 1 action vlan push id 5 pipe action drop
filter add dev eth0 parent 1: prio 7 u32 match u32 2 2 action gact pass random determ drop 5
""",
}


async def comes_back(node: Node, lines: str) -> None:
    """Put bands in place of what `lines` make, restore from bytes, and compare."""
    batch("tc", lines.replace("\\\n", "").strip().splitlines(), node.name)
    async with open_netlink(node.name) as netlink:
        link = await netlink.link("eth0")
        before = await raw(node.name, link.index)
        saved = (await netlink.snapshot(link)).to_bytes()
        tree = htb_tree(default_table(), parse_rate("200mbit"), link.limits)
        if "dev eth0 root" in lines:
            with pytest.raises(PlanError, match="not ours"):
                await netlink.ensure(link.index, tree)
            assert await raw(node.name, link.index) == before
        operations = await netlink.ensure(link.index, tree, takeover=True)
        assert await netlink.observe(link.index) == tree
        snapshot = Snapshot.from_bytes(saved)
        assert (snapshot.name, snapshot.index, snapshot.mac) == ("eth0", link.index, link.mac)
        assert await netlink.restore(link.index, snapshot)
        assert await raw(node.name, link.index) == before
        assert await netlink.restore(link.index, snapshot) == []
        await netlink.apply(link.index, operations)
        await netlink.undo(link.index, operations)
        assert await raw(node.name, link.index) == before


@pytest.mark.parametrize("lines", TREES.values(), ids=TREES.keys())
def test_a_tree_comes_back_byte_for_byte(pair: Pair, lines: str) -> None:
    asyncio.run(comes_back(pair.nodes[0], lines))


@pytest.mark.second_kernel
def test_trees_of_other_kinds_come_back_byte_for_byte(pair: Pair) -> None:
    for name, lines in TREES_OF_THE_SECOND_KERNEL.items():
        with case(name):
            asyncio.run(comes_back(pair.nodes[0], lines))
            pair.nodes[0].run(CLEAR)


@pytest.mark.second_kernel
def test_the_default_of_a_device_with_queues_comes_back(pair: Pair) -> None:
    """mq and what is below it, none of it with a handle; here beside a link that is down."""
    node = pair.nodes[0]
    batch("ip", ["link del eth0", "link add eth0 numtxqueues 4 type ifb"], node.name)
    asyncio.run(comes_back(node, ""))
    batch("ip", ["link set eth0 up"], node.name)
    assert node.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout.startswith("qdisc mq 0: root")
    asyncio.run(comes_back(node, ""))


REFUSED = {
    f'{HTB}filter add dev eth0 parent 1: prio 9 bpf bytecode "1,6 0 0 0," flowid 1:30': (
        "filter bpf here could not be put back: a bpf program cannot be loaded again"
    ),
    "qdisc add dev eth0 root handle 1: stab mtu 1500 tsize 512 mpu 64 pfifo": "size table",
}
REFUSED_IN_THE_SECOND_KERNEL = {
    "qdisc add dev eth0 root red limit 90k avpkt 1000 min 9k max 30k burst 20": "all of red",
    "qdisc add dev eth0 root netem delay 9ms 3ms": "distribution of its jitter",
    "qdisc add dev eth0 root netem slot 5ms 9ms": "distribution of its jitter",
}


async def refused(node: Node, lines: str, reason: str) -> None:
    batch("tc", lines.strip().splitlines(), node.name)
    async with open_netlink(node.name) as netlink:
        link = await netlink.link("eth0")
        before = await raw(node.name, link.index)
        with pytest.raises(ReplayError, match=reason):
            await netlink.snapshot(link)
        tree = htb_tree(default_table(), parse_rate("200mbit"), link.limits)
        with pytest.raises(PlanError, match=reason):
            await netlink.ensure(link.index, tree, takeover=True)
        assert await raw(node.name, link.index) == before


@pytest.mark.parametrize("lines", REFUSED, ids=["bpf", "stab"])
def test_what_could_not_come_back_is_refused_before_anything_changes(
    pair: Pair, lines: str
) -> None:
    asyncio.run(refused(pair.nodes[0], lines, REFUSED[lines]))


@pytest.mark.second_kernel
def test_other_kinds_that_could_not_come_back_are_refused(pair: Pair) -> None:
    for lines, reason in REFUSED_IN_THE_SECOND_KERNEL.items():
        with case(lines):
            asyncio.run(refused(pair.nodes[0], lines, reason))
            pair.nodes[0].run(CLEAR)


def test_actions_and_kinds_that_nobody_has_tried_are_refused() -> None:
    def action(kind: bytes) -> bytes:
        return attribute(7, attribute(1, attribute(1, kind + b"\0")))

    for message, reason in (
        (TcMessage(Object.FILTER, 1, 1 << 16, "u32", action(b"police")), "rate table"),
        (TcMessage(Object.FILTER, 1, 1 << 16, "u32", attribute(6, b"")), "rate table"),
        (TcMessage(Object.FILTER, 1, 1 << 16, "u32", action(b"bpf")), "bpf program"),
        (TcMessage(Object.FILTER, 1, 1 << 16, "u32", action(b"pedit")), "all of action pedit"),
        (TcMessage(Object.FILTER, 1, 1 << 16, "rsvp", b""), "all of rsvp"),
        (TcMessage(Object.QDISC, 1 << 16, 0xFFFF_FFFF, "taprio", b""), "all of taprio"),
    ):
        with pytest.raises(ReplayError, match=reason):
            check((message,))
    check((TcMessage(Object.FILTER, 1, 1 << 16, "u32", action(b"mirred")),))
