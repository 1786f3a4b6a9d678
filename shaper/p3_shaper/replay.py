"""How what the kernel told can be told to it again: in which order, and what of it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from p3_shaper.replayable import CLASSIFIERS, Classifier, obstacle
from p3_shaper.tcmessage import TC_INGRESS, TC_ROOT, Object, TcMessage, attributes, rewrite
from p3_shaper.u32tables import filter_order, is_root_table

_MAJOR = 0xFFFF_0000
_HTB_INIT = 2
_HTB_VERSION = 3  # it reports 0x30011, but takes 3 alone
_HTB_GLOB = struct.Struct("=IIIII")

_CODEL_TIMES = {"codel": {1, 3, 5}, "fq_codel": {1, 3, 7}}
"""Target, interval and CE threshold, which they keep in 1024 ns and tell in whole µs."""
_FLAGS_SAYABLE = 0b1_0011  # skip_hw, skip_sw, verbose: the others are the kernel's own
_ACTION_KIND, _ACTION_OPTIONS, _ACTION_STATS = 1, 2, 4
_PLAIN_ACTIONS = (b"gact\0", b"mirred\0", b"skbedit\0", b"vlan\0")
"""Actions whose options are one structure that begins with struct tc_gen, and when last used."""
_ACTION_TIMES, _ACTION_PARMS = 1, 2
_USERS = slice(12, 20)  # tc_gen's refcnt and bindcnt


class ReplayError(ValueError):
    """A tree that cannot be put back from what the kernel tells of it; the message says why."""


def check(messages: Iterable[TcMessage]) -> None:
    """Raise ReplayError if one of `messages` cannot be said to the kernel again."""
    for message in messages:
        if reason := obstacle(message):
            raise ReplayError(
                f"the {message.object.value} {message.kind} here could not be put back: "
                f"{reason}; remove it yourself first, and nothing is lost unawares"
            )


def is_implied(message: TcMessage) -> bool:
    """Whether the kernel makes this by itself: defaults, pseudo-classes, u32's root tables."""
    match message.object:
        case Object.QDISC:
            return not message.handle
        case Object.CLASS:
            # hfsc tells of its qdisc as of a class, too
            return message.options is None or not message.handle & ~_MAJOR
        case Object.FILTER:
            return not message.handle or message.options is None or is_root_table(message)


def sayable(message: TcMessage) -> TcMessage:
    """`message` as the kernel accepts it back: without counters, and what it only reports."""
    options, parent = message.options, message.parent
    if options is None:
        return message
    if message.object is Object.CLASS and parent == TC_ROOT:
        parent = message.handle & _MAJOR  # how it reports a class right below its qdisc
    if message.object is Object.QDISC and message.kind == "htb":
        options = rewrite(options, _asked_htb)
    if message.object is Object.QDISC and message.kind in _CODEL_TIMES:
        options = rewrite(options, _CodelTimes(message.kind))
    if message.object is Object.FILTER and message.kind in CLASSIFIERS:
        options = rewrite(options, _FilterOptions(CLASSIFIERS[message.kind]))
    return replace(message, options=options, parent=parent)


def _asked_htb(number: int, value: bytes) -> bytes:
    """Version 3, and the counter of unshaped packets at zero."""
    if number != _HTB_INIT:
        return value
    _, rate_to_quantum, default, debug, _ = _HTB_GLOB.unpack(value)
    return _HTB_GLOB.pack(_HTB_VERSION, rate_to_quantum, default, debug, 0)


class _CodelTimes:
    """One µs more: told as they are, they would come back shorter, and shorter each time."""

    def __init__(self, kind: str) -> None:
        self._times = _CODEL_TIMES[kind]

    def __call__(self, number: int, value: bytes) -> bytes:
        return (
            struct.pack("=I", struct.unpack("=I", value)[0] + 1) if number in self._times else value
        )


class _FilterOptions:
    """Rewrites a classifier's options."""

    def __init__(self, places: Classifier) -> None:
        self._places = places

    def __call__(self, number: int, value: bytes) -> bytes | None:
        if number == self._places.counters:
            return None
        if number == self._places.flags:
            return struct.pack("=I", struct.unpack("=I", value)[0] & _FLAGS_SAYABLE)
        if number == self._places.actions:
            return rewrite(value, _asked_action)
        return value


def _asked_action(_: int, action: bytes) -> bytes:
    """One action of a list, without counters and times."""
    is_plain = dict(attributes(action)).get(_ACTION_KIND) in _PLAIN_ACTIONS

    def part(number: int, value: bytes) -> bytes | None:
        if number == _ACTION_STATS:
            return None
        return rewrite(value, _asked_parms) if number == _ACTION_OPTIONS and is_plain else value

    return rewrite(action, part)


def _asked_parms(number: int, value: bytes) -> bytes | None:
    """Who uses an action changes by itself: one that is gone is counted until nobody reads it."""
    if number == _ACTION_TIMES:
        return None
    if number == _ACTION_PARMS:
        return value[: _USERS.start] + bytes(_USERS.stop - _USERS.start) + value[_USERS.stop :]
    return value


def in_order(messages: Iterable[TcMessage]) -> tuple[TcMessage, ...]:
    """Parents before children and filters last, without what is implied but for u32's root tables.

    Those stay, since the order of their numbers is the order in which to make the filters.
    """
    wanted = [item for item in messages if not is_implied(item) or is_root_table(item)]
    queues = [item for item in wanted if item.object is not Object.FILTER]
    filters = [item for item in wanted if item.object is Object.FILTER]
    return (*_parents_first(queues), *filter_order(filters))


def _parents_first(messages: list[TcMessage]) -> Iterator[TcMessage]:
    """A class that its qdisc (mq, prio) makes by itself stands for that qdisc."""
    below: dict[int, list[TcMessage]] = {}
    known = {TC_ROOT, TC_INGRESS, *(message.handle for message in messages)}
    for message in messages:
        parent = message.parent if message.parent in known else message.parent & _MAJOR
        below.setdefault(parent, []).append(message)
    ready = [*below.pop(TC_ROOT, []), *below.pop(TC_INGRESS, [])]
    while ready:
        message = ready.pop(0)
        yield message
        ready += below.pop(message.handle, [])
    for orphans in below.values():
        yield from orphans
