"""From what the kernel lists to a tree. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from p3_shaper.encode import decode_class, decode_qdisc
from p3_shaper.encode_u32 import decode_filter
from p3_shaper.parts import Filter, HtbClass, Qdisc
from p3_shaper.replay import in_order, sayable
from p3_shaper.tcmessage import INGRESS_HANDLE, TC_INGRESS, Object, TcMessage
from p3_shaper.tree import Tree
from p3_shaper.u32tables import is_root_table

CLASSLESS = frozenset({"bfifo", "pfifo", "pfifo_fast"})
"""Kinds of qdisc without classes, to which the kernel attaches no filter (`tc_ctl_tfilter`)."""


class Hook(enum.Enum):
    """Where on an interface a tree hangs: what goes out, or what comes in."""

    ROOT = "root"
    INGRESS = "ingress"

    def has(self, message: TcMessage) -> bool:
        """Whether a qdisc or class hangs here."""
        at_ingress = message.parent == TC_INGRESS or message.handle >> 16 == INGRESS_HANDLE >> 16
        return at_ingress == (self is Hook.INGRESS)


def filter_places(messages: Iterable[TcMessage]) -> tuple[int, ...]:
    """Handles and class ids under which there may be filters; the kernel lists one at a time."""
    places = (
        message.handle
        for message in messages
        if message.object is Object.CLASS or message.kind not in CLASSLESS
    )
    return tuple(dict.fromkeys(filter(None, places)))


def tree_of(messages: Iterable[TcMessage]) -> Tree:
    """The tree of one hook, from all its qdiscs, classes and filters as the kernel lists them."""
    said = in_order(map(sayable, messages))
    values = [(item, _decode(item)) for item in said if not is_root_table(item)]
    return Tree(
        qdiscs=tuple(value for _, value in values if isinstance(value, Qdisc)),
        classes=tuple(value for _, value in values if isinstance(value, HtbClass)),
        filters=tuple(value for _, value in values if isinstance(value, Filter)),
        other=tuple(item for item, value in values if value is None),
        messages=said,
    )


def _decode(message: TcMessage) -> Qdisc | HtbClass | Filter | None:
    match message.object:
        case Object.QDISC:
            return decode_qdisc(message)
        case Object.CLASS:
            return decode_class(message)
        case Object.FILTER:
            return decode_filter(message)
