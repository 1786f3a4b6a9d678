"""The steps between two trees under the same root of ours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from p3_shaper.encode import decode_class, decode_qdisc
from p3_shaper.encode_u32 import decode_filter, filter_key
from p3_shaper.operations import Operation, change, make, messages_of, remove
from p3_shaper.parts import Filter, HtbClass, Qdisc
from p3_shaper.tcmessage import INGRESS_HANDLE, TC_ROOT, Object, TcMessage
from p3_shaper.tree import MAJORS, MAX_QUEUES, REDIRECT_PRIORITY, Tree
from p3_shaper.u32tables import is_root_table

_OUR_MINORS = 0x20
_OUR_PRIORITIES = range(1, 0x40)  # tc's own choice counts down from 49152
_CHANGEABLE = frozenset({"bfifo", "ets", "pfifo", "prio"})
"""Kinds whose options change in place; those of an htb qdisc are fixed when it is made."""

FilterKey = tuple[int, int, int]


def needs_new_root(wanted: Tree, observed: Tree) -> bool:
    """Whether no change in place can do it: other root options, or a class that moves."""
    top, there = wanted.root, observed.root
    if top is None or there is None:
        return True
    if top != there and not (top.kind == there.kind and top.kind in _CHANGEABLE):
        return True
    # the kernel ignores a class's new parent without a word
    parents = {item.classid: item.parent for item in observed.classes}
    return any(parents.get(item.classid, item.parent) != item.parent for item in wanted.classes)


def difference(wanted: Tree, observed: Tree) -> Iterator[Operation]:
    """The operations that make `observed` into `wanted`, both with the same root of ours.

    Stale queues go first (a prio qdisc that shrinks would drop them itself); stale classes last,
    when no filter names them any more.
    """
    want, here = _Parts.of(messages_of(wanted)), _Parts.of(messages_of(observed))
    ours = _Ours.under(observed)
    yield from _drop_stale_qdiscs(want, here, ours)
    hosts = {item for item, qdisc in want.qdiscs.items() if want.has_classes_of(qdisc)}
    yield from _change_qdiscs(want, here, hosts)
    yield from _change_classes(want, here)
    yield from _change_qdiscs(want, here, want.qdiscs.keys() - hosts)
    yield from _change_filters(want, here, ours)
    yield from _drop_stale_classes(want, here, ours)


@dataclass(frozen=True, slots=True)
class _Ours:
    """Which parts under a root of ours are ours too; the others were added by someone else."""

    majors: range
    priorities: range

    @classmethod
    def under(cls, tree: Tree) -> _Ours:
        if tree.root is None:
            return cls(range(0), range(0))
        if tree.root.handle == INGRESS_HANDLE:
            major = tree.root.major
            return cls(range(major, major + 1), range(REDIRECT_PRIORITY, REDIRECT_PRIORITY + 1))
        queues = MAX_QUEUES if tree.root.kind == "mq" else 0
        first = tree.root.major - MAJORS * queues
        return cls(range(first, tree.root.major + MAJORS), _OUR_PRIORITIES)

    def has(self, handle: int) -> bool:
        return handle >> 16 in self.majors and handle & 0xFFFF < _OUR_MINORS

    def has_filter(self, key: FilterKey) -> bool:
        parent, priority, _ = key
        return self.has(parent) and priority in self.priorities


@dataclass(slots=True)
class _Parts:
    """Messages by what tells them apart: a place for a queue, an id for a class."""

    qdiscs: dict[int, TcMessage] = field(default_factory=dict)
    classes: dict[int, TcMessage] = field(default_factory=dict)
    filters: dict[FilterKey, list[TcMessage]] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[TcMessage]) -> _Parts:
        parts = cls()
        for message in messages:
            match message.object:
                case Object.QDISC:
                    parts.qdiscs[message.parent] = message
                case Object.CLASS:
                    parts.classes[message.handle] = message
                case Object.FILTER if not message.chain and not is_root_table(message):
                    parts.filters.setdefault(filter_key(message), []).append(message)
        return parts

    def has_classes_of(self, qdisc: TcMessage) -> bool:
        """Whether classes hang below `qdisc` that it does not make by itself."""
        return any(item >> 16 == qdisc.handle >> 16 for item in self.classes)

    def take(self, qdisc: TcMessage) -> list[TcMessage]:
        """Forget `qdisc` and all below it; what was below, parents first."""
        del self.qdiscs[qdisc.parent]
        major = qdisc.handle >> 16
        classes = [item for item in self.classes if item >> 16 == major]
        below = [self.classes.pop(item) for item in classes]
        for place in [item for item in self.qdiscs if item >> 16 == major]:
            child = self.qdiscs[place]
            below += [child, *self.take(child)]
        for key in [item for item in self.filters if item[0] >> 16 == major]:
            below += self.filters.pop(key)
        return below


def _value(message: TcMessage) -> Qdisc | HtbClass | Filter | TcMessage:
    """The normal form: two messages with the same one mean the same."""
    match message.object:
        case Object.QDISC:
            return decode_qdisc(message)
        case Object.CLASS:
            return decode_class(message) or message
        case Object.FILTER:
            return decode_filter(message) or message


def _same(left: TcMessage, right: TcMessage) -> bool:
    return _value(left) == _value(right)


def _drop_stale_qdiscs(want: _Parts, here: _Parts, ours: _Ours) -> Iterator[Operation]:
    for place in list(here.qdiscs):
        qdisc = here.qdiscs.get(place)  # None: it went with one above it
        if qdisc is None or place in want.qdiscs or place == TC_ROOT:
            continue
        if ours.has(place) or ours.has(qdisc.handle):
            yield remove(qdisc, here.take(qdisc))


def _change_classes(want: _Parts, here: _Parts) -> Iterator[Operation]:
    for classid, wanted in want.classes.items():
        there = here.classes.get(classid)
        if there is None:
            yield from make([wanted])
        elif not _same(there, wanted):
            yield change(there, wanted)


def _change_qdiscs(want: _Parts, here: _Parts, places: Set[int]) -> Iterator[Operation]:
    for place, wanted in want.qdiscs.items():
        there = here.qdiscs.get(place)
        if place not in places:
            continue
        if there is not None and _same(there, wanted):
            continue
        if there is None:
            yield from make([wanted])
        elif (there.kind, there.handle) == (wanted.kind, wanted.handle):
            yield change(there, wanted)
        else:
            yield remove(there, here.take(there))
            yield from make([wanted])


def _change_filters(want: _Parts, here: _Parts, ours: _Ours) -> Iterator[Operation]:
    for key, there in here.filters.items():
        wanted = want.filters.get(key, [])
        if ours.has_filter(key) and not _same_filters(there, wanted):
            yield remove(there[0], there[1:])
    for key, wanted in want.filters.items():
        if not _same_filters(here.filters.get(key, []), wanted):
            yield from make(wanted)


def _same_filters(left: list[TcMessage], right: list[TcMessage]) -> bool:
    return len(left) == len(right) and all(map(_same, left, right))


def _drop_stale_classes(want: _Parts, here: _Parts, ours: _Ours) -> Iterator[Operation]:
    for classid in sorted(here.classes, reverse=True):
        if classid not in want.classes and ours.has(classid):
            yield remove(here.classes[classid])
