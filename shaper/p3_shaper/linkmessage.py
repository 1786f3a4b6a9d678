"""Interfaces as rtnetlink tells of them (linux/if_link.h). Pure."""

from __future__ import annotations

import struct

from p3_shaper.limits import LinkLimits
from p3_shaper.link import Link
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import attribute, attributes

_IFINFOMSG = struct.Struct("=BxHiII")
_IFF_UP = 1

_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_LINKINFO = 18
_IFLA_NUM_TX_QUEUES = 31
_IFLA_GSO_MAX_SIZE = 41
_IFLA_GSO_IPV4_MAX_SIZE = 63
_IFLA_XDP = 43
_IFLA_INFO_KIND = 1
_IFLA_XDP_ATTACHED = 2


def link_named(name: str) -> bytes:
    """The body of a request about interface `name`."""
    return _IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, name.encode() + b"\0")


def make_link(name: str, kind: str) -> bytes:
    """The body of a request to make interface `name` of `kind`, up."""
    info = attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, kind.encode() + b"\0"))
    header = _IFINFOMSG.pack(0, 0, 0, _IFF_UP, _IFF_UP)
    return header + attribute(_IFLA_IFNAME, name.encode() + b"\0") + info


def link_numbered(index: int) -> bytes:
    """The body of a request about interface `index`."""
    return _IFINFOMSG.pack(0, 0, index, 0, 0)


def index_of(body: bytes) -> int:
    """The interface that a message is about; ValueError if the message is cut off."""
    if len(body) < _IFINFOMSG.size:
        raise ValueError(f"a link message of {len(body)} bytes is too short")
    return int(_IFINFOMSG.unpack_from(body)[2])


def link_of(body: bytes, speed: Rate | None) -> Link:
    """The interface that a message is about; ValueError if the message is cut off."""
    index = index_of(body)
    flags = _IFINFOMSG.unpack_from(body)[3]
    found = dict(attributes(body[_IFINFOMSG.size :]))
    info = dict(attributes(found.get(_IFLA_LINKINFO, b"")))
    gso = max(_number(found, _IFLA_GSO_MAX_SIZE), _number(found, _IFLA_GSO_IPV4_MAX_SIZE))
    return Link(
        index=index,
        name=_text(found, _IFLA_IFNAME),
        mac=found.get(_IFLA_ADDRESS, b"").hex(":"),
        mtu=_number(found, _IFLA_MTU),
        gso_max_size=gso or LinkLimits().gso_max_size,
        tx_queues=_number(found, _IFLA_NUM_TX_QUEUES) or 1,
        speed=speed,
        is_up=bool(flags & _IFF_UP),
        kind=_text(info, _IFLA_INFO_KIND),
        has_xdp=any(dict(attributes(found.get(_IFLA_XDP, b""))).get(_IFLA_XDP_ATTACHED, b"")),
    )


def _number(found: dict[int, bytes], number: int) -> int:
    value = found.get(number)
    return int(struct.unpack("=I", value)[0]) if value else 0


def _text(found: dict[int, bytes], number: int) -> str:
    return found.get(number, b"").rstrip(b"\0").decode("utf-8", "replace")
