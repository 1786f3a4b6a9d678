"""How what the kernel told can be told to it again, in which order and with which patches. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from p3_shaper.tcmessage import TC_INGRESS, TC_ROOT, Object, TcMessage, patch

_HTB_INIT = 2
_HTB_VERSION = 3  # it reports 0x30011, but takes 3 alone
_HTB_GLOB = struct.Struct("=IIIII")
_FLAGS_NUMBER = {"u32": 11, "flower": 22, "matchall": 3}
_FLAGS_SAYABLE = 0b1_0011  # skip_hw, skip_sw, verbose: the others are the kernel's own
_MAJOR = 0xFFFF_0000
_U32_NODE = 0x000F_FFFF
_U32_FIRST_ROOT_TABLE = 0x800


class ReplayError(ValueError):
    """A tree that cannot be put back from what the kernel tells of it; the message says why."""


def is_implied(message: TcMessage) -> bool:
    """Whether the kernel makes this by itself: defaults, pseudo-classes, u32's root tables."""
    match message.object:
        case Object.QDISC:
            return not message.handle
        case Object.CLASS:
            return message.options is None
        case Object.FILTER:
            return not message.handle or message.options is None or _is_root_table(message)


def _is_root_table(message: TcMessage) -> bool:
    """u32 makes one hash table for each priority, numbered from 0x800 up; a user's are below."""
    if message.kind != "u32" or message.handle & _U32_NODE:
        return False
    return message.handle >> 20 >= _U32_FIRST_ROOT_TABLE


def sayable(message: TcMessage) -> TcMessage:
    """`message` as the kernel accepts it back: without what it only reports."""
    options, parent = message.options, message.parent
    if options is None:
        return message
    if message.object is Object.CLASS and parent == TC_ROOT:
        parent = message.handle & _MAJOR  # how it reports a class right below its qdisc
    if message.object is Object.QDISC and message.kind == "htb":
        options = patch(options, _HTB_INIT, _asked_htb)
    if message.object is Object.FILTER and message.kind in _FLAGS_NUMBER:
        options = patch(options, _FLAGS_NUMBER[message.kind], _asked_flags)
    return replace(message, options=options, parent=parent)


def _asked_htb(value: bytes) -> bytes:
    """Version 3, and the counter of unshaped packets at zero."""
    _, rate_to_quantum, default, debug, _ = _HTB_GLOB.unpack(value)
    return _HTB_GLOB.pack(_HTB_VERSION, rate_to_quantum, default, debug, 0)


def _asked_flags(value: bytes) -> bytes:
    return struct.pack("=I", struct.unpack("=I", value)[0] & _FLAGS_SAYABLE)


def in_order(messages: Iterable[TcMessage]) -> tuple[TcMessage, ...]:
    """What is not implied, parents before children, filters last, u32 tables as they were made."""
    wanted = [message for message in messages if not is_implied(message)]
    filters = [message for message in wanted if message.object is Object.FILTER]
    queues = [message for message in wanted if message.object is not Object.FILTER]
    return (*_parents_first(queues), *sorted(filters, key=_filter_order))


def _parents_first(messages: list[TcMessage]) -> Iterator[TcMessage]:
    below: dict[int, list[TcMessage]] = {}
    for message in messages:
        below.setdefault(message.parent, []).append(message)
    ready = [*below.pop(TC_ROOT, []), *below.pop(TC_INGRESS, [])]
    while ready:
        message = ready.pop(0)
        yield message
        ready += below.pop(message.handle, [])
    for orphans in below.values():
        yield from orphans


def _filter_order(message: TcMessage) -> tuple[int, int, int]:
    """Tables by number, since root tables are counted up, and before the filters in them."""
    return message.parent, message.handle >> 20, message.handle & _U32_NODE


def check(messages: Iterable[TcMessage]) -> None:
    """Raise ReplayError if one of `messages` cannot be said to the kernel again."""
    for message in messages:
        if message.unsayable:
            raise ReplayError(
                f"the {message.object.value} {message.kind} here could not be put back: "
                f"{message.unsayable}; remove it yourself first, and nothing is lost unawares"
            )
