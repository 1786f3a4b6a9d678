"""Trees and messages in the words of tc, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p3_shaper.encode import decode_class, decode_qdisc
from p3_shaper.encode_u32 import decode_filter, filter_key
from p3_shaper.limits import ticks_bytes
from p3_shaper.parts import (
    ETH_P_ALL,
    ETH_P_IP,
    ETH_P_IPV6,
    EtsOptions,
    FifoOptions,
    Filter,
    HtbClass,
    HtbOptions,
    PrioOptions,
    Qdisc,
)
from p3_shaper.tcmessage import Object, TcMessage, handle_text
from p3_shaper.tree import Tree

_PROTOCOLS = {ETH_P_ALL: "all", ETH_P_IP: "ip", ETH_P_IPV6: "ipv6"}


def describe_tree(tree: Tree) -> Iterator[str]:
    """One line for each part."""
    yield from map(describe_qdisc, tree.qdiscs)
    yield from map(describe_class, tree.classes)
    yield from map(describe_filter, tree.filters)
    yield from map(describe_message, tree.other)


def describe_message(message: TcMessage) -> str:
    """One line for what the kernel says or hears."""
    if message.object is Object.QDISC:
        return describe_qdisc(decode_qdisc(message))
    if message.object is Object.CLASS:
        item = decode_class(message)
        if item is not None:
            return describe_class(item)
        return f"class {handle_text(message.handle)} {message.kind}".rstrip()
    chosen = decode_filter(message)
    if chosen is not None:
        return describe_filter(chosen)
    parent, priority, protocol = filter_key(message)
    return (
        f"filter parent {handle_text(parent)} protocol {_protocol(protocol)} "
        f"pref {priority} {message.kind}"
    ).rstrip()


def describe_qdisc(qdisc: Qdisc) -> str:
    """`qdisc bfifo 7043: parent 7033:10 limit 4194304b`."""
    parent = handle_text(qdisc.parent)
    place = parent if parent in ("root", "ingress") else f"parent {parent}"
    kind = f"{qdisc.kind} " if qdisc.kind else ""
    return f"qdisc {kind}{handle_text(qdisc.handle)} {place}{_options(qdisc)}"


def _options(qdisc: Qdisc) -> str:
    match qdisc.options:
        case HtbOptions(default):
            return f" default {default:#x}"
        case FifoOptions(limit):
            return f" limit {limit}{'b' if qdisc.kind == 'bfifo' else 'p'}"
        case PrioOptions(bands, priomap):
            return f" bands {bands} priomap {' '.join(map(str, priomap))}"
        case EtsOptions(bands, strict, quanta, priomap):
            shares = "".join(f" {quantum}" for quantum in quanta)
            return (
                f" bands {bands} strict {strict}{shares and ' quanta' + shares} "
                f"priomap {' '.join(map(str, priomap))}"
            )
        case _:
            return ""


def describe_class(item: HtbClass) -> str:
    """`class 7033:10 parent 7033:1 htb rate 1mbit ceil 200mbit …`."""
    text = (
        f"class {handle_text(item.classid)} parent {handle_text(item.parent)} htb "
        f"rate {item.rate} ceil {item.ceil} burst {ticks_bytes(item.rate, item.burst)}b "
        f"cburst {ticks_bytes(item.ceil, item.ceil_burst)}b"
    )
    return f"{text} prio {item.priority} quantum {item.quantum}" if item.quantum else text


def describe_filter(item: Filter) -> str:
    """`filter parent 7033: protocol all pref 16 u32 match 40a40000/f0fc0000 at 0 …`."""
    matches = " ".join(
        f"match {match.value:08x}/{match.mask:08x} at {match.offset}" for match in item.matches
    )
    target = f"flowid {handle_text(item.classid)}" if item.classid else ""
    if item.redirect:
        target = f"redirect to interface {item.redirect}"
    return (
        f"filter parent {handle_text(item.parent)} protocol {_protocol(item.protocol)} "
        f"pref {item.priority} u32 {matches} {target}"
    )


def _protocol(protocol: int) -> str:
    return _PROTOCOLS.get(protocol, f"{protocol:#06x}")
