"""Our bytes are tc's: what it asks the kernel for, and what it shows of what the kernel has."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import struct

import pytest
from support.tc_requests import monitored

from p3_shaper.bands import BandTable, default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.encode import encode_class, encode_qdisc
from p3_shaper.encode_u32 import encode_filter
from p3_shaper.limits import NANOSECONDS_PER_TICK, LinkLimits
from p3_shaper.netlink import Hook, open_netlink
from p3_shaper.parts import (
    EtsOptions,
    FifoOptions,
    Filter,
    HtbClass,
    HtbOptions,
    Match,
    Options,
    PrioOptions,
    Qdisc,
)
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import (
    TC_INGRESS,
    TC_ROOT,
    Object,
    TcMessage,
    attribute,
    attributes,
    handle_text,
    parse,
)
from p3_shaper.tree import Tree, htb_prio_tree, htb_tree, ingress_tree, link_tree, prio_tree

pytestmark = pytest.mark.calm

LO = 1
GBIT, FAST = parse_rate("1gbit"), parse_rate("40gbit")
MAP = (2, 1, 0) + (2,) * 13
MAP_TEXT = " ".join(map(str, MAP))

QDISCS = {
    "root handle 1: htb default 30": Qdisc("htb", 0x1_0000, TC_ROOT, HtbOptions(0x30)),
    "root handle 99: mq": Qdisc("mq", 0x99_0000, TC_ROOT),
    "ingress": Qdisc("ingress", 0xFFFF_0000, TC_INGRESS),
    "parent 1:1 handle 10: bfifo limit 70000": Qdisc(
        "bfifo", 0x10_0000, 0x1_0001, FifoOptions(70_000)
    ),
    "parent 1:1 handle 11: pfifo limit 70": Qdisc("pfifo", 0x11_0000, 0x1_0001, FifoOptions(70)),
    f"parent 1:1 handle 12: prio bands 3 priomap {MAP_TEXT}": Qdisc(
        "prio", 0x12_0000, 0x1_0001, PrioOptions(3, MAP)
    ),
    f"parent 1:1 handle 13: ets strict 3 priomap {MAP_TEXT}": Qdisc(
        "ets", 0x13_0000, 0x1_0001, EtsOptions(3, 3, (), MAP)
    ),
    "parent 1:1 handle 14: ets bands 5 strict 3 quanta 3000 4000 priomap 4 0 1": Qdisc(
        "ets", 0x14_0000, 0x1_0001, EtsOptions(5, 3, (3000, 4000), (4, 0, 1))
    ),
}
CLASSES = {  # with bursts of whole microseconds, to which tc rounds
    "rate 1gbit ceil 1gbit burst 16000 cburst 16000": (GBIT, GBIT),
    "rate 1gbit ceil 40gbit burst 16000 cburst 640000": (GBIT, FAST),
    "rate 40gbit ceil 40gbit burst 640000 cburst 640000": (FAST, FAST),
}
FILTERS = {
    "parent 1: protocol ip prio 16 u32 match u32 0xa40000 0xfc0000 at 0 flowid 1:10": Filter(
        0x1_0000, 16, 0x0800, (Match(0, 0xFC0000, 0xA40000),), 0x1_0010
    ),
    "parent 1: protocol ipv6 prio 17 u32 match u32 1 f at 4 match u32 2 f at 52 flowid 1:11": (
        Filter(0x1_0000, 17, 0x86DD, (Match(4, 15, 1), Match(52, 15, 2)), 0x1_0011)
    ),
    "parent ffff: protocol all prio 9 u32 match u32 0 0 action mirred egress redirect dev lo": (
        Filter(0xFFFF_0000, 9, 0x0003, (Match(0, 0, 0),), redirect=LO)
    ),
}


@pytest.mark.needs_kinds("link:nlmon")
def test_what_we_ask_for_is_what_tc_asks_for(pair: Pair) -> None:
    """The kernel's answer does not matter: it may lack the kind, or what the thing is put below."""
    node = pair.nodes[0]
    index = int(node.run(["cat", "/sys/class/net/eth0/ifindex"]).stdout)
    with monitored(node) as requests:
        for line, qdisc in QDISCS.items():
            asked = requests.of(node, f"qdisc add dev eth0 {line}")
            assert asked == _as_tc_ends(qdisc, encode_qdisc(qdisc)).payload(index), line
        for line, item in FILTERS.items():
            asked = requests.of(node, f"filter add dev eth0 {line}")
            assert asked == encode_filter(item).payload(index), line
        for line, rates in CLASSES.items():
            made = HtbClass(0x1_0010, 0x1_0001, *rates, 2000, 2000, priority=3, quantum=65_536)
            place = "class add dev eth0 parent 1:1 classid 1:10 htb prio 3 quantum 65536"
            asked = requests.of(node, f"{place} {line}")
            ours = encode_class(made).payload(index)
            assert _less_rate_tables(asked) == _less_rate_tables(ours), line


def _as_tc_ends(qdisc: Qdisc, message: TcMessage) -> TcMessage:
    """After prio's options tc has an empty attribute, once for multiq, which nobody reads."""
    if qdisc.kind != "prio":
        return message
    assert message.options is not None
    return TcMessage(
        message.object,
        message.handle,
        message.parent,
        message.kind,
        message.options + attribute(2, b""),
    )


def _less_rate_tables(body: bytes) -> tuple[TcMessage, dict[int, bytes]]:
    """An htb class without what the kernel has not read since it computes rates (Linux 3.8).

    These are TCA_HTB_RTAB and TCA_HTB_CTAB, and cell_log and cell_align in both rates.
    """
    _, message, _ = parse(Object.CLASS, body)
    options = dict(attributes(message.options or b""))
    parms = bytearray(options[1])
    for offset in (0, 12):
        struct.pack_into("=B", parms, offset, 0)
        struct.pack_into("=h", parms, offset + 4, 0)
    left = {number: value for number, value in options.items() if number not in (3, 4)}
    bare = TcMessage(message.object, message.handle, message.parent, message.kind)
    return bare, {**left, 1: bytes(parms)}


LIMITS = LinkLimits()
TABLE = default_table()
SIXTEEN = BandTable(tuple(range(5, 21)))
PROTOCOLS = {"all": 0x0003, "ip": 0x0800, "ipv6": 0x86DD}
PRIO = pytest.mark.needs_kinds("prio")


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(htb_tree(TABLE, GBIT, LIMITS), id="htb"),
        pytest.param(link_tree(FAST, 1 << 20, LIMITS), id="link"),
        pytest.param(ingress_tree(LO), id="ingress"),
        pytest.param(prio_tree(TABLE), id="prio", marks=PRIO),
        pytest.param(htb_prio_tree(SIXTEEN, FAST, LIMITS), id="htb+prio", marks=PRIO),
    ],
)
def test_what_we_read_is_what_tc_shows(pair: Pair, tree: Tree) -> None:
    node = pair.nodes[0]

    async def read() -> Tree:
        async with open_netlink(node.name) as netlink:
            link = await netlink.link("eth0")
            await netlink.ensure(link.index, tree)
            hook = Hook.ROOT if tree.classes or tree.bands else Hook.INGRESS
            return await netlink.observe(link.index, hook)

    observed = asyncio.run(read())
    assert _qdiscs_shown(node) >= set(observed.qdiscs)
    assert _classes_shown(node) == {item.classid: _in_words(item) for item in observed.classes}
    assert _filters_shown(node, observed) == observed.filters


def _tc(node: Node, *words: str) -> str:
    return node.run(["tc", *words, "dev", "eth0"]).stdout


def _qdiscs_shown(node: Node) -> set[Qdisc]:
    return {
        Qdisc(
            item["kind"],
            _handle(item["handle"]),
            TC_ROOT if item.get("root") else _handle(item["parent"]),
            _options_shown(item["kind"], item["options"]),
        )
        for item in json.loads(_tc(node, "-json", "-details", "qdisc", "show"))
    }


def _options_shown(kind: str, said: dict[str, object]) -> Options | None:
    match kind, said:
        case "htb", {"default": str(default), "r2q": int(quantum)}:
            return HtbOptions(int(default, 16), quantum)
        case "bfifo", {"limit": int(limit)}:
            return FifoOptions(limit)
        case "prio", {"bands": int(bands), "priomap": list(priomap)}:
            return PrioOptions(bands, tuple(priomap))
        case _:
            return None


def _handle(text: str) -> int:
    major, _, minor = text.partition(":")
    return int(major, 16) << 16 | int(minor or "0", 16)


def _in_words(item: HtbClass) -> dict[str, object]:
    root = item.parent == item.classid & 0xFFFF_0000
    words: dict[str, object] = {
        "parent": "root" if root else handle_text(item.parent),
        "rate": item.rate,
        "ceil": item.ceil,
        "burst": _burst(item.rate, item.burst),
        "cburst": _burst(item.ceil, item.ceil_burst),
    }
    return words | ({"prio": item.priority, "quantum": item.quantum} if item.quantum else {})


def _burst(rate: Rate, ticks: int) -> object:
    """As tc shows it: of whole microseconds, and in KiB where that is within 16 bytes."""
    microseconds = ticks * NANOSECONDS_PER_TICK // 1000
    return pytest.approx(rate.bytes_per_second * microseconds / 1e6, abs=16)


def _classes_shown(node: Node) -> dict[int, dict[str, object]]:
    lines = _tc(node, "-details", "class", "show").splitlines()
    return {
        _handle(words[2]): _class_shown(words[3:])
        for words in map(str.split, lines)
        if words[1] == "htb"
    }


def _class_shown(words: list[str]) -> dict[str, object]:
    said = dict(itertools.pairwise(words))
    numbers = {name: int(said[name]) for name in ("prio", "quantum") if name in said}
    return numbers | {
        "parent": said.get("parent", "root"),
        "rate": parse_rate(said["rate"].lower()),
        "ceil": parse_rate(said["ceil"].lower()),
        "burst": _size(said["burst"]),
        "cburst": _size(said["cburst"]),
    }


def _size(text: str) -> int:
    """With the cell size, which tc always shows as 1."""
    size = text.removesuffix("/1")
    return int(size[:-2]) * 1024 if size.endswith("Kb") else int(size.removesuffix("b"))


def _filters_shown(node: Node, tree: Tree) -> tuple[Filter, ...]:
    return tuple(
        _filter_shown(parent, text)
        for parent in sorted({item.parent for item in tree.filters})
        for text in re.split(
            r"^filter ", _tc(node, "filter", "show", "parent", handle_text(parent)), flags=re.M
        )
        if " order " in text
    )


def _filter_shown(parent: int, text: str) -> Filter:
    flow = re.search(r"flowid ([0-9a-f]+:[0-9a-f]+)", text)
    return Filter(
        parent,
        int(_word("pref", text)),
        PROTOCOLS[_word("protocol", text)],
        tuple(
            Match(int(offset), int(mask, 16), int(value, 16))
            for value, mask, offset in re.findall(r"match (\w+)/(\w+) at (\d+)", text)
        ),
        _handle(flow[1]) if flow else 0,
        LO if "Redirect to device lo" in text else 0,
    )


def _word(before: str, text: str) -> str:
    return text.split()[text.split().index(before) + 1]
