"""Interfaces as rtnetlink tells of them (linux/if_link.h). Pure."""

from __future__ import annotations

import os
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
_IFLA_LINK = 5
_IFLA_MASTER = 10
_IFLA_LINKINFO = 18
_IFLA_NUM_TX_QUEUES = 31
_IFLA_LINK_NETNSID = 37
_IFLA_GSO_MAX_SIZE = 41
_IFLA_GRO_MAX_SIZE = 58
_IFLA_GSO_IPV4_MAX_SIZE = 63
_IFLA_XDP = 43
_IFLA_GRO_IPV4_MAX_SIZE = 64
_IFLA_INFO_KIND = 1
_IFLA_INFO_DATA = 2
_IFLA_BOND_MODE = 1
_IFLA_XDP_ATTACHED = 2


def link_named(name: str) -> bytes:
    """The body of a request about interface `name`."""
    return _IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, os.fsencode(name) + b"\0")


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


def link_of(body: bytes, speed: Rate | None = None, tx_queues: int | None = None) -> Link:
    """The interface that a message is about; ValueError if the message is cut off.

    `speed` and `tx_queues` are what the driver says of it, None if it was not asked.
    """
    index = index_of(body)
    flags = _IFINFOMSG.unpack_from(body)[3]
    found = dict(attributes(body[_IFINFOMSG.size :]))
    info = dict(attributes(found.get(_IFLA_LINKINFO, b"")))
    kind = _text(info, _IFLA_INFO_KIND)
    bond = dict(attributes(info.get(_IFLA_INFO_DATA, b""))) if kind == "bond" else {}
    queues = _number(found, _IFLA_NUM_TX_QUEUES) or 1
    gso = max(_number(found, _IFLA_GSO_MAX_SIZE), _number(found, _IFLA_GSO_IPV4_MAX_SIZE))
    gro = max(_number(found, _IFLA_GRO_MAX_SIZE), _number(found, _IFLA_GRO_IPV4_MAX_SIZE))
    return Link(
        index=index,
        name=_text(found, _IFLA_IFNAME),
        mac=found.get(_IFLA_ADDRESS, b"").hex(":"),
        mtu=_number(found, _IFLA_MTU),
        gso_max_size=gso or LinkLimits().gso_max_size,
        tx_queues=min(queues, tx_queues or queues),
        speed=speed,
        is_up=bool(flags & _IFF_UP),
        kind=kind,
        has_xdp=any(dict(attributes(found.get(_IFLA_XDP, b""))).get(_IFLA_XDP_ATTACHED, b"")),
        gro_max_size=gro or LinkLimits().gso_max_size,
        parent=0 if _IFLA_LINK_NETNSID in found else _number(found, _IFLA_LINK),
        master=_number(found, _IFLA_MASTER),
        bond_mode=bond[_IFLA_BOND_MODE][0] if _IFLA_BOND_MODE in bond else None,
    )


def _number(found: dict[int, bytes], number: int) -> int:
    value = found.get(number)
    return int(struct.unpack("=I", value)[0]) if value else 0


def _text(found: dict[int, bytes], number: int) -> str:
    return found.get(number, b"").rstrip(b"\0").decode("utf-8", "replace")
