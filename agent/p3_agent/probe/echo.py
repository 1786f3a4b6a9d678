"""The datagrams between `p3-agent probe HOST` and `p3-agent probe --listen`. Pure.

Both are `magic, token, number, tos, 0`; a request goes on with `number` zero bytes, so that a quote
of its first 8 bytes (RFC 792) tells by the UDP length which one it was, while ports, and with them
the path, stay the same. A reply is never larger than its request, nor is it one itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PORT = 33434
"""Where traceroute's range begins, which many firewalls let pass."""
TOKEN = 8
"""Bytes by which a reply is known."""
MAX_REQUEST = 1200

_FORM = struct.Struct("!4s8sHBx")
_REQUEST, _REPLY = b"P3p?", b"P3p!"
_UDP_HEADER = 8


def request(token: bytes, number: int) -> bytes:
    """The probe `number`."""
    return _FORM.pack(_REQUEST, token, number, 0) + bytes(number)


def number_of(udp_length: int) -> int:
    """Which probe it was, by its UDP header's length; negative if it was none."""
    return udp_length - _UDP_HEADER - _FORM.size


def answer(data: bytes, tos: int) -> bytes | None:
    """The reply to a request that arrived with `tos`, or None when it is not one."""
    if not _FORM.size <= len(data) <= MAX_REQUEST or not data.startswith(_REQUEST):
        return None
    _, token, number, _ = _FORM.unpack_from(data)
    return _FORM.pack(_REPLY, token, number, tos)


def read_reply(data: bytes, token: bytes) -> tuple[int, int] | None:
    """The number and the TOS byte in a reply to our own, or None when it is not one."""
    if len(data) != _FORM.size:
        return None
    magic, its_token, number, tos = _FORM.unpack(data)
    return (number, tos) if (magic, its_token) == (_REPLY, token) else None


@dataclass(slots=True)
class Allowance:
    """A token bucket: `rate` a second, `rate` at once at most; `now` is in seconds."""

    rate: float
    left: float
    last: float

    def take(self, now: float) -> bool:
        """Whether one more may go."""
        self.left = min(self.rate, self.left + (now - self.last) * self.rate)
        self.last = now
        if self.left < 1:
            return False
        self.left -= 1
        return True
