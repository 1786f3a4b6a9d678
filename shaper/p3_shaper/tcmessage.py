"""What the kernel says and hears about traffic control: struct tcmsg and its attributes. Pure.

pyroute2 0.9 encodes several kinds wrongly or not at all, and reads others back shifted. So options
travel as bytes here, and `encode` gives them meaning.
"""

from __future__ import annotations

import enum
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass

TC_ROOT = 0xFFFF_FFFF
"""Parent of an interface's root qdisc."""
TC_INGRESS = 0xFFFF_FFF1
"""Parent of an interface's ingress (or clsact) qdisc."""
INGRESS_HANDLE = 0xFFFF_0000
_NAMES = {TC_ROOT: "root", TC_INGRESS: "ingress", 0: "none"}

TCA_KIND = 1
TCA_OPTIONS = 2
TCA_STATS2 = 7
TCA_STAB = 8
TCA_CHAIN = 11
TCA_INGRESS_BLOCK = 13
TCA_EGRESS_BLOCK = 14

_TCMSG = struct.Struct("=BxxxiIII")
_NLA = struct.Struct("=HH")
_NLA_TYPE = 0x3FFF  # the upper two bits are flags: nested, network byte order
NESTED = 0x8000
"""Flag in the number of an attribute that holds attributes; older kinds do without."""
_CHECKED = frozenset({"dualpi2", "ets", "fq_pie"})
"""Qdiscs whose options the kernel refuses without the flag (nla_parse_nested in net/sched)."""


class Object(enum.Enum):
    """What a message is about; the value is tc's word for it."""

    QDISC = "qdisc"
    CLASS = "class"
    FILTER = "filter"


class Verb(enum.Enum):
    """What a request asks for. CHANGE fails if it is not there, ADD if it is, REPLACE never."""

    ADD = "add"
    CHANGE = "change"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class TcMessage:
    """One qdisc, class or filter as the kernel describes it.

    `info` is a filter's (priority << 16 | protocol in network byte order), and 0 for the others.
    `options` is TCA_OPTIONS without its header, None where there is none. `unsayable` says what
    beside the options could not be told the kernel again, "" if nothing (see `replayable`).
    """

    object: Object
    handle: int
    parent: int
    kind: str
    options: bytes | None = None
    info: int = 0
    chain: int = 0
    unsayable: str = ""

    def attributes(self) -> bytes:
        """The netlink attributes that a request for this carries."""
        parts = [attribute(TCA_KIND, self.kind.encode() + b"\0")] if self.kind else []
        if self.options is not None:
            flag = NESTED if self.kind in _CHECKED else 0
            parts.append(attribute(TCA_OPTIONS | flag, self.options))
        if self.chain:
            parts.append(attribute(TCA_CHAIN, struct.pack("=I", self.chain)))
        return b"".join(parts)

    def payload(self, index: int) -> bytes:
        """The body of a netlink message (after its header) about this, on interface `index`."""
        header = _TCMSG.pack(0, index, self.handle, self.parent, self.info)
        return header + self.attributes()


def question(index: int, parent: int = 0) -> bytes:
    """The body of a request to list what interface `index` has; filters below `parent` alone."""
    return _TCMSG.pack(0, index, 0, parent, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """A change to ask the kernel for."""

    verb: Verb
    message: TcMessage


@dataclass(frozen=True, slots=True)
class Counters:
    """What has passed a qdisc or class, and what waits in it."""

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    overlimits: int = 0
    backlog: int = 0
    qlen: int = 0


def total(counters: Mapping[int, Counters], handles: Iterable[int]) -> Counters:
    """What passed and waits in all of `handles` together; those without counters count nothing."""
    found = [counters[handle] for handle in handles if handle in counters]
    return Counters(*map(sum, zip(*map(astuple, found), strict=True)))


def parse(kind: Object, payload: bytes) -> tuple[int, TcMessage, Counters]:
    """Interface index, message and counters of a netlink message's body. ValueError if cut off."""
    if len(payload) < _TCMSG.size:
        raise ValueError(f"a {kind.value} message of {len(payload)} bytes is too short")
    _, index, handle, parent, info = _TCMSG.unpack_from(payload)
    found = dict(attributes(payload[_TCMSG.size :]))
    name = found.get(TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    options = found.get(TCA_OPTIONS)
    message = TcMessage(
        object=kind,
        handle=handle,
        parent=parent,
        kind=name,
        options=options,
        info=info if kind is Object.FILTER else 0,
        chain=int.from_bytes(found.get(TCA_CHAIN, b""), sys.byteorder),
        unsayable=_unsayable(found.keys()),
    )
    return index, message, _counters(found.get(TCA_STATS2, b""))


def attribute(number: int, value: bytes) -> bytes:
    """One netlink attribute, padded to 4 bytes."""
    return _NLA.pack(_NLA.size + len(value), number) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of each netlink attribute in `data`; ValueError if one is cut off."""
    offset = 0
    while offset + _NLA.size <= len(data):
        length, number = _NLA.unpack_from(data, offset)
        if length < _NLA.size or offset + length > len(data):
            raise ValueError(f"a netlink attribute of {length} bytes is cut off at byte {offset}")
        yield number & _NLA_TYPE, data[offset + _NLA.size : offset + length]
        offset += (length + 3) & ~3


def rewrite(data: bytes, change: Callable[[int, bytes], bytes | None]) -> bytes:
    """`data` with each attribute's value as `change` of its number and value says; None drops it.

    An attribute's flags (nested, byte order) stay.
    """
    parts, offset = [], 0
    for number, value in attributes(data):
        changed = change(number, value)
        if changed is not None:
            parts.append(attribute(_NLA.unpack_from(data, offset)[1], changed))
        offset += _NLA.size + len(value) + -len(value) % 4
    return b"".join(parts)


def handle_text(handle: int) -> str:
    """A handle or class id as tc writes it: `7033:` or `7033:10`."""
    if handle in _NAMES:
        return _NAMES[handle]
    minor = handle & 0xFFFF
    return f"{handle >> 16:x}:{minor:x}" if minor else f"{handle >> 16:x}:"


def _unsayable(found: Iterable[int]) -> str:
    if TCA_STAB in found:
        return "the kernel does not give back its size table (stab)"
    if TCA_INGRESS_BLOCK in found or TCA_EGRESS_BLOCK in found:
        return "its filters are in a block shared with other interfaces"
    return ""


_BASIC = struct.Struct("=QI")
_QUEUE = struct.Struct("=IIIII")
_STATS_BASIC = 1
_STATS_QUEUE = 3
_STATS_PACKETS64 = 8


def _counters(stats: bytes) -> Counters:
    found = dict(attributes(stats))
    if _STATS_BASIC not in found or _STATS_QUEUE not in found:
        return Counters()
    size, packets = _BASIC.unpack_from(found[_STATS_BASIC])
    qlen, backlog, drops, _, overlimits = _QUEUE.unpack_from(found[_STATS_QUEUE])
    if _STATS_PACKETS64 in found:
        packets = int.from_bytes(found[_STATS_PACKETS64], sys.byteorder)
    return Counters(size, packets, drops, overlimits, backlog, qlen)
