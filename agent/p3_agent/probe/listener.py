"""The far end: a UDP echo that answers each probe with the TOS byte that it arrived with."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from p3_agent.errors import AgentError, UsageError
from p3_agent.probe import echo

RATE = 500.0
"""Replies a second, to all who ask together."""

_IP_PKTINFO = 8  # linux/in.h; Python has no name for it
_PKTINFO4 = struct.Struct("@i4s4s")
_PKTINFO6 = struct.Struct("@16si")
_INT = struct.Struct("@i")
_ON = 1
Ancillary = list[tuple[int, int, bytes]]
Place = tuple[int, str, int]
"""Family, address, and the interface's number for an address that is one link's (else 0)."""
_EVERYWHERE: tuple[Place, ...] = ((socket.AF_INET, "0.0.0.0", 0), (socket.AF_INET6, "::", 0))


@dataclass(slots=True)
class Listener:
    """Answers probes; `answered` counts them."""

    allowance: echo.Allowance
    answered: int = 0

    def hear(self, one: socket.socket) -> None:
        """Answer what has arrived at a socket; what cannot be answered is dropped."""
        try:
            data, headers, flags, sender = one.recvmsg(echo.MAX_REQUEST + 1, 256)
        except OSError:  # an ICMP error about an earlier reply
            return
        reply = None if flags & socket.MSG_TRUNC else echo.answer(data, _tos(headers))
        if reply is None or not self.allowance.take(time.monotonic()):
            return
        try:
            one.sendmsg([reply], _same_source(headers), 0, sender)
        except OSError:  # no way back, or the queue is full: the prober asks again
            return
        self.answered += 1


async def listen(
    port: int, address: str | None, stop: asyncio.Event, ready: Callable[[str], None]
) -> int:
    """Answer until `stop` is set; how many probes were answered.

    `ready` is called with where, when it listens. Raises AgentError when the port is taken, or
    `address` is none of this host's.
    """
    listener = Listener(echo.Allowance(RATE, RATE, time.monotonic()))
    loop = asyncio.get_running_loop()
    with _sockets(port, address) as sockets:
        for one in sockets:
            loop.add_reader(one, listener.hear, one)
        where = ", ".join(f"{one.getsockname()[0]} port {one.getsockname()[1]}" for one in sockets)
        ready(f"UDP {where}")
        try:
            await stop.wait()
        finally:
            for one in sockets:
                loop.remove_reader(one)
    return listener.answered


@contextmanager
def _sockets(port: int, address: str | None) -> Iterator[list[socket.socket]]:
    with ExitStack() as exits:
        made = []
        places = _EVERYWHERE if address is None else (_place(address),)
        for family, host, scope in places:
            where = (host, port, 0, scope) if family == socket.AF_INET6 else (host, port)
            try:
                one = _socket(exits, family, where)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(places) > 1:
                    continue  # a kernel without IPv6
                taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
                raise AgentError(
                    f"cannot listen at UDP {host} port {port}: {error.strerror}; "
                    f"choose another {'--port' if taken else '--address'}"
                ) from error
            made.append(one)
        yield made


def _place(address: str) -> Place:
    """A number as ip(8) shows it, with its interface where it has one (fe80::1%eth0)."""
    try:
        found = socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{address!r} is no address: name one that `ip address` shows") from error
    family, _, _, _, where = found[0]
    host, _, *more = where
    return family, str(host), int(more[1]) if more else 0


def _socket(exits: ExitStack, family: int, where: tuple[str | int, ...]) -> socket.socket:
    one = exits.enter_context(socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
    if family == socket.AF_INET:
        one.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, _ON)
        one.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, _ON)
    else:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, _ON)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, _ON)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, _ON)
    one.bind(where)
    return one


def _tos(headers: Ancillary) -> int:
    for level, kind, data in headers:
        if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
            return data[0]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_TCLASS):
            return int(_INT.unpack(data)[0])
    return 0


def _same_source(headers: Ancillary) -> Ancillary:
    """What makes a reply leave from the address that was asked, by whichever interface."""
    for level, kind, data in headers:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            _, local, _ = _PKTINFO4.unpack(data)
            return [(level, kind, _PKTINFO4.pack(0, local, bytes(4)))]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            local, _ = _PKTINFO6.unpack(data)
            return [(level, kind, _PKTINFO6.pack(local, 0))]
    return []
