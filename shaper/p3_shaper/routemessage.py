"""Which way a packet would take: rtnetlink's route lookup (linux/rtnetlink.h). Pure."""

from __future__ import annotations

import ipaddress
import socket
import struct

from p3_shaper.tcmessage import attribute, attributes

_RTMSG = struct.Struct("=BBBBBBBBI")
_DESTINATION, _OUT = 1, 4


def route_to(address: str) -> bytes:
    """The body of a request for the route to `address`; ValueError if it is none."""
    parsed = ipaddress.ip_address(address)
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    header = _RTMSG.pack(family, parsed.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    return header + attribute(_DESTINATION, parsed.packed)


def out_index(body: bytes) -> int | None:
    """The interface that a route leaves by; None if it leaves by none."""
    found = dict(attributes(body[_RTMSG.size :]))
    return struct.unpack("=I", found[_OUT])[0] if _OUT in found else None
