"""u32's hash tables: in which order filters are made decides how the kernel numbers them. Pure.

For each priority u32 makes a root table by itself: the first of a qdisc (those of its classes
counted in) is 800:, later ones are counted up, and a number is not used again. So to get the
numbers back, priorities are made in the order of their root tables, with placeholders where there
are none any more. A table of a user has a number below 800: (7: in `handle 7: u32 divisor 16`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

from p3_shaper.tcmessage import Object, Request, TcMessage, Verb, attribute, attributes, rewrite

U32 = "u32"
_DIVISOR, _HASH = 4, 2
_NUMBER_SHIFT = 20
_NODE = 0x000F_FFFF
_FIRST_ROOT = 0x800
_ROOTS = range(_FIRST_ROOT, 0x1000)
_LAST_PRIORITY = 0xFFFF
_ONE = struct.pack("=I", 1)


def _number(message: TcMessage) -> int:
    return message.handle >> _NUMBER_SHIFT


def _qdisc(message: TcMessage) -> int:
    return message.parent >> 16


def _is_table(message: TcMessage) -> bool:
    return message.kind == U32 and bool(message.handle) and not message.handle & _NODE


def is_root_table(message: TcMessage) -> bool:
    """Whether this is the table that u32 made for a priority, and not one that a user made."""
    if not _is_table(message) or _number(message) not in _ROOTS or message.options is None:
        return False
    return dict(attributes(message.options)).get(_DIVISOR) == _ONE


def filter_order(filters: list[TcMessage]) -> list[TcMessage]:
    """By root table, then a priority's own tables before the filters in them."""
    roots = {(item.parent, item.info): _number(item) for item in filters if is_root_table(item)}

    def key(item: TcMessage) -> tuple[int, int, int, int, int, bool, bool, int]:
        root = roots.get((item.parent, item.info), 0)
        in_priority = (not is_root_table(item), not _is_table(item), item.handle)
        return (_qdisc(item), root, item.parent, item.chain, item.info >> 16, *in_priority)

    return sorted(filters, key=key)


def additions(messages: Iterable[TcMessage]) -> Iterator[Request]:
    """The requests that make `messages`, which are in order; u32's root tables get their numbers.

    Filters in root tables are said without the table's number, so that where it cannot be had
    (others made filters meanwhile) they are made all the same.
    """
    every = list(messages)
    users = [item for item in every if _is_table(item) and not is_root_table(item)]
    tables = {(_qdisc(item), _number(item)) for item in users}
    placeholders = _Placeholders(every)
    for message in every:
        if is_root_table(message):
            yield from placeholders.up_to(message)
        elif message.kind == U32 and (_qdisc(message), _number(message)) not in tables:
            yield Request(Verb.ADD, _without_root(message))
        else:
            yield Request(Verb.ADD, message)
    yield from placeholders.gone()


def _without_root(message: TcMessage) -> TcMessage:
    if message.options is None:
        return message
    options = rewrite(message.options, lambda number, value: None if number == _HASH else value)
    return replace(message, handle=message.handle & _NODE, options=options)


class _Placeholders:
    """Priorities without a filter, each of which takes a root table's number for a moment.

    Each has a table of a user's number instead, so that it never matches a packet.
    """

    def __init__(self, messages: list[TcMessage]) -> None:
        self._next: dict[int, int] = {}
        self._taken = {(item.parent, item.info >> 16) for item in messages}
        self._tables = {(_qdisc(item), _number(item)) for item in messages}
        self._made: list[TcMessage] = []

    def up_to(self, root: TcMessage) -> Iterator[Request]:
        following = self._next.get(_qdisc(root), _FIRST_ROOT)
        while following < _number(root):
            self._made.append(self._placeholder(root))
            yield Request(Verb.ADD, self._made[-1])
            following += 1
        self._next[_qdisc(root)] = max(following, _number(root)) + 1

    def gone(self) -> Iterator[Request]:
        for item in self._made:
            yield Request(Verb.DELETE, replace(item, handle=0, options=None))

    def _placeholder(self, root: TcMessage) -> TcMessage:
        place, qdisc = root.parent, _qdisc(root)
        priority = next(
            item for item in range(_LAST_PRIORITY, 0, -1) if (place, item) not in self._taken
        )
        number = next(
            item for item in range(_FIRST_ROOT - 1, 0, -1) if (qdisc, item) not in self._tables
        )
        self._taken.add((place, priority))
        self._tables.add((qdisc, number))
        return TcMessage(
            Object.FILTER,
            number << _NUMBER_SHIFT,
            place,
            U32,
            attribute(_DIVISOR, _ONE),
            priority << 16 | root.info & 0xFFFF,
        )
