"""What the builders of trees share: where a part stands under its major, what it holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from p3_shaper.bands import BandTable
from p3_shaper.limits import LinkLimits, burst_bytes, burst_ticks, quantum_bytes
from p3_shaper.matches import ack_ipv4, ack_ipv6, dscp_ipv4, dscp_ipv6
from p3_shaper.parts import (
    ETH_P_ALL,
    EtsOptions,
    FifoOptions,
    Filter,
    HtbClass,
    HtbOptions,
    PrioOptions,
    Qdisc,
)
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import TC_ROOT

INNER = 0x01
MARKED = 0x02
FIRST_BAND = 0x10
UNMARKED = 0x1F
"""Minors of classes below an htb root."""
LOWEST_PRIORITY = 7
"""HTB clamps larger ones without a word."""
Strict = Literal["prio", "ets"]
"""Qdiscs whose bands go in strict order, at most 16."""
_ACK_PRIORITY = 1
_DSCP_PRIORITY = 0x10


def class_id(major: int, minor: int) -> int:
    """A class id, as a handle of 32 bits."""
    return major << 16 | minor


def leaf_major(classid: int) -> int:
    """Majors above the root's, one for each class, so that leaves are recognised as ours too."""
    return (classid >> 16) + (classid & 0xFFFF)


def htb_root(major: int, default: int) -> Qdisc:
    """An htb root qdisc; `default` is the minor of the class for what no filter takes."""
    return Qdisc("htb", major << 16, TC_ROOT, HtbOptions(default))


def leaf(classid: int, limit: int) -> Qdisc:
    """The queue of a class, of `limit` bytes."""
    return Qdisc("bfifo", leaf_major(classid) << 16, classid, FifoOptions(limit))


def inner_class(major: int, link: Rate, limits: LinkLimits) -> HtbClass:
    """The class of the whole link, which those below it borrow from."""
    burst = burst_ticks(link, burst_bytes(link, limits))
    return HtbClass(class_id(major, INNER), major << 16, link, link, burst, burst)


def leaf_class(
    classid: int, parent: int, rates: tuple[Rate, Rate], priority: int, limits: LinkLimits
) -> HtbClass:
    """A class with a queue; `rates` is what it is guaranteed and what it may take."""
    rate, ceil = rates
    return HtbClass(
        classid=classid,
        parent=parent,
        rate=rate,
        ceil=ceil,
        burst=burst_ticks(rate, burst_bytes(rate, limits)),
        ceil_burst=burst_ticks(ceil, burst_bytes(ceil, limits)),
        priority=priority,
        quantum=quantum_bytes(limits),
    )


def strict(
    kind: Strict, major: int, parent: int, bands: int, limit: int
) -> tuple[tuple[Qdisc, ...], tuple[int, ...]]:
    """A qdisc of strict bands with a byte-bounded queue in each, and its class ids.

    What no filter takes goes to the last band.
    """
    priomap = (bands - 1,) * 16
    options = (
        PrioOptions(bands, priomap) if kind == "prio" else EtsOptions(bands, bands, (), priomap)
    )
    classes = tuple(class_id(major, minor) for minor in range(1, bands + 1))
    qdisc = Qdisc(kind, major << 16, parent, options)
    return (qdisc, *(leaf(classid, limit) for classid in classes)), classes


def ack_filters(major: int, classid: int) -> tuple[Filter, ...]:
    """Pure acknowledgements go first: behind a backlogged band they throttle what comes in."""
    root = major << 16
    return (
        Filter(root, _ACK_PRIORITY, ETH_P_ALL, ack_ipv4(), classid),
        Filter(root, _ACK_PRIORITY + 1, ETH_P_ALL, ack_ipv6(), classid),
    )


def dscp_filters(major: int, table: BandTable, classes: tuple[int, ...]) -> Iterator[Filter]:
    """In pairs, IPv4 and IPv6, each of a priority of its own, by which it can be removed."""
    root = major << 16
    for band, classid in zip(table.bands, classes, strict=True):
        priority = _DSCP_PRIORITY + 2 * band.index
        yield Filter(root, priority, ETH_P_ALL, dscp_ipv4(band.dscp), classid)
        yield Filter(root, priority + 1, ETH_P_ALL, dscp_ipv6(band.dscp), classid)
