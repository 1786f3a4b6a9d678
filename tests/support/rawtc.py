"""Everything that the kernel lists of an interface's traffic control, byte for byte.

Only what counts or dates traffic is left out. Read apart from how the shaper understands it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from p3_shaper.channel import Channel
from p3_shaper.tcmessage import Object, attributes, question

_TCMSG = struct.Struct("=BxxxiIII")
_CLSACT = 0xFFFF_FFF1
_CLSACT_SIDES = (0xFFFF_FFF2, 0xFFFF_FFF3)
_KIND, _OPTIONS = 1, 2
_STATISTICS = {3, 4, 5, 6, 7, 9}  # TCA_STATS, XSTATS, RATE, FCNT, STATS2, PAD
_FLOWS = {"cake", "fq_codel", "sfq"}
"""Kinds whose classes are the flows that wait in them just now."""
_HTB_INIT = 2
_CLASSIFIERS = {"u32": (7, 9), "flower": (3, 0), "matchall": (2, 4), "basic": (3, 5), "fw": (4, 0)}
"""Where a classifier's actions are, and its counters."""
_ACTION_OPTIONS, _ACTION_STATISTICS = 2, 4
_TIMES, _PARMS = 1, 2

Raw = tuple[tuple[object, ...], ...]


async def raw(namespace: str | None, index: int) -> Raw:
    """What qdiscs, classes and filters interface `index` of `namespace` has, sorted."""
    async with Channel.to(namespace) as channel:
        found: list[tuple[object, ...]] = []
        places: list[int] = []
        for kind in (Object.QDISC, Object.CLASS):
            for body in await channel.dump(kind, question(index)):
                _, number, handle, parent, _ = _TCMSG.unpack_from(body)
                if number == index and not (kind is Object.CLASS and _kind(body) in _FLOWS):
                    places += [handle, *(_CLSACT_SIDES if parent == _CLSACT else ())]
                    found.append((kind.value, handle, parent, 0, _said(kind, body)))
        for place in dict.fromkeys(filter(None, places)):
            for body in await channel.dump(Object.FILTER, question(index, place)):
                _, _, handle, parent, info = _TCMSG.unpack_from(body)
                found.append(("filter", handle, parent, info, _said(Object.FILTER, body)))
    return tuple(sorted(found, key=repr))


def _kind(body: bytes) -> str:
    return dict(attributes(body[_TCMSG.size :]))[_KIND].rstrip(b"\0").decode()


def _said(kind: Object, body: bytes) -> tuple[tuple[int, object], ...]:
    data = body[_TCMSG.size :]
    name = _kind(body)
    return tuple(
        (number, _options(kind, name, value) if number == _OPTIONS else value)
        for number, value in attributes(data)
        if number not in _STATISTICS
    )


def _options(kind: Object, name: str, data: bytes) -> object:
    if kind is Object.QDISC and name == "htb":  # the last field counts what passed unshaped
        return [(number, v[:16] if number == _HTB_INIT else v) for number, v in attributes(data)]
    if kind is Object.FILTER and name in _CLASSIFIERS:
        actions, counters = _CLASSIFIERS[name]
        return [
            (number, _actions(value) if number == actions else value)
            for number, value in _without(data, {counters})
        ]
    return data


def _actions(data: bytes) -> object:
    return [
        [
            (part, _action(value) if part == _ACTION_OPTIONS else value)
            for part, value in _without(action, {_ACTION_STATISTICS})
        ]
        for _, action in attributes(data)
    ]


def _action(data: bytes) -> object:
    """Without struct tc_gen's refcnt and bindcnt, which the kernel corrects late."""
    return [
        (number, (value[:12], value[20:]) if number == _PARMS else value)
        for number, value in _without(data, {_TIMES})
    ]


def _without(data: bytes, numbers: Collection[int]) -> list[tuple[int, bytes]]:
    return [(number, value) for number, value in attributes(data) if number not in numbers]
