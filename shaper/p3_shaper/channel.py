"""Rtnetlink messages out and in. The only importer of pyroute2.

pyroute2 carries the bytes (sequence numbers, acknowledgements, the kernel's error texts); what they
mean is `tcmessage`'s and `encode`'s. Its own encoders drop the options of kinds that they do not
know (bfifo, mq, fq) and act on the root instead, and read u32 keys back shifted.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyroute2 import AsyncIPRoute
from pyroute2.netlink import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    nlmsg,
    rtnl,
)
from pyroute2.netlink.exceptions import NetlinkError

from p3_shaper.namespace import socket_in, socket_in_new
from p3_shaper.tcmessage import Object, Verb

_HEADER = struct.Struct("=IHHII")
_OBJECTS = {
    Object.QDISC: (rtnl.RTM_NEWQDISC, rtnl.RTM_DELQDISC, rtnl.RTM_GETQDISC),
    Object.CLASS: (rtnl.RTM_NEWTCLASS, rtnl.RTM_DELTCLASS, rtnl.RTM_GETTCLASS),
    Object.FILTER: (rtnl.RTM_NEWTFILTER, rtnl.RTM_DELTFILTER, rtnl.RTM_GETTFILTER),
}
_FLAGS = {
    Verb.ADD: NLM_F_CREATE | NLM_F_EXCL,
    Verb.CHANGE: NLM_F_REPLACE,
    Verb.REPLACE: NLM_F_CREATE | NLM_F_REPLACE,
    Verb.DELETE: 0,
}
_DUMP_TRIES = 10


class ChannelError(OSError):
    """The kernel's refusal: `errno`, and in `strerror` its own words where it has some."""


@dataclass(frozen=True, slots=True)
class Event:
    """One notification: what it is about (None: a link), whether that is gone, who asked for it."""

    object: Object | None
    removed: bool
    port: int
    payload: bytes


class _Message(nlmsg):  # type: ignore[misc]
    """A netlink message with its body as bytes."""

    def encode(self) -> None:
        header, body = self["header"], self["body"]
        self.data = bytearray(
            _HEADER.pack(
                _HEADER.size + len(body),
                header["type"],
                header["flags"],
                header["sequence_number"],
                header["pid"],
            )
            + body
        )

    def decode(self) -> None:
        fields = _HEADER.unpack_from(self.data, self.offset)
        names = ("length", "type", "flags", "sequence_number", "pid")
        self["header"].update(zip(names, fields, strict=True))
        self.length = fields[0]
        self["body"] = bytes(self.data[self.offset + _HEADER.size : self.offset + self.length])
        self.decoded = True


_TYPES = {
    **{number: _Message for numbers in _OBJECTS.values() for number in numbers},
    **dict.fromkeys((rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_GETLINK), _Message),
    **dict.fromkeys((rtnl.RTM_NEWROUTE, rtnl.RTM_GETROUTE), _Message),
}
_EVENTS = {
    **{numbers[0]: (kind, False) for kind, numbers in _OBJECTS.items()},
    **{numbers[1]: (kind, True) for kind, numbers in _OBJECTS.items()},
    rtnl.RTM_NEWLINK: (None, False),
    rtnl.RTM_DELLINK: (None, True),
}


class Channel:
    """One netlink socket in one network namespace, used from one event loop."""

    def __init__(self, link: socket.socket, groups: int = 0) -> None:
        self._route = AsyncIPRoute(fileno=link.detach(), ext_ack=True, strict_check=True)
        self._groups = groups

    @classmethod
    def to(cls, namespace: str | None) -> Self:
        """A channel into `namespace` (see `socket_in`); OSError if it cannot be entered."""
        return cls(_netlink_socket(namespace))

    @classmethod
    def to_new(cls) -> Self:
        """A channel into a new namespace that ends with it; OSError without CAP_SYS_ADMIN."""
        return cls(socket_in_new(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE))

    async def __aenter__(self) -> Self:
        self._route.register_policy(_TYPES)
        try:
            await self._route.bind(groups=self._groups)
        except KeyError as error:  # pyroute2's word for every address being taken
            self._route.close()
            raise ChannelError(errno.EADDRINUSE, "no netlink address is free") from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._route.close()

    @property
    def port(self) -> int:
        """The socket's netlink address; the kernel names it in the events that we cause."""
        return int(self._route.getsockname()[0])

    async def dump(self, kind: Object, body: bytes) -> list[bytes]:
        """Bodies of what the kernel lists; ChannelError. Repeated while changes interrupt it."""
        return await self._dump(_OBJECTS[kind][2], body)

    async def links(self, body: bytes) -> list[bytes]:
        """Bodies about every interface; ChannelError."""
        return await self._dump(rtnl.RTM_GETLINK, body)

    async def _dump(self, number: int, body: bytes) -> list[bytes]:
        for _ in range(_DUMP_TRIES):
            answers = await self._ask(number, NLM_F_REQUEST | NLM_F_DUMP, body)
            if not any(answer["header"]["flags"] & NLM_F_DUMP_INTR for answer in answers):
                return [answer["body"] for answer in answers]
        raise ChannelError(errno.EAGAIN, "it changes too fast to be read")

    async def change(self, verb: Verb, kind: Object, body: bytes) -> None:
        """Carry out a change; ChannelError."""
        new, delete, _ = _OBJECTS[kind]
        number = delete if verb is Verb.DELETE else new
        await self._ask(number, NLM_F_REQUEST | NLM_F_ACK | _FLAGS[verb], body)

    async def link(self, body: bytes) -> bytes:
        """The body about the interface that `body` names; ChannelError with ENODEV if none."""
        answers = await self._ask(rtnl.RTM_GETLINK, NLM_F_REQUEST, body)
        return bytes(answers[0]["body"])

    async def route(self, body: bytes) -> bytes:
        """The body about the route that `body` asks for; ChannelError if there is none."""
        answers = await self._ask(rtnl.RTM_GETROUTE, NLM_F_REQUEST, body)
        return bytes(answers[0]["body"])

    async def change_link(self, verb: Verb, body: bytes) -> None:
        """Make, change or delete an interface; ChannelError."""
        number = rtnl.RTM_DELLINK if verb is Verb.DELETE else rtnl.RTM_NEWLINK
        await self._ask(number, NLM_F_REQUEST | NLM_F_ACK | _FLAGS[verb], body)

    async def events(self) -> AsyncIterator[Event]:
        """Notifications, without end; ChannelError with ENOBUFS when some were lost."""
        while True:
            try:
                async for message in self._route.get():
                    header = message["header"]
                    if header["type"] in _EVENTS:
                        kind, removed = _EVENTS[header["type"]]
                        yield Event(kind, removed, header["pid"], message["body"])
            except OSError as error:
                raise ChannelError(error.errno, error.strerror) from error

    async def _ask(self, number: int, flags: int, body: bytes) -> list[_Message]:
        message = _Message()
        message["body"] = body
        try:
            answers = await self._route.nlm_request(message, msg_type=number, msg_flags=flags)
            return [answer async for answer in answers]
        except NetlinkError as error:
            text = error.args[1] if len(error.args) > 1 else None
            raise ChannelError(error.code, text or "") from error


@asynccontextmanager
async def open_events(namespace: str | None) -> AsyncIterator[AsyncIterator[Event]]:
    """Notifications about links and traffic control in `namespace`, from now on."""
    groups = rtnl.RTMGRP_LINK | rtnl.RTMGRP_TC
    async with Channel(_netlink_socket(namespace), groups) as channel:
        yield channel.events()


def _netlink_socket(namespace: str | None) -> socket.socket:
    return socket_in(namespace, socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)
